"""Momentum (appendix L): the memory of the weights, and networks against the derived theory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import dblquad, solve_ivp
from sympy import Rational, Symbol, lambdify

from derive.program import MomentumFlow, s, t
from tests.derive.once import mlp
from tests.ledger.claims.selfconsistent2023.momentum import l2, tau
from tests.ledger.evidence.base import Evidence, agrees, conclude, contradicts
from tests.ledger.evidence.edited import Experiment, off, right

TAU, TIME, CLOSE = 0.7, 1.9, 1e-8
"""Time constant, end, and what the quadratures leave, with a margin."""


def weight_memory() -> Evidence:
    """Check L.1, L.2: a weight driven by a given function of time, in three ways.

    The ways are the differential equation, the printed double integral, and the engine's memory.
    """

    def push(x: float) -> float:
        return float(np.cos(2.0 * x) + 0.3 * x)

    def rate(x: float, state: NDArray[np.float64]) -> list[float]:
        return [float(state[1]), float(-state[1] + push(x)) / TAU]

    moved = float(solve_ivp(rate, (0.0, TIME), [0.0, 0.0], rtol=1e-12, atol=1e-13).y[0, -1])
    claim = l2()
    inner = lambdify([Symbol("x", real=True), s], claim["kernel"].subs(tau, TAU), "math")
    double = float(dblquad(lambda b, a: inner(a, b) * push(b), 0.0, TIME, 0.0, lambda a: a, epsabs=1e-12)[0])
    derived = MomentumFlow(tau).memory(t, s)[1]
    memory = lambdify([t, s], derived.subs(tau, TAU), "math")
    printed = lambdify([t, s], claim["memory"].doit().subs(tau, TAU), "math")
    x, w = np.polynomial.legendre.leggauss(40)
    nodes, weights = TIME * (x + 1) / 2, w * TIME / 2
    pushes = np.array([push(b) for b in nodes])
    single = float(weights @ (np.array([memory(TIME, b) for b in nodes]) * pushes))
    apart = max(abs(memory(TIME, b) - printed(TIME, b)) for b in nodes)
    plain = float(weights @ pushes)
    return conclude(
        "momentum:weight_memory",
        "The printed double integral is the solution of (L.1), and so is the engine's single integral with "
        "the weight 1 - exp(-(t - s)/tau).",
        agrees("printed minus equation", double - moved, CLOSE),
        agrees("engine minus equation", single - moved, CLOSE),
        agrees("weight of an update, printed minus engine", apart, 1e-12),
        contradicts("without momentum, minus equation", plain - moved, CLOSE),
    )


def networks_with_momentum() -> Evidence:
    """Check L.3: networks trained by heavy-ball steps against the derived theory."""
    run = Experiment(
        program=mlp(2, "linear", "gd", momentum=Rational(3, 5)),
        values={"eta": 0.3, "gamma0": 1.2, "P": 2},
        data={"K_x": np.array([[1.0, 0.3], [0.3, 0.8]]), "y": np.array([1.0, -0.7])},
        width=100,
        networks=160,
    )
    measured = run.measured()
    return conclude(
        "momentum:networks_with_momentum",
        "Networks trained with momentum follow the derived theory, in which only the weight of past updates "
        "changes; they reject the theory of plain descent.",
        right("two hidden layers, linear, momentum 0.6", run, measured),
        off("plain descent", run, measured, replace(run, program=mlp(2, "linear", "gd")).theory()),
    )
