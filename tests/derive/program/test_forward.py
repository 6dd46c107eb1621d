"""Tests of networks written as a forward pass: the derived gradient, by two routes and at finite width.

Each program below is a forward pass, a loss and a rule, in a dozen lines. The reference is a network written
out again in NumPy and trained by complex steps, independently of the reverse mode that made the program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sympy import Add, Expr, Function, KroneckerDelta, Max, S, Sum, Symbol, cosh, exp, log, sqrt, tanh
from sympy.core.function import AppliedUndef

from derive.errors import NotApplicable
from derive.program import (
    Attribute,
    Definition,
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    IndexRange,
    L,
    Mean,
    Network,
    P,
    Population,
    Program,
    ProgramError,
    ell,
    eta,
    gamma0,
    mu,
    t,
)
from derive.program.gradient_check import check_gradients
from derive.scale import count_powers, parametrized
from derive.theory.routes import check_routes
from numerics.simulation import simulate_program
from numerics.solver.direct import evaluate
from tests.chance import excess
from tests.derive.once import convolution, depth_program, isotropic, mean_field, mlp, structured
from tests.numerics.theories.programs import compare_with_networks

N, D, SAMPLES, ETA, GAMMA, STEPS = 4, 3, 2, 0.2, 1.3, 2
C, KEYS = 3, 2 * N

layer, pixels = Population("layer"), Population("input", given=True)
interior = IndexRange(ell, S.One, L - 1)
x, h, q = GivenVector("x", pixels, "K_x"), Field("h", layer, layered=True), Field("q", layer, layered=True)
f, y, k, c = Function("f"), Function("y"), Symbol("k", integer=True), Symbol("c", integer=True, positive=True)
kappa = Symbol("kappa", positive=True)  # keys over N
W0 = GaussianMatrix("W0", layer.at(1), pixels)
W = GaussianMatrix("W", layer.at(ell + 1), layer.at(ell), index=interior)
w = GaussianVector("w", layer.at(L))
out, now, top = f(mu, t), h(ell, mu, t), h(L, mu, t)
square, rule = (y(mu) - out) ** 2 / 2, GradientDescent(eta)


def gated(gate: Callable[[Expr], Expr] = lambda v: 1 + tanh(v), **edits: Any) -> Program:
    """Return the network of the tutorial, whose last layer gates itself through a frozen matrix."""
    V = GaussianMatrix("V", layer.at(L), layer.at(L))
    forward = {
        h(1, mu, t): W0 @ x(mu),
        h(ell + 1, mu, t): W(ell) @ now,
        q(L, mu, t): V @ top,
        out: Mean(w.symbol * gate(q(L, mu, t)) * top) / gamma0,
    }
    return Network("gated", (h, q), forward | edits, (W0, W, w), (V,), (x,)).train(square, rule)


def branches() -> Program:
    """Return two branches that multiply, ``h * sigma(V x)``."""
    V, v, one = GaussianMatrix("V", layer.at(1), pixels), GaussianVector("w", layer.at(1)), q(1, mu, t)
    forward = {
        h(1, mu, t): W0 @ x(mu),
        one: V @ x(mu),
        out: Mean(v.symbol * h(1, mu, t) / (1 + exp(-one))) / gamma0,
    }
    return Network("two branches", (h, q), forward, (W0, V, v), given=(x,), depth=S.One).train(square, rule)


def shared() -> Program:
    """Return a network whose last two layers use one matrix."""
    T, r = GaussianMatrix("T", layer.at(L), layer.at(L)), Field("last", layer, layered=True)
    forward = {
        h(1, mu, t): W0 @ x(mu),
        h(ell + 1, mu, t): W(ell) @ tanh(now),
        q(L, mu, t): T @ tanh(top),
        r(L, mu, t): T @ tanh(q(L, mu, t)),
        out: Mean(w.symbol * r(L, mu, t)) / gamma0,
    }
    return Network("a shared matrix", (h, q, r), forward, (W0, W, T, w), given=(x,)).train(square, rule)


def logistic() -> Program:
    """Return a perceptron with the logistic loss."""
    forward = {
        h(1, mu, t): W0 @ x(mu),
        h(ell + 1, mu, t): W(ell) @ tanh(now),
        out: Mean(w.symbol * tanh(top)) / gamma0,
    }
    net = Network("logistic", (h,), forward, (W0, W, w), given=(x,))
    return net.train(log(1 + exp(-y(mu) * out)), rule)


def recurrent_inputs() -> Program:
    """Return a recurrent network unrolled in time, with an input at each step."""
    units = Population("units")
    r, A = Field("h", units, ordered=True), GaussianMatrix("A", units, pixels)
    R, v = GaussianMatrix("R", units, units), GaussianVector("w", units)
    forward = {
        r(1, mu, t): A @ x(mu, 1),
        r(k + 1, mu, t): R @ tanh(r(k, mu, t)) + A @ x(mu, k + 1),
        out: Mean(v.symbol * tanh(r(L, mu, t))) / gamma0,
    }
    net = Network("recurrent", (r,), forward, (A, R, v), given=(x,), ranges=(IndexRange(k, S.One, L - 1),))
    return net.train(square, rule)


def normalised(named: bool = False) -> Program:
    """Return RMS normalisation of a residual stream, ``n = h/sqrt(<h^2>)``.

    Gradients pass through the average.
    """
    stream = Population("stream", shared=True)
    h, n = (Field(name, stream, layered=True) for name in "hn")
    A, v = GaussianMatrix("W0", stream.at(1), pixels), GaussianVector("w", stream)
    B = GaussianMatrix("W", stream.at(ell + 1), stream.at(ell), index=interior)
    size = Function("m")(ell, mu, t)  # a number of each layer
    forward = {
        h(1, mu, t): A @ x(mu),
        **({size: Mean(now**2)} if named else {}),
        n(ell, mu, t): now / sqrt(size if named else Mean(now**2)),
        h(ell + 1, mu, t): now + B(ell) @ tanh(n(ell, mu, t)),
        out: Mean(v.symbol * n(L, mu, t)) / gamma0,
    }
    layers = IndexRange(ell, S.One, L)
    return Network("normalised", (h, n), forward, (A, B, v), given=(x,), ranges=(layers,)).train(square, rule)


def softmax() -> Program:
    """Return C outputs and cross-entropy."""
    channels = IndexRange(c, 1, C)
    v, logits = GaussianVector("w", layer.at(L), indices=(channels,)), [f(mu, i, t) for i in range(1, C + 1)]
    forward = {
        h(1, mu, t): W0 @ x(mu),
        h(ell + 1, mu, t): W(ell) @ tanh(now),
        f(mu, c, t): Mean(v(c) * tanh(top)) / gamma0,
    }
    net = Network("softmax", (h,), forward, (W0, W, v), given=(x,), ranges=(channels,))
    return net.train(log(Add(*map(exp, logits))) - Add(*[y(mu, a.args[1]) * a for a in logits]), rule)


def attention() -> Program:
    """Return one block of attention with one head on two positions.

    The logits ``k.q/N`` are numbers in the limit.
    """
    p, r, j = (Symbol(n, integer=True, positive=True) for n in ("p", "r", "j"))
    places = (IndexRange(p, 1, 2), IndexRange(r, 1, 2))
    units = Population("units")
    e, key, query, value, mixed = (Field(n, units) for n in ("e", "key", "query", "value", "mixed"))
    E, v = GaussianMatrix("E", units, pixels), GaussianVector("w", units)
    K, Q, V = (GaussianMatrix(n, units, units) for n in "KQV")
    score, A = Function("score"), Function("A")
    weights = Sum(exp(score(mu, p, j, t)), (j, 1, 2))
    forward = {
        e(mu, p, t): E @ x(mu, p),
        key(mu, p, t): K @ e(mu, p, t),
        query(mu, p, t): Q @ e(mu, p, t),
        value(mu, p, t): V @ e(mu, p, t),
        score(mu, p, r, t): Mean(query(mu, p, t) * key(mu, r, t)),
        A(mu, p, r, t): exp(score(mu, p, r, t)) / weights,
        mixed(mu, p, t): Sum(A(mu, p, r, t) * value(mu, r, t), (r, 1, 2)),
        out: Sum(Mean(v.symbol * tanh(mixed(mu, p, t))), (p, 1, 2)) / gamma0,
    }
    net = Network(
        "attention", (e, key, query, value, mixed), forward, (E, K, Q, V, v), given=(x,), ranges=places
    )
    return net.train(square, rule)


def heads(learned: bool = True, watched: bool = False) -> Program:
    """Return heads as a population, whose logits ``k.q/sqrt(n)`` with n keys are random numbers.

    A head adds up its products ``k_n q_n`` with individual signs, ``Z``. Changing the signs of keys changes
    nothing else, so that with many more keys than heads these are heads with separate keys.
    """
    p, r, j = (Symbol(n, integer=True, positive=True) for n in ("p", "r", "j"))
    units, keys, each = Population("units"), Population("keys", kappa), Population("heads")
    e, key, query, pair = Field("e", units), *(Field(n, keys) for n in ("key", "query", "pair"))
    score, value, mixed = (Field(n, each) for n in ("score", "value", "mixed"))
    E, v = GaussianMatrix("E", units, pixels), GaussianVector("w", each)
    K, Q, V = (GaussianMatrix(n, rows, units) for n, rows in zip("KQV", (keys, keys, each), strict=True))
    Z = GaussianMatrix("Z", each, keys, variance=1 / kappa)
    total = Sum(exp(score(mu, p, j, t)), (j, 1, 2))
    forward = {
        e(mu, p, t): E @ x(mu, p),
        key(mu, p, t): K @ e(mu, p, t),
        query(mu, p, t): Q @ e(mu, p, t),
        value(mu, p, t): V @ e(mu, p, t),
        pair(mu, p, r, t): query(mu, p, t) * key(mu, r, t),
        score(mu, p, r, t): Z @ pair(mu, p, r, t),
        mixed(mu, p, t): Sum(exp(score(mu, p, r, t)) / total * value(mu, r, t), (r, 1, 2)),
        out: Sum(Mean(v.symbol * tanh(mixed(mu, p, t))), (p, 1, 2)) / gamma0,
    }
    if watched:  # do heads attend to what they are useful for?
        forward[Function("sense")(mu, p, r, t)] = Mean(v.symbol * score(mu, p, r, t) * value(mu, r, t))
    places, fields = (IndexRange(p, 1, 2), IndexRange(r, 1, 2)), (e, key, query, pair, score, value, mixed)
    asking = (K, Q)
    trained = (E, V, v, *(asking if learned else ()))
    frozen = (Z, *(() if learned else asking))
    net = Network("heads", fields, forward, trained, frozen, (x,), ranges=places)
    return net.train(square, rule)


# -- reference networks --------------------------------------------------------------------------------------

Weights = dict[str, Any]
RNG = np.random.default_rng(3)
INPUTS = RNG.standard_normal((SAMPLES, D))
SERIES = RNG.standard_normal((SAMPLES, 2, D))
VALUES = {"eta": ETA, "gamma0": GAMMA, "P": SAMPLES, "kappa": KEYS / N}
SEQUENCES = ("recurrent", "attention", "heads")
LABELS = np.array([1.0, -1.0])
HOT = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])


def read(w: Weights, top: Any) -> Any:
    return top @ w["w"] / (GAMMA * N)


def forward_gated(w: Weights) -> Any:
    top = INPUTS @ w["W0"].T @ w["W"].T / np.sqrt(D * N)
    return read(w, (1 + np.tanh(top @ w["V"].T / np.sqrt(N))) * top)


def forward_branches(w: Weights) -> Any:
    one, two = (INPUTS @ w[n].T / np.sqrt(D) for n in ("W0", "V"))
    return read(w, one / (1 + np.exp(-two)))


def forward_shared(w: Weights) -> Any:
    top = np.tanh(INPUTS @ w["W0"].T / np.sqrt(D)) @ w["W"].T / np.sqrt(N)
    inner = np.tanh(top) @ w["T"].T / np.sqrt(N)
    return read(w, np.tanh(inner) @ w["T"].T / np.sqrt(N))


def forward_mlp(w: Weights) -> Any:
    return read(w, np.tanh(np.tanh(INPUTS @ w["W0"].T / np.sqrt(D)) @ w["W"].T / np.sqrt(N)))


def forward_recurrent(w: Weights) -> Any:
    inside = np.tanh(SERIES[:, 0] @ w["A"].T / np.sqrt(D)) @ w["R"].T / np.sqrt(N)
    return read(w, np.tanh(inside + SERIES[:, 1] @ w["A"].T / np.sqrt(D)))


def forward_normalised(w: Weights) -> Any:
    def unit(h: Any) -> Any:
        return h / np.sqrt((h**2).mean(axis=1, keepdims=True))

    first = INPUTS @ w["W0"].T / np.sqrt(D)
    return read(w, unit(first + np.tanh(unit(first)) @ w["W"].T / np.sqrt(N)))


def forward_softmax(w: Weights) -> Any:
    top = np.tanh(np.tanh(INPUTS @ w["W0"].T / np.sqrt(D)) @ w["W"].T / np.sqrt(N))
    return top @ w["w"].T / (GAMMA * N)


def forward_attention(w: Weights) -> Any:
    embedded = SERIES @ w["E"].T / np.sqrt(D)
    key, query, value = (embedded @ w[n].T / np.sqrt(N) for n in "KQV")
    share = np.exp(query @ key.transpose(0, 2, 1) / N)
    mixed = (share / share.sum(axis=2, keepdims=True)) @ value
    return read(w, np.tanh(mixed).sum(axis=1))


def forward_heads(w: Weights) -> Any:
    embedded = SERIES @ w["E"].T / np.sqrt(D)
    key, query, value = (embedded @ w[n].T / np.sqrt(N) for n in "KQV")
    pairs = query[:, :, None] * key[:, None]
    share = np.exp(pairs @ w["Z"].T / np.sqrt(len(w["K"])))
    mixed = (share / share.sum(axis=2, keepdims=True) * value[:, None]).sum(axis=2)
    return read(w, np.tanh(mixed).sum(axis=1))


def squared(f: Any) -> Any:
    return ((LABELS - f) ** 2).sum() / 2


def entropy(f: Any) -> Any:
    return (np.log(np.exp(f).sum(axis=1)) - (HOT * f).sum(axis=1)).sum()


def log_loss(f: Any) -> Any:
    return np.log(1 + np.exp(-LABELS * f)).sum()


SHAPES: dict[str, tuple[int, ...]] = {"W0": (N, D), "W": (N, N), "w": (N,)}
KERNEL = {"K_x": [[1.0, 0.3], [0.3, 0.8]], "y": LABELS}
Case = tuple[
    Callable[[], Program], Callable[[Weights], Any], Callable[[Any], Any], dict[str, tuple[int, ...]]
]
NETWORKS: dict[str, Case] = {
    "gated": (gated, forward_gated, squared, {**SHAPES, "V": (N, N)}),
    "branches": (branches, forward_branches, squared, {"W0": (N, D), "V": (N, D), "w": (N,)}),
    "shared": (shared, forward_shared, squared, {**SHAPES, "T": (N, N)}),
    "logistic": (logistic, forward_mlp, log_loss, SHAPES),
    "recurrent": (recurrent_inputs, forward_recurrent, squared, {"A": (N, D), "R": (N, N), "w": (N,)}),
    "normalised": (normalised, forward_normalised, squared, SHAPES),
    "normalised by a number": (lambda: normalised(named=True), forward_normalised, squared, SHAPES),
    "attention": (
        attention,
        forward_attention,
        squared,
        {"E": (N, D), "K": (N, N), "Q": (N, N), "V": (N, N), "w": (N,)},
    ),
    "heads": (
        heads,
        forward_heads,
        squared,
        {"E": (N, D), "K": (KEYS, N), "Q": (KEYS, N), "V": (N, N), "Z": (N, KEYS), "w": (N,)},
    ),
    "softmax": (softmax, forward_softmax, entropy, {**SHAPES, "w": (C, N)}),
}


def trained(outputs: Any, loss: Any, weights: Weights, frozen: tuple[str, ...] = ()) -> Any:
    """Return the outputs at every step of ``theta -= eta gamma0^2 N grad(loss)``, by complex steps."""
    seen = [outputs(weights)]
    for _ in range(STEPS):
        after = dict(weights)
        for name, value in weights.items():
            if name in frozen:
                continue
            slope = np.zeros_like(value)
            for at in np.ndindex(value.shape):
                moved = value.astype(complex)
                moved[at] += 1e-30j
                slope[at] = loss(outputs({**weights, name: moved})).imag / 1e-30
            after[name] = value - ETA * GAMMA**2 * N * slope
        weights = after
        seen.append(outputs(weights))
    return np.array(seen)


def applied(weights: Weights) -> dict[str, Any]:
    """Return raw weights over the root of their fan-in, as a program applies them."""
    found: dict[str, Any] = {}
    for name, value in weights.items():
        if name == "w":
            found[name] = dict(enumerate(value, start=1)) if value.ndim == 2 else value
        else:
            matrix = value / np.sqrt(value.shape[1])
            found[name] = {1: matrix} if name == "W" else matrix
    return found


def of_two_layers(program: Program) -> Program:
    """Return a program at depth two if its depth is a symbol."""
    return program.at_depth(2) if program.depth.has(L) else program


def simulated(name: str, program: Program) -> tuple[Any, Any]:
    """Return outputs of the program and of the network that is differentiated by complex steps."""
    _, outputs, loss, shapes = NETWORKS[name]
    weights = {key: RNG.standard_normal(shape) for key, shape in shapes.items()}
    data = {
        "x": SERIES if name in SEQUENCES else INPUTS,
        "y": HOT if name == "softmax" else LABELS,
    }
    run = simulate_program(
        of_two_layers(program),
        width=N,
        steps=STEPS,
        seeds=1,
        values=VALUES,
        data=data,
        initial=applied(weights),
    )
    frozen = {"gated": ("V",), "heads": ("Z",)}.get(name, ())
    return run["f"].mean, trained(outputs, loss, weights, frozen)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_program_goes_down_the_gradient_of_its_network(name: str) -> None:
    found, expected = simulated(name, NETWORKS[name][0]())
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_both_routes_derive_it(name: str) -> None:
    """At every depth, and at depth two."""
    program = NETWORKS[name][0]()
    assert check_routes(program) == check_routes(of_two_layers(program)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_wide_networks_follow_the_theory(name: str) -> None:
    data: dict[str, Any] = dict(KERNEL)
    if name == "softmax":
        data["y"] = HOT
    if name in SEQUENCES:
        data["K_x"] = np.einsum("akd,bld->akbl", SERIES, SERIES) / D
    found = compare_with_networks(
        of_two_layers(NETWORKS[name][0]()),
        VALUES,
        data,
        steps=2,
        widths=(160, 320) if name == "attention" else (60, 120),  # its logits are means of products
        seeds=(160, 80) if name == "attention" else (300, 150),
        samples=2**12,
    )
    assert found.agrees, found


def multi_head(seed: int, width: int, size: int, rate: float, learned: bool) -> tuple[Any, Any]:
    """Return outputs after one step, and means of readout times logit times value, of ``width`` heads.

    Each head has ``size`` separate keys and queries, trained if ``learned``, logits ``k.q/sqrt(size)``, and
    one value; the gradient is written by hand for this network alone.
    """
    rng = np.random.default_rng(seed)
    root, far = np.sqrt(width), rate * GAMMA**2 * width
    E, V, w = rng.standard_normal((width, D)), rng.standard_normal((width, width)), rng.standard_normal(width)
    K, Q = (rng.standard_normal((width * size, width)) for _ in range(2))

    def forward() -> tuple[Any, ...]:
        e = SERIES @ E.T / np.sqrt(D)
        k, q = ((e @ m.T / root).reshape(*e.shape, size) for m in (K, Q))
        logits = np.einsum("mphn,mrhn->mprh", q, k, optimize=True) / np.sqrt(size)
        share = np.exp(logits - logits.max(axis=2, keepdims=True))
        share /= share.sum(axis=2, keepdims=True)
        v = e @ V.T / root
        top = np.tanh((share * v[:, None]).sum(axis=2))
        return e, k, q, logits, share, v, top, (top @ w).sum(axis=1) / (GAMMA * width)

    e, k, q, _, share, v, top, f = forward()
    miss = (f - LABELS)[:, None, None] / (GAMMA * width)
    of_mixed = miss * w * (1 - top**2)
    of_share = of_mixed[:, :, None] * v[:, None]
    of_logits = share * (of_share - (share * of_share).sum(axis=2, keepdims=True)) / np.sqrt(size)
    of_v = (share * of_mixed[:, :, None]).sum(axis=1)
    of_q = np.einsum("mprh,mrhn->mphn", of_logits, k, optimize=True).reshape(*e.shape[:2], -1)
    of_k = np.einsum("mprh,mphn->mrhn", of_logits, q, optimize=True).reshape(*e.shape[:2], -1)
    of_e = (of_v @ V + of_k @ K + of_q @ Q) / root
    w = w - far * (miss * top).sum(axis=(0, 1))
    E, V, K, Q = (
        m - far * np.einsum("mpi,mpj->ij", slope, under, optimize=True) / scale
        for m, slope, under, scale in (
            (E, of_e, SERIES, np.sqrt(D)),
            (V, of_v, e, root),
            (K, learned * of_k, e, root),
            (Q, learned * of_q, e, root),
        )
    )
    _, _, _, logits, _, v, _, f = forward()
    return f, (w * logits * v[:, None]).mean(axis=3)


@pytest.mark.slow
def test_heads_with_keys_of_their_own_follow_the_theory_of_many_keys() -> None:
    """Logits ``k.q/sqrt(n)``, a = 1/2, of attention whose heads, and keys of each head, are many."""
    runs, rate, data = [], 0.5, {"K_x": np.einsum("akd,bld->akbl", SERIES, SERIES) / D, "y": LABELS}
    for width, size, seeds in ((32, 16, 3000), (64, 32, 1500)):
        rows = []
        for seed in range(seeds):
            (f, sense), (_, other) = (multi_head(seed, width, size, rate, x) for x in (True, False))
            rows.append(np.concatenate([f, sense.ravel(), (sense - other).ravel()]))
        runs.append((np.mean(rows, axis=0), np.std(rows, axis=0) / np.sqrt(seeds)))
    (one, e1), (two, e2) = runs
    found, spread = 2 * two - one, np.hypot(2 * e2, e1)  # in the limit of many heads and keys

    def solved(learned: bool) -> tuple[Any, ...]:
        numbers = {**VALUES, "eta": rate, "kappa": 1000}
        run = evaluate(mean_field(heads(learned, True)), steps=2, values=numbers, data=data, samples=2**14)
        return tuple(y("f" if i else "sense")[1].ravel() for y in (run.value, run.stderr) for i in (1, 0))

    (f, sense, f_error, sense_error), (_, other, _, other_error) = solved(True), solved(False)
    theirs = np.concatenate([f, sense, sense - other])
    errors = np.concatenate([f_error, sense_error, np.hypot(sense_error, other_error)])
    assert excess((found - theirs) / np.hypot(spread, errors)) < 1
    assert (np.abs(found) / spread)[-8:].max() > 6  # which with keys that do not learn would be zero


# -- mutations: a change of the forward pass changes all that follows from it --------------------------------


def mutant(which: str) -> tuple[Program, Callable[[Weights], Any], dict[str, tuple[int, ...]]]:
    """Return a forward pass with one change, and the network with the same change."""
    b = GaussianVector("b", layer.at(1))
    first = INPUTS / np.sqrt(D)
    shapes = {**SHAPES, "b": (N,)}
    lines = {
        h(1, mu, t): W0 @ x(mu) + b.symbol,
        h(2, mu, t): h(1, mu, t) / 2 + W(1) @ tanh(h(1, mu, t)),
        out: Mean(w.symbol * tanh(h(2, mu, t))) / gamma0,
    }
    bias, half, transposed, last, factor = True, 0.5, False, 2, 1.0
    if which == "a factor":
        factor = 3.0
        lines[h(2, mu, t)] = h(1, mu, t) / 2 + 3 * (W(1) @ tanh(h(1, mu, t)))
    if which == "a missing branch":
        half = 0.0
        lines[h(2, mu, t)] = W(1) @ tanh(h(1, mu, t))
    if which == "a transposed matrix":
        transposed = True
        lines[h(2, mu, t)] = h(1, mu, t) / 2 + W(1).T @ tanh(h(1, mu, t))
    if which == "a wrong layer":
        last = 1
        lines[out] = Mean(w.symbol * tanh(h(1, mu, t)) + w.symbol * tanh(h(2, mu, t))) / gamma0
    if which == "a lost bias":
        bias = False
        lines[h(1, mu, t)] = W0 @ x(mu)
        del shapes["b"]

    def outputs(v: Weights) -> Any:
        one = first @ v["W0"].T + (v["b"] if bias else 0)
        matrix = v["W"] if transposed else v["W"].T
        two = half * one + factor * np.tanh(one) @ matrix / np.sqrt(N)
        return read(v, np.tanh(two) + (np.tanh(one) if last == 1 else 0))

    stream = Population("layer", shared=True)
    weights = (
        GaussianMatrix("W0", stream.at(1), pixels),
        GaussianMatrix("W", stream.at(ell + 1), stream.at(ell), index=IndexRange(ell, S.One, S.One)),
        replace(w, population=stream),
        *((replace(b, population=stream),) if bias else ()),
    )
    net = Network("mutant", (Field("h", stream, layered=True),), lines, weights, given=(x,), depth=S(2))
    return net.train(square, rule), outputs, shapes


MUTATIONS = ("nothing", "a factor", "a missing branch", "a transposed matrix", "a wrong layer", "a lost bias")


@pytest.mark.parametrize("which", MUTATIONS)
def test_a_changed_forward_pass_changes_its_gradient(which: str) -> None:
    program, outputs, shapes = mutant(which)
    weights = {key: RNG.standard_normal(shape) for key, shape in shapes.items()}
    values = {"eta": ETA, "gamma0": GAMMA, "P": SAMPLES}
    data = {"x": INPUTS, "y": LABELS}
    start = applied({n: v for n, v in weights.items() if n != "b"}) | {
        n: weights[n] for n in weights if n == "b"
    }
    run = simulate_program(program, width=N, steps=STEPS, seeds=1, values=values, data=data, initial=start)
    np.testing.assert_allclose(run["f"].mean, trained(outputs, squared, weights), rtol=0, atol=1e-12)
    plain = mutant("nothing")[0]
    backward = {(d.lhs, d.rhs) for d in program.definitions if d.name in ("g", "z")}
    same = backward == {(d.lhs, d.rhs) for d in plain.definitions if d.name in ("g", "z")}
    assert same == (which in ("nothing", "a lost bias"))
    if which not in ("nothing", "a missing branch"):
        assert {v.name: v.update for v in program.trained()} != {v.name: v.update for v in plain.trained()}


# -- losses --------------------------------------------------------------------------------------------------


def shallow(loss: Expr, extra: dict[Expr, Expr] | None = None, **options: Any) -> Program:
    """Return one hidden layer."""
    one = GaussianVector("w", layer.at(1))
    forward = {h(1, mu, t): W0 @ x(mu), out: Mean(one.symbol * tanh(h(1, mu, t))) / gamma0}
    fields = (h, q) if any(str(a.func) == "q" for a in extra or {}) else (h,)
    net = Network("one layer", fields, forward | (extra or {}), (W0, one), given=(x,), depth=S.One)
    return net.train(loss, rule, **options)


def line(program: Program, name: str) -> Expr:
    return next(d.rhs for d in program.definitions if d.name == name)


def test_the_error_is_minus_the_slope_of_the_loss() -> None:
    rho, label = Function("rho")(mu), y(mu)
    assert line(shallow(rho * square), "Delta") == rho * (label - out)
    assert line(shallow(log(1 + exp(-label * out))), "Delta").equals(label / (1 + exp(label * out)))
    hinge = line(shallow(Max(0, 1 - label * out)), "Delta")
    assert [hinge.subs({out: at, label: 1}) for at in (0, 1, 2)] == [1, S.Half, 0]  # one half at the kink
    total = Add(*[exp(f(mu, i, t)) for i in range(1, C + 1)])
    found = line(softmax(), "Delta")
    for i in range(1, C + 1):
        assert found.subs(c, i).equals(y(mu, i) - exp(f(mu, i, t)) / total)
    assert found.has(KroneckerDelta)


def test_several_outputs_put_their_errors_into_the_gradient() -> None:
    e = Function("e")(mu, t)
    program = shallow(square + e**2, {e: Mean(h(1, mu, t) ** 2)})
    Delta, omega = Function("Delta_f")(mu, t), Function("omega")(1, t)
    slope = 1 - tanh(h(1, mu, t)) ** 2
    energy = 2 * gamma0 * Function("Delta_e")(mu, t) * h(1, mu, t)
    assert (line(program, "g") - energy - slope * omega * Delta).expand() == 0
    assert line(program, "Delta_e") == -2 * e


def test_a_last_layer_that_is_read_in_two_places_trains() -> None:
    """Two matrices a layer, with a readout of what each of the last two gives."""
    V = GaussianMatrix("V", layer.at(ell), layer.at(ell), index=IndexRange(ell, S.One, L))
    forward = {
        h(1, mu, t): W0 @ x(mu),
        q(ell, mu, t): V(ell) @ tanh(now),
        h(ell + 1, mu, t): W(ell) @ tanh(q(ell, mu, t)),
        out: Mean(w.symbol * (q(L, mu, t) + tanh(top))) / gamma0,
    }
    program = Network("twice", (h, q), forward, (W0, W, w), (V,), (x,)).train(square, rule).at_depth(3)
    given = {"values": VALUES, "data": {"x": INPUTS, "y": LABELS}, "width": N, "steps": 1, "seeds": 1}
    derived, differences = (simulate_program(program, **given, loss=loss) for loss in (None, square))
    np.testing.assert_allclose(derived["f"].mean, differences["f"].mean, rtol=0, atol=1e-6)


def test_a_gate_in_front_of_channels_is_trained_by_a_field() -> None:
    """The update of a gated product holds the readouts as a field, which a theory has equations for."""
    channels = IndexRange(c, 1, 2)
    v, V = GaussianVector("w", layer, indices=(channels,)), GaussianMatrix("V", layer, layer)
    one, two = (Field(name, layer)(mu, t) for name in "hq")
    forward = {
        one: replace(W0, rows=layer) @ x(mu),
        two: tanh(one) * (V @ one),
        f(mu, c, t): Mean(v(c) * two) / gamma0,
    }
    fields, weights = (Field("h", layer), Field("q", layer)), (replace(W0, rows=layer), V, v)
    net = Network("gate", fields, forward, weights, given=(x,), ranges=(channels,))
    program = net.train((y(mu, c) - f(mu, c, t)) ** 2 / 2, rule)
    update = next(u.update for u in program.trained() if u.name == "V")
    known = {d.name for d in program.definitions} | {"y"}
    assert {
        a.func.__name__ for side in (update.left, update.right) for a in side.atoms(AppliedUndef)
    } <= known
    assert check_routes(program) == []


@pytest.mark.parametrize("name", ["loss", "the_loss", "output"])
def test_an_output_may_have_any_name(name: str) -> None:
    """The gradient of a loss of two outputs holds the errors of both, whatever they are called."""
    e = Function(name)(mu, t)
    program = shallow(square + e**2, {e: Mean(h(1, mu, t) ** 2)})
    errors = {a.func.__name__ for a in line(program, "g").atoms(AppliedUndef)}
    assert {"Delta_f", f"Delta_{name}"} <= errors


def test_what_mixes_samples_has_the_gradient_of_the_loss() -> None:
    """Centred by the mean over the batch."""
    other = Symbol("nu", integer=True, positive=True)
    centred = h(1, mu, t) - Sum(h(1, other, t), (other, 1, P)) / P
    lines = {q(1, mu, t): centred, out: Mean(GaussianVector("w", layer.at(1)).symbol * q(1, mu, t))}
    with pytest.raises(ProgramError, match="combines quantities of different outputs"):
        shallow(square, lines)
    back = line(shallow(square, lines, together=True), "g")
    own = Function("g_q")(1, mu, t)
    assert back.subs(P, 1).doit().subs(Function("g_q")(1, 1, t), own) == 0
    assert back.has(own)
    assert back.has(Sum)


class Unknown(Function):
    """A function that SymPy cannot differentiate."""


OTHER = Population("other", ratio=Symbol("a", positive=True))
v, q_1 = Field("v", OTHER), q(1, mu, t)
REFUSED: dict[str, tuple[Callable[[], Program], str]] = {
    "output not in the loss": (lambda: shallow(y(mu) ** 2), "contains none of the outputs f"),
    "loss that outputs leave": (lambda: shallow(-y(mu) * log(out)), "outputs take every real value"),
    "loss with a pole": (lambda: shallow(y(mu) / out), "outputs take every real value"),
    "unknown function": (
        lambda: shallow(square, {out: Mean(GaussianVector("w", layer.at(1)).symbol * Unknown(h(1, mu, t)))}),
        r"Unknown\(h\(1, mu, t\)\): the derivative of Unknown is not known",
    ),
    "index without range": (lambda: shallow(square, {q(1, k, t): h(1, k, t)}), "the index k has no range"),
    "mean of two populations": (
        lambda: Network(
            "x", (h, v), {h(1, mu, t): W0 @ x(mu), out: Mean(h(1, mu, t) * v(mu, t))}, (W0,), given=(x,)
        ).train(square, rule),
        "vectors of different populations, layer and other",
    ),
    "a name for two things": (
        lambda: Network("x", (h, Field("W0", layer)), {h(1, mu, t): W0 @ x(mu)}, (W0, w)).train(square, rule),
        "W0 is the name of a field and a matrix",
    ),
    "idle weight": (
        lambda: Network(
            "x", (h,), {h(1, mu, t): W0 @ x(mu), out: Mean(h(1, mu, t))}, (W0, W), given=(x,)
        ).train(square, rule),
        "does not depend on W",
    ),
    "index of a vector without its range": (
        lambda: GaussianVector("w", layer, indices=(k,)),  # type: ignore[arg-type, return-value]
        r"GaussianVector w: indices = k: must be a tuple of index ranges, \(IndexRange",
    ),
    "index of a matrix without its range": (
        lambda: GaussianMatrix("W", layer, layer, index=k),  # type: ignore[arg-type, return-value]
        "GaussianMatrix W: index = k: must be an index range",
    ),
    "one position alone": (
        lambda: shallow(square, {q_1: h(1, mu, t), out: Mean(h(1, S(2), t))}),
        "write a sum over mu",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_has_no_theory_is_refused_with_the_reason(what: str) -> None:
    build, reason = REFUSED[what]
    with pytest.raises(ProgramError, match=reason):
        build()


# -- printed equations ---------------------------------------------------------------------------------------


def backward(program: Program) -> set[tuple[Expr, Expr]]:
    return {(d.lhs, d.rhs) for d in program.definitions}


def test_derived_gradients_are_the_printed_ones() -> None:
    """Entry by entry, in the conventions of each paper; the theories follow in ``test_builders*.py``."""
    phi, a = Function("phi"), Function("a")
    z, g, alpha = Function("z"), Function("g"), Symbol("alpha", integer=True, positive=True)
    Delta, error = Function("Delta"), gamma0 * Function("Delta")(alpha, t)

    def moved(program: Program, name: str) -> Any:
        return next(x.update for x in program.trained() if x.name == name)

    plain = mlp(activation=phi)  # selfconsistent2023 D.4, D.5
    slope = phi(now).diff(now)
    up = W(ell).T @ g(ell + 1, mu, t)
    assert {(z(L, mu, t), w.symbol), (z(ell, mu, t), up), (g(ell, mu, t), slope * z(ell, mu, t))} <= backward(
        plain
    )
    step = moved(plain, "W")
    assert (step.coefficient, step.left, step.right) == (error, g(ell + 1, alpha, t), phi(h(ell, alpha, t)))

    wide = mlp(activation=phi, relative_widths="a")  # D.46, D.47
    assert (z(ell, mu, t), sqrt(a(ell)) * up / sqrt(a(ell + 1))) in backward(wide)
    assert moved(wide, "W").coefficient == error / (a(ell) * sqrt(a(ell + 1)))

    ring, p_ = (
        convolution(activation=phi, positions=5, receptive=1),
        Symbol("p_", integer=True, positive=True),
    )
    p = Symbol("p", integer=True, positive=True)  # G.2, G.3
    back = Sum(W(ell, k).T @ g(ell + 1, mu, p - k, t), (k, -1, 1))
    assert (z(ell, mu, p, t), back) in backward(ring)
    step = moved(ring, "W")
    assert (step.left, step.right) == (g(ell + 1, alpha, p_, t), phi(h(ell, alpha, p_ + k, t)))

    bias = moved(mlp(activation=phi, bias=True), "b")  # H.2
    assert (bias.coefficient, bias.vector) == (error, g(ell, alpha, t))

    several = mlp(activation=phi, outputs=C)  # I.2
    assert (z(ell, mu, c, t), W(ell).T @ g(ell + 1, mu, c, t)) in backward(several)
    assert str(moved(several, "W").coefficient) == "gamma0*Delta(alpha, c_, t)"
    assert (Delta(mu, c, t), y(mu, c) - f(mu, c, t)) in backward(several)

    nu, beta = Symbol("nu", positive=True), Symbol("beta")
    v, h0, G, H = Function("v"), Function("h0"), Function("g"), Function("h")
    stream = isotropic(data="population", branch=beta)  # linear2025 71, with branches (16)
    rows = {
        (h0(t), v(t)),
        (H(ell + 1, t), H(ell, t) + beta * (W(ell) @ H(ell, t))),
        (G(ell, t), G(ell + 1, t) + beta * (W(ell).T @ G(ell + 1, t))),
    }
    assert rows <= backward(stream)
    online, X = isotropic(data="online"), GaussianMatrix("X", layer, layer)  # 96
    assert (h0(t), (X.T @ Delta(t)) / Symbol("alpha_B", positive=True)) in backward(online)
    assert [moved(online, n).coefficient for n in ("W0", "W", "w")] == [gamma0, gamma0 / nu, gamma0]
    modes, i = structured(), Symbol("k", integer=True, positive=True)  # 106
    Z, B = GaussianMatrix("Z", layer, layer), Symbol("B", positive=True)
    assert (h0(t), sqrt(Function("lamda")(i)) / B * (Z.T @ Delta(t))) in backward(modes)

    dx, chi = Function("dx"), Function("chi")  # depth2023 Program 1
    deep = depth_program()
    rows = {
        (dx(L, t), chi(t) * Function("readout")(t)),
        (dx(ell - 1, t), dx(ell, t) + (W(ell).T @ dx(ell, t)) / sqrt(L)),
    }
    assert rows <= backward(deep)
    assert moved(deep, "W").coefficient == -1 / sqrt(L)


def test_programs_are_values() -> None:
    assert hash(mlp(2, "tanh")) == hash(mlp(2, "tanh"))
    assert len({mlp(2), mlp(2), mlp(3)}) == 2
    assert isinstance(mlp(2).definitions[0], Definition)


def test_what_reads_one_use_of_a_matrix_refuses_several() -> None:
    for read in (count_powers, parametrized):
        with pytest.raises(NotApplicable, match="T is used in several places"):
            read(shared())


@pytest.mark.parametrize("objective", ["square", "logistic", "hinge"])
def test_the_error_pushes_an_output_of_zero_towards_its_label(objective: str) -> None:
    error = next(d.rhs for d in mlp(1, objective=objective).definitions if d.name == "Delta")
    pushed = [error.subs({Function("f")(mu, t): 0, y(mu): label}) for label in (1, -1)]
    assert pushed[0] > 0
    assert pushed[0] == -pushed[1]


LAYERS = Population("units")
DEEP_H, DEEP_C = Field("h", LAYERS, layered=True), Field("c", LAYERS, layered=True)


def two_families(
    last: Expr, upper: Expr, inner: Callable[[Expr], Expr] = tanh, frozen: GaussianMatrix | None = None
) -> Program:
    """Return layers of two fields each; the output reads ``last``.

    The field ``c`` has layers up to ``upper``.
    """
    f, y, h, c = Function("f"), Function("y"), DEEP_H, DEEP_C
    x = GivenVector("x", Population("pixels", given=True), "K_x")
    U = GaussianMatrix("U", LAYERS.at(1), x.population)
    W = GaussianMatrix("W", LAYERS.at(ell + 1), LAYERS.at(ell), index=IndexRange(ell, S.One, L - 1))
    w = GaussianVector("w", LAYERS.at(L))
    lines = {
        h(1, mu, t): U @ x(mu),
        c(ell, mu, t): inner(h(ell, mu, t)) if frozen is None else frozen(ell) @ inner(h(ell, mu, t)),
        h(ell + 1, mu, t): W(ell) @ c(ell, mu, t),
        f(mu, t): Mean(w.symbol * last) / gamma0,
    }
    ranges = (IndexRange(ell, S.One, upper),)
    kept = () if frozen is None else (frozen,)
    net = Network("two families", (h, c), lines, (U, W, w), kept, given=(x,), ranges=ranges)
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


@pytest.mark.parametrize("upper", [L - 1, L, L + 1])
def test_layers_that_nothing_reads_have_no_gradient(upper: Expr) -> None:
    """The output reads h(L), so c(L) reaches it not; all three are one program."""
    program = two_families(tanh(DEEP_H(L, mu, t)), upper)
    assert check_gradients(program) == []
    assert program == two_families(tanh(DEEP_H(L, mu, t)), L - 1)


def test_a_matrix_in_a_layer_that_nothing_reads_has_no_gradient() -> None:
    family = GaussianMatrix("O", LAYERS.at(ell), LAYERS.at(ell), index=IndexRange(ell, S.One, L))
    assert check_gradients(two_families(DEEP_H(L, mu, t), L, lambda e: e, family)) == []


def test_a_layer_that_no_definition_gives_is_refused() -> None:
    with pytest.raises(ProgramError, match=r"c is used at layer L, which its definitions do not cover"):
        two_families(DEEP_C(L, mu, t), L - 1)


@pytest.mark.parametrize("indices", [(), (Symbol("k", integer=True), t)], ids=str)
def test_an_attribute_is_written_with_the_index_of_a_unit(indices: tuple[Expr, ...]) -> None:
    units, f, y = Population("units"), Function("f"), Function("y")
    h, w, a = Field("h", units), GaussianVector("w", units), Attribute("a", units)
    lines = {h(t): a(*indices) * w.symbol, f(t): Mean(h(t) ** 2)}
    with pytest.raises(
        ProgramError, match=r"is the attribute a, whose one index is that of a unit: write a\(k\)"
    ):
        Network("own", (h,), lines, (w,), attributes=(a,)).train((y(t) - f(t)) ** 2 / 2, GradientDescent(eta))


def test_the_unit_of_an_attribute_is_an_integer() -> None:
    """Any other symbol was a parameter without a value."""
    units, f, y = Population("units"), Function("f"), Function("y")
    h, w, a = Field("h", units), GaussianVector("w", units), Attribute("a", units)
    lines = {h(t): a(Symbol("k")) * w.symbol, f(t): Mean(h(t) ** 2)}
    with pytest.raises(
        ProgramError, match=r'unit k of a\(k\) is not an integer: write Symbol\("k", integer=True'
    ):
        Network("own", (h,), lines, (w,), attributes=(a,)).train((y(t) - f(t)) ** 2 / 2, GradientDescent(eta))


@pytest.mark.parametrize("name", ["z", "g"])
def test_a_table_called_like_a_gradient_of_a_builder_is_told_so(name: str) -> None:
    with pytest.raises(ProgramError, match=rf"^{name} is the name of a gradient .* and of another quantity"):
        mlp(2, rule=GradientDescent(Function(name)(t)))


def test_the_slope_of_a_hyperbolic_cosine_does_not_overflow() -> None:
    """The error of ``log(cosh(y - f))`` is a tanh, and not the quotient of two numbers beyond all bounds."""
    units, pixels = Population("units"), Population("pixels", given=True)
    x, h, w = GivenVector("x", pixels, "K_x"), Field("h", units), GaussianVector("w", units)
    A, f, y = GaussianMatrix("A", units, pixels), Function("f"), Function("y")
    forward = {h(mu, t): A @ x(mu), f(mu, t): Mean(w.symbol * h(mu, t)) / gamma0}
    net = Network("hyperbolic", (h,), forward, (A, w), given=(x,))
    program = net.train(log(cosh(y(mu) - f(mu, t))), GradientDescent(eta))
    (error,) = [d.rhs for d in program.definitions if d.lhs == program.roles.error]
    assert error == tanh(y(mu) - f(mu, t))
