"""Cross-layer responses of residual networks: linear2025 (73)-(82), depth2023 Lemma 4.3 and D.3."""

from __future__ import annotations

import pytest
from sympy import Add, Eq, Function, Integer, KroneckerDelta, Mul, Rational, Sum, Symbol, expand, sqrt
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import L
from derive.depth import cross_layer, ends_apart, gamma_c_recursion
from derive.errors import NotApplicable
from derive.linear.projection import error_projected
from derive.linear.propagators import k
from derive.program import ell, eta, s, t
from derive.program.networks.random_data import kappa
from tests.derive.once import depth_program, isotropic, mean_field, mlp, perceptron
from tests.ledger.claims import claimed

beta = Symbol("beta", positive=True)
FAMILIES = {"hu": "R_hu", "hr": "R_hr", "gu": "R_gu", "gr": "R_gr"}


@pytest.fixture(scope="module")
def theory():
    return mean_field(isotropic(data="population", branch=beta))


@pytest.fixture(scope="module")
def cross(theory):
    return cross_layer(theory)


def flat(e):
    """Return sums over time taken apart and started at 0.

    Forms that differ by causality then compare equal.
    """
    total = 0
    for part in Add.make_args(expand(e)):
        sums = [x for x in Mul.make_args(part) if isinstance(x, Sum)]
        if not sums:
            total += part
            continue
        ((index, _, upper),) = sums[0].limits
        body = expand(part / sums[0] * sums[0].function)
        total += Add(*[Sum(y, (index, 0, upper)) for y in Add.make_args(body)])
    return total


def without_equal_time(e):
    return e.replace(
        lambda x: isinstance(x, Sum), lambda x: Sum(x.function, *[(i, a, t - 1) for i, a, _ in x.limits])
    )


def test_recursions_73_up_to_its_slips(cross):
    """The dr-lines are right but for t'' = t; the du-lines differ by the deltas named in the ledger."""
    printed = claimed("linear2025", "73")
    for key, name in FAMILIES.items():
        member = ell + 1 if name.startswith("R_h") else ell
        derived = flat(without_equal_time(cross.response(name, member).rhs))
        gap = expand(flat(printed[key]) - derived)
        now = beta * KroneckerDelta(s, t)
        expected = {
            "hr": 0,
            "gr": 0,
            "hu": -now * KroneckerDelta(k, ell + 1),
            "gu": now * KroneckerDelta(k, ell),
        }[key]
        assert gap == expand(expected), key


def test_ends_73(cross):
    """At layer L as printed; at layer 1, R_h0r0 with the paper's r^0 = r0/(nu gamma0), and dg^1/du^k."""
    printed = claimed("linear2025", "73")
    assert flat(printed["gu_L"]) == flat(cross.response("R_gu", L).rhs)
    assert flat(printed["gr_L"]) == flat(cross.response("R_gr", L).rhs)
    nu, gamma0 = Symbol("nu", positive=True), Symbol("gamma0", positive=True)
    units = expand(flat(printed["hr_1"])).subs(1 / (nu * gamma0), 1)
    derived = flat(without_equal_time(cross.response("R_hr", 1).rhs))
    assert expand(units.subs({nu: 1}) * 1 - derived).subs({gamma0: 1, nu: 1}) == 0
    first = cross.response("R_hu", 1)
    assert any(x.expr == KroneckerDelta(1, k) * KroneckerDelta(s, t) for x in first.terms)
    assert first.rhs.has(Function("R_gu")(1, k, Symbol("s_", nonnegative=True), s))


def test_equal_times_come_from_the_order_of_the_step(cross):
    """Check that sums for h end at t and sums for g at t - 1.

    h responds to r within the step, g does not respond to u.
    """
    up = [x.expr for x in cross.response("R_hr", ell + 1).terms if x.kind == "response"]
    down = [x.expr for x in cross.response("R_gr", ell).terms if x.kind == "response"]
    assert [x.limits[-1][2] for x in up] == [t]
    assert [x.limits[-1][2] for x in down] == [t - 1]
    assert [x.limits[-1][1] for x in cross.response("R_hu", ell + 1).rhs.atoms(Sum)] == [s + 1, s + 1]


def test_smallest_case_by_hand(cross):
    """Two layers, t = s = 0: h^1 = u^1 + R_h0r0 g^1, g^1 = (1) r^2 + beta r^1, h^2 = h^1 + beta u^2 + ..."""
    zero = {t: 0, s: 0, L: 2}

    def at(name, layer, source):
        e = cross.response(
            name,
            ell + 1
            if (name[2] == "h" and layer == 2)
            else layer
            if name[2] == "h"
            else (L if layer == 2 else ell),
        )
        rhs = e.rhs.subs({ell: 1, k: source, **zero}).doit()
        return expand(rhs)

    kick = Function("R_h0r0")(0, 0)
    answers = {Function("R_gr")(1, 1, 0, 0): at("R_gr", 1, 1), Function("R_gr")(2, 1, 0, 0): at("R_gr", 2, 1)}
    assert answers[Function("R_gr")(2, 1, 0, 0)] == 0
    value = at("R_gr", 1, 1).subs(answers)
    assert value == beta
    assert at("R_hr", 1, 1).subs(Function("R_gr")(1, 1, 0, 0), beta) == kick * beta


