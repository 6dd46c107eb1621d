"""Attention: the builder against a network in NumPy, both routes, and solutions against networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sympy import Function, S, Sum, Symbol, exp, sqrt

import numerics
from derive.errors import ProgramError
from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    IndexRange,
    L,
    Mean,
    Network,
    Population,
    Program,
    eta,
    gamma0,
    mu,
    t,
)
from derive.program.networks import attention
from derive.theory.routes import check_routes
from numerics.experiment.schema import Solver
from numerics.simulation import simulate_program
from tests.chance import excess, in_errors
from tests.numerics.networks.attention import (
    SEQUENCES,
    blocks,
    everything,
    kernel,
    marked,
    random_scores,
    two_heads,
)
from tests.numerics.networks.case import Case
from tests.numerics.networks.plain import Weights, descended, layer_norm, rms, softmax

N, NUMBERS = 4, {"eta": 0.5, "gamma0": 1.3}
OFFSET = np.array([[[0.3, -0.2], [0.1, 0.5]], [[-0.4, 0.2], [0.0, 0.7]]])
TARGETS = np.array([1.0, -0.6])
SMALL = {"activation": None, "normalisation": "none"}


def masked(w: Weights) -> Any:
    """Return outputs of one head with a mask, RMS normalisation, a perceptron with a bias, and the mean."""
    h = SEQUENCES[:2] @ w["E"].T / np.sqrt(3)
    query, key, value = (rms(h) @ w[x][0].T / np.sqrt(N) for x in "QKV")
    scores = query @ key.transpose(0, 2, 1) / N
    scores[:, 0, 1] = -np.inf
    h = h + softmax(scores) @ value / 2
    h = h + np.tanh(rms(h) @ w["U"][0].T / np.sqrt(N) + w["b"][0]) @ w["D"][0].T / np.sqrt(N) / 2
    return (rms(h) @ w["w"]).mean(axis=1) / (NUMBERS["gamma0"] * N)


def headed(w: Weights) -> Any:
    """Return outputs of two heads with offsets, layer normalisation, and the mean over positions."""
    h = SEQUENCES[:2] @ w["E"].T / np.sqrt(3)
    added = 0.0
    for e in range(2):
        query, key, value = (layer_norm(h) @ w[x][0, e].T / np.sqrt(N) for x in "QKV")
        added = added + softmax(query @ key.transpose(0, 2, 1) / N + OFFSET[e]) @ value
    return (layer_norm(h + added) @ w["w"]).mean(axis=1) / (NUMBERS["gamma0"] * N)


ONE, HEADS = (1, N, N), (1, 2, N, N)
WRITTEN: dict[
    str, tuple[Callable[[Weights], Any], dict[str, Any], dict[str, tuple[int, ...]], dict[str, Any]]
] = {
    "masked": (
        masked,
        {"causal": True, "bias": True, "branch": 0.5},
        {"Q": ONE, "K": ONE, "V": ONE, "U": ONE, "D": ONE, "b": (1, N)},
        {},
    ),
    "heads": (
        headed,
        {"activation": None, "heads": 2, "offsets": True, "normalisation": "layer"},
        {"Q": HEADS, "K": HEADS, "V": HEADS},
        {"offset": OFFSET},
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_the_builder_is_the_network_that_is_written_in_numpy(name: str) -> None:
    outputs, options, shapes, arrays = WRITTEN[name]
    rng = np.random.default_rng(2)
    weights = {k: rng.standard_normal(x) for k, x in {"E": (N, 3), "w": (N,), **shapes}.items()}
    scales = {"E": np.sqrt(3), "w": 1.0, "b": 1.0}
    found = simulate_program(
        attention(1, **options),
        width=N,
        steps=2,
        seeds=1,
        values={**NUMBERS, "P": 2},
        data={"x": SEQUENCES[:2], "y": TARGETS, **arrays},
        initial={k: x / scales.get(k, np.sqrt(N)) for k, x in weights.items()},
        wanted={},
    )
    expected = descended(outputs, weights, TARGETS, NUMBERS, steps=2)
    assert np.abs(expected[2] - expected[0]).max() > 0.05
    assert np.abs(found["f"].mean - expected).max() < 1e-10


@pytest.mark.slow
def test_the_start_is_exact() -> None:
    """Scores start at zero, so that weights are uniform, and values add the mean of two tokens."""
    arrays = {"K_x": kernel(SEQUENCES[:1]), "y": [1.0]}
    given: dict[str, Any] = {"numbers": {"eta": 0.1, "gamma0": 1.0}, "arrays": arrays, "times": range(2)}
    found = numerics.solve(attention(1, None), solver=Solver(samples=2**6), **given)
    start = {name: found[name].values[0].ravel() for name in ("f", "score", "size", "last_size")}
    assert np.abs(start["f"]).max() < 1e-12
    assert np.abs(start["score"]).max() < 1e-12
    assert np.allclose(start["size"], [2, 1])
    # <h^2> + <(V (n_1 + n_2)/2)^2> with n_1 = h_1/sqrt(2), n_2 = h_2 and <h_1 h_2> = 0
    assert np.allclose(start["last_size"], [2.5, 1.5])


def test_options_are_named() -> None:
    for options in (
        {"read": "first"},
        {"scores": "some"},
        {"normalisation": "batch"},
        {"heads": 0},
        {"positions": 0},
        {"branch": 0},
        {"reed": "last"},
    ):
        (key,) = options
        with pytest.raises(ProgramError, match=key):
            attention(1, **options)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        SMALL,
        {"heads": 2, "causal": True, "read": "each", "offsets": True, "bias": True},
        {"scores": "random", "normalisation": "layer"},
    ],
)
def test_routes_agree_at_any_depth(options: dict[str, Any]) -> None:
    for depth in (L, 1):
        found = check_routes(attention(depth, **options))
        assert found == []
        assert found.gradients == "compared"


CASES = [marked, two_heads, random_scores, blocks, everything]


@pytest.mark.slow
@pytest.mark.parametrize("make", CASES)
def test_theory_and_networks(make: Callable[[], Case]) -> None:
    case = make()
    theory, networks = case.theory(), case.networks()
    report = numerics.verification.compare(theory, networks)
    assert report.passed, str(report)
    size = theory["last_size"]
    assert float(abs(size[-1] - size[0]).max()) > 0.1 * float(size[0].max())
    if make in (marked, two_heads, everything):
        assert float(abs(theory["score"][-1]).max()) > 0.2


@pytest.mark.slow
def test_all_options_at_once_are_derived_by_both_routes() -> None:
    found = check_routes(everything().program)
    assert found == []
    assert found.gradients == "compared"


@pytest.mark.slow
def test_networks_without_a_mask_are_others() -> None:
    case = marked(40)
    case = replace(case, seeds=(60, 30))
    assert not case.compared(attention(1, read="last")).passed


@pytest.mark.slow
def test_names_are_free() -> None:
    """The same block written by a stranger has the same numbers."""
    program, renamed = attention(1, None), stranger()
    arrays = {"K_x": kernel(SEQUENCES[:2]), "y": TARGETS}
    given: dict[str, Any] = {"numbers": {"eta": 0.1, "gamma0": 1.0}, "times": range(4)}
    ours = numerics.solve(program, arrays=arrays, solver=Solver(samples=2**6), **given)
    arrays = {"gram": kernel(SEQUENCES[:2]), "label": TARGETS}
    theirs = numerics.solve(renamed, arrays=arrays, solver=Solver(samples=2**6), **given)
    for name, other in (("f", "f"), ("score", "rating")):
        error = np.hypot(ours[f"{name}_stderr"].values.ravel(), theirs[f"{other}_stderr"].values.ravel())
        gap = ours[name].values.ravel() - theirs[other].values.ravel()
        assert excess(in_errors(gap, error), theirs.attrs["replicas"] - 1) < 1


def stranger() -> Program:
    """Return one block with RMS normalisation under other names."""
    i, j, k = (Symbol(x, integer=True, positive=True) for x in ("i", "j", "k"))
    units = Population("units")
    token = GivenVector("token", Population("letters", given=True), "gram")
    s, z, ask, tell, say, out = (Field(x, units) for x in ("s", "z", "ask", "tell", "say", "out"))
    embed = GaussianMatrix("embed", units, token.population)
    A, B, C = (GaussianMatrix(x, units, units) for x in ("A", "B", "C"))
    v, rating, answer, label = GaussianVector("v", units), *map(Function, ("rating", "answer", "label"))
    weight = exp(rating(mu, i, j, t)) / Sum(exp(rating(mu, i, k, t)), (k, 1, 2))
    forward = {
        s(mu, i, t): embed @ token(mu, i),
        z(mu, i, t): s(mu, i, t) / sqrt(Mean(s(mu, i, t) ** 2)),
        ask(mu, i, t): A @ z(mu, i, t),
        tell(mu, i, t): B @ z(mu, i, t),
        say(mu, i, t): C @ z(mu, i, t),
        rating(mu, i, j, t): Mean(ask(mu, i, t) * tell(mu, j, t)),
        out(mu, i, t): s(mu, i, t) + Sum(weight * say(mu, j, t), (j, 1, 2)),
        answer(mu, t): Sum(Mean(v.symbol * out(mu, i, t) / sqrt(Mean(out(mu, i, t) ** 2))), (i, 1, 2))
        / (2 * gamma0),
    }
    places = tuple(IndexRange(x, S.One, S(2)) for x in (i, j))
    net = Network(
        "block", (s, z, ask, tell, say, out), forward, (embed, A, B, C, v), (), (token,), ranges=places
    )
    return net.train((label(mu) - answer(mu, t)) ** 2 / 2, GradientDescent(eta), together=True)
