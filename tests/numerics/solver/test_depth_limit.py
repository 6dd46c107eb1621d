"""Tests of residual networks of infinite depth: order of the layer grid, finite depth, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sympy import sqrt

from derive.depth import LayerTime, Scaling, cross_layer, layer_time, rescale
from derive.program import L, Program, eta, gamma0
from derive.program.networks.random_data import nu
from numerics.cli import run
from numerics.errors import Diverged, SpecError
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.experiment.theory import beta
from numerics.lowering.layer_time import LayerTable, NotLowered, lower_layer_time
from numerics.solver import solve
from numerics.solver.depth import layer_grid
from numerics.solver.depth.layer_grid import LayerGrid, solve_layer_grid
from numerics.solver.depth.solve import DepthLimit, beta0, solve_depth_limit
from tests.derive.once import isotropic, mean_field, mlp
from tests.ledger.evidence.layers import extrapolated, solve_layer_time

INPUTS = np.random.default_rng(3).normal(size=(3, 5))
TRAINING = {"learning_rate": 0.05, "steps": 3}
NUMBERS = {beta0: 1.0, eta: 0.05, gamma0: 0.8, nu: 2.0}


@lru_cache(maxsize=1)
def population() -> LayerTime:
    theory = mean_field(isotropic(data="population", branch=beta))
    return layer_time(rescale(cross_layer(theory), beta), Scaling({beta: beta0 / sqrt(L)}))


@lru_cache(maxsize=1)
def table() -> LayerTable:
    return lower_layer_time(population())


@lru_cache(maxsize=8)
def grid(layers: int) -> LayerGrid:
    return solve_layer_grid(table(), layers=layers, steps=2, constants=NUMBERS)


def experiment(network: dict[str, Any], data: dict[str, Any] | None, **training: Any) -> Experiment:
    tables: dict[str, Any] = {
        "network": {"depth": "L", "branch": 0.8, "gamma0": 0.8, **network},
        "training": {**TRAINING, **training},
    }
    if data is not None:
        return Experiment.from_dict({**tables, "data": data})
    targets = np.array([1.0, -0.5, 0.3])
    if network.get("outputs") == 2:
        targets = np.stack([targets, targets[::-1]], axis=1)
    return Experiment.from_dict(tables, inputs=INPUTS, targets=targets)


# -- the layer grid --------------------------------------------------------------------------------------


def test_the_grid_is_of_second_order_and_fourth_after_extrapolation() -> None:
    for name in ("C_v", "C_h0", "C_g", "C_h"):
        rows = [grid(n)[name] for n in (4, 8, 16, 32)]
        if name in ("C_g", "C_h"):
            rows = [a[:: (len(a) - 1) // 4] for a in rows]
        for order in (2, 4):
            moved = np.array([np.max(np.abs(b - a)) for a, b in pairwise(rows)])
            slopes = np.log2(moved[:-1] / moved[1:])
            assert abs(slopes[-1] - order) < (0.05 if order == 2 else 0.25), (name, order, slopes)
            rows = [(4 * fine - wide) / 3 for wide, fine in pairwise(rows)]


def test_both_sides_of_the_diagonal_differ_by_the_step_in_the_limit() -> None:
    # d h(tau, t)/d u(tau_, s) jumps by delta(t, s) where tau passes tau_; d h/d r does not
    run = grid(8)
    jump = np.moveaxis(np.diagonal(run["R_hu"]), -1, 0) - run.under["R_hu"]
    np.testing.assert_allclose(jump, np.broadcast_to(np.eye(2), jump.shape), atol=1e-12)
    assert set(run.under) == {"R_hu", "R_gr"}


def test_products_of_few_terms_are_those_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small products are multiplied out one by one, large ones as matrices."""
    monkeypatch.setattr(layer_grid, "FEW_TERMS", 0)
    large = solve_layer_grid(table(), layers=4, steps=2, constants=NUMBERS)
    for name, value in grid(4).values.items():
        np.testing.assert_allclose(large[name], value, rtol=1e-12, atol=1e-12, err_msg=name)


def test_first_loss_is_that_of_gaussian_layers() -> None:
    # linear2025 (71) at t = 0: C_v = 1 + C_g(0)/(nu gamma0^2), and dC_g/dtau = -beta0^2 C_g from C_g(1) = 1
    rows = [grid(n)["C_v"][0, 0] for n in (8, 16, 32)]
    once = [(4 * b - a) / 3 for a, b in pairwise(rows)]
    found, exact = (16 * once[1] - once[0]) / 15, 1 + np.exp(1.0) / (2.0 * 0.8**2)
    assert abs(found - exact) < abs(once[1] - once[0]) / 10


@pytest.mark.slow
def test_the_plain_evaluator_of_the_same_equations_agrees() -> None:
    plain = [solve_layer_time(population(), n, 2, NUMBERS)["C_h0"] for n in (4, 8, 16)]
    better, best = extrapolated(plain[1:]), extrapolated(plain)
    ours = (4 * grid(16)["C_h0"] - grid(8)["C_h0"])[:2, :2] / 3
    assert np.max(np.abs(best - ours)) < np.max(np.abs(best - better))


