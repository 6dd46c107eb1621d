"""Solution of the equation of motion of a weight, with the updates as input.

A rule states a linear equation of motion. Its response to updates and the covariance of its random part enter
the action of the path integral. They are found by residues of the resolvent if the matrix of the equation is
constant, by integrating factors if it depends on time, and by the equation of the variance. The memory that
the rule itself states (:mod:`derive.program.rules`) is used only for rules without an equation of motion, and
for those whose memory is a table of numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache

from sympy import (
    Add,
    Dummy,
    Expr,
    Integral,
    Matrix,
    Min,
    Mul,
    Product,
    S,
    Sum,
    Symbol,
    exp,
    factor_list,
    factorial,
    powsimp,
    roots,
    simplify,
)

from derive.calculus.sums import unused
from derive.calculus.symbols import t
from derive.program.rules import LinearSystem, TrainingRule, integral


@lru_cache(maxsize=256)
def solution(rule: TrainingRule) -> Solution:
    """Return the solution of the equation of motion of a weight under a training rule; results are cached.

    The solution is derived in symbols. It is that of the rule itself if the rule states no equation of
    motion, or one whose memory is a table of numbers.
    """
    system = getattr(rule, "system", None)
    if system is None or system.tabulated:
        return _StatedMemory(rule)
    kind = Steady if not system.moves else Moving
    return kind(rule, system)


@dataclass(frozen=True)
class Solution:
    """Solution ``W(t) = m(t) W(0) + sum_s k(t, s) U(s) + noise`` of a weight with updates U.

    The sum is over s < t in discrete time, and an integral over s < t in continuous time. For a rule that
    acts on each entry or on singular values, U is the step of the rule.
    """

    rule: TrainingRule

    def initial_factor(self, time: Expr) -> Expr:
        """Return the factor m(t) with which the initial weight remains in the weight at ``time``."""
        raise NotImplementedError

    def update_factor(self, time: Expr, past: Expr) -> Expr:
        """Return the coefficient k in the weight at ``time`` of the update made at ``past``.

        It holds for ``past`` before ``time``; it is not set to zero for later updates.
        """
        raise NotImplementedError

    def noise(self, time: Expr, past: Expr) -> Expr:
        """Return the covariance of the noise in the weight at two times, divided by its initial variance."""
        raise NotImplementedError

    def covariance(self, time: Expr, past: Expr) -> Expr:
        """Return the covariance of a weight's random part at two times, divided by its initial variance."""
        return self.initial_factor(time) * self.initial_factor(past) + self.noise(time, past)


class _StatedMemory(Solution):
    """Solution of the equation of a weight as the training rule itself states it.

    It is for rules without a linear equation of motion, and for those whose memory is a table of numbers.
    """

    def initial_factor(self, time: Expr) -> Expr:
        """Return the factor m(t) with which the initial weight remains in the weight at ``time``."""
        return self.rule.memory(time, S.Zero)[0]

    def update_factor(self, time: Expr, past: Expr) -> Expr:
        """Return the coefficient in the weight at ``time`` of the update made at ``past``."""
        return self.rule.memory(time, past)[1]

    def noise(self, time: Expr, past: Expr) -> Expr:
        """Return the covariance of the noise in the weight at two times, divided by its initial variance."""
        return self.rule.noise(time, past)


@dataclass(frozen=True)
class _SolvedMotion(Solution):
    """Solution of the linear equation of motion of a weight, which is component 0 of the state vector."""

    system: LinearSystem

    def response(self, state: int, time: Expr, since: Expr) -> Expr:
        """Return the change of the weight at ``time`` if 1 is added to a component of its state at ``since``.

        ``state`` is the number of this component of the state vector; component 0 is the weight.
        """
        raise NotImplementedError

    @property
    def lag(self) -> int:
        """Steps from an input to the state that it changes: 1 in discrete time, 0 in continuous time."""
        return 1 if self.rule.discrete else 0

    def initial_factor(self, time: Expr) -> Expr:
        """Return the factor m(t) with which the initial weight remains in the weight at ``time``."""
        return self.system.start * self.response(0, time, S.Zero)

    def update_factor(self, time: Expr, past: Expr) -> Expr:
        """Return the coefficient in the weight at ``time`` of the update made at ``past``."""
        parts = (
            self.response(j, time, past + self.lag) * at(b, past) for j, b in enumerate(self.system.input)
        )
        return Add(*parts)

    def noise(self, time: Expr, past: Expr) -> Expr:
        """Return the covariance of the noise in the weight at two times, divided by its initial variance.

        Noise is an input that is independent at different times. The result is the covariance of this input
        times its responses at both times, summed over the times of the input.
        """
        D, states = self.system.noise_matrix, range(self.system.states)
        entries = [(i, j) for i in states for j in states if D[i, j] != 0]
        if not entries:
            return S.Zero
        entered = self.free_name(ENTERED, time, past)
        first, second = ({i: self.response(i, x, entered + self.lag) for i in states} for x in (time, past))
        body = Add(*[first[i] * at(D[i, j], entered) * second[j] for i, j in entries])
        if self.rule.discrete:
            return Sum(body, (entered, 0, Min(time, past) - 1))
        return Integral(body, (entered, 0, Min(time, past)))

    def free_name(self, variable: Symbol, *times: Expr) -> Symbol:
        """Return ``variable``, or a new symbol if it occurs in the equation of motion or in ``times``.

        The result is the variable of a sum over times, which must differ from all other symbols.
        """
        system = self.system
        coefficients = [*system.matrix, *system.input, *system.noise_matrix]
        return unused(variable, {x for e in (*coefficients, *times) for x in e.free_symbols})


