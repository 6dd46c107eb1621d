"""Sampled paths of entrywise rules against networks that are written out here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sympy import Function, Symbol, sign

from derive.program import Entrywise, GradientDescent, adam, eta, lion, mlp, s, sign_descent, t
from derive.program.entrywise import A
from derive.reduce.responses import without_responses
from derive.theory import mean_field
from numerics.errors import NotConverged, Unserved
from numerics.experiment.memory import tables_of_program
from numerics.experiment.theory import integrated
from numerics.lowering.entries import beside_memory
from numerics.solver.direct import evaluate
from numerics.solver.paths.signs import jumps_of_states
from numerics.solver.paths.solve import Prepared, solve_particles
from numerics.solver.registry import explain, solve
from tests.chance import excess, in_errors

Array = NDArray[np.float64]

X = np.array([[1.2, -0.4, 0.9], [0.3, 1.1, -0.6], [-0.7, 0.5, 1.3]])
Y = np.array([1.0, -0.7, 0.5])
STEPS, RATE, GAMMA = 6, 0.12, 1.0
DATA = {"K_x": X @ X.T / X.shape[1], "x": X, "y": Y}
NUMBERS = {"eta": RATE, "gamma0": GAMMA, "P": len(X)}

Move = Callable[[Array, dict[str, Any], int], Array]


def sign_step(a: Array, state: dict[str, Any], time: int) -> Array:
    return np.sign(a)


def adam_step(a: Array, state: dict[str, Any], time: int) -> Array:
    state["m"] = 0.9 * state.get("m", 0.0) + 0.1 * a
    state["v"] = 0.99 * state.get("v", 0.0) + 0.01 * a * a
    return (state["m"] / (1 - 0.9 ** (time + 1))) / (np.sqrt(state["v"] / (1 - 0.99 ** (time + 1))) + 1e-3)


def lion_step(a: Array, state: dict[str, Any], time: int) -> Array:
    m = state.get("m", 0.0)
    state["m"] = 0.99 * m + 0.01 * a
    return np.sign(0.9 * m + 0.1 * a)


def networks(move: Move, width: int, seeds: int, first: int) -> Array:
    """Return outputs (seeds, times, samples) of tanh networks of two hidden layers, by own gradients."""
    found = []
    for seed in range(first, first + seeds):
        rng = np.random.default_rng(seed)
        W0 = rng.normal(size=(width, X.shape[1])) / np.sqrt(X.shape[1])
        W, w = rng.normal(size=(width, width)) / np.sqrt(width), rng.normal(size=width)
        states: list[dict[str, Any]] = [{}, {}, {}]
        outputs = []
        for time in range(STEPS + 1):
            one = np.tanh(W0 @ X.T)
            two = np.tanh(W @ one)
            f = w @ two / (GAMMA * width)
            outputs.append(f)
            error = Y - f
            g2 = (1 - two**2) * w[:, None]
            g1 = (1 - one**2) * (W.T @ g2)
            gradients = (g1 * error) @ X, (g2 * error) @ one.T, two @ error
            q0, q, qw = (move(a, s, time) for a, s in zip(gradients, states, strict=True))
            W0 = W0 + RATE * GAMMA / X.shape[1] * q0
            W = W + RATE * GAMMA / width * q
            w = w + RATE * GAMMA * qw
        found.append(outputs)
    return np.array(found)


def extrapolated(move: Move) -> tuple[Array, Array]:
    """Return outputs at infinite width and their standard errors, from two widths."""
    narrow, wide = networks(move, 48, 160, 0), networks(move, 96, 120, 1000)
    value = 2 * wide.mean(axis=0) - narrow.mean(axis=0)
    errors = [x.std(axis=0, ddof=1) / np.sqrt(len(x)) for x in (narrow, wide)]
    return value, np.hypot(errors[0], 2 * errors[1])


RULES: dict[str, tuple[Entrywise, Move]] = {
    "sign": (sign_descent(eta), sign_step),
    "adam": (adam(eta, 0.9, 0.99, 1e-3), adam_step),
    "lion": (lion(eta), lion_step),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_paths_follow_networks(name: str) -> None:
    rule, move = RULES[name]
    solved = solve_particles(
        mean_field(mlp(2, "tanh", rule=rule)), steps=STEPS + 1, values=NUMBERS, data=DATA, samples=512
    )
    value, error = extrapolated(move)
    z = in_errors(solved.value("f")[1:] - value[1:], np.hypot(solved.stderr("f"), error)[1:])
    assert excess(z) < 1, z


def test_without_responses_outputs_are_others() -> None:
    """The signs of the input layer hide the response from derivatives along paths: Stein's lemma has it."""
    theory = mean_field(mlp(2, "tanh", rule=sign_descent(eta)))
    one, other = (
        solve_particles(x, steps=STEPS + 1, values=NUMBERS, data=DATA, samples=256)
        for x in (theory, without_responses(theory))
    )
    z = in_errors(one.value("f")[-1] - other.value("f")[-1], np.hypot(one.stderr("f"), other.stderr("f"))[-1])
    assert np.abs(z).max() > 5


def test_descent_by_entries_is_descent() -> None:
    """A state that is the gradient keeps the arrays of pairs: outputs are those of sums over the past."""
    state = Symbol("state", real=True)
    pairs, sums = (
        solve_particles(
            mean_field(mlp(2, "tanh", rule=rule)), steps=4, values=NUMBERS, data=DATA, responses="stein"
        )
        for rule in (Entrywise(eta, state, ((state, A),)), GradientDescent(eta))
    )
    for name in ("f", "Phi", "G"):
        for layer in (1, 2) if name != "f" else (None,):
            gap = np.abs(pairs.value(name, layer) - sums.value(name, layer))
            assert gap.max() < 1e-9 * np.abs(sums.value(name, layer)).max()


