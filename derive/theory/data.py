"""Data of a mean-field theory: Gaussian sources, single-site equations and order parameters.

Each equation is a sum of terms, and each term records the matrix and the rule that gave it. Derivations
produce these objects; printing, expansions, limits and compilation to solvers read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, TypeAlias

from sympy import Add, Eq, Expr, Integer, Integral, S, Sum, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.sums import over
from derive.calculus.symbols import IndexRange, L, converted, ell, s, spelled, t
from derive.program.language import Rewritable
from derive.program.nonlinear import NonlinearRule
from derive.program.program import Program, chosen_depth
from derive.show.arranged import with_distinct_variables
from derive.show.latex import latex

ExpressionMap: TypeAlias = Callable[..., Any]


@dataclass(frozen=True)
class Term(Rewritable):
    """Term of an equation: a kernel applied to a field, with its origin.

    Parameters
    ----------
    kind : str
        ``source``, ``response``, ``memory``, ``pair`` (memory by a training rule that acts on each entry) or
        ``definition`` (a term at ``t`` that is taken from the program). Equations outside of a theory, such
        as base cases, have further kinds.
    field : Expr
        Field to which the kernel is applied: a Gaussian source or a local expression at ``t``, or an earlier
        vector at ``s``, such as ``phi(h(ell, alpha, s))``.
    coefficient : Expr
        Entrywise factor at ``t``.
    kernel : Expr
        Deterministic function of ``t`` and ``s``, made of order parameters, errors and the memory of the
        training rule.
    over : tuple[IndexRange, ...]
        Ranges of the summed indices, such as samples, channels, positions or offsets.
    reach : str
        Range of the sum over time: ``""`` for terms at ``t`` alone, ``"strict"`` for ``s = 0..t-1``,
        ``"past"`` for ``s = 0..t``, ``"flow"`` for an integral over ``0..t``.
    matrix : str
        Name of the matrix or weight vector that gave the term; empty for a term without a weight.
    rule : str
        Description of the rule that gave the term.
    source_name : str
        Name of the Gaussian source of the product with the matrix, or of the weight vector, that gave the
        term. It distinguishes several products with one matrix in one definition; empty for a term without a
        weight.

    Notes
    -----
    The term is ``sum_over sum_s coefficient(t) kernel(t, s) field(s)``; the sum over ``s`` has the range
    ``reach``.

    Examples
    --------
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
    source_name: str = ""

    @classmethod
    def local(cls, expr: Expr, kind: str = "definition", matrix: str = "", rule: str = "") -> Term:
        """Return a term at time ``t`` alone, without kernel or sum.

        Parameters
        ----------
        expr : Expr
            Expression of the term.
        kind : str, optional
            Kind of the term.
        matrix : str, optional
            Name of the matrix that gave the term.
        rule : str, optional
            Description of the rule that gave the term.

        Returns
        -------
        Term
            The term.
        """
        return cls(kind, expr, matrix=matrix, rule=rule)

    @cached_property
    def expr(self) -> Expr:
        """Term as one SymPy expression, with its sums over indices and time."""
        body = self.coefficient * self.kernel * self.field
        if self.reach in ("strict", "past"):
            return over(body, (*self.over, (s, S.Zero, t - 1 if self.reach == "strict" else t)))
        summed = over(body, self.over)
        return Integral(summed, (s, S.Zero, t)) if self.reach == "flow" else summed

    @property
    def remembers(self) -> bool:
        """Whether the term is a sum or integral over past times, that is, ``reach`` is not empty."""
        return self.reach != ""

    def times(self, factor: Expr) -> Self:
        """Return the term times a factor of each unit that depends on t, not on s.

        Parameters
        ----------
        factor : Expr
            Factor.

        Returns
        -------
        Self
            The product.
        """
        return replace(self, coefficient=factor * self.coefficient)

    def summed(self, ranges: tuple[IndexRange, ...]) -> Self:
        """Return the term summed over further indices.

        Parameters
        ----------
        ranges : tuple[IndexRange, ...]
            Ranges of the indices.

        Returns
        -------
        Self
            The sum.
        """
        return replace(self, over=(*ranges, *self.over))

    def with_expression(self, expr: Expr) -> Term:
        """Return a term with the same origin (kind, matrix, rule, source), and another expression.

        Parameters
        ----------
        expr : Expr
            New expression. It becomes the ``field``; coefficient and kernel are 1, and there are no sums
            besides those in the expression.

        Returns
        -------
        Term
            The new term.
        """
        origin = Term.local(expr, self.kind, self.matrix, self.rule)
        return replace(origin, source_name=self.source_name)

    def rewrite(self, fun: ExpressionMap) -> Term:
        """Return the term with a function applied to its expression.

        Parameters
        ----------
        fun : ExpressionMap
            Function of an expression that returns an expression.

        Returns
        -------
        Term
            The new term. ``fun`` is applied to coefficient, kernel and field separately if this gives the
            same expression. Otherwise the new expression becomes the ``field``, as in `with_expression`.
        """
        whole = fun(self.expr)
        if self.reach == "" and not self.over and self.coefficient is S.One and self.kernel is S.One:
            return self if whole == self.expr else self.with_expression(whole)
        parts = self.map(fun)
        return parts if _equal(parts.expr, whole) else self.with_expression(whole)

    def __str__(self) -> str:
        return f"{self.expr}   [{self.kind}{', ' + self.matrix if self.matrix else ''}: {self.rule}]"

    def _repr_latex_(self) -> str:
        return rf"$\displaystyle {latex(self.expr)}$"


