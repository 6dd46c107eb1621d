"""Derived theories of the experiments of the table, and observables as functions of order parameters.

Input are a training of the table and covariances and shifts of order parameters, found by any method; output
are limits, ``N Var`` and ``N (mean - limit)`` of outputs, losses and kernels.  An observable is a polynomial
of second degree ``O = sum_k w_k q_i q_j``, so that with the covariance C and the shift m of order parameters
``N Var O = grad O . C . grad O`` and ``N (mean - limit) = grad O . m + sum_k w_k C_ij``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.fluctuations.expanded_problem import lowered
from numerics.fluctuations.lowered import CONSTANT, LoweredFluctuations
from numerics.solver.grid import TimeGrid

from .isotropic import Isotropic
from .networks import Training

Array = NDArray[Any]


class Moments(Protocol):
    """Order parameters (n,), N times their covariance (n, n) and N times their shift (n,)."""

    @property
    def values(self) -> Array:
        """Order parameters (n,)."""
        ...

    @property
    def covariance(self) -> Array:
        """N times the covariance of the order parameters, (n, n)."""
        ...

    @property
    def shift(self) -> Array:
        """N times the shift of the order parameters, (n,)."""
        ...


# -- theories ----------------------------------------------------------------------------------------------


def experiment_of(training: Training | Isotropic) -> Experiment:
    """Return the experiment file of a training."""
    if isinstance(training, Isotropic):
        return Experiment.from_dict(
            {
                "network": {
                    "depth": training.depth,
                    "gamma0": training.gamma0,
                    "width_ratio": training.ratio,
                },
                "data": {
                    "kind": "isotropic",
                    "batch_ratio": training.batch_ratio,
                    "noise": training.noise,
                },
                "training": {
                    "rule": "sgd",
                    "learning_rate": training.eta,
                    "steps": training.steps,
                    "center": training.centred,
                },
            }
        )
    rule: dict[str, Any] = {"learning_rate": training.eta, "steps": training.steps}
    rule |= {"momentum": training.momentum, "weight_decay": training.weight_decay}
    if training.substeps:
        rule = {"rule": "flow", "time": training.eta * training.steps, "points": training.steps + 1}
    network = {x: getattr(training, x) for x in ("depth", "activation", "gamma0", "bias")}
    rule |= {"loss": "sum", "center": training.centred}
    return Experiment.from_dict(
        {"network": network, "training": rule}, kernel=training.kernel, targets=training.targets
    )


def arrays_of(training: Training | Isotropic, substeps: int = 0) -> LoweredFluctuations:
    """Return the fluctuations of the networks of a training as arrays.

    A flow is integrated by ``substeps`` steps of Runge and Kutta between two outputs, as networks are.
    """
    grid = stage_grid(training.eta, training.steps, substeps) if substeps else None
    return lowered(Problem.of(experiment_of(training)), grid)


def stage_grid(interval: float, steps: int, substeps: int) -> TimeGrid:
    """Return times and weights of Runge and Kutta's rule of fourth order: four stages a step, and the end."""
    h = interval / substeps
    count = 4 * steps * substeps + 1
    weights, done, nodes = np.zeros((count, count)), np.zeros(count), np.zeros(count)
    for start in range(0, count, 4):
        weights[start : start + 4] = done
        if start + 4 < count:
            weights[start + 1, start] = weights[start + 2, start + 1] = h / 2
            weights[start + 3, start + 2] = h
            nodes[start : start + 4] = start / 4 * h + np.array([0, h / 2, h / 2, h])
            done[start : start + 4] = h / 6 * np.array([1, 2, 2, 1])
    nodes[-1] = steps * interval
    return TimeGrid(nodes, weights, np.arange(0, count, 4 * substeps), 4)


# -- observables -------------------------------------------------------------------------------------------


def numbers_of(lowered: LoweredFluctuations, name: str, *arguments: Any) -> Array:
    """Return the numbers of order parameters, of the shape of their arguments together."""
    (key,) = (x for x in lowered.names if x[0] == name)
    found = lowered.parameters.find(key, np.broadcast_arrays(*arguments))
    assert (found >= 0).all(), f"{name} does not exist at all of these arguments"
    return np.asarray(found)


