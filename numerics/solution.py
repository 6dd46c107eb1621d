"""Solutions of experiments and programs, with corrections of finite width if a width is given.

This is :func:`numerics.solve`: :func:`numerics.solver.solve` computes the limit of infinite width, and
:mod:`numerics.fluctuations` the corrections at width N, to leading order in 1/N.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from derive.errors import NotApplicable, ProgramError
from derive.program import Program
from derive.theory import Theory
from numerics.errors import NumericsError, SpecError, Unserved, require_whole
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem, ReplacedTheory
from numerics.progress import Progress
from numerics.results import Labelled, Result, is_correction
from numerics.results.before_divergence import DIVERGED
from numerics.saddles import (
    SHIFTS,
    SHORTEST,
    exchange_notes,
    linear_times,
    saddle_notes,
    shifted,
    sizes_of_change,
    stays,
)
from numerics.solver import registry
from numerics.solver.method import KeptKernels

if TYPE_CHECKING:
    import xarray as xr


def solve(
    source: Problem | Experiment | Program | Theory | str | Path,
    *,
    width: int | None = None,
    kernels: KeptKernels = "auto",
    progress: Progress | None = None,
    say: Callable[[str], object] | None = None,
    throw: bool = True,
    **given: Any,
) -> xr.Dataset:
    """Return the mean-field solution of an experiment, with corrections at a width if one is given.

    Parameters
    ----------
    source : Problem, Experiment, Program, Theory, str or Path
        An experiment, its file, any problem, or a program (or its theory) with ``numbers``, ``arrays``,
        ``times`` and ``solver``.
    width : int, optional
        N, the neurons of the widest hidden layer.  With it the result holds ``X_variance`` (N times the
        variance over networks) and ``X_shift`` (N times their mean minus X) at equal times for losses,
        outputs, errors and kernels, to leading order in 1/N
        (:func:`numerics.fluctuations.finite_width`).
    kernels : {"auto", "full", "trace", "none"}
        Two-time kernels of given samples that the result keeps: of all pairs of samples, their traces, or
        none (at most the gradient kernel of a linear network, which has no samples). "auto" is the first of
        these whose estimated memory is small (2 GiB at most for all pairs).
    progress : callable, optional
        Called with (step, total).
    say : callable, optional
        Called with a sentence before a run that takes long.
    throw : bool
        If false, dynamics that diverge give the output times before the divergence, with the status
        "diverged" and the reason in the attribute ``diverged``.
    **given
        ``numbers``, ``arrays``, ``times`` and ``solver`` of a program, as :meth:`.Problem.of` takes them.

    Returns
    -------
    xarray.Dataset
        Variables by name, such as ``f`` and ``train_loss``.  The attribute ``method`` names the method,
        ``width_method`` that of the corrections, ``exchangeable`` the indices over whose values sampled
        averages are taken, and ``saddle`` is a note if a program stays at a symmetric saddle that finite
        networks leave, or if it is not known whether they leave it (:mod:`numerics.saddles`).

    Raises
    ------
    SpecError
        If no method fits, the corrections of the theory cannot be computed, or ``width`` is not a positive
        integer.
    Diverged
        If the dynamics diverge and ``throw`` is true, with the step or the time; also if no output time is
        left before the divergence.
    NotConverged
        If a method does not reach its tolerance.

    Notes
    -----
    The method is the best that fits (:func:`numerics.solver.choose`), or ``solver.method``.  At width N the
    mean of X over networks is ``X + X_shift/N`` and its variance ``X_variance/N``.

    Examples
    --------
    >>> e = Experiment.from_dict({"network": {"depth": 1}, "training": {"learning_rate": 0.1, "steps": 5}},
    ...     kernel=[[1.0]], targets=[1.0])
    >>> found = solve(e, width=128)
    >>> found.f_variance.values[-1, 0].round(4), found.train_loss_shift.values[-1].round(4)
    (np.float64(0.3028), np.float64(0.5601))
    """
    problem = Problem.of(source, **given)
    if width is None:
        limit = registry.solve(problem, kernels=kernels, progress=progress, say=say, throw=throw)
        return limit.assign_attrs(_saddle_notes_of_dataset(problem, limit))
    from numerics.fluctuations.finite_width import require_corrections

    require_whole("width", width, 1, "must be positive")
    require_corrections(problem)
    limit = registry.solve(problem, kernels=kernels, progress=progress, say=say, throw=throw)
    if limit.attrs.get("status") == DIVERGED:
        last = float(limit.time.values[-1])
        held = None if problem.output_times is None else problem.output_times[problem.output_times <= last]
        problem = replace(problem, times=problem.times[problem.times <= last], output_times=held)
    beside = _corrections(problem, kernels, progress, say).dataset()
    names = [name for name in beside.data_vars if is_correction(str(name))]
    merged = limit.merge(beside[names], join="outer")
    saddle = _saddle_notes_of_dataset(problem, limit)
    return merged.assign_attrs({**limit.attrs, **saddle, **_notes(beside.attrs, width)})


def _saddle_notes_of_dataset(problem: Problem, limit: xr.Dataset) -> dict[str, Any]:
    """Return attributes that say whether finite networks leave the symmetric saddle of a solution.

    ``limit`` is the solution as a dataset; see :func:`_saddle_notes`.
    """
    variables = {
        str(name): Labelled(tuple(map(str, x.dims)), x.values) for name, x in limit.data_vars.items()
    }
    return _saddle_notes(problem, variables, limit.time.values, limit.attrs)


def _saddle_notes(
    problem: Problem, variables: Mapping[str, Labelled], times: NDArray[np.float64], notes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return attributes that say whether finite networks leave the symmetric saddle of a solution.

    ``variables`` are those of the solution, ``times`` its output times, ``notes`` its attributes. A saddle is
    a positive loss that stays constant, or a sampled solution in which values of an index are exchangeable.
    The result is empty without a saddle, if perturbations do not grow, for diverged dynamics, and for fewer
    than SHORTEST times. If it cannot be decided whether networks leave the saddle, the attribute ``saddle``
    holds the reason.
    """
    if notes.get("status") == DIVERGED:
        return {}
    if stays(variables):
        return _notes_of_constant_loss(problem, times, notes.get("samples"))
    if "exchangeable" in notes and len(times) >= SHORTEST:
        return _notes_of_exchangeable_values(problem, int(notes["samples"]))
    return {}


