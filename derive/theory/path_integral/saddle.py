"""Saddle point, auxiliary Gaussian fields, single-site equations and the resulting theory (D.33-D.44).

*Saddle point.* Conditions follow by functional differentiation; a derivative of ``ln Z`` is the single-site
average of the derivative of its exponent.

*Causality.* Within one step a field is a function of the fields and sources of the same time and site. The
derivative of a vector by a source at equal time is a sum over chains of derivatives of these functions; if no
chain leads from the source to the vector, the response starts one step later. A response at equal time is
itself a link: ``chi_a(t) = u_a(t) + R(t, t) b(t) + past``. The set of such responses is therefore found by
iteration from the empty set.

*Theory.* Causality bounds sums over the past, and trained weights add their memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from sympy import Add, Dummy, Eq, Expr, I, Integral, KroneckerDelta, Mul, Piecewise, S, Sum, Symbol
from sympy.core.function import AppliedUndef
from sympy.matrices import Inverse, MatrixSymbol

from derive.calculus.averages import Average, Response
from derive.calculus.functional import functional_derivative
from derive.calculus.sums import factors, times
from derive.calculus.symbols import IndexRange, ell, mu, s, t
from derive.program.language import Mean, Product
from derive.theory.applications import Application, Parameter, earlier, tangent_kernel
from derive.theory.data import OrderParameter, Source, Term, TheoryData
from derive.theory.names import symmetric, unused_primed
from derive.theory.path_integral.action import (
    Action,
    Correlation,
    Leg,
    ResponseParameter,
    UseVariable,
    over,
    with_time_covariances,
)
from derive.theory.path_integral.weights import is_random, matrix_memory, vector_memory


class SaddlePoint:
    """Stationarity conditions of an action; each is solved for its order parameter when needed."""

    def __init__(self, action: Action) -> None:
        self.action = action
        program = action.reading.program
        fields = {x.name for x in program.fields} | {x.name for x in program.attributes}
        self.hats = frozenset(str(x.hat.func) for x in action.variables)
        self.random = self.hats | fields | {str(x.primal.func) for x in action.variables}
        self.order = symmetric(action.reading.registry.found.values(), program.given)
        self._solved: dict[Expr, Eq] = {}
        self._processes: dict[Expr, list[Term]] = {}

    def stationary(
        self,
        unknown: AppliedUndef,
        target: AppliedUndef,
        ranges: tuple[IndexRange, ...],
        part: tuple[Expr, Iterable[Expr]] | None = None,
    ) -> Eq:
        """Return the saddle-point condition ``delta S / delta target = 0``, solved for ``unknown``.

        S is the action, or a ``part`` of it: a pair of an algebraic term and terms of single-site exponents.
        The derivative of ``ln Z`` (Z is the integral over the fields of one unit) is an average. ``ranges``
        are those of the indices of ``unknown`` and ``target``. Raises ValueError if the condition is not
        linear in ``unknown``, or contains other terms outside of averages.
        """
        a = self.action
        algebra, exponents = part or (a.algebraic, [a.weighted(p) for p in a.sites])
        fixed = functional_derivative(algebra, target, ranges).expand()
        moved = Add(*[averaged(functional_derivative(x, target, ranges), self.random) for x in exponents])
        slope = fixed.coeff(unknown)
        if slope == 0 or (fixed - slope * unknown).expand() != 0:
            raise ValueError(
                f"the stationarity condition {fixed} + {moved} = 0 is not a multiple of {unknown} plus "
                "averages"
            )
        return Eq(unknown, _divided(-moved, slope), evaluate=False)

    def correlation(self, q: Correlation) -> Eq:
        """Return the saddle-point equation ``C = <a b>`` of a correlation C.

        It follows by varying the action by the conjugate variable of C; a and b are the two correlated
        vectors.
        """
        if q.symbol not in self._solved:
            self._solved[q.symbol] = self.stationary(q.symbol, q.conjugate, q.ranges)
        return self._solved[q.symbol]

    def conjugate(self, q: Correlation) -> Eq:
        """Return the saddle-point equation of ``Chat``, the conjugate variable of a correlation C.

        It follows by varying the action by C, and gives Chat by averages of products of two hatted fields.
        """
        return self.stationary(q.conjugate, q.symbol, q.ranges)

    def response(self, q: ResponseParameter) -> Eq:
        """Return the saddle-point equation ``A = -i <a hat> / scale`` of a response A.

        The scale is that of the program, a is the vector that responds and hat the hatted field of the
        perturbed product. The equation follows by varying the conjugate of A in the term of the action that
        contains both.
        """
        if q.symbol not in self._solved:
            part = q.algebra, q.exponents
            self._solved[q.symbol] = self.stationary(q.symbol, q.conjugate, q.ranges, part)
        return self._solved[q.symbol]

    def equations(self) -> tuple[Eq, ...]:
        """Return all saddle-point equations: of correlations, of their conjugates, and of responses."""
        conditions: list[Eq] = []
        for q in self.action.correlations.values():
            conditions += [self.correlation(q), self.conjugate(q)]
        return (*conditions, *(self.response(a) for a in self.action.responses.values()))

    def vanished(self, q: Correlation) -> Eq:
        """Return the equation ``Chat = 0`` of a conjugate of a correlation.

        Each average in its condition must be of the product of two hatted fields; otherwise ValueError is
        raised. Such an average vanishes, see :func:`hatted_correlator`.
        """

        def zero(e: Average) -> Expr:
            pair = factors(e.body)
            if len(pair) != 2 or any(str(x.func) not in self.hats for x in pair):
                raise ValueError(
                    f"the saddle point is not derived: the conjugate order parameter of {q.symbol} is not "
                    f"an average of two conjugate (hatted) fields: {e}"
                )
            return S.Zero

        rhs = self.conjugate(q).rhs
        return Eq(q.conjugate, rhs.xreplace({e: zero(e) for e in rhs.atoms(Average)}), evaluate=False)

    # -- auxiliary Gaussian fields ---------------------------------------------------------------------------

    def sources(self) -> Iterator[Source]:
        """Yield the Gaussian fields that replace the quadratic part of the exponents (D.38, D.39).

        There is one `Source` for each pair of uses of weights whose Gaussian fields are correlated, also for
        a use with itself. The quadratic part is quadratic in hatted fields. The average of
        ``exp(-i sum hat source)`` gives it, so the covariance is minus its second derivative by hatted
        fields.
        """
        everything = self.action.variables
        for i, x in enumerate(everything):
            slope = functional_derivative(self.action.exponent(x.home, "quadratic"), x.hat, x.limits)
            for y in (z for z in everything[i:] if z.home == x.home):
                yield from self.covariance(x, y, slope)

    def covariance(self, x: UseVariable, y: UseVariable, slope: Expr) -> Iterator[Source]:
        """Yield the covariance of the Gaussian fields of two uses of weights, x and y, unless it is zero.

        ``slope`` is the derivative of the quadratic exponent by the hatted field of ``x``. Nothing is yielded
        for two different uses that have the same Gaussian field.
        """
        b = y.past(x.indices)
        ranges = (*x.limits, *(r for r in b.limits if r not in x.limits))
        force = self.order(functional_derivative(slope, b.hat, ranges).expand()).expand()
        value = times(S.NegativeOne, force)
        if value != 0 and (x is y or x.source != y.source):
            yield Source(x.source, b.source, value, ranges, x.matrix)

    # -- single-site equations -------------------------------------------------------------------------------

    def single_site(self, leg: UseVariable) -> list[Term]:
        """Return the terms of the field that a use of weights gives: Gaussian source and responses (D.40).

        They follow from the integral over its hatted field. Results are kept in memory.
        """
        if leg.primal not in self._processes:
            self._processes[leg.primal] = self._single_site(leg)
        return self._processes[leg.primal]

    def _single_site(self, leg: UseVariable) -> list[Term]:
        """Derive the terms of the field that a use of weights gives: the Gaussian source, and responses.

        Responses run over all times. The list is empty for a matrix without a random part.
        """
        # A matrix without random initial entries consists of its updates alone: it gives no source and no
        # response.
        if isinstance(leg, Leg) and not is_random(leg.use):
            return []
        constraint = self.action.exponent(leg.home, "constraint")
        slope = functional_derivative(constraint, leg.hat, leg.limits).coeff(leg.primal)
        gaussian = functional_derivative(self.coupling(leg), leg.hat, leg.limits)
        terms = [Term.local((-gaussian / slope).expand(), "source", leg.matrix, "auxiliary Gaussian field")]
        for piece in self.action.sites[leg.home]:
            if isinstance(leg, Leg) and piece.kind == "response" and piece.matrix == leg.matrix:
                force = functional_derivative(piece.expr, leg.hat, leg.limits)
                if force != 0:
                    expr = _tidy(_divided(-force, slope), leg.use.indices)
                    rule = "saddle point of the mixed inner product"
                    terms.append(Term.local(expr, "response", leg.matrix, rule))
        return terms

    def coupling(self, leg: UseVariable) -> Expr:
        """Return ``-i sum hat source``, the term of the exponent by which a Gaussian source enters.

        ``hat`` is the hatted field of a use of weights (a product with a matrix or a vector of weights) and
        ``source`` its Gaussian source; the sum is over indices and times.
        """
        return over(-I * leg.hat * leg.source, leg.limits, (t,), self.action.discrete)

    def as_response(self, q: ResponseParameter, equation: Eq) -> Expr:
        """Return the right-hand side of ``equation`` with averages ``-i <a hat>`` written as responses of a.

        The source enters the exponent through ``coupling``, so ``d exp/d source = slope * hat * exp``;
        integrated over the fields this gives ``<a hat> = <d a / d source> / slope`` (Stein's lemma without an
        inverse, D.43). Raises ValueError for an average without the hatted field.
        """
        past = q.other.past(q.leg.use.indices).beside(q.leg)
        slope = functional_derivative(self.coupling(q.other), past.source, past.limits) / past.hat

        def turn(e: Average) -> Expr:
            rest = Mul(*[x for x in Mul.make_args(e.body) if x != past.hat])
            if rest == e.body:
                raise ValueError(
                    f"the average {e} is not a response, because it does not contain {past.hat}, the "
                    "conjugate field of the source"
                )
            return Average(Response(rest, past.source)) / slope

        return equation.rhs.xreplace({e: turn(e) for e in equation.rhs.atoms(Average)})


def hatted_correlator() -> tuple[Expr, Expr]:
    """Return ``<hat hat^T>`` for the hatted fields that are conjugate to Gaussian fields u of covariance C.

    Returns
    -------
    tuple[Expr, Expr]
        Formula in ``M = <u u^T>``, and its value for ``M = C``, which is zero.

    Notes
    -----
    Shift the field by j: the exponent becomes ``-(1/2)(u + j)^T C^{-1} (u + j)``, and ``<hat hat^T>`` is
    minus the second derivative of its average by j. It vanishes because u has covariance C (D.35, D.36,
    D.41).

    Examples
    --------
    >>> hatted_correlator()
    (C**(-1) - C**(-1)*M*C**(-1), 0)
    """
    n = Symbol("n", integer=True, positive=True)
    covariance, moment = MatrixSymbol("C", n, n), MatrixSymbol("M", n, n)
    formula = Inverse(covariance) - Inverse(covariance) * moment * Inverse(covariance)
    return formula, formula.subs(moment, covariance).doit()


def averaged(e: Expr, random: frozenset[str]) -> Expr:
    """Return the average of an expression over the fields of one unit, with sums and cases outside of it.

    ``random`` are the names of functions that differ from unit to unit; factors without them stand in front.
    """
    if isinstance(e, Add):
        return Add(*[averaged(x, random) for x in e.args])
    if isinstance(e, Piecewise):
        return Piecewise(*[(averaged(x, random), c) for x, c in e.args])
    case = next((x for x in Mul.make_args(e) if isinstance(x, Piecewise)), None)
    if case is not None:
        other_factors = Mul(*[x for x in Mul.make_args(e) if x is not case])
        return averaged(Piecewise(*[(other_factors * x, c) for x, c in case.args]), random)
    return e if e == 0 else Average(e).linear(random)


def _divided(e: Expr, by: Expr) -> Expr:
    """Return ``e / by``, divided inside sums, integrals and cases."""
    if isinstance(e, Add):
        return Add(*[_divided(x, by) for x in e.args])
    if isinstance(e, Sum | Integral):
        return e.func(_divided(e.function, by), *e.limits)
    if isinstance(e, Piecewise):
        return Piecewise(*[(_divided(x, by), c) for x, c in e.args])
    inner = [x for x in Mul.make_args(e) if isinstance(x, Sum | Integral | Piecewise)]
    if len(inner) == 1 and e != inner[0]:
        other_factors = Mul(*[x for x in Mul.make_args(e) if x is not inner[0]])
        return _divided(inner[0], by / other_factors)
    return (e / by).expand()


def _tidy(e: Expr, taken: tuple[Symbol, ...]) -> Expr:
    """Return ``e`` with standard names of summation variables: s for the past time, and plain indices.

    The index mu, and an index among ``taken`` (indices in use elsewhere), are primed: ``alpha`` for mu, and
    ``p_`` for an index p.
    """
    names = {}
    for v in (lim[0] for x in e.atoms(Sum, Integral) for lim in x.limits):
        plain = Symbol(v.name.rstrip("'"), **v.assumptions0)
        if plain in (s, t):
            names[v] = s
        else:
            names[v] = unused_primed(plain, taken) if plain in (*taken, mu) else plain
    return e.xreplace(names)


def instant_responses(action: Action) -> frozenset[str]:
    """Return the names of the responses that can differ from zero at ``s = t``.

    They are those whose vector is computed from the source within one step; layers are not distinguished.

    >>> from derive.program import isotropic, mlp
    >>> from derive.theory.path_integral import path_integral
    >>> [sorted(instant_responses(path_integral(p)._action)) for p in (mlp(2), isotropic(1))]
    [[], ['R_Delta', 'R_h0r0']]
    """
    return _Step(action).equal_time_responses()


class _Step:
    """Dependencies of fields and products of one unit on each other within one time step.

    ``variables`` and ``products`` give a symbol for each field and product, and ``links`` the expressions in
    these symbols by which a symbol is computed.
    """

    def __init__(self, action: Action) -> None:
        self.action = action
        self.responses = tuple(action.responses.values())
        self.variables = {x.name: Dummy(x.name) for x in action.reading.program.fields}
        self.products = {str(x.primal.func): Dummy(str(x.primal.func)) for x in action.legs}
        self.links: dict[Dummy, list[Expr]] = {}
        for d in action.reading.definitions:
            # An equation for the rate of a field (`d.evolves`) links no fields within one time step, because
            # the rate changes its field only at later times.
            if d.name in self.variables and not d.evolves:
                self.links.setdefault(self.variables[d.name], []).append(self.written(d.rhs))

    def written(self, e: Expr) -> Expr:
        """Return an expression in the symbols of one time step.

        Fields at time t and products become symbols, and each average a constant. Scalars and earlier values
        stay as they are.
        """

        def product(x: Expr) -> Expr:
            uses = (a for xs in self.action.reading.products.values() for a in xs if a.product == x)
            if (use := next(uses, None)) is None:
                return Dummy("constant")
            leg = next(y for y in self.action.legs if y.use.same_use(use))
            return self.products[str(leg.primal.func)]

        e = e.replace(lambda x: isinstance(x, Mean), lambda x: Dummy("average"))
        e = e.replace(lambda x: isinstance(x, Product), product)
        now = {a: self.variables.get(str(a.func)) for a in e.atoms(AppliedUndef) if a.args[-1] == t}
        return e.xreplace({a: v for a, v in now.items() if v is not None})

    def equal_time_responses(self) -> frozenset[str]:
        """Return the names of the responses that can differ from zero at equal times.

        They are found by iteration from the empty set, because such a response is itself a dependence.
        """
        names: set[str] = set()
        while True:
            links = {x: list(rows) for x, rows in self.links.items()}
            for q in (q for q in self.responses if str(q.symbol.func) in names):
                at = self.products[str(q.leg.primal.func)]
                links.setdefault(at, []).append(self.written(q.other.body))
            new = {str(q.symbol.func) for q in self.responses if self.reaches(q, links)}
            if new <= names:
                return frozenset(names)
            names |= new

    def reaches(self, q: ResponseParameter, links: dict[Dummy, list[Expr]]) -> bool:
        """Return whether the vector of the response ``q`` depends, within one time step, on its source.

        The source is that in the product ``q.other``. ``links`` gives for each symbol the expressions by
        which it is computed; the derivatives along the chain from source to vector must not be zero.
        """
        goal = self.products[str(q.other.primal.func)]
        known = {*self.variables.values(), *self.products.values()}
        todo, seen = [self.written(q.leg.body)], set[Dummy]()
        while todo:
            e = todo.pop()
            for x in (x for x in sorted(e.free_symbols & known - seen, key=str) if e.diff(x) != 0):
                if x == goal:
                    return True
                seen.add(x)
                todo += links.get(x, [])
        return False


class Assembly:
    """Builder of a theory: replaces each product of a matrix and a vector in the program's definitions.

    A product is replaced by its Gaussian source, responses and memory. ``at_equal_times`` are the names of
    the responses that are kept at equal times; by default those that can differ from zero there.
    """

    def __init__(self, saddle: SaddlePoint, at_equal_times: frozenset[str] | None = None) -> None:
        self.saddle = saddle
        self.action = saddle.action
        self.reading = saddle.action.reading
        self.program = self.reading.program
        self.instant = instant_responses(self.action) if at_equal_times is None else at_equal_times
        self.vanishing = set()
        for q in self.action.responses.values():
            # A response q is zero if its vector contains no field, so that no function in `atoms` is a field,
            # or if its matrix is drawn anew at each step and the response does not exist at equal times.
            name, atoms = str(q.symbol.func), q.leg.body.atoms(AppliedUndef)
            moves = any(self.program.field_of(str(a.func)) is not None for a in atoms)
            if not moves or (q.leg.use.matrix.fresh and name not in self.instant):
                self.vanishing.add(name)

    def theory(self) -> TheoryData:
        """Return the mean-field theory, in the same form as by Gaussian conditioning."""
        equations, scalars = self.reading.equations(self.product, self.parameter)
        legs = self.action.legs
        sources = self.saddle.sources()
        return TheoryData(
            program=self.program,
            sources=tuple(replace(u, covariance=with_time_covariances(u.covariance, legs)) for u in sources),
            equations=equations,
            order_parameters=self.order_parameters(),
            scalars=scalars,
            observables=tangent_kernel(self.reading),
        )

    def order_parameters(self) -> tuple[OrderParameter, ...]:
        """Return the order parameters with definitions from the saddle point.

        Correlations stand first. Responses that vanish at all times are left out.
        """
        correlations = (
            OrderParameter(q.symbol, self.saddle.correlation(q).rhs, "correlation", q.ranges)
            for q in self.action.correlations.values()
        )
        responses = (q for q in self.action.responses.values() if str(q.symbol.func) not in self.vanishing)
        return (*correlations, *map(self.order_parameter, responses))

    def order_parameter(self, a: ResponseParameter) -> OrderParameter:
        """Return a response as an order parameter of the theory.

        It is a function of the indices of its vector and of its source.
        """
        v = a.leg.use.vector
        definition = self.saddle.as_response(a, self.saddle.response(a))
        moved = dict(zip(v.arguments, v.indices, strict=True))
        symbol, definition = (x.xreplace(moved) for x in (self.action.merged_responses(a.symbol), definition))
        # `definition` contains the source of the same member of the family as the responding product `a.leg`.
        # The order parameter is defined for the sources of all members, with the indices of `past`.
        past = a.other.past(a.leg.use.indices)
        definition = definition.xreplace({past.beside(a.leg).source: past.source})
        kept = len(symbol.args) - len(past.ranges) - 2
        symbol = symbol.func(*symbol.args[:kept], *past.indices, *symbol.args[-2:])
        extents = [self.reading.registry.extent(v, n) for n in range(len(v.ranges))]
        vector_ranges = tuple(IndexRange(i, *x) for i, x in zip(v.indices, extents, strict=True))
        ranges = (*a.leg.use.layers, *vector_ranges, *past.ranges)
        causal = "past" if str(a.symbol.func) in self.instant else "strict"
        return OrderParameter(symbol, definition, "response", ranges, causal)

    # -- equations -------------------------------------------------------------------------------------------

    def product(self, a: Application) -> list[Term]:
        """Return the terms that replace a product of a matrix and a vector: source, responses and memory.

        Source and responses come from the random part of the matrix, memory from its updates.
        """
        leg = next(x for x in self.action.legs if x.use.same_use(a))
        # `leg` is the product a as the action stores it: if its matrix belongs to a family, at the declared
        # index, such as W(ell) for W(ell - 1). The terms of the leg have the indices of the leg. `moved`
        # replaces them, and the layer, by those of the product a.
        moved: dict[Any, Any] = dict(zip(leg.indices, (r.index for r in a.ranges), strict=True))
        if a.layers and a.member != leg.use.member:
            moved[ell] = ell + (a.member - leg.use.member)

        def here(x: Term) -> Term:
            """Return a term with the indices of the product ``a`` of the enclosing method.

            Summed indices of the term that occur in ``a`` get other names.
            """
            names = {r.index: unused_primed(r.index, a.indices) for r in x.over if r.index in a.indices}

            def at(e: Expr) -> Expr:
                placed = e.xreplace({**names, **moved})
                return self.action.merged_responses(with_time_covariances(placed, self.action.legs))

            over = tuple(r.renamed(names.get(r.index, r.index)) for r in x.over)
            return replace(x, over=over).map(at)

        terms = [here(y) for x in self.saddle.single_site(leg) for y in self.structured(x)]
        terms = [replace(x, kernel=earlier(x.kernel)) if x.kind == "response" else x for x in terms]
        return [*terms, *(matrix_memory(self.reading, a, a.trained) if a.trained else [])]

    def parameter(self, p: Parameter) -> list[Term]:
        """Return the terms that replace a vector of weights: its Gaussian source, and its updates."""
        entry = next(x for x in self.action.entries if x.source == p.source())
        moved = [] if p.trained is None else [vector_memory(p, p.trained)]
        return [*self.saddle.single_site(entry), *moved]

    def structured(self, term: Term) -> Iterator[Term]:
        """Yield a term of a single-site equation in parts: sums over the past of a kernel times a field.

        In each part the factors that differ from unit to unit form the field. The sum over all times is
        restricted to the past by causality, or to time t for a matrix that is drawn anew at each step. Parts
        with a response that vanishes are left out. A Gaussian source is returned unchanged.
        """
        if term.kind == "source":
            yield term
            return
        responses = {str(q.symbol.func) for q in self.action.responses.values()}
        for body, limits in _addends(term.expr):
            names = {str(a.func) for a in body.atoms(AppliedUndef)} & responses
            instant, past, reach = bool(names & self.instant), any(x[0] == s for x in limits), ""
            fresh = past and body.has(KroneckerDelta(t, s))
            if names & self.vanishing or (fresh and not instant):
                continue
            if fresh:
                body = body.xreplace({s: t})
            elif past:
                reach = "flow" if not self.action.discrete else "past" if instant else "strict"
            random = [
                x
                for x in Mul.make_args(body)
                if {str(a.func) for a in x.atoms(AppliedUndef)} & self.saddle.random
            ]
            kernel = Mul(*[x for x in Mul.make_args(body) if x not in random])
            over = tuple(IndexRange(*x) for x in limits if x[0] != s)
            yield Term(term.kind, Mul(*random), S.One, kernel, over, reach, term.matrix, term.rule)


def _addends(e: Expr) -> Iterator[tuple[Expr, list[Any]]]:
    """Yield the terms of ``e``, also those in its sums and integrals, each with the limits of its sums."""
    for body in Add.make_args(e):
        limits: list[Any] = []
        while inner := [x for x in Mul.make_args(body) if isinstance(x, Sum | Integral)]:
            limits += inner[0].limits
            body = body / inner[0] * inner[0].function
        yield from ((x, limits) for x in Add.make_args(body))
