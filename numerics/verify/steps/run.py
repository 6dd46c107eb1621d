"""The whole way for any network: derive, solve, check, simulate, compare, write."""

from __future__ import annotations

import time as clock
from collections.abc import Callable
from pathlib import Path

import xarray as xr

from numerics.experiment import Experiment
from numerics.experiment.activation import is_linear
from numerics.verify.report import Check, Report

Progress = Callable[[int, int], None]

LARGEST_KERNEL = 2e8
"""Bytes of the largest two-time kernel that is kept for all pairs of samples; beyond that, its traces."""

WIDE = (
    "networks: none. Layers without network.width_ratio are infinitely wide, which no network is;\n"
    "a large width_ratio brings networks to compare with."
)
MANY = "networks: none. They would have all {} modes; up to {} are trained."
SERIES = "expansion: not checked; `dmft expand` does not serve this experiment."


def verify_steps(
    experiment: Experiment, out_dir: str | Path | None = None, progress: Progress | None = None
) -> Report:
    """All checks of an experiment that is no plain network; arguments and files as those of `verify`.

    Infinitely wide layers on random data cannot be simulated: that is said, and networks.nc is not written.
    """
    from numerics.experiment.theory import theory_of
    from numerics.solve import solve
    from numerics.verify.identities import derivation
    from numerics.verify.series_nonlinear import nonlinear_expansion_checks
    from numerics.verify.steps import networks, paths
    from numerics.verify.steps.own_width import less_their_theory
    from numerics.verify.steps.words import title

    began = clock.perf_counter()
    theory = theory_of(experiment)
    solution = solve(experiment, kernels="full" if _kernel_bytes(experiment) <= LARGEST_KERNEL else "trace")
    linear = is_linear(experiment.network.activation)
    own = _linear(experiment, solution) if linear else paths.checks(experiment, solution)
    powers, series = ([], SERIES) if linear else nonlinear_expansion_checks(experiment)
    checks = [*derivation(experiment), *own, *powers]
    trained: list[xr.Dataset] = []
    compared: list[Check] = []
    modes = (experiment.data and experiment.data.modes) or 0
    note = MANY.format(modes, networks.MODES) if modes > networks.MODES else WIDE
    if not is_wide(experiment) and modes <= networks.MODES:
        plan = networks.plan_of(experiment)
        trained = networks.train(experiment, plan, progress)
        trained = less_their_theory(experiment, solution, trained)
        theirs = solution if linear else networks.traced(solution)
        compared = networks.against_networks(experiment, theirs, trained)
        note = networks.describe(experiment, plan, compared, theirs, trained)
    report = Report(
        title(experiment),
        (*checks, *compared),
        (series, note),
        theory.render("all", "text"),
        None if out_dir is None else Path(out_dir) / "figure.png",
        clock.perf_counter() - began,
    )
    if out_dir is None:
        return report

    from numerics.verify.files import write
    from numerics.verify.run import by_width
    from numerics.verify.steps.figure import draw

    figure = draw(experiment, solution, trained)
    tex, limit = theory.render("all", "latex"), by_width(trained) if trained else None
    write(Path(out_dir), report, tex, solution, limit, figure)
    return report


def _linear(experiment: Experiment, solution: xr.Dataset) -> list[Check]:
    from numerics.verify.steps import flows, identities

    graded = experiment.spec.kind == "power-law" and experiment.training.rule == "flow"
    return [
        *identities.reading(experiment),
        *identities.middle(experiment),
        *identities.start(experiment, solution),
        *identities.causality(experiment, solution),
        *identities.correlations(solution, experiment.solver.rtol if graded else 0.0),
        *flows.settled(experiment, solution),
        *flows.small_steps(experiment, solution),
    ]


def is_wide(experiment: Experiment) -> bool:
    """Random data and layers that are infinitely wider than their inputs are long."""
    return experiment.spec.kind == "isotropic" and experiment.network.width_ratio is None


def _kernel_bytes(experiment: Experiment) -> float:
    if experiment.spec.kind != "fixed":
        return 0.0
    return 8.0 * experiment.depth * (len(experiment.times) * experiment.sample_count) ** 2
