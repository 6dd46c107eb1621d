"""Every refinement ends: with its accuracy, or as not converged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numerics
from numerics.analysis.limits import largest_rate
from numerics.errors import Diverged, NotConverged
from numerics.experiment import Experiment
from numerics.simulation import run as simulation_run
from numerics.simulation.rows import NetworkState
from numerics.solver import refine
from numerics.solver.grid import TimeGrid
from numerics.solver.paths import accuracy
from numerics.solver.quadrature import solve as nodes_module


def experiment(activation: str = "tanh", **solver: Any) -> Experiment:
    flow = {"rule": "flow", "time": 1.0, "points": 3}
    tables = {"network": {"depth": 1, "activation": activation}, "training": flow, "solver": solver}
    return Experiment.from_dict(tables, kernel=[[1.0]], targets=[1.0])


def test_the_distance_of_two_states_is_relative_to_the_second() -> None:
    """For numbers, which have no units, relative to one at least."""
    fields = {("h", 3): np.array([[[1.0, -2.0, 4.0]]]), ("f", 0): np.array([[[0.25]]])}
    one, same = (
        NetworkState({}, fields=fields),
        NetworkState({}, fields={k: x.copy() for k, x in fields.items()}),
    )
    assert one.distance(same) == 0
    same.fields["h", 3] += 0.2
    assert one.distance(same) == pytest.approx(0.2 / 4.2)
    same.fields["f", 0] -= 0.5
    assert one.distance(same) == pytest.approx(0.5)


def test_steps_of_a_flow_of_networks_that_never_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation_run, "MOST_STEPS", 2**5)
    monkeypatch.setattr(NetworkState, "distance", lambda *_: 2.0)
    with pytest.raises(NotConverged, match=r"error of 0.13 with 32 steps between t = 0 and 0.5, more than"):
        numerics.simulate(experiment(), width=4, seeds=2)


def test_bisection_of_a_rate_ends_at_neighbouring_numbers() -> None:
    tables = {"network": {"depth": 1}, "training": {"learning_rate": 1.0, "steps": 4}}
    one = Experiment.from_dict(tables, kernel=[[1.0]], targets=[1.0])
    found = largest_rate(one, rtol=0.0)
    assert found.stable < found.unstable <= found.stable * (1 + 4e-16)


@pytest.mark.parametrize("trapezoidal", [False, True])
def test_grids_of_a_flow_that_never_settle(trapezoidal: bool) -> None:
    """The result changes its sign from grid to grid; each refinement ends at its maximal number of nodes."""
    times, sizes = np.array([0.0, 0.5, 1.0]), [0]
    clock = refine.Trapezoidal(times, 1e-6, first=3) if trapezoidal else refine.AdamsBashforth(times, 1e-6)

    def run(grid: TimeGrid) -> refine.Attempt[None]:
        sizes.append(len(grid.nodes))
        return refine.Attempt(np.full(3, (-1.0) ** len(sizes)), None)

    with pytest.raises(NotConverged, match=f"more than {clock.most} time nodes"):
        refine.refine(clock, run)
    assert max(sizes) <= clock.most


@pytest.mark.parametrize("trapezoidal", [False, True])
def test_grids_of_a_flow_that_diverges_on_all_of_them(trapezoidal: bool) -> None:
    """The error estimate was inf, and a larger rtol was recommended."""
    times = np.array([0.0, 0.5, 1.0])
    clock = refine.Trapezoidal(times, 1e-6, first=3) if trapezoidal else refine.AdamsBashforth(times, 1e-6)

    def run(grid: TimeGrid) -> refine.Attempt[None]:
        raise Diverged(f"f diverged at step {len(grid.nodes) - 1}")

    clock.most = 20

    # the trapezoidal rule is stable at any step, so that the flow itself diverges
    with pytest.raises(Diverged if trapezoidal else NotConverged) as raised:
        refine.refine(clock, run)
    assert "inf" not in str(raised.value)
    said = "f diverged at step" if trapezoidal else "the integrator diverges on every time grid of up to 20"
    assert str(raised.value).startswith(said)


def test_a_flow_that_is_too_fast_for_its_grids(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flow is stable, so that a divergence of the flow must not be reported."""
    monkeypatch.setattr(refine, "MAX_NODES", 16)
    one = experiment("linear", method="march").replace({"training.time": 300.0})
    with pytest.raises(NotConverged, match=r"^the integrator diverges on every time grid of up to 16 nodes"):
        numerics.solve(one, kernels="none")


def test_grids_of_sampled_paths_that_diverge_on_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "MAX_NODES", 20)

    def replicas(grid: TimeGrid) -> Any:
        def solve(*_: object) -> Any:
            raise Diverged("f diverged at step 3")

        return solve

    integrator = accuracy.Integrator("explicit", 2, 2.0)
    given: dict[str, Any] = {"rtol": 1e-6, "accuracy": None, "integrator": integrator}
    with pytest.raises(NotConverged, match=r"^the integrator diverges on time grids of up to 20 nodes"):
        accuracy.settle_paths(np.array([0.0, 0.5, 1.0]), replicas, list, 64, **given)


@pytest.mark.parametrize("where", ["reach", "replicas"])
def test_a_search_for_paths_whose_error_never_falls(where: str) -> None:
    calls: list[int] = []

    def attempt(samples: int, numbers: Any, into: Any) -> Any:
        for n in numbers:
            calls.append(samples)
            yield {"x": np.array([1.0 + (-1.0) ** n])}

    most = 1024 if where == "reach" else 64
    with pytest.raises(NotConverged, match="replicas of"):
        accuracy.reach(attempt, list, 1e-3, 64, most)
    assert len(calls) < 200


def test_nodes_that_never_agree() -> None:
    """An unreachable accuracy: the maximal number of nodes is taken, and the result reports it."""
    found = nodes_module.solve_nodes(
        Experiment.from_dict(
            {"network": {"depth": 1, "activation": "tanh"}, "training": {"learning_rate": 0.1, "steps": 2}},
            kernel=[[1.0]],
            targets=[1.0],
        ),
        accuracy=1e-30,
        most=2**10,
    )
    assert not found.converged
    assert found.nodes <= 2**10


def test_the_distance_of_two_states_does_not_ignore_undefined_values() -> None:
    fields = {("h", 2): np.array([[[1.0, np.nan]]]), ("f", 0): np.array([[[0.25]]])}
    state = NetworkState({}, fields=fields, started=True)
    assert np.isnan(state.distance(state))
    assert state.copied().started
