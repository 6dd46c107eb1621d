"""One layer of a linear theory as equations between operators: solved, averaged, differentiated.

:mod:`derive.linear.closure` reads the theory and puts the layers together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sympy import Add, Eq, Expr, Function, Integer, Mul, S, transpose
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.calculus.symbols import IndexRange, ell, s, t
from derive.linear.operators import J, Kernel, coefficient, operator, solve_for
from derive.theory import OrderParameter, Source
from derive.theory.names import primed

if TYPE_CHECKING:
    from derive.linear.closure import _Closure

NAMES = {"h": "C", "h_y": "C", "p": "C_p", "g": "D"}
"""Names of the kernel by which each field depends on the past of the other one."""


@dataclass(frozen=True)
class Row:
    """One field's equation, read: its source and the kernels in front of past fields, at the layer
    ``site``."""

    name: str
    site: Expr
    indices: tuple[IndexRange, ...]
    source: AppliedUndef
    kernels: dict[str, Expr]
    layers: IndexRange | None


class Block:
    """The operator equations of one layer."""

    def __init__(self, closure: _Closure, site: Expr, rows: list[Row]) -> None:
        self.c, self.site, self.rows = closure, site, rows
        self.system = {
            operator(r.name, site): Add(
                operator(str(r.source.func), site),
                *[
                    closure.scale * operator(self.label(r.name, x), site) * operator(x, site)
                    for x in r.kernels
                ],
            )
            for r in rows
        }
        self.solution = {x: solve_for(self.system, x) for x in self.system}
        self.sources = [operator(str(r.source.func), site) for r in rows]
        self.extra: dict[Expr, Kernel] = {}

    def label(self, field: str, past: str) -> str:
        return NAMES.get(field, f"M_{field}{past}")

    def equations(self) -> list[Eq]:
        return [Eq(k, v, evaluate=False) for k, v in self.system.items()]

    def solved(self) -> list[Eq]:
        return [Eq(k, v, evaluate=False) for k, v in self.solution.items()]

    def kernels(self) -> list[Kernel]:
        self.covariances()
        found = list(self.extra.values())
        for r in self.rows:
            for x, definition in r.kernels.items():
                name, cols = self.label(r.name, x), self.renamed(x, r)
                arguments = [i.index for i in (*r.indices, *cols)]
                symbol = Function(name)(self.site, *arguments, t, s)
                vector = operator(name, self.site)
                found.append(Kernel(vector, symbol, definition, r.indices, cols, "strict"))
        return found

    def renamed(self, field: str, row: Row) -> tuple[IndexRange, ...]:
        """The indices of the past field as they stand in the equation (primed ones)."""
        return tuple(IndexRange(primed(r.index), r.lower, r.upper) for r in self.c.index[field])

    def source_covariance(self, a: Expr, b: Expr) -> Expr:
        names = {operator(str(r.source.func), self.site): r.source for r in self.rows}
        for u in self.c.sources_of(names[a]):
            if u.partner.func == names[b].func:
                return self.matrix(u)
        for u in self.c.sources_of(names[b]):
            if u.partner.func == names[a].func:
                return transpose(self.matrix(u))
        return S.Zero

    def matrix(self, u: Source) -> Expr:
        """The operator of a source's covariance; one that is no order parameter gets a name of its own."""
        found, ranges = self.c.matrix(u.covariance), [r for r in u.ranges if r.index != ell]
        rows = tuple(r for r in ranges if u.symbol.has(r.index))
        cols = tuple(r for r in ranges if u.partner.has(r.index) and r not in rows)
        if found is None:
            name = f"S_{u.symbol.func}{u.partner.func}"
            found = operator(name, self.site)
            symbol = Function(name)(self.site, *[r.index for r in (*rows, *cols)], t, s)
            self.extra[found] = Kernel(found, symbol, u.covariance, rows, cols)
        elif found.is_Symbol:
            symbol = Function(found.name)(t, s) if found == J else u.covariance
            self.extra[found] = Kernel(found, symbol, u.covariance, rows, cols)
        return found

    def covariance(self, x: str, y: str) -> Expr:
        """``<x y^T>`` from the solved fields, with the common factors on either side taken out."""
        left, right = self.solution[operator(x, self.site)], self.solution[operator(y, self.site)]
        (a, inner_x), (b, inner_y) = _head(left), _head(right)
        middle = S.Zero
        for u in self.sources:
            for v in self.sources:
                sigma = self.source_covariance(u, v)
                if sigma != 0:
                    middle += coefficient(inner_x, u) * sigma * transpose(coefficient(inner_y, v))
        return a * middle * transpose(b)

    def covariances(self) -> list[Eq]:
        found = []
        for q in self.c.theory.correlations():
            if self.misses(q.symbol.args[0]):
                continue
            now, past = pair_of(q, self.c.names)
            found.append(
                Eq(
                    operator(q.name, self.site),
                    self.covariance(str(now.func), str(past.func)),
                    evaluate=False,
                )
            )
        return found

    def misses(self, place: Expr) -> bool:
        return not (place.has(ell) or place == self.site)

    def responses(self) -> list[Eq]:
        found = []
        for q in self.c.theory.responses():
            response = next(iter(q.definition.atoms(Response)))
            field, source = response.body, response.source
            at = {ell: self.site - (field.args[0] - ell)} if field.args[0].has(ell) else {}
            if field.args[0].xreplace(at) != self.site or str(field.func) not in self.c.names:
                continue
            factor = q.definition / Average(response)
            pushed = coefficient(
                self.solution[operator(str(field.func), self.site)], operator(str(source.func), self.site)
            )
            name = operator(q.name, q.symbol.args[0].xreplace(at))
            if self.inside(q, name.args[1]):
                found.append(Eq(name, factor * pushed, evaluate=False))
        return found

    def inside(self, q: OrderParameter, place: Expr) -> bool:
        """Is there such a member?  (The last layer's own response, for one, enters no equation.)"""
        return place.has(ell) or any(k.has(q.symbol.func) for r in self.c.rows for k in r.kernels.values())

    def outputs(self) -> list[Eq]:
        found = []
        for e in self.c.theory.scalars:
            for x in sorted(e.rhs.atoms(Average), key=str):
                order = [r.name for r in self.rows]
                fields = [a for a in x.atoms(AppliedUndef) if str(a.func) in order]
                fields.sort(key=lambda a: (-len(a.args), order.index(str(a.func))))
                if (
                    len(fields) == 2
                    and Mul(*fields) == x.body
                    and (self.site == ell or fields[0].args[0] == self.site)
                ):
                    site = fields[0].args[0]
                    value = self.covariance(str(fields[0].func), str(fields[1].func))
                    name = f"C_{fields[0].func}{fields[1].func}"
                    found.append(Eq(operator(name, site), value.subs(ell, site), evaluate=False))
        return found


def same(e: Expr) -> Expr:
    return e


def to_ell(site: Expr) -> Callable[[Expr], Expr]:
    """Rename layers so that ``site`` (ell + 1, say) is called ``ell``."""
    shift = site - ell
    return (lambda e: e.xreplace({ell: ell - shift})) if shift != 0 else same


def _head(e: Expr) -> tuple[Expr, Expr]:
    """Split ``(1 - M)^-1 (u + ...)`` into the resolvent and what it acts on."""
    args = e.args if isinstance(e, Mul) else (e,)
    if len(args) > 1 and isinstance(args[-1], Add):
        return Mul(*args[:-1]), args[-1]
    return Integer(1), e


def pair_of(q: OrderParameter, names: set[str]) -> list[AppliedUndef]:
    """The two fields of a correlation, present first; of a response, what responds and what is pushed."""
    if responses := q.definition.atoms(Response):
        response = next(iter(responses))
        return [response.body, response.source]
    found = [a for a in q.definition.atoms(AppliedUndef) if str(a.func) in names]
    return sorted(found, key=lambda a: (a.args[-1] != t, str(a)))
