"""Tests of statements of arXiv:2304.03408, as the page on networks of finite width assesses them."""

from __future__ import annotations

import numpy as np
import pytest
from sympy import simplify

from derive.program import isotropic, mlp
from derive.scale.fluctuations import one_layer_flow
from numerics.fluctuations import finite_width

ONE = {"K_x": [[1.0]], "y": [1.0]}


def test_feature_learning_lowers_the_variance_of_the_final_kernel() -> None:
    """It falls with gamma0 if the initial output stays in."""
    gamma0 = next(
        x
        for x in one_layer_flow(mlp(1, rule="flow")).kernel_variance_at_end.free_symbols
        if x.name == "gamma0"
    )
    variance = one_layer_flow(mlp(1, rule="flow")).kernel_variance_at_end
    unit = variance.subs({x: 1 for x in variance.free_symbols if x.name in ("K_x", "y")})
    assert simplify(unit - 4 / (1 + gamma0**2)) == 0


def test_learning_on_a_population_is_slower_at_finite_width() -> None:
    """The mean loss lies above its limit for independent inputs of a fixed number of dimensions."""
    arrays = {"K_x": np.eye(3), "y": [1.0, 0.5, -0.5]}
    found = finite_width(mlp(1), numbers={"eta": 0.1, "gamma0": 1.0}, arrays=arrays, times=range(4))
    assert (np.diff(found.train_loss.values) < 0).all()
    assert (found.train_loss_shift.values > 0).all()


def test_online_learning_in_many_dimensions_is_faster_at_first() -> None:
    """The mean test loss lies below its limit in the first steps, and above it later."""
    sizes = {"nu": 1.0, "alpha_B": 2.0, "eta": 0.05, "gamma0": 1.0}
    shift = finite_width(isotropic(1, data="online"), numbers=sizes, times=range(9)).test_loss_shift.values
    assert shift[2] == pytest.approx(-0.181, abs=1e-3)
    assert (shift[1:5] < 0).all()
    assert shift[8] > 0


def test_the_variance_of_the_kernel_grows_with_the_depth_and_in_training() -> None:
    """Relative to the square of the kernel it is linear in the number of layers at the start."""
    relative = []
    for depth in (1, 2, 3):
        numbers = {"eta": 0.05, "gamma0": 1.0}
        found = finite_width(mlp(depth), numbers=numbers, arrays=ONE, times=range(2))
        variance = found.tangent_kernel_variance.values.ravel()
        relative.append(variance[0] / (depth + 1) ** 2)
        assert (np.diff(variance) > 0).all()
    assert np.diff(relative, 2) == pytest.approx(0, abs=0.2)


@pytest.mark.parametrize("gamma0", [0.3, 1.0, 2.0])
def test_bias_and_variance_of_the_error_are_positive(gamma0: float) -> None:
    numbers = {"eta": 0.08, "gamma0": gamma0}
    found = finite_width(mlp(2), numbers=numbers, arrays=ONE, times=range(6))
    assert (found.train_loss_shift.values > 0).all()
    assert (found.error_variance.values > 0).all()


def test_lazy_kernels_scatter_but_do_not_move() -> None:
    """At small gamma0 the variance of the kernel is constant, and so is that of the error times gamma0^2."""
    numbers = {"eta": 0.1, "gamma0": 1e-3}
    found = finite_width(mlp(1), numbers=numbers, arrays=ONE, times=range(6))
    kernel = found.tangent_kernel_variance.values.ravel()
    assert kernel == pytest.approx(np.full(6, 4.0), rel=1e-4)
    decay = (1 - 0.1 * 2.0) ** (2 * np.arange(6.0))
    assert found.f_variance.values[:, 0] * 1e-6 == pytest.approx(decay, rel=1e-4)
