"""The limit of infinite depth: linear2025 (17), (89)-(95), depth2023 Prop. 4.4, D.3, Def. E.1."""

from __future__ import annotations

import pytest
from sympy import (
    Add,
    Derivative,
    DiracDelta,
    Function,
    Integral,
    KroneckerDelta,
    Mul,
    Rational,
    Sum,
    Symbol,
    expand,
    sqrt,
)

from derive.calculus.averages import Average
from derive.calculus.symbols import L
from derive.depth import Scaling, cross_layer, gamma_c_recursion, layer_time, rescale
from derive.depth.layers import tau, tau_
from derive.depth.nonlinear import effective, with_activation
from derive.errors import NotApplicable
from derive.program import ell, s, t
from derive.program.networks.residual import nonlinear_program
from derive.theory.routes import check_routes
from tests.derive.depth.test_depth_cross_layer import flat, strip, without_equal_time
from tests.derive.once import depth_program, isotropic, mean_field
from tests.ledger.claims import claimed

beta, beta0 = Symbol("beta", positive=True), Symbol("beta0", positive=True)
half, epsilon = Rational(1, 2), Symbol("epsilon", positive=True)


@pytest.fixture(scope="module")
def cross():
    return rescale(cross_layer(mean_field(isotropic(data="population", branch=beta))), beta)


@pytest.fixture(scope="module")
def limit(cross):
    return layer_time(cross, Scaling({beta: beta0 / sqrt(L)}))


@pytest.fixture(scope="module")
def gammas():
    a, g = Symbol("a"), Symbol("g")
    return a, g, gamma_c_recursion(mean_field(depth_program(alpha=a, gamma=g)))


def one_layer_time(e):
    """Return the diagonal of a response with one layer time, as the paper writes it."""
    names = [Function(n) for n in ("R_hr", "R_gu")]
    return e.replace(
        lambda x: x.func in names and len(x.args) == 4 and x.args[0] == x.args[1],
        lambda x: x.func(*x.args[1:]),
    )


def test_stochastic_equations_89_but_for_equal_times(limit):
    printed = claimed("linear2025", "89")
    for name in "hg":
        derived = one_layer_time(limit.field(name).rhs)
        assert flat(without_equal_time(derived)) == flat(printed[name])
    assert flat(limit.field("g").rhs) == flat(without_equal_time(limit.field("g").rhs))
    assert any(x.limits[-1][2] == t for x in limit.field("h").rhs.atoms(Sum))


def test_noise_90(limit):
    printed = claimed("linear2025", "90")
    noise = {e.lhs: e.rhs for e in limit.noise}
    u, r = Function("u"), Function("r")
    assert noise[Average(u(tau, t) * u(tau_, s))] == printed["<u u>"]
    assert noise[Average(r(tau, t) * r(tau_, s))] == printed["<r r>"]


def test_response_equations_93(limit):
    """The printed equation with beta0^2 for beta0, the correct kernels, two layer times and a delta."""
    R_gu, R_hr, C_h = (Function(n) for n in ("R_gu", "R_hr", "C_h"))
    s_, eta, gamma0 = (
        Symbol("s_", nonnegative=True),
        Symbol("eta", positive=True),
        Symbol("gamma0", positive=True),
    )
    source = DiracDelta(tau - tau_) * limit.response("R_hu").rhs.args[0].args[1]
    gap = flat(limit.response("R_hu").rhs) - source
    first = Sum(beta0**2 * R_hr(tau, tau, t, s_) * R_gu(tau, tau_, s_, s), (s_, 0, t))
    second = Sum(beta0**2 * eta * gamma0 * C_h(tau, t, s_) * R_gu(tau, tau_, s_, s), (s_, 0, t - 1))
    assert expand(gap - first - second) == 0
    printed = claimed("linear2025", "93")
    assert printed["R_gu"].has(Function("C_h"))
    assert not limit.response("R_gu").rhs.has(Function("C_h"))
    assert limit.response("R_gu").rhs.has(Function("C_g"))


def test_correlations_94_need_their_ends(limit):
    found = limit.correlation("C_h").rhs
    assert len(found.args) == 4
    bulk = [x for x in found.args if x.has(Integral)]
    assert len(bulk) == 2
    assert all(x.has(beta0) for x in bulk)
    printed = claimed("linear2025", "94")["C_h"]
    assert not printed.has(Function("R_hu_1"))
    assert found.has(Function("R_hu_1"), Function("R_hr_L"))


def test_starts_join_both_ends(limit):
    eta, gamma0, s_ = (
        Symbol("eta", positive=True),
        Symbol("gamma0", positive=True),
        Symbol("s_", nonnegative=True),
    )
    assert limit.start("R_gr").rhs == Sum(eta * gamma0 * Function("R_hr")(1, tau_, s_, s), (s_, s, t - 1))
    assert limit.start("R_hr").rhs.has(Function("R_h0r0"))
    assert not limit.dropped


