"""The direct evaluation against the fast march, against networks trained by hand, and against itself."""

from __future__ import annotations

from dataclasses import replace
from math import comb
from typing import Any

import numpy as np
import pytest
from sympy import Abs, Expr, Function, Integer, Max, S, Symbol, sign, sqrt, tanh

from derive.program import P, eta, gamma0
from derive.theory import Theory
from numerics.errors import Diverged, SpecError, Unserved
from numerics.lowering.indices import RealNumber
from numerics.simulation import simulate_program
from numerics.solver.direct import Evaluated, evaluate
from numerics.solver.direct.interpret import CyclicDemand
from tests.chance import excess
from tests.derive.once import mean_field, mlp, perceptron
from tests.derive.programs import g, linear_recurrent, tau, two_layers
from tests.numerics.solver.helpers import INPUTS, TARGETS, gd, kernel, unprojected
from tests.numerics.solver.test_handwritten import ETA, GAMMA0, SAMPLES, STEPS
from tests.numerics.solver.test_handwritten import solved as marched_by_hand


def problem(samples: int, rate: float = 0.11) -> dict[str, object]:
    return {
        "values": {eta: rate, gamma0: 1.2, P: samples},
        "data": {"K_x": kernel(samples), "y": TARGETS[:samples]},
    }


# -- linear: the march ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2])
def test_linear_networks_agree_with_the_march(depth: int) -> None:
    steps, samples = 4, 2
    expected = unprojected(gd(depth, samples, steps=steps))
    direct = evaluate(mean_field(mlp()).at_depth(depth), steps=steps + 1, **problem(samples))
    assert direct.method == "linear"
    pairs = [(direct.value("Delta"), expected.error), (direct.value("f"), expected.f)]
    for k in range(1, depth + 1):
        pairs.append((direct.value("H", k).transpose(2, 3, 0, 1), expected.Phi[k - 1]))
        pairs.append((direct.value("G", k), expected.G[k - 1]))
    for k in range(1, depth):
        pairs.append((direct.value("A", k).transpose(1, 2, 0), expected.A[k - 1]))
        pairs.append((direct.value("B", k).transpose(1, 2, 0), expected.B[k - 1]))
    for ours, theirs in pairs:
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() < 1e-12
    assert not direct.stderr("Delta").any()


def test_a_feedback_network_written_by_hand() -> None:
    program = two_layers(feedback_learns=True)
    direct = evaluate(
        mean_field(program),
        steps=STEPS + 1,
        values={eta: ETA, gamma0: GAMMA0, P: SAMPLES},
        data={"K_x": kernel(SAMPLES), "y": TARGETS[:SAMPLES]},
    )
    expected = marched_by_hand(program).scalars["Delta"]
    assert np.abs(direct.value("Delta") - expected).max() < 1e-12


@pytest.mark.parametrize("symmetry", [0.0, 0.6, 1.0, -1.0])
def test_a_linear_recurrent_network(symmetry: float) -> None:
    """x(t) = (1 - eta + eta J)^t x(0), and <J^k x . J^j x> is the limit of a trace of J's and J^T's."""
    rate, strength, steps = 0.3, 0.9, 6
    theory = mean_field(linear_recurrent(tau if symmetry else S.Zero))
    direct = evaluate(theory, steps=steps, values={g: strength, eta: rate, tau: symmetry})

    def share(time: int, k: int) -> float:
        return comb(time, k) * (1 - rate) ** (time - k) * rate**k

    expected = [
        [
            sum(
                share(a, k) * share(b, j) * strength ** (k + j) * word("T" * k + "J" * j, symmetry)
                for k in range(a + 1)
                for j in range(b + 1)
            )
            for b in range(steps)
        ]
        for a in range(steps)
    ]
    assert direct.value("C") == pytest.approx(np.array(expected), abs=1e-12)


def word(letters: str, symmetry: float) -> float:
    """Return the limit of tr(word in J and J^T)/N at unit variance: the sum over non-crossing pairings."""
    if not letters:
        return 1.0
    return sum(
        (1.0 if letters[0] != letters[k] else symmetry)
        * word(letters[1:k], symmetry)
        * word(letters[k + 1 :], symmetry)
        for k in range(1, len(letters), 2)
    )


# -- particles -----------------------------------------------------------------------------------------------


def distances(a: Evaluated, b: Evaluated) -> np.ndarray:
    """Return differences of all entries in units of their common standard error, at least rounding."""
    assert a.values.keys() == b.values.keys()
    return np.concatenate(
        [
            ((a.values[k] - b.values[k]) / np.sqrt(a.errors[k] ** 2 + b.errors[k] ** 2 + 1e-24)).ravel()
            for k in a.values
        ]
    )


