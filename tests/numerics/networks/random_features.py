"""Random features: the case, and networks whose flow is known in closed form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from derive.program import networks
from tests.numerics.networks.case import Case

Array = NDArray[np.float64]


def power_law_arrays(modes: int, capacity: float = 1.5, source: float = 0.5) -> dict[str, Array]:
    """Return eigenvalues ``k^-capacity`` and targets of all modes.

    The targets are ``w_star^2 lamda = k^(-capacity source - 1)``.
    """
    k = np.arange(1.0, modes + 1)
    lamda = k**-capacity
    return {"lamda": lamda, "w_star": np.sqrt(k ** (-capacity * source - 1) / lamda)}


def random_features(modes: int, steps: int, data: str = "full-batch") -> Case:
    """Return descent on the readout of half as many features as modes.

    There are twice as many samples as modes, with noise.
    """
    given = {"full-batch": "P", "online": "B"}.get(data)
    program = networks.random_features(data=data, rule="gd", noise=given is not None)
    sizes = {} if given is None else {given: 2.0 * modes, "sigma": 0.3}
    numbers = {"eta": 0.5, "N": modes / 2, **sizes}
    width = 4 * modes
    arrays: dict[str, Any] = power_law_arrays(modes)
    return Case(program, numbers, arrays, steps, widths=(width, 2 * width), seeds=(200, 100))


def full_batch() -> Case:
    """Return the case with the same 48 samples at every step."""
    return random_features(24, 30)


def online() -> Case:
    """Return the case with 48 new samples at every step."""
    return random_features(24, 30, "online")


def population() -> Case:
    """Return the case with the mean over all inputs."""
    return random_features(24, 30, "population")


def flow(
    arrays: Mapping[str, Array], numbers: Mapping[str, float], times: Array, copies: int, rng: Any
) -> tuple[Array, Array]:
    """Return training and test loss of one network in flow, with ``copies`` of each mode, feature and sample.

    Its modes are those of the singular values S of ``G = Z sqrt(lamda) A^T``: ``r' = G^T Delta/P`` and
    ``Delta = y - G r/N`` give ``S r = N (1 - exp(-S^2 t/(N P))) y`` in the singular vectors.
    """
    rng = np.random.default_rng(rng)
    lamda, target = (np.repeat(arrays[name], copies) for name in ("lamda", "w_star"))
    N, P, sigma = (numbers[x] for x in ("N", "P", "sigma"))
    features, samples, unit = int(N) * copies, int(P) * copies, 1 / np.sqrt(copies)
    A = unit * rng.standard_normal((features, len(lamda)))
    Z = unit * rng.standard_normal((samples, len(lamda))) * np.sqrt(lamda)
    y = Z @ target + sigma * rng.standard_normal(samples)
    U, S, V = np.linalg.svd(Z @ A.T, full_matrices=False)
    learnt = -np.expm1(-(S**2) * times[:, None] / (N * P))
    r = (N * learnt * (U.T @ y) / S) @ V
    errors = y - (learnt * (U.T @ y)) @ U.T
    v = target - r @ A / N
    test = (v**2 @ lamda) / copies + sigma**2
    return np.mean(errors**2, axis=1), np.asarray(test)
