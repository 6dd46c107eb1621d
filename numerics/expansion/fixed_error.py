"""The series resummed at fixed error.

The expansion has two sources of powers of gamma0: the words, and the coefficients Delta^(n) of the error that
their letters remember.  The second is what ends the series early, because the error reacts back on itself.
Here the error is not expanded: the letters remember the full Delta, and ``Delta = y - f[Delta]`` is solved.
Expanded in gamma0 this gives back the coefficients, order by order, and the next one besides.

A series of f alone forgets how f is made.  The kernels of the closure are the neighbouring layer's response
and what is remembered of a correlation.  Only what is remembered is resummed: entry by entry, in the
eigenbasis of the data's kernel, by Padé approximants in gamma0^2.  With these the laws of the responses are
solved, which sums all repetitions of a word, and the laws of the correlations give f.

The correlations so found are right to one order more than the series that they came from.  They are put
back once, and f is computed again.  How far it moves is the estimate of what is missed.  Nothing is repeated
until it settles: that would be the full theory.
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
"""Terms below this share of the largest of their order, or of order zero, are rounding without a series."""
SETTLED = 1e-12
"""Responses that change less than this share of their size agree with their kernels."""
SWEEPS = 100

AT_REST = 1e-9
"""Changes of the error below this share of its start are none."""
ROUGHLY = 1e-3
STEPS = 60
HORIZONS = 8
"""The error is found up to growing times, so that what follows starts from something sensible."""


@dataclass(frozen=True)
class AtFixedError:
    """What the error's equation is made of; f is resummed to ``order`` at ``gamma0``."""

    closed: Closed
    setting: Setting
    gamma0: float
    order: int

    def upto(self, now: int) -> AtFixedError:
        """The same up to a time only."""
        return replace(self, closed=self.closed.upto(now))

    def step(self, error: Array, pushed: Array | None = None) -> tuple[Array, Array]:
        """The error that follows from f at ``error`` (and ``pushed``, added to f), and the estimate of what f
        misses."""
        rest = beyond_lowest(self.closed.upto(), error, self.order, self.gamma0)
        outer = rest.value + (0.0 if pushed is None else pushed)
        found, _ = self.setting.answer(self.closed.weight, self.closed.gain * self.closed.kernel, outer)
        return found, rest.error

    def settled(self, error: Array, tolerance: float, pushed: Array | None = None) -> tuple[Array, Array]:
        """Repeats steps until nothing changes; raises NotConverged if it does not end."""
        for _ in range(STEPS):
            new, missed = self.step(error, pushed)
            change, error = float(np.max(np.abs(new - error))), new
            if change <= tolerance:
                return error, missed
        raise NotConverged(
            f"the error at gamma0 = {self.gamma0} does not settle at order {self.order} "
            f"(change {change:.1e}): a smaller gamma0 or a higher order would do"
        )


