"""Tests of series in 1/nu, 1/alpha, 1/alpha_B and in the rate: remainders, coefficients, closed forms."""

from __future__ import annotations

from itertools import pairwise
from math import comb
from typing import Any

import numpy as np
import pytest
import xarray as xr

from numerics.errors import SpecError
from numerics.expansion import expand
from numerics.expansion.orders import SIZES, partial_sum, size_series, step_size_series, truncation_error
from numerics.experiment import Experiment
from numerics.solver import solve
from tests.chance import excess
from tests.reference.isotropic_dense import isotropic_dense
from tests.reference.isotropic_network import Network

Array = np.ndarray[Any, np.dtype[np.float64]]
WIDE, MUCH, BATCH = "network.width_ratio", "data.sample_ratio", "data.batch_ratio"


def isotropic(size: str, depth: int = 1, steps: int = 6, **options: float) -> Experiment:
    """Return an experiment whose expansion size is 40.

    It has full batch with alpha = 2 unless the batch is fresh.
    """
    o = {"gamma0": 1.0, "rate": 0.1, "noise": 0.3, "center": False} | options
    data = {"kind": "isotropic", "noise": o["noise"]}
    data |= {"batch_ratio": 40.0} if size == "alpha_B" else {"sample_ratio": 40.0 if size == "alpha" else 2.0}
    network = {"depth": depth, "gamma0": o["gamma0"], "width_ratio": 40.0 if size == "nu" else 3.0}
    rule = "sgd" if size == "alpha_B" else "gd"
    training = {"rule": rule, "learning_rate": o["rate"], "steps": steps, "center": bool(o["center"])}
    return Experiment.from_dict({"network": network, "data": data, "training": training})


def exponents(sizes: list[float], missed: list[float]) -> list[float]:
    pairs = zip(pairwise(sizes), pairwise(missed), strict=True)
    return [float(np.log(b / a) / np.log(y / x)) for (x, y), (a, b) in pairs]


# -- sizes ---------------------------------------------------------------------------------------------


def missed(series: xr.Dataset, full: xr.Dataset, value: float, order: int) -> dict[str, float]:
    """Return the largest entry of the remainder, for each variable and layer."""
    rest = full - partial_sum(series, value, order)
    found = {}
    for name in rest.data_vars:
        if str(name).startswith("test_loss_"):
            continue
        for layer in rest[name].layer.values if "layer" in rest[name].dims else [0]:
            part = rest[name].sel(layer=layer) if layer else rest[name]
            found[f"{name} {layer}"] = float(np.abs(part).max())
    return found


def check_exponents(size: str, experiment: Experiment, order: int, within: float) -> None:
    """Check that the remainder falls as size^-(n+1), for every variable and layer that is not exact."""
    series = size_series(experiment, size, order)
    values = [20.0, 40.0] if size == "alpha_B" else [80.0, 160.0]
    fulls = [solve(experiment.replace({SIZES[size][0]: v})) for v in values]
    for n in range(order + 1):
        both = [missed(series, full, 1 / v, n) for full, v in zip(fulls, values, strict=True)]
        seen = {name for name, x in both[0].items() if x > 1e-12}
        assert {"test_loss 0", "train_loss 0", "C_h 1", "C_v 0"} <= seen
        for name in seen:
            (found,) = exponents([1 / v for v in values], [x[name] for x in both])
            assert found == pytest.approx(n + 1, abs=within), (name, n)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "depth", "options"),
    [
        ("nu", 2, {"gamma0": 2.0, "center": True}),
        pytest.param("alpha", 1, {"gamma0": 0.3}, marks=pytest.mark.slow),
        pytest.param("alpha_B", 2, {"gamma0": 0.5}, marks=pytest.mark.slow),
    ],
)
def test_what_is_missed_falls_with_the_next_power(size: str, depth: int, options: dict[str, float]) -> None:
    check_exponents(size, isotropic(size, depth, **options), 2, 0.06)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("gamma0", [0.2, 1.0, 2.0])
@pytest.mark.parametrize("size", ["nu", "alpha", "alpha_B"])
def test_what_is_missed_at_third_order(size: str, gamma0: float, depth: int) -> None:
    check_exponents(size, isotropic(size, depth, 12, gamma0=gamma0, rate=0.05), 3, 0.15)


