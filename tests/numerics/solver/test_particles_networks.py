"""Particles against the direct evaluation of the same theory, and against finite networks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from sympy import Rational, Symbol

from derive.program import P, Program, eta, gamma0
from numerics.simulation import simulate_program
from numerics.solver.direct import Evaluated, evaluate
from numerics.solver.paths import solve_particles
from tests.chance import excess, in_errors
from tests.derive.once import mean_field, mlp
from tests.numerics.solver.helpers import TARGETS, kernel

DATA: dict[str, Any] = {"K_x": kernel(2), "y": TARGETS[:2]}
VALUES: dict[Any, Any] = {eta: 0.3, gamma0: 1.1, P: 2, Symbol("beta"): 0.7}


def distances(ours: Evaluated, other: Evaluated, names: str | None = None) -> np.ndarray:
    """Return all differences in joint standard errors; exact values must be equal."""
    found = []
    for name, layer in other.values:
        if names is not None and name not in names.split():
            continue
        gap = np.abs(ours.value(name, layer) - other.value(name, layer))
        error = np.hypot(ours.stderr(name, layer), other.stderr(name, layer))
        found.append(in_errors(gap, error))
    return np.concatenate(found)


@pytest.mark.parametrize(
    ("activation", "depth"),
    [
        ("tanh", 1),
        ("relu", 2),
        *(
            pytest.param(*x, marks=pytest.mark.slow)
            for x in (("relu", 1), ("tanh", 3), ("erf", 2), ("abs", 2))
        ),
    ],
)
def test_activations_against_the_direct_evaluation(activation: str, depth: int) -> None:
    """Every order parameter, responses too, at three steps."""
    theory = mean_field(mlp(depth, activation))
    given: dict[str, Any] = {"steps": 3, "values": VALUES, "data": DATA}
    squares = []
    # Entries of one comparison are correlated, so that the mean of z^2 is taken over several of them.
    for seed in (1, 2, 3) if (activation, depth) == ("relu", 1) else (1,):
        other = evaluate(theory, samples=2**9, replicas=16, seed=seed, **given)
        ours = solve_particles(theory, samples=2**9, replicas=16, seed=seed + 1, ridge=0.0, **given)
        z = distances(ours, other)
        assert excess(z, 15) < 1
        squares.append((z**2).mean())
    assert np.sqrt(np.mean(squares)) < 1.5


PROGRAMS: dict[str, Callable[[], Program]] = {
    "bias, Langevin, widths": partial(
        mlp, 2, "tanh", bias=True, temperature=Rational(1, 5), relative_widths=[1, Rational(1, 2)]
    ),
    "channels": partial(mlp, 2, "tanh", outputs=2),
    "momentum": partial(mlp, 2, "tanh", momentum=Rational(1, 2)),
    "weight decay": partial(mlp, 2, "tanh", weight_decay=Rational(1, 2)),
    "residual": partial(mlp, 2, "tanh", branch=Symbol("beta")),
    "independent backward matrices": partial(mlp, 2, "tanh", tied=False),
    "mean loss": partial(mlp, 2, "softplus", loss="mean"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_against_the_direct_evaluation(name: str) -> None:
    data = DATA | ({"y": np.stack([TARGETS[:2], -TARGETS[1:3]], axis=1)} if name == "channels" else {})
    theory = mean_field(PROGRAMS[name]())
    given: dict[str, Any] = {"steps": 2, "values": VALUES, "data": data}
    found = []
    for one, two in ((5, 4), (11, 12)):  # entries of one run depend on each other: two runs say more
        other = evaluate(theory, samples=2**8, replicas=16, seed=one, **given)
        ours = solve_particles(theory, samples=2**8, replicas=16, seed=two, **given)
        found.append(distances(ours, other))
    z = np.concatenate(found)
    assert excess(z, 15) < 1
    assert np.sqrt((z**2).mean()) < 1.5


CASES = [("tanh", 2, 1.0), ("relu", 2, 1.0), ("erf", 3, 1.0), ("softplus", 2, 1.0), ("tanh", 2, 3.0)]


def against_networks(
    case: tuple[str, int, float], steps: int, widths: tuple[int, int], seeds: int
) -> np.ndarray:
    """Return differences to networks of two widths at infinite width, in joint standard errors."""
    activation, depth, g = case
    values = VALUES | {gamma0: g, eta: 0.25}
    program = mlp(depth, activation)
    runs = [
        simulate_program(program, width=n, steps=steps - 1, seeds=seeds, values=values, data=DATA, seed=n)
        for n in widths
    ]
    ours = solve_particles(
        mean_field(program), steps=steps, values=values, data=DATA, samples=2048, replicas=16, seed=9
    )
    found = []
    a, b = widths
    for name in ("Delta", "Phi", "G"):
        narrow, wide = (r[name] for r in runs)
        limit = (b * wide.mean - a * narrow.mean) / (b - a)
        error = np.hypot(b * wide.stderr, a * narrow.stderr) / (b - a)
        for layer in [None] if name == "Delta" else range(1, depth + 1):
            theirs, spread = (limit, error) if layer is None else (limit[layer - 1], error[layer - 1])
            value, own = ours.value(name, layer), ours.stderr(name, layer)
            if layer is not None:  # (t, s, mu, alpha) there
                theirs, spread = (x.transpose(2, 3, 0, 1) for x in (theirs, spread))
            joint = np.hypot(spread, own)
            found.append((np.abs(theirs - value)[joint > 1e-12] / joint[joint > 1e-12]).ravel())
    return np.concatenate(found)


def test_networks() -> None:
    z = against_networks(("tanh", 2, 1.0), steps=4, widths=(60, 120), seeds=60)
    assert excess(z) < 1
    assert np.sqrt((z**2).mean()) < 1.6


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_networks_of_larger_width(case: tuple[str, int, float]) -> None:
    z = against_networks(case, steps=11, widths=(200, 400), seeds=400)
    assert excess(z) < 1
    assert np.sqrt((z**2).mean()) < 1.6
