"""Finite networks, differentiated in gamma0, against kernels at order gamma0^2, derived and printed.

The same networks are trained at two small values of gamma0, one negative: the error of second differences is
far below the scatter of networks. The initial output, which is zero in the theory, is subtracted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import autograd.numpy as anp
import numpy as np
from numpy.typing import NDArray

from derive.calculus.symbols import gamma0
from tests.ledger.evidence.base import Evidence, agrees, conclude, contradicts
from tests.ledger.evidence.lab import Weights, gradients
from tests.ledger.evidence.perturbation import EIGHTH, HALF, printed
from tests.ledger.evidence.perturbation_reading import Case, Layer, of_layer, x

Array = NDArray[np.float64]

STEP = 1e-3
"""Of gamma0: its square is left out, and rounding over its square."""
WIDTHS = (150, 300)
NETWORKS = (1000, 500)
BATCH = 20
SOFT = Case(x + x**2 / 4 - x**3 / 24, 3, ((HALF,),), (Fraction(1),), steps=3, rate=EIGHTH)
"""Its moments are small enough for networks of these widths."""
BOUND = 4.0
"""Standard errors that the worst of some ten correlated numbers may be off."""


@dataclass(frozen=True)
class Networks:
    """Networks on one sample, trained at any gamma0 from the same weights, (network, ...)."""

    case: Case
    start: Weights

    @classmethod
    def drawn(cls, case: Case, width: int, count: int, rng: np.random.Generator) -> Networks:
        """Return networks with standard normal weights."""
        shapes = [(count, width), *[(count, width, width)] * (case.depth - 1), (count, width)]
        return cls(case, tuple(rng.standard_normal(shape) for shape in shapes))

    def second_orders(self) -> Array:
        """Return the coefficients of gamma0^2 in Phi and G at equal times, (2, layer, time, network).

        They are second differences; at gamma0 = 0 the kernels keep their initial values.
        """
        sides = self.kernels(STEP) + self.kernels(-STEP)
        return np.asarray((sides - sides[:, :, :1]) / (2 * STEP**2))

    def kernels(self, gamma: float) -> Array:
        """Return Phi and G at equal times, (2, layer, time, network), in gradient descent at gamma0.

        With F = w . phi(h^L)/N the output is (F - F(0))/gamma0, and the raw rate N gamma0^2 eta.
        """
        weights, depth, width = self.start, self.case.depth, self.start[0].shape[1]
        none = (np.zeros_like(weights[0]),) * depth
        before, found = self.passed(weights, none)[1], []
        for _ in range(self.case.steps):
            features, F = self.passed(weights, none)
            slopes = gradients(lambda v: anp.sum(self.passed(v[:-depth], v[-depth:])[1]), (*weights, *none))
            fields = features, [width * x for x in slopes[-depth:]]
            found.append([[np.mean(x**2, axis=1) for x in kind] for kind in fields])
            error = float(self.case.targets[0]) - (F - before) / gamma
            push = width * gamma * float(self.case.rate) * error
            weights = tuple(
                w + push.reshape(-1, *[1] * (w.ndim - 1)) * x
                for w, x in zip(weights, slopes[:-depth], strict=True)
            )
        return np.moveaxis(np.array(found), 0, 2)

    def passed(self, weights: Sequence[Any], added: Sequence[Any]) -> tuple[list[Any], Any]:
        """Return phi(h^l), with ``added`` to h^l, and F, for an input with |x|^2/D of the case."""
        phi = self.case.activation.as_poly(x).all_coeffs()
        first, *hidden, readout = weights
        h = float(self.case.kernel[0][0]) ** 0.5 * first + added[0]
        features = [_polynomial(phi, h)]
        for w, more in zip(hidden, added[1:], strict=True):
            h = anp.matmul(w, features[-1][..., None])[..., 0] / np.sqrt(first.shape[1]) + more
            features.append(_polynomial(phi, h))
        return features, anp.mean(readout * features[-1], axis=1)


def _polynomial(coefficients: Sequence[Any], h: Any) -> Any:
    total = 0.0
    for c in coefficients:
        total = total * h + float(c)
    return total


@lru_cache(maxsize=1)
def measured() -> tuple[Array, Array]:
    """Return second orders of (Phi, G), (2, layer, time), of infinitely wide networks, with errors."""
    means, errors = [], []
    for width, count in zip(WIDTHS, NETWORKS, strict=True):
        rng = np.random.default_rng(width)
        batches = [Networks.drawn(SOFT, width, BATCH, rng).second_orders() for _ in range(count // BATCH)]
        runs = np.concatenate(batches, axis=-1)
        means.append(runs.mean(axis=-1))
        errors.append(runs.std(axis=-1, ddof=1) / np.sqrt(count))
    return 2 * means[1] - means[0], np.sqrt(4 * errors[1] ** 2 + errors[0] ** 2)


def kernels_of_networks() -> Evidence:
    """Check (P.22), (P.25): second derivatives of the kernels of networks with a cubic activation."""
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
