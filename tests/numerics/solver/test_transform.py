"""Tests of Laplace transforms of linear flows against the march, networks, and of refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sympy import Rational

import numerics
from derive.errors import NotApplicable
from derive.linear.transforms import transforms, z, z_
from derive.program import GradientFlow, t
from derive.program.networks import random_features, structured
from derive.reduce.data import mode_sums
from derive.theory import mean_field
from numerics.experiment.problem import Problem
from numerics.experiment.schema import Solver
from numerics.solver.transform.contour import inversion
from numerics.solver.transform.solve import solve_transforms
from tests.numerics.networks.random_features import power_law_arrays

NUMBERS = {"N": 6.0, "P": 5.0, "sigma": 0.3}


def given(modes: int = 4, times: Any = (0.0, 0.5, 2.0), **numbers: float) -> dict[str, Any]:
    """Return arrays, times and numbers of a small problem."""
    return {"arrays": power_law_arrays(modes), "times": times, "numbers": numbers or NUMBERS}


@pytest.mark.parametrize("last", [np.nan, np.inf, -1.0])
def test_times_are_finite_and_increase(last: float) -> None:
    theory = mean_field(structured(1, data="population", rule="flow"))
    with pytest.raises(ValueError, match="times"):
        solve_transforms(theory, np.array([0.0, last]), numbers={})


@pytest.mark.parametrize(("power", "value"), [(0, lambda t: t**0), (1, lambda t: t), (-0.5, None)])
def test_powers_of_time_are_inverted(power: float, value: Any) -> None:
    times = np.geomspace(1e-2, 1e4, 9)
    contour = inversion(times, 1.0, 20)
    exact = value(times) if value else 1 / np.sqrt(np.pi * times)
    found = contour.once(contour.rates ** -(power + 1))
    other = inversion(times, 1.0, 24)
    error = np.abs(found / other.once(other.rates ** -(power + 1)) - 1)
    assert (np.abs(found / exact - 1) <= 2 * error + 1e-10).all()  # two numbers of rates say the error


def test_each_field_of_a_correlation_has_its_own_rate() -> None:
    found = transforms(mode_sums(mean_field(random_features(data="population"))))
    terms = [x for e in found.correlations for x in e.terms]
    assert not any(x.right.has(z) or x.left.has(z_) for x in terms)
    assert all(x.right == x.left.subs(z, z_) for x in found.correlation("C_a").terms)


def test_a_small_problem_has_the_losses_of_its_march() -> None:
    """Few modes and a short time, which explicit steps reach."""
    program, short = random_features(data="population"), given(2, (0.0, 0.3), N=3.0)
    march, found = (
        numerics.solve(program, **short, solver=Solver(method=x, rtol=1e-4)) for x in ("march", "transform")
    )
    error = march.attrs["error_estimate"] + found.attrs["error_estimate"]
    assert np.abs(found.test_loss / march.test_loss - 1).max() <= error


@pytest.mark.slow
@pytest.mark.parametrize("decay", [0, Rational(1, 5)])
def test_the_march_of_the_same_theory_agrees(decay: Any) -> None:
    program = random_features(noise=True, weight_decay=decay)
    marched = numerics.solve(program, **given(), solver=Solver(method="march", rtol=1e-5))
    found = numerics.solve(program, **given(), solver=Solver(method="transform"))
    for name in ("train_loss", "test_loss", "C_v", "C_h0"):
        error = marched.attrs["error_estimate"] + found.attrs["error_estimate"]
        size = np.abs(marched[name].values).max()
        assert np.abs(found[name] - marched[name]).max() <= 10 * error * size, name


@pytest.mark.slow
def test_momentum_agrees_with_its_march() -> None:
    program, numbers = random_features(noise=True, momentum=1), given()
    marched = numerics.solve(program, **numbers, solver=Solver(method="march", rtol=1e-5))
    found = numerics.solve(program, **numbers, solver=Solver(method="transform", rtol=1e-5))
    error = marched.attrs["error_estimate"] + found.attrs["error_estimate"]
    assert np.abs(found.test_loss / marched.test_loss - 1).max() <= 10 * error


def test_a_response_that_is_left_out_is_seen() -> None:
    problem = Problem.of(random_features(data="population"), **given(times=(0.0, 1.0, 8.0), N=6.0))
    theory, units = problem.theory, problem.spectrum
    q = theory.equation("g_a")
    wrong = replace(
        theory,
        equations=tuple(replace(e, terms=e.terms[:1]) if e is q else e for e in theory.equations),
    )
    right, other = (
        solve_transforms(x, problem.times, numbers=problem.numbers, units=units) for x in (theory, wrong)
    )
    assert abs(right.correlations["C_v"][2, 2] / other.correlations["C_v"][2, 2] - 1) > 0.1


def test_theories_whose_kernels_change_in_time_are_refused() -> None:
    with pytest.raises(NotApplicable, match="no index beside that of its units"):
        transforms(mode_sums(mean_field(structured(data="population", rule="flow"))))
    with pytest.raises(NotApplicable, match="discrete steps"):
        transforms(mode_sums(mean_field(random_features(data="population", rule="gd"))))


def test_a_rate_that_changes_in_time_is_refused() -> None:
    slowing = GradientFlow(rate=1 / (1 + t))
    with pytest.raises(NotApplicable, match="must not contain a time or an order parameter"):
        transforms(mode_sums(mean_field(random_features(data="population", rule=slowing))))
