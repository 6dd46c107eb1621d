"""Functions with cases: read by Max, Min and Heaviside, or refused before anything is derived."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sympy import (
    Abs,
    Contains,
    DiracDelta,
    Eq,
    Expr,
    Function,
    Heaviside,
    Interval,
    Max,
    Min,
    Mod,
    Piecewise,
    Rational,
    S,
    SingularityFunction,
    Symbol,
    acos,
    acosh,
    acot,
    atan,
    cos,
    cosh,
    exp,
    floor,
    log,
    sign,
    sin,
    sqrt,
    tan,
    tanh,
)

from derive.errors import ProgramError
from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    IndexRange,
    Mean,
    Network,
    Population,
    Program,
    eta,
    gamma0,
    mu,
    t,
)
from derive.theory.compare import compare
from derive.theory.routes import check_routes
from tests.derive.once import mean_field

units, pixels = Population("units"), Population("pixels", given=True)
pre, post, x = Field("pre", units), Field("post", units), GivenVector("x", pixels, "K_x")
U, W, w = GaussianMatrix("U", units, pixels), GaussianMatrix("W", units, units), GaussianVector("w", units)
out, goal, c = Function("out"), Function("goal"), Symbol("c", positive=True)
residual = out(mu, t) - goal(mu)
Activation = Callable[[Any], Any]


def network(phi: Activation) -> Network:
    """Return a network of two hidden layers, the first with the activation phi."""
    forward = {
        pre(mu, t): U @ x(mu),
        post(mu, t): W @ phi(pre(mu, t)),
        out(mu, t): Mean(w.symbol * tanh(post(mu, t))) / gamma0,
    }
    return Network("of cases", (pre, post), forward, (U, W, w), given=(x,))


def trained(phi: Activation, loss: Expr = residual**2 / 2) -> Program:
    """Return a trained network of one hidden layer with the activation phi."""
    forward = {pre(mu, t): U @ x(mu), out(mu, t): Mean(w.symbol * phi(pre(mu, t))) / gamma0}
    return Network("one layer", (pre,), forward, (U, w), given=(x,)).train(loss, GradientDescent(eta))


def leaky(z: Any) -> Any:
    """Return the rectifier with slope 1/5 below zero, written by cases."""
    return Piecewise((z, z > 0), (z / 5, True))


READ: dict[str, tuple[Activation, Activation]] = {
    "leaky": (leaky, lambda z: z / 5 + 4 * Max(z, 0) / 5),
    "relu": (lambda z: Piecewise((0, z <= 0), (z, True)), lambda z: Max(z, 0)),
    "elu": (
        lambda z: Piecewise((z, z > 0), (exp(z) - 1, True)),
        lambda z: Max(z, 0) + exp(Min(z, 0)) - 1,
    ),
    "clip": (
        lambda z: Piecewise((-1, z < -1), (1, z > 1), (z, True)),
        lambda z: Max(z, -1) - Max(z, 1) + 1,
    ),
    "clip, nested": (
        lambda z: Piecewise((Piecewise((-1, z < -1), (z, True)), z <= 1), (1, True)),
        lambda z: Max(z, -1) - Max(z, 1) + 1,
    ),
    "threshold": (lambda z: Piecewise((z, z > c), (c, True)), lambda z: Max(z, c)),
    "size": (
        lambda z: Piecewise((z**2, Abs(z) < 1), (1, True)),
        lambda z: Max(-1, Min(1, z)) ** 2,
    ),
    "step": (lambda z: z + Piecewise((1, z >= 2), (0, True)), lambda z: z + Heaviside(z - 2, 1)),
    "always": (lambda z: Piecewise((tanh(z), z**2 + 1 > 0), (1, True)), tanh),
    "sign": (lambda z: z + z / Abs(z), lambda z: z + sign(z)),
    "root": (lambda z: z + z / sqrt(z**2), lambda z: z + sign(z)),
    "singularity": (lambda z: SingularityFunction(z, 0, 1), lambda z: Max(z, 0)),
    "size over z": (lambda z: z + Abs(z) / z, lambda z: z + sign(z)),
    "root over z": (lambda z: z + sqrt(z**2) / z, lambda z: z + sign(z)),
    "cubes": (lambda z: z + z**3 / Abs(z) ** 3, lambda z: z + sign(z)),
    "sum over z": (lambda z: z + (z + Abs(z)) / z, lambda z: z + 1 + sign(z)),
    "shifted": (lambda z: z + Abs(2 * z - 2) / (z - 1), lambda z: z + 2 * sign(z - 1)),
    "root of a square": (lambda z: sqrt(z**2), Abs),
    "function of a sign": (lambda z: z + tanh(sign(z)), lambda z: z + 2 * tanh(1) * Heaviside(z) - tanh(1)),
    "cubed step": (lambda z: z + Heaviside(z) ** 3, lambda z: z + Heaviside(z, Rational(1, 8))),
}


@pytest.mark.parametrize("name", READ)
def test_cases_are_read_as_maxima(name: str) -> None:
    by_cases, by_maxima = READ[name]
    line = network(by_cases).definitions()[1]
    assert line == network(by_maxima).definitions()[1]
    for z in (Rational(k, 7) for k in (-30, -12, -2, 1, 5, 13, 28)):
        gap = line.rhs.args[2].subs({pre(mu, t): z, c: S.Half}) - by_cases(z).subs(c, S.Half)
        assert abs(gap.evalf()) < 1e-12


def test_a_network_of_cases_is_trained_like_one_of_maxima() -> None:
    assert trained(leaky) == trained(READ["leaky"][1])


BELOW = Piecewise((residual**2 / 2, residual < 0), (0, True))
HINGE = Piecewise((0, out(mu, t) * goal(mu) > 1), (1 - out(mu, t) * goal(mu), True))


@pytest.mark.parametrize(
    ("loss", "error"),
    [(BELOW, lambda f, y: max(y - f, 0)), (HINGE, lambda f, y: y if f * y < 1 else 0)],
    ids=["one-sided", "hinge"],
)
def test_losses_of_cases_have_the_right_error(loss: Expr, error: Callable[..., float]) -> None:
    derived = next(d.rhs for d in trained(tanh, loss).definitions if d.name == "Delta")
    for f, y in ((0.3, 1.0), (2.5, 1.0), (-2.5, 1.0), (0.8, -1.0)):
        assert abs(derived.subs({out(mu, t): f, goal(mu): y}) - error(f, y)) < 1e-12


REFUSED: dict[str, tuple[Activation, str]] = {
    "point": (lambda z: Piecewise((1, Eq(z, 0)), (z, True)), r"does not compare pre\(mu, t\) by <"),
    "end": (lambda z: Piecewise((z, z > 0)), r"none of the cases holds at pre\(mu, t\) = -1"),
    "pole": (lambda z: Piecewise((log(z), z > 0), (0, True)), r"log\(pre\(mu, t\)\) has no finite value at"),
    "curve": (lambda z: Piecewise((z, tanh(z) > S.Half), (0, True)), "thresholds of .* are not known"),
    "order": (
        lambda z: Piecewise((z, z > Symbol("a")), (2 * z, z < c), (0, True)),
        "it is not known whether [ac] or [ac] is greater",
    ),
    "several": (
        lambda z: Piecewise((z, (z > 0) & (goal(mu) > 0)), (z / 2, True)),
        r"its conditions are on several quantities, goal\(mu\) and pre\(mu, t\)",
    ),
    "other value": (
        lambda z: Piecewise((z, z > 0), (-z, z < 0), (1, True)),
        r"the value of the function at pre\(mu, t\) = 0 is not a combination",
    ),
    "interval": (
        lambda z: Piecewise((z, Contains(z, Interval(0, 1))), (0, True)),
        "its conditions contain no inequality of a quantity",
    ),
    "acot": (acot, "jumps, and its derivative leaves the jump out"),
    "logistic": (lambda z: 1 / (1 + exp(c / (1 - z))), "jumps, and its derivative leaves the jump out"),
    "tanh": (lambda z: tanh(1 / z), "jumps, and its derivative leaves the jump out"),
    "maximum": (lambda z: Max(z, 0) / z, "jumps, and its derivative leaves the jump out"),
    "far": (lambda z: atan(1 / (z - 300)), "jumps, and its derivative leaves the jump out"),
    "exponential of an inverse": (
        lambda z: z * exp(1 / z) / (1 + exp(1 / z)) / z,
        "jumps, and its derivative",
    ),
    "root of a sum": (lambda z: sqrt(z**2 - 2 * z + 1) / (z - 1), "jumps, and its derivative"),
    "floor": (floor, "jumps, and its derivative leaves the jump out"),
    "remainder": (lambda z: Mod(z, 1), "jumps, and its derivative leaves the jump out"),
    "sawtooth": (lambda z: atan(tan(z)), "jumps, and its derivative leaves the jump out"),
    "triangle": (lambda z: acos(cos(z)), "has a kink, and its second derivative leaves the kink out"),
    "size": (lambda z: acosh(cosh(z)), "has a kink, and its second derivative leaves the kink out"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_cases_are_refused(name: str) -> None:
    phi, reason = REFUSED[name]
    with pytest.raises(ProgramError, match=rf"^post\(mu, t\): .*{reason}"):
        network(phi)
    loss = phi(residual).xreplace({pre(mu, t): out(mu, t)})
    with pytest.raises(ProgramError, match=r"^the loss\b"):
        network(tanh).train(loss, GradientDescent(eta))


def test_functions_without_jumps_pass() -> None:
    smooth = [
        lambda z: atan(z) / (1 + Abs(z)),
        lambda z: z / sqrt(1 + z**2),
        lambda z: exp(-1 / z**2),
        lambda z: z**2 / (z + 3),
        lambda z: exp(z) / (exp(z) + exp(-2 * z) - 7),
        lambda z: (z + 3) ** Rational(5, 2) / (1 + sqrt(z + 3)),
        lambda z: log(1 + exp(z)) * (1 + z**2) ** Rational(1, 3),
        lambda z: sqrt(1 + z) * sqrt(5 - z),
        lambda z: log(z**2) * sin(3 * z),
    ]
    for phi in smooth:
        assert network(phi).definitions()[1].rhs.args[2] == phi(pre(mu, t))


JUMPING: list[Activation] = [
    lambda z: Abs(z) / z,
    lambda z: sqrt(z**2) / (2 * z),
    lambda z: exp(z) * z**3 / Abs(z) ** 3,
    lambda z: (z + Abs(z)) / z,
    lambda z: exp(sign(z)) * cos(z),
    lambda z: Heaviside(z) ** 3 / (1 + z**2),
    lambda z: sin(Heaviside(z) + z),
]


@pytest.mark.parametrize("phi", JUMPING)
def test_point_masses_of_derivatives_are_the_jumps(phi: Activation) -> None:
    """A theory lacked the point mass of jumps that are written without a step function."""
    read = network(phi).definitions()[1].rhs.args[2].xreplace({pre(mu, t): REAL})
    slope = read.diff(REAL).expand()
    mass = slope.coeff(DiracDelta(REAL)).subs(REAL, 0) if slope.has(DiracDelta) else S.Zero
    above, below = (phi(REAL).subs(REAL, side * Rational(1, 10**9)).evalf() for side in (1, -1))
    assert abs(mass - (above - below)).evalf() < 1e-6


REAL = Symbol("z", real=True)


def test_products_with_matrices_keep_their_vectors() -> None:
    line = {post(mu, t): Piecewise((W @ pre(mu, t), pre(mu, t) > 0), (0, True))}
    lines = {pre(mu, t): U @ x(mu), **line, out(mu, t): Mean(w.symbol * post(mu, t))}
    read = Network("gated", (pre, post), lines, (U, W, w), given=(x,)).definitions()[1].rhs
    assert read == Heaviside(pre(mu, t), 0) * (W @ pre(mu, t))


def test_cases_of_lines_written_by_hand_are_read() -> None:
    program = trained(lambda z: Max(z, 0))
    gate = Piecewise((1, pre(mu, t) > 0), (0, True))
    lines = tuple(replace(d, rhs=d.rhs.replace(Heaviside, lambda *_: gate)) for d in program.definitions)
    rewritten = replace(program, definitions=lines)
    assert not any(d.rhs.has(Piecewise) for d in rewritten.definitions)
    assert rewritten == replace(
        program,
        definitions=tuple(
            replace(d, rhs=d.rhs.replace(Heaviside, lambda z, *_: Heaviside(z, 0)))
            for d in program.definitions
        ),
    )


def test_both_routes_agree_on_cases() -> None:
    assert not check_routes(trained(leaky))


# -- factors beside a Kronecker delta --

k = Symbol("k", integer=True, positive=True)


@pytest.fixture(scope="module")
def readouts() -> Program:
    """Return a network with two readouts, whose variance is their index."""
    outputs = IndexRange(k, S.One, S(2))
    v = GaussianVector("v", units, indices=(outputs,), variance=k)
    forward = {pre(mu, t): U @ x(mu), out(mu, k, t): Mean(v(k) * tanh(pre(mu, t))) / gamma0}
    net = Network("readouts", (pre,), forward, (U, v), given=(x,), ranges=(outputs,))
    return net.train((goal(mu, k) - out(mu, k, t)) ** 2 / 2, GradientDescent(eta))


def test_factors_are_compared_where_a_delta_makes_indices_equal(readouts: Program) -> None:
    assert not check_routes(readouts)


@pytest.mark.parametrize("factor", [2, k])
def test_a_wrong_factor_beside_a_delta_is_reported(readouts: Program, factor: Expr) -> None:
    theory = mean_field(readouts)
    wrong = tuple(
        replace(u, covariance=factor * u.covariance) if u.covariance.has(k) else u for u in theory.sources
    )
    found = compare(theory, replace(theory, sources=wrong))
    assert [d.part for d in found] == ["source"]


def test_cases_of_a_field_inside_of_cases_of_an_index_are_read() -> None:
    """Their jumps had no point mass in the theory."""
    z = pre(mu, t)
    jump = Piecewise((z, z > 0), (-1, True))
    line = Piecewise((1 + Piecewise((jump, Eq(mu, 2)), (z, True)), mu < 3), (z, True))
    read = network(lambda _: line).definitions()[1].rhs.args[2]
    inner = Piecewise((Heaviside(z, 0) + Max(0, z) - 1, Eq(mu, 2)), (z, True))
    assert read == Piecewise((1 + inner, mu < 3), (z, True))
    assert read.diff(z).has(DiracDelta)
    assert not line.diff(z).has(DiracDelta)
