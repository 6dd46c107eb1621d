"""Reverse-mode differentiation on the graph of a forward pass: the backward pass and all updates.

Let ``y(J) = F(..., x(A), ...)`` be a definition of the forward pass, J its indices and A those at which it
uses x. With ``c_x`` the gradient of an output (or of minus the loss) with respect to the entries of x,

    c_x(I)  =  sum over definitions, over uses x(A) and over all J with A(J) = I of   (dF/dx)^T c_y(J),

where ``(dF/dx)^T`` multiplies by the derivative for an entrywise use, is ``M^T (coefficient c_y)`` for a
product ``M x``, ``c_y (dE/dx)/n`` for a mean ``Mean(E)`` over n units, and ``n Mean(c_y dF/dx)`` for a scalar
x. The solution of ``A(J) = I`` shifts the index of a layer or of an offset; the remaining indices of J are
summed over, except the indices of an output, which the gradient has too. Uses at one end of a family of
layers may give a separate definition. The gradient of a weight collects its uses in the same way: ``c_y x^T``
for a matrix. The definitions contain ``b_x = n_x c_x`` with a normalisation n_x: by default it is
``gamma0 sqrt(N N_x)`` for a field with N_x units, and ``gamma0`` for a scalar.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from sympy import (
    Add,
    DiracDelta,
    Dummy,
    Expr,
    KroneckerDelta,
    Max,
    Min,
    Mul,
    Pow,
    S,
    Sum,
    Symbol,
    cosh,
    factor_terms,
    sinh,
    sqrt,
    tanh,
)
from sympy.core.function import AppliedUndef, Derivative, Function

from derive.calculus.symbols import IndexRange, ell, expression, mu, primed, spelled, t
from derive.errors import ProgramError
from derive.program.domains import (
    Conditions,
    affine_slope,
    between,
    eliminated,
    hull,
    implied,
    indicator,
    needed,
    summed,
)
from derive.program.language import (
    Attribute,
    Field,
    GaussianMatrix,
    GaussianVector,
    GaussianWeight,
    GivenVector,
    Mean,
    Population,
    Product,
)
from derive.program.naming import unique_names
from derive.program.parts import Definition
from derive.program.training import Along, Gradient, Outer, Parametrization

LOSS = "the loss"
"""The name under which the loss is differentiated; no scalar of a program can have it, as it has a space."""
ANY = (S.NegativeInfinity, S.Infinity)
"""Ends of the layers of a quantity that has no layers."""


@dataclass(frozen=True)
class _Use:
    """Use of the quantity ``target`` in the definition ``by = F(..., target, ...)``, for the chain rule.

    ``kind`` is "entry", "mean" or "product", if target is used as an entry, in a mean, or in the matrix
    product ``product``. A matrix product has one use of its matrix and one of each quantity in its vector.
    ``factor`` is the derivative of F by this entry, mean or product. ``inner`` is the derivative by target of
    the expression in the mean, or the vector of the product divided by target; it is 1 for other uses.
    ``runs`` are pairs of a dummy index and its range; the dummies in ``bound`` are summed over in F.
    """

    by: Expr
    target: Expr
    factor: Expr
    inner: Expr = S.One
    kind: str = "entry"
    product: Product | None = None
    runs: tuple[tuple[Dummy, IndexRange], ...] = ()
    bound: frozenset[Dummy] = frozenset()


@dataclass(frozen=True)
class _Solved:
    """Indices J of a definition ``y(J)`` that uses a quantity ``x(A(J))``, solved from ``A(J) = I``.

    I are the indices of x: for ``y(p) = x(p + 1)`` the solution is ``p = I - 1``. ``indices`` maps each
    solved J to an expression in I. The solution holds for the layers ``low`` to ``high`` of x (ANY for
    quantities without layers). ``family`` is true if J contains an index of layers, and ``shift`` is the
    layer of x minus this index. If x is a scalar, ``chosen`` is a product of Kronecker deltas: one for each
    argument in ``A(J)`` that is a number or another fixed value.
    """

    indices: dict[Dummy, Expr]
    low: Expr
    high: Expr
    shift: Expr
    family: bool = False
    chosen: Expr = S.One
    places: Mapping[Dummy, int] = field(default_factory=dict)
    """For each solved J, the number of the argument of the target that it was solved from."""


IndexRuns = tuple[tuple[Dummy, IndexRange], ...]
"""Indices as dummies, each with its range."""
SlotRanges = tuple[IndexRange | None, ...]
"""The range of each index of a field, in the order of its arguments; None for the layer."""


@dataclass(frozen=True)
class _Cell:
    """Gradient with respect to a quantity on the layers ``low..high``: the expression ``constant * value``.

    The quantity is a field, a scalar or a function of a field; without layers the range is ANY. The gradient
    is written in the symbols of the quantity's indices. ``family`` is true if the layers are a range with an
    index, false for a single layer. ``shift`` is the layer of the quantity minus the layer index of the
    definition through which the gradient comes. It is 0 for a sum of contributions with different shifts.
    """

    low: Expr
    high: Expr
    value: Expr
    shift: Expr = S.Zero
    constant: Expr = S.One
    family: bool = False


class Gradients:
    """Backward pass and updates of a forward pass.

    ``output`` is ``f(mu, c, t)``, with ``error`` its ``Delta(mu, c, t)``; without them the gradient is that
    of minus the scalar named LOSS, whose definition must be among ``definitions``. Names of gradients avoid
    those in ``taken``. The graph has a vertex for each field and scalar, and for each function of fields that
    a matrix is applied to, such as ``phi(h)``. The slots of a vertex are the symbols for its indices.
    """

    def __init__(  # noqa: PLR0913 (parts of a network)
        self,
        fields: tuple[Field, ...],
        definitions: tuple[Definition, ...],
        vectors: tuple[GaussianVector, ...],
        data: tuple[Attribute | GivenVector, ...],
        parametrization: Parametrization,
        names: Mapping[str, Gradient],
        output: Expr | None = None,
        error: Expr | None = None,
        taken: frozenset[str] = frozenset(),
    ) -> None:
        """Build the graph of the forward pass: vertices, uses, ranges and indices of the output.

        ``vectors`` are the vectors of weights and ``data`` the attributes and given vectors. ``names`` maps
        the name of a field or scalar to the name and normalisation that a user chose for its gradient.
        """
        self.taken = taken
        self.definitions, self.parametrization, self.names = definitions, parametrization, names
        self.output, self.error, self.root = output, error, LOSS if output is None else name_of(output)
        self.fields = {x.name: x for x in fields}
        self.scalars = {d.name for d in definitions} - set(self.fields)
        self.vectors = {v.name: v for v in vectors}
        self.inside = {x.name for x in data} | set(self.fields)
        self.nodes: dict[str, tuple[Expr, Expr]] = {}
        self.owner: dict[str, str] = {}
        self.domains: dict[str, Conditions] = {}
        self.slots = {d.name: _slots(definitions, d.name) for d in definitions}
        # `_called` is empty while the vertices of the graph are made, because no expression contains a
        # gradient yet.
        self._called: dict[str, str] = {}
        graph = [self._with_nodes(d) for d in definitions]
        self._called = self._names_of_gradients()
        self.ranges = {name: self._ranges(name) for name in self.slots}
        for name, (place, body) in self.nodes.items():
            slot_ranges = zip(self.slots[name], self.ranges[name], strict=True)
            free = tuple(r or IndexRange(x, *ANY) for x, r in slot_ranges if place.has(x))
            graph.append(Definition(place, body, free))
        self.uses: dict[str, list[_Use]] = {}
        for d in graph:
            fresh = {r.index: Dummy(r.index.name, **r.index.assumptions0) for r in d.ranges}
            runs = tuple((fresh[r.index], _moved(r, fresh)) for r in d.ranges)
            lhs, rhs = d.lhs.xreplace(fresh), d.rhs.xreplace(fresh)
            for use in self._partials(lhs, rhs, S.One, runs, frozenset()):
                self.uses.setdefault(name_of(use.target), []).append(use)
        self.place = self._places()

    # -- the graph: functions of fields that matrices are applied to are vertices of their own ---------------

    def _with_nodes(self, d: Definition) -> Definition:
        """Return a definition with named functions for functions of fields, such as ``tanh(h(ell, mu, t))``.

        They stand for the vectors that a matrix is applied to, and for factors in means for which such a name
        exists already. Each name is a vertex of the graph along which gradients are computed.
        """
        bound = {x for e in d.rhs.atoms(Sum) for x, *_ in e.limits}
        indices = {r.index for r in d.ranges} | bound

        def with_node(e: Product) -> Expr:
            """Return a matrix product with a named function in place of its vector, a function of fields.

            One field times a factor without scalars stays as it is. Factors with an index that no field
            in the vector has, such as ``c(p)``, are put in front of the product.
            """
            number, vector = self._beside(e.vector, indices)
            return number * Product(e.matrix, e.transposed, self._node(d, vector, indices))

        rhs = d.rhs.replace(lambda e: isinstance(e, Product), with_node)

        def factors(mean: Mean) -> Expr:
            """Return a mean with named functions in place of those factors for which a name exists already.

            Such a factor is a function of one field, such as ``phi(h(mu, t))``.
            """
            number, body = self.split(mean.args[0])
            groups: dict[Expr | None, Expr] = {}
            # An activation may itself be a product, such as h (1 + erf(h))/2, so that the factors with the
            # same single field are grouped.
            for x in Mul.make_args(body):
                atoms = self._atoms(x)
                field_of_factor = atoms[0] if len(atoms) == 1 else None
                groups[field_of_factor] = groups.get(field_of_factor, S.One) * x
            total = S.One
            for field_of_factor, x in groups.items():
                if field_of_factor is not None and (whole := self._known_vertex(number * x)) is not None:
                    number, x = S.One, whole
                elif (whole := self._known_vertex(x)) is not None:
                    x = whole
                else:
                    x = Mul(*[self._known_vertex(y) or y for y in Mul.make_args(x)])
                total *= x
            return Mean(number * total)

        return replace(d, rhs=rhs.replace(lambda e: isinstance(e, Mean), factors))

    def _beside(self, vector: Expr, indices: set[Symbol]) -> tuple[Expr, Expr]:
        """Split a vector into a factor that is a number, and the vector over this factor.

        The number contains the factors that are equal for all units and have one of ``indices`` (those of the
        definition and its sums) that no field in the vector has: ``c(p)`` in ``c(p) * h(mu, t)``.
        """
        field_symbols = {x for a in self._atoms(vector) for x in a.free_symbols}
        numbers = Mul.make_args(self.split(vector)[0]) if field_symbols else ()
        outside = Mul(*[x for x in numbers if x.free_symbols & indices - field_symbols])
        return outside, vector / outside

    def _node(self, d: Definition, vector: Expr, indices: set[Symbol]) -> Expr:
        """Return a named function for ``vector``, made if needed; some vectors stay as they are.

        The named function, a vertex of the graph, stands for a function of fields such as ``phi(h)`` at its
        indices. A vector without fields stays as it is, and so does one field times a factor without scalars.
        ``d`` is the definition that contains the vector, ``indices`` are those of d and of its sums. Raises
        ProgramError if no field in the vector has all indices of the vector, each in an argument of its own.
        A field that is summed inside of the vector does not count, because its gradient would be summed once
        more. Raises ProgramError also for fields at several layers of which one is a number, and for a
        shifted index that the vector contains as a number or as the index of a weight.
        """
        atoms = self._atoms(vector)
        summed = {x for e in vector.atoms(Sum) for x in e.bound_symbols}
        at_one_index = [a for a in atoms if not a.free_symbols & summed]
        plain = not {name_of(a) for a in vector.atoms(AppliedUndef)} & self.scalars
        single = len(atoms) == len(at_one_index) == 1 and plain
        if not atoms or (single and _linear(vector, atoms[0])):
            return vector
        if single and (known := self._known_vertex(vector)) is not None:
            return known
        # A constant with an index, as in tanh(c(p) h(p)), is shifted together with the index of the field.
        beside = _beside_field(vector, atoms[0]) & indices if single else indices
        moves = single and bool(beside)
        covers = [
            a
            for a in at_one_index
            if vector.free_symbols & indices <= a.free_symbols
            and all(len(x.free_symbols & indices) < 2 for x in a.args if x.free_symbols & beside)
        ]
        if not covers:
            if len(at_one_index) < len(atoms):
                raise ProgramError(
                    f"the definition of {d.lhs} applies a matrix to {vector}, which sums over fields: write "
                    "the sum in front of the product, as in Sum(V @ h(p), (p, 1, 3)), or define a field that "
                    f"is {vector}"
                )
            raise ProgramError(
                f"the definition of {d.lhs} contains {vector}, and no field in this expression has all "
                "indices of the expression, each index in an argument of its own: define a field that is "
                f"{vector}"
            )
        on_axis = {
            a.args[0] for a in atoms if self.fields[name_of(a)].layered or self.fields[name_of(a)].ordered
        }
        if len(on_axis) > 1 and any(x.is_number for x in on_axis):
            raise ProgramError(
                f"the definition of {d.lhs} applies a matrix to {vector}, which has fields at several layers "
                f"or steps, some of them numbers: define a field that is {vector}"
            )
        cover, owner = covers[0], name_of(covers[0])
        time = t if any(a.args[-1] == t for a in atoms) else cover.args[-1]
        cover = cover.func(*cover.args[:-1], time)
        name, home = f"{owner}:{len(self.nodes)}", self.slots[owner]
        if single and not moves:
            place, body = Function(name)(*home, t), vector.subs(cover, Function(owner)(*home, t))
        else:
            pairs = zip(cover.args[:-1], home, strict=True)
            moved = {x: _solution(a, x, slot) for a, slot in pairs for x in a.free_symbols & beside}
            if single:
                place = Function(name)(*home, t)
                body = _at_place(vector.subs(atoms[0], cover), cover, Function(owner)(*home, t))
            else:
                place, body = Function(name)(*cover.xreplace(moved).args), vector.xreplace(moved)
            first = home[:1] if self.fields[owner].layered or self.fields[owner].ordered else ()
            shifted = {x for x, to in moved.items() if to not in home and not to.free_symbols & {*first}}
            # Fields, scalars, given vectors and arrays of constants are read as periodic in a shifted index
            # beyond the end of its range, unless the index counts layers or ordered positions. Numbers and
            # vectors of weights are not read as periodic.
            if shifted & vector.replace(self._is_periodic, _one).free_symbols:
                raise ProgramError(
                    f"the definition of {d.lhs} applies a matrix to {vector}, in which a shifted index is "
                    "also used as a number or as the index of a weight: define a field that is the shifted "
                    "field alone, as q(p) = h(p + 1), or write an array of constants, such as c(p), instead "
                    "of the number"
                )
        self.nodes[name], self.owner[name], self.slots[name] = (place, body), owner, home
        return Function(name)(*cover.args)

    def _known_vertex(self, e: Expr) -> Expr | None:
        """Return the named function that stands for ``e``, a function of one field.

        The result is None if no name stands for ``e``, if ``e`` is the field itself, or if it does not have
        exactly one field.
        """
        atoms = self._atoms(e)
        if len(atoms) != 1 or e == atoms[0]:
            return None
        for name, (place, body) in self.nodes.items():
            if self.owner[name] != name_of(atoms[0]) or len(self._atoms(body)) != 1:
                continue
            if _at_place(e, atoms[0], place) == body:
                return Function(name)(*atoms[0].args)
        return None

    def _atoms(self, e: Expr) -> list[Expr]:
        """Return the fields in an expression with their indices, as ``h(ell, mu, t)``, sorted as text."""
        return sorted((a for a in e.atoms(AppliedUndef) if name_of(a) in self.fields), key=spelled)

    def written(self, e: Expr) -> Expr:
        """Return ``e`` with the named functions of fields, such as one for ``phi(h)``, written out."""
        table = {}
        for a in e.atoms(AppliedUndef):
            if name_of(a) in self.nodes:
                place, body = self.nodes[name_of(a)]
                inside = self._atoms(body)
                numbers = {name_of(x) for x in body.atoms(AppliedUndef)} & self.scalars
                fixed = len(inside) == 1 and not _beside_field(body, inside[0]) & place.free_symbols
                if fixed and not numbers:
                    table[a] = body.subs(inside[0], inside[0].func(*a.args))
                else:
                    table[a] = body.xreplace(dict(zip(place.args, a.args, strict=True)))
        return e.xreplace(table) if table else e

    def _shown(self, e: Expr, runs: Mapping[Dummy, IndexRange]) -> Expr:
        """Return an expression as the user wrote it, for messages.

        Named functions of fields are written out, and dummy indices, whose ranges are ``runs``, get their
        names.
        """
        return self.written(_plain(e, dict(runs)))

    # -- derivatives of one definition -----------------------------------------------------------------------

    def _partials(
        self,
        by: Expr,
        e: Expr,
        outside: Expr,
        runs: tuple[tuple[Dummy, IndexRange], ...],
        bound: frozenset[Dummy],
    ) -> Iterator[_Use]:
        """Yield the uses of quantities with a gradient in ``e``, a part of the definition of ``by``.

        ``outside`` is the derivative of the definition by ``e``. Quantities inside of sums, means and matrix
        products are found too. The indices have the ranges ``runs``, and those in ``bound`` are summed over.
        Raises ProgramError for a mean that contains a matrix product, or another mean of a quantity with a
        gradient.
        """
        masks: dict[Expr, Dummy] = {}
        masked = self._masked(e, masks)
        whole = {v: k for k, v in masks.items()}
        for node, mask in masks.items():
            slope = _slope(masked, mask)
            if slope == 0:
                continue
            slope = outside * slope.subs(whole)
            if isinstance(node, Sum):
                fresh = {x: Dummy(x.name, **x.assumptions0) for x, *_ in node.limits}
                more = tuple((fresh[x], _moved(IndexRange(x, *b), fresh)) for x, *b in node.limits)
                body = node.function.xreplace(fresh)
                yield from self._partials(by, body, slope, (*runs, *more), bound | set(fresh.values()))
            elif isinstance(node, Mean):
                for use in self._partials(by, node.args[0], S.One, runs, bound):
                    if use.kind != "entry":
                        at, body = (self.written(_plain(x, dict(runs))) for x in (by, node.args[0]))
                        inner = min(body.atoms(Product if use.kind == "product" else Mean), key=spelled)
                        kind, part = (
                            ("matrix product", "field") if use.kind == "product" else ("mean", "number")
                        )
                        raise ProgramError(
                            f"the definition of {at} contains the mean of {body}, and the gradient through "
                            f"the {kind} {inner} inside of this mean is not derived: define a {part} that is "
                            f"{inner}"
                        )
                    yield replace(use, factor=slope, inner=use.factor, kind="mean")
            elif isinstance(node, Product):
                yield (used := _Use(by, node.matrix, slope, S.One, "product", node, runs, bound))
                for x in (a for a in node.vector.atoms(AppliedUndef) if self._tracked(a)):
                    yield replace(used, target=x, inner=node.vector / x)
            else:
                yield _Use(by, node, slope, runs=runs, bound=bound)

    def _masked(self, e: Expr, masks: dict[Expr, Dummy]) -> Expr:
        """Return an expression with dummies for its sums, means, products and quantities with a gradient.

        The dummies are stored in ``masks``.
        """
        if isinstance(e, Sum | Mean | Product) or self._tracked(e):
            return masks.setdefault(e, Dummy("x", real=True))
        return e.func(*[self._masked(x, masks) for x in e.args]) if e.args else e

    def _tracked(self, e: Expr) -> bool:
        """Return whether a gradient exists with respect to ``e``.

        This holds for fields, scalars and functions of fields at time t, and for vectors of weights.
        """
        name = name_of(e)
        if isinstance(e, AppliedUndef) and (name in self.slots):
            # Gradients are taken at time t, and the value of a quantity at time 0 is a constant for them.
            return bool(e.args[-1] == t)
        return name in self.vectors and isinstance(e, AppliedUndef | Symbol)

    # -- indices ---------------------------------------------------------------------------------------------

    def _solve(self, use: _Use, slots: tuple[Symbol, ...], axis: bool) -> _Solved:
        """Solve the indices of a definition that uses a quantity from the indices of that quantity.

        The arguments of ``use.target``, such as ``p + 1``, are set equal to the symbols ``slots``, one after
        another. If an argument contains several indices, one that is not summed over is solved for if there
        is one. If ``axis`` is true, the first argument is a layer. Raises :class:`ProgramError` if the index
        that is solved for has a factor other than 1 or -1 (in a layer, other than 1), if a field is used at
        one fixed value of an index other than the layer, or if the range of layers depends on an index.
        """
        runs = dict(use.runs)
        solved: dict[Dummy, Expr] = {}
        places: dict[Dummy, int] = {}
        (low, high), shift, family, chosen = ANY, S.Zero, False, S.One
        for i, (a, slot) in enumerate(zip(use.target.args, slots, strict=False)):
            argument = a.xreplace(solved)
            free = [x for x in runs if argument.has(x)]
            free = [x for x in free if x not in use.bound] or free
            layer = i == 0 and axis
            if free:
                x = free[0]
                slope = affine_slope(argument, x)
                if slope not in ((1,) if layer else (1, -1)):
                    raise ProgramError(
                        f"{self._shown(use.by, runs)}: each argument of {self._shown(use.target, runs)} "
                        "must be an index plus or minus a number or other indices, and an argument that "
                        "is a layer must be an index plus a number"
                    )
                value = slope * (slot - (argument - slope * x))
                solved = {y: e.xreplace({x: value}) for y, e in solved.items()} | {x: value}
                places[x] = i
                if layer and runs[x].lower != ANY[0]:
                    low, high, shift = a.subs(x, runs[x].lower), a.subs(x, runs[x].upper), a - x
                    family = True
                    if not (low - high).free_symbols & set(runs):
                        continue
                    (low, high), family = ANY, False
                    if name_of(use.target) in self.slots:
                        raise ProgramError(
                            f"{self._shown(use.by, runs)}: the layers of "
                            f"{self._shown(use.target, runs)} run from "
                            f"{_plain(runs[x].lower, runs)} to {_plain(runs[x].upper, runs)}; these limits "
                            "must not depend on an index"
                        )
            elif layer:
                low = high = a
            elif a != slot and name_of(use.target) in self.slots:
                if name_of(use.target) not in self.scalars and str(a) == str(slot):
                    raise ProgramError(
                        f"{self._shown(use.by, runs)} uses {self._shown(use.target, runs)}, in which {a} has "
                        f"other assumptions than the index {slot}: write the same symbol in both places"
                    )
                if name_of(use.target) not in self.scalars:
                    raise ProgramError(
                        f"{self._shown(use.by, runs)} uses {self._shown(use.target, runs)}, in which {a} "
                        f"is one value or an index without a range: write a sum over {slot}; for one "
                        f"value, select this value in the sum by a factor, KroneckerDelta({slot}, {a})"
                    )
                chosen *= KroneckerDelta(slot, argument)
        return _Solved(solved, low, high, shift, family, chosen, places)

    def _domain(self, use: _Use, solved: _Solved, spans: SlotRanges, axis: bool) -> Conditions:
        """Return the conditions under which a use contributes to a gradient: all of its indices are in range.

        A condition is an expression that is at least zero. ``solved`` expresses the indices of the use by
        those of its target, whose ranges are ``spans``; indices that are summed over stay. A shifted index
        that leaves the range of the target is periodic, and gives no condition. If ``axis`` is true, the
        first index of the target is the layer, whose range is not among the conditions. Raises
        :class:`ProgramError` if another range ends at a periodic index.
        """
        runs, label = dict(use.runs), spelled(self._shown(use.by, dict(use.runs)))
        rings = self._rings(use, solved, spans, axis)
        conditions: Conditions = []
        for x, r in use.runs:
            if x in rings or (axis and solved.places.get(x) == 0 and solved.low != ANY[0]):
                continue
            if rings & (r.lower.free_symbols | r.upper.free_symbols):
                raise ProgramError(
                    f"{label}: a limit of the index {r.index} contains an index that is shifted in "
                    f"{self._shown(use.target, runs)} and periodic; let the shifted index stay in its "
                    f"range, or give {r.index} numbers as limits"
                )
            conditions += between(x, r.lower, r.upper, label)
        return [c.xreplace(solved.indices).expand() for c in conditions]

    def _support(self, use: _Use, solved: _Solved, spans: SlotRanges, axis: bool) -> Conditions:
        """Return conditions outside of which the gradient with respect to ``use.by`` is zero.

        ``use.by`` is the quantity whose definition uses the target of ``use``. The conditions, expressions
        that are at least zero, are written in the indices of the target by means of ``solved``. A periodic
        index gives none: ``p - k`` stands for another value if it is out of range. An index that selects
        members of a family of matrices gives none either, because a sum must contain all members. ``spans``
        and ``axis`` are those of :meth:`_domain`.
        """
        names = dict(zip(self.slots.get(name_of(use.by), ()), use.by.args, strict=False))
        skipped = self._rings(use, solved, spans, axis)
        if use.product is not None:
            skipped |= use.product.matrix.free_symbols
        conditions = [c.xreplace(names) for c in self.domain(name_of(use.by))]
        return [c.xreplace(solved.indices).expand() for c in conditions if not c.free_symbols & skipped]

    def _rings(self, use: _Use, solved: _Solved, spans: SlotRanges, axis: bool) -> set[Dummy]:
        """Return the periodic indices of a use (:meth:`_goes_round`); arguments as in :meth:`_domain`."""
        label = spelled(self._shown(use.by, dict(use.runs)))
        in_ranges = [c for x, r in use.runs for c in between(x, r.lower, r.upper, label)]
        return {x for x, i in solved.places.items() if self._goes_round(use, x, spans, i, in_ranges, axis)}

    def _goes_round(
        self, use: _Use, x: Dummy, spans: SlotRanges, i: int, in_ranges: Conditions, axis: bool
    ) -> bool:
        """Return whether the index ``x`` of a use is periodic: argument ``i`` of the target leaves its range.

        The range of this argument, such as ``x + 1``, is ``spans[i]``, and ``in_ranges`` are the conditions
        for all indices in their ranges. If ``axis`` is true, argument 0 is a layer, which is not periodic.
        Raises :class:`ProgramError` if the argument may leave its range and x has another range.
        """
        argument, span, range_of_index = use.target.args[i], spans[i], dict(use.runs)[x]
        if not isinstance(argument, Add) or span is None or (axis and i == 0):
            return False
        runs = dict(use.runs)
        label = spelled(self._shown(use.by, runs))
        if all(implied(c, in_ranges) for c in between(argument, span.lower, span.upper, label)):
            return False
        if (range_of_index.lower, range_of_index.upper) == (span.lower, span.upper):
            return True
        raise ProgramError(
            f"{label}: the index {_plain(argument, runs)} of {self._shown(use.target, runs)} may leave its "
            f"range {span.lower}..{span.upper}, and is not periodic, because {range_of_index.index} has "
            f"another range, {_plain(range_of_index.lower, runs)}..{_plain(range_of_index.upper, runs)}; "
            f"restrict {range_of_index.index} to values for which {_plain(argument, runs)} is in the range"
        )

    def _require_periodic(self, use: _Use, solved: _Solved, spans: SlotRanges, axis: bool) -> None:
        """Raise :class:`ProgramError` if a periodic index of a use is also a number or the index of a weight.

        Beyond the end of its range a periodic index continues at the other end: for ``p * h(p + 1)`` the
        gradient would contain ``p - 1`` = 0 in place of the last value. Arrays of constants are read as
        periodic in gradients, and do not raise. A Kronecker delta does not raise if, wherever it is
        one, the index of the quantity (p + 1 in h(p + 1)) is in its range.
        """
        runs, label = dict(use.runs), spelled(self._shown(use.by, dict(use.runs)))
        in_ranges = [c for x, r in use.runs for c in between(x, r.lower, r.upper, label)]
        for x in sorted(self._rings(use, solved, spans, axis), key=spelled):
            place = solved.places[x]
            argument, span = use.target.args[place], spans[place]
            assert span is not None

            def inside(e: Expr, x: Dummy = x, argument: Expr = argument, span: IndexRange = span) -> bool:
                """Return whether ``e`` is a Kronecker delta that is zero if ``argument`` leaves its range.

                ``argument`` is the argument of the target that contains x, and ``span`` is its range.
                """
                if not isinstance(e, KroneckerDelta) or x not in e.args:
                    return False
                at = argument.xreplace({x: next((a for a in e.args if a != x), x)})
                return all(implied(c, in_ranges) for c in between(at, span.lower, span.upper, label))

            for e in (use.factor, use.inner):
                rest = e.replace(self._is_periodic, _one)
                if x in rest.replace(inside, _one).free_symbols:
                    index, to = runs[x].index, self._shown(use.target, runs)
                    raise ProgramError(
                        f"{label}: the index {_plain(argument, runs)} of {self.written(to)} leaves its range "
                        f"{span.lower}..{span.upper} and is periodic, but {index} is also used as a number "
                        f"or as the index of a weight: define a field or number that is {self.written(to)}, "
                        f"or write an array of constants, such as c({index}), instead of the number"
                    )

    def _is_periodic(self, e: Expr) -> bool:
        """Return whether ``e`` is an applied undefined function, other than a vector of weights.

        Gradients read such functions as periodic in their indices: fields, scalars, given vectors and arrays
        of constants.
        """
        return isinstance(e, AppliedUndef) and name_of(e) not in self.vectors

    def domain(self, name: str) -> Conditions:
        """Return the conditions outside of which the gradient with respect to ``name`` is zero.

        They are expressions that are at least zero, in the indices of the quantity; the ranges of these
        indices are not repeated. A condition is returned only if every use of the quantity has it, so that
        the list may be incomplete.
        """
        if name not in self.domains:
            # An empty entry ends the recursion for a field that depends on itself at another layer.
            self.domains[name] = []
            conditions_of_uses: list[Conditions] = []
            for use in self.uses.get(name, ()):
                if name_of(use.by) in self.place:
                    solved = self._solve(use, self.slots[name], self._on_axis(name))
                    conditions_of_uses.append(self._contributing(use, solved, name))
            shared = (
                [c for c in conditions_of_uses[0] if all(c in other for other in conditions_of_uses)]
                if conditions_of_uses
                else []
            )
            self.domains[name] = shared
        return self.domains[name]

    def _contributing(self, use: _Use, solved: _Solved, name: str) -> Conditions:
        """Return the conditions on the indices of ``name`` under which a use contributes to its gradient.

        ``solved`` expresses the indices of the use by those of the quantity ``name``. The other indices of
        the use, which are summed over, are eliminated, and conditions that follow from the ranges are left
        out.
        """
        spans, axis = self.ranges[name], self._on_axis(name)
        conditions = self._domain(use, solved, spans, axis) + self._support(use, solved, spans, axis)
        label = spelled(self._shown(use.by, dict(use.runs)))
        for x, _ in use.runs:
            if x not in solved.indices:
                *_, conditions = eliminated(x, conditions, label)
        return needed(conditions, self.known(name))

    def known(self, name: str) -> Conditions:
        """Return the conditions that indices of a quantity are in their ranges; an index of layers has none.

        ``name`` is a field, a scalar or a function of a field. Each condition is an expression that is at
        least zero.
        """
        return _inside(self.slots[name], self.ranges[name], name)

    def _on_axis(self, name: str) -> bool:
        """Return whether the first index of the quantity ``name`` counts layers.

        This is so for a layered field, for an ordered field, which is computed for one value of its first
        index after another, and for functions of such fields. It is so for a scalar if its first index is
        also that of such a field.
        """
        x = self.fields.get(self.owner.get(name, name))
        # If x is None, `name` is neither a field nor a function of a field. The first index of a scalar
        # counts layers if it is also the first index of a layered or ordered field.
        if x is None:
            known = [n for n, y in self.fields.items() if (y.layered or y.ordered) and n in self.slots]
            layers = {self.slots[n][0] for n in known}
            return name in self.scalars and bool(self.slots[name]) and self.slots[name][0] in layers
        return x.layered or x.ordered

    def _ranges(self, name: str) -> SlotRanges:
        """Return the range of each index of a field, scalar or function of a field.

        An entry is None for the index of the layer. A range is from the smallest to the largest value of the
        index in all definitions of the quantity.
        """
        owner = self.owner.get(name, name)
        lines = [d for d in self.definitions if d.name == owner]
        spans: list[IndexRange | None] = []
        for i, slot in enumerate(self.slots[name]):
            ends = [_ends(d, i) for d in lines]
            low, high = Min(*(x for x, _ in ends)), Max(*(x for _, x in ends))
            layer = i == 0 and self._on_axis(name)
            spans.append(None if layer else IndexRange(slot, low, high))
        return tuple(spans)

    def _places(self) -> dict[str, tuple[int | None, ...]]:
        """Return which arguments of each quantity that the output depends on are indices of the output.

        The value has one entry for each index of the output (such as sample and channel): the number of the
        argument of the quantity that is this index, or None if the quantity does not have it. Raises
        ProgramError for a quantity that combines different outputs.
        """
        positions: dict[str, tuple[int | None, ...]] = {self.root: tuple(range(len(self.labels)))}
        todo = [self.root]
        while todo:
            by = todo.pop()
            for name, uses in self.uses.items():
                for use in uses:
                    if name_of(use.by) != by or name not in self.slots:
                        continue
                    solved = self._solve(use, self.slots[name], self._on_axis(name)).indices
                    slots = self.slots[name]
                    values = [None if i is None else use.by.args[i].xreplace(solved) for i in positions[by]]
                    if any(x not in slots and not isinstance(x, Dummy | None) for x in values):
                        raise self._mixes(use)
                    here = tuple(slots.index(x) if x in slots else None for x in values)
                    if any(i is None and x in slots for x, i in zip(self.labels, here, strict=True)):
                        raise self._mixes(use)  # two indices of the gradient would have one name
                    if name not in positions:
                        positions[name] = here
                        todo.append(name)
                    elif positions[name] != here:
                        raise self._mixes(use)
        return positions

    def _mixes(self, use: _Use) -> ProgramError:
        """Return the error for a quantity that combines quantities of different outputs."""
        by = _plain(use.by, dict(use.runs))
        return ProgramError(
            f"{by} combines quantities of different outputs, so that the gradient of each output would have "
            "the indices of all: take the gradient of the loss, together=True"
        )

    @property
    def labels(self) -> tuple[Symbol, ...]:
        """The indices of the output, without the time; empty if the gradient is that of the loss."""
        return () if self.output is None else tuple(self.output.args[:-1])

    def _extra(self, name: str) -> tuple[Symbol, ...]:
        """Return the indices of the output that the gradient of ``name`` has, but ``name`` has not."""
        return tuple(x for x, i in zip(self.labels, self.place[name], strict=True) if i is None)

    # -- contribution of one use -----------------------------------------------------------------------------

    def population(self, atom: Expr) -> Population:
        """Return the population of a field, or of a function of a field, at its layer if it has one."""
        x = self.fields[self.owner.get(name_of(atom), name_of(atom))]
        return x.population.at(atom.args[0]) if x.layered else x.population

    def normal(self, atom: Expr) -> Expr:
        """Return the factor with which the gradient with respect to ``atom`` is normalised.

        For a field x it is c if the program contains ``c N`` times the derivative of the output (or of minus
        the loss) by an entry of x; by default c is ``scale`` times the root of the number of units over N.
        For a scalar it is c if the program contains c times that derivative, by default ``scale``. For the
        output itself and the loss it is 1.
        """
        name = name_of(atom)
        if name == self.root:
            return S.One
        given = self.names.get(self.owner.get(name, name))
        if given is not None and given.normal is not None:
            return expression(given.normal).xreplace(dict(zip(self.slots[name], atom.args, strict=False)))
        scale = expression(self.parametrization.scale)
        return scale if name in self.scalars else scale * sqrt(expression(self.population(atom).ratio))

    def called(self, name: str) -> str:
        """Return the name of the gradient with respect to a field, a scalar or a function of a field."""
        return self._called[name] if name in self._called else self._natural(name)

    def _names_of_gradients(self) -> dict[str, str]:
        """Return the name of the gradient with respect to each quantity, by the name of the quantity.

        Default names that are taken get a number behind them.
        """
        chosen = {x for n in self.names.values() for x in (n.name, n.inner)}
        natural = {n: self._natural(n) for n in self.slots if n != LOSS}
        named = {n: x for n, x in natural.items() if x in chosen}
        return named | unique_names(
            ((n, x) for n, x in natural.items() if n not in named), self.taken | chosen
        )

    def _natural(self, name: str) -> str:
        """Return the name of a gradient before collisions are resolved: the user's, or the default.

        Defaults are ``g`` and ``z`` for the field h and a function of it, ``g_q`` and ``z_q`` for a field q.
        The second function of one field that a matrix is applied to has ``z_2``, and so on.
        """
        owner = self.owner.get(name, name)
        given = self.names.get(owner)
        if name not in self.nodes:
            return given.name if given is not None else "g" if name == "h" else f"g_{name}"
        same = [n for n in self.nodes if self.owner[n] == owner]
        first = given.inner if given is not None and given.inner else "z" if owner == "h" else f"z_{owner}"
        return first if same[0] == name else f"{first}_{same.index(name) + 1}"

    def backward(self, atom: Expr) -> Expr:
        """Return the gradient with respect to ``atom`` as a function of its indices.

        It is ``g(mu, t)`` for the field ``h(mu, t)``, with the default name. It is 1 for the output itself,
        and -1 for the loss, because gradients are those of minus the loss.
        """
        name = name_of(atom)
        if name == self.root:
            return S.One if self.output is not None else S.NegativeOne
        return Function(self.called(name))(*atom.args[:-1], *self._extra(name), t)

    def _contribution(self, use: _Use) -> Expr:
        """Return the contribution of one use to the gradient of the quantity that is used.

        It is written with the indices of the definition that contains the use. Raises :class:`ProgramError`
        if the gradient is that of a scalar, and the derivative of the definition by this scalar contains a
        matrix product, as for a field that is the scalar times a matrix product.
        """
        ratio, back = self.normal(use.target) / self.normal(use.by), self.backward(use.by)
        if use.kind == "mean":
            seen = use.factor * back
            # If `use.by` is a field or a function of a field, the mean enters each of its units. The gradient
            # by the mean is then a sum over these units: their number over N, times an average over them.
            if name_of(use.by) in self.fields or name_of(use.by) in self.nodes:
                seen = expression(self.population(use.by).ratio) * Mean(seen)
            if name_of(use.target) in self.scalars:
                return ratio * seen * Mean(use.inner)
            return ratio * use.inner * seen / expression(self.population(use.target).ratio)
        if use.kind == "product":
            assert use.product is not None
            constant, local = self.split(use.factor)
            same, varying = self.split(use.inner)
            back = local * back
            return (
                ratio
                * constant
                * same
                * varying
                * Product(use.product.matrix, not use.product.transposed, back)
            )
        if name_of(use.target) in self.scalars and name_of(use.by) not in self.scalars | {LOSS}:
            if use.factor.has(Product):
                by, target = (_plain(x, dict(use.runs)) for x in (use.by, use.target))
                raise ProgramError(
                    f"the derivative of the definition of {by} with respect to the number {target} contains "
                    "a matrix product: define a field that is this matrix product"
                )
            return ratio * expression(self.population(use.by).ratio) * Mean(use.factor * back)
        return ratio * use.factor * back

    def split(self, e: Expr) -> tuple[Expr, Expr]:
        """Split a product into the factors that are equal for all units, and the others."""
        local = [x for x in Mul.make_args(e) if self.varies(x)]
        return Mul(*[x for x in Mul.make_args(e) if not self.varies(x)]), Mul(*local)

    def varies(self, e: Expr) -> bool:
        """Return whether ``e`` contains a vector outside of means: it differs from unit to unit."""
        bare = e.replace(lambda x: isinstance(x, Mean), lambda _: Dummy())
        vector_names = self.inside | set(self.nodes)
        vector_names |= {self._called[n] for n in (*self.fields, *self.nodes) if n in self._called}
        named = {name_of(a) for a in bare.atoms(AppliedUndef)} & vector_names
        return bool(named) or bare.has(Product) or any(v.uses(bare) for v in self.vectors.values())

    def _summed_contribution(self, use: _Use, solved: _Solved, value: Expr, taken: Iterable[Symbol]) -> Expr:
        """Return the contribution ``value`` of a use to its target's gradient, summed over other indices.

        ``solved`` expresses indices of the use by those of the target. Indices that are neither among these
        nor those of the output are summed over, with names that are not in ``taken``. The contribution is
        zero where an index of the use is out of range.
        """
        where = self.place[name_of(use.by)]
        labels = {use.by.args[i]: x for x, i in zip(self.labels, where, strict=True) if i is not None}
        names: dict[Any, Any] = {x: labels[x] for x, _ in use.runs if x in labels and x not in solved.indices}
        value = solved.chosen * value.xreplace(solved.indices)
        used, free = {*taken, *self.labels}, []
        for x, r in use.runs:
            if x in solved.indices or x in names:
                continue
            name = r.index
            while name in used:
                name = primed(name)
            names[x] = name
            used.add(name)
            free.append(name)
        target = name_of(use.target)
        spans, axis = self.ranges[target], self._on_axis(target)
        self._require_periodic(use, solved, spans, axis)
        domain = [c.xreplace(names) for c in self._domain(use, solved, spans, axis)]
        support = [c.xreplace(names) for c in self._support(use, solved, spans, axis)]
        labelled = [c for x in self.labels for c in self._in_range(self.range_of(x))]
        label = spelled(self._shown(use.by, dict(use.runs)))
        inner, known = _inner_first(free, use.runs, names), [*self.known(target), *labelled]
        total, left = summed(value.xreplace(names), inner, domain, support, known, label)
        if use.kind == "product":
            if left:
                self._defined_for_product(use, solved, known)
            self._sums_all_members(use, solved, total)
            if left and isinstance(total, Sum):  # a product of a matrix has its factors inside of the sum
                return total.func(indicator(left) * total.function, *total.limits)
        return indicator(left) * total

    def _defined_for_product(self, use: _Use, solved: _Solved, known: Conditions) -> None:
        """Raise :class:`ProgramError` if a gradient needs a matrix times a vector that is not defined.

        This happens if the definition ``use.by``, which applies the matrix to the target, covers only some
        values of an index of the target. ``known`` are the conditions that hold for the indices of the
        target.
        """
        runs = dict(use.runs)
        for a, r in zip(use.by.args, self.ranges.get(name_of(use.by), ()), strict=False):
            at, label = a.xreplace(solved.indices), spelled(self._shown(use.by, runs))
            # Three kinds of indices are not tested: the index of the layer (r is None); a shifted index such
            # as p + k, because it is periodic, so that all of its values are defined; and an index that is
            # summed over, because it stays in its range.
            if r is None or isinstance(at, Add) or (a in runs and a not in solved.indices):
                continue
            if not all(implied(c, known) for c in between(at, r.lower, r.upper, label)):
                raise ProgramError(
                    f"{label} is defined only for {_plain(a, runs)} = {r.lower}..{r.upper}, and applies a "
                    f"matrix to {self._shown(use.target, runs)}, which is also defined for other values of "
                    "this index; define both for the same values, and select values by factors of 0 or 1"
                )

    def _sums_all_members(self, use: _Use, solved: _Solved, total: Expr) -> None:
        """Raise :class:`ProgramError` if a gradient sums over some members of a family of matrices only.

        This happens if the definition ``use.by`` applies the family to the target at a shifted index, for
        fewer values of this index than the target has. ``total`` is the contribution to the gradient.
        """
        assert use.product is not None
        runs, slots = dict(use.runs), self.slots[name_of(use.target)]
        members = {x.name for x in use.product.matrix.free_symbols & {*runs}}
        ends = [
            e
            for total_sum in total.atoms(Sum)
            for x, *es in total_sum.limits
            if x.name in members
            for e in es
        ]
        shared = {x for e in ends for x in e.free_symbols & {*slots}}
        for a, r in zip(use.by.args, self.ranges.get(name_of(use.by), ()), strict=False):
            at = a.xreplace(solved.indices)
            for x in sorted(at.free_symbols & shared, key=spelled):
                span = self.ranges[name_of(use.target)][slots.index(x)]
                if r is None or span is None:
                    continue
                raise ProgramError(
                    f"the definition of {self._shown(use.by, runs)}, for {r.index} = {r.lower}..{r.upper}, "
                    f"applies {_plain(use.product.matrix, runs)} to {self._shown(use.target, runs)}, which "
                    f"is defined for the values {span.lower}..{span.upper} of this index: define both for "
                    "the same values; if the loss must not contain all of them, write a sum over the "
                    "others in the loss"
                )

    def _in_range(self, r: IndexRange) -> Conditions:
        """Return the conditions for an index in its range, as expressions that are at least zero."""
        return between(r.index, r.lower, r.upper, spelled(r.index))

    # -- the backward pass -----------------------------------------------------------------------------------

    def cells(self, name: str) -> list[_Cell]:
        """Return the gradient with respect to ``name`` as cells, one for each range of layers."""
        slots, axis = self.slots[name], self._on_axis(name)
        parts: list[tuple[_Cell, Expr]] = []
        for use in self.uses.get(name, ()):
            if name_of(use.by) not in self.place:
                continue
            solved = self._solve(use, slots, axis)
            value = self._summed_contribution(use, solved, self._contribution(use), slots)
            if name_of(use.by) in self.nodes:
                for cell in self.cells(name_of(use.by)):
                    part = _Cell(cell.low, cell.high, cell.constant * value, family=cell.family)
                    parts.append((part, S.One))
                continue
            given = S.One
            if use.kind == "product" and name in self.nodes:
                factors = Mul.make_args(self.split(use.factor)[0])
                given = Mul(*[x for x in factors if not x.free_symbols & set(dict(use.runs))])
            cell = _Cell(solved.low, solved.high, value, solved.shift, family=solved.family)
            parts.append((cell, given))
        cells = []
        for low, high in _cuts([c for c, _ in parts]):
            parts_here = [(c, k) for c, k in parts if _covers(c, low, high)]
            if not parts_here:
                continue
            constants = {k for _, k in parts_here}
            constant = constants.pop() if len(constants) == 1 else S.One
            whole = all((c.low, c.high) == (low, high) for c, _ in parts_here)
            shifts = {c.shift for c, _ in parts_here}
            shift = shifts.pop() if whole and len(shifts) == 1 else S.Zero
            value = Add(*[_divided(c.value, constant) for c, _ in parts_here])
            value = self.tidy(value if value.has(Product) else factor_terms(value))
            cells.append(_Cell(low, high, value, shift, constant, all(c.family for c, _ in parts_here)))
        return cells

    def definitions_of(self, name: str) -> list[Definition]:
        """Return the definitions of the gradient with respect to ``name``, one for each range of layers.

        Those of single layers come first. The list is empty if the output or the loss does not depend on it.
        """
        slots = self.slots[name]
        definitions: list[tuple[bool, Definition]] = []
        cells, x = self.cells(name), self.fields.get(self.owner.get(name, name))
        # A cell is the gradient on one range of layers. x is the field `name`, or the field of which `name`
        # is a function. If there is a field x and x is not ordered, neighbouring cells with equal expressions
        # are merged, provided that at least one of them is a family, and not a single layer. An ordered field
        # is computed for one value of its first index after another.
        if x is not None and not x.ordered:
            cells = _merged(cells, slots[:1])
        for cell in cells:
            args, value = list[Expr](slots), cell.value
            layer_range: tuple[IndexRange, ...] = ()
            family = self._on_axis(name) and cell.low != ANY[0]
            if family and cell.low == cell.high and not cell.family:
                args[0], value = cell.low, value.xreplace({slots[0]: cell.low})
            elif family:
                args[0] = slots[0] + cell.shift
                value = value.xreplace({slots[0]: args[0]})
                layer_range = (IndexRange(slots[0], cell.low - cell.shift, cell.high - cell.shift),)
            spans = list(zip(slots, self.ranges[name], strict=True))[1 if family else 0 :]
            other_ranges = [r or self.range_of(x) for x, r in spans]
            other_ranges += map(self.range_of, self._extra(name))
            lhs = Function(self.called(name))(*args, *self._extra(name), t)
            definitions.append((bool(layer_range), Definition(lhs, value, (*other_ranges, *layer_range))))
        return [d for _, d in sorted(definitions, key=lambda x: x[0])]

    def range_of(self, index: Symbol) -> IndexRange:
        """Return the range of an index, other than that of layers, from the first definition that has it.

        Raises ProgramError if no definition has the index.
        """
        ranges = (r for d in self.definitions for r in d.ranges if r.index == index)
        if (index_range := next(ranges, None)) is None:
            raise ProgramError(
                f"the index {index} has no range in any definition: give the network "
                f"ranges=(IndexRange({index}, 1, ...),)"
            )
        return index_range

    def tidy(self, e: Expr) -> Expr:
        """Return an expression with functions of fields written out, and constants in front of products.

        Constants are also in front of means. Raises ProgramError if ``e`` contains a derivative that SymPy
        does not evaluate, of a function other than an undefined one.
        """
        e = self.written(e)

        def outside(x: Product | Mean) -> Expr:
            """Return a product or mean with its constants in front."""
            constant, local = self.split(x.args[-1])
            return constant * x.func(*x.args[:-1], local)

        for kind in (Product, Mean):
            e = e.replace(lambda x, kind=kind: isinstance(x, kind), outside)
        unknown = {x.expr for x in e.atoms(Derivative) if not isinstance(x.expr, AppliedUndef)}
        if unknown:
            shown = min(unknown, key=str)
            raise ProgramError(
                f"{shown}: the derivative of {shown.func.__name__} is not known, and the updates of the "
                "trained weights in its argument need this derivative: use another function, such as tanh "
                "or Max, or freeze these weights"
            )
        return e

    # -- updates ---------------------------------------------------------------------------------------------

    def updates(self, weight: GaussianWeight) -> list[Outer] | list[Along]:
        """Return the terms of the update of a weight.

        The update is minus a factor times the gradient of the loss. For a vector the factor is ``rate scale^2
        N``, with the rate and the scale of the parametrization. For a matrix, as it is applied, it is ``rate
        scale^2 N/n``, where n is the number of units that the matrix is applied to, or the fan-in that the
        parametrization states. Each use of the weight gives a term; uses of one form at neighbouring layers
        are one term. The list is empty if the loss does not depend on the weight.
        """
        uses = [u for u in self.uses.get(weight.name, ()) if name_of(u.by) in self.place]
        joined = _joined([self._update(weight, use) for use in uses], weight)
        return [self._on_its_members(weight, solved, u) for solved, u in joined]

    def _on_its_members(self, weight: GaussianWeight, solved: _Solved, u: Any) -> Any:
        """Return a term of the update of a family of weights, with a factor that is 1 for some members only.

        The term ``u`` comes from a use of the members from layer ``solved.low`` to ``solved.high``; the
        factor is 0 for all others. A term of a single member of a family with several members is rewritten
        with the layer index of the family.
        """
        if not weight.symbol.args or solved.low == ANY[0]:
            return u
        first, *_ = _family(weight)
        members = between(first.index, solved.low, solved.high, weight.name)
        chosen = indicator(needed(members, self._in_range(first)))
        # If `solved.family` is false, only the member `solved.low` of the family has this update. If the
        # family has other members (`chosen` is not 1), the update is written for any member, with the index
        # of the family in place of `solved.low`, and multiplied by the indicator `chosen`.
        if chosen != 1 and not solved.family:

            def anywhere(e: Any) -> Expr:
                e = expression(e)
                layers = (a for a in e.atoms(AppliedUndef) if self._layered(name_of(a)))
                shift = first.index - solved.low
                return e.xreplace({a: a.func(a.args[0] + shift, *a.args[1:]) for a in layers})

            u = replace(u.map(anywhere), over=u.over)
        return _times(u, chosen)

    def _layered(self, name: str) -> bool:
        """Return whether ``name`` is a field with a layer index, or the gradient with respect to one.

        Ordered fields, which count steps on the same units instead of layers, do not have one.
        """
        names = {self.called(n): x for n, x in self._vertices()} | self.fields
        return name in names and names[name].layered

    def _vertices(self) -> Iterator[tuple[str, Field]]:
        """Yield pairs (name, field) for every field, and for every named function of a field.

        A function such as ``phi(h)`` to which a matrix is applied has a name of its own; it is paired with
        the field h.
        """
        yield from self.fields.items()
        yield from ((n, self.fields[owner]) for n, owner in self.owner.items())

    def _update(self, weight: GaussianWeight, use: _Use) -> tuple[_Solved, Outer | Along]:
        """Return the term that one use of a weight adds to the update of this weight.

        The result is a pair: the indices of the definition that uses the weight, solved from the indices of
        the weight, and the term.
        """
        by, p = use.by, self.parametrization
        symbol = weight.symbol
        solved = self._solve(use, tuple(symbol.args), bool(symbol.args))
        back, unit = self.backward(by), S.One / self.normal(by)
        same, local = self.split(use.factor)
        error = S.One
        if self.error is not None:
            where = zip(self.labels, self.place[name_of(by)], strict=True)
            error = self.error.func(*(x if i is None else by.args[i] for x, i in where), t)
        moved = expression(p.scale) ** 2 * p.rate_of(weight.name) * error
        bodies: tuple[Expr, ...]
        fan_in = S.One
        if isinstance(weight, GaussianMatrix):
            assert use.product is not None
            constant, vertex = self.split(use.product.vector)
            handed = self.written(vertex)
            unit *= same * constant
            bodies = (local * back, handed)
            bodies = bodies[::-1] if use.product.transposed else bodies
            fan_in = p.fan_in_of(weight)
        elif use.kind == "mean":
            unit *= use.factor * back / expression(weight.population.ratio)
            bodies = (use.inner,)
        else:
            unit *= same
            bodies = (local * back,)
        first, others = _family(weight)[:1], _family(weight)[1:]
        spans: SlotRanges = (*(first if solved.low == ANY[0] else [None] * len(first)), *others)
        domain = self._domain(use, solved, spans, bool(symbol.args))
        rename, over = self._summed(use, solved, domain, spans, {r.index for r in _family(weight)})
        known = [c for r in (*over, *filter(None, spans)) for c in self._in_range(r)]
        chosen = indicator(needed([c.xreplace(rename) for c in domain], known))
        at = {x: e.xreplace(rename) for x, e in solved.indices.items()} | rename

        def written(e: Expr) -> Expr:
            return self.tidy(expression(e).xreplace(at))

        coefficient, vectors = written(moved * unit / fan_in), [written(x) for x in bodies]
        gradient = written(unit)
        if isinstance(weight, GaussianVector):
            plain = p.rate_of(weight.name) == 1 or self.error is None
            along = Along(coefficient, vectors[0], over, None if plain else gradient)
            return solved, _times(along, chosen)
        plain = written(moved * unit / p.rate_of(weight.name)) == coefficient or self.error is None
        outer = Outer(coefficient, vectors[0], vectors[1], over, None if plain else gradient)
        return solved, _times(outer, chosen)

    def _summed(
        self, use: _Use, solved: _Solved, domain: Conditions, spans: SlotRanges, own: set[Symbol]
    ) -> tuple[dict[Any, Any], tuple[IndexRange, ...]]:
        """Return new names and ranges of the indices over which the term of an update is summed.

        Names are ``alpha`` for ``mu`` and ``p_`` for ``p``; an index of layers keeps its name. If the
        gradient is that of the loss, only ``mu`` and the indices in ``own``, those of the family of weights,
        get new names. Each index takes all values that it has anywhere in the ``domain``: no range depends on
        another index. ``spans`` are the ranges of the weight's indices.
        """
        label, free = (
            spelled(self._shown(use.by, dict(use.runs))),
            [x for x, _ in use.runs if x not in solved.indices],
        )
        slots = [r.index for r in spans if r is not None]
        every = [*domain, *(c for r in spans if r is not None for c in self._in_range(r))]
        name = name_of(use.by)
        rename: dict[Any, Any] = {}
        first: list[tuple[int, IndexRange]] = []
        last: list[IndexRange] = []
        for x, r in use.runs:
            if x in solved.indices:
                continue
            layer = self._on_axis(name) and use.by.args[0].has(x)
            kept = layer or (self.output is None and r.index not in {mu, *own})
            rename[x] = r.index if kept else primed(r.index)
            run = IndexRange(rename[x], *hull(x, [*free, *slots], every, label))
            if layer:
                last.append(run)
            else:
                first.append((use.by.args.index(x) if x in use.by.args else len(use.by.args), run))
        for i, x in enumerate(self._extra(name)):
            rename[x] = primed(x)
            first.append((len(use.by.args) - 1 + i, replace(self.range_of(x), index=primed(x))))
        return rename, (*(r for _, r in sorted(first, key=lambda x: x[0])), *last)


# -- helpers -------------------------------------------------------------------------------------------------


def name_of(e: Expr) -> str:
    """Return the name of an applied function (``h`` of ``h(mu, t)``) or symbol; else an empty string."""
    return e.func.__name__ if isinstance(e, AppliedUndef) else spelled(e) if isinstance(e, Symbol) else ""


def _slots(definitions: tuple[Definition, ...], name: str) -> tuple[Symbol, ...]:
    """Return the index symbols of the field or scalar ``name``, one for each argument except the time.

    They are the symbols in the left-hand sides of its definitions: ``(ell, mu)`` for ``h(ell + 1, mu, t)``.
    An argument that is a number in all of them has ``ell`` if it is the first, else ``i1``, ``i2``, ...
    """
    lines = [d for d in definitions if d.name == name]
    symbols: list[Symbol] = []
    for i in range(len(lines[0].lhs.args) - 1):
        options = (r.index for d in lines for r in d.ranges if d.lhs.args[i].has(r.index))
        default = ell if i == 0 else Symbol(f"i{i}", integer=True)
        symbols.append(next((x for x in options if x not in symbols), default))
    return tuple(symbols)


def _moved(r: IndexRange, names: Mapping[Any, Any]) -> IndexRange:
    """Return the range of an index with other symbols in its limits, as ``names`` maps them.

    The symbol of the index itself is not replaced.
    """
    return IndexRange(r.index, *(expression(b).xreplace(names) for b in (r.lower, r.upper)))


def _family(weight: GaussianWeight) -> tuple[IndexRange, ...]:
    """Return the ranges of the indices of a family of weights; empty for a single weight."""
    if isinstance(weight, GaussianVector):
        return weight.indices
    return ((weight.index,) if weight.index else ()) + weight.others


def _times(u: Any, factor: Expr) -> Any:
    """Return an update (:class:`Outer` or :class:`Along`) times a number."""
    if factor == 1:
        return u
    if u.gradient is not None:
        u = replace(u, gradient=factor * u.gradient)
    return replace(u, coefficient=factor * u.coefficient)


def _ends(d: Definition, place: int) -> tuple[Expr, Expr]:
    """Return the first and last value of argument number ``place`` of a definition's left-hand side."""
    a = d.lhs.args[place]
    r = next((r for r in d.ranges if a.has(r.index)), None)
    return (a, a) if r is None else (a.subs(r.index, r.lower), a.subs(r.index, r.upper))


