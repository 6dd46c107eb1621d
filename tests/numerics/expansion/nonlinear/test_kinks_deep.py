"""Powers of |gamma0| with several layers: by hand, beside measured ones, and with parts left out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from numerics.expansion import expand
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem as Posed
from numerics.verification.series import _runs
from tests.chance import excess, in_errors
from tests.numerics.expansion.nonlinear.networks import Problem

KERNEL, TARGETS = np.array([[1.0, 0.3], [0.3, 0.8]]), np.array([1.0, -0.6])


def experiment(depth: int, samples: int = 2, activation: str = "relu", **tables: Any) -> Experiment:
    training = {"learning_rate": 0.2, "steps": 4, "loss": "sum"} | tables.pop("training", {})
    return Experiment.from_dict(
        {"network": {"depth": depth, "activation": activation}, "training": training, **tables},
        kernel=KERNEL[:samples, :samples],
        targets=TARGETS[:samples],
    )


@lru_cache(maxsize=4)
def derived(depth: int) -> Any:
    return expand(experiment(depth), 2)


ENTRIES = ([0, 0, 1], [0, 1, 1])
"""11, 12 and 22."""

MEASURED = {
    2: {
        "G": [
            [(-0.2376, 0.0028), (-0.0467, 0.0028), (-0.1050, 0.0037)],
            [(-0.1948, 0.0042), (-0.0722, 0.0078), (-0.0710, 0.0071)],
        ],
        "Phi": [
            [(0.2066, 1e-4), (0.0165, 5e-4), (0.0417, 3e-4)],
            [(0.3143, 4e-4), (0.0045, 6e-4), (0.0554, 3e-4)],
        ],
        "tangent_kernel": [[(-0.323, 0.007), (-0.024, 0.003), (-0.093, 0.007)]],
        "error": [[(0.1009, 3e-4), (-0.0253, 6e-4)]],
        "train_loss": [[(0.0738, 4e-4)]],
    },
    3: {
        "G": [
            [(-0.2116, 0.0020), (-0.0240, 0.0012), (-0.0919, 0.0017)],
            [(-0.2677, 0.0042), (-0.0620, 0.0021), (-0.1070, 0.0025)],
            [(-0.1886, 0.0062), (-0.0588, 0.0037), (-0.0581, 0.0076)],
        ],
        "Phi": [
            [(0.1564, 1e-4), (0.0247, 1e-4), (0.0316, 1e-4)],
            [(0.2397, 2e-4), (0.0330, 2e-4), (0.0462, 1e-4)],
            [(0.2409, 2e-4), (0.0188, 2e-4), (0.0401, 1e-4)],
        ],
        "tangent_kernel": [[(-0.392, 0.005), (-0.0293, 0.0012), (-0.1279, 0.0036)]],
        "error": [[(0.1340, 6e-4), (-0.0291, 1e-3)]],
        "train_loss": [[(0.1121, 7e-4)]],
    },
}
"""After the last step, by particles, with standard errors: 4 times 3 replicas of 131072 paths at gamma0 =
0.04 and 0.08, on a straight line in gamma0; Phi and K of two layers from 16384 paths and three powers."""


def last(result: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the first nonzero coefficient after the last step, and its error, a row for each layer."""
    order = 2 if name == "Phi" else 1
    found = []
    for x in (name, name + "_stderr"):
        value = result[x].sel(order=order).values
        if name in ("G", "Phi"):
            found.append(value[:, -1, -1][:, *ENTRIES])
        else:
            found.append(np.atleast_2d(value[-1, -1][ENTRIES] if name == "tangent_kernel" else value[-1]))
    return found[0], found[1]


def scores(result: Any, depth: int) -> np.ndarray:
    """Return all z, variable by variable."""
    found = []
    for name, rows in MEASURED[depth].items():
        value, error = last(result, name)
        measured = np.array(rows)
        found.append(np.ravel((measured[..., 0] - value) / np.hypot(measured[..., 1], error)))
    return np.concatenate(found)


# -- by hand -------------------------------------------------------------------------------------------------


