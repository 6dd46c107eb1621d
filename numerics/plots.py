"""Figures of results. Each function draws and returns what it drew; none of them shows a window.

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
"""Of every figure."""

LOSSES = (("train_loss", "training", "black", "-"), ("test_loss", "test", "#c2571a", "--"))
"""The losses that are drawn: name, label, colour and dashes."""

KERNELS = (
    (FEATURE_KERNEL, "-", r"tr $\Phi^{{{0}}}/P$"),
    (GRADIENT_KERNEL, "--", "{1}$G^{{{0}}}${2}"),
    (C_FIELD, "-", "$C_h^{{{0}}}$"),
    (C_GRADIENT, "--", "$C_g^{{{0}}}$"),
)
"""The kernels of a layer that are drawn, how, and what they are called."""

RESPONSES = (
    (FORWARD_RESPONSE, "-", "$A^{{{0}}}$"),
    (BACKWARD_RESPONSE, "--", "$B^{{{0}}}$"),
    ("R_hr", "-", "$R_{{hr}}^{{{0}}}$"),
    ("R_gu", "--", "$R_{{gu}}^{{{0}}}$"),
)
"""The same of responses."""

KEEPS = "kernels='full' keeps them"
"""How a solution holds responses."""

APART = 0.055
"""Of the height of a figure: how far labels at the ends of curves are from each other."""


def plot_loss(result: xr.Dataset, *, ax: Axes | None = None, **style: Any) -> list[Artist]:
    """Training loss against time on a logarithmic scale, with a band (points: bars) of standard errors.

    The test loss beside it, dashed, if the result has one that differs.  A loss that
    falls as a power of time, on power-law data, and times on a logarithmic grid are drawn doubly
    logarithmically.
    """
    if "train_loss" not in result:
        raise ValueError("the result holds no loss: the program states none")
    ax = _axes(ax)
    artists, both = [], "test_loss" in result and bool((result.test_loss != result.train_loss).any())
    at_width: list[Artist] = []
    for name, label, colour, dashes in LOSSES[: 1 + both]:
        word = f"{label} {style['label']}" if "label" in style and name != "train_loss" else label
        own = {"label": word} if both else {}
        own |= {} if name == "train_loss" or "linestyle" in style else {"linestyle": dashes}
        own |= {} if {"color", "c"} & set(style) or not both else {"color": colour}
        if name + VARIANCE in result and not both:
            own |= {"label": "infinite width"}
        curve = _curve(ax, result, name, **{**own, **style, **({"label": word} if both else {})})
        artists += curve
        at_width += _band_at_width(ax, result, name, curve[0])
    artists += at_width
    negative = any(bool((result[name] < 0).any()) for name, *_ in LOSSES[: 1 + both])
    ax.set(ylabel="loss" if both else "training loss", yscale="linear" if negative else "log")
    _time_axis(ax, result, _said(result, "data").get("kind") == "power-law")
    if both or at_width:
        ax.legend()
    return artists


def plot_kernels(result: xr.Dataset, *, ax: Axes | None = None, **style: Any) -> list[Artist]:
    """tr Phi^l(t,t)/P (full lines) and G^l(t,t) (dashed; of nonlinear networks its trace over P too) against
    time, one colour a layer; of random data C_h^l and C_g^l.  Each curve has its name at its end.

    A kernel that the result does not hold is left out.
    """
    ax = _axes(ax)
    artists, ends = [], []
    for name, line, label in KERNELS:
        if not _holds(result, name):
            continue
        kernel = _equal_time(result, name)
        shades = colours(kernel.sizes["layer"])
        for layer, colour in zip(kernel.layer.values, shades, strict=True):
            traced = ("tr ", "$/P$") if name == GRADIENT_KERNEL and _of_samples(result, name) else ("", "")
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
    """What fields at the last time T still know of a push at the time s: A^l(T,s) (full lines) and B^l(T,s)
    (dashed) of one sample, or R_hr^l and R_gu^l of random data; one colour a layer.

    Of several outputs the first one's.  Raises ``ValueError`` for a result without responses (solved with
    ``kernels="none"``) or without this sample.
    """
    drawn = [row for row in RESPONSES if row[0] in result]
    if not drawn:
        left_out = result.attrs.get("left_out")
        raise ValueError(f"the result holds no responses: {left_out or KEEPS}")
    if not 0 <= sample < result.sizes.get("sample", 1):
        raise ValueError(f"sample = {sample}: there are {result.sizes['sample']}")
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
    ax.set(xlabel=f"{_time_label(result)} $s$ of the push", ylabel="responses at the end")
    ax.margins(x=0.02)
    name_ends(ax, ends)
    return artists


def plot_distribution(
    density: xr.Dataset, *, gaussian: bool = False, ax: Axes | None = None, **style: Any
) -> list[Artist]:
    """The density of single units, as :func:`numerics.analysis.ensembles.histogram` or ``kernel_density``
    finds it, with a band (points: bars) of standard errors.

    ``gaussian`` adds the Gaussian of the same mean and variance, dashed.  Raises ``ValueError`` for the
    densities of several units at once: one of ``sample``, ``layer`` and ``time`` each is drawn.
    """
    if more := [str(d) for d in density.density.dims if d != "value"]:
        raise ValueError(f"densities along {', '.join(more)}: choose one of each, by isel or sel")
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
    """The power of time by which the loss falls here and now, ``-d ln loss / d ln t``, against time.

    The test loss of a result that has one, else the training loss.  Raises ``ValueError`` for fewer than
    three times after 0.
    """
    name = "test_loss" if "test_loss" in result else "train_loss"
    later = result.isel(time=result.time.values > 0)
    if later.sizes["time"] < 3:
        raise ValueError(f"{later.sizes['time']} times after 0: a slope needs 3")
    ax, times = _axes(ax), later.time.values
    slopes = -np.gradient(np.log(later[name].values), np.log(times))
    ax.set(xlabel=_time_label(result), ylabel="power of time in the loss", xscale="log")
    return list(ax.plot(times, slopes, **style))


def name_ends(ax: Axes, ends: Sequence[tuple[float, str, Any]], apart: float = APART) -> None:
    """Names of curves, in their colours, at the right of where they end, ``apart`` by a share of the axis.

    ``ends``: the last value of each curve, its name and its colour.
    """
    if not ends:
        return
    low, high = ax.get_ylim()
    into = ax.transAxes.inverted()
    at = [float(into.transform(ax.transData.transform((0.0, y)))[1]) for y, *_ in ends]
    order = np.argsort(at)
    put = np.array(at)[order]
    for _ in range(100):  # neighbours that are too close move apart by equal steps
        gaps = apart - np.diff(put)
        if (gaps < 1e-3).all():
            break
        for k in np.flatnonzero(gaps > 0):
            put[k] -= gaps[k] / 2
            put[k + 1] += gaps[k] / 2
    put += max(0.0, -put[0])  # the lowest stays above the axis
    for place, k in zip(put, order, strict=True):
        _, name, colour = ends[k]
        ax.text(1.02, place, name, transform=ax.transAxes, color=colour, va="center", fontsize="small")
    ax.set_ylim(low, high)


def colours(count: int) -> list[tuple[float, ...]]:
    """One a layer, from dark to light; the lightest part of the map does not print."""
    from matplotlib import colormaps

    return [tuple(colormaps["viridis"](x)) for x in np.linspace(0.08, 0.8, count)]


def plot_outputs(result: xr.Dataset, *, ax: Axes | None = None, **style: Any) -> list[Artist]:
    """Outputs on each sample against time, one colour a sample, with bands (points: bars) of standard errors.

    Raises ``ValueError`` for a result that holds no single output.
    """
    if OUTPUT not in result:
        raise ValueError("the result holds no output f: the program has several, or none")
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
    """Losses of a result over time, and beside them its kernels, or its outputs if it holds none."""
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
    """Writes the figure, in the format of the suffix; on any failure `path` is as it was before."""
    with replacing(path) as beside:
        figure.savefig(beside, dpi=150)


def _curve(ax: Axes, result: xr.Dataset, name: str, **style: Any) -> list[Artist]:
    """One variable over time; if `name_stderr` is there, a line has a band, points have bars.

    Bars are one standard error, a band is two on either side.
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
    """The mean over networks of the width of a result, dotted, with a band of one standard deviation."""
    if name + VARIANCE not in result:
        return []
    width, colour = int(result.attrs["width"]), curve.get_color()  # type: ignore[attr-defined]
    times, mean = result.time.values, result[name].values
    deviation = np.sqrt(np.maximum(result[name + VARIANCE].values, 0.0) / width)
    lines: list[Artist] = []
    if name + SHIFT in result:
        mean = mean + result[name + SHIFT].values / width
        told = label or f"mean at N = {width}"
        lines = list(ax.plot(times, mean, color=colour, linestyle=":", label=told))
    told = label or f"one standard deviation at N = {width}"
    low, high = mean - deviation, mean + deviation
    return [*lines, ax.fill_between(times, low, high, color=colour, alpha=0.15, lw=0, label=told)]