def _inside(slots: tuple[Symbol, ...], spans: SlotRanges, label: str) -> Conditions:
    """Return the conditions for all indices ``slots`` to be in their ranges ``spans``.

    A condition is an expression that is at least zero. A range that is None gives no condition. ``label``
    begins the messages of errors.
    """
    pairs = ((x, r) for x, r in zip(slots, spans, strict=True) if r is not None)
    return [c for x, r in pairs for c in between(x, r.lower, r.upper, label)]


def _inner_first(free: list[Symbol], runs: IndexRuns, names: Mapping[Any, Any]) -> list[Symbol]:
    """Return the indices ``free`` in the order of sums, the innermost first.

    An index comes before those in the ends of its range; ``names`` are the names of the dummies in ``runs``.
    """
    ends = {names[x]: {names.get(y) for y in _symbols(r)} for x, r in runs if names.get(x) in free}
    ordered: list[Symbol] = []
    while remaining := [x for x in free if x not in ordered]:
        ordered.append(
            next((x for x in remaining if not any(x in ends[y] for y in remaining if y != x)), remaining[0])
        )
    return ordered


def _symbols(r: IndexRange) -> set[Any]:
    """Return the symbols in the ends of a range."""
    return {*expression(r.lower).free_symbols, *expression(r.upper).free_symbols}


