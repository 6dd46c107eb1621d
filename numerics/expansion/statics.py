"""Static tensors of a nonlinear expansion as arrays, layer by layer, from their derived recursions.

They contain averages of products of derivatives of phi at one layer, for all tuples of samples.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from sympy import Lambda, Mul

from derive.expansion.nonlinear import NonlinearExpansion
from derive.expansion.nonlinear.trees import OUTPUT, PAIR, ForestCoefficient, Piece, samples_of
from derive.program import L
from numerics.averages import tensors
from numerics.averages.kink_quadrature import compiled, expression
from numerics.lowering.expressions import arranged
from numerics.names import FEATURE_KERNEL, FORWARD_RESPONSE, INPUT_KERNEL
from numerics.stats import normal_points

Array = NDArray[np.float64]
Pattern = tuple[tuple[int, ...], ...]
"""Orders of the derivatives of phi at each sample."""

PAIRS = 2
"""Number of samples up to which averages are computed by quadrature and not from sampled points."""

FORWARD = (FEATURE_KERNEL, FORWARD_RESPONSE, "C")
"""Tensors that are computed from the first layer on; others from the last layer backwards."""

DATA = INPUT_KERNEL
"""Name of the data's kernel in a theory of one layer, whose equations contain it."""


@dataclass(frozen=True)
class Points:
    """Random points for averages over Gaussian sources at three or more samples.

    Quadrature is too slow for these averages. There are at least ``count`` points, which is a power of two,
    and their negatives; ``seeds`` determine the random numbers.
    """

    count: int
    seeds: tuple[int, ...]

    def number(self, size: int) -> int:
        """Return the number of points for ``size`` samples, without negatives: at least two for each sample.

        If there were fewer points than samples, their matrix of second moments would always be singular.

        >>> Points(32, (0,)).number(8), Points(32, (0,)).number(33)
        (32, 128)
        """
        return max(self.count, 1 << max(2 * size - 1, 0).bit_length())

    def of(self, covariance: Array, layer: int) -> Array:
        """Return points of Gaussian sources, (points, P), whose second moments equal ``covariance`` (P, P).

        Every point comes with its negative; ``layer`` is part of the seed.
        """
        size = len(covariance)
        x = normal_points(self.number(size), size, [*self.seeds, layer]).T
        x = x @ np.linalg.inv(np.linalg.cholesky(x.T @ x / len(x))).T
        values, vectors = np.linalg.eigh(covariance)
        x = x @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
        return np.concatenate([x, -x])


class Moments:
    """Averages ``<prod_i prod_{a in pattern_i} phi^(a)(u_i)>`` over Gaussian u, for all tuples of samples.

    A pattern holds, for each sample of a tuple, the orders of the derivatives of the activation phi at it.

    Attributes
    ----------
    covariance
        Covariance of u, (P, P).
    slopes
        Derivatives of phi as expressions, from order 0 (phi itself) on.
    arrays
        Averages of each pattern, one axis of length P for each sample.
    error
        Largest estimated error of an average by quadrature.

    Notes
    -----
    Averages are computed by quadrature, with errors within ``rtol``. With ``points``, averages over more
    than two samples are means over these points. The others are copied from ``known``, the averages of
    another replica, if it is given and has the same covariance. Raises
    :class:`~derive.calculus.jumps.Ambiguous` for undefined averages, such as a jump times a delta function.
    """

    def __init__(
        self,
        phi: Lambda,
        covariance: Array,
        patterns: Iterable[Pattern],
        rtol: float,
        points: Array | None = None,
        known: Moments | None = None,
    ) -> None:
        self.covariance = np.asarray(covariance, dtype=float)
        unique = sorted({tuple(sorted(p)) for p in patterns})
        top = max((a for p in unique for orders in p for a in orders), default=0)
        x = phi.variables[0]
        self.slopes = [phi.expr.diff(x, k).doit() for k in range(top + 1)]
        P = len(self.covariance)
        self.arrays = {p: np.zeros((P,) * len(p)) for p in unique}
        self.error = 0.0
        # Averages that contain a vanishing derivative of phi, such as a high one of a polynomial, are zero
        # and not computed.
        alive = [p for p in unique if all(self.slopes[a] != 0 for orders in p for a in orders)]
        sampled = [p for p in alive if points is not None and len(p) > PAIRS]
        exact = [p for p in alive if p not in sampled]
        if known is not None and np.array_equal(known.covariance, self.covariance):
            self.arrays |= {p: known.arrays[p] for p in exact if p in known.arrays}
            self.error = known.error
            exact = [p for p in exact if p not in known.arrays]
        lists = [[Mul(*[self.slopes[a] for a in orders]) for orders in p] for p in exact]
        for p, value in zip(exact, tensors(lists, covariance, rtol), strict=True):
            self.arrays[p] = value.value
            self.error = max(self.error, float(np.max(value.error)))
        if points is not None and sampled:
            self.sample(sampled, points)

    def sample(self, patterns: list[Pattern], points: Array) -> None:
        """Compute the averages of these patterns of derivatives as means over ``points`` (points, P)."""
        needed = {a for p in patterns for orders in p for a in orders}
        at = {a: compiled(expression(self.slopes[a]))(points) for a in needed}
        at = {a: np.broadcast_to(v, points.shape) for a, v in at.items()}

        def factor(orders: tuple[int, ...]) -> Array:
            """Return the product of derivatives of the activation of these orders, (points, P)."""
            return np.asarray(np.prod([at[a] for a in orders], axis=0))

        def joined(parts: Pattern) -> Array:
            """Return products of derivatives of the activation for all tuples of n samples, (points, P^n).

            ``parts`` holds the orders of the derivatives for each of the n samples.
            """
            value = np.ones((len(points), 1))
            for orders in parts:
                value = (value[:, :, None] * factor(orders)[:, None, :]).reshape(len(points), -1)
            return value

        P = len(self.covariance)
        for p in patterns:
            half = (len(p) + 1) // 2
            self.arrays[p] = (joined(p[:half]).T @ joined(p[half:]) / len(points)).reshape((P,) * len(p))

    def __call__(self, pattern: Pattern) -> Array:
        """Return the averages of a pattern of derivatives, with one axis of length P for each of its samples.

        A pattern holds the orders of the derivatives of the activation at each sample.
        """
        order = sorted(range(len(pattern)), key=lambda i: pattern[i])
        array = self.arrays[tuple(pattern[i] for i in order)]
        return np.transpose(array, np.argsort(order))


