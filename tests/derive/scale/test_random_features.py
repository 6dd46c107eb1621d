"""Tests of laws of random features: the eliminated theory, its powers, and solutions that follow them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from sympy import Expr, Rational, Symbol, lambdify, simplify

import numerics
from derive.errors import NotApplicable
from derive.program import GradientDescent, t
from derive.program.networks import random_features, structured
from derive.program.networks.random_data import N, P, sigma
from derive.reduce.data import mode_sums
from derive.scale.finite_batch import batch_noise
from derive.scale.power_laws import PowerLaw, cut, fixed_data
from derive.scale.random_features import (
    RandomFeatures,
    eliminated,
    features_law,
    optimum,
    share,
)
from derive.scale.schedules import best_schedule
from derive.theory import Theory, mean_field
from numerics.experiment.numbers import power_law
from numerics.solver.transform.solve import solve_transforms
from tests.chance import excess
from tests.numerics.networks.random_features import power_law_arrays

MANY = 1e15
"""A size that stands for infinity: what it adds is below RTOL at the times of these tests."""

RTOL = 1e-6
"""The accuracy that solutions are asked for."""


@cache
def theory() -> Theory:
    """Return the theory of flow on the same samples, with label noise."""
    return mode_sums(mean_field(random_features(noise=True)))


@cache
def found() -> RandomFeatures:
    """Return the same with its responses eliminated."""
    return eliminated(theory())


@cache
def law(source: str, capacity: str) -> PowerLaw:
    """Return the law of a task."""
    return features_law(found(), source, capacity)


def losses(source: str, capacity: str, times: Any, modes: int = 10**9, **sizes: float) -> Any:
    """Return losses without the labels' noise for ``modes`` modes, by Laplace transforms."""
    numbers = {N: MANY, P: MANY, sigma: 0.0}
    numbers |= {Symbol(name, positive=True): x for name, x in sizes.items()}
    units = power_law(float(Rational(capacity)), float(Rational(source)), modes)
    solved = solve_transforms(theory(), times, numbers=numbers, units=units, rtol=RTOL)
    return np.diagonal(solved.correlations["C_v"])


def test_the_cut_off_without_label_noise() -> None:
    """Features and samples are exchangeable in the cut-off, which each of them lowers by the same factor."""
    rate = eliminated(mode_sums(mean_field(random_features()))).balance.rhs
    assert simplify(rate - cut * (1 - share / N) * (1 - share / P)) == 0


@pytest.mark.slow
def test_features_and_samples_enter_the_cut_off_alike() -> None:
    rate = found().balance.rhs
    assert simplify(rate - rate.xreplace({N: P, P: N})) == 0
    assert simplify(rate.subs({N: 10**3, P: 10**3}) - cut * (1 - share / 1000) ** 2) == 0


@pytest.mark.slow
def test_many_features_are_a_lazy_network() -> None:
    """Two derivations: infinitely many features, and the lazy limit of wide linear networks on samples."""
    lazy = fixed_data(mean_field(structured(data="full-batch", noise=True, rule="flow")))
    own, other = found().floor(P), lazy.floor
    coefficients = {p.power: p.coefficient for p in other.terms}
    at = {Symbol("a", positive=True): 1.7, Symbol("beta", positive=True): 0.6}

    def number(e: Expr) -> float:
        values = {x: at[Symbol(str(x), positive=True)] for x in e.free_symbols}
        return float(e.subs(values))

    assert {p.power for p in own.terms} == {*coefficients}
    for p in own.terms:
        assert number(p.coefficient) == pytest.approx(number(coefficients[p.power]), rel=1e-9)
    assert simplify(found().label_floor(P).coefficient - lazy.label_floor) == 0
    with pytest.raises(ValueError, match="size = N: must be P"):
        found().label_floor(N)


SHRUNK = 2 / 3
"""The share of a gap that is left at most at the next size: a power of 1/size above 0.58, as it doubles."""


def meets(values: Any, expected: float) -> None:
    """Require that values of growing sizes approach the expected one with shrinking gaps.

    The sizes grow by one factor.
    """
    gaps = np.abs(np.asarray(values, dtype=float) - expected)
    assert (np.diff(gaps) < 0).all(), values
    assert gaps[-1] <= SHRUNK * gaps[-2], values


@pytest.mark.slow
@pytest.mark.parametrize(("source", "capacity"), [("1/2", "2"), ("3/2", "2"), ("5/2", "2"), ("1/2", "3/2")])
@pytest.mark.parametrize("which", [0, 1], ids=["features", "samples"])
def test_the_loss_in_the_end_meets_its_power(source: str, capacity: str, which: int) -> None:
    """Loss over law for sizes that double, and the local slopes between them."""
    end, shares = law(source, capacity).bottlenecks[which], []
    sizes = [20, 40, 80, 160, 320]
    for size in sizes:
        late = np.array([0.0, 1e3 * size ** float(Rational(capacity))])
        expected = float(end.after.coefficient.subs(end.size, size))
        shares.append(losses(source, capacity, late, **{str(end.size): float(size)})[-1] / expected)
    meets(shares, 1.0)
    power = float(end.size * end.after.coefficient.diff(end.size) / end.after.coefficient)
    meets(power + np.diff(np.log(shares)) / np.log(2), power)


@pytest.mark.slow
@pytest.mark.parametrize(("source", "capacity"), [("1/2", "2"), ("3/2", "2"), ("4/5", "3/2")])
def test_the_law_of_time_is_met(source: str, capacity: str) -> None:
    """Neglected terms fall faster than any power, so that only the error of solutions remains."""
    times, formula = np.array([0.0, 1e3, 1e4]), law(source, capacity).formula
    expected = lambdify([*formula.free_symbols], formula)(times[1:])
    assert losses(source, capacity, times)[1:] == pytest.approx(expected, rel=2 * RTOL)