def _slope(e: Expr, x: Dummy) -> Expr:
    """Return the derivative ``de/dx``, with short cuts for sums, products and powers.

    The derivative of a step function is zero.
    """
    if e == x:
        return S.One
    inside = [y for y in e.args if x in y.free_symbols]
    if isinstance(e, Add):
        return Add(*[_slope(y, x) for y in inside])
    if isinstance(e, Mul) and len(inside) == 1:
        return Mul(*[y for y in e.args if y is not inside[0]], _slope(inside[0], x))
    if isinstance(e, Pow) and e.exp.is_number:
        return e.exp * e.base ** (e.exp - 1) * _slope(e.base, x)
    # The derivative of a step function contains a Dirac delta. The delta is replaced by zero, as if no unit
    # of a network were exactly at the step.
    return _with_tanh(e.diff(x).replace(DiracDelta, lambda *_: S.Zero))


def _with_tanh(e: Expr) -> Expr:
    """Return the expression with ``tanh(a)`` for ``sinh(a)/cosh(a)``, which overflows at large a."""

    def divided(product: Expr) -> Expr:
        """Return a product in which ``sinh(a)/cosh(a)`` is ``tanh(a)``."""
        powers = product.as_powers_dict()
        for y in [y for y in powers if isinstance(y, sinh)]:
            below = cosh(*y.args)
            shared = min(powers[y], -powers.get(below, S.Zero))
            if shared.is_Integer and shared > 0:
                product = product * (tanh(*y.args) * below / y) ** shared
        return product

    return e.replace(lambda y: isinstance(y, Mul) and y.has(sinh) and y.has(cosh), divided)