@pytest.mark.parametrize(
    "size", ["nu", *(pytest.param(x, marks=pytest.mark.slow) for x in ("alpha", "alpha_B"))]
)
def test_coefficients_are_derivatives_of_the_dense_reference(size: str) -> None:
    """A polynomial in 1/size through 24 points of the hand-written theory: orders 0-3 to 1e-8."""
    series = size_series(isotropic(size, 2, 3, gamma0=1.3, rate=0.15), size, 3)
    given: dict[str, Any] = {"nu": 3.0, "alpha": 2.0} | ({"alpha": None} if size == "alpha_B" else {})
    scale = 0.04
    nodes = np.cos(np.pi * (np.arange(24) + 0.5) / 24)
    found = [
        isotropic_dense(
            4, depth=2, eta=0.15, gamma0=1.3, noise=0.3, **(given | {size: float(1 / (scale * x))})
        )
        for x in nodes
    ]
    for name in ("C_v", "C_h", "C_g", "R_gu", "R_hr"):
        values = np.array([np.ravel(getattr(f, name)) for f in found])
        fitted = np.polynomial.polynomial.polyfit(nodes, values, 11)[:4]
        taylor = fitted / scale ** np.arange(4.0)[:, None]
        expected = taylor.reshape(4, *getattr(found[0], name).shape)
        np.testing.assert_allclose(series[name], expected, rtol=0, atol=1e-8 * max(1, np.abs(expected).max()))


def narayana(k: int, n: int) -> float:
    """Return the coefficient of ratio^n in the k-th moment of the law of Marchenko and Pastur."""
    return comb(k, n) * comb(k - 1, n) / (n + 1) if k else float(n == 0)


def test_lazy_wide_networks_are_linear_regression() -> None:
    """Check lazy losses with full batch against the law of Marchenko and Pastur.

    With gamma0 -> 0 they are averages of (1 - eta (L + 1) x)^(2t) over the law of the samples, whose moments
    are polynomials in 1/alpha.
    """
    spec = isotropic("alpha", 2, 5, gamma0=1e-7, noise=0.0).spec.model_dump(
        exclude_none=True, exclude_unset=True
    )
    spec["network"].pop("width_ratio")
    experiment = Experiment.from_dict(spec)
    series = size_series(experiment, "alpha", 4)
    step = 0.1 * 3
    for n in range(5):
        powers = [[comb(2 * t, k) * (-step) ** k for k in range(2 * t + 1)] for t in range(6)]
        test = [sum(c * narayana(k, n) for k, c in enumerate(p)) for p in powers]
        train = [sum(c * narayana(k + 1, n) for k, c in enumerate(p)) for p in powers]
        np.testing.assert_allclose(series.test_loss.values[n], test, atol=1e-11)
        np.testing.assert_allclose(series.train_loss.values[n], train, atol=1e-11)


def test_lazy_descent_on_batches_is_a_geometric_series() -> None:
    """loss(t + 1) = ((1 - k)^2 + k^2/alpha_B) loss(t) + k^2 noise^2/alpha_B, expanded in 1/alpha_B."""
    spec = isotropic("alpha_B", 2, 6, gamma0=1e-7, noise=0.3).spec.model_dump(
        exclude_none=True, exclude_unset=True
    )
    spec["network"].pop("width_ratio")
    series = size_series(Experiment.from_dict(spec), "alpha_B", 3)
    k, noise = 0.3, 0.09
    loss = np.zeros((7, 4))
    loss[0, 0] = 1.0
    for t in range(6):
        loss[t + 1] = (1 - k) ** 2 * loss[t]
        loss[t + 1, 1:] += k**2 * loss[t, :-1]
        loss[t + 1, 1] += k**2 * noise
    loss[:, 0] += noise
    np.testing.assert_allclose(series.test_loss.values, loss.T, atol=1e-11)


def test_order_zero_of_random_data_is_that_of_higher_orders() -> None:
    """The response vanishes at order 0: its shape was not known, and a StopIteration was raised."""
    experiment = Experiment.from_dict(
        {
            "network": {"depth": 1},
            "data": {"kind": "isotropic"},
            "training": {"learning_rate": 0.1, "steps": 3},
        }
    )
    lowest, more = (expand(experiment, order) for order in (0, 2))
    assert {*more.data_vars} - {*lowest.data_vars} == {"R_gu"}
    for name in lowest.data_vars:
        np.testing.assert_allclose(lowest[name].values[0], more[name].values[0], rtol=1e-13)


def test_lazy_narrow_networks_are_regression_on_random_features() -> None:
    """Check the lazy loss of one hidden layer on the population.

    If centred, the tangent kernel is 1 + M with M of the law of Marchenko and Pastur of ratio 1/nu; the loss
    is the average of (1 - eta (1 + x))^(2t).
    """
    experiment = Experiment.from_dict(
        {
            "network": {"depth": 1, "gamma0": 1e-4, "width_ratio": 5.0},
            "data": {"kind": "isotropic"},
            "training": {"learning_rate": 0.1, "steps": 5, "center": True},
        }
    )
    series = size_series(experiment, "nu", 3)
    for n in range(4):
        expected = [
            sum(comb(2 * t, k) * 0.9 ** (2 * t - k) * (-0.1) ** k * narayana(k, n) for k in range(2 * t + 1))
            for t in range(6)
        ]
        np.testing.assert_allclose(series.test_loss.values[n], expected, atol=3e-7)


