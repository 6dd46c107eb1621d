"""Identities of one deep linear network: updates against numerical gradients, memory terms, losses, cost.

The network is (1), every factor written out; gradients of the training loss (23) are a library's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import autograd.numpy as anp
import numpy as np
from numpy.typing import NDArray
from sympy import Basic, sympify
from sympy.core.function import AppliedUndef

from derive.program.networks.random_data import sigma
from tests.ledger.claims import claimed, corrected
from tests.ledger.evidence.base import Evidence, Finding, agrees, conclude, contradicts
from tests.ledger.evidence.evaluated import Functions, told_apart, valued
from tests.ledger.evidence.lab import Weights, gradients

Array = NDArray[np.float64]

D, N, DEPTH, P, CHANNELS = 7, 5, 3, 6, 2
RATE, GAMMA, NOISE = 0.3, 1.4, 0.5
EXACT = 1e-11
SOURCE = "linear2025"


@dataclass
class Network:
    """Weights ``W[0]`` (N, D), ``W[l]`` (N, N), readouts ``w`` (channels, N); data ``X`` (P, D), ``y``.

    ``scale`` multiplies the output: sqrt(D)/(N gamma0) in (1).
    """

    W: list[Array]
    w: Array
    X: Array
    targets: Array
    eps: Array
    scale: float = np.sqrt(D) / (N * GAMMA)
    start: list[Array] = field(default_factory=list)

    @classmethod
    def drawn(cls, seed: int, channels: int = 1) -> Network:
        """Return a random network with random data."""
        rng = np.random.default_rng(seed)
        W = [rng.normal(size=(N, D)), *[rng.normal(size=(N, N)) for _ in range(DEPTH - 1)]]
        found = cls(
            W,
            rng.normal(size=(channels, N)),
            rng.normal(size=(P, D)),
            rng.normal(size=(channels, D)),
            rng.normal(size=(P, channels)),
        )
        found.start = [x.copy() for x in W]
        return found

    def output(self, inputs: Array) -> Any:
        """Return f(x), shape (samples, channels)."""
        x = inputs.T / np.sqrt(D)
        x = self.W[0] @ x
        for W in self.W[1:]:
            x = W @ x / np.sqrt(N)
        return self.scale * (self.w @ x).T

    def errors(self) -> Any:
        """Return Delta, shape (P, channels)."""
        labels = self.X @ self.targets.T / np.sqrt(D) + NOISE * self.eps
        return labels - self.output(self.X)

    def loss(self) -> Any:
        """Return the mean square error on the samples, summed over channels."""
        return anp.sum(self.errors() ** 2) / P

    def forward(self, first: float = 1 / np.sqrt(D)) -> list[Array]:
        """Return h^0..h^L, each (size, channels); ``first`` is the factor in front of W^0."""
        h = [np.sqrt(D) / P * self.X.T @ self.errors()]
        h.append(first * self.W[0] @ h[0])
        for W in self.W[1:]:
            h.append(W @ h[-1] / np.sqrt(N))
        return h

    def backward(self) -> list[Array]:
        """Return g^1..g^L at the index of their layer; entry 0 is unused."""
        g = [self.w.T.copy()]
        for W in self.W[:0:-1]:
            g.insert(0, W.T @ g[0] / np.sqrt(N))
        return [np.zeros(0), *g]

    def updates(self) -> list[Array]:
        """Return the steps of (25): W^0, inner matrices, readouts."""
        h, g = self.forward(), self.backward()
        inner = [RATE * GAMMA / np.sqrt(N) * g[k + 1] @ h[k].T for k in range(1, DEPTH)]
        return [RATE * GAMMA / np.sqrt(D) * g[1] @ h[0].T, *inner, RATE * GAMMA * h[-1].T]

    def step(self) -> None:
        """Apply one step of (25)."""
        changes = self.updates()
        for W, change in zip([*self.W, self.w], changes, strict=True):
            W += change

    def descent(self) -> list[Array]:
        """Return the steps of (24), by the gradients of (23)."""

        def loss(weights: Weights) -> Any:
            *W, w = weights
            return replace(self, W=W, w=w).loss()

        return [-N * RATE * GAMMA**2 * x for x in gradients(loss, (*self.W, self.w))]


def _gap(a: list[Array], b: list[Array]) -> float:
    return float(max(np.max(np.abs(x - y)) for x, y in zip(a, b, strict=True)))


def update_scale() -> Evidence:
    """Check (23)-(25): N eta gamma0^2 times the gradient of (23) is twice the step of (25)."""
    network = Network.drawn(1)
    descent, steps = network.descent(), network.updates()
    ratio = float(np.vdot(descent[1], steps[1]) / np.vdot(steps[1], steps[1]))
    return conclude(
        "isotropic_network:update_scale",
        f"Step (24) with loss (23) is {ratio:.8g} times step (25) in all weights: the loss needs 1/2, or the "
        "raw rate is N eta gamma0^2/2.",
        agrees("half of (24) minus (25)", _gap([x / 2 for x in descent], steps), EXACT),
        contradicts("(24) as printed minus (25)", _gap(descent, steps), EXACT),
    )


def _factors(number: str, name: str) -> list[float]:
    """Return a factor as printed and as corrected."""
    numbers = {"D": D, "N": N, "P": P, "gamma0": GAMMA, "eta": RATE}
    return [float(valued(built(SOURCE, number)[name], numbers, {})) for built in (claimed, corrected)]


def first_layer_scale() -> Evidence:
    """Check (4), (5), (26), (122): for l = 0 the factor is 1/sqrt(D), not 1/sqrt(N).

    (1), (25), (28) have this factor.
    """
    network = Network.drawn(2)
    half = [x / 2 for x in network.descent()]
    outer = network.backward()[1] @ network.forward()[0].T
    findings: list[Finding] = []
    for number in ("5", "26", "122"):
        steps = [RATE * GAMMA * network.forward(first=x)[-1].T for x in _factors(number, "h1")]
        findings += told_apart(f"({number}): step of w^L", steps, half[-1], EXACT)
    first = [x * outer for x in _factors("4", "W0")]
    return conclude(
        "isotropic_network:first_layer_scale",
        f"At D = {D}, N = {N} the gradient's steps of w^L and W^0 need 1/sqrt(D) at l = 0.",
        agrees("steps with 1/sqrt(D)", _gap(half, network.updates()), EXACT),
        *findings,
        *told_apart("(4): step of W^0", first, half[0], EXACT),
    )


def several_outputs() -> Evidence:
    """Check (119)-(121): the factor sqrt(D) of the output, and the sign of the inner update."""
    network = Network.drawn(3, CHANNELS)
    half, steps = [x / 2 for x in network.descent()], network.updates()
    h, g = network.forward(), network.backward()
    inner = [x / np.sqrt(N) * g[2] @ h[1].T for x in _factors("121", "W")]
    fields = [network.targets + x * (network.W[0].T @ g[1]).T for x in _factors("120", "v")]
    errors = [network.X @ v.T / np.sqrt(D) for v in fields]
    clean = network.errors() - NOISE * network.eps
    network.scale /= np.sqrt(D)
    small = [x / 2 for x in network.descent()]
    own = network.updates()
    return conclude(
        "isotropic_network:several_outputs",
        "With sqrt(D) in the output, as in (1), half the gradient gives (121) with + in the second line; "
        "without it, as (119) prints, all steps are smaller than (121) by sqrt(D).",
        agrees("steps with sqrt(D)", _gap(half, steps), EXACT),
        *told_apart("(121): second line", inner, half[1], EXACT),
        *told_apart("(120): errors X v/sqrt(D)", errors, clean, EXACT),
        agrees("steps of (119) times sqrt(D)", _gap([np.sqrt(D) * x for x in small], own), EXACT),
        contradicts("steps of (119)", _gap(small, own), EXACT),
    )


def memory_terms() -> Evidence:
    """Check (26 text), (28), (40), (54): fields are products with initial weights plus memory.

    The memory of g^l contains h^l, not h^1.
    """
    network = Network.drawn(4)
    past: list[tuple[list[Array], list[Array]]] = []
    told: list[Finding] = []
    gaps = {"layers": 0.0, "v": 0.0, "W0(t)": 0.0}
    for now in range(3):
        h, g = network.forward(), network.backward()
        scale, W = np.sqrt(D) / (N * GAMMA), network.start
        xi0 = scale * W[0].T @ g[1]
        chi = [np.zeros(0), W[0] @ h[0] / np.sqrt(D), *[W[k] @ h[k] / np.sqrt(N) for k in range(1, DEPTH)]]
        xi = [np.zeros(0), *[W[k].T @ g[k + 1] / np.sqrt(N) for k in range(1, DEPTH)]]
        v = network.targets.T - scale * network.W[0].T @ g[1]
        moved = {k: chi[k] for k in range(1, DEPTH + 1)}, {k: xi[k] for k in range(1, DEPTH)}
        learnt = network.targets.T - xi0
        for h_, g_ in past:
            for k in range(1, DEPTH + 1):
                overlap = np.vdot(h[k - 1], h_[k - 1]) / (D if k == 1 else N)
                moved[0][k] = moved[0][k] + RATE * GAMMA * overlap * g_[k]
            for k in range(1, DEPTH):
                moved[1][k] = moved[1][k] + RATE * GAMMA * np.vdot(g[k + 1], g_[k + 1]) / N * h_[k]
            learnt = learnt - RATE * np.vdot(g[1], g_[1]) / N * h_[0]
        found = [_gap([moved[0][k]], [h[k]]) for k in moved[0]] + [
            _gap([moved[1][k]], [g[k]]) for k in moved[1]
        ]
        gaps["layers"] = max(gaps["layers"], *found)
        gaps["v"] = max(gaps["v"], _gap([learnt], [v]))
        moving = learnt + xi0 - scale * network.W[0].T @ g[1]
        gaps["W0(t)"] = max(gaps["W0(t)"], _gap([moving], [v]))
        past.append((h, g))
        told += _inner_memory(now, past, xi[2])
        network.step()
    return conclude(
        "isotropic_network:memory_terms",
        "Over three times h, g and v of a network are products with W(0) plus memory, C_h^0 divided by D; "
        "xi^0 needs W^0(0), and the memory of g^2 holds h^2, not h^1.",
        agrees("chi, xi plus memory minus h, g", gaps["layers"], 1e-10),
        agrees("w* - xi^0 minus memory, minus v", gaps["v"], 1e-10),
        *told,
        contradicts("(40): xi^0 with W^0(t)", gaps["W0(t)"], 1e-10),
    )


def _inner_memory(now: int, past: list[tuple[list[Array], list[Array]]], xi: Array) -> tuple[Finding, ...]:
    """Return the findings on g^2 by (54), printed and corrected.

    ``past`` ends with the present; there are findings once it has a memory.
    """
    functions: Functions = {
        "h": lambda layer, time: past[time][0][layer],
        "C_g": lambda layer, t, s: np.vdot(past[t][1][layer], past[s][1][layer]) / N,
        "xi": lambda layer, time: {(2, now): xi}[layer, time],
    }
    numbers = {"ell": 2, "t": now, "eta": RATE, "gamma0": GAMMA}
    both = [valued(built(SOURCE, "54")["g"], numbers, functions) for built in (claimed, corrected)]
    return told_apart(f"(54): g^2 at t = {now}", both, past[now][1][2], 1e-10) if now else ()


def losses() -> Evidence:
    """Check (10), (68): |v|^2/D + sigma^2 is the error on fresh samples, |Delta|^2/P the training error."""
    network, draws = Network.drawn(5), 200_000
    network.step()
    v = network.targets[0] - network.scale * network.W[0].T @ network.backward()[1][:, 0]
    rng = np.random.default_rng(6)
    inputs = rng.normal(size=(draws, D))
    labels = inputs @ network.targets[0] / np.sqrt(D) + NOISE * rng.normal(size=draws)
    squares = (labels - network.output(inputs)[:, 0]) ** 2
    error = float(squares.std() / np.sqrt(draws))
    predicted = float(v @ v) / D
    said = {n: claimed("linear2025", n) for n in ("10", "68")}
    test = {n: _valued(e["test"], {"C_v": predicted}) for n, e in said.items()}
    train = float(np.sum(network.errors() ** 2)) / P
    trained = {n: _valued(e["train"], {"C_Delta": train}) for n, e in said.items()}
    return conclude(
        "isotropic_network:losses",
        f"{draws} fresh samples: {squares.mean():.4f} +- {error:.4f}, C_v + sigma^2 = "
        f"{predicted + NOISE**2:.4f}.",
        *[agrees(f"z of ({n}), test loss", (squares.mean() - x) / error, 4.0) for n, x in test.items()],
        contradicts("z without sigma^2", (squares.mean() - predicted) / error, 1.0),
        *[agrees(f"({n}) minus training loss", x - network.loss(), EXACT) for n, x in trained.items()],
    )


def _valued(e: Basic, values: dict[str, float]) -> float:
    """Return a printed loss at this noise, with numbers for correlations at equal times."""

    def value(x: AppliedUndef) -> float:
        now, then = x.args
        if now != then:
            raise KeyError(f"{x} is not at equal times")
        return values[str(x.func)]

    numbers = {x: value(x) for x in e.atoms(AppliedUndef)}
    return float(sympify(sympify(e).xreplace(numbers)).subs(sigma, NOISE))


class Counter:
    """Matrix products, with the multiplications that they cost."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, a: Array, b: Array) -> Array:
        self.count += a.shape[0] * a.shape[1] * b.shape[1]
        return np.asarray(a @ b)


