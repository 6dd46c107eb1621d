"""Averages of functions with kinks of Gaussian variables, by quadrature in panels between the kinks.

Functions of one or two variables: analytic ones are summed by the trapezoidal rule; those with kinks or jumps
by Gauss-Legendre points in panels that end at the kinks, where the inner panels depend on the outer variable
and the outer panels shrink towards each kink. The number of points rises until two results agree.

Products of three or more functions: one variable after the other. Conditional on the previous ones each
variable is normal, and panels end at its kinks. The last variable is averaged over first, as a function of
its conditional mean, which is smooth. The order of the panels rises until two results agree. Variables must
not be nearly dependent, because conditional means would then vary too sharply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import (
    Abs,
    Contains,
    Derivative,
    DiracDelta,
    Dummy,
    Expr,
    Heaviside,
    I,
    Lambda,
    Max,
    Min,
    Mod,
    Mul,
    Piecewise,
    S,
    Symbol,
    SympifyError,
    ceiling,
    floor,
    frac,
    lambdify,
    nan,
    oo,
    sign,
    simplify,
    solveset,
    zoo,
)
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational

from derive.calculus.symbols import converted
from numerics.averages.lattice import FARTHEST, Function, cholesky, reach_of, tabulated
from numerics.errors import NotConverged, SpecError, Unserved

Array = NDArray[np.float64]

REACH = 12.0
"""Least range of integration in standard deviations; the range is larger for functions that grow fast."""
STEP = 0.75
"""Spacing, in standard deviations, of the points at which the range of integration is chosen."""
SAME = 1e-14
"""Two variables count as one if one minus their squared correlation is smaller."""
GRADES = 36
"""Number of edges of outer panels on each side of a kink, at the distances 1, 1/2, 1/4, ..."""
ROWS = 64
"""Largest number of points of the outer variable that are summed at once, to save memory."""


@dataclass(frozen=True)
class Moment:
    """Average of an expression in one or two Gaussian variables of mean zero.

    ``variables`` are the one or two symbols of ``expr`` that are Gaussian. The object is called with their
    covariance and a tolerance.
    """

    expr: Expr
    variables: tuple[Expr, ...]

    @cached_property
    def slots(self) -> tuple[Symbol, Symbol]:
        """Two real symbols that replace the Gaussian variables in :attr:`body`."""
        return Dummy("x", real=True), Dummy("y", real=True)

    @cached_property
    def body(self) -> Expr:
        """The expression that is averaged, with the symbols :attr:`slots` in place of the variables."""
        return self.expr.xreplace(dict(zip(self.variables, self.slots, strict=False)))

    @cached_property
    def function(self) -> Callable[..., Any]:
        """The expression that is averaged, as a NumPy function of two arrays.

        The arrays are the values of both variables. With one variable the values of the second array
        are not used, but it must be given.
        """
        f = lambdify(self.slots, self.body, ["numpy", "scipy"], cse=True)

        def function(x: Array, y: Array) -> Array:
            # A Piecewise with a condition that combines inequalities of both variables needs arrays of equal
            # shapes. Functions without a Piecewise take less time if the arrays are not broadcast.
            values = f(*np.broadcast_arrays(x, y)) if self.body.has(Piecewise) else f(x, y)
            return np.broadcast_to(np.asarray(values, dtype=float), np.broadcast(x, y).shape)

        return function

    @cached_property
    def kinks(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Values of the first and of the second variable at which the function may not be smooth.

        With one variable the second tuple is empty. Raises Unserved as :func:`kinks_of` does.
        """
        x, y = self.slots
        return kinks_of(self.body, x), kinks_of(self.body, y)

    def __call__(self, first: float, second: float, cross: float, accuracy: float) -> tuple[float, float]:
        """Return the Gaussian average of the expression and its error, for a given covariance.

        These are the first two numbers of :meth:`averages`, which takes the same arguments.

        >>> from sympy import Heaviside
        >>> from sympy.abc import a, b
        >>> value, _ = Moment(Heaviside(a) * Heaviside(b), (a, b))(1.0, 4.0, 1.0, 1e-12)
        >>> print(f"{value:.12f}")  # an orthant: 1/4 + arcsin(1/2)/(2 pi)
        0.333333333333
        """
        value, error, _ = self.averages(first, second, cross, accuracy)
        return value, error

    def averages(
        self, first: float, second: float, cross: float, accuracy: float
    ) -> tuple[float, float, float]:
        """Return the average of the expression, its error, and the average of the absolute value.

        ``first`` and ``second`` are the variances of the variables, and ``cross`` is their covariance; with
        one variable only ``first`` matters. ``accuracy`` is the tolerance relative to the average of the
        absolute value. The error is absolute: the change of the average when the number of points rises for
        the last time, plus a tenth of the tolerance for the finite range. Raises
        :class:`~numerics.errors.NotConverged` if the largest number of points is not enough, or if the
        function grows too fast, and Unserved as :attr:`kinks` does.
        """
        deviations = float(np.sqrt(max(first, 0.0))), float(np.sqrt(max(second, 0.0)))
        product = deviations[0] * deviations[1]
        correlation = float(np.clip(cross / product, -1, 1)) if product > 0 else 0.0
        place = f"<{self.expr}> at variances {first:g}, {second:g} and correlation {correlation:g}"
        tol = max(accuracy, 1e-14) / 10
        variables = _Pair(*deviations, correlation, len(self.variables))
        reach = self.reach(variables, tol, place)
        rule = self.split if any(self.kinks) else self.smooth
        last = np.inf
        for count in (8, 12, 16) if any(self.kinks) else (40, 60, 90, 135, 200, 300, 450, 700, 1000):
            value, scale = rule(variables, reach, count)
            error = abs(value - last)
            if error <= accuracy * max(scale, 1e-300):
                return value, error + tol * scale, scale
            last = value
        raise NotConverged(
            f"{place}: the quadrature does not reach a relative error of {accuracy:g}; its last two results "
            f"differ by {error:.2g}"
        )

    def reach(self, variables: _Pair, tol: float, place: str) -> float:
        """Return the range of integration in standard deviations, at least REACH.

        Beyond it the integrand, the function times the density of x and y, is below a share ``tol`` of its
        maximum. Raises :class:`~numerics.errors.NotConverged`, with the words ``place``, if the integrand is
        not that small at FARTHEST standard deviations, or not finite at a test point within the range.
        """
        x = np.arange(STEP / 2, FARTHEST, STEP)
        x = np.concatenate([-x[::-1], x])
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            if variables.is_one:
                distance = np.abs(x)
                values = self.function(*variables.at(x)) * np.exp(-(x**2) / 2)
            else:
                distance = np.maximum(np.abs(x[:, None]), np.abs(x))
                density = np.exp(-(x[:, None] ** 2 + x**2) / 2)
                values = self.function(*variables.at(x[:, None], x)) * density
        finite = np.isfinite(values)
        sizes = np.abs(np.where(finite, values, 0.0))
        farthest = float(distance[sizes > tol * sizes.max()].max(initial=0.0)) + STEP
        if farthest >= min(FARTHEST, float(distance[~finite].min(initial=FARTHEST))):
            raise NotConverged(
                f"{place}: the quadrature has no range of integration within {FARTHEST:g} standard "
                "deviations, because the function grows too fast or is not finite there"
            )
        return max(REACH, farthest)

    def smooth(self, variables: _Pair, reach: float, count: int) -> tuple[float, float]:
        """Return the averages of the expression and of its absolute value by the trapezoidal rule.

        ``reach`` is the range in standard deviations. ``count`` is the number of points in each direction for
        a range of REACH, and the spacing is the same for all ranges.
        """
        x = np.linspace(-reach, reach, int(np.ceil(count * reach / REACH)))
        w = np.exp(-(x**2) / 2)
        w /= w.sum()
        if variables.is_one:
            values = self.function(*variables.at(x))
            return float(w @ values), float(w @ np.abs(values))
        values = self.function(*variables.at(x[:, None], x))
        return float(w @ values @ w), float(w @ np.abs(values) @ w)

    def split(self, variables: _Pair, reach: float, count: int) -> tuple[float, float]:
        """Return the averages of the expression and of its absolute value by panels between kinks.

        ``reach`` is the range in standard deviations. Each panel has ``count`` Gauss-Legendre points. With
        the correlation rho, ``<f> = sum_x w(x) sum_y w(y|x) f(x, rho x + sqrt(1 - rho^2) y)`` with panels in
        y that end at the kinks of the second argument.
        """
        deviations, correlation = (variables.first, variables.second), variables.correlation
        first = [c / deviations[0] for c in self.kinks[0] if deviations[0] > 0]
        second = [c / deviations[1] for c in self.kinks[1] if deviations[1] > 0]
        kinks_of_second = [c / correlation for c in second if abs(correlation) > 1e-300]
        x, w = graded((*first, *kinks_of_second), count, reach)
        if variables.is_one:
            values = self.function(*variables.at(x))
            return float(w @ values), float(w @ np.abs(values))
        total = np.zeros(2)
        for part in np.array_split(np.arange(len(x)), 1 + len(x) // ROWS):
            inner, weight = _points(second, correlation * x[part], variables.width, reach, *composite(count))
            values = weight * self.function(*variables.at(x[part, None], inner))
            total += [np.sum(w[part] @ values), np.sum(w[part] @ np.abs(values))]
        return float(total[0]), float(total[1])


@dataclass(frozen=True)
class _Pair:
    """One or two Gaussian variables of mean zero as functions of independent standard normal x and y.

    Attributes
    ----------
    first, second
        Standard deviations of the variables.
    correlation
        Correlation of the variables.
    count
        Number of variables, 1 or 2.
    """

    first: float
    second: float
    correlation: float
    count: int

    @property
    def is_one(self) -> bool:
        """Whether the variables depend on x alone: there is one, or two are equal up to a factor."""
        return self.count == 1 or 1 - self.correlation**2 < SAME

    @property
    def width(self) -> float:
        """Standard deviation of the second variable at a fixed first one, over its unconditional one."""
        return float(np.sqrt(1 - self.correlation**2))

    def at(self, x: Array, y: Array | float = 0.0) -> tuple[Array, Array]:
        """Return the values of both variables; y is not used if both variables depend on x alone."""
        if self.is_one:
            return self.first * x, np.sign(self.correlation) * self.second * x
        return self.first * x, self.second * (self.correlation * x + self.width * y)


@lru_cache(maxsize=8)
def composite(count: int, panels: int = 16) -> tuple[Array, Array]:
    """Return the points and weights of a composite Gauss-Legendre rule on (0, 1).

    The interval is divided into ``panels`` equal panels with ``count`` points each.
    """
    x, w = np.polynomial.legendre.leggauss(count)
    points = (np.arange(panels)[:, None] + (x + 1) / 2) / panels
    return points.ravel(), np.tile(w / 2 / panels, panels)


def graded(kinks: tuple[float, ...], count: int, reach: float = REACH) -> tuple[Array, Array]:
    """Return points and weights for a standard normal variable, in panels that shrink towards kinks.

    ``kinks`` are values of this variable. Points extend to ``reach``, rounded up to a whole number, on either
    side; kinks beyond them are ignored. Each panel has ``count`` Gauss-Legendre
    points; weights include the normal density.
    """
    x, w = np.polynomial.legendre.leggauss(count)
    reach = float(np.ceil(reach))
    edges = np.arange(-reach, reach + 0.5)
    for c in kinks:
        if abs(c) < reach:
            near = 2.0 ** -np.arange(GRADES)
            edges = np.concatenate([edges, [c], c + near, c - near])
    edges = np.unique(np.clip(edges, -reach, reach))
    low, high = edges[:-1, None], edges[1:, None]
    points = (low + (high - low) * (x + 1) / 2).ravel()
    weights = ((high - low) * w / 2).ravel()
    return points, weights * np.exp(-(points**2) / 2) / np.sqrt(2 * np.pi)


def kinks_of(e: Expr, x: Symbol) -> tuple[float, ...]:
    """Return the values of ``x`` at which an expression may not be smooth.

    They are the kinks and jumps of Max, Min, Abs, Heaviside, sign and cases (Piecewise) in it. Raises
    Unserved if they depend on another variable, or if no finite list of them is known.

    >>> z = Dummy("z", real=True)
    >>> kinks_of(Max(0, z) + Abs(z - 1), z), kinks_of(z**2, z)
    ((0.0, 1.0), ())
    """
    if jumping := [a for a in e.atoms(*STEPS) if x in a.free_symbols]:
        raise Unserved(
            f"{e} contains {jumping[0]}, whose jumps are not located; average over sampled paths, or "
            "use a function with finitely many kinks and without ceiling, floor, frac and Mod"
        )
    arguments: set[Expr] = set()
    for a in e.atoms(Max, Min):
        arguments |= {p - q for p in a.args for q in a.args if p != q}
    for a in e.atoms(Abs, Heaviside, sign):
        arguments.add(a.args[0])
    for a in e.atoms(Piecewise):
        for _, condition in a.args:
            arguments |= {c.lhs - c.rhs for c in comparisons(condition)}
    kinks: set[float] = set()
    for a in arguments:
        if x not in a.free_symbols:
            continue
        if a.free_symbols != {x}:
            raise Unserved(
                f"{e} may have a kink or a jump where {a} vanishes, and {a} depends on several variables; "
                "average over sampled paths instead"
            )
        roots = solveset(a, x, S.Reals)
        if not roots.is_FiniteSet:
            raise Unserved(
                f"{e} has kinks at the zeros of {a}, of which no finite list is known; average over sampled "
                "paths instead, or use a function with finitely many kinks"
            )
        kinks |= {float(r) for r in roots}
    return tuple(sorted(kinks))


STEPS = (ceiling, floor, frac, Mod)
"""Functions that jump at infinitely many values."""


def comparisons(condition: Any) -> set[Any]:
    """Return the comparisons, such as ``x < 1``, of which a condition of cases (Piecewise) consists.

    Raises Unserved for other conditions, such as ``Contains``.

    >>> from sympy.abc import x
    >>> comparisons((x > 0) & (x < 1)) == {x > 0, x < 1}
    True
    """
    if other := condition.atoms(Contains):
        raise Unserved(
            f"the condition {other.pop()} of a Piecewise is not a comparison; write it with <, <=, > or >="
        )
    return set(condition.atoms(Relational))


X = Dummy("x", real=True)
"""Symbol of all expressions in one variable."""


def expression(f: Any) -> Expr:
    """Return a function of one variable as an expression in the symbol `X`.

    The input is an expression in one symbol, a number, or a ``Lambda`` of one variable. Raises SpecError for
    other input, and as :func:`real_expression` does.

    >>> from sympy import tanh
    >>> from sympy.abc import h
    >>> expression(tanh(h)) == expression(Lambda(h, tanh(h))) == tanh(X)
    True
    """
    try:
        e = converted(f)
    except (SympifyError, TypeError):
        e = None
    slots = e.free_symbols if isinstance(e, Expr) else set()
    if isinstance(e, Lambda):
        slots, e = set(e.variables), e.expr
    if not isinstance(e, Expr) or len(slots | e.free_symbols) > 1:
        raise SpecError(
            "functions", str(f), "is not a function of one variable", "an expression in one symbol"
        )
    return real_expression("functions", e.xreplace(dict.fromkeys(slots, X)))


def real_expression(key: str, e: Expr) -> Expr:
    """Return an expression in real symbols, written without the imaginary unit.

    Raises SpecError, with the name ``key``, for infinite and undefined expressions, and for one that contains
    the imaginary unit and whose imaginary part is not zero.

    >>> from sympy import cos, exp
    >>> real_expression("body", exp(I * X) + exp(-I * X)) == 2 * cos(X)
    True
    """
    if e.has(nan, zoo) or e in (oo, -oo):
        raise SpecError(key, str(e), "contains an infinite or undefined number", REAL)
    if not e.has(I):
        return e
    real, imaginary = e.as_real_imag()
    if simplify(imaginary) != 0:
        raise SpecError(key, str(e), "has values that are not real numbers", REAL)
    return simplify(real)


REAL = "an expression with real and finite values"


@lru_cache(maxsize=512)
def is_smooth(e: Expr) -> bool:
    """Return whether an expression in the symbol `X` has no kinks, jumps or point masses.

    Poles, and singular points of powers and logarithms, do not count. An expression with a derivative that
    SymPy leaves unevaluated (``Derivative``) counts as not smooth.
    Raises Unserved as :func:`kinks_of` does.
    """
    return not e.has(Derivative, DiracDelta) and not kinks_of(e, X)


@lru_cache(maxsize=512)
def compiled(e: Expr) -> Callable[[Array], Array]:
    """Return an expression in `X` as a NumPy function of an array of values of `X`.

    A constant expression gives an array without axes, whatever the shape of the argument. Raises Unserved for
    an expression with a point mass, with an unknown function, or with a derivative that SymPy leaves
    unevaluated.
    """
    if e.has(Derivative, DiracDelta, AppliedUndef):
        raise Unserved(
            f"{e} cannot be evaluated: it contains DiracDelta, an unknown function, or a derivative that "
            "SymPy does not evaluate"
        )
    function = lambdify(X, e, ["numpy", "scipy"], cse=True)

    def values(x: Array) -> Array:
        return np.asarray(function(x), dtype=float)

    values.__name__ = str(e)  # messages name the function
    return values


ORDERS = (6, 8, 10, 12)
"""Numbers of Gauss-Legendre points in a panel, one after the other."""
PANELS = 6
"""Number of panels between two kinks."""
PAIR = 2
"""Largest number of variables of a function that does not factorise."""


def kinked_product(functions: Sequence[Expr], C: Array, rtol: float) -> tuple[float, float]:
    """Return the average of a product of functions of Gaussian variables, and its error.

    The functions may have kinks: ``functions`` are expressions in the symbol `X`, one for each variable.
    ``rtol`` is the tolerance relative to the average of the absolute value, and ``C`` the covariance of the
    variables, whose means are zero.

    Raises :class:`~numerics.errors.Unserved` for a point mass, for three or more variables with a singular
    ``C``, and as :func:`kinks_of` does; :class:`~numerics.errors.NotConverged` if ``rtol`` is not reached, or
    if the product grows too fast.
    """
    if len(functions) > PAIR:
        return nested([KinkedFunction(compiled(f), kinks_of(f, X)) for f in functions], C, rtol)
    slots = [Symbol(f"y{i}", real=True) for i in range(len(functions))]
    body = Mul(*[f.xreplace({X: y}) for y, f in zip(slots, functions, strict=True)])
    if body.has(DiracDelta):
        raise Unserved(
            f"{body} has a point mass (DiracDelta), and is not a product of piecewise polynomials with kinks "
            "at zero only; give such polynomials, or a function without DiracDelta"
        )
    return Moment(body, tuple(slots))(C[0, 0], C[-1, -1], C[0, -1], rtol)


@dataclass(frozen=True)
class KinkedFunction:
    """Function of one variable, and the values ``kinks`` at which it is not smooth."""

    function: Function
    kinks: tuple[float, ...]


def nested(functions: Sequence[KinkedFunction], covariance: Array, rtol: float) -> tuple[float, float]:
    """Return the average ``<prod_i f_i(u_i)>`` over Gaussian variables with a covariance, and its error.

    The u_i have mean zero, and each has one of the ``functions``, of which there must be at least two.
    ``rtol`` is the tolerance relative to the average of the absolute value.

    Raises :class:`~numerics.errors.NotConverged` if ``rtol`` is not reached, and
    :class:`~numerics.errors.Unserved` for a singular covariance.

    >>> step = KinkedFunction(lambda x: (x > 0) * 1.0, (0.0,))
    >>> value, _ = nested([step] * 3, np.full((3, 3), 0.5) + np.eye(3) / 2, 1e-10)
    >>> print(f"{value:.10f}")  # one in four numbers is the largest
    0.2500000000
    """
    factor = cholesky(covariance)
    if factor.rank < len(functions):
        raise Unserved(
            f"the average is of a product of {len(functions)} functions, some with kinks, whose variables "
            f"are combinations of {factor.rank} independent variables: for more than two functions, no "
            "variable may be a combination of others"
        )
    reordered = [functions[i] for i in factor.order]
    deviation = float(np.sqrt(np.diag(covariance).max()))
    tol = max(rtol, 1e-14) / 10
    reach = reach_of(tuple((f.function,) for f in functions), deviation, deviation, tol)
    last = _mean(reordered[-1], float(factor.L[-1, -1]), deviation * reach, reach, tol)
    before = np.inf
    for order in ORDERS:
        value, scale = _sum(reordered, factor.L, last, reach, order)
        error = abs(value - before)
        if error <= rtol * scale:
            return value, error + tol * scale
        before = value
    raise NotConverged(
        f"the average of a product of {len(functions)} functions, some with kinks, does not reach rtol = "
        f"{rtol:g}: the last two results of the quadrature differ by {error:.2g}; take a larger rtol"
    )


def _sum(
    functions: Sequence[KinkedFunction], L: Array, last: Function, reach: float, order: int
) -> tuple[float, float]:
    """Return the average of ``prod_j f_j(u_j)``, and the scale of its errors, by nested quadrature.

    ``functions`` are the f_j, and L is the lower triangular factor of the covariance of the u_j, so that
    ``u_j = L[j, :j] x + L[j, j] x_j``. The sum runs over all variables but the last. ``last`` gives the
    average of the last function at fixed other variables, as a function of the conditional mean
    ``L[-1, :-1] x``. Panels between kinks have ``order`` points each and extend to ``reach`` standard
    deviations. The scale is the average of the absolute value of the summand.
    """
    unit, share = composite(order, PANELS)
    total = scale = 0.0
    first, weights = _points(functions[0].kinks, np.zeros(1), float(L[0, 0]), reach, unit, share)
    start = weights[0] * functions[0].function(L[0, 0] * first[0])
    for x, w in zip(first[0], start, strict=True):  # points of the first variable, one by one to save memory
        points, value = np.array([[x]]), np.array([w])
        for j in range(1, len(functions) - 1):
            mean, width = points @ L[j, :j], float(L[j, j])
            inner, weights = _points(functions[j].kinks, mean, width, reach, unit, share)
            value = (value[:, None] * weights * functions[j].function(mean[:, None] + width * inner)).ravel()
            points = np.column_stack([np.repeat(points, inner.shape[1], axis=0), inner.ravel()])
        value = value * last(points @ L[-1, :-1])
        total += float(value.sum())
        scale += float(np.abs(value).sum())
    return total, scale


def _points(
    kinks: Sequence[float], mean: Array, width: float, reach: float, unit: Array, share: Array
) -> tuple[Array, Array]:
    """Return the points and weights of a quadrature over a normal variable, in panels between kinks.

    The arrays are ``(means, points)``. The variable has each of the conditional means ``mean`` (means,) and
    the standard deviation ``width``; points are in units of ``width`` from the mean, up to ``reach``, and
    weights include the normal density. ``unit`` and ``share`` are points and weights of a quadrature on (0,
    1), which each panel uses.
    """
    at = (np.array(kinks)[None, :] - mean[:, None]) / width
    ends = np.full((len(mean), 1), reach)
    edges = np.sort(np.concatenate([-ends, np.clip(at, -reach, reach), ends], axis=1), axis=1)
    low, size = edges[:, :-1, None], np.diff(edges, axis=1)[:, :, None]
    x = (low + size * unit).reshape(len(mean), -1)
    w = (size * share).reshape(len(mean), -1)
    return x, w * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)


def _mean(f: KinkedFunction, width: float, ends: float, reach: float, tol: float) -> Function:
    """Return the average ``<f(m + width x)>`` over a standard normal number x as a function of m.

    The function interpolates a table on ``|m| <= ends``. ``tol`` is its tolerance relative to the largest
    value. The averages are sums over panels up to ``reach`` standard deviations.
    """
    unit, share = composite(16, PANELS)

    def exact(m: Array) -> Array:
        x, w = _points(f.kinks, m, width, reach, unit, share)
        return np.asarray((w * f.function(m[:, None] + width * x)).sum(axis=1))

    return tabulated(exact, 1.01 * ends, width, tol)
