"""Nonlinear theories: against the published algorithm 1, the largest problem, cost, two responses."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence

import numpy as np
import pytest

from numerics.solver.paths import Solved
from numerics.solver.paths.solve import FEW
from tests.benchmarks.nonlinear import (
    NAMES,
    Get,
    of_dataset,
    of_published,
    of_solved,
    off,
    operations,
    particles,
    published,
    solved,
)
from tests.benchmarks.problems import exponent

LARGE = """
import re, sys, time
from pathlib import Path
from tests.benchmarks.nonlinear import particles
p, t, depth, samples, replicas = map(int, sys.argv[1:])
started = time.perf_counter()
s = particles((p, t, depth), samples=samples, replicas=replicas)
kib = int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
print(kib / 2**20, time.perf_counter() - started, float(s.stderr("Delta").max()))
"""


def _seconds(action) -> tuple[float, object]:
    started = time.perf_counter()
    found = action()
    return time.perf_counter() - started, found


def _errors(gets: list[Get], exact: Get, depth: int, names: Sequence[str] = NAMES) -> dict[str, float]:
    """Return the root mean square over runs of the distance from ``exact``."""
    return {
        f"error_{n}": float(np.sqrt(np.mean([off(g, exact, n, depth) ** 2 for g in gets]))) for n in names
    }


def test_particles_against_algorithm_1(timed, note):
    """P = 5, T = 30, L = 3, 500 samples: 200 times faster than 20 iterations, with no larger error.

    Through ``solve``, with its estimates of errors, it is 130 times: 12 replicas of 160 or of 80 paths.
    """
    size, samples = ((5, 30, 3), 500) if timed else ((2, 3, 2), 40)
    depth, repeats = size[2], 6 if timed else 2
    many = particles(size, samples=16384 if timed else 512, replicas=4, responses="stein", seed=99)
    exact = of_solved(many)
    title = (
        f"Algorithm 1 with 20 iterations of {samples} paths, P = {size[0]}, T = {size[1]}, L = {depth}, tanh"
    )
    seconds, rows = {}, {}

    def row(what: str, runs: list[Get], spent: float) -> None:
        seconds[what], rows[what] = spent, _errors(runs, exact, depth)
        note(title, solver=what, seconds=spent, **rows[what])

    spent, first = _seconds(lambda: published(size, samples=samples, seed=0))
    others = [published(size, samples=samples, seed=n, jacobians="causal") for n in range(1, repeats)]
    gets = [of_published(a) for a in (first, *others)]
    row("algorithm 1, as printed", gets, spent)
    spent, _ = _seconds(lambda: published(size, samples=samples, seed=0, jacobians="causal"))
    row("algorithm 1, Jacobians by forward substitution", gets, spent)
    for replicas in (2, 8):
        runs = [
            _seconds(lambda n=n, r=replicas: particles(size, samples=samples, replicas=r, seed=n))
            for n in range(repeats + 1)
        ][1:]  # the first one reads the theory
        row(f"particles, {replicas} replicas", [of_solved(r) for _, r in runs], min(s for s, _ in runs))
    few = 160 if timed else 64
    runs = [_seconds(lambda n=n: solved(size, few, n)) for n in range(repeats + 1)][1:]
    row(f"solve, {few} paths, 8 replicas", [of_dataset(d) for _, d in runs], min(s for s, _ in runs))
    note(
        title,
        solver="the reference: its own standard error",
        seconds="",
        **{
            f"error_{n}": float(np.sqrt(np.mean([np.mean(many.stderr(n, k) ** 2) for k in layers])))
            for n, layers in (("Delta", [None]), ("Phi", range(1, depth + 1)), ("G", range(1, depth + 1)))
        },
    )
    old, ours = "algorithm 1, as printed", "particles, 2 replicas"
    ratio = {w: seconds[w] / seconds[ours] for w in seconds}
    note("Time of each solver over that of two replicas", **ratio)
    assert all(rows[ours][n] < 1 for n in rows[ours])
    if timed:
        assert ratio[old] > 200
        assert seconds[old] > 130 * seconds[f"solve, {few} paths, 8 replicas"]
        assert all(rows[ours][n] <= rows[old][n] for n in rows[ours])


@pytest.mark.benchmark  # a separate process imports everything
def test_the_largest_nonlinear_problem(timed, note):
    """P = 10, T = 100, L = 3, 1000 samples, 8 replicas: time and peak memory of a separate process."""
    size = (10, 100, 3, 1000, 8) if timed else (2, 3, 2, 16, 2)
    found = subprocess.run(
        [sys.executable, "-c", LARGE, *map(str, size)], capture_output=True, text=True, check=True
    )
    peak, seconds, error = map(float, found.stdout.split())
    names = ("P", "T", "L", "samples", "replicas")
    note(
        "The largest nonlinear problem",
        **dict(zip(names, size, strict=True)),
        peak_GiB=peak,
        seconds=seconds,
        largest_standard_error_of_Delta=error,
    )
    assert peak < 8
    assert seconds < 120


SCANS = {
    "T": [((5, n, 3), 512) for n in (20, 40, 80)],
    "P": [((n, 30, 3), 512) for n in (2, 4, 8, 12)],
    "S": [((5, 30, 3), n) for n in (256, 512, 1024, 2048)],
}


@pytest.mark.parametrize("name", SCANS)
def test_cost_of_particles(timed, note, name):
    """Seconds of one replica of four that are marched together, beside the operations that it counts."""
    scan = SCANS[name] if timed else [((2, 3, 2), 16), ((2, 4, 2), 32), ((3, 4, 2), 64)]
    replicas = 4 if timed else 2
    a = np.ones((1500, 1500))
    a @ a
    rate = 2 * len(a) ** 3 / _seconds(lambda: a @ a)[0]
    sizes, seconds, counted = [], [], []
    for size, samples in scan:
        given = {"samples": samples, "replicas": replicas, "responses": "stein"}
        particles(size, **given)
        runs = [_seconds(lambda s=size, g=given: particles(s, **g)) for _ in range(3)]
        seconds.append(min(spent for spent, _ in runs) / replicas)
        error = runs[0][1].value("Delta")
        assert np.linalg.norm(error[-1]) < 0.7 * np.linalg.norm(error[0])  # the problem is one that is learnt
        counted.append(operations(size, samples))
        sizes.append({"T": size[1], "P": size[0], "S": samples}[name])
        note(
            f"Particles: one replica over {name}",
            P=size[0],
            T=size[1],
            L=size[2],
            S=samples,
            seconds=seconds[-1],
            Gflop=counted[-1] / 1e9,
            over_matrix_products=seconds[-1] * rate / counted[-1],
        )
    if timed:
        measured, expected = exponent(sizes[-2:], seconds[-2:]), exponent(sizes[-2:], counted[-2:])
        note(
            "Particles: exponents of the cost",
            over=name,
            seconds_all=exponent(sizes, seconds),
            seconds_last_two=measured,
            counted_last_two=expected,
        )
        assert measured <= expected + 0.3


def _single(found: Solved, n: int) -> Get:
    """Return a function that reads one of the replicas."""
    return lambda name, layer: found.runs[name, () if layer is None else (layer,)][n]


CASES = [
    ((1, 6, 2), "tanh"),
    ((1, 12, 2), "tanh"),
    ((2, 12, 2), "tanh"),
    ((2, 12, 2), "softplus"),
    ((4, 16, 3), "tanh"),
    ((5, 30, 3), "tanh"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_two_kinds_of_responses(timed, note, case):
    """Error and time of one replica, by Stein's lemma and by derivatives along the paths.

    Derivatives give A and B of few entries more accurately, at every number of paths.
    """
    size, activation = case if timed else ((2, 3, 2), case[1])
    depth, seeds, points = size[2], 8 if timed else 2, size[0] * size[1]
    exact = of_solved(
        particles(size, activation, samples=4096 if timed else 256, replicas=8, responses="auto", seed=99)
    )
    # responses of many entries are found by the lemma there, which smooths them: no measure of A and B
    names = (*NAMES, "A", "B") if points <= FEW else NAMES
    for samples in (128, 512) if timed else (64,):
        errors = {}
        for how in ("stein", "jacobian"):
            if how == "jacobian" and samples * points**2 > 5e6:
                continue
            given = {"samples": samples, "replicas": seeds, "responses": how}
            particles(size, activation, samples=8, replicas=2, responses=how)  # reads the theory
            spent, found = _seconds(lambda g=given: particles(size, activation, **g))
            errors[how] = _errors([_single(found, n) for n in range(seeds)], exact, depth, names)
            note(
                "Stein's lemma against derivatives along the paths (one replica)",
                activation=activation,
                P=size[0],
                T=size[1],
                L=depth,
                S=samples,
                responses=how,
                milliseconds=1000 * spent / seeds,
                S_over_PT=samples / points,
                **errors[how],
            )
        if points <= FEW:
            assert all(errors["jacobian"][n] < errors["stein"][n] for n in ("error_A", "error_B"))


def test_bias_of_steins_lemma(timed, note):
    """The mean of many replicas against many paths, over paths for each entry of a source (P T).

    The bias is less than what one replica scatters by.
    """
    size = (4, 16, 3) if timed else (1, 3, 2)
    entries, replicas = size[0] * size[1], 100 if timed else 32
    given = {"samples": 8192, "replicas": 8} if timed else {"samples": 1024, "replicas": 4}
    exact = particles(size, responses="stein", seed=99, **given)
    for ratio in (0.25, 0.5, 1, 2, 4, 8) if timed else (8,):
        samples = max(2 * round(ratio * entries / 2), 8)
        for how in ("stein", "jacobian") if ratio <= 1 else ("stein",):
            found = particles(size, samples=samples, replicas=replicas, responses=how, seed=5)
            row = {"S_over_PT": ratio, "responses": how}
            for name, layer in (("Delta", None), ("Phi", size[2]), ("G", 1)):
                gap = found.value(name, layer) - exact.value(name, layer)
                noise = np.hypot(found.stderr(name, layer), exact.stderr(name, layer))
                bias = np.sqrt(max(np.mean(gap**2 - noise**2), 0.0))
                spread = np.sqrt(replicas * np.mean(found.stderr(name, layer) ** 2))
                row[f"{name}_bias"] = float(bias)
                row[f"{name}_noise_of_it"] = float(np.sqrt(np.mean(noise**2)))
                row[f"{name}_bias_over_spread"] = float(bias / spread)
                assert bias < spread
            note(
                f"Bias by the lemma, P = {size[0]}, T = {size[1]}, L = {size[2]}, tanh, {replicas} replicas",
                **row,
            )
