"""A linear theory at given times: its fields as sums of sources, its order parameters in one another.

At times that are numbers every sum over the past is a finite sum, so a field is a linear form in the sources
of its site, and an order parameter a polynomial in order parameters of neighbouring layers.  The layer may
stay a symbol.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sympy import Add, Expr, Integer, Mul, S, Sum, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.errors import NotApplicable
from derive.program.words import ell, s, t
from derive.theory.families import families
from derive.theory.theory import Theory

Form = dict[AppliedUndef, Expr]
"""A field as ``sum of coefficient * source``."""


class Unrolled:
    """Reads a theory at integer times; layers are integers, ``L``, or a symbol for any inner layer."""

    def __init__(self, theory: Theory) -> None:
        if not theory.program.rule.discrete:
            raise NotApplicable("the first step of a flow is infinitely small: give the rule as exact steps")
        joined = families(theory)
        self.equations = [*_ends(theory.equations), *joined.equations]
        self.sources = [*_ends(theory.sources), *joined.sources]
        self.parameters = [*_ends(theory.order_parameters), *theory.order_parameters]
        self.base = {(b.name, b.lhs.args[0]): b for b in joined.base_cases}
        self.fields = {e.name for e in self.equations}
        self.source_names = {str(x.func) for u in self.sources for x in (u.symbol, u.partner)}
        self.layered = {q.name for q in theory.order_parameters if _is_family(q)}
        self.names = {q.name for q in self.parameters}
        self.forms: dict[AppliedUndef, Form] = {}

    # -- fields ----------------------------------------------------------------------------------------

    def form(self, field: AppliedUndef) -> Form:
        """A field at an integer time, in the sources of its site."""
        if field not in self.forms:
            e, place = self.find(self.equations, lambda e: e.lhs, field)
            found: Form = {}
            for x in e.terms:
                for part in self.written_out(x.expr.xreplace(place), field.args[-1]):
                    for source, factor in self.linear(part).items():
                        found[source] = found.get(source, S.Zero) + factor
            self.forms[field] = {k: v for k, v in found.items() if v != 0}
        return self.forms[field]

    def linear(self, part: Expr) -> Form:
        """One term: a factor times a field or a source."""
        moving = [a for a in part.atoms(AppliedUndef) if str(a.func) in self.fields | self.source_names]
        if part == 0:
            return {}
        if len(moving) != 1 or (rest := part / moving[0]).has(moving[0]):
            raise NotApplicable(f"{part} is not linear in the fields")
        if str(moving[0].func) in self.source_names:
            return {moving[0]: rest}
        return {source: rest * factor for source, factor in self.form(moving[0]).items()}

    def written_out(self, e: Expr, now: Expr) -> Iterator[Expr]:
        """A term at time ``now``, sums over the past carried out; order parameters that vanish are gone."""
        e = e.xreplace({t: now})
        if isinstance(e, Sum):
            if any(lim[0] != s for lim in e.limits):
                raise NotApplicable(f"{e}: a sum over {e.limits[0][0]}; the first step is that of one output")
            (_, lower, upper), body = e.limits[0], e.function
            for k in range(int(lower), int(upper) + 1):
                yield from self.written_out(body.xreplace({s: Integer(k)}), now)
        else:
            for part in Add.make_args(e.expand()):
                yield self.settled(part)

    def settled(self, e: Expr) -> Expr:
        """Order parameters in ``e`` in standard form: zero if acausal, later time first, no base cases."""
        return e.xreplace({a: self.standard(a) for a in e.atoms(AppliedUndef) if str(a.func) in self.names})

    def standard(self, a: AppliedUndef) -> Expr:
        base = self.base.get((str(a.func), a.args[0]))
        if base is not None:
            return self.settled(base.rhs.xreplace(dict(zip(base.lhs.args[1:], a.args[1:], strict=True))))
        q, _ = self.find(self.parameters, lambda q: q.symbol, a)
        one, two = a.args[-2:]
        if q.kind == "response":
            late = two >= one if q.causal == "strict" else two > one
            return S.Zero if late else a
        return a.func(*a.args[:-2], two, one) if two > one else a

    # -- order parameters ------------------------------------------------------------------------------

    def value(self, a: AppliedUndef) -> Expr:
        """An order parameter at integer times, in those of the sources' covariances and of the equations."""
        q, place = self.find(self.parameters, lambda q: q.symbol, a)
        definition = q.definition.xreplace(place).xreplace(dict(zip((t, s), a.args[-2:], strict=True)))
        averages = definition.atoms(Average)
        if len(averages) != 1 or definition.has(Sum):
            raise NotApplicable(f"{q.name} is a sum over units that differ, which is not served here")
        average = averages.pop()
        return (definition / average).expand() * self.averaged(average.args[0])

    def averaged(self, body: Expr) -> Expr:
        if isinstance(body, Response):
            return self.form(body.body).get(body.source, S.Zero).expand()
        factors = Mul.make_args(body) if isinstance(body, Mul) else (body.base, body.base)
        if not all(isinstance(x, AppliedUndef) and str(x.func) in self.fields for x in factors):
            raise NotApplicable(f"<{body}> is an average over units that differ, which is not served here")
        one, two = factors
        total = S.Zero
        for x, factor in self.form(one).items():
            for y, other in self.form(two).items():
                total += factor * other * self.covariance(x, y)
        return total.expand()

    def covariance(self, x: AppliedUndef, y: AppliedUndef) -> Expr:
        """``<x y>`` of two sources at integer times."""
        for u in self.sources:
            for first, second, one, two in ((u.symbol, u.partner, x, y), (u.partner, u.symbol, x, y)):
                place = _place(first, one)
                if place is not None and _place(second, two) == place:
                    times = {first.args[-1]: one.args[-1], second.args[-1]: two.args[-1]}
                    return self.settled(sympify(u.covariance).xreplace(place).xreplace(times))
        return S.Zero

    # -- families --------------------------------------------------------------------------------------

    def find(self, items: list[Any], head: Any, a: AppliedUndef) -> tuple[Any, dict[Expr, Expr]]:
        """The item whose head is ``a``, ends before families, and what its ``ell`` is there."""
        for item in items:
            place = _place(head(item), a)
            if place is not None:
                return item, place
        raise NotApplicable(f"the theory has nothing for {a}")


def _place(head: Expr, a: AppliedUndef) -> dict[Expr, Expr] | None:
    """What ``ell`` must be for ``head`` to be ``a``, times aside; None if it is not."""
    if not isinstance(head, AppliedUndef) or head.func != a.func or len(head.args) != len(a.args):
        return None
    times = sum(x in (t, s) for x in head.args)
    ours, theirs = head.args[: len(head.args) - times], a.args[: len(head.args) - times]
    if not ours:
        return {}
    if ours[0].has(ell):
        return {ell: theirs[0] - (ours[0] - ell)}
    return {} if ours == theirs else None


def _is_family(item: Any) -> bool:
    return any(r.index == ell for r in item.ranges)


def _ends(items: tuple[Any, ...]) -> list[Any]:
    return [x for x in items if not _is_family(x)]
