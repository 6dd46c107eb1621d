"""Tests of `dmft limits early-time`: numbers and formulas of the first step, refusals."""

import json
from pathlib import Path
from typing import Any

import pytest
from sympy import Symbol, sympify

from derive.program import isotropic
from numerics.analysis.limits import early_time, largest_rate
from numerics.cli import run
from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.solver import solve

ONLINE = """
[network]
depth = 3
width_ratio = 0.5
[data]
kind = "isotropic"
batch_ratio = 0.75
noise = 0.2
[training]
rule = "sgd"
learning_rate = 0.1
steps = 1
center = true
"""


def tables(network: dict[str, Any], data: dict[str, Any], **training: Any) -> dict[str, Any]:
    return {
        "network": {"depth": 1, "gamma0": 0.8, **network},
        "data": {"kind": "isotropic", **data},
        "training": {"learning_rate": 0.23, "steps": 1, **training},
    }


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(
            tables({"width_ratio": 0.5}, {"sample_ratio": 0.7, "noise": 0.3}), marks=pytest.mark.slow
        ),
        tables({"width_ratio": 0.5}, {"batch_ratio": 0.7}, rule="sgd", center=True),
        pytest.param(
            tables({"depth": 2, "width_ratio": [0.5, 2.0]}, {"batch_ratio": 0.7}, rule="sgd"),
            marks=pytest.mark.slow,
        ),
        pytest.param(tables({"depth": 2, "width_ratio": [0.5, 2.0]}, {}), marks=pytest.mark.slow),
        pytest.param(
            tables({"width_ratio": 0.5, "parametrization": "ntk"}, {}, center=True), marks=pytest.mark.slow
        ),
        pytest.param(
            tables({"width_ratio": 0.5, "branch": 0.6}, {"sample_ratio": 0.7}, center=True),
            marks=pytest.mark.slow,
        ),
        pytest.param(tables({"depth": 3, "width_ratio": 0.5}, {"sample_ratio": 0.7}), marks=pytest.mark.slow),
        pytest.param(
            tables({"width_ratio": 0.5}, {"sample_ratio": 0.7}, weight_decay=0.3), marks=pytest.mark.slow
        ),
        tables({}, {"sample_ratio": 0.7}, weight_decay=0.3),
        *(
            pytest.param(
                tables({"width_ratio": 0.5}, {"sample_ratio": 0.7}, **{x: 0.3}), marks=pytest.mark.slow
            )
            for x in ("momentum", "temperature")
        ),
    ],
)
def test_the_growth_is_that_of_the_march(spec: dict[str, Any]) -> None:
    experiment = Experiment.from_dict(spec)
    solved = solve(experiment)
    found = early_time(experiment)
    assert found.growth_factor == pytest.approx(float(solved.C_v[1, 1] / solved.C_v[0, 0]), rel=1e-13)
    assert found.critical_learning_rate is not None
    there = solve(experiment.replace({"training.learning_rate": found.critical_learning_rate})).C_v
    assert float(there[1, 1] / there[0, 0]) == pytest.approx(1, abs=1e-11)


def test_widths_of_layers_are_symbols_of_the_formula() -> None:
    one, each = (
        early_time(Experiment.from_dict(tables({"width_ratio": x}, {}, center=True))).formula
        for x in (0.5, [0.5])
    )
    width, own = Symbol("nu", positive=True), Symbol("nu(1)", positive=True)
    assert own in each.free_symbols
    assert (each.subs(own, width) - one.subs(Symbol("L", integer=True, positive=True), 1)).simplify() == 0


