"""Finite networks near gamma0 = 0: the coefficient of gamma0^2, from the same weights at several gamma0.

Outputs are those less the initial ones, which in the limit vanish.  gamma0 -> -gamma0 is the readout with the
other sign, so that even powers are means over the two signs, and no noise of order one is divided by gamma0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.special import erf

Array = NDArray[np.float64]

ACTIVATIONS = {
    "tanh": (np.tanh, lambda h: 1 - np.tanh(h) ** 2),
    "erf": (erf, lambda h: 2 / np.sqrt(np.pi) * np.exp(-(h**2))),
    "relu": (lambda h: np.maximum(h, 0), lambda h: (h > 0).astype(float)),
    "h + h**3/6": (lambda h: h + h**3 / 6, lambda h: 1 + h**2 / 2),
}
DIMENSIONS = {
    "error": ("time", "sample"),
    "train_loss": ("time",),
    "Phi": ("layer", "time", "time_", "sample", "sample_"),
    "G": ("layer", "time", "time_", "sample", "sample_"),
    "tangent_kernel": ("time", "time_", "sample", "sample_"),
}
LAZY = 1e-4
NUMBERS = 4e6
"""Weights of the networks that are trained at once."""


@dataclass(frozen=True)
class Problem:
    """Steps of gradient descent on the sum over samples."""

    activation: str
    depth: int
    kernel: Array
    targets: Array
    eta: float
    steps: int

    def trained(self, weights: Sequence[Array], gamma0: float) -> dict[str, Array]:
        """Return order parameters of many networks, first axis.

        ``weights`` are those of the first layer, ..., of the readout.
        """
        phi, slope = ACTIVATIONS[self.activation]
        first, *hidden, readout = (w.copy() for w in weights)
        count, width = readout.shape
        P, T = len(self.targets), self.steps + 1
        x = np.linalg.cholesky(self.kernel)
        rate = self.eta * gamma0
        features, gradients, errors = [], [], []
        start: Array | None = None
        for _ in range(T):
            h = [x @ first.transpose(0, 2, 1)]
            for w in hidden:
                h.append(phi(h[-1]) @ w.transpose(0, 2, 1) / np.sqrt(width))
            a = [phi(y) for y in h]
            output = (a[-1] @ readout[:, :, None])[:, :, 0] / width
            start = output if start is None else start
            error = self.targets - (output - start) / gamma0
            g, back = [], readout[:, None, :]
            for y, w in zip(h[::-1], [*hidden[::-1], None], strict=True):
                g.insert(0, slope(y) * back)
                back = back if w is None else g[0] @ w / np.sqrt(width)
            features.append(np.stack(a))
            gradients.append(np.stack(g))
            errors.append(error)
            pull = error[:, :, None]
            readout += rate * (pull * a[-1]).sum(axis=1)
            for w, above, below in zip(hidden, g[1:], a, strict=False):
                w += rate / np.sqrt(width) * (pull * above).transpose(0, 2, 1) @ below
            first += rate * (pull * g[0]).transpose(0, 2, 1) @ x

        def kernel(fields: list[Array]) -> Array:
            flat = np.stack(fields).transpose(2, 1, 0, 3, 4).reshape(count, self.depth, T * P, width)
            product = flat @ flat.transpose(0, 1, 3, 2) / width
            return product.reshape(count, self.depth, T, P, T, P).transpose(0, 1, 2, 4, 3, 5)

        Phi, G = kernel(features), kernel(gradients)
        data = np.broadcast_to(self.kernel, Phi[:, :1].shape)
        tangent = (np.concatenate([data, Phi], axis=1)[:, :-1] * G).sum(axis=1) + Phi[:, -1]
        error = np.stack(errors, axis=1)
        loss = (error**2).mean(axis=2)
        return {"Phi": Phi, "G": G, "tangent_kernel": tangent, "error": error, "train_loss": loss}

    def coefficients(
        self,
        width: int,
        seeds: int,
        strengths: Sequence[float],
        seed: int,
        powers: Sequence[int] = (),
    ) -> dict[str, Array]:
        """Return the coefficient of gamma0^2, or of the first of ``powers``, of every network."""
        rng = np.random.default_rng([seed, width, self.depth])
        fitted = np.asarray(powers or [2 * k + 2 for k in range(len(strengths))])
        weights = np.linalg.inv(np.asarray(strengths)[:, None] ** fitted)[0]
        together = max(1, int(NUMBERS / (width * (width * (self.depth - 1) + 3))))
        found: dict[str, list[Array]] = {}
        for begin in range(0, seeds, together):
            n = min(together, seeds - begin)
            drawn = [rng.standard_normal((n, width, len(self.targets)))]
            drawn += [rng.standard_normal((n, width, width)) for _ in range(self.depth - 1)]
            drawn.append(rng.standard_normal((n, width)))
            lazy = self.trained(drawn, LAZY)
            total = {name: np.zeros_like(x) for name, x in lazy.items()}
            for gamma0, share in zip(strengths, weights, strict=True):
                for sign in (1, -1):
                    for name, x in self.trained(drawn, sign * gamma0).items():
                        total[name] += share / 2 * (x - lazy[name])
            for name, x in total.items():
                found.setdefault(name, []).append(x)
        return {name: np.concatenate(x) for name, x in found.items()}

    def limit(
        self,
        widths: tuple[int, int],
        seeds: tuple[int, int],
        strengths: Sequence[float],
        seed: int = 1,
        powers: Sequence[int] = (),
    ) -> xr.Dataset:
        """Return the coefficient at infinite width, on a line in 1/width, with its standard error."""
        a, b = (1 / n for n in widths)
        shares = (-b / (a - b), a / (a - b))
        means, variances = {}, {}
        for share, width, count in zip(shares, widths, seeds, strict=True):
            for name, x in self.coefficients(width, count, strengths, seed, powers).items():
                means[name] = means.get(name, 0.0) + share * x.mean(axis=0)
                variances[name] = variances.get(name, 0.0) + share**2 * x.var(axis=0, ddof=1) / count
        variables = {}
        for name, x in means.items():
            variables[name] = DIMENSIONS[name], x
            variables[f"{name}_stderr"] = DIMENSIONS[name], np.sqrt(variances[name])
            variables[f"{name}_missed"] = DIMENSIONS[name], np.zeros_like(x)
        return xr.Dataset(variables, attrs={"replicas": min(seeds)})