def test_one_step_of_one_sample_by_hand() -> None:
    """A unit of the second layer is taken across by w = xi + a r, of which a r acts on active ones.

    a = eta y K, since C_0 = Phi_1 + A_1 = K/2 + K/2, and <xi^2> = <phi'^2 (K eta y)^2 phi'^2 r^2> = a^2/4.
    Dying units cost <r^2 max(-w, 0)>, so that G_1(1, 0) = -p <r^2 max(w, 0)> with p = 1/sqrt(2 pi K/2).
    """
    eta, K, y = 0.2, 1.0, 1.0
    a = eta * y * K
    size = a * np.sqrt(5 / 4)
    share = a**2 / size**2
    expected = -size * (1 + share) / np.sqrt(2 * np.pi) / np.sqrt(np.pi * K)
    found = expand(experiment(2, 1, training={"steps": 1}), 1)
    value, error = (found["G" + x].sel(order=1).values[1, 1, 0, 0, 0] for x in ("", "_stderr"))
    assert excess((value - expected) / error) < 1
    assert 0 < error < 4e-3 * abs(expected)


def test_moving_sources_by_themselves() -> None:
    """With fixed other sources the change of G follows the arccosine law: theta(u) theta(u + gamma0 xi).

    <theta(a) theta(b)> falls by sqrt(<(a - b)^2>/<a^2>)/(2 pi) at small distances.
    """
    found = expand(experiment(2, 1, activation="abs(h)", training={"steps": 1}), 2)
    Phi = found.Phi.sel(order=2).values[0, :, :, 0, 0]
    moved = Phi[1, 1] - Phi[1, 0] - Phi[0, 1]
    a = 0.2 * 2.0  # eta y (C_0 = Phi_1 + A_1 = 2 K), slopes of size one
    assert moved == pytest.approx((0.2) ** 2, rel=1e-9)
    # slopes +-1: a turned unit changes G by -2, and w = xi +- a r has the same law on both sides
    size = np.hypot(a, 0.2)
    expected = -2 * size * (1 + (a / size) ** 2) * np.sqrt(2 / np.pi) / np.sqrt(2 * np.pi)
    value, error = (found["G" + x].sel(order=1).values[1, 1, 0, 0, 0] for x in ("", "_stderr"))
    assert excess((value - expected) / error) < 1


@pytest.mark.slow
def test_the_law_of_depth() -> None:
    """sqrt(2) relu, one sample: K_1(t, t) = -8/(21 pi) sqrt(3/2) v L^(7/2), up to 1/L.

    By hand from the recursions: <xi xi> is 2/3 L^3 v^2, each layer's kink adds -sqrt(3/2) v/(pi sqrt(L)) to
    what B_{-1} makes of v; G_1 gains 4 L times what D_{-1} has summed up from above.
    """
    depths, found = (2, 3, 6), []
    for depth in depths:
        run = experiment(depth, 1, "sqrt(2)*max(h, 0)", training={"steps": 1}, solver={"samples": 1024})
        K = expand(run, 1).tangent_kernel.sel(order=1).values[1, 1, 0, 0]
        found.append(K / 0.2 / depth**3.5)
    limit = np.linalg.solve(1.0 / np.array(depths)[:, None] ** np.arange(3), found)[0]
    assert limit == pytest.approx(-8 / 21 / np.pi * np.sqrt(1.5), rel=0.03)


# -- measured ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_two_samples_as_measured(depth: int) -> None:
    """The full theory's first powers: G, K, Delta and the loss at |gamma0|, Phi at gamma0^2."""
    assert excess(scores(derived(depth), depth)) < 1


OTHERS = {
    "max(h, h/5)": {
        "G": [
            [(-0.0743, 0.0054), (-0.0289, 0.0031), (-0.0313, 0.0079)],
            [(-0.0709, 0.0068), (-0.0336, 0.0048), (-0.0105, 0.0117)],
        ],
        "error": [[(0.0158, 8e-4), (-0.0018, 6e-4)]],
        "train_loss": [[(0.0139, 6e-4)]],
    },
    "abs(h) + 1/2": {
        "G": [
            [(-0.1459, 0.0281), (0.2990, 0.0292), (-0.1138, 0.0252)],
            [(0.0, 1e-9), (0.5705, 0.0434), (0.0, 1e-9)],
        ],
        "error": [[(0.1571, 0.0054), (-0.1460, 0.0060)]],
        "train_loss": [[(0.1249, 0.0039)]],
    },
}
"""The same, two layers, eta = 0.1 and three steps: 8 replicas of 32768 paths at gamma0 = 0.03 and 0.06."""


@pytest.mark.slow
@pytest.mark.parametrize("activation", [pytest.param("max(h, h/5)", marks=pytest.mark.slow), "abs(h) + 1/2"])
def test_other_kinks_as_measured(activation: str) -> None:
    """A leak, and features that do not vanish at the kink."""
    training = {"learning_rate": 0.1, "steps": 3}
    found = expand(experiment(2, 2, activation, training=training, solver={"samples": 256}), 1)
    for name, rows in OTHERS[activation].items():
        value, error = last(found, name)
        measured = np.array(rows)
        z = (measured[..., 0] - value) / np.hypot(measured[..., 1], error)
        assert excess(z) < 1


