"""Lower equations in layer time to products of tensors that a small evaluator walks.

A right-hand side becomes a sum of :class:`LayerProduct` s: a number times tensors, summed over times and data
indices, and integrated over at most one layer time.  Only what was derived is read; nothing is added.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from sympy import Add, Eq, Expr, Heaviside, Integral, KroneckerDelta, Mul, Pow, S, Sum, Symbol
from sympy.core.function import AppliedUndef
from sympy.utilities.iterables import strongly_connected_components

from derive.calculus.symbols import L, s, t
from derive.depth import LayerTime
from derive.depth.layers import tau, tau_

LAYER_TIMES = (tau, tau_)
SIDES = {"_above": 1, "_below": -1}
"""``X_above(tau, t)`` is the value of X at tau_ = tau, reached from tau > tau_."""


class NotLowered(ValueError):
    """An equation in layer time that the evaluator cannot take."""


@dataclass(frozen=True)
class Read:
    """A tensor at layers, indices and times, in the order of its axes; a layer is a symbol, 0 or 1.

    ``layers`` counts the layer times among the arguments.  ``side`` says from where a value at equal layer
    times is reached: 1 from tau > tau_, -1 from tau < tau_, 0 where that does not matter.
    """

    name: str
    args: tuple[Expr, ...]
    layers: int = 0
    side: int = 0


@dataclass(frozen=True)
class Span:
    """An index of a sum: from 1 for data; for times up to the present or one step before.

    ``late``: the sum begins after s (or ends before it), so that answers in it must vanish at equal time.
    ``begins``: it runs from s on, or from after it.  ``within``: from there to t - 1, so that s too is a past
    time wherever there is a term.
    """

    index: Symbol
    present: bool
    late: bool
    begins: bool
    within: bool
    upper: Expr


@dataclass(frozen=True)
class LayerProduct:
    """``number * product of tensors``, summed over ``spans`` and integrated over ``layer``.

    The number may depend on the times; ``calls`` are given functions of the time and of scalars.
    ``bound`` says where the integral over layer time runs: ``"below"`` from 0 to tau, ``"above"`` from tau to
    1, ``"all"`` from 0 to 1.  ``present``: the product is there at s = t only.  ``step``: it is there above
    (1) or below (-1) the diagonal tau = tau_.  ``equal`` are pairs of indices that must be the same.
    """

    number: Expr
    reads: tuple[Read, ...] = ()
    calls: tuple[AppliedUndef, ...] = ()
    equal: tuple[tuple[Symbol, Symbol], ...] = ()
    spans: tuple[Span, ...] = ()
    layer: Symbol | None = None
    bound: Literal["below", "above", "all"] | None = None
    present: bool = False
    step: int = 0


@dataclass(frozen=True)
class LayerRow:
    """The equation of one tensor: its axes (layers, indices, times) and what it is.

    ``symmetric``: a correlation, the same with its two sides exchanged.  ``jumps``: its value differs on both
    sides of tau = tau_.
    """

    name: str
    axes: tuple[Symbol, ...]
    products: tuple[LayerProduct, ...]
    symmetric: bool
    jumps: bool

    @property
    def layers(self) -> int:
        """How many of the axes are layer times."""
        return sum(x in LAYER_TIMES for x in self.axes)


@dataclass(frozen=True)
class LayerTable:
    """All rows, in groups: those of a group need each other within a step, or themselves."""

    groups: tuple[tuple[LayerRow, ...], ...]
    known: frozenset[str]
    """Names of tensors and functions that are given, not computed."""


def lower_layer_time(limit: LayerTime) -> LayerTable:
    """The rows of the integral equations, correlations and scalars of ``limit``.

    Raises :class:`NotLowered` for what is no sum of products, for continuous time, and for an answer that
    jumps at tau = tau_ and is read there.

    >>> from sympy import Symbol
    >>> from derive.theory import mean_field
    >>> from derive.depth import gamma_c_recursion, layer_time
    >>> from derive.program.networks.residual import depth_program
    >>> table = lower_layer_time(layer_time(gamma_c_recursion(mean_field(depth_program()))))
    >>> [row.name for group in table.groups for row in group if row.jumps]
    ['Gamma_00', 'Gamma_11']
    """
    equations = (*limit.integrals, *limit.correlations, *limit.scalars)
    correlations = {str(e.lhs.func) for e in limit.correlations}
    layers = {str(e.lhs.func): sum(x in LAYER_TIMES for x in e.lhs.args) for e in equations}
    rows = [_row(e, layers, str(e.lhs.func) in correlations) for e in equations]
    rows = _jumping(rows)
    jumping = {r.name for r in rows if r.jumps}
    for r in rows:
        for p in r.products:
            _check(r, p, jumping)
    names = {x.name for r in rows for p in r.products for x in p.reads}
    calls = {str(c.func) for r in rows for p in r.products for c in p.calls}
    return LayerTable(_grouped(rows), frozenset((names | calls) - set(layers)))


def _row(e: Eq, layers: dict[str, int], correlation: bool) -> LayerRow:
    products = tuple(_finished(p, e) for p in products_of(e.rhs, layers))
    axes = tuple(e.lhs.args)
    if not all(isinstance(x, Symbol) for x in axes):
        raise NotLowered(f"{e.lhs} is no tensor at symbols")
    return LayerRow(
        str(e.lhs.func), axes, products, correlation and {t, s} <= set(axes), any(p.step for p in products)
    )


def _jumping(rows: list[LayerRow]) -> list[LayerRow]:
    """A row that reads a jumping one at (tau, tau_) jumps too, unless it integrates over it."""
    while True:
        names = {r.name for r in rows if r.jumps}
        found = [
            replace(r, jumps=r.jumps or any(reads_across(x, p, names) for p in r.products for x in p.reads))
            for r in rows
        ]
        if found == rows:
            return rows
        rows = found


def reads_across(x: Read, p: LayerProduct, jumping: Collection[str]) -> bool:
    """Is a jumping tensor read at (tau, tau_), outside of an integral?"""
    return x.name in jumping and p.layer is None and set(x.args[:2]) == set(LAYER_TIMES)


def products_of(e: Expr, layers: dict[str, int]) -> Iterator[LayerProduct]:
    """An expression as products of tensors; ``layers`` counts the layer times of each."""
    if isinstance(e, Add):
        for x in e.args:
            yield from products_of(x, layers)
    elif isinstance(e, Mul):
        found = [LayerProduct(S.One)]
        for x in e.args:
            found = [_times(a, b) for a in found for b in products_of(x, layers)]
        yield from found
    elif isinstance(e, Pow) and e.exp.is_Integer and e.exp.is_positive and e.base.has(AppliedUndef):
        yield from products_of(Mul(*[e.base] * int(e.exp), evaluate=False), layers)
    elif isinstance(e, Sum):
        spans = tuple(_span(*lim) for lim in e.limits)
        for p in products_of(e.function, layers):
            yield replace(p, spans=(*p.spans, *spans))
    elif isinstance(e, Integral):
        yield from _integrated(e, layers)
    elif isinstance(e, KroneckerDelta):
        pair = (e.args[0], e.args[1])
        yield LayerProduct(S.One, present=True) if set(pair) == {s, t} else LayerProduct(S.One, equal=(pair,))
    elif isinstance(e, Heaviside):
        sides = {tau - tau_: 1, tau_ - tau: -1}
        if e.args[0] not in sides:
            raise NotLowered(f"{e} is no step at tau = tau_")
        yield LayerProduct(S.One, step=sides[e.args[0]])
    elif isinstance(e, AppliedUndef):
        yield _applied(e, layers)
    elif e.has(AppliedUndef):
        raise NotLowered(f"{e} is no product of tensors")
    else:
        yield LayerProduct(e)


def _applied(e: AppliedUndef, layers: dict[str, int]) -> LayerProduct:
    if any(x.has(AppliedUndef) for x in e.args):  # a given function of a scalar: the loss's slope
        return LayerProduct(S.One, calls=(e,))
    name, args = str(e.func), tuple(e.args)
    for suffix, side in SIDES.items():
        if layers.get(bare := name.removesuffix(suffix)) == 2 and bare != name:
            return LayerProduct(S.One, (Read(bare, (args[0], *args), 2, side),))
    return LayerProduct(S.One, (Read(name, args, layers.get(name, 0)),))


def _span(index: Symbol, lower: Expr, upper: Expr) -> Span:
    if lower == 1 and not upper.has(t, s):
        return Span(index, False, False, False, False, upper)
    if lower not in (0, s, s + 1) or upper not in (t, t - 1, s, s - 1):
        raise NotLowered(f"a sum over {index} from {lower} to {upper} is no sum over the past")
    late = lower == s + 1 or upper == s - 1
    begins = lower in (s, s + 1)
    return Span(index, upper not in (t - 1, s - 1), late, begins, begins and upper == t - 1, upper)


def _integrated(e: Integral, layers: dict[str, int]) -> Iterator[LayerProduct]:
    if len(e.limits) != 1 or len(e.limits[0]) != 3:
        raise NotLowered(f"{e} is no integral over one layer time")
    ((x, lower, upper),) = e.limits
    bounds = {(S.Zero, tau): "below", (tau, S.One): "above", (S.Zero, S.One): "all"}
    if (lower, upper) not in bounds:
        raise NotLowered(f"{e} is no integral over layer time: flows are not served")
    for p in products_of(e.function, layers):
        if p.layer is not None:
            raise NotLowered(f"{e} has an integral within")
        yield replace(p, layer=x, bound=bounds[lower, upper])  # type: ignore[arg-type]


def _times(a: LayerProduct, b: LayerProduct) -> LayerProduct:
    if (a.layer and b.layer) or (a.step and b.step):
        raise NotLowered("a product of two integrals or of two steps")
    return LayerProduct(
        a.number * b.number,
        (*a.reads, *b.reads),
        (*a.calls, *b.calls),
        (*a.equal, *b.equal),
        (*a.spans, *b.spans),
        a.layer or b.layer,
        a.bound or b.bound,
        a.present or b.present,
        a.step or b.step,
    )


def _finished(p: LayerProduct, e: Eq) -> LayerProduct:
    if p.number.has(L):
        raise NotLowered(f"the equation of {e.lhs} still contains the depth: {p.number}")
    return p


def _check(row: LayerRow, p: LayerProduct, jumping: set[str]) -> None:
    """Refuse a jumping answer that is read where it jumps, and a sum that no answer makes causal."""
    for x in p.reads:
        at = x.args[: x.layers]
        if x.name not in jumping or x.side:
            continue
        ends = any(y.is_number for y in at)
        if at[0] == at[1] or (p.layer is None and not ends and set(at) != set(LAYER_TIMES)):
            raise NotLowered(f"{x.name} jumps at tau = tau_ and is read there by {row.name}")
    pairs = [x.args[-2:] for x in p.reads]
    for span in p.spans:
        begun = not span.begins or (span.index, s) in pairs
        ended = not span.upper.has(s) or (s, span.index) in pairs
        if not (begun and ended):
            raise NotLowered(f"no answer in the equation of {row.name} keeps {span.index} on its side of s")


def _grouped(rows: list[LayerRow]) -> tuple[tuple[LayerRow, ...], ...]:
    """Rows in the order in which a step can be computed."""
    own = {r.name: r for r in rows}
    edges = [(r.name, n) for r in rows for p in r.products for n in present_names(p) if n in own]
    parts = strongly_connected_components((list(own), edges))
    return tuple(tuple(r for r in rows if r.name in part) for part in parts)


def present_names(p: LayerProduct) -> Iterator[str]:
    """The tensors that a product reads at the present time."""
    past = {x.index for x in p.spans if not x.present}
    if any(x.within for x in p.spans):
        past.add(s)
    for x in p.reads:
        times = [a for a in x.args if a.has(t, s) or any(a == y.index for y in p.spans)]
        if any(a not in past for a in times):
            yield x.name
    for c in p.calls:
        yield from (str(a.func) for a in c.atoms(AppliedUndef) if a != c)
