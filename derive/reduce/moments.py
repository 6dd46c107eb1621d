"""The moments of one hidden layer: differential equations of a flow, a map in exact steps (E.1, F.5-F.7).

Without memory (:mod:`.memoryless`) a field is moved by the fields at the same time.  Under flow the moments
then evolve by the product rule, and in a linear network they close: the average of g h is the output itself.
In steps second moments are polynomials in those before the step, and in the rate: a map, closed and exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from sympy import Derivative, Eq, Expr, Function, S, latex, solve
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.calculus.sums import binding, factors
from derive.calculus.symbols import alpha, ell, mu, s, t
from derive.errors import NotApplicable
from derive.linear.projection import tidy_sums
from derive.program import Program
from derive.program.networks.options import has_sample_weights
from derive.program.nonlinear import require_linear_rules
from derive.reduce.memoryless import Motion
from derive.reduce.single_site import SingleSite, every_index, flowing
from derive.show.latex import aligned_latex
from derive.theory import Equation, OrderParameter, Theory
from derive.theory.conditioning import theory_of


@dataclass(frozen=True)
class TwoLayer:
    """The theory of one hidden layer under gradient flow.

    ``fields`` are the field equations (F.5, E.1; their drift where there is noise) and ``start`` the
    covariances of the fields at time 0; ``moments`` define the one-time functions; ``rates`` are their
    equations with averages left in (F.6), ``closed`` the same, with that of the error, when no average
    remains (F.7; empty otherwise), ``error`` the equation of the error in either case, and ``initial`` the
    initial conditions of all one-time functions.
    """

    theory: Theory
    fields: tuple[Eq, ...]
    start: tuple[Eq, ...]
    moments: tuple[Eq, ...]
    rates: tuple[Eq, ...]
    closed: tuple[Eq, ...]
    error: Eq
    initial: tuple[Eq, ...]

    def rate(self, name: str) -> Expr:
        """The time derivative of the one-time function ``name`` in closed form.  Raises KeyError if there
        is none."""
        for e in (*self.closed, self.error):
            if str(e.lhs.args[0].func) == name:
                return e.rhs
        raise KeyError(f"no closed equation for {name}")

    def latex(self) -> str:
        """All equations, one a line."""
        equations = (*self.fields, *self.start, *self.moments, *self.rates)
        rows = [*equations, *(self.closed or (self.error,)), *self.initial]
        body = " \\\\\n  ".join(latex(e).replace(" = ", " &= ", 1) for e in rows)
        return "\\begin{align}\n  " + body + "\n\\end{align}"

    def _repr_latex_(self) -> str:
        return aligned_latex((*self.fields, *(self.closed or (*self.rates, self.error))), self.theory)


def two_layer(theory: Theory | Program) -> TwoLayer:
    """Differential equations of a theory of one hidden layer; weights may decay and diffuse.

    Raises :class:`NotApplicable` for counted steps, for momentum, and when a source moves with the fields:
    deeper networks.

    >>> from derive import mean_field, mlp
    >>> print(two_layer(mean_field(mlp(1, rule="flow"))).rate("Delta"))
    -G(t)*Sum(Delta(alpha, t)*K_x(mu, alpha), (alpha, 1, P)) - Sum(Delta(alpha, t)*H(mu, alpha, t), ...)
    """
    theory = theory_of(theory, "two_layer")
    require_linear_rules(theory.program, "the theory of two layers in moments")
    site = every_index(flowing(theory))
    found = _Moments(theory, site)
    rates = tuple(Eq(Derivative(m.lhs, t), site.moment_rate(m.rhs.body)) for m in found.moments)
    closed = [Eq(e.lhs, found.named(e.rhs)) for e in rates]
    f, given = found.output, found.error
    moved = (f.rhs / found.average) * site.moment_rate(found.average.body)
    if has_sample_weights(theory.program):
        closed.append(Eq(Derivative(f.lhs, t), found.named(tidy_sums(moved.expand()))))
    slope = tidy_sums((given.rhs.diff(f.lhs) * moved).expand())
    error = Eq(Derivative(given.lhs, t), found.named(slope))
    complete = not any(e.has(Average) for e in (*closed, error))
    initial = [Eq(m.lhs.subs(t, 0), found.at_start(m.rhs)) for m in found.moments]
    value = found.at_start(f.rhs)
    if has_sample_weights(theory.program):
        initial.append(Eq(f.lhs.subs(t, 0), value))
    begin = Eq(given.lhs.subs(t, 0), given.rhs.xreplace({f.lhs: value}))
    pairs = [(Average(x.field.subs(t, 0) * x.partner.subs(t, 0)), x.start) for x in site.flows]
    return TwoLayer(
        theory=theory,
        fields=tuple(Eq(Derivative(x.field, t), tidy_sums(x.velocity.expand())) for x in site.flows),
        start=tuple(Eq(*x, evaluate=False) for x in pairs),
        moments=tuple(found.moments),
        rates=rates,
        closed=(*closed, error) if complete else (),
        error=error,
        initial=(*initial, begin) if complete else (begin,),
    )


# -- in exact steps ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MomentSteps:
    """``step[x]`` is the value after one step of each one-time function x, ``initial[x]`` that at time 0."""

    theory: Theory
    step: dict[Expr, Expr]
    initial: dict[Expr, Expr]

    def _repr_latex_(self) -> str:
        return aligned_latex(
            (Eq(x.subs(t, t + 1), e, evaluate=False) for x, e in self.step.items()), self.theory
        )


def moment_steps(theory: Theory) -> MomentSteps:
    """The map of the moments of a linear theory of one hidden layer in exact steps.

    The one-time functions are the correlation functions at equal times and the error.  Weights may decay and
    diffuse.  Raises :class:`NotApplicable` for a flow, for a theory with memory, and for one whose moments do
    not close.

    >>> from derive import mean_field, mlp
    >>> steps = moment_steps(mean_field(mlp(1, loss="sum")))
    >>> print(*steps.step)
    H(mu, alpha, t) G(t) Delta(mu, t)
    """
    if not theory.program.rule.discrete:
        raise NotApplicable("a flow has no steps")
    site = every_index(theory)
    found = _Moments(theory, site)
    f, given = found.output, found.error
    weight = f.rhs / found.average
    step = {m.lhs: found.named(site.moment_rate(m.rhs.body)) for m in found.moments}
    step[given.lhs] = given.rhs.xreplace({f.lhs: found.named(weight * site.moment_rate(found.average.body))})
    if left := [x for e in step.values() for x in e.atoms(Average)]:
        raise NotApplicable(f"{left[0]} is neither a correlation function nor the output: not linear")
    initial = {m.lhs: found.at_start(m.rhs) for m in found.moments}
    initial[given.lhs] = given.rhs.xreplace({f.lhs: found.at_start(f.rhs)})
    return MomentSteps(theory, step, initial)


class _Moments:
    """One-time functions of a theory without memory, and averages by their names."""

    def __init__(self, theory: Theory, site: SingleSite) -> None:
        self.theory, self.unfolded = theory, site.unfolded  # in terms of the fields that move
        self.motions = {str(x.field.func): x for x in site.flows}
        self.moments = [self.moment(q) for q in theory.correlations()]
        self.output = next(e for e in theory.scalars if e.rhs.has(Average))
        self.error: Equation = next(e for e in theory.scalars if e.name != self.output.name)
        self.average: Average = next(iter(self.output.rhs.atoms(Average)))

    def moment(self, q: OrderParameter) -> Eq:
        """The one-time function of an order parameter and its definition."""
        body = q.definition.args[0].subs(ell, 1).xreplace({s: t})
        indices = [x for x in q.symbol.args if x not in (ell, t, s) and x != 1]
        return Eq(Function(q.name)(*indices, t), Average(body), evaluate=False)

    @cached_property
    def value(self) -> Expr:
        """The average that the output is made of: in terms of the error, but where samples have weights, and
        the error of some of them is zero, in terms of the output.
        """
        f, given = self.output, self.error
        if has_sample_weights(self.theory.program):
            return solve(f.lhs - f.rhs, self.average)[0]
        return solve(given.lhs - given.rhs.xreplace({f.lhs: f.rhs}), self.average)[0]

    def named(self, e: Expr) -> Expr:
        """Call averages by the name of the one-time function that they are."""
        known = [(self.average.body, self.value)]
        known += [(self.unfolded(m.rhs.body), m.lhs) for m in self.moments]

        def name(average: Expr) -> Expr:
            for body, value in known:
                if (found := _match(body, average.body)) is not None:
                    return value.xreplace(found)
            return average

        return tidy_sums(e.replace(lambda x: isinstance(x, Average), name).expand())

    def at_start(self, e: Expr) -> Expr:
        """Second moments of the fields at time 0 are those of their sources; other averages stay."""

        def value(average: Expr) -> Expr:
            fields = factors(self.unfolded(average.body))
            if len(fields) == 2 and all(isinstance(x, AppliedUndef) for x in fields):
                x, y = sorted(fields, key=lambda a: mu not in a.args)
                return self.covariance(x, y, "start")
            return average.xreplace({t: S.Zero})

        return e.replace(lambda x: isinstance(x, Average), value).subs(t, 0)

    def covariance(self, x: AppliedUndef, y: AppliedUndef, which: str) -> Expr:
        """That at the ``start`` of two fields, or of their noise (``diffusion``)."""
        own: Motion | None = self.motions.get(str(x.func))
        if own is None or x.func != y.func:
            return S.Zero
        names = binding(own.field.func(*own.field.args[:-1]), x.func(*x.args[:-1]))
        names |= binding(own.partner.func(*own.partner.args[:-1]), y.func(*y.args[:-1]))
        found: Expr = getattr(own, which)
        return found.xreplace(names)


def _match(pattern: Expr, body: Expr) -> dict[Expr, Expr] | None:
    """Indices that turn ``pattern`` into ``body``."""
    free = [x for x in (mu, alpha) if pattern.has(x)]
    indices = sorted({x for a in body.atoms(AppliedUndef) for x in a.args if x.is_Symbol and x != t}, key=str)
    choices: list[dict[Expr, Expr]] = [{}]
    for x in free:
        choices = [c | {x: y} for c in choices for y in indices]
    return next((c for c in reversed(choices) if pattern.xreplace(c) == body), None)