def _samplewise(W: list[Array], w: Array, X: Array, y: Array, mul: Counter) -> list[Array]:
    """Return gradients by backpropagation of every sample; activations are (width, samples)."""
    x = [X.T]
    for M in W:
        x.append(mul(M, x[-1]))
    error = y - mul(w, x[-1])
    back = mul(w.T, error)
    found = [mul(error, x[-1].T)]
    for k in range(len(W) - 1, -1, -1):
        found.insert(0, mul(back, x[k].T))
        back = mul(W[k].T, back)
    return found


def _averaged(W: list[Array], w: Array, X: Array, y: Array, mul: Counter) -> list[Array]:
    """Return the gradients with the order of sums exchanged, as in (5)."""
    g = [w.T]
    for M in W[::-1]:
        g.insert(0, mul(M.T, g[0]))
    error = y - mul(g[0].T, X.T)
    h = [mul(X.T, error.T)]
    for M in W:
        h.append(mul(M, h[-1]))
    return [*[mul(g[k + 1], h[k].T) for k in range(len(W))], h[-1].T]


def training_cost() -> Evidence:
    """Check Table 1: a linear network's step costs N^2 L + P D, not N^2 L P."""
    width, depth = 24, 6
    rng = np.random.default_rng(7)
    W = [rng.normal(size=(width, width)) / np.sqrt(width) for _ in range(depth)]
    w = rng.normal(size=(1, width))
    methods: dict[str, Callable[..., list[Array]]] = {"samplewise": _samplewise, "averaged": _averaged}
    counts: dict[str, list[int]] = {k: [] for k in methods}
    gap = 0.0
    for samples in (width, 16 * width):
        X, y = rng.normal(size=(samples, width)), rng.normal(size=(1, samples))
        steps = {}
        for name, method in methods.items():
            counter = Counter()
            steps[name] = method(W, w, X, y, counter)
            counts[name].append(counter.count)
        gap = max(gap, _gap(steps["samplewise"], steps["averaged"]))
    one, two = (counts[k][1] / counts[k][0] for k in ("samplewise", "averaged"))
    return conclude(
        "isotropic_network:training_cost",
        f"Same step, both ways; with 16 times the samples multiplications grow {one:.4g} times sample by "
        f"sample and {two:.4g} times with sums exchanged as in (5); "
        f"{counts['samplewise'][1] / counts['averaged'][1]:.3g} times fewer at P = 16 N.",
        agrees("difference of the steps", gap, 1e-9),
        agrees("samplewise: growth over 16, minus 1", one / 16 - 1, 0.02),
        contradicts("averaged: growth over 16, minus 1", two / 16 - 1, 0.02),
    )


__all__ = [
    "first_layer_scale",
    "losses",
    "memory_terms",
    "several_outputs",
    "training_cost",
    "update_scale",
]
