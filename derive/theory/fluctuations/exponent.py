"""The action of a finite network, as far as order parameters enter it, term by term.

After the average over random weights the exponent is exactly N times a form that is bilinear in averages over
sites.  With the order parameters written as variables it is, for one unit,

    sum over products    hat(chi) (kernels applied to fields)
    sum over definitions hat(x) (right-hand side)                 where a number or average stands in it
    (1/2) sum            hat(chi) hat(chi') covariance

in which kernels, numbers and covariances are functions of order parameters.  Numbers that are no averages,
such as errors, are functions of other order parameters.  A function of fields in which a number stands, as in
``tanh(h/sqrt(m))``, is a field of its own where it is averaged, so that order parameters average fields
alone.  All of it is taken from the path integral.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from sympy import Add, Expr, Function, Integral, Mul, Rational, S, Sum, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.calculus.sums import over as summed
from derive.calculus.symbols import IndexRange, s, t
from derive.errors import NotApplicable
from derive.program.naming import aside
from derive.program.words import Population, Rewritable
from derive.theory.applications import Application, Parameter
from derive.theory.data import Equation, Source, Stated, Term
from derive.theory.fluctuations.hats import Hatted
from derive.theory.path_integral.action import UseVariable
from derive.theory.path_integral.saddle import Assembly


@dataclass(frozen=True)
class Addend(Rewritable):
    """``expr`` summed over the indices of ``over`` and, as ``reach`` says, over past times s.

    ``reach`` is as in :class:`derive.theory.Term`; "all" stands for a sum over both t and s.
    """

    expr: Expr
    over: tuple[IndexRange, ...] = ()
    reach: str = ""

    @property
    def whole(self) -> Expr:
        """The addend as one expression at the time t (summed over it too where the reach is "all")."""
        if self.reach == "all":
            return summed(self.expr, (*self.over, (s, S.Zero, S.Infinity), (t, S.Zero, S.Infinity)))
        if self.reach == "flow":
            return Integral(summed(self.expr, self.over), (s, S.Zero, t))
        if self.reach in ("strict", "past"):
            return summed(self.expr, (*self.over, (s, S.Zero, t - 1 if self.reach == "strict" else t)))
        return summed(self.expr, self.over)


@dataclass(frozen=True)
class ExponentTerm(Rewritable):
    """``weight * hats * addend`` in the exponent of a unit of the population ``home``.

    Attributes
    ----------
    hats
        The field whose equation the term stands in, hatted; two of a covariance.
    addend
        What multiplies them: kernels times fields, a right-hand side, or a covariance.
    weight
        1/2 for the covariance of a field with itself, else 1.
    home
        The population, at the layer of the unit.
    matrix, rule
        The weights that gave the term, and by which argument.
    """

    hats: tuple[Hatted, ...]
    addend: Addend
    home: Population
    weight: Expr = S.One
    matrix: str = ""
    rule: str = ""

    @property
    def whole(self) -> Expr:
        """The term as an expression, summed over everything."""
        body = replace(self.addend, expr=self.weight * Mul(*self.hats) * self.addend.expr)
        if body.reach == "all":
            return body.whole
        if body.reach == "flow":
            return Integral(body.whole, (t, S.Zero, S.Infinity))
        return summed(body.whole, ((t, S.Zero, S.Infinity),))


@dataclass(frozen=True)
class FluctuatingParameter(Stated, Rewritable):
    """A quantity that differs from network to network by an amount of order N^(-1/2).

    Attributes
    ----------
    symbol
        Its name with indices and times.
    kind
        "correlation", "response", "mean" (an average at one time), "number" (a function of other ones) or
        "observable" (one that nothing depends on).
    unit
        What is averaged over the units of ``home``, with hats in a response; zero for functions of others.
    rest
        The function of other order parameters that is added to the average.
    home
        The population whose units are averaged over; None for a function of others.
    causal
        Of a response: "strict" if it exists for s < t, "past" if at s = t too, "now" if at s = t alone.
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
        """The part that is a function of other order parameters."""
        return Add(*[x.whole for x in self.rest])


