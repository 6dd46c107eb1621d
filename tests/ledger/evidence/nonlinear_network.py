"""Identities of one finite network of tanh units, exact at any width: checked to rounding.

Gradients are taken by complex steps.  Training follows them at the rate eta gamma^2, gamma = gamma0 sqrt(N),
and never the update formulas under test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.ledger.evidence.base import Evidence, agrees, conclude, contradicts
from tests.ledger.evidence.lab import EXACT, derivative, slope

Array = NDArray[np.float64]
Weights = tuple[Any, ...]

N, DEPTH, STEPS = 6, 3, 3
GAMMA0, ETA = 1.4, 0.2
GAMMA = GAMMA0 * np.sqrt(N)
INPUTS = np.array([[1.2, -0.4, 0.3], [0.2, 0.9, -0.8]])
TARGETS = np.array([1.0, -0.6])
D = INPUTS.shape[1]


def drawn(depth: int) -> Weights:
    """Return W^0 .. W^{L-1} and the readout w, the same each time."""
    draw = np.random.default_rng(21).standard_normal
    return (draw((N, D)), *(draw((N, N)) for _ in range(depth - 1)), draw(N))


def forward(weights: Weights) -> list[Any]:
    """Return the inputs and h^1 .. h^L, each (P, units)."""
    found = [INPUTS, INPUTS @ weights[0].T / np.sqrt(D)]
    for w in weights[1:-1]:
        found.append(np.tanh(found[-1]) @ w.T / np.sqrt(N))
    return found


def output(weights: Weights) -> Any:
    """Return f, (P,)."""
    return np.tanh(forward(weights)[-1]) @ weights[-1] / (GAMMA * np.sqrt(N))


def of_layer(weights: Weights, layer: int) -> Callable[[Any], Any]:
    """Return the output for one sample as a function of h^layer."""

    def f(h: Any) -> Any:
        for w in weights[layer:-1]:
            h = w @ np.tanh(h) / np.sqrt(N)
        return weights[-1] @ np.tanh(h) / (GAMMA * np.sqrt(N))

    return f


def of_weights(weights: Weights, k: int) -> Callable[[Any], Any]:
    """Return the outputs as a function of the k-th weights."""
    return lambda w: output((*weights[:k], w, *weights[k + 1 :]))


def gradients(weights: Weights) -> list[Array]:
    """Return df_mu/dW for all weights, shapes (P, *weight.shape)."""
    return [derivative(of_weights(weights, k), w) for k, w in enumerate(weights)]


def backward(weights: Weights) -> list[Array]:
    """Return g^1 .. g^L by (2): gamma sqrt(N) df/dh, each (P, N); an empty array at the inputs."""
    h = forward(weights)
    found = [
        np.stack([GAMMA * np.sqrt(N) * derivative(of_layer(weights, k), x) for x in h[k]])
        for k in range(1, len(h))
    ]
    return [np.full_like(found[0], np.nan), *found]


@dataclass(frozen=True)
class Trained:
    """Weights, h and g of all layers and the errors (P,), after 0..STEPS steps."""

    weights: list[Weights]
    h: list[list[Array]]
    g: list[list[Array]]
    error: list[Array]


@lru_cache(maxsize=2)
def trained(depth: int = DEPTH) -> Trained:
    """Return the network trained by its gradients."""
    weights = [drawn(depth)]
    for _ in range(STEPS):
        now, error = weights[-1], TARGETS - output(weights[-1])
        moves = [ETA * GAMMA**2 * np.tensordot(error, x, 1) for x in gradients(now)]
        weights.append(tuple(w + x for w, x in zip(now, moves, strict=True)))
    return Trained(
        weights,
        [forward(w) for w in weights],
        [backward(w) for w in weights],
        [TARGETS - output(w) for w in weights],
    )


def backward_fields() -> Evidence:
    """Check (2), (D.4): g of all layers is phi'(h) z; the update of the weights is (D.5)."""
    weights = drawn(DEPTH)
    h, g, slopes = forward(weights), backward(weights), gradients(weights)
    chain = [slope(h[k]) * (g[k + 1] @ weights[k]) / np.sqrt(N) - g[k] for k in range(1, DEPTH)]
    bare = [(g[k + 1] @ weights[k]) / np.sqrt(N) - g[k] for k in range(1, DEPTH)]
    top = slope(h[DEPTH]) * weights[-1] - g[DEPTH]
    inner = [
        GAMMA * slopes[k] - np.einsum("mi,mj->mij", g[k + 1], np.tanh(h[k])) / N for k in range(1, DEPTH)
    ]
    return conclude(
        "nonlinear_network:backward_fields",
        "gamma sqrt(N) df/dh^l of a tanh network is phi' W^T g^{l+1}/sqrt(N), and phi' w at the top; the "
        "gradients of the inner matrices are the printed outer products.",
        agrees("recursion", _size(chain), EXACT),
        contradicts("recursion without phi'", _size(bare), EXACT),
        agrees("top layer", _size(top), EXACT),
        agrees("gradients of inner matrices minus (D.5)", _size(inner), EXACT),
    )


