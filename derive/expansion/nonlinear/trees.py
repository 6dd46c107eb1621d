"""Coefficients of single-site fields as decorated trees, one node for each time.

A term of the expansion of ``h_mu(t)`` is a product of fields at the present and at earlier times. The *root*
of its tree is the time ``t``. Every other node is an earlier time ``t'`` that is summed over with the weight
``k(t, t') Delta_alpha(t')``, where t is the time of its parent. The factors at one time belong to one sample:
derivatives of phi at ``u_alpha``, and powers of ``r_alpha``. Numbers that depend on samples only
(``statics``) are factors in front. No other factors occur because the sources do not move at order 0.

:class:`Fields` gives the terms of h, z, g and phi(h) from the equations of h and z. :func:`average` averages
their products over the sources, whose covariances also depend on gamma0. :func:`solved_laws` gives the
recursions over layers that the tensors obey, order by order. The forests of an order parameter at an order
are found by iteration: the search begins with the values that are given at the ends of the network, and the
equations of one layer are used until no new forests appear. An order without forests vanishes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations
from math import factorial
from typing import Any, NamedTuple

from sympy import Rational, S

from derive.calculus.sums import gathered
from derive.calculus.symbols import L
from derive.errors import NotApplicable
from derive.expansion.nonlinear.single_site import Edge, Neighbour, Site
from derive.show.summary import Summarised

ROW, COL, BOUND = 0, 1, 2
"""Numbers of samples: that of the row, that of the column, and from BOUND on those summed over."""

PERMUTED = 5
"""With more summed samples than this, terms are not brought to a common labelling."""


class Node(NamedTuple):
    """Node of a tree: one time, and the factors of a product at this time, which belong to one sample.

    ``parent`` is the position of the parent node, a later time (-1 for a root). ``sample`` is the number of
    the sample: 0 for the row, 1 for the column, and higher ones are summed over. ``error`` is the order of
    the error in the weight of the sum over this time (-1 for none, -2 if the weight is part of an undefined
    function of two times). ``phi`` are the orders of the derivatives of phi at u, and ``r`` is the power of
    r. ``marked`` is true for the time at which a source is perturbed.
    """

    parent: int
    sample: int
    error: int = -1
    phi: tuple[int, ...] = ()
    r: int = 0
    marked: bool = False


Forest = tuple[Node, ...]


class ForestCoefficient(NamedTuple):
    """Key of a tensor: the factor of the forest ``shape`` in order ``order`` of the order parameter ``name``.

    A forest is an iterated sum over times. The tensor is a number for each choice of samples and each layer.
    """

    name: str
    order: int = 0
    shape: Forest = ()

    @property
    def moves(self) -> bool:
        """Whether the tensor is written as an unexpanded function of two times, not as a number."""
        return self.shape == BETWEEN or (self.shape == PAIR and self.order != 0)


PAIR: Forest = (Node(-1, ROW), Node(-1, COL))
"""Two unconnected times; its coefficient is a number, or a function of both times."""

OPAQUE = -2
"""Value of ``Node.error`` for a time whose kernel, with the error in it, is one function of both times."""

BETWEEN: Forest = (Node(-1, ROW), Node(0, COL, error=OPAQUE, marked=True))
"""A kernel that is one function of both times."""


class StaticTensor(NamedTuple):
    """Factor of a product: a tensor at the layer ``ell + shift``, for the samples with the given numbers."""

    tensor: ForestCoefficient
    shift: int
    samples: tuple[int, ...]


class Piece(NamedTuple):
    """One product in the nonlinear expansion: tensors, Gaussian averages, and a forest of times.

    ``nodes`` are times, with the factors at each time. The product is a function of the times of the roots
    and of the marked node; all other times are summed over. ``statics`` are tensors, numbers that depend on
    the layer and on samples. ``averages`` are pairs (sample number, orders of the derivatives of phi at the
    source of this sample); together they are one average over the sources.
    """

    nodes: Forest = (Node(-1, ROW),)
    statics: tuple[StaticTensor, ...] = ()
    averages: tuple[tuple[int, tuple[int, ...]], ...] = ()

    @property
    def roots(self) -> list[int]:
        """Positions in ``nodes`` of the roots, the latest times of the product; they have no parent."""
        return [i for i, x in enumerate(self.nodes) if x.parent < 0]

    def labels(self) -> set[int]:
        """Return the numbers of all samples that occur in the product's times, tensors and averages."""
        labels = {x.sample for x in self.nodes} | {i for i, _ in self.averages}
        return labels.union(*[s.samples for s in self.statics])

    def renamed(self, names: Mapping[int, int]) -> Piece:
        """Return the product with samples renumbered by ``names``, from old to new numbers.

        Samples that are not in ``names`` keep their numbers.
        """
        if not names:
            return self
        return Piece(
            tuple(x._replace(sample=names.get(x.sample, x.sample)) for x in self.nodes),
            tuple(s._replace(samples=tuple(names.get(i, i) for i in s.samples)) for s in self.statics),
            tuple((names.get(i, i), orders) for i, orders in self.averages),
        )

    def shifted(self, by: int) -> Piece:
        """Return the product with the numbers of its summed samples (2 and higher) increased by ``by``."""
        return self.renamed({i: i + by for i in self.labels() if i >= BOUND})

    def changed(self, i: int, **fields: Any) -> Piece:
        """Return the product with the given fields of its node (time) number i replaced."""
        return self._replace(nodes=(*self.nodes[:i], self.nodes[i]._replace(**fields), *self.nodes[i + 1 :]))

    def children(self) -> dict[int, list[int]]:
        """Return the positions of the children (next earlier times) of each node, of roots at the key -1."""
        children: dict[int, list[int]] = {i: [] for i in range(-1, len(self.nodes))}
        for i, x in enumerate(self.nodes):
            children[x.parent].append(i)
        return children


