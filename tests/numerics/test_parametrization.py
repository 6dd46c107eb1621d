"""Tests of `dmft limits parametrization`: output for the width and the depth, refusals."""

import json
from importlib import import_module
from types import SimpleNamespace

import pytest
from sympy import Rational, sympify

from numerics.cli import run

COMMAND = import_module("numerics.cli.limits")
TABLES = import_module("numerics.cli.optimizers")


@pytest.mark.slow
def test_width_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["limits", "parametrization", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    family = {k: sympify(v) for k, v in printed["family"].items()}
    assert family["d"] == Rational(1, 2)
    assert family["a_W0"] == family["a_W(1)"] - Rational(1, 2) == family["a_w"] - Rational(1, 2)
    assert {k: v["regime"] for k, v in printed["named"].items()} == {
        "NTK": "lazy",
        "mean-field": "feature learning",
        "standard": "unstable",
        "standard, rate 1/N": "lazy",
        "muP": "feature learning",
    }
    assert printed["named"]["NTK"]["changes"]["h(2)"] == "-1/2"
    assert printed["named"]["standard"]["rates"]["h(2)"] == "1/2"


def test_width_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"a_w": "a"}
    row = {"regime": "lazy", "broken": ["features move only as N^(-1/2)"]}
    found = {"requirements": {"x": ["a_w = 0"]}, "family": table, "maximal_update": table}
    found |= {"symmetries": [{"d": "1"}], "named": {"NTK": row}, "conditions": ["width to infinity"]}
    monkeypatch.setattr(COMMAND, "width", lambda: found)
    assert run(["limits", "parametrization"]) == 0
    printed = capsys.readouterr().out
    assert "NTK                 lazy: features move only as N^(-1/2)" in printed
    assert "same network:   d = 1" in printed
    assert "conditions\n  width to infinity" in printed


def test_depth_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    step = {"name": "output", "exponent": "0", "leading": "-xi**2", "how": "counted"}
    found = {"alpha": "1/2", "regime": "depth-muP", "exponents": {"output": "0"}, "statements": [step]}
    found["conditions"] = ["width before depth"]
    seen = []

    def classify(_: object, alpha: str, gamma: str) -> SimpleNamespace:
        seen.append((alpha, gamma))
        return SimpleNamespace(as_json=lambda: dict(found))

    monkeypatch.setattr("derive.scale.depth.DepthParametrization.classify", classify)
    assert run(["limits", "parametrization", "--alpha", "1/2", "--gamma", "-1/3"]) == 0
    printed = capsys.readouterr().out
    assert seen == [("1/2", "-1/3")]
    assert "regime                  depth-muP" in printed
    assert "  output: L^(0); first step -xi**2 [counted]" in printed
    assert "  width before depth" in printed


@pytest.mark.slow
def test_depth(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["limits", "parametrization", "--alpha", "1/2", "--gamma", "1/2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["regime"] == "depth-muP"
    assert run(["limits", "parametrization", "--alpha", "1", "--gamma", "0"]) == 0
    assert "redundant               True" in capsys.readouterr().out


@pytest.mark.slow
def test_optimizer_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["limits", "parametrization", "--optimizer", "adamw", "--alpha", "3/4", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    rates = {kind: row["rate"] for kind, row in printed["at the multipliers"].items()}
    assert rates == {"input": "0", "hidden": "-1", "readout": "0", "bias": "0", "gain": "0"}
    assert {row["epsilon"] for row in printed["at the multipliers"].values()} == {"-1"}
    assert printed["width"]["neural tangent"]["hidden"]["rate"] == "a - 3/2"
    wrong = printed["wrong"]["epsilon the same at all widths"]
    assert all(words.startswith("freezes") for words in wrong.values())
    assert printed["depth"]["3/4"]["rate"] == "-1/4"
    assert set(printed["depth"]) == {"alpha", "3/4"}


@pytest.mark.slow
def test_optimizer_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["limits", "parametrization", "--optimizer", "muon"]) == 0
    printed = capsys.readouterr().out
    assert "muon: a step has degree 0 in the gradient" in printed
    hidden = [line.replace(" - ", "-").split() for line in printed.splitlines() if "hidden" in line]
    assert ["hidden", "2*a-1", "-a-1", "a", "-a"] in hidden
    assert "the rule of W1 acts on the singular values" in printed


def test_optimizers_are_those_of_the_tables() -> None:
    from derive.scale.optimizer_powers import KINDS, OPTIMIZERS

    assert (*TABLES.MULTIPLIERS,) == KINDS
    assert all(name in COMMAND.OptimizerOption.__metadata__[0].help for name in OPTIMIZERS)


def test_tables_of_an_optimizer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    row = dict.fromkeys(TABLES.COLUMNS, "a") | {"epsilon": None}
    rows = {"input": row, "gain": row | {"variance": None}}
    faults = {"one rate": {"input": "freezes", "gain": "freezes"}}
    depth = {"alpha": {"rate": "alpha"}, "1": {"rate": "0", "wrong": {"one rate": "outputs blow up"}}}
    found = {
        "optimizer": "adam",
        "degree": "0",
        "units": {"epsilon": "1"},
        "width": {"feature learning": rows},
    }
    found |= {
        "normalised": rows,
        "multipliers": {"input": 0},
        "at the multipliers": rows,
        "wrong": faults,
        "depth": depth,
    }
    found |= {"conditions": ["width to infinity"]}
    monkeypatch.setattr(TABLES, "optimizer_tables", lambda *_: found)
    assert run(["limits", "parametrization", "--optimizer", "adam"]) == 0
    printed = capsys.readouterr().out
    assert "adam: a step has degree 0 in the gradient; epsilon has degree 1" in printed
    assert "    input, gain: freezes" in printed
    assert "layers divided by their root mean square, feature learning: the same powers" in printed
    assert "  alpha = 1, one rate: outputs blow up" in printed
    assert "epsilon" not in printed.partition("powers of N")[2]
    assert "conditions\n  width to infinity" in printed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--alpha", "1/2"], '--alpha = "1/2": is given without the other option'),
        (["--gamma", "1"], '--gamma = "1": is given without the other option'),
        (["--alpha", "x", "--gamma", "1"], "alpha = 'x'"),
        (["--optimizer", "adagrad"], '--optimizer = "adagrad": is not a known optimiser'),
        (["--optimizer", "adam", "--gamma", "1"], '--gamma = "1": cannot be combined with --optimizer'),
    ],
)
def test_refusals(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["limits", "parametrization", *options]) == 2
    assert words in capsys.readouterr().err
