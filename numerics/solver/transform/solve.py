"""Solution of the equations of Laplace transforms on a contour, and their inversion at given times.

At every rate z the responses are roots of algebraic equations with sums over modes. They are analytic off the
negative axis and known at large z, so that Newton's method follows them from there along the contour.
Correlations C at two rates z and z' solve a linear system, ``C = constant + matrix C``. Its entries are sums
over modes of a function of z times a function of z', so that they are computed as matrix products. The method
``transform`` uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Dummy, Expr, S, Sum, Symbol, lambdify, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.sums import opened
from derive.linear.transforms import Transforms, transforms, z, z_
from derive.theory import Theory
from numerics.errors import NotConverged
from numerics.experiment.checks import given_times
from numerics.experiment.numbers import Spectrum
from numerics.solver.linear.rows import RESOLVED
from numerics.solver.transform.contour import ComplexArray, Inversion, inversion

Array = NDArray[np.float64]

COUNTS = (12, 16, 20, 24, 28, 32)
"""Numbers of rates on each half of a hyperbola, one after the other until correlations converge."""

STEPS = 60
"""Largest number of Newton steps at one rate."""

CUTS = 12
"""Largest number of times that the distance to the next rate is halved."""

ROUNDING = 1e-13
"""Relative change of responses at which Newton's method has converged."""

FURTHEST, CLOSE = 0.7, 0.7
"""Longest step of the continuation: logarithm of the ratio of two rates, and relative change of responses."""

TINY = 1e-300
"""Responses below this size count as zero."""

FAR = 1e6
"""Ratio of the rate at which the continuation of responses starts to a scale of the problem.

The scale is the largest of 1, the attributes of modes, and the rates of the contour."""


@dataclass(frozen=True)
class TransformSolved:
    """Solution by Laplace transforms.

    ``correlations`` at two times by name have shape ``(times, times)``. ``error`` is the largest relative
    change of equal-time correlations when rates were last added, and ``rates`` the number of rates of the
    last contour.
    """

    correlations: Mapping[str, Array]
    error: float
    rates: int


def solve_transforms(
    theory: Theory,
    times: Array,
    *,
    numbers: Mapping[Symbol, float],
    units: Spectrum | None = None,
    rtol: float = 1e-8,
) -> TransformSolved:
    """Return the correlations of a linear theory of a flow at all pairs of times.

    ``times`` increase, from 0 or later. ``numbers`` are the values of symbols; ``units`` are the attributes
    of the modes of the data and the numbers of modes that have them, or None for a theory without modes.
    Rates are added until no equal-time correlation changes by more than ``rtol``, relative to its value at
    each time.

    Raises :class:`~derive.errors.NotApplicable` for a theory whose transforms are not derived, such as one
    with kernels that depend on both times and not on their difference alone, SpecError for times that are not
    finite or do not increase from 0 or later, and :class:`~numerics.errors.NotConverged` if Newton's method
    fails or the correlations do not converge.
    """
    times = given_times(times, steps=False)
    system = _System(transformed(theory), numbers, units)
    before: Mapping[str, Array] | None = None
    change = np.inf
    for count in COUNTS:
        contour = inversion(times, system.fastest, count)
        correlations = system.correlations(contour)
        if before is not None:
            change = max(_change(before[name], x) for name, x in correlations.items())
            if change <= rtol:
                return TransformSolved(correlations, change, len(contour.rates))
        before = correlations
    raise NotConverged(
        f"solver.rtol = {rtol:.1e}: correlations from Laplace transforms at {len(contour.rates)} rates "
        f"still change by {change:.1e}; use a larger rtol"
    )


def _change(old: Array, new: Array) -> float:
    """Return the largest relative change of a correlation at equal times, between two solutions.

    ``old`` and ``new`` have shape (times, times), and were computed with different numbers of rates.
    Changes are relative to the new value at the same time, plus RESOLVED times the largest one.
    """
    a, b = np.diagonal(old), np.diagonal(new)
    size = np.abs(b) + RESOLVED * np.abs(b).max(initial=0.0)
    return float(np.max(np.abs(a - b) / np.where(size > 0, size, 1.0)))


@lru_cache(maxsize=64)
def transformed(theory: Theory) -> Transforms:
    """Derive the equations of the Laplace transforms of a theory; results are cached."""
    return transforms(theory)


