"""What a linear theory becomes once every response to every source is written down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sympy import Eq, Expr, Integral, S, Sum, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import IndexRange, ell
from derive.theory import Equation, Theory

k = Symbol("k", integer=True)
"""The layer of a source that is pushed."""


@dataclass(frozen=True)
class Push:
    """A source that is pushed: ``symbol`` at the layer k (if it has one), primed indices and time s.

    ``layers`` is the range of k for a source with several members; ``constant`` says that the source is one
    number for all times, so that a push has no time.
    """

    name: str
    symbol: AppliedUndef
    layers: IndexRange | None
    ranges: tuple[IndexRange, ...]
    constant: bool
    layered: bool


@dataclass(frozen=True)
class CrossLayer:
    """The closed equations of a linear theory.

    ``responses`` determine ``R_hu(ell, k, t, s) = d h(ell, t) / d u(k, s)`` (layer of the field, layer of
    the source if each has one, other indices in the same order, times; no second time for a source that is
    one number for all times).  ``diagonal`` says which of them the theory's own responses are, ``fields``
    are the fields in terms of the sources, ``correlations`` and ``scalars`` the averages.
    """

    theory: Theory
    pushes: tuple[Push, ...]
    responses: tuple[Equation, ...]
    diagonal: tuple[Eq, ...]
    fields: tuple[Eq, ...]
    correlations: tuple[Eq, ...]
    scalars: tuple[Eq, ...]

    def response(self, name: str, site: Expr | int | None = None) -> Equation:
        """The equation of the response ``name`` (of its member at layer ``site``).  Raises KeyError."""
        for e in self.responses:
            if str(e.lhs.func) == name and (site is None or e.lhs.args[0] == sympify(site)):
                return e
        raise KeyError(f"no response {name}; there are {', '.join(str(e.lhs) for e in self.responses)}")

    def correlation(self, name: str) -> Eq:
        """The equation of the correlation ``name``.  Raises KeyError if there is none."""
        for e in (*self.correlations, *self.scalars):
            if str(e.lhs.func) == name:
                return e
        raise KeyError(f"no correlation {name}; there are {', '.join(str(e.lhs) for e in self.correlations)}")

    def field(self, name: str) -> Eq:
        """The field ``name`` in terms of the sources.  Raises KeyError if there is none."""
        for e in self.fields:
            if str(e.lhs.func) == name:
                return e
        raise KeyError(f"no field {name}; there are {', '.join(str(e.lhs) for e in self.fields)}")

    def map(self, fun: Callable[[Expr], Expr]) -> CrossLayer:
        """The same with ``fun`` applied to every right-hand side."""

        def eqs(items: tuple[Eq, ...]) -> tuple[Eq, ...]:
            return tuple(Eq(e.lhs, fun(e.rhs), evaluate=False) for e in items)

        return replace(
            self,
            responses=tuple(replace(e, terms=tuple(x.rewrite(fun) for x in e.terms)) for e in self.responses),
            diagonal=eqs(self.diagonal),
            fields=eqs(self.fields),
            correlations=eqs(self.correlations),
            scalars=eqs(self.scalars),
        )

    def closed(self) -> CrossLayer:
        """The same with the theory's own responses written as members of the cross-layer ones."""

        def put(e: Expr) -> Expr:
            for d in self.diagonal:
                e = e.replace(
                    lambda x, d=d: same_place(x, d.lhs),
                    lambda x, d=d: d.rhs.xreplace(binding(d.lhs, x)),
                )
            return e

        return replace(self.map(put), diagonal=self.diagonal)


def same_place(x: Expr, like: AppliedUndef) -> bool:
    """Is ``x`` the function ``like`` at some indices (at the same layer, if that is a number)?"""
    if not (isinstance(x, AppliedUndef) and x.func == like.func and len(x.args) == len(like.args)):
        return False
    return all(not a.is_Integer or a == b for a, b in zip(like.args, x.args, strict=True))


def binding(like: AppliedUndef, x: AppliedUndef) -> dict[Expr, Expr]:
    """What the symbols in the arguments of ``like`` are in those of ``x``; a layer may be shifted."""
    found: dict[Expr, Expr] = {}
    for a, b in zip(like.args, x.args, strict=True):
        if a.has(ell):
            found[ell] = b - (a - ell)
        elif a.is_Symbol:
            found[a] = b
    return found


def without_trivial(found: CrossLayer) -> CrossLayer:
    """Responses that are the same number everywhere (mostly 0: nothing answers) put into the others."""
    while True:
        names = {str(e.lhs.func) for e in found.responses}
        values: dict[str, Expr] = {}
        for name in names:
            each = {e.rhs for e in found.responses if str(e.lhs.func) == name}
            if len(each) == 1 and not (value := each.pop()).free_symbols and not value.atoms(AppliedUndef):
                values[name] = value
        values = {n: v for n, v in values.items() if not any(str(e.lhs.func) == n for e in found.diagonal)}
        if not values:
            return found

        def put(e: Expr, values: dict[str, Expr] = values) -> Expr:
            e = e.replace(
                lambda x: isinstance(x, AppliedUndef) and str(x.func) in values, lambda x: values[str(x.func)]
            )
            return e.replace(lambda x: isinstance(x, Sum | Integral) and x.function == 0, lambda _: S.Zero)

        kept = tuple(e for e in found.responses if str(e.lhs.func) not in values)
        found = replace(found, responses=kept).map(put)
        found = replace(found, responses=tuple(_nonzero(e) for e in found.responses))


def _nonzero(e: Equation) -> Equation:
    return replace(e, terms=tuple(x for x in e.terms if x.expr != 0) or e.terms[:1])