@pytest.mark.slow
def test_replicas_show_the_error() -> None:
    """Other directions give another value, within the errors; more of them smaller errors."""
    one, other = (expand(experiment(2, solver={"samples": 256, "seed": k}), 1) for k in (1, 2))
    assert one.attrs["directions"] == 256
    for name in ("G", "train_loss"):
        (a, da), (b, db) = last(one, name), last(other, name)
        assert np.abs(a - b).max() > 0
        assert excess(in_errors(a - b, np.hypot(da, db))) < 1
        assert np.mean(last(derived(2), name)[1]) < np.mean(da)


@pytest.mark.slow
def test_with_more_samples_than_signs_are_counted_for() -> None:
    """Shares of signs and averages over points agree with the exact ones."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal((3, 9))
    kernel, targets = x @ x.T / 9 + 0.2 * np.eye(3), rng.standard_normal(3)
    tables = {
        "network": {"depth": 2, "activation": "relu"},
        "training": {"learning_rate": 0.1, "steps": 1, "loss": "sum"},
        "solver": {"samples": 64},
    }
    run = Experiment.from_dict(tables, kernel=kernel, targets=targets)
    exact = expand(run, 1)
    with pytest.MonkeyPatch.context() as m:
        m.setattr("numerics.expansion.kinks.EXACT", 2)
        m.setattr("numerics.expansion.kinks.REPLICAS", 4)
        m.setattr("numerics.expansion.kinks.POINTS", 16)
        done: list[tuple[int, int]] = []
        rough = expand(run, 1, progress=lambda replica, total: done.append((replica, total)))
    assert done == [(k, 4) for k in (1, 2, 3, 4)]
    for name in ("G", "train_loss"):
        a, b = (q[name].sel(order=1).values for q in (exact, rough))
        error = np.hypot(*(q[name + "_stderr"].sel(order=1).values for q in (exact, rough)))
        slack = 0.02 * np.abs(a).max()
        assert excess(in_errors(np.maximum(np.abs(a - b) - slack, 0), error), 3) < 1


# -- the full theory and networks, anew ----------------------------------------------------------------------


def fitted(strengths: Sequence[float], powers: Sequence[int], moved: Sequence[np.ndarray]) -> np.ndarray:
    """Return the coefficient of the first of these powers through all strengths."""
    weights = np.linalg.inv([[g**n for n in powers] for g in strengths])[0]
    return np.asarray(sum(w * x for w, x in zip(weights, moved, strict=True)))


@pytest.mark.slow
@pytest.mark.parametrize("depth", [2, 3])
def test_the_full_theory(depth: int) -> None:
    """Particles with common random numbers: all times, layers and samples."""
    strengths = (0.04, 0.08)
    lazy, *found = [_runs(Posed.of(experiment(depth)), g, 16384, 16, 7) for g in (1e-6, *strengths)]
    for name in MEASURED[depth]:
        order = 2 if name == "Phi" else 1
        moved = [x[name] - lazy[name] for x in found]
        runs = fitted(strengths, (order, order + 1), moved)
        error = runs.std(axis=0, ddof=1) / np.sqrt(len(runs))
        value, own = (derived(depth)[name + x].sel(order=order).values for x in ("", "_stderr"))
        known = error > 1e-9
        z = (runs.mean(axis=0) - value)[known] / np.hypot(error, own)[known]
        assert excess(z, 15) < 1
        assert np.median(error[known]) < 0.1 * np.abs(value).max()


@pytest.mark.slow
def test_wide_networks() -> None:
    """Finite networks, on a straight line in 1/width; gamma0 and -gamma0 are the same network mirrored."""
    problem = Problem("relu", 2, KERNEL, TARGETS, 0.2, 4)
    strengths = (0.05, 0.1)
    found = problem.limit((64, 128), (10_000, 5000), strengths, powers=(1, 2))
    for name in ("G", "error", "train_loss", "tangent_kernel"):
        value = derived(2)[name].sel(order=1).transpose(*found[name].dims).values
        error = found[name + "_stderr"].values
        known = error > 1e-9
        z = (found[name].values - value)[known] / error[known]
        assert excess(z) < 1
        assert np.median(error[known]) < 0.1 * np.abs(value).max()
