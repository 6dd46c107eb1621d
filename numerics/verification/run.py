"""The whole way for one experiment: derive, solve, expand, simulate, compare, and write it all down."""

from __future__ import annotations

import json
import time as clock
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from numerics.expansion import expand, series
from numerics.experiment import Experiment
from numerics.experiment.activation import is_linear
from numerics.experiment.theory import theory_of
from numerics.files import replacing
from numerics.plots import save_figure
from numerics.results import save
from numerics.solver import solve
from numerics.stats import extrapolate
from numerics.threads import one_thread
from numerics.verification import flows, identities, networks, sampled
from numerics.verification.figure import SERIES, draw
from numerics.verification.report import Check, Report
from numerics.verification.series import ORDER, expansion, partial_sum
from numerics.verification.words import title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Progress = Callable[[int, int], None]

LARGEST_KERNEL = 2e8
"""Bytes of the largest two-time kernel that is kept for all pairs of samples; beyond that, its traces."""

PICTURE = 3e-3
"""Relative accuracy of the dotted curves of a flow."""

WIDE = (
    "networks: none. Layers without network.width_ratio are infinitely wide, which no network is;\n"
    "a large width_ratio brings networks to compare with."
)
MANY = "networks: none. They would have all {} modes; up to {} are trained."

DOCUMENT = r"""\documentclass{article}
\usepackage[a4paper,landscape,margin=15mm]{geometry}
\usepackage{amsmath,amssymb}
\allowdisplaybreaks
\begin{document}
%s
\end{document}
"""


@dataclass(frozen=True)
class Case:
    """An experiment and its solution, and what decides which checks there are."""

    experiment: Experiment
    solution: xr.Dataset

    @property
    def linear(self) -> bool:
        """Then the solution is exact; else it may be an average over paths."""
        return is_linear(self.experiment.network.activation)

    @property
    def sampled(self) -> bool:
        """Nonlinear."""
        return not self.linear

    @property
    def fixed(self) -> bool:
        """Fixed samples."""
        return self.experiment.spec.kind == "fixed"

    @property
    def flow(self) -> bool:
        """Continuous time."""
        return self.experiment.training.rule == "flow"

    @property
    def steepest(self) -> bool:
        """Every step goes down the gradient, and does nothing else."""
        t = self.experiment.training
        return not (t.weight_decay or t.momentum or t.temperature or t.center)

    @property
    def interpolated(self) -> float:
        """What the solution may be off between nodes: of flows on power-law data."""
        power_law = self.experiment.spec.kind == "power-law" and self.flow
        return self.experiment.solver.rtol if power_law else 0.0


CHECKS: tuple[tuple[Callable[[Case], bool], Callable[[Case], list[Check]]], ...] = (
    (lambda c: True, lambda c: identities.derivation(c.experiment)),
    # linear theories are solved exactly
    (lambda c: c.linear, lambda c: identities.reading(c.experiment)),
    (lambda c: c.linear and c.fixed and c.steepest, lambda c: identities.reduced(c.experiment)),
    (lambda c: c.linear and c.fixed and c.steepest, lambda c: identities.moved(c.experiment)),
    (lambda c: c.linear and not c.experiment.network.bias, lambda c: identities.middle(c.experiment)),
    (lambda c: c.linear, lambda c: identities.start(c.experiment, c.solution)),
    (lambda c: c.linear and not c.flow, lambda c: identities.causality(c.experiment, c.solution)),
    (lambda c: c.linear, lambda c: identities.correlations(c.solution, c.interpolated)),
    (lambda c: c.linear and c.flow, lambda c: flows.settled(c.experiment, c.solution)),
    (lambda c: c.linear and c.flow, lambda c: flows.small_steps(c.experiment, c.solution)),
    # nonlinear ones as averages over paths
    (lambda c: c.sampled, lambda c: sampled.start(c.experiment, c.solution)),
    (lambda c: c.sampled, lambda c: sampled.causality(c.experiment, c.solution)),
    (lambda c: c.sampled, lambda c: sampled.correlations(c.solution)),
    (lambda c: c.sampled, lambda c: sampled.reading(c.experiment)),
    (lambda c: c.sampled, lambda c: sampled.responses(c.experiment)),
    (lambda c: c.sampled and not c.flow, lambda c: sampled.lazy(c.experiment)),
    (lambda c: c.sampled and c.flow, lambda c: sampled.settled(c.experiment, c.solution)),
    (lambda c: c.sampled and c.flow, lambda c: sampled.small_steps(c.experiment, c.solution)),
)
"""Every check of a theory and its solution: when there is one, and what it does."""


