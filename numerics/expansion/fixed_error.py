"""Resummation of the expansion in gamma0 at fixed error, for linear networks.

The expansion is a sum of words, products of kernels (letters) that contain the error Delta.  Powers of gamma0
have two sources: factors in front of words, and the coefficients Delta^(n) of the error in their letters.
The second source limits the convergence, because the error acts back on itself.  Here the error is not
expanded: the letters contain the full Delta, and ``Delta = y - f[Delta]`` is solved.  The expansion of the
solution in gamma0 has the right coefficients up to the order of the words, and one more.

The kernels of the closure are the response of the neighbouring layer plus a memory: a correlation times the
error.  Only memories, and correlations without indices of samples, are resummed: entry by entry, in the
eigenbasis of the data's kernel, by Padé approximants in gamma0^2.  With them the equations of the responses
are solved, which sums all repetitions of a word, and the equations of the correlations give f.

The correlations found in this way are exact to one order more than their series.  They are inserted once, and
f is computed again; its change is the estimate of the truncation error.  The iteration is not continued,
because its limit is the full theory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Mul

from numerics.errors import NotConverged
from numerics.expansion.closure import Closed, OperatorAtLayer, place_of
from numerics.expansion.coefficients import Setting
from numerics.expansion.operators import (
    Dense,
    LayerOperator,
    SeparableKernel,
    SeriesAlgebra,
    Stream,
    add,
    multiplied,
    remembered,
    scale_of,
    split,
    times,
)
from numerics.expansion.resummation import Resummed, resum

Array = NDArray[np.float64]

ROUNDING = 1e-14
"""Terms below this fraction of the largest of their order, or of order zero, are rounding errors."""
SETTLED = 1e-12
"""Relative change below which responses have converged."""
SWEEPS = 100
"""Largest number of iterations for responses."""

AT_REST = 1e-9
"""Largest change of the error, relative to its initial value, at which it has converged."""
ROUGHLY = 1e-3
"""Tolerance like AT_REST, for all time intervals but the last one and for the perturbed error."""
STEPS = 60
"""Largest number of iterations for the error on one time interval."""
HORIZONS = 8
"""Number of growing time intervals on which the error is found, each from the solution of the one before."""


@dataclass(frozen=True)
class AtFixedError:
    """Equation ``Delta = y - f[Delta]`` for the error Delta of a linear network at one ``gamma0``.

    The output f is resummed from its expansion in gamma0 up to ``order``, in which Delta is not expanded.
    ``closed`` holds the expansion as arrays, ``setting`` the problem and its time grid.
    """

    closed: Closed
    setting: Setting
    gamma0: float
    order: int

    def upto(self, now: int) -> AtFixedError:
        """Return the equation of the error on the first ``now`` times only."""
        return replace(self, closed=self.closed.upto(now))

    def step(self, error: Array, perturbation: Array | None = None) -> tuple[Array, Array]:
        """Return a new error and the truncation error of the output, both (T, P), from one iteration.

        The output f is evaluated for the given ``error`` Delta. Its part f_0 of lowest order, which is linear
        in the error, is evaluated at the new error: ``Delta' = y - f_0[Delta'] - (f - f_0)[Delta]``.
        ``perturbation`` (T, P), if given, is added to f.
        """
        rest = beyond_lowest(self.closed.upto(), error, self.order, self.gamma0)
        outer = rest.value + (0.0 if perturbation is None else perturbation)
        new_error, _ = self.setting.error_and_output(
            self.closed.weight, self.closed.gain * self.closed.kernel, outer
        )
        return new_error, rest.error

    def converged(
        self, error: Array, tolerance: float, perturbation: Array | None = None
    ) -> tuple[Array, Array]:
        """Iterate :meth:`step` from ``error`` and return (error, truncation error of f), both (T, P).

        The iteration ends if no entry of the error changes by more than ``tolerance``. Raises NotConverged if
        this does not happen within STEPS iterations. ``perturbation`` (T, P), if given, is added to the
        output f.
        """
        for _ in range(STEPS):
            new, truncation = self.step(error, perturbation)
            change, error = float(np.max(np.abs(new - error))), new
            if change <= tolerance:
                return error, truncation
        raise NotConverged(
            f"the error at gamma0 = {self.gamma0} does not converge at order {self.order} "
            f"(last change {change:.1e}): use a smaller gamma0 or a higher order"
        )


def solved(problem: AtFixedError) -> tuple[Array, Array]:
    """Solve ``Delta = y - f[Delta]`` and return (Delta, Delta for a perturbed output), both (T, P).

    The perturbation of the output f is its estimated truncation error, with the sign that increases the
    absolute value of each entry of Delta. Raises :class:`~numerics.errors.NotConverged` if f cannot be
    resummed, or the iteration does not converge.
    """
    T = problem.closed.T
    error = problem.setting.error.order([np.zeros((1, problem.closed.P))])
    scale = max(float(np.max(np.abs(error))), 1e-300)
    truncation = np.zeros_like(error)
    for part in range(1, HORIZONS + 1):
        now = max(min(2, T), -(-T * part // HORIZONS))
        error = np.concatenate([error, np.repeat(error[-1:], max(now - len(error), 0), axis=0)])
        tolerance = (AT_REST if part == HORIZONS else ROUGHLY) * scale
        error, truncation = problem.upto(now).converged(error, tolerance)
    perturbed, _ = problem.converged(error, ROUGHLY * scale, np.where(error < 0, 1, -1) * truncation)
    return error, perturbed


def beyond_lowest(closed: Closed, error: Array, order: int, gamma0: float) -> Resummed:
    """Return the output f minus its part of order 0 in gamma0, with its truncation error.

    ``error`` (T, P) is the given error Delta, at which f is evaluated.
    ``order`` is the highest power of gamma0 in the expansion from which f is resummed. The result is zero at
    gamma0 = 0. At another gamma0 the expansion ``closed`` is changed: it holds this error afterwards.
    """
    if gamma0 == 0:
        return Resummed(np.zeros_like(error), np.zeros_like(error), np.zeros(error.shape, dtype=bool))
    output = output_at(closed, error, order, gamma0)
    return Resummed(output.value - closed.output(0), output.error, output.failed)


class AtStrength(SeriesAlgebra):
    """Evaluation of operator expressions of a closure at one number for gamma0.

    Each power series of the base class has one coefficient, of order 0, which is the value.
    """

    def __init__(self, laws: ClosureAtStrength) -> None:
        closed = laws.closed
        known, plan = (lambda x: Stream(lambda n: laws.value(x))), closed.plan
        super().__init__(known, plan.number, closed.layers.is_correlation, multiplied, add, times)
        self.strength = laws.strength

    def scaled(self, factor: Expr, x: Stream) -> Stream:
        """Return the value ``x`` times ``factor``, in which gamma0 has its numerical value."""
        constant, power = scale_of(factor)
        number = self.number(constant) * self.strength**power
        return self.new(lambda n: None if (value := x.at(n)) is None else times(number, value))

    def resolved(self, loop: Expr, x: Stream) -> Stream:
        """Return ``(1 - loop)^-1 x``, where ``loop`` is an operator or a product of operators.

        If the first operator a of a product ``a b`` has more rows than columns, the smaller system is
        solved: ``(1 - a b)^-1 x = x + a (1 - b a)^-1 b x``.
        """
        number, factors = split(loop) if isinstance(loop, Mul) else (loop, ())
        if len(factors) > 1:
            first = self.series(factors[0]).at(0)
            if isinstance(first, Dense) and first.matrix.shape[0] > first.matrix.shape[1]:
                rest = Mul(number, *factors[1:])
                inner = self.resolved(Mul(rest, factors[0]), self.applied(rest, x))
                return self.sum([x, self.applied(factors[0], inner)])
        matrix = self.series(loop)
        return self.new(lambda n: solved_for(matrix.at(n), x.at(n)))


def solved_for(loop: LayerOperator | None, x: LayerOperator | None) -> LayerOperator | None:
    """Return ``(1 - loop)^-1 x`` for operators given as arrays; None stands for zero.

    ``loop`` is None or a :class:`Dense` operator. One linear system is solved for all times together.
    """
    if loop is None or x is None:
        return x
    assert isinstance(loop, Dense)
    matrix = np.eye(len(loop.matrix)) - loop.matrix
    if isinstance(x, Dense):
        return Dense(np.asarray(np.linalg.solve(matrix, x.matrix)).reshape(x.block.shape))
    left = np.asarray(np.linalg.solve(matrix, x.left.reshape(len(matrix), -1)))
    return SeparableKernel(left.reshape(x.left.shape), x.core, x.right)


class ClosureAtStrength:
    """Order parameters of a closure at one number ``strength`` for gamma0, as arrays by (name, layer).

    ``values`` are those that are known. Others are computed from their equations when they are needed.
    """

    def __init__(
        self, closed: Closed, strength: float, values: Mapping[OperatorAtLayer, LayerOperator | None]
    ) -> None:
        self.closed, self.strength, self.values = closed, strength, dict(values)

    def value(self, x: Expr) -> LayerOperator | None:
        """Return an order parameter ``X[layer]``, or a kernel of the data, as an array; None for zero."""
        if x.is_Symbol:
            return self.closed.constant(x)
        return self.at(*place_of(x))

    def at(self, name: str, site: int) -> LayerOperator | None:
        """Return the order parameter ``name`` at the layer ``site``, as an array; None for zero.

        It is the stored value, the value given at an end of the network, or that of its equation, which is
        then stored.
        """
        if (name, site) not in self.values:
            place, end = self.closed.layers.base[name]
            if site != place:
                self.values[name, site] = self.by_law(name, site)
            else:
                self.values[name, site] = None if end == 0 else self.value(end)
        return self.values[name, site]

    def by_law(self, name: str, site: int) -> LayerOperator | None:
        """Return the right-hand side of the equation of the order parameter ``name`` at the layer ``site``.

        Other order parameters in it have their present values. None stands for zero.
        """
        value: LayerOperator | None = AtStrength(self).series(self.closed.layers.laws[name][site]).at(0)
        return value

    def output(self) -> Array:
        """Return the output f, (T, P): the average of the closure divided by gamma0."""
        closed = self.closed
        value = AtStrength(self).series(closed.layers.average).at(0)
        assert isinstance(value, SeparableKernel)
        return value.diagonal().reshape(closed.T, closed.P) / self.strength

    def without(self, names: list[str]) -> ClosureAtStrength:
        """Return a copy without the values of the order parameters ``names``; equations then give them."""
        return ClosureAtStrength(
            self.closed, self.strength, {x: v for x, v in self.values.items() if x[0] not in names}
        )


def with_kernels(
    closed: Closed,
    strength: float,
    given: Mapping[OperatorAtLayer, LayerOperator | None],
    memories: Mapping[OperatorAtLayer, LayerOperator],
) -> ClosureAtStrength:
    """Return the order parameters of a closure at gamma0 = ``strength`` for given correlations and memories.

    Parameters
    ----------
    closed
        The expansion of the closure as arrays.
    strength
        Number for gamma0.
    given
        Correlations by (name, layer).
    memories
        The part of each memory kernel that contains the error, by (name, layer).

    Notes
    -----
    Responses, and the memory kernels that contain them, are iterated until they satisfy their equations. The
    iteration converges for every gamma0, up to rounding, because responses are strictly causal. Raises
    NotConverged if the change is still larger than SETTLED after SWEEPS iterations.
    """
    laws = ClosureAtStrength(closed, strength, given)
    responses = [x for x in closed.layers.laws if x not in closed.layers.correlations]
    laws.values |= {(x, k): None for x in responses for k in range(closed.layers.depth + 1)}
    laws.values |= memories
    for _ in range(SWEEPS):
        change = 0.0
        for name in responses:
            for site in closed.layers.inwards(name):
                if site == closed.layers.base[name][0]:
                    continue
                old, new = laws.values[name, site], laws.by_law(name, site)
                laws.values[name, site] = new
                change = max(change, moved(old, new))
                for kernel, memory in memories.items():
                    sources = closed.layers.made_of[kernel][0]
                    if (name, site) in sources:
                        laws.values[kernel] = add(memory, *[laws.values[x] for x in sources])
        if change <= SETTLED:
            return laws
    raise NotConverged(f"the responses at gamma0 = {strength} do not converge: use a smaller gamma0")


def moved(old: LayerOperator | None, new: LayerOperator | None) -> float:
    """Return the largest change of an entry from ``old`` to ``new``, relative to the largest entry of new.

    Both are causal operators as arrays. The change is 0 if ``new`` is None, which stands for zero.
    """
    if not isinstance(new, Dense):
        return 0.0
    gap = new.block - old.block if isinstance(old, Dense) else new.block
    return float(np.max(np.abs(gap))) / max(float(np.max(np.abs(new.block))), 1e-300)


def output_at(closed: Closed, error: Array, order: int, strength: float) -> Resummed:
    """Return the output f, its estimated error and failed entries, for a given error Delta (T, P).

    Correlations and memories are resummed at gamma0 = ``strength`` from their expansions up to ``order``, and
    f follows from the equations of the closure. The correlations are then computed from the equations once
    more, and f from them. This second f is returned, and the change of f is the estimated error. The
    expansion ``closed`` is changed: it holds this error afterwards. Raises
    :class:`~numerics.errors.NotConverged` if a power series cannot be resummed, or responses do not converge.
    """
    closed.remember(error)
    bodies = {kernel: remembers for kernel, (_, remembers) in closed.layers.made_of.items()}
    narrow = [bodies[name, 1][0][0] for name, k in closed.layers.kernels.items() if not k.rows]
    series = Series(closed, error, order, strength)

    def memory(laws: ClosureAtStrength, kernel: OperatorAtLayer) -> LayerOperator:
        """Return the part of a memory kernel that contains the error, for the correlations in ``laws``.

        ``kernel`` is the name and the layer of the kernel.
        """
        total = add(*[series.memory(kernel[0], laws.at(*x)) for x in bodies[kernel]])
        assert total is not None
        return total

    ends = {(name, place) for name, (place, _) in closed.layers.base.items()}
    inner = {x for xs in bodies.values() for x in xs if x not in ends}
    given: dict[OperatorAtLayer, LayerOperator | None] = {
        x: series.correlation(*x) for x in inner if x[0] in narrow
    }
    start = ClosureAtStrength(closed, strength, given)
    wide = {kernel for kernel, xs in bodies.items() if any(x in inner and x[0] not in narrow for x in xs)}
    memories = {x: series.remembered(x) if x in wide else memory(start, x) for x in bodies}
    first = with_kernels(closed, strength, given, memories)
    before = first.output()
    for x in sorted(x for x in inner if x[0] not in narrow):
        # `narrow` names the correlations that have resummed values. The other correlations x are evaluated
        # here from these values, and are kept. Below, `without(narrow)` removes only the resummed values. The
        # equations then give the correlations in `narrow` a second time. The change of the output is its
        # error.
        first.at(*x)
    following = first.without(narrow)
    given = {x: following.at(*x) for x in inner if x[0] in narrow}
    memories = {x: memory(following, x) for x in bodies}
    after = with_kernels(closed, strength, given, memories).output()
    return Resummed(after, np.abs(after - before), np.isnan(after))


class Series:
    """Resummed correlations and memories of a closure at gamma0 = ``strength``.

    A memory is the part of a memory kernel that contains the error. The error Delta (T, P) is given and not
    expanded. ``order`` is the order up to which the expansion in gamma0 is used.
    """

    def __init__(self, closed: Closed, error: Array, order: int, strength: float) -> None:
        self.closed, self.error, self.order, self.strength = closed, error, order, strength
        self.modes = np.linalg.eigh(closed.kernel)[1]

    def memory(self, kernel: str, body: LayerOperator | None) -> LayerOperator | None:
        """Return the contribution of one correlation to a memory kernel.

        It is the product of the correlation, the error and the weight of past updates. ``kernel`` is the name
        of the kernel, ``body`` the correlation; None stands for zero.
        """
        if body is None:
            return None
        return remembered(self.closed.layers.kernels[kernel], self.closed.memory[kernel], self.error, body)

    def remembered(self, kernel: OperatorAtLayer) -> Dense:
        """Return the part of a memory kernel that contains the error, resummed at one gamma0.

        ``kernel`` is its name and layer; it has an index of samples at t. The power series are resummed for
        each pair of times and each eigenvector of the kernel of the data, by :meth:`value`.
        """
        bodies = self.closed.layers.made_of[kernel][1]
        T, P = self.closed.T, self.closed.P
        past = np.tril_indices(T, -1)
        coefficients = np.zeros((self.order + 1, len(past[0]), P))
        for n in range(self.order + 1):
            value = add(*[self.memory(kernel[0], self.closed.value(x, n, k)) for x, k in bodies])
            if value is not None:
                assert isinstance(value, Dense)
                coefficients[n] = value.block[past[0], :, past[1], 0] @ self.modes
        block = np.zeros((T, P, T, 1))
        block[past[0], :, past[1], 0] = self.value(coefficients) @ self.modes.T
        return Dense(block)

    def correlation(self, name: str, site: int) -> SeparableKernel:
        """Return the correlation ``name`` at the layer ``site``, resummed at one gamma0 by :meth:`value`.

        It has no indices of samples, and the power series of each pair of times is resummed on its own.
        """
        T = self.closed.T
        past = np.tril_indices(T)
        coefficients = np.zeros((self.order + 1, len(past[0]), 1))
        for n in range(self.order + 1):
            value = self.closed.value(name, n, site)
            if value is not None:
                coefficients[n, :, 0] = value.at(np.arange(T))[past[0], 0, past[1], 0]
        core = np.zeros((T, T))
        core[past] = self.value(coefficients)[:, 0]
        one = np.eye(T)[:, None, :]
        return SeparableKernel(one, core + np.tril(core, -1).T, one)

    def value(self, series: Array) -> Array:
        """Return the values at one gamma0 of power series with even powers of gamma0 only.

        ``series`` has the orders 0, 1, 2, ... as first axis and the mode of the data as last axis; the result
        has no axis of orders. Each series is resummed by :func:`.resum`. If this fails, Padé approximants
        with a denominator that all modes share are tried. Raises NotConverged if these fail too, and if a
        coefficient of odd order is not zero.
        """
        if np.any(series[1::2]):
            raise NotConverged(
                "the series has odd powers of gamma0, so that it is not resummed in gamma0^2; use another "
                "resummation, 'sum' or 'pade'"
            )
        even, z = series[::2], self.strength**2
        terms = np.abs(even) * (z ** np.arange(len(even)))[:, None, None]
        even = np.where(terms > ROUNDING * terms.max(axis=(1, 2), keepdims=True), even, 0.0)
        even = np.where(terms > ROUNDING * terms[0].max(), even, 0.0)
        by_mode = resum(even, z)
        if not by_mode.failed.any():
            return by_mode.value
        # For a mode whose own series has no Padé approximant (`failed`), there may be one with a denominator
        # that is common to all modes (`shared`).
        values = np.where(by_mode.failed, resum(even, z, shared=1).value, by_mode.value)
        if np.isnan(values).any():
            raise NotConverged(
                f"the series up to order {self.order} has no Padé approximant at gamma0 = {self.strength}: "
                "use a smaller gamma0 or a higher order"
            )
        return values