def _notes_of_constant_loss(
    problem: Problem, times: NDArray[np.float64], samples: int | None
) -> dict[str, Any]:
    """Return attributes for a solution whose loss does not move; empty if perturbations do not grow.

    The theory is solved again with its averages over units shifted by small numbers
    (:func:`_linear_perturbations`). ``samples`` is the number of paths of a sampled solution, None for
    others; the shifted solutions have the same number and seeds, so that their noise cancels in differences.
    The attribute ``saddle`` holds the reason if the theory was changed, if a solution fails, or if changes
    are linear in the shift at too few times.
    """
    unknown = "the loss does not move; whether finite networks leave this point is not known, because "
    if any(isinstance(x, ReplacedTheory) for x in problem.reductions):
        return {"saddle": f"{unknown}a changed theory has no program whose averages could be perturbed"}
    if samples is not None:
        fixed = problem.solver.model_copy(update={"samples": int(samples), "accuracy": None})
        problem = replace(problem, solver=fixed)
    try:
        count, changes = _linear_perturbations(problem, len(times))
    except (NotApplicable, NumericsError, ProgramError, SpecError, Unserved) as reason:
        return {"saddle": f"{unknown}the theory with perturbed averages was not solved: {reason}"}
    if count < min(SHORTEST, len(times)):
        return {"saddle": f"{unknown}perturbations leave the linear order within {SHORTEST} output times"}
    return saddle_notes(changes[:, :count], times[:count])


