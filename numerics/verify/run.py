"""The whole way for one experiment: derive, solve, expand, simulate, compare, and write it all down."""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from numerics.experiment import Experiment
from numerics.experiment.activation import is_linear
from numerics.experiment.refusals import is_plain
from numerics.threads import one_thread
from numerics.verify.report import Report

Progress = Callable[[int, int], None]

ORDER = 2
LARGEST_KERNEL = 2e8
"""Bytes of the largest two-time kernel that is kept for all pairs of samples; beyond that, its traces."""

PICTURE = 3e-3
"""Relative accuracy of the dotted curves of a flow."""

SMALL_SAMPLES, SMALL_TIMES = 20, 61
"""To what an experiment with larger kernels is cut for the check of its expansion."""


@one_thread
def verify(
    experiment: Experiment, out_dir: str | Path | None = None, progress: Progress | None = None
) -> Report:
    """All checks of an experiment on a linear network; with `out_dir`, the files behind them.

    Written there, each complete or not at all: equations.txt, equations.tex, table.txt, checks.json,
    theory.nc, networks.nc (along `width`, the last of which is infinite) and figure.png. Nothing is written
    unless every computation came to an end. `progress(done, total)` counts the networks trained.

    Raises `SpecError` for a symbolic depth, `Diverged` and `NotConverged` as `solve` and `simulate` do. That
    a check failed is no exception: see `Report.passed`.
    """
    if not (is_linear(experiment.network.activation) and is_plain(experiment)):
        from numerics.verify.steps import verify_steps

        return verify_steps(experiment, out_dir, progress)

    from numerics.expand import series
    from numerics.experiment.theory import theory_of
    from numerics.solve import solve
    from numerics.verify import identities, networks
    from numerics.verify.series import expansion_checks
    from numerics.verify.short import Opening

    began = clock.perf_counter()
    theory = theory_of(experiment)
    symbols = series(experiment, ORDER)
    whole = _kernel_bytes(experiment) <= LARGEST_KERNEL
    solution = solve(experiment, kernels="full" if whole else "trace")
    opening = Opening.of(experiment)
    checks = [
        *identities.derivation(experiment),
        *identities.reduction(opening),
        *identities.training_identities(opening),
        *identities.kernels(solution),
        *identities.discretisation(experiment, solution),
    ]
    small = experiment if whole else smaller(experiment)
    exponents, note = expansion_checks(small)
    plan = networks.Plan.of(experiment)
    trained = networks.train(experiment, plan, progress)
    compared = networks.against_networks(solution, trained)
    if not whole:
        count, steps = len(small.targets), len(small.times)
        note += f"\n(on {count} of the samples and {steps} of the times)"

    report = Report(
        _title(experiment),
        (*checks, *exponents, *compared),
        (note, networks.describe(plan, compared, solution)),
        "\n\n".join([theory.render("all", "text"), symbols.render("text")]),
        None if out_dir is None else Path(out_dir) / "figure.png",
        clock.perf_counter() - began,
    )
    if out_dir is None:
        return report

    from numerics.verify.figure import draw
    from numerics.verify.files import write

    curves = _truncated(experiment) if whole else (None, None)
    tex = "\n\n".join([theory.render("all", "latex"), symbols.render("latex")])
    figure = draw(experiment, solution, trained, *curves)
    write(Path(out_dir), report, tex, solution, by_width(trained), figure)
    return report


def _truncated(experiment: Experiment) -> tuple[xr.Dataset, xr.Dataset]:
    """The series up to second order and its zeroth order, to the accuracy of a picture."""
    from numerics.expand import expand
    from numerics.verify.series import partial_sum

    rtol = max(experiment.solver.rtol, PICTURE)
    expanded = expand(experiment.replace({"solver.rtol": rtol}), ORDER)
    strength = experiment.network.gamma0
    return partial_sum(expanded, strength, ORDER), partial_sum(expanded, strength, 0)


def by_width(networks: Sequence[xr.Dataset]) -> xr.Dataset:
    """The means and standard errors of every width along `width`, extrapolated at width infinity."""
    from numerics.simulate import extrapolate

    limit = extrapolate(networks)
    widths = [*(float(d.attrs["width"]) for d in networks), np.inf]
    names = [str(name) for name in networks[0].data_vars if name != "series"]
    joined = xr.concat([d[names] for d in (*networks, limit)], dim="width", combine_attrs="drop")
    joined = joined.assign_coords(width=widths)
    joined.attrs = {**limit.attrs, "seeds": [*limit.attrs["seeds"]]}
    return joined


def smaller(experiment: Experiment) -> Experiment:
    """The experiment on fewer samples and times, each sample teaching at the rate at which it did."""
    count = len(experiment.targets)
    pick = np.unique(np.linspace(0, count - 1, min(count, SMALL_SAMPLES)).round().astype(int))
    share = len(pick) / count if experiment.training.loss == "mean" else 1.0
    tables: dict[str, Any] = experiment.spec.model_dump(exclude_unset=True)
    tables.pop("data", None)
    training = tables["training"] = dict(tables.get("training", {}))
    if experiment.training.rule == "gd":
        training["learning_rate"] = float(training["learning_rate"]) * share
        training["steps"] = min(int(training["steps"]), SMALL_TIMES - 1)
    else:
        training["time"] = float(training["time"]) * share
        training["points"] = min(experiment.training.points, SMALL_TIMES)
    kernel = experiment.kernel[np.ix_(pick, pick)]
    return Experiment.from_dict(tables, kernel=kernel, targets=experiment.targets[pick])


def _kernel_bytes(experiment: Experiment) -> float:
    return 8.0 * experiment.depth * (len(experiment.times) * len(experiment.targets)) ** 2


def _title(experiment: Experiment) -> str:
    training = experiment.training
    rule = f"gradient flow up to time {training.time}"
    if training.rule == "gd":
        rule = f"{training.steps} steps of gradient descent at rate {training.learning_rate}"
    network = f"L = {experiment.depth} hidden layers, gamma0 = {experiment.network.gamma0:g}"
    return f"deep linear network, {network}, P = {len(experiment.targets)} samples, {rule}"
