"""Every builder's updates are the gradients of its loss, at any width: networks written out again in NumPy.

Conventions of the contract: raw weights N(0, 1), ``theta <- theta - eta gamma0^2 N grad(loss)``.  Gradients
are central differences of the loss, so nothing of a builder's backward pass or update enters the expectation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sympy import Function, tanh

from derive.program import L as SymbolicDepth
from derive.program import Program, t
from numerics.simulation import simulate_program
from tests.derive.once import convolution, feedback_alignment, mlp, perceptron, recurrent
from tests.derive.program.test_gradient_check import BUILDERS

Array = NDArray[np.float64]
Weights = dict[Any, Array]

N, D, P, L, STEPS = 4, 3, 2, 3, 2
GAMMA, ETA = 1.3, 0.05
NUMBERS = {"gamma0": GAMMA, "eta": ETA, "P": P}


def gradient(loss: Callable[[Weights], float], weights: Weights) -> Weights:
    """Return central differences, entry by entry."""
    found: Weights = {}
    for key, w in weights.items():
        slope = np.zeros_like(w)
        for at in np.ndindex(w.shape):
            sides = []
            for sign in (1, -1):
                moved = {**weights, key: w.copy()}
                moved[key][at] += sign * 1e-5
                sides.append(loss(moved))
            slope[at] = (sides[0] - sides[1]) / 2e-5
        found[key] = slope
    return found


def descend(
    outputs: Callable[[Weights], Array],
    y: Array,
    weights: Weights,
    decay: float = 0.0,
    momentum: float = 0.0,
    share: float = 1.0,
) -> Array:
    """Return the outputs at steps 0..STEPS of plain (heavy-ball) descent with weight decay."""
    velocity = {k: np.zeros_like(w) for k, w in weights.items()}
    seen = [outputs(weights)]
    for _ in range(STEPS):
        slopes = gradient(lambda w: 0.5 * share * float(((y - outputs(w)) ** 2).sum()), weights)
        velocity = {k: momentum * velocity[k] - GAMMA**2 * N * slopes[k] for k in weights}
        weights = {k: (1 - ETA * decay) * w + ETA * velocity[k] for k, w in weights.items()}
        seen.append(outputs(weights))
    return np.array(seen)


def ring(
    x: Array, widths: tuple[int, ...], *, branch: float | None = None, S: int = 0
) -> Callable[[Weights], Array]:
    """Return a forward pass in raw weights.

    ``x`` is (P, positions, D), outputs (P, channels).
    """
    X = x.shape[1]
    reach = range(-S, S + 1)

    def f(w: Weights) -> Array:
        h = sum(np.roll(x, -k, axis=1) @ w["W0", k].T for k in reach) / np.sqrt(D) + w.get(("b", 1), 0.0)
        for ell in range(1, L):
            a = np.tanh(h)
            add = sum(np.roll(a, -k, axis=1) @ w["W", ell, k].T for k in reach) / np.sqrt(widths[ell - 1])
            skip = 0.0 if branch is None else h
            h = skip + (1.0 if branch is None else branch) * add + w.get(("b", ell + 1), 0.0)
        read = np.stack([w["w", p] for p in range(1, X + 1)])  # positions, units, channels
        return np.asarray(np.einsum("mpi,pic->mc", np.tanh(h), read) / (GAMMA * N))

    return f


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "mean loss": {"loss": "mean"},
    "bias": {"bias": True},
    "channels": {"outputs": 2},
    "residual": {"branch": 0.6},
    "decay": {"weight_decay": 0.7},
    "momentum": {"momentum": 0.8},
    "widths": {"relative_widths": [2, 3, 1]},
    "narrow top": {"relative_widths": [1, 2, 0.5]},
    "convolution": {"positions": 3, "receptive": 1},
    "pointwise": {"positions": 2, "receptive": 0},
    "residual, bias, decay, channels": {"branch": 0.6, "bias": True, "weight_decay": 0.7, "outputs": 2},
    "convolution, bias": {"positions": 3, "receptive": 1, "bias": True},
    "widths, momentum, bias": {"relative_widths": [2, 1, 1.5], "momentum": 0.5, "bias": True},
    "convolution, channels, widths": {
        "positions": 3,
        "receptive": 1,
        "outputs": 2,
        "relative_widths": [2, 1, 1],
    },
    "convolution, residual, momentum and decay": {
        "positions": 3,
        "receptive": 1,
        "branch": 0.5,
        "momentum": 0.5,
        "weight_decay": 0.3,
    },
}


COMBINED = ("residual, bias, decay, channels", "convolution, channels, widths")
"""Options put together that the default suite follows, beside each option alone."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=pytest.mark.slow) if x.count(", ") and x not in COMBINED else x for x in OPTIONS],
)
def test_a_program_descends_the_loss_of_its_network(name: str) -> None:
    options = OPTIONS[name]
    rng = np.random.default_rng(1)
    X, S, C = options.get("positions", 1), options.get("receptive", 0), options.get("outputs", 1)
    widths = tuple(round(a * N) for a in options.get("relative_widths", [1] * L))
    x, y = rng.normal(size=(P, X, D)), rng.normal(size=(P, C))

    weights: Weights = {("W0", k): rng.normal(size=(widths[0], D)) for k in range(-S, S + 1)}
    for ell in range(1, L):
        for k in range(-S, S + 1):
            weights["W", ell, k] = rng.normal(size=(widths[ell], widths[ell - 1]))
    weights |= {("w", p): rng.normal(size=(widths[-1], C)) for p in range(1, X + 1)}
    if options.get("bias"):
        weights |= {("b", ell): rng.normal(size=widths[ell - 1]) for ell in range(1, L + 1)}

    def members(key: str, scale: Callable[[int], float]) -> Any:
        """Return weights as the program applies them, by the indices of the program."""
        found: dict[Any, Array] = {}
        for (which, *at), value in weights.items():
            if which == key:
                found[tuple(at[:-1] if key in ("W0", "W") and S == 0 else at)] = value / scale(at[0])
        return found[()] if list(found) == [()] else found

    tops = {
        (*((p,) if X > 1 else ()), *((c + 1,) if C > 1 else ())): weights["w", p][:, c]
        for p in range(1, X + 1)
        for c in range(C)
    }
    initial = {
        "W0": members("W0", lambda _: np.sqrt(D)),
        "W": members("W", lambda ell: np.sqrt(widths[ell - 1])),
        "w": tops[()] if list(tops) == [()] else tops,
        **({"b": members("b", lambda _: 1.0)} if options.get("bias") else {}),
    }
    build = convolution if "positions" in options else mlp
    run = simulate_program(
        build(L, "tanh", **options),
        width=N,
        steps=STEPS,
        seeds=1,
        values=NUMBERS,
        data={"x": x if X > 1 else x[:, 0], "y": y if C > 1 else y[:, 0]},
        initial=initial,
    )
    expected = descend(
        ring(x, widths, branch=options.get("branch"), S=S),
        y,
        weights,
        options.get("weight_decay", 0.0),
        options.get("momentum", 0.0),
        1 / P if options.get("loss") == "mean" else 1.0,
    )
    assert np.abs(expected[-1] - expected[0]).max() > 1e-3  # it learns something
    found = run["f"].mean.reshape(expected.shape)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("options", [{}, {"bias": True}, {"branch": 0.5}, {"outputs": 2, "momentum": 0.5}])
