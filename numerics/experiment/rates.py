"""Factors of updates in the next step, from a training rule, for estimates and identities.

The input is the equation of motion of a problem's rule (or its memory ``k(t, s)``), its numbers and tables;
the output is ``k(s + 1, s)`` at each step.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Integer, sympify
from sympy.core.function import AppliedUndef

from derive.program import P, TrainingRule, s, t
from derive.program.language import P_train
from derive.program.rules import LinearSystem
from numerics.experiment.memory import MotionCoefficients

if TYPE_CHECKING:
    from numerics.experiment.problem import Problem


def next_step_factors(problem: Problem) -> NDArray[np.float64]:
    """Return ``k(s + 1, s)`` for each step s except the last: the factor of an update in the next step.

    The result has the shape (T - 1,). For a flow it is instead the absolute rate of the rule at each time
    except the last, or the largest absolute coefficient of the update if the flow has no rate. If the rule
    divides by the number of samples, test points do not count.

    >>> from derive.program import GradientDescent, eta, mlp
    >>> from numerics.experiment.problem import Problem
    >>> given = {"numbers": {"eta": 0.1, "gamma0": 1.0}, "arrays": {"K_x": [[1.0]], "y": [1.0]}}
    >>> next_step_factors(Problem.of(mlp(1, rule=GradientDescent(eta)), times=range(3), **given))
    array([0.1, 0.1])
    """
    rule: Any = problem.program.rule
    known = {**problem.numbers, P: problem.seen, P_train: problem.seen}
    system: LinearSystem | None = getattr(rule, "system", None)
    if system is not None:
        read, at = MotionCoefficients(known, problem.arrays, not problem.flow), problem.times[:-1]
        if not problem.flow:
            return read(system.input[0], at)
        rates = [sympify(rule.rate)] if hasattr(rule, "rate") else list(system.input)
        return np.asarray(np.max(np.abs([read(x, at) for x in rates]), axis=0))
    kept = _next(rule).subs(known)
    if not kept.has(s):
        return np.full(len(problem.times) - 1, float(kept))
    steps = range(len(problem.times) - 1)
    return np.array([_number(problem, kept.xreplace({s: Integer(k)})) for k in steps])


def is_mean(problem: Problem) -> bool:
    """Return whether the rule divides updates by the number of samples."""
    rule: Any = problem.program.rule
    inputs = rule.system.input if hasattr(rule, "system") else rule.memory(t, s)[1:]
    return any(x.has(P, P_train) for x in inputs)


@lru_cache(maxsize=64)
def _next(rule: TrainingRule) -> Expr:
    """Return the factor ``k(s + 1, s)`` of an update at s in the next step, as an expression in s."""
    return rule.memory(t, s)[1].subs(t, s + 1).doit()


def _number(problem: Problem, e: Expr) -> float:
    """Return the value of an expression that contains array entries at integer steps, ``eta(2)``."""
    table = {a: problem.arrays[str(a.func)][tuple(map(int, a.args))] for a in e.atoms(AppliedUndef)}
    return float(e.xreplace({a: sympify(float(x)) for a, x in table.items()}))