@pytest.mark.slow
def test_sampling_a_linear_network_agrees_within_its_errors() -> None:
    theory = mean_field(mlp(2)).at_depth(2)
    exact = evaluate(theory, steps=4, **problem(2, rate=0.3))
    sampled = evaluate(
        theory, steps=4, method="particles", samples=2**12, replicas=16, **problem(2, rate=0.3)
    )
    z = distances(exact, sampled)
    assert excess(z, 15) < 1
    assert 0.3 < np.sqrt(np.mean(z[z != 0] ** 2)) < 2.0  # the errors are neither too small nor too large
    assert max(e.max() for e in sampled.errors.values()) < 2e-3


def test_a_seed_gives_the_same_numbers_again() -> None:
    theory = mean_field(mlp(1, tanh))
    a, b, c = (
        evaluate(theory, steps=2, samples=256, replicas=2, seed=s, **problem(1)).value("Delta")
        for s in (1, 1, 2)
    )
    assert (a == b).all()
    assert (a != c).any()


RATE, WIDTHS, RUNS, TIMES = 0.6, (60, 120), 450, 4


def relu(v: object) -> object:
    return Max(0, v)


ACTIVATIONS = {
    "tanh": (tanh, np.tanh, lambda h: 1 - np.tanh(h) ** 2),
    "relu": (relu, lambda h: np.maximum(h, 0), lambda h: (h > 0) * 1.0),
}


def trained(name: str, width: int, seed: int) -> dict[str, np.ndarray]:
    """Return errors, and <phi phi>, <g g> at the last step, of a network with two hidden layers."""
    rng = np.random.default_rng(seed)
    _, phi, slope = ACTIVATIONS[name]
    x, y, gamma = INPUTS[:2], TARGETS[:2], 1.2
    D = x.shape[1]
    W0, W, w = (
        rng.standard_normal((width, D)),
        rng.standard_normal((width, width)),
        rng.standard_normal(width),
    )
    errors = []
    for _ in range(TIMES):
        h1 = W0 @ x.T / np.sqrt(D)
        h2 = W @ phi(h1) / np.sqrt(width)
        delta = y - w @ phi(h2) / (gamma * width)
        g2 = slope(h2) * w[:, None]
        g1 = slope(h1) * (W.T @ g2 / np.sqrt(width))
        errors.append(delta)
        w = w + RATE * gamma * phi(h2) @ delta
        W = W + RATE * gamma / np.sqrt(width) * (g2 * delta) @ phi(h1).T
        W0 = W0 + RATE * gamma / np.sqrt(D) * (g1 * delta) @ x
    return {"Delta": np.array(errors), "Phi": phi(h2).T @ phi(h2) / width, "G": g1.T @ g1 / width}


Networks = dict[str, tuple[np.ndarray, np.ndarray]]


@pytest.fixture(scope="module", params=["tanh", pytest.param("relu", marks=pytest.mark.slow)])
def wide_networks(request: pytest.FixtureRequest) -> tuple[str, Networks]:
    """Return each moment at infinite width, with its standard error, for each activation."""
    found = {}
    runs = [[trained(request.param, n, 10_000 * n + s) for s in range(RUNS)] for n in WIDTHS]
    for name in runs[0][0]:
        narrow, wide = (np.array([r[name] for r in of_width]) for of_width in runs)
        spread = [x.var(axis=0, ddof=1) / RUNS for x in (narrow, wide)]
        found[name] = 2 * wide.mean(axis=0) - narrow.mean(axis=0), np.sqrt(4 * spread[1] + spread[0])
    return request.param, found


def worst(theory: Theory, networks: Networks, samples: int = 2**11) -> float:
    """Return the largest distance of the theory from wide networks, relative to the bound of chance."""
    t = evaluate(theory, steps=TIMES, samples=samples, **problem(2, rate=RATE))
    last = TIMES - 1
    at = {"Delta": (None, ...), "Phi": (2, (..., last, last)), "G": (1, (..., last, last))}
    found = []
    for name, (layer, part) in at.items():
        value, error = networks[name]
        ours, our_error = t.value(name, layer)[part], t.stderr(name, layer)[part]
        found.append(np.ravel((ours - value) / np.sqrt(error**2 + our_error**2)))
    return excess(np.concatenate(found))


def test_networks_agree_with_wide_ones(wide_networks: tuple[str, Networks]) -> None:
    name, networks = wide_networks
    assert worst(mean_field(mlp(2, ACTIVATIONS[name][0])), networks) < 1


