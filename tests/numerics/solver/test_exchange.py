"""Averages over exchangeable values: exact symmetry, the same theory, and none where data break it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sympy import S

import numerics
from derive.program import mlp
from derive.program.networks import committee
from derive.theory.exchange import IndexClass
from numerics.errors import Unserved
from numerics.experiment.problem import Problem
from numerics.experiment.schema import Solver
from numerics.solver.paths import march
from numerics.solver.paths.exchange import Orbits, _same, blocks_of
from numerics.solver.paths.instability import perturbations
from numerics.solver.paths.problem import prepared_for
from tests.chance import excess, in_errors
from tests.numerics.networks.attention import two_heads
from tests.numerics.networks.case import Case

GIVEN: dict[str, Any] = {"numbers": {"eta": 0.4}, "arrays": {}}


def brute(full: np.ndarray, kinds: str) -> np.ndarray:
    """Return the mean over all exchanges of the first two values of each index of kind "k", and of "m"."""
    for kind in "km":
        swapped = full
        for axis in [k for k, x in enumerate(kinds) if x == kind]:
            swapped = np.take(swapped, [1, 0, *range(2, full.shape[axis])], axis=axis)
        full = (full + swapped) / 2
    return full


@pytest.mark.parametrize("kinds", ["kk", "km", "kmk", "akk", "kkm"])
def test_orbits_are_means_over_permutations(kinds: str) -> None:
    rng = np.random.default_rng(0)
    full = rng.normal(size=(3,) * len(kinds))
    blocks = [np.arange(3) if x == "a" else np.array([0, 0, 2]) for x in kinds]
    orbits = Orbits.of(blocks, list(kinds), range(len(kinds)))
    assert orbits is not None
    np.testing.assert_allclose(orbits.averaged(full), brute(full, kinds), atol=1e-15)


@pytest.mark.parametrize("place", [(0, 0), (0, 1), (0, 2), (2, 1), (2, 2)])
def test_arrays_that_differ_at_one_place_are_told_apart(place: tuple[int, int]) -> None:
    array = np.ones((3, 3))
    assert _same(array, (0, 1), 0, 1)
    array[place] = 2.0
    assert _same(array, (0, 1), 0, 1) == (place == (2, 2))


def test_values_are_exchangeable_if_all_arrays_say_so() -> None:
    arrays = {"f": frozenset({"K", "y"}), "g": frozenset({"K"}), "h": frozenset({"K", "z"})}
    places = frozenset({("f", 0), ("K", 0), ("K", 1), ("y", 0)})
    found = IndexClass(places, S.One, S(3), arrays, frozenset())
    data = {"K": np.eye(3), "y": np.array([1.0, 2.0, 1.0])}
    labels = {name: blocks_of(found, name, 3, data).tolist() for name in "fghe"}
    assert labels == {"f": [0, 1, 0], "g": [0, 0, 0], "h": [0, 1, 2], "e": [0, 0, 0]}


def values_of(kernel: Any, targets: Any) -> str | None:
    """Return the exchangeable values of a perceptron on these samples."""
    given = {"numbers": {"eta": 0.1, "gamma0": 1.0}, "times": range(3)}
    arrays = {"K_x": np.array(kernel), "y": np.array(targets)}
    return prepared_for(Problem.of(mlp(1, "tanh"), arrays=arrays, **given)).exchangeable


@pytest.mark.slow
def test_data_decide_which_samples_are_exchangeable() -> None:
    one, near = np.eye(3), np.eye(3) + 0.5 * (np.ones((3, 3)) - np.eye(3))
    assert values_of(one, [1.0, 1.0, 1.0]) == "mu = 1, 2, 3"
    assert values_of(near, [1.0, -1.0, 1.0]) == "mu = 1, 3"
    assert values_of(near, [1.0, -1.0, 2.0]) is None
    near[0, 1] = near[1, 0] = 0.4
    assert values_of(near, [1.0, 1.0, 1.0]) == "mu = 1, 2"


@pytest.mark.slow
def test_order_parameters_are_symmetric_to_the_last_bit() -> None:
    prepared = prepared_for(Problem.of(committee(3, 2, ratio=1), times=range(7), **GIVEN))
    (found,) = prepared.batches([64] * 2, np.random.SeedSequence(0).spawn(2))
    order = [2, 0, 1]
    for name in ("C_v", "R_v_r_X", "R_g_u_X_v"):
        array = found[name, ()]
        assert np.array_equal(array, array[:, order][:, :, order]), name
    overlaps = found["C_vv_star", ()]
    assert np.ptp(overlaps, axis=(1, 2)).max() == 0
    assert np.abs(overlaps).max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("online", [False, True])
def test_averages_over_permutations_change_no_theory(online: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    program = committee(2, 2, ratio=1, online=online)
    given = GIVEN | {"times": range(9), "kernels": "full"}
    one = numerics.solve(program, **given, solver=Solver(samples=2**11, seed=1))
    monkeypatch.setattr(march, "orbits_of", lambda *_: {})
    other = numerics.solve(program, **given, solver=Solver(samples=2**11, seed=2))
    z = []
    for name in ("mse", "risk", "C_v", "C_vv_star", "G"):
        error = np.hypot(one[f"{name}_stderr"], other[f"{name}_stderr"])
        bias = sum(x.get(f"{name}_systematic", 0.0) for x in (one, other))
        gap = np.maximum(np.abs(one[name] - other[name]) - bias, 0.0)
        z.append(np.ravel(in_errors(gap.values, error.values)))
    assert excess(np.concatenate(z), one.attrs["replicas"] - 1) < 1


@pytest.mark.slow
def test_sampled_paths_stay_on_a_plateau_that_networks_leave() -> None:
    given = GIVEN | {"times": range(101), "kernels": "none"}
    found = numerics.solve(committee(ratio=1, online=True), **given, solver=Solver(samples=512))
    assert found.attrs["exchangeable"] == "k = 1, 2; m = 1, 2"
    assert "symmetric saddle: finite networks leave it" in found.attrs["saddle"]
    late = found.risk.values[60:]
    assert np.ptp(late) < 8 * found.risk_stderr.values[60:].max()
    assert late[-1] > 0.9 * late[0]


@pytest.mark.slow
def test_samples_that_come_again_have_no_plateau_that_networks_leave() -> None:
    given = GIVEN | {"times": range(41), "kernels": "none"}
    found = numerics.solve(committee(ratio=1), **given, solver=Solver(samples=512))
    assert found.attrs["exchangeable"] == "k = 1, 2; m = 1, 2"
    assert "saddle" not in found.attrs


@pytest.fixture(scope="module")
def equal_heads() -> Case:
    """Return two heads with equal offsets, whose theory has been read for sampled paths."""
    case = two_heads(1)
    equal = replace(case, arrays={**case.arrays, "offset": np.zeros((2, 2, 2))})
    prepared_for(Problem.of(equal.program, **equal.given), None)
    return equal


def test_a_perturbation_of_zero_has_no_growth(equal_heads: Case) -> None:
    problem = Problem.of(equal_heads.program, **equal_heads.given)
    with pytest.raises(Unserved, match="no noise at the start, so that nothing breaks the symmetry"):
        perturbations(problem, 256, 12)


@pytest.mark.slow
def test_growth_is_not_known_where_nothing_perturbs_the_start(equal_heads: Case) -> None:
    """Heads with equal offsets: a zero perturbation does not show its growth."""
    found = replace(equal_heads, steps=12, solver=Solver(samples=256), kernels="none").theory().attrs
    assert found["exchangeable"] == "e = 1, 2"
    assert "is not known, because the growth of perturbations cannot be measured" in found["saddle"]
    assert "saddle_growth" not in found


@pytest.mark.slow
def test_heads_with_other_offsets_are_at_no_saddle() -> None:
    found = replace(two_heads(12), solver=Solver(samples=256), kernels="none").theory().attrs
    assert not {"exchangeable", "saddle"} & found.keys()


@pytest.mark.slow
def test_perturbations_are_linear_in_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem.of(committee(ratio=1, online=True), times=range(21), **GIVEN)
    _, one = perturbations(problem, 128, 12)
    monkeypatch.setattr("numerics.solver.paths.instability.SHARE", 3e-8)
    np.testing.assert_allclose(perturbations(problem, 128, 12)[1], 3 * one, rtol=0.01)


@pytest.mark.parametrize("count", [25, pytest.param(97, marks=pytest.mark.slow)])
def test_growth_in_a_flow_does_not_depend_on_the_number_of_output_times(count: int) -> None:
    """A flow is marched on a coarse grid, whose gaps were paired with the first of all output times."""
    given = {"numbers": {}, "arrays": {}}
    times = np.linspace(0.0, 6.0, count)
    problem = Problem.of(committee(ratio=1, rule="flow"), times=times, **given)
    at, gaps = perturbations(problem, 64, 12)
    assert len(at) == gaps.shape[1] >= 12
    assert at[-1] == times[-1]
    assert set(at) <= set(times)
