"""Particles in one sweep: exact for linear theories, lazy limits, both kinds of responses, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import t as student
from sympy import Function

from derive.program import L, P, eta, gamma0
from numerics.errors import Diverged, Unserved
from numerics.solver.direct import evaluate
from numerics.solver.paths import Solved, solve_particles
from tests.chance import excess, in_errors
from tests.derive.once import mean_field, mlp
from tests.numerics.solver.helpers import TARGETS, kernel
from tests.numerics.solver.lazy_kernels import erf_moments, recursion, relu_moments

K = kernel(2)
DATA: dict[str, Any] = {"K_x": K, "y": TARGETS[:2]}
VALUES = {eta: 0.3, gamma0: 1.1, P: 2}


def solved(depth: int, activation: Any, **options: Any) -> Solved:
    given: dict[str, Any] = {"steps": 4, "values": VALUES, "data": DATA, "samples": 256} | options
    return solve_particles(mean_field(mlp(depth, activation)), **given)


# -- linear networks, by the route of nonlinear ones ---------------------------------------------------------


@pytest.mark.parametrize(("depth", "responses"), [(2, "stein"), (3, "jacobian")])
def test_linear_networks_are_exact(depth: int, responses: str) -> None:
    """With matched second moments every average of a linear theory is exact."""
    exact = evaluate(mean_field(mlp(depth)), steps=6, values=VALUES, data=DATA)
    ours = solved(depth, "linear", steps=6, responses=responses, ridge=0.0, replicas=2, samples=512)
    for name, layer in exact.values:
        if name in "AB" and responses == "stein":  # found up to what the sources cannot tell apart
            continue
        of = layer or None
        np.testing.assert_allclose(ours.value(name, of), exact.value(name, of), atol=2e-7, rtol=2e-7)


def test_no_bias_of_linear_networks_over_many_seeds() -> None:
    """Without matching the paths scatter; the mean over 50 seeds lies within their standard errors."""
    exact = evaluate(mean_field(mlp(2)), steps=4, values=VALUES, data=DATA).value("Delta")
    ours = solved(2, "linear", matched=False, responses="stein", replicas=50, seed=1, samples=512)
    z = (ours.value("Delta") - exact)[1:] / ours.stderr("Delta")[1:]
    assert ours.stderr("Delta")[1:].min() > 1e-5
    assert excess(z, 49) < 1
    assert np.sqrt((z**2).mean()) < 2


def test_the_bias_falls_as_one_over_samples() -> None:
    """On average over many replicas, without matching, at few paths."""
    rich = VALUES | {gamma0: 2.5}
    exact = evaluate(mean_field(mlp(1)), steps=3, values=rich, data=DATA).value("Delta")
    bias, error = {}, {}
    for samples in (8, 32):
        options: dict[str, Any] = {"values": rich, "replicas": 400, "samples": samples, "seed": 2}
        ours = solved(1, "linear", steps=3, matched=False, **options)
        bias[samples] = (ours.value("Delta") - exact)[2] * samples
        error[samples] = ours.stderr("Delta")[2] * samples
    assert excess(bias[8] / error[8]) > 1
    assert excess((bias[32] - bias[8]) / np.hypot(error[8], error[32])) < 1


def covered(ours: Solved, name: str, layer: int | None, exact: np.ndarray, replicas: int) -> float:
    """Return the share of 95 per cent intervals from ``replicas`` of the runs that hold the exact value."""
    runs = ours.runs[name, () if layer is None else (layer,)]
    parts = runs.reshape(-1, replicas, *exact.shape)
    error = parts.std(axis=1, ddof=1) / np.sqrt(replicas)
    moving = error.min(axis=0) > 1e-9
    inside = np.abs(parts.mean(axis=1) - exact) < student.ppf(0.975, replicas - 1) * error
    return float(inside[:, moving].mean())


@pytest.mark.slow
def test_intervals_cover() -> None:
    """200 solutions of a linear theory with unmatched paths; intervals by Student's t."""
    exact = evaluate(mean_field(mlp(2)), steps=3, values=VALUES, data=DATA)
    ours = solved(2, "linear", steps=3, matched=False, responses="stein", replicas=1600, samples=128)
    for name, layer in (("Delta", None), ("H", 2), ("G", 1)):
        assert 0.9 <= covered(ours, name, layer, exact.value(name, layer), 8) <= 0.98


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_intervals_cover_for_nonlinear_networks(activation: str) -> None:
    options: dict[str, Any] = {"steps": 8, "responses": "stein"}
    exact = solved(2, activation, samples=8192, replicas=12, seed=77, **options)
    ours = solved(2, activation, samples=256, replicas=800, **options)
    for name, layer in (("Delta", None), ("Phi", 2), ("G", 1)):
        assert 0.9 <= covered(ours, name, layer, exact.value(name, layer), 8) <= 0.98


