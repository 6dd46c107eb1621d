"""Powers of |gamma0| in numbers, beside an independent quadrature and beside trained units."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from sympy import Symbol

import numerics.expansion.kinks as kinks
from derive.expansion.nonlinear.kinks import dv, v
from numerics.cli.common import summary
from numerics.errors import Diverged, SpecError
from numerics.expansion import evaluated_at, expand, series
from numerics.experiment import Experiment
from tests.chance import excess, in_errors
from tests.derive.once import mlp
from tests.numerics.expansion.nonlinear.kinks import Problem

KERNEL = np.array([[1.0, 0.3, -0.2], [0.3, 0.8, 0.4], [-0.2, 0.4, 0.9]])
TARGETS = np.array([1.0, -0.6, 0.5])
ETA, STEPS = 0.2, 4
TWO = Problem(KERNEL[:2, :2], TARGETS[:2], ETA, STEPS)
NAMES = {"G": "G", "Phi": "Phi", "K": "tangent_kernel", "error": "error", "loss": "train_loss"}


def experiment(samples: int, activation: str = "relu", **training: Any) -> Experiment:
    rule = {"learning_rate": ETA, "steps": STEPS, "loss": "sum", **training}
    return Experiment.from_dict(
        {"network": {"depth": 1, "activation": activation}, "training": rule},
        kernel=KERNEL[:samples, :samples].tolist(),
        targets=TARGETS[:samples].tolist(),
    )


def coefficient(result: Any, name: str, n: int) -> np.ndarray:
    found = result[NAMES[name]].sel(order=n).values
    return found[0] if name in ("G", "Phi") else found


@lru_cache(maxsize=1)
def reference() -> dict[str, np.ndarray]:
    """Return the coefficients of the quadrature at small gamma0, which does not use the boundary layer."""
    strengths = (0.005, 0.01, 0.02)
    moved = [TWO.moved(g) for g in strengths]
    found = {}
    for name in NAMES:
        powers = (2, 3, 4) if name == "Phi" else (1, 2, 3)
        weights = np.linalg.inv([[g**n for n in powers] for g in strengths])[0]
        found[name] = sum(w * m[name] for w, m in zip(weights, moved, strict=True))
    return found


def test_momentum_may_depend_on_the_step() -> None:
    """Momentum of 0.3 as a schedule: the command ended in an error of its own."""
    plain, schedule = (expand(experiment(2, momentum=m), 2) for m in (0.3, "0.3 + 1e-15*t"))
    for name in ("Phi", "error"):
        np.testing.assert_allclose(schedule[name].values, plain[name].values, rtol=1e-10, atol=1e-13)


# the reference's own errors: fits of three powers, and cells of its grid
@pytest.mark.parametrize(
    ("name", "tolerance"), [("G", 2e-3), ("K", 2e-3), ("error", 1e-4), ("loss", 1e-4), ("Phi", 3e-5)]
)
def test_two_samples_as_measured(name: str, tolerance: float) -> None:
    found = coefficient(expand(experiment(2), 2), name, 2 if name == "Phi" else 1)
    assert np.abs(found).max() > 20 * tolerance
    assert np.abs(found - reference()[name]).max() < tolerance


def test_two_samples_as_on_a_grid() -> None:
    """The same units on 20001 starts: all times and pairs; the error is a cell for each crossing."""
    layer, found = TWO.layer(), expand(experiment(2), 2)
    for name, tolerance in (("G", 3e-4), ("K", 3e-4), ("error", 3e-5), ("loss", 3e-5)):
        assert np.abs(coefficient(found, name, 1) - layer[name]).max() < tolerance
    bulk = TWO.bulk(TWO.directions(0.01))
    assert np.abs(coefficient(found, "Phi", 2) - bulk - layer["Phi"]).max() < 1e-5


def trained(activation: Any, samples: int, gamma0: float, seed: int, count: int) -> dict[str, np.ndarray]:
    """Return units of the exact dynamics of one hidden layer, each with its opposite r."""
    phi, slope = activation
    rng = np.random.default_rng(seed)
    K, y = KERNEL[:samples, :samples], TARGETS[:samples, None]
    u = np.linalg.cholesky(K) @ rng.standard_normal((samples, count // 2))
    r = rng.standard_normal(count // 2)
    h, z = np.concatenate([u, u], axis=1), np.concatenate([r, -r])
    gs, errors = [], []
    for _ in range(STEPS + 1):
        g = slope(h) * z
        error = y - (phi(h) @ z)[:, None] / count / gamma0
        gs.append(g)
        errors.append(error[:, 0])
        h, z = h + gamma0 * ETA * K @ (error * g), z + gamma0 * ETA * (error * phi(h)).sum(axis=0)
    G = np.einsum("smi,tai->stma", gs, gs, optimize=True) / count
    return {"G": G, "error": np.array(errors)}


ACTIVATIONS = {
    "abs(h)": (np.abs, np.sign),
    "max(h, h/5)": (lambda h: np.maximum(h, h / 5), lambda h: np.where(h > 0, 1, 0.2)),
    "abs(h) + 1/2": (lambda h: np.abs(h) + 0.5, np.sign),
}


@pytest.mark.parametrize(
    "activation",
    ["abs(h) + 1/2", *(pytest.param(x, marks=pytest.mark.slow) for x in ("abs(h)", "max(h, h/5)"))],
)
def test_three_samples_as_trained(activation: str) -> None:
    """|gamma0| from units with common random numbers at two strengths; and 2e-2 seen."""
    own, strengths = ACTIVATIONS[activation], (0.04, 0.08)
    weights = np.linalg.inv([[g, g * g] for g in strengths])[0]
    runs = []
    for seed in range(6):
        there = [trained(own, 3, g, seed, 80_000) for g in strengths]
        lazy = trained(own, 3, 1e-7, seed, 80_000)
        runs.append({k: sum(w * (a[k] - lazy[k]) for w, a in zip(weights, there, strict=True)) for k in lazy})
    result = expand(experiment(3, activation), 1)
    for name in ("G", "error"):
        found = np.mean([run[name] for run in runs], axis=0)
        error = np.std([run[name] for run in runs], axis=0, ddof=1) / np.sqrt(len(runs))
        derived = coefficient(result, name, 1)
        assert np.abs(derived).max() > 15 * np.median(error[-1])
        gap = np.maximum(np.abs(found - derived) - 0.02 * np.abs(derived).max(), 0)
        assert excess(in_errors(gap, error), len(runs) - 1) < 1


def test_one_sample_is_the_closed_form() -> None:
    run = experiment(1)
    result = expand(run, 2)
    rise = np.concatenate([[0.0], ETA * np.cumsum(result.error.sel(order=0).values[:, 0])])[:-1]
    assert np.all(np.diff(rise) > 0)
    form = series(run, 1).one_sample("G").subs(Symbol("K_x", positive=True), KERNEL[0, 0])
    for i, j in ((1, 3), (4, 2), (3, 3)):
        low, high = sorted((rise[i], rise[j]))
        expected = float(form.subs({v: low, dv: high - low}))
        assert coefficient(result, "G", 1)[i, j, 0, 0] == pytest.approx(expected, rel=1e-12)
    assert np.all(result.Phi.sel(order=1) == 0)


def test_what_is_known() -> None:
    result = expand(experiment(2), 2)
    assert result.attrs["powers_of"] == "|gamma0|"
    known = {name: int(q.attrs["known_to_order"]) for name, q in result.data_vars.items()}
    assert known == {"Phi": 2, "G": 1, "error": 1, "train_loss": 1, "tangent_kernel": 1}
    for name, order in known.items():
        assert np.all(np.isfinite(result[name].sel(order=slice(0, order))))
        assert np.all(np.isnan(result[name].sel(order=slice(order + 1, 2))))
    assert not any(np.any(np.isnan(q)) for q in expand(experiment(2), 1).data_vars.values())


def test_a_program_has_the_powers_of_its_file() -> None:
    file, given = experiment(2), {"K_x": KERNEL[:2, :2], "y": TARGETS[:2]}
    program = mlp(1, "relu", loss="sum")
    found = expand(program, 2, numbers={"eta": ETA, "gamma0": 1.0}, arrays=given, times=file.times)
    for name, expected in expand(file, 2).data_vars.items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-12, atol=1e-12)


def test_points_that_nothing_is_learnt_from() -> None:
    """Errors of samples do not depend on test points; predictions at both have the same known orders."""
    rule = {"learning_rate": ETA, "steps": STEPS, "loss": "sum"}
    held_out = Experiment.from_dict(
        {"network": {"depth": 1, "activation": "relu"}, "training": rule},
        kernel=KERNEL[:2, :2].tolist(),
        targets=TARGETS[:2].tolist(),
        test_kernel=KERNEL[2:, [0, 1, 2]].tolist(),
    )
    found, alone = expand(held_out, 1), expand(experiment(2), 1)
    np.testing.assert_allclose(found.error, alone.error, rtol=0, atol=1e-12)
    assert found.test_f.attrs["known_to_order"] == 1
    assert np.all(found.test_f.values[:, -1] != 0)


@pytest.mark.slow
def test_sampled_averages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Means over points agree with the exact ones within their errors."""
    exact = expand(experiment(3), 2)
    monkeypatch.setattr(kinks, "EXACT", 2)
    rough = expand(experiment(3), 2)
    for name, order in (("train_loss", 1), ("G", 1), ("Phi", 2)):
        error = rough[name + "_stderr"].sel(order=order)
        away = np.abs(rough[name] - exact[name]).sel(order=order)
        assert rough[name + "_stderr"].attrs["known_to_order"] == order
        assert 0 < float(error.max()) < 0.05 * float(np.abs(exact[name].sel(order=order)).max())
        slack = 1e-3 * float(np.abs(exact[name].sel(order=order)).max())
        assert excess(in_errors(np.maximum(away - slack, 0), error), kinks.REPLICAS - 1) < 1


