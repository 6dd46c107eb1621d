"""How a mode is learnt while the kernel grows as a power, and the sums over modes that follow from it.

While ``b = B X^q``, where ``X`` is the integral of the kernel ``b^2``, the share of its target that a mode
has learnt is a function of ``x = lamda X`` alone, ``F_q(x)``.  Sums over modes of squares of such functions
are powers of X, by Mellin's transform.  The transforms are known in closed form:  ``x F' = q F + x (1 - F)``
gives ``M(s+1)`` from ``M(s)``, and of the solutions that one is taken which has the poles of the integral.
"""

from __future__ import annotations

from sympy import (
    Expr,
    Function,
    Integral,
    Rational,
    S,
    Symbol,
    exp,
    gamma,
    hyper,
    pi,
    simplify,
    sin,
    sympify,
    zeta,
)

from derive.errors import NotApplicable

x = Symbol("x", positive=True)
"""An eigenvalue times the integral of the kernel."""


def profile(q: Expr) -> Expr:
    """``F_q(x)``: the share learnt of a mode, for a kernel that grows as ``X^(2q)``, ``q < 1``.

    >>> from sympy import series
    >>> series(profile(Rational(1, 4)), x, 0, 3)
    4*x/3 - 16*x**2/21 + O(x**3)
    """
    q = sympify(q, strict=True)
    return x / (1 - q) * hyper((1,), (2 - q,), -x)


def memory(q: Expr) -> Expr:
    """The same as the memory that it is, ``x int_0^1 u^-q exp(-x (1 - u)) du``, from the equation of a mode.

    With ``b = X^q`` the equation ``dphi/dX = lamda (w/b - phi)`` is solved by variation of constants; checked
    here by putting the solution in.
    """
    X, Y, u, lamda = (Symbol(n, positive=True) for n in ("X", "Y", "u", "lamda"))
    b = Function("b")
    solved = Integral(lamda * exp(-lamda * (X - Y)) / b(Y), (Y, 0, X))
    rest = solved.diff(X) - lamda * (1 / b(X) - solved)
    left = simplify(rest.expand().doit(integrals=False))
    if left != 0:
        raise NotApplicable(f"the equation of a mode leaves {left}")
    inside = X**q * solved.function.subs(b(Y), Y**q).subs(Y, u * X) * X
    inside = simplify(inside.subs(lamda, x / X))
    return Integral(inside, (u, 0, 1))


def transform(q: Expr, at: Expr) -> Expr:
    """Mellin's ``int x^(s-1) F_q dx`` at ``s = at``, continued beyond ``-1 < s < 0``.

    >>> transform(0, Rational(-1, 2)) == -gamma(Rational(-1, 2))
    True
    """
    q, at = sympify(q, strict=True), sympify(at, strict=True)
    return gamma(1 + at) * gamma(-at) * gamma(1 - q) / gamma(1 - q - at)


def product_transform(q: Expr, r: Expr, at: Expr) -> Expr:
    """Mellin's ``int x^(s-1) F_q F_r dx`` at ``s = at``, continued beyond ``-2 < s < 0``.

    The product obeys ``N(s+1) = (M_q(s+1) + M_r(s+1))/2 + (q + r + s)/2 N(s)``.  A solution is a series in
    powers of 1/2; to it comes one of the equation without M, so that there is no pole at ``s = -1``, where
    the integral has none.

    >>> found = product_transform(Rational(1, 8), Rational(1, 8), Rational(-1, 2))
    >>> F = profile(Rational(1, 8))
    >>> print(found.n(8), Integral(x ** Rational(-3, 2) * F**2, (x, 0, 8)).n(4))
    2.3159970 1.601
    """
    q, r, at = (sympify(x, strict=True) for x in (q, r, at))
    if q == r == 0:  # exponentials
        return gamma(at) * (2**-at - 2)
    half = Rational(1, 2)

    def series(p: Expr) -> Expr:
        upper, lower = 1 - q - r - at, 1 - p - at
        value = S(2) if simplify(upper - lower) == 0 else hyper((1, upper), (lower,), half)
        return transform(p, at) * value

    free = 2 ** (-q - r - at) * gamma(1 - q) * gamma(1 - r) / gamma(1 - q - r - at) * pi / sin(pi * at)
    own = series(q) if q == r else (series(q) + series(r)) / 2
    return own + free


def missing(q: Expr, r: Expr, at: Expr) -> Expr:
    """The same of ``(1 - F_q)(1 - F_r)``, for ``0 < s < 2``; powers of x have no transform."""
    return product_transform(q, r, at) - transform(q, at) - transform(r, at)


def mode_sum(power: Expr, capacity: Expr, moments: Expr) -> tuple[Expr, Expr, Expr]:
    """``sum_k k^-power G(X k^-capacity)`` for large X: ``c X^e + zeta(power) G(oo)`` as ``(c, e, zeta)``.

    ``moments`` is the Mellin transform of G as a function of the symbol ``s`` (:data:`argument`).
    """
    e = simplify((1 - power) / capacity)
    return moments.subs(argument, -e) / capacity, e, zeta(power)


argument = Symbol("s_", real=True)
"""Where a Mellin transform is taken."""

__all__ = ["memory", "missing", "mode_sum", "product_transform", "profile", "transform", "x"]