Terms = dict[Piece, Rational]
"""A sum of products with their coefficients, none of them zero."""

TermsByOrder = list[Terms]
"""One sum for each power of gamma0."""


def _order(x: Node) -> tuple[object, ...]:
    """Return the sort key of a node (a time with its factors) among the children of one parent."""
    return x.error, x.phi, x.r, x.marked, x.sample


def _sorted(p: Piece) -> Piece:
    """Return a product of the expansion with its nodes (times) and factors in a standard order.

    The numbers of samples stay the same.
    """
    children = p.children()

    def nested(i: int) -> tuple[object, ...]:
        return (*_order(p.nodes[i]), tuple(sorted(map(nested, children[i]))))

    nodes: list[Node] = []

    def walk(i: int, parent: int) -> None:
        here = len(nodes)
        nodes.append(p.nodes[i]._replace(parent=parent, phi=tuple(sorted(p.nodes[i].phi))))
        for j in sorted(children[i], key=nested):
            walk(j, here)

    # The roots of the trees are ordered by their samples, so that the root with the sample of the row comes
    # first.
    for i in sorted(children[-1], key=lambda i: p.nodes[i].sample):
        walk(i, -1)
    return Piece(tuple(nodes), tuple(sorted(map(_symmetric, p.statics))), tuple(sorted(p.averages)))


CORRELATIONS = frozenset({"Phi", "G", "K_x"})
"""Symmetric order parameters, ``X_mu,alpha(t, s) = X_alpha,mu(s, t)``; one of two equal tensors is used."""


def _symmetric(s: StaticTensor) -> StaticTensor:
    """Return a tensor, or the equal one with row and column exchanged, whichever comes first in sort order.

    Only tensors of symmetric order parameters (Phi, G and the kernel of the data) are exchanged.
    """
    if s.tensor.name not in CORRELATIONS:
        return s
    shape, places = mirrored(s.tensor.shape)
    other = StaticTensor(s.tensor._replace(shape=shape), s.shift, tuple(s.samples[i] for i in places))
    return min(s, other)


def oriented(x: ForestCoefficient) -> tuple[ForestCoefficient, tuple[int, ...]]:
    """Return (tensor, positions): of two tensors that are equal by symmetry, the one that is used.

    A tensor has one argument for each sample of its forest, and the two differ in the order of the samples.
    ``positions[i]`` is the position in ``x`` of the i-th sample of the returned tensor.
    """
    samples = samples_of(x.shape)
    used = _symmetric(StaticTensor(x, 0, samples))
    return used.tensor, tuple(samples.index(i) for i in used.samples)


