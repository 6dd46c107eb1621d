"""Powers of width and depth of every optimiser, measured on finite networks within their fit errors."""

from functools import lru_cache

import numpy as np
import pytest
from sympy import Rational, S

from derive.depth.balance import alpha, gamma
from derive.program import depth_program
from derive.program.networks.gains import mlp_with_gains
from derive.scale.depth import DepthParametrization
from derive.scale.optimizer_depth import CONSTANT_EPSILON as AT_ALL_DEPTHS
from derive.scale.optimizer_depth import depth_faults, depth_powers
from derive.scale.optimizer_powers import (
    CONSTANT_EPSILON,
    CONSTANT_RATE,
    LEARNING,
    OPTIMIZERS,
    SPECTRAL,
    TANGENT,
    kinds_of,
    optimizer_powers,
    scaling_faults,
)
from tests.chance import excess
from tests.derive.once import mean_field
from tests.derive.scale.optimizer_networks import RULES, Perceptrons, Residual, measured, paired_slope, slope

WIDTHS, DEPTHS = (64, 128, 256, 512), (4, 8, 16, 32, 64)
STEPS = 3
PRECISE = 0.1
"""The largest error with which powers that differ by 1/2 are told apart by five errors."""
CODES = {"input": 0, "hidden": 0, "readout": 1, "bias": 0, "gain": 0}
ROOTS = {"input": 0, "hidden": Rational(1, 2), "readout": 1, "bias": 0, "gain": Rational(1, 2)}
"""Multipliers: those of codes with muP, and roots of N in front of matrices and gains."""


@lru_cache
def table(name, corner=LEARNING):
    program = mlp_with_gains(rule=OPTIMIZERS[name])
    spectral = [w for w, kind in kinds_of(program).items() if kind == "hidden"] if name in SPECTRAL else ()
    return optimizer_powers(program, corner, spectral=spectral)


def trained(name, exponents, networks=64, steps=STEPS, **options):
    """Return slopes of root mean squares with their errors, of networks at several widths."""
    numbers = {k: float(v) for k, v in exponents.items()}
    widths = WIDTHS[:3] if name in SPECTRAL else WIDTHS  # singular values of wide matrices take long

    def make(n):
        return Perceptrons(n, max(8, networks * WIDTHS[0] // n), numbers, name, **options)

    return {what: slope(widths, x) for what, x in measured(make, widths, steps).items()}


def held(found, expected):
    """Require that slopes are the counted ones, within errors that distinguish powers."""
    assert expected.keys() <= found.keys()
    z = {what: (found[what][0] - float(power)) / found[what][1] for what, power in expected.items()}
    assert excess(list(z.values()), dof=7) <= 1, z
    assert max(found[what][1] for what in expected) < PRECISE, found


def counted(name, corner, scales):
    """Return powers of gradients, of changes by each weight, and of all changes."""
    rows = table(name, corner).rows
    fields = {LEARNING: S.Zero, TANGENT: -S.Half}[corner]
    found = {f"gradient {x.weight}": x.at(scales[x.kind]).gradient for x in rows}
    found |= {f"move by {x.weight}": S.Zero if x.kind == "readout" else fields for x in rows}
    return found | {"change of h1": fields, "change of h2": fields, "change of f": S.Zero}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "scales"), [*((name, CODES) for name in RULES), *((name, ROOTS) for name in ("sgd", "adamw"))]
)
def test_fields_move_by_order_one_at_every_width(name, scales):
    found = trained(name, table(name).exponents(scales), networks=160 if name in SPECTRAL else 64)
    held(found, counted(name, LEARNING, scales))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgd", "adamw", "lion"])
def test_normalised_layers_have_the_same_powers(name):
    held(trained(name, table(name).exponents(CODES), normalised=True), counted(name, LEARNING, CODES))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgd", "sign", "adam"])
def test_features_move_by_the_root_in_the_neural_tangent_corner(name):
    """Without decay, which moves fields by the share of the weights that is lost."""
    found = trained(name, table(name, TANGENT).exponents(CODES), networks=300, decay=0.0)
    held(found, counted(name, TANGENT, CODES))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adam", "rmsprop"])
