"""Conserved quantities are found, for random systems that have one and for ones that have none."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Eq, Function, Matrix, Rational, Symbol, linsolve, symbols

from derive.reduce.closed_forms import conserved

t = symbols("t")
x = [Function(f"x{k}")(t) for k in range(4)]


def drift(invariant, odes):
    return sum(invariant.diff(e.lhs.args[0]) * e.rhs for e in odes).expand()


@given(st.integers(0, 10**6))
@settings(max_examples=8, deadline=None)
def test_random_linear_systems_with_a_conserved_form(seed):
    """``dx/dt = A S x`` with A antisymmetric keeps ``x.S x``."""
    rng = random.Random(seed)
    n = rng.randint(2, 3)
    a = Matrix(n, n, lambda i, j: rng.randint(-3, 3) if i < j else 0)
    s = Matrix(n, n, lambda i, j: rng.randint(-2, 2))
    s, a = s + s.T + 5 * Matrix.eye(n), a - a.T
    v = Matrix(x[:n])
    odes = [Eq(x[i].diff(t), (a * s * v)[i], evaluate=False) for i in range(n)]
    found = conserved(odes)
    assert all(drift(i, odes) == 0 for i in found)
    quadratic = (v.T * s * v)[0].expand()
    names = symbols(f"z0:{len(found)}")
    squares = [z * p for z, p in zip(names, found, strict=True)] + [
        Symbol(f"w{i}{j}") * p * q for i, p in enumerate(found) for j, q in enumerate(found) if i <= j
    ]
    gap = (sum(squares) - quadratic).expand().as_poly(*x[:n])
    unknown = sorted(gap.free_symbols_in_domain, key=str)
    assert linsolve(gap.coeffs(), *unknown)


@given(st.integers(0, 10**6))
@settings(max_examples=6, deadline=None)
def test_random_quadratic_systems_built_around_an_invariant(seed):
    """``dx/dt = grad I x grad J`` in three dimensions keeps I and J."""
    rng = random.Random(seed)
    v = Matrix(x[:3])
    form = Matrix(3, 3, lambda i, j: rng.randint(-2, 2))
    i = (v.T * (form + form.T + 3 * Matrix.eye(3)) * v)[0]
    j = sum(rng.choice([-2, -1, 1, 2]) * z for z in x[:3])
    rate = Matrix([i.diff(z) for z in x[:3]]).cross(Matrix([j.diff(z) for z in x[:3]]))
    odes = [Eq(z.diff(t), r.expand(), evaluate=False) for z, r in zip(x, rate, strict=False)]
    found = conserved(odes)
    assert len(found) == 2
    assert all(drift(c, odes) == 0 for c in found)


def test_damped_systems_have_none():
    assert conserved([Eq(x[0].diff(t), -x[0]), Eq(x[1].diff(t), -2 * x[1])]) == ()


def test_degree_limits_what_is_found():
    a = Symbol("a", positive=True)
    odes = [Eq(x[0].diff(t), x[0] ** 2 * x[1]), Eq(x[1].diff(t), -a * x[0] * x[1] ** 2)]
    assert conserved(odes, 2) == ()
    lotka = [Eq(x[0].diff(t), x[0]), Eq(x[1].diff(t), -2 * x[1])]
    assert conserved(lotka, 3) == (x[0] ** 2 * x[1],)


def test_what_cannot_be_treated_is_refused():
    with pytest.raises(ValueError, match="must not contain the time"):
        conserved([Eq(x[0].diff(t), t * x[0])])
    with pytest.raises(ValueError, match="polynomial"):
        conserved([Eq(x[0].diff(t), 1 / x[0])])
    with pytest.raises(ValueError, match="derivative"):
        conserved([Eq(x[0], Rational(1, 2) * x[1])])
