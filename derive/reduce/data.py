"""What is special to theories of training on random data: sources scaled, responses without memory, limits of
the sizes, sums over modes, and the parts of the loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sympy import (
    Add,
    Eq,
    Expr,
    Function,
    Integer,
    Integral,
    KroneckerDelta,
    Mul,
    S,
    Sum,
    Symbol,
    limit,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.calculus.sums import defined, is_at, over, pinned, rewritten, times
from derive.calculus.symbols import IndexRange, s, t
from derive.errors import NotApplicable
from derive.linear.form import linear_form
from derive.linear.propagators import Transfer, population, transfer
from derive.program.networks.random_data import M
from derive.program.parts import gaussian
from derive.program.training import TrainedMatrix
from derive.show.latex import aligned_latex
from derive.theory import Equation, OrderParameter, Source, Term, Theory
from derive.theory.unfold import covariance

# -- a factor of a source becomes part of it -----------------------------------------------------------------


def absorb_factors(theory: Theory, *sources: str) -> Theory:
    """The same theory with each of the named sources scaled so that it enters with factor 1 or -1.

    As papers do: ``v = w - r0/(nu gamma0)`` with ``<r0 r0> = nu C_g`` reads ``v = w - r0`` with ``<r0 r0> =
    C_g/(nu gamma0^2)``.  Responses change by the same factor, what depends on time (the memory of a rule with
    decay) stays outside, and an attribute of the unit goes into the covariance.  Raises
    :class:`NotApplicable` for a source that does not occur, or enters two equations with different factors.

    >>> from derive import isotropic, mean_field
    >>> theory = absorb_factors(mean_field(isotropic()), "r0", "u0")
    >>> print(theory.equation("h", 1).terms[1].expr)
    Sum(R_h0r0(t, s)*g(1, s)/(gamma0*nu), (s, 0, t))
    """
    for name in sources:
        factor = source_factor(theory, name)
        if factor != 1:
            theory = _absorbed(theory, name, factor)
    return theory


def _absorbed(theory: Theory, name: str, factor: Expr) -> Theory:
    pushed = [_pushed(theory, q, name, factor) for q in theory.order_parameters]
    scales = {q.name: x for q, (_, x) in zip(theory.order_parameters, pushed, strict=True) if x != 1}

    def rescaled(e: Expr) -> Expr:
        return rewritten(e, scales, lambda x: scales[str(x.func)] * x)

    def bare(e: Expr) -> Expr:
        return rewritten(e, [name], lambda x: x / factor)

    def own(u: Source) -> Expr:
        return Mul(*[factor for x in (u.symbol, u.partner) if _called(x, name)])

    moved = theory.map(lambda e: rescaled(sympify(e)))
    return replace(
        moved,
        equations=tuple(replace(e, terms=tuple(x.rewrite(bare) for x in e.terms)) for e in moved.equations),
        sources=tuple(replace(u, covariance=u.covariance * own(u)) for u in moved.sources),
        order_parameters=tuple(q for q, _ in pushed),
    )


def source_factor(theory: Theory, name: str) -> Expr:
    """What multiplies the source wherever it occurs, without sign and without what depends on time."""
    found = set()
    for e in theory.equations:
        for x in e.terms:
            for a in sorted((a for a in x.field.atoms(AppliedUndef) if _called(a, name)), key=str):
                constant, _ = (x.coefficient * x.kernel * x.field / a).as_independent(t, s)
                found.add(-constant if constant.could_extract_minus_sign() else constant)
    if not found:
        raise NotApplicable(f"the theory has no source called {name}")
    if len(found) > 1:
        raise NotApplicable(f"{name} enters with different factors: {', '.join(sorted(map(str, found)))}")
    return found.pop()


def _pushed(theory: Theory, q: OrderParameter, name: str, factor: Expr) -> tuple[OrderParameter, Expr]:
    """A response with its definition in the new source, and what its old value is in units of the new.

    Of what the source pushes, attributes of the unit stay in the average, and numbers come out.
    """
    old = next((x for x in q.definition.atoms(Response) if _called(x.source, name)), None)
    if old is None:
        return q, S.One
    fields, attributes = theory.program.fields, theory.program.attributes
    fixed, moving = old.body.as_independent(*[Function(x.name) for x in fields], as_Add=False)
    number, unit = (factor * fixed).as_independent(*[Function(x.name) for x in attributes], as_Add=False)
    outside = q.definition / next(iter(q.definition.atoms(Average)))
    return replace(q, definition=outside * Average(unit * Response(moving, old.source))), number


def _called(x: Expr, name: str) -> bool:
    return isinstance(x, AppliedUndef) and str(x.func) == name


# -- responses that are there at equal time only -------------------------------------------------------------


def instant_responses(theory: Theory) -> Theory:
    """The theory with every response of a field without memory put in as a number at equal time.

    Online, a batch is used once, so ``R_Delta(t, s)`` is 1 at ``s = t`` and 0 before; the same holds for any
    field without memory.  Written out, its order parameter and the sum over the past before it are gone.

    >>> from derive import isotropic, mean_field
    >>> print(instant_responses(mean_field(isotropic(data="online"))).equation("h0").rhs)
    v(t) + u0(t)/alpha_B
    """
    for q in theory.responses():
        value = _instant(theory, q)
        if value is None:
            continue
        equations = tuple(
            replace(e, terms=tuple(y for x in e.terms for y in _at_once(x, q, value)))
            for e in theory.equations
        )
        kept = tuple(x for x in theory.order_parameters if x.symbol != q.symbol)
        theory = replace(theory, equations=equations, order_parameters=kept)
    return theory


def _instant(theory: Theory, q: OrderParameter) -> Expr | None:
    """The factor of delta(t, s) in a response; None if memory makes it more than that."""
    node = next(iter(q.definition.atoms(Response)))
    # in terms of sources at the same time, if that is all that the field is made of
    local = (e for e in reversed(theory.equations) if not any(x.remembers or x.over for x in e.terms))
    body = defined(node.body, [(e.lhs, e.rhs) for e in local])
    if any(theory.program.field_of(str(a.func)) for a in body.atoms(AppliedUndef)) or q.definition.has(Sum):
        return None
    now = node.source.xreplace({s: t})
    total = S.Zero
    for x in Add.make_args(body.expand()):
        for a in x.atoms(AppliedUndef):
            if a.func == now.func:
                same = Mul(*[KroneckerDelta(i, j) for i, j in zip(a.args[:-1], now.args[:-1], strict=True)])
                total += same * x / a
    attributes = {x.name for x in theory.program.attributes}
    if any(str(a.func) in attributes for a in total.atoms(AppliedUndef)):
        return None
    number = q.definition.xreplace({node: S.One})
    return total * number.replace(lambda e: isinstance(e, Average), lambda e: e.body)


def _at_once(x: Term, q: OrderParameter, value: Expr) -> Iterator[Term]:
    """``coefficient(t) sum_over sum_s delta(t, s) f(s)`` is ``sum_over coefficient(t) f(t)``."""
    hits = [a for a in x.expr.atoms(AppliedUndef) if is_at(a, q.symbol)]
    if not hits:
        yield x
        return
    if x.reach == "strict":
        return
    numbers: dict[Expr, Expr] = {}
    for a in hits:
        same = S.One if x.remembers or a.args[-1] == a.args[-2] else KroneckerDelta(*a.args[-2:])
        numbers[a] = same * value.xreplace(dict(zip(q.symbol.args[:-2], a.args[:-2], strict=True)))
    now = {s: t} if x.remembers else {}
    x = replace(x.map(lambda e: e.xreplace(numbers).xreplace(now)), reach="")
    for r in x.over:
        found = pinned(x.kernel, r.index)
        if found is not None:
            delta, place = found
            x = replace(x, kernel=x.kernel / delta, over=tuple(y for y in x.over if y != r))
            x = x.map(lambda e, at={r.index: place}: e.xreplace(at))
    yield x


# -- limits of the sizes -------------------------------------------------------------------------------------


def theory_limit(theory: Theory, values: Mapping[Symbol, Expr]) -> Theory:
    """The theory as each parameter in ``values`` goes to the given value (very many samples, wide layers).

    Order parameters are held fixed.  Terms that vanish go, and with them sources without covariance and
    responses that nothing asks for.  Sources whose factors contain such a parameter are scaled first
    (:func:`.absorb_factors`), and responses that have become instantaneous are written out
    (:func:`.instant_responses`).  Raises :class:`NotApplicable` when a term has no finite limit.

    >>> from sympy import oo
    >>> from derive import isotropic, mean_field
    >>> from derive.program.networks.random_data import alpha
    >>> print(theory_limit(mean_field(isotropic()), {alpha: oo}).equation("h0").rhs)
    v(t)
    """
    for x, value in values.items():
        theory = _limit(theory, x, sympify(value))
    return theory


def _limit(theory: Theory, x: Symbol, value: Expr) -> Theory:
    theory = absorb_factors(theory, *scaled_sources(theory, x))
    sources = [replace(u, covariance=at_limit(u.covariance, x, value)) for u in theory.sources]
    dead = {u.symbol.func for u in sources if u.covariance == 0 and u.symbol.func == u.partner.func}

    def equation(e: Equation) -> Equation:
        alive = (y for y in e.terms if not any(a.func in dead for a in y.field.atoms(AppliedUndef)))
        found = (_term_at_limit(y, x, value) for y in alive)
        return replace(e, terms=tuple(y for y in found if y.expr != 0))

    moved = replace(
        theory,
        sources=tuple(u for u in sources if u.covariance != 0),
        equations=tuple(map(equation, theory.equations)),
        scalars=tuple(map(equation, theory.scalars)),
        observables=(),
        reduction=f"{theory.reduction}, {x} -> {value}".strip(", "),
    )
    return _needed(instant_responses(_needed(moved)))


def _term_at_limit(term: Term, x: Symbol, value: Expr) -> Term:
    """A term whose kernel goes to its limit, with the factors of ``x`` that stood in front of it."""
    fixed, moving = term.coefficient.as_independent(x, as_Add=False)
    if not (term.remembers or term.over) or moving.has(AppliedUndef) or term.field.has(x):
        return term.put(at_limit(term.expr, x, value))
    kernel = at_limit(moving * term.kernel, x, value)
    return term.put(S.Zero) if kernel == 0 else replace(term, coefficient=fixed, kernel=kernel)


def at_limit(e: Expr, x: Symbol, value: Expr) -> Expr:
    """The limit of an expression whose only parts that depend on ``x`` are factors.

    Where a factor stands, before a sum or in it, makes no difference: what depends on ``x`` is taken inside.
    Raises :class:`NotApplicable` for any other dependence, and where there is no finite limit.

    >>> from sympy import Function, oo
    >>> from sympy.abc import k, t, x
    >>> f = Function("f")
    >>> at_limit(Sum((1 + 1 / x) * f(t), (t, 0, 3)) + f(1) / x, x, oo)
    Sum(f(t), (t, 0, 3))
    """
    e = sympify(e)
    if not e.has(x):
        return e
    if isinstance(e, Sum | Integral):
        if any(end.has(x) for limits in e.limits for end in limits[1:]):
            raise NotApplicable(f"the bounds of {e} depend on {x}")
        inside = at_limit(e.function, x, value)
        return S.Zero if inside == 0 else e.func(inside, *e.limits)
    total = S.Zero
    for part in Add.make_args(e.expand()):
        fixed, moving = part.as_independent(x, as_Add=False)
        inner = next((y for y in Mul.make_args(moving) if isinstance(y, Sum | Integral)), None)
        if inner is not None:
            total += fixed * at_limit(times(moving / inner, inner), x, value)
            continue
        if moving.has(AppliedUndef, Sum, Integral):
            raise NotApplicable(f"{part} does not depend on {x} by a factor only")
        end = limit(moving, x, value)
        if not end.is_finite:
            raise NotApplicable(f"{part} has no finite limit as {x} goes to {value}")
        total += end * fixed
    return total


def scaled_sources(theory: Theory, x: Symbol) -> list[str]:
    """Sources in front of which the parameter stands."""
    own = {u.symbol.func for u in theory.sources}
    local = (y for e in theory.equations for y in e.terms if not (y.remembers or y.over) and y.expr.has(x))
    return sorted({str(a.func) for y in local for a in y.field.atoms(AppliedUndef) if a.func in own})


def _needed(theory: Theory) -> Theory:
    """Without responses that no equation contains."""
    used = {a.func for e in (*theory.equations, *theory.scalars) for a in e.rhs.atoms(AppliedUndef)}
    kept = tuple(q for q in theory.order_parameters if q.kind != "response" or q.symbol.func in used)
    return replace(theory, order_parameters=kept)


# -- from averages over modes to sums over them --------------------------------------------------------------


def mode_sums(theory: Theory) -> Theory:
    """The theory with averages over the population that carries attributes written as sums over its units.

    A program on modes counts their number M as the reference size: with sums, the unit's index written out, M
    drops out of the equations, their dimension-free form (linear2025 107-109).  Raises
    :class:`NotApplicable` if the program has no attributes, or if the size does not drop out.

    >>> from derive import mean_field, structured
    >>> theory = mode_sums(absorb_factors(mean_field(structured()), "r0", "u0"))
    >>> print(theory.order_parameter("C_h0").definition)
    Sum(<h0(k, s)*h0(k, t)>, (k, 1, M))
    """
    if not theory.program.attributes:
        raise NotApplicable("the units of no population are told apart: there are no modes to sum over")
    return _Modes(theory).theory()


def unit_averages(theory: Theory) -> Theory:
    """Write averages over the population that carries attributes as means over its units.

    Equations and sources of the units hold for each of them, with the unit's index written out.  Unlike in
    :func:`mode_sums`, order parameters stay averages, and the number of units ``UNITS`` is in their
    definitions alone.

    Parameters
    ----------
    theory : Theory
        Of a program whose units have attributes.

    Returns
    -------
    Theory

    Raises
    ------
    NotApplicable
        If the program has no attributes, or if the unit has several names.

    Examples
    --------
    >>> from derive import mean_field, structured
    >>> print(unit_averages(mean_field(structured())).order_parameter("C_h0").definition)
    Sum(<h0(k, s)*h0(k, t)>/n_units, (k, 1, n_units))
    """
    if not theory.program.attributes:
        raise NotApplicable("the units of no population are told apart: averages are those over one process")
    return _Modes(theory, averages=True).theory()


UNITS = Symbol("n_units", integer=True, positive=True)
"""The number of units that attributes tell apart, in definitions of :func:`unit_averages`."""


class _Modes:
    """Averages over modes as sums over them; with ``averages`` as means over them."""

    def __init__(self, theory: Theory, *, averages: bool = False) -> None:
        self.old, self.program = theory, theory.program
        place = self.program.attributes[0].population
        found = theory.program.unit_indices
        if len(found) != 1:
            raise NotApplicable(f"the unit has several names: {', '.join(sorted(map(str, found)))}")
        (self.unit,) = found
        self.averages = averages
        self.number = UNITS if averages else M * sympify(place.ratio)
        self.over = IndexRange(self.unit, Integer(1), self.number)
        self.own = {x.name for x in self.program.fields if x.population.name == place.name}
        here = [e for e in theory.equations if e.name in self.own]
        entering = {a.func for e in here for a in e.rhs.atoms(AppliedUndef)}
        self.own |= {str(u.symbol.func) for u in theory.sources if u.symbol.func in entering}
        averaged = (q for q in theory.order_parameters if self.lives(q.definition))
        self.sums = {q.name for q in averaged}

    def lives(self, e: Expr) -> bool:
        return any(str(a.func) in self.own for a in e.atoms(AppliedUndef))

    def theory(self) -> Theory:
        told = "means over units" if self.averages else "sums over modes"
        reduction = f"{self.old.reduction}, {told}".strip(", ")
        new = replace(self.old.each(self.of_every_unit), observables=(), reduction=reduction)
        if self.averages:
            return new
        left = [e.lhs for e in (*new.equations, *new.scalars) if e.rhs.has(M)]
        left += [u.symbol for u in new.sources if u.covariance.has(M)]
        if left:
            raise NotApplicable(f"the number of modes {M} does not drop out of {left[0]}")
        return new

    def summed(self, e: Expr) -> Expr:
        """Averages over modes are sums over their number."""
        e = sympify(e)
        return self.indexed(e if self.averages else rewritten(e, self.sums, lambda x: x / self.number))

    def indexed(self, e: Expr) -> Expr:
        """Fields and sources of the modes with the unit as first index."""
        return rewritten(
            e, self.own, lambda x: x if x.args[:1] == (self.unit,) else x.func(self.unit, *x.args)
        )

    def of_every_unit(self, x: Any) -> Iterator[Any]:
        """Equations and sources of the modes hold for each of them, and averages over modes are sums."""
        if not isinstance(x, OrderParameter):
            ranges = (self.over, *x.ranges) if self.lives(x.symbol) else x.ranges
            yield replace(x.map(self.summed), ranges=ranges)
        elif x.name in self.sums:
            average = next(iter(x.definition.atoms(Average)))
            body = Average(self.indexed(average.body)) / (UNITS if self.averages else S.One)
            yield replace(x, definition=Sum(x.definition.xreplace({average: body}), self.over.limits))
        else:
            yield x


# -- the loss as a sum over the sources of error -------------------------------------------------------------

BIAS, WIDTH, DATA, NOISE = "bias", "limited width", "limited data", "label noise"


@dataclass(frozen=True)
class Part:
    """The part of a correlation function that comes from ``source``; ``label`` says what that stands for."""

    label: str
    source: str
    expr: Expr


@dataclass(frozen=True)
class LossDecomposition:
    """``correlation = sum of parts``, with the transfer functions that occur in them.

    The loss is the correlation function at ``s = t``.
    """

    theory: Theory
    correlation: Expr
    parts: tuple[Part, ...]
    transfers: tuple[Transfer, ...]

    @property
    def eq(self) -> Eq:
        """The identity."""
        return Eq(self.correlation, Add(*[p.expr for p in self.parts]), evaluate=False)

    def part(self, label: str) -> Expr:
        """All that carries this label; zero if nothing does."""
        return Add(*[p.expr for p in self.parts if p.label == label])

    def _repr_latex_(self) -> str:
        return aligned_latex((self.eq,), self.theory)


def loss_decomposition(theory: Theory, name: str = "C_v") -> LossDecomposition:
    """Take a correlation function of a linear theory apart by the sources that it comes from (eq. 13).

    The error vector is linear in the sources of its population: its correlation function is a sum of one
    quadratic form for each source, with ``H_v_x(t, s)`` the answer of v to a push of x (:func:`.transfer`).
    The target is a vector that nobody trains, width the randomness of a trained matrix, data that of one
    nobody trains; label noise is the part of the samples' own errors that comes from a vector.  Raises
    :class:`NotApplicable` when the correlation is not of one field of one place.

    >>> from derive import isotropic, mean_field
    >>> parts = loss_decomposition(absorb_factors(mean_field(isotropic(noise=True)), "r0", "u0"))
    >>> [p.label for p in parts.parts]
    ['bias', 'limited width', 'limited data', 'label noise']
    """
    return _Decomposition(theory, name).result()


@dataclass(frozen=True)
class _Entry:
    """A source's entry into an equation, with the factor in front of it."""

    equation: Equation
    symbol: AppliedUndef
    factor: Expr


