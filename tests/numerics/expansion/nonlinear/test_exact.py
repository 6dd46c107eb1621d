"""The nonlinear expansion of cubic activations against mean-field equations solved in exact fractions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr
from sympy import QQ

from numerics.expansion import expand
from numerics.experiment import Experiment
from tests.reference.exact_nonlinear import SINH, Cubic, Exact, solve

ETA = QQ(1, 5)
ONE: tuple[Any, Any] = [[QQ(1, 2)]], [QQ(1)]
TWO: tuple[Any, Any] = [[QQ(1, 2), QQ(1, 5)], [QQ(1, 5), QQ(2, 5)]], [QQ(1), QQ(-3, 5)]
BENT: Cubic = ((3, 4), (1, 5), (1, 10))
CASES = [
    pytest.param(TWO, 1, 1, BENT, id="L=1,P=2,even part", marks=pytest.mark.slow),
    pytest.param(ONE, 2, 2, SINH, id="L=2,P=1"),
    pytest.param(TWO, 1, 2, SINH, id="L=2,P=2", marks=pytest.mark.slow),
    pytest.param(ONE, 1, 3, SINH, id="L=3,P=1", marks=pytest.mark.slow),
    pytest.param(TWO, 2, 1, SINH, id="L=1,P=2,two steps"),
    pytest.param(ONE, 2, 3, SINH, id="L=3,P=1,two steps", marks=pytest.mark.slow),
    pytest.param(TWO, 2, 2, SINH, id="L=2,P=2,two steps", marks=pytest.mark.slow),
    pytest.param(ONE, 2, 2, BENT, id="L=2,P=1,even part,two steps", marks=pytest.mark.slow),
]


def ours(data: tuple[Any, Any], steps: int, depth: int, cubic: Cubic = SINH) -> xr.Dataset:
    kernel, targets = (np.array(x, dtype=float) for x in data)
    text = " + ".join(f"{p}*h**{n}/{q}" for n, (p, q) in enumerate(cubic, 1) if p)
    tables = {
        "network": {"depth": depth, "activation": text, "gamma0": 1.0},
        "data": {"kind": "fixed"},
        "training": {"rule": "gd", "loss": "sum", "learning_rate": float(ETA), "steps": steps},
    }
    return expand(Experiment.from_dict(tables, kernel=kernel, targets=targets), 2)


def worst(found: xr.Dataset, exact: Exact) -> float:
    """Return the largest difference of a coefficient, relative to the largest of its array."""
    misses = []
    for k in (0, 2):
        error = np.array([[float(s[k]) for s in row] for row in exact.error])
        miss = np.abs(found.error.sel(order=k).values - error).max()
        misses.append(miss / max(1.0, np.abs(error).max()))
        for name in ("Phi", "G", "A", "B"):
            for layer, table in enumerate(getattr(exact, name)):
                array = found[name].sel(order=k).isel(layer=layer)
                array = array.transpose("time", "time_", "sample", "sample_").values
                if table:
                    size = max(abs(float(s[k])) for s in table.values())
                    miss = max(abs(array[at] - float(s[k])) for at, s in table.items())
                    misses.append(miss / max(1.0, size))
    return float(max(misses))


@pytest.mark.parametrize(("data", "steps", "depth", "cubic"), CASES)
def test_every_coefficient_equals_a_fraction(
    data: tuple[Any, Any], steps: int, depth: int, cubic: Cubic
) -> None:
    """Delta, Phi, G, A and B of every layer, pair of samples and pair of times, up to gamma0^2."""
    found, exact = ours(data, steps, depth, cubic), solve(*data, ETA, steps, depth, cubic)
    assert worst(found, exact) < 1e-10
    tables = [t for name in ("Phi", "G", "A", "B") for t in getattr(exact, name)]
    assert all(s[1] == 0 for t in tables for s in t.values())  # odd orders, which ours leaves out
    assert all(s[1] == 0 for row in exact.error for s in row)
    assert list(found.order.values) == [0, 2]


def test_one_step_by_hand() -> None:
    """L = 1, P = 1: after one step h = u + e r (1 + u^2/2), e = eta gamma0 K y, and Phi(1, 0) up to e^2.

    <phi(u) phi(h)> = <phi^2> + e <phi phi' s r> + e^2 <phi phi'' s^2 r^2>/2 with s = 1 + u^2/2: the second
    vanishes, the third is <(u + u^3/6) u (1 + u^2/2)^2>/2.
    """
    K, y = QQ(1, 2), QQ(1)
    exact = solve([[K]], [y], ETA, 1, 1)
    moment = [QQ(1), K, 3 * K**2, 15 * K**3, 105 * K**4]
    square = {1: QQ(1), 2: QQ(1), 3: QQ(1, 4)}  # u^2 (1 + u^2/2)^2, by half the power
    drive = sum(c * (moment[n] + moment[n + 1] / 6) for n, c in square.items()) / 2
    rate = (ETA * K * y) ** 2
    first = exact.Phi[0][1, 0, 0, 0]
    assert QQ(first[2].numerator, first[2].denominator) == drive * rate
    phi0 = exact.Phi[0][0, 0, 0, 0][0]
    assert QQ(phi0.numerator, phi0.denominator) == K + K**2 + QQ(15, 36) * K**3
