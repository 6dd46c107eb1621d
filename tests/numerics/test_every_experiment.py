"""Random experiments over all keys of the file through every command: an answer, or a helpful refusal.

A command ends with finite numbers, or refuses with key, value and remedy, or reports that the dynamics
diverged or did not converge. It never ends in a traceback and never hangs.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import random
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from numerics.cli import run
from numerics.experiment.schema import CONSTANTS

LONGEST = 120
"""Seconds of processor time after which a command on an experiment of this size counts as hanging."""

COMMANDS = {
    "derive": ["derive", "FILE"],
    "solve": ["solve", "FILE", "--json"],
    "simulate": ["simulate", "FILE", "--width", "6", "--seeds", "2", "--json"],
    "expand": ["expand", "FILE", "--order", "2", "--json"],
    "early-time": ["limits", "early-time", "FILE", "--json"],
    "largest-rate": ["limits", "largest-rate", "FILE", "--json"],
    "depth": ["limits", "depth", "FILE", "--json"],
    "equilibrium": ["limits", "equilibrium", "FILE", "--json"],
    "finite-width": ["limits", "finite-width", "FILE", "--json"],
    "verify": ["verify", "FILE"],
}


def experiments() -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for tables of a file with few samples, layers and steps.

    ``rows`` is the size of its arrays. Tables are drawn by a seed, because hypothesis prefers ends of ranges,
    with which nearly all experiments contradict themselves.
    """
    return st.integers(0, 2**32 - 1).map(lambda seed: tables_of(random.Random(seed)))


def tables_of(rng: random.Random) -> dict[str, Any]:  # noqa: C901, PLR0915 (draws in one order, on which every seed depends)
    """Return one experiment; one in eight has keys that contradict each other."""
    odd = rng.random() < 0.125

    def some(table: dict[str, Any], key: str, values: list[Any], share: float, fits: bool = True) -> None:
        if (fits or odd) and rng.random() < share:
            table[key] = rng.choice(values)

    kind = rng.choice(["fixed", "fixed", "fixed", "isotropic", "power-law"])
    fixed = kind == "fixed"
    depth = rng.choice([1, 2, 3, 2, 3, "L"])
    layers = depth if isinstance(depth, int) else 2
    network: dict[str, Any] = {"depth": depth}
    data: dict[str, Any] = {} if fixed else {"kind": kind}
    some(network, "gamma0", [1e-3, 0.5, 2.0], 0.6)
    some(network, "branch", [0.5], 0.2, kind != "power-law")
    plain = "branch" not in network
    some(network, "outputs", [2], 0.2, kind != "power-law")
    some(network, "parametrization", ["ntk"], 0.1)
    some(network, "activation", ["tanh", "relu", "h", "tanh(0.8*h)/0.8"], 0.4, fixed)
    some(network, "bias", [True], 0.2, fixed)
    some(network, "init_variance", [0.5, [1.5] * (layers + 1)], 0.2, fixed)
    some(network, "relative_widths", [[1.5] * layers], 0.2, fixed and plain and depth != "L")
    training: dict[str, Any] = {"rule": rng.choice(["gd", "gd", "flow"])}
    if (not fixed and rng.random() < 0.3) or odd:
        training["rule"] = "sgd"
    online = training["rule"] == "sgd"
    if kind == "isotropic":
        some(network, "width_ratio", [2.0, [0.5] * layers] if plain else [2.0], 0.6)
        some(data, "batch_ratio" if online else "sample_ratio", [0.5, 2.0], 1.0 if online else 0.7)
    if kind == "power-law":
        data |= {"capacity": 2.0, "source": 0.5, "modes": 6}
        some(network, "width", [8], 1.0 if online else 0.7)
        some(data, "batch", [4], 1.0, online)
    some(data, "noise", [0.3], 0.3, not fixed)
    if training["rule"] == "flow":
        training |= {"time": rng.choice([0.5, 2.0]), "points": 3}
        some(training, "grid", ["log"], 0.3)
    else:
        training |= {"learning_rate": rng.choice([0.05, 0.2]), "steps": 2}
    losses = ["logistic", "hinge", "cross-entropy"] if "outputs" in network else ["logistic", "hinge"]
    some(training, "objective", losses, 0.2, fixed)
    some(training, "loss", ["sum"], 0.2, fixed)
    some(training, "center", [True, False], 0.2)
    some(training, "weight_decay", [1e-9, 0.3], 0.3)
    some(training, "momentum", [0.5], 0.2, training["rule"] != "flow" or "weight_decay" not in training)
    some(training, "temperature", [0.2], 0.2, "momentum" not in training)
    solver = {"samples": 64, "rtol": 1e-3, "seed": rng.randrange(4)}
    if fixed:
        data[rng.choice(["inputs", "kernel"])] = "a.npy"
        data["targets"] = "y.npy"
        some(data, "test_inputs" if "inputs" in data else "test_kernel", ["t.npy"], 0.2)
    rule = rng.choice([*CONSTANTS])
    if (("inputs" in data and training["rule"] == "gd") or odd) and rng.random() < 0.4:
        training["rule"] = rule
        for key in CONSTANTS[rule]:
            some(training, key, [1e-3, 0.5], 0.3)
        for key in ("momentum", "temperature", *(("weight_decay",) if rule == "adam" else ())):
            if not odd:
                training.pop(key, None)
    if odd:
        some(training, rng.choice(["beta1", "beta2", "epsilon"]), [0.5], 0.2)
    return {
        "network": network,
        "data": data,
        "training": training,
        "solver": solver,
        "rows": rng.randint(1, 3),
    }


