"""The whole way on tiny experiments, and errors planted in the theory that it must find."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import latex2mathml.converter  # noqa: F401 - what a test needs is there before its time is taken
import matplotlib.backends.backend_svg
import matplotlib.pyplot
import numpy as np
import pytest
from matplotlib.image import imread
from sympy import Rational

from derive.theory import Theory
from numerics.errors import Diverged
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.results import load
from numerics.solver import solve
from numerics.verification import Effort, Report, identities, networks, series, verify
from numerics.verification.plan import NetworkPlan, plan_of
from numerics.verification.report import Check
from numerics.verification.smaller_problems import (
    MOST_TIMES,
    SMALL_SAMPLES,
    in_fixed_steps,
    largest_update_factor,
    with_small_kernels,
)
from numerics.verification.stability import edge_of_stability
from tests.derive.once import mean_field, mlp, scaled

FILES = {
    "equations.txt",
    "equations.tex",
    "table.txt",
    "checks.json",
    "theory.nc",
    "networks.nc",
    "figure.png",
    "report.html",
}
ROOT = Path(__file__).parents[3]
KERNEL = np.array([[1.0, 0.3], [0.3, 0.8]])
TARGETS = np.array([1.0, -0.7])
FEW = Effort(work=1e8, smallest=(64, 32, 16))
LEAST = Effort(work=1e7, smallest=(32, 16, 8))
SHORT = {"rule": "gd", "learning_rate": 0.4, "steps": 3}
GD = {"rule": "gd", "learning_rate": 0.4, "steps": 6}
FLOW = {"rule": "flow", "time": 1.5, "points": 7}
SPEC = """
[network]
depth = 2
[data]
kernel = "k.npy"
targets = "y.npy"
[training]
learning_rate = 0.4
steps = 6
"""


def experiment(depth: int = 2, training: dict[str, object] = GD, **solver: object) -> Experiment:
    tables = {"network": {"depth": depth}, "training": training, "solver": {"rtol": 1e-4, **solver}}
    return Experiment.from_dict(tables, kernel=KERNEL, targets=TARGETS)


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    np.save(tmp_path / "k.npy", KERNEL)
    np.save(tmp_path / "y.npy", TARGETS)
    path = tmp_path / "spec.toml"
    path.write_text(SPEC)
    return path


@dataclass(frozen=True)
class Verified:
    """Report, folder and progress of one verification."""

    report: Report
    folder: Path
    progress: list[tuple[int, int]]


@pytest.fixture(scope="module")
def warm() -> None:
    """Run a verification whose derivations and imports the process keeps."""
    verify(experiment(1, SHORT), effort=LEAST)


@pytest.fixture(scope="module")
def verified(warm: None, tmp_path_factory: pytest.TempPathFactory) -> Verified:
    """Return a whole verification of one hidden layer, for all tests of its output."""
    folder, seen = tmp_path_factory.mktemp("verified") / "out", []
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # letters as paths take half a second
        report = verify(experiment(1, SHORT), folder, lambda *count: seen.append(count), LEAST)
    return Verified(report, folder, seen)


def test_a_right_theory_passes(verified: Verified):
    passes(verified.report)


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "training"), [(2, GD), (3, FLOW)], ids=["2 layers", "flow"])
def test_right_theories_pass(depth: int, training: dict[str, object]):
    passes(verify(experiment(depth, training), effort=FEW))


def passes(report: Report) -> None:
    assert report.passed, report.table()
    assert {check.group for check in report.checks} == {"derivation", "solution", "expansion", "networks"}
    assert "Single-site process" in report.equations
    assert max(map(len, report.table().splitlines())) <= 110


def test_the_files_of_a_verification(verified: Verified):
    report, folder = verified.report, verified.folder
    assert {path.name for path in folder.iterdir()} == FILES
    assert report.folder == folder
    assert imread(folder / "figure.png").shape[1] > 1000
    assert (folder / "table.txt").read_text() == report.table() + "\n"
    assert (folder / "equations.txt").read_text().strip() == report.equations.strip()
    assert (folder / "equations.tex").read_text().count(r"\begin{document}") == 1
    summary = json.loads((folder / "checks.json").read_text())
    assert summary["passed"] is True
    assert {"version", "libraries", "data_sha256", "spec"} <= set(summary)
    assert len(summary["checks"]) == len(report.checks)
    theory, trained = load(folder / "theory.nc"), load(folder / "networks.nc")
    assert theory.attrs["status"] == "ok"
    assert np.isinf(trained.width.values[-1])
    assert {"train_loss", "train_loss_stderr", "Phi_trace", "G", "error"} <= set(trained.data_vars)


def test_the_page_needs_no_other_file_and_holds_everything(verified: Verified):
    report = verified.report
    text = (verified.folder / "report.html").read_text()
    page = ElementTree.fromstring(re.sub(r"<meta [^>]*>|<!DOCTYPE html>", "", text).replace("&nbsp;", " "))
    said = " ".join(page.itertext())
    assert all(x in said for x in (report.verdict, *(c.name for c in report.checks)))
    assert all(x in said for x in ("Single-site process", "rate = 0.4", "dmft verify", "sha256", "Pehlevan"))
    assert "\\" not in said  # no formula is left as source
    assert sum(x.tag.endswith("}math") for x in page.iter()) > 5
    assert sum(x.tag.endswith("}svg") for x in page.iter()) == 1
    links = [v for x in page.iter() for k, v in x.attrib.items() if k.endswith(("href", "src"))]
    assert all(x.startswith(("#", "data:")) for x in links)


def test_a_check_that_failed_stands_out_in_a_notebook():
    rows = [Check("networks", "a < b", x, expected=1.0, allowed=0.1, basis="") for x in (1.0, 2.0)]
    page = Report("a network", tuple(rows))._repr_html_()
    assert page.count('<tr class="failed">') == 1
    assert "FAILED: 1 of 2 checks: a &lt; b" in page


def test_the_same_seed_gives_the_same_networks():
    def final_losses(seed: int) -> list[float]:
        e = experiment(seed=seed)
        return [float(d.train_loss[-1]) for d in networks.train(e, NetworkPlan((32, 64), (3, 2)))]

    assert final_losses(1) == final_losses(1)
    assert final_losses(1) != final_losses(2)


def test_progress_counts_networks(verified: Verified):
    total = plan_of(experiment(1, SHORT), LEAST).total
    assert verified.progress == [(k, total) for k in range(1, total + 1)]


@pytest.mark.slow
@pytest.mark.parametrize("training", [GD, FLOW], ids=["descent", "flow"])
def test_large_kernels_are_kept_as_traces(tmp_path: Path, training):
    report = verify(experiment(training=training), tmp_path / "out", effort=replace(FEW, kernel=0.0))
    assert report.passed, report.table()
    assert "Phi" not in load(tmp_path / "out" / "theory.nc")


CHANGES = {
    "responses halved": partial(scaled, kind="response", factor=Rational(1, 2)),
    "memory doubled": partial(scaled, kind="memory", factor=2, fields="g"),
}


def posed(change: Callable[[Theory], Theory], steps: int) -> Problem:
    """Return a problem of two layers with a changed theory, whose expansion is that of the program."""
    given = {"numbers": {"eta": 0.4, "gamma0": 1.0}, "arrays": {"K_x": KERNEL, "y": TARGETS}}
    return Problem.of(change(mean_field(mlp(2, "linear", "gd", "mean"))), **given, times=range(steps + 1))


def test_a_right_theory_is_seen_to_be_right():
    right = posed(lambda theory: theory, 6)
    assert all(c.passed for f in (identities.inner_products, identities.output_changes) for c in f(right))


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_planted_error_is_seen_by_the_solution(change: Callable[[Theory], Theory]):
    wrong = posed(change, 6)
    assert not all(c.passed for f in (identities.inner_products, identities.output_changes) for c in f(wrong))


@pytest.mark.slow
def test_the_expansion_of_a_flow_with_biases_has_the_nodes_of_the_solutions():
    """Biases make a flow faster than its data's kernel suggests: the first grid is stable for neither."""
    tables = {
        "network": {"depth": 1, "bias": True},
        "training": {"rule": "flow", "time": 3.0, "points": 3},
    }
    e = Experiment.from_dict(tables, kernel=np.array([[0.1]]), targets=np.array([-0.7]))
    checks, _ = series.expansion(e)
    assert len(checks) == 5
    assert all(c.passed for c in checks)


