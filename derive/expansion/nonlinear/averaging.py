"""Averages of decorated trees over the sources, order by order in gamma0.

The sources' covariances move with gamma0 too.  For ``u`` Price's theorem says what that does,
``<F> -> <exp(1/2 sum dPhi d^2/du du) F>``; ``r`` stands in powers only, and Isserlis' theorem pairs them with
the full covariance.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import factorial

from sympy import Rational

from derive.expansion.nonlinear.fields import Shapes, coefficient, raised
from derive.expansion.nonlinear.reading import Kernel
from derive.expansion.nonlinear.trees import (
    COL,
    ROW,
    Node,
    Piece,
    Series,
    Terms,
    collected,
    fresh,
    grafted,
    pairings,
)

Part = tuple[Rational, Piece]


def average(series: Series, n: int, u: Kernel, r: Kernel, shapes: Shapes) -> Terms:
    """Order n of the average of a series; sources at order 0 do not depend on time."""

    def parts() -> Iterator[Part]:
        for k, terms in enumerate(series[: n + 1]):
            for p, c in terms.items():
                for used in range(n - k + 1):
                    for d, q in price(p, used, u, shapes):
                        for e, v in isserlis(q, n - k - used, r, shapes):
                            yield c * d * e, averaged(v)

    return collected(parts())


def price(p: Piece, order: int, u: Kernel, shapes: Shapes) -> Iterator[Part]:
    """What moves of the covariance of ``u``, in total of ``order``, do to an average of ``p``."""
    if u.given and order:
        return
    for orders in compositions(order):
        parts: list[Part] = [(Rational(1, factorial(len(orders)) * 2 ** len(orders)), p)]
        for k in orders:
            kernel = coefficient(u, k, shapes)
            parts = [(c * d, q) for c, x in parts for d, q in _moved(x, kernel)]
        yield from parts


def _moved(p: Piece, kernel: Terms) -> Iterator[Part]:
    """``sum_{t, s} dPhi(t, s) d^2 p / du(t) du(s)``."""
    for a in range(len(p.nodes)):
        for b in range(len(p.nodes)):
            for q in _differentiated(p, (a, b)):
                for forest, c in kernel.items():
                    yield c, attached(q, a, b, forest)


def _differentiated(p: Piece, places: tuple[int, ...]) -> list[Piece]:
    found = [p]
    for i in places:
        found = [
            x._replace(nodes=(*x.nodes[:i], x.nodes[i]._replace(phi=phi), *x.nodes[i + 1 :]))
            for x in found
            for phi in raised(x.nodes[i].phi)
        ]
    return found


def isserlis(p: Piece, order: int, r: Kernel, shapes: Shapes) -> Iterator[Part]:
    """All pairings of the factors r, the covariances of pairs at orders that sum to ``order``."""
    slots = [i for i, x in enumerate(p.nodes) for _ in range(x.r)]
    bare = p._replace(nodes=tuple(x._replace(r=0) for x in p.nodes))
    for pairs in pairings(slots):
        for orders in weak_compositions(order, len(pairs)):
            parts: list[Part] = [(Rational(1), bare)]
            for (a, b), k in zip(pairs, orders, strict=True):
                kernel = coefficient(r, k, shapes)
                parts = [(c * d, attached(q, a, b, forest)) for c, q in parts for forest, d in kernel.items()]
            yield from parts


def attached(p: Piece, a: int, b: int, forest: Piece) -> Piece:
    """``p`` times a correlation between the times (and samples) ``a`` and ``b`` of ``p``."""
    moved = forest.shifted(fresh(p)).renamed({ROW: p.nodes[a].sample, COL: p.nodes[b].sample})
    row, col = forest.roots
    return grafted(p, {row: a, col: b}, moved)


def averaged(p: Piece) -> Piece:
    """The average over ``u`` taken: derivatives of phi sorted by sample, and the bare forest."""
    found: dict[int, tuple[int, ...]] = dict(p.averages)
    for x in p.nodes:
        if x.phi:
            found[x.sample] = tuple(sorted((*found.get(x.sample, ()), *x.phi)))
    nodes = tuple(x._replace(phi=()) for x in p.nodes)
    return Piece(nodes, p.statics, tuple(sorted(found.items())))


def compositions(n: int) -> list[tuple[int, ...]]:
    """Ordered sums of positive numbers.

    >>> compositions(3)
    [(1, 1, 1), (1, 2), (2, 1), (3,)]
    """
    return [()] if n == 0 else [(k, *rest) for k in range(1, n + 1) for rest in compositions(n - k)]


def weak_compositions(n: int, parts: int) -> list[tuple[int, ...]]:
    """Ordered sums of ``parts`` numbers, zero included.

    >>> weak_compositions(1, 2), weak_compositions(0, 0), weak_compositions(1, 0)
    ([(0, 1), (1, 0)], [()], [])
    """
    if parts == 0:
        return [()] if n == 0 else []
    return [(k, *rest) for k in range(n + 1) for rest in weak_compositions(n - k, parts - 1)]


__all__ = ["Node", "average", "averaged", "isserlis", "price"]
