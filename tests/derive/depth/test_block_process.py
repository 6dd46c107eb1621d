"""Blocks with inner fields in layer time: their powers of L, equations, and networks without a limit."""

from __future__ import annotations

from typing import Any

import pytest
from sympy import Expr, Function, Rational, S, Symbol, Tuple, sqrt, tanh
from sympy.core.function import AppliedUndef

from derive.depth import Scaling, block_limit, cross_layer, layer_process, within_blocks
from derive.depth.block_sizes import BlockSizes, states_depth, streams_of
from derive.depth.layers import tau
from derive.depth.process import LayerProcess
from derive.errors import NotApplicable
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
    mu,
    t,
)
from derive.program.networks import attention, normalised
from derive.program.networks.residual import block_program
from tests.derive.once import mean_field

beta = Symbol("beta", positive=True)
HALF = Rational(1, 2)
BARE: dict[str, Any] = {"activation": None, "normalisation": "none", "causal": True, "read": "last"}


def deep(power: Expr, matrices: str = "QKVUD", **options: Any) -> LayerProcess:
    """Return the limit of attention with branches ``beta L^-power``.

    At the power one, rates of the matrices of a block are multiplied by the depth.
    """
    rules = {x: GradientDescent(eta * L) for x in matrices} if power == 1 else None
    return layer_process(mean_field(attention(L, branch=beta * L**-power, rules=rules, **options)), Scaling())


def perceptrons(hidden: bool = True) -> Program:
    """Return blocks ``s + beta Z tanh(M s)/sqrt(L)`` under names of a stranger, or without the matrix Z."""
    units, inside = Population("units", shared=True), Population("inside")
    x = GivenVector("x", Population("input", given=True), "K_x")
    s, z = Field("s", units, layered=True), Field("z", inside if hidden else units, layered=True)
    blocks = IndexRange(ell, S.One, L)
    first = GaussianMatrix("first", units.at(0), x.population)
    M = GaussianMatrix("M", z.population.at(ell), units.at(ell - 1), index=blocks)
    Z = GaussianMatrix("Z", units.at(ell), inside.at(ell), index=blocks)
    w, f, y = GaussianVector("w", units), Function("f"), Function("y")
    seen = tanh(z(ell, mu, t))
    lines = {
        s(0, mu, t): first @ x(mu),
        z(ell, mu, t): M(ell) @ s(ell - 1, mu, t),
        s(ell, mu, t): s(ell - 1, mu, t) + beta * (Z(ell) @ seen if hidden else seen) / sqrt(L),
        f(mu, t): Mean(w.symbol * s(L, mu, t)) / gamma0,
    }
    weights = (first, M, Z, w) if hidden else (first, M, w)
    net = Network("net", (s, z), lines, weights, (), (x,), ranges=(blocks,), depth=L)
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta), together=True)


def names(e: Expr) -> set[str]:
    return {str(x.func) for x in e.atoms(AppliedUndef)}


def test_hidden_units_are_functionals_of_the_stream() -> None:
    """By hand: ds = beta (dU_Z + ...), with z its own source to leading order, and z moves by L^-1/2."""
    found = layer_process(mean_field(perceptrons()), Scaling())
    white = [str(e.lhs.body) for e in found.noise if "DiracDelta" in str(e.rhs)]
    assert [x.partition("(")[0] for x in white] == ["u_Z", "r_M"]
    assert found.field("s").rhs.coeff(Function("u_Z")(tau, mu, t)) == beta
    z = found.field("z").rhs
    leading = [x for x in z.args if not x.has(L)]
    assert leading == [Function("u_M")(tau, mu, t)]
    assert len(z.args) == 3
    assert set(found.units.values()) == {1 / sqrt(L), 1 / L}
    assert "s" not in found.sizes
    assert found.same == {}


