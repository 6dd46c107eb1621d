"""Figures of a verification: losses and kernels over time, theory as lines and networks as points.

The input is a problem, its solution and results of finite networks; :func:`draw` shows networks that train on
data, :func:`draw_numbers` any program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from sympy import Expr, expand
from sympy.core.function import AppliedUndef

from derive.linear.form import LinearForm
from derive.program import Program
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.names import C_FIELD, C_GRADIENT, FEATURE_KERNEL, GRADIENT_KERNEL, INPUT_KERNEL
from numerics.plots import STYLE, colours
from numerics.simulation.experiment import KERNEL_TIME, TRACE_TIME
from numerics.stats import extrapolate
from numerics.verification.networks import authored_in, traced
from numerics.verification.plan import drawn_places
from numerics.verification.report import title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

Array = NDArray[np.float64]

SERIES = ((0, r"lazy, $\gamma_0\to0$", "0.6", "--"), (2, r"$\Delta$ to order $\gamma_0^2$", "#c2571a", ":"))
"""Orders of the expansion whose loss is drawn, with their labels, colours and line styles."""

LOSSES = (("train_loss", "training", "black", "o"), ("test_loss", "test", "#c2571a", "s"))
"""Losses: name, label, colour and marker."""


RANGE = 8.0
"""Ratio of largest to smallest value above which the vertical axis is logarithmic."""


def draw(
    source: Problem | Experiment,
    theory: xr.Dataset,
    networks: Sequence[xr.Dataset],
    sums: Mapping[int, xr.Dataset] | None = None,
) -> Figure:
    """Return a figure of losses and kernels: theory as lines, networks at 1/N = 0 as points.

    Bands and error bars are one standard error. ``networks`` are results of ``simulate`` at two or more
    widths, or empty. ``sums`` maps an order, 0 or 2, to the series in gamma0 summed up to this order, whose
    training loss is drawn, too; None draws no series. If there are several outputs, traces are summed
    over them, and other kernels are those of the first. Raises ValueError for networks of a single width.
    """
    from matplotlib import rc_context

    with rc_context(STYLE):
        return _drawn(Problem.of(source), theory, extrapolate(networks) if networks else None, sums or {})


def has_kernels(theory: xr.Dataset) -> bool:
    """Return whether a result has a feature or gradient kernel, or its trace, with an axis of layers.

    If it has none, :func:`draw` shows no kernel over time.
    """
    names = (FEATURE_KERNEL, GRADIENT_KERNEL, C_FIELD, C_GRADIENT)
    there = [y for x in names for y in (x, f"{x}_trace") if y in theory]
    return any("layer" in theory[x].dims for x in there)


PANELS = 6
"""Largest number of a program's variables that are drawn."""


