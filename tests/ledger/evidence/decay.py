"""Weight decay (appendix J): fixed points of finite networks, and the field equations with decay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import autograd.numpy as anp
import numpy as np
from numpy.typing import NDArray
from sympy import Max, Ne, Rational, Symbol

from derive.program import gamma0
from derive.reduce.homogeneous import network_degree
from derive.reduce.ridge import representer, rest_points
from derive.reduce.stationary import two_sources
from tests.derive.once import mean_field, mlp
from tests.ledger.claims import claimed, corrected
from tests.ledger.evidence.base import Evidence, agrees, conclude, contradicts
from tests.ledger.evidence.edited import Experiment, off, right
from tests.ledger.evidence.evaluated import valued
from tests.ledger.evidence.lab import Weights, gradients, layers, slopes

Array = NDArray[np.float64]

GAMMA, WIDTH, REST, LIMIT = 1.5, 60, 1e-8, 30000
"""Feature learning, width of the networks, how still an output at rest stands, and the most steps to it."""


def drawn(rng: np.random.Generator, depth: int, inputs: int) -> Weights:
    """Return W^0, W^1, ..., w of a network whose layers have one width."""
    n = WIDTH
    matrices = [rng.standard_normal((n, inputs)), *(rng.standard_normal((n, n)) for _ in range(depth - 1))]
    return (*matrices, rng.standard_normal((1, n)))


def output(weights: Weights, inputs: Array, power: int = 1) -> Any:
    """Return outputs (P,) on inputs (P, D) of a network of powers of a rectifier."""
    top = layers(weights, inputs, lambda h: anp.maximum(h, 0.0) ** power)[-1]
    return top[:, 0] / (np.sqrt(WIDTH) * GAMMA)


def at_rest(
    weights: Weights, inputs: Array, targets: Array, decay: float, rate: float
) -> tuple[Weights, float]:
    """Train squared rectifiers with decay to a fixed point; return weights and the last change per rate."""

    def loss(w: Weights) -> Any:
        return anp.sum((targets - output(w, inputs, 2)) ** 2) / 2

    gap, now = np.inf, output(weights, inputs, 2)
    for _ in range(LIMIT):
        pull = gradients(loss, weights)
        weights = tuple(
            (1 - rate * decay) * w - rate * GAMMA**2 * WIDTH * x for w, x in zip(weights, pull, strict=True)
        )
        before, now = now, output(weights, inputs, 2)
        gap = float(np.max(np.abs(now - before))) / rate
        if gap < REST:
            break
    return weights, gap


def ridge_regression() -> Evidence:
    """Check J.1: a network of squared rectifiers at its fixed point, at training and other inputs.

    The rectifiers are squared because descent does not converge at the kinks of plain ones.
    """
    rng = np.random.default_rng(3)
    inputs, elsewhere = rng.standard_normal((3, 5)), rng.standard_normal((4, 5))
    targets, decay = np.array([1.4, -1.1, 0.9]), 0.3
    weights, gap = at_rest(drawn(rng, 1, inputs.shape[1]), inputs, targets, decay, 0.004)
    everywhere = np.vstack([inputs, elsewhere])
    flat = np.concatenate(
        [x.reshape(len(x), -1) for x in slopes(lambda w: output(w, everywhere, 2), weights)], axis=1
    )
    kernel = GAMMA**2 * WIDTH * flat @ flat.T
    lam = Symbol("lam", positive=True)
    x = Symbol("x", real=True)
    network = mlp(1, Max(0, x) ** 2, "flow", weight_decay=lam)
    ridge = float(representer(mean_field(network)).ridge.subs(lam, decay))
    shares = np.linalg.solve(kernel[:3, :3] + ridge * np.eye(3), targets)
    out = output(weights, everywhere, 2)
    bare = kernel[:, :3] @ np.linalg.solve(kernel[:3, :3] + decay * np.eye(3), targets)
    return conclude(
        "decay:ridge_regression",
        f"At rest (moving at {gap:.1e}) a network of squared rectifiers is kernel ridge regression with "
        f"its own tangent kernel and the ridge lambda kappa = {ridge:.3g}, on its samples and elsewhere.",
        agrees("output minus ridge regression", float(np.max(np.abs(out - kernel[:, :3] @ shares))), 1e-6),
        contradicts("output minus ridge regression without kappa", float(np.max(np.abs(out - bare))), 1e-6),
    )


def euler_identity() -> Evidence:
    """Check J: theta.grad f over f of networks of rectifiers and their squares, against derived degrees."""
    rng, findings = np.random.default_rng(5), []
    for depth in (1, 2, 3):
        for power, name in ((1, "relu"), (2, "squared")):
            inputs = rng.standard_normal((2, 4))
            weights = drawn(rng, depth, 4)

            def of(w: Weights, inputs: Array = inputs, power: int = power) -> Any:
                return output(w, inputs, power)

            out, pulls = of(weights), slopes(of, weights)
            total = sum(np.sum(g * w, axis=(1, 2)) for g, w in zip(pulls, weights, strict=True))
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
    """Check J.1 text: the output at rest of networks with gamma0 > 0, below and above the threshold."""
    target = 1.0
    lam, K, y = (Symbol(x, positive=True) for x in ("lam", "K", "y"))
    points = rest_points(mean_field(mlp(1, "linear", "flow", weight_decay=lam)))
    claim, true = (built("selfconsistent2023", "J.1 text") for built in (claimed, corrected))
    assert isinstance(claim["rest"], Ne)
    excluded = float(claim["rest"].rhs)
    findings = []
    for decay, survives in ((0.5, True), (2.5, False)):
        net = _Linear(np.random.default_rng(11))
        numbers = {lam: decay, gamma0: GAMMA, K: 1, y: target}
        values = [float(p[2].subs(numbers)) for p in points]
        feasible = max([v for v in values if 0 <= v <= target], default=0.0)
        out = net.train(target, decay)
        findings.append(agrees(f"output at rest minus derived, lambda = {decay}", out - feasible, 1e-6))
        named = {x.name: float(value) for x, value in numbers.items()}
        corrections = {name: valued(side, named, {}) for name, side in true.items()}
        said = corrections["rest" if decay < corrections["threshold"] else "beyond"]
        findings.append(agrees(f"output at rest minus corrected, lambda = {decay}", out - said, 1e-6))
        if survives:
            findings.append(contradicts("output at rest minus what print excludes", out - excluded, 1e-6))
        else:
            findings.append(
                agrees("the same for lambda > gamma0 y sqrt(K): print is false", out - excluded, 1e-6)
            )
            findings.append(contradicts("output lost until then", net.largest - out, 1e-3))
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
    """Check J.2: networks whose weights decay a tenth in a step against the derived theory."""
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
