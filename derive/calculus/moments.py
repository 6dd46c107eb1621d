"""Closed forms of Gaussian expectations, by reducing everything to the sign of one or two Gaussian numbers.

A term is a monomial times ``exp`` of a quadratic form times signs and error functions of linear forms.

* ``exp`` tilts the Gaussian: another covariance, and a shift.
* A factor ``x`` is traded for derivatives by Stein's lemma.  The derivative of an error function is a tilt;
  that of a sign is a delta, which conditions the Gaussian on a hyperplane.
* ``erf(x)`` is the mean of ``sign(sqrt(2) x + z)`` over a standard normal ``z``, so what is left are signs:
  ``<sign(x + m)> = erf(m / sqrt(2 v))`` and the arcsine law for pairs.

Rectifiers are ``x (1 + sign(x)) / 2`` and sines complex exponentials, so nothing more is needed for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from sympy import (
    Add,
    DiracDelta,
    Expr,
    I,
    ImmutableDenseMatrix,
    KroneckerDelta,
    Mul,
    Poly,
    Rational,
    S,
    Symbol,
    asin,
    cancel,
    cos,
    erf,
    erfi,
    exp,
    eye,
    factorial,
    hermite_prob,
    pi,
    sign,
    sin,
    sqrt,
)
from sympy.matrices import MatrixBase

from derive.calculus.jumps import conditioned, written
from derive.calculus.sums import factors as written_out

Fold = Callable[[Expr, tuple[Expr, ...], MatrixBase], Expr]


class NoClosedForm(Exception):
    """A term that this module cannot integrate."""


@dataclass(frozen=True)
class Unit:
    """``sign(a.x + m)``, or ``erf(a.x + m)`` when ``soft``; ``a`` holds the coefficients."""

    a: tuple[Expr, ...]
    m: Expr
    soft: bool

    def moved(self, shift: MatrixBase) -> Unit:
        """The same after ``x`` has become ``x + shift``."""
        return replace(self, m=cancel(self.m + sum(p * q for p, q in zip(self.a, shift, strict=True))))


def expectation(body: Expr, variables: tuple[Expr, ...], matrix: MatrixBase, fold: Fold) -> Expr:
    """``<body>``; what has no closed form is handed to ``fold``, each group of independent factors apart.

    Exponents of quadratic forms are taken to be such that the integral converges.
    """
    total = []
    for term in Add.make_args(written(body, variables).expand()):
        fixed: list[Expr] = []
        rest: list[Expr] = []
        for x in Mul.make_args(term):
            (rest if any(x.has(v) for v in variables) else fixed).append(x)
        value = Mul(*fixed)
        for factors in _independent(rest, variables, matrix):
            value *= _group(factors, variables, matrix, fold)
        total.append(value)
    return real(Add(*total))


# -- independent groups --------------------------------------------------------------------------------------


def _independent(factors: list[Expr], variables: tuple[Expr, ...], matrix: MatrixBase) -> list[list[Expr]]:
    """The factors in groups that share no variables and no correlations."""
    groups: list[tuple[set[int], list[Expr]]] = []
    for x in factors:
        mine = {i for i, v in enumerate(variables) if x.has(v)}
        close = [g for g in groups if any(i == j or matrix[i, j] != 0 for i in g[0] for j in mine)]
        for g in close:
            groups.remove(g)
        groups.append((set().union(mine, *[g[0] for g in close]), [y for g in close for y in g[1]] + [x]))
    return [g[1] for g in groups]


def _group(factors: list[Expr], variables: tuple[Expr, ...], matrix: MatrixBase, fold: Fold) -> Expr:
    if any(x.has(DiracDelta) for x in factors):
        found = conditioned(factors, variables, matrix)
        if found is None:
            return fold(Mul(*factors), variables, matrix)
        return Add(*[c * expectation(e, left, C, fold) for c, e, left, C in found])
    try:
        return _hermite(factors, variables, matrix) or _Term.read(factors, variables, matrix).value()
    except NoClosedForm:
        return fold(Mul(*factors), variables, matrix)


def _hermite(factors: list[Expr], variables: tuple[Expr, ...], matrix: MatrixBase) -> Expr | None:
    """Orthogonality of Hermite polynomials of symbolic order in numbers of variance one."""
    found = [x for x in factors if isinstance(x, hermite_prob) and x.args[1] in variables]
    if len(found) != len(factors) or not 1 <= len(found) <= 2:
        return None
    places = [variables.index(x.args[1]) for x in found]
    if any(matrix[i, i] != 1 for i in places):
        return None
    if len(found) == 1:
        return KroneckerDelta(found[0].args[0], 0)
    n, m = (x.args[0] for x in found)
    return KroneckerDelta(n, m) * factorial(n) * matrix[places[0], places[1]] ** n


# -- one term ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Term:
    """``polynomial * exp(b.x - x.A x / 2 + c) * units`` under a centred Gaussian of covariance ``C``."""

    polynomial: Poly
    A: MatrixBase
    b: MatrixBase
    c: Expr
    units: tuple[Unit, ...]
    C: MatrixBase

    @classmethod
    def read(cls, factors: list[Expr], variables: tuple[Expr, ...], C: MatrixBase) -> _Term:
        """Sort the factors.  Raises NoClosedForm for one that is none of these kinds."""
        n = len(variables)
        polynomial, exponent, units = S.One, S.Zero, []
        for x in written_out(Mul(*factors)):
            if x.is_polynomial(*variables):
                polynomial *= x
            elif isinstance(x, exp):
                exponent += x.args[0]
            elif isinstance(x, erf | sign):
                line = _poly(x.args[0], variables, 1)
                a, m = tuple(line.coeff_monomial(v) for v in variables), line.coeff_monomial(1)
                if isinstance(x, sign):  # equal up to a factor is equal: see _without_squares
                    k = next((k for k in a if k != 0), S.One)
                    k = k if k.is_number else S.One
                    polynomial *= sign(k)
                    a, m = tuple(p / k for p in a), m / k
                units.append(Unit(a, m, isinstance(x, erf)))
            else:
                raise NoClosedForm(x)
        form = _poly(exponent, variables, 2)
        A = ImmutableDenseMatrix(
            n, n, lambda i, j: -form.coeff_monomial(variables[i] * variables[j]) * (2 if i == j else 1)
        )
        b = ImmutableDenseMatrix([form.coeff_monomial(v) for v in variables])
        _check_convergence(A, C)
        return cls(_poly(polynomial, variables), A, b, form.coeff_monomial(1), tuple(units), C)

    def value(self) -> Expr:
        """Its expectation.  Raises NoClosedForm."""
        C, shift, weight, units, polynomial = self.C, self.b, exp(self.c), self.units, self.polynomial
        if any(x != 0 for x in (*self.A, *self.b)):
            if any(x.has(I) for x in self.b) and any(not u.soft for u in units):
                raise NoClosedForm("a sign under an oscillating exponential")
            widening = eye(C.rows) + C * self.A
            size = cancel(widening.det())
            if size.is_zero or size.is_negative:
                raise NoClosedForm("the integral diverges")
            C = (widening.inv() * C).applyfunc(cancel) if any(x != 0 for x in self.A) else C
            weight *= exp(((self.b.T * C * self.b)[0] / 2).expand()) / sqrt(size)
            shift = C * self.b
            units = tuple(u.moved(shift) for u in units)
            gens = polynomial.gens
            moved = {x: x + d for x, d in zip(gens, shift, strict=True)}
            polynomial = _poly(polynomial.as_expr().subs(moved, simultaneous=True), gens)
        total = [k * _moment(powers, units, C) for powers, k in polynomial.terms()]
        return weight * Add(*total)


def _check_convergence(A: MatrixBase, C: MatrixBase) -> None:
    """Raises NoClosedForm if ``exp(-x.A x / 2)`` outgrows the Gaussian, as far as numbers can tell."""
    if all(x == 0 for x in A) or not all(x.is_Rational for x in (*A, *C)):
        return
    t = Symbol("t")
    if Poly((eye(C.rows) + t * C * A).det(), t).count_roots(0, 1):
        raise NoClosedForm("the integral diverges")


def _poly(e: Expr, variables: tuple[Expr, ...], degree: int | None = None) -> Poly:
    if not e.is_polynomial(*variables):
        raise NoClosedForm(e)
    found = Poly(e, *variables)
    if degree is not None and found.total_degree() > degree:
        raise NoClosedForm(e)
    return found


def _moment(powers: tuple[int, ...], units: tuple[Unit, ...], C: MatrixBase) -> Expr:
    """``<x^powers prod units>``: Stein's lemma until no factor ``x`` is left."""
    units = _without_squares(units)
    if all(u.m == 0 for u in units) and (sum(powers) + len(units)) % 2:
        return S.Zero
    i = next((i for i, k in enumerate(powers) if k), None)
    if i is None:
        return _signs(units, C)
    rest = _lowered(powers, i)
    total = []
    for j, k in enumerate(rest):
        if k and C[i, j] != 0:
            total.append(k * C[i, j] * _moment(_lowered(rest, j), units, C))
    for at, u in enumerate(units):
        others = units[:at] + units[at + 1 :]
        c = _dot(C.row(i), u.a)
        if c != 0:
            total.append(c * (_pushed if u.soft else _cut)(u, rest, others, C))
    return Add(*total)


