"""Weight decay (appendix J): finite networks at rest, and the field equations with decay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from sympy import Max, Rational, Symbol

from derive.program import gamma0, mlp
from derive.reduce.homogeneous import network_degree
from derive.reduce.ridge import representer, rest_points
from derive.reduce.stationary import two_sources
from derive.theory import mean_field
from tests.ledger.evidence.base import Evidence, agrees, conclude, contradicts
from tests.ledger.evidence.edited import Experiment, off, right

Array = NDArray[np.float64]

GAMMA, WIDTH, REST = 1.5, 60, 1e-8
"""Feature learning, width of the networks, and how still the output of a network at rest stands."""


class _Network:
    """Layers of one width on inputs (P, D), with powers of a rectifier; weights in order W0, W1, .., w."""

    def __init__(self, rng: np.random.Generator, depth: int, inputs: Array, power: int = 1) -> None:
        n, d = WIDTH, inputs.shape[1]
        self.inputs, self.power = inputs, power
        self.w = [rng.standard_normal((n, d)), *(rng.standard_normal((n, n)) for _ in range(depth - 1))]
        self.w.append(rng.standard_normal((1, n)))

    def phi(self, x: Array) -> Array:
        return np.asarray(np.maximum(x, 0.0) ** self.power)

    def slope(self, x: Array) -> Array:
        return np.asarray(self.power * np.maximum(x, 0.0) ** (self.power - 1) * (x > 0))

    def run(self, x: Array) -> tuple[Array, list[Array]]:
        """Outputs (P,) and their gradients with respect to each weight (P, ...)."""
        h = x
        seen: list[tuple[Array, Array]] = []
        for k, w in enumerate(self.w):
            a = h @ w.T / np.sqrt(w.shape[1])
            seen.append((h, a))
            h = self.phi(a) if k < len(self.w) - 1 else a
        scale = np.sqrt(WIDTH) * GAMMA
        back = np.ones((len(x), 1)) / scale
        gradients: list[Array] = []
        for k in range(len(self.w) - 1, -1, -1):
            below, a = seen[k]
            if k < len(self.w) - 1:
                back = back * self.slope(a)
            root = np.sqrt(self.w[k].shape[1])
            gradients.insert(0, back[:, :, None] * below[:, None, :] / root)
            back = back @ self.w[k] / root
        return h[:, 0] / scale, gradients


def train(net: _Network, targets: Array, decay: float, rate: float, limit: int) -> float:
    """Descend with decay until the outputs stand still; how far they moved in the last step, per rate."""
    moved = np.inf
    for _ in range(limit):
        out, gradients = net.run(net.inputs)
        push = rate * GAMMA**2 * WIDTH * (targets - out)
        for k, g in enumerate(gradients):
            net.w[k] = (1 - rate * decay) * net.w[k] + np.tensordot(push, g, axes=(0, 0))
        moved = float(np.max(np.abs(net.run(net.inputs)[0] - out))) / rate
        if moved < REST:
            break
    return moved


def ridge_regression() -> Evidence:
    """J.1: a network of squared rectifiers at rest, at inputs seen and not seen.

    Squared, because descent never stands still at the kinks of plain ones.
    """
    rng = np.random.default_rng(3)
    inputs, elsewhere = rng.standard_normal((3, 5)), rng.standard_normal((4, 5))
    targets, decay = np.array([1.4, -1.1, 0.9]), 0.3
    net = _Network(rng, 1, inputs, power=2)
    moved = train(net, targets, decay, 0.004, 30000)
    _, gradients = net.run(np.vstack([inputs, elsewhere]))
    flat = np.concatenate([g.reshape(len(g), -1) for g in gradients], axis=1)
    kernel = GAMMA**2 * WIDTH * flat @ flat.T
    lam = Symbol("lam", positive=True)
    x = Symbol("x", real=True)
    network = mlp(1, Max(0, x) ** 2, "flow", weight_decay=lam)
    ridge = float(representer(mean_field(network)).ridge.subs(lam, decay))
    weights = np.linalg.solve(kernel[:3, :3] + ridge * np.eye(3), targets)
    out = net.run(np.vstack([inputs, elsewhere]))[0]
    bare = kernel[:, :3] @ np.linalg.solve(kernel[:3, :3] + decay * np.eye(3), targets)
    return conclude(
        "decay:ridge_regression",
        f"At rest (moving at {moved:.1e}) a network of squared rectifiers is kernel ridge regression with "
        f"its own tangent kernel and the ridge lambda kappa = {ridge:.3g}, on its samples and elsewhere.",
        agrees("output minus ridge regression", float(np.max(np.abs(out - kernel[:, :3] @ weights))), 1e-6),
        contradicts("output minus ridge regression without kappa", float(np.max(np.abs(out - bare))), 1e-6),
    )


def euler_identity() -> Evidence:
    """J: theta.grad f over f of networks of rectifiers and of their squares, against the derived degrees."""
    rng, findings = np.random.default_rng(5), []
    for depth in (1, 2, 3):
        for power, name in ((1, "relu"), (2, "squared")):
            net = _Network(rng, depth, rng.standard_normal((2, 4)), power)
            out, gradients = net.run(net.inputs)
            total = sum(np.sum(g * w, axis=(1, 2)) for g, w in zip(gradients, net.w, strict=True))
            x = Symbol("x", real=True)
            kappa = float(network_degree(mlp(depth, Max(0, x) ** power)).kappa)
            gap = float(np.max(np.abs(total / out - kappa)))
            findings.append(agrees(f"theta.grad f/f minus {kappa:g}, {name}, L = {depth}", gap, 1e-9))
    return conclude(
        "decay:euler_identity",
        "theta.grad f = kappa f with kappa = L + 1 for rectifiers and 2^{L+1} - 1 for their squares.",
        *findings,
    )


def collapse() -> Evidence:
    """J.1 text: does every network with gamma0 > 0 come to rest away from zero?"""
    target = 1.0
    lam, K, y = (Symbol(x, positive=True) for x in ("lam", "K", "y"))
    points = rest_points(mean_field(mlp(1, "linear", "flow", weight_decay=lam)))
    findings = []
    for decay, survives in ((0.5, True), (2.5, False)):
        net = _Linear(np.random.default_rng(11))
        numbers = {lam: decay, gamma0: GAMMA, K: 1, y: target}
        values = [float(p[2].subs(numbers)) for p in points]
        feasible = max([v for v in values if 0 <= v <= target], default=0.0)
        out = net.train(target, decay)
        findings.append(agrees(f"output at rest minus derived, lambda = {decay}", out - feasible, 1e-6))
        if not survives:
            findings.append(agrees("output at rest, lambda > gamma0 y sqrt(K)", out, 1e-6))
            findings.append(contradicts("output at the start of the comparison", net.largest, 1e-3))
    return conclude(
        "decay:collapse",
        "A linear network with gamma0 = 1.5 keeps its output for lambda = 0.5 and loses it for lambda = "
        "2.5: only for lambda < gamma0 y sqrt(K) is there a rest point other than zero.",
        *findings,
    )


class _Linear:
    """One hidden linear layer on one input of unit norm, started with its output at half the target."""

    def __init__(self, rng: np.random.Generator, n: int = 200) -> None:
        self.n, self.h = n, rng.standard_normal(n)
        self.z = self.h + 0.5 * rng.standard_normal(n)
        self.largest = 0.0

    def train(self, target: float, decay: float, rate: float = 0.02, steps: int = 4000) -> float:
        for _ in range(steps):
            out = float(self.z @ self.h) / (self.n * GAMMA)
            self.largest = max(self.largest, abs(out))
            push = rate * GAMMA * (target - out)
            self.h, self.z = (
                (1 - rate * decay) * self.h + push * self.z,
                (1 - rate * decay) * self.z + push * self.h,
            )
        return float(self.z @ self.h) / (self.n * GAMMA)


def fields_with_decay() -> Evidence:
    """J.2: networks whose weights decay a tenth in a step against the derived theory."""
    run = Experiment(
        program=mlp(2, "linear", "gd", weight_decay=Rational(1, 4)),
        values={"eta": 0.4, "gamma0": 1.2, "P": 2},
        data={"K_x": np.array([[1.0, 0.3], [0.3, 0.8]]), "y": np.array([1.0, -0.7])},
        width=100,
        networks=160,
    )
    measured, whole = run.measured(), run.solved()
    split = run.solved(two_sources(run.theory()).theory)
    gap = max(float(np.max(np.abs(whole.values[k] - split.values[k]))) for k in whole.values if k[0] in "fHG")
    without = replace(run, program=mlp(2, "linear", "gd")).theory()
    return conclude(
        "decay:fields_with_decay",
        "Networks with weight decay follow the derived theory; in the form of (J.2), with responses to "
        "sources that do not decay, it gives the same numbers.",
        right("two hidden layers, linear", run, measured),
        agrees("form of (J.2) minus the engine's", gap, 1e-10),
        off("no decay", run, measured, without),
    )
