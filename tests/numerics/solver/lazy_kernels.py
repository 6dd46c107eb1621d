"""Kernels of infinitely wide networks without feature learning, from the published recursions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Moments = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""From a covariance of fields to the averages of products of activations, and of their slopes."""


def erf_moments(k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return <erf erf> and <erf' erf'> of Gaussians of covariance k (Williams 1997)."""
    d = 1 + 2 * np.diag(k)
    norm = np.outer(d, d)
    return 2 / np.pi * np.arcsin(2 * k / np.sqrt(norm)), 4 / np.pi / np.sqrt(norm - 4 * k**2)


def relu_moments(k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return <relu relu> and <step step> of Gaussians of covariance k (Cho and Saul 2009)."""
    norm = np.sqrt(np.outer(np.diag(k), np.diag(k)))
    angle = np.arccos(np.clip(k / norm, -1, 1))
    return norm * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / (2 * np.pi), (np.pi - angle) / (
        2 * np.pi
    )


def recursion(
    moments: Moments, depth: int, k: np.ndarray
) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
    """Return the kernels Phi and G of each layer and the tangent kernel (Jacot et al. 2018)."""
    start, phi, slopes = k, [], []
    for _ in range(depth):
        k, slope = moments(k)
        phi.append(k)
        slopes.append(slope)
    back = [slopes[-1]]
    for slope in slopes[-2::-1]:
        back.insert(0, back[0] * slope)
    tangent = sum((g * p for g, p in zip(back, [start, *phi[:-1]], strict=True)), start=phi[-1])
    return phi, back, tangent