@pytest.mark.slow
def test_below_the_critical_rate_the_loss_falls_and_above_it_rises() -> None:
    experiment = Experiment.from_dict(
        tables({"depth": 1, "width_ratio": 0.5}, {"batch_ratio": 0.7}, rule="sgd")
    )
    critical = early_time(experiment).critical_learning_rate
    assert critical is not None
    found = largest_rate(experiment, rtol=1e-2, rise=False)
    assert found.stable <= critical <= found.unstable
    below = early_time(experiment.replace({"training.learning_rate": 0.5 * critical})).growth_factor
    assert below is not None
    assert below < 1


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "online.toml"
    file.write_text(ONLINE)
    assert run(["limits", "early-time", str(file), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    names = {x: Symbol(x) for x in ("L", "eta", "nu", "alpha_B", "sigma")}
    numbers = {"L": 3, "eta": 0.1, "nu": 0.5, "alpha_B": 0.75, "sigma": 0.2}
    growth = sympify(printed["formula"], locals=names)
    assert {str(x) for x in growth.free_symbols} == set(names)
    assert float(growth.subs(numbers)) == pytest.approx(printed["growth_factor"])
    critical = sympify(printed["critical_formula"], locals=names)
    assert float(critical.subs(numbers)) == pytest.approx(printed["critical_learning_rate"])


def test_text_and_symbolic_depth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "online.toml"
    file.write_text(ONLINE.replace("depth = 3", 'depth = "L"'))
    assert run(["limits", "early-time", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("C_v(1)/C_v(0) = ")
    assert lines[1].startswith("critical learning rate: 12*alpha_B*nu/(")
    assert run(["limits", "early-time", str(file), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert lines[-len(printed["conditions"]) - 1 :] == [
        "conditions",
        *[f"  {x}" for x in printed["conditions"]],
    ]
    assert any("every depth" in x for x in printed["conditions"])
    assert printed["growth_factor"] is None
    assert printed["critical_learning_rate"] is None


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            'kind = "isotropic"\nbatch_ratio = 0.75\nnoise = 0.2',
            'kind = "fixed"',
            ['data.kind = "fixed"', '"isotropic"'],
        ),
        ("depth = 3", "depth = 3\noutputs = 2", ["network.outputs = 2", "accepted: 1"]),
        ("depth = 3", 'depth = 3\nactivation = "tanh"', ['network.activation = "tanh"', '"linear"']),
        ("learning_rate = 0.1\n", "", ["training.learning_rate: is missing", "a positive number"]),
        (
            'rule = "sgd"\nlearning_rate = 0.1\nsteps = 1',
            'rule = "flow"\ntime = 1.0',
            ['training.rule = "flow"', '"gd" or "sgd"'],
        ),
        (
            "depth = 3\nwidth_ratio = 0.5",
            'depth = "L"\nwidth_ratio = 0.5\nbranch = 0.5',
            ['network.depth = "L"', "a number"],
        ),
    ],
)
def test_refusals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, words: list[str]
) -> None:
    file = tmp_path / "online.toml"
    text = ONLINE.replace(old, new)
    if "flow" in new:
        text = text.replace("batch_ratio = 0.75\nnoise = 0.2\n", "")
    if "fixed" in new:
        text = text.replace("width_ratio = 0.5\n", "").replace("center = true\n", "").replace("sgd", "gd")
    file.write_text(text)
    assert run(["limits", "early-time", str(file)]) == 2
    said = capsys.readouterr().err
    assert all(x in said for x in words), said


@pytest.mark.slow
def test_a_number_is_needed_for_numbers() -> None:
    spec = tables({"depth": 1, "width_ratio": 0.5}, {})
    del spec["training"]["learning_rate"]
    with pytest.raises(SpecError, match="learning_rate"):
        early_time(Experiment.from_dict(spec))


def test_numbers_beside_an_experiment_are_refused() -> None:
    """They were not used."""
    with pytest.raises(SpecError, match="numbers: is given beside an experiment"):
        early_time(Experiment.from_dict(tables({}, {})), {"eta": 3.0})


@pytest.mark.slow
@pytest.mark.parametrize("data", ["population", "online"])
def test_numbers_of_a_formula_with_a_root_are_refused_with_the_reason(data: Any) -> None:
    """They were asked for the root q, and q was then no symbol of the theory."""
    program = isotropic(data=data)
    assert early_time(program).root is not None
    for numbers in ({"gamma0": 1.0, "L": 3}, {"q": 1.0}):
        with pytest.raises(SpecError, match=r"contains the root q of an equation .*center=True"):
            early_time(program, numbers)


def test_a_symbol_of_a_program_has_one_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last of both numbers of eta was taken without a word."""
    file = tmp_path / "program.py"
    file.write_text("from derive import isotropic\nprogram = isotropic(1, data='population')\n")
    twice = ["--set", "eta=0.1", "--set", "training.learning_rate=0.2"]
    assert run(["limits", "early-time", f"{file}:program", *twice]) == 2
    assert "is a second number for the symbol eta" in capsys.readouterr().err
