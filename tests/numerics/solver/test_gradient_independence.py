"""Gradient independence against networks: it fails where the full theory does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from derive.program import P, Program, eta, gamma0
from derive.reduce.independence import independent_backward
from derive.theory import Theory
from numerics.analysis.exponents import fitted_power
from numerics.simulation import simulate_program
from numerics.solver.paths import Solved, solve_particles
from tests.chance import excess
from tests.derive.once import mean_field, mlp
from tests.numerics.solver.helpers import TARGETS, kernel

DATA: dict[str, Any] = {"K_x": kernel(3), "y": TARGETS[:3]}
RATE = 0.1

GRID = [(phi, depth, g) for phi in ("tanh", "relu") for depth in (2, 3) for g in (0.5, 1.0, 2.0)]


def solved(theory: Theory, strength: float, steps: int, **options: Any) -> Solved:
    values = {eta: RATE, gamma0: strength, P: 3}
    given: dict[str, Any] = {"values": values, "data": DATA, "samples": 1024, "replicas": 8} | options
    return solve_particles(theory, steps=steps + 1, **given)


def loss_of_networks(
    program: Program, strength: float, steps: int, sizes: tuple[tuple[int, int], ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the loss after each step at infinite width, from two widths, with its standard error."""
    means, squares = [], []
    for width, seeds in sizes:
        run = simulate_program(
            program,
            width=width,
            steps=steps,
            seeds=seeds,
            values={eta: RATE, gamma0: strength, P: 3},
            data=DATA,
            wanted={},
            seed=width,
            each=True,
        )
        assert run.each is not None
        each = (run.each["Delta"][:, 1:] ** 2).mean(-1)
        means.append(each.mean(0))
        squares.append(each.var(0, ddof=1) / seeds)
    (n, _), (m, _) = sizes
    limit = (m * means[1] - n * means[0]) / (m - n)
    return limit, np.sqrt(m**2 * squares[1] + n**2 * squares[0]) / (m - n)


def distance(theory: Theory, strength: float, steps: int, networks: tuple[np.ndarray, np.ndarray]) -> float:
    """Return the distance of the loss at the worst step, relative to the bound of chance."""
    runs = (solved(theory, strength, steps).runs["Delta", ()][:, 1:] ** 2).mean(-1)
    error = np.hypot(runs.std(0, ddof=1) / np.sqrt(len(runs)), networks[1])
    return excess((runs.mean(0) - networks[0]) / error, len(runs) - 1)


def fails(case: tuple[str, int, float], steps: int, sizes: tuple[tuple[int, int], ...]) -> None:
    activation, depth, strength = case
    program = mlp(depth, activation)
    networks = loss_of_networks(program, strength, steps, sizes)
    assert distance(mean_field(program), strength, steps, networks) < 1
    assert distance(mean_field(independent_backward(program)), strength, steps, networks) > 1


def test_it_fails() -> None:
    fails(("tanh", 2, 2.0), 3, ((30, 150), (60, 100)))


@pytest.mark.slow
@pytest.mark.parametrize("case", GRID)
def test_it_fails_for_every_depth_and_strength(case: tuple[str, int, float]) -> None:
    fails(case, 10, ((200, 60), (400, 40)))


@pytest.mark.slow
def test_networks_with_independent_matrices_obey_it() -> None:
    """Also where it does not describe others: it is their theory."""
    program = independent_backward(mlp(2, "tanh"))
    networks = loss_of_networks(program, 2.0, 4, ((30, 150), (60, 100)))
    assert distance(mean_field(program), 2.0, 4, networks) < 1
    assert distance(mean_field(mlp(2, "tanh")), 2.0, 4, networks) > 1


def ansatz(program: Program, strength: float, steps: int, **options: Any) -> Solved:
    """Return the solution with A = B = 0 and eq. 4 for the output (selfconsistent2023, section 5).

    Its flow is read as the steps Delta(t + 1) = Delta(t) - eta K(t, t) Delta(t).
    """
    depth = int(program.depth)
    fields = mean_field(independent_backward(program)).at_depth(depth)
    fields = replace(fields, scalars=(), observables=mean_field(program).at_depth(depth).observables)
    error = np.tile(DATA["y"], (steps + 1, 1))
    for _ in range(steps + 1):
        run = solved(fields, strength, steps, data=DATA | {"Delta": error.T}, **options)
        before, tangent = error, run.value("K")
        rows = [DATA["y"]]
        for t in range(steps):
            rows.append(rows[-1] - RATE * tangent[:, :, t, t] @ rows[-1])
        error = np.array(rows)
        if np.abs(error - before).max() < 1e-10:
            return run
    raise AssertionError("the error did not settle")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("activation", "seeds"), [("tanh", 8), pytest.param("relu", 16, marks=pytest.mark.slow)]
)
def test_the_printed_ansatz_is_right_to_first_order(activation: str, seeds: int) -> None:
    """The gap of the last kernel to the full theory, at the same seeds, vanishes as gamma0^2."""
    program, strengths = mlp(2, activation), (0.05, 0.1, 0.2)
    gaps, errors = [], []
    for strength in strengths:
        found = []
        for seed in range(seeds):
            options: dict[str, Any] = {"replicas": 2, "samples": 64, "seed": seed}
            both = (
                ansatz(program, strength, 3, **options),
                solved(mean_field(program), strength, 3, **options),
            )
            last = [np.trace(run.value("Phi", 2)[:, :, -1, -1]) for run in both]
            found.append(last[0] - last[1])
        gaps.append(abs(np.mean(found)))
        errors.append(np.std(found, ddof=1) / np.sqrt(len(found)))
    power = fitted_power(strengths, gaps, errors)
    assert excess(gaps[-1] / errors[-1], seeds - 1) > 1
    assert excess((power.exponent - 2) / power.stderr) < 1
    assert power.stderr < 0.2
