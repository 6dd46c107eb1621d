"""Names of order parameters: the function that represents the inner product of two vectors.

A correlation is written ``Phi(ell, mu, alpha, t, s)``: layer, indices of the first vector, indices of the
second, their times. The name is taken from the notation of the program; without one it is ``C_<first>`` for a
vector with itself and ``C_<first><second>`` for two vectors. `Registry` collects the order parameters of one
derivation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations

from sympy import Dummy, Expr, Function, Sum, Symbol, default_sort_key, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.calculus.sums import rewritten
from derive.calculus.symbols import IndexRange, ell, mu, primed, s, spelled, t
from derive.errors import ProgramError
from derive.program.language import Field, GivenVector
from derive.program.naming import free_name, unique_names
from derive.program.parts import Definition, gaussian, parameter
from derive.program.program import Program
from derive.program.training import TrainedMatrix
from derive.theory.data import OrderParameter

QuantityAtLayer = tuple[str, Expr | None]
"""The name of a field, number or order parameter and, if it has one, its layer."""

k = Symbol("k", integer=True, positive=True)


def unused_primed(index: Symbol, taken: Iterable[Symbol]) -> Symbol:
    """Return the primed form of an index, such as ``p_``, with more underscores if ``taken`` has it."""
    new, used = primed(index), set(taken)
    while new in used:
        new = Symbol(f"{new.name}_", **new.assumptions0)
    return new


@dataclass(frozen=True)
class Vector:
    """Vector that enters an inner product: an expression, its layer, and the ranges of its free indices.

    ``body`` is the expression, such as ``phi(h(ell, mu, a + k, t))``; ``site`` is its layer, or None outside
    of layers. ``ranges`` are those of its indices other than the layer and the time. ``arguments`` has one
    entry for each of these indices: the index itself, or the argument in ``body`` for which it stands, such
    as ``a + k`` for the index a.
    """

    body: Expr
    site: Expr | None
    ranges: tuple[IndexRange, ...]
    arguments: tuple[Expr, ...] = ()

    @property
    def indices(self) -> tuple[Symbol, ...]:
        """Indices of the vector other than layer and time, such as samples, in the order of ``ranges``."""
        return tuple(r.index for r in self.ranges)

    @property
    def plain(self) -> Expr:
        """Expression with shifted indices replaced by the index: ``phi(h(ell, mu, a, t))`` for ``a + k``.

        A fixed place of an ordered family, such as T, is replaced by the index that stands for it.
        """
        moved = {x: i for x, i in zip(self.arguments, self.indices, strict=True) if x != i}
        # If the vector has a number x, such as 2, in the place of an index i, x is replaced by i in arguments
        # of functions only. Elsewhere in the expression x may be a coefficient.
        literal = {x: i for x, i in moved.items() if x.is_number}
        body = self.body.replace(
            lambda a: bool(literal) and isinstance(a, AppliedUndef),
            lambda a: a.func(*[literal.get(x, x) for x in a.args]),
        )
        return body.xreplace({x: i for x, i in moved.items() if x not in literal}) if moved else self.body

    def past(self, taken: Iterable[Symbol] = ()) -> Vector:
        """Return this vector at time ``s`` instead of t.

        Its indices are primed (``alpha`` for mu, ``p_`` for an index p), and differ from those in ``taken``.
        """
        names = {i: unused_primed(i, taken) for i in self.indices}
        ranges = tuple(r.renamed(names[r.index]) for r in self.ranges)
        arguments = tuple(x.xreplace(names) for x in self.arguments)
        return Vector(self.body.xreplace({**names, t: s}), self.site, ranges, arguments)


def vector(
    program: Program, body: Expr, ranges: tuple[IndexRange, ...], members: tuple[IndexRange, ...] = ()
) -> Vector:
    """Return an expression as a `Vector`, with those of ``ranges`` whose index occurs in the expression.

    The ranges are sorted in the order in which the fields have their indices; the layer is left out.
    ``members`` are further ranges, of indices that number the matrices of a family. An index among them is
    kept only if the matrices multiply different vectors (see :func:`differs`).
    """
    site = program.site_of(body).site
    places = {x for a in body.atoms(AppliedUndef) for x in a.args if not x.atoms(AppliedUndef)}
    chosen = {r.index for r in members}
    ranges = (
        *(r for r in ranges if r.index not in chosen),
        *(r for r in members if differs(body, r.index)),
    )
    occurring = [r for r in ranges if r.index != ell and body.has(r.index)]
    order = _in_order(body)
    kept = tuple(sorted(occurring, key=lambda r: order.index(r.index) if r.index in order else len(order)))
    taken = ([x for x in places if x.has(r.index) and r.index not in chosen] for r in kept)
    # `taken` lists for each index the different arguments x, such as a + k, in which the vector contains this
    # index; the list is empty for an index of `members`. If there is exactly one, x becomes the argument of
    # the Vector; otherwise the index itself does.
    arguments = (x[0] if len(x) == 1 else r.index for r, x in zip(kept, taken, strict=True))
    return Vector(body, site, kept, tuple(arguments))


def differs(body: Expr, index: Symbol) -> bool:
    """Return whether the matrices of a family, numbered by ``index``, multiply different vectors ``body``.

    They differ if ``index`` is the only symbol of an argument of an undefined function such as ``g``, or if
    it stands outside of undefined functions. ``g(mu, e, t)`` and ``prior(e)*g(mu, t)`` differ for each e.
    ``g(mu, p + k, t)`` is one and the same vector for all k, of which k only shifts the position p at which
    it is read.

    >>> from sympy import Function
    >>> from sympy.abc import e, k, mu, p, t
    >>> g, prior = Function("g"), Function("prior")
    >>> differs(prior(e) * g(mu, t), e), differs(g(mu, p + k, t), k)
    (True, False)
    """
    applied = body.atoms(AppliedUndef)
    if body.xreplace({a: Dummy() for a in applied}).has(index):
        return True
    return any(x.free_symbols == {index} for a in applied for x in a.args)


def _end_as_index(program: Program, v: Vector, index: Symbol) -> Vector:
    """Return a vector at a fixed place of an ordered family, such as ``h(T, mu, t)``, with an index for T.

    An ordered family is one of fields that are computed one after another, as in a recurrent network. The
    index has the range T..T and the argument T: ``body`` keeps T, and `Vector.plain` has the index. Any other
    vector is returned unchanged.
    """
    places = {a.args[0] for a, x in _fields_of(program, v.body) if x.ordered}
    if len(places) != 1 or places & set(v.arguments):
        return v
    (place,) = places
    return Vector(v.body, v.site, (IndexRange(index, place, place), *v.ranges), (place, *v.arguments))


def _fields_of(program: Program, body: Expr) -> list[tuple[AppliedUndef, Field]]:
    """Return each application of a field in ``body``, such as ``h(ell, mu, t)``, with its declaration.

    Their order is arbitrary; functions that are not fields are left out.
    """
    fields = ((a, program.field_of(str(a.func))) for a in body.atoms(AppliedUndef))
    return [(a, x) for a, x in fields if x is not None]


def _places_of(v: Vector, time: Expr) -> tuple[Expr, ...]:
    """Return the arguments with which the kernel of a given vector, such as an input, is written.

    They are the arguments of the vector, such as mu or ``a + k``, with ``time`` in place of the time if the
    vector depends on time.
    """
    at = dict(zip(v.indices, v.arguments, strict=True))
    return tuple(time if x in (t, s) else x.xreplace(at) for x in v.plain.args)


def canonical(v: Vector) -> Expr:
    """Return the expression of a vector at layer ``ell`` and time t with indices mu, i1, i2, ...

    Shifts of indices are dropped: ``a + k`` becomes the index that stands for a. Two vectors that differ only
    by layer, time, shifts or names of indices have the same canonical form.
    """
    body = v.plain
    if v.site is not None and v.site.has(ell):
        body = body.xreplace({ell: 2 * ell - v.site})
    elif v.site is not None:
        body = body.replace(
            lambda e: isinstance(e, AppliedUndef) and bool(e.args) and e.args[0] == v.site,
            lambda e: e.func(ell, *e.args[1:]),
        )
    return body.xreplace(dict(zip(v.indices, _slots(len(v.ranges)), strict=True)) | {s: t})


@dataclass
class Registry:
    """Order parameters that a derivation has used so far, and the rules by which they are named.

    ``found`` maps a name to the order parameter; methods add to it. For a response the name is the symbol as
    text, in standard indices.
    """

    program: Program
    found: dict[str, OrderParameter] = field(default_factory=dict)
    sources: frozenset[str] = frozenset()
    """The names of the Gaussian sources."""

    def head(self, v: Vector) -> str:
        """Return a short name for a vector, such as ``phi``, that no other vector of the program has."""
        return self._head(canonical(v))

    def _head(self, body: Expr) -> str:
        """Return a short name for a vector: ``phi`` for phi(h), or ``phi_h`` if another vector has that name.

        ``body`` is the expression of the vector in standard indices. Other vectors are those of the program.
        Vectors of the same fields with the same outermost function are numbered from 1: ``phi_h_1``,
        ``phi_h_2``.
        """
        plain, fields = _plain_head(body), _fields_in(body)
        same_head = [x for x in self._bodies if _plain_head(x) == plain and x != body]
        if not same_head:
            return plain
        same_fields = sorted((*(x for x in same_head if _fields_in(x) == fields), body), key=default_sort_key)
        return f"{plain}_{fields}" + (f"_{same_fields.index(body) + 1}" if len(same_fields) > 1 else "")

    @cached_property
    def _bodies(self) -> set[Expr]:
        """Expressions, in standard indices, of all vectors to which order parameters can refer.

        They are vectors that a matrix multiplies, that updates contain, or that the notation of the program
        names.
        """
        p = self.program
        vectors_with_ranges = [
            (x.vector, d.ranges_of(x), d.members(x, gaussian(p.matrix_of(x))))
            for d in p.definitions
            for x in d.products()
        ]
        for w in p.trained():
            if isinstance(w, TrainedMatrix):
                vectors_with_ranges += [
                    (x, u.over, w.initial.others) for u in w.update.terms for x in (u.left, u.right)
                ]
            else:
                vectors_with_ranges.append((w.update.vector, (*w.update.over, *w.initial.indices), ()))
        vectors = [*(vector(p, *x) for x in vectors_with_ranges), *self._named]
        return {canonical(_end_as_index(p, v, self._place)) for v in vectors}

    @cached_property
    def _place(self) -> Symbol:
        """Index for the last step of fields computed one after another: k, or a free name if k is in use."""
        p = self.program
        families = [m.index for m in map(gaussian, p.matrices) if m.index is not None]
        others = [r for m in map(gaussian, p.matrices) for r in m.others]
        vectors = [r for x in p.vectors for r in parameter(x).indices]
        ranges = (*(r for d in p.definitions for r in d.ranges), *families, *others, *vectors)
        summed = {y for d in p.definitions for x in d.rhs.atoms(Sum) for y in x.bound_symbols}
        taken = {r.index.name for r in ranges} | {y.name for y in summed}
        return k if k.name not in taken else Symbol(free_name(k.name, taken), integer=True, positive=True)

    @cached_property
    def _named(self) -> dict[Vector, str]:
        """Vectors whose correlation with themselves has a name in the program's notation, with these names.

        For example, the correlation of phi(h) is called ``Phi``.
        """
        p = self.program
        return {vector(p, x, _all_ranges(p, x)): name for x, name in p.notation.items()}

    def correlation(self, v: Vector, w: Vector, time: Expr = t, past: Expr = s) -> Expr:
        """Return the average over units of ``v`` at ``time`` times ``w`` at ``past``, as an order parameter.

        The order parameter is recorded in ``found`` if it is new. ``<v w>`` and ``<w v>`` are one order
        parameter with exchanged arguments. For given vectors, such as inputs, the result is the kernel that
        the program states. ProgramError is raised if it states none for the pair, or if the vectors are at
        different layers. The caller renames indices of ``w`` that ``v`` has as well.
        """
        place = self._place
        v, w = _end_as_index(self.program, v, place), _end_as_index(self.program, w, primed(place))
        a, b = canonical(v), canonical(w)
        self._require_overlap(a, b)
        if v.site is not None and w.site is not None and (v.site - w.site).expand() != 0:
            raise ProgramError(
                f"one matrix is applied to {v.body} and to {w.body}, which are at different layers: define "
                "fields without layers for these vectors, or use two matrices"
            )
        if isinstance(a, AppliedUndef) and (given := self.program.given_of(str(a.func))) is not None:
            return Function(given.kernel)(*_places_of(v, time), *_places_of(w, past))
        # <a b> and <b a> are the same order parameter. It is defined only with a and b in sorted order, and
        # read with exchanged arguments in the other order.
        if a != b and default_sort_key(b) < default_sort_key(a):
            return self.correlation(w, v, past, time)
        named = (n for x, n in self._named.items() if a == b == canonical(x))
        name = next(named, None) or self._correlations.get((a, b)) or self._new(a, b, v, w)
        site = () if v.site is None else (v.site,)
        self._define_correlation(name, a, b, v, w)
        return Function(name)(*site, *v.arguments, *w.arguments, time, past)

    def _require_overlap(self, a: Expr, b: Expr) -> None:
        """Raise ProgramError if the program states no kernel that gives the inner product of vectors a and b.

        Kernels give inner products of given vectors, such as inputs. a and b are expressions in standard
        indices. A pair of fields always passes. A given vector with a field does not pass, and an expression
        that only contains a given vector does not pass.
        """
        kernels = {x.name: x.kernel for x in self.program.given}
        for body in (a, b):
            given_vectors = {str(x.func) for x in body.atoms(AppliedUndef)} & {*kernels}
            if given_vectors and not isinstance(body, AppliedUndef):
                kernel = kernels[min(given_vectors)]
                problem = (
                    f"a matrix is applied to {body}, whose inner products the kernel {kernel} does not give"
                )
                remedy = "declare it as a given vector of its own, and write constants before the matrix"
                raise ProgramError(f"{problem}: {remedy}")
        one, two = (str(x.func) if isinstance(x, AppliedUndef) else "" for x in (a, b))
        if {one, two} & {*kernels} and kernels.get(one) != kernels.get(two):
            problem = f"one matrix is applied to {a} and to {b}, and no kernel gives their inner product"
            remedy = "make them one given vector with a further index, or use two matrices"
            raise ProgramError(f"{problem}: {remedy}")

    @cached_property
    def taken(self) -> frozenset[str]:
        """Names that the program itself uses in the theory, which order parameters must not have."""
        return self.program.names_in_theory

    @cached_property
    def _correlations(self) -> dict[tuple[Expr, Expr], str]:
        """Names of the correlations of all pairs of vectors of the program, also of a vector with itself.

        The keys are pairs of the vectors' expressions in standard indices; each pair occurs once, in sorted
        order.
        """
        heads = {body: self._head(body) for body in sorted(self._bodies, key=default_sort_key)}
        pairs = [((a, a), f"C_{x}") for a, x in heads.items()]
        pairs += [((a, b), f"C_{x}{y}") for (a, x), (b, y) in combinations(heads.items(), 2)]
        return unique_names(pairs, self.taken)

    def _new(self, a: Expr, b: Expr, v: Vector, w: Vector) -> str:
        """Return a name for a correlation of two vectors that are not both vectors of the program.

        It is ``C_<first><second>``, or ``C_<first>`` if a and b are equal, with an ending if that name is in
        use. a and b are the expressions of the vectors v and w in standard indices.
        """
        name = f"C_{self.head(v)}{'' if a == b else self.head(w)}"
        others = {x for pair, x in self._correlations.items() if pair != (a, b)}
        return free_name(name, self.taken | others)

    @cached_property
    def _responses(self) -> dict[tuple[str, str], str]:
        """Names of responses of the program's vectors to all sources, such as ``R_phiu`` or ``R_phi_h_u``.

        The keys are pairs: the short name of the vector that responds, and the name of the source.
        """
        sources = sorted(self.sources)
        heads = dict.fromkeys(self._head(x) for x in sorted(self._bodies, key=default_sort_key))
        pairs = [((x, u), f"R_{x}{'_' if '_' in x + u else ''}{u}") for x in heads for u in sources]
        return unique_names(pairs, self.taken | {*self._correlations.values(), *sources})

    def response_name(self, v: Vector, source: str) -> str:
        """Return the default name of the response of a vector to a source, such as ``R_phiu``.

        Names that a matrix declares for its responses are not used here.
        """
        head = self.head(v)
        return self._responses.get((head, source)) or f"R_{head}_{source}"

    def _define_correlation(self, name: str, a: Expr, b: Expr, v: Vector, w: Vector) -> None:
        """Record the definition ``<a b>`` of a correlation under a name, unless the name is recorded already.

        a and b are the expressions of the vectors v and w in standard indices. The layers are those at which
        both vectors are defined.
        """
        if name in self.found:
            return
        first_indices, second_indices = self._indices(a, v), self._indices(b, w)
        first = tuple(IndexRange(i, *self.extent(v, n)) for n, i in enumerate(first_indices))
        second = tuple(IndexRange(primed(i), *self.extent(w, n)) for n, i in enumerate(second_indices))
        body = a.xreplace(dict(zip(_slots(len(first_indices)), first_indices, strict=True)))
        body *= b.xreplace(
            {t: s} | {x: primed(j) for x, j in zip(_slots(len(second_indices)), second_indices, strict=True)}
        )
        # The layers of the two vectors are the ranges p and q. Both vectors are defined in the intersection
        # only.
        p, q = self._layers(a), self._layers(b)
        lower = q.lower if (q.lower - p.lower).is_positive else p.lower
        upper = q.upper if (p.upper - q.upper).is_positive else p.upper
        layers = (IndexRange(ell, lower, upper),) if v.site is not None else ()
        ranges = (*layers, *first, *second)
        symbol = Function(name)(*[r.index for r in ranges], t, s)
        self.found[name] = OrderParameter(symbol, Average(body), "correlation", ranges)

    def _indices(self, body: Expr, v: Vector) -> list[Symbol]:
        """Return index symbols for a vector: those of the program's notation, else those of `_letters`.

        ``body`` is the expression of the vector v in standard indices.
        """
        named = [list(x.indices) for x in self._named if canonical(x) == body]
        return named[0] if named else self._letters(body, _slots(len(v.ranges)))

    def _letters(self, body: Expr, slots: list[Symbol]) -> list[Symbol]:
        """Return the indices that a program's definitions use for a vector's fields, to replace ``slots``.

        ``body`` is the expression of the vector with the standard indices ``slots``. These are returned
        unchanged if two fields disagree, if an index would get a name that is in use, or if a field is
        ordered.
        """
        fields = _fields_of(self.program, body)
        # A field with ordered positions may have several definitions with different letters, so that the
        # standard indices `slots` are kept.
        if any(x.ordered for _, x in fields):
            return slots
        letter_of_slot: dict[Symbol, Symbol] = {}
        # The letters of a field are those of its first definition. Each field has a definition, because a
        # Program refuses fields without one.
        for atom, _ in fields:
            d = next(d for d in self.program.definitions if d.name == str(atom.func))
            for slot, x in zip(atom.args, d.lhs.args, strict=True):
                if slot in slots and isinstance(x, Symbol) and letter_of_slot.setdefault(slot, x) != x:
                    return slots
        letters = [letter_of_slot.get(x, x) for x in slots]
        taken = {t, s, ell, *(primed(x) for x in letters)} | (body.atoms(Symbol) - {*slots})
        return slots if len({*letters}) < len(letters) or taken & {*letters} else letters

    def extent(self, v: Vector, n: int) -> tuple[Expr, Expr]:
        """Return the first and last value of index number ``n`` of a vector; the first index has number 0.

        For an index that numbers the fields of an ordered family, such as time steps of a recurrent network,
        they are those of the whole family.
        """
        place = v.arguments[n]
        r = whole_range(self.program, v.body, place, v.ranges[n])
        for a, x in _fields_of(self.program, v.body):
            if x.ordered and a.args[0] == place:
                r = self._layers(a)
        return r.lower, r.upper

    def _layers(self, body: Expr) -> IndexRange:
        """Return the layers at which all fields and constants in the expression ``body`` are defined.

        For an ordered family, such as the steps of a recurrent network, it is a range of its positions. An
        end that cannot be determined, because symbols cannot be compared, is 1 or the depth.
        """
        spans: dict[str, list[tuple[Expr, Expr]]] = {}
        fields = {x.name for _, x in _fields_of(self.program, body) if x.layered or x.ordered}
        for d in self.program.definitions:
            if d.name in fields and not any((r.upper - r.lower).is_negative for r in d.ranges):
                ends = ({r.index: getattr(r, end) for r in d.ranges} for end in ("lower", "upper"))
                first, last = (d.lhs.args[0].xreplace(x) for x in ends)
                spans.setdefault(d.name, []).append((first, last))
        spans |= self._spans_of_constants(body)
        low, high = sympify(1), self.program.depth
        lows = [_extreme([x for x, _ in intervals], 1, low) for intervals in spans.values()]
        highs = [_extreme([x for _, x in intervals], -1, high) for intervals in spans.values()]
        return IndexRange(ell, _extreme(lows, -1, low), _extreme(highs, 1, high))

    def _spans_of_constants(self, body: Expr) -> dict[str, list[tuple[Expr, Expr]]]:
        """Return for each constant with a layer in ``body`` the layers for which it has values.

        A constant is for example ``c(ell, mu)``; an undefined function of fields counts as one. The layers
        are pairs (first, last), one for each place where a definition of the program contains the constant.
        They are counted by the index ell of ``body``.
        """
        known = {*self.program.scalars, *(x.name for x in self.program.fields)}
        known |= {x.name for x in self.program.given} | {x.name for x in self.program.attributes}
        spans: dict[str, list[tuple[Expr, Expr]]] = {}
        for a in sorted(body.atoms(AppliedUndef), key=spelled):
            places = [n for n, x in enumerate(a.args) if x.has(ell)]
            if str(a.func) in known or len(places) != 1:
                continue
            (place,) = places
            for d in self.program.definitions:
                ends = [{r.index: getattr(r, end) for r in d.ranges} for end in ("lower", "upper")]
                for x in (y.args[place] for y in d.rhs.atoms(AppliedUndef) if y.func == a.func):
                    first, last = (x.xreplace(e) - (a.args[place] - ell) for e in ends)
                    spans.setdefault(str(a.func), []).append((first, last))
        return spans

    def name_all(self) -> None:
        """Record the correlations that the program's notation names, also those that no equation uses."""
        bounds = {r.index: r for d in self.program.definitions for r in d.ranges}
        for body in self.program.notation:
            ranges = tuple(bounds.get(r.index, r) for r in _all_ranges(self.program, body))
            v = vector(self.program, body, ranges)
            self.correlation(v, v.past())

    def response(
        self,
        name: str,
        index: Expr | None,
        layers: IndexRange | None,
        v: Vector,
        source: AppliedUndef,
        over: tuple[IndexRange, ...],
        causal: str,
    ) -> Expr:
        """Return the response ``<d v(t) / d source(s)>`` in terms of an order parameter, which is recorded.

        The order parameter is the response divided by the program's scale, so that the result is the scale
        times the order parameter. ``name`` is the name of the order parameter, ``index`` its layer argument
        (None without layers) and ``layers`` the range of the layers. ``over`` are the ranges of the indices
        of the source, and ``causal`` is ``"past"`` or ``"strict"`` as in `OrderParameter`.
        """
        scale = self.program.scale
        site = () if index is None else (index,)
        indices = [r.index for r in over]
        symbol = Function(name)(*site, *v.indices, *indices, t, s)
        key = spelled_with_slots(symbol, (*v.indices, *indices))
        if key not in self.found:
            definition = Average(Response(v.plain, source)) / scale
            vector_ranges = tuple(IndexRange(r.index, *self.extent(v, n)) for n, r in enumerate(v.ranges))
            ranges = (*((layers,) if layers else ()), *vector_ranges, *over)
            self.found[key] = OrderParameter(symbol, definition, "response", ranges, causal)
        return scale * Function(name)(*site, *v.arguments, *indices, t, s)