def test_a_constant_epsilon_freezes_what_was_counted(name):
    """With an epsilon a hundred times larger, so that it exceeds gradients at the smallest width."""
    right = table(name).exponents(CODES)
    wrong = {k: S.Zero if k.startswith("e_") else x for k, x in right.items()}
    faults = {x.weight: x.power for x in scaling_faults(table(name), CODES, [CONSTANT_EPSILON])}
    assert set(faults.values()) == {S.NegativeOne}
    held(trained(name, wrong, epsilon=10.0), {f"move by {w}": p for w, p in faults.items()})


@pytest.mark.slow
def test_a_constant_rate_moves_fields_as_was_counted():
    right = table("adam").exponents(CODES)
    wrong = {k: S.Zero if k.startswith("c_") else x for k, x in right.items()}
    faults = {x.weight: x.power for x in scaling_faults(table("adam"), CODES, [CONSTANT_RATE])}
    assert faults["W1"] == 1
    found = trained("adam", wrong, steps=1)
    held(found, {f"move by {w}": p for w, p in faults.items() if w in ("W0", "W1")})


# -- depth -------------------------------------------------------------------------------------------------


@lru_cache
def network():
    return DepthParametrization(mean_field(depth_program(alpha=alpha, gamma=gamma)))


def deep(name, value, powers, normalised=False, epsilon=0.1):
    numbers = {k: float(x) for k, x in powers.items() if x is not None}

    def make(n):
        return Residual(n, 64, 16, float(value), numbers, name, normalised, epsilon)

    return {what: paired_slope(DEPTHS, x, -1.0) for what, x in measured(make, DEPTHS, STEPS).items()}


DEEP = [name for name in RULES if name not in SPECTRAL]


@pytest.mark.slow
@pytest.mark.parametrize("normalised", [False, True], ids=["plain", "normalised"])
@pytest.mark.parametrize("value", [S.Half, S.One], ids=["root", "one"])
@pytest.mark.parametrize("name", DEEP)
def test_streams_move_by_order_one_at_every_depth(name, value, normalised):
    powers = depth_powers(network(), OPTIMIZERS[name]).at(value)
    found = deep(name, value, powers.powers, normalised)
    expected = {"gradient": powers.gradient, "change of x": 0, "change of f": 0, "inside": powers.inside}
    held(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("value", [S.Half, S.One], ids=["root", "one"])
def test_a_constant_epsilon_freezes_branches_of_deep_networks(value):
    rule = OPTIMIZERS["adam"]
    powers = depth_powers(network(), rule).at(value).powers | {"epsilon": S.Zero}
    assert depth_faults(network(), rule, value)[AT_ALL_DEPTHS].endswith(f"by L^({-value})")
    held(deep("adam", value, powers, epsilon=10.0), {"change of x": -value, "change of f": -value})


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_branches_without_a_factor_are_those_with_a_root_if_streams_are_normalised(name):
    """Streams times ``L^-1/2`` are read alike, so that ``alpha = 0`` is 1/2 with a smaller input."""
    powers = {"rate": -0.5, "epsilon": -0.5}
    plain, root = (Residual(8, 16, 2, value, powers, name, normalised=True) for value in (0.0, 0.5))
    root.ends = root.ends[0] * 8**-0.5, root.ends[1]
    first, second = (x.sizes(STEPS) for x in (plain, root))
    for what in ("gradient", "inside", "change of f"):
        np.testing.assert_allclose(first[what], second[what], rtol=1e-9)
    np.testing.assert_allclose(first["change of x"], second["change of x"] * 8**0.5, rtol=1e-9)


def test_slopes_are_those_of_powers():
    """Noise of a tenth around powers: the fit finds them within its errors."""
    rng = np.random.default_rng(1)
    sizes = (8, 16, 32, 64)
    noisy = [n**-0.5 * np.exp(0.1 * rng.standard_normal(40)) for n in sizes]
    for value, error in (slope(sizes, noisy), paired_slope(sizes, noisy, -1.0)):
        assert excess((value + 0.5) / error, dof=39) <= 1
        assert error < PRECISE
