"""Uses of matrices and vectors in a program, the names of their Gaussian sources, and the tangent kernel.

`read` returns every product of a matrix with a vector in the definitions of a program, in causal order. Both
derivations of the mean-field theory start from this list. The module also finds which responses have an
equal-time part: ``<d a(t) / d r(s)>`` has one at ``s = t`` if, at one site and within one step, ``a`` is
computed from the field that contains ``r``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
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
    Piecewise,
    S,
    Sum,
    Symbol,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.calculus.symbols import IndexRange, ell, primed, s, t
from derive.errors import ProgramError
from derive.program.domains import between, hull
from derive.program.index_ranges import require_ranges
from derive.program.language import GaussianMatrix, GaussianVector, Mean, Population, Product, terms
from derive.program.naming import free_name, unique_names
from derive.program.nonlinear import NonlinearRule, RewrittenSteps
from derive.program.outer_steps import outer_products
from derive.program.parts import Definition, gaussian
from derive.program.program import Program, member
from derive.program.rules import entry_covariance
from derive.program.training import Outer, TrainedMatrix, TrainedVector
from derive.program.unused_layers import MemberBounds
from derive.theory.data import Equation, Term
from derive.theory.names import Registry, Vector, differs, unused_primed, vector, whole_range

MatrixProductKey = tuple[str, bool, Expr]
"""A product: the name of its matrix, whether it is transposed, and the vector."""


def equal_time_pairs(
    program: Program, uses: Iterable[Application]
) -> set[tuple[MatrixProductKey, MatrixProductKey]]:
    """Return pairs (a, b) of products of one random matrix whose response exists at equal time.

    The vector of a then responds at s = t to the source of b. A product multiplies a Gaussian matrix and a
    vector, and is given by its key. Whether the vector of a depends on the source of b at equal time depends
    on the equal-time responses themselves. The smallest solution is found by iteration: start from the empty
    set and add pairs until nothing changes. Means over units do not respond to one unit. Members of a family
    of matrices, and layers of a field, are not distinguished, so that the set may contain pairs whose
    response at equal time is zero. They do not change the theory: the pairs only state up to which time a
    response is summed.
    """
    applications = list(uses)
    # Pairs of uses of one random matrix that may respond to each other: one use with the matrix and one with
    # its transpose. If the matrix is correlated with its transpose (`symmetry` is not 0), any two uses are a
    # pair, and so is a use with itself.
    coupled = [
        (a, b)
        for a in applications
        for b in applications
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
    """Return the names of the functions in an expression, outside of means over units."""
    return {str(a.func) for a in _without_means(e).atoms(AppliedUndef)}


def _without_means(e: Expr) -> Expr:
    """Return an expression with a symbol in place of each mean over units, which is a number."""
    return e.replace(lambda x: isinstance(x, Mean), lambda _: Dummy("mean"))


def _graph(program: Program, responding: list[tuple[Application, Application]]) -> dict[str, set[str]]:
    """Return for each field the names of the fields of the same unit and time from which it is computed.

    Layers are not distinguished, and an equation of a rate of change gives no names. A field is computed from
    another one directly, or by an equal-time response: for each pair (a, b) in ``responding`` the field of
    the product a depends on the vector of b.
    """
    graph: dict[str, set[str]] = {x.name: set() for x in program.fields}

    def enter(name: str, e: Expr) -> None:
        atoms = {a for a in _without_means(e).atoms(AppliedUndef) if a.args[-1] == t}
        graph[name] |= {str(a.func) for a in atoms} & set(graph)

    for d in program.definitions:
        if d.name in graph and not d.evolves:
            # The vector in a product of a matrix and a vector does not count as used here: the product acts
            # by a source and by responses, and the equal-time responses are entered below. So each product
            # becomes a symbol without fields before names are read; factors outside of it count.
            enter(d.name, d.rhs.replace(lambda e: isinstance(e, Product), lambda _: Dummy("product")))
    for a, b in responding:
        enter(a.gives_field, b.key[2])
    return graph


# -- dependences in the equations of a theory ----------------------------------------------------------------


def computed_now(equations: Iterable[Equation], names: Collection[str]) -> dict[str, set[str]]:
    """Return for the name of each equation those of ``names`` that the equation contains at time t.

    The last term of a sum over ``s = 0..t`` is at time t as well. Averages and integrals do not count, and
    the equation of a rate of change contains no names.
    """
    names_by_field: dict[str, set[str]] = {}
    for e in equations:
        present_names = names_by_field.setdefault(e.name, set())
        if not isinstance(e.lhs, Derivative):
            for x in e.terms:
                present_names |= _at_once_in(x.expr, names)
    return names_by_field


def reaches(now: Mapping[str, Collection[str]], start: str, goal: str) -> bool:
    """Return whether ``start`` depends on ``goal``, directly or through other names, or is the same name.

    ``now`` gives for each name the names from which it is computed (:func:`computed_now`).

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
    """Return those of ``names`` that ``e`` contains at time t, or in the last term of a sum up to t.

    Names inside of averages and integrals do not count.
    """
    if isinstance(e, Integral) or getattr(e, "is_averaged", False):
        return set()
    if isinstance(e, Sum):
        return _at_once_in(e.function.xreplace({v: upper for v, _, upper in e.limits if upper == t}), names)
    if isinstance(e, AppliedUndef) and str(e.func) in names and e.args[-1] == t:
        return {str(e.func)}
    return set().union(*[_at_once_in(x, names) for x in e.args]) if e.args else set()


