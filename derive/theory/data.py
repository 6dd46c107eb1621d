"""A Theory: what the large-size limit makes of a Program, as data.

Sources with their covariances, single-site equations in causal order, order parameters with their
definitions, and for each term where it came from.  Printing, expansion, limits and compiling only read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, TypeAlias

from sympy import Add, Eq, Expr, Integer, Integral, S, Sum, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.sums import over
from derive.calculus.symbols import IndexRange, L, ell, s, spelled, t
from derive.program.nonlinear import NonlinearRule
from derive.program.program import Program
from derive.program.words import Rewritable, layer_count
from derive.show.arranged import letters_apart
from derive.show.latex import latex

ExpressionMap: TypeAlias = Callable[..., Any]


@dataclass(frozen=True)
class Term(Rewritable):
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

    >>> from derive import mean_field, mlp
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
        if self.reach in ("strict", "past"):
            return over(body, (*self.over, (s, S.Zero, t - 1 if self.reach == "strict" else t)))
        summed = over(body, self.over)
        return Integral(summed, (s, S.Zero, t)) if self.reach == "flow" else summed

    @property
    def remembers(self) -> bool:
        """Does the kernel reach back in time?"""
        return self.reach != ""

    def times(self, factor: Expr) -> Self:
        """The term times an entrywise factor at ``t``."""
        return replace(self, coefficient=factor * self.coefficient)

    def summed(self, ranges: tuple[IndexRange, ...]) -> Self:
        """The term added up over further indices."""
        return replace(self, over=(*ranges, *self.over))

    def put(self, expr: Expr) -> Term:
        """Another expression, of which nothing more is known, in the term's place."""
        return Term.local(expr, self.kind, self.matrix, self.rule)

    def rewrite(self, fun: ExpressionMap) -> Term:
        """The term with ``fun`` applied to its expression; its parts are kept if ``fun`` acts on each."""
        whole = fun(self.expr)
        if self.reach == "" and not self.over and self.coefficient is S.One and self.kernel is S.One:
            return self if whole == self.expr else self.put(whole)
        parts = self.map(fun)
        return parts if _equal(parts.expr, whole) else self.put(whole)

    def __str__(self) -> str:
        return f"{self.expr}   [{self.kind}{', ' + self.matrix if self.matrix else ''}: {self.rule}]"

    def _repr_latex_(self) -> str:
        return rf"$\displaystyle {latex(self.expr)}$"


ROUNDING = 1e-12
"""By what share floats may differ whose factors were multiplied in another order."""


def _equal(one: Expr, other: Expr) -> bool:
    """Are two terms the same but for products that have been multiplied out, as numbers times sums are?"""
    while isinstance(one, Sum | Integral) and one.func == other.func and one.limits == other.limits:
        one, other = one.function, other.function
    if one == other or one.has(Sum, Integral) or other.has(Sum, Integral):
        return bool(one == other)
    a, b = (x.expand().as_coefficients_dict() for x in (one, other))
    return a.keys() == b.keys() and all(abs(a[k] - b[k]) <= ROUNDING * abs(a[k]) for k in a)


class Stated(Rewritable):
    """What a theory states of a ``symbol``, for all indices in ``ranges``."""

    ranges: tuple[IndexRange, ...]

    @property
    def name(self) -> str:
        """The name of what it is about, such as ``h``, ``u`` or ``Phi``."""
        return str(self.symbol.func)  # type: ignore[attr-defined]

    @property
    def layers(self) -> IndexRange | None:
        """The range of the layer index of a family; None of a single member."""
        return next((r for r in self.ranges if r.index == ell), None)


@dataclass(frozen=True)
class Equation(Stated):
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

    @cached_property
    def symbol(self) -> AppliedUndef:
        """What the equation determines, with its indices."""
        return min(self.lhs.atoms(AppliedUndef), key=spelled)

    def map(self, fun: ExpressionMap) -> Equation:
        """The equation with ``fun`` applied to every expression."""
        return replace(super().map(fun), terms=tuple(x.rewrite(fun) for x in self.terms))

    def subs(self, old: Expr, new: Expr) -> Equation:
        """The equation with ``new`` put for a symbol, in every part of its terms."""
        return super().map(lambda e: e.subs(old, new) if e.has(old) else e)

    def _repr_latex_(self) -> str:
        lhs, rhs = map(latex, letters_apart([self.lhs, self.rhs]))
        return rf"$\displaystyle {lhs} = {rhs}$"


@dataclass(frozen=True)
class Source(Stated):
    """A Gaussian field: ``<symbol partner> = covariance``, zero with every other source.

    ``partner`` is the same field (or, for cross-correlated pairs, another) at the primed indices.
    """

    symbol: AppliedUndef
    partner: AppliedUndef
    covariance: Expr
    ranges: tuple[IndexRange, ...] = ()
    matrix: str = ""

    def _repr_latex_(self) -> str:
        first, second, rhs = map(latex, letters_apart([self.symbol, self.partner, self.covariance]))
        return rf"$\displaystyle \langle {first} {second} \rangle = {rhs}$"