@pytest.mark.parametrize(
    "change",
    [CHANGES["responses halved"], pytest.param(CHANGES["memory doubled"], marks=pytest.mark.slow)],
    ids=CHANGES,
)
def test_a_planted_error_is_seen_by_the_expansion(change: Callable[[Theory], Theory]):
    failed = [c.name for c in series.expansion(posed(change, 3))[0] if not c.passed]
    assert "loss: exponent of the truncation error" in failed


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_planted_error_is_found(change: Callable[[Theory], Theory], tmp_path: Path):
    printed = verify(posed(change, 6), tmp_path / "out", effort=FEW).table()
    assert "FAILED" in printed
    assert "FAIL loss: exponent of the truncation error" in printed
    assert (tmp_path / "out" / "table.txt").exists()  # a failed check is a result


@pytest.mark.slow
def test_networks_alone_find_a_wrong_theory():
    e = experiment(3, {"rule": "gd", "learning_rate": 0.6, "steps": 8})  # stable in the first two steps
    solution = solve(e)
    edge = edge_of_stability(Problem.of(e), solution)
    assert edge == 1
    trained = networks.train(e, plan_of(e, replace(FEW, work=3e9)), theory=solution)
    rows = networks.quantities(networks.traced(solution), trained, edge=edge)
    assert all(c.passed for c in networks.against_networks(solution, trained, rows))
    wrong = solution.assign(G=solution.G * 1.3)
    failed = [c.name for c in networks.against_networks(wrong, trained, rows) if not c.passed]
    assert failed
    assert all(name.startswith("G^") for name in failed)