def draw_numbers(source: Problem | Experiment, theory: xr.Dataset, networks: Sequence[xr.Dataset]) -> Figure:
    """Return a figure of the loss and numbers of a program: theory as lines, networks at 1/N = 0 as points.

    Numbers are variables with a single time; at most PANELS variables are drawn. Bands and error bars are one
    standard error.  If a program has neither a loss nor numbers, its correlations at equal times are drawn.
    ``networks`` are results at two or more widths, or empty.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    names = [x for x in ("train_loss", "error", *authored_in(theory)) if x in theory]
    problem, limit = Problem.of(source), extrapolate(networks) if networks else None
    numbers = [x for x in names if "time_" not in theory[x].dims]
    names = (numbers or names)[:PANELS]
    if not numbers:
        theory = _at_equal_times(theory, names)
        limit = limit if limit is None or "time_" not in limit.sizes else _at_equal_times(limit, names)
    with rc_context(STYLE):
        columns = min(max(len(names), 1), 3)
        rows = max(-(-len(names) // columns), 1)
        figure = Figure(figsize=(11.5 * max(columns, 2) / 3, 3.6 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for ax, name in zip(panels, names, strict=False):
            _number(ax, theory, limit, name)
            ax.set_xlabel("time" if problem.flow else "step")
        for ax in panels[len(names) :]:
            ax.set_visible(False)
        figure.suptitle(_caption(problem, limit), fontsize=10.5)
    return figure


def _at_equal_times(found: xr.Dataset, names: Sequence[str]) -> xr.Dataset:
    """Return a result in which the correlations ``names`` have one time: their values at t = s.

    Their standard errors are reduced in the same way; other variables are unchanged.
    """
    at = xr.DataArray(np.arange(found.sizes["time"]), dims="time")
    both = [y for x in names for y in (x, f"{x}_stderr") if y in found]
    equal = {x: found[x].isel(time=at, time_=at).transpose("time", ...) for x in both}
    return found.drop_vars(both).assign(equal).assign_attrs(found.attrs)


def _number(ax: Axes, theory: xr.Dataset, networks: xr.Dataset | None, name: str) -> None:
    """Draw all entries of one variable over time on ``ax``: theory as lines, networks as points."""
    count = theory.sizes["time"]
    rows = theory[name].to_numpy().reshape(count, -1)
    errors = theory[f"{name}_stderr"].to_numpy().reshape(count, -1) if f"{name}_stderr" in theory else None
    for k, colour in enumerate(colours(rows.shape[1])):
        ax.plot(theory.time, rows[:, k], color=colour, lw=1.8)
        _band(ax, theory, colour, rows[:, k], None if errors is None else errors[:, k])
        if networks is not None and name in networks:
            drawn = (networks[x].to_numpy().reshape(count, -1)[:, k] for x in (name, f"{name}_stderr"))
            ax.errorbar(*_points(networks.time, *drawn), **_dots(colour, "o"))
    ax.set_ylabel(name)


def _series_loss(problem: Problem, series: xr.Dataset) -> xr.DataArray:
    """Return the training loss (times,) of a partial sum of the series in gamma0.

    For the square loss of one output it is the mean square of the partial sum of errors, which is positive,
    while the partial sum of the loss may be negative.  For other losses it is the partial sum of the loss.
    """
    loss, error = problem.program.loss, problem.program.roles.error
    per_sample = set(series.error.dims) == {"time", "sample"}
    square = loss is not None and error is not None and _is_square(loss, problem.program)
    loss_series: xr.DataArray = series.train_loss
    return (series.error**2).mean("sample") if square and per_sample else loss_series


def _is_square(loss: Expr, program: Program) -> bool:
    """Return whether the loss of a sample is half of the square of target minus output."""
    output, target = program.roles.output, program.roles.target
    if output is None or target is None:
        return False
    others = [a for a in loss.atoms(AppliedUndef) if str(a.func) == target]
    return len(others) == 1 and expand(loss - (others[0] - output) ** 2 / 2) == 0


def _drawn(
    problem: Problem, theory: xr.Dataset, networks: xr.Dataset | None, sums: Mapping[int, xr.Dataset]
) -> Figure:
    """Return a figure with panels for losses, feature kernels and gradient kernels over time.

    On fixed samples, heat maps of kernels are below. ``networks`` is the result extrapolated to 1/N = 0, or
    None; ``sums`` maps orders of the series in gamma0 to its partial sums.
    """
    from matplotlib.figure import Figure

    fixed, linear = bool(problem.seen), isinstance(problem.linear, LinearForm)
    phi, theory = "H" if linear else r"\Phi", traced(theory)
    networks = None if networks is None else traced(networks).assign_attrs(networks.attrs)
    figure = Figure(figsize=(11.5, 6.6 if fixed else 4.1), layout="constrained")
    above: Any = figure
    if fixed:
        parts: Any = figure.subfigures(2, 1, height_ratios=[1.25, 1.0], hspace=0.04)
        above = parts[0]
        heat_maps(parts[1], problem, theory)
    left, middle, right = above.subplots(1, 3)
    for order, label, colour, dashes in SERIES:
        if order in sums:
            loss = _series_loss(problem, sums[order])
            left.plot(loss.time, loss, dashes, color=colour, lw=1.8, label=label)
    if "train_loss" in theory:
        both = bool((theory.train_loss != theory.get("test_loss", theory.train_loss)).any())
        _losses(left, theory, networks, both)
    first = "11" if problem.outputs > 1 or problem.positions else ""
    if fixed:
        samples = problem.seen
        # Traces are summed over positions too, if the problem has positions.
        over, pair = (r"{\mu p}", r"{\mu p,\mu p}") if problem.positions else (r"\mu", r"{\mu\mu}")
        label = rf"$\frac{{1}}{{P}}\sum_{over} {phi}^\ell_{pair}(t,t)$"
        _kernels(middle, theory, networks, "Phi_trace", label, samples)
        if linear:
            _kernels(right, theory, networks, GRADIENT_KERNEL, rf"$G_{{{first}}}^\ell(t,t)$")
        else:
            label = rf"$\frac{{1}}{{P}}\sum_{over} G^\ell_{pair}(t,t)$"
            _kernels(right, theory, networks, "G_trace", label, samples)
    else:
        _kernels(middle, theory, networks, C_FIELD, rf"$C_{{h{first}}}^\ell(t,t)$")
        _kernels(right, theory, networks, C_GRADIENT, rf"$C_{{g{first}}}^\ell(t,t)$")
    titles = ("loss", "feature kernels" if fixed else "features of an error", "gradient kernels")
    for panel, words in zip((left, middle, right), titles, strict=True):
        panel.set_xlabel("time" if problem.flow else "step")
        if problem.experiment is not None and problem.experiment.training.grid == "log" and problem.flow:
            panel.set_xscale("symlog", linthresh=float(theory.time[1]))
        panel.set_title(words, loc="left")
    above.suptitle(_caption(problem, networks), fontsize=10.5)
    return figure


def _caption(problem: Problem, networks: xr.Dataset | None) -> str:
    """Return the title of a figure; with networks, it names their widths."""
    experiment, words = problem.experiment, title(problem)
    if networks is None:
        wide = experiment is None or (experiment.network.width_ratio or experiment.network.width) is None
        return f"{words}\nLines: theory" + (" of infinitely wide layers." if wide else ".")
    *some, last = (str(n) for n in networks.attrs["widths"])
    which = f"networks of width {', '.join(some)} and {last}"
    if experiment is not None and experiment.network.width is not None:
        which = f"theory, plus {which} less theirs"
    return rf"{words}" "\n" rf"Lines: theory.  Points: {which}, at $1/N\to0$."


def _losses(ax: Axes, theory: xr.Dataset, networks: xr.Dataset | None, both: bool) -> None:
    """Draw the training loss over time on ``ax``: theory as a line, networks as points.

    The test loss is drawn, too, if ``both`` is true.
    """
    for name, label, colour, marker in LOSSES if both else LOSSES[:1]:
        ax.plot(theory.time, theory[name], color=colour, lw=1.8, label=label if both else "theory")
        _band(ax, theory, colour, *(theory.get(f"{name}{end}") for end in ("", "_stderr")))
        if networks is not None:  # two curves fill the legend, so that the caption explains the points
            points = _points(networks.time, networks[name], networks[f"{name}_stderr"])
            ax.errorbar(*points, **_dots(colour, marker), label=None if both else r"networks, $1/N\to0$")
    shown = [theory[name] for name, *_ in (LOSSES if both else LOSSES[:1])]
    _limits(ax, np.concatenate([x.to_numpy() for x in shown]))
    ax.set_ylabel("loss")
    ax.legend(fontsize=9)


def _kernels(
    ax: Axes, theory: xr.Dataset, networks: xr.Dataset | None, name: str, label: str, share: float = 1.0
) -> None:
    """Draw a kernel ``name`` of each layer at equal times, divided by ``share``, theory and networks.

    ``share`` is the number of samples if the variable is a trace, and one otherwise. ``label`` is the label
    of the vertical axis. If the theory does not hold the kernel, the panel says so.
    """
    if name not in theory:
        ax.text(0.5, 0.5, "not in this result", transform=ax.transAxes, ha="center")
        return
    values = _equal_times(theory, name)
    for k, colour in enumerate(colours(len(values))):
        ax.plot(theory.time, values[k] / share, color=colour, lw=1.8, label=rf"$\ell={k + 1}$")
        if f"{name}_stderr" in theory:
            _band(ax, theory, colour, *(_equal_times(theory, n)[k] / share for n in (name, f"{name}_stderr")))
        if networks is not None and name in networks:
            drawn = (_equal_times(networks, n)[k] / share for n in (name, f"{name}_stderr"))
            ax.errorbar(*_points(_times(networks, name), *drawn), **_dots(colour, "o"))
    _limits(ax, values / share)
    ax.set_ylabel(label)
    ax.legend(fontsize=9, ncols=min(len(values), 5), loc="upper center")


def _band(ax: Axes, theory: xr.Dataset, colour: Any, value: Any, stderr: Any) -> None:
    """Draw a band of one standard error ``stderr`` around the curve ``value``; nothing without errors."""
    if stderr is not None:
        low, high = (np.asarray(value) + sign * np.asarray(stderr) for sign in (-1, 1))
        ax.fill_between(theory.time, low, high, color=colour, alpha=0.25, lw=0)


def _limits(ax: Axes, values: Array) -> None:
    """Set the limits of the vertical axis for ``values``, with room for a legend.

    The axis is logarithmic if values are positive and differ by more than the factor RANGE.
    """
    low, high = float(values.min()), float(values.max())
    if low > 0 and high > RANGE * low:
        ax.set(yscale="log", ylim=(low / 2, high * (high / low) ** 0.2))
    else:
        room = high - min(low, 0.8 * high) or 1.0
        ax.set_ylim(high - 1.15 * room, high + 0.25 * room)


def _equal_times(result: xr.Dataset, name: str) -> Array:
    """Return a kernel of the first output and position at equal times, of shape (layers, times)."""
    first = {d: 0 for d in ("channel", "channel_", "position", "position_") if d in result[name].dims}
    values = result[name].isel(first).to_numpy()
    return np.asarray(np.einsum("ltt->lt", values))


def _times(result: xr.Dataset, name: str) -> xr.DataArray:
    """Return the times at which the kernel ``name`` is known.

    Networks may have some of the output times only.
    """
    return next(result[d] for d in ("time", KERNEL_TIME, TRACE_TIME) if d in result[name].dims)


def _points(times: xr.DataArray, value: Any, stderr: Any) -> tuple[Array, Array, Array]:
    """Return a few of the times, with the values and standard errors there, to be drawn as points.

    They are in the order of the arguments of ``Axes.errorbar``.
    """
    at = drawn_places(len(times))
    return times.to_numpy()[at], np.asarray(value)[at], np.asarray(stderr)[at]


def _dots(colour: Any, marker: str) -> dict[str, Any]:
    """Return keyword arguments of ``Axes.errorbar`` that draw points with error bars."""
    return {"fmt": marker, "ms": 4, "color": colour, "mfc": "white", "lw": 1}


def _between_samples(kernel: Array) -> Array:
    """Return a kernel (P, P) of samples: the mean over equal positions of one of shape (P, p, P, p)."""
    return kernel if kernel.ndim == 2 else np.einsum("mpnp->mn", kernel) / kernel.shape[1]


def heat_maps(figure: SubFigure, problem: Problem, theory: xr.Dataset) -> None:
    """Draw kernels between samples: K_x, the final feature kernels of up to three layers, and y y^T.

    Each is divided by the mean of its diagonal. Samples are sorted by decreasing targets y. If there are
    several outputs, y y^T is summed over them, and the targets of the first sort the samples. Kernels of
    inputs and units with positions are averages over equal positions. K_x and feature kernels that
    ``problem`` and ``theory`` do not hold are left out.
    """
    y = problem.targets.reshape(problem.seen, -1)
    goal = y @ y.T
    maps: list[tuple[str, Array]] = []
    if INPUT_KERNEL in problem.arrays and problem.arrays[INPUT_KERNEL].ndim in (2, 4):
        inputs = _between_samples(problem.arrays[INPUT_KERNEL])
        maps.append((r"$K^x$", inputs[: problem.seen, : problem.seen]))
    if FEATURE_KERNEL in theory:
        layers = np.unique(np.linspace(1, theory.sizes["layer"], min(3, theory.sizes["layer"])).round())
        final = theory.Phi.isel(time=-1, time_=-1)
        phi = "H" if isinstance(problem.linear, LinearForm) else r"\Phi"
        kernels = {int(k): _between_samples(final.sel(layer=int(k)).to_numpy()) for k in layers}
        maps += [(rf"${phi}^{k}(T,T)$", kernel) for k, kernel in kernels.items()]
    maps.append((r"$y\,y^{\top}$", goal))
    order = np.argsort(-y[:, 0], kind="stable")
    panels = figure.subplots(1, len(maps), squeeze=False)[0]
    image: Any = None
    for ax, (name, matrix) in zip(panels, maps, strict=True):
        shown = matrix[np.ix_(order, order)] / np.mean(np.diag(matrix))
        image = ax.imshow(shown, cmap="RdBu_r", vmin=-1.5, vmax=1.5, interpolation="nearest")
        ax.set(xticks=[], yticks=[])
        for side in ax.spines.values():
            side.set(visible=True, linewidth=0.6)
        overlap = np.sum(goal * matrix) / (np.linalg.norm(matrix) * np.linalg.norm(goal))
        ax.set_title(name)
        ax.set_xlabel(rf"alignment with $yy^\top$: {overlap:.2f}", fontsize=9)
    bar = figure.colorbar(image, ax=panels, shrink=0.8, pad=0.015, aspect=15)
    bar.set_label("entry / mean diagonal", fontsize=9)
    figure.suptitle(r"kernels between samples, sorted by target", fontsize=10.5)