def written(tables: dict[str, Any], folder: Path) -> Path:
    """Return the file of an experiment, with its arrays beside it."""
    tables = dict(tables)
    rng, P = np.random.default_rng(0), tables.pop("rows")
    x, other = rng.standard_normal((P, 4)), rng.standard_normal((2, 4))
    gram = tables["data"].get("kernel") is not None
    np.save(folder / "a.npy", x @ x.T / 4 if gram else x)
    np.save(folder / "t.npy", np.hstack([other @ x.T, other @ other.T]) / 4 if gram else other)
    C = tables["network"].get("outputs", 1)
    np.save(folder / "y.npy", rng.standard_normal((P, C) if C > 1 else P))
    file = folder / "e.toml"
    file.write_text(tomli_w.dumps(tables))
    return file


@contextlib.contextmanager
def in_time(seconds: int) -> Iterator[None]:
    """Raise TimeoutError if the body takes longer, independently of the load of the machine."""

    def late(*_: object) -> None:
        raise TimeoutError(f"no end after {seconds} s")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def outcome(command: str, tables: dict[str, Any]) -> tuple[int, str, str]:
    """Return exit status, output and messages of one command."""
    out, err = io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory() as place:
        file = written(tables, Path(place))
        words = [str(file) if w == "FILE" else w for w in COMMANDS[command]]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), in_time(LONGEST):
            status = run(words)
    return status, out.getvalue(), err.getvalue()


def judged(command: str, tables: dict[str, Any]) -> None:
    """Require an answer with finite numbers, or a message that a user can act on."""
    status, out, err = outcome(command, tables)
    if status == 0:
        if "--json" in COMMANDS[command]:
            assert_finite(told(json.loads(out)), command)
        else:
            assert out.strip()
        return
    assert status in (2, 3), (status, err)
    assert err.startswith("dmft: "), err
    assert "Traceback" not in err
    assert "yet" not in err, err
    if status == 2:
        assert "." in err.split(":")[1] or err.split(":")[1].strip() in ("data", "network", "training"), err


def told(found: dict[str, Any]) -> dict[str, Any]:
    """Return an answer without losses that are null for a stated reason.

    These are the last orders of |gamma0| of kinks, which are not known, and a finite depth if
    ``network.depth`` is "L".
    """
    if found.get("powers_of") == "|gamma0|":
        known = [any(x is not None for x in row) for row in found["train_loss"]]
        assert known[0]
        assert known == sorted(known, reverse=True)
        for name in ("train_loss", "test_loss"):
            if name in found:
                found[name] = found[name][: sum(known)]
    if "branch_times_sqrt_depth" in found and found["depth"] is None:
        assert found["limit"] is not None
        del found[found["loss"]]
    return found


def assert_finite(found: Any, where: str) -> None:
    if isinstance(found, dict):
        for key, value in found.items():
            assert_finite(value, f"{where}.{key}")
    elif isinstance(found, list):
        for value in found:
            assert_finite(value, where)
    elif isinstance(found, float):
        assert math.isfinite(found), where
    elif where.rsplit(".", 1)[-1] in ("train_loss", "test_loss"):
        assert found is not None, where


FEW = settings(max_examples=2, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=300, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


@FEW
@given(experiments())
def test_some_experiments_derive(tables: dict[str, Any]) -> None:
    judged("derive", tables)


@pytest.mark.slow
@settings(MANY, max_examples=40)
@given(tables=experiments())
def test_every_experiment_is_verified_or_refused(tables: dict[str, Any]) -> None:
    """All checks pass: derivation, solution, expansion and networks agree."""
    judged("verify", tables)


@pytest.mark.slow
@pytest.mark.parametrize("command", [x for x in COMMANDS if x != "verify"])
@MANY
@given(tables=experiments())
def test_every_experiment_is_served_or_refused(command: str, tables: dict[str, Any]) -> None:
    judged(command, tables)


@pytest.mark.slow
def test_the_page_says_what_commands_serve() -> None:
    from tests.numerics.served import PAGE, page

    assert PAGE.read_text(encoding="utf-8") == page()
