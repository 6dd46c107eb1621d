"""Exponents of the width in (N.3)-(N.9), and the family of parametrisations that learn features.

They are measured on networks with arbitrary scales, variances and rates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Function, Integer, sympify

from derive.calculus.symbols import L, ell
from tests.ledger.claims import claimed, corrected
from tests.ledger.evidence.base import Evidence, agrees, conclude, contradicts
from tests.ledger.evidence.evaluated import Functions, told_apart, valued
from tests.ledger.evidence.lab import EXACT, derivative, slope

Array = NDArray[np.float64]
Weights = tuple[Any, Any, Any]

SOURCE = "selfconsistent2023"
SCALES = {0: 0.2, 1: 0.3, 2: 0.15}
VARIANCES = {0: -0.1, 1: 0.5, 2: 0.7}
"""a and b of W^0, W^1, w: two hidden layers; 2 a + b = 1 for the readout, as (N.7) and (N.9) need."""
RATE, GAMMA = 0.4, 0.3
INPUT = np.array([1.1, -0.7, 0.4])
BOUND = 4.0


def exponent(number: str, name: str, layer: int = 1) -> float:
    """Return a printed exponent for these numbers."""
    e: Expr = sympify(claimed(SOURCE, number)[name]).subs({ell: layer, L: Integer(2)})
    e = e.replace(Function("a"), lambda k: sympify(SCALES[int(k)]))
    e = e.replace(Function("b"), lambda k: sympify(VARIANCES[int(k)]))
    return float(e.subs({"c": RATE, "d": GAMMA}))


def draw(n: int, rng: np.random.Generator, variances: Mapping[int, float] = VARIANCES) -> Weights:
    """Return W^0, W^1 and w with their variances."""
    shapes = {0: (n, INPUT.size), 1: (n, n), 2: (n,)}
    found = [rng.standard_normal(shapes[k]) * n ** (-variances[k] / 2) for k in range(3)]
    return found[0], found[1], found[2]


def fields(weights: Weights, n: int, scales: Mapping[int, float] = SCALES) -> tuple[Any, Any, Any]:
    """Return h^1, h^2 and h^3, the output times gamma."""
    h1 = n ** -scales[0] * weights[0] @ INPUT / np.sqrt(INPUT.size)
    h2 = n ** -scales[1] * weights[1] @ np.tanh(h1)
    return h1, h2, n ** -scales[2] * weights[2] @ np.tanh(h2)


def output(weights: Weights, k: int, n: int, scales: Mapping[int, float] = SCALES) -> Callable[[Any], Any]:
    """Return h^3 as a function of the k-th weights."""

    def of(w: Any) -> Any:
        moved = tuple(w if i == k else x for i, x in enumerate(weights))
        return fields((moved[0], moved[1], moved[2]), n, scales)[2]

    return of


def moments() -> Evidence:
    """Check (N.3), (N.4), (N.6): second moments at two widths, over many draws of the weights."""
    findings = []
    for n in (8, 32):
        rng = np.random.default_rng(n)
        ratios: Mapping[str, list[float]] = {"h1": [], "h2": [], "z1": []}
        for _ in range(3000):
            w0, w1, w2 = draw(n, rng)
            h1, h2, _ = fields((w0, w1, w2), n)
            g2 = rng.standard_normal(n)  # any vector independent of W^1: at the start, given h^2, it is one
            z1 = n ** -SCALES[1] * w1.T @ g2
            ratios["h1"].append(float(np.mean(h1**2) / np.mean(INPUT**2)))
            ratios["h2"].append(float(np.mean(h2**2) / np.mean(np.tanh(h1) ** 2)))
            ratios["z1"].append(float(np.mean(z1**2) / np.mean(g2**2)))
        said = {"h1": exponent("N.3", "h1_h1"), "h2": exponent("N.4", "h_h"), "z1": exponent("N.6", "z_z")}
        for k, x in ratios.items():
            error = np.std(x, ddof=1) / np.sqrt(len(x))
            findings.append(
                agrees(
                    f"{k}, N = {n}: minus N^{said[k]:.2g}", float(np.mean(x)) - n ** said[k], BOUND * error
                )
            )
            findings.append(
                contradicts(f"{k}, N = {n}: minus 1, order one", float(np.mean(x)) - 1, error, by=5)
            )
    return conclude(
        "parametrisation:moments",
        "Second moments of h^1, h^2, z^1 over K^x, Phi^1, G^2 are the printed powers.",
        *findings,
    )


def gradients() -> Evidence:
    """Check (N.4) text, (N.5), (N.7): one network at two widths, to rounding."""
    findings = []
    for n in (4, 8):
        weights = draw(n, np.random.default_rng(n))
        h1, h2, _ = fields(weights, n)
        slopes = [derivative(output(weights, k, n), weights[k]) for k in range(3)]

        def top(h: Array, w: Array = weights[2], n: int = n) -> Array:
            return np.asarray(n ** -SCALES[2] * w @ np.tanh(h))

        def through(h: Array, w: Array = weights[1], n: int = n) -> Array:
            return np.asarray(top(n ** -SCALES[1] * w @ np.tanh(h)))

        power = n ** exponent("N.4 text", "g_of_slope")
        g2, g1 = power * derivative(top, h2), power * derivative(through, h1)
        of_w = n ** exponent("N.4 text", "g_of_w") * weights[2] * slope(h2)
        functions: Functions = {
            "a": SCALES.__getitem__,
            "scaled": lambda power, matrix, v, n=n: n**power * matrix @ v,
            "W_top": lambda layer, w=weights: {1: w[1].T}[layer],
            "g": {1: g1, 2: g2}.__getitem__,
        }
        z = [valued(built(SOURCE, "N.5")["z"], {"ell": 1}, functions) for built in (claimed, corrected)]
        terms = {
            "last": np.mean(np.tanh(h2) ** 2) * n ** exponent("N.7", "last"),
            "inner": np.mean(g2**2) * np.mean(np.tanh(h1) ** 2) * n ** exponent("N.7", "inner"),
            "first": np.mean(g1**2) * np.mean(INPUT**2) * n ** exponent("N.7", "first"),
        }
        own = {"last": slopes[2], "inner": slopes[1], "first": slopes[0]}
        findings += [
            agrees(f"N = {n}: g^2 two ways (N.4 text)", float(np.max(np.abs(g2 - of_w))), EXACT),
            *told_apart(f"N = {n}: (N.5), g^1", [slope(h1) * x for x in z], g1, EXACT),
            *[
                agrees(f"N = {n}: {k} term of (N.7)", float(np.sum(own[k] ** 2) - x), EXACT)
                for k, x in terms.items()
            ],
        ]
    return conclude(
        "parametrisation:gradients",
        "The backward recursion takes g of the layer above; the terms of the tangent kernel are as printed.",
        *findings,
    )


def updates() -> Evidence:
    """Check (N.9) and the display before it: one step of the inner matrix, at two widths."""
    findings = []
    step, error, gamma0 = 0.3, 0.8, 1.4
    for n in (4, 8):
        weights = draw(n, np.random.default_rng(n + 1))
        h1, h2, _ = fields(weights, n)
        gamma = gamma0 * n**GAMMA
        slope_of_f = derivative(output(weights, 1, n), weights[1]) / gamma
        move = step * gamma**2 * n**-RATE * error * slope_of_f
        g2 = n ** (VARIANCES[2] / 2) * weights[2] * slope(h2)
        printed = step * gamma0 * n ** exponent("N.9", "dW") * error * np.outer(g2, np.tanh(h1))
        change = fields((weights[0], weights[1] + move, weights[2]), n)[1] - h2
        memory = step * gamma0 * n ** exponent("N.9", "h") * error * g2 * np.mean(np.tanh(h1) ** 2)
        findings += [
            agrees(f"N = {n}: step of W^1 minus printed", float(np.max(np.abs(move - printed))), EXACT),
            agrees(f"N = {n}: step of h^2 minus (N.9)", float(np.max(np.abs(change - memory))), EXACT),
            contradicts(f"N = {n}: with -1/2 for +1/2", float(np.max(np.abs(change - memory / n))), EXACT),
        ]
    return conclude(
        "parametrisation:updates",
        "One step of the inner matrix moves W and h by the printed powers.",
        *findings,
    )


def family() -> Evidence:
    """Check (N.8), (N.9) text: members of the family train alike, and outputs start at N^(-1/2)."""
    n, own = 12, member(0.5)
    findings = []
    for a in (0.0, 0.3, 1.0):
        gap = float(np.max(np.abs(trained(n, member(a)) - trained(n, own))))
        findings.append(agrees(f"a = {a:g}: outputs minus those of a = 1/2", gap, EXACT))
    for name, other in (("a_0 = a", {"a0": 0.3}), ("c = 2 a", {"c": 0.6}), ("d = 0", {"d": 0.0})):
        gap = float(np.max(np.abs(trained(n, {**member(0.3), **other}) - trained(n, own))))
        findings.append(contradicts(f"a = 0.3 with {name}: outputs minus those of a = 1/2", gap, EXACT))
    squares = {k: np.array([trained(k, own, seed, steps=0)[0] ** 2 for seed in range(2000)]) for k in (8, 64)}
    power = float(sympify(claimed("selfconsistent2023", "N.9 text")["output_at_start"]))
    size = {k: (float(np.mean(x)), float(np.std(x) / np.sqrt(x.size))) for k, x in squares.items()}
    (narrow, error), (wide, spread) = (tuple(y * k ** (-2 * power) for y in size[k]) for k in (8, 64))
    return conclude(
        "parametrisation:family",
        "Networks of the family are the same function at every step, whatever a; others are not. The output "
        "at the start is of order N^(-1/2).",
        *findings,
        agrees("N <f^2> at N = 64 minus at N = 8", wide - narrow, BOUND * float(np.hypot(error, spread))),
    )


def member(a: float) -> dict[str, float]:
    """Return the exponents of a member of the printed family."""
    built = claimed("selfconsistent2023", "N.9 text")
    return {k: float(sympify(built[k]).subs("a", a)) for k in ("a", "b", "c", "d", "a0", "b0")}


def trained(n: int, powers: Mapping[str, float], seed: int = 5, steps: int = 3) -> Array:
    """Return outputs before and after each step; the normal numbers are the same for all parametrisations."""
    scales = {0: powers["a0"], 1: powers["a"], 2: powers["a"]}
    weights = draw(n, np.random.default_rng(seed), {0: powers["b0"], 1: powers["b"], 2: powers["b"]})
    gamma, rate, target = 1.4 * n ** powers["d"], 0.3, 0.8
    found = [fields(weights, n, scales)[2] / gamma]
    for _ in range(steps):
        push = rate * gamma * n ** -powers["c"] * (target - found[-1])
        moved = [w + push * derivative(output(weights, k, n, scales), w) for k, w in enumerate(weights)]
        weights = (moved[0], moved[1], moved[2])
        found.append(fields(weights, n, scales)[2] / gamma)
    return np.array(found)
