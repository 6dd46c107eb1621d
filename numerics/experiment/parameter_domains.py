"""Check that parameters of training rules stay in their intervals at all times of a problem.

A rate, a decay or a momentum is an expression in the time, or is read from an array.  It is evaluated at the
times at which the solution reads it, and its values are compared with the interval that the rule states
(:class:`derive.calculus.intervals.BoundedParameter`).  Problems and experiment files are checked before
anything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Integer, Number, Product, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.intervals import BoundedParameter, RealInterval
from derive.calculus.symbols import IndexRange, expression, s
from derive.program import Program, TrainingRule, t
from derive.program.rules import LinearSystem, LinearSystemRule
from numerics.errors import SpecError
from numerics.experiment.finite_coefficients import quiet, times_read, with_extremes
from numerics.experiment.memory import MotionCoefficients, indices_of

Array = NDArray[np.float64]

ROUNDING, SMALLEST = 1e-12, 1e-15
"""Rounding error of a parameter in units of its largest value in time, and its smallest absolute value."""

EXACT = 16
"""Largest number of values at an end of an interval that are computed again without rounding errors."""


@dataclass(frozen=True)
class OutsideValue:
    """Parameter of a training rule with a value outside of its interval.

    ``name`` is that of messages, such as "rate of Momentum", ``written`` the parameter as the user wrote it,
    ``reason`` says which value it has at which time, and ``accepted`` describes the interval.
    """

    name: str
    written: object
    reason: str
    accepted: str


def outside_value(
    program: Program, numbers: Mapping[str, float], arrays: Mapping[str, Any], times: Array
) -> OutsideValue | None:
    """Return the first parameter of a training rule that leaves its interval, or None if none is found.

    A parameter that depends neither on the time nor on an index of weights is not checked here, because it is
    checked when symbols receive numbers. Parameters that contain a symbol without a number are skipped. The
    covariance of the noise of a rule with several state variables counts as a parameter, also if it is
    constant; all its eigenvalues must be >= 0.

    Parameters
    ----------
    program
        The program, in the names of ``numbers`` and ``arrays``.
    numbers
        Values of symbols, by name.
    arrays
        Arrays by name: values of functions of the time at each step, and of functions of an index of weights.
    times
        The steps, or the times of a flow (T,). At the last step no parameter is read.
    """
    discrete = program.rule.discrete
    grid, read = times_read(times, discrete), _ParameterValues(numbers, arrays, discrete)
    for rule, owner, indices in _rules(program):
        found = [_outside(x, owner, indices, read, grid) for x in getattr(rule, "bounded", ())]
        found.append(_indefinite_noise(rule, owner, read, grid))
        for x in filter(None, found):
            return x
    return None


def require_in_domains(
    program: Program, values: Mapping[Any, Any], data: Mapping[str, Any], times: Array
) -> None:
    """Raise SpecError for a parameter of a training rule that leaves its interval at a time.

    Parameters
    ----------
    program
        The program.
    values
        Numbers by symbol or name; other values, such as functions, are not read.
    data
        Arrays by name; functions of the step, such as rates, may be callables or mappings too.
    times
        The steps, or the times of a flow (T,). At the last step no parameter is read.
    """
    numbers: dict[str, Any] = {str(x): v for x, v in values.items() if isinstance(v, Real | Number)}
    arrays = {name: x for name, x in data.items() if not (callable(x) or isinstance(x, Mapping))}
    for name in program.tables & (data.keys() - arrays.keys()):
        x, steps = data[name], range(len(times))
        arrays[name] = [float(x(n)) for n in steps] if callable(x) else [float(x[n]) for n in steps if n in x]
    outside = outside_value(program, numbers, arrays, times)
    if outside is not None:
        raise SpecError(outside.name, outside.written, outside.reason, outside.accepted)


def require_in_domains_at_steps(
    program: Program, values: Mapping[Any, Any] | None, data: Mapping[str, Any] | None, steps: int
) -> None:
    """Raise SpecError for a parameter of a rule in steps that leaves its interval at ``0..steps-2``.

    Raises SpecError also for a rule whose memory is a product over steps, such as a decay that depends on the
    time: only problems make tables of it. ``steps`` is the number of times 0, 1, ... of a solution; the last
    one begins no step. ``values`` and ``data`` are those of :func:`require_in_domains`; None means none. No
    interval is checked for a flow, because the steps of its integration are not its times.
    """
    for rule in dict.fromkeys(w.rule for w in program.trained()):
        if isinstance(rule, LinearSystemRule) and any(e.has(Product) for e in rule.memory(t, s)):
            reason = "has a memory without a closed form, a product over steps"
            raise SpecError(
                "rule", str(rule), reason, "numerics.solve(program, ...), which makes a table of it"
            )
    if program.rule.discrete:
        require_in_domains(program, values or {}, data or {}, np.arange(float(steps)))


@dataclass(frozen=True)
class _ParameterValues:
    """Values of symbols and of functions by name, with which parameters are evaluated.

    ``discrete`` is false for the parameters of a flow.
    """

    numbers: Mapping[str, float]
    arrays: Mapping[str, Any]
    discrete: bool

    def values(self, e: Expr, grid: Array) -> Array | None:
        """Return the values of an expression at the times ``grid`` (T,).

        None for an expression with a symbol without a number, or with a given function of something else than
        the time. Raises ValueError if the array of a function of the time is missing or too short.
        """
        if any(x != t and x.name not in self.numbers for x in e.free_symbols):
            return None
        if any(len(x.args) != 1 or not x.has(t) for x in e.atoms(AppliedUndef)):
            return None
        return self.function(e)(grid)

    def function(self, e: Expr) -> Callable[[Array], Array]:
        """Return the function that maps times (T,) to the values of an expression."""
        known = {x: self.numbers[x.name] for x in e.free_symbols if x.name in self.numbers and x != t}
        return quiet(MotionCoefficients(known, self.arrays, self.discrete).function(e))


def _outside(
    parameter: BoundedParameter,
    owner: str,
    indices: Sequence[IndexRange],
    read: _ParameterValues,
    grid: Array,
) -> OutsideValue | None:
    """Return the first value of a parameter of a rule that is outside of its interval, or None.

    None is also returned for a constant parameter, and for one whose values are not known. ``owner`` are
    words for the weight of the rule, ``indices`` those of the family of this weight, and ``grid`` (T,) are
    the times at which the parameter is evaluated; in a flow its least and largest values between them are
    checked too.
    """
    interval = parameter.interval
    for member, entries in _members(parameter.value, indices, read):
        e = parameter.value.xreplace({**entries, **member})
        if not (member or e.has(t) or e.has(AppliedUndef)):
            continue  # a constant is checked when symbols receive numbers
        values, times = read.values(e, grid), grid
        if values is None:
            continue
        if not read.discrete:
            times = with_extremes(read.function(e), grid)
            values = read.function(e)(times)
        k = first_outside(interval, values, before_rounding(interval, e, times, read.numbers))
        if k is not None:
            place = "".join(f"{x} = {n} and " for x, n in member.items())
            return OutsideValue(
                f"{parameter.name}{owner}",
                parameter.value,
                f"is {values[k]:.6g} at {place}t = {times[k]:.6g}",
                f"{interval.words} at all times",
            )
    return None


def first_outside(
    interval: RealInterval, values: Array, contained: Callable[[int], bool] = lambda _: False
) -> int | None:
    """Return the position of the first value outside of an interval, or None.

    ``values`` (T,) are those of one parameter in time; infinite and undefined ones are outside. Values that
    exceed a closed end by a rounding error count as inside. Values that equal an open end are outside unless
    ``contained`` returns true for the positions of all of them, or of EXACT of them if there are more: the
    parameter is then inside before rounding.

    >>> from derive.calculus.intervals import FRACTION, NONNEGATIVE
    >>> first_outside(NONNEGATIVE, np.array([0.1, -1e-17, -0.1]))
    2
    >>> first_outside(FRACTION, np.array([0.5, 1.0]))
    1
    """
    finite = np.isfinite(values)
    rounding = max(SMALLEST, ROUNDING * float(np.abs(values[finite]).max(initial=0.0)))
    low, high = float(interval.low), float(interval.high)
    beyond_low = values <= low if interval.low_open else values < low - rounding
    beyond_high = values >= high if interval.high_open else values > high + rounding
    wrong = ~finite | beyond_low | beyond_high
    at_end = ((values == low) & interval.low_open) | ((values == high) & interval.high_open)
    positions = np.flatnonzero(wrong & at_end)
    some = positions[np.linspace(0, max(len(positions) - 1, 0), min(EXACT, len(positions))).astype(int)]
    if all(map(contained, map(int, some))):
        wrong &= ~at_end
    return int(np.flatnonzero(wrong)[0]) if wrong.any() else None


def _rules(program: Program) -> Iterator[tuple[TrainingRule, str, tuple[IndexRange, ...]]]:
    """Yield the different rules of a program, each with words for its weight and the indices of this weight.

    The words are empty for the rule of the program, and " of W" for the own rule of a weight W.
    """
    yield program.rule, "", ()
    seen = {program.rule}
    for w in program.trained():
        if w.rule not in seen:
            seen.add(w.rule)
            yield w.rule, f" of {w.name}", indices_of(w.initial)


def _members(
    e: Expr, indices: Sequence[IndexRange], read: _ParameterValues
) -> Iterator[tuple[dict[Symbol, Integer], dict[Expr, Expr]]]:
    """Yield the values of those indices of a family of weights that an expression contains.

    The second part of each result maps functions of these indices that are given as arrays, such as
    ``eta(ell)``, to their numbers. Both are empty for an expression without an index. Nothing is yielded if a
    symbol in the ends of a range has no number.
    """
    ranges = [r for r in indices if e.has(r.index)]
    if not ranges:
        yield {}, {}
        return
    numbers, arrays = read.numbers, read.arrays
    known = {x: expression(numbers[x.name]) for r in ranges for x in _ends(r) if x.name in numbers}
    ends = [(expression(r.lower).xreplace(known), expression(r.upper).xreplace(known)) for r in ranges]
    if not all(isinstance(x, Integer) for pair in ends for x in pair):
        return
    first = {r.index: int(low) for r, (low, _) in zip(ranges, ends, strict=True)}
    count = {r.index: int(high) + 1 - int(low) for r, (low, high) in zip(ranges, ends, strict=True)}
    tables = {
        x: np.asarray(arrays[str(x.func)])
        for x in e.atoms(AppliedUndef)
        if str(x.func) in arrays and set(x.args) <= {*first}
    }
    # Only arrays are used whose length along each axis is the number of values of the index y of this axis.
    # The first entry along an axis belongs to the first value of y.
    tables = {x: a for x, a in tables.items() if a.shape == tuple(count[y] for y in x.args)}
    for places in product(*(range(count[r.index]) for r in ranges)):
        at = {r.index: n for r, n in zip(ranges, places, strict=True)}
        entries = {x: expression(float(a[tuple(at[y] for y in x.args)])) for x, a in tables.items()}
        yield {x: Integer(first[x] + n) for x, n in at.items()}, entries


def _ends(r: IndexRange) -> set[Symbol]:
    """Return the symbols in the ends of the range of an index."""
    symbols: set[Symbol] = expression(r.lower).free_symbols | expression(r.upper).free_symbols
    return symbols


def before_rounding(
    interval: RealInterval, e: Expr, grid: Array, numbers: Mapping[str, float] | None = None
) -> Callable[[int], bool]:
    """Return the function that says whether an expression is in an interval, computed without rounding.

    Its argument is the position of a time in ``grid`` (T,). ``numbers`` are values of symbols, by name. The
    result is false for an expression that is read from an array.
    """

    def contained(k: int) -> bool:
        """Return whether the expression at the time ``grid[k]`` is in the interval."""
        if e.has(AppliedUndef):
            return False
        values: dict[Symbol, Expr] = {x: expression((numbers or {})[x.name]) for x in e.free_symbols - {t}}
        time = float(grid[k])
        values[t] = expression(int(time) if time.is_integer() else time)
        return interval.contains(e.xreplace(values))

    return contained


def _indefinite_noise(
    rule: TrainingRule, owner: str, read: _ParameterValues, grid: Array
) -> OutsideValue | None:
    """Return the noise as an OutsideValue if its covariance has a negative eigenvalue.

    Only noise of rules with several state variables is checked. ``owner`` are words for the weight of the
    rule, and ``grid`` (T,) are the times of the evaluation. None if no eigenvalue is negative beyond
    rounding, if a symbol has no number, if an entry is not finite, and for other rules.
    """
    system: LinearSystem | None = getattr(rule, "system", None)
    if system is None or system.states == 1 or not system.noisy or not len(grid):
        return None
    matrix, n = system.noise_matrix, system.states
    values = [read.values(e, grid) for e in matrix]
    if any(x is None for x in values):
        return None
    functions = [read.function(e) for e in matrix]

    def entries_at(times: Array) -> Array:
        """Return the covariance matrix of the noise at times (T,), shape (T, n, n).

        n is the number of state variables of the rule.
        """
        return np.stack([x(times) for x in functions], axis=-1).reshape(-1, n, n)

    def least_at(times: Array) -> Array:
        """Return the smallest eigenvalue of the covariance matrix of the noise at times (T,), shape (T,).

        It is NaN at times at which the matrix is not finite.
        """
        matrices = entries_at(times)
        finite = np.asarray(np.isfinite(matrices.reshape(len(matrices), -1)).all(axis=1))
        smallest = np.linalg.eigvalsh(np.where(finite[:, None, None], matrices, 0.0))[:, 0]
        return np.where(finite, smallest, np.nan)

    times = grid if read.discrete else with_extremes(least_at, grid)
    entries, least = entries_at(times), least_at(times)
    if not np.isfinite(entries).all():
        return None
    wrong = np.flatnonzero(least < -max(SMALLEST, ROUNDING * float(np.abs(entries).max())))
    if not len(wrong):
        return None
    k = int(wrong[0])
    return OutsideValue(
        f"diffusion of {type(rule).__name__}{owner}",
        matrix.tolist(),
        f"has the eigenvalue {least[k]:.6g} at t = {times[k]:.6g}",
        "a covariance matrix, whose eigenvalues are >= 0 at all times",
    )