@lru_cache(maxsize=10_000)
def mirrored(shape: Forest) -> tuple[Forest, tuple[int, ...]]:
    """Return (forest, positions): a forest of times with the samples of row and column exchanged.

    Summed samples may get other numbers: ``positions[i]`` is the position among the sorted samples of
    ``shape`` of the i-th sample of the returned forest.
    """
    if not shape:
        return shape, (COL, ROW)
    old = sorted({x.sample for x in shape} | {ROW, COL})
    bound = [i for i in old if i >= BOUND]
    candidates: list[tuple[tuple[object, ...], Forest, tuple[int, ...]]] = []
    for new in permutations(bound):
        names = {ROW: COL, COL: ROW, **dict(zip(bound, new, strict=True))}
        piece, back = _sorted(Piece(shape).renamed(names)), {v: k for k, v in names.items()}
        candidates.append((_key(piece), piece.nodes, tuple(old.index(back[i]) for i in old)))
    _, nodes, places = min(candidates)
    return nodes, places


def _key(p: Piece) -> tuple[object, ...]:
    """Return the sort key of a product of the expansion: its nodes (times), tensors and averages.

    Equal products that differ in the numbers of summed samples have different keys; :func:`standard` uses the
    product with the smallest one.
    """
    nodes = tuple((x.parent, *_order(x)) for x in p.nodes)
    return nodes, p.statics, p.averages


@lru_cache(maxsize=200_000)
def standard(p: Piece) -> Piece:
    """Return a product of the expansion in a standard form, the same for equal products.

    Nodes (times) are sorted and summed samples renumbered. Products with more than 5 summed samples are not
    compared in all numberings, so that equal ones may stay different.
    """
    bound = sorted(i for i in p.labels() if i >= BOUND)
    fresh = range(BOUND, BOUND + len(bound))
    orders = permutations(fresh) if len(bound) <= PERMUTED else iter([tuple(fresh)])
    return min((_sorted(p.renamed(dict(zip(bound, o, strict=True)))) for o in orders), key=_key)


def collected(parts: Iterable[tuple[Rational, Piece]]) -> Terms:
    """Return a sum of products as a dictionary to coefficients, from (coefficient, product) pairs.

    Products that are equal up to the names of summed samples are added, if :func:`standard` makes them equal.
    """
    return gathered((standard(p), c) for c, p in parts)


def added(*xs: Terms) -> Terms:
    """Return the sum of several sums of products, each a dictionary from products to coefficients."""
    return collected((c, p) for x in xs for p, c in x.items())


def grafted(p: Piece, at: Mapping[int, int], q: Piece) -> Piece:
    """Return the product ``p`` times the product ``q``, with some times of both identified.

    A product contains trees whose nodes are times. ``at`` maps roots of ``q`` to nodes of ``p`` that stand
    for the same time: their factors are joined. The other nodes of ``q`` are added.
    """
    nodes = list(p.nodes)
    place: dict[int, int] = {}
    for i, x in enumerate(q.nodes):
        if i in at:
            place[i] = at[i]
            old = nodes[at[i]]
            nodes[at[i]] = old._replace(phi=tuple(sorted((*old.phi, *x.phi))), r=old.r + x.r)
        else:
            place[i] = len(nodes)
            nodes.append(x._replace(parent=place[x.parent]))
    return Piece(tuple(nodes), p.statics + q.statics, p.averages + q.averages)


def fresh(p: Piece) -> int:
    """Return the number to add to another product's summed samples to make them differ from those of ``p``.

    A product has numbered samples: 0 for the row, 1 for the column, and from 2 on those summed over. The
    result is the largest number of a summed sample in ``p`` minus 1, or 0 if ``p`` has none.
    """
    return max((i for i in p.labels() if i >= BOUND), default=BOUND - 1) - BOUND + 1


def product(a: Terms, b: Terms) -> Terms:
    """Return the product of two fields at the same sample and time, each a sum of products."""
    return collected(
        (c * d, grafted(p, {0: 0}, q.shifted(fresh(p)))) for p, c in a.items() for q, d in b.items()
    )


def side_by_side(a: Terms, b: Terms) -> Terms:
    """Return the product of field ``a`` at (row sample, t) and field ``b`` at (column sample, s).

    Fields are sums of products, dictionaries from products to coefficients.
    """

    def pair(p: Piece, q: Piece) -> Piece:
        moved = q.shifted(fresh(p)).renamed({ROW: COL})
        size = len(p.nodes)
        nodes = tuple(x._replace(parent=x.parent if x.parent < 0 else x.parent + size) for x in moved.nodes)
        return Piece(p.nodes + nodes, p.statics + moved.statics)

    return collected((c * d, pair(p, q)) for p, c in a.items() for q, d in b.items())


