"""Tests of printed reductions by plain lambdify, NumPy and mpmath, against independent numbers."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import special
from sympy import Derivative, Expr, Function, MatrixSymbol, erf, lambdify, symbols

from derive.program import P, alpha, eta, gamma0, mu, s, t
from derive.reduce.data import absorb_factors, loss_decomposition
from derive.reduce.memoryless import markov
from derive.reduce.stationary import static, tau
from derive.reduce.whitened import Whitened, norm, output, series_radius, whitened_limits
from numerics.solver.quadrature.solve import solve_two_layer
from tests.derive.once import (
    equilibrium,
    isotropic,
    mean_field,
    mlp,
    moment_steps,
    output_rate,
    representer,
    single_site,
    stationary,
    two_layer,
    whitened,
)

lam, beta = symbols("lam beta", positive=True)
GAMMA, TARGET = 1.3, 1.7
MODULES = ("numpy", "mpmath")
KERNEL = np.array([[1.2, 0.4, -0.2], [0.4, 0.9, 0.1], [-0.2, 0.1, 1.5]])
TARGETS = np.array([0.8, -0.5, 0.3])


def number(e: Expr, module: str, **values: Any) -> Any:
    """Return ``e`` by plain lambdify.

    Matrix symbols are matrices by name, other symbols numbers.
    """
    names = sorted(e.free_symbols, key=str)
    arrays = np.array if module == "numpy" else mpmath.matrix
    given = [
        arrays(values[x.name].tolist()) if isinstance(x, MatrixSymbol) else values[x.name] for x in names
    ]
    return lambdify(names, e, module)(*given)


def entries(found: Any, rows: int, columns: int) -> np.ndarray:
    return np.array([[float(found[i, j]) for j in range(columns)] for i in range(rows)])


@pytest.fixture(scope="module")
def solved() -> Whitened:
    return whitened(two_layer(mean_field(mlp(1, rule="flow"))))


# -- matrices ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["numpy", "mpmath"])
def test_ridge_regression(module: str) -> None:
    """Also where P is a symbol, whose identity NumPy and mpmath make themselves."""
    found = representer(mean_field(mlp(2, "relu", "flow", weight_decay=lam)))
    column = np.array([[0.3], [-0.6], [0.2]])
    values = {"K": KERNEL, "y": TARGETS[:, None], "k": column, "lam": 0.7, "P": 3}
    inside = KERNEL @ np.linalg.solve(KERNEL + 3 * 0.7 * np.eye(3), TARGETS)
    beyond = column[:, 0] @ np.linalg.solve(KERNEL + 3 * 0.7 * np.eye(3), TARGETS)
    for sized in (lambda e: e, lambda e: e.subs(P, 3).doit()):
        trained, anywhere = (number(sized(e), module, **values) for e in (found.trained, found.anywhere))
        assert entries(trained, 3, 1)[:, 0] == pytest.approx(inside, abs=1e-12)
        assert entries(anywhere, 1, 1)[0, 0] == pytest.approx(beyond, abs=1e-12)


def test_conjugate_kernels() -> None:
    network = mlp(activation=Function("phi"), rule="flow", weight_decay=lam / beta, temperature=1 / beta)
    rest = equilibrium(mean_field(network))
    above = KERNEL + 0.2
    inverse = np.linalg.inv(KERNEL)
    values = {"Phi": KERNEL, "C": above, "lam": 0.7, "P": 3}
    by_hand = inverse - 0.7 * inverse @ above @ inverse
    for e, expected in ((rest.conjugate_kernel, by_hand), (rest.correlator, 0.7 * by_hand)):
        for module in MODULES:
            assert entries(number(e, module, **values), 3, 3) == pytest.approx(expected, abs=1e-12)


@pytest.mark.slow
def test_density_of_a_layer() -> None:
    """Gaussian but for the conjugate kernel, two samples."""
    network = mlp(activation="erf", rule="flow", weight_decay=lam / beta, temperature=1 / beta)
    density = equilibrium(mean_field(network)).density(2)
    h, hat = np.array([0.4, -1.1]), np.array([[-0.3, 0.2], [0.2, 0.5]])
    values = {"lam": 0.7, "h1": h[0], "h2": h[1]}
    for i in (1, 2):
        for j in range(i, 3):
            values |= {f"Phi{i}{j}": KERNEL[i - 1, j - 1], f"Phihat{i}{j}": hat[i - 1, j - 1]}
    phi = np.array([float(erf(x)) for x in h])
    expected = -0.35 * h @ np.linalg.solve(KERNEL[:2, :2], h) - phi @ hat @ phi / 2
    for module in ("mpmath", "scipy"):  # NumPy has no erf
        assert float(number(density, module, **values)) == pytest.approx(expected, abs=1e-12)


# -- whitened data -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_hidden_layer_on_whitened_data(solved: Whitened) -> None:
    """Rate, solution and time against the integral of the rate in mpmath."""
    values, time = {"gamma0": GAMMA, "y": TARGET}, 0.4
    rate = lambdify([output], solved.output.rhs.subs({gamma0: GAMMA, norm: TARGET}), "mpmath")
    reached = float(mpmath.odefun(lambda _, f: rate(f), 0, mpmath.mpf(0), tol=1e-14)(time))
    ends, convergence = whitened_limits(solved), series_radius(solved)
    for module in MODULES:
        assert TARGET - float(number(solved.solution.rhs, module, t=time, **values)) == pytest.approx(reached)
        assert float(number(solved.time.rhs, module, f=reached, **values)) == pytest.approx(time)
        assert float(number(ends.learning_time, module, f=1.2, gamma0=50.0, y=TARGET)) == pytest.approx(
            float(number(solved.time.rhs, module, f=1.2, gamma0=50.0, y=TARGET)), rel=1e-2
        )
        assert float(number(convergence.radius, module, f=0.5, y=TARGET)) == pytest.approx(2)


# -- functions of samples ------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["numpy", "mpmath"])
def test_rates_of_moments(module: str) -> None:
    """Functions of samples as Python functions, against differences of the solver's outputs."""
    theory = mean_field(mlp(1, rule="flow"))
    rates, data = two_layer(theory), {"K_x": KERNEL, "y": TARGETS}
    times, values = [0.0, 0.3, 0.301], {gamma0: GAMMA, P: 3}
    run = solve_two_layer(theory, times=times, values=values, data=data)
    delta, H, G = run.value("Delta"), run.value("H", (1,)), run.value("G", (1,))
    at = {
        "H": lambda a, b, _: H[a - 1, b - 1, 1, 1],
        "G": lambda _: G[1, 1],
        "Delta": lambda a, _: delta[1, a - 1],
        "K_x": lambda a, b: KERNEL[a - 1, b - 1],
        "y": lambda a: TARGETS[a - 1],
    }
    for e in rates.closed:
        assert isinstance(e.lhs, Derivative)
    rate = lambdify([mu, P, gamma0, t], rates.rate("Delta"), [at, module])
    moved = (delta[2] - delta[1]) / 0.001
    for i in (1, 2, 3):
        assert float(rate(i, 3, GAMMA, 0.3)) == pytest.approx(moved[i - 1], rel=5e-3)


