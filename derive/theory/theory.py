"""A Theory: what the large-size limit makes of a Program, as data.

Sources with their covariances, single-site equations in causal order, order parameters with their
definitions, and for each term where it came from.  Printing, expansion, limits and compiling only read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sympy import Add, Eq, Expr, Integer, Integral, S, Sum, sympify
from sympy.core.function import AppliedUndef

from derive.program.program import Program
from derive.program.words import IndexRange, L, s, t

if TYPE_CHECKING:
    from derive.show.render import Show


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
class Theory:
    """The mean-field theory of a program."""

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

    def explain(self, name: str) -> str:
        """Where a field, source, order parameter or scalar comes from, term by term, in words.

        Raises KeyError for a name that the theory does not have.

        >>> from derive.theory import mean_field
        >>> from derive.program import mlp
        >>> print(mean_field(mlp()).explain("A"))
        A(ell, mu, t, s): response function, <d h(ell, mu, t) / d r(ell, s)>/gamma0
            0 unless s < t: the vector moves only in steps after the source is pushed
            stands in the equation of h(ell + 1, mu, t), by the use of W
        """
        from derive.theory.explain import explain

        return explain(self, name)

    def explain_term(self, term: Any) -> str:
        """Which matrix and which rule a term came from: a Term, its expression, or any part of one.

        Raises KeyError when no equation, scalar, observable or covariance contains it.

        >>> from derive.theory import mean_field
        >>> from derive.program import ell, mlp
        >>> from sympy import Function
        >>> theory = mean_field(mlp())
        >>> print(theory.explain_term(theory.equation("g").terms[0]))
        r(L, t)
            in the equation of g(L, t) = w
            w at initialisation, N(0, 1) in every unit; what training adds to it is another term
        """
        from derive.theory.explain import explain_term

        return explain_term(self, term)

    def unfold(self, what: Any, levels: int = 1) -> Expr:
        """A response or an average, or the order parameter of that name, with the equations put in.

        See :func:`derive.theory.unfold.unfold`.

        >>> from derive.theory import mean_field
        >>> from derive.program import mlp
        >>> from sympy import tanh
        >>> mean_field(mlp(1, tanh)).unfold("f")
        eta*Sum(Delta(alpha, s)*<tanh(h(1, alpha, s))*tanh(h(1, mu, t))>, (alpha, 1, P), (s, 0, t - 1))
            + <r(1, mu, t)*tanh(h(1, mu, t))>/gamma0
        """
        from derive.theory.unfold import unfold

        return unfold(self, what, levels)

    def equivalent(self, other: Theory) -> bool:
        """Is this the same theory, up to the names of fields, sources, order parameters and indices?

        >>> from derive.theory import mean_field
        >>> from derive.program import mlp
        >>> mean_field(mlp(2)).equivalent(mean_field(mlp(2, loss="mean")))
        False
        """
        return self.renaming(other) is not None

    def renaming(self, other: Theory, *, parameters: bool = False) -> dict[str, str] | None:
        """What ``other`` calls each name of this theory; None unless they are equivalent.

        See :func:`derive.theory.renaming.renaming`.
        """
        from derive.theory.renaming import renaming

        return renaming(self, other, parameters=parameters)

    def map(self, fun: Callable[[Expr], Expr]) -> Theory:
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

    def at_depth(self, depth: int) -> Theory:
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

    # -- seeing it --------------------------------

    def render(self, show: Show = "all", format: str = "text") -> str:
        """The theory as text, LaTeX, srepr or JSON; ``show`` picks a part (``single-site``, ``responses``,
        ...).
        """
        from derive.show.render import render

        return render(self, show, format)

    def __str__(self) -> str:
        return self.render()

    def _repr_latex_(self) -> str:
        return self.render(format="latex")


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


__all__ = ["Equation", "OrderParameter", "S", "Source", "Term", "Theory"]
