"""Theories compared up to renaming: one network with other names, and networks that differ in a factor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Function, Integer, Symbol, symbols

from derive.program import (
    Along,
    Definition,
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    GradientFlow,
    IndexRange,
    Mean,
    Outer,
    P,
    Population,
    Program,
    TrainedMatrix,
    TrainedVector,
    gamma0,
    t,
)
from derive.theory import Theory
from tests.derive.once import mean_field, mlp
from tests.derive.programs import excitatory_inhibitory, recurrent, tau, there_and_back

rate = Symbol("eta", positive=True)
FIRST = ("h", "k", "z", "g", "f", "Delta", "y", "x", "K_x", "phi", "W", "V", "w", "mu", "alpha")
OTHER = ("w", "a", "q", "b", "out", "err", "goal", "data", "K_d", "sigma", "Z", "M", "c", "i", "j")


def network(names: tuple[str, ...] = FIRST, rule: Any = None, share: Any = 1) -> Program:
    """Return two hidden layers, with every name as an argument."""
    (h, k, z, g, f, Delta, y, x, kernel, phi, W, V, w, mu, alpha) = names
    rule = GradientDescent(rate) if rule is None else rule
    phi, f, Delta, y = (Function(n) for n in (phi, f, Delta, y))
    mu, alpha = symbols(f"{mu} {alpha}", integer=True, positive=True)
    one, two, data = Population("one"), Population("two"), Population("data", given=True)
    h, z, k, g = Field(h, one), Field(z, one), Field(k, two), Field(g, two)
    given_ = GivenVector(x, data, kernel)
    samples, past = IndexRange(mu, Integer(1), P), IndexRange(alpha, Integer(1), P)
    first, second = GaussianMatrix(W, one, data), GaussianMatrix(V, two, one)
    readout = GaussianVector(w, two, source=f"r_{w}")
    slope = Symbol("slot")

    def dphi(e: Any) -> Any:
        return phi(slope).diff(slope).subs(slope, e)

    def step(left: Any, right: Any) -> Outer:
        return Outer(gamma0 * Delta(alpha, t), left, right, (past,))

    return Program(
        name="two layers",
        rule=rule,
        fields=(h, z, k, g),
        definitions=(
            Definition(h(mu, t), first @ given_(mu), (samples,)),
            Definition(k(mu, t), second @ phi(h(mu, t)), (samples,)),
            Definition(f(mu, t), share * Mean(phi(k(mu, t)) * g(mu, t)) / gamma0, (samples,)),
            Definition(Delta(mu, t), y(mu) - f(mu, t), (samples,)),
            Definition(g(mu, t), readout.symbol * dphi(k(mu, t)), (samples,)),
            Definition(z(mu, t), second.T @ g(mu, t), (samples,)),
        ),
        matrices=(
            TrainedMatrix(first, step(z(alpha, t) * dphi(h(alpha, t)), given_(alpha)), rule),
            TrainedMatrix(second, step(g(alpha, t), phi(h(alpha, t))), rule),
        ),
        vectors=(TrainedVector(readout, Along(gamma0 * Delta(alpha, t), phi(k(alpha, t)), (past,)), rule),),
        given=(given_,),
        scalars=(str(f), str(Delta)),
        constants=(str(y),),
        scale=gamma0,
    )


def pair(x: str, y: str, m: str, b: str, f: str) -> Program:
    """Return two evolving populations that a trained matrix joins, and a trained vector."""
    a, c = Population("a", Symbol("rho_a", positive=True)), Population("b", Symbol("rho_b", positive=True))
    phi = Function(f)
    fx, fy = Field(x, a), Field(y, c)
    rule = GradientFlow()
    M = GaussianMatrix(m, a, c, variance=Symbol("g", positive=True))
    bias = GaussianVector(b, c, source=f"beta_{b}")
    update = Outer(rate, fx(t), phi(fy(t)), ())
    return Program(
        name="pair",
        rule=rule,
        fields=(fx, fy),
        matrices=(TrainedMatrix(M, update, rule),),
        vectors=(TrainedVector(bias, Along(rate, fy(t)), rule),),
        definitions=(
            Definition(fx(t), -fx(t) + M @ fy(t), (), evolves=True),
            Definition(fy(t), -fy(t) + M.T @ fx(t) + bias.symbol, (), evolves=True),
        ),
    )


NETWORK = mean_field(network())
RENAMED = mean_field(network(OTHER))
PAIR = mean_field(pair("x", "y", "M", "b", "phi"))


def test_a_theory_is_equivalent_to_itself() -> None:
    for theory in (NETWORK, PAIR, mean_field(mlp()), mean_field(there_and_back())):
        found = theory.renaming(theory)
        assert found is not None
        assert all(a == b for a, b in found.items())


def test_other_names_for_everything() -> None:
    found = NETWORK.renaming(RENAMED)
    assert found is not None
    assert NETWORK.equivalent(RENAMED)
    assert RENAMED.equivalent(NETWORK)
    named = dict(zip(FIRST[:10], OTHER[:10], strict=True))
    assert {k: v for k, v in found.items() if k in named} == {k: v for k, v in named.items() if k in found}
    assert found["h"] == "w"
    assert found["phi"] == "sigma"
    back = RENAMED.renaming(NETWORK)
    assert back == {v: k for k, v in found.items()}


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a"), ("y", "x"), ("zeta", "Alpha")])
def test_correlations_whose_vectors_change_places(names: tuple[str, str]) -> None:
    """The order of vectors in C_<first><second> follows the alphabet; the theory is the same."""
    assert PAIR.equivalent(mean_field(pair(*names, "J", "w", "f")))


def test_exchanged_names_are_exchanged() -> None:
    found = PAIR.renaming(mean_field(pair("y", "x", "M", "b", "phi")))
    assert found is not None
    assert (found["x"], found["y"]) == ("y", "x")


def test_names_that_look_alike_are_told_apart_by_trial() -> None:
    """Two independent copies of one network: any assignment of copies will do, but it must be consistent."""

    def copies(names: tuple[str, str, str, str]) -> Theory:
        x, y, j, k = names
        phi = Function("phi")
        one, two = Population("one"), Population("two")
        fields = Field(x, one), Field(y, two)
        matrices = GaussianMatrix(j, one, one), GaussianMatrix(k, two, two)
        return mean_field(
            Program(
                name="copies",
                rule=GradientFlow(),
                fields=fields,
                matrices=matrices,
                definitions=tuple(
                    Definition(v(t), -v(t) + m @ phi(v(t)), (), evolves=True)
                    for v, m in zip(fields, matrices, strict=True)
                ),
            )
        )

    found = copies(("x", "y", "J", "K")).renaming(copies(("q", "p", "A", "B")))
    assert found is not None
    assert {found["x"], found["y"]} == {"p", "q"}


def test_different_theories_are_not_equivalent() -> None:
    assert not NETWORK.equivalent(mean_field(network(share=2)))
    assert not NETWORK.equivalent(mean_field(network(rule=GradientFlow(rate))))
    assert not mean_field(mlp(2)).equivalent(mean_field(mlp(3)))
    assert not mean_field(mlp()).equivalent(mean_field(mlp(loss="mean")))
    assert not mean_field(mlp()).equivalent(mean_field(mlp(activation=Function("phi"))))
    assert not mean_field(recurrent(tau)).equivalent(mean_field(recurrent()))
    assert not mean_field(excitatory_inhibitory()).equivalent(PAIR)
    tied, untied = (mean_field(mlp(activation=Function("phi"), tied=x)) for x in (True, False))
    assert not tied.equivalent(untied)


def test_a_transposed_matrix_is_the_same_theory() -> None:
    assert mean_field(recurrent(tau)).equivalent(mean_field(recurrent(tau, transposed=True)))


def test_parameters_are_renamed_only_on_request() -> None:
    other = mean_field(network(rule=GradientDescent(Symbol("epsilon", positive=True))))
    assert not NETWORK.equivalent(other)
    found = NETWORK.renaming(other, parameters=True)
    assert found is not None
    assert found["eta"] == "epsilon"
    assert found["gamma0"] == "gamma0"


places = [("equations", i, j) for i, e in enumerate(NETWORK.equations) for j in range(len(e.terms))]
places += [("scalars", i, j) for i, e in enumerate(NETWORK.scalars) for j in range(len(e.terms))]
places += [("sources", i, 0) for i in range(len(NETWORK.sources))]
places += [("order_parameters", i, 0) for i in range(len(NETWORK.order_parameters))]


@settings(max_examples=5, deadline=None)
@given(st.sampled_from(places), st.sampled_from([Integer(2), gamma0, -Integer(1)]))
def test_one_factor_anywhere_makes_a_difference(place: tuple[str, int, int], factor: Any) -> None:
    part, i, j = place
    items = list(getattr(NETWORK, part))
    x = items[i]
    if part == "sources":
        items[i] = replace(x, covariance=factor * x.covariance)
    elif part == "order_parameters":
        items[i] = replace(x, definition=factor * x.definition)
    else:
        terms = list(x.terms)
        terms[j] = terms[j].times(factor)
        items[i] = replace(x, terms=tuple(terms))
    changed = replace(NETWORK, **{part: tuple(items)})
    assert not NETWORK.equivalent(changed)
    assert not RENAMED.equivalent(changed)
