"""The recorded fields of one trained network, and the kernels they define."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .parameters import Parameters

Array = NDArray[np.float64]


@dataclass(frozen=True)
class History:
    """Fields of one network at the recorded times.

    ``times`` (T,); ``h`` (L,T,P,N); ``g`` (L,T,N), equal for all samples in a linear network; ``f`` (T,P);
    ``inputs`` (P,D), ``targets`` (P,). For a flow ``integration_error`` estimates the error of the outputs
    (nan if it was not estimated) and ``refinement`` is the substep refinement used.
    """

    times: Array
    h: Array
    g: Array
    f: Array
    inputs: Array
    targets: Array
    integration_error: float = 0.0
    refinement: int = 1

    @property
    def error(self) -> Array:
        """Delta = y - f, shape (T,P)."""
        return self.targets - self.f

    @property
    def train_loss(self) -> Array:
        """Mean over samples of Delta^2, shape (T,)."""
        return np.asarray((self.error**2).mean(axis=1))

    def feature_kernel(self, layer: int) -> Array:
        """h^l_mu(t) . h^l_alpha(s)/N, shape (T,T,P,P); layer 0 is x . x/D at all times."""
        T, P = self.f.shape
        if layer == 0:
            return np.broadcast_to(self.inputs @ self.inputs.T / self.inputs.shape[1], (T, T, P, P))
        flat = self.h[layer - 1].reshape(T * P, -1)
        return np.asarray((flat @ flat.T / flat.shape[1]).reshape(T, P, T, P).transpose(0, 2, 1, 3))

    def feature_trace(self, layer: int) -> Array:
        """sum_mu h^l_mu(t) . h^l_mu(s)/N, shape (T,T)."""
        T, P = self.f.shape
        if layer == 0:
            return np.full((T, T), float((self.inputs**2).sum() / self.inputs.shape[1]))
        flat = self.h[layer - 1].reshape(T, -1)
        return np.asarray(flat @ flat.T * (P / flat.shape[1]))

    def gradient_kernel(self, layer: int) -> Array:
        """g^l(t) . g^l(s)/N, shape (T,T); layer L+1 is one."""
        if layer == len(self.g) + 1:
            return np.ones((len(self.times), len(self.times)))
        return np.asarray(self.g[layer - 1] @ self.g[layer - 1].T / self.g.shape[-1])

    def tangent_kernel(self) -> Array:
        """sum_{l=0}^{L} G^{l+1}(t,s) H^l_{mu alpha}(t,s), shape (T,T,P,P)."""
        T, P = self.f.shape
        total = np.zeros((T, T, P, P))
        for layer in range(len(self.g) + 1):
            total += self.gradient_kernel(layer + 1)[:, :, None, None] * self.feature_kernel(layer)
        return total

    def tangent_trace(self) -> Array:
        """The tangent kernel summed over equal samples, shape (T,T)."""
        layers = range(len(self.g) + 1)
        return np.asarray(sum(self.gradient_kernel(k + 1) * self.feature_trace(k) for k in layers))


@dataclass
class Recorder:
    """Arrays being filled while a network trains."""

    times: Array
    h: Array
    g: Array
    f: Array
    inputs: Array
    targets: Array

    @staticmethod
    def create(parameters: Parameters, inputs: Array, targets: Array, times: Array) -> Recorder:
        depth, width = len(parameters.matrices), parameters.width
        T, P = len(times), len(targets)
        h, g = np.empty((depth, T, P, width)), np.empty((depth, T, width))
        return Recorder(times, h, g, np.empty((T, P)), inputs, targets)

    def store(self, index: int, fields: Sequence[Array], gradients: Sequence[Array], f: Array) -> None:
        """Keep the result of ``forward`` and ``backward`` as time ``index``."""
        for layer, (h, g) in enumerate(zip(fields[1:], gradients, strict=True)):
            self.h[layer, index] = h
            self.g[layer, index] = g
        self.f[index] = f

    def history(self, integration_error: float = 0.0, refinement: int = 1) -> History:
        return History(
            self.times, self.h, self.g, self.f, self.inputs, self.targets, integration_error, refinement
        )
