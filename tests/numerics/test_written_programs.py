"""Programs as people write them, checked like random programs: gradients, routes, networks, solutions.

Each is of a kind that the generator of random programs does not draw: normalisation over a batch, losses of
pairs of samples, inputs that change in time, attention with several heads, experts in every layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from sympy import (
    Expr,
    Function,
    KroneckerDelta,
    Max,
    Rational,
    S,
    Sum,
    Symbol,
    exp,
    log,
    sqrt,
    tanh,
)

import numerics
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
    Parametrization,
    Population,
    ell,
    eta,
    gamma0,
    mu,
    t,
)
from numerics.experiment.schema import Solver
from tests.numerics.random_programs.checks import CHECKS, FAST, Case, checked, given
from tests.numerics.random_programs.language import STEPS, Drawn

units, pixels = Population("units"), Population("pixels", given=True)
layer = Population("layer", shared=True)
x = GivenVector("x", pixels, "K_x")
W, V, U = (
    GaussianMatrix("W", units, pixels),
    GaussianMatrix("V", units, units),
    GaussianMatrix("U", units, units),
)
w = GaussianVector("w", units)
h, a, b, c = (Field(n, units) for n in ("h", "a", "b", "c"))
out, target, gain, coupling = (Function(n) for n in ("out", "target", "gain", "coupling"))
P = Symbol("P", integer=True, positive=True)
nu, p, q, e = (Symbol(n, integer=True, positive=True) for n in ("nu", "p", "q", "e"))
k = Symbol("k", integer=True)
PAIRS, PLACES, MEMBERS = IndexRange(nu, S.One, P), IndexRange(p, S.One, S(3)), IndexRange(e, S.One, S(2))
SQUARE = (target(mu) - out(mu, t)) ** 2 / 2
TARGETS = {"target": np.array([1.0, -0.6])}
GAINS = {"gain": np.array([1.0, 0.5])}
EDGES = {"coupling": np.array([[0.0, 1.0, 0.5], [1.0, 0.0, 0.2], [0.5, 0.2, 0.0]])}


def written(  # noqa: PLR0913 (the parts of a program as a user passes them)
    forward: Mapping[Expr, Expr],
    weights: tuple[Any, ...],
    *fields: Field,
    loss: Expr = SQUARE,
    arrays: Mapping[str, Any] = TARGETS,
    shape: tuple[int, ...] = (2,),
    ranges: tuple[IndexRange, ...] = (),
    frozen: tuple[Any, ...] = (),
    depth: int | None = None,
    rule: Any = None,
    scale: Expr = gamma0,
    **options: Any,
) -> Drawn:
    """Return a program with its numbers, two samples and inputs of three entries."""
    rng = np.random.default_rng(3)
    inputs = np.round(rng.standard_normal((*shape, 3)), 3)
    flat = inputs.reshape(-1, 3)
    kernel = (flat @ flat.T / 3).reshape(*shape, *shape)
    net = Network("written", fields, forward, weights, frozen, (x,), ranges=ranges, depth=L)
    return Drawn(
        seed=1,
        network=net,
        loss=loss,
        rule=rule or GradientDescent(eta),
        parametrization=Parametrization(scale),
        options=options,
        numbers={"eta": 0.2, "gamma0": 1.0, "P": 2},
        functions={},
        arrays={**arrays, "K_x": kernel},
        vectors={"x": inputs},
        kernels={"x": "K_x"},
        words=(),
        depth=depth,
    )


def read(body: Expr) -> dict[Expr, Expr]:
    """Return the output of a readout."""
    return {out(mu, t): Mean(w.symbol * body) / gamma0}


def batch_normalised() -> Drawn:
    """Return units that are normalised by their mean and variance over the samples."""
    mean, variance = Field("mean", units), Field("variance", units)
    forward = {
        h(mu, t): W @ x(mu),
        mean(t): Sum(h(mu, t), (mu, 1, P)) / P,
        variance(t): Sum((h(mu, t) - mean(t)) ** 2, (mu, 1, P)) / P,
        a(mu, t): (h(mu, t) - mean(t)) / sqrt(variance(t) + Rational(1, 10)),
        b(mu, t): V @ tanh(a(mu, t)),
        **read(tanh(b(mu, t))),
    }
    return written(forward, (W, V, w), h, mean, variance, a, b)


def contrastive() -> Drawn:
    """Return a softmax of similarities of pairs of samples."""
    similarity = Function("similarity")
    forward = {
        h(mu, t): W @ x(mu),
        a(mu, t): V @ tanh(h(mu, t)),
        similarity(mu, nu, t): Mean(a(mu, t) * a(nu, t)),
    }
    value = similarity(mu, nu, t)
    loss = log(Sum(exp(value), (nu, 1, P))) - Sum(coupling(mu, nu) * value, (nu, 1, P))
    arrays = {"coupling": np.array([[0.2, 0.8], [0.7, 0.3]])}
    return written(forward, (W, V), h, a, loss=loss, arrays=arrays, ranges=(PAIRS,), scale=S.One)


def decorrelated() -> Drawn:
    """Return two outputs whose correlations over the batch approach the identity."""
    readouts, outputs, overlap = (
        GaussianVector("B", units, indices=(MEMBERS,)),
        Function("o"),
        Function("overlap"),
    )
    second = Symbol("r", integer=True, positive=True)
    forward = {
        h(mu, t): W @ x(mu),
        a(mu, t): V @ tanh(h(mu, t)),
        outputs(e, mu, t): Mean(readouts(e) * tanh(a(mu, t))),
        overlap(e, second, t): Sum(outputs(e, mu, t) * outputs(second, mu, t), (mu, 1, P)) / P,
    }
    loss = (KroneckerDelta(e, second) - overlap(e, second, t)) ** 2 / 2
    ranges = (MEMBERS, IndexRange(second, S.One, S(2)))
    return written(forward, (W, V, readouts), h, a, loss=loss, arrays={}, ranges=ranges, scale=S.One)


def augmented() -> Drawn:
    """Return inputs that change from step to step."""
    forward = {h(mu, t): W @ x(mu, t), a(mu, t): V @ tanh(h(mu, t)), **read(tanh(a(mu, t)))}
    return written(forward, (W, V, w), h, a, shape=(2, STEPS + 1))


def with_dropout() -> Drawn:
    """Return a mask of the units that is drawn anew at every step."""
    noise, mask = GaussianVector("noise", units, fresh=True), Field("mask", units)
    forward = {
        h(mu, t): W @ x(mu),
        mask(t): noise.symbol,
        a(mu, t): V @ ((1 + mask(t) / 3) * tanh(h(mu, t))),
        **read(tanh(a(mu, t))),
    }
    return written(forward, (W, V, w), h, a, mask, frozen=(noise,), together=True)


def penalised() -> Drawn:
    """Return penalties of activities and of the readout in the loss."""
    forward = {h(mu, t): W @ x(mu), a(mu, t): V @ tanh(h(mu, t)), **read(tanh(a(mu, t)))}
    loss = SQUARE + Mean(tanh(a(mu, t)) ** 2) / 4 + Mean(w.symbol**2) / 8
    return written(forward, (W, V, w), h, a, loss=loss)


def taught() -> Drawn:
    """Return a frozen teacher on the same inputs, with its fields as targets of the student's."""
    T = GaussianMatrix("T", units, units)
    forward = {
        h(mu, t): W @ x(mu),
        a(mu, t): V @ tanh(h(mu, t)),
        b(mu, t): T @ tanh(h(mu, t)),
        **read(tanh(a(mu, t))),
    }
    loss = SQUARE + Mean((tanh(b(mu, t)) - tanh(a(mu, t))) ** 2) / 4
    return written(forward, (W, V, w), h, a, b, loss=loss, frozen=(T,))


