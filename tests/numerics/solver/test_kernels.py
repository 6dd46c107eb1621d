"""Tests of the kernels that a result keeps (full, trace, none), its description and its memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from numerics.results import VARIABLES, load, save
from numerics.solver import solve
from tests.numerics.solver.helpers import flow, gd

CASES = {
    "gd": gd(3, 3, steps=4),
    "one sample": gd(2, 1, steps=4),
    "flow": flow(2, 2, points=3, rtol=1e-3),
}


@pytest.mark.parametrize("case", CASES)
def test_traces_are_those_of_the_full_kernels(case):
    e = CASES[case]
    full, trace, none = (solve(e, kernels=k) for k in ("full", "trace", "none"))
    assert set(none.data_vars) == {"error", "f", "train_loss", "G"}
    assert set(trace.data_vars) == set(none.data_vars) | {"Phi_trace", "tangent_kernel_trace"}
    assert set(full.data_vars) == set(none.data_vars) | {"Phi", "tangent_kernel", "A", "B"}
    for n in none.data_vars:
        assert np.array_equal(none[n], full[n])
        assert np.array_equal(trace[n], full[n])
    for n in ("Phi", "tangent_kernel"):
        expected = np.einsum("...aa->...", full[n].values)
        assert np.abs(trace[f"{n}_trace"].values - expected).max() < 1e-12 * np.abs(expected).max()


@pytest.mark.parametrize("case", ["gd", "flow"])
def test_results_carry_the_contracts_labels(case, tmp_path):
    e = CASES[case]
    r = solve(e)
    for n in r.data_vars:
        assert r[n].dims == VARIABLES[str(n)].dims
        assert np.isfinite(r[n]).all()
    assert r.time.values == pytest.approx(e.times)
    assert r.train_loss.values == pytest.approx((r.error.values**2).mean(axis=1))
    assert r.error[0].values == pytest.approx(e.targets)  # f = 0 at first
    assert r.attrs["status"] == "ok"
    assert r.attrs["spec"] == e.text
    assert r.attrs["wall_time_s"] > 0
    assert ("error_estimate" in r.attrs) == (e.training.rule == "flow")
    save(r, tmp_path / "out.nc")
    assert load(tmp_path / "out.nc").identical(r)


@pytest.mark.slow  # tracing memory makes all of it slower
def test_the_trace_of_many_samples_fits_in_little_memory():
    """P = 100, T = 21: the full kernels of two layers would take 70 MB."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((100, 150))
    e = gd(2, kernel=x @ x.T / 150, targets=rng.choice([-1.0, 1.0], 100), rate=0.3, steps=20, loss="mean")
    solve(e.replace({"training.steps": 1}), kernels="trace")  # what deriving takes does not grow with samples
    tracemalloc.start()
    r = solve(e, kernels="trace")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert float(r.train_loss[-1]) < 0.9 * float(r.train_loss[0])
    assert peak < 60 * 2 * 100 * 21**2 * 8  # a few arrays of L P T^2 numbers
    assert peak < 0.5 * 2 * (100 * 21) ** 2 * 8  # and not one of L P^2 T^2