def test_inputs_are_needed_by_their_entries() -> None:
    given = {"K_x": DATA["K_x"], "y": Y}
    theory = mean_field(mlp(1, "tanh", rule=sign_descent(eta)))
    with pytest.raises(ValueError, match="data must hold x, the entries of the inputs"):
        Prepared(theory, steps=3, values=NUMBERS, data=given)


def test_other_methods_name_the_one_that_serves() -> None:
    program = mlp(2, "tanh", rule=adam(eta))
    told = {"numbers": {"eta": RATE, "gamma0": GAMMA}, "arrays": {"x": X, "y": Y}, "times": range(3)}
    said = str(explain(program, **told))
    assert said.count("Adam is not linear in the updates") == 6
    assert "fields move, by about 0.2" in said
    assert "runs: paths" in said
    with pytest.raises(Unserved, match="W0 moves by Adam"):
        evaluate(mean_field(program), steps=2, values=NUMBERS, data=DATA)


def test_memory_is_counted_by_pairs() -> None:
    """Three numbers for each pair of paths, and for each path and coordinate."""
    program = mlp(2, "tanh", rule=adam(eta))
    small, large = (
        Prepared(mean_field(program), steps=3, values=NUMBERS, data=DATA).bytes(n) for n in (256, 512)
    )
    assert large - small > 8 * 3 * (512**2 - 256**2)


def test_a_kernel_that_is_not_the_memory_of_the_rule_is_refused() -> None:
    lam = Symbol("lam", positive=True)
    rule = Entrywise(eta, A, decay=lam)
    assert beside_memory(3 * rule.memory(t, s)[1], rule) == (1, 3)
    with pytest.raises(Unserved, match="is not the memory of"):
        beside_memory(eta, rule)


def test_an_error_of_one_sample_that_goes_through_zero_is_refused() -> None:
    """Networks cross zero at different steps: their scatter does not fall with the width."""
    told = {"numbers": {"eta": 0.2, "gamma0": GAMMA}, "arrays": {"x": X[:1], "y": Y[:1]}}
    program = mlp(1, "tanh", rule=sign_descent(eta))
    with pytest.raises(
        NotConverged, match=r"Delta goes through zero at step \d+, .* and W0 moves by the sign"
    ):
        solve(program, times=range(12), **told)
    solve(program, times=range(3), **told)


def test_a_gradient_that_vanishes_by_symmetry_is_refused() -> None:
    """Mirror images with equal targets: an odd network has no output, and rounding would be the gradient."""
    mirrored = np.array([X[0], -X[0]])
    told = {"numbers": {"eta": RATE, "gamma0": GAMMA}, "arrays": {"x": mirrored, "y": np.ones(2)}}
    program = mlp(1, "tanh", rule=sign_descent(eta))
    with pytest.raises(NotConverged, match=r"gradient of W.? at step 0 is only a rounding error"):
        solve(program, times=range(3), **told)


def test_decay_that_is_a_table_keeps_the_rule() -> None:
    """A table of equal numbers is the constant decay: the memory becomes a table, the law stays."""
    lam, falling = Symbol("lam", positive=True), Function("falling")(t)
    constant, changing = (mlp(1, "tanh", rule=sign_descent(eta, x)) for x in (lam, falling))
    given: dict[str, Any] = {"steps": 4, "samples": 16, "replicas": 2, "values": NUMBERS | {"lam": 0.05}}
    closed = solve_particles(mean_field(constant), data=DATA, **given)
    ((_, tables),) = tables_of_program(changing)
    decay = {"falling": np.full(4, 0.05)}
    data = DATA | decay | tables.values({eta: RATE}, np.arange(4), arrays=decay)
    tabulated = solve_particles(mean_field(integrated(changing)), data=data, **given)
    assert np.abs(closed.value("f") - tabulated.value("f")).max() < 1e-12


def test_a_mean_of_errors_of_one_sample_that_goes_through_zero_is_refused() -> None:
    """The scatter of networks with Lion grew with the width, and the theory had small error bars.

    With the default constants of Lion the mean keeps its sign after the error, and the scatter stays of order
    N^(-1/2).
    """
    given: dict[str, Any] = {"samples": 32, "replicas": 2, "values": {**NUMBERS, "eta": 0.2, "P": 1}}
    given |= {"data": {"x": X[:1], "K_x": DATA["K_x"][:1, :1], "y": Y[:1]}}
    short, default = (mean_field(mlp(1, "tanh", rule=lion(eta, *x))) for x in ((0.5, 0.5), ()))
    with pytest.raises(
        NotConverged, match="the mean of Delta over steps in Lion goes through zero at step 7"
    ):
        solve_particles(short, steps=9, **given)
    solve_particles(short, steps=7, **given)
    assert solve_particles(default, steps=12, **given).value("Delta")[-1, 0] < 0


def test_jumps_of_states() -> None:
    m = Symbol("m", real=True)
    assert jumps_of_states(Entrywise(eta, m, ((m, m / 2 + sign(A)),))) == (A,)
    assert jumps_of_states(Entrywise(eta, m * sign(m), ((m, m / 2 + A),), before=True)) == ()