def test_only_the_square_root_has_a_limit(cross):
    with pytest.raises(NotApplicable, match="has no limit"):
        layer_time(cross, Scaling({beta: beta0 * L ** Rational(-1, 4)}))
    weak = layer_time(cross, Scaling({beta: beta0 / L}))
    assert weak.response("R_hu").rhs == DiracDelta(tau - tau_) * KroneckerDelta(s, t)
    assert weak.dropped
    assert weak.field("h").rhs == 0


def test_proposition_44(gammas):
    a, g, cross = gammas
    found = layer_time(cross, Scaling({a: half, g: half}))
    printed = claimed("depth2023", "Prop. 4.4")
    assert not found.dropped
    assert not found.vanishing

    def inside(e):
        """Return integrals taken apart like sums."""
        return e.replace(lambda x: isinstance(x, Integral), lambda x: Integral(flat(x.function), *x.limits))

    for i in (0, 1):
        for j in (0, 1):
            assert inside(found.integral(f"Gamma_{i}{j}").rhs) == inside(printed[f"Gamma_{i}{j}"]), (i, j)
        assert strip(found.correlation(f"C_{i}").rhs) == strip(printed[f"C_{i}"])


def test_kernel_of_the_last_layer_is_c0(gammas):
    """Theorem 4.1 prints C_{t,s,1}(1), which is chi chi: only the frozen readout causes it."""
    a, g, cross = gammas
    found = layer_time(cross, Scaling({a: half, g: half}))
    assert claimed("depth2023", "Thm. 4.1")["kernel"] == Function("C_1")(1, t, s)
    chi = Function("chi")
    assert found.start("Gamma_1V").rhs == chi(t)
    assert [found.start(n).rhs for n in ("Gamma_1U", "Gamma_10", "Gamma_11")] == [0, 0, 0]


def test_above_one_half_there_is_an_ode(gammas):
    a, g, cross = gammas
    found = layer_time(cross, Scaling({a: half + epsilon, g: half - epsilon}))
    assert found.vanishing == ("Gamma_00", "Gamma_01", "Gamma_10", "Gamma_11")
    assert {x.order for x in found.dropped} == {-epsilon}
    C_0, G_1U = Function("C_0"), Function("Gamma_1U")
    assert found.response("Gamma_0U").lhs == Derivative(Function("Gamma_0U")(tau, t), tau)
    assert found.response("Gamma_0U").rhs == Sum(-C_0(tau, t, s) * G_1U(tau, s), (s, 0, t - 1))
    assert not found.correlation("C_0").rhs.has(Integral)


@pytest.mark.parametrize("values", [(half - epsilon, half + epsilon), (half, half - epsilon)])
def test_unstable_scalings_are_refused(gammas, values):
    a, g, cross = gammas
    with pytest.raises(NotApplicable):
        layer_time(cross, Scaling(dict(zip((a, g), values, strict=True))))


def test_trivial_scalings_lose_the_update(gammas):
    a, g, cross = gammas
    found = layer_time(cross, Scaling({a: half, g: half + epsilon}))
    assert not found.response("Gamma_0U").rhs.has(Function("C_0"))


def test_a_system_must_be_rescaled():
    with pytest.raises(NotApplicable, match=r"with derive\.depth\.rescale"):
        layer_time(cross_layer(mean_field(depth_program())))


def test_order_must_be_known(gammas):
    a, _, cross = gammas
    with pytest.raises(NotApplicable, match="sign of the exponent depends on symbols"):
        layer_time(cross, Scaling({a: half}))


# -- nonlinear -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stream():
    return effective(mean_field(nonlinear_program()))


def test_linear_activation_gives_the_linear_network_back(stream):
    """phi(z) = z: every average of Def. E.1 is 0 or 1, and the recursions are those of Lemma 4.3."""
    chosen = with_activation(stream, lambda z: z)
    values = {q.name: q.definition for q in chosen.order_parameters}
    assert values["V_11"] == 1
    assert values["V_22"] == values["V_02"] == values["V_13"] == values["M_2"] == 0
    C_x = Function("C_x")
    assert values["V_00"] == C_x(ell - 1, t, s)
    printed = claimed("depth2023", "Def. E.1")["backward"]
    assert printed.has(Function("V_1c"))  # the covariance of phi' with phi': 0 for phi(z) = z

    def put(e):
        numbers = {"V_11": 1, "V_22": 0, "V_02": 0, "V_13": 0, "M_2": 0, "M_0": 0}
        e = e.replace(lambda x: str(x.func) in numbers, lambda x: numbers[str(x.func)])
        return e.replace(lambda x: isinstance(x, Sum) and x.function == 0, lambda _: 0)

    def begun(e):
        """Return sums with R_dxu that end at t - 1.

        R_dxu(t, t) obeys a homogeneous equation at these numbers, so that it is 0.
        """
        return e.replace(
            lambda x: isinstance(x, Sum) and x.has(Function("R_dxu")),
            lambda x: Sum(x.function, *[(i, a, t - 1) for i, a, _ in x.limits]),
        )

    ours = {e.lhs: expand(begun(put(e.rhs))) for e in stream.equations}
    linear = mean_field(depth_program())
    assert ours == {e.lhs: expand(e.rhs) for e in linear.equations}


