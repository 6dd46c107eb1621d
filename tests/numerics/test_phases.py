"""Training in phases: targets, samples and losses that change, and decay towards earlier weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sympy import Expr, Function, Matrix, Piecewise, Symbol, exp, log, tanh

import numerics
from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    LinearRule,
    Mean,
    Network,
    Population,
    Program,
    ProgramError,
    TrainingRule,
    anchored_descent,
    eta,
    gamma0,
    mu,
    s,
    t,
)
from derive.program.rules import without_cases
from derive.theory import mean_field
from derive.theory.routes import check_routes
from tests.chance import excess, in_errors

Array = NDArray[np.float64]

STEPS, SWITCH, RATE, PULL = 12, 6, 0.25, 0.3
INPUTS = np.random.default_rng(0).normal(size=(4, 6))
LABELS = np.repeat([[1.0, -1.0, 0.5, -0.5], [-1.0, 1.0, 0.5, 0.5]], SWITCH, axis=0).T
SHARES = np.repeat([[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]], SWITCH, axis=0).T

lam = Symbol("lam", positive=True)
out, label, share, phase = (Function(x) for x in ("out", "label", "share", "phase"))


def network(loss: Expr, rule: TrainingRule) -> Program:
    """Return one hidden layer under names of a user."""
    a = Field("a", Population("hidden"))
    pixels = GivenVector("x", Population("pixels", given=True), "K")
    V, c = GaussianMatrix("V", a.population, pixels.population), GaussianVector("c", a.population)
    forward = {a(mu, t): V @ pixels(mu), out(mu, t): Mean(c.symbol * tanh(a(mu, t))) / gamma0}
    return Network("phases", (a,), forward, (V, c), given=(pixels,)).train(loss, rule)


SQUARES = share(mu, t) * (label(mu, t) - out(mu, t)) ** 2 / 2
LOGISTIC = log(1 + exp(-label(mu, t) * out(mu, t)))
CHANGED = phase(t) * (label(mu, t) - out(mu, t)) ** 2 / 2 + (1 - phase(t)) * LOGISTIC

CASES: dict[str, tuple[Program, dict[str, float], dict[str, Array]]] = {
    "targets and samples": (network(SQUARES, GradientDescent(eta)), {}, {"share": SHARES}),
    "earlier weights": (
        network(SQUARES, anchored_descent(eta, lam, SWITCH)),
        {"lam": PULL},
        {"share": SHARES},
    ),
    "loss": (network(CHANGED, GradientDescent(eta)), {}, {"phase": np.repeat([1.0, 0.0], SWITCH)}),
}


def slope(case: str, f: Array, time: int) -> Array:
    """Return minus the derivative of the loss by the outputs."""
    y = LABELS[:, time]
    if case == "loss" and time >= SWITCH:
        return y / (1 + np.exp(y * f))
    return (y - f) * (1.0 if case == "loss" else SHARES[:, time])


def by_hand(case: str, width: int, seed: int) -> Array:
    """Return outputs (times, samples) of a network with separately coded gradients."""
    rng = np.random.default_rng(seed)
    V, c = rng.normal(size=(width, 6)) / np.sqrt(6), rng.normal(size=width)
    kept: Any = None
    found = []
    for time in range(STEPS):
        if time == SWITCH:
            kept = V, c
        features = np.tanh(V @ INPUTS.T)
        f = c @ features / width
        found.append(f)
        error = slope(case, f, time)
        backward = (1 - features**2) * c[:, None] * error
        step = RATE * backward @ INPUTS / 6, RATE * features @ error
        pull = (
            [0.0, 0.0]
            if kept is None or case != "earlier weights"
            else [PULL * (V - kept[0]), PULL * (c - kept[1])]
        )
        V, c = V + step[0] - pull[0], c + step[1] - pull[1]
    return np.array(found)


@pytest.mark.parametrize("case", CASES)
def test_both_routes_agree(case: str) -> None:
    assert check_routes(CASES[case][0]) == []


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_theories_of_phases_follow_networks(case: str) -> None:
    program, numbers, arrays = CASES[case]
    solved = numerics.solve(
        program,
        numbers={"eta": RATE, "gamma0": 1.0, **numbers},
        arrays={"K": INPUTS @ INPUTS.T / 6, "label": LABELS, **arrays},
        times=range(STEPS),
    )
    narrow, wide = (np.array([by_hand(case, n, 1000 * n + k) for k in range(300)]) for n in (100, 200))
    value = 2 * wide.mean(axis=0) - narrow.mean(axis=0)
    errors = [x.std(axis=0, ddof=1) / np.sqrt(len(x)) for x in (narrow, wide)]
    mine = getattr(solved, "f_stderr", None)
    error = np.hypot(np.hypot(errors[0], 2 * errors[1]), 0.0 if mine is None else mine.values)
    z = in_errors((solved.f.values - value)[1:], error[1:])
    assert excess(z) < 1, z


def test_weights_are_held_near_those_of_the_switch() -> None:
    """With a pull of one the second phase moves weights by one step at most."""
    program = network(SQUARES, anchored_descent(eta, lam, SWITCH))
    told = {
        "arrays": {"K": INPUTS @ INPUTS.T / 6, "label": LABELS, "share": SHARES},
        "times": range(STEPS),
    }
    free, held = (
        numerics.solve(program, numbers={"eta": RATE, "gamma0": 1.0, "lam": pull}, **told).f.values
        for pull in (0.0, 1.0)
    )
    assert np.allclose(free[: SWITCH + 2], held[: SWITCH + 2], rtol=0, atol=1e-9)
    assert np.abs(held[-1] - held[SWITCH]).max() < np.abs(free[-1] - free[SWITCH]).max() / 2


def test_cases_in_a_chain_of_states_leak_no_time_of_a_sum() -> None:
    """SymPy moves conditions on the variable of a sum out of it: the theory held a time that was free."""
    after = Piecewise((1, t >= 5), (0, True))
    rule = LinearRule(Matrix([[1, -lam * after], [0, (1 - lam) * after]]), Matrix([eta, eta * after]))
    theory = mean_field(network(SQUARES, rule))
    assert {*theory.symbols} == {"P", "eta", "gamma0", "lam"}
    same = anchored_descent(eta, lam, 5)
    for time, past in ((7, 5), (9, 3), (4, 1)):
        one, other = (x.memory(t, s)[1].subs({t: time, s: past}).doit() for x in (rule, same))
        assert (one - other).expand() == 0


@pytest.mark.parametrize("time", range(4, 8))
def test_cases_are_step_functions(time: int) -> None:
    cases = Piecewise((2, t < 5), (3, t <= 6), (lam, True))
    assert without_cases(cases).subs(t, time) == cases.subs(t, time)


def test_a_pull_that_is_no_share_is_refused() -> None:
    with pytest.raises(ProgramError, match="pull of anchored_descent = -1"):
        anchored_descent(eta, -1, SWITCH)
