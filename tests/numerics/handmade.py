"""A network with one hidden layer, trained in NumPy alone, whose numbers all may depend on the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Weights = tuple[Array, Array]
Number = Callable[[int], float]
Rows = Callable[[int], Array]


@dataclass(frozen=True)
class Handmade:
    """``h = W x``, ``f = branch w . tanh(slope h)/(gamma0 N)`` (or linear), ``loss = cost (y - f)^2/2``.

    ``W += rate Delta g x^T/D``, ``w += rate Delta branch tanh(slope h)`` with ``Delta = cost (y - f)`` and
    ``g = branch slope w tanh'``: gradient descent on raw weights of mean-field parametrization.  The rule is
    ``W(t) = left(t) W(0) + sum_s kept(t, s) U(s)``, from all updates so far.
    """

    inputs: Array
    targets: Rows
    kept: Callable[[int, int], float]
    left: Number = lambda t: 1.0
    linear: bool = False
    gamma0: float = 1.0
    slope: Number = lambda t: 1.0
    branch: Number = lambda t: 1.0
    cost: Rows = lambda t: np.ones(1)
    rate: Number = lambda t: 1.0

    def draw(self, width: int, rng: np.random.Generator) -> Weights:
        """Return initial weights, as they are applied."""
        count = self.inputs.shape[1]
        return rng.standard_normal((width, count)) / np.sqrt(count), rng.standard_normal(width)

    def train(self, start: Weights, steps: int) -> Array:
        """Return the outputs f at steps 0..steps, (steps + 1, P)."""
        W0, w0 = W, w = start
        updates: list[Weights] = []
        outputs, width, count = [], len(w0), self.inputs.shape[1]
        for t in range(steps + 1):
            pre = self.inputs @ W.T
            a, b = self.slope(t), self.branch(t)
            phi = a * pre if self.linear else np.tanh(a * pre)
            slope = a * np.ones_like(pre) if self.linear else a * (1 - phi**2)
            f = b * phi @ w / (self.gamma0 * width)
            outputs.append(f)
            if t == steps:
                break
            error = self.rate(t) * self.cost(t) * (self.targets(t) - f)
            moved = self.gamma0 * (error[:, None] * b * slope * w).T @ self.inputs / count
            updates.append((moved, self.gamma0 * b * error @ phi))
            shares = [self.kept(t + 1, s) for s in range(t + 1)]
            W = self.left(t + 1) * W0 + sum(k * u[0] for k, u in zip(shares, updates, strict=True))
            w = self.left(t + 1) * w0 + sum(k * u[1] for k, u in zip(shares, updates, strict=True))
        return np.array(outputs)

    def wide(self, steps: int, widths: Sequence[int], seeds: int) -> tuple[Array, Array]:
        """Return mean outputs without their part of order 1/N, from two widths, and their standard errors."""
        means, errors = [], []
        for width in widths:
            rng = np.random.default_rng(width)
            found = np.array([self.train(self.draw(width, rng), steps) for _ in range(seeds)])
            means.append(found.mean(axis=0))
            errors.append(found.std(axis=0, ddof=1) / np.sqrt(seeds))
        small, large = widths
        share = large / (large - small)
        return share * means[1] + (1 - share) * means[0], np.hypot(share * errors[1], (1 - share) * errors[0])
