"""Conditions of limits: every limit states them, and the command that shows the limit prints them.

Limits are found by walking the packages, and commands by walking the command line.
"""

import importlib
import json
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from sympy import sqrt

import derive
import numerics.analysis
from derive.calculus.symbols import L, eta, mu
from derive.depth import Scaling, block_limit, cross_layer, layer_process, within_blocks
from derive.depth.balance import alpha, gamma
from derive.depth.nonlinear import branch_diversity
from derive.program.networks.residual import block_program, nonlinear_program
from derive.scale.depth import first_update
from derive.scale.finite_batch import batch_noise
from derive.scale.fluctuations import (
    best_ensemble,
    ensemble_law,
    feature_learning,
    initial_covariance,
    initial_mean,
    lazy_fluctuations,
    one_layer_flow,
    one_sample,
    wishart_recursion,
)
from derive.scale.schedules import best_schedule
from derive.show.conditions import ConditionalResult
from numerics.cli.limits import limits
from numerics.experiment.theory import beta
from tests.derive.once import depth_program, few_steps, isotropic, mean_field, mlp, structured

ROOMS = ("derive.scale", "derive.depth", "derive.reduce.equilibrium")
"""The packages in which every result that a notebook shows is a limit."""
PARTS = {"Powers", "Statement"}
"""Results that are parts of a limit: a sum of powers of the time, and a row of a table."""
PYTHON: dict[str, Callable[[], ConditionalResult]] = {
    "BlockLimit": lambda: block_limit(within_blocks(cross_layer(mean_field(block_program())))),
    "BestEnsemble": best_ensemble,
    "BestSchedule": lambda: best_schedule(batch_noise(mean_field(structured(noise=True)))),
    "BranchDiversity": lambda: branch_diversity(mean_field(nonlinear_program())),
    "EnsembleLaw": lambda: ensemble_law(mlp(1)),
    "FeatureLearning": lambda: feature_learning(mlp(1, rule="flow")),
    "FewSteps": lambda: few_steps(mean_field(isotropic(1, data="population")), 1, order=(eta, 1)),
    "FirstUpdate": lambda: first_update(depth_program(alpha=alpha, gamma=gamma)),
    "GramRecursion": lambda: wishart_recursion(mlp(1)),
    "InitialCovariance": lambda: initial_covariance(mlp(1), ("f", mu)),
    "InitialMean": lambda: initial_mean(mlp(1), ("K", mu, mu)),
    "LazyFluctuations": lambda: lazy_fluctuations(mlp(1)),
    "LayerProcess": lambda: layer_process(
        mean_field(mlp(activation="tanh", branch=beta)), Scaling({beta: 1 / sqrt(L)})
    ),
    "OneLayerFlow": lambda: one_layer_flow(mlp(1, rule="flow")),
    "OneSample": lambda: one_sample(wishart_recursion(mlp(1))),
}
"""Limits that no command shows, and one of each."""
HEAD = "[network]\ndepth = {depth}\n{network}\n[data]\n{data}\n[training]\n{training}\n"
ONLINE = 'kind = "isotropic"\nbatch_ratio = 1.0'
GIVEN = 'kind = "fixed"\nkernel = "k.npy"\ntargets = "y.npy"'
FLOW = 'rule = "flow"\ntime = 1.0\nloss = "sum"\nweight_decay = 0.5'
FILES = {
    "online": HEAD.format(
        depth=1,
        network="width_ratio = 1.0\ngamma0 = 0.5",
        data=ONLINE,
        training='rule = "sgd"\nlearning_rate = 0.1\nsteps = 4\ncenter = true',
    ),
    "population": HEAD.format(
        depth=2,
        network='width_ratio = 4.0\nparametrization = "ntk"',
        data='kind = "isotropic"',
        training="learning_rate = 0.1\nsteps = 4\ncenter = true",
    ),
    "residual": HEAD.format(
        depth='"L"',
        network="branch = 0.5\nwidth_ratio = 1.0",
        data='kind = "isotropic"',
        training="learning_rate = 0.05\nsteps = 1",
    ),
    "noisy": HEAD.format(depth=1, network="", data=GIVEN, training=f"{FLOW}\ntemperature = 0.5"),
    "steps": HEAD.format(depth=1, network="", data=GIVEN, training="learning_rate = 0.1\nsteps = 2"),
    "decaying": HEAD.format(depth=1, network="", data=GIVEN, training=FLOW),
}
REGIMES = ("lazy", "leading", "rich", "batch", "width", "data")
FEATURES = ["--source", "3/2", "--capacity", "2", "--regime", "features"]
LAW = ["--depth", "2", "--source", "1/2", "--capacity", "2"]
COMMANDS = {
    "early-time": [["online.toml", "--steps", "2", "--recovery"]],
    "largest-rate": [["population.toml", "--regime", "rich"], ["population.toml", "--regime", "lazy"]],
    "scaling": [*([*LAW, "--regime", x] for x in REGIMES), FEATURES],
    "parametrization": [[], ["--alpha", "1/2", "--gamma", "1/2"], ["--optimizer", "adam"]],
    "depth": [["residual.toml"]],
    "equilibrium": [["noisy.toml"], ["decaying.toml"]],
    "finite-width": [["steps.toml"]],
}
"""Arguments of each command with which it shows all of its limits."""

