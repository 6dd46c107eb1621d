"""Gradients that vanish at the start of training by a symmetry of the samples.

The module tests whether the gradients of all samples cancel where the output is zero, from inputs, targets
and activation of an experiment.  Rules that ignore the size of a gradient, such as Adam, then take full steps
along rounding errors, or along fluctuations of order ``N^(-1/2)``.  ``solve`` tests each experiment before
it computes.
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
"""Relative size below which differences of inputs and sums of errors are rounding errors."""


def require_gradients(experiment: Experiment) -> None:
    """Raise SpecError if the rule is entrywise and the gradients of all samples cancel at the start.

    It is also raised for an entrywise rule without samples.

    >>> tables = {"network": {"depth": 1, "activation": "tanh"}, "training": {"rule": "sign"}}
    >>> mirrored = Experiment.from_dict(tables, inputs=[[1.0], [-1.0]], targets=[0.5, 0.5])
    >>> require_gradients(mirrored)
    Traceback (most recent call last):
    numerics.errors.SpecError: data.targets: make the gradients of all samples cancel at the start up to...
    >>> require_gradients(Experiment.from_dict(tables, inputs=[[1.0], [-1.0]], targets=[0.5, -0.5]))
    """
    inputs = experiment.inputs if experiment.training.entrywise else None
    if inputs is None or not _vanish(inputs, errors_at_start(experiment), mirror_sign(experiment)):
        return
    name = None if experiment.data is None else experiment.data.targets
    rule = experiment.training.rule
    raise SpecError(
        "data.targets",
        name,
        "make the gradients of all samples cancel at the start up to fluctuations of order N^(-1/2) at the "
        f'width N, and training.rule = "{rule}" makes steps of full size along these fluctuations',
        'targets without this symmetry, or training.rule = "gd"',
    )


def errors_at_start(experiment: Experiment) -> Array:
    """Return the errors of training samples at zero output, up to a common factor, shape (P, C)."""
    y = experiment.targets.reshape(len(experiment.targets), -1)
    return y - 1 / y.shape[1] if experiment.objective == "cross-entropy" else y


def mirror_sign(experiment: Experiment) -> int:
    """Return the parity of the gradient under a sign change of the input: 1, -1, or 0 if it has none.

    The gradient is that of the output with respect to weights. An odd activation gives -1, an even one 1;
    biases, and branches with an even activation, give 0.

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
    """Return whether the gradients of all samples cancel, up to rounding, for ``inputs`` (P, D).

    They do if the ``errors`` (P, C) of equal inputs sum to zero, where an input -x counts as x with its error
    times ``mirror``: 1, -1, or 0 if gradients have no such symmetry. If ``mirror`` is -1, errors of the input
    0 do not count.
    """
    remaining, allowed = [*range(len(inputs))], ROUNDING * float(np.abs(inputs).max())
    total = 0.0
    while remaining:
        x, others, error_sum = inputs[remaining[0]], [], np.zeros(errors.shape[1])
        for mu in remaining:
            if np.abs(inputs[mu] - x).max() <= allowed:
                error_sum += errors[mu]
            elif mirror and np.abs(inputs[mu] + x).max() <= allowed:
                error_sum += mirror * errors[mu]
            else:
                others.append(mu)
        # In an odd network (mirror = -1) all fields of the input x = 0 are zero, and its errors do not
        # matter.
        if mirror != -1 or np.abs(x).max() > allowed:
            total = max(total, float(np.abs(error_sum).max()))
        remaining = others
    return total <= ROUNDING * float(np.abs(errors).max(initial=0.0))
