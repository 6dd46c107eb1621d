"""Finite networks, differentiated in gamma0 exactly, against kernels at order gamma0^2, derived and printed.

Every activity and output is carried through gradient descent as a Taylor polynomial in gamma0, so that one
network gives its second derivative without differences.  The output at the start is subtracted: in the theory
it is zero.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Poly

from derive.calculus.symbols import gamma0
from tests.ledger.evidence.base import Evidence, agrees, conclude, contradicts
from tests.ledger.evidence.perturbation import EIGHTH, HALF, printed
from tests.ledger.evidence.perturbation_reading import Case, Layer, of_layer, x

Array = NDArray[np.float64]

ORDERS = 4
"""Orders 0..3: the error at gamma0^2 needs activities at gamma0^3."""
WIDTHS = (150, 300)
NETWORKS = (1000, 500)
BATCH = 20
SOFT = Case(x + x**2 / 4 - x**3 / 24, 3, ((HALF,),), (Fraction(1),), steps=3, rate=EIGHTH)
"""Its moments are small enough for networks of these widths."""
BOUND = 4.0
"""Standard errors that the worst of some ten correlated numbers may be off."""


def _times(a: Array, b: Array) -> Array:
    """The product of two Taylor polynomials, entry by entry."""
    found = np.zeros(np.broadcast_shapes(a.shape, b.shape))
    for n in range(ORDERS):
        for k in range(n + 1):
            found[n] += a[k] * b[n - k]
    return found


def _polynomial(coefficients: list[float], h: Array) -> Array:
    total = np.zeros_like(h)
    for c in coefficients:
        total = _times(total, h)
        total[0] += c
    return total


def _shifted(a: Array) -> Array:
    """gamma0 times a."""
    return np.concatenate([np.zeros_like(a[:1]), a[:-1]])


class Jets:
    """Networks on one sample: their second orders after each step of gradient descent.

    Arrays are (order, network, unit), numbers (order, network).
    """

    def __init__(self, case: Case, width: int, count: int, rng: np.random.Generator) -> None:
        self.case, self.width = case, width
        self.phi = [float(c) for c in Poly(case.activation, x).all_coeffs()]
        self.slope = [float(c) for c in Poly(case.activation.diff(x), x).all_coeffs()]
        self.first = float(case.kernel[0][0]) ** 0.5 * rng.standard_normal((count, width))
        self.hidden = [rng.standard_normal((count, width, width)) for _ in range(case.depth - 1)]
        self.readout = rng.standard_normal((count, width))
        self.seen: list[tuple[list[Array], list[Array], Array]] = []

    def run(self) -> tuple[Array, Array]:
        """Second orders of Phi and G, (layer, time, network), at equal times."""
        K, y, eta = float(self.case.kernel[0][0]), float(self.case.targets[0]), float(self.case.rate)
        start, kernels = np.zeros(1), []
        for step in range(self.case.steps):
            w, readout = self.hidden, _constant(self.readout)
            h: list[Array] = []
            below = _constant(self.first)
            for layer in range(self.case.depth):
                value = self._product(w[layer - 1], _phi(self, h[-1])) if layer else below
                for acts, backs, push in self.seen:
                    if layer:
                        push = _times(push, self._overlap(acts[layer - 1], _phi(self, h[-1])))
                    scale = 1.0 if layer else K
                    value = value + _shifted(_times(_scalar(scale * push), backs[layer]))
                h.append(value)
            acts = [_phi(self, v) for v in h]
            for old, _, push in self.seen:
                readout = readout + _shifted(_times(_scalar(push), old[-1]))
            total = self._overlap(readout, acts[-1])
            if step == 0:
                start = total
            moved = total - start
            output = np.concatenate([moved[1:], 0 * moved[:1]])  # divided by gamma0
            backs = self._backward(h, readout)
            error = -output
            error[0] += y
            self.seen.append((acts, backs, eta * error))
            kernels.append([[self._overlap(v, v)[2] for v in acts], [self._overlap(v, v)[2] for v in backs]])
        found = np.array(kernels)
        return found[:, 0].swapaxes(0, 1), found[:, 1].swapaxes(0, 1)

    def _backward(self, h: list[Array], readout: Array) -> list[Array]:
        z = readout
        backs: list[Array] = []
        for layer in reversed(range(self.case.depth)):
            back = _times(_polynomial(self.slope, h[layer]), z)
            backs.insert(0, back)
            if layer:
                z = self._product(self.hidden[layer - 1].swapaxes(1, 2), back)
                for old, older, push in self.seen:
                    size = _times(push, self._overlap(older[layer], back))
                    z = z + _shifted(_times(_scalar(size), old[layer - 1]))
        return backs

    def _product(self, w: Array, v: Array) -> Array:
        return np.asarray(np.moveaxis(w @ np.moveaxis(v, 0, 2), 2, 0) / np.sqrt(self.width))

    def _overlap(self, a: Array, b: Array) -> Array:
        return np.asarray(_times(a, b).mean(axis=2))


def _phi(jet: Jets, h: Array) -> Array:
    return _polynomial(jet.phi, h)


def _constant(v: Array) -> Array:
    return np.concatenate([v[None], np.zeros((ORDERS - 1, *v.shape))])


def _scalar(v: Any) -> Array:
    return np.asarray(v)[..., None]


@lru_cache(maxsize=1)
def measured() -> tuple[Array, Array]:
    """Second orders of (Phi, G), (2, layer, time), of infinitely wide networks, with standard errors."""
    means, errors = [], []
    for width, count in zip(WIDTHS, NETWORKS, strict=True):
        rng = np.random.default_rng(width)
        batches = [np.stack(Jets(SOFT, width, BATCH, rng).run()) for _ in range(count // BATCH)]
        runs = np.concatenate(batches, axis=-1)
        means.append(runs.mean(axis=-1))
        errors.append(runs.std(axis=-1, ddof=1) / np.sqrt(count))
    return 2 * means[1] - means[0], np.sqrt(4 * errors[1] ** 2 + errors[0] ** 2)


def kernels_of_networks() -> Evidence:
    """(P.22), (P.25): second derivatives of the kernels of networks with a cubic activation."""
    mean, error = measured()
    layers, T = range(1, SOFT.depth + 1), SOFT.steps
    derived = np.array(
        [[np.diag(SOFT.kernel_order(name, k, 2).astype(float)) for k in layers] for name in ("Phi", "G")]
    )
    shown = {}
    for name, number in (("Phi", "P.22"), ("G", "P.25")):
        e = printed(number)[name].expand().coeff(gamma0, 2)
        shown[name] = np.array([np.diag(of_layer(Layer(SOFT, k)).kernel(e).astype(float)) for k in layers])
    moving = slice(1, T)
    z = np.abs(mean - derived)[..., moving] / error[..., moving]
    off = np.abs(mean[1] - shown["G"])[:, moving] / error[1][:, moving]
    forward = np.abs(mean[0] - shown["Phi"])[:, moving] / error[0][:, moving]
    return conclude(
        "perturbation_networks:kernels_of_networks",
        f"Widths {WIDTHS[0]} and {WIDTHS[1]}, three hidden layers, two steps: G^1(2,2) changes by "
        f"{mean[1, 0, -1]:.3f}({error[1, 0, -1]:.3f}) gamma0^2; derived {derived[1, 0, -1]:.4f}, (P.25) "
        f"{shown['G'][0, -1]:.4f}.",
        agrees("Phi and G of all layers: largest z of the derived orders", float(z.max()), BOUND),
        agrees("Phi: largest z of (P.22)", float(forward.max()), BOUND),
        contradicts("G: largest z of (P.25)", float(off.max()), 1.0),
    )
