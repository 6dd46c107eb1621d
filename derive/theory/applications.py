"""How a program uses its matrices: which vector meets which matrix, and how the Gaussian sources are called.

Both routes to the mean-field theory start from this list; nothing here knows what becomes of a product.
The first route also asks which responses reach their own time: ``<d a(t) / d r(s)>`` has an ``s = t`` part
exactly when, at one site and within one step, ``a`` is computed from the field that carries ``r``.  Both
show the tangent kernel, which is read off the updates and enters no equation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from sympy import (
    Derivative,
    Dummy,
    Expr,
    Function,
    Integral,
    KroneckerDelta,
    Min,
    Mul,
    S,
    Sum,
    Symbol,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.calculus.symbols import IndexRange, ell, primed, s, t
from derive.errors import ProgramError
from derive.program.naming import apart as apart_from
from derive.program.naming import aside
from derive.program.nonlinear import NonlinearRule, RewrittenSteps
from derive.program.outer_steps import outer_products
from derive.program.parts import Definition, gaussian
from derive.program.program import Program, member
from derive.program.rules import entry_covariance
from derive.program.training import Outer, TrainedMatrix, TrainedVector
from derive.program.unread import MemberBounds
from derive.program.words import GaussianMatrix, GaussianVector, Mean, Population, Product, terms
from derive.theory.data import Equation, Term
from derive.theory.names import Registry, Vector, differs, primed_apart, vector

MatrixProductKey = tuple[str, bool, Expr]
"""A product: the name of its matrix, whether it is transposed, and the vector."""


def equal_time_pairs(
    program: Program, uses: Iterable[Application]
) -> set[tuple[MatrixProductKey, MatrixProductKey]]:
    """The pairs of products, by key, where the first vector responds within the step to the second source.

    Whether ``a`` is computed from the field that carries ``r`` depends in turn on which responses have an
    equal-time part, so the least solution is found by iteration: start from none and add what is forced.
    """
    every = list(uses)
    coupled = [  # opposite uses; equal ones if the matrix is correlated with its transpose
        (a, b)
        for a in every
        for b in every
        if a.matrix == b.matrix and a.is_random and (a.transposed != b.transposed or a.matrix.symmetry != 0)
    ]
    reached: set[tuple[MatrixProductKey, MatrixProductKey]] = set()
    while True:
        graph = _graph(program, [(a, b) for a, b in coupled if (a.key, b.key) in reached and a.at_once])
        new = {
            (a.key, b.key)
            for a, b in coupled
            if b.at_once and any(reaches(graph, x, b.gives_field) for x in _names(a.key[2]) & set(graph))
        }
        if new <= reached:
            return reached
        reached |= new


def _names(e: Expr) -> set[str]:
    return {str(a.func) for a in e.atoms(AppliedUndef)}


def _graph(program: Program, answered: list[tuple[Application, Application]]) -> dict[str, set[str]]:
    """Which fields of one site enter which at the same time: directly, or by a response at equal time."""
    graph: dict[str, set[str]] = {x.name: set() for x in program.fields}

    def enter(name: str, e: Expr) -> None:
        atoms = {a for a in e.atoms(AppliedUndef) if a.args[-1] == t}
        graph[name] |= {str(a.func) for a in atoms} & set(graph)

    for d in program.definitions:
        if d.name in graph and not d.evolves:
            # what multiplies a product acts at once; what is inside one acts by its source and responses
            enter(d.name, d.rhs.replace(lambda e: isinstance(e, Product), lambda _: Dummy("product")))
    for a, b in answered:
        enter(a.gives_field, b.key[2])
    return graph


# -- of a theory ---------------------------------------------------------------------------------------------


def computed_now(equations: Iterable[Equation], names: Collection[str]) -> dict[str, set[str]]:
    """For each field, which of ``names`` its equation takes at the present time, also as the end of a sum."""
    found: dict[str, set[str]] = {}
    for e in equations:
        own = found.setdefault(e.name, set())
        if not isinstance(e.lhs, Derivative):
            for x in e.terms:
                own |= _at_once_in(x.expr, names)
    return found


def reaches(now: Mapping[str, Collection[str]], start: str, goal: str) -> bool:
    """Is ``goal`` computed, by the relation :func:`computed_now`, on the way to ``start``?

    >>> reaches({"h": {"u"}, "z": {"h"}}, "z", "u")
    True
    """
    todo, seen = [start], set()
    while todo:
        name = todo.pop()
        if name == goal:
            return True
        if name not in seen:
            seen.add(name)
            todo += now.get(name, ())
    return False


def _at_once_in(e: Expr, names: Collection[str]) -> set[str]:
    """Names that enter ``e`` at the present time, sums that include it counted, integrals not."""
    if isinstance(e, Integral) or getattr(e, "is_averaged", False):
        return set()
    if isinstance(e, Sum):
        return _at_once_in(e.function.xreplace({v: upper for v, _, upper in e.limits if upper == t}), names)
    if isinstance(e, AppliedUndef) and str(e.func) in names and e.args[-1] == t:
        return {str(e.func)}
    return set().union(*[_at_once_in(x, names) for x in e.args]) if e.args else set()


@dataclass(frozen=True)
class Application:
    """One product in a definition: ``matrix`` (or ``member`` of it, a family) applied to ``vector``.

    ``layers`` holds the range of the layer index, when the definition is of a family; ``indices`` all the
    other indices of the definition.  ``summed`` are further indices of the matrix family over which the
    definition adds up products (the offsets of a convolution): all its members act together, like one
    matrix on stacked vectors.  Where members do not act together (each expert has its own vector, or its own
    factor), ``apart`` are these indices, and each member gives a source of its own.  A product in a rate of
    change does not move its field ``at_once``.
    """

    product: Product
    matrix: GaussianMatrix
    trained: TrainedMatrix | None
    vector: Vector
    member: Expr
    gives_field: str
    layers: tuple[IndexRange, ...] = ()
    indices: tuple[Symbol, ...] = ()
    summed: tuple[IndexRange, ...] = ()
    apart: tuple[IndexRange, ...] = ()
    at_once: bool = True
    source_name: str = ""

    @property
    def transposed(self) -> bool:
        """True for a backward use."""
        return self.product.transposed

    def entries(self, time: Expr = t, past: Expr = s) -> Expr:
        """The covariance of an entry of the random matrix at two times, in units of its initial variance."""
        if self.matrix.fresh:
            return KroneckerDelta(time, past)
        return self.here(entry_covariance(self.trained.rule, time, past)) if self.trained else S.One

    @property
    def variance(self) -> Expr:
        """The variance of the member that is used, times N."""
        return self.here(sympify(self.matrix.variance))

    @property
    def is_random(self) -> bool:
        """False for a matrix that starts at zero and for one whose rule keeps nothing of its start."""
        return bool(self.variance != 0 and self.entries() != 0)

    def here(self, e: Expr) -> Expr:
        """``e``, which is written for any member of the family, for the member that is used."""
        return e.xreplace(self.chosen)

    @property
    def chosen(self) -> dict[Any, Any]:
        """The indices of the family, as the matrix is declared, at the member that is used."""
        chosen: dict[Any, Any] = {
            r.index: x.index for r, x in zip(self.matrix.others, self.apart, strict=False)
        }
        return chosen | ({} if self.matrix.index is None else {self.matrix.index.index: self.member})

    @property
    def ranges(self) -> tuple[IndexRange, ...]:
        """The ranges of the indices that the source has: those of the vector, and of members apart."""
        return (*self.vector.ranges, *(r for r in self.apart if r.index not in self.vector.indices))

    @property
    def gives(self) -> Population:
        """Where the result lives."""
        return _at(self.matrix.cols if self.transposed else self.matrix.rows, self.matrix, self.member)

    @property
    def acts_on(self) -> Population:
        """Where the vector lives."""
        return _at(self.matrix.rows if self.transposed else self.matrix.cols, self.matrix, self.member)

    def source(self, time: Expr = t) -> AppliedUndef:
        """The Gaussian field that the product turns into: layer of the result, indices of the vector."""
        site = () if self.gives.site is None else (self.gives.site,)
        return Function(self.source_name)(*site, *[r.index for r in self.ranges], time)

    def past(self, taken: Iterable[Symbol] = ()) -> Application:
        """The same use at the time ``s``, with indices other than those ``taken``."""
        names = {r.index: primed_apart(r.index, taken) for r in self.apart}
        apart = tuple(r.renamed(names[r.index]) for r in self.apart)
        past = replace(self, vector=self.vector.past(taken), apart=apart)
        alone = {x: y for x, y in names.items() if x not in self.vector.indices}
        return past.renamed(alone) if alone else past

    def renamed(self, names: Mapping[Symbol, Symbol]) -> Application:
        """The same use with other letters for indices."""
        v = self.vector
        ranges = tuple(r.renamed(names.get(r.index, r.index)) for r in v.ranges)
        arguments = tuple(x.xreplace(dict(names)) for x in v.arguments)
        apart = tuple(r.renamed(names.get(r.index, r.index)) for r in self.apart)
        return replace(
            self, vector=Vector(v.body.xreplace(dict(names)), v.site, ranges, arguments), apart=apart
        )

    def beside(self, other: Application) -> Application:
        """The same use of the members that ``other`` uses."""
        names = {r.index: x.index for r, x in zip(self.apart, other.apart, strict=True) if r.index != x.index}
        return self.renamed(names) if names else self

    def at(self, site: Expr) -> Application:
        """The same use by another member of the family: every layer index moves along."""
        if self.matrix.index is None or self.member == site:
            return self
        v, up = self.vector, site - self.member
        shift = {ell: ell + up}
        place = None if v.site is None else v.site.xreplace(shift)
        moved = Vector(v.body.xreplace(shift), place, v.ranges, tuple(x.xreplace(shift) for x in v.arguments))
        layers = tuple(IndexRange(r.index, r.lower - up, r.upper - up) for r in self.layers)
        return replace(self, vector=moved, member=site, layers=layers)

    def canonical(self) -> Application:
        """The use written at the matrix's own index (a single member stays where it is)."""
        return self.at(self.matrix.index.index) if self.matrix.index is not None and self.layers else self

    @cached_property
    def key(self) -> MatrixProductKey:
        """The product, whichever field it enters."""
        v = self.canonical().vector
        body = v.plain.xreplace(dict(zip(v.indices, _SLOTS, strict=False)))
        return self.matrix.name, self.transposed, body

    def same_use(self, other: Application) -> bool:
        """Do two definitions contain the same product?"""
        a, b = self.canonical(), other.canonical()
        return (a.matrix, a.member) == (b.matrix, b.member) and self.key == other.key

    def meets(self, other: Application) -> bool:
        """Is it the same matrix that both apply?  Raises :class:`ProgramError` when only for some layers."""
        if self.matrix != other.matrix:
            return False
        if bool(self.layers) == bool(other.layers):
            a, b = self.canonical(), other.canonical()
            if not self.layers:
                return bool(a.member == b.member)
            if [(p.lower, p.upper) for p in a.layers] == [(q.lower, q.upper) for q in b.layers]:
                return True
        if _disjoint(self.canonical().members(), other.canonical().members()):
            return False
        raise ProgramError(
            f"{self.product} and {other.product} use {self.matrix.name} for layers that overlap in part; "
            "give them the same range, or make them two matrices"
        )

    def members(self) -> tuple[Expr, Expr]:
        """The first and the last member of the family that is used."""
        if not self.layers:
            return self.member, self.member
        r = self.layers[0]
        return self.member.xreplace({ell: r.lower}), self.member.xreplace({ell: r.upper})


