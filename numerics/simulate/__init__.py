"""Finite networks by brute force: what the theory is held against.

Explicit float64 weight matrices, explicit forward and backward passes. Shares no code with the solver and
knows nothing of the mean-field equations.

    simulate(experiment, width=512, seeds=16)     means over networks and their standard errors
    simulate_steps(experiment, width=..., ...)    the same for any program trained in exact steps
    extrapolate([at_256, at_512])                 the same at 1/N -> 0
    compare(theory, [at_256, at_512])             z-scores of preselected observables, one verdict
    response_probe(experiment, width=..., ...)    A and B, measured by kicking a field
    train_network(inputs, targets, ...)           one network, all its fields
"""

from numerics.rooms import callable_as_its_function

from .compare import Comparison, Row, compare
from .ensemble import simulate
from .extrapolate import extrapolate
from .network import inputs_from_kernel, train_network
from .probe import response_probe
from .record import History
from .series import series_names, theory_series
from .steps import simulate_steps

__all__ = [
    "Comparison",
    "History",
    "Row",
    "compare",
    "extrapolate",
    "inputs_from_kernel",
    "response_probe",
    "series_names",
    "simulate",
    "simulate_steps",
    "theory_series",
    "train_network",
]

callable_as_its_function(__name__)
