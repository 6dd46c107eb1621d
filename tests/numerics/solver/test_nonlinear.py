"""Nonlinear experiments solved: lazy limits in closed form, another evaluation, flows, what results hold."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from scipy.linalg import expm

from derive.reduce.independence import independent_backward
from numerics.errors import Diverged, NotConverged, SpecError
from numerics.experiment import Experiment
from numerics.experiment.numbers import arrays_of, numbers_of
from numerics.experiment.problem import Problem
from numerics.results import load, save, to_json
from numerics.solver import solve
from numerics.solver.direct import evaluate
from numerics.solver.grid import flow_grid, tables_of
from numerics.solver.paths.accuracy import POWERS, ROUGH, SMOOTH
from numerics.solver.paths.solve import Prepared
from tests.chance import excess, in_errors
from tests.numerics.solver.helpers import TARGETS, kernel

K = kernel(2)
GD = {"learning_rate": 0.5, "steps": 4}
FLOW = {"rule": "flow", "time": 2.0, "points": 5}


def experiment(
    network: dict[str, Any], training: dict[str, Any] | None = None, targets: Any = None, **solver: Any
) -> Experiment:
    tables = {"network": {"depth": 2, "activation": "tanh"} | network, "training": training or GD}
    return Experiment.from_dict(
        tables | {"solver": solver}, kernel=K, targets=TARGETS[:2] if targets is None else targets
    )


# -- independent expectations --------------------------------------------------------------------------------


def erf_tangent_kernel(depth: int) -> np.ndarray:
    """Return the tangent kernel of infinitely wide erf networks (Williams 1997; Jacot et al. 2018)."""
    k, slopes, phi = K, [], [K]
    for _ in range(depth):
        d = 1 + 2 * np.diag(k)
        norm = np.outer(d, d)
        slopes.append(4 / np.pi / np.sqrt(norm - 4 * k**2))
        k = 2 / np.pi * np.arcsin(2 * k / np.sqrt(norm))
        phi.append(k)
    total, back = phi[-1], np.ones_like(K)
    for slope, below in zip(slopes[::-1], phi[-2::-1], strict=True):
        back = back * slope
        total = total + back * below
    return total


@pytest.mark.parametrize(
    ("depth", "training"),
    [(2, GD | {"loss": "sum"}), pytest.param(2, FLOW | {"points": 3}, marks=pytest.mark.slow)],
)
def test_the_lazy_limit_in_closed_form(depth: int, training: dict[str, Any]) -> None:
    ours = solve(
        experiment({"depth": depth, "activation": "erf", "gamma0": 1e-4}, training, samples=512),
        kernels="none",
    )
    rate = erf_tangent_kernel(depth) / (1 if training.get("loss") == "sum" else 2)
    if "time" in training:
        exact = np.stack([expm(-rate * t) @ TARGETS[:2] for t in ours.time.values])
    else:
        exact = np.stack([np.linalg.matrix_power(np.eye(2) - 0.5 * rate, n) @ TARGETS[:2] for n in range(5)])
    assert excess(in_errors(ours.error.values - exact, ours.error_stderr), 7) < 1
    assert ours.error_stderr.max() < 0.005
    np.testing.assert_allclose(ours.train_loss[0], np.mean(TARGETS[:2] ** 2))


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bias, outputs, decay": ({"bias": True, "outputs": 2}, {"weight_decay": 0.3}),
    "branch, variances": ({"branch": 0.5, "init_variance": [1.0, 2.0, 0.5]}, {}),
    "widths, momentum": ({"relative_widths": [1.0, 0.5]}, {"momentum": 0.5}),
    "temperature, centred": ({"activation": "softplus"}, {"temperature": 0.3, "center": True}),
    "an expression": ({"activation": "tanh(0.8*h)/0.8"}, {"loss": "sum"}),
}


LONG = ("branch, variances", "widths, momentum", "temperature, centred", "an expression")


@pytest.mark.parametrize("name", [pytest.param(x, marks=pytest.mark.slow) if x in LONG else x for x in CASES])
def test_keys_against_the_direct_evaluation(name: str) -> None:
    network, training = CASES[name]
    y = np.stack([TARGETS[:2], -TARGETS[1:3]], axis=1) if "outputs" in name else None
    e = experiment(network, {"learning_rate": 0.4, "steps": 1} | training, y, samples=1024)
    ours = solve(e)
    numbers = {k: int(v) if v.is_integer() else v for k, v in numbers_of(e).items()}
    theory = Problem.of(e).discrete
    other = evaluate(theory, steps=2, values=numbers, data=arrays_of(e), samples=256, replicas=6, seed=3)
    z, dof = [], []
    for ours_name, theirs, layer in [
        ("error", "Delta", None),
        ("Phi", "Phi", 2),
        ("G", "G", 1),
        ("B", "B", 1),
        ("tangent_kernel", "K", None),
    ]:
        value, error = other.value(theirs, layer), other.stderr(theirs, layer)
        if theirs != "Delta":
            value, error = (np.moveaxis(x, (-2, -1), (0, 1)) for x in (value, error))
        own, spread = ours[ours_name], ours[f"{ours_name}_stderr"]
        if layer is not None:
            own, spread = own.sel(layer=layer), spread.sel(layer=layer)
        assert own.shape == value.shape
        joint = np.hypot(spread.values, error)
        gap = np.abs(own.values - value)
        assert gap[joint < 1e-12].max(initial=0.0) < 1e-9
        if ours_name != "B":  # Stein's lemma books a response under entries that say the same
            known = joint >= 1e-12
            z.append(gap[known] / joint[known])
            # of two groups (Welch)
            dof.append(joint[known] ** 4 / (spread.values[known] ** 4 / 7 + error[known] ** 4 / 5))
    z = np.concatenate(z)
    assert excess(z, np.concatenate(dof)) < 1
    assert np.sqrt(np.mean(z**2)) < 1.6


# -- flows ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_flow_is_descent_in_small_steps() -> None:
    """Two steps extrapolated to none; from the same seeds."""
    network = {"depth": 1, "gamma0": 2.0}
    flow = solve(experiment(network, {"rule": "flow", "time": 4.0, "points": 3}, samples=512))
    half, whole = (
        solve(experiment(network, {"learning_rate": 2.0 / n, "steps": 2 * n}, samples=512), kernels="none")
        for n in (8, 4)
    )
    descent = 2 * half.error.values[::8] - whole.error.values[::4]
    missed = np.abs(half.error.values[::8] - whole.error.values[::4]).max()
    assert missed > 8 * flow.error_stderr.max()
    assert excess(in_errors(flow.error.values - descent, flow.error_stderr), 7) < 1
    assert flow.attrs["grid_error"] < flow.attrs["accuracy"]
    assert "A" not in flow


def test_a_rough_flow_takes_an_integrator_of_lower_order() -> None:
    for activation, order in (("tanh", 3), ("relu", 2)):
        network = {"depth": 1, "activation": activation}
        found = solve(experiment(network, FLOW | {"points": 3}, samples=64), kernels="none")
        assert found.attrs["integrator"] == f"collocation of the outputs, order {order}"


def order_of_convergence(activation: str, depth: int, order: int, halvings: range, samples: int) -> float:
    """Return the fitted order of differences of errors between grids with halved steps."""
    e = experiment(
        {"depth": depth, "activation": activation, "gamma0": 1.5}, {"rule": "flow", "time": 4.0, "points": 5}
    )
    theory, numbers = (
        Problem.of(e).discrete,
        {k: int(v) if v.is_integer() else v for k, v in numbers_of(e).items()},
    )
    found = []
    for n in halvings:
        grid = flow_grid(e.times, step=0.5**n, order=order)
        data = arrays_of(e) | tables_of(Problem.of(e).program, numbers_of(e), grid.nodes, grid.weights)
        prepared = Prepared(theory, steps=len(grid.nodes), values=numbers, data=data)
        runs = prepared.runs(samples, [np.random.SeedSequence(0, spawn_key=(k,)) for k in range(8)])
        found.append(np.mean([x["Delta", ()][grid.outputs] for x in runs], axis=0))
    gaps = [np.sqrt(np.mean((b - a) ** 2)) for a, b in itertools.pairwise(found)]
    return -float(np.polyfit(np.arange(len(gaps)), np.log2(gaps), 1)[0])


@pytest.mark.parametrize(
    ("activation", "depth", "order", "grids", "least"),
    [
        ("tanh", 1, SMOOTH, range(1, 4), 3.0),
        pytest.param("tanh", 2, SMOOTH, range(3), 2.0, marks=pytest.mark.slow),
        ("relu", 1, ROUGH, range(4), POWERS[ROUGH]),
    ],
)
def test_a_flow_converges(activation: str, depth: int, order: int, grids: range, least: float) -> None:
    assert least < order_of_convergence(activation, depth, order, grids, samples=256) < order + 1


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["relu", "abs"])
def test_a_flow_across_kinks_converges(activation: str) -> None:
    """Responses by Stein's lemma."""
    assert POWERS[ROUGH] < order_of_convergence(activation, 2, ROUGH, range(1, 4), samples=1024) < 5


