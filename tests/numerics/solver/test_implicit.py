"""Tests of implicit steps, whose quantities depend on each other, and of unmet tolerances."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from numerics.errors import NotConverged
from numerics.experiment import Experiment
from numerics.solver import solve
from numerics.solver.grid import TimeGrid
from numerics.solver.linear.rows import RESOLVED, ROUNDING, StepIteration, iterate_step
from numerics.solver.refine import Attempt, Refined, Trapezoidal, refine


def test_what_rounding_leaves_is_returned() -> None:
    """Sweeps with noise of 1e-9 stop there, and report it."""
    x, rng = np.array([0.0, 0.0]), np.random.default_rng(0)

    def sweep() -> None:
        x[:] = np.cos(x) + 1e-9 * rng.standard_normal(2)

    left = iterate_step([x], sweep, 1e-14)
    assert 1e-11 < left < ROUNDING
    assert x == pytest.approx(0.7390851332, abs=1e-8)


def test_what_never_settles_is_refused() -> None:
    x, rng = np.array([0.0]), np.random.default_rng(0)

    def sweep() -> None:
        x[:] = rng.standard_normal(1)

    with pytest.raises(
        NotConverged, match=r"did not converge in .* larger solver\.rtol or a shorter training"
    ):
        iterate_step([x], sweep, 1e-6)


def test_numbers_that_overflow_are_refused() -> None:
    x, factors = np.array([1e-200]), iter([2.0, *[-1e200] * 50])

    def sweep() -> None:
        x[:] = 1e-200 * next(factors) if abs(x[0]) < 1 else 1e200

    with (
        np.errstate(over="ignore"),
        pytest.raises(NotConverged, match=r"overflow .* use a shorter training\.time"),
    ):
        iterate_step([x], sweep, 1e-6)


def test_what_was_large_counts_as_zero_when_it_is_gone() -> None:
    """A block that has fallen far below its peak needs no relative accuracy; the largest change is kept."""
    settling, x, rng = StepIteration(1e-6), np.array(1.0), np.random.default_rng(0)
    settling.step([x], lambda: None)

    def sweep() -> None:
        x[...] = 1e-3 * RESOLVED * 1e-6 * rng.standard_normal()

    settling.step([x], sweep)
    assert 0 < settling.residual < 1e-6


FLOW: dict[str, Any] = {
    "network": {"depth": 1},
    "data": {"kind": "power-law", "capacity": 1.5, "source": 0.5, "modes": 40},
    "training": {"rule": "flow", "time": 10.0, "points": 5},
    "solver": {"rtol": 1e-3},
}


def estimated(rtol: float, *powers: float, residual: float = 0.0, most: int = 2000) -> Refined[float]:
    """Return the refinement of an integrator with an error of these coefficients of h^2, h^4, ....

    The exact value is 1.
    """
    clock = Trapezoidal(np.array([0.0, 1.0]), rtol, first=4)
    clock.most = most

    def run(grid: TimeGrid) -> Attempt[float]:
        h = float(grid.nodes[1])
        value = 1 + sum(c * h ** (2 * k) for k, c in enumerate(powers, 1))
        return Attempt(np.array([1.0, value]), value, residual)

    return refine(clock, run)


def test_each_grid_takes_away_one_power_of_the_step() -> None:
    """Three, four and five grids remove errors h^2, h^4, h^6; the last confirms that no error is left."""
    for steps, powers in ((8, [0.7]), (12, [0.7, -2.0]), (16, [0.7, -2.0, 3.0])):
        found = estimated(1e-13, *powers)
        assert found.notes["time_nodes"] == steps + 1
        (value,) = found.extrapolated(lambda x: {"x": np.array(x)}).values()
        assert value == pytest.approx(1, abs=1e-14)


def test_the_error_estimate_holds_what_steps_were_off_by() -> None:
    before = estimated(1e-3, 0.1).notes["error_estimate"]
    after = estimated(1e-3, 0.1, residual=5e-4).notes["error_estimate"]
    assert before < 5e-4 <= after <= 1e-3
    with pytest.raises(NotConverged, match=r"error estimate is 2\.0e-03"):
        estimated(1e-3, 0.1, residual=2e-3, most=200)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [2, 3])
def test_deep_flows_reach_a_million(depth: int) -> None:
    """Long after all modes are learnt the loss is zero, and the steps still converge."""
    given = FLOW | {
        "network": {"depth": depth},
        "data": FLOW["data"] | {"modes": 100_000},
        "training": {"rule": "flow", "time": 1e6, "points": 60, "grid": "log"},
    }
    coarse, fine = (solve(Experiment.from_dict(given | {"solver": {"rtol": x}})) for x in (2e-2, 1e-4))
    loss = fine.test_loss.values
    moved = np.abs(coarse.test_loss.values - loss) / (loss + RESOLVED * loss[0])
    assert fine.attrs["time_nodes"] > coarse.attrs["time_nodes"]
    assert moved.max() <= coarse.attrs["error_estimate"] <= 2e-2
