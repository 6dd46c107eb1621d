"""Variables of training samples and of test points, from variables of all samples together.

Solvers and simulations compute P + P* samples at once; :func:`split` cuts them, and evaluates losses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from sympy import Add, Expr, S, Sum, Symbol
from sympy.core.function import AppliedUndef

from derive.program import Program, mu, t
from derive.program.networks.options import SAMPLE_WEIGHT
from derive.program.networks.random_data import sigma
from derive.theory import Theory
from numerics.experiment.experiment import Array
from numerics.experiment.problem import Problem
from numerics.names import ERROR, OUTPUT
from numerics.results import dimensions
from numerics.results.losses import SampleLoss, loss_of


def split(problem: Problem, values: Mapping[str, Array], *, nonlinear: bool = False) -> dict[str, Array]:
    """Return the variables of a result, from those of all samples of one network or replica.

    The samples are P training samples, which come first, and P* test points.

    ``values`` has the names and dimensions of results (those of a ``nonlinear`` network or not), and the
    outputs as ``f`` (time, sample[, channel]).  Variables of samples, ``f`` included, are cut to the training
    samples.  ``train_loss`` is the mean over these of the program's own loss
    (:func:`numerics.results.losses.loss_of`); ``mean_square_error`` is added if the error signal is
    proportional to target minus output and the loss is not a square.  Test points have the predictions
    ``test_f``.  If their targets are known and the loss of a sample depends on its own output only, they also
    have ``test_loss`` (the same loss), and ``test_error``, target minus output, if the error signal is
    proportional to this difference.  Losses are not linear in outputs: split the outputs of each network or
    replica first, then average.

    >>> from numerics.experiment import Experiment
    >>> e = Experiment.from_dict({"network": {"depth": 2}, "training": {"learning_rate": 0.1, "steps": 1}},
    ...     inputs=[[1.0]], targets=[3.0], test_inputs=[[2.0]], test_targets=[5.0])
    >>> found = split(Problem.of(e), {"f": np.array([[1.0, 2.0]]), "error": np.array([[2.0, 0.0]])})
    >>> for name in ("f", "error", "train_loss", "test_f", "test_error", "test_loss"):
    ...     print(name, found[name].tolist())
    f [[1.0]]
    error [[2.0]]
    train_loss [4.0]
    test_f [[2.0]]
    test_error [[3.0]]
    test_loss [9.0]
    """
    values = {n: one_sample(x, problem.program) if n in (OUTPUT, "error") else x for n, x in values.items()}
    held, loss = problem.held_out, loss_of(problem.program)
    variables = dict(values)
    if held is not None:
        variables = {
            n: of_training(n, array, held.training, nonlinear, problem.positions)
            for n, array in variables.items()
        }
    if squares_errors(problem, loss) and "error" in variables:
        variables["train_loss"] = mean_square(variables["error"])
    elif loss is not None and OUTPUT in values:
        variables |= _losses(loss, problem, values[OUTPUT][:, : problem.seen], slice(problem.seen))
    if held is None or OUTPUT not in values:
        return variables
    outputs, samples = values[OUTPUT][:, held.training :], slice(held.training, None)
    variables["test_f"] = outputs
    if held.targets is None or loss is None or not loss.of_each_sample:
        return variables
    if loss.difference is not None:
        variables["test_error"] = held.targets - outputs
    if loss.is_square:
        return variables | {"test_loss": mean_square(variables["test_error"])}
    return variables | {"test_loss": loss.mean(problem, outputs, samples)}


def one_sample(scalar: Array, program: Program) -> Array:
    """Return a scalar (time, ...), with an axis of samples of length one if the program has no samples.

    ``scalar`` is an output or error signal.
    """
    channels = len(_indices_of_output(program) - {mu})
    return scalar[:, None] if scalar.ndim == 1 + channels else scalar


def one_sample_kernel(kernel: Array, program: Program) -> Array:
    """Return a kernel with two axes of samples of length one if the program has no samples.

    ``kernel`` has shape (time, time_[, channel, ``channel_``]); kernels with axes of samples are unchanged.
    """
    if mu in _indices_of_output(program):
        return kernel
    return kernel[:, :, None, None] if kernel.ndim == 2 else kernel[:, :, None, :, None]


def _indices_of_output(program: Program) -> set[Any]:
    """Return the indices of the output except time; {mu} for a program without an output."""
    return {*next((d.lhs.args for d in program.definitions if d.name == OUTPUT), (mu, t))} - {t}


def _losses(loss: SampleLoss, problem: Problem, outputs: Array, samples: slice) -> dict[str, Array]:
    """Return the loss of training samples, and their mean square error.

    The latter is left out for a square loss, and if errors are not proportional to target minus output.
    """
    losses = {"train_loss": loss.mean(problem, outputs, samples)}
    square = None if loss.is_square else loss.mean_square(problem, outputs, samples)
    return losses if square is None else losses | {"mean_square_error": square}


def squares_errors(problem: Problem, loss: SampleLoss | None) -> bool:
    """Return whether the training loss is the mean square of target minus output.

    This is so for a square loss without weights of samples, or with weights that are one for all training
    samples.
    """
    if loss is None or not loss.is_square or loss.difference is None:
        return False
    weights = problem.arrays.get(SAMPLE_WEIGHT)
    ones = weights is not None and bool(np.all(weights[: problem.seen] == 1))
    return ones or loss.expression == loss.difference**2


def watched(problem: Problem, scalars: Mapping[str, Array]) -> Array:
    """Return the numbers whose accuracy decides on the step length of a flow, (time, sample[, channel]).

    They are errors of training samples and, along the same axis, predictions of test points. ``scalars``
    holds errors and outputs of all samples by their names in the program.
    """
    error, held = scalars[ERROR], problem.held_out
    if held is None:
        return error
    return np.concatenate([error[:, : held.training], scalars[OUTPUT][:, held.training :]], axis=1)


def size_of(problem: Problem) -> Callable[[Array], float]:
    """Return a function that gives the size relative to which numerical errors of a flow are measured.

    It maps the values of :func:`watched` to the largest absolute error signal of a training sample at any
    time.

    >>> from numerics.experiment import Experiment
    >>> tables = {"network": {"depth": 2}, "training": {"learning_rate": 0.1, "steps": 1}}
    >>> e = Experiment.from_dict(tables, inputs=[[1.0]], targets=[3.0], test_inputs=[[2.0]])
    >>> size_of(Problem.of(e))(np.array([[3.0, 6.0]]))
    3.0
    """
    count = None if problem.held_out is None else problem.held_out.training

    def size(value: Array) -> float:
        return float(np.max(np.abs(value[:, :count] if count else value)))

    return size


def mean_square(error: Array) -> Array:
    """Return squares of errors (time, sample[, channel]), summed over outputs and averaged over samples.

    >>> mean_square(np.array([[1.0, 3.0]])), mean_square(np.array([[[1.0, 3.0]]]))
    (array([5.]), array([10.]))
    """
    with np.errstate(over="ignore"):  # squares may overflow before a divergence is detected
        loss: Array = (error**2).reshape(*error.shape[:2], -1).sum(axis=2).mean(axis=1)
    return loss


def equal_times(a: Array) -> Array:
    """Return a correlation ``(time, time_[, channel, channel_])`` at equal times, summed over outputs."""
    value: Array = np.einsum("tt->t" if a.ndim == 2 else "ttcc->t", a)
    return value


def random_losses(
    theory: Theory, values: Mapping[str, Array], numbers: Mapping[Symbol, float], outputs: int
) -> dict[str, Array]:
    """Return training and test loss of random data, from the correlations ``values``.

    The formulas are those of :meth:`derive.Theory.losses`.  ``numbers`` are values of their symbols; a symbol
    without a value counts as zero.  Correlations are summed over outputs; a constant (label noise) is added
    once for each of the ``outputs``.
    """

    def value(term: Expr) -> Any:
        """Return one term of the formula of a loss: an array over time, or a number for a constant term."""
        term = term.xreplace({x: x.function for x in term.atoms(Sum)})  # correlations are summed over outputs
        kernel = next(iter(term.atoms(AppliedUndef)), S.One)
        factor = float((term / kernel).subs({x: numbers.get(x, 0.0) for x in term.free_symbols - {t}}))
        return factor * (outputs if kernel is S.One else equal_times(values[str(kernel.func)]))

    return {k: sum(map(value, Add.make_args(e))) for k, e in theory.losses(sigma).items()}


def of_training(
    name: str, array: Array, count: int, nonlinear: bool, positions: bool, leading: int = 0
) -> Array:
    """Return the variable ``name``, cut to its first ``count`` samples, which are those of training.

    ``array`` has ``leading`` axes, such as replicas, before those of the variable. A ``nonlinear`` network,
    and one whose units have ``positions``, may have other dimensions.
    """
    dims = dimensions(name, array.ndim - leading, nonlinear, positions)
    index = [slice(count) if x in ("sample", "sample_") else slice(None) for x in dims]
    return array[(slice(None),) * leading + tuple(index)]