@pytest.mark.slow
def test_lazy_output_and_stationary_kernels() -> None:
    end = static(mean_field(mlp(1, activation="erf")))
    assert end.output is not None
    errors = np.array([[0.5, -0.2, 0.1], [0.4, -0.1, 0.2]])
    at = {"Delta": lambda a, n: errors[n, a - 1], "K": lambda a, b: KERNEL[a - 1, b - 1]}
    for module in MODULES:
        moved = lambdify([mu, P, t, eta], end.output.rhs, [at, module])(2, 3, 2, 0.1)
        assert float(moved) == pytest.approx(0.1 * KERNEL[1] @ errors.sum(axis=0))
    network = mlp(1, "erf", "flow", weight_decay=lam / beta, temperature=1 / beta)
    kernel = stationary(mean_field(network)).closed()[0].rhs
    covariance = {(1, 1): 1.2, (1, 2): 0.4, (2, 2): 0.9}
    at = {"H": lambda _, a, b, lag: covariance[min(a, b), max(a, b)]}
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    x, y = np.meshgrid(nodes, nodes)
    first, second = np.sqrt(1.2) * x, 0.4 / np.sqrt(1.2) * x + np.sqrt(0.9 - 0.16 / 1.2) * y
    average = np.sum(np.outer(weights, weights) * special.erf(first) * special.erf(second)) / (2 * np.pi)
    for module in MODULES:
        value = lambdify([mu, alpha, tau], kernel, [at, module])(1, 2, 0.5)
        assert float(value) == pytest.approx(average, rel=1e-6)


def test_what_is_an_average_still_is_refused() -> None:
    kernel = mean_field(mlp(1, "tanh", "flow")).order_parameter("Phi").definition
    with pytest.raises((NotImplementedError, SyntaxError, TypeError)):
        lambdify([mu, alpha, t, s], kernel, "numpy")


@pytest.mark.slow
def test_results_show_themselves_in_a_notebook(solved: Whitened) -> None:
    noisy = mean_field(mlp(1, "erf", "flow", weight_decay=lam / beta, temperature=1 / beta))
    random = absorb_factors(mean_field(isotropic(1)), "r0", "u0")
    results = (
        solved,
        solved.theory,
        whitened_limits(solved),
        moment_steps(mean_field(mlp(1, loss="sum"))),
        markov(mean_field(mlp(1, "tanh"))),
        single_site(noisy),
        equilibrium(noisy),
        stationary(noisy),
        static(mean_field(mlp(1, "tanh"))),
        representer(mean_field(mlp(1, "relu", "flow", weight_decay=lam))),
        output_rate(noisy),
        loss_decomposition(random),
    )
    for x in results:
        shown = x._repr_latex_()
        assert shown.startswith("$$"), type(x)
        assert "&=" in shown, type(x)