def tangent_kernel() -> Evidence:
    """Check (4) and its text, (D.2), (D.3), (D.6): the tangent kernel in three forms.

    The forms are products of gradients, sums over layers and the velocity of outputs.
    """
    weights = drawn(DEPTH)
    h, g, slopes = forward(weights), backward(weights), gradients(weights)
    products = sum(x.reshape(2, -1) @ x.reshape(2, -1).T for x in slopes)
    phi = [INPUTS @ INPUTS.T / D, *(np.tanh(x) @ np.tanh(x).T / N for x in h[1:])]
    back = [*(x @ x.T / N for x in g[1:]), np.ones((2, 2))]
    kernel = sum(a * b for a, b in zip(phi, back, strict=True))
    error = TARGETS - output(weights)
    moves = [GAMMA**2 * np.tensordot(error, x, 1) for x in slopes]
    velocity = derivative(
        lambda rate: output(tuple(w + rate * x for w, x in zip(weights, moves, strict=True))), np.array(0.0)
    )
    return conclude(
        "nonlinear_network:tangent_kernel",
        f"Products of gradients of f, times gamma^2 = {GAMMA**2:.4g}, are the sum of G Phi over layers, by "
        "which outputs move under flow.",
        agrees("gamma^2 grad f . grad f minus sum", _size(GAMMA**2 * products - kernel), EXACT),
        contradicts("grad f . grad f minus sum", _size(products - kernel), EXACT),
        agrees("df/dt minus K Delta", _size(velocity - kernel @ error), EXACT),
    )


def memory() -> Evidence:
    """Check (D.8), (D.9), (D.44): weights and fields rebuilt from those at earlier steps."""
    run, start = trained(), trained().weights[0]
    gaps: dict[str, list[float]] = {}

    def note(name: str, difference: Array) -> None:
        gaps.setdefault(name, []).append(_size(difference))

    for k, t in ((k, t) for k in range(1, DEPTH) for t in range(1, STEPS + 1)):
        phi, g = np.tanh(run.h[t][k]), run.g[t][k + 1]
        past = [(np.tanh(run.h[s][k]), run.g[s][k + 1], ETA * GAMMA0 * run.error[s]) for s in range(t)]
        w = (run.weights[t][k] - start[k]) * np.sqrt(N)
        h = run.h[t][k + 1] - phi @ start[k].T / np.sqrt(N)
        z = g @ (run.weights[t][k] - start[k]) / np.sqrt(N)
        note("W", w - sum((g_ * e[:, None]).T @ phi_ for phi_, g_, e in past))
        note("h", h - sum((phi @ phi_.T / N * e) @ g_ for phi_, g_, e in past))
        note("z", z - sum((g @ g_.T / N * e) @ phi_ for phi_, g_, e in past))
        for sample in (0, 1):
            note("W printed", w - sum(e[sample] * g_.T @ phi_ for phi_, g_, e in past))
        note("h printed", h - sum((phi_ @ phi.T / N * e) @ g for phi_, _, e in past))
        note("z printed", z - sum((g_ @ g.T / N * e) @ phi_ for phi_, g_, e in past))
    return conclude(
        "nonlinear_network:memory",
        "Weights and fields of a trained tanh network are their start plus the memory, with Delta_mu(s), "
        "g(s), Phi(t,s) and G(t,s); as printed in (D.8) and (D.9) they are not.",
        *[agrees(f"{k} minus start minus memory", max(gaps[k]), EXACT) for k in ("W", "h", "z")],
        *[
            contradicts(f"{k} as printed in {number}", min(gaps[f"{k} printed"]), EXACT)
            for k, number in (("W", "(D.8)"), ("h", "(D.9)"), ("z", "(D.9)"))
        ],
    )


def initial_fields() -> Evidence:
    """Check (D.10), (D.24): layer labels of chi and xi, at t = 0."""
    run, weights = trained(), trained().weights[0]
    h, g = run.h[0], run.g[0]
    gaps: dict[str, list[float]] = {"chi": [], "xi": [], "chi printed": [], "xi printed": []}
    for k in range(1, DEPTH):
        chi, z = np.tanh(h[k]) @ weights[k].T / np.sqrt(N), g[k] / slope(h[k])
        gaps["chi"].append(_size(chi - h[k + 1]))
        gaps["chi printed"].append(_size(chi - h[k]))
        gaps["xi"].append(_size(g[k + 1] @ weights[k] / np.sqrt(N) - z))
        gaps["xi printed"].append(_size(g[k] @ weights[k] / np.sqrt(N) - z))
    return conclude(
        "nonlinear_network:initial_fields",
        "W^l(0) phi(h^l)/sqrt(N) is the field of layer l + 1 (D.10), and xi^l holds g^{l+1} (D.24).",
        *[agrees(f"{k} minus field at t = 0", max(gaps[k]), EXACT) for k in ("chi", "xi")],
        *[contradicts(f"{k} as printed", min(gaps[f"{k} printed"]), EXACT) for k in ("chi", "xi")],
    )


def two_layer_fields() -> Evidence:
    """Check (D.11): one hidden layer."""
    run, kernel = trained(1), INPUTS @ INPUTS.T / D
    h, z = run.h[0][1], run.weights[0][1]
    gaps, late = [], []
    for s in range(STEPS):
        e = ETA * GAMMA0 * run.error[s]
        now = h + (kernel * e) @ (run.weights[s + 1][1] * slope(run.h[s + 1][1]))
        late.append(_size(run.h[s + 1][1] - now))
        h, z = h + (kernel * e) @ (z * slope(run.h[s][1])), z + e @ np.tanh(run.h[s][1])
        gaps += [_size(run.h[s + 1][1] - h), _size(run.weights[s + 1][1] - z)]
    return conclude(
        "nonlinear_network:two_layer_fields",
        "Both fields of a trained network of one tanh layer are their start plus the printed memory.",
        agrees("h and z minus (D.11)", max(gaps), EXACT),
        contradicts("h with the fields after the step", min(late), EXACT),
    )


def _size(x: Array | list[Array]) -> float:
    return float(np.max(np.abs(x)))
