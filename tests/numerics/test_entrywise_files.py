"""Experiment files whose weights move by sign descent, Adam and its kin, against the same programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import xarray as xr
from numpy.typing import NDArray
from sympy import Expr, Min, cos, pi

import numerics
from derive.program import Entrywise, adam, adamw, lion, mlp, rmsprop, sign_descent, t
from derive.program.networks.options import ENTRYWISE
from numerics.cli import run
from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.experiment.schema import CONSTANTS, Solver
from numerics.experiment.vanishing_gradients import require_gradients
from numerics.verification.smaller_problems import Effort, smaller_problem

Array = NDArray[np.float64]

X = np.array([[1.2, -0.4, 0.9], [0.3, 1.1, -0.6], [-0.7, 0.5, 1.3]])
Y = np.array([1.0, -0.7, 0.5])
STEPS, RATE, DECAY, B1, B2, EPSILON = 5, 0.1, 0.3, 0.7, 0.8, 0.05
WARM_UP_AND_COSINE = f"{RATE}*min(1, (t + 1)/3)*(1 + cos(pi*t/{STEPS}))/2"
RISE_AND_FALL = RATE * Min(1, (t + 1) / 3) * (1 + cos(pi * t / STEPS)) / 2

RULES: dict[str, dict[str, float]] = {
    "sign": {"weight_decay": DECAY},
    "adam": {"beta1": B1, "beta2": B2, "epsilon": EPSILON},
    "adamw": {"beta1": B1, "beta2": B2, "epsilon": EPSILON, "weight_decay": DECAY},
    "rmsprop": {"beta2": B2, "epsilon": EPSILON, "weight_decay": DECAY},
    "lion": {"beta1": B1, "beta2": B2, "weight_decay": DECAY},
}


def by_hand(rule: str, rate: Expr, samples: int) -> Entrywise:
    """Return the rule of a file whose loss is a mean: A/P beside epsilon is A beside P epsilon."""
    small, share = EPSILON * samples, DECAY * rate
    return {
        "sign": lambda: sign_descent(rate, share),
        "adam": lambda: adam(rate, B1, B2, small),
        "adamw": lambda: adamw(rate, share, B1, B2, small),
        "rmsprop": lambda: rmsprop(rate, B2, small, share),
        "lion": lambda: lion(rate, B1, B2, share),
    }[rule]()


def tables(rule: str = "adam", network: Mapping[str, Any] | None = None, **training: Any) -> dict[str, Any]:
    keys = {"rule": rule, "learning_rate": RATE, "steps": STEPS, **RULES[rule], **training}
    return {
        "network": {"depth": 2, "activation": "tanh", **(network or {})},
        "training": keys,
        "solver": {"samples": 32, "seed": 4},
    }


def experiment(rule: str = "adam", network: Mapping[str, Any] | None = None, **training: Any) -> Experiment:
    return Experiment.from_dict(tables(rule, network, **training), inputs=X, targets=Y)


def given(arrays: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the arguments with which a program is solved."""
    return {
        "numbers": {"gamma0": 1.0},
        "arrays": arrays or {"x": X, "y": Y},
        "times": range(STEPS + 1),
        "solver": Solver(samples=32, seed=4),
    }


def require_equal(one: xr.Dataset, other: xr.Dataset, name: str) -> None:
    """Require equality to a thousandth of the standard error.

    Steps amplify rounding of paths near a kink.
    """
    gap = float(np.abs(one[name] - other[name]).max())
    assert gap <= float(other[f"{name}_stderr"].max()) / 1000, name


@pytest.mark.parametrize("rule", RULES)
def test_a_file_is_solved_as_its_program(rule: str) -> None:
    program = mlp(2, "tanh", rule=by_hand(rule, RISE_AND_FALL, len(X)))
    file = numerics.solve(experiment(rule, learning_rate=WARM_UP_AND_COSINE))
    own = numerics.solve(program, **given())
    for name in ("f", "Phi", "G", "train_loss"):
        require_equal(file, own, name)
    assert float(np.abs(file.f[-1] - file.f[0]).max()) > 0.1


@pytest.mark.parametrize("rule", RULES)
def test_a_file_is_simulated_as_its_program(rule: str) -> None:
    program = mlp(2, "tanh", rule=by_hand(rule, RISE_AND_FALL, len(X)))
    told = {"width": 12, "seeds": 2, "rng": 3}
    file = numerics.simulate(experiment(rule, learning_rate=WARM_UP_AND_COSINE), **told)
    own = numerics.simulate(program, **told, **{k: x for k, x in given().items() if k != "solver"})
    for name in ("f", "Phi", "G"):
        require_equal(file, own, name)


