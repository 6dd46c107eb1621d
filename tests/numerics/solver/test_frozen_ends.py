"""The linear residual network of depth2023: direct evaluation, networks, infinite depth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sympy import Function

from derive.calculus.symbols import t
from derive.errors import NotApplicable
from numerics.errors import SpecError
from numerics.simulation import simulate_program
from numerics.solver.depth.frozen_ends import given_in_sources, solve_frozen_ends, solve_frozen_ends_limit
from numerics.solver.direct import evaluate
from tests.chance import excess
from tests.derive.once import depth_program, mean_field

INPUTS = np.array([1.0, 0.6, -0.8, 1.1])
TARGETS = np.array([0.9, -0.4, 0.7, 0.2])
POWERS = [(0.5, 0.5), (0.75, 0.25), (0.5, 1.0), (1.0, 0.5)]


def slope(step: int, f: float) -> float:
    return f - float(TARGETS[step])


@pytest.mark.parametrize(
    ("alpha", "gamma"), [*POWERS[:2], *(pytest.param(*x, marks=pytest.mark.slow) for x in POWERS[2:])]
)
def test_the_march_agrees_with_direct_evaluation(alpha: float, gamma: float) -> None:
    found = solve_frozen_ends(INPUTS, slope, depth=3, alpha=alpha, gamma=gamma)
    given = {
        "xi": lambda step: INPUTS[np.asarray(step, dtype=int)],
        "dloss": lambda step, f: f - TARGETS[np.asarray(step, dtype=int)],
    }
    direct = evaluate(mean_field(depth_program(3, alpha, gamma)), steps=4, data=given)
    for name in ("f", "chi"):
        np.testing.assert_allclose(found[name], direct.value(name), atol=1e-12)
    for layer in range(4):
        for name in ("C_x", "C_dx"):
            np.testing.assert_allclose(found[name][layer], direct.value(name, layer), atol=1e-12)


@pytest.mark.parametrize(("alpha", "gamma"), POWERS[:2])
def test_networks_at_two_widths_extrapolate_to_the_theory(alpha: float, gamma: float) -> None:
    theory = solve_frozen_ends(INPUTS, slope, depth=3, alpha=alpha, gamma=gamma)
    data = {"xi": INPUTS, "dloss": lambda step, f: slope(int(step), f)}
    program = depth_program(3, alpha, gamma)
    few, many = (
        simulate_program(program, width=n, steps=3, seeds=seeds, values={}, data=data, seed=n)
        for n, seeds in ((16, 600), (32, 300))
    )
    for name in ("f", "C_x", "C_dx"):
        gap = 2 * many[name].mean - few[name].mean
        error = np.hypot(2 * many[name].stderr, few[name].stderr)
        if gap.ndim > 1:  # each layer with itself
            gap, error = (np.moveaxis(np.einsum("tskk->tsk", x), -1, 0) for x in (gap, error))
        assert excess((gap - theory[name]) / error) < 1, name


def test_initial_stream_is_that_of_random_layers() -> None:
    # before training x^l has variance xi^2 (1 + L^(-2 alpha))^l (depth2023, Lemma 4.3 at t = s = 0)
    for alpha in (0.5, 0.75):
        found = solve_frozen_ends(INPUTS, slope, depth=5, alpha=alpha)
        growth = (1 + 5.0 ** (-2 * alpha)) ** np.arange(6)
        np.testing.assert_allclose(found["C_x"][:, 0, 0], INPUTS[0] ** 2 * growth, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "gamma"), [(0.5, 0.5), (1.0, 0.0)])
def test_finite_depth_converges_to_the_limit(alpha: float, gamma: float) -> None:
    # above alpha = 1/2 the layers' noise goes like L^(1 - 2 alpha): 1/L at alpha = 1
    inputs = 0.5 * INPUTS[:3]
    limit = solve_frozen_ends_limit(inputs, slope, alpha=alpha, gamma=gamma)
    gaps = []
    for depth in (4, 8, 16, 32):
        found = solve_frozen_ends(inputs, slope, depth=depth, alpha=alpha, gamma=gamma)
        gaps.append(np.linalg.norm(found["f"] - limit["f"]))
    assert 10 * limit.errors["f"] < gaps[-1]
    slopes = np.log2(np.array(gaps[:-1]) / gaps[1:])
    fitted = 2 * slopes[1:] - slopes[:-1]  # the next order in 1/L taken out
    spread = abs(fitted[-1] - fitted[-2])
    assert spread < 0.05, fitted
    assert abs(fitted[-1] - 1) < spread, fitted


@pytest.mark.slow
def test_twice_the_depth_halves_the_distance_to_the_limit() -> None:
    limit = solve_frozen_ends_limit(INPUTS[:2], slope, alpha=0.5, gamma=0.5)
    gaps = [
        np.linalg.norm(
            solve_frozen_ends(INPUTS[:2], slope, depth=depth, alpha=0.5, gamma=0.5)["f"] - limit["f"]
        )
        for depth in (4, 8, 16)
    ]
    ratios = np.array(gaps[:-1]) / gaps[1:]
    assert abs(2 * ratios[1] - ratios[0] - 2) < abs(ratios[1] - ratios[0])  # the next order in 1/L taken out


def test_the_gamma_grid_is_of_sixth_order_after_extrapolation() -> None:
    # the stream at the start is exp(tau): missed by a series in 1/layers^2, of which two terms are taken out
    gaps = [
        abs(solve_frozen_ends_limit([1.0], lambda step, f: f, layers=n)["C_x"][-1, 0, 0] - np.e)
        for n in (8, 16, 32)
    ]
    slopes = np.log2(np.array(gaps[:-1]) / gaps[1:])
    assert np.all(np.abs(slopes - 6) < 0.3), slopes


def test_powers_without_a_limit_are_refused() -> None:
    with pytest.raises(NotApplicable, match="grows"):
        solve_frozen_ends_limit(INPUTS, slope, alpha=0.25, gamma=0.75)


@pytest.mark.parametrize("inputs", [[], [[1.0]], [np.nan]])
def test_inputs_that_are_not_numbers_by_step_are_refused(inputs: list[float]) -> None:
    with pytest.raises(SpecError, match="one finite number for each step"):
        solve_frozen_ends(inputs, slope, depth=2)


def test_small_inputs_have_the_limit_of_large_ones() -> None:
    """The iteration in layer time stopped at changes of 1e-12, whatever the size of the numbers."""
    small = solve_frozen_ends_limit([1e-8], slope, layers=8)["C_x"][:, 0, 0] / 1e-16
    np.testing.assert_allclose(small, np.exp([0.0, 0.5, 1.0]), rtol=1e-6)


@pytest.mark.parametrize(("field", "reason"), [(1, "not the product of"), (0, "not its product with")])
def test_a_given_function_multiplies_sources_only(field: int, reason: str) -> None:
    """The function was dropped from terms whose other factor is not a source."""
    theory, xi = mean_field(depth_program(2)), Function("xi")(t)
    equations = list(theory.equations)
    first, *others = equations[field].terms
    changed = first.with_expression(first.expr * xi if field else (first.expr / xi) ** 2)
    equations[field] = replace(equations[field], terms=(first, changed, *others))
    with pytest.raises(NotApplicable, match=reason):
        given_in_sources(replace(theory, equations=tuple(equations)), "xi")
