"""Closed solutions of differential equations: polynomial conserved quantities, and separable equations.

Conserved quantities are found by linear algebra. For ``dx/dt = rate(x)`` with one square root of a quadratic,
Euler's substitution makes the integrand of ``t = int dx/rate`` rational; with two simple poles the integral
is one inverse hyperbolic tangent, which is inverted. :mod:`derive.reduce.whitened` uses both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

from sympy import (
    Add,
    Derivative,
    Dummy,
    Eq,
    Expr,
    Matrix,
    Mul,
    Poly,
    Pow,
    Rational,
    S,
    Symbol,
    atanh,
    cancel,
    collect,
    cosh,
    factor,
    fraction,
    gcd_terms,
    roots,
    simplify,
    sinh,
    sqrt,
    together,
)

from derive.errors import NotApplicable


@dataclass(frozen=True)
class Separable:
    """Solution of ``dx/dt = rate(x)`` with a given initial value.

    ``elapsed`` is the time until x is reached, as a function of x, and ``solution`` is x at time t. The time
    is also ``weight * log(growth)``, because ``atanh z = log((1 + z)/(1 - z))/2``; ``growth`` is a function
    of x.
    """

    rate: Expr
    elapsed: Expr
    solution: Expr
    weight: Expr
    growth: Expr


def separable(rate: Expr, x: Symbol, start: Expr, time: Symbol) -> Separable:
    """Solve ``dx/dt = rate(x)`` with ``x = start`` at time 0; ``time`` is the symbol of time in the solution.

    Raises :class:`NotApplicable` unless the rate is a rational function of x and of one square root of a
    quadratic in x, and ``dt/dw`` as a function of Euler's variable w has exactly two simple poles and no
    zeros. The expression of the rate must contain the root as the power 1/2: one that contains it only as
    ``1/sqrt(...)`` is not accepted. Also raises if SymPy does not confirm the integral.

    >>> from sympy.abc import t
    >>> x = Symbol("x", positive=True)
    >>> separable(sqrt(1 + x**2) * (2 - x), x, Rational(0), t).solution.subs(t, 0)
    0
    """
    radical = _radical(rate, x)
    slot = Dummy("R")
    value = rate.subs(radical, slot)
    if not value.is_rational_function(x, slot):
        raise NotApplicable(
            f"dx/dt = {rate} is not solved: the rate must be a rational function of {x} and of one "
            "square root"
        )
    a, b, c = Poly(radical.base, x).all_coeffs()
    w = Symbol("w", positive=True)
    root = sqrt(a)
    # Euler's substitution: sqrt(a x^2 + b x + c) = w - sqrt(a) x, solved for x
    at = (w**2 - c) / (b + 2 * root * w)
    inverse = root * x + radical
    integrand = factor(cancel(together(at.diff(w) / value.subs({slot: w - root * at, x: at}))))
    below, above = _two_poles(integrand, w)
    middle, half = simplify((below + above) / 2), simplify((above - below) / 2)
    numerator, denominator = fraction(together(integrand))
    # The integral of `integrand` over w is weight * atanh(v), where v is w, shifted and scaled so that the
    # poles of the integrand are at v = -1 and v = 1. The residue of the integrand at v = 1 is -weight/2, so
    # that the weight is minus twice the residue.
    weight = simplify(-2 * (numerator / denominator.diff(w)).subs(w, above))
    begin = inverse.subs(x, start)

    def reduced(v: Expr) -> Expr:
        """Return Euler's variable v, shifted and scaled so that the poles of the integrand are at -1 and 1.

        The time is then a multiple of the inverse hyperbolic tangent of the result.
        """
        return (v - middle) / half

    def ratio(v: Expr) -> Expr:
        """Return ``(v - below)/(above - v)`` for Euler's variable v and the two poles of the integrand.

        Along the solution it grows exponentially in time.
        """
        return (v - below) / (above - v)

    elapsed = weight * (atanh(reduced(inverse)) - atanh(reduced(begin)))
    if _over_roots(elapsed.diff(x) * rate) != 1:
        raise NotApplicable(
            f"dx/dt = {rate} is not solved: SymPy does not show that the derivative of the integral found "
            "for 1/rate is 1/rate"
        )
    E = Dummy("E", positive=True)  # exp(2 time / weight), the growth of (w - below)/(above - w)
    grown = E * ratio(begin)
    arrived = (below + above * grown) / (1 + grown)
    solution = _hyperbolic(_over_roots(at.subs(w, arrived)), E, 2 * time / weight)
    return Separable(rate, elapsed, solution, weight / 2, ratio(inverse) / ratio(begin))


def _radical(rate: Expr, x: Symbol) -> Expr:
    """Return the square root of a quadratic in x in ``rate``; raise NotApplicable unless there is one."""
    radicals = [p for p in rate.atoms(Pow) if p.exp == Rational(1, 2) and p.has(x)]
    if len(radicals) != 1 or not radicals[0].base.is_polynomial(x) or Poly(radicals[0].base, x).degree() != 2:
        raise NotApplicable(
            f"dx/dt = {rate} is not solved: the rate must contain the power 1/2 of exactly one "
            f"expression with {x}, a quadratic in {x}"
        )
    return radicals[0]


def _two_poles(integrand: Expr, w: Symbol) -> tuple[Expr, Expr]:
    """Return the two simple poles of ``integrand`` as a function of w, the lower one first if it is known.

    Raises NotApplicable for any other poles, and for a numerator that depends on w.
    """
    numerator, denominator = fraction(together(integrand))
    poles = roots(Poly(denominator, w))
    if len(poles) != 2 or set(poles.values()) != {1} or Poly(numerator, w).degree() > 0:
        raise NotApplicable(
            "x(t) is not found from t(x): with Euler's variable w = sqrt(a)*x + R, where R = sqrt(a*x**2 + "
            f"...) is the root in the rate, dt/dw = {integrand} must have exactly two simple poles in w and "
            "a numerator without w"
        )
    below, above = poles
    return (above, below) if (below - above).is_positive else (below, above)


def _over_roots(e: Expr) -> Expr:
    """Simplify a rational function of square roots, with the base of a root in place of its square."""
    radicals = sorted((p for p in e.atoms(Pow) if p.exp in (Rational(1, 2), Rational(-1, 2))), key=str)
    bases = {p.base for p in radicals}
    letters = {sqrt(base): Dummy(f"S{k}", positive=True) for k, base in enumerate(sorted(bases, key=str))}
    plain = together(e.xreplace(letters | {1 / k: 1 / v for k, v in letters.items()}))
    top, bottom = fraction(cancel(plain))
    for k, v in letters.items():
        top, bottom = _lowered(top, v, k**2), _lowered(bottom, v, k**2)
    done = factor(cancel(top / bottom))
    return done.xreplace({v: k for k, v in letters.items()})


def _hyperbolic(e: Expr, E: Symbol, angle: Expr) -> Expr:
    """Return a rational function of ``E = exp(angle)``, written with cosh and sinh of multiples of angle.

    Numerator and denominator are first divided by the same power of E.
    """
    top, bottom = (Poly(p, E) for p in fraction(e))
    # `half` is the mean of the highest and the lowest power of E in the denominator, rounded down.
    half = (bottom.degree() + min(k[0] for k in bottom.monoms())) // 2

    def written(p: Poly) -> Expr:
        """Return the polynomial ``p`` in ``E = exp(angle)``, over ``E**half``, in terms of cosh and sinh."""
        waves = ((c, (k - half) * angle) for (k,), c in p.terms())
        total = Add(*[c * (cosh(x) + sinh(x)) for c, x in waves]).expand()
        return collect(total, total.atoms(cosh, sinh), factor)

    above, below = written(top), written(bottom)
    common = gcd_terms(below).as_coeff_Mul()[0]
    return (above / common).expand() / (below / common).expand()


def _lowered(e: Expr, letter: Symbol, square: Expr) -> Expr:
    """Return a polynomial in ``letter`` reduced to degree one, where ``letter**2`` equals ``square``."""
    return Poly(e, letter).rem(Poly(letter**2 - square, letter)).as_expr()


def conserved(odes: Sequence[Eq], degree: int = 2) -> tuple[Expr, ...]:
    """Return polynomials of the unknowns, up to a given degree, that are constant along solutions.

    ``odes`` are equations ``dx/dt = rate``. Polynomials in the returned ones are left out: squares and
    products of conserved quantities, and their linear combinations. The result is empty if there are none, or
    if ``degree``, an integer, is below 1. The equations must be autonomous and polynomial in the unknowns;
    parameters may enter rationally. Raises ValueError otherwise.

    >>> from sympy import symbols, Function
    >>> t = symbols("t")
    >>> q, p = Function("q")(t), Function("p")(t)
    >>> conserved([Eq(q.diff(t), p), Eq(p.diff(t), -q)])
    (p(t)**2 + q(t)**2,)
    """
    for e in odes:
        if not isinstance(e.lhs, Derivative):
            raise ValueError(
                f"{e.lhs} = {e.rhs} is not a differential equation: the left-hand side must be a "
                "derivative, such as Derivative(x(t), t)"
            )
    rates = {e.lhs.expr: e.rhs for e in odes}
    slots = {x: Symbol(f"_{k}") for k, x in enumerate(rates)}
    names = list(slots.values())
    flow = {slots[x]: rate.xreplace(slots) for x, rate in rates.items()}
    for x, rate in rates.items():
        late = {a for u in rates for a in u.free_symbols} & flow[slots[x]].free_symbols
        if late or not flow[slots[x]].is_polynomial(*names):
            raise ValueError(
                f"d{x}/dt = {rate}: the rate must be a polynomial in the unknowns and must not contain "
                "the time"
            )
    invariants: list[Expr] = []
    for d in range(1, degree + 1):
        for candidate in _invariants(flow, names, d):
            if _independent(candidate, _products(invariants, names, d), names):
                invariants.append(candidate)
    back = dict(zip(names, rates, strict=True))
    return tuple((x / Poly(x, *names).LC()).expand().xreplace(back) for x in invariants)


def _invariants(flow: dict[Symbol, Expr], names: list[Symbol], degree: int) -> list[Expr]:
    """Return a basis of the polynomials up to a given degree that are constant along the flow.

    They are the kernel of ``I -> dI/dt`` on polynomials without constant term. ``flow`` maps each unknown of
    ``names`` to its time derivative.
    """
    choices = (c for d in range(1, degree + 1) for c in combinations_with_replacement(names, d))
    monomials = [Mul(*c) for c in choices]
    images = [Poly(Add(*[m.diff(x) * flow[x] for x in names]), *names).as_dict() for m in monomials]
    powers = sorted({k for image in images for k in image})
    if not powers:
        return monomials
    table = Matrix([[image.get(k, S.Zero) for image in images] for k in powers])
    kernel = table.nullspace(simplify=cancel, iszerofunc=lambda x: cancel(x) == 0)
    return [cancel(Add(*[c * m for c, m in zip(v, monomials, strict=True)])).expand() for v in kernel]


def _products(found: list[Expr], names: list[Symbol], degree: int) -> list[Expr]:
    """Return the products, with repetition, of the invariants ``found`` up to the given total degree."""
    size = {x: Poly(x, *names).total_degree() for x in found}
    return [
        Mul(*c).expand()
        for n in range(1, degree + 1)
        for c in combinations_with_replacement(found, n)
        if sum(size[x] for x in c) <= degree
    ]


def _independent(candidate: Expr, known: list[Expr], names: list[Symbol]) -> bool:
    """Return whether the polynomial ``candidate`` is not a linear combination of those in ``known``."""
    rows = [Poly(x, *names).as_dict() for x in (*known, candidate)]
    powers = sorted({k for row in rows for k in row})
    table = Matrix([[row.get(k, S.Zero) for row in rows] for k in powers])
    _, pivots = table.rref(simplify=cancel, iszerofunc=lambda x: cancel(x) == 0)
    return len(known) in pivots