@pytest.mark.slow
def test_a_decay_of_a_file_may_move_with_the_time() -> None:
    """Decay is the share of the weight over the rate of the same step."""
    rate = RISE_AND_FALL
    program = mlp(2, "tanh", rule=adamw(rate, rate * 2 / (1 + t), B1, B2, EPSILON * len(X)))
    keys = {"learning_rate": WARM_UP_AND_COSINE, "weight_decay": "2/(1 + t)"}
    file, steady = numerics.solve(experiment("adamw", **keys)), numerics.solve(experiment("adamw"))
    require_equal(file, numerics.solve(program, **given()), "Phi")
    assert float(np.abs(file.Phi - steady.Phi).max()) > float(file.Phi_stderr.max())  # of equal paths


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_random_files_are_their_programs(seed: int) -> None:
    """Rules, activations, biases, outputs, losses, branches, test points, decay and schedules, drawn."""
    rng = np.random.default_rng(seed)
    rule = [*RULES][seed % len(RULES)]
    depth, outputs, tests = (int(x) for x in rng.integers(1, (4, 3, 3)))
    samples, tests = int(rng.integers(2, 5)), tests - 1
    dimension = samples + tests + 1  # without null directions, whose paths rounding decides
    bias, mean = (bool(rng.integers(2)) for _ in range(2))
    activation = str(rng.choice(["tanh", "relu", "linear"]))
    objective = str(rng.choice(["square", "logistic"])) if outputs == 1 else "cross-entropy"
    branch = 0.7 if rng.integers(2) else None
    strength = float(rng.uniform(0.5, 1.5))
    x = rng.normal(size=(samples + tests, dimension))
    y = np.sign(rng.normal(size=samples + tests)) if outputs == 1 else np.eye(2)[rng.integers(2, size=len(x))]
    network = {"depth": depth, "activation": activation, "bias": bias, "outputs": outputs, "gamma0": strength}
    network |= {} if branch is None else {"branch": branch}
    training = {
        "learning_rate": WARM_UP_AND_COSINE,
        "objective": objective,
        "loss": "mean" if mean else "sum",
    }
    arrays = {"inputs": x[:samples], "targets": y[:samples]}
    arrays |= {"test_inputs": x[samples:], "test_targets": y[samples:]} if tests else {}
    file = Experiment.from_dict(tables(rule, network, **training) | {"solver": {"samples": 96}}, **arrays)
    program = mlp(
        depth,
        activation,
        by_hand(rule, RISE_AND_FALL, samples if mean else 1),
        bias=bias,
        outputs=outputs,
        branch=branch,
        objective=objective,
        sample_weights=tests > 0,
    )
    more = {"rho": np.arange(len(x)) < samples} if tests else {}
    told = given({"x": x, "y": y, **{k: v.astype(float) for k, v in more.items()}})
    told |= {"numbers": {"gamma0": strength}, "solver": Solver(samples=96)}
    solved = numerics.solve(file), numerics.solve(program, **told)
    told.pop("solver")
    trained = [
        numerics.simulate(x, width=10, seeds=2, rng=1, **more) for x, more in ((file, {}), (program, told))
    ]
    for one, other in (solved, trained):
        for name in ("f", "error", "Phi", "G", *(["test_f"] if tests else [])):
            require_equal(one, other, name)


def test_numbers_of_a_file_are_symbols_with_defaults_of_the_rules() -> None:
    """The constants of a rule are those of the programs; missing ones have the usual value."""
    assert {rule: {k: float(x) for k, x in own.items()} for rule, own in ENTRYWISE.items()} == CONSTANTS
    bare = {"network": {"depth": 1}, "training": {"rule": "lion", "learning_rate": RATE, "steps": 2}}
    problem = Problem.of(Experiment.from_dict(bare, inputs=X, targets=Y))
    numbers = {str(x): v for x, v in problem.numbers.items()}
    assert (numbers["beta1"], numbers["beta2"]) == (0.9, 0.99)
    assert "epsilon" not in numbers
    np.testing.assert_array_equal(problem.arrays["x"], X)


