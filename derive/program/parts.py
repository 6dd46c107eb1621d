"""Parts of a program: definitions, weights, data and names, with functions that look them up.

:class:`Parts` holds them; :class:`~derive.program.program.Program` checks that they are consistent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

from sympy import Dummy, Expr, Function, S, Sum, Symbol, preorder_traversal
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import IndexRange, L, expression, s, spelled, t
from derive.errors import ProgramError
from derive.program.language import (
    Attribute,
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    Mean,
    Population,
    Product,
    Rewritable,
    terms,
)
from derive.program.naming import functions_in
from derive.program.nonlinear import NonlinearRule
from derive.program.rules import TrainingRule, tables_of
from derive.program.training import Parametrization, TrainedMatrix, TrainedVector


class Named(Mapping[Expr, str]):
    """Immutable, hashable mapping from expressions to names.

    >>> Named({t: "time"})[t]
    'time'
    """

    def __init__(self, names: Mapping[Expr, str] | None = None) -> None:
        """Store a copy of the names."""
        self._names: dict[Expr, str] = dict(names or {})

    def __getitem__(self, key: Expr) -> str:
        return self._names[key]

    def __iter__(self) -> Iterator[Expr]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __hash__(self) -> int:
        return hash(frozenset(self._names.items()))

    def __repr__(self) -> str:
        return repr(self._names)


@dataclass(frozen=True)
class Definition(Rewritable):
    """Definition ``lhs = rhs`` at every step, for all indices in ``ranges``.

    Parameters
    ----------
    lhs : AppliedUndef
        The field or scalar at its indices and time.
    rhs : Expr
        The expression.
    ranges : tuple of IndexRange
        The ranges of the indices.
    evolves : bool
        Whether the definition is the differential equation ``d lhs/dt = rhs``.
    """

    lhs: AppliedUndef
    rhs: Expr
    ranges: tuple[IndexRange, ...] = ()
    evolves: bool = False

    @property
    def name(self) -> str:
        """The name of the field or scalar."""
        return str(self.lhs.func)

    def products(self) -> list[Product]:
        """Return the matrix products on the right-hand side.

        Returns
        -------
        list of Product
            The products in a fixed order.
        """
        return sorted(self.rhs.atoms(Product), key=spelled)

    def summed_over(self, product: Product) -> tuple[IndexRange, ...]:
        """Return the ranges over which a product is summed.

        Only a sum that is a term of the right-hand side is searched, not one with a factor in front.

        Parameters
        ----------
        product : Product
            A product of the right-hand side.

        Returns
        -------
        tuple of IndexRange
            The ranges of the sum, empty without a sum.
        """
        term = next((x for x in terms(self.rhs) if x.has(product)), S.Zero)
        return tuple(IndexRange(*lim) for lim in term.limits) if isinstance(term, Sum) else ()

    def ranges_of(self, product: Product) -> tuple[IndexRange, ...]:
        """Return the ranges of the definition and those of the sum over a product.

        Indices of the sum that select a member of a family of matrices are left out.

        Parameters
        ----------
        product : Product
            A product of the right-hand side.

        Returns
        -------
        tuple of IndexRange
            The ranges.
        """
        sums = (r for r in self.summed_over(product) if r.index not in product.matrix.args)
        return (*self.ranges, *sums)

    def members(self, product: Product, matrix: GaussianMatrix) -> tuple[IndexRange, ...]:
        """Return the ranges of the indices, other than that of layers, that select members of a family.

        Each of these indices is summed over, or is an index of the defined quantity.

        Parameters
        ----------
        product : Product
            A product of the right-hand side.
        matrix : GaussianMatrix
            The family of its matrix.

        Returns
        -------
        tuple of IndexRange
            The ranges, empty for a single matrix and for a family over layers only.

        Raises
        ------
        ProgramError
            If the definition uses some members only.
        """
        if not matrix.others:
            return ()
        known = {r.index: r for r in (*self.ranges, *self.summed_over(product))}
        arguments = product.matrix.args[-len(matrix.others) :]
        selected = tuple(known[x] for x in arguments if x in known)
        pairs = zip(selected, matrix.others, strict=False)
        alike = all((x.lower, x.upper) == (r.lower, r.upper) for x, r in pairs)
        if not alike or len(set(selected)) < len(arguments):
            over = ", ".join(str(r.limits) for r in matrix.others)
            raise ProgramError(
                f"{self.lhs} uses {product.matrix}: a definition must use all members of {matrix.name}, "
                f"over {over}, in a sum or at an index of {self.lhs}; use all members, or declare separate "
                "matrices"
            )
        return selected


@dataclass(frozen=True)
class Parts(Rewritable):
    """Parts of a program (fields, definitions, weights, data, loss, names), with functions that look them up.

    They are not checked for consistency; the subclass Program does that.
    """

    name: str
    rule: TrainingRule
    fields: tuple[Field, ...]
    definitions: tuple[Definition, ...]
    matrices: tuple[GaussianMatrix | TrainedMatrix, ...] = ()
    vectors: tuple[GaussianVector | TrainedVector, ...] = ()
    given: tuple[GivenVector, ...] = ()
    attributes: tuple[Attribute, ...] = ()
    scalars: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    notation: Mapping[Expr, str] = Named()
    scale: Expr = S.One
    depth: Expr = L
    loss: Expr | None = None
    descent: Parametrization | None = None

    # -- look-up by name or site --------------------

    def field_of(self, name: str) -> Field | None:
        """Return the field of this name, or None."""
        return next((x for x in self.fields if x.name == name), None)

    def given_of(self, name: str) -> GivenVector | None:
        """Return the given vector of this name, or None."""
        return next((x for x in self.given if x.name == name), None)

    def attribute_of(self, name: str) -> Attribute | None:
        """Return the attribute of this name, or None."""
        return next((x for x in self.attributes if x.name == name), None)

    @cached_property
    def unit_indices(self) -> frozenset[Symbol]:
        """The index symbols that number the units of a population.

        Only attributes, constants of each unit such as the eigenvalue ``lamda(k)``, are written with such an
        index.
        """
        names = {x.name for x in self.attributes}
        atoms = [a for d in self.definitions for a in d.rhs.atoms(AppliedUndef)]
        return frozenset(a.args[0] for a in atoms if str(a.func) in names)

    def matrix_of(self, product: Product) -> GaussianMatrix | TrainedMatrix:
        """Return the matrix of a product; raise :class:`ProgramError` if the program does not have it."""
        name = str(product.matrix.func) if product.matrix.args else str(product.matrix)
        for m in self.matrices:
            if gaussian(m).name == name:
                return m
        raise ProgramError(
            f"the matrix {name} is applied to a vector, but the program has no matrix of this name: add "
            "the matrix to the matrices of the program"
        )

    def site_of(self, vector: Expr) -> Population:
        """Return the population on whose units a vector is defined, at its layer if it is one of a family.

        It is read from the fields, given vectors, attributes and weights in ``vector``. Raises
        :class:`ProgramError` if these belong to different populations, or to layers with different units, or
        if there are none.
        """
        populations: dict[tuple[str, Expr | None], Population] = {}
        for weight in (v for v in map(parameter, self.vectors) if v.uses(vector)):
            populations[(weight.population.name, weight.population.site)] = weight.population
        for atom in sorted(vector.atoms(AppliedUndef), key=spelled):
            name = str(atom.func)
            if (x := self.field_of(name)) is not None:
                population = x.population.at(atom.args[0]) if x.layered else x.population
            elif (v := self.given_of(name) or self.attribute_of(name)) is not None:
                population = v.population
            else:
                continue
            if population.shared and (population.name, None) in populations:
                # Layers that share their units are one population. The first layer found stands for it.
                continue
            populations[(population.name, None if population.shared else population.site)] = population
        if len(populations) != 1:
            places = sorted(f"{n}({i})" if i is not None else n for n, i in populations) or ["none"]
            raise ProgramError(
                f"{vector} must be a vector of one population, but its fields, weights, data and "
                f"attributes belong to: {', '.join(places)}"
            )
        return next(iter(populations.values()))

    def trained(self) -> Iterator[TrainedMatrix | TrainedVector]:
        """Yield every trained weight."""
        for w in (*self.matrices, *self.vectors):
            if isinstance(w, TrainedMatrix | TrainedVector):
                yield w

    @property
    def noisy(self) -> bool:
        """Whether the rule of any weight adds noise."""
        return any(w.rule.noise(t, s) != 0 for w in self.trained())

    @property
    def has_nonlinear_rules(self) -> bool:
        """Whether the rule of any weight is nonlinear in the updates.

        Rules whose steps are rewritten as updates (:mod:`derive.program.outer_steps`) do not count.
        """
        return any(isinstance(w.rule, NonlinearRule) for w in self.trained())

    @property
    def names_in_theory(self) -> frozenset[str]:
        """The names that a theory takes over from the program, without those of weights and given vectors."""
        known = {*self.scalars, *self.constants, *self.tables, *self.notation.values()}
        known |= {x.name for x in self.fields} | {x.name for x in self.attributes}
        known |= {x.kernel for x in self.given}
        expressions = [d.rhs for d in self.definitions]
        expressions += [expression(u.coefficient) for w in self.trained() for u in w.update.terms]
        weights = {gaussian(m).name for m in self.matrices} | {parameter(v).name for v in self.vectors}
        functions = set[str]().union(*map(functions_in, expressions))
        return frozenset(known | functions - weights - {x.name for x in self.given})

    @property
    def tables(self) -> frozenset[str]:
        """The names of functions of time in training rules, such as a schedule of learning rates.

        Without trained weights they are those of the program's own rule.
        """
        rules = [w.rule for w in self.trained()] or [self.rule]
        of_nonlinear_rules = [x.tables for x in rules if isinstance(x, NonlinearRule)]
        of_linear_rules = [
            tables_of(x) for x in rules if hasattr(x, "noise") and not isinstance(x, NonlinearRule)
        ]
        return frozenset[str]().union(*of_nonlinear_rules, *of_linear_rules)

    # -- rewriting --------------------------------

    def drop_idle_indices(self) -> Self:
        """Return the program with every index removed from fields and scalars that do not depend on it.

        In a linear network, for example, the backward fields are the same for all samples. The smallest set
        of dependences that is consistent with the definitions is kept: a quantity keeps an index if data in
        its definition depend on it, directly or through other quantities, or if the loss, which is summed
        over its indices, would lose it. The layer of a field and the time are always kept.
        """
        used_positions = _needed_positions(self)

        def prune(e: Any) -> Any:
            """Return an expression whose fields and scalars have only the arguments on which they depend."""
            e = expression(e)
            table = {
                a: Function(str(a.func))(
                    *[x for i, x in enumerate(a.args) if i in used_positions[str(a.func)]]
                )
                for a in e.atoms(AppliedUndef)
                if str(a.func) in used_positions
            }
            return e.xreplace(table) if table else e

        # The ranges still contain the indices that were removed, which a Program would refuse. Parts are used
        # at this point, because they are not checked.
        pruned = Parts(**vars(self)).map(prune)
        slim = tuple(
            replace(d, ranges=tuple(r for r in d.ranges if d.lhs.has(r.index) or d.rhs.has(r.index)))
            for d in pruned.definitions
        )
        return type(self)(**vars(replace(pruned, definitions=slim)))


def gaussian(m: GaussianMatrix | TrainedMatrix) -> GaussianMatrix:
    """Return a matrix as it is at initialisation: ``initial`` of a trained one, else the matrix itself."""
    return m.initial if isinstance(m, TrainedMatrix) else m


def parameter(v: GaussianVector | TrainedVector) -> GaussianVector:
    """Return a vector of weights as it is at initialisation: ``initial`` of a trained one, else itself."""
    return v.initial if isinstance(v, TrainedVector) else v


def nested_products(d: Definition) -> Iterator[str]:
    """Yield a message for each matrix of a definition that is applied to another matrix product.

    Averages are not searched, because each of them becomes a number.
    """
    for product in d.products():
        vector = product.vector.replace(lambda e: isinstance(e, Mean), lambda _: Dummy())
        inner = [x for x in sorted(vector.atoms(Product), key=spelled) if not x.vector.has(Product)]
        if inner:
            matrix = f"{product.matrix}.T" if product.transposed else str(product.matrix)
            yield (
                f"{d.lhs} applies {matrix} to {product.vector}, which contains a matrix product: define a "
                f"field that is {inner[0]}, and use that field in its place"
            )


def ranges_of_family(w: GaussianMatrix | GaussianVector) -> tuple[IndexRange, ...]:
    """Return the ranges of the indices of a family of weights; empty for a single weight."""
    return w.indices if isinstance(w, GaussianVector) else ((w.index,) if w.index else ()) + w.others


# -- indices on which no quantity depends ----


def _needed_positions(program: Parts) -> dict[str, set[int]]:
    """Return, for each field or scalar by name, the positions of the arguments on which it depends.

    These are the layer, the time, positions at which a definition has no plain symbol, as ``m(2, t)``,
    positions at which several definitions have different ranges, and those on which data depend, directly or
    through other quantities. Indices over which the loss is summed
    are kept too if the loss would otherwise not depend on them.
    """
    names = {x.name for x in program.fields} | set(program.scalars)
    used_positions: dict[str, set[int]] = {n: set() for n in names}
    layered = {x.name for x in program.fields if x.layered or x.ordered}
    for d in program.definitions:
        first = {0} if d.name in layered else set()
        used_positions[d.name] |= first | {i for i, x in enumerate(d.lhs.args) if x == t or not x.is_Symbol}
        used_positions[d.name] |= _positions_of_parts(program, d.name)

    used_positions = _with_dependences(program, used_positions)
    loss = expression(program.loss or 0)
    for x in {r.index for d in program.definitions for r in d.ranges} & loss.free_symbols:
        # The loss is summed over x if its functions have the index x. If their values do not depend on x,
        # they keep this index all the same, because without it the loss would lose the sum.
        if not _depends(loss, x, used_positions):
            for a in loss.atoms(AppliedUndef):
                used_positions.get(str(a.func), set()).update(i for i, y in enumerate(a.args) if y.has(x))
    return _with_dependences(program, used_positions)


def _positions_of_parts(program: Parts, name: str) -> set[int]:
    """Return the positions of arguments at which the definitions of a quantity have different ranges.

    An example is ``z(p)``, which is defined for p = 1..2 by one expression and for p = 3..4 by another one.
    """
    parts = [d for d in program.definitions if d.name == name]
    ranges = [{r.index: (r.lower, r.upper) for r in d.ranges} for d in parts]
    counts = range(min(len(d.lhs.args) for d in parts))
    return {
        i for i in counts if len({at.get(d.lhs.args[i]) for d, at in zip(parts, ranges, strict=True)}) > 1
    }


def ranges_of_loss(lines: Iterable[Definition], loss: Expr) -> tuple[IndexRange, ...]:
    """Return the ranges over which the free indices of a loss are summed.

    If a scalar or field of the loss has the index, the range is that in the definition of this quantity. For
    another index, such as that of a weight ``rho(mu)`` of samples, it is that of the first definition with
    this index. Definitions may have different ranges of one index: if layers k share their weights, the
    definition of ``h(k + 1)`` holds for one value of k less than that of an output ``f(k)`` of each layer.
    """
    lines = tuple(lines)
    ranges_by_index: dict[Symbol, IndexRange] = {}
    for a in sorted(loss.atoms(AppliedUndef), key=str):
        for d in lines:
            if d.name == str(a.func) and len(a.args) == len(d.lhs.args):
                ranges_of_line = {r.index: r for r in d.ranges}
                pairs = ((x, ranges_of_line.get(y)) for x, y in zip(a.args, d.lhs.args, strict=True))
                for x, r in pairs:
                    if r is not None and isinstance(x, Symbol) and x in loss.free_symbols:
                        ranges_by_index.setdefault(x, replace(r, index=x))
    for r in (r for d in lines for r in d.ranges if r.index in loss.free_symbols):
        ranges_by_index.setdefault(r.index, r)
    order = dict.fromkeys(r.index for d in lines for r in d.ranges)
    return tuple(
        ranges_by_index[x]
        for x in [
            *(x for x in order if x in ranges_by_index),
            *(x for x in ranges_by_index if x not in order),
        ]
    )


def _with_dependences(program: Parts, used_positions: Mapping[str, set[int]]) -> dict[str, set[int]]:
    """Return ``used_positions`` (of arguments, by name) with the positions that definitions then use too.

    If the right-hand side of a definition depends on an index, the defined quantity needs the position of
    this index. This is repeated until nothing changes.
    """
    positions = {name: set(places) for name, places in used_positions.items()}
    open_ones = [(d, i, x) for d in program.definitions for i, x in enumerate(d.lhs.args) if x.is_Symbol]
    while True:
        needed = [
            (d.name, i)
            for d, i, x in open_ones
            if i not in positions[d.name] and _depends(d.rhs, x, positions)
        ]
        if not needed:
            return positions
        for name, i in needed:
            positions[name].add(i)


def _depends(e: Expr, index: Expr, used_positions: Mapping[str, set[int]]) -> bool:
    """Return whether an expression depends on ``index``: as a number, or in an argument that matters.

    ``used_positions`` maps the names of fields and scalars to the positions of arguments that matter. All
    arguments of other functions matter.
    """
    if e.replace(lambda x: isinstance(x, AppliedUndef | Product), lambda _: Dummy()).has(index):
        return True  # the index occurs outside of functions and matrix products, as a number
    atoms = ((str(a.func), a.args) for a in preorder_traversal(e) if isinstance(a, AppliedUndef))
    used = ((n, {i for i, x in enumerate(xs) if x.has(index) and x != t}) for n, xs in atoms)
    return any(places & used_positions[n] if n in used_positions else places for n, places in used)