def _one(*_: Any) -> Expr:
    """Return 1 for any arguments, to replace parts of an expression by 1."""
    return S.One


def _beside_field(e: Expr, atom: Expr) -> set[Any]:
    """Return the symbols of an expression that occur outside of the field ``atom``."""
    symbols: set[Any] = e.xreplace({atom: _UNKNOWN}).free_symbols - {_UNKNOWN}
    return symbols


def _at_place(e: Expr, atom: Expr, place: Expr) -> Expr:
    """Return a function of the field ``atom`` with the indices of ``place`` instead of those of this field.

    Constants with the same index move with it: ``c(p)`` beside ``h(p + 1)`` is ``c(p - 1)`` beside ``h(p)``.
    """
    beside = _beside_field(e, atom)
    pairs = zip(atom.args, place.args, strict=True)
    moved = {x: _solution(a, x, to) for a, to in pairs for x in a.free_symbols & beside}
    return e.xreplace({atom: _UNKNOWN}).xreplace(moved).xreplace({_UNKNOWN: atom.func(*place.args)})


def _solution(argument: Expr, x: Symbol, value: Expr) -> Expr:
    """Return the x that solves ``argument = value``, where the argument is x or -x plus other terms."""
    slope = S.NegativeOne if (argument + x).expand().free_symbols.isdisjoint({x}) else S.One
    return slope * (value - (argument - slope * x))


