"""Averages over jointly Gaussian numbers, as unevaluated expressions that know Price's and Stein's lemmas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sympy import (
    Add,
    Dummy,
    Expr,
    Function,
    ImmutableDenseMatrix,
    Integral,
    Max,
    Mul,
    Piecewise,
    Rational,
    S,
    Symbol,
    Tuple,
    exp,
    factorial,
    oo,
    pi,
    sqrt,
    sympify,
)
from sympy.matrices import MatrixBase

from derive.calculus.moments import expectation


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

    >>> from sympy import Max, erf, exp
    >>> from sympy.abc import a, b, c, x, y
    >>> phi = Function("phi")
    >>> both = {(x, x): a, (x, y): c, (y, y): b}
    >>> GaussianAverage(x**2 * y**2, both).doit()
    a*b + 2*c**2
    >>> GaussianAverage(erf(x) * erf(y), both).doit()
    2*asin(2*c/(sqrt(2*a + 1)*sqrt(2*b + 1)))/pi
    >>> GaussianAverage(2 * phi(x) * phi(y), both).doit()
    2*<phi(x)*phi(y)>_{x,y}
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
        >>> phi = Function("phi")
        >>> GaussianAverage(x * phi(y), {(x, x): a, (x, y): c, (y, y): b}).stein()
        c*<Derivative(phi(y), y)>_{y}
        """
        chosen = self.variables if variable is None else (sympify(variable),)
        powers = Mul(self.body, evaluate=True).as_powers_dict()
        x = next((x for x in chosen if x in self.variables and _counts(powers.get(x, S.Zero))), None)
        if x is None:
            raise ValueError(f"no factor of {self.body} is {' or '.join(map(str, chosen))}")
        slots, rest = self._slots(self.body / x)
        terms = []
        for y, slot in slots.items():
            c = self.covariance(x, y)
            terms.append(c * self._back(rest.diff(slot), slots) if c != 0 else S.Zero)
        return Add(*terms)

    def isserlis(self) -> Expr:
        """Every factor that is a variable traded for covariances: Stein's lemma until none is left.

        >>> from sympy.abc import a, b, c, x, y
        >>> phi = Function("phi")
        >>> GaussianAverage(x * y, {(x, x): a, (x, y): c, (y, y): b}).isserlis()
        c
        >>> GaussianAverage(x**2 * phi(y), {(x, x): a, (x, y): c, (y, y): b}).isserlis()
        a*<phi(y)>_{y} + c**2*<Derivative(phi(y), (y, 2))>_{y}
        """
        total = []
        for term in Add.make_args(self.body.expand()):
            fixed, body = term.as_independent(*self.variables, as_Add=False)
            part = _folded(body, self.variables, self.matrix)
            powers = body.as_powers_dict()
            if any(_counts(powers.get(x, S.Zero)) for x in self.variables):
                part = (
                    part.stein()
                    .expand()
                    .replace(lambda e: isinstance(e, GaussianAverage), lambda e: e.isserlis())
                )
            total.append(fixed * part)
        return Add(*total).expand()

    def price(self, x: Any, y: Any) -> Expr:
        """``<d^2 F/dx dy>``, the derivative by the covariance of ``x`` and ``y`` (twice that by a variance).

        Raises ValueError for what is not averaged over.

        >>> from sympy.abc import a, b, c, x, y
        >>> phi = Function("phi")
        >>> GaussianAverage(phi(x) * phi(y), {(x, x): a, (x, y): c, (y, y): b}).price(x, y)
        <Derivative(phi(x), x)*Derivative(phi(y), y)>_{x,y}
        """
        slots, body = self._slots(self.body)
        return self._back(body.diff(slots[self._variable(x)]).diff(slots[self._variable(y)]), slots)

    def hermite(self, n: int, variable: Any = None) -> Expr:
        """The coefficient of ``He_n(x / sqrt(<x x>))`` in the body, by default of the only variable.

        That is ``<F He_n> / n!``, and by Stein's lemma the average of a derivative.  Raises ValueError for a
        negative ``n``, or if there are several variables and none is chosen.

        >>> from sympy import Max
        >>> from sympy.abc import a, x
        >>> phi = Function("phi")
        >>> GaussianAverage(phi(x), {(x, x): a}).hermite(2)
        a*<Derivative(phi(x), (x, 2))>_{x}/2
        >>> [GaussianAverage(Max(0, x), {(x, x): 1}).hermite(n).doit() for n in range(4)]
        [sqrt(2)/(2*sqrt(pi)), 1/2, sqrt(2)/(4*sqrt(pi)), 0]
        """
        if n < 0:
            raise ValueError(f"n = {n}: the order of a Hermite polynomial is not negative")
        if variable is None and len(self.variables) != 1:
            raise ValueError(f"choose a variable: one of {', '.join(map(str, self.variables))}")
        x = self._variable(self.variables[0] if variable is None else variable)
        slots, body = self._slots(self.body)
        for _ in range(n):
            body = Add(*[self.covariance(x, y) * body.diff(slot) for y, slot in slots.items()])
        terms = []
        for term in Add.make_args(body.expand()):
            fixed, rest = term.as_independent(*slots.values(), as_Add=False)
            terms.append(fixed * self._back(rest, slots))
        return Add(*terms) / (factorial(n) * self.covariance(x, x) ** Rational(n, 2))

    def around_independence(self, x: Any, y: Any, order: int) -> Expr:
        """The Taylor polynomial in the covariance of ``x`` and ``y`` up to ``order`` (Mehler's expansion).

        >>> from sympy.abc import a, b, c, x, y
        >>> f, g = Function("f"), Function("g")
        >>> GaussianAverage(f(x) * g(y), {(x, x): a, (x, y): c, (y, y): b}).around_independence(x, y, 1)
        c*<Derivative(f(x), x)>_{x}*<Derivative(g(y), y)>_{y} + <f(x)>_{x}*<g(y)>_{y}
        """
        i, j = (self.variables.index(sympify(v)) for v in (x, y))
        c, apart = self.matrix[i, j], self.matrix.as_mutable()
        apart[i, j] = apart[j, i] = S.Zero
        slots, body = self._slots(self.body)
        first, second = slots[self.variables[i]], slots[self.variables[j]]
        terms = []
        for n in range(order + 1):
            back = {d: v for v, d in slots.items()}
            at_zero = GaussianAverage(body.xreplace(back), self.variables, apart).doit()
            terms.append(c**n / factorial(n) * at_zero)
            body = body.diff(first).diff(second)
        return Add(*terms)

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


__all__ = ["Function", "GaussianAverage"]