_SLOTS = [Symbol(f"_{k}") for k in range(8)]


@dataclass(frozen=True)
class Parameter:
    """One use of a vector parameter: in the definition of ``lhs``, which it enters entry by entry."""

    initial: GaussianVector
    trained: TrainedVector | None
    lhs: AppliedUndef
    ranges: tuple[IndexRange, ...]
    source_name: str = ""
    member: Expr = S.One

    def covariance(
        self, other: Parameter, names: dict[Symbol, Symbol], time: Expr = t, past: Expr = s
    ) -> Expr:
        """The covariance of this use with ``other`` at another time, its indices renamed by ``names``.

        Different members of a family are independent.
        """
        value = self.here(sympify(self.initial.variance))
        for x, y in zip(self.member.args, other.member.args, strict=True):
            value *= KroneckerDelta(x, y.xreplace(names))
        if self.initial.fresh:
            return value * KroneckerDelta(time, past)
        return value * (self.here(entry_covariance(self.trained.rule, time, past)) if self.trained else 1)

    def here(self, e: Expr) -> Expr:
        """``e``, which is written for any member of the family, for the member that is used."""
        return e.xreplace({r.index: x for r, x in zip(self.initial.indices, self.member.args, strict=True)})

    def update(self, time: Expr = t, past: Expr = s) -> tuple[tuple[IndexRange, ...], Expr, Expr]:
        """What training adds at ``past`` to this member: indices summed over, coefficient, vector."""
        assert self.trained is not None
        u = self.trained.update
        names, over = apart(u.over, self.indices)
        coefficient, vector = (
            self.here(x.xreplace(names)).xreplace({time: past}) for x in (u.coefficient, u.vector)
        )
        return over, coefficient, vector

    def meets(self, other: Parameter) -> bool:
        """Can the two be the same numbers?"""

        def bounds(p: Parameter, place: Expr) -> tuple[Expr, Expr]:
            low, high = ({r.index: getattr(r, end) for r in p.ranges} for end in ("lower", "upper"))
            return place.xreplace(low), place.xreplace(high)

        places = zip(self.member.args, other.member.args, strict=True)
        apart = (_disjoint(bounds(self, x), bounds(other, y)) for x, y in places)
        return self.initial == other.initial and not any(apart)

    def source(self, time: Expr = t, taken: Iterable[Symbol] | None = None) -> AppliedUndef:
        """The Gaussian field: the parameter's initial value, with the layer of what it enters."""
        names = {} if taken is None else {i: primed_apart(i, taken) for i in self.indices}
        return Function(self.source_name)(*[time if x == t else x for x in self.lhs.xreplace(names).args])

    @property
    def indices(self) -> tuple[Symbol, ...]:
        """Sample-like indices of what the parameter enters."""
        return tuple(r.index for r in self.ranges if r.index != ell and self.lhs.has(r.index))