def test_openings_of_files_keep_the_entries_of_inputs() -> None:
    """Checks of verify on fewer samples see the inputs of these samples, and at most one test point."""
    tests = np.array([[0.4, 0.2, -0.3], [1.0, 0.0, 0.0]])
    file = Experiment.from_dict(tables("lion"), inputs=X, targets=Y, test_inputs=tests)
    small = smaller_problem(Problem.of(file), 2, 2)
    np.testing.assert_array_equal(small.arrays["x"], [X[0], X[2], tests[0]])
    assert (small.seen, len(small.times)) == (2, 3)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "decay of adam": ({"weight_decay": 0.1}, r"training\.weight_decay = 0\.1.*training\.rule = \"adamw\""),
    "decay in time": ({"weight_decay": "0.1/(1 + t)"}, r"training\.weight_decay = .*\"adamw\""),
    "momentum": ({"momentum": 0.9}, r"training\.momentum = 0\.9: .*beta1"),
    "temperature": ({"temperature": 0.1}, r"training\.temperature = 0\.1: .*\"gd\""),
    "time": ({"time": 2.0}, r"training\.time = 2\.0: belongs to rule \"flow\", .* \"adam\""),
    "beta1": ({"beta1": 1.0}, r"training\.beta1 = 1\.0: must be less than 1"),
    "beta2": ({"beta2": -0.1}, r"training\.beta2 = -0\.1: must be greater than or equal to 0"),
    "beta in time": ({"beta1": "0.9*t"}, r"training\.beta1 = \"0\.9\*t\""),
    "epsilon": ({"epsilon": 0.0}, r"training\.epsilon = 0\.0: must be greater than 0"),
    "beta1 of rmsprop": ({"rule": "rmsprop", "beta1": 0.9}, r"training\.beta1 = 0\.9: belongs to rule"),
    "epsilon of lion": ({"rule": "lion", "epsilon": 1e-8}, r"training\.epsilon = 1e-08: belongs to rule"),
    "beta2 of sign": ({"rule": "sign", "beta2": 0.9}, r"training\.beta2 = 0\.9: .*\"sign\""),
    "beta1 of gd": ({"rule": "gd", "beta1": 0.9}, r"training\.beta1 = 0\.9: .*\"gd\""),
    "another name": ({"rule": "Adam"}, r"training\.rule = \"Adam\""),
    "a misspelt key": ({"beta_1": 0.9}, r"training\.beta_1 = 0\.9: unknown key, perhaps training\.beta1"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_keys_are_refused(what: str) -> None:
    keys, said = WRONG[what]
    training = {"rule": "adam", "learning_rate": RATE, "steps": STEPS, **keys}
    with pytest.raises(SpecError, match=said):
        Experiment.from_dict({"network": {"depth": 1}, "training": training}, inputs=X, targets=Y)


def test_data_without_entries_of_inputs_are_refused() -> None:
    said = r"gives no entries of inputs, and steps of training\.rule = \"adam\" depend on them"
    for data in (
        {"kind": "isotropic", "sample_ratio": 2.0},
        {"kind": "power-law", "capacity": 1.5, "source": 1.0, "modes": 20},
        {"kernel": "k.npy", "targets": "y.npy"},
    ):
        with pytest.raises(SpecError, match=said):
            Experiment.without_arrays({"network": {"depth": 1}, "training": {"rule": "adam"}, "data": data})
    with pytest.raises(SpecError, match=rf"data\.kernel: {said}.*data\.inputs"):
        Experiment.from_dict(tables(), kernel=X @ X.T / 3, targets=Y)
    descent = {"network": {"depth": 1}, "training": {"learning_rate": RATE, "steps": 2}}
    kernel = Experiment.from_dict(descent, kernel=X @ X.T / 3, targets=Y)
    with pytest.raises(SpecError, match=said):
        kernel.replace({"training.rule": "adam"})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a file of Adam with warm-up and cosine decay, and its arrays."""
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    np.save("y.npy", Y)
    keys = tables("adam", learning_rate=WARM_UP_AND_COSINE)
    keys["data"] = {"inputs": "x.npy", "targets": "y.npy"}
    (tmp_path / "adam.toml").write_text(tomli_w.dumps(keys))
    return tmp_path


def test_equations_of_a_file_are_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They include the law of one entry, and the keys of its constants."""
    assert run(["derive", "adam.toml"]) == 0
    said = capsys.readouterr().out
    assert "Q_W(" in said
    assert "training.beta2: share of the mean square" in said
    assert "= β₁ m(t) + P⁻¹ (1 - β₁) A(t)" in said


def test_commands_compute_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["solve", "adam.toml", "-o", "out.nc"]) == 0
    assert run(["show", "out.nc"]) == 0
    assert run(["solve", "adam.toml", "--explain"]) == 0
    assert "runs: paths" in capsys.readouterr().out
    assert run(["simulate", "adam.toml", "--width", "8", "--seeds", "2"]) == 0


@pytest.mark.slow
def test_sweeps_go_over_rules_and_their_constants(folder: Path) -> None:
    over = ["--set", "training.beta1=0.0,0.9", "--set", "training.rule=adam,adamw"]
    assert run(["sweep", "adam.toml", *over, "-o", "swept", "--gather"]) == 0
    assert len([*(folder / "swept").glob("*.nc")]) == 5


LINEAR = {
    "expand": ["--order", "2"],
    "limits early-time": [],
    "limits largest-rate": [],
    "limits depth": [],
    "limits equilibrium": [],
}


@pytest.mark.parametrize("command", LINEAR)
def test_commands_that_need_linear_steps_name_the_rule(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command.split(), "adam.toml", *LINEAR[command]]) == 2
    said = capsys.readouterr().err
    assert said.startswith('dmft: training.rule = "adam": has steps that are not linear in the gradient')
    assert said.count("\n") == 1


