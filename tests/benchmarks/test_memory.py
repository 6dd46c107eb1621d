"""Memory of a march, and of the largest problem that the documentation promises."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.benchmarks.problems import experiment, exponent, nbytes, run

LARGE = """
import re, sys, time
from pathlib import Path
from tests.benchmarks.problems import experiment
from numerics.solver import solve
started = time.perf_counter()
r = solve(experiment(*map(int, sys.argv[1:4])), kernels=sys.argv[4])
kib = int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
print(kib / 2**20, time.perf_counter() - started, float(r.train_loss[-1]))
"""


def test_arrays_hold_l_t_squared_numbers(note):
    base = (10, 120, 2)
    scans = {"P": ((10, 20, 40), 0), "T": ((60, 120, 240), 1), "L": ((2, 4, 6), 2)}
    expected = {"P": 0.0, "T": 2.0, "L": 1.0}
    for name, (values, axis) in scans.items():
        held = []
        for v in values:
            size = [*base]
            size[axis] = v
            held.append(nbytes(run(experiment(*size))))
        found = exponent(values, held)
        note("Bytes held by a march", over=name, exponent=found, expected=expected[name])
        assert found == pytest.approx(expected[name], abs=0.15)
    per = nbytes(run(experiment(80, 60, 4))) / (8 * 4 * 60**2)
    note("Bytes held by a march", over="numbers per L T^2", exponent=per, expected="")
    assert per < 12


@pytest.mark.benchmark  # a separate process imports everything
@pytest.mark.parametrize("kernels", ["none", "trace"])
def test_the_largest_problem_fits(timed, note, kernels):
    """P = 500, T = 300, L = 3 within 6 GiB: the peak memory of a separate process."""
    size = (500, 300, 3) if timed else (5, 10, 3)
    found = subprocess.run(
        [sys.executable, "-c", LARGE, *map(str, size), kernels], capture_output=True, text=True, check=True
    )
    gib, seconds, loss = map(float, found.stdout.split())
    assert 0.0 < loss < 1.0
    assert gib < 6.0
    if timed:
        note(
            "The largest problem",
            P=size[0],
            T=size[1],
            L=size[2],
            kernels=kernels,
            peak_GiB=gib,
            seconds=seconds,
        )
