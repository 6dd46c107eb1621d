"""Tests of rates, decay, momentum and noise that depend on time, against networks written in NumPy.

Each network takes the step of its rule as written, with separately coded gradients; theories are compared
with the limit of two widths.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.integrate import quad
from sympy import Expr, Function, Matrix, Max, Rational, S, Symbol, exp, log, pi, sin, sqrt, tan, zeros

import numerics
from derive.program import (
    GradientDescent,
    GradientFlow,
    LinearRule,
    Momentum,
    MomentumFlow,
    TrainingRule,
    eta,
    t,
)
from derive.program.rules import LinearSystem
from numerics.errors import SpecError
from numerics.experiment.memory import StepwiseSystem, tables_of_program
from numerics.experiment.problem import Problem
from numerics.experiment.schema import Solver
from numerics.simulation import simulate_program
from tests.chance import excess, in_errors
from tests.derive.once import mlp

Array = NDArray[np.float64]

STEPS = 5
X = np.array([[1.0, 0.5, -0.3], [0.2, -0.7, 1.1]])
KERNEL = X @ X.T / X.shape[1]
TARGETS = np.array([1.0, -0.5])
AT = np.arange(STEPS)
TABLES = {
    "r": 0.3 + 0.15 * np.sin(AT),
    "m": 0.5 + 0.2 * np.cos(AT),
    "d": 0.03 * (1 + AT),
    "q": 0.02 * (1 + AT % 2),
}
r, m, d, q = (Function(x)(t) for x in TABLES)

Move = Callable[[int, list[Array], Array, Array], list[Array]]
"""A step from the weight and its hidden states, its update and its noise to what they are next."""


def numbers(step: int) -> list[float]:
    return [float(x[step]) for x in TABLES.values()]


def descent(step: int, z: list[Array], update: Array, noise: Array) -> list[Array]:
    rate, _, decay, _ = numbers(step)
    return [(1 - decay) * z[0] + rate * update]


def heavy_ball(step: int, z: list[Array], update: Array, noise: Array) -> list[Array]:
    rate, momentum, decay, _ = numbers(step)
    velocity = momentum * z[1] + update
    return [(1 - decay) * z[0] + rate * velocity, velocity]


def heavy_ball_inside(step: int, z: list[Array], update: Array, noise: Array) -> list[Array]:
    rate, momentum, decay, _ = numbers(step)
    velocity = momentum * z[1] + rate * update
    return [(1 - decay) * z[0] + velocity, velocity]


def coupled(step: int, z: list[Array], update: Array, noise: Array) -> list[Array]:
    """Return a step with decay as a term of the gradient, as in packages for deep learning."""
    rate, momentum, decay, _ = numbers(step)
    velocity = momentum * z[1] + update - decay * z[0]
    return [z[0] + rate * velocity, velocity]


def noisy(step: int, z: list[Array], update: Array, noise: Array) -> list[Array]:
    rate, _, decay, heat = numbers(step)
    return [(1 - decay) * z[0] + rate * update + np.sqrt(heat) * noise]


def noisy_velocity(step: int, z: list[Array], update: Array, noise: Array) -> list[Array]:
    rate, momentum, _, heat = numbers(step)
    return [z[0] + rate * (momentum * z[1] + update), momentum * z[1] + update + np.sqrt(heat) * noise]


RULES: dict[str, tuple[TrainingRule, Move]] = {
    "descent": (GradientDescent(r, decay=d), descent),
    "momentum": (Momentum(r, m, decay=d), heavy_ball),
    "rate inside": (Momentum(r, m, decay=d, rate_inside=True), heavy_ball_inside),
    "coupled decay": (LinearRule(Matrix([[1 - r * d, r * m], [-d, m]]), Matrix([r, 1])), coupled),
    "noise": (GradientDescent(r, decay=d, diffusion=q), noisy),
    "noise in the velocity": (
        LinearRule(Matrix([[1, r * m], [0, m]]), Matrix([r, 1]), diffusion=Matrix([[0, 0], [0, q]])),
        noisy_velocity,
    ),
}

ALIKE = ("descent", "rate inside", "coupled decay")
"""Rules without noise that other tests hold against steps as they are written, and against another solver."""


@dataclass(frozen=True)
class Networks:
    """``h = W x``, ``f = w . phi(h)/N`` on two samples, many networks at once."""

    move: Move
    linear: bool

    def train(self, W: Array, w: Array, rng: np.random.Generator, steps: int = STEPS) -> Array:
        """Return outputs (networks, steps + 1, P) for weights (networks, N, D) and (networks, N)."""
        z = [[W, np.zeros_like(W)], [w, np.zeros_like(w)]]
        found = []
        for step in range(steps + 1):
            h = np.einsum("knd,pd->kpn", z[0][0], X)
            phi = h if self.linear else np.tanh(h)
            slope = np.ones_like(h) if self.linear else 1 - phi**2
            f = np.einsum("kpn,kn->kp", phi, z[1][0]) / w.shape[1]
            found.append(f)
            if step == steps:
                break
            error = TARGETS - f
            inner = np.einsum("kp,kpn,kn,pd->knd", error, slope, z[1][0], X) / X.shape[1]
            outer = np.einsum("kp,kpn->kn", error, phi)
            noise = [rng.standard_normal(W.shape) / np.sqrt(X.shape[1]), rng.standard_normal(w.shape)]
            z = [self.move(step, *x) for x in zip(z, (inner, outer), noise, strict=True)]
        return np.stack(found, axis=1)

    def limit(self, widths: tuple[int, int], count: int) -> tuple[Array, Array]:
        """Return mean outputs (steps + 1, P) extrapolated in 1/N, and their standard errors."""
        means, errors = [], []
        for width in widths:
            rng = np.random.default_rng(width)
            W = rng.standard_normal((count, width, X.shape[1])) / np.sqrt(X.shape[1])
            found = self.train(W, rng.standard_normal((count, width)), rng)
            means.append(found.mean(axis=0))
            errors.append(found.std(axis=0, ddof=1) / np.sqrt(count))
        small, large = widths
        share = large / (large - small)
        return share * means[1] + (1 - share) * means[0], np.hypot(share * errors[1], (1 - share) * errors[0])


def posed(rule: TrainingRule, activation: str) -> dict[str, Any]:
    program = mlp(1, activation, rule=rule)
    arrays = {"K_x": KERNEL, "y": TARGETS} | {k: x for k, x in TABLES.items() if k in program.tables}
    return {"source": program, "numbers": {"gamma0": 1.0}, "arrays": arrays, "times": range(STEPS + 1)}


@pytest.mark.parametrize("name", [x for x in RULES if "noise" not in x])
def test_networks_take_the_step_as_it_is_written(name: str) -> None:
    rule, move = RULES[name]
    rng = np.random.default_rng(3)
    W, w = rng.standard_normal((12, 3)) / np.sqrt(3), rng.standard_normal(12)
    given = {"x": X, "y": TARGETS, **TABLES}
    run = simulate_program(
        mlp(1, "tanh", rule=rule),
        width=12,
        steps=STEPS,
        seeds=1,
        values={"gamma0": 1, "P": 2},
        data={k: given[k] for k in ("x", "y", *sorted(mlp(1, rule=rule).tables))},
        initial={"W0": W, "w": w},
    )
    by_hand = Networks(move, linear=False).train(W[None], w[None], rng)[0]
    assert run["f"].mean == pytest.approx(by_hand, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.slow) if x in ALIKE else x for x in RULES]
)
def test_linear_theories_are_the_limit_of_networks(name: str) -> None:
    rule, move = RULES[name]
    limit, stderr = Networks(move, linear=True).limit((30, 60), 2000)
    solved = numerics.solve(**posed(rule, "linear"))
    assert solved.attrs["method"] == "linear causal march"
    assert excess(in_errors(TARGETS - solved.error.values - limit, stderr), 1999) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_nonlinear_theories_are_the_limit_of_networks(name: str) -> None:
    rule, move = RULES[name]
    limit, stderr = Networks(move, linear=False).limit((50, 100), 4000)
    solved = numerics.solve(**posed(rule, "tanh"), solver=Solver(accuracy=1e-3))
    both = np.hypot(stderr, solved.error_stderr.values)
    assert excess(in_errors(TARGETS - solved.error.values - limit, both), 11) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["momentum", "coupled decay", "noise"])
def test_verify_holds_for_rules_that_depend_on_the_time(name: str) -> None:
    report = numerics.verify(**posed(RULES[name][0], "linear"))
    assert report.checks
    assert all(x.passed for x in report.checks)


@pytest.mark.parametrize(
    "name", [pytest.param("descent", marks=pytest.mark.slow), "momentum", "coupled decay"]
)
def test_methods_agree(name: str) -> None:
    given = posed(RULES[name][0], "linear")
    march, reference = (numerics.solve(**given, solver=Solver(method=x)) for x in ("march", "direct"))
    assert march.error.values == pytest.approx(reference.error.values, abs=1e-10)


# -- flows ---------------------------------------------------------------------------------------------------

rate0, lam, tau = (Symbol(x, positive=True) for x in ("rate0", "lam", "tau"))
FLOWS: dict[str, tuple[TrainingRule, Callable[[float], tuple[Array, Array]]]] = {
    "rate": (GradientFlow(rate0 / (1 + t)), lambda x: (np.zeros((1, 1)), np.array([0.8 / (1 + x)]))),
    "decay": (
        GradientFlow(rate0, decay=lam * t),
        lambda x: (np.array([[-0.3 * x]]), np.array([0.8])),
    ),
    "momentum": (
        MomentumFlow(tau, rate0 * exp(-t / 2)),
        lambda x: (np.array([[0.0, 1.0], [0.0, -2.0]]), np.array([0.0, 2 * 0.8 * np.exp(-x / 2)])),
    ),
    "friction": (
        LinearRule(Matrix([[0, 1], [-lam, -(1 + t)]]), Matrix([0, rate0]), discrete=False),
        lambda x: (np.array([[0.0, 1.0], [-0.3, -(1 + x)]]), np.array([0.0, 0.8])),
    ),
}
END = 1.5


def flowing(system: Callable[[float], tuple[Array, Array]], W: Array, w: Array, parts: int) -> Array:
    """Return outputs (networks, 2, P) of linear networks at the start and END, by Runge-Kutta steps."""
    hidden = len(system(0.0)[1]) - 1
    z = [[x, *[np.zeros_like(x)] * hidden] for x in (W, w)]

    def outputs(z: Any) -> Array:
        return np.asarray(np.einsum("knd,pd,kn->kp", z[0][0], X, z[1][0]) / w.shape[1])

    def slope(z: Any, now: float) -> Any:
        A, b = system(now)
        error = (TARGETS - outputs(z)) @ X
        updates = (z[1][0][:, :, None] * error[:, None] / X.shape[1], np.einsum("kd,knd->kn", error, z[0][0]))
        return [
            [sum(A[i, j] * y for j, y in enumerate(x)) + b[i] * u for i in range(len(x))]
            for x, u in zip(z, updates, strict=True)
        ]

    def moved(z: Any, k: Any, h: float) -> Any:
        return [[a + h * b for a, b in zip(x, y, strict=True)] for x, y in zip(z, k, strict=True)]

    first, h = outputs(z), END / parts
    for n in range(parts):
        now = n * h
        one = slope(z, now)
        two = slope(moved(z, one, h / 2), now + h / 2)
        three = slope(moved(z, two, h / 2), now + h / 2)
        four = slope(moved(z, three, h), now + h)
        for k, share in ((one, 1), (two, 2), (three, 2), (four, 1)):
            z = moved(z, k, h * share / 6)
    return np.stack([first, outputs(z)], axis=1)


def flow_problem(name: str) -> dict[str, Any]:
    rule = FLOWS[name][0]
    used = {
        x for w in mlp(1, rule=rule).trained() for e in w.rule.system.coefficients for x in e.free_symbols
    }
    known = {"rate0": 0.8, "lam": 0.3, "tau": 0.5}
    numbers = {"gamma0": 1.0} | {k: x for k, x in known.items() if Symbol(k, positive=True) in used}
    return {"numbers": numbers, "arrays": {"K_x": KERNEL, "y": TARGETS}, "times": [0.0, END]}


@pytest.mark.parametrize("name", FLOWS)
def test_networks_flow_as_their_equation_is_written(name: str) -> None:
    rule, system = FLOWS[name]
    rng = np.random.default_rng(4)
    W, w = rng.standard_normal((8, 3)) / np.sqrt(3), rng.standard_normal(8)
    given = flow_problem(name)
    run = simulate_program(
        mlp(1, rule=rule),
        width=8,
        steps=1,
        seeds=1,
        values={"P": 2, **given["numbers"]},
        data={"x": X, "y": TARGETS},
        initial={"W0": W, "w": w},
        dt=END / 64,
        times=[0.0, END],
    )
    assert run["f"].mean == pytest.approx(flowing(system, W[None], w[None], 64)[0], abs=1e-9)


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.slow) if x in ("friction", "rate") else x for x in FLOWS]
)
def test_linear_flows_are_the_limit_of_networks(name: str) -> None:
    rule, system = FLOWS[name]
    means, errors = [], []
    for width in (20, 40):
        rng = np.random.default_rng(width)
        W = rng.standard_normal((400, width, 3)) / np.sqrt(3)
        found = flowing(system, W, rng.standard_normal((400, width)), 12)
        means.append(found.mean(axis=0))
        errors.append(found.std(axis=0, ddof=1) / np.sqrt(400))
    limit, stderr = 2 * means[1] - means[0], np.hypot(2 * errors[1], errors[0])
    solved = numerics.solve(mlp(1, rule=rule), **flow_problem(name))
    assert solved.attrs["status"] == "ok"
    assert excess(in_errors(TARGETS - solved.error.values - limit, stderr), 399) <= 1


def test_a_table_in_a_flow_is_refused() -> None:
    given = flow_problem("rate") | {"numbers": {"gamma0": 1.0}}
    given["arrays"] = {**given["arrays"], "r": np.ones(2)}
    with pytest.raises(SpecError, match=r"expression in derive\.program\.t"):
        numerics.solve(mlp(1, rule=GradientFlow(r)), **given)


def test_memory_of_a_constant_rule_is_that_of_its_closed_form() -> None:
    """Steps with decay and noise are solved from tables; the closed form is the one that theories show."""
    rule = GradientDescent(eta, decay=S(1) / 5, diffusion=S(1) / 3)
    from derive.program import s
    from numerics.experiment.memory import tables_of_program

    program = mlp(1, rule=rule)
    ((_, tables),) = tables_of_program(program)
    found = tables.values({eta: 0.7}, np.arange(4.0))
    for i in range(4):
        for j in range(4):
            at = {t: i, s: j, eta: 0.7}
            assert found["n"][i, j] == pytest.approx(float(rule.noise(t, s).subs(at)), abs=1e-14)
            if j < i:
                kept = rule.memory(t, s)[1].subs(at) / S(0.7)
                assert found["w"][i, j] == pytest.approx(float(kept), abs=1e-14)


@pytest.mark.parametrize(
    ("rule", "times", "at"),
    [
        (GradientFlow(rate=1 / (1 - t)), [0.0, 0.5, 2.0], "1"),
        pytest.param(GradientFlow(rate=1 / (t**2 - 2 * t + 1)), [0.0, 3.1], "1", marks=pytest.mark.slow),
        (GradientFlow(rate=abs(t - 1) ** Rational(-1, 3)), [0.0, 3.1], "1"),
        (GradientFlow(rate=1 + log(t)), [0.0, 0.5], "0"),
        (GradientFlow(decay=sqrt(1 - t)), [0.0, 2.0], "1.005"),
        pytest.param(MomentumFlow(tan(t)), [0.0, 1.0], "0", marks=pytest.mark.slow),
        (GradientDescent(1 / (2 - t)), range(4), "2"),
        (GradientDescent(eta / (Rational(3, 2) - t) ** 2), range(4), None),
        (GradientFlow(rate=1 / (Rational(1, 100) + (t - 1) ** 2)), [0.0, 3.1], None),
        (GradientFlow(rate=1 / (4 - t)), [0.0, 3.1], None),
    ],
)
def test_coefficients_that_are_not_finite_at_a_time_are_refused(
    rule: TrainingRule, times: object, at: str | None
) -> None:
    """A pole between output times was stepped over, or the solution did not end."""
    given: dict[str, Any] = {"arrays": {"K_x": [[1.0]], "y": [1.0]}, "times": times}
    given["numbers"] = {"gamma0": 1.0, **({"eta": 0.1} if eta in rule.system.input[0].free_symbols else {})}
    if at is None:
        Problem.of(mlp(1, rule=rule), **given)
        return
    simulate = partial(numerics.simulate, width=8, seeds=2)
    for command in (numerics.solve, simulate):
        with pytest.raises(SpecError, match=rf"coefficient .* is not a finite real number at t = {at} \("):
            command(mlp(1, rule=rule), **given)


@pytest.mark.parametrize("times", [[0.0, 3.0], pytest.param(np.linspace(0, 3, 30), marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("decay", "integral"),
    [
        (sqrt(t), 2 * np.sqrt(3)),
        (abs(t - 1), 2.5),
        (abs(t - 1) ** Rational(3, 10), (1 + 2**1.3) / 1.3),
        (50 / (1 + 10000 * (t - 1) ** 2), (np.arctan(200) + np.arctan(100)) / 2),
    ],
)
def test_decay_with_kinks_and_pulses_is_integrated(decay: Expr, integral: float, times: object) -> None:
    """The pulse is as narrow as a hundredth of the time."""
    (_, tables), *_ = tables_of_program(mlp(1, rule=GradientFlow(decay=decay)))
    found = tables.values({}, np.asarray(times))["m"]
    assert found[-1] == pytest.approx(np.exp(-integral), rel=1e-9)


@pytest.mark.parametrize(
    ("diffusion", "total"), [(Max(0, t * (1 - t)), 1 / 6), (sin(512 * pi * t) ** 2 / 10**4, 1e-4)]
)
def test_noise_that_is_zero_at_the_given_times_is_integrated(diffusion: Expr, total: float) -> None:
    """The second has the same phase at equal parts of intervals; noise of a rule with a velocity was zero."""
    noise = Matrix([[diffusion, 0], [0, 0]])
    system = LinearSystem(Matrix([[0, 1], [0, -1]]), Matrix([0, 1]), noise)
    found = StepwiseSystem.of(system, False, {}, np.linspace(0, 2, 3), {}).tables(noisy=True)[2]
    assert found[-1, -1] == pytest.approx(total, rel=1e-9)


def test_noise_of_a_velocity_that_is_zero_at_the_given_times_is_integrated() -> None:
    """The variance is the integral of the noise at u times (1 - exp(u - 2))^2."""
    noise = Matrix([[0, 0], [0, Max(0, t * (1 - t))]])
    system = LinearSystem(Matrix([[0, 1], [0, -1]]), Matrix([0, 1]), noise)
    found = StepwiseSystem.of(system, False, {}, np.linspace(0, 2, 3), {}).tables(noisy=True)[2]
    u = np.linspace(0, 1, 100001)
    assert found[-1, -1] == pytest.approx(np.trapezoid(u * (1 - u) * (1 - np.exp(u - 2)) ** 2, u), rel=1e-8)


def test_a_flow_whose_velocity_relaxes_ever_faster_is_integrated() -> None:
    """``m dQ/dt = U - Q``, ``m = exp(-t^2)``: steps that are not stable there gave 2e72 in place of 0.64."""
    (_, tables), *_ = tables_of_program(mlp(1, rule=MomentumFlow(exp(-(t**2)))))
    found = tables.values({}, np.linspace(0, 2.5, 4))["w"]
    exact = quad(lambda x: np.exp(-quad(lambda u: np.exp(u * u), 0, x)[0]), 0, 2.5, epsabs=1e-11)[0]
    assert found[-1, 0] == pytest.approx(exact, rel=1e-9)


def test_eigenvalues_without_a_closed_form() -> None:
    """The characteristic polynomial of five hidden states has no roots in closed form.

    Once the residues of these eigenvalues were left out of the memory of a weight.
    """
    A, b = zeros(6, 6), Matrix([0, Rational(1, 10), 0, 0, 0, 0])
    A[0, 0] = A[0, 1] = 1
    for i in range(1, 5):
        A[i + 1, i] = 1
    A[1, 5], A[2, 5] = Rational(1, 3), Rational(1, 2)
    given: dict[str, Any] = {"numbers": {"gamma0": 1e-4}, "arrays": {"K_x": [[1.0]], "y": [1.0]}}
    found = numerics.solve(mlp(1, rule=LinearRule(A, b)), times=range(9), **given)
    power = np.array(A, dtype=float)
    memory = [np.linalg.matrix_power(power, n)[0] @ np.array(b, dtype=float)[:, 0] for n in range(9)]
    f = np.zeros(9)
    for n in range(1, 9):
        f[n] = sum(2 * memory[n - 1 - k] * (1 - f[k]) for k in range(n))
    np.testing.assert_allclose(found.f[:, 0], f, rtol=1e-6)


def diffused(rule: LinearRule, steps: int) -> Array:
    """Return the variance (steps + 1,) of the noise in a weight that follows a rule without updates."""
    A, covariance = np.array(rule.A, dtype=float), np.zeros((2, 2))
    variances = [0.0]
    for step in range(steps):
        added = np.array(Matrix(rule.diffusion).subs(t, step), dtype=float)
        covariance = A @ covariance @ A.T + added
        variances.append(covariance[0, 0])
    return np.array(variances)


STILL, PUSHED, VELOCITY, GROWING = (
    LinearRule(Matrix([[1, Rational(1, 2)], [0, Rational(1, 3)]]), Matrix([0, 1]), Matrix([[a, 0], [0, b]]))
    for a, b in ((S.Zero, S.Zero), (S.Half, S.Zero), (S.Zero, S.Half), (t / 2, S.Zero))
)


@pytest.mark.parametrize(
    ("readout", "hidden"),
    [
        (STILL, PUSHED),
        (PUSHED, STILL),
        pytest.param(PUSHED, VELOCITY, marks=pytest.mark.slow),
        pytest.param(GROWING, PUSHED, marks=pytest.mark.slow),
    ],
)
def test_weights_with_noise_of_different_form_keep_their_own(readout: LinearRule, hidden: LinearRule) -> None:
    """A weight without noise had that of the others, or the others had none, as the program was written."""
    found = numerics.solve(
        mlp(1, rule=readout, rules={"W0": hidden}),
        numbers={"gamma0": 1.0},
        arrays={"K_x": [[1.0]], "y": [0.0]},
        times=range(4),
    )
    for name, rule in (("Phi", hidden), ("G", readout)):
        kernel = found[name].values.reshape(4, 4)
        np.testing.assert_allclose(np.diag(kernel), 1 + diffused(rule, 3), rtol=1e-12)


def test_a_flow_has_noise_of_one_law_of_the_time() -> None:
    program = mlp(1, rule=GradientFlow(diffusion=t), rules={"W0": GradientFlow(diffusion=1)})
    with pytest.raises(
        (SpecError, ValueError), match="is not a constant multiple of the noise of another weight"
    ):
        numerics.solve(
            program, numbers={"gamma0": 1.0}, arrays={"K_x": [[1.0]], "y": [0.0]}, times=[0.0, 1.0]
        )


@pytest.mark.slow
def test_a_weight_without_noise_in_a_noisy_flow() -> None:
    found = numerics.solve(
        mlp(1, rule=GradientFlow(diffusion=1), rules={"W0": GradientFlow()}),
        numbers={"gamma0": 1.0},
        arrays={"K_x": [[1.0]], "y": [0.0]},
        times=[0.0, 1.0],
    )
    np.testing.assert_allclose(found.Phi.values.ravel(), 1.0)
    np.testing.assert_allclose(found.G.values.reshape(2, 2)[1, 1], 2.0)
