"""The first powers of |gamma0| through the layers: units at the kink in each, and what neighbours hand on.

What a source has moved since the start has a covariance to which terms of one time add nothing, so that it is
found first, layer by layer upwards.  With it units at the kink are followed in every layer.  Then B and G go
down, A and Phi up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
from scipy.special import ndtri
from scipy.stats import qmc
from sympy import Add, Expr, Rational, lambdify
from sympy.core.function import AppliedUndef

from derive.calculus.jumps import Jumps
from derive.expansion.nonlinear.kinks import Coefficients, KinkExpansion
from derive.expansion.nonlinear.trees import COL, LOWEST, OPAQUE, ROW, Piece
from derive.program import s, t
from numerics.averages.orthants import of_products, rows_of
from numerics.expansion.kink_units import Motion, Sources, follow
from numerics.expansion.statics import Array, Moments, Statics, contracted

SMALL = 1e-12
"""Directions in which a source varies by less, relative to the largest variance, are left out."""

TIMES = 100
"""Axes that are times are numbered from here, in the order of the nodes; the others are samples."""


class TwoTimes:
    """Laws of one layer evaluated at each: numbers from ``statics``, functions of two times from ``moving``.

    ``moving[name, order, layer]`` is (T, P, T, P); what is not there is zero.  ``weight`` and ``errors`` are
    those of :class:`~numerics.expansion.trees.Evaluation`; ``moments`` are kept by layer.
    """

    def __init__(
        self,
        statics: Statics,
        laws: Coefficients,
        weight: Array,
        errors: Mapping[int, Array],
        moments: dict[int, Moments] | None = None,
    ) -> None:
        self.statics, self.laws, self.weight, self.errors = statics, laws, weight, errors
        self.moving: dict[tuple[str, int, int], Array] = {}
        self.moments = {} if moments is None else moments

    def averages(self, layer: int) -> Moments:
        """All averages that the laws need at a layer."""
        if layer not in self.moments:
            patterns = {
                tuple(orders for _, orders in p.averages) for terms in self.laws.values() for p in terms
            }
            site, points = self.statics.expansion.site, self.statics.points
            covariance = self.statics.correlation(site.u.name, layer + site.u.shift)
            self.moments[layer] = Moments(
                site.activation,
                covariance,
                patterns,
                self.statics.rtol,
                None if points is None else points.of(covariance, layer),
            )
        return self.moments[layer]

    def value(self, name: str, n: int, layer: int) -> Array:
        """A law of the population at ``layer``: (T, P, T, P), or (T, P) for f."""
        T, P = self.errors[0].shape
        single = name == "f"
        total = np.zeros((T, P) if single else (T, P, T, P))
        for p, c in self.laws.get((name, n), {}).items():
            total += float(c) * self.piece(p, layer, single)
        return total

    def piece(self, p: Piece, layer: int, single: bool) -> Array:
        """One product, summed over its inner times and samples."""
        T, P = self.errors[0].shape
        zero = np.zeros((T, P) if single else (T, P, T, P))
        places = {x.sample: TIMES + i for i, x in reversed(list(enumerate(p.nodes)))}
        parts: list[tuple[Array, list[int]]] = []
        for x in p.statics:
            if x.tensor.moves:
                array = self.moving.get((x.tensor.name, x.tensor.order, layer + x.shift))
                axes = [axis for i in x.samples for axis in (places[i], i)]
            else:
                array, axes = self.statics.value(x.tensor, layer + x.shift), list(x.samples)
            if array is None or not np.any(array):
                return zero
            parts.append((array, axes))
        for i, node in enumerate(p.nodes):
            if node.parent >= 0 and node.error != OPAQUE:
                parts.append((self.weight, [TIMES + node.parent, TIMES + i]))
                parts.append((self.errors[node.error], [TIMES + i, node.sample]))
        if p.averages:
            labels = [i for i, _ in p.averages]
            parts.append((self.averages(layer)(tuple(o for _, o in p.averages)), labels))
        row, *roots = [TIMES + i for i in p.roots]
        parts.append((np.ones((T, P)), [row, ROW]))
        if single:
            return contracted([row, ROW], *parts)
        marked = next((i for i, x in enumerate(p.nodes) if x.marked), None)
        if marked == 0:  # pushed at the same time, and at the same sample
            here = contracted([row, ROW], *parts)
            n, m = np.arange(T)[:, None], np.arange(P)
            zero[n, m, n, m] = here
            return zero
        col = roots[0] if marked is None else TIMES + marked
        return contracted([row, ROW, col, COL], *parts, (np.ones((T, P)), [col, COL]))


@dataclass(frozen=True)
class Directions:
    """Directions of Gaussian vectors: ``count`` of them, and as many with r, xi or both reversed."""

    count: int
    seeds: tuple[int, ...]

    def of(self, first: int, second: int, place: tuple[int, ...]) -> Array:
        """Unit vectors, (first + second, 4 count): r depends on the first part, xi on the others."""
        if first + second == 1:
            return np.array([[1.0, -1.0]])
        sobol = qmc.Sobol(first + second, seed=np.random.default_rng([*self.seeds, *place]))
        x = ndtri(np.clip(sobol.random(self.count), 1e-15, 1 - 1e-15)).T
        x /= np.sqrt((x**2).sum(axis=0))
        turn = np.concatenate([np.ones(first), -np.ones(second)])[:, None]
        return np.concatenate([x, -x, turn * x, -turn * x], axis=1)


class Layers:
    """All layers: ``times.moving`` has Phi, G and the responses, ``output`` is what drives ``-Delta_1``."""

    def __init__(self, series: KinkExpansion, times: TwoTimes, directions: Directions) -> None:
        self.series, self.times, self.directions = series, times, directions
        self.statics, self.depth = times.statics, times.statics.depth
        self.weight, self.error = times.weight, times.errors[0]
        self.site = series.bulk.site
        (variance,) = series.density.atoms(AppliedUndef)
        self.density = lambdify(variance, series.density)
        T, P = self.error.shape
        self.drift = {1: np.zeros((T, P, T, P))}
        self.output = np.zeros((T, P))
        moving = self.times.moving
        for layer in range(1, self.depth):
            moving["Phi", 2, layer] = self.times.value("Phi", 2, layer)
            self.drift[layer + 1] = since_start(series.drift, moving["Phi", 2, layer])
        self.added = {layer: self.crossing(layer) for layer in range(1, self.depth + 1)}
        for layer in range(self.depth, 0, -1):
            self.down(layer)
        for layer in range(1, self.depth + 1):
            self.up(layer)
        self.output += self.added[self.depth]["f"][:, :, 0, 0] + self.times.value("f", 1, self.depth)

    # -- from layer to layer ---------------------------------------------------------------------------

    def down(self, layer: int) -> None:
        """The kernel of z, G, and B, which is stored below."""
        moving, times = self.times.moving, self.times
        if self.site.backward is not None:
            for n in (LOWEST, 0):
                moving["D", n, layer] = self.memory("z", n, layer)
        moving["G", 1, layer] = times.value("G", 1, layer) + self.added[layer]["G"]
        if self.site.backward is not None and layer > 1:
            below = layer + self.site.backward
            for n, name in ((LOWEST, "turning"), (0, "B")):
                moving["B", n, below] = times.value("B", n, layer) + self.added[layer][name]

    def up(self, layer: int) -> None:
        """The kernel of h, A, Phi."""
        moving, times = self.times.moving, self.times
        if self.site.forward is not None:
            moving["C", 1, layer] = self.memory("h", 1, layer)
            if layer < self.depth:
                moving["A", 1, layer + self.site.forward] = (
                    times.value("A", 1, layer) + self.added[layer]["A"]
                )
        moving["Phi", 2, layer] = times.value("Phi", 2, layer) + self.added[layer]["Phi"]

    def memory(self, field: str, n: int, layer: int) -> Array:
        """A kernel at order n, of what drives the error at order 1 only: Delta_1 itself is not in it."""
        T, P = self.error.shape
        total = np.zeros((T, P, T, P))
        for edge in self.site.h if field == "h" else self.site.z:
            at = layer + edge.kernel.shift
            if not edge.memory:
                total += self.times.moving.get((edge.kernel.name, n, at), 0.0)
            elif n == 0:
                kernel = self.statics.correlation(edge.kernel.name, at)
                total += np.einsum("ts,sb,ab->tasb", self.weight, self.error, kernel)
        return total

    # -- units at the kink -----------------------------------------------------------------------------

    def crossing(self, layer: int) -> dict[str, Array]:
        """What units at the kink add; f has no second time and sample, A and B stand at the second time t."""
        T, P = self.error.shape
        jumps = self.series.jumps
        sizes = {"f": (T, P, 1, 1), "A": (T, P, 1, P), "B": (T, P, 1, P)}
        total = {name: np.zeros(sizes.get(name, (T, P, T, P))) for name in jumps}
        total["turning"] = np.zeros((T, P, T, P))
        wanted = {
            n for n in jumps if not (n == "A" and layer == self.depth) and not (n == "B" and layer == 1)
        }
        motion = Motion(self.series, self.statics, layer, self.weight, self.error)
        K = self.statics.correlation(self.site.u.name, layer + self.site.u.shift)
        for k in range(P):
            sources = Patterns(self, motion, layer, k, K)
            for share, own in sources:
                units = follow(k, own, motion)
                share *= self.density(K[k, k])
                for name in wanted:
                    units.add(total[name], jumps[name], share)
                total["turning"][:, k, :, k] += share * units.turning(self.series.turning)
        for name in {"A", "B"} & set(total):
            total[name] = np.einsum("tasb,ts->tasb", np.broadcast_to(total[name], (T, P, T, P)), np.eye(T))
        return total


class Patterns:
    """Units at the kink of sample k by the signs of the others' u: how often, and what they have."""

    def __init__(self, layers: Layers, motion: Motion, layer: int, k: int, K: Array) -> None:
        self.layers, self.motion, self.layer, self.k, self.K = layers, motion, layer, k, K
        self.points = layers.statics.points

    @cached_property
    def gaussian(self) -> tuple[Array, Array, Array, int]:
        """r, rho and xi in each direction, and the dimension."""
        layers, layer = self.layers, self.layer
        site, drift = layers.site, layers.drift[layer][:, self.k, :, self.k]
        G = layers.statics.correlation(site.r.name, layer + site.r.shift)
        left, right = root(G), root(drift)
        unit = layers.directions.of(left.shape[1], right.shape[1], (layer, self.k))
        first, second = unit[: left.shape[1]], unit[left.shape[1] :]
        rho = np.linalg.pinv(left).T @ first
        return left @ first, rho, right @ second, len(unit)

    def sources(self, signs: Array, means: Array) -> Sources:
        """Units whose u have these signs, with these means."""
        r, rho, xi, dimension = self.gaussian
        # on one side phi is linear: its mean is phi of the mean
        slopes, features = np.asarray(self.motion.side(signs)), np.asarray(self.motion.phi(means))
        upsilon = np.zeros(len(means))
        if "B" in self.layers.series.jumps and self.layer > 1:
            upsilon[:] = np.linalg.solve(self.K, means)
        return Sources(slopes, features, upsilon, r, rho, xi, dimension)

    def __iter__(self) -> Iterator[tuple[float, Sources]]:
        for share, signs, means in self.sides():
            yield share, self.sources(signs, means)

    def sides(self) -> Iterator[tuple[float, Array, Array]]:
        """Given ``u_k = 0``: signs of the others, how often they occur, and the means of u with them."""
        K, k, P = self.K, self.k, len(self.K)
        others = [i for i in range(P) if i != k]
        left = (K - np.outer(K[k], K[k]) / K[k, k])[np.ix_(others, others)]
        signs, means = np.zeros(P), np.zeros(P)
        if not others:
            yield 1.0, signs, means
        elif self.points is None:
            rows = rows_of(left)[None]
            for own in product((1, -1), repeat=len(others)):
                step = [sided(0, sign) for sign in own]
                share = float(of_products(step, rows)[0][0])
                if share <= 0:
                    continue
                first = [
                    float(of_products([*step[:i], sided(1, sign), *step[i + 1 :]], rows)[0][0])
                    for i, sign in enumerate(own)
                ]
                signs, means = np.zeros(P), np.zeros(P)
                signs[others], means[others] = own, np.array(first) / share
                yield share, signs, means
        else:
            u = self.points.of(left, k)
            found, which = np.unique(u > 0, axis=0, return_inverse=True)
            for j, on in enumerate(found):
                here = u[which.ravel() == j]
                signs, means = np.zeros(P), np.zeros(P)
                signs[others], means[others] = np.where(on, 1, -1), here.mean(axis=0)
                yield len(here) / len(u), signs, means


def sided(power: int, sign: int) -> Jumps:
    """``x**power`` where x has this sign."""
    return {(power, 0, -1): Rational(1, 2), (power, 1, -1): Rational(sign, 2)}


def root(C: Array) -> Array:
    """``X`` with ``X X^T = C``, a column for each direction in which C is not zero."""
    values, vectors = np.linalg.eigh((C + C.T) / 2)
    kept = values > SMALL * max(values[-1], 0.0)
    return np.asarray(vectors[:, kept] * np.sqrt(values[kept]))


def since_start(drift: Expr, C: Array) -> Array:
    """The covariance of what a source has moved: the derived ``drift``, with C at its order two."""
    total = np.zeros_like(C)
    for term in Add.make_args(drift):
        number, kernel = term.as_coeff_Mul()
        first, second = (slice(None) if time in (t, s) else slice(0, 1) for time in kernel.args[-2:])
        total += float(number) * C[first, :, second]
    return total


__all__ = ["Directions", "Layers", "TwoTimes"]
