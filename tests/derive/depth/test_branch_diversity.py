"""Neighbouring branches of deep nonlinear residual networks, for homogeneous activations."""

from functools import lru_cache

import numpy as np
import pytest
from sympy import Expr, Function, Max, Rational, Symbol, cos, pi, simplify, sin, symbols

from derive.depth.nonlinear import BranchDiversity, branch_diversity
from derive.errors import NotApplicable
from derive.program import ell, t
from derive.program.networks.residual import depth_program, nonlinear_program
from numerics.paths import Paths
from numerics.simulation import simulate_program
from tests.derive.once import mean_field

up, down = symbols("a b", real=True)
C = Function("C_x")(ell - 1, t, t)


def homogeneous(a: Expr, b: Expr, z: Expr) -> Expr:
    """Return ``a relu(z) + b relu(-z)``.

    It is linear for b = -a, relu for b = 0, the absolute value for b = a.
    """
    return a * Max(z, 0) + b * Max(-z, 0)


@lru_cache
def of_slopes() -> BranchDiversity:
    return branch_diversity(mean_field(nonlinear_program()), lambda z: homogeneous(up, down, z))


def test_gradients_of_branches_are_unaligned_for_the_absolute_value_alone() -> None:
    """The mean slope ``(a - b)/2`` is zero for a = b, and for no other homogeneous activation."""
    aligned = of_slopes().alignment
    assert simplify(aligned - (up - down) ** 2 / (2 * (up**2 + down**2))) == 0
    numbers = [aligned.subs({up: 1, down: x}) for x in (-1, 0, Rational(1, 2), 1)]
    assert numbers == [1, Rational(1, 2), Rational(1, 10), 0]


def test_the_absolute_value_has_the_smoothest_stream_at_given_mean_square_slope() -> None:
    """With a = cos x, b = sin x the roughness is least at a = b, and largest for the linear network."""
    x = Symbol("x", real=True)
    rough = simplify(of_slopes().roughness.subs({up: cos(x), down: sin(x)}) / C)
    assert simplify(rough - (Rational(1, 2) - (1 + sin(2 * x)) / (2 * pi))) == 0
    assert rough.diff(x).subs(x, pi / 4) == 0 == rough.diff(x).subs(x, -pi / 4)
    assert rough.diff(x, 2).subs(x, pi / 4) > 0 > rough.diff(x, 2).subs(x, -pi / 4)


def test_linear_layers_have_no_nonlinear_branch() -> None:
    with pytest.raises(NotApplicable, match="no nonlinear residual layers"):
        branch_diversity(mean_field(depth_program()))


@pytest.mark.slow
@pytest.mark.parametrize("b", [0.0, 0.5, 1.0])
def test_networks_have_the_derived_alignment_and_roughness(b: float) -> None:
    """Networks at initialisation; the correction at finite depth falls like 1/L and is extrapolated."""
    phi = Function("phi")
    found = []
    for depth, seed in ((16, 1), (32, 2)):
        program = nonlinear_program(depth).map(
            lambda e: e.replace(phi, lambda z: homogeneous(1, Rational(b), z)).doit() if e.has(phi) else e
        )
        run = simulate_program(
            program,
            width=400,
            steps=0,
            seeds=24,
            seed=seed,
            values={},
            data={"xi": np.ones(1), "dloss": lambda step, f: f - 1},
            each=True,
            paths=Paths(("b", "x")),
        )
        g, x = (run.paths[n].isel(time=0).transpose("run", ..., "unit").values for n in "bx")
        cosine = (g[:, 1:] * g[:, :-1]).mean(-1) / (g**2).mean(-1)[:, 1:]
        rough = depth * (np.diff(x, axis=1) ** 2).mean(-1) / (x[:, :-1] ** 2).mean(-1)
        each = np.stack([cosine.mean(1), rough.mean(1)])
        found.append((each.mean(1), each.std(1, ddof=1) / np.sqrt(each.shape[1])))
    (few, few_error), (many, many_error) = found
    value, error = 2 * many - few, np.hypot(2 * many_error, few_error)
    derived = of_slopes()
    expected = [derived.alignment, derived.roughness / C]
    theory = [float(e.subs({up: 1, down: Rational(b)})) for e in expected]
    assert np.all(np.abs(value - theory) < 4 * error)
    assert np.all(error < 0.03)
