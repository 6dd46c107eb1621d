"""Identities of one finite linear network, exact at any width: checked to rounding on one small network.

Gradients by the weights are a library's, gradients by the fields are differences, which are exact because the
output is linear in each field.  Training follows these gradients at the rate eta gamma^2,
gamma = gamma0 sqrt(N), and never the update formulas under test.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import L, P, mu, t
from tests.ledger.claims import claimed
from tests.ledger.evidence.base import Evidence, Finding, agrees, conclude, contradicts
from tests.ledger.evidence.engine import Array
from tests.ledger.evidence.explicit import at_time, number, written_out
from tests.ledger.evidence.lab import Weights, moved, slopes
from tests.ledger.evidence.plain_networks import Plain, backward, drawn, forward, output, outputs

N, D, SAMPLES, DEPTH = 20, 3, 2, 3
INPUTS = np.array([[1.2, -0.4, 0.3], [0.2, 0.9, -0.8]])
TARGETS = np.array([1.0, -0.6])
STEPS, ETA = 3, 0.2

ROUNDING = 1e-11
"""Differences of numbers of order one, with sums over N^2 = 400 weights."""


def network(gamma0: float = 0.8, depth: int = DEPTH) -> Plain:
    """Return the same network each time."""
    return drawn(D, depth, N, gamma0, np.random.default_rng(5))


def gradients(p: Plain) -> Weights:
    """Return df_mu/dW for all weights, readout last; each of shape (P, *weight.shape)."""
    return slopes(lambda weights: outputs(p.with_weights(weights), INPUTS), p.weights)


def stepped(p: Plain, eta: float) -> Plain:
    """Return the network after one step of descent on (1/2) sum_mu Delta^2 at the rate eta gamma^2."""
    error = TARGETS - outputs(p, INPUTS)
    rate = eta * p.gamma0**2 * N
    moves = tuple(rate * np.einsum("m,m...->...", error, x) for x in gradients(p))
    return p.with_weights(moved(p.weights, moves))


@dataclass(frozen=True)
class Trained:
    """Trained network with its history.

    Weights, fields ``h[t][l]`` (P,N), l = 0..L with the inputs first, ``g[t][l]`` (N,), l = 1..L, and errors.
    """

    weights: list[Plain]
    h: list[list[Array]]
    g: list[list[Array]]
    error: Array


def trained(depth: int = DEPTH) -> Trained:
    """Return the network after 0..STEPS steps."""
    weights = [network(depth=depth)]
    for _ in range(STEPS):
        weights.append(stepped(weights[-1], ETA))
    h = [forward(p, INPUTS) for p in weights]
    g = [[np.full(N, np.nan), *backward(p)] for p in weights]
    return Trained(weights, h, g, np.array([TARGETS - output(p, x) for p, x in zip(weights, h, strict=True)]))


def _kernels(p: Plain) -> tuple[list[Array], list[float]]:
    """Return H^l (P,P), l = 0..L, and G^l, l = 1..L+1 (index 0 unused), of one network."""
    h, g = forward(p, INPUTS), backward(p)
    return [x @ x.T / x.shape[1] for x in h], [np.nan, *(float(x @ x) / N for x in g), 1.0]


def _printed_sum(name: str, p: Plain, sample: int, other: int) -> float:
    """Return the claim's sum over layers of G^{l+1} H^l for one network at one time."""
    H, G = _kernels(p)
    claim = claimed("selfconsistent2023", name)["grad_f_grad_f"]

    def value(atom: AppliedUndef) -> complex:
        layer = int(atom.args[0])
        return G[layer] if str(atom.func) == "G" else float(H[layer][sample, other])

    return number(written_out(claim, {L: DEPTH, P: SAMPLES}), value).real


