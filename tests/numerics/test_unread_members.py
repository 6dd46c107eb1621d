"""Members of a family above the last one that is read make no difference, and nothing is left undefined."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import xarray as xr
from sympy import Expr, Function, Integer, S, Symbol, tanh

import numerics
from derive.errors import ProgramError
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
    ell,
    eta,
    gamma0,
    mu,
    t,
)
from derive.theory.routes import check_routes

GIVEN: dict[str, Any] = {"numbers": {"eta": 0.2, "gamma0": 1.0}, "arrays": {"K_x": [[1.0]], "y": [1.0]}}
k = Symbol("k", integer=True)


def family(read: int, members: int, *, layered: bool) -> Program:
    """Return a network of some layers, or recurrent steps, whose output reads one of them."""
    units, inputs = Population("units"), Population("input", given=True)
    home: Any = units.at if layered else lambda _: units
    a, index = Field("a", units, layered=layered, ordered=not layered), ell if layered else k
    x, w = GivenVector("x", inputs, "K_x"), GaussianVector("w", home(read))
    run = IndexRange(index, S.One, Integer(members - 1))
    U = GaussianMatrix("U", home(1), inputs)
    W = GaussianMatrix("W", home(ell + 1), home(ell), index=run if layered else None)
    inner: Expr = W(ell) if layered else W  # type: ignore[assignment]
    f, y = Function("f"), Function("y")
    forward = {
        a(1, mu, t): U @ x(mu),
        a(index + 1, mu, t): inner @ tanh(a(index, mu, t)),  # type: ignore[operator]
        f(mu, t): Mean(w.symbol * tanh(a(read, mu, t))) / gamma0,
    }
    depth, ranges = (members, ()) if layered else (1, (run,))
    net = Network("family", (a,), forward, (U, W, w), given=(x,), depth=depth, ranges=ranges)
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


@pytest.mark.parametrize("run", [numerics.solve, partial(numerics.simulate, width=6, seeds=2, rng=0)])
@pytest.mark.parametrize("layered", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_members_that_nothing_reads_are_left_out(run: Callable[..., xr.Dataset], layered: bool) -> None:
    """Solved and simulated as without them; ``g(3)`` was read and not defined."""
    shorter, longer = (run(family(2, n, layered=layered), times=range(3), **GIVEN) for n in (2, 12))
    np.testing.assert_allclose(longer.f, shorter.f, rtol=1e-9)


@pytest.mark.parametrize("layered", [pytest.param(True, marks=pytest.mark.slow), False])
def test_routes_agree_without_the_members_that_nothing_reads(layered: bool) -> None:
    assert check_routes(family(2, 3, layered=layered)) == []


@pytest.mark.parametrize("layered", [True, False])
def test_a_family_of_weights_that_nothing_reads_is_refused(layered: bool) -> None:
    with pytest.raises(ProgramError, match="the loss does not depend on W"):
        family(1, 12, layered=layered)
