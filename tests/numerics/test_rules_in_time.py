"""Training whose numbers depend on the time, against networks that are written in NumPy by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from sympy import Expr, Function, Min, S, Symbol, tanh

import numerics
from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    GradientFlow,
    Mean,
    Momentum,
    Network,
    Parametrization,
    Population,
    Program,
    TrainingRule,
    eta,
    gamma0,
    mu,
    t,
)
from derive.theory.routes import check_routes
from numerics.errors import SpecError
from numerics.experiment.schema import Solver
from numerics.simulation import simulate_program
from numerics.solver.direct import evaluate
from tests.chance import excess, in_errors
from tests.derive.once import mean_field, mlp
from tests.numerics.handmade import Handmade

STEPS = 3
X = np.array([[1.0, 0.5, -0.3], [0.2, -0.7, 1.1]])
KERNEL = X @ X.T / X.shape[1]
TARGETS = np.array([1.0, -0.5])
ETAS = np.array([0.3, 0.6, 0.2])


@dataclass(frozen=True)
class Schedule:
    """The rule of the page on programs: ``W(t+1) = W(t) + eta(t) U(t)``, from a table."""

    discrete: bool = True

    def memory(self, time: Expr, past: Expr) -> tuple[Expr, Expr]:
        return S.One, Function("eta")(past)

    def noise(self, time: Expr, past: Expr) -> Expr:
        return S.Zero


@dataclass(frozen=True)
class Warming(Schedule):
    """A schedule that is an expression of the time of the update."""

    def memory(self, time: Expr, past: Expr) -> tuple[Expr, Expr]:
        return S.One, Symbol("eta0") * (1 + past) / 4


@dataclass(frozen=True)
class Fading(Schedule):
    """Rule with a weight of updates that depends on both times, and decaying initial weights."""

    def memory(self, time: Expr, past: Expr) -> tuple[Expr, Expr]:
        return 1 / (1 + time / 5), Symbol("eta0") / (time - past)


@dataclass(frozen=True)
class Restated:
    """Memory and noise of another rule, without its equation of motion."""

    rule: TrainingRule

    @property
    def discrete(self) -> bool:
        return self.rule.discrete

    def memory(self, time: Expr, past: Expr) -> tuple[Expr, Expr]:
        return self.rule.memory(time, past)

    def noise(self, time: Expr, past: Expr) -> Expr:
        return self.rule.noise(time, past)


OWN: dict[str, tuple[Schedule, dict[str, float], dict[str, Any], dict[str, Any]]] = {
    "table": (Schedule(), {}, {"eta": ETAS}, {"kept": lambda t, s: ETAS[s]}),
    "expression": (Warming(), {"eta0": 0.4}, {}, {"kept": lambda t, s: 0.1 * (1 + s)}),
    "both times": (
        Fading(),
        {"eta0": 0.4},
        {},
        {"kept": lambda t, s: 0.4 / (t - s), "left": lambda t: 1 / (1 + t / 5)},
    ),
}


def posed(program: Program, numbers: dict[str, float], arrays: dict[str, Any]) -> dict[str, Any]:
    given = {"numbers": {"gamma0": 1.0, **numbers}, "arrays": {"K_x": KERNEL, "y": TARGETS, **arrays}}
    return {"source": program, "times": range(STEPS + 1), **given}


@pytest.mark.parametrize("name", OWN)
def test_a_network_follows_the_memory_of_an_own_rule(name: str) -> None:
    rule, numbers, arrays, memory = OWN[name]
    hand = Handmade(X, lambda t: TARGETS, **memory)
    W, w = hand.draw(20, np.random.default_rng(1))
    given = {"values": {"gamma0": 1, "P": 2, **numbers}, "data": {"x": X, "y": TARGETS, **arrays}}
    found = simulate_program(
        mlp(1, "tanh", rule=rule), width=20, steps=STEPS, seeds=1, initial={"W0": W, "w": w}, **given
    )
    assert found["f"].mean == pytest.approx(hand.train((W, w), STEPS), rel=1e-12, abs=1e-14)


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.slow) if x == "expression" else x for x in OWN]
)
def test_the_theory_of_an_own_rule_is_the_limit_of_networks(name: str) -> None:
    rule, numbers, arrays, memory = OWN[name]
    program = mlp(1, rule=rule)
    assert check_routes(program) == []
    hand = Handmade(X, lambda t: TARGETS, linear=True, **memory)
    limit, stderr = hand.wide(STEPS, (40, 80), 150)
    solved = numerics.solve(**posed(program, numbers, arrays)).error.values
    assert excess(in_errors(TARGETS - solved - limit, stderr), 149) <= 1
    given = {"values": {"gamma0": 1, "P": 2, **numbers}, "data": {"K_x": KERNEL, "y": TARGETS, **arrays}}
    table = {k: x if k != "eta" else np.append(x, 0.0) for k, x in given["data"].items()}
    exact = evaluate(mean_field(program), steps=STEPS + 1, values=given["values"], data=table)
    assert exact.value("f") == pytest.approx(TARGETS - solved, abs=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2])
def test_the_documented_schedule_goes_through_every_command(depth: int) -> None:
    given = posed(mlp(depth, "tanh", rule=Schedule()), {}, {"eta": ETAS})
    solved = numerics.solve(**given)
    networks = numerics.simulate(**given, width=200, seeds=100)
    gap = networks.train_loss - solved.train_loss
    # networks of this width differ from the limit by 1/N of a number of order one
    assert (np.abs(gap) < 5 * networks.train_loss_stderr + 10 / 200).all()
    report = numerics.verify(**given)
    assert report.checks
    assert all(x.passed for x in report.checks)


def test_expand_takes_the_schedule_of_an_own_rule() -> None:
    given = posed(mlp(1, rule=Schedule()), {}, {"eta": ETAS})
    given["numbers"] = {"gamma0": 0.1}
    series = numerics.expand(**given, order=2)
    total = (series.error * 0.1**series.order).sum("order")
    assert total.values == pytest.approx(numerics.solve(**given).error.values, abs=0.1**3)


@pytest.mark.parametrize(
    "rule",
    [
        GradientDescent(eta),
        GradientDescent(eta, decay=Symbol("lam")),
        Momentum(eta, Symbol("beta"), decay=Symbol("lam")),
    ],
    ids=lambda x: type(x).__name__,
)
def test_a_restated_memory_trains_networks_as_the_rule_itself(rule: TrainingRule) -> None:
    given = {
        "values": {"gamma0": 1, "P": 2, "eta": 0.4, "lam": 0.2, "beta": 0.7},
        "data": {"K_x": KERNEL, "y": TARGETS},
    }
    own, known = (
        simulate_program(mlp(2, "tanh", rule=x), width=15, steps=6, seeds=2, **given)["f"].mean
        for x in (Restated(rule), rule)
    )
    assert own == pytest.approx(known, rel=1e-10, abs=1e-13)


def test_noise_of_an_own_rule_has_the_covariance_that_it_states() -> None:
    """The output of one linear unit on one sample, of weights that nothing teaches, is their product."""
    units, pixels = Population("units"), Population("pixels", given=True)
    x, h = GivenVector("x", pixels, "K_x"), Field("h", units)
    W, w = GaussianMatrix("W", units, pixels), GaussianVector("w", units)
    f, y = Function("f"), Function("y")
    net = Network(
        "noisy", (h,), {h(mu, t): W @ x(mu), f(mu, t): Mean(w.symbol * h(mu, t))}, (W, w), given=(x,)
    )
    rule = GradientDescent(eta, decay=S(1) / 4, diffusion=S(1) / 2)
    program = net.train((y(mu) - f(mu, t)) ** 2 / 2, Restated(rule), Parametrization(S.One))
    steps, networks, width = 3, 60, 40
    run = simulate_program(
        program,
        width=width,
        steps=steps,
        seeds=networks,
        values={"eta": 0, "P": 1},
        data={"x": np.ones((1, 1)), "y": [0.0]},
        wanted={"H": h(mu, t)},
    )["H"]
    expected = np.array(
        [
            [
                0.75 ** (i + j) + sum(0.5 * 0.75 ** (i + j - 2 * u - 2) for u in range(min(i, j)))
                for j in range(4)
            ]
            for i in range(4)
        ]
    )
    found, stderr = (np.asarray(z)[:, :, 0, 0] for z in (run.mean, run.stderr))
    assert excess((found - expected) / stderr, networks - 1) <= 1


def test_noise_that_is_no_covariance_is_refused() -> None:
    @dataclass(frozen=True)
    class Wrong(Schedule):
        def memory(self, time: Expr, past: Expr) -> tuple[Expr, Expr]:
            return S.One, eta

        def noise(self, time: Expr, past: Expr) -> Expr:
            return -Min(time, past)

    with pytest.raises(ValueError, match="is not a covariance of noise that starts after step 0"):
        simulate_program(
            mlp(1, rule=Wrong()),
            width=5,
            steps=2,
            seeds=1,
            values={"eta": 0.1, "gamma0": 1, "P": 1},
            data={"K_x": [[1.0]], "y": [1.0]},
        )


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (ETAS[:2], r"arrays.eta: has shape \(2,\), but the theory uses its entries at 3 times"),
        (np.ones((4, 4)), r"shape \(4, 4\)"),
    ],
)
def test_a_table_that_does_not_fit_the_steps_is_refused(table: np.ndarray, told: str) -> None:
    with pytest.raises(SpecError, match=told):
        numerics.solve(**posed(mlp(1, rule=Schedule()), {}, {"eta": table}))


# -- numbers of a program that depend on the time and are right ---------------------------------------------

TABLES = {
    "slope": np.array([1.0, 0.8, 1.3, 0.9]),
    "branch": np.array([1.0, 1.2, 0.7, 1.1]),
    "cost": np.array([[1.0, 0.5, 2.0, 1.0], [0.4, 1.0, 1.0, 1.0]]),
    "y": np.array([[1.0, -1.0, 0.5, 1.0], [0.5, 1.0, 0.0, 0.0]]),
    "pace": np.array([1.0, 0.5, 2.0, 1.0]),
}
EXPRESSIONS: dict[str, Expr] = {
    "slope": 1 + t / 10,
    "branch": 1 / (1 + t / 5),
    "cost": 1 + mu * t / 10,
    "pace": 2 / (2 + t),
}


def timed(tabulated: bool, linear: bool) -> Program:
    """Return one hidden layer with every part of a program that may depend on time."""
    units, pixels = Population("units"), Population("pixels", given=True)
    x, h = GivenVector("x", pixels, "K_x"), Field("h", units)
    W, w = GaussianMatrix("W", units, pixels), GaussianVector("w", units)
    f, y = Function("f"), Function("y")
    known = {n: Function(n)(*(mu, t) if n == "cost" else (t,)) for n in TABLES} if tabulated else EXPRESSIONS
    inner = known["slope"] * h(mu, t)
    forward = {
        h(mu, t): W @ x(mu),
        f(mu, t): known["branch"] * Mean(w.symbol * (inner if linear else tanh(inner))) / gamma0,
    }
    target = y(mu, t) if tabulated else y(mu)
    loss = known["cost"] * (target - f(mu, t)) ** 2 / 2
    net = Network("timed", (h,), forward, weights=(W, w), given=(x,), depth=S.One)
    return net.train(loss, GradientDescent(eta), Parametrization(rate=known["pace"]))


def by_hand(tabulated: bool, linear: bool) -> tuple[Handmade, dict[str, Any]]:
    """Return the same network in NumPy, and its arrays."""
    if tabulated:
        own: dict[str, Any] = {n: (lambda t, x=TABLES[n]: x[..., t]) for n in ("slope", "branch", "cost")}
        return Handmade(
            X,
            lambda t: TABLES["y"][:, t],
            lambda time, s: 0.3,
            linear=linear,
            rate=lambda t: TABLES["pace"][t],
            **own,
        ), dict(TABLES)
    return Handmade(
        X,
        lambda t: TARGETS,
        lambda time, s: 0.3,
        linear=linear,
        slope=lambda t: 1 + t / 10,
        branch=lambda t: 1 / (1 + t / 5),
        cost=lambda t: 1 + np.array([1, 2]) * t / 10,
        rate=lambda t: 2 / (2 + t),
    ), {"y": TARGETS}


@pytest.mark.parametrize("tabulated", [True, False])
def test_what_depends_on_the_time_is_trained_as_it_is_written(tabulated: bool) -> None:
    hand, arrays = by_hand(tabulated, linear=False)
    W, w = hand.draw(20, np.random.default_rng(2))
    found = simulate_program(
        timed(tabulated, linear=False),
        width=20,
        steps=STEPS,
        seeds=1,
        initial={"W": W, "w": w},
        values={"eta": 0.3, "gamma0": 1, "P": 2},
        data={"x": X, **arrays},
    )
    assert found["f"].mean == pytest.approx(hand.train((W, w), STEPS), rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("tabulated", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_what_depends_on_the_time_is_solved_as_networks_have_it(tabulated: bool) -> None:
    program = timed(tabulated, linear=True)
    assert check_routes(program) == []
    hand, arrays = by_hand(tabulated, linear=True)
    exact = evaluate(
        mean_field(program),
        steps=STEPS + 1,
        values={"eta": 0.3, "gamma0": 1, "P": 2},
        data={"K_x": KERNEL, **arrays},
    )
    limit, stderr = hand.wide(STEPS, (40, 80), 150)
    assert excess(in_errors(exact.value("f") - limit, stderr), 149) <= 1
    solved = numerics.solve(
        program, numbers={"eta": 0.3, "gamma0": 1.0}, arrays={"K_x": KERNEL, **arrays}, times=range(STEPS + 1)
    )
    assert solved.error.values == pytest.approx(exact.value("Delta"), abs=1e-9)


def test_a_tangent_kernel_has_rates_and_factors_at_the_time_of_the_update() -> None:
    """At large width ``f(1) - f(0) = eta K(0, 0) Delta(0)`` as gamma0 vanishes, whatever changes after."""
    program = timed(tabulated=False, linear=True)
    found = evaluate(
        mean_field(program),
        steps=2,
        values={"eta": 0.3, "gamma0": 1e-4, "P": 2},
        data={"K_x": KERNEL, "y": TARGETS},
    )
    kernel, f, error = (found.value(x) for x in ("K", "f", "Delta"))
    assert f[1] - f[0] == pytest.approx(0.3 * kernel[:, :, 1, 0] @ error[0], rel=1e-6)


# -- refusals of an integrator -------------------------------------------------------------------------------


@dataclass(frozen=True)
class OwnFlow(Schedule):
    """Flow of a user's own class, whose rate depends on time."""

    discrete: bool = False


