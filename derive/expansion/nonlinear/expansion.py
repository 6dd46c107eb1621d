"""The nonlinear theory expanded in gamma0, with the layer and the depth symbolic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from sympy import Lambda

from derive.expansion.nonlinear.fields import Forest
from derive.expansion.nonlinear.laws import OUTPUT, Law, Laws, Term
from derive.expansion.nonlinear.reading import Site, read
from derive.expansion.nonlinear.trees import Tensor
from derive.meanfield.theory import Theory
from derive.program.expressions import L


@dataclass(frozen=True)
class NonlinearExpansion:
    """The order parameters of a nonlinear theory as power series in gamma0.

    Each is a sum of tensors, which depend on samples and the layer, times forests, which depend on time:
    iterated sums (integrals) of the error.  ``laws[tensor]`` is the tensor's recursion over layers, in which
    averages over the static sources of derivatives of phi stand; ``errors`` are the orders at which the error
    has a coefficient.  Compare selfconsistent2023 (P.9)-(P.26).
    """

    theory: Theory
    order: int
    site: Site
    laws: dict[Tensor, Law]
    errors: tuple[int, ...]

    @property
    def activation(self) -> Lambda:
        """phi, a function of one variable."""
        return self.site.activation

    def forests(self, name: str, n: int) -> tuple[Forest, ...]:
        """The forests of order n of an order parameter (or of ``f``)."""
        return tuple(x.shape for x in self.laws if (x.name, x.order) == (name, n))

    def truncate(self, n: int) -> NonlinearExpansion:
        """The series up to gamma0^n only.  Raises IndexError beyond ``order``.

        >>> from sympy import Function
        >>> from derive.meanfield import mean_field
        >>> from derive.program import L, mlp
        >>> expand_nonlinear(mean_field(mlp(L, Function("phi"))), 2).truncate(0).order
        0
        """
        if not 0 <= n <= self.order:
            raise IndexError(f"n = {n}: the series is known for orders 0 to {self.order}")
        laws = {x: law for x, law in self.laws.items() if x.order <= n}
        return replace(self, order=n, laws=laws, errors=tuple(m for m in self.errors if m <= n))


def expand_nonlinear(theory: Theory, order: int = 2) -> NonlinearExpansion:
    """Expand a theory with a nonlinearity in gamma0 up to ``order``.

    phi may be a symbol, ``Function("phi")``, or known; the averages then hold for a phi with as many
    derivatives as they name.  Odd orders are computed and vanish.

    Raises :class:`~derive.meanfield.reductions.projection.NotApplicable` for a theory of another form (the
    reason says which part), ValueError for a negative order.

    >>> from sympy import Function
    >>> from derive.meanfield import mean_field
    >>> from derive.program import L, mlp
    >>> series = expand_nonlinear(mean_field(mlp(L, Function("phi"))), 2)
    >>> series.errors, [len(series.forests("Phi", n)) for n in range(3)]
    ((0, 2), [1, 0, 5])
    """
    if order < 0:
        raise ValueError(f"order = {order}: must be 0 or more")
    site = read(theory)
    laws, errors = _laws(_Frozen(site), order)
    return NonlinearExpansion(theory, order, site, laws, errors)


class _Frozen:
    """A site as a key: what the laws depend on."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.key = (site.h, site.z, site.u, site.r, site.forward, site.backward, str(site.bases))

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Frozen) and self.key == other.key


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
        terms = (t for t in law.terms if not _beyond(t, site) and zero.isdisjoint(s.tensor for s in t.statics))
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


__all__ = ["NonlinearExpansion", "expand_nonlinear"]