def _of_samples(result: xr.Dataset, name: str) -> bool:
    """Has the kernel two samples, of which the trace is drawn?"""
    return f"{name}_trace" in result or "sample_" in result[name].dims


def _holds(result: xr.Dataset, name: str) -> bool:
    """Has the result this kernel of layers?"""
    return any("layer" in result[x].dims for x in (name, f"{name}_trace") if x in result)


def _equal_time(result: xr.Dataset, name: str) -> xr.Dataset:
    """The kernel and its standard error at t = s, averaged over samples: (layer, time).

    The average of the samples' standard errors bounds the standard error of the average from above.
    """
    corrections = _corrections_of_mean(result, name)
    if name not in result:
        trace = result[[f"{name}_trace"]].rename({f"{name}_trace": name}) / result.sizes["sample"]
        return _equal_time(trace.expand_dims(sample=1, sample_=1), name).assign(corrections)
    chosen = result[[each for each in (name, name + STDERR) if each in result]]
    time = xr.DataArray(np.arange(result.sizes["time"]), dims="time")
    chosen = chosen.isel(time=time, time_=time)
    if "sample_" in chosen.dims:
        sample = xr.DataArray(np.arange(result.sizes["sample"]), dims="sample")
        chosen = chosen.isel(sample=sample, sample_=sample).mean("sample")
    if "channel_" in chosen.dims:
        channel = xr.DataArray(np.arange(result.sizes["channel"]), dims="channel")
        chosen = chosen.isel(channel=channel, channel_=channel).mean("channel")
    return chosen.assign_coords(time=result.time.values).assign(corrections).assign_attrs(result.attrs)


