"""Solutions of experiments and programs, with corrections of finite width if a width is given.

This is :func:`numerics.solve`: :func:`numerics.solver.solve` computes the limit of infinite width, and
:mod:`numerics.fluctuations` the corrections at width N, to leading order in 1/N.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from derive.errors import NotApplicable, ProgramError
from derive.program import Program
from derive.theory import Theory
from numerics.errors import NumericsError, SpecError, Unserved, require_whole
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.progress import Progress
from numerics.results import Result, is_correction
from numerics.results.before_divergence import DIVERGED
from numerics.saddles import SHORTEST, exchange_notes, saddle_notes, shifted, stays
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
        Two-time kernels of given samples that the result keeps: of all pairs of samples, their traces, none,
        or ("auto") as much as a small file can hold.
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
        The variables of the contract.  The attribute ``method`` names the method, ``width_method`` that of
        the corrections, ``exchangeable`` the indices over whose values sampled averages are taken, and
        ``saddle`` is a note if a program stays at a symmetric saddle that finite networks leave
        (:mod:`numerics.saddles`).

    Raises
    ------
    SpecError
        If no method fits, or the corrections of the theory cannot be computed.
    Diverged
        If the dynamics diverge, with the step.
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
        said = _saddle(source, limit, given) if stays(limit) else _broken_symmetry(problem, limit)
        return limit.assign_attrs(said)
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
    return merged.assign_attrs({**limit.attrs, **_notes(beside.attrs, width)})


def _saddle(source: Any, limit: xr.Dataset, given: dict[str, Any]) -> dict[str, Any]:
    """Return attributes for a solution whose loss does not move, if the program is known.

    The theory with its averages perturbed is solved too; if that fails, there are no attributes.
    """
    if not isinstance(source, Program):
        return {}
    try:
        beside = registry.solve(Problem.of(shifted(source), **given), kernels="none")
    except (NotApplicable, NumericsError, ProgramError, SpecError, Unserved):
        return {}
    return saddle_notes(limit, beside)


def _broken_symmetry(problem: Problem, found: xr.Dataset) -> dict[str, Any]:
    """Return attributes of a solution with exchangeable values: whether finite networks stay near it.

    If perturbations cannot be computed, the attribute holds the reason.
    """
    if "exchangeable" not in found.attrs or found.time.size < SHORTEST or found.attrs["status"] == DIVERGED:
        return {}
    from numerics.solver.paths.instability import perturbations

    unknown = "exchangeable values stay alike; whether finite networks stay near is not known, because "
    try:
        gaps = perturbations(problem, int(found.attrs["samples"]))
    except (NumericsError, Unserved) as reason:
        return {"saddle": f"{unknown}{reason}"}
    if gaps.shape[1] < SHORTEST:
        return {"saddle": f"{unknown}perturbations leave the linear order, or responses are not resolved"}
    return exchange_notes(gaps, found.time.values[: gaps.shape[1]])


def solved(
    source: Problem | Experiment,
    width: int,
    kernels: KeptKernels = "auto",
    progress: Progress | None = None,
    say: Callable[[str], object] | None = None,
) -> Result:
    """Return the result of :func:`solve` at a width as a Result, without importing xarray."""
    from numerics.fluctuations.finite_width import require_corrections

    problem = Problem.of(source)
    require_corrections(problem)
    limit = registry.solved(problem, kernels, progress, say)
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
    """Return the corrections of finite width."""
    from numerics.fluctuations.finite_width import corrected

    return corrected(problem, kernels, progress, say)


def _notes(notes: Any, width: int) -> dict[str, Any]:
    """Return attributes of a result with finite-width corrections: its width and the CORRECTION_NOTES."""
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
