"""Tests of coefficients in |gamma0| of relu networks, from units that cross the kink.

The expectations are independent of the engine. One hidden layer is trained on a quadrature; deeper ones are
solved by sampled paths and trained as finite networks.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

from numerics.experiment import Experiment
from numerics.experiment.problem import Problem as Posed
from numerics.solver.paths import solve_particles
from numerics.verification.series import expansion
from tests.numerics.expansion.nonlinear.kinks import Problem

TWO = Problem(np.array([[1.0, 0.3], [0.3, 0.8]]), np.array([1.0, -0.6]), 0.2, 4)
ONE = Problem(np.array([[0.7]]), np.array([1.3]), 0.3, 5)
STRENGTHS = (0.005, 0.01, 0.02)


@lru_cache(maxsize=3)
def moved(gamma0: float) -> dict[str, np.ndarray]:
    return TWO.moved(gamma0)


def leading(name: str, powers: tuple[int, ...]) -> np.ndarray:
    """Return the coefficient of the first of these powers, fitted to all strengths."""
    found = np.stack([moved(gamma0)[name] for gamma0 in STRENGTHS])
    powers_of = np.array([[gamma0**n for n in powers] for gamma0 in STRENGTHS])
    return np.tensordot(np.linalg.inv(powers_of)[0], found, 1)


@pytest.mark.parametrize(("name", "power"), [("G", 1), ("K", 1), ("error", 1), ("loss", 1), ("Phi", 2)])
def test_the_first_power_of_gamma0(name: str, power: int) -> None:
    sizes = [np.abs(moved(gamma0)[name]).max() for gamma0 in STRENGTHS[:2]]
    assert np.log2(sizes[1] / sizes[0]) == pytest.approx(power, abs=0.03)


@pytest.mark.parametrize(("name", "tolerance"), [("G", 2e-3), ("K", 2e-3), ("error", 1e-4), ("loss", 1e-4)])
def test_units_at_the_kink_give_the_term_in_the_size_of_gamma0(name: str, tolerance: float) -> None:
    expected = TWO.layer()[name]
    found = leading(name, (1, 2, 3))
    assert np.abs(expected).max() > 20 * tolerance
    assert np.abs(found - expected).max() < tolerance


def test_features_have_a_quadratic_term_that_no_product_of_delta_and_slope_gives() -> None:
    found = leading("Phi", (2, 3, 4))
    bulk = TWO.bulk(TWO.directions(0.01))
    assert np.abs(found - bulk - TWO.layer()["Phi"]).max() < 3e-5
    for square in (1 / 4, 1 / 3):
        assert np.abs(found - bulk - TWO.pointwise(square)).max() > 5e-4
    assert np.abs(found - bulk).max() > 5e-3


def test_one_sample_in_closed_form() -> None:
    """G loses -sqrt(K) max(v, v')/pi |gamma0|, f gains -K^(3/2) v^2/(2 pi) |gamma0| beside its feedback."""
    errors, tangent, _ = ONE.lazy()
    K = ONE.kernel[0, 0]
    v = np.concatenate([[0.0], ONE.eta * np.cumsum(errors[:, 0])])[:-1]
    assert (np.diff(v) > 0).all()
    layer = ONE.layer()
    assert np.abs(layer["G"][:, :, 0, 0] + np.sqrt(K) / np.pi * np.maximum.outer(v, v)).max() < 1e-3
    first = np.zeros(len(v))
    for t in range(len(v)):
        first[t] = K**1.5 * v[t] ** 2 / (2 * np.pi) - tangent[0, 0] * ONE.eta * first[:t].sum()
    assert np.abs(layer["error"][:, 0] - first).max() < 1e-4
    assert np.abs(layer["Phi"]).max() == 0
    small = ONE.moved(1e-3, crowded=4000)
    assert np.abs(small["G"] / 1e-3 - layer["G"]).max() < 5e-3
    assert np.abs(small["error"] / 1e-3 - layer["error"]).max() < 1e-3


def test_one_sample_of_features_starts_with_the_bulk() -> None:
    bulk = ONE.bulk(ONE.directions(0.01, crowded=4000))
    small = ONE.moved(3e-3, crowded=4000)["Phi"]
    assert np.abs(small / 9e-6 - bulk).max() < 0.01 * np.abs(bulk).max()


# -- deeper networks -----------------------------------------------------------------------------------------


def relu(depth: int) -> Experiment:
    tables = {
        "network": {"depth": depth, "activation": "relu"},
        "training": {"learning_rate": TWO.eta, "steps": TWO.steps, "loss": "sum"},
    }
    return Experiment.from_dict(tables, kernel=TWO.kernel, targets=TWO.targets)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [2, 3])
def test_first_powers_of_deeper_networks(depth: int) -> None:
    """Differences of sampled solutions, so near the lazy one that the next powers are a tenth."""
    strengths = (1e-5, 0.05, 0.1)
    found = []
    for gamma0 in strengths:
        here = relu(depth).replace({"network.gamma0": gamma0})
        solved = solve_particles(
            Posed.of(here).discrete,
            steps=TWO.steps + 1,
            values={"eta": TWO.eta, "gamma0": gamma0, "P": 2},
            data={"K_x": TWO.kernel, "y": TWO.targets},
            samples=8192,
        )
        last = (solved.value("Delta")[-1] ** 2).mean()
        found.append({"loss": last, "Phi": solved.value("Phi", depth)[0, 0, -1, -1]})
    power = {n: np.log2((found[2][n] - found[0][n]) / (found[1][n] - found[0][n])) for n in found[0]}
    assert power["loss"] == pytest.approx(1, abs=0.2)
    assert power["Phi"] == pytest.approx(2, abs=0.05)


def test_verification_says_why_there_is_no_series() -> None:
    checks, note = expansion(relu(2))
    assert checks == []
    assert "kink" in note
