"""Signs of the sources of paths: which half of the paths have opposite ones, and which come in pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sympy import Symbol, exp, tanh

from derive.program import P, eta, gamma0
from derive.program.networks import normalised, recurrent_task
from numerics.experiment.problem import Problem
from numerics.paths import Paths
from numerics.solver.paths import Solved, solve_particles
from numerics.solver.paths.parity import flipped
from numerics.solver.paths.problem import prepared_for
from tests.benchmarks.programs import gated, gram, residual, signs
from tests.derive.once import mean_field, mlp
from tests.numerics.networks.case import Case
from tests.numerics.solver.helpers import TARGETS, kernel

K = kernel(2)
x = Symbol("x", real=True)


def solved(activation: Any, **options: Any) -> Solved:
    given: dict[str, Any] = {
        "steps": 3,
        "values": {eta: 0.3, gamma0: 1.1, P: 2},
        "data": {"K_x": K, "y": TARGETS[:2]},
        "samples": 64,
        "replicas": 3,
    }
    return solve_particles(mean_field(mlp(1, activation)), **given | options)


def are_paired(fields: np.ndarray) -> bool:
    """Return whether the first two quarters of the paths, and the last two, are opposite at the start."""
    first, second, third, fourth = np.split(fields, 4, axis=-1)
    return np.allclose(first, -second) and np.allclose(third, -fourth)


@pytest.mark.parametrize(
    ("activation", "paired"),
    [
        ("tanh", False),
        ("linear", False),
        ("quadratic", False),
        ("relu", True),
        ("softplus", True),
        (tanh(x) + x**2, True),
        (1 / (1 + exp(-x)), True),
    ],
)
def test_paths_are_paired_where_signs_are_no_symmetry(activation: Any, paired: bool) -> None:
    """Check that paths are paired only if signs of sources are not a symmetry.

    Pairs halve the number of points. Signs are a symmetry of all sources for odd functions, and of those of
    features for even ones.
    """
    found = solved(activation, paths=Paths(("h",), times=(0,))).paths
    assert found is not None
    assert are_paired(found.h.values) is paired


def test_populations_choose_for_themselves() -> None:
    """The first layer of this network is linear; the second one multiplies (1 + tanh(q)) h."""
    case = gated(1, 2)
    numbers = {**case.numbers, "P": 1}
    found = solve_particles(
        mean_field(case.program),
        steps=2,
        values=numbers,
        data=case.arrays,
        samples=64,
        replicas=2,
        paths=Paths(("h",), times=(0,)),
    ).paths
    assert found is not None
    assert [are_paired(found.h.sel(layer=k).values) for k in (1, 2)] == [False, True]


def test_the_kernel_of_relu_is_exact_on_its_diagonal() -> None:
    """``relu(h)^2`` of a path and of its partner are ``h^2`` together, whose mean is exact."""
    found = solved("relu", steps=1)
    np.testing.assert_allclose(np.diagonal(found.value("Phi", 1)[..., 0, 0]), np.diag(K) / 2, rtol=1e-12)


def test_pairs_make_errors_smaller() -> None:
    """Numbers of paths that four does not divide have no pairs; an F test of 32 replicas of each."""
    errors = [solved("relu", samples=n, replicas=32, steps=6).stderr("Delta")[1:] for n in (256, 258)]
    assert np.sqrt((errors[0] ** 2).mean() / (errors[1] ** 2).mean()) < 0.8


@pytest.mark.parametrize("samples", [10, 66])
def test_numbers_of_paths_that_four_does_not_divide(samples: int) -> None:
    found = solved("relu", samples=samples, replicas=16)
    many = solved("relu", samples=4096)
    distance = found.value("Delta") - many.value("Delta")
    assert (np.abs(distance) <= 6 * np.hypot(found.stderr("Delta"), many.stderr("Delta")) + 1e-12).all()


def task() -> Case:
    """Return the case of a recurrent network with one output after two inputs."""
    arrays = {"K_x": gram(2, 2), "y": signs(2)}
    return Case(recurrent_task(2), {"eta": 0.2, "gamma0": 1.0}, arrays, 1)


def rms_before() -> Case:
    """Return the case of two branches that read the stream over its root mean square."""
    arrays = {"K_x": gram(2), "y": signs(2)}
    return Case(normalised(2, branch=0.5), {"eta": 0.1, "gamma0": 1.0}, arrays, 1)


MAKERS = {"residual": lambda: residual(2, 1), "recurrent": task, "normalised": rms_before}


@pytest.mark.parametrize("name", MAKERS)
def test_outputs_begin_at_zero_where_layers_share_their_units(name: str) -> None:
    """Check that every output at the start has the mean zero.

    Readout and transposed matrices change sign together; one sign of a single group would leave the noise of
    paths.
    """
    case = MAKERS[name]()
    values = {**case.numbers, "P": 2}
    found = solve_particles(
        mean_field(case.program), steps=1, values=values, data=case.arrays, samples=64, replicas=3
    )
    np.testing.assert_allclose(found.value("f")[0], 0.0, atol=64 * np.finfo(float).eps)


@pytest.mark.parametrize(
    ("name", "signed"),
    [
        ("residual", {("r", (k,)) for k in (1, 2, 3, 4)}),
        ("recurrent", {("r_w", (2,)), ("r_W", (1,))}),
        ("normalised", {("r_w", ()), ("r_W", (0,)), ("r_W", (1,))}),
    ],
)
def test_sources_of_gradients_change_sign(name: str, signed: set[Any]) -> None:
    case = MAKERS[name]()
    model = prepared_for(Problem.of(case.program, **case.given)).model
    assert {n for i in flipped(model) for n in model.groups[i]} == signed