def test_a_theory_without_its_responses_is_found_out(wide_networks: tuple[str, Networks]) -> None:
    name, networks = wide_networks
    theory = mean_field(mlp(2, ACTIVATIONS[name][0]))
    assert any(x.kind == "response" for e in theory.equations for x in e.terms)
    without = replace(
        theory,
        equations=tuple(
            replace(e, terms=tuple(x for x in e.terms if x.kind != "response")) for e in theory.equations
        ),
    )
    assert worst(without, networks, samples=2**9) > 2.5


def test_responses_by_steins_lemma_are_those_by_the_chain_rule() -> None:
    """sign(h) tanh|h| is tanh h, but appears to jump: its slope on paths is unknown, not its average."""
    theory = mean_field(mlp(2, tanh))
    by_chain = evaluate(theory, steps=2, replicas=12, samples=2**9, **problem(1, rate=RATE))
    disguised = theory.map(
        lambda e: e.replace(lambda a: isinstance(a, tanh), lambda a: sign(a.args[0]) * tanh(Abs(a.args[0])))
    )
    by_stein = evaluate(disguised, steps=2, replicas=12, samples=2**9, **problem(1, rate=RATE))
    z = distances(by_chain, by_stein)
    assert excess(z, 11) < 1
    assert by_stein.stderr("B", 1).max() > 3 * by_chain.stderr("B", 1).max()  # it was another estimate


def test_sources_that_repeat_leave_single_responses_open_and_nothing_else() -> None:
    """Two equal inputs have equal sources: no average separates responses to them, and none is needed."""
    theory = mean_field(mlp(2, tanh))
    given = problem(2, rate=RATE)
    given["data"] |= {"K_x": np.ones((2, 2)), "y": np.array([1.0, -0.5])}
    by_chain = evaluate(theory, steps=3, replicas=8, samples=2**8, **given)
    disguised = theory.map(
        lambda e: e.replace(lambda a: isinstance(a, tanh), lambda a: sign(a.args[0]) * tanh(Abs(a.args[0])))
    )
    by_stein = evaluate(disguised, steps=3, replicas=8, samples=2**8, **given)
    assert np.isnan(by_stein.value("A", 1)[0, 0, 2, 0])
    known = [
        replace(found, values={k: x for k, x in found.values.items() if k[0] not in "AB"})
        for found in (by_chain, by_stein)
    ]
    z = distances(*known)
    assert excess(z, 7) < 1


def test_a_teacher_that_jumps_has_a_source_that_repeats() -> None:
    """Its response is in the weights' equation in a sum over all times, which networks confirm."""
    program, values = perceptron(teacher=sign), {"eta": 0.5, "kappa": 2}
    found = evaluate(mean_field(program), steps=3, samples=2**8, replicas=4, values=values)
    assert np.isnan(found.value("R_Delta_u_Z_v_star")[1, 0])
    networks = simulate_program(program, width=200, steps=2, seeds=60, values=values, data={}, seed=3)["C_v"]
    far = np.abs(found.value("C_v") - networks.mean)
    assert np.all(far < 6 * np.hypot(found.stderr("C_v"), networks.stderr) + 4 / 200)


# -- refusals ------------------------------------------------------------------------------------------------


def test_flows_and_generic_activations_are_refused() -> None:
    with pytest.raises(Unserved, match="takes rules in steps"):
        evaluate(mean_field(mlp(2, rule="flow")), steps=2, **problem(1))
    with pytest.raises(Unserved, match="phi"):
        evaluate(mean_field(mlp(2, Function("phi"))), steps=2, **problem(1))
    with pytest.raises(Unserved, match="not linear"):
        evaluate(mean_field(mlp(2, tanh)), steps=2, method="linear", **problem(1))


def test_missing_numbers_are_named() -> None:
    theory = mean_field(mlp(1))
    with pytest.raises(ValueError, match="must hold a number for eta"):
        evaluate(theory, steps=2, values={gamma0: 1, P: 1}, data={"K_x": [[1.0]], "y": [1.0]})
    with pytest.raises(ValueError, match="data does not contain K_x"):
        evaluate(theory, steps=2, values={gamma0: 1, P: 1, eta: 1}, data={"y": [1.0]})
    with pytest.raises(ValueError, match=r"data\.y: has shape \(1,\), but values\.P says"):
        evaluate(theory, steps=2, values={gamma0: 1, P: 2, eta: 1}, data={"K_x": np.eye(2), "y": [1.0]})
    with pytest.raises(ValueError, match="the depth is L"):
        evaluate(mean_field(mlp()), steps=2, **problem(1))
    with pytest.raises(KeyError, match=r"no H at layer 3; there are: .*H at 2"):
        evaluate(mean_field(mlp(2)), steps=1, **problem(1)).value("H", 3)