def _extreme(values: list[Expr], sign: int, otherwise: Expr) -> Expr:
    """Return the least of ``values`` for sign 1, the greatest for -1, or ``otherwise`` if it is not known.

    It is not known if symbols in the values cannot be compared, and for an empty list.
    """
    least = (x for x in values if all((sign * (y - x)).is_nonnegative for y in values))
    return next(least, otherwise)


def _plain_head(body: Expr) -> str:
    """Return the name of the outermost function of a vector: ``phi`` for phi(h), ``h`` for a field h.

    For a product, sum or power of functions it is the names of its innermost functions, joined by
    underscores.
    """
    if isinstance(body, AppliedUndef):
        return str(body.func)
    return str(body.func.__name__) if isinstance(body, Function) else _fields_in(body)


def _fields_in(body: Expr) -> str:
    """Return the names of the innermost functions in ``body``, joined by underscores."""
    return "_".join(sorted({str(a.func) for a in _innermost(body)}))


def _innermost(body: Expr) -> list[AppliedUndef]:
    """Return the applied functions that contain no other applied function, sorted by name."""
    return sorted((a for a in body.atoms(AppliedUndef) if not a.atoms(AppliedUndef) - {a}), key=spelled)


def spelled_with_slots(e: Expr, indices: Iterable[Symbol]) -> str:
    """Return an expression as text with standard indices, equal for ``u(mu, p, t)`` and ``u(mu, r, t)``.

    ``indices`` are those that are replaced. Definitions may use one product under different letters.
    """
    letters = tuple(dict.fromkeys(indices))
    return str(e.xreplace(dict(zip(letters, _slots(len(letters)), strict=True))))


