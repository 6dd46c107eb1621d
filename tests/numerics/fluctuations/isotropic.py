"""Finite linear networks trained online on isotropic data, many at once, for the theory of finite width.

Input are depth, ratios of sizes and the learning rate; output are the correlations of every network at
every time step, with control variates.  The module uses NumPy only and nothing of `derive` and `numerics`,
because the tests hold the corrections of finite width that these packages derive for `isotropic(depth,
data="online")` against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .estimates import Samples
from .networks import CHUNK_BYTES, chunks

Array = NDArray[Any]


@dataclass(frozen=True)
class Isotropic:
    """Deep linear networks that see ``P = batch_ratio D`` new samples ``x ~ N(0, I_D)`` at each step.

    With D features, ``N = ratio D`` units in each of L hidden layers and
    ``y = w_star . x / sqrt(D) + noise eps``,

        v = w_star - sqrt(D) W^0^T g^1 / (N gamma0),    Delta = X v / sqrt(D) + noise eps,
        h^0 = sqrt(D) X^T Delta / P,    h^1 = W^0 h^0 / sqrt(D),    h^{l+1} = W^l h^l / sqrt(N),
        g^L = w,    g^l = W^l^T g^{l+1} / sqrt(N),
        W^0 += eta gamma0 g^1 h^0^T / sqrt(D),    W^l += eta gamma0 g^{l+1} h^l^T / sqrt(N),
        w += eta gamma0 h^L.

    Attributes
    ----------
    depth : int
        Number of hidden layers L.
    ratio, batch_ratio : float
        Units of a hidden layer, and samples of a step, over features.
    eta : float
        Learning rate.
    steps : int
        Number of steps; results hold the times 0, ..., steps.
    gamma0 : float
        Strength of feature learning.
    noise : float
        Standard deviation of the noise of labels.
    centred : bool
        Subtract the initial function.
    whole_batches : bool
        Draw the matrix X.  Otherwise Delta and h^0 are drawn from their exact law given v, which is quicker.
    """

    depth: int
    ratio: float
    batch_ratio: float
    eta: float
    steps: int
    gamma0: float = 1.0
    noise: float = 0.0
    centred: bool = False
    whole_batches: bool = False


def train_isotropic(
    training: Isotropic, features: int, count: int, seed: int, *, dtype: Any = np.float32
) -> Samples:
    """Train independent networks on new isotropic data at each step.

    Parameters
    ----------
    training : Isotropic
        Architecture, data and rule.
    features : int
        Dimension D of the inputs, the reference size of the theory; the entries of ``w_star`` are N(0, 1).
    count : int
        Number of networks.
    seed : int
        Seed of initial weights, targets and data.
    dtype : dtype
        Type of the weights.

    Returns
    -------
    Samples
        ``C_v = |v|^2 / D``, ``C_Delta = |Delta|^2 / P``, ``C_h0 = |h^0|^2 / D`` (count, T), and ``C_h`` and
        ``C_g``, ``|h^l|^2 / N`` and ``|g^l|^2 / N`` (count, T, L), with T = steps + 1.  ``width`` is D.
    """
    rng = np.random.Generator(np.random.SFC64(seed))
    largest = features**2 * max(training.ratio, training.ratio**2, 1 / features)
    size = np.dtype(dtype).itemsize * largest
    series: list[dict[str, Array]] = []
    controls: list[Array] = []
    for part in chunks(count, max(1, int(CHUNK_BYTES / size))):
        networks = _Chunk(training, features, part, rng, dtype)
        series.append(networks.run())
        controls.append(np.stack(networks.controls, axis=1))
    values = {name: np.concatenate([x[name] for x in series]) for name in series[0]}
    return Samples(features, values, np.concatenate(controls), float(np.finfo(dtype).eps))


def _product(x: Array, y: Array) -> Array:
    """Return ``x . y`` over the number of entries, of (count, size, 1): shape (count,)."""
    return np.asarray((x[:, :, 0].astype(float) * y[:, :, 0]).mean(axis=1))


class _Chunk:
    """A chunk of networks in training, with the control variates that it meets on its way.

    A control has mean zero at every size: a function of the initial weights, or of a new batch given the
    past, ``E C_Delta = C_v + noise^2``, ``E h^0 = v`` and ``E C_h0 = (1 + (D + 1) / P) C_v + noise^2 D /
    P``.
    """

    def __init__(self, training: Isotropic, D: int, count: int, rng: np.random.Generator, dtype: Any) -> None:
        self.training, self.rng, self.dtype = training, rng, dtype
        self.count, self.D = count, D
        self.N, self.P = round(training.ratio * D), round(training.batch_ratio * D)
        sizes = [D, *[self.N] * training.depth]
        self.W = [self.normal(b, a) for a, b in pairwise(sizes)]
        self.w, self.w_star = self.normal(self.N, 1), self.normal(D, 1)
        self.first = np.zeros((1, D, 1), dtype)
        self.controls: list[Array] = []

    def normal(self, *shape: int) -> Array:
        """Draw standard normal numbers, (count, *shape)."""
        return self.rng.standard_normal((self.count, *shape), dtype=self.dtype)

    def run(self) -> dict[str, Array]:
        """Train, and return the observables, (count, T, ...)."""
        seen = [self.step(t == 0) for t in range(self.training.steps + 1)]
        return {name: np.stack([x[name] for x in seen], axis=1) for name in seen[0]}

    def step(self, initial: bool) -> dict[str, Array]:
        """Measure the observables, (count, ...), then update the weights."""
        training, D, N, gamma0 = self.training, self.D, self.N, self.training.gamma0
        g = [self.w]
        for matrix in self.W[:0:-1]:
            g.insert(0, matrix.swapaxes(1, 2) @ g[0] / N**0.5)
        function = self.W[0].swapaxes(1, 2) @ g[0] * (D**0.5 / (N * gamma0))
        if initial:
            self.initial_controls(g, function)
        if initial and training.centred:
            self.first = function
        v = self.w_star - function + self.first
        Delta, h0 = self.whole_batch(v) if training.whole_batches else self.batch(v)
        h = [h0]
        for matrix in self.W:
            h.append(matrix @ h[-1] / matrix.shape[2] ** 0.5)
        now = {"C_v": _product(v, v), "C_Delta": _product(Delta, Delta), "C_h0": _product(h0, h0)}
        now["C_h"] = np.stack([_product(x, x) for x in h[1:]], axis=1)
        now["C_g"] = np.stack([_product(x, x) for x in g], axis=1)
        self.controls.append(now["C_Delta"] - now["C_v"] - training.noise**2)
        mean = (1 + (D + 1) / self.P) * now["C_v"] + training.noise**2 * D / self.P
        self.controls.append(now["C_h0"] - mean)
        self.controls.append(_product(h0 - v, self.w_star))
        for matrix, left, right in zip(self.W, g, h[:-1], strict=True):
            matrix += left * (training.eta * gamma0 / matrix.shape[2] ** 0.5 * right.swapaxes(1, 2))
        self.w = self.w + training.eta * gamma0 * h[-1]
        return now

    def initial_controls(self, g: list[Array], function: Array) -> None:
        """Add statistics of the initial weights with mean zero."""
        norms = [_product(x, x) for x in g]
        above = [*norms[1:], np.ones(self.count)]
        self.controls += [a - b for a, b in zip(norms, above, strict=True)]
        size = _product(function, function) - norms[0] * self.D / (self.N * self.training.gamma0**2)
        self.controls += [size, _product(function, self.w_star), _product(self.w_star, self.w_star) - 1]

    def whole_batch(self, v: Array) -> tuple[Array, Array]:
        """Draw a batch, and return Delta and h^0."""
        X = self.normal(self.P, self.D)
        Delta = X @ v / self.D**0.5 + self.training.noise * self.normal(self.P, 1)
        return Delta, X.swapaxes(1, 2) @ Delta * (self.D**0.5 / self.P)

    def batch(self, v: Array) -> tuple[Array, Array]:
        """Draw Delta and h^0 given v.

        ``X v / |v|`` is normal, and ``X^T Delta`` across v is normal with the deviation ``|Delta|``.
        """
        size = np.sqrt((v**2).sum(axis=1, keepdims=True))
        unit, along, across = v / size, self.normal(self.P, 1), self.normal(self.D, 1)
        Delta = along * size / self.D**0.5
        if self.training.noise:
            Delta = Delta + self.training.noise * self.normal(self.P, 1)
        across -= unit * (unit * across).sum(axis=1, keepdims=True)
        across *= np.sqrt((Delta**2).sum(axis=1, keepdims=True))
        return Delta, (unit * (along * Delta).sum(axis=1, keepdims=True) + across) * (self.D**0.5 / self.P)
