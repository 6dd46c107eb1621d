"""Tests of the classification of (alpha, gamma): regions of depth2023, closed form, refusals."""

import json
from fractions import Fraction
from functools import cache
from itertools import product

import pytest
from sympy import E, Expr, Poly, Rational, Symbol, exp, factorial2, lambdify, oo, prod, symbols

from derive.calculus.symbols import L, eta
from derive.depth.balance import alpha, gamma
from derive.depth.nonlinear import effective
from derive.errors import NotApplicable
from derive.program import lion
from derive.program.networks.residual import nonlinear_program
from derive.scale.depth import DepthParametrization, epsilon, tau, update_power
from derive.scale.depth import first_update as derived_update
from derive.scale.depth_steps import depth_exponents
from tests.derive.once import depth_program, mean_field, mlp
from tests.derive.scale.derived import depth

PROGRAM = depth_program(alpha=alpha, gamma=gamma)
LINEAR = depth()
classify, optimal_rate = LINEAR.classify, LINEAR.largest_rate
HALF = Fraction(1, 2)
POINTS = list(
    product(map(Fraction, ("1/4", "1/2", "3/4", "1", "3/2")), map(Fraction, ("-1/2", "0", "1/4", "1/2", "1")))
)
CORNERS = [(Fraction(1, 4), HALF), (HALF, Fraction(0)), (Fraction(1), HALF), (Fraction(3, 4), Fraction(1))]
"""Beside the line ``alpha + gamma = 1``, one point of each region and, in the stable ones, two."""


at, first_update = cache(classify), cache(derived_update)


@pytest.mark.parametrize(
    ("a", "g"),
    [x if x in CORNERS or sum(x) == 1 else pytest.param(*x, marks=pytest.mark.slow) for x in POINTS],
)
def test_the_claims_of_section_7(a, g):
    """Claims 7.1-7.6 as printed, for stream and output (Claim 7.2 is about these)."""
    found = at(a, g)
    assert found.stable_at_init == (a >= HALF)
    if a < HALF:
        assert found.region == "unstable at initialisation"
        assert not found.stable_in_training
        return
    assert found.stable_in_training == (a + g >= 1)
    assert found.nontrivial == (a + g <= 1)
    assert found.faithful_at_init
    if a + g == 1:
        assert found.faithful_in_training == (a <= 1)
        assert found.redundant == (a > HALF)
        assert found.layerwise_linear == (a < 1)
        assert found.feature_learning == (a <= 1)


def test_depth_mup_is_the_one_class_with_everything():
    whole = [
        (a, g)
        for a, g in POINTS
        if (x := at(a, g)).stable_at_init
        and x.stable_in_training
        and x.nontrivial
        and x.faithful_in_training
        and x.feature_learning
        and x.diversity == Rational(1, 2)
    ]
    assert whole == [(HALF, HALF)]


def test_beyond_the_claims():
    """Check that h diverges where gamma < 0 although stream and output are stable.

    Layers differ without learning.
    """
    assert classify(2, "-1/2").stable_in_training
    assert not classify(2, "-1/2").faithful_in_training
    assert classify(2, "-1/2").exponents["feature"] == HALF
    assert classify("1/2", 1).diversity == HALF
    assert not classify("1/2", 1).nontrivial
    assert classify("3/4", 1).diversity is None
    assert classify(2, 0).feature_learning  # of h alone: Def. 7.5 does not ask whether the output moves


def test_symbols_with_assumptions():
    e = Symbol("e", positive=True)
    share = 1 / (2 * (1 + e))
    inside = classify(1 - share, share)  # all of the line between the edges
    assert (inside.region, inside.diversity, inside.layerwise_linear) == ("redundant", 0, True)
    assert classify(1 + e, -e).region == "unfaithful"
    assert classify(Rational(1, 2) - e, 0).exponents["output"] == oo
    assert classify(Rational(1, 2) + e, Rational(1, 2) + 2 * e).exponents["output"] == -3 * e


@pytest.mark.parametrize(
    ("a", "g", "named"),
    [
        ("x", 1, "alpha = 'x'"),
        (1, True, "gamma = True"),
        (oo, 1, "alpha = oo"),
        (1, float("nan"), "gamma = nan"),
        ("1/0", 0, "alpha = '1/0'"),
        ("1e9", 0, "alpha = '1e9'"),
        ([], 0, "alpha = "),
        (L, 0, "alpha = L"),
        (1, Symbol("g", real=True), r"the sign of .* \(gamma = g\), which is not known"),
    ],
)
def test_what_is_no_exponent_is_refused_by_name(a, g, named):
    with pytest.raises(NotApplicable, match=named):
        classify(a, g)