ROUNDING = 1e-12
"""Largest relative difference of two floats that count as equal, because it may be a rounding error."""


def _equal(one: Expr, other: Expr) -> bool:
    """Return whether two expressions agree after products of numbers and sums are multiplied out.

    Coefficients may differ by the rounding error of floats. Outer sums over indices and integrals must have
    the same limits. Expressions that contain further sums or integrals must be identical.
    """
    while isinstance(one, Sum | Integral) and one.func == other.func and one.limits == other.limits:
        one, other = one.function, other.function
    if one == other or one.has(Sum, Integral) or other.has(Sum, Integral):
        return bool(one == other)
    a, b = (x.expand().as_coefficients_dict() for x in (one, other))
    return a.keys() == b.keys() and all(abs(a[k] - b[k]) <= ROUNDING * abs(a[k]) for k in a)


class Stated(Rewritable):
    """Base class of the statements of a theory: equations, Gaussian sources and order parameters.

    ``symbol`` is the function that is determined, for all values of the indices in ``ranges``.
    """

    ranges: tuple[IndexRange, ...]

    @property
    def name(self) -> str:
        """Name of the function that the equation, source or order parameter states, such as ``h``."""
        return str(self.symbol.func)  # type: ignore[attr-defined]

    @property
    def layers(self) -> IndexRange | None:
        """Range of the layer index if the function is defined for many layers.

        None if the function is defined for a single layer or has no layer.
        """
        return next((r for r in self.ranges if r.index == ell), None)


@dataclass(frozen=True)
class Equation(Stated):
    """Equation ``lhs = sum of terms``, for all indices in ``ranges``.

    Parameters
    ----------
    lhs : Expr
        Left-hand side: a field, a number or a time derivative.
    terms : tuple[Term, ...]
        Terms of the right-hand side.
    ranges : tuple[IndexRange, ...]
        Ranges of the indices.
    """

    lhs: Expr
    terms: tuple[Term, ...]
    ranges: tuple[IndexRange, ...] = ()

    @property
    def rhs(self) -> Expr:
        """Right-hand side of the equation: the sum of its terms."""
        return Add(*[x.expr for x in self.terms])

    @property
    def eq(self) -> Eq:
        """Equation as a SymPy ``Eq``."""
        return Eq(self.lhs, self.rhs, evaluate=False)

    @cached_property
    def symbol(self) -> AppliedUndef:
        """Field or number that the equation determines, with its indices."""
        return min(self.lhs.atoms(AppliedUndef), key=spelled)

    def map(self, fun: ExpressionMap) -> Equation:
        """Return the equation with a function applied to every expression.

        Terms are changed by `Term.rewrite`.

        Parameters
        ----------
        fun : ExpressionMap
            Function of an expression that returns an expression.

        Returns
        -------
        Equation
            The new equation.
        """
        return replace(super().map(fun), terms=tuple(x.rewrite(fun) for x in self.terms))

    def subs(self, old: Expr, new: Expr) -> Equation:
        """Return the equation with a symbol replaced in the left-hand side, terms and bounds of ranges.

        In each term it is replaced in coefficient, kernel, field and bounds separately, so that these remain
        separate parts.

        Parameters
        ----------
        old : Expr
            Symbol to replace.
        new : Expr
            Replacement.

        Returns
        -------
        Equation
            The new equation.
        """
        return super().map(lambda e: e.subs(old, new) if e.has(old) else e)

    def _repr_latex_(self) -> str:
        lhs, rhs = map(latex, with_distinct_variables([self.lhs, self.rhs]))
        return rf"$\displaystyle {lhs} = {rhs}$"