def composed(kernel: Terms, field: Terms) -> Terms:
    """Return ``sum over s and samples of kernel(t, s) field(s)`` as a sum of products.

    In the products of ``kernel`` the earlier time s is the marked node; the factors of ``field`` are put
    there. Both arguments are dictionaries from products to coefficients.
    """

    def one(p: Piece, q: Piece) -> Piece:
        place = next(i for i, x in enumerate(p.nodes) if x.marked)
        label = p.nodes[place].sample
        # If the marked node has the sample of the column of the kernel, this sample is now summed over, and
        # gets a number that the product p does not contain.
        if label == COL:
            label = fresh(p) + BOUND
            p = p.renamed({COL: label})
        inside = q.shifted(fresh(p)).renamed({ROW: label})
        return grafted(p.changed(place, marked=False), {0: place}, inside)

    return collected((c * d, one(p, q)) for p, c in kernel.items() for q, d in field.items())


def convolved(
    a: TermsByOrder, b: TermsByOrder, n: int, combine: Callable[[Terms, Terms], Terms] = product
) -> Terms:
    """Return order n of the product of two power series, ``sum_k a_k b_(n-k)``.

    Each order is a sum of products, a dictionary to coefficients; ``combine(a_k, b_m)`` multiplies two of
    them.
    """
    return added(*[combine(a[k], b[n - k]) for k in range(n + 1) if a[k] and b[n - k]])


# -- fields --------------------------------------------------------------------------------------------------

ONE: Terms = {Piece(): Rational(1)}
KERNELS = {"C": "g", "D": "phi"}
"""The kernels in the equations of h and z, and the fields that they act on."""

LOWEST = -1
"""Lowest order at which a kernel may begin: D has order -1 if slopes of phi jump."""

Shapes = Callable[[str, int], list[Forest]]
"""Function from the name of an order parameter and an order to the forests that multiply its tensors."""


def by_forest(terms: Terms) -> dict[Forest, Terms]:
    """Group the terms of a sum of products by their forest, the part that depends on time.

    ``terms`` maps products to coefficients; the result maps each forest to the terms that contain it.
    """
    groups: dict[Forest, Terms] = {}
    for p, c in terms.items():
        groups.setdefault(p.nodes, {})[p] = c
    return groups


def leads(forest: Forest, i: int) -> bool:
    """Return whether node i of a forest is the perturbed time or an ancestor of it, which is a later time."""
    place = next((j for j, x in enumerate(forest) if x.marked), -1)
    while place >= 0 and place != i:
        place = forest[place].parent
    return place == i


def samples_of(shape: Forest) -> tuple[int, ...]:
    """Return the numbers of a forest's samples: 0 (row), 1 (column, if any), then summed ones."""
    return tuple(sorted({x.sample for x in shape}))


def coefficient(kernel: Neighbour, n: int, shapes: Shapes) -> Terms:
    """Return order n of an order parameter as a sum over forests, each times a tensor.

    A forest is a sum over times, a tensor a number for each choice of samples. ``shapes(name, n)`` lists the
    forests that occur. Data have order 0 only.
    """
    if kernel.given:
        if n:
            return {}
        known = () if kernel.name == "1" else (StaticTensor(ForestCoefficient(kernel.name), 0, (ROW, COL)),)
        return {Piece(PAIR, known): Rational(1)}
    return collected(
        (
            Rational(1),
            Piece(
                shape,
                (StaticTensor(ForestCoefficient(kernel.name, n, shape), kernel.shift, samples_of(shape)),),
            ),
        )
        for shape in shapes(kernel.name, n)
    )


