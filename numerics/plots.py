"""Figures of results. Each function draws and returns what it drew; none of them shows a window.

Matplotlib is imported when the first figure is drawn.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from numerics.results import STDERR, replacing

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


KERNELS = (
    ("Phi", "-", r"tr $\Phi^{{{0}}}/P$"),
    ("G", "--", "{1}$G^{{{0}}}${2}"),
    ("C_h", "-", "$C_h^{{{0}}}$"),
    ("C_g", "--", "$C_g^{{{0}}}$"),
)
"""The kernels of a layer that are drawn, how, and what they are called."""


def plot_loss(result: xr.Dataset, *, ax: Axes | None = None, **style: Any) -> list[Artist]:
    """Training loss against time on a logarithmic scale, with a band (points: bars) of standard errors.

    The test loss beside it, dashed, if the result has one.
    """
    ax = _axes(ax)
    artists = _curve(ax, result, "train_loss", **style)
    label = "training loss"
    if "test_loss" in result:
        named = {
            "linestyle": "--",
            **style,
            "label": f"test {style['label']}" if "label" in style else "test",
        }
        artists += _curve(ax, result, "test_loss", **named)
        label = "training loss; dashed: test loss"
    ax.set(xlabel=_time_label(result), ylabel=label, yscale="log")
    return artists


def plot_kernels(result: xr.Dataset, *, ax: Axes | None = None, **style: Any) -> list[Artist]:
    """tr Phi^l(t,t)/P (full lines) and G^l(t,t) (dashed; of nonlinear networks its trace over P too) against
    time, one colour a layer; of random data C_h^l and C_g^l.

    A kernel that the result does not hold is left out.
    """
    ax = _axes(ax)
    artists = []
    for name, line, label in KERNELS:
        if not _holds(result, name):
            continue
        kernel = _equal_time(result, name)
        for place, layer in enumerate(kernel.layer.values, 1):
            traced = ("tr ", "$/P$") if name == "G" and _of_samples(result, name) else ("", "")
            row = {"color": _colour(place), "linestyle": line, "label": label.format(layer, *traced), **style}
            artists += _curve(ax, kernel.sel(layer=layer), name, **row)
    ax.set(xlabel=_time_label(result), ylabel="kernels at equal times")
    if artists:
        ax.legend(ncols=2, fontsize="small")
    return artists


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


def _of_samples(result: xr.Dataset, name: str) -> bool:
    """Has the kernel two samples, of which the trace is drawn?"""
    return f"{name}_trace" in result or "sample_" in result[name].dims


def _holds(result: xr.Dataset, name: str) -> bool:
    return name in result or f"{name}_trace" in result


def _equal_time(result: xr.Dataset, name: str) -> xr.Dataset:
    """The kernel and its standard error at t = s, averaged over samples: (layer, time).

    The average of the samples' standard errors bounds the standard error of the average from above.
    """
    if name not in result:
        trace = result[[f"{name}_trace"]].rename({f"{name}_trace": name}) / result.sizes["sample"]
        return _equal_time(trace.expand_dims(sample=1, sample_=1), name)
    chosen = result[[each for each in (name, name + STDERR) if each in result]]
    time = xr.DataArray(np.arange(result.sizes["time"]), dims="time")
    chosen = chosen.isel(time=time, time_=time)
    if "sample_" in chosen.dims:
        sample = xr.DataArray(np.arange(result.sizes["sample"]), dims="sample")
        chosen = chosen.isel(sample=sample, sample_=sample).mean("sample")
    if "channel_" in chosen.dims:
        channel = xr.DataArray(np.arange(result.sizes["channel"]), dims="channel")
        chosen = chosen.isel(channel=channel, channel_=channel).mean("channel")
    return chosen.assign_coords(time=result.time.values)


def _colour(layer: int) -> str:
    return f"C{(int(layer) - 1) % 10}"


def _time_label(result: xr.Dataset) -> str:
    return str(result.time.attrs.get("long_name", "time"))


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots()[1]
