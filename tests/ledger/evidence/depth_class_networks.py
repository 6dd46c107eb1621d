"""depth2023 section 7: the powers of the depth, measured in nonlinear networks trained by brute force."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd import elementwise_grad
from numpy.typing import NDArray

from derive.scale.depth import DepthClass
from tests.ledger.evidence.base import Evidence, agrees, conclude, contradicts
from tests.ledger.evidence.depth_classes import classify
from tests.ledger.evidence.lab import gradients, moved

Array = NDArray[np.float64]
Point = tuple[str, str]
ACTIVATIONS: Mapping[str, Callable[[Any], Any]] = {
    "soft": lambda z: (z + anp.sqrt(1 + z * z)) / 2,  # grows linearly, smooth, neither odd nor even
    "tanh": anp.tanh,
}
MEASURED = ("f", "x", "h change", "h", "linearisation")


def network_step(
    a: float, g: float, depth: int, width: int, rng: np.random.Generator, phi: str, rule: str
) -> Array:
    """Return the sizes named in ``MEASURED`` after one step of a residual network with mean subtraction."""
    f, share = ACTIVATIONS[phi], depth**-a
    start = rng.standard_normal((depth, width, width)) / np.sqrt(width)
    U, V = rng.standard_normal((2, width))

    def passed(W: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return the stream before each block and at the end, and the preactivations."""
        x, h = [U], []
        for w in W:
            h.append(anp.dot(w, x[-1]))
            y = f(h[-1])
            x.append(x[-1] + share * (y - anp.mean(y)))
        return x, h

    def change(slope: Array) -> Array:
        return slope if rule == "sgd" else np.sign(slope)

    # a loss of slope -1; a gradient by W has a factor share, which the update lacks
    rate = depth**-g / width
    pulls = gradients(lambda W: -anp.sum(V * passed(W)[0][-1]) / share, tuple(start))
    W = moved(tuple(start), tuple(change(x) for x in pulls), -rate)
    (x0, h0), (x, h) = passed(start), passed(W)
    middle, error = depth // 2, np.zeros(width)
    for block, w in enumerate(start):
        rest = w @ x[block]
        tangent = elementwise_grad(f)(rest) * (h[block] - rest)
        lost = f(h[block]) - f(rest) - tangent
        error += share * (lost - lost.mean())
    kept = (_rms(x[middle] - x0[middle]), _rms(h[middle - 1] - h0[middle - 1]), _rms(h[middle - 1]))
    return np.array([abs(float(V @ (x[-1] - x0[-1]))) / width, *kept, _rms(error)])


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
    """Return the powers of the depth of each size, fitted to networks of several depths, with errors."""
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
    """Check claims 7.2-7.6 for MS(phi), gradient descent and signs: networks of 256 units, 16-64 layers."""
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
        if rule == "sgd" and expected[-1] != 0:
            label = f"({', '.join(point)}): power of what linearisation loses, in standard errors"
            findings.append(contradicts(label, value[-1] / error[-1], 1.0, by=5))
    return conclude("depth_class_networks:networks", "; ".join(lines) + ".", *findings)


def bounded() -> Evidence:
    """Check claim 7.2 above alpha = 1: on the line networks of a bounded phi are trivial, others are not."""
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