def test_other_rules_are_refused_by_name():
    calls = (
        lambda: classify(1, 1, "adam"),
        lambda: first_update(PROGRAM, "lion"),
    )
    for call in calls:
        with pytest.raises(
            NotApplicable, match=r"rule = '.*' is not known: the names of rules are 'sgd' and 'sign'"
        ):
            call()


@pytest.mark.slow
def test_small_decimal_numbers_are_exponents():
    """Python prints 1e-7 with an exponent."""
    assert classify(0.5, 1e-7).exponents == classify("1/2", "1/10000000").exponents


def test_statements_at_the_edge_and_above():
    xi, chi = symbols("xi chi_0", real=True)
    edge = {x.name: x for x in classify("1/2", "1/2").statements}
    assert edge["stream at the start"].leading == E * xi**2
    assert edge["output"].leading == -E * chi * xi**2
    assert edge["preactivation"].leading == -(xi**2) * (1 + tau) * exp(tau) / L**HALF
    above = {x.name: x for x in classify("3/4", "1/4").statements}
    assert above["output"].leading == -chi * xi**2
    assert above["diversity, noise"].leading == epsilon * xi**2 / L**HALF
    assert above["diversity, drift"].leading == -chi * epsilon * xi**2
    assert {x.leading for x in classify(0, 1).statements} == {None}


def test_powers_of_closed_forms_are_those_that_were_counted():
    """Two derivations of one exponent: power counting, and the closed form at large depth."""
    for x in LINEAR.statements:
        if x.leading is not None:
            square = 2 if x.name in ("stream at the start", "diversity, noise") else 1
            z = symbols("z", positive=True)
            power = x.leading.subs(z, L ** (1 - 2 * alpha))
            if x.name == "diversity, noise":
                power = power.series(epsilon, 0, 2).removeO()
            for a, g in ((1, 0), (Rational(3, 4), Rational(1, 2)), (2, -1)):
                at = {alpha: a, gamma: g}
                ratio = (power / L ** (square * x.exponent)).subs(at)
                values = [
                    abs(ratio.subs({L: v}).subs(dict.fromkeys(ratio.free_symbols, 1)).evalf())
                    for v in (1e8, 1e12)
                ]
                assert 0.5 < values[1] / values[0] < 2, x.name


@pytest.mark.slow
def test_nonlinear_layers_have_the_exponents_of_linear_ones():
    nonlinear = effective(mean_field(nonlinear_program(alpha=alpha, gamma=gamma)))
    one, other = LINEAR.exponents, depth_exponents(nonlinear)
    assert len(other.conditions()) == len(one.conditions()) + 1
    names = (
        "gain",
        "output",
        "stream",
        "bracket",
        "feature",
        "preactivation",
        "noise",
        "drift",
        "linearisation",
    )
    assert [getattr(one, n) for n in names] == [getattr(other, n) for n in names]


def test_other_networks_are_refused():
    with pytest.raises(NotApplicable, match="must have a residual stream"):
        depth_exponents(mean_field(mlp(2, "linear")))
    with pytest.raises(NotApplicable, match="no residual layer"):
        first_update(mlp(2, "linear"))


def test_several_samples_are_refused():
    """The number of samples was taken for a time: TypeError, Cannot convert symbols to int."""
    with pytest.raises(NotApplicable, match=r"indices alpha, mu besides layers and times.*depth_program\(\)"):
        depth_exponents(mean_field(mlp(L, branch=1)))


def test_exponents_of_another_branch_follow():
    """Branches times L^-2 alpha: what was typed in version 0.1 would not move."""
    other = depth_program(alpha=2 * alpha, gamma=gamma)
    assert update_power(other, "sgd") - update_power(PROGRAM, "sgd") == alpha
    assert first_update(other).rate == first_update(PROGRAM).rate.subs(alpha, 2 * alpha)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_first_update_of_few_layers_is_that_of_their_product(depth):
    """Gradient descent at width one: a product of layers differentiated by each weight, averaged exactly."""
    weights, branch, x, slope = symbols(f"W:{depth}"), symbols("b"), symbols("x_0"), symbols("chi")
    output = x * prod(1 + branch * w for w in weights)
    change = sum(slope * output.diff(w) ** 2 for w in weights).expand()
    terms = Poly(change**2, *weights).terms()
    exact = sum(
        c * prod(factorial2(n - 1) for n in powers) for powers, c in terms if not any(n % 2 for n in powers)
    )
    found = first_update(PROGRAM, "sgd").square.subs({L: depth, alpha: 1})
    values = {branch: Rational(1, depth), x: Rational(3, 2), slope: Rational(-4, 5)}
    known = {v: values[symbols(v.name)] for v in found.free_symbols}
    assert found.subs(known) == (exact / branch**2).subs(values)


