"""The moments of one hidden layer: differential equations of a flow, a map in exact steps (E.1, F.5-F.7).

With one hidden layer the sources are constant in time and no response function enters, so the time
derivative of a field is its memory's integrand.  The moments then evolve by the product rule, and in a
linear network they close: the average of g h is the output itself.  In steps second moments are polynomials
in those before the step, and in the rate: a map, closed and exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from sympy import (
    Derivative,
    Dummy,
    Eq,
    Expr,
    Function,
    Integer,
    Integral,
    Mul,
    S,
    Sum,
    Symbol,
    solve,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.calculus.sums import addends
from derive.errors import NotApplicable
from derive.linear.contraction import primed_free, tidy_sums
from derive.program.networks.sample_weights import has_sample_weights
from derive.program.words import alpha, ell, mu, s, t
from derive.reduce.memoryless import Markov, markov
from derive.theory.theory import Equation, OrderParameter, Source, Theory


@dataclass(frozen=True)
class TwoLayer:
    """The theory of one hidden layer under gradient flow.

    ``fields`` are the field equations (F.5, E.1) and ``start`` the covariances of the fields at time 0;
    ``moments`` define the one-time functions; ``rates`` are their equations with averages left in (F.6),
    ``closed`` the same, with that of the error, when no average remains (F.7; empty otherwise), ``error``
    the equation of the error in either case, and ``initial`` the initial conditions of all one-time
    functions.
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
        from sympy import latex

        groups = (
            self.fields,
            self.start,
            self.moments,
            self.rates,
            self.closed or (self.error,),
            self.initial,
        )
        rows = [latex(e).replace(" = ", " &= ", 1) for group in groups for e in group]
        return "\\begin{align}\n  " + " \\\\\n  ".join(rows) + "\n\\end{align}"


def two_layer(theory: Theory) -> TwoLayer:
    """Differential equations of a theory whose kernels are constant in time.

    Raises :class:`NotApplicable` for counted steps, and when a kernel or a source depends on time: deeper
    networks.

    >>> from derive.theory import mean_field
    >>> from derive.program import mlp
    >>> print(two_layer(mean_field(mlp(1, rule="flow"))).rate("Delta"))
    -G(t)*Sum(Delta(alpha, t)*K_x(mu, alpha), (alpha, 1, P)) - Sum(Delta(alpha, t)*H(mu, alpha, t), ...)
    """
    return _TwoLayer(theory).reduce()