def test_forward_bracket_of_def_e1(stream):
    """V_phi' (Gamma_01 - C_0) in front of dx; the noise has the covariance of MS(phi)."""
    found = layer_time(rescale(cross_layer(stream), 1 / sqrt(L)))
    V_11, R_xr, C_x, dx = (Function(n) for n in ("V_11", "R_xr", "C_x", "dx"))
    expected = Function("u")(tau, t)
    expected += Sum(R_xr(tau, tau, t, s) * V_11(tau, t, s) * dx(tau, s), (s, 0, t - 1))
    expected += Sum(-C_x(tau, t, s) * V_11(tau, t, s) * dx(tau, s), (s, 0, t - 1))
    assert found.field("x").rhs == expected
    noise = {e.lhs: e.rhs for e in found.noise}
    M, V = Function("M_0"), Function("V_00")
    value = noise[Average(Function("u")(tau, t) * Function("u")(tau_, s))]
    assert value == DiracDelta(tau - tau_) * (V(tau, t, s) - M(tau, t) * M(tau, s))


def test_backward_bracket_of_def_e1(stream):
    """Compare with b = phi'(u + K phi'(u_s) e_s) (e + R phi_c(u_s)) to first order in K and R.

    Beside the printed form five terms have phi'' and phi''', and the Gamma has <phi' phi'>.
    """
    row = stream.equation("dx", ell - 1).rhs
    R, R_xr, C_x, C_dx = (Function(n) for n in ("R_dxu", "R_xr", "C_x", "C_dx"))
    V_11, V_22, V_02, V_13, M_0, M_2 = (Function(n) for n in ("V_11", "V_22", "V_02", "V_13", "M_0", "M_2"))
    x, share = Function("x"), 1 / sqrt(L)
    K = (R_xr(ell - 1, t, s), -share * C_x(ell - 1, t, s))
    past, known, now = (s, 0, t - 1), R(ell, t, s), x(ell - 1, t)
    expected = Function("dx")(ell, t) + share * Function("r")(ell - 1, t)
    expected += Sum(share * known * V_11(ell, t, s) * x(ell - 1, s), (s, 0, t))
    expected += Sum(share * known * V_02(ell, s, t) * now, (s, 0, t))
    expected -= Sum(share * known * M_0(ell, s) * M_2(ell, t) * now, (s, 0, t))
    for part in K:
        expected += Sum(share * part * C_dx(ell, t, s) * V_22(ell, t, s) * x(ell - 1, s), past)
        expected += Sum(share * part * C_dx(ell, t, s) * V_13(ell, s, t) * now, past)
    expected -= Sum(share**2 * C_dx(ell, t, s) * V_11(ell, t, s) * x(ell - 1, s), past)
    gap = expand(flat_to(expected) - flat_to(row))
    assert gap == 0


def flat_to(e):
    """Return sums with the sign inside, each to its own end."""
    total = 0
    for part in Add.make_args(expand(e)):
        sums = [x for x in Mul.make_args(part) if isinstance(x, Sum)]
        total += Sum(part / sums[0] * sums[0].function, *sums[0].limits) if sums else part
    return total


def test_gradients_answer_their_own_step(stream):
    """Check that dx responds to the same unit at equal time.

    b responds to u at equal time, and x_t of the layers above contains u.
    """
    cross = cross_layer(stream)
    (answer,) = [x.expr for x in cross.response("R_dxu", ell - 1).terms if x.expr.has(Function("V_02"))]
    assert [x.limits for x in answer.atoms(Sum)] == [((Symbol("s_", nonnegative=True), 0, t),)]


def test_effective_needs_nonlinear_layers():
    with pytest.raises(NotApplicable):
        effective(mean_field(depth_program()))


def test_both_routes_derive_the_nonlinear_network():
    assert check_routes(nonlinear_program()) == []


def test_averages_in_the_limit_are_those_at_layer_time(stream):
    found = layer_time(rescale(cross_layer(stream), 1 / sqrt(L)))
    for name in ("M_0", "V_11", "V_13"):
        assert not found.correlation(name).rhs.has(ell), name
        assert found.correlation(name).rhs.has(Function("C_x")(tau, t, t))


def test_a_reduction_says_what_it_assumes(stream):
    assert "small branches" in stream.reduction
    assert "h of a layer is its own source at leading order" in stream.reduction
    assert stream.reduction in " ".join(stream.render().split())


def test_terms_of_the_effective_theory_say_which_kernel_acts_on_which_field(stream):
    kinds = {(x.kind, str(x.field.func), x.reach) for x in stream.equation("x", ell).terms}
    assert kinds == {
        ("definition", "x", ""),
        ("source", "u", ""),
        ("response", "dx", "strict"),
        ("memory", "dx", "strict"),
    }
    for x in stream.equation("dx", ell - 1).terms:
        assert not x.kernel.has(Function("x")), x
        assert not x.field.has(Sum), x
