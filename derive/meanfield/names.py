"""Names of order parameters: which function a product of two vectors becomes.

A correlation is written ``Phi(ell, mu, alpha, t, s)``: layer, indices of the first vector, indices of the second,
their times.  The name comes from the program's notation; what is not named there is ``C_<first>`` (``C_<first><second>``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sympy import Expr, Function, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.meanfield.averages import Average, Response
from derive.meanfield.theory import OrderParameter
from derive.program.expressions import IndexRange, alpha, ell, mu, s, t
from derive.program.program import Program


def primed(index: Symbol) -> Symbol:
    """The partner of an index in a two-point function: alpha for mu, ``x_`` for any other ``x``."""
    return alpha if index == mu else Symbol(f"{index.name}_", **index.assumptions0)


@dataclass(frozen=True)
class Vector:
    """A vector as an order parameter sees it: an expression written at layer ``ell``, with its free indices."""

    body: Expr
    site: Expr | None
    ranges: tuple[IndexRange, ...]

    @property
    def indices(self) -> tuple[Symbol, ...]:
        """Sample-like indices, in order."""
        return tuple(r.index for r in self.ranges)


def vector(program: Program, body: Expr, ranges: tuple[IndexRange, ...]) -> Vector:
    """Bring ``body`` to the layer ``ell`` and keep the ranges of the indices that occur in it."""
    site = program.site_of(body).site
    kept = tuple(r for r in ranges if r.index != ell and body.has(r.index))
    return Vector(body, site, kept)


def canonical(v: Vector) -> Expr:
    """``v`` with its layer called ``ell`` and its indices named from a fixed list, so that equal vectors look equal."""
    body = v.body
    if v.site is not None:
        shift = v.site - ell
        if v.site.has(ell):
            body = body.xreplace({ell: ell - shift}).subs({}) if shift != 0 else body
        else:
            place = sympify(v.site)
            body = body.replace(
                lambda e: isinstance(e, AppliedUndef) and bool(e.args) and e.args[0] == place,
                lambda e: e.func(ell, *e.args[1:]),
            )
    return body.xreplace(dict(zip(v.indices, _slots(len(v.ranges)), strict=True)) | {s: t})


@dataclass
class Registry:
    """Collects the order parameters that a derivation meets."""

    program: Program
    found: dict[str, OrderParameter] = field(default_factory=dict)

    def head(self, v: Vector) -> str:
        """A short name for a vector."""
        body = canonical(v)
        if isinstance(body, AppliedUndef):
            return str(body.func)
        return str(body.func.__name__)

    def correlation(self, v: Vector, w: Vector, time: Expr = t, past: Expr = s) -> Expr:
        """The inner product per unit of ``v`` at ``time`` with ``w`` at ``past``, as an order parameter.

        Indices of ``w`` that collide with those of ``v`` must have been primed by the caller.
        """
        a, b = canonical(v), canonical(w)
        if isinstance(a, AppliedUndef) and (given := self.program.given_of(str(a.func))) is not None:
            return Function(given.kernel)(*v.indices, *w.indices)
        named = {canonical(vector(self.program, k, _all_ranges(k))): n for k, n in self.program.notation.items()}
        name = named.get(a) if a == b else None
        if name is None:
            name = f"C_{self.head(v)}" if a == b else f"C_{self.head(v)}{self.head(w)}"
        site = () if v.site is None else (v.site,)
        self._define_correlation(name, a, b, v, w)
        return Function(name)(*site, *v.indices, *w.indices, time, past)

    def _define_correlation(self, name: str, a: Expr, b: Expr, v: Vector, w: Vector) -> None:
        if name in self.found:
            return
        first = tuple(IndexRange(i, r.lower, r.upper) for i, r in zip(_slots(len(v.ranges)), v.ranges, strict=True))
        second = tuple(IndexRange(primed(i), r.lower, r.upper) for i, r in zip(_slots(len(w.ranges)), w.ranges, strict=True))
        body = a * b.xreplace({t: s} | {i: primed(i) for i in _slots(len(w.ranges))})
        site = (ell,) if v.site is not None else ()
        symbol = Function(name)(*site, *[r.index for r in first], *[r.index for r in second], t, s)
        layers = (IndexRange(ell, sympify(1), self.program.depth),) if site else ()
        self.found[name] = OrderParameter(symbol, Average(body), "correlation", (*layers, *first, *second))

    def response(
        self, name: str, index: Expr | None, layers: IndexRange | None, v: Vector, source: AppliedUndef, w: Vector, causal: str
    ) -> Expr:
        """The response of ``v`` (at time t) to ``source`` (at time s, indices of ``w``), as an order parameter."""
        scale = self.program.scale
        site = () if index is None else (index,)
        symbol = Function(name)(*site, *v.indices, *w.indices, t, s)
        if name not in self.found:
            definition = Average(Response(v.body, source)) / scale
            ranges = (*((layers,) if layers else ()), *v.ranges, *w.ranges)
            self.found[name] = OrderParameter(symbol, definition, "response", ranges, causal)
        return scale * symbol


def _slots(n: int) -> list[Symbol]:
    return [mu, *[Symbol(f"i{k}") for k in range(1, n)]][:n]


def _all_ranges(body: Expr) -> tuple[IndexRange, ...]:
    """Every sample-like index in ``body``, with bounds that do not matter."""
    free = sorted((x for x in body.free_symbols if x not in (t, s, ell)), key=str)
    return tuple(IndexRange(x, sympify(1), sympify(1)) for x in free)
