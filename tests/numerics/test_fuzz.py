"""Random attacks: specs, arrays, options and environments, drawn for every command by the number of a case.

Whatever is drawn, a command ends with a status of the contract and without a traceback, within its time,
without a number that is not finite where the status is 0, and with all of its files or none.

    pytest tests/numerics/test_fuzz.py              100 cases
    pytest tests/numerics/test_fuzz.py -m slow      3,000 more
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest

from numerics.cli import run
from numerics.results import load
from tests.numerics.test_attacks import FLOW, ISOTROPIC, LINEAR, TANH, written

SECONDS = 60.0
"""Processor time of a case, beyond which it hangs."""

BASES: tuple[dict[str, Any], ...] = (
    LINEAR,
    LINEAR,
    TANH | {"solver": {"samples": 64}},
    ISOTROPIC,
    LINEAR | {"training": FLOW},
    LINEAR | {"network": {"depth": 1, "activation": "tanh"}},
)

COMMANDS = (
    "solve spec.toml --json",
    "solve spec.toml -o out.nc",
    "solve spec.toml --kernels none --json -o out.nc",
    "solve spec.toml --explain",
    "simulate spec.toml --width 8 --seeds 2 --json",
    "simulate spec.toml --width 8 --seeds 3 -o out.nc --json",
    "expand spec.toml --order 2 --json",
    "expand spec.toml --order 2 -o out.nc",
    "expand spec.toml --order 0 --show latex",
    "derive spec.toml --format json",
    "limits early-time spec.toml --json",
    "limits largest-rate spec.toml --json",
    "limits depth spec.toml --json",
    "limits equilibrium spec.toml --json",
    "limits scaling --depth 2 --source {} --capacity {} --json",
    "limits parametrization --alpha {} --gamma {} --json",
    "simulate spec.toml --width {} --seeds 2 --json",
    "expand spec.toml --order {} --json",
    "solve spec.toml --set training.learning_rate={} --json",
    "solve spec.toml --set network.gamma0={} -o out.nc",
    "solve spec.toml -o {}",
)

NUMBERS = (
    *(
        "0",
        "-1",
        "1",
        "2",
        "3",
        "1.5",
        "0.01",
        "1e-3",
        "1e-200",
        "1e-320",
        "1e160",
        "1e308",
        "1e999",
        "-1e999",
    ),
    *("nan", "inf", "-inf", "9223372036854775808", "1" + "0" * 400, "true", '"x"', "[]", "[1.0, 2.0]", "{}"),
)

KEYS: dict[str, tuple[str, ...]] = {
    "network.depth": ("1", "2", "3", '"L"', "1000000000"),
    "network.activation": (
        '"tanh"',
        '"relu"',
        '"linear"',
        '"3*h"',
        '"1/h"',
        '"h**9"',
        '"import os"',
        '"exp(exp(h))"',
    ),
    "network.gamma0": NUMBERS,
    "network.bias": ("true", "1"),
    "network.outputs": ("1", "2", "0"),
    "network.branch": NUMBERS,
    "network.init_variance": NUMBERS,
    "network.width_ratio": NUMBERS,
    "network.relative_widths": ("[1.0, 0.001]", "[1.0, 2.0]", "[1e300, 1.0]"),
    "network.parametrization": ('"ntk"', '"none"'),
    "data.sample_ratio": NUMBERS,
    "data.batch_ratio": NUMBERS,
    "data.noise": NUMBERS,
    "training.rule": ('"flow"', '"gd"', '"sgd"'),
    "training.learning_rate": NUMBERS,
    "training.steps": ("1", "5", "1000000", "0", "2.0"),
    "training.time": NUMBERS,
    "training.points": ("2", "5", "1"),
    "training.grid": ('"log"', '"uniform"'),
    "training.loss": ('"sum"', '"mean"'),
    "training.objective": ('"logistic"', '"hinge"', '"cross-entropy"'),
    "training.center": ("true", "false"),
    "training.weight_decay": NUMBERS,
    "training.momentum": NUMBERS,
    "training.temperature": NUMBERS,
    "solver.samples": ("1", "2", "63", "64", "100000000000"),
    "solver.accuracy": ("0.1", "1e-12", "1.0"),
    "solver.seed": ("0", "18446744073709551615", "-1"),
    "solver.rtol": ("1e-2", "1e-300"),
    "solver.method": ('"march"', '"paths"', '"nodes"', '"lazy"', '"direct"', '"layers"'),
    "solver.hours": ("1e-12", "1e300"),
    "nothing.at_all": NUMBERS,
}
"""What keys are changed to, as TOML spells it."""

FOLDERS = (
    "sweep spec.toml --set network.gamma0=0.5,{} -o out",
    "sweep spec.toml --set training.learning_rate={},0.1 -o out --gather --json",
    "sweep spec.toml --set solver.seed=0..2 -o out --gather",
    "verify spec.toml -o out",
    "verify spec.toml",
    "new out --kind {}",
    "examples --copy out",
    "show k.npy --json",
    "show spec.toml --plot {}",
    "ledger linear2025 {} --json",
    "ledger --verdict {}",
)
"""They write a folder, in which the points of a sweep that failed have a file too, or read something else."""

ENVIRONMENTS = (
    *(
        {},
        {},
        {},
        {"COLUMNS": "1"},
        {"COLUMNS": "no number"},
        {"TERM": "dumb", "NO_COLOR": "1"},
        {"LANG": "C"},
    ),
    *(
        {"MPLBACKEND": "nonsense"},
        {"OMP_NUM_THREADS": "0"},
        {"OMP_NUM_THREADS": "many"},
        {"HOME": "/nowhere"},
    ),
    *(
        {"TMPDIR": "/nowhere"},
        {"PYTHONIOENCODING": "latin-1"},
        {"TZ": "Nowhere/None"},
        {"XDG_CACHE_HOME": "/"},
    ),
)
"""What a case finds in its environment."""

KERNELS: dict[str, Callable[[], Any]] = {
    "overflow": lambda: 1e308 * np.eye(2),
    "tiny": lambda: 1e-300 * np.eye(2),
    "singular": lambda: np.ones((2, 2)),
    "zero": lambda: np.zeros((2, 2)),
    "negative": lambda: -np.eye(2),
    "nan": lambda: np.full((2, 2), np.nan),
    "narrow": lambda: np.eye(2, dtype=np.float16),
    "words": lambda: np.array([["a", "b"], ["c", "d"]]),
    "complex": lambda: np.eye(2) * 1j,
    "flat": lambda: np.ones(4),
    "empty": lambda: np.zeros((0, 0)),
}
TARGETS: dict[str, Any] = {
    "zero": [0.0, 0.0],
    "one": [1.0],
    "large": [1e160, -1e160],
    "small": [1e-300, 1e-310],
    "columns": [[1.0, 2.0], [3.0, 4.0]],
    "infinite": [np.inf, 0.0],
}


def drawn(seed: int) -> tuple[str, str]:
    """Return a spec and a command; arrays are written."""
    rng = random.Random(seed)
    base = {name: dict(table) for name, table in rng.choice(BASES).items()}
    lines: dict[str, dict[str, str]] = {name: {} for name in base}
    for name, table in base.items():
        for key, value in table.items():
            lines[name][key] = written({name: {key: value}}).partition(" = ")[2]
    for key in rng.sample(sorted(KEYS), rng.choice((0, 1, 1, 2, 3))):
        section, _, name = key.partition(".")
        lines.setdefault(section, {})[name] = rng.choice(KEYS[key])
    text = "\n".join(
        f"[{name}]\n" + "\n".join(f"{k} = {v}" for k, v in table.items()) for name, table in lines.items()
    )
    if rng.random() < 0.05:
        cut = rng.randrange(len(text))
        text = text[:cut] + rng.choice(("\0", "=", "[", '"', "é", "")) + text[cut + rng.randrange(3) :]
    if rng.random() < 0.2:
        np.save("k.npy", KERNELS[rng.choice(sorted(KERNELS))]())
    if rng.random() < 0.2:
        np.save("y.npy", TARGETS[rng.choice(sorted(TARGETS))])
    if rng.random() < 0.05:
        whole = Path("k.npy").read_bytes()
        Path("k.npy").write_bytes(
            bytes(b ^ (rng.random() < 0.02) for b in whole[: rng.randrange(len(whole))])
        )
    words = rng.choice(COMMANDS)
    while "{}" in words:
        words = words.replace("{}", rng.choice(NUMBERS[:18]).replace(" ", ""), 1)
    return text, words


class Hangs(BaseException):
    """Raised if a case takes too long; no command catches it."""


def stopped(*_: object) -> None:
    raise Hangs


def finite(x: Any) -> bool:
    """Return whether all numbers of a JSON object are finite, where null stands for unknown ones."""
    if isinstance(x, dict | list):
        return all(map(finite, x.values() if isinstance(x, dict) else x))
    return not isinstance(x, float) or math.isfinite(x)


def ended(words: str, seed: int, seconds: float = SECONDS) -> int:
    """Return the exit status of a command in a random environment; fail if it takes too long."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in random.Random(f"environment {seed}").choice(ENVIRONMENTS).items():
            patch.setenv(name, value)
        signal.signal(signal.SIGVTALRM, stopped)
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        try:
            return run(words.split())
        except Hangs:
            pytest.fail(f"case {seed} hangs: {words}\n{Path('spec.toml').read_text(encoding='utf-8')}")
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)


