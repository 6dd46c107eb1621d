"""Random data: time against the rate of matrix products in the same run, how time and memory grow, residual.

A step is rows times matrices, each read once for one row: the rate of such products is that of memory, not
of the matrix products that bound what is possible.  Both are measured, and noted beside the march.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from tests.benchmarks.problems import exponent, isotropic, nbytes, products, run_isotropic

TIMES = (250, 500, 1000)


def rates() -> tuple[float, float]:
    """Operations a second of a matrix times a matrix, and of a row times matrices that no cache holds."""
    a = np.ones((1000, 1000))
    many, row = [a + k for k in range(20)], np.ones((1, 1000))
    square = _best(lambda: a @ a)
    rows = _best(lambda: [row @ b for b in many])
    return 2 * 1000**3 / square, 20 * 2 * 1000**2 / rows


def test_time_and_memory_over_steps(timed, note):
    """L = 4: cost at most as T^3.1 and memory as T^2.05."""
    sizes = TIMES if timed else (20, 40, 80)
    depth = 4 if timed else 2
    seconds, held = [], []
    for times in sizes:
        e = isotropic(depth, times)
        run_isotropic(isotropic(depth, 4))  # the theory is derived once and kept
        started = time.perf_counter()
        m = run_isotropic(e)
        seconds.append(time.perf_counter() - started)
        held.append(nbytes(m))
        matrix, row = rates()
        counted = products(m.plan, m.sizes, m.widths, times)
        note(
            "Random data, time over T",
            T=times,
            L=depth,
            seconds=seconds[-1],
            Gflop=counted / 1e9,
            over_matrix_products=seconds[-1] * matrix / counted,
            over_row_products=seconds[-1] * row / counted,
            MiB=held[-1] / 2**20,
        )
    note(
        "Random data, exponents in T",
        seconds=exponent(sizes[-2:], seconds[-2:]),
        bytes=exponent(sizes, held),
    )
    assert exponent(sizes, held) <= 2.05
    if timed:
        assert exponent(sizes[-2:], seconds[-2:]) <= 3.1
        assert seconds[-1] * row < counted  # faster than reading every matrix at every step


def test_residual_network(timed, note):
    """L = 8, T = 200 within 30 s, with all responses across layers."""
    depth, times = (8, 200) if timed else (2, 10)
    e = isotropic(depth, times, branch=depth**-0.5)
    started = time.perf_counter()
    m = run_isotropic(e)
    seconds = time.perf_counter() - started
    note("Residual network on random data", L=depth, T=times, seconds=seconds, responses=len(m.responses))
    assert len(m.responses) > depth**2 / 2
    if timed:
        assert seconds < 30


def _best(what: Callable[[], object]) -> float:
    def once() -> float:
        started = time.perf_counter()
        what()
        return time.perf_counter() - started

    return min(once() for _ in range(5))
