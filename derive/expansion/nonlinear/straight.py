"""The bulk of a network with kinks: units that keep the slopes of the start, to the first orders in gamma0.

Such a unit's features are linear in what it moves, so that Taylor series end after the slope; sources move as
in any network (Price's theorem).  What the others do, which cross the kink, is in
:mod:`derive.expansion.nonlinear.kinks`, and comes in here through the kernels:

* ``D_{-1}(t, s)``: with a kink B starts at ``1/gamma0``.  A push of u at one time turns the slopes of units
  that it takes across.  One that lasts from the start only relabels them, so that the sum over s is zero.
* ``D_0(t, s)``: acts on features that rest, so that its sum over s is all that counts.
"""

from __future__ import annotations

from collections.abc import Mapping

from sympy import Rational

from derive.expansion.nonlinear.averaging import average
from derive.expansion.nonlinear.fields import BETWEEN, KERNELS, PAIR, Fields, Forest, pushed
from derive.expansion.nonlinear.laws import OUTPUT
from derive.expansion.nonlinear.reading import Site
from derive.expansion.nonlinear.trees import (
    COL,
    ROW,
    Node,
    Piece,
    Series,
    Static,
    Terms,
    added,
    composed,
    convolved,
    product,
    side_by_side,
)

RESTS = -1
"""The order of D at which its sum over the past is zero."""

REMEMBERED: Forest = (Node(-1, ROW), Node(0, COL, error=0, marked=True))
"""A kernel of order 0 that is a number for each pair of samples, beside ``k(t, s) Delta0(s)``."""


class StraightFields(Fields):
    """Fields of units that keep the slopes of the start.

    ``C`` of order 0 is as given; ``D``, where there is a B, and higher orders are functions of two times.
    """

    def __init__(self, site: Site, order: int, known: Mapping[tuple[str, int], list[Forest]]) -> None:
        self.site, self.order, self.errors = site, order, {0}
        self.shapes = lambda name, n: list(known.get((name, n), []))
        self.kernels = {
            (name, n): {forest: {} for forest in known.get((name, n), [])}
            for name in KERNELS
            for n in range(RESTS, order)
        }
        self.h, self.moved = [{Piece(): Rational(1)}], [{}]
        self.z: Series = [added({Piece((Node(-1, ROW, r=1),)): Rational(1)}, self.next("D", 0))]
        for n in range(1, order + 1):
            h = self.next("C", n)
            self.moved.append(h)
            self.h.append(h)
            self.z.append(self.next("D", n))

    def next(self, name: str, n: int) -> Terms:
        """As for all units; a kernel may start at 1/gamma0."""
        field = KERNELS[name]
        start = RESTS if self.kernels[name, RESTS] else 0
        return added(*[composed(self.kernel(name, k), self.of(field, n - 1 - k)) for k in range(start, n)])

    def phi(self, derivative: int, n: int) -> Terms:
        """No derivative of a slope: the series ends."""
        here: Terms = {Piece((Node(-1, ROW, phi=(derivative,)),)): Rational(1)}
        if n == 0:
            return here
        slope: Terms = {Piece((Node(-1, ROW, phi=(derivative + 1,)),)): Rational(1)}
        return product(slope, self.moved[n]) if derivative == 0 else {}


Coefficients = dict[tuple[str, int], Terms]


def straight(site: Site) -> Coefficients:
    """The bulk's laws: Phi at order 2, G at 1; with several layers A at 1, B at -1 and 0, f at 1 as well.

    ``C_1`` in A and f is what the layer below hands on; B at 0 is meant summed over s.

    >>> from derive.expansion.nonlinear.reading import read
    >>> from derive.theory import mean_field
    >>> from derive.program import L, mlp
    >>> laws = straight(read(mean_field(mlp(L, "relu"))))
    >>> {key: len(terms) for key, terms in laws.items()}
    {('Phi', 2): 6, ('G', 1): 3, ('A', 1): 2, ('B', -1): 1, ('B', 0): 2, ('f', 1): 1}
    """
    known: dict[tuple[str, int], list[Forest]] = {("C", 0): [REMEMBERED], ("D", 0): [REMEMBERED]}
    for kernel, orders in ((site.u, (0, 2)), (site.r, (0, 1))):
        known |= {(kernel.name, n): [PAIR] for n in orders if not kernel.given}
    deep = site.backward is not None
    if deep:
        known |= {("C", 1): [BETWEEN], ("D", RESTS): [BETWEEN], ("D", 0): [BETWEEN]}
    fields = StraightFields(site, 2, known)
    phi, g = [fields.phi(0, n) for n in range(3)], [fields.g(n) for n in range(2)]

    def mean(series: Series, n: int) -> Terms:
        return average(series, n, site.u, site.r, fields.shapes)

    def pair(series: Series, n: int) -> Terms:
        return mean([convolved(series, series, k, side_by_side) for k in range(n + 1)], n)

    found = {("Phi", 2): pair(phi, 2), ("G", 1): pair(g, 1)}
    if deep:
        found["A", 1] = mean([pushed(e, "r") for e in phi], 2)
        for n in (RESTS, 0):
            found["B", n] = mean([pushed(e, "u") for e in g], n + 1)
        # beyond the last layer is no B, and r does not move
        end = {key: x for key, x in known.items() if key not in (("D", RESTS), (site.r.name, 1))}
        last = StraightFields(site, 2, end | {("D", 0): [REMEMBERED]})
        series = [convolved([last.phi(0, k) for k in range(n + 1)], last.z, n) for n in range(3)]
        found[OUTPUT, 1] = average(series, 2, site.u, site.r, last.shapes)
    return {key: _turning(terms, summed=key == ("B", 0)) for key, terms in found.items()}


def _turning(terms: Terms, summed: bool) -> Terms:
    """Without what ``D_{-1}`` makes of features that rest: its sum over the past is zero."""

    def rests(p: Piece) -> bool:
        for i, x in enumerate(p.nodes):
            kernel = next(
                (y for y in p.statics if y.tensor.order == RESTS and y.samples[1] == x.sample), None
            )
            leaf = not p.children()[i] and sum(x.sample in y.samples for y in p.statics if is_moving(y)) == 1
            if kernel and leaf and (summed or not x.marked):
                return True
        return False

    return {p: c for p, c in terms.items() if not rests(p)}


def is_moving(x: Static) -> bool:
    """Is it a function of two times?"""
    return x.tensor.shape == BETWEEN or (x.tensor.shape == PAIR and x.tensor.order != 0)


__all__ = ["REMEMBERED", "RESTS", "Coefficients", "StraightFields", "is_moving", "straight"]
