"""Options of commands on programs: each is used, or refused before anything runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.main import get_command

from numerics.cli import run
from numerics.cli.commands import app
from numerics.results import load

PROGRAMS = """
from derive import program
from derive.program import L, mlp
from derive.program.rules import Momentum


def one():
    return mlp(1, "linear")


def momentum():
    return one().with_rule(Momentum(one().rule.rate, 0.5))


def flow():
    return mlp(1, "linear", "flow")


def series():
    return mlp(L, "linear")


def isotropic():
    return program.isotropic(1)


def perceptron():
    return program.perceptron()
"""

STEPS = ["--set", "training.learning_rate=0.1", "--set", "training.steps=2"]
NUMBERS = [*STEPS, "--set", "network.gamma0=0.5", "-D", "kernel=k.npy", "-D", "targets=y.npy"]

COMMANDS = {
    "derive": ["derive", "net.py:one"],
    "solve": ["solve", "net.py:one", *NUMBERS],
    "solve --explain": ["solve", "net.py:one", "--explain", *NUMBERS],
    "simulate": ["simulate", "net.py:one", "--width", "2", "--seeds", "2", *NUMBERS],
    "expand": ["expand", "net.py:one", "--order", "2", *NUMBERS],
    "expand --show": ["expand", "net.py:series", "--order", "2", "--show", "text"],
    "verify": ["verify", "net.py:one", *NUMBERS],
    "limits early-time": ["limits", "early-time", "net.py:isotropic"],
    "limits largest-rate": ["limits", "largest-rate", "net.py:isotropic", "--regime", "rich"],
    "limits depth": ["limits", "depth", "net.py:one", *NUMBERS],
    "limits finite-width": ["limits", "finite-width", "net.py:one", *NUMBERS],
    "limits equilibrium": ["limits", "equilibrium", "net.py:one"],
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(PROGRAMS)
    np.save("k.npy", np.array([[1.0, 0.3], [0.3, 1.0]]))
    np.save("y.npy", np.array([1.0, -1.0]))
    return tmp_path


def takes(name: str) -> set[str]:
    """Return the options that a command takes, without its required ones and without help."""
    command = get_command(app)
    for word in name.split(" --")[0].split():
        command = command.commands[word]  # type: ignore[attr-defined]
    return {max(x.opts, key=len) for x in command.params if x.opts[0].startswith("-") and not x.required}


WRONG = {
    "--set": ["nonsense=1", "solver.nonsense=1", "network.nonsense=1", "training.loss=mean", "no pair"],
    "--data": ["nonsense=k.npy", "kernel=missing.npy", "no pair"],
}


CASES = [
    (name, option, text)
    for name in COMMANDS
    for option in sorted(WRONG.keys() & takes(name))
    for text in WRONG[option]
]


@pytest.mark.parametrize(("name", "option", "text"), CASES)
def test_what_a_program_does_not_read_is_refused(
    name: str, option: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*COMMANDS[name], option, text]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1


UNUSED = {
    "solve --explain": ["--output o.nc", "--plot o.png", "--width 9", "--json"],
    "expand --show": ["--resum sum", "--data kernel=k.npy", "--set network.gamma0=2", "--set L=2"],
    "limits early-time": ["--steps 2", "--recovery", "--data kernel=k.npy"],
    "limits largest-rate": ["--data kernel=k.npy", "--set eta=1"],
    "limits equilibrium": ["--data kernel=k.npy", "--set eta=1", "--json --format latex"],
}


@pytest.mark.parametrize(
    ("name", "words"), [(name, x) for name, all_words in UNUSED.items() for x in all_words]
)
def test_options_without_an_effect_are_refused(
    name: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*COMMANDS[name], *words.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert " not " in err
    assert not list(Path().glob("o.*"))


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        *[("one", rule) for rule in ("adam", "sign", "sgd", "flow", "nonsense")],
        *[("flow", rule) for rule in ("gd", "adam")],
    ],
)
def test_a_rule_that_is_not_the_one_of_the_program_is_refused(
    name: str, rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["solve", f"net.py:{name}", *NUMBERS, "--set", f"training.rule={rule}"]) == 2
    assert f'dmft: training.rule = "{rule}": the rule of the program is Gradient' in capsys.readouterr().err


def test_the_rule_of_the_program_may_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["solve", "net.py:one", *NUMBERS]) == 0
    said = capsys.readouterr().out
    assert run(["solve", "net.py:one", *NUMBERS, "--set", "training.rule=gd"]) == 0
    assert capsys.readouterr().out == said


def test_a_second_value_of_a_key_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["solve", "net.py:one", *NUMBERS, "--set", "training.steps=5"]) == 2
    assert "is a second value for training.steps, after 2" in capsys.readouterr().err
    words = ["--set", "solver.accuracy=0.1", "--accuracy", "0.2"]
    assert run(["solve", "net.py:one", *NUMBERS, *words]) == 2
    assert "is a second value for solver.accuracy, after 0.1" in capsys.readouterr().err


def test_the_bound_of_hours_holds_for_a_printed_series(capsys: pytest.CaptureFixture[str]) -> None:
    words = COMMANDS["expand --show"]
    assert run([*words, "--set", "solver.hours=1e-12"]) == 2
    assert "a larger solver.hours" in capsys.readouterr().err


@pytest.mark.slow
def test_a_series_and_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*COMMANDS["expand --show"], "--set", "solver.hours=1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["series"].startswith("Expansion")
    words = [*COMMANDS["expand --show"], *NUMBERS, "--set", "L=1", "-o", "o.nc"]
    assert run(words) == 0
    assert capsys.readouterr().out.startswith("Expansion")
    assert load(Path("o.nc")).sizes["order"] == 2
    assert run([*words, "--set", "nonsense=1"]) == 2
    assert capsys.readouterr().out == ""


def test_a_program_without_gamma0_has_no_series(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["expand", "net.py:perceptron", "--order", "2", *STEPS, "--set", "kappa=1"]) == 2
    assert "has a loss that contains no output" in capsys.readouterr().err


def test_an_index_without_a_range_is_a_fault_of_the_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is found when the theory is derived, and was called a defect in dmft."""
    file = tmp_path / "net.py"
    file.write_text(
        "from sympy import Function, S, Symbol\n"
        "from derive.program import *\n"
        "units, pixels = Population('units'), Population('pixels', given=True)\n"
        "x, h, w = GivenVector('x', pixels, 'K_x'), Field('h', units), GaussianVector('w', units)\n"
        "A, f, y = GaussianMatrix('A', units, pixels), Function('f'), Function('y')\n"
        "samples, stray = (IndexRange(mu, S.One, P),), Symbol('nu', integer=True, positive=True)\n"
        "lines = (Definition(h(mu, t), A @ x(stray), samples),\n"
        "         Definition(f(mu, t), Mean(w.symbol * h(mu, t)) / gamma0, samples))\n"
        "net = Network('net', (h,), lines, weights=(A, w), given=(x,))\n"
        "program = net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))\n"
    )
    assert run(["derive", f"{file}:program"]) == 2
    said = capsys.readouterr().err
    assert "program: h(t) = A @ x(nu) contains the index nu, which has no range there" in said
    assert "defect" not in said
