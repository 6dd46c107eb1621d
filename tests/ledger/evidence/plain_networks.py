"""One deep linear network trained by descent on a sum of squared errors.

h^1 = W^0 x/sqrt(D), h^{l+1} = W^l h^l/sqrt(N), f = w . h^L/(gamma0 N); every entry is N(0,1) at the start;
g^l = gamma0 N df/dh^l.  A step of size ``rate`` adds -rate gamma0^2 N times the gradient of
(1/2) sum_mu Delta_mu^2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import autograd.numpy as anp
import numpy as np

from tests.ledger.evidence.lab import Array, Weights, descend, gradients, layers


@dataclass(frozen=True)
class Plain:
    """Weights of one network: ``weights`` = (W^0 (N,D), W^1 (N,N), ..., W^{L-1}, w (N,))."""

    weights: Weights
    gamma0: float

    @property
    def width(self) -> int:
        """Number of units of a hidden layer."""
        return len(self.weights[-1])

    def flipped(self, sign: float) -> Plain:
        """Return the network with the sign of its readout."""
        return Plain((*self.weights[:-1], sign * self.weights[-1]), self.gamma0)

    def with_weights(self, weights: Weights) -> Plain:
        """Return the network with other weights."""
        return Plain(weights, self.gamma0)


@dataclass(frozen=True)
class History:
    """Fields at all steps: ``h`` (L,T,P,N), ``g`` (L,T,N), ``f`` (T,P)."""

    h: Array
    g: Array
    f: Array


def drawn(inputs: int, depth: int, width: int, gamma0: float, rng: np.random.Generator) -> Plain:
    """Return a network with initial weights N(0,1)."""
    matrices = [rng.standard_normal((size, width)).T for size in [inputs] + [width] * (depth - 1)]
    return Plain((*matrices, rng.standard_normal(width)), gamma0)


def forward(p: Plain, inputs: Array, kicks: Mapping[int, Any] | None = None) -> list[Any]:
    """Return [x, h^1, ..., h^L], shapes (P,D), (P,N), ...; ``kicks`` are added to fields, by layer."""
    if not kicks:
        return layers(p.weights[:-1], inputs)
    fields = [inputs]
    for layer, matrix in enumerate(p.weights[:-1], 1):
        fields.append(layers((matrix,), fields[-1])[-1] + kicks.get(layer, 0.0))
    return fields


def backward(p: Plain) -> list[Array]:
    """Return [g^1, ..., g^L], each (N,), the same for every input of a linear network."""
    nothing = np.zeros((1, p.weights[0].shape[1]))
    kicks = tuple(np.zeros(len(w)) for w in p.weights[:-1])

    def pushed(by: Weights) -> Any:
        return p.gamma0 * p.width * output(p, forward(p, nothing, dict(enumerate(by, 1))))[0]

    return list(gradients(pushed, kicks))


def output(p: Plain, fields: Sequence[Any]) -> Any:
    """Return f = w . h^L/(gamma_0 N), shape (P,)."""
    return anp.dot(fields[-1], p.weights[-1]) / (p.gamma0 * p.width)


def outputs(p: Plain, inputs: Array) -> Any:
    """Return f of a forward pass, shape (P,)."""
    return output(p, forward(p, inputs))


def trained(p: Plain, inputs: Array, targets: Array, rate: float, steps: int) -> History:
    """Return the network after 0..steps steps."""

    def loss(weights: Weights) -> Any:
        return anp.sum((targets - outputs(p.with_weights(weights), inputs)) ** 2) / 2

    seen = [p.with_weights(w) for w in descend(loss, p.weights, rate * p.gamma0**2 * p.width, steps)]
    fields = [forward(x, inputs) for x in seen]
    return History(
        np.stack([np.stack(h[1:]) for h in fields], 1),
        np.stack([np.stack(backward(x)) for x in seen], 1),
        np.stack([output(x, h) for x, h in zip(seen, fields, strict=True)]),
    )


def train_network(  # noqa: PLR0913 (the settings of one experiment)
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
    """Return one network of ``width`` N and ``depth`` L hidden layers after 0..steps steps.

    >>> run = train_network(np.eye(2), np.ones(2), depth=2, gamma0=1.0, width=8, rate=0.1, steps=3, rng=0)
    >>> run.h.shape, run.g.shape, run.f.shape
    ((2, 4, 2, 8), (2, 4, 8), (4, 2))
    """
    start = drawn(inputs.shape[1], depth, width, gamma0, np.random.default_rng(rng))
    return trained(start, inputs, targets, rate, steps)
