"""Corrections of finite width in solutions, figures and commands."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

import numerics
from numerics.analysis.finite_width import finite_width_limit
from numerics.cli import run
from numerics.errors import SpecError
from numerics.experiment.problem import Problem
from numerics.experiment.schema import Solver
from numerics.fluctuations import finite_width
from numerics.fluctuations.corrections import corrections
from numerics.fluctuations.expanded_problem import lowered, size_growth
from numerics.fluctuations.methods import AdjointMethod, DenseMethod
from numerics.fluctuations.plan import WidthPlan
from numerics.fluctuations.variables import VariableBuilder
from numerics.plots import plot_kernels, plot_loss, plot_outputs
from tests.derive.once import mlp
from tests.numerics.fluctuations.cases import KERNEL, TARGETS, case, experiment


@pytest.mark.parametrize("name", ["three layers", "online"])
def test_a_solution_holds_corrections_beside_it(name: str) -> None:
    plain, found, beside = (
        numerics.solve(case(name)),
        numerics.solve(case(name), width=64),
        finite_width(case(name)),
    )
    for x in plain.data_vars:
        np.testing.assert_array_equal(plain[x], found[x])
    added = {str(x) for x in found.data_vars} - {str(x) for x in plain.data_vars}
    assert added == {str(x) for x in beside.data_vars if str(x).endswith(("_variance", "_shift"))}
    for x in added:
        np.testing.assert_array_equal(beside[x], found[x])
        assert found[x].attrs["long_name"].startswith("N times the ")
    assert (found.width, found.method, found.width_method) == (64, plain.method, "dense matrices")


def test_corrections_end_where_the_dynamics_diverge() -> None:
    wild = experiment({}, {"learning_rate": 60.0, "steps": 9}, {})
    found = numerics.solve(wild, width=64, throw=False)
    assert found.status == "diverged"
    assert found.train_loss_variance.shape == found.train_loss.shape
    assert len(found.time) < 10


def test_figures_have_the_mean_at_the_width_and_a_band() -> None:
    found = numerics.solve(case("three layers"), width=100)
    ax = Figure().subplots()
    _, mean, band = plot_loss(found, ax=ax)
    value = found.train_loss + found.train_loss_shift / 100
    np.testing.assert_allclose(mean.get_ydata(), value)
    edges = np.asarray(band.get_paths()[0].vertices)
    low = value[0] - np.sqrt(found.train_loss_variance[0] / 100)
    np.testing.assert_allclose(edges[edges[:, 0] == 0, 1].min(), low)
    words = [x.get_text() for x in ax.get_legend().get_texts()]
    assert words == ["infinite width", "mean at N = 100", "one standard deviation at N = 100"]
    bands = [x for x in plot_kernels(found, ax=Figure().subplots()) if isinstance(x, PolyCollection)]
    assert len(bands) == 6
    edges = np.asarray(bands[0].get_paths()[0].vertices)
    last = edges[edges[:, 0] == 3, 1]
    assert last.max() - last.min() == pytest.approx(2 * np.sqrt(found.Phi_trace_variance[0, 3] / 4 / 100))
    assert sum(isinstance(x, PolyCollection) for x in plot_outputs(found, ax=Figure().subplots())) == 2


def test_widths_from_which_the_limit_holds() -> None:
    corrections = finite_width(case("residual"))
    solved = numerics.solve(case("residual"))
    found = finite_width_limit(case("residual"))
    loss = solved.train_loss.values
    assert found.loss_mean is not None
    assert found.kernel_mean is not None
    np.testing.assert_allclose(found.loss_mean, 100 * abs(corrections.train_loss_shift) / loss)
    np.testing.assert_allclose(found.loss_network, 1e4 * corrections.train_loss_variance / loss**2)
    np.testing.assert_allclose(found.failing, corrections.train_loss_variance / (4 * loss**2))
    G = np.array([np.diag(x) for x in solved.G.values])  # one number a layer and time: no norm is needed
    widths = 1e4 * corrections.G_variance.values / G**2
    assert (found.kernel_network >= widths.max(axis=0) * (1 - 1e-12)).all()
    kernel = np.moveaxis(np.diagonal(solved.tangent_kernel.values), -1, 0)
    relative = corrections.tangent_kernel_variance.sum(("sample", "sample_")) / (kernel**2).sum(axis=(1, 2))
    assert (found.kernel_network >= 1e4 * relative.values * (1 - 1e-12)).all()
    assert found.conditions()[-1].startswith("assumed: ")


def test_at_the_start_the_expansion_needs_one_over_the_square_of_gamma0() -> None:
    found = finite_width_limit(
        experiment({"gamma0": 0.5}, {"steps": 1}, {"kernel": [[1.0]], "targets": [2.0]})
    )
    assert found.failing[0] == pytest.approx(1 / (0.5 * 2.0) ** 2)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    mpl.use("Agg")
    monkeypatch.chdir(tmp_path)
    np.save("k.npy", KERNEL)
    np.save("y.npy", TARGETS)
    text = "[network]\ndepth = 1\n[data]\nkernel = 'k.npy'\ntargets = 'y.npy'\n"
    Path("a.toml").write_text(text + "[training]\nlearning_rate = 0.1\nsteps = 2\n")
    return "a.toml"


def test_the_table_has_the_mean_and_the_deviation(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["solve", file, "--width", "32", "-o", "a.nc"]) == 0
    printed = capsys.readouterr().out
    assert run(["show", "a.nc", "--plot", "a.png"]) == 0
    table = printed[: printed.index("wrote")]
    assert table in capsys.readouterr().out
    assert Path("a.png").exists()
    found = numerics.solve(file, width=32)
    mean = (found.train_loss + found.train_loss_shift / 32).values[-1]
    deviation = np.sqrt(found.train_loss_variance.values[-1] / 32)
    row = [float(x) for x in table.splitlines()[-1].split()]
    assert row == pytest.approx([2, found.train_loss.values[-1], mean, deviation], rel=1e-7)
    assert run(["solve", file, "--width", "0"]) == 2


def test_limits_print_widths(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["limits", "finite-width", file, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    expected = finite_width_limit(file)
    assert said["loss_width"] == expected.loss_network.tolist()
    assert said["largest_kernel_width"] == expected.kernel_network.max()
    assert run(["limits", "finite-width", file]) == 0
    printed = capsys.readouterr().out
    assert all(x in printed for x in expected.conditions())


def test_a_width_is_a_whole_number_of_neurons() -> None:
    with pytest.raises(SpecError, match="width = 0: must be positive"):
        numerics.solve(Problem.of(case("widths")), width=0)


ONE: dict[str, Any] = {"numbers": {"gamma0": 1.0}, "arrays": {"K_x": [[1.0]], "y": [1.0]}}


def test_a_flow_may_be_asked_for_some_of_its_times() -> None:
    """Once xarray raised a ValueError, because arrays had the start and the coordinate had not."""
    found = finite_width(mlp(1, rule="flow"), **ONE, times=[0.1], kernels="none")
    assert found.time.values.tolist() == [0.1]
    assert found.f_variance.shape == (1, 1)
    assert found.f.values[0, 0] == pytest.approx(1 - np.exp(-0.2), rel=0.01)  # nearly lazy


def test_a_flow_needs_a_time_after_the_start() -> None:
    for solve in (numerics.solve, finite_width):
        with pytest.raises(SpecError, match=r"times = \[0\.0\]: ends at the start"):
            solve(mlp(1, rule="flow"), **ONE, times=[0.0])


def test_mirrored_paths_are_even_in_number() -> None:
    """Once NumPy raised a ValueError about shapes."""
    given = {**ONE, "numbers": {"gamma0": 1.0, "eta": 0.08}, "times": range(3)}
    with pytest.raises(SpecError, match=r"solver\.samples = 65: is odd, but paths come in mirrored pairs"):
        finite_width(mlp(1, "tanh"), solver=Solver(samples=65), **given)


@pytest.mark.parametrize("method", [DenseMethod(), AdjointMethod()])
def test_memory_is_estimated(method: DenseMethod | AdjointMethod) -> None:
    """The estimate is that of all matrices; once it was a hundredth of them."""
    given = {**ONE, "numbers": {"gamma0": 1.0, "eta": 0.08}, "times": range(8)}
    problem = Problem.of(mlp(1), **given)
    plan, arrays = WidthPlan.of(problem, size_growth(problem).at(8), 8, "trace"), lowered(problem)
    estimate = method.memory(plan.sizes, plan.outputs * plan.observables, problem.solver)
    tracemalloc.start()
    solved = method.solve(arrays, problem.solver)
    builder = VariableBuilder(problem, arrays, solved.values, list(range(8)), "trace")
    corrections(solved, builder.variables())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak / 3 < estimate < 3 * peak


def test_a_kernel_that_is_zero_does_not_hide_the_widths_of_others() -> None:
    """Gradients are zero at the start if the readout is; once no kernel had a width there."""
    found = finite_width_limit(experiment({"init_variance": [1.0, 1.0, 0.0]}, {"steps": 2}, {}))
    assert np.isfinite(found.kernel_network).all()
    assert found.kernel_mean is not None
    assert np.isfinite(found.kernel_mean).all()
