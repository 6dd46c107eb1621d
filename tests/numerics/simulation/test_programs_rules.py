"""Training rules and fresh samples, against their recursions written by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sympy import Rational, Symbol, tanh

from derive.program import (
    Along,
    Definition,
    Field,
    GaussianMatrix,
    GaussianVector,
    GradientDescent,
    Momentum,
    Population,
    Program,
    TrainedVector,
    t,
)
from tests.derive.once import mlp

from .test_programs import EXACT, GAMMA, RATE, STEPS, VALUES, N, X, Y, draw, first, overlaps, simulate


def perceptron(rule, fresh=False, noise=False):
    """Return v = w_star - w with gradient X^T X v and label noise; the samples are a Gaussian matrix."""
    features, samples = Population("features"), Population("samples", ratio=Symbol("nu"))
    v, Delta, q = Field("v", features), Field("Delta", samples), Field("q", features)
    data = GaussianMatrix("X", samples, features, fresh=fresh)
    w, star = GaussianVector("w", features), GaussianVector("w_star", features)
    eps = GaussianVector("eps", samples, fresh=fresh)
    return Program(
        name="perceptron",
        rule=rule,
        fields=(v, Delta, q),
        definitions=(
            Definition(v(t), star.symbol - w.symbol),
            Definition(Delta(t), data @ v(t) + (eps.symbol if noise else 0)),
            Definition(q(t), data.T @ Delta(t)),
        ),
        matrices=(data,),
        vectors=(TrainedVector(w, Along(1, q(t)), rule), star, *((eps,) if noise else ())),
        notation={v(t): "C_v", Delta(t): "C_Delta"},
    )


def test_fresh_samples_and_fresh_noise():
    """Online descent: a batch of round(0.6 N) samples for each step, none left over at the end."""
    batch = round(0.6 * N)
    data, eps, w, star = draw(STEPS + 1, batch, N), draw(STEPS + 1, batch), draw(N), draw(N, seed=1)
    run = simulate(
        perceptron(GradientDescent(Rational(1, 20)), fresh=True, noise=True),
        initial={"X": data, "eps": eps, "w": w, "w_star": star},
        values={"nu": 0.6},
    )
    vs, errors = [], []
    for step in range(STEPS + 1):
        v = star - w
        error = data[step] @ v + eps[step]
        vs.append(v)
        errors.append(error)
        w = w + data[step].T @ error / 20
    np.testing.assert_allclose(run["C_v"].mean, overlaps(vs, vs), **EXACT)
    np.testing.assert_allclose(run["C_Delta"].mean, overlaps(errors, errors), **EXACT)


def recursion(rule, w, gradient):
    """Return w at every step, for each rule by the formula of its docstring, without noise."""
    path, q = [w], 0 * w
    for _ in range(STEPS):
        u = gradient(w)
        if isinstance(rule, GradientDescent):
            w = (1 - float(rule.decay)) * w + float(rule.rate) * u
        else:
            q = float(rule.momentum) * q + u
            w = (1 - float(rule.decay)) * w + float(rule.rate) * q
        path.append(w)
    return np.array(path)


def rules():
    tenth, third = Rational(1, 10), Rational(1, 3)
    return [
        GradientDescent(tenth, decay=third),
        Momentum(tenth, third),
        Momentum(tenth, third, decay=tenth),
    ]


@pytest.mark.parametrize("rule", rules(), ids=lambda x: type(x).__name__)
def test_each_rule_is_its_recursion(rule):
    data, w, star = draw(5, N), draw(N), draw(N, seed=1)
    initial = {"X": data, "w": w, "w_star": star}
    run = simulate(perceptron(rule), initial=initial, values={"nu": 5 / N})
    v = star - recursion(rule, w, lambda w: data.T @ (data @ (star - w)))
    np.testing.assert_allclose(run["C_v"].mean, overlaps(v, v), **EXACT)


def test_decay_of_matrices():
    """A step multiplies W0, W and w by 1 - eta lambda before it adds the update."""
    program, lam = mlp(1, tanh, weight_decay=Symbol("lam")), 0.4
    W0, w = first(), draw(N)
    run = simulate(program, initial={"W0": W0, "w": w}, values={**VALUES, "lam": lam})
    outputs = []
    for _ in range(STEPS + 1):
        h = X @ W0.T
        f = np.tanh(h) @ w / (GAMMA * N)
        g = w * (1 - np.tanh(h) ** 2)
        outputs.append(f)
        move = RATE * GAMMA * np.einsum("p,pi,pj->ij", Y - f, g, X) / 5
        w = (1 - RATE * lam) * w + RATE * GAMMA * (Y - f) @ np.tanh(h)
        W0 = (1 - RATE * lam) * W0 + move
    np.testing.assert_allclose(run["f"].mean, outputs, **EXACT)


def test_weights_that_enter_an_update_are_those_before_the_step():
    """Updates are simultaneous, even when one is written with a parameter itself."""
    n, rule = Population("units"), GradientDescent(Rational(1, 2))
    v, a, b = Field("v", n), GaussianVector("a", n), GaussianVector("b", n)
    program = Program(
        name="swap",
        rule=rule,
        fields=(v,),
        definitions=(Definition(v(t), a.symbol - 2 * b.symbol),),
        vectors=(TrainedVector(a, Along(1, b.symbol), rule), TrainedVector(b, Along(1, a.symbol), rule)),
        notation={v(t): "C"},
    )
    x, y = draw(N), draw(N, seed=1)
    run = simulate(program, initial={"a": x, "b": y}, values={}, steps=1)
    after = (x + y / 2) - 2 * (y + x / 2)
    np.testing.assert_allclose(run["C"].mean[1, 1], np.mean(after**2), **EXACT)