# -- no feature learning -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("activation", "moments", "depth"), [("erf", erf_moments, 3), ("relu", relu_moments, 1)]
)
def test_lazy_kernels(activation: str, moments: Any, depth: int) -> None:
    """Compare kernels and errors at small gamma0 with those of infinite width, up to gamma0^2.

    Kernels follow the recursions, and errors are those of a fixed kernel.
    """
    small = 1e-3
    phi, back, tangent = recursion(moments, depth, K)
    ours = solved(depth, activation, values=VALUES | {gamma0: small}, samples=1024, replicas=16)
    delta = [DATA["y"]]
    for _ in range(3):
        delta.append(delta[-1] - VALUES[eta] * tangent @ delta[-1])
    expected = {("K", None): tangent, ("Delta", None): np.array(delta)}
    expected |= {("Phi", i + 1): p for i, p in enumerate(phi)} | {("G", i + 1): g for i, g in enumerate(back)}
    for (name, layer), exact in expected.items():
        value, error = ours.value(name, layer), ours.stderr(name, layer)
        if name != "Delta":
            value, error = value[..., 3, 1], error[..., 3, 1]
        assert excess(in_errors(value - exact, np.hypot(error, small**2)), 15) < 1, (name, layer)
        assert error.max() < 0.01


# -- responses -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("activation", "depth"),
    [("tanh", 2), *(pytest.param(*x, marks=pytest.mark.slow) for x in (("erf", 3), ("softplus", 2)))],
)
def test_stein_and_derivatives_along_paths_agree(activation: str, depth: int) -> None:
    """Responses entry by entry where sources separate all entries; errors and kernels always."""
    options: dict[str, Any] = {"steps": 3, "samples": 1024, "replicas": 16}
    paths = solved(depth, activation, responses="jacobian", **options)
    stein = solved(depth, activation, responses="stein", ridge=0.0, seed=1, **options)
    assert set(stein.responses.values()) == {"stein"}
    for name, layer in (("Delta", None), ("Phi", depth), ("G", 1), ("A", 1), ("B", depth - 1)):
        error = np.hypot(paths.stderr(name, layer), stein.stderr(name, layer))
        far = np.abs(paths.value(name, layer) - stein.value(name, layer)) / np.where(
            error > 1e-12, error, np.inf
        )
        assert excess(far, 15) < 1, (name, layer)


# -- refusals ------------------------------------------------------------------------------------------------


def test_refusals() -> None:
    with pytest.raises(ValueError, match="samples = 7"):
        solved(1, "tanh", samples=7)
    with pytest.raises(ValueError, match="jumps"):
        solved(2, "relu", responses="jacobian")
    with pytest.raises(ValueError, match="function without an expression"):
        solved(1, Function("phi"))
    with pytest.raises(Unserved, match="flow"):
        solve_particles(mean_field(mlp(1, "tanh", "flow")), steps=2, values=VALUES, data=DATA)
    with pytest.raises(ValueError, match="depth"):
        solve_particles(mean_field(mlp(L, "tanh")), steps=2, values=VALUES, data=DATA)
    with pytest.raises(ValueError, match="data does not contain y"):
        solved(1, "tanh", data={"K_x": K})
    with pytest.raises(ValueError, match="values contains no number for eta"):
        solved(1, "tanh", values={gamma0: 1.0, P: 2})
    with pytest.raises(Diverged, match="at step"):
        solved(2, "relu", values=VALUES | {eta: 1e30}, steps=12)


def test_seeds_repeat() -> None:
    one, same, other = (solved(2, "tanh", seed=n, samples=16, replicas=2).value("f") for n in (3, 3, 4))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
