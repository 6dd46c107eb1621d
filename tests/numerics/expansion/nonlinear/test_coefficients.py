"""The derived coefficients of gamma0^2 against the full theory and against networks, near gamma0 = 0."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import xarray as xr
from sympy import Rational

from derive.expansion.nonlinear import NonlinearExpansion
from numerics.expansion import expand, series
from numerics.expansion.trees import expand_nonlinear
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem as Posed
from numerics.solver.quadrature.solve import solve_nodes
from numerics.verification.series import compared, differences, expansion
from tests.numerics.expansion.nonlinear.networks import Problem

KERNEL = np.array([[1.0, 0.3], [0.3, 0.8]])
TARGETS = np.array([1.0, -0.6])
STEPS = 4

CASES = {"tanh": (0.3, 1.0), "erf": (0.2, 1.0), "h + h**3/6": (0.1, 0.25)}
"""A learning rate for each activation, and the size of its inputs."""

STRENGTHS = (0.15, 0.25, 0.35)


def experiment(activation: str, depth: int, samples: int = 2) -> Experiment:
    eta, size = CASES[activation]
    tables = {
        "network": {"depth": depth, "activation": activation},
        "training": {"learning_rate": eta, "steps": STEPS, "loss": "sum"},
    }
    kernel = size * KERNEL[:samples, :samples]
    return Experiment.from_dict(tables, kernel=kernel, targets=TARGETS[:samples])


@lru_cache(maxsize=32)
def derived(activation: str, depth: int, samples: int = 2) -> xr.Dataset:
    return expand(experiment(activation, depth, samples), 2)


@lru_cache(maxsize=32)
def solved(activation: str, depth: int, paths: int) -> xr.Dataset:
    return differences(experiment(activation, depth), STRENGTHS, paths=paths)


def worst(found: dict[str, tuple[float, float, int, float]]) -> float:
    """Return the largest |z|, in units of its limit."""
    return max(z / limit for z, limit, _, _ in found.values())


# -- the full theory -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("activation", "samples"), [("tanh", 1), *(pytest.param(x, 2, marks=pytest.mark.slow) for x in CASES)]
)
def test_one_hidden_layer_to_eight_digits(activation: str, samples: int) -> None:
    """Nodes of a quadrature that move, at gamma0 from 0.03 to 0.09; a polynomial through the differences."""
    strengths = np.array([0.03, 0.05, 0.07, 0.09])
    weights = np.linalg.inv(np.stack([strengths ** (2 * k) for k in (1, 2, 3, 4)], axis=1))[0]

    def solution(gamma0: float) -> dict[str, np.ndarray]:
        here = experiment(activation, 1, samples).replace({"network.gamma0": float(gamma0)})
        found = solve_nodes(here, start=40)
        error = found.value("Delta")
        pairs = {n: found.value(n, 1).transpose(2, 3, 0, 1)[None] for n in ("Phi", "G")}
        return pairs | {"error": error, "train_loss": (error**2).mean(axis=1)}

    lazy = solution(1e-6)
    moved = [solution(g) for g in strengths]
    coefficients = derived(activation, 1, samples)
    for name, base in lazy.items():
        expected = sum(w * (x[name] - base) for w, x in zip(weights, moved, strict=True))
        found = coefficients[name].sel(order=2).to_numpy()
        assert np.abs(found - expected).max() < 3e-8 * max(1, np.abs(expected).max()), name
        order0 = coefficients[name].sel(order=0).to_numpy()
        assert np.abs(order0 - base).max() < 1e-9 * np.abs(base).max(), name


@pytest.mark.slow
def test_one_hidden_layer_along_the_flow() -> None:
    """Check f, whose factor 1/gamma0 enlarges the error of the integrator: no gamma0 is very small."""
    training = {"rule": "flow", "time": 3.0, "points": 4, "loss": "mean"}
    one = Experiment.from_dict(
        {"network": {"depth": 1, "activation": "tanh"}, "training": training, "solver": {"rtol": 1e-7}},
        kernel=KERNEL,
        targets=TARGETS,
    )
    strengths = np.array([0.03, 0.06, 0.09, 0.12])
    weights = np.linalg.inv(np.stack([strengths ** (2 * k) for k in range(4)], axis=1))
    solutions = []
    for gamma0 in strengths:
        here = one.replace({"network.gamma0": float(gamma0)})
        found = solve_nodes(here, accuracy=1e-9, start=40)
        pairs = {n: found.value(n, 1).transpose(2, 3, 0, 1)[None] for n in ("Phi", "G")}
        solutions.append(pairs | {"error": found.value("Delta")})
    coefficients = expand(one, 2)
    for name in ("Phi", "G", "error"):
        for order, row in ((0, weights[0]), (2, weights[1])):
            expected = sum(w * x[name] for w, x in zip(row, solutions, strict=True))
            found = coefficients[name].sel(order=order).to_numpy()
            assert np.abs(found - expected).max() < 3e-5 * np.abs(expected).max(), (name, order)


def test_two_hidden_layers() -> None:
    found = compared(derived("tanh", 2), solved("tanh", 2, 512))
    assert set(found) == {"train_loss", "error", "Phi", "G", "tangent_kernel", "A", "B"}
    assert worst(found) < 1


Change = Callable[[NonlinearExpansion], NonlinearExpansion]


def without(name: str, order: int, inside: str) -> Change:
    """Return the change that removes this order parameter at this order from the laws of ``inside``."""
    return scaled(name, order, inside, Rational(0))


def scaled(name: str, order: int, inside: str, factor: Rational) -> Change:
    def changed(expansion: NonlinearExpansion) -> NonlinearExpansion:
        laws, hit = {}, 0
        for tensor, law in expansion.laws.items():
            terms = {}
            for x, c in law.terms.items():
                there = any((s.tensor.name, s.tensor.order) == (name, order) for s in x.statics)
                mine = tensor.name == inside and there
                hit += mine
                terms[x] = c * (factor if mine else 1)
            laws[tensor] = replace(law, terms=terms)
        assert hit, "nothing was changed"
        return replace(expansion, laws=laws)

    return changed


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(without("A", 0, "C"), marks=pytest.mark.slow),
        pytest.param(without("B", 0, "D"), marks=pytest.mark.slow),
        pytest.param(without("Phi", 2, "Phi"), marks=pytest.mark.slow),
        scaled("Phi", 2, "Phi", Rational(2)),
    ],
    ids=["no A", "no B", "no Price", "no factor 1/2 in Price"],
)
def test_planted_errors_are_seen(change: Change) -> None:
    assert worst(compared(planted(change), solved("tanh", 2, 512))) > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [without("Phi", 2, "G"), scaled("G", 2, "G", Rational(1, 2))],
    ids=["G blind to Phi below", "half of G above"],
)
def test_planted_errors_of_gradients_are_seen(change: Change) -> None:
    assert worst(compared(planted(change), solved("tanh", 2, 32768))) > 1


def planted(change: Change) -> xr.Dataset:
    one = experiment("tanh", 2)
    return expand_nonlinear(Posed.of(one), 2, change(series(one, 2)))


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("activation", CASES)
def test_every_activation_and_depth(activation: str, depth: int) -> None:
    found = compared(derived(activation, depth), solved(activation, depth, 8192))
    assert worst(found) < 1, found
    assert all(reach < 0.15 for *_, reach in found.values()), found


# -- networks ------------------------------------------------------------------------------------------------


def network(activation: str, depth: int) -> Problem:
    eta, size = CASES[activation]
    return Problem(activation, depth, size * KERNEL, TARGETS, eta, STEPS)


def test_networks_of_two_hidden_layers() -> None:
    found = network("tanh", 2).limit((48, 96), (150, 80), (0.15, 0.3))
    rows = compared(derived("tanh", 2), found)
    assert set(rows) == {"train_loss", "error", "Phi", "G", "tangent_kernel"}
    assert worst(rows) < 1, rows


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("activation", CASES)
def test_networks_of_every_activation_and_depth(activation: str, depth: int) -> None:
    rows = compared(
        derived(activation, depth), network(activation, depth).limit((96, 192), (400, 300), (0.1, 0.2))
    )
    assert worst(rows) < 1, rows
    assert rows["Phi"][3] < 0.15


# -- the row of dmft verify ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_verification_has_a_row_for_each_quantity() -> None:
    checks, note = expansion(experiment("tanh", 1))
    assert [c.name.split(":")[0] for c in checks] == ["loss", "Delta", "Phi^l", "G^l", "K"]
    assert all(c.passed for c in checks)
    assert "gamma0^2" in note


def test_strengths_must_rise() -> None:
    for strengths in ((0.1,), (0.2, 0.1), (1e-5, 0.1)):
        with pytest.raises(ValueError, match="at least two rising"):
            differences(experiment("tanh", 1), strengths)
