"""Averages of a theory that do not exist, because their integrand is not integrable.

The input is a derived theory. The outputs are the singular order parameters and scalars of the theory, each
with the power of its strongest singularity.
An average of ``|x - x0|^-p`` over a number with a smooth density exists for p < 1, its variance for p < 1/2.
Methods of solution check this before they run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from typing import Any

import numpy as np
from mpmath import mp
from numpy.typing import NDArray
from sympy import (
    Abs,
    Derivative,
    Expr,
    Integral,
    Pow,
    Rational,
    Subs,
    Sum,
    Symbol,
    cos,
    cot,
    coth,
    csc,
    csch,
    exp,
    lambdify,
    log,
    sec,
    sqf_part,
    tan,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.calculus.symbols import ell
from derive.program.language import Mean, Product
from derive.theory import Theory

Array = NDArray[np.float64]

FARTHEST, POINTS = 12.0, 4801
"""Largest value of a field at which zeros are searched, and number of points of the search grid."""

NEAR = 1e-6, 1e-9
"""Distances from a singularity at which the integrand is evaluated to measure its power."""

GENERIC = Rational(7310585, 10**7)
"""Value of all other fields and numbers, chosen without any special relation.

It is a fraction, because a float would round the coefficients of polynomials that it multiplies.
"""

DIGITS, LAST_STEP, MOST_STEPS = 240, 1e-12, 50
"""Decimal digits of numbers; size of the last step of Newton's method, and largest number of its steps.

