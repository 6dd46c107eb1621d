"""Error bars, intervals and tolerances against numbers found by hand: a factor of two in any is seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy.stats import t as student

from numerics.analysis.exponents import fitted_power
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.results import dataset, interval
from numerics.solver.grid import TimeGrid
from numerics.solver.lazy.solve import solve_lazy
from numerics.solver.named_values import Evaluated, averaged
from numerics.solver.paths.accuracy import (
    Integrator,
    Level,
    apart,
    reach,
    settle_paths,
)
from numerics.stats import Line, Spread, bound, each_of, jackknife
from numerics.verification import sampled
from numerics.verification.networks import scores
from numerics.verification.report import LEVEL
from numerics.verification.series import compared
from tests.chance import LEVEL as CHANCE
from tests.chance import excess, in_errors


def quantile(count: int, level: float, dof: float) -> float:
    """Return the Sidak bound for the worst of ``count`` numbers with chance ``level``, by SciPy."""
    return float(student.ppf(1 - (1 - (1 - level) ** (1 / count)) / 2, dof))


def alternating(count: int, mean: float, spread: float) -> np.ndarray:
    """Return an even number of values with standard error ``spread / sqrt(count - 1)`` of the mean."""
    return mean + spread * (-1.0) ** np.arange(count)


# -- numerics.stats ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "level", "dof"), [(1, 0.05, 3), (40, 1e-3, 7), (300, 0.01, 1)])
def test_the_bound_is_sidaks_with_students_t(count: int, level: float, dof: int) -> None:
    assert each_of(count, level) == pytest.approx(1 - (1 - level) ** (1 / count))
    assert bound(count, level, dof) == pytest.approx(quantile(count, level, dof))
    assert bound(count, level) == pytest.approx(quantile(count, level, 1e9), rel=1e-6)


def test_tests_judge_by_that_bound() -> None:
    assert pytest.approx(1e-3) == CHANCE == LEVEL
    assert excess([1.0, -3.0], 4) == pytest.approx(3 / quantile(2, 1e-3, 4))
    assert in_errors([0.3, 0.0], [0.1, 0.0]) == pytest.approx([3.0])
    with pytest.raises(AssertionError):
        in_errors([1e-8], [0.0])


def test_the_jackknife_of_a_mean_and_of_its_square() -> None:
    """For a mean it is the standard error; for its square the bias var/n is removed; two sides add up."""
    x, y = np.array([1.0, 2.0, 4.0, 9.0]), np.array([3.0, 5.0, 4.0])
    errors = [float(z.std(ddof=1) / np.sqrt(len(z))) for z in (x, y)]
    value, error, spread = jackknife(lambda z: z.mean(axis=0), x)
    assert [value, error, spread] == pytest.approx([4.0, errors[0], x.std(ddof=1)])
    assert jackknife(lambda z: z.mean(axis=0) ** 2, x)[0] == pytest.approx(16 - x.var(ddof=1) / 4)
    value, error, spread = jackknife(lambda a, b: a.mean(axis=0) - b.mean(axis=0), x, y)
    assert [value, error] == pytest.approx([0.0, np.hypot(*errors)])
    assert spread == pytest.approx(np.hypot(x.std(ddof=1), y.std(ddof=1)))


def test_the_line_through_several_widths_is_the_weighted_fit() -> None:
    widths, networks = [50, 100, 400], [8, 4, 16]
    values = np.array([3.0, 2.0, 1.2])
    weights = np.sqrt(np.multiply(widths, networks))
    slope, intercept = np.polyfit(1 / np.array(widths), values, 1, w=weights)
    line = Line.through(widths, networks)
    assert line.intercept @ values == pytest.approx(intercept)
    assert line.hat @ values == pytest.approx(intercept + slope / np.array(widths))


def test_means_over_runs_have_the_standard_error_of_the_mean() -> None:
    x = np.array([[1.0, 2.0], [3.0, 2.0], [8.0, 5.0]])
    expected = x.std(axis=0, ddof=1) / np.sqrt(3)
    means, errors = averaged({("x", ()): x})
    assert means["x", ()] == pytest.approx(x.mean(axis=0))
    assert errors["x", ()] == pytest.approx(expected)


# -- intervals of results ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [0.0, 0.05, 0.2, 3.0])
@pytest.mark.parametrize("replicas", [3, 8])
def test_an_interval_holds_the_value_as_often_as_it_says(bias: float, replicas: int) -> None:
    """With ``|T + b| <= w`` in 90 per cent of cases, whatever the bias is."""
    found = dataset(
        {"train_loss": [1.0], "train_loss_stderr": [0.1]}, times=[0.0], spec="", replicas=replicas, bias=bias
    )
    half, dof = float(interval(found, "train_loss", 0.9)[0]), replicas - 1
    held = student.cdf((half - bias) / 0.1, dof) - student.cdf((-half - bias) / 0.1, dof)
    assert held == pytest.approx(0.9, abs=2e-3)


# -- criteria of an accuracy ---------------------------------------------------------------------------------


def level(samples: int, values: Iterable[float]) -> Level[Spread]:
    return Level(samples, Spread(), [{"x": np.array([v, -1.0])} for v in values])


def test_the_error_of_a_level_is_the_largest_standard_error_over_the_scale() -> None:
    """Four replicas 2 +- 0.3; the typical error is a root mean square, and that of eight replicas."""
    error = 0.3 / np.sqrt(3)
    found = level(64, alternating(4, 2.0, 0.3))
    assert found.error == pytest.approx(error / 2)
    assert found.typical == pytest.approx(error / np.sqrt(2) / 2 * np.sqrt(4 / 8))


def test_a_bias_falls_as_one_over_samples() -> None:
    """For 1 + c/S a quarter of the samples is wrong by three times the remaining bias."""
    c = 6.4
    fine, coarse = (level(n, [2.0 + c / n] * 4) for n in (256, 64))
    scale, left = 2.0 + c / 256, c / 256
    beyond, whole = fine.bias(coarse)
    assert [beyond, whole] == pytest.approx([left / scale / np.sqrt(2)] * 2)
    assert fine.missed(coarse)["x"] == pytest.approx([left, left])


@pytest.mark.parametrize("replicas", [4, 6, 8])
def test_what_noise_leaves_in_one_of_twenty_cases_is_no_difference(replicas: int) -> None:
    """The bound is Student's t with one degree of freedom less than there are replicas."""
    error = 0.1 / np.sqrt(replicas - 1)
    limit = float(student.ppf(0.975, replicas - 1)) * error
    zero = [{"x": np.array([1.0])}] * replicas
    for factor, seen in ((0.99, False), (1.01, True)):
        gap = factor * limit
        moved = [{"x": np.array([v])} for v in 1 + alternating(replicas, gap, 0.1)]
        beyond, whole = apart(moved, zero, 0.95)
        assert whole == pytest.approx(gap / (1 + gap))
        assert beyond == pytest.approx(np.sqrt(gap**2 - error**2) / (1 + gap) if seen else 0.0)


