"""Lazy wide networks in closed form, against moments of the law of Marchenko and Pastur."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from math import comb

import pytest
from sympy import Expr, Rational, S, Symbol, cancel, expand

from derive.calculus.series import PowerSeries
from derive.calculus.symbols import t
from derive.errors import NotApplicable
from derive.expansion.regression import kept_share, lazy_regression, remaining
from derive.program import L, eta
from derive.program.networks.random_data import sigma
from derive.program.rules import GradientDescent, Momentum
from tests.derive.once import isotropic, mean_field, mlp, structured


def moment(k: int, n: int) -> Expr:
    """Return the coefficient of alpha^-n in the k-th moment of the samples' eigenvalues (Narayana)."""
    return Rational(comb(k, n) * comb(k - 1, n), n + 1) if k else Rational(int(n == 0))


@lru_cache(maxsize=4)
def full_batch(order: int) -> PowerSeries:
    """Return the regression at symbolic depth, without noise."""
    return lazy_regression(mean_field(isotropic()), order)


def averaged(time: int, n: int, extra: int = 0) -> Expr:
    """Return order n of the average of ``x^extra (1 - (1 - q) x)^(2 time)``."""
    terms = [comb(2 * time, k) * (remaining - 1) ** k * moment(k + extra, n) for k in range(2 * time + 1)]
    return expand(sum(terms))


@pytest.mark.parametrize("order", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_test_loss_is_an_average_over_eigenvalues(order: int) -> None:
    found = full_batch(order)
    for n, c in enumerate(found.coefficients):
        for time in range(5):
            assert cancel(c.subs(t, time) - averaged(time, n)) == 0, (n, time)


def test_training_loss_weighs_directions_with_their_eigenvalue() -> None:
    found = lazy_regression(mean_field(isotropic(depth=2)), 2, "C_Delta")
    for n, c in enumerate(found.coefficients):
        for time in (0, 1, 2):
            assert cancel(c.subs(t, time) - averaged(time, n, 1)) == 0, (n, time)


@pytest.mark.slow
def test_noise_is_fitted() -> None:
    """To first order the labels' noise adds sigma^2 (1 - q^t)^2/alpha to the test loss."""
    clean = full_batch(2).coefficient(1)
    noisy = lazy_regression(mean_field(isotropic(noise=True)), 1).coefficient(1)
    for time in range(4):
        gap = (noisy - clean).subs(t, time)
        assert cancel(gap - sigma**2 * (1 - remaining**time) ** 2) == 0


def test_what_is_kept_of_an_error() -> None:
    assert expand(kept_share(mean_field(isotropic())) - (1 - eta * (L + 1))) == 0
    assert expand(kept_share(mean_field(isotropic(depth=3))) - (1 - 4 * eta)) == 0


def test_the_rate_is_that_of_the_program() -> None:
    tenth = isotropic(depth=1).with_rule(GradientDescent(Rational(1, 10)))
    assert kept_share(mean_field(tenth)) == Rational(4, 5)


def test_other_weights_and_layers_have_another_share() -> None:
    """Initial weights of variance 4 move the output four times as fast; the share was that of variance 1."""
    one = isotropic(depth=1)
    (w,) = (x for x in one.trained() if x.name == "w")
    four = replace(w, initial=replace(w.initial, variance=S(4)))
    wide = replace(one, vectors=tuple(four if x == w else x for x in one.vectors))
    for program in (wide, mlp(1, "tanh")):
        with pytest.raises(NotApplicable, match="has other weights or layers"):
            kept_share(mean_field(program))


@pytest.mark.parametrize("name", ["R_vu", "v", "C_h"])
def test_only_correlations_on_the_data_have_a_series(name: str) -> None:
    with pytest.raises(KeyError, match=f"no correlation '{name}' .* there are C_v, C_Delta, C_h0"):
        lazy_regression(mean_field(isotropic(depth=1)), 1, name)


def test_other_theories_are_refused() -> None:
    with pytest.raises(NotApplicable, match="samples must be used again"):
        lazy_regression(mean_field(isotropic(data="population")), 1)
    with pytest.raises(NotApplicable, match="samples must be used again"):
        lazy_regression(mean_field(isotropic(data="online")), 1)
    with pytest.raises(NotApplicable, match="the training rule is a flow"):
        lazy_regression(mean_field(isotropic(rule="flow")), 1)
    with pytest.raises(NotApplicable, match="give center=False"):
        lazy_regression(mean_field(isotropic(center=True)), 1)
    residual = mean_field(isotropic(branch=Rational(1, 2)))
    with pytest.raises(NotApplicable, match="residual network"):
        kept_share(residual)
    for rule in (Momentum(eta, Rational(1, 2)), GradientDescent(eta, decay=Rational(1, 10))):
        theory = mean_field(isotropic(rule=rule))
        for asked in (kept_share, partial(lazy_regression, order=1)):
            with pytest.raises(NotApplicable, match="plain steps"):
                asked(theory)
    assert Symbol("q", positive=True) == remaining


def test_other_networks_have_no_lazy_regression() -> None:
    """They ended in a KeyError without a reason."""
    with pytest.raises(NotApplicable, match=r"v\(c, t\) has an index of outputs"):
        lazy_regression(mean_field(isotropic(depth=1, outputs=2)), 1)
    with pytest.raises(NotApplicable, match="whose width divided by the number of features is the symbol nu"):
        lazy_regression(mean_field(isotropic(depth=1, widths=S(2))), 1)
    with pytest.raises(NotApplicable, match="have the attributes lamda, w_star"):
        lazy_regression(mean_field(structured(depth=1, data="full-batch", center=False)), 1)