@dataclass
class Reading:
    """A program's definitions in causal order, with the products and parameters in each."""

    program: Program
    registry: Registry
    definitions: tuple[Definition, ...] = ()
    products: dict[Definition, list[Application]] = field(default_factory=dict)
    parameters: dict[Definition, list[Parameter]] = field(default_factory=dict)

    @property
    def uses(self) -> list[Application]:
        """Every different use of a Gaussian matrix."""
        found: list[Application] = []
        for a in (a for d in self.definitions for a in self.products[d]):
            if not any(a.same_use(b) for b in found):
                found.append(a)
        return found

    @cached_property
    def instant(self) -> set[tuple[MatrixProductKey, MatrixProductKey]]:
        """Which vectors respond to which sources within a step."""
        return equal_time_pairs(self.program, [a for d in self.definitions for a in self.products[d]])

    def response_name(self, a: Application, b: Application) -> tuple[str, Expr | None]:
        """How the response of ``a``'s vector to the source of ``b`` is called, and its layer.

        A matrix names the responses of its one forward and its one backward use; all others are
        ``R_<vector><source>``.
        """
        alike = [x for x in self.uses if x.transposed in (a.transposed, b.transposed) and a.meets(x)]
        if a.matrix.responses and a.transposed != b.transposed and len(alike) == 2:
            return a.matrix.responses[int(a.transposed)], a.member if a.matrix.index else None
        return self.registry.response_name(a.vector, b.source_name), a.acts_on.site

    def equations(
        self, product: Callable[[Application], list[Term]], parameter: Callable[[Parameter], list[Term]]
    ) -> tuple[tuple[Equation, ...], tuple[Equation, ...]]:
        """The definitions, of fields and of numbers, with each use replaced by the terms that it becomes."""

        def replaced(d: Definition, part: Expr) -> list[Term]:
            for a in self.products[d]:
                if part.has(a.product):
                    if not isinstance(part, Sum):
                        return [x.times(part / a.product) for x in product(a)]
                    found = [x.times(part.function / a.product) for x in product(a)]
                    limits = tuple(IndexRange(*x) for x in part.limits)
                    return found if a.summed else [x.summed(limits) for x in found]
            for p in self.parameters[d]:
                if part.has(p.member):
                    return [x.times(part / p.member) for x in parameter(p)]
            expr = part.replace(lambda e: isinstance(e, Mean), lambda e: Average(e.args[0]))
            return [Term.local(expr, rule="as defined")]

        found: tuple[list[Equation], list[Equation]] = ([], [])
        for d in self.definitions:
            lhs = Derivative(d.lhs, t) if d.evolves else d.lhs
            parts = tuple(x for part in terms(d.rhs) for x in replaced(d, part))
            found[d.name in self.program.scalars].append(Equation(lhs, parts, d.ranges))
        return tuple(found[0]), tuple(found[1])

    @property
    def entries(self) -> list[Parameter]:
        """Every use of a vector parameter."""
        return [p for d in self.definitions for p in self.parameters[d]]