def test_no_sum_without_an_estimate_of_what_it_misses() -> None:
    """Two powers are known: they are printed, with the known orders of each variable."""
    done: list[tuple[int, int]] = []
    result = evaluated_at(experiment(2), 2, progress=lambda step, total: done.append((step, total)))
    assert done == [(1, 1)]
    assert not any("resummed" in str(name) for name in result.data_vars)
    assert "powers of |gamma0|; known to order: error 1, train_loss 1, Phi 2" in summary(result)
    with pytest.raises(SpecError, match="--resum"):
        evaluated_at(experiment(2), 2, "pade")


def test_what_is_refused() -> None:
    with pytest.raises(SpecError, match="--order"):
        expand(experiment(2), 3)
    with pytest.raises(SpecError, match=r"training\.rule"):
        expand(experiment(2, rule="flow", time=1.0, points=3), 1)
    with pytest.raises(SpecError, match="must be piecewise linear"):
        expand(experiment(2, "abs(h - 1)"), 1)
    parallel = Experiment.from_dict(
        {"network": {"depth": 1, "activation": "relu"}, "training": {"learning_rate": 0.1, "steps": 2}},
        kernel=[[1.0, -2.0], [-2.0, 4.0]],
        targets=[1.0, 0.0],
    )
    with pytest.raises(SpecError, match="parallel"):
        expand(parallel, 1)
    with pytest.raises(Diverged):
        expand(experiment(2, learning_rate=1e6, steps=60), 1)