@pytest.mark.parametrize(("alpha", "gammas"), [(HALF, (HALF, HALF)), (S.One, (S.Zero, S.Zero))])
def test_powers_are_those_of_closed_equations(alpha: Expr, gammas: tuple[Expr, Expr]) -> None:
    """Linear blocks of two matrices, whose closed equations are balanced without single-site fields."""
    theory = mean_field(block_program(L, alpha, gammas))
    balanced = block_limit(within_blocks(cross_layer(theory))).orders
    orders = BlockSizes(theory, Scaling()).orders
    pairs = [(q.name, q.name.replace("_", "").replace("R", "R_", 1)) for q in theory.responses()]
    told = {name.replace("_", ""): order for name, order in balanced.items()}
    compared = [(orders[x].power, told[y.replace("_", "")]) for x, y in pairs if y.replace("_", "") in told]
    assert len(compared) == len(pairs) == 4
    for ours, theirs in compared:
        assert ours == theirs


def test_normalisation_before_a_branch() -> None:
    found = layer_process(mean_field(normalised(L, branch=beta / sqrt(L))), Scaling())
    assert found.field("n").rhs == Function("h")(tau, mu, t) / sqrt(Function("size")(tau, mu, t))
    assert found.sizes["g_size"] == 1 / L
    with pytest.raises(NotApplicable, match="no residual stream"):
        layer_process(mean_field(normalised(L, branch=beta / sqrt(L), place="after")), Scaling())


def test_attention_rests_where_branches_fall_like_the_root() -> None:
    """Scores are of order 1/L, so that heads average uniformly over the positions up to their own."""
    found = deep(HALF, **BARE)
    assert found.vanishing == {"score": 1 / L, "g_score": 1 / L}
    assert not {"query", "key", "score"} & names(Tuple(*[e.rhs for e in found.single_site]))
    assert "vanish" in " ".join(found.conditions())


def test_attention_moves_where_branches_fall_like_the_depth() -> None:
    """Scores are of order one, no source enters the stream, and keys, queries and values learn."""
    found = deep(S.One, "QKV", **BARE)
    assert found.vanishing == {}
    assert "score" in names(found.field("h").rhs)
    assert not [e for e in found.noise if "DiracDelta" in str(e.rhs)]
    assert {str(d.expr.func) for d in found.dropped if isinstance(d.expr, AppliedUndef)} >= {"u_V"}
    assert found.sizes["g_score"] == 1 / L


@pytest.mark.slow
def test_full_blocks() -> None:
    """RMS normalisation, perceptrons and random scores; in all, increments have the order of drift."""
    half, one = deep(HALF, causal=True), deep(S.One, causal=True)
    assert half.same == one.same == {"a": "h", "g_a": "g"}
    assert (half.sizes["g_inner_size"], one.sizes["g_u"]) == (1 / L, 1 / L)
    assert "R_tanh_r_D" in half.units
    assert "R_tanh_r_D" not in one.units
    random = deep(HALF, scores="random")
    assert random.vanishing == {}
    assert random.units["R_g_score_u_Z"] == 1 / L


def test_networks_without_a_limit_say_why() -> None:
    with pytest.raises(NotApplicable, match="nonlinear function of these sources is added to the stream"):
        layer_process(mean_field(perceptrons(hidden=False)), Scaling())
    whole = attention(L, branch=beta / L, rule=GradientDescent(eta * L), **BARE)
    with pytest.raises(
        NotApplicable, match=r"h\(0, mu, p, t\) has no limit of infinite depth: .* L\*\*\(1\)"
    ):
        layer_process(mean_field(whole), Scaling())


def test_streams_and_depth_are_read_from_the_theory() -> None:
    theory = mean_field(attention(L, branch=beta / sqrt(L), **BARE))
    assert [x.members for x in streams_of(theory)] == [("h",), ("g",)]
    assert states_depth(theory)
    assert not states_depth(mean_field(attention(L, branch=beta, **BARE)))


def test_an_integer_depth_stands_in_rates_too() -> None:
    program = attention(L, branch=beta / L, rules={"V": GradientDescent(eta * L)}, **BARE).at_depth(4)
    assert [str(w.rule.rate) for w in program.trained() if w.name in "QV"] == ["eta", "4*eta"]