class Fields:
    """Series in gamma0 of the fields h, z, g and phi(h) of one layer; each order is a sum of products.

    The fields are computed from their equations in ``site``, up to ``order``. ``shapes(name, n)`` lists the
    forests (iterated sums over times) in order n of an order parameter. ``errors`` are the orders in gamma0
    at which the error does not vanish. ``moved`` is the series of h minus its source u.
    """

    def __init__(self, site: Site, order: int, shapes: Shapes, errors: set[int]) -> None:
        self.site, self.order, self.shapes, self.errors = site, order, shapes, errors
        self.moved: TermsByOrder = []  # series of h - u, the change of the field h by its memory
        self.h: TermsByOrder = []
        self.z: TermsByOrder = []
        self.kernels: dict[tuple[str, int], dict[Forest, Terms]] = {}
        for n in range(order + 1):
            for name in KERNELS:
                self.kernels[name, n + LOWEST] = self.forests(name, n + LOWEST)
            self.moved.append(self.next("C", n))
            self.h.append(added(self.moved[n], {} if n else ONE))
            self.z.append(added(self.next("D", n), {} if n else {Piece((Node(-1, ROW, r=1),)): Rational(1)}))

    def next(self, name: str, n: int) -> Terms:
        """Return order n in gamma0 of h minus its source for ``C``, or of z minus its source for ``D``.

        It is ``sum_k kernel_k field_(n-1-k)``, because the kernel (C in the equation of h, D in that of z) is
        multiplied by gamma0. The result is a sum of products.
        """
        orders = [k for k in range(LOWEST, n) if self.kernels[name, k]]
        return added(*[composed(self.kernel(name, k), self.of(KERNELS[name], n - 1 - k)) for k in orders])

    def kernel(self, name: str, n: int) -> Terms:
        """Return order n in gamma0 of the kernel ``name``, C in the equation of h or D in that of z.

        It is a sum over its forests (iterated sums over times), each times one tensor that depends on
        samples.
        """
        return coefficient(Neighbour(name), n, lambda _, k: list(self.kernels[name, k]))

    def forests(self, name: str, n: int) -> dict[Forest, Terms]:
        """Return the forests (iterated sums over times) in order n of the kernel ``name``, C of h or D of z.

        The value of each forest is the sum of products of tensors that multiply it.
        """
        return by_forest(added(*[self.edge(e, n) for e in self.site.edges(name)]))

    def of(self, field: str, n: int) -> Terms:
        """Return order n in gamma0 of ``g = phi'(h) z`` or of ``phi(h)`` as a sum of products.

        ``field`` is "g" or "phi".
        """
        return self.g(n) if field == "g" else self.phi(0, n)

    def g(self, n: int) -> Terms:
        """Return order n in gamma0 of the field ``g = phi'(h) z`` as a sum of products with coefficients."""
        return convolved([self.phi(1, k) for k in range(n + 1)], self.z, n)

    def phi(self, derivative: int, n: int) -> Terms:
        """Return order n in gamma0 of phi at h, or of its derivative, as a sum of products.

        ``derivative`` is the order of the derivative by h, 0 for phi. The result is found from the Taylor
        series around the source u of h.
        """
        parts: list[Terms] = []
        power: TermsByOrder = [ONE, *[{} for _ in range(n)]]
        for p in range(n + 1):
            here: Terms = {Piece((Node(-1, ROW, phi=(derivative + p,)),)): Rational(1, factorial(p))}
            if power[n]:
                parts.append(product(here, power[n]))
            power = [convolved(power, self.moved[: n + 1], k) for k in range(n + 1)]
        return added(*parts)

    def edge(self, edge: Edge, n: int) -> Terms:
        """Return order n in gamma0 of one term in the kernel of h or z, as a sum of products.

        The term is a response, or a correlation times the error signal.
        """
        if not edge.memory:
            return coefficient(edge.kernel, n, self.shapes)
        parts: list[Terms] = []
        for m in sorted(self.errors):
            if m <= n:
                known = coefficient(edge.kernel, n - m, self.shapes)
                parts.append(collected((c, remembered(p, m)) for p, c in known.items()))
        return added(*parts)


class OpaqueFields(Fields):
    """Fields of one layer in which kernels of order 1 and higher stay undefined functions of two times.

    ``shapes`` lists the forests (iterated sums over times) of a solved theory by order parameter and order;
    an empty list means that the order vanishes. Kernels of order 0 are written out.
    """

    def __init__(self, site: Site, order: int, shapes: Shapes, errors: set[int]) -> None:
        self.solved = shapes

        def seen(name: str, n: int) -> list[Forest]:
            """Return the forests in order n of an order parameter, which are iterated sums over times.

            There are none if the order vanishes. At orders above 0 there is a single one, which stands for an
            undefined function of two times.
            """
            forests = shapes(name, n)
            return forests if n == 0 else [PAIR] if forests else []

        super().__init__(site, order, seen, errors)

    def forests(self, name: str, n: int) -> dict[Forest, Terms]:
        """Return the forests (sums over times) in order n of the kernel ``C`` or ``D``.

        An order other than 0 has one forest, which stands for an undefined function of two times, and no
        terms; it has none if the order vanishes.
        """
        if n == 0:
            return super().forests(name, n)
        edges = self.site.edges(name)
        known = any(self.solved(e.kernel.name, n - m) for e in edges for m in self.errors if m <= n)
        return {BETWEEN: {}} if known else {}