@dataclass(frozen=True)
class Application:
    """Product of a matrix with a vector in a definition of a program.

    Parameters
    ----------
    product : Product
        Product as it stands in the program.
    matrix : GaussianMatrix
        Random matrix (the initial value of a trained one).
    trained : TrainedMatrix | None
        Trained matrix, if it is trained.
    vector : Vector
        Vector that the matrix multiplies.
    member : Expr
        Layer index of the matrix, such as ``ell - 1`` for ``W(ell - 1)``; 0 for a matrix without layer.
    gives_field : str
        Name of the defined field.
    layers : tuple[IndexRange, ...]
        Range of ``ell`` in the definition if ``member`` depends on it; otherwise empty.
    indices : tuple[Symbol, ...]
        Indices of the definition other than the layer, and those over which it sums the product.
    summed : tuple[IndexRange, ...]
        Further indices of the family of matrices whose products the definition sums, such as offsets of a
        convolution. All members act together, like one matrix on stacked vectors.
    separate : tuple[IndexRange, ...]
        Further indices of members that do not act together, because each has its own vector or factor. Each
        member gives its own source.
    at_once : bool
        Whether the product changes its field within the step. False for products in a rate of change.
    source_name : str
        Name of the Gaussian source of the product.
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
    separate: tuple[IndexRange, ...] = ()
    at_once: bool = True
    source_name: str = ""

    @property
    def transposed(self) -> bool:
        """Whether the transpose of the matrix is applied, as in a backward pass."""
        return self.product.transposed

    @property
    def whole(self) -> Expr:
        """Product, summed over a family of matrices that act together.

        One Gaussian source and one response belong to this sum, such as that over the offsets of a
        convolution.
        """
        return Sum(self.product, *[r.limits for r in self.summed]) if self.summed else self.product

    def entries(self, time: Expr = t, past: Expr = s) -> Expr:
        """Return the covariance of the random part of an entry at two times, divided by its initial variance.

        The random part of a trained matrix consists of the decayed initial weights and of noise, without the
        updates. The covariance is 1 for a matrix that stays as it was drawn, and a Kronecker delta for one
        that is drawn anew at each step.
        """
        if self.matrix.fresh:
            return KroneckerDelta(time, past)
        return self.at_member(entry_covariance(self.trained.rule, time, past)) if self.trained else S.One

    @property
    def variance(self) -> Expr:
        """Variance of an initial entry of the matrix, times N (times D for D given rows or columns)."""
        return self.at_member(sympify(self.matrix.variance))

    @property
    def is_random(self) -> bool:
        """Whether the product has a Gaussian part.

        It has none if the weights start at zero, or if their covariance at two times, of decayed initial
        weights and noise, is zero.
        """
        return bool(self.variance != 0 and self.entries() != 0)

    def at_member(self, e: Expr) -> Expr:
        """Return ``e``, a function of the index symbols of the family, at the member that the product uses.

        For example, a variance ``sigma(ell)**2`` becomes ``sigma(3)**2`` for the member ``W(3)`` of
        ``W(ell)``.
        """
        return e.xreplace(self.chosen)

    @property
    def chosen(self) -> dict[Any, Any]:
        """Value of each index of a family of matrices at the matrix of this product, as a dictionary.

        The indices of the ranges in ``summed`` are left out. For example, the product with ``W(3)`` of the
        family ``W(ell)`` gives ``{ell: 3}``.
        """
        chosen: dict[Any, Any] = {
            r.index: x.index for r, x in zip(self.matrix.others, self.separate, strict=False)
        }
        return chosen | ({} if self.matrix.index is None else {self.matrix.index.index: self.member})

    @property
    def ranges(self) -> tuple[IndexRange, ...]:
        """Ranges of the indices of the Gaussian source of the product, except that of its layer.

        They are the ranges of the vector and those in ``separate``, which number matrices that do not act
        together.
        """
        return (*self.vector.ranges, *(r for r in self.separate if r.index not in self.vector.indices))

    @property
    def gives(self) -> Population:
        """Population of the product: of the matrix's rows, or of its columns if it is transposed."""
        return _at(self.matrix.cols if self.transposed else self.matrix.rows, self.matrix, self.member)

    @property
    def acts_on(self) -> Population:
        """Population of the vector: of the matrix's columns, or of its rows if it is transposed."""
        return _at(self.matrix.rows if self.transposed else self.matrix.cols, self.matrix, self.member)

    def source(self, time: Expr = t) -> AppliedUndef:
        """Return the Gaussian source of the product, such as ``u(ell, mu, t)``.

        Its arguments are the layer of the product if it has one, the indices in ``ranges``, and ``time``.
        """
        site = () if self.gives.site is None else (self.gives.site,)
        return Function(self.source_name)(*site, *[r.index for r in self.ranges], time)

    def past(self, taken: Iterable[Symbol] = ()) -> Application:
        """Return this product at the time ``s`` instead of t.

        Its indices other than the layer are primed (``alpha`` for mu, ``p_`` for an index p), and differ from
        those in ``taken``.
        """
        names = {r.index: unused_primed(r.index, taken) for r in self.separate}
        separate = tuple(r.renamed(names[r.index]) for r in self.separate)
        past = replace(self, vector=self.vector.past(taken), separate=separate)
        other_names = {x: y for x, y in names.items() if x not in self.vector.indices}
        return past.renamed(other_names) if other_names else past

    def renamed(self, names: Mapping[Symbol, Symbol]) -> Application:
        """Return this product with its indices renamed as ``names`` says."""
        v = self.vector
        ranges = tuple(r.renamed(names.get(r.index, r.index)) for r in v.ranges)
        arguments = tuple(x.xreplace(dict(names)) for x in v.arguments)
        separate = tuple(r.renamed(names.get(r.index, r.index)) for r in self.separate)
        return replace(
            self, vector=Vector(v.body.xreplace(dict(names)), v.site, ranges, arguments), separate=separate
        )

    def beside(self, other: Application) -> Application:
        """Return this product with the matrix of a family that ``other`` uses, such as the same head.

        The indices in ``separate`` are renamed to those of ``other``. The product is returned unchanged if
        the family has no index of this kind.
        """
        names = {
            r.index: x.index for r, x in zip(self.separate, other.separate, strict=True) if r.index != x.index
        }
        return self.renamed(names) if names else self

    def at(self, site: Expr) -> Application:
        """Return this product with the matrix of the layer ``site``, such as ``W(site)``.

        The layer of the vector is shifted by the same amount and the range of ``ell`` by the opposite one, so
        that the product uses the same matrices. A product with a matrix without layer is returned unchanged.
        """
        if self.matrix.index is None or self.member == site:
            return self
        v, up = self.vector, site - self.member
        shift = {ell: ell + up}
        place = None if v.site is None else v.site.xreplace(shift)
        moved = Vector(v.body.xreplace(shift), place, v.ranges, tuple(x.xreplace(shift) for x in v.arguments))
        layers = tuple(IndexRange(r.index, r.lower - up, r.upper - up) for r in self.layers)
        return replace(self, vector=moved, member=site, layers=layers)

    def canonical(self) -> Application:
        """Return this product with the matrix at its declared index: ``W(ell)`` instead of ``W(ell - 1)``.

        The product with a single matrix of a family, such as ``W(3)``, is returned unchanged.
        """
        return self.at(self.matrix.index.index) if self.matrix.index is not None and self.layers else self

    @cached_property
    def key(self) -> MatrixProductKey:
        """Name of the matrix, whether it is transposed, and the vector with standard indices.

        The same product has the same key in each definition. For a product with a single layer of a family,
        such as ``W(3)``, the layer of the matrix is not part of the key.
        """
        v = self.canonical().vector
        body = v.plain.xreplace(dict(zip(v.indices, _SLOTS, strict=False)))
        return self.matrix.name, self.transposed, body

    def same_use(self, other: Application) -> bool:
        """Return whether ``other`` is the same product, possibly in another definition."""
        a, b = self.canonical(), other.canonical()
        return (a.matrix, a.member) == (b.matrix, b.member) and self.key == other.key

    def meets(self, other: Application) -> bool:
        """Return whether ``other`` uses the same matrix, at the same layers.

        The result is False if they have no layer in common. Raises ProgramError if their ranges of layers
        are neither equal nor known to be disjoint.
        """
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
            f"{self.product} and {other.product} use {self.matrix.name} at ranges of layers that are neither "
            "equal nor known to be disjoint: give both products the same range, or use two matrices"
        )

    def members(self) -> tuple[Expr, Expr]:
        """Return the first and last matrix of a family that the product uses, as values of its index.

        For example, ``W(ell - 1)`` in a definition for ell = 2..L gives (1, L - 1), and ``W(3)`` gives (3,
        3).
        """
        if not self.layers:
            return self.member, self.member
        r = self.layers[0]
        return self.member.xreplace({ell: r.lower}), self.member.xreplace({ell: r.upper})