@pytest.mark.parametrize(
    "call", [numerics.solve, lambda **given: numerics.simulate(width=5, seeds=2, **given)]
)
def test_an_own_flow_is_refused_in_one_sentence(call: Any) -> None:
    given = posed(mlp(1, rule=OwnFlow()), {}, {"eta": ETAS})
    with pytest.raises((ValueError, SpecError), match="GradientFlow"):
        call(**given)


def test_weights_that_flow_by_different_rules_are_refused_and_not_solved_as_one() -> None:
    from dataclasses import replace

    flow = mlp(1, rule="flow")
    vectors = tuple(replace(x, rule=GradientFlow(S(3))) for x in flow.vectors)
    given = posed(replace(flow, vectors=vectors), {}, {})
    with pytest.raises((ValueError, SpecError), match=r"rules = .*all weights by one flow.*rules in steps"):
        numerics.solve(**given)


def linear_units(loss_weight: Expr, parametrization: Parametrization | None = None) -> Program:
    """Return linear units without layers, whose loss has a weight."""
    units, pixels = Population("units"), Population("pixels", given=True)
    x, h, f, y = GivenVector("x", pixels, "K_x"), Field("h", units), Function("f"), Function("y")
    A, w = GaussianMatrix("A", units, pixels), GaussianVector("w", units)
    forward = {h(mu, t): A @ x(mu), f(mu, t): Mean(w.symbol * h(mu, t)) / gamma0}
    net = Network("linear units", (h,), forward, weights=(A, w), given=(x,))
    return net.train(loss_weight * (y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta), parametrization)


def test_a_table_in_the_loss_of_a_linear_network_is_solved_as_the_reference_has_it() -> None:
    program = linear_units(Function("pace")(t))
    data = {"K_x": KERNEL, "y": TARGETS, "pace": np.array([1.0, 0.4, 1.7, 1.0])}
    numbers = {"eta": 0.3, "gamma0": 1.0}
    solved = numerics.solve(program, numbers=numbers, arrays=data, times=range(4))
    reference = evaluate(mean_field(program), steps=4, values=numbers | {"P": 2}, data=data)
    assert np.allclose(solved.error.values, reference.value("Delta"), rtol=0, atol=1e-9)


def test_the_lazy_limit_of_a_rate_in_time_is_refused() -> None:
    program = linear_units(S.One, Parametrization(rate=1 / (1 + t)))
    numbers, arrays = {"eta": 1e-12, "gamma0": 1.0}, {"K_x": KERNEL, "y": TARGETS}
    with pytest.raises(SpecError, match="has a rate that changes in time"):
        numerics.solve(program, numbers=numbers, arrays=arrays, times=range(3), solver=Solver(method="lazy"))
