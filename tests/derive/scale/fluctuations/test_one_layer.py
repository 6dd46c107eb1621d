"""One hidden linear layer in flow against derivatives of integrated equations and against trajectories."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from sympy import Expr, Symbol, lambdify

from derive.calculus.symbols import gamma0, t
from derive.errors import NotApplicable
from derive.program.centring import centred
from derive.scale.fluctuations import OneLayerFlow, one_layer_flow, one_sample, wishart_recursion
from derive.scale.fluctuations.one_layer import A, B, growth, last
from tests.derive.once import mlp
from tests.numerics.fluctuations.one_layer import OneLayer, exact_moments, leading_order, trajectories

K_x, y = Symbol("K_x", positive=True), Symbol("y", real=True)
NUMBERS = {K_x: 1.4, y: 0.8, gamma0: 0.7}
OPTIONS = pytest.mark.parametrize("option", [False, True], ids=["plain", "centred"])


@lru_cache(maxsize=4)
def flow(option: bool) -> OneLayerFlow:
    program = mlp(1, rule="flow")
    return one_layer_flow(centred(program) if option else program)


def network(option: bool) -> OneLayer:
    """Return the same problem, with outputs at the times 0, 0.3, 0.6."""
    return OneLayer(np.array([[NUMBERS[K_x]]]), np.array([NUMBERS[y]]), 0.3, 2, NUMBERS[gamma0], option, True)


def number(e: Expr, **times: float) -> float:
    """Return the number of an expression at infinite width."""
    ends = {last: flow(False).growth_at_end.subs({A: 1, B: 1}).subs(NUMBERS)}
    return float(e.subs({A: 1, B: 1}).subs(NUMBERS).subs(ends).subs({Symbol(k): v for k, v in times.items()}))


def test_the_end_of_training() -> None:
    """finite-width.md, section 7: features that are learnt reduce the variance of the tangent kernel."""
    plain, difference = flow(False), flow(True)
    assert str(plain.kernel_variance_at_end) == "4*K_x**3/(K_x + gamma0**2*y**2)"
    assert str(plain.kernel_shift_at_end) == "-K_x**(5/2)/(K_x + gamma0**2*y**2)**(3/2)"
    assert str(difference.kernel_variance_at_end) == "4*K_x**2"
    assert difference.kernel_shift_at_end == 0
    assert "every width" in plain.conditions()[0]
    with pytest.raises(NotApplicable, match="in steps"):
        one_layer_flow(mlp(1))
    with pytest.raises(NotApplicable, match="decay"):
        one_sample(wishart_recursion(mlp(1, weight_decay=Symbol("lam", positive=True))))


@OPTIONS
def test_error_and_kernel_are_exact_at_every_width(option: bool) -> None:
    found, rng = flow(option), np.random.default_rng(0)
    a, b = rng.uniform(0.5, 1.5, (2, 5))
    reference = trajectories(network(option), a, b)
    start = reference["f"][0] if option else 0.0
    for e, expected in (
        (found.error, NUMBERS[y] - reference["f"][2]),
        (found.kernel, reference["tangent_kernel"][2]),
    ):
        value = lambdify((A, B), found.at(e).subs(NUMBERS).subs(t, 0.6))(a, b)
        np.testing.assert_allclose(value, expected, rtol=1e-11)  # rounding
    assert np.ndim(start) == (1 if option else 0)


@pytest.mark.slow
@OPTIONS
def test_variances_and_shifts(option: bool) -> None:
    """N Cov at two times, and N shift, against derivatives of an integration to 1e-12."""
    found, reference = flow(option), leading_order(network(option))
    jets = {"f": reference.jets["f"][:, 0], "tangent_kernel": reference.jets["tangent_kernel"][:, 0, 0]}
    z = [1.0, *(number(found.growth_at(x)) for x in (0.3, 0.6))]
    pairs = (
        ("f", -1, found.error, found.error_sensitivity),
        ("tangent_kernel", 1, found.kernel, found.kernel_sensitivity),
    )
    for name, sign, e, sensitivity in pairs:
        expected = reference.scaled_covariance(jets[name], jets[name])
        for i, j in ((1, 1), (1, 2), (2, 2)):
            value = number(found.covariance(sensitivity, sensitivity, z[i], z[j]))
            assert value == pytest.approx(expected[i, j], rel=1e-8)
        shift = number(found.modes.shift(found.at(e)).subs(t, 0.6))
        assert sign * shift == pytest.approx(np.ravel(reference.scaled_shift(name))[2], rel=1e-8)


def test_the_covariance_as_integrals_of_the_kernel() -> None:
    """finite-width.md: Delta K(t) Delta K(s) [1/(4 gamma0^2 y^2) + 16 I(t) I(s)], I the integral of K^-2."""
    found, c = flow(False), 0.7 * 0.8
    put = {K_x: 1.0, y: 0.8, gamma0: 0.7, A: 1, B: 1}
    kernel, error = (lambdify(t, found.at(e).subs(put)) for e in (found.kernel, found.error))
    now, past = 0.9, 0.4
    integrals = [quad(lambda x: kernel(x) ** -2, 0, time, epsabs=1e-12)[0] for time in (now, past)]
    front = np.prod([kernel(x) * error(x) for x in (now, past)])
    z = [found.growth_at(x).subs(put) for x in (now, past)]
    sensitivity = found.error_sensitivity
    value = found.covariance(sensitivity, sensitivity, *z).subs(put).subs(last, found.growth_at_end.subs(put))
    assert float(value) == pytest.approx(
        front * (1 / (4 * c**2) + 16 * integrals[0] * integrals[1]), rel=1e-10
    )


@OPTIONS
def test_the_series_of_the_kernel_at_the_end(option: bool) -> None:
    """Three terms in 1/N leave a remainder of order 1/N^3, or 1/N^4 where odd orders vanish."""
    coefficients = [float(x.subs(NUMBERS)) for x in flow(option).kernel_series(2)]
    gaps = []
    for width in (80, 160):
        late = OneLayer(*[np.array([[NUMBERS[K_x]]]), np.array([NUMBERS[y]])], 8.0, 1, 0.7, option, True)
        exact = exact_moments(late, width)["tangent_kernel"].mean[1]
        gaps.append(exact - sum(c / width**k for k, c in enumerate(coefficients)))
    # the next order adds a share of a few over N to the remainder
    assert np.log2(abs(gaps[0] / gaps[1])) == pytest.approx(4 if option else 3, abs=0.2)


def test_the_growth_obeys_its_equation() -> None:
    found = flow(False)
    z = found.growth_at(t)
    values: Any = {A: 1.2, B: 0.9, **NUMBERS}
    slope = z.diff(t).subs(values).subs(t, 0.4)
    assert float(slope) == pytest.approx(float(found.velocity.subs(growth, z).subs(values).subs(t, 0.4)))