def read(program: Program) -> Reading:
    """Read the uses of matrices and vectors off a program, and name their sources.

    >>> from derive.program import mlp
    >>> [str(a.source()) for a in read(mlp(1)).uses], [str(p.source()) for p in read(mlp(1)).entries]
    (['u(1, mu, t)'], ['r(1, t)'])
    """
    program = with_ends_apart(outer_products(program))
    registry = Registry(program)
    reading = Reading(program, registry, nonempty(program.causal_order()))
    apart = members_apart(program)
    for d in reading.definitions:
        layer = tuple(r for r in d.ranges if r.index == ell)
        indices = tuple(r.index for r in d.ranges if r.index != ell)
        reading.products[d] = uses = []
        for product in d.products():
            m = program.matrix_of(product)
            matrix, trained = gaussian(m), m if isinstance(m, TrainedMatrix) else None
            members, separate = d.members(product, matrix), matrix.name in apart
            sums = d.summed_over(product)
            letters = dict.fromkeys((*indices, *(r.index for r in (*members, *sums))))
            i = member(matrix, product)
            use = Application(
                product,
                matrix,
                trained,
                vector(program, product.vector, d.ranges_of(product), members if separate else ()),
                i,
                d.name,
                layers=layer if i.has(ell) else (),
                indices=tuple(letters),
                summed=() if separate else members,
                apart=members if separate else (),
                at_once=not d.evolves,
            )
            uses.append(use)
        found = []
        for w in program.vectors:
            initial, moved = (w.initial, w) if isinstance(w, TrainedVector) else (w, None)
            ranges = tuple(r for r in d.ranges if d.lhs.has(r.index))
            found += [Parameter(initial, moved, d.lhs, ranges, member=x) for x in initial.uses(d.rhs)]
        reading.parameters[d] = found
    _name_sources(reading)
    return reading