# -- contents of a result ------------------------------------------------------------------------------------


def test_a_result_is_labelled_saved_and_listed(tmp_path: Any) -> None:
    ours = solve(experiment({"depth": 3}, GD | {"steps": 2}, samples=64))
    pairs = ("layer", "time", "time_", "sample", "sample_")
    assert ours.Phi.dims == ours.G.dims == ours.A.dims == ours.B.dims == pairs
    assert ours.tangent_kernel.dims == pairs[1:]
    biases = {"train_loss_systematic", "error_systematic", "f_systematic"}
    assert set(ours.data_vars) == {f"{n}{end}" for n in NAMES for end in ("", "_stderr")} | biases
    assert np.isnan(ours.A.sel(layer=3)).all()
    assert (ours.B.sel(layer=3) == 0).all()
    assert {"samples": 64, "replicas": 8, "responses": "jacobian", "method": "paths"}.items() <= (
        ours.attrs.items()
    )
    np.testing.assert_allclose(
        ours.accuracy, max((ours[f"{n}_stderr"].max() / abs(ours[n]).max()).item() for n in NAMES[:2])
    )
    save(ours, tmp_path / "out.nc")
    assert load(tmp_path / "out.nc").identical(ours)
    assert to_json(ours)["train_loss_stderr"][0] == 0.0