class _Decomposition:
    """``depth`` counts how deep this one stands inside another, and keeps summation indices apart."""

    def __init__(self, theory: Theory, name: str, depth: int = 0) -> None:
        self.theory, self.program, self.depth = theory, theory.program, depth
        self.q, self.units = theory.order_parameter(name), theory.program.unit_indices
        self.given = {x.name for x in self.program.attributes}
        self.average = next(iter(self.q.definition.atoms(Average)))
        atoms = self.average.atoms(AppliedUndef)
        fields = [a for a in atoms if self.program.field_of(str(a.func)) is not None]
        if {a.args[-1] for a in fields} != {t, s} or len(fields) != 2 or fields[0].func != fields[1].func:
            raise NotApplicable(f"{name} is not the correlation function of one field")
        self.now, self.past = sorted(fields, key=lambda a: bool(a.args[-1] == s))
        self.transfers: dict[str, Transfer] = {}

    def result(self) -> LossDecomposition:
        order = (BIAS, WIDTH, DATA, NOISE)
        found = [x for pair in self.pairs() for x in self.parts(*pair)]
        parts = tuple(sorted(found, key=lambda p: order.index(p.label)))
        return LossDecomposition(self.theory, self.q.symbol, parts, tuple(self.transfers.values()))

    # -- which sources ---------------------------------------------------------------------------------------

    def entries(self) -> Iterator[_Entry]:
        """What the population's equations contain besides its own fields."""
        rows = tuple(population(self.theory, str(self.now.func)))
        names = {e.name for e in rows}
        for row in linear_form(self.theory, rows).rows:
            yield from (_Entry(row, x.field, x.weight) for x in row.sources)
            for x in row.actions:
                if x.name not in names:
                    raise NotApplicable(f"{x.expr} in the equation of {row.name} is no source")
            for part in Add.make_args(row.given):
                found = [a for a in part.atoms(AppliedUndef) if str(a.func) in self.given]
                if part != 0 and len(found) != 1:
                    raise NotApplicable(f"{part} in the equation of {row.name} is no source")
                yield from (_Entry(row, a, part / a) for a in found)

    def pairs(self) -> Iterator[tuple[_Entry, _Entry, Expr, str]]:
        """Pairs of entries that are correlated: covariance at the two times, label."""
        found = list(self.entries())
        for x in found:
            for y in found:
                if x.symbol == y.symbol and str(x.symbol.func) in self.given:
                    yield x, y, x.symbol * y.symbol, BIAS
                a, b = (e.symbol.xreplace(self.within(e, i)) for i, e in enumerate((x, y), 1))
                value = covariance(a, b, self.theory.sources)
                if value != 0:
                    yield x, y, value, self.label(x)

    def label(self, x: _Entry) -> str:
        own = {u.matrix for u in self.theory.sources if x.symbol.func in (u.symbol.func, u.partner.func)}
        for m in self.program.matrices:
            if gaussian(m).name in own:
                return WIDTH if isinstance(m, TrainedMatrix) else DATA
        return BIAS

    # -- one part --------------------------------------------------------------------------------------------

    def parts(self, x: _Entry, y: _Entry, covariance: Expr, label: str) -> Iterator[Part]:
        """One part, or two if the samples' errors are in it and have label noise."""
        source = str(x.symbol.func)
        split = self.samples(covariance) if label == DATA and self.depth == 0 else ()
        for inner, value in split:
            noisy = inner.label == BIAS
            yield Part(NOISE if noisy else label, inner.source if noisy else source, self.form(x, y, value))
        if not split:
            yield Part(label, source, self.form(x, y, covariance))

    def samples(self, covariance: Expr) -> tuple[tuple[Part, Expr], ...]:
        """The covariance with the samples' own errors in it taken apart, if they have label noise."""
        for q in self.theory.correlations():
            hits = [a for a in covariance.atoms(AppliedUndef) if a.func == q.symbol.func]
            if hits:
                inner = _Decomposition(self.theory, q.name, self.depth + 1)
                found = inner.result().parts
                if any(p.label == BIAS for p in found):
                    self.transfers |= {f"{k} of {q.name}": v for k, v in inner.transfers.items()}
                    place = dict(zip(q.symbol.args, hits[0].args, strict=True))
                    return tuple((p, covariance.xreplace({hits[0]: p.expr.xreplace(place)})) for p in found)
        return ()

    def form(self, x: _Entry, y: _Entry, covariance: Expr) -> Expr:
        """``sum over s_1, s_2 of H(t, s_1) <x(s_1) y(s_2)> H(s, s_2)``, weighed as in the definition."""
        body = self.carried(x, self.now, 1) * covariance * self.carried(y, self.past, 2)
        body *= self.average.args[0] / (self.now * self.past)
        limits = [(self.inner(r.index, i), 1, r.upper) for e, i in ((x, 1), (y, 2)) for r in self.channels(e)]
        times_ = [(self.inner(s, 1), 0, t), (self.inner(s, 2), 0, s)]
        discrete = self.program.rule.discrete
        value = Sum(body, *limits, *times_) if discrete else Integral(over(body, limits), *times_)
        return self.q.definition.xreplace({self.average: value})

    def carried(self, x: _Entry, at: AppliedUndef, i: int) -> Expr:
        """The source's factor at its time, times the transfer function from there."""
        into = x.equation.name
        if into not in self.transfers:
            self.transfers[into] = transfer(self.theory, into)
        h = self.transfers[into].answer(str(self.now.func))
        *names, time = self.within(x, i).values()
        return x.factor.xreplace(self.within(x, i)) * h.func(*at.args[:-1], *names, at.args[-1], time)

    def within(self, x: _Entry, i: int) -> dict[Expr, Expr]:
        """The indices of the entry and its time, by the names that they have inside the sums."""
        return {r.index: self.inner(r.index, i) for r in self.channels(x)} | {t: self.inner(s, i)}

    def channels(self, x: _Entry) -> list[IndexRange]:
        """The indices of the entry's equation, but for that of the unit."""
        return [r for r in x.equation.ranges if r.index not in self.units]

    def inner(self, index: Symbol, i: int) -> Symbol:
        """The name of an index or a time of the first or second entry."""
        return Symbol(f"{index.name}_{2 * self.depth + i}", **index.assumptions0)
