"""Tests of the depth dependence of coefficients of one sample, up to twenty layers."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from scipy.optimize import brentq
from sympy import Symbol, lambdify

from derive.expansion.nonlinear.depth import AtCriticality
from derive.expansion.nonlinear.trees import ForestCoefficient
from derive.program import L, ell
from numerics.expansion import expand, series
from numerics.expansion.statics import Statics
from numerics.experiment import Experiment
from numerics.verification.series import compared, differences

U = np.linspace(-9.0, 9.0, 181)
WEIGHTS = np.exp(-(U**2) / 2) / np.exp(-(U**2) / 2).sum()
"""A trapezoidal rule for Gaussian averages of analytic functions."""

PHI = "1.7*tanh(h)"


def experiment(activation: str, depth: int, size: float = 1.0) -> Experiment:
    tables = {
        "network": {"depth": depth, "activation": activation},
        "training": {"learning_rate": 0.3, "steps": 2},
    }
    return Experiment.from_dict(tables, kernel=np.array([[size]]), targets=np.ones(1))


def slopes(q: float) -> list[np.ndarray]:
    """Return derivatives of PHI at Gaussian numbers of variance q."""
    y = np.tanh(np.sqrt(q) * U)
    s = 1 - y**2
    return [1.7 * x for x in (y, s, -2 * y * s, s * (6 * y**2 - 2), s * (16 * y - 24 * y**3))]


@lru_cache(maxsize=1)
def variance() -> float:
    """Return the fixed point of q -> <phi^2>."""
    return brentq(lambda q: WEIGHTS @ slopes(q)[0] ** 2 - q, 0.5, 3.0, xtol=1e-14)


def agree(names: tuple[str, ...], depths: tuple[int, ...]) -> int:
    """Compare the laws in closed form with their recursions at every layer; return the count of numbers."""
    expansion = series(experiment(PHI, 3, variance()), 2)
    law = expansion.depth_dependence(names=names)
    derivatives = slopes(variance())

    def moment(orders: tuple[int, ...]) -> float:
        return float(WEIGHTS @ np.prod([derivatives[a] for a in orders], axis=0))

    x, p = moment((1, 1)), moment((1, 1)) + moment((0, 2))
    values = {
        Symbol("x", positive=True): x,
        Symbol("p", positive=True): p,
        Symbol("q", positive=True): variance(),
    }
    values |= {symbol: moment(orders) for orders, symbol in law.symbols.items()}
    formulas = {t: lambdify((ell, L, *values), law.expression(t)) for t in law.found if t.name in names}
    count = 0
    for depth in depths:
        statics = Statics(expansion, depth, np.array([[variance()]]), 1e-10, frozenset())
        for tensor, formula in formulas.items():
            for layer in range(1, depth + 1):
                expected = statics.value(tensor, layer).ravel()[0]
                assert formula(layer, depth, *values.values()) == pytest.approx(expected, rel=1e-7, abs=1e-9)
                count += expected != 0
    return count


@pytest.mark.slow
def test_features_in_closed_form_where_the_variance_stays() -> None:
    assert agree(("Phi",), (1, 3)) > 8


@pytest.mark.slow
def test_features_and_gradients_in_closed_form_up_to_twenty_layers() -> None:
    assert agree(("Phi", "G"), (1, 2, 7, 20)) > 200


@lru_cache(maxsize=1)
def critical() -> AtCriticality:
    return series(experiment("tanh", 3), 2).depth_dependence("critical")


def ratios(depth: int) -> dict[ForestCoefficient, float]:
    """Return coefficients halfway through a tanh network, over their leading powers of ell and L."""
    expansion = series(experiment("tanh", 3), 2)
    law = critical()
    statics = Statics(expansion, depth, np.array([[1.0]]), 1e-9, frozenset())
    found = {}
    for t, leading in law.found.items():
        if t.name in ("Phi", "G") and leading.terms:
            power = float(law.expression(t).subs({ell: depth // 2, L: depth}))
            found[t] = statics.value(t, depth // 2).ravel()[0] / power
    return found


def approach(depth: int) -> None:
    """Check that corrections to the leading powers fall as log(L)/L.

    They fall to less than half with four times the depth.
    """
    shallow, deep = ratios(depth), ratios(4 * depth)
    assert {(t.name, t.order) for t in deep} == {("Phi", 0), ("G", 0), ("Phi", 2), ("G", 2)}
    for t, ratio in deep.items():
        assert abs(ratio - 1) < max(0.5 * abs(shallow[t] - 1), 0.06)


@pytest.mark.slow
def test_leading_powers_of_tanh() -> None:
    approach(8)


@pytest.mark.slow
def test_leading_powers_of_tanh_in_deep_networks() -> None:
    approach(20)
    assert all(abs(ratio - 1) < 0.35 for ratio in ratios(80).values())


def relative_change(depth: int) -> float:
    K = expand(experiment("tanh", depth), 2).tangent_kernel[:, -1, -1, 0, 0]
    return abs(float(K.sel(order=2) / K.sel(order=0)))


@pytest.mark.slow
def test_the_tangent_kernel_of_tanh_changes_more_than_in_proportion_to_the_depth() -> None:
    """selfconsistent2023 (P.6) and section 5 state O(L), as for linear networks. Here it is L^2."""
    power = np.log2(relative_change(8) / relative_change(4))
    assert 1.3 < power < 2.1


@pytest.mark.slow
def test_six_layers_against_the_full_theory() -> None:
    one = experiment("tanh", 6)
    rows = compared(expand(one, 2), differences(one, (0.1, 0.16), paths=256))
    assert all(z < limit for z, limit, *_ in rows.values()), rows
    assert rows["Phi"][3] < 0.15


@pytest.mark.slow
def test_twenty_layers_against_the_full_theory() -> None:
    one = experiment("tanh", 20)
    rows = compared(expand(one, 2), differences(one, (0.04, 0.055, 0.08), paths=4096))
    assert set(rows) == {"train_loss", "error", "Phi", "G", "tangent_kernel", "A", "B"}
    for z, limit, _, reach in rows.values():
        assert z < limit
        assert reach < 0.05