NAMES = ("train_loss", "error", "f", "Phi", "G", "A", "B", "tangent_kernel")


def test_traces_are_those_of_the_whole() -> None:
    y = np.stack([TARGETS[:2], -TARGETS[1:3]], axis=1)
    e = experiment({"outputs": 2}, GD | {"steps": 1}, y, samples=64)
    full, trace, none = (solve(e, kernels=k) for k in ("full", "trace", "none"))
    assert full.G.dims == ("layer", "time", "time_", "sample", "channel", "sample_", "channel_")
    for name, letters in (("Phi", "ltsmm->lts"), ("G", "ltsmcmc->lts"), ("tangent_kernel", "tsmcmc->ts")):
        np.testing.assert_allclose(trace[f"{name}_trace"], np.einsum(letters, full[name].values), atol=1e-12)
        assert name not in trace
    ends = ("", "_stderr", "_systematic")
    assert set(none.data_vars) == {f"{n}{end}" for n in ("train_loss", "error", "f") for end in ends}
    np.testing.assert_array_equal(none.error, full.error)


def test_another_program_in_its_place() -> None:
    """With an independent backward pass there are no responses."""
    e = experiment({"gamma0": 2.0}, samples=256)
    tied, free = solve(e), solve(Problem.of(e).varied(independent_backward))
    assert free.attrs["responses"] == "none needed"
    assert np.abs(tied.error - free.error).max() > 8 * np.hypot(tied.error_stderr, free.error_stderr).max()


# -- samples from an accuracy --------------------------------------------------------------------------------


def test_samples_are_chosen_for_an_accuracy() -> None:
    network = {"depth": 1, "gamma0": 2.0}
    coarse = solve(experiment(network, accuracy=0.02, method="paths"), kernels="none")
    fine = solve(experiment(network, accuracy=0.0002, method="paths"), kernels="none")
    assert coarse.attrs["samples"] == 256
    assert fine.attrs["samples"] > 256
    assert fine.attrs["accuracy"] <= 0.0002
    assert 0.4 < fine.attrs["error_power"] < 1.5
    assert excess(in_errors(fine.error - coarse.error, coarse.error_stderr), 7) < 1


def test_given_samples_are_taken_and_replicas_added_for_an_accuracy() -> None:
    found = solve(experiment({"depth": 1}, samples=256, accuracy=0.0008), kernels="none")
    assert found.attrs["samples"] == 256
    assert 8 < found.attrs["replicas"] <= 64
    assert found.attrs["accuracy"] <= 0.0008
    with pytest.raises(NotConverged, match=r"solver.accuracy = 1.0e-06: .* at most 64 are tried"):
        solve(experiment({"depth": 1}, GD | {"steps": 1}, samples=256, accuracy=1e-6), kernels="none")


# -- refusals ------------------------------------------------------------------------------------------------


def test_refusals() -> None:
    few = r"= 30: is fewer than a quarter of the 160 entries .* \(accepted: 40 or more, better 320\)"
    with pytest.raises(SpecError, match=few):
        solve(experiment({}, GD | {"steps": 79}, samples=30))
    with pytest.raises(SpecError, match=r"solver.samples = 65: is odd"):
        solve(experiment({}, samples=65))
    with pytest.raises(SpecError, match=r"solver.samples = 8: .*\(accepted: an even integer >= 16"):
        solve(experiment({"depth": 1}, samples=8))
    with pytest.raises(Diverged, match=r"at step \d+[:;] a smaller learning rate"):
        solve(experiment({"activation": "relu"}, {"learning_rate": 1e30, "steps": 12}, samples=64))
    with pytest.raises(SpecError, match=r"network.depth = \"L\""):
        solve(experiment({"depth": "L"}))


def test_what_no_memory_holds_is_refused() -> None:
    with pytest.raises(SpecError, match=r"training.steps = 60: needs .* GiB with 1099511627776 paths"):
        solve(experiment({}, {"learning_rate": 0.1, "steps": 60}, samples=2**40, hours=1e9))