def whole_range(program: Program, body: Expr, argument: Expr, r: IndexRange) -> IndexRange:
    """Return the range of an index of the vector ``body``, as the definitions of the fields in it state it.

    ``argument`` is the argument of the functions in ``body`` that stands for the index, and ``r`` its range
    where the vector is used, such as the range of a sum. The result has the index of ``r`` and the bounds in
    the definition of a field or number with this argument; ``r`` may be a part of it. It is ``r`` itself if
    there is no such definition, as for data, which are periodic in the index.
    """
    for a in sorted(body.atoms(AppliedUndef), key=str):
        for position, x in enumerate(a.args):
            for d in program.definitions if x == argument else ():
                if d.name == str(a.func) and (defined := _range_of(d, position)) is not None:
                    return IndexRange(r.index, defined.lower, defined.upper)
    return r


def _range_of(d: Definition, position: int) -> IndexRange | None:
    """Return the range of the argument number ``position`` (from 0) on the left-hand side of a definition.

    It is None if the argument is not an index, or if the range depends on other indices.
    """
    x = d.lhs.args[position]
    r = next((r for r in d.ranges if r.index == x), None)
    ends = set() if r is None else r.lower.free_symbols | r.upper.free_symbols
    return None if ends & {y.index for y in d.ranges} else r