_SLOTS = [Symbol(f"_{k}") for k in range(8)]


@dataclass(frozen=True)
class Parameter:
    """Use of a vector of weights in the definition of a field, entry by entry.

    Parameters
    ----------
    initial : GaussianVector
        Vector of initial values.
    trained : TrainedVector | None
        Trained vector, if it is trained.
    lhs : AppliedUndef
        Field that the definition defines.
    ranges : tuple[IndexRange, ...]
        Ranges of the indices of the definition that the field has.
    source_name : str
        Name of the Gaussian source.
    member : Expr
        Vector as the definition contains it, such as ``w(3)`` of the family ``w(ell)``.
    """

    initial: GaussianVector
    trained: TrainedVector | None
    lhs: AppliedUndef
    ranges: tuple[IndexRange, ...]
    source_name: str = ""
    member: Expr = S.One

    def covariance(
        self, other: Parameter, names: dict[Symbol, Symbol], time: Expr = t, past: Expr = s
    ) -> Expr:
        """Return the covariance of an entry in this use at ``time`` and in the use ``other`` at ``past``.

        Only the random part of the weights counts: initial values, with their decay, and noise. ``names``
        renames the indices of ``other``. Kronecker deltas of indices say that different vectors of a family
        are independent.
        """
        value = self.at_member(sympify(self.initial.variance))
        for x, y in zip(self.member.args, other.member.args, strict=True):
            value *= KroneckerDelta(x, y.xreplace(names))
        if self.initial.fresh:
            return value * KroneckerDelta(time, past)
        return value * (
            self.at_member(entry_covariance(self.trained.rule, time, past)) if self.trained else 1
        )

    def at_member(self, e: Expr) -> Expr:
        """Return ``e``, a function of the indices of a family of vectors, at the indices of this vector.

        For example, a variance ``sigma(ell)**2`` becomes ``sigma(3)**2`` for the vector ``w(3)`` of
        ``w(ell)``.
        """
        return e.xreplace({r.index: x for r, x in zip(self.initial.indices, self.member.args, strict=True)})

    def update(self, time: Expr = t, past: Expr = s) -> tuple[tuple[IndexRange, ...], Expr, Expr]:
        """Return the update of a trained weight vector at time ``past`` in three parts.

        They are the ranges of the summed indices, the coefficient, and the vector: the update is the sum over
        the indices of coefficient times vector. ``time`` is the symbol in the program's update that ``past``
        replaces. The vector must be a trained one.
        """
        assert self.trained is not None
        u = self.trained.update
        names, over = rename_taken(u.over, self.indices)
        coefficient, vector = (
            self.at_member(x.xreplace(names)).xreplace({time: past}) for x in (u.coefficient, u.vector)
        )
        return over, coefficient, vector

    def meets(self, other: Parameter) -> bool:
        """Return whether ``other`` can use the same weights.

        It can if both uses are of one vector or family of vectors, unless their indices in the family are
        known to differ.
        """

        def bounds(p: Parameter, place: Expr) -> tuple[Expr, Expr]:
            low, high = ({r.index: getattr(r, end) for r in p.ranges} for end in ("lower", "upper"))
            return place.xreplace(low), place.xreplace(high)

        places = zip(self.member.args, other.member.args, strict=True)
        disjoint = (_disjoint(bounds(self, x), bounds(other, y)) for x, y in places)
        return self.initial == other.initial and not any(disjoint)

    @property
    def place(self) -> str:
        """The place of a vector in its family, as text; empty for a single vector.

        Two uses have the same place if their vectors follow from the arguments of the fields in the same way,
        as in ``q(mu, p, t) = b(p)``; then one Gaussian source stands for both.
        """
        if not self.member.args:
            return ""
        own = list(self.lhs.args)
        places = [f"{own.index(x)}" if x in own else f"at_{x}" for x in self.member.args]
        return re.sub(r"\W+", "_", "_".join([*places, f"of_{len(own)}"])).strip("_")

    def source(self, time: Expr = t, taken: Iterable[Symbol] | None = None) -> AppliedUndef:
        """Return the initial weights as a Gaussian source, with the arguments of the field they enter.

        The source is at ``time``. If ``taken`` is given, the indices of the source are primed (``alpha`` for
        mu, ``p_`` for an index p), and differ from those in ``taken``.
        """
        names = {} if taken is None else {i: unused_primed(i, taken) for i in self.indices}
        return Function(self.source_name)(*[time if x == t else x for x in self.lhs.xreplace(names).args])

    @property
    def indices(self) -> tuple[Symbol, ...]:
        """Indices of the field that the weights enter, without the layer and the time."""
        return tuple(r.index for r in self.ranges if r.index != ell and self.lhs.has(r.index))


