"""The largest learning rate: powers, sharpness, lazy kernel, against networks, random matrices, by hand."""

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from math import comb

import numpy as np
import pytest
from sympy import Function, Poly, Rational, S, Symbol, discriminant, log, oo, real_roots, simplify, sqrt

from derive.calculus.series import solved_series
from derive.errors import NotApplicable
from derive.program import L, Program, eta, gamma0
from derive.program.networks.random_data import nu
from derive.program.rules import GradientDescent, Momentum
from derive.scale import LargestRate, aligned
from derive.scale.lazy import H, y
from derive.theory import Theory
from tests.derive.once import (
    dominant_balance,
    first_step,
    isotropic,
    largest_rate,
    lazy_kernel,
    mean_field,
    mlp,
)

PRINTED = 1 - 1 / L
"""The power of nu in NTK scaling, eq. 70 of linear2025."""


@lru_cache
def program(scaling: str = "mean-field", depth: object = L) -> Program:
    return isotropic(depth, data="population", center=True, parametrization=scaling)


@lru_cache
def theory(scaling: str = "mean-field", depth: object = L) -> Theory:
    return mean_field(program(scaling, depth))


@lru_cache
def rate(scaling: str = "mean-field", regime: str = "rich") -> LargestRate:
    return largest_rate(theory(scaling), regime)


# -- rich --------------------------------------------------------------------------------------------------


def test_the_power_of_nu_is_that_of_the_layers_of_weights() -> None:
    """Hand derivation: s^(L+1) = gamma0 at the end, sharpness (L + 1) s^(2L); NTK has gamma0/sqrt(nu)."""
    strength = gamma0 / sqrt(nu)
    for scaling, gamma in (("mean-field", gamma0), ("ntk", strength)):
        found = rate(scaling)
        by_hand = 2 / ((L + 1) * gamma ** (2 * L / (L + 1)))
        for depth in (1, 2, 3, 4):
            assert simplify((found.rate / by_hand).subs(L, depth)) == 1
    assert simplify(rate("ntk").exponent - PRINTED.subs(L, L + 1)) == 0
    assert rate().exponent == 0
    assert rate().crossover is None
    assert rate("ntk").crossover == gamma0**2


def test_a_rate_states_the_conditions_of_its_steps() -> None:
    """Sentences come from the steps that ran, with what each of them found."""
    balance, end, step = dominant_balance(theory()), aligned(program()), first_step(theory())
    stated = rate().conditions()
    assert {*balance.conditions(), *end.conditions()} <= set(stated)
    assert set(step.conditions()) <= set(rate(regime="lazy").conditions())
    assert not set(step.conditions()) & set(stated)
    assert set(step.conditions()) <= set(rate("ntk").conditions())  # the crossover rests on both
    assert any(str(end.sharpness) in x for x in stated)
    assert any(f"{len(balance.dropped)} terms" in x and str(balance.neglected) in x for x in stated)
    affine = [
        any("affine" in x for x in b.conditions()) for b in (balance, dominant_balance(theory(depth=2)))
    ]
    assert affine == [True, False]  # at a numerical depth every layer has a separate power
    crossing = [any("crossover" in x for x in rate(x).conditions()) for x in ("mean-field", "ntk")]
    assert crossing == [False, True]


@pytest.mark.parametrize(("scaling", "depth"), [("mean-field", 4), ("ntk", 2)])
def test_powers_of_each_layer_need_not_be_affine_in_it(scaling: str, depth: int) -> None:
    """At a numerical depth every layer has a separate power; the solution is the same."""
    whole, own = dominant_balance(theory(scaling)), dominant_balance(theory(scaling, depth))
    assert simplify(whole.rate.subs(L, depth) / own.rate) == 1
    assert simplify(whole.neglected.subs(L, depth) / own.neglected) == 1
    for i in range(1, depth + 1):
        field = next(x for e, x in own.sizes.items() if e.func == Function("h") and e.args[0] == i)
        assert simplify(log(field).diff(gamma0) * gamma0 - Rational(i, depth + 1)) == 0


def test_a_balance_of_weights_that_decay_is_refused() -> None:
    rule = GradientDescent(eta, decay=eta * Symbol("lam", positive=True))
    forgetful = isotropic(L, data="population", center=True, rule=rule)
    with pytest.raises(NotApplicable, match="plain steps"):
        dominant_balance(mean_field(forgetful))


def test_what_the_start_gives_is_smaller_term_by_term() -> None:
    found = dominant_balance(theory())
    kinds = {x.expr: x.kind for e in found.theory.equations for x in e.terms}
    assert {kinds[e] for e in found.dropped} == {"source", "response"}
    assert len(found.dropped) == sum(k in ("source", "response") for k in kinds.values()) - 1  # the target
    for relative in found.dropped.values():
        for depth in (1, 2, 7):
            assert relative.subs({L: depth, nu: 1, gamma0: 100}) < 1


