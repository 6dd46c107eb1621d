"""The derived largest rate against the solved theory, and `dmft limits largest-rate`."""

import json
from pathlib import Path

import pytest
from sympy import Symbol, sympify

from derive.program.networks.random_data import nu
from derive.scale import lazy_kernel
from numerics.analysis.limits import largest_rate, rate_limit
from numerics.cli import run
from numerics.errors import NotConverged, SpecError
from numerics.experiment import Experiment
from numerics.solver import solve
from tests.derive.once import isotropic, mean_field

FILE = """
[network]
depth = 2
gamma0 = 300.0
width_ratio = 4.0
parametrization = "ntk"
[data]
kind = "isotropic"
[training]
learning_rate = 1e-3
steps = 40
center = true
"""


def experiment(depth: int, gamma: float, ratio: float, steps: int, rate: float, scaling: str) -> Experiment:
    network = {"depth": depth, "gamma0": gamma, "width_ratio": ratio, "parametrization": scaling}
    training = {"learning_rate": rate, "steps": steps, "center": True}
    return Experiment.from_dict({"network": network, "data": {"kind": "isotropic"}, "training": training})


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "steps", "ratio"), [(1, 60, 100.0), (2, 120, 4.0)])
def test_rich_rates_of_the_solved_theory(depth: int, steps: int, ratio: float) -> None:
    """Within the bisection (2 %), the last quarter of the steps (1 %) and neglected terms (1 % at most)."""
    e = experiment(depth, 1000.0, ratio, steps, 0.1, "ntk")
    expected = rate_limit(e).rate
    assert expected is not None
    start = e.replace({"training.learning_rate": 0.6 * expected})
    assert largest_rate(start, rtol=0.02, settle=True).value == pytest.approx(expected, rel=0.04)


@pytest.mark.slow
def test_above_it_the_error_swings_for_ever_below_its_start() -> None:
    e = experiment(2, 1000.0, 4.0, 120, 0.1, "mean-field")
    expected = rate_limit(e).rate
    assert expected is not None
    loss = solve(e.replace({"training.learning_rate": 1.1 * expected})).test_loss.values
    assert 0.02 < loss[-30:].max() < 0.2
    assert loss[-30:].max() == pytest.approx(loss[-60:-30].max(), rel=0.1)
    loss = solve(e.replace({"training.learning_rate": 0.9 * expected})).test_loss.values
    assert loss[-1] < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("scaling", [pytest.param("mean-field", marks=pytest.mark.slow), "ntk"])
def test_lazy_rates_of_the_solved_theory(scaling: str) -> None:
    expected = lazy_kernel(mean_field(isotropic(2, data="population", center=True))).rate(6, {nu: 0.5})
    found = largest_rate(experiment(2, 1e-3, 0.5, 6, 0.1, scaling), rtol=1e-4, rise=False)
    assert found.value == pytest.approx(expected, rel=1e-4)


def test_settling_needs_a_rate_that_learns() -> None:
    with pytest.raises(NotConverged, match="no largest rate at which training succeeds"):
        largest_rate(experiment(2, 1000.0, 4.0, 8, 1e-9, "ntk"), settle=True)


# -- the command -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "wide.toml"
    file.write_text(FILE)
    assert run(["limits", "largest-rate", str(file), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    numbers = {"L": 2, "nu": 4, "gamma0": 300}
    names = {x: Symbol(x) for x in numbers}
    pairs = {"rate": "formula", "exponent": "exponent_formula", "crossover": "crossover_formula"}
    for key, formula in pairs.items():
        value = sympify(printed[formula], locals=names).subs(numbers)
        assert float(value) == pytest.approx(printed[key])
    assert printed["regime"] == "rich"
    assert any(x.startswith("assumed: ") for x in printed["conditions"])


@pytest.mark.slow
def test_json_of_a_lazy_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "lazy.toml"
    file.write_text(FILE.replace("300.0", "0.3"))
    assert run(["limits", "largest-rate", str(file), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["regime"], printed["exponent"]) == ("lazy", 0.0)
    assert printed["rate"] == pytest.approx(2 / 6.049694986, rel=1e-6)


@pytest.mark.slow
def test_text_and_symbolic_depth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "wide.toml"
    file.write_text(FILE)
    assert run(["limits", "largest-rate", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "regime: rich"
    assert "power of nu: L/(L + 1) = 0.6667" in lines
    assert "crossover between rich and lazy: nu = gamma0**2 = 9e+04" in lines
    file.write_text(FILE.replace("depth = 2", 'depth = "L"').replace('"ntk"', '"mean-field"'))
    assert run(["limits", "largest-rate", str(file), "--regime", "rich"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "power of nu: 0" in lines
    assert "crossover between rich and lazy: none, at any nu" in lines


@pytest.mark.parametrize(
    ("old", "new", "options", "words"),
    [
        ("depth = 2", 'depth = "L"', [], ['network.depth = "L"', "--regime"]),
        ("", "", ["--regime", "warm"], ["--regime", "warm", '"rich" or "lazy"']),
        (
            "width_ratio = 4.0\n",
            "width_ratio = [4.0, 2.0]\n",
            [],
            ["network.width_ratio", "a positive number"],
        ),
        pytest.param(
            *("center = true", "center = false", [], ["training.center = false", "accepted: true"]),
            marks=pytest.mark.slow,
        ),
        ('"isotropic"', '"isotropic"\nsample_ratio = 2.0', [], ["data.sample_ratio = 2", "leaving it out"]),
    ],
)
def test_refusals(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    old: str,
    new: str,
    options: list[str],
    words: list[str],
) -> None:
    file = tmp_path / "wide.toml"
    file.write_text(FILE.replace(old, new) if old else FILE)
    if "[" in new:
        file.write_text(file.read_text().replace('parametrization = "ntk"\n', ""))
    assert run(["limits", "largest-rate", str(file), *options]) == 2
    said = capsys.readouterr().err
    assert all(x in said for x in words), said


def test_a_width_is_needed() -> None:
    spec = {"network": {"depth": 1}, "data": {"kind": "isotropic"}}
    with pytest.raises(SpecError, match="width_ratio"):
        rate_limit(Experiment.from_dict(spec))


@pytest.mark.parametrize(("strength", "holds"), [("300.0", True), ("0.5", False)])
def test_a_rich_rate_at_small_gamma0_is_warned_of(
    strength: str, holds: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The neglected terms grow as gamma0 falls; beyond one the formula is meaningless."""
    path = tmp_path / "e.toml"
    path.write_text(FILE.replace("300.0", strength))
    assert run(["limits", "largest-rate", str(path), "--regime", "rich"]) == 0
    said = capsys.readouterr().out
    assert ("warning: the rich formula does not hold for these numbers" in said) == (not holds)
    assert run(["limits", "largest-rate", str(path), "--regime", "rich", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["neglected"] < 1) == holds == (found["warning"] is None)