@dataclass
class Reading:
    """Definitions of a program in causal order, with the uses of matrices and of vectors of weights in them.

    Parameters
    ----------
    program : Program
        Program, in which a first or last layer has its own definition where the theory needs it.
    registry : Registry
        Registry of the names of order parameters.
    definitions : tuple[Definition, ...]
        Definitions in causal order.
    products : dict[Definition, list[Application]]
        Products with matrices in each definition.
    parameters : dict[Definition, list[Parameter]]
        Uses of vectors of weights in each definition.
    """

    program: Program
    registry: Registry
    definitions: tuple[Definition, ...] = ()
    products: dict[Definition, list[Application]] = field(default_factory=dict)
    parameters: dict[Definition, list[Parameter]] = field(default_factory=dict)

    @property
    def uses(self) -> list[Application]:
        """All different products with Gaussian matrices; a product in two definitions occurs once."""
        uses: list[Application] = []
        for a in (a for d in self.definitions for a in self.products[d]):
            if not any(a.same_use(b) for b in uses):
                uses.append(a)
        return uses

    @cached_property
    def instant(self) -> set[tuple[MatrixProductKey, MatrixProductKey]]:
        """Pairs (a, b) of products of a matrix and a vector with an instantaneous response.

        The vector of a responds to the source of b at s = t. Products are given by their keys.
        """
        return equal_time_pairs(self.program, [a for d in self.definitions for a in self.products[d]])

    def product_of(self, d: Definition, x: Term) -> Application | None:
        """Return the product in the definition ``d`` that gave the term ``x`` of its equation.

        The product has the matrix and the source of the term, or is the only one with this matrix. The result
        is None if neither exists.
        """
        with_matrix = [a for a in self.products[d] if a.matrix.name == x.matrix]
        with_source = [a for a in with_matrix if a.source_name == x.source_name]
        known = with_source or (with_matrix if len(with_matrix) == 1 else [])
        return known[0] if known else None

    def response_name(self, a: Application, b: Application) -> tuple[str, Expr | None]:
        """Return the name of the response of the vector of ``a`` to the source of ``b``, and its layer.

        If ``a`` and ``b`` are the only two uses of the matrix, one forward and one backward, the name is the
        one that the matrix declares, if it declares names; the layer is then the index of the matrix.
        Otherwise the name is formed as ``R_<vector><source>``, and the layer is that of the vector. The layer
        is None outside of layers.
        """
        uses = [x for x in self.uses if x.transposed in (a.transposed, b.transposed) and a.meets(x)]
        if a.matrix.responses and a.transposed != b.transposed and len(uses) == 2:
            return a.matrix.responses[int(a.transposed)], a.member if a.matrix.index else None
        return self.registry.response_name(a.vector, b.source_name), a.acts_on.site

    def equations(
        self, product: Callable[[Application], list[Term]], parameter: Callable[[Parameter], list[Term]]
    ) -> tuple[tuple[Equation, ...], tuple[Equation, ...]]:
        """Return the equations of fields and the equations of scalars, from the definitions of the program.

        ``product`` returns the terms that replace a product with a matrix, and ``parameter`` those that
        replace a vector of weights. All other terms are kept as they stand, with means as averages.
        """

        def replaced(d: Definition, part: Expr) -> list[Term]:
            for a in self.products[d]:
                if part.has(a.product):
                    product_terms = [replace(x, source_name=a.source_name) for x in product(a)]
                    if not isinstance(part, Sum):
                        return [x.times(part / a.product) for x in product_terms]
                    product_terms = [x.times(part.function / a.product) for x in product_terms]
                    limits = tuple(IndexRange(*x) for x in part.limits)
                    return product_terms if a.summed else [x.summed(limits) for x in product_terms]
            for p in self.parameters[d]:
                if part.has(p.member):
                    vector_terms = [replace(x, source_name=p.source_name) for x in parameter(p)]
                    return [x.times(part / p.member) for x in vector_terms]
            expr = part.replace(lambda e: isinstance(e, Mean), lambda e: Average(e.args[0]))
            return [Term.local(expr, rule="as defined")]

        equations: tuple[list[Equation], list[Equation]] = ([], [])
        for d in self.definitions:
            lhs = Derivative(d.lhs, t) if d.evolves else d.lhs
            parts = tuple(x for part in terms(d.rhs) for x in replaced(d, part))
            equations[d.name in self.program.scalars].append(Equation(lhs, parts, d.ranges))
        return tuple(equations[0]), tuple(equations[1])

    @property
    def entries(self) -> list[Parameter]:
        """Uses of vectors of weights in all definitions, in causal order."""
        return [p for d in self.definitions for p in self.parameters[d]]


