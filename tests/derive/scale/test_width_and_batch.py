"""Tests of the sign of the loss's derivative in width and batch, and of where it changes.

Deep linear networks on isotropic data; ``nu = N/D``, ``alpha_B = B/D``.
"""

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sympy import Poly, Symbol, cancel, factor

from derive.program import L, eta, gamma0
from derive.program.networks.random_data import alpha_B, nu
from derive.scale.lazy import k, remaining
from numerics.experiment import Experiment
from numerics.simulation import simulate
from numerics.solver import solve
from tests.chance import excess, in_errors
from tests.derive.once import few_steps, first_step, isotropic, lazy_steps, mean_field

Array = NDArray[np.float64]
width, batch = Symbol("w", positive=True), Symbol("b", positive=True)
INVERSE = {nu: 1 / width, alpha_B: 1 / batch}
"""The inverse width and batch as symbols."""

# numbers of an experiment, two widths or batches, and the step at which the larger one is worse
WIDER = ({"depth": 1, "gamma0": 4.0, "rate": 0.28}, ({"width": 0.5}, {"width": 2.0}), 3)
UNCENTRED = (
    {"depth": 1, "gamma0": 0.2, "rate": 0.02, "center": False},
    ({"width": 0.25}, {"width": 0.5}),
    30,
)
LARGER = ({"depth": 2, "gamma0": 2.0, "rate": 0.317, "width": 3.0}, ({"batch": 4.0}, {"batch": None}), 4)


def experiment(  # noqa: PLR0913 (the settings of one experiment)
    depth: int = 1,
    gamma0: float = 1.0,
    rate: float = 0.02,
    width: float = 1.0,
    batch: float | None = None,
    steps: int = 40,
    center: bool = True,
    noise: float = 0.0,
) -> Experiment:
    rule, data = ("sgd", {"batch_ratio": batch}) if batch else ("gd", {})
    return Experiment.from_dict(
        {
            "network": {"depth": depth, "gamma0": gamma0, "width_ratio": width},
            "data": {"kind": "isotropic", "noise": noise, **data},
            "training": {"rule": rule, "learning_rate": rate, "steps": steps, "center": center},
        }
    )


def losses(**numbers: Any) -> Array:
    """Return the solved test loss at every step."""
    found: Array = solve(experiment(**numbers), kernels="none").test_loss.values
    return found


def test_the_first_step_is_better_for_wide_layers_and_large_batches() -> None:
    """At every depth and rate: all terms with ``1/nu`` or ``1/alpha_B`` have positive coefficients."""
    step = first_step(mean_field(isotropic(data="online", center=True)))
    growth = step.growth_factor.subs(INVERSE).expand()
    terms = Poly(growth, width, batch, eta, L).terms()
    worse = [(powers, c) for powers, c in terms if powers[0] or powers[1]]
    assert len(worse) > 4
    assert all(c > 0 for _, c in worse)
    assert {powers[2] for powers, _ in worse} == {2}


def test_the_first_effect_of_features_contains_no_width() -> None:
    """After two steps: ``gamma0^2`` comes with ``eta^3`` and no ``nu``, ``1/nu`` with ``eta^2``."""
    second = few_steps(mean_field(isotropic(1, data="population", center=True)), 2, order=(eta, 3)).values[2]
    found = second.expand()
    assert found.coeff(gamma0, 2) == -8 * eta**3
    assert found.coeff(gamma0, 0).coeff(eta, 2).coeff(nu, -1) == 6


def test_an_initial_function_is_forgotten_sooner_by_narrow_layers() -> None:
    """Its part of the loss rises with nu for rates above ``nu/4(1 + nu)``, to first order in the rate."""
    step = few_steps(mean_field(isotropic(1, data="population")), 1, order=(eta, 1)).values[1]
    part = step.expand().coeff(gamma0, -2)
    assert cancel(part - (1 - 2 * eta * (2 + 1 / nu)) / nu) == 0
    assert cancel(part.diff(nu).subs(eta, nu / (4 * (1 + nu)))) == 0


@pytest.mark.slow
def test_two_steps_of_every_depth_are_better_for_wide_layers_and_large_batches() -> None:
    """To order ``eta^2``, at any gamma0; higher orders are smaller."""
    second = few_steps(mean_field(isotropic(data="online", center=True)), 2, order=(eta, 2)).values[2]
    terms = Poly(second.subs(INVERSE).expand(), width, batch, eta, L).terms()
    worse = [c for powers, c in terms if powers[0] or powers[1]]
    assert worse
    assert all(c > 0 for c in worse)
    assert gamma0 not in second.free_symbols


@pytest.mark.slow
def test_lazy_losses_fall_with_the_batch_at_every_rate() -> None:
    """``C_v(t)`` is a polynomial in ``1/alpha_B`` whose coefficients are sums of averages of squares."""
    lazy = lazy_steps(mean_field(isotropic(1, data="online", center=True)), 2)
    by_batch = Poly(lazy.loss(2).subs(alpha_B, 1 / batch), batch)
    again, now = lazy.average(k**2 * remaining), lazy.average(k**2)
    kicked = 2 * lazy.average(remaining) * now  # from the first step and from the second, and once from both
    assert by_batch.degree() == 2
    assert cancel(by_batch.nth(2) - eta**4 * now**2) == 0
    assert cancel(by_batch.nth(1) - eta**2 * (again + kicked / 2)) == 0