def _linear(e: Expr, atom: Expr) -> bool:
    """Return whether an expression is seen to be ``atom`` times a factor that does not contain ``atom``.

    A sum such as ``h + c*h`` is not factored, so that the result for it is False.
    """
    body = e.subs(atom, _UNKNOWN)
    slope = _slope(body, _UNKNOWN)
    return not slope.has(_UNKNOWN) and slope * _UNKNOWN - body == 0


_UNKNOWN = Dummy()
"""The same dummy in all calls, so that SymPy finds derivatives in its cache."""


def _plain(e: Expr, runs: dict[Dummy, IndexRange]) -> Expr:
    """Return an expression with the symbols of the indices in place of their dummies, for messages."""
    return e.xreplace({x: r.index for x, r in runs.items()})


def _divided(e: Expr, constant: Expr) -> Expr:
    """Return an expression divided by a constant; of a sum the summand is divided."""
    return Sum(e.function / constant, *e.limits) if isinstance(e, Sum) else e / constant


def _cuts(cells: list[_Cell]) -> list[tuple[Expr, Expr]]:
    """Return consecutive ranges (first, last) of layers, cut where a cell begins or ends.

    A cell is a gradient on a range of layers. Empty ranges come first, the others in ascending order. If a
    cell has no layers, the result is ``[ANY]``.
    """
    if any(c.low == ANY[0] for c in cells):
        return [ANY]
    cuts: list[Expr] = []
    empty = list(dict.fromkeys((c.low, c.high) for c in cells if expression(c.high - c.low).is_negative))
    for x in {y for c in cells for y in (c.low, c.high + 1) if (c.low, c.high) not in empty}:
        i = 0
        while i < len(cuts) and _before(cuts[i], x):
            i += 1
        cuts.insert(i, x)
    return empty + [(a, b - 1) for a, b in pairwise(cuts)]