def _linear_perturbations(problem: Problem, times: int) -> tuple[int, NDArray[np.float64]]:
    """Return how outputs and other numbers change if averages over units are shifted by a small constant.

    ``times`` is the number of output times. The first member of the result is the number of first times at
    which changes are linear in the shift, the second the changes, ``(numbers, times)``. Each shift in SHIFTS,
    from the largest on, is compared with the next smaller one. The changes are those by the first shift for
    which they are linear at all ``times``, or else those by the last shift but one.
    """
    limit = registry.solved(problem, "none").data_vars

    def changes_of(size: float) -> NDArray[np.float64]:
        perturbed = replace(problem, program=shifted(problem.program, size), family=None)
        return sizes_of_change(limit, registry.solved(perturbed, "none").data_vars)

    large, size = changes_of(SHIFTS[0]), SHIFTS[0]
    for smaller in SHIFTS[1:]:
        small = changes_of(smaller)
        count = linear_times(large, small, size / smaller) if len(large) else times
        if count == times or smaller == SHIFTS[-1]:
            break
        large, size = small, smaller
    return count, large


def _notes_of_exchangeable_values(problem: Problem, samples: int) -> dict[str, Any]:
    """Return attributes of a sampled solution in which values of an index are exchangeable.

    ``samples`` is the number of its paths. The attributes state how fast finite networks leave the solution;
    they are empty if perturbations that break the symmetry do not grow. If these cannot be computed, or are
    linear at too few times, the attribute ``saddle`` holds the reason.
    """
    from numerics.solver.paths.instability import perturbations

    unknown = "exchangeable values stay alike; whether finite networks stay near is not known, because "
    try:
        times, gaps = perturbations(problem, samples, SHORTEST)
    except (NumericsError, Unserved) as reason:
        return {"saddle": f"{unknown}{reason}"}
    if len(times) < SHORTEST:
        return {"saddle": f"{unknown}perturbations leave the linear order, or responses are not resolved"}
    return exchange_notes(gaps, times)


def solved(
    source: Problem | Experiment,
    width: int | None = None,
    kernels: KeptKernels = "auto",
    progress: Progress | None = None,
    say: Callable[[str], object] | None = None,
) -> Result:
    """Return the result of :func:`solve` as a Result, without importing xarray.

    ``source`` is a problem or an experiment, and the other arguments are those of :func:`solve`, whose errors
    are raised. Always raises Diverged if the dynamics diverge.
    """
    problem = Problem.of(source)
    if width is not None:
        from numerics.fluctuations.finite_width import require_corrections

        require_whole("width", width, 1, "must be positive")
        require_corrections(problem)
    limit = registry.solved(problem, kernels, progress, say)
    saddle = _saddle_notes(problem, limit.data_vars, limit.coords["time"].values, limit.notes)
    limit = replace(limit, notes={**limit.notes, **saddle})
    if width is None:
        return limit
    beside = _corrections(problem, kernels, progress, say)
    variables = {name: x for name, x in beside.data_vars.items() if is_correction(name)}
    return replace(
        limit,
        data_vars={**limit.data_vars, **variables},
        coords={**beside.coords, **limit.coords},
        notes={**limit.notes, **_notes(beside.notes, width)},
    )


def _corrections(
    problem: Problem,
    kernels: KeptKernels,
    progress: Progress | None,
    say: Callable[[str], object] | None,
) -> Result:
    """Return the result of a problem with N times variances over networks and N times shifts of means.

    These do not depend on the width N, because they are the coefficients of 1/N.
    """
    from numerics.fluctuations.finite_width import corrected

    return corrected(problem, kernels, progress, say)


def _notes(notes: Any, width: int) -> dict[str, Any]:
    """Return the attributes of a result with finite-width corrections: the width and notes on the method.

    ``notes`` are all attributes of the corrections, of which those named in CORRECTION_NOTES are kept.
    """
    kept = {key: x for key, x in notes.items() if key in CORRECTION_NOTES}
    return {"width": width, **kept}


CORRECTION_NOTES = (
    "width_method",
    "width_kernels",
    "width_time_nodes",
    "variance_error",
    "shift_error",
    "no_shift",
)
"""Attributes of corrections that a solution keeps."""
