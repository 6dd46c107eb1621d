"""An experiment on a network with one hidden layer, solved without memory."""

from __future__ import annotations

from typing import Any

from sympy import Expr
from sympy.core.function import AppliedUndef

from numerics.experiment import Experiment
from numerics.experiment.numbers import arrays_of, layered_numbers, numbers_of
from numerics.experiment.theory import theory_of
from numerics.solve.two_layer.solve import TwoLayerSolved, solve_two_layer


def solve_two_layer_experiment(experiment: Experiment, **options: Any) -> TwoLayerSolved:
    """:func:`.solve_two_layer` of an experiment on fixed samples, at its output times.

    ``options`` are those of :func:`.solve_two_layer`.  Raises as it does, and
    :class:`~derive.errors.NotApplicable` at any other depth than one.

    >>> import numpy as np
    >>> training = {"rule": "flow", "time": 1.0, "points": 3}
    >>> spec = {"network": {"depth": 1, "activation": "tanh"}, "training": training}
    >>> experiment = Experiment.from_dict(spec, kernel=np.eye(2), targets=np.array([1.0, -1.0]))
    >>> solve_two_layer_experiment(experiment).value("Delta").shape
    (3, 2)
    """
    theory = theory_of(experiment).at_depth(experiment.depth)
    layered = {k: dict(x) for k, x in layered_numbers(experiment.spec)}

    def numbered(e: Expr) -> Expr:
        atoms = [x for x in e.atoms(AppliedUndef) if str(x.func) in layered and x.args[0].is_Integer]
        return e.xreplace({x: layered[str(x.func)][int(x.args[0])] for x in atoms})

    given: dict[str, Any] = {"values": numbers_of(experiment), "data": arrays_of(experiment)} | options
    if experiment.training.rule == "flow":
        return solve_two_layer(theory.map(numbered), times=experiment.times, **given)
    return solve_two_layer(theory.map(numbered), steps=len(experiment.times), **given)
