"""Coefficients of steps that act on singular values, from matrices of inner products.

For a gradient ``sum_mu l_mu r_mu^T`` the step ``F`` of its singular values is ``(1/N) sum X_mu,alpha l_mu
r_alpha^T`` with

    X = G^(-1/2) F[G^(1/2) K^(1/2)] K^(-1/2),  G = <l l>, K = <r r>,

F acting on the positive singular values of the product.
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
"""Eigenvalues below this share of the largest one are taken for zero: the vectors depend on each other."""


def coefficients(F: Expr, left: Array, right: Array) -> Array:
    """Return X for matrices ``(..., n, n)`` of inner products.

    >>> from sympy import S
    >>> coefficients(S.One, np.diag([4.0, 1.0]), np.eye(2))
    array([[0.5, 0. ],
           [0. , 1. ]])
    """
    (root, inverse), (other, other_inverse) = _roots(left), _roots(right)
    one, values, two = np.linalg.svd(root @ other)
    largest = values.max(axis=-1, keepdims=True)
    positive = values > np.sqrt(RANK) * largest
    inside = np.where(positive, values, 1.0)
    applied = np.where(positive, _function(F)(inside), 0.0)
    found: Array = inverse @ (one * applied[..., None, :]) @ two @ other_inverse
    return found


def _roots(matrix: Array) -> tuple[Array, Array]:
    """The symmetric root of a matrix, and its inverse on the space of positive eigenvalues."""
    values, vectors = np.linalg.eigh((matrix + matrix.swapaxes(-1, -2)) / 2)
    positive = values > RANK * np.abs(values).max(axis=-1, keepdims=True)
    roots = np.sqrt(np.where(positive, values, 0.0))
    inverse = np.where(positive, 1 / np.where(positive, roots, 1.0), 0.0)
    turned = vectors.swapaxes(-1, -2)
    return (vectors * roots[..., None, :]) @ turned, (vectors * inverse[..., None, :]) @ turned


@lru_cache(maxsize=32)
def _function(F: Expr) -> Any:
    """F as a function of arrays."""
    compiled = lambdify([sigma], F, "numpy")
    return lambda x: compiled(x) * np.ones_like(x)