def with_ends_apart(program: Program) -> Program:
    """Return the program with the ends of a family defined apart where another use of a matrix needs it.

    A field ``c(ell) = O(ell) @ V(ell)`` for ``ell = 1..L`` becomes ``c(L)`` and ``c(ell)`` for ``ell =
    1..L-1`` if ``O(L).T`` is applied to a vector that differs from the one of the layers below.
    """
    families = {x.name: x for x in map(gaussian, program.matrices) if x.index is not None}
    if not families:
        return program
    definitions = program.definitions
    for _ in range(MOST_CUTS):
        spans: dict[str, list[tuple[Definition, MemberBounds]]] = {}
        for d in definitions:
            for x in d.products():
                matrix = gaussian(program.matrix_of(x))
                if matrix.name in families and not any((r.upper - r.lower).is_negative for r in d.ranges):
                    spans.setdefault(matrix.name, []).append((d, _span(d, member(matrix, x))))
        cuts = (cut for uses in spans.values() for a in uses for b in uses if (cut := _cut(*a, b[1])))
        found = next(cuts, None)
        if found is None:
            break
        definitions = tuple(y for d in definitions for y in (found[1] if d is found[0] else (d,)))
    return program if definitions is program.definitions else replace(program, definitions=definitions)


MOST_CUTS = 64
"""Ends of families that are defined apart, at most."""