Of a zero of order 16, the largest of a formula, rounding errors leave 15 digits.
"""

TOUCHING = 1e-2
"""Ratio of a least absolute value to those at neighbouring grid points below which it may be a zero."""

MPMATH = ({"DiracDelta": lambda *_: 0}, "mpmath")
"""Modules for numbers with many digits; a point at which a delta function is not zero is not evaluated."""

CLOSE = 0.01
"""Tolerance for measured powers; a logarithmic factor adds more, about 0.06, to the measured power."""


@dataclass(frozen=True)
class Singularity:
    """Singularity ``|field - at|^-power`` in the integrand of the order parameter or scalar ``name``."""

    name: str
    field: str
    at: float
    power: float

    @property
    def has_mean(self) -> bool:
        """Whether the average with this singularity is finite: the power is less than one.

        It must be less by more than CLOSE. A logarithmic factor adds about 0.06 to the measured power.
        """
        return self.power < 1 - CLOSE

    @property
    def has_variance(self) -> bool:
        """Whether the integrand with this singularity has a finite variance: the power is less than 1/2.

        It must be less by more than CLOSE. A logarithmic factor adds about 0.06 to the measured power.
        """
        return self.power < 0.5 - CLOSE

    def __str__(self) -> str:
        return f"{self.name} averages |{self.field} - {self.at:.3g}|^-{self.power:.2g}".replace(" - 0|", "|")


@lru_cache(maxsize=32)
def singularities(theory: Theory) -> tuple[Singularity, ...]:
    """Return the strongest singularity of each correlation and scalar of ``theory`` that has one.

    Parameters
    ----------
    theory : Theory
        At integer or symbolic depth; in steps or a flow.

    Returns
    -------
    tuple of Singularity
        Those with a power above 0.01, at most one for each name.

    Notes
    -----
    The integrand is taken as a function of one field at a time, with generic values of all other fields,
    after fields are replaced once by their equations where these contain no sums, integrals, derivatives or
    averages. The power is measured numerically, at fields up to 12 in size. Averages with responses are left
    out.

    Examples
    --------
    >>> from derive.program import mlp
    >>> from derive.theory import mean_field
    >>> from sympy import Abs, Function, Lambda, Symbol, sqrt
    >>> x = Symbol("x", real=True)
    >>> print(*singularities(mean_field(mlp(1, Lambda(x, sqrt(Abs(x)))))))
    G averages |h|^-1
    """
    positive = _not_negative(theory)
    explicit = _explicit(theory, positive)
    random = {str(e.lhs.func) for e in theory.equations} | {str(u.symbol.func) for u in theory.sources}
    strongest: dict[str, Singularity] = {}
    bodies = [(q.name, q.definition) for q in theory.order_parameters]
    bodies += [(str(e.lhs.func), e.rhs) for e in theory.scalars]
    for name, definition in bodies:
        for average in definition.atoms(Average):
            if average.has(Response):
                continue
            for e in _written_out(_fields_as_symbols(average.body, positive), explicit):
                for x in sorted((y for y in e.free_symbols if "[" in y.name), key=str):
                    label = x.name.partition("[")[0]
                    # Only a singularity in a random field makes an average singular. A scalar has one value,
                    # and its label is not in `random`.
                    for at, power in singular_powers(e, x) if label in random else ():
                        new = Singularity(name, label, at, power)
                        if power > CLOSE and (name not in strongest or power > strongest[name].power):
                            strongest[name] = new
    return tuple(strongest.values())


def _not_negative(theory: Theory) -> frozenset[str]:
    """Return the names of fields that are >= 0 by their definition, such as a variance over samples."""
    is_nonnegative: dict[str, bool] = {}
    # The program is read instead of the theory, because a field may be a sum of squares there, whose sign is
    # known; in the theory the squares are expanded.
    for d in theory.program.definitions:
        body = d.rhs.replace(lambda x: isinstance(x, Sum), lambda x: x.function)
        local = not d.evolves and not body.has(Product, Mean)
        holds = local and bool(_fields_as_symbols(body, frozenset()).is_nonnegative)
        is_nonnegative[d.name] = is_nonnegative.get(d.name, True) and holds
    return frozenset(name for name, holds in is_nonnegative.items() if holds)


def _fields_as_symbols(e: Expr, positive: frozenset[str]) -> Expr:
    """Replace each field, and each function of data, by a real symbol with its name and its layer.

    Integer arguments are kept like layers. Other indices are dropped: a correlation is taken at equal times
    and samples, where the product of a field with itself is a square.
    Symbols of the fields in ``positive`` are not negative.
    """

    def symbol(x: AppliedUndef) -> Symbol:
        layer = [str(a) for a in x.args if a.is_Integer or ell in a.free_symbols]
        kind = {"nonnegative": True} if str(x.func) in positive else {"real": True}
        return Symbol(f"{x.func}[{','.join(layer)}]", **kind)

    return e.replace(lambda x: isinstance(x, AppliedUndef), symbol)


def _explicit(theory: Theory, positive: frozenset[str]) -> dict[str, list[Expr]]:
    """Return the right-hand sides of some equations of fields, by name of the field.

    They are those without sums, integrals, derivatives and averages.
    A field has several right-hand sides if its layers have different equations. Fields in them are replaced
    by symbols as in :func:`_fields_as_symbols`; ``positive`` are names of fields that are never negative.
    """
    bodies: dict[str, list[Expr]] = {}
    for e in theory.equations:
        if isinstance(e.lhs, AppliedUndef) and not e.rhs.has(Sum, Integral, Derivative, Average):
            bodies.setdefault(str(e.lhs.func), []).append(_fields_as_symbols(e.rhs, positive))
    return bodies


def _written_out(e: Expr, explicit: dict[str, list[Expr]]) -> Iterator[Expr]:
    """Yield the expression ``e`` with each field replaced by the right-hand side of its equation.

    ``explicit`` holds the right-hand sides by name of the field. A field with several ones yields one
    expression for each; a field without any stays.
    """
    inside = [x for x in e.free_symbols if x.name.partition("[")[0] in explicit]
    ways = [explicit[x.name.partition("[")[0]] for x in inside]
    for way in product(*ways):
        yield e.xreplace(dict(zip(inside, way, strict=True)))


@lru_cache(maxsize=1000)
def singular_powers(e: Expr, x: Symbol) -> tuple[tuple[float, float], ...]:
    """Return the points where an expression may be singular in ``x``, each with its measured power p.

    The points are zeros of the bases of powers and of the arguments of logarithms. At a point x0 the
    expression behaves as ``|x - x0|^-p``. A point occurs once for each side; a side on which the expression
    is zero or not real is left out. p is about zero or negative if the expression is finite at x0. All other
    symbols have generic values. Numbers have DIGITS digits, because the terms of expressions such as
    ``x**2 - 2*x + 1`` cancel near a zero.

    >>> from sympy import Symbol, tan
    >>> x = Symbol("x", real=True)
    >>> [(float(round(at, 3)), round(power, 3)) for at, power in singular_powers(1 / (x - 1), x)]
    [(1.0, 1.0), (1.0, 1.0)]
    >>> len(singular_powers(tan(x), x))  # eight poles up to 12 in size
    16
    """
    if e.has(Derivative, Subs):  # no point is known for a function without an expression
        return ()
    e = e.replace(lambda y: isinstance(y, tan | cot | sec | csc), lambda y: y.rewrite(cos))
    e = e.replace(lambda y: isinstance(y, coth | csch), lambda y: y.rewrite(exp))
    bases = {p.base for p in e.atoms(Pow) if p.base.has(x) and not (p.exp.is_integer and p.exp.is_positive)}
    bases |= {y.args[0] for y in e.atoms(log) if y.has(x)}
    with mp.workdps(DIGITS):
        points = {round(float(at), 12): at for base in bases for at in _zeros(base, x)}
        if not points:
            return ()
        function, powers = _numerically(e, x, MPMATH), list[tuple[float, float]]()
        for name, at in sorted(points.items()):
            for side in (1, -1):
                far, near = (_size(function, at + side * mp.mpf(d)) for d in NEAR)
                if far > 0 and near > 0:
                    powers.append((name, float(mp.log(near / far) / mp.log(NEAR[0] / NEAR[1]))))
    return tuple(powers)


def _size(function: Callable[[Any], Any], at: Any) -> Any:
    """Return the absolute value of a function at a number of mpmath; 0 where it is not finite or not real."""
    try:
        value = mp.mpmathify(function(at))
    except (ValueError, TypeError, ArithmeticError):  # a logarithm of zero, a comparison of complex numbers
        return mp.zero
    return abs(value) if mp.isfinite(value) and not mp.im(value) else mp.zero


def _numerically(e: Expr, x: Symbol, modules: tuple[Any, ...] = ("numpy", "scipy")) -> Callable[[Any], Any]:
    """Return an expression as a numerical function of the symbol ``x`` alone, by the given ``modules``.

    Every other symbol is replaced by a generic number; the numbers differ, and begin at GENERIC.
    """
    numbers = {y: GENERIC + Rational(k, 10) for k, y in enumerate(sorted(e.free_symbols - {x}, key=str))}
    function: Callable[[Any], Any] = lambdify(x, e.subs(numbers), list(modules))
    return function


def _zeros(base: Expr, x: Symbol) -> list[Any]:
    """Return the real values of ``x`` at which an expression is zero, as numbers of mpmath.

    They are found on a grid up to FARTHEST in size: changes of sign, the ends of intervals in which the
    expression is zero, and smallest absolute values that are zero. Two zeros between two points of the grid
    may be missed. Poles and jumps at which the sign changes are returned too. Powers and absolute values
    around the expression are removed first, because they do not change its zeros. All other symbols have
    generic values.
    """
    while isinstance(base, Abs | Pow) and base.args[0].has(x):
        base = base.args[0]
    if base == x:
        return [mp.zero]
    if base.is_polynomial(x):
        base = sqf_part(base, x)  # a zero of even order becomes a change of sign
    function = _numerically(base, x)
    grid = np.linspace(0.0 if x.is_nonnegative else -FARTHEST, FARTHEST, POINTS)
    with np.errstate(all="ignore"):
        values = np.broadcast_to(np.asarray(function(grid), dtype=complex).real, grid.shape)
        near = [*_crossings(function, grid, values), *_least(function, grid, values)]
    derivatives = [_numerically(base.diff(x, k), x, MPMATH) for k in range(3 if near else 0)]
    return [_refined(derivatives, at, grid[1] - grid[0]) for at in near]


def _crossings(function: Callable[[Any], Any], grid: Array, values: Array) -> Iterator[float]:
    """Yield zeros of a function between points of a grid: changes of sign, and ends of intervals of zeros.

    ``values`` are those of the function on the ``grid``, both of shape (n,).
    """
    signs = np.sign(values)
    changes = np.flatnonzero((signs[:-1] != signs[1:]) & np.isfinite(values[:-1] + values[1:]))
    if not len(changes):
        return
    from scipy.optimize import bisect  # slow to import, and seldom used

    for k in changes:
        low, high = grid[k], grid[k + 1]
        # If the function has opposite signs at two neighbouring grid points, it crosses zero or jumps between
        # them. If it is zero at one of the two points only, the zeros (one point or an interval) end at this
        # point or between the two points.
        crossing = partial(_sign if signs[k] * signs[k + 1] else _is_zero, function)
        differ = crossing(low) * crossing(high) < 0
        yield bisect(crossing, low, high, xtol=1e-14) if differ else (low + high) / 2


def _sign(function: Callable[[Any], Any], at: float) -> float:
    """Return the sign of a function at a number."""
    return float(np.sign(complex(function(at)).real))


def _is_zero(function: Callable[[Any], Any], at: float) -> float:
    """Return 1 where a function is zero, and -1 elsewhere."""
    return 1.0 if _sign(function, at) == 0 else -1.0


def _least(function: Callable[[Any], Any], grid: Array, values: Array) -> Iterator[float]:
    """Yield the places where the absolute value of a function falls to nearly zero without a change of sign.

    ``values`` are those of the function on the ``grid``, both of shape (n,).
    """
    sizes, signs = np.abs(values), np.sign(values)
    alike = (signs[:-2] == signs[1:-1]) & (signs[1:-1] == signs[2:])
    least = np.flatnonzero(alike & (sizes[:-2] > sizes[1:-1]) & (sizes[1:-1] <= sizes[2:])) + 1
    if not len(least):
        return
    from scipy.optimize import minimize_scalar  # slow to import, and seldom used

    for k in least:
        found = minimize_scalar(
            lambda at: abs(complex(function(at))),
            bounds=(grid[k - 1], grid[k + 1]),
            method="bounded",
            options={"xatol": 1e-12},
        )
        if found.fun <= TOUCHING * max(sizes[k - 1], sizes[k + 1]):
            yield found.x


def _refined(derivatives: Sequence[Callable[[Any], Any]], at: float, step: float) -> Any:
    """Return the zero of a function near the number ``at``, with an error much less than the lengths NEAR.

    NEAR are the distances at which powers are measured. Newton's method for zeros of any order is used,
    ``x - f f'/(f'^2 - f f'')``, with the ``derivatives`` f, f' and f''. ``at`` itself is returned if the
    result is not closer to it than ``step``, as at a pole or a jump.
    """
    root = mp.mpf(at)
    try:
        for _ in range(MOST_STEPS):
            value, slope, curvature = (function(root) for function in derivatives)
            change = value and value * slope / (slope**2 - value * curvature)
            root -= change
            if abs(change) < LAST_STEP:
                break
    except (ValueError, TypeError, ArithmeticError):
        return mp.mpf(at)
    return mp.re(root) if abs(root - at) < step else mp.mpf(at)
