"""Power-law data: the march over modes, its limits, finite networks, and the flow on a graded grid.

The march is compared with the theory evaluated term by term, the flow with small steps, and the flow's error
estimate is checked.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from derive.program.networks.random_data import M
from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.experiment.numbers import Spectrum, gauss_sum, numbers_of, power_law
from numerics.experiment.problem import Problem
from numerics.experiment.theory import theory_of
from numerics.simulation import simulate
from numerics.solver import solve
from numerics.solver.direct import evaluate
from tests.chance import excess, in_errors

Array = NDArray[np.float64]
EPS = float(np.finfo(float).eps)
Tables = dict[str, dict[str, Any]]


def tables(
    rule: str = "sgd",
    *,
    network: dict[str, Any] | None = None,
    data: dict[str, Any] | None = None,
    **training: Any,
) -> Tables:
    """Return the tables of an experiment on power-law data."""
    online = {"width": 5}, {"batch": 3, "noise": 0.2}
    of_rule = online if rule == "sgd" else ({}, {})
    steps = {} if rule == "flow" else {"learning_rate": 0.25, "steps": 4}
    given: Tables = {
        "network": {"depth": 2, "gamma0": 0.7} | of_rule[0] | (network or {}),
        "data": {"kind": "power-law", "capacity": 1.5, "source": 0.4, "modes": 4} | of_rule[1] | (data or {}),
        "training": {"rule": rule} | steps | training,
    }
    return {name: {k: v for k, v in table.items() if v is not None} for name, table in given.items()}


CASES: list[Any] = [
    tables(network={"depth": 3}),
    pytest.param(
        tables(network={"parametrization": "ntk"}, data={"noise": None}, center=False), marks=pytest.mark.slow
    ),
    tables(momentum=0.4),
    tables("gd", network={"width": 7}),
    tables("gd", network={"depth": 1}, center=False),
]


@pytest.mark.parametrize("given", CASES)
def test_the_march_is_the_theory(given: Tables) -> None:
    """Check that every order parameter of a result is the derived one, evaluated term by term.

    The sums have a few hundred terms, so that a hundred roundings of the largest entry are allowed.
    """
    experiment = Experiment.from_dict(given)
    spectrum = power_law(1.5, 0.4, 4, every=True)
    expected = evaluate(
        theory_of(experiment).at_depth(experiment.depth),
        steps=len(experiment.times),
        values={**numbers_of(experiment), M: 4},
        data=spectrum.attributes,
    )
    found = solve(experiment)
    checked = 0
    for name in found.data_vars:
        for layer in range(1, experiment.depth + 1) if "layer" in found[name].dims else [None]:
            if (str(name), () if layer is None else (layer,)) in expected.values:
                one = found[name].values if layer is None else found[name].values[layer - 1]
                right = expected.value(str(name), layer)
                assert np.abs(one - right).max() <= 100 * EPS * np.abs(right).max(), (name, layer)
                checked += 1
    assert checked >= 5
    assert found.test_loss.values[0] == pytest.approx(
        float(expected.value("C_v")[0, 0]) + (experiment.spec.data.noise or 0.0) ** 2  # type: ignore[union-attr]
    )


def test_a_stretch_of_modes_is_summed_exactly() -> None:
    k, weights = gauss_sum(7, 500, 6)
    integers = np.arange(7, 507.0)
    for power in range(12):
        assert weights @ k**power == pytest.approx(np.sum(integers**power), rel=1e-12)
    assert weights @ k**12 != pytest.approx(np.sum(integers**12), rel=1e-12)


@pytest.mark.parametrize(("capacity", "source"), [(1.5, 1.0), (1.1, 0.3), (3.0, 2.0)])
def test_few_modes_stand_for_many(capacity: float, source: float) -> None:
    """Weighted sums of decaying exponentials and of powers, over 20000 modes; rounding of that many terms."""
    every, few = (power_law(capacity, source, 20_000, every=x) for x in (True, False))
    assert len(few.counts) < 600

    def total(x: Spectrum, weights: Array, response: Array) -> float:
        return float(np.sum(x.counts * weights * response))

    for rate in np.geomspace(1e-2, 1e4, 25):
        for steps in (1, 30, 1000):
            values = []
            for x in (every, few):
                eigen, target = x.attributes["lamda"], x.attributes["w_star"]
                both = np.exp(-rate * eigen), (1 - min(rate, 2.0) * eigen) ** steps
                values.append([total(x, w, f) for w in (eigen, eigen * target**2) for f in both])
            assert np.abs(np.subtract(*values)).max() < 1e3 * EPS * np.sum(every.attributes["lamda"])


def test_many_modes_are_solved_with_few() -> None:
    """The result of `solve` with representatives of 300 modes is that of all modes."""
    experiment = Experiment.from_dict(
        tables(data={"modes": 300, "batch": 32}, network={"width": 64}, steps=25)
    )
    found = solve(experiment)
    everything = solve(replace(Problem.of(experiment), spectrum=power_law(1.5, 0.4, 300, every=True)))
    for name in found.data_vars:
        gap = np.abs(found[name].values - everything[name].values).max()
        assert gap <= 1000 * EPS * np.abs(everything[name].values).max(), name


def test_large_widths_and_batches_are_the_population_of_wide_layers() -> None:
    """Corrections are powers of 1/N and 1/B: a thousand times larger, a thousand times smaller."""
    limit = solve(Experiment.from_dict(tables("gd", steps=12, data={"modes": 40})))
    gaps = []
    for size in (10**6, 10**9):
        given = tables(steps=12, data={"modes": 40, "batch": size, "noise": None}, network={"width": size})
        gaps.append(np.abs(solve(Experiment.from_dict(given)).C_v.values - limit.C_v.values).max())
    assert gaps[0] / gaps[1] == pytest.approx(1000, rel=0.01)


NETWORKS = [
    (tables(data={"modes": 40, "batch": 256}, network={"width": 512}, steps=8, learning_rate=0.1), 512),
    (tables("gd", data={"modes": 40}, steps=8, learning_rate=0.1), 512),
]


@pytest.mark.parametrize(("given", "width"), NETWORKS)
def test_finite_networks(given: Tables, width: int) -> None:
    """16 networks.  Corrections to the mean field are a share of order 1/N + 1/B, below the errors."""
    experiment = Experiment.from_dict(given)
    theory, found = solve(experiment), simulate(experiment, width=width, seeds=16, rng=4)
    for name in ("test_loss", "train_loss", "C_v", "C_h0", "C_h", "C_g"):
        error = found[f"{name}_stderr"].values
        gap = np.abs(found[name].values - theory[name].values)
        assert excess(in_errors(gap, error), 15) < 1, name  # centred: at first nothing is random


def test_what_fits_in_no_memory_is_refused() -> None:
    with pytest.raises(
        SpecError, match=r"^training\.steps = 100000: needs \d+ GiB for the responses of modes"
    ):
        solve(Experiment.from_dict(tables(steps=100_000) | {"solver": {"hours": 1e9}}))


# -- flow ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("depth", "width"), [(1, None), *(pytest.param(*x, marks=pytest.mark.slow) for x in ((1, 16), (3, None)))]
)
def test_the_flow_is_the_limit_of_small_steps(depth: int, width: int | None) -> None:
    """Steps eta and eta/2, extrapolated: their error is of order eta^2, found from a third."""
    data, network = {"modes": 20}, {"depth": depth, "width": width}
    given = tables("flow", network=network, data=data, time=4.0, points=5)
    flow = solve(Experiment.from_dict(given | {"solver": {"rtol": 1e-5}}))

    def steps(n: int) -> Array:
        one = tables("gd", network=network, data=data, learning_rate=1 / n, steps=4 * n)
        return np.asarray(solve(Experiment.from_dict(one)).test_loss.values[::n])

    coarse, middle, fine = steps(10), steps(20), steps(40)
    first, second = 2 * middle - coarse, 2 * fine - middle
    error = np.abs(second - first).max()  # four times what the last of them has
    assert error < 0.05 * second[0]
    assert np.abs(flow.test_loss.values - second).max() < error
    assert flow.attrs["error_estimate"] <= 1e-5


@pytest.mark.slow
def test_a_smaller_tolerance_moves_the_flow_by_less_than_its_estimate() -> None:
    given = tables("flow", network={"depth": 1}, data={"modes": 2000}, time=1e2, points=10, grid="log")
    first, second = (solve(Experiment.from_dict(given | {"solver": {"rtol": x}})) for x in (2e-3, 5e-5))
    moved = np.abs(second.test_loss.values / first.test_loss.values - 1).max()
    assert second.attrs["time_nodes"] > first.attrs["time_nodes"]
    assert moved <= first.attrs["error_estimate"] <= 2e-3


@pytest.mark.slow
def test_a_hundred_thousand_modes_to_a_million() -> None:
    """Check the decay t^(-2 b/(1 + b)) of the loss of a hard task (eq. 116).

    It holds before the last mode is learnt, and is approached as a power of t.
    """
    given = tables("flow", network={"depth": 1, "gamma0": 1.0}, data={"modes": 100_000, "source": 0.5})
    given["training"] |= {"time": 1e6, "points": 60, "grid": "log"}
    result = solve(Experiment.from_dict(given | {"solver": {"rtol": 1e-4}}))
    halved = solve(Experiment.from_dict(given | {"solver": {"rtol": 1e-5}}))
    moved = np.abs(halved.test_loss.values / result.test_loss.values - 1).max()
    assert moved <= result.attrs["error_estimate"] <= 1e-4
    t, loss = result.time.values, result.test_loss.values
    inside = (t > 300) & (t < 5000)
    exponent = -np.polyfit(np.log(t[inside]), np.log(loss[inside]), 1)[0]
    assert exponent == pytest.approx(2 / 3, abs=0.05)


def test_the_loss_of_the_modes_is_a_power_of_their_number() -> None:
    """(w*_k)^2 lambda_k = k^(-a beta - 1), as the option of the commands has it."""
    found = power_law(1.5, 0.4, 20, every=True).attributes
    k = np.arange(1.0, 21)
    assert found["lamda"] == pytest.approx(k**-1.5, rel=1e-14)
    assert found["lamda"] * found["w_star"] ** 2 == pytest.approx(k ** (-1.5 * 0.4 - 1), rel=1e-14)
