"""The first correction to infinite depth as numbers: against solved networks that get deeper."""

from functools import cache
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest
from sympy import Rational, sqrt

from derive.calculus.symbols import L
from derive.depth import Scaling, cross_layer, infinite_depth, layer_time, rescale
from derive.errors import NotApplicable
from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.experiment.theory import beta
from numerics.lowering.layer_time import lower_layer_time
from numerics.simulation import simulate_program
from numerics.solver import solve
from numerics.solver.depth import (
    DepthCorrection,
    LayerDistances,
    layer_distances,
    solve_depth_correction,
)
from numerics.solver.depth.frozen_ends import (
    exact_power,
    frozen_ends_correction,
    solve_frozen_ends,
    solve_frozen_ends_correction,
)
from numerics.solver.depth.layer_grid import solve_layer_grid
from numerics.solver.depth.solve import DepthLimit, beta0
from tests.chance import excess
from tests.derive.once import depth_program, mean_field, mlp
from tests.ledger.evidence.depth_correction import in_powers

DEPTHS = (4, 8, 16)
INPUTS, TARGETS = (1.0, 0.6, 0.8), (0.9, -0.4, 0.7)


def slope(step: int, f: float) -> float:
    return f - TARGETS[step]


@cache
def two_steps() -> DepthCorrection:
    """Return the correction of frozen ends at one half, after the first step."""
    return solve_frozen_ends_correction(INPUTS[:2], slope, lambda t, f: 1.0, layers=12)


def isotropic(depth: int | str, steps: int = 2, **training: Any) -> Experiment:
    branch = 0.7 if depth == "L" else 0.7 / np.sqrt(float(depth))
    return Experiment.from_dict(
        {
            "network": {"depth": depth, "branch": branch, "gamma0": 0.8, "width_ratio": 2.0},
            "data": {"kind": "isotropic"},
            "training": {"learning_rate": 0.03, "steps": steps, **training},
        }
    )


def fixed(depth: int | str) -> Experiment:
    branch = 0.7 if depth == "L" else 0.7 / np.sqrt(float(depth))
    network = {"depth": depth, "branch": branch, "gamma0": 0.8}
    training = {"learning_rate": 0.1, "steps": 3}
    inputs = [[1.0, 0.3], [-0.4, 0.8]]
    return Experiment.from_dict(
        {"network": network, "training": training}, inputs=inputs, targets=[1.0, -0.5]
    )


@pytest.mark.slow
@pytest.mark.parametrize(("build", "name"), [(isotropic, "test_loss"), (fixed, "train_loss")])
def test_the_loss_of_deep_networks_has_the_derived_coefficient(build: Any, name: str) -> None:
    found = solve_depth_correction(build("L"), layers=12)
    limit, first = found.limit[name], found.first[name]
    rows = [n * (solve(build(n))[name].values - limit) for n in DEPTHS]
    measured = in_powers(DEPTHS, rows, -1.0)[0]
    near = float(np.max(np.abs(measured - first)))
    far = float(np.max(np.abs(rows[-1] - first)))
    assert near < 0.01 * float(np.max(np.abs(first)))
    assert far > 5 * near  # a wrong coefficient would not be what deeper networks come closer to
    assert found.first.errors[name] < 1e-4