def test_fields_are_responses_times_sources(cross):
    r, u, R_gr, R_gu = (Function(x) for x in ("r", "u", "R_gr", "R_gu"))
    expected = Sum(R_gr(ell, k, t, s) * r(k, s), (k, 1, L), (s, 0, t)) + Sum(
        R_gu(ell, k, t, s) * u(k, s), (k, 1, L), (s, 0, t - 1)
    )
    assert cross.field("g").rhs == expected


def test_correlations_sum_over_one_layer_index(cross):
    """(78) has sums over k and k'; one is enough, and the ends have their own covariances."""
    found = cross.correlation("C_h").rhs
    assert len(found.args) == 4
    assert {lim[0] for x in found.atoms(Sum) for lim in x.limits} == {
        k,
        *[Symbol(n, nonnegative=True) for n in ("t_1", "s_1")],
    }
    assert claimed("linear2025", "78")["C_h"].has(Symbol("k_", integer=True))


def test_own_responses_are_the_diagonal(cross):
    R = Function("R_hr")
    assert Eq(R(ell, t, s), R(ell, ell, t, s), evaluate=False) in cross.diagonal
    assert not any(x.func == R and len(x.args) == 3 for e in cross.closed().responses for x in e.rhs.atoms(R))


def test_ends_have_names_of_their_own(theory):
    apart = ends_apart(cross_layer(theory))
    assert apart.response("R_hu_1", 1).terms[0].expr == KroneckerDelta(s, t)
    assert not apart.response("R_hu_1", ell + 1).rhs.has(KroneckerDelta)
    assert not apart.response("R_hu", 1).rhs.has(KroneckerDelta)


def test_a_nonlinear_theory_is_refused():
    with pytest.raises(NotApplicable):
        cross_layer(mean_field(mlp(2, "tanh")))
    with pytest.raises(
        NotApplicable, match="p is not a field of the program: use the theory without the reduction"
    ):
        cross_layer(error_projected(mean_field(mlp(2))))


def test_sources_that_are_correlated_meet_both_ways():
    """A linear perceptron after one step: Delta(1) = (1 - eta Z Z^T) Z (w_star - w), Marchenko and Pastur."""
    found = cross_layer(mean_field(perceptron("teacher"))).closed()
    rules = {str(e.lhs.func): e for e in (*found.responses, *found.correlations)}

    def value(x):
        e = rules[str(x.func)]
        rhs = e.rhs.subs(dict(zip(e.lhs.args, x.args, strict=True)), simultaneous=True).doit()
        return rhs.xreplace({a: value(a) for a in rhs.atoms(AppliedUndef)}).doit()

    second, third = 1 + kappa, 1 + 3 * kappa + kappa**2
    expected = 2 * (1 - 2 * eta * second + eta**2 * third)
    assert expand(value(Function("C_Delta")(Integer(1), Integer(1))) - expected) == 0


@pytest.mark.parametrize("scaling", ["half", "any"])
def test_lemma_43_and_d3(scaling):
    """The printed recursions, line by line."""
    a, g = (
        (Rational(1, 2),) * 2
        if scaling == "half"
        else (Symbol("alpha", real=True), Symbol("gamma", real=True))
    )
    found = gamma_c_recursion(mean_field(depth_program(alpha=a, gamma=g)))
    printed = claimed("depth2023", "Lemma 4.3" if scaling == "half" else "D.3")
    for i in (0, 1):
        for j in (0, 1):
            derived = found.response(f"Gamma_{i}{j}", ell - i).rhs
            gap = flat(derived) - flat(printed[f"Gamma_{i}{j}"])
            assert gap.simplify() == 0 or expand(gap).powsimp().simplify() == 0, (i, j)
    if scaling == "half":
        for i in (0, 1):
            assert strip(found.correlation(f"C_{i}").rhs) == strip(printed[f"C_{i}"])
        assert found.correlation("f").rhs == Function("Gamma_0V")(L, t)


def strip(e):
    """Return sums over time at full extent; responses vanish outside of the printed bounds."""
    return e.replace(
        lambda x: isinstance(x, Sum),
        lambda x: Sum(x.function, *[(i, a, b + 1 if b in (t - 1, s - 1) else b) for i, a, b in x.limits]),
    )


def test_gamma_starts():
    found = gamma_c_recursion(mean_field(depth_program()))
    xi, chi = Function("xi"), Function("chi")
    assert found.response("Gamma_0U", 0).rhs == xi(t)
    assert found.response("Gamma_1V", L).rhs == chi(t)
    for name, at in (("Gamma_00", 0), ("Gamma_01", 0), ("Gamma_0V", 0), ("Gamma_10", L), ("Gamma_11", L)):
        assert found.response(name, at).rhs == 0
    assert found.response("Gamma_00", ell).terms[0].expr == KroneckerDelta(ell, k) * KroneckerDelta(
        s, t
    ) * sqrt(L) / sqrt(L)
