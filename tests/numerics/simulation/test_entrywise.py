"""Networks trained by sign descent, Adam and its kin, against networks written out here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sympy import Expr, Function, S, Symbol, cos, pi, tanh

import numerics
from derive.errors import NotApplicable
from derive.program import (
    Entrywise,
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    Mean,
    Network,
    Parametrization,
    Population,
    Program,
    ProgramError,
    adam,
    adamw,
    eta,
    gamma0,
    lion,
    mlp,
    mu,
    rmsprop,
    sign_descent,
    t,
)
from derive.program.entrywise import A
from numerics.cli import run
from numerics.errors import SpecError
from numerics.simulation import Networks, simulate_program

Array = NDArray[np.float64]

WIDTH, STEPS, GAMMA, RATE = 7, 5, 0.8, 0.3
X = np.array([[1.2, -0.4], [0.3, 1.1]])
Y = np.array([1.0, -0.7])
NUMBERS = {"eta": RATE, "gamma0": GAMMA}
SCHEDULE = eta * (1 + cos(pi * t / STEPS)) / 2
EPSILON = 1e-3


def rates(time: int) -> float:
    """Return the schedule, computed independently."""
    return float(RATE * (1 + np.cos(np.pi * time / STEPS)) / 2)


class SignDescent:
    """Sign descent with a decay."""

    share = 0.05

    def step(self, a: Array, state: dict[str, Any], time: int) -> Array:
        return np.sign(a)


class Adam:
    """Adam as published, with the correction of both means."""

    share = 0.0
    correct = True

    def step(self, a: Array, state: dict[str, Any], time: int) -> Array:
        state["m"] = 0.7 * state.get("m", 0.0) + 0.3 * a
        state["v"] = 0.8 * state.get("v", 0.0) + 0.2 * a * a
        m, v = state["m"] / (1 - 0.7 ** (time + 1)), state["v"] / (1 - 0.8 ** (time + 1))
        return m / (np.sqrt(v) + EPSILON)


class AdamW(Adam):
    """Adam with decay beside the step."""

    share = 0.04


class RMSprop:
    """RMSprop without momentum and correction."""

    share = 0.0

    def step(self, a: Array, state: dict[str, Any], time: int) -> Array:
        state["v"] = 0.8 * state.get("v", 0.0) + 0.2 * a * a
        return a / (np.sqrt(state["v"]) + EPSILON)


class Lion:
    """Lion: the sign of a mean of gradient and momentum; the momentum moves after it."""

    share = 0.0

    def step(self, a: Array, state: dict[str, Any], time: int) -> Array:
        m = state.get("m", np.zeros_like(a))
        state["m"] = 0.8 * m + 0.2 * a
        return np.sign(0.7 * m + 0.3 * a)


class Descent:
    """Gradient descent as an entrywise rule."""

    share = 0.0

    def step(self, a: Array, state: dict[str, Any], time: int) -> Array:
        return a


CASES: dict[str, tuple[Entrywise, Any]] = {
    "sign": (sign_descent(SCHEDULE, decay=0.05), SignDescent()),
    "adam": (adam(SCHEDULE, 0.7, 0.8, EPSILON), Adam()),
    "adamw": (adamw(SCHEDULE, 0.04, 0.7, 0.8, EPSILON), AdamW()),
    "rmsprop": (rmsprop(SCHEDULE, 0.8, EPSILON), RMSprop()),
    "lion": (lion(SCHEDULE, 0.7, 0.8), Lion()),
}


def by_hand(weights: list[Array], rule: Any, readout: Any = None) -> list[Array]:
    """Return outputs (time, sample) of two hidden tanh layers and a readout, of raw weights.

    ``h1 = W0 x/sqrt(D)``, ``h2 = W1 phi(h1)/sqrt(N)``, ``f = w phi(h2)/(gamma0 N)``. A raw weight moves by
    ``rate gamma0 n Q`` over the root of n that it is divided by, with the gradient ``A = -gamma0 N dL/dM``.
    """
    x = X
    W0, W1, w = (u.copy() for u in weights)  # as applied
    found, states = [], [{}, {}, {}]
    for time in range(STEPS + 1):
        h1 = x @ W0.T
        h2 = np.tanh(h1) @ W1.T
        f = np.tanh(h2) @ w / (GAMMA * WIDTH)
        found.append(f)
        delta = Y - f
        g2 = w * (1 - np.tanh(h2) ** 2)
        g1 = (g2 @ W1) * (1 - np.tanh(h1) ** 2)
        gradients = [
            np.einsum("p,pi,pj->ij", delta, g1, x),
            np.einsum("p,pi,pj->ij", delta, g2, np.tanh(h1)),
            delta @ np.tanh(h2),
        ]
        rules = (rule, rule, readout or rule)
        for u, a, n, x_, own in zip(
            (W0, W1, w), gradients, (1 / 2, 1 / WIDTH, 1.0), states, rules, strict=True
        ):
            u *= 1 - own.share
            u += rates(time) * GAMMA * n * own.step(a, x_, time)
    return found


def drawn() -> list[Array]:
    rng = np.random.default_rng(3)
    W0, W1, w = (
        rng.standard_normal((WIDTH, 2)),
        rng.standard_normal((WIDTH, WIDTH)),
        rng.standard_normal(WIDTH),
    )
    return [W0 / np.sqrt(2), W1 / np.sqrt(WIDTH), w]


def trained(program: Program, **more: Any) -> Networks:
    W0, W1, w = drawn()
    return simulate_program(
        program,
        width=WIDTH,
        seeds=1,
        steps=STEPS,
        values={**NUMBERS, "P": 2},
        data={"x": X, "y": Y},
        initial={"W0": W0, "W": {1: W1}, "w": w},
        **more,
    )


@pytest.mark.parametrize("name", CASES)
def test_networks_move_as_written_out(name: str) -> None:
    rule, own = CASES[name]
    found = trained(mlp(2, "tanh", rule=rule))["f"].mean
    expected = np.array(by_hand(drawn(), own))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    assert np.abs(expected[-1] - expected[0]).min() > 0.1


def test_gradients_by_differences_of_the_loss_move_networks_alike() -> None:
    """The gradient of an entry is ``-gamma0 N`` times the slope of the loss, whoever finds it."""
    program = mlp(2, "tanh", rule=CASES["adam"][0])
    loss = program.loss
    found = (
        trained(program)["f"].mean,
        trained(program, loss=loss, parametrization=Parametrization())["f"].mean,
    )
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4)


def test_the_gradient_itself_is_gradient_descent() -> None:
    """With ``Q = A`` nothing is left but the factors of the update, and wide layers are moved in blocks."""
    plain, entrywise = (
        simulate_program(
            mlp(2, "relu", rule=rule, bias=True),
            width=300,
            seeds=2,
            steps=3,
            values={**NUMBERS, "P": 2},
            data={"x": X, "y": Y},
        )["f"].mean
        for rule in (GradientDescent(eta, decay=eta / 10), Entrywise(eta, A, decay=eta / 10))
    )
    np.testing.assert_allclose(entrywise, plain, rtol=1e-9)


def test_single_weights_move_by_rules_of_their_own() -> None:
    """Matrices by Adam and the readout by descent."""
    program = mlp(2, "tanh", rule=CASES["adam"][0])
    (w,) = program.vectors
    program = replace(program, vectors=(replace(w, rule=GradientDescent(SCHEDULE)),))
    found = trained(program)["f"].mean
    np.testing.assert_allclose(found, by_hand(drawn(), Adam(), readout=Descent()), rtol=1e-9, atol=1e-12)


def step_of_a_rectangle(ratio: Expr, fan_in: int | None, share: float) -> tuple[float, float]:
    """Return the output after one step of a matrix, by networks and by hand, for one sample.

    The matrix acts on a population of ``ratio``. By hand its step is ``rate gamma0 tanh(A)/(share N)``.
    """
    width, rng = 3, np.random.default_rng(0)
    below, above, inputs = (
        Population("below", ratio=ratio),
        Population("above"),
        Population("input", given=True),
    )
    a, b, f, y = Field("a", below), Field("b", above), Function("f"), Function("y")
    U, T, w = (
        GaussianMatrix("U", below, inputs),
        GaussianMatrix("T", above, below),
        GaussianVector("w", above),
    )
    x, rule = GivenVector("x", inputs, "K_x"), Entrywise(eta, tanh(A))
    lines = {
        a(mu, t): U @ x(mu),
        b(mu, t): T @ tanh(a(mu, t)),
        f(mu, t): Mean(w.symbol * tanh(b(mu, t))) / gamma0,
    }
    net = Network("rectangle", (a, b), lines, (U, T, w), given=(x,))
    divided = Parametrization(fan_in={} if fan_in is None else {"T": fan_in})
    program = net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(0 * eta), divided, rules={"T": rule})
    cols = int(width * ratio)
    start = {
        "U": rng.normal(size=(cols, 2)),
        "T": rng.normal(size=(width, cols)),
        "w": rng.normal(size=width),
    }
    told: dict[str, Any] = {"width": width, "seeds": 1, "steps": 1, "values": {**NUMBERS, "P": 1}}
    data = {"x": X[:1], "y": Y[:1]}
    found = simulate_program(program, data=data, initial=start, **told)["f"].mean[1, 0]

    phi = np.tanh(start["U"] @ X[0])
    h = start["T"] @ phi
    delta = Y[0] - start["w"] @ np.tanh(h) / (GAMMA * width)
    # A = -gamma0 N dL/dT with L = delta^2/2 and f = sum_i w_i tanh(h_i)/(gamma0 N)
    gradient = delta * np.outer(start["w"] * (1 - np.tanh(h) ** 2), phi)
    moved = start["T"] + RATE * GAMMA * np.tanh(gradient) / (share * width)
    return found, start["w"] @ np.tanh(moved @ phi) / (GAMMA * width)


@pytest.mark.parametrize(("ratio", "fan_in", "share"), [(S(2), None, 2.0), (S.One, 2, 2.0), (S(2), 3, 3.0)])
def test_a_step_is_divided_by_the_number_that_divides_raw_weights(
    ratio: Expr, fan_in: int | None, share: float
) -> None:
    """The documentation said 1/N for every hidden matrix, whatever it acts on."""
    found, expected = step_of_a_rectangle(ratio, fan_in, share)
    assert found == pytest.approx(expected, rel=1e-12)
    _, as_it_was_said = step_of_a_rectangle(ratio, fan_in, 1.0)
    assert abs(found - as_it_was_said) > 1e-3


def test_functions_of_time_in_a_law_are_arrays() -> None:
    """A momentum that is a table has its value at each step; a missing one is requested by name."""
    b, m = Function("b"), Symbol("m")
    rule = Entrywise(eta, m, ((m, b(t) * m + A),))
    told: dict[str, Any] = {"width": 9, "seeds": 2, "rng": 0, "times": range(4)}
    arrays = {"x": X, "y": Y}
    moving = numerics.simulate(
        mlp(1, "tanh", rule=rule), numbers=NUMBERS, arrays={**arrays, "b": np.full(3, 0.5)}, **told
    )
    steady = numerics.simulate(
        mlp(1, "tanh", rule=Entrywise(eta, m, ((m, m / 2 + A),))), numbers=NUMBERS, arrays=arrays, **told
    )
    np.testing.assert_allclose(moving.f, steady.f, rtol=1e-12)
    with pytest.raises(SpecError, match=r"arrays\.b"):
        numerics.simulate(mlp(1, "tanh", rule=rule), numbers=NUMBERS, arrays=arrays, **told)
    with pytest.raises(SpecError, match=r"numbers\.eta"):
        numerics.simulate(
            mlp(1, "tanh", rule=sign_descent(eta)), numbers={"gamma0": 1.0}, arrays=arrays, **told
        )


def test_inputs_are_given_by_their_entries() -> None:
    """Rotated inputs have the same kernel, and train another network."""
    program = mlp(1, "tanh", rule=sign_descent(eta))
    told: dict[str, Any] = {"numbers": NUMBERS, "times": range(4), "width": 40, "seeds": 200, "rng": 0}
    found = [
        numerics.simulate(program, arrays={"x": [x], "y": [1.0]}, **told)
        for x in ([np.sqrt(2), 0.0], [1.0, 1.0])
    ]
    apart = np.abs(found[0].f[-1] - found[1].f[-1]) / np.hypot(found[0].f_stderr[-1], found[1].f_stderr[-1])
    assert float(apart.max()) > 5
    with pytest.raises(SpecError, match=r"arrays\.K_x: is given, and W0 moves by a rule whose steps depend"):
        numerics.simulate(program, arrays={"K_x": X @ X.T / 2, "y": Y}, **told)
    with pytest.raises(SpecError, match=r"arrays\.x: is missing"):
        numerics.simulate(program, arrays={"y": Y}, **told)
    with pytest.raises(ValueError, match="give data\\['x'\\], the vectors"):
        simulate_program(
            program, width=9, seeds=1, steps=2, values={**NUMBERS, "P": 2}, data={"K_x": np.eye(2), "y": Y}
        )


def test_expansions_are_refused_in_one_sentence() -> None:
    program = mlp(2, "tanh", rule=adam(eta))
    told = {"numbers": NUMBERS, "arrays": {"x": X, "y": Y}, "times": range(3)}
    with pytest.raises((NotApplicable, SpecError), match=r"W0? moves by Adam, which is not linear"):
        numerics.expand(program, order=2, **told)


def test_commands_train_networks_and_solve_theories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = "from derive.program import adam, eta, mlp\nprogram = mlp(1, 'tanh', rule=adam(eta))\n"
    (tmp_path / "net.py").write_text(lines)
    np.save("x.npy", X)
    np.save("y.npy", Y)
    given = ["-D", "x=x.npy", "-D", "targets=y.npy"]
    for key in ("network.gamma0=1", "training.learning_rate=0.1", "training.steps=2"):
        given += ["--set", key]
    assert run(["derive", "net.py:program"]) == 0
    assert "Q_W0(" in capsys.readouterr().out
    assert run(["solve", "net.py:program", *given, "--set", "solver.samples=64"]) == 0
    assert run(["expand", "net.py:program", "--order", "2", *given]) == 2
    assert "W0 moves by Adam, which is not linear in the updates" in capsys.readouterr().err
    assert run(["simulate", "net.py:program", *given, "--width", "8", "--seeds", "2"]) == 0


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: adam(eta, beta1=1), "beta1 of Adam"),
        (lambda: rmsprop(eta, epsilon=-1), "epsilon of RMSprop"),
        (lambda: Entrywise(eta, eta), "neither on the gradient A nor on states"),
        (lambda: Entrywise(eta, A, ((A, A),)), "must be different symbols"),
        (lambda: Entrywise(eta, A, (1, 2)), "pairs of a symbol and its next value"),
        (lambda: Entrywise(-1, A), "rate of entrywise rule"),
    ],
)
def test_what_is_no_rule_is_refused(made: Callable[[], Entrywise], said: str) -> None:
    with pytest.raises(ProgramError, match=said):
        made()
