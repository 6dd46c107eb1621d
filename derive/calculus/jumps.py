"""Piecewise polynomials with a kink or jump at zero, their point masses, and their Gaussian averages.

A rectifier or one of its derivatives is a sum of ``x**n * sign(x)**s`` and of derivatives of ``delta(x)``.
Products have the same form, except for a jump or a point mass times a point mass: the value of
``sign(x) * delta(x)`` depends on how the jump is smoothed, so it raises :class:`Ambiguous`. In an average, a
point mass conditions the Gaussian on a hyperplane (:func:`conditioned`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from math import factorial
from typing import Any

from sympy import (
    Abs,
    Add,
    DiracDelta,
    Dummy,
    Expr,
    Heaviside,
    ImmutableDenseMatrix,
    Max,
    Min,
    Mul,
    Piecewise,
    Poly,
    Pow,
    S,
    Symbol,
    cancel,
    cos,
    cosh,
    erf,
    erfc,
    exp,
    pi,
    sign,
    sin,
    sinh,
    sqrt,
)
from sympy.core.relational import GreaterThan, LessThan, StrictGreaterThan, StrictLessThan
from sympy.matrices import MatrixBase

from derive.calculus.sums import gathered

SignMonomial = tuple[int, int, int]
"""``x**n * sign(x)**s``, or, if ``m`` is not -1, that times the ``m``-th derivative of ``delta(x)``."""
SignPolynomial = dict[SignMonomial, Expr]
ONE: SignPolynomial = {(0, 0, -1): S.One}


class Ambiguous(ValueError):
    """Error: a product of distributions has no definite meaning, such as ``Heaviside(x) * DiracDelta(x)``."""


class OtherKind(ValueError):
    """Error: a function is not a piecewise polynomial with its only kink or jump at zero."""


def jumps(e: Expr, x: Symbol) -> SignPolynomial:
    """Return a piecewise polynomial of x as a dictionary from monomials (n, s, m) to coefficients.

    The monomial is ``x**n * sign(x)**s``, times the derivative of order m of ``delta(x)`` unless m is -1; it
    is in lowest terms, ``sign**2 = 1`` and ``x delta' = -delta``. Raises OtherKind for another function,
    Ambiguous for a point mass times a jump or point mass, unless a power of x makes the product with the jump
    zero.

    >>> x = Symbol("x", real=True)
    >>> jumps(Max(0, x), x), jumps(Max(0, x).diff(x, 2), x)
    ({(1, 0, -1): 1/2, (1, 1, -1): 1/2}, {(0, 0, 0): 1})
    >>> jumps(Max(0, x) * DiracDelta(x), x)
    {}
    >>> jumps(Heaviside(x) * DiracDelta(x), x)
    Traceback (most recent call last):
    derive.calculus.jumps.Ambiguous: sign(x) times DiracDelta(x), or times its derivative, ...
    """
    return lowest(_read(written(e, (x,)), x))


def multiplied(factors: Iterable[Mapping[SignMonomial, Expr]]) -> SignPolynomial:
    """Return the product of functions of one variable x, each a dictionary from monomials to coefficients.

    Monomials (n, s, m) are those of :func:`jumps`, and the product is in lowest terms. Raises Ambiguous for a
    point mass times a jump or point mass, unless a power of x makes the product with the jump zero.
    """
    return lowest(reduce(_times, factors, ONE))


def slope(monomial: SignMonomial) -> SignPolynomial:
    """Return the derivative by x of a monomial (n, s, m), as a dictionary from monomials to coefficients.

    The monomial is ``x**n * sign(x)**s``, times the derivative of order m of ``delta(x)`` unless m is -1. It
    must be in lowest terms (see :func:`lowest`): s is 0 or 1, and n = s = 0 next to a delta. The derivative
    of ``sign`` is twice a point mass.

    >>> slope((0, 1, -1)), slope((2, 1, -1)), slope((0, 0, 0))
    ({(0, 0, 0): 2}, {(1, 1, -1): 2}, {(0, 0, 1): 1})
    """
    n, s, m = monomial
    if m >= 0:
        return {(0, 0, m + 1): S.One}
    result: SignPolynomial = {(n - 1, s, -1): S(n)} if n else {}
    if s and not n:
        result[0, 0, 0] = S(2)
    return result


def lowest(e: Mapping[SignMonomial, Expr]) -> SignPolynomial:
    """Reduce a function of x to lowest terms by ``sign**2 = 1`` and ``x delta' = -delta``.

    ``e`` maps monomials (n, s, m) to coefficients: ``x**n * sign(x)**s``, times the derivative of order m of
    ``delta(x)`` unless m is -1. Next to that derivative ``x**n`` gives zero for n > m. Raises Ambiguous for a
    sign times a point mass, unless it is such a zero.
    """
    terms: list[tuple[SignMonomial, Expr]] = []
    for (n, s, m), c in e.items():
        if m < 0:
            terms.append(((n, s % 2, -1), c))
        elif n <= m and c != 0:
            if s:
                raise Ambiguous(
                    "sign(x) times DiracDelta(x), or times its derivative, depends on how the jump is "
                    "smoothed"
                )
            terms.append(((0, 0, m - n), c * (-1) ** n * factorial(m) / factorial(m - n)))
    return gathered(terms)


# -- reading -------------------------------------------------------------------------------------------------


def _read(e: Expr, x: Symbol) -> SignPolynomial:
    """Convert an expression in x to a dictionary from monomials (n, s, m) to coefficients.

    A monomial is ``x**n * sign(x)**s``, times the derivative of order m of ``delta(x)`` unless m is -1. Terms
    are not yet reduced. Raises OtherKind for an expression without this form.
    """
    if e.is_polynomial(x):
        return {(n, 0, -1): c for (n,), c in Poly(e, x).terms() if c != 0}
    if isinstance(e, Add):
        return gathered(part for a in e.args for part in _read(a, x).items())
    if isinstance(e, Mul):
        return reduce(_times, [_read(a, x) for a in e.args], ONE)
    if isinstance(e, Pow) and e.exp.is_Integer and e.exp > 0:
        return _times(_read(e.base, x), _read(e.base ** (e.exp - 1), x))
    if isinstance(e, sign):
        return {(0, 1, -1): sign(_slope_of(e.args[0], x))}
    if isinstance(e, DiracDelta):
        k, order = _slope_of(e.args[0], x), int(e.args[1]) if len(e.args) > 1 else 0
        return {(0, 0, order): 1 / (k**order * Abs(k))}
    raise OtherKind(f"{e} cannot be read as a piecewise polynomial of {x} with its only kink or jump at zero")


def _slope_of(line: Expr, x: Symbol) -> Expr:
    """Return the coefficient k of a linear form ``k x``; raise OtherKind for any other expression."""
    if not line.is_polynomial(x) or Poly(line, x).monoms() != [(1,)]:
        raise OtherKind(f"the argument {line} of a sign or point mass is not a constant times {x}")
    return Poly(line, x).LC()


def _times(a: Mapping[SignMonomial, Expr], b: Mapping[SignMonomial, Expr]) -> SignPolynomial:
    """Return the product of two functions of x, dictionaries from monomials (n, s, m) to coefficients.

    A monomial is ``x**n * sign(x)**s``, times the derivative of order m of ``delta(x)`` unless m is -1.
    Powers of signs add up and are not cancelled, because next to a point mass ``sign**2`` is as ambiguous as
    ``sign``. Raises Ambiguous if both functions contain a point mass.
    """
    if any(m >= 0 and r >= 0 for *_, m in a for *_, r in b):
        raise Ambiguous("a product of two factors DiracDelta(x), or of their derivatives, has no meaning")
    return gathered(
        ((n + p, s + q, max(m, r)), c * d) for (n, s, m), c in a.items() for (p, q, r), d in b.items()
    )


# -- functions in terms of signs, error functions and exponentials -------------------------------------------


def written(body: Expr, variables: tuple[Expr, ...]) -> Expr:
    """Rewrite rectifiers, steps and sines of the variables by signs, error functions and exponentials.

    The functions are ``Max`` and ``Min`` of two arguments, ``Piecewise`` with two cases divided by one
    inequality, ``Heaviside``, ``Abs``, ``erfc``, and the circular and hyperbolic sine and cosine. All others
    are left unchanged.
    """

    def random(e: Any) -> bool:
        """Return whether an expression contains one of the Gaussian ``variables``, so that it is random."""
        return any(e.has(v) for v in variables)

    def step(x: Expr) -> Expr:
        """Return the step function (0 below 0, 1 above) of ``x`` as ``(1 + sign(x))/2``."""
        return (1 + sign(x)) / 2

    def bend(e: Expr) -> Expr:
        """Return ``Max`` or ``Min`` of two expressions in terms of the sign of their difference."""
        x, y = e.args
        return (x + y + (x - y) * sign(x - y) * (1 if isinstance(e, Max) else -1)) / 2

    def cases(e: Piecewise) -> Expr:
        """Return a ``Piecewise`` with two cases, divided by one inequality, in terms of signs.

        A ``Piecewise`` of another form is returned unchanged.
        """
        (x, where), (y, other) = e.args
        if isinstance(where, StrictGreaterThan | GreaterThan):
            gap = where.lhs - where.rhs
        elif isinstance(where, StrictLessThan | LessThan):
            gap = where.rhs - where.lhs
        else:
            return e
        return x * step(gap) + y * step(-gap) if other == True else e  # noqa: E712

    rules: list[tuple[Callable[[Any], bool], Callable[[Any], Expr]]] = [
        (lambda e: isinstance(e, Piecewise) and len(e.args) == 2, cases),
        (lambda e: isinstance(e, Max | Min) and len(e.args) == 2, bend),
        (lambda e: isinstance(e, Heaviside), lambda e: step(e.args[0])),
        (lambda e: isinstance(e, Abs), lambda e: e.args[0] * sign(e.args[0])),
        (lambda e: isinstance(e, erfc), lambda e: 1 - erf(e.args[0])),
        (lambda e: isinstance(e, sin | cos | sinh | cosh), lambda e: e.rewrite(exp)),
    ]
    for is_one, rule in rules:
        body = body.replace(lambda e, is_one=is_one: is_one(e) and random(e), rule)
    return body


# -- point masses in an average ------------------------------------------------------------------------------

ConditionedAverage = tuple[Expr, Expr, tuple[Expr, ...], MatrixBase]
"""A number, and an average that it multiplies: body, variables and covariance."""


def conditioned(
    factors: list[Expr], variables: tuple[Expr, ...], C: MatrixBase
) -> list[ConditionedAverage] | None:
    """Return a Gaussian average of a product with its first point mass (delta function) integrated out.

    The result is a list of (number, body, variables, covariance), whose sum of number times average of body
    is the average of the factors. It is None if no factor is a point mass, or if the argument of the point
    mass is not linear. ``delta(l)`` is the density of ``l`` at zero and conditions the other factors on ``l =
    0``: the covariance C becomes ``C - C a a^T C / (a^T C a)`` for ``l = a.x + m``, and one variable of ``l``
    is eliminated. A derivative of delta is integrated by parts once, so that the bodies contain a delta with
    one derivative less, and all variables stay. Raises :class:`Ambiguous` for a jump or a second point mass
    at the same place (unless another factor is zero there), a power of a point mass, or an ``l`` without
    variance.

    >>> from sympy.abc import x, y
    >>> conditioned([DiracDelta(x), y**2], (x, y), ImmutableDenseMatrix([[1, 1], [1, 3]]))
    [(sqrt(2)/(2*sqrt(pi)), y**2, (y,), Matrix([[2]]))]
    """
    slots = tuple(Dummy(f"x{i}", real=True) for i in range(len(variables)))
    body = Mul(*factors).xreplace(dict(zip(variables, slots, strict=True)))
    back = dict(zip(slots, variables, strict=True))
    for x in Mul.make_args(body):
        if isinstance(x, Pow) and x.base.has(DiracDelta):
            raise Ambiguous(f"the power {x.xreplace(back)} of an expression with a point mass has no meaning")
    mass = next((x for x in Mul.make_args(body) if isinstance(x, DiracDelta)), None)
    if mass is None or not mass.args[0].is_polynomial(*slots):
        return None
    line = Poly(mass.args[0], *slots)
    if line.total_degree() != 1:
        return None
    a, m = ImmutableDenseMatrix([line.coeff_monomial(x) for x in slots]), line.coeff_monomial(1)
    across = (C * a).applyfunc(cancel)
    v = cancel((a.T * across)[0])
    if v == 0:
        raise Ambiguous(
            f"{mass.xreplace(back)} is not averaged, because the variance of its argument is zero"
        )
    others, order = body / mass, int(mass.args[1]) if len(mass.args) > 1 else 0
    if order:
        parts = _by_parts(others, DiracDelta(mass.args[0], order - 1), slots, a, across / v)
        return [(c / v if i == 0 else c, e.xreplace(back), variables, C) for i, (c, e) in enumerate(parts)]
    lead = next(i for i, p in enumerate(a) if p != 0)
    solved = -(m + sum(p * x for p, x in zip(a, slots, strict=True) if x != slots[lead])) / a[lead]
    kept = [i for i in range(len(slots)) if i != lead]
    reduced = (C - across * across.T / v).applyfunc(cancel).extract(kept, kept)
    moved = {slots[i]: slots[i] - across[i] * m / v for i in kept}
    moved |= {slots[i]: -across[i] * m / v for k, i in enumerate(kept) if reduced[k, k] == 0}
    value = _on_hyperplane(others, {slots[lead]: solved}, moved, mass, back)
    density = exp(-(m**2) / (2 * v)) / sqrt(2 * pi * v)
    return [(density, value.xreplace(back), tuple(variables[i] for i in kept), reduced)]


def _by_parts(
    others: Expr, mass: Expr, slots: tuple[Expr, ...], a: MatrixBase, share: MatrixBase
) -> list[tuple[Expr, Expr]]:
    """Integrate by parts: ``<delta' F> = <l delta F> / v - sum_j <l x_j> <delta dF/dx_j> / v``.

    ``l = a.x`` has the variance v, and the argument of the delta is l plus a constant. ``others`` is F,
    ``mass`` the delta with one derivative less, ``slots`` the variables x, and ``share`` the vector ``<l x_j>
    / v``. Return pairs (coefficient, integrand), one for each term on the right-hand side. The first pair is
    ``(1, l delta F)``, which the caller divides by ``v``.
    """
    parts = [(S.One, Add(*[p * x for p, x in zip(a, slots, strict=True)]) * mass * others)]
    parts += [(-c, mass * others.diff(x)) for x, c in zip(slots, share, strict=True) if c != 0]
    return parts


def _on_hyperplane(
    others: Expr, solved: dict[Expr, Expr], moved: dict[Expr, Expr], mass: Expr, back: dict[Expr, Expr]
) -> Expr:
    """Return the factors ``others`` of an average on the hyperplane where a point mass is.

    The result is zero if the product of the factors without jumps vanishes there. ``solved`` gives one
    variable on the hyperplane in terms of the others, and ``moved`` shifts the others by their means there.
    ``mass`` is the point mass, and ``back`` maps variables to their names in messages. Raises
    :class:`Ambiguous` for a jump or another point mass at the same place.
    """

    def there(e: Expr) -> Expr:
        """Return an expression with the values that the variables have where the point mass is."""
        return e.subs(solved).subs(moved, simultaneous=True)

    factors = Mul.make_args(others)
    smooth = there(Mul(*[x for x in factors if not x.has(sign, DiracDelta)]))
    if smooth == 0 or smooth.expand() == 0:
        return S.Zero
    for x in factors:
        for jump in x.atoms(sign, DiracDelta):
            if cancel(there(jump.args[0])) == 0:
                product = (jump * mass).xreplace(back)
                raise Ambiguous(
                    f"the average of {product} is not defined, because its two factors jump or are infinite "
                    "at the same place"
                )
    return smooth * there(Mul(*[x for x in factors if x.has(sign, DiracDelta)]))
