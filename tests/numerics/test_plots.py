"""Tests of figures: drawn numbers are those of the result, no window, Matplotlib only when needed."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
import xarray as xr
from matplotlib.collections import PolyCollection
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from numerics.analysis.ensembles import histogram, kernel_density
from numerics.plots import (
    plot_distribution,
    plot_kernels,
    plot_loss,
    plot_outputs,
    plot_responses,
    plot_result,
    plot_slopes,
    save_figure,
)
from numerics.results import dataset

T, P, L = 7, 2, 3
TIMES = np.arange(T, dtype=float)


@pytest.fixture(autouse=True)
def _no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib.pyplot as plt

    mpl.use("Agg")
    monkeypatch.setattr(plt, "show", lambda *_: pytest.fail("a plot called show()"))


def result(stderr: bool = False, kernels: bool = True) -> xr.Dataset:
    rng = np.random.default_rng(1)
    values = {"train_loss": np.exp(-TIMES)}
    if kernels:
        values |= {"Phi": rng.random((L, T, T, P, P)), "G": rng.random((L, T, T))}
    if stderr:
        values |= {f"{name}_stderr": 0.1 * value for name, value in values.items()}
    return dataset(values, times=TIMES, spec="")


def test_the_loss_is_a_line_with_a_band_and_points_have_bars() -> None:
    ax = Figure().subplots()
    (line,) = plot_loss(result(), ax=ax)
    assert isinstance(line, Line2D)
    assert np.array_equal(line.get_xydata(), np.column_stack([TIMES, np.exp(-TIMES)]))
    (bars,) = plot_loss(result(stderr=True), ax=ax, linestyle="none", marker="o")
    assert isinstance(bars, ErrorbarContainer)
    line, band = plot_loss(result(stderr=True), ax=Figure().subplots())
    assert isinstance(line, Line2D)
    assert isinstance(band, PolyCollection)
    edges = band.get_paths()[0].vertices
    for side in (0.8, 1.2):  # two standard errors of a tenth
        ends = np.isin(np.round(edges[:, 1], 12), np.round(side * np.exp(-TIMES), 12))
        assert ends.sum() >= T
    assert ax.get_yscale() == "log"


def of_file(data: str, **values: object) -> xr.Dataset:
    """Return a result that records its experiment."""
    spec = f'[data]\nkind = "{data}"\n[training]\nrule = "gd"\nsteps = {T - 1}\n'
    return dataset({"train_loss": 1 / (1 + TIMES), **values}, times=TIMES, spec=spec)


def test_axes_say_steps_or_time_and_power_laws_are_straight_lines() -> None:
    power, flow, long = of_file("power-law"), result(), result()
    flow.attrs["spec"] = '[training]\nrule = "flow"\ntime = 6.0\n'
    long.attrs["spec"] = flow.attrs["spec"] + 'grid = "log"\n'
    for found, label, scale in (
        (power, "step", "log"),
        (flow, "time", "linear"),
        (long, "time", "log"),
        (result(), "step", "linear"),
    ):
        ax = Figure().subplots()
        plot_loss(found, ax=ax)
        assert (ax.get_xlabel(), ax.get_xscale(), ax.get_yscale()) == (label, scale, "log")


def test_the_test_loss_has_a_curve_and_a_name_where_it_differs() -> None:
    for test, names in ((2 / (1 + TIMES), ["training", "test"]), (1 / (1 + TIMES), [])):
        ax = Figure().subplots()
        lines = plot_loss(of_file("isotropic", test_loss=test), ax=ax)
        assert len(lines) == max(1, len(names))
        legend = ax.get_legend()
        assert [x.get_text() for x in (legend.get_texts() if legend else [])] == names


@pytest.mark.parametrize("size", [(9.0, 3.8), (5.0, 2.6)])
def test_names_at_the_ends_of_kernels_do_not_overlap(size: tuple[float, float]) -> None:
    """All kernels of 4 layers end within a hundredth of each other."""
    kernel = np.ones((4, T, T)) + 0.01 * np.arange(4)[:, None, None]
    figure = plot_result(of_file("isotropic", C_h=kernel, C_g=1.005 * kernel))
    figure.set_size_inches(*size)
    figure.draw_without_rendering()
    right = figure.axes[1]
    boxes = [x.get_window_extent() for x in right.texts]
    assert len(boxes) == 8
    tops = sorted((box.y0 + box.y1) / 2 for box in boxes)
    assert min(np.diff(tops)) > 0.05 * right.get_window_extent().height


def test_responses_are_those_of_the_last_time_to_all_earlier_ones() -> None:
    rng = np.random.default_rng(3)
    A, R = rng.random((L, T, T, P)), rng.random((L, T, T))
    for values, own, name in (({"A": A}, A[:, -1, :-1, 1], "A"), ({"R_hr": R}, R[:, -1, :-1], "R_{hr}")):
        found = dataset({"train_loss": np.exp(-TIMES), **values}, times=TIMES, spec="")
        lines = plot_responses(found, sample=1 if name == "A" else 0, ax=Figure().subplots())
        for layer, line in enumerate(lines):
            assert isinstance(line, Line2D)
            np.testing.assert_array_equal(line.get_xydata(), np.column_stack([TIMES[:-1], own[layer]]))
            assert name in str(line.get_label())
    with pytest.raises(ValueError, match=r"sample = 2: must be one of the samples 0\.\.1"):
        plot_responses(dataset({"A": A}, times=TIMES, spec=""), sample=2)
    with pytest.raises(ValueError, match="no responses"):
        plot_responses(result())
    noisy = result().assign_attrs(left_out="A, B: their standard errors are too large")
    with pytest.raises(ValueError, match="no responses: A, B: their standard errors"):
        plot_responses(noisy)


def test_a_power_law_has_one_slope() -> None:
    times = np.array([0.0, 1.0, 3.0, 10.0, 100.0])
    found = dataset({"train_loss": np.maximum(times, 1e-9) ** -1.5}, times=times, spec="")
    (line,) = plot_slopes(found, ax=Figure().subplots())
    assert isinstance(line, Line2D)
    np.testing.assert_allclose(np.asarray(line.get_ydata(), dtype=float), 1.5, rtol=1e-12)
    with pytest.raises(ValueError, match="times after 0 in the result is 2, and a slope needs at least 3"):
        plot_slopes(found.isel(time=slice(3)))


def test_without_axes_a_figure_is_made() -> None:
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    assert plot_loss(result())
    (new,) = set(plt.get_fignums()) - set(before)
    plt.close(new)


def test_kernels_are_drawn_at_equal_times() -> None:
    found = result()
    lines = plot_kernels(found, ax=Figure().subplots())
    assert len(lines) == 2 * L
    heights = [np.asarray(line.get_ydata(), dtype=float) for line in lines if isinstance(line, Line2D)]
    for layer in range(L):
        np.testing.assert_allclose(heights[layer], np.einsum("ttmm->t", found.Phi.values[layer]) / P)
        np.testing.assert_allclose(heights[L + layer], np.einsum("tt->t", found.G.values[layer]))


def test_a_trace_is_drawn_like_the_kernel_it_is_of() -> None:
    full = result()
    values = {"error": np.ones((T, P)), "Phi_trace": np.einsum("ltsmm->lts", full.Phi.values)}
    lines = plot_kernels(dataset(values, times=TIMES, spec=""), ax=Figure().subplots())
    expected = plot_kernels(full[["Phi"]], ax=Figure().subplots())
    for line, same in zip(lines, expected, strict=True):
        assert isinstance(line, Line2D)
        assert isinstance(same, Line2D)
        for read in (Line2D.get_xdata, Line2D.get_ydata):
            drawn, wanted = (np.asarray(read(each), dtype=float) for each in (line, same))
            np.testing.assert_allclose(drawn, wanted)


def test_kernels_that_were_not_kept_are_not_drawn() -> None:
    assert plot_kernels(result(kernels=False), ax=Figure().subplots()) == []


def test_a_figure_is_one_whole_file(tmp_path: Path) -> None:
    save_figure(Figure(), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 1


def test_an_interrupted_drawing_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(self: Figure, path: Path, **options: object) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(Figure, "savefig", half)
    with pytest.raises(KeyboardInterrupt):
        save_figure(Figure(), tmp_path / "figure.png")
    assert list(tmp_path.iterdir()) == []


def test_of_a_nonlinear_network_the_trace_of_the_gradient_kernel_is_drawn() -> None:
    rng = np.random.default_rng(2)
    kernel = rng.random((L, T, T, P, P))
    for values in ({"G": kernel}, {"G_trace": np.einsum("ltsmm->lts", kernel), "error": np.ones((T, P))}):
        found = dataset(values, times=TIMES, spec="", nonlinear=True)
        ax = Figure().subplots()
        lines = plot_kernels(found, ax=ax)
        for layer, line in enumerate(lines):
            assert isinstance(line, Line2D)
            expected = np.einsum("ttmm->t", kernel[layer]) / P
            np.testing.assert_allclose(np.asarray(line.get_ydata(), dtype=float), expected)
            assert line.get_label() == f"tr $G^{{{layer + 1}}}$$/P$"


def test_a_distribution_and_the_gaussian_beside_it() -> None:
    units = xr.DataArray(np.random.default_rng(0).normal(1.0, 2.0, (4, 5000)), dims=("run", "unit"))
    for density in (
        histogram(units, np.linspace(-9, 11, 41)),
        kernel_density(units, np.linspace(-9, 11, 81)),
    ):
        line, _, bell = plot_distribution(density, gaussian=True, ax=Figure().subplots())
        at, theirs = bell.get_data()
        assert np.array_equal(line.get_ydata(), density.density)
        wide = np.exp(-((at - 1.0) ** 2) / 8) / np.sqrt(8 * np.pi)
        assert np.abs(theirs - wide).max() < 0.01 * wide.max() + 5 * density.density_stderr.max()
    with pytest.raises(ValueError, match="the density has the dimensions sample"):
        plot_distribution(histogram(units.expand_dims(sample=2), [-1.0, 0.0, 1.0]))


def test_a_result_without_kernels_of_layers_shows_its_outputs() -> None:
    """Once the right half of the figure was white; a kernel without layers ended in ``KeyError``."""
    f = np.stack([TIMES, -TIMES], axis=1)
    plain = result(kernels=False)
    shown = dataset({"train_loss": np.exp(-TIMES), "f": f, "f_stderr": 0.1 + 0 * f}, times=TIMES, spec="")
    assert [ax.get_ylabel() for ax in plot_result(plain).axes] == ["training loss"]
    assert [ax.get_ylabel() for ax in plot_result(shown).axes] == ["training loss", "outputs $f$ on samples"]
    lines = [x for x in plot_outputs(shown, ax=Figure().subplots()) if isinstance(x, Line2D)]
    assert np.array_equal([x.get_ydata() for x in lines], f.T)
    own = plain.assign(Phi=(("time", "time_"), np.ones((T, T))))
    assert plot_kernels(own, ax=Figure().subplots()) == []
    with pytest.raises(ValueError, match="no output f"):
        plot_outputs(plain)


def test_results_without_a_loss_or_without_earlier_times_are_refused() -> None:
    with pytest.raises(ValueError, match="the result contains no training loss"):
        plot_slopes(dataset({"f": np.ones((4, 1))}, times=range(4), spec=""))
    responses = np.zeros((L, 1, 1, P, P))
    with pytest.raises(ValueError, match="has the time 0 only: responses to earlier perturbations need two"):
        plot_responses(dataset({"A": responses}, times=[0.0], spec=""))


def test_kernels_of_units_with_positions_are_drawn_as_their_traces() -> None:
    """Traces are sums over positions and outputs; once the figure of such a result ended in an error."""
    kernel = np.random.default_rng(3).random((L, T, T, P, 3, 2, P, 3, 2))
    trace = np.einsum("ltsmpcmpc->lts", kernel)
    known = {"error": np.ones((T, P, 2))}
    for values in (
        {"G": kernel, "G_stderr": 0.1 * kernel},
        {"G_trace": trace, "G_trace_stderr": 0.1 * trace},
    ):
        found = dataset(known | values, times=TIMES, spec="", nonlinear=True, positions=True)
        artists = plot_kernels(found, ax=Figure().subplots())
        assert sum(isinstance(x, PolyCollection) for x in artists) == L
        lines = [x for x in artists if isinstance(x, Line2D)]
        drawn = np.array([x.get_ydata() for x in lines])
        np.testing.assert_allclose(drawn, np.einsum("ltt->lt", trace) / P)


def test_kernels_at_some_of_the_times_are_drawn_at_these() -> None:
    """Where traces are known at more times than kernels of all pairs, the traces are drawn."""
    full = result()[["Phi"]]
    trace = np.einsum("ltsmm->lts", full.Phi.values)
    few = {"time": "kernel_time", "time_": "kernel_time_"}
    some = full.isel(time=[0, 4], time_=[0, 4]).rename(few)
    places = np.array([0, 1, 4, 6])
    traces = trace[:, places[:, None], places]
    dims = ("layer", "trace_time", "trace_time_")
    both = some.assign(Phi_trace=(dims, traces), error=(("time", "sample"), np.ones((T, P))))
    both = both.assign_coords(time=TIMES, trace_time=TIMES[places])
    for found, at in ((some.assign_coords(time=TIMES), [0, 4]), (both, [*places])):
        lines = plot_kernels(found, ax=Figure().subplots())
        for layer, line in enumerate(lines):
            assert isinstance(line, Line2D)
            np.testing.assert_array_equal(line.get_xdata(), TIMES[at])
            heights = np.asarray(line.get_ydata(), dtype=float)
            np.testing.assert_allclose(heights, np.einsum("tt->t", trace[layer])[at] / P)


@pytest.mark.parametrize("loss", [[1.0, 0.5, 0.0, 0.1], [1.0, 0.5, -0.2, -0.3]])
def test_slopes_of_a_loss_that_is_not_positive_are_refused(loss: list[float]) -> None:
    with pytest.raises(ValueError, match=r"train_loss is (0|-0.2) at step 2: a loss that is not positive"):
        plot_slopes(dataset({"train_loss": np.array(loss)}, times=range(4), spec=""))
