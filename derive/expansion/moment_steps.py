"""One hidden layer in exact steps: what a step of descent makes of the second moments of the fields.

Without memory (:func:`.markov`) a field after a step is a combination of the fields before it.  In a linear
network second moments after a step are then polynomials in those before it, and in the rate: a map, closed
and exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sympy import Dummy, Expr, Function, Mul, S, Sum, Symbol, solve, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.calculus.sums import addends
from derive.errors import NotApplicable
from derive.linear.contraction import Frame, closed_span
from derive.program.words import ell, t
from derive.reduce.markov import Markov, markov
from derive.reduce.whitened import Coefficients, n, on_targets
from derive.theory.theory import Equation, Theory

Part = tuple[Expr, AppliedUndef, tuple[tuple[Symbol, Expr, Expr], ...]]
"""A number times a field, summed over the limits."""
Combination = list[Part]


@dataclass(frozen=True)
class MomentSteps:
    """``step[x]`` is the value after one step of each one-time function x, ``initial[x]`` that at time 0."""

    theory: Theory
    step: dict[Expr, Expr]
    initial: dict[Expr, Expr]


def moment_steps(theory: Theory) -> MomentSteps:
    """The map of the moments of a linear theory of one hidden layer in exact steps.

    The one-time functions are the correlation functions at equal times and the error.  Raises
    :class:`NotApplicable` for a flow, for a theory with memory, and for one whose moments do not close.

    >>> from derive.theory import mean_field
    >>> from derive.program import mlp
    >>> steps = moment_steps(mean_field(mlp(1, loss="sum")))
    >>> print(*steps.step)
    H(mu, alpha, t) G(t) Delta(mu, t)
    """
    if not theory.program.rule.discrete:
        raise NotApplicable("a flow has no steps")
    return _Steps(markov(theory)).result()


class _Steps:
    def __init__(self, system: Markov) -> None:
        self.system, self.theory = system, system.theory
        self.motions = {str(x.symbol.func): x for x in system.states}
        self.fields = {e.name: e for e in system.fields}
        self.moments = [self.moment(q.name, q.definition.args[0]) for q in self.theory.correlations()]

    def moment(self, name: str, body: Expr) -> tuple[AppliedUndef, AppliedUndef, AppliedUndef]:
        """A correlation function at one time, and its two fields."""
        q = self.theory.order_parameter(name)
        atoms = [a for x in Mul.make_args(body) for a in ([x.base] * 2 if x.is_Pow else [x])]
        now = [a.subs(ell, 1).xreplace({a.args[-1]: t}) for a in atoms]
        indices = [x for x in q.symbol.args[:-2] if x not in (ell, 1)]
        now.sort(key=lambda a: [indices.index(x) for x in a.args if x in indices])
        return Function(name)(*indices, t), now[0], now[1]

    def result(self) -> MomentSteps:
        step = {lhs: self.product(self.after(a), self.after(b)) for lhs, a, b in self.moments}
        initial = {lhs: self.at_start(a, b) for lhs, a, b in self.moments}
        output, error = self.scalars()
        value = next(iter(output.rhs.atoms(Average)))
        a, b = (x for x in Mul.make_args(value.body))
        later = output.rhs / value * self.product(self.after(a), self.after(b))
        step[error.lhs] = error.rhs.xreplace({output.lhs: later.expand()})
        initial[error.lhs] = error.rhs.xreplace({output.lhs: output.rhs / value * self.at_start(a, b)})
        return MomentSteps(self.theory, step, initial)

    def scalars(self) -> tuple[Equation, Equation]:
        output = next(e for e in self.theory.scalars if e.rhs.has(Average))
        return output, next(e for e in self.theory.scalars if e.name != output.name)

    # -- fields ----------------------------------------------------------------------------------------

    def after(self, a: AppliedUndef) -> Combination:
        """The field after the step: itself, and what its sums over the past gain."""
        e = self.fields[str(a.func)]
        names = dict(zip(e.lhs.args, a.args, strict=True))
        found: Combination = [(S.One, a, ())]
        for x in e.rhs.atoms(AppliedUndef):
            state = self.motions.get(str(x.func))
            if state is None:
                continue
            gain = (state.motion.rhs - state.symbol).expand()
            if gain.has(state.symbol):
                raise NotApplicable(f"{state.symbol} forgets: its step is {state.motion.rhs}")
            found += list(self.combination(gain, names))
        return found

    def combination(self, e: Expr, names: dict[Expr, Expr]) -> Iterator[Part]:
        for part in addends(e):
            limits = part.limits if isinstance(part, Sum) else ()
            body = part.function if isinstance(part, Sum) else part
            fresh = {i: Dummy(i.name, integer=True, positive=True) for i, _, _ in limits}
            body = body.xreplace(fresh).xreplace(names)
            own = [a for a in body.atoms(AppliedUndef) if str(a.func) in self.fields]
            if len(own) != 1:
                raise NotApplicable(f"{part} is not linear in the fields: moments do not close")
            number = body / own[0]
            yield number, own[0], tuple((fresh[i], low, high) for i, low, high in limits)

    # -- moments ---------------------------------------------------------------------------------------

    def product(self, first: Combination, second: Combination) -> Expr:
        total = S.Zero
        for c, a, low in first:
            for d, b, high in second:
                body = c * d * self.named(a, b)
                limits = (*low, *high)
                total += _numbered(Sum(body, *limits)) if limits else body.expand()
        return total

    def named(self, a: AppliedUndef, b: AppliedUndef) -> Expr:
        """``<a b>`` by name: a correlation function, or what the error says of the output."""
        for lhs, x, y in self.moments:
            for p, q in ((a, b), (b, a)):
                if (p.func, q.func) == (x.func, y.func):
                    pairs = [*zip(x.args, p.args, strict=True), *zip(y.args, q.args, strict=True)]
                    return lhs.xreplace({i: j for i, j in pairs if i != j})
        output, error = self.scalars()
        average = next(iter(output.rhs.atoms(Average)))
        inside = {x.func: x for x in Mul.make_args(average.body)}
        if {a.func, b.func} != set(inside):
            raise NotApplicable(f"<{a * b}> is neither a correlation function nor the output")
        value = solve(error.lhs - error.rhs.xreplace({output.lhs: output.rhs}), average)[0]
        pairs = [z for y in (a, b) for z in zip(inside[y.func].args, y.args, strict=True)]
        return sympify(value.xreplace({i: j for i, j in pairs if i != j}))

    def at_start(self, a: AppliedUndef, b: AppliedUndef) -> Expr:
        """The covariance of the sources that the fields are at time 0."""
        total = S.Zero
        for u in self.system.start:
            ends = [self.source(a), self.source(b)]
            if [x.func for x in ends] == [u.symbol.func, u.partner.func]:
                both = zip((u.symbol, u.partner), ends, strict=True)
                pairs = [p for x, y in both for p in zip(x.args, y.args, strict=True)]
                total += u.covariance.xreplace({i: j for i, j in pairs if i != j})
        return total

    def source(self, a: AppliedUndef) -> AppliedUndef:
        e = self.fields[str(a.func)]
        own = {x.symbol.func for x in self.system.start} | {x.partner.func for x in self.system.start}
        found = [x for x in e.rhs.atoms(AppliedUndef) if x.func in own]
        if len(found) != 1:
            raise NotApplicable(f"{e.lhs} starts from {found or 'nothing random'}")
        names = dict(zip(e.lhs.args[:-1], a.args[:-1], strict=True))
        return sympify(found[0].xreplace(names))


def _numbered(e: Sum) -> Expr:
    """A sum with the names ``alpha_1, alpha_2, ...`` of its indices."""
    names = {i: Symbol(f"{i.name}_{k}", **i.assumptions0) for k, (i, _, _) in enumerate(e.limits, 1)}
    return Sum(e.function.expand(), *e.limits).xreplace(names)


def whitened_steps(steps: MomentSteps) -> MomentSteps:
    """The same for ``K_x = 1``, for the projections of moments on the targets.

    Raises :class:`NotApplicable` when error and kernels do not stay in the span of the target direction and
    the identity.

    >>> from derive.theory import mean_field
    >>> from derive.program import mlp
    >>> plain = whitened_steps(moment_steps(mean_field(mlp(1, loss="sum"))))
    >>> print(*plain.step)
    H_y(t) G(t) Delta(t)
    """
    frame = Frame((n,))
    rates = {x: on_targets((e - x).expand()) for x, e in steps.step.items()}
    starts = {x: on_targets(e) for x, e in steps.initial.items()}
    ansatz = closed_span(rates, starts, frame, t)
    found = Coefficients(rates, starts, ansatz, frame)
    step = {e.lhs.args[0]: e.lhs.args[0] + e.rhs.expand() for e in found.scalar()}
    return MomentSteps(steps.theory, step, found.initial())


__all__ = ["MomentSteps", "moment_steps", "whitened_steps"]
