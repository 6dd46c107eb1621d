"""Coefficients in gamma0 of theories with Gaussian fields, from exact solutions at several values of gamma0.

Sampled paths whose sources have exact second moments solve such a theory to rounding.  Polynomials through
solutions at Chebyshev points give the coefficients.  The method is used if the march cannot read the theory
of each order: for weights shared within a step, positions, attributes of units, and data that change in time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from derive.errors import NotApplicable
from derive.program import gamma0
from numerics.errors import Unserved
from numerics.experiment.problem import Problem
from numerics.names import ERROR, OUTPUT, MemberKey
from numerics.results.predictions import one_sample, split
from numerics.solver.paths.causal_order import size_of
from numerics.solver.paths.solve import Prepared

Array = NDArray[np.float64]

RADII = (0.3, 0.15, 0.075, 0.0375)
"""Largest gamma0 of the solutions; coefficients are accepted if two successive values agree."""

MORE = 8
"""Number of Chebyshev points beyond the number of orders; their sum is rounded down to an even number."""

EXACT = 1e-9
"""Largest difference of a variable between replicas of an exact solution, relative to its largest value."""

ROUNDING = 1e-13
"""Largest rounding error of a solution, relative to its largest value."""

KNOWN = 1e-4
"""Largest difference of a coefficient between two radii, relative to the largest coefficient of its order.

