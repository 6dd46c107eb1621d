"""The recursions over layers that the tensors obey, order by order, found from the equations of one layer.

Which forests an order parameter needs at an order is found by starting from none, as beyond the ends of the
network, and going through the layer until no new ones appear.  An order at which nothing appears vanishes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

from sympy import Rational

from derive.errors import NotApplicable
from derive.expansion.nonlinear.averaging import average
from derive.expansion.nonlinear.fields import PAIR, Fields, Forest, by_forest, pushed
from derive.expansion.nonlinear.reading import Site
from derive.expansion.nonlinear.trees import (
    Series,
    Static,
    Tensor,
    Terms,
    convolved,
    side_by_side,
)
from derive.program.words import L

Averages = tuple[tuple[int, tuple[int, ...]], ...]
OUTPUT = "f"


@dataclass(frozen=True)
class Term:
    """``coefficient * product of tensors * <product of derivatives of phi>``."""

    coefficient: Rational
    statics: tuple[Static, ...]
    averages: Averages


@dataclass(frozen=True)
class Law:
    """``tensor = sum of terms`` at the layer of the average: ``tensor`` itself is at ``ell + shift``."""

    tensor: Tensor
    shift: int
    terms: tuple[Term, ...]


@dataclass
class Laws:
    """All tensors up to an order.  ``errors`` are the orders at which the error has a coefficient."""

    site: Site
    order: int
    found: dict[tuple[str, int], dict[Forest, Terms]] = field(default_factory=dict)
    errors: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.errors.add(0)
        for (name, _), value in self.site.bases.items():
            if value != 0:  # known beyond an end
                self.found[name, 0] = {PAIR: {}}
        for n in range(self.order + 1):
            self.settle(n)
            if n and self.found[OUTPUT, n]:
                # the part of f_n that is there without Delta_n drives it; with no drive there is none
                self.errors.add(n)
                self.settle(n)

    def shapes(self, name: str, n: int) -> list[Forest]:
        """The forests known so far."""
        return list(self.found.get((name, n), {}))

    def settle(self, n: int) -> None:
        """Order n of everything, until no new forests appear."""
        while True:
            before = {key: set(x) for key, x in self.found.items()}
            for name, terms in self.coefficients(n).items():
                self.found[name, n] = by_forest(terms)
            if before == {key: set(x) for key, x in self.found.items()}:
                return

    def coefficients(self, n: int) -> dict[str, Terms]:
        """Order n of every order parameter of the layer, from what is known of the neighbours."""
        fields = Fields(self.site, n + 1, self.shapes, self.errors)
        self.found |= fields.kernels
        return order_parameters(fields, n)

    def laws(self) -> list[Law]:
        """Every tensor's recursion."""
        shifts = {"A": self.site.forward or 0, "B": self.site.backward or 0}
        return [
            Law(
                Tensor(name, n, forest),
                shifts.get(name, 0),
                tuple(Term(c, p.statics, p.averages) for p, c in terms.items()),
            )
            for (name, n), forests in self.found.items()
            for forest, terms in forests.items()
        ]


def order_parameters(fields: Fields, n: int) -> dict[str, Terms]:
    """Order n of the averages that order parameters of a layer, and f, are; A, B and f are divided by gamma0.

    Raises :class:`NotApplicable` where such an average does not begin with a power of gamma0.
    """
    site = fields.site
    phi = [fields.phi(0, k) for k in range(n + 2)]
    g = [fields.g(k) for k in range(n + 2)]

    def mean(series: Series, order: int) -> Terms:
        return average(series, order, site.u, site.r, fields.shapes)

    found = {
        "Phi": mean([convolved(phi, phi, k, side_by_side) for k in range(n + 1)], n),
        "G": mean([convolved(g, g, k, side_by_side) for k in range(n + 1)], n),
    }
    scaled = {OUTPUT: [convolved(phi, fields.z, k) for k in range(n + 2)]}
    if site.forward is not None:
        scaled["A"] = [pushed(x, "r") for x in phi]
    if site.backward is not None:
        scaled["B"] = [pushed(x, "u") for x in g]
    for name, series in scaled.items():
        if mean(series, 0):
            raise NotApplicable(f"{name} does not carry a factor gamma0")
        found[name] = mean(series, n + 1)
    return found


class _Frozen:
    """A site as a key: what the laws depend on."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.key = (site.h, site.z, site.u, site.r, site.forward, site.backward, str(site.bases))

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Frozen) and self.key == other.key


def solved_laws(site: Site, order: int) -> tuple[dict[Tensor, Law], tuple[int, ...]]:
    """The laws of all tensors up to an order, and the orders at which the error has a coefficient."""
    return _laws(_Frozen(site), order)


@lru_cache(maxsize=16)
def _laws(frozen: _Frozen, order: int) -> tuple[dict[Tensor, Law], tuple[int, ...]]:
    site = frozen.site
    found = Laws(site, order)
    laws = {law.tensor: law for law in found.laws()}
    zero = {x for x, law in laws.items() if x.name == "D" and all(_beyond(t, site) for t in law.terms)}
    kept: dict[Tensor, Law] = {}
    for x, law in laws.items():
        if x.name != OUTPUT:
            kept[x] = law
            continue
        # f belongs to the last layer, where some of D is gone
        terms = (
            t for t in law.terms if not _beyond(t, site) and zero.isdisjoint(s.tensor for s in t.statics)
        )
        law = replace(law, terms=tuple(terms))
        if law.terms:
            kept[x] = law
    return kept, tuple(sorted(found.errors))


def _beyond(term: Term, site: Site) -> bool:
    """Does a term vanish at the last layer, since a kernel beyond it is known, and has no such part?"""
    for x in term.statics:
        value = site.bases.get((x.tensor.name, L + x.shift))
        if value == 0 or (value is not None and x.tensor.order > 0):
            return True
    return False


__all__ = ["OUTPUT", "Averages", "Forest", "Law", "Laws", "Term", "order_parameters", "solved_laws"]
