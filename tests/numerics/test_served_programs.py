"""Programs of a user's own against networks written here: `solve` takes each of them by a fast method.

Every case has a program in names of a user's own, and networks in NumPy with their gradient by hand.
Networks of two widths are extrapolated in 1/N; distances are in joint standard errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sympy import Expr, Function, S, Sum, Symbol, sqrt, tanh

import numerics
from derive.program import (
    Attribute,
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    IndexRange,
    Mean,
    Network,
    Population,
    Program,
    eta,
    gamma0,
    structured,
    t,
)
from numerics.experiment.schema import Solver
from tests.chance import excess, in_errors

Array = NDArray[np.float64]
Train = Callable[[int, int, np.random.Generator], Array]
"""Outputs at all steps, ``(seeds, steps + 1, ...)``, of networks of a width, from a number of seeds."""

STEPS, RATE, GAMMA = 3, 0.2, 1.2
RNG = np.random.default_rng(5)
X, Y = RNG.standard_normal((2, 5)), np.array([1.0, -0.6])
GAINS = np.array([0.4, 1.0, 1.6])

i, M, k = (Symbol(n, integer=True, positive=True) for n in ("i", "M", "k"))
cells, pixels = Population("cells"), Population("pixels", given=True)
z, gain = GivenVector("z", pixels, "overlap"), Attribute("gain", cells)
out, label = Function("out"), Function("label")
SAMPLES = IndexRange(i, S.One, M)


@dataclass(frozen=True)
class Case:
    """A program, its arrays, its networks, and the method that ``solve`` chooses."""

    make: Callable[[], Program]
    train: Train
    arrays: Mapping[str, Any] = field(default_factory=lambda: {"overlap": X @ X.T / 5, "label": Y})
    method: str = "paths"
    numbers: Mapping[str, float] = field(default_factory=lambda: {"eta": RATE, "gamma0": GAMMA})
    variable: str = "f"
    """The variable of a result that networks give."""
    widths: tuple[int, int] = (36, 72)
    seeds: int = 300

    @property
    def given(self) -> dict[str, Any]:
        """The numbers, arrays and times that a command takes beside the program."""
        return {"numbers": self.numbers, "arrays": dict(self.arrays), "times": range(STEPS + 1)}


def normal(seeds: int, rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal((seeds, *shape))


# -- units with attributes -----------------------------------------------------------------------------------


def one_layer(phi: Callable[[Any], Any], rule: Any = None) -> Program:
    """Return ``out = <b phi(a)>/gamma0`` with ``a = A z``; units may have gains."""
    attributes = (gain,) if phi(k).has(gain(k)) else ()
    a, A, b = Field("a", cells), GaussianMatrix("A", cells, pixels), GaussianVector("b", cells)
    forward = {a(i, t): A @ z(i), out(i, t): Mean(b.symbol * phi(a(i, t))) / gamma0}
    net = Network("one", (a,), forward, (A, b), given=(z,), ranges=(SAMPLES,), attributes=attributes)
    return net.train((label(i) - out(i, t)) ** 2 / 2, rule or GradientDescent(eta))


def two_layers(phi: Callable[[Any], Any]) -> Program:
    """Return ``a = A z``, ``c = B phi(a)``, ``out = <b phi(c)>/gamma0``; units of both layers have gains."""
    a, c = Field("a", cells), Field("c", cells)
    A, B = GaussianMatrix("A", cells, pixels), GaussianMatrix("B", cells, cells)
    b = GaussianVector("b", cells)
    forward = {
        a(i, t): A @ z(i),
        c(i, t): B @ phi(a(i, t)),
        out(i, t): Mean(b.symbol * phi(c(i, t))) / gamma0,
    }
    net = Network("two", (a, c), forward, (A, B, b), given=(z,), ranges=(SAMPLES,), attributes=(gain,))
    return net.train((label(i) - out(i, t)) ** 2 / 2, GradientDescent(eta))


def train_one(linear: bool) -> Train:
    def train(width: int, seeds: int, rng: np.random.Generator) -> Array:
        gains = np.repeat(GAINS, width // len(GAINS))
        A, b = normal(seeds, rng, width, 5) / np.sqrt(5), normal(seeds, rng, width)
        found = []
        for _ in range(STEPS + 1):
            pre = gains * np.einsum("snd,pd->spn", A, X)
            phi = pre if linear else np.tanh(pre)
            slope = gains * (1.0 if linear else 1 - phi**2)
            found.append(np.einsum("sn,spn->sp", b, phi) / (GAMMA * width))
            error = RATE * GAMMA * (Y - found[-1])
            g = slope * b[:, None]
            b = b + np.einsum("sp,spn->sn", error, phi)
            A = A + np.einsum("sp,spn,pd->snd", error, g, X) / 5
        return np.stack(found, axis=1)

    return train


def train_two(linear: bool) -> Train:
    def train(width: int, seeds: int, rng: np.random.Generator) -> Array:
        gains = np.tile(GAINS, width // len(GAINS))
        A, B = normal(seeds, rng, width, 5) / np.sqrt(5), normal(seeds, rng, width, width) / np.sqrt(width)
        b, found = normal(seeds, rng, width), []

        def unit(pre: Array) -> tuple[Array, Array]:
            phi = gains * pre if linear else np.tanh(gains * pre)
            return phi, gains * (np.ones_like(pre) if linear else 1 - phi**2)

        for _ in range(STEPS + 1):
            low, low_slope = unit(X @ A.swapaxes(1, 2))
            top, top_slope = unit(low @ B.swapaxes(1, 2))
            found.append(np.einsum("sn,spn->sp", b, top) / (GAMMA * width))
            error = RATE * GAMMA * (Y - found[-1])
            g = top_slope * b[:, None]
            back = low_slope * (g @ B)
            weighted = error[..., None] * g
            b = b + np.einsum("sp,spn->sn", error, top)
            B = B + weighted.swapaxes(1, 2) @ low / width
            A = A + (error[..., None] * back).swapaxes(1, 2) @ X / 5
        return np.stack(found, axis=1)

    return train


# -- one matrix used several times within a step -------------------------------------------------------------

LETTERS = RNG.standard_normal((2, 3, 5))
POSITIONS = {"overlap": np.einsum("apd,bqd->apbq", LETTERS, LETTERS) / 5, "label": Y}
p, q, r, n = (Symbol(name, integer=True) for name in "pqrn")
PLACES = IndexRange(p, S.One, S(3))


def trained(name: str, fields: tuple[Field, ...], forward: Any, weights: Any, *ranges: IndexRange) -> Program:
    """Return a network with the square loss, trained by plain descent."""
    net = Network(name, fields, forward, weights, given=(z,), ranges=(*ranges, SAMPLES))
    return net.train((label(i) - out(i, t)) ** 2 / 2, GradientDescent(eta))


def recurrent(phi: Callable[[Any], Any]) -> Program:
    """Return ``state(n + 1) = R phi(state(n)) + V z(n + 1)``, read after three letters."""
    state, R = Field("state", cells, ordered=True), GaussianMatrix("R", cells, cells)
    V, o = GaussianMatrix("V", cells, pixels), GaussianVector("o", cells)
    forward = {
        state(1, i, t): V @ z(i, 1),
        state(n + 1, i, t): R @ phi(state(n, i, t)) + V @ z(i, n + 1),
        out(i, t): Mean(o.symbol * state(3, i, t)) / gamma0,
    }
    return trained("recurrent", (state,), forward, (R, V, o), IndexRange(n, S.One, S(2)))


def train_recurrent(linear: bool) -> Train:
    def train(width: int, seeds: int, rng: np.random.Generator) -> Array:
        V, R = normal(seeds, rng, width, 5) / np.sqrt(5), normal(seeds, rng, width, width) / np.sqrt(width)
        o, found = normal(seeds, rng, width), []
        for _ in range(STEPS + 1):
            states = [LETTERS[:, 0] @ V.swapaxes(1, 2)]
            for k in (1, 2):
                phi = states[-1] if linear else np.tanh(states[-1])
                states.append(phi @ R.swapaxes(1, 2) + LETTERS[:, k] @ V.swapaxes(1, 2))
            found.append(np.einsum("sn,spn->sp", o, states[2]) / (GAMMA * width))
            error = (RATE * GAMMA * (Y - found[-1]))[..., None]
            g = [np.broadcast_to(o[:, None], states[2].shape)]
            for k in (1, 0):
                slope = 1.0 if linear else 1 - np.tanh(states[k]) ** 2
                g.insert(0, slope * (g[0] @ R))
            low = [x if linear else np.tanh(x) for x in states]
            o = o + (error * states[2]).sum(axis=1)
            R = R + sum((error * g[k + 1]).swapaxes(1, 2) @ low[k] for k in range(2)) / width
            V = V + sum((error * g[k]).swapaxes(1, 2) @ LETTERS[:, k] for k in range(3)) / 5
        return np.stack(found, axis=1)

    return train


def there_and_back() -> Program:
    """Return one matrix and its transpose: ``a = A z``, ``b = R tanh(a)``, ``c = R^T tanh(b)``."""
    a, b, c = (Field(name, cells) for name in ("a", "b", "c"))
    A, R = GaussianMatrix("A", cells, pixels), GaussianMatrix("R", cells, cells)
    o = GaussianVector("o", cells)
    forward = {
        a(i, t): A @ z(i),
        b(i, t): R @ tanh(a(i, t)),
        c(i, t): R.T @ tanh(b(i, t)),
        out(i, t): Mean(o.symbol * tanh(c(i, t))) / gamma0,
    }
    return trained("there and back", (a, b, c), forward, (A, R, o))


def train_there_and_back(width: int, seeds: int, rng: np.random.Generator) -> Array:
    A, R = normal(seeds, rng, width, 5) / np.sqrt(5), normal(seeds, rng, width, width) / np.sqrt(width)
    o, found = normal(seeds, rng, width), []
    for _ in range(STEPS + 1):
        low = np.tanh(X @ A.swapaxes(1, 2))
        middle = np.tanh(low @ R.swapaxes(1, 2))
        top = np.tanh(middle @ R)
        found.append(np.einsum("sn,spn->sp", o, top) / (GAMMA * width))
        error = (RATE * GAMMA * (Y - found[-1]))[..., None]
        g_top = (1 - top**2) * o[:, None]
        g_middle = (1 - middle**2) * (g_top @ R.swapaxes(1, 2))
        g_low = (1 - low**2) * (g_middle @ R)
        o = o + (error * top).sum(axis=1)
        R = R + ((error * g_middle).swapaxes(1, 2) @ low + (error * middle).swapaxes(1, 2) @ g_top) / width
        A = A + (error * g_low).swapaxes(1, 2) @ X / 5
    return np.stack(found, axis=1)


# -- members of a family of matrices -------------------------------------------------------------------------

SHARES = np.array([0.5, 1.5])
OF_EXPERTS = {"overlap": X @ X.T / 5, "label": Y, "share": SHARES}


def mixture(phi: Callable[[Expr], Expr] = tanh) -> Program:
    """Return two experts ``h(e) = B(e) phi(A z)`` with output ``sum_e share(e) phi(h(e))``."""
    a, h, c = (Field(name, cells) for name in ("a", "h", "c"))
    experts = IndexRange(p, S.One, S(2))
    A, B = GaussianMatrix("A", cells, pixels), GaussianMatrix("B", cells, cells, others=(experts,))
    o, share = GaussianVector("o", cells), Function("share")
    forward = {
        a(i, t): A @ z(i),
        h(i, p, t): B(p) @ phi(a(i, t)),
        c(i, t): Sum(share(p) * phi(h(i, p, t)), (p, 1, 2)),
        out(i, t): Mean(o.symbol * c(i, t)) / gamma0,
    }
    return trained("mixture", (a, h, c), forward, (A, B, o), experts)


def train_mixture(width: int, seeds: int, rng: np.random.Generator) -> Array:
    A, B = normal(seeds, rng, width, 5) / np.sqrt(5), normal(seeds, rng, 2, width, width) / np.sqrt(width)
    o, found = normal(seeds, rng, width), []
    for _ in range(STEPS + 1):
        low = np.tanh(X @ A.swapaxes(1, 2))
        top = np.tanh(np.einsum("senm,sam->sean", B, low))
        read = np.einsum("e,sean->san", SHARES, top)
        found.append(np.einsum("sn,san->sa", o, read) / (GAMMA * width))
        error = (RATE * GAMMA * (Y - found[-1]))[..., None]
        g = SHARES[:, None, None] * (1 - top**2) * o[:, None, None]
        back = (1 - low**2) * np.einsum("senm,sean->sam", B, g)
        o = o + (error * read).sum(axis=1)
        B = B + np.einsum("sean,sam->senm", error[:, None] * g, low) / width
        A = A + (error * back).swapaxes(1, 2) @ X / 5
    return np.stack(found, axis=1)


# -- positions: convolutions, sums over earlier positions ----------------------------------------------------


def filters() -> Program:
    """Return ``a(p) = sum_q A(q) z(p + q)`` on a ring of three, ``out = sum_p <o tanh(a(p))>/gamma0``."""
    a, offsets = Field("a", cells), IndexRange(q, -S.One, S.One)
    A, o = GaussianMatrix("A", cells, pixels, others=(offsets,)), GaussianVector("o", cells)
    forward = {
        a(i, p, t): Sum(A(q) @ z(i, p + q), (q, -1, 1)),
        out(i, t): Sum(Mean(o.symbol * tanh(a(i, p, t))), (p, 1, 3)) / gamma0,
    }
    return trained("filters", (a,), forward, (A, o), PLACES)


def train_filters(width: int, seeds: int, rng: np.random.Generator) -> Array:
    shifted = np.stack([np.roll(LETTERS, -k, axis=1) for k in (-1, 0, 1)])
    A, o, found = normal(seeds, rng, 3, width, 5) / np.sqrt(5), normal(seeds, rng, width), []
    for _ in range(STEPS + 1):
        phi = np.tanh(np.einsum("skni,kapi->sapn", A, shifted))
        found.append(np.einsum("sn,sapn->sa", o, phi) / (GAMMA * width))
        error = RATE * GAMMA * (Y - found[-1])
        g = (1 - phi**2) * o[:, None, None]
        o = o + np.einsum("sa,sapn->sn", error, phi)
        A = A + np.einsum("sa,sapn,kapi->skni", error, g, shifted) / 5
    return np.stack(found, axis=1)


def causal() -> Program:
    """Return the mean ``m(p)`` of ``v(r) = A z(r)`` over ``r <= p``, read by ``tanh(R tanh(m(p)))``."""
    v, m, c = (Field(name, cells) for name in ("v", "m", "c"))
    A, R = GaussianMatrix("A", cells, pixels), GaussianMatrix("R", cells, cells)
    o = GaussianVector("o", cells)
    forward = {
        v(i, p, t): A @ z(i, p),
        m(i, p, t): Sum(v(i, r, t), (r, 1, p)) / p,
        c(i, p, t): R @ tanh(m(i, p, t)),
        out(i, t): Sum(Mean(o.symbol * tanh(c(i, p, t))), (p, 1, 3)) / gamma0,
    }
    return trained("causal means", (v, m, c), forward, (A, R, o), PLACES)


def train_causal(width: int, seeds: int, rng: np.random.Generator) -> Array:
    share = np.tril(np.ones((3, 3))) / np.arange(1, 4)[:, None]
    A, R = normal(seeds, rng, width, 5) / np.sqrt(5), normal(seeds, rng, width, width) / np.sqrt(width)
    o, found = normal(seeds, rng, width), []
    for _ in range(STEPS + 1):
        v = np.einsum("sni,ari->sarn", A, LETTERS)
        low = np.tanh(share @ v)
        top = np.tanh(np.einsum("snm,sapm->sapn", R, low))
        found.append(np.einsum("sn,sapn->sa", o, top) / (GAMMA * width))
        error = (RATE * GAMMA * (Y - found[-1]))[..., None, None]
        g = (1 - top**2) * o[:, None, None]
        back = share.T @ ((1 - low**2) * np.einsum("snm,sapn->sapm", R, g))
        o = o + (error * top).sum(axis=(1, 2))
        R = R + np.einsum("sapn,sapm->snm", error * g, low) / width
        A = A + np.einsum("sarn,ari->sni", error * back, LETTERS) / 5
    return np.stack(found, axis=1)


# -- numbers within functions, families of readouts, streams, weights that start at zero ---------------------


def normalised(named: bool) -> Program:
    """Return ``out = <o tanh(a/sqrt(<a^2>))>/gamma0``, with the mean inline, or under the name ``size``."""
    a, A, o = Field("a", cells), GaussianMatrix("A", cells, pixels), GaussianVector("o", cells)
    size, mean = Function("size"), Mean(a(i, t) ** 2)
    forward = {
        a(i, t): A @ z(i),
        out(i, t): Mean(o.symbol * tanh(a(i, t) / sqrt(size(i, t) if named else mean))) / gamma0,
    }
    return trained("normalised", (a,), forward | ({size(i, t): mean} if named else {}), (A, o))


def train_normalised(width: int, seeds: int, rng: np.random.Generator) -> Array:
    A, o, found = normal(seeds, rng, width, 5) / np.sqrt(5), normal(seeds, rng, width), []
    for _ in range(STEPS + 1):
        a = X @ A.swapaxes(1, 2)
        root = np.sqrt((a**2).mean(axis=2, keepdims=True))
        phi = np.tanh(a / root)
        found.append(np.einsum("sn,spn->sp", o, phi) / (GAMMA * width))
        error = (RATE * GAMMA * (Y - found[-1]))[..., None]
        slope = (1 - phi**2) * o[:, None] / root
        g = slope - a * (slope * a).mean(axis=2, keepdims=True) / root**2
        o = o + (error * phi).sum(axis=1)
        A = A + (error * g).swapaxes(1, 2) @ X / 5
    return np.stack(found, axis=1)


def readouts(phi: Callable[[Any], Any]) -> Program:
    """Return five outputs of one layer, as many as the data have dimensions."""
    d, D = (Symbol(name, integer=True, positive=True) for name in "dD")
    a, A, every = Field("a", cells), GaussianMatrix("A", cells, pixels), IndexRange(d, S.One, D)
    o = GaussianVector("o", cells, indices=(every,))
    forward = {a(i, t): A @ z(i), out(i, d, t): Mean(o(d) * phi(a(i, t))) / gamma0}
    net = Network("readouts", (a,), forward, (A, o), given=(z,), ranges=(every, SAMPLES))
    return net.train(Sum((label(i, d) - out(i, d, t)) ** 2, (d, 1, D)) / 2, GradientDescent(eta))


def train_readouts(linear: bool) -> Train:
    def train(width: int, seeds: int, rng: np.random.Generator) -> Array:
        A, o, found = normal(seeds, rng, width, 5) / np.sqrt(5), normal(seeds, rng, 5, width), []
        for _ in range(STEPS + 1):
            pre = X @ A.swapaxes(1, 2)
            phi = pre if linear else np.tanh(pre)
            found.append(phi @ o.swapaxes(1, 2) / (GAMMA * width))
            error = RATE * GAMMA * (X - found[-1])
            g = (error @ o) * (1.0 if linear else 1 - phi**2)
            o = o + error.swapaxes(1, 2) @ phi
            A = A + g.swapaxes(1, 2) @ X / 5
        return np.stack(found, axis=1)

    return train


INCOMING, ANSWERS = RNG.standard_normal((STEPS + 1, 5)), RNG.standard_normal(STEPS + 1)


def stream() -> Program:
    """Return a program with a new sample at each step and a readout that starts at zero."""
    a, A = Field("a", cells), GaussianMatrix("A", cells, pixels)
    o = GaussianVector("o", cells, variance=0)
    forward = {a(t): A @ z(t), out(t): Mean(o.symbol * tanh(a(t))) / gamma0}
    net = Network("stream", (a,), forward, (A, o), given=(z,))
    return net.train((label(t) - out(t)) ** 2 / 2, GradientDescent(eta))


def train_stream(width: int, seeds: int, rng: np.random.Generator) -> Array:
    A, o, found = normal(seeds, rng, width, 5) / np.sqrt(5), np.zeros((seeds, width)), []
    for x, y in zip(INCOMING, ANSWERS, strict=True):
        phi = np.tanh(A @ x)
        found.append((o * phi).sum(axis=1) / (GAMMA * width))
        error = (RATE * GAMMA * (y - found[-1]))[:, None]
        g = error * (1 - phi**2) * o
        o, A = o + error * phi, A + g[..., None] * x / 5
    return np.stack(found, axis=1)[..., None]


BRANCH = np.array([0.2, 0.5, 0.7, 1.0])
MOVING, COSTS = RNG.standard_normal((2, STEPS + 1)), RNG.uniform(0.5, 1.5, (2, STEPS + 1))


def timed() -> Program:
    """Return a program whose targets, weights of samples and branch are functions of the time."""
    a, c, strength, cost = Field("a", cells), Field("c", cells), Function("strength"), Function("cost")
    A, R = GaussianMatrix("A", cells, pixels), GaussianMatrix("R", cells, cells)
    o = GaussianVector("o", cells)
    forward = {
        a(i, t): A @ z(i),
        c(i, t): a(i, t) + strength(t) * (R @ tanh(a(i, t))),
        out(i, t): Mean(o.symbol * tanh(c(i, t))) / gamma0,
    }
    net = Network("timed", (a, c), forward, (A, R, o), given=(z,), ranges=(SAMPLES,))
    return net.train(cost(i, t) * (label(i, t) - out(i, t)) ** 2 / 2, GradientDescent(eta))


def train_timed(width: int, seeds: int, rng: np.random.Generator) -> Array:
    A, R = normal(seeds, rng, width, 5) / np.sqrt(5), normal(seeds, rng, width, width) / np.sqrt(width)
    o, found = normal(seeds, rng, width), []
    for step in range(STEPS + 1):
        a = X @ A.swapaxes(1, 2)
        low = np.tanh(a)
        top = np.tanh(a + BRANCH[step] * (low @ R.swapaxes(1, 2)))
        found.append(np.einsum("sn,spn->sp", o, top) / (GAMMA * width))
        error = (RATE * GAMMA * COSTS[:, step] * (MOVING[:, step] - found[-1]))[..., None]
        g = (1 - top**2) * o[:, None]
        back = g + (1 - low**2) * BRANCH[step] * (g @ R)
        o = o + (error * top).sum(axis=1)
        R = R + BRANCH[step] * (error * g).swapaxes(1, 2) @ low / width
        A = A + (error * back).swapaxes(1, 2) @ X / 5
    return np.stack(found, axis=1)


# -- other results than those of one output ------------------------------------------------------------------


def two_outputs() -> Program:
    """Return two readouts of one layer, with a loss of both."""
    a, A, second = Field("a", cells), GaussianMatrix("A", cells, pixels), Function("second")
    b, c = GaussianVector("b", cells), GaussianVector("c", cells)
    forward = {
        a(i, t): A @ z(i),
        out(i, t): Mean(b.symbol * tanh(a(i, t))) / gamma0,
        second(i, t): Mean(c.symbol * tanh(a(i, t))) / gamma0,
    }
    net = Network("two outputs", (a,), forward, (A, b, c), given=(z,), ranges=(SAMPLES,))
    loss = (label(i) - out(i, t)) ** 2 / 2 + (label(i) - out(i, t) - second(i, t)) ** 2
    return net.train(loss, GradientDescent(eta))


def train_two_outputs(width: int, seeds: int, rng: np.random.Generator) -> Array:
    A, both, found = normal(seeds, rng, width, 5) / np.sqrt(5), normal(seeds, rng, 2, width), []
    for _ in range(STEPS + 1):
        phi = np.tanh(X @ A.swapaxes(1, 2))
        first, second = np.moveaxis(phi @ both.swapaxes(1, 2), 2, 0) / (GAMMA * width)
        found.append(first)
        joint = 2 * (Y - first - second)
        errors = RATE * GAMMA * np.stack([Y - first + joint, joint], axis=2)
        g = (errors @ both) * (1 - phi**2)
        both, A = both + errors.swapaxes(1, 2) @ phi, A + g.swapaxes(1, 2) @ X / 5
    return np.stack(found, axis=1)


EIGENVALUES, COEFFICIENTS = np.arange(1, 5.0) ** -1.5, np.array([1.0, -0.8, 1.2, 0.5])
UNITS, DRAWN = 6, 5


def train_modes(data: str) -> Train:
    """Return a trainer of one hidden layer on modes, with copies of each mode, unit and sample.

    Sums over modes and units count each copy as one part of the whole.
    """

    def train(copies: int, seeds: int, rng: np.random.Generator) -> Array:
        roots, target = np.sqrt(np.tile(EIGENVALUES, copies)), np.tile(COEFFICIENTS, copies)
        samples, modes = DRAWN * copies, len(roots)
        W, w = normal(seeds, rng, UNITS * copies, modes) / np.sqrt(copies), normal(seeds, rng, UNITS * copies)
        inputs, start, found = normal(seeds, rng, samples, modes) * roots, 0.0, []
        for step in range(STEPS + 1):
            function = np.einsum("sik,si->sk", W, w) / (UNITS * GAMMA)
            start = function if step == 0 else start
            v = target + start - function
            found.append((roots**2 * v**2).sum(axis=1) / copies)
            h0 = roots**2 * v
            if data != "population":
                inputs = normal(seeds, rng, samples, modes) * roots if data == "online" else inputs
                errors = np.einsum("sak,sk->sa", inputs, v) / np.sqrt(copies)
                h0 = np.einsum("sak,sa->sk", inputs, errors) / (DRAWN * np.sqrt(copies))
            h = np.einsum("sik,sk->si", W, h0)
            W = W + RATE * GAMMA * w[:, :, None] * h0[:, None] / copies
            w = w + RATE * GAMMA * h
        return np.stack(found, axis=1)

    return train


def on_modes(data: str) -> Case:
    """Return descent on data with a spectrum."""
    numbers = {"eta": RATE, "gamma0": GAMMA, "N": UNITS, "M": len(EIGENVALUES)}
    numbers |= {"online": {"B": DRAWN}, "full-batch": {"P": DRAWN}}.get(data, {})
    arrays = {"lamda": EIGENVALUES, "w_star": COEFFICIENTS}
    method, train = "linear causal march", train_modes(data)
    return Case(
        lambda: structured(1, data=data),
        train,
        arrays,
        method,
        numbers,
        "test_loss",
        widths=(6, 12),
        seeds=400,
    )


def random_features() -> Program:
    """Return a readout of half as many random features as there are modes.

    There are twice as many samples as modes.
    """
    tones, parts = Population("tones"), Population("parts", ratio=S.Half)
    drawn = Population("drawn", ratio=S(2))
    power, wanted = Attribute("power", tones), Attribute("wanted", tones)
    B, D = GaussianMatrix("B", parts, tones), GaussianMatrix("D", drawn, tones)
    read, left, seen = Field("read", parts), Field("left", tones), Field("seen", drawn)
    o = GaussianVector("o", parts, variance=0)
    forward = {
        read(t): o.symbol,
        left(t): wanted(k) - B.T @ read(t),
        seen(t): D @ (sqrt(power(k)) * left(t)),
    }
    net = Network("features", (read, left, seen), forward, (o,), (B, D), attributes=(power, wanted))
    loss, named = Mean(seen(t) ** 2) / 2, {sqrt(power(k)) * left(t): "C_v"}
    return net.train(loss, GradientDescent(eta), notation=named)


def train_random_features(copies: int, seeds: int, rng: np.random.Generator) -> Array:
    """Return descent on half the mean square of the errors, at a rate times the number of modes."""
    roots, wanted = np.sqrt(np.tile(EIGENVALUES, copies)), np.tile(COEFFICIENTS, copies)
    modes = len(roots)
    B = normal(seeds, rng, modes // 2, modes) / np.sqrt(modes)
    D = normal(seeds, rng, 2 * modes, modes) / np.sqrt(modes)
    o, found = np.zeros((seeds, modes // 2)), []
    for _ in range(STEPS + 1):
        left = roots * (wanted - np.einsum("sik,si->sk", B, o))
        found.append((left**2).mean(axis=1))
        missed = np.einsum("sak,sk->sa", D, left) / (2 * modes)
        slope = roots * np.einsum("sak,sa->sk", D, missed)
        o = o + RATE * GAMMA**2 * modes * np.einsum("sik,sk->si", B, slope)
    return np.stack(found, axis=1)


OF_MODES = {"power": EIGENVALUES, "wanted": COEFFICIENTS}
OF_UNITS = {"overlap": X @ X.T / 5, "label": Y, "gain": GAINS}
OF_STREAM = {"overlap": INCOMING @ INCOMING.T / 5, "label": ANSWERS}
OF_TIME = {"overlap": X @ X.T / 5, "label": MOVING, "cost": COSTS, "strength": BRANCH}
OF_OUTPUTS = {"overlap": X @ X.T / 5, "label": X}


def straight(h: Any) -> Any:
    """Return the argument, as a linear activation."""
    return h


CASES: dict[str, Case] = {
    "slopes of units": Case(lambda: one_layer(lambda h: tanh(gain(k) * h)), train_one(False), OF_UNITS),
    "gains of units": Case(lambda: one_layer(lambda h: gain(k) * h), train_one(True), OF_UNITS),
    "slopes in two layers": Case(lambda: two_layers(lambda h: tanh(gain(k) * h)), train_two(False), OF_UNITS),
    "gains in two layers": Case(
        lambda: two_layers(lambda h: gain(k) * h), train_two(True), OF_UNITS, widths=(48, 96)
    ),
    "recurrent": Case(lambda: recurrent(tanh), train_recurrent(False), POSITIONS),
    "recurrent linear": Case(lambda: recurrent(straight), train_recurrent(True), POSITIONS, widths=(48, 96)),
    "there and back": Case(there_and_back, train_there_and_back, seeds=200),
    "mixture": Case(mixture, train_mixture, OF_EXPERTS, seeds=200),
    "filters": Case(filters, train_filters, POSITIONS),
    "causal means": Case(causal, train_causal, POSITIONS, seeds=200),
    "normalised inline": Case(lambda: normalised(False), train_normalised, method="nodes"),
    "normalised by name": Case(lambda: normalised(True), train_normalised, method="nodes"),
    "readouts": Case(lambda: readouts(tanh), train_readouts(False), OF_OUTPUTS),
    "readouts linear": Case(lambda: readouts(straight), train_readouts(True), OF_OUTPUTS),
    "stream": Case(stream, train_stream, OF_STREAM),
    "functions of time": Case(timed, train_timed, OF_TIME),
    "two outputs": Case(two_outputs, train_two_outputs, variable="out"),
    "modes, random features": Case(
        random_features,
        train_random_features,
        OF_MODES,
        "linear causal march",
        variable="test_loss",
        widths=(10, 20),
    ),
    **{f"modes, {data}": on_modes(data) for data in ("population", "online", "full-batch")},
}
SLOW = (
    *("slopes in two layers", "gains in two layers", "recurrent", "normalised inline", "causal means"),
    *("readouts", "modes, full-batch", "normalised by name"),
)
"""Cases that are compared in the slow suite; smaller ones of their kind stand beside them."""


ALIKE = ("gains of units", "normalised by name", "readouts linear", "modes, population")
"""Cases whose networks are those of others but for a nonlinearity, a name or the data."""


def marked(names: Any, slow: tuple[str, ...] = SLOW) -> list[Any]:
    return [pytest.param(n, marks=pytest.mark.slow) if n in slow else n for n in names]


def extrapolated(case: Case) -> tuple[Array, Array]:
    """Return mean outputs without their part of order 1/N, and their standard errors."""
    small, large = case.widths
    means, errors = [], []
    for width in case.widths:
        found = case.train(width, case.seeds, np.random.default_rng(width))
        means.append(found.mean(axis=0))
        errors.append(found.std(axis=0, ddof=1) / np.sqrt(case.seeds))
    share = large / (large - small)
    return share * means[1] + (1 - share) * means[0], np.hypot(share * errors[1], (1 - share) * errors[0])


@pytest.mark.parametrize("name", marked(CASES))
def test_solve_is_the_limit_of_networks(name: str) -> None:
    case = CASES[name]
    found = numerics.solve(case.make(), **case.given)
    assert found.attrs["method"] == case.method
    value, error = extrapolated(case)
    own = found[f"{case.variable}_stderr"].values if f"{case.variable}_stderr" in found else 0.0
    gap = found[case.variable].values - value
    assert excess(in_errors(gap, np.hypot(error, own)), case.seeds - 1) < 1


@pytest.mark.parametrize("name", marked(CASES, (*SLOW, *ALIKE)))
def test_simulate_trains_these_networks(name: str) -> None:
    case, width, seeds = CASES[name], 24, 100
    found = numerics.simulate(case.make(), width=width, seeds=seeds, rng=1, **case.given)
    copies = width // len(EIGENVALUES) if name.startswith("modes") else width
    own = case.train(copies, seeds, np.random.default_rng(2))
    error = np.hypot(own.std(axis=0, ddof=1) / np.sqrt(seeds), found[f"{case.variable}_stderr"].values)
    assert excess(in_errors(found[case.variable].values - own.mean(axis=0), error), seeds - 1) < 1


@pytest.fixture(scope="module")
def linear_experts() -> tuple[Array, Array]:
    """Return the outputs of linear experts by sampled paths, and by the reference solver."""
    program, given = mixture(lambda h: h), CASES["mixture"].given | {"times": range(3)}
    paths, direct = (
        numerics.solve(program, kernels="none", solver=solver, **given)
        for solver in (Solver(method="paths", samples=64), Solver(method="direct"))
    )
    return paths.f.values, direct.f.values


def test_linear_experts_are_exact_on_paths(linear_experts: tuple[Array, Array]) -> None:
    """Sums over members read sources of the present, whose derivatives belong to the present."""
    paths, direct = linear_experts
    np.testing.assert_allclose(paths, direct, rtol=1e-9, atol=1e-12)


def straight_in_time() -> Program:
    """Return a linear network whose targets, weights of samples and branch depend on time."""
    a, strength, cost = Field("a", cells), Function("strength"), Function("cost")
    A, o = GaussianMatrix("A", cells, pixels), GaussianVector("o", cells)
    forward = {a(i, t): A @ z(i), out(i, t): strength(t) * Mean(o.symbol * a(i, t)) / gamma0}
    net = Network("straight", (a,), forward, (A, o), given=(z,), ranges=(SAMPLES,))
    return net.train(cost(i, t) * (label(i, t) - out(i, t)) ** 2 / 2, GradientDescent(eta))


SERIES: dict[str, tuple[Callable[[], Program], Mapping[str, Any]]] = {
    "gains of units": (lambda: one_layer(lambda h: gain(k) * h), OF_UNITS),
    "functions of time": (straight_in_time, OF_TIME),
    "readouts": (lambda: readouts(straight), OF_OUTPUTS),
    "recurrent": (lambda: recurrent(straight), POSITIONS),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=pytest.mark.slow) if x != "gains of units" else x for x in SERIES],
)
def test_expand_misses_the_fourth_power_of_gamma0(name: str) -> None:
    """The remainder of the series to second order falls as gamma0 to the fourth."""
    make, arrays = SERIES[name]
    given = {"arrays": dict(arrays), "times": range(STEPS + 1)}
    series = numerics.expand(make(), 2, numbers={"eta": RATE, "gamma0": 1.0}, **given)
    assert series.order.values.tolist() == [0, 2]
    missed = []
    for strength in (0.2, 0.1):
        solver = Solver(method="paths", samples=256)
        whole = numerics.solve(make(), numbers={"eta": RATE, "gamma0": strength}, solver=solver, **given)
        summed = series.train_loss.values[0] + strength**2 * series.train_loss.values[1]
        missed.append(np.abs(whole.train_loss.values - summed).max())
    assert np.log2(missed[0] / missed[1]) == pytest.approx(4.0, abs=0.1)


@pytest.mark.parametrize(
    "phi",
    [pytest.param(lambda h: gain(k) * h, marks=pytest.mark.slow), lambda h: tanh(gain(k) * h)],
    ids=["linear", "tanh"],
)
def test_units_of_one_attribute_are_units_without(phi: Callable[[Any], Any]) -> None:
    """Equal attributes of several units, or one of one, are a number in the function: the same paths."""
    given = CASES["slopes of units"].given
    solver = Solver(method="paths", samples=64)
    several, one = (
        numerics.solve(
            one_layer(phi), **{**given, "arrays": {**given["arrays"], "gain": gains}}, solver=solver
        )
        for gains in ([0.7, 0.7, 0.7], [0.7])
    )
    number = one_layer(lambda h: phi(h).subs(gain(k), S(7) / 10))
    for found in (several, one):
        plain = numerics.solve(
            number,
            **{**given, "arrays": {x: given["arrays"][x] for x in ("overlap", "label")}},
            solver=solver,
        )
        np.testing.assert_allclose(found.f, plain.f, rtol=1e-9, atol=1e-12)
