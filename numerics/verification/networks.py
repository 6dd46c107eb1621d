"""Comparison of a theory with finite networks of two or three widths, extrapolated to 1/N = 0.

On power-law data the theory may have a width and a batch of its own, for which it is an approximation. Then
networks and theory are compared at this width and batch, and at twice and four times both; their difference
must vanish for large widths.

Quantities are fixed beforehand: the kernels of every layer at the end, and losses and errors while the
theory's loss is above FLOOR of its start.  Later losses are products of many factors that differ from network
to network; they can vary over decades, so that a mean with a standard error is not informative.  Beyond the
edge of stability (:mod:`.stability`) nothing is compared.  Where the error jumps in the output, as that of
the hinge loss, comparisons end when networks first differ in their errors, because a mean over networks on
both sides of a jump is not a straight line in 1/N.  The report states what was not compared.

All numbers are tested together: the largest ``|z|`` among n of them may reach Sidak's bound, with Student's t
for the number of networks.  Added to it are the bias that the theory states of itself, and the remainder of
the straight line in 1/N (:func:`remainder_of`).  Of several numbers of one kind, such as the errors of all
samples, the worst is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from numerics.errors import Diverged, SpecError, require_probability
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.experiment.theory import error_jumps
from numerics.names import (
    C_FIELD,
    C_GRADIENT,
    C_LEARNT,
    FEATURE_KERNEL,
    GRADIENT_KERNEL,
    LINEAR_KERNEL,
)
from numerics.results import AUTHORED, STDERR, SYSTEMATIC, VARIANCE, base_name, systematic
from numerics.simulation import simulate
from numerics.simulation.experiment import KERNEL_TIME, TRACE_TIME, reference_size
from numerics.solver import solve
from numerics.stats import Line, bound, check_same_axes, each_of, sample_variance
from numerics.verification.controls import DOF, MEAN_LOSS, NetworkSamples, start_means, with_controls
from numerics.verification.plan import NetworkPlan, keeps_pairs, measured_kernels, ratios_of
from numerics.verification.report import LEVEL, Check, Report
from numerics.verification.smaller_problems import FULL, Effort
from numerics.verification.stability import edge_of_stability

Array = NDArray[np.float64]

FLOOR = 1e-3
"""Smallest loss that is compared, relative to its start."""

CENTER = """initial outputs of these networks are of order 1/(gamma0 sqrt(N)) = {:.1g}, those of the theory 0:
training.center = true subtracts initial outputs, and does not change the theory."""

EDGE = """not compared: times after t = {}, where the theory is beyond the edge of stability: deviations of
networks grow from step to step, and means over networks converge more slowly than 1/N."""

STRAIGHT = "straight line in 1/N, worst of all"

MODES = 1000
"""Largest number of modes for which networks are trained."""

EXACT = 1e-9
"""Relative accuracy of a number that is the same in every network."""


# -- training -------------------------------------------------------------------------------------------


def train(
    source: Problem | Experiment,
    plan: NetworkPlan,
    progress: Callable[[int, int], None] | None = None,
    effort: Effort = FULL,
    theory: xr.Dataset | None = None,
    repeat: int = 0,
    variances: Collection[str] = (),
) -> list[xr.Dataset]:
    """Train finite networks of the planned widths; return a dataset of means over networks for each width.

    Random numbers come from solver.seed; they are independent at each width, and for each number ``repeat``
    of the training. With the solution ``theory`` of an experiment file on fixed samples, regressions on
    fluctuations of each initial network are subtracted from means (:mod:`.controls`). ``variances`` names
    variables for which the result also holds N times the variance over networks, with its standard error.
    ``effort`` limits the bytes of kernels, and of the values of each network; variables whose values do not
    fit have no variance. ``progress`` is called with the numbers of trained and of all networks. Raises
    Diverged if a network diverges.
    """
    problem = Problem.of(source)
    streams = np.random.SeedSequence(problem.solver.seed).spawn((1 + repeat) * len(plan.widths))
    streams = streams[repeat * len(plan.widths) :]
    datasets, before = [], 0
    kernels = measured_kernels(
        problem, effort, None if theory is None else edge_of_stability(problem, theory)
    )
    start = None if theory is None else start_means(problem, theory)
    for width, seeds, stream in zip(plan.widths, plan.seeds, streams, strict=True):

        def step(done: int, _: int, before: int = before) -> None:
            if progress is not None:
                progress(before + done, plan.total)

        kept = NetworkSamples(seeds, effort.kernel)
        try:
            networks = simulate(
                scaled(problem, width),
                width=width,
                seeds=seeds,
                rng=int(stream.generate_state(1)[0]),
                kernels=kernels,
                progress=step,
                each=kept.add if variances or start is not None else None,
            )
        except Diverged as error:
            raise Diverged(
                f"finite networks of width {width}: {error}", start=error.start, step=error.step
            ) from error
        if theory is not None and start is not None:
            networks = with_controls(problem, theory, networks, start, kept.arrays())
        datasets.append(networks.assign(_variances(networks, kept.arrays(), variances)))
        before += seeds
    return datasets


def _variances(
    networks: xr.Dataset, kept: Mapping[str, Array], names: Collection[str]
) -> dict[str, xr.DataArray]:
    """Return N times the variance over networks of the variables ``names``, with standard errors.

    ``networks`` is the dataset of means at one width N, ``kept`` the values of each network, networks along
    the first axis. Names without kept values are left out.
    """
    variables, width = {}, float(networks.attrs["width"])
    for name in (x for x in names if x in kept and x in networks):
        variance, dims = sample_variance(kept[name]), networks[name].dims
        variables[name + VARIANCE] = xr.DataArray(
            width * variance.value, dims=dims, attrs={DOF: variance.dof}
        )
        variables[name + VARIANCE + STDERR] = xr.DataArray(width * variance.stderr, dims=dims)
    return variables


# -- comparison ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ComparedQuantity:
    """Number or array that is compared between theory and networks; it has one row in the table of checks.

    It is the variable ``name`` of results at the positions ``at``, given by dimension; ``label`` names it in
    the table.
    """

    label: str
    name: str
    at: Mapping[str, int]
    scale: float = 1.0
    """Divisor of the value in the row, for example the number of samples of a mean."""
    size: float | None = None
    """Typical size for the remainder of a straight line in 1/N; inf allows no remainder."""
    order: int = 1
    """Power of 1/N whose coefficient is fitted."""
    slope: Array | None = None
    """Derived coefficient of 1/N, if it is not fitted."""


@dataclass(frozen=True)
class Comparison:
    """Compared quantity, with the solution that predicts it and results of networks at several widths."""

    quantity: ComparedQuantity
    theory: xr.Dataset
    networks: Sequence[xr.Dataset]


def quantities(
    theory: xr.Dataset,
    networks: Sequence[xr.Dataset],
    parting: int | None = None,
    edge: int | None = None,
) -> list[ComparedQuantity]:
    """Return the quantities to compare: losses, errors and test outputs, and correlations at the end.

    Only variables that both ``theory`` and ``networks`` hold are compared. Correlations of every layer are
    taken between the end and the end, and most of them also between the end and the start. On fixed samples
    the end is the last time or, if that is earlier, the position ``edge`` of the edge of stability, or the
    position ``parting`` at which networks first differ in an error signal that jumps as a function of the
    output (:func:`parting_of`; errors are not compared there). On random data it is the last time at which
    losses are compared. Variables under names of the program are compared too: correlations at these pairs
    of times, others at the last two times at which losses are.
    """
    theory = _with_mean_loss(theory)
    last = min([theory.sizes["time"] - 1, *(x for x in (parting, edge) if x is not None)])
    places = compared_places(theory, last)
    fixed = "sample" in theory.sizes
    losses = {"train_loss": "train loss", MEAN_LOSS: "loss of mean error", "test_loss": "test loss"}
    if (
        not fixed
        and "train_loss" in theory
        and np.array_equal(theory["train_loss"], theory.get("test_loss", np.nan))
    ):
        # Without fixed training samples, as on fresh batches or on the population, the training loss is left
        # out if it equals the test loss.
        del losses["train_loss"]
    compared = []
    for name, label in losses.items():
        compared += [
            ComparedQuantity(f"{label} at t = {_time(theory, p)}", name, {"time": p}) for p in places
        ]
    for p in places[-2:]:
        if p != parting:
            compared.append(ComparedQuantity(f"Delta at t = {_time(theory, p)}", "error", {"time": p}))
        compared.append(
            ComparedQuantity(f"f of test points at t = {_time(theory, p)}", "test_f", {"time": p})
        )
    end = last if fixed else places[-1]
    when = {"t,t": {"time": end, "time_": end}, "t,0": {"time": end, "time_": 0}}
    samples = float(theory.sizes.get("sample", 1))
    linear = "sample" not in theory.get(GRADIENT_KERNEL, theory).dims and "G_trace" not in theory
    phi = LINEAR_KERNEL if linear else FEATURE_KERNEL
    late = ("C_h0" if linear else FEATURE_KERNEL, FEATURE_KERNEL if linear else GRADIENT_KERNEL)
    for name, shown, scale in (
        (C_LEARNT, C_LEARNT, 1.0),
        ("C_h0", "C_h0", 1.0),
        ("Phi_trace", f"mean {phi}^{{}}_mumu", samples),
        (FEATURE_KERNEL, f"{phi}^{{}}", 1.0),
        ("G_trace", "mean G^{}_mumu", samples),
        (GRADIENT_KERNEL, "G^{}", 1.0),
        (C_FIELD, "C_h^{}", 1.0),
        (C_GRADIENT, "C_g^{}", 1.0),
        ("tangent_kernel_trace", "mean K_mumu", samples),
    ):
        if name not in theory or AUTHORED in theory[name].attrs:
            continue
        layers = theory.sizes["layer"] if "{}" in shown else 0
        for which in [{"layer": k} for k in range(layers)] or [{}]:
            letter = shown.format(*(k + 1 for k in which.values()))
            at = f"t = {_time(theory, end)}"
            pairs = {"t,t": when["t,t"]} if name in (*late, "tangent_kernel_trace") else when
            compared += [
                ComparedQuantity(f"{letter}({x}), {at}", name, {**which, **p}, scale)
                for x, p in pairs.items()
            ]
    for name in authored_in(theory):
        if "time_" in theory[name].dims:
            compared += [
                ComparedQuantity(f"{name}({x}), t = {_time(theory, end)}", name, p) for x, p in when.items()
            ]
        else:
            compared += [
                ComparedQuantity(f"{name} at t = {_time(theory, p)}", name, {"time": p}) for p in places[-2:]
            ]
    return [q for q in compared if q.name in theory and q.name in networks[0]]


def authored_in(theory: xr.Dataset) -> list[str]:
    """Return names of variables that have the program author's names instead of standard names.

    Standard errors of such variables are left out.
    """
    names = map(str, theory.data_vars)
    return [x for x in names if AUTHORED in theory[x].attrs and base_name(x) == x]


def against_networks(
    theory: xr.Dataset,
    networks: Sequence[xr.Dataset],
    compared: Sequence[ComparedQuantity] | None = None,
    amended: Callable[[Sequence[Comparison]], Sequence[Comparison]] | None = None,
) -> list[Check]:
    """Return checks of a solution against finite networks: one for each compared quantity.

    The checks of quantities share the probability LEVEL that any of them fails for a correct theory. A
    further check compares initial networks with their exact means, if these are known, and at three widths
    another one tests that means lie on a straight line in 1/N.

    ``networks`` are results of ``simulate``, one for each width; ``compared`` are the quantities, by default
    those of :func:`quantities`. ``amended`` maps the list of comparisons to another one, for example with
    derived in place of fitted slopes in 1/N (:mod:`.corrections`).
    """
    theory = _with_mean_loss(traced(theory))
    compared = quantities(theory, networks) if compared is None else compared
    rows: Sequence[Comparison] = [Comparison(q, theory, networks) for q in compared]
    rows = rows if amended is None else amended(rows)
    checks = [_check(x.quantity, len(rows), x.theory, x.networks) for x in rows]
    checks += _starts(networks)
    return [*checks, _straight(compared, theory, networks)] if len(networks) > 2 else checks


def _check(
    q: ComparedQuantity, rows: int, theory: xr.Dataset, networks: Sequence[xr.Dataset], level: float = LEVEL
) -> Check:
    """Return the check of one compared quantity, with the mean over networks extrapolated to 1/N = 0.

    ``level`` is the probability that a correct theory fails any of ``rows`` checks, which share it equally. A
    number is shown with its standard error. Of an array only the entry with the largest ``|z|`` relative to
    its limit is shown; the entries share the probability of this check.
    """
    z, stderr, dof = scores(theory, networks, q.name, q.at, q.order)
    limit_of_z = bound(z.size, each_of(rows, level), dof)
    expected, scale = theory[q.name].isel(q.at).to_numpy(), q.scale
    slope = slopes_of(networks, q.name, q.at, q.order)
    remainder = remainder_of(theory, networks, q)
    own_bias = theory[q.name].copy(data=systematic(theory, q.name))
    remainder = remainder + own_bias.isel(q.at).to_numpy()
    if np.ndim(expected) == 0 and stderr > 0:
        limit = float(limit_of_z * stderr + remainder)
        return Check(
            "networks",
            q.label,
            float(expected + z * stderr) / scale,
            float(expected) / scale,
            limit / scale,
            f"z {float(z):+.1f}, {_of_slope(q, float(slope))}",
            error=float(stderr) / scale,
        )
    moving = stderr > 0
    weighted = zip(line_of(networks, q.order).intercept, networks, strict=True)
    value = sum(w * entry_of(d, q.name, q.at).to_numpy() for w, d in weighted)
    size = float(np.abs(theory[q.name].to_numpy()).max()) or 1.0
    missed = np.abs(value - expected)[~moving] > EXACT * size
    with np.errstate(divide="ignore", invalid="ignore"):
        limits = np.where(moving, limit_of_z + remainder / stderr, np.inf)
        worst = int(np.argmax(np.where(moving, np.abs(z) / limits, 0.0)))
    observed = np.inf if missed.any() else float(np.where(moving, np.abs(z), 0.0).flat[worst])
    label = f"{q.label}, of {z.size}"
    limit = float(np.where(moving, limits, 0.0).flat[worst])
    basis = f"worst |z|, {FITTED if q.slope is None else DERIVED}"
    return Check("networks", label, observed, 0, limit, basis, upper=True)


def _of_slope(q: ComparedQuantity, fitted: float) -> str:
    """Return the text in the table for the slope c of a mean over networks, value + c/N.

    It is the word "shift" and c of ``q`` if the slope is derived, and otherwise the word "fit" and the number
    ``fitted``; "/N" follows. Both numbers are divided by the scale of the quantity.
    """
    if q.slope is None:
        return f"{FITTED} {fitted / q.scale:+.2g}/N"
    return f"{DERIVED} {float(q.slope) / q.scale:+.2g}/N"


DERIVED, FITTED = "shift", "fit"
"""Source of a slope in 1/N, derived or fitted, in the last column of the table."""

N_VAR = "N Var"
"""First words of rows of variances over networks."""

STARTS = "initial networks vs exact means"


def _starts(networks: Sequence[xr.Dataset]) -> list[Check]:
    """Return a list of one check: whether initial networks agree with exact means of outputs and kernels.

    Shown is the ``|z|`` at any width that is largest relative to its limit. The list is empty if exact
    means are not known.
    """
    scored = [d.attrs["start"] for d in networks if "start" in d.attrs]
    if not scored:
        return []
    count = sum(int(x[1]) for x in scored)
    limits = [float(bound(count, LEVEL, dof)) for _, _, dof in scored]
    worst = max(range(len(scored)), key=lambda k: scored[k][0] / limits[k])
    label = f"{STARTS}, of {count}"
    return [Check("networks", label, float(scored[worst][0]), 0, limits[worst], "worst |z|", upper=True)]


def _straight(
    compared: Sequence[ComparedQuantity], theory: xr.Dataset, networks: Sequence[xr.Dataset]
) -> Check:
    """Return the check that means at three widths lie on a straight line in 1/N.

    Tested are the deviations of all ``compared`` quantities, in units of their standard errors; shown is
    the one that is largest relative to its limit. The limit includes the expected term in 1/N^2.
    """
    count = sum(int(theory[q.name].isel(q.at).size) for q in compared)
    worst, limit, place = 0.0, np.inf, ""
    for q in compared:
        deviation = Deviation.of(networks, q.name, q.at)
        remainder = deviation.of_square * slopes_of(networks, q.name, q.at) ** 2 / size_of(theory, q)
        with np.errstate(divide="ignore", invalid="ignore"):
            z = deviation.value / deviation.stderr
            allowed = bound(count, LEVEL, deviation.dof) + remainder / deviation.stderr
        label = q.label.partition(" at t =")[0].partition(", t =")[0]
        share = np.where(deviation.stderr > 0, z / allowed, 0.0)
        at = int(np.argmax(share))
        if share.flat[at] > worst / limit:
            worst, limit, place = float(np.asarray(z).flat[at]), float(np.asarray(allowed).flat[at]), label
    return Check("networks", STRAIGHT, worst, 0, limit, f"|z|, {place}", upper=True)


@dataclass(frozen=True)
class Deviation:
    """Deviation of means over networks, at three widths N, from a straight line in 1/N, or 1/N^order.

    ``value`` is its absolute value, ``stderr`` its standard error with ``dof`` degrees of freedom.
    ``of_square`` is the same deviation for the function 1/N^2 (1/N^(order + 1)), for comparison.
    """

    value: Array
    stderr: Array
    dof: Array
    of_square: float

    @classmethod
    def of(cls, networks: Sequence[xr.Dataset], name: str, at: Mapping[str, Any], order: int = 1) -> Self:
        """Return by how much a variable's means at three widths deviate from a straight line in 1/N^order.

        ``networks`` holds one dataset for each width, ``at`` the positions by dimension of the variable
        ``name``.
        """
        inverse = 1.0 / np.array(widths_of(networks), dtype=float)
        design = np.stack([np.ones(len(inverse)), inverse**order])
        # null vector of the design: its inner product with the values of every straight line is zero
        left = np.linalg.svd(design)[2][2]
        parts = [
            (c * entry_of(d, name, at).to_numpy(), (c * entry_of(d, f"{name}_stderr", at).to_numpy()) ** 2)
            for c, d in zip(left, networks, strict=True)
        ]
        variance = np.sum([x for _, x in parts], axis=0)
        counts = [degrees_of(d, name) for d in networks]
        spread = np.sum([x**2 / n for (_, x), n in zip(parts, counts, strict=True)], axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            dof = variance**2 / spread
        value = np.abs(np.sum([x for x, _ in parts], axis=0))
        return cls(value, np.sqrt(variance), dof, abs(float(left @ inverse ** (order + 1))))


def remainder_of(theory: xr.Dataset, networks: Sequence[xr.Dataset], q: ComparedQuantity) -> Array:
    """Return a bound on the error of the extrapolation of a compared quantity to 1/N = 0 by a straight line.

    The bound is the next term of a geometric series, value + c/N + c^2/(value N^2), with the fitted slope c
    and the typical size of the quantity as value; or the term in 1/N^2 that three widths show beyond one
    standard error, if that is larger. If the slope c is derived and the coefficient d of 1/N^2 is fitted, the
    next term is ``value (r/N)^3``, where r is the larger of ``|c/value|`` and ``|d/value|^(1/2)``. It is zero
    for a quantity of infinite typical size.
    """
    size, curvature = size_of(theory, q), line_of(networks, q.order).curvature(widths_of(networks), q.order)
    if not np.isfinite(size):
        return np.zeros(())
    fitted = np.abs(slopes_of(networks, q.name, q.at, q.order)) / size
    if q.slope is None:
        geometric = curvature * size * fitted**2
    else:
        geometric = curvature * size * np.maximum(np.abs(q.slope) / size, np.sqrt(fitted)) ** 3
    if len(networks) < 3:
        return np.asarray(geometric)
    deviation = Deviation.of(networks, q.name, q.at, q.order)
    shown = np.maximum(deviation.value - deviation.stderr, 0.0)
    return np.asarray(np.maximum(geometric, curvature * shown / deviation.of_square))


ROUNDED = 1e-12
"""Size below which a number of a theory counts as zero, so that relative errors have no meaning."""


def size_of(theory: xr.Dataset, q: ComparedQuantity) -> float:
    """Return the typical size of a compared quantity in the solution, the root mean square of its entries.

    Between two different times it is the geometric mean of the sizes at equal times. A size of zero, up to
    rounding, counts as one. If the quantity has a given ``size``, that is returned.
    """
    if q.size is not None:
        return q.size
    if "time_" not in q.at:
        return _rms(theory[q.name].isel(q.at))
    times = q.at["time"], q.at["time_"]
    sizes = [_rms(theory[q.name].isel({**q.at, "time": x, "time_": x})) for x in times]
    return float(np.sqrt(sizes[0] * sizes[1]))


def _rms(x: xr.DataArray) -> float:
    """Return the root mean square of an array, or one if it is zero up to rounding."""
    size = float(np.sqrt(np.mean(x.to_numpy() ** 2)))
    return size if size > ROUNDED else 1.0


def traced(theory: xr.Dataset) -> xr.Dataset:
    """Return the theory with traces of feature, gradient and tangent kernels between samples added.

    Traces are sums over samples, and over positions and outputs if a kernel has them. Correlations between
    entries are not known, so that the standard error of a trace is taken as its upper bound, the sum of the
    standard errors of the entries.  A kernel under a name of the program has no trace.
    """
    traces = {}
    kernels = (x for x in (FEATURE_KERNEL, GRADIENT_KERNEL, "tangent_kernel") if x in theory)
    for name in (x for x in kernels if AUTHORED not in theory[x].attrs):
        for end in ("", "_stderr"):
            if name + end in theory and "sample" in theory[name].dims and f"{name}_trace{end}" not in theory:
                traces[f"{name}_trace{end}"] = _trace(theory[name + end])
    return theory.assign(traces)


def _with_mean_loss(theory: xr.Dataset) -> xr.Dataset:
    """Return the theory with the loss of the mean error added, which equals the loss at infinite width.

    A theory without a training loss is returned unchanged.
    """
    ends = (x for x in ("", STDERR, SYSTEMATIC) if f"train_loss{x}" in theory)
    return theory.assign({f"{MEAN_LOSS}{x}": theory[f"train_loss{x}"] for x in ends})


def _trace(kernel: xr.DataArray) -> xr.DataArray:
    """Return the trace of a kernel over samples, positions and channels."""
    axes = [d for d in ("sample", "position", "channel") if d in kernel.dims]
    kept = [d for d in ("layer", "time", "time_") if d in kernel.dims]
    ordered = kernel.transpose(*kept, *axes, *(f"{d}_" for d in axes)).to_numpy()
    n = int(np.prod([kernel.sizes[d] for d in axes]))
    trace = np.einsum("...mm->...", ordered.reshape(*ordered.shape[: len(kept)], n, n))
    return xr.DataArray(trace, dims=kept)


def _time(theory: xr.Dataset, place: int) -> str:
    """Return the output time at the position ``place`` as text, with at most four significant digits."""
    return f"{float(theory.time[place]):.4g}"


def compared_places(theory: xr.Dataset, last: int | None = None) -> list[int]:
    """Return positions of up to three times at which losses are compared, among the output times.

    They are a quarter, a half and all of the way through the output times before the training loss of the
    solution is below FLOOR times its initial value, or up to the position ``last`` if that is earlier.
    Positions are rounded, and at least 1. Without a training loss the mean square error is used, and without
    errors all times.
    """
    if "train_loss" in theory:
        shown = theory["train_loss"]
    elif "error" in theory:
        shown = (theory["error"] ** 2).mean([*theory["error"].dims[1:]])
    else:
        shown = xr.ones_like(theory.time)
    loss = shown.to_numpy()[: None if last is None else last + 1]
    low = np.flatnonzero(loss < FLOOR * loss[0])
    end = max(1, int(low[0]) - 1 if len(low) else len(loss) - 1)
    return sorted({max(1, round(share * end)) for share in (0.25, 0.5, 1.0)})


def compared_times(theory: xr.Dataset, edge: int | None = None) -> list[int]:
    """Return positions of all output times at which losses or final kernels are compared.

    No position is later than ``edge``, the position of the edge of stability, if there is one.
    """
    last = theory.sizes["time"] - 1 if edge is None else edge
    ends = [last] if "sample" in theory.sizes else []
    return sorted({*compared_places(theory, last), *ends})


def parting_of(problem: Problem, networks: Sequence[xr.Dataset]) -> int | None:
    """Return the position of the first time at which errors differ between networks of the same width.

    Where a result has no errors, numbers under names of the program take their place. It matters if the error
    signal jumps as a function of the output, as for the hinge loss. ``networks`` holds one result for each
    width. The position is at least one. None if the error signal does not jump, or if no networks differ, as
    without any networks.
    """
    if not networks or not error_jumps(problem.program):
        return None
    names = ["error"] if all("error" in d for d in networks) else authored_in(networks[0])
    names = [x for x in names if "time_" not in networks[0][x].dims]
    spread = [
        np.max([d[f"{x}{STDERR}"].to_numpy().reshape(d.sizes["time"], -1).max(axis=1) for x in names], axis=0)
        for d in networks
    ]
    apart = np.flatnonzero(np.max(spread, axis=0) > EXACT)
    return max(1, int(apart[0])) if len(apart) else None


def scores(
    theory: xr.Dataset, networks: Sequence[xr.Dataset], name: str, at: Mapping[str, Any], order: int = 1
) -> tuple[Array, Array, Array]:
    """Return z-scores, standard errors and degrees of freedom of a variable: networks compared with theory.

    z is the mean over networks, extrapolated to 1/N = 0 along a straight line in 1/N^``order``, less the
    theory, over the standard error of both. ``networks`` holds one result for each width; a single width is
    not extrapolated. A theory without standard errors counts as exact. ``at`` gives positions by dimension,
    and the results have the shape of the selected entries. Degrees of freedom follow from Welch's formula.
    """
    value, variance, spread = (np.zeros(()) for _ in range(3))
    for weight, d in zip(line_of(networks, order).intercept, networks, strict=True):
        part = weight**2 * entry_of(d, f"{name}_stderr", at).to_numpy() ** 2
        value = value + weight * entry_of(d, name, at).to_numpy()
        variance = variance + part
        spread = spread + part**2 / degrees_of(d, name)
    if f"{name}_stderr" in theory:
        part = theory[f"{name}_stderr"].isel(at).to_numpy() ** 2
        variance, spread = variance + part, spread + part**2 / freedom_of(theory, name)
    stderr = np.sqrt(variance)
    difference = value - theory[name].isel(at).to_numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        return difference / stderr, stderr, np.asarray(variance**2 / spread)


def freedom_of(theory: xr.Dataset, name: str) -> Any:
    """Return the degrees of freedom of the standard error of variable ``name`` in a sampled solution.

    They are an attribute of the variable, or one less than the number of replicas (of networks for a result
    of finite networks).
    """
    count = np.min(theory.attrs.get("replicas", theory.attrs.get("seeds", 2)))
    return theory[name].attrs.get(DOF, count - 1)


def slopes_of(
    networks: Sequence[xr.Dataset], name: str, at: Mapping[str, Any] | None = None, order: int = 1
) -> Array:
    """Return the slope c of a variable's mean over networks in a fit of value + c/N^order to several widths.

    ``at`` gives positions by dimension; the result has the shape of the selected entries. It is zero for a
    single width.
    """
    widths, line = np.asarray(widths_of(networks), dtype=float) ** order, line_of(networks, order)
    means = np.stack([entry_of(d, name, at or {}).to_numpy() for d in networks], axis=-1)
    # With a single width, numerator and denominator of `rise` are zero. The denominator is replaced by 1, so
    # that the slope is zero.
    rise = (line.hat[0] - line.hat[-1]) / (1 / widths[0] - 1 / widths[-1] or 1.0)
    return np.asarray(np.nansum(means * rise, axis=-1))


def entry_of(networks: xr.Dataset, name: str, at: Mapping[str, Any]) -> xr.DataArray:
    """Return a variable of a network result at the positions ``at``, given by dimension.

    The position of a time counts all output times. Kernels that were measured at some of the times have a
    shorter time axis, on which the same time is selected.
    """
    x, chosen = networks[name], dict(at)
    for dim in (str(d) for d in x.dims if str(d).removesuffix("_") in (KERNEL_TIME, TRACE_TIME)):
        place = chosen.pop("time_" if dim.endswith("_") else "time", None)
        if place is not None:
            (chosen[dim],) = np.flatnonzero(networks[dim].to_numpy() == float(networks["time"][place]))
    return x.isel(chosen)


def degrees_of(networks: xr.Dataset, name: str) -> int:
    """Return the degrees of freedom of the standard error of a variable's mean over networks.

    They are an attribute of the variable, or one less than the number of networks.
    """
    return int(networks[name].attrs.get(DOF, int(networks.attrs["seeds"]) - 1))


def widths_of(networks: Sequence[xr.Dataset]) -> list[int]:
    """Return the width of the networks of each dataset."""
    return [int(d.attrs["width"]) for d in networks]


def line_of(networks: Sequence[xr.Dataset], order: int = 1) -> Line:
    """Return the weights of a straight-line fit in 1/N^order through the widths of ``networks``.

    Weights follow from widths and numbers of networks. For a single width the line has no slope.
    """
    if len(networks) == 1:
        return Line(np.ones(1), np.ones((1, 1)))
    return Line.through(widths_of(networks), [int(d.attrs["seeds"]) for d in networks], order)


def describe(
    source: Problem | Experiment,
    plan: NetworkPlan,
    checks: Sequence[Check],
    theory: xr.Dataset,
    networks: Sequence[xr.Dataset] = (),
    effort: Effort = FULL,
) -> str:
    """Return the notes below the table of checks of finite networks.

    They state which networks were trained, what the columns mean, how precise the checks are, and which times
    and kernels are not compared and why. ``checks`` are the rows, ``networks`` the results for each width.
    """
    problem = Problem.of(source)
    experiment, parting = problem.experiment, parting_of(problem, networks)
    edge = edge_of_stability(problem, theory)
    ends = [x for x in (parting, edge) if x is not None]
    end = compared_places(theory, min(ends) if ends else None)[-1]
    words = [
        f"networks: {plan} (the widest layer).",
        "observed: the mean over networks, extrapolated to 1/N = 0 by value(N) = value + slope/N, and its",
        "standard error; the last column has z = (observed - expected)/(standard error), and slope/N.",
        "allowed: bounds of |z| that a right theory exceeds in any of the rows once in "
        f"{1 / LEVEL:.0f} runs (Sidak, Student's t),",
        "plus an estimate of the next term of the series in 1/N.",
    ]
    if any(MEAN_LOSS in d for d in networks):
        words.append(
            "means: initial outputs and kernels, whose means over networks are known, are control variates.\n"
            "loss of mean error: the mean loss less the variance of errors, which vanishes as 1/N."
        )
    estimates = [c for c in checks if c.error is not None and not c.name.startswith(N_VAR)]
    reach = [c.allowed / abs(c.expected) for c in estimates if c.expected != 0]
    if reach:
        words.append(
            f"precision: an error of the theory of {min(reach):.1%} (most precise row) to {max(reach):.1%} "
            "(least precise) would fail."
        )
    if not all(c.passed for c in checks):
        words.append(
            "failed: the theory is wrong, or the networks are too small. Near the edge of stability means\n"
            "over networks converge more slowly than 1/N: try a smaller learning_rate."
        )
        if experiment is not None and experiment.spec.kind == "fixed" and not experiment.spec.centered:
            start = plan.widths[-1] ** -0.5 / experiment.network.gamma0
            words += [CENTER.format(start)] if start > 0.5 else []
    if experiment is not None:
        words += _of_the_file(experiment, plan, theory, networks)
    if end == parting:
        words.append(
            f"not compared: errors from t = {_time(theory, end)} on, and later times: networks are then on "
            "both sides of\nthe jump of the error, so that means over networks are not straight lines in 1/N."
        )
    elif end == edge:
        words.append(EDGE.format(_time(theory, end)))
    elif end < theory.sizes["time"] - 1:
        words.append(
            f"not compared: losses and errors after t = {_time(theory, end)}, "
            f"where the theory's loss is below {FLOOR:g} of its start."
        )
    if problem.seen and not keeps_pairs(problem, effort):
        words.append(
            "kernels: only traces are compared, because arrays of all pairs of samples are too large."
        )
    return "\n".join(words)


def _of_the_file(
    experiment: Experiment, plan: NetworkPlan, theory: xr.Dataset, networks: Sequence[xr.Dataset]
) -> list[str]:
    """Return notes that apply to experiment files only.

    The first note has the largest relative change of a ratio of sizes (layers, samples, batch) by rounding to
    whole units. It is left out without a change and for power-law data. If the theory has a finite width of
    its own and networks were trained, further notes say how accurate it is at this width.
    """
    words = []
    if experiment.spec.kind != "power-law":
        sizes = [reference_size(experiment, n) for n in plan.widths]
        met = max(abs(round(r * k) / (r * k) - 1) for r in ratios_of(experiment) for k in sizes)
        words = (
            [f"ratios of sizes: rounded to whole units, with relative errors up to {met:.0e}."]
            if met > 1e-12
            else []
        )
    if experiment.network.width is not None and networks:
        words += at_its_width(theory, networks[0])
    return words


# -- a theory given as a result --------------------------------------------------------------------------


def compare(
    theory: xr.Dataset, networks: xr.Dataset | Sequence[xr.Dataset], *, level: float = 0.01
) -> Report:
    """Compare a solution with networks: losses and kernels of every layer, tested together.

    Kernels are compared by their traces over samples; errors of single samples are not compared. Of
    variables under names of the program all entries are compared.

    Parameters
    ----------
    theory : xarray.Dataset
        A result of :func:`numerics.solve`, on the networks' time axis.
    networks : xarray.Dataset or sequence of xarray.Dataset
        Results of :func:`numerics.simulate`: at two or more different widths, which are extrapolated to
        1/N = 0, or at one width, at which a difference of order 1/N counts as an error of the theory.
        Theory and networks need at least two times.
    level : float
        Probability that a correct theory fails any of the checks, between 0 and 1, both excluded (Sidak's
        bound for all numbers together).

    Returns
    -------
    Report
        One check for each quantity.

    Raises
    ------
    ValueError
        If the axes of times, layers or samples differ, if several networks have the same width only, if there
        are no networks or only one time, and for a ``level`` that is not between 0 and 1.
    """
    data = [networks] if isinstance(networks, xr.Dataset) else list(networks)
    require_probability("level", level)
    if not data:
        raise SpecError("networks", None, "is empty", "results of numerics.simulate")
    if theory.sizes["time"] < 2:
        raise SpecError("theory", None, "has one time only, and losses are compared after it", "two times")
    for d in data:
        check_same_axes(theory, d)
    theory = traced(theory)
    authored = {*authored_in(theory)}
    compared = [
        q for q in quantities(theory, data) if q.name in authored or theory[q.name].isel(q.at).ndim == 0
    ]
    count = sum(int(theory[q.name].isel(q.at).size) for q in compared)
    checks = [_check(replace(q, size=np.inf), len(compared), theory, data, level) for q in compared]
    return Report(f"theory and networks: {count} numbers, judged together at level {level:g}", tuple(checks))


# -- theories with a width of their own ------------------------------------------------------------------


def scaled(source: Problem | Experiment, width: int) -> Problem:
    """Return a problem for networks of another width, where the theory itself depends on a finite width.

    This is so on power-law data with ``network.width``: the width is set to ``width``, and the batch is
    scaled by the same factor. Other problems are returned unchanged.
    """
    problem = Problem.of(source)
    experiment = problem.experiment
    theory_width = None if experiment is None else experiment.network.width
    if experiment is None or theory_width is None or theory_width == width:
        return problem
    changes: dict[str, object] = {"network.width": width}
    batch = experiment.data.batch if experiment.data is not None else None
    if batch is not None:
        changes["data.batch"] = batch * width // theory_width
    return Problem.of(experiment.replace(changes))


def less_their_theory(
    source: Problem | Experiment, theory: xr.Dataset, networks: Sequence[xr.Dataset]
) -> list[xr.Dataset]:
    """Return results of networks, shifted so that they can be compared with ``theory`` at another width.

    Only a theory with a finite width of its own needs this: to each variable the difference of ``theory`` and
    of the theory at the width of the networks is added. Then result minus ``theory`` is networks minus
    theory, both at the width of the networks.
    """
    experiment = Problem.of(source).experiment
    if experiment is None or experiment.network.width is None:
        return list(networks)
    datasets = []
    for d in networks:
        theory_at_width = solve(scaled(experiment, int(d.attrs["width"])), kernels="none")
        shifted = {
            x: d[x] + (theory[x] - theory_at_width[x])
            for x in theory_at_width.data_vars
            if x in d and x in theory
        }
        datasets.append(d.assign(shifted))
    return datasets


def at_its_width(theory: xr.Dataset, networks: xr.Dataset) -> list[str]:
    """Return lines of a note: by how much test losses of networks differ from a theory of the same width.

    ``theory`` has a finite width of its own, and ``networks`` is the result at this width.
    """
    places = compared_places(theory)
    value, error = (networks[f"test_loss{x}"].to_numpy()[places] for x in ("", "_stderr"))
    off = value / theory.test_loss.to_numpy()[places] - 1
    worst = int(np.argmax(np.abs(off)))
    spread = error[worst] / theory.test_loss.to_numpy()[places][worst]
    return [
        "width: the theory has a width (and a batch) of its own, and is solved again at the larger widths.",
        "Rows show the mean over networks, less the theory of their width, plus the theory of the file.",
        f"At the width of the file the test loss of networks differs from the theory by "
        f"{off[worst]:+.1%} +- {spread:.1%} (at t = {float(theory.time[places[worst]]):.4g}).",
    ]