class _TwoLayer:
    def __init__(self, theory: Theory) -> None:
        if theory.program.rule.discrete:
            raise NotApplicable("differential equations need gradient flow: the theory counts steps")
        self.theory = theory
        self.random = frozenset(e.name for e in theory.equations)
        for u in theory.sources:
            if {t, s} & u.covariance.free_symbols or any(
                _depends_on_time(a) for a in u.covariance.atoms(AppliedUndef)
            ):
                raise NotApplicable(f"the source {u.symbol} moves in time: its covariance is {u.covariance}")

    @cached_property
    def definitions(self) -> dict[Expr, Expr]:
        """Fields given by other fields at the same time, such as g = phi'(h) z."""
        return {e.lhs: e.rhs for e in self.theory.equations if all(x.kind == "definition" for x in e.terms)}

    @cached_property
    def rates(self) -> dict[str, Equation]:
        return {e.name: e for e in self.theory.equations if e.lhs not in self.definitions}

    def reduce(self) -> TwoLayer:
        fields = tuple(
            Eq(Derivative(e.lhs, t), self.field_rate(e), evaluate=False) for e in self.rates.values()
        )
        moments = [self.moment(q) for q in self.theory.correlations()]
        rates = [Eq(Derivative(m.lhs, t), self.average_rate(m.rhs.body)) for m in moments]
        output, error = self.output(), self.error(moments)
        closed = [Eq(e.lhs, self.named(e.rhs, moments, output)) for e in rates]
        if has_sample_weights(self.theory.program):
            closed.append(self.output_rate(moments))
        complete = not any(e.has(Average) for e in (*closed, error))
        initial = [Eq(m.lhs.subs(t, 0), self.at_start(m.rhs)) for m in moments]
        outputs = {a: self.at_start(b) for a, b in self.output_definition().items()}
        f = next(iter(outputs))
        delta = next(e for e in self.theory.scalars if e.name != str(f.func))
        begin = Eq(delta.lhs.subs(t, 0), delta.rhs.xreplace(outputs))
        if has_sample_weights(self.theory.program):
            initial.append(Eq(f.subs(t, 0), outputs[f]))
        return TwoLayer(
            theory=self.theory,
            fields=fields,
            start=tuple(
                Eq(Average(_now(u.symbol, 0) * _now(u.partner, 0)), u.covariance, evaluate=False)
                for u in self.field_sources()
            ),
            moments=tuple(moments),
            rates=tuple(rates),
            closed=(*closed, error) if complete else (),
            error=error,
            initial=(*initial, begin) if complete else (begin,),
        )

    # -- fields ------------------------------------------------

    def field_rate(self, e: Equation) -> Expr:
        """``d/dt`` of ``source + int_0^t F(s) ds``: the source is constant, and F must not know t."""
        total = S.Zero
        for x in e.terms:
            if x.kind == "source":
                continue
            if not isinstance(x.expr, Integral) or x.expr.limits[0] != (s, 0, t):
                raise NotApplicable(f"the term {x.expr} of {e.lhs} is no integral over the past")
            if x.expr.function.has(t):
                raise NotApplicable(
                    f"the kernel in {x.expr} depends on time, so that {e.lhs} has no differential equation"
                )
            total += x.expr.function.xreplace({s: t})
        return tidy_sums(total.expand())

    def total_derivative(self, body: Expr) -> Expr:
        """The chain rule over the fields in ``body``."""
        body = self.unfolded(body)
        total = S.Zero
        for x in sorted((a for a in body.atoms(AppliedUndef) if str(a.func) in self.rates), key=str):
            e = self.rates[str(x.func)]
            names = {a: b for a, b in zip(e.lhs.args, x.args, strict=True) if a != b}
            total += body.diff(x) * self.unfolded(
                _renamed(self.field_rate(e), names, avoid=body.free_symbols)
            )
        return total

    def unfolded(self, body: Expr) -> Expr:
        for lhs, rhs in self.definitions.items():
            for x in [a for a in body.atoms(AppliedUndef) if a.func == lhs.func]:
                body = body.xreplace(
                    {x: _renamed(rhs, {a: b for a, b in zip(lhs.args, x.args, strict=True) if a != b})}
                )
        return body

    # -- averages ------------------------------------------------

    def moment(self, q: OrderParameter) -> Eq:
        """The one-time function of an order parameter and its definition."""
        body = q.definition.args[0].subs(ell, 1).xreplace({s: t})
        indices = [x for x in q.symbol.args if x not in (ell, t, s) and x != 1]
        return Eq(Function(q.name)(*indices, t), Average(body), evaluate=False)

    def average_rate(self, body: Expr) -> Expr:
        return tidy_sums(Average(self.total_derivative(body).expand()).linear(self.random))

    def output_definition(self) -> dict[Expr, Expr]:
        """The scalar that is an average: the output."""
        return {e.lhs: e.rhs for e in self.theory.scalars if e.rhs.has(Average)}

    def output(self) -> dict[Average, Expr]:
        """The average that the output is made of: in terms of the error, but where samples have weights, and
        the error of some of them is zero, in terms of the output.
        """
        (f, value), *_ = self.output_definition().items()
        average = next(iter(value.atoms(Average)))
        if has_sample_weights(self.theory.program):
            return {average: solve(f - value, average)[0]}
        delta = next(e for e in self.theory.scalars if e.name != str(f.func))
        return {average: solve(delta.lhs - delta.rhs.xreplace({f: value}), average)[0]}

    def error(self, moments: list[Eq]) -> Eq:
        """``d Delta/dt``, from the output's definition."""
        f, moved = self.output_moved()
        delta = next(e for e in self.theory.scalars if e.name != str(f.func))
        rate = tidy_sums((delta.rhs.diff(f) * moved).expand())
        return Eq(Derivative(delta.lhs, t), self.named(rate, moments, self.output()))

    def output_rate(self, moments: list[Eq]) -> Eq:
        """``d f/dt``."""
        f, moved = self.output_moved()
        return Eq(Derivative(f, t), self.named(tidy_sums(moved.expand()), moments, self.output()))

    def output_moved(self) -> tuple[Expr, Expr]:
        """The output, and its time derivative with averages left in."""
        (f, value), *_ = self.output_definition().items()
        average = next(iter(value.atoms(Average)))
        return f, (value / average) * self.average_rate(average.body)

    def named(self, e: Expr, moments: list[Eq], output: dict[Average, Expr]) -> Expr:
        """Call averages by the name of the one-time function that they are."""

        def name(average: Expr) -> Expr:
            for known, value in output.items():
                if (found := _match(known.body, average.body)) is not None:
                    return value.xreplace(found)
            for m in moments:
                if (found := _match(self.unfolded(m.rhs.body), average.body)) is not None:
                    return m.lhs.xreplace(found)
            return average

        return tidy_sums(e.replace(lambda x: isinstance(x, Average), name).expand())

    # -- time zero ------------------------------------------------

    def field_sources(self) -> list[Source]:
        """Covariances of the sources, under the names of the fields that start from them."""
        found = []
        for u in self.theory.sources:
            field = next(e for e in self.rates.values() if any(x.expr.has(u.symbol.func) for x in e.terms))
            f = field.lhs.func
            found.append(Source(f(*u.symbol.args), f(*u.partner.args), u.covariance, u.ranges, u.matrix))
        return found

    def at_start(self, e: Expr) -> Expr:
        """Second moments of the fields at time 0 are those of their sources; other averages stay."""

        def value(average: Expr) -> Expr:
            body = self.unfolded(average.body)
            fields = [a for a in Mul.make_args(body) if isinstance(a, AppliedUndef)]
            fields += [a.base for a in Mul.make_args(body) if a.is_Pow and a.exp == 2] * 2
            if len(fields) == 2 and Mul(*fields) == body:
                return self.covariance(*sorted(fields, key=lambda a: mu not in a.args))
            return _now(average, 0)

        return e.replace(lambda x: isinstance(x, Average), value).subs(t, 0)

    def covariance(self, x: AppliedUndef, y: AppliedUndef) -> Expr:
        for u in self.field_sources():
            if (u.symbol.func, u.partner.func) == (x.func, y.func):
                pairs = [
                    *zip(u.symbol.args[1:-1], x.args[1:-1], strict=True),
                    *zip(u.partner.args[1:-1], y.args[1:-1], strict=True),
                ]
                return u.covariance.xreplace(dict(pairs))
        return S.Zero