def _span(d: Definition, place: Expr) -> MemberBounds:
    """The members of a family that a definition uses, of which ``place`` is the one at ``ell``."""
    ends = next(((r.lower, r.upper) for r in d.ranges if r.index == ell), (ell, ell))
    return place.xreplace({ell: sympify(ends[0])}), place.xreplace({ell: sympify(ends[1])})


def _cut(
    d: Definition, own: MemberBounds, other: MemberBounds
) -> tuple[Definition, tuple[Definition, Definition]] | None:
    """The definition and its two parts, if another use has all members but an end, or an end alone."""
    if own == other or own[0] == own[1] or _disjoint(own, other):
        return None
    if (own[1] - other[1] == 1 and own[0] == other[0]) or other[0] == other[1] == own[1]:
        end = 1
    elif (other[0] - own[0] == 1 and own[1] == other[1]) or other[0] == other[1] == own[0]:
        end = 0
    else:
        return None
    layers = next(r for r in d.ranges if r.index == ell)
    rest = tuple(r for r in d.ranges if r.index != ell)
    at = {ell: sympify((layers.lower, layers.upper)[end])}
    inner = IndexRange(ell, layers.lower + 1 - end, layers.upper - end)
    single = replace(d, lhs=d.lhs.xreplace(at), rhs=d.rhs.xreplace(at), ranges=rest)
    return d, (single, replace(d, ranges=tuple(inner if r.index == ell else r for r in d.ranges)))


def members_apart(program: Program) -> frozenset[str]:
    """The families of matrices whose members have vectors, factors or definitions of their own.

    The other families act through the sums of their products alone: ``Sum(W(k) @ v(p + k), (k, -1, 1))``.
    """
    found = set()
    for d in program.definitions:
        for product in d.products():
            matrix = gaussian(program.matrix_of(product))
            own = {r.index for r in d.members(product, matrix)}
            if not own:
                continue
            together = {r.index for r in d.summed_over(product)}
            part = next(x for x in terms(d.rhs) if x.has(product))
            factors = [
                x for x in Mul.make_args(part.function if isinstance(part, Sum) else part) if x != product
            ]
            separate = any(differs(product.vector, x) or any(y.has(x) for y in factors) for x in own)
            if own != together or separate:
                found.add(matrix.name)
    return frozenset(found)


def nonempty(definitions: tuple[Definition, ...]) -> tuple[Definition, ...]:
    """Leave out families without members (the interior of a network with one hidden layer)."""
    return tuple(d for d in definitions if not any((r.upper - r.lower).is_negative for r in d.ranges))


def _at(p: Population, matrix: GaussianMatrix, i: Expr) -> Population:
    if p.site is None or matrix.index is None:
        return p
    return p.at(p.site.subs(matrix.index.index, i))


def earlier(e: Expr) -> Expr:
    """``e`` where s is not later than t."""
    return e.xreplace(_EARLIER)


_EARLIER = {Min(s, t): s}


def overlap(reading: Reading, a: Application, u: Outer) -> tuple[Expr, Expr, Expr, tuple[IndexRange, ...]]:
    """What the update ``u`` made at ``s`` does to the vector of ``a``: the order parameter in which the two
    meet, coefficient, the update's other vector, sums over.
    """
    names, over = apart(u.over, a.indices)
    at: dict[Any, Any] = {**names, **a.chosen, t: s}
    stays, meets = (u.right, u.left) if a.transposed else (u.left, u.right)
    past = vector(reading.program, meets.xreplace(at), over, a.apart)
    coefficient, remains = (x.xreplace(at) for x in (u.coefficient, stays))
    return reading.registry.correlation(a.vector, past), coefficient, remains, over


def apart(
    over: tuple[IndexRange, ...], taken: tuple[Symbol, ...]
) -> tuple[dict[Symbol, Symbol], tuple[IndexRange, ...]]:
    """Summation indices renamed where they collide with those of a definition."""
    names = {r.index: primed_apart(r.index, taken) for r in over if r.index in taken}
    return names, tuple(IndexRange(names.get(r.index, r.index), r.lower, r.upper) for r in over)


# -- names of sources ----------------------------------------------------------------------------------------


