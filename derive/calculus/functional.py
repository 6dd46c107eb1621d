"""Functional derivatives of sums and integrals of products of applied functions, by matching indices.

``delta F(a, b, ...) / delta F(x, y, ...)`` is a product of deltas, one for each index; a delta removes the
sum or integral over its index. Expressions without sums are differentiated by SymPy's ``diff``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from sympy import (
    Add,
    And,
    DiracDelta,
    Dummy,
    Expr,
    GreaterThan,
    Integral,
    KroneckerDelta,
    LessThan,
    Mul,
    Piecewise,
    Pow,
    S,
    Sum,
    log,
    oo,
)
from sympy.core.function import AppliedUndef
from sympy.logic.boolalg import Boolean

from derive.calculus.symbols import IndexRange, spelled


def functional_derivative(
    expr: Expr, target: AppliedUndef, ranges: Sequence[IndexRange] = (), *, continuous: bool = False
) -> Expr:
    """Return ``delta expr / delta target``, where ``target`` is a function at free indices and times.

    Parameters
    ----------
    expr : Expr
        Sums and integrals of products of applied functions.
    target : AppliedUndef
        The function, applied to free indices and times.
    ranges : sequence of IndexRange
        The ranges of the indices of ``target``. A sum in ``expr`` contributes if the index of ``target`` is
        in its range; where ``ranges`` and the assumptions of the symbols do not decide this, the result is a
        ``Piecewise``. By default only the assumptions are used.
    continuous : bool
        Whether time, the last argument, is continuous, so that its delta is a Dirac delta.

    Returns
    -------
    Expr
        The derivative. A delta without a sum remains: a Kronecker delta, or a Dirac delta of continuous time.

    Raises
    ------
    NotImplementedError
        If arguments of the function contain the index k of a sum, and none of them is k shifted or reversed,
        as in ``F(2*k)``; or if the function is in a sum inside of an exponent or of another function, such
        as ``exp(Sum(...))``.

    Examples
    --------
    >>> from sympy import Function, symbols
    >>> x, y, a, b = symbols("x y a b", nonnegative=True)
    >>> q, J = Function("q"), Function("J")
    >>> functional_derivative(Sum(q(x) * J(x, y) * q(y), (x, 0, oo), (y, 0, oo)), J(a, b))
    q(a)*q(b)
    >>> functional_derivative(Sum(J(x, y) * J(y, x), (x, 0, oo), (y, 0, oo)), J(a, b))
    2*J(b, a)
    """
    if not expr.has(target.func):
        return S.Zero
    pieces = _derive(_freshened(_concerned(expr, target)), target)
    return _restored(Add(*[_finish(x, target, ranges, continuous) for x in pieces]))


def _concerned(expr: Expr, target: AppliedUndef) -> Expr:
    """Return ``expr`` without addends that lack the function of ``target``, at top level and inside sums."""
    if isinstance(expr, Sum | Integral):
        return expr.func(_concerned(expr.function, target), *expr.limits)
    if isinstance(expr, Add):
        return Add(*[_concerned(x, target) for x in expr.args if x.has(target.func)])
    return expr


@dataclass(frozen=True)
class _Piece:
    """One summand of a functional derivative: ``coefficient * prod delta(left - right)``.

    ``deltas`` are the pairs (left, right) of indices or times that must be equal. The summand is zero unless
    all expressions in ``conditions`` are >= 0.
    """

    coefficient: Expr
    deltas: tuple[tuple[Expr, Expr], ...]
    conditions: tuple[Expr, ...] = ()

    def times(self, factor: Expr) -> _Piece:
        """Return this summand of a functional derivative multiplied by a factor."""
        return replace(self, coefficient=self.coefficient * factor)


def _derive(expr: Expr, target: AppliedUndef) -> list[_Piece]:
    """Return the derivative of an expression by the applied function ``target``, as a list of summands.

    The rules of sums, products, powers and the chain rule are applied. The list is empty if the expression
    does not contain the function.
    """
    if not _occurrences(expr, target):
        return []
    if isinstance(expr, Add):
        return [piece for x in expr.args for piece in _derive(x, target)]
    if isinstance(expr, Sum | Integral):
        return [_collapsed(x, expr) for x in _derive(expr.function, target)]
    if isinstance(expr, Piecewise) and (gaps := _one_case(expr)) is not None:
        pieces = _derive(expr.args[0].expr, target)
        return [replace(p, conditions=(*p.conditions, *gaps)) for p in pieces]
    return _derive_composed(expr, target) if expr.has(Sum, Integral) else _leaf(expr, target)


def _derive_composed(expr: Expr, target: AppliedUndef) -> list[_Piece]:
    """Return the derivative of a product, power or function that contains sums, as a list of summands.

    ``target`` is the applied function by which it is differentiated. Raises NotImplementedError if the target
    is in a sum or integral inside of a function other than a product or power, and for a power whose exponent
    contains a sum or integral if the target is in any sum or integral of the power.
    """
    if isinstance(expr, Mul):
        parts = list(expr.args)
        return [
            p.times(Mul(*parts[:i], *parts[i + 1 :])) for i, x in enumerate(parts) for p in _derive(x, target)
        ]
    if isinstance(expr, Pow) and not expr.exp.has(Sum, Integral):
        by_base, by_exponent = expr.exp * expr.base ** (expr.exp - 1), expr * log(expr.base)
        return [
            *(p.times(by_base) for p in _derive(expr.base, target)),
            *(p.times(by_exponent) for p in _derive(expr.exp, target)),
        ]
    if any(_occurrences(x, target) for x in expr.atoms(Sum, Integral)):
        raise NotImplementedError(
            f"the derivative with respect to {target} is not supported: the function {target.func} is in a "
            f"sum or integral inside of {expr}"
        )
    return _leaf(expr, target)


def _one_case(e: Piecewise) -> list[Expr] | None:
    """Return expressions that are all >= 0 where the Piecewise ``e`` is not zero.

    ``e`` must have one value under inequalities ``>=`` or ``<=``, and be zero otherwise; the result is None
    for any other ``e``.
    """
    (_, condition), *others = e.args
    parts = And.make_args(condition)
    if [x.expr for x in others] != [S.Zero] or not all(isinstance(c, GreaterThan | LessThan) for c in parts):
        return None
    return [c.gts - c.lts for c in parts]


def _leaf(expr: Expr, target: AppliedUndef) -> list[_Piece]:
    """Return the derivative of an expression without sums by ``target``, as a list of summands.

    There is at most one summand for each different occurrence of the function of ``target``, at any indices.
    """
    pieces = []
    for a in _occurrences(expr, target):
        others = [x for x in Mul.make_args(expr) if x != a]
        if a in Mul.make_args(expr) and not any(x.has(a) for x in others):
            # The product contains the occurrence `a` of the function `target` once, as a factor: the
            # derivative of the product by `a` is the product of the other factors.
            slope = Mul(*others)
        else:
            slot = Dummy("slot")
            slope = expr.xreplace({a: slot}).diff(slot).xreplace({slot: a})
        if slope != 0:
            pieces.append(_Piece(slope, tuple(zip(a.args, target.args, strict=True))))
    return pieces


def _occurrences(expr: Expr, target: AppliedUndef) -> list[AppliedUndef]:
    """Return the different occurrences of the function of ``target`` in an expression, sorted by name.

    They are at any indices, with as many arguments as ``target``.
    """
    same = (a for a in expr.atoms(AppliedUndef) if a.func == target.func and len(a.args) == len(target.args))
    return sorted(same, key=spelled)


def _collapsed(piece: _Piece, outer: Sum | Integral) -> _Piece:
    """Return a summand of a functional derivative, summed (or integrated) over the limits of ``outer``.

    A delta that fixes a summed variable removes its sum, and adds the conditions for the value to be in
    range. Raises NotImplementedError if a delta contains a summed variable and does not fix it.
    """
    limits = [tuple(lim) for lim in outer.limits]
    while (hit := _fixed(piece, limits)) is not None:
        k, j, value = hit
        var, lower, upper = limits.pop(j)
        at = {var: value}
        limits = [(v, lo.xreplace(at), up.xreplace(at)) for v, lo, up in limits]
        inside = (value - lower, *(() if upper == oo else (upper - value,)))
        piece = _Piece(
            piece.coefficient.xreplace(at),
            tuple((a.xreplace(at), b.xreplace(at)) for i, (a, b) in enumerate(piece.deltas) if i != k),
            tuple(c.xreplace(at) for c in (*piece.conditions, *inside)),
        )
    if not limits:
        return piece
    bound = {v for v, _, _ in limits}
    if any(bound & (a - b).free_symbols for a, b in piece.deltas):
        raise NotImplementedError(
            f"the functional derivative of {outer} is not supported: it contains deltas that set the "
            f"indices of each of these pairs equal: {piece.deltas}. Not all of these equations are solved "
            "for the variable of the sum or integral, which must enter linearly, with the factor 1 or -1"
        )
    local = tuple(c for c in piece.conditions if bound & c.free_symbols)
    body = _where(piece.coefficient, [c >= 0 for c in local])
    outside = tuple(c for c in piece.conditions if c not in local)
    return _Piece(outer.func(body, *limits), piece.deltas, outside)


def _fixed(piece: _Piece, limits: list[tuple[Any, ...]]) -> tuple[int, int, Expr] | None:
    """Return (i, j, value): delta number i fixes the summed variable of limit number j to ``value``.

    None if no delta of the summand fixes a summed variable.
    """
    for k, (a, b) in enumerate(piece.deltas):
        for j, (var, _, _) in enumerate(limits):
            if a == var and not b.has(var):
                return k, j, b
            if not a.has(var) and not b.has(var):
                continue
            gap = (a - b).expand()
            slope = gap.coeff(var)
            if slope in (1, -1) and not (gap - slope * var).has(var):
                return k, j, var - gap / slope
    return None


def _finish(piece: _Piece, target: AppliedUndef, ranges: Sequence[IndexRange], continuous: bool) -> Expr:
    """Return a summand of a functional derivative as an expression, with its remaining deltas and conditions.

    ``ranges`` are the ranges of the indices of ``target``. A condition that is known to hold everywhere in
    the ranges is left out. The result is 0 if a delta or a condition is known to be fulfilled nowhere there.
    With ``continuous`` a delta of times is a Dirac delta.
    """
    value = piece.coefficient
    for a, b in piece.deltas:
        if a == b:
            continue
        low, high = extremes(a - b, ranges)
        # `low` and `high` are the bounds of a - b over the ranges of indices. If `low` is positive or `high`
        # is negative, a - b is never zero, so that the delta of a and b is zero.
        if low.is_positive or high.is_negative:
            return S.Zero
        value *= DiracDelta(a - b) if continuous and b == target.args[-1] else KroneckerDelta(a, b)
    open_ = []
    for c in piece.conditions:
        low, high = extremes(c, ranges)
        if high.is_negative:
            return S.Zero
        if not low.is_nonnegative:
            open_.append(c >= 0)
    return _where(value, open_)


def extremes(e: Expr, ranges: Sequence[IndexRange]) -> tuple[Expr, Expr]:
    """Return the least and the greatest value over ``ranges`` of an expression linear in their indices.

    The bounds of one range may contain indices of later ranges. An index whose coefficient has an unknown
    sign is taken to have a coefficient >= 0.

    >>> from derive.calculus.symbols import L, ell
    >>> extremes(L - ell, [IndexRange(ell, S.One, L)])
    (0, L - 1)
    """
    low = high = e
    for r in ranges:
        low, high = (_at_end(x, r, top) for x, top in ((low, False), (high, True)))
    return low.expand(), high.expand()


def _at_end(e: Expr, r: IndexRange, top: bool) -> Expr:
    """Return the greatest (``top``) or least value of an expression that is linear in an index.

    A coefficient of the index whose sign is unknown is taken to be >= 0.
    """
    rising = not e.expand().coeff(r.index).is_negative
    return e.xreplace({r.index: r.upper if rising == top else r.lower})


def _where(value: Expr, conditions: Sequence[Boolean]) -> Expr:
    """Return ``value`` where all conditions hold and 0 elsewhere, as a ``Piecewise`` if needed."""
    condition = And(*conditions)
    if condition == S.true:
        return value
    return Piecewise((value, condition), (S.Zero, True))


# -- bound variables are renamed apart, and named again at the end -------------------------------------------


class _Bound(Dummy):
    """Temporary variable of a sum or integral; ``original`` is the symbol that it replaces."""

    original: Any

    @staticmethod
    def of(symbol: Any) -> _Bound:
        """Return a temporary bound variable with the name and the assumptions of a symbol."""
        new = _Bound(symbol.name, **symbol.assumptions0)
        new.original = symbol
        return new


def _freshened(expr: Expr, outer: Mapping[Expr, Expr] = MappingProxyType({})) -> Expr:
    """Replace the variable of every sum and integral by a temporary one, so that no two are equal.

    ``outer`` maps the variables of sums around the expression to temporary ones.
    """
    if not expr.has(Sum, Integral):
        return expr.xreplace(outer) if outer else expr
    if isinstance(expr, Sum | Integral):
        names = {**outer, **{lim[0]: _Bound.of(lim[0]) for lim in expr.limits}}
        limits = [(names[v], lo.xreplace(names), up.xreplace(names)) for v, lo, up in map(tuple, expr.limits)]
        return expr.func(_freshened(expr.function, names), *limits)
    return expr.func(*[_freshened(x, outer) for x in expr.args])


def _restored(expr: Expr) -> Expr:
    """Give the temporary variables of sums and integrals their original names.

    A name that is in use in the same sum gets a prime, such as ``x'``.
    """
    if not expr.has(_Bound):
        return expr
    if isinstance(expr, Sum | Integral):
        body = _restored(expr.function)
        limits = [tuple(lim) for lim in expr.limits]
        bound = {v for v, _, _ in limits}
        bounds = (x.free_symbols for _, lo, up in limits for x in (lo, up))
        taken = body.free_symbols.union(*bounds)
        taken |= {lim[0] for x in body.atoms(Sum, Integral) for lim in x.limits}
        names: dict[Any, Any] = {}
        for v in (lim[0] for lim in limits):
            new = v.original if isinstance(v, _Bound) else v
            while new in (taken - bound) or new in names.values():
                new = type(new)(f"{new.name}'", **new.assumptions0)
            names[v] = new
        limits = [(names[v], lo.xreplace(names), up.xreplace(names)) for v, lo, up in limits]
        return expr.func(body.xreplace(names), *limits)
    return expr.func(*[_restored(x) for x in expr.args]) if expr.args else expr
