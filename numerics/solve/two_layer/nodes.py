"""Points and weights for averages over a few independent standard normal numbers.

For analytic functions the trapezoidal rule, cut off where the Gaussian is below rounding, converges
exponentially in the number of points, Gauss-Hermite only in its square root; polynomials are exact by
Gauss-Hermite.  Neither helps across a kink or in many dimensions: there scrambled Sobol points do.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, roots_hermitenorm
from scipy.stats import qmc

Array = NDArray[np.float64]
Rule = Literal["trapezoid", "hermite", "sobol"]

REACH = 8.3
"""Where the trapezoidal rule ends: the Gaussian is 1e-15 of its height there."""
NEGLIGIBLE = 1e-16
"""Nodes whose share of the largest weight is smaller are left out."""


@dataclass(frozen=True)
class Nodes:
    """``points`` of shape ``(dimensions, count)`` and their ``weights``, which add up to one."""

    points: Array
    weights: Array


def tensor(rule: Rule, count: int, dimensions: int) -> Nodes:
    """The product of ``dimensions`` one-dimensional rules of ``count`` points each.

    >>> nodes = tensor("trapezoid", 24, 2)
    >>> print(f"{nodes.weights @ (nodes.points[0]**2 * nodes.points[1]**4):.10f}")
    3.0000000000
    """
    if rule == "hermite":
        x, w = roots_hermitenorm(count)
    else:
        x = np.linspace(-REACH, REACH, count)
        w = np.exp(-(x**2) / 2)
    points, weights = np.zeros((0, 1)), np.ones(1)
    for _ in range(dimensions):
        weights = (weights[:, None] * (w / w.max())).ravel()
        points = np.concatenate([np.repeat(points, count, axis=1), np.tile(x, points.shape[1])[None]])
        kept = weights > NEGLIGIBLE
        points, weights = points[:, kept], weights[kept]
    return Nodes(points, weights / weights.sum())


def scattered(count: int, dimensions: int, seed: np.random.SeedSequence) -> Nodes:
    """``count`` points of a scrambled Sobol sequence, all of the same weight."""
    with warnings.catch_warnings():  # sizes that are no power of two are balanced well enough
        warnings.simplefilter("ignore", UserWarning)
        uniform = qmc.Sobol(max(dimensions, 1), seed=np.random.default_rng(seed)).random(count)
    points = ndtri(uniform.T.clip(1e-15, 1 - 1e-15))[:dimensions]
    return Nodes(points, np.full(count, 1 / count))