@dataclass(eq=False)
class Statics:
    """Static tensors of the expansion of a nonlinear network in gamma0, as arrays.

    A static tensor is a coefficient that does not depend on time, for each layer and tuple of samples.

    Attributes
    ----------
    expansion
        The derived recursions of the tensors from layer to layer.
    depth, kernel
        Number of hidden layers, and kernel of the data (P, P).
    rtol
        Tolerance of averages.
    skipped
        Names with orders, such as "B0", of tensors whose averages are not computed.
    points
        Points for averages over more than two samples; None for quadrature.
    exact
        Averages of other replicas by layer, from which those by quadrature are copied; the first replica adds
        its own.
    needed
        Further averages to compute at every layer.
    known, moments
        Tensors and averages computed so far.
    """

    expansion: NonlinearExpansion
    depth: int
    kernel: Array
    rtol: float
    skipped: frozenset[str]
    points: Points | None = None
    exact: dict[int, Moments] = field(default_factory=dict)
    needed: Collection[Pattern] = ()
    known: dict[tuple[ForestCoefficient, int], Array] = field(default_factory=dict)
    moments: dict[int, Moments] = field(default_factory=dict)

    @cached_property
    def bases(self) -> dict[tuple[str, int], Array]:
        """Given values of order parameters at the ends of the network, such as Phi at layer 0.

        Keys are (name, layer), values (P, P).
        """
        P = len(self.kernel)
        values = {}
        for (name, layer), value in self.expansion.site.bases.items():
            number = int(layer.subs(L, self.depth))
            array = self.kernel if value.free_symbols else np.full((P, P), float(value))
            values[name, number] = array
        if self.expansion.site.u.given:
            values[FEATURE_KERNEL, 0] = self.kernel
        return values

    def value(self, tensor: ForestCoefficient, layer: int) -> Array:
        """Return a static tensor at a layer, with an axis of length P for each of its samples.

        A static tensor is a coefficient of the expansion in gamma0 that does not depend on time.

        The first axes are those of the samples of the order parameter; those of the samples over which the
        expansion sums (its forest of earlier times) follow.
        """
        if tensor.name == DATA:
            return self.kernel
        if (tensor, layer) not in self.known:
            # Layers are evaluated one after another, because recursive calls through all layers would exceed
            # Python's limit in deep networks. The order begins at the end of the network where the tensor is
            # given: at the lowest layer for tensors with names in FORWARD, and at the highest layer for
            # others.
            forward = tensor.name in FORWARD
            for k in range(min(1, layer), layer + 1) if forward else range(self.depth + 1, layer - 1, -1):
                if (tensor, k) not in self.known and (k == layer or 1 <= k <= self.depth):
                    self.known[tensor, k] = self.evaluated(tensor, k)
        return self.known[tensor, layer]

    def correlation(self, name: str, layer: int) -> Array:
        """Return the correlation ``name`` of a layer at order 0 in gamma0, (P, P).

        The name "1" stands for the number one.
        """
        if name == "1":
            return np.ones_like(self.kernel)
        return self.value(ForestCoefficient(name, 0, PAIR), layer)

    def evaluated(self, tensor: ForestCoefficient, layer: int) -> Array:
        """Return a static tensor at a layer, computed from its recursion.

        A static tensor is a coefficient of the expansion that does not depend on time. Beyond an end of the
        network, where an order parameter is given, the tensor of order 0 is the given value; others are zero.
        """
        samples = samples_of(tensor.shape)
        total = np.zeros((len(self.kernel),) * len(samples))
        base = self.bases.get((tensor.name, layer))
        if base is not None:
            return base if tensor.order == 0 and tensor.shape == PAIR else total
        law = self.expansion.laws[tensor]
        for p, c in law.terms.items():
            total += self.term(p, float(c), layer - law.shift, samples)
        return total

    def term(self, p: Piece, coefficient: float, layer: int, samples: tuple[int, ...]) -> Array:
        """Return one term of the recursion of a static tensor, with an axis for each of ``samples``.

        The term is ``coefficient`` times static tensors, of this or neighbouring layers, and an average of
        derivatives of the activation over the Gaussian sources of ``layer``. ``p`` states these factors.
        """
        value = np.array(coefficient)
        for x in p.statics:
            array = self.value(x.tensor, layer + x.shift)
            if not np.any(array):
                return np.zeros((len(self.kernel),) * len(samples))
            value = value * arranged(array, x.samples, samples)
        if p.averages:
            labels = tuple(i for i, _ in p.averages)
            orders = tuple(o for _, o in p.averages)
            value = value * arranged(self.averages(layer)(orders), labels, samples)
        return value

    def averages(self, layer: int) -> Moments:
        """Return the averages of derivatives of the activation over the sources of a layer.

        All averages that the recursions of this layer need are computed at the first call.
        """
        if layer not in self.moments:
            site = self.expansion.site
            covariance = self.value(ForestCoefficient(site.u.name, 0, PAIR), layer + site.u.shift)
            points = None if self.points is None else self.points.of(covariance, layer)
            self.moments[layer] = Moments(
                self.expansion.activation,
                covariance,
                self.patterns(layer),
                self.rtol,
                points,
                self.exact.get(layer),
            )
            self.exact.setdefault(layer, self.moments[layer])
        return self.moments[layer]

    def patterns(self, layer: int) -> set[Pattern]:
        """Return the patterns of derivatives whose averages are needed at a layer.

        They are those in ``needed``, and those in the recursions of static tensors, without tensors that are
        ``skipped``, given or not read at this layer and without terms that vanish.
        """
        patterns = set(self.needed)
        for x, law in self.expansion.laws.items():
            beyond = (x.name, layer + law.shift) in self.bases or not 1 <= layer + law.shift <= self.depth
            unread = (x.name == OUTPUT and layer != self.depth) or (
                x.name == FORWARD_RESPONSE and layer == self.depth
            )
            if beyond or unread or f"{x.name}{x.order}" in self.skipped:
                continue
            for p in law.terms:
                if p.averages and not self.vanishes(p, layer):
                    patterns.add(tuple(o for _, o in p.averages))
        return patterns

    def vanishes(self, p: Piece, layer: int) -> bool:
        """Return whether a tensor beyond an end of the network makes the term p of a recursion zero.

        Beyond an end, where values are given, a tensor vanishes if its order is one or higher, or if the
        given value is zero. Other tensors are not tested.
        """
        for x in p.statics:
            base = self.bases.get((x.tensor.name, layer + x.shift))
            if base is not None and (x.tensor.order > 0 or not np.any(base)):
                return True
        return False


def contracted(out: list[int], *parts: tuple[Array, list[int]]) -> Array:
    """Return the product of arrays, summed over all axes whose labels are not in ``out``.

    Each part is an array with the labels of its axes; ``out`` are those of the result.
    """
    names = {i: chr(ord("a") + n) for n, i in enumerate(sorted({i for _, axes in parts for i in axes}))}
    spec = ",".join("".join(names[i] for i in axes) for _, axes in parts)
    target = "".join(names[i] for i in out)
    return np.asarray(np.einsum(f"{spec}->{target}", *[a for a, _ in parts], optimize=len(parts) > 1))
