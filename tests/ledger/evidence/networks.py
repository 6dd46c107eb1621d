"""Order gamma0^2 measured in finite networks: the kernels' curvature in gamma0, extrapolated in 1/N.

The same weights are trained at +gamma0 and -gamma0 (a flipped readout) for a tiny gamma0. The targets are
shifted by the network's initial output (zero at infinite width), so that the second difference has the noise
of a single network.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from sympy import Expr

from numerics.simulation import inputs_from_kernel
from numerics.stats import Line
from tests.ledger.claims import claimed
from tests.ledger.evidence.base import Evidence, agrees, conclude, contradicts
from tests.ledger.evidence.engine import Array, orders, steps_of
from tests.ledger.evidence.expansion import Words, printed_factor
from tests.ledger.evidence.plain_networks import drawn, forward, output, trained

KERNEL = np.array([[1.0, 0.4], [0.4, 0.7]])
TARGETS = np.array([0.8, 0.5])
RATE, STEPS = 0.15, 4
TINY = 1e-3
"""gamma0 of the second difference: truncation of order 1e-6, rounding of order 1e-9."""

WIDTHS = {256: 56, 512: 24, 1024: 10}
"""Widths and numbers of networks."""

NAMES = ("trace of H^l at the end", "G^l at the end")


def curvature(width: int, depth: int, rng: np.random.Generator) -> Array:
    """Return (1/2) d^2/d gamma0^2 of tr H^l(t,t), l = 1..L, then G^l(t,t), at the last step."""
    inputs = inputs_from_kernel(KERNEL)
    start = drawn(inputs.shape[1], depth, width, TINY, rng)
    total = np.zeros(2 * depth)
    for sign in (1.0, -1.0):
        network = start.flipped(sign)
        own = output(network, forward(network, inputs))
        history = trained(network, inputs, TARGETS + own, RATE, STEPS)
        h = np.einsum("ltmi,ltmi->tl", history.h, history.h)
        g = np.einsum("lti,lti->tl", history.g, history.g)
        kernels = np.concatenate([h, g], axis=1) / width
        total += (kernels[-1] - kernels[0]) / TINY**2
    return total / 2


@lru_cache(maxsize=4)
def measured(depth: int) -> tuple[Array, Array]:
    """Return the curvatures at 1/N -> 0 and their standard errors."""
    streams = np.random.default_rng(20230 + depth).spawn(len(WIDTHS))
    draws = [
        np.stack([curvature(width, depth, rng) for _ in range(count)])
        for (width, count), rng in zip(WIDTHS.items(), streams, strict=True)
    ]
    line = Line.through(list(WIDTHS), list(WIDTHS.values())).intercept
    mean = sum(w * d.mean(axis=0) for w, d in zip(line, draws, strict=True))
    variance = sum(w**2 * d.var(axis=0, ddof=1) / len(d) for w, d in zip(line, draws, strict=True))
    return np.asarray(mean), np.sqrt(variance)


def predicted(depth: int) -> tuple[Array, Array]:
    """Return the same from the engine, and as (P.2) prints them."""
    weights = steps_of(RATE, STEPS + 1)
    second = orders(KERNEL, TARGETS, weights, depth=depth)
    lazy, formulas = Words.at(KERNEL, second.error, weights), claimed("selfconsistent2023", "P.2")
    T, n, layers = STEPS + 1, len(TARGETS), range(1, depth + 1)
    derived = [np.trace(second.H[k][-1, :, -1]) for k in layers] + [second.G[k][-1, -1] for k in layers]

    def printed(formula: Expr, layer: int) -> Array:
        return np.asarray(printed_factor(formula, layer, depth) * sum(lazy.families(formula)))

    up = [np.trace(printed(formulas["H"], k).reshape(T, n, T, n)[-1, :, -1]) for k in layers]
    down = [printed(formulas["G"], k)[-1, -1] for k in layers]
    return np.array(derived), np.array([*up, *down])


def _against(depth: int) -> tuple[Array, Array, Array]:
    value, error = measured(depth)
    derived, printed = predicted(depth)
    return (value - derived) / error, (value - printed) / error, value


def kernel_curvature() -> Evidence:
    """Check (16), (P.2)-(P.4): networks decide between derived and printed coefficients, L = 2 and 3."""
    findings, words = [], []
    for depth in (2, 3):
        right, wrong, value = _against(depth)
        derived, printed = predicted(depth)
        findings += [
            agrees(f"L = {depth}: z of the derived {NAMES[k // depth]}, l = {k % depth + 1}", z, 3.5)
            for k, z in enumerate(right)
        ]
        findings += [
            contradicts(
                f"L = {depth}: z of the printed {NAMES[k // depth]}, l = {k % depth + 1}", z, 1.0, by=5
            )
            for k, z in enumerate(wrong)
        ]
        words.append(f"L = {depth}: {value[0]:.3f} (derived {derived[0]:.3f}, printed {printed[0]:.3f})")
    return conclude(
        "networks:kernel_curvature",
        "Second differences in gamma0 of finite networks at N = 256..1024, extrapolated in 1/N, agree with "
        "the derived "
        f"coefficients and reject the printed ones; tr H^1 for {'; '.join(words)}.",
        *findings,
    )
