"""Momentum of nonlinear networks: against networks, and where it is plain descent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sympy import Rational, Symbol

from derive.program import P, eta, gamma0
from numerics.simulation import simulate_program
from numerics.solver.paths import Solved, solve_particles
from tests.chance import excess
from tests.derive.once import mean_field, mlp
from tests.numerics.solver.helpers import TARGETS, kernel

DATA: dict[str, Any] = {"K_x": kernel(2), "y": TARGETS[:2]}
kept = Symbol("m", positive=True)


def solved(rate: float, momentum: float | None, steps: int, depth: int = 2, **options: Any) -> Solved:
    program = mlp(depth, "tanh") if momentum is None else mlp(depth, "tanh", momentum=kept)
    values: dict[Any, float] = {eta: rate, gamma0: 1.2, P: 2}
    if momentum is not None:
        values[kept] = momentum
    given: dict[str, Any] = {"samples": 512, "replicas": 4} | options
    return solve_particles(mean_field(program), steps=steps, values=values, data=DATA, **given)


@pytest.mark.slow
def test_networks() -> None:
    """Eight steps that keep half of the velocity; two widths taken to infinity."""
    steps, values = 9, {eta: 0.15, gamma0: 1.2, P: 2}
    program = mlp(2, "tanh", momentum=Rational(1, 2))
    runs = {
        n: simulate_program(program, width=n, steps=steps - 1, seeds=40, values=values, data=DATA, seed=n)
        for n in (50, 100)
    }
    ours = solved(0.15, 0.5, steps, samples=512, replicas=8, seed=3)
    plain = solved(0.15, None, steps)
    found = []
    for name, layers in (("Delta", (None,)), ("Phi", (1, 2)), ("G", (1, 2))):
        narrow, wide = runs[50][name], runs[100][name]
        limit = 2 * wide.mean - narrow.mean
        spread = np.hypot(2 * wide.stderr, narrow.stderr)
        for layer in layers:
            theirs, error = (limit, spread) if layer is None else (limit[layer - 1], spread[layer - 1])
            if layer is not None:
                theirs, error = (x.transpose(2, 3, 0, 1) for x in (theirs, error))
            joint = np.hypot(error, ours.stderr(name, layer))
            moving = joint > 1e-12
            found.append((np.abs(theirs - ours.value(name, layer))[moving] / joint[moving]).ravel())
            if layer is None:
                apart = np.abs(theirs - plain.value(name))[-1] / joint[-1]
                assert apart.max() > 10  # momentum is seen
    z = np.concatenate(found)
    assert excess(z) < 1
    assert np.sqrt((z**2).mean()) < 1.6


def test_no_velocity_kept_is_plain_descent() -> None:
    plain, pushed = solved(0.3, None, 6), solved(0.3, 1e-12, 6)
    for name, layer in (("Delta", None), ("Phi", 2), ("G", 1)):
        np.testing.assert_allclose(pushed.value(name, layer), plain.value(name, layer), atol=1e-9)


def test_short_steps_are_those_of_a_longer_rate() -> None:
    """A kept share m makes steps of eta (1 - m) act like steps of eta; the difference halves with eta."""
    gaps = []
    for rate, steps in ((0.1, 11), (0.05, 21)):
        options: dict[str, Any] = {"depth": 1, "replicas": 2}
        plain, pushed = solved(rate, None, steps, **options), solved(rate * 0.6, 0.4, steps, **options)
        gaps.append(np.abs(plain.value("Delta")[-1] - pushed.value("Delta")[-1]).max())
    assert gaps[0] < 0.1
    assert 1.6 < gaps[0] / gaps[1] < 2.6
