"""Gradients that vanish at the start of training by a symmetry of the samples.

From the inputs, targets and activation of an experiment this module finds whether the gradients of all
samples cancel where the output is zero.  Rules that do not see the size of a gradient, such as Adam, then
make steps of what is left: rounding, or fluctuations of order ``N^(-1/2)``.  ``solve`` checks files first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, simplify

from numerics.errors import SpecError
from numerics.experiment.activation import parse_activation
from numerics.experiment.experiment import Experiment

Array = NDArray[np.float64]

ROUNDING = 1e-12
"""Differences of inputs, and sums of errors, relative to the largest, that are zero but for rounding."""


def require_gradients(experiment: Experiment) -> None:
    """Raise SpecError where the gradients of all samples cancel at the start and the rule is entrywise.

    >>> tables = {"network": {"depth": 1, "activation": "tanh"}, "training": {"rule": "sign"}}
    >>> mirrored = Experiment.from_dict(tables, inputs=[[1.0], [-1.0]], targets=[0.5, 0.5])
    >>> require_gradients(mirrored)
    Traceback (most recent call last):
    numerics.errors.SpecError: data.targets: make the gradients of all samples cancel at the start, and...
    >>> require_gradients(Experiment.from_dict(tables, inputs=[[1.0], [-1.0]], targets=[0.5, -0.5]))
    """
    inputs = experiment.inputs if experiment.training.entrywise else None
    if inputs is None or not _vanish(inputs, errors_at_start(experiment), mirror_sign(experiment)):
        return
    name = None if experiment.data is None else experiment.data.targets
    rule = experiment.training.rule
    reason = (
        f'make the gradients of all samples cancel at the start, and training.rule = "{rule}" takes full '
        "steps along what fluctuations of order N^(-1/2) leave of them"
    )
    raise SpecError("data.targets", name, reason, 'targets without this symmetry, or training.rule = "gd"')


def errors_at_start(experiment: Experiment) -> Array:
    """The errors of training samples where all outputs are zero, to a factor: (P, C)."""
    y = experiment.targets.reshape(len(experiment.targets), -1)
    return y - 1 / y.shape[1] if experiment.objective == "cross-entropy" else y


def mirror_sign(experiment: Experiment) -> int:
    """The factor of the gradient of an output if its input changes sign; 0 where it has no parity.

    >>> tables = {"network": {"depth": 2, "activation": "abs"}}
    >>> mirror_sign(Experiment.from_dict(tables))
    1
    """
    network = experiment.network
    phi = parse_activation(network.activation)
    (h,) = phi.free_symbols
    mirrored: Expr = phi.xreplace({h: -h})
    if network.bias:
        return 0
    if simplify(mirrored + phi) == 0:
        return -1
    return int(network.branch is None and simplify(mirrored - phi) == 0)


def _vanish(inputs: Array, errors: Array, mirror: int) -> bool:
    """Return whether the errors of equal inputs, and of mirrored ones with this factor, add up to zero."""
    left, allowed = [*range(len(inputs))], ROUNDING * float(np.abs(inputs).max())
    total = 0.0
    while left:
        x, rest, whole = inputs[left[0]], [], np.zeros(errors.shape[1])
        for mu in left:
            if np.abs(inputs[mu] - x).max() <= allowed:
                whole += errors[mu]
            elif mirror and np.abs(inputs[mu] + x).max() <= allowed:
                whole += mirror * errors[mu]
            else:
                rest.append(mu)
        if mirror != -1 or np.abs(x).max() > allowed:  # all fields of an odd network are zero at zero
            total = max(total, float(np.abs(whole).max()))
        left = rest
    return total <= ROUNDING * float(np.abs(errors).max(initial=0.0))
