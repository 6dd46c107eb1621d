"""Tests of the evaluator that the evidence of the depth ledgers uses."""

import numpy as np
import pytest
from sympy import Function, sqrt

from derive.calculus.symbols import L
from derive.depth import (
    cross_layer,
    ends_apart,
    gamma_c_recursion,
    layer_time,
    rescale,
)
from derive.program import ell, t
from derive.program.networks.random_data import isotropic
from numerics.simulation import simulate_program
from numerics.solver.direct import evaluate
from numerics.stats import bound
from tests.chance import LEVEL, excess
from tests.derive.once import depth_program, mean_field
from tests.ledger.evidence import depth, residual
from tests.ledger.evidence.layers import Solution, extrapolated, solve_layer_time, solve_layers

X, DX = Function("x")(ell, t), Function("dx")(ell, t)
KNOWN = {"xi": lambda step: 1.0 + 0 * np.asarray(step), "dloss": lambda step, f: f - 0.5}


@pytest.mark.slow
def test_recursions_solve_the_theory() -> None:
    """Cross-layer recursions against the single-site equations, evaluated directly."""
    found = residual.solved(ends_apart(cross_layer(residual.theory())))
    direct = residual.theory_values(residual.theory())
    for name, values in direct.items():
        np.testing.assert_allclose(found[name], values, atol=1e-11)


@pytest.mark.slow
def test_gamma_solves_the_theory() -> None:
    found = solve_layers(gamma_c_recursion(mean_field(depth_program())), 3, 3, {}, KNOWN)
    direct = evaluate(mean_field(depth_program(3)), steps=3, data=KNOWN)
    np.testing.assert_allclose(found["f"], direct.value("f"), atol=1e-12)
    np.testing.assert_allclose(found["C_1"][2], direct.value("C_dx", 2), atol=1e-12)


@pytest.mark.evidence
def test_finite_depth_approaches_the_limit() -> None:
    cross = gamma_c_recursion(mean_field(depth_program()))
    limit = layer_time(cross)
    value = extrapolated([solve_layer_time(limit, n, 2, {}, KNOWN)["f"] for n in (4, 8, 16)])
    finite = [solve_layers(cross, d, 2, {}, KNOWN)["f"] for d in (4, 8, 16)]
    gaps = [float(np.max(np.abs(x - value))) for x in finite]
    assert gaps[0] > 1.6 * gaps[1] > 2.7 * gaps[2]
    assert np.max(np.abs(extrapolated(finite) - value)) < 0.15 * gaps[-1]


def test_extrapolation_is_exact_for_polynomials() -> None:
    values = [np.array([2.0 + 3.0 / n - 5.0 / n**2]) for n in (4, 8, 16)]
    np.testing.assert_allclose(extrapolated(values), 2.0, atol=1e-13)


def test_an_unsolvable_system_is_an_error() -> None:
    cross = gamma_c_recursion(mean_field(depth_program()))
    found = solve_layers(cross, 2, 1, {}, KNOWN)
    with pytest.raises(RuntimeError, match="still changing"):
        found.sweep([lambda: 1.0], most=3)
    with pytest.raises(KeyError, match="there are"):
        found["nothing"]


# -- networks, trained by brute force ------------------------------------------------------------------------


def scores(of: list[tuple[np.ndarray, np.ndarray]], theory: np.ndarray) -> np.ndarray:
    """Return standard scores of networks of width N and 2N, extrapolated in 1/N, against a theory."""
    (few, few_error), (many, many_error) = of
    error = np.hypot(2 * many_error, few_error)
    return np.abs(2 * many - few - theory)[error > 0] / error[error > 0]


