"""Tests of finite width and steps in the rich regime: solved theory and networks against derived powers.

Corrections to the derived powers are smaller by powers of ``1/sigma`` and of the integrated kernel. They are
fitted, and the error of the remainder is the change by the last fitted term.
"""

import json
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sympy import Expr, Rational

from derive.calculus.symbols import eta, gamma0
from derive.program.networks.random_data import B, N
from derive.scale.modes import time as late
from numerics.cli import run
from numerics.experiment import Experiment
from numerics.solver import solve
from tests.chance import excess
from tests.derive.scale.derived import rich_at, size

Array = NDArray[np.float64]
GAMMA, SOURCE, CAPACITY = 30.0, "1/2", 2
"""Of the flows: one hidden layer, for which the regime begins before t = 1."""
WIDTHS, MORE = (8, 16, 32, 64), 0.1
"""The widths at which the loss is this share above that of infinite width at some time of the flow."""


def power_law(source: str, modes: int) -> dict[str, Any]:
    return {"kind": "power-law", "capacity": CAPACITY, "source": float(Rational(source)), "modes": modes}


@lru_cache(maxsize=8)
def flow(width: int | None, time: float = 1e5, points: int = 31, modes: int = 10**15) -> tuple[Array, Array]:
    """Return times and losses of the solved theory with one hidden layer."""
    tables = {
        "network": {"depth": 1, "gamma0": GAMMA} | ({} if width is None else {"width": width}),
        "data": power_law(SOURCE, modes),
        "training": {"rule": "flow", "time": time, "points": points, "grid": "log"},
        "solver": {"rtol": 1e-2},
    }
    found = solve(Experiment.from_dict(tables))
    return found.time.values[1:], found.test_loss.values[1:]


def steps(rate: float, count: int) -> Any:
    """Return the solved theory of descent in steps on a hard task, with two hidden layers."""
    tables = {
        "network": {"depth": 2, "gamma0": 60.0},
        "data": power_law("3/10", 10**6),
        "training": {"rule": "gd", "learning_rate": rate, "steps": count},
    }
    return solve(Experiment.from_dict(tables))


def number(e: Expr, **values: float) -> float:
    """Return the value of a derived expression."""
    names = {"t": late, "eta": eta, "gamma0": gamma0, "N": N}
    return float(e.subs({names[k]: v for k, v in values.items()}))


def at_zero(y: Array, x: Array, orders: int = 2) -> tuple[float, float]:
    """Return the value of a polynomial fit at ``x = 0``, and the change by its last order."""
    found = [np.polyfit(x, y, n)[-1] for n in (orders, orders - 1)]
    return float(found[0]), float(abs(found[0] - found[1]))


@pytest.mark.slow
def test_the_share_of_finite_width() -> None:
    """Order 1/N over the derived share tends to one as 1/sigma, which is 1/C_g^(1/2) here."""
    width, share = 4096, size("width", 1, SOURCE)
    assert share.share is not None
    (t, wide), (_, narrow) = flow(None), flow(width)
    measured = width * (narrow / wide - 1)
    kernel = np.array([number(rich_at(1, SOURCE).kernel, t=y, gamma0=GAMMA) for y in t])
    derived = np.array([number(share.share.at(late), t=y, gamma0=GAMMA, N=1) for y in t])
    late_ = t > 10
    ratio, error = at_zero((measured / derived)[late_], kernel[late_] ** -0.5)
    assert excess((ratio - 1) / error) <= 1
    assert error < 0.1


@pytest.mark.slow
def test_the_crossover_of_finite_width() -> None:
    """The time at which the loss is a tenth above the wide one goes as the crossover, N^3."""
    found, (_, wide) = size("width", 1, SOURCE), flow(None)
    power = float(found.exponent(N))
    times = []
    for width in WIDTHS:
        t, loss = flow(width)
        times.append(np.exp(np.interp(np.log(MORE), np.log(loss / wide - 1), np.log(t))))
    kernel = [number(rich_at(1, SOURCE).kernel, t=y, gamma0=GAMMA) for y in times]
    x, y, small = np.log(WIDTHS), np.log(times), np.array(kernel) ** -0.5
    local = np.diff(y) / np.diff(x)
    slope, error = at_zero(local, (small[1:] + small[:-1]) / 2, 1)
    assert excess((slope - power) / error) <= 1
    assert abs(power - 2) > 5 * error  # the lazy crossover is N^2


@pytest.mark.slow
def test_the_share_of_batches() -> None:
    """Order 1/B over the derived share tends to one like the noise that modes still hold, X^(1/a - 1)."""
    rate, batch, gamma, source = 3e-4, 10**5, 100.0, "3/10"
    tables = {
        "network": {"depth": 1, "gamma0": gamma},
        "data": power_law(source, 10**6),
        "training": {"rule": "gd", "learning_rate": rate, "steps": 350},
    }
    wide = solve(Experiment.from_dict(tables)).test_loss.values
    tables["network"] |= {"width": 10**9}
    tables["data"] |= {"batch": batch}
    tables["training"] |= {"rule": "sgd"}
    loss = solve(Experiment.from_dict(tables)).test_loss.values
    share, at = size("batch", 1, source).share, np.arange(200, 351, 10)
    assert share is not None
    values = [{"t": rate * n, "gamma0": gamma, "eta": rate} for n in at]
    derived = np.array([number(share.at(late).subs(B, 1), **x) for x in values])
    integrals = np.array([number(rich_at(1, source).integrated_kernel, **x) for x in values])
    ratio, error = at_zero((batch * (loss / wide - 1))[at] / derived, integrals ** (1 / CAPACITY - 1))
    assert excess((ratio - 1) / error) <= 1
    assert error < 0.1