ENTERED = Symbol("t_2", nonnegative=True)
"""The time at which noise enters a weight."""


class Steady(_SolvedMotion):
    """Solution of an equation of motion with a constant matrix, by the poles of its resolvent."""

    @cached_property
    def poles(self) -> tuple[tuple[Expr, int], ...]:
        """Eigenvalues of the matrix of the equation of motion, each with its multiplicity.

        All of them have a closed form: the memory of other systems is a table of numbers.
        """
        z = Dummy("z")
        _, parts = factor_list((z * Matrix.eye(self.system.states) - self.system.matrix).det(), z)
        multiplicities: dict[Expr, int] = {}
        for part, power in parts:
            for root, count in roots(part, z).items():
                multiplicities[root] = multiplicities.get(root, 0) + count * power
        return tuple(multiplicities.items())

    @cached_property
    def responses(self) -> tuple[Symbol, tuple[Expr, ...]]:
        """Symbol n of an age, and the weight at age n if 1 is added to each component of the state in turn.

        The equation of motion of the state has the matrix A, whose first row is that of the weight. The
        residues at the poles of ``[(z - A)^{-1}]_{1j} z^n`` add up to ``[A^n]_{1j}``. In continuous time
        ``e^{z n}`` replaces ``z^n``, and the sum is ``[e^{A n}]_{1j}``.
        """
        z, age = Dummy("z"), Dummy("age", integer=True, nonnegative=True)
        if not self.rule.discrete:
            age = Dummy("age", nonnegative=True)
        mode = z**age if self.rule.discrete else exp(z * age)
        shifted = z * Matrix.eye(self.system.states) - Matrix(self.system.matrix)
        adjugate = shifted.adjugate()
        weights = []
        for j in range(self.system.states):
            residues = []
            for pole, count in self.poles:
                others = Mul(*[(z - x) ** n for x, n in self.poles if x != pole])
                regular = adjugate[0, j] / others * mode
                residues.append(regular.diff(z, count - 1).subs(z, pole) / factorial(count - 1))
            weights.append(Add(*residues))
        return age, tuple(weights)

    def response(self, state: int, time: Expr, since: Expr) -> Expr:
        """Return the change of the weight at ``time`` if 1 is added to a component of its state at ``since``.

        ``state`` is the number of this component of the state vector; component 0 is the weight.
        """
        if self.system.states == 1:
            return growth(self.system.matrix[0, 0], since, time, self.rule.discrete)
        age, weights = self._simplified_responses
        return weights[state].subs(age, time - since)

    @cached_property
    def _simplified_responses(self) -> tuple[Symbol, tuple[Expr, ...]]:
        """Symbol of an age, and the weight at this age if 1 is added to each component of the state in turn.

        It is the result of :attr:`responses` with simplified expressions.
        """
        age, weights = self.responses
        return age, tuple(powsimp(simplify(x)) for x in weights)

    def update_factor(self, time: Expr, past: Expr) -> Expr:
        """Return the coefficient in the weight at ``time`` of the update made at ``past``."""
        if self.system.states == 1 or any(b.has(t) for b in self.system.input):
            return super().update_factor(time, past)
        age, closed = self._update_factor
        return closed.subs(age, time - past - self.lag)

    @cached_property
    def _update_factor(self) -> tuple[Symbol, Expr]:
        """Symbol n of an age, and the coefficient in the weight of an update n after it changed the state.

        In discrete time an update at step s changes the state at step s + 1, so that n is t - s - 1. In
        continuous time n is the time since the update.
        """
        age, weights = self.responses
        parts = (x * b for x, b in zip(weights, self.system.input, strict=True))
        return age, powsimp(simplify(Add(*parts)))

    def noise(self, time: Expr, past: Expr) -> Expr:
        """Return the covariance of the noise in the weight at two times, divided by its initial variance.

        For a single state with a constant factor A and noise of constant variance D, the variance obeys
        ``V(t + 1) = A^2 V(t) + D`` (in continuous time ``V' = 2 A V + D``). The covariance is the variance at
        the earlier time, times the factor by which the weight grows from the earlier to the later time.
        """
        if not self.system.steady or self.system.states > 1:
            return super().noise(time, past)
        early, (first, lag, closed) = Min(time, past), self._noise_covariance
        return closed.xreplace({first: early, lag: time + past - 2 * early})

    @cached_property
    def _noise_covariance(self) -> tuple[Symbol, Symbol, Expr]:
        """Symbols of the earlier of two times and of their distance, and the covariance of the noise.

        The covariance is that of the noise in the weight at the two times, as a function of both symbols,
        for a single state with constant coefficients.
        """
        rate, strength = self.system.matrix[0, 0], self.system.noise_matrix[0, 0]
        early, distance = Dummy("early", nonnegative=True), Dummy("distance", nonnegative=True)
        discrete = self.rule.discrete
        lost = 1 - rate**2 if discrete else -2 * rate
        if simplify(lost) == 0:
            variance = strength * early
        else:
            remaining = rate ** (2 * early) if discrete else exp(2 * rate * early)
            variance = simplify(strength / lost * (1 - remaining))
        lag = rate**distance if discrete else exp(rate * distance)
        return early, distance, lag * variance if discrete else simplify(lag * variance)


