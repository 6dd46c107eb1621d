"""Programs written by hand from the pieces a user has: they derive, compile and solve, no builder needed."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from sympy import S

from derive.program import P, Program, eta, gamma0
from numerics.experiment.problem import Problem
from numerics.lowering import lower
from numerics.solver import solve
from numerics.solver.linear.march import march
from tests.chance import excess
from tests.derive.once import mean_field, mlp
from tests.derive.programs import damped_stream, g, linear_recurrent, rho, tau, two_layers
from tests.numerics.solver.helpers import INPUTS, TARGETS, gd, kernel, unprojected

ETA, GAMMA0, STEPS, SAMPLES = 0.15, 1.2, 5, 3


def brute_force(width: int, seed: int, feedback_learns: bool) -> np.ndarray:
    """Return the error over time of one finite network, shape (STEPS + 1, SAMPLES)."""
    rng = np.random.default_rng(seed)
    x, y = INPUTS[:SAMPLES], TARGETS[:SAMPLES]
    D = x.shape[1]
    W0, W, V = rng.standard_normal((width, D)), *rng.standard_normal((2, width, width))
    w = rng.standard_normal(width)
    errors = []
    for _ in range(STEPS + 1):
        h = W0 @ x.T / np.sqrt(D)
        k = W @ h / np.sqrt(width)
        delta = y - w @ k / (GAMMA0 * width)
        errors.append(delta)
        q = V.T @ w / np.sqrt(width)
        update = ETA * GAMMA0 / np.sqrt(width) * np.outer(w, h @ delta)
        W0 = W0 + ETA * GAMMA0 / np.sqrt(D) * np.outer(q, delta @ x)
        w = w + ETA * GAMMA0 * k @ delta
        W = W + update
        V = V + feedback_learns * update
    return np.array(errors)


def solved(program: Program, names: str = "") -> object:
    return march(
        lower(mean_field(program)),
        steps=STEPS + 1,
        constants={eta: ETA, gamma0: GAMMA0, P: float(SAMPLES)},
        data={"K_x": kernel(SAMPLES), "y": TARGETS[:SAMPLES]},
        wanted=tuple((n, None) for n in names),
    )


@pytest.mark.parametrize("feedback_learns", [pytest.param(False, marks=pytest.mark.slow), True])
def test_an_independent_backward_matrix_gives_no_responses(feedback_learns):
    theory = mean_field(two_layers(feedback_learns))
    assert theory.responses() == ()
    assert not any(x.kind == "response" for e in theory.equations for x in e.terms)
    theory_error = solved(two_layers(feedback_learns)).scalars["Delta"]
    widths, means, errors = (150, 300), [], []
    for width in widths:
        runs = np.array([brute_force(width, 1000 * width + s, feedback_learns) for s in range(120)])
        means.append(runs.mean(axis=0))
        errors.append(runs.std(axis=0, ddof=1) / np.sqrt(len(runs)))
    limit = 2 * means[1] - means[0]  # 1/N -> 0
    stderr = np.sqrt(4 * errors[1] ** 2 + errors[0] ** 2)
    assert excess((limit - theory_error) / stderr) < 1
    tied = unprojected(gd(2, SAMPLES, rate=ETA, steps=STEPS, gamma0=GAMMA0)).error
    assert (np.abs(limit - tied) / stderr).max() > 10.0  # the tied network is another one, and it shows


def test_the_builders_untied_network_is_the_one_written_by_hand():
    by_hand = solved(two_layers(feedback_learns=True)).scalars["Delta"]
    theory = mean_field(mlp(2, tied=False)).at_depth(2)
    assert theory.responses() == ()
    built = march(
        lower(theory),
        steps=STEPS + 1,
        constants={eta: ETA, gamma0: GAMMA0, P: float(SAMPLES)},
        data={"K_x": kernel(SAMPLES), "y": TARGETS[:SAMPLES]},
    )
    assert np.abs(built.scalars["Delta"] - by_hand).max() < 1e-13


def test_kernels_read_after_the_march_are_those_of_the_march():
    """The full correlations, found at output times alone, of fields that hold each other."""
    numbers = {eta: ETA, gamma0: GAMMA0, rho: 0.6}
    arrays = {"K_x": kernel(2), "y": TARGETS[:2]}
    program = damped_stream()
    given = {str(k): v for k, v in numbers.items()} | {"L": 3}
    found = solve(Problem.of(program, numbers=given, arrays=arrays, times=range(STEPS + 1)))
    whole = march(
        lower(mean_field(program).at_depth(3)),
        steps=STEPS + 1,
        constants=numbers | {P: 2.0},
        data=arrays,
        wanted=tuple(("H", n) for n in (1, 2, 3)),
    )
    assert np.abs(found.error - whole.scalars["Delta"]).max() < 1e-13
    for n in (1, 2, 3):
        expected = whole.correlation(("h", n), ("h", n)).transpose(0, 2, 1, 3)
        assert np.abs(found.Phi[n - 1] - expected).max() < 1e-12
    assert np.abs(found.Phi[2, -1, -1] - found.Phi[2, 0, 0]).max() > 0.1


@pytest.mark.parametrize("symmetric", [False, True])
def test_a_linear_recurrent_network(symmetric):
    """x(t) = sum_k binom(t,k) (1-eta)^(t-k) eta^k J^k x(0); <J^k x(0) . J^m x(0)> from the spectrum of J."""
    rate, strength, steps = 0.3, 0.9, 9
    theory = mean_field(linear_recurrent(tau if symmetric else S.Zero))
    assert bool(theory.responses()) == symmetric
    m = march(
        lower(theory),
        steps=steps,
        constants={g: strength, eta: rate, tau: 1.0},
        data={},
        wanted=(("C", None),),
    )

    def moment(k, j):
        if not symmetric:
            return strength ** (2 * k) if k == j else 0.0
        half, odd = divmod(k + j, 2)
        return 0.0 if odd else strength ** (k + j) * comb(2 * half, half) / (half + 1)  # semicircle

    def share(time, k):
        return comb(time, k) * (1 - rate) ** (time - k) * rate**k

    expected = [
        [
            sum(share(a, k) * share(b, j) * moment(k, j) for k in range(a + 1) for j in range(b + 1))
            for b in range(steps)
        ]
        for a in range(steps)
    ]
    assert m.tensor(("C", None))[:, 0, :, 0] == pytest.approx(np.array(expected), abs=1e-12)
