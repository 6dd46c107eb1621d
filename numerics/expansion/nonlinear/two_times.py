"""Sums of decorated trees whose kernels are arrays over two times."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from derive.expansion.nonlinear.kinks import Coefficients
from derive.expansion.nonlinear.trees import COL, OPAQUE, ROW, Piece
from numerics.expansion.nonlinear.forests import contracted
from numerics.expansion.nonlinear.moments import Moments
from numerics.expansion.nonlinear.statics import Array, Statics

TIMES = 100
"""Axes that are times are numbered from here, in the order of the nodes; the others are samples."""


class TwoTimes:
    """Laws of one layer evaluated at each: numbers from ``statics``, functions of two times from ``moving``.

    ``moving[name, order, layer]`` is (T, P, T, P); what is not there is zero.  ``weight`` and ``errors`` are
    those of :class:`~numerics.expansion.nonlinear.evaluation.Evaluation`; ``moments`` are kept by layer.
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


__all__ = ["TwoTimes"]
