"""Growth of the cost of a march: time and counted operations over T, P and L."""

from __future__ import annotations

import time

import numpy as np
import pytest

from numerics.experiment import Experiment
from numerics.solver.linear.march import March
from tests.benchmarks.problems import experiment, exponent, nbytes, operations, run

SCANS = {
    "T": ([(40, n, 2) for n in (100, 200, 300, 400, 600)], 1),
    "P": ([(n, 300, 2) for n in (10, 20, 40, 80, 160, 320)], 0),
    "L": ([(80, 300, n) for n in (1, 2, 3, 4, 5)], 2),
}


def gemm_rate() -> float:
    """Return operations a second of a row block times a matrix, the shape that the march multiplies."""
    a, b = np.ones((40, 400)), np.ones((400, 4000))
    a @ b
    started = time.perf_counter()
    for _ in range(20):
        a @ b
    return 20 * 2 * 40 * 400 * 4000 / (time.perf_counter() - started)


def _seconds(e: Experiment) -> tuple[float, March]:
    """Return the time of a march with all rows unfolded, and the march."""
    started = time.perf_counter()
    found = run(e)
    nbytes(found)
    return time.perf_counter() - started, found


@pytest.mark.parametrize("name", SCANS)
def test_cost(benchmark, timed, note, name):
    sizes, axis = SCANS[name]
    if not timed:
        sizes = [tuple(map(int, np.minimum(s, (4, 10, 2)))) for s in sizes[:1]]
    rate = gemm_rate()
    seconds, counted = [], []
    for p, t, depth in sizes:
        e = experiment(p, t, depth)
        runs = [_seconds(e) for _ in range(3)]
        seconds.append(min(spent for spent, _ in runs))
        error = runs[0][1].scalars["Delta"]
        assert np.linalg.norm(error[-1]) < np.linalg.norm(error[0])  # something is learnt
        counted.append(operations(p, t, depth))
        note(
            f"Time over {name}",
            P=p,
            T=t,
            L=depth,
            seconds=seconds[-1],
            Gflop=counted[-1] / 1e9,
            of_the_matrix_product_rate=counted[-1] / rate / seconds[-1],
        )
    e = experiment(*sizes[0])
    benchmark.pedantic(run, args=(e,), rounds=1)
    if timed:
        scan = [s[axis] for s in sizes]
        last = slice(-3, None)  # where arithmetic, not the interpreter, takes the time
        expected, largest = {"T": 3, "P": 1, "L": 1}[name], exponent(scan[last], seconds[last])
        note(
            "Exponents of the march",
            over=name,
            seconds_all=exponent(scan, seconds),
            seconds_largest_three=largest,
            counted=exponent(scan[last], counted[last]),
            expected=expected,
        )
        assert largest <= expected + 0.3


def test_operations_grow_as_l_p_t_cubed():
    """Counted, not timed: the plan's matrix products."""
    one = operations(20, 100, 3)
    assert operations(20, 200, 3) == pytest.approx(8 * one)
    assert exponent([400, 800, 1600], [operations(p, 100, 3) for p in (400, 800, 1600)]) == pytest.approx(
        1.0, abs=0.02
    )
    layers = [operations(20, 100, depth) for depth in range(2, 9)]
    assert np.diff(layers, 2) == pytest.approx(0.0, abs=1e-6 * layers[0])  # linear in L
