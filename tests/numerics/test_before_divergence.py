"""``throw=False``: the steps before a divergence, which are those of a run that stops there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr
from sympy import Function

import numerics
from derive.program import mu, t
from numerics.errors import Diverged
from numerics.experiment.schema import Solver
from numerics.simulation import KernelTimes, Trainer, experiment
from tests.derive.once import mlp

ARRAYS = {"K_x": [[1.0, 0.2], [0.2, 0.9]], "y": [1.0, -0.5]}


def at_rate(eta: float, **more: Any) -> dict[str, Any]:
    return {"numbers": {"eta": eta, "gamma0": 0.8}, "arrays": ARRAYS, "times": range(31), **more}


@pytest.mark.parametrize(
    ("activation", "method"),
    [
        ("linear", "march"),
        ("relu", "paths"),
        pytest.param("linear", "direct", marks=pytest.mark.slow),
        ("cubic", "nodes"),
    ],
)
def test_a_loop_over_rates_keeps_the_steps_before_a_divergence(activation: str, method: str) -> None:
    source = mlp(1, activation)
    taken: dict[str, Any] = {"times": range(9 if method == "direct" else 13)}
    taken["solver"] = Solver(method=method, samples=64 if method == "paths" else None)
    given = at_rate(20.0, **taken)
    with pytest.raises(Diverged):
        numerics.solve(source, **given)
    found = numerics.solve(source, throw=False, **given)
    assert found.attrs["status"] == "diverged"
    assert "step" in found.attrs["diverged"] or "finite" in found.attrs["diverged"]
    count = found.sizes["time"]
    assert 0 < count < len(taken["times"])
    np.testing.assert_array_equal(found.time, np.arange(count))
    part = numerics.solve(source, **{**given, "times": range(count)})
    xr.testing.assert_equal(found, part)
    with pytest.raises(Diverged):  # and not one step more
        numerics.solve(source, **{**given, "times": range(count + 1)})


def test_networks_keep_the_steps_before_one_of_them_diverges() -> None:
    how = {"width": 8, "seeds": 3, "rng": 0}
    given = at_rate(30.0)
    with pytest.raises(Diverged):
        numerics.simulate(mlp(1), **how, **given)
    found = numerics.simulate(mlp(1), throw=False, **how, **given)
    assert found.attrs["status"] == "diverged"
    part = numerics.simulate(mlp(1), **how, **{**given, "times": found.time.values})
    xr.testing.assert_equal(found, part)


def test_output_times_are_those_before_the_divergence() -> None:
    whole = numerics.solve(mlp(1), throw=False, **at_rate(3.0))
    last = whole.sizes["time"] - 1
    found = numerics.solve(mlp(1), throw=False, **at_rate(3.0, times=[1, last, 25, 30]))
    assert last > 1
    assert found.time.values.tolist() == [1.0, float(last)]
    with pytest.raises(Diverged):  # none is left
        numerics.solve(mlp(1), throw=False, **at_rate(3.0, times=[29, 30]))


def test_what_converges_is_not_touched() -> None:
    plain, same = (numerics.solve(mlp(1), **x, **at_rate(0.1)) for x in ({}, {"throw": False}))
    xr.testing.assert_equal(plain, same)
    assert same.attrs["status"] == "ok"
    assert "diverged" not in same.attrs


def test_a_flow_with_a_kink_that_diverges_keeps_the_times_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs that grow by themselves reach infinity at a finite time, which no step resolves."""
    monkeypatch.setattr(experiment, "HALVINGS", 6)
    y, f = Function("y")(mu), Function("f")(mu, t)
    growing = mlp(1, "relu", rule="flow").map(lambda e: e.xreplace({y - f: y + f}))
    times = [0.0, 0.01, 4.0]
    given: dict[str, Any] = {"numbers": {"gamma0": 1.0}, "arrays": ARRAYS, "times": times, "width": 4}
    given |= {"seeds": 2, "rng": 0, "kernels": KernelTimes(traces=(0, 2)), "tolerance": 0.1}
    with pytest.raises(Diverged, match="diverged at time"):
        numerics.simulate(growing, **given)
    found = numerics.simulate(growing, throw=False, **given)
    assert found.attrs["status"] == "diverged"
    np.testing.assert_array_equal(found.time, times[:2])
    np.testing.assert_array_equal(found.trace_time, times[:1])


def test_steps_that_are_counted_cannot_be_halved() -> None:
    values = {"eta": 0.1, "gamma0": 1.0, "P": 2}
    trainer = Trainer.of(mlp(1), width=4, steps=1, values=values, data=ARRAYS)
    with pytest.raises(ValueError, match="the program's rule counts steps, which cannot be halved"):
        trainer.halved()
