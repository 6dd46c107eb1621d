"""Disorder average, order parameters and the action (selfconsistent2023 D.23-D.32).

*Variables.* Each product ``chi = M a`` has a hatted partner that enforces it, written at the layer index of
the matrix, so that all uses of one matrix stand in one exponent.

*Average.* A matrix enters through ``-i sum_rc M_rc X_rc`` with

    X_rc = sum_i chihat_i^r a_i^c + sum_j b_j^r xihat_j^c

(sums over uses, samples and times). For entries of variance s2/N (covariance c(t, s) s2/N if they change in
time) with correlation tau to their transposes, the average is ``exp(-(s2/2N) sum_rc (X_rc^2 + tau X_rc
X_cr))``; the square is expanded into products of inner products.

*Action.* Inner products of two vectors become correlations C, enforced by a conjugate Chat. Products of two
mixed inner products ``(hat . b)(a . hat)`` are linearised by a pair of responses, each the conjugate of the
other,

    exp(N k A' B') = extremum over A, B of exp(N k (-A B + A B' + B A')),
    A' = -i a.xihat per unit,  B' = -i b.chihat per unit.

Then the units decouple: the action is algebra plus one single-site integral for each population.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement
from typing import Any, Self, cast

from sympy import Add, Expr, I, Integral, KroneckerDelta, Mul, S, Sum, Symbol, default_sort_key, log, sympify
from sympy.core.function import AppliedUndef, Function

from derive.calculus.sums import rewritten
from derive.calculus.symbols import IndexRange, ell, s, t
from derive.program.naming import free_name
from derive.theory.applications import Application, Parameter, Reading, tangent_kernel
from derive.theory.names import unused_primed
from derive.theory.path_integral.weights import (
    covariance,
    is_random,
    matrix_memory,
    parameter_covariance,
    variance,
)

N = Symbol("N", positive=True)


class _Node(Expr):
    """Base class of unevaluated expressions ``Node(name, arguments)`` with a name as first argument."""

    is_commutative = True

    def __new__(cls, name: Any, *args: Any) -> Self:
        """Return the expression with this name, which becomes a symbol, and these arguments."""
        return cast(Self, Expr.__new__(cls, Symbol(str(name)), *args))


class Inner(_Node):
    """Inner product ``Inner(population, a, b)``: the sum of a times b over the units of a population."""

    @property
    def population(self) -> str:
        """Name of the population over whose units the inner product sums."""
        return str(self.args[0])

    @property
    def vectors(self) -> tuple[Expr, Expr]:
        """The two vectors of the inner product, as expressions of one unit."""
        return self.args[1], self.args[2]

    def _latex(self, printer: Any, *_: Any) -> str:
        return r" \cdot ".join(rf"\boldsymbol{{{printer._print(x)}}}" for x in self.vectors)

    def _sympystr(self, printer: Any, *_: Any) -> str:
        return f"({' . '.join(printer._print(x) for x in self.vectors)})"


class Entries(_Node):
    """Covariance ``Entries(W, t, s)`` of an entry of the random part of W at two times, as a symbol.

    It is divided by the initial variance of the entry. ``Entries(W, t, s, ell)`` is that of the matrix
    ``W(ell)`` of a family whose matrices have different covariances.
    """

    def __new__(cls, matrix: Any, time: Any, past: Any, *member: Any) -> Entries:
        """Return the covariance of an entry, with the two times sorted so that their order does not matter.

        ``member`` is empty, or the index of the matrix in its family.
        """
        times = sorted((sympify(time), sympify(past)), key=default_sort_key)
        return super().__new__(cls, matrix, *times, *member)

    def _latex(self, printer: Any, *_: Any) -> str:
        return rf"c_{{{self.args[0]}}}\left({', '.join(printer._print(x) for x in self.args[1:])}\right)"

    def _sympystr(self, printer: Any, *_: Any) -> str:
        return f"c_{self.args[0]}({', '.join(printer._print(x) for x in self.args[1:])})"


class Partition(_Node):
    """Integral ``Partition(name, exponent)`` of ``exp(exponent)`` over the fields of one unit.

    ``name`` is that of the population. Layers are independent in the exponent;
    ``Partition(name, exponent, ell)`` is the factor of layer ell.
    """

    @property
    def exponent(self) -> Expr:
        """Exponent E of the integral: the fields of one unit are integrated with the weight exp(E)."""
        return self.args[1]

    def _latex(self, printer: Any, *_: Any) -> str:
        layer = f"^{{{printer._print(self.args[2])}}}" if len(self.args) > 2 else ""
        return rf"\mathcal{{Z}}{layer}_{{\mathrm{{{self.args[0]}}}}}"

    def _sympystr(self, printer: Any, *_: Any) -> str:
        return f"Z{f'^{printer._print(self.args[2])}' if len(self.args) > 2 else ''}_{self.args[0]}"


def hatted(name: str) -> str:
    """Return the name of the hatted partner of a field, ``Phihat`` for ``Phi``; SymPy prints it with a hat.

    >>> hatted("C_phi")
    'Chat_phi'
    """
    head, *rest = name.split("_", 1)
    return "_".join([f"{head}hat", *rest])


def over(integrand: Expr, ranges: Iterable[IndexRange], times: Sequence[Symbol], discrete: bool) -> Expr:
    """Return the sum of ``integrand`` over indices and over all ``times`` from 0 to infinity.

    Times are summed over steps if ``discrete``, and integrated otherwise.
    """
    limits = [r.limits for r in ranges]
    whole = [(time, 0, S.Infinity) for time in times]
    if discrete:
        return Sum(integrand, *limits, *whole)
    return Integral(Sum(integrand, *limits) if limits else integrand, *whole)


@dataclass(frozen=True)
class UseVariable:
    """Variables of the path integral for one product with a matrix, or for one use of a weight vector.

    ``use`` is the product or the use of a vector. ``primal`` is the resulting field (``chi = M a``), ``hat``
    the hatted field that enforces it, and ``source`` the Gaussian field that later replaces the random part.
    ``home`` is the population of ``primal``, and ``ratio`` the number of units of this population over N;
    ``limits`` are the ranges of the layer and of the indices of ``primal``.
    """

    use: Application | Parameter
    primal: AppliedUndef
    hat: AppliedUndef
    source: AppliedUndef
    home: str
    ratio: Expr
    limits: tuple[IndexRange, ...]

    @property
    def indices(self) -> tuple[Symbol, ...]:
        """Indices of the field ``primal``, which the use of weights gives, other than layer and time."""
        use = self.use
        return use.indices if isinstance(use, Parameter) else tuple(r.index for r in use.ranges)

    @property
    def matrix(self) -> str:
        """Name of the matrix or of the vector of weights that is used."""
        return self.use.initial.name if isinstance(self.use, Parameter) else self.use.matrix.name

    def past(self, taken: Iterable[Symbol] = ()) -> Self:
        """Return the variables of this use of weights at the time ``s`` instead of t.

        Its indices are primed (``alpha`` for mu, ``p_`` for an index p), and differ from those in ``taken``.
        """
        return self.renamed({i: unused_primed(i, taken) for i in self.indices}, {t: s})

    def renamed(self, names: Mapping[Any, Any], times: Mapping[Any, Any] | None = None) -> Self:
        """Return the variables of this use of weights with indices and times replaced; ``use`` is unchanged.

        ``names`` maps indices to new ones, and ``times`` maps times to other times (by default they stay).
        """
        every = {**names, **(times or {})}
        primal, hat, source = (x.xreplace(every) for x in (self.primal, self.hat, self.source))
        limits = tuple(r.renamed(names.get(r.index, r.index)) for r in self.limits)
        return replace(self, primal=primal, hat=hat, source=source, limits=limits)


@dataclass(frozen=True)
class Leg(UseVariable):
    """Product of a matrix and a vector in a program, with its variables in the path integral."""

    use: Application

    @property
    def body(self) -> Expr:
        """Vector to which the matrix is applied."""
        return self.use.vector.body

    @property
    def row(self) -> Expr:
        """Field on the rows of the matrix: the hatted field, or the vector if the matrix is transposed."""
        return self.body if self.use.transposed else self.hat

    @property
    def col(self) -> Expr:
        """Field on the columns of the matrix: the vector, or the hatted field if the matrix is transposed."""
        return self.hat if self.use.transposed else self.body

    @property
    def ranges(self) -> tuple[IndexRange, ...]:
        """Ranges of the indices of the field ``primal``, without the layer.

        They are those of the vector, and of indices that number the matrices of a family if the matrices do
        not act together: if each has its own vector, factor or definition.
        """
        return self.use.ranges

    @property
    def member_indices(self) -> tuple[Symbol, ...]:
        """Indices that number the matrices of a family, if the matrices do not act together."""
        return tuple(r.index for r in self.use.separate)

    def past(self, taken: Iterable[Symbol] = ()) -> Leg:
        """Return this product and its variables at the time ``s`` instead of t.

        Its indices are primed (``alpha`` for mu, ``p_`` for an index p), and differ from those in ``taken``.
        """
        return replace(super().past(taken), use=self.use.past(taken))

    def beside(self, other: Leg) -> Leg:
        """Return this product with the matrix of a family that the product ``other`` uses.

        If the matrices of the family do not act together, the indices that number the matrices, for example
        heads, are renamed to those of ``other``. Otherwise the product is returned unchanged.
        """
        names = {x: y for x, y in zip(self.member_indices, other.member_indices, strict=True) if x != y}
        return replace(self.renamed(names), use=self.use.renamed(names)) if names else self

    def without_members(self) -> tuple[IndexRange, ...]:
        """Return the ranges of the indices of the vector that do not number matrices of a family."""
        return tuple(r for r in self.ranges if r.index not in self.member_indices)


@dataclass(frozen=True)
class EntrywiseUse(UseVariable):
    """Use of a vector of weights in the definition of a field, with its integration variables.

    Each entry of the vector is used by the unit of the same number.
    """

    use: Parameter


def legs(reading: Reading) -> tuple[Leg, ...]:
    """Return every different product of a Gaussian matrix and a vector, with its integration variables.

    Products with a family of matrices are written at its declared index: with ``W(ell)``, not ``W(ell - 1)``.
    """
    legs_found = []
    for use in (u.canonical() for u in reading.uses):
        fields = _fields(reading, use, "xi" if use.transposed else "chi")
        limits = (*use.layers, *use.ranges)
        legs_found.append(Leg(use, *fields, use.gives.name, sympify(use.gives.ratio), limits))
    return tuple(legs_found)


def entries(reading: Reading) -> tuple[EntrywiseUse, ...]:
    """Return every different use of a vector of weights, with its variables in the path integral.

    Uses with the same Gaussian source count as one.
    """
    uses: dict[str, EntrywiseUse] = {}
    for use in reading.entries:
        ratio = sympify(reading.program.site_of(use.lhs).ratio)
        home = use.initial.population.name
        uses[str(use.source())] = EntrywiseUse(use, *_fields(reading, use, "xi"), home, ratio, use.ranges)
    return tuple(uses.values())


def _fields(
    reading: Reading, use: Application | Parameter, base: str
) -> tuple[AppliedUndef, AppliedUndef, AppliedUndef]:
    """Return the field that a use of weights gives, its hatted (conjugate) field, and its Gaussian source.

    ``base`` is ``chi`` or ``xi``, the beginning of the field's name.
    """
    source = use.source()
    name = base if (base, use.source_name) in (("chi", "u"), ("xi", "r")) else f"{base}_{use.source_name}"
    taken = reading.registry.taken | reading.registry.sources
    if name in taken:
        name = free_name(f"{base}_{use.source_name}", taken)
    return Function(name)(*source.args), Function(hatted(name))(*source.args), source


@dataclass(frozen=True)
class Pairing:
    """Term that the average over a random matrix adds to the exponent for two of its products with vectors.

    It is ``-(strength/2N) sum first second``. ``first`` is an inner product over the rows of the matrix, and
    ``second`` is one over its columns. Each is between vectors or hatted (conjugate) fields of the products.
    ``strength`` is N times the covariance of an entry at two times; it contains a factor 2 if the products
    differ, and the correlation of the matrix with its transpose if the term comes from that. ``a`` is one
    product at time t, ``b`` the other one at time s, and ``other`` is b at time t.
    """

    strength: Expr
    a: Leg
    b: Leg
    other: Leg  # the product b at time t instead of s
    first: Inner
    second: Inner

    @property
    def limits(self) -> tuple[IndexRange, ...]:
        """Ranges of summed indices: the layer, the indices of both products, and summed indices of a family.

        The latter number matrices whose products a definition sums, such as the offsets of a convolution.
        """
        return (*self.a.limits, *self.b.without_members(), *self.a.use.summed)

    @property
    def ratios(self) -> tuple[Expr, Expr]:
        """Number of rows and number of columns of the matrix, each divided by N."""
        use = self.a.use
        rows, cols = (use.acts_on, use.gives) if use.transposed else (use.gives, use.acts_on)
        return sympify(rows.ratio), sympify(cols.ratio)

    @property
    def sources(self) -> bool:
        """Whether one inner product is of the two hatted fields and the other one of the two vectors.

        Such a term gives a covariance of Gaussian sources. Otherwise each inner product is of a hatted field
        and a vector, which gives a pair of responses.
        """
        return set(self.first.vectors) in ({self.a.hat, self.b.hat}, {self.a.body, self.b.body})

    def exponent(self, discrete: bool) -> Expr:
        """Return the term of the exponent, summed over indices and times.

        Times are summed over steps if ``discrete``, and integrated otherwise.
        """
        return over(-self.strength / (2 * N) * self.first * self.second, self.limits, (t, s), discrete)


def pairings(legs: tuple[Leg, ...]) -> Iterator[Pairing]:
    """Yield the terms of the averaged exponent for each pair of products with one random matrix.

    ``legs`` are all products of matrices and vectors. A product also makes a pair with itself. A pair has one
    term, and a second one if the matrix is correlated with its transpose. The strength of a pair of different
    products is doubled, because the terms are those of the square of the part that is linear in the matrix.
    """
    for a, other in combinations_with_replacement(legs, 2):
        if not a.use.meets(other.use) or not is_random(a.use):
            continue
        m, b = a.use.matrix, other.past(a.use.indices).beside(a)
        strength = (1 if a is other else 2) * variance(a.use) * time_covariance(a)
        for k, x, y in ((S.One, b.row, b.col), (m.symmetry, b.col, b.row)):
            if k != 0:
                first, second = Inner(m.rows.name, a.row, x), Inner(m.cols.name, a.col, y)
                yield Pairing(strength * k, a, b, other, first, second)


def time_covariance(leg: Leg) -> Expr:
    """Return the covariance at two times of an entry of the matrix of the product ``leg``.

    It is divided by the initial variance. It is the symbol `Entries` unless it is a number or contains a
    Kronecker delta of the times.
    """
    value, family = covariance(leg.use), leg.use.matrix.index
    plain = value.is_number or value.has(KroneckerDelta)
    if plain:
        return value
    members = () if family is None else (family.index, family.index + 1)
    differ = len({covariance(replace(leg.use, member=x)) for x in members}) > 1
    return Entries(leg.matrix, t, s, *((leg.use.member,) if differ else ()))


def with_time_covariances(e: Expr, legs: tuple[Leg, ...]) -> Expr:
    """Return ``e`` with the symbols `Entries` (covariances of matrix entries at two times) written out.

    ``legs`` are all products with matrices.
    """
    uses = {x.matrix: x.use for x in legs}
    written_out = {}
    for x in e.atoms(Entries):
        use = uses[str(x.args[0])]
        member = x.args[3] if len(x.args) > 3 else use.member
        written_out[x] = covariance(replace(use, member=member), *x.args[1:3])
    return e.xreplace(written_out) if written_out else e


def _has_separate_variables(leg: Leg, other: Leg) -> bool:
    """Return whether the responses between two products need a separate variable for each value of an index.

    This is so if the vector of either product is taken at a shifted index, as in a convolution. It is also so
    if the matrix belongs to a family with further indices than the layer, such as offsets or heads.
    """
    return any(
        x.use.summed or x.member_indices or x.use.vector.plain != x.use.vector.body for x in (leg, other)
    )


ParameterPairing = tuple[Expr, EntrywiseUse, EntrywiseUse, tuple[IndexRange, ...]]


def parameter_pairings(entries: tuple[EntrywiseUse, ...]) -> Iterator[ParameterPairing]:
    """Yield pairs of uses (a, b) of one vector of weights, each with its term in the averaged exponent.

    The term is ``-(strength/2)`` times the sum of the product of the hatted fields of a at t and b at s. The
    tuples are (strength, a, b, ranges of the sum); strength is the covariance of an entry at two times,
    doubled if the uses differ.
    """
    for a, other in combinations_with_replacement(entries, 2):
        if a.use.meets(other.use):
            b = other.past(a.use.indices)
            names = {i: unused_primed(i, a.use.indices) for i in other.use.indices}
            strength = (1 if a is other else 2) * parameter_covariance(a.use, other.use, names)
            yield strength, a, b, (*a.limits, *(r for r in b.limits if r not in a.limits))


def average_exponent(legs: tuple[Leg, ...], entries: tuple[EntrywiseUse, ...], discrete: bool) -> Expr:
    """Return the terms of the exponent that the average over all random weights gives.

    ``legs`` are the products with matrices and ``entries`` the uses of weight vectors. The result is written
    in inner products of vectors and hatted fields. Times are summed over steps if ``discrete``, and
    integrated otherwise.
    """
    parts = [p.exponent(discrete) for p in pairings(legs)]
    for strength, a, b, limits in parameter_pairings(entries):
        parts.append(over(-strength / 2 * Inner(a.home, a.hat, b.hat), limits, (t, s), discrete))
    return Add(*parts)


@dataclass(frozen=True)
class ExponentPart:
    """Term of the exponent of the integral over the fields of one unit.

    ``kind`` is ``constraint`` (the equation of a field), ``quadratic`` (a covariance), ``response`` or
    ``conjugate`` (the conjugate of a correlation times the product that it averages). ``ratio`` is the number
    of units over N that have the term; it may contain the indices that ``expr`` sums over. ``matrix`` is the
    name of the weights from which a quadratic or response term comes, and empty for the other kinds.
    """

    kind: str
    expr: Expr
    ratio: Expr
    matrix: str = ""

    @property
    def weighted(self) -> Expr:
        """Expression of the term, times the number of units that have the term, divided by N."""
        return _inside(self.ratio, self.expr)


@dataclass(frozen=True)
class Correlation:
    """Correlation ``C = (1/n) a.b`` over the n units of a population, and its conjugate variable.

    ``product`` is ``a b`` for one unit, with a at time t and b at time s.
    """

    symbol: AppliedUndef
    conjugate: AppliedUndef
    product: Expr
    population: str
    ranges: tuple[IndexRange, ...]


@dataclass(frozen=True)
class ResponseParameter:
    """Response ``A = -(i/n) a.hat``, divided by the program's scale, as a variable of the action.

    a is the vector of the product ``leg``, hat the hatted (conjugate) field of the product ``other``, and n
    the number of units of their population. ``conjugate`` is the response B that stands with A in one term of
    the action, which is proportional to ``A B``; it may be A itself. ``algebra`` is that term, and
    ``exponents`` are the two terms with A and with B in single-site exponents, each times the number of units
    over N.
    """

    symbol: AppliedUndef
    conjugate: AppliedUndef
    leg: Leg
    other: Leg
    ranges: tuple[IndexRange, ...]
    algebra: Expr
    exponents: tuple[Expr, ...]


@dataclass
class Action:
    """Action of the path integral: an algebraic part plus ``n ln Z`` summed over populations.

    ``reading`` lists the products in a program, ``legs`` and ``entries`` are their variables. Z is the
    integral over the fields of one unit and n the number of units over N. ``terms`` add up to the algebraic
    part. By population, ``sites`` are the terms of the exponent of one unit and ``ratios`` the n.
    ``correlations`` are kept by name and ``responses`` by the text of their symbol. ``separate_responses``
    describes responses ``..._used``, which have a separate variable for each value of an index (see
    :meth:`symbol`): the name of the response function, its number of layer arguments, and the two products.
    """

    reading: Reading
    legs: tuple[Leg, ...]
    entries: tuple[EntrywiseUse, ...]
    terms: list[Expr] = field(default_factory=list)
    sites: dict[str, list[ExponentPart]] = field(default_factory=dict)
    ratios: dict[str, Expr] = field(default_factory=dict)
    correlations: dict[str, Correlation] = field(default_factory=dict)
    responses: dict[str, ResponseParameter] = field(default_factory=dict)
    separate_responses: dict[str, tuple[str, int, Application, Application]] = field(default_factory=dict)

    @property
    def discrete(self) -> bool:
        """Whether time is discrete, so that times are summed over steps."""
        return self.reading.program.rule.discrete

    @property
    def variables(self) -> tuple[Leg | EntrywiseUse, ...]:
        """Products with matrices, then uses of vectors of weights, each with its field and hatted field."""
        return (*self.legs, *self.entries)

    @property
    def algebraic(self) -> Expr:
        """Part of the action outside of single-site integrals: order parameters times their conjugates."""
        return Add(*self.terms)

    def exponent(self, population: str, *kinds: str) -> Expr:
        """Return the exponent of the integral over the fields of one unit of a population.

        If ``kinds`` are given, only terms of these kinds (see `ExponentPart`) are included.
        """
        return Add(*[x.expr for x in self.sites[population] if not kinds or x.kind in kinds])

    def weighted(self, population: str) -> Expr:
        """Return the exponent of the integral over one unit, times the number of units over N."""
        return Add(*[x.weighted for x in self.sites[population]])

    def expr(self) -> Expr:
        """Return the action divided by N as one expression."""
        return Add(self.algebraic, *[self.free_energy(p) for p in self.sites])

    def free_energy(self, population: str) -> Expr:
        """Return ``n ln Z`` of a population, where n is its number of units over N.

        Z is the integral over the fields of one unit. The result is summed over layers if n depends on the
        layer.
        """
        ratio, exponent = sympify(self.ratios[population]), self.exponent(population)
        if ell in ratio.free_symbols:
            whole = ratio * log(Partition(population, exponent, ell))
            return Sum(whole, (ell, 1, self.reading.program.depth))
        return ratio * log(Partition(population, exponent))

    # -- construction of the action --------------------------------------------------------------------------

    def build(self) -> Action:
        """Add all terms to this action, and return the action; this method is called once.

        They are those of products with matrices, of uses of weight vectors, and of correlations.
        """
        for x in self.variables:
            expr = over(I * x.hat * x.primal, x.limits, (t,), self.discrete)
            self.add(x.home, ExponentPart("constraint", expr, x.ratio))
        for p in pairings(self.legs):
            self.covariance(p) if p.sources else self.response_pair(p)
        for strength, a, b, limits in parameter_pairings(self.entries):
            expr = over(-strength / 2 * a.hat * b.hat, limits, (t, s), self.discrete)
            self.add(a.home, ExponentPart("quadratic", expr, a.ratio, a.use.initial.name))
        self.constrain_correlations()
        return self

    def add(self, population: str, piece: ExponentPart) -> None:
        """Add a term to the exponent of the integral over the fields of one unit of a population."""
        self.sites.setdefault(population, []).append(piece)
        self.ratios.setdefault(population, self.ratio(population))

    def ratio(self, population: str) -> Expr:
        """Return the number of units of a population over N, at layer ``ell``."""
        fields = (x.population for x in self.reading.program.fields)
        ends = (p for x in self.legs for p in (x.use.matrix.rows, x.use.matrix.cols))
        home = next(p for p in (*ends, *fields) if p.name == population)
        return home.ratio if home.site is None else home.at(ell).ratio

    def covariance(self, p: Pairing) -> None:
        """Add the term ``(hat.hat)(a.b)`` of two products of one random matrix to the exponent of one unit.

        The vectors of the products are a and b. Their inner product becomes a correlation, so that the term
        is quadratic in the hatted fields.
        """
        at = 0 if p.first.vectors == (p.a.body, p.b.body) else 1
        hats = (p.first, p.second)[1 - at]
        correlation = self.reading.registry.correlation(p.a.use.vector, p.b.use.vector)
        body = -p.strength / 2 * p.ratios[at] * correlation * Mul(*hats.vectors)
        expr = over(body, p.limits, (t, s), self.discrete)
        self.add(hats.population, ExponentPart("quadratic", expr, p.ratios[1 - at], p.a.matrix))

    def response_pair(self, p: Pairing) -> None:
        """Add the terms that replace ``(hat.b)(a.hat)`` of two products of one random matrix to the action.

        The vectors of the products are a and b. The two inner products become two responses, each the
        conjugate of the other: their product is an algebraic term, and each of them multiplies the other's
        inner product in the exponent of one unit.
        """
        scale = self.reading.program.scale
        # `one` is the response of the vector of p.a at time t to the source of p.b at time s, a multiple of
        # the average of this vector times the hatted field of p.b. In `two` the products and the times are
        # exchanged.
        one = self.symbol(p.a, p.b, t, s)
        two = self.symbol(p.b, p.a, s, t)
        k = p.strength / 2 * p.ratios[0] * p.ratios[1]
        algebra = over(-k * scale**2 * one * two, p.limits, (t, s), self.discrete)
        self.terms.append(algebra)
        exponents = []
        for weight, vector, hat in ((two, p.a.body, p.b.hat), (one, p.b.body, p.a.hat)):
            at = 0 if set(p.first.vectors) == {vector, hat} else 1
            home = (p.first, p.second)[at].population
            body = -I * k / p.ratios[at] * scale * weight * vector * hat
            expr = over(body, p.limits, (t, s), self.discrete)
            piece = ExponentPart("response", expr, p.ratios[at], p.a.matrix)
            self.add(home, piece)
            exponents.append(piece.weighted)
        for leg, other in ((p.a, p.other), (p.other, p.a)):
            self.record(leg, other, algebra, tuple(exponents))

    def record(self, leg: Leg, other: Leg, algebra: Expr, exponents: tuple[Expr, ...]) -> None:
        """Record a response as a variable of the action, if it is not recorded yet.

        It is the response of the vector of the product ``leg`` at t to the Gaussian source of the product
        ``other`` at s. ``algebra`` is the algebraic term of the action in which it stands, and ``exponents``
        are the terms in single-site exponents.
        """
        past = other.past(leg.use.indices).beside(leg)
        symbol = self.symbol(leg, past, t, s)
        if str(symbol) not in self.responses:
            conjugate = self.symbol(past, leg, s, t)
            moved = leg.use.summed if _has_separate_variables(leg, past) else ()
            ranges = (*leg.limits, *past.without_members(), *moved)
            self.responses[str(symbol)] = ResponseParameter(
                symbol, conjugate, leg, other, ranges, algebra, exponents
            )

    def symbol(self, leg: Leg, other: Leg, time: Expr, past: Expr) -> AppliedUndef:
        """Return the symbol of a response of the vector of ``leg`` to the Gaussian source of ``other``.

        ``leg`` is a product with a matrix at ``time``, and ``other`` one at ``past``. If one of the two
        vectors is taken at shifted indices, such as ``phi(h(ell, mu, a + k, t))``, there is a separate
        variable for each k. The same holds for families of matrices with further indices than the layer. The
        name then ends in ``_used``, see :meth:`merged_responses`.
        """
        name, site = self.reading.response_name(leg.use, other.use)
        sites = () if site is None else (site,)
        if _has_separate_variables(leg, other):
            first, second = map(self.use_at_present, (leg, other))
            self.separate_responses[f"{name}_used"] = (name, len(sites), first, second)
            name = f"{name}_used"
            sites = (*sites, *[r.index for r in leg.use.summed], *leg.member_indices)
        vector_indices = [x for x in leg.use.vector.indices if x not in leg.member_indices]
        source_indices = [r.index for r in other.without_members()]
        return Function(name)(*sites, *vector_indices, *source_indices, time, past)

    def use_at_present(self, leg: Leg) -> Application:
        """Return the product of matrix and vector of ``leg`` at time t, with indices that are not primed."""
        products = (x for x in self.legs if x.source.func == leg.source.func and x.matrix == leg.matrix)
        return next(products).use

    def merged_responses(self, e: Expr) -> Expr:
        """Return ``e`` with response variables ``..._used`` replaced by values of one response function.

        Such variables exist separately for each value of a shifted index, see :meth:`symbol`.
        """

        def final(x: AppliedUndef) -> Expr:
            name, sites, use, other = self.separate_responses[str(x.func)]
            members = [r.index for r in (*use.summed, *use.separate)]
            indices = [*members, *(y for y in use.vector.indices if y not in members)]
            end = sites + len(indices)
            values = dict(zip(indices, x.args[sites:end], strict=True))
            taken = [y.xreplace(values) for y in use.vector.arguments]
            chosen = {b.index: values[a.index] for a, b in zip(use.separate, other.separate, strict=True)}
            other_indices = iter(x.args[end:-2])
            source = [chosen[r.index] if r.index in chosen else next(other_indices) for r in other.ranges]
            return Function(name)(*x.args[:sites], *taken, *source, *x.args[-2:])

        return rewritten(e, self.separate_responses, final)

    def constrain_correlations(self) -> None:
        """Add the terms ``n C Chat - Chat a.b/N`` that enforce the definition of each correlation C.

        They are added to the action. Chat is the conjugate variable of C, n the number of units over N, and
        a.b the inner product of the two vectors. The terms are summed over indices and times. Correlations
        are those that occur in the theory or that the program's notation names.
        """
        for use in self.reading.uses:
            if use.trained is not None:
                matrix_memory(self.reading, use, use.trained)
        tangent_kernel(self.reading)
        self.reading.registry.name_all()
        for q in self.reading.registry.found.values():
            conjugate = Function(hatted(q.name))(*q.symbol.args)
            product = q.definition.args[0]
            place = self.reading.program.site_of(product)
            home, c = place.name, sympify(place.ratio)
            self.correlations[q.name] = Correlation(q.symbol, conjugate, product, home, q.ranges)
            self.terms.append(over(c * q.symbol * conjugate, q.ranges, (t, s), self.discrete))
            expr = over(-conjugate * product, q.ranges, (t, s), self.discrete)
            self.add(home, ExponentPart("conjugate", expr, c))


def _inside(factor: Expr, e: Expr) -> Expr:
    """Return ``factor * e``, with the factor inside of sums because it may contain their indices."""
    return e.func(_inside(factor, e.function), *e.limits) if isinstance(e, Sum | Integral) else factor * e
