"""Linear form of a theory: each single-site equation as Gaussian sources plus kernels applied to fields.

In a linear network every single-site equation is

    field(t) = sum of factor * source(t) + sum of coefficient(t) sum_over sum_s kernel(t, s) field(s) + given

with deterministic factors and kernels. :func:`linear_form` reads it from the terms of a theory, for the
closure, propagators, reductions, expansions, limits and the lowering to arrays. The row of the field h,
``linear_form(theory).row("h")``, has the ``sources``, the ``actions`` of kernels on fields, and the ``given``
(deterministic) part.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sympy import Add, Derivative, Expr, Integral, Mul, S, Sum
from sympy.core.function import AppliedUndef

from derive.calculus.sums import opened, over
from derive.calculus.symbols import IndexRange, converted, ell, s, t
from derive.errors import NotApplicable
from derive.program.nonlinear import require_linear_rules
from derive.theory import Equation, Term, Theory
from derive.theory.applications import computed_now, reaches

SourceCombination = dict[AppliedUndef, Any]
"""A field as ``sum of coefficient * source``; the coefficients are elements of a field of fractions."""


@dataclass(frozen=True)
class LinearTerm(Term):
    """Term ``coefficient(t) sum_over sum_s kernel(t, s) field(s)`` with one field or source.

    ``over`` are the indices that are summed. If ``reach`` is set, the term is a sum over past times s,
    without the present for "strict", or an integral for "flow", and the field is at s. Otherwise the field
    is at the time t (or 0).
    """

    @property
    def name(self) -> str:
        """The name of the field or source."""
        return str(self.field.func)

    @property
    def weight(self) -> Expr:
        """The factor of the field under the sums: coefficient times kernel."""
        return self.coefficient * self.kernel

    @property
    def columns(self) -> tuple[IndexRange, ...]:
        """The ranges of the summed indices that the field has: the columns of the kernel."""
        return tuple(r for r in self.over if self.field.has(r.index))

    @property
    def entry(self) -> Expr:
        """The entry of the kernel: :attr:`weight` summed over the indices that the field does not have."""
        inner = [r for r in self.over if not self.field.has(r.index)]
        factors = Mul.make_args(self.weight)
        fixed = [x for x in factors if not any(x.has(r.index) for r in inner)]
        return Mul(*fixed) * over(Mul(*[x for x in factors if x not in fixed]), inner)

    def alike(self, other: LinearTerm) -> bool:
        """Return whether both terms act on the same field, with the same sums over indices and times."""
        return (self.field, self.over, self.reach) == (other.field, other.over, other.reach)


@dataclass(frozen=True)
class Row(Equation):
    """Equation of a linear theory: ``lhs = sum of sources + sum of actions + given``.

    ``sources`` are factors, or kernels over past times, applied to Gaussian sources; ``actions`` are those
    applied to fields, and ``given`` is the deterministic part.
    """

    sources: tuple[LinearTerm, ...] = ()
    actions: tuple[LinearTerm, ...] = ()
    given: Expr = S.Zero

    @property
    def field(self) -> AppliedUndef:
        """The field on the left-hand side; raises NotApplicable for an equation of a rate of change."""
        if isinstance(self.lhs, Derivative):
            raise NotApplicable(
                f"the equation of {self.lhs} gives a rate of change, and an equation that gives the field "
                "itself is needed"
            )
        return self.lhs

    @property
    def source(self) -> AppliedUndef:
        """The Gaussian source of the equation, if there is exactly one and its factor is 1.

        Raises NotApplicable for an equation without a source, with several, or with one of another factor.
        """
        if len(self.sources) != 1 or self.sources[0].weight != 1:
            sources = Add(*[x.expr for x in self.sources])
            raise NotApplicable(
                f"the equation of {self.lhs} must have exactly one Gaussian source, with factor 1; it has "
                f"{sources or 'no source'}"
            )
        return self.sources[0].field

    @property
    def indices(self) -> tuple[IndexRange, ...]:
        """The ranges of indices other than the layer."""
        return tuple(r for r in self.ranges if r.index != ell)


@dataclass(frozen=True)
class LinearForm:
    """Linear theory as rows, one for each single-site equation (see :class:`Row`).

    ``fields`` and ``sources`` are the names of the random quantities.
    """

    theory: Theory
    rows: tuple[Row, ...]
    fields: tuple[str, ...]
    sources: tuple[str, ...]

    def row(self, name: str, site: Any = None) -> Row:
        """Return the equation of the field ``name`` in linear form, by default the first one.

        A family of layers has several equations; ``site`` selects that of the field at this layer, such as 1
        or ``ell + 1``. Raise KeyError if there is no such equation.
        """
        for r in self.rows:
            if r.name == name and (site is None or r.field.args[0] == converted(site)):
                return r
        raise KeyError(
            f"there is no equation of {name}{'' if site is None else f'({site}, ...)'}; there are "
            f"equations of {', '.join(str(r.lhs) for r in self.rows)}"
        )

    @cached_property
    def now(self) -> dict[str, set[str]]:
        """For each field by name, the names of fields and sources at time t in its equation.

        The last term of a sum over ``s = 0..t`` is at time t as well. Names that act only through another
        field are not listed.
        """
        return computed_now(self.rows, {*self.fields, *self.sources})

    def reaches(self, field: str, source: str) -> bool:
        """Return whether ``field`` responds to a perturbation of ``source`` within the same step.

        Both are names; the result is False for an unknown name.

        >>> from derive import mean_field, mlp
        >>> form = linear_form(mean_field(mlp()))
        >>> form.reaches("h", "u"), form.reaches("h", "r")
        (True, False)
        """
        return reaches(self.now, field, source)


def linear_form(theory: Theory, equations: Iterable[Equation] | None = None) -> LinearForm:
    """Return the single-site equations (or the given ones) of a linear theory as rows.

    Raises :class:`NotApplicable` for a term that is not linear in one field or source, for a term with
    another sum over past times than one of those in :class:`LinearTerm`, and for a training rule that is not
    linear in the updates, such as Adam.

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
    """Return an equation as sources, kernels applied to fields, and a deterministic rest.

    Raises :class:`NotApplicable` if it is not linear in the fields. ``random`` are the names of fields and
    sources, ``fields`` those of fields.
    """
    sources: list[LinearTerm] = []
    actions: list[LinearTerm] = []
    given: Expr = S.Zero
    for x in e.terms:
        if _random_in(x.coefficient, random) or _random_in(x.kernel, random):
            raise NotApplicable(
                f"the term {x.expr} in the equation of {e.lhs} is not linear in fields and Gaussian sources"
            )
        for part in _parts(x, random):
            random_atoms = _random_in(part.field, random)
            if not random_atoms:
                given += part.expr
                continue
            a = next(iter(random_atoms))
            factor = part.field / a
            if len(random_atoms) > 1 or _random_in(factor, random):
                raise NotApplicable(
                    f"the term {part.expr} in the equation of {e.lhs} is not linear in fields and Gaussian "
                    "sources"
                )
            before, under = (S.One, factor) if factor.has(s) else (factor, S.One)
            factors = part.coefficient * before, part.kernel * under
            term = LinearTerm(part.kind, a, *factors, part.over, part.reach, part.matrix, part.rule)
            (actions if term.name in fields else sources).append(term)
    return Row(e.lhs, e.terms, e.ranges, tuple(sources), tuple(actions), given)


def _parts(x: Term, random: frozenset[str]) -> Iterable[Term]:
    """Yield the addends of a term, each as a term of its own.

    Sums over indices and past times inside of the field become sums of the term. ``random`` are the names of
    fields and sources; addends whose sums contain none of them are kept whole. Raises NotApplicable for a
    term with several sums or integrals over past times, or with one whose range is not all past times.
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
                raise NotApplicable(
                    f"the term {x.expr} must contain at most one sum or integral over past times: a sum "
                    "over the steps 0..t-1 or 0..t, or an integral from 0 to t"
                )
            reach = known[kind, upper]
        ranges = (*x.over, *[IndexRange(*lim) for lim, _ in reversed(limits) if lim[0] != s])
        for y in Add.make_args(body.expand()):
            yield replace(x, field=y, over=ranges, reach=reach)


def _random_in(e: Expr, random: frozenset[str]) -> set[AppliedUndef]:
    """Return the fields and sources (names in ``random``) in ``e``, outside of averages and responses."""
    if getattr(e, "is_averaged", False):
        return set()
    if isinstance(e, AppliedUndef) and str(e.func) in random:
        return {e}
    return set().union(*[_random_in(x, random) for x in e.args]) if e.args else set()
