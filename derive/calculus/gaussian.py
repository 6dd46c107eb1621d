"""Averages over correlated Gaussian numbers: unevaluated expressions that know Price's and Stein's lemmas.

Closed forms come from reducing everything to the sign of one or two Gaussian numbers.  A term is a monomial
times ``exp`` of a quadratic form times signs and error functions of linear forms.

* ``exp`` tilts the Gaussian: another covariance, and a shift.
* A factor ``x`` is traded for derivatives by Stein's lemma.  The derivative of an error function is a tilt;
  that of a sign is a delta, which conditions the Gaussian on a hyperplane.
* ``erf(x)`` is the mean of ``sign(sqrt(2) x + z)`` over a standard normal ``z``, so what is left are signs:
  ``<sign(x + m)> = erf(m / sqrt(2 v))`` and the arcsine law for pairs.

Rectifiers are ``x (1 + sign(x)) / 2`` and sines complex exponentials, so nothing more is needed for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from sympy import (
    Add,
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
    oo,
    pi,
    sign,
    sin,
    sqrt,
    sympify,
)
from sympy.matrices import MatrixBase
from sympy.utilities.iterables import connected_components

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
        rest = [x for x in Mul.make_args(term) if any(x.has(v) for v in variables)]
        value = Mul(*[x for x in Mul.make_args(term) if x not in rest])
        for factors in _independent(rest, variables, matrix):
            value *= _group(factors, variables, matrix, fold)
        total.append(value)
    return real(Add(*total))


# -- independent groups --------------------------------------------------------------------------------------


def _independent(factors: list[Expr], variables: tuple[Expr, ...], matrix: MatrixBase) -> list[list[Expr]]:
    """The factors in groups that share no variables and no correlations."""
    own = [{i for i, v in enumerate(variables) if x.has(v)} for x in factors]
    pairs = combinations(range(len(factors)), 2)
    close = [(a, b) for a, b in pairs if any(i == j or matrix[i, j] != 0 for i in own[a] for j in own[b])]
    return [[factors[k] for k in sorted(g)] for g in connected_components((range(len(factors)), close))]


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
    close = [(i, j) for i, j in combinations(range(len(units)), 2) if overlap[i][j] != 0]

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

    return Mul(*map(mean, connected_components((range(len(units)), close))))


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


class GaussianAverage(Expr):
    r"""``<F(x, y, ..)>`` for centred, jointly Gaussian ``x, y, ..`` with given covariances.

    ``covariance`` maps pairs to their covariance, ``{(x, x): a, (x, y): c, (y, y): b}``; a pair that is not
    there is uncorrelated, in either order.  Or it lists the variables, and ``matrix`` is their covariance.
    Variables are symbols or fields such as ``h(mu, t)``; they are bound, substitution leaves them alone.

    ``.diff`` with respect to anything in the covariance follows Price's theorem, ``d<F>/dc = <d^2 F/dx dy>``
    off the diagonal and half of that on it.  ``.doit()`` evaluates what has a closed form: polynomials
    (Isserlis), exponentials of quadratic forms, sines, error functions and signs (one, or pairs: the arcsine
    law), rectifiers and their powers (the arc-cosine kernels), Hermite polynomials of symbolic order.

    Raises ValueError for a variable without variance, or contradicting entries.

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
        if isinstance(covariance, Mapping):
            variables, entries = _from_pairs(covariance)
        else:
            variables, entries = _merged(tuple(map(sympify, covariance)), ImmutableDenseMatrix(matrix))
        node: GaussianAverage = Expr.__new__(cls, sympify(body), Tuple(*variables), entries)
        return node

    @property
    def body(self) -> Expr:
        """What is averaged."""
        return self.args[0]

    @property
    def variables(self) -> tuple[Expr, ...]:
        """The Gaussian numbers."""
        return tuple(self.args[1])

    @property
    def matrix(self) -> ImmutableDenseMatrix:
        """Their covariance."""
        return self.args[2]

    def covariance(self, x: Any, y: Any) -> Expr:
        """One entry of it."""
        return self.matrix[self.variables.index(sympify(x)), self.variables.index(sympify(y))]

    @property
    def bound_symbols(self) -> list[Symbol]:
        """The variables that are plain symbols."""
        return [x for x in self.variables if isinstance(x, Symbol)]

    @property
    def free_symbols(self) -> set[Symbol]:
        """Everything but the variables; the indices of a field count."""
        fields = [x.free_symbols for x in self.variables if not isinstance(x, Symbol)]
        inside = self.body.free_symbols - set(self.bound_symbols)
        return set().union(inside, self.matrix.free_symbols, *fields)

    def doit(self, **hints: Any) -> Expr:
        """The closed form; what has none stays folded, with constants and independent factors taken out."""
        return expectation(self.body, self.variables, self.matrix, _folded)

    def stein(self, variable: Any = None) -> Expr:
        """``<x F> = sum_j <x x_j> <dF/dx_j>`` for a factor ``x``, by default the first variable that is one.

        Raises ValueError when the body is no product with such a factor.

        >>> from sympy.abc import a, b, c, x, y
        >>> GaussianAverage(x * sin(y), {(x, x): a, (x, y): c, (y, y): b}).stein()
        c*<cos(y)>_{y}
        """
        chosen = self.variables if variable is None else (sympify(variable),)
        powers = Mul(self.body, evaluate=True).as_powers_dict()
        x = next((x for x in chosen if x in self.variables and _counts(powers.get(x, S.Zero))), None)
        if x is None:
            raise ValueError(f"no factor of {self.body} is {' or '.join(map(str, chosen))}")
        slots, rest = self._slots(self.body / x)
        pairs = ((self.covariance(x, y), slot) for y, slot in slots.items())
        return Add(*[c * self._back(rest.diff(slot), slots) for c, slot in pairs if c != 0])

    def isserlis(self) -> Expr:
        """Every factor that is a variable traded for covariances: Stein's lemma until none is left.

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
        """``<d^2 F/dx dy>``, the derivative by the covariance of ``x`` and ``y`` (twice that by a variance).

        Raises ValueError for what is not averaged over.

        >>> from sympy.abc import a, b, c, x, y
        >>> GaussianAverage(sin(x) * sin(y), {(x, x): a, (x, y): c, (y, y): b}).price(x, y)
        <cos(x)*cos(y)>_{x,y}
        """
        slots, body = self._slots(self.body)
        return self._back(body.diff(slots[self._variable(x)]).diff(slots[self._variable(y)]), slots)

    def hermite(self, n: int, variable: Any = None) -> Expr:
        """The coefficient of ``He_n(x / sqrt(<x x>))`` in the body, by default of the only variable.

        That is ``<F He_n> / n!``, and by Stein's lemma the average of a derivative.  Raises ValueError for a
        negative ``n``, or if there are several variables and none is chosen.

        >>> from sympy.abc import a, x
        >>> GaussianAverage(cos(x), {(x, x): a}).hermite(2)
        -a*<cos(x)>_{x}/2
        """
        if n < 0:
            raise ValueError(f"n = {n}: the order of a Hermite polynomial is not negative")
        if variable is None and len(self.variables) != 1:
            raise ValueError(f"choose a variable: one of {', '.join(map(str, self.variables))}")
        x = self._variable(self.variables[0] if variable is None else variable)
        slots, body = self._slots(self.body)
        for _ in range(n):
            body = Add(*[self.covariance(x, y) * body.diff(slot) for y, slot in slots.items()])
        parts = (x.as_independent(*slots.values(), as_Add=False) for x in Add.make_args(body.expand()))
        total = Add(*[fixed * self._back(rest, slots) for fixed, rest in parts])
        return total / (factorial(n) * self.covariance(x, x) ** Rational(n, 2))

    # -- calculus ----------------------------------------------------------------------------------------

    def _variable(self, x: Any) -> Expr:
        if sympify(x) not in self.variables:
            raise ValueError(f"{x} is not averaged over: {', '.join(map(str, self.variables))} are")
        return sympify(x)

    def _slots(self, e: Expr) -> tuple[dict[Expr, Dummy], Expr]:
        """The body as a function of plain numbers, one for each variable."""
        slots = {x: Dummy(f"x{i}", real=True) for i, x in enumerate(self.variables)}
        return slots, e.xreplace(slots)

    def _back(self, e: Expr, slots: dict[Expr, Dummy]) -> Expr:
        """The average of a function of the slots, without the variables that do not occur."""
        if e == 0:
            return S.Zero
        return _folded(e.xreplace({d: x for x, d in slots.items()}), self.variables, self.matrix)

    def _eval_derivative(self, x: Expr) -> Expr:
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
        return self if old in self.variables else None

    # -- numbers and printing ----------------------------------------------------------------------------

    def integral(self) -> Expr:
        """The average as an integral over independent standard normal numbers z, the variables being ``R z``.

        ``R`` is lower triangular, ``R R^T`` the covariance, also where this is singular.  It is what
        ``lambdify`` computes (with SciPy or mpmath) where there is no closed form.

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
    return bool(power.is_Integer and power > 0)


