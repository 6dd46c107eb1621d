"""Whitened data: P samples become one (eq. F.8-F.16).

With the identity as input kernel everything that feeds back lies along the target direction n, at any depth:
projecting on n gives a theory without samples, and projecting on any direction m orthogonal to n must, and is
checked to, give nothing that moves.  With one hidden layer conserved quantities then leave one separable
equation, whose limits in gamma0 are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sympy import (
    Abs,
    Add,
    Derivative,
    Dummy,
    Eq,
    Expr,
    Function,
    KroneckerDelta,
    Mul,
    Poly,
    Pow,
    Rational,
    S,
    Sum,
    Symbol,
    atanh,
    exp,
    factor,
    fraction,
    limit,
    log,
    oo,
    roots,
    simplify,
    solve,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.calculus.sums import factors, gathered, over, pinned, put, rewritten
from derive.calculus.symbols import P, alpha, ell, gamma0, mu, t
from derive.errors import NotApplicable
from derive.program.networks.options import has_sample_weights
from derive.reduce.closed_forms import Separable, conserved, separable
from derive.reduce.moments import MomentSteps, TwoLayer, moment_steps, two_layer
from derive.show.latex import aligned_latex
from derive.theory import Equation, OrderParameter, Source, Term, Theory

n, m = Function("n"), Function("m")
"""The unit vector along the targets, and one orthogonal to it."""
norm = Symbol("y", positive=True)
"""The length of the target vector."""
output = Symbol("f", positive=True)
"""The output along the targets."""


# -- one sample for all --------------------------------------------------------------------------------------


def whitened_deep(theory: Theory) -> Theory:
    """The theory of one sample that stands for all, for ``K_x = 1``; a Theory like any other.

    Names: ``h_y``, ``u_y``, ``H_y``, ``A_y``, ``B_y`` are projections on n; the scalars ``Delta(t)`` and
    ``f(t)`` keep their names, and the constant ``y`` is the length of the target vector. Raises
    :class:`NotApplicable` when something moves in a direction orthogonal to the targets.

    >>> from derive import mean_field, mlp
    >>> reduced = whitened_deep(mean_field(mlp(rule="flow")))
    >>> print(reduced.equation("h_y", ell + 1).terms[2].expr)
    Integral(gamma0*Delta(s)*H_y(ell, t, s)*g(ell + 1, s), (s, 0, t))
    """
    return _Whitened(theory).reduce()


class _Whitened:
    """Functions of samples are ``X n(mu)``, of two ``X_0 delta(mu, alpha) + (X_y - X_0) n(mu) n(alpha)``."""

    def __init__(self, theory: Theory) -> None:
        if theory.reduction:
            raise NotApplicable(f"the theory has been rewritten already ({theory.reduction})")
        if has_sample_weights(theory.program):
            raise NotApplicable(
                "whitened data: the loss must count all samples alike: leave sample_weights out"
            )
        self.theory = theory
        self.random = {e.name for e in theory.equations} | {str(u.symbol.func) for u in theory.sources}
        scalars = {e.name for e in theory.scalars}
        symbols = [e.lhs for e in (*theory.equations, *theory.scalars, *theory.observables)]
        symbols += [u.symbol for u in theory.sources] + [q.symbol for q in theory.order_parameters]
        self.places: dict[str, tuple[int, ...]] = {}  # where a function has its samples
        for x in symbols:
            if places := tuple(i for i, a in enumerate(x.args) if a in (mu, alpha)):
                self.places[str(x.func)] = places
        self.names = {x: x if x in scalars else f"{x}_y" for x in self.places}
        self.across = {f"{x}_m" for x in self.random}
        self.moving = self.random | self.across | {self.names[x] for x in self.random & {*self.names}}

    # -- the form --------------------------------------------------------------------------------------------

    def along(self, e: Expr) -> Expr:
        """Each function of samples by its projection on n."""

        def put(x: AppliedUndef) -> Expr:
            name = str(x.func)
            return Function(self.names[name])(
                *[a for i, a in enumerate(x.args) if i not in self.places[name]]
            )

        return rewritten(e, self.places, put)

    def shaped(self, e: Expr) -> Expr:
        """Deterministic functions of samples in their form; the inputs and the targets as given."""

        def put(x: AppliedUndef) -> Expr:
            name = str(x.func)
            if name == "K_x":
                return KroneckerDelta(*x.args)
            if name == "y":
                return norm * n(*x.args)
            along = self.along(x)
            return spread([x.args[i] for i in self.places[name]], along, Function(f"{name}_0")(*along.args))

        known = {*self.places} - self.random | {"K_x", "y"}
        return rewritten(e, known, put)

    def contracted(self, e: Expr, directions: Mapping[Symbol, Callable[[Expr], Expr]]) -> Expr:
        """Contract free indices with directions; ``sum_mu n_mu h_mu`` is called ``h_y``, ``h_m`` for the
        orthogonal direction."""
        e = self.shaped(e)
        for i, direction in directions.items():
            e = Sum((direction(i) * e).expand(), (i, 1, P))

        def rename(x: Sum) -> Expr:
            (index, *_), *more = x.limits
            fields = [a for a in Mul.make_args(x.function) if str(a.func) in self.random]
            if more or len(fields) != 1 or x.function / fields[0] not in (n(index), m(index)):
                return x
            name = str(fields[0].func)
            name = self.names[name] if x.function.has(n) else f"{name}_m"
            return Function(name)(*[a for a in fields[0].args if a != index])

        return contract(e).replace(lambda x: isinstance(x, Sum), rename)

    def projected(self, x: Term, direction: Callable[[Expr], Expr], free: Iterable[Symbol]) -> Iterator[Term]:
        """A term contracted with a direction: kernels, each applied to one field."""
        samples = [r for r in x.over if r.upper == P]
        body = over(x.coefficient * x.kernel * x.field, samples)
        others = tuple(r for r in x.over if r not in samples)
        parts = Add.make_args(self.contracted(body, dict.fromkeys(free, direction)))
        moving = (Mul(*[y for y in Mul.make_args(part) if str(y.func) in self.moving]) for part in parts)
        for field, kernel in gathered((y, p / y) for y, p in zip(moving, parts, strict=True)).items():
            parts = {"kernel": kernel, "field": field} if field != 1 else {"kernel": S.One, "field": kernel}
            yield replace(x, coefficient=S.One, over=others, **parts)

    # -- the theory ------------------------------------------------------------------------------------------

    def reduce(self) -> Theory:
        self.nothing_moves_across()
        old = self.theory
        return replace(
            old,
            sources=tuple(self.source(u) for u in old.sources),
            equations=tuple(self.equation(e) for e in old.equations),
            order_parameters=tuple(self.order_parameter(q) for q in old.order_parameters),
            scalars=tuple(self.equation(e) for e in old.scalars),
            observables=tuple(self.equation(e) for e in old.observables),
            reduction="whitened data",
        )

    def nothing_moves_across(self) -> None:
        """Each field's projection on m is its source, independent of what moves, and no feedback contains
        it."""
        for e in self.theory.equations:
            free = [r.index for r in e.ranges if r.index in (mu, alpha)]
            for x in (y for y in e.terms if y.kind != "source"):
                across = Add(*[y.expr for y in self.projected(x, m if free else n, free)])
                if free and across != 0:
                    raise NotApplicable(f"{e.lhs} moves across the targets: {across}")
                if any(str(a.func) in self.across for a in across.atoms(AppliedUndef)):
                    raise NotApplicable(f"{e.lhs} feels what lies across the targets: {across}")
        for u in self.theory.sources:
            if all(u.symbol.has(i) or u.partner.has(i) for i in (mu, alpha)):
                mixed = self.contracted(u.covariance, {alpha: n, mu: m})
                if mixed != 0:
                    raise NotApplicable(
                        f"{u.symbol} along the targets is correlated with what lies across: {mixed}"
                    )

    def equation(self, e: Equation) -> Equation:
        free = [i for i in (mu, alpha) if e.lhs.has(i)]
        terms = tuple(y for x in e.terms for y in self.term(x, free))
        return Equation(self.along(e.lhs), terms, tuple(r for r in e.ranges if r.index not in free))

    def term(self, x: Term, free: Iterable[Symbol]) -> Iterator[Term]:
        if x.expr.has(Average):  # with one free index it points along n
            yield x.map(self.averaged)
        else:
            yield from self.projected(x, n, free)

    def averaged(self, e: Expr) -> Expr:
        return e.replace(lambda a: isinstance(a, Average), lambda a: Average(self.along(a.body)))

    def source(self, u: Source) -> Source:
        free = [i for i in (mu, alpha) if u.symbol.has(i) or u.partner.has(i)]
        return replace(
            u,
            symbol=self.along(u.symbol),
            partner=self.along(u.partner),
            covariance=self.contracted(u.covariance, dict.fromkeys(free, n)),
            ranges=tuple(r for r in u.ranges if r.index not in free),
        )

    def order_parameter(self, q: OrderParameter) -> OrderParameter:
        definition = q.definition.replace(
            lambda a: isinstance(a, Response), lambda a: Response(self.along(a.body), self.along(a.source))
        )
        if not q.definition.has(Response):
            definition = self.along(definition)
        ranges = tuple(r for r in q.ranges if r.index == ell)
        return replace(q, symbol=self.along(q.symbol), definition=definition, ranges=ranges)


def spread(samples: Sequence[Expr], along: Expr, across: Expr) -> Expr:
    """A function of one sample or two by its projection on n and, of two, that on m."""
    if len(samples) < 2:
        return along * Mul(*map(n, samples))
    return across * KroneckerDelta(*samples) + (along - across) * Mul(*map(n, samples))


def contract(e: Expr) -> Expr:
    """Every sum over samples that deltas or the orthonormal n and m allow; indices lie within their ranges.

    >>> contract(Sum((KroneckerDelta(mu, alpha) + n(mu) * n(alpha)) * n(alpha), (alpha, 1, P)))
    2*n(mu)
    """

    def done(e: Sum) -> Expr:
        body = contract(e.function)
        for lim in e.limits:
            body = Add(*[one(x, lim) for x in Add.make_args(body.expand())])
        return body

    def one(e: Expr, lim: tuple[Symbol, Expr, Expr]) -> Expr:
        moving = [x for x in factors(e) if x.has(lim[0])]
        fixed, rest = Mul(*[x for x in factors(e) if not x.has(lim[0])]), Mul(*moving)
        if not moving:
            return fixed * (lim[2] - lim[1] + 1)
        if (found := pinned(rest, lim[0])) is not None:
            return fixed * put(rest / found[0], {lim[0]: found[1]})
        if len(moving) == 2 and all(getattr(x, "func", None) in (n, m) for x in moving):
            return fixed if moving[0] == moving[1] else S.Zero
        return fixed * Sum(rest, lim)

    return e.replace(lambda x: isinstance(x, Sum), done).expand()


def whitened_steps(steps: MomentSteps) -> MomentSteps:
    """Moments in exact steps for ``K_x = 1``: those of the theory of one sample.

    Raises :class:`NotApplicable` as :func:`whitened_deep` does.

    >>> from derive import mean_field, mlp
    >>> plain = whitened_steps(moment_steps(mean_field(mlp(1, loss="sum"))))
    >>> print(*plain.step)
    H_y(t) G(t) Delta(t)
    """
    return moment_steps(whitened_deep(steps.theory))


@dataclass(frozen=True)
class Whitened:
    """Two-layer theory for ``K_x = 1``.

    ``tensors`` are the functions of samples by their projections on the targets, ``scalar`` the equations of
    these (F.8) and ``initial`` their values at 0; ``invariants`` are conserved (F.10), ``eliminated`` gives
    the other unknowns by the error, ``error`` and ``output`` are the remaining equation in Delta and in f
    (F.11), ``motion`` its solution.
    """

    theory: TwoLayer
    tensors: tuple[Eq, ...]
    scalar: tuple[Eq, ...]
    initial: tuple[Eq, ...]
    invariants: tuple[Expr, ...]
    eliminated: tuple[Eq, ...]
    error: Eq
    output: Eq
    motion: Separable

    @property
    def time(self) -> Eq:
        """The time to reach the output f (F.12)."""
        return Eq(t, self.motion.elapsed, evaluate=False)

    @property
    def solution(self) -> Eq:
        """The error at time t, in closed form: F.12 inverted."""
        top, bottom = fraction(self.motion.solution)
        return Eq(Function("Delta")(t), factor((norm * bottom - top).expand()) / bottom, evaluate=False)

    def _repr_latex_(self) -> str:
        return aligned_latex((*self.scalar, self.output, self.solution), self.theory.theory)


def whitened(theory: TwoLayer, degree: int = 2) -> Whitened:
    """Reduce the two-layer equations on whitened data to one equation, and solve it.

    Raises :class:`NotApplicable` for a theory whose equations do not close, or when the conserved
    quantities of at most ``degree`` do not leave one separable equation.

    >>> from derive import mean_field, mlp
    >>> print(whitened(two_layer(mean_field(mlp(1, rule="flow")))).output.rhs)
    2*(-f + y)*sqrt(f**2*gamma0**2 + 1)
    """
    if not theory.closed:
        raise NotApplicable("whitened data: the moment equations do not close; the network must be linear")
    one = _Whitened(theory.theory)
    reduced = two_layer(one.reduce())
    scalar = tuple(Eq(e.lhs, factor(e.rhs), evaluate=False) for e in reduced.closed)
    initial = {e.lhs.args[0]: start.rhs for e, start in zip(scalar, reduced.initial, strict=True)}
    begun = zip(theory.closed, theory.initial, strict=True)
    found = conserved(scalar, degree)
    delta = Function("Delta")(t)
    eliminated = eliminate(found, initial, delta)
    error = next(Eq(e.lhs, e.rhs.subs(eliminated), evaluate=False) for e in scalar if e.lhs.args[0] == delta)
    rate = simplify(factor(-error.rhs.subs(delta, norm - output)))  # of the output, with Delta = y - f
    moved = Eq(Derivative(Function("f")(t), t), rate, evaluate=False)
    return Whitened(
        theory,
        tuple(_tensor(one, e.lhs.args[0], start.rhs) for e, start in begun),
        scalar,
        tuple(Eq(k.subs(t, 0), v, evaluate=False) for k, v in initial.items()),
        found,
        tuple(Eq(k, v, evaluate=False) for k, v in eliminated.items()),
        error,
        moved,
        separable(moved.rhs, output, norm - initial[delta], t),
    )


def _tensor(one: _Whitened, x: AppliedUndef, start: Expr) -> Eq:
    """A function of samples by its projection; what lies across the targets keeps its start."""
    samples, name = x.args[:-1], str(x.func)
    across = one.contracted(start, dict.fromkeys(samples, m))
    return Eq(x, spread(samples, Function(one.names.get(name, name))(t), across), evaluate=False)


def eliminate(invariants: tuple[Expr, ...], initial: dict[Expr, Expr], keep: Expr) -> dict[Expr, Expr]:
    """The other unknowns by ``keep``, on the branch of the level set that the initial values are on.

    Raises :class:`NotApplicable` unless exactly one branch passes through them.
    """
    others = [x for x in initial if x != keep]
    slots = {x: Symbol(f"_{k}") for k, x in enumerate(others)}
    level = [(i - i.subs(initial)).subs(slots) for i in invariants]

    def begins(b: dict[Expr, Expr]) -> bool:
        gaps = (b[s].subs(keep, initial[keep]) - initial[x] for x, s in slots.items())
        return len(b) == len(others) and all(simplify(gap) == 0 for gap in gaps)

    right = [b for b in solve(level, list(slots.values()), dict=True) if begins(b)]
    if len(right) != 1:
        raise NotApplicable(f"the invariants {invariants} do not determine {others} by {keep}")
    return {x: _readable(right[0][s], keep, initial[keep]) for x, s in slots.items()}


def _readable(e: Expr, x: Expr, start: Expr) -> Expr:
    """Write radicands as their initial value plus the rest, factored."""
    half = sympify(1) / 2

    def put(p: Expr) -> Expr:
        first = p.base.subs(x, start)
        return (simplify(first) + factor(p.base - first)) ** p.exp

    return e.replace(lambda p: p.is_Pow and p.exp == half, put)


@dataclass(frozen=True)
class Limits:
    """Both ends of the whitened two-layer dynamics.

    ``lazy`` is the equation of the error at gamma0 = 0 and ``lazy_solution`` its solution (F.13).  At large
    gamma0 the rate grows like ``gamma0^power``; ``rich`` is the equation to leading order (F.14),
    ``unstable`` and ``stable`` its rest points for the output.  ``learning_time`` is the time to reach f to
    leading order in large gamma0 and ``effective_start`` the output from which the limiting equation takes
    just as long.
    """

    lazy: Eq
    lazy_solution: Eq
    power: Expr
    rich: Eq
    unstable: tuple[Expr, ...]
    stable: tuple[Expr, ...]
    learning_time: Expr
    effective_start: Expr

    def _repr_latex_(self) -> str:
        return aligned_latex((self.lazy, self.lazy_solution, self.rich))


def whitened_limits(w: Whitened) -> Limits:
    """Both limits in gamma0 of the solved two-layer theory.

    >>> from derive import mean_field, mlp
    >>> ends = whitened_limits(whitened(two_layer(mean_field(mlp(1, rule="flow")))))
    >>> print(ends.rich.rhs, "|", ends.learning_time, "|", ends.effective_start)
    -2*gamma0*(y - Delta(t))*Delta(t) | log(2*f*gamma0*y/(-f + y))/(2*gamma0*y) | 1/(2*gamma0)
    """
    rate, delta = w.output.rhs, w.error.lhs.args[0]
    power = simplify(limit(gamma0 * rate.diff(gamma0) / rate, gamma0, oo))
    leading = factor(limit(rate / gamma0**power, gamma0, oo))
    rests = {p: leading.diff(output).subs(output, p) for p in sorted(roots(Poly(leading, output)), key=str)}
    weight, growth = growth_of(w.motion)
    weight, grown = _leading(weight), factor(_leading(growth))
    start = Dummy("start", positive=True)
    limiting = _approach(leading, rests, start)
    begins = solve(limit(limiting * start, start, 0) / start - grown, start)
    return Limits(
        lazy=Eq(w.error.lhs, w.error.rhs.subs(gamma0, 0), evaluate=False),
        lazy_solution=Eq(delta, simplify(w.solution.rhs.subs(gamma0, 0).rewrite(exp)), evaluate=False),
        power=power,
        rich=Eq(Derivative(delta, t), (-leading * gamma0**power).subs(output, norm - delta), evaluate=False),
        unstable=tuple(p for p, slope in rests.items() if slope.is_positive),
        stable=tuple(p for p, slope in rests.items() if slope.is_negative),
        learning_time=weight * log(grown),
        effective_start=begins[0],
    )


def growth_of(motion: Separable) -> tuple[Expr, Expr]:
    """Write the time to reach x as ``weight * log(growth)``: ``atanh z = log((1 + z)/(1 - z))/2``."""
    weight, difference = motion.elapsed.as_independent(atanh, as_Add=False)
    growth: Expr = Rational(1)
    for x in difference.as_ordered_terms():
        sign, z = x.as_coeff_Mul()
        if z.func != atanh:
            raise NotApplicable(f"{motion.elapsed} is no difference of inverse hyperbolic tangents")
        growth *= ((1 + z.args[0]) / (1 - z.args[0])) ** sign
    return weight / 2, growth


def _leading(e: Expr) -> Expr:
    """Leading order in large gamma0."""
    small = Dummy("epsilon", positive=True)
    inside = e.subs(gamma0, 1 / small)
    return simplify(inside.as_leading_term(small)).subs(small, 1 / gamma0)


def _approach(rate: Expr, rests: dict[Expr, Expr], start: Expr) -> Expr:
    """``exp(slope * time)`` on the way from ``start`` to f, for a rate with simple rest points: ``1/rate``
    in partial fractions; ``slope`` is that of the first rest point."""
    first = next(iter(rests.values()))
    value: Expr = Rational(1)
    for p, slope in rests.items():
        value *= ((output - p) / (start - p)) ** simplify(first / slope)
    return value


# -- how far the series in gamma0 reaches ------------------------------------------------


@dataclass(frozen=True)
class Radius:
    """Where the time to reach f is singular as a function of complex gamma0.

    ``singular`` are its singularities, ``removable`` the points where only the formula is, ``radius`` that
    of the series at gamma0 = 0 for fixed f, ``uniform`` the smallest over all f on the way.
    """

    singular: tuple[Expr, ...]
    removable: tuple[Expr, ...]
    radius: Expr
    uniform: Expr


def series_radius(w: Whitened) -> Radius:
    """The radius of convergence in gamma0 of the exact time to reach f.

    Singular points of ``int dx/rate`` come from those of 1/rate that reach an end of the path, or meet each
    other with the path between them.  Where a square root of the formula vanishes without the integral
    noticing, the formula is even in that root.

    >>> from derive import mean_field, mlp
    >>> print(series_radius(whitened(two_layer(mean_field(mlp(1, rule="flow"))))).radius)
    1/f
    """
    elapsed, coupling = w.motion.elapsed, Symbol("_gamma")
    if any(p.has(gamma0) for p in solve(w.output.rhs, output)):
        raise NotApplicable(f"a rest point of df/dt = {w.output.rhs} moves with gamma0")
    singular: set[Expr] = set()
    removable: set[Expr] = set()
    for radicand in {p.base for p in elapsed.atoms(Pow) if abs(p.exp) == Rational(1, 2)}:
        at = solve(radicand.subs(gamma0, coupling), coupling)
        root = Dummy("root")
        here = elapsed.xreplace({radicand ** Rational(k, 2): root**k for k in (1, -1)})
        odd = simplify(here - here.subs(root, -root))
        (removable if odd == 0 else singular).update(at)
    radius = min((simplify(Abs(p)) for p in singular), key=lambda r: r.subs({output: 1, norm: 2}))
    at, only = (tuple(sorted(x, key=str)) for x in (singular, removable))
    return Radius(at, only, radius, limit(radius, output, norm, "-"))
