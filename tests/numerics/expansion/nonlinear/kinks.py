"""One hidden layer with relu near gamma0 = 0: exact averages by quadrature, and the units at the kink.

A unit is (u_1, .., u_P, r) at the start; all sources of the theory at depth one.  relu is homogeneous: a unit
twice as large moves twice as far, so averages are those over directions, times the mean square of the length.
Nodes are crowded where a sample's u changes sign, on the scale ``width`` of the units that cross.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

CUBE = 2 * np.sqrt(2 / np.pi)
"""<|r|^3> of a standard normal number."""


@dataclass(frozen=True)
class Problem:
    """One or two samples, steps of gradient descent on the sum over samples."""

    kernel: Array
    targets: Array
    eta: float
    steps: int

    @property
    def root(self) -> Array:
        """Cholesky factor of the kernel, (P, P)."""
        return np.linalg.cholesky(self.kernel)

    # -- everything, at any gamma0 ---------------------------------------------------------------------------

    def directions(self, width: float, crowded: int = 800, along: int = 48) -> tuple[Array, Array, Array]:
        """Return units of length one and their weights: u (P, nodes), r, weights."""
        P = len(self.targets)
        edges = width * np.sinh(np.linspace(0, np.arcsinh(np.pi / width), crowded + 1))
        if P == 1:
            # angle from the kink u = 0 to the axis r = 0, four times
            edges *= (np.pi / 2) / edges[-1]
            a, w = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / (2 * np.pi)
            u = np.concatenate([np.sin(a), np.sin(a), -np.sin(a), -np.sin(a)])
            r = np.concatenate([np.cos(a), -np.cos(a), np.cos(a), -np.cos(a)])
            return self.root @ u[None], r, np.tile(w, 4)
        kinks = np.sort([np.pi / 2, np.arctan2(-self.root[1, 0], self.root[1, 1]) % np.pi])
        kinks = np.array([*kinks, *(kinks + np.pi), kinks[0] + 2 * np.pi])
        angles, weights = [], []
        for low, high in pairwise(kinks):
            own = edges * (high - low) / 2 / edges[-1]
            middle, share = (own[1:] + own[:-1]) / 2, np.diff(own) / (2 * np.pi)
            angles += [low + middle, high - middle]
            weights += [share, share]
        angle, share = np.concatenate(angles), np.concatenate(weights)
        x, w = np.polynomial.legendre.leggauss(along)
        height = np.pi / 4 * (x + 1)  # the angle, as averages behave like the root of the distance to a pole
        own = np.pi / 4 * w * np.cos(height) / 2
        r = np.concatenate([np.sin(height), -np.sin(height)])
        flat = np.sqrt(1 - r**2)[:, None]
        u = np.stack([(flat * np.cos(angle)).ravel(), (flat * np.sin(angle)).ravel()])
        return self.root @ u, np.repeat(r, len(angle)), np.outer(np.tile(own, 2), share).ravel()

    def trained(self, gamma0: float, units: tuple[Array, Array, Array]) -> dict[str, Array]:
        """Return order parameters at ``gamma0``, axes (t, s, mu, alpha)."""
        h, r, weights = units
        z, square = r, len(h) + 1.0
        phis, gs, errors = [], [], []
        for _ in range(self.steps + 1):
            phi, on = np.maximum(h, 0), h > 0
            error = self.targets - square * (phi @ (weights * z)) / gamma0
            phis.append(phi)
            gs.append(on * z)
            errors.append(error)
            h = h + gamma0 * self.eta * (self.kernel * error) @ gs[-1]
            z = z + gamma0 * self.eta * (error @ phi)

        def kernel(fields: list[Array]) -> Array:
            flat = np.stack(fields).reshape(-1, h.shape[1])
            T, P = len(fields), len(h)
            return square * ((flat * weights) @ flat.T).reshape(T, P, T, P).transpose(0, 2, 1, 3)

        Phi, G, error = kernel(phis), kernel(gs), np.array(errors)
        K = Phi + G * self.kernel
        return {"Phi": Phi, "G": G, "K": K, "error": error, "loss": (error**2).mean(axis=1)}

    def moved(self, gamma0: float, **grid: Any) -> dict[str, Array]:
        """Return the change of the order parameters by gamma0, on the same units."""
        units = self.directions(0.05 * gamma0, **grid)
        there, lazy = self.trained(gamma0, units), self.trained(1e-7, units)
        return {name: there[name] - lazy[name] for name in there}

    # -- the leading order --------------------------------------------------------------------------------

    def lazy(self) -> tuple[Array, Array, Array]:
        """Return errors at gamma0 = 0, the tangent kernel, and shares of pairs that are both on."""
        size = np.sqrt(np.outer(np.diag(self.kernel), np.diag(self.kernel)))
        angle = np.arccos(np.clip(self.kernel / size, -1, 1))
        Phi = size / (2 * np.pi) * (np.sin(angle) + (np.pi - angle) * np.cos(angle))
        G = (np.pi - angle) / (2 * np.pi)
        errors = [self.targets]
        for _ in range(self.steps):
            errors.append(errors[-1] - self.eta * (Phi + G * self.kernel) @ errors[-1])
        return np.array(errors), Phi + G * self.kernel, G

    def bulk(self, units: tuple[Array, Array, Array]) -> Array:
        """Return order gamma0^2 of Phi from units that cross no kink.

        It is a power series with every slope as at the start.
        """
        u, r, weights = units
        on, phi = (u > 0).astype(float), np.maximum(u, 0)
        first, second, z = np.zeros_like(u), np.zeros_like(u), np.zeros_like(r)
        firsts, seconds = [], []
        for error in self.lazy()[0]:
            firsts.append(on * first)
            seconds.append(on * second)
            second = second + self.eta * (self.kernel * error) @ (on * z)
            first = first + self.eta * (self.kernel * error) @ (on * r)
            z = z + self.eta * (error @ phi)
        square = len(u) + 1.0
        both = np.einsum("tmx,sax->tsma", firsts, np.array(firsts) * weights, optimize=True)
        one = np.einsum("tmx,ax->tma", seconds, phi * weights, optimize=True)
        return square * (both + one[:, None] + one.transpose(0, 2, 1)[None])

    def layer(self, cells: int = 20_001) -> dict[str, Array]:
        """Return the contribution of units at the kink.

        It is |gamma0| of G, error, K and loss, and gamma0^2 of Phi. The unit has u_mu = gamma0 x |r| and all
        other quantities of order one; of its samples, the slope of mu follows the sign of X(t), and the other
        one is constant.
        """
        errors, tangent, _ = self.lazy()
        T, P = errors.shape
        v = np.concatenate([np.zeros((1, P)), self.eta * np.cumsum(errors, axis=0)])[:T]
        reach = 1.5 * self.eta * np.abs(errors).sum() * np.abs(self.kernel).max()
        edges = np.linspace(-reach, reach, cells + 1)
        x, dx = (edges[1:] + edges[:-1]) / 2, edges[1] - edges[0]
        G, Phi, drive = np.zeros((T, T, P, P)), np.zeros((T, T, P, P)), np.zeros((T, P))
        for mu in range(P):
            density = 1 / np.sqrt(2 * np.pi * self.kernel[mu, mu])
            for other in range(P):  # 0: the other sample (if there is one) is off
                if P == 2:
                    nu = 1 - mu
                    left = self.kernel[nu, nu] - self.kernel[0, 1] ** 2 / self.kernel[mu, mu]
                share = density / (2 * P)  # both signs of r; the other is on in half of the units
                for sign in (1, -1):
                    push = self.kernel[mu, nu] * errors[:, nu] if P == 2 and other else np.zeros(T)
                    X, path = x, []
                    for t in range(T):
                        path.append(X)
                        own = self.kernel[mu, mu] * errors[t, mu] * (X > 0)
                        X = X + self.eta * sign * (own + push[t])
                    on = (np.array(path) > 0).astype(float)
                    whole = sign * (self.kernel[mu, mu] * v[:, mu])
                    if P == 2 and other:
                        whole = whole + sign * self.kernel[mu, nu] * v[:, nu]
                    missed = np.maximum(path, 0) - (x > 0) * (x + whole[:, None])
                    feature = missed.sum(axis=1) * dx
                    slope = (on - (x > 0)).sum(axis=1) * dx
                    G[:, :, mu, mu] += share * CUBE * (on @ on.T - (x > 0).sum()) * dx
                    drive[:, mu] += share * CUBE * sign * feature
                    if not (P == 2 and other):
                        continue
                    G[:, :, mu, nu] += share * CUBE * slope[:, None]
                    G[:, :, nu, mu] += share * CUBE * slope[None, :]
                    # the other sample depends on the changed slope of mu
                    felt = self.eta * np.cumsum(errors[:, mu] * slope)
                    felt = self.kernel[nu, mu] * np.concatenate([[0.0], felt])[:T]
                    drive[:, nu] += share * CUBE * felt
                    phi = np.sqrt(left / (2 * np.pi))  # <relu(u_nu)> at u_mu = 0
                    Phi[:, :, mu, nu] += density / 2 * phi * feature[:, None]
                    Phi[:, :, nu, mu] += density / 2 * phi * feature[None, :]
                    Phi[:, :, nu, nu] += density / 2 * phi * sign * (felt[:, None] + felt[None, :])
        first = np.zeros((T, P))
        for t in range(T):
            first[t] = -drive[t] - tangent @ (self.eta * first[:t].sum(axis=0))
        loss = 2 * (errors * first).mean(axis=1)
        return {"G": G, "error": first, "K": G * self.kernel, "loss": loss, "Phi": Phi}

    def pointwise(self, square: float) -> Array:
        """Return order gamma0^2 of Phi at the kink for a delta(u) beside slopes: theta delta = delta/2.

        ``square`` is the value given to ``theta^2 delta``, 1/4 or 1/3.
        """
        errors = self.lazy()[0]
        T, P = errors.shape
        v = np.concatenate([np.zeros((1, P)), self.eta * np.cumsum(errors, axis=0)])[:T]
        twice = np.zeros((T, P, P))
        for t in range(1, T):
            twice[t] = twice[t - 1] + self.eta * np.outer(errors[t - 1], v[t - 1])
        found = np.zeros((T, T, P, P))
        for mu in range(P):
            nu, own = 1 - mu, self.kernel[mu, mu]
            left = self.kernel[nu, nu] - self.kernel[0, 1] ** 2 / own
            weight = np.sqrt(left / own) / (2 * np.pi)
            a, b, c = own * v[:, mu], self.kernel[mu, nu] * v[:, nu], self.kernel[mu, nu]
            one = (a * a * square + a * b + b * b) / 2
            one = one + own * (own * twice[:, mu, mu] * square + c * twice[:, mu, nu] / 2)
            found[:, :, mu, nu] += weight * one[:, None]
            found[:, :, nu, mu] += weight * one[None, :]
            two = weight * c * (own * twice[:, mu, mu] / 2 + c * twice[:, mu, nu])
            found[:, :, nu, nu] += two[:, None] + two[None, :]
        return found