def solved(problem: AtFixedError) -> tuple[Array, Array]:
    """The error, (T, P), and the same with f pushed by what its series is estimated to miss.

    Raises :class:`~numerics.errors.NotConverged` where the words' own series fails, or the equation does not
    settle.
    """
    T = problem.closed.T
    error = problem.setting.error.order([np.zeros((1, problem.closed.P))])
    scale = max(float(np.max(np.abs(error))), 1e-300)
    missed = np.zeros_like(error)
    for part in range(1, HORIZONS + 1):
        now = max(min(2, T), -(-T * part // HORIZONS))
        error = np.concatenate([error, np.repeat(error[-1:], max(now - len(error), 0), axis=0)])
        tolerance = (AT_REST if part == HORIZONS else ROUGHLY) * scale
        error, missed = problem.upto(now).settled(error, tolerance)
    pushed, _ = problem.settled(error, ROUGHLY * scale, np.where(error < 0, 1, -1) * missed)
    return error, pushed


def beyond_lowest(closed: Closed, error: Array, order: int, gamma0: float) -> Resummed:
    """f[Delta] without its term of lowest order, which is linear in Delta, and what is missed of it."""
    if gamma0 == 0:
        return Resummed(np.zeros_like(error), np.zeros_like(error), np.zeros(error.shape, dtype=bool))
    found = output_at(closed, error, order, gamma0)
    return Resummed(found.value - closed.output(0), found.error, found.failed)


class AtStrength(SeriesAlgebra):
    """Operator expressions at a number for gamma0: every series has one coefficient, its value."""

    def __init__(self, laws: ClosureAtStrength) -> None:
        closed = laws.closed
        known, plan = (lambda x: Stream(lambda n: laws.value(x))), closed.plan
        super().__init__(known, plan.number, closed.layers.is_correlation, multiplied, add, times)
        self.strength = laws.strength

    def scaled(self, factor: Expr, x: Stream) -> Stream:
        """A number, gamma0 in it, times a value."""
        constant, power = scale_of(factor)
        number = self.number(constant) * self.strength**power
        return self.new(lambda n: None if (found := x.at(n)) is None else times(number, found))

    def resolved(self, loop: Expr, x: Stream) -> Stream:
        """``(1 - loop)^-1 x``; where the loop's first letter leads from fewer entries to more, the equations
        are those of the fewer: ``(1 - a b)^-1 x = x + a (1 - b a)^-1 b x``."""
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
    """``(1 - loop)^-1 x`` for a causal loop."""
    if loop is None or x is None:
        return x
    assert isinstance(loop, Dense)
    matrix = np.eye(len(loop.matrix)) - loop.matrix
    if isinstance(x, Dense):
        return Dense(np.asarray(np.linalg.solve(matrix, x.matrix)).reshape(x.block.shape))
    left = np.asarray(np.linalg.solve(matrix, x.left.reshape(len(matrix), -1)))
    return SeparableKernel(left.reshape(x.left.shape), x.core, x.right)


class ClosureAtStrength:
    """The closure at one strength: what is not among the ``values``, by name and layer, its law gives."""

    def __init__(
        self, closed: Closed, strength: float, values: Mapping[OperatorAtLayer, LayerOperator | None]
    ) -> None:
        self.closed, self.strength, self.values = closed, strength, dict(values)

    def value(self, x: Expr) -> LayerOperator | None:
        """An operator by its symbol."""
        if x.is_Symbol:
            return self.closed.constant(x)
        return self.at(*place_of(x))

    def at(self, name: str, site: int) -> LayerOperator | None:
        """An operator at a layer."""
        if (name, site) not in self.values:
            place, end = self.closed.layers.base[name]
            if site != place:
                self.values[name, site] = self.by_law(name, site)
            else:
                self.values[name, site] = None if end == 0 else self.value(end)
        return self.values[name, site]

    def by_law(self, name: str, site: int) -> LayerOperator | None:
        """What the right-hand side of an operator's law says, with everything else as it is."""
        found: LayerOperator | None = AtStrength(self).series(self.closed.layers.laws[name][site]).at(0)
        return found

    def output(self) -> Array:
        """f, (T, P); the average it is made of carries one power of gamma0 more."""
        closed = self.closed
        value = AtStrength(self).series(closed.layers.average).at(0)
        assert isinstance(value, SeparableKernel)
        return value.diagonal().reshape(closed.T, closed.P) / self.strength

    def without(self, names: list[str]) -> ClosureAtStrength:
        """The same values but those of some operators, which their laws will give."""
        return ClosureAtStrength(
            self.closed, self.strength, {x: v for x, v in self.values.items() if x[0] not in names}
        )


def with_kernels(
    closed: Closed,
    strength: float,
    given: Mapping[OperatorAtLayer, LayerOperator | None],
    memories: Mapping[OperatorAtLayer, LayerOperator],
) -> ClosureAtStrength:
    """Correlations as ``given``; kernels of these memories and responses that agree with each other.

    Every letter is strictly causal: the sweeps end at any strength.
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
    raise NotConverged(f"the responses at gamma0 = {strength} do not settle: a smaller gamma0 would do")


def moved(old: LayerOperator | None, new: LayerOperator | None) -> float:
    """The change of a causal operator, relative to its size."""
    if not isinstance(new, Dense):
        return 0.0
    gap = new.block - old.block if isinstance(old, Dense) else new.block
    return float(np.max(np.abs(gap))) / max(float(np.max(np.abs(new.block))), 1e-300)


def output_at(closed: Closed, error: Array, order: int, strength: float) -> Resummed:
    """f with ``error`` remembered in full; the error is how far the laws used once have moved it.

    Raises :class:`~numerics.errors.NotConverged` where a memory has no approximant.
    """
    closed.remember(error)
    bodies = {kernel: remembers for kernel, (_, remembers) in closed.layers.made_of.items()}
    narrow = [bodies[name, 1][0][0] for name, k in closed.layers.kernels.items() if not k.rows]
    series = Series(closed, error, order, strength)

    def memory(laws: ClosureAtStrength, kernel: OperatorAtLayer) -> LayerOperator:
        found = add(*[series.memory(kernel[0], laws.at(*x)) for x in bodies[kernel]])
        assert found is not None
        return found

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
        first.at(*x)  # with the correlations that were resummed; these come anew after it
    following = first.without(narrow)
    given = {x: following.at(*x) for x in inner if x[0] in narrow}
    memories = {x: memory(following, x) for x in bodies}
    after = with_kernels(closed, strength, given, memories).output()
    return Resummed(after, np.abs(after - before), np.isnan(after))


class Series:
    """Coefficients to an order of what kernels remember, and their approximants."""

    def __init__(self, closed: Closed, error: Array, order: int, strength: float) -> None:
        self.closed, self.error, self.order, self.strength = closed, error, order, strength
        self.modes = np.linalg.eigh(closed.kernel)[1]

    def memory(self, kernel: str, body: LayerOperator | None) -> LayerOperator | None:
        """What a kernel remembers of a correlation."""
        if body is None:
            return None
        return remembered(self.closed.layers.kernels[kernel], self.closed.memory[kernel], self.error, body)

    def remembered(self, kernel: OperatorAtLayer) -> Dense:
        """The memory of a kernel with samples on its left, resummed mode by mode of the data."""
        bodies = self.closed.layers.made_of[kernel][1]
        T, P = self.closed.T, self.closed.P
        past = np.tril_indices(T, -1)
        found = np.zeros((self.order + 1, len(past[0]), P))
        for n in range(self.order + 1):
            value = add(*[self.memory(kernel[0], self.closed.value(x, n, k)) for x, k in bodies])
            if value is not None:
                assert isinstance(value, Dense)
                found[n] = value.block[past[0], :, past[1], 0] @ self.modes
        block = np.zeros((T, P, T, 1))
        block[past[0], :, past[1], 0] = self.value(found) @ self.modes.T
        return Dense(block)

    def correlation(self, name: str, site: int) -> SeparableKernel:
        """A correlation without samples, resummed entry by entry."""
        T = self.closed.T
        past = np.tril_indices(T)
        found = np.zeros((self.order + 1, len(past[0]), 1))
        for n in range(self.order + 1):
            value = self.closed.value(name, n, site)
            if value is not None:
                found[n, :, 0] = value.at(np.arange(T))[past[0], 0, past[1], 0]
        core = np.zeros((T, T))
        core[past] = self.value(found)[:, 0]
        one = np.eye(T)[:, None, :]
        return SeparableKernel(one, core + np.tril(core, -1).T, one)

    def value(self, series: Array) -> Array:
        """Orders first, modes last; where a mode's own series has no approximant, all have one together."""
        if np.any(series[1::2]):
            raise NotConverged("there are odd powers of gamma0: resummation in gamma0^2 does not apply")
        even, z = series[::2], self.strength**2
        terms = np.abs(even) * (z ** np.arange(len(even)))[:, None, None]
        even = np.where(terms > ROUNDING * terms.max(axis=(1, 2), keepdims=True), even, 0.0)
        even = np.where(terms > ROUNDING * terms[0].max(), even, 0.0)
        own = resum(even, z)
        if not own.failed.any():
            return own.value
        # where a mode's own series has no approximant, that of all modes together may have one
        found = np.where(own.failed, resum(even, z, shared=1).value, own.value)
        if np.isnan(found).any():
            raise NotConverged(
                f"the words up to order {self.order} say nothing about gamma0 = {self.strength}: "
                "a smaller gamma0 or a higher order would do"
            )
        return found
