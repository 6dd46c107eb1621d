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
from sympy import Function, S, Symbol, tanh

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
    widths: tuple[int, int] = (36, 72)
    seeds: int = 400

    @property
    def given(self) -> dict[str, Any]:
        numbers = {"eta": RATE, "gamma0": GAMMA}
        return {"numbers": numbers, "arrays": dict(self.arrays), "times": range(STEPS + 1)}


def normal(seeds: int, rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal((seeds, *shape))


# -- units with attributes -----------------------------------------------------------------------------------


def one_layer(phi: Callable[[Any], Any], rule: Any = None) -> Program:
    """``out = <b phi(a)>/gamma0`` with ``a = A z``; units may have gains."""
    attributes = (gain,) if phi(k).has(gain(k)) else ()
    a, A, b = Field("a", cells), GaussianMatrix("A", cells, pixels), GaussianVector("b", cells)
    forward = {a(i, t): A @ z(i), out(i, t): Mean(b.symbol * phi(a(i, t))) / gamma0}
    net = Network("one", (a,), forward, (A, b), given=(z,), ranges=(SAMPLES,), attributes=attributes)
    return net.train((label(i) - out(i, t)) ** 2 / 2, rule or GradientDescent(eta))


def two_layers(phi: Callable[[Any], Any]) -> Program:
    """``a = A z``, ``c = B phi(a)``, ``out = <b phi(c)>/gamma0``; units of both layers have gains."""
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


OF_UNITS = {"overlap": X @ X.T / 5, "label": Y, "gain": GAINS}

CASES: dict[str, Case] = {
    "slopes of units": Case(lambda: one_layer(lambda h: tanh(gain(k) * h)), train_one(False), OF_UNITS),
    "gains of units": Case(lambda: one_layer(lambda h: gain(k) * h), train_one(True), OF_UNITS),
    "slopes in two layers": Case(
        lambda: two_layers(lambda h: tanh(gain(k) * h)), train_two(False), OF_UNITS, seeds=200
    ),
    "gains in two layers": Case(
        lambda: two_layers(lambda h: gain(k) * h), train_two(True), OF_UNITS, seeds=200
    ),
}
SLOW = ("slopes in two layers", "gains in two layers")


def marked(names: Any) -> list[Any]:
    return [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in names]


def extrapolated(case: Case) -> tuple[Array, Array]:
    """Mean outputs without their part of order 1/N, and their standard errors."""
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
    own = found.f_stderr.values if "f_stderr" in found else 0.0
    assert excess(in_errors(found.f.values - value, np.hypot(error, own)), case.seeds - 1) < 1


@pytest.mark.parametrize("name", marked(CASES))
def test_simulate_trains_these_networks(name: str) -> None:
    case, width, seeds = CASES[name], 24, 100
    found = numerics.simulate(case.make(), width=width, seeds=seeds, rng=1, **case.given)
    own = case.train(width, seeds, np.random.default_rng(2))
    error = np.hypot(own.std(axis=0, ddof=1) / np.sqrt(seeds), found.f_stderr.values)
    assert excess(in_errors(found.f.values - own.mean(axis=0), error), seeds - 1) < 1


@pytest.mark.parametrize("phi", [lambda h: gain(k) * h, lambda h: tanh(gain(k) * h)], ids=["linear", "tanh"])
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
