"""Programs as a user writes them, each with its numbers and arrays, at small sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sympy import Function, S, Symbol, exp, log, sqrt, tanh

from derive.program import (
    Attribute,
    Definition,
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    IndexRange,
    L,
    Mean,
    Momentum,
    Network,
    Population,
    Program,
    ell,
    eta,
    gamma0,
    mu,
    t,
)
from tests.derive.programs import damped_stream, two_layers

K = np.array([[1.0, 0.3], [0.3, 0.8]])
Y = np.array([1.0, -0.6])
f, y = Function("f"), Function("y")
descent = GradientDescent(eta)


@dataclass(frozen=True)
class Case:
    """Program with its arguments; ``output`` is the name of its output, if it has one."""

    make: Callable[[], Program]
    numbers: Mapping[str, float] = field(default_factory=lambda: {"eta": 0.2, "gamma0": 1.0})
    arrays: Mapping[str, Any] = field(default_factory=lambda: {"K_x": K, "y": Y})
    output: str = "f"
    error: str = "Delta"


def cubic() -> Program:
    """Return task 2 of the page of ten tasks, which has no layers."""
    layer, pixels = Population("layer"), Population("input", given=True)
    x, h = GivenVector("x", pixels, "K_x"), Field("h", layer)
    W, w = GaussianMatrix("W", layer, pixels), GaussianVector("w", layer)
    forward = {h(mu, t): W @ x(mu), f(mu, t): Mean(w.symbol * (h(mu, t) + h(mu, t) ** 3 / 6)) / gamma0}
    net = Network("cubic units", (h,), forward, weights=(W, w), given=(x,))
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, descent)


def renamed(phi: Callable[[Any], Any] = tanh) -> Program:
    """Return a perceptron of two layers with a user's names throughout."""
    units, inputs = Population("neurons"), Population("pixels", given=True)
    i, M = Symbol("i", integer=True, positive=True), Symbol("M", integer=True, positive=True)
    image, a = GivenVector("image", inputs, "overlap"), Field("a", units, layered=True)
    out, label = Function("out"), Function("label")
    first = GaussianMatrix("J", units.at(1), inputs)
    hidden = GaussianMatrix("V", units.at(ell + 1), units.at(ell), index=IndexRange(ell, S.One, L - 1))
    read = GaussianVector("v", units.at(L))
    forward = {
        a(1, i, t): first @ image(i),
        a(ell + 1, i, t): hidden(ell) @ phi(a(ell, i, t)),
        out(i, t): Mean(read.symbol * phi(a(L, i, t))) / gamma0,
    }
    net = Network(
        "renamed",
        (a,),
        forward,
        weights=(first, hidden, read),
        given=(image,),
        ranges=(IndexRange(i, S.One, M),),
    )
    return net.train((label(i) - out(i, t)) ** 2 / 2, descent, error="miss").at_depth(2)


def renamed_linear() -> Program:
    """Return the same without a nonlinearity."""
    return renamed(lambda x: x)


def misleading() -> Program:
    """Return a program with names of other quantities: a query h, an output G, a field f."""
    units, inputs = Population("units"), Population("input", given=True)
    x = GivenVector("x", inputs, "K_x")
    hidden, key = Field("f", units), Field("Delta", units)
    W, M, w = (
        GaussianMatrix("W", units, inputs),
        GaussianMatrix("M", units, units),
        GaussianVector("w", units),
    )
    out = Function("G")
    forward = {
        hidden(mu, t): W @ x(mu),
        key(mu, t): M @ tanh(hidden(mu, t)),
        out(mu, t): Mean(w.symbol * tanh(key(mu, t))) / gamma0,
    }
    net = Network("misleading names", (hidden, key), forward, weights=(W, M, w), given=(x,))
    return net.train((y(mu) - out(mu, t)) ** 2 / 2, descent, error="h")