class _System:
    """Equations of Laplace transforms with numbers inserted, compiled as functions of arrays.

    ``units`` are the attributes of the modes and the numbers of modes that have them; None without modes.
    """

    def __init__(
        self, transforms: Transforms, numbers: Mapping[Symbol, float], units: Spectrum | None
    ) -> None:
        self.transforms, self.units = transforms, units
        self.numbers = {str(x): v for x, v in numbers.items()}
        self.names = [e.lhs for e in transforms.responses]
        self.letters = [Dummy(str(x.func)) for x in self.names]
        self.counts = np.ones(1) if units is None else units.counts
        attributes = {} if units is None else units.attributes
        self.attributes = {name: np.asarray(a, dtype=complex) for name, a in attributes.items()}
        sizes = [float(np.abs(a).max(initial=0.0)) for a in self.attributes.values()]
        self.fastest = max([1.0, *sizes])
        self.rate = Dummy("z")
        self.sums: dict[Expr, Dummy] = {}
        self.sides = [
            e.rhs.replace(lambda x: isinstance(x, Sum), self._symbol_of_sum) for e in transforms.responses
        ]
        self.value = self._function(self.sides, [*self.sums.values()])
        slopes = [[e.diff(x) for x in self.letters] for e in map(self._with_symbols, self.sides)]
        self.direct = self._function([x for row in slopes for x in row], [*self.sums.values()])
        chain = [[self._with_symbols(e).diff(x) for x in self.sums.values()] for e in self.sides]
        self.chain = self._function([x for row in chain for x in row], [*self.sums.values()])
        bodies = [self._with_symbols(opened(total)[0]) for total in self.sums]
        self.summands = self._function(bodies)
        self.slopes = self._function([e.diff(x) for e in bodies for x in self.letters])

    # -- functions of arrays -----------------------------------------------------------------------------

    def _symbol_of_sum(self, total: Sum) -> Dummy:
        """Return a symbol that stands for a sum over modes; equal sums have the same symbol."""
        return self.sums.setdefault(total, Dummy(f"sum_{len(self.sums)}"))

    def _with_symbols(self, e: Expr) -> Expr:
        """Return an expression in which plain symbols replace the responses and the rates z and z'.

        Both rates become the same symbol, because each function that is compiled depends on only one of them.
        """
        e = sympify(e)
        at = {
            x.xreplace({z: y}): letter
            for x, letter in zip(self.names, self.letters, strict=True)
            for y in (z, z_)
        }
        return e.xreplace(at).xreplace({z: self.rate, z_: self.rate})

    def _function(self, es: list[Expr], more: list[Dummy] | None = None) -> Callable[..., list[Any]]:
        """Compile expressions as a function of the rate, the responses, and the symbols ``more``.

        The function returns one value for each expression; attributes of the modes are inserted as arrays.
        """
        es = [self._with_symbols(e) for e in es]
        atoms = sorted({a for e in es for a in e.atoms(AppliedUndef)}, key=str)
        place = {a: Dummy(str(a.func)) for a in atoms}
        given = [self.attributes[str(a.func)] for a in atoms]
        es = [e.xreplace(place) for e in es]
        numbers = sorted(
            {x for e in es for x in e.free_symbols}
            - {self.rate, *self.letters, *place.values(), *(more or ())},
            key=str,
        )
        es = [e.xreplace({x: sympify(self.numbers[str(x)]) for x in numbers}) for e in es]
        call = lambdify([self.rate, *self.letters, *(more or ()), *place.values()], es, "numpy")
        return lambda *arguments: call(*arguments, *given)

    # -- responses ---------------------------------------------------------------------------------------

    def responses(self, contour: Inversion) -> ComplexArray:
        """Return the responses at the rates of a contour, shape ``(rates, responses)``."""
        responses = np.empty((len(contour.rates), len(self.names)), dtype=complex)
        place = complex(FAR * max(self.fastest, float(np.abs(contour.rates).max())))
        here = self.far(place)
        near = place, here
        for i, rate in enumerate(map(complex, contour.rates)):
            place, here = near if i in contour.anchors else (place, here)
            place, here = rate, self.followed(place, here, rate)
            responses[i] = here
            if i in contour.anchors or not contour.anchors or i < contour.anchors[0]:
                near = place, here
        return responses

    def far(self, rate: complex) -> ComplexArray:
        """Return the responses at a large rate z, by fixed-point iteration of their equations.

        It converges if sums over the past are small corrections there. Raises NotConverged otherwise.
        """
        here = np.zeros(len(self.names), dtype=complex)
        for _ in range(STEPS):
            new = here - self.residual(rate, here)
            if np.abs(new - here).max(initial=0.0) <= ROUNDING * np.abs(new).max(initial=0.0):
                return new
            here = new
        raise NotConverged(
            f"Laplace transforms of responses are not found at the rate z = {rate}: their iteration does "
            "not converge; use solver.method = 'march'"
        )

    def followed(self, place: complex, here: ComplexArray, rate: complex, cuts: int = CUTS) -> ComplexArray:
        """Return the responses at ``rate``, continued by Newton's method from those at the rate ``place``.

        ``here`` are the responses at ``place``. If the two rates are too far apart, Newton's method fails or
        the responses change too much, a rate between them is inserted, at most ``cuts`` times in succession.
        Raises NotConverged after that.
        """
        if abs(np.log(rate / place)) <= FURTHEST:
            new = self.newton(rate, here)
            if new is not None and np.abs(new - here).max() <= CLOSE * np.abs(here).max():
                return new
        if not cuts:
            raise NotConverged(
                f"Laplace transforms of responses are not found at the rate z = {rate}: Newton's method "
                "fails along the contour; use solver.method = 'march'"
            )
        middle = complex(np.exp((np.log(place) + np.log(rate)) / 2))
        half = self.followed(place, here, middle, cuts - 1)
        return self.followed(middle, half, rate, cuts - 1)

    def newton(self, rate: complex, here: ComplexArray) -> ComplexArray | None:
        """Return the responses at a rate by Newton's method from ``here``; None if it does not converge."""
        last = np.inf
        for _ in range(STEPS):
            gap, slope = self.residual(rate, here), self.slope(rate, here)
            try:
                move = np.linalg.solve(slope, gap)
            except np.linalg.LinAlgError:
                return None
            here = here - move
            size = float(np.max(np.abs(move) / np.maximum(np.abs(here), TINY), initial=0.0))
            if not np.isfinite(size) or size > 2 * last + 1:
                return None
            if size <= ROUNDING or (size <= ROUNDING**0.5 and size >= last / 2):
                return here
            last = size
        return None

    def totals(self, rate: complex, here: ComplexArray) -> list[complex]:
        """Return the sums over modes that occur in the equations of the responses.

        They are evaluated at the rate z = ``rate``, with ``here`` for the values of the responses.
        """
        return [complex(np.sum(self.counts * x)) for x in self.summands(rate, *here)]

    def residual(self, rate: complex, here: ComplexArray) -> ComplexArray:
        """Return the responses ``here`` minus the right-hand sides of their equations at a rate."""
        return np.asarray(here - np.array(self.value(rate, *here, *self.totals(rate, here)), dtype=complex))

    def slope(self, rate: complex, here: ComplexArray) -> ComplexArray:
        """Return the derivative of (responses minus right-hand sides of their equations) by the responses.

        It is the Jacobian for Newton's method, at a rate z and for the responses ``here``; shape
        ``(responses, responses)``.
        """
        n, count = len(self.names), len(self.sums)
        totals = self.totals(rate, here)
        direct = np.array(self.direct(rate, *here, *totals), dtype=complex).reshape(n, n)
        chain = np.array(self.chain(rate, *here, *totals), dtype=complex).reshape(n, count)
        slopes = [complex(np.sum(self.counts * x)) for x in self.slopes(rate, *here)]
        return np.asarray(np.eye(n) - direct - chain @ np.array(slopes, dtype=complex).reshape(count, n))

    # -- correlations ------------------------------------------------------------------------------------

    def correlations(self, contour: Inversion) -> dict[str, Array]:
        """Return every correlation at all pairs of times, by name.

        At each pair of rates it solves ``C_i = constant_i + sum_j matrix_ij C_j``, where the entries are sums
        over modes.
        """
        half = self.responses(contour)
        rates = np.concatenate([contour.rates, contour.rates.conj()])
        here = np.concatenate([half, half.conj()])
        equations = self.transforms.correlations
        at = {e.symbol: i for i, e in enumerate(equations)}
        n, shape = len(equations), (len(contour.rates), len(rates))
        constant = np.zeros((*shape, n), dtype=complex)
        matrix = np.zeros((*shape, n, n), dtype=complex)
        for i, e in enumerate(equations):
            for x in e.terms:
                counts = np.ones(1) if e.units is None else self.counts
                left = self.at_rates(x.left, contour.rates, half, len(counts))
                right = self.at_rates(x.right, rates, here, len(counts))
                weight = float(self.function_of_numbers(x.factor)) * counts
                value = (left * weight) @ right.T
                if x.correlation == S.One:
                    constant[..., i] += value
                else:
                    matrix[..., i, at[x.correlation]] += value
        correlations = np.asarray(
            np.linalg.solve(np.eye(n) - matrix, constant[..., None])[..., 0], dtype=complex
        )
        return {str(e.symbol.func): contour.twice(correlations[..., i]) for i, e in enumerate(equations)}

    def at_rates(self, e: Expr, rates: ComplexArray, here: ComplexArray, modes: int) -> ComplexArray:
        """Return the values of an expression at all rates and modes, shape ``(rates, modes)``.

        ``here`` are the responses at these rates, and ``modes`` is the number of modes.
        """
        (value,) = self._function([e])(rates[:, None], *here.T[:, :, None])
        return np.broadcast_to(np.asarray(value, dtype=complex), (len(rates), modes))

    def function_of_numbers(self, e: Expr) -> Expr:
        """Return an expression with numbers in place of all its symbols; each must have a number."""
        return sympify(e).xreplace({x: sympify(self.numbers[str(x)]) for x in e.free_symbols})