def maxout() -> Drawn:
    """Return the larger of two fields."""
    forward = {
        h(mu, t): W @ x(mu),
        a(mu, t): V @ Max(0, h(mu, t)),
        b(mu, t): U @ Max(0, h(mu, t)),
        **read(Max(a(mu, t), b(mu, t))),
    }
    return written(forward, (W, V, U, w), h, a, b)


def gated_recurrent() -> Drawn:
    """Return a recurrent network with a gate and a candidate at each step."""
    state, gate, candidate = (Field(n, units, ordered=True) for n in ("state", "gate", "candidate"))
    share = 1 / (1 + exp(-gate(k, mu, t)))
    kept = share * state(k, mu, t) + (1 - share) * tanh(candidate(k, mu, t))
    forward = {
        state(1, mu, t): W @ x(mu, 1),
        gate(k, mu, t): V @ state(k, mu, t),
        candidate(k, mu, t): U @ tanh(state(k, mu, t)),
        state(k + 1, mu, t): kept + W @ x(mu, k + 1),
        **read(tanh(state(3, mu, t))),
    }
    weights = (W, V, U, w)
    return written(
        forward, weights, state, gate, candidate, shape=(2, 3), ranges=(IndexRange(k, S.One, S(2)),)
    )


def on_a_graph() -> Drawn:
    """Return two rounds of messages along given edges."""
    forward = {
        h(mu, p, t): W @ x(mu, p),
        a(mu, p, t): Sum(coupling(p, q) * (V @ tanh(h(mu, q, t))), (q, 1, 3)),
        b(mu, p, t): Sum(coupling(p, q) * tanh(a(mu, q, t)), (q, 1, 3)),
        out(mu, t): Sum(Mean(w.symbol * b(mu, p, t)), (p, 1, 3)) / gamma0,
    }
    loss = log(1 + exp(-target(mu) * out(mu, t)))
    return written(
        forward, (W, V, w), h, a, b, loss=loss, arrays={**TARGETS, **EDGES}, shape=(2, 3), ranges=(PLACES,)
    )


