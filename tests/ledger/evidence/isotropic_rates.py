"""Brute-force descent on the population's loss of linear networks: stable rates (70), power laws (21)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import autograd.numpy as anp
import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, eigsh
from sympy import sympify

from derive.calculus.symbols import L
from tests.ledger.claims import claimed
from tests.ledger.claims.linear2025.scaling import beta as task_exponent
from tests.ledger.evidence.base import Evidence, Finding, agrees, conclude, contradicts
from tests.ledger.evidence.lab import Weights, along, gradients

Array = NDArray[np.float64]

RICH, LAZY = 200.0, 1e-3
"""Values of gamma0."""


@dataclass
class Descent:
    """Network in the units of (106), on features with eigenvalues ``eigen``; W^0 multiplies h^0 directly.

    The readout's factor is 1/(N gamma0) times ``unit``, and W^0 learns with ``unit``; ``unit = 1`` is (106),
    and sqrt(D)/sqrt(D) = 1 with entries of W^0 divided by sqrt(D) is (1).
    """

    W: list[Array]
    w: Array
    target: Array
    eigen: Array
    gamma: float

    @classmethod
    def drawn(
        cls, depth: int, width: int, target: Array, eigen: Array, gamma: float, seed: int | list[int]
    ) -> Descent:
        """Return a network with standard normal weights."""
        rng = np.random.default_rng(seed)
        shapes = [(width, len(eigen)), *[(width, width)] * (depth - 1)]
        found = cls([rng.normal(size=x) for x in shapes], rng.normal(size=width), target, eigen, gamma)
        found.target = target + found.learnt()  # centred
        return found

    @property
    def width(self) -> int:
        """Number of units N of a layer."""
        return len(self.w)

    @property
    def weights(self) -> Weights:
        """All weights, the readout last."""
        return (*self.W, self.w)

    def learnt(self) -> Array:
        """Return the function of the network."""
        return np.asarray(self._of(self.weights))

    def above(self, weights: Weights | None = None) -> Any:
        """Return g^1: the readout through all matrices but the first."""
        *matrices, above = weights or self.weights
        for W in matrices[:0:-1]:
            above = anp.dot(W.T, above) / self.width**0.5
        return above

    def _of(self, weights: Weights) -> Any:
        return anp.dot(weights[0].T, self.above(weights)) / (self.width * self.gamma)

    def slopes(self, v: Array) -> tuple[list[Array], Array]:
        """Return changes of the weights per unit rate for an error vector."""
        scale = self.gamma**2 * self.width
        *inner, readout = gradients(lambda w: scale * anp.sum(self.eigen * v * self._of(w)), self.weights)
        return inner, readout

    def move(self, v: Array, rate: float) -> None:
        """Apply one step for an error vector."""
        slopes, readout = self.slopes(v)
        for W, change in zip(self.W, slopes, strict=True):
            W += rate * change
        self.w = self.w + rate * readout

    def sharpness(self) -> float:
        """Return the largest eigenvalue of the map from the error to its rate of decay."""

        def decay(x: Array) -> Array:
            inner, readout = self.slopes(x / root)
            return root * along(lambda w: [self._of(w)], self.weights, (*inner, readout))[0]

        root = np.sqrt(self.eigen)  # with it on both sides the map is symmetric
        modes = len(root)
        operator = LinearOperator((modes, modes), matvec=decay, dtype=float)
        return float(eigsh(operator, k=1, v0=np.ones(modes), return_eigenvectors=False)[0])


def _final_sharpness(depth: int, width: int, gamma: float, features: int = 12) -> float:
    """Return the sharpness after training isotropic features, with |w*|^2 = D in the units of (1)."""
    target = np.full(features, 1 / np.sqrt(features))
    net = Descent.drawn(depth, width, target, np.ones(features), gamma, seed=70)
    rate = 0.4 / ((depth + 1) * gamma ** (2 * depth / (depth + 1)) + 8.0)
    for _ in range(4000):
        v = net.target - net.learnt()
        if np.linalg.norm(v) < 1e-9:
            break
        net.move(v, rate)
    if np.linalg.norm(v) > 1e-6:
        raise RuntimeError(f"depth {depth}, width {width}: not trained, {np.linalg.norm(v):.3g} left")
    return net.sharpness()


def stable_rates() -> Evidence:
    """Check (70): the power of the width in 2/sharpness after rich training."""
    widths, findings, words = (32, 256), [], []
    claims = claimed("linear2025", "70")
    for depth in (1, 2, 3):
        power = [_width_power(depth, widths, RICH, ntk)[0] for ntk in (False, True)]
        printed = float(sympify(claims["ntk"]).subs(L, depth))
        mean_field = float(sympify(claims["mean field"]))
        findings += [
            agrees(f"L = {depth}: power at fixed gamma0 minus printed", power[0] - mean_field, 0.015),
            agrees(f"L = {depth}: NTK power minus (1 - 1/(L + 1))", power[1] - depth / (depth + 1), 0.015),
            contradicts(f"L = {depth}: NTK power minus printed", power[1] - printed, 0.015, by=5),
        ]
        words.append(f"{power[1]:.3f} (printed {printed:.3f})")
    return conclude(
        "isotropic_rates:stable_rates",
        "Powers of nu in the largest stable rate, NTK, L = 1, 2, 3 hidden layers: "
        + ", ".join(words)
        + "; 1 - 1/(L + 1) is right, and 1 - 1/L if L counts all layers of weights.",
        *findings,
    )


def lazy_rates() -> Evidence:
    """Check text after (70): for gamma0 << 1 the largest stable rate is independent of the width.

    This holds in both parametrisations.
    """
    findings, words = [], []
    claims = {k: float(e) for k, e in claimed("linear2025", "70 text").items()}
    for depth, widths in ((1, (1024, 4096)), (2, (256, 1024))):
        for label, ntk in (("mean field", False), ("ntk", True)):
            power, sharp = _width_power(depth, widths, LAZY, ntk, features=2)
            findings += [
                agrees(f"L = {depth}, {label}: power of nu minus printed", power - claims[label], 0.045),
                agrees(f"L = {depth}, {label}: sharpness over L + 1, minus 1", sharp / (depth + 1) - 1, 0.05),
            ]
            words.append(f"{power:.3f}")
    rich, _ = _width_power(1, (32, 256), RICH, True, features=2)
    return conclude(
        "isotropic_rates:lazy_rates",
        f"At gamma0 = {LAZY:g} the powers of nu in the largest stable rate are "
        + ", ".join(words)
        + f" (mean field and NTK, L = 1, 2): it tends to 2/(L + 1); at gamma0 = {RICH:g} NTK has {rich:.3f}.",
        *findings,
        contradicts("NTK in the rich regime: power of nu", rich, 0.045),
    )


def _width_power(
    depth: int, widths: tuple[int, int], gamma: float, ntk: bool, features: int = 12
) -> tuple[float, float]:
    """Return the power of the width in the largest stable rate, and the sharpness at the larger width."""
    sharp = [
        _final_sharpness(depth, n, gamma * (np.sqrt(widths[1] / n) if ntk else 1.0), features) for n in widths
    ]
    return float(-np.log(sharp[1] / sharp[0]) / np.log(widths[1] / widths[0])), sharp[1]


def _losses(task: float, gamma: float, modes: int, rate: float, steps: int) -> Array:
    """Return losses of one hidden layer on features with exponents alpha = 2, ``task``, times 0, rate, ...

    Rows of weights that start orthonormal, W0^T W0 = N and W0^T w = 0, have the moments of infinite width, on
    which alone the function depends. Modes beyond the last counted are not learnt yet, so that their part is
    added.
    """
    k = np.arange(1, modes + 1, dtype=float)
    eigen, target, width = k**-2, k ** ((1 - 2 * task) / 2), modes + 1
    net = Descent.drawn(1, width, target, eigen, gamma, seed=21)
    net.W[0] = np.sqrt(width) * np.eye(width, modes)
    net.w = np.sqrt(width) * np.eye(width)[-1]
    net.target = target
    far = modes + 0.5
    tail = far ** (-2 * task) / (2 * task)
    found = np.empty(steps + 1)
    for n in range(steps + 1):
        v = target - net.learnt()
        found[n] = np.sum(eigen * v**2) + tail
        net.move(v, rate)
    return found


TASKS = {0.3: (6.0, 0.02, 1000), 0.5: (6.0, 0.02, 1000), 0.7: (3.0, 0.04, 2000), 1.5: (1.0, 0.1, 2000)}
"""Exponent of the task: gamma0, rate and steps that leave the transient behind."""


def scaling_laws() -> Evidence:
    """Check (21): exponents of the loss at infinite width, one hidden layer, rich and nearly lazy."""
    claims = {k: sympify(e) for k, e in claimed("linear2025", "21").items()}
    findings: list[Finding] = []
    words = []
    for task, (gamma, rate, steps) in TASKS.items():
        rich = _decay(_losses(task, gamma, 300, rate, steps))
        printed = float(claims["hard" if task < 1 else "easy"].subs(task_exponent, task))
        findings.append(agrees(f"beta = {task}: exponent minus printed", rich - printed, 0.02))
        if task < 1:
            findings.append(contradicts(f"beta = {task}: exponent minus beta", rich - task, 0.02, by=5))
        words.append(f"{rich:.3f} ({printed:.3f})")
    lazy = _decay(_losses(0.5, 1e-3, 300, 0.2, 1000))
    return conclude(
        "isotropic_rates:scaling_laws",
        "Decay exponents for beta = 0.3, 0.5, 0.7, 1.5, measured (printed): " + ", ".join(words) + ".",
        *findings,
        agrees("beta = 0.5, gamma0 = 0.001: exponent minus beta", lazy - 0.5, 0.02),
    )


def _decay(losses: Array) -> float:
    """Return the power of time over the last factor 2.5 of the times."""
    last = len(losses) - 1
    first = 2 * last // 5
    return float(-np.log(losses[last] / losses[first]) / np.log(last / first))
