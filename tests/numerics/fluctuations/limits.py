"""Limits of infinite width for networks on fixed data, independent of `derive` and `numerics`.

Input is a training of ``networks``; output are its observables at infinite width.  Deep linear networks are
solved by the dense reference of ``tests/reference``, one hidden layer of any activation by quadrature over
its units.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.reference.dense_causal import dense_causal

from .networks import ACTIVATIONS, Training

Array = NDArray[Any]


def linear_limit(training: Training) -> dict[str, Array]:
    """Return f, losses and kernels of a deep linear network at infinite width, (T, ...) as in ``train``.

    A flow is the limit of small steps, by Richardson's extrapolation of Euler's method.
    """
    if training.momentum or training.weight_decay or training.bias or not training.is_linear:
        raise ValueError("the limit is known for plain descent and flow of linear networks without biases")
    if not training.substeps:
        return _steps_limit(training)
    table: list[list[dict[str, Array]]] = []
    for level in range(4):
        parts = 2 ** (level + 1)
        fine = replace(training, eta=training.eta / parts, steps=training.steps * parts, substeps=0)
        row = [{name: x[::parts] for name, x in _steps_limit(fine).items()}]
        for k in range(level):
            row.append({n: x + (x - table[-1][k][n]) / (2 ** (k + 1) - 1) for n, x in row[k].items()})
        table.append(row)
    return table[-1][-1]


def _steps_limit(training: Training) -> dict[str, Array]:
    """Return the limit for steps of gradient descent."""
    weights = training.eta * np.tril(np.ones((training.steps + 1,) * 2), -1)
    kernel, targets = np.asarray(training.kernel, float), np.asarray(training.targets, float)
    solution = dense_causal(kernel, targets, weights, depth=training.depth, gamma0=training.gamma0)
    now = np.arange(training.steps + 1)
    return {
        "f": solution.f,
        "loss": (solution.error**2).sum(axis=1) / 2,
        "train_loss": (solution.error**2).mean(axis=1),
        "Phi": solution.Phi[:, now, now].swapaxes(0, 1),
        "G": solution.G[:, now, now].T[:, :, None, None],
        "tangent_kernel": solution.tangent_kernel[now, now],
    }


def one_layer_limit(training: Training, points: int = 2**20) -> dict[str, Array]:
    """Return f, losses and kernels of one hidden layer, trained by steps, at infinite width, as in ``train``.

    Units are nodes (w, x_1, ..., x_P) of a quadrature with ``h = sum_k x_k inputs_k``: the trapezoidal rule
    for smooth activations, and points on a circle or sphere for relu of one or two samples, whose units keep
    their scale.  With 2^20 points Phi of relu has an error of some 1e-5, and G of two samples of 3e-4,
    because the gradient of a unit jumps.
    """
    units, weights = _units(training, points)
    phi, slope = ACTIVATIONS[training.activation]
    kernel, targets, gamma0 = np.asarray(training.kernel, float), training.targets, training.gamma0
    w, h = units[:, 0].copy(), units[:, 1:] @ training.inputs.T
    series: list[dict[str, Array]] = []
    for _ in range(training.steps + 1):
        features = phi(h)
        g = w[:, None] * slope(h, features)
        f = (weights * w) @ features / gamma0
        Phi, G = features.T @ (weights[:, None] * features), g.T @ (weights[:, None] * g)
        error = targets - f
        loss, rate = (error**2).sum(), training.eta * gamma0 * error
        now = {"f": f, "loss": loss / 2, "train_loss": loss / len(error), "Phi": Phi[None], "G": G[None]}
        series.append(now | {"tangent_kernel": Phi + kernel * G})
        w += features @ rate
        h += (g * rate) @ kernel
    return {name: np.stack([x[name] for x in series]) for name in series[0]}


def _units(training: Training, points: int) -> tuple[Array, Array]:
    """Return nodes (n, 1 + rank of the kernel) and weights (n,) of the average over units."""
    rank = training.inputs.shape[1]
    if training.activation != "relu":
        line = np.arange(-8.0, 8.01, 0.25)
        nodes = np.stack(np.meshgrid(*[line] * (1 + rank), indexing="ij"), axis=-1).reshape(-1, 1 + rank)
        weights = np.exp(-(nodes**2).sum(axis=1) / 2)
        return nodes, weights / weights.sum()
    if rank == 1:
        angle = (np.arange(points) + 0.5) * (2 * np.pi / points)
        nodes = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
        return nodes, np.full(len(nodes), 2.0 / len(nodes))
    if rank > 2:
        raise ValueError(f"rank {rank} of the kernel: relu is integrated for at most two samples")
    height = (np.arange(points) + 0.5) * (2 / points) - 1  # w is uniform on the sphere
    angle = np.arange(points) * (np.pi * (3 - 5**0.5))  # Fibonacci's lattice
    side = np.sqrt(1 - height**2)
    nodes = np.stack([height, side * np.cos(angle), side * np.sin(angle)], axis=-1)
    return nodes, np.full(len(nodes), 3.0 / len(nodes))
