"""Which vectors a program applies each of its Gaussian matrices to, and how the Gaussian sources are called.

Both routes to the mean-field theory start from this list; nothing here knows what becomes of a product.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

from sympy import Expr, Function, KroneckerDelta, Min, S, Sum, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.errors import ProgramError
from derive.program.parts import Definition, gaussian, member
from derive.program.program import Program
from derive.program.training import Outer, TrainedMatrix, TrainedVector, entry_covariance
from derive.program.words import (
    GaussianMatrix,
    GaussianVector,
    IndexRange,
    Population,
    Product,
    ell,
    s,
    t,
    terms,
)
from derive.theory.causality import Pair, Use, equal_time_pairs
from derive.theory.names import Registry, Vector, primed_apart, vector


@dataclass(frozen=True)
class Application:
    """One product in a definition: ``matrix`` (its member ``member``, if it is a family) applied to
    ``vector``.

    ``layers`` holds the range of the layer index, when the definition is of a family; ``indices`` all the
    other indices of the definition.  ``summed`` are further indices of the matrix family over which the
    definition adds up products (the offsets of a convolution): all its members act together, like one
    matrix on stacked vectors.
    """

    product: Product
    matrix: GaussianMatrix
    trained: TrainedMatrix | None
    vector: Vector
    member: Expr
    gives_field: str
    layers: tuple[IndexRange, ...] = ()
    indices: tuple[Symbol, ...] = ()
    source_name: str = ""
    summed: tuple[IndexRange, ...] = ()

    @property
    def transposed(self) -> bool:
        """True for a backward use."""
        return self.product.transposed

    def entries(self, time: Expr = t, past: Expr = s) -> Expr:
        """The covariance of an entry of the random matrix at two times, in units of its initial variance."""
        if self.matrix.fresh:
            return KroneckerDelta(time, past)
        return entry_covariance(self.trained.rule, time, past) if self.trained else S.One

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
        return Function(self.source_name)(*site, *self.vector.indices, time)

    def past(self, taken: Iterable[Symbol] = ()) -> Application:
        """The same use at the time ``s``, with indices other than those ``taken``."""
        return replace(self, vector=self.vector.past(taken))

    def at(self, site: Expr) -> Application:
        """The same use by another member of the family: every layer index moves along."""
        if self.matrix.index is None or self.member == site:
            return self
        shift = {ell: ell + (site - self.member)}
        v = self.vector
        moved = Vector(
            v.body.xreplace(shift),
            v.site.xreplace(shift) if v.site is not None else None,
            v.ranges,
            tuple(x.xreplace(shift) for x in v.arguments),
        )
        layers = tuple(
            IndexRange(r.index, r.lower + self.member - site, r.upper + self.member - site)
            for r in self.layers
        )
        return replace(self, vector=moved, member=site, layers=layers)

    def canonical(self) -> Application:
        """The use written at the matrix's own index (a single member stays where it is)."""
        return self.at(self.matrix.index.index) if self.matrix.index is not None and self.layers else self

    def flat(self) -> Use:
        """The use as causality sees it."""
        v = self.canonical().vector
        body = v.plain.xreplace(dict(zip(v.indices, _SLOTS, strict=False)))
        return Use(self.matrix.name, self.transposed, self.gives_field, body)

    def same_use(self, other: Application) -> bool:
        """Do two definitions contain the same product?"""
        a, b = self.canonical(), other.canonical()
        bodies = {x.vector.plain.xreplace(dict(zip(x.vector.indices, _SLOTS, strict=False))) for x in (a, b)}
        return (a.matrix, a.transposed, a.member) == (b.matrix, b.transposed, b.member) and len(bodies) == 1

    def meets(self, other: Application) -> bool:
        """Is it the same matrix that both apply?  Raises :class:`ProgramError` when only for some layers."""
        if self.matrix != other.matrix:
            return False
        if bool(self.layers) == bool(other.layers):
            a, b = self.canonical(), other.canonical()
            if not self.layers:
                return bool(a.member == b.member)
            same = all(
                (p.lower, p.upper) == (q.lower, q.upper) for p, q in zip(a.layers, b.layers, strict=True)
            )
            if same:
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
        value = sympify(self.initial.variance)
        for x, y in zip(self.member.args, other.member.args, strict=True):
            value *= KroneckerDelta(x, y.xreplace(names))
        if self.initial.fresh:
            return value * KroneckerDelta(time, past)
        return value * (entry_covariance(self.trained.rule, time, past) if self.trained else 1)

    def update(self, time: Expr = t, past: Expr = s) -> tuple[tuple[IndexRange, ...], Expr, Expr]:
        """What training adds at ``past`` to this member: indices summed over, coefficient, vector."""
        assert self.trained is not None
        u = self.trained.update
        own = {r.index: x for r, x in zip(self.initial.indices, self.member.args, strict=True)}
        names, over = apart(u.over, self.indices)
        coefficient, vector = (
            x.xreplace(names).xreplace(own).xreplace({time: past}) for x in (u.coefficient, u.vector)
        )
        return over, coefficient, vector

    def meets(self, other: Parameter) -> bool:
        """Can the two be the same numbers?"""
        if self.initial != other.initial:
            return False
        for x, y in zip(self.member.args, other.member.args, strict=True):
            if _disjoint(self.bounds(x), other.bounds(y)):
                return False
        return True

    def bounds(self, place: Expr) -> tuple[Expr, Expr]:
        """The first and the last value of an index expression over the definition's ranges."""
        low = {r.index: r.lower for r in self.ranges}
        high = {r.index: r.upper for r in self.ranges}
        return place.xreplace(low), place.xreplace(high)

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
    def instant(self) -> set[Pair]:
        """Which vectors respond to which sources within a step."""
        return equal_time_pairs(self.program, [a.flat() for d in self.definitions for a in self.products[d]])

    def response_name(self, a: Application, b: Application) -> tuple[str, Expr | None]:
        """How the response of ``a``'s vector to the source of ``b`` is called, and its layer.

        A matrix names the responses of its one forward and its one backward use; all others are
        ``R_<vector><source>``.
        """
        alike = [x for x in self.uses if x.transposed in (a.transposed, b.transposed) and a.meets(x)]
        if a.matrix.responses and a.transposed != b.transposed and len(alike) == 2:
            return a.matrix.responses[int(a.transposed)], a.member if a.matrix.index else None
        head = self.registry.head(a.vector)
        return f"R_{head}{'_' if '_' in head + b.source_name else ''}{b.source_name}", a.acts_on.site

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
    registry = Registry(program)
    reading = Reading(program, registry, nonempty(program.causal_order()))
    for d in reading.definitions:
        reading.products[d] = [_application(program, d, x) for x in d.products()]
        found = []
        for v in program.vectors:
            initial, trained = (v.initial, v) if isinstance(v, TrainedVector) else (v, None)
            ranges = tuple(r for r in d.ranges if d.lhs.has(r.index))
            found += [Parameter(initial, trained, d.lhs, ranges, member=x) for x in initial.uses(d.rhs)]
        reading.parameters[d] = found
    _name_sources(reading)
    return reading


