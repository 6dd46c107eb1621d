"""The reduced theory of the rich regime beside the solved one, and beside its own power laws."""

from typing import Any

import numpy as np
import pytest
from sympy import N, Rational
from xarray import Dataset

from derive.calculus.symbols import gamma0
from derive.scale.modes import time as t
from derive.scale.rich import kappa, rich_scaling
from numerics.experiment import Experiment
from numerics.experiment.numbers import power_law
from numerics.solver import solve
from numerics.solver.rank_one import solve_rank_one
from tests.derive.scale.derived import reduced


def flow(depth: int, beta: float, gamma: float, modes: int, time: float, rtol: float = 1e-4) -> Dataset:
    return solve(
        Experiment.from_dict(
            {
                "network": {"depth": depth, "gamma0": gamma},
                "data": {"kind": "power-law", "capacity": 2.0, "source": beta, "modes": modes},
                "training": {"rule": "flow", "time": time, "points": 6, "grid": "log"},
                "solver": {"rtol": rtol},
            }
        )
    )


@pytest.mark.parametrize("gamma", [pytest.param(0.1, marks=pytest.mark.slow), 5.0])
def test_one_hidden_layer_is_of_rank_one_exactly(gamma: float) -> None:
    """At any time and gamma0, with 2 for the start: sigma^2 is then C_g + 1."""
    found = flow(1, 0.5, gamma, 50, 20.0)
    at = found.time.values[1:]
    reduced = solve_rank_one(1, gamma, power_law(2.0, 0.5, 50), at, 2.0)
    bound = found.attrs["error_estimate"] + 1e-5
    np.testing.assert_allclose(reduced.loss, found.test_loss.values[1:], rtol=bound)
    np.testing.assert_allclose(reduced.squared - 1, np.diagonal(found.C_g.values[0])[1:], rtol=10 * bound)
    other = solve_rank_one(1, gamma, power_law(2.0, 0.5, 50), at, 2.1)
    assert np.abs(other.loss / found.test_loss.values[1:] - 1).max() > 10 * bound


def test_few_nodes_stand_for_all_modes() -> None:
    every, few = (power_law(2.0, 0.5, 200, every=x) for x in (True, False))
    assert few.counts.max() > 2
    runs = [solve_rank_one(1, 1.0, x, np.array([1.0, 5.0]), 2.0) for x in (every, few)]
    np.testing.assert_allclose(runs[0].loss, runs[1].loss, rtol=1e-5)
    np.testing.assert_allclose(runs[0].squared, runs[1].squared, rtol=1e-5)


def predicted(depth: int, beta: str, gamma: float, at: np.ndarray, start: float | None) -> np.ndarray:
    law = rich_scaling(reduced(), depth, beta, 2)
    curve = law.corrected(start=None if start is None else Rational(repr(start))).subs(gamma0, gamma)
    return np.array([float(N(curve.subs(t, float(y)))) for y in at])


@pytest.mark.slow
def test_first_corrections() -> None:
    """One hidden layer with known start: the difference has the size of the corrections squared."""
    solved = flow(1, 0.5, 5.0, 10**9, 3e3, 1e-3)
    at, loss = solved.time.values[-2:], solved.test_loss.values[-2:]
    left = [np.abs(loss / predicted(1, "1/2", 5.0, at, start) - 1) for start in (None, 2.0)]
    sizes = [c.size.subs({gamma0: 5, kappa: 2}) for c in rich_scaling(reduced(), 1, "1/2", 2).corrections]
    square = [float(N(sum(abs(x.subs(t, y)) for x in sizes))) ** 2 for y in at]
    assert np.all(left[1] < 2 * np.array(square)), (left, square)
    assert np.all(left[0] > 4 * left[1])


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ((1.0, [1.0, 2.0], 0.0), "must be positive"),
        ((1.0, [2.0, 1.0], 2.0), "must rise"),
        ((1.0, [0.0, 1.0], 2.0), "must be positive and increase"),
        ((1.0, [float("nan")], 2.0), "times: is nan"),  # the integration did not end
        ((1.0, [1.0, float("inf")], 2.0), "times: is inf"),
    ],
)
def test_refused(given: tuple[float, list[float], float], why: str) -> None:
    gamma, times, start = given
    with pytest.raises(ValueError, match=why):
        solve_rank_one(1, gamma, power_law(2.0, 0.5, 5), np.array(times), start)


def test_the_initial_singular_value_is_required() -> None:
    """Its default of zero was refused in every call."""
    with pytest.raises(TypeError, match="start"):
        solve_rank_one(1, 1.0, power_law(2.0, 0.5, 50), np.array([1.0]))  # type: ignore[call-arg]
    with pytest.raises(ValueError, match=r"start = 0.0: must be positive"):
        solve_rank_one(1, 1.0, power_law(2.0, 0.5, 50), np.array([1.0]), 0.0)


@pytest.mark.parametrize("depth", [0, -1, 1.5])
def test_a_hidden_layer_is_needed(depth: Any) -> None:
    """Depth 0 gave a loss."""
    with pytest.raises(ValueError, match=f"depth = {depth}: must"):
        solve_rank_one(depth, 1.0, power_law(2.0, 0.5, 5), np.array([1.0]), 2.0)