def _pushed(u: Unit, powers: tuple[int, ...], others: tuple[Unit, ...], C: MatrixBase) -> Expr:
    """With the slope ``2 exp(-l^2) / sqrt(pi)`` of an error function of ``l``: a tilted Gaussian."""
    a = ImmutableDenseMatrix(u.a)
    gens = tuple(_generators(len(powers)))
    polynomial = Poly({powers: S.One}, *gens)
    tilted = _Term(polynomial, 2 * a * a.T, -2 * u.m * a, -(u.m**2), others, C)
    return 2 / sqrt(pi) * tilted.value()


def _cut(u: Unit, powers: tuple[int, ...], others: tuple[Unit, ...], C: MatrixBase) -> Expr:
    """With the slope ``2 delta(l)`` of a sign of ``l``: the Gaussian on a hyperplane, times its density."""
    a = ImmutableDenseMatrix(u.a)
    across = C * a
    v = cancel(_dot(across, u.a))
    if v == 0:
        raise NoClosedForm("the sign of a number without variance")
    density = exp(-(u.m**2) / (2 * v)) / sqrt(2 * pi * v)
    shift = (-across * u.m / v).applyfunc(cancel)
    left = (C - across * across.T / v).applyfunc(cancel)
    gens = tuple(_generators(len(powers)))
    moved = Mul(*[(x + d) ** k for x, d, k in zip(gens, shift, powers, strict=True)])
    units = tuple(x.moved(shift) for x in others)
    terms = [k * _moment(p, units, left) for p, k in _poly(moved, gens).terms()]
    return 2 * density * Add(*terms)


