"""Coefficients of single-site fields as decorated trees, one node for each time.

A term of the expansion of ``h_mu(t)`` is a product of fields at the present and at earlier times.  Its *root*
is the time ``t``; every other node is an earlier time ``t'`` that is summed over with the weight
``k(t, t') Delta_alpha(t')``, t the time of its parent.  What stands at a time belongs to one sample:
derivatives of phi at ``u_alpha``, and powers of ``r_alpha``.  Numbers that depend on samples only
(``statics``) stand in front.  Since the sources do not move at order 0, this is all that there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import permutations
from typing import NamedTuple

from sympy import Rational, S

ROW, COL, BOUND = 0, 1, 2
"""Samples are numbered: the row's, the column's, and from BOUND on those summed over."""

PERMUTED = 5
"""With more summed samples than this, terms are not brought to a common labelling."""


class Node(NamedTuple):
    """A time: the node that comes after it (-1 for a root), its sample, the order of the error it carries."""

    parent: int
    sample: int
    error: int = -1
    phi: tuple[int, ...] = ()
    r: int = 0
    marked: bool = False


class Tensor(NamedTuple):
    """A number for each choice of samples and each layer: the part of order ``n`` of ``name`` that multiplies
    the forest ``shape`` (in its standard order)."""

    name: str
    order: int = 0
    shape: tuple[Node, ...] = ()


class Static(NamedTuple):
    """A tensor at the layer ``ell + shift``, with its samples."""

    tensor: Tensor
    shift: int
    samples: tuple[int, ...]


class Piece(NamedTuple):
    """A product: numbers that depend on samples, and a forest.  ``averages``: orders of derivatives of phi at
    each sample, already averaged."""

    nodes: tuple[Node, ...] = (Node(-1, ROW),)
    statics: tuple[Static, ...] = ()
    averages: tuple[tuple[int, tuple[int, ...]], ...] = ()

    @property
    def roots(self) -> list[int]:
        """The places of the roots."""
        return [i for i, x in enumerate(self.nodes) if x.parent < 0]

    def labels(self) -> set[int]:
        """All samples that occur."""
        found = {x.sample for x in self.nodes} | {i for i, _ in self.averages}
        return found.union(*[s.samples for s in self.statics])

    def renamed(self, names: Mapping[int, int]) -> Piece:
        """With other samples."""
        if not names:
            return self
        return Piece(
            tuple(x._replace(sample=names.get(x.sample, x.sample)) for x in self.nodes),
            tuple(s._replace(samples=tuple(names.get(i, i) for i in s.samples)) for s in self.statics),
            tuple((names.get(i, i), orders) for i, orders in self.averages),
        )

    def shifted(self, by: int) -> Piece:
        """With the summed samples renamed to higher numbers."""
        return self.renamed({i: i + by for i in self.labels() if i >= BOUND})

    def children(self) -> dict[int, list[int]]:
        """The places of each node's children, those of the roots under -1."""
        found: dict[int, list[int]] = {i: [] for i in range(-1, len(self.nodes))}
        for i, x in enumerate(self.nodes):
            found[x.parent].append(i)
        return found

    def standard(self) -> Piece:
        """The same product, nodes and summed samples in a standard order."""
        bound = sorted(i for i in self.labels() if i >= BOUND)
        fresh = range(BOUND, BOUND + len(bound))
        orders = permutations(fresh) if len(bound) <= PERMUTED else iter([tuple(fresh)])
        return min((_sorted(self.renamed(dict(zip(bound, o, strict=True)))) for o in orders), key=_key)


Terms = dict[Piece, Rational]
"""A sum of products with their coefficients, none of them zero."""

Series = list[Terms]
"""One sum for each power of gamma0."""


def _order(x: Node) -> tuple[object, ...]:
    return x.error, x.phi, x.r, x.marked, x.sample


def _sorted(p: Piece) -> Piece:
    children = p.children()

    def nested(i: int) -> tuple[object, ...]:
        return (*_order(p.nodes[i]), tuple(sorted(map(nested, children[i]))))

    nodes: list[Node] = []

    def walk(i: int, parent: int) -> None:
        here = len(nodes)
        nodes.append(p.nodes[i]._replace(parent=parent, phi=tuple(sorted(p.nodes[i].phi))))
        for j in sorted(children[i], key=nested):
            walk(j, here)

    for i in children[-1]:
        walk(i, -1)
    return Piece(tuple(nodes), tuple(sorted(map(_symmetric, p.statics))), tuple(sorted(p.averages)))


CORRELATIONS = frozenset({"Phi", "G", "K_x"})
"""``X_mu,alpha(t, s) = X_alpha,mu(s, t)``: of two tensors that say the same one is used."""


def _symmetric(s: Static) -> Static:
    if s.tensor.name not in CORRELATIONS:
        return s
    shape, places = mirrored(s.tensor.shape)
    other = Static(s.tensor._replace(shape=shape), s.shift, tuple(s.samples[i] for i in places))
    return min(s, other)