RECORDER = """
import json, sys
from tests.numerics.test_conditions import limits_in_the_packages
from numerics.cli import run

seen = {}

def recorded(kind, conditions):
    def inner(self):
        found = conditions(self)
        seen.setdefault(kind.__name__, []).extend(found)
        return found
    return inner

for kind in limits_in_the_packages():
    kind.conditions = recorded(kind, kind.conditions)
status = run(sys.argv[1:])
print(json.dumps({"status": status, "seen": seen}), file=sys.stderr)
"""


def modules(package: ModuleType) -> Iterator[ModuleType]:
    """Yield a package and all modules in it."""
    yield package
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not found.name.startswith("derive.ledger"):
            yield importlib.import_module(found.name)


@lru_cache(maxsize=1)
def public_classes() -> tuple[type, ...]:
    """Return the public classes of the symbolic package and of the analysis of experiments."""
    found = {}
    for module in (*modules(derive), *modules(numerics.analysis)):
        for name, kind in vars(module).items():
            if isinstance(kind, type) and kind.__module__ == module.__name__ and not name.startswith("_"):
                found[kind] = None
    return tuple(found)


def limits_in_the_packages() -> list[type[ConditionalResult]]:
    """Return the classes of limits with values, without base classes of others."""
    kinds = [x for x in public_classes() if issubclass(x, ConditionalResult) and is_dataclass(x)]
    assert len(kinds) > 15
    return kinds


def test_every_result_of_a_limit_states_its_conditions() -> None:
    shown = {
        x.__name__: issubclass(x, ConditionalResult)
        for x in public_classes()
        if x.__module__.startswith(ROOMS) and is_dataclass(x) and hasattr(x, "_repr_latex_")
    }
    assert {name for name, states in shown.items() if not states} == PARTS
    # one form: a method
    stated = [x for x in public_classes() if x.__module__.startswith(ROOMS) and "conditions" in vars(x)]
    assert all(callable(vars(x)["conditions"]) for x in stated if x.__name__ not in PARTS)


def test_every_command_of_limits_is_run_here() -> None:
    names = {
        str(x.name or x.callback.__name__).replace("_", "-") for x in limits.registered_commands if x.callback
    }
    assert names == set(COMMANDS)


@lru_cache(maxsize=1)
def seen_by_commands(folder: Path) -> dict[str, str]:
    """Run every command in a separate process; return limits whose conditions are in its output."""
    for name, text in FILES.items():
        (folder / f"{name}.toml").write_text(text)
    np.save(folder / "k.npy", np.eye(1))
    np.save(folder / "y.npy", np.ones(1))
    found = {}
    root = Path(__file__).parents[2]
    for command, runs in COMMANDS.items():
        for options in runs:
            words = [str(folder / x) if x.endswith(".toml") else x for x in options]
            done = subprocess.run(
                [sys.executable, "-c", RECORDER, "limits", command, *words],
                capture_output=True,
                text=True,
                cwd=root,
                check=True,
            )
            told = json.loads(done.stderr.splitlines()[-1])
            assert told["status"] == 0, done.stderr
            assert "Sum(" not in done.stdout  # constants come evaluated
            assert "Integral(" not in done.stdout
            for kind, sentences in told["seen"].items():
                assert sentences, kind
                for sentence in sentences:
                    assert sentence in done.stdout, (command, options, kind, sentence)
                found[kind] = command
    return found


@pytest.mark.slow
def test_commands_print_the_conditions_of_every_limit(tmp_path: Path) -> None:
    """A limit that no command shows is in the list of those; a new one fails here."""
    kinds = {x.__name__ for x in limits_in_the_packages()}
    assert kinds - set(seen_by_commands(tmp_path)) == set(PYTHON)


@pytest.mark.parametrize("name", PYTHON)
def test_a_limit_that_no_command_shows_says_what_is_derived_and_assumed(name: str) -> None:
    found = PYTHON[name]()
    assert type(found).__name__ == name
    assert all(x.startswith(("assumed: ", "derived: ")) for x in found.conditions())
    assert any(x.startswith("assumed: ") for x in found.conditions())
