"""Mean-field theory as the saddle point of the exponent of one unit, for comparison with other derivations.

The derivative of the exponent by a hat is the equation of its field, two derivatives are the covariance of
sources, and averages at the saddle point are the order parameters. Responses that exist at equal times only
by the order of the computation vanish on average and are left out. :func:`derive.theory.routes.check_routes`
compares the result with the theory by Gaussian conditioning, so that each term of the exponent is checked by
an independent derivation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from sympy import Expr, Function, Integer, Mul, S, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.calculus.sums import defined, factors, match, over, substitute, times
from derive.calculus.symbols import IndexRange, expression, spelled
from derive.program.language import Population
from derive.theory.compare import Difference, compare
from derive.theory.data import Equation, OrderParameter, Source, Term, TheoryData
from derive.theory.fluctuations.data import ExponentTerm, FluctuatingParameter, FluctuationData
from derive.theory.fluctuations.hats import Hatted

Definitions = list[tuple[Expr, Expr]]
"""Pairs of an auxiliary number or field and the expression that it represents."""


def saddle_differences(fluctuations: FluctuationData, theory: TheoryData) -> list[Difference]:
    """Return differences between a mean-field theory and the saddle point of an exponent of one unit.

    The path integral over the fields of one unit of a finite network is weighted by exp of the exponent.

    Parameters
    ----------
    fluctuations : FluctuationData
        Exponent of one unit and its order parameters.
    theory : TheoryData
        Mean-field theory of the program, by any derivation.

    Returns
    -------
    list[Difference]
        Empty if the theory is the saddle point of the exponent, its terms belong to the units of their
        fields, and exactly one of two conjugate responses exists at equal times.

    Examples
    --------
    >>> from derive import fluctuations, mean_field, mlp
    >>> saddle_differences(fluctuations(mlp()), mean_field(mlp()))
    []
    """
    instant = {q.name for q in theory.order_parameters if q.causal == "past"}
    both = (_comparable(x, fluctuations.random) for x in (theory, mean_theory(fluctuations, instant)))
    differences = [replace(x, part=f"exponent of one unit, {x.part}") for x in compare(*both)]
    return [*differences, *misplaced(fluctuations), *unpaired(fluctuations)]


def _comparable(theory: TheoryData, random: frozenset[str]) -> TheoryData:
    """Return a theory in a form in which two theories can be compared term by term.

    Averages of sums become sums of averages, and terms of observables are stored without their origin.
    ``random`` are the names of the fields.
    """

    def split_averages(e: Expr) -> Expr:
        return e.replace(lambda x: isinstance(x, Average), lambda x: x.linear(random))

    equations, scalars = (
        tuple(e.map(split_averages) if e.rhs.has(Average) else e for e in part)
        for part in (theory.equations, theory.scalars)
    )
    observables = tuple(replace(e, terms=(Term.local(e.rhs),)) for e in theory.observables)
    return replace(theory, equations=equations, scalars=scalars, observables=observables)


def mean_theory(fluctuations: FluctuationData, instant: Iterable[str]) -> TheoryData:
    """Return the mean-field theory at the saddle point of the exponent E of one unit.

    The path integral over the fields of one unit has the weight exp(E). ``instant`` are the names of the
    responses that do not vanish at equal times.
    """
    return _Saddle(fluctuations, frozenset(instant)).theory()


@dataclass(frozen=True)
class _Saddle:
    """Saddle point of the exponent E of one unit, from which the mean-field theory is read off.

    The path integral over the fields of one unit has the weight exp(E). ``instant`` are the names of the
    responses that do not vanish at equal times.
    """

    fluctuations: FluctuationData
    instant: frozenset[str]

    def theory(self) -> TheoryData:
        """Return the mean-field theory: equations, sources and order parameters at the saddle point."""
        program = self.fluctuations.program
        scalars = [q for q in self.fluctuations.parameters if q.name in program.scalars]
        observables = [q for q in self.fluctuations.parameters if q.kind == "observable"]
        return TheoryData(
            program=program,
            sources=tuple(self.sources()),
            equations=tuple(self.equations()),
            order_parameters=tuple(self.order_parameters()),
            scalars=tuple(map(self.number, scalars)),
            observables=tuple(map(self.number, observables)),
        )

    # -- auxiliary numbers and fields of the exponent --------------------------------------------------------

    @cached_property
    def auxiliary_fields(self) -> Definitions:
        """Pairs of each auxiliary field and the function of other fields and numbers for which it stands."""
        known = {x.name for x in self.fluctuations.program.fields}
        return [(e.symbol, e.rhs) for e in self.fluctuations.definitions if e.name not in known]

    @cached_property
    def auxiliary_numbers(self) -> Definitions:
        """Pairs of each auxiliary number, which is a symbol, and the average or sum for which it stands."""
        numbers = [q for q in self.fluctuations.parameters if q.kind in ("mean", "number")]
        return [(q.symbol, self.value(q)) for q in numbers if q.name not in self.fluctuations.program.scalars]

    def value(self, q: FluctuatingParameter) -> Expr:
        """Return the definition of an order parameter: an average over units plus a function of others."""
        fixed, unit = _substituted(q.unit, self.auxiliary_fields).as_independent(AppliedUndef, as_Add=False)
        return (
            fixed * Average(unit).linear(self.fluctuations.random) + q.function if unit != 0 else q.function
        )

    def as_written(self, e: Expr) -> Expr:
        """Return ``e`` in the fields and numbers of the program.

        Auxiliary fields and numbers, which stand for functions, averages or sums, are replaced by these.
        """
        return _substituted(_substituted(e, self.auxiliary_fields), self.auxiliary_numbers)

    def number(self, q: FluctuatingParameter) -> Equation:
        """Return the equation of an output, error or observable of the theory."""
        return Equation(q.symbol, (Term.local(self.as_written(self.value(q))),), q.ranges)

    # -- equations -------------------------------------------------------------------------------------------

    def equations(self) -> Iterator[Equation]:
        """Yield the equations of the program's fields, with products of matrices and vectors written out.

        A product is replaced by its Gaussian source, its responses and its memory.
        """
        known = {x.name for x in self.fluctuations.program.fields}
        names = {q.name for q in self.fluctuations.parameters if q.kind != "observable"}
        for e in (e for e in self.fluctuations.definitions if e.name in known):
            plain = [x for x in e.terms if not _names(x.expr) & names]
            terms = [*plain, *self.of_exponent(e)]
            yield replace(e, terms=tuple(y for x in terms for y in self.written_out(x)))

    def of_exponent(self, e: Equation) -> Iterator[Term]:
        """Yield the terms that the exponent of one unit contributes to the equation ``e`` of a field.

        They are linear in the hat (the conjugate variable) of the field on the left-hand side of ``e``.
        """
        for x in self.fluctuations.terms:
            elsewhere = any(_disjoint(r, field_range) for r in x.addend.over for field_range in e.ranges)
            if x.hats == (Hatted(e.symbol),) and not elsewhere and (kept := self.on_average(x)) is not None:
                body = kept.addend
                ranges = tuple(r for r in body.over if r not in e.ranges)
                origin = (ranges, body.reach, x.matrix, x.rule)
                yield Term(x.kind, x.weight * body.expr, S.One, S.One, *origin)

    def on_average(self, x: ExponentTerm) -> ExponentTerm | None:
        """Return a term of the exponent of one unit without equal-time responses that vanish on average.

        The result is None if nothing remains.
        """
        named = [q for q in self.fluctuations.parameters if q.kind == "response"]
        met = {q for q in named if q.name in _names(x.addend.expr)}
        if {q.name for q in met} & self.instant or all(q.causal == "strict" for q in met):
            return x
        if x.addend.reach == "past":
            return replace(x, addend=replace(x.addend, reach="strict"))
        return x if x.addend.reach == "flow" else None

    def written_out(self, term: Term) -> Iterator[Term]:
        """Yield the terms that replace ``term``, with its product of a matrix and a vector written out.

        The product is replaced by its Gaussian source, its responses and its memory. A term without a product
        is yielded in the fields of the program.
        """
        body = self.as_written(term.coefficient * term.kernel * term.field)
        for a in (a for a in factors(body) if isinstance(a, AppliedUndef)):
            for product in self.fluctuations.products:
                at = match(product.symbol, a, product.ranges)
                if at is None:
                    continue
                sources = (x for x in product.terms if x.kind == "source")
                for x in (*sources, *self.of_exponent(product)):
                    expr = times(body / a, substitute(self.as_written(x.expr), at))
                    yield Term.local(over(expr, term.over), x.kind, x.matrix, x.rule)
                return
        yield Term.local(over(body, term.over))

    # -- sources and order parameters ------------------------------------------------------------------------

    def source_of(self, field: AppliedUndef) -> AppliedUndef:
        """Return the Gaussian source in the equation of the product ``field``."""
        terms = (x for e in self.fluctuations.products if e.symbol.func == field.func for x in e.terms)
        (source,) = next(x for x in terms if x.kind == "source").expr.atoms(AppliedUndef)
        placed_source: AppliedUndef = source.func(*field.args)
        return placed_source

    def sources(self) -> Iterator[Source]:
        """Yield the Gaussian sources; their covariance is the second derivative of the exponent by hats.

        A hat is the variable of the path integral that is conjugate to a field.
        """
        terms_by_hats: dict[tuple[Hatted, ...], list[ExponentTerm]] = {}
        for x in (x for x in self.fluctuations.terms if len(x.hats) == 2):
            terms_by_hats.setdefault(x.hats, []).append(x)
        for hats, terms in terms_by_hats.items():
            first, second = (self.source_of(x.field) for x in hats)
            free = first.free_symbols | second.free_symbols
            orders = 2 if first.func == second.func else 1
            whole = S.Zero
            for x in terms:
                inner = tuple(r for r in x.addend.over if r.index not in free)
                whole += over(orders * x.weight * x.addend.expr, inner)
            ranges = tuple(r for r in terms[0].addend.over if r.index in free)
            yield Source(first, second, whole, ranges, terms[0].matrix)

    def order_parameters(self) -> Iterator[OrderParameter]:
        """Yield the correlations, and the responses that do not vanish on average."""
        for q in self.fluctuations.parameters:
            if q.kind == "correlation" or (
                q.kind == "response" and (q.causal != "now" or q.name in self.instant)
            ):
                causal = q.causal and ("past" if q.name in self.instant else "strict")
                yield OrderParameter(q.symbol, self.definition(q), q.kind, q.ranges, causal)

    def definition(self, q: FluctuatingParameter) -> Expr:
        """Return the average that defines an order parameter, with hats written as derivatives by sources.

        A hat is the variable of the path integral that is conjugate to a field.
        """
        unit = _substituted(q.unit, self.auxiliary_fields)
        if q.kind == "correlation":
            return Average(unit)
        hat = _hat_of_response(q)
        return Average(Response((unit / hat).expand(), self.source_of(hat.field)))


def _disjoint(r: IndexRange, other: IndexRange) -> bool:
    """Return whether two ranges are of the same index and are known to have no value in common."""
    gaps = (r.lower - other.upper, other.lower - r.upper)
    return r.index == other.index and any(expression(x).is_positive for x in gaps)


def _substituted(e: Expr, definitions: Definitions) -> Expr:
    """Return ``e`` with left-hand sides of ``definitions`` replaced by right-hand sides, repeatedly."""
    while definitions and (new := defined(e, definitions)) != e:
        e = new
    return e


def _names(e: Expr) -> set[str]:
    """Return the names of the functions in an expression."""
    return {str(a.func) for a in e.atoms(AppliedUndef)}


# -- statements that the mean-field theory does not contain --------------------------------------------------


def misplaced(fluctuations: FluctuationData) -> Iterator[Difference]:
    """Yield a difference for each field of other units in an equation, a term or an average.

    All fields in the equation of one unit, and in an average over it, must belong to units of the same
    population and layer.
    """
    stated = [(f"order parameter {q.symbol}", q.unit, q.home) for q in fluctuations.parameters]
    stated += [(f"exponent of {x.hats[0]}", Mul(*x.hats) * x.addend.expr, x.home) for x in fluctuations.terms]
    equations = zip((*fluctuations.products, *fluctuations.definitions), fluctuations.homes, strict=True)
    stated += [(f"equation of {e.symbol}", e.rhs, home) for e, home in equations]
    for label, e, home in stated:
        for a in sorted(
            (a for a in e.atoms(AppliedUndef) if str(a.func) in fluctuations.random), key=spelled
        ):
            home_of_field = fluctuations.home_at(a)
            if home is None or not _same_units(home_of_field, home):
                yield Difference("units", label, _units(home), _units(home_of_field))


def _same_units(one: Population, other: Population) -> bool:
    """Return whether two populations are the same one, at the same layer."""
    if one.name != other.name or (one.site is None) != (other.site is None):
        return False
    return one.site is None or other.site is None or (one.site - other.site).expand() == 0


def _units(home: Population | None) -> Expr:
    """Return a population and its layer as an expression for messages: ``layer(ell)``, or ``none``."""
    if home is None:
        return Symbol("none")
    return Symbol(home.name) if home.site is None else Function(home.name)(home.site)


def unpaired(fluctuations: FluctuationData) -> Iterator[Difference]:
    """Yield a difference for each pair of conjugate responses unless exactly one exists at equal times.

    Two responses are conjugate if they belong to two products of the same matrix, and the equation of each
    product contains the response to the other one. Responses in continuous time are not checked.
    """
    responses = {q.name: q for q in fluctuations.parameters if q.kind == "response"}
    at_once: dict[tuple[str, str], bool] = {}
    for x in (x for x in fluctuations.terms if x.kind == "response" and x.discrete):
        for name in sorted(_names(x.addend.expr) & {*responses}):
            places = str(x.hats[0].field.func), str(_hat_of_response(responses[name]).field.func)
            at_once[places] = responses[name].causal in ("past", "now")
    for (field, other), exists in at_once.items():
        count = exists + at_once.get((other, field), False)
        if count != 1:
            yield Difference("pair", f"of {field} and {other} at equal times", Integer(count), S.One)


def _hat_of_response(q: FluctuatingParameter) -> Hatted:
    """Return the hatted field in the average of a response.

    It is the variable conjugate to the field whose equation is perturbed.
    """
    (hat,) = q.unit.atoms(Hatted)
    assert isinstance(hat, Hatted)
    return hat