def _slots(n: int) -> list[Symbol]:
    """Return ``n`` standard index symbols: mu, i1, i2, ..."""
    return [mu, *[Symbol(f"i{k}") for k in range(1, n)]][:n]


def _all_ranges(program: Program, body: Expr) -> tuple[IndexRange, ...]:
    """Return a range 1..1, as a placeholder, for each index in ``body`` other than layer, time and unit."""
    units = {x for a in body.atoms(AppliedUndef) if program.attribute_of(str(a.func)) for x in a.args}
    free = [x for x in _in_order(body) if x not in (t, s, ell) and x not in units]
    return tuple(IndexRange(x, sympify(1), sympify(1)) for x in free)


def _in_order(body: Expr) -> list[Symbol]:
    """Return the indices of a vector, with layer and time, in the order in which its fields have them.

    Each index occurs once. Fields are read in alphabetical order.
    """
    indices = [x for a in _innermost(body) for e in a.args for x in sorted(e.free_symbols, key=spelled)]
    return list(dict.fromkeys(x for x in indices if isinstance(x, Symbol)))


# -- symmetric functions ---

Order = Callable[[Expr], Expr]


def symmetric(
    parameters: Iterable[OrderParameter], given: Iterable[GivenVector] = (), covariances: Iterable[str] = ()
) -> Order:
    """Return a function that writes ``C(b, a, s, t)`` as ``C(a, b, t, s)`` for every symmetric function C.

    Correlations of a vector with itself are symmetric, by their definitions. So are kernels of given vectors
    and ``covariances``, which are names of other functions of two points. Of the two forms of a correlation
    it takes the one in which the text of the first time is later in the alphabet; if the times are equal, the
    other arguments decide. All other functions are left unchanged.

    >>> from derive import mean_field, mlp
    >>> from sympy import Function
    >>> from sympy.abc import k, m, t, s
    >>> order = symmetric(mean_field(mlp()).order_parameters)
    >>> order(Function("H")(1, k, m, s, t)), order(Function("A")(1, k, s, t))
    (H(1, m, k, t, s), A(1, k, s, t))
    """
    halves = {q.name: 1 if q.symbol.args[0] == ell else 0 for q in parameters if _is_symmetric(q)}
    kernels = {*(x.kernel for x in given), *covariances}

    def order(atom: AppliedUndef) -> Expr:
        name = str(atom.func)
        if name in kernels:
            half = len(atom.args) // 2
            return max(atom, atom.func(*atom.args[half:], *atom.args[:half]), key=_key)
        return max(atom, _turned(atom, halves[name]), key=_key)

    return lambda e: rewritten(e, {*halves, *kernels}, order)


