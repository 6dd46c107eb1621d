"""Equations in layer time (infinite depth) as sums of products of tensors.

:func:`lower_layer_time` turns each right-hand side into a list of :class:`LayerProduct`: a number times
tensors, summed over times and data indices, and integrated over at most one layer time. Only derived
equations are read. :mod:`numerics.solver.depth` evaluates the result on a grid of layer times.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from sympy import Add, Eq, Expr, Heaviside, Integral, KroneckerDelta, Mul, Pow, S, Sum, Symbol
from sympy.core.function import AppliedUndef
from sympy.utilities.iterables import strongly_connected_components

from derive.calculus.sums import rename_multiplied
from derive.calculus.symbols import L, s, t
from derive.depth import LayerTime
from derive.depth.layers import tau, tau_

LAYER_TIMES = (tau, tau_)
SIDES = {"_above": 1, "_below": -1}
"""``X_above(tau, t)`` is the value of X at tau_ = tau, reached from tau > tau_."""


class NotLowered(ValueError):
    """Raised for equations in layer time that are not sums of products, or that are not supported."""


@dataclass(frozen=True)
class Read:
    """Tensor at layers, indices and times, as it stands in a product.

    Attributes
    ----------
    name
        Name of the tensor.
    args
        Its arguments in the order of its axes, layers first; a layer is a symbol, 0 or 1.
    layers
        Number of layers among the arguments.
    side
        Side from which a value at equal layer times is approached: 1 from tau > ``tau_``, -1 from tau <
        ``tau_``, 0 if no side is stated.
    """

    name: str
    args: tuple[Expr, ...]
    layers: int = 0
    side: int = 0


@dataclass(frozen=True)
class Span:
    """Index that is summed over: a data index from 1 on, or a time in the past.

    All flags are false for a data index.

    Attributes
    ----------
    index
        The index.
    present
        Whether a sum over times includes its last time, t or s.
    late
        Whether a sum over times begins at s + 1 or ends at s - 1. A response in it to a perturbation at s, or
        of a quantity at s, must then vanish at equal times.
    begins
        Whether a sum over times begins at s or s + 1 instead of 0.
    within
        Whether a sum over times begins at s or s + 1 and ends at t - 1, so that it is over times between s
        and t.
    upper
        Upper end of the sum.
    """

    index: Symbol
    present: bool
    late: bool
    begins: bool
    within: bool
    upper: Expr


@dataclass(frozen=True)
class LayerProduct:
    """Product ``number * tensors``, summed over ``spans`` and integrated over ``layer``.

    Attributes
    ----------
    number
        The number, which may depend on the times.
    reads
        The tensors.
    calls
        Given functions of the time and of scalars.
    equal
        Pairs of indices that must be equal.
    spans
        Summed indices.
    layer
        Layer time of the integral; None without integral.
    bound
        Range of the integral: ``"below"`` from 0 to tau, ``"above"`` from tau to 1, ``"all"`` from 0 to 1.
    present
        Whether the product is nonzero only at s = t.
    step
        Side of the diagonal tau = ``tau_`` at which the product is nonzero: above (1), below (-1), or both
        (0).
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
    """Equation of one tensor.

    Attributes
    ----------
    name, axes
        Its name, and its axes: layers, indices, times.
    products
        The products whose sum it is.
    symmetric
        Whether it is a correlation at two times t and s. A correlation does not change if its two vectors are
        exchanged.
    jumps
        Whether its value differs on both sides of tau = ``tau_``.
    """

    name: str
    axes: tuple[Symbol, ...]
    products: tuple[LayerProduct, ...]
    symmetric: bool
    jumps: bool

    @property
    def layers(self) -> int:
        """Number of axes of the tensor that are layer times (0, 1 or 2)."""
        return sum(x in LAYER_TIMES for x in self.axes)


@dataclass(frozen=True)
class LayerTable:
    """Equations in layer time as rows, in groups in the order of computation.

    A row is the equation of one tensor. Rows that depend on each other at the same time step form one group
    and are solved together. Every other row is a group of its own.
    """

    groups: tuple[tuple[LayerRow, ...], ...]
    known: frozenset[str]
    """Names of the tensors and functions that are given and not computed."""


