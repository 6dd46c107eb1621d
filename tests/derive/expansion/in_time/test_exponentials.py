"""Exponential polynomials: integrals, sums, and equations with and without resonance."""

from __future__ import annotations

from fractions import Fraction
from random import Random
from typing import Any

import pytest
from sympy import QQ, Symbol, construct_domain, sqrt

from derive.expansion.in_time import Exponentials


def discrete(values: list[Any]) -> Exponentials:
    return Exponentials(QQ, [QQ(v.numerator, v.denominator) for v in values], discrete=True)


def at(x: Exponentials, f: Any, step: int) -> Fraction:
    """Return the value at a step, by hand."""
    total = Fraction(0)
    for (a, *powers), c in f.terms():
        value = Fraction(int(c.numerator), int(c.denominator)) * step**a
        for v, n in zip(x.eigenvalues, powers, strict=True):
            value *= Fraction(int(v.numerator), int(v.denominator)) ** (n * step)
        total += value
    return total


def some(x: Exponentials, seed: int) -> Any:
    rng = Random(seed)
    f = x.zero
    for _ in range(6):
        powers = (rng.randint(0, 3), *(rng.randint(0, 2) for _ in x.eigenvalues))
        f += x.term(powers) * QQ(rng.randint(-5, 5), rng.randint(1, 4))
    return f


RATIOS = [
    [Fraction(1, 2), Fraction(3, 5)],
    [Fraction(1, 4), Fraction(1, 2)],  # the second squared is the first
    [Fraction(-1), Fraction(1, 3)],  # its square sums like a constant
]


@pytest.mark.parametrize("ratios", RATIOS)
def test_sums_over_steps(ratios: list[Fraction]) -> None:
    x = discrete(ratios)
    for seed in range(5):
        f = some(x, seed)
        total = x.integral(f)
        for step in range(5):
            assert at(x, total, step) == sum(at(x, f, k) for k in range(step))
            assert at(x, x.difference(f), step) == at(x, f, step + 1) - at(x, f, step)


@pytest.mark.parametrize("ratios", RATIOS)
def test_volterra_equation_in_steps(ratios: list[Fraction]) -> None:
    x = discrete(ratios)
    for seed in range(5):
        drive = some(x, seed)
        for k, v in enumerate(ratios):
            powers = [int(j == k) for j in range(len(ratios))]
            u = x.volterra(drive, QQ(1) - x.eigenvalues[k], powers)
            for step in range(5):
                past = sum(at(x, u, j) for j in range(step))
                assert at(x, u, step) == at(x, drive, step) - (1 - v) * past


@pytest.mark.parametrize("rates", [[2, 3], [1, 2], [1, 0]])
def test_flow_integrals_and_equations(rates: list[int]) -> None:
    x = Exponentials(QQ, [QQ(-r) for r in rates], discrete=False)
    for seed in range(5):
        f = some(x, seed)
        assert merged(x, x.difference(x.integral(f)) - f) == 0
        assert x.at_start(x.integral(f)) == 0
        u = x.volterra(f, QQ(rates[0]), (1, 0))
        assert merged(x, u + rates[0] * x.integral(u) - f) == 0


def merged(x: Exponentials, f: Any) -> Any:
    """Return products of exponentials with those of rate 0 replaced by 1."""
    out = x.zero
    for (a, *powers), c in f.terms():
        live = [n if v else 0 for v, n in zip(x.eigenvalues, powers, strict=True)]
        out += x.term((a, *live)) * c
    return out


def test_a_resonance_gives_a_power_of_time() -> None:
    lone = Exponentials(QQ, [QQ(-2), QQ(-1)], discrete=False)
    t = lone.ring.gens[0]
    assert lone.solve(lone.exponential((0, 2)), (1, 0), lone.zero) == t * lone.exponential((0, 2))
    near = Exponentials(QQ, [QQ(-2) + QQ(1, 10**6), QQ(-1)], discrete=False)
    found = near.solve(near.exponential((0, 2)), (1, 0), near.zero)
    assert found.degree() == 0


def test_resonances_of_irrational_rates_are_decided_exactly() -> None:
    field, values = construct_domain([-sqrt(2), -2 * sqrt(2), 1 - sqrt(3)], field=True, extension=True)
    x = Exponentials(field, values, discrete=False)
    assert x.solve(x.exponential((2, 0, 0)), (0, 1, 0), x.zero).degree() == 1
    assert x.solve(x.exponential((0, 0, 2)), (0, 1, 0), x.zero).degree() == 0


def test_parameters_are_constants() -> None:
    y = Symbol("y")
    x = Exponentials(QQ, [QQ(-1)], discrete=False, parameters=[y])
    f = x.exponential((1,)) * x.parameters[y]
    assert x.integral(f) == x.parameters[y] - f
    assert x.parts(f) == {(0, 1): x.parameters[y]}
