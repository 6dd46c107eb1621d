"""Coefficients of update rules that act on singular values (Muon), from matrices of inner products.

A gradient ``sum_mu l_mu r_mu^T`` of a matrix has the singular values ``N sigma_k``. The rule replaces
``sigma_k`` by ``F(sigma_k)``, and its step is ``(1/N) sum X_mu,alpha l_mu r_alpha^T`` with

    X = G^(-1/2) F[G^(1/2) K^(1/2)] K^(-1/2),  G = <l l>, K = <r r>,

where F acts on the positive singular values of the product. The evaluation of expressions uses X for
memory kernels of such rules.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, lambdify

from derive.program.spectral import sigma

Array = NDArray[np.float64]

RANK = 1e-10
"""Eigenvalues below this share of the largest one count as zero, because the vectors are dependent."""


def coefficients(F: Expr, left: Array, right: Array) -> Array:
    """Return the coefficients X of the step of a rule that acts on the singular values of a gradient.

    ``F`` is an expression in the singular value, the symbol ``derive.program.spectral.sigma``. A gradient
    ``sum_mu l_mu r_mu^T`` with the singular values ``N sigma_k`` has the step ``sum X_mu,alpha l_mu r_alpha^T
    / N``, with the singular values ``F(sigma_k)``; those that are zero stay zero. ``left`` G = <l l> and
    ``right`` K = <r r> are the matrices of inner products (averages over units), (..., n, n), and ``X =
    G^(-1/2) F[G^(1/2) K^(1/2)] K^(-1/2)`` has their shape.

    >>> from sympy import S
    >>> coefficients(S.One, np.diag([4.0, 1.0]), np.eye(2))
    array([[0.5, 0. ],
           [0. , 1. ]])
    """
    (left_root, left_inverse), (right_root, right_inverse) = _roots(left), _roots(right)
    left_vectors, values, right_vectors = np.linalg.svd(left_root @ right_root)
    largest = values.max(axis=-1, keepdims=True)
    positive = values > np.sqrt(RANK) * largest
    inside = np.where(positive, values, 1.0)
    applied = np.where(positive, _function(F)(inside), 0.0)
    result: Array = left_inverse @ (left_vectors * applied[..., None, :]) @ right_vectors @ right_inverse
    return result


def _roots(matrix: Array) -> tuple[Array, Array]:
    """Return the symmetric square root of a matrix, and the pseudo-inverse of this root.

    Eigenvalues below a share RANK of the largest one count as zero, in both.
    """
    values, vectors = np.linalg.eigh((matrix + matrix.swapaxes(-1, -2)) / 2)
    positive = values > RANK * np.abs(values).max(axis=-1, keepdims=True)
    roots = np.sqrt(np.where(positive, values, 0.0))
    inverse = np.where(positive, 1 / np.where(positive, roots, 1.0), 0.0)
    transposed = vectors.swapaxes(-1, -2)
    return (vectors * roots[..., None, :]) @ transposed, (vectors * inverse[..., None, :]) @ transposed


@lru_cache(maxsize=32)
def _function(F: Expr) -> Any:
    """Return the expression F, a function of the singular value, as a compiled function of arrays."""
    compiled = lambdify([sigma], F, "numpy")
    return lambda x: compiled(x) * np.ones_like(x)
