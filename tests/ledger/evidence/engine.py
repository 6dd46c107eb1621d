"""Numbers from the engine: the derived theory of a deep linear network, marched on a small grid.

Every run uses the multistep rule, whose weights w(t, s) cover exact gradient descent (the rate below the
diagonal) and discretised flows alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from derive.program import L, P, gamma0
from derive.theory import Theory
from numerics.lowering import lower
from numerics.lowering.table import FieldAtLayer
from numerics.solver.linear.march import March, march
from tests.derive.once import mean_field, mlp
from tests.numerics.solver.helpers import tangent

Array = NDArray[np.float64]

NODES = 8
"""Couplings at which a derivative in gamma0^2 is sampled: the polynomial through them has degree 7."""


@dataclass(frozen=True)
class Solved:
    """Order parameters on a grid of T times.

    ``H[l]`` (T,P,T,P), l = 0..L; ``G[l]`` (T,T), l = 1..L+1 (0 is unused); ``A[l]`` (T,P,T) and ``B[l]``
    (T,T,P), l = 0..L, with zero ends; ``error`` (T,P).
    """

    gamma0: float
    H: tuple[Array, ...]
    G: tuple[Array, ...]
    A: tuple[Array, ...]
    B: tuple[Array, ...]
    error: Array

    @property
    def depth(self) -> int:
        """Number of hidden layers."""
        return len(self.H) - 1

    @property
    def tangent(self) -> Array:
        """The tangent kernel as the theory defines it, shape (T,P,T,P)."""
        layers, T = range(1, self.depth + 1), len(self.error)
        tensors: dict[FieldAtLayer, Array] = {("H", k): self.H[k].transpose(1, 3, 0, 2) for k in layers}
        tensors |= {("G", k): self.G[k] for k in layers}
        data = {"K_x": np.asarray(self.H[0][0, :, 0, :])}
        value = tangent(theory_at(self.depth).observables[0], tensors, data, {gamma0: self.gamma0})
        order = np.broadcast_to(value, (T, T, *value.shape[2:]))
        return np.asarray(order.transpose(0, 2, 1, 3))

    def dataset(self, times: Array) -> xr.Dataset:
        """Return the solution as a dataset for ``numerics.verification.compare``."""
        order = (0, 2, 1, 3)
        axes = ("time", "time_", "sample", "sample_")
        return xr.Dataset(
            {
                "train_loss": ("time", np.mean(self.error**2, axis=1)),
                "Phi": (("layer", *axes), np.stack([x.transpose(order) for x in self.H[1:]])),
                "G": (("layer", *axes[:2]), np.stack(self.G[1 : self.depth + 1])),
                "tangent_kernel": (axes, self.tangent.transpose(order)),
            },
            coords={
                "layer": np.arange(1, self.depth + 1),
                "time": times,
                "sample": np.arange(self.error.shape[1]),
            },
        )


def steps_of(rate: float, count: int) -> Array:
    """Return w(t, s) of gradient descent at times 0..count-1.

    >>> steps_of(0.5, 3).tolist()
    [[0.0, 0.0, 0.0], [0.5, 0.0, 0.0], [0.5, 0.5, 0.0]]
    """
    return np.tril(np.full((count, count), float(rate)), -1)


@lru_cache(maxsize=64)
def theory_at(depth: int, tied: bool = True) -> Theory:
    """Return the theory of the multistep rule at integer depth.

    With ``tied`` False the backward matrices are independent.
    """
    return mean_field(mlp(L, "linear", "multistep", tied=tied)).at_depth(depth)


def marched(
    kernel: Array, targets: Array, weights: Array, *, depth: int, gamma: float, tied: bool = True
) -> March:
    """Return the engine's march; order parameters of all layers are kept."""
    layers = range(1, depth + 1)
    return march(
        lower(theory_at(depth, tied)),
        steps=len(weights),
        constants={gamma0: float(gamma), P: float(len(targets))},
        data={"K_x": kernel, "y": targets, "w": weights},
        wanted=tuple((name, k) for name in "HG" for k in layers),
    )


def solved(
    kernel: Array, targets: Array, weights: Array, *, depth: int, gamma: float, tied: bool = True
) -> Solved:
    """Return the solution with the values at both ends of the network."""
    run = marched(kernel, targets, weights, depth=depth, gamma=gamma, tied=tied)
    T, n = len(weights), len(targets)
    layers = range(1, depth + 1)
    H = [np.broadcast_to(kernel[None, :, None, :], (T, n, T, n)), *(run.tensor(("H", k)) for k in layers)]
    G = [np.full((T, T), np.nan), *(run.tensor(("G", k))[:, 0, :, 0] for k in layers), np.ones((T, T))]
    A = [np.zeros((T, n, T)) for _ in range(depth + 1)]
    B = [np.zeros((T, T, n)) for _ in range(depth + 1)]
    if tied:
        for k in range(1, depth):
            A[k] = run.response(("h", k), ("r", k))[..., 0] / gamma
            B[k] = run.response(("g", k + 1), ("u", k + 1))[:, 0] / gamma
    return Solved(gamma, tuple(H), tuple(G), tuple(A), tuple(B), run.scalars["Delta"])


@dataclass(frozen=True)
class Orders:
    """Orders gamma0^0 and gamma0^2 of the order parameters; same shapes as in :class:`Solved`.

    ``uncertainty`` is the change of the second order when the polynomial loses a degree.
    """

    error: Array
    H: tuple[Array, ...]
    G: tuple[Array, ...]
    tangent: Array
    uncertainty: float


def orders(
    kernel: Array, targets: Array, weights: Array, *, depth: int, tied: bool = True, reach: float = 0.02
) -> Orders:
    """Return derivatives in gamma0^2 at zero, from marches at Chebyshev points of (0, ``reach``]."""
    points = reach * (1 + np.cos(np.pi * (np.arange(NODES) + 0.5) / NODES)) / 2
    runs = [solved(kernel, targets, weights, depth=depth, gamma=float(np.sqrt(x)), tied=tied) for x in points]

    def second(pick: Callable[[Solved], Array]) -> tuple[Array, float]:
        values = np.stack([pick(r) for r in runs])
        best = _coefficient(points, values, 1)
        less = _coefficient(points[1:], values[1:], 1)
        return best, float(np.max(np.abs(best - less)))

    H = [second(lambda r, k=k: r.H[k]) for k in range(depth + 1)]  # type: ignore[misc]
    G = [second(lambda r, k=k: r.G[k]) for k in range(1, depth + 2)]  # type: ignore[misc]
    K = second(lambda r: r.tangent)
    return Orders(
        error=_coefficient(points, np.stack([r.error for r in runs]), 0),
        H=tuple(x for x, _ in H),
        G=(np.full_like(weights, np.nan), *(x for x, _ in G)),
        tangent=K[0],
        uncertainty=max(e for _, e in (*H, *G, K)),
    )


def _coefficient(points: Array, values: Array, power: int) -> Array:
    """Return the coefficient of x^power of the polynomial through the values."""
    scale = float(points.max())
    vandermonde = np.vander(points / scale, increasing=True)
    flat = np.linalg.solve(vandermonde, values.reshape(len(points), -1))
    return np.asarray(flat[power].reshape(values.shape[1:]) / scale**power)
