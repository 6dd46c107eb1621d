"""A user may give anything a name that the engine would derive: the engine's own name steps aside."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Expr, Function, S, Sum, Symbol, sqrt, tanh

from derive.errors import ProgramError
from derive.program import (
    Attribute,
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    IndexRange,
    L,
    Mean,
    Network,
    P,
    Population,
    Program,
    ell,
    eta,
    gamma0,
    mu,
    t,
)
from numerics.simulation import simulate_program
from tests.derive.once import mean_field

PLACES = "units pixels x K h a b c f y m U V W w v lam rate e k".split()  # noqa: SIM905
"""Names of the program: populations, inputs and their kernel, fields, functions, a number, matrices, vectors,
an attribute, a learning rate and indices."""

MORE = "average_1 average_2 omega_w omega_v z_h z_b z_2 g_2 Delta_2 Delta_f g_f C_h C_g past_a i1".split()  # noqa: SIM905
"""Names that the engine gives in other programs, or when a name is taken."""


def called(names: Mapping[str, str]) -> dict[str, str]:
    return {x: x for x in PLACES} | dict(names)


def program(names: Mapping[str, str]) -> Program:
    """Return a program with many parts under given names.

    It has a family of matrices, an average in a field and one inside of a readout, an attribute and a bias.
    """
    n = called(names)
    units, pixels = Population(n["units"]), Population(n["pixels"], given=True)
    x, lam = GivenVector(n["x"], pixels, n["K"]), Attribute(n["lam"], units)
    h, a, b = (Field(n[name], units) for name in "hab")
    e, k = Symbol(n["e"], integer=True, positive=True), Symbol(n["k"], integer=True)
    members = IndexRange(e, S.One, S(2))
    U, V = GaussianMatrix(n["U"], units, pixels), GaussianMatrix(n["V"], units, units)
    W = GaussianMatrix(n["W"], units, units, others=(members,))
    w, v = GaussianVector(n["w"], units), GaussianVector(n["v"], units)
    f, y, m, c = (Function(n[name]) for name in "fymc")
    read = Sum(Mean(w.symbol * tanh(b(e, mu, t))), (e, 1, 2))
    forward: dict[Expr, Expr] = {
        h(mu, t): U @ x(mu),
        a(mu, t): V @ tanh(h(mu, t)) + lam(k) * v.symbol,
        m(mu, t): Mean(a(mu, t) ** 2),
        b(e, mu, t): W(e) @ (tanh(a(mu, t)) * sqrt(1 + m(mu, t))),
        f(mu, t): c(t) * read / gamma0 + tanh(Mean(h(mu, t) * a(mu, t))),
    }
    weights = (U, V, W, w, v)
    net = Network("named", (h, a, b), forward, weights, given=(x,), attributes=(lam,), ranges=(members,))
    rate = Symbol(n["rate"], positive=True)
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(rate))


def outputs(names: Mapping[str, str]) -> np.ndarray:
    """Return the outputs of a tiny network, whose weights do not depend on names."""
    n = called(names)
    data = {
        n["K"]: np.array([[1.0, 0.3], [0.3, 0.8]]),
        n["y"]: np.array([1.0, -0.5]),
        n["c"]: np.array([1.0, 0.7, 1.2]),
        n["lam"]: np.array([1.0, 2.0, 1.5, 0.5]),
    }
    values = {n["rate"]: 0.3, "gamma0": 1, "P": 2}
    run = simulate_program(program(names), width=4, steps=2, seeds=1, values=values, data=data)
    return run[n["f"]].mean


@cache
def expected() -> np.ndarray:
    return outputs({})


@cache
def derived() -> tuple[str, ...]:
    """Return every name that the engine gives in this program and its theory, and a few of others."""
    plain = program({})
    theory = mean_field(plain)
    found = {d.name for d in plain.definitions} | set(plain.notation.values())
    found |= {str(u.symbol.func) for u in theory.sources}
    found |= {q.name for q in (*theory.order_parameters, *theory.observables)}
    return tuple(sorted({*found, *MORE} - {*PLACES}))


def assert_accepted(names: Mapping[str, str]) -> None:
    assert outputs(names) == pytest.approx(expected(), abs=1e-12)
    theory = mean_field(program(names))
    assert len(theory.equations) == len(mean_field(program({})).equations)


names_of_places = st.permutations(PLACES).flatmap(
    lambda places: st.permutations(derived()).map(lambda names: dict(zip(places[:8], names, strict=False)))
)


@pytest.mark.slow
@settings(max_examples=1, deadline=None)
@given(names_of_places)
def test_names_of_the_engine_are_accepted_in_every_place(names: dict[str, str]) -> None:
    assert_accepted(names)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(names_of_places)
def test_any_names_of_the_engine_are_accepted_in_every_place(names: dict[str, str]) -> None:
    assert_accepted(names)


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_each_place_accepts_names_of_the_engine(place: str) -> None:
    lines = len(program({}).definitions)
    for name in derived()[PLACES.index(place) % 5 :: 5]:
        assert len(program({place: name}).definitions) == lines


@pytest.mark.parametrize("name", ["z", "g", "omega", "Delta", "g_a", "Phi", "G"])
def test_inputs_are_called_like_a_gradient(name: str) -> None:
    units, pixels = Population("units"), Population("pixels", given=True)
    x, h, a = GivenVector(name, pixels, "K"), Field("h", units), Field("a", units)
    U, V, w = (
        GaussianMatrix("U", units, pixels),
        GaussianMatrix("V", units, units),
        GaussianVector("w", units),
    )
    f, y = Function("f"), Function("y")
    forward = {
        h(mu, t): U @ x(mu),
        a(mu, t): V @ tanh(h(mu, t)),
        f(mu, t): Mean(w.symbol * tanh(a(mu, t))),
    }
    net = Network("named", (h, a), forward, (U, V, w), given=(x,))
    own = net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))
    heads = [d.name for d in own.definitions]
    assert len(heads) == len({*heads, name}) - 1


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("t", "t is the time: give the vector t another name"),
        ("s", "s is the second time of correlations: give the vector s another name"),
        ("mu", "mu is the index of samples: give the vector mu another name"),
        ("alpha", "the symbol alpha has the name of a second value of the index mu"),
        (L.name, "L is the number of layers, and another symbol is called L: give it another name"),
        (P.name, "P is the number of samples, and another symbol is called P: give it another name"),
    ],
)
def test_a_vector_called_like_a_symbol_of_the_language_is_refused_by_its_meaning(
    name: str, told: str
) -> None:
    with pytest.raises(ProgramError) as refusal:
        program({"w": name})
    assert str(refusal.value).startswith(told)


def test_a_vector_may_be_called_like_the_index_of_layers_where_there_are_none() -> None:
    np.testing.assert_array_equal(outputs({"w": "ell"}), outputs({}))


def test_a_vector_called_like_the_index_of_its_layers_is_refused() -> None:
    units, pixels = Population("units"), Population("pixels", given=True)
    h, x = Field("h", units, layered=True), GivenVector("x", pixels, "K")
    U, w = GaussianMatrix("U", units.at(1), pixels), GaussianVector("ell", units.at(L))
    W = GaussianMatrix("W", units.at(ell + 1), units.at(ell), index=IndexRange(ell, S.One, L - 1))
    f, y = Function("f"), Function("y")
    forward: dict[Expr, Expr] = {h(1, mu, t): U @ x(mu), h(ell + 1, mu, t): W(ell) @ tanh(h(ell, mu, t))}
    forward[f(mu, t)] = Mean(w.symbol * h(L, mu, t)) / gamma0
    network = Network("layers", (h,), forward, (U, W, w), given=(x,))
    with pytest.raises(ProgramError, match="ell is the index of layers: give the vector ell another name"):
        network.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(Symbol("eta")))