def lower_layer_time(limit: LayerTime) -> LayerTable:
    """Return the rows of the integral equations, correlations and scalars of ``limit``.

    ``limit`` holds the equations of a theory at infinite depth. Raises :class:`NotLowered` if an equation is
    not a sum of products, for continuous time, for a sum over times that is not causal, and for a response
    that jumps at tau = ``tau_`` and is read there.

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
    """Return one equation in layer time as a row: a tensor that is a sum of products of tensors.

    ``layers`` is the number of layer times of each tensor, by name. ``correlation`` says whether the
    equation is that of a correlation. ``jumps`` of the row tells only of step functions in the equation
    itself. Raises NotLowered for another form.
    """
    products = tuple(_finished(p, e) for p in products_of(e.rhs, layers))
    axes = tuple(e.lhs.args)
    if not all(isinstance(x, Symbol) for x in axes):
        raise NotLowered(f"the left-hand side {e.lhs} of an equation has an argument that is not a symbol")
    return LayerRow(
        str(e.lhs.func), axes, products, correlation and {t, s} <= set(axes), any(p.step for p in products)
    )


def _jumping(rows: list[LayerRow]) -> list[LayerRow]:
    """Return the rows, with ``jumps`` set for those whose value jumps at equal layer times tau = ``tau_``.

    A row also jumps if it uses a tensor with a jump at (tau, ``tau_``), outside of an integral.
    """
    while True:
        names = {r.name for r in rows if r.jumps}
        marked = [
            replace(r, jumps=r.jumps or any(reads_across(x, p, names) for p in r.products for x in p.reads))
            for r in rows
        ]
        if marked == rows:
            return rows
        rows = marked


def reads_across(x: Read, p: LayerProduct, jumping: Collection[str]) -> bool:
    """Return whether ``x`` makes the product p jump where the layer times tau and ``tau_`` are equal.

    The product jumps if ``x`` is a tensor with a jump, used at (tau, ``tau_``), and p has no integral over a
    layer time. ``jumping`` are the names of the tensors with a jump.
    """
    return x.name in jumping and p.layer is None and set(x.args[:2]) == set(LAYER_TIMES)


def products_of(e: Expr, layers: dict[str, int]) -> Iterator[LayerProduct]:
    """Yield the products whose sum is an expression.

    ``layers`` is the number of layer times of each tensor, by name. Raises NotLowered for an expression that
    is not a sum of products.
    """
    yield from _products_of(rename_multiplied(e, powers=True), layers)


def _products_of(e: Expr, layers: dict[str, int]) -> Iterator[LayerProduct]:
    """Yield the products whose sum is an expression in which multiplied sums have different indices.

    ``layers`` is the number of layer times of each tensor, by name.
    """
    if isinstance(e, Add):
        for term in e.args:
            yield from _products_of(term, layers)
    elif isinstance(e, Mul):
        products = [LayerProduct(S.One)]
        for factor in e.args:
            products = [_times(a, b) for a in products for b in _products_of(factor, layers)]
        yield from products
    elif isinstance(e, Pow) and e.exp.is_Integer and e.exp.is_positive and e.base.has(AppliedUndef):
        yield from _products_of(Mul(*[e.base] * int(e.exp), evaluate=False), layers)
    elif isinstance(e, Sum):
        spans = tuple(_span(*lim) for lim in e.limits)
        for p in _products_of(e.function, layers):
            yield replace(p, spans=(*p.spans, *spans))
    elif isinstance(e, Integral):
        yield from _integrated(e, layers)
    else:
        yield _factor(e, layers)


def _factor(e: Expr, layers: dict[str, int]) -> LayerProduct:
    """Return a delta, a step function, a tensor or a number as a product with one factor.

    ``layers`` is the number of layer times of each tensor, by name. Raises NotLowered for another factor.
    """
    if isinstance(e, KroneckerDelta):
        pair = (e.args[0], e.args[1])
        at_equal_times = set(pair) == {s, t}
        return LayerProduct(S.One, present=True) if at_equal_times else LayerProduct(S.One, equal=(pair,))
    if isinstance(e, Heaviside):
        sides = {tau - tau_: 1, tau_ - tau: -1}
        if e.args[0] not in sides:
            raise NotLowered(
                f"the argument of the step function {e} must be tau - tau_ or tau_ - tau, the difference of "
                "the two layer times"
            )
        return LayerProduct(S.One, step=sides[e.args[0]])
    if isinstance(e, AppliedUndef):
        return _applied(e, layers)
    if e.has(AppliedUndef):
        raise NotLowered(
            f"the factor {e} is not supported: it must be a number, a step function, a Kronecker delta, or a "
            "correlation, response, scalar or given function"
        )
    return LayerProduct(e)


def _applied(e: AppliedUndef, layers: dict[str, int]) -> LayerProduct:
    """Return an applied function as a product with one factor.

    The factor is a tensor, or a given function of a scalar, such as the slope of the loss. ``layers`` is the
    number of layer times of each tensor, by name.
    """
    # If arguments contain applied functions, as in slope(f(mu, t)), the function is given as data and is
    # called with the value of a scalar. Otherwise it is a tensor that is read at indices.
    if any(x.has(AppliedUndef) for x in e.args):
        return LayerProduct(S.One, calls=(e,))
    name, args = str(e.func), tuple(e.args)
    for suffix, side in SIDES.items():
        if layers.get(bare := name.removesuffix(suffix)) == 2 and bare != name:
            return LayerProduct(S.One, (Read(bare, (args[0], *args), 2, side),))
    return LayerProduct(S.One, (Read(name, args, layers.get(name, 0)),))


def _span(index: Symbol, lower: Expr, upper: Expr) -> Span:
    """Return a summed index with its limits as a :class:`Span`.

    Raises NotLowered if it is neither a data index nor a time in the past of t or s.
    """
    if lower == 1 and not upper.has(t, s):
        return Span(index, False, False, False, False, upper)
    if lower not in (0, s, s + 1) or upper not in (t, t - 1, s, s - 1):
        raise NotLowered(
            f"the sum over {index} from {lower} to {upper} is not supported: it must run from 1 to a size, "
            "or over times from 0, s or s + 1 to t, t - 1, s or s - 1"
        )
    late = lower == s + 1 or upper == s - 1
    begins = lower in (s, s + 1)
    return Span(index, upper not in (t - 1, s - 1), late, begins, begins and upper == t - 1, upper)


def _integrated(e: Integral, layers: dict[str, int]) -> Iterator[LayerProduct]:
    """Yield the products whose sum is an integral over one layer time.

    ``layers`` is the number of layer times of each tensor, by name. Raises NotLowered for another integral.
    """
    if len(e.limits) != 1 or len(e.limits[0]) != 3:
        raise NotLowered(f"{e} is not an integral over one layer time with a lower and an upper limit")
    ((x, lower, upper),) = e.limits
    bounds = {(S.Zero, tau): "below", (tau, S.One): "above", (S.Zero, S.One): "all"}
    if (lower, upper) not in bounds:
        raise NotLowered(
            f"{e} is not an integral over a layer time from 0 to tau, from tau to 1 or from 0 to 1; an "
            "integral over time, as in a flow, is not supported: use a rule in steps"
        )
    for p in _products_of(e.function, layers):
        if p.layer is not None:
            raise NotLowered(
                f"{e} contains an integral within an integral over layer time, which is not supported"
            )
        yield replace(p, layer=x, bound=bounds[lower, upper])  # type: ignore[arg-type]


def _times(a: LayerProduct, b: LayerProduct) -> LayerProduct:
    """Return the product of two products of tensors.

    Raise NotLowered if both have an integral, or both have a step function.
    """
    if (a.layer and b.layer) or (a.step and b.step):
        raise NotLowered(
            "a term is a product of two integrals over layer time, or of two step functions of tau - tau_; "
            "at most one of each is supported"
        )
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
    """Return the product p unchanged, after a check that the depth is not in its number.

    ``e`` is the equation to which p belongs. Raises NotLowered if the number contains the depth.
    """
    if p.number.has(L):
        raise NotLowered(
            f"the equation of {e.lhs} still contains the depth, in the factor {p.number}: an equation in "
            "layer time must hold at infinite depth"
        )
    return p


def _check(row: LayerRow, p: LayerProduct, jumping: set[str]) -> None:
    """Raise NotLowered if the product p in the equation ``row`` has no unique value or is not causal.

    A tensor in ``jumping`` has no value at equal layer times, unless the product states from which side they
    are approached. A sum over times that begins or ends at s, or one step beside s, must contain a response
    that vanishes on one side of s.
    """
    for x in p.reads:
        at = x.args[: x.layers]
        if x.name not in jumping or x.side:
            continue
        ends = any(y.is_number for y in at)
        if at[0] == at[1] or (p.layer is None and not ends and set(at) != set(LAYER_TIMES)):
            raise NotLowered(
                f"the equation of {row.name} contains {x.name} at equal layer times, where {x.name} jumps "
                "and has no unique value"
            )
    pairs = [x.args[-2:] for x in p.reads]
    for span in p.spans:
        begun = not span.begins or (span.index, s) in pairs
        ended = not span.upper.has(s) or (s, span.index) in pairs
        if not (begun and ended):
            raise NotLowered(
                f"the equation of {row.name} has a sum over the times {span.index} that is not causal: a "
                "sum that begins or ends at s, or one step beside s, must contain a response with the "
                f"times {span.index} and s that vanishes on one side of s"
            )


def _grouped(rows: list[LayerRow]) -> tuple[tuple[LayerRow, ...], ...]:
    """Return the rows (equations of tensors) in groups, in the order in which they can be computed.

    Rows that depend on each other at the same time step form one group.
    """
    names = [r.name for r in rows]
    edges = [(r.name, n) for r in rows for p in r.products for n in present_names(p) if n in names]
    parts = strongly_connected_components((names, edges))
    return tuple(tuple(r for r in rows if r.name in part) for part in parts)


def present_names(p: LayerProduct) -> Iterator[str]:
    """Yield the names of the tensors that a product reads at the present time t, not at earlier times.

    A tensor at the time s counts too, because s may be t, unless a sum in the product runs over times
    between s and t. Scalars in the arguments of given functions are included.
    """
    past = {x.index for x in p.spans if not x.present}
    if any(x.within for x in p.spans):
        past.add(s)
    for x in p.reads:
        times = [a for a in x.args if a.has(t, s) or any(a == y.index for y in p.spans)]
        if any(a not in past for a in times):
            yield x.name
    for c in p.calls:
        yield from (str(a.func) for a in c.atoms(AppliedUndef) if a != c)