@pytest.mark.slow
def test_layers_have_their_own_corrections() -> None:
    found = solve_frozen_ends_correction(INPUTS, slope, lambda t, f: 1.0, layers=16)
    at = found.limit["C_dx"].shape[0] // 2
    rows = [
        n * (solve_frozen_ends(INPUTS, slope, depth=n)["C_dx"][n // 2] - found.limit["C_dx"][at])
        for n in DEPTHS
    ]
    gap = np.abs(in_powers(DEPTHS, rows, -1.0)[0] - found.first["C_dx"][at])
    assert float(np.max(gap)) < 0.03 * float(np.max(np.abs(found.first["C_dx"][at])))


@pytest.mark.slow
def test_the_loss_at_the_start_has_its_coefficient_by_hand() -> None:
    """1 + (1 + beta0^2/L)^(L-1) / (nu gamma0^2): exp(b) (1 - (b + b^2/2)/L) with b = beta0^2."""
    found = solve_depth_correction(isotropic("L", 1), layers=4)
    b, share = 0.7**2, np.exp(0.7**2) / (2.0 * 0.8**2)
    assert found.limit["test_loss"][0] == pytest.approx(1 + share, rel=1e-6)
    assert found.first["test_loss"][0] == pytest.approx(-share * (b + b**2 / 2), rel=1e-4)


@pytest.mark.slow
def test_the_first_step_is_that_of_the_closed_form() -> None:
    """f_1 = -xi_0 xi_1 chi_0 (1 + 1/L)**(L - 1) by hand: e (1 - 3/(2 L))."""
    found = two_steps()
    size = INPUTS[0] * INPUTS[1] * TARGETS[0] * np.e
    assert found.limit["f"][1] == pytest.approx(size, abs=1e-5)
    assert found.first["f"][1] == pytest.approx(-1.5 * size, abs=1e-4)
    finite = solve_frozen_ends(INPUTS[:2], slope, depth=8)["f"][1]
    assert finite == pytest.approx(size / np.e * (1 + 1 / 8) ** 7, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "order"), [(0.75, -0.5), (1.0, -1.0)])
def test_above_one_half_the_noise_vanishes_as_derived(alpha: float, order: float) -> None:
    kind = {"alpha": alpha, "gamma": 1 - alpha}
    found = solve_frozen_ends_correction(INPUTS, slope, lambda t, f: 1.0, layers=8, **kind)
    assert found.order == pytest.approx(order)
    rows = [
        (solve_frozen_ends(INPUTS, slope, depth=n, **kind)["f"] - found.limit["f"]) * n**-order
        for n in DEPTHS
    ]
    measured = in_powers(DEPTHS, rows, order)[0]
    np.testing.assert_allclose(measured, found.first["f"], atol=0.03)
    assert found.first["f"][1] == pytest.approx(0.54, abs=1e-4)


def test_first_order_is_the_limit_and_its_share() -> None:
    found = two_steps()
    value = found.at_depth(10, "f")
    np.testing.assert_allclose(value, found.limit["f"] + found.first["f"] / 10)


@pytest.mark.parametrize(
    ("change", "key"),
    [({"network.depth": 4}, "network.depth"), ({"training.rule": "flow", "training.time": 1.0}, "training")],
)
def test_what_has_no_limit_is_refused(change: dict[str, Any], key: str) -> None:
    e = isotropic("L")
    if "training.rule" in change:
        e = Experiment.from_dict(
            {
                "network": {"depth": "L", "branch": 0.7, "width_ratio": 2.0},
                "data": {"kind": "isotropic"},
                "training": {"rule": "flow", "time": 1.0},
            }
        )
    else:
        e = e.replace(change)
    with pytest.raises(SpecError) as caught:
        solve_depth_correction(e)
    assert caught.value.key.startswith(key)


# -- diversity ---------------------------------------------------------------------------------------------


def _distances(alpha: float, steps: int = 3) -> Any:
    exact = exact_power(alpha)
    return layer_distances(
        frozen_ends_correction(exact, 1 - exact).limit,
        "C_x",
        layers=64,
        steps=steps,
        constants={},
        known={"xi": lambda step: np.asarray(INPUTS)[step], "dloss": slope},
    )


@pytest.mark.slow
def test_layers_are_rough_at_one_half_and_smooth_beyond() -> None:
    rough = _distances(0.5)
    slopes = rough.slopes(4)[1]
    assert np.all(np.abs(2 * slopes[:, 0] - slopes[:, 1] - 0.5) < 0.07)
    smooth = _distances(0.75).slopes(4)[1][1:]
    assert np.all(np.abs(smooth[:, 0] - 1.0) < 0.06)


def test_before_training_the_distance_is_that_of_a_brownian_path() -> None:
    """<(x(p) - x(q))**2> = exp(p) - exp(q), for p > q."""
    found = _distances(0.5, steps=1)
    e = np.exp(found.nodes)
    np.testing.assert_allclose(found.squares[0], np.abs(e[:, None] - e[None, :]), atol=1e-7)
    assert found.error < 1e-4


@pytest.mark.parametrize("node", [-1, 4, 5])
def test_distances_ahead_of_a_node_without_a_later_node_are_refused(node: int) -> None:
    """The last node raised OverflowError, and a negative one gave distances between other nodes."""
    distances = LayerDistances(np.linspace(0, 1, 5), np.ones((1, 5, 5)), 0.0, cast("Any", None))
    with pytest.raises(ValueError, match=f"^node = {node}: must be a node from 0 to 3"):
        distances.slopes(node)
    ahead, powers = distances.slopes(3)
    assert (ahead.tolist(), powers.shape) == ([0.25], (1, 0))


@pytest.mark.slow
def test_distances_are_those_of_networks() -> None:
    """Between layer times 1/4 and 3/4 at the second step, in networks extrapolated in the depth."""
    found = _distances(0.5, steps=2)
    size = len(found.nodes) - 1
    means, errors = [], []
    for depth, seeds in ((8, 300), (16, 300)):
        run = simulate_program(
            depth_program(depth),
            width=128,
            steps=1,
            seeds=seeds,
            values={},
            data={"xi": lambda k: np.asarray(INPUTS)[np.asarray(k, dtype=int)], "dloss": slope_of},
            seed=depth,
        )["C_x"]
        p, q = depth // 4, 3 * depth // 4
        means.append(run.mean[1, 1, p, p] + run.mean[1, 1, q, q] - 2 * run.mean[1, 1, p, q])
        errors.append(run.stderr[1, 1, q, q])
    value, error = 2 * means[1] - means[0], float(np.hypot(2 * errors[1], errors[0]))
    derived = found.squares[1, size // 4, 3 * size // 4]
    assert excess((value - derived) / error) < 1
    assert error < 0.1 * derived


def slope_of(step: Any, f: Any) -> Any:
    return f - np.asarray(TARGETS)[np.asarray(step, dtype=int)]


@pytest.mark.slow
def test_the_second_order_is_that_of_closed_forms_and_of_deep_networks() -> None:
    """<x x> = (1 + 1/L)**L at the start, f_1 goes like (1 + 1/L)**(L - 1); then against finite depth."""
    half = Rational(1, 2)
    cross = rescale(cross_layer(mean_field(depth_program())), L**-half)
    table = lower_layer_time(infinite_depth(cross, order=2).system)
    known = {"xi": lambda step: INPUTS[step], "dloss": slope, "ddloss": lambda t, f: 1.0}
    known |= {"dddloss": lambda t, f: 0.0}
    runs = [solve_layer_grid(table, layers=n, steps=3, constants={}, known=known) for n in (8, 16, 32)]

    def at_zero(values: list[np.ndarray]) -> np.ndarray:
        """Return the extrapolation of a series in the squared spacing."""
        once = [(4 * b - a) / 3 for a, b in pairwise(values)]
        return (16 * once[1] - once[0]) / 15

    start = at_zero([r["second_C_x"][-1, 0, 0] for r in runs])
    assert start == pytest.approx(np.e * (1 / 3 + 1 / 8), rel=1e-6)
    f = [at_zero([r[n + "f"] for r in runs]) for n in ("", "first_", "second_")]
    unit = INPUTS[0] * INPUTS[1] * TARGETS[0] * np.e
    assert f[2][1] == pytest.approx(unit * (5 / 6 + 9 / 8), rel=1e-6)
    depths = (8, 12, 16, 24, 32, 48)
    rows = [n**2 * (solve_frozen_ends(INPUTS, slope, depth=n)["f"] - f[0] - f[1] / n) for n in depths]
    assert in_powers(depths, rows, -1.0)[0] == pytest.approx(f[2], abs=3e-3)


@pytest.mark.slow
def test_the_third_order_beyond_one_half() -> None:
    """At alpha = 3/4 the unit is u = L^(-1/2): <x x> = (1 + u^3)^L = exp(u - ...), f_1 ~ <x x>/(1 + u^3)."""
    alpha = Rational(3, 4)
    theory = mean_field(depth_program(alpha=alpha, gamma=1 - alpha))
    found = infinite_depth(rescale(cross_layer(theory), L**-alpha), order=3)
    assert found.power == -Rational(1, 2)
    known = {"xi": lambda step: INPUTS[step], "dloss": slope, "ddloss": lambda t, f: 1.0}
    known |= {"dddloss": lambda t, f: 0.0, "ddddloss": lambda t, f: 0.0}
    table = lower_layer_time(found.system)
    runs = [solve_layer_grid(table, layers=n, steps=2, constants={}, known=known) for n in (8, 16)]

    def coefficients(name: str, *at: int) -> list[float]:
        heads = ("", "first_", "second_", "third_")
        return [float((4 * runs[1][n + name][at] - runs[0][n + name][at]) / 3) for n in heads]

    unit = INPUTS[0] * INPUTS[1] * TARGETS[0]
    assert coefficients("f", 1) == pytest.approx([unit, unit, unit / 2, -5 * unit / 6], abs=1e-12)
    assert coefficients("C_x", -1, 0, 0) == pytest.approx([1, 1, 1 / 2, 1 / 6], abs=1e-12)


def test_powers_that_share_no_unit_are_refused() -> None:
    alpha = Rational(5, 6)
    theory = mean_field(depth_program(alpha=alpha, gamma=1 - alpha))
    cross = rescale(cross_layer(theory), L**-alpha)
    assert infinite_depth(cross).power == -Rational(2, 3)
    with pytest.raises(NotApplicable, match=r"L\*\*\(-1\), which is not an integer power of L\*\*\(-2/3\)"):
        infinite_depth(cross, order=2)


def test_standard_errors_and_no_layers_have_no_value_at_a_depth() -> None:
    """Standard errors of both orders were added, and depth 0 divided by zero."""
    part = DepthLimit(4, np.zeros(1), {"f": np.ones(1), "f_stderr": np.ones(1)}, {})
    found = DepthCorrection(-1.0, part, part)
    assert found.at_depth(2, "f") == [1.5]
    with pytest.raises(SpecError, match='name = "f_stderr": is a standard error'):
        found.at_depth(2, "f_stderr")
    with pytest.raises(SpecError, match="depth = 0: must be positive"):
        found.at_depth(0, "f")


def test_responses_that_vanish_are_named_with_what_would_do() -> None:
    """They were to be rescaled, which they are."""
    with pytest.raises(
        NotApplicable, match=r"vanish in the limit, .* fall with a smaller power of the depth"
    ):
        solve_frozen_ends_correction(INPUTS, slope, lambda t, f: 1.0, layers=8, alpha=0.5, gamma=1.0)


def test_distances_of_given_samples_are_refused() -> None:
    """They ended in KeyError: 'K_x'."""
    theory = mean_field(mlp(L, branch=beta))
    limit = layer_time(rescale(cross_layer(theory), beta), Scaling({beta: beta0 / sqrt(L)}))
    with pytest.raises(SpecError, match='name = "H": has the indices mu, alpha of data'):
        layer_distances(limit, "H", layers=8, steps=2, constants={})
