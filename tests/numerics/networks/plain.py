"""Networks written out in NumPy and trained by complex steps, which share nothing with derived programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Weights = dict[str, Any]


def descended(
    outputs: Callable[[Weights], Any],
    weights: Weights,
    targets: Any,
    numbers: Mapping[str, float],
    steps: int,
) -> Any:
    """Return outputs along ``theta -= eta gamma0^2 N grad(loss)`` of half the square loss, N entries of w."""
    size = weights["w"].shape[-1] * numbers["eta"] * numbers["gamma0"] ** 2
    seen = [outputs(weights)]
    for _ in range(steps):
        after = dict(weights)
        for name, value in weights.items():
            slope = np.zeros_like(value)
            for at in np.ndindex(value.shape):
                moved = value.astype(complex)
                moved[at] += 1e-30j
                slope[at] = ((targets - outputs({**weights, name: moved})) ** 2).sum().imag / 2e-30
            after[name] = value - size * slope
        weights = after
        seen.append(outputs(weights))
    return np.array(seen)


def rms(h: Any) -> Any:
    """Return vectors over the root of their mean squares."""
    return h / np.sqrt((h**2).mean(axis=-1, keepdims=True))


def layer_norm(h: Any) -> Any:
    """Return vectors less their means, over their standard deviations."""
    return rms(h - h.mean(axis=-1, keepdims=True))


def softmax(z: Any, axis: int = -1) -> Any:
    """Return shares that are proportional to exponentials."""
    weights = np.exp(z)
    return weights / weights.sum(axis=axis, keepdims=True)
