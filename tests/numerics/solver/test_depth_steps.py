"""The first steps of deep residual networks: against the march, the closed form, and measured exponents."""

import numpy as np
import pytest

from derive.calculus.symbols import L, ell
from derive.depth import cross_layer
from derive.depth.balance import alpha, gamma
from derive.scale.depth import depth_first_step
from derive.scale.depth_steps import at_steps
from numerics.errors import Diverged
from numerics.solver.depth.frozen_ends import solve_frozen_ends
from tests.chance import excess
from tests.derive.once import depth_program, mean_field
from tests.ledger.evidence import depth_class_networks, depth_classes
from tests.ledger.evidence.depth_rows import DepthSolver, variance

VALUES = {"alpha": 0.7, "gamma": 0.4, "xi": 1.3}


@pytest.fixture(scope="module")
def solver():
    theory = mean_field(depth_program(alpha=alpha, gamma=gamma))
    return DepthSolver(at_steps(cross_layer(theory), 2), lambda t, f: f - 1.0)


@pytest.fixture(scope="module")
def found(solver):
    return solver(8, VALUES)


def test_equal_to_the_march(found):
    march = solve_frozen_ends([1.3] * 3, lambda t, f: f - 1.0, depth=8, alpha=0.7, gamma=0.4)
    for now in range(3):
        assert found[f"f_{now}"][()] == pytest.approx(march["f"][now], abs=1e-13)
        for past in range(now + 1):
            for name in ("C_x", "C_dx"):
                np.testing.assert_allclose(
                    found[f"{name}_{now}_{past}"], march[name][:, now, past], atol=1e-13
                )


@pytest.mark.slow
def test_equal_to_the_closed_form(found):
    form = depth_first_step(mean_field(depth_program(alpha=alpha, gamma=gamma)))
    numbers = {"alpha": 0.7, "gamma": 0.4, "xi": 1.3, "chi_0": float(found["chi_0"][()])}

    def value(e, layer):
        known = {x: numbers[x.name] for x in e.free_symbols if x.name in numbers}
        return float(e.subs(known).subs({L: 8, ell: layer}))

    assert value(form.output, 8) == pytest.approx(float(found["f_1"][()]), rel=1e-12)
    for layer in (1, 4, 8):
        assert value(form.start, layer) == pytest.approx(found["C_x_0_0"][layer], rel=1e-12)
        assert value(form.gradient, layer) == pytest.approx(found["C_dx_0_0"][layer], rel=1e-12)
        assert value(form.moved, layer) == pytest.approx(found["R_xV_1"][layer], rel=1e-12)
        step = (found["R_xV_1"][layer] - found["R_xV_1"][layer - 1]) / found["R_dxV_0"][layer]
        assert value(form.learnt, layer) == pytest.approx(step * 8**0.7, rel=1e-12)


def test_variances_of_combinations(found):
    assert variance(found, {(5, 2): 1.0}) == pytest.approx(found["C_x_2_2"][5], rel=1e-12)
    both = variance(found, {(5, 2): 1.0, (5, 1): -2.0})
    parts = found["C_x_2_2"][5] - 4 * found["C_x_2_1"][5] + 4 * found["C_x_1_1"][5]
    assert both == pytest.approx(parts, rel=1e-12)
    form = variance(found, {(6, 0): 1.0, (3, 0): -1.0})
    assert form == pytest.approx(found["C_x_0_0"][6] - found["C_x_0_0"][3], rel=1e-12)


def test_what_diverges_is_reported(solver):
    with pytest.raises(Diverged):
        solver(64, {"alpha": -4.0, "gamma": -200.0, "xi": 1.3})
    with pytest.raises(KeyError, match="xi"):
        solver(4, {"alpha": 0.5, "gamma": 0.5})


@pytest.mark.slow
@pytest.mark.parametrize("point", [("1", "1/2"), ("3/2", "-1/2")])
def test_measured_exponents(point):
    """The small sibling of the evidence: 8 to 32 layers, one step."""
    expected = depth_classes.classify(*point).exponents
    for (name, _), slope in depth_classes.measured(point, 1, (4, 8, 16, 32)).items():
        assert slope == pytest.approx(float(expected[depth_classes.QUANTITIES[name]]), abs=0.03), name


@pytest.mark.slow
def test_wrong_exponents_are_noticed():
    """Exponents of one point differ from those of the next one by more than the tolerance."""
    slope = depth_classes.measured(("1", "1/2"), 1, (8, 16, 32))["f", 1]
    assert abs(slope - float(depth_classes.classify("1", "1/4").exponents["output"])) > 0.2


def test_extrapolation_is_exact_for_polynomials():
    z = [1 / d for d in (2, 4, 8)]
    assert depth_classes.at_zero([3 + x - 5 * x**2 for x in z], z) == pytest.approx(3.0)


@pytest.mark.slow
def test_networks_of_a_few_layers_move_as_counted():
    """The small sibling of the evidence on networks: f_1 - f_0 between 8 and 32 layers."""
    value, error, _ = depth_class_networks.network_exponents(("1/2", "1"), depths=(8, 32), width=64, seeds=24)
    expected = np.array([-0.5, -1.5])  # two depths alone: 0.15 is left to the next orders
    gaps = np.maximum(np.abs(value[[0, 4]] - expected) - 0.15, 0)
    assert excess(gaps / error[[0, 4]], 23) < 1
    assert error[0] < 0.1
