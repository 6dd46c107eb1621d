"""The whole way on tiny experiments, and errors planted in the theory that it must find."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from matplotlib.image import imread
from sympy import Expr, Integer, Rational

import numerics.experiment.theory
from derive.theory import Term, Theory
from numerics.cli import run
from numerics.errors import Diverged
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.results import load
from numerics.solver.linear import _lowered
from numerics.verification import Report, identities, networks, openings, series, verify
from numerics.verification import run as running
from numerics.verification.networks import Plan, plan_of
from numerics.verification.openings import MOST_TIMES, SMALL_SAMPLES, comparable, few, speed
from tests.derive.once import mean_field, mlp

FILES = {
    "equations.txt",
    "equations.tex",
    "table.txt",
    "checks.json",
    "theory.nc",
    "networks.nc",
    "figure.png",
}
ROOT = Path(__file__).parents[3]
KERNEL = np.array([[1.0, 0.3], [0.3, 0.8]])
TARGETS = np.array([1.0, -0.7])
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


def fewer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(networks, "BUDGET", 2e8)
    patch.setattr(networks, "SMALLEST", (64, 32, 16))


@pytest.fixture(autouse=True)
def few_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    fewer(monkeypatch)


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    np.save(tmp_path / "k.npy", KERNEL)
    np.save(tmp_path / "y.npy", TARGETS)
    path = tmp_path / "spec.toml"
    path.write_text(SPEC)
    return path


def forget() -> None:
    """A theory that was changed is in no cache."""
    numerics.experiment.theory.derived.cache_clear()
    _lowered.cache_clear()


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[Theory], Theory]], None]]:
    """Changes the theory that is solved; the expansion and the networks go on as they do."""

    def plant(change: Callable[[Theory], Theory]) -> None:
        monkeypatch.setattr(
            numerics.experiment.theory, "mean_field", lambda program: change(mean_field(program))
        )
        forget()

    yield plant
    monkeypatch.undo()
    forget()


def scaled(theory: Theory, factor: Expr, kind: str, fields: str) -> Theory:
    """The theory with the terms of one kind multiplied, in the equations of the fields named."""

    def change(term: Term) -> Term:
        if term.kind != kind:
            return term
        return term.times(factor)

    return replace(
        theory,
        equations=tuple(
            replace(e, terms=tuple(map(change, e.terms))) if e.name in fields else e for e in theory.equations
        ),
    )


def with_responses_halved(theory: Theory) -> Theory:
    return scaled(theory, Rational(1, 2), "response", "hg")


def with_memory_doubled(theory: Theory) -> Theory:
    return scaled(theory, Integer(2), "memory", "g")


@dataclass(frozen=True)
class Verified:
    report: Report
    folder: Path
    progress: list[tuple[int, int]]


@pytest.fixture(scope="module")
def verified(tmp_path_factory: pytest.TempPathFactory) -> Verified:
    """One hidden layer the whole way, for all tests that look at what comes out."""
    folder, seen = tmp_path_factory.mktemp("verified") / "out", []
    with pytest.MonkeyPatch.context() as patch:
        fewer(patch)
        report = verify(experiment(1), out_dir=folder, progress=lambda *count: seen.append(count))
    return Verified(report, folder, seen)


def test_a_right_theory_passes(verified: Verified):
    passes(verified.report)


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "training"), [(2, GD), (3, FLOW)], ids=["2 layers", "flow"])
def test_right_theories_pass(depth: int, training: dict[str, object]):
    passes(verify(experiment(depth, training)))


def passes(report: Report) -> None:
    assert report.passed, report.table()
    assert {check.group for check in report.checks} == {"derivation", "solution", "expansion", "networks"}
    assert "Single-site process" in report.equations
    assert max(map(len, report.table().splitlines())) <= 110


def test_the_files_of_a_verification(verified: Verified):
    report, folder = verified.report, verified.folder
    assert {path.name for path in folder.iterdir()} == FILES
    assert report.figure == folder / "figure.png"
    assert imread(folder / "figure.png").shape[1] > 1000
    assert (folder / "table.txt").read_text() == report.table() + "\n"
    assert (folder / "equations.txt").read_text().strip() == report.equations.strip()
    assert (folder / "equations.tex").read_text().count(r"\begin{document}") == 1
    summary = json.loads((folder / "checks.json").read_text())
    assert summary["passed"] is True
    assert len(summary["checks"]) == len(report.checks)
    theory, trained = load(folder / "theory.nc"), load(folder / "networks.nc")
    assert theory.attrs["status"] == "ok"
    assert np.isinf(trained.width.values[-1])
    assert {"train_loss", "train_loss_stderr", "Phi_trace", "G", "error"} <= set(trained.data_vars)


def test_the_same_seed_gives_the_same_networks():
    def final_losses(seed: int) -> list[float]:
        e = experiment(seed=seed)
        return [float(d.train_loss[-1]) for d in networks.train(e, Plan((32, 64), (3, 2)))]

    assert final_losses(1) == final_losses(1)
    assert final_losses(1) != final_losses(2)


def test_progress_counts_networks(verified: Verified):
    total = plan_of(experiment(1)).total
    assert verified.progress == [(k, total) for k in range(1, total + 1)]


@pytest.mark.slow
@pytest.mark.parametrize("training", [GD, FLOW], ids=["descent", "flow"])
def test_large_kernels_are_kept_as_traces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, training):
    monkeypatch.setattr(running, "LARGEST_KERNEL", 0.0)
    report = verify(experiment(training=training), out_dir=tmp_path / "out")
    assert report.passed, report.table()
    assert "Phi" not in load(tmp_path / "out" / "theory.nc")


def posed(change: Callable[[Theory], Theory], steps: int) -> Problem:
    """Two layers whose theory is changed; its expansion is derived from the program as it is."""
    given = {"numbers": {"eta": 0.4, "gamma0": 1.0}, "arrays": {"K_x": KERNEL, "y": TARGETS}}
    return Problem.of(change(mean_field(mlp(2, "linear", "gd", "mean"))), **given, times=range(steps + 1))


def test_a_right_theory_is_seen_to_be_right():
    right = posed(lambda theory: theory, 6)
    assert all(c.passed for f in (identities.middle, identities.moved) for c in f(right))


@pytest.mark.parametrize("change", [with_responses_halved, with_memory_doubled])
def test_a_planted_error_is_seen_by_the_solution(change: Callable[[Theory], Theory]):
    wrong = posed(change, 6)
    assert not all(c.passed for f in (identities.middle, identities.moved) for c in f(wrong))


@pytest.mark.parametrize("change", [with_responses_halved, with_memory_doubled])
def test_a_planted_error_is_seen_by_the_expansion(change: Callable[[Theory], Theory]):
    failed = [c.name for c in series.expansion(posed(change, 3))[0] if not c.passed]
    assert "loss: power of gamma0 that is missed" in failed


@pytest.mark.slow
@pytest.mark.parametrize("change", [with_responses_halved, with_memory_doubled])
def test_a_planted_error_is_found(planted, change: Callable[[Theory], Theory], spec: Path, capsys):
    planted(change)
    assert run(["verify", str(spec), "-o", str(spec.parent / "out")]) == 1
    printed = capsys.readouterr().out
    assert "FAILED" in printed
    assert "FAIL <g^l h^l>" in printed or "FAIL f(t+1) - f(t)" in printed
    assert "FAIL loss: power of gamma0" in printed
    assert (spec.parent / "out" / "table.txt").exists()  # a failed check is a result


@pytest.mark.slow
def test_networks_alone_find_a_wrong_theory(monkeypatch: pytest.MonkeyPatch):
    e = experiment(3, {"rule": "gd", "learning_rate": 0.6, "steps": 8})
    solution = numerics_solution(e)
    monkeypatch.setattr(networks, "BUDGET", 3e9)
    trained = networks.train(e, plan_of(e))
    assert all(c.passed for c in networks.against_networks(solution, trained))
    wrong = solution.assign(G=solution.G * 1.3)
    failed = [c.name for c in networks.against_networks(wrong, trained) if not c.passed]
    assert failed
    assert all(name.startswith("G^") for name in failed)


def numerics_solution(e: Experiment) -> xr.Dataset:
    from numerics.solver import solve

    return solve(e)


def test_nothing_is_written_when_the_dynamics_diverge(tmp_path: Path):
    wild = experiment(training={"rule": "gd", "learning_rate": 40.0, "steps": 40})
    with pytest.raises(Diverged):
        verify(wild, out_dir=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_smaller_experiment_learns_at_the_same_rate(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(openings, "LARGEST_KERNEL", 0.0)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((30, 40))
    for training in ({**GD, "steps": 100}, {**FLOW, "points": 100}):
        for loss in ("mean", "sum"):
            e = Experiment.from_dict(
                {"network": {"depth": 1}, "training": {**training, "loss": loss}}, inputs=x, targets=x[:, 0]
            )
            whole = Problem.of(e)
            small = few(whole)
            assert small.seen == SMALL_SAMPLES
            assert len(small.times) == MOST_TIMES
            rates = [speed(a) for a in (small, whole)]
            if training["rule"] == "gd":
                assert rates[0] == pytest.approx(rates[1])
            else:
                elapsed = [r * a.times[-1] for r, a in zip(rates, (small, whole), strict=True)]
                assert elapsed[0] == pytest.approx(elapsed[1])


@pytest.mark.slow
def test_what_is_not_compared_is_said():
    long = verify(experiment(training={**GD, "learning_rate": 0.5, "steps": 20}))
    assert any("not compared: what is learned after t =" in note for note in long.notes)
    short = verify(experiment(training={**GD, "steps": 2}))
    assert not any("not compared" in note for note in short.notes)


def test_a_flow_is_expanded_at_its_opening():
    e = experiment(training={**FLOW, "time": 500.0, "points": 20})
    opening = comparable(e)
    assert opening.times[-1] < 500.0
    assert len(opening.times) == 61
    assert comparable(experiment()).times[-1] == 6


@pytest.mark.parametrize("name", ["digits.toml", "digits_flow.toml"])
@pytest.mark.parametrize("loss", ["mean", "sum"])
def test_the_opening_of_many_samples_is_checked_on_a_few(name: str, loss: str):
    """In steps, of a flow too; the solver's reductions and the chain rule of a product hold to rounding."""
    e = Experiment.load(ROOT / "docs" / "examples" / name).replace({"training.loss": loss})
    if loss == "sum" and e.training.rule == "gd":
        e = e.replace({"training.learning_rate": 0.01})
    checks = [*identities.reduced(Problem.of(e)), *identities.moved(Problem.of(e))]
    assert len(checks) == 2
    assert all(check.passed for check in checks), [check.name for check in checks if not check.passed]