def _application(program: Program, d: Definition, product: Product) -> Application:
    m = program.matrix_of(product)
    matrix = gaussian(m)
    v = vector(program, product.vector, d.ranges)
    summed = _summed(d, product, matrix)
    i = member(matrix, product)
    layers = tuple(r for r in d.ranges if r.index == ell and i.has(ell))
    indices = tuple(r.index for r in d.ranges if r.index != ell)
    return Application(
        product,
        matrix,
        m if isinstance(m, TrainedMatrix) else None,
        v,
        i,
        d.name,
        layers,
        indices,
        summed=summed,
    )


def _summed(d: Definition, product: Product, matrix: GaussianMatrix) -> tuple[IndexRange, ...]:
    """The ranges of further family indices over which the definition sums the product."""
    if not matrix.others:
        return ()
    found = next((x for x in terms(d.rhs) if x.has(product)), S.Zero)
    limits = [IndexRange(*lim) for lim in found.limits] if isinstance(found, Sum) else []
    own = product.matrix.args[-len(matrix.others) :]
    if tuple(limits) != matrix.others or own != tuple(r.index for r in matrix.others):
        over = ", ".join(str(tuple(r.limits)) for r in matrix.others)
        raise ProgramError(f"{d.lhs} uses members of {matrix.name}: write Sum({matrix.symbol} @ ..., {over})")
    return matrix.others


