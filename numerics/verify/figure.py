"""The picture of a verification: loss, kernels over time, and the final kernels next to y y^T."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from numerics.experiment import Experiment
from numerics.experiment.activation import is_linear
from numerics.simulate.extrapolate import Line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

Array = NDArray[np.float64]

POINTS = 15
"""Times at which networks are drawn, denser at the beginning, where most happens."""

STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}

LAZY, SECOND = "0.6", "#c2571a"


def draw(
    experiment: Experiment,
    theory: xr.Dataset,
    networks: Sequence[xr.Dataset],
    partial: xr.Dataset | None = None,
    lazy: xr.Dataset | None = None,
) -> Figure:
    """Lines are the theory, points networks extrapolated to 1/N = 0 with one standard error.

    `networks` are results of `simulate` at two or more widths; `lazy` and `partial` hold the zeroth order of
    the expansion and the sum up to the second, whose loss is that of its error.
    """
    from matplotlib import rc_context

    with rc_context(STYLE):
        return _drawn(experiment, theory, networks, partial, lazy)


def _drawn(
    experiment: Experiment,
    theory: xr.Dataset,
    networks: Sequence[xr.Dataset],
    partial: xr.Dataset | None,
    lazy: xr.Dataset | None,
) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.5, 6.6), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=[1.25, 1.0], hspace=0.04)
    above, below = parts
    left, middle, right = above.subplots(1, 3)
    _loss(left, theory, networks, partial, lazy)
    _kernels(middle, theory, networks, "Phi", r"$\frac{1}{P}\sum_\mu H^\ell_{\mu\mu}(t,t)$")
    _kernels(right, theory, networks, "G", r"$G^\ell(t,t)$")
    for panel in (left, middle, right):
        panel.set_xlabel("step" if experiment.training.rule == "gd" else "time")
    left.set_title("training loss", loc="left")
    middle.set_title("feature kernels", loc="left")
    right.set_title("gradient kernels", loc="left")
    network = experiment.network
    widths = " and ".join([", ".join(map(str, _widths(networks)[:-1])), str(_widths(networks)[-1])])
    above.suptitle(
        rf"Linear network, $L={network.depth}$ hidden layers, $P={len(experiment.targets)}$ samples, "
        rf"$\gamma_0={network.gamma0:g}$.  Lines: theory.  Points: networks of width {widths}, at $1/N\to0$.",
        fontsize=10.5,
    )
    heat_maps(below, experiment, theory)
    return figure


def _loss(
    ax: Axes,
    theory: xr.Dataset,
    networks: Sequence[xr.Dataset],
    partial: xr.Dataset | None,
    lazy: xr.Dataset | None,
) -> None:
    lowest = float(theory.train_loss.min())
    for result, label, colour, dashes in (
        (lazy, r"lazy, $\gamma_0\to0$", LAZY, "--"),
        (partial, r"$\Delta$ to order $\gamma_0^2$", SECOND, ":"),
    ):
        if result is not None:
            loss = (result.error**2).mean("sample")
            ax.plot(result.time, loss, dashes, color=colour, lw=1.8, label=label)
    ax.plot(theory.time, theory.train_loss, color="black", lw=1.8, label="full theory")
    points = _points(networks, "train_loss")
    ax.errorbar(*points, fmt="o", ms=4, color="black", mfc="white", lw=1, label=r"networks, $1/N\to0$")
    top = max(1.0, float(theory.train_loss.max()))
    ax.set(yscale="log", ylim=(lowest / 3 if lowest > 0 else None, 1.6 * top))
    ax.set_ylabel(r"$\frac{1}{P}\sum_\mu\Delta_\mu(t)^2$")
    ax.legend(fontsize=9)


def _kernels(ax: Axes, theory: xr.Dataset, networks: Sequence[xr.Dataset], name: str, label: str) -> None:
    values = _equal_times(theory, name)
    for layer, colour in zip(theory.layer.values, colours(theory.sizes["layer"]), strict=True):
        ax.plot(theory.time, values[layer - 1], color=colour, lw=1.8, label=rf"$\ell={layer}$")
        points = _points(networks, f"{name}[{layer}]")
        ax.errorbar(*points, fmt="o", ms=4, color=colour, mfc="white", lw=1)
    ax.set_ylabel(label)
    # the deepest curve is the highest of H and the lowest of G
    ax.legend(fontsize=9, reverse=name == "Phi", ncols=1 + theory.sizes["layer"] // 6)


def heat_maps(figure: SubFigure, experiment: Experiment, theory: xr.Dataset) -> None:
    """K_x, the final H^l of up to three layers and y y^T, each over the mean of its diagonal.

    Of several outputs, y y^T is summed over them, and the first sorts the samples.
    """
    y = experiment.targets.reshape(len(experiment.targets), -1)
    goal = y @ y.T
    maps: list[tuple[str, Array]] = [(r"$K^x$", experiment.kernel)]
    if "Phi" in theory:
        layers = np.unique(np.linspace(1, theory.sizes["layer"], min(3, theory.sizes["layer"])).round())
        final = theory.Phi.isel(time=-1, time_=-1)
        phi = "H" if is_linear(experiment.network.activation) else r"\Phi"
        maps += [(rf"${phi}^{int(k)}(T,T)$", final.sel(layer=int(k)).to_numpy()) for k in layers]
    maps.append((r"$y\,y^{\top}$", goal))
    order = np.argsort(-y[:, 0], kind="stable")
    panels = figure.subplots(1, len(maps))
    image: Any = None
    for ax, (title, matrix) in zip(panels, maps, strict=True):
        shown = matrix[np.ix_(order, order)] / np.mean(np.diag(matrix))
        image = ax.imshow(shown, cmap="RdBu_r", vmin=-1.5, vmax=1.5, interpolation="nearest")
        ax.set(xticks=[], yticks=[])
        for side in ax.spines.values():
            side.set(visible=True, linewidth=0.6)
        overlap = np.sum(goal * matrix) / (np.linalg.norm(matrix) * np.linalg.norm(goal))
        ax.set_title(title)
        ax.set_xlabel(rf"alignment with $yy^\top$: {overlap:.2f}", fontsize=9)
    bar = figure.colorbar(image, ax=panels, shrink=0.8, pad=0.015, aspect=15)
    bar.set_label("entry / mean diagonal", fontsize=9)
    figure.suptitle(r"kernels between samples, sorted by target", fontsize=10.5)


def _equal_times(theory: xr.Dataset, name: str) -> Array:
    """(layer, time): the kernel at t = s, averaged over equal samples."""
    t = np.arange(theory.sizes["time"])
    if name in theory and name == "Phi":
        mu = np.arange(theory.sizes["sample"])
        return np.asarray(theory.Phi.to_numpy()[:, t[:, None], t[:, None], mu, mu].mean(axis=-1))
    if name == "Phi":
        return np.asarray(theory.Phi_trace.to_numpy()[:, t, t] / theory.sizes["sample"])
    return np.asarray(theory[name].to_numpy()[:, t, t])


def _points(networks: Sequence[xr.Dataset], observable: str) -> tuple[Array, Array, Array]:
    """Times, values at 1/N = 0 and standard errors of one summary curve."""
    weights = Line.through(_widths(networks), [d.sizes["network"] for d in networks]).intercept
    draws = [d.series.sel(observable=observable).to_numpy() for d in networks]
    value = np.sum([w * x.mean(axis=0) for w, x in zip(weights, draws, strict=True)], axis=0)
    parts = [w**2 * x.var(axis=0, ddof=1) / len(x) for w, x in zip(weights, draws, strict=True)]
    last = len(value) - 1
    shown = np.unique((last * np.linspace(0, 1, POINTS) ** 2).round().astype(int))
    return networks[0].time.to_numpy()[shown], value[shown], np.sqrt(np.sum(parts, axis=0))[shown]


def _widths(networks: Sequence[xr.Dataset]) -> list[int]:
    return [int(d.attrs["width"]) for d in networks]


def colours(count: int) -> list[tuple[float, ...]]:
    """From dark to light with the layer; the lightest part of the map does not print."""
    from matplotlib import colormaps

    return [tuple(colormaps["viridis"](x)) for x in np.linspace(0.08, 0.8, count)]
