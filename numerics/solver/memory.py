"""The tables of a flow's memory on a grid: what an integrator of the flow needs besides its weights.

A weight is ``W(t) = m(t) W(0) + int_0^t k(t, s) U(s) ds`` plus noise.  The rule of the flow knows ``m``,
``k`` and the covariance ``n(t, s)`` of the noise; on a grid the integral is a sum with the grid's weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Min, Symbol, expand, lambdify, powsimp, sympify

from derive.calculus.symbols import s, t
from derive.errors import NotApplicable
from derive.program import GradientFlow, MomentumFlow, TrainingRule
from numerics.experiment import Experiment
from numerics.experiment.numbers import numbers_of
from numerics.experiment.theory import flow_rule

Array = NDArray[np.float64]


def memory_tables(experiment: Experiment, nodes: Array, weights: Array) -> dict[str, Array]:
    """:func:`tables_of` the flow of an experiment.

    >>> e = Experiment.from_dict({"network": {"depth": 1}, "data": {"kind": "isotropic"},
    ...                           "training": {"rule": "flow", "weight_decay": 2.0}})
    >>> tables = memory_tables(e, np.array([0.0, 1.0]), np.array([[0.0, 0.0], [1.0, 0.0]]))
    >>> tables["m"].round(3), tables["w"][1].round(3)
    (array([1.   , 0.135]), array([0.135, 0.   ]))
    """
    return tables_of(flow_rule(experiment), numbers_of(experiment), nodes, weights)


def tables_of(
    rule: TrainingRule, numbers: Mapping[Symbol, float], nodes: Array, weights: Array
) -> dict[str, Array]:
    """``w`` (T, T), ``m`` (T,) and ``n`` (T, T) at the nodes, by the names that theories give them.

    ``weights`` (T, T) are those of the integrator, with which a flow without memory of its own would do.
    """
    first, second = np.meshgrid(nodes, nodes, indexing="ij")
    later, earlier = np.maximum(first, second), np.minimum(first, second)
    left, kept, noise = _formulas(_flow(rule))
    updates, remains = _table(kept, numbers, later, earlier), _table(left, numbers, nodes, nodes)
    return {"w": weights * updates, "m": remains, "n": _table(noise, numbers, later, earlier)}


def is_noisy(rule: TrainingRule) -> bool:
    """Are the weights of a flow shaken by noise?"""
    return bool(_formulas(_flow(rule))[2] != 0)


def _flow(rule: TrainingRule) -> GradientFlow | MomentumFlow:
    if not isinstance(rule, GradientFlow | MomentumFlow):
        raise NotApplicable(f"no integrator is known for {rule!r}")
    return rule


@lru_cache(maxsize=32)
def _formulas(rule: GradientFlow | MomentumFlow) -> tuple[Expr, Expr, Expr]:
    """What a rule leaves of the start, keeps of an update (over its rate), and the covariance of noise."""
    left, kept = rule.memory(t, s)
    noise = powsimp(expand(rule.noise(t, s).subs(Min(t, s), s)))  # no power that overflows is left
    return left, kept / sympify(rule.rate), noise


def _table(e: Expr, numbers: Mapping[Symbol, float], later: Array, earlier: Array) -> Array:
    values = lambdify((t, s), e.subs(dict(numbers)), "numpy")(later, earlier)
    return np.array(np.broadcast_to(np.asarray(values, dtype=float), later.shape))