def test_the_truncation_error_is_estimated() -> None:
    """At a size of 10 the remainder is at most 3 times and at least 1/300 of the estimate."""
    experiment = isotropic("nu", 1)
    series = size_series(experiment, "nu", 3)
    full = solve(experiment.replace({WIDE: 10.0}))
    estimates = truncation_error(series, 0.1)
    for name in ("test_loss", "train_loss", "C_v", "C_h", "C_g"):
        rest = float(np.abs(full[name] - partial_sum(series, 0.1)[name]).max())
        assert rest / 3 <= estimates[name] <= 300 * rest, name
    assert truncation_error(series, 1e3)["test_loss"] == np.inf


def test_sizes_grow_together() -> None:
    """Check exponents along the ray alpha = nu/20."""
    experiment = isotropic("nu", 1)
    series = size_series(experiment, "nu", 2, ("alpha",))
    values = [400.0, 800.0]
    fulls = [solve(experiment.replace({WIDE: v, MUCH: v / 20})) for v in values]
    for n in range(3):
        rest = [missed(series, f, 1 / v, n)["test_loss 0"] for f, v in zip(fulls, values, strict=True)]
        assert exponents([1 / v for v in values], rest)[0] == pytest.approx(n + 1, abs=0.25)


def test_a_flow_has_a_series_too() -> None:
    spec = isotropic("nu", 1).spec.model_dump(exclude_none=True, exclude_unset=True)
    spec["training"] = {"rule": "flow", "time": 1.0, "points": 4, "center": False}
    spec["solver"] = {"rtol": 1e-3}
    experiment = Experiment.from_dict(spec)
    series = size_series(experiment, "nu", 1)
    assert "R_hr" not in series
    full = solve(experiment.replace({WIDE: 20.0}))
    rest = float(np.abs(full.test_loss - partial_sum(series, 1 / 20).test_loss).max())
    first = float(np.abs(series.test_loss.sel(order=1)).max()) / 20
    assert rest < 0.1 * first


def test_wrong_files_are_refused() -> None:
    experiment = isotropic("nu", 2)
    with pytest.raises(SpecError, match=r"size = .*is not a size of a theory"):
        size_series(experiment, "beta", 1)
    with pytest.raises(SpecError, match="order = -1"):
        size_series(experiment, "nu", -1)
    with pytest.raises(SpecError, match=r"data.batch_ratio.* must be one number"):
        size_series(experiment, "alpha_B", 1)
    with pytest.raises(SpecError, match=r"network.width_ratio.* must be one number"):
        size_series(experiment.replace({WIDE: [1.0, 2.0]}), "nu", 1)
    with pytest.raises(SpecError, match=r"no series in 1/nu: .*must be a rational function"):
        size_series(experiment.replace({"network.parametrization": "ntk"}), "nu", 1)
    tables = {"network": {"depth": 1}, "training": {"learning_rate": 0.1, "steps": 2}}
    fixed_data = Experiment.from_dict(tables, kernel=[[1.0]], targets=[1.0])
    with pytest.raises(SpecError, match=r"data.kind.* has no network.width_ratio"):
        size_series(fixed_data, "nu", 1)


@pytest.mark.slow
def test_finite_networks() -> None:
    """Compare networks at D = 400, nu = alpha = 4 with partial sums.

    The test loss of 24 networks is within its errors and 1/D of the partial sum of order 3, but not of those
    of orders 0 (off by 0.096) and 1 (0.016).
    """
    series = size_series(
        isotropic("nu", 1, 8, noise=0.0, center=True).replace({WIDE: 4.0, MUCH: 4.0}), "nu", 3, ("alpha",)
    )
    curves = []
    for seed in range(24):
        network = Network(400, seed, depth=1, eta=0.1, gamma0=1.0, nu=4.0, alpha=4.0, center=True)
        network.target *= np.sqrt(400) / np.linalg.norm(
            network.target
        )  # its length is not a part of the question
        curves.append(np.diagonal(network.run(9)["C_v"].real))
    mean, error = np.mean(curves, 0), np.std(curves, 0, ddof=1) / np.sqrt(len(curves))
    off = [np.abs(partial_sum(series, 1 / 4, n).test_loss.values - mean) for n in range(4)]
    scores = [np.maximum(x - 1.0 / 400, 0.0) / error for x in off]
    assert excess(scores[3], 23) < 1 < excess(scores[1], 23) < excess(scores[0], 23)


# -- the rate ------------------------------------------------------------------------------------------


