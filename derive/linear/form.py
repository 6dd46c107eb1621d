"""The linear form of a theory: each equation as Gaussian sources and kernels applied to fields.

In a linear network every single-site equation is

    field(t) = sum of factor * source(t) + sum of coefficient(t) sum_over sum_s kernel(t, s) field(s) + given

with deterministic factors and kernels.  :func:`linear_form` reads this off the structured terms of a theory,
once for all who need it: closure, propagators, reductions, expansions, limits, lowering.  ``row("h")`` has
its ``sources``, the ``actions`` of kernels on fields (``field``, ``weight``), and what is ``given``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sympy import Add, Derivative, Expr, Integral, Mul, S, Sum, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.sums import opened, over
from derive.calculus.symbols import IndexRange, ell, s, t
from derive.errors import NotApplicable
from derive.program.nonlinear import require_linear_rules
from derive.theory import Equation, Term, Theory
from derive.theory.applications import computed_now, reaches

SourceCombination = dict[AppliedUndef, Any]
"""A field as ``sum of coefficient * source``; the coefficients are elements of a field of fractions."""


@dataclass(frozen=True)
class LinearTerm(Term):
    """``coefficient(t) sum_over sum_s kernel(t, s) field(s)``: a term with one field, or source, in it.

    The ``field`` stands at s if there is a ``reach``, else at t (or 0).
    """

    @property
    def name(self) -> str:
        """The name of its field."""
        return str(self.field.func)

    @property
    def weight(self) -> Expr:
        """What the field is multiplied by under the sums: coefficient times kernel."""
        return self.coefficient * self.kernel

    @property
    def columns(self) -> tuple[IndexRange, ...]:
        """The summed indices that the field carries: the column of the kernel."""
        return tuple(r for r in self.over if self.field.has(r.index))

    @property
    def entry(self) -> Expr:
        """The kernel's entry: :attr:`weight` summed over the indices that the field does not carry."""
        inner = [r for r in self.over if not self.field.has(r.index)]
        factors = Mul.make_args(self.weight)
        fixed = [x for x in factors if not any(x.has(r.index) for r in inner)]
        return Mul(*fixed) * over(Mul(*[x for x in factors if x not in fixed]), inner)

    def alike(self, other: LinearTerm) -> bool:
        """Is it applied to the same field over the same ranges and times?"""
        return (self.field, self.over, self.reach) == (other.field, other.over, other.reach)


@dataclass(frozen=True)
class Row(Equation):
    """One equation of a linear theory: ``lhs = sum factor source + sum of actions + given``."""

    sources: tuple[LinearTerm, ...] = ()
    actions: tuple[LinearTerm, ...] = ()
    given: Expr = S.Zero

    @property
    def field(self) -> AppliedUndef:
        """The field that the equation is for.  Raises NotApplicable if it is given by its rate of change."""
        if isinstance(self.lhs, Derivative):
            raise NotApplicable(f"{self.lhs} is not given by its past, but by its rate of change")
        return self.lhs

    @property
    def source(self) -> AppliedUndef:
        """The one source, with factor 1.  Raises NotApplicable if there are others."""
        if len(self.sources) != 1 or self.sources[0].weight != 1:
            found = Add(*[x.expr for x in self.sources])
            raise NotApplicable(f"{self.lhs} must have one Gaussian source with factor 1; it has {found}")
        return self.sources[0].field

    @property
    def indices(self) -> tuple[IndexRange, ...]:
        """The sample-like indices."""
        return tuple(r for r in self.ranges if r.index != ell)


@dataclass(frozen=True)
class LinearForm:
    """A linear theory as rows; ``fields`` and ``sources`` are the names of what is random."""

    theory: Theory
    rows: tuple[Row, ...]
    fields: tuple[str, ...]
    sources: tuple[str, ...]

    def row(self, name: str, site: Any = None) -> Row:
        """The row of the field ``name`` (of its member at ``site``).  Raises KeyError."""
        for r in self.rows:
            if r.name == name and (site is None or r.field.args[0] == sympify(site)):
                return r
        raise KeyError(f"no equation for {name}; there are {', '.join(str(r.lhs) for r in self.rows)}")

    @cached_property
    def now(self) -> dict[str, set[str]]:
        """For each field, the fields and sources that it is computed from at the same time."""
        return computed_now(self.rows, {*self.fields, *self.sources})

    def reaches(self, field: str, source: str) -> bool:
        """Can ``field`` answer a push of ``source`` within the step?

        >>> from derive import mean_field, mlp
        >>> form = linear_form(mean_field(mlp()))
        >>> form.reaches("h", "u"), form.reaches("h", "r")
        (True, False)
        """
        return reaches(self.now, field, source)


