"""Arguments of functions and methods: what is accepted, and what is refused in one sentence."""

from __future__ import annotations

import pytest
from sympy import Function, Integral, Symbol, exp, oo, symbols

from derive.errors import NotApplicable
from derive.program import eta
from derive.reduce.ridge import output_rate, rest_points
from derive.scale.fluctuations import initial_covariance
from derive.scale.mellin import mode_sum
from derive.scale.optimizer_powers import OPTIMIZERS, optimizer_powers
from derive.scale.power_counting import N, powers
from derive.show import latex
from tests.derive.once import expand_linear, few_steps, isotropic, mean_field, mlp

lam, T = symbols("lam T", positive=True)


def test_a_depth_beside_that_of_the_theory_is_refused() -> None:
    """The series of depth 3 was called one of depth 2."""
    series = expand_linear(mean_field(mlp(3, rule="flow")), 2)
    with pytest.raises(ValueError, match="depth = 2: the theory has 3 layers"):
        series.in_time(depth=2)
    assert series.in_time(depth=3).depth == 3


def test_programs_stand_for_their_theories() -> None:
    program = isotropic(1, data="population")
    assert few_steps(program, 1).values == few_steps(mean_field(program), 1).values
    decaying = mlp(1, rule="flow", weight_decay=lam)
    assert rest_points(decaying) == rest_points(mean_field(decaying))


def test_whole_decimal_numbers_are_steps_but_no_layers() -> None:
    steps = few_steps(mean_field(isotropic(1, data="population")), 1, order=(eta, 1))
    assert steps.growth_factor(1.0) == steps.growth_factor(1)
    with pytest.raises(IndexError, match=r"step = 1.5: values are known"):
        steps.growth_factor(1.5)
    with pytest.raises(KeyError, match=r"no equation for h\(2.0"):
        mean_field(mlp()).equation("h", 2.0)  # type: ignore[arg-type]


def test_symbolic_powers_of_two_tails_are_both_neglected() -> None:
    """Which of them is larger is not known, and max() raised TypeError."""
    p, q, x, y = symbols("p q x y", positive=True)
    error = mode_sum((1 + y) ** -p + (1 + y) ** -q, y, 2, 1, x).error
    assert {p, q} <= error.free_symbols
    assert error.subs({p: 1, q: 5}) == mode_sum((1 + y) ** -1, y, 2, 1, x).error
    assert mode_sum(exp(-y), y, 2, 1, x).error == -oo


def test_an_observable_at_time_zero_is_named_as_it_was_given() -> None:
    with pytest.raises(NotApplicable, match=r"^f\(0\): the index mu = 0 must be an integer from 1 to P"):
        initial_covariance(mlp(2), ("f", 0))
    with pytest.raises(TypeError, match="names no order parameter"):
        initial_covariance(mlp(2), ())


def test_an_integral_without_bounds_is_printed() -> None:
    """The printer called itself without end."""
    x = Symbol("x")
    assert latex(Integral(Function("f")(x), x)).startswith(r"\int f(x')")


def test_the_output_of_a_linear_network_with_noise_has_a_rate() -> None:
    """A backward field inside of a matrix product was taken for a skip connection; the curvature is zero."""
    rate = output_rate(mean_field(mlp(2, rule="flow", weight_decay=lam, temperature=T)))
    assert [x.rhs for x in rate.slopes] == [0, 0]
    assert rate.diffusion == 2 * T


def test_one_name_is_one_name() -> None:
    """The letters of a text were taken for names."""
    program = mlp(2, "tanh", rule=OPTIMIZERS["muon"])
    assert optimizer_powers(program, spectral="W").spectral == {"W"}


def test_a_power_of_the_width_has_an_exponent_without_it() -> None:
    with pytest.raises(NotApplicable, match="powers of the width N may be"):
        powers(N**N)
