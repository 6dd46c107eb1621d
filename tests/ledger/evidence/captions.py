"""Captions of figures: the threshold of weight decay (figure 3), where finite width matters (figure 1)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from sympy import Symbol

from derive.program import P, eta, gamma0
from numerics.simulation import simulate_program
from numerics.solver.paths import solve_particles
from tests.derive.once import mean_field, mlp
from tests.ledger.evidence.base import Evidence, Finding, agrees, conclude, contradicts
from tests.ledger.evidence.edited import CLOSE, kernel_of

Array = NDArray[np.float64]

DECAY, RATE, STEPS, WIDTH = 1.0, 0.1, 120, 1000
"""Weight decay and width are those of figure 3."""
ONE, TWO = np.ones((1, 3)), np.array([[1.2, -0.4, 1.3], [0.6, 0.9, 0.2]])
TOGETHER = np.array([1.0, 0.7])


def threshold(inputs: Array, targets: Array) -> float:
    """Return the gamma0 at which the fastest unit of a network with zero output neither grows nor decays."""
    x = inputs / np.sqrt(inputs.shape[1])

    def pull(w: Array, sign: int) -> float:
        return float(-sign * targets @ np.maximum(x @ w, 0) / np.linalg.norm(w))

    starts = np.random.default_rng(0).standard_normal((20, inputs.shape[1]))
    return DECAY / max(-float(minimize(pull, w, args=(sign,)).fun) for w in starts for sign in (1, -1))


def weight_decay_threshold() -> Evidence:
    """Check Figure 3: two-layer relu networks with weight decay, below and above the threshold."""
    lam = Symbol("lam", positive=True)
    program = mlp(1, "relu", weight_decay=lam)
    theory, findings = mean_field(program), []
    for x, y in ((ONE, np.ones(1)), (TWO, TOGETHER)):
        critical = threshold(x, y)
        for ratio in (0.5, 2.0):
            values: dict[Any, float] = {eta: RATE, gamma0: ratio * critical, P: len(y), lam: DECAY}
            name = f"P = {len(y)}, gamma0 = {ratio:g} gamma_c"
            data = {"K_x": kernel_of(x), "y": y}
            given: dict[str, Any] = {"steps": STEPS + 1, "samples": 512, "replicas": 4}
            ours = solve_particles(theory, values=values, data=data, **given).runs["f", ()]
            nets = simulate_program(program, width=WIDTH, steps=STEPS, seeds=4, values=values, data=data)
            findings += _end(name, ours, nets["f"].mean, ratio, y)
    return conclude(
        "captions:weight_decay_threshold",
        "At half the threshold outputs of theory and networks decay to nothing, at the rate at which the "
        "fastest unit does; at twice the threshold they settle at a value that is not zero.",
        *findings,
    )


def _end(name: str, ours: Array, nets: Array, ratio: float, y: Array) -> list[Finding]:
    """Return findings about outputs (replica, t, mu) and (t, mu) at late times."""
    found, small = [], 1e-5
    predicted = 2 * np.log1p(RATE * DECAY * (ratio - 1))  # output: incoming times outgoing weight
    for what, f in (("theory", ours.mean(axis=0)), ("networks", nets)):
        rate = np.log(np.abs(f[-1] / f[-11])) / 10
        if ratio < 1:
            found.append(agrees(f"{what}, {name}: last output", np.abs(f[-1]).max(), small))
            off = np.abs(rate - predicted).max()
            found.append(agrees(f"{what}, {name}: rate of decay minus the unit's", off, 1e-3))
            found.append(contradicts(f"{what}, {name}: rate of decay, 0 as printed", rate.max(), 1e-3))
        else:
            found.append(contradicts(f"{what}, {name}: last output", np.abs(f[-1]).min(), small))
            found.append(agrees(f"{what}, {name}: rate of decay", np.abs(rate).max(), 1e-6))
            if len(y) == 1:  # the units that grow balance at gamma0 (y - f) = lambda
                found.append(agrees(f"{what}, {name}: minus 1 - gamma_c/gamma0", f[-1, 0] - 0.5, 1e-9))
    return found


FEATURES = np.random.default_rng(1).standard_normal((4, 8))
SIGNS = np.array([1.0, -1.0, 1.0, -1.0])
NARROW, NETWORKS, LATE = 250, 40, 30
LAZY, RICH = 0.1, 1.0


def finite_width_by_layer() -> Evidence:
    """Check Figure 1: misalignment of networks' kernels with the theory's, by layer, at start and end."""
    findings, words = [], []
    for strength in (LAZY, RICH):
        apart = {name: _misaligned(*pair) for name, pair in _both(strength).items()}
        for time, when in ((0, "start"), (-1, "end")):
            first, *_, last = (apart["Phi"][:, k, time] for k in range(3))
            sign = -1 if strength == RICH and when == "end" else 1
            what = "first above last" if sign < 0 else "last above first"
            findings.append(_above(f"Phi, gamma0 = {strength:g}, {when}: {what}, z", sign * (last - first)))
            words.append(f"{first.mean():.1e} and {last.mean():.1e} (gamma0 = {strength:g}, {when})")
            first, *_, last = (apart["G"][:, k, time] for k in range(3))
            findings.append(_above(f"G, gamma0 = {strength:g}, {when}: first above last, z", first - last))
    return conclude(
        "captions:finite_width_by_layer",
        f"Tanh, L = 3, N = {NARROW}. One minus the alignment of Phi^1 and Phi^3 with the theory is "
        f"{', '.join(words)}: larger in the last layer, except at the end if features were learned. That of "
        "G is larger in the first layer everywhere.",
        *findings,
    )


def _both(strength: float) -> dict[str, tuple[Array, Array]]:
    """Return kernels of theory (layer, t, mu, alpha) and of networks (network, ...) at equal times."""
    values: dict[Any, float] = {eta: 0.3, gamma0: strength, P: len(SIGNS)}
    program, data = mlp(3, "tanh"), {"K_x": kernel_of(FEATURES), "y": SIGNS}
    given: dict[str, Any] = {"steps": LATE + 1, "samples": 512, "replicas": 8, "responses": "stein"}
    theory = solve_particles(mean_field(program), values=values, data=data, **given)
    sizes: dict[str, Any] = {"width": NARROW, "steps": LATE, "seeds": NETWORKS}
    each = simulate_program(program, values=values, data=data, each=True, **sizes).each or {}
    return {
        name: (
            np.stack([np.einsum("mntt->tmn", theory.value(name, k)) for k in (1, 2, 3)]),
            np.einsum("klttmn->kltmn", each[name]),
        )
        for name in ("Phi", "G")
    }


def _misaligned(theory: Array, networks: Array) -> Array:
    """Return one minus the cosine similarity of network and theory, (network, layer, t)."""
    product = np.einsum("ltmn,kltmn->klt", theory, networks)
    sizes = np.linalg.norm(theory, axis=(-2, -1)) * np.linalg.norm(networks, axis=(-2, -1))
    return np.asarray(1 - product / sizes)


def _above(label: str, gaps: Array) -> Finding:
    """Return the finding that differences, one a network, are positive on average beyond chance."""
    z = gaps.mean() / (gaps.std(ddof=1) / np.sqrt(len(gaps)))
    return contradicts(label, max(z, 0.0), 1.0, by=CLOSE)


__all__ = ["finite_width_by_layer", "weight_decay_threshold"]