@dataclass(frozen=True)
class Observable:
    """A polynomial of second degree in order parameters, entry by entry.

    Each of ``terms`` is a weight with the numbers of two order parameters, all of one shape; the second
    number is -1 where there is one order parameter alone.
    """

    terms: Sequence[tuple[Array, Array, Array]]

    @classmethod
    def linear(cls, numbers: Array) -> Observable:
        """Return order parameters as they are."""
        return cls([(np.ones(numbers.shape), numbers, np.full(numbers.shape, CONSTANT))])

    @classmethod
    def sum_of(cls, *terms: tuple[Any, Array, Array | None]) -> Observable:
        """Return a sum of terms, of which the second order parameter may be None."""
        whole = []
        for weight, first, second in terms:
            other = np.full(first.shape, CONSTANT) if second is None else second
            whole.append((np.asarray(weight, float), first, other))
        shape = np.broadcast_shapes(*(x.shape for term in whole for x in term))
        return cls([tuple(np.broadcast_to(x, shape) for x in term) for term in whole])  # type: ignore[misc]

    def limit(self, moments: Moments) -> Array:
        """Return the value at infinite width."""
        q = np.append(moments.values, 1.0)  # CONSTANT is the last one
        return np.asarray(sum(w * q[i] * q[j] for w, i, j in self.terms))

    def _slopes(self, moments: Moments) -> list[tuple[Array, Array]]:
        """Return derivatives, each with the number of an order parameter."""
        q = np.append(moments.values, 1.0)
        found = [(w * q[j], i) for w, i, j in self.terms]
        return found + [(np.where(j == CONSTANT, 0.0, w * q[i]), j) for w, i, j in self.terms]

    def scaled_variance(self, moments: Moments) -> Array:
        """Return N times the variance."""
        slopes, C = self._slopes(moments), moments.covariance
        return np.asarray(sum(a * b * C[i, j] for a, i in slopes for b, j in slopes))

    def scaled_shift(self, moments: Moments) -> Array:
        """Return N times the mean minus the limit."""
        shift, C = moments.shift, moments.covariance
        curved = sum(np.where(j == CONSTANT, 0.0, w * C[i, j]) for w, i, j in self.terms)
        return np.asarray(curved + sum(a * shift[i] for a, i in self._slopes(moments)))


def observables(
    training: Training | Isotropic, lowered: LoweredFluctuations, times: Sequence[int]
) -> dict[str, Observable]:
    """Return the observables of ``networks.train`` or ``train_isotropic`` at some times, in their shapes."""
    t = np.array(times)
    if isinstance(training, Isotropic):
        layer = np.arange(1, training.depth + 1)
        found = {x: numbers_of(lowered, x, t, t) for x in ("C_v", "C_Delta", "C_h0")}
        found |= {x: numbers_of(lowered, x, layer, t[:, None], t[:, None]) for x in ("C_h", "C_g")}
        return {name: Observable.linear(x) for name, x in found.items()}
    sample = np.arange(1, len(training.targets) + 1)
    error = numbers_of(lowered, "Delta", sample, t[:, None])
    H, G = kernel_numbers(training, lowered, t, t)
    tangent = [(training.kernel, G[:, 0], None), (1.0, H[:, -1], None)]
    tangent += [(1.0, G[:, k + 1], H[:, k]) for k in range(training.depth - 1)]
    if training.bias:
        tangent += [(1.0, G[:, k], None) for k in range(training.depth)]
    return {
        "f": Observable.linear(numbers_of(lowered, "f", sample, t[:, None])),
        "loss": Observable.sum_of(*[(0.5, x, x) for x in error.T]),
        "Phi": Observable.linear(H),
        "G": Observable.linear(G),
        "tangent_kernel": Observable.sum_of(*tangent),
    }


def kernel_numbers(
    training: Training, lowered: LoweredFluctuations, t: Array, s: Array
) -> tuple[Array, Array]:
    """Return the numbers of Phi (T, L, P, P) and of G, (T, L, 1, 1) in linear networks, at pairs of times."""
    sample = np.arange(1, len(training.targets) + 1)
    layer = np.arange(1, training.depth + 1)[:, None, None]
    t, s = t[:, None, None, None], s[:, None, None, None]
    pair = sample[:, None], sample
    H = numbers_of(lowered, "H" if training.is_linear else "Phi", layer, *pair, t, s)
    G = numbers_of(lowered, "G", layer, *(() if training.is_linear else pair), t, s)
    return H, G