def _generators(n: int) -> list[Expr]:
    return [Symbol(f"_x{i}") for i in range(n)]


def _lowered(powers: tuple[int, ...], i: int) -> tuple[int, ...]:
    return (*powers[:i], powers[i] - 1, *powers[i + 1 :])


def _dot(x: Any, y: Any) -> Expr:
    return cancel(sum((p * q for p, q in zip(x, y, strict=True)), S.Zero))


# -- signs ---------------------------------------------------------------------------------------------------


def _without_squares(units: tuple[Unit, ...]) -> tuple[Unit, ...]:
    """A sign times itself is one, to be used before any derivative: ``sign(0)`` means nothing."""
    left: list[Unit] = []
    for u in units:
        if not u.soft and u in left:
            left.remove(u)
        else:
            left.append(u)
    return tuple(left)


def _signs(units: tuple[Unit, ...], C: MatrixBase) -> Expr:
    """The mean of a product of signs and error functions."""
    scale = [sqrt(2) if u.soft else S.One for u in units]
    means = [k * u.m for k, u in zip(scale, units, strict=True)]
    overlap = [
        [cancel(p * q * _dot(C * ImmutableDenseMatrix(u.a), w.a)) for q, w in zip(scale, units, strict=True)]
        for p, u in zip(scale, units, strict=True)
    ]
    variances = [overlap[i][i] + (1 if u.soft else 0) for i, u in enumerate(units)]
    groups: list[list[int]] = []
    for i in range(len(units)):
        close = [g for g in groups if any(overlap[i][j] != 0 for j in g)]
        groups = [g for g in groups if g not in close] + [[*[j for g in close for j in g], i]]

    def mean(g: list[int]) -> Expr:
        if len(g) == 1:
            m, v = means[g[0]], variances[g[0]]
            if v == 0:
                return sign(m)
            return erf(m / sqrt(2 * v)) if m != 0 else S.Zero
        if any(means[i] != 0 for i in g):
            raise NoClosedForm("signs of correlated numbers with means")
        if len(g) % 2:
            return S.Zero
        if len(g) > 2:
            raise NoClosedForm("four signs")
        i, j = g
        return Rational(2) / pi * asin(overlap[i][j] / (sqrt(variances[i]) * sqrt(variances[j])))

    return reduce(lambda x, y: x * y, map(mean, groups), S.One)


def real(e: Expr) -> Expr:
    """Complex exponentials back to sines."""
    if not e.has(I):
        return e

    def wave(x: Expr) -> Expr:
        real, imaginary = S.Zero, S.Zero
        for part in Add.make_args(x.args[0].expand()):
            (c, i) = part.as_independent(I)
            if i == I:
                imaginary += c
            else:
                real += part
        return exp(real) * (cos(imaginary) + I * sin(imaginary))

    e = e.expand().replace(lambda x: isinstance(x, exp) and x.has(I), wave)
    return e.replace(
        lambda x: isinstance(x, erf) and x.has(I) and not (x.args[0] / I).has(I),
        lambda x: I * erfi(x.args[0] / I),
    ).expand()