def test_a_theory_whose_weights_learn_more_slowly_is_told_apart() -> None:
    """Planted: the readout's updates without gamma0; the end of training is then not that of the balance."""
    wrong = [
        replace(e, terms=tuple(x.with_expression(x.expr.subs(gamma0, 1)) for x in e.terms))
        if e.lhs.func == Function("g") and e.lhs.args[0] == L
        else e
        for e in theory().equations
    ]
    with pytest.raises(NotApplicable):
        largest_rate(replace(theory(), equations=tuple(wrong)))
    with pytest.raises(NotApplicable, match="the balance of updates gives"):
        largest_rate(replace(theory("ntk"), program=program()))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_network_of_rank_one_stays_so_and_has_the_derived_sharpness(depth: int) -> None:
    """Brute force, at a finite size: random directions, singular values as derived, one step of descent."""
    rng = np.random.default_rng(depth)
    features, width, gamma, rate = 7, 11, 30.0, 1e-3
    values = {gamma0: gamma, nu: Rational(width, features), L: depth}
    found = aligned(program())
    end = float(found.end.subs(values))
    s = {k: float(sqrt(x * end).subs(values)) for k, x in found.strengths.items()}
    unit = [x / np.linalg.norm(x) * np.sqrt(len(x)) for x in rng.normal(size=(depth, width))]
    target = rng.normal(size=features)
    target *= np.sqrt(features) / np.linalg.norm(target)
    W = [s["W0"] * np.outer(unit[0], target) / features]
    W += [s["W"] * np.outer(b, a) / features for a, b in pairwise(unit)]
    w = s["w"] * unit[-1]

    def learnt() -> np.ndarray:
        g = w
        for M in W[:0:-1]:
            g = M.T @ g
        return W[0].T @ g * features / width / gamma

    assert np.allclose(learnt(), target)
    v = 1e-4 * target
    g, h = [w], [v]
    for M in W[:0:-1]:
        g.insert(0, M.T @ g[0])
    for M in W:
        h.append(M @ h[-1])
    before = learnt()
    for i in range(depth):
        scale = gamma * (1 if i == 0 else features / width) / features
        W[i] = W[i] + rate * scale * np.outer(g[i], h[i])
    w = w + rate * gamma * h[-1]
    moved = (learnt() - before) / rate
    sharpness = float(found.sharpness.subs(values))
    assert np.allclose(moved, sharpness * v, rtol=1e-3 * sharpness * rate + 1e-4)
    assert all(np.linalg.matrix_rank(M, tol=1e-9) == 1 for M in W)


def test_every_other_aligned_minimum_is_sharper() -> None:
    found = aligned(program(depth=3))
    values = {gamma0: 5, nu: 2}
    inner = [float(found.strengths[k].subs(values)) for k in ("W0", "W", "W", "w")]
    least, end = float(found.sharpness.subs(values)), float(found.end.subs(values))
    rng = np.random.default_rng(0)
    squares = np.array(inner) * end
    assert np.sum(inner / squares) == pytest.approx(least)
    for _ in range(20):
        tilt = rng.normal(size=4)
        other = squares * np.exp(tilt - tilt.mean())  # the same product: the target is learnt
        assert np.sum(inner / other) > least


# -- lazy --------------------------------------------------------------------------------------------------


def test_one_hidden_layer_is_one_plus_marchenko_pastur() -> None:
    kernel = lazy_kernel(theory(), 1)
    c = 1 / nu
    for found, expected in zip(kernel.moments(3), (1, 2, 4 + c, 8 + 6 * c + c**2), strict=True):
        assert simplify(found - expected) == 0
    for ratio in (0.3, 1.0, 7.0):
        assert kernel.edge({nu: ratio}) == pytest.approx(1 + (1 + ratio**-0.5) ** 2, rel=1e-9)


@pytest.mark.slow
def test_the_edge_of_two_layers_is_a_root_of_the_discriminant() -> None:
    """Where two solutions H(y) of the polynomial meet; the largest eigenvalue is at the y closest to zero."""
    kernel = lazy_kernel(theory(), 2)
    for ratio in ("1/1000000", "1/100", "1", "100"):
        meeting = Poly(discriminant(kernel.at({nu: ratio}).polynomial, H), y)
        closest = max(x for x in real_roots(meeting) if x.is_negative)
        assert kernel.edge({nu: ratio}) == pytest.approx(float(-1 / closest), rel=1e-9)


@pytest.mark.parametrize("depth", [2, 3, pytest.param(6, marks=pytest.mark.slow)])
def test_narrow_layers_have_the_edge_of_one_layer_less(depth: int) -> None:
    """Layers much narrower than the input: the first kernel is flat, and the others are square matrices.

    At depth 3 the edge at nu = 1e-4 was an inner edge of the spectrum, 10048 in place of 109467.
    """
    square = lazy_kernel(theory(), depth - 1).edge({nu: 1})
    kernel = lazy_kernel(theory(), depth)
    for ratio in (1e-3, 1e-4, 1e-5, 1e-6):
        assert ratio * kernel.edge({nu: ratio}) == pytest.approx(square, rel=2 * ratio**0.5)


