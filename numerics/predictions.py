"""Variables of training samples and of test points, from those of all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from sympy import Add, Expr, S, Symbol
from sympy.core.function import AppliedUndef

from derive.program import t
from derive.program.networks.random_data import sigma
from derive.theory import Theory
from numerics.experiment.experiment import Array, Experiment
from numerics.experiment.problem import Problem
from numerics.results import dimensions

OUTPUT = "f"
"""What theories and programs call the outputs on all samples."""


Asking = Experiment | Problem
"""What knows its targets, its loss and its test points."""


def split(experiment: Asking, values: Mapping[str, Array], *, nonlinear: bool = False) -> dict[str, Array]:
    """What a result holds, from variables over all P + P* samples of one network, replica or exact solution.

    ``values`` has the contract's names and dimensions (those of a ``nonlinear`` network or not), and the
    outputs as ``f`` (time, sample[, channel]).  Variables of samples are cut to the training samples, which
    come first, and ``train_loss`` is the mean over these of the square of the error, summed over outputs, or
    of another loss that the experiment names.  Of test points there are the predictions ``test_f`` and, where
    their targets are known, ``test_error`` (of the square) and ``test_loss``.  Losses are those of what is
    given: split first, then average over networks or replicas.

    >>> from numerics.experiment import Experiment
    >>> e = Experiment.from_dict({"network": {"depth": 2}}, inputs=[[1.0]], targets=[3.0],
    ...     test_inputs=[[2.0]], test_targets=[5.0])
    >>> found = split(e, {"f": np.array([[1.0, 2.0]]), "error": np.array([[2.0, 0.0]])})
    >>> {name: array.tolist() for name, array in found.items()}
    {'error': [[2.0]], 'train_loss': [4.0], 'test_f': [[2.0]], 'test_error': [[3.0]], 'test_loss': [9.0]}
    """
    values = {n: one_sample(x) if n in (OUTPUT, "error") else x for n, x in values.items()}
    held, square = experiment.held_out, experiment.objective in (None, "square")
    found = {name: array for name, array in values.items() if name != OUTPUT}
    if held is not None:
        found = {n: of_training(n, array, held.training, nonlinear) for n, array in found.items()}
    if square and "error" in found:
        found["train_loss"] = mean_square(found["error"])
    elif OUTPUT in values:
        count = len(experiment.targets)
        found["train_loss"] = mean_loss(
            str(experiment.objective), experiment.targets, values[OUTPUT][:, :count]
        )
    if held is None:
        return found
    if OUTPUT in values:
        found["test_f"] = values[OUTPUT][:, held.training :]
        if held.targets is not None:
            if not square:
                loss = mean_loss(str(experiment.objective), held.targets, found["test_f"])
                return found | {"test_loss": loss}
            error = found["test_error"] = held.targets - found["test_f"]
            found["test_loss"] = mean_square(error)
    return found


def one_sample(scalar: Array) -> Array:
    """An output or error (time, sample[, channel]); that of a stream, of one sample a step, is (time,)."""
    return scalar[:, None] if scalar.ndim == 1 else scalar


def mean_loss(objective: str, targets: Array, outputs: Array) -> Array:
    """The loss of outputs (time, sample[, channel]) by its name, summed over channels and averaged over
    samples.

    >>> mean_loss("logistic", np.array([1.0]), np.array([[0.0]])).round(4)
    array([0.6931])
    >>> mean_loss("cross-entropy", np.array([[1.0, 0.0]]), np.array([[[0.0, 0.0]]])).round(4)
    array([0.6931])
    """
    channels = outputs.shape[2] if outputs.ndim == 3 else 1
    function, together = _loss(objective, channels)
    y, f = (
        np.broadcast_to(x, outputs.shape).reshape(*outputs.shape[:2], channels) for x in (targets, outputs)
    )
    with np.errstate(over="ignore"):
        if together:
            loss = function(*np.moveaxis(y, 2, 0), *np.moveaxis(f, 2, 0))
        else:
            loss = function(y, f).sum(axis=2)
    mean: Array = np.asarray(loss, dtype=float).mean(axis=1)
    return mean


@lru_cache(maxsize=16)
def _loss(objective: str, channels: int) -> tuple[Callable[..., Array], bool]:
    """The derived loss as a function of targets and outputs, of all channels together if it mixes them."""
    from sympy import Function, Symbol, lambdify

    from derive.calculus.symbols import IndexRange
    from derive.program.networks.options import objective_of

    if objective != "cross-entropy":
        y, f = Symbol("y"), Symbol("f")
        return lambdify((y, f), objective_of(objective, y, f), "numpy"), False
    c, Y, F = Symbol("c", integer=True), Function("y"), Function("f")
    whole = objective_of(objective, Y(c), F(c), (IndexRange(c, 1, channels),)).doit()
    names = [Symbol(f"{n}{k}") for n in "yf" for k in range(1, channels + 1)]
    table = {G(k): Symbol(f"{n}{k}") for n, G in (("y", Y), ("f", F)) for k in range(1, channels + 1)}
    return lambdify(names, whole.xreplace(table), "numpy"), True


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


def equal_times(a: Array) -> Array:
    """A correlation (time, time_[, channel, channel_]) at equal times, summed over outputs."""
    value: Array = np.einsum("tt->t" if a.ndim == 2 else "ttcc->t", a)
    return value


def random_losses(
    theory: Theory, values: Mapping[str, Array], numbers: Mapping[Symbol, float], outputs: int
) -> dict[str, Array]:
    """Training and test loss of random data, as :meth:`derive.Theory.losses` has them in the
    correlations ``values``: sums over outputs, to which a constant (label noise) adds once for each.
    """

    def value(term: Expr) -> Any:
        kernel = next(iter(term.atoms(AppliedUndef)), S.One)
        factor = float((term / kernel).subs({x: numbers.get(x, 0.0) for x in term.free_symbols - {t}}))
        return factor * (outputs if kernel is S.One else equal_times(values[str(kernel.func)]))

    return {k: sum(map(value, Add.make_args(e))) for k, e in theory.losses(sigma).items()}


def of_training(name: str, array: Array, count: int, nonlinear: bool, leading: int = 0) -> Array:
    """A variable of the first ``count`` samples; ``leading`` dimensions come before its own."""
    dims = dimensions(name, array.ndim - leading, nonlinear)
    own = [slice(count) if x in ("sample", "sample_") else slice(None) for x in dims]
    return array[(slice(None),) * leading + tuple(own)]
