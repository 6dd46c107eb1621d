"""The whole way for linear networks that are not plain, and errors that it must find."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from matplotlib.image import imread
from sympy import Rational

from numerics.cli import run
from numerics.errors import Diverged
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.results import load
from numerics.simulation.experiment import reference_size
from numerics.solver import solve
from numerics.verification import Effort, Report, identities, networks, verify
from numerics.verification.figure import draw
from numerics.verification.plan import NetworkPlan, plan_of, ratios_of, widths_near, work
from numerics.verification.report import Check
from numerics.verification.run import correlation_error
from tests.derive.once import scaled

KERNEL = np.array([[1.0, 0.3, -0.2], [0.3, 1.2, 0.1], [-0.2, 0.1, 0.8]])
TARGETS = np.array([1.0, -0.5, 0.3])
TWO = np.stack([TARGETS, -0.7 * TARGETS[::-1]], axis=1)
FEW = Effort(work=1e9, smallest=(48, 16))
SPEC = """
[network]
depth = 2
width_ratio = 1.5
[data]
kind = "isotropic"
sample_ratio = 2.0
noise = 0.3
[training]
learning_rate = 0.05
steps = 6
"""


def isotropic(network: Any = None, data: Any = None, training: Any = None) -> Experiment:
    return Experiment.from_dict(
        {
            "network": {"depth": 2, "gamma0": 0.8, "width_ratio": 1.5, **(network or {})},
            "data": {"kind": "isotropic", **({"sample_ratio": 2.0} if data is None else data)},
            "training": {"learning_rate": 0.05, "steps": 6, **(training or {})},
        }
    )


def fixed(network: Any = None, training: Any = None, targets: Any = TARGETS) -> Experiment:
    steps = {} if training and "rule" in training else {"learning_rate": 0.1, "steps": 6}
    tables = {
        "network": {"depth": 2, "gamma0": 0.8, **(network or {})},
        "training": {**steps, **(training or {})},
    }
    return Experiment.from_dict(tables, kernel=KERNEL, targets=targets)


def power_law(network: Any = None, data: Any = None, training: Any = None, rtol: float = 1e-4) -> Experiment:
    modes = {"kind": "power-law", "capacity": 1.5, "source": 0.6, "modes": 60}
    return Experiment.from_dict(
        {
            "network": {"depth": 2, "gamma0": 0.8, **(network or {})},
            "data": {**modes, **(data or {})},
            "training": training or {"learning_rate": 0.1, "steps": 6},
            "solver": {"rtol": rtol},
        }
    )


FLOW_KEYS: dict[str, object] = {
    **{f"training.{k}": v for k, v in (("rule", "flow"), ("time", 2.0), ("points", 5))},
    **{"training.steps": None, "training.learning_rate": None, "solver.rtol": 1e-4},
}
FLOW = {"rule": "flow", "time": 2.0, "points": 5}
EXPERIMENTS: dict[str, Callable[[], Experiment]] = {
    "widths and variances": lambda: fixed(
        {"relative_widths": [1.0, 0.5], "init_variance": [1.0, 2.0, 0.5]}, {"center": True}
    ),
    "full batch, noise": lambda: isotropic(data={"sample_ratio": 2.0, "noise": 0.3}),
    "biases and outputs": lambda: fixed({"outputs": 2, "bias": True}, targets=TWO),
    "momentum": lambda: isotropic(training={"momentum": 0.4}),
    "population, branches, outputs": lambda: isotropic({"branch": 0.6, "outputs": 2}, {}, {"center": True}),
    "ntk": lambda: isotropic({"parametrization": "ntk"}),
    "Langevin": lambda: fixed({"bias": True}, {"weight_decay": 0.2, "temperature": 0.1}),
    "everything": lambda: fixed(
        {"depth": 3, "outputs": 2, "branch": 0.4, "bias": True}, {"weight_decay": 0.1}, TWO
    ),
    "power law, population": lambda: power_law(),
    "power law, flow": lambda: power_law({"depth": 1}, training={**FLOW, "time": 20.0, "grid": "log"}),
    "power law, flow with momentum": lambda: power_law({"depth": 1}, training={**FLOW, "momentum": 0.4}),
    "flow on isotropic data": lambda: isotropic().replace(FLOW_KEYS),
    "flow with noise": lambda: fixed(training={**FLOW, "temperature": 0.1}).replace({"solver.rtol": 1e-3}),
    "branches and momentum": lambda: fixed({"branch": 0.5}, {"momentum": 0.5, "loss": "sum"}),
    "online, unequal widths": lambda: isotropic(
        {"width_ratio": [1.5, 0.5]}, {"batch_ratio": 1.0}, {"rule": "sgd"}
    ),
    "flow with decay": lambda: fixed(training={**FLOW, "weight_decay": 0.2}).replace({"solver.rtol": 1e-4}),
    "power law, batches": lambda: power_law(
        {"width": 24}, {"batch": 32, "noise": 0.1}, {"rule": "sgd", "learning_rate": 0.1, "steps": 6}
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_right_theory_passes(name: str, tmp_path: Path) -> None:
    report = verify(EXPERIMENTS[name](), tmp_path / "out", effort=FEW)
    assert report.passed, report.table()
    assert {check.group for check in report.checks} >= {"derivation", "solution", "networks"}
    assert max(map(len, report.table().splitlines())) <= 115
    assert imread(tmp_path / "out" / "figure.png").shape[1] > 1000


def test_the_caption_fits_the_figure() -> None:
    """With the longest words there are."""
    e = power_law({"width": 1024}, {"batch": 1024}, {"rule": "sgd", "learning_rate": 0.1, "steps": 2})
    theory = solve(e)
    names = [x for x in theory.data_vars if str(x) in ("train_loss", "test_loss", "C_h", "C_g")]
    network = theory[names].assign({f"{x}_stderr": 0 * theory[x] for x in names})
    trained = [network.assign_attrs(theory.attrs, width=n, seeds=2) for n in (1024, 2048, 4096)]
    picture = draw(e, theory, trained)
    picture.canvas.draw()
    caption = picture.texts[0].get_window_extent()
    assert caption.x0 >= 0
    assert caption.x1 <= picture.bbox.width


# -- files and words -----------------------------------------------------------------------------------


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "spec.toml"
    path.write_text(SPEC)
    return path


@pytest.mark.slow
def test_the_command_writes_all_files(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = spec.parent / "out"
    assert run(["verify", str(spec), "-o", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "Single-site process" in printed
    assert (folder / "table.txt").read_text() in printed
    names = {"equations.txt", "equations.tex", "checks.json", "theory.nc", "networks.nc", "figure.png"}
    assert {path.name for path in folder.iterdir()} == names | {"table.txt", "report.html"}
    assert json.loads((folder / "checks.json").read_text())["passed"] is True
    theory, trained = load(folder / "theory.nc"), load(folder / "networks.nc")
    assert np.isinf(trained.width.values[-1])
    assert trained.C_h.dims == ("width", "layer", "time", "time_")
    assert {"test_loss_stderr", "C_v", "C_g_stderr"} <= set(trained.data_vars)
    assert theory.C_v.shape == (7, 7)


@pytest.mark.slow
def test_wide_layers_have_no_networks(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "networks.nc").write_text("of another run")
    report = verify(isotropic({"width_ratio": None}), out_dir=folder)
    assert report.passed, report.table()
    assert {check.group for check in report.checks} == {"derivation", "solution"}
    assert "networks: none were trained" in report.table()
    assert not (folder / "networks.nc").exists()
    assert (folder / "figure.png").exists()


@pytest.mark.slow
def test_what_is_left_out_is_said() -> None:
    report = verify(fixed({"bias": True}, {"center": True}), effort=replace(FEW, kernel=0.0))
    assert report.passed, report.table()
    assert "traces are compared" in report.table()
    assert any(c.name.startswith("G^2(t,t)") for c in report.checks)
    assert not any(c.name.startswith("H^") for c in report.checks if c.group == "networks")
    assert any(c.name.startswith("mean H^2") for c in report.checks)


def test_nothing_is_written_when_the_dynamics_diverge(tmp_path: Path) -> None:
    with pytest.raises(Diverged):
        verify(isotropic(training={"learning_rate": 9.0, "steps": 60}), out_dir=tmp_path / "out")
    assert not (tmp_path / "out").exists()


# -- errors in the theory ------------------------------------------------------------------------------


def failed(checks: list[Check]) -> set[str]:
    return {check.name for check in checks if not check.passed}


def test_a_planted_error_is_seen_by_the_solution_and_by_the_networks() -> None:
    """Half of the responses in the theory of wide layers on random data."""
    right = Problem.of(isotropic())
    halved = partial(scaled, kind="response", factor=Rational(1, 2))
    wrong = replace(right, experiment=None, reductions=(*right.reductions, halved))
    trained = networks.train(right, NetworkPlan((32, 64, 128), (20, 20, 20)))
    assert not failed(identities.inner_products(right))
    assert not failed(networks.against_networks(solve(right), trained))
    assert failed(identities.inner_products(wrong)) == {"<g^l h^l>, the same at every layer"}
    assert "test loss at t = 6" in failed(networks.against_networks(solve(wrong), trained))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "name"),
    [(isotropic, "C_g"), pytest.param(lambda: fixed({"bias": True}), "G", marks=pytest.mark.slow)],
    ids=["isotropic", "fixed"],
)
def test_networks_alone_find_a_wrong_theory(build: Callable[[], Experiment], name: str) -> None:
    e = build()
    solution = solve(e)
    trained = networks.train(e, plan_of(e, replace(FEW, work=2e9)))
    assert not failed(networks.against_networks(solution, trained))
    wrong = failed(networks.against_networks(solution.assign({name: 1.15 * solution[name]}), trained))
    assert wrong
    assert all(x.startswith(f"{name}^") for x in wrong)


def test_numbers_that_are_the_same_in_all_networks_must_be_met() -> None:
    e = isotropic({"outputs": 2})
    solution = solve(e)
    trained = networks.train(e, NetworkPlan((16, 32, 64), (8, 8, 8)))
    still = [d.assign(C_v_stderr=0 * d.C_v_stderr, C_v=solution.C_v) for d in trained]
    assert not {x for x in failed(networks.against_networks(solution, still)) if x.startswith("C_v")}
    off = solution.assign(C_v=solution.C_v + 1e-6)
    found = networks.against_networks(off, still)
    assert {c.name.split(",")[0] for c in found if np.isinf(c.observed)} == {"C_v(t"}


def test_a_number_that_is_rounded_to_zero_allows_no_more_than_zero() -> None:
    """The allowance for 1/N^2 was divided by the rounding of a zero: no network could fail."""
    e = isotropic()
    found = solve(e)
    trained = networks.train(e, NetworkPlan((16, 32), (8, 8)))
    allowed = []
    for left in (0.0, 1e-17):
        nothing = found.assign(test_loss=left + 0 * found.test_loss)
        checks = networks.against_networks(nothing, trained)
        allowed.append([x.allowed for x in checks if x.name.startswith("test loss")])
    assert allowed[0]
    np.testing.assert_allclose(allowed[1], allowed[0])


@pytest.mark.slow
def test_networks_off_the_line_are_seen() -> None:
    e = isotropic()
    solution = solve(e)
    trained = networks.train(e, NetworkPlan((48, 96, 192), (40, 40, 40)))
    assert networks.STRAIGHT not in failed(networks.against_networks(solution, trained))
    bent = [trained[0], trained[1].assign(C_g=1.2 * trained[1].C_g), trained[2]]
    checks = networks.against_networks(solution, bent)
    assert networks.STRAIGHT in failed(checks)
    assert "too small" in networks.describe(e, NetworkPlan((48, 96, 192), (40, 40, 40)), checks, solution)


@pytest.fixture(scope="module")
def solution() -> xr.Dataset:
    return solve(isotropic())


def changed(x: xr.DataArray, at: tuple[int, ...], by: float) -> xr.DataArray:
    values = x.to_numpy().copy()
    values[at] += by
    return x.copy(data=values)


def test_a_flow_that_has_not_settled_is_found() -> None:
    e = fixed({"depth": 1}, training=FLOW).replace({"solver.rtol": 1e-4})
    solution = solve(e)
    assert not failed(identities.discretisation_error(Problem.of(e), solution))
    assert failed(identities.discretisation_error(Problem.of(e), solution.assign_attrs(error_estimate=2e-4)))


@pytest.mark.slow
def test_more_modes_than_networks_have_are_said() -> None:
    report = verify(power_law(data={"modes": 5000}))
    assert report.passed, report.table()
    assert "networks: none were trained. They would need all 5000 modes" in report.table()


def test_correlations_that_are_none_are_found(solution: xr.Dataset) -> None:
    assert not failed(identities.correlations(solution))
    crooked = solution.assign(C_v=changed(solution.C_v, (0, 3), 1e-9))
    assert failed(identities.correlations(crooked)) >= {"C_v is symmetric"}
    negative = solution.assign(C_h=solution.C_h - 1e-3 * np.eye(7))
    assert failed(identities.correlations(negative)) == {"C_h^l: -lowest/highest eigenvalue"}


def test_correlations_of_a_flow_are_rounded_at_its_nodes() -> None:
    """Weights of doubling steps of order six are ten thousand times their sum, and so is their rounding."""
    flow = {"rule": "flow", "time": 0.3, "points": 2}
    e = Experiment.from_dict({"network": {"depth": 2}, "training": flow}, kernel=KERNEL, targets=TARGETS)
    problem, solution = Problem.of(e), solve(e, kernels="full")
    allowed = correlation_error(problem, solution)
    assert not failed(identities.correlations(solution, allowed))
    crooked = solution.assign(Phi=changed(solution.Phi, (0, 0, 1, 0, 1), 1e-7))
    assert failed(identities.correlations(crooked, allowed)) >= {"H^l is symmetric"}


def test_rounding_that_long_steps_amplify_is_no_difference() -> None:
    e = Experiment.from_dict(
        {
            "network": {"depth": 2, "gamma0": 0.1},
            "training": {"learning_rate": 1.0, "steps": 4, "momentum": 0.8},
        },
        kernel=[[1.0]],
        targets=[2.3],
    )
    (check,) = identities.direct_evaluation(Problem.of(e))
    assert check.passed
    assert check.allowed < 1e-11


def test_what_is_not_causal_is_found(solution: xr.Dataset) -> None:
    e = isotropic()
    assert not failed(identities.causality(Problem.of(e), solution))
    early = solution.assign(R_vu=changed(solution.R_vu, (2, 3), 1e-12))
    assert "responses to later sources" in failed(identities.causality(Problem.of(e), early))
    at_once = solution.assign(R_vu=changed(solution.R_vu, (2, 2), 1e-12))
    assert "responses to later sources" in failed(identities.causality(Problem.of(e), at_once))
    other = solution.assign(C_v=changed(solution.C_v, (1, 1), 1e-9))
    assert failed(identities.causality(Problem.of(e), other)) == {"3 steps vs the first 3 of 6"}


def test_a_wrong_start_is_found(solution: xr.Dataset) -> None:
    e = isotropic()
    assert not failed(identities.start(Problem.of(e), solution))
    off = solution.assign(test_loss=solution.test_loss + 1e-9)
    assert len(failed(identities.start(Problem.of(e), off))) == 2
    f = fixed({"bias": True})
    wrong = solve(f).assign(train_loss=solve(f).train_loss * (1 + 1e-9))
    assert failed(identities.start(Problem.of(f), wrong)) == {"initial loss = loss at f = 0"}


def test_the_march_is_held_against_the_theory_as_written() -> None:
    (check,) = identities.direct_evaluation(Problem.of(isotropic()))
    assert check.passed
    assert check.allowed < 1e-9


# -- sizes ---------------------------------------------------------------------------------------------


def test_plans_fit_the_budget() -> None:
    effort = Effort(work=2e10)
    short, long = isotropic(), isotropic(training={"steps": 800})
    assert plan_of(short, effort).widths == (288, 576, 1152)
    plan = plan_of(long, effort)
    assert plan.widths[0] < 288
    total = sum(k * work(long, n) for n, k in zip(plan.widths, plan.seeds, strict=True))
    assert total < 1.01 * effort.work


@pytest.mark.parametrize("ratios", [[0.7, 1.3], 0.3, [1.1, 0.9]])
def test_sizes_are_those_at_which_ratios_are_whole(ratios: Any) -> None:
    e = isotropic({"width_ratio": ratios}, {"sample_ratio": 0.7})
    for n in widths_near(e, 100):
        size = reference_size(e, n)
        assert all(abs(r * size - round(r * size)) < 1e-9 for r in ratios_of(e))


def test_progress_counts_networks() -> None:
    seen: list[tuple[int, int]] = []
    e = isotropic()
    plan = NetworkPlan((16, 32, 64), (3, 2, 2))
    networks.train(e, plan, lambda done, total: seen.append((done, total)))
    assert seen == [(k, 7) for k in range(1, 8)]


def test_a_report_of_these_checks_fails_with_one_of_them(solution: xr.Dataset) -> None:
    off = solution.assign(C_v=changed(solution.C_v, (0, 3), 1e-9))
    assert not Report("title", tuple(identities.correlations(off))).passed