def tangent_kernel_normalisation() -> Evidence:
    """Check (4) text, (D.2), (D.6): grad f . grad f against the sum over layers, at two gamma."""
    findings: list[Finding] = []
    ratios = []
    for gamma0 in (0.5, 2.0):
        p = network(gamma0)
        slopes = gradients(p)
        dot = np.array(
            [[sum(np.sum(x[a] * x[b]) for x in slopes) for b in range(SAMPLES)] for a in range(SAMPLES)]
        )
        printed = np.array(
            [[_printed_sum("4 text", p, a, b) for b in range(SAMPLES)] for a in range(SAMPLES)]
        )
        squared = gamma0**2 * N
        findings.append(
            agrees(
                f"gamma^2 grad f . grad f - sum, gamma0 = {gamma0}",
                np.max(np.abs(squared * dot - printed)),
                ROUNDING,
            )
        )
        findings.append(
            contradicts(
                f"grad f . grad f - sum as printed, gamma0 = {gamma0}",
                np.min(np.abs(dot - printed)),
                ROUNDING,
            )
        )
        ratios.append(float(np.mean(printed / dot)))
    return conclude(
        "network:tangent_kernel_normalisation",
        f"The sum over layers is gamma^2 times the product of gradients of f: ratios {ratios[0]:.6g}, "
        f"{ratios[1]:.6g} at "
        f"gamma^2 = {0.25 * N:g}, {4 * N:g} (the same product of gradients of h^(L+1) = gamma f, D.2 and "
        "D.6).",
        *findings,
    )


def prediction_velocity() -> Evidence:
    """Check (4), (D.3): df/dt from the tangent kernel.

    f is a polynomial of degree L + 1 in the size of one step.
    """
    p = network()
    h = 0.2
    sizes = h * np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
    f = np.stack([outputs(q, INPUTS) for q in (stepped(p, x) for x in sizes)])
    velocity = np.linalg.solve(np.vander(sizes / h, increasing=True), f)[1] / h
    error = TARGETS - f[2]
    H, G = _kernels(p)
    tangent = np.sum([G[k + 1] * H[k] for k in range(DEPTH + 1)], axis=0)
    claim = written_out(claimed("selfconsistent2023", "4")["df"], {P: SAMPLES})
    printed = []
    for sample in range(SAMPLES):

        def value(atom: AppliedUndef, sample: int = sample) -> complex:
            index = int(next(x for x in atom.args if x.is_Integer)) - 1
            at_time(atom, *[t] * sum(not x.is_Integer and x != mu for x in atom.args))
            return float(error[index]) if str(atom.func) == "Delta" else float(tangent[sample, index])

        printed.append(number(claim, value).real)
    discrete = (f[3] - f[2]) / h
    return conclude(
        "network:prediction_velocity",
        "Under flow at the rate gamma^2 the outputs move with the tangent kernel; in a step of finite size "
        "they do not.",
        agrees("df/dt minus K Delta", np.max(np.abs(velocity - printed)), ROUNDING * 10),
        contradicts(
            f"one step of {h:g}, per unit time, minus K Delta",
            np.max(np.abs(discrete - printed)),
            ROUNDING * 10,
        ),
    )


def backward_fields() -> Evidence:
    """Check (2), (D.4): g = gamma sqrt(N) df/dh, and its recursion, by perturbing one unit of a field."""
    p = network()
    g = backward(p)
    slope, base = [], outputs(p, INPUTS)
    for layer in range(1, DEPTH + 1):
        rows = []
        for i in range(N):
            kick = np.zeros((SAMPLES, N))
            kick[:, i] = 1.0
            rows.append(output(p, forward(p, INPUTS, {layer: kick})) - base)
        slope.append(p.gamma0 * N * np.array(rows).T)
    chain, own = (
        [np.max(np.abs(p.weights[k].T @ g[k - i] / np.sqrt(N) - slope[k - 1])) for k in range(1, DEPTH)]
        for i in (0, 1)
    )
    return conclude(
        "network:backward_fields",
        "gamma sqrt(N) df/dh^l, found by kicks, is W^T g^(l+1)/sqrt(N), and w at the top, for every sample.",
        agrees("recursion", max(chain), ROUNDING),
        contradicts("recursion with g^l on the right", min(own), ROUNDING),
        agrees("top layer", np.max(np.abs(slope[-1] - p.weights[-1])), ROUNDING),
    )