@dataclass(frozen=True)
class Source(Stated):
    """Centred Gaussian field with covariance ``<symbol partner>``.

    Parameters
    ----------
    symbol : AppliedUndef
        Field with its indices at time ``t``.
    partner : AppliedUndef
        The same field at the primed indices and time ``s``, or another field for two correlated sources.
    covariance : Expr
        Covariance of ``symbol`` and ``partner``. Pairs without a stated covariance are independent.
    ranges : tuple[IndexRange, ...]
        Ranges of the indices of both.
    matrix : str
        Name of the matrix or vector that gave the source.
    """

    symbol: AppliedUndef
    partner: AppliedUndef
    covariance: Expr
    ranges: tuple[IndexRange, ...] = ()
    matrix: str = ""

    def _repr_latex_(self) -> str:
        first, second, rhs = map(latex, with_distinct_variables([self.symbol, self.partner, self.covariance]))
        return rf"$\displaystyle \langle {first} {second} \rangle = {rhs}$"


@dataclass(frozen=True)
class OrderParameter(Stated):
    """Deterministic function of a theory, defined as a single-site average.

    Parameters
    ----------
    symbol : AppliedUndef
        Function with its indices and times.
    definition : Expr
        Average that defines it.
    kind : str
        ``correlation`` or ``response``.
    ranges : tuple[IndexRange, ...]
        Ranges of the indices.
    causal : str
        Causality of a response: ``"past"`` if it vanishes for ``s > t``, ``"strict"`` if it also vanishes for
        ``s = t``. Empty for a correlation.
    """

    symbol: AppliedUndef
    definition: Expr
    kind: str
    ranges: tuple[IndexRange, ...] = ()
    causal: str = ""

    def _repr_latex_(self) -> str:
        lhs, rhs = map(latex, with_distinct_variables([self.symbol, self.definition]))
        return rf"$\displaystyle {lhs} = {rhs}$"


STATED = ("equations", "scalars", "observables", "sources", "order_parameters")
"""Attributes of a theory that contain its statements."""


