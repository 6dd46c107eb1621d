"""Steps whose quantities need each other: what is reported when the tolerance cannot be met."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import numerics.solver.linear as linear
import numerics.solver.refine as refine
from numerics.errors import NotConverged
from numerics.experiment import Experiment
from numerics.solver import solve
from numerics.solver.rows import RESOLVED, ROUNDING, Settling, settle_step


def test_what_rounding_leaves_is_returned() -> None:
    """Sweeps that are noisy at 1e-9 stop there, and say so."""
    x, rng = np.array([0.0, 0.0]), np.random.default_rng(0)

    def sweep() -> None:
        x[:] = np.cos(x) + 1e-9 * rng.standard_normal(2)

    left = settle_step([x], sweep, 1e-14)
    assert 1e-11 < left < ROUNDING
    assert x == pytest.approx(0.7390851332, abs=1e-8)


def test_what_never_settles_is_refused() -> None:
    x, rng = np.array([0.0]), np.random.default_rng(0)

    def sweep() -> None:
        x[:] = rng.standard_normal(1)

    with pytest.raises(NotConverged, match="did not settle"):
        settle_step([x], sweep, 1e-6)


def test_what_was_large_counts_as_zero_when_it_is_gone() -> None:
    """A block that has fallen far below its peak needs no relative accuracy; the largest change is kept."""
    settling, x, rng = Settling(1e-6), np.array(1.0), np.random.default_rng(0)
    settling.step([x], lambda: None)

    def sweep() -> None:
        x[...] = 1e-3 * RESOLVED * 1e-6 * rng.standard_normal()

    settling.step([x], sweep)
    assert 0 < settling.residual < 1e-6


FLOW: dict[str, Any] = {
    "network": {"depth": 1},
    "data": {"kind": "power-law", "capacity": 1.5, "source": 0.5, "modes": 40},
    "training": {"rule": "flow", "time": 10.0, "points": 5},
    "solver": {"rtol": 1e-3},
}


@pytest.mark.slow
def test_the_error_estimate_of_a_flow_holds_what_steps_were_off_by(monkeypatch: pytest.MonkeyPatch) -> None:
    real = linear.march
    before = solve(Experiment.from_dict(FLOW)).attrs["error_estimate"]
    monkeypatch.setattr(linear, "march", lambda *a, **k: replace(real(*a, **k), residual=5e-4))
    after = solve(Experiment.from_dict(FLOW)).attrs["error_estimate"]
    assert before < 5e-4 <= after <= 1e-3
    monkeypatch.setattr(linear, "march", lambda *a, **k: replace(real(*a, **k), residual=2e-3))
    monkeypatch.setattr(refine.Trapezoidal, "most", 201)
    with pytest.raises(NotConverged, match="error estimate is"):
        solve(Experiment.from_dict(FLOW))


@pytest.mark.slow
@pytest.mark.parametrize("depth", [2, 3])
def test_deep_flows_reach_a_million(depth: int) -> None:
    """Long after all modes have been learnt the loss is nothing, and the steps still settle."""
    given = FLOW | {
        "network": {"depth": depth},
        "data": FLOW["data"] | {"modes": 100_000},
        "training": {"rule": "flow", "time": 1e6, "points": 60, "grid": "log"},
    }
    coarse, fine = (solve(Experiment.from_dict(given | {"solver": {"rtol": x}})) for x in (2e-2, 1e-3))
    assert fine.attrs["wall_time_s"] < 60
    loss = fine.test_loss.values
    moved = np.abs(coarse.test_loss.values - loss) / (loss + RESOLVED * loss[0])
    assert fine.attrs["time_nodes"] > coarse.attrs["time_nodes"]
    assert moved.max() <= coarse.attrs["error_estimate"] <= 2e-2