def test_replicas_are_added_by_the_square_of_what_lacks() -> None:
    """Eight have twice the requested error: 1.1 times 32 are taken, and their error is known by hand."""
    calls: list[int] = []

    def attempt(_: int, numbers: Iterable[int], into: Spread) -> Iterator[dict[str, np.ndarray]]:
        for n in numbers:
            calls.append(n)
            yield {"x": np.array([alternating(n + 1, 1.0, 0.02)[-1]])}

    asked = 0.01 / np.sqrt(7)
    reached = reach(attempt, Spread, asked, first=64, most=64)
    assert reached.replicas == 36 == max(calls) + 1
    assert reached.error == pytest.approx(0.02 / np.sqrt(35))


def test_a_grid_is_taken_that_misses_a_quarter_of_the_standard_error() -> None:
    """For ``1 + c step^2`` between scattering replicas the first such grid is taken; its error is exact."""
    c, scatter, times = 0.02, 0.02, np.array([0.0, 1.0, 2.0])
    steps: list[float] = []

    def on(grid: TimeGrid) -> Any:
        step = float(np.max(np.diff(grid.nodes)))
        steps.append(step)

        def attempt(_: int, numbers: Iterable[int], into: Spread) -> Iterator[dict[str, np.ndarray]]:
            for n in numbers:
                x = {"x": np.full(3, alternating(n + 1, 1.0, scatter)[-1] + c * step**2)}
                into.add(x)
                yield x

        return attempt

    given: dict[str, Any] = {"rtol": 1e-9, "accuracy": 0.1, "integrator": Integrator("", 2, 2.0)}
    settled = settle_paths(times, on, Spread, 64, **given)
    step = settled.grid.step
    typical = scatter * np.sqrt(2 / 8)  # two pilots, as if there were eight
    assert c * step**2 <= 0.25 * typical
    coarser = min(x for x in steps if x > step * 1.01)
    assert c * coarser**2 > 0.25 * typical
    assert settled.notes["grid_error"] == pytest.approx(c * step**2, rel=0.05)
    assert settled.missed["x"] == pytest.approx(np.full(3, c * step**2), rel=0.05)


# -- verification --------------------------------------------------------------------------------------------


def test_two_solutions_are_held_against_their_joint_error() -> None:
    """Degrees of freedom are Welch's: fourteen for equal errors of eight replicas."""
    place = ("f", ())
    one = Evaluated("", {place: np.array([1.0, 2.0])}, {place: np.array([0.3, 0.1])})
    other = Evaluated("", {place: np.array([2.0, 2.0])}, {place: np.array([0.3, 0.1])})
    check = sampled.same("", one, other, 8)
    assert check.observed == pytest.approx(1 / np.hypot(0.3, 0.3))
    assert check.allowed == pytest.approx(quantile(2, LEVEL, 14))


