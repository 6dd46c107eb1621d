"""Figures of results.  Functions draw on axes and return the artists, or return a figure with all panels.

No function opens a window.

Matplotlib is imported when the first figure is drawn.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from numerics.names import (
    BACKWARD_RESPONSE,
    C_FIELD,
    C_GRADIENT,
    FEATURE_KERNEL,
    FORWARD_RESPONSE,
    GRADIENT_KERNEL,
    OUTPUT,
)
from numerics.results import SHIFT, STDERR, VARIANCE, replacing

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}
"""Matplotlib settings of every figure."""

LOSSES = (("train_loss", "training", "black", "-"), ("test_loss", "test", "#c2571a", "--"))
"""Losses that are drawn: name, label, colour and dashes."""

KERNELS = (
    (FEATURE_KERNEL, "-", r"tr $\Phi^{{{0}}}/P$"),
    (GRADIENT_KERNEL, "--", "{1}$G^{{{0}}}${2}"),
    (C_FIELD, "-", "$C_h^{{{0}}}$"),
    (C_GRADIENT, "--", "$C_g^{{{0}}}$"),
)
"""Kernels of layers that are drawn: name, line style and label."""

RESPONSES = (
    (FORWARD_RESPONSE, "-", "$A^{{{0}}}$"),
    (BACKWARD_RESPONSE, "--", "$B^{{{0}}}$"),
    ("R_hr", "-", "$R_{{hr}}^{{{0}}}$"),
    ("R_gu", "--", "$R_{{gu}}^{{{0}}}$"),
)
"""Responses that are drawn: name, line style and label."""

KEEPS = "solve(kernels='full') keeps them, if the theory has responses and its method computes them"
"""Advice if a solution does not hold responses."""

APART = 0.055
"""Smallest distance between labels at the ends of curves, as a share of the height of the axes."""


def plot_loss(result: xr.Dataset, *, ax: Axes | None = None, **style: Any) -> list[Artist]:
    """Draw the training loss, on a logarithmic axis, against time, with standard errors.

    Lines have a band of two standard errors, points have bars of one.  The test loss is drawn dashed, if the
    result has one that differs.  The axis of time is logarithmic, too, for power-law data, whose loss is a
    power of time, and for times on a logarithmic grid.  The axis of the loss is linear if a loss is negative.
    Raises ``ValueError`` for a result without a training loss.
    """
    _require_loss(result)
    ax = _axes(ax)
    artists, both = [], "test_loss" in result and bool((result.test_loss != result.train_loss).any())
    at_width: list[Artist] = []
    for name, label, colour, dashes in LOSSES[: 1 + both]:
        word = f"{label} {style['label']}" if "label" in style and name != "train_loss" else label
        defaults = {"label": word} if both else {}
        defaults |= {} if name == "train_loss" or "linestyle" in style else {"linestyle": dashes}
        defaults |= {} if {"color", "c"} & set(style) or not both else {"color": colour}
        if name + VARIANCE in result and not both:
            defaults |= {"label": "infinite width"}
        curve = _curve(ax, result, name, **{**defaults, **style, **({"label": word} if both else {})})
        artists += curve
        at_width += _band_at_width(ax, result, name, curve[0])
    artists += at_width
    negative = any(bool((result[name] < 0).any()) for name, *_ in LOSSES[: 1 + both])
    ax.set(ylabel="loss" if both else "training loss", yscale="linear" if negative else "log")
    _time_axis(ax, result, _section(result, "data").get("kind") == "power-law")
    if both or at_width:
        ax.legend()
    return artists


def _require_loss(result: xr.Dataset) -> None:
    """Raise ``ValueError`` for a result without a training loss."""
    if "train_loss" not in result:
        raise ValueError(
            "the result contains no training loss, for example because its program states no loss"
        )


def plot_kernels(result: xr.Dataset, *, ax: Axes | None = None, **style: Any) -> list[Artist]:
    """Draw kernels of layers at equal times against time, one colour a layer, labelled at their ends.

    Full lines are tr Phi^l(t,t)/P (of random data C_h^l), dashed lines G^l(t,t) (of nonlinear networks tr
    G^l/P; of random data C_g^l).  Traces are over samples, outputs and positions of units, and P is the
    number of samples.  Kernels are drawn at the times at which the result has them.  Kernels that it does not
    hold are left out.
    """
    ax = _axes(ax)
    artists, ends = [], []
    for name, line, label in KERNELS:
        if not _holds(result, name):
            continue
        kernel = _equal_time(result, name)
        shades = colours(kernel.sizes["layer"])
        for layer, colour in zip(kernel.layer.values, shades, strict=True):
            traced = _trace_label(result, name)
            row = {"color": colour, "linestyle": line, "label": label.format(layer, *traced), **style}
            of = kernel.sel(layer=layer)
            curve = _curve(ax, of, name, **row)
            artists += [*curve, *_band_at_width(ax, of, name, curve[0], "_nolegend_")]
            ends.append((float(of[name][-1]), str(row["label"]), row["color"]))
    ax.set(ylabel="kernels at equal times")
    ax.margins(x=0.02)
    _time_axis(ax, result)
    name_ends(ax, ends)
    return artists


def plot_responses(
    result: xr.Dataset, *, sample: int = 0, ax: Axes | None = None, **style: Any
) -> list[Artist]:
    """Draw the responses at the last time T to a perturbation at time s, one colour a layer.

    Full lines are A^l(T,s), dashed lines B^l(T,s), of one sample, the first output and the first position; of
    random data R_hr^l and R_gu^l.  Raises ``ValueError`` for a result without responses (of given samples,
    ``kernels="full"`` keeps them), without this sample, or with one time.
    """
    drawn = [row for row in RESPONSES if row[0] in result]
    if not drawn:
        left_out = result.attrs.get("left_out")
        raise ValueError(f"the result contains no responses: {left_out or KEEPS}")
    samples = result.sizes.get("sample", 1)
    if not 0 <= sample < samples:
        raise ValueError(f"sample = {sample}: must be one of the samples 0..{samples - 1} of the result")
    if result.sizes["time"] < 2:
        raise ValueError(
            f"the result has the time {result.time.values[0]:g} only: responses to earlier perturbations "
            "need two times or more"
        )
    ax = _axes(ax)
    artists, ends = [], []
    for name, line, label in drawn:
        at: dict[str, Any] = {"time": -1, "time_": slice(0, -1)}
        at |= {d: 0 for d in ("channel", "channel_", "position", "position_") if d in result[name].dims}
        at |= {d: sample for d in ("sample", "sample_") if d in result[name].dims}
        names = [x for x in (name, name + STDERR) if x in result]
        of = result[names].isel(at).drop_vars("time").rename({"time_": "time"})
        for layer, colour in zip(of.layer.values, colours(of.sizes["layer"]), strict=True):
            row = {"color": colour, "linestyle": line, "label": label.format(layer), **style}
            artists += _curve(ax, of.sel(layer=layer), name, **row)
            ends.append((float(of[name].sel(layer=layer)[-1]), str(row["label"]), row["color"]))
    ax.set(xlabel=f"{_time_label(result)} $s$ of the perturbation", ylabel="responses at the end")
    ax.margins(x=0.02)
    name_ends(ax, ends)
    return artists


def plot_distribution(
    density: xr.Dataset, *, gaussian: bool = False, ax: Axes | None = None, **style: Any
) -> list[Artist]:
    """Draw the density of single units, with a band (points: bars) of standard errors.

    ``density`` is the result of :func:`numerics.analysis.ensembles.histogram` or ``kernel_density``.
    ``gaussian`` adds the Gaussian of the same mean and variance, dashed.  Raises ``ValueError`` if the
    density has dimensions other than ``value``: select one sample, layer and time first.
    """
    if more := [str(d) for d in density.density.dims if d != "value"]:
        raise ValueError(
            f"the density has the dimensions {', '.join(more)}: choose one entry of each, by isel or sel"
        )
    ax, at = _axes(ax), density["value"].values
    artists = _curve(ax, density.rename(value="time"), "density", **style)
    if gaussian:
        share = density.density.values * np.gradient(at)
        mean = share @ at / share.sum()
        variance = share @ (at - mean) ** 2 / share.sum()
        bell = share.sum() * np.exp(-((at - mean) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)
        artists += ax.plot(at, bell, color="0.5", linestyle="--", linewidth=1, label="Gaussian")
    ax.set(xlabel="value of a unit", ylabel="density")
    return artists


def plot_slopes(result: xr.Dataset, *, ax: Axes | None = None, **style: Any) -> list[Artist]:
    """Draw the local power of time in the loss, ``-d ln loss / d ln t``, against time.

    The loss is the test loss if the result has one, else the training loss.  Raises ``ValueError`` for a
    result without a loss, for fewer than three times after 0, and for a loss that is not positive there.
    """
    if "test_loss" not in result:
        _require_loss(result)
    name = "test_loss" if "test_loss" in result else "train_loss"
    later = result.isel(time=result.time.values > 0)
    if later.sizes["time"] < 3:
        raise ValueError(
            f"the number of times after 0 in the result is {later.sizes['time']}, and a slope needs at "
            "least 3"
        )
    times, losses = later.time.values, later[name].values
    if not (losses > 0).all():
        first = int(np.argmin(losses > 0))
        raise ValueError(
            f"{name} is {losses[first]:.3g} at {_time_label(result)} {times[first]:g}: a loss that is not "
            "positive has no power of time; select earlier times, or use plot_loss"
        )
    ax = _axes(ax)
    slopes = -np.gradient(np.log(losses), np.log(times))
    ax.set(xlabel=_time_label(result), ylabel="power of time in the loss", xscale="log")
    return list(ax.plot(times, slopes, **style))


def name_ends(ax: Axes, ends: Sequence[tuple[float, str, Any]], apart: float = APART) -> None:
    """Write names of curves, in their colours, to the right of their ends.

    ``ends`` holds the last value of each curve, its name and its colour. Names are moved until they are about
    ``apart`` from each other, in units of the height of the axes; more than ten names may stay closer.
    """
    if not ends:
        return
    low, high = ax.get_ylim()
    into = ax.transAxes.inverted()
    at = [float(into.transform(ax.transData.transform((0.0, y)))[1]) for y, *_ in ends]
    order = np.argsort(at)
    put = np.array(at)[order]
    for _ in range(100):  # repeated, because names that are moved apart may come too close to others
        gaps = apart - np.diff(put)
        if (gaps < 1e-3).all():
            break
        for k in np.flatnonzero(gaps > 0):
            put[k] -= gaps[k] / 2
            put[k + 1] += gaps[k] / 2
    put += max(0.0, -put[0])  # all names move up if the lowest one is below the axis
    for place, k in zip(put, order, strict=True):
        _, name, colour = ends[k]
        ax.text(1.02, place, name, transform=ax.transAxes, color=colour, va="center", fontsize="small")
    ax.set_ylim(low, high)


def colours(count: int) -> list[tuple[float, ...]]:
    """Return ``count`` colours, one for each layer, from dark to light.

    The lightest part of the colour map is not used, because it does not print well.
    """
    from matplotlib import colormaps

    return [tuple(colormaps["viridis"](x)) for x in np.linspace(0.08, 0.8, count)]


def plot_outputs(result: xr.Dataset, *, ax: Axes | None = None, **style: Any) -> list[Artist]:
    """Draw the outputs ``f`` against time, one colour for each sample and output, with standard errors.

    Raises ``ValueError`` for a result without the variable ``f``.
    """
    if OUTPUT not in result:
        raise ValueError(
            "the result contains no output f: for example, results for random data, and for programs with "
            "several output functions or none, do not contain f"
        )
    ax = _axes(ax)
    names = [x for x in (OUTPUT, OUTPUT + STDERR, OUTPUT + VARIANCE, OUTPUT + SHIFT) if x in result]
    flat = result[names].stack(entry=[d for d in result[OUTPUT].dims if d != "time"])
    artists: list[Artist] = []
    for k, colour in enumerate(colours(flat.sizes["entry"])):
        curve = _curve(ax, flat.isel(entry=k), OUTPUT, **{"color": colour, **style})
        artists += [*curve, *_band_at_width(ax, flat.isel(entry=k), OUTPUT, curve[0], "_nolegend_")]
    ax.set(ylabel="outputs $f$ on samples")
    _time_axis(ax, result)
    return artists


def plot_result(result: xr.Dataset) -> Figure:
    """Return a figure of the losses over time and of the kernels, or of outputs if there are no kernels."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    kernels = any(_holds(result, name) for name, *_ in KERNELS)
    panels: list[Callable[..., Any]] = [plot_loss] if "train_loss" in result else []
    panels += [plot_kernels] if kernels else [plot_outputs] if OUTPUT in result else []
    with rc_context(STYLE):
        figure = Figure(figsize=(4.5 * max(len(panels), 1), 3.8), layout="constrained")
        for plot, ax in zip(panels, figure.subplots(1, max(len(panels), 1), squeeze=False)[0], strict=False):
            plot(result, ax=ax)
    return figure


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write the figure in the format of the suffix; on any failure `path` is unchanged."""
    with replacing(path) as beside:
        figure.savefig(beside, dpi=150)


def _curve(ax: Axes, result: xr.Dataset, name: str, **style: Any) -> list[Artist]:
    """Draw one variable over time, with its standard errors if the result has them.

    A line has a band of two standard errors. Without a line, points have bars of one standard error.
    """
    times, values = result.time.values, result[name].values
    if name + STDERR not in result:
        return list(ax.plot(times, values, **style))
    error = result[name + STDERR].values
    if style.get("linestyle") == "none":
        return [ax.errorbar(times, values, yerr=error, **style)]  # type: ignore[list-item]
    lines: list[Artist] = list(ax.plot(times, values, **style))
    colour = lines[0].get_color()  # type: ignore[attr-defined]
    band = ax.fill_between(times, values - 2 * error, values + 2 * error, color=colour, alpha=0.25, lw=0)
    return [*lines, band]


def _band_at_width(
    ax: Axes, result: xr.Dataset, name: str, curve: Artist, label: str | None = None
) -> list[Artist]:
    """Draw, around the curve of a variable, networks of the width N for which the result has corrections.

    Their mean is a dotted line, if the result has its shift. A band shows one standard deviation of a single
    network on each side of this mean, or of the curve without a shift. Nothing is drawn if the result has no
    variance of the variable.
    """
    if name + VARIANCE not in result:
        return []
    width, colour = int(result.attrs["width"]), curve.get_color()  # type: ignore[attr-defined]
    times, mean = result.time.values, result[name].values
    deviation = np.sqrt(np.maximum(result[name + VARIANCE].values, 0.0) / width)
    lines: list[Artist] = []
    if name + SHIFT in result:
        mean = mean + result[name + SHIFT].values / width
        text = label or f"mean at N = {width}"
        lines = list(ax.plot(times, mean, color=colour, linestyle=":", label=text))
    text = label or f"one standard deviation at N = {width}"
    low, high = mean - deviation, mean + deviation
    return [*lines, ax.fill_between(times, low, high, color=colour, alpha=0.15, lw=0, label=text)]


def _trace_label(result: xr.Dataset, name: str) -> tuple[str, str]:
    """Return the words before and after the symbol of a kernel in the name of its curve.

    For a gradient kernel they are "tr " and "/P" if it has samples, of which P is the number, and "tr " alone
    if it has outputs or positions only. Otherwise both are empty.
    """
    if name != GRADIENT_KERNEL:
        return "", ""
    if f"{name}_trace" in result or "sample_" in result[name].dims:
        return "tr ", "$/P$"
    return ("tr ", "") if {"channel_", "position_"} & {*result[name].dims} else ("", "")


def _holds(result: xr.Dataset, name: str) -> bool:
    """Return whether a result holds the kernel ``name``, or its trace, with a dimension ``layer``."""
    return any("layer" in result[x].dims for x in (name, f"{name}_trace") if x in result)


def _equal_time(result: xr.Dataset, name: str) -> xr.Dataset:
    """Return a kernel and its standard error at t = s, by layer and the dimension ``time``.

    Entries at equal indices are summed over outputs and positions and averaged over samples. The sum or mean
    of the standard errors of entries is an upper bound on the standard error. If the result holds both the
    kernel and its trace, the one at more times is used. Corrections of order 1/N are included if the result
    has them and the kernel is held at all times.
    """
    trace = f"{name}_trace"
    known = [x for x in (name, trace) if x in result]
    source = max(known, key=lambda x: result.sizes[_time_dimension(result, x)])
    chosen = result[[x for x in (source, source + STDERR) if x in result]]
    chosen = chosen.rename({x: x.replace(source, name) for x in map(str, chosen.data_vars)})
    time = _time_dimension(result, source)
    chosen = _at_equal(chosen, time).rename({time: "time"})
    for dim in ("channel", "position"):
        if f"{dim}_" in chosen.dims:
            chosen = _at_equal(chosen, dim).sum(dim)
    if "sample_" in chosen.dims:
        chosen = _at_equal(chosen, "sample").mean("sample")
    if source == trace:
        chosen = chosen / result.sizes["sample"]
    corrections = _corrections_of_mean(result, name) if time == "time" else {}
    return chosen.assign(corrections).assign_attrs(result.attrs)


def _time_dimension(result: xr.Dataset, name: str) -> str:
    """Return the name of the dimension of the first time of a kernel.

    It is ``time``, or ``kernel_time`` or ``trace_time`` for a kernel that is held at some of the times only.
    """
    return next(x.removesuffix("_") for x in map(str, result[name].dims) if x.endswith("time_"))


def _at_equal(values: xr.Dataset, dim: str) -> xr.Dataset:
    """Return variables with the dimensions ``dim`` and ``dim_`` at equal values of both, along ``dim``."""
    equal = xr.DataArray(np.arange(values.sizes[dim]), dims=dim)
    labels = {dim: values[dim].values} if dim in values.coords else {}
    return values.isel({dim: equal, f"{dim}_": equal}).assign_coords(labels)


def _corrections_of_mean(result: xr.Dataset, name: str) -> dict[str, xr.DataArray]:
    """Return corrections of order 1/N for a kernel averaged over samples, from those of its trace.

    A kernel without samples has its own corrections. They are N times variances and shifts of networks, by
    name of the variable; empty if there are none.
    """
    trace, count = f"{name}_trace", float(result.sizes.get("sample", 1))
    if trace + VARIANCE in result:
        corrections = {VARIANCE: result[trace + VARIANCE] / count**2}
        corrections |= {SHIFT: result[trace + SHIFT] / count} if trace + SHIFT in result else {}
        return {name + end: x for end, x in corrections.items()}
    ends = [x for x in (VARIANCE, SHIFT) if name + x in result]
    alone = all({"layer", "time"} >= {*result[name + x].dims} for x in ends)
    return {name + x: result[name + x] for x in ends} if alone else {}


def _time_axis(ax: Axes, result: xr.Dataset, power: bool = False) -> None:
    """Label the time axis; make it logarithmic if the times are, or if the loss is a ``power`` of time."""
    ax.set(xlabel=_time_label(result))
    later = result.time.values[result.time.values > 0]
    if len(later) > 1 and (power or _section(result, "training").get("grid") == "log"):
        ax.set(xscale="log", xlim=(later[0], later[-1]))


def _time_label(result: xr.Dataset) -> str:
    """Return the long name of the time coordinate, or "time" for a flow and "step" for steps."""
    if "long_name" in result.time.attrs:
        return str(result.time.attrs["long_name"])
    times = result.time.values
    counted = np.array_equal(times, np.arange(len(times)))
    training = _section(result, "training")
    return "time" if training.get("rule") == "flow" or not (training or counted) else "step"


def _section(result: xr.Dataset, section: str) -> Mapping[str, Any]:
    """Return a table, such as "training", of the experiment file that a result keeps; {} without a file."""
    return dict(tomllib.loads(str(result.attrs.get("spec", ""))).get(section, {}))


def _axes(ax: Axes | None) -> Axes:
    """Return ``ax``, or the axes of a new figure if it is None."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots()[1]