A difference below the rounding error of the coefficient is accepted, too."""

NAMES = {"error": ERROR, OUTPUT: OUTPUT}
"""Names of numbers of a theory, by their names in results."""

LARGEST = 2**14
"""Largest number of paths of a replica."""


class AtStrengths:
    """Coefficients in gamma0 of errors and losses, from exact solutions at several values of gamma0.

    Predictions of test points are included. The solutions are those of sampled paths with exact second
    moments, and polynomials in gamma0 through them give the coefficients up to ``order``. Raises
    NotApplicable for a flow, for noise, for random data and for a problem without gamma0, if sampled paths do
    not solve the theory or too many are needed, if two replicas of a solution differ, so that it is not
    exact, and if polynomials on smaller and smaller ranges of gamma0 still differ.
    """

    def __init__(self, problem: Problem, order: int) -> None:
        self.problem, self.orders, self.notes = problem, range(order + 1), dict[str, Any]()
        if problem.flow or problem.program.noisy or not problem.seen or gamma0 not in problem.numbers:
            raise NotApplicable(
                "a series in gamma0 that is fitted to exact solutions needs a training rule in steps without "
                "noise, given samples, and a number for gamma0"
            )
        before = self.coefficients(RADII[0])
        for radius in RADII[1:]:
            now = self.coefficients(radius)
            agreeing = {name: self.agreeing(x, now[name], radius) for name, x in before.items()}
            if all(x is not None for x in agreeing.values()):
                break
            before = now
        else:
            raise NotApplicable(
                "the series in gamma0 is not found: polynomials fitted to solutions on smaller and smaller "
                "ranges of gamma0 still differ (use a lower order, or fewer steps of a smaller learning rate)"
            )
        self.series = {name: x for name, x in agreeing.items() if x is not None}

    def agreeing(self, first: Array, second: Array, radius: float) -> Array | None:
        """Return the coefficients if those from two ranges of gamma0 agree, else None.

        ``first`` and ``second`` are the coefficients from the larger and from the smaller range, orders
        first; ``radius`` is the largest gamma0 of the smaller range. The result is ``first``, with zero for
        each order that is at most its rounding error, or at most ten times its change between the ranges.
        """
        size, difference = (np.abs(x).reshape(len(x), -1).max(axis=1) for x in (second, first - second))
        lost = ROUNDING * size[0] * radius ** -np.arange(float(len(first)))
        if (difference > np.maximum(KNOWN * size, lost)).any():
            return None
        nothing = size <= np.maximum(10 * difference, lost)
        return np.where(nothing.reshape(-1, *[1] * (first.ndim - 1)), 0.0, first)

    def coefficients(self, radius: float) -> dict[str, Array]:
        """Return the coefficients in gamma0 of errors and losses, by name, orders first.

        They are those of the polynomial through solutions at Chebyshev points of gamma0 in ``[-radius,
        radius]``.
        """
        # The number of Chebyshev points is even, because the middle one of an odd number of points is
        # gamma0 = 0. There the outputs, which are averages divided by gamma0, are not defined.
        count = 2 * ((len(self.orders) + MORE) // 2)
        points = np.cos(np.pi * (np.arange(count) + 0.5) / count)
        solutions = [self.solution(radius * x) for x in points]
        return {name: self.fitted(points, [x[name] for x in solutions], radius) for name in solutions[0]}

    def fitted(self, points: Array, values: list[Array], radius: float) -> Array:
        """Return the coefficients of the polynomial in gamma0 through some values, orders first.

        ``values`` are arrays of equal shape, one for each of ``points``, which are values of gamma0 divided
        by ``radius``.
        """
        flat = np.stack(values).reshape(len(points), -1)
        through = chebyshev.chebfit(points, flat, len(points) - 1)
        powers = np.zeros_like(through)
        for k, x in enumerate(through.T):
            in_powers = chebyshev.cheb2poly(x)
            powers[: len(in_powers), k] = in_powers
        scaled = powers[: len(self.orders)] * radius ** -np.arange(float(len(self.orders)))[:, None]
        return np.asarray(scaled.reshape(len(self.orders), *values[0].shape))

    def solution(self, strength: float) -> dict[str, Array]:
        """Return errors and losses at one value ``strength`` of gamma0, by their names in results.

        Predictions of test points are included. All are means of two replicas. Raises NotApplicable if the
        replicas differ, so that the solution is not exact, if it takes more than LARGEST paths, or if sampled
        paths do not solve the theory.
        """
        problem = self.problem
        values = {**problem.values, gamma0: strength}
        steps, data = len(problem.times), problem.data
        try:
            prepared = Prepared(problem.discrete, steps=steps, values=values, data=data, single=False)
        except Unserved as reason:
            raise NotApplicable(str(reason)) from None
        model = prepared.model
        dimensions = steps * sum(size_of(model, i) for i in range(len(model.groups)))
        samples = max(64, 2 ** int(np.ceil(np.log2(4 * dimensions + 4))))
        if samples > LARGEST:
            raise NotApplicable(
                f"the series in gamma0 needs an exact solution, which takes {samples} paths, more than "
                f"{LARGEST}: use fewer steps or samples"
            )
        seeds = np.random.SeedSequence(problem.solver.seed).spawn(2)
        one, other = (self.variables(run) for run in prepared.runs(samples, seeds))
        for name, x in one.items():
            if np.abs(x - other[name]).max() > EXACT * np.abs(x).max():
                raise NotApplicable(
                    "the series in gamma0 needs an exact solution, and two solutions with different random "
                    f"numbers differ in {name}, so that they have sampling errors"
                )
        return {name: (x + other[name]) / 2 for name, x in one.items()}

    def variables(self, run: Mapping[MemberKey, Array]) -> dict[str, Array]:
        """Return errors and losses by their names in results.

        ``run`` holds the scalars of a solution at one gamma0, by name.
        """
        variables = {name: one_sample(run[x, ()], self.problem.program) for name, x in NAMES.items()}
        variables = split(self.problem, variables, nonlinear=self.problem.by_sample)
        return {name: x for name, x in variables.items() if name != OUTPUT}

    def watched(self) -> Array:
        """Return the errors at all orders in gamma0, (orders, T, ...)."""
        return self.series["error"]

    def values(self) -> dict[str, Array]:
        """Return the coefficients of errors and losses by their names in results, orders first."""
        return self.series
