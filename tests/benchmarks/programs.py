"""Twelve programs of the public language with their numbers and arrays, for the benchmark of whole solutions.

Every size that makes a program large or small is an argument, so that an ordinary test run takes small ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sympy import Expr, Function, S, Sum, Symbol, erf, exp, sqrt, tanh

from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    IndexRange,
    L,
    Mean,
    Network,
    Population,
    Program,
    ell,
    eta,
    gamma0,
    mlp,
    mu,
    networks,
    t,
)
from tests.numerics.networks import random_features as features
from tests.numerics.networks.case import Case

layer, pixels, units = Population("layer"), Population("input", given=True), Population("units")
x, h, q = GivenVector("x", pixels, "K_x"), Field("h", layer, layered=True), Field("q", layer, layered=True)
f, y = Function("f"), Function("y")
W0, w = GaussianMatrix("W0", layer.at(1), pixels), GaussianVector("w", layer.at(L))
W = GaussianMatrix("W", layer.at(ell + 1), layer.at(ell), index=IndexRange(ell, S.One, L - 1))
c = Symbol("c", integer=True, positive=True)
square, descent = (y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta)


def gram(*shape: int) -> Any:
    """Return inner products of random vectors over their dimension, one vector an entry of ``shape``."""
    count = int(np.prod(shape))
    vectors = np.random.default_rng(count).standard_normal((count, 2 * count))
    return (vectors @ vectors.T / (2 * count)).reshape(*shape, *shape)


def signs(samples: int) -> Any:
    """Return the targets +1 and -1 in turn."""
    return np.array([1.0, -1.0] * samples)[:samples]


def _perceptron(activation: str, samples: int, steps: int, depth: int = 3) -> Case:
    return _on_samples(mlp(depth, activation), samples, steps)


def _on_samples(program: Program, samples: int, steps: int, rate: float = 0.1) -> Case:
    """Return the case of a program on samples with one output, at gamma0 = 1."""
    arrays = {"K_x": gram(samples), "y": signs(samples)}
    return Case(program, {"eta": rate, "gamma0": 1.0}, arrays, steps)


def residual(samples: int, steps: int) -> Case:
    """Return the case of four layers of a residual stream with tanh branches."""
    stream = Population("stream", shared=True)
    h, beta = Field("h", stream, layered=True), Symbol("beta")
    A, v = GaussianMatrix("A", stream.at(1), pixels), GaussianVector("w", stream.at(L))
    B = GaussianMatrix("B", stream.at(ell + 1), stream.at(ell), index=IndexRange(ell, S.One, L - 1))
    forward = {
        h(1, mu, t): A @ x(mu),
        h(ell + 1, mu, t): h(ell, mu, t) + beta * (B(ell) @ tanh(h(ell, mu, t))),
        f(mu, t): Mean(v.symbol * tanh(h(L, mu, t))) / gamma0,
    }
    net = Network("residual", (h,), forward, weights=(A, B, v), given=(x,))
    case = _on_samples(net.train(square, descent).at_depth(4), samples, steps, 0.05)
    return Case(case.program, {**case.numbers, "beta": 0.5}, case.arrays, steps)


def convolution(samples: int, steps: int) -> Case:
    """Return the case of two layers whose filters see three of four positions on a ring."""
    program = networks.convolution(2, "tanh", positions=4, receptive=1)
    arrays = {"K_x": gram(samples, 4), "y": signs(samples)}
    return Case(program, {"eta": 0.02, "gamma0": 1.0}, arrays, steps)


def two_towers(samples: int, steps: int) -> Case:
    """Return the case of two branches of one hidden layer that multiply."""
    V, v, other = GaussianMatrix("V", layer.at(1), pixels), GaussianVector("w", layer.at(1)), q(1, mu, t)
    forward = {
        h(1, mu, t): W0 @ x(mu),
        other: V @ x(mu),
        f(mu, t): Mean(v.symbol * h(1, mu, t) / (1 + exp(-other))) / gamma0,
    }
    net = Network("two towers", (h, q), forward, (W0, V, v), given=(x,), depth=S.One)
    return _on_samples(net.train(square, descent), samples, steps, 0.2)


def gated(samples: int, steps: int) -> Case:
    """Return the case of a linear network of two layers whose top layer gates itself by a frozen matrix."""
    V = GaussianMatrix("V", layer.at(L), layer.at(L))
    forward = {
        h(1, mu, t): W0 @ x(mu),
        h(ell + 1, mu, t): W(ell) @ h(ell, mu, t),
        q(L, mu, t): V @ h(L, mu, t),
        f(mu, t): Mean(w.symbol * (1 + tanh(q(L, mu, t))) * h(L, mu, t)) / gamma0,
    }
    net = Network("gated", (h, q), forward, (W0, W, w), (V,), (x,))
    return _on_samples(net.train(square, descent).at_depth(2), samples, steps)


def two_experts(samples: int, steps: int) -> Case:
    """Return the case of a mixture of two experts of one hidden layer, weighted by a third network."""
    one, two, gate = (Field(n, units) for n in ("one", "two", "gate"))
    A, B, C = (GaussianMatrix(n, units, pixels) for n in "ABC")
    a, b, d = (GaussianVector(n, units) for n in "abd")
    logit, share, first, second = (Function(n) for n in ("logit", "share", "first", "second"))
    forward = {
        one(mu, t): A @ x(mu),
        two(mu, t): B @ x(mu),
        gate(mu, t): C @ x(mu),
        first(mu, t): Mean(a.symbol * tanh(one(mu, t))) / gamma0,
        second(mu, t): Mean(b.symbol * tanh(two(mu, t))) / gamma0,
        logit(mu, t): Mean(d.symbol * tanh(gate(mu, t))) / gamma0,
        share(mu, t): 1 / (1 + exp(-logit(mu, t))),
        f(mu, t): share(mu, t) * first(mu, t) + (1 - share(mu, t)) * second(mu, t),
    }
    net = Network("two experts", (one, two, gate), forward, (A, B, C, a, b, d), given=(x,))
    return _on_samples(net.train(square, descent), samples, steps, 0.2)


def normalised(samples: int, steps: int) -> Case:
    """Return the case of two layers, each divided by the root of its mean square."""
    n, A = Field("n", layer, layered=True), W0
    forward = {
        h(1, mu, t): A @ x(mu),
        n(ell, mu, t): h(ell, mu, t) / sqrt(Mean(h(ell, mu, t) ** 2)),
        h(ell + 1, mu, t): W(ell) @ tanh(n(ell, mu, t)),
        f(mu, t): Mean(w.symbol * tanh(n(L, mu, t))) / gamma0,
    }
    layers = IndexRange(ell, S.One, L)
    net = Network("normalised", (h, n), forward, (A, W, w), given=(x,), ranges=(layers,))
    return _on_samples(net.train(square, descent).at_depth(2), samples, steps)


def autoencoder(samples: int, steps: int, outputs: int = 20) -> Case:
    """Return the case of one hidden layer whose outputs reconstruct the dimensions of the inputs."""
    code, channels = Field("code", units), IndexRange(c, S.One, S(outputs))
    E, D = GaussianMatrix("E", units, pixels), GaussianVector("D", units, indices=(channels,))
    forward = {code(mu, t): E @ x(mu), f(mu, c, t): Mean(D(c) * erf(code(mu, t))) / gamma0}
    net = Network("autoencoder", (code,), forward, (E, D), given=(x,), ranges=(channels,))
    program = net.train((y(mu, c) - f(mu, c, t)) ** 2 / 2, descent)
    vectors = np.random.default_rng(0).standard_normal((samples, outputs))
    arrays = {"K_x": vectors @ vectors.T / outputs, "y": vectors}
    return Case(program, {"eta": 0.1, "gamma0": 1.0}, arrays, steps)


def attention(samples: int, steps: int) -> Case:
    """Return the case of one block of attention on two positions, with logits ``k.q/N``."""
    p, r, j = (Symbol(n, integer=True, positive=True) for n in ("p", "r", "j"))
    places = (IndexRange(p, 1, 2), IndexRange(r, 1, 2))
    e, key, query, value, mixed = (Field(n, units) for n in ("e", "key", "query", "value", "mixed"))
    E, v = GaussianMatrix("E", units, pixels), GaussianVector("w", units)
    K, Q, V = (GaussianMatrix(n, units, units) for n in "KQV")
    score, share = Function("score"), Function("A")
    total = Sum(exp(score(mu, p, j, t)), (j, 1, 2))
    forward: dict[Expr, Expr] = {
        e(mu, p, t): E @ x(mu, p),
        key(mu, p, t): K @ e(mu, p, t),
        query(mu, p, t): Q @ e(mu, p, t),
        value(mu, p, t): V @ e(mu, p, t),
        score(mu, p, r, t): Mean(query(mu, p, t) * key(mu, r, t)),
        share(mu, p, r, t): exp(score(mu, p, r, t)) / total,
        mixed(mu, p, t): Sum(share(mu, p, r, t) * value(mu, r, t), (r, 1, 2)),
        f(mu, t): Sum(Mean(v.symbol * tanh(mixed(mu, p, t))), (p, 1, 2)) / gamma0,
    }
    fields = (e, key, query, value, mixed)
    net = Network("attention", fields, forward, (E, K, Q, V, v), given=(x,), ranges=places)
    arrays = {"K_x": gram(samples, 2), "y": signs(samples)}
    return Case(net.train(square, descent), {"eta": 0.1, "gamma0": 1.0}, arrays, steps)


CASES: dict[str, Callable[[bool], Case]] = {
    "MLP, tanh": lambda large: _perceptron("tanh", *(5, 30) if large else (2, 2)),
    "MLP, relu": lambda large: _perceptron("relu", *(5, 30) if large else (2, 2)),
    "MLP, linear": lambda large: _perceptron("linear", *(5, 30) if large else (2, 2)),
    "residual": lambda large: residual(*(3, 20) if large else (1, 2)),
    "convolution": lambda large: convolution(*(2, 10) if large else (1, 1)),
    "two towers": lambda large: two_towers(*(3, 20) if large else (1, 2)),
    "gated": lambda large: gated(*(2, 20) if large else (1, 2)),
    "two experts": lambda large: two_experts(*(3, 20) if large else (1, 2)),
    "RMS-normalised": lambda large: normalised(*(3, 20) if large else (1, 2)),
    "autoencoder": lambda large: autoencoder(*(3, 20, 20) if large else (1, 1, 2)),
    "attention": lambda large: attention(*(2, 12) if large else (1, 1)),
    "random features": lambda large: features.random_features(*(300, 40) if large else (4, 2)),
}
"""Programs at the sizes of the benchmark, or at small ones."""
