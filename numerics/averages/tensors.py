"""Averages of products of functions, for all tuples of samples at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
from sympy import Basic, Expr

from numerics.averages.functions import compiled, expression
from numerics.averages.lattice import Function, Joint, averages
from numerics.averages.value import Array, Tensor
from numerics.errors import SpecError

Key = tuple[tuple[int, ...], ...]
"""Which functions each distinct sample takes."""


def tensor(functions: Sequence[Any], covariance: Any, rtol: float = 1e-10) -> Tensor:
    """``<f_1(u_m) f_2(u_n) ..>`` for all samples ``m, n, ..``: an array with one axis for each function.

    ``functions`` are SymPy expressions in one symbol, or functions of an array that are analytic.  Samples
    may coincide, and the covariance may be singular.  ``rtol`` is relative to the average of the size of the
    product.  Raises :class:`~numerics.errors.NotConverged` where that is not reached, SpecError for a
    covariance that is no square matrix.

    >>> from sympy import sin
    >>> from sympy.abc import u
    >>> K = np.array([[1.0, 0.5], [0.5, 2.0]])
    >>> found = tensor([sin(u), u], K)
    >>> exact = K * np.exp(-np.diag(K) / 2)[:, None]  # Stein: <sin(u) v> = <u v> <cos(u)>
    >>> bool(np.abs(found.value - exact).max() < 1e-10)
    True
    """
    K = np.asarray(covariance, dtype=float)
    if K.ndim != 2 or K.shape[0] != K.shape[1] or not np.allclose(K, K.T, rtol=1e-12, atol=0.0):
        raise SpecError("covariance", K, "is no covariance", "a symmetric matrix")
    labels: dict[Any, int] = {}
    numbers = [labels.setdefault(_named(f), len(labels)) for f in functions]
    table: list[Function] = [compiled(f) if isinstance(f, Expr) else f for f in labels]
    value = np.ones((len(K),) * len(numbers))
    error = np.zeros_like(value)
    for count in range(1, min(len(numbers), len(K)) + 1):
        for samples in combinations(range(len(K)), count):
            places: dict[Key, list[tuple[int, ...]]] = {}
            for index in product(range(count), repeat=len(numbers)):
                if len(set(index)) == count:
                    taken = tuple(
                        tuple(sorted(n for n, i in zip(numbers, index, strict=True) if i == k))
                        for k in range(count)
                    )
                    places.setdefault(taken, []).append(tuple(samples[i] for i in index))
            found, errors = _many([_joined(key, table) for key in places], K[np.ix_(samples, samples)], rtol)
            for at, v, e in zip(places.values(), found, errors, strict=True):
                for index in at:
                    value[index], error[index] = v, e
    return Tensor(value, error, "lattice")


def _named(f: Any) -> Any:
    return f if callable(f) and not isinstance(f, Basic) else expression(f)


def _joined(key: Key, table: list[Function]) -> tuple[Function, ...]:
    return tuple(Joint(tuple(table[n] for n in ns)) for ns in key)


def _many(products: list[tuple[Function, ...]], K: Array, rtol: float) -> tuple[Array, Array]:
    return averages(products, K, rtol)