def test_tied_weights_are_trained_through_every_step(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(2)
    C, branch = options.get("outputs", 1), options.get("branch")
    x, y = rng.normal(size=(P, D)), rng.normal(size=(P, C))
    weights: Weights = {n: rng.normal(size=s) for n, s in (("W0", (N, D)), ("W", (N, N)), ("w", (N, C)))}
    if options.get("bias"):
        weights["b"] = rng.normal(size=N)

    def f(w: Weights) -> Array:
        h = x @ w["W0"].T / np.sqrt(D) + w.get("b", 0.0)
        for _ in range(1, L):
            add = np.tanh(h) @ w["W"].T / np.sqrt(N)
            h = (0 if branch is None else h) + (1 if branch is None else branch) * add + w.get("b", 0.0)
        return np.asarray(np.tanh(h) @ w["w"] / (GAMMA * N))

    top = {(c + 1,): weights["w"][:, c] for c in range(C)} if C > 1 else weights["w"][:, 0]
    initial = {"W0": weights["W0"] / np.sqrt(D), "W": weights["W"] / np.sqrt(N), "w": top}
    run = simulate_program(
        recurrent(L, "tanh", **options),
        width=N,
        steps=STEPS,
        seeds=1,
        values=NUMBERS,
        data={"x": x, "y": y if C > 1 else y[:, 0]},
        initial=initial | ({"b": weights["b"]} if "b" in weights else {}),
    )
    expected = descend(f, y, weights, momentum=options.get("momentum", 0.0))
    np.testing.assert_allclose(run["f"].mean.reshape(expected.shape), expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("branch", [None, 0.5])
def test_feedback_alignment_sends_errors_through_fixed_weights(branch: float | None) -> None:
    """Backpropagation with V and v in place of the transposes of W and w, written out."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(P, D)), rng.normal(size=P)
    W0, w, v = rng.normal(size=(N, D)), rng.normal(size=N), rng.normal(size=N)
    W, V = rng.normal(size=(L - 1, N, N)), rng.normal(size=(L - 1, N, N))
    beta = 1.0 if branch is None else branch
    initial = {
        "W0": W0 / np.sqrt(D),
        "W": {(i + 1,): W[i] / np.sqrt(N) for i in range(L - 1)},
        "V": {(i + 1,): V[i] / np.sqrt(N) for i in range(L - 1)},
        "w": w,
        "v": v,
    }
    run = simulate_program(
        feedback_alignment(L, "tanh", branch=branch),
        width=N,
        steps=STEPS,
        seeds=1,
        values=NUMBERS,
        data={"x": x, "y": y},
        initial=initial,
    )
    expected = []
    for _ in range(STEPS + 1):
        h = [x @ W0.T / np.sqrt(D)]
        for i in range(L - 1):
            h.append((0 if branch is None else h[i]) + beta * np.tanh(h[i]) @ W[i].T / np.sqrt(N))
        expected.append(np.tanh(h[-1]) @ w / (GAMMA * N))
        error = (y - expected[-1])[:, None]
        g = [(1 - np.tanh(h[-1]) ** 2) * v]
        for i in reversed(range(L - 1)):
            back = beta * (1 - np.tanh(h[i]) ** 2) * (g[0] @ V[i] / np.sqrt(N))
            g.insert(0, (0 if branch is None else g[0]) + back)
        w = w + ETA * GAMMA * (error * np.tanh(h[-1])).sum(0)
        W0 = W0 + ETA * GAMMA * (error * g[0]).T @ x / np.sqrt(D)
        steps = [beta * (error * g[i + 1]).T @ np.tanh(h[i]) for i in range(L - 1)]
        W = W + ETA * GAMMA * np.array(steps) / np.sqrt(N)
    np.testing.assert_allclose(run["f"].mean, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("task", ["teacher", "mixture"])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_a_perceptron_descends_its_loss(task: str, loss: str) -> None:
    rng = np.random.default_rng(4)
    n, M = 5, 10
    Z, start = rng.normal(size=(M, n)) / np.sqrt(n), rng.normal(size=n)
    other, coin = rng.normal(size=n), rng.normal(size=M)  # teacher or mean; noise or side of the mixture
    if task == "teacher":
        X, labels = Z, np.tanh(Z @ other) + np.sqrt(0.3) * coin
        given = {"w_star": other, "eps": coin}
        program = perceptron(task, loss, teacher="tanh", noise=0.3)
    else:
        labels = np.sign(coin)
        X, given = Z + np.outer(labels, other) / n, {"m_0": other, "xi_0": coin}
        program = perceptron(task, loss)
    run = simulate_program(
        program,
        width=n,
        steps=STEPS,
        seeds=1,
        values={"eta": ETA, "kappa": M / n, "rho": 1.0},
        initial={"Z": Z, "w": start, **given},
    )

    def cost(w: Weights) -> float:
        h = X @ w["v"]
        each = (h - labels) ** 2 / 2 if loss == "squared" else np.log1p(np.exp(-h * labels))
        return float(each.sum())

    v = [start]
    for _ in range(STEPS):
        v.append(v[-1] - ETA * gradient(cost, {"v": v[-1]})["v"])
    expected = np.array(v) @ np.array(v).T / n
    np.testing.assert_allclose(run["C_v"].mean, expected, rtol=0, atol=1e-7)


# -- every builder, by the loss that its program states ------------------------------------------------------

SLOPE = {"dloss": lambda t, f: f}  # of the loss f^2/2
SIZES = SLOPE | {"phi": tanh, "cost": lambda h, y: (h - y) ** 2 / 2, "X": 3, "R": 1, "N": 3, "M": 3, "B": 3}
CHOSEN = {"eta": 0.02, "gamma0": GAMMA, "lambda": 0.1, "beta": 0.5, "s2": 0.3, "nu": 1.0, "sigma": 0.3}
RATIOS = {"alpha": 1.0, "alpha_B": 1.0, "kappa": 2.0, "rho": 1.0, "P": P}


def constants(name: str, program: Program) -> dict[str, Any]:
    """Return inputs, targets, widths and other given arrays of a program."""
    rng = np.random.default_rng(7)
    y: Array = rng.normal(size=(P, 2)) if name in ("mlp, options", "recurrent") else np.array([1.0, -1.0])
    known: dict[str, Any] = {
        "y": np.eye(3)[:P] if name == "cross-entropy" else y,
        "rho": np.array([0.5, 1.5]),
        **dict.fromkeys(("a", "sigma", "nu", "xi"), lambda at: 1.0),
    }
    found = {c: known[c] for c in program.constants if c in known}
    found |= {x.name: np.array([0.5, 1.0, 1.5]) for x in program.attributes}
    x = rng.normal(size=(P, 3, D))
    return found | {v.name: x if "convolution" in name else x[:, 0] for v in program.given}


ALIKE = ("mlp, linear", "list of widths", "convolution, symbolic", "isotropic", "isotropic, population")
ALIKE += ("structured", "perceptron, loss without a name", "depth, nonlinear")
"""Programs beside which the default suite simulates another one of the same kind."""


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.slow) if x in ALIKE else x for x in BUILDERS]
)
def test_every_program_follows_differences_of_its_own_loss(name: str) -> None:
    program = BUILDERS[name]()
    program = program.at_depth(2) if program.depth.has(SymbolicDepth) else program
    loss = Function("f")(t) ** 2 / 2 if name.startswith("depth") else program.loss
    given: dict[str, Any] = {"width": 3, "steps": 2, "seeds": 1, "values": SIZES | CHOSEN | RATIOS}
    given["data"] = constants(name, program)
    run = simulate_program(program, **given)
    by_loss = simulate_program(program, **given, loss=loss, parametrization=program.descent)
    moved = 0.0
    for key in run:
        x, y = run[key].mean, by_loss[key].mean
        # central differences are right to the third root of their step's rounding, squared
        assert np.abs(x - y).max() < 1e-7 * max(1.0, np.abs(x).max()), key
        moved = max(moved, np.abs(x[-1] - x[0]).max()) if x.ndim and x.shape[0] == 3 else moved
    assert moved > 1e-4  # it learns something
