"""Sums over the modes of power-law data, ``sum_k k^-a F(k^-b x)`` for large x, by Mellin transform.

The transform of the sum S(x) is that of F times a zeta function,

    int_0^oo x^(z-1) S(x) dx = F*(z) zeta(a - b z),

in the strip where both converge. Shifting the line of the inverse transform to the right collects poles: that
of zeta at ``z = (a - 1)/b``, which is the integral over k in place of the sum; and those of F*, which are the
powers of the tail of F. F is a sum of ``c y^m``, ``c y^m exp(-q y)`` and ``c y^m (1 + q y)^-p``, or given by
its transform and its tail. Integrals over an earlier time of products of two such sums are powers as well:
late times give Euler's integral, early ones the moments of one sum, which are values of its transform.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sympy import (
    Add,
    And,
    Dummy,
    EulerGamma,
    Expr,
    Gt,
    Max,
    Mul,
    Ne,
    O,
    Pow,
    S,
    Symbol,
    binomial,
    exp,
    expand,
    gamma,
    gammasimp,
    hyper,
    limit,
    log,
    nan,
    oo,
    powsimp,
    simplify,
    solve,
    sympify,
    true,
    zeta,
    zoo,
)
from sympy.logic.boolalg import Boolean

from derive.calculus.sums import gathered
from derive.calculus.symbols import converted, exact
from derive.errors import NotApplicable, require_integer
from derive.show.latex import latex
from derive.show.summary import Summarised


def power_in(e: Expr, x: Expr) -> Expr:
    """Return the exponent of x in a product of powers, ``d log e / d log x``."""
    return simplify(x * e.diff(x) / e)


@dataclass(frozen=True)
class Power:
    """Term ``coefficient * x^power * log(x)^logs`` of an expansion in a large variable x."""

    coefficient: Expr
    power: Expr
    logs: int = 0

    @classmethod
    def of(cls, e: Expr, x: Expr) -> Power:
        """Return ``e``, a product of powers, in the form ``coefficient x^power``.

        Raises NotApplicable for other expressions.

        >>> from sympy.abc import a, x
        >>> Power.of(2 * x**a / x, x)
        Power(coefficient=2, power=a - 1, logs=0)
        """
        power = power_in(e, x)
        front = simplify(e * x**-power)
        if power.has(x) or front.has(x):
            raise NotApplicable(f"the expression {e} is not a constant times a power of {x}")
        return cls(front, power)

    def at(self, x: Expr) -> Expr:
        """Return ``coefficient x^power log(x)^logs``, the term as an expression in x."""
        return self.coefficient * x**self.power * log(x) ** self.logs

    def subs(self, values: Mapping[Any, Any]) -> Power:
        """Return the term ``coefficient x^power log(x)^logs`` with values substituted for its symbols."""
        values = {k: converted(v) for k, v in values.items()}
        return Power(sympify(self.coefficient).subs(values), sympify(self.power).subs(values), self.logs)

    def meets(self, other: Power) -> Expr:
        """Return the x at which two terms ``coefficient x^power`` are equal; their powers must differ.

        Logarithms are not considered.
        """
        return (other.coefficient / self.coefficient) ** (1 / simplify(self.power - other.power))


@dataclass(frozen=True, repr=False)
class Powers(Summarised):
    """Function of a large ``variable`` as a sum of powers, up to ``O(variable^error)``.

    ``terms`` are the powers with their coefficients.

    ``error`` is minus infinity if the remainder falls faster than any power. ``conditions`` are relations
    between symbols under which the expansion holds.
    """

    variable: Symbol
    terms: tuple[Power, ...]
    error: Expr = -oo
    conditions: Boolean = true

    @property
    def expr(self) -> Expr:
        """Sum of the powers of the variable with their coefficients, without the remainder."""
        return Add(*[p.at(self.variable) for p in self.terms])

    @property
    def bound(self) -> Expr:
        """Remainder ``O(variable^error)``, or 0 if it falls faster than any power."""
        return S.Zero if self.error == -oo else O(self.variable**self.error, (self.variable, oo))

    def _repr_latex_(self) -> str:
        parts = [*(p.at(self.variable) for p in self.terms), self.bound]
        return "$" + " + ".join(latex(x) for x in parts if x != 0) + "$"

    def subs(self, values: Mapping[Any, Any]) -> Powers:
        """Return the sum of powers of a large variable with values substituted for symbols.

        Terms that vanish, or whose power is known not to exceed that of the remainder, are left out.
        """
        values = {k: converted(v) for k, v in values.items()}
        error = sympify(self.error).subs(values)
        substituted = (x.subs(values) for x in self.terms)
        terms = tuple(p for p in substituted if p.coefficient != 0 and not (p.power - error).is_nonpositive)
        return Powers(self.variable, terms, error, self.conditions.subs(values))

    def scaled(self, factor: Any, power: Any = 0) -> Powers:
        """Return the sum of powers, and its remainder, times ``factor * variable^power``."""
        terms = (replace(p, coefficient=factor * p.coefficient, power=p.power + power) for p in self.terms)
        return replace(self, terms=tuple(terms), error=self.error + power)

    def sorted(self, given: Mapping[Any, Any] | None = None) -> Powers:
        """Return the sum of powers with the term first that is largest at a large variable.

        ``given`` expresses symbols by positive ones, as ``{beta: 1/(1 + p)}`` for ``beta < 1``, if the order
        depends on them. Raises :class:`NotApplicable` if the order is undetermined.
        """
        remaining, ordered = self, []
        while remaining.terms:
            ordered.append(top := remaining.largest(given))
            remaining = replace(remaining, terms=tuple(p for p in remaining.terms if p is not top))
        return replace(self, terms=tuple(ordered))

    def largest(self, given: Mapping[Any, Any] | None = None) -> Power:
        """Return the largest term at large ``variable``.

        ``given`` expresses symbols by positive ones, as in :meth:`sorted`. Raises NotApplicable if
        symbols do not determine which term is the largest.
        """
        top = [p for p in self.terms if all(_above(p, q, given or {}) for q in self.terms if q is not p)]
        if len(top) != 1:
            powers = ", ".join(str(p.power) for p in self.terms)
            raise NotApplicable(
                f"none of the powers {powers} of {self.variable} is known to be larger than all others: give "
                "numbers, or symbols with assumptions that decide"
            )
        return top[0]

    def turns(self, symbol: Symbol) -> Expr:
        """Return the value of ``symbol`` at which the powers of the first two terms are equal.

        Below this value of ``symbol`` one of the two terms is the larger one, and above it the other term.
        """
        (value,) = solve(self.terms[0].power - self.terms[1].power, symbol)
        return value

    def local_slope(self) -> Expr:
        """Return the logarithmic derivative ``d log f / d log variable`` of the sum of the kept terms.

        It tends to the power of the largest term for a large ``variable``; the other terms correct it.
        """
        return self.variable * self.expr.diff(self.variable) / self.expr


def total(parts: Iterable[Powers]) -> Powers:
    """Return the sum of expansions in one variable as one sum of powers.

    The remainder of the sum is the largest of their remainders; powers known not to exceed it are left out.
    """
    parts = list(parts)
    error = Max(*[x.error for x in parts])
    terms_above = (p for x in parts for p in x.terms if not simplify(p.power - error).is_nonpositive)
    coefficients = gathered(((p.power, p.logs), p.coefficient) for p in terms_above)
    terms = tuple(Power(c, power, logs) for (power, logs), c in coefficients.items())
    return Powers(parts[0].variable, terms, error, And(*[x.conditions for x in parts]))


def mode_sum(F: Expr, y: Symbol, a: Any, b: Any, x: Symbol, *, terms: int = 3) -> Powers:
    """Return ``sum_{k=1}^oo k^-a F(k^-b x)`` for large x, as a sum of powers of x.

    ``F`` is an expression in y, its argument. ``terms`` is the number of powers of each algebraic tail of F
    that are kept, at least 1; exponentials have none, and the error then falls faster than any power. The
    conditions state where the sum converges, and which powers must differ; if powers coincide for the given
    numbers, a logarithm occurs. Raises :class:`NotApplicable` for an F of another form, and for a sum that
    diverges.

    >>> from sympy import symbols
    >>> x, y, a, beta = symbols("x y a beta", positive=True)
    >>> found = mode_sum(exp(-2 * y), y, a * beta + 1, a, x)
    >>> print(found.expr, found.error)
    gamma(beta)/(2**beta*a*x**beta) -oo
    >>> print(mode_sum(1 / (1 + y), y, 2, 2, x, terms=2).expr)
    -1/(2*x) + pi/(2*sqrt(x))
    """
    terms = require_integer("terms", terms, 1)
    a, b = exact("a", a), exact("b", b)
    F = converted(F)
    parts = _parts(F, y)
    converges = And(Gt(b, 0), Gt(simplify(a + b * _rise(F, y, parts[0].m)), 1))
    if converges == S.false:
        raise NotApplicable(
            f"the sum over k of k^-a F(k^-b x) must converge at large k, and b must be positive; a = {a}, b "
            f"= {b}"
        )
    z = Dummy("z")
    transform = Add(*[p.mellin(z) for p in parts])
    tail = [x for p in parts for x in p.tail(terms)]
    neglected = [power for p in parts for power, _ in p.tail(terms + 1)[terms:] if p.p is not None]
    expansion = mode_sum_of(lambda at: _value(transform, z, at), tail, a, b, x)
    return replace(expansion, error=Max(*neglected), conditions=And(converges, expansion.conditions))


def mode_sum_of(
    transform: Callable[[Expr], Expr], tail: Iterable[tuple[Expr, Expr]], a: Expr, b: Expr, x: Symbol
) -> Powers:
    """Return ``sum_k k^-a F(k^-b x)`` for large x, for an F with a known Mellin transform.

    ``transform`` is the Mellin transform of F as a function of its argument. ``tail`` lists the powers of
    F at large argument: (power, coefficient). The poles are those of zeta, at ``(a - 1)/b``, and of the
    transform, one for each power of the tail. ``error`` of the result is minus infinity, also if
    powers are missing in ``tail``.
    """
    zeta_pole = simplify((a - 1) / b)
    tails = gathered(tail)
    conditions: list[Boolean] = []
    terms: list[Power] = []
    double_pole = next((m for m in tails if simplify(m + zeta_pole) == 0), None)
    if double_pole is None:
        value = transform(zeta_pole)
        terms.append(Power((powsimp(gammasimp(value)) if value.is_Add else value) / b, -zeta_pole))
    for power, c in tails.items():
        if power == double_pole:
            z = Dummy("z")
            finite_part = limit(transform(zeta_pole + z) + c / z, z, 0)
            terms += [Power(c / b, power, 1), Power(c * EulerGamma + finite_part / b, power)]
            continue
        if (power + zeta_pole).free_symbols:
            conditions.append(Ne(power, -zeta_pole))
        terms.append(Power(c * zeta(simplify(a + b * power)), power))
    return Powers(x, tuple(p for p in terms if p.coefficient != 0), -oo, And(*conditions))


def moment(F: Expr, y: Symbol, a: Any, b: Any, n: int = 0) -> Expr:
    """Return ``int_0^oo x^n S(x) dx`` of ``S(x) = sum_k k^-a F(k^-b x)``, continued where it diverges.

    ``F`` is an expression in y, its argument, and ``n`` is at least 0. The continued value is the finite
    part: the limit of the integral after subtraction of the powers of its upper end.

    >>> from sympy import symbols
    >>> y, a = symbols("y a", positive=True)
    >>> moment(exp(-y) - exp(-2 * y), y, 3 * a, a)
    zeta(2*a)/2
    """
    n = require_integer("n", n, 0)
    a, b, z = exact("a", a), exact("b", b), Dummy("z")
    transform = Add(*[p.mellin(z) for p in _parts(converted(F), y)])
    return _value(transform, z, S(n + 1)) * zeta(simplify(a - b * (n + 1)))


def convolution(  # noqa: PLR0913 - two sums, and the symbols and numbers of one integral
    outer: tuple[Expr, Any],
    inner: tuple[Expr, Any],
    y: Symbol,
    b: Any,
    x: Symbol,
    *,
    less: Any,
    weight: int = 0,
    early: int = 1,
) -> Powers:
    """Return ``int_0^x tau^weight D(tau) W(2 x - less tau) dtau`` for large x.

    W and D are sums ``sum_k k^-a F(k^-b x)`` over modes, with the same b: ``outer`` is the pair (F, a) of W
    and ``inner`` that of D, and F is an expression in ``y``. W must be a single power ``c x^w`` for large
    argument. Late tau: each power of D with W gives an Euler integral. Early tau: moments of D, ``early`` of
    them (one if ``less`` is 0), with the derivatives of W at 2 x. The error is the larger of the
    first neglected moment and the remainder of D. Raises :class:`NotApplicable` for another W, if powers
    coincide, and for ``less`` of 2 or more; ``weight`` and ``early`` are at least 0.

    >>> from sympy import symbols
    >>> x, y = symbols("x y", positive=True)
    >>> found = convolution((exp(-y), 2), (exp(-y), S(7) / 2), y, 1, x, less=1)
    >>> print([p.power for p in found.terms], found.error)
    [-5/2, -1] -2
    """
    weight, early = require_integer("weight", weight, 0), require_integer("early", early, 0)
    less = _below_two(less)
    outer_sum = mode_sum(outer[0], y, outer[1], b, x)
    if len(outer_sum.terms) != 1 or outer_sum.error != -oo:
        raise NotApplicable(
            f"the outer sum over modes must be a single power of {x} without further powers; it is "
            f"{outer_sum.expr}, up to a remainder of the power {outer_sum.error}"
        )
    (front,), w = outer_sum.terms, outer_sum.terms[0].power
    inner_sum = mode_sum(inner[0], y, inner[1], b, x)
    terms = [
        Power(
            front.coefficient * d.coefficient * euler(d.power + weight, w, less),
            simplify(d.power + weight + 1 + w),
        )
        for d in inner_sum.terms
    ]
    for n in range(early if less != 0 else 1):
        coefficient = front.coefficient * binomial(w, n) * (-less) ** n * 2 ** (w - n)
        terms.append(Power(coefficient * moment(inner[0], y, inner[1], b, weight + n), w - n))
    if any(d.logs for d in inner_sum.terms) or any(p.coefficient.has(zoo, nan, oo, -oo) for p in terms):
        raise NotApplicable(f"two powers of {x} are equal, so that a logarithm occurs, which is not derived")
    error = Max(w - early if less != 0 else -oo, inner_sum.error + weight + 1 + w)
    return Powers(x, tuple(terms), error, And(outer_sum.conditions, inner_sum.conditions))


def full_convolution(
    first: tuple[Expr, Any], second: tuple[Expr, Any], y: Symbol, b: Any, x: Symbol, *, weight: int = 0
) -> Powers:
    """Return ``int_0^x tau^weight D(tau) W(x - tau) dtau`` of two sums over modes, for large x.

    D and W are sums ``sum_k k^-a F(k^-b x)`` with the same b: ``first`` is the pair (F, a) of D and
    ``second`` that of W. Both must be a single power for large argument. If the arguments of D and W are
    large, the two powers give an Euler integral; if that of one sum is small, its moment multiplies the other
    sum at x.
    The next moments are the error. Raises :class:`NotApplicable` for other sums, and if powers coincide.

    >>> from sympy import symbols
    >>> x, y = symbols("x y", positive=True)
    >>> found = full_convolution((exp(-y), S(10) / 3), (exp(-y), S(3) / 2), y, 1, x, weight=1)
    >>> print([p.power for p in found.terms], found.error)
    [-5/6, -1/2, -4/3] -3/2
    """
    weight = require_integer("weight", weight, 0)
    sums = [mode_sum(F, y, a, b, x) for F, a in (first, second)]
    for expansion in sums:
        if len(expansion.terms) != 1 or expansion.error != -oo:
            raise NotApplicable(
                f"the sum over modes must be a single power of {x} without further powers; it is "
                f"{expansion.expr}, up to a remainder of the power {expansion.error}"
            )
    (d,), (w,) = (expansion.terms for expansion in sums)
    late = d.coefficient * w.coefficient * unit(d.power + weight, w.power)
    early = moment(first[0], y, first[1], b, weight) * w.coefficient
    end = moment(second[0], y, second[1], b) * d.coefficient
    terms = [
        Power(late, simplify(d.power + w.power + weight + 1)),
        Power(early, w.power),
        Power(end, d.power + weight),
    ]
    if any(p.coefficient.has(zoo, nan, oo, -oo) for p in terms):
        raise NotApplicable(f"two powers of {x} are equal, so that a logarithm occurs, which is not derived")
    error = Max(w.power - 1, d.power + weight - 1)
    return total([Powers(x, tuple(terms), error, And(*[expansion.conditions for expansion in sums]))])


def euler(q: Expr, r: Expr, less: Any) -> Expr:
    """Return ``int_0^1 x^q (2 - less x)^r dx`` for ``less`` below 2.

    If the integral diverges at x = 0, the result is the finite part. Raises NotApplicable for a number
    ``less`` of 2 or more.

    >>> print(euler(S(1), S(2), 1), euler(S(1), S(2), 0))
    2*hyper((-2, 2), (3,), 1/2) 2
    """
    q, r, less = exact("q", q), exact("r", r), _below_two(less)
    if less == 0 or r == 0:
        return 2**r / (q + 1)
    # With q = r the integrand x^q (2 - x)^r is symmetric about x = 1, so that its integral from 0 to 1 is
    # half of its integral from 0 to 2.
    if less == 1 and simplify(q - r) == 0:
        return 2 ** (2 * q) * gamma(q + 1) ** 2 / gamma(2 * q + 2)
    return 2**r / (q + 1) * hyper([-r, q + 1], [q + 2], less / 2)


def _below_two(less: Any) -> Expr:
    """Return ``less`` as an expression; raise NotApplicable for numbers of 2 or more."""
    value = exact("less", less)
    if value.is_number and not value < 2:
        raise NotApplicable(
            f"less = {less}: must be below 2, because otherwise 2 x - less tau is not positive at all tau "
            "from 0 to x"
        )
    return value


def unit(q: Expr, r: Expr) -> Expr:
    """Return Euler's integral ``int_0^1 x^q (1 - x)^r dx``.

    Where it diverges, it is continued in q and r, which gives the finite part at both ends.
    """
    if q == 0 or r == 0:
        return 1 / (q + r + 1)
    return gamma(q + 1) * gamma(r + 1) / gamma(q + r + 2)


def _value(transform: Expr, z: Symbol, at: Expr) -> Expr:
    """Return a Mellin transform at the point ``at``, as a limit if its terms have poles there that cancel."""
    value = transform.subs(z, at)
    return value if value.is_finite is not False and not value.has(S.NaN) else limit(transform, z, at)


@dataclass(frozen=True)
class _Part:
    """Term ``c y^m exp(-q y)`` of a function, or ``c y^m (1 + q y)^-p`` if ``p`` is given."""

    c: Expr
    m: Expr
    q: Expr = S.Zero
    p: Expr | None = None

    def mellin(self, z: Symbol) -> Expr:
        """Return the Mellin transform of the term at ``z``, continued beyond the strip where it converges.

        The transform of a pure power is zero.
        """
        at = z + self.m
        if self.q == 0:
            return S.Zero
        if self.p is None:
            return self.c * gamma(at) * self.q**-at
        return self.c * gamma(at) * gamma(self.p - at) / gamma(self.p) * self.q**-at

    def tail(self, terms: int) -> list[tuple[Expr, Expr]]:
        """Return the expansion of the term at large y, as pairs (power, coefficient).

        The first ``terms`` powers are included; an exponential has none, and a pure power is its own
        expansion.
        """
        if self.q == 0:
            return [(self.m, self.c)]
        if self.p is None:
            return []
        p = self.p
        return [(self.m - p - n, self.c * binomial(-p, n) * self.q ** (-p - n)) for n in range(terms)]


def _parts(F: Expr, y: Symbol) -> list[_Part]:
    """Return the terms of a function of y, each ``c y^m exp(-q y)`` or ``c y^m (1 + q y)^-p``.

    Raises NotApplicable for another form.
    """
    tails = {x for x in F.atoms(Pow) if x.base.is_Add and x.base.has(y) and x.exp.is_nonnegative is not True}
    names = {x: Dummy() for x in tails}
    originals = {d: x for x, d in names.items()}
    return [
        _part(x.xreplace(originals), y) for x in Add.make_args(expand(F.xreplace(names), power_base=False))
    ]


def _is_linear(e: Expr, y: Symbol) -> bool:
    """Return whether an expression is a polynomial of degree one in ``y``."""
    return bool(e.is_polynomial(y) and e.as_poly(y).degree() == 1)


def _part(term: Expr, y: Symbol) -> _Part:
    """Return the numbers c, m, q and p of one term ``c y^m exp(-q y)`` or ``c y^m (1 + q y)^-p``.

    Raises NotApplicable for a term of another form, and for one that grows exponentially, is singular at a
    positive y, or contains a symbol that leaves this open.
    """
    c, m, q, p = S.One, S.Zero, S.Zero, None
    decays = False
    for f in Mul.make_args(term):
        base, power = f.as_base_exp()
        if not f.has(y):
            c *= f
        elif base == y and not power.has(y):
            m += power
        elif p is None and isinstance(f, exp) and (rate := simplify(f.args[0] / y)) and not rate.has(y):
            q, decays = q - rate, True
        elif p is None and not decays and _is_linear(base, y) and not power.has(y):
            slope, constant = base.as_poly(y).all_coeffs()
            c, q, p = c * constant**power, slope / constant, -power
        else:
            raise NotApplicable(
                f"the term {term} must be a constant times {y}^m, {y}^m exp(-q {y}) or {y}^m (1 + q {y})^-p, "
                "with constants m, q and p"
            )
    if (q != 0 and q.is_positive is not True) and not q.is_negative:
        raise NotApplicable(
            f"it is not known whether the term {term} decays with {y}: give real numbers, or positive "
            "symbols such as Symbol('q', positive=True)"
        )
    if q.is_negative or (p is not None and not isinstance(c, Expr)):
        raise NotApplicable(
            f"the term {term} grows exponentially with {y} or is singular at a positive {y}, so that its sum "
            "over modes has no expansion in powers"
        )
    return _Part(c, m, q, p)


def _rise(F: Expr, y: Symbol, one: Expr) -> Expr:
    """Return the lowest power of y in the expansion of F at small y.

    ``one`` is an exponent of y, which may be a symbol. ``y^one`` is divided out before the expansion, and
    ``one`` is added to the result. Raises NotApplicable if symbols do not determine the result.
    """
    small = Dummy("y", positive=True)
    try:
        return one + expand((F * y**-one).subs(y, small)).leadterm(small)[1]
    except (NotImplementedError, ValueError):
        raise NotApplicable(
            f"SymPy does not find the lowest power of {y} in {F} at small {y}: give numbers or positive "
            "symbols in this function"
        ) from None


def _above(p: Power, q: Power, given: Mapping[Any, Any]) -> bool:
    """Return whether the term p exceeds the term q when the variable is large.

    It has the larger exponent, or the same with more logarithms. ``given`` replaces symbols by expressions in
    positive ones, so that exponents can be compared. The result is False also if symbols do not determine
    which exponent is larger.
    """
    gap = simplify((p.power - q.power).subs(given))
    return bool(gap.is_positive) or (gap == 0 and p.logs > q.logs)