def fixed(depth: int, rate: float, end: float = 0.4) -> Experiment:
    return Experiment.from_dict(
        {
            "network": {"depth": depth, "gamma0": 1.0},
            "training": {"learning_rate": rate, "steps": round(end / rate), "loss": "sum"},
        },
        kernel=[[1.0, 0.2], [0.2, 1.0]],
        targets=[1.0, -0.5],
    )


def at_rate(experiment: Experiment, rate: float, times: xr.DataArray) -> xr.Dataset:
    """Return the steps solved at another rate, at the times of the series."""
    own = experiment.training.learning_rate or 1.0
    steps = round((len(times) - 1) * own / rate)
    full = solve(experiment.replace({"training.learning_rate": rate, "training.steps": steps}))
    each = slice(None, None, steps // (len(times) - 1))
    for dim in {"time", "time_"} & set(full.dims):
        full = full.isel({dim: each}).assign_coords({dim: times.values})
    return full


def check_rates(experiment: Experiment, order: int, rtol: float, rates: list[float], within: float) -> None:
    series = step_size_series(experiment, order, rtol)
    fulls = [at_rate(experiment, r, series.time) for r in rates]
    for name in series.data_vars:
        size = float(np.abs(series[name]).max())
        for n in range(order + 1):
            rest = [
                full[name] - partial_sum(series, r, n)[name] for full, r in zip(fulls, rates, strict=True)
            ]
            both = [float(np.abs(x).max()) for x in rest]
            if both[0] < 1e-12 * size:
                continue
            for found in exponents(rates, both):
                assert found == pytest.approx(n + 1, abs=within), (name, n)


def test_descent_around_the_flow() -> None:
    """Two samples, two layers: orders 0 and 1 miss eta and eta^2, up to corrections of the next power."""
    check_rates(fixed(2, 0.1, 0.2), 1, 1e-3, [0.1, 0.05], 0.35)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_descent_around_the_flow_to_second_order(depth: int) -> None:
    check_rates(fixed(depth, 0.05, 0.2), 2, 1e-6, [0.05, 0.025, 0.0125], 0.35)


@pytest.mark.slow
@pytest.mark.parametrize("center", [False, True])
def test_descent_on_random_data_around_the_flow(center: bool) -> None:
    check_rates(isotropic("alpha", 1, 4, center=center), 2, 1e-6, [0.1, 0.05, 0.025], 0.35)


def test_rates_of_lazy_descent_are_those_of_a_power() -> None:
    """gamma0 -> 0, one sample, one layer: (1 - 2 eta)^(t/eta) = exp(-2t) (1 - 2 eta t + ...)."""
    experiment = fixed(1, 0.1, 0.2).replace({"network.gamma0": 1e-6})
    one = Experiment.from_dict(experiment.spec.model_dump(exclude_unset=True), kernel=[[1.0]], targets=[1.0])
    series = step_size_series(one, 2, 2e-3)
    t = series.time.values
    expected = np.exp(-2 * t) * np.stack([np.ones_like(t), -2 * t, 2 * t**2 - 8 * t / 3])
    np.testing.assert_allclose(series.error[:, :, 0], expected, atol=5e-4)


def test_other_rules_have_no_steps_that_become_small() -> None:
    with pytest.raises(SpecError, match=r"training.rule = \"sgd\""):
        step_size_series(isotropic("alpha_B"), 1)
    with pytest.raises(SpecError, match="must not depend on eta"):
        step_size_series(fixed(1, 0.1).replace({"training.weight_decay": 0.1}), 1)


def test_the_truncation_error_counts_orders_and_not_positions() -> None:
    """Once the orders 0, 2, 4 of an even series counted as 0, 1, 2."""
    series = xr.Dataset({"a": ("order", [1.0, 0.5, 0.25])}, {"order": [0, 2, 4]})
    x = 0.1**2 / 2
    assert truncation_error(series, 0.1)["a"] == pytest.approx(x**3 / (1 - x), rel=1e-12)


def test_the_truncation_error_of_a_series_with_unknown_orders() -> None:
    """A series ends before the first unknown order, as that of relu; standard errors are not series."""
    known, unknown = [[1.0], [0.5], [0.25]], [[1.0], [0.5], [np.nan]]
    columns = {"a": known, "b": unknown, "c": [[np.nan]] * 3, "a_stderr": known}
    series = xr.Dataset({name: (("order", "time"), x) for name, x in columns.items()}, {"order": [0, 1, 2]})
    found = truncation_error(series, 0.1)
    shorter = truncation_error(series[["b"]].sel(order=[0, 1]), 0.1)
    assert found.keys() == {"a", "b", "c"}
    assert found["b"] == shorter["b"] > found["a"]
    assert found["c"] == np.inf
