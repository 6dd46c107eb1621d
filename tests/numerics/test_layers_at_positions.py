"""A layer whose field and output stand at positions: solved by every method, with no kernels of layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sympy import Function, S, Symbol

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
    Population,
    Program,
    eta,
    gamma0,
    mu,
    t,
)
from numerics.experiment.problem import Problem
from numerics.experiment.schema import Solver
from numerics.verification.identities import reading

place = Symbol("p", integer=True, positive=True)
STEPS, SAMPLES, PLACES = 3, 2, 3


def network() -> Program:
    """One linear layer that reads an input at each position, and an output at each."""
    units, pixels = Population("layer"), Population("input", given=True)
    x, h, w = (
        GivenVector("x", pixels, "K_x"),
        Field("h", units, layered=True),
        GaussianVector("w", units.at(1)),
    )
    A, f, y = GaussianMatrix("A", units.at(1), pixels), Function("f"), Function("y")
    forward = {
        h(1, mu, place, t): A @ x(mu, place),
        f(mu, place, t): Mean(w.symbol * h(1, mu, place, t)) / gamma0,
    }
    ranges = (IndexRange(place, 1, PLACES),)
    net = Network("positions", (h,), forward, (A, w), given=(x,), ranges=ranges, depth=S.One)
    return net.train((y(mu, place) - f(mu, place, t)) ** 2 / 2, GradientDescent(eta))


def given() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((SAMPLES, PLACES, 8))
    arrays = {"K_x": np.einsum("apd,bqd->apbq", X, X) / 8, "y": rng.standard_normal((SAMPLES, PLACES))}
    return {"numbers": {"eta": 0.1, "gamma0": 1.0}, "arrays": arrays, "times": range(STEPS)}


def by_hand(arrays: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Losses of ``f = w.h``: on one layer ``C_h``, ``<w h>`` and ``<w w>`` move by closed equations.

    With ``a = sum_mu,p Delta x`` as direction of the update of A, and h = A x: ``h += e w (K Delta)`` and
    ``w += e (Delta . h)`` for ``e = eta gamma0``.
    """
    size = SAMPLES * PLACES
    K, y, e = arrays["K_x"].reshape(size, size), arrays["y"].ravel(), 0.1
    C, c, v = K.copy(), np.zeros(size), 1.0
    losses = []
    for _ in range(STEPS):
        Delta = y - c
        losses.append((Delta**2).sum() / SAMPLES)
        k = e * K @ Delta
        new = C + np.outer(k, c) + np.outer(c, k) + v * np.outer(k, k)
        moved = e * C @ Delta
        c, v = (
            c + k * v + moved + k * (e * Delta @ c),
            v + 2 * e * Delta @ c + e**2 * Delta @ C @ Delta,
        )
        C = new
    return np.array(losses)


@pytest.mark.parametrize("method", ["auto", "paths", "nodes"])
def test_every_method_solves_it(method: str) -> None:
    """It ended in ``KeyError: 'hoisted0'``, or in kernels whose shape results do not have."""
    found = numerics.solve(network(), solver=Solver(method=method), **given())
    tolerance = 1e-5 if method == "nodes" else 1e-10
    np.testing.assert_allclose(found.train_loss, by_hand(given()["arrays"]), rtol=tolerance)


def test_the_march_of_its_theory_is_what_its_expressions_say() -> None:
    """The update is summed over samples and positions of the update, one product of two factors."""
    (row,) = reading(Problem.of(network(), **given()))
    assert row.passed