def read(program: Program) -> Reading:
    """Return the uses of matrices and vectors in a program, with names for their Gaussian sources.

    Raises ProgramError if an index of the program has no range where it stands, if a vector of weights is
    read beyond its family, if a matrix is applied to one vector at several places, or if the ranges of one
    product in several definitions cannot be compared.

    >>> from derive.program import mlp
    >>> [str(a.source()) for a in read(mlp(1)).uses], [str(p.source()) for p in read(mlp(1)).entries]
    (['u(1, mu, t)'], ['r(1, t)'])
    """
    require_ranges(program)
    program = with_separate_ends(outer_products(program))
    registry = Registry(program)
    reading = Reading(program, registry, nonempty(program.causal_order()))
    families_apart = separate_families(program)
    for d in reading.definitions:
        layer = tuple(r for r in d.ranges if r.index == ell)
        indices = tuple(r.index for r in d.ranges if r.index != ell)
        reading.products[d] = uses = []
        for product in d.products():
            m = program.matrix_of(product)
            matrix, trained = gaussian(m), m if isinstance(m, TrainedMatrix) else None
            members, separate = d.members(product, matrix), matrix.name in families_apart
            # The same product may be summed in several terms, with another index in each.
            sums = sorted((x for e in d.rhs.atoms(Sum) if e.has(product) for x, *_ in e.limits), key=str)
            letters = dict.fromkeys((*indices, *(r.index for r in members), *sums))
            i = member(matrix, product)
            use = Application(
                product,
                matrix,
                trained,
                vector(
                    program, product.vector, _whole_ranges(program, d, product), members if separate else ()
                ),
                i,
                d.name,
                layers=layer if i.has(ell) else (),
                indices=tuple(letters),
                summed=() if separate else members,
                separate=members if separate else (),
                at_once=not d.evolves,
            )
            uses.append(use)
        parameters = []
        for w in program.vectors:
            initial, trained_vector = (w.initial, w) if isinstance(w, TrainedVector) else (w, None)
            ranges = tuple(r for r in d.ranges if d.lhs.has(r.index))
            parameters += [
                Parameter(initial, trained_vector, d.lhs, ranges, member=x) for x in initial.uses(d.rhs)
            ]
        for used in parameters:
            _require_members(d, used)
        reading.parameters[d] = parameters
    _require_one_place(reading)
    _unite_ranges(reading)
    _name_sources(reading)
    return reading


def _unite_ranges(reading: Reading) -> None:
    """Give the uses of one product in several definitions the range of all of them, in place.

    Steps of an ordered field may have several definitions. A step at which no definition contains the product
    has a Gaussian source that no equation contains. Raises ProgramError if symbols in the ends cannot be
    compared.
    """
    everywhere = [(d, a) for d in reading.definitions for a in reading.products[d]]
    for d in reading.definitions:
        united = []
        for a in reading.products[d]:
            same = [b for _, b in everywhere if b.same_use(a)]
            united.append(replace(a, vector=replace(a.vector, ranges=_united(a, same))))
        reading.products[d] = united


def _united(a: Application, same: list[Application]) -> tuple[IndexRange, ...]:
    """Return the ranges of the vector of ``a``, extended to contain those of all uses ``same``.

    Raises ProgramError if the order of their ends is not known.
    """
    ranges = []
    for n, r in enumerate(a.vector.ranges):
        lowest, highest = r.lower, r.upper
        for b in same:
            other = b.vector.ranges[n]
            if (lowest - other.lower).is_positive:
                lowest = other.lower
            if (other.upper - highest).is_positive:
                highest = other.upper
            if not ((other.lower - lowest).is_nonnegative and (highest - other.upper).is_nonnegative):
                raise ProgramError(
                    f"{a.product} stands in a definition for {r.index} = {r.lower}..{r.upper} and in one for "
                    f"{other.lower}..{other.upper}, and the order of the ends of these ranges is not known: "
                    "write equal ranges, or numbers as ends"
                )
        ranges.append(IndexRange(r.index, lowest, highest))
    return tuple(ranges)


def _literal_steps(program: Program, body: Expr) -> list[Expr]:
    """Return the steps of ordered fields in a vector that are written as numbers, in increasing order."""
    fields = [(x, program.field_of(str(x.func))) for x in body.atoms(AppliedUndef)]
    return sorted(
        {x.args[0] for x, home in fields if home is not None and home.ordered and x.args[0].is_number}
    )


def _at_step(body: Expr, step: Expr) -> list[AppliedUndef]:
    """Return the functions in a vector whose first argument is ``step``."""
    return [x for x in body.atoms(AppliedUndef) if x.args[0] == step]


def _require_members(d: Definition, used: Parameter) -> None:
    """Raise ProgramError if a definition reads a vector of weights beyond the ends of its family.

    Two members are tested: at the first values of all indices, and at the last values of all. Definitions
    with deltas or cases, which may select the members that exist, are not checked.
    """
    if d.rhs.has(KroneckerDelta, Piecewise):
        return
    runs = {r.index: (r.lower, r.upper) for r in d.ranges}
    runs |= {x: (low, high) for e in d.rhs.atoms(Sum) for x, low, high in e.limits}
    for place, r in zip(used.member.args, used.initial.indices, strict=True):
        ends = [place.xreplace({x: sympify(bounds[k]) for x, bounds in runs.items()}) for k in (0, 1)]
        for end in ends:
            if (end - r.upper).is_positive or (r.lower - end).is_positive:
                raise ProgramError(
                    f"the definition of {d.lhs} reads {used.member} at {end}, and the family "
                    f"{used.initial.symbol} has the members {r.lower}..{r.upper}, which are not periodic: "
                    "use an index that stays in this range, or give the family more members"
                )


