"""A finite deep linear network on isotropic data, trained by its gradient, to compare the theory with.

Responses are measured with the correlations in the same run. At every time each product with a Gaussian part,
which is a source of the theory, is perturbed by an infinitesimal amount along an independent random
direction. The response is the change of the field along that direction, averaged over units, because changes
by other perturbations average out. The perturbation is imaginary (complex steps): training is polynomial, so
that the real part is the unperturbed network.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
PUSH = 1e-30


class Network:
    """One network with its data, drawn from ``seed``; the options are those of ``isotropic_dense``."""

    def __init__(  # noqa: PLR0913 (the parameters of the paper)
        self,
        features: int,
        seed: int,
        *,
        depth: int,
        eta: float,
        nu: float | Sequence[float],
        gamma0: float = 1.0,
        alpha: float | None = None,
        alpha_B: float | None = None,
        noise: float = 0.0,
        center: bool = False,
    ) -> None:
        self.rng = np.random.default_rng(seed)
        ratios = [nu] * depth if isinstance(nu, int | float) else list(nu)
        self.D, self.L = features, depth
        self.widths = [features, *(round(x * features) for x in ratios)]
        self.P = round((alpha or alpha_B or 0) * features)
        self.eta, self.gamma0, self.noise, self.center = eta, gamma0, noise, center
        self.fresh, self.population = alpha_B is not None, self.P == 0
        normal = self.rng.standard_normal
        self.weights: list[Array] = [normal((b, a)).astype(complex) for a, b in pairwise(self.widths)]
        self.readout: Array = normal(self.widths[-1]).astype(complex)
        self.target = normal(features)
        self.draw()

    def draw(self) -> None:
        """Draw samples and the noise of their labels."""
        self.X = self.rng.standard_normal((self.P, self.D))
        self.eps = self.rng.standard_normal(self.P)

    def run(self, steps: int) -> dict[str, Array]:
        """Return correlations and responses by name, (steps, steps) or (L, steps, steps)."""
        D, L, n = self.D, self.L, self.widths
        sources = {"uD": self.P, "u0": D, "r0": D}
        sources |= {f"{x}{k}": n[k] for k in range(1, L + 1) for x in ("u", "r^")}
        directions = {x: self.rng.standard_normal((steps, size)) for x, size in sources.items()}
        names = ["v", "Delta", "h0", *(f"{x}{k}" for k in range(1, L + 1) for x in ("h^", "g"))]
        seen: dict[str, list[Array]] = {x: [] for x in names}
        first: Array | float = 0.0
        for t in range(steps):
            if self.fresh and t:
                self.draw()
            push = {x: 1j * PUSH * z[t] for x, z in directions.items()}
            g = self.readout + push[f"r^{L}"]
            seen[f"g{L}"].append(g)
            for k in range(L - 1, 0, -1):
                g = self.weights[k].T @ g / np.sqrt(n[k]) + push[f"r^{k}"]
                seen[f"g{k}"].append(g)
            xi = (self.weights[0].T @ g / np.sqrt(D) + push["r0"]) * D / (n[L] * self.gamma0)
            if t == 0 and self.center:
                first = xi
            v = self.target - xi + first
            Delta = self.X @ v / np.sqrt(D) + self.noise * self.eps + push["uD"]
            h = v if self.population else (self.X.T @ Delta / np.sqrt(D) + push["u0"]) * D / self.P
            for name, x in (("v", v), ("Delta", Delta), ("h0", h)):
                seen[name].append(x)
            for k in range(1, L + 1):
                h = self.weights[k - 1] @ h / np.sqrt(n[k - 1]) + push[f"u{k}"]
                seen[f"h^{k}"].append(h)
            self.step({name: x[t] for name, x in seen.items()})
        fields = {name: np.array(x) for name, x in seen.items()}
        return self.measured(fields, directions)

    def step(self, now: dict[str, Array]) -> None:
        """Add -eta gamma0^2 N_L d(1/2) <Delta^2>/d theta to the weights, from the current fields (eq. 4)."""
        h = [now["h0"], *(now[f"h^{k}"] for k in range(1, self.L + 1))]
        for k, W in enumerate(self.weights):
            W += self.eta * self.gamma0 / np.sqrt(W.shape[1]) * np.outer(now[f"g{k + 1}"], h[k])
        self.readout = self.readout + self.eta * self.gamma0 * h[-1]

    def measured(self, fields: dict[str, Array], directions: dict[str, Array]) -> dict[str, Array]:
        """Return the correlations and responses of recorded fields and directions of perturbations."""

        def correlation(name: str) -> Array:
            x = fields[name].real
            return x @ x.T / max(x.shape[1], 1)

        def response(name: str, source: str) -> Array:
            return fields[name].imag / PUSH @ directions[source].T / max(fields[name].shape[1], 1)

        layers = range(1, self.L + 1)
        return {
            "C_v": correlation("v"),
            "C_Delta": correlation("Delta"),
            "C_h0": correlation("h0"),
            "C_h": np.array([correlation(f"h^{k}") for k in layers]),
            "C_g": np.array([correlation(f"g{k}") for k in layers]),
            "R_vu": response("v", "u0"),
            "R_Delta": response("Delta", "uD"),
            "R_h0r0": response("h0", "r0"),
            "R_hr": np.array([response(f"h^{k}", f"r^{k}") for k in layers]),
            "R_gu": np.array([response(f"g{k}", f"u{k}") for k in layers]),
        }