@lru_cache(maxsize=1)
def descents() -> tuple[tuple[float, Any], ...]:
    return tuple((rate, steps(rate, count)) for rate, count in ((1.6e-3, 300), (8e-4, 700), (4e-4, 1000)))


def kernel_of(rate: float, found: Any) -> Array:
    """Return ``eta C_g(1, t, t)`` at each step."""
    return np.asarray(rate * np.diagonal(found.C_g.values[0]))


@pytest.mark.slow
def test_the_crossover_of_steps() -> None:
    """The step at which eta C_g is 2, over the derived one, tends to one as the steps get more."""
    found = size("steps", 2, "3/10")
    first = np.array([np.argmax(kernel_of(rate, x) > 2) for rate, x in descents()])
    assert np.all(first > 0)
    derived = np.array([number(found.crossover, eta=rate, gamma0=60) / rate for rate, _ in descents()])
    ratio, error = at_zero(np.log(first / derived), 1 / first, 1)
    assert np.all(np.diff(np.abs(np.log(first / derived))) < 0)
    assert excess(ratio / error) <= 1


@pytest.mark.slow
def test_the_kernel_stays_near_the_edge() -> None:
    """From the crossover on it does not grow, but orbits below 2; the nearer, the smaller the steps."""
    growth, gaps = float(rich_at(2, "3/10").growth), []
    for rate, x in descents():
        kernel, count = kernel_of(rate, x)[1:], np.arange(1.0, len(x.time))
        after = slice(int(0.8 * kernel.size) // 2 * 2, kernel.size // 2 * 2)  # orbits have two steps
        pairs = kernel[after].reshape(-1, 2).mean(axis=1)
        times = np.log(count[after].reshape(-1, 2).mean(axis=1))
        (slope, _), covariance = np.polyfit(times, np.log(pairs), 1, cov=True)
        assert growth - slope > 5 * np.sqrt(covariance[0, 0])
        gaps.append(2 - float(pairs.mean()))
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] > 0


def networks(width: int, seeds: int, rate: float, outputs: list[int], modes: int) -> Array:
    """Return losses of networks of one hidden layer on the population, by output and seed."""
    k = np.arange(1.0, modes + 1)
    spectrum, b = k**-CAPACITY, float(Rational(SOURCE))
    target = np.sqrt(k ** (-CAPACITY * b - 1) / spectrum)
    rng = np.random.default_rng(5)
    first, last = rng.standard_normal((seeds, width, modes)), rng.standard_normal((seeds, 1, width))
    begun = last @ first / (width * GAMMA)
    losses = []
    for step in range(outputs[-1] + 1):
        error = target - last @ first / (width * GAMMA) + begun
        if step in outputs:
            losses.append((error[:, 0] ** 2) @ spectrum)
        field = spectrum * error
        moved = field @ first.transpose(0, 2, 1)
        first += rate * GAMMA * last.transpose(0, 2, 1) * field
        last += rate * GAMMA * moved
    return np.array(losses)


@pytest.mark.slow
def test_networks_of_four_units() -> None:
    """Trained networks are above the wide theory by the derived share, up to 1/sigma and 1/N^2.

    The theory of this width, at all orders, gives these corrections; networks agree with it within their
    errors.
    """
    width, rate, modes, outputs, seeds = 4, 0.004, 600, [1250, 2500, 5000], 96
    losses = networks(width, seeds, rate, outputs, modes)
    at = rate * np.array(outputs)
    (t, wide), (_, narrow) = (flow(x, 20.0, 13, modes) for x in (None, width))
    base, expected = (np.exp(np.interp(np.log(at), np.log(t), np.log(y))) for y in (wide, narrow))
    error = losses.std(axis=1, ddof=1) / np.sqrt(seeds)
    share = losses.mean(axis=1) / base - 1
    assert excess((losses.mean(axis=1) - expected) / np.hypot(error, 0.01 * expected), seeds - 1) <= 1
    found = size("width", 1, SOURCE).share
    assert found is not None
    derived = np.array([number(found.at(late), t=y, gamma0=GAMMA, N=width) for y in at])
    kernel = np.array([number(rich_at(1, SOURCE).kernel, t=y, gamma0=GAMMA) for y in at])
    assert np.all(share > 5 * error / base)
    assert np.all(abs(share / derived - 1) < 2 * kernel**-0.5 + derived + 3 * error / base / derived)


@pytest.mark.slow
def test_the_command_prints_bottlenecks(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "limits",
        "scaling",
        "--depth",
        "1",
        "--source",
        "3/2",
        "--capacity",
        "2",
        "--regime",
        "rich",
    ]
    assert run(arguments) == 0
    text = capsys.readouterr().out
    assert "finite width N" in text
    assert "takes over at t =" in text
    assert "conditions\n" in text.split("finite width N")[1]
    assert run([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["bottlenecks"]
    assert [x["name"] for x in found] == ["width", "batch", "labels", "steps"]
    assert found[0]["exponents"] == {"N": "1"}
    assert all(x["conditions"] for x in found)