def test_lazy_spectra_are_sums_over_as_many_directions_as_units() -> None:
    """Free cumulants go like ``nu^(1 - n)``: the law of ``1 + sum_i (d_i/nu) w_i w_i^T`` with any d.

    The average over which unit is left out is the same sum.  So averages of convex functions of the spectrum
    fall with the width (Jensen): without noise of batches wider is better at every step and rate.
    """
    found = lazy_steps(mean_field(isotropic(1, data="population", center=True)), 2).free_cumulants
    assert [cancel(x * nu ** (n - 1)) for n, x in enumerate(found, 1)] == [2, 1, 1, 1]


@pytest.mark.slow
def test_lazy_spectra_of_every_depth_are_such_sums() -> None:
    """The ``c_n = <d^n>`` are moments of a positive number: their Hankel determinant is positive."""
    found = lazy_steps(mean_field(isotropic(data="online", center=True)), 2).free_cumulants
    assert all(cancel(x * nu ** (n - 1)).free_symbols == {L} for n, x in enumerate(found, 1))
    c = [found[0] - 1, *(cancel(x * nu**n) for n, x in enumerate(found[1:], 1))]
    determinants = Poly(factor(c[0] * c[2] - c[1] ** 2), L), Poly(factor(c[1] * c[3] - c[2] ** 2), L)
    assert all(x.eval(depth) >= 0 for x in determinants for depth in range(1, 100))


@pytest.mark.parametrize("batch", [None, 0.5])
def test_solved_lazy_losses_fall_with_the_width(batch: float | None) -> None:
    found = [losses(gamma0=0.05, width=w, batch=batch) for w in (0.25, 1.0, 4.0)]
    assert all(np.all(narrow[1:] > wide[1:]) for narrow, wide in pairwise(found))


def test_the_coefficient_of_features_turns_its_sign_in_time() -> None:
    """That of ``gamma0^2`` favours wide layers at first, and narrow ones later."""

    def coefficient(width: float) -> Array:
        low, high = (losses(gamma0=x, rate=0.02, width=width, steps=80) for x in (0.02, 0.04))
        return (high - low) / (0.04**2 - 0.02**2)

    gap = coefficient(4.0) - coefficient(1.0)
    assert gap[8] < 0 < gap[70]


def test_label_noise_leaves_rich_wide_networks_a_little_more() -> None:
    given = {"gamma0": 4.0, "rate": 0.05, "batch": 2.0, "noise": 0.7, "steps": 60}
    narrow, wide = (losses(**given, width=w)[-1] for w in (0.5, 8.0))
    assert 1.001 < wide / narrow < 1.01


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.01, 0.05, 0.1])
def test_solved_lazy_losses_fall_with_the_width_at_large_rates(rate: float) -> None:
    """With noise of batches and of labels; not proved."""
    for depth, batch, noise in product((1, 2), (0.3, 2.0), (0.0, 0.7)):
        given = {"depth": depth, "batch": batch, "noise": noise, "rate": rate, "steps": 60}
        rows = [losses(**given, gamma0=0.05, width=w) for w in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)]
        for narrow, wide in pairwise(rows):
            assert np.all(wide <= narrow + 1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2])
def test_solved_losses_fall_with_width_and_batch_at_small_rates(depth: int) -> None:
    """Centred networks in mean-field units, lazy and rich, to losses of 1e-10; not proved."""
    widths, batches = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0), (0.5, 1.0, 2.0, 4.0, None)
    for strength in (0.05, 0.5, 1.0, 2.0, 4.0):
        given = {"depth": depth, "gamma0": strength, "steps": 120}
        rows = [[losses(**given, width=w, batch=b) for w in widths] for b in (0.5, 2.0, None)]
        rows += [[losses(**given, width=w, batch=b) for b in batches] for w in (0.5, 3.0)]
        for small, large in (pair for row in rows for pair in pairwise(row)):
            assert np.all(large <= small + 1e-10)


@pytest.mark.parametrize(("given", "pair", "step"), [WIDER, UNCENTRED, LARGER])
def test_solved_losses_that_grow_with_width_or_batch(given: Any, pair: Any, step: int) -> None:
    """Rich networks at large rates, and those whose large initial function is not subtracted."""
    small, large = (losses(**given, **x, steps=step)[step] for x in pair)
    assert large > 1.1 * small


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "pair", "step", "inputs", "seeds"), [(*WIDER, 256, 1200), (*UNCENTRED, 256, 200)]
)
def test_networks_whose_losses_grow_with_width(
    given: Any, pair: Any, step: int, inputs: int, seeds: int
) -> None:
    """Networks of D and 2 D inputs, extrapolated."""
    values, errors = [], []
    for x in pair:
        e = experiment(**given, **x, steps=step)
        theory = float(solve(e, kernels="none").test_loss[step])
        (few, few_error), (many, many_error) = (
            trained(e, int(x["width"] * n * inputs), seeds // n) for n in (1, 2)
        )
        values.append(2 * many - few)
        errors.append(np.hypot(2 * many_error, few_error))
        assert excess(in_errors(values[-1] - theory, errors[-1]), seeds // 2 - 1) < 1
    assert values[1] - values[0] > 4 * np.hypot(*errors)


@pytest.mark.slow
def test_networks_whose_losses_grow_with_the_batch() -> None:
    given, pair, step = LARGER
    (small, error), (large, other) = (trained(experiment(**given, **x, steps=step), 1024, 160) for x in pair)
    assert large - small > 5 * np.hypot(error, other)


def trained(e: Experiment, width: int, seeds: int) -> tuple[float, float]:
    """Return the last test loss of networks, and its standard error."""
    run = simulate(e, width=width, seeds=seeds, rng=width, kernels="none").isel(time=-1)
    return float(run.test_loss), float(run.test_loss_stderr)