def weight_gradient() -> Evidence:
    """Check (D.5): dh^{L+1}/dW = g h^T/N inside, 1/sqrt(N D) and 1/sqrt(N) at the ends."""
    p = network()
    h, g, slopes = forward(p, INPUTS), backward(p), gradients(p)
    gamma = p.gamma0 * np.sqrt(N)
    gaps = []
    for k in range(DEPTH):
        scale = 1 / N if k else 1 / np.sqrt(N * D)
        outer = scale * np.einsum("i,mj->mij", g[k], h[k])
        gaps.append(np.max(np.abs(gamma * slopes[k] - outer)))
    last = np.max(np.abs(gamma * slopes[-1] - h[-1] / np.sqrt(N)))
    inside = np.einsum("i,mj->mij", g[0], h[0]) / N
    return conclude(
        "network:weight_gradient",
        "Differences of the output in every single weight are the printed outer products; the ends have "
        "1/sqrt(N D) and "
        "1/sqrt(N).",
        agrees("inner matrices", max(gaps[1:]), ROUNDING),
        agrees("first matrix", gaps[0], ROUNDING),
        contradicts("first matrix with 1/N", np.max(np.abs(gamma * slopes[0] - inside)), ROUNDING),
        agrees("readout", last, ROUNDING),
    )


def weight_history() -> Evidence:
    """Check (D.8): W(t) - W(0) from the updates, with Delta_mu and with the printed Delta_alpha."""
    run = trained()
    scale = ETA * run.weights[0].gamma0 * np.sqrt(N) / N
    right, wrong = [], []
    for k in range(1, DEPTH):
        moved = run.weights[-1].weights[k] - run.weights[0].weights[k]
        outer = [np.einsum("i,mj->mij", run.g[s][k + 1], run.h[s][k]) for s in range(STEPS)]
        right.append(
            np.max(
                np.abs(
                    moved - scale * sum(np.einsum("m,mij->ij", run.error[s], outer[s]) for s in range(STEPS))
                )
            )
        )
        for a in range(SAMPLES):
            wrong.append(
                np.max(
                    np.abs(moved - scale * sum(run.error[s][a] * outer[s].sum(axis=0) for s in range(STEPS)))
                )
            )
    return conclude(
        "network:weight_history",
        "After three steps the inner matrices are their start plus the updates with Delta_mu under the sum "
        "over mu; with the "
        "printed Delta_alpha they are not, whichever sample alpha is.",
        agrees("with Delta_mu", max(right), ROUNDING),
        contradicts("as printed, the better alpha", min(wrong), ROUNDING),
    )


def field_recursion() -> Evidence:
    """Check (D.9): h - chi and z - xi rebuilt from stored fields; the memory holds g(s), not g(t)."""
    run = trained()
    start, scale = run.weights[0], ETA * run.weights[0].gamma0  # gamma/sqrt(N) = gamma0
    right, wrong, back = [], [], []
    for k in range(1, DEPTH):
        for time in range(1, STEPS + 1):
            chi = run.h[time][k] @ start.weights[k].T / np.sqrt(N)
            moved = run.h[time][k + 1] - chi
            phi = [run.h[time][k] @ run.h[s][k].T / N for s in range(time)]
            memory = [phi[s] @ run.error[s] for s in range(time)]
            right.append(moved - scale * sum(np.outer(memory[s], run.g[s][k + 1]) for s in range(time)))
            wrong.append(moved - scale * sum(np.outer(memory[s], run.g[time][k + 1]) for s in range(time)))
            xi = start.weights[k].T @ run.g[time][k + 1] / np.sqrt(N)
            grads = [float(run.g[time][k + 1] @ run.g[s][k + 1]) / N for s in range(time)]
            pulled = sum(grads[s] * (run.error[s] @ run.h[s][k]) for s in range(time))
            back.append(run.g[time][k] - xi - scale * pulled)
    return conclude(
        "network:field_recursion",
        "Stored fields of a trained network rebuild h - chi with g(s) in the memory; with the printed g(t) "
        "they do not. The "
        "backward line is right with G(t,s).",
        agrees("h - chi with g(s)", np.max(np.abs(right)), ROUNDING),
        agrees("z - xi", np.max(np.abs(back)), ROUNDING),
        contradicts("h - chi with g(t) as printed", np.max(np.abs(wrong)), ROUNDING),
    )