def test_nothing_is_written_when_the_dynamics_diverge(tmp_path: Path):
    wild = experiment(training={"rule": "gd", "learning_rate": 40.0, "steps": 40})
    with pytest.raises(Diverged):
        verify(wild, out_dir=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_smaller_experiment_learns_at_the_same_rate():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((30, 40))
    for training in ({**GD, "steps": 100}, {**FLOW, "points": 100}):
        for loss in ("mean", "sum"):
            e = Experiment.from_dict(
                {"network": {"depth": 1}, "training": {**training, "loss": loss}}, inputs=x, targets=x[:, 0]
            )
            whole = Problem.of(e)
            small = with_small_kernels(whole, Effort(kernel=0.0))
            assert small.seen == SMALL_SAMPLES
            assert len(small.times) == MOST_TIMES
            rates = [largest_update_factor(a) for a in (small, whole)]
            if training["rule"] == "gd":
                assert rates[0] == pytest.approx(rates[1])
            else:
                elapsed = [r * a.times[-1] for r, a in zip(rates, (small, whole), strict=True)]
                assert elapsed[0] == pytest.approx(elapsed[1])


@pytest.mark.slow
def test_what_is_not_compared_is_said():
    long = verify(experiment(training={**GD, "learning_rate": 0.5, "steps": 20}))
    assert any("not compared: losses and errors after t =" in note for note in long.notes)
    short = verify(experiment(training={**GD, "steps": 2}))
    assert not any("not compared" in note for note in short.notes)


def test_a_flow_is_expanded_at_its_opening():
    e = experiment(training={**FLOW, "time": 500.0, "points": 20})
    opening = in_fixed_steps(e)
    assert opening.times[-1] < 500.0
    assert len(opening.times) == 61
    assert in_fixed_steps(experiment()).times[-1] == 6


@pytest.mark.parametrize("name", ["digits.toml", "digits_flow.toml"])
@pytest.mark.parametrize("loss", ["mean", pytest.param("sum", marks=pytest.mark.slow)])
def test_the_opening_of_many_samples_is_checked_on_a_few(name: str, loss: str):
    """Steps and a flow; the solver's reductions and the chain rule of a product hold to rounding."""
    e = Experiment.load(ROOT / "docs" / "examples" / name).replace({"training.loss": loss})
    if loss == "sum" and e.training.rule == "gd":
        e = e.replace({"training.learning_rate": 0.01})
    checks = [*identities.unreduced_theory(Problem.of(e)), *identities.output_changes(Problem.of(e))]
    assert len(checks) == 2
    assert all(check.passed for check in checks), [check.name for check in checks if not check.passed]


def test_outputs_at_the_start_that_are_large_are_named_where_a_check_fails():
    """gamma0 = 1e-3: networks of 192 units begin at outputs of order 70, which an error that bends sees."""
    small = experiment(1, {**GD, "steps": 1}).replace({"network.gamma0": 1e-3})
    solution, plan = solve(small), NetworkPlan((48, 96, 192), (4, 4, 4))
    for e, named in ((small, True), (small.replace({"training.center": True}), False)):
        for observed in (1.0, 2.0):
            check = Check("networks", "Delta", observed, expected=1.0, allowed=0.1, basis="")
            said = networks.describe(e, plan, [check], solution)
            assert ("training.center = true" in said) == (named and not check.passed)