def _before(a: Expr, b: Expr) -> bool:
    """Return whether ``a <= b`` for two layers; raise ProgramError if this depends on the depth.

    If it is only known that ``a >= b``, the result is False.
    """
    gap = expression(b - a)
    if gap.is_nonnegative:
        return True
    if gap.is_negative or gap.is_nonpositive:
        return False
    raise ProgramError(
        f"a gradient changes its form at the layers {a} and {b}, whose order depends on the depth: give a "
        "depth that decides the order, such as a number"
    )


def _covers(c: _Cell, low: Expr, high: Expr) -> bool:
    """Return whether a cell, a gradient on a range of layers, holds on all of ``low`` to ``high``."""
    if (low, high) == (c.low, c.high):
        return True
    if expression(high - low).is_negative or expression(c.high - c.low).is_negative:
        return False
    return c.low == ANY[0] or (_before(c.low, low) and _before(high, c.high))


def _merged(cells: list[_Cell], axis: tuple[Symbol, ...]) -> list[_Cell]:
    """Return gradients on ranges of layers, with neighbouring ranges merged if the expressions agree.

    The ranges are given in ascending order. Expressions are compared as functions of the layer index, the
    first symbol of ``axis``; without it nothing is merged. The field ``constant`` of results is 1.
    """
    merged: list[_Cell] = []
    for c in cells:
        c = replace(c, constant=S.One)
        if merged and axis and _same(merged[-1], c, axis[0]):
            wide = merged[-1] if merged[-1].family else c
            merged[-1] = _Cell(merged[-1].low, c.high, wide.value, family=True)
        else:
            merged.append(c)
    return merged


