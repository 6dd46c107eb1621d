"""Ratios, shared matrices and equal-time responses against random matrices, with no theory in between."""

from __future__ import annotations

import numpy as np
import pytest
from sympy import Expr, Rational, Symbol, simplify

from derive.theory.path_integral import path_integral
from tests.chance import excess
from tests.derive.once import mean_field
from tests.derive.programs import g, rho_a, rho_b, there_and_back
from tests.derive.theory.single_time import SingleTime


def quadratic(v: Expr) -> Expr:
    return v + Rational(1, 3) * v**2


ROUTES = [mean_field, lambda p: path_integral(p).theory()]


@pytest.mark.parametrize("route", ROUTES, ids=["conditioning", "path integral"])
def test_linear_moments_are_those_of_marchenko_and_pastur(route: object) -> None:
    """With f the identity, q = M^T M h and l = M M^T M h: moments of the Wishart spectrum, exactly."""
    at = SingleTime(route(there_and_back(lambda v: v)))  # type: ignore[operator]
    f = at.fields
    expected = {
        ("k", "k"): g * rho_a,
        ("h", "q"): g * rho_b,
        ("q", "q"): g**2 * (rho_b**2 + rho_a * rho_b),
        ("k", "l"): g**2 * rho_a * (rho_b + rho_a),
        ("l", "l"): g**3 * rho_a * (rho_b**2 + 3 * rho_a * rho_b + rho_a**2),
    }
    variance = rho_a  # of h
    for (one, two), value in expected.items():
        assert simplify(at.mean((f[one] * f[two]).expand()) - variance * value) == 0, (one, two)


def test_nonlinear_moments_match_random_matrices() -> None:
    """A quadratic f, sizes 500 and 750: every second moment within its standard error and O(1/N)."""
    n, m, seeds, strength = 500, 750, 40, 0.4
    rng = np.random.default_rng(1)
    samples: dict[tuple[str, str], list[float]] = {}
    pairs = [("h", "q"), ("q", "q"), ("k", "k"), ("k", "l"), ("l", "l")]

    def f(v: np.ndarray) -> np.ndarray:
        return v + v**2 / 3

    for _ in range(seeds):
        M = rng.normal(0, np.sqrt(strength / n), (m, n))
        h = rng.normal(0, 1 / np.sqrt(n), (n, n)) @ rng.normal(size=n)
        k = M @ f(h)
        q = M.T @ f(k)
        fields = {"h": h, "k": k, "q": q, "l": M @ f(q)}
        for pair in pairs:
            samples.setdefault(pair, []).append(float(np.mean(fields[pair[0]] * fields[pair[1]])))

    at = SingleTime(mean_field(there_and_back(quadratic)))
    numbers = {rho_a: 1, rho_b: Rational(3, 2), g: Rational(2, 5)}
    for one, two in pairs:
        theory = float(at.mean((at.fields[one] * at.fields[two]).expand()).subs(numbers))
        found = np.array(samples[one, two])
        error = found.std(ddof=1) / np.sqrt(seeds)
        assert excess(max(abs(found.mean() - theory) - 3 / n * abs(theory), 0) / error, seeds - 1) < 1, (
            one,
            two,
            theory,
            found.mean(),
            error,
        )


def test_the_evaluator_knows_gaussian_moments() -> None:
    at = SingleTime(mean_field(there_and_back(lambda v: v)))
    x = Symbol("x0")
    assert [at.mean(x**n) for n in range(7)] == [1, 0, 1, 0, 3, 0, 15]