def in_sequence(phi: Callable[[Any], Any] = tanh) -> Program:
    """Return one matrix twice in sequence: a = U x, b = W phi(a), c = W phi(b)."""
    units, inputs = Population("units"), Population("input", given=True)
    x = GivenVector("x", inputs, "K_x")
    a, b, c = (Field(name, units) for name in "abc")
    U, W, w = (
        GaussianMatrix("U", units, inputs),
        GaussianMatrix("W", units, units),
        GaussianVector("w", units),
    )
    forward = {
        a(mu, t): U @ x(mu),
        b(mu, t): W @ phi(a(mu, t)),
        c(mu, t): W @ phi(b(mu, t)),
        f(mu, t): Mean(w.symbol * phi(c(mu, t))) / gamma0,
    }
    net = Network("one matrix in sequence", (a, b, c), forward, weights=(U, W, w), given=(x,))
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, descent)


def linear_in_sequence() -> Program:
    """Return the same without a nonlinearity."""
    return in_sequence(lambda x: x)


def two_populations() -> Program:
    """Return units of two kinds, each with input from the data and from the other kind."""
    wide, narrow = Population("wide", 2), Population("narrow")
    inputs = Population("input", given=True)
    x = GivenVector("x", inputs, "K_x")
    a, b, c = Field("a", wide), Field("b", narrow), Field("c", narrow)
    A, B, M = (
        GaussianMatrix("A", wide, inputs),
        GaussianMatrix("B", narrow, inputs),
        GaussianMatrix("M", narrow, wide),
    )
    w = GaussianVector("w", narrow)
    forward = {
        a(mu, t): A @ x(mu),
        b(mu, t): B @ x(mu),
        c(mu, t): tanh(b(mu, t)) + M @ tanh(a(mu, t)),
        f(mu, t): Mean(w.symbol * tanh(c(mu, t))) / gamma0,
    }
    net = Network("two populations", (a, b, c), forward, weights=(A, B, M, w), given=(x,))
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, descent)


def normalised() -> Program:
    """Return a layer divided by the root of its mean square, a number with a separate name."""
    units, inputs = Population("units"), Population("input", given=True)
    x, h, m = GivenVector("x", inputs, "K_x"), Field("h", units), Function("m")
    W, w = GaussianMatrix("W", units, inputs), GaussianVector("w", units)
    forward = {
        h(mu, t): W @ x(mu),
        m(mu, t): Mean(h(mu, t) ** 2),
        f(mu, t): Mean(w.symbol * tanh(h(mu, t) / sqrt(m(mu, t)))) / gamma0,
    }
    net = Network("normalised", (h,), forward, weights=(W, w), given=(x,))
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, descent)


def zero_readout() -> Program:
    """Return a readout that starts at zero."""
    units, inputs = Population("units"), Population("input", given=True)
    x, h = GivenVector("x", inputs, "K_x"), Field("h", units)
    W, w = GaussianMatrix("W", units, inputs), GaussianVector("w", units, variance=0)
    forward = {h(mu, t): W @ x(mu), f(mu, t): Mean(w.symbol * tanh(h(mu, t))) / gamma0}
    net = Network("zero readout", (h,), forward, weights=(W, w), given=(x,))
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, descent)


def weighted_in_time() -> Program:
    """Return samples whose weight in the loss depends on time."""
    units, inputs = Population("units"), Population("input", given=True)
    x, h, rho = GivenVector("x", inputs, "K_x"), Field("h", units), Function("rho")
    W, w = GaussianMatrix("W", units, inputs), GaussianVector("w", units)
    forward = {h(mu, t): W @ x(mu), f(mu, t): Mean(w.symbol * tanh(h(mu, t))) / gamma0}
    net = Network("weights in time", (h,), forward, weights=(W, w), given=(x,))
    return net.train(rho(mu, t) * (y(mu) - f(mu, t)) ** 2 / 2, descent)


def stream() -> Program:
    """Return a program with one new sample at each step."""
    units, inputs = Population("units"), Population("input", given=True)
    x, h = GivenVector("x", inputs, "K_x"), Field("h", units)
    W, w = GaussianMatrix("W", units, inputs), GaussianVector("w", units)
    forward = {h(t): W @ x(t), f(t): Mean(w.symbol * tanh(h(t))) / gamma0}
    net = Network("stream", (h,), forward, weights=(W, w), given=(x,))
    return net.train((y(t) - f(t)) ** 2 / 2, descent)


