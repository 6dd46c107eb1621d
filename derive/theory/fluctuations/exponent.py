"""Exponent of one unit of a finite network, as a function of order parameters.

After the average over random weights the exponent is exactly N times a form that is bilinear in averages over
sites. With the order parameters as variables it is, for one unit,

    sum over products    hat(chi) (kernels applied to fields)
    sum over definitions hat(x) (right-hand side)                 if it contains a number or average
    (1/2) sum            hat(chi) hat(chi') covariance

in which kernels, numbers and covariances are functions of order parameters. Numbers that are not averages,
such as errors, are functions of other order parameters. A function of fields that contains a number, such as
``tanh(h/sqrt(m))``, becomes a separate field where it is averaged, so that order parameters average fields
alone. All terms are taken from the path integral.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from sympy import Add, Expr, Function, Integral, Mul, Pow, Rational, S, Sum, Symbol, sympify
from sympy.core.function import AppliedUndef
from sympy.core.function import Function as AnyFunction

from derive.calculus.averages import Average, Response
from derive.calculus.pairs import EntryStep
from derive.calculus.sums import bound
from derive.calculus.symbols import IndexRange, ell, s, t
from derive.errors import NotApplicable
from derive.program.language import Population
from derive.program.naming import free_name
from derive.program.spectral import SpectralEntry
from derive.theory.applications import Application, Parameter
from derive.theory.data import Equation, Source, Term, TheoryData
from derive.theory.fluctuations.data import (
    Addend,
    ExponentTerm,
    FluctuatingParameter,
    addends,
    over_indices,
)
from derive.theory.fluctuations.hats import Hatted
from derive.theory.path_integral.action import UseVariable
from derive.theory.path_integral.saddle import Assembly


@dataclass(frozen=True)
class Exponent:
    """Exponent E of one unit of each population, with the equations and order parameters in it.

    The path integral over the fields of one unit has the weight exp(E). The attributes are those of
    `FluctuationData` except ``program``.
    """

    products: tuple[Equation, ...]
    definitions: tuple[Equation, ...]
    homes: tuple[Population, ...]
    sources: tuple[Source, ...]
    parameters: tuple[FluctuatingParameter, ...]
    terms: tuple[ExponentTerm, ...]


@dataclass
class AuxiliaryField:
    """Field that stands for a function of other fields and of numbers, such as ``tanh(h/sqrt(m))``.

    ``domains`` are the ranges for which it is defined: tuples of one range for each of its indices.
    """

    symbol: AppliedUndef
    domains: list[tuple[IndexRange, ...]]

    def add(self, ranges: tuple[IndexRange, ...]) -> None:
        """Add ranges for which the field is defined, one for each of its indices.

        Nothing is added if earlier ranges contain them, and earlier ones inside of them are dropped. Raises
        NotApplicable if they overlap in part with earlier ones.
        """
        if any(_inside(ranges, x) for x in self.domains):
            return
        outside = [x for x in self.domains if not _inside(x, ranges)]
        if any(not _disjoint(x, ranges) for x in outside):
            overlapping = " and ".join(str([r.limits for r in x]) for x in (outside[0], ranges))
            raise NotApplicable(
                "fluctuations are not derived where one function of fields and scalars is averaged at ranges "
                f"of indices that overlap in part: the ranges are {overlapping}"
            )
        self.domains[:] = [*outside, ranges]


def _inside(inner: tuple[IndexRange, ...], outer: tuple[IndexRange, ...]) -> bool:
    """Return whether each range of ``inner`` is known to lie in the range at its position in ``outer``."""
    pairs = list(zip(inner, outer, strict=True))
    gaps = (y for a, b in pairs for y in (a.lower - b.lower, b.upper - a.upper))
    return all(sympify(x).is_nonnegative for x in gaps)


def _disjoint(one: tuple[IndexRange, ...], other: tuple[IndexRange, ...]) -> bool:
    """Return whether the ranges of an index are known to have no value in common, at a large depth L."""
    pairs = list(zip(one, other, strict=True))
    gaps = [sympify(y) for a, b in pairs for y in (a.lower - b.upper, b.lower - a.upper)]
    return any(x.is_positive or (x != 0 and x.is_nonnegative) for x in gaps)


def _range_of(place: Expr, letter: Symbol, ranges: Iterable[IndexRange]) -> IndexRange:
    """Return the range of an argument such as ``ell + 1``, as the range of the index ``letter``.

    ``ranges`` are those of the indices in the argument; an argument without one has a range of one value.
    """
    for r in ranges:
        shift = place - r.index
        if not shift.has(r.index):
            return IndexRange(letter, r.lower + shift, r.upper + shift)
    return IndexRange(letter, place, place)


class ExponentBuilder:
    """Builder of the exponent E of one unit of each population, from the equations of a path integral.

    The path integral over the fields of one unit has the weight exp(E). ``assembly`` gives the equations of
    the path integral, and ``theory`` is the mean-field theory, which provides the sources and observables.
    ``number_of`` maps averages and sums to symbols, called numbers, that stand for them, and ``extra`` are
    these numbers as order parameters. ``auxiliary_fields`` maps functions of fields and numbers to the
    auxiliary fields that stand for them.
    """

    def __init__(self, assembly: Assembly, theory: TheoryData) -> None:
        self.theory = theory
        self.assembly, self.reading = assembly, assembly.reading
        self.program, self.action = assembly.program, assembly.action
        self.number_of: dict[Expr, AppliedUndef] = {}
        self.ranges_of_number: dict[Expr, tuple[IndexRange, ...]] = {}
        self.extra: list[FluctuatingParameter] = []
        self.auxiliary_fields: dict[Expr, AuxiliaryField] = {}
        self.random = {x.name for x in self.program.fields} | {
            str(x.primal.func) for x in self.action.variables
        }
        registry = self.reading.registry
        self.taken = {*registry.taken, *registry.found, *registry.sources, *self.random}
        self._refuse()

    def _refuse(self) -> None:
        """Raise NotApplicable for programs whose fluctuations are not derived.

        These are programs with attributes (given values that make units different), and programs in which
        fields obey differential equations in time while weights move in steps.
        """
        for d in self.reading.definitions:
            if d.evolves and self.action.discrete:
                raise NotApplicable(
                    f"fluctuations are not derived where {d.name} obeys a differential equation in time and "
                    "weights move in steps: give all weights a rule in continuous time, such as gradient flow"
                )
        if self.program.attributes:
            names = ", ".join(x.name for x in self.program.attributes)
            raise NotApplicable(
                f"fluctuations are derived for averages over equivalent units; the attributes {names} "
                "make units different"
            )

    def build(self) -> Exponent:
        """Return the exponent E of one unit of each population, with its equations and order parameters.

        The path integral over the fields of one unit has the weight exp(E).
        """
        products: tuple[Equation, ...] = tuple(map(self.product_equation, self.action.variables))
        stated, scalars = self.reading.equations(self.as_product, self.as_parameter)
        numbers = [self.number(e, "number") for e in scalars]
        stated = tuple(map(self.with_numbers, stated))
        products = tuple(map(self.with_numbers, products))
        parameters = [*self.order_parameters(), *self.extra, *numbers]
        auxiliary_fields = self.definitions_of_auxiliary_fields
        observables = [self.number(e, "observable") for e in self.theory.observables]
        names = {q.name for q in parameters}
        terms = [
            *self.kernels(products),
            *self.numbers_in_definitions((*stated, *auxiliary_fields), names),
            *self.covariances(self.theory.sources),
        ]
        _require_no_averages_in_time_sums(
            [*(x.addend for x in terms), *(y for q in parameters for y in q.rest)], names
        )
        homes = (
            *map(self.home_of, self.action.variables),
            *(self.home(e.symbol) for e in stated),
            *(self.home(e.rhs) for e in auxiliary_fields),
        )
        everything = (*parameters, *observables)
        definitions = (*stated, *auxiliary_fields)
        return Exponent(products, definitions, homes, self.theory.sources, everything, tuple(terms))

    def home_of(self, x: UseVariable) -> Population:
        """Return the population to which the variable ``x`` belongs.

        ``x`` stands for a product of a matrix and a vector, or for a vector of weights; the population is
        that of the product or vector.
        """
        use = x.use
        return _home(use.gives if isinstance(use, Application) else self.program.site_of(use.lhs))

    def home(self, body: Expr) -> Population:
        """Return the population to whose units the fields in the expression ``body`` belong.

        All of them must belong to one population, because only the first field in the alphabet is read.
        """
        fields = [a for a in body.atoms(AppliedUndef) if self.program.field_of(str(a.func)) is not None]
        return _home(self.program.site_of(min(fields, key=str)))

    # -- equations of one unit -------------------------------------------------------------------------------

    def as_product(self, a: Application) -> list[Term]:
        """Return a product of a matrix and a vector as a single term: a field such as ``chi(ell, mu, t)``."""
        leg = next(x for x in self.action.legs if x.use.same_use(a))
        return [Term.local(leg.primal.func(*a.source().args), "product", a.matrix.name)]

    def as_parameter(self, p: Parameter) -> list[Term]:
        """Return a vector of weights as a single term: the field that stands for it."""
        entry = next(x for x in self.action.entries if x.source == p.source())
        return [Term.local(entry.primal, "product", p.initial.name)]

    def product_equation(self, x: UseVariable) -> Equation:
        """Return the equation of a product of weights and a vector: Gaussian source, responses and memory.

        ``x`` is the product, or the use of a vector of weights. Raises NotApplicable for weights whose
        training rule acts on each entry.
        """
        use = x.use
        terms = self.assembly.product(use) if isinstance(use, Application) else self.assembly.parameter(use)
        for term in terms:
            if term.kind == "pair":
                raise NotApplicable(
                    "fluctuations of programs whose rule acts on each entry, as that of "
                    f"{x.matrix} does, are not derived: pairs of units interact, not only averages over units"
                )
            if term.field.has(EntryStep):
                raise NotApplicable(
                    "fluctuations of programs whose rule acts on each entry, as that of "
                    f"{x.matrix} does, are not derived: a step depends on the whole history of its gradient, "
                    "which contains averages at every time"
                )
        return Equation(x.primal, tuple(terms), x.limits)

    def with_numbers(self, e: Equation) -> Equation:
        """Return an equation with a symbol for each average, and for each sum of numbers in a function.

        Such a symbol, called a number, is a function of indices and time that is the same for all units.
        """

        def stated(x: Term) -> Term:
            named = {k: self.named(getattr(x, k), e) for k in ("coefficient", "kernel", "field")}
            return replace(x, **named)

        return replace(e, terms=tuple(map(stated, e.terms)))

    # -- order parameters ------------------------------------------------------------------------------------

    def order_parameters(self) -> Iterator[FluctuatingParameter]:
        """Yield the correlations and responses of the theory as order parameters that fluctuate.

        In the definition of a response, the field whose equation is perturbed is written as a hatted field.
        An order parameter that averages no field is left out.
        """
        primal = {str(x.source.func): x.primal.func for x in self.action.variables}
        for q in self.assembly.order_parameters():
            bodies: dict[Expr, Expr] = {}
            for a in q.definition.atoms(Average):
                bodies[a] = a.body
                if isinstance(a.body, Response):
                    perturbed = primal[str(a.body.source.func)](*a.body.source.args)
                    bodies[a] = a.body.body * Hatted(perturbed)
            body = q.definition.xreplace(bodies)
            causal = self.support(q.name, q.causal) if q.kind == "response" else ""
            if any(str(a.func) in self.random for a in body.atoms(AppliedUndef)):
                home, body = self.home(body), self.of_fields(body, q.ranges)
                yield FluctuatingParameter(q.symbol, q.kind, body, (), home, q.ranges, causal)

    def support(self, name: str, causal: str) -> str:
        """Return when a response exists: "now" (s = t) if its matrix is drawn anew at each step.

        Otherwise it is ``causal``: "strict" (s < t) or "past" (s <= t). ``name`` is the response.
        """
        responses = (
            q for q in self.action.responses.values() if str(q.symbol.func).removesuffix("_used") == name
        )
        return "now" if next(responses).leg.use.matrix.fresh else causal

    def number(self, e: Equation, kind: str) -> FluctuatingParameter:
        """Return a scalar of the theory or an observable as an order parameter.

        It is an average over units (``kind`` "number" becomes "mean"), or else a function of averages and of
        other scalars. Raises NotApplicable for functions of singular values.
        """
        if e.rhs.has(SpectralEntry):
            raise NotApplicable(
                f"fluctuations are not derived where {e.name} is a function of the singular values of "
                "matrices of inner products: its derivatives by their entries are not derived"
            )
        random = frozenset(self.random)
        rhs = e.rhs.replace(lambda x: isinstance(x, Average), lambda x: x.linear(random))
        averages = sorted(rhs.atoms(Average), key=str)
        if len(averages) == 1 and kind == "number":
            factor = (rhs / averages[0]).expand()
            if not factor.has(AppliedUndef) and not factor.has(Sum, Integral):
                home = self.home(averages[0].body)
                body = factor * self.of_fields(averages[0].body, e.ranges)
                return FluctuatingParameter(e.symbol, "mean", body, (), home, e.ranges)
        rest = tuple(addends(self.named(rhs, e), e.symbol.args))
        return FluctuatingParameter(e.symbol, kind, S.Zero, rest, None, e.ranges)

    def named(self, e: Expr, near: Equation) -> Expr:
        """Return ``e`` with a symbol for each average, and for each sum of numbers inside of a function.

        A number is a scalar of the program or such a symbol; it is the same for all units. New symbols are
        recorded as order parameters. ``near`` is the equation that contains ``e``; its name is part of the
        new names.
        """
        ranges = {r.index: r for r in near.ranges}
        for x in e.atoms(Sum):
            ranges |= {lim[0]: IndexRange(*lim) for lim in x.limits if lim[0] not in (t, s)}
        for a in sorted(e.atoms(Average), key=str):
            own_ranges = tuple(r for index, r in ranges.items() if index in a.free_symbols)
            if not self.is_known(a, own_ranges):
                symbol = self.new_number(f"M_{near.name}", a, own_ranges)
                body = self.of_fields(a.body, own_ranges)
                self.extra.append(
                    FluctuatingParameter(symbol, "mean", body, (), self.home(a.body), own_ranges)
                )
        e = e.xreplace(self.number_of)
        for x in sorted(_sums_in_functions(e), key=str):
            own_ranges = tuple(r for index, r in ranges.items() if index in x.free_symbols)
            numbers = _contains(x, {*self.program.scalars, *(q.name for q in self.extra)})
            if (
                over_indices(x)
                and numbers
                and not _contains(x, self.random)
                and not self.is_known(x, own_ranges)
            ):
                symbol = self.new_number(f"S_{near.name}", x, own_ranges)
                rest = tuple(addends(x, symbol.args))
                self.extra.append(FluctuatingParameter(symbol, "number", S.Zero, rest, None, own_ranges))
        return e.xreplace(self.number_of)

    def is_known(self, e: Expr, own: tuple[IndexRange, ...]) -> bool:
        """Return whether a symbol stands for the average or sum ``e`` already, perhaps with other indices.

        ``own`` are the ranges of the indices of ``e``. If the indices differ, the symbol is recorded for
        ``e`` as well.
        """
        for known, ranges in list(self.ranges_of_number.items()):
            letters = {x.index: y.index for x, y in zip(ranges, own, strict=False)}
            bounds = [[(r.lower, r.upper) for r in x] for x in (ranges, own)]
            if bounds[0] == bounds[1] and known.xreplace(letters).as_dummy() == e.as_dummy():
                self.number_of[e] = self.number_of[known].xreplace(letters)
                return True
        return False

    def new_number(self, name: str, e: Expr, ranges: tuple[IndexRange, ...]) -> AppliedUndef:
        """Return a new symbol, a function of the indices of ``ranges`` and of time, that stands for ``e``.

        ``e`` is an average or a sum, which is the same for all units. The symbol is recorded for ``e``.
        """
        name = free_name(name, self.taken)
        self.taken.add(name)
        number: AppliedUndef = Function(name)(*[r.index for r in ranges], t)
        self.number_of[e], self.ranges_of_number[e] = number, ranges
        return number

    # -- functions of fields and numbers ---------------------------------------------------------------------

    def of_fields(self, unit: Expr, ranges: Iterable[IndexRange]) -> Expr:
        """Return ``unit``, the function that an order parameter averages, in terms of auxiliary fields.

        A factor such as ``tanh(h/sqrt(m))``, which contains a scalar m of the program, becomes an auxiliary
        field, so that the average is one of fields alone. ``ranges`` are the ranges of the indices in
        ``unit``.
        """
        known = list(ranges)
        return Add(*[self._with_auxiliary_fields(x, known) for x in Add.make_args(unit.expand())])

    def _with_auxiliary_fields(self, term: Expr, ranges: list[IndexRange]) -> Expr:
        """Return a product in which all factors at one time are replaced by one auxiliary field.

        This is done at time t, at time s or at both, wherever a factor at this time contains a scalar of the
        program, so that averages contain fields alone. ``ranges`` are the ranges of the indices.
        """
        constant, at = S.One, dict[Expr, Expr]()
        for x in Mul.make_args(term):
            atoms = sorted((a for a in x.atoms(AppliedUndef) if self.moves(a)), key=str)
            if x.has(Hatted) or not atoms:
                constant *= x
            else:
                time = atoms[0].args[-1]
                at[time] = at.get(time, S.One) * x
        for time, x in at.items():
            numbers = any(str(a.func) in self.program.scalars for a in x.atoms(AppliedUndef))
            constant *= self.auxiliary_field(x, time, ranges) if numbers else x
        return constant

    def moves(self, a: AppliedUndef) -> bool:
        """Return whether ``a`` is a field or a number of the theory, which fluctuates, and not given data."""
        name = str(a.func)
        return name in self.random or name in self.program.scalars or name in {x.name for x in self.extra}

    def auxiliary_field(self, e: Expr, time: Expr, ranges: list[IndexRange]) -> Expr:
        """Return the field that stands for the function ``e`` of other fields and of scalars at ``time``.

        ``ranges`` are the ranges of the indices of ``e``. Raises NotApplicable if ``e`` contains two times,
        and as :meth:`AuxiliaryField.add` does.
        """
        atoms = sorted((a for a in e.atoms(AppliedUndef) if self.moves(a)), key=str)
        if any(a.args[-1] != time for a in atoms):
            raise NotApplicable(
                "fluctuations are not derived for averages of a function of fields and scalars at two "
                f"times, as {e}: define a field for the product or sum in it that contains two times"
            )
        inner = bound(e)
        places = list(dict.fromkeys(x for a in atoms for x in a.args[:-1] if not inner & x.free_symbols))
        named = self._letters(places, atoms)
        body = e.xreplace({a: a.func(*[named.get(x, x) for x in a.args[:-1]], t) for a in atoms})
        if body not in self.auxiliary_fields:
            name = free_name(f"v{len(self.auxiliary_fields) + 1}", self.taken | self.random)
            self.auxiliary_fields[body] = AuxiliaryField(Function(name)(*named.values(), t), [])
            self.random.add(name)
        field = self.auxiliary_fields[body]
        field.add(tuple(_range_of(x, y, ranges) for x, y in named.items()))
        return field.symbol.func(*places, time)

    def _letters(self, places: list[Expr], atoms: list[AppliedUndef]) -> dict[Expr, Symbol]:
        """Return a new index for each argument of functions, as a dictionary.

        ``places`` are the arguments and ``atoms`` the functions in which they stand. The argument that is a
        layer gets the index ``ell``, unless there are several layers.
        """
        layered = {a.args[0] for a in atoms if self._is_layered(a)}
        free = iter(Symbol(f"i{k}", integer=True) for k in range(len(places)))
        one = len(layered) == 1
        return {x: ell if one and x in layered else next(free) for x in places}

    def _is_layered(self, a: AppliedUndef) -> bool:
        """Return whether the first argument of a field is its layer."""
        field = self.program.field_of(str(a.func))
        return field is not None and field.layered

    @property
    def definitions_of_auxiliary_fields(self) -> tuple[Equation, ...]:
        """Equations of the auxiliary fields, which stand for functions of other fields and of scalars."""
        return tuple(
            Equation(x.symbol, (Term.local(body),), ranges)
            for body, x in self.auxiliary_fields.items()
            for ranges in x.domains
        )

    # -- terms of the exponent -------------------------------------------------------------------------------

    def kernels(self, products: tuple[Equation, ...]) -> Iterator[ExponentTerm]:
        """Yield the terms that responses and memory of each product add to the exponent of one unit.

        ``products`` are the equations of all products of weights and vectors, in the order of the action.
        """
        for x, e in zip(self.action.variables, products, strict=True):
            for term in e.terms:
                if term.kind != "source":
                    body = term.coefficient * term.kernel * term.field
                    addend = Addend(body, (*x.limits, *term.over), term.reach)
                    yield self.term((x.primal,), addend, self.home_of(x), term)

    def numbers_in_definitions(
        self, definitions: tuple[Equation, ...], names: set[str]
    ) -> Iterator[ExponentTerm]:
        """Yield the terms that definitions of fields add to the exponent of one unit.

        Only terms of ``definitions`` that contain an order parameter, one of ``names``, are yielded.
        """
        for e in definitions:
            known = self.program.field_of(e.name) is not None
            home = self.home(e.symbol if known else e.rhs)
            for term in e.terms:
                for x in addends(term.expr, e.symbol.args) if _contains(term.expr, names) else ():
                    addend = replace(x, over=(*e.ranges, *x.over))
                    yield self.term((e.symbol,), addend, home, replace(term, kind="definition"))

    def term(
        self, fields: tuple[AppliedUndef, ...], addend: Addend, home: Population, origin: Term
    ) -> ExponentTerm:
        """Return a term of the exponent of one unit: the hatted (conjugate) ``fields`` times ``addend``.

        It has the weight 1/2 if there are two fields of the same name. ``home`` is the population of the
        unit. ``origin`` is the term of the theory from which name of the matrix, rule and kind are taken.
        """
        weight = Rational(1, 2) if len(fields) == 2 and fields[0].func == fields[1].func else S.One
        hats = tuple(map(Hatted, fields))
        rule = origin.rule if origin.kind != "definition" else "as defined"
        return ExponentTerm(
            hats, addend, home, weight, origin.matrix, rule, origin.kind, discrete=self.action.discrete
        )

    def covariances(self, sources: tuple[Source, ...]) -> Iterator[ExponentTerm]:
        """Yield the quadratic terms of the exponent of one unit.

        They are the covariances of Gaussian ``sources``, each times the two hatted (conjugate) fields, and
        times 1/2 for the covariance of a field with itself.
        """
        variable = {str(x.source.func): x for x in self.action.variables}
        every = "all" if self.action.discrete else "flow all"
        for u in sources:
            fields = tuple(variable[str(a.func)].primal.func(*a.args) for a in (u.symbol, u.partner))
            x = next(y for y in self.action.variables if y.source == u.symbol)
            origin = Term.local(S.Zero, "covariance", u.matrix, "random weights")
            for part in addends(sympify(u.covariance), [r.index for r in u.ranges]):
                addend = Addend(part.expr, (*u.ranges, *part.over), every)
                yield self.term(fields, addend, self.home_of(x), origin)


def _home(population: Population) -> Population:
    """Return the population over which order parameters average.

    It is ``population``, without its layer if all layers share the same units.
    """
    return replace(population, site=None) if population.shared else population


def _contains(e: Expr, names: set[str]) -> bool:
    """Return whether an expression contains a function of one of these names."""
    return any(str(a.func) in names for a in e.atoms(AppliedUndef))


def _require_no_averages_in_time_sums(parts: Iterable[Addend], names: set[str]) -> None:
    """Raise NotApplicable if a sum over times contains an order parameter, one of ``names``."""
    for x in parts:
        for inner in x.expr.atoms(Sum, Integral):
            if _contains(inner, names):
                raise NotApplicable(
                    "fluctuations are not derived where an order parameter stands in a sum or an integral "
                    f"over a time other than the past time s, as in {inner}"
                )


def _sums_in_functions(e: Expr, inside: bool = False) -> set[Sum]:
    """Return the outermost sums inside of functions and powers.

    ``inside`` is true if ``e`` itself stands inside of a function or power.
    """
    if isinstance(e, Sum) and inside:
        return {e}
    below = inside or isinstance(e, Pow | AnyFunction)
    return set[Sum]().union(*(_sums_in_functions(x, below) for x in e.args if isinstance(x, Expr)))