def attack(seed: int, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run one case, in a separate folder."""
    folder = Path(mkdtemp(dir=place))
    os.chdir(folder)
    np.save("k.npy", [[1.0, 0.3], [0.3, 1.0]])
    np.save("y.npy", [1.0, -1.0])
    text, words = drawn(seed)
    Path("spec.toml").write_text(text, encoding="utf-8")
    before = {x.name: x.read_bytes() for x in folder.iterdir()}
    status = ended(words, seed)
    out, err = capsys.readouterr()
    told = f"case {seed}: {words} ended with {status}\n{text}\n{err}"
    assert status in (0, 1, 2, 3), told
    assert "Traceback" not in err, told
    asked = words.partition("-o ")[2].split()[:1] if status == 0 else []
    assert {x.name for x in folder.iterdir()} == {*before, *asked}, told
    assert all((folder / name).read_bytes() == content for name, content in before.items()), told
    if status == 0 and "--json" in words:
        assert finite(json.loads(out, parse_constant=float)), told
    for name in asked:
        result = load(folder / name)
        losses = [x.values for n, x in result.data_vars.items() if str(n).startswith("train_loss")]
        assert all(np.isfinite(x[~np.isnan(x)]).all() for x in losses), told
        assert not any(np.isnan(x).all() for x in losses), told


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


LONGER = (12, 17, 20, 33, 44, 52, 62, 63, 64, 65, 74, 88, 90, 94)
"""Cases that take more than a few tenths of a second."""


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=pytest.mark.slow) if n in LONGER else n for n in range(103)]
)
def test_no_attack_gets_through(seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    attack(seed, tmp_path, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(300))
def test_nor_through_a_folder(seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save("k.npy", [[1.0, 0.3], [0.3, 1.0]])
    np.save("y.npy", [1.0, -1.0])
    Path("spec.toml").write_text(drawn(seed)[0], encoding="utf-8")
    rng = random.Random(seed)
    words = rng.choice(FOLDERS).replace("{}", rng.choice(NUMBERS[:16]))
    status = ended(words, seed, 2 * SECONDS)
    told = f"case {seed}: {words} ended with {status}\n{capsys.readouterr().err}"
    assert status in (0, 1, 2, 3), told
    assert not list(tmp_path.rglob(".dmft-*")), told
    for file in tmp_path.glob("out/*.nc"):
        load(file)


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(2, 32))
def test_nor_do_many(hundred: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        attack(seed, tmp_path, capsys)