@pytest.mark.parametrize("depth", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_moments_are_those_of_products_of_random_matrices(depth: int) -> None:
    """Traces of 250 features scatter by about 1/250, which bounds their deviation."""
    features, ratio, rng = 250, 2, np.random.default_rng(depth)
    width = ratio * features
    product, kernel = np.eye(features), np.eye(features)
    for i in range(depth):
        product = rng.normal(size=(width, len(product))) @ product / np.sqrt(width if i else features)
        kernel += product.T @ product / ratio
    eigenvalues = np.linalg.eigvalsh(kernel)
    for n, moment in enumerate(lazy_kernel(theory(), depth).moments(3)):
        near = 5 * n / features + 1e-12
        assert np.mean(eigenvalues**n) == pytest.approx(float(moment.subs(nu, ratio)), rel=near)


def test_the_first_two_moments_are_those_of_the_first_step() -> None:
    growth = first_step(theory("ntk")).growth_factor
    for depth in (1, 2):
        own = lazy_kernel(theory("ntk"), depth).growth(1)
        assert simplify(own - growth.subs(L, depth)) == 0


@pytest.mark.parametrize("depth", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_wide_layers_have_a_semicircle(depth: int) -> None:
    """Central moments 2 s^4 and 5 s^6 at leading order in 1/nu, and ends at two standard deviations."""
    kernel = lazy_kernel(theory(), depth)
    moments = kernel.moments(6)
    mean, e = moments[1], Symbol("e")
    center = [
        sum((comb(n, i) * (-mean) ** (n - i) * moments[i] for i in range(n + 1)), S.Zero).expand()
        for n in range(7)
    ]
    spread = center[2] * nu
    assert simplify(spread - Rational(depth * (depth + 1) * (2 * depth + 1), 6)) == 0
    for n, catalan in ((4, 2), (6, 5)):
        leading = (center[n].subs(nu, 1 / e) / e ** (n // 2)).expand().subs(e, 0)
        assert leading == catalan * spread ** (n // 2)
    assert (center[3].subs(nu, 1 / e) / e).expand().subs(e, 0) == 0
    wide = rate(regime="lazy").rate
    gaps = [float(wide.subs({L: depth, nu: x})) * kernel.edge({nu: x}) / 2 - 1 for x in (1e2, 1e4)]
    assert abs(gaps[1]) < abs(gaps[0]) / 50 < 1e-3


def test_the_lazy_rate_falls_to_two_over_the_largest_eigenvalue() -> None:
    kernel = lazy_kernel(theory(), 2)
    rates = [kernel.rate(n, {nu: 0.5}) for n in (1, 2, 4, 8)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == pytest.approx(2 * 3 / (9 + 5 / 0.5))
    assert rates[-1] > 2 / kernel.edge({nu: 0.5})
    of = rate(regime="lazy")
    assert (of.exponent, of.prefactor, of.rate.subs(L, 1).limit(nu, oo)) == (0, 2 / (L + 1), 1)


def test_series_of_equations_that_do_not_settle_are_refused() -> None:
    x, y = Symbol("x"), Symbol("y")
    with pytest.raises(NotApplicable, match="order by order"):
        solved_series({y: y + 1 + x}, x, 2)


# -- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"data": "online"}, "untrained random matrices"),
        ({"data": "population", "branch": Rational(1, 2)}, "grow at different rates"),
        ({"data": "population", "rule": "flow"}, "plain steps"),
        ({"data": "population", "outputs": 2}, "the update of W0 is a sum over c"),
        ({"data": "population", "widths": Function("nu")}, "one width"),
        ({"data": "population"}, "not centred"),
    ],
)
def test_refusals(options: dict[str, object], words: str) -> None:
    with pytest.raises(NotApplicable, match=words):
        largest_rate(isotropic(2, **options))


def test_other_words_are_refused() -> None:
    with pytest.raises(ValueError, match="rich, lazy"):
        largest_rate(theory(), "medium")
    with pytest.raises(NotApplicable, match="depth = None"):
        lazy_kernel(theory())
    with pytest.raises(NotApplicable, match="random"):
        lazy_kernel(mean_field(isotropic(1, data="online")))
    with pytest.raises(NotApplicable, match="plain steps"):
        lazy_kernel(mean_field(isotropic(1, data="population", rule=Momentum(eta, Rational(1, 2)))))
    assert largest_rate(program(depth=1)).rate == largest_rate(theory(depth=1)).rate
    assert not largest_rate(theory(depth=1)).rate.has(eta)


def test_samples_are_named() -> None:
    """A network with one output and one readout was told that it needs one output and one readout."""
    with pytest.raises(NotApplicable, match=r"the update of W0 is a sum over alpha.*data='population'"):
        aligned(mlp(2))
