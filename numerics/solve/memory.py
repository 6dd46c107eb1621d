"""The tables of a flow's memory on a grid: what an integrator of the flow needs besides its weights.

A weight is ``W(t) = m(t) W(0) + int_0^t k(t, s) U(s) ds`` plus noise.  The rule of the flow knows ``m``,
``k`` and the covariance ``n(t, s)`` of the noise; on a grid the integral is a sum with the grid's weights.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Min, expand, lambdify, powsimp, sympify

from derive.calculus.symbols import s, t
from numerics.experiment import Experiment
from numerics.experiment.numbers import numbers_of
from numerics.experiment.theory import flow_rule

Array = NDArray[np.float64]


def memory_tables(experiment: Experiment, nodes: Array, weights: Array) -> dict[str, Array]:
    """``w`` (T, T), ``m`` (T,) and ``n`` (T, T) at the nodes, by the names that theories give them.

    ``weights`` (T, T) are those of the integrator, with which a flow without memory of its own would do.

    >>> e = Experiment.from_dict({"network": {"depth": 1}, "data": {"kind": "isotropic"},
    ...                           "training": {"rule": "flow", "weight_decay": 2.0}})
    >>> tables = memory_tables(e, np.array([0.0, 1.0]), np.array([[0.0, 0.0], [1.0, 0.0]]))
    >>> tables["m"].round(3), tables["w"][1].round(3)
    (array([1.   , 0.135]), array([0.135, 0.   ]))
    """
    rule = flow_rule(experiment)
    left, kept = rule.memory(t, s)
    noise = powsimp(expand(rule.noise(t, s).subs(Min(t, s), s)))  # no power that overflows is left
    first, second = np.meshgrid(nodes, nodes, indexing="ij")
    later, earlier = np.maximum(first, second), np.minimum(first, second)
    updates = _table(kept / sympify(rule.rate), experiment)(later, earlier)
    remains = _table(left, experiment)(nodes, nodes)
    return {"w": weights * updates, "m": remains, "n": _table(noise, experiment)(later, earlier)}


def _table(e: Expr, experiment: Experiment) -> Callable[[Array, Array], Array]:
    function = lambdify((t, s), e.subs(dict(numbers_of(experiment))), "numpy")

    def at(later: Array, earlier: Array) -> Array:
        values = np.asarray(function(later, earlier), dtype=float)
        return np.array(np.broadcast_to(values, later.shape))

    return at
