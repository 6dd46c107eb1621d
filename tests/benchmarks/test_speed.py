"""The causal march against the published fixed-point scheme, on the same problem in one run."""

from __future__ import annotations

import time

import numpy as np

from numerics.solver import solve
from tests.benchmarks.problems import experiment, run
from tests.reference.adams_weights import step_sum_weights
from tests.reference.fixed_point import fixed_point

TITLE = "Against the published fixed-point scheme converged to 1e-6"


def test_march_against_the_published_scheme(benchmark, timed, note):
    """P = 20, T = 100, L = 5."""
    samples, times, depth = (20, 100, 5) if timed else (2, 12, 2)
    e = experiment(samples, times, depth)
    run(e)  # the theory is derived once and kept
    benchmark.pedantic(run, args=(e,), rounds=5)
    march_s = _best(lambda: run(e), 3)
    solve_s = _best(lambda: solve(e, kernels="none"), 3)
    full_s = _best(lambda: solve(e), 2)  # with every kernel for every pair of samples and times
    weights = step_sum_weights(times - 1, e.effective_rate)
    started = time.perf_counter()
    published = fixed_point(
        e.kernel,
        e.targets,
        weights,
        depth=depth,
        gamma0=1.0,
        tolerance=1e-6,
        predictions="tangent",
        max_iterations=200,
    )
    scheme_s = time.perf_counter() - started
    gap = np.abs(published.error - run(e).scalars["Delta"]).max()
    note(
        TITLE,
        P=samples,
        T=times,
        L=depth,
        march_s=march_s,
        solve_s=solve_s,
        solve_full_s=full_s,
        published_s=scheme_s,
        sweeps=published.iterations,
        ratio=round(scheme_s / march_s),
        ratio_solve=round(scheme_s / solve_s),
        ratio_full=round(scheme_s / full_s),
        largest_difference_of_Delta=float(gap),
    )
    assert gap < 0.1  # Euler's prediction of the scheme is first order in the step


def _best(action, rounds: int) -> float:
    found = []
    for _ in range(rounds):
        started = time.perf_counter()
        action()
        found.append(time.perf_counter() - started)
    return min(found)