@dataclass(frozen=True)
class OrderParameter(Stated):
    """A deterministic function of the theory and its definition as an average.

    ``kind`` is ``correlation`` or ``response``; ``causal`` says of a response whether it vanishes for ``s >
    t`` (``"past"``) or already for ``s = t`` (``"strict"``).
    """

    symbol: AppliedUndef
    definition: Expr
    kind: str
    ranges: tuple[IndexRange, ...] = ()
    causal: str = ""

    def _repr_latex_(self) -> str:
        lhs, rhs = map(latex, letters_apart([self.symbol, self.definition]))
        return rf"$\displaystyle {lhs} = {rhs}$"


STATED = ("equations", "scalars", "observables", "sources", "order_parameters")
"""Where a theory holds what it states."""


@dataclass(frozen=True)
class TheoryData(Rewritable):
    """The equations of the mean-field theory of a program, to be looked up, mapped and taken at a depth."""

    program: Program
    sources: tuple[Source, ...]
    equations: tuple[Equation, ...]
    order_parameters: tuple[OrderParameter, ...]
    scalars: tuple[Equation, ...]
    observables: tuple[Equation, ...] = ()
    reduction: str = ""

    def equation(self, name: str, site: Expr | int | None = None) -> Equation:
        """The equation of the field ``name``: the first one, or that of its member at the layer ``site``.

        A member of a family comes with the layer put in.  Raises KeyError, saying what there is, if there is
        none.

        >>> from derive import mean_field, mlp
        >>> mean_field(mlp()).equation("h", 3).terms[0].expr
        u(3, mu, t)
        >>> mean_field(mlp(2)).equation("h", 3)
        Traceback (most recent call last):
        ...
        KeyError: 'no equation for h(3, ...); there are h(1, mu, t), h(ell + 1, mu, t) for ell = 1..1'
        """
        place = None if site is None else sympify(site, strict=True)
        named = [e for e in (*self.equations, *self.scalars) if e.name == name]
        for e in named:
            if place is None or e.symbol.args[0] == place:
                return e
        for e in named:
            family = e.layers if e.symbol.args[0].has(ell) else None
            if family is not None and place is not None:
                at = place - e.symbol.args[0] + ell
                if not ((at - family.upper).is_positive or (family.lower - at).is_positive):
                    found: Equation = _member(e, family, at)
                    return found
        families = ([f" for ell = {r.lower}..{r.upper}" for r in e.ranges if r.index == ell] for e in named)
        told = ["".join((str(e.symbol), *family)) for e, family in zip(named, families, strict=True)]
        there = ", ".join(told or sorted({e.name for e in self.equations}))
        raise KeyError(f"no equation for {name}{'' if site is None else f'({site}, ...)'}; there are {there}")

    @property
    def symbols(self) -> dict[str, Symbol]:
        """The parameters of the theory by name, as they stand in its equations, for ``.subs``.

        >>> from derive import mean_field, mlp
        >>> theory = mean_field(mlp())
        >>> sorted(theory.symbols), theory.symbols["gamma0"].is_positive
        (['L', 'P', 'eta', 'gamma0'], True)
        """
        items = (*self.equations, *self.scalars, *self.observables)
        whole = [x for e in items for x in (e.lhs, e.rhs)] + [u.covariance for u in self.sources]
        whole += [q.definition for q in self.order_parameters]
        every = self.stated()
        bounds = [x for e in every for r in e.ranges for x in (r.lower, r.upper)]
        indices = {t, s, ell} | {r.index for e in every for r in e.ranges}
        free = {x for e in (*whole, *bounds) for x in sympify(e).free_symbols}
        rules = (w.rule for w in self.program.trained())
        free |= {x for rule in rules if isinstance(rule, NonlinearRule) for x in rule.parameters}
        return {x.name: x for x in sorted(free - indices, key=str)}

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

    def at_depth(self, depth: int) -> Self:
        """The theory of a network with ``depth`` hidden layers: families become their members."""
        layers = layer_count(depth)
        program = self.program.map(lambda e: e.subs(L, layers) if e.has(L) else e)
        return replace(self.each(lambda x: _members(_put(x, L, layers))), program=program)

    def stated(self) -> tuple[Any, ...]:
        """Every equation, source and order parameter."""
        return tuple(x for part in STATED for x in getattr(self, part))

    def each(self, change: Callable[[Any], Iterable[Any]]) -> Self:
        """The theory with what ``change`` makes of every equation, source and order parameter in its place.

        >>> from derive import mean_field, mlp
        >>> theory = mean_field(mlp(2))
        >>> len(theory.equations), len(theory.each(lambda x: [x] if x.name != "h" else []).equations)
        (4, 2)
        """
        parts: dict[str, Any] = {k: tuple(y for x in getattr(self, k) for y in change(x)) for k in STATED}
        return replace(self, **parts)


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
    for value in range(int(family.lower), int(family.upper) + 1):
        yield _member(item, family, Integer(value))


def _member(item: Any, family: IndexRange, layer: Expr) -> Any:
    """The member of a family at one layer."""
    rest = tuple(r for r in item.ranges if r is not family)
    return _put(replace(item, ranges=rest), family.index, layer)


def _put(item: Any, old: Expr, new: Expr) -> Any:
    """An equation, source or order parameter with ``new`` put for a symbol."""
    return (
        item.subs(old, new)
        if isinstance(item, Equation)
        else item.map(lambda e: e.subs(old, new) if e.has(old) else e)
    )
