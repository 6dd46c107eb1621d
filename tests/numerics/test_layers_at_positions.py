"""A layer whose field and output stand at positions: solved by every method, with no kernels of layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sympy import Function, S, Sum, Symbol

import numerics
from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    IndexRange,
    Mean,
    Network,
    P,
    Population,
    Program,
    eta,
    gamma0,
    mu,
    t,
)
from numerics.experiment.problem import Problem
from numerics.experiment.schema import Solver
from numerics.lowering.linear import lower
from numerics.solver.linear.march import march
from numerics.verification.identities import direct_evaluation
from tests.derive.once import mean_field, mlp

place = Symbol("p", integer=True, positive=True)
STEPS, SAMPLES, PLACES = 3, 2, 3
ACCURACY = 1e-3


def network(*, mixed: bool = False) -> Program:
    """Return one linear layer with an input at each position, and an output at each, or mixtures of them."""
    units, pixels = Population("layer"), Population("input", given=True)
    x, h, w = (
        GivenVector("x", pixels, "K_x"),
        Field("h", units, layered=True),
        GaussianVector("w", units.at(1)),
    )
    A, f, y = GaussianMatrix("A", units.at(1), pixels), Function("f"), Function("y")
    share, other = Function("share"), Symbol("q", integer=True, positive=True)
    plain = {where: Mean(w.symbol * h(1, mu, where, t)) / gamma0 for where in (place, other)}
    mixture = Sum(share(place, other) * plain[other], (other, 1, PLACES))
    forward = {h(1, mu, place, t): A @ x(mu, place), f(mu, place, t): mixture if mixed else plain[place]}
    ranges = (IndexRange(place, 1, PLACES),)
    net = Network("positions", (h,), forward, (A, w), given=(x,), ranges=ranges, depth=S.One)
    return net.train((y(mu, place) - f(mu, place, t)) ** 2 / 2, GradientDescent(eta), together=mixed)


SHARES = np.array([[0.5, 0.5, 0.0], [0.2, 0.6, 0.2], [0.0, 0.5, 0.5]])


def given(*, mixed: bool = False) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((SAMPLES, PLACES, 8))
    arrays = {"K_x": np.einsum("apd,bqd->apbq", X, X) / 8, "y": rng.standard_normal((SAMPLES, PLACES))}
    arrays |= {"share": SHARES} if mixed else {}
    return {"numbers": {"eta": 0.1, "gamma0": 1.0}, "arrays": arrays, "times": range(STEPS)}


def by_hand(arrays: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Return losses of ``f = w.h`` on one layer, where ``C_h``, ``<w h>``, ``<w w>`` have closed equations.

    With the outputs ``f = S <w h>`` and ``D = S^T Delta`` an update is ``h += e w (K D)`` and ``w += e (D .
    h)`` for ``e = eta gamma0``.
    """
    size = SAMPLES * PLACES
    mix = np.kron(np.eye(SAMPLES), arrays.get("share", np.eye(PLACES)))
    K, y, e = arrays["K_x"].reshape(size, size), arrays["y"].ravel(), 0.1
    C, c, v = K.copy(), np.zeros(size), 1.0
    losses = []
    for _ in range(STEPS):
        Delta = y - mix @ c
        losses.append((Delta**2).sum() / SAMPLES)
        back = mix.T @ Delta
        k = e * K @ back
        new = C + np.outer(k, c) + np.outer(c, k) + v * np.outer(k, k)
        c, v = (
            c + k * v + e * C @ back + k * (e * back @ c),
            v + 2 * e * back @ c + e**2 * back @ C @ back,
        )
        C = new
    return np.array(losses)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("method", ["auto", "paths", "nodes"])
def test_every_method_solves_it(method: str, mixed: bool) -> None:
    """It ended in ``KeyError: 'hoisted0'``, or in kernels whose shape results do not have."""
    problem = given(mixed=mixed)
    solver = Solver(method=method, accuracy=ACCURACY if method == "nodes" else None)
    found = numerics.solve(network(mixed=mixed), solver=solver, **problem)
    tolerance = ACCURACY if method == "nodes" else 1e-10
    np.testing.assert_allclose(found.train_loss, by_hand(problem["arrays"]), rtol=tolerance)


def test_the_march_of_its_theory_is_what_its_expressions_say() -> None:
    """The update is summed over samples and positions of the update, one product of two factors."""
    (row,) = direct_evaluation(Problem.of(network(), **given()))
    assert row.passed


def test_sums_in_a_chain_are_one_product_of_a_step() -> None:
    """A kernel that is itself a sum, ``K_x(mu, alpha) = sum_q V(mu, q) V(alpha, q)``, is that kernel."""
    kernel, factor, q = Function("K_x"), Function("V"), Symbol("q", integer=True, positive=True)
    theory = mean_field(mlp(1)).at_depth(1)
    factored = theory.map(
        lambda e: e.replace(kernel, lambda a, b: Sum(factor(a, q) * factor(b, q), (q, 1, PLACES)))
    )
    V, y = np.array([[1.0, 0.2, 0.1], [0.3, -0.5, 0.4]]), np.array([1.0, -1.0])
    numbers: dict[Symbol, float] = {eta: 0.1, gamma0: 1.0, P: 2.0}
    data = {"K_x": V @ V.T, "V": V, "y": y}
    one, two = (
        march(lower(x), steps=4, constants=numbers, data=data).scalars["f"] for x in (theory, factored)
    )
    np.testing.assert_allclose(one, two, rtol=1e-12, atol=1e-14)