@dataclass(frozen=True)
class Exponent:
    """Everything of which the fluctuations are expansions."""

    products: tuple[Equation, ...]
    definitions: tuple[Equation, ...]
    homes: tuple[Population, ...]
    sources: tuple[Source, ...]
    parameters: tuple[FluctuatingParameter, ...]
    terms: tuple[ExponentTerm, ...]


class ExponentBuilder:
    """Collects the exponent of each unit from the equations of a path integral."""

    def __init__(self, assembly: Assembly) -> None:
        self.assembly, self.reading = assembly, assembly.reading
        self.program, self.action = assembly.program, assembly.action
        self.averages: dict[Average, AppliedUndef] = {}
        self.extra: list[FluctuatingParameter] = []
        self.own_fields: dict[Expr, Equation] = {}
        self.random = {x.name for x in self.program.fields} | {
            str(x.primal.func) for x in self.action.variables
        }
        self.taken = {*self.reading.registry.taken, *self.reading.registry.found, *self.program.scalars}
        self._refuse()

    def _refuse(self) -> None:
        for d in self.reading.definitions:
            if d.evolves:
                raise NotApplicable(
                    f"fluctuations are derived for fields that are computed from others at the same time; "
                    f"{d.name} obeys a differential equation in time"
                )
        if self.program.attributes:
            names = ", ".join(x.name for x in self.program.attributes)
            raise NotApplicable(
                f"fluctuations are those of averages over units that are alike; attributes ({names}) tell "
                "them apart"
            )

    def build(self) -> Exponent:
        """Return the exponent."""
        products = tuple(self.product_equation(x) for x in self.action.variables)
        definitions, scalars = self.reading.equations(self.as_product, self.as_parameter)
        numbers = [self.number(e, "number") for e in scalars]
        stated = tuple(self.without_averages(e) for e in definitions)
        parameters = [*self.order_parameters(), *self.extra, *numbers]
        definitions = (*stated, *self.own_fields.values())
        theory = self.assembly.theory()
        observables = [self.number(e, "observable") for e in theory.observables]
        names = {q.name for q in parameters}
        terms = [
            *self.kernels(products),
            *self.numbers_in_definitions(definitions, names),
            *self.covariances(theory.sources),
        ]
        homes = (
            *map(self.home_of, self.action.variables),
            *(self.home(e.symbol) for e in stated),
            *(self.home(e.rhs) for e in self.own_fields.values()),
        )
        everything = (*parameters, *observables)
        return Exponent(products, definitions, homes, theory.sources, everything, tuple(terms))

    def home_of(self, x: UseVariable) -> Population:
        """Where a product lives."""
        return x.use.gives if isinstance(x.use, Application) else self.program.site_of(x.use.lhs)

    # -- equations of one unit -------------------------------------------------------------------------------

    def as_product(self, a: Application) -> list[Term]:
        """A product as a field of its own."""
        leg = next(x for x in self.action.legs if x.use.same_use(a))
        return [Term.local(leg.primal.func(*a.source().args), "product", a.matrix.name)]

    def as_parameter(self, p: Parameter) -> list[Term]:
        """A vector of weights as a field of its own."""
        entry = next(x for x in self.action.entries if x.source == p.source())
        return [Term.local(entry.primal, "product", p.initial.name)]

    def product_equation(self, x: UseVariable) -> Equation:
        """The equation of a product: source, responses and memory."""
        use = x.use
        found = self.assembly.product(use) if isinstance(use, Application) else self.assembly.parameter(use)
        return Equation(x.primal, tuple(found), x.limits)

    # -- order parameters ------------------------------------------------------------------------------------

    def order_parameters(self) -> Iterator[FluctuatingParameter]:
        """Correlations and responses."""
        primal = {str(x.source.func): x.primal.func for x in self.action.variables}
        for q in self.assembly.order_parameters():
            if q.kind == "correlation":
                body, causal = q.definition.args[0], ""
            else:
                (average,) = q.definition.atoms(Average)
                response = average.body
                assert isinstance(response, Response)
                pushed = primal[str(response.source.func)](*response.source.args)
                body = q.definition.xreplace({average: response.body * Hatted(pushed)})
                causal = self.support(q.name, q.causal)
            if any(str(a.func) in self.random for a in body.atoms(AppliedUndef)):
                home, body = self.home(body), self.of_fields(body, q.ranges)
                yield FluctuatingParameter(q.symbol, q.kind, body, (), home, q.ranges, causal)

    def support(self, name: str, causal: str) -> str:
        """When a response exists: that to a matrix of one step at equal times alone."""
        alike = (
            q for q in self.action.responses.values() if str(q.symbol.func).removesuffix("_used") == name
        )
        return "now" if next(alike).leg.use.matrix.fresh else causal

    def number(self, e: Equation, kind: str) -> FluctuatingParameter:
        """A number of the theory: an average, or a function of averages and other numbers."""
        random = frozenset(self.random)
        rhs = e.rhs.replace(lambda x: isinstance(x, Average), lambda x: x.linear(random))
        found = sorted(rhs.atoms(Average), key=str)
        if len(found) == 1 and kind == "number":
            factor = (rhs / found[0]).expand()
            if not factor.has(AppliedUndef) and not factor.has(Sum, Integral):
                home = self.home(found[0].body)
                body = factor * self.of_fields(found[0].body, e.ranges)
                return FluctuatingParameter(e.symbol, "mean", body, (), home, e.ranges)
        rhs = self.named(rhs, e)
        return FluctuatingParameter(e.symbol, kind, S.Zero, tuple(addends(rhs)), None, e.ranges)

    def home(self, body: Expr) -> Population:
        """Where fields live."""
        fields = [a for a in body.atoms(AppliedUndef) if self.program.field_of(str(a.func)) is not None]
        return self.program.site_of(fields[0])

    def named(self, e: Expr, near: Equation) -> Expr:
        """``e`` with a number of its own for each average."""
        ranges = {r.index: r for r in near.ranges}
        for x in e.atoms(Sum):
            ranges |= {lim[0]: IndexRange(*lim) for lim in x.limits if lim[0] not in (t, s)}
        for a in sorted(e.atoms(Average), key=str):
            if a not in self.averages:
                own = [r for index, r in ranges.items() if a.body.has(index)]
                letters = [r.index for r in own]
                name = aside(f"M_{near.name}", self.taken)
                self.taken.add(name)
                symbol = Function(name)(*letters, t)
                self.averages[a] = symbol
                body = self.of_fields(a.body, own)
                mean = FluctuatingParameter(symbol, "mean", body, (), self.home(a.body), tuple(own))
                self.extra.append(mean)
        return e.xreplace(self.averages)

    def without_averages(self, e: Equation) -> Equation:
        """The definition of a field with numbers in the place of averages."""
        if not e.rhs.has(Average):
            return e
        return replace(e, terms=tuple(x.put(self.named(x.expr, e)) for x in e.terms))

    # -- functions of fields and numbers ---------------------------------------------------------------------

    def of_fields(self, unit: Expr, ranges: Iterable[IndexRange]) -> Expr:
        """What is averaged, with a field in the place of all that a number stands in."""
        known = list(ranges)
        return Add(*[self._factors_of_fields(x, known) for x in Add.make_args(unit.expand())])

    def _factors_of_fields(self, term: Expr, ranges: list[IndexRange]) -> Expr:
        """One product: its factors at each time are taken together if a number stands in them."""
        constant, at = S.One, dict[Expr, Expr]()
        for x in Mul.make_args(term):
            atoms = [a for a in x.atoms(AppliedUndef) if self.moves(a)]
            if x.has(Hatted) or not atoms:
                constant *= x
            else:
                time = atoms[0].args[-1]
                at[time] = at.get(time, S.One) * x
        for time, x in at.items():
            numbers = any(str(a.func) in self.program.scalars for a in x.atoms(AppliedUndef))
            constant *= self.own_field(x, time, ranges) if numbers else x
        return constant

    def moves(self, a: AppliedUndef) -> bool:
        """Is it a field or a number of the theory, rather than data?"""
        name = str(a.func)
        return name in self.random or name in self.program.scalars or name in {x.name for x in self.extra}

    def own_field(self, e: Expr, time: Expr, ranges: list[IndexRange]) -> Expr:
        """The field that stands for a function of fields and numbers."""
        atoms = sorted((a for a in e.atoms(AppliedUndef) if self.moves(a)), key=str)
        places = list(dict.fromkeys(x for a in atoms for x in a.args[:-1]))
        letters = [Symbol(f"i{k}", integer=True) for k in range(len(places))]
        named = dict(zip(places, letters, strict=True))
        body = e.xreplace({a: a.func(*[named[x] for x in a.args[:-1]], t) for a in atoms})
        if body not in self.own_fields:
            name = aside(f"v{len(self.own_fields) + 1}", {*self.taken, *self.random})
            limits = {r.index: r for r in ranges}
            own = tuple(
                limits[x].renamed(y) if x in limits else IndexRange(y, x, x) for x, y in named.items()
            )
            lhs = Function(name)(*letters, t)
            self.own_fields[body] = Equation(lhs, (Term.local(body),), own)
            self.random.add(name)
        return self.own_fields[body].symbol.func(*places, time)

    # -- terms of the exponent -------------------------------------------------------------------------------

    def kernels(self, products: tuple[Equation, ...]) -> Iterator[ExponentTerm]:
        """What is applied to earlier fields in the equation of each product."""
        for x, e in zip(self.action.variables, products, strict=True):
            home = self.home_of(x)
            for term in e.terms:
                if term.kind == "source":
                    continue
                if term.kind == "pair":
                    raise NotApplicable(
                        "fluctuations of programs whose rule acts on each entry, as that of "
                        f"{x.matrix} does, are not derived: pairs of units interact, not averages over units"
                    )
                body = Addend(
                    term.coefficient * term.kernel * term.field, (*x.limits, *term.over), term.reach
                )
                yield ExponentTerm((Hatted(x.primal),), body, home, S.One, x.matrix, term.rule)

    def numbers_in_definitions(
        self, definitions: tuple[Equation, ...], names: set[str]
    ) -> Iterator[ExponentTerm]:
        """Definitions of fields in which numbers stand."""
        own = {e.name for e in self.own_fields.values()}
        for e in definitions:
            for term in e.terms:
                if any(str(a.func) in names for a in term.expr.atoms(AppliedUndef)):
                    body = Addend(term.expr, e.ranges)
                    home = self.home(e.symbol if str(e.symbol.func) not in own else e.rhs)
                    yield ExponentTerm((Hatted(e.symbol),), body, home, S.One, term.matrix, "as defined")

    def covariances(self, sources: tuple[Source, ...]) -> Iterator[ExponentTerm]:
        """The quadratic part."""
        variable = {str(x.source.func): x for x in self.action.variables}
        for u in sources:
            first, second = (variable[str(a.func)].primal.func(*a.args) for a in (u.symbol, u.partner))
            weight = Rational(1, 2) if u.symbol.func == u.partner.func else S.One
            x = next(
                y for y in self.action.variables if y.source.func == u.symbol.func and y.source == u.symbol
            )
            body = Addend(sympify(u.covariance), u.ranges, "all")
            hats = (Hatted(first), Hatted(second))
            yield ExponentTerm(hats, body, self.home_of(x), weight, u.matrix, "random weights")


def addends(e: Expr) -> Iterator[Addend]:
    """The terms of a sum, each with the ranges and the times that it is summed over.

    Raises
    ------
    NotApplicable
        If a sum stands inside of a function.
    """
    for term in Add.make_args(e.expand()):
        ranges: list[IndexRange] = []
        reach = ""
        while inner := [x for x in Mul.make_args(term) if isinstance(x, Sum | Integral)]:
            x = inner[0]
            term = term / x * x.function
            for index, low, high in x.limits:
                if index != s:
                    ranges.append(IndexRange(index, low, high))
                elif isinstance(x, Integral):
                    reach = "flow"
                else:
                    reach = "past" if high == t else "strict"
        if term.has(Sum, Integral):
            raise NotApplicable(f"{term} holds a sum inside of a function, which is not taken apart")
        if isinstance(term, Add):
            yield from (replace(x, over=(*ranges, *x.over)) for x in addends(term))
        else:
            yield Addend(term, tuple(ranges), reach)
