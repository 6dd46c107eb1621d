"""Kernels of networks at some of the times, and flows whose units are held at a kink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.simulation import KernelTimes, simulate
from tests.chance import excess
from tests.derive.once import mlp

KERNEL = np.array([[1.0, 0.3], [0.3, 0.8]])
CHOSEN = KernelTimes(pairs=(0, 4), traces=(0, 1, 4))


def experiment(network: Mapping[str, Any], training: Mapping[str, Any] | None = None) -> Experiment:
    tables = {
        "network": {"depth": 2, **network},
        "training": {"learning_rate": 0.3, "steps": 4} if training is None else {**training},
    }
    return Experiment.from_dict(tables, kernel=KERNEL, targets=[1.0, -0.6])


CASES = {
    "linear": lambda: experiment({}),
    "tanh": lambda: experiment({"activation": "tanh"}),
    "residual": lambda: experiment({"activation": "relu", "branch": 0.5}),
    "flow": lambda: experiment({}, {"rule": "flow", "time": 1.0, "points": 5}),
}


@pytest.mark.parametrize("name", CASES)
def test_kernels_at_some_of_the_times_are_those_of_all_times(name: str) -> None:
    e = CASES[name]()
    few = simulate(e, width=8, seeds=3, rng=1, kernels=CHOSEN)
    whole = simulate(e, width=8, seeds=3, rng=1)
    assert {"Phi_trace", "tangent_kernel_trace", "Phi", "G", "error"} <= set(few.data_vars)
    for label, x in few.data_vars.items():
        at: dict[str, Any] = {}
        for dim, places in (("kernel_time", CHOSEN.pairs), ("trace_time", CHOSEN.traces)):
            if dim in x.dims:
                np.testing.assert_array_equal(few[dim], whole.time[[*places]])
                at = {"time": [*places], "time_": [*places]}
        np.testing.assert_allclose(x, whole[label].isel(at), rtol=1e-6, atol=1e-9)


def test_traces_alone_are_measured_without_kernels_of_all_pairs() -> None:
    found = simulate(CASES["tanh"](), width=8, seeds=2, rng=1, kernels=KernelTimes(traces=(0, 4)))
    assert not {"Phi", "G"} & set(found.data_vars)
    assert found.G_trace.dims == ("layer", "trace_time", "trace_time_")


def test_kernels_at_every_time_have_the_dimensions_of_all_times() -> None:
    every = tuple(range(5))
    found = simulate(CASES["linear"](), width=8, seeds=2, rng=1, kernels=KernelTimes(every, every))
    assert found.Phi.dims == ("layer", "time", "time_", "sample", "sample_")
    assert found.G.dims == ("layer", "time", "time_")


def test_each_network_is_handed_on() -> None:
    seen: list[Mapping[str, Any]] = []
    found = simulate(CASES["linear"](), width=8, seeds=5, rng=1, kernels=CHOSEN, each=seen.append)
    assert len(seen) == 5
    np.testing.assert_allclose(np.mean([x["train_loss"] for x in seen], axis=0), found.train_loss)
    np.testing.assert_allclose(np.mean([x["Phi"] for x in seen], axis=0), found.Phi)


def test_units_held_at_a_kink_are_on_each_side_as_often_as_in_short_steps() -> None:
    """G of a relu flow is that of descent in short steps, which starts from the same networks.

    After Runge-Kutta steps held units were on one side at every output time: G of two samples was 0.36
    instead of 0.6.
    """
    one_layer = {"depth": 1, "activation": "relu", "gamma0": 1.5}
    flow = experiment(one_layer, {"rule": "flow", "time": 2.0, "points": 2})
    steps = experiment(one_layer, {"learning_rate": 0.05, "steps": 40})
    at = {"time": -1, "time_": -1, "layer": 0}
    one, other = (simulate(e, width=96, seeds=60, rng=1) for e in (flow, steps))
    gap = (one.G - other.G.assign_coords(time=0.05 * other.time, time_=0.05 * other.time_)).isel(at)
    error = np.hypot(one.G_stderr.isel(at), other.G_stderr.isel(at).to_numpy())
    assert excess(gap / error, 59) < 1


@pytest.mark.parametrize("name", ["linear", "tanh"])
def test_a_selection_without_times_has_no_kernels(name: str) -> None:
    e = CASES[name]()
    assert not {"Phi", "G", "Phi_trace"} & {*simulate(e, width=4, seeds=2, rng=1, kernels=KernelTimes())}
    pairs = simulate(e, width=4, seeds=2, rng=1, kernels=KernelTimes(pairs=np.array([0, 2])))  # type: ignore[arg-type]
    assert "Phi" in pairs
    assert not {"Phi_trace", "tangent_kernel_trace"} & {*pairs}


@pytest.mark.parametrize("traces", [(-1, 0), (0, 5), (1.0,), ((0, 1),)])
def test_times_that_do_not_exist_are_refused(traces: Any) -> None:
    """A negative position gave numbers from memory that was never written."""
    with pytest.raises(SpecError, match=r"kernels.traces = .*integers from 0 to 4"):
        simulate(CASES["linear"](), width=4, seeds=2, kernels=KernelTimes(traces=traces))


def test_networks_without_a_tangent_kernel_have_traces_of_kernels() -> None:
    given: dict[str, Any] = {"numbers": {"eta": 0.1, "gamma0": 1.0}, "times": range(3)}
    given |= {"arrays": {"K_x": KERNEL, "y": [1.0, -0.6]}, "width": 4, "seeds": 2, "rng": 1}
    whole, traces = (simulate(mlp(1, "tanh", tied=False), kernels=x, **given) for x in ("full", "trace"))
    for name in ("Phi_trace", "G_trace"):
        np.testing.assert_allclose(traces[name], whole[name], rtol=1e-12)
