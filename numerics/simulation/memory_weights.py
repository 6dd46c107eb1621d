"""Training of finite weights by rules that are defined by their memory only.

From the memory ``m(t)``, ``k(t, s)`` and the noise of a rule, and all updates U so far, the weight is
computed as ``W(t) = m(t) W(0) + sum_{s<t} k(t, s) U(s) + noise``.  It is used for rules without an equation
of motion; nothing is taken from a theory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Dummy, Expr, lambdify
from sympy.core.function import AppliedUndef

from derive.program import TrainingRule, s, t

from .formulas import Binder
from .rows import Array

PIVOT = 1e-10
"""Share of a variance below which the new noise of a step is a rounding error of the covariance."""


@dataclass(frozen=True)
class TwoTimeFunction:
    """A function of two times in a training rule, such as the weight ``k(t, s)`` at t of the update at s.

    Raises ValueError for a function in the expression that has no data.

    Attributes
    ----------
    expr
        Its expression.
    binder
        Numbers for its symbols, and tables for its functions.
    env
        Values of the indices of the weight.
    """

    expr: Expr
    binder: Binder
    env: Mapping[Any, int]

    @property
    def fixed(self) -> bool:
        """Whether the function of two times t and s < t does not depend on t."""
        return not self.expr.has(t)

    def __post_init__(self) -> None:
        for name in sorted({str(a.func) for a in self.expr.atoms(AppliedUndef)}):
            if name not in self.binder.tables.data:
                missing = f"{name} in the memory of a training rule has no values"
                raise ValueError(
                    f"{missing}: give data[{name!r}], an array with one axis for each argument, or a "
                    "function of the arguments"
                )

    def __call__(self, time: int, past: Sequence[int]) -> Array:
        """Return the values at one time t (``time``) and several s (``past``), shape (len(past),).

        Raise ValueError if a value is not finite.
        """
        times, pasts = np.full(len(past), time), np.asarray(past, dtype=int)
        leaves, function = _compiled(self.expr)
        values = [self._leaf(x, times, pasts) for x in leaves]
        with np.errstate(all="ignore"):
            weights = np.asarray(function(times.astype(float), pasts.astype(float), *values), dtype=float)
        if not np.isfinite(weights).all():
            raise ValueError(f"{self.expr} in the memory of a training rule is not finite at step {time}")
        return np.broadcast_to(weights, len(past))

    def _leaf(self, x: Expr, times: NDArray[np.int_], pasts: NDArray[np.int_]) -> Any:
        """Return the values of a symbol or of a function of data at pairs of times t and s.

        ``x`` is the symbol or function, such as a schedule; ``times`` and ``pasts`` (n,) are t and s. The
        result is ``(n,)``, or one number for a symbol.
        """
        if not isinstance(x, AppliedUndef):
            return self.binder.number(x, self.env)
        name = str(x.func)
        arguments = []
        for j, a in enumerate(x.args):
            if a.has(t, s):
                # The argument is a time step. Steps count from 0, so that 0 is the first value of this axis.
                self.binder.tables.note(name, j, (0, 0), exact=False)
            inner = [self._leaf(y, times, pasts) for y in _compiled(a)[0]]
            value = np.broadcast_to(_compiled(a)[1](times, pasts, *inner), len(times))
            arguments.append(np.rint(value).astype(int))
        rows = zip(*(y.tolist() for y in arguments), strict=True)
        return np.array([self.binder.tables.at(name, row, (False,) * len(row)) for row in rows], dtype=float)


@lru_cache(maxsize=200)
def _compiled(e: Expr) -> tuple[tuple[Expr, ...], Any]:
    """Return the leaves of an expression of t and s, and the expression as a compiled function.

    Leaves are the symbols other than t and s, and the functions of data such as ``eta(t)``; symbols inside of
    the arguments of these functions are not leaves. The compiled function takes t, s and the values of the
    leaves.
    """
    functions = {a for a in e.atoms(AppliedUndef) if not any(a in b.args for b in e.atoms(AppliedUndef))}
    bare = e.xreplace({a: Dummy() for a in functions})
    leaves = tuple(sorted({*functions, *(bare.free_symbols & e.free_symbols - {t, s})}, key=str))
    places = [Dummy(f"x{i}", real=True) for i in range(len(leaves))]
    return leaves, lambdify((t, s, *places), e.xreplace(dict(zip(leaves, places, strict=True))), "numpy")


@dataclass(frozen=True)
class RuleMemory:
    """Memory of a training rule: ``W(t) = left(t) W(0) + sum_{s<t} kept(t, s) U(s) + noise``.

    Attributes
    ----------
    left
        Factor of the initial weight.
    kept
        Factor of an earlier update.
    noise
        Covariance of the noise at two times, in units of the variance of the initial weight.
    """

    left: TwoTimeFunction
    kept: TwoTimeFunction
    noise: TwoTimeFunction

    @classmethod
    def of(cls, rule: TrainingRule, binder: Binder, env: Mapping[Any, int]) -> RuleMemory:
        """Return the memory of a training rule for the weight with the index values ``env``."""
        left, kept = rule.memory(t, s)
        return cls(*(TwoTimeFunction(e, binder, env) for e in (left, kept, rule.noise(t, s))))

    @property
    def noisy(self) -> bool:
        """Whether the training rule adds noise to the weight."""
        return bool(self.noise.expr != 0)

    @property
    def adds_up(self) -> bool:
        """Whether the weight is a multiple of its start plus updates with factors that do not depend on t.

        The result is false for a rule with noise. If it is true, the weight changes by one term each step,
        and earlier updates need not be kept.
        """
        return self.left.fixed and self.kept.fixed and not self.noisy


@dataclass
class Past:
    """Earlier updates and noises of one weight, from which its rule computes the weight.

    Attributes
    ----------
    start
        The weight at the start.
    updates
        The updates of all earlier steps.
    noises
        Independent noises, one for each earlier step.
    factors
        Rows of the Cholesky factor of the covariance of the noise at different steps.
    """

    start: Array
    updates: list[Any] = field(default_factory=list)
    noises: list[Array] = field(default_factory=list)
    factors: list[Array] = field(default_factory=list)
    """Row t holds how much of each independent noise is in the noise at t, a Cholesky factor."""

    def factor(self, noise: TwoTimeFunction, time: int) -> Array:
        """Return row ``time`` of the Cholesky factor of the covariance of the noise, ``(time + 1,)``.

        ``noise`` is the covariance at two steps. Missing earlier rows are computed first. Raises ValueError
        if the rule's noise has a negative variance given the past, or is not zero at step 0.
        """
        for step in range(len(self.factors), time + 1):
            covariance, row = noise(step, range(step + 1)), np.zeros(step + 1)
            for j in range(step):
                pivot = self.factors[j][j]
                remainder = covariance[j] - row[:j] @ self.factors[j][:j]
                row[j] = remainder / pivot if pivot > 0 else 0.0
            left = covariance[step] - row[:step] @ row[:step]
            if left < -PIVOT * max(abs(covariance[step]), 1e-300) or (step == 0 and covariance[0] > 0):
                raise ValueError(
                    f"{noise.expr} is not a covariance of noise that starts after step 0: as a function of "
                    "two steps it must be positive semidefinite, and zero at step 0"
                )
            row[step] = np.sqrt(left) if left > PIVOT * covariance[step] else 0.0
            self.factors.append(row)
        return self.factors[time]
