"""The fields h, z, g and phi(h) of one layer, order by order, from the equations of h and z."""

from __future__ import annotations

from collections.abc import Callable
from math import factorial

from sympy import Rational

from derive.expansion.nonlinear.reading import Edge, Kernel, Site
from derive.expansion.nonlinear.trees import (
    COL,
    ROW,
    Node,
    Piece,
    Series,
    Static,
    Tensor,
    Terms,
    added,
    collected,
    composed,
    convolved,
    grafted,
    product,
    scaled,
)

ONE: Terms = {Piece(): Rational(1)}
PAIR = (Node(-1, ROW), Node(-1, COL))

KERNELS = {"C": "g", "D": "phi"}
"""The kernels in the equations of h and z, and the fields that they act on."""

Forest = tuple[Node, ...]
Shapes = Callable[[str, int], list[Forest]]
"""The forests that multiply the tensors of an order parameter at an order."""


def by_forest(terms: Terms) -> dict[Forest, Terms]:
    """A sum sorted by what depends on time."""
    found: dict[Forest, Terms] = {}
    for p, c in terms.items():
        found.setdefault(p.nodes, {})[p] = c
    return found


def samples_of(shape: tuple[Node, ...]) -> tuple[int, ...]:
    """The samples on which a tensor depends: the row's, the column's if it has one, then the others."""
    return tuple(sorted({x.sample for x in shape}))


def coefficient(kernel: Kernel, n: int, shapes: Shapes) -> Terms:
    """Order n of an order parameter: tensors times forests.  Given data have order 0 only."""
    if kernel.given:
        if n:
            return {}
        known = () if kernel.name == "1" else (Static(Tensor(kernel.name), 0, (ROW, COL)),)
        return {Piece(PAIR, known): Rational(1)}
    return collected(
        (
            Rational(1),
            Piece(shape, (Static(Tensor(kernel.name, n, shape), kernel.shift, samples_of(shape)),)),
        )
        for shape in shapes(kernel.name, n)
    )


class Fields:
    """The coefficients of the fields at one layer, with the kernels' coefficients as far as they are known.

    ``errors`` are the orders at which the error has a coefficient.
    """

    def __init__(self, site: Site, order: int, shapes: Shapes, errors: set[int]) -> None:
        self.site, self.order, self.shapes, self.errors = site, order, shapes, errors
        self.h: Series = [ONE]
        self.z: Series = [{Piece((Node(-1, ROW, r=1),)): Rational(1)}]
        self.moved: Series = [{}]  # h - u
        self.kernels: dict[tuple[str, int], dict[Forest, Terms]] = {}
        for n in range(1, order + 1):
            for name in KERNELS:
                self.kernels[name, n - 1] = self.forests(name, n - 1)
            h, z = self.next("C", n), self.next("D", n)
            self.moved.append(h)
            self.h.append(h)
            self.z.append(z)

    def next(self, name: str, n: int) -> Terms:
        """Order n of h - u (``C``) or of z - r (``D``): a kernel carries one power of gamma0."""
        field = KERNELS[name]
        return added(*[composed(self.kernel(name, k), self.of(field, n - 1 - k)) for k in range(n)])

    def kernel(self, name: str, n: int) -> Terms:
        """Order n of ``C`` or ``D``: a tensor for each forest."""
        return coefficient(Kernel(name), n, lambda _, k: list(self.kernels[name, k]))

    def forests(self, name: str, n: int) -> dict[Forest, Terms]:
        """The forests of order n of ``C`` or ``D``, and what they stand with."""
        return by_forest(self.edges(name, n))

    def edges(self, name: str, n: int) -> Terms:
        """Order n of ``C`` or ``D`` in terms of the order parameters that it is made of."""
        edges = self.site.h if name == "C" else self.site.z
        return added(*[self.edge(e, n) for e in edges])

    def of(self, field: str, n: int) -> Terms:
        """Order n of ``g`` or ``phi``."""
        return self.g(n) if field == "g" else self.phi(0, n)

    def g(self, n: int) -> Terms:
        """``phi'(h) z``."""
        return convolved([self.phi(1, k) for k in range(n + 1)], self.z, n)

    def phi(self, derivative: int, n: int) -> Terms:
        """Order n of a derivative of phi at h: its Taylor series around u."""
        parts: list[Terms] = []
        power: Series = [ONE, *[{} for _ in range(n)]]
        for p in range(n + 1):
            here: Terms = {Piece((Node(-1, ROW, phi=(derivative + p,)),)): Rational(1, factorial(p))}
            if power[n]:
                parts.append(product(here, power[n]))
            power = [convolved(power, self.moved[: n + 1], k) for k in range(n + 1)]
        return added(*parts)

    def edge(self, edge: Edge, n: int) -> Terms:
        """Order n of a kernel: a response, or a correlation remembered with the error."""
        if not edge.memory:
            return coefficient(edge.kernel, n, self.shapes)
        parts: list[Terms] = []
        for m in sorted(self.errors):
            if m <= n:
                known = coefficient(edge.kernel, n - m, self.shapes)
                parts.append(collected((c, remembered(p, m)) for p, c in known.items()))
        return added(*parts)


