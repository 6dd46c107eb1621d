"""Processor time of commands as whole processes, for this version and an earlier one in turn.

Imports, derivation, numbers and files are timed, with all threads and children. Version 0.1 takes the same
files.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

TITLE = "Commands, processor time of whole processes"
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
COMMAND = """
import re, sys
from pathlib import Path
from numerics.cli import main
sys.argv[0] = "dmft"
try:
    main()
finally:
    kib = re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]
    Path("peak").write_text(kib)
"""
STEPS = '[training]\nrule = "gd"\nlearning_rate = {rate}\nsteps = {steps}\nloss = "mean"\n'

FILES = {
    "linear, P = 10, T = 50, L = 3": ("depth = 3", 10, 50, ""),
    "linear, P = 20, T = 100, L = 5": ("depth = 5", 20, 100, ""),
    "tanh, P = 5, T = 30, L = 2, 1000 paths": (
        'depth = 2\nactivation = "tanh"',
        5,
        30,
        "[solver]\nsamples = 1000\n",
    ),
    "tanh, P = 20, T = 20, L = 2": ('depth = 2\nactivation = "tanh"', 20, 20, ""),
}
"""The network's keys, samples, times and further sections of a file."""

SMALL = ("depth = 1", 2, 4, "")

CASES = [
    ("digits.toml", "solve", 3),
    ("linear, P = 10, T = 50, L = 3", "solve", 3),
    ("linear, P = 20, T = 100, L = 5", "solve --kernels none", 3),
    ("tanh, P = 5, T = 30, L = 2, 1000 paths", "solve", 2),
    ("tanh, P = 20, T = 20, L = 2", "expand --order 2", 1),
    ("tanh.toml", "expand --order 2", 1),
    ("digits.toml", "expand --order 6 --show text", 1),
]


def _written(folder: Path, keys: str, samples: int, times: int, more: str) -> Path:
    """Write an experiment on random inputs with signs as targets, and return its path."""
    rng = np.random.default_rng(samples)
    np.save(folder / "x.npy", rng.standard_normal((samples, 64)))
    np.save(folder / "y.npy", rng.choice([-1.0, 1.0], samples))
    data = '[data]\nkind = "fixed"\ninputs = "x.npy"\ntargets = "y.npy"\n'
    steps = STEPS.format(rate=3.0 / (times - 1), steps=times - 1)
    file = folder / "experiment.toml"
    file.write_text(f"[network]\n{keys}\ngamma0 = 1.0\n{data}{steps}{more}")
    return file


def _seconds(home: Path, words: list[str], place: Path) -> tuple[float, float]:
    """Return processor time and peak memory (MiB) of ``dmft words``, run in ``place``.

    ``home`` is the folder of the version that runs.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = os.environ | {"PYTHONPATH": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *words], cwd=place, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent, int((place / "peak").read_text()) / 1024


@pytest.mark.benchmark  # a separate process imports everything
@pytest.mark.parametrize(("name", "command", "rounds"), CASES)
def test_commands(timed, note, request, tmp_path, name, command, rounds):
    """One command on one file: the shortest of several runs, each version in turn."""
    if not timed and name != CASES[0][0]:
        name, file = "small", _written(tmp_path, *SMALL)
    else:
        file = EXAMPLES / name if name.endswith(".toml") else _written(tmp_path, *FILES[name])
    here = Path(__file__).parents[2]
    before = request.config.getoption("--before") if timed else None
    homes = [here, Path(before).resolve()] if before else [here]
    verb, *options = command.split()
    words = [verb, str(file), *options, *(["-o", "out.nc"] if verb == "solve" else [])]
    found: dict[Path, list[tuple[float, float]]] = {home: [] for home in homes}
    for _ in range(rounds if timed else 1):
        for home in homes:
            (tmp_path / "out.nc").unlink(missing_ok=True)
            found[home].append(_seconds(home, words, tmp_path))
    row = {"file": name, "command": command}
    for home, said in zip(homes, ("", " before"), strict=False):
        seconds, peak = min(found[home])
        row |= {f"seconds{said}": seconds, f"MiB{said}": peak}
    if before:
        row["times_faster"] = row["seconds before"] / row["seconds"]
    note(TITLE, **row)
