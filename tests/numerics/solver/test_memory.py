"""Tests of flows with decay, momentum or noise, against small steps of descent and networks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import xarray as xr

from numerics.expansion import expand
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.simulation import simulate
from numerics.solver import solve
from numerics.solver.grid import tables_of
from tests.chance import excess

KERNEL = np.array([[1.0, 0.3], [0.3, 0.8]])
TARGETS = np.array([1.0, -0.6])
RTOL = 1e-4

MEMORIES: dict[str, dict[str, float]] = {
    "decay": {"weight_decay": 0.3},
    "momentum": {"momentum": 0.5},
    "noise": {"temperature": 0.2},
    "decay and noise": {"weight_decay": 0.3, "temperature": 0.2},
}

DATA: dict[str, dict[str, dict[str, Any]]] = {
    "fixed": {"network": {"depth": 1, "gamma0": 1.2}},
    "isotropic": {
        "network": {"depth": 1, "width_ratio": 0.7},
        "data": {"kind": "isotropic", "sample_ratio": 1.3, "noise": 0.3},
    },
    "power law": {
        "network": {"depth": 1},
        "data": {"kind": "power-law", "capacity": 1.5, "source": 0.7, "modes": 50},
    },
}


def flowing(data: str, rtol: float = RTOL, **memory: float) -> Experiment:
    training = {"rule": "flow", "time": 2.0, "points": 5, **memory}
    return experiment(data, {"training": training, "solver": {"rtol": rtol}})


def stepping(data: str, steps: int, **memory: float) -> Experiment:
    """Return steps of length dt = 2/steps; those of a velocity decay by dt/tau and add dt times it."""
    dt = 2.0 / steps
    training: dict[str, Any] = {"rule": "gd", "learning_rate": dt, "steps": steps, **memory}
    if "momentum" in memory:
        training |= {"momentum": 1 - dt / memory["momentum"], "learning_rate": dt**2 / memory["momentum"]}
    return experiment(data, {"training": training})


def experiment(data: str, more: dict[str, Any]) -> Experiment:
    arrays = {"kernel": KERNEL, "targets": TARGETS} if data == "fixed" else {}
    return Experiment.from_dict({**DATA[data], **more}, **arrays)


QUICK = {("fixed", "momentum")}


@pytest.mark.parametrize(
    ("data", "memory"),
    [pytest.param(*x, marks=() if x in QUICK else pytest.mark.slow) for x in product(DATA, MEMORIES)],
)
def test_small_steps_are_the_flow_at_first_order(data: str, memory: str) -> None:
    """Check that differences from the flow halve with the step.

    The next order, which halves as well, and the error of the flow itself are allowed.
    """
    flow = solve(flowing(data, **MEMORIES[memory]), kernels="none").train_loss.values
    wide, middle, fine = (
        solve(stepping(data, n, **MEMORIES[memory]), kernels="none").train_loss.values[:: n // 4] - flow
        for n in (12, 24, 48)
    )
    first, second = (np.linalg.norm(b) / np.linalg.norm(a) for a, b in ((wide, middle), (middle, fine)))
    off = 2 * RTOL * float(flow.max()) / np.linalg.norm(fine)
    assert off < 0.1
    assert abs(second - 0.5) < 0.6 * abs(first - 0.5) + off


@pytest.mark.parametrize(
    ("data", "memory"),
    [
        ("fixed", "decay and noise"),
        *(
            pytest.param(*x, marks=pytest.mark.slow)
            for x in (("fixed", "momentum"), ("isotropic", "momentum"), ("isotropic", "decay and noise"))
        ),
    ],
)
def test_networks_follow_the_flow(data: str, memory: str) -> None:
    e = flowing(data, 1e-4, **MEMORIES[memory]).replace({"training.points": 3, "training.time": 1.0})
    name = "error" if data == "fixed" else "test_loss"
    runs = [simulate(e, width=n, seeds=40, rng=n, kernels="none", tolerance=1e-4) for n in (48, 96)]
    small, large = (r[name].values for r in runs)
    one, two = (r[f"{name}_stderr"].values for r in runs)
    stderr = np.hypot(2 * two, one)
    z = np.abs(2 * large - small - solve(e, kernels="none")[name].values) / stderr
    assert excess(z, 39) < 1


@pytest.mark.slow
def test_the_error_estimate_of_a_flow_with_noise_is_honest() -> None:
    """Paths are rough, and correlations have a cusp at equal times: the order falls, the estimate holds."""
    memory = MEMORIES["decay and noise"]
    fine = solve(flowing("fixed", 1e-5, **memory)).error
    for rtol in (1e-2, 1e-3):
        coarse = solve(flowing("fixed", rtol, **memory))
        missed = float(np.abs(coarse.error - fine).max() / np.abs(fine).max())
        assert missed <= coarse.attrs["error_estimate"] <= rtol


def test_tables_do_not_overflow_late() -> None:
    e = flowing("fixed", weight_decay=2.0, temperature=0.5)
    nodes = np.array([0.0, 1.0, 1000.0, 1001.0])
    tables = tables_of(Problem.of(e).program, Problem.of(e).numbers, nodes, np.tri(4, k=-1))
    assert tables["n"][3, 3] == pytest.approx(0.5 / 2.0)  # T/lambda: the stationary variance
    assert tables["n"][3, 2] == pytest.approx(0.25 * np.exp(-2.0))
    assert np.array_equal(tables["n"], tables["n"].T)
    assert tables["m"].tolist() == np.exp(-2.0 * nodes).tolist()


@pytest.mark.parametrize(
    ("solved", "flow"),
    [
        (solve, False),
        (partial(expand, order=2), True),
        pytest.param(solve, True, marks=pytest.mark.slow),
        pytest.param(partial(expand, order=2), False, marks=pytest.mark.slow),
    ],
)
def test_noise_of_weights_that_hardly_forget(flow: bool, solved: Callable[[Experiment], xr.Dataset]) -> None:
    """No decay is the limit of a small one, although the stationary variance ``T/lambda`` diverges."""

    def found(**more: float) -> xr.Dataset:
        e = stepping("fixed", 4, temperature=0.2, **more)
        return solved(flowing("fixed", 1e-3, temperature=0.2, **more) if flow else e)

    without, with_decay = found(), found(weight_decay=1e-12)
    for name in ("error", "train_loss", "Phi", "G"):
        np.testing.assert_allclose(with_decay[name], without[name], rtol=0, atol=2e-11)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["decay", pytest.param("momentum", marks=pytest.mark.slow)])
def test_responses_of_a_flow_that_remembers_are_limits_of_those_of_steps(kind: str) -> None:
    """``A(t, s)`` and ``B(t, s)`` over the step, extrapolated to no step; s < t."""
    memory = {"decay": {"weight_decay": 2.0}, "momentum": {"momentum": 0.5}}[kind]
    network = {"network": {"depth": 2}}
    training = {"rule": "flow", "time": 2.0, "points": 5, **memory}
    flow = solve(experiment("fixed", {**network, "training": training, "solver": {"rtol": RTOL}}))
    found = []
    for steps in (12, 24, 48):
        descent = stepping("fixed", steps, **memory).spec.training.model_dump(exclude_unset=True)
        result = solve(experiment("fixed", {**network, "training": descent}))
        at = slice(None, None, steps // 4)
        found.append({k: result[k].to_numpy()[:, at, at] * steps / 2.0 for k in ("A", "B")})
    earlier = np.tril_indices(5, -1)
    for k in ("A", "B"):
        one, two, three = (x[k][:, *earlier] for x in found)
        limit = (8 * three - 6 * two + one) / 3  # free of the first and the second power of the step
        assert limit == pytest.approx(flow[k].to_numpy()[:, *earlier], abs=3e-3 * np.abs(limit).max())