@pytest.mark.slow
def test_the_largest_rate_of_another_branch_follows():
    other = DepthParametrization(mean_field(depth_program(alpha=2 * alpha, gamma=gamma)))
    assert other.largest_rate("sign") == optimal_rate("sign").subs(alpha, 2 * alpha)


def test_rates_of_table_1():
    at_half = {alpha: HALF}
    assert [optimal_rate(r).subs(at_half) for r in ("sgd", "sign")] == [0, HALF]
    assert [first_update(PROGRAM, r).rate - optimal_rate(r) for r in ("sgd", "sign")] == [0, 0]
    assert update_power(PROGRAM, "sgd") - update_power(PROGRAM, "sign") == alpha
    # section 3: E A_L^2 = Theta(L) for SGD and Theta(L^2) for signs at alpha = 1/2
    assert [first_update(PROGRAM, r).leading.as_powers_dict()[L].subs(at_half) for r in ("sgd", "sign")] == [
        1,
        2,
    ]


def test_a_notebook_shows_expressions_by_name():
    for x in (LINEAR.exponents, LINEAR.first_step, LINEAR.statements[1], classify("1/2", "1/2")):
        assert x._repr_latex_().startswith(r"$$\begin{aligned}\mathrm{")
    assert r"\mathrm{drift} &= 0" in classify("1/2", "1/2")._repr_latex_()
    assert r"\mathrm{at half} &= e^{6}" in first_update(PROGRAM)._repr_latex_()


def test_json():
    text = json.dumps(classify("1/2", "1/2", "sign").as_json())
    back = json.loads(text)
    assert back["regime"] == "depth-muP"
    assert back["learning_rate"] == "1/sqrt(L)"
    assert back["diversity"] == "1/2"
    assert back["stable_at_init"] is True
    assert any("width" in x for x in back["conditions"])
    assert {x["name"] for x in back["statements"]} == {x.name for x in LINEAR.statements}


def test_what_is_printed_can_be_computed():
    """Every closed form and every exponent through plain lambdify, against substitution."""
    numbers = {"L": 7, "ell": 3, "alpha": 0.7, "gamma": 0.4, "z": 0.6, "tau": 0.5, "epsilon": 0.25}
    numbers |= {"xi": 1.3, "chi_0": -0.8, "chi": -0.8, "x_0": 1.1, "c": 0.2}
    first, exponents = LINEAR.first_step, vars(LINEAR.exponents).values()
    shown = [*vars(first).values(), *(x for x in exponents if isinstance(x, Expr))]
    shown += [y for x in LINEAR.statements for y in (x.exact, x.leading) if y is not None]
    shown += [
        y for r in ("sgd", "sign") for y in vars(first_update(PROGRAM, r)).values() if isinstance(y, Expr)
    ]
    for e in shown:
        symbols_ = sorted(e.free_symbols, key=str)
        values = [numbers[x.name] for x in symbols_]
        exact = e.subs(dict(zip(symbols_, map(Rational, values), strict=True))).evalf()
        for modules in ("numpy", "mpmath"):
            assert float(lambdify(symbols_, e, modules)(*values)) == pytest.approx(float(exact), rel=1e-12), e


def test_exponents_that_are_numbers_are_refused() -> None:
    """A number in place of gamma cannot be replaced by the exponent c of the rate."""
    numbers, branches = depth_program(), depth_program(gamma=gamma)
    network = DepthParametrization(mean_field(numbers))
    for call in (lambda: update_power(numbers), network.rate, lambda: network.classify("1/2", "1/2")):
        with pytest.raises(NotApplicable, match="give a program with symbols as exponents"):
            call()
    with pytest.raises(NotApplicable, match=r"factor of the branches is .*without the symbol alpha"):
        derived_update(branches)
    with pytest.raises(NotApplicable, match="rule = Lion: the first update at width one is derived for"):
        derived_update(PROGRAM, lion(eta))