def _turned(atom: AppliedUndef, sites: int) -> AppliedUndef:
    """Return a correlation with its two points (indices and time) exchanged: ``C(l, b, a, s, t)``.

    ``sites`` is the number of layer arguments, 0 or 1, which both points share.
    """
    site, rest = atom.args[:sites], atom.args[sites:]
    half = len(rest) // 2 - 1
    first, second, (time, past) = rest[:half], rest[half : 2 * half], rest[2 * half :]
    return atom.func(*site, *second, *first, past, time)


def _is_symmetric(q: OrderParameter) -> bool:
    """Return whether a correlation keeps its definition if its two points are exchanged; False for responses.

    A point is the set of indices and the time of one of the two vectors.
    """
    sites = 1 if q.symbol.args[0] == ell else 0
    if q.kind != "correlation" or (len(q.symbol.args) - sites) % 2:
        return False
    exchange = dict(zip(q.symbol.args, _turned(q.symbol, sites).args, strict=True))
    return bool(q.definition.xreplace(exchange) == q.definition)


def _key(atom: AppliedUndef) -> tuple[str, ...]:
    """Return a key that decides in which of its two orders a symmetric function is written.

    The order with the larger key is chosen. The key holds the last two arguments, which are the times of a
    correlation, and then the other arguments, as text.
    """
    return tuple(spelled(x) for x in (*atom.args[-2:], *atom.args[:-2]))
