"""Attention at infinite depth: grids of layer time, two powers of the branch, finite depth and networks."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from sympy import Rational, S

from derive.depth.block_sizes import states_depth
from derive.program import GradientDescent, L, eta
from derive.program.networks import attention
from derive.program.program import Program
from numerics import simulate
from numerics.errors import SpecError
from numerics.experiment.problem import Problem
from numerics.experiment.schema import Solver
from numerics.experiment.theory import beta
from numerics.solver.depth.method import is_sampled
from numerics.solver.depth.sampled import SampledDepth, at_cells, process_of, solve_cells
from numerics.solver.registry import explain
from numerics.stats import extrapolate
from tests.chance import excess
from tests.numerics.networks.attention import LABELS, SEQUENCES, kernel

HALF, ONE = Rational(1, 2), S.One
REPLICAS = 8
NUMBERS = {"eta": 0.03, "gamma0": 2.0, "beta": 1.0}
ARRAYS = {"K_x": kernel(SEQUENCES[:2]), "y": LABELS[:2]}
CELLS = (2, 4, 8)


def heads(power: Any, depth: Any = L) -> Program:
    """Return blocks of one head on the normalised stream with branches ``beta L^-power``."""
    rules = {x: GradientDescent(eta * depth) for x in "QKV"} if power == 1 else None
    options: Any = {"activation": None, "causal": True, "read": "last", "rules": rules}
    return attention(depth, branch=beta * S(depth) ** -power, **options)


def problem(program: Program, steps: int = 9, samples: int = 2048) -> Problem:
    given: Any = {"numbers": NUMBERS, "arrays": ARRAYS, "times": range(steps)}
    return Problem.of(program, solver=Solver(samples=samples), **given)


@lru_cache
def grids(power: Any) -> SampledDepth:
    return solve_cells(problem(heads(power)), cells=CELLS)


def excess_of(gap: Any, *errors: Any, systematic: Any = 0.0) -> float:
    """Return distances beyond the systematic error of grids, relative to the bound of chance."""
    beyond = np.maximum(np.abs(gap) - systematic, 0.0)
    scale = np.sqrt(sum(np.square(e) for e in errors))
    return excess(beyond[scale > 0] / scale[scale > 0], REPLICAS - 1)


@pytest.mark.slow
def test_a_program_states_its_depth() -> None:
    """Cells are layers, and L in the branch and in the rates of a program becomes their number."""
    whole = problem(heads(ONE), steps=3)
    part = at_cells(whole, 4)
    assert part.depth == 4
    assert part.numbers[beta] == whole.numbers[beta]
    assert states_depth(whole.theory)
    assert not states_depth(part.theory)


def test_the_branch_of_other_programs_falls_like_the_root() -> None:
    stated = problem(attention(L, branch=beta, activation=None, normalisation="none"), steps=3)
    np.testing.assert_allclose(at_cells(stated, 4).numbers[beta], 0.5)


def test_rates_without_a_limit_are_refused() -> None:
    program = attention(L, branch=beta / L, rule=GradientDescent(eta * L), activation=None)
    with pytest.raises(SpecError, match=r"no limit of infinite depth: .*h\w*\(0, mu, p, t\) has no limit"):
        process_of(problem(program, steps=3))


@pytest.mark.slow
def test_it_is_a_method_of_the_registry() -> None:
    choice = explain(problem(heads(HALF), steps=3))
    assert choice.method is not None
    assert choice.method.name == "layers"
    assert is_sampled(problem(heads(HALF), steps=3))


@pytest.mark.slow
@pytest.mark.parametrize(("power", "moves"), [(HALF, False), (ONE, True)])
def test_scores_move_where_branches_fall_like_the_depth(power: Any, moves: bool) -> None:
    """The derivation says that scores are of order 1/L for the root, and of order one for the depth."""
    found = grids(power)
    last = [run["score"][-1, -1, :, 1, 0] for run in found.runs]
    assert min(abs(x).max() for x in last) > 1e-3
    limit = found.order(0)
    value, error, missed = (limit["score" + x][-1] for x in ("", "_stderr", "_systematic"))
    assert (excess_of(value, error, systematic=missed) > 1) == moves
    loss = limit["train_loss"]
    assert loss[-1] < 0.9 * loss[0]


@pytest.mark.slow
@pytest.mark.parametrize("power", [HALF, ONE])
def test_deeper_theories_come_to_it(power: Any) -> None:
    """The theory of 12 blocks agrees with the polynomial in 1/L through 2, 4 and 8 blocks; that at 4 not."""
    deep = solve_cells(problem(heads(power)), cells=(12,)).runs[0]
    for name in ("train_loss", "last_size"):
        for depth, same in ((12, True), (4, False)):
            part = grids(power).at_depth(depth)
            errors = part[name + "_stderr"][1:], deep[name + "_stderr"][1:]
            gap, missed = (part[name] - deep[name])[1:], part[name + "_systematic"][1:]
            assert (excess_of(gap, *errors, systematic=missed) < 1) == same, (name, depth)


@pytest.mark.slow
@pytest.mark.parametrize("power", [HALF, ONE])
def test_networks_of_six_blocks(power: Any) -> None:
    given: Any = {"numbers": NUMBERS, "arrays": ARRAYS, "times": range(9), "kernels": "none"}
    networks = extrapolate(
        [
            simulate(heads(power, 6), width=N, seeds=seeds, rng=N, **given)
            for N, seeds in ((48, 200), (96, 100))
        ]
    )
    part = grids(power).at_depth(6)
    for name in ("error", "last_size"):
        gap = (part[name] - networks[name].values)[1:]
        errors = part[name + "_stderr"][1:], networks[f"{name}_stderr"].values[1:]
        assert excess_of(gap, *errors, systematic=part[name + "_systematic"][1:]) < 1, name
    other = grids(HALF if power == 1 else ONE).at_depth(6)  # a negative control
    gap = (other["last_size"] - networks["last_size"].values)[1:]
    assert excess_of(gap, networks["last_size_stderr"].values[1:], other["last_size_stderr"][1:]) > 1


@pytest.mark.slow
def test_the_stream_at_the_start_is_exact() -> None:
    """With RMS and tanh the first position adds beta^2 (1 + <tanh(z)^2>) to <h^2>, for z of variance one."""
    z, weight = np.polynomial.hermite_e.hermegauss(60)
    exact = 1 + (weight / weight.sum()) @ np.tanh(z) ** 2
    program = attention(L, branch=beta / L**HALF, causal=True, read="last")
    found = solve_cells(problem(program, steps=1), cells=(2, 4)).order(0)
    size, error = found["last_size"][0, :, 0], found["last_size_stderr"][0, :, 0]
    given = np.array([ARRAYS["K_x"][k, 0, k, 0] for k in range(2)])
    assert excess_of(size - given - exact, error) < 1
