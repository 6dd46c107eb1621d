"""depth2023 section 7: the powers of the depth, measured in nonlinear networks trained by brute force."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from derive.scale.depth import DepthClass
from tests.ledger.evidence.base import Evidence, agrees, conclude, contradicts
from tests.ledger.evidence.depth_classes import classify

Array = NDArray[np.float64]
Point = tuple[str, str]
Activation = tuple[Callable[[Array], Array], Callable[[Array], Array]]
ACTIVATIONS: Mapping[str, Activation] = {
    # grows linearly, smooth, neither odd nor even
    "soft": (lambda z: (z + np.sqrt(1 + z * z)) / 2, lambda z: (1 + z / np.sqrt(1 + z * z)) / 2),
    "tanh": (np.tanh, lambda z: 1 - np.tanh(z) ** 2),
}
MEASURED = ("f", "x", "h change", "h", "linearisation")


def network_step(
    a: float, g: float, depth: int, width: int, rng: np.random.Generator, phi: str, rule: str
) -> Array:
    """One step of a residual network with mean subtraction, by brute force; sizes named in ``MEASURED``."""
    f, df = ACTIVATIONS[phi]
    W0 = rng.standard_normal((depth, width, width)) / np.sqrt(width)
    U, V = rng.standard_normal((2, width))
    share, x = depth**-a, U
    start, h0 = [x], []
    for w in W0:
        h0.append(w @ x)
        y = f(h0[-1])
        x = x + share * (y - y.mean())
        start.append(x)
    dx, W = -V, W0.copy()  # a loss of slope -1
    for i in range(depth)[::-1]:
        b = df(h0[i]) * (dx - dx.mean())
        update = np.outer(b, start[i])
        W[i] += -(depth**-g) / width * (update if rule == "sgd" else np.sign(update))
        dx = dx + share * (W0[i].T @ b)
    x, middle, error, kept = U, depth // 2, np.zeros(width), np.zeros(2)
    for i, w in enumerate(W):
        h, rest = w @ x, W0[i] @ x
        lost = f(h) - f(rest) - df(rest) * (h - rest)
        error += share * (lost - lost.mean())
        y = f(h)
        x = x + share * (y - y.mean())
        if i == middle - 1:
            kept = np.array([_rms(x - start[middle]), _rms(h - h0[i]), _rms(h)])
    moved = abs(float(V @ (x - start[-1]))) / width
    return np.array([moved, *kept, _rms(error)])


def _rms(v: Array) -> float:
    return float(np.sqrt(np.mean(v * v)))


def network_exponents(
    point: Point,
    phi: str = "soft",
    rule: str = "sgd",
    depths: Sequence[int] = (16, 32, 64),
    width: int = 256,
    seeds: int = 24,
) -> tuple[Array, Array, Array]:
    """Exponents between the first and last depth, standard errors, and the change of the local slope.

    Logarithms are averaged over ``seeds`` networks of each depth.
    """
    a, g = (float(classify(*point).alpha), float(classify(*point).gamma))
    logs = np.array(
        [
            [
                np.log(network_step(a, g, d, width, np.random.default_rng([d, s]), phi, rule))
                for s in range(seeds)
            ]
            for d in depths
        ]
    )
    mean, error = logs.mean(axis=1), logs.std(axis=1, ddof=1) / np.sqrt(seeds)
    span = np.log(depths[-1] / depths[0])
    slopes = np.diff(mean, axis=0) / np.diff(np.log(depths))[:, None]
    drift: Array = slopes[-1] - slopes[0]
    return (mean[-1] - mean[0]) / span, np.hypot(error[0], error[-1]) / span, drift


NETWORKS: tuple[tuple[Point, str, str], ...] = (
    (("1/2", "1/2"), "soft", "sgd"),
    (("3/4", "1/4"), "soft", "sgd"),
    (("1", "0"), "soft", "sgd"),
    (("1/2", "1"), "soft", "sgd"),
    (("1/2", "1/2"), "soft", "sign"),
)
KEYS = ("output", "stream", "feature", "preactivation", "linearisation")
FINITE = 0.15
"""What corrections of relative order L^(-1/2) leave of an exponent between 16 and 64 layers."""


def networks() -> Evidence:
    """Claims 7.2-7.6 for MS(phi), gradient descent and signs: networks of 256 units, 16 to 64 layers."""
    lines, findings = [], []
    for point, phi, rule in NETWORKS:
        found: DepthClass = classify(*point, rule)
        expected = [float(found.exponents[k]) for k in KEYS]
        value, error, _ = network_exponents(point, phi, rule)
        shown = range(len(KEYS)) if rule == "sgd" else range(4)  # the error of signs is not coherent: smaller
        gap = max(abs(value[i] - expected[i]) - 4 * error[i] for i in shown)
        texts = ", ".join(f"{MEASURED[i]} {value[i]:.2f} +- {error[i]:.2f} ({expected[i]:g})" for i in shown)
        lines.append(f"({', '.join(point)}), {rule}: {texts}")
        findings.append(
            agrees(f"worst difference beyond 4 s.e. at ({', '.join(point)}), {rule}", gap, FINITE)
        )
    return conclude("depth_class_networks:networks", "; ".join(lines) + ".", *findings)


def bounded() -> Evidence:
    """Claim 7.2 above alpha = 1: on the line networks of a bounded phi are trivial, others are not."""
    point = ("3/2", "-1/2")
    saturated, error, _ = network_exponents(point, "tanh", depths=(16, 64))
    growing, spread, _ = network_exponents(point, "soft", depths=(16, 64))
    return conclude(
        "depth_class_networks:bounded",
        f"(alpha, gamma) = (3/2, -1/2): f_1 - f_0 goes like L^{saturated[0]:.2f} +- {error[0]:.2f} with "
        f"tanh, L^{growing[0]:.2f} +- {spread[0]:.2f} with (z + sqrt(1 + z^2))/2; h like "
        f"L^{saturated[3]:.2f}, L^{growing[3]:.2f}.",
        agrees(
            "exponent with tanh minus 1 - alpha, beyond 4 s.e.", _beyond(saturated[0] + 0.5, error[0]), 0.12
        ),
        contradicts("exponent with tanh, in standard errors", saturated[0] / error[0], 1.0),
        agrees("exponent with a growing phi, beyond 4 s.e.", _beyond(growing[0], spread[0]), 0.12),
    )


def _beyond(gap: float, error: float) -> float:
    return max(abs(gap) - 4 * error, 0.0)
