"""Corrections of finite width to the variables of results: ``X_variance`` and ``X_shift``.

They are N times the variance over networks of width N of losses, outputs, errors and kernels at equal times,
and N times the difference of their mean from the limit, to leading order in 1/N.  N counts the neurons of the
widest hidden layer.  ``numerics.solve(..., width=N)`` and ``dmft solve --width`` add them to a solution.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray

from derive.program import Program
from derive.theory import Theory
from numerics.errors import require_choice
from numerics.experiment import Experiment
from numerics.experiment.numbers import layer_ratios
from numerics.experiment.problem import Problem
from numerics.fluctuations.corrections import WidthCorrections, corrections
from numerics.fluctuations.expanded_problem import lowered, size_growth
from numerics.fluctuations.flow import corrections_of_flow, require_no_noise
from numerics.fluctuations.plan import WidthPlan
from numerics.fluctuations.variables import VariableBuilder
from numerics.names import OUTPUT
from numerics.progress import Progress
from numerics.results import SHIFT, STDERR, SYSTEMATIC, VARIANCE, Result
from numerics.results.losses import loss_in_words
from numerics.results.program_names import authored_variables, coordinates, described, names_in_words
from numerics.solver.method import KeptKernels
from numerics.threads import one_thread

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]


@one_thread
def finite_width(
    source: Problem | Experiment | Program | Theory | str | Path,
    *,
    kernels: KeptKernels = "auto",
    progress: Progress | None = None,
    **given: Any,
) -> xr.Dataset:
    """Return variances and shifts of the variables of results at order 1/N.

    Parameters
    ----------
    source : Problem, Experiment, Program, Theory, str or Path
        A problem, an experiment, its file, or a program (or its theory) with its numbers.
    kernels : {"auto", "full", "trace", "none"}
        Kernels at equal times: of all pairs of samples, their traces, or none; "auto" keeps as many as can be
        computed in less than a minute.
    progress : callable, optional
        Called with (step, total).
    **given
        ``numbers``, ``arrays``, ``times`` and ``solver`` of a program.

    Returns
    -------
    xarray.Dataset
        ``X_variance`` and ``X_shift`` for X such as ``train_loss``, ``f``, ``tangent_kernel``, ``Phi``, ``G``
        (of random data their correlations and losses), at equal times. Losses, outputs and errors at
        infinite width are included; kernels are not.  If shifts are not known, the attribute ``no_shift``
        gives the reason.  For a flow the attributes ``variance_error`` and ``shift_error`` are estimated
        errors relative to the largest value.  Corrections of nonlinear networks are sampled and have standard
        errors (``*_stderr``); with kinks and several layers also an estimate of the error of rounding the
        kinks (``*_systematic``).

    Raises
    ------
    SpecError
        If networks have no width or the expansion of their program is not derived, for fixed samples in NTK
        scaling, for an error that jumps with the output, as that of the hinge loss, for a flow with noise or
        of a nonlinear network, for a nonlinear network with more than 1000 order parameters, or if the
        computation by its estimate takes longer than ``solver.hours`` or too much memory.
    NotConverged
        For a flow whose variances have a large estimated error on the finest affordable time grid, and for a
        nonlinear network if the expansion about its sampled paths is singular or not finite.
    Diverged
        If an order parameter at infinite width is not finite.

    Notes
    -----
    N counts the neurons of the widest hidden layer.  Other layers, and features of isotropic data, have their
    own sizes in the proportions of the experiment.  For a program N is the size to which the ratios of its
    populations refer.  Corrections hold while they are small compared with the limit.

    Examples
    --------
    >>> e = Experiment.from_dict({"network": {"depth": 2}, "training": {"learning_rate": 0.08, "steps": 5}},
    ...     kernel=[[1.0]], targets=[1.0])
    >>> found = finite_width(e)
    >>> found.f_variance.values[-1, 0].round(4), found.f_shift.values[-1, 0].round(4)
    (np.float64(0.4056), np.float64(-1.056))
    """
    return corrected(Problem.of(source, **given), kernels, progress).dataset()


def corrected(
    problem: Problem,
    kernels: KeptKernels = "auto",
    progress: Progress | None = None,
    say: Callable[[str], object] | None = None,
) -> Result:
    """Return the result of :func:`finite_width` for a problem: variances and shifts at order 1/N.

    It is a :class:`Result` of NumPy arrays, so that xarray need not be imported. ``kernels`` and ``progress``
    are those of :func:`finite_width`. ``say`` is called with one line of text if the computation for a rule
    in steps takes long; it is not called for a flow.
    """
    started = clock.perf_counter()
    width_corrections, notes = expanded_variables(problem, kernels, progress, say)
    factor = largest_ratio(problem)
    single = ONE_TIME | {label for label, x in authored_variables(problem).items() if x.pair is None}
    values = {name: x for name, x in width_corrections.values.items() if name in single}
    values |= {name + VARIANCE: factor * x for name, x in width_corrections.variances.items()}
    values |= {name + SHIFT: factor * x for name, x in width_corrections.shifts.items()}
    values |= {name + STDERR: factor * x for name, x in width_corrections.errors.items()}
    values |= {name + SYSTEMATIC: factor * x for name, x in width_corrections.systematic.items()}
    return Result.of(
        values,
        times=problem.held_times,
        spec=problem.text,
        data_sha256=problem.data_sha256,
        nonlinear=problem.by_sample,
        positions=problem.positions,
        time_name=problem.time_name,
        loss=loss_in_words(problem, width_corrections.values),
        authored=described(problem),
        coordinates=coordinates(problem),
        names=names_in_words(problem),
        wall_time_s=clock.perf_counter() - started,
        **notes,
    )


def expanded_variables(
    problem: Problem,
    kernels: KeptKernels,
    progress: Progress | None = None,
    say: Callable[[str], object] | None = None,
) -> tuple[WidthCorrections, dict[str, Any]]:
    """Return the variables of results with their variances and shifts, and the attributes of the result.

    Attributes are the name of the method, the kernels that are kept, and why shifts are missing; for flows
    also estimated errors. Variances and shifts are multiplied by N, the number of units of a population of
    ratio one; :func:`largest_ratio` converts them to the widest hidden layer. ``kernels``, ``progress`` and
    ``say`` are those of :func:`corrected`.
    """
    require_choice("kernels", kernels, get_args(KeptKernels))
    require_corrections(problem)
    if problem.flow:
        return corrections_of_flow(problem, kernels, progress)
    return _corrections_of_steps(problem, kernels, progress, say)


def require_corrections(problem: Problem) -> None:
    """Raise SpecError if no method computes corrections at order 1/N for a problem.

    Time and memory that a method needs are not checked.
    """
    if problem.experiment is not None:
        problem.experiment.require_moving_features("the expansion in 1/N at fixed gamma0")
    if problem.flow:
        require_no_noise(problem)
    WidthPlan.of(problem, size_growth(problem).at(len(problem.times)), len(problem.held_times), "none")


LONG = 10.0
"""Estimated seconds above which the estimate is printed before a run."""

ONE_TIME = frozenset(
    {"train_loss", "mean_square_error", "test_loss", OUTPUT, "error", "test_f", "test_error"}
)
"""Variables with one time, which a result holds beside their corrections."""


def largest_ratio(problem: Problem) -> float:
    """Return the number of neurons of the widest hidden layer, divided by the width N of the theory.

    N is the size to which the ratios of all layers refer. The result is always 1 for a program.
    """
    return 1.0 if problem.experiment is None else max(layer_ratios(problem.experiment))


def _corrections_of_steps(
    problem: Problem,
    kernels: KeptKernels,
    progress: Progress | None,
    say: Callable[[str], object] | None,
) -> tuple[WidthCorrections, dict[str, Any]]:
    """Return the variances and shifts at order 1/N for a rule in steps, and the attributes of the result.

    Attributes are the name of the method, the kernels that are kept, and why shifts are missing. ``progress``
    is called with (step, total), and ``say`` with an estimate of the duration if it is long.
    """
    times = len(problem.times)
    held = list(range(times)) if problem.held is None else problem.held.tolist()
    plan = WidthPlan.of(problem, size_growth(problem).at(times), len(held), kernels)
    plan.require_resources()
    if say is not None and plan.seconds > LONG:
        say(f"corrections of finite width, {plan.method.name}: about {plan.seconds:.2g} s")
    solved = plan.method.solve(lowered(problem), problem.solver)
    if progress is not None:
        progress(1, 2)
    builder = VariableBuilder(problem, solved.lowered, solved.values, held, plan.keep)
    return corrections(solved, builder.variables()), plan.notes()
