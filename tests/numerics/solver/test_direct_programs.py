"""The direct evaluation of networks of every kind, against networks trained by hand and exact recursions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sympy import Expr, Function, S, Symbol, exp, sqrt, tanh

import numerics
from derive.calculus.averages import Average
from derive.program import (
    Along,
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
    Outer,
    P,
    Population,
    Program,
    TrainedMatrix,
    TrainedVector,
    ell,
    eta,
    gamma0,
    mu,
    s,
    t,
)
from derive.program.language import Attribute
from derive.theory import OrderParameter, Theory
from derive.theory.compare import compare
from derive.theory.path_integral import path_integral
from numerics.errors import Diverged
from numerics.solver.direct import evaluate
from tests.chance import excess
from tests.derive.once import convolution, mean_field, recurrent
from tests.derive.programs import g, leaky, rho_a, rho_b, there_and_back
from tests.numerics.solver.helpers import TARGETS

RNG = np.random.default_rng(5)
Moments = dict[str, np.ndarray]


def extrapolated(
    network: Callable[[int, int], Moments], widths: tuple[int, int], runs: int
) -> dict[str, Any]:
    """Return moments of networks of two widths, taken to infinite width, with standard errors."""
    found = {}
    samples = [[network(n, 1000 * n + seed) for seed in range(runs)] for n in widths]
    a, b = widths
    for name in samples[0][0]:
        narrow, wide = (np.array([r[name] for r in of_width]) for of_width in samples)
        spread = [x.var(axis=0, ddof=1) / runs for x in (narrow, wide)]
        limit = (b * wide.mean(axis=0) - a * narrow.mean(axis=0)) / (b - a)
        found[name] = limit, np.sqrt(b**2 * spread[1] + a**2 * spread[0]) / (b - a)
    return found


def farthest(found: Mapping[str, Any], ours: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> float:
    """Return the largest distance relative to the bound of chance for normal numbers."""
    assert found.keys() == ours.keys()
    z = [np.ravel((ours[k][0] - v) / np.sqrt(e**2 + ours[k][1] ** 2)) for k, (v, e) in found.items()]
    return excess(np.concatenate(z))


# -- exact recursions ----------------------------------------------------------------------------------------

ratio = Symbol("q", positive=True)


def online() -> Program:
    """Return the program v <- v - eta X^T X v/N with a new X, of ratio * N rows, at every step."""
    features, batch = Population("features"), Population("batch", ratio=ratio)
    v, z, q = Field("v", features), Field("z", batch), Field("q", features)
    X = GaussianMatrix("X", batch, features, fresh=True)
    start = GaussianVector("v_0", features, source="v0")
    rule = GradientDescent(eta)
    return Program(
        name="online regression",
        rule=rule,
        fields=(v, z, q),
        matrices=(X,),
        vectors=(TrainedVector(start, Along(S.One, -q(t)), rule),),
        definitions=(
            Definition(v(t), start.symbol),
            Definition(z(t), X @ v(t)),
            Definition(q(t), X.T @ z(t)),
        ),
        notation={v(t): "C"},
    )


def test_a_batch_drawn_anew_at_every_step() -> None:
    """E[X^T X]/N = q and E[(X^T X)^2]/N^2 = q^2 + q, so that C(t, t) is a power of one number."""
    rate, q, steps = 0.3, 0.7, 5
    solved = evaluate(mean_field(online()), steps=steps, values={eta: rate, ratio: q})
    assert solved.method == "linear"
    time = np.arange(steps)
    same = (1 - 2 * rate * q + rate**2 * (q**2 + q)) ** np.minimum.outer(time, time)
    later = (1 - rate * q) ** np.abs(np.subtract.outer(time, time))
    assert np.abs(solved.value("C") - same * later).max() < 1e-13
    found = numerics.solve(online(), numbers={"eta": rate, "q": q}, times=range(steps))
    assert found.attrs["method"] == "paths"
    assert np.abs(found.C.values - same * later).max() < 1e-12


lam, noise = Symbol("lam"), Symbol("D")


def drifting() -> Program:
    """Return a program with a J that decays, diffuses and learns nothing."""
    units = Population("units")
    x = Field("x", units)(t)
    rule = GradientDescent(eta, decay=lam, diffusion=noise)
    return leaky(TrainedMatrix(GaussianMatrix("J", units, units), Outer(S.Zero, x, x), rule))


def entry_covariance(steps: int, decay: float, diffusion: float) -> np.ndarray:
    """Return the covariance of one entry of J at two times, from its recursion."""
    c = np.zeros((steps, steps))
    c[0, 0] = 1
    for k in range(steps - 1):
        c[k + 1, : k + 1] = c[: k + 1, k + 1] = (1 - decay) * c[k, : k + 1]
        c[k + 1, k + 1] = (1 - decay) ** 2 * c[k, k] + diffusion
    return c


@pytest.mark.parametrize("method", ["linear", "particles"])
def test_couplings_that_decay_and_diffuse(method: Any) -> None:
    """<z z> = c(t, s) C(t, s), and x is a moving average of z: a recursion for C alone."""
    rate, decay, diffusion, steps = 0.4, 0.2, 0.3, 5
    solved = evaluate(
        mean_field(drifting()),
        steps=steps,
        values={eta: rate, lam: decay, noise: diffusion},
        method=method,
        replicas=16,
    )
    c, C, X = entry_covariance(steps, decay, diffusion), np.zeros((steps, steps)), np.eye(steps + 1)[:1]
    # rows of X: x(k) in terms of x(0) and the z's; the z's have covariance c C, known up to k - 1
    sigma = np.zeros((steps + 1, steps + 1))
    sigma[0, 0] = 1
    for k in range(steps):
        C[: k + 1, : k + 1] = X @ sigma @ X.T
        sigma[1 : k + 2, 1 : k + 2] = (c * C)[: k + 1, : k + 1]
        X = np.vstack([X, (1 - rate) * X[-1] + rate * np.eye(steps + 1)[k + 1]])
    error = np.maximum(solved.stderr("C"), 2e-14)
    assert excess((solved.value("C") - C) / error, 15) < 1
    if method == "particles":
        numbers = {"eta": rate, "lam": decay, "D": diffusion}
        found = numerics.solve(drifting(), numbers=numbers, times=range(steps))
        assert excess((found.C.values - C) / found.C_stderr.values, found.attrs["replicas"] - 1) < 1


def modes() -> Program:
    """Return a program whose units have individual leaks."""
    units = Population("units")
    lamda, k = Attribute("lamda", units), Symbol("k", integer=True, positive=True)
    return replace(leaky(GaussianMatrix("J", units, units), lamda(k)), attributes=(lamda,))


@pytest.mark.parametrize("method", ["linear", "particles"])
def test_averages_over_units_are_averages_over_their_attributes(method: Any) -> None:
    rate, steps, leaks = 0.4, 4, np.array([0.3, 1.0, 1.9])
    solved = evaluate(
        mean_field(modes()),
        steps=steps,
        values={eta: rate},
        data={"lamda": leaks},
        method=method,
        replicas=16,
    )
    assert solved.method == method
    C = np.zeros((steps, steps))
    sigma = np.zeros((steps + 1, steps + 1))
    sigma[0, 0] = 1
    X = np.zeros((3, 1, steps + 1))
    X[:, 0, 0] = 1
    for k in range(steps):
        C[: k + 1, : k + 1] = np.mean(X @ sigma @ X.transpose(0, 2, 1), axis=0)
        sigma[1 : k + 2, 1 : k + 2] = C[: k + 1, : k + 1]
        following = (1 - rate * leaks)[:, None] * X[:, -1] + rate * np.eye(steps + 1)[k + 1]
        X = np.concatenate([X, following[:, None]], axis=1)
    error = np.maximum(solved.stderr("C"), 2e-14)
    assert excess((solved.value("C") - C) / error, 15) < 1
    if method == "linear":
        given = {"numbers": {"eta": rate}, "arrays": {"lamda": leaks}, "times": range(steps)}
        assert np.abs(numerics.solve(modes(), **given).C.values - C).max() < 1e-12


# -- matrices used more than once within a step --------------------------------------------------------------


def there_and_back_network(width: int, seed: int) -> Moments:
    rng = np.random.default_rng(seed)
    a, b = int(1.5 * width), width // 2
    W, M = rng.standard_normal((a, a)), np.sqrt(2) * rng.standard_normal((b, a))
    h = W @ rng.standard_normal(a) / np.sqrt(width)
    k = M @ np.tanh(h) / np.sqrt(width)
    q = M.T @ np.tanh(k) / np.sqrt(width)
    last = M @ np.tanh(q) / np.sqrt(width)
    return {
        "C_tanh_q": np.array(np.mean(np.tanh(q) ** 2)),
        "C_tanh_htanh_q": np.array(np.mean(np.tanh(h) * np.tanh(q))),
        "ll": np.array(np.mean(last**2)),
        "kl": np.array(np.mean(k * last)),
    }


def test_one_matrix_both_ways_within_a_step() -> None:
    theory = with_averages(mean_field(there_and_back(tanh)), ll=("l", "l"), kl=("k", "l"))
    solved = evaluate(theory, steps=1, values={rho_a: 1.5, rho_b: 0.5, g: 2.0}, replicas=8)
    found = extrapolated(there_and_back_network, (60, 120), 300)
    ours = {k: (solved.value(k)[0, 0], solved.stderr(k)[0, 0]) for k in found}
    assert farthest(found, ours) < 1


def with_averages(theory: Theory, **pairs: tuple[str, str]) -> Theory:
    """Return the theory with further correlations to be evaluated."""
    extra = tuple(
        OrderParameter(Function(name)(t, s), Average(Function(a)(t) * Function(b)(s)), "correlation", ())
        for name, (a, b) in pairs.items()
    )
    return replace(theory, order_parameters=(*theory.order_parameters, *extra))


# -- weights tied over depth, and over positions on a ring ---------------------------------------------------

GAMMA, RATE, STEPS, SAMPLES = 1.2, 0.6, 3, 2


def tied_network(width: int, seed: int) -> Moments:
    """Return moments of h(1) = W0 x, h(k+1) = W tanh(h(k)), f from h(3).

    Backpropagation goes through one matrix used twice.
    """
    rng = np.random.default_rng(seed)
    x, y, D = X_TIED, TARGETS[:SAMPLES], X_TIED.shape[1]
    W0, W, w = (
        rng.standard_normal((width, D)),
        rng.standard_normal((width, width)),
        rng.standard_normal(width),
    )
    errors = []
    for _ in range(STEPS):
        h = [W0 @ x.T / np.sqrt(D)]
        for _ in range(2):
            h.append(W @ np.tanh(h[-1]) / np.sqrt(width))
        phi = [np.tanh(a) for a in h]
        delta = y - w @ phi[2] / (GAMMA * width)
        errors.append(delta)
        gs = [np.empty(0)] * 3
        gs[2] = (1 - phi[2] ** 2) * w[:, None]
        for k in (1, 0):
            gs[k] = (1 - phi[k] ** 2) * (W.T @ gs[k + 1] / np.sqrt(width))
        step = RATE * GAMMA
        W = W + step / np.sqrt(width) * sum((gs[k + 1] * delta) @ phi[k].T for k in range(2))
        W0 = W0 + step / np.sqrt(D) * (gs[0] * delta) @ x
        w = w + step * phi[2] @ delta
    return {"Delta": np.array(errors), "Phi12": phi[0].T @ phi[1] / width, "G12": gs[0].T @ gs[1] / width}


X_TIED = RNG.standard_normal((SAMPLES, 6))


@pytest.mark.slow
def test_weights_tied_over_depth() -> None:
    theory = mean_field(recurrent(3, "tanh"))
    solved = evaluate(
        theory,
        steps=STEPS,
        values={eta: RATE, gamma0: GAMMA, P: SAMPLES},
        data={"K_x": X_TIED @ X_TIED.T / X_TIED.shape[1], "y": TARGETS[:SAMPLES]},
        samples=2**6,
    )
    found = extrapolated(tied_network, (40, 80), 40)
    last = STEPS - 1

    def across(name: str, a: int, b: int) -> tuple[np.ndarray, np.ndarray]:
        """Return name(k, mu, k_, alpha, t, s) between the layers a and b, which are ordinary indices."""
        value, error = (x[a - 1, :, b - 1, :, last, last] for x in (solved.value(name), solved.stderr(name)))
        return value, error

    ours = {
        "Delta": (solved.value("Delta"), solved.stderr("Delta")),
        "Phi12": across("Phi", 1, 2),
        "G12": across("G", 1, 2),
    }
    assert farthest(found, ours) < 1


RING, OFFSETS = 3, (-1, 0, 1)
X_RING = RNG.standard_normal((1, RING, 6))


def convolutional_network(width: int, seed: int) -> Moments:
    """Return moments of two hidden layers of channels on a ring of three positions, filters of three."""
    rng = np.random.default_rng(seed)
    x, y, D = X_RING, TARGETS[:1], X_RING.shape[2]
    W0, W = rng.standard_normal((3, width, D)), rng.standard_normal((3, width, width))
    w = rng.standard_normal((RING, width))

    def at(a: np.ndarray, k: int) -> np.ndarray:
        """Return the array whose position p holds the values at p + k."""
        return np.roll(a, -k, axis=1)

    errors = []
    for _ in range(STEPS):
        h1 = sum(at(x, k) @ W0[i].T for i, k in enumerate(OFFSETS)) / np.sqrt(
            D
        )  # (samples, positions, width)
        p1 = np.tanh(h1)
        h2 = sum(at(p1, k) @ W[i].T for i, k in enumerate(OFFSETS)) / np.sqrt(width)
        p2 = np.tanh(h2)
        delta = y - np.einsum("pn,apn->a", w, p2) / (GAMMA * width)
        errors.append(delta)
        g2 = (1 - p2**2) * w
        g1 = (1 - p1**2) * sum(at(g2, -k) @ W[i] for i, k in enumerate(OFFSETS)) / np.sqrt(width)
        step = RING_RATE * GAMMA
        W = W + step / np.sqrt(width) * np.array(
            [np.einsum("a,apn,apm->nm", delta, g2, at(p1, k)) for k in OFFSETS]
        )
        W0 = W0 + step / np.sqrt(D) * np.array(
            [np.einsum("a,apn,apm->nm", delta, g1, at(x, k)) for k in OFFSETS]
        )
        w = w + step * np.einsum("a,apn->pn", delta, p2)
    return {
        "Delta": np.array(errors),
        "Phi2": np.einsum("apn,bqn->apbq", p2, p2) / width,
        "G1": np.einsum("apn,bqn->apbq", g1, g1) / width,
    }


@pytest.mark.parametrize("source", ["r", "a_source_of_its_own"])
def test_the_name_of_a_source_changes_nothing(source: str) -> None:
    """A readout, which has no sample, and the matrices below it may share the name ``r`` of their sources."""
    layer, pixels = Population("layer"), Population("input", given=True)
    h, f, y = Field("h", layer, layered=True), Function("f")(mu, t), Function("y")(mu)
    x, w = GivenVector("x", pixels, "K_x"), GaussianVector("w", layer.at(2), source=source)
    W0 = GaussianMatrix("W0", layer.at(1), pixels)
    W = GaussianMatrix("W", layer.at(ell + 1), layer.at(ell), index=IndexRange(ell, S.One, S.One))
    forward = {
        h(1, mu, t): W0 @ x(mu),
        h(ell + 1, mu, t): W(ell) @ h(ell, mu, t),
        f: Mean(w.symbol * (h(2, mu, t) + tanh(h(2, mu, t)))) / gamma0,
    }
    network = Network("shared name", (h,), forward, (W0, W, w), given=(x,), depth=S(2))
    theory = mean_field(network.train((y - f) ** 2 / 2, GradientDescent(eta)))
    numbers, data = {eta: 0.3, gamma0: 1.0, P: 1}, {"K_x": [[1.0]], "y": [1.0]}
    solved = evaluate(theory, steps=2, values=numbers, data=data, samples=2**7, replicas=4)
    assert solved.value("f")[1, 0] > 0.5


RING_RATE = 0.3


@pytest.mark.slow
def test_filters_on_a_ring() -> None:
    theory = mean_field(convolution(2, tanh, positions=RING, receptive=1))
    overlaps = np.einsum("apd,bqd->apbq", X_RING, X_RING) / X_RING.shape[2]
    solved = evaluate(
        theory,
        steps=STEPS,
        values={eta: RING_RATE, gamma0: GAMMA, P: 1},
        data={"K_x": overlaps, "y": TARGETS[:1]},
        samples=2**8,
        replicas=6,
    )
    found = extrapolated(convolutional_network, (24, 48), 150)
    last = STEPS - 1
    ours = {"Delta": (solved.value("Delta"), solved.stderr("Delta"))}
    for name, layer in (("Phi", 2), ("G", 1)):
        both = solved.value(name, layer), solved.stderr(name, layer)
        ours[f"{name}{layer}"] = tuple(x[..., last, last] for x in both)  # type: ignore[assignment]
    assert farthest(found, ours) < 1


@pytest.mark.parametrize(
    "factor",
    [lambda a: 1 / (exp(-1000 * a) + exp(-2000 * a)), lambda a: sqrt(-a), lambda a: exp(300 * a) ** 3],
)
def test_a_number_that_overflows_or_is_not_real_has_diverged(factor: Callable[[Expr], Expr]) -> None:
    units, pixels = Population("units"), Population("pixels", given=True)
    h, x = Field("h", units), GivenVector("x", pixels, "K_x")
    U, w = GaussianMatrix("U", units, pixels), GaussianVector("w", units)
    a, f, y = Function("a"), Function("f"), Function("y")
    forward = {
        h(mu, t): U @ x(mu),
        a(mu, t): Mean(h(mu, t) ** 2),
        f(mu, t): factor(a(mu, t)) * Mean(w.symbol * tanh(h(mu, t))),
    }
    ranges = (IndexRange(mu, S.One, P),)
    program = Network("factor", (h,), forward, (U, w), given=(x,), ranges=ranges).train(
        (y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(S.One)
    )
    with pytest.raises(Diverged, match="diverged at step"):
        evaluate(
            mean_field(program),
            steps=3,
            values={P: 1, gamma0: 1},
            data={"K_x": [[1.0]], "y": [1.0]},
            samples=64,
            replicas=2,
        )


def frozen_layers(last: GaussianMatrix | None) -> Program:
    """Return a linear network with a frozen matrix in each layer, one family or a separate last one."""
    units, pixels = Population("units"), Population("pixels", given=True)
    x, h, c = (
        GivenVector("x", pixels, "K_x"),
        Field("h", units, layered=True),
        Field("c", units, layered=True),
    )
    U = GaussianMatrix("U", units.at(1), pixels)
    W = GaussianMatrix("W", units.at(ell + 1), units.at(ell), index=IndexRange(ell, S.One, L - 1))
    top = L if last is None else L - 1
    family = GaussianMatrix("O", units.at(ell), units.at(ell), index=IndexRange(ell, S.One, top))
    w, f, y = GaussianVector("w", units.at(L)), Function("f"), Function("y")
    lines = {
        h(1, mu, t): U @ x(mu),
        c(ell, mu, t): family(ell) @ h(ell, mu, t),
        h(ell + 1, mu, t): W(ell) @ c(ell, mu, t),
        f(mu, t): Mean(w.symbol * (c(L, mu, t) + h(L, mu, t))) / gamma0,
    }
    if last is not None:
        lines[c(L, mu, t)] = last @ h(L, mu, t)
    frozen = (family,) if last is None else (family, last)
    net = Network("frozen", (h, c), lines, weights=(U, W, w), frozen=frozen, given=(x,))
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


def test_the_end_of_a_family_is_read_apart_where_its_gradient_is_another() -> None:
    """One family over all layers gives the numbers of a family with a separate matrix in the last layer."""
    units = Population("units").at(L)
    one, two = frozen_layers(None), frozen_layers(GaussianMatrix("Q", units, units))
    assert compare(mean_field(one), path_integral(one).theory()) == []
    found = []
    for program in (one, two):
        given = {
            "values": {eta: 0.2, gamma0: 1, P: 2},
            "data": {"K_x": [[1.0, 0.3], [0.3, 0.8]], "y": [1.0, -1.0]},
        }
        found.append(evaluate(mean_field(program).at_depth(2), steps=3, **given).value("f"))
    np.testing.assert_allclose(*found, rtol=1e-10)
    assert np.abs(found[0][1:]).min() > 0.1
