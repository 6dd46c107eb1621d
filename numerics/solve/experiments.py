"""Solve any experiment: a linear network without noise, a nonlinear one by sampled paths."""

from __future__ import annotations

import time as clock

import xarray as xr

from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.experiment.activation import is_linear
from numerics.experiment.theory import Variant
from numerics.results import dataset
from numerics.served import require_served
from numerics.solve import linear
from numerics.solve.linear import Kernels, Progress
from numerics.solve.nonlinear import fitting, solve_nonlinear
from numerics.threads import one_thread


@one_thread
def solve(
    experiment: Experiment,
    *,
    kernels: Kernels = "auto",
    variant: Variant | None = None,
    progress: Progress | None = None,
) -> xr.Dataset:
    """The nonperturbative mean-field solution of ``experiment``.

    A linear network is solved as :func:`numerics.solve.linear.solve` says.  A nonlinear one, on fixed data,
    is solved from sampled paths of the derived single-site processes
    (:func:`~numerics.solve.nonlinear.solve_nonlinear`): every variable has its standard error over
    independent replicas beside it (``*_stderr``), and the attributes say how many ``samples`` and
    ``replicas`` there were, how the ``responses`` were found, and the ``accuracy`` reached and the
    ``bias_estimate``, both relative to the largest loss and error.  ``kernels`` of nonlinear networks:
    ``full`` keeps Phi, G, A, B and the tangent kernel of all pairs of samples, ``trace`` the traces of Phi, G
    and the tangent kernel over samples (and outputs), ``none`` none; ``auto`` the most that is small.

    ``variant`` takes the experiment's program to another one, whose theory is derived and solved instead.
    Raises :class:`~numerics.errors.SpecError`, :class:`~numerics.errors.Diverged` and
    :class:`~numerics.errors.NotConverged`.
    """
    if is_linear(experiment.network.activation):
        return linear.solve(experiment, kernels=kernels, variant=variant, progress=progress)
    require_served(experiment, "dmft solve")
    if experiment.symbolic:
        raise SpecError(
            "network.depth",
            experiment.network.depth,
            "the limit of infinite depth is solved for linear networks alone",
            'an integer >= 1, or network.activation = "linear"',
        )
    started = clock.perf_counter()
    kept = fitting(experiment) if kernels == "auto" else kernels
    values, notes = solve_nonlinear(experiment, kept, progress, variant)
    return dataset(
        values,
        times=experiment.times,
        spec=experiment.text,
        nonlinear=True,
        method="particles",
        kernels=kept,
        seed=experiment.solver.seed,
        wall_time_s=clock.perf_counter() - started,
        **notes,
    )
