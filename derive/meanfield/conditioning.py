"""The conditioning rule, applied to every matrix of a program: the first route to its mean-field theory.

For iid M with entries N(0, s2/N), used forwards on fields a_i of its columns C and backwards on b_j of its rows R,

    (M a_i)(t)   = u_i(t) + sum_j sum_s s2 c <d a_i(t)/d r_j(s)> b_j(s),   <u_i(t) u_k(s)> = s2 c <a_i(t) a_k(s)>
    (M^T b_j)(t) = r_j(t) + sum_i sum_s s2 r <d b_j(t)/d u_i(s)> a_i(s),   <r_j(t) r_k(s)> = s2 r <b_j(t) b_k(s)>

with c = |C|/N, r = |R|/N.  When M is square and M_ij is correlated with M_ji by tau, every use sees tau times the same
terms from uses of the same orientation.  A trained weight adds its memory, whose product with a field is an order
parameter times the update's own vector.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Add, Expr, Function, Integral, S, Sum, Symbol, sympify
from sympy.core.function import AppliedUndef, Derivative

from derive.meanfield.averages import Average
from derive.meanfield.causality import Use, equal_time_pairs
from derive.meanfield.names import Registry, Vector, primed, vector
from derive.meanfield.theory import Equation, Source, Term, Theory
from derive.program.checks import member
from derive.program.expressions import GaussianMatrix, IndexRange, Mean, Population, Product, alpha, ell, mu, s, t
from derive.program.program import Definition, Program, gaussian
from derive.program.training import TrainedMatrix, TrainedVector, TrainingRule, accumulate


def mean_field(program: Program) -> Theory:
    """The mean-field theory of ``program`` as N grows, by the conditioning rule.

    >>> from derive.program import mlp
    >>> print(mean_field(mlp()).equation("g").rhs)
    r(L, t) + Sum(eta*gamma0*Delta(alpha, s)*h(L, alpha, s), (alpha, 1, P), (s, 0, t - 1))
    """
    return _Derivation(program).theory()


@dataclass(frozen=True)
class Application:
    """A product in a definition, brought to the matrix's own index: ``M(ell)`` applied to ``vector``."""

    product: Product
    matrix: GaussianMatrix
    trained: TrainedMatrix | None
    lhs: AppliedUndef
    vector: Vector
    member: Expr

    @property
    def transposed(self) -> bool:
        """A backward use."""
        return self.product.transposed

    @property
    def source_name(self) -> str:
        """The Gaussian field that the product turns into."""
        return self.matrix.sources[int(self.transposed)]

    def source(self, time: Expr = t, prime: bool = False) -> AppliedUndef:
        """The source: at the layer of the result, with the indices of the vector."""
        site = _site(self.gives)
        names = [primed(i) if prime else i for i in self.vector.indices]
        return Function(self.source_name)(*site, *names, time)  # type: ignore[no-any-return]

    @property
    def gives(self) -> Population:
        """Where the result lives."""
        p = self.matrix.cols if self.transposed else self.matrix.rows
        return _at(p, self.matrix, self.member)

    @property
    def acts_on(self) -> Population:
        """Where the vector lives."""
        p = self.matrix.rows if self.transposed else self.matrix.cols
        return _at(p, self.matrix, self.member)


def _at(p: Population, matrix: GaussianMatrix, i: Expr) -> Population:
    if p.site is None or matrix.index is None:
        return p
    return p.at(p.site.subs(matrix.index.index, i))


def _site(p: Population) -> tuple[Expr, ...]:
    return () if p.site is None else (p.site,)


def applications(program: Program, d: Definition) -> list[Application]:
    """The matrix products in one definition."""
    found = []
    for product in d.products():
        m = program.matrix_of(product)
        matrix = gaussian(m)
        v = vector(program, product.vector, d.ranges)
        trained = m if isinstance(m, TrainedMatrix) else None
        found.append(Application(product, matrix, trained, d.lhs, v, member(matrix, product)))
    return found