def averaged_so_far() -> Drawn:
    """Return means over earlier positions, of a function whose denominator has the position too."""
    forward = {
        h(mu, p, t): W @ x(mu, p),
        a(mu, p, t): Sum(1 / (p + p * exp(-h(mu, q, t))), (q, 1, p)),
        b(mu, p, t): V @ a(mu, p, t),
        out(mu, t): Sum(Mean(w.symbol * tanh(b(mu, p, t))), (p, 1, 3)) / gamma0,
    }
    return written(forward, (W, V, w), h, a, b, shape=(2, 3), ranges=(PLACES,))


def heads() -> Drawn:
    """Return attention with two heads, each with separate queries, keys and values."""
    small = Population("small", Rational(1, 2))
    Q, K = (GaussianMatrix(n, small, units, others=(MEMBERS,)) for n in ("Q", "K"))
    R = GaussianMatrix("R", units, units, others=(MEMBERS,))
    query, key, value = Field("query", small), Field("key", small), Field("value", units)
    score = Function("score")
    weight = exp(score(e, mu, p, q, t)) / Sum(exp(score(e, mu, p, q, t)), (q, 1, 2))
    forward = {
        h(mu, p, t): W @ x(mu, p),
        query(e, mu, p, t): Q(e) @ h(mu, p, t),
        key(e, mu, p, t): K(e) @ h(mu, p, t),
        value(e, mu, p, t): R(e) @ tanh(h(mu, p, t)),
        score(e, mu, p, q, t): Mean(query(e, mu, p, t) * key(e, mu, q, t)),
        a(mu, p, t): Sum(weight * value(e, mu, q, t), (q, 1, 2), (e, 1, 2)),
        out(mu, t): Sum(Mean(w.symbol * tanh(a(mu, p, t))), (p, 1, 2)) / gamma0,
    }
    ranges = (IndexRange(p, S.One, S(2)), IndexRange(q, S.One, S(2)), MEMBERS)
    weights = (W, Q, K, R, w)
    return written(forward, weights, h, query, key, value, a, shape=(2, 2), ranges=ranges, together=True)


def filters_of_members() -> Drawn:
    """Return convolutions with two sets of filters, each with a gain."""
    shift = Symbol("o", integer=True)
    C = GaussianMatrix("C", units, units, others=(IndexRange(shift, S.NegativeOne, S.One), MEMBERS))
    forward = {
        h(mu, p, t): W @ x(mu, p),
        b(e, mu, p, t): Sum(C(shift, e) @ tanh(h(mu, p + shift, t)), (shift, -1, 1)),
        a(mu, p, t): Sum(gain(e) * tanh(b(e, mu, p, t)), (e, 1, 2)),
        out(mu, t): Sum(Mean(w.symbol * a(mu, p, t)), (p, 1, 3)) / gamma0,
    }
    ranges = (PLACES, MEMBERS)
    return written(forward, (W, C, w), h, b, a, arrays={**TARGETS, **GAINS}, shape=(2, 3), ranges=ranges)


def experts_in_layers() -> Drawn:
    """Return residual layers, each a sum of two experts."""
    stream, expert = Field("stream", layer, layered=True), Field("expert", layer, layered=True)
    first, last = GaussianMatrix("W", layer.at(1), pixels), GaussianVector("w", layer.at(L))
    E = GaussianMatrix(
        "E", layer.at(ell + 1), layer.at(ell), index=IndexRange(ell, S.One, L - 1), others=(MEMBERS,)
    )
    added = Sum(gain(e) * tanh(expert(ell + 1, mu, e, t)), (e, 1, 2))
    forward = {
        stream(1, mu, t): first @ x(mu),
        expert(ell + 1, mu, e, t): E(ell, e) @ tanh(stream(ell, mu, t)),
        stream(ell + 1, mu, t): stream(ell, mu, t) + added,
        out(mu, t): Mean(last.symbol * tanh(stream(L, mu, t))) / gamma0,
    }
    ranges = (IndexRange(ell, S.One, L - 1), MEMBERS)
    arrays = {**TARGETS, **GAINS}
    return written(forward, (first, E, last), stream, expert, arrays=arrays, ranges=ranges, depth=3)