def several_outputs() -> Program:
    """Return two outputs of one layer, with a loss of both."""
    units, inputs = Population("units"), Population("input", given=True)
    x, h, p, q = GivenVector("x", inputs, "K_x"), Field("h", units), Function("p"), Function("q")
    W, v, w = GaussianMatrix("W", units, inputs), GaussianVector("v", units), GaussianVector("w", units)
    forward = {
        h(mu, t): W @ x(mu),
        p(mu, t): Mean(v.symbol * tanh(h(mu, t))) / gamma0,
        q(mu, t): Mean(w.symbol * tanh(h(mu, t))) / gamma0,
    }
    net = Network("two outputs", (h,), forward, weights=(W, v, w), given=(x,))
    return net.train((y(mu) - p(mu, t)) ** 2 / 2 + (y(mu) - p(mu, t) - q(mu, t)) ** 2 / 2, descent)


def logistic() -> Program:
    """Return another loss, with an output and labels under other names, and momentum."""
    units, inputs = Population("units"), Population("input", given=True)
    x, h, score = GivenVector("x", inputs, "K_x"), Field("h", units), Function("score")
    W, w = GaussianMatrix("W", units, inputs), GaussianVector("w", units)
    forward = {h(mu, t): W @ x(mu), score(mu, t): Mean(w.symbol * tanh(h(mu, t))) / gamma0}
    net = Network("logistic", (h,), forward, weights=(W, w), given=(x,))
    label = Function("label")
    return net.train(log(1 + exp(-label(mu) * score(mu, t))), Momentum(eta, S.Half))


def modes() -> Program:
    """Return units with attributes: an eigenvalue for each."""
    features, units = Population("features"), Population("units")
    k = Symbol("k", integer=True)
    lam = Attribute("lam", features)
    v, h, q = Field("v", features), Field("h", units), Field("q", features)
    W, start = GaussianMatrix("W", units, features), GaussianVector("v_0", features)
    return Program(
        "modes with attributes",
        descent,
        fields=(v, h, q),
        definitions=(
            Definition(v(t), lam(k) * start.symbol),
            Definition(h(t), W @ v(t)),
            Definition(q(t), W.T @ tanh(h(t))),
        ),
        matrices=(W,),
        vectors=(start,),
        attributes=(lam,),
        notation={v(t): "C_v"},
    )


def by_layer() -> Program:
    """Return a damped stream of two layers."""
    return damped_stream().at_depth(2)


CASES: dict[str, Case] = {
    "cubic": Case(cubic),
    "renamed": Case(renamed, arrays={"overlap": K, "label": Y}, output="out", error="miss"),
    "renamed linear": Case(renamed_linear, arrays={"overlap": K, "label": Y}, output="out", error="miss"),
    "misleading": Case(misleading, output="G", error="h"),
    "in sequence": Case(in_sequence),
    "linear in sequence": Case(linear_in_sequence),
    "two populations": Case(two_populations),
    "normalised": Case(normalised),
    "zero readout": Case(zero_readout),
    "weighted in time": Case(
        weighted_in_time, arrays={"K_x": K, "y": Y, "rho": np.array([[1.0, 0.5, 0.2], [0.3, 1.0, 0.7]])}
    ),
    "stream": Case(
        stream,
        arrays={
            "K_x": np.array([[1.0, 0.2, 0.1], [0.2, 0.9, 0.3], [0.1, 0.3, 1.1]]),
            "y": np.array([1.0, -0.6, 0.4]),
        },
    ),
    "several outputs": Case(several_outputs, output="", error=""),
    "logistic": Case(logistic, arrays={"K_x": K, "label": np.array([1.0, -1.0])}, output="score"),
    "by layer": Case(by_layer, numbers={"eta": 0.2, "gamma0": 1.0, "rho": 0.7}),
    "feedback": Case(lambda: two_layers(False)),
    "modes": Case(modes, numbers={}, arrays={"lam": np.array([1.0, 0.5])}, output="", error=""),
}