class Moving(_SolvedMotion):
    """Solution of an equation of motion whose matrix depends on time, by integrating factors.

    The components of its state must not drive each other in a cycle.
    """

    def response(self, state: int, time: Expr, since: Expr) -> Expr:
        """Return the change of the weight at ``time`` if 1 is added to a component of its state at ``since``.

        ``state`` is the number of this component of the state vector; component 0 is the weight.
        """
        return self._component_response(0, state, time, since, range(3, 3 + self.system.states))

    def _component_response(
        self, to: int, source: int, time: Expr, since: Expr, names: Iterable[int]
    ) -> Expr:
        """Return the change of component ``to`` at ``time`` if 1 is added to ``source`` at ``since``.

        ``to`` and ``source`` are numbers of components of the state in an equation of motion. The equation of
        one component has the other components as input and is solved by its integrating factor. The
        integration times are called ``t_n`` with the numbers n in ``names``. The result is zero if ``source``
        does not drive ``to``.
        """
        A, discrete = self.system.matrix, self.rule.discrete
        if to == source:
            return growth(A[to, to], since, time, discrete)
        first, *rest = names
        when = self.free_name(Symbol(f"t_{first}", nonnegative=True), time, since)
        drivers = [k for k in range(self.system.states) if k != to and A[to, k] != 0]
        inputs = Add(
            *[at(A[to, k], when) * self._component_response(k, source, when, since, rest) for k in drivers]
        )
        if inputs == 0:
            return S.Zero
        body = growth(A[to, to], when + self.lag, time, discrete) * inputs
        kind = Sum if discrete else Integral
        return kind(body, (when, since, time - self.lag))


def growth(rate: Expr, since: Expr, time: Expr, discrete: bool) -> Expr:
    """Return the factor by which a component with the given rate grows from ``since`` to ``time``.

    For a constant rate it is ``rate**(time - since)`` in steps and ``exp(rate*(time - since))`` in a flow.
    For a rate that depends on time it is the product of the rates of the steps from ``since`` to
    ``time - 1``, or in a flow the exponential of the integral of the rate.

    >>> from sympy.abc import a
    >>> from derive.program import s, t
    >>> growth(a, s, t, True), growth(a, s, t, False)
    (a**(-s + t), exp(a*(-s + t)))
    """
    if not rate.has(t):
        return rate ** (time - since) if discrete else exp(rate * (time - since))
    each = unused(Symbol("t_1", nonnegative=True), {x for e in (rate, since, time) for x in e.free_symbols})
    if discrete:
        return Product(at(rate, each), (each, since, time - 1))
    return exp(integral(at(rate, each), each, since, time))


def at(coefficient: Expr, time: Expr) -> Expr:
    """Return a coefficient of an equation of motion, a function of t, at ``time``."""
    return coefficient.xreplace({t: time})
