"""Convolutional networks: trained ones against theory and (G.6), small ones against (G.1)-(G.4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Basic, sympify

from derive.program import P
from derive.theory import Theory
from numerics.solver.direct import evaluate
from tests.derive.once import convolution, mean_field
from tests.ledger.claims import claimed
from tests.ledger.claims.selfconsistent2023.convolution import N as UNITS
from tests.ledger.claims.selfconsistent2023.convolution import S, X
from tests.ledger.evidence.base import Evidence, agrees, conclude, contradicts
from tests.ledger.evidence.edited import CLOSE, Experiment, edited, worst
from tests.ledger.evidence.lab import EXACT, derivative, slope

Array = NDArray[np.float64]

POSITIONS, REACH = 3, 1
IMAGE = np.array([[[0.3, 0.8, 0.3], [-1.3, 0.9, 0.4], [-0.5, 0.6, 0.4]]])
TRAINED = Experiment(
    convolution(2, "tanh", positions=POSITIONS, receptive=REACH),
    {"eta": 0.3, "gamma0": 2.0, "P": 1},
    {"x": IMAGE, "y": np.array([1.0])},
    width=150,
    networks=120,
    steps=2,
)
PATHS = 2**10


def claim(*names: str) -> dict[str, Basic]:
    """Parts of (G.6) for a ring of three positions and filters of three offsets."""
    built = claimed("selfconsistent2023", "G.6")
    return {x: sympify(built[x]).subs({X: POSITIONS, S: REACH}) for x in names}


@lru_cache(maxsize=1)
def networks() -> dict[str, tuple[Array, Array]]:
    """Kernels and outputs of infinitely wide networks."""
    return TRAINED.measured()


def sources_and_responses() -> Evidence:
    """(G.4), (G.6): sums over offsets in covariances and responses."""
    theory = TRAINED.theory()
    parts = {
        "covariance of u": claim("cov_u"),
        "covariance of r": claim("cov_r"),
        "responses in h": claim("h"),
        "responses in z": claim("z"),
    }
    return conclude(
        "convolution:sources_and_responses",
        "Networks on a ring of three positions agree with sums over offsets in covariances and responses; "
        "each of the four printed forms alone is rejected.",
        agrees("convolution, L = 2: largest z of the derived theory", _far(theory), CLOSE),
        *[
            contradicts(f"{k} as in (G.6): largest z", _far(edited(theory, c, 2)), 1.0)
            for k, c in parts.items()
        ],
    )


def _far(theory: Theory) -> float:
    return worst(networks(), TRAINED.solved(theory, samples=PATHS))


def entries_of_kernels() -> Evidence:
    """(G.6) text: how many entries a kernel has at one pair of times, P = 2 samples, 4 positions."""
    findings = []
    for reach in (0, 1):
        program = convolution(2, positions=4, receptive=reach)
        x = np.eye(8).reshape(2, 4, 2, 4)
        run = evaluate(
            mean_field(program),
            steps=1,
            values={P: 2, "eta": 1, "gamma0": 1},
            data={"K_x": x, "y": np.ones(2)},
        )
        count = run.value("H", 1).size
        said = int(claimed("selfconsistent2023", "G.6 text")["samples"].subs({P: 2, S: reach})) ** 2
        what = f"{2 * reach + 1} offsets: entries of H"
        findings += [
            agrees(f"{what} minus (P positions)^2", count - 8**2, 0),
            contradicts(f"{what} minus (P |S|)^2", count - said, 1, by=1),
        ]
    return conclude(
        "convolution:entries_of_kernels",
        "Kernels join all pairs of positions, whatever the size of the filters.",
        *findings,
    )


# -- small networks: N units, filters W[k] for offsets -1, 0, 1 ----------------------------------------------

N, D, SAMPLES, GAMMA = 4, 2, 2, 1.5
OFFSETS = (-1, 0, 1)


@dataclass(frozen=True)
class Small:
    """Two hidden layers; ``w`` has one readout for each position."""

    first: Array
    inner: Array
    readout: Array

    def h1(self, x: Array) -> Any:
        """(positions, N)."""
        return _convolved(self.first, x) / np.sqrt(D)

    def h2(self, h1: Any, inner: Any = None) -> Any:
        """(positions, N)."""
        return _convolved(self.inner if inner is None else inner, np.tanh(h1)) / np.sqrt(N)

    def f(self, h2: Any) -> Any:
        """The output, summed over positions."""
        return np.sum(self.readout * np.tanh(h2)) / (GAMMA * N)


def _convolved(filters: Any, v: Any) -> Any:
    return np.stack(
        [sum(w @ v[(p + k) % len(v)] for k, w in zip(OFFSETS, filters, strict=True)) for p in range(len(v))]
    )


@lru_cache(maxsize=1)
def small() -> tuple[Small, Array]:
    """The same network and inputs each time."""
    rng = np.random.default_rng(11)
    draw = rng.standard_normal
    return Small(draw((3, N, D)), draw((3, N, N)), draw((3, N))), draw((SAMPLES, 3, D))


def gradients(net: Small, x: Array) -> tuple[Array, Array, Array, Array]:
    """h and g of both layers, one input."""
    h1 = net.h1(x)
    h2 = net.h2(h1)
    g1 = GAMMA * N * derivative(lambda h: net.f(net.h2(h)), h1)
    return h1, h2, g1, GAMMA * N * derivative(net.f, h2)


def output_over_positions() -> Evidence:
    """(G.1) text: an output that reads one position has no gradient at the others."""
    net, x = small()
    alone = replace(net, readout=net.readout * np.array([[1.0], [0.0], [0.0]]))
    one, every = (gradients(n, x[0])[3] for n in (alone, net))
    expected = net.readout * slope(net.h2(net.h1(x[0])))
    return conclude(
        "convolution:output_over_positions",
        "Summed over positions, the output gives g^L_a = w_a phi'(h_a) at each; read at one, only there.",
        agrees("sum: g^L minus w phi'", float(np.max(np.abs(every - expected))), EXACT),
        contradicts("one position: g^L minus w phi'", float(np.max(np.abs(one - expected))), EXACT),
    )


def backward_recursion() -> Evidence:
    """(G.2): the sum over units is counted twice."""
    net, x = small()
    h1, _, g1, g2 = gradients(net, x[0])
    z = _backward(net.inner, g2)
    printed = claimed("selfconsistent2023", "G.2")["z"]
    (units,) = (x for x in printed.limits if x[0].name == "j")
    times = float((units[2] - units[1] + 1).subs(UNITS, N))
    return conclude(
        "convolution:backward_recursion",
        f"One sum over offsets and one matrix product give g; the printed one is {times:g} times too large.",
        agrees("g minus phi' sum_b W_b^T g_{a-b}", float(np.max(np.abs(g1 - slope(h1) * z))), EXACT),
        contradicts("g minus printed", float(np.max(np.abs(g1 - slope(h1) * times * z))), EXACT),
    )


def _backward(filters: Array, g: Array) -> Array:
    """sum_b W_b^T g_{a-b}/sqrt(N)."""
    back = [w.T @ g[(p - k) % 3] for p in range(3) for k, w in zip(OFFSETS, filters, strict=True)]
    return np.asarray(np.sum(np.reshape(back, (3, len(OFFSETS), N)), axis=1) / np.sqrt(N))


def _moves(net: Small, x: Array, error: Array) -> tuple[Array, Array]:
    """Velocity of the inner filters: gamma^2 times the gradient, and (G.3)."""
    flow, printed = np.zeros_like(net.inner), np.zeros_like(net.inner)
    for one, delta in zip(x, error, strict=True):
        h1, _, _, g2 = gradients(net, one)
        flow += GAMMA**2 * N * delta * derivative(_of_filters(net, h1), net.inner)
        for i, k in enumerate(OFFSETS):
            printed[i] += GAMMA / np.sqrt(N) * delta * g2.T @ np.tanh(h1[(np.arange(3) + k) % 3])
    return flow, printed


def _of_filters(net: Small, h1: Array) -> Callable[[Any], Any]:
    """The output as a function of the inner filters."""
    return lambda filters: net.f(net.h2(h1, filters))


def filter_velocity() -> Evidence:
    """(G.3): updates of the filters."""
    net, x = small()
    flow, printed = _moves(net, x, np.array([0.7, -0.4]))
    return conclude(
        "convolution:filter_velocity",
        "gamma^2 times the gradient of the outputs is the printed sum over positions and samples.",
        agrees("gradient minus (G.3)", float(np.max(np.abs(flow - printed))), EXACT),
        contradicts("with phi(h_{a-b})", float(np.max(np.abs(flow - printed[::-1]))), EXACT),
    )


def driven_fields() -> Evidence:
    """(G.4): both memories once the filters have moved; and its text: chi is a sum over offsets."""
    net, x = small()
    error, rate = np.array([0.7, -0.4]), 0.2
    after = replace(net, first=0.8 * net.first, inner=net.inner + rate * _moves(net, x, error)[0])
    nows = [np.tanh(after.h1(v)) for v in x]
    phis, gs = zip(*[(np.tanh(h1), g2) for h1, _, _, g2 in (gradients(net, v) for v in x)], strict=True)
    phi, g = np.tanh(after.h1(x[0])), gradients(after, x[0])[3]
    forward, backward, timeless = (np.zeros((3, N)) for _ in range(3))
    for p, c, k in np.ndindex(3, 3, 3):
        b = OFFSETS[k]
        for delta, old, now, driven in zip(error, phis, nows, gs, strict=True):
            forward[p] += rate * GAMMA * delta * (phi[(p + b) % 3] @ old[(c + b) % 3] / N) * driven[c]
            weight = rate * GAMMA * delta * (g[(p - b) % 3] @ driven[(c - b) % 3] / N)
            backward[p] += weight * old[c]
            timeless[p] += weight * now[c]
    chi = after.h2(after.h1(x[0])) - forward
    z, xi = _backward(after.inner, g), _backward(net.inner, g)
    printed = phi @ net.inner[1].T / np.sqrt(N)
    return conclude(
        "convolution:driven_fields",
        "After a step of the inner filters the fields minus the memories of (G.4) are sums over offsets of "
        "the initial filters, W_b(0) phi(h_{a+b})/sqrt(N) in h; the central filter alone is not enough, nor "
        "is a memory of z whose phi(h) has no time of its own.",
        agrees("h minus memory minus chi", float(np.max(np.abs(chi - net.h2(after.h1(x[0]))))), EXACT),
        agrees("z minus memory minus xi", float(np.max(np.abs(z - backward - xi))), EXACT),
        contradicts(
            "(G.4): z minus memory with phi(h) at t, minus xi",
            float(np.max(np.abs(z - timeless - xi))),
            EXACT,
        ),
        contradicts(
            "(G.4 text): h minus memory minus chi as printed", float(np.max(np.abs(chi - printed))), EXACT
        ),
    )
