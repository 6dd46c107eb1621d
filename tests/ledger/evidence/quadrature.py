"""Exact small averages: Gauss-Hermite products for Gaussians, trapezoids for Fourier integrals."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Complex = NDArray[np.complex128]


def gaussian_average(
    function: Callable[[Array], NDArray[np.generic]], dimension: int, nodes: int = 12
) -> complex:
    """Return ``<function(z)>`` over independent standard normals.

    ``function`` takes an array (points, dimension).

    >>> round(gaussian_average(lambda z: z[:, 0] ** 4, 2).real, 12)
    3.0
    """
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    points = np.array(list(itertools.product(x, repeat=dimension)))
    weights = np.prod(np.array(list(itertools.product(w / w.sum(), repeat=dimension))), axis=1)
    return complex(np.sum(weights * function(points)))


def grid(reach: float, count: int) -> tuple[Array, float]:
    """Return a symmetric grid and its step for the trapezoid rule.

    The rule is spectrally accurate for functions that decay.
    """
    x = np.linspace(-reach, reach, count)
    return x, float(x[1] - x[0])


def pair_covariance(quadratic: Array, charge: float, reach: float, count: int = 161) -> Array:
    """Return the covariance of two variables chi from their Fourier integral.

    The weight is ``int d chihat exp(-chihat M chihat/2 + i charge chihat.chi)``. The Fourier integral and the
    moments are both done on grids; ``reach`` is that of chi in each direction.
    """
    k, dk = grid(8.0 / np.sqrt(np.linalg.eigvalsh(quadratic)[0]), count)
    x, _ = grid(reach, count)
    a, b = np.meshgrid(k, k, indexing="ij")
    weight = (
        np.exp(-(quadratic[0, 0] * a**2 + 2 * quadratic[0, 1] * a * b + quadratic[1, 1] * b**2) / 2) * dk**2
    )
    wave = np.exp(1j * charge * np.outer(x, k))
    density = (wave @ weight @ wave.T).real
    density /= density.sum()
    moments = [density.sum(axis=1) @ x**2, x @ density @ x, density.sum(axis=0) @ x**2]
    return np.array([[moments[0], moments[1]], [moments[1], moments[2]]])
