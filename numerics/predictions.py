"""Variables of training samples and of test points, from those of all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from numerics.experiment.arrays import Array, HeldOut
from numerics.results import dimensions

OUTPUT = "f"
"""What theories and programs call the outputs on all samples."""


class Asking(Protocol):
    """An experiment or a problem: it knows whether there are test points."""

    @property
    def held_out(self) -> HeldOut | None:
        """The test points."""
        ...


def split(experiment: Asking, values: Mapping[str, Array], *, nonlinear: bool = False) -> dict[str, Array]:
    """What a result holds, from variables over all P + P* samples of one network, replica or exact solution.

    ``values`` has the contract's names and dimensions (those of a ``nonlinear`` network or not), and the
    outputs as ``f`` (time, sample[, channel]).  Variables of samples are cut to the training samples, which
    come first.  Of test points there are the predictions ``test_f`` and, where their targets are known,
    ``test_error`` and ``test_loss``, the mean of its square over test points (summed over outputs).  Losses
    are those of what is given: split first, then average over networks or replicas.  Without test points only
    ``f`` is left out.

    >>> from numerics.experiment import Experiment
    >>> e = Experiment.from_dict({"network": {"depth": 2}}, inputs=[[1.0]], targets=[3.0],
    ...     test_inputs=[[2.0]], test_targets=[5.0])
    >>> found = split(e, {"f": np.array([[1.0, 2.0]]), "error": np.array([[2.0, 0.0]])})
    >>> {name: array.tolist() for name, array in found.items()}
    {'error': [[2.0]], 'test_f': [[2.0]], 'test_error': [[3.0]], 'test_loss': [9.0]}
    """
    held = experiment.held_out
    if held is None:
        return {name: array for name, array in values.items() if name != OUTPUT}
    found = {
        name: _of_training(name, array, held.training, nonlinear)
        for name, array in values.items()
        if name != OUTPUT
    }
    if OUTPUT in values:
        found["test_f"] = values[OUTPUT][:, held.training :]
        if held.targets is not None:
            error = found["test_error"] = held.targets - found["test_f"]
            found["test_loss"] = mean_square(error)
    return found


def watched(experiment: Asking, scalars: Mapping[str, Array]) -> Array:
    """What the steps of a flow are judged by: errors of training samples, predictions on test points."""
    error, held = scalars["Delta"], experiment.held_out
    if held is None:
        return error
    return np.concatenate([error[:, : held.training], scalars[OUTPUT][:, held.training :]], axis=1)


def size_of(experiment: Asking) -> Callable[[Array], float]:
    """The size that changes of these are relative to, as without test points: the largest error.

    >>> from numerics.experiment import Experiment
    >>> network = {"network": {"depth": 2}}
    >>> e = Experiment.from_dict(network, inputs=[[1.0]], targets=[3.0], test_inputs=[[2.0]])
    >>> size_of(e)(np.array([[3.0, 6.0]]))
    3.0
    """
    count = None if experiment.held_out is None else experiment.held_out.training

    def size(value: Array) -> float:
        return float(np.max(np.abs(value[:, :count] if count else value)))

    return size


def mean_square(error: Array) -> Array:
    """Squares of errors (time, sample[, channel]), summed over outputs and averaged over samples.

    >>> mean_square(np.array([[1.0, 3.0]])), mean_square(np.array([[[1.0, 3.0]]]))
    (array([5.]), array([10.]))
    """
    loss: Array = (error**2).reshape(*error.shape[:2], -1).sum(axis=2).mean(axis=1)
    return loss


def _of_training(name: str, array: Array, count: int, nonlinear: bool) -> Array:
    dims = dimensions(name, array.ndim, nonlinear)
    return array[tuple(slice(count) if x in ("sample", "sample_") else slice(None) for x in dims)]