def nonempty(definitions: tuple[Definition, ...]) -> tuple[Definition, ...]:
    """Leave out families without members (the interior of a network with one hidden layer)."""
    return tuple(d for d in definitions if not any((r.upper - r.lower).is_negative for r in d.ranges))


def _at(p: Population, matrix: GaussianMatrix, i: Expr) -> Population:
    if p.site is None or matrix.index is None:
        return p
    return p.at(p.site.subs(matrix.index.index, i))


def earlier(e: Expr) -> Expr:
    """``e`` where s is not later than t."""
    return e.xreplace({Min(s, t): s})


def overlap(reading: Reading, a: Application, u: Outer) -> tuple[Expr, Expr, Expr, tuple[IndexRange, ...]]:
    """What the update ``u`` made at ``s`` does to the vector of ``a``: order parameter, coefficient, the
    vector that they multiply, sums over.

    The update's one vector meets the vector of ``a`` in an inner product per unit; its other vector is
    what remains.
    """
    at = {a.matrix.index.index: a.member} if a.matrix.index is not None else {}
    names, over = apart(u.over, a.indices)
    stays, meets = (u.right, u.left) if a.transposed else (u.left, u.right)
    past = vector(reading.program, meets.xreplace(at).xreplace({**names, t: s}), over)
    coefficient, remains = (x.xreplace(at).xreplace({**names, t: s}) for x in (u.coefficient, stays))
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
    uses = reading.uses
    sites = [(a.matrix.sources[int(a.transposed)], _sites(a.gives.site, a.layers)) for a in uses]
    entries = reading.entries
    sites += [
        (p.initial.source, _sites(p.lhs.args[0] if _layered(reading, p) else None, p.ranges)) for p in entries
    ]
    tags = [(a.matrix.name, reading.registry.head(a.vector)) for a in uses] + [
        (p.initial.name, "") for p in entries
    ]
    names = []
    for i, (name, site) in enumerate(sites):
        rivals = [j for j, (n, x) in enumerate(sites) if j != i and n == name and not _disjoint(site, x)]
        rivals = [j for j in rivals if j < len(uses) or i < len(uses) or tags[j] != tags[i]]
        if rivals:
            matrix, head = tags[i]
            alike = any(tags[j][0] == matrix for j in rivals)
            name = f"{name}_{matrix}_{head}" if alike else f"{name}_{matrix}"
        names.append(name)
    for d in reading.definitions:
        for k, a in enumerate(reading.products[d]):
            at = next(i for i, b in enumerate(uses) if a.same_use(b))
            reading.products[d][k] = replace(a, source_name=names[at])
    entry_names = iter(names[len(uses) :])
    for d in reading.definitions:
        reading.parameters[d] = [replace(p, source_name=next(entry_names)) for p in reading.parameters[d]]


def _layered(reading: Reading, p: Parameter) -> bool:
    x = reading.program.field_of(str(p.lhs.func))
    return x is not None and x.layered


def _sites(site: Expr | None, ranges: tuple[IndexRange, ...]) -> tuple[Expr, Expr]:
    """The first and the last layer at which a source lives."""
    if site is None:
        return S.Zero, S.Zero
    r = next((r for r in ranges if r.index == ell), None)
    return (site, site) if r is None else (site.subs(ell, r.lower), site.subs(ell, r.upper))


def _disjoint(a: tuple[Expr, Expr], b: tuple[Expr, Expr]) -> bool:
    return bool((a[0] - b[1]).is_positive or (b[0] - a[1]).is_positive)