def _folded(body: Expr, variables: tuple[Expr, ...], matrix: MatrixBase) -> Expr:
    """Unevaluated, over the variables that occur only."""
    kept = [i for i, x in enumerate(variables) if body.has(x)]
    if not kept:
        return body
    return GaussianAverage(body, [variables[i] for i in kept], matrix.extract(kept, kept))


def _from_pairs(pairs: Mapping[Any, Any]) -> tuple[tuple[Expr, ...], ImmutableDenseMatrix]:
    table: dict[tuple[Expr, Expr], Expr] = {}
    for (x, y), value in pairs.items():
        a, b, c = sympify(x), sympify(y), sympify(value)
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
    """A variable listed twice (two times became equal) is one variable."""
    if matrix.shape != (len(variables), len(variables)):
        raise ValueError(
            f"{len(variables)} variables need a square covariance, not one of shape {matrix.shape}"
        )
    kept = [i for i, x in enumerate(variables) if x not in variables[:i]]
    left = tuple(variables[i] for i in kept)
    return left, _checked(left, ImmutableDenseMatrix(matrix.extract(kept, kept)))


def _checked(variables: tuple[Expr, ...], matrix: ImmutableDenseMatrix) -> ImmutableDenseMatrix:
    if matrix != matrix.T:
        raise ValueError(f"a covariance is symmetric, not {matrix.tolist()}")
    for i, x in enumerate(variables):
        if matrix[i, i].is_negative:
            raise ValueError(f"the variance of {x} is {matrix[i, i]}: must not be negative")
    return matrix
