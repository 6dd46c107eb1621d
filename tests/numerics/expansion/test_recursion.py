"""The linear series to order 8: exponents, derivatives by mpmath, resummation."""

from __future__ import annotations

import json
from bisect import bisect
from pathlib import Path

import mpmath
import numpy as np
import pytest
import xarray as xr

from numerics.cli import run
from numerics.errors import NotConverged, SpecError
from numerics.expansion import closure_of, evaluated_at, expand, resum
from numerics.expansion.closure import OrderByOrder
from numerics.expansion.coefficients import Setting
from numerics.expansion.operators import convolved
from numerics.expansion.orders import partial_sum
from numerics.expansion.resummation import resummed
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.solver import solve
from numerics.solver.linear.output_correlations import interval_weights
from tests.numerics.expansion.test_words import GD, NAMES, agree, expected_names, experiment, exponents
from tests.reference.adams_weights import step_sum_weights
from tests.reference.mp_reference import mp_solution
from tests.reference.power_series import gamma_expansion
from tests.reference.solution import Solution

slow = pytest.mark.slow


# -- truncation errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("depth", "order"),
    [
        pytest.param(depth, order, marks=() if (depth, order) == (3, 6) else slow)
        for depth in (1, 2, 3, 4)
        for order in (4, 6)
    ],
)
def test_truncations_miss_the_next_even_power(depth: int, order: int) -> None:
    """The remainder of every quantity, at every layer; order 2 is in test_expand."""
    fitted = exponents(experiment(3, depth, GD), order)
    assert set(fitted) == expected_names(depth)
    assert all(abs(x - order - 2) <= 0.3 for x in fitted.values()), fitted


# -- derivatives -------------------------------------------------------------------------------------------