ONE_SAMPLE: dict[str, Any] = {"K_x": [[1.0]], "y": [1.0]}


@pytest.mark.parametrize("value", [-2, -2.0, np.int64(-2), Integer(-2)])
def test_roots_of_negative_numbers_are_no_numbers(value: RealNumber) -> None:
    """The root of the integer -2 was complex, and its real part 0 was taken."""
    root = Symbol("root")
    theory = mean_field(mlp(1)).map(lambda e: e.xreplace({gamma0: sqrt(root)}))
    with pytest.raises(Diverged, match="at step 0"):
        evaluate(theory, steps=1, values={"P": 1, "eta": 0.1, "root": value}, data=ONE_SAMPLE)
    theory = mean_field(mlp(1)).map(lambda e: e.xreplace({eta: sqrt(root)}))
    with pytest.raises(Diverged, match="at step 1"):
        evaluate(theory, steps=2, values={"P": 1, "gamma0": 1, "root": value}, data=ONE_SAMPLE)


@pytest.mark.parametrize("name", ["steps", "samples", "replicas"])
def test_numbers_of_steps_and_paths_are_integers(name: str) -> None:
    numbers = {"steps": 1, name: 10.5}
    with pytest.raises(SpecError, match=rf"^{name} = 10\.5: must be a whole number"):
        evaluate(mean_field(mlp(1)), values={"P": 1, "eta": 0.1, "gamma0": 1}, data=ONE_SAMPLE, **numbers)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"K_x": {1: 1.0, 2: 0.9}}, r"data\.K_x: has the key 1, which is not a pair of indices"),
        ({"K_x": {}}, r"data\.K_x: has no entries"),
        ({"K_x": {(1, 1): 1.0, (2, 2): 0.9, (1, 2): 0.2}}, r"data\.K_x: has no entry \(2, 1\)"),
        ({"K_x": {(1, 1): 1.0, (2, 2): 0.9, (1, 2): 0.2, (2, 1): 0.3}}, r"data\.K_x: is not symmetric"),
        ({"K_x": {(1, 1): 1.0, (2, 2): 0.9, (1, 2): 2.0, (2, 1): 2.0}}, r"data\.K_x: is not positive"),
        ({"y": {1: 1.0}}, r"data\['y'\] has no entry 2: give a number for it"),
        ({"y": {(1, 1): 1.0}}, r"data\['y'\] has keys of 2 indices, but y has 1 in the theory"),
        ({"y": {1: "a"}}, r'data\.y\[1\] = "a": is not a number'),
        ({"y": {1: 1.0, (1, 2): 1.0}}, r"data\.y: has keys of different numbers of indices"),
    ],
)
def test_mappings_of_data_are_checked_as_arrays_are(changes: dict[str, Any], reason: str) -> None:
    """A mapping from single indices gave one row of a kernel for all samples."""
    data = {"K_x": [[1.0, 0.2], [0.2, 0.9]], "y": [1.0, -0.5]} | changes
    with pytest.raises(ValueError, match=reason):
        evaluate(mean_field(mlp(1)), steps=1, values={"P": 2, "eta": 0.1, "gamma0": 1}, data=data)


def test_a_mapping_is_the_array_of_its_entries() -> None:
    kernel, targets = np.array([[1.0, 0.2], [0.2, 0.9]]), np.array([1.0, -0.5])
    entries = {(i + 1, j + 1): kernel[i, j] for i in range(2) for j in range(2)}
    by_array, by_mapping = (
        evaluate(mean_field(mlp(1)), steps=2, values={"P": 2, "eta": 0.1, "gamma0": 1}, data=data)
        for data in ({"K_x": kernel, "y": targets}, {"K_x": entries, "y": dict(enumerate(targets, 1))})
    )
    np.testing.assert_array_equal(by_array.value("f"), by_mapping.value("f"))


def test_a_theory_that_is_not_causal_is_refused_with_the_cycle() -> None:
    theory = mean_field(mlp(1))
    t = Symbol("t", nonnegative=True)
    (h,) = [e for e in theory.equations if e.name == "h"]

    def with_term(expr: Expr) -> Theory:
        changed = replace(h, terms=(*h.terms, h.terms[0].with_expression(expr)))
        return replace(theory, equations=tuple(changed if e is h else e for e in theory.equations))

    with pytest.raises(CyclicDemand, match=r"h\(1, 1, 0\) <- h\(1, 1, 0\)"):
        evaluate(with_term(h.lhs / 2), steps=1, **problem(1))
    with pytest.raises(ValueError, match="before the first step"):
        evaluate(with_term(h.lhs.subs(t, t - 1)), steps=1, **problem(1))