def remembered(p: Piece, error: int) -> Piece:
    """Return a correlation X(t, s) times the error as a kernel, in which s is an earlier summed time.

    ``p`` is one product in X, and ``error`` the order in gamma0 of the error at time s. The node of s is
    marked.
    """
    earlier = Piece((Node(-1, ROW), Node(0, COL, error=error, marked=True)))
    row, col = p.roots
    return grafted(earlier, {row: 0, col: 1}, p)


def source_derivative(terms: Terms, source: str) -> Terms:
    """Return the derivative of a field by its source ``r`` or ``u`` at an earlier or equal time.

    ``terms`` is the field as a sum of products. In each product of the result the node of the perturbed time
    is marked. If that time is an earlier one, its sample becomes that of the column.
    """
    return collected(
        (c * many, q)
        for p, c in terms.items()
        for i in range(len(p.nodes))
        for many, q in _node_derivatives(p, i, source)
    )


def _node_derivatives(p: Piece, i: int, source: str) -> Iterator[tuple[Rational, Piece]]:
    """Yield (factor, product): terms of the derivative of a product by the source ``r`` or ``u`` at one time.

    i is the position of the node of this time.
    """
    x = p.nodes[i]
    names = {x.sample: COL} if x.parent >= 0 else {}
    if source == "u":
        yield from ((S.One, p.changed(i, phi=phi, marked=True).renamed(names)) for phi in raised(x.phi))
    elif x.r:
        yield Rational(x.r), p.changed(i, r=x.r - 1, marked=True).renamed(names)


