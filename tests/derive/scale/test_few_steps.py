"""A few exact steps, the memory-free recursion and the lazy limit: each other, and the solved theory."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from sympy import (
    Add,
    Expr,
    Function,
    Poly,
    Rational,
    S,
    Symbol,
    cancel,
    limit,
    series,
    simplify,
    sqrt,
    symbols,
)

from derive.errors import NotApplicable
from derive.program import L, Program, eta, gamma0
from derive.program.networks.random_data import alpha_B, nu, sigma
from derive.program.rules import GradientDescent, Momentum
from derive.scale import LazySteps, MemoryFree
from derive.scale.early import CORRELATION, KERNEL, MEMORY, NOISE, TERMS
from derive.scale.first_steps import ExactSteps
from derive.scale.lazy import limit_at_zero
from derive.theory import Theory
from numerics.experiment import Experiment
from numerics.experiment.numbers import numbers_of
from numerics.experiment.problem import Problem
from numerics.solver import solve
from tests.derive.once import (
    few_steps,
    first_step,
    isotropic,
    lazy_steps,
    mean_field,
    memory_free,
    structured,
)

NOISY = pytest.param(1, "online", 1, marks=pytest.mark.slow)


@lru_cache
def theory(depth: int | None = None, data: str = "online", noise: bool = True) -> Theory:
    noisy = {"noise": True} if noise and data == "online" else {}
    program = isotropic(L if depth is None else depth, data=data, center=True, **noisy)
    return mean_field(program)


@lru_cache
def lazy(depth: int | None, data: str, steps: int) -> LazySteps:
    return lazy_steps(theory(depth, data, depth is not None), steps)


@lru_cache
def recursion(depth: int, data: str, step: int = 1) -> MemoryFree:
    return memory_free(theory(depth, data), step)


@pytest.mark.parametrize("examples", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_steps_are_those_of_the_march_to_rounding(examples: int) -> None:
    drawn = given(
        depth=st.integers(1, 2),
        center=st.booleans(),
        online=st.booleans(),
        numbers=st.tuples(*[st.integers(8, 40)] * 5),
    )
    settings(max_examples=examples, deadline=None, phases=(Phase.generate,))(drawn(compare_with_the_march))()


def compare_with_the_march(depth: int, center: bool, online: bool, numbers: tuple[int, ...]) -> None:
    width, batch, rate, richness, noise = (k / 20 for k in numbers)
    e = Experiment.from_dict(
        {
            "network": {"depth": depth, "gamma0": richness, "width_ratio": width},
            "data": {"kind": "isotropic", "batch_ratio" if online else "sample_ratio": batch, "noise": noise},
            "training": {
                "rule": "sgd" if online else "gd",
                "learning_rate": rate / 10,
                "steps": 2,
                "center": center,
            },
        }
    )
    exact = {x: Rational(str(v)) for x, v in numbers_of(e).items()}
    found = few_steps(Problem.of(e).discrete.map(lambda x: x.xreplace(exact)), 2)
    solved = np.diag(solve(e).C_v.values)
    assert np.array([float(x) for x in found.values]) == pytest.approx(solved, rel=1e-11)


def test_the_first_of_few_steps_is_the_first_step() -> None:
    program = isotropic(1, data="online", noise=True)  # not centred: gamma0 matters at once
    found = few_steps(mean_field(program), 1).growth_factor(1)
    assert cancel(found - first_step(mean_field(program)).growth_factor) == 0
    assert found.has(gamma0)
    assert not few_steps(theory(1), 1).growth_factor(1).has(gamma0)


@pytest.mark.slow
def test_powers_beyond_an_order_are_all_that_is_dropped() -> None:
    whole = few_steps(theory(2, "population"), 2).values[2]
    cut = few_steps(theory(2, "population"), 2, order=(eta, 3)).values[2]
    gap = Poly(cancel(whole - cut), eta)
    assert gap.as_expr() != 0
    assert all(power > 3 for (power,) in gap.monoms())
    still = few_steps(theory(2, "population"), 2, order=(gamma0, 2)).values[2]
    assert cancel(limit_at_zero(still) - limit_at_zero(whole)) == 0


def powers_up_to(e: Expr, x: Symbol, order: int) -> Expr:
    """Return the terms of a sum of powers of ``x`` whose power is at most ``order``."""
    return Add(*[y for y in Add.make_args(cancel(e).expand()) if y.as_coeff_exponent(x)[1] <= order])


@pytest.mark.parametrize(
    ("center", "x", "order"), [(True, gamma0, 2), (False, gamma0, -2), (False, gamma0, 0), (True, nu, -1)]
)
def test_powers_up_to_an_order_are_exact_where_the_symbol_divides(
    center: bool, x: Symbol, order: int
) -> None:
    """gamma0 and the width ratio have negative powers, which lower the powers of what they divide."""
    of, steps = mean_field(isotropic(1, data="population", center=center)), 2 if center else 1
    cut, whole = few_steps(of, steps, order=(x, order)).values, few_steps(of, steps).values
    assert [y.expand() for y in cut] == [powers_up_to(y, x, order) for y in whole]
    assert not all(y == 0 for y in cut)


def test_an_order_is_kept_where_denominators_are_sums_or_roots() -> None:
    of = theory(1, "population").map(lambda e: e.subs(nu, 1 + eta))
    cut, whole = (few_steps(of, 1, order=order).values[1] for order in ((eta, 3), None))
    assert series(whole, eta, 0, 4).removeO().expand() == cut.expand() != whole
    ntk = mean_field(isotropic(1, data="population", center=True, parametrization="ntk"))
    cut, whole = (few_steps(ntk, 1, order=order).values[1] for order in ((nu, -1), None))
    assert cut.expand() == powers_up_to(whole, nu, -1) != 0


@pytest.mark.parametrize(
    ("order", "reason"),
    [((Symbol("x"), 2), "does not contain this symbol"), ((eta, Rational(1, 2)), "an integer")],
)
def test_orders_that_mean_nothing_are_refused(order: tuple[Symbol, int], reason: str) -> None:
    with pytest.raises(NotApplicable, match=reason):
        few_steps(theory(1, "population"), 1, order=order)


def test_ntk_has_roots_of_the_width() -> None:
    program = isotropic(1, data="population", center=True, parametrization="ntk")
    found = few_steps(mean_field(program), 2).values[2]
    plain = few_steps(theory(1, "population"), 2).values[2]
    assert cancel(found - plain.subs(gamma0, gamma0 / sqrt(nu))) == 0


def test_roots_of_numbers_are_numbers() -> None:
    found, plain = (
        few_steps(mean_field(isotropic(2, data="population", branch=b)), 1).values[1]
        for b in (sqrt(3), Symbol("b"))
    )
    assert cancel(found - plain.subs(Symbol("b"), sqrt(3))) == 0


@pytest.mark.parametrize(
    ("depth", "data", "step"),
    [(1, "population", 1), pytest.param(2, "population", 1, marks=pytest.mark.slow), NOISY],
)
def test_the_dropped_terms_are_what_the_recursion_misses(depth: int, data: str, step: int) -> None:
    found, exact = recursion(depth, data, step), few_steps(theory(depth, data), step + 1).values
    assert set(found.dropped) == set(TERMS)
    assert cancel(exact[step + 1] - found.factor * exact[step] - found.drive - found.error) == 0
    assert all(x != 0 for x in found.dropped.values())
    assert cancel(exact[1] - found.loss(1)) == 0


@pytest.mark.slow
def test_the_largest_dropped_terms_for_every_depth() -> None:
    found = memory_free(theory(None, "population"), order=2)
    spread = lazy(None, "population", 1).spread
    assert simplify(found.leading() - 4 * spread * eta**2) == 0  # of the same order as the terms kept
    assert found.leading(MEMORY) == found.leading(CORRELATION)
    assert found.dropped[KERNEL] == found.dropped[NOISE] == 0


@pytest.mark.slow
def test_the_smaller_dropped_terms_for_every_depth() -> None:
    found = memory_free(theory(None, "population"), order=3)
    kernel, noise = found.leading(KERNEL), found.leading(NOISE)
    for depth in (1, 2):
        one = recursion(depth, "population")
        assert simplify(kernel.subs(L, depth) - one.leading(KERNEL)) == 0
        assert simplify(noise.subs(L, depth) - one.leading(NOISE)) == 0
    assert kernel.has(gamma0)
    assert (kernel.subs(gamma0, 1) / eta**3).subs(L, 3) < 0  # it grows, and the loss falls faster


def test_what_is_left_after_several_steps_adds_up() -> None:
    numbers = {nu: Rational(1, 2), alpha_B: Rational(1, 3), gamma0: 1, eta: Rational(1, 9), sigma: 0}
    exact = few_steps(theory(1, noise=False).map(lambda e: e.subs(numbers)), 3).values
    here = theory(1, noise=False).map(lambda e: e.subs(numbers))
    errors = [memory_free(here, step).error for step in (1, 2)]
    F = memory_free(here).factor
    total = sum(F ** (2 - t) * d for t, d in enumerate(errors, 1))
    assert exact[3] - memory_free(here).loss(3) == total != 0


def test_the_recursion_with_label_noise_for_any_number_of_steps() -> None:
    found, t = recursion(1, "online"), symbols("t", integer=True, positive=True)
    assert found.drive.has(sigma)
    assert not found.factor.has(sigma)
    assert cancel(found.loss(t).subs(t, 3) - found.loss(3)) == 0
    c = Symbol("c")
    of = theory(1)
    larger = {u: u.covariance * (c if u.symbol.func == Function("w_star") else 1) for u in of.sources}
    sources = tuple(replace(u, covariance=e) for u, e in larger.items())
    exact = ExactSteps(replace(of, sources=sources))  # one step, from an error of any size
    after = exact.expr(exact.value(Function("C_v")(S.One, S.One)))
    assert cancel(after - found.loss(1, c)) == 0


DECAY, MOMENTUM = GradientDescent(eta, decay=Rational(1, 10)), Momentum(eta, Rational(1, 2))


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (partial(isotropic, 1, data="online"), "not centred"),
        (partial(isotropic, 1, data="full-batch", center=True), "samples are reused"),
        (partial(isotropic, data="online", center=True), "give order"),
        (partial(isotropic, 1, data="population", center=True, rule="flow"), "a training rule in steps"),
        (partial(isotropic, 1, data="population", center=True, outputs=2), "one output"),
        (partial(isotropic, 1, data="population", center=True, rule=DECAY), "decay"),
    ],
)
def test_what_has_no_recursion_is_refused(program: Callable[[], Program], reason: str) -> None:
    with pytest.raises(NotApplicable, match=reason):
        memory_free(mean_field(program()))


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (partial(isotropic, 1, data="online"), "centred"),
        (partial(isotropic, 1, data="full-batch", center=True), "constant kernel"),
        (partial(isotropic, 1, data="population", center=True, outputs=2), "one output"),
        (partial(structured, 1), "the same for all units"),
        (partial(isotropic, 1, data="population", center=True, rule=DECAY), "plain steps"),
        (partial(isotropic, 1, data="population", center=True, rule=MOMENTUM), "plain steps"),
    ],
)
def test_what_has_no_lazy_steps_is_refused(program: Callable[[], Program], reason: str) -> None:
    with pytest.raises(NotApplicable, match=reason):
        lazy_steps(mean_field(program()))


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (partial(isotropic, data="online", center=True), "need a number of layers"),
        (partial(isotropic, 1, data="population", rule="flow"), "a training rule in steps"),
        (partial(isotropic, 1, data="population", outputs=2), "one output"),
        (partial(structured, 1), "equivalent units|index"),
    ],
)
def test_what_has_no_closed_form_is_refused(program: Callable[[], Program], reason: str) -> None:
    with pytest.raises(NotApplicable, match=reason):
        few_steps(mean_field(program()), 2)


def test_moments_of_one_hidden_layer_are_those_of_one_plus_a_wishart_matrix() -> None:
    aspect = 1 / nu  # of the Marchenko-Pastur law of W0^T W0/N
    wishart = [
        S.One,
        S.One,
        1 + aspect,
        1 + 3 * aspect + aspect**2,
        1 + 6 * aspect + 6 * aspect**2 + aspect**3,
    ]
    binomials = [[1, 1], [1, 2, 1], [1, 3, 3, 1], [1, 4, 6, 4, 1]]
    for found, row in zip(lazy(1, "population", 2).moments, binomials, strict=True):
        assert cancel(found - sum(b * m for b, m in zip(row, wishart, strict=False))) == 0


def test_lazy_steps_are_few_steps_without_feature_learning() -> None:
    exact = limit_at_zero(few_steps(theory(2, "population"), 2).values[2])
    assert cancel(exact - lazy(2, "population", 2).loss(2)) == 0


@pytest.mark.slow
def test_moments_for_every_depth() -> None:
    found = lazy(None, "population", 2).moments
    for depth in (1, 3, 11):
        one = lazy_steps(theory(depth, "population"), 2).moments
        assert all(cancel(x.subs(L, depth) - y) == 0 for x, y in zip(found, one, strict=True))


def wide(e: Expr) -> Expr:
    """Return the limit of a rational function for wide layers."""
    narrow = Symbol("narrow", positive=True)
    return cancel(e.subs(nu, 1 / narrow)).subs(narrow, 0)


def test_wide_lazy_layers_repeat_their_first_step() -> None:
    found = lazy(1, "online", 2)
    one, two = (wide(found.loss(n)).subs(sigma, 0) for n in (1, 2))
    assert cancel(two - one**2) == 0
    for x in recursion(1, "population").dropped.values():  # every term that the recursion drops is gone
        assert wide(limit_at_zero(x)) == 0


@pytest.mark.slow
def test_rates_of_the_lazy_limit() -> None:
    found = lazy(None, "online", 1)
    first = first_step(theory(None, noise=False)).critical_learning_rate
    assert simplify(found.first_rise - first) == 0
    assert simplify(found.ceiling - wide(first)) == 0  # the critical rate of wide layers
    assert simplify(found.widest - limit(found.ceiling / found.first_rise, alpha_B, 0)) == 0
    numbers = {L: 3, nu: Rational(1, 2), alpha_B: Rational(1, 5)}
    assert found.first_rise.subs(numbers) < found.ceiling.subs(numbers)


@pytest.mark.slow
def test_more_eigenvalues_lower_the_largest_rate() -> None:
    numbers = {nu: Rational(1, 2), alpha_B: Rational(1, 5)}
    found = lazy_steps(theory(2, noise=False).map(lambda e: e.xreplace(numbers)), 3)
    rates = [found.largest_rate(n) for n in (1, 2, 3)]
    assert float(rates[0]) == pytest.approx(float(found.ceiling))
    assert found.first_rise < rates[2] < rates[1] < rates[0]
    quiet = lazy_steps(theory(2, "population").map(lambda e: e.xreplace(numbers)), 3)
    assert quiet.largest_rate() < quiet.first_rise < quiet.ceiling  # a loss that rises first never comes back
    values = [sum(w * k**n for k, w in quiet.spectrum()) for n in range(1, 6)]
    assert values == pytest.approx([float(m) for m in quiet.moments[:5]], rel=1e-12)
    with pytest.raises(NotApplicable, match="nodes"):
        quiet.spectrum(4)
    with pytest.raises(NotApplicable, match="symbols"):
        lazy(1, "population", 2).spectrum()


@pytest.mark.parametrize("batch", [None, 0.25])
def test_the_bound_holds_and_is_no_better_than_it_is(batch: float | None) -> None:
    data = {"kind": "isotropic"} | ({} if batch is None else {"batch_ratio": batch})
    rate, width, steps = 0.02, 0.5, 8
    rule = "gd" if batch is None else "sgd"
    training = {"rule": rule, "learning_rate": rate, "steps": steps, "center": True}
    network = {"depth": 1, "gamma0": 1e-3, "width_ratio": width}
    solved = np.diag(
        solve(Experiment.from_dict({"network": network, "data": data, "training": training})).C_v
    )
    kind = "population" if batch is None else "online"
    found, numbers = lazy(1, kind, 2), {eta: rate, nu: width, alpha_B: batch or 1.0, sigma: 0}
    repeated = recursion(1, kind).loss
    for t in range(2, steps + 1):
        gap = solved[t] - float(repeated(t).subs(numbers))
        bound = float(found.bound(t).subs(numbers))
        assert abs(gap) <= bound * (1 + 1e-6)
        if batch is None:
            assert gap > 0
            assert t > 2 or gap == pytest.approx(bound, rel=1e-3)  # at the second step it is the error


@pytest.mark.parametrize("data", ["population", pytest.param("online", marks=pytest.mark.slow)])
def test_every_depth_at_once_is_each_depth(data: str) -> None:
    every = few_steps(theory(None, data), 2, order=(eta, 2)).values[2]
    one = few_steps(theory(2, data), 2, order=(eta, 2)).values[2]
    assert cancel(every.subs(L, 2) - one) == 0


def test_depths_that_are_no_chain_have_no_polynomial() -> None:
    with pytest.raises(NotApplicable, match="residual"):
        few_steps(mean_field(isotropic(data="population", center=True, branch=1)), 1, order=(eta, 2))
    with pytest.raises(NotApplicable, match="need a number of layers"):
        few_steps(theory(None, "population"), 2, order=(gamma0, 2))


def test_a_recurrence_that_multiplies_is_told_apart() -> None:
    """Planted error: every layer doubles its input, which is not a polynomial in the layer."""
    right = theory(None, "population")
    wrong = [
        replace(u, covariance=2 * u.covariance) if str(u.symbol.func) == "u" else u for u in right.sources
    ]
    with pytest.raises(NotApplicable, match="is multiplied from layer to layer"):
        few_steps(replace(right, sources=tuple(wrong)), 2, order=(eta, 2))