@pytest.mark.evidence
def test_networks_follow_gamma_and_c() -> None:
    """Lemma 4.3 on the smallest case that has an inner layer: two blocks, two steps."""
    found = solve_layers(gamma_c_recursion(mean_field(depth_program())), 2, 2, {}, KNOWN)
    theory = np.array([found["f"][1], found["C_1"][1, 1, 0], found["C_0"][2, 1, 1], found["Gamma_1U"][0, 1]])
    runs = []
    for width, seeds in ((48, 1500), (96, 800)):
        got = simulate_program(
            depth_program(2),
            width=width,
            steps=1,
            seeds=seeds,
            values={},
            data=KNOWN,
            wanted={"C_x": X, "C_dx": DX, "cross": (DX, X)},
            seed=width,
        )
        places = (("f", (1,)), ("C_dx", (1, 0, 1, 1)), ("C_x", (1, 1, 1, 1)), ("cross", (1, 0, 0, 0)))
        runs.append(
            (np.array([got[n].mean[i] for n, i in places]), np.array([got[n].stderr[i] for n, i in places]))
        )
    assert excess(scores(runs, theory)) < 1
    untrained = np.array([0.0, theory[1], (1 + 1 / 2) * 1.0, 0.0])
    assert scores(runs, untrained).max() > 10


@pytest.mark.evidence
def test_residual_networks_follow_the_recursions() -> None:
    """linear2025 (73)-(79) on two layers and two steps: the loss, and C of the layers."""
    program = isotropic(2, data="population", branch=residual.beta)
    cross = cross_layer(residual.theory()).closed()
    found = solve_layers(cross, 2, 2, residual.VALUES)
    early = solve_layers(cross.map(residual.without_equal_times), 2, 2, residual.VALUES)
    runs = []
    for width, seeds in ((64, 600), (128, 300)):
        got = simulate_program(program, width=width, steps=1, seeds=seeds, values=residual.VALUES, seed=width)
        parts = []
        for part in ("mean", "stderr"):
            C_h = getattr(got["C_h"], part)
            parts.append(
                np.concatenate(
                    [
                        getattr(got["C_h0"], part).ravel(),
                        *[C_h[:, :, i, i].ravel() for i in range(2)],
                    ]
                )
            )
        runs.append((parts[0], parts[1]))

    def listed(x: Solution) -> np.ndarray:
        return np.concatenate([x["C_h0"].ravel(), x["C_h"][1].ravel(), x["C_h"][2].ravel()])

    assert excess(scores(runs, listed(found))) < 1
    assert scores(runs, listed(early)).max() > 20


@pytest.mark.evidence
def test_nonlinear_networks_are_nearer_to_the_derived_limit() -> None:
    """Def. E.1: 16 layers of 64 units are some way from either limit; the evidence extrapolates in depth."""
    theory = depth.effective(mean_field(depth.nonlinear_program()))
    derived, printed = depth.at_infinite_depth(theory), depth.at_infinite_depth(depth.as_printed(theory))
    mean, error = depth.in_networks(16, 64, 100, seed=3)
    differ = np.abs(derived - printed) > 0.1
    assert list(differ) == [False, True, True, True]
    nearer = (np.abs(mean - printed) - np.abs(mean - derived))[differ] / error[differ]
    assert (nearer > bound(nearer.size, LEVEL)).all()


@pytest.mark.evidence
def test_nonlinear_limit_of_a_linear_activation() -> None:
    """phi(z) = z in Def. E.1 solves to the same numbers as Prop. 4.4."""
    stream = depth.with_activation(depth.effective(mean_field(depth.nonlinear_program())), lambda z: z)
    curved = layer_time(rescale(cross_layer(stream), 1 / sqrt(L)))
    plain = layer_time(gamma_c_recursion(mean_field(depth_program())))
    for nodes in (4, 8):
        a, b = (solve_layer_time(x, nodes, 3, {}, KNOWN) for x in (curved, plain))
        np.testing.assert_allclose(a["f"], b["f"], atol=1e-12)
        np.testing.assert_allclose(a["C_x"], b["C_0"], atol=1e-12)
    assert np.max(np.abs(a["R_dxu"][:, :, 2, 2])) == 0