def raised(phi: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the terms of the derivative of ``phi^(a)(u) phi^(b)(u) ...`` by u, with (a, b, ...) = ``phi``.

    Each term is a tuple of orders in which one is raised by one.
    """
    return [tuple(sorted((*phi[:j], phi[j] + 1, *phi[j + 1 :]))) for j in range(len(phi))]


# -- averages ------------------------------------------------------------------------------------------------

WeightedProduct = tuple[Rational, Piece]
"""Product and its coefficient."""


def average(series: TermsByOrder, n: int, u: Neighbour, r: Neighbour, shapes: Shapes) -> Terms:
    """Return order n of the average of a series of products over the Gaussian sources u and r.

    ``series[k]`` is order k in gamma0. ``u`` and ``r`` name the order parameters that are the covariances of
    the sources, and ``shapes(name, n)`` lists the forests in order n of these. By Price's theorem the change
    dPhi of the covariance of u from its value at gamma0 = 0 acts as
    ``<F> -> <exp(1/2 sum dPhi d^2/du du) F>``. The source r occurs in powers only, and Isserlis' theorem
    pairs them with the full covariance. Sources at order 0 do not depend on time.
    """

    def parts() -> Iterator[WeightedProduct]:
        """Yield (coefficient, product) for each term of the averaged series at order n."""
        for k, terms in enumerate(series[: n + 1]):
            for p, c in terms.items():
                for used in range(n - k + 1):
                    for d, q in price(p, used, u, shapes):
                        for e, v in isserlis(q, n - k - used, r, shapes):
                            yield c * d * e, averaged(v)

    return collected(parts())


def price(p: Piece, order: int, u: Neighbour, shapes: Shapes) -> Iterator[WeightedProduct]:
    """Yield (factor, product): corrections to the average of a product p, as the covariance of u changes.

    u is the Gaussian source of h, and its covariance the order parameter that ``u`` names. By Price's theorem
    a change of the covariance adds second derivatives by u. The orders in gamma0 of the changes add up to
    ``order``; for order 0 only p itself is yielded. ``shapes(name, n)`` lists the forests of the covariance.
    """
    if u.given and order:
        return
    for orders in (x for many in range(order + 1) for x in compositions(order, many, 1)):
        parts: list[WeightedProduct] = [(Rational(1, factorial(len(orders)) * 2 ** len(orders)), p)]
        for k in orders:
            kernel = coefficient(u, k, shapes)
            parts = [(c * d, q) for c, x in parts for d, q in _moved(x, kernel)]
        yield from parts


def _moved(p: Piece, kernel: Terms) -> Iterator[WeightedProduct]:
    """Yield the terms of ``sum_{t, s} dPhi(t, s) d^2 p / du(t) du(s)`` as (coefficient, product).

    ``kernel`` is dPhi, the change of the covariance of the source u, as a sum of products.
    """
    for a in range(len(p.nodes)):
        for once in (p.changed(a, phi=phi) for phi in raised(p.nodes[a].phi)):
            for b in range(len(p.nodes)):
                for twice in (once.changed(b, phi=phi) for phi in raised(once.nodes[b].phi)):
                    yield from ((c, attached(twice, a, b, forest)) for forest, c in kernel.items())


def isserlis(p: Piece, order: int, r: Neighbour, shapes: Shapes) -> Iterator[WeightedProduct]:
    """Yield (coefficient, product): p averaged over its factors r by Isserlis' theorem.

    The factors r are the Gaussian source of z at the nodes (times) of p. Each pair of them is replaced by one
    order in gamma0 of the covariance that ``r`` names, and these orders add up to ``order``.
    ``shapes(name, n)`` lists the forests of the covariance. An odd number of factors r yields nothing.
    """
    slots = [i for i, x in enumerate(p.nodes) for _ in range(x.r)]
    bare = p._replace(nodes=tuple(x._replace(r=0) for x in p.nodes))
    for pairs in pairings(slots):
        for orders in compositions(order, len(pairs)):
            parts: list[WeightedProduct] = [(Rational(1), bare)]
            for (a, b), k in zip(pairs, orders, strict=True):
                kernel = coefficient(r, k, shapes)
                parts = [(c * d, attached(q, a, b, forest)) for c, q in parts for forest, d in kernel.items()]
            yield from parts


def attached(p: Piece, a: int, b: int, forest: Piece) -> Piece:
    """Return the product ``p`` times a correlation between two of its times, the nodes ``a`` and ``b``.

    ``forest`` is the correlation as a product, with one root for each of the two times.
    """
    moved = forest.shifted(fresh(p)).renamed({ROW: p.nodes[a].sample, COL: p.nodes[b].sample})
    row, col = forest.roots
    return grafted(p, {row: a, col: b}, moved)


def averaged(p: Piece) -> Piece:
    """Move the derivatives of phi from the nodes (times) of a product to its Gaussian averages, by sample.

    This is the average over the source u at order 0, which does not depend on time.
    """
    averages: dict[int, tuple[int, ...]] = dict(p.averages)
    for x in p.nodes:
        if x.phi:
            averages[x.sample] = tuple(sorted((*averages.get(x.sample, ()), *x.phi)))
    nodes = tuple(x._replace(phi=()) for x in p.nodes)
    return Piece(nodes, p.statics, tuple(sorted(averages.items())))


def pairings(slots: list[int]) -> Iterator[list[tuple[int, int]]]:
    """Yield all ways to divide the elements into pairs, each as a list of pairs.

    An odd number of elements has no perfect matching; no elements have one, the empty list.
    """
    if not slots:
        yield []
        return
    first, *rest = slots
    for i, other in enumerate(rest):
        for others in pairings(rest[:i] + rest[i + 1 :]):
            yield [(first, other), *others]


def compositions(n: int, parts: int, least: int = 0) -> list[tuple[int, ...]]:
    """Return all tuples of ``parts`` integers, each at least ``least``, whose sum is n."""
    if parts == 0:
        return [()] if n == 0 else []
    return [(k, *rest) for k in range(least, n + 1) for rest in compositions(n - k, parts - 1, least)]


# -- laws ----------------------------------------------------------------------------------------------------

OUTPUT = "f"


@dataclass(frozen=True)
class Law:
    """Recursion over layers of one tensor: ``tensor`` at layer ``ell + shift`` equals ``terms`` at layer ell.

    A tensor is the factor of a forest (an iterated sum over times) in an order parameter. ``terms`` is a sum
    of products.
    """

    tensor: ForestCoefficient
    shift: int
    terms: Terms


@dataclass(frozen=True, repr=False)
class Laws(Summarised):
    """Recursions over layers of all tensors in the order parameters of a theory, up to an order in gamma0.

    A tensor is the factor of a forest, an iterated sum over times. ``site`` are the equations of one layer,
    ``laws`` the recursion of each tensor, and ``errors`` the orders at which the error does not vanish.
    """

    site: Site
    order: int
    laws: dict[ForestCoefficient, Law]
    errors: tuple[int, ...]

    def forests(self, name: str, n: int) -> tuple[Forest, ...]:
        """Return the forests (sums over times) in order n of an order parameter or of the output ``f``.

        The result is empty if the order vanishes.
        """
        return tuple(x.shape for x in self.laws if (x.name, x.order) == (name, n))


class _TreeSearch:
    """Search, order by order in gamma0, for the forests that occur in each order parameter.

    A forest is an iterated sum over times. ``found[name, n]`` maps each forest in order n of an order
    parameter (or of a kernel, or of the output f) to the sum of products that multiplies it.
    """

    def __init__(self, site: Site, order: int) -> None:
        self.site, self.errors = site, {0}
        # The search begins with the order parameters whose given value before the first or after the last
        # layer is not zero, because their coefficient of order 0 is not zero.
        self.found: dict[tuple[str, int], dict[Forest, Terms]] = {
            (name, 0): {PAIR: {}} for (name, _), value in site.bases.items() if value != 0
        }
        for n in range(order + 1):
            self.iterate(n)
            if n and self.found[OUTPUT, n]:
                # Order n of the output is a linear function of order n of the error, Delta_n, plus a
                # remainder. The remainder, which was found above not to vanish, drives Delta_n, so that
                # Delta_n does not vanish.
                self.errors.add(n)
                self.iterate(n)

    def iterate(self, n: int) -> None:
        """Find the forests in order n of all order parameters, by iteration until no new forest appears.

        A forest is an iterated sum over times.
        """
        before = None
        while before != (before := {key: set(x) for key, x in self.found.items()}):
            fields = Fields(self.site, n + 1, lambda name, k: [*self.found.get((name, k), {})], self.errors)
            self.found |= fields.kernels
            for name, terms in order_parameters(fields, n).items():
                self.found[name, n] = by_forest(terms)


def order_parameters(fields: Fields, n: int) -> dict[str, Terms]:
    """Return the coefficient of gamma0^n of each order parameter of a layer and of the output f, by name.

    The averages that define A, B and f are divided by gamma0. Raises :class:`NotApplicable` if one of these
    averages does not vanish at gamma0 = 0, so that 1/gamma0 would remain.
    """
    site = fields.site
    phi = [fields.phi(0, k) for k in range(n + 2)]
    g = [fields.g(k) for k in range(n + 2)]

    def mean(series: TermsByOrder, order: int) -> Terms:
        """Return order ``order`` in gamma0 of the average of a field over the Gaussian sources.

        ``series[k]`` is order k of the field as a sum of products.
        """
        return average(series, order, site.u, site.r, fields.shapes)

    averages = {
        "Phi": mean([convolved(phi, phi, k, side_by_side) for k in range(n + 1)], n),
        "G": mean([convolved(g, g, k, side_by_side) for k in range(n + 1)], n),
    }
    divided = {OUTPUT: [convolved(phi, fields.z, k) for k in range(n + 2)]}
    if site.forward is not None:
        divided["A"] = [source_derivative(x, "r") for x in phi]
    if site.backward is not None:
        divided["B"] = [source_derivative(x, "u") for x in g]
    for name, series in divided.items():
        if mean(series, 0):
            raise NotApplicable(
                f"the quantity {name} is an average divided by gamma0, and this average does not vanish at "
                f"gamma0 = 0, so that {name} has no power series in gamma0"
            )
        averages[name] = mean(series, n + 1)
    return averages


def solved_laws(site: Site, order: int) -> Laws:
    """Return the recursions over layers of all tensors in the order parameters, up to an order in gamma0.

    A tensor is the factor of a forest, an iterated sum over times. ``site`` are the equations of one layer.
    """
    search = _TreeSearch(site, order)
    shifts = {"A": site.forward or 0, "B": site.backward or 0}
    tensors = {
        ForestCoefficient(name, n, forest): terms
        for (name, n), forests in search.found.items()
        for forest, terms in forests.items()
    }
    vanishing = {x for x, terms in tensors.items() if x.name == "D" and all(_beyond(p, site) for p in terms)}
    laws = {}
    for x, terms in tensors.items():
        law = Law(x, shifts.get(x.name, 0), terms)
        if x.name == OUTPUT:  # f is taken at the last layer, where the parts of D from later layers vanish
            kept = {
                p: c
                for p, c in terms.items()
                if not _beyond(p, site) and vanishing.isdisjoint(y.tensor for y in p.statics)
            }
            law = replace(law, terms=kept)
        if law.terms or x.name != OUTPUT:
            laws[x] = law
    return Laws(site, order, laws, tuple(sorted(search.errors)))


def _beyond(p: Piece, site: Site) -> bool:
    """Return whether a product vanishes at the last layer, because of an order parameter beyond that layer.

    This order parameter has a given value there: zero, or any value if the tensor is of order 1 or higher.
    """
    for x in p.statics:
        value = site.bases.get((x.tensor.name, L + x.shift))
        if value == 0 or (value is not None and x.tensor.order > 0):
            return True
    return False