@dataclass(frozen=True)
class TheoryData(Rewritable):
    """Equations, sources and order parameters of the mean-field theory of a program.

    ``equations`` are those of fields, ``scalars`` those of numbers such as outputs and errors, and
    ``observables`` those of quantities that no other equation uses. ``reduction`` describes how the theory
    was reduced; it is empty for a theory as derived. Methods return one of these equations or order
    parameters, apply a function to all of them, or choose a depth.
    """

    program: Program
    sources: tuple[Source, ...]
    equations: tuple[Equation, ...]
    order_parameters: tuple[OrderParameter, ...]
    scalars: tuple[Equation, ...]
    observables: tuple[Equation, ...] = ()
    reduction: str = ""

    def equation(self, name: str, site: Expr | int | None = None) -> Equation:
        """Return the equation of a field or scalar, such as an output; observables are not searched.

        Parameters
        ----------
        name : str
            Name of the field or scalar.
        site : Expr | int | None, optional
            Layer. If an equation holds for many layers, it is returned at this layer. By default the first
            equation of that name is returned as it stands.

        Returns
        -------
        Equation
            The equation.

        Raises
        ------
        KeyError
            If there is no such equation. The message lists the layers of the equations of this name. If no
            equation has this name, it lists the names of fields and scalars.

        Examples
        --------
        >>> from derive import mean_field, mlp
        >>> mean_field(mlp()).equation("h", 3).terms[0].expr
        u(3, mu, t)
        >>> mean_field(mlp(2)).equation("h", 3)
        Traceback (most recent call last):
        ...
        KeyError: 'no equation for h(3, ...); there are h(1, mu, t), h(ell + 1, mu, t) for ell = 1..1'
        """
        place = None if site is None else converted(site)
        named = [e for e in (*self.equations, *self.scalars) if e.name == name]
        for e in named:
            if place is None or e.symbol.args[0] == place:
                return e
        for e in named:
            family = e.layers if e.symbol.args[0].has(ell) else None
            if family is not None and place is not None and (place.is_Integer or not place.is_number):
                at = place - e.symbol.args[0] + ell
                if not ((at - family.upper).is_positive or (family.lower - at).is_positive):
                    member: Equation = at_layer(e, family, at)
                    return member
        families = ([f" for ell = {r.lower}..{r.upper}" for r in e.ranges if r.index == ell] for e in named)
        descriptions = ["".join((str(e.symbol), *family)) for e, family in zip(named, families, strict=True)]
        every_name = dict.fromkeys(e.name for e in (*self.equations, *self.scalars))
        available = ", ".join(descriptions or every_name)
        raise KeyError(
            f"no equation for {name}{'' if site is None else f'({site}, ...)'}; there are {available}"
        )

    @property
    def symbols(self) -> dict[str, Symbol]:
        """Symbols of the theory other than indices and times, by name, for use with ``subs``.

        >>> from derive import mean_field, mlp
        >>> theory = mean_field(mlp())
        >>> sorted(theory.symbols), theory.symbols["gamma0"].is_positive
        (['L', 'P', 'eta', 'gamma0'], True)
        """
        items = (*self.equations, *self.scalars, *self.observables)
        expressions = [x for e in items for x in (e.lhs, e.rhs)] + [u.covariance for u in self.sources]
        expressions += [q.definition for q in self.order_parameters]
        statements = self.stated()
        bounds = [x for e in statements for r in e.ranges for x in (r.lower, r.upper)]
        indices = {t, s, ell} | {r.index for e in statements for r in e.ranges} | self.program.unit_indices
        free = {x for e in (*expressions, *bounds) for x in sympify(e).free_symbols}
        rules = (w.rule for w in self.program.trained())
        free |= {x for rule in rules if isinstance(rule, NonlinearRule) for x in rule.parameters}
        return {x.name: x for x in sorted(free - indices, key=str)}

    def order_parameter(self, name: str) -> OrderParameter:
        """Return the first order parameter of a name.

        Parameters
        ----------
        name : str
            Name, such as ``"Phi"``.

        Returns
        -------
        OrderParameter
            The order parameter.

        Raises
        ------
        KeyError
            If the theory has no order parameter of that name.
        """
        for q in self.order_parameters:
            if q.name == name:
                return q
        raise KeyError(
            f"no order parameter {name}; there are {', '.join(q.name for q in self.order_parameters)}"
        )

    def responses(self) -> tuple[OrderParameter, ...]:
        """Return the response functions.

        Returns
        -------
        tuple[OrderParameter, ...]
            The response functions.
        """
        return tuple(q for q in self.order_parameters if q.kind == "response")

    def correlations(self) -> tuple[OrderParameter, ...]:
        """Return the correlation functions.

        Returns
        -------
        tuple[OrderParameter, ...]
            The correlation functions.
        """
        return tuple(q for q in self.order_parameters if q.kind == "correlation")

    def at_depth(self, depth: int) -> Self:
        """Return the theory with the symbolic depth L replaced by a number, and an equation for each layer.

        Parameters
        ----------
        depth : int
            Number of hidden layers. If the program has layers and a depth without ``L``, it must be that
            depth.

        Returns
        -------
        Self
            Theory in which each family of layers is replaced by its members.

        Raises
        ------
        ProgramError
            If ``depth`` is neither an integer of at least 1 nor an expression for one, or if the program has
            layers and another depth without ``L`` in it.
        ValueError
            If a range of layers still depends on a symbol.
        """
        layers = chosen_depth(self.program, depth)
        program = self.program.map(lambda e: e.subs(L, layers) if e.has(L) else e)
        return replace(self.each(lambda x: _members(_substituted(x, L, layers))), program=program)

    def stated(self) -> tuple[Any, ...]:
        """Return all equations, scalars, observables, sources and order parameters.

        Returns
        -------
        tuple[Any, ...]
            The statements in this order.
        """
        return tuple(x for part in STATED for x in getattr(self, part))

    def each(self, change: Callable[[Any], Iterable[Any]]) -> Self:
        """Return the theory with every statement replaced.

        Parameters
        ----------
        change : Callable[[Any], Iterable[Any]]
            Function of one equation, source or order parameter that returns its replacements.

        Returns
        -------
        Self
            The new theory.

        Examples
        --------
        >>> from derive import mean_field, mlp
        >>> theory = mean_field(mlp(2))
        >>> len(theory.equations), len(theory.each(lambda x: [x] if x.name != "h" else []).equations)
        (4, 2)
        """
        parts: dict[str, Any] = {k: tuple(y for x in getattr(self, k) for y in change(x)) for k in STATED}
        return replace(self, **parts)


def _members(item: Any) -> Iterator[Any]:
    """Yield an equation, source or order parameter for each layer in the range of its layer index.

    It is yielded unchanged if it has no layer index, and not at all if the range is empty. Raises ValueError
    if the range is symbolic.
    """
    family = next((r for r in item.ranges if r.index.name == "ell"), None)
    if family is None:
        yield item
        return
    if not (sympify(family.lower).is_Integer and sympify(family.upper).is_Integer):
        raise ValueError(
            f"the layers {family.lower}..{family.upper} depend on a symbol: give the depth as an integer"
        )
    for value in range(int(family.lower), int(family.upper) + 1):
        yield at_layer(item, family, Integer(value))


def at_layer(item: Any, family: IndexRange, layer: Expr) -> Any:
    """Return an equation, source or order parameter of many layers at one layer.

    ``layer`` is the value of its layer index, and ``family`` the range of this index.
    """
    other_ranges = tuple(r for r in item.ranges if r is not family)
    return _substituted(replace(item, ranges=other_ranges), family.index, layer)


def _substituted(item: Any, old: Expr, new: Expr) -> Any:
    """Return an equation, source or order parameter with the symbol ``old`` replaced by ``new``."""
    return (
        item.subs(old, new)
        if isinstance(item, Equation)
        else item.map(lambda e: e.subs(old, new) if e.has(old) else e)
    )
