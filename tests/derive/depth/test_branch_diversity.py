"""Neighbouring branches of deep nonlinear residual networks, for homogeneous activations."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pytest
from sympy import Expr, Function, Max, Rational, S, Symbol, cos, exp, pi, simplify, sin, sqrt, symbols, tanh

from derive.calculus.symbols import IndexRange
from derive.depth.nonlinear import BranchDiversity, branch_diversity, effective, with_activation
from derive.errors import NotApplicable
from derive.program import GradientDescent, L, ell, t
from derive.program.language import Field, GaussianMatrix, GaussianVector, Mean, Population
from derive.program.network import Network
from derive.program.networks.residual import depth_program, nonlinear_program
from derive.program.training import Gradient
from derive.theory import Theory
from numerics.paths import Paths
from numerics.simulation import simulate_program
from tests.derive.once import mean_field

up, down = symbols("a b", real=True)
C = Function("C_x")(ell - 1, t, t)
PHI = Function("phi")


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


@lru_cache
def plain(branch: Callable[[Expr], Expr] = PHI) -> Theory:
    """Return the theory of a residual network whose branch has no mean subtraction."""
    stream = Population("stream", shared=True)
    x, h, readout = (
        Field("x", stream, layered=True),
        Field("h", stream, layered=True),
        Field("readout", stream),
    )
    W = GaussianMatrix("W", stream.at(ell), stream.at(ell - 1), index=IndexRange(ell, S.One, L))
    U, V = (GaussianVector(n, stream, source=n) for n in "UV")
    f, xi = Function("f"), Function("xi")
    lines = {
        x(0, t): xi(t) * U.symbol,
        h(ell, t): W(ell) @ x(ell - 1, t),
        x(ell, t): x(ell - 1, t) + branch(h(ell, t)) / sqrt(L),
        readout(t): V.symbol,
        f(t): Mean(x(L, t) * readout(t)),
    }
    inside = IndexRange(ell, S.One, L)
    net = Network("plain", (x, h, readout), lines, (W,), (U, V), ranges=(inside,), depth=L)
    named = {"x": Gradient("dx"), "h": Gradient("b", normal=sqrt(L))}
    shown = {x(ell, t): "C_x", Function("dx")(ell, t): "C_dx"}
    return mean_field(
        net.train(f(t) ** 2 / 2, GradientDescent(S.One), gradients=named, notation=shown, together=True)
    )


def test_branches_with_a_mean_are_refused() -> None:
    """The mean of relu is the same in all layers, so that the stream drifts by ``sqrt(L)`` times it."""
    for activation in (None, lambda z: Max(z, 0)):
        with pytest.raises(NotApplicable, match=r"mean zero over the units, but .*subtract the mean"):
            branch_diversity(plain(), activation)
        with pytest.raises(NotApplicable, match="the stream then drifts from layer to layer"):
            effective(plain(), activation)


def test_odd_branches_have_no_mean_to_subtract() -> None:
    subtracted = branch_diversity(mean_field(nonlinear_program()), tanh)
    assert branch_diversity(plain(), tanh) == subtracted
    found, like = (
        effective(plain(), sin),
        with_activation(effective(mean_field(nonlinear_program())), sin),
    )
    assert found.order_parameter("V_11").definition == like.order_parameter("V_11").definition


def test_the_function_of_a_branch_has_any_name() -> None:
    assert effective(plain(Function("psi")), sin).order_parameter("V_11").definition.has(exp)
    assert branch_diversity(plain(Function("psi")), tanh) == branch_diversity(plain(), tanh)


@pytest.mark.parametrize(
    "branch",
    [tanh, lambda z: Function("phi")(2 * z), lambda z: Function("phi")(z) + z],
    ids=["known", "of twice h", "with h"],
)
def test_other_branches_are_refused(branch: Callable[[Expr], Expr]) -> None:
    """A known function of h was taken for a constant, so that the roughness was zero."""
    for derived in (effective, branch_diversity):
        with pytest.raises(NotApplicable, match=r"must contain h\(ell, t\), and only as the argument"):
            derived(plain(branch))


@pytest.mark.parametrize("name", ["x_", "y_"])
def test_constants_of_an_activation_are_no_variables_of_averages(name: str) -> None:
    constant, theory = Symbol(name, real=True), plain()
    found, expected = (
        [effective(theory, phi).order_parameter("V_11").definition, branch_diversity(theory, phi).roughness]
        for phi in (lambda z: constant * z**3, lambda z: 2 * z**3)
    )
    assert [(a.subs(constant, 2) - b).expand() for a, b in zip(found, expected, strict=True)] == [0, 0]
