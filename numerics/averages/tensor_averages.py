"""Averages of products of functions, for all tuples of samples at once.

:func:`tensor` takes functions of one variable and the covariance of the samples and returns an array with one
axis for each function. Expansions of nonlinear networks in gamma0 need such arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations, product
from typing import Any

import numpy as np
from sympy import Basic, Expr, Mul

from derive.calculus.jumps import OtherKind, SignPolynomial, jumps, multiplied
from numerics.averages.kink_quadrature import X, compiled, expression, is_smooth, kinked_product
from numerics.averages.lattice import Array, Tensor, averages, covariance_from
from numerics.averages.orthants import of_products, rows_of
from numerics.errors import Unserved

FunctionsBySample = tuple[tuple[int, ...], ...]
"""Numbers of the functions of each distinct sample."""


def tensor(functions: Sequence[Any], covariance: Any, rtol: float = 1e-10) -> Tensor:
    """Return the averages ``<f_1(u_m) f_2(u_n) ..>`` for all samples ``m, n, ..``.

    Parameters
    ----------
    functions : sequence of sympy.Expr or callable
        Expressions in one symbol, or analytic functions of an array.
    covariance : array_like
        Covariance of the samples, shape ``(samples, samples)``; it may be singular.
    rtol : float
        Tolerance relative to the average of the absolute value of the product.

    Returns
    -------
    Tensor
        Averages and errors, with one axis for each function; samples may coincide.

    Raises
    ------
    NotConverged
        If ``rtol`` is not reached, or if a product is not real and finite at test points within 30 standard
        deviations of the mean. A pole between these points may be missed.
    Ambiguous
        If a jump or another point mass multiplies a point mass at the same sample or at a sample whose
        variable is a multiple of it, and for a point mass at a sample without variance.
    Unserved
        For six or more signs at different samples (an odd number of signs alone has the average zero); for a
        callable times an expression with a kink; for an unknown function; for infinitely many kinks. If a
        function with kinks is not a piecewise polynomial with kinks at zero only: also for point masses, and
        for three or more samples of which one is a linear combination of the others.
    SpecError
        If the covariance is not a symmetric matrix of finite numbers, or is not positive semidefinite for the
        samples of one average, and for a function of several symbols, for one that contains the imaginary
        unit and is not real, and for an infinite or undefined number.

    Notes
    -----
    Piecewise polynomials with kinks at zero, such as relu and abs, and their derivatives need no quadrature.

    Examples
    --------
    >>> from sympy import Heaviside, sin
    >>> from sympy.abc import u
    >>> K = np.array([[1.0, 0.5], [0.5, 2.0]])
    >>> mean = tensor([sin(u), u], K)
    >>> exact = K * np.exp(-np.diag(K) / 2)[:, None]  # Stein: <sin(u) v> = <u v> <cos(u)>
    >>> bool(np.abs(mean.value - exact).max() < 1e-10)
    True
    >>> print(tensor([Heaviside(u)] * 2, np.array([[1.0, 0.5], [0.5, 1.0]])).value.round(12))
    [[0.5        0.33333333]
     [0.33333333 0.5       ]]
    """
    return tensors([functions], covariance, rtol)[0]


def tensors(lists: Sequence[Sequence[Any]], covariance: Any, rtol: float = 1e-10) -> list[Tensor]:
    """Return the averages of `tensor` for each of several lists of functions.

    Products of analytic functions share their points of quadrature. Raises the errors of `tensor`.

    Parameters
    ----------
    lists : sequence of sequence of sympy.Expr or callable
        Lists of functions, as `tensor` takes them.
    covariance : array_like
        Covariance of the samples, shape ``(samples, samples)``.
    rtol : float
        Tolerance relative to the average of the absolute value of each product.

    Returns
    -------
    list of Tensor
        One for each list of functions.

    Examples
    --------
    >>> from sympy.abc import u
    >>> square, mixed = tensors([[u, u], [u**2, u**2]], [[1.0, 0.5], [0.5, 1.0]])
    >>> print(square.value.round(9).tolist(), mixed.value.round(9).tolist())
    [[1.0, 0.5], [0.5, 1.0]] [[3.0, 1.5], [1.5, 3.0]]
    """
    K = covariance_from(covariance)
    K = (K + K.T) / 2
    labels: dict[Any, int] = {}
    numbers = [tuple(labels.setdefault(_named(f), len(labels)) for f in fs) for fs in lists]
    smooth = [not isinstance(f, Expr) or is_smooth(f) for f in labels]
    plain = [n for n in dict.fromkeys(numbers) if all(smooth[i] for i in n)]
    table = [compiled(f) if isinstance(f, Expr) and is_smooth(f) else f for f in labels]
    results = _smooth(plain, table, K, rtol)
    for n in numbers:
        if n not in results:
            fs = [_expression(list(labels)[i]) for i in n]
            try:
                results[n] = _with_kinks_at_zero([jumps(f, X) for f in fs], K)
            except OtherKind:
                results[n] = _with_kinks(fs, K, rtol)
    return [results[n] for n in numbers]


def _named(f: Any) -> Any:
    """Return a function in a form in which equal functions are equal, to be the key of a dictionary.

    A callable stays as it is; an expression or number becomes an expression in the symbol `X`.
    """
    return f if callable(f) and not isinstance(f, Basic) else expression(f)


def _expression(f: Any) -> Expr:
    """Return ``f`` unchanged if it is an expression; raise Unserved for a callable.

    It is used for products in which another function has a kink. The kinks of a callable are not known.
    """
    if not isinstance(f, Expr):
        raise Unserved(f"{f} is multiplied by a function with a kink: give {f} as a SymPy expression")
    return f


# -- analytic functions --------------------------------------------------------------------------------------


def _smooth(
    lists: Sequence[tuple[int, ...]], table: Sequence[Any], K: Array, rtol: float
) -> dict[tuple[int, ...], Tensor]:
    """Return the averages of products of analytic functions for all tuples of samples, by product.

    ``K`` is the covariance of the samples. ``table`` holds the functions, and ``lists`` are the positions in
    ``table`` of the functions of each product. All products of the same distinct samples share one lattice.
    """
    tables = {}
    for numbers in lists:
        value = np.ones((len(K),) * len(numbers))
        tables[numbers] = Tensor(value, np.zeros_like(value), "lattice")
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
                    tables[numbers].value[at], tables[numbers].error[at] = v, e
    return tables


def _taken(numbers: tuple[int, ...], index: tuple[int, ...], count: int) -> FunctionsBySample:
    """Return for each of ``count`` samples the numbers of the functions that are evaluated at it.

    ``numbers`` are the functions of a product. ``index`` has one entry for each function: the position, below
    ``count``, of the sample at which it is evaluated.
    """
    pairs = list(zip(numbers, index, strict=True))
    return tuple(tuple(sorted(n for n, i in pairs if i == k)) for k in range(count))


# -- functions with kinks at zero ----------------------------------------------------------------------------


def _with_kinks_at_zero(functions: Sequence[SignPolynomial], K: Array) -> Tensor:
    """Return averages of products of piecewise polynomials with kinks at zero, for all tuples of samples.

    ``K`` is the covariance of the samples. All tuples with the same pattern of equal samples, such as
    (m, m, n) with n different from m, are computed in one call.
    """
    value = np.ones((len(K),) * len(functions))
    error = np.zeros_like(value)
    rows = rows_of(K)
    # A pattern states which samples are equal. The order is reversed, so that the pattern in which all
    # samples differ comes first. It has the most variables: if an average of so many variables cannot be
    # computed, the error is raised before time is spent on the other patterns.
    for index in reversed([*_patterns(len(functions))]):
        count = max(index, default=-1) + 1
        samples = np.array(list(permutations(range(len(K)), count)), dtype=int).reshape(-1, count)
        if count and len(samples):
            at = tuple(samples[:, i] for i in index)
            taken = [[f for f, i in zip(functions, index, strict=True) if i == k] for k in range(count)]
            value[at], error[at] = of_products([multiplied(fs) for fs in taken], rows[samples])
    return Tensor(value, error, "orthants")


# -- functions with kinks elsewhere --------------------------------------------------------------------------


def _with_kinks(functions: Sequence[Expr], K: Array, rtol: float) -> Tensor:
    """Return averages of products of functions with kinks anywhere, for all tuples of samples.

    ``functions`` are expressions in the symbol `X`, and ``K`` is the covariance of the samples. Tuples are
    computed one by one, but tuples with the same functions at each sample only once.
    """
    value = np.ones((len(K),) * len(functions))
    error = np.zeros_like(value)
    known: dict[frozenset[tuple[int, Expr]], tuple[float, float]] = {}
    for at in np.ndindex(value.shape):
        samples = sorted(set(at))
        parts = [Mul(*[f for f, i in zip(functions, at, strict=True) if i == k]) for k in samples]
        key = frozenset(zip(samples, parts, strict=True))
        if key not in known:
            known[key] = kinked_product(parts, K[np.ix_(samples, samples)], rtol)
        value[at], error[at] = known[key]
    return Tensor(value, error, "panels")


def _patterns(count: int) -> Iterator[tuple[int, ...]]:
    """Yield all ways in which ``count`` indices can be equal: (0, 0), (0, 1) for two indices.

    Indices with the same number are equal; numbers count from 0 in order of occurrence.
    """
    if count == 0:
        yield ()
        return
    for head in _patterns(count - 1):
        for last in range(max(head, default=-1) + 2):
            yield (*head, last)