# -- networks of finite depth ----------------------------------------------------------------------------

ISOTROPIC = {"kind": "isotropic"}
CASES = {
    "population": experiment({"width_ratio": 2.0}, ISOTROPIC),
    "wide": experiment({}, ISOTROPIC),
    "full batch": experiment({"width_ratio": 2.0}, {**ISOTROPIC, "sample_ratio": 2.0, "noise": 0.3}),
    "online": experiment(
        {"width_ratio": 2.0}, {**ISOTROPIC, "batch_ratio": 2.0, "noise": 0.3}, rule="sgd", center=True
    ),
    "ntk": experiment({"width_ratio": 2.0, "outputs": 2, "parametrization": "ntk"}, ISOTROPIC),
    "fixed": experiment({}, None),
    "fixed, sum": experiment({"init_variance": 0.7}, None, loss="sum"),
}
MORE = {
    "channels": experiment({"outputs": 2}, None),
    "decay": experiment({}, None, weight_decay=0.5),
    "momentum": experiment({}, None, momentum=0.5),
    "langevin": experiment({}, None, temperature=0.1),
}


def converges(e: Experiment, depths: tuple[int, ...]) -> None:
    """Check that the distance falls with exponent 1, within the change by its next order."""
    limit = solve_depth_limit(e, layers=8)["train_loss"]
    branch = e.network.branch or 0.0
    gaps = []
    for depth in depths:
        finite = solve(
            e.replace({"network.depth": depth, "network.branch": branch / np.sqrt(depth)}), kernels="none"
        )
        gaps.append(np.max(np.abs(finite.train_loss.values - limit)))
    slopes = np.log2(np.array(gaps[:-1]) / gaps[1:])
    fitted = 2 * slopes[1:] - slopes[:-1]
    spread = abs(fitted[-1] - fitted[-2])
    assert spread < 0.05, fitted
    assert abs(fitted[-1] - 1) < 2 * spread, fitted


@pytest.mark.slow
@pytest.mark.parametrize("name", ["population", "online"])
def test_finite_depth_converges_like_one_over_depth(name: str) -> None:
    converges(CASES[name].replace({"training.steps": 2}), (2, 4, 8, 16))


@pytest.mark.slow
@pytest.mark.parametrize("name", {**CASES, **MORE})
def test_finite_depth_up_to_64_converges_like_one_over_depth(name: str) -> None:
    converges({**CASES, **MORE}[name], (4, 8, 16, 32, 64))


@pytest.mark.slow
def test_momentum_has_a_limit_which_depths_approach() -> None:
    """Its memory brings denominators such as L P m - L P, whose power of L has to be seen."""
    e = experiment({"width_ratio": 2.0}, ISOTROPIC, momentum=0.5).replace({"training.steps": 2})
    limit = solve_depth_limit(e, layers=4)["train_loss"]
    branch = e.network.branch or 0.0
    near, nearer = (
        solve(e.replace({"network.depth": n, "network.branch": branch / np.sqrt(n)})).train_loss.values
        for n in (4, 8)
    )
    assert np.max(np.abs(2 * nearer - near - limit)) < np.max(np.abs(nearer - near)) / 4


@pytest.mark.parametrize("name", ["population", pytest.param("fixed", marks=pytest.mark.slow)])
def test_the_error_estimate_is_larger_than_the_error(name: str) -> None:
    e = CASES[name].replace({"training.steps": 2})
    coarse, fine = (solve_depth_limit(e, layers=n) for n in (4, 8))
    for variable, estimate in coarse.errors.items():
        a, b = coarse[variable], fine[variable]
        if a.shape != b.shape:
            b = b[:: (len(b) - 1) // (len(a) - 1)]
        assert np.max(np.abs(a - b)) < estimate, variable


@pytest.mark.slow
def test_deep_networks_of_finite_depth_have_the_kernels_of_the_limit() -> None:
    e = CASES["fixed"].replace({"training.steps": 1})
    limit = solve_depth_limit(e, layers=4)
    ends = []
    for depth in (2, 4, 8):
        finite = solve(e.replace({"network.depth": depth, "network.branch": 0.8 / np.sqrt(depth)}))
        ends.append(finite.Phi.values[-1])
    once = [2 * b - a for a, b in pairwise(ends)]
    twice = (4 * once[1] - once[0]) / 3
    assert np.max(np.abs(twice - limit["Phi"][-1])) < np.max(np.abs(twice - once[1]))


# -- results and refusals --------------------------------------------------------------------------------


@pytest.mark.slow
def test_dmft_solve_takes_symbolic_depth_as_the_limit() -> None:
    e = CASES["population"].replace({"training.steps": 2})
    result = solve(e)
    np.testing.assert_array_equal(result.layer, [0, 0.25, 0.5, 0.75, 1])
    assert result.sizes["time"] == 3
    assert 0 < result.attrs["layer_grid_error"] < 1e-5
    np.testing.assert_array_equal(result.test_loss, solve_depth_limit(e)["test_loss"])


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"network.depth": 4}, "network.depth"),
        ({"network.branch": None}, "network.branch"),
        ({"network.bias": True}, "network.bias"),
        ({"network.activation": "tanh"}, "network.activation"),
        (
            {
                "training.rule": "flow",
                "training.time": 1.0,
                "training.steps": None,
                "training.learning_rate": None,
            },
            "training.rule",
        ),
    ],
)
def test_what_has_no_limit_is_refused(change: dict[str, Any], key: str) -> None:
    with pytest.raises(SpecError) as refused:
        solve_depth_limit(CASES["fixed"].replace(change))
    assert refused.value.key == key