def linear_form(theory: Theory, equations: Iterable[Equation] | None = None) -> LinearForm:
    """The single-site equations (or those given) of a linear ``theory``, read term by term.

    Raises :class:`NotApplicable` for a term that is not linear in one field or source.

    >>> from derive import mean_field, mlp
    >>> row = linear_form(mean_field(mlp())).row("h", ell + 1)
    >>> row.source, [(x.name, x.reach, x.entry) for x in row.actions][0]
    (u(ell + 1, mu, t), ('g', 'strict', gamma0*A(ell, mu, t, s)))
    """
    require_linear_rules(theory.program, "a linear form")
    chosen = theory.equations if equations is None else tuple(equations)
    fields = tuple(dict.fromkeys(e.name for e in theory.equations))
    sources = tuple(dict.fromkeys(str(x.func) for u in theory.sources for x in (u.symbol, u.partner)))
    random = frozenset((*fields, *sources))
    return LinearForm(theory, tuple(_row(e, random, frozenset(fields)) for e in chosen), fields, sources)


def _row(e: Equation, random: frozenset[str], fields: frozenset[str]) -> Row:
    sources: list[LinearTerm] = []
    actions: list[LinearTerm] = []
    given: Expr = S.Zero
    for x in e.terms:
        if _random_in(x.coefficient, random) or _random_in(x.kernel, random):
            raise NotApplicable(f"the equation of {e.lhs} is not linear in the fields: {x.expr}")
        for part in _parts(x, random):
            met = _random_in(part.field, random)
            if not met:
                given += part.expr
                continue
            a = next(iter(met))
            factor = part.field / a
            if len(met) > 1 or _random_in(factor, random):
                raise NotApplicable(f"the equation of {e.lhs} is not linear in the fields: {part.expr}")
            before, under = (S.One, factor) if factor.has(s) else (factor, S.One)
            factors = part.coefficient * before, part.kernel * under
            found = LinearTerm(part.kind, a, *factors, part.over, part.reach, part.matrix, part.rule)
            (actions if found.name in fields else sources).append(found)
    return Row(e.lhs, e.terms, e.ranges, tuple(sources), tuple(actions), given)


def _parts(x: Term, random: frozenset[str]) -> Iterable[Term]:
    """The addends of what a term's kernel is applied to, each as a term of its own.

    A sum over indices in it joins the term's own.  A term that was put as a whole, with its sum over the
    past, is opened here and nowhere else.
    """
    for part in Add.make_args(x.field if isinstance(x.field, AppliedUndef) else x.field.expand()):
        if not any(_random_in(y, random) for y in part.atoms(Sum, Integral)):
            yield replace(x, field=part)
            continue
        body, limits = opened(part)
        past = [(lim, kind) for lim, kind in limits if lim[0] == s]
        reach = x.reach
        if past:
            (_, lower, upper), kind = past[0]
            known = {(Sum, t - 1): "strict", (Sum, t): "past", (Integral, t): "flow"}
            if reach or lower != 0 or len(past) > 1 or (kind, upper) not in known:
                raise NotApplicable(f"{x.expr} is no sum over the steps 0..t-1 or 0..t, and no such integral")
            reach = known[kind, upper]
        ranges = (*x.over, *[IndexRange(*lim) for lim, _ in reversed(limits) if lim[0] != s])
        for y in Add.make_args(body.expand()):
            yield replace(x, field=y, over=ranges, reach=reach)


def _random_in(e: Expr, random: frozenset[str]) -> set[AppliedUndef]:
    """Fields and sources in ``e``, outside averages and responses."""
    if getattr(e, "is_averaged", False):
        return set()
    if isinstance(e, AppliedUndef) and str(e.func) in random:
        return {e}
    return set().union(*[_random_in(x, random) for x in e.args]) if e.args else set()