@pytest.mark.parametrize("rule", RULES)
def test_new_files_have_warm_up_and_cosine_decay(
    rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new file needs arrays, shows all constants of its rule and is an experiment."""
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    np.save("y.npy", Y)
    assert run(["new", "own.toml", "--rule", rule]) == 0
    found = Experiment.load("own.toml")
    assert found.training.rule == rule
    assert "cos(pi*t/60)" in str(found.training.learning_rate)
    assert {k: getattr(found.training, k) for k in CONSTANTS[rule]} == CONSTANTS[rule]
    assert "kernel" not in (tmp_path / "own.toml").read_text()


def test_new_files_of_random_data_are_of_other_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["new", "own.toml", "--rule", "adam", "--kind", "isotropic"]) == 2
    assert '--kind = "isotropic": gives no entries of inputs' in capsys.readouterr().err


VANISHING: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "zero targets": ({}, X, np.zeros(3)),
    "mirrored inputs": ({}, [X[0], -X[0]], [0.5, 0.5]),
    "equal inputs": ({"activation": "softplus"}, [X[0], X[0]], [0.5, -0.5]),
    "even activations": ({"activation": "abs"}, [X[0], -X[0]], [0.5, -0.5]),
    "classes in balance": ({"outputs": 2}, [X[0], X[0]], np.eye(2)),
}


@pytest.mark.parametrize("what", VANISHING)
def test_gradients_that_cancel_by_symmetry_are_refused(what: str) -> None:
    """Gradient descent stays where it is; steps of full length would go where fluctuations point."""
    network, x, y = VANISHING[what]
    objective = "square" if np.ndim(y) == 1 else "cross-entropy"
    keys = {"network": {"depth": 1, "activation": "tanh", **network}, "solver": {"samples": 64}}
    keys["training"] = {"rule": "adam", "learning_rate": RATE, "steps": 2, "objective": objective}
    file = Experiment.from_dict(keys, inputs=x, targets=y)
    with pytest.raises(
        SpecError, match=r"data\.targets: make the gradients of all samples cancel .*\"adam\""
    ):
        numerics.solve(file)
    require_gradients(file.replace({"training.rule": "gd"}))
    require_gradients(file.replace({"network.bias": True}) if "even" in what else _apart(keys, x, y))


def _apart(keys: dict[str, Any], x: Any, y: Any) -> Experiment:
    """Return the same experiment with one further sample."""
    more = np.ones((1, np.shape(y)[1])) if np.ndim(y) == 2 else [1.0]
    return Experiment.from_dict(keys, inputs=[*x, [0.1, 0.2, 0.3]], targets=np.concatenate([y, more]))


def test_lion_on_one_sample_is_solved() -> None:
    """The constants of a file have no axis of time, and the check of errors ended in a TypeError."""
    keys = {
        "network": {"depth": 1, "activation": "tanh"},
        "training": {"rule": "lion", "learning_rate": 0.1, "steps": 2},
        "solver": {"accuracy": 0.1},
    }
    assert numerics.solve(Experiment.from_dict(keys, inputs=[[1.0, 2.0]], targets=[1.0])).status == "ok"


def test_a_single_error_that_crosses_zero_names_the_rule(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Up to the crossing the theory holds, and is solved."""
    np.save("one_x.npy", X[:1])
    np.save("one_y.npy", [0.2])
    one = ["-D", "inputs=one_x.npy", "-D", "targets=one_y.npy", "--set", "training.rule=sign"]
    keys = tables("sign", steps=20)
    keys["data"] = {"inputs": "x.npy", "targets": "y.npy"}
    (folder / "sign.toml").write_text(tomli_w.dumps(keys))
    assert run(["solve", "sign.toml", *one]) == 3
    said = capsys.readouterr().err
    assert 'training.rule = "sign": Delta goes through zero at step' in said
    assert run(["solve", "sign.toml", *one, "--set", "training.steps=2"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "name"), [("adam", "Adam"), ("adamw", "AdamW"), ("lion", "Lion")])
def test_verify_holds_a_file_against_networks(rule: str, name: str) -> None:
    """With few networks; a decay that moves with the time has a memory without a closed form."""
    keys = {"learning_rate": WARM_UP_AND_COSINE}
    if rule != "adam":
        keys |= {"weight_decay": "2/(1 + t)"}
    file = Experiment.from_dict(tables(rule, **keys) | {"solver": {"seed": 0}}, inputs=X, targets=Y)
    report = numerics.verify(file, effort=Effort(work=2e9, paths=256, replicas=8))
    assert report.passed, report.table()
    assert f"5 steps of {name} at rate 0.1*min(1, (t + 1)/3)" in report.title
    assert any(x.group == "networks" for x in report.checks)
