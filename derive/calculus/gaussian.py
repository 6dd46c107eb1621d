"""Averages over correlated Gaussian variables: unevaluated expressions with Price's and Stein's lemmas.

Closed forms are reduced to signs of one or two Gaussian variables. A term is a monomial times ``exp`` of a
quadratic form times signs and error functions of linear forms.

* ``exp`` of a quadratic form changes covariance and mean of the Gaussian.
* Stein's lemma replaces a factor ``x`` by derivatives. The derivative of an error function is an ``exp``; the
  derivative of a sign is a delta, which conditions the Gaussian on a hyperplane.
* ``erf(x)`` is the mean of ``sign(sqrt(2) x + z)`` over a standard normal ``z``. The remaining averages are
  ``<sign(x + m)> = erf(m / sqrt(2 v))`` and the arcsine law for pairs of signs.

Rectifiers are ``x (1 + sign(x)) / 2`` and sines are complex exponentials.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from sympy import (
    Add,
    Basic,
    DiracDelta,
    Dummy,
    Expr,
    I,
    ImmutableDenseMatrix,
    Integral,
    KroneckerDelta,
    Max,
    Mul,
    Piecewise,
    Poly,
    Rational,
    S,
    Symbol,
    Tuple,
    asin,
    cancel,
    cos,
    erf,
    erfi,
    exp,
    eye,
    factorial,
    hermite_prob,
    nan,
    oo,
    pi,
    sign,
    sin,
    sqrt,
)
from sympy.matrices import MatrixBase
from sympy.utilities.iterables import connected_components

from derive.calculus.jumps import conditioned, written
from derive.calculus.sums import factors as written_out
from derive.calculus.sums import unused
from derive.calculus.symbols import converted, expression

Fold = Callable[[Expr, tuple[Expr, ...], MatrixBase], Expr]
"""Function of body, variables and covariance that returns an average without a closed form."""


class NoClosedForm(Exception):
    """Error: the average of a product of factors has no closed form that this module finds."""


@dataclass(frozen=True)
class LinearFactor:
    """Factor ``sign(a.x + m)`` in an average over Gaussian variables x, or ``erf(a.x + m)`` if ``soft``."""

    a: tuple[Expr, ...]
    m: Expr
    soft: bool

    def moved(self, shift: MatrixBase) -> LinearFactor:
        """Return the factor with ``x + shift`` in place of x, the variables of its linear form."""
        return replace(self, m=cancel(self.m + sum(p * q for p, q in zip(self.a, shift, strict=True))))


def expectation(body: Expr, variables: tuple[Expr, ...], matrix: MatrixBase, fold: Fold) -> Expr:
    """Return the Gaussian average ``<body>`` over centred ``variables`` whose covariance is ``matrix``.

    Factors that are independent of each other are averaged separately. A product of correlated factors
    without a closed form is passed to ``fold(product, variables, matrix)``, which returns its average. So is
    a product with an exponential whose average diverges, if its numbers show this; with symbols the average
    is assumed to exist. Raises :class:`~derive.calculus.jumps.Ambiguous` for a point mass (``DiracDelta``)
    times a jump or point mass at the same place, unless another factor is zero there, and for a point mass
    whose argument has variance zero.
    """
    total = []
    for term in Add.make_args(written(body, variables).expand()):
        dependent = [x for x in Mul.make_args(term) if any(x.has(v) for v in variables)]
        value = Mul(*[x for x in Mul.make_args(term) if x not in dependent])
        for factors in _independent(dependent, variables, matrix):
            value *= _group(factors, variables, matrix, fold)
        total.append(value)
    return real(Add(*total))


# -- independent groups --------------------------------------------------------------------------------------


def _independent(factors: list[Expr], variables: tuple[Expr, ...], matrix: MatrixBase) -> list[list[Expr]]:
    """Divide factors into groups such that factors of different groups are independent.

    ``matrix`` is the covariance of the Gaussian ``variables``.
    """
    occurring = [{i for i, v in enumerate(variables) if x.has(v)} for x in factors]
    pairs = combinations(range(len(factors)), 2)
    correlated = [
        (a, b)
        for a, b in pairs
        if any(i == j or matrix[i, j] != 0 for i in occurring[a] for j in occurring[b])
    ]
    return [[factors[k] for k in sorted(g)] for g in connected_components((range(len(factors)), correlated))]


def _group(factors: list[Expr], variables: tuple[Expr, ...], matrix: MatrixBase, fold: Fold) -> Expr:
    """Return the Gaussian average of a product of factors that are correlated with each other.

    If no closed form is found, the result is ``fold(product, variables, matrix)``, with the covariance
    ``matrix``.
    """
    if any(x.has(DiracDelta) for x in factors):
        averages = conditioned(factors, variables, matrix)
        if averages is None:
            return fold(Mul(*factors), variables, matrix)
        return Add(*[c * expectation(e, left, C, fold) for c, e, left, C in averages])
    try:
        value = _hermite(factors, variables, matrix)
        return _Term.read(factors, variables, matrix).value() if value is None else value
    except NoClosedForm:
        return fold(Mul(*factors), variables, matrix)


def _hermite(factors: list[Expr], variables: tuple[Expr, ...], matrix: MatrixBase) -> Expr | None:
    """Return the average of one or two Hermite polynomials of symbolic order in Gaussian variables.

    ``<He_n(x) He_m(y)> = delta_nm n! <x y>^n`` for variables of variance one. None for other variances, for
    other factors, and for more than two of them.
    """
    # The square He_n(x)**2 of a Hermite polynomial is written as He_n(x) He_n(x), so that it counts as two
    # polynomials.
    factors = written_out(Mul(*factors))
    polynomials = [x for x in factors if isinstance(x, hermite_prob) and x.args[1] in variables]
    if len(polynomials) != len(factors) or not 1 <= len(polynomials) <= 2:
        return None
    places = [variables.index(x.args[1]) for x in polynomials]
    if any(matrix[i, i] != 1 for i in places):
        return None
    if len(polynomials) == 1:
        return KroneckerDelta(polynomials[0].args[0], 0)
    n, m = (x.args[0] for x in polynomials)
    return KroneckerDelta(n, m) * factorial(n) * matrix[places[0], places[1]] ** n


# -- one term ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Term:
    """Integrand ``polynomial * exp(b.x - x.A x / 2 + c) * units`` of an average over Gaussian x.

    The variables x are centred with covariance C. ``units`` are signs and error functions of linear forms in
    x.
    """

    polynomial: Poly
    A: MatrixBase
    b: MatrixBase
    c: Expr
    units: tuple[LinearFactor, ...]
    C: MatrixBase

    @classmethod
    def read(cls, factors: list[Expr], variables: tuple[Expr, ...], C: MatrixBase) -> _Term:
        """Convert a product to polynomial, exponential of a quadratic form, signs and error functions.

        C is the covariance of the ``variables``. Raises NoClosedForm for a factor of another kind, and for an
        exponential whose average is known to diverge.
        """
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
                # The sign of a linear form f is sign(k) sign(f/k). Here k is the first nonzero coefficient of
                # a variable if this coefficient is a number, so that x+y and 2*x+2*y give the same quotient
                # f/k. Else k is 1.
                if isinstance(x, sign):
                    k = next((k for k in a if k != 0), S.One)
                    k = k if k.is_number else S.One
                    polynomial *= sign(k)
                    a, m = tuple(p / k for p in a), m / k
                units.append(LinearFactor(a, m, isinstance(x, erf)))
            else:
                raise NoClosedForm(
                    f"the Gaussian average has no closed form here: its factor {x} is not a polynomial, nor "
                    "exp, erf or sign of a polynomial"
                )
        form = _poly(exponent, variables, 2)
        A = ImmutableDenseMatrix(
            n, n, lambda i, j: -form.coeff_monomial(variables[i] * variables[j]) * (2 if i == j else 1)
        )
        b = ImmutableDenseMatrix([form.coeff_monomial(v) for v in variables])
        _check_convergence(A, C)
        return cls(_poly(polynomial, variables), A, b, form.coeff_monomial(1), tuple(units), C)

    def value(self) -> Expr:
        """Return the Gaussian average of the term; raise NoClosedForm if there is no closed form.

        The factor ``exp(b.x - x.A x / 2 + c)`` changes the covariance of x from C to ``C' = (1 + C A)^-1 C``
        and the mean to ``C' b``, and gives the weight ``exp(c + b.C' b / 2) / sqrt(det(1 + C A))``.
        """
        C, shift, weight, units, polynomial = self.C, self.b, exp(self.c), self.units, self.polynomial
        if any(x != 0 for x in (*self.A, *self.b)):
            if any(x.has(I) for x in self.b) and any(not u.soft for u in units):
                raise NoClosedForm(
                    "the Gaussian average has no closed form here: it has a sign times an exponential whose "
                    "exponent has a complex coefficient in a term of first degree"
                )
            widening = eye(C.rows) + C * self.A
            size = cancel(widening.det())
            if size.is_zero or size.is_negative:
                raise NoClosedForm(
                    f"the Gaussian average has no closed form here: det(1 + C A) = {size} is not positive, "
                    "where C is the covariance and exp(-x.A x/2) a factor of the average; for real A the "
                    "average diverges"
                )
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
    """Raise NoClosedForm if ``exp(-x.A x / 2)`` makes the integral over x of covariance C diverge.

    This is checked only if all entries of A and C are rational numbers.
    """
    if all(x == 0 for x in A) or not all(x.is_Rational for x in (*A, *C)):
        return
    t = Symbol("t")
    if Poly((eye(C.rows) + t * C * A).det(), t).count_roots(0, 1):
        raise NoClosedForm(
            "the Gaussian average diverges: in at least one direction its factor exp of a quadratic form "
            "grows at least as fast as the Gaussian density falls"
        )


def _poly(e: Expr, variables: tuple[Expr, ...], degree: int | None = None) -> Poly:
    """Convert an expression to a polynomial in ``variables``; raise NoClosedForm if it is not one.

    Raises NoClosedForm also if its total degree exceeds ``degree``; None allows any degree.
    """
    if not e.is_polynomial(*variables):
        raise NoClosedForm(
            f"the Gaussian average has no closed form here: {e}, the argument of an exp, erf or sign, is "
            f"not a polynomial in {', '.join(map(str, variables))}"
        )
    polynomial = Poly(e, *variables)
    if degree is not None and polynomial.total_degree() > degree:
        raise NoClosedForm(
            f"the Gaussian average has no closed form here: {e}, the argument of an exp, erf or sign, is a "
            f"polynomial of a degree above {degree}; the highest degree is 2 for an exp, and 1 for an erf "
            "or sign"
        )
    return polynomial


def _moment(powers: tuple[int, ...], units: tuple[LinearFactor, ...], C: MatrixBase) -> Expr:
    """Return the average of a monomial ``x_1^p_1 x_2^p_2 ...`` times signs and error functions.

    ``powers`` are the exponents p, ``units`` the signs and error functions of linear forms in x, and C is the
    covariance of x. Stein's lemma is applied until no factor x is left.
    """
    units = _without_squares(units)
    if all(u.m == 0 for u in units) and (sum(powers) + len(units)) % 2:
        return S.Zero
    i = next((i for i, k in enumerate(powers) if k), None)
    if i is None:
        return _signs(units, C)
    lowered = _lowered(powers, i)
    total = []
    for j, k in enumerate(lowered):
        if k and C[i, j] != 0:
            total.append(k * C[i, j] * _moment(_lowered(lowered, j), units, C))
    for at, u in enumerate(units):
        others = units[:at] + units[at + 1 :]
        c = _dot(C.row(i), u.a)
        if c != 0:
            total.append(
                c * (_by_derivative_of_erf if u.soft else _by_derivative_of_sign)(u, lowered, others, C)
            )
    return Add(*total)


def _by_derivative_of_erf(
    u: LinearFactor, powers: tuple[int, ...], others: tuple[LinearFactor, ...], C: MatrixBase
) -> Expr:
    """Return an average over x with ``u = erf(l)`` replaced by its derivative ``2 exp(-l^2)/sqrt(pi)``.

    ``l = a.x + m`` is the linear form in u, by which the derivative is taken. The other factors are a
    monomial of x with the exponents ``powers``, and the signs and error functions ``others``. C is the
    covariance of x.
    """
    a = ImmutableDenseMatrix(u.a)
    gens = tuple(_generators(len(powers)))
    polynomial = Poly({powers: S.One}, *gens)
    tilted = _Term(polynomial, 2 * a * a.T, -2 * u.m * a, -(u.m**2), others, C)
    return 2 / sqrt(pi) * tilted.value()


def _by_derivative_of_sign(
    u: LinearFactor, powers: tuple[int, ...], others: tuple[LinearFactor, ...], C: MatrixBase
) -> Expr:
    """Return an average over x in which ``u = sign(l)`` is replaced by its derivative ``2 delta(l)``.

    ``l = a.x + m`` is the linear form in u, by which the derivative is taken. The other factors are a
    monomial of x with the exponents ``powers``, and the signs and error functions ``others``. C is the
    covariance of x. An average with the delta is the density of ``l`` at zero times the average conditioned
    on ``l = 0``. Raises NoClosedForm if the variance of ``l`` is zero.
    """
    a = ImmutableDenseMatrix(u.a)
    across = C * a
    v = cancel(_dot(across, u.a))
    if v == 0:
        raise NoClosedForm(
            "the argument of a sign has variance zero and a nonzero covariance with a variable: Gaussian "
            "variables cannot have these covariances if the coefficients of the argument are real"
        )
    density = exp(-(u.m**2) / (2 * v)) / sqrt(2 * pi * v)
    shift = (-across * u.m / v).applyfunc(cancel)
    reduced = (C - across * across.T / v).applyfunc(cancel)
    gens = tuple(_generators(len(powers)))
    moved = Mul(*[(x + d) ** k for x, d, k in zip(gens, shift, powers, strict=True)])
    units = tuple(x.moved(shift) for x in others)
    terms = [k * _moment(p, units, reduced) for p, k in _poly(moved, gens).terms()]
    return 2 * density * Add(*terms)


def _generators(n: int) -> list[Expr]:
    """Return ``n`` symbols _x0, _x1, ... as variables of polynomials."""
    return [Symbol(f"_x{i}") for i in range(n)]


def _lowered(powers: tuple[int, ...], i: int) -> tuple[int, ...]:
    """Return the exponents of a monomial with that of variable ``i`` reduced by one."""
    return (*powers[:i], powers[i] - 1, *powers[i + 1 :])


def _dot(x: Any, y: Any) -> Expr:
    """Return the scalar product of two vectors."""
    return cancel(sum((p * q for p, q in zip(x, y, strict=True)), S.Zero))


# -- signs ---------------------------------------------------------------------------------------------------


def _without_squares(units: tuple[LinearFactor, ...]) -> tuple[LinearFactor, ...]:
    """Remove pairs of equal signs of linear forms, whose product is one, from a list of factors.

    This must precede derivatives, because ``sign(0)`` is not defined.
    """
    kept: list[LinearFactor] = []
    for u in units:
        if not u.soft and u in kept:
            kept.remove(u)
        else:
            kept.append(u)
    return tuple(kept)


def _signs(units: tuple[LinearFactor, ...], C: MatrixBase) -> Expr:
    """Return the mean of a product of signs and error functions of linear forms.

    The mean is a product over groups of factors with correlated linear forms. A group of one factor gives an
    ``erf``, or a sign if the variance is zero. For linear forms of mean zero a pair gives the arcsine law,
    and an odd number gives 0. Raises NoClosedForm for other groups.
    """
    scale = [sqrt(2) if u.soft else S.One for u in units]
    means = [k * u.m for k, u in zip(scale, units, strict=True)]
    overlap = [
        [cancel(p * q * _dot(C * ImmutableDenseMatrix(u.a), w.a)) for q, w in zip(scale, units, strict=True)]
        for p, u in zip(scale, units, strict=True)
    ]
    variances = [overlap[i][i] + (1 if u.soft else 0) for i, u in enumerate(units)]
    correlated = [(i, j) for i, j in combinations(range(len(units)), 2) if overlap[i][j] != 0]

    def mean(g: list[int]) -> Expr:
        """Return the mean of the product of the factors with the numbers ``g``, a correlated group."""
        if len(g) == 1:
            m, v = means[g[0]], variances[g[0]]
            if v == 0:
                return sign(m)
            return erf(m / sqrt(2 * v)) if m != 0 else S.Zero
        if any(means[i] != 0 for i in g):
            raise NoClosedForm(
                "the Gaussian average has no closed form here: several factors sign or erf have correlated "
                "arguments, at least one with a nonzero mean (a factor exp changes means and covariances); "
                "the arguments must have mean zero or be independent"
            )
        if len(g) % 2:
            return S.Zero
        if len(g) > 2:
            raise NoClosedForm(
                "the Gaussian average has no closed form here: an even number of factors sign or erf, four "
                "or more, have correlated arguments; closed forms exist here for two such factors, and for "
                "an odd number of them"
            )
        i, j = g
        return Rational(2) / pi * asin(overlap[i][j] / (sqrt(variances[i]) * sqrt(variances[j])))

    return Mul(*map(mean, connected_components((range(len(units)), correlated))))


def real(e: Expr) -> Expr:
    """Return an expression with complex exponentials as sines and cosines, ``erf(i x)`` as ``i erfi(x)``."""
    if not e.has(I):
        return e

    def wave(x: Expr) -> Expr:
        """Return a complex exponential ``exp(a + i b)`` as ``exp(a) (cos b + i sin b)``."""
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


class GaussianAverage(Expr):
    """``<F(x, y, ..)>`` for centred, jointly Gaussian ``x, y, ..`` with given covariances.

    ``covariance`` maps pairs to their covariance, ``{(x, x): a, (x, y): c, (y, y): b}``; missing pairs of
    different variables are uncorrelated, and the order in a pair does not matter. Alternatively it lists the
    variables, and ``matrix`` is their covariance. Variables are symbols or fields such as ``h(mu, t)``. They
    are bound: a substitution for a variable does not change the average. The indices of a field are free.

    ``.diff`` with respect to a symbol in the covariance follows Price's theorem: ``d<F>/dc = <d^2 F/dx dy>``
    for a covariance, half of that for a variance. ``.doit()`` evaluates what has a closed form: polynomials
    (Isserlis), exponentials of quadratic forms, sines, error functions and signs (one, or pairs by the
    arcsine law), rectifiers and their powers (arc-cosine kernels), and one or two Hermite polynomials of
    symbolic order in variables of variance one.

    Raises ValueError for a missing or negative variance, a covariance that is not symmetric, and one of
    numbers that is not positive semidefinite.

    >>> from sympy.abc import a, b, c, x, y
    >>> from sympy import Function
    >>> phi = Function("phi")
    >>> both = {(x, x): a, (x, y): c, (y, y): b}
    >>> GaussianAverage(x**2 * y**2, both).doit()
    a*b + 2*c**2
    >>> GaussianAverage(erf(x) * erf(y), both).doit()
    2*asin(2*c/(sqrt(2*a + 1)*sqrt(2*b + 1)))/pi
    >>> GaussianAverage(phi(x) * phi(y), both).diff(c)
    <Derivative(phi(x), x)*Derivative(phi(y), y)>_{x,y}
    """

    is_commutative = True
    is_averaged = True

    def __new__(
        cls, body: Any, covariance: Mapping[Any, Any] | Iterable[Any], matrix: Any = None
    ) -> GaussianAverage:
        """Return the unevaluated average of an expression.

        ``covariance`` is a mapping from pairs of variables to covariances, without ``matrix``; or it is a
        list of variables, and ``matrix`` is their covariance. A variable that is repeated in the list keeps
        the covariances of its first occurrence.
        """
        if isinstance(covariance, Mapping):
            variables, entries = _from_pairs(covariance)
        else:
            named = tuple(x if isinstance(x, Basic) else expression(x, "variable") for x in covariance)
            variables, entries = _merged(named, ImmutableDenseMatrix(matrix))
        body = body if isinstance(body, Basic) else expression(body, "body of an average")
        node: GaussianAverage = Expr.__new__(cls, body, Tuple(*variables), entries)
        return node

    @property
    def body(self) -> Expr:
        """The averaged expression."""
        return self.args[0]

    @property
    def variables(self) -> tuple[Expr, ...]:
        """The Gaussian variables over which the average is taken, in the order of the rows of ``matrix``."""
        return tuple(self.args[1])

    @property
    def matrix(self) -> ImmutableDenseMatrix:
        """The covariance matrix of the Gaussian variables, in the order of ``variables``."""
        return self.args[2]

    def covariance(self, x: Any, y: Any) -> Expr:
        """Return the covariance of two variables of the average; raise ValueError for others."""
        i, j = (self.variables.index(self._variable(z)) for z in (x, y))
        return self.matrix[i, j]

    @property
    def bound_symbols(self) -> list[Symbol]:
        """Variables of the average that are plain symbols; substitution does not change them."""
        return [x for x in self.variables if isinstance(x, Symbol)]

    @property
    def free_symbols(self) -> set[Symbol]:
        """The free symbols: all except the variables; the indices of a field are free."""
        fields = [x.free_symbols for x in self.variables if not isinstance(x, Symbol)]
        inside = self.body.free_symbols - set(self.bound_symbols)
        return set().union(inside, self.matrix.free_symbols, *fields)

    def doit(self, **hints: Any) -> Expr:
        """Return the average in closed form, as far as one is known; ``hints`` have no effect.

        Parts without one stay unevaluated averages, with constants and independent factors outside. Raises
        :class:`~derive.calculus.jumps.Ambiguous` for a ``DiracDelta`` times a jump or ``DiracDelta`` at the
        same place, unless another factor is zero there, and for a ``DiracDelta`` whose argument has variance
        zero.
        """
        return expectation(self.body, self.variables, self.matrix, _folded)

    def stein(self, variable: Any = None) -> Expr:
        """Apply Stein's lemma ``<x F> = sum_j <x x_j> <dF/dx_j>`` once to a factor ``x``.

        By default ``x`` is the first variable that is a factor. Raises ValueError if the body has no such
        factor.

        >>> from sympy.abc import a, b, c, x, y
        >>> GaussianAverage(x * sin(y), {(x, x): a, (x, y): c, (y, y): b}).stein()
        c*<cos(y)>_{y}
        """
        chosen = self.variables if variable is None else (converted(variable),)
        powers = Mul(self.body, evaluate=True).as_powers_dict()
        x = next((x for x in chosen if x in self.variables and _counts(powers.get(x, S.Zero))), None)
        if x is None:
            raise ValueError(
                f"{self.body} has no factor x**n with an integer n > 0, where x is one of "
                f"{', '.join(map(str, chosen))} and a Gaussian variable of the average"
            )
        slots, rest = self._slots(self.body / x)
        pairs = ((self.covariance(x, y), slot) for y, slot in slots.items())
        return Add(*[c * self._back(rest.diff(slot), slots) for c, slot in pairs if c != 0])

    def isserlis(self) -> Expr:
        """Replace every factor that is a variable by covariances, applying Stein's lemma until none is left.

        >>> from sympy.abc import a, b, c, x, y
        >>> GaussianAverage(x**2 * sin(y), {(x, x): a, (x, y): c, (y, y): b}).isserlis()
        a*<sin(y)>_{y} - c**2*<sin(y)>_{y}
        """
        total = []
        for term in Add.make_args(self.body.expand()):
            fixed, body = term.as_independent(*self.variables, as_Add=False)
            part = _folded(body, self.variables, self.matrix)
            powers = body.as_powers_dict()
            if any(_counts(powers.get(x, S.Zero)) for x in self.variables):
                traded = part.stein().expand()
                part = traded.replace(lambda e: isinstance(e, GaussianAverage), lambda e: e.isserlis())
            total.append(fixed * part)
        return Add(*total).expand()

    def price(self, x: Any, y: Any) -> Expr:
        """Return the average ``<d^2 F/dx dy>``, which is the derivative by the covariance of ``x`` and ``y``.

        For x = y, the derivative by a variance is half of the returned value (Price's theorem). Raises
        ValueError if ``x`` or ``y`` is not a variable of the average.

        >>> from sympy.abc import a, b, c, x, y
        >>> GaussianAverage(sin(x) * sin(y), {(x, x): a, (x, y): c, (y, y): b}).price(x, y)
        <cos(x)*cos(y)>_{x,y}
        """
        slots, body = self._slots(self.body)
        return self._back(body.diff(slots[self._variable(x)]).diff(slots[self._variable(y)]), slots)

    def hermite(self, n: int, variable: Any = None) -> Expr:
        """Return the coefficient of ``He_n(x / sqrt(<x x>))`` in the expansion of the body F.

        It is ``<F He_n> / n!``, by Stein's lemma the average of an n-th derivative. ``variable`` is x, by
        default the only variable. Raises ValueError for a negative ``n``, if there are several variables and
        none is chosen, or if ``variable`` is not a variable of the average.

        >>> from sympy.abc import a, x
        >>> GaussianAverage(cos(x), {(x, x): a}).hermite(2)
        -a*<cos(x)>_{x}/2
        """
        if n < 0:
            raise ValueError(f"n = {n}: the order of a Hermite polynomial must not be negative")
        if variable is None and len(self.variables) != 1:
            raise ValueError(f"variable = None: must be one of {', '.join(map(str, self.variables))}")
        x = self._variable(self.variables[0] if variable is None else variable)
        slots, body = self._slots(self.body)
        for _ in range(n):
            body = Add(*[self.covariance(x, y) * body.diff(slot) for y, slot in slots.items()])
        parts = (x.as_independent(*slots.values(), as_Add=False) for x in Add.make_args(body.expand()))
        total = Add(*[fixed * self._back(rest, slots) for fixed, rest in parts])
        return total / (factorial(n) * self.covariance(x, x) ** Rational(n, 2))

    # -- calculus ----------------------------------------------------------------------------------------

    def _variable(self, x: Any) -> Expr:
        """Return ``x`` as a variable of the average; raise ValueError if it is not one."""
        if converted(x) not in self.variables:
            names = ", ".join(map(str, self.variables))
            raise ValueError(f"{x} is not a variable of the average, whose variables are {names}")
        return converted(x)

    def _slots(self, e: Expr) -> tuple[dict[Expr, Dummy], Expr]:
        """Return (dummies, e): a dummy for each Gaussian variable, and ``e`` in terms of the dummies.

        With dummies, derivatives by fields such as ``h(t)`` can be taken.
        """
        slots = {x: Dummy(f"x{i}", real=True) for i, x in enumerate(self.variables)}
        return slots, e.xreplace(slots)

    def _back(self, e: Expr, slots: dict[Expr, Dummy]) -> Expr:
        """Return the Gaussian average of an expression in which dummies stand for the variables.

        ``slots`` maps the variables to the dummies.
        """
        if e == 0:
            return S.Zero
        return _folded(e.xreplace({d: x for x, d in slots.items()}), self.variables, self.matrix)

    def _eval_derivative(self, x: Expr) -> Expr:
        """Return the derivative of the average by a symbol in the averaged expression or in the covariance.

        The derivative by a covariance follows from Price's theorem; that by a variable is zero.
        """
        if x in self.variables:
            return S.Zero
        slots, body = self._slots(self.body)
        terms = [self._back(body.diff(x), slots)]
        order = list(slots.values())
        for i, p in enumerate(order):
            for j, q in enumerate(order[i:], i):
                rate = self.matrix[i, j].diff(x)
                if rate != 0:
                    share = Rational(1, 2) if i == j else S.One
                    terms.append(share * rate * self._back(body.diff(p).diff(q), slots))
        return Add(*terms)

    def _eval_subs(self, old: Expr, new: Expr) -> Expr | None:
        """Return the average with ``old`` replaced by ``new``, as SymPy's ``subs`` asks for it.

        If ``old`` is a variable of the average, which is bound, the average is returned unchanged. Variables
        that occur in ``new`` are renamed before. In all other cases the result is None, so that SymPy makes
        the substitution in the arguments.
        """
        if old in self.variables:
            return self
        met = [x for x in self.variables if new.has(x)]
        if not met:
            return None
        taken = self.atoms(Symbol) | old.free_symbols | new.free_symbols
        names: dict[Expr, Expr] = {}
        for x in met:
            names[x] = unused(x, taken) if isinstance(x, Symbol) else Dummy(str(x.func))
            taken.add(names[x])
        variables = [names.get(x, x) for x in self.variables]
        renamed = GaussianAverage(self.body.xreplace(names), variables, self.matrix)
        changed = renamed.subs(old, new)
        return self if changed == renamed else changed

    # -- numbers and printing ----------------------------------------------------------------------------

    def integral(self) -> Expr:
        """Return the average as an integral over independent standard normal variables z.

        The variables are ``R z``; ``R`` is lower triangular with ``R R^T`` the covariance, also if this is
        singular. SymPy's ``lambdify`` of an average without a closed form evaluates this integral
        numerically, with SciPy or mpmath.

        >>> from sympy import cosh, lambdify, tanh
        >>> from sympy.abc import a, b, c, x, y
        >>> both = GaussianAverage(tanh(x) * tanh(y), {(x, x): a, (x, y): c, (y, y): b})
        >>> square = GaussianAverage(tanh(x) ** 2, {(x, x): a})
        >>> one, two = lambdify(a, square, "mpmath"), lambdify((a, b, c), both, "scipy")
        >>> abs(one(2) - two(2, 2, 2)) < 1e-9
        True
        """
        z = [Dummy(f"z{i}", real=True) for i in range(len(self.variables))]
        R = [[S.Zero] * len(z) for _ in z]
        for i in range(len(z)):
            for j in range(i + 1):
                left = self.matrix[i, j] - Add(*[R[i][k] * R[j][k] for k in range(j)])
                if i == j:
                    R[i][j] = sqrt(Max(left, 0))
                else:
                    R[i][j] = Piecewise((left / R[j][j], R[j][j] > 0), (0, True))
        slots, body = self._slots(self.body)
        rows = (Add(*[c * v for c, v in zip(row, z, strict=True)]) for row in R)
        body = body.subs(dict(zip(slots.values(), rows, strict=True)), simultaneous=True)
        density = exp(-Add(*[v**2 for v in z]) / 2) / sqrt(2 * pi) ** len(z)
        return Integral(body * density, *[(v, -oo, oo) for v in z])

    def _numpycode(self, printer: Any, *_: Any) -> str:
        closed = self.doit()
        return f"({printer._print(self.integral() if closed.has(GaussianAverage) else closed)})"

    _mpmathcode = _numpycode

    def _latex(self, printer: Any, *_: Any) -> str:
        under = ",".join(printer._print(x) for x in self.variables)
        return rf"\left\langle {printer._print(self.body)} \right\rangle_{{{under}}}"

    def _sympystr(self, printer: Any, *_: Any) -> str:
        under = ",".join(printer._print(x) for x in self.variables)
        return f"<{printer._print(self.body)}>_{{{under}}}"


def _counts(power: Expr) -> bool:
    """Return whether an exponent is a positive integer, so that Stein's lemma applies to the factor."""
    return bool(power.is_Integer and power > 0)


def _folded(body: Expr, variables: tuple[Expr, ...], matrix: MatrixBase) -> Expr:
    """Return the unevaluated average of ``body`` over those of the variables that occur in it.

    If no variable occurs, ``body`` itself is returned.
    """
    kept = [i for i, x in enumerate(variables) if body.has(x)]
    if not kept:
        return body
    return GaussianAverage(body, [variables[i] for i in kept], matrix.extract(kept, kept))


def _from_pairs(pairs: Mapping[Any, Any]) -> tuple[tuple[Expr, ...], ImmutableDenseMatrix]:
    """Return the variables and their covariance matrix from covariances by pairs of variables.

    Missing pairs of different variables are uncorrelated. Raises ValueError for a missing or negative
    variance, if the two orders of a pair have different covariances, and for a covariance of numbers that is
    not positive semidefinite.
    """
    table: dict[tuple[Expr, Expr], Expr] = {}
    for (x, y), value in pairs.items():
        a, b, c = converted(x), converted(y), converted(value)
        for key in ((a, b), (b, a)):
            if table.setdefault(key, c) != c:
                raise ValueError(f"the covariance of {a} and {b} is given as {table[key]} and as {c}")
    variables = tuple(dict.fromkeys(x for pair in table for x in pair))
    for x in variables:
        if (x, x) not in table:
            raise ValueError(f"the variance of {x} is missing")
    n = len(variables)
    rows = [[table.get((x, y), S.Zero) for y in variables] for x in variables]
    return variables, _checked(variables, ImmutableDenseMatrix(n, n, [c for row in rows for c in row]))


def _merged(variables: tuple[Expr, ...], matrix: MatrixBase) -> tuple[tuple[Expr, ...], ImmutableDenseMatrix]:
    """Return the variables without repetitions, and their covariance.

    A repeated variable keeps the covariances of its first occurrence. Raises ValueError if ``matrix`` does
    not have the size of ``variables``, and if the result is refused by :func:`_checked`.
    """
    if matrix.shape != (len(variables), len(variables)):
        raise ValueError(
            f"{len(variables)} variables need a covariance of shape {(len(variables), len(variables))}, not "
            f"one of shape {matrix.shape}"
        )
    kept = [i for i, x in enumerate(variables) if x not in variables[:i]]
    left = tuple(variables[i] for i in kept)
    return left, _checked(left, ImmutableDenseMatrix(matrix.extract(kept, kept)))


def _checked(variables: tuple[Expr, ...], matrix: ImmutableDenseMatrix) -> ImmutableDenseMatrix:
    """Return the covariance matrix of variables.

    Raises ValueError if it is not symmetric or has a negative variance, and if the part of it that consists
    of real numbers is not positive semidefinite.
    """
    if matrix != matrix.T:
        raise ValueError(f"covariance = {matrix.tolist()}: must be symmetric")
    for i, x in enumerate(variables):
        if matrix[i, i].is_negative:
            raise ValueError(f"the variance of {x} is {matrix[i, i]}: must not be negative")
    if any(matrix[i, j] != 0 for i in range(matrix.rows) for j in range(i)):
        _check_semidefinite(variables, matrix)
    return matrix


ROUNDED = 1e-9
"""Largest size of a negative Cholesky pivot of a correlation matrix that is taken for a rounding error."""


def _check_semidefinite(variables: Sequence[Expr], matrix: MatrixBase) -> None:
    """Raise ValueError if a covariance of real numbers is not positive semidefinite.

    Of a covariance with symbols one part is checked: each variable, in order, whose variance and covariances
    with the variables taken before are real numbers. The matrix of correlations is decomposed by Cholesky's
    method, the largest remaining variance first.
    """
    numbers = matrix.applyfunc(lambda x: x if x.is_number and x.is_real else nan)
    left: list[int] = []
    for i in range(matrix.rows):
        if all(numbers[i, j] is not nan for j in (*left, i)):
            left.append(i)
    sizes = {i: float(numbers[i, i]) ** 0.5 or 1.0 for i in left}
    values = {(i, j): float(numbers[i, j]) / sizes[i] / sizes[j] for i in left for j in left}
    names = ", ".join(str(variables[i]) for i in left)
    while left:
        k = max(left, key=lambda i: values[i, i])
        pivot = values[k, k]
        left.remove(k)
        if any(abs(values[i, k]) > (1 + ROUNDED) * pivot + ROUNDED for i in left) or pivot < -ROUNDED:
            raise ValueError(
                f"covariance = {matrix.tolist()}: must be positive semidefinite, but no Gaussian variables "
                f"{names} have these variances and covariances"
            )
        if pivot > ROUNDED:
            for i in left:
                for j in left:
                    values[i, j] -= values[i, k] * values[k, j] / pivot