@one_thread
def verify(
    experiment: Experiment | str | Path, out_dir: str | Path | None = None, progress: Progress | None = None
) -> Report:
    """All checks of an experiment; with `out_dir`, the files behind them.

    Written there, each complete or not at all: equations.txt, equations.tex, table.txt, checks.json,
    theory.nc, networks.nc (along `width`, the last of which is infinite) and figure.png. Nothing is written
    unless every computation came to an end. `progress(done, total)` counts the networks trained.
    A nonlinear theory is solved by sampled paths, whatever else would fit: the checks are about paths.
    Infinitely wide layers on random data cannot be simulated: that is said, and networks.nc is not written.

    Raises `SpecError` for a symbolic depth, `Diverged` and `NotConverged` as `solve` and `simulate` do. That
    a check failed is no exception: see `Report.passed`.
    """
    began = clock.perf_counter()
    experiment = Experiment.of(experiment)
    if not is_linear(experiment.network.activation):
        experiment = experiment.replace({"solver.method": "paths"})
    theory = theory_of(experiment)
    solution = solve(experiment, kernels="full" if _kernel_bytes(experiment) <= LARGEST_KERNEL else "trace")
    case = Case(experiment, solution)
    checks = [check for applies, found in CHECKS if applies(case) for check in found(case)]
    powers, note = expansion(experiment)
    trained, compared, words = _networks(case, progress)
    texts = [theory.render("all", "text")] + ([series(experiment, ORDER).render("text")] if powers else [])
    report = Report(
        title(experiment),
        (*checks, *powers, *compared),
        (note, words),
        "\n\n".join(texts),
        None if out_dir is None else Path(out_dir) / "figure.png",
        clock.perf_counter() - began,
    )
    if out_dir is None:
        return report
    tex = [theory.render("all", "latex")] + ([series(experiment, ORDER).render("latex")] if powers else [])
    figure = draw(experiment, solution, trained, sums_of(experiment) if powers else {})
    limit = by_width(trained) if trained else None
    write(Path(out_dir), report, "\n\n".join(tex), solution, limit, figure)
    return report


def _networks(case: Case, progress: Progress | None) -> tuple[list[xr.Dataset], list[Check], str]:
    """What was trained, what it says, and in words on what."""
    experiment, solution = case.experiment, case.solution
    modes = (experiment.data and experiment.data.modes) or 0
    if modes > networks.MODES:
        return [], [], MANY.format(modes, networks.MODES)
    if experiment.spec.kind == "isotropic" and experiment.network.width_ratio is None:
        return [], [], WIDE
    plan = networks.plan_of(experiment)
    trained = networks.train(experiment, plan, progress)
    trained = networks.less_their_theory(experiment, solution, trained)
    compared = networks.against_networks(solution, trained)
    return (
        trained,
        compared,
        networks.describe(experiment, plan, compared, networks.traced(solution), trained),
    )


def sums_of(experiment: Experiment) -> dict[int, xr.Dataset]:
    """The expansion summed up to the orders that are drawn, to the accuracy of a picture."""
    if not is_linear(experiment.network.activation) or _kernel_bytes(experiment) > LARGEST_KERNEL:
        return {}
    rough = experiment.replace({"solver.rtol": max(experiment.solver.rtol, PICTURE)})
    expanded = expand(rough, ORDER)
    return {n: partial_sum(expanded, experiment.network.gamma0, n) for n, *_ in SERIES}


def by_width(trained: Sequence[xr.Dataset]) -> xr.Dataset:
    """The means and standard errors of every width along `width`, extrapolated at width infinity."""
    limit = extrapolate(trained)
    names = [name for name in trained[0].data_vars if name in limit]
    joined = xr.concat([d[names] for d in (*trained, limit)], dim="width", combine_attrs="drop")
    joined = joined.assign_coords(width=[*(float(d.attrs["width"]) for d in trained), np.inf])
    joined.attrs = {**limit.attrs, "seeds": [*limit.attrs["seeds"]]}
    return joined


def write(
    folder: Path, report: Report, tex: str, theory: xr.Dataset, networks: xr.Dataset | None, figure: Figure
) -> None:
    """Writes all files into `folder`, which is made if it is not there (its parent must be).

    Where there are no networks there is no networks.nc, nor one left of another run.
    """
    folder.mkdir(exist_ok=True)
    checks = [check.as_dict() for check in report.checks]
    summary = {"title": report.title, "passed": report.passed, "notes": report.notes, "checks": checks}
    _text(folder / "equations.txt", report.equations)
    _text(folder / "equations.tex", DOCUMENT % tex)
    _text(folder / "table.txt", report.table())
    _text(folder / "checks.json", json.dumps(summary, indent=2, allow_nan=False))
    save(theory, folder / "theory.nc")
    if networks is None:
        (folder / "networks.nc").unlink(missing_ok=True)
    else:
        save(networks, folder / "networks.nc")
    save_figure(figure, folder / "figure.png")


def _text(path: Path, text: str) -> None:
    with replacing(path) as beside:
        beside.write_text(text.rstrip() + "\n", encoding="utf-8")


def _kernel_bytes(experiment: Experiment) -> float:
    if experiment.spec.kind != "fixed":
        return 0.0
    return 8.0 * experiment.depth * (len(experiment.times) * experiment.sample_count) ** 2
