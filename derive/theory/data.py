"""A Theory: what the large-size limit makes of a Program, as data.

Sources with their covariances, single-site equations in causal order, order parameters with their
definitions, and for each term where it came from.  Printing, expansion, limits and compiling only read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

from sympy import Add, Eq, Expr, Integer, Integral, S, Sum, sympify
from sympy.core.function import AppliedUndef

from derive.program.program import Program
from derive.program.words import IndexRange, L, s, t


@dataclass(frozen=True)
class Term:
    """One term of an equation: a kernel applied to a field, and where it came from.

    Its expression is ``sum_over sum_s coefficient(t) kernel(t, s) field(s)``, the last sum over the past that
    ``reach`` names; :attr:`expr` writes it out.

    - ``kind``: ``source``, ``response``, ``memory`` or ``definition`` (local: what the program itself says).
    - ``field``: what the kernel is applied to: a Gaussian source or a local expression at ``t``, or an
      earlier vector at ``s``, such as ``phi(h(ell, alpha, s))``.
    - ``coefficient``: an entrywise factor at ``t``; ``kernel``: a deterministic function of ``t`` and ``s``
      (order parameters, errors, what the training rule remembers).
    - ``over``: the ranges of the indices that are summed (samples, channels, positions, offsets).
    - ``reach``: ``""`` for what acts at ``t`` alone, ``"strict"`` for ``s = 0..t-1``, ``"past"`` for ``s =
      0..t``, ``"flow"`` for an integral over ``0..t``.
    - ``matrix``: the matrix (or vector of weights) that gave the term, if one did; ``rule``: in words, how.

    >>> from derive.program import mlp
    >>> from derive.theory import mean_field
    >>> memory = mean_field(mlp()).equation("g").terms[1]
    >>> memory.kernel, memory.field, memory.reach
    (eta*gamma0*Delta(alpha, s), h(L, alpha, s), 'strict')
    >>> memory.expr
    Sum(eta*gamma0*Delta(alpha, s)*h(L, alpha, s), (alpha, 1, P), (s, 0, t - 1))
    """

    kind: str
    field: Expr
    coefficient: Expr = S.One
    kernel: Expr = S.One
    over: tuple[IndexRange, ...] = ()
    reach: str = ""
    matrix: str = ""
    rule: str = ""

    @classmethod
    def local(cls, expr: Expr, kind: str = "definition", matrix: str = "", rule: str = "") -> Term:
        """A term that is ``expr`` as it stands."""
        return cls(kind, expr, matrix=matrix, rule=rule)

    @cached_property
    def expr(self) -> Expr:
        """The term as one SymPy expression."""
        body = self.coefficient * self.kernel * self.field
        samples = [r.limits for r in self.over]
        if self.reach in ("strict", "past"):
            return Sum(body, *samples, (s, S.Zero, t - 1 if self.reach == "strict" else t))
        summed = Sum(body, *samples) if samples else body
        return Integral(summed, (s, S.Zero, t)) if self.reach == "flow" else summed

    @property
    def remembers(self) -> bool:
        """Does the kernel reach back in time?"""
        return self.reach != ""

    def times(self, factor: Expr) -> Term:
        """The term times an entrywise factor at ``t``."""
        return replace(self, coefficient=factor * self.coefficient)

    def put(self, expr: Expr) -> Term:
        """Another expression, of which nothing more is known, in the term's place."""
        return Term.local(expr, self.kind, self.matrix, self.rule)

    def map(self, fun: Callable[[Expr], Expr]) -> Term:
        """The term with ``fun`` applied to its coefficient, kernel, field and ranges, one by one."""
        over = tuple(IndexRange(r.index, fun(r.lower), fun(r.upper)) for r in self.over)
        coefficient, kernel = (x if x is S.One else fun(x) for x in (self.coefficient, self.kernel))
        return replace(self, field=fun(self.field), coefficient=coefficient, kernel=kernel, over=over)

    def rewrite(self, fun: Callable[[Expr], Expr]) -> Term:
        """The term with ``fun`` applied to its expression; its parts are kept if ``fun`` acts on each."""
        whole = fun(self.expr)
        if self.reach == "" and not self.over and self.coefficient is S.One and self.kernel is S.One:
            return self if whole == self.expr else self.put(whole)
        parts = self.map(fun)
        return parts if _equal(parts.expr, whole) else self.put(whole)

    def __str__(self) -> str:
        return f"{self.expr}   [{self.kind}{', ' + self.matrix if self.matrix else ''}: {self.rule}]"


def _equal(one: Expr, other: Expr) -> bool:
    """Are two terms the same but for products that have been multiplied out, as numbers times sums are?"""
    while isinstance(one, Sum | Integral) and one.func == other.func and one.limits == other.limits:
        one, other = one.function, other.function
    if one == other or one.has(Sum, Integral) or other.has(Sum, Integral):
        return bool(one == other)
    return bool((one - other).expand() == 0)


@dataclass(frozen=True)
class Equation:
    """``lhs = sum of terms``, for all indices in ``ranges``."""

    lhs: Expr
    terms: tuple[Term, ...]
    ranges: tuple[IndexRange, ...] = ()

    @property
    def rhs(self) -> Expr:
        """The right-hand side."""
        return Add(*[x.expr for x in self.terms])

    @property
    def eq(self) -> Eq:
        """As a SymPy equation."""
        return Eq(self.lhs, self.rhs, evaluate=False)

    @property
    def name(self) -> str:
        """The name of the field that the equation determines."""
        return str(next(iter(sorted(self.lhs.atoms(AppliedUndef), key=str))).func)


