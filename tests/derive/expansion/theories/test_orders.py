"""Expanded theories: exact coefficients at given times, limits, the flow as order zero, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sympy import Expr, Function, Integer, Rational, S, Symbol, expand, lambdify, oo, series, sympify, tanh
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import s, t
from derive.errors import NotApplicable
from derive.expansion.orders import (
    TheorySeries,
    boundary_coefficients,
    expand_sizes,
    expand_step_size,
    modified_equation,
)
from derive.expansion.theory_orders import expand_strength
from derive.program import GradientDescent, eta, gamma0, training_rule
from derive.program.networks.random_data import alpha, alpha_B, nu
from derive.reduce.data import instant_responses, theory_limit
from derive.scale.first_steps import Unrolled
from derive.theory import Theory
from tests.derive.once import isotropic, mean_field, mlp

NUMBERS = {eta: Rational(1, 5), gamma0: Rational(3, 2)}
beta = Symbol("beta", positive=True)


class Exact:
    """Order parameters at integer times, from equations inserted into each other."""

    def __init__(self, theory: Theory, numbers: dict[Symbol, Expr]) -> None:
        theory = theory.map(lambda e: sympify(e).xreplace(numbers))
        self.read, self.found = Unrolled(theory), {}
        self.names = {q.name for q in theory.order_parameters}

    def value(self, a: AppliedUndef) -> Expr:
        a = self.read.standard(a)
        if a != 0 and a not in self.found:
            e = self.read.value(a)
            inner = {b: self.value(b) for b in e.atoms(AppliedUndef) if str(b.func) in self.names}
            self.found[a] = expand(e.xreplace(inner))
        return self.found.get(a, S.Zero)


def coefficients(found: TheorySeries, name: str, time: int, numbers: dict[Symbol, Expr]) -> list[Expr]:
    exact = Exact(found.expanded, numbers)
    now = Integer(time)

    def value(c: Expr) -> Expr:
        return sympify(c.xreplace({a: exact.value(a.func(now, now)) for a in c.atoms(AppliedUndef)}))

    return [value(c) for c in found.series(name).coefficients]


def of_full(theory: Theory, size: Symbol, time: int, order: int, numbers: dict[Symbol, Expr]) -> list[Expr]:
    """Return the orders of C_v of the whole theory, a rational function of the size."""
    x = Symbol("x", positive=True)
    full = Exact(theory, numbers).value(Function("C_v")(Integer(time), Integer(time)))
    found = series(full.subs(size, 1 / x).expand(), x, 0, order + 1).removeO()
    return [found.coeff(x, n) for n in range(order + 1)]


CASES: list[Any] = [
    pytest.param(nu, {"data": "population", "center": True}, {}, 2, 1, marks=pytest.mark.slow),
    (nu, {"data": "population"}, {}, 2, 1),
    (nu, {}, {alpha: Rational(2)}, 1, 1),
    (alpha, {}, {nu: Rational(3)}, 1, 1),
    (alpha_B, {"data": "online"}, {nu: Rational(3)}, 1, 1),
    pytest.param(nu, {"data": "population"}, {}, 2, 2, marks=pytest.mark.slow),
    pytest.param(nu, {}, {alpha: Rational(2)}, 2, 2, marks=pytest.mark.slow),
    pytest.param(alpha, {}, {nu: Rational(3)}, 2, 2, marks=pytest.mark.slow),
    pytest.param(alpha_B, {"data": "online"}, {nu: Rational(3)}, 2, 2, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("size", "options", "others", "order", "time"), CASES)
def test_coefficients_are_those_of_the_whole_theory(
    size: Symbol, options: dict[str, Any], others: dict[Symbol, Expr], order: int, time: int
) -> None:
    """Exact, in rational numbers: C_v(time, time) of one hidden layer."""
    theory = mean_field(isotropic(**options)).at_depth(1)
    found = expand_sizes(theory, size, order)
    numbers = NUMBERS | others
    expected = of_full(found.theory, size, time, order, numbers)
    assert any(c != 0 for c in expected[1:])
    assert coefficients(found, "C_v", time, numbers) == expected


def test_a_coefficient_that_is_off_is_seen() -> None:
    """The same comparison, with one term of the first order twice as large."""
    theory = mean_field(isotropic(data="population")).at_depth(1)
    found = expand_sizes(theory, nu, 1)
    wrong = found.expanded
    sources = tuple(
        replace(u, covariance=2 * u.covariance) if str(u.symbol.func) == "r0" else u for u in wrong.sources
    )
    object.__setattr__(found, "expanded", replace(wrong, sources=sources))
    expected = of_full(found.theory, nu, 1, 1, NUMBERS)
    got = coefficients(found, "C_v", 1, NUMBERS)
    assert got[0] == expected[0]
    assert got[1] != expected[1]


@pytest.mark.parametrize(
    ("size", "options"),
    [
        (nu, {}),
        (nu, {"branch": beta}),
        (alpha, {"noise": True}),
        (alpha_B, {"data": "online", "center": True}),
    ],
)
def test_order_zero_is_the_limit(size: Symbol, options: dict[str, Any]) -> None:
    """Equations of order zero are those of the limit of the size, but for sources without variance."""
    theory = mean_field(isotropic(**options))
    found, limit = expand_sizes(theory, size, 2), theory_limit(theory, {size: oo})
    gone = {u.symbol.func for u in theory.sources} - {u.symbol.func for u in limit.sources}
    assert gone

    def without(e: Expr) -> Expr:
        return e.replace(lambda a: isinstance(a, AppliedUndef) and a.func in gone, lambda _: S.Zero)

    orders = [e for e in found.expanded.equations if "__" not in e.name]
    terms = [[y.rewrite(without) for y in e.terms] for e in orders]
    kept = tuple(
        replace(e, terms=tuple(y for y in ys if y.expr != 0)) for e, ys in zip(orders, terms, strict=True)
    )
    zero = instant_responses(replace(found.theory, equations=kept))
    assert [e.eq for e in zero.equations] == [e.eq for e in limit.equations]
    drawn = {
        (u.symbol, u.partner, u.covariance)
        for u in found.expanded.sources
        if "__" not in f"{u.symbol}{u.partner}"
    }
    assert drawn == {(u.symbol, u.partner, u.covariance) for u in limit.sources}


def test_sizes_that_grow_together() -> None:
    """1/nu with alpha = 3 nu: first orders add up, with the proportion as weight."""
    theory = mean_field(isotropic()).at_depth(1)
    both = expand_sizes(theory, nu, 1, {alpha: 3 * nu})
    first = {e.lhs: e.rhs for e in both.equations(1)}
    assert any(e.has(Rational(1, 3)) for e in first.values())
    assert not any(e.has(alpha, nu) for e in first.values())


def test_a_series_knows_its_orders() -> None:
    found = expand_sizes(mean_field(isotropic()), nu, 2)
    assert found.truncate(1).expanded.equations == tuple(
        e for e in found.expanded.equations if not e.name.endswith("__2")
    )
    assert found.series("C_v").order == 2
    assert [len(x) for x in found.parts("C_v")] == [1, 2, 3]
    with pytest.raises(IndexError, match=r"n = 3: the series is known for orders 0 to 2"):
        found.equations(3)
    with pytest.raises(IndexError):
        found.truncate(-1)
    with pytest.raises(KeyError, match="no series 'K'; there are C_g"):
        found.series("K")


def test_orders_are_printed_as_lower_marks() -> None:
    found = expand_sizes(mean_field(isotropic(depth=1)), nu, 1)
    assert r"v_{(1)}(t) &= -{r_0}_{(1)}(t)" in found.render("latex")
    assert "expanded in 1/nu to order 1" in found.render()


def test_what_is_no_power_series_is_refused() -> None:
    with pytest.raises(NotApplicable, match="must be a rational function"):
        _ = expand_sizes(mean_field(isotropic(parametrization="ntk")), nu, 1).expanded
    with pytest.raises(NotApplicable, match="does not depend on the symbol alpha_B"):
        expand_sizes(mean_field(isotropic()), alpha_B, 1)
    with pytest.raises(ValueError, match="order = -1"):
        expand_sizes(mean_field(isotropic()), nu, -1)
    with pytest.raises(NotApplicable, match="as for a linear network"):
        _ = expand_step_size(mean_field(mlp(1, tanh)), 1).expanded


# -- the learning rate ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "options"),
    [
        (mlp, {}),
        (mlp, {"loss": "mean", "bias": True}),
        (isotropic, {"center": True}),
        (isotropic, {"data": "population", "branch": beta}),
    ],
)
def test_descent_with_weights_is_the_flow_seen_by_an_integrator(build: Any, options: dict[str, Any]) -> None:
    """The rate in front of past updates becomes ``w(t, s)``, term by term as in the rule ``multistep``."""
    steps = expand_step_size(mean_field(build(rule="gd", **options)), 1)
    flow = mean_field(build(rule="multistep", **options))
    assert [e.eq for e in steps.scaled.equations] == [e.eq for e in flow.equations]
    assert [e.eq for e in steps.scaled.scalars] == [e.eq for e in flow.scalars]


def test_corrections_reach_the_present() -> None:
    """Weights of order one are there at s = t, and so are responses that are not there in the flow."""
    found = expand_step_size(mean_field(isotropic(depth=2)), 1)
    g = next(e for e in found.equations(1) if e.lhs == Function("g__1")(2, t))
    reached = [(x.has(Function("w__1")(t, s)), x.limits[0][2] == t) for x in g.rhs.args]
    assert sorted(reached) == [(False, False), (True, True)]
    assert found.expanded.order_parameter("R_gu__1").causal == "past"
    assert found.expanded.order_parameter("R_gu").causal == "strict"


def test_boundary_coefficients_sum_powers() -> None:
    """sum_{k<m} k^p for p = 0..5, by Euler and Maclaurin with steps of one: exact for polynomials."""
    b = boundary_coefficients(6)
    m = 7
    for p in range(6):
        x = Symbol("x")
        ends = [(x**p).diff(x, n) for n in range(6)]
        total = Rational(m ** (p + 1), p + 1) + sum(
            c * (e.subs(x, m) - e.subs(x, 0)) for c, e in zip(b, ends, strict=True)
        )
        assert total == sum(k**p for k in range(m))


def test_noise_and_rules_that_change_within_a_step_are_refused() -> None:
    with pytest.raises(NotApplicable, match="drawn anew at each step"):
        expand_step_size(mean_field(isotropic(depth=1, data="online")), 1)
    decaying = training_rule("gd", "sum", weight_decay=Symbol("lambda", positive=True))
    with pytest.raises(NotApplicable, match=r"the covariance of r.* must not depend on eta"):
        expand_step_size(mean_field(isotropic(depth=1, rule=decaying)), 1)
    lasting = training_rule("gd", "sum", momentum=Symbol("m", positive=True))
    with pytest.raises(NotApplicable, match="must be a sum over past updates with the weight eta"):
        expand_step_size(mean_field(isotropic(depth=1, rule=lasting)), 1)


def test_theories_without_the_learning_rate_have_no_series_in_it() -> None:
    """Their equations of order 1 had no source, as if steps were exactly a flow."""
    with pytest.raises(NotApplicable, match="is a flow, which has no learning rate to expand in"):
        expand_step_size(mean_field(mlp(1, rule="flow")), 1)
    tenth = mlp(1).with_rule(GradientDescent(Rational(1, 10)))
    with pytest.raises(NotApplicable, match="does not depend on eta"):
        expand_step_size(mean_field(tenth), 1)


def test_unknown_names_have_no_parts() -> None:
    series = expand_step_size(mean_field(mlp(1)), 1)
    assert len(series.parts("h")) == 2
    for name in ("zzz", "h__1"):
        with pytest.raises(KeyError, match=f"no series '{name}'; there are H, G, f, Delta, h, g"):
            series.parts(name)


def test_what_only_a_solution_gives_is_not_compiled() -> None:
    """Parts are functions that the expanded theory determines: compiled without them they are refused."""
    found = expand_sizes(mean_field(isotropic()), nu, 1)
    with pytest.raises(ValueError, match=r"cannot evaluate C_v\(t, s\).*no definition"):
        found.lambdify("C_v")
    value = lambdify(
        [t, s], found.coefficient("C_v", 1), {"C_v__0_1": lambda *_: 2.0, "C_v__1_0": lambda *_: 3.0}
    )
    assert value(1, 1) == 5.0
    assert found.error_estimate("C_v").has(nu)


def test_the_closed_forms_compile() -> None:
    """The modified equation through plain ``lambdify``."""
    x = Symbol("x")
    found = modified_equation({x: x - eta * x**2}, 2)
    assert abs(found.lambdify("x")(0.1, 0.5) - float(found.series("x").expr.subs({x: 0.5, eta: 0.1}))) < 1e-15


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (nu, "nu is the size in which the theory is expanded"),
        (Symbol("alpha"), r"which is theory.symbols\['alpha'\]"),
        ("alpha", r"which is theory.symbols\['alpha'\]"),
        (Symbol("alpa"), "the theory has no symbol alpa; give one of L, alpha"),
    ],
)
def test_sizes_that_grow_together_are_other_symbols_of_the_theory(key, message):
    with pytest.raises(ValueError, match=message):
        expand_sizes(mean_field(isotropic()), nu, 1, {key: 2 * nu})


def test_parts_of_an_unknown_quantity_are_refused():
    lazy = expand_strength(mean_field(mlp(1, rule="flow")), 1)
    with pytest.raises(KeyError, match="no series 'typo'"):
        lazy.parts("typo")