OPAQUE = -2
"""The order of the error at a node whose kernel is one function of both times, with the error in it."""

BETWEEN: Forest = (Node(-1, ROW), Node(0, COL, error=OPAQUE, marked=True))


class OpaqueFields(Fields):
    """The same with the kernels of higher order as functions of two times, as far as they do not vanish.

    ``shapes`` are those of a solved theory; of order 0 they stay as they are.
    """

    def __init__(self, site: Site, order: int, shapes: Shapes, errors: set[int]) -> None:
        self.solved = shapes

        def seen(name: str, n: int) -> list[Forest]:
            found = shapes(name, n)
            return found if n == 0 else [PAIR] if found else []

        super().__init__(site, order, seen, errors)

    def forests(self, name: str, n: int) -> dict[Forest, Terms]:
        if n == 0:
            return super().forests(name, n)
        edges = self.site.h if name == "C" else self.site.z
        known = any(self.solved(e.kernel.name, n - m) for e in edges for m in self.errors if m <= n)
        return {BETWEEN: {}} if known else {}


def remembered(p: Piece, error: int) -> Piece:
    """A correlation of t and s as a kernel: s is an earlier time that carries the error."""
    earlier = Piece((Node(-1, ROW), Node(0, COL, error=error, marked=True)))
    row, col = p.roots
    return grafted(earlier, {row: 0, col: 1}, p)


def pushed(terms: Terms, source: str) -> Terms:
    """The response to ``r`` or ``u`` at an earlier time or at the same: what is pushed is marked."""
    return collected(
        (c * many, q)
        for p, c in terms.items()
        for i in range(len(p.nodes))
        for many, q in _push(p, i, source)
    )


def _push(p: Piece, i: int, source: str) -> list[tuple[Rational, Piece]]:
    x = p.nodes[i]
    if source == "r":
        options = [(x.r, x._replace(r=x.r - 1, marked=True))] if x.r else []
    else:
        options = [(1, x._replace(phi=phi, marked=True)) for phi in raised(x.phi)]
    names = {x.sample: COL} if x.parent >= 0 else {}
    return [
        (Rational(many), p._replace(nodes=(*p.nodes[:i], new, *p.nodes[i + 1 :])).renamed(names))
        for many, new in options
    ]


def raised(phi: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The product rule: each factor differentiated once more.

    >>> raised((0, 2))
    [(1, 2), (0, 3)]
    """
    return [tuple(sorted((*phi[:j], phi[j] + 1, *phi[j + 1 :]))) for j in range(len(phi))]


__all__ = [
    "BETWEEN",
    "KERNELS",
    "OPAQUE",
    "Fields",
    "Forest",
    "OpaqueFields",
    "Shapes",
    "by_forest",
    "coefficient",
    "pushed",
    "raised",
    "remembered",
    "samples_of",
    "scaled",
]
