"""One deep linear network by hand: explicit matrices, an explicit forward and backward pass, exact descent.

Independent of the simulator, which reads programs: h^1 = W^0 x/sqrt(D), h^{l+1} = W^l h^l/sqrt(N),
f = w . h^L/(gamma_0 N), every entry N(0,1) at the start; g^L = w, g^l = W^{l T} g^{l+1}/sqrt(N).  A step of
size ``rate`` adds -rate gamma_0^2 N times the gradient of (1/2) sum_mu Delta_mu^2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass
class Parameters:
    """Weights of one network: ``matrices`` = [W^0 (N,D), W^1 (N,N), ..., W^{L-1}], ``readout`` = w (N,)."""

    matrices: list[Array]
    readout: Array
    gamma0: float

    @property
    def width(self) -> int:
        return len(self.readout)

    def copy(self, readout_sign: float = 1.0) -> Parameters:
        """An independent copy, with the sign of the readout flipped if asked."""
        return Parameters([m.copy() for m in self.matrices], readout_sign * self.readout, self.gamma0)


@dataclass(frozen=True)
class History:
    """Fields at all steps: ``h`` (L,T,P,N), ``g`` (L,T,N), ``f`` (T,P)."""

    h: Array
    g: Array
    f: Array


def draw_parameters(
    inputs: int, depth: int, width: int, gamma0: float, rng: np.random.Generator
) -> Parameters:
    """Weights at the start, all entries N(0,1)."""
    matrices = [rng.standard_normal((size, width)).T for size in [inputs] + [width] * (depth - 1)]
    return Parameters(matrices, rng.standard_normal(width), gamma0)


def forward(p: Parameters, inputs: Array, kicks: Mapping[int, Array] | None = None) -> list[Array]:
    """[x, h^1, ..., h^L], shapes (P,D), (P,N), ...; ``kicks`` are added to fields, by layer."""
    fields = [inputs]
    for layer, matrix in enumerate(p.matrices, 1):
        pushed = 0.0 if kicks is None else kicks.get(layer, 0.0)
        fields.append(fields[-1] @ matrix.T / np.sqrt(matrix.shape[1]) + pushed)
    return fields


def backward(p: Parameters) -> list[Array]:
    """[g^1, ..., g^L], each (N,)."""
    fields = [p.readout]
    for matrix in p.matrices[:0:-1]:
        fields.append(matrix.T @ fields[-1] / np.sqrt(p.width))
    return fields[::-1]


def output(p: Parameters, fields: Sequence[Array]) -> Array:
    """f = w . h^L/(gamma_0 N), shape (P,)."""
    return np.asarray(fields[-1] @ p.readout / (p.gamma0 * p.width))


def descend(p: Parameters, inputs: Array, targets: Array, rate: float, steps: int) -> History:
    """Train from the weights ``p``, which are overwritten."""
    record: list[tuple[list[Array], list[Array], Array]] = []
    for step in range(steps + 1):
        below, above = forward(p, inputs), backward(p)
        f = output(p, below)
        record.append((below[1:], above, f))
        if step == steps:
            break
        pulled = [rate * p.gamma0 * (targets - f) @ x for x in below]
        for matrix, left, right in zip(p.matrices, above, pulled, strict=False):
            matrix += np.outer(left, right) / np.sqrt(matrix.shape[1])
        p.readout = p.readout + pulled[-1]
    hs, gs, fs = zip(*record, strict=True)
    return History(
        np.stack([np.stack(x) for x in hs], 1), np.stack([np.stack(x) for x in gs], 1), np.stack(fs)
    )


def train_network(
    inputs: Array,
    targets: Array,
    *,
    depth: int,
    gamma0: float,
    width: int,
    rate: float,
    steps: int,
    rng: int | np.random.Generator,
) -> History:
    """One network of ``width`` N and ``depth`` L hidden layers after 0..steps steps.

    >>> run = train_network(np.eye(2), np.ones(2), depth=2, gamma0=1.0, width=8, rate=0.1, steps=3, rng=0)
    >>> run.h.shape, run.g.shape, run.f.shape
    ((2, 4, 2, 8), (2, 4, 8), (4, 2))
    """
    start = draw_parameters(inputs.shape[1], depth, width, gamma0, np.random.default_rng(rng))
    return descend(start, inputs, targets, rate, steps)
