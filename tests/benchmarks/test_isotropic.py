"""Time and memory of the theory of random data, relative to the rate of matrix products in the same run.

The march reads the distant past only in the form that it was folded into (numerics.solver.linear.folded). Its
time therefore grows less than the count of operations, which is that of the plain recursion with a product
for each row.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from tests.benchmarks.problems import exponent, isotropic, nbytes, prepare, products

TITLE = "Random data, full batch"
ROUNDS = 5


def rate(size: int) -> float:
    """Return operations a second of one large matrix product, with all threads of BLAS."""
    a = np.random.default_rng(0).normal(size=(size, size))
    return 2 * size**3 / _best(lambda: a @ a)


def test_time_and_memory_over_steps(timed, note):
    """L = 4, T = 1000: within 3 times the matrix products' time; T^3.1 and T^2.05 at most."""
    sizes = (250, 500, 1000, 2000) if timed else (20, 40, 80)
    depth = 4 if timed else 2
    prepare(isotropic(depth, 1000 if timed else 20))()  # memory is slow when it is used for the first time
    seconds, held, peaks = [], [], []
    for times in sizes:
        run = prepare(isotropic(depth, times))
        fastest = rate(2000 if timed else 200)
        seconds.append(_best(run))
        fastest = max(fastest, rate(2000 if timed else 200))
        tracemalloc.start()
        m = run()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        held.append(nbytes(m))
        counted = products(m.plan, m.sizes, m.widths, times)
        note(
            TITLE,
            T=times,
            L=depth,
            seconds=seconds[-1],
            Gflop=counted / 1e9,
            Gflops_of_a_matrix_product=fastest / 1e9,
            over_matrix_products=seconds[-1] * fastest / counted,
            MiB_held=held[-1] / 2**20,
            MiB_peak=peaks[-1] / 2**20,
        )
        del m
    for name, costs in {"seconds": seconds, "bytes held": held, "bytes at the peak": peaks}.items():
        note(
            TITLE + ": exponents in T",
            of=name,
            all=exponent(sizes, costs),
            last=exponent(sizes[-2:], costs[-2:]),
        )
    assert exponent(sizes, held) <= 2.05
    if timed:
        assert exponent(sizes[-2:], peaks[-2:]) <= 2.05
        assert exponent(sizes[-2:], seconds[-2:]) <= 3.1


def test_time_over_depth(timed, note):
    """Layers have the same equations, and time grows as their number."""
    layers, times = (1, 2, 4, 8), 500 if timed else 10
    seconds, counted = [], []
    for depth in layers:
        run = prepare(isotropic(depth, times))
        m = run()
        counted.append(products(m.plan, m.sizes, m.widths, times))
        seconds.append(_best(run, 3 if timed else 1))
        note(TITLE + ", over L", T=times, L=depth, seconds=seconds[-1])
    assert counted[3] - counted[2] == pytest.approx(2 * (counted[2] - counted[1]))
    if timed:
        assert exponent(layers, seconds) < 1.3


def test_residual_network(timed, note):
    """L = 8, T = 200 within 30 s, with all responses across layers."""
    depth, times = (8, 200) if timed else (2, 10)
    run = prepare(isotropic(depth, times, branch=depth**-0.5))
    started = time.perf_counter()
    m = run()
    seconds = time.perf_counter() - started
    note("Residual network on random data", L=depth, T=times, seconds=seconds, responses=len(m.responses))
    assert len(m.responses) > depth**2 / 2
    if timed:
        assert seconds < 30


def _best(what: Callable[[], object], rounds: int = ROUNDS) -> float:
    def once() -> float:
        started = time.perf_counter()
        what()
        return time.perf_counter() - started

    return min(once() for _ in range(rounds))