def _require_one_place(reading: Reading) -> None:
    """Raise ProgramError if a matrix is applied to one vector at several places, as at the steps k and k + 1.

    A product has one Gaussian source with the indices of its vector. Products at several places have been
    rewritten as fields where this is possible (:mod:`derive.theory.shifted_products`), which leaves steps of
    ordered fields and offsets of families.
    """
    first: dict[tuple[MatrixProductKey, Expr], Application] = {}
    steps: dict[tuple[str, bool, Expr], Expr] = {}
    for a in (x.canonical() for uses in reading.products.values() for x in uses):
        v = a.vector
        for step in _literal_steps(reading.program, v.body):
            plain = v.body.xreplace({x: x.func(S.Zero, *x.args[1:]) for x in _at_step(v.body, step)})
            if steps.setdefault((a.matrix.name, a.transposed, plain), step) != step:
                raise ProgramError(
                    f"{a.matrix.name} is applied to {v.body} at several steps that are written as numbers: "
                    "write one definition of all steps, with an index such as k in a(k + 1)"
                )
        slots = dict(zip(v.indices, _SLOTS, strict=False))
        other = first.setdefault((a.key, a.member), a)
        w = other.vector
        names = dict(zip(w.indices, _SLOTS, strict=False))
        if [x.xreplace(slots) for x in v.arguments] != [x.xreplace(names) for x in w.arguments]:
            raise ProgramError(
                f"{a.matrix.name} is applied to {w.body} and to {v.body}, which are one vector at different "
                "indices: define a field for one of the products and read this field at both indices, or use "
                "two matrices"
            )


def _whole_ranges(program: Program, d: Definition, product: Product) -> tuple[IndexRange, ...]:
    """Return the ranges of the indices of a product, widened to all values at which its vector is defined.

    The indices are those of the definition ``d`` and of its sums over the product. The vector at the index r
    of ``Sum(R @ phi(h(r, t)), (r, 1, p))`` is needed for all r at which h is defined: a response of ``R.T``
    connects the positions r and p of different outputs, and other definitions may apply R to it at other
    positions.
    """
    ranges = d.ranges_of(product)
    members = {r.index for r in d.members(product, gaussian(program.matrix_of(product)))} | {ell}
    whole = tuple(
        r if r.index in members else whole_range(program, product.vector, r.index, r) for r in ranges
    )
    indices = {r.index for r in whole}
    if not any({*r.lower.free_symbols, *r.upper.free_symbols} & indices for r in whole):
        return whole
    label = f"the definition of {d.lhs}"
    domain = [x for r in whole for x in between(r.index, r.lower, r.upper, label)]
    return tuple(IndexRange(r.index, *hull(r.index, indices, domain, label)) for r in whole)


