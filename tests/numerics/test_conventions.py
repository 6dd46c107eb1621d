"""Tests of docs/reference/conventions.md for layers of different widths, taken literally by networks.

The formulas of that page are written out below; gradients are those of autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd import grad

import numerics
from numerics.experiment import Experiment
from tests.chance import excess

Array = np.ndarray[Any, Any]

GAMMA, ETA, STEPS, SEEDS = 0.8, 0.2, 2, 12
X, Y = np.array([[1.0, 0.5], [-0.3, 1.2]]), np.array([1.0, -0.6])
WIDTHS = (0.5, 2.0)


def fixed(N: int, rng: np.random.Generator) -> dict[str, Array]:
    """Return errors, and kernels at the last step, of one network on fixed samples with ``N_l = a_l N``."""
    sizes, D = [round(a * N) for a in WIDTHS], X.shape[1]
    theta = [rng.standard_normal(s) for s in ((sizes[0], D), (sizes[1], sizes[0]), (sizes[1],))]

    def fields(theta: list[Any]) -> list[Any]:
        first = theta[0] @ X.T / np.sqrt(D)
        return [first, theta[1] @ first / np.sqrt(sizes[0])]

    def outputs(theta: list[Any]) -> Any:
        return theta[2] @ fields(theta)[1] / (GAMMA * N)

    def loss(theta: list[Any]) -> Any:
        return anp.sum((Y - outputs(theta)) ** 2) / 2

    errors = [Y - outputs(theta)]
    for _ in range(STEPS):
        theta = [w - ETA * GAMMA**2 * N * d for w, d in zip(theta, grad(loss)(theta), strict=True)]
        errors.append(Y - outputs(theta))
    above: list[Callable[[Any], Any]] = [
        lambda h: theta[2] @ (theta[1] @ h / np.sqrt(sizes[0])) / (GAMMA * N),
        lambda h: theta[2] @ h / (GAMMA * N),
    ]
    found = {"error": np.array(errors)}
    for layer, (h, n, f) in enumerate(zip(fields(theta), sizes, above, strict=True), 1):
        g = GAMMA * np.sqrt(N * n) * grad(lambda x, f=f: anp.sum(f(x)))(h)
        found[f"Phi {layer}"], found[f"G {layer}"] = h.T @ h / n, (g * g).mean()
    slopes = [grad(lambda w, k=k: outputs(w)[k])(theta) for k in range(len(Y))]
    found["tangent_kernel"] = np.array(
        [[GAMMA**2 * N * sum(np.vdot(a, b) for a, b in zip(one, two, strict=True)) for two in slopes]
         for one in slopes]
    )  # fmt: skip
    return found


def extrapolated(network: Callable[..., dict[str, Array]], N: int) -> dict[str, tuple[Array, Array]]:
    """Return means over networks without their 1/N, from two widths, and their standard errors."""
    found = {}
    few, many = ([network(n, np.random.default_rng([n, k])) for k in range(SEEDS)] for n in (N, 2 * N))
    for name in few[0]:
        a, b = (np.stack([x[name] for x in runs]) for runs in (few, many))
        error = np.sqrt((4 * b.var(axis=0, ddof=1) + a.var(axis=0, ddof=1)) / SEEDS)
        found[name] = 2 * b.mean(axis=0) - a.mean(axis=0), error
    return found


def test_layers_of_different_widths_are_those_of_the_page() -> None:
    tables = {
        "network": {"depth": 2, "gamma0": GAMMA, "relative_widths": list(WIDTHS)},
        "training": {"learning_rate": ETA, "steps": STEPS, "loss": "sum"},
    }
    theory = numerics.solve(Experiment.from_dict(tables, inputs=X, targets=Y), kernels="full")
    networks = extrapolated(fixed, 40)
    last = theory.isel(time=-1, time_=-1)
    expected = {"error": theory.error, "tangent_kernel": last.tangent_kernel}
    for layer in (1, 2):
        expected |= {f"{x} {layer}": last[x].sel(layer=layer) for x in ("Phi", "G")}
    for name, value in expected.items():
        mean, error = networks[name]
        assert excess((mean - value.values) / error, SEEDS - 1) < 1, name


def test_at_the_start_gradients_count_the_relative_width_of_the_last_layer() -> None:
    """G^2 = G^3 = a_2 and G^1 = a_2: 2, 2; the tangent kernel is 3 a_2 K_x."""
    tables = {
        "network": {"depth": 2, "relative_widths": list(WIDTHS)},
        "training": {"learning_rate": ETA, "steps": 1},
    }
    found = numerics.solve(Experiment.from_dict(tables, kernel=[[1.0]], targets=[1.0]), kernels="full")
    np.testing.assert_allclose(found.G[:, 0, 0], [2.0, 2.0])
    np.testing.assert_allclose(found.tangent_kernel[0, 0], 6.0)


def isotropic(D: int, rng: np.random.Generator) -> dict[str, Array]:
    """Return one network on the population of isotropic data with ``N_l = nu_l D``.

    The first step is written by hand.
    """
    sizes = [round(nu * D) for nu in WIDTHS]
    star = rng.standard_normal(D)
    W0, W, w = (rng.standard_normal(s) for s in ((sizes[0], D), (sizes[1], sizes[0]), (sizes[1],)))
    losses = []
    for step in range(STEPS + 1):
        g = [W.T @ w / np.sqrt(sizes[0]), w]
        v = star - np.sqrt(D) / (GAMMA * sizes[1]) * (W0.T @ g[0])
        losses.append(v @ v / D)
        h0 = v  # sqrt(D)/P X^T Delta on the population
        h1 = W0 @ h0 / np.sqrt(D)
        h = [h1, W @ h1 / np.sqrt(sizes[0])]
        if step == 0:
            found = {f"C_g {k + 1}": (g[k] ** 2).mean() for k in range(2)}
            found |= {f"C_h {k + 1}": (h[k] ** 2).mean() for k in range(2)}
        W0 = W0 + ETA * GAMMA / np.sqrt(D) * np.outer(g[0], h0)
        W = W + ETA * GAMMA / np.sqrt(sizes[0]) * np.outer(g[1], h[0])
        w = w + ETA * GAMMA * h[1]
    return {**found, "test_loss": np.array(losses)}


def test_isotropic_layers_of_different_widths_are_those_of_the_page() -> None:
    tables = {
        "network": {"depth": 2, "gamma0": GAMMA, "width_ratio": list(WIDTHS)},
        "data": {"kind": "isotropic"},
        "training": {"learning_rate": ETA, "steps": STEPS},
    }
    theory = numerics.solve(Experiment.from_dict(tables))
    networks = extrapolated(isotropic, 40)
    start = theory.isel(time=0, time_=0)
    expected = {"test_loss": theory.test_loss}
    for layer in (1, 2):
        expected |= {f"{x} {layer}": start[x].sel(layer=layer) for x in ("C_g", "C_h")}
    for name, value in expected.items():
        mean, error = networks[name]
        assert excess((mean - value.values) / error, SEEDS - 1) < 1, name
