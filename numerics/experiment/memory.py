"""Tables of the memory of training rules: factors of initial weights and of updates, covariance of noise.

A rule is a linear system (:class:`derive.program.rules.LinearSystem`).  This module solves it numerically at
the given times, which gives the tables of programs from :func:`numerics.experiment.theory.integrated`:
``W(t) = m(t) W(0) + sum_s w(t, s) U(s) + noise of covariance n(t, s)``.  Solvers take the tables as data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Integral, Product, S, Sum, Symbol, lambdify, simplify, sympify
from sympy.core.function import AppliedUndef

from derive.errors import NotApplicable
from derive.program import Multistep, Program, TrainingRule, s, t
from derive.program.nonlinear import NonlinearRule
from derive.program.rules import LinearSystem
from numerics.errors import NotConverged

Array = NDArray[np.float64]

PIECES, MOST_PIECES = 64, 2**14
"""Number of pieces of a flow with coefficients in t: initial number, and largest number at one refinement."""

ACCURACY = 1e-12
"""Relative change from 4 to 8 steps in a piece of an interval below which the piece is accepted."""


@dataclass(frozen=True)
class RuleTables:
    """Names of the tables that hold the memory of one training rule.

    The weight is ``W(t) = m(t) W(0) + gain sum_s w(t, s) U(s) + noise`` with updates U, and the covariance of
    the noise is ``n(t, s)``.

    Attributes
    ----------
    system
        Linear system of which the tables are the solution.
    discrete
        Whether the rule is in steps; false for a flow.
    gain
        Factor of updates that stays a symbol in theories: the rate of the rule, or 1 if it depends on time or
        is zero, and for a rule without a rate.
    kept
        Name of the table w, (T, T).
    left
        Name of the table m, (T,); None if m is 1 at all times.
    heat
        Name of the table n, (T, T); None without noise.
    """

    system: LinearSystem
    discrete: bool
    gain: Expr
    kept: str
    left: str | None
    heat: str | None

    def nonlinear(self, rule: NonlinearRule) -> NonlinearRule:
        """Return the entrywise rule ``rule`` with its memory read from these tables.

        The memory consists of the factors of the initial weight and of updates.
        """
        assert self.left is not None
        return replace(rule, memory_tables=(self.gain, self.left, self.kept))  # type: ignore[type-var]

    def rule(self, share: Expr) -> Multistep:
        """Return the training rule that reads its memory from these tables.

        ``share`` is the factor with which the table of the noise covariance is multiplied; 0 for a rule
        without noise.
        """
        return Multistep(self.gain, self.kept, self.left, self.heat if share != 0 else None, diffusion=share)

    def values(
        self,
        numbers: Mapping[Symbol, float],
        times: Array,
        weights: Array | None = None,
        arrays: Mapping[str, Any] | None = None,
    ) -> dict[str, Array]:
        """Return the tables by name, at steps 0, 1, ... or at the ``times`` of a flow.

        Parameters
        ----------
        numbers
            Values of symbols.
        times
            Steps or times (T,).
        weights
            Of a flow, the weights (T, T) of its integrator, with which an integral is a sum. They multiply
            the table w; with None it holds the factors without weights.
        arrays
            Values of functions of the time, by name, at each step; None if there are no such functions.

        Raises
        ------
        ValueError
            If a symbol has no number, or a function no array with enough entries.
        NotApplicable
            For a flow with a function that is given as an array.
        NotConverged
            For a flow whose coefficients vary too fast.
        """
        followed = StepwiseSystem.of(self.system, self.discrete, numbers, times, arrays or {}, self.gain)
        left, kept, noise = followed.tables(noisy=self.heat is not None)
        tables = {self.kept: kept if weights is None else kept * weights}
        if self.left is not None:
            tables[self.left] = left
        if self.heat is not None:
            tables[self.heat] = noise
        return tables


@lru_cache(maxsize=128)
def tables_of_program(program: Program) -> tuple[tuple[TrainingRule, RuleTables], ...]:
    """Return pairs of a training rule of the program that needs tables, and its tables.

    The tables hold the weights w of past updates, the memory m of the initial weight and the covariance n of
    noise. A flow needs them for its integrator. Rules in steps need them if the memory is a product or a sum
    over times, and where its closed form loses digits: for decaying weights with noise, and for rules with
    several state variables, whose modes may decay at equal rates. Rules that differ only by a constant factor
    of their noise share their tables.

    Raises
    ------
    NotApplicable
        If the memory depends on the index of a family of weights, if the program of a flow uses one of the
        names w, m and n of its tables, or if its weights have noise that is not proportional.
    """
    pairs: list[tuple[TrainingRule, RuleTables]] = []
    rules = dict.fromkeys([program.rule, *(w.rule for w in program.trained())])
    for rule in rules:
        if not needs_tables(rule):
            continue
        system = rule.system  # type: ignore[attr-defined]
        alike = [x for other, x in pairs if without_noise(other) == without_noise(rule)]
        tables = next((x for x in alike if share_of_noise(rule, x) is not None), None)
        if tables is None and alike and not rule.discrete:
            raise NotApplicable(
                f"the noise of {rule!r} is not a constant multiple of the noise of another weight of the "
                "same flow: use rules in steps, or noises with a constant ratio"
            )
        pairs.append((rule, tables or _named(rule, system, program, [x for _, x in pairs])))
    return tuple(pairs)


def symbols_of_rules(program: Program) -> dict[str, Symbol]:
    """Return the symbols in the coefficients of training rules whose memory has no closed form, by name."""
    systems = [w.rule.system for w in program.trained() if hasattr(w.rule, "system")]
    symbols = {
        x for system in systems for e in system.coefficients for x in e.free_symbols if system.tabulated
    }
    return {x.name: x for x in sorted(symbols - {t}, key=str)}


def needs_tables(rule: TrainingRule) -> bool:
    """Return whether theories hold the memory of a rule as tables.

    True for every flow with a linear system; :func:`tables_of_program` says for which rules in steps.

    >>> from derive.program import GradientDescent, GradientFlow, eta
    >>> needs_tables(GradientDescent(eta / (1 + t))), needs_tables(GradientDescent(eta, decay=eta / (1 + t)))
    (False, True)
    """
    if getattr(rule, "system", None) is None:
        return False
    if not rule.discrete or rule.system.states > 1:  # type: ignore[attr-defined]
        return True
    left, kept = rule.memory(t, s)
    noise = rule.noise(t, s)
    return any(x.has(Sum, Product, Integral) for x in (left, kept, noise)) or (left != 1 and noise != 0)


def without_noise(rule: TrainingRule) -> TrainingRule:
    """Return the rule with zero diffusion; a rule that has no such parameter is returned unchanged."""
    return replace(rule, diffusion=S.Zero) if hasattr(rule, "diffusion") else rule  # type: ignore[type-var]


def share_of_noise(rule: TrainingRule, tables: RuleTables) -> Expr | None:
    """Return the constant c for which the noise matrix of ``rule`` is c times that of ``tables``.

    Returns None if the two matrices are not proportional, or if their ratio depends on time.

    It is 0 for a rule without noise.
    """
    own, shared = rule.system.noise_matrix, tables.system.noise_matrix  # type: ignore[attr-defined]
    if all(x == 0 for x in own):
        return S.Zero
    share = next((simplify(x / y) for x, y in zip(own, shared, strict=True) if y != 0), S.Zero)
    is_multiple = all(simplify(x - share * y) == 0 for x, y in zip(own, shared, strict=True))
    return share if is_multiple and not share.has(t) else None


def _named(rule: Any, system: LinearSystem, program: Program, others: Any) -> RuleTables:
    """Return the tables of the memory of a rule, with names that are not in use.

    ``system`` is the linear system that they solve, ``others`` are tables of other rules, whose names are
    taken like those of the program. Raises NotApplicable if the memory depends on an index of weights, or if
    a name that a flow needs is used by the program.
    """
    gain = sympify(getattr(rule, "rate", S.One))
    if gain.has(t) or gain == 0:
        gain = S.One
    indices = {r.index for w in program.trained() for r in indices_of(w.initial)}
    if held := sorted(str(x) for e in system.coefficients for x in (e / gain).free_symbols & indices):
        raise NotApplicable(
            f"coefficients of {rule!r} depend on {', '.join(held)}, an index of weights, but the memory of "
            "this rule is one table for all weights of a family: only rates may differ between these "
            "weights, by Parametrization(rates=...)"
        )
    left, noise = rule.memory(t, s)[0], rule.noise(t, s)
    taken = set(program.names_in_theory).union(*({x.kept, x.left, x.heat} for x in others))
    if not rule.discrete:
        for name in sorted({"w", *(("m",) if left != 1 else ()), *(("n",) if noise != 0 else ())} & taken):
            raise NotApplicable(
                f"the integrator of a flow adds a table named {name}, and the program uses this name: "
                f"rename {name} in the program"
            )
    names = [_unused(name, taken) for name in ("w", "m", "n")]
    return RuleTables(
        system,
        rule.discrete,
        gain,
        names[0],
        names[1] if left != 1 else None,
        names[2] if noise != 0 else None,
    )


def indices_of(w: Any) -> tuple[Any, ...]:
    """Return the ranges of the indices of a family of weights w; empty for a single weight."""
    return tuple(w.indices) if hasattr(w, "indices") else ((w.index,) if w.index else ()) + w.others


def _unused(name: str, taken: set[Any]) -> str:
    """Return a name that is not in ``taken``, and add it to ``taken``.

    It is ``name`` with as many underscores at its end as are needed.
    """
    while name in taken:
        name += "_"
    taken.add(name)
    return name


@dataclass(frozen=True)
class StepwiseSystem:
    """Linear system of a training rule in steps: ``z(j + 1) = moved[j] z(j) + inputs[j] U(j) + noise``.

    z has n components, of which the first is the weight; the others start at zero. The noise has the
    covariance ``entered[j]``, and ``start`` is the factor of the initial weight in z(0). For a flow
    (``discrete`` is false) ``z(j + 1) = moved[j] (z(j) + inputs[j] U(j)) + noise``, where U(j) contains the
    integrator's weight. Shapes are (T - 1, n, n) for ``moved`` and ``entered``, and (T, n) for ``inputs``.
    """

    moved: Array
    entered: Array
    inputs: Array
    start: float
    discrete: bool

    @classmethod
    def of(
        cls,
        system: LinearSystem,
        discrete: bool,
        numbers: Mapping[Symbol, float],
        times: Array,
        arrays: Mapping[str, Any],
        gain: Expr = S.One,
    ) -> StepwiseSystem:
        """Return a linear system in steps at the ``times`` (T,), with numbers for its symbols.

        ``discrete`` is true for a rule in steps and false for a flow, which is integrated between the times.
        ``numbers`` are values of symbols, and ``arrays`` holds values of functions of the time at each step,
        by name. Factors of updates are divided by ``gain``.
        """
        n, at = system.states, np.asarray(times, dtype=float)
        read = MotionCoefficients(numbers, arrays, discrete)
        inputs = np.stack([read(x / gain, at) for x in system.input], axis=-1)
        start = float(read(system.start, at[:1])[0])
        entries = [[read.function(x) for x in e] for e in (system.matrix, system.noise_matrix)]

        def rates(when: Array) -> tuple[Array, Array]:
            """Return the coefficients ``A`` and ``D`` of the linear system at the times ``when``.

            In steps they are the matrix of a step and the covariance of its noise; for a flow, those of the
            equation of motion. Both have the shape (times, n, n).
            """
            A, D = (
                np.stack([x(when) for x in functions], axis=-1).reshape(-1, n, n) for functions in entries
            )
            return A, D

        if discrete:
            return cls(*rates(at[:-1]), inputs, start, True)
        if system.moves or any(x.has(t) for x in system.noise_matrix):
            noisy = any(read.inserted(x) != 0 for x in system.noise_matrix)
            return cls(*_integrated(rates, at, noisy), inputs, start, False)
        return cls(*_exponentials(*rates(at[:-1]), np.diff(at)), inputs, start, False)

    def tables(self, noisy: bool) -> tuple[Array, Array, Array]:
        """Return the tables ``m`` (T,), ``k`` (T, T) and ``n`` (T, T) of the memory of a weight.

        In ``W(t) = m(t) W(0) + sum_s k(t, s) U(s) + noise``, with updates U, ``k`` is zero for later s, and
        for steps also at s = t. The covariance ``n`` of the noise is empty unless ``noisy``.
        """
        count, n = self.inputs.shape
        row, kept = np.zeros((count, n)), np.zeros((count, count))
        noise = np.zeros((count, count)) if noisy else np.zeros((0, 0))
        variances = self.variances() if noisy else np.zeros((0, n, n))
        for j in range(count - 1, -1, -1):
            row[j, 0] = 1.0
            if self.discrete:
                kept[j + 1 :, j] = row[j + 1 :] @ self.inputs[j]
            if j + 1 < count:
                row[j + 1 :] = row[j + 1 :] @ self.moved[j]
            if not self.discrete:
                kept[j:, j] = row[j:] @ self.inputs[j]
            if noisy:
                noise[j:, j] = noise[j, j:] = row[j:] @ variances[j, :, 0]
        return self.start * row[:, 0], kept, noise

    def variances(self) -> Array:
        """Return the covariance of the state that noise has produced up to each time, (T, n, n).

        The state has n components: the weight, and further variables of the rule such as a momentum.
        """
        covariances = np.zeros((len(self.inputs), *self.moved.shape[1:]))
        for j, (move, enter) in enumerate(zip(self.moved, self.entered, strict=True)):
            covariances[j + 1] = move @ covariances[j] @ move.T + enter
        return covariances


def _exponentials(A: Array, D: Array, lengths: Array) -> tuple[Array, Array]:
    """Return ``e^{A x}`` and ``int_0^x e^{A u} D e^{A^T u} du`` for intervals of length x, (T - 1, n, n).

    ``lengths`` (T - 1,) are the lengths x, ``A`` and ``D`` (T - 1, n, n) the coefficients in each interval.
    For several components with noise both results come from the exponential of one matrix of twice the size
    (Van Loan, 1978).
    """
    n = A.shape[1]
    x = lengths[:, None, None]
    if n == 1:
        with np.errstate(invalid="ignore", divide="ignore"):
            grown = np.where(A == 0, x, np.expm1(2 * A * x) / (2 * A))
        return np.exp(A * x), D * grown
    from scipy.linalg import expm  # slow to import, and rarely needed

    if not D.any():
        return np.asarray(expm(A * x)), np.zeros_like(A)
    zero = np.zeros_like(A)
    both = np.block([[-A, D], [zero, A.swapaxes(1, 2)]])
    power = np.asarray(expm(both * x))
    moved = power[:, n:, n:].swapaxes(1, 2)
    entered = moved @ power[:, :n, n:]
    return moved, (entered + entered.swapaxes(1, 2)) / 2


def _integrated(rates: Any, times: Array, noisy: bool) -> tuple[Array, Array]:
    """Return the propagators and noise covariances of intervals for coefficients that depend on the time.

    ``rates`` maps times to ``A`` and ``D`` (times, n, n) of ``dE/dt = A E`` and ``dQ/dt = A Q + Q A^T + D``.
    Intervals are those between successive ``times`` (T,), and both results have the shape (T - 1, n, n).
    Intervals are cut into pieces. A piece is halved until 4 and 8 steps in it agree to ACCURACY, so that
    pieces are short only at kinks and pulses. ``noisy`` is false if ``D`` is zero at all times between.

    Raises NotConverged if there are too many pieces, or a piece becomes as short as rounding allows.
    """
    whole = np.diff(times)
    cuts = np.maximum(1, np.ceil(PIECES * whole / max(whole.sum(), np.finfo(float).tiny)).astype(int))
    interval = np.repeat(np.arange(len(whole)), cuts)
    lengths = whole[interval] / cuts[interval]
    place = np.concatenate([np.arange(n) for n in cuts])
    starts = times[interval] + place * lengths
    n = rates(times[:1])[0].shape[1]
    advance = _magnus if n == 1 else _runge_kutta if noisy else _exponentials_of_magnus
    pieces: list[tuple[Array, Array, Array]] = []
    while len(starts):
        with np.errstate(over="ignore", invalid="ignore"):
            before, now = (advance(rates, starts, lengths, parts) for parts in (4, 8))
            change = np.abs(now - before).max(axis=(0, 2, 3))
            moving = ~(change <= ACCURACY * np.maximum(1.0, np.abs(now).max(axis=(0, 2, 3))))
        done = ~moving
        pieces.append((interval[done], starts[done], now[:, done]))
        if moving.sum() > MOST_PIECES or (lengths[moving] <= np.spacing(times[-1])).any():
            raise NotConverged(
                f"the coefficients of the training rule vary too fast at t = {starts[moving][0]:.3g} for "
                f"time steps of up to {whole.max():.3g}: use closer output times there, or coefficients that "
                "vary more slowly"
            )
        half = lengths[moving] / 2
        starts = np.concatenate([starts[moving], starts[moving] + half])
        lengths, interval = np.tile(half, 2), np.tile(interval[moving], 2)
    return _composed(pieces, len(whole))


def _composed(pieces: list[tuple[Array, Array, Array]], count: int) -> tuple[Array, Array]:
    """Return ``E`` and ``Q`` of intervals from those of pieces: ``E_2 E_1``, ``E_2 Q_1 E_2^T + Q_2``.

    Each item of ``pieces`` describes M pieces: the numbers of their intervals (M,), their starts (M,), and
    their values E and Q (2, M, n, n). ``count`` is the number of intervals.
    """
    interval, starts = (np.concatenate([x[k] for x in pieces]) for k in (0, 1))
    values = np.concatenate([x[2] for x in pieces], axis=1)
    n = values.shape[-1]
    E, Q = np.tile(np.eye(n), (count, 1, 1)), np.zeros((count, n, n))
    for k in np.lexsort((starts, interval)):
        j, (move, enter) = interval[k], values[:, k]
        E[j], Q[j] = move @ E[j], move @ Q[j] @ move.T + enter
    return E, Q


def _magnus(rates: Any, starts: Array, lengths: Array, parts: int) -> Array:
    """Return ``E`` and ``Q`` of intervals of one component, (2, T, 1, 1); stable at any length.

    The T intervals have the ``starts`` and ``lengths`` (T,). Magnus's expansion to fourth order on each of
    ``parts`` parts of length h: the exponential of ``h (M_1 + M_2) / 2 + sqrt(3) h^2 [M_2, M_1] / 12`` for
    ``M = ((2 A, D), (0, 0))`` at the two Gauss points.
    """
    decay, noise = np.ones(len(lengths)), np.zeros(len(lengths))
    h = lengths / parts
    for k in range(parts):
        (a, d), (b, e) = (
            (x[:, 0, 0] for x in rates(starts + (k + 1 / 2 + c) * h))
            for c in (-np.sqrt(3) / 6, np.sqrt(3) / 6)
        )
        total = h * (a + b)
        entering = h * (d + e) / 2 + np.sqrt(3) * h**2 * (b * d - a * e) / 6
        grown = np.expm1(total) / np.where(total == 0, 1.0, total) + (total == 0)
        decay = decay * np.exp(total / 2)
        noise = np.exp(total) * noise + entering * grown
    return np.stack([decay, noise])[..., None, None]


def _exponentials_of_magnus(rates: Any, starts: Array, whole: Array, parts: int) -> Array:
    """Return ``E`` of intervals without noise, and ``Q = 0``, (2, T, n, n); stable if the system decays.

    The T intervals have the ``starts`` and the lengths ``whole`` (T,). The expansion is that of
    :func:`_magnus` for the matrix ``A``, on each of ``parts`` parts.
    """
    from scipy.linalg import expm  # slow to import, and seldom needed

    h = whole / parts
    step = h[:, None, None]
    moved = np.tile(np.eye(rates(starts[:1])[0].shape[1]), (len(whole), 1, 1))
    for k in range(parts):
        A, B = (rates(starts + (k + 1 / 2 + c) * h)[0] for c in (-np.sqrt(3) / 6, np.sqrt(3) / 6))
        exponent = step * (A + B) / 2 + np.sqrt(3) * step**2 * (B @ A - A @ B) / 12
        moved = np.asarray(expm(exponent)) @ moved
    return np.stack([moved, np.zeros_like(moved)])


def _runge_kutta(rates: Any, starts: Array, whole: Array, parts: int) -> Array:
    """Return ``E`` and ``Q`` of intervals, (2, T, n, n), by ``parts`` classical Runge-Kutta steps in each.

    The T intervals have the ``starts`` and the lengths ``whole`` (T,). Steps in an interval have unequal
    lengths: equal ones would meet a coefficient that is periodic in the time at the same phase.
    """
    n = rates(starts[:1])[0].shape[1]
    state = np.zeros((2, len(whole), n, n))
    state[0] = np.eye(n)
    equal = np.linspace(0.0, 1.0, parts + 1)
    ends = equal + equal * (1 - equal) / np.e

    def slope(x: Array, when: Array) -> Array:
        """Return the time derivatives of E and Q, which are stacked in x, at the times ``when``.

        They are ``A E`` and ``A Q + Q A^T + D``.
        """
        rate, noise = rates(when)
        half = rate @ x[1]
        return np.stack([rate @ x[0], half + half.swapaxes(1, 2) + noise])

    for k in range(parts):
        now, lengths = starts + ends[k] * whole, (ends[k + 1] - ends[k]) * whole
        h = lengths[:, None, None]
        first = slope(state, now)
        second = slope(state + h / 2 * first, now + lengths / 2)
        third = slope(state + h / 2 * second, now + lengths / 2)
        fourth = slope(state + h * third, now + lengths)
        state = state + h / 6 * (first + 2 * second + 2 * third + fourth)
    return state


@dataclass(frozen=True)
class MotionCoefficients:
    """Evaluation of coefficients of an equation of motion at given times.

    ``numbers`` are values of symbols. ``arrays`` are values of functions of the time at each step, by name.
    ``discrete`` is true for a rule in steps and false for a flow.
    """

    numbers: Mapping[Symbol, float]
    arrays: Mapping[str, Any]
    discrete: bool

    def __call__(self, e: Expr, times: Array) -> Array:
        """Return the values (T,) of the expression ``e`` at the times ``times`` (T,).

        Raises ValueError for a symbol without a number, and for a function of the step whose array is missing
        or too short. Raises NotApplicable if ``e`` belongs to a flow and contains a function of the time that
        is given as an array, because an array has values at steps only.
        """
        return self.function(e)(times)

    def inserted(self, e: Expr) -> Expr:
        """Return an expression with the numbers in place of symbols."""
        return sympify(e).subs(dict(self.numbers))

    def function(self, e: Expr) -> Callable[[Array], Array]:
        """Return the function that maps times (T,) to the values (T,) of ``e``.

        Raises ValueError for a symbol without a value. The returned function raises ValueError
        and NotApplicable as :meth:`__call__` does.
        """
        e = self.inserted(e)
        placeholders = {x: Symbol(f"value{k}") for k, x in enumerate(sorted(e.atoms(AppliedUndef), key=str))}
        bare = e.xreplace(placeholders)
        if unknown := sorted(str(x) for x in bare.free_symbols - {t, *placeholders.values()}):
            raise ValueError(
                f"a coefficient of the training rule, {e}, contains {', '.join(unknown)}: give a number for "
                "each symbol"
            )
        if bare.is_number:
            number = float(bare)
            return lambda times: np.full(np.shape(times), number)
        value = _function(bare, tuple(placeholders.values()))

        def values(times: Array) -> Array:
            result = value(times, *(self._table(x, times) for x in placeholders))
            return np.array(np.broadcast_to(np.asarray(result, dtype=float), np.shape(times)))

        return values

    def _table(self, x: AppliedUndef, times: Array) -> Array:
        """Return the values at ``times`` of a function such as ``eta(t)`` that is given as an array.

        Its argument is rounded to a step. Raises NotApplicable for a flow, and ValueError if the array is
        missing or has no entry at such a step.
        """
        name, (argument,) = str(x.func), x.args
        if not self.discrete:
            raise NotApplicable(
                f"{x} is a function without an expression, and only rules in steps read a table of its "
                f"values: in a flow, write an expression in t in place of {x}"
            )
        if name not in self.arrays:
            raise ValueError(
                f"a coefficient of the training rule contains {x}, a function of the step: give "
                f"arrays[{name!r}], a number for each step"
            )
        table = np.asarray(self.arrays[name], dtype=float)
        places = np.broadcast_to(_function(argument, ())(times), np.shape(times))
        at = np.rint(np.asarray(places, dtype=float)).astype(int)
        if at.size and not 0 <= at.min() <= at.max() < len(table):
            outside = at.min() if at.min() < 0 else at.max()
            raise ValueError(
                f"arrays[{name!r}] has {len(table)} numbers, those of the steps 0..{len(table) - 1}, and {x} "
                f"is read at step {outside}"
            )
        return np.asarray(table[at])


@lru_cache(maxsize=256)
def _function(e: Expr, others: tuple[Symbol, ...]) -> Any:
    """Return an expression as a compiled function of the time t and then of the symbols ``others``."""
    return lambdify((t, *others), e, "numpy")
