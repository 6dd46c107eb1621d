"""Averages of products of functions, for all tuples of samples at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations, product
from typing import Any

import numpy as np
from sympy import Basic, Expr, Mul

from derive.calculus.jumps import OtherKind, SignPolynomial, jumps, multiplied
from numerics.averages.lattice import Array, Tensor, averages, check_covariance
from numerics.averages.orthants import of_products, rows_of
from numerics.averages.panels import X, bent_product, compiled, expression, is_smooth
from numerics.errors import Unserved

FunctionsBySample = tuple[tuple[int, ...], ...]
"""Which functions each distinct sample takes."""


def tensor(functions: Sequence[Any], covariance: Any, rtol: float = 1e-10) -> Tensor:
    """``<f_1(u_m) f_2(u_n) ..>`` for all samples ``m, n, ..``: an array with one axis for each function.

    ``functions`` are SymPy expressions in one symbol, or functions of an array that are analytic.  Samples
    may coincide, and the covariance may be singular.  ``rtol`` is relative to the average of the size of the
    product.  Piecewise polynomials that bend at zero, and their derivatives, need no quadrature: relu, abs
    and what is made of them, with point masses.  A jump times a point mass at one sample has no meaning, and
    is refused.

    Raises :class:`~numerics.errors.NotConverged` where ``rtol`` is not reached;
    :class:`~derive.calculus.jumps.Ambiguous` for entries without meaning;
    :class:`~numerics.errors.Unserved` for six signs, and for point masses, or three dependent samples, where
    functions bend elsewhere than at zero; SpecError for a covariance that is none.

    >>> from sympy import Heaviside, sin
    >>> from sympy.abc import u
    >>> K = np.array([[1.0, 0.5], [0.5, 2.0]])
    >>> found = tensor([sin(u), u], K)
    >>> exact = K * np.exp(-np.diag(K) / 2)[:, None]  # Stein: <sin(u) v> = <u v> <cos(u)>
    >>> bool(np.abs(found.value - exact).max() < 1e-10)
    True
    >>> print(tensor([Heaviside(u)] * 2, np.array([[1.0, 0.5], [0.5, 1.0]])).value.round(12))
    [[0.5        0.33333333]
     [0.33333333 0.5       ]]
    """
    return tensors([functions], covariance, rtol)[0]


def tensors(lists: Sequence[Sequence[Any]], covariance: Any, rtol: float = 1e-10) -> list[Tensor]:
    """`tensor` of several lists of functions: cheaper than one by one, since they share their points.

    >>> from sympy.abc import u
    >>> square, mixed = tensors([[u, u], [u**2, u**2]], [[1.0, 0.5], [0.5, 1.0]])
    >>> print(square.value.round(9).tolist(), mixed.value.round(9).tolist())
    [[1.0, 0.5], [0.5, 1.0]] [[3.0, 1.5], [1.5, 3.0]]
    """
    K = np.asarray(covariance, dtype=float)
    check_covariance(K)
    K = (K + K.T) / 2
    labels: dict[Any, int] = {}
    numbers = [tuple(labels.setdefault(_named(f), len(labels)) for f in fs) for fs in lists]
    smooth = [not isinstance(f, Expr) or is_smooth(f) for f in labels]
    plain = [n for n in dict.fromkeys(numbers) if all(smooth[i] for i in n)]
    found = _smooth(
        plain, [compiled(f) if isinstance(f, Expr) and is_smooth(f) else f for f in labels], K, rtol
    )
    for n in numbers:
        if n not in found:
            fs = [list(labels)[i] for i in n]
            try:
                found[n] = _bent([jumps(_expression(f), X) for f in fs], K)
            except OtherKind:
                found[n] = _between_bends(fs, K, rtol)
    return [found[n] for n in numbers]


def _named(f: Any) -> Any:
    return f if callable(f) and not isinstance(f, Basic) else expression(f)


def _expression(f: Any) -> Expr:
    if not isinstance(f, Expr):
        raise Unserved(f"{f} beside a function with a bend: give it as an expression")
    return f


# -- analytic functions --------------------------------------------------------------------------------------


def _smooth(
    lists: Sequence[tuple[int, ...]], table: Sequence[Any], K: Array, rtol: float
) -> dict[tuple[int, ...], Tensor]:
    """Every set of samples has one lattice, which all products share."""
    found = {}
    for numbers in lists:
        value = np.ones((len(K),) * len(numbers))
        found[numbers] = Tensor(value, np.zeros_like(value), "lattice")
    for count in range(1, min(max(map(len, lists), default=0), len(K)) + 1):
        for samples in combinations(range(len(K)), count):
            places: dict[FunctionsBySample, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {}
            for numbers in lists:
                for index in product(range(count), repeat=len(numbers)):
                    if len(set(index)) == count:
                        at = tuple(samples[i] for i in index)
                        places.setdefault(_taken(numbers, index, count), []).append((numbers, at))
            if not places:
                continue
            products = [tuple(tuple(table[n] for n in ns) for ns in key) for key in places]
            values, errors = averages(products, K[np.ix_(samples, samples)], rtol)
            for entries, v, e in zip(places.values(), values, errors, strict=True):
                for numbers, at in entries:
                    found[numbers].value[at], found[numbers].error[at] = v, e
    return found


def _taken(numbers: tuple[int, ...], index: tuple[int, ...], count: int) -> FunctionsBySample:
    """Which functions each of the distinct samples takes."""
    pairs = list(zip(numbers, index, strict=True))
    return tuple(tuple(sorted(n for n, i in pairs if i == k)) for k in range(count))


# -- functions that bend at zero -----------------------------------------------------------------------------


def _bent(functions: Sequence[SignPolynomial], K: Array) -> Tensor:
    """Every pattern of coinciding samples is one sum of monomials."""
    value = np.ones((len(K),) * len(functions))
    error = np.zeros_like(value)
    rows = rows_of(K)
    for index in reversed([*_patterns(len(functions))]):  # the hardest first
        count = max(index, default=-1) + 1
        samples = np.array(list(permutations(range(len(K)), count)), dtype=int).reshape(-1, count)
        if count and len(samples):
            at = tuple(samples[:, i] for i in index)
            taken = [[f for f, i in zip(functions, index, strict=True) if i == k] for k in range(count)]
            value[at], error[at] = of_products([multiplied(fs) for fs in taken], rows[samples])
    return Tensor(value, error, "orthants")


# -- functions that bend elsewhere ---------------------------------------------------------------------------


def _between_bends(functions: Sequence[Expr], K: Array, rtol: float) -> Tensor:
    """One tuple after the other; those that differ by order only are one."""
    value = np.ones((len(K),) * len(functions))
    error = np.zeros_like(value)
    known: dict[frozenset[tuple[int, Expr]], tuple[float, float]] = {}
    for at in np.ndindex(value.shape):
        samples = sorted(set(at))
        parts = [Mul(*[f for f, i in zip(functions, at, strict=True) if i == k]) for k in samples]
        key = frozenset(zip(samples, parts, strict=True))
        if key not in known:
            known[key] = bent_product(parts, K[np.ix_(samples, samples)], rtol)
        value[at], error[at] = known[key]
    return Tensor(value, error, "panels")


def _patterns(count: int) -> Iterator[tuple[int, ...]]:
    """All ways in which indices can coincide: the number of the distinct sample at each place."""
    if count == 0:
        yield ()
        return
    for head in _patterns(count - 1):
        for last in range(max(head, default=-1) + 2):
            yield (*head, last)
