"""gamma0 = 0: kernels of every activation against closed forms and quadrature, and particles against both."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import erf, expit
from scipy.stats import norm
from sympy import Function, Max, Rational, Symbol, exp, tanh

import numerics
from derive.errors import NotApplicable
from derive.program import P, Program, eta, gamma0
from derive.program.networks.options import NAMED
from numerics.averages.kink_quadrature import Moment
from numerics.errors import SpecError, Unserved
from numerics.solver.lazy.solve import LazySolved, solve_lazy
from numerics.solver.paths import solve_particles
from tests.chance import excess, in_errors
from tests.derive.once import convolution, feedback_alignment, isotropic, mean_field, mlp
from tests.numerics.solver.helpers import TARGETS, kernel
from tests.numerics.solver.lazy_kernels import Moments, erf_moments, recursion, relu_moments

K = kernel(3)
DATA: dict[str, Any] = {"K_x": K, "y": TARGETS[:3]}
y = Symbol("y", real=True)


def variances(k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums and products of the variances of each pair."""
    d = np.diag(k)
    return d[:, None] + d, np.outer(d, d)


def abs_moments(k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return moments of |x| = relu(x) + relu(-x) (Cho and Saul 2009)."""
    (p, dp), (m, dm) = relu_moments(k), relu_moments(_turned(k))
    return 2 * (p + np.where(np.eye(len(k)) > 0, 0, m)), 2 * (dp - np.where(np.eye(len(k)) > 0, 0, dm))


def _turned(k: np.ndarray) -> np.ndarray:
    """Return the covariances of x and -y."""
    return np.where(np.eye(len(k)) > 0, k, -k)


def sin_moments(k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return moments of sin, from the characteristic function of x - y and x + y."""
    total, _ = variances(k)
    return np.exp(-total / 2) * np.sinh(k), np.exp(-total / 2) * np.cosh(k)


def exp_moments(k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return moments of exp, from the moment generating function."""
    total, _ = variances(k)
    return np.exp(total / 2 + k), np.exp(total / 2 + k)


def quadratic_moments(k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return moments of the square, by Isserlis."""
    _, product = variances(k)
    return product + 2 * k**2, 4 * k


def cubic_moments(k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return moments of the cube, by Isserlis."""
    _, product = variances(k)
    return 9 * product * k + 6 * k**3, 9 * (product + 2 * k**2)


def hermite2_moments(k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return moments of the second Hermite polynomial, by Isserlis, at any variances."""
    total, product = variances(k)
    return (product - total + 1 + 2 * k**2) / 2, 2 * k


def hermite3_moments(k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return moments of the third Hermite polynomial, by Isserlis, at any variances."""
    total, product = variances(k)
    return (9 * product * k + 6 * k**3 - 9 * total * k + 9 * k) / 6, 9 * hermite2_moments(k)[0] / 3


def by_quadrature(phi: Callable[[Any], Any], slope: Callable[[Any], Any]) -> Moments:
    """Return moments by Gauss-Hermite quadrature in both variables."""
    x, w = np.polynomial.hermite_e.hermegauss(150)
    w = w / w.sum()

    def moments(k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = np.zeros((2, *k.shape))
        for i, j in np.ndindex(k.shape):
            first, rest = np.sqrt(k[i, i]), k[i, j] / np.sqrt(k[i, i])
            u = first * x[:, None] + 0 * x
            v = u if i == j else rest * x[:, None] + np.sqrt(k[j, j] - rest**2) * x
            found[:, i, j] = [w @ (f(u) * f(v)) @ w if i != j else w @ f(u[:, 0]) ** 2 for f in (phi, slope)]
        return found[0], found[1]

    return moments


def gelu_slope(x: Any) -> Any:
    return norm.cdf(x) + x * norm.pdf(x)


MOMENTS: dict[Any, Moments] = {
    "linear": lambda k: (k, np.ones_like(k)),
    "relu": relu_moments,
    "abs": abs_moments,
    "erf": erf_moments,
    "sin": sin_moments,
    "quadratic": quadratic_moments,
    "cubic": cubic_moments,
    "hermite2": hermite2_moments,
    "hermite3": hermite3_moments,
    "tanh": by_quadrature(np.tanh, lambda x: 1 / np.cosh(x) ** 2),
    "softplus": by_quadrature(lambda x: np.logaddexp(0, x), expit),
    "gelu": by_quadrature(lambda x: x * (1 + erf(x / np.sqrt(2))) / 2, gelu_slope),
    exp(y / 3): lambda k: (exp_moments(k / 9)[0], exp_moments(k / 9)[0] / 9),
    5 * tanh(4 * y / 5) / 4: by_quadrature(
        lambda x: 1.25 * np.tanh(0.8 * x), lambda x: 1 / np.cosh(0.8 * x) ** 2
    ),
}


ALIKE = ("abs", "hermite2", "hermite3", "softplus", "gelu", 5 * tanh(4 * y / 5) / 4)
"""Averages of relu, hermite2, gelu and tanh go the same ways."""


def solved(program: Program, **options: Any) -> LazySolved:
    given: dict[str, Any] = {"values": {eta: 0.1, P: 3}, "data": DATA} | options
    return solve_lazy(mean_field(program), **given)


# -- kernels -------------------------------------------------------------------------------------------------


def test_every_activation_is_here() -> None:
    assert set(NAMED) <= set(MOMENTS)


@pytest.mark.parametrize(
    ("depth", "samples"), [(2, 2), *(pytest.param(n, 3, marks=pytest.mark.slow) for n in (1, 2, 3))]
)
@pytest.mark.parametrize(
    "activation", [pytest.param(x, marks=pytest.mark.slow) if x in ALIKE else x for x in MOMENTS], ids=str
)
def test_kernels(activation: Any, depth: int, samples: int) -> None:
    k = K[:samples, :samples]
    phi, back, tangent = recursion(MOMENTS[activation], depth, k)
    given: dict[str, Any] = {"values": {eta: 0.1, P: samples}, "data": {"K_x": k, "y": TARGETS[:samples]}}
    ours = solved(mlp(depth, activation), **given)
    linear = activation == "linear"
    for layer in range(1, depth + 1):
        exact = phi[layer - 1]
        found = ours.kernel("H" if linear else "Phi", layer)
        assert np.abs(found - exact).max() < 1e-9 * np.abs(exact).max()
        g = np.broadcast_to(ours.kernel("G", layer), exact.shape)
        assert np.abs(g - back[layer - 1]).max() < 1e-9 * np.abs(back[layer - 1]).max()
    assert np.abs(ours.kernel("K") - tangent).max() < 1e-9 * np.abs(tangent).max()


def test_a_kink_away_from_zero() -> None:
    """<max(x, c) max(y, c)>, the inner average in closed form."""
    a, b, c, k = 1.3, 0.7, 0.4, 0.9

    def inner(x: float) -> float:
        mean, s = k / a * x, np.sqrt(b - k**2 / a)
        d = (mean - c) / s
        return max(x, c) * (c + s * (d * norm.cdf(d) + norm.pdf(d))) * norm.pdf(x, scale=np.sqrt(a))

    exact = quad(inner, -12, 12, points=[c], epsabs=1e-13, epsrel=1e-13)[0]
    u, v = Function("u")(1), Function("u")(2)
    value, error = Moment(Max(u, Rational(2, 5)) * Max(v, Rational(2, 5)), (u, v))(a, b, k, 1e-11)
    assert abs(value - exact) < 1e-11
    assert error < 1e-11


@pytest.mark.parametrize("correlation", [0.999999, -0.999999, 1 - 1e-12, 1.0])
def test_jumps_that_nearly_coincide(correlation: float) -> None:
    """The slopes of relu, at angles near zero: the arc cosine (Cho and Saul 2009)."""
    from sympy import Heaviside

    u, v = Function("u")(1), Function("u")(2)
    value, _ = Moment(Heaviside(u) * Heaviside(v), (u, v))(1.0, 2.0, correlation * np.sqrt(2), 1e-10)
    assert abs(value - (np.pi - np.arccos(correlation)) / (2 * np.pi)) < 1e-8


# -- particles -----------------------------------------------------------------------------------------------


def against_particles(
    program: Program, replicas: int = 10, steps: int = 4, samples: int = 512, **options: Any
) -> None:
    """Compare kernels at steps 3 and 1, and errors at all steps, with sampled paths at small gamma0."""
    tangent = solved(program, **options).kernel("K")
    size = int(np.sqrt(tangent.size))
    rate = 0.5 / np.linalg.eigvalsh(tangent.reshape(size, size)).max()
    given: dict[str, Any] = {"values": {eta: rate, P: 3}, "data": DATA} | options
    given["values"] = given["values"] | {eta: rate}
    ours = solve_lazy(mean_field(program), steps=steps, **given)
    given["values"] = given["values"] | {gamma0: 1e-4}
    given |= {"steps": steps, "samples": samples, "replicas": replicas, "seed": 3}
    other = solve_particles(mean_field(program), **given)
    found = []
    for name, layer in ours.kernels:
        value = other.value(name, layer or None)[..., 3, 1]
        found.append((value - ours.kernels[name, layer], other.stderr(name, layer or None)[..., 3, 1]))
    found.append((other.value("Delta") - ours.scalars["Delta"], other.stderr("Delta")))
    gaps, errors = (np.concatenate([np.ravel(x) for x in xs]) for xs in zip(*found, strict=True))
    scale = max(np.abs(k).max() for k in ours.kernels.values())
    exact = errors < 1e-9 * scale
    assert np.abs(gaps[exact]).max(initial=0) < 1e-6 * scale
    assert (~exact).any() or program.name.startswith("deep linear")
    z = gaps[~exact] / errors[~exact]
    assert excess(z, replicas - 1) < 1


@pytest.mark.parametrize("activation", [pytest.param("relu", marks=pytest.mark.slow), "tanh"])
def test_particles(activation: Any) -> None:
    against_particles(mlp(2, activation))


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("activation", MOMENTS, ids=str)
def test_particles_with_every_activation(activation: Any, depth: int) -> None:
    against_particles(mlp(depth, activation), replicas=32, samples=2048)  # a bias of 1/512 is seen by 32


BETA: dict[Any, Any] = {eta: 0.1, P: 3, Symbol("beta"): 0.7}
PROGRAMS: dict[str, Callable[[], Program]] = {
    "bias": partial(mlp, 2, "tanh", bias=True),
    "channels": partial(mlp, 2, "relu", outputs=2),
    "residual": partial(mlp, 2, "tanh", branch=Symbol("beta"), bias=True),
    "widths": partial(
        mlp, 2, "erf", relative_widths=[1, Rational(1, 2)], init_variance=[2, 1, Rational(1, 2)]
    ),
    "momentum": partial(mlp, 2, "softplus", momentum=Rational(1, 2)),
    "mean loss": partial(mlp, 2, "sin", loss="mean"),
}


QUICK = ("mean loss",)


@pytest.mark.parametrize(
    "name", [x if x in QUICK else pytest.param(x, marks=pytest.mark.slow) for x in PROGRAMS]
)
def test_programs(name: str) -> None:
    data = DATA | ({"y": np.stack([TARGETS[:3], -TARGETS[1:4]], axis=1)} if name == "channels" else {})
    if name == "channels":
        given: dict[str, Any] = {"values": {eta: 0.05, P: 3}, "data": data}
        ours = solve_lazy(mean_field(PROGRAMS[name]()), steps=4, **given)
        one = solved(mlp(2, "relu"), steps=4, values={eta: 0.05, P: 3})
        np.testing.assert_allclose(ours.scalars["Delta"][..., 0], one.scalars["Delta"], atol=1e-12)
        return
    against_particles(PROGRAMS[name](), values=BETA)


@pytest.mark.slow
def test_convolution() -> None:
    """The kernels of particles at step 0, where gamma0 plays no role."""
    x = np.random.default_rng(3).standard_normal((2, 3, 4))
    data = {"K_x": np.einsum("mpd,nqd->mpnq", x, x) / 12, "y": TARGETS[:2]}
    theory = mean_field(convolution(2, "tanh", positions=3, receptive=1))
    given: dict[str, Any] = {"data": data, "values": {eta: 0.1, gamma0: 1.0, P: 2}}
    ours = solve_lazy(theory, **given)
    other = solve_particles(theory, steps=1, samples=512, replicas=8, **given)
    for name, layer in ours.kernels:
        error = other.stderr(name, layer or None)[..., 0, 0]
        gap = np.abs(other.value(name, layer or None)[..., 0, 0] - ours.kernels[name, layer])
        assert excess(in_errors(gap, error), 7) < 1, (name, layer)
        assert error.max() > 0


# -- outputs -------------------------------------------------------------------------------------------------


def test_flow_of_the_outputs() -> None:
    """Exponentials of the tangent kernel; a sample that does not count is predicted by the others."""
    flow = solved(mlp(1, "relu", "flow"), times=[0.0, 0.5, 2.0])
    rates, modes = np.linalg.eigh(recursion(relu_moments, 1, K)[2])
    exact = modes @ (np.exp(-2.0 * rates) * (modes.T @ TARGETS[:3]))
    np.testing.assert_allclose(flow.scalars["Delta"][2], exact, atol=1e-10)
    tested = solved(
        mlp(1, "relu", "flow", sample_weights=True), times=[400.0], data=DATA | {"rho": [1.0, 1.0, 0.0]}
    )
    tangent = recursion(relu_moments, 1, K)[2]
    predicted = tangent[2, :2] @ np.linalg.solve(tangent[:2, :2], TARGETS[:2])
    np.testing.assert_allclose(tested.scalars["f"][0], [*TARGETS[:2], predicted], atol=1e-8)


def test_refusals() -> None:
    with pytest.raises(NotApplicable, match="at gamma0 = 0: its"):
        solved(mlp(2, "tanh", weight_decay=Rational(1, 2)))
    with pytest.raises(NotApplicable, match="at gamma0 = 0: its"):
        solved(isotropic(1))
    with pytest.raises(ValueError, match="a flow needs times"):
        solved(mlp(2, "tanh", "flow"))
    with pytest.raises(Unserved, match="momentum"):
        solved(mlp(1, "tanh", "flow", momentum=Symbol("tau")), times=[1.0], values={Symbol("tau"): 1.0, P: 3})
    with pytest.raises(ValueError, match="data does not contain K_x"):
        solved(mlp(1, "tanh"), data={"y": TARGETS[:3]})
    assert solved(feedback_alignment(2, "tanh")).scalars == {}


@pytest.mark.parametrize(("objective", "outputs"), [("logistic", 1), ("hinge", 1), ("cross-entropy", 2)])
def test_flows_of_nonlinear_losses_are_refused(objective: str, outputs: int) -> None:
    """The error was continued linearly from the outputs 0 and 1: 1.0820 in place of 1.0737 for one sample."""
    program = mlp(1, "relu", "flow", objective=objective, outputs=outputs)
    targets = np.eye(3)[:, :2] if outputs == 2 else TARGETS[:3]
    with pytest.raises(Unserved, match="not a linear function of the output f"):
        solved(program, times=[0.0, 1.0], data={"K_x": K, "y": targets})


@pytest.mark.parametrize("activation", ["relu", pytest.param("tanh", marks=pytest.mark.slow)])
@pytest.mark.parametrize("scale", [1e-10, 1e-15, 1e-30])
def test_small_kernels_are_as_exact_as_large_ones(activation: str, scale: float) -> None:
    """Variances that agreed to 14 decimal places counted as equal, and errors were relative to one."""
    k = scale * np.array([[1.0, 0.5], [0.5, 4.0]])
    phi = recursion(MOMENTS[activation], 2, k)[0]
    ours = solved(mlp(2, activation), values={eta: 0.1, P: 2}, data={"K_x": k, "y": TARGETS[:2]})
    for layer in (1, 2):
        np.testing.assert_allclose(ours.kernel("Phi", layer), phi[layer - 1], rtol=1e-9, atol=0)
    assert 1e-17 < ours.error < 1e-9


def test_errors_of_averages_are_relative_to_them() -> None:
    small, large = (
        solved(mlp(1, lambda x: x**3), values={eta: 0.1, P: 2}, data={"K_x": k * np.eye(2), "y": TARGETS[:2]})
        for k in (1e-8, 1.0)
    )
    assert small.error == pytest.approx(large.error, rel=1e-3, abs=0)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"data": DATA | {"K_x": [[1.0, 3.0], [0.0, 1.0]]}}, "data.K_x: is not symmetric"),
        ({"data": DATA | {"K_x": [[1.0, 3.0], [3.0, 1.0]]}}, "data.K_x: is not positive semidefinite"),
        ({"data": DATA | {"K_x": [[1.0, np.nan], [np.nan, 1.0]]}}, "data.K_x: is nan"),
        ({"values": {eta: float("inf"), P: 3}}, "values.eta = inf: is not finite"),
        ({"steps": 0}, "steps = 0: must be at least 1"),
        ({"steps": 2.5}, "steps = 2.5: must be a whole number"),
    ],
)
def test_data_and_steps_are_checked(options: dict[str, Any], reason: str) -> None:
    """Kernels that no inputs have were solved, and no steps ended in an error of NumPy."""
    with pytest.raises(ValueError, match=reason):
        solved(mlp(1, "relu"), **options)


@pytest.mark.parametrize("times", [[], [-1.0], [float("nan")], 1.0])
def test_times_of_a_flow_are_checked(times: Any) -> None:
    with pytest.raises(ValueError, match="times"):
        solved(mlp(1, "relu", "flow"), times=times)


@pytest.mark.parametrize("depth", [1, 2])
def test_an_activation_without_an_expression_is_named(depth: int) -> None:
    """One hidden layer ended in a KeyError."""
    arrays = {"K_x": np.ones((1, 1)), "y": np.ones(1)}
    with pytest.raises(SpecError, match="phi is a function without an expression; use a named activation"):
        numerics.solve(
            mlp(depth, Function("phi")), numbers={"eta": 0.1, "gamma0": 1.0}, arrays=arrays, times=[0, 1]
        )
