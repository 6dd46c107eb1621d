"""The parts of a program: definitions, weights, data and names, with functions that look them up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

from sympy import Dummy, Expr, Function, S, Sum, Symbol, preorder_traversal
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import IndexRange, L, expression, s, spelled, t
from derive.errors import ProgramError
from derive.program.naming import functions_in
from derive.program.nonlinear import NonlinearRule
from derive.program.rules import TrainingRule, tables_of
from derive.program.training import Parametrization, TrainedMatrix, TrainedVector
from derive.program.words import (
    Attribute,
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    Population,
    Product,
    Rewritable,
    terms,
)


class Named(Mapping[Expr, str]):
    """Names of expressions, as a value: it does not change and can be hashed.

    >>> Named({t: "time"})[t]
    'time'
    """

    def __init__(self, names: Mapping[Expr, str] | None = None) -> None:
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
    """``lhs = rhs`` at every step, for all indices in ``ranges``; with ``evolves``, ``d lhs/dt = rhs``."""

    lhs: AppliedUndef
    rhs: Expr
    ranges: tuple[IndexRange, ...] = ()
    evolves: bool = False

    @property
    def name(self) -> str:
        """The name of the field that is defined."""
        return str(self.lhs.func)

    def products(self) -> list[Product]:
        """The matrix products on the right-hand side."""
        return sorted(self.rhs.atoms(Product), key=spelled)

    def summed_over(self, product: Product) -> tuple[IndexRange, ...]:
        """The ranges over which a product is added up."""
        found = next((x for x in terms(self.rhs) if x.has(product)), S.Zero)
        return tuple(IndexRange(*lim) for lim in found.limits) if isinstance(found, Sum) else ()

    def ranges_of(self, product: Product) -> tuple[IndexRange, ...]:
        """The ranges of the indices of a product's vector, those that choose the matrix left out.

        They are those of the definition, and those over which it adds the product up.
        """
        sums = (r for r in self.summed_over(product) if r.index not in product.matrix.args)
        return (*self.ranges, *sums)

    def members(self, product: Product, matrix: GaussianMatrix) -> tuple[IndexRange, ...]:
        """Return the ranges of the indices that choose members of a family of matrices.

        Each of these indices is summed over or is an index of the defined quantity.  Raises
        :class:`ProgramError` where a definition uses some members alone.
        """
        if not matrix.others:
            return ()
        known = {r.index: r for r in (*self.ranges, *self.summed_over(product))}
        own = product.matrix.args[-len(matrix.others) :]
        found = tuple(known[x] for x in own if x in known)
        pairs = zip(found, matrix.others, strict=False)
        alike = all((x.lower, x.upper) == (r.lower, r.upper) for x, r in pairs)
        if not alike or len(set(found)) < len(own):
            over = ", ".join(str(r.limits) for r in matrix.others)
            raise ProgramError(
                f"{self.lhs} uses {product.matrix}: use all members of {matrix.name} over {over}, in a sum "
                f"or at an index of {self.lhs}, or make them matrices of their own"
            )
        return found


@dataclass(frozen=True)
class Parts(Rewritable):
    """The parts of a program, and functions that look them up; :class:`Program` checks that they fit."""

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

    # -- looking things up --------------------------------

    def field_of(self, name: str) -> Field | None:
        """The field called ``name``, or None."""
        return next((x for x in self.fields if x.name == name), None)

    def given_of(self, name: str) -> GivenVector | None:
        """The given vector called ``name``, or None."""
        return next((x for x in self.given if x.name == name), None)

    def attribute_of(self, name: str) -> Attribute | None:
        """The attribute called ``name``, or None."""
        return next((x for x in self.attributes if x.name == name), None)

    @cached_property
    def unit_indices(self) -> frozenset[Symbol]:
        """The indices of the unit itself, at which attributes are taken."""
        names = {x.name for x in self.attributes}
        atoms = [a for d in self.definitions for a in d.rhs.atoms(AppliedUndef)]
        return frozenset(a.args[0] for a in atoms if str(a.func) in names)

    def matrix_of(self, product: Product) -> GaussianMatrix | TrainedMatrix:
        """The matrix a product uses.  Raises :class:`ProgramError` if the program has none of that name."""
        name = str(product.matrix.func) if product.matrix.args else str(product.matrix)
        for m in self.matrices:
            if gaussian(m).name == name:
                return m
        raise ProgramError(f"matrix {name} is applied but not among the program's matrices")

    def site_of(self, vector: Expr) -> Population:
        """The population on which ``vector`` lives.

        Raises :class:`ProgramError` when its fields live on different ones.
        """
        found: dict[tuple[str, Expr | None], Population] = {}
        for own in (v for v in map(parameter, self.vectors) if v.uses(vector)):
            found[(own.population.name, own.population.site)] = own.population
        for atom in sorted(vector.atoms(AppliedUndef), key=spelled):
            name = str(atom.func)
            if (x := self.field_of(name)) is not None:
                population = x.population.at(atom.args[0]) if x.layered else x.population
            elif (v := self.given_of(name) or self.attribute_of(name)) is not None:
                population = v.population
            else:
                continue
            if population.shared and (population.name, None) in found:
                continue  # one of several layers of the same units; the first one names the place
            found[(population.name, None if population.shared else population.site)] = population
        if len(found) != 1:
            places = sorted(f"{n}({i})" if i is not None else n for n, i in found) or ["none"]
            raise ProgramError(
                f"{vector} must live on one population, but its fields live on: {', '.join(places)}"
            )
        return next(iter(found.values()))

    def trained(self) -> Iterator[TrainedMatrix | TrainedVector]:
        """Every weight that training moves."""
        for w in (*self.matrices, *self.vectors):
            if isinstance(w, TrainedMatrix | TrainedVector):
                yield w

    @property
    def noisy(self) -> bool:
        """Whether the rule of any weight adds noise."""
        return any(w.rule.noise(t, s) != 0 for w in self.trained())

    @property
    def has_nonlinear_rules(self) -> bool:
        """Whether a weight moves by a rule that is not linear in the updates."""
        return any(isinstance(w.rule, NonlinearRule) for w in self.trained())

    @property
    def names_in_theory(self) -> frozenset[str]:
        """The names that a theory takes over from the program: those of weights and given vectors are not."""
        known = {*self.scalars, *self.constants, *self.tables, *self.notation.values()}
        known |= {x.name for x in self.fields} | {x.name for x in self.attributes}
        known |= {x.kernel for x in self.given}
        said = [d.rhs for d in self.definitions]
        said += [u.coefficient for w in self.trained() for u in w.update.terms]
        weights = {gaussian(m).name for m in self.matrices} | {parameter(v).name for v in self.vectors}
        functions = set[str]().union(*map(functions_in, said))
        return frozenset(known | functions - weights - {x.name for x in self.given})

    @property
    def tables(self) -> frozenset[str]:
        """The names of the functions that rules hold, such as a schedule of learning rates."""
        rules = [w.rule for w in self.trained()] or [self.rule]
        nonlinear = [x.tables for x in rules if isinstance(x, NonlinearRule)]
        found = [tables_of(x) for x in rules if hasattr(x, "noise") and not isinstance(x, NonlinearRule)]
        return frozenset[str]().union(*nonlinear, *found)

    # -- the same, written otherwise --------------------------------

    def drop_idle_indices(self) -> Self:
        """The same program with every index removed from fields that do not depend on it.

        In a linear network this finds that the backward fields are the same for all samples.  The least set
        of dependences consistent with the definitions is kept: an index stays only if data carry it in, or if
        the loss would lose it, which is summed over its indices.
        """
        kept = _needed_positions(self)

        def prune(e: Any) -> Any:
            e = expression(e)
            table = {
                a: Function(str(a.func))(*[x for i, x in enumerate(a.args) if i in kept[str(a.func)]])
                for a in e.atoms(AppliedUndef)
                if str(a.func) in kept
            }
            return e.xreplace(table) if table else e

        pruned = Parts(**vars(self)).map(prune)  # to be checked when it is complete
        slim = tuple(
            replace(d, ranges=tuple(r for r in d.ranges if d.lhs.has(r.index) or d.rhs.has(r.index)))
            for d in pruned.definitions
        )
        return type(self)(**vars(replace(pruned, definitions=slim)))


def gaussian(m: GaussianMatrix | TrainedMatrix) -> GaussianMatrix:
    """The matrix at initialisation."""
    return m.initial if isinstance(m, TrainedMatrix) else m


def parameter(v: GaussianVector | TrainedVector) -> GaussianVector:
    """The vector at initialisation."""
    return v.initial if isinstance(v, TrainedVector) else v


# -- indices that nothing depends on ----


def _needed_positions(program: Parts) -> dict[str, set[int]]:
    """The places of the indices that each field or number keeps.

    They are layers, times, places at which a definition has an integer, as ``m(2, t)``, and what data carry
    in.
    """
    names = {x.name for x in program.fields} | set(program.scalars)
    kept: dict[str, set[int]] = {n: set() for n in names}
    layered = {x.name for x in program.fields if x.layered or x.ordered}
    for d in program.definitions:
        first = {0} if d.name in layered else set()
        kept[d.name] |= first | {i for i, x in enumerate(d.lhs.args) if x == t or not x.is_Symbol}

    kept = _carried_in(program, kept)
    loss = expression(program.loss or 0)
    for x in {r.index for d in program.definitions for r in d.ranges} & loss.free_symbols:
        if not _depends(loss, x, kept):  # the loss is summed over x, so that equal terms count as often
            for a in loss.atoms(AppliedUndef):
                kept.get(str(a.func), set()).update(i for i, y in enumerate(a.args) if y.has(x))
    return _carried_in(program, kept)


def ranges_of_loss(lines: Iterable[Definition], loss: Expr) -> tuple[IndexRange, ...]:
    """Return what the free indices of a loss are summed over.

    An index runs over what it does in the numbers that the loss reads at it; one that they do not have, as
    of a weight of samples, over what it does in the first definition that has it.  Definitions may differ:
    of layers that share their weights, ``h(k + 1)`` is computed for one value of k less than an output
    ``f(k)`` of each.
    """
    lines = tuple(lines)
    read: dict[Symbol, IndexRange] = {}
    for a in sorted(loss.atoms(AppliedUndef), key=str):
        for d in lines:
            if d.name == str(a.func) and len(a.args) == len(d.lhs.args):
                own = {r.index: r for r in d.ranges}
                pairs = ((x, own.get(y)) for x, y in zip(a.args, d.lhs.args, strict=True))
                for x, r in pairs:
                    if r is not None and isinstance(x, Symbol) and x in loss.free_symbols:
                        read.setdefault(x, replace(r, index=x))
    for r in (r for d in lines for r in d.ranges if r.index in loss.free_symbols):
        read.setdefault(r.index, r)
    order = dict.fromkeys(r.index for d in lines for r in d.ranges)
    return tuple(read[x] for x in [*(x for x in order if x in read), *(x for x in read if x not in order)])


def _carried_in(program: Parts, kept: Mapping[str, set[int]]) -> dict[str, set[int]]:
    """The places that are kept, and those that definitions need because of them."""
    found = {name: set(places) for name, places in kept.items()}
    open_ones = [(d, i, x) for d in program.definitions for i, x in enumerate(d.lhs.args) if x.is_Symbol]
    while True:
        needed = [
            (d.name, i) for d, i, x in open_ones if i not in found[d.name] and _depends(d.rhs, x, found)
        ]
        if not needed:
            return found
        for name, i in needed:
            found[name].add(i)


def _depends(e: Expr, index: Expr, kept: Mapping[str, set[int]]) -> bool:
    """Does an expression depend on an index, by itself or in an argument that is kept?"""
    if e.replace(lambda x: isinstance(x, AppliedUndef | Product), lambda _: Dummy()).has(index):
        return True  # it stands for itself
    atoms = ((str(a.func), a.args) for a in preorder_traversal(e) if isinstance(a, AppliedUndef))
    used = ((n, {i for i, x in enumerate(xs) if x.has(index) and x != t}) for n, xs in atoms)
    return any(places & kept[n] if n in kept else places for n, places in used)
