"""Nonlinear rules whose steps are outer products: Muon against networks, and separable laws against pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sympy import Expr, Function, Rational, S, Symbol, diag, sign, tanh

import numerics
from derive.calculus.pairs import PairMean
from derive.errors import NotApplicable
from derive.program import (
    Entrywise,
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    Mean,
    Network,
    Population,
    Program,
    ProgramError,
    Spectral,
    adam,
    convolution,
    eta,
    gamma0,
    mlp,
    muon,
    sign_descent,
    t,
)
from derive.program.entrywise import A
from derive.program.outer_steps import outer_products
from derive.program.spectral import sigma
from derive.theory import mean_field
from derive.theory.routes import check_routes
from numerics.errors import NotConverged
from numerics.lowering.spectral import coefficients
from numerics.solver.paths.solve import solve_particles
from tests.chance import excess, in_errors

Array = NDArray[np.float64]

X = np.array([[1.2, -0.4, 0.9], [0.3, 1.1, -0.6], [-0.7, 0.5, 1.3]])
Y = np.array([1.0, -0.7, 0.5])
STEPS, RATE = 8, 0.1
DATA = {"K_x": X @ X.T / X.shape[1], "x": X, "y": Y}
NUMBERS = {"eta": RATE, "gamma0": 1.0, "P": len(X)}
EPSILON = 1e-3

state = Symbol("state", real=True)
MUON = mlp(2, "tanh", rule=adam(eta, epsilon=EPSILON), rules={"W": muon(eta)})


def stream(rule: Entrywise) -> Program:
    """Return a network with one new sample at each step, under names of a user."""
    pixels = Population("pixels", given=True)
    a, b = Field("a", Population("first")), Field("b", Population("second"))
    x = GivenVector("x", pixels, "K")
    one, two = GaussianMatrix("V0", a.population, pixels), GaussianMatrix("V", b.population, a.population)
    c, out = GaussianVector("c", b.population), Function("out")
    forward = {a(t): one @ x(t), b(t): two @ tanh(a(t)), out(t): Mean(c.symbol * tanh(b(t))) / gamma0}
    network = Network("stream", (a, b), forward, (one, two, c), given=(x,))
    return network.train((Function("label")(t) - out(t)) ** 2 / 2, rule)


def with_state(Q: Expr) -> Entrywise:
    """Return the same rule by way of a state that is the gradient, which is not recognised."""
    return Entrywise(eta, Q.xreplace({A: state}), ((state, A),))


def test_one_sample_by_signs_is_an_outer_product_of_signs() -> None:
    inputs = np.random.default_rng(3).normal(size=(STEPS, 5))
    data = {"K": inputs @ inputs.T / 5, "x": inputs, "label": np.array([2.0, -2.0] * (STEPS // 2))}
    outputs = []
    for rule, paired in ((sign_descent(eta), False), (with_state(sign(A)), True)):
        theory = mean_field(stream(rule))
        assert theory.equation("b").rhs.has(PairMean) is paired
        solved = solve_particles(
            theory,
            steps=STEPS,
            values={"eta": RATE, "gamma0": 1.0},
            data=data,
            samples=64,
            responses="stein",
        )
        outputs.append(solved.value("out"))
    assert np.abs(outputs[0] - outputs[1]).max() < 1e-9 * np.abs(outputs[1]).max()


def test_an_error_that_goes_through_zero_is_refused() -> None:
    """The same sample at each step, learnt within few of them: its sign is then a matter of chance."""
    inputs = np.tile(X[:1], (STEPS, 1))
    data = {"K": inputs @ inputs.T / 3, "x": inputs, "label": np.full(STEPS, 0.05)}
    with pytest.raises(NotConverged, match="Delta goes through zero at step"):
        solve_particles(
            mean_field(stream(sign_descent(eta))),
            steps=STEPS,
            values={"eta": 0.4, "gamma0": 1.0},
            data=data,
            samples=64,
        )


def test_a_polynomial_law_is_multiplied_out() -> None:
    law, outputs = A - A**3 / 5, []
    for rule in (Entrywise(eta, law), with_state(law)):
        theory = mean_field(mlp(2, "tanh", rule=rule))
        assert theory.equation("h", 2).rhs.has(PairMean) is bool(rule.states)
        data = {"K_x": DATA["K_x"][:2, :2], "x": X[:2], "y": Y[:2]}
        solved = solve_particles(
            theory, steps=3, values={**NUMBERS, "P": 2}, data=data, samples=32, responses="stein"
        )
        outputs.append(solved.value("f"))
    assert np.abs(outputs[0] - outputs[1]).max() < 1e-9 * np.abs(outputs[1]).max()


@pytest.mark.parametrize(
    "program",
    [
        MUON,
        mlp(2, "tanh", rules={"W0": muon(eta)}),
        stream(sign_descent(eta)),
        mlp(2, "tanh", rule=Entrywise(eta, A - A**3 / 5)),
    ],
    ids=["Muon", "Muon of the inputs", "signs", "polynomial"],
)
def test_both_routes_agree(program: Program) -> None:
    assert check_routes(program) == []


def test_what_is_no_outer_product_stays() -> None:
    program = mlp(2, "tanh", rule=sign_descent(eta))
    assert outer_products(program) is program


def test_coefficients_are_those_of_the_singular_vectors() -> None:
    """Against the decomposition of the whole matrix, for a function that is not constant."""
    rng = np.random.default_rng(5)
    left, right = rng.normal(size=(40, 3)), rng.normal(size=(50, 3))
    gradient = left @ right.T / np.sqrt(40 * 50)
    U, values, V = np.linalg.svd(gradient, full_matrices=False)
    for F, applied in ((S.One, np.ones(3)), (tanh(sigma), np.tanh(values[:3])), (sigma, values[:3])):
        whole = (U[:, :3] * applied) @ V[:3]
        found = coefficients(F, left.T @ left / 40, right.T @ right / 50)
        assert np.allclose(left @ found @ right.T / np.sqrt(40 * 50), whole, rtol=0, atol=1e-12)


def test_vectors_that_depend_on_each_other_have_a_step() -> None:
    """Two equal samples: the null space of the gradient gets nothing."""
    found = coefficients(S.One, np.array([[1.0, 1.0], [1.0, 1.0]]), np.array(diag(1, 1), dtype=float))
    assert np.isfinite(found).all()


@pytest.mark.parametrize("weight", ["W", "W0"])
def test_descent_by_singular_values_is_descent(weight: str) -> None:
    """With F = sigma the step is the gradient itself, of the weights of the inputs too."""
    rules = {weight: Spectral(eta, sigma)}
    outputs = []
    for program in (
        mlp(2, "tanh", rule=GradientDescent(eta), rules=rules),
        mlp(2, "tanh", rule=GradientDescent(eta)),
    ):
        solved = solve_particles(mean_field(program), steps=4, values=NUMBERS, data=DATA, samples=64)
        outputs.append(solved.value("f"))
    assert np.abs(outputs[0] - outputs[1]).max() < 1e-9 * np.abs(outputs[1]).max()


def test_a_function_of_singular_values_has_parameters_and_a_time() -> None:
    """Its variable was mistaken for a parameter, whose number solve and simulate required."""
    eps = Symbol("eps", positive=True)
    told = {"arrays": {"x": X, "y": Y}, "times": range(3)}
    found = []
    for F, more in ((sigma / (sigma + eps), {"eps": 0.5}), (sigma / (sigma + Rational(1, 2)), {})):
        program = mlp(2, "tanh", rule=adam(eta, epsilon=EPSILON), rules={"W": Spectral(eta, F)})
        assert "sigma" not in mean_field(program).symbols
        numbers = {"eta": RATE, "gamma0": 1.0, **more}
        found.append(numerics.solve(program, numbers=numbers, kernels="none", **told).f.values)
    assert np.abs(found[0] - found[1]).max() < 1e-9 * np.abs(found[1]).max()
    rules = {"W": Spectral(eta, sigma / (sigma + 1 + t))}
    moving = mlp(2, "tanh", rule=adam(eta, epsilon=EPSILON), rules=rules)
    solved = numerics.solve(moving, numbers={"eta": RATE, "gamma0": 1.0}, kernels="none", **told)
    assert np.isfinite(solved.f.values).all()


def by_hand(width: int, seed: int) -> Array:
    """Return outputs (times, samples) of a network whose hidden matrix moves by the orthogonal factor."""
    rng = np.random.default_rng(seed)
    W0 = rng.normal(size=(width, X.shape[1])) / np.sqrt(X.shape[1])
    W, w = rng.normal(size=(width, width)) / np.sqrt(width), rng.normal(size=width)
    means: list[Any] = [0.0, 0.0]
    squares: list[Any] = [0.0, 0.0]
    outputs = []
    for time in range(STEPS + 1):
        one = np.tanh(W0 @ X.T)
        two = np.tanh(W @ one)
        f = w @ two / width
        outputs.append(f)
        error = Y - f
        g2 = (1 - two**2) * w[:, None]
        g1 = (1 - one**2) * (W.T @ g2)
        moves = []
        for k, a in enumerate(((g1 * error) @ X, two @ error)):
            means[k] = 0.9 * means[k] + 0.1 * a
            squares[k] = 0.999 * squares[k] + 0.001 * a * a
            root = np.sqrt(squares[k] / (1 - 0.999 ** (time + 1)))
            moves.append(means[k] / (1 - 0.9 ** (time + 1)) / (root + EPSILON))
        U, values, V = np.linalg.svd((g2 * error) @ one.T, full_matrices=False)
        rank = int((values > 1e-9 * values[0]).sum())
        W0 = W0 + RATE / X.shape[1] * moves[0]
        w = w + RATE * moves[1]
        W = W + RATE * U[:, :rank] @ V[:rank]
    return np.array(outputs)


@pytest.mark.slow
def test_muon_follows_networks() -> None:
    solved = solve_particles(mean_field(MUON), steps=STEPS + 1, values=NUMBERS, data=DATA, samples=512)
    narrow = np.array([by_hand(48, seed) for seed in range(200)])
    wide = np.array([by_hand(96, seed) for seed in range(1000, 1150)])
    value = 2 * wide.mean(axis=0) - narrow.mean(axis=0)
    errors = [x.std(axis=0, ddof=1) / np.sqrt(len(x)) for x in (narrow, wide)]
    error = np.hypot(np.hypot(errors[0], 2 * errors[1]), solved.stderr("f"))
    z = in_errors((solved.value("f") - value)[1:], error[1:])
    assert excess(z) < 1, z
    adams = solve_particles(
        mean_field(mlp(2, "tanh", rule=adam(eta, epsilon=EPSILON))),
        steps=STEPS + 1,
        values=NUMBERS,
        data=DATA,
        samples=512,
    )
    assert np.abs(in_errors(adams.value("f") - value, error)[1:]).max() > 5


def test_networks_move_as_by_hand() -> None:
    """The package's networks find the singular vectors of the gradient from few vectors."""
    arrays = {"x": X, "y": Y}
    told = {"numbers": {"eta": RATE, "gamma0": 1.0}, "arrays": arrays, "times": range(STEPS + 1)}
    found = numerics.simulate(MUON, width=24, seeds=36, **told)
    mine = np.array([by_hand(24, seed) for seed in range(36)])
    error = np.hypot(found.f_stderr.values, mine.std(axis=0, ddof=1) / 6)
    z = in_errors((found.f.values - mine.mean(axis=0))[1:], error[1:])
    assert excess(z) < 1, z


def test_muon_of_a_vector_or_of_several_uses_is_refused() -> None:
    with pytest.raises(ProgramError, match="w is a vector of weights and moves by Muon"):
        mean_field(mlp(2, "tanh", rule=muon(eta)))
    with pytest.raises(
        NotApplicable, match="W moves by Muon: its gradient must be one sum over an index of samples"
    ):
        mean_field(convolution(2, "tanh", positions=4, receptive=1, rule=adam(eta), rules={"W": muon(eta)}))