def _corrections_of_mean(result: xr.Dataset, name: str) -> dict[str, xr.DataArray]:
    """N times variances and shifts of a kernel averaged over equal samples, which has those of its trace."""
    trace, count = f"{name}_trace", float(result.sizes.get("sample", 1))
    if trace + VARIANCE in result:
        found = {VARIANCE: result[trace + VARIANCE] / count**2}
        found |= {SHIFT: result[trace + SHIFT] / count} if trace + SHIFT in result else {}
        return {name + end: x for end, x in found.items()}
    ends = [x for x in (VARIANCE, SHIFT) if name + x in result]
    alone = all({"layer", "time"} >= {*result[name + x].dims} for x in ends)
    return {name + x: result[name + x] for x in ends} if alone else {}


def _time_axis(ax: Axes, result: xr.Dataset, power: bool = False) -> None:
    """The axis of time, logarithmic where the times are, or where a law is a ``power`` of time."""
    ax.set(xlabel=_time_label(result))
    later = result.time.values[result.time.values > 0]
    if len(later) > 1 and (power or _said(result, "training").get("grid") == "log"):
        ax.set(xscale="log", xlim=(later[0], later[-1]))


def _time_label(result: xr.Dataset) -> str:
    """The name of the coordinate; without one, what the file says, or steps where times count from 0."""
    if "long_name" in result.time.attrs:
        return str(result.time.attrs["long_name"])
    times = result.time.values
    counted = np.array_equal(times, np.arange(len(times)))
    training = _said(result, "training")
    return "time" if training.get("rule") == "flow" or not (training or counted) else "step"


def _said(result: xr.Dataset, section: str) -> Mapping[str, Any]:
    """A section of the experiment that a result keeps, empty if it was no file."""
    return dict(tomllib.loads(str(result.attrs.get("spec", ""))).get(section, {}))


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots()[1]
