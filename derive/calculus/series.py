"""Truncated power series in one small parameter: arithmetic, Padé approximants, error estimates.

:class:`SeriesRing` adds, multiplies and inverts lists of coefficients up to a fixed order, with expressions
(:class:`PowerSeries`) or rational functions (:func:`solved_series`) as coefficients. Series of noncommutative
operator words are computed by :class:`derive.expansion.operator_words.Recursion`. Coefficients beyond the
order are unknown. Whether a series is even is read from its coefficients and never assumed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import gcd
from typing import Any, Generic, TypeVar

from sympy import QQ, Abs, Add, And, Expr, Max, Mul, Piecewise, Pow, S, Symbol, lambdify, latex, sympify
from sympy.concrete.expr_with_limits import ExprWithLimits
from sympy.core.function import AppliedUndef
from sympy.core.traversal import preorder_traversal
from sympy.polys.constructor import construct_domain
from sympy.polys.matrices import DomainMatrix
from sympy.polys.matrices.exceptions import DMNonInvertibleMatrixError
from sympy.polys.polyerrors import CoercionFailed

from derive.calculus.symbols import converted, gamma0
from derive.errors import NotApplicable

SeriesCoefficient = TypeVar("SeriesCoefficient")
PowerCoefficients = Sequence[Expr]
"""The coefficients of powers 0, 1, ... of the variable of a series."""


class SeriesRing(ABC, Generic[SeriesCoefficient]):
    """Base class of the arithmetic of truncated power series, lists of ``order + 1`` coefficients.

    Coefficients need not commute. A subclass defines their type: conversion from numbers, sums of products,
    and the inverse of a first coefficient.
    """

    order: int

    # -- coefficients ----------------------------------------------------------------------------------

    @abstractmethod
    def number(self, e: Any) -> SeriesCoefficient:
        """Convert an expression without the variable of the series to a coefficient."""

    @abstractmethod
    def total(self, *xs: Any) -> SeriesCoefficient:
        """Return the sum of several coefficients of a series."""

    def dot(self, pairs: Iterable[tuple[Any, Any]]) -> SeriesCoefficient:
        """Return the sum of ``a * b`` over pairs of coefficients, one order of a product of series."""
        return self.total(*[a * b for a, b in pairs])

    @abstractmethod
    def reciprocal(self, c: SeriesCoefficient) -> SeriesCoefficient:
        """Return ``1/c`` for a coefficient c of a series.

        Implementations may raise ValueError if the inverse does not exist.
        """

    # -- series ----------------------------------------------------------------------------------------

    def constant(self, c: SeriesCoefficient) -> list[SeriesCoefficient]:
        """Return the series of a constant: the coefficient ``c`` at order 0 and zeros at higher orders."""
        return [c, *[self.number(0) for _ in range(self.order)]]

    def add(self, *xs: Sequence[SeriesCoefficient]) -> list[SeriesCoefficient]:
        """Return the sum of truncated series, each a list of coefficients."""
        return [self.total(*[x[n] for x in xs]) for n in range(self.order + 1)]

    def mul(self, a: Sequence[SeriesCoefficient], b: Sequence[SeriesCoefficient]) -> list[SeriesCoefficient]:
        """Return the product of two truncated series, in this order: ``c_n = sum_k a_k b_(n-k)``."""
        return [self.dot((a[k], b[n - k]) for k in range(n + 1)) for n in range(self.order + 1)]

    def inverse(self, a: Sequence[SeriesCoefficient]) -> list[SeriesCoefficient]:
        """Return the series of ``1/a``: ``x_0 = 1/a_0`` and ``x_n = -x_0 sum_(k>0) a_k x_(n-k)``.

        Raises ValueError if the first coefficient has no inverse.
        """
        start = self.reciprocal(a[0])
        minus = self.dot([(self.number(-1), start)])
        result = [start]
        for n in range(1, self.order + 1):
            result.append(self.dot([(minus, self.dot((a[k], result[n - k]) for k in range(1, n + 1)))]))
        return result

    def power(self, a: Sequence[SeriesCoefficient], n: int) -> list[SeriesCoefficient]:
        """Return the power n of a truncated series a; n is an integer of either sign.

        A negative n raises ValueError if the first coefficient has no inverse.
        """
        base = self.inverse(a) if n < 0 else list(a)
        return reduce(self.mul, [base] * abs(n)) if n else self.constant(self.number(1))

    def evaluate(
        self, e: Expr, known: Callable[[Expr], Sequence[SeriesCoefficient] | None]
    ) -> list[SeriesCoefficient]:
        """Return the truncated series of an expression of sums, products and integer powers.

        ``known(x)`` returns the series of a subexpression x, or None if x is to be expanded further. An x of
        another form is converted to a constant by :meth:`number`.
        """
        given = known(e)
        if given is not None:
            return list(given)
        if isinstance(e, Add):
            return self.add(*[self.evaluate(x, known) for x in e.args])
        if isinstance(e, Mul):
            return reduce(self.mul, [self.evaluate(x, known) for x in e.args])
        if isinstance(e, Pow) and e.exp.is_Integer:
            return self.power(self.evaluate(e.base, known), int(e.exp))
        return self.constant(self.number(e))


class Expressions(SeriesRing[Expr]):
    """Arithmetic of truncated series with SymPy expressions as coefficients; a sum that cancels is zero."""

    def __init__(self, order: int) -> None:
        """Set the highest power that is kept."""
        self.order = order

    def number(self, e: Any) -> Expr:
        """Convert a number or expression to a SymPy expression, as coefficient of a series."""
        return sympify(e)

    def total(self, *xs: Expr) -> Expr:
        """Return the sum of several coefficients of a series, zero if it cancels when expanded."""
        value = Add(*xs)
        cancels = len(xs) > 1 and not value.is_Number and value.expand() == 0
        return S.Zero if cancels else sympify(value)

    def reciprocal(self, c: Expr) -> Expr:
        """Return ``1/c`` for a coefficient c of a series; raise ValueError for zero."""
        if c.expand() == 0:
            raise ValueError("cannot divide by a series whose coefficient of order 0 is zero")
        return Pow(c, -1)


class _Domain(SeriesRing[Any]):
    """Arithmetic of truncated series with coefficients in a field of rational functions (a SymPy domain)."""

    def __init__(self, field: Any, order: int) -> None:
        """Set the field of the coefficients and the highest power that is kept."""
        self.field, self.order = field, order

    def number(self, e: Any) -> Any:
        """Convert an expression to an element of the field of coefficients; raise TypeError if impossible."""
        try:
            return self.field.from_sympy(sympify(e))
        except (CoercionFailed, ValueError):
            raise TypeError(f"{e} is not a rational function with rational coefficients") from None

    def total(self, *xs: Any) -> Any:
        """Return the sum of several coefficients of a series."""
        return sum(xs, self.field.zero)

    def reciprocal(self, c: Any) -> Any:
        """Return ``1/c`` for a coefficient c of a series; raise ValueError for zero."""
        if not c:
            raise ValueError("cannot divide by a series whose coefficient of order 0 is zero")
        return self.field.one / c


WINDOW = 4
"""Number of last coefficients that the error estimate uses."""


@dataclass(frozen=True)
class PowerSeries:
    """Truncated power series: ``coefficients[n]`` multiplies ``variable**n``; higher orders are unknown.

    Raises ValueError for an empty list of coefficients, for coefficients that contain the symbol of the
    variable, and for a variable with several symbols or none.

    Parameters
    ----------
    coefficients : tuple of Expr
        The coefficients of orders 0, 1, ...: SymPy expressions without the variable, also noncommutative
        ones.
    variable : Expr
        A symbol, or an expression of one symbol such as ``1/nu``; gamma0 by default.

    Examples
    --------
    >>> from sympy import symbols
    >>> a, b = symbols("a b")
    >>> f = PowerSeries((1, 0, a, 0, b))
    >>> f.expr
    a*gamma0**2 + b*gamma0**4 + 1
    >>> (f * f).coefficient(4)
    a**2 + 2*b
    >>> f.step
    2
    """

    coefficients: tuple[Expr, ...]
    variable: Expr = gamma0

    def __post_init__(self) -> None:
        coefficients = tuple(converted(c) for c in self.coefficients)
        if not coefficients:
            raise ValueError("coefficients = (): a power series needs at least the coefficient of order 0")
        if len(self.variable.free_symbols) != 1:
            raise ValueError(f"variable = {self.variable}: must be an expression of one symbol")
        for n, c in enumerate(coefficients):
            if c.free_symbols & self.variable.free_symbols:
                raise ValueError(f"coefficients[{n}] = {c}: must not contain {self.symbol}")
        object.__setattr__(self, "coefficients", coefficients)

    # -- reading ---------------------------------------------------------------------------------------

    @property
    def symbol(self) -> Symbol:
        """The one symbol in ``variable``: gamma0, or nu if the variable is ``1/nu``."""
        return next(iter(self.variable.free_symbols))

    @property
    def order(self) -> int:
        """The highest power whose coefficient is known."""
        return len(self.coefficients) - 1

    @property
    def expr(self) -> Expr:
        """The truncated series as a polynomial in the variable."""
        return sympify(Add(*[c * self.variable**n for n, c in enumerate(self.coefficients)]))

    @property
    def lowest(self) -> int:
        """The lowest power with a coefficient that is not zero; 0 if all coefficients are zero."""
        return min(self.powers(), default=0)

    @property
    def step(self) -> int:
        """The greatest common divisor of the gaps between powers that occur: 2 for an even series.

        It is 1 if fewer than two powers occur, because one power does not determine the next.
        """
        return gcd(*[n - self.lowest for n in self.powers()]) or 1

    def powers(self) -> tuple[int, ...]:
        """Return the powers whose coefficients are not (structurally) zero.

        Returns
        -------
        tuple of int
            The powers in increasing order.
        """
        return tuple(n for n, c in enumerate(self.coefficients) if c != 0)

    def coefficient(self, n: int) -> Expr:
        """Return the coefficient of ``variable**n``.

        Parameters
        ----------
        n : int
            The power.

        Returns
        -------
        Expr
            The coefficient.

        Raises
        ------
        IndexError
            If ``n`` is negative, or beyond the order, where coefficients are unknown.
        """
        self._check(n)
        return self.coefficients[n]

    def truncate(self, n: int) -> PowerSeries:
        """Return the series up to ``variable**n``.

        Parameters
        ----------
        n : int
            The new order.

        Returns
        -------
        PowerSeries
            The series of order ``n``.

        Raises
        ------
        IndexError
            If ``n`` is negative or beyond the order.
        """
        self._check(n)
        return PowerSeries(self.coefficients[: n + 1], self.variable)

    def steps(self) -> tuple[Expr, ...]:
        """Return the coefficients at the powers ``lowest``, ``lowest + step``, ....

        Returns
        -------
        tuple of Expr
            The coefficients of the series in ``variable**step``.

        Examples
        --------
        >>> PowerSeries((0, 3, 0, 5, 0)).steps()
        (3, 5)
        """
        return self.coefficients[self.lowest :: self.step]

    def _check(self, n: int) -> None:
        """Raise IndexError unless the coefficient of order ``n`` is known."""
        if not 0 <= n <= self.order:
            raise IndexError(f"n = {n}: the series is known for orders 0 to {self.order}")

    # -- arithmetic ------------------------------------------------------------------------------------

    def map(self, change: Callable[[Expr], Any]) -> PowerSeries:
        """Return the series with a function applied to each coefficient.

        Parameters
        ----------
        change : callable
            A function from a coefficient to the new coefficient.

        Returns
        -------
        PowerSeries
            The series of the new coefficients.

        Examples
        --------
        >>> PowerSeries((1, Symbol("a"))).map(lambda c: c.subs("a", 3)).expr
        3*gamma0 + 1
        """
        return PowerSeries(tuple(change(c) for c in self.coefficients), self.variable)

    def subs(self, *args: Any, **options: Any) -> PowerSeries:
        """Return the series with a substitution in each coefficient.

        Parameters
        ----------
        *args, **options
            Arguments of :meth:`sympy.core.basic.Basic.subs`.

        Returns
        -------
        PowerSeries
            The series of the new coefficients.
        """
        return self.map(lambda c: c.subs(*args, **options))

    def __add__(self, other: Any) -> PowerSeries:
        return self._of(lambda ring, a, b: ring.add(a, b), self.coefficients, self._lift(other))

    def __mul__(self, other: Any) -> PowerSeries:
        return self._of(lambda ring, a, b: ring.mul(a, b), self.coefficients, self._lift(other))

    def __rmul__(self, other: Any) -> PowerSeries:
        return self._of(lambda ring, a, b: ring.mul(a, b), self._lift(other), self.coefficients)

    __radd__ = __add__

    def __neg__(self) -> PowerSeries:
        return self.map(lambda c: -c)

    def __sub__(self, other: Any) -> PowerSeries:
        return self.__add__(-other)

    def __rsub__(self, other: Any) -> PowerSeries:
        return (-self).__add__(other)

    def __pow__(self, power: int) -> PowerSeries:
        """Return an integer power; a negative one raises ValueError if the coefficient of order 0 is zero."""
        return self._of(lambda ring, a: ring.power(a, power), self.coefficients)

    def __truediv__(self, other: Any) -> PowerSeries:
        if isinstance(other, PowerSeries):
            return self.__mul__(other**-1)
        value = converted(other)
        if value.expand() == 0:
            raise ValueError(f"cannot divide the series {self} by {other}, which is zero")
        return self.__mul__(1 / value)

    def __rtruediv__(self, other: Any) -> PowerSeries:
        return (self**-1).__mul__(other)

    def _of(self, operation: Callable[..., list[Expr]], *xs: Sequence[Expr]) -> PowerSeries:
        """Return the series that ``operation(ring, *xs)`` computes from lists ``xs`` of coefficients.

        A list of n coefficients has the order n - 1. The result has the lowest order of the lists.
        """
        return PowerSeries(tuple(operation(Expressions(min(map(len, xs)) - 1), *xs)), self.variable)

    def _lift(self, other: Any) -> tuple[Expr, ...]:
        """Return the coefficients of ``other``; an expression without the variable is a constant series.

        Raises ValueError for a series in another variable and for an expression that contains the variable.
        """
        if isinstance(other, PowerSeries):
            if other.variable != self.variable:
                raise ValueError(
                    f"cannot combine a series in {self.variable} and a series in {other.variable}"
                )
            return other.coefficients
        value = converted(other)
        if value.free_symbols & self.variable.free_symbols:
            raise ValueError(f"{value} contains {self.symbol}: write it as a PowerSeries first")
        return (value, *[S.Zero] * self.order)

    # -- values ----------------------------------------------------------------------------------------

    def lambdify(self, *symbols: Symbol, modules: Any = None) -> Callable[..., Any]:
        """Return a function that evaluates the series for numbers or arrays.

        Parameters
        ----------
        *symbols : Symbol
            Arguments of the function after the symbol of the variable, which is always the first and is not
            listed; by default the free symbols of the coefficients in alphabetical order.
        modules : str, dict or list, optional
            As for ``sympy.lambdify``; ``[{"v": v}, "numpy"]`` also defines functions.

        Returns
        -------
        callable
            A function whose result has the common shape of its arguments.

        Raises
        ------
        ValueError
            If a free symbol is not among the arguments, an argument is listed twice or is the symbol of the
            variable, or a function has no definition.

        Examples
        --------
        >>> from sympy import exp
        >>> t = Symbol("t")
        >>> value = PowerSeries((exp(-t), 0, t)).lambdify(t, modules="math")
        >>> value(2, 0), value(0, 0)
        (1.0, 1.0)
        """
        free = set().union(*[c.free_symbols for c in self.coefficients])
        known = symbols or tuple(sorted(free, key=str))
        if self.symbol in known or len(set(known)) < len(known):
            raise ValueError(
                f"symbols = {known}: must be different symbols without {self.symbol}, which is always the "
                "first argument of the function and is not listed"
            )
        if missing := free - set(known):
            raise ValueError(f"lambdify needs {', '.join(sorted(map(str, missing)))} among its symbols")
        given = [modules] if isinstance(modules, dict) else modules if isinstance(modules, list) else []
        defined = {name for x in given if isinstance(x, dict) for name in x}
        if unknown := {x for c in self.coefficients for x in _functions(c) if str(x.func) not in defined}:
            raise ValueError(
                f"cannot evaluate {', '.join(sorted(map(str, unknown)))}: a function has no definition; "
                "define it in modules, as in modules=[{'phi': phi}, 'numpy']"
            )
        # Common subexpressions (cse) are not extracted if a coefficient contains a sum, an integral or an
        # average, because a common subexpression might contain a bound variable.
        bound = any(
            getattr(x, "is_averaged", isinstance(x, ExprWithLimits))
            for c in self.coefficients
            for x in preorder_traversal(c)
        )
        compiled = lambdify([self.symbol, *known], self._nested(), modules=modules, cse=not bound)
        compiled.__doc__ = f"Sum of {len(self.powers())} terms in {self.variable}."

        def evaluate(*values: Any) -> Any:
            return _shaped(compiled(*values), values)

        return evaluate

    def _nested(self) -> Expr:
        """Return the truncated series as nested products (Horner's form) in ``variable**step``."""
        z = self.variable**self.step
        value: Expr = S.Zero
        for c in reversed(self.steps()):
            value = c + z * value if value != 0 else c
        return sympify(self.variable**self.lowest * value)

    def error_estimate(self) -> Expr:
        """Estimate the truncation error, as an expression in the variable.

        It is infinite where the known coefficients do not determine it: for ``q z >= 1`` (see Notes), for a
        single coefficient, and if those in the numerator or the denominator of q vanish, as in 1 + 0 gamma0.
        It is an estimate and not a bound, because later coefficients may grow faster.

        Returns
        -------
        Expr
            The estimate.

        Notes
        -----
        The last terms are continued as a geometric series, ``E q z / (1 - q z)`` with ``z = variable**step``.
        For coefficients c of which N is the last, ``q**2 = max(|c[N]|, |c[N-1]|) / max(|c[N-2]|, |c[N-3]|)``.
        ``E`` is the larger of the last term and of ``q z`` times the term before it, so that one accidentally
        small coefficient does not make the estimate small. With three coefficients ``q = max(|c[2]|, |c[1]|)
        / max(|c[1]|, |c[0]|)``; with two, ``q = |c[1]| / |c[0]|`` and the estimate is the second term.

        Examples
        --------
        >>> PowerSeries((1, 0, 1, 0, 1)).error_estimate().subs(gamma0, S.Half)  # exact here
        1/48
        """
        sizes = [Abs(c) for c in self.steps()[-WINDOW:]]
        half, last = len(sizes) // 2, len(self.steps()) - 1
        if half == 0:
            return S.Infinity
        late, early = Max(*sizes[half:]), Max(*sizes[: len(sizes) - half])
        if late == 0 or early == 0:
            return S.Infinity
        q, z = Pow(late / early, S.One / half), Abs(self.variable) ** self.step
        front = Abs(self.variable) ** self.lowest * z**last
        missed = front * Max(sizes[-1], sizes[-2] * q) * q * z / (1 - q * z)
        if len(sizes) == 2:
            missed = front * sizes[-1]
        # The estimate is `missed` if late * z**half < early with z = Abs(variable)**step, because the
        # geometric series that continues the last terms then converges. Otherwise the estimate is infinite,
        # also at values of the symbols at which `late` is zero. `early` and `late` are the largest absolute
        # values in the first and in the last part of the last coefficients (at most WINDOW); the two parts
        # are `half` powers of z apart.
        return Piecewise((missed, And(late > 0, late * z**half < early)), (S.Infinity, True))

    def pade(self, m: int, n: int) -> Expr:
        """Return the Padé approximant [m/n] in ``z = variable**step``, times ``variable**lowest``.

        The approximant is exact if the coefficients are.

        Parameters
        ----------
        m, n : int
            Degrees of numerator and denominator in z (gamma0^2 for an even series).

        Returns
        -------
        Expr
            The approximant.

        Raises
        ------
        ValueError
            If ``m + n`` needs coefficients beyond the order, or a degree is negative.
        DegeneratePade
            If the equations for the denominator are singular.

        Examples
        --------
        >>> PowerSeries((1, 0, -1, 0, 1)).pade(0, 1)
        1/(gamma0**2 + 1)
        """
        above, below = pade(self.steps(), m, n)
        z = self.variable**self.step
        top = Add(*[c * z**k for k, c in enumerate(above)])
        return sympify(self.variable**self.lowest * top / Add(*[c * z**k for k, c in enumerate(below)]))

    # -- printing --------------------------------------------------------------------------------------

    def __str__(self) -> str:
        shown = [str(c * self.variable**n) for n, c in enumerate(self.coefficients) if c != 0]
        return " + ".join([*shown, f"O({self.variable ** self._missing()})"]).replace("+ -", "- ")

    def _repr_latex_(self) -> str:
        parts = []
        for n, c in enumerate(self.coefficients):
            if c == 0:
                continue
            power = latex(self.variable**n)
            bracket = rf"\left({latex(c)}\right)" if c.is_Add and n else latex(c)
            parts.append(latex(c) if n == 0 else power if c == 1 else f"{bracket} {power}")
        rest = rf"O\left({latex(self.variable ** self._missing())}\right)"
        return "$\\displaystyle " + " + ".join([*parts, rest]).replace("+ -", "- ") + "$"

    def _missing(self) -> int:
        """Return the lowest power above the order that differs from ``lowest`` by a multiple of ``step``.

        A printed series ends with O(variable to this power): the next even power for an even series.
        """
        step, n = self.step, self.order + 1
        return n + (self.lowest - n) % step if self.powers() else n


def _functions(e: Expr) -> set[AppliedUndef]:
    """Return the undefined functions in an expression, without those that are variables of averages."""
    averages = [x for x in preorder_traversal(e) if getattr(x, "is_averaged", False)]
    return set(e.atoms(AppliedUndef)) - {v for x in averages for v in getattr(x, "variables", ())}


def _shaped(result: Any, values: Sequence[Any]) -> Any:
    """Return an evaluated result broadcast to the common shape of the arguments ``values``.

    Compiled functions of SymPy return constants as scalars.
    """
    arrays = [v for v in values if hasattr(v, "__array_namespace__") and v.shape]
    if not arrays or (len(arrays) == 1 and getattr(result, "shape", ()) == arrays[0].shape):
        return result
    xp = arrays[0].__array_namespace__()
    full = xp.broadcast_arrays(xp.asarray(result), *arrays)[0]
    return xp.asarray(full, copy=True) if full.shape != getattr(result, "shape", ()) else result


# -- series of unknowns --------------------------------------------------------------------------------------


def solved_series(equations: Mapping[Symbol, Expr], x: Symbol, n: int) -> dict[Symbol, list[Expr]]:
    """Return the power series in ``x`` to order n of unknowns defined by ``unknown = right-hand side``.

    The right-hand sides are rational in the unknowns, x and other symbols. They are iterated from zero until
    nothing changes. Raises :class:`NotApplicable` if the iterations do not fix one order after the other, if
    a denominator vanishes at order 0, or if a right-hand side is not rational with rational coefficients.

    >>> from sympy.abc import H, a, x
    >>> solved_series({H: 1 + a * x * H**2}, x, 3)[H]
    [1, a, 2*a**2, 5*a**3]
    """
    others = {y for e in equations.values() for y in e.free_symbols} - {x, *equations}
    field = QQ.frac_field(*sorted(others, key=str)) if others else QQ
    ring = _Domain(field, n)
    values: dict[Expr, list[Any]] = {y: ring.constant(field.zero) for y in equations}
    values[x] = [field.zero, field.one, *[field.zero] * n][: n + 1]
    for _ in range(len(equations) * (n + 2)):
        before = dict(values)
        for y, e in equations.items():
            try:
                values[y] = ring.evaluate(e, values.get)
            except TypeError as reason:
                raise NotApplicable(
                    f"the power series of {y} = {e} in {x} is not derived: {reason} in the unknowns, {x} and "
                    "other symbols"
                ) from None
            except ValueError:
                raise NotApplicable(
                    f"the power series in {x} are not derived: the iteration starts with all unknowns equal "
                    "to zero, and in one of its steps a denominator of the equations vanishes at order 0"
                ) from None
        if before == values:
            return {y: [field.to_sympy(c) for c in values[y]] for y in equations}
    raise NotApplicable(
        f"the power series of {', '.join(map(str, equations))} in {x} are not derived order by order: "
        "iterations of their equations must fix one order after the other, as they do if each unknown on a "
        f"right-hand side has the factor {x}"
    )


# -- rational approximants -----------------------------------------------------------------------------------


class DegeneratePade(ValueError):
    """Error: the denominator of a Padé approximant is not determined by its equations."""


def pade(coefficients: Sequence[Expr], m: int, n: int) -> tuple[list[Expr], list[Expr]]:
    """Return the coefficients of numerator and denominator of the Padé approximant [m/n], lowest power first.

    The numerator has m + 1 coefficients; the denominator has n + 1 and the constant term 1. Highest
    coefficients may be zero. The quotient agrees to order m + n with the series of the given coefficients of
    powers 0, 1, 2, ... Raises ValueError for negative degrees or too few coefficients,
    :class:`DegeneratePade` if the equations for the denominator are singular.

    >>> pade([1, 1, S.Half], 1, 1)  # exp(z) = (1 + z/2) / (1 - z/2) + ...
    ([1, 1/2], [1, -1/2])
    >>> pade([1, 1, 1, 1, 1], 2, 2)
    Traceback (most recent call last):
    derive.calculus.series.DegeneratePade: Padé approximant [2/2]: is not determined, ...
    """
    if m < 0 or n < 0:
        raise ValueError(
            f"Padé approximant [{m}/{n}]: the degrees of numerator and denominator must not be negative"
        )
    if m + n >= len(coefficients):
        raise ValueError(
            f"Padé approximant [{m}/{n}]: needs {m + n + 1} coefficients of the series; there are "
            f"{len(coefficients)}"
        )
    known = [converted(c) for c in coefficients]

    def at(k: int) -> Expr:
        """Return the coefficient of power k in the given series, zero for negative k."""
        return known[k] if k >= 0 else S.Zero

    below = [S.One, *_solved(known, m, n)]
    above = [sum((below[j] * at(k - j) for j in range(min(k, n) + 1)), S.Zero) for k in range(m + 1)]
    return above, below


def _solved(known: list[Expr], m: int, n: int) -> list[Expr]:
    """Return the denominator's coefficients b_1, ..., b_n of a Padé approximant with ``b_0 = 1``.

    They solve ``sum_j b_j c_(k-j) = -c_k`` for k = m+1, ..., m+n, where c are the ``known`` coefficients.
    """
    if n == 0:
        return []
    domain, values = construct_domain(known[: m + n + 1], field=True)

    def at(k: int) -> object:
        """Return the coefficient of power k in the given series as a field element, zero for negative k."""
        return values[k] if k >= 0 else domain.zero

    rows = [[at(m + i - j) for j in range(1, n + 1)] for i in range(1, n + 1)]
    right = [[-at(m + i)] for i in range(1, n + 1)]  # type: ignore[operator]
    matrix = DomainMatrix(rows, (n, n), domain)
    try:
        solution = matrix.lu_solve(DomainMatrix(right, (n, 1), domain))
    except DMNonInvertibleMatrixError:
        raise DegeneratePade(
            f"Padé approximant [{m}/{n}]: is not determined, because the equations for its denominator are "
            "singular"
        ) from None
    return [domain.to_sympy(x) for x in solution.to_list_flat()]