def initial_fields() -> Evidence:
    """Check (D.10), (D.24): layer labels, at t = 0 where chi and xi are the fields themselves."""
    p = network()
    h, g = forward(p, INPUTS), [np.full(N, np.nan), *backward(p)]
    forth = [h[k] @ p.weights[k].T / np.sqrt(N) for k in range(1, DEPTH)]
    back = [p.weights[k].T @ g[k + 1] / np.sqrt(N) for k in range(1, DEPTH)]
    slipped = [p.weights[k].T @ g[k] / np.sqrt(N) for k in range(1, DEPTH)]
    first = INPUTS @ p.weights[0].T / np.sqrt(D)
    layers = range(1, DEPTH)
    return conclude(
        "network:initial_fields",
        "W^l(0) h^l/sqrt(N) is the field of layer l + 1, not of l (D.10); xi^l is W^l(0)^T g^(l+1), not g^l, "
        "and chi^1 needs "
        "W^0 (D.24; another W^l does not even act on D inputs).",
        agrees("W^l h^l - h^(l+1)", max(np.max(np.abs(forth[k - 1] - h[k + 1])) for k in layers), ROUNDING),
        contradicts(
            "W^l h^l - h^l, printed (D.10)",
            min(np.max(np.abs(forth[k - 1] - h[k])) for k in layers),
            ROUNDING,
        ),
        agrees("W^lT g^(l+1) - g^l", max(np.max(np.abs(back[k - 1] - g[k])) for k in layers), ROUNDING),
        contradicts(
            "W^lT g^l - g^l, printed (D.24)",
            min(np.max(np.abs(slipped[k - 1] - g[k])) for k in layers),
            ROUNDING,
        ),
        agrees("W^0 x/sqrt(D) - h^1", np.max(np.abs(first - h[1])), ROUNDING),
        contradicts("columns of W^1 minus D inputs", float(p.weights[1].shape[1] - D), 0.1),
    )


def two_layer_fields() -> Evidence:
    """Check (D.11): fields of a two-layer network from their past, with a sum over steps for the integral."""
    run = trained(depth=1)
    kernel, scale = INPUTS @ INPUTS.T / D, ETA * run.weights[0].gamma0
    forth, back, late = [], [], []
    for time in range(1, STEPS + 1):
        past = range(time)
        now = scale * sum(np.outer(kernel @ run.error[s], run.g[time][1]) for s in past)
        late.append(run.h[time][1] - run.h[0][1] - now)
        h = run.h[0][1] + scale * sum(np.outer(kernel @ run.error[s], run.g[s][1]) for s in past)
        z = run.g[0][1] + scale * sum(run.error[s] @ run.h[s][1] for s in past)
        forth.append(run.h[time][1] - h)
        back.append(run.g[time][1] - z)
    return conclude(
        "network:two_layer_fields",
        "One hidden layer trained by its gradients: both fields are their start plus the printed memory.",
        agrees("h", np.max(np.abs(forth)), ROUNDING),
        agrees("z", np.max(np.abs(back)), ROUNDING),
        contradicts("h with g(t) in the memory", np.max(np.abs(late)), ROUNDING),
    )