def _same(a: _Cell, b: _Cell, axis: Symbol) -> bool:
    """Return whether two cells (gradients on ranges of layers) are the same function of the layer."""
    if a.value == b.value and (a.family or b.family):
        return True
    for point, wide in ((a, b), (b, a)):
        if wide.family and not point.family and point.low == point.high:
            return bool(wide.value.subs(axis, point.low) == point.value.subs(axis, point.low))
    return False


def _joined(lines: list[tuple[_Solved, Any]], weight: GaussianWeight) -> list[tuple[_Solved, Any]]:
    """Return the terms of the update of a weight, those at neighbouring layers merged if they are the same.

    Each term is a pair: the layers of the use of the weight from which it comes, and the term. Terms are the
    same if they are one expression as functions of the layer.
    """
    joined: list[tuple[_Solved, Any]] = []
    for line in lines:
        for i, other in enumerate(joined):
            if (one := _one_update(weight, other, line)) is not None:
                joined[i] = one
                break
        else:
            joined.append(line)
    return joined


def _one_update(weight: Any, a: tuple[_Solved, Any], b: tuple[_Solved, Any]) -> tuple[_Solved, Any] | None:
    """Return one term of an update that equals ``a`` at one layer and ``b`` at its neighbours, or None.

    A term is a pair: the layers of the use of the weight from which it comes, and the expression. The roles
    of ``a`` and ``b`` may be exchanged. For a weight without layers, two uses are merged if one is a sum over
    an index and the other is its next or previous term. The result is None if there is no such term.
    """
    axis = weight.symbol.args[0] if weight.symbol.args else None
    for (one, u), (many, v) in ((a, b), (b, a)):
        beside = one.low in (many.low - 1, many.high + 1)
        if axis is not None and many.family and not one.family and beside:
            if _at(v, {axis: one.low}) != _at(u, {axis: one.low}):
                return None
            below = one.low == many.low - 1
            return replace(many, **{"low" if below else "high": one.low}), v
        if axis is None and len(v.over) == len(u.over) + 1:
            r = v.over[-1]
            for shift in (-1, 0, 1):
                w = _at(v, {r.index: r.index + shift})
                low, high = r.lower - shift, r.upper - shift
                for point, ends in ((low - 1, (low - 1, high)), (high + 1, (low, high + 1))):
                    if replace(_at(w, {r.index: point}), over=u.over) == u:
                        return many, replace(w, over=(*u.over, IndexRange(r.index, *ends)))
    return None


def _at(u: Any, at: dict[Any, Any]) -> Any:
    """Return a term of an update with other symbols or numbers for its indices, as ``at`` maps them.

    The ranges of its sums are not changed.
    """
    return replace(u.map(lambda e: e.subs(at)), over=u.over)