@dataclass(frozen=True)
class Source:
    """A Gaussian field: ``<symbol partner> = covariance``, zero with every other source.

    ``partner`` is the same field (or, for cross-correlated pairs, another) at the primed indices.
    """

    symbol: AppliedUndef
    partner: AppliedUndef
    covariance: Expr
    ranges: tuple[IndexRange, ...] = ()
    matrix: str = ""


@dataclass(frozen=True)
class OrderParameter:
    """A deterministic function of the theory and its definition as an average.

    ``kind`` is ``correlation`` or ``response``; ``causal`` says of a response whether it vanishes for ``s >
    t`` (``"past"``) or already for ``s = t`` (``"strict"``).
    """

    symbol: AppliedUndef
    definition: Expr
    kind: str
    ranges: tuple[IndexRange, ...] = ()
    causal: str = ""

    @property
    def name(self) -> str:
        """Its name, such as ``Phi``."""
        return str(self.symbol.func)


@dataclass(frozen=True)
class TheoryData:
    """The equations of the mean-field theory of a program, to be looked up, mapped and taken at a depth."""

    program: Program
    sources: tuple[Source, ...]
    equations: tuple[Equation, ...]
    order_parameters: tuple[OrderParameter, ...]
    scalars: tuple[Equation, ...]
    observables: tuple[Equation, ...] = ()
    reduction: str = ""

    def equation(self, name: str, site: Any = None) -> Equation:
        """The equation of the field ``name`` (of its member at ``site``).  Raises KeyError if there is
        none.
        """
        for e in (*self.equations, *self.scalars):
            if e.name == name and (site is None or sympify(e.lhs).args[0] == sympify(site)):
                return e
        raise KeyError(f"no equation for {name}{'' if site is None else f'({site}, ...)'}")

    def order_parameter(self, name: str) -> OrderParameter:
        """The order parameter called ``name``.  Raises KeyError if there is none."""
        for q in self.order_parameters:
            if q.name == name:
                return q
        raise KeyError(
            f"no order parameter {name}; there are {', '.join(q.name for q in self.order_parameters)}"
        )

    def responses(self) -> tuple[OrderParameter, ...]:
        """The response functions."""
        return tuple(q for q in self.order_parameters if q.kind == "response")

    def correlations(self) -> tuple[OrderParameter, ...]:
        """The correlation functions."""
        return tuple(q for q in self.order_parameters if q.kind == "correlation")

    def map(self, fun: Callable[[Expr], Expr]) -> Self:
        """The theory with ``fun`` applied to every expression."""

        def rs(ranges: tuple[IndexRange, ...]) -> tuple[IndexRange, ...]:
            return tuple(IndexRange(r.index, fun(r.lower), fun(r.upper)) for r in ranges)

        def eqs(equations: tuple[Equation, ...]) -> tuple[Equation, ...]:
            return tuple(
                Equation(fun(e.lhs), tuple(x.rewrite(fun) for x in e.terms), rs(e.ranges)) for e in equations
            )

        return replace(
            self,
            program=self.program.map(fun),
            sources=tuple(
                replace(
                    u,
                    symbol=fun(u.symbol),
                    partner=fun(u.partner),
                    covariance=fun(u.covariance),
                    ranges=rs(u.ranges),
                )
                for u in self.sources
            ),
            equations=eqs(self.equations),
            order_parameters=tuple(
                replace(q, symbol=fun(q.symbol), definition=fun(q.definition), ranges=rs(q.ranges))
                for q in self.order_parameters
            ),
            scalars=eqs(self.scalars),
            observables=eqs(self.observables),
        )

    def at_depth(self, depth: int) -> Self:
        """The theory of a network with ``depth`` hidden layers: families become their members."""
        if depth < 1:
            raise ValueError(f"depth = {depth}: must be at least 1")
        fixed = self.map(lambda e: sympify(e).subs(L, Integer(depth)))

        def unroll(items: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(x for item in items for x in _members(item))

        return replace(
            fixed,
            sources=unroll(fixed.sources),
            equations=unroll(fixed.equations),
            order_parameters=unroll(fixed.order_parameters),
            scalars=unroll(fixed.scalars),
            observables=unroll(fixed.observables),
        )


def _members(item: Any) -> Iterator[Any]:
    """The members of a family over a layer index with integer bounds; the item itself if it is no family."""
    family = next((r for r in item.ranges if r.index.name == "ell"), None)
    if family is None:
        yield item
        return
    if not (sympify(family.lower).is_Integer and sympify(family.upper).is_Integer):
        raise ValueError(
            f"the layers {family.lower}..{family.upper} are not a list yet: give the depth as an integer"
        )
    rest = tuple(r for r in item.ranges if r is not family)
    for value in range(int(family.lower), int(family.upper) + 1):
        changes: dict[str, Any] = {"ranges": rest}

        def at(e: Expr, value: int = value) -> Expr:
            return sympify(e).subs(family.index, Integer(value))

        if isinstance(item, Equation):
            changes |= {"lhs": at(item.lhs), "terms": tuple(x.rewrite(at) for x in item.terms)}
        elif isinstance(item, Source):
            changes |= {k: at(getattr(item, k)) for k in ("symbol", "partner", "covariance")}
        else:
            changes |= {k: at(getattr(item, k)) for k in ("symbol", "definition")}
        yield replace(item, **changes)


__all__ = ["Equation", "OrderParameter", "S", "Source", "Term", "TheoryData"]
