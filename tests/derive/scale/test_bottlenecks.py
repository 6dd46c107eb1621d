"""Tests of finite width, batches and steps in the rich regime: shares, crossovers and laws after them.

Expectations are derived by hand. A learnt mode loses noise as ``exp(-2 x)``, and the balance of learning and
this loss gives the powers.
"""

from dataclasses import replace

import pytest
from sympy import Expr, Function, KroneckerDelta, Rational, exp, gamma, simplify, zeta

from derive.calculus.symbols import L, eta, gamma0, s, t
from derive.errors import NotApplicable
from derive.program.networks.random_data import B, N, k
from derive.program.networks.random_data import sigma as label
from derive.scale.bottlenecks import bottleneck, bottlenecks, resources
from derive.scale.modes import lamda
from derive.scale.modes import time as late
from derive.scale.rich import X, rich_scaling
from derive.theory import Theory
from tests.derive.once import mean_field, structured
from tests.derive.scale.derived import finite, population, reduced, rich_at, size

AT = [(1, "1/2", "2"), pytest.param((2, "3/10", "2"), marks=pytest.mark.slow)]


def test_noise_of_a_mode() -> None:
    """Check f = c (phi + z/sqrt(N)/gamma0).

    A step adds eta c sqrt(lamda loss/B) zeta to phi, and eta c^2 to X.
    """
    found = finite()
    assert simplify(found.initial_variance - 1 / (N * gamma0**2)) == 0
    assert simplify(found.batch_variance - eta * lamda(k) / B) == 0
    assert simplify(found.forgotten - 1 + exp(-2 * lamda(k) * X)) == 0
    assert (found.label, found.weight, found.edge) == (label**2, 1, 2)


def with_source(name: str, factor: Expr) -> Theory:
    """Return the online theory with a source whose covariance is multiplied."""
    theory = mean_field(structured(noise=True))
    sources = tuple(
        replace(x, covariance=x.covariance * factor) if x.symbol.func == Function(name) else x
        for x in theory.sources
    )
    return replace(theory, sources=sources)


def test_a_start_without_its_response_is_refused() -> None:
    """Twice the variance of r0 beside the response of variance one: Stein's lemma does not hold."""
    theory = population()
    sources = tuple(
        replace(x, covariance=2 * x.covariance) if x.symbol.func == Function("r0") else x
        for x in theory.sources
    )
    with pytest.raises(NotApplicable, match="an initial variance that does not depend"):
        resources(
            reduced(), replace(theory, sources=sources), mean_field(structured(noise=True)), population("gd")
        )


def test_batches_that_are_not_fresh_are_refused() -> None:
    online = with_source("u0", 1 / KroneckerDelta(s, t) + 1)
    with pytest.raises(NotApplicable, match="must be fresh at each step"):
        resources(reduced(), population(), online, population("gd"))


def powers(depth: int, source: str, capacity: str) -> tuple[Rational, ...]:
    """Return L, beta, a, and the powers of the integrated kernel and of the kernel in time."""
    n, b, a = Rational(depth), Rational(source), Rational(capacity)
    return n, b, a, (n + 1) / (1 + n * b), n * (1 - b) / (1 + n * b)


@pytest.mark.slow
@pytest.mark.parametrize("at", AT)
def test_width(at: tuple[int, str, str]) -> None:
    """X^(1/a) modes have lost their initial values, beside N sigma^2."""
    found = size("width", *at)
    n, b, a, clock, _ = powers(*at)
    share = (1 / a - (1 - b) / (n + 1)) * clock
    assert found.share is not None
    assert found.after is not None
    assert simplify(found.share.power - share) == 0
    assert found.exponent(N) == 1 / share
    assert found.after.power == -a * b / (1 + a * b)
    ratio = found.share.at(late).subs(late, found.crossover)
    assert abs(ratio.subs({N: 7, gamma0: 3}).n() - 1) < 1e-12


@pytest.mark.parametrize("at", AT)
def test_batch(at: tuple[int, str, str]) -> None:
    """``2 (2^beta - 1) = 2 q/(1 - q)`` with ``q = eta C_g zeta(a)/(2 B)``, whence ``1 - q = 2^-beta``."""
    found = size("batch", *at)
    _, b, a, _, growth = powers(*at)
    assert found.share is not None
    assert found.after is not None
    assert found.kernel is not None
    assert found.share.power == growth
    assert found.exponent(B) == 1 / growth == -found.exponent(eta)
    kernel = 2 * B * (1 - 2**-b) / (eta * zeta(a))
    assert simplify(found.kernel.at(late) - kernel) == 0
    loss = gamma(b) / a * (kernel * late) ** -b
    assert abs((found.after.at(late) / loss).subs({B: 3, eta: Rational(1, 7), late: 11}).n() - 1) < 1e-12