def derivatives(e: Experiment, order: int) -> list[Solution]:
    """Return Taylor coefficients in gamma0^2 of an mpmath march.

    They come from interpolation at tiny gamma0 with 80 digits.
    """
    count = order // 2 + 2
    weights = step_sum_weights(len(e.times) - 1, e.effective_rate)
    with mpmath.workdps(80):
        points = [mpmath.mpf(k) / 10**8 for k in range(1, count + 1)]
        full = [
            mp_solution(e.kernel, e.targets, weights, depth=e.depth, gamma0=mpmath.sqrt(x), digits=80)
            for x in points
        ]
        inverse = mpmath.matrix([[x**k for k in range(count)] for x in points]) ** -1
        names = ("Phi", "G", "A", "B", "f", "error", "tangent_kernel")
        return [
            Solution(
                **{
                    name: sum(inverse[n, k] * getattr(r, name) for k, r in enumerate(full)).astype(float)
                    for name in names
                }
            )
            for n in range(order // 2 + 1)
        ]


@pytest.mark.parametrize(
    "depth", [1, pytest.param(2), pytest.param(3, marks=slow), pytest.param(4, marks=slow)]
)
def test_coefficients_are_derivatives_by_mpmath(depth: int) -> None:
    e = experiment(2, depth, {**GD, "steps": 4})
    exact = derivatives(e, 8)
    found = expand(e, 8)
    agree(found, exact, NAMES, 1e-8)
    if depth == 1:
        wrong = found.copy(deep=True)
        wrong["G"].loc[{"order": 6}] *= 1 + 1e-6
        with pytest.raises(AssertionError, match="G"):
            agree(wrong, exact, NAMES, 1e-8)


@pytest.mark.parametrize(("samples", "depth"), [(2, 2), (3, 4)])
def test_order_eight_against_the_exact_taylor_coefficients(samples: int, depth: int) -> None:
    e = experiment(samples, depth, {**GD, "steps": 4})
    weights = step_sum_weights(4, e.effective_rate)
    exact = gamma_expansion(e.kernel, e.targets, weights, depth=depth, order=4)
    agree(expand(e, 8), exact, NAMES, 1e-11)


# -- cached plans ------------------------------------------------------------------------------------------


def test_a_plan_gives_the_same_numbers_whatever_orders_were_asked_for_before() -> None:
    first, other = experiment(2, 4, {**GD, "steps": 5}), experiment(3, 4, {**GD, "steps": 3})
    alone = expand(first, 2)
    high = expand(other, 4)
    assert expand(first, 2).drop_attrs().identical(alone.drop_attrs())
    low = high.sel(order=[0, 2])
    for name in NAMES:
        np.testing.assert_allclose(expand(other, 2)[name], low[name], rtol=1e-12, atol=1e-15)


def test_layers_that_differ_by_a_factor_are_multiplied_once() -> None:
    """At order 2 all operators are multiples of the same products: those of 8 layers are those of 3."""

    def products(depth: int) -> int:
        problem = Problem.of(experiment(2, depth, {**GD, "steps": 3}))
        closure = closure_of(problem)
        assert closure is not None
        found = OrderByOrder(Setting(problem), closure, 2)
        found.values()
        steps = found.closed.plan.tape.steps
        return sum(steps[i][0] == "product" for i in found.closed.known)

    assert products(8) == products(3) < 25


# -- resummation -------------------------------------------------------------------------------------------


def task(kind: str, depth: int, samples: int, extent: float, steps: int = 24) -> Experiment:
    """Return an experiment that learns the fastest mode to a given extent.

    ``extent`` is rate x time x (L + 1) x the largest eigenvalue.
    """
    rng = np.random.default_rng([samples, depth])
    x = rng.standard_normal((samples, 2 * samples))
    kernel = x @ x.T / (2 * samples)
    if kind == "whitened":
        kernel = np.eye(samples)
    if kind == "power law":
        q = np.linalg.qr(rng.standard_normal((samples, samples)))[0]
        kernel = q @ np.diag(np.arange(1, samples + 1) ** -1.5) @ q.T
    rate = extent / steps / (depth + 1) / np.linalg.eigvalsh(kernel)[-1]
    return Experiment.from_dict(
        {
            "network": {"depth": depth},
            "training": {"loss": "sum", "learning_rate": float(rate), "steps": steps},
        },
        kernel=kernel,
        targets=rng.standard_normal(samples),
    )


def full_loss(e: Experiment, gamma0: float) -> np.ndarray:
    return np.asarray(solve(e.replace({"network.gamma0": float(gamma0)})).train_loss.values)


def reach(e: Experiment, series: xr.Dataset) -> float:
    """Return the largest gamma0 up to which the plain series is within 1 % of the loss at every time."""
    loss = series[["train_loss"]]
    first = float(np.abs(loss.train_loss.sel(order=2) / loss.train_loss.sel(order=0)).max()) ** -0.5

    def missed(power: int) -> float:
        gamma0 = first * 1.05**power
        return float(
            np.max(np.abs(partial_sum(loss, gamma0, 8).train_loss.values / full_loss(e, gamma0) - 1))
        )

    beyond = bisect(range(-20, 30), 0.01, key=missed)
    assert beyond > 0
    return float(first * 1.05 ** (beyond - 21))


CASES = [
    (kind, depth, samples, extent)
    for kind in ("whitened", "general", "power law")
    for depth in (1, 2, 3, 4)
    for samples, extent in ((3, 3.0), (3, 12.0), (5, 3.0))
    if kind != "whitened" or samples == 3
]


@pytest.mark.parametrize(
    ("kind", "depth", "samples", "extent", "steps"),
    [pytest.param("general", 1, 2, 3.0, 10, marks=slow), *(pytest.param(*x, 40, marks=slow) for x in CASES)],
)
def test_resummed_loss_reaches_twice_as_far(
    kind: str, depth: int, samples: int, extent: float, steps: int
) -> None:
    """At order 8, at twice the reach of the plain series and in between; and the estimate is no less."""
    e = task(kind, depth, samples, extent, steps)
    good = reach(e, expand(e, 8))
    for factor in (1.4, 2.0):
        found, full = resum(e, 8, factor * good), full_loss(e, factor * good)
        gap = np.abs(found.train_loss.values - full)
        assert np.max(gap / full) < 0.01, (factor, np.max(gap / full))
        assert np.all(gap <= found.train_loss_truncation.values + 1e-8), factor


@pytest.mark.slow
def test_words_at_fixed_error_are_the_same_series() -> None:
    """Order 8 at fixed error corrects the partial sums: laws used once make gamma0^10 right as well."""
    e = task("general", 2, 2, 3.0, 4)
    series = expand(e, 10)[["error", "train_loss"]]
    strengths = np.array([0.5, 0.6, 0.7])
    found = [resum(e, 8, g).error for g in strengths]
    for summed in (8, 10):
        gaps = [
            float(np.abs(x - partial_sum(series, g, summed).error).max())
            for g, x in zip(strengths, found, strict=True)
        ]
        fitted = float(np.polyfit(np.log(strengths), np.log(gaps), 1)[0])
        assert fitted == pytest.approx(summed + 2, abs=0.6), (fitted, gaps)


@pytest.mark.slow
def test_flows_are_resummed() -> None:
    e = experiment(2, 1, {"rule": "flow", "time": 2.0, "points": 3}, gamma0=0.7, rtol=1e-5)
    found = resum(e, 6)
    full = solve(e).train_loss.values
    assert np.max(np.abs(found.train_loss.values - full) / full) < 0.01
    assert found.attrs["time_nodes"] > 3


def test_strengths_beyond_reach_are_refused() -> None:
    with pytest.raises(NotConverged, match="a smaller gamma0"):
        resum(task("general", 3, 3, 12.0, 12), 4, 40.0)
    with pytest.raises(SpecError, match="--order = 2: is too low"):
        resum(experiment(1, 1, GD), 2)


def test_pade_of_the_coefficients_goes_further_than_the_sum() -> None:
    e = task("whitened", 1, 2, 3.0, 10)
    series = expand(e, 8)[["train_loss"]]
    gamma0 = 1.3 * reach(e, series)
    full = full_loss(e, gamma0)
    found = resummed(series, gamma0)
    gap = np.abs(found.train_loss.values - full)
    assert np.max(gap / full) < 0.01
    assert np.all(gap <= 3 * found.train_loss_truncation.values + 1e-12)


# -- the command -------------------------------------------------------------------------------------------


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    np.save(tmp_path / "k.npy", np.array([[1.0, 0.2], [0.2, 0.5]]))
    np.save(tmp_path / "y.npy", np.array([1.0, -1.0]))
    path = tmp_path / "spec.toml"
    path.write_text(
        '[network]\ndepth = 2\ngamma0 = 0.6\n[data]\nkernel = "k.npy"\ntargets = "y.npy"\n'
        "[training]\nlearning_rate = 0.2\nsteps = 6\n"
    )
    return path


@pytest.mark.parametrize("method", ["sum", pytest.param("self-consistent", marks=pytest.mark.slow), None])
def test_the_command_evaluates_the_series(
    spec: Path, capsys: pytest.CaptureFixture[str], method: str | None
) -> None:
    chosen = ["--resum", method] if method else []
    assert run(["expand", str(spec), "--order", "6", "--json", *chosen]) == 0
    shown = json.loads(capsys.readouterr().out)
    e = Experiment.load(spec)
    full = solve(e).train_loss.values
    gap = np.abs(np.array(shown["train_loss_resummed"]) - full)
    assert np.max(gap / full) < 0.02
    assert np.all(gap <= 2 * np.array(shown["train_loss_truncation"]) + 1e-9)
    assert shown["resummation"] == (method or "pade")
    assert shown["resummation_status"] == "ok"
    assert shown["gamma0"] == 0.6


def test_the_command_says_where_the_series_ends(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec.write_text(spec.read_text().replace("gamma0 = 0.6", "gamma0 = 60.0"))
    assert run(["expand", str(spec), "--order", "2"]) == 0
    assert "no value for" in capsys.readouterr().out
    assert run(["expand", str(spec), "--order", "4", "--resum", "self-consistent"]) == 3
    assert "gamma0 = 60" in capsys.readouterr().err
    assert run(["expand", str(spec), "--order", "2", "--resum", "self-consistent"]) == 2
    found = evaluated_at(Experiment.load(spec), 2)
    assert np.isnan(found.train_loss_resummed.values[-1])


def test_a_product_of_kernels_is_integrated_from_the_source_to_the_present() -> None:
    """The integral of (t t') (t' s) from s to t is t s (t^3 - s^3)/3; one step alone is a trapezium."""
    nodes = np.linspace(0.0, 1.0, 9)
    kernel = np.tril(np.outer(nodes, nodes))[:, None, :, None]
    t, s = nodes[:, None], nodes[None, :]
    found = convolved(kernel, kernel, list(interval_weights(nodes)))[:, 0, :, 0]
    expected = np.tril(t * s * (t**3 - s**3) / 3, -2)
    np.testing.assert_allclose(np.tril(found, -2), expected, rtol=0, atol=1e-14)