def programs_beside_a_file(e: Experiment) -> dict[str, Any]:
    """Return numbers, arrays and times of programs that are compared with a file of fixed samples."""
    numbers = {"eta": e.effective_rate, "gamma0": e.network.gamma0, "beta": e.network.branch}
    return {"arrays": {"K_x": e.kernel, "y": e.targets}, "times": e.times, "numbers": numbers}


def test_a_program_has_the_limit_of_its_file() -> None:
    e = CASES["fixed"].replace({"training.steps": 1})
    ours = solve_depth_limit(Problem.of(mlp(branch=beta), **programs_beside_a_file(e)), layers=4)
    theirs = solve_depth_limit(e, layers=4)
    np.testing.assert_allclose(ours["train_loss"], theirs["train_loss"], rtol=1e-12)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        pytest.param(
            partial(mlp, branch=beta, bias=True), "no limit of infinite depth", marks=pytest.mark.slow
        ),
        (partial(mlp, branch=beta, activation="tanh"), "no limit of infinite depth"),
        (partial(mlp, 3, branch=beta), "a program whose depth is a symbol"),
    ],
    ids=["biases", "tanh", "three layers"],
)
def test_a_program_without_a_limit_is_refused(program: Callable[[], Program], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        solve_depth_limit(Problem.of(program(), **programs_beside_a_file(CASES["fixed"])), layers=4)


def test_grids_that_cannot_be_coarsened_are_refused() -> None:
    with pytest.raises(SpecError, match="multiple of 4"):
        solve_depth_limit(CASES["fixed"], layers=6)


def test_what_no_memory_holds_is_refused() -> None:
    with pytest.raises(SpecError, match="GiB for responses between layers"):
        solve_depth_limit(CASES["fixed"].replace({"training.steps": 30_000}))


def test_the_command_solves_a_file_of_symbolic_depth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    e = CASES["wide"].replace({"training.steps": 1})
    (tmp_path / "deep.toml").write_text(e.text)
    assert run(["solve", str(tmp_path / "deep.toml"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    np.testing.assert_array_equal(found["test_loss"], solve(e).test_loss)
    assert run(["simulate", str(tmp_path / "deep.toml"), "--width", "8", "--seeds", "2"]) == 2


def test_diverging_dynamics_name_the_step() -> None:
    with pytest.raises(Diverged, match="diverged at step"):
        solve_depth_limit(
            CASES["wide"].replace({"training.learning_rate": 50.0, "training.steps": 12}), layers=4
        )


def test_progress_counts_all_grids() -> None:
    seen: list[tuple[int, int]] = []
    e = CASES["fixed"].replace({"training.steps": 1})
    solve_depth_limit(e, layers=4, progress=lambda k, n: seen.append((k, n)))
    assert seen == [(k, 6) for k in range(1, 7)]


def test_flows_are_not_lowered() -> None:
    theory = mean_field(isotropic(data="population", branch=beta, rule="flow"))
    limit = layer_time(rescale(cross_layer(theory), beta), Scaling({beta: beta0 / sqrt(L)}))
    with pytest.raises(NotLowered):
        lower_layer_time(limit)


@pytest.mark.slow
def test_a_small_kernel_is_as_exact_as_a_large_one() -> None:
    """The iteration in layer time stopped at changes of 1e-12, whatever the size of its numbers."""

    def limit(scale: float) -> DepthLimit:
        tables = {"network": {"depth": "L", "branch": 1.0}}
        tables["training"] = {"learning_rate": 0.3 / scale, "steps": 1}
        kernel, targets = scale * np.array([[1.0, 0.3], [0.3, 1.0]]), scale**0.5 * np.array([1.0, -0.8])
        return solve_depth_limit(Experiment.from_dict(tables, kernel=kernel, targets=targets), layers=4)

    large, small = limit(1.0), limit(1e-14)
    for name, power in (("f", 0.5), ("Phi", 1), ("G", 0)):
        tolerance = 1e-9 * np.abs(large[name]).max()
        np.testing.assert_allclose(small[name] / 1e-14**power, large[name], rtol=0, atol=tolerance)