def small() -> Problem:
    tables = {"network": {"depth": 1, "activation": "tanh"}, "training": {"learning_rate": 0.2, "steps": 2}}
    return Problem.of(Experiment.from_dict(tables, kernel=[[1.0]], targets=[1.0]))


def test_the_lazy_limit_is_judged_by_the_error_of_its_extrapolation(monkeypatch: pytest.MonkeyPatch) -> None:
    """From errors at gamma0 = 0.1 and 0.2 with weights 4/3 and -1/3, each of 16 replicas."""
    problem = small()
    steps = len(problem.times)
    exact = solve_lazy(problem.discrete, steps=steps, values=problem.values, data=problem.arrays)
    runs = exact.scalars["Delta"][None] + alternating(16, 0.02, 0.05).reshape(-1, 1, 1)
    monkeypatch.setattr(sampled, "solve_by_paths", lambda *_: SimpleNamespace(runs={("Delta", ()): runs}))
    effort = sampled.Effort(paths=64, replicas=16)
    (check,) = sampled.lazy(problem, effort)
    error = 0.05 / np.sqrt(15) * np.hypot(4 / 3, 1 / 3)
    assert check.observed == pytest.approx(0.02 / error)
    dof = 15 * (16 + 1) ** 2 / (16**2 + 1)
    assert check.allowed == pytest.approx(quantile(runs[0].size, LEVEL, dof))


def test_steins_lemma_is_judged_by_the_scatter_of_the_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variance of a mean over replicas, as other seeds show it."""
    means: list[np.ndarray] = []
    parts: list[np.ndarray] = []
    judged = sampled._judged

    def noted(name: str, gap: np.ndarray, own: list[np.ndarray], replicas: int) -> Any:
        means.append(gap)
        parts.append(own[0])
        return judged(name, gap, own, replicas)

    monkeypatch.setattr(sampled, "_judged", noted)
    tables = {"network": {"depth": 2, "activation": "tanh"}, "training": {"learning_rate": 0.3, "steps": 1}}
    problem = Problem.of(Experiment.from_dict(tables, kernel=[[1.0]], targets=[1.0]))
    for seed in range(40):
        monkeypatch.setattr(sampled, "SEED", seed)
        sampled.responses(problem, sampled.Effort(paths=32, replicas=6))
    seen, said = np.var(means, axis=0, ddof=1), np.mean(parts, axis=0)
    moving = said > 1e-20
    ratio = seen[moving] / said[moving]
    # of forty seeds a variance is known to (2/39)^(1/2) = 0.23, and the mean over entries better
    assert 2**-0.5 < float(ratio.mean()) < 2**0.5


def measured(value: float, error: float, **attrs: Any) -> xr.Dataset:
    return xr.Dataset({"x": ((), value), "x_stderr": ((), error)}, attrs=attrs)


def test_networks_are_held_against_the_theory_by_their_joint_error() -> None:
    """Widths 100 and 200 extrapolate with weights -1 and 2; the theory has a separate error."""
    networks = [measured(1.0, 0.1, width=100, seeds=8), measured(1.5, 0.2, width=200, seeds=8)]
    z, error, dof = scores(measured(1.0, 0.3, replicas=5), networks, "x", {})
    variances = np.array([0.1**2, 4 * 0.2**2, 0.3**2])
    assert error == pytest.approx(np.sqrt(variances.sum()))
    assert z == pytest.approx(1.0 / error)
    assert dof == pytest.approx(variances.sum() ** 2 / (variances**2 / np.array([7, 7, 4])).sum())


def test_series_are_judged_by_what_the_worst_may_be() -> None:
    values = np.array([0.0, 1.0, 2.0, 3.0])
    time = {"time": np.arange(4.0)}
    series = xr.Dataset({"train_loss": (("order", "time"), [values])}, coords={**time, "order": [2]})
    found = xr.Dataset(
        {
            "train_loss": ("time", values + 0.4),
            "train_loss_stderr": ("time", np.full(4, 0.1)),
            "train_loss_missed": ("time", np.full(4, 0.05)),
        },
        coords=time,
        attrs={"replicas": 6},
    )
    z, limit, count, _ = compared(series, found, ["train_loss"])["train_loss"]
    assert (z, count) == (pytest.approx(4.0), 2)
    assert limit == pytest.approx(quantile(2, LEVEL, 5) + 0.5)


def test_the_error_of_a_power_is_that_of_a_weighted_line() -> None:
    x, relative = np.array([1.0, 2.0, 4.0, 8.0]), 0.1
    found = fitted_power(x, 3 * x**2, 3 * x**2 * relative)
    across = np.log(x) - np.log(x).mean()
    assert found.stderr == pytest.approx(relative / np.sqrt(across @ across))
