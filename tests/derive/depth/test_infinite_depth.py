"""Tests of the first correction to infinite depth, feature diversity and blocks, symbol by symbol."""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import lru_cache

import numpy as np
import pytest
from sympy import (
    Derivative,
    Eq,
    Expr,
    Function,
    Heaviside,
    Integral,
    KroneckerDelta,
    Max,
    Rational,
    S,
    Sum,
    Symbol,
    exp,
    integrate,
    latex,
    sqrt,
    srepr,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import L, ell, s, t
from derive.depth import (
    CrossLayer,
    Scaling,
    cross_layer,
    gamma_c_recursion,
    layer_time,
    rescale,
)
from derive.depth.balance import STABLE, alpha, balance, counted, delta, power
from derive.depth.blocks import (
    BlockLimit,
    balanced,
    block_limit,
    within_blocks,
    without_blocks,
    without_silent,
)
from derive.depth.infinite import InfiniteDepth, LayerTime, aligned, between, diversity, infinite_depth
from derive.depth.layers import LayerExpansion, tau, tau_
from derive.errors import NotApplicable, ProgramError
from derive.linear.propagators import k
from derive.program.networks.residual import block_program
from tests.derive.once import depth_program, isotropic, mean_field

beta, beta0 = Symbol("beta", positive=True), Symbol("beta0", positive=True)
X, Y, C = Function("X"), Function("Y"), Function("C")
HALF = Rational(1, 2)


@lru_cache(maxsize=4)
def frozen(alpha: Expr) -> InfiniteDepth:
    theory = mean_field(depth_program(alpha=alpha, gamma=1 - alpha))
    return infinite_depth(rescale(cross_layer(theory), L**-alpha))


def reader(slots: dict[str, int], cuts: dict[str, int] | None = None, order: int = 1) -> LayerExpansion:
    return LayerExpansion(slots, cuts or {}, order, 1)


def steps_only(e: Expr) -> Expr:
    """Return the contribution of the discretisation into layers, without corrections to functions."""
    return e.replace(
        lambda x: isinstance(x, AppliedUndef) and str(x.func).startswith("first_"), lambda _: S.Zero
    )


def test_conditions_name_the_orders() -> None:
    """Order 0 was described as the orders 1 to 0."""
    words = [replace(frozen(HALF), order=n).conditions()[-1] for n in (0, 1, 3)]
    assert [x.rsplit("order ")[-1] for x in words] == ["zero", "one", "1 to 3"]


# -- Taylor, Euler and Maclaurin ---------------------------------------------------------------------------


def test_a_shifted_layer_is_a_derivative() -> None:
    found = reader({"C": 1}).series(C(ell + 2, t))
    first, slope = (Function(f"{n}_C")(tau, t) for n in ("first", "slope"))
    assert found == (C(tau, t), first + 2 * slope)
    second = reader({"C": 1}, order=2).series(C(ell + 2, t))[2]
    names = ("second_C", "slope_first_C", "slope_slope_C")
    assert second == sum(n * Function(x)(tau, t) for n, x in zip((1, 2, 2), names, strict=True))


def test_the_end_of_the_network_is_read_from_the_end() -> None:
    found = reader({"C": 1}).series(C(L - 1, t) * C(1, s))
    assert found[0] == C(1, t) * C(0, s)
    slope = Function("slope_C")
    assert steps_only(found[1]) == C(1, t) * slope(0, s) - C(0, s) * slope(1, t)


@pytest.mark.parametrize(("low", "high"), [(1, 0), (0, -1), (2, 0), (1, -1)])
def test_a_sum_over_layers_misses_what_euler_and_maclaurin_say(low: int, high: int) -> None:
    """Against the sum of k**3/L**3, done by SymPy: three orders, which are all of it but for the last."""
    found = reader({"C": 1}, order=3).series(Sum(C(k), (k, low, L + high)))
    values = {"C": lambda x: x**3, "slope_C": lambda x: 3 * x**2, "slope_slope_C": lambda x: 6 * x}

    def value(x: AppliedUndef) -> Expr:
        return values[str(x.func)](x.args[0]) if str(x.func) in values else S.Zero

    def done(e: Expr) -> Expr:
        return sympify(e.replace(lambda x: isinstance(x, AppliedUndef), value)).doit()

    exact = (Sum(k**3 / L**3, (k, low, L + high)).doit() / L).expand()
    assert [exact.coeff(L, -n) for n in range(4)] == [done(x) for x in found]


@pytest.mark.parametrize("cut", [-1, 0, 1, 2])
def test_a_jump_counts_where_it_is(cut: int) -> None:
    """A step that begins at ell - k = cut, summed over k, at ell = tau L."""
    found = reader({"X": 2}, {"X": cut}).series(Sum(X(ell, k), (k, 1, L)))[1]
    sides = {X(tau, 0): S.One, X(tau, 1): S.Zero}
    sides |= {Function("X_above")(tau): S.One, Function("X_below")(tau): S.Zero}
    ones = found.replace(lambda e: isinstance(e, Integral), lambda _: S.Zero).xreplace(sides)
    assert ones == -cut  # k = 1 .. ell - cut are above: as many as ell - cut


def test_two_steps_that_begin_apart_are_counted_apart() -> None:
    found = reader({"X": 2, "Y": 2}, {"X": 0, "Y": 2}).series(Sum(X(ell, k) * Y(ell, k), (k, 1, L)))[1]
    above = {Function(f"{n}_above")(tau): S.One for n in "XY"}
    below = {Function(f"{n}_below")(tau): S.Zero for n in "XY"}
    ends = {f(tau, 0): S.One for f in (X, Y)} | {f(tau, 1): S.Zero for f in (X, Y)}
    ones = found.replace(lambda e: isinstance(e, Integral), lambda _: S.Zero)
    assert ones.xreplace(above | below | ends) == -2  # both are above as long as Y is


def test_powers_and_deltas_are_read() -> None:
    assert power(sqrt(L) * C(ell) / L) == (-HALF, C(ell))
    assert delta(3 * KroneckerDelta(k, ell + 1)) == (3, 1)
    assert delta(C(ell)) is None


@pytest.mark.parametrize("e", [Y(ell + 1, k + 1, t), X(ell) ** HALF])
def test_what_has_no_expansion_is_refused(e: Expr) -> None:
    with pytest.raises(NotApplicable):
        reader({"Y": 2, "X": 1, "C": 1}, {"Y": 0}).series(e)


def test_quotients_and_known_functions_are_expanded() -> None:
    r = reader({"C": 1})
    first = r.series(C(ell - 1))
    assert [x.simplify() for x in r.mul(r.series(1 / C(ell - 1)), first)] == [1, 0]
    assert [x.simplify() for x in r.series(exp(C(ell - 1)))] == [
        exp(first[0]),
        (exp(first[0]) * first[1]).simplify(),
    ]


# -- the correction ----------------------------------------------------------------------------------------


def test_the_order_follows_from_the_branch() -> None:
    assert [frozen(a).power for a in (HALF, Rational(3, 4))] == [-1, -HALF]


@pytest.mark.parametrize("planted", [S.Zero, Rational(1, 10)])
def test_the_stream_at_the_start_solves_the_equation(planted: Expr) -> None:
    """<x x> at t = 0 is (1 + 1/L)**ell = exp(tau) (1 - tau/(2 L) + ...): both orders solve the equations."""
    whole, first = exp(tau), -tau * exp(tau) / 2
    known = {"C_x": whole, "slope_C_x": whole, "first_C_x": first, "R_xU": S.One, "R_xu_above": S.One}

    def value(x: AppliedUndef) -> Expr:
        name, at = str(x.func), x.args[0]
        if name == "R_xu":  # one for sources below, zero above
            return S.One if x.args[1] in (0, tau_) else S.Zero
        return known.get(name, S.Zero).subs(tau, at)

    def at_start(e: Expr) -> Expr:
        """Return the expression at t = s = 0, where responses in the integral over sources are one."""
        if isinstance(e, Sum):
            return at_start(e.function) if all(hi in (t, s) for _, _, hi in e.limits) else S.Zero
        if isinstance(e, Integral):
            return integrate(at_start(e.function), (tau_, 0, tau))
        if isinstance(e, AppliedUndef):
            return value(e)
        return e.func(*[at_start(x) for x in e.args]) if e.args else e

    for name in ("C_x", "first_C_x"):
        rhs = at_start(frozen(HALF).equations[name].rhs) + planted
        assert ((rhs - known[name]).expand() == 0) is (planted == 0), name


def test_steps_are_all_that_is_left_out_at_one_half_and_nothing_of_them_in_between() -> None:
    between = frozen(Rational(3, 4))
    assert not [n for n in between.equations if n.startswith("slope_")]
    assert [n for n in frozen(HALF).equations if n.startswith("slope_")]
    only = between.coefficient("C_x", 1).rhs
    assert only.has(Function("R_xu"))
    assert not frozen(Rational(3, 4)).limit.correlation("C_x").rhs.has(Function("R_xu"))


def test_a_correction_is_plain_sympy() -> None:
    e = frozen(HALF).coefficient("R_xV", 1).rhs
    assert latex(e)
    assert e.diff(Symbol("q")) == 0
    assert sympify(srepr(e)) == e


def test_the_other_convention_goes_through_the_same_machine() -> None:
    cross = rescale(cross_layer(mean_field(isotropic(data="population", branch=beta))), beta)
    found = infinite_depth(cross, Scaling({beta: beta0 / sqrt(L)}))
    assert found.power == -1
    assert found.coefficient("C_h0", 1).rhs.has(
        Function("slope_C_g")
    )  # the loss reads layer 1, which is not layer 0
    assert aligned(cross) != cross
    assert not found.coefficient("R_vr0", 1).rhs.has(L)


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(KeyError, match="no coefficient of order 1 of nothing"):
        frozen(HALF).coefficient("nothing", 1)
    with pytest.raises(KeyError, match="up to order 1"):
        frozen(HALF).coefficient("C_x", 2)


def test_answers_that_vanish_are_refused_by_name() -> None:
    cross = gamma_c_recursion(mean_field(depth_program(alpha=Rational(3, 4), gamma=Rational(1, 4))))
    with pytest.raises(NotApplicable, match=r"Gamma_00.* vanish in the limit"):
        infinite_depth(cross)


# -- diversity ---------------------------------------------------------------------------------------------


def test_roughness_is_the_covariance_of_the_noise() -> None:
    cross = rescale(cross_layer(mean_field(isotropic(data="population", branch=beta))), beta)
    found = layer_time(cross, Scaling({beta: beta0 / sqrt(L)}))
    for name in ("C_h", "C_g"):
        assert diversity(found, name).roughness == beta0**2 * Function(name)(tau, t, t)
        assert diversity(found, name).exponent == HALF


def test_beyond_one_half_the_stream_is_smooth() -> None:
    found = diversity(frozen(Rational(3, 4)).limit, "C_x")
    assert (found.roughness, found.exponent) == (0, 0)


def test_the_two_point_function_is_symmetric_in_form() -> None:
    found = diversity(frozen(HALF).limit, "C_x")
    tau_2 = Symbol("tau_2", nonnegative=True)
    swapped = found.two_point.rhs.subs({tau: tau_2, tau_2: tau, t: s, s: t}, simultaneous=True)
    assert swapped.subs(tau_2, tau).has(Function("R_xU"))
    assert found.two_point.rhs.subs(tau_2, tau) == frozen(HALF).limit.correlation("C_x").rhs
    assert found.distance != 0
    assert found.distance.subs(tau_2, tau).expand() == 0  # a layer has none from itself


def response_of(kind: str) -> tuple[Expr, Callable[[float], float]]:
    """Return the derived equation of a response, and the response as a function of ``tau - tau_``."""
    R, step = Function("R"), Heaviside(tau - tau_)
    if kind == "noise":
        return step + Integral(2 * R(between, tau_, t), (between, 0, tau)), lambda x: np.exp(2 * x) * (x > 0)
    return Integral(Heaviside(between - tau_), (between, 0, tau)), lambda x: x * (x > 0)


@pytest.mark.parametrize(("kind", "order"), [("noise", 1), ("integrated noise", 2)])
def test_the_power_of_the_distance_is_that_of_a_small_distance(kind: str, order: int) -> None:
    """A field driven by white noise, and its integral: the distance at two small distances of layers."""
    equation, response = response_of(kind)
    R, spread = Function("R"), (1 + tau_) * Symbol("d", positive=True) ** t
    rows = {"integrals": (Eq(R(tau, tau_, t), equation, evaluate=False),)}
    square = Integral(R(tau, tau_, t) * R(tau, tau_, s) * spread, (tau_, 0, 1))
    rows["correlations"] = (Eq(C(tau, t, s), square, evaluate=False),)
    names = (x.name for x in fields(LayerTime))
    found = diversity(LayerTime(**{x: rows.get(x, ()) for x in names}), "C")
    assert (found.power, found.exponent) == (order, 1 - Rational(order, 2))
    # the distance itself, and the coefficient that was derived, by quadrature over the layer of the source
    places = (np.arange(200_000) + 0.5) / 200_000

    def distance(apart: float) -> float:
        change = response(0.5 + apart - places) - response(0.5 - places)
        return float(np.mean(change**2 * (1 + places)))

    ratios = [distance(apart) / apart**order for apart in (0.002, 0.001)]
    exact = {"noise": 1.5, "integrated noise": 0.625}[kind]  # 1 + tau, and its integral up to tau = 1/2
    limit = 2 * ratios[1] - ratios[0]  # corrections of first order in the distance leave 1e-6 of it
    assert limit == pytest.approx(exact, rel=1e-4)
    if order == 1:
        assert found.roughness == (1 + tau) * Symbol("d", positive=True) ** t  # weights that decay
        assert found.roughness == found.coefficient


def test_layers_that_do_not_differ_are_refused() -> None:
    """A correlation of responses that are the same in all layers has no power."""
    R = Function("R")
    same = Eq(Derivative(R(tau, t), tau), S.Zero, evaluate=False)
    rows = {
        "integrals": (Eq(R(tau, t), t, evaluate=False),),
        "responses": (same,),
        "correlations": (Eq(C(tau, t, s), R(tau, t) * R(tau, s), evaluate=False),),
    }
    with pytest.raises(NotApplicable, match="vanishes up to second order"):
        diversity(LayerTime(**{x.name: rows.get(x.name, ()) for x in fields(LayerTime)}), "C")


# -- blocks ------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def system(linearised: bool) -> CrossLayer:
    return within_blocks(cross_layer(without_silent(mean_field(block_program(linearised=linearised)))))


@lru_cache(maxsize=4)
def blocks(linearised: bool) -> BlockLimit:
    return block_limit(system(linearised))


def test_the_network_and_it_linearised_have_one_limit() -> None:
    ours, theirs = (
        {str(e.lhs.func): e.rhs for e in (*x.limit.integrals, *x.limit.correlations)}
        for x in (blocks(False), blocks(True))
    )
    for name in ("R_xV", "R_dxV", "R_xu_Z", "R_dxr_W", "C_x", "C_dx"):
        assert ours[name] == theirs[name], name
    assert ours["C_h"] == Function("C_x")(tau, t, s)


def test_before_the_limit_they_differ() -> None:
    assert system(False).response("R_hu_W", ell).rhs.has(Function("C_x"))
    assert not system(True).response("R_hu_W", ell).rhs.has(Function("C_x"))


def test_powers_of_answers_are_found() -> None:
    orders = blocks(False).orders
    assert {n for n, x in orders.items() if x == -HALF} == {
        "R_xu_Z", "R_dxu_Z", "R_xr_W", "R_dxr_W", "R_hr_Z", "R_bu_W",
    }  # fmt: skip
    assert all(x in (0, -HALF) for x in orders.values())


def test_too_large_rates_grow_without_end() -> None:
    system = within_blocks(cross_layer(mean_field(block_program(gammas=(0, 0)))))
    with pytest.raises(NotApplicable, match="grow without end"):
        balanced(system)


def test_powers_of_blocks_need_numbers() -> None:
    """At alpha = 1 sizes are bounded; a balance cannot tell for the symbol."""
    system = within_blocks(cross_layer(mean_field(block_program(alpha=alpha, linearised=True))))
    with pytest.raises(NotApplicable, match=r"number in place of alpha, such as Scaling\(\{alpha: 1\}\)"):
        balanced(system)
    assert balanced(system, Scaling({alpha: 1}))[1]["R_hu_W"] == 0


def test_exponents_that_no_number_orders_are_all_kept() -> None:
    terms = [counted(x) for x in (L**-alpha, 1 / L, L**-2, L ** (-alpha - 1))]
    found = balance({"x": terms})
    assert found.exponent("x") == Max(-alpha, -1)
    assert balance({"x": terms}, STABLE).exponent("x") == Max(-alpha, -1)
    fed_back = {"x": [counted(S.One), counted(L ** (1 - 2 * alpha) * Function("x")(ell))]}
    with pytest.raises(NotApplicable, match="grows with L for some values of alpha"):
        balance(fed_back)
    assert balance(fed_back, STABLE).exponent("x") == 0


def test_at_alpha_one_updates_of_a_block_stay_together() -> None:
    found = block_limit(within_blocks(cross_layer(mean_field(block_program(alpha=1, gammas=(0, 0))))))
    rhs = {str(e.lhs.func): e.rhs for e in (*found.limit.integrals, *found.limit.correlations)}
    assert rhs["R_hu_W"].has(Function("R_bu_W"))
    assert without_blocks(found.limit) == found.limit


def test_an_output_that_vanishes_is_given_in_units_of_its_power() -> None:
    """At alpha = 1 the output is of order L^(-1/2). It was 0 in these units, and L stayed in the error."""
    found = block_limit(within_blocks(cross_layer(mean_field(block_program(alpha=1)))))
    assert found.orders["f"] == Rational(-1, 2)
    rhs = {str(e.lhs.func): e.rhs for e in found.limit.scalars}
    assert rhs == {"f": Function("R_xV")(1, t), "chi": Function("dloss")(t, 0)}


def test_a_block_program_needs_a_block() -> None:
    with pytest.raises(ProgramError, match="depth = 0"):
        block_program(0)


def test_silent_sources_are_only_those() -> None:
    theory = mean_field(block_program())
    assert without_silent(theory) == theory