def _depends_on_time(a: AppliedUndef) -> bool:
    return bool({t, s} & set(a.args))


def _now(e: Expr, value: int) -> Expr:
    return e.xreplace({t: Integer(value), s: Integer(value)})


def _renamed(e: Expr, names: dict[Expr, Expr], avoid: Iterable[Expr] = ()) -> Expr:
    """Rename free indices; indices summed over step aside first, also from those to ``avoid``."""
    taken = set(avoid).union(*[sympify(x).free_symbols for x in (*names, *names.values())])
    bound = {lim[0] for x in e.atoms(Sum) for lim in x.limits}
    aside = {x: primed_free(x, taken | e.free_symbols | bound) for x in bound if x in taken}
    return e.xreplace(aside).xreplace(names)


def _match(pattern: Expr, body: Expr) -> dict[Expr, Expr] | None:
    """Indices that turn ``pattern`` into ``body``."""
    free = [x for x in (mu, alpha) if pattern.has(x)]
    indices = sorted({x for a in body.atoms(AppliedUndef) for x in a.args if x.is_Symbol and x != t}, key=str)
    choices: list[dict[Expr, Expr]] = [{}]
    for x in free:
        choices = [c | {x: y} for c in choices for y in indices]
    return next((c for c in reversed(choices) if pattern.xreplace(c) == body), None)


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


__all__ = [
    "MomentSteps",
    "moment_steps",
]
