"""Tests of the nonlinear expansion: parity, the linear limit, the form of its terms, refusals."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import partial

import pytest
from sympy import Add, Expr, Function, Lambda, S, Sum, Symbol, Wild, erf, exp, sqrt, tanh

from derive.calculus.gaussian import GaussianAverage
from derive.calculus.symbols import gamma0
from derive.errors import NotApplicable
from derive.expansion import expand, expand_nonlinear
from derive.expansion.nonlinear import NonlinearExpansion
from derive.expansion.nonlinear.depth import AtFixedPoint, p, q
from derive.expansion.nonlinear.depth import x as slope
from derive.expansion.nonlinear.trees import Fields, ForestCoefficient, Piece, oriented
from derive.program import L, P, Program, alpha, ell, mu, s, t
from tests.derive.once import expand_linear, mean_field, mlp

phi = Function("phi")
x = Symbol("x", real=True)


@pytest.fixture(scope="module")
def series() -> NonlinearExpansion:
    return expand_nonlinear(mean_field(mlp(L, phi, "flow")), 2)


def test_odd_orders_vanish(series: NonlinearExpansion) -> None:
    assert series.errors == (0, 2)
    for name in ("Phi", "G", "A", "B", "f", "K", "Delta", "loss"):
        assert series.coefficient(name, 1) == 0
        assert series.coefficient(name, 0) != 0


def test_order_two_of_phi_is_that_of_the_paper(series: NonlinearExpansion) -> None:
    """selfconsistent2023 (P.22) with phi'' (not phi') at the second factor of h2, and D of both times."""
    u = Function("u")
    found = series.coefficient("Phi", 2)
    Phi2 = Function("Phi2")
    both = GaussianAverage(
        phi(u(ell, mu)).diff(u(ell, mu)) * phi(u(ell, alpha)).diff(u(ell, alpha)),
        {
            (u(ell, mu), u(ell, mu)): Function("Phi0")(ell - 1, mu, mu),
            (u(ell, mu), u(ell, alpha)): Function("Phi0")(ell - 1, alpha, mu),
            (u(ell, alpha), u(ell, alpha)): Function("Phi0")(ell - 1, alpha, alpha),
        },
    )
    assert Phi2(ell - 1, mu, alpha, t, s) * both in Add.make_args(found)
    # Price: half of the Hessian against the neighbour's correction, at each pair of times
    prices = [x for x in Add.make_args(found) if x.has(Phi2)]
    assert sorted(x.as_coeff_Mul()[0] for x in prices) == [S.Half, S.Half, 1]


def test_neighbours_correct_g_as_they_are(series: NonlinearExpansion) -> None:
    """(P.23), (P.25) print half of G2 and leave the correction of u out."""
    G2, Phi2 = Function("G2"), Function("Phi2")
    found = Add.make_args(series.coefficient("G", 2))
    assert [x.as_coeff_Mul()[0] for x in found if x.has(G2)] == [1]
    assert sum(x.has(Phi2) for x in found) == 3


def _of_one_sample(e: Expr) -> Expr:
    """Return the expression for one sample, where K_x is q."""
    e = e.subs(P, 1).doit().subs({mu: 1, alpha: 1})
    a, b = Wild("a"), Wild("b")
    return e.replace(Function("K_x")(a, b), q).expand()


@pytest.fixture(scope="module")
def identity(series: NonlinearExpansion) -> AtFixedPoint:
    """Return the fixed point at which all averages but <u u> = <u u phi' phi'> = q are zero or one."""
    orders = [o for law in series.laws.values() for t in law.terms for o in _moment(t)]
    return AtFixedPoint(series, {o: int(max(o) == 1) for o in orders if 0 not in o or max(o) > 1})


def _moment(term: Piece) -> list[tuple[int, ...]]:
    return [x for x in [tuple(sorted(a for _, orders in term.averages for a in orders))] if x]


@pytest.mark.parametrize(("linear", "name"), [("H", "Phi"), ("G", "G")])
def test_the_identity_gives_the_linear_series(
    series: NonlinearExpansion, identity: AtFixedPoint, linear: str, name: str
) -> None:
    """Coefficients with ell and L symbolic, term by term, for one sample; several samples: see numerics."""
    expected = _of_one_sample(expand_linear(mean_field(mlp(L, "linear", "flow")), 2).entry(linear, 2))
    total: Expr = S.Zero
    for (_, time), forest in zip(series.factors(name, 2), series.forests(name, 2), strict=True):
        one = {x: 1 for x in time.free_symbols if x.is_integer}
        tensor = identity.expression(oriented(ForestCoefficient(name, 2, forest))[0])
        total += tensor.subs(identity.symbols[0, 0, 1, 1], q) * time.subs(one)
    assert (total.expand() - expected).expand() == 0
    assert expected != 0


@pytest.fixture(scope="module")
def symbolic(series: NonlinearExpansion) -> AtFixedPoint:
    """Return the fixed point at which all averages are symbols."""
    return AtFixedPoint(series)


def test_numbers_for_averages_give_what_their_symbols_become(
    series: NonlinearExpansion, symbolic: AtFixedPoint
) -> None:
    """<phi'^2> = 2 and <phi phi''> = 1: that x is 2, and p, their sum, 3."""
    numbers = AtFixedPoint(series, {(1, 1): 2, (0, 2): 1})
    at = {slope: 2, p: 3, ell: 2, L: 3}
    for forest in series.forests("Phi", 2):
        tensor = oriented(ForestCoefficient("Phi", 2, forest))[0]
        both = (found.expression(tensor).subs(at).expand() for found in (symbolic, numbers))
        assert len(set(both)) == 1


def test_depth_one_is_the_family_at_depth_one(series: NonlinearExpansion) -> None:
    single = expand_nonlinear(mean_field(mlp(1, phi, "flow")), 2)
    ends = {"G0": 1, "D0": 1, "D0_now": 0}
    for n in (0, 2):
        found = series.coefficient("Phi", n, 1)
        for name, value in ends.items():
            found = found.replace(Function(name), lambda *a, value=value: S(value))
        found = found.replace(Sum, lambda body, *limits: S.Zero if body == 0 else Sum(body, *limits))
        assert (single.coefficient("Phi", n) - found).expand() == 0
    assert not single.forests("A", 0)


def test_the_fields_to_any_order(series: NonlinearExpansion) -> None:
    """(P.9): h1 is linear in r, z1 free of it, h2 even, h3 odd."""
    fields = Fields(series.site, 3, lambda name, n: list(series.forests(name, n)), {0, 2})
    powers = [{sum(x.r for x in p.nodes) for p in terms} for terms in fields.h[1:]]
    assert powers == [{1}, {0, 2}, {1, 3}]
    assert [{sum(x.r for x in p.nodes) for p in terms} for terms in fields.z[1:]] == [{0}, {1}, {0, 2}]
    assert series.field("h", 1, 1).has(Function("K_x"))


@pytest.mark.slow
def test_the_fields_to_order_four(series: NonlinearExpansion) -> None:
    assert len(Add.make_args(series.truncate(0).field("h", 4))) == 57


def test_steps_sum_where_the_flow_integrates() -> None:
    gd = expand_nonlinear(mean_field(mlp(L, phi, "gd", momentum=Symbol("beta"))), 0)
    assert gd.coefficient("A", 0).has(Function("Delta0")(alpha, s))
    assert gd.coefficient("A", 0).has(Symbol("beta"))


def test_a_known_phi_is_put_in() -> None:
    known = expand_nonlinear(mean_field(mlp(L, tanh)), 0)
    assert known.coefficient("Phi", 0, 2).has(tanh)
    assert isinstance(expand(mean_field(mlp(L, tanh)), gamma0, 0), NonlinearExpansion)
    assert known.activation(Symbol("y")) == tanh(Symbol("y"))
    assert isinstance(known.activation, Lambda)


@pytest.mark.parametrize(
    "program",
    [
        partial(mlp, L, phi, weight_decay=Symbol("lam")),
        partial(mlp, L, phi, bias=True),
        partial(mlp, L, phi, branch=Symbol("beta")),
        partial(mlp, 3, phi),
        partial(mlp, L, "linear"),
    ],
    ids=["decay", "bias", "residual", "integer depth", "linear"],
)
def test_other_theories_are_refused(program: Callable[[], Program]) -> None:
    with pytest.raises(NotApplicable):
        expand_nonlinear(mean_field(program()), 0)


def test_kinks_are_refused_beyond_order_zero() -> None:
    theory = mean_field(mlp(L, "relu"))
    assert expand_nonlinear(theory, 0).order == 0
    with pytest.raises(NotApplicable, match="cross a kink"):
        expand_nonlinear(theory, 1)


def test_arguments_are_checked(series: NonlinearExpansion) -> None:
    with pytest.raises(ValueError, match="order = -1"):
        expand_nonlinear(series.theory, -1)
    with pytest.raises(IndexError):
        series.coefficient("Phi", 3)
    with pytest.raises(KeyError, match="no series 'H'"):
        series.coefficient("H", 0)
    with pytest.raises(KeyError, match="no field"):
        series.field("x", 0)
    with pytest.raises(ValueError, match="format"):
        series.render("html")


def test_it_prints(series: NonlinearExpansion) -> None:
    short = series.truncate(0)
    assert "[Φ^ℓ_μα(t,s)]_0 = <φ(u^ℓ_α) φ(u^ℓ_μ)>" in short.render()
    assert r"\begin{align*}" in short.render("latex")


@pytest.mark.parametrize("activation", [x * (1 + erf(x / sqrt(2))) / 2, x / (1 + exp(-x)), sqrt(2) * tanh(x)])
def test_a_phi_that_is_a_product_is_one_function(activation: Expr) -> None:
    """The readout reads phi(h), not h times the other factor."""
    found = expand_nonlinear(mean_field(mlp(L, activation)), 0)
    assert (found.activation.expr - activation.xreplace({x: found.activation.variables[0]})).simplify() == 0


def test_orders_of_the_tangent_kernel_contain_products_of_lower_orders(
    series: NonlinearExpansion, identity: AtFixedPoint
) -> None:
    """Order 4 without Phi4 and G4 is Phi2 G2, here at two layers; one factor was at order 4 only."""
    first, *_, last = series.forests("Phi", 2)
    one = copy(identity)
    one.derived = replace(series, order=4)
    tensors = {name: oriented(ForestCoefficient(name, 2, last))[0] for name in ("Phi", "G")}
    expected = one.expression(tensors["G"]).subs(ell, 2) * one.expression(tensors["Phi"]).subs(ell, 1)
    bound = max(x.sample for x in last) - 1
    twice = last + tuple(
        x._replace(parent=x.parent + (0 if last[x.parent].parent < 0 else 3), sample=x.sample + bound)
        for x in last
        if x.parent >= 0
    )
    assert (one.tangent(4, twice) - expected).subs(L, 2).expand() == 0
    assert expected.subs(L, 2) != 0
    with pytest.raises(KeyError, match="does not contain the forest"):
        one.tangent(4, first)
    with pytest.raises(IndexError, match="n = 4: the series is known for orders 0 to 2"):
        identity.tangent(4, twice)


@pytest.mark.parametrize(
    ("moments", "said"),
    [
        ({(1, 1): 1}, r"\(1, 1\) is given without \(0, 2\)"),
        ({(0, 2): 1}, r"\(0, 2\) is given without \(1, 1\)"),
        ({(3, 1): 1}, r"must be sorted, \(1, 3\)"),
        ({(1, 3): Symbol("a")}, r"moments\[\(1, 3\)\] = a: must be a number"),
    ],
)
def test_averages_that_cannot_be_are_refused(
    series: NonlinearExpansion, moments: dict[tuple[int, ...], Expr], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        AtFixedPoint(series, moments)


def test_names_without_factors_are_refused(series: NonlinearExpansion) -> None:
    for name in ("X", "K"):
        with pytest.raises(
            KeyError, match=f"no order parameter or output '{name}' with factors; there are Phi"
        ):
            series.factors(name, 0)