def _name_sources(reading: Reading) -> None:
    """``u`` and ``r`` as the matrices say, with a suffix where two different sources would share a symbol."""
    uses, entries = reading.uses, reading.entries
    sites = [(a.matrix.sources[int(a.transposed)], _sites(a.gives.site, a.layers)) for a in uses]
    sites += [(p.initial.source, _sites(_layer(reading, p), p.ranges)) for p in entries]
    tags = [(a.matrix.name, reading.registry.head(a.vector)) for a in uses]
    tags += [(p.initial.name, "") for p in entries]
    names = []
    for i, (name, site) in enumerate(sites):
        rivals = [j for j, (n, x) in enumerate(sites) if j != i and n == name and not _disjoint(site, x)]
        rivals = [j for j in rivals if j < len(uses) or i < len(uses) or tags[j] != tags[i]]
        if rivals:
            matrix, head = tags[i]
            alike = any(tags[j][0] == matrix for j in rivals)
            name = f"{name}_{matrix}_{head}" if alike else f"{name}_{matrix}"
        names.append(name)
    keys = [(name, name != site[0]) for name, site in zip(names, sites, strict=True)]
    own = apart_from({key: key[0] for key in keys}.items(), reading.registry.taken)
    names = [own[key] for key in keys]
    reading.registry.sources = frozenset(names)
    called, entry_names = list(zip(uses, names, strict=False)), iter(names[len(uses) :])
    for d in reading.definitions:
        reading.products[d] = [
            replace(a, source_name=next(n for b, n in called if a.same_use(b))) for a in reading.products[d]
        ]
        reading.parameters[d] = [replace(p, source_name=next(entry_names)) for p in reading.parameters[d]]


def _layer(reading: Reading, p: Parameter) -> Expr | None:
    x = reading.program.field_of(str(p.lhs.func))
    return p.lhs.args[0] if x is not None and x.layered else None


def _sites(site: Expr | None, ranges: tuple[IndexRange, ...]) -> tuple[Expr, Expr]:
    """The first and the last layer at which a source lives."""
    if site is None:
        return S.Zero, S.Zero
    r = next((r for r in ranges if r.index == ell), None)
    return (site, site) if r is None else (site.subs(ell, r.lower), site.subs(ell, r.upper))


def _disjoint(a: tuple[Expr, Expr], b: tuple[Expr, Expr]) -> bool:
    return bool((a[0] - b[1]).is_positive or (b[0] - a[1]).is_positive)


def tangent_kernel(reading: Reading) -> tuple[Equation, ...]:
    """``sum over weights of <left left'><right right'>``: how an update at one output moves another's value.

    When each weight's update is the gradient of the outputs times their errors, the kernel is read off the
    updates: the error in an update's coefficient says which output the rest is the gradient of.  A program
    without trained weights, whose updates hold no such error, or whose backward pass does not use the
    transposes of its forward matrices (its updates are then no gradient) has none, nor has one that uses a
    matrix in places with different updates: the result is empty.

    >>> from derive.theory.applications import read
    >>> from derive.program import mlp
    >>> print(tangent_kernel(read(mlp(1)))[0].rhs)
    G(1, t, s)*K_x(mu, alpha) + H(1, mu, alpha, t, s)
    """
    forward, scalars = _forward_weights(reading), reading.program.scalars
    weights = [w for w in reading.program.trained() if w.name in forward]
    nonlinear = (NonlinearRule, RewrittenSteps)  # outputs do not move by inner products of gradients
    if any(isinstance(w.rule, nonlinear) for w in weights):
        return ()
    matrices = [w for w in weights if isinstance(w, TrainedMatrix)]
    errors = [
        [a for a in w.update.coefficient.atoms(AppliedUndef) if str(a.func) in scalars and len(a.args) > 1]
        for w in weights
    ]
    if not weights or any(len(x) != 1 for x in errors):
        return ()
    if any(w.update.more or not _goes_both_ways(reading, w) for w in matrices):
        return ()
    line = next(d for d in reading.definitions if d.name == str(errors[0][0].func))
    outputs = tuple(next(r for r in line.ranges if r.index == x) for x in line.lhs.args[:-1])
    found = []
    for w, (own,) in zip(weights, errors, strict=True):
        value, over = _gradient_squared(reading, w, own, outputs)
        if value != 0:
            rule = "gradient with respect to this weight"
            found.append(Term("definition", value, over=over, matrix=w.name, rule=rule))
    second = tuple(IndexRange(primed(r.index), r.lower, r.upper) for r in outputs)
    name = aside("K", {*reading.registry.taken, *reading.registry.found})
    symbol = Function(name)(*[r.index for r in (*outputs, *second)], t, s)
    return (Equation(symbol, tuple(found), (*outputs, *second)),)