def nonempty(definitions: tuple[Definition, ...]) -> tuple[Definition, ...]:
    """Leave out families without members (the interior of a network with one hidden layer)."""
    return tuple(d for d in definitions if not any(((r.upper - r.lower) < 0) == True for r in d.ranges))  # noqa: E712


class _Derivation:
    """One run of the conditioning rule over a program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.registry = Registry(program)
        self.definitions = nonempty(program.causal_order())
        self.uses = {id(d): applications(program, d) for d in self.definitions}
        self.all = [a for d in self.definitions for a in self.uses[id(d)]]
        flat = [Use(a.matrix.name, a.transposed, str(a.lhs.func), a.vector.body) for a in self.all]
        self.instant = equal_time_pairs(program, flat)
        self.sources: dict[str, Source] = {}

    def theory(self) -> Theory:
        equations, scalars = [], []
        for d in self.definitions:
            e = self.equation(d)
            (scalars if d.name in self.program.scalars else equations).append(e)
        self.name_remaining()
        return Theory(
            program=self.program,
            sources=tuple(self.sources.values()),
            equations=tuple(equations),
            order_parameters=tuple(self.registry.found.values()),
            scalars=tuple(scalars),
            observables=self.tangent_kernel(),
        )

    # -- one equation ------------------------------------------------------------------------------------------------

    def equation(self, d: Definition) -> Equation:
        lhs = Derivative(d.lhs, t) if d.evolves else d.lhs
        terms: list[Term] = []
        for part in Add.make_args(d.rhs.expand()):
            terms += self.part(d, part)
        return Equation(lhs, tuple(terms), d.ranges)

    def part(self, d: Definition, part: Expr) -> list[Term]:
        """The terms that one addend of a definition turns into."""
        products = [a for a in self.uses[id(d)] if part.has(a.product)]
        if products:
            a = products[0]
            factor = part / a.product
            return [self.scaled(factor, x) for x in self.condition(a)]
        for v in self.program.vectors:
            if part.has(v_symbol := (v.initial if isinstance(v, TrainedVector) else v).symbol):
                factor = part / v_symbol
                return [self.scaled(factor, x) for x in self.parameter(d, v)]
        expr = part.replace(lambda e: isinstance(e, Mean), lambda e: Average(e.args[0]))
        return [Term(expr, "definition", rule="as defined")]

    @staticmethod
    def scaled(factor: Expr, term: Term) -> Term:
        if factor == 1:
            return term
        x = term.expr
        if isinstance(x, Sum | Integral):
            return Term(x.func(factor * x.function, *x.limits), term.kind, term.matrix, term.rule)
        return Term(factor * x, term.kind, term.matrix, term.rule)

    # -- one matrix product -------------------------------------------------------------------------------------------

    def condition(self, a: Application) -> list[Term]:
        """The source, the responses and the memory that stand for ``M(t) a(t)``."""
        kept, _ = a.trained.rule.memory(t, s) if a.trained else (S.One, S.One)
        self.add_source(a)
        terms = [Term(kept * a.source(), "source", a.matrix.name, "Gaussian part of the product")]
        for b in self.partners(a):
            terms.append(self.response(a, b, kept))
        if a.trained is not None:
            terms.append(self.memory(a, a.trained))
        return terms

    def partners(self, a: Application) -> list[Application]:
        """The uses of the same matrix whose source ``a`` may respond to."""
        same = [b for b in self.all if b.matrix is a.matrix or b.matrix == a.matrix]
        return [b for b in same if b.transposed != a.transposed or a.matrix.symmetry != 0]

    def add_source(self, a: Application) -> None:
        w = self.renamed(a.vector)
        strength = a.matrix.variance * a.acts_on.ratio
        covariance = strength * self.registry.correlation(a.vector, w)
        ranges = (*self.layers(a), *a.vector.ranges, *w.ranges)
        key = str(a.source())
        self.sources[key] = Source(a.source(), a.source(s, prime=True), covariance, ranges, a.matrix.name)

    @staticmethod
    def layers(a: Application) -> tuple[IndexRange, ...]:
        """The range of the layer index, when the use belongs to a family."""
        return (a.matrix.index,) if a.matrix.index is not None and a.member.has(ell) else ()

    @staticmethod
    def renamed(v: Vector) -> Vector:
        """The same vector at the past time, with primed indices."""
        names = {i: primed(i) for i in v.indices}
        ranges = tuple(IndexRange(primed(r.index), r.lower, r.upper) for r in v.ranges)
        return Vector(v.body.xreplace(names | {t: s}), v.site, ranges)

    def response(self, a: Application, b: Application, kept: Expr) -> Term:
        """``sum_j sum_s s2 c <d a(t)/d source_b(s)> b_j(s)``."""
        other = Application(b.product, b.matrix, b.trained, b.lhs, self.aligned(b.vector, b, a), a.member)
        past = self.renamed(other.vector)
        source = other.source(s, prime=True)
        instant = (a.matrix.name, a.transposed) in self.instant
        strength = a.matrix.variance * a.acts_on.ratio * (1 if a.transposed != b.transposed else a.matrix.symmetry)
        if a.matrix.responses:
            name, index = a.matrix.responses[int(a.transposed)], a.member if a.matrix.index else None
        else:
            name, index = f"R_{self.registry.head(a.vector)}{other.source_name}", a.acts_on.site
        layers = self.layers(a)
        function = self.registry.response(
            name, index, layers[0] if layers else None, a.vector, source, past, "past" if instant else "strict"
        )
        integrand = kept * strength * function * past.body
        rule = "response of the vector to the opposite use of the matrix" + (", equal time included" if instant else "")
        summed = _over(integrand, past.ranges, self.program.rule, instant)
        return Term(summed, "response", a.matrix.name, rule)

    @staticmethod
    def aligned(v: Vector, b: Application, a: Application) -> Vector:
        """``v`` moved from its own member of the family to that of ``a``."""
        if b.matrix.index is None or b.member == a.member:
            return v
        shift = {ell: ell + (a.member - b.member)}
        return Vector(v.body.xreplace(shift), v.site.xreplace(shift) if v.site is not None else None, v.ranges)

    def memory(self, a: Application, trained: TrainedMatrix) -> Term:
        """``sum_s k(t, s) U(s) a(t)``: the update's vector times the overlap of the other one with ``a``."""
        u = trained.update
        _, weight = trained.rule.memory(t, s)
        stays, meets = (u.right, u.left) if a.transposed else (u.left, u.right)
        if a.matrix.index is not None:
            at = {a.matrix.index.index: a.member}
            stays, meets = stays.xreplace(at), meets.xreplace(at)
            coefficient = u.coefficient.xreplace(at)
        else:
            coefficient = u.coefficient
        now = a.vector
        past = vector(self.program, meets, u.over)
        overlap = self.registry.correlation(now, Vector(past.body.xreplace({t: s}), past.site, past.ranges))
        integrand = weight * (coefficient * stays).xreplace({t: s}) * a.acts_on.ratio * overlap
        return Term(_over(integrand, u.over, trained.rule), "memory", a.matrix.name, "update met by the vector")

    def parameter(self, d: Definition, v: object) -> list[Term]:
        """A vector parameter: its Gaussian start and what training has added."""
        initial = v.initial if isinstance(v, TrainedVector) else v
        kept, weight = v.rule.memory(t, s) if isinstance(v, TrainedVector) else (S.One, S.One)
        names = {i: primed(i) for r in d.ranges if (i := r.index) != ell and d.lhs.has(i)}
        source = Function(initial.source)(*d.lhs.args)  # type: ignore[attr-defined]
        ranges = tuple(r for r in d.ranges if d.lhs.has(r.index))
        doubled = tuple(IndexRange(names[r.index], r.lower, r.upper) for r in ranges if r.index in names)
        self.sources[str(source)] = Source(
            source, source.xreplace(names | {t: s}), sympify(initial.variance), (*ranges, *doubled), initial.name  # type: ignore[attr-defined]
        )
        terms = [Term(kept * source, "source", initial.name, "value at initialisation")]  # type: ignore[attr-defined]
        if isinstance(v, TrainedVector):
            u = v.update
            integrand = weight * (u.coefficient * u.vector).xreplace({t: s})
            terms.append(Term(_over(integrand, u.over, v.rule), "memory", v.name, "updates so far"))
        return terms

    # -- the rest -----------------------------------------------------------------------------------------------------

    def name_remaining(self) -> None:
        """Order parameters that the notation names but no equation needed still belong to the theory."""
        for body in self.program.notation:
            ranges = tuple(IndexRange(x, *self._bounds(x)) for x in sorted(body.free_symbols, key=str) if x not in (t, ell))
            v = vector(self.program, body, ranges)
            self.registry.correlation(v, self.renamed(v))

    def _bounds(self, index: Expr) -> tuple[Expr, Expr]:
        for d in self.program.definitions:
            for r in d.ranges:
                if r.index == index:
                    return r.lower, r.upper
        return S.One, S.One

    def tangent_kernel(self) -> tuple[Equation, ...]:
        """``sum over weights of <left left'><right right'>``: how fast an update at one sample moves another's output.

        Each weight's update is the gradient of the output times the error, so the kernel is read off the updates.
        """
        terms = []
        ranges: tuple[IndexRange, ...] = ()
        forward = self.forward_weights()
        for w in self.program.trained():
            if w.name not in forward:
                continue
            u = w.update
            if not u.over or u.over[0].index != alpha:
                return ()
            now = {alpha: mu}
            first = IndexRange(mu, u.over[0].lower, u.over[0].upper)
            ranges = (first, u.over[0])
            parts = (u.left, u.right) if isinstance(w, TrainedMatrix) else (u.vector,)  # type: ignore[union-attr]
            value = S.One
            for body in parts:
                v = vector(self.program, body.xreplace(now), (first,))
                past = vector(self.program, body, u.over)
                value *= self.registry.correlation(v, Vector(past.body.xreplace({t: s}), past.site, past.ranges))
            index = w.initial.index if isinstance(w, TrainedMatrix) else None
            if index is not None:
                if ((index.upper - index.lower) < 0) == True:  # noqa: E712
                    continue
                value = Sum(value, index.limits)
            terms.append(Term(value, "definition", w.name, "gradient with respect to this weight"))
        if not terms:
            return ()
        return (Equation(Function("K")(mu, alpha, t, s), tuple(terms), ranges),)


    def forward_weights(self) -> set[str]:
        """The weights that the outputs are computed with (a separate backward matrix is not one of them)."""
        todo = [d for d in self.definitions if d.rhs.has(Mean)]
        seen: list[Definition] = []
        while todo:
            d = todo.pop()
            if d not in seen:
                seen.append(d)
                todo += [e for a in d.rhs.atoms(AppliedUndef) for e in self.defining(a)]
        names = {gaussian(self.program.matrix_of(x)).name for d in seen for x in d.products()}
        symbols = {x for d in seen for x in d.rhs.free_symbols}
        return names | {v.name for v in self.program.vectors if Symbol(v.name) in symbols}

    def defining(self, atom: AppliedUndef) -> list[Definition]:
        """The definitions that may give ``atom``: the end of a family if it is one, else the family."""
        named = [d for d in self.definitions if d.name == str(atom.func)]
        exact = [d for d in named if d.lhs.args[:1] == atom.args[:1]]
        return exact or named


def _over(integrand: Expr, ranges: tuple[IndexRange, ...], rule: TrainingRule, inclusive: bool = False) -> Expr:
    """Sum over sample-like indices and over the past."""
    if rule.discrete:
        past = accumulate(rule, integrand, s, t, inclusive=inclusive)
        return Sum(integrand, *[r.limits for r in ranges], past.limits[0])
    inner = Sum(integrand, *[r.limits for r in ranges]) if ranges else integrand
    return accumulate(rule, inner, s, t, inclusive=inclusive)
