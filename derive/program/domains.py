"""Domains of summation: integer points that satisfy affine conditions, and sums over them.

A condition is an expression that must be at least zero, such as ``p - r`` for ``r <= p``. The gradient of a
sum over r from ``low(p)`` to ``high(p)`` is a sum over the p with ``low(p) <= r <= high(p)``: the same
conditions, solved for p instead of r (:func:`summed`). Variables are eliminated one after another (Fourier
and Motzkin); this is exact for integers because every variable has the coefficient 1 or -1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations_with_replacement
from typing import Any

from sympy import Add, Basic, Dummy, Expr, Ge, Max, Min, Piecewise, S, Sum, Symbol, true
from sympy.logic.boolalg import And, Boolean

from derive.calculus.symbols import expression
from derive.errors import ProgramError

Conditions = list[Expr]


def between(value: Expr, lower: Expr, upper: Expr, label: str) -> Conditions:
    """Return the conditions for ``lower <= value <= upper``; infinite bounds give none.

    A condition is an expression that must be at least zero. A maximum as the lower bound, or a minimum as the
    upper bound, gives a condition for each of its arguments. Raises :class:`ProgramError` for a minimum in
    the lower or a maximum in the upper bound, because the points between do not form one interval; the
    message begins with ``label``.

    >>> from sympy.abc import n, p
    >>> between(n, S.One, Min(p, 4), "f")
    [n - 1, 4 - n, -n + p]
    """
    lower, upper = expression(lower), expression(upper)
    if lower.has(Min) or upper.has(Max):
        raise ProgramError(
            f"{label}: the sum from {_plain(lower)} to {_plain(upper)} has a minimum in its lower limit or "
            "a maximum in its upper limit; write it as several sums"
        )
    conditions = [] if lower == S.NegativeInfinity else [value - x for x in _parts(lower, Max)]
    return conditions + ([] if upper == S.Infinity else [x - value for x in _parts(upper, Min)])


def _plain(e: Basic) -> Basic:
    """Return an expression with plain symbols of the same names in place of its dummies, for messages."""
    return e.xreplace({x: Symbol(x.name) for x in e.atoms(Dummy)})


def _parts(e: Expr, kind: Any) -> list[Expr]:
    """Return the arguments of ``e``, sorted as text, if ``e`` is an object of the SymPy class ``kind``.

    ``kind`` is ``Max`` or ``Min``. For any other expression the result is the list ``[e]``.
    """
    return sorted(e.args, key=str) if isinstance(e, kind) else [e]


def implied(condition: Expr, known: Iterable[Expr]) -> bool:
    """Return whether a condition is seen to follow from at most two known conditions.

    A condition is an expression in integer indices that must be at least zero, such as ``p - r`` for ``r <=
    p``. A condition follows if it is known to be nonnegative by the assumptions of its symbols, also after
    one known condition or the sum of two is subtracted from it. False does not mean that the condition can
    fail.

    >>> from sympy.abc import n, p
    >>> implied(p - 1, [n - 1, p - n]), implied(p - 2, [n - 1, p - n])
    (True, False)
    """
    if condition.expand().is_nonnegative:
        return True
    every = list(known)
    if any((condition - x).expand().is_nonnegative for x in every):
        return True
    pairs = combinations_with_replacement(every, 2)
    return any((condition - x - y).expand().is_nonnegative for x, y in pairs)


def affine_slope(e: Expr, index: Symbol) -> Expr:
    """Return the derivative of ``e`` by ``index``, of which ``e`` is an affine function.

    >>> from sympy.abc import n, p
    >>> affine_slope(n - p + 1, p), affine_slope(n * p, p)
    (-1, n)
    """
    terms_with_index = [x for x in Add.make_args(e) if x.has(index)]
    if len(terms_with_index) == 1 and terms_with_index[0] in (index, -index):
        return S.One if terms_with_index[0] == index else S.NegativeOne
    return e.diff(index)


def needed(conditions: Iterable[Expr], known: Iterable[Expr]) -> Conditions:
    """Return those of the ``conditions`` that do not follow from the ``known`` ones or from each other.

    A condition is an expression in integer indices that must be at least zero, such as ``p - r`` for ``r <=
    p``. The test is that of :func:`implied`; of conditions that are equal one is kept.
    """
    remaining = [x for x in dict.fromkeys(y.expand() for y in conditions) if not implied(x, known)]
    for x in tuple(remaining):
        others = [y for y in remaining if y != x]
        if implied(x, [*known, *others]):
            remaining = others
    return remaining


def eliminated(
    index: Symbol, conditions: Iterable[Expr], label: str
) -> tuple[Conditions, Conditions, Conditions]:
    """Return the bounds of an index that conditions imply, and the conditions that remain without it.

    A condition is an expression in integer indices that must be at least zero. The result is three lists:
    lower bounds of ``index``, upper bounds, and conditions on the other indices. The third list holds if and
    only if some value of ``index`` satisfies all of the given ``conditions``. Raises :class:`ProgramError` if
    the index has a coefficient other than 1 or -1; the message begins with ``label``.

    >>> from sympy.abc import n, p
    >>> eliminated(p, [n - 1, p - n, 5 - p], "f")
    ([n], [5], [n - 1, 5 - n])
    """
    lower: Conditions = []
    upper: Conditions = []
    others: Conditions = []
    for x in conditions:
        if not x.has(index):
            others.append(x)
            continue
        slope = affine_slope(x, index)
        if slope not in (1, -1):
            raise ProgramError(
                f"{label}: its gradient needs a sum over the values of {index} with {_plain(Ge(x, 0))}, "
                f"in which {index} must have the factor 1 or -1; let limits of sums and "
                "shifts of indices be indices plus or minus numbers, and select terms by factors 0 or 1"
            )
        (lower if slope == 1 else upper).append((-slope * (x - slope * index)).expand())
    return lower, upper, others + [(b - a).expand() for a in lower for b in upper]


def summed(
    value: Expr,
    indices: Sequence[Symbol],
    domain: Conditions,
    support: Conditions,
    known: Conditions,
    label: str,
) -> tuple[Expr, Conditions]:
    """Return the sum of ``value`` over the points of a domain, and conditions on its other indices.

    A condition is an expression in integer indices that must be at least zero, such as ``p - r`` for ``r <=
    p``.

    Parameters
    ----------
    value : Expr
        The summand.
    indices : sequence of Symbol
        The indices to sum over, the innermost first.
    domain : list of Expr
        Conditions on ``indices`` and on other indices.
    support : list of Expr
        Conditions of the same kind, outside of which ``value`` is zero; they shorten sums.
    known : list of Expr
        Conditions on other indices that hold where the sum is used.
    label : str
        The name of the expression that contains the sum, for messages.

    Returns
    -------
    tuple of (Expr, list of Expr)
        The sum, and those conditions on other indices that do not follow from ``known``. Where one of them
        fails, the sum over the domain is zero and the returned expression must not be used. A sum whose upper
        limit is one below the lower is zero without a condition.

    Examples
    --------
    >>> from sympy import Function
    >>> from sympy.abc import n, p
    >>> f = Function("f")
    >>> summed(f(p), [p], [n - 1, p - n, p - 1, 5 - p], [], [n - 1, 5 - n], "f")
    (Sum(f(p), (p, n, 5)), [])
    """
    limits: list[tuple[Symbol, Expr, Expr]] = []
    conditions = [*domain, *(c for c in support if c.free_symbols & set(indices))]
    for y in indices:
        lower, upper, outer = eliminated(y, conditions, label)
        low, high = _tightest(lower, [*known, *outer], Max), _tightest(upper, [*known, *outer], Min)
        if value.has(y) or any(b.has(y) for _, *bounds in limits for b in bounds):
            limits.append((y, low, high))
        else:
            value *= high - low + 1
        conditions = [c for c in conditions if not c.has(y)]
        lengths = [(b - a).expand() for a in lower for b in upper]
        # A condition c means c >= 0. Each pair of a lower bound a and an upper bound b of the sum gives the
        # length c = b - a, which limits the indices that are summed later. If c contains none of these
        # indices, the sum may also be empty, b - a = -1: the condition is c + 1.
        conditions += [c if c.free_symbols & set(indices) else c + 1 for c in lengths]
    return Sum(value, *limits) if limits else value, needed(conditions, known)


def _tightest(bounds: Conditions, known: Conditions, kind: Any) -> Expr:
    """Return the maximum of lower bounds (``kind`` Max) or the minimum of upper bounds (Min).

    A bound is left out if another bound is at least as tight at all points that satisfy the ``known``
    conditions (expressions that are at least zero). Without bounds the result is minus infinity for Max and
    infinity for Min.
    """
    remaining = list(dict.fromkeys(bounds))
    sign = 1 if kind is Max else -1
    for x in tuple(remaining):
        if any(implied(sign * (y - x), known) for y in remaining if y != x):
            remaining.remove(x)
    return kind(*remaining)


def indicator(conditions: Conditions) -> Expr:
    """Return the factor that is 1 where all conditions hold and 0 elsewhere.

    A condition is an expression that must be at least zero: ``p - n`` stands for ``n <= p``.

    >>> from sympy.abc import n, p
    >>> indicator([p - n]), indicator([])
    (Piecewise((1, n <= p), (0, True)), 1)
    """
    if not conditions:
        return S.One
    return Piecewise((S.One, And(*map(_written, conditions))), (S.Zero, true))


def _written(condition: Expr) -> Boolean:
    """Return the inequality ``condition >= 0`` with positive terms on each side: ``r <= p`` for ``p - r``."""
    positive: list[Expr] = []
    negative: list[Expr] = []
    for x in condition.as_ordered_terms():
        (negative if x.could_extract_minus_sign() else positive).append(x)
    return Ge(sum(positive, S.Zero), -sum(negative, S.Zero))


def hull(index: Symbol, others: Iterable[Symbol], domain: Conditions, label: str) -> tuple[Expr, Expr]:
    """Return the first and the last value that ``index`` takes anywhere in a domain.

    The domain is a list of conditions (expressions that must be at least zero) on ``index`` and on the
    indices ``others``, which are eliminated. A value without a condition is infinite. ``label`` begins the
    message of the :class:`ProgramError` that is raised if an index has a coefficient other than 1 or -1.

    >>> from sympy.abc import n, p
    >>> hull(n, [p], [n - 1, p - n, p - 1, 5 - p], "f")
    (1, 5)
    """
    for y in others:
        if y != index:
            *_, domain = eliminated(y, domain, label)
    lower, upper, outer = eliminated(index, domain, label)
    return _tightest(lower, outer, Max), _tightest(upper, outer, Min)