def oriented(x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """The tensor used in place of ``x``, and which of the samples of ``x`` stands at each place of it."""
    own = tuple(sorted({y.sample for y in x.shape}))
    used = _symmetric(Static(x, 0, own))
    return used.tensor, tuple(own.index(i) for i in used.samples)


@lru_cache(maxsize=10_000)
def mirrored(shape: tuple[Node, ...]) -> tuple[tuple[Node, ...], tuple[int, ...]]:
    """The forest with row and column exchanged, and which of the samples stands at each place there."""
    old = sorted({x.sample for x in shape} | {ROW, COL})
    swapped = Piece(shape).renamed({ROW: COL, COL: ROW})
    roots = swapped.roots
    turned = [*swapped.nodes[roots[1] :], *swapped.nodes[: roots[1]]] if len(roots) == 2 else [*shape]
    if not shape:
        return shape, (COL, ROW)
    size = len(shape) - roots[1]
    place = {i: (i - roots[1] if i >= roots[1] else i + size) for i in range(len(shape))}
    nodes = tuple(x._replace(parent=place.get(x.parent, -1)) for x in turned)
    bound = [i for i in old if i >= BOUND]
    found: list[tuple[tuple[object, ...], tuple[Node, ...], tuple[int, ...]]] = []
    for new in permutations(bound):
        names = dict(zip(bound, new, strict=True))
        piece = _sorted(Piece(nodes).renamed(names))
        back = {v: k for k, v in {ROW: COL, COL: ROW, **names}.items()}
        found.append((_key(piece), piece.nodes, tuple(old.index(back[i]) for i in old)))
    best = min(found)
    return best[1], best[2]


def _key(p: Piece) -> tuple[object, ...]:
    nodes = tuple((x.parent, *_order(x)) for x in p.nodes)
    return nodes, p.statics, p.averages


@lru_cache(maxsize=200_000)
def standard(p: Piece) -> Piece:
    """See :meth:`Piece.standard`."""
    return p.standard()


def collected(parts: Iterable[tuple[Rational, Piece]]) -> Terms:
    """Equal products together.

    >>> collected([(Rational(1), Piece()), (Rational(2), Piece())])[Piece()]
    3
    """
    found: Terms = {}
    for c, p in parts:
        p = standard(p)
        found[p] = found.get(p, S.Zero) + c
    return {p: c for p, c in found.items() if c}


def added(*xs: Terms) -> Terms:
    """The sum of sums."""
    return collected((c, p) for x in xs for p, c in x.items())


def scaled(x: Terms, by: Rational) -> Terms:
    """A multiple."""
    return {p: c * by for p, c in x.items()} if by else {}


def merged(a: Node, b: Node) -> Node:
    """Two fields at one time and sample."""
    return a._replace(phi=tuple(sorted((*a.phi, *b.phi))), r=a.r + b.r)


def grafted(p: Piece, at: Mapping[int, int], q: Piece) -> Piece:
    """``p`` times ``q``; ``at`` says which node of ``p`` each root of ``q`` is, by the root's place."""
    nodes = list(p.nodes)
    place: dict[int, int] = {}
    for i, x in enumerate(q.nodes):
        if i in at:
            place[i] = at[i]
            nodes[at[i]] = merged(nodes[at[i]], x)
        else:
            place[i] = len(nodes)
            nodes.append(x._replace(parent=place[x.parent]))
    return Piece(tuple(nodes), p.statics + q.statics, p.averages + q.averages)


def fresh(p: Piece) -> int:
    """By how much another piece's summed samples must be raised so as not to meet those of ``p``."""
    return max((i for i in p.labels() if i >= BOUND), default=BOUND - 1) - BOUND + 1


def product(a: Terms, b: Terms) -> Terms:
    """Two fields of the same sample at the same time."""
    return collected(
        (c * d, grafted(p, {0: 0}, q.shifted(fresh(p)))) for p, c in a.items() for q, d in b.items()
    )


def side_by_side(a: Terms, b: Terms) -> Terms:
    """Two fields at two times, of the row's sample and of the column's."""

    def pair(p: Piece, q: Piece) -> Piece:
        moved = q.shifted(fresh(p)).renamed({ROW: COL})
        size = len(p.nodes)
        nodes = tuple(x._replace(parent=x.parent if x.parent < 0 else x.parent + size) for x in moved.nodes)
        return Piece(p.nodes + nodes, p.statics + moved.statics)

    return collected((c * d, pair(p, q)) for p, c in a.items() for q, d in b.items())


def composed(kernel: Terms, field: Terms) -> Terms:
    """A kernel applied to a field: the field stands at the marked node."""

    def one(p: Piece, q: Piece) -> Piece:
        place = marked(p)
        label = p.nodes[place].sample
        if label == COL:  # from now on summed over
            label = fresh(p) + BOUND
            p = p.renamed({COL: label})
        inside = q.shifted(fresh(p)).renamed({ROW: label})
        nodes = (*p.nodes[:place], p.nodes[place]._replace(marked=False), *p.nodes[place + 1 :])
        return grafted(p._replace(nodes=nodes), {0: place}, inside)

    return collected((c * d, one(p, q)) for p, c in kernel.items() for q, d in field.items())


def marked(p: Piece) -> int:
    """The place of the marked node."""
    return next(i for i, x in enumerate(p.nodes) if x.marked)


def convolved(a: Series, b: Series, n: int, combine: object = product) -> Terms:
    """Order n of the product of two series."""
    assert callable(combine)
    return added(*[combine(a[k], b[n - k]) for k in range(n + 1) if a[k] and b[n - k]])


def pairings(slots: list[int]) -> Iterator[list[tuple[int, int]]]:
    """All ways to pair.

    >>> [len(list(pairings(list(range(n))))) for n in (0, 1, 2, 4)]
    [1, 0, 1, 3]
    """
    if not slots:
        yield []
        return
    first, *rest = slots
    for i, other in enumerate(rest):
        for others in pairings(rest[:i] + rest[i + 1 :]):
            yield [(first, other), *others]


__all__ = [
    "BOUND",
    "COL",
    "CORRELATIONS",
    "ROW",
    "Node",
    "Piece",
    "Series",
    "Static",
    "Tensor",
    "Terms",
    "added",
    "collected",
    "composed",
    "convolved",
    "fresh",
    "grafted",
    "marked",
    "oriented",
    "pairings",
    "product",
    "scaled",
    "side_by_side",
    "standard",
]
