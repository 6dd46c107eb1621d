"""Tests of inputs of a command: programs in a Python file, arrays of three kinds, command-line keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import numerics
from derive.theory import Theory
from numerics.analysis.equilibrium import rest_point
from numerics.analysis.limits import depth_limits, early_steps, early_time, largest_rate, rate_limit, recovery
from numerics.cli import run
from numerics.cli.arguments import experiment_in, problem_in, program_in
from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.experiment.experiment import read_array
from numerics.experiment.schema import Solver
from tests.chance import excess
from tests.derive.once import convolution, isotropic, mean_field, mlp

X = np.array([[1.0, 0.2, -0.5], [0.3, -1.0, 0.8]])
Y = np.array([1.0, -0.6])
NET = """
from derive.program import convolution, isotropic, mlp

program = mlp(2, "linear", "gd", "mean")
number = 3


def deep():
    return mlp(rule="flow", loss="mean")


def broken():
    raise RuntimeError("no such network")
"""
SPEC = """
[network]
depth = 2
[data]
inputs = "all.npz:x"
targets = "y.csv"
[training]
learning_rate = 0.2
steps = 3
"""
ARRAYS = {"kernel": "k.npy", "targets": "y.npy"}
SETTINGS = {"training.steps": "3", "training.learning_rate": "0.2", "network.gamma0": "1.0"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.save("k.npy", X @ X.T / 3)
    np.save("y.npy", Y)
    np.savez("all.npz", x=X, y=Y)
    np.savetxt("x.csv", X, delimiter=",")
    Path("y.csv").write_text("label\n1.0\n-0.6\n")
    Path("net.py").write_text(NET)
    Path("spec.toml").write_text(SPEC)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "expected"), [("all.npz:x", X), ("all.npz:y", Y), ("x.csv", X), ("y.csv", Y), ("y.npy", Y)]
)
def test_arrays_of_three_kinds(name: str, expected: np.ndarray) -> None:
    array = read_array("data.inputs", name, Path())
    assert array.ndim == (2 if name.endswith(".csv") else expected.ndim)
    np.testing.assert_allclose(array.reshape(expected.shape), expected)


MATRIX = "1.0,2.0\n3.0,4.0\n"


@pytest.mark.parametrize(
    "text",
    [
        MATRIX,
        "\ufeff" + MATRIX,
        "\ufeffa,b\n" + MATRIX,
        "# made on Monday\n# a, 1\n" + MATRIX,
        '"a, in metres","b"\n"1.0","2.0"\n"3.0","4.0"\n',
    ],
)
def test_every_row_of_a_table_is_read(text: str) -> None:
    Path("table.csv").write_text(text, encoding="utf-8")
    np.testing.assert_array_equal(read_array("data.inputs", "table.csv", Path()), [[1.0, 2.0], [3.0, 4.0]])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1.0,NA\n" + MATRIX, "the first line has the cell 'NA'"),
        ("NA\n1.0\n", "the first line has the cell 'NA'"),
        ("#N/A\n1.0\n", "the first line has the cell '#N/A'"),
        ("1.0, two\n" + MATRIX, "the first line has the cell 'two'"),
        (",a\n0,1.0\n1,2.0\n", "the first line has the cell ''"),
        ("y\n1,5\n2,5\n", "the line of names has 1 names, and rows have 2 numbers"),
        ("1.0,2.0\n3.0,4.0 # late\n", "cannot be read as an array"),
    ],
)
def test_a_first_line_is_not_taken_for_names_by_mistake(text: str, words: str) -> None:
    Path("table.csv").write_text(text)
    with pytest.raises(SpecError, match=words):
        read_array("data.inputs", "table.csv", Path())


def test_columns_in_a_file_and_a_byte_order_mark() -> None:
    """One feature, one sample, and a file of an experiment as editors of Windows write them."""
    Path("one.csv").write_text("\ufeff1.0\n-2.0\n", encoding="utf-8")
    Path("kernel.csv").write_text("2.5\n")
    Path("target.csv").write_text("0.5\n")
    text = SPEC.replace("all.npz:x", "one.csv")
    Path("marked.toml").write_text("\ufeff" + text, encoding="utf-8")
    found = Experiment.load("marked.toml")
    np.testing.assert_array_equal(found.inputs, [[1.0], [-2.0]])
    assert found.text == text
    Path("kernel.toml").write_text(
        text.replace('inputs = "one.csv"', 'kernel = "kernel.csv"').replace("y.csv", "target.csv")
    )
    np.testing.assert_array_equal(Experiment.load("kernel.toml").kernel, [[2.5]])
    with pytest.raises(SpecError, match=r"has shape \(2,\).*also if P or D is 1"):
        Experiment.from_dict({"network": {"depth": 1}}, inputs=[1.0, 2.0], targets=Y)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("all.npz", "does not say which array"),
        ("all.npz:z", "has no array z"),
        ("none.npz:x", "no such file"),
        ("none.csv", "no such file"),
        ("net.py", "cannot be read as an array"),
        ("bad.csv", "cannot be read as an array"),
        ("empty.csv", "no line of numbers"),
        ("bad.npz:x", "cannot be read as an array"),
    ],
)
def test_arrays_that_cannot_be_read_are_refused(name: str, words: str) -> None:
    Path("bad.csv").write_text("1.0,2.0\n3.0\n")
    Path("empty.csv").write_text("label\n")
    Path("bad.npz").write_text("no archive")
    with pytest.raises(SpecError, match=words) as caught:
        read_array("data.inputs", name, Path())
    assert (caught.value.key, caught.value.value) == ("data.inputs", name)
    assert ".npz" in caught.value.accepted


def test_a_file_with_all_of_them_is_the_same_experiment() -> None:
    found = Experiment.load("spec.toml")
    np.testing.assert_allclose(found.kernel, X @ X.T / 3)
    np.testing.assert_allclose(found.targets, Y)


def test_keys_and_arrays_from_the_command_line() -> None:
    found = experiment_in("spec.toml", {"targets": "all.npz:y"}, {"training.steps": "5"})
    assert found.training.steps == 5
    np.testing.assert_allclose(found.targets, Y)
    for settings, key in (({"training.stepz": "5"}, "training.stepz"), ({"steps": "5"}, "steps")):
        with pytest.raises(SpecError) as caught:
            experiment_in("spec.toml", {}, settings)
        assert caught.value.key == key


def test_a_program_in_a_file_is_the_network_of_an_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"-D={k}={v}" for k, v in ARRAYS.items()] + [f"--set={k}={v}" for k, v in SETTINGS.items()]
    words = [part for word in words for part in (word.split("=", 1))]
    assert run(["solve", "net.py:program", *words, "--json"]) == 0
    program = json.loads(capsys.readouterr().out)
    assert run(["solve", "spec.toml", "--json"]) == 0
    experiment = json.loads(capsys.readouterr().out)
    np.testing.assert_allclose(program["train_loss"], experiment["train_loss"], rtol=1e-10)
    assert "net.py:program" in program["spec"]
    assert run(["simulate", "net.py:program", *words, "--width", "8", "--seeds", "2"]) == 0
    assert run(["derive", "net.py:program"]) == 0
    assert run(["solve", "net.py:program", *words, "--explain"]) == 0
    assert "runs: march" in capsys.readouterr().out


def test_a_function_makes_a_program_and_its_depth_is_set() -> None:
    settings = {"network.depth": "2", "training.time": "1.0", "training.points": "4", "gamma0": "0.5"}
    problem = problem_in("net.py:deep", ARRAYS, settings)
    assert (problem.depth, problem.flow, len(problem.times)) == (2, True, 4)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("net.py:number", "is an object of type int, not a program"),
        ("net.py:nothing", r"has no name nothing \(accepted: net.py:program\)"),
        ("net.py:broken", "raised RuntimeError at line .*: no such network"),
        ("none.py:program", "no such file"),
        ("spec.toml", "names no program"),
        ("net.py", "names no program of this Python file .*net.py:program"),
        ("net.py:", "names no program of this Python file"),
        ("net.py:program.name", "names no program of this Python file"),
    ],
)
def test_what_is_no_program_is_refused(name: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        program_in(name)


BROKEN_FILES = {
    "def f(:": "raised SyntaxError",
    "import nothing_there": "raised ModuleNotFoundError at line 1: No module named 'nothing_there'",
    "import sys; sys.exit(0)": "the file raised SystemExit(0)",
    "raise ValueError('one\\ntwo')": "raised ValueError at line 1: one two",
    "def program(depth): pass": "program cannot be called without arguments: it needs depth",
    "from derive.program import Program as program": "program cannot be called without arguments: it needs",
    "def program(): raise SystemExit": "the file raised SystemExit(None)",
    "import derive; program = derive.mean_field(derive.mlp(1))": "the attribute `program` of the theory is",
    "program = None": "is an object of type NoneType, not a program",
    "\\x00": "raised SyntaxError",
}


@pytest.mark.parametrize("text", BROKEN_FILES)
def test_a_broken_python_file_ends_with_2_and_one_line(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that called `sys.exit(0)` ended every command with status 0 and without a word."""
    Path("own.py").write_bytes(text.encode().replace(b"\\x00", b"\0").replace(b"\\\\n", b"\\n"))
    assert run(["derive", "own.py:program"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith('dmft: file = "own.py:program": ')
    assert BROKEN_FILES[text] in err


def test_a_program_may_import_what_stands_beside_it_and_print(capsys: pytest.CaptureFixture[str]) -> None:
    """`import widths` in `sub/own.py` failed, and a line printed there stood before the JSON."""
    Path("sub").mkdir()
    Path("sub/beside_own.py").write_text("DEPTH = 2\n")
    text = "import derive\nfrom beside_own import DEPTH\nprint('hello')\nprogram = derive.mlp(DEPTH)\n"
    Path("sub/own.py").write_text(text)
    assert run(["derive", "sub/own.py:program", "--format", "json"]) == 0
    out, err = capsys.readouterr()
    json.loads(out)
    assert "hello" in err


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"training.learning_rate": None}, "training.learning_rate"),
        ({"training.steps": None}, "training.steps"),
        ({"training.steps": "-1"}, "training.steps"),
        ({"network.bias": "true"}, "network.bias"),
        ({"training.rule": "flow"}, "training.rule"),
        ({"training.loss": "sum"}, "training.loss"),
        ({"training.objective": "logistic"}, "training.objective"),
        ({"training.momentum": "0.5"}, "training.momentum"),
        ({"training.center": "true"}, "training.center"),
        ({"eta": "0.2"}, "eta"),
        ({"P": "7"}, "-D kernel"),
        ({"network.depth": "2.5"}, "network.depth"),
        ({"zeta": "1.0"}, "zeta"),
        ({"zeta": "blue"}, "zeta"),
        ({"solver.method": "magic"}, "solver.method"),
    ],
)
def test_what_a_program_lacks_ends_with_2(
    changes: dict[str, str | None], key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {k: v for k, v in (SETTINGS | changes).items() if v is not None}
    words = [w for k, v in ARRAYS.items() for w in ("-D", f"{k}={v}")]
    words += [w for k, v in settings.items() for w in ("--set", f"{k}={v}")]
    assert run(["solve", "net.py:program", *words]) == 2
    assert capsys.readouterr().err.startswith(f"dmft: {key}")


@pytest.mark.parametrize(("left_out", "added"), [("kernel", None), ("targets", None), (None, "inputs")])
def test_arrays_of_a_program_are_named_by_their_option(
    left_out: str | None, added: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    arrays = {k: v for k, v in ARRAYS.items() if k != left_out} | ({added: "all.npz:x"} if added else {})
    words = [w for k, v in arrays.items() for w in ("-D", f"{k}={v}")]
    words += [w for k, v in SETTINGS.items() for w in ("--set", f"{k}={v}")]
    assert run(["solve", "net.py:program", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"dmft: -D {left_out or added}: ")
    assert f"-D {left_out}=FILE.npy" in said or "kernel, targets" in said


def test_a_toml_file_never_runs_code(capsys: pytest.CaptureFixture[str]) -> None:
    Path("evil.toml").write_text("[network]\ndepth = 1\nactivation = \"__import__('os')\"\n")
    assert run(["derive", "evil.toml"]) == 2
    assert "network.activation" in capsys.readouterr().err


def test_rooms_are_called_with_a_path_or_an_experiment() -> None:
    one, two = numerics.solve("spec.toml"), numerics.solve(numerics.Experiment.load("spec.toml"))
    xr.testing.assert_equal(one, two)
    assert numerics.simulate("spec.toml", width=8, seeds=2, rng=0).sizes["sample"] == 2
    assert set(numerics.__all__) <= set(dir(numerics))
    with pytest.raises(AttributeError):
        _ = numerics.nothing


def test_a_defect_is_one_line_and_status_4(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr("numerics.solver.registry.choose", broken)
    assert run(["solve", "spec.toml"]) == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "a defect in dmft: KeyError" in err


@pytest.mark.parametrize(
    ("words", "program", "said"),
    [
        (["early-time"], "isotropic(data='population', center=True)", "critical learning rate"),
        pytest.param(
            ["largest-rate", "--regime", "lazy"],
            "isotropic(data='population', center=True)",
            "power of nu",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_limits_of_a_program_are_formulas(words, program, said, tmp_path, capsys):
    (tmp_path / "net.py").write_text(f"from derive.program import isotropic\nprogram = {program}\n")
    command, *options = words
    assert run(["limits", command, f"{tmp_path / 'net.py'}:program", *options]) == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("words", [["early-time"], ["largest-rate", "--regime", "rich"]])
def test_limits_of_another_program_say_what_its_theory_lacks(words, tmp_path, capsys):
    (tmp_path / "net.py").write_text("from derive.program import mlp\nprogram = mlp()\n")
    command, *options = words
    assert run(["limits", command, f"{tmp_path / 'net.py'}:program", *options]) == 2
    assert "is derived from C_v" in capsys.readouterr().err


def test_a_changed_theory_is_solved_as_it_is() -> None:
    """Without responses the output learns at 2 K in place of (L + 1) K; a flow needs the theory in steps."""
    given = {"arrays": {"K_x": [[1.0, 0.3], [0.3, 1.0]], "y": [1.0, -1.0]}}
    steps = given | {"numbers": {"eta": 0.1, "gamma0": 1.5}, "times": range(4)}
    theory = mean_field(mlp(2))
    own, same = (numerics.solve(x, **steps).train_loss for x in (theory.program, theory))
    assert np.array_equal(own, same)
    changed = numerics.solve(without_responses(theory), **steps).train_loss
    assert changed[1] == pytest.approx((1 - 0.1 * 2 * 0.7) ** 2)  # K = 0.7 along the targets
    assert own[1] == pytest.approx((1 - 0.1 * 3 * 0.7) ** 2)
    flow = without_responses(mean_field(mlp(2, rule="flow")))
    with pytest.raises(SpecError, match="theory: differs from the theory that is derived from its program"):
        numerics.solve(flow, **given, numbers={"gamma0": 1.5}, times=[0.0, 1.0])


def without_responses(theory: Theory) -> Theory:
    """Return the theory without its response terms in every equation."""
    equations = (
        replace(e, terms=tuple(x for x in e.terms if x.kind != "response")) for e in theory.equations
    )
    return replace(theory, equations=tuple(equations))


@pytest.mark.slow
def test_a_convolution_is_solved_and_trained() -> None:
    """Kernels of layers whose units stand on a ring have positions; the tangent kernel sums over them."""
    kernel = np.einsum("ab,pq->apbq", [[1.0, 0.3], [0.3, 1.0]], np.eye(3))
    given = {"numbers": {"eta": 0.1, "gamma0": 1.0}, "arrays": {"K_x": kernel, "y": [1.0, -1.0]}}
    program = convolution(1, "tanh", positions=3, receptive=1)
    theory = numerics.solve(program, **given, times=range(2), kernels="full", solver=Solver(samples=512))
    networks = numerics.simulate(program, **given, times=range(2), width=100, seeds=20, rng=0)
    assert theory.Phi.dims == networks.Phi.dims
    assert theory.Phi.dims[3:] == ("sample", "position", "sample_", "position_")
    for name in ("train_loss", "Phi", "G", "tangent_kernel"):
        error = np.hypot(networks[f"{name}_stderr"], theory[f"{name}_stderr"])
        z = ((networks[name] - theory[name]) / error).where(error > 1e-9, 0.0)
        assert excess(z, 19) < 1
    assert (networks.tangent_kernel_stderr / theory.tangent_kernel).max() < 0.1


def test_outputs_of_a_program_on_random_data() -> None:
    """Two outputs of a program are those of an experiment."""
    numbers = {"eta": 0.1, "gamma0": 1.0, "alpha": 2.0, "nu": 1.0}
    program = numerics.solve(isotropic(2, outputs=2), numbers=numbers, times=range(3))
    tables = {
        "network": {"depth": 2, "outputs": 2, "width_ratio": 1.0},
        "data": {"kind": "isotropic", "sample_ratio": 2.0},
        "training": {"learning_rate": 0.1, "steps": 2},
    }
    file = numerics.solve(Experiment.from_dict(tables))
    np.testing.assert_allclose(program.test_loss, file.test_loss, rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda e: numerics.solve(e, kernels="final"),
            'kernels = "final": is not one of the choices (accepted: auto, full',
        ),
        (lambda e: numerics.solve(3), "source: int is not a problem (accepted: an experiment, the path"),
        (lambda e: numerics.simulate(e, width=2.5, seeds=2), "width = 2.5: must be a whole number"),
        (lambda e: numerics.simulate(e, width=8, seeds=1), "seeds = 1: one network gives no standard error"),
        (lambda e: numerics.simulate(e, width=8, seeds=2, rng="a"), 'rng = "a": must be a whole number'),
        (
            lambda e: numerics.expand(e, 2.5),
            "--order = 2.5: must be a whole number (accepted: an integer >= 0)",
        ),
        (lambda e: numerics.sweep(e, {"training.steps": [2]}, jobs=0), "jobs = 0: must be positive"),
        (
            lambda e: numerics.sweep(e, {"training.steps": [2]}, kernels="x"),
            'kernels = "x": is not one of the choices',
        ),
    ],
)
def test_arguments_are_refused_before_anything_runs(call, words):
    spec = {"network": {"depth": 1}, "training": {"learning_rate": 0.1, "steps": 2}}
    with pytest.raises(SpecError) as refused:
        call(Experiment.from_dict(spec, inputs=X, targets=Y))
    assert words in str(refused.value)


ISOTROPIC = """
[network]
depth = 1
gamma0 = 0.5
width_ratio = 2.0
[data]
kind = "isotropic"
batch_ratio = 1.0
[training]
rule = "sgd"
learning_rate = 0.1
steps = 2
center = true
"""
POPULATION = """
[network]
depth = 2
gamma0 = 300.0
width_ratio = 4.0
parametrization = "ntk"
[data]
kind = "isotropic"
[training]
center = true
"""
RESTING = """
[network]
depth = 1
[data]
kernel = "k.npy"
targets = "y.npy"
[training]
rule = "flow"
time = 1.0
loss = "sum"
weight_decay = 0.8
temperature = 0.6
"""
ANALYSES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "early_time": (early_time, ISOTROPIC),
    "early_steps": (lambda source: early_steps(source, 1), ISOTROPIC),
    "largest_rate": (lambda source: largest_rate(source, rtol=0.5), ISOTROPIC),
    "rate_limit": (rate_limit, POPULATION),
    "rest_point": (rest_point, RESTING),
}
"""Functions of an experiment that is random or rests, with the text of such an experiment."""


@pytest.mark.parametrize("name", ANALYSES)
def test_the_path_of_a_file_is_its_experiment(name: str) -> None:
    analysis, text = ANALYSES[name]
    np.save("k.npy", [[1.0]])
    np.save("y.npy", [1.5])
    Path("e.toml").write_text(text)
    expected = repr(analysis(Experiment.load("e.toml")))
    assert repr(analysis("e.toml")) == repr(analysis(Path("e.toml"))) == expected


@pytest.mark.parametrize("analysis", [*(x for x, _ in ANALYSES.values()), recovery, depth_limits])
def test_what_is_no_experiment_is_refused_by_all_analyses(analysis: Callable[[Any], Any]) -> None:
    for source in (3, None, {"network": {}}):
        with pytest.raises(SpecError, match="experiment"):
            analysis(source)