def test_labels() -> None:
    """``S = gamma0^2 (eta zeta(a)/B) sigma^2 X``: the kernel falls as X^-beta after the crossover."""
    found = size("labels", 1, "1/2", "2")
    assert found.share is not None
    assert found.after is not None
    # beta + 2 q powers of the integrated kernel, q = 1/8 and X ~ t^(4/3)
    assert found.share.power == Rational(3, 4) * Rational(4, 3)
    assert found.after.power == -Rational(1, 2) / (1 + Rational(1, 2))
    assert found.exponent(label) == -2 * found.exponent(B)
    assert any("singular value falls" in x for x in found.conditions())


@pytest.mark.parametrize("at", AT)
def test_steps(at: tuple[int, str, str]) -> None:
    """The kernel grows to 2/eta; from then on a mode is learnt as exp(-lamda X), with X twice the steps."""
    found = size("steps", *at)
    _, b, a, _, growth = powers(*at)
    assert found.exponent(eta) == -1 / growth
    assert found.after is not None
    loss = gamma(b) * 2**-b / a * (2 * late / eta) ** -b
    assert abs((found.after.at(late) / loss).subs({eta: Rational(1, 7), late: 11}).n() - 1) < 1e-12
    law = rich_at(*at[:2])
    assert abs((law.kernel * eta / 2).subs(late, found.crossover).subs({eta: 1, gamma0: 3}).n() - 1) < 1e-12


def test_wide_spectra_have_no_bottleneck_of_width() -> None:
    """Above ``a (1 - beta) = L + 1`` the singular value grows faster than the number of learnt modes."""
    found = size("width", 1, "1/2", "5")
    assert found.crossover is None
    assert found.after is None
    assert any("does not limit the law" in x for x in found.conditions())


def test_easy_tasks() -> None:
    """The lazy limit: the noise falls as t^-(1 - 1/a), and dominates at N^(a/(a (beta - 1) + 1))."""
    found = {name: size(name, 1, "3/2") for name in ("width", "batch", "labels", "steps")}
    width, b, a = found["width"], Rational(3, 2), 2
    assert width.exponent(N) == a / (a * (b - 1) + 1)
    assert width.after is not None
    assert width.after.power == -(1 - Rational(1, a))
    assert found["labels"].after is not None
    assert found["labels"].after.power == 0
    assert found["batch"].crossover is None
    assert found["steps"].crossover is None


def test_capacities_that_have_no_sum_are_refused() -> None:
    with pytest.raises(ValueError, match="must be above 1"):
        bottlenecks(finite(), rich_scaling(reduced(), 1, "1/2", 1))


@pytest.mark.slow
def test_constants_are_real() -> None:
    """Negative gamma functions stand under roots."""
    found = size("width", 1, "1/2", "3/2")
    assert found.after is not None
    assert found.after.coefficient.subs({N: 1, gamma0: 1}).n().is_real
    assert found.kernel is not None
    assert found.kernel.power == -Rational(1, 7)


@pytest.mark.slow
def test_exponents_in_symbols() -> None:
    """The crossover of width at any depth, source and capacity, and the condition under which it is one."""
    law = rich_scaling(reduced())
    width, batch, labels, steps = bottlenecks(finite(), law)
    beta, a = law.source, law.capacity
    assert width.share is not None
    assert simplify(width.share.power - (1 / a - (1 - beta) / (L + 1)) * (L + 1) / (1 + L * beta)) == 0
    assert simplify(steps.exponent(eta) + (1 + L * beta) / (L * (1 - beta))) == 0
    assert simplify(batch.exponent(B) + steps.exponent(eta)) == 0
    assert labels.share is not None
    assert simplify(labels.share.power - (beta + L * (1 - beta) / (L + 1)) * (L + 1) / (1 + L * beta)) == 0
    assert any("> 0; otherwise the share falls" in x for x in width.conditions())


def test_a_constant_share_does_not_limit_the_law() -> None:
    """At ``a (1 - beta) = L + 1`` the singular value grows as fast as the number of learnt modes."""
    found = size("width", 1, "1/2", "4")
    assert found.share is not None
    assert found.share.power == 0
    assert any("is constant in time" in x for x in found.conditions())


def test_unknown_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="name = 'depth': must be one of width, batch"):
        bottleneck(finite(), rich_at(1, "1/2"), "depth")
