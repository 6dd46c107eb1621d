"""Samples and replicas chosen for an accuracy: on numbers whose noise and bias are known, and on a theory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from derive.program import P, eta, gamma0
from numerics.errors import NotConverged
from numerics.solver.direct import evaluate
from numerics.solver.grid import TimeGrid
from numerics.solver.paths import solve_particles, solve_to_accuracy
from numerics.solver.paths.accuracy import (
    LEAP,
    PILOTS,
    POWER,
    REPLICAS,
    Budget,
    Integrator,
    ReplicaSolver,
    apart,
    reach,
    settle_paths,
)
from numerics.stats import Spread
from tests.derive.once import mean_field, mlp
from tests.numerics.solver.helpers import TARGETS, kernel

TIMES = 40


class Attempt:
    """Synthetic result ``truth + bias/S + noise S^-power``; two sizes share the noise up to a fifth."""

    def __init__(self, bias: float, noise: float, power: float = 0.75) -> None:
        self.bias, self.noise, self.power = bias, noise, power
        self.calls: list[tuple[int, int]] = []

    def typical(self, samples: int) -> float:
        """Return an upper bound of the largest of TIMES relative standard errors of eight replicas."""
        largest = chi2.ppf((1 - 1e-4) ** (1 / TIMES), REPLICAS - 1) / (REPLICAS - 1)
        return float(self.noise * samples**-self.power * np.sqrt(1.04 / REPLICAS * largest)) / 2

    def __call__(self, samples: int, numbers: Iterable[int], into: Spread) -> Iterator[dict[str, np.ndarray]]:
        for n in numbers:
            self.calls.append((samples, n))
            common = np.random.default_rng(n).normal(size=TIMES)
            own = np.random.default_rng((n, samples)).normal(size=TIMES)
            noise = (common + 0.2 * own) * self.noise * samples**-self.power
            found = {"x": 2.0 + self.bias / samples + noise}
            into.add(found)
            yield found


def test_samples_double_until_the_noise_is_small_and_its_power_is_found() -> None:
    attempt = Attempt(bias=0.0, noise=4.0)
    reached = reach(attempt, Spread, 3e-3, first=64)
    sizes = sorted({s for s, _ in attempt.calls})
    assert {s // 32 for s in sizes} <= {2**k for k in range(20)}
    assert sizes[:2] == [32, 64]
    assert 64 < sizes[2] <= 64 * 2**LEAP <= 64 * (attempt.typical(64) / 3e-3) ** (1 / POWER)
    assert reached.samples == sizes[-1]
    assert REPLICAS <= reached.replicas <= 3 * REPLICAS
    assert reached.error <= 3e-3
    assert reached.power == pytest.approx(0.75, abs=0.1)
    expected = 4.0 * reached.samples**-0.75 * np.sqrt(1.04 / reached.replicas) / 2
    # the largest of forty estimates of it, each from all replicas
    dof = reached.replicas - 1
    low, high = np.sqrt(chi2.ppf(np.array([1e-4, 1 - 1e-4]) ** (1 / TIMES), dof) / dof)
    assert low * expected < reached.error < high * expected
    assert reached.solutions.counts == {"x": reached.replicas}


def test_a_bias_asks_for_samples_where_the_noise_does_not() -> None:
    reached = reach(Attempt(bias=8.0, noise=0.5), Spread, 5e-3, first=64)
    assert 4.0 / reached.samples < 5e-3 * 1.2
    assert reached.bias == pytest.approx(4.0 / reached.samples, rel=0.2)
    given = reach(Attempt(bias=8.0, noise=0.5), Spread, None, 256)
    assert given.bias == pytest.approx(4.0 / 256, rel=0.2)


def test_noise_is_not_taken_for_a_bias() -> None:
    rng = np.random.default_rng(5)
    found = []
    for _ in range(200):
        first, second = ([{"x": 1 + rng.normal(size=TIMES)} for _ in range(REPLICAS)] for _ in range(2))
        found.append(apart(first, second))
    beyond, whole = np.array(found).T
    error = np.sqrt(2 / REPLICAS)
    assert np.median(whole) > 0.2 * error
    assert np.median(beyond) < 0.35 * np.median(whole)


@pytest.mark.parametrize(("short", "samples", "replicas"), [(1.3, 64, 13), (1.5, 64, 17), (1.9, 128, 8)])
def test_a_few_replicas_are_added_rather_than_samples(short: float, samples: int, replicas: int) -> None:
    """Twice the samples cost sixteen replicas of half as many, which are added to those that there are."""
    calls: list[tuple[int, int]] = []

    def attempt(size: int, numbers: Iterable[int], into: Spread) -> Iterator[dict[str, np.ndarray]]:
        for n in numbers:
            calls.append((size, n))
            yield {"x": np.array([1 + short * 0.64 / size * (-1) ** n])}

    asked = 0.01 / np.sqrt(7)
    reached = reach(attempt, Spread, asked, first=64)
    assert (reached.samples, reached.replicas) == (samples, replicas)
    assert reached.error <= asked
    assert max(size for size, _ in calls) == samples


def test_at_the_most_samples_replicas_are_added() -> None:
    attempt = Attempt(bias=0.0, noise=4.0)
    reached = reach(attempt, Spread, 1e-2, first=64, most=128)
    assert reached.samples == 128
    assert reached.replicas > REPLICAS
    assert reached.error <= 1e-2
    assert sorted(n for s, n in attempt.calls if s == 128) == list(range(reached.replicas))


def test_out_of_reach() -> None:
    """The message names the reached accuracy: the standard error, or the bias of 4/128 of 1.03."""
    with pytest.raises(NotConverged, match=r"1.0e-04: .* replicas would do, at most 64 are tried"):
        reach(Attempt(bias=0.0, noise=4.0), Spread, 1e-4, first=64, most=128)
    with pytest.raises(NotConverged, match=r"1.0e-04: .* replicas would do, at most 9 are tried"):
        reach(Attempt(bias=0.0, noise=4.0), Spread, 1e-4, 64, 128, budget=Budget(lambda _: 9))
    said = r"1.0e-03: 8 replicas of 128 samples reach 3.0e-02, and a bias of 3.0e-02 is left; .* would do"
    with pytest.raises(NotConverged, match=said):
        reach(Attempt(bias=8.0, noise=0.01), Spread, 1e-3, first=64, most=128)


@pytest.mark.parametrize("noise", [0.0, 3e-3])
def test_noise_between_grids_does_not_refine_without_end(noise: float) -> None:
    """Every other grid takes other random numbers, and the first two replicas happen to agree about them."""
    solved: list[int] = []

    def on(grid: TimeGrid) -> ReplicaSolver[Spread]:
        step = float(np.max(np.diff(grid.nodes)))
        other = len(solved) % 2  # this grid's numbers

        def attempt(_: int, numbers: Iterable[int], into: Spread) -> Iterator[dict[str, np.ndarray]]:
            solved.append(len(grid.nodes))
            for n in numbers:
                sign = 1 if n < PILOTS else np.random.default_rng(n).normal()
                found = {"x": np.full(3, 1 + 0.1 * step**2 + noise * sign * other + 1e-3 * n)}
                into.add(found)
                yield found

        return attempt

    given: dict[str, Any] = {"rtol": 1e-3, "accuracy": None, "integrator": Integrator("", 4, 2.0)}
    settled = settle_paths(np.array([0.0, 1.0, 2.0]), on, Spread, 64, **given)
    assert max(solved) < 100
    assert len(settled.begun.watched) == REPLICAS
    missed = 0.1 * float(np.max(np.diff(settled.grid.nodes))) ** 2
    assert missed < 1e-3 + 3 * noise / np.sqrt(REPLICAS)  # of what noise hides, three standard errors


def test_an_unstable_grid_does_not_settle() -> None:
    """Steps above 0.3 amplify noise, more so if they are long, and hide their error in it."""

    def on(grid: TimeGrid) -> ReplicaSolver[Spread]:
        step = float(np.max(np.diff(grid.nodes)))

        def attempt(_: int, numbers: Iterable[int], into: Spread) -> Iterator[dict[str, np.ndarray]]:
            for n in numbers:
                noise = np.random.default_rng((n, len(grid.nodes))).normal(size=3)
                found = {"x": 1 + noise * min(1.0, 1e-3 * np.exp(40 * max(step - 0.3, 0.0)))}
                into.add(found)
                yield found

        return attempt

    given: dict[str, Any] = {"rtol": 1e-3, "accuracy": None, "integrator": Integrator("", 4, 2.0)}
    settled = settle_paths(np.array([0.0, 1.0, 2.0]), on, Spread, 64, **given)
    assert settled.begun.error < 2e-3
    assert settled.grid.step < 0.34


def test_what_a_grid_misses_is_known_at_each_time() -> None:
    """A decaying function whose relative error is the same at all times."""
    times = np.linspace(0.0, 4.0, 9)

    def on(grid: TimeGrid) -> ReplicaSolver[Spread]:
        step = float(np.max(np.diff(grid.nodes)))

        def attempt(_: int, numbers: Iterable[int], into: Spread) -> Iterator[dict[str, np.ndarray]]:
            for n in numbers:
                found = {"x": np.exp(-times)[: len(grid.outputs)] * (1 + 0.1 * step**2 + 1e-3 * n)}
                into.add(found)
                yield found

        return attempt

    given: dict[str, Any] = {"rtol": 1e-3, "accuracy": None, "integrator": Integrator("", 4, 2.0)}
    settled = settle_paths(times, on, Spread, 64, **given)
    missed = 0.1 * settled.grid.step**2 * np.exp(-times)
    assert (settled.missed["x"] >= missed * 0.999).all()
    assert (settled.missed["x"][1:] <= missed[:-1] * 1.001).all()  # that of the time before, at most


def test_a_theory_to_an_accuracy() -> None:
    """Every scalar is watched; the standard errors are those of the replicas that the result holds."""
    given: dict[str, Any] = {
        "steps": 4,
        "values": {eta: 0.3, gamma0: 1.1, P: 2},
        "data": {"K_x": kernel(2), "y": TARGETS[:2]},
    }
    found = solve_to_accuracy(mean_field(mlp(1, "tanh")), accuracy=2e-3, first=64, **given)
    assert found.samples > 64
    assert found.accuracy is not None
    assert found.accuracy <= 2e-3
    largest = max((found.stderr(n).max() / np.abs(found.value(n)).max()) for n in ("Delta", "f"))
    assert found.accuracy == pytest.approx(largest)
    assert len(found.runs["Delta", ()]) == found.replicas
    with pytest.raises(ValueError, match="accuracy = 2"):
        solve_to_accuracy(mean_field(mlp(1, "tanh")), accuracy=2.0, **given)


@pytest.mark.parametrize("first", [0, 2, 3, 7, 10.5, -4])
def test_the_first_number_of_paths_is_checked(first: Any) -> None:
    """Small and odd numbers ended in errors of NumPy."""
    given: dict[str, Any] = {"steps": 2, "values": {eta: 0.5, gamma0: 1.0, P: 1}}
    with pytest.raises(ValueError, match=f"first = {first}: "):
        solve_to_accuracy(
            mean_field(mlp(1)), accuracy=0.5, first=first, data={"K_x": [[1.0]], "y": [1.0]}, **given
        )


@pytest.mark.parametrize("solver", [solve_particles, partial(solve_to_accuracy, accuracy=0.5)])
def test_sampled_paths_refuse_a_kernel_that_no_inputs_have(solver: Any) -> None:
    data = {"K_x": [[1.0, 0.3], [0.0, 1.0]], "y": [1.0, 1.0]}
    with pytest.raises(ValueError, match=r"data\.K_x: is not symmetric"):
        solver(mean_field(mlp(1)), steps=2, values={eta: 0.5, gamma0: 1.0, P: 2}, data=data)


@pytest.mark.parametrize(
    ("solver", "name", "value"),
    [
        *((f, name, x) for f in (evaluate, solve_particles) for name, x in (("steps", 0), ("steps", 2.5))),
        *(
            (f, name, x)
            for f in (evaluate, solve_particles)
            for name, x in (("samples", 1), ("samples", 16.0))
        ),
        *((f, "replicas", x) for f in (evaluate, solve_particles) for x in (1, 2.5)),
        (solve_particles, "samples", 9),
        (solve_particles, "ridge", -1.0),
        (solve_particles, "ridge", float("nan")),
    ],
)
def test_numbers_of_sampled_paths_are_checked(solver: Any, name: str, value: Any) -> None:
    """A negative ridge gave numbers, and counts that are not integers ended in errors of Python."""
    given: dict[str, Any] = {"steps": 2, "values": {eta: 0.5, gamma0: 1.0, P: 1}}
    given |= {"data": {"K_x": [[1.0]], "y": [1.0]}} | {name: value}
    with pytest.raises(ValueError, match=rf"^{name} = {value}: "):
        solver(mean_field(mlp(1)), **given)