def experts_there_and_back() -> Drawn:
    """Return each expert's matrix and its transpose, under another letter, with decay and noise."""
    E = GaussianMatrix("E", units, units, others=(MEMBERS,))
    forward = {
        h(mu, t): W @ x(mu),
        a(mu, q, t): E(q) @ tanh(h(mu, t)),
        b(mu, q, t): E(q).T @ tanh(a(mu, q, t)),
        c(mu, t): Sum(gain(q) * b(mu, q, t), (q, 1, 2)),
        **read(tanh(c(mu, t))),
    }
    noisy = GradientDescent(eta, decay=Rational(1, 10), diffusion=Rational(1, 10))
    ranges, arrays = (IndexRange(q, S.One, S(2)),), {**TARGETS, **GAINS}
    return written(forward, (W, E, w), h, a, b, c, arrays=arrays, ranges=ranges, rule=noisy)


PROGRAMS: tuple[Callable[[], Drawn], ...] = (
    batch_normalised,
    contrastive,
    decorrelated,
    augmented,
    with_dropout,
    penalised,
    taught,
    maxout,
    gated_recurrent,
    on_a_graph,
    averaged_so_far,
    heads,
    filters_of_members,
    experts_in_layers,
    experts_there_and_back,
)


LONG = (
    maxout,
    gated_recurrent,
    on_a_graph,
    averaged_so_far,
    heads,
    filters_of_members,
    experts_there_and_back,
)
"""Programs that take as long as others, with functions of several fields, sums and members as they have."""
"""Programs whose theories take more than a second to derive twice."""


@pytest.mark.parametrize(
    "make", [pytest.param(x, marks=pytest.mark.slow) if x in LONG else x for x in PROGRAMS]
)
def test_gradients_and_routes(make: Callable[[], Drawn]) -> None:
    case = Case(make())
    assert [checked(case, name) for name in ("program", "gradient", "routes")] == ["ok"] * 3


@pytest.mark.parametrize("make", [contrastive, decorrelated, augmented])
def test_networks_give_these_numbers(make: Callable[[], Drawn]) -> None:
    """Pairs of samples had no range; a Kronecker delta of a loss took no arrays; kernels had no order."""
    case = Case(make(), FAST)
    said = {name: checked(case, name) for name in ("networks", "simulate")}
    assert {name: x for name, x in said.items() if not x.startswith("ok")} == {}


def test_a_position_in_a_function_of_fields_is_solved() -> None:
    """Sampled paths mistook the position for a missing number."""
    case = Case(averaged_so_far())
    numbers = given(case) | {"times": range(2)}
    found = numerics.solve(case.realised, solver=Solver(method="paths", samples=64), **numbers)
    assert np.isfinite(found.f).all()


def test_a_constant_at_an_index_that_its_field_lacks_is_simulated() -> None:
    """Correlations of such a vector ended in "no value for alpha"."""
    factor, total = Function("factor"), Function("total")
    forward = {
        h(mu, t): W @ x(mu),
        a(mu, p, t): V @ (factor(p) * tanh(h(mu, t))),
        out(mu, t): Sum(Mean(w.symbol * tanh(a(mu, p, t))), (p, 1, 3)) / gamma0,
        total(mu, t): Mean(w.symbol * tanh(h(mu, t))) / gamma0,
    }
    loss = SQUARE + (target(mu) - total(mu, t)) ** 2 / 2
    arrays = {**TARGETS, "factor": np.array([1.0, 0.5, 0.2])}
    case = Case(written(forward, (W, V, w), h, a, loss=loss, arrays=arrays, ranges=(PLACES,)))
    found = numerics.simulate(case.realised, width=8, seeds=2, rng=1, **given(case))
    assert np.isfinite(found.train_loss).all()


@pytest.mark.slow
@pytest.mark.parametrize("make", PROGRAMS)
def test_networks_and_solutions(make: Callable[[], Drawn]) -> None:
    case = Case(make())
    said = {name: checked(case, name) for name in CHECKS if name not in ("gradient", "routes")}
    # two heads leave the state in which they are alike, where networks have fluctuations beyond 1/N
    accepted = ("ok", "narrow") if make is heads else "ok"
    assert {name: x for name, x in said.items() if not x.startswith(accepted)} == {}
