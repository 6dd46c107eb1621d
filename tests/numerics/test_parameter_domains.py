"""Tests that parameters of training rules are refused at times at which they leave their domains."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from sympy import Expr, Function, Matrix, Rational, Symbol, cos, exp, pi, sin

import numerics
from derive.program import (
    GradientDescent,
    GradientFlow,
    LinearRule,
    Momentum,
    MomentumFlow,
    TrainingRule,
    adam,
    ell,
    eta,
    lion,
    rmsprop,
    sign_descent,
    t,
)
from derive.program.entrywise import Entrywise
from derive.program.rules import anchored_descent
from numerics.errors import SpecError
from numerics.experiment.experiment import Experiment
from numerics.simulation import simulate_program
from numerics.solver.direct import evaluate
from numerics.solver.paths import solve_particles, solve_to_accuracy
from numerics.solver.quadrature.solve import solve_two_layer
from tests.derive.once import mean_field, mlp

beta = Symbol("beta", positive=True)
half = Rational(1, 2)
DIP = 1 - 2 * exp(-((400 * (t - Rational(10031, 10000))) ** 2))
"""A parameter that is positive at all of the times at which a flow is tested, and negative at another."""

OUTSIDE: dict[str, tuple[TrainingRule, str]] = {
    "rate": (
        GradientDescent(eta * (1 - t / 3)),
        r"rate of GradientDescent = eta\*\(1 - t/3\): is -0.0333333 at t = 4",
    ),
    "table": (GradientDescent(Function("r")(t)), r"rate of GradientDescent = r\(t\): is -0.2 at t = 1"),
    "momentum": (Momentum(eta, t / 3), "momentum of Momentum = t/3: is 1 at t = 3"),
    "decay": (GradientDescent(eta, decay=eta * (1 - t)), r"decay of GradientDescent = .*: is -0.1 at t = 2"),
    "diffusion": (GradientDescent(eta, diffusion=1 - t), "diffusion of GradientDescent = .*: is -1 at t = 2"),
    "linear rule": (LinearRule(1, eta, diffusion=1 - t), "diffusion of LinearRule = 1 - t: is -1 at t = 2"),
    "covariance": (
        LinearRule(Matrix([[1, 0], [0, half]]), Matrix([eta, 1]), diffusion=Matrix([[1, t], [t, 1]])),
        r"diffusion of LinearRule = \[\[1, t\], \[t, 1\]\]: has the eigenvalue -1 at t = 2",
    ),
    "pull": (anchored_descent(eta, 1 - t, 1), "pull of anchored_descent = 1 - t: is -1 at t = 2"),
    "beta1": (adam(eta, t / 2), "beta1 of Adam = t/2: is 1 at t = 2"),
    "beta2": (lion(eta, half, 1 / t), "beta2 of Lion = 1/t: is inf at t = 0"),
    "epsilon": (rmsprop(eta, half, 1 - t), "epsilon of RMSprop = 1 - t: is -1 at t = 2"),
    "rate of signs": (sign_descent(eta * (1 - t)), "rate of sign descent = .*: is -0.1 at t = 2"),
    "flow": (GradientFlow(1 - t), "rate of GradientFlow = 1 - t: is -0.0125 at t = 1.0125"),
    "between times of the grid": (
        GradientFlow(decay=DIP),
        r"decay of GradientFlow = .*: is -1 at t = 1.0031",
    ),
    "covariance of a flow": (
        LinearRule(
            Matrix([[0, 1], [0, -1]]),
            Matrix([0, 1]),
            diffusion=Matrix([[1, 1 - DIP], [1 - DIP, 1]]),
            discrete=False,
        ),
        r"diffusion of LinearRule = .*: has the eigenvalue -1 at t = 1.0031",
    ),
    "momentum of a flow": (MomentumFlow(t / 8 - 1), "momentum of MomentumFlow = t/8 - 1: is -1 at t = 0"),
}


def given_for(rule: TrainingRule, **more: Any) -> dict[str, Any]:
    program = mlp(1, rule=rule, **more)
    data = {"x": np.eye(2)} if isinstance(rule, Entrywise) else {"K_x": np.eye(2)}
    tables = {"r": [0.1, -0.2, 0.1, 0.1, 0.1]} if "r" in program.tables else {}
    numbers = {"gamma0": 1.0} | ({"eta": 0.1} if eta in program.rule.system.input[0].free_symbols else {})
    return {"source": program, "numbers": numbers, "arrays": {**data, **tables, "y": [1.0, -1.0]}}


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_parameter_that_leaves_its_domain_at_a_time_is_refused(name: str) -> None:
    """The loss climbed without a warning; a negative diffusion was blamed on rounding."""
    rule, said = OUTSIDE[name]
    given = given_for(rule)
    for command in (numerics.solve, partial(numerics.simulate, width=8, seeds=2)):
        with pytest.raises(SpecError, match=rf"^{said} \(accepted: "):
            command(**given, times=range(6))


@pytest.mark.parametrize("name", OUTSIDE)
def test_networks_of_a_program_refuse_a_parameter_that_leaves_its_domain(name: str) -> None:
    """``simulate_program`` trained networks with a rate of -0.03, without a warning."""
    rule, said = OUTSIDE[name]
    given = given_for(rule)
    longest = {} if rule.discrete else {"dt": 1.0}
    with pytest.raises(SpecError, match=rf"^{said} \(accepted: "):
        simulate_program(
            given["source"],
            width=8,
            steps=5,
            seeds=2,
            values={**given["numbers"], "P": 2},
            data=given["arrays"],
            **longest,
        )


@pytest.mark.parametrize("table", [lambda step: 0.1 - 0.3 * step, {0: 0.1, 1: -0.2, 2: 0.1, 3: 0.1}])
def test_a_table_of_rates_as_a_function_or_a_mapping_is_refused(table: Any) -> None:
    rule, said = OUTSIDE["table"]
    values, data = {"gamma0": 1.0, "P": 2}, {"K_x": np.eye(2), "y": [1.0, -1.0], "r": table}
    with pytest.raises(SpecError, match=said):
        simulate_program(mlp(1, rule=rule), width=8, steps=3, seeds=2, values=values, data=data)


@pytest.mark.parametrize(
    "solver", [evaluate, solve_particles, partial(solve_to_accuracy, accuracy=0.5), solve_two_layer]
)
def test_solvers_of_a_theory_refuse_a_parameter_that_leaves_its_domain(solver: Callable[..., Any]) -> None:
    rule, said = OUTSIDE["rate"]
    given = given_for(rule)
    with pytest.raises(SpecError, match=rf"^{said}"):
        solver(
            mean_field(given["source"]), steps=6, values={**given["numbers"], "P": 2}, data=given["arrays"]
        )


@pytest.mark.parametrize(
    "command", [partial(numerics.expand, order=2), numerics.verify], ids=("expand", "verify")
)
def test_other_commands_refuse_a_parameter_that_leaves_its_domain(command: Callable[..., object]) -> None:
    rule, said = OUTSIDE["rate"]
    with pytest.raises(SpecError, match=said):
        command(**given_for(rule), times=range(6))


def test_a_rate_of_one_weight_that_leaves_its_domain_is_refused() -> None:
    rules = {"w": GradientDescent(eta * (1 - t))}
    with pytest.raises(SpecError, match=r"rate of GradientDescent of w = eta\*\(1 - t\): is -0.1 at t = 2"):
        numerics.solve(**given_for(GradientDescent(eta), rules=rules), times=range(4))


@pytest.mark.parametrize("rate", [eta * (3 * half - ell), Function("r")(ell)])
def test_a_rate_of_one_layer_that_leaves_its_domain_is_refused(rate: Expr) -> None:
    program = mlp(3, rules={"W": GradientDescent(rate)})
    arrays = {"K_x": [[1.0]], "y": [1.0]} | ({"r": [0.1, -0.05]} if rate.has(Function("r")) else {})
    with pytest.raises(SpecError, match=r"rate of GradientDescent of W = .*: is -0.05 at ell = 2 and t = 0"):
        numerics.simulate(
            program, width=8, seeds=2, numbers={"eta": 0.1, "gamma0": 1.0}, arrays=arrays, times=range(2)
        )


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (adam(eta, beta), "beta1 of Adam = 6/5"),
        (adam(eta, half, half, beta - 2), "epsilon of Adam = -4/5"),
        (anchored_descent(eta, beta - 2, 1), "pull of anchored_descent = -4/5"),
    ],
)
def test_a_number_that_gives_a_constant_outside_its_domain_is_refused(rule: TrainingRule, said: str) -> None:
    given = given_for(rule)
    with pytest.raises(SpecError, match=rf"^numbers.beta = 1.2: gives {said} \(accepted: "):
        numerics.solve(**{**given, "numbers": {**given["numbers"], "beta": 1.2}}, times=range(3))


@pytest.mark.parametrize(
    "rule",
    [
        GradientDescent(eta * t / 4),
        GradientDescent(eta * (4 - t)),  # the last step is the one from t = 4
        GradientDescent(eta, diffusion=eta * sin(pi * t) / 10, decay=eta * (1 + cos(pi * t))),
        Momentum(eta, 1 - half ** (20 * t)),
        Momentum(eta, cos(pi / 2) + cos(pi * (t + half))),
    ],
    ids=("warm-up", "line", "noise", "momentum", "rounded momentum"),
)
def test_values_at_an_end_of_the_domain_are_not_refused(rule: TrainingRule) -> None:
    """Rounding makes them -1e-17, or 1 for a momentum below one."""
    numerics.simulate(**given_for(rule), width=8, seeds=2, times=range(6))


@pytest.mark.parametrize(
    ("key", "text"),
    [("temperature", "sin(pi*t)"), ("momentum", "1 - 0.5**(20*t)"), ("weight_decay", "4 - t")],
)
def test_a_schedule_of_a_file_may_reach_an_end_of_its_domain(key: str, text: str) -> None:
    training = {"learning_rate": 0.1, "steps": 5, key: text}
    tables = {"network": {"depth": 1}, "training": training}
    assert numerics.solve(Experiment.from_dict(tables, kernel=[[1.0]], targets=[1.0])).attrs["status"] == "ok"