def with_separate_ends(program: Program) -> Program:
    """Return the program with the first or last layer of a family defined separately where a theory needs it.

    It is needed if another definition multiplies all matrices of the same family except the first or last
    one, or only that one. A field ``c(ell) = O(ell) @ V(ell)`` for ``ell = 1..L`` becomes ``c(L)`` and
    ``c(ell)`` for ``ell = 1..L-1`` if the transposes are applied in two definitions, one with ``O(L).T`` and
    one with those of the layers below.
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
        cuts = (divided for uses in spans.values() for a in uses for b in uses if (divided := _cut(*a, b[1])))
        cut = next(cuts, None)
        if cut is None:
            break
        definitions = tuple(y for d in definitions for y in (cut[1] if d is cut[0] else (d,)))
    return program if definitions is program.definitions else replace(program, definitions=definitions)


MOST_CUTS = 64
"""Largest number of first or last layers of families that get definitions of their own."""


def _span(d: Definition, place: Expr) -> MemberBounds:
    """Return the first and the last matrix of a family that a definition uses, as values of its index.

    ``place`` is the index of the matrix at layer ``ell``, for example ``ell - 1``; the layers are those for
    which the definition holds.
    """
    ends = next(((r.lower, r.upper) for r in d.ranges if r.index == ell), (ell, ell))
    return place.xreplace({ell: sympify(ends[0])}), place.xreplace({ell: sympify(ends[1])})


def _cut(
    d: Definition, own: MemberBounds, other: MemberBounds
) -> tuple[Definition, tuple[Definition, Definition]] | None:
    """Divide the definition of a layer family into that of its first or last layer and that of the others.

    ``own`` and ``other`` are the first and last matrices of a family that this definition and another use
    multiply. The definition is divided if the other use has all of these matrices except the one at one end,
    or that one alone; otherwise the result is None. The result is the definition and its two replacements, of
    which the first is the definition of the single layer.
    """
    if own == other or own[0] == own[1] or _disjoint(own, other):
        return None
    if (own[1] - other[1] == 1 and own[0] == other[0]) or other[0] == other[1] == own[1]:
        end = 1
    elif (other[0] - own[0] == 1 and own[1] == other[1]) or other[0] == other[1] == own[0]:
        end = 0
    else:
        return None
    layers = next(r for r in d.ranges if r.index == ell)
    other_ranges = tuple(r for r in d.ranges if r.index != ell)
    at = {ell: sympify((layers.lower, layers.upper)[end])}
    inner = IndexRange(ell, layers.lower + 1 - end, layers.upper - end)
    single = replace(d, lhs=d.lhs.xreplace(at), rhs=d.rhs.xreplace(at), ranges=other_ranges)
    return d, (single, replace(d, ranges=tuple(inner if r.index == ell else r for r in d.ranges)))


def separate_families(program: Program) -> frozenset[str]:
    """Return the names of families of matrices in which each matrix has its own vector, factor or definition.

    Families are those with further indices than the layer. The products of the other ones occur only in sums
    over the family, as in a convolution: ``Sum(W(k) @ v(p + k), (k, -1, 1))``.
    """
    names = set()
    for d in program.definitions:
        for product in d.products():
            matrix = gaussian(program.matrix_of(product))
            member_indices = {r.index for r in d.members(product, matrix)}
            if not member_indices:
                continue
            summed_indices = {r.index for r in d.summed_over(product)}
            part = next(x for x in terms(d.rhs) if x.has(product))
            factors = [
                x for x in Mul.make_args(part.function if isinstance(part, Sum) else part) if x != product
            ]
            separate = any(
                differs(product.vector, x) or any(y.has(x) for y in factors) for x in member_indices
            )
            if member_indices != summed_indices or separate:
                names.add(matrix.name)
    return frozenset(names)


def nonempty(definitions: tuple[Definition, ...]) -> tuple[Definition, ...]:
    """Return the definitions without those in which an index has an empty range.

    With one layer, for example, the definition of the layers 2..L is left out. A range whose length is
    unknown, such as 2..L with a symbolic L, counts as not empty.
    """
    return tuple(d for d in definitions if not any((r.upper - r.lower).is_negative for r in d.ranges))


def _at(p: Population, matrix: GaussianMatrix, i: Expr) -> Population:
    """Return the population ``p`` of rows or columns of a family of matrices at the layer of matrix ``i``.

    ``matrix`` is the family, with its index; a population without layer is returned unchanged.
    """
    if p.site is None or matrix.index is None:
        return p
    return p.at(p.site.subs(matrix.index.index, i))


def earlier(e: Expr) -> Expr:
    """Return ``e`` with ``Min(s, t)`` replaced by s, for use where s <= t."""
    return e.xreplace({Min(s, t): s})


def overlap(reading: Reading, a: Application, u: Outer) -> tuple[Expr, Expr, Expr, tuple[IndexRange, ...]]:
    """Return an update of a matrix at time s, applied to the vector of ``a``, in four parts.

    The update is an outer product, ``coefficient * left right^T / N``, summed over indices. The parts are the
    correlation of ``right`` with the vector of ``a`` as an order parameter, the coefficient, ``left``, and
    the ranges of the sums. If ``a`` applies the transpose, ``left`` and ``right`` are exchanged.
    """
    names, over = rename_taken(u.over, a.indices)
    at: dict[Any, Any] = {**names, **a.chosen, t: s}
    stays, meets = (u.right, u.left) if a.transposed else (u.left, u.right)
    past = vector(reading.program, meets.xreplace(at), over, a.separate)
    coefficient, remains = (x.xreplace(at) for x in (u.coefficient, stays))
    return reading.registry.correlation(a.vector, past), coefficient, remains, over


def rename_taken(
    over: tuple[IndexRange, ...], taken: tuple[Symbol, ...]
) -> tuple[dict[Symbol, Symbol], tuple[IndexRange, ...]]:
    """Rename those summed indices ``over`` that are among ``taken``, the indices in use elsewhere.

    Returns the new symbol of each renamed index, and all ranges with the new indices.
    """
    names = {r.index: unused_primed(r.index, taken) for r in over if r.index in taken}
    return names, tuple(IndexRange(names.get(r.index, r.index), r.lower, r.upper) for r in over)


# -- names of sources ----------------------------------------------------------------------------------------


def _name_sources(reading: Reading) -> None:
    """Give each Gaussian source the name that its matrix or vector of weights declares, in place.

    If two different sources would have one name at a common layer, both get the name of their weights, and if
    needed that of the vector in the product, as a suffix.
    """
    uses, entries = reading.uses, reading.entries
    sites = [(a.matrix.sources[int(a.transposed)], _sites(a.gives.site, a.layers)) for a in uses]
    sites += [(p.initial.source, _sites(_layer(reading, p), p.ranges)) for p in entries]
    tags: list[tuple[str, str]] = [(a.matrix.name, reading.registry.head(a.vector)) for a in uses]
    tags += [(p.initial.name, p.place) for p in entries]
    names = []
    for i, (name, site) in enumerate(sites):
        same_named = [j for j, (n, x) in enumerate(sites) if j != i and n == name and not _disjoint(site, x)]
        same_named = [j for j in same_named if j < len(uses) or i < len(uses) or tags[j] != tags[i]]
        if same_named:
            matrix, head = tags[i]
            of_same_matrix = any(tags[j][0] == matrix for j in same_named)
            name = f"{name}_{matrix}_{head}" if of_same_matrix and head else f"{name}_{matrix}"
        names.append(name)
    # The name of the matrix, or of matrix and vector, was added to some names above. Different sources at a
    # common layer that still have the same name are numbered.
    keys: list[tuple[str, bool, int]] = []
    for i, (name, site) in enumerate(zip(names, sites, strict=True)):
        apart = {
            keys[j][2]
            for j in range(i)
            if names[j] == name
            and name not in (site[0], sites[j][0])
            and not _disjoint(site[1], sites[j][1])
            and (min(i, j) < len(uses) or tags[i] != tags[j])
        }
        number = next(k for k in count() if k not in apart)
        keys.append((name, name != site[0], number))
    unique = unique_names({key: key[0] for key in keys}.items(), reading.registry.taken)
    names = [unique[key] for key in keys]
    reading.registry.sources = frozenset(names)
    named_uses, entry_names = list(zip(uses, names, strict=False)), iter(names[len(uses) :])
    for d in reading.definitions:
        reading.products[d] = [
            replace(a, source_name=next(n for b, n in named_uses if a.same_use(b)))
            for a in reading.products[d]
        ]
        reading.parameters[d] = [replace(p, source_name=next(entry_names)) for p in reading.parameters[d]]


def _layer(reading: Reading, p: Parameter) -> Expr | None:
    """Return the layer of the field into which a use of a weight vector enters; None outside of layers."""
    x = reading.program.field_of(str(p.lhs.func))
    return p.lhs.args[0] if x is not None and x.layered else None


def _sites(site: Expr | None, ranges: tuple[IndexRange, ...]) -> tuple[Expr, Expr]:
    """Return the first and the last layer at which a Gaussian source exists.

    ``site`` is its layer as an expression of ``ell``, and ``ranges`` contains the range of ``ell``. Both
    results are zero for a source outside of layers (``site`` None).
    """
    if site is None:
        return S.Zero, S.Zero
    r = next((r for r in ranges if r.index == ell), None)
    return (site, site) if r is None else (site.subs(ell, r.lower), site.subs(ell, r.upper))


def _disjoint(a: tuple[Expr, Expr], b: tuple[Expr, Expr]) -> bool:
    """Return whether two ranges of integers, each given as (first, last), have no value in common.

    The result is False if this cannot be decided, as for symbolic bounds.
    """
    return bool((a[0] - b[1]).is_positive or (b[0] - a[1]).is_positive)


def tangent_kernel(reading: Reading) -> tuple[Equation, ...]:
    """Return the tangent kernel of a program as a tuple of one equation, or an empty tuple.

    It is the change of one output at time t under the update that a unit error of another output makes at
    time s, at a learning rate of one. For each trained weight of the forward pass it contains the product of
    the correlations of the vectors in the update, each taken at the two outputs. It is derived if each update
    is the gradient of the outputs times their errors: the error in the coefficient names the output.

    The tuple is empty if no weight of the forward pass is trained, if the coefficient of an update does not
    contain exactly one scalar with an index besides the time (the error), if a training rule is not linear in
    the gradient or was rewritten from such a rule, if a matrix is used without its transpose (the updates are
    then no gradient; products with given vectors are exempt), or if the update of a matrix has several terms.

    >>> from derive.theory.applications import read
    >>> from derive.program import mlp
    >>> print(tangent_kernel(read(mlp(1)))[0].rhs)
    G(1, t, s)*K_x(mu, alpha) + H(1, mu, alpha, t, s)
    """
    forward, scalars = _forward_weights(reading), reading.program.scalars
    weights = [w for w in reading.program.trained() if w.name in forward]
    # With a rule that is nonlinear in the gradient, or rewritten from such a rule, the change of an output is
    # not a sum of inner products of gradients with coefficients. The tangent kernel, which consists of these
    # inner products, is then left out.
    nonlinear = (NonlinearRule, RewrittenSteps)
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
    terms = []
    for w, (error,) in zip(weights, errors, strict=True):
        value, over = _gradient_squared(reading, w, error, outputs)
        if value != 0:
            rule = "gradient with respect to this weight"
            terms.append(Term("definition", value, over=over, matrix=w.name, rule=rule))
    second = tuple(IndexRange(primed(r.index), r.lower, r.upper) for r in outputs)
    name = free_name("K", {*reading.registry.taken, *reading.registry.found})
    symbol = Function(name)(*[r.index for r in (*outputs, *second)], t, s)
    return (Equation(symbol, tuple(terms), (*outputs, *second)),)


def _gradient_squared(
    reading: Reading, w: TrainedMatrix | TrainedVector, error: AppliedUndef, outputs: tuple[IndexRange, ...]
) -> tuple[Expr, tuple[IndexRange, ...]]:
    """Return the inner product of the gradients of two outputs by one weight, and the ranges of its sums.

    ``w`` is the trained matrix or vector, ``error`` the error signal in the coefficient of its update, and
    ``outputs`` are the ranges of the indices of the error signal. The first output is at time t, the second
    one at primed indices and time s. The result is zero, without sums, if the weight is a family without
    members.
    """
    program, is_matrix, coefficient = reading.program, isinstance(w, TrainedMatrix), w.update.coefficient
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
    first_indices: dict[Any, Any] = {x: r.index for x, r in zip(error.args[:-1], outputs, strict=True)}
    # An update is summed over the indices of the error, which are keys of `first_indices`, and over indices
    # within one output, such as positions. The latter are `inner`.
    inner = [r for r in w.update.over if r.index not in first_indices]
    first_indices |= {r.index: Symbol(r.index.name.rstrip("_"), **r.index.assumptions0) for r in inner}
    second_indices = {x: primed(y) for x, y in first_indices.items()}
    inner = [r.renamed(first_indices[r.index]) for r in inner]
    first_ranges = (*outputs, *inner)
    second_ranges = tuple(r.renamed(primed(r.index)) for r in first_ranges)
    # The kernel is a product of gradients of two outputs by the same weights. If the weights are a family of
    # vectors, such as one for each position, both gradients therefore have the index of the same member,
    # whose range is added here. For a matrix the function `vector` below takes the indices of the family from
    # `family`.
    if not is_matrix:
        family_ranges = tuple(r for r in family if r.index not in first_indices)
        first_ranges, second_ranges = first_ranges + family_ranges, second_ranges + family_ranges
    value: Expr = moved.xreplace({**second_indices, t: s}) * gradient.xreplace(first_indices) * units
    for body in bodies:
        past = vector(
            program, body.xreplace({**second_indices, t: s}), second_ranges, family if is_matrix else ()
        )
        now = vector(program, body.xreplace(first_indices), first_ranges, family if is_matrix else ())
        value *= reading.registry.correlation(now, past)
    for r in family:
        # If an index of the family is also an index of the output, each output has its own member of the
        # family. The inner product of the gradients of two outputs with different members is zero.
        if r.index in first_indices:
            value *= KroneckerDelta(first_indices[r.index], second_indices[r.index])
    summed = [r for r in family if r.index not in first_indices]
    return value, (*summed, *inner, *(r.renamed(primed(r.index)) for r in inner))


def _goes_both_ways(reading: Reading, w: TrainedMatrix) -> bool:
    """Return whether both a matrix and its transpose are used, without which its updates are not a gradient.

    A matrix that multiplies given vectors, such as inputs, needs no transpose: the result is True. It is also
    True for a matrix without a use.
    """
    used = {a.transposed for d in reading.definitions for a in reading.products[d] if a.matrix == w.initial}
    return w.initial.cols.given or used in ({True, False}, set())


def _forward_weights(reading: Reading) -> set[str]:
    """Return the names of the weights on which numbers with a mean over units, such as outputs, depend.

    Separate matrices of the backward pass are not among them, unless such a number depends on them.
    """
    todo = [d for d in reading.definitions if d.name in reading.program.scalars and d.rhs.has(Mean)]
    forward: list[Definition] = []
    while todo:
        d = todo.pop()
        if d not in forward:
            forward.append(d)
            # Continue with the definitions of each field `a` in this definition: those with the same first
            # argument (the layer, if fields have one) if there are any, and otherwise all definitions of the
            # field.
            for a in d.rhs.atoms(AppliedUndef):
                named = [e for e in reading.definitions if e.name == str(a.func)]
                todo += [e for e in named if e.lhs.args[:1] == a.args[:1]] or named
    names = {gaussian(reading.program.matrix_of(x)).name for d in forward for x in d.products()}
    return names | {p.initial.name for d in forward for p in reading.parameters[d]}
