"""Order parameters of a finite network and terms of the exponent of one unit, as data classes.

:mod:`.exponent` builds them from the path integral, and :mod:`.expansion` expands them. The module also
splits a sum of expressions into terms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from sympy import Add, Expr, Integral, Mul, S, Sum
from sympy.core.function import AppliedUndef

from derive.calculus.sums import binding, bound, is_at, rename_bound
from derive.calculus.sums import over as summed
from derive.calculus.symbols import IndexRange, converted, ell, s, t
from derive.errors import NotApplicable
from derive.program.language import Population, Rewritable
from derive.program.program import Program
from derive.theory.data import Equation, Source, Stated
from derive.theory.fluctuations.hats import Hatted

ALWAYS = S.Zero, S.Infinity
"""First and last time of a sum over all times."""


@dataclass(frozen=True)
class Addend(Rewritable):
    """Expression summed over indices and over times.

    Parameters
    ----------
    expr : Expr
        Summand, at the times t and s.
    over : tuple[IndexRange, ...]
        Ranges of the summed indices.
    reach : str
        Range of the past time s, as in :class:`derive.theory.Term`. ``"all"`` stands for sums over both t and
        s, and ``"flow all"`` for integrals over both.
    """

    expr: Expr
    over: tuple[IndexRange, ...] = ()
    reach: str = ""

    @property
    def whole(self) -> Expr:
        """Summand with its sums over indices and times, as one expression.

        It is a function of t unless t is summed as well.
        """
        if self.reach == "flow all":
            return Integral(summed(self.expr, self.over), (s, *ALWAYS), (t, *ALWAYS))
        if self.reach == "all":
            return summed(self.expr, (*self.over, (s, *ALWAYS), (t, *ALWAYS)))
        if self.reach == "flow":
            return Integral(summed(self.expr, self.over), (s, S.Zero, t))
        if self.reach in ("strict", "past"):
            return summed(self.expr, (*self.over, (s, S.Zero, t - 1 if self.reach == "strict" else t)))
        return summed(self.expr, self.over)


@dataclass(frozen=True)
class ExponentTerm(Rewritable):
    """Term ``weight * hats * addend`` in the exponent E of one unit of a finite network.

    The path integral over the fields of one unit has the weight exp(E). A hat is the conjugate variable that
    enforces the equation of a field.

    Parameters
    ----------
    hats : tuple[Hatted, ...]
        Hatted field whose equation contains the term; two hatted fields for a covariance.
    addend : Addend
        Factor of the hats: kernels times fields, a right-hand side, or a covariance.
    home : Population
        Population of the unit, at its layer.
    weight : Expr
        1/2 for the covariance of a field with itself, else 1.
    matrix : str
        Name of the weights that gave the term.
    rule : str
        Step of the derivation that gave the term.
    kind : str
        ``"response"``, ``"memory"``, ``"definition"`` or ``"covariance"``.
    discrete : bool
        Whether times are steps.
    """

    hats: tuple[Hatted, ...]
    addend: Addend
    home: Population
    weight: Expr = S.One
    matrix: str = ""
    rule: str = ""
    kind: str = "definition"
    discrete: bool = True

    @property
    def whole(self) -> Expr:
        """Term of the exponent as one expression, with its sums over indices and times.

        It is the product of weight, hatted (conjugate) fields and factor.
        """
        body = replace(self.addend, expr=self.weight * Mul(*self.hats) * self.addend.expr)
        if len(self.hats) == 2:
            return body.whole
        if self.discrete:
            return summed(body.whole, ((t, *ALWAYS),))
        return Integral(body.whole, (t, *ALWAYS))


@dataclass(frozen=True)
class FluctuatingParameter(Stated, Rewritable):
    """Order parameter that fluctuates between networks by an amount of order N^(-1/2).

    Parameters
    ----------
    symbol : AppliedUndef
        Name with indices and times.
    kind : str
        ``"correlation"``, ``"response"``, ``"mean"`` (an average at one time), ``"number"`` (a function of
        other ones) or ``"observable"`` (a function of other ones that no equation uses).
    unit : Expr
        Function of one unit that is averaged over ``home``; in a response it contains a hatted (conjugate)
        field. Zero for functions of other order parameters.
    rest : tuple[Addend, ...]
        Function of other order parameters that is added to the average.
    home : Population | None
        Population of the average; None for a function of others.
    ranges : tuple[IndexRange, ...]
        Ranges of the indices.
    causal : str
        Times of a response: ``"strict"`` for s < t, ``"past"`` for s <= t, ``"now"`` for s = t alone. Empty
        for the other kinds.
    """

    symbol: AppliedUndef
    kind: str
    unit: Expr = S.Zero
    rest: tuple[Addend, ...] = ()
    home: Population | None = None
    ranges: tuple[IndexRange, ...] = ()
    causal: str = ""

    @property
    def function(self) -> Expr:
        """Part of this order parameter that is a function of other ones; zero for an average alone."""
        return Add(*[x.whole for x in self.rest])


@dataclass(frozen=True)
class FluctuationData(Rewritable):
    """Exponent E of one unit of a program's networks, and the order parameters in it.

    The path integral over the fields of one unit has the weight exp(E).

    Attributes
    ----------
    program
        Program whose networks have N units in a population of ratio one.
    products
        Equation of each product of a matrix and a vector, and of each vector of weights: source, responses
        and memory.
    definitions
        Equations of fields, in which products are separate fields.
    homes
        Population, at its layer, of each of the products and then of each of the definitions.
    sources
        Gaussian sources of ``products``.
    parameters
        Order parameters: correlations, causal responses, means, and numbers that follow from them; then
        observables.
    terms
        Terms of the exponent of one unit: responses, memory and covariances of products, and the terms of
        definitions that contain order parameters.
    """

    program: Program
    products: tuple[Equation, ...]
    definitions: tuple[Equation, ...]
    homes: tuple[Population, ...]
    sources: tuple[Source, ...]
    parameters: tuple[FluctuatingParameter, ...]
    terms: tuple[ExponentTerm, ...]

    @cached_property
    def random(self) -> frozenset[str]:
        """Names of the fields that differ from unit to unit, including products of weights and vectors."""
        return frozenset(e.name for e in (*self.products, *self.definitions))

    @cached_property
    def depths(self) -> tuple[IndexRange, ...]:
        """Range of a symbolic depth in which no range of layers is empty; () if the depth is a number."""
        depth = self.program.depth
        if not depth.is_Symbol:
            return ()
        spans = [(r.upper - r.lower).expand() for x in self.terms for r in x.addend.over if r.index == ell]
        least = [depth - x for x in spans if not (depth - x).has(depth)]
        return (IndexRange(depth, max([S.One, *least]), S.Infinity),)

    def home_at(self, field: AppliedUndef) -> Population:
        """Return the population, at its layer, of the units to which a field at given indices belongs.

        Raises KeyError if no equation determines the field.
        """
        for e, home in zip((*self.products, *self.definitions), self.homes, strict=True):
            if e.symbol.func == field.func and len(e.symbol.args) == len(field.args):
                if home.site is None or home.site == e.symbol.args[0]:
                    return home if home.site is None else replace(home, site=field.args[0])
                if is_at(field, e.symbol):
                    return replace(home, site=home.site.xreplace(binding(e.symbol, field)))
        raise KeyError(f"no equation of one unit determines the field {field}")

    def named(self, name: str) -> tuple[FluctuatingParameter, ...]:
        """Return the order parameters of a name: the members of a family, and those of single layers.

        Raises
        ------
        KeyError
            If no order parameter has this name; the message lists the names.
        """
        named = tuple(q for q in self.parameters if q.name == name)
        if not named:
            known = ", ".join(dict.fromkeys(q.name for q in self.parameters))
            raise KeyError(f"no order parameter {name}; there are {known}")
        return named

    def parameter(self, name: str, site: Expr | int | None = None) -> FluctuatingParameter:
        """Return the order parameter of a name: the first one, or the one whose first index is ``site``.

        A family is found only under its own first index, such as ``ell``; it is not taken at a single layer.

        Raises
        ------
        KeyError
            If no order parameter of this name has this first index; the message lists names or symbols.
        """
        named = self.named(name)
        chosen = [q for q in named if site is None or q.symbol.args[0] == converted(site)]
        if not chosen:
            raise KeyError(
                f"no order parameter {name}({site}, ...); there are {', '.join(str(q.symbol) for q in named)}"
            )
        return chosen[0]


def addends(e: Expr, taken: Iterable[Expr] = ()) -> Iterator[Addend]:
    """Yield the terms of a sum, each with its summed indices and times.

    Parameters
    ----------
    e : Expr
        Expression.
    taken : Iterable[Expr], optional
        Indices that summed indices must differ from.

    Yields
    ------
    Addend
        Terms. Sums over other times, such as the time at which noise enters a weight, stay in the summand.

    Raises
    ------
    NotApplicable
        If a sum over an index, or over the past time s, stands inside of a function or a power.
    """
    for part in Add.make_args(e.expand()):
        term, ranges, reach = part, list[IndexRange](), ""
        while inner := [x for x in Mul.make_args(term) if over_indices(x)]:
            other_factors = term / inner[0]
            x = rename_bound(
                inner[0],
                {*taken, *other_factors.free_symbols, *bound(other_factors), *(r.index for r in ranges)}
                - {s},
            )
            term = other_factors * x.function
            for index, low, high in x.limits:
                if index != s:
                    ranges.append(IndexRange(index, low, high))
                elif isinstance(x, Integral):
                    reach = "flow"
                else:
                    reach = "past" if high == t else "strict"
        if any(over_indices(x) for x in term.atoms(Sum, Integral)) and not isinstance(term, Add):
            raise NotApplicable(
                "fluctuations are not derived where a sum stands inside of a function or a power, as in "
                f"{term}: define a number or a field that is the sum"
            )
        if isinstance(term, Add):
            letters = {*taken, *(r.index for r in ranges)}
            yield from (replace(x, over=(*ranges, *x.over)) for x in addends(term, letters))
        else:
            yield Addend(term, tuple(ranges), reach)


def over_indices(e: Expr) -> bool:
    """Return whether an expression is a sum or integral over indices, or over the past time s, or both."""
    return isinstance(e, Sum | Integral) and all(x.is_integer or x == s for x in e.variables)
