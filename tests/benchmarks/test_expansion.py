"""Time of the expansion in symbols, and of its compiled evaluation beside running sums written by hand."""

from __future__ import annotations

import time

import numpy as np
import pytest
from sympy import Symbol, exp, symbols

from derive.expansion import PowerSeries, expand_linear
from derive.program import mlp
from derive.theory import mean_field
from numerics.expansion import expand
from numerics.experiment import Experiment
from numerics.threads import one_thread
from tests.benchmarks.order_two import order_two


def best(function, repeats=5):
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


@pytest.mark.parametrize("order", [4, 6])
def test_symbols(benchmark, timed, note, order):
    theory = mean_field(mlp(rule="flow"))
    order = order if timed else 4
    started = time.perf_counter()
    found = benchmark.pedantic(expand_linear, args=(theory, order), rounds=1)
    seconds = time.perf_counter() - started
    words = sum(len(x.args) if x.is_Add else 1 for x in found.output if x != 0)
    note(
        "The linear theory expanded with depth and layer symbols",
        order=order,
        words_of_f=words,
        seconds=seconds,
    )
    lower = expand_linear(theory, order - 2).output
    assert found.output[: len(lower)] == lower
    assert found.output[order] != 0
    if timed:
        assert seconds < 60


def experiment(samples, steps, depth):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((samples, 2 * samples))
    return Experiment.from_dict(
        {
            "network": {"depth": depth},
            "training": {"learning_rate": 0.5 / steps, "steps": steps, "loss": "sum"},
        },
        kernel=x @ x.T / (2 * samples),
        targets=rng.standard_normal(samples),
    )


@pytest.mark.parametrize(("samples", "steps", "depth"), [(5, 50, 3), (10, 100, 3), (20, 100, 2)])
def test_numbers_of_order_two(benchmark, timed, note, samples, steps, depth):
    """The compiled expansion (its symbols are derived once and kept) and the hand-written one agree."""
    if not timed:
        samples, steps, depth = 2, 6, depth
    e = experiment(samples, steps, depth)
    arguments = (e.kernel, e.targets, e.effective_rate, steps + 1, depth)
    found, by_hand = expand(e, 2), order_two(*arguments)
    for name, expected in by_hand.items():
        scale = np.abs(expected).max()
        assert np.abs(found[name].values - expected).max() <= 1e-11 * max(scale, 1e-9), name
    benchmark.pedantic(expand, args=(e, 2), rounds=1)
    if timed:
        ours, hand = best(lambda: expand(e, 2)), best(lambda: one_thread(order_two)(*arguments))
        note(
            "Numbers to order gamma0^2: all order parameters, exact steps",
            P=samples,
            T=steps + 1,
            L=depth,
            compiled_s=ours,
            by_hand_s=hand,
            ratio=ours / hand,
        )


@pytest.mark.parametrize("count", [100, 100_000])
def test_a_series_as_a_function(benchmark, timed, note, count):
    """``PowerSeries.lambdify`` and the same formula in NumPy."""
    t, lam = symbols("t lam", positive=True)
    y = Symbol("y")
    decay = exp(-2 * lam * t)
    series = PowerSeries(
        (y**2 * decay**2, 0, -(y**4) * decay**2 * (1 - decay) ** 2, 0, y**6 * decay**2 * (1 - decay) ** 3 * t)
    )
    compiled = series.lambdify(t, lam, y)
    times = np.linspace(0, 3, count if timed else 10)

    def by_hand(g, t, lam, y):
        decay = np.exp(-2 * lam * t)
        rest = 1 - decay
        return (y * decay) ** 2 * (1 - (g * y * rest) ** 2 + (g * y) ** 4 * rest**3 * t)

    np.testing.assert_allclose(compiled(0.3, times, 1.2, 0.7), by_hand(0.3, times, 1.2, 0.7), rtol=1e-12)
    benchmark.pedantic(compiled, args=(0.3, times, 1.2, 0.7), rounds=1)
    if timed:
        loops = 2000 if count < 1000 else 20
        ours = best(lambda: [compiled(0.3, times, 1.2, 0.7) for _ in range(loops)]) / loops
        hand = best(lambda: [by_hand(0.3, times, 1.2, 0.7) for _ in range(loops)]) / loops
        note(
            "A closed-form series as a function",
            times=count,
            compiled_s=ours,
            by_hand_s=hand,
            ratio=ours / hand,
        )
