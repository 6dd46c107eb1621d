"""Exponent of one unit at its layer, order parameters with renamed indices, and derivatives by them.

Two order parameters of a product or a derivative have separate indices and times, so one of them is renamed
(:func:`with_other_indices`). They meet in the average over one unit, which belongs to one layer: the exponent
of that unit is selected from terms that hold for all layers (:func:`exponent_at`). Conditions that remain are
cases or Kronecker deltas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sympy import And, Expr, GreaterThan, Integral, KroneckerDelta, LessThan, Mul, Piecewise, S, Sum, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.functional import extremes, functional_derivative
from derive.calculus.sums import bound, substitute, unused
from derive.calculus.symbols import IndexRange, primed, s, spelled, t
from derive.program.language import Population
from derive.theory.fluctuations.data import ALWAYS, FluctuatingParameter, FluctuationData

Letters = Mapping[Symbol, Symbol]
"""New names of indices and times."""


@dataclass(frozen=True)
class PlacedParameter:
    """Order parameter with renamed indices and times, such as ``H(mu_, alpha_, t_, s_)``.

    Attributes
    ----------
    parameter
        Original order parameter.
    symbol, unit, function, home, ranges
        Those of the order parameter with renamed indices.
    """

    parameter: FluctuatingParameter
    symbol: AppliedUndef
    unit: Expr
    function: Expr
    home: Population | None
    ranges: tuple[IndexRange, ...]

    @property
    def times(self) -> tuple[Symbol, ...]:
        """Times of the order parameter: two if its symbol contains s, as for a correlation, else one."""
        count = 2 if s in self.parameter.symbol.args else 1
        return tuple(self.symbol.args[-count:])

    @property
    def every(self) -> tuple[IndexRange, ...]:
        """Ranges of the indices of the order parameter, then of its times (0 to infinity)."""
        return (*self.ranges, *(IndexRange(x, *ALWAYS) for x in self.times))

    @property
    def limits(self) -> tuple[IndexRange, ...]:
        """Ranges of all indices and times of the order parameter, for a sum over all its values.

        The past time of a response ends at the present or one step before, by causality. It equals the
        present for a response that exists at equal times only.
        """
        if len(self.times) < 2 or not self.parameter.causal:
            return self.every
        now, past = self.times
        last = now - 1 if self.parameter.causal == "strict" else now
        first = now if self.parameter.causal == "now" else S.Zero
        return (*self.ranges, IndexRange(past, first, last), IndexRange(now, *ALWAYS))


def indices_and_times(q: FluctuatingParameter) -> tuple[Symbol, ...]:
    """Return the indices and times of an order parameter, in the order in which its symbol has them.

    >>> from sympy import Function
    >>> from derive.calculus.symbols import ell
    >>> layers = (IndexRange(ell, S.One, S(3)),)
    >>> indices_and_times(FluctuatingParameter(Function("B")(ell + 1, t, s), "response", ranges=layers))
    (ell, t, s)
    """
    symbols = (x for a in q.symbol.args for x in sorted(a.free_symbols, key=spelled))
    inside = {r.index for r in q.ranges} | {t, s}
    return tuple(dict.fromkeys(x for x in symbols if x in inside))


def with_other_indices(q: FluctuatingParameter, taken: Iterable[Symbol]) -> PlacedParameter:
    """Return an order parameter with indices and times that differ from its own and from those ``taken``.

    >>> from sympy import Function
    >>> from derive.calculus.symbols import P, alpha, mu
    >>> samples = (IndexRange(mu, S.One, P), IndexRange(alpha, S.One, P))
    >>> q = FluctuatingParameter(Function("H")(mu, alpha, t, s), "correlation", ranges=samples)
    >>> with_other_indices(q, indices_and_times(q)).symbol
    H(mu_, alpha_, t_, s_)
    """
    symbols, names = indices_and_times(q), dict[Symbol, Symbol]()
    used = {*taken, *symbols}
    for x in symbols:
        new = primed(x) if primed(x) not in used else Symbol(f"{x.name}_", **x.assumptions0)
        while new in used:
            new = Symbol(f"{new.name}_", **x.assumptions0)
        names[x] = new
        used.add(new)
    return with_renamed_indices(q, names)


def with_renamed_indices(q: FluctuatingParameter, names: Letters) -> PlacedParameter:
    """Return an order parameter with indices and times renamed as ``names`` says."""
    ranges = tuple(
        IndexRange(names.get(r.index, r.index), *(substitute(S(x), names) for x in (r.lower, r.upper)))
        for r in q.ranges
    )
    symbol, unit, function = (substitute(x, names) for x in (q.symbol, q.unit, q.function))
    return PlacedParameter(q, symbol, unit, function, placed_home(q.home, names), ranges)


def placed_home(home: Population | None, names: Mapping[Symbol, Expr]) -> Population | None:
    """Return a population with the indices in its layer and size replaced.

    None and a population without a layer are returned unchanged.
    """
    if home is None or home.site is None:
        return home
    return replace(home, site=substitute(home.site, names), ratio=substitute(S(home.ratio), names))


# -- one unit at its layer -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class UnitExponent:
    """Part of the exponent E of a unit at a given layer, or a derivative of it.

    The path integral over the fields of the unit has the weight exp(E).

    Attributes
    ----------
    share
        Factor: one, or a Kronecker delta that is zero at layers whose units do not have the part.
    at
        Values of indices at which the delta is one, to be substituted in other factors.
    expr
        Expression of the part.
    """

    share: Expr
    at: Mapping[Symbol, Expr]
    expr: Expr


def exponent_at(
    theory: FluctuationData, home: Population, ranges: tuple[IndexRange, ...]
) -> Iterator[UnitExponent]:
    """Yield the parts of the exponent E of one unit of the population ``home``, at the layer of ``home``.

    The path integral over the fields of one unit has the weight exp(E). The layer is an expression of the
    indices in ``ranges``. A part for a range of layers is taken at this layer, and is zero outside of the
    range; a part for a single layer has a Kronecker delta of the two layers as a factor.
    """
    for x in theory.terms:
        if x.home.name != home.name:
            continue
        if x.home.site is None or home.site is None:
            yield UnitExponent(S.One, {}, x.whole)
            continue
        family = next((r for r in x.addend.over if x.home.site.has(r.index)), None)
        if family is None:
            meeting = layers_meet(x.home.site, home.site, ranges, theory.depths)
            if meeting is not None:
                yield UnitExponent(*meeting, x.whole)
            continue
        value = family.index + home.site - x.home.site
        other_ranges = tuple(r for r in x.addend.over if r is not family)
        whole = substitute(
            replace(x, addend=replace(x.addend, over=other_ranges)).whole, {family.index: value}
        )
        in_range = where_in_range(whole, value, family, (*ranges, *theory.depths))
        if in_range != 0:
            yield UnitExponent(S.One, {}, in_range)


def where_in_range(e: Expr, value: Expr, family: IndexRange, ranges: tuple[IndexRange, ...]) -> Expr:
    """Return ``e`` where the layer index ``value`` lies in the range ``family``, and zero elsewhere.

    Conditions that hold or fail for all indices in ``ranges`` are evaluated; others remain as cases.
    """
    conditions = []
    for gap in (value - family.lower, family.upper - value):
        low, high = extremes(S(gap), ranges)
        if high.is_negative:
            return S.Zero
        if not low.is_nonnegative:
            conditions.append(gap >= 0)
    return Piecewise((e, And(*conditions)), (S.Zero, True)) if conditions else e


def layers_meet(
    one: Expr | None,
    other: Expr | None,
    ranges: tuple[IndexRange, ...],
    depths: tuple[IndexRange, ...] = (),
) -> tuple[Expr, Mapping[Symbol, Expr]] | None:
    """Return the Kronecker delta of two layers, and the value of an index at which they are equal.

    The result is None if the layers are known to differ at all indices in ``ranges``, and (1, {}) if they are
    equal or one of them is None. The dictionary is also empty if no index in ``ranges`` can be solved for.
    ``depths`` is the range of a symbolic depth.

    >>> from derive.calculus.symbols import L, ell
    >>> layers_meet(L, ell, (IndexRange(ell, S.One, L),))
    (KroneckerDelta(L, ell), {ell: L})
    >>> layers_meet(S.One, ell + 1, (IndexRange(ell, S.One, L - 1),)) is None
    True
    """
    if one is None or other is None or one == other:
        return S.One, {}
    gap = (other - one).expand()
    low, high = extremes(gap, (*ranges, *depths))
    if low.is_positive or high.is_negative:
        return None
    letter = next((r.index for r in reversed(ranges) if abs(gap.coeff(r.index)) == 1), None)
    if letter is None:
        return KroneckerDelta(one, other), {}
    value = letter - gap / gap.coeff(letter)
    return KroneckerDelta(letter, value), {letter: value}


# -- derivatives ---------------------------------------------------------------------------------------------


def derivative_by(e: Expr, q: PlacedParameter, ranges: tuple[IndexRange, ...]) -> Expr:
    """Return the functional derivative of ``e`` by an order parameter ``q``, at the times at which q exists.

    ``ranges`` are those of the free indices of ``e``. Conditions on summed indices and times become limits of
    the sums.
    """
    slope = functional_derivative(e, q.symbol, (*q.every, *ranges))
    if slope == 0:
        return slope
    taken = {*q.symbol.free_symbols, *(r.index for r in ranges)}
    return with_plain_indices(with_limits(within_support(slope, q)), taken)


def within_support(e: Expr, q: PlacedParameter) -> Expr:
    """Return ``e`` without conditions in case distinctions that hold wherever ``q`` is not zero.

    ``q`` is an order parameter. A response is zero by causality if its first time is before its second one,
    or also if both are equal, as ``causal`` says.
    """
    least = S.NegativeInfinity
    if len(q.times) == 2 and q.parameter.causal in ("strict", "past"):
        least = q.times[0] - q.times[1] - (1 if q.parameter.causal == "strict" else 0)

    def stated(x: Piecewise) -> Expr:
        (value, condition), *others = x.args
        if not others or others[0][0] != 0:
            return x
        fixed = fixed_by_deltas(value, q)
        remaining = [c for c in And.make_args(condition) if not holds(c, fixed, q) and not implied(c, least)]
        return Piecewise((value, And(*remaining)), (S.Zero, True))

    return e.replace(lambda x: isinstance(x, Piecewise), stated)


def fixed_by_deltas(e: Expr, q: PlacedParameter) -> dict[Symbol, Expr]:
    """Return the values of the indices that Kronecker deltas in a product express by indices of ``q``.

    A value is an index of ``q``, or an index plus a shift: ``KroneckerDelta(i, j + 1)`` gives the value ``j +
    1`` of i if j is an index of ``q``.
    """
    values: dict[Symbol, Expr] = {}
    own_indices = {r.index for r in q.ranges}
    for x in (x for x in Mul.make_args(e) if isinstance(x, KroneckerDelta)):
        gap = (x.args[0] - x.args[1]).expand()
        for letter in (
            sorted(gap.free_symbols - own_indices, key=spelled) if gap.free_symbols & own_indices else ()
        ):
            if abs(gap.coeff(letter)) == 1:
                values[letter] = letter - gap / gap.coeff(letter)
    return values


def holds(condition: Any, values: Mapping[Symbol, Expr], q: PlacedParameter) -> bool:
    """Return whether an inequality is known to hold at all values of the indices of ``q``.

    ``values`` gives the values of other indices. The result is False if the inequality contains no index in
    ``values``, or if the condition is not an inequality with >= or <=.
    """
    gap = gap_of(condition)
    if gap is None or not set(values) & gap.free_symbols:
        return False
    return bool(extremes(gap.xreplace(dict(values)), q.ranges)[0].is_nonnegative)


def gap_of(condition: Any) -> Expr | None:
    """Return the expression that a condition with >= or <= requires to be non-negative.

    The result is None for other conditions.
    """
    return condition.gts - condition.lts if isinstance(condition, GreaterThan | LessThan) else None


def implied(condition: Any, least: Expr) -> bool:
    """Return whether the inequality ``condition`` follows from ``least >= 0`` for an expression ``least``.

    With ``condition`` in the form ``gap >= 0``, it is recognised only if ``gap - least`` is known to be
    non-negative.
    """
    gap = gap_of(condition)
    return gap is not None and bool((gap - least).expand().is_nonnegative)


def with_limits(e: Expr) -> Expr:
    """Return ``e`` with conditions in sums converted to limits of the sums where possible.

    >>> from sympy import Function, Sum
    >>> f, n = Function("f"), Symbol("n", nonnegative=True)
    >>> with_limits(Sum(Piecewise((f(n), t <= n - 1), (0, True)), (n, 0, S.Infinity)))
    Sum(f(n), (n, t + 1, oo))
    """
    return e.replace(lambda x: isinstance(x, Sum | Integral) and isinstance(x.function, Piecewise), _bounded)


def _bounded(x: Sum | Integral) -> Expr:
    """Return a sum with inequalities in its summand converted to limits of the sum where possible.

    The summand is a Piecewise: an expression where a condition holds, and zero elsewhere. A sum with another
    summand is returned unchanged.
    """
    (value, condition), *others = x.function.args
    if not others or others[0][0] != 0:
        return x
    limits = [tuple(limit) for limit in x.limits]
    remaining = [c for c in And.make_args(condition) if not _narrow(c, limits)]
    body = Piecewise((value, And(*remaining)), (S.Zero, True)) if remaining else value
    return x.func(body, *limits)


def _narrow(condition: Any, limits: list[tuple[Any, ...]]) -> bool:
    """Narrow the limits of a sum by an inequality; return whether the limits then imply it.

    ``limits`` are (variable, lower, upper) and are changed in place.
    """
    gap = gap_of(condition)
    if gap is None:
        return False
    inner: set[Symbol] = set()
    for k, (index, low, high) in enumerate(limits):
        inner.add(index)
        slope = gap.expand().coeff(index)
        end = (index - gap / slope).expand() if slope in (1, -1) else index
        if inner & end.free_symbols:
            continue
        narrower, wider = (end - low, low - end) if slope == 1 else (high - end, end - high)
        if narrower.is_nonnegative:
            limits[k] = (index, end, high) if slope == 1 else (index, low, end)
        if narrower.is_nonnegative or wider.is_nonnegative:
            return True
    return False


def with_plain_indices(e: Expr, taken: set[Expr]) -> Expr:
    """Return ``e`` with summed indices that derivatives have marked, such as ``t'``, renamed to ``t_``."""
    if not e.has(Sum, Integral):
        return e
    marked = sorted((x for x in bound(e) if x.name.endswith("'")), key=spelled)
    used = {*taken, *e.free_symbols, *bound(e)}
    names: dict[Expr, Expr] = {}
    for x in marked:
        names[x] = unused(Symbol(f"{x.name.rstrip(chr(39))}_", **x.assumptions0), used)
        used.add(names[x])
    return e.xreplace(names)