@pytest.mark.slow
def test_features_add_a_slow_power_on_easy_tasks() -> None:
    """The contribution of 1/N between the crossover and the end, over its derived power of time."""
    values = {"a": 2, "beta": Rational(3, 2)}
    (p,) = found().added(N).terms
    coefficient, power = (
        float(e.subs({x: values[str(x)] for x in e.free_symbols})) for e in (p.coefficient, p.power)
    )
    times, size = np.array([0.0, 100.0, 400.0, 1600.0, 6400.0]), 10**7
    added = (losses("3/2", "2", times, N=float(size)) - losses("3/2", "2", times))[1:] * size
    shares = added / (coefficient * times[1:] ** power)
    meets(shares, 1.0)
    meets(power + np.diff(np.log(shares)) / np.log(4), power)


@pytest.mark.slow
@pytest.mark.parametrize(("source", "capacity"), [("1/2", "2"), ("3/2", "2")])
def test_the_best_division_of_compute_is_met(source: str, capacity: str) -> None:
    """Slopes of the least loss over N at ``N t = C``, and of the best N, from solutions."""
    best = law(source, capacity).optimum
    budgets = np.array([1e3, 1e5, 1e7, 1e9])

    def loss(x: float, budget: float) -> float:
        times = np.array([0.0, budget / np.exp(x)])
        return float(np.log(losses(source, capacity, times, 10**7, N=float(np.exp(x)))[-1]))

    middle = float(best.features) * np.log(budgets)
    least = [
        minimize_scalar(loss, bounds=(m - 4, m + 2), args=(c,), method="bounded", options={"xatol": 1e-3})
        for m, c in zip(middle, budgets, strict=True)
    ]
    gap = np.diff(np.log(budgets))
    meets(np.diff([x.fun for x in least]) / gap, float(best.loss))
    meets(np.diff([x.x for x in least]) / gap, float(best.features))


def least_squares(size: int, modes: int, seed: int) -> float:
    """Return the loss of the best readout of random features, at a = 2 and a source of 3/2.

    No theory enters.
    """
    k = np.arange(1.0, modes + 1)
    features = np.random.default_rng((size, seed)).standard_normal((size, modes)) / k
    target = k**-2.0
    basis = np.linalg.qr(features.T)[0]
    return float(target @ target - np.sum((basis.T @ target) ** 2))


@pytest.mark.slow
def test_features_on_easy_tasks_end_as_least_squares_do() -> None:
    """The power of N is a, not a times the source."""
    end = law("3/2", "2").bottlenecks[0]
    sizes, seeds = (80, 160), 20
    found = np.array([[least_squares(n, 20_000, i) for i in range(seeds)] for n in sizes])
    expected = np.array([float(end.after.coefficient.subs(N, n)) for n in sizes])
    errors = found.std(axis=1, ddof=1) / np.sqrt(seeds)
    assert excess((found.mean(axis=1) - expected) / errors, seeds - 1) <= 1
    slope, error = np.diff(np.log(found.mean(axis=1)))[0], np.hypot(*(errors / found.mean(axis=1)))
    other = -3 * np.log(2)
    assert excess((slope - other) / error, seeds - 1) > 1


@pytest.mark.slow
def test_the_best_schedule_has_its_powers() -> None:
    """Least losses over the peak after 50, 100 and 200 steps, at a constant rate and with a decay."""
    best = best_schedule(batch_noise(mean_field(structured(noise=True))))
    task = {"a": Rational(3, 2), "beta": Rational(3, 2)}
    loss, alone = (
        float(e.subs({x: task[str(x)] for x in e.free_symbols})) for e in (best.loss, best.constant_loss)
    )
    peak, decay, steps = (Symbol(x, nonnegative=True) for x in ("peak", "delta", "T"))
    program = random_features(
        data="online", noise=True, rule=GradientDescent(peak * (1 - t / steps) ** decay)
    )

    def least(count: int, power: float) -> float:
        def end(x: float) -> float:
            given = {"N": 1e6, "B": 5.0, "sigma": 0.5, "peak": np.exp(x), "delta": power, "T": float(count)}
            arrays = power_law_arrays(60, 1.5, 1.5)
            run = numerics.solve(program, numbers=given, arrays=arrays, times=range(count + 1))
            return float(run.test_loss[-1]) - given["sigma"] ** 2

        return float(minimize_scalar(end, bounds=(-4, 0), method="bounded", options={"xatol": 1e-2}).fun)

    counts = (25, 50, 100, 200)
    for power, expected in ((0.0, alone), (1.0, loss)):
        slopes = np.diff(np.log([least(n, power) for n in counts])) / np.log(2)
        gaps = np.abs(slopes - expected)
        assert gaps[-1] < gaps[0]
        assert gaps[-1] < abs(loss - alone) / 2  # the two powers are distinguished


@pytest.mark.slow
@pytest.mark.parametrize("source", ["1/2", "2"])
def test_powers_with_a_symbol_have_no_optimum(source: str) -> None:
    """The end of the range was called the optimum (power 0 of the loss), or a TypeError was raised."""
    assert features_law(found(), source).optimum is None


def test_the_slowest_term_decides_the_optimum() -> None:
    best = optimum([(Rational(-3, 2), 0), (Rational(-1, 2), -1), (0, -2)])
    assert (best.loss, best.features) == (Rational(-3, 4), Rational(1, 2))


@pytest.mark.slow
def test_where_powers_meet_a_law_is_refused() -> None:
    with pytest.raises(NotApplicable, match="logarithm"):
        features_law(found(), 1, 2)
    with pytest.raises(ValueError, match="capacity"):
        features_law(found(), "1/2", 1)
