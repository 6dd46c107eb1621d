"""Numbers and arrays of solvers in Python: what is missing or impossible is refused in one sentence."""

from __future__ import annotations

import numpy as np
import pytest
from sympy import Symbol

from derive.program import GradientDescent, L, eta, t
from numerics.errors import SpecError, require_probability
from numerics.experiment.numbers import power_law
from numerics.solver.direct.evaluation import evaluate
from numerics.solver.long_times.solve import at_rest, stationary_kernels
from numerics.solver.paths.solve import solve_particles
from numerics.solver.quadrature.solve import solve_two_layer
from numerics.solver.rank_one import solve_rank_one
from tests.derive.once import mean_field, mlp

GIVEN = {"values": {"eta": 0.1, "gamma0": 1.0, "P": 1}, "data": {"K_x": [[1.0]], "y": [1.0]}}


def test_missing_numbers_and_arrays_of_stationary_kernels_are_named() -> None:
    decay, heat = Symbol("decay", positive=True), Symbol("heat", positive=True)
    noisy = mean_field(mlp(1, "relu", weight_decay=decay, temperature=heat))
    with pytest.raises(SpecError, match=r"values.*accepted: numbers for decay, heat"):
        stationary_kernels(noisy, values={"eta": 0.2}, data={"K_x": [[1.0]]})
    with pytest.raises(SpecError, match=r"data.*accepted: arrays of K_x"):
        stationary_kernels(noisy, values={"eta": 0.2, decay: 1.0, heat: 0.5}, data={})


def test_rest_points_need_numbers_for_decay_and_depth() -> None:
    decaying = mlp(1, weight_decay=Symbol("decay", positive=True))
    with pytest.raises(SpecError, match="accepted: numbers for decay"):
        at_rest(decaying, steps=10, **GIVEN)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="is not a number of layers"):
        at_rest(mlp(L, weight_decay=1), steps=10, **GIVEN)  # type: ignore[arg-type]


@pytest.mark.parametrize("solver", [evaluate, solve_particles])
def test_a_decay_that_depends_on_the_time_needs_a_problem(solver: object) -> None:
    """It ended in a missing number for a dummy symbol, or in an error of SymPy's printer."""
    fading = mean_field(mlp(1, "tanh", rule=GradientDescent(eta, decay=1 / (10 + t))))
    with pytest.raises(SpecError, match=r"product over steps .accepted: numerics.solve\(program"):
        solver(fading, steps=3, samples=64, **GIVEN)  # type: ignore[operator]


def test_impossible_numbers_are_refused() -> None:
    theory = mean_field(mlp(1, "tanh"))
    with pytest.raises(SpecError, match="seed = -1"):
        solve_particles(theory, steps=3, samples=64, seed=-1, **GIVEN)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="accuracy = -1"):
        solve_two_layer(theory, steps=3, accuracy=-1, **GIVEN)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="gamma = nan"):
        solve_rank_one(1, np.nan, power_law(2.0, 0.5, 10), np.array([1.0]), 2.0)
    with pytest.raises(SpecError, match=r"^level = 95.0: is not a probability"):
        require_probability("level", np.float64(95))
