"""Structured data (linear2025 appendix E) and Program 1 of depth2023 against finite networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sympy import Expr

from derive.program import eta, gamma0
from derive.program.networks.random_data import B, M, N, alpha_B, nu, sigma
from derive.reduce.data import absorb_factors, mode_sums
from derive.theory import Theory
from tests.chance import excess
from tests.derive.once import depth_program, isotropic, mean_field, structured
from tests.derive.theory.isotropic_march import March

Array = np.ndarray[Any, np.dtype[np.float64]]
STEPS, RATE, RICH, NOISE = 4, 0.25, 0.7, 0.2


def modes(depth: int, **options: Any) -> Theory:
    theory = mode_sums(absorb_factors(mean_field(structured(depth, **options)), "r0", "u0"))
    return theory.at_depth(depth)


def test_equal_eigenvalues_are_isotropic_data() -> None:
    """A network on M equal modes is one on M isotropic features, up to factors of sqrt(M) in the fields."""
    size, width, batch = 5, 8.0, 3.0
    theory = modes(2, noise=True)
    own = March(
        theory,
        {M: size, N: width, B: batch, eta: RATE, gamma0: RICH, sigma: NOISE},
        attributes={"lamda": [1.0] * size, "w_star": [size**-0.5] * size},
    )
    other = March(
        mean_field(isotropic(2, data="online", noise=True, center=True)).at_depth(2),
        {nu: width / size, alpha_B: batch / size, eta: RATE, gamma0: RICH, sigma: NOISE},
    )
    for k in range(STEPS):
        assert own("C_v", k, k) == pytest.approx(other("C_v", k, k), rel=1e-12)
        for name in (("C_Delta",), ("C_h0",), ("C_h", 2), ("C_g", 1)):
            assert own(*name, k, k) == pytest.approx(other(*name, k, k), rel=1e-12)


def finite(values: Array, target: Array, width: int, batch: int, seed: int) -> Array:
    """Return Eq. 106 with two hidden layers, as written."""
    rng = np.random.default_rng(seed)
    W0, W1, w = (rng.normal(size=x) for x in ((width, len(values)), (width, width), (width,)))
    found, first = [], 0.0
    for k in range(STEPS):
        g = W1.T @ w / np.sqrt(width)
        xi = W0.T @ g / (width * RICH)
        first = xi if k == 0 else first
        v = target - xi + first
        X = rng.normal(size=(batch, len(values))) * np.sqrt(values)
        Delta = X @ v + NOISE * rng.normal(size=batch)
        h0 = X.T @ Delta / batch
        h1 = W0 @ h0
        h2 = W1 @ h1 / np.sqrt(width)
        found.append([np.sum(values * v**2), np.mean(Delta**2), np.mean(h2**2), np.mean(g**2)])
        W0 = W0 + RATE * RICH * np.outer(g, h0)
        W1 = W1 + RATE * RICH / np.sqrt(width) * np.outer(w, h1)
        w = w + RATE * RICH * h2
    return np.array(found)


def test_few_modes_and_a_wide_network() -> None:
    """Twelve power-law modes: the theory is exact as N and B grow, whatever the number of modes."""
    k = np.arange(1, 13)
    values, width, batch, seeds = k**-1.5, 800, 800, 12
    target = np.sqrt(k**-1.6 / values)
    runs = np.array([finite(values, target, width, batch, seed) for seed in range(seeds)])
    mean, error = runs.mean(axis=0), runs.std(axis=0, ddof=1) / np.sqrt(seeds)
    theory = modes(2, noise=True)
    march = March(
        theory,
        {M: len(k), N: width, B: batch, eta: RATE, gamma0: RICH, sigma: NOISE},
        attributes={"lamda": list(values), "w_star": list(target)},
    )
    names = [("C_v",), ("C_Delta",), ("C_h", 2), ("C_g", 1)]
    expected = np.array([[march(*n, i, i) for n in names] for i in range(STEPS)])
    assert expected[0, 0] == pytest.approx(mean[0, 0])  # centred: nothing is random yet
    error[0, 0] = 1.0
    z = (mean - expected) / error
    assert excess(z, seeds - 1) < 1, np.round(z, 1)


# -- Program 1 -----------------------------------------------------------------------------------------------

INPUTS, TARGETS, BLOCKS = (1.0, -0.7, 0.8, 1.2), (1.0, 0.5, -0.3, 0.2), 3


class WithLoss(March):
    """The slope of the square loss."""

    def read(self, e: Expr, at: Any) -> Any:
        if str(e.func) == "dloss":
            return self.read(e.args[1], at) - TARGETS[self.place(e.args[0], at)]  # type: ignore[operator]
        return super().read(e, at)


def stream(n: int, seed: int, a: float, b: float) -> Array:
    """Return outputs and two norms of the network of depth2023 section 4.

    One norm is on the way up, one on the way down.
    """
    rng = np.random.default_rng(seed)
    W = [rng.normal(size=(n, n)) / np.sqrt(n) for _ in range(BLOCKS)]
    U, V = rng.normal(size=(2, n))
    found = []
    for xi, y in zip(INPUTS, TARGETS, strict=True):
        x = [xi * U]
        for w in W:
            x.append(x[-1] + BLOCKS**-a * w @ x[-1])
        f = np.mean(x[-1] * V)
        dx = [(f - y) * V]
        for w in reversed(W):
            dx.insert(0, dx[0] + BLOCKS**-a * w.T @ dx[0])
        found.append([f, np.mean(x[2] ** 2), np.mean(dx[1] ** 2)])
        W = [w - BLOCKS**-b * np.outer(d, z) / n for w, d, z in zip(W, dx[1:], x, strict=False)]
    return np.array(found)


@pytest.mark.parametrize(("a", "b"), [pytest.param(0.5, 0.5, marks=pytest.mark.slow), (0.8, 0.1)])
def test_program_1_against_finite_networks(a: float, b: float) -> None:
    seeds = 20
    runs = np.array([stream(500, seed, a, b) for seed in range(seeds)])
    mean, error = runs.mean(axis=0), runs.std(axis=0, ddof=1) / np.sqrt(seeds)
    march = WithLoss(
        mean_field(depth_program(BLOCKS, a, b)).at_depth(BLOCKS), {}, functions={"xi": lambda k: INPUTS[k]}
    )
    expected = np.array(
        [[march.field("f", (k,)), march("C_x", 2, k, k), march("C_dx", 1, k, k)] for k in range(STEPS)]
    )
    z = (mean - expected) / error
    assert excess(z, seeds - 1) < 1, np.round(z, 1)