def _gradient_squared(
    reading: Reading, w: TrainedMatrix | TrainedVector, error: AppliedUndef, outputs: tuple[IndexRange, ...]
) -> tuple[Expr, tuple[IndexRange, ...]]:
    """The inner product of the gradients of two outputs with respect to one weight (or one family), and what
    it is summed over."""
    program, trained, coefficient = reading.program, isinstance(w, TrainedMatrix), w.update.coefficient
    moved = coefficient / error
    gradient = moved / program.scale**2
    gradient = gradient if w.update.gradient is None else w.update.gradient
    if isinstance(w, TrainedMatrix):
        index = (w.initial.index,) if w.initial.index else ()
        family: tuple[IndexRange, ...] = (*index, *w.initial.others)
        units = sympify(w.initial.rows.ratio) * sympify(w.initial.cols.ratio)
        bodies: tuple[Expr, ...] = (w.update.left, w.update.right)
    else:
        family, bodies = w.initial.indices, (w.update.vector,)
        units = sympify(program.site_of(w.update.vector).ratio)
    if any((r.upper - r.lower).is_negative for r in family):
        return S.Zero, ()
    here: dict[Any, Any] = {x: r.index for x, r in zip(error.args[:-1], outputs, strict=True)}
    inner = [r for r in w.update.over if r.index not in here]  # within one output, such as positions
    here |= {r.index: Symbol(r.index.name.rstrip("_"), **r.index.assumptions0) for r in inner}
    there = {x: primed(y) for x, y in here.items()}
    inner = [r.renamed(here[r.index]) for r in inner]
    own = (*outputs, *inner)
    other = tuple(r.renamed(primed(r.index)) for r in own)
    if not trained:  # one vector for each position: both outputs see the same one
        alone = tuple(r for r in family if r.index not in here)
        own, other = own + alone, other + alone
    value: Expr = moved.xreplace({**there, t: s}) * gradient.xreplace(here) * units
    for body in bodies:
        past = vector(program, body.xreplace({**there, t: s}), other, family if trained else ())
        now = vector(program, body.xreplace(here), own, family if trained else ())
        value *= reading.registry.correlation(now, past)
    for r in family:
        if r.index in here:  # one member for each output: different members do not meet
            value *= KroneckerDelta(here[r.index], there[r.index])
    summed = [r for r in family if r.index not in here]
    return value, (*summed, *inner, *(r.renamed(primed(r.index)) for r in inner))


def _goes_both_ways(reading: Reading, w: TrainedMatrix) -> bool:
    """Gradients pass through the transpose of a matrix, except at the inputs, where they end."""
    used = {a.transposed for d in reading.definitions for a in reading.products[d] if a.matrix == w.initial}
    return w.initial.cols.given or used in ({True, False}, set())


def _forward_weights(reading: Reading) -> set[str]:
    """The weights that the outputs are computed with (a separate backward matrix is not one of them)."""
    todo = [d for d in reading.definitions if d.name in reading.program.scalars and d.rhs.has(Mean)]
    seen: list[Definition] = []
    while todo:
        d = todo.pop()
        if d not in seen:
            seen.append(d)
            for a in d.rhs.atoms(AppliedUndef):  # the end of a family if it is one, else the family
                named = [e for e in reading.definitions if e.name == str(a.func)]
                todo += [e for e in named if e.lhs.args[:1] == a.args[:1]] or named
    names = {gaussian(reading.program.matrix_of(x)).name for d in seen for x in d.products()}
    return names | {p.initial.name for d in seen for p in reading.parameters[d]}
