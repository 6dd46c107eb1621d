"""Numerical values of symbolic formulas, printed or derived: sums written out, or arrays contracted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from sympy import Add, Basic, Expr, Function, Heaviside, Integer, Mul, S, Sum, Symbol, oo
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import s, t
from numerics.lowering.linear import products

Array = NDArray[np.float64]
Read = Callable[[AppliedUndef], tuple[Array, Sequence[Symbol]]]

PAST = Function("w")(t, s)
"""The step function Theta(t - s), with the weight of the integration rule."""


def written_out(expr: Basic, at: Mapping[Symbol, int], steps: int | None = None) -> Expr:
    """Return ``expr`` with integers for symbols and its sums written out.

    Sums over all times end at ``steps``.

    >>> from sympy import symbols
    >>> k, n = symbols("k n", integer=True)
    >>> written_out(Sum(Function("a")(k), (k, 1, n)), {n: 2})
    a(1) + a(2)
    """
    expr = expr.subs({k: Integer(v) for k, v in at.items()})  # leaves bound variables alone

    def opened(body: Expr, limits: list[tuple[Expr, Expr, Expr]]) -> Expr:
        if not limits:
            return body
        *inner, (index, low, high) = limits
        last = Integer((steps or 0) - 1) if high == oo else high
        terms = []
        for k in range(int(low), int(last) + 1):
            moved = [(i, lo.subs(index, k), up.subs(index, k)) for i, lo, up in inner]
            terms.append(opened(body.subs(index, k), moved))
        return Add(*terms)

    return expr.replace(
        lambda x: isinstance(x, Sum), lambda x: opened(x.function, list(map(tuple, x.limits)))
    )


def number(expr: Expr, values: Callable[[AppliedUndef], complex]) -> complex:
    """Return a written-out expression with a number for every applied function."""
    return complex(expr.xreplace({a: values(a) for a in expr.atoms(AppliedUndef)}))


def at_time(a: AppliedUndef, *times: Expr) -> None:
    """Raise KeyError unless the last indices of a function are ``times``: numbers are for these alone."""
    if times and a.args[-len(times) :] != times:
        raise KeyError(f"{a} is needed at {', '.join(map(str, times))} only")


def lattice(expr: Expr, axes: Sequence[Symbol], sizes: Sequence[int], read: Read) -> Array:
    """Return a sum of products as an array over ``axes``; Theta(t - s) is read as ``w(t, s)``.

    ``read`` gives the array of an applied function and the symbols of its axes; indices that are not axes are
    summed.
    """
    expr = expr.xreplace({Heaviside(t - s): PAST})
    total = np.zeros(tuple(sizes))
    for coefficient, factors in products(expr):
        letters: dict[Symbol, str] = {}
        arrays, inputs = [], []
        for f in factors:
            array, labels = read(f)
            arrays.append(array)
            inputs.append("".join(letters.setdefault(x, chr(ord("a") + len(letters))) for x in labels))
        used = [x for x in axes if x in letters]
        value = np.einsum(f"{','.join(inputs)}->{''.join(letters[x] for x in used)}", *arrays, optimize=True)
        total += float(coefficient) * value.reshape(
            [n if x in used else 1 for x, n in zip(axes, sizes, strict=True)]
        )
    return total


def words(expr: Expr) -> list[tuple[Expr, tuple[Symbol, ...]]]:
    """Return a noncommutative polynomial as coefficients and words.

    >>> from sympy import symbols
    >>> a, b = symbols("a b", commutative=False)
    >>> words(2 * a * b + b**2)
    [(2, (a, b)), (1, (b, b))]
    """
    found: dict[tuple[Symbol, ...], Expr] = {}
    for x in expr.expand().as_ordered_terms():
        coefficient, rest = x.args_cnc()
        letters: list[Symbol] = []
        for f in rest:
            base, power = f.as_base_exp()
            letters += [base] * int(power)
        found[tuple(letters)] = found.get(tuple(letters), S.Zero) + Mul(*coefficient)
    return [(coefficient, word) for word, coefficient in found.items()]
