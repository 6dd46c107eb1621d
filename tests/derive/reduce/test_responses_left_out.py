"""Theories without responses, or without those at equal times, beside networks."""

import numpy as np
import pytest

from derive.errors import NotApplicable
from derive.program import P, eta, gamma0, mlp
from derive.reduce.responses import without_equal_times, without_responses
from derive.theory import Theory
from numerics.simulation import simulate_program
from numerics.solver.direct import evaluate
from numerics.solver.paths import solve_particles
from tests.derive.once import mean_field

ONE = {"K_x": [[1.0]], "y": [1.0]}
STEPS = 10


def gradients(theory: Theory, samples: int) -> tuple[float, float]:
    """Return ``G^1(T, T)`` at T = 1 in ten steps, with its standard error."""
    run = solve_particles(
        theory, steps=STEPS + 1, values={eta: 1 / STEPS, gamma0: 1.0, P: 1}, data=ONE, samples=samples
    )
    return run.value("G", 1)[0, 0, -1, -1], run.stderr("G", 1)[0, 0, -1, -1]


def kernel_change(theory: Theory, depth: int, strength: float) -> float:
    """Return the change of the tangent kernel in the first step, over gamma0 squared."""
    run = evaluate(theory, steps=2, values={eta: 1.0, gamma0: strength, P: 1}, data=ONE)
    H, G = ([run.value(n, k).reshape(2, 2).diagonal() for k in range(1, depth + 1)] for n in "HG")
    kernel = G[0] + H[-1] + sum(h * g for h, g in zip(H[:-1], G[1:], strict=True))
    return float(kernel[1] - kernel[0]) / strength**2


def test_nothing_is_left_out_where_no_response_reaches_the_present() -> None:
    theory = mean_field(mlp(2))
    assert without_equal_times(theory).equations == theory.equations
    with pytest.raises(NotApplicable, match="use a training rule in steps"):
        without_equal_times(mean_field(mlp(2, "erf", rule="flow")))


def test_only_sums_up_to_the_present_are_shortened() -> None:
    theory = mean_field(mlp(2, "erf"))
    edited = without_equal_times(theory)
    pairs = [
        (x, y)
        for d, e in zip(theory.equations, edited.equations, strict=True)
        for x, y in zip(d.terms, e.terms, strict=True)
        if x != y
    ]
    assert [(x.reach, y.reach, x.kernel == y.kernel) for x, y in pairs] == [("past", "strict", True)]


def test_backward_fields_without_equal_times_are_too_large() -> None:
    theory = mean_field(mlp(2, "erf"))
    (full, error), (less, other) = (gradients(x, 256) for x in (theory, without_equal_times(theory)))
    assert less - full > 5 * np.hypot(error, other)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_kernels_without_responses_move_too_little(depth: int) -> None:
    """At order gamma0 squared by a factor of (L + 1)(L + 2)/6: the ratio of the path counts."""
    theory = mean_field(mlp(depth))
    full, less = (kernel_change(x.at_depth(depth), depth, 1e-3) for x in (theory, without_responses(theory)))
    assert np.isclose(full, depth * (depth + 1) ** 2 * (depth + 2) / 6, rtol=1e-4)
    assert np.isclose(full / less, (depth + 1) * (depth + 2) / 6, rtol=1e-4)


@pytest.mark.slow
def test_networks_have_the_response_at_equal_times() -> None:
    theory = mean_field(mlp(2, "erf"))
    run = simulate_program(
        theory.program,
        width=512,
        steps=STEPS,
        seeds=400,
        seed=1,
        values={"eta": 1 / STEPS, "gamma0": 1.0, "P": 1},
        data=ONE,
    )["G"]
    value, error = (float(np.ravel(x[0, -1, -1])[0]) for x in (run.mean, run.stderr))
    full, less = (gradients(x, 8192) for x in (theory, without_equal_times(theory)))
    # what the width leaves is of order 1/512
    assert abs(value - full[0]) < 4 * np.hypot(error, full[1]) + 1 / 512
    assert less[0] - value > 20 * np.hypot(error, less[1])
