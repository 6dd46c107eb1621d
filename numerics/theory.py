"""From an experiment to what the engine derives for it."""

from __future__ import annotations

from functools import lru_cache

from sympy import Integer, Symbol

from derive.meanfield import Theory, mean_field
from derive.meanfield.reductions.projection import error_projected
from derive.program import L, P, eta, gamma0, mlp
from numerics.experiment import Experiment


def theory_of(experiment: Experiment) -> Theory:
    """The theory of the experiment's network, as `dmft derive` shows it; the depth may be a symbol."""
    depth = L if experiment.symbolic else Integer(experiment.depth)
    return mean_field(
        mlp(depth, experiment.network.activation, experiment.training.rule, experiment.training.loss)
    )


@lru_cache(maxsize=64)
def solvable(depth: int, rule: str, loss: str, projected: bool = True) -> Theory:
    """The theory that the march runs: discrete time (the flow as a multistep integrator sees it), integer
    depth.
    """
    theory = mean_field(mlp(L, "linear", "multistep" if rule == "flow" else rule, loss))
    return (error_projected(theory) if projected else theory).at_depth(depth)


def constants_of(experiment: Experiment) -> dict[Symbol, float]:
    """Numbers for the symbols of the theory."""
    rate = experiment.training.learning_rate if experiment.training.rule == "gd" else None
    known: dict[Symbol, float] = {gamma0: float(experiment.network.gamma0), P: float(len(experiment.targets))}
    if rate is not None:
        known[eta] = float(rate)
    return known
