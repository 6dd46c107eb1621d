"""The recursions over layers that the tensors obey, order by order, found from the equations of one layer.

Which forests an order parameter needs at an order is found by starting from none, as beyond the ends of the
network, and going through the layer until no new ones appear.  An order at which nothing appears vanishes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from derive.errors import NotApplicable
from derive.expansion.nonlinear.site import Site
from derive.expansion.nonlinear.trees import (
    PAIR,
    Fields,
    Forest,
    Piece,
    Series,
    Tensor,
    Terms,
    average,
    by_forest,
    convolved,
    pushed,
    side_by_side,
)
from derive.program.words import L

OUTPUT = "f"


@dataclass(frozen=True)
class Law:
    """``tensor = sum of terms`` at the layer of the average: ``tensor`` itself is at ``ell + shift``."""

    tensor: Tensor
    shift: int
    terms: Terms


@dataclass(frozen=True)
class Laws:
    """The recursions of all tensors of a site up to an order, and the orders at which the error has a
    coefficient."""

    site: Site
    order: int
    laws: dict[Tensor, Law]
    errors: tuple[int, ...]

    def forests(self, name: str, n: int) -> tuple[Forest, ...]:
        """The forests of order n of an order parameter (or of ``f``)."""
        return tuple(x.shape for x in self.laws if (x.name, x.order) == (name, n))


class _Search:
    """What appears order by order: ``found[name, n]`` has the terms that stand with each forest."""

    def __init__(self, site: Site, order: int) -> None:
        self.site, self.errors = site, {0}
        # known beyond an end
        self.found: dict[tuple[str, int], dict[Forest, Terms]] = {
            (name, 0): {PAIR: {}} for (name, _), value in site.bases.items() if value != 0
        }
        for n in range(order + 1):
            self.settle(n)
            if n and self.found[OUTPUT, n]:
                # the part of f_n that is there without Delta_n drives it; with no drive there is none
                self.errors.add(n)
                self.settle(n)

    def settle(self, n: int) -> None:
        """Order n of everything in the layer, from the neighbours', until nothing new appears."""
        before = None
        while before != (before := {key: set(x) for key, x in self.found.items()}):
            fields = Fields(self.site, n + 1, lambda name, k: [*self.found.get((name, k), {})], self.errors)
            self.found |= fields.kernels
            for name, terms in order_parameters(fields, n).items():
                self.found[name, n] = by_forest(terms)


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
    divided = {OUTPUT: [convolved(phi, fields.z, k) for k in range(n + 2)]}
    if site.forward is not None:
        divided["A"] = [pushed(x, "r") for x in phi]
    if site.backward is not None:
        divided["B"] = [pushed(x, "u") for x in g]
    for name, series in divided.items():
        if mean(series, 0):
            raise NotApplicable(f"{name} does not carry a factor gamma0")
        found[name] = mean(series, n + 1)
    return found


def solved_laws(site: Site, order: int) -> Laws:
    """The laws of all tensors up to an order."""
    search = _Search(site, order)
    shifts = {"A": site.forward or 0, "B": site.backward or 0}
    tensors = {
        Tensor(name, n, forest): terms
        for (name, n), forests in search.found.items()
        for forest, terms in forests.items()
    }
    gone = {x for x, terms in tensors.items() if x.name == "D" and all(_beyond(p, site) for p in terms)}
    laws = {}
    for x, terms in tensors.items():
        law = Law(x, shifts.get(x.name, 0), terms)
        if x.name == OUTPUT:  # at the last layer, where some of D is gone
            kept = {
                p: c
                for p, c in terms.items()
                if not _beyond(p, site) and gone.isdisjoint(y.tensor for y in p.statics)
            }
            law = replace(law, terms=kept)
        if law.terms or x.name != OUTPUT:
            laws[x] = law
    return Laws(site, order, laws, tuple(sorted(search.errors)))


def _beyond(p: Piece, site: Site) -> bool:
    """Does a term vanish at the last layer, since a kernel beyond it is known, and has no such part?"""
    for x in p.statics:
        value = site.bases.get((x.tensor.name, L + x.shift))
        if value == 0 or (value is not None and x.tensor.order > 0):
            return True
    return False


__all__ = ["OUTPUT", "Law", "Laws", "order_parameters", "solved_laws"]
