"""Products of a matrix with a vector at shifted indices, written as fields that are read at these indices.

``q(p, t) = W @ phi(h(p + 1, t))`` becomes ``q_W(p, t) = W @ phi(h(p, t))`` and ``q(p, t) = q_W(p + 1, t)``.
The Gaussian source and the responses of a product then have the index of the vector, so that uses of one
matrix at several shifts, as in ``W @ phi(h(p, t)) + W @ phi(h(p + 1, t))``, have the same source at different
indices. Both derivations of a theory read a program in this form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sympy import Expr, Function, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import IndexRange, ell, t
from derive.program.language import Field, Product
from derive.program.naming import free_name
from derive.program.parts import Definition, gaussian
from derive.program.program import Program, member
from derive.theory.names import Vector, vector, whole_range


def products_at_plain_indices(program: Program) -> Program:
    """Return the program with a field for each product of a matrix with a vector at a shifted index.

    An index is shifted if the vector has it in an argument such as ``p + 1``, ``4 - p`` or ``p - r``.
    Products with families of matrices that have further indices than the layer, as in
    ``Sum(W(k) @ h(p + k, t), (k, -1, 1))``, vectors that contain ordered fields, and arguments with the
    position of an ordered field are not changed. If there is no such
    product, the same object is returned.
    """
    rewriting = _ProductRewriting(program)
    definitions = tuple(map(rewriting.definition, program.definitions))
    if not rewriting.fields:
        return program
    return replace(
        program,
        fields=(*program.fields, *rewriting.fields.values()),
        definitions=(*rewriting.products, *definitions),
    )


@dataclass(frozen=True)
class _ShiftedArguments:
    """Shifted arguments of a vector.

    ``indices`` maps each argument, such as ``p + 1``, to the index that replaces it; ``ranges`` are those of
    the indices of the vector after the replacement.
    """

    indices: Mapping[Expr, Symbol]
    ranges: tuple[IndexRange, ...]


class _ProductRewriting:
    """Rewriting of the products of one program; new fields and their definitions are collected."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.fields: dict[str, Field] = {}
        self.products: list[Definition] = []

    def definition(self, d: Definition) -> Definition:
        """Return a definition in which fields stand for the products with vectors at shifted indices."""
        replaced = {}
        for product in d.products():
            if (shifts := self.shifts(d, product)) is not None:
                replaced[product] = self.field(d, product, shifts)
        return replace(d, rhs=d.rhs.xreplace(replaced)) if replaced else d

    def shifts(self, d: Definition, product: Product) -> _ShiftedArguments | None:
        """Return the shifted arguments of a product's vector, or None if the product stays as it is."""
        matrix = gaussian(self.program.matrix_of(product))
        members = {r.index for r in d.members(product, matrix)}
        if matrix.others:
            return None  # a family is summed where it is applied
        ranges = d.ranges_of(product)
        v = vector(self.program, product.vector, ranges)
        indices: dict[Expr, Symbol] = {}
        for index, argument in zip(v.indices, v.arguments, strict=True):
            if (
                argument != index
                and not argument.free_symbols & members
                and not self.is_ordered(d, v, argument)
            ):
                indices.setdefault(argument, index)
        if not indices:
            return None
        plain = _at(product.vector, indices)
        kept = [r for r in ranges if r.index != ell and plain.has(r.index)]
        shifted = {x: a for a, x in indices.items()}
        whole = [
            whole_range(self.program, v.body, shifted[r.index], r) if r.index in shifted else r for r in kept
        ]
        return _ShiftedArguments(indices, tuple(whole))

    def is_ordered(self, d: Definition, v: Vector, argument: Expr) -> bool:
        """Return whether ``v`` has an ordered field, or ``argument`` contains the position of one.

        In the second case ``d`` is the definition of the ordered field.
        """
        home = self.program.field_of(d.name)
        steps = d.lhs.args[0].free_symbols if home is not None and home.ordered else set()
        fields = (self.program.field_of(str(a.func)) for a in v.body.atoms(AppliedUndef))
        return bool(argument.free_symbols & steps) or any(x is not None and x.ordered for x in fields)

    def field(self, d: Definition, product: Product, shifts: _ShiftedArguments) -> Expr:
        """Return a new field at the shifted indices; it replaces the product in the definition ``d``.

        The new field is the product with its vector at plain indices, such as p instead of ``p + 1``. The
        field and its definition are recorded.
        """
        program, matrix = self.program, gaussian(self.program.matrix_of(product))
        home = matrix.cols if product.transposed else matrix.rows
        site = home.site
        if site is not None and matrix.index is not None:
            site = site.subs(matrix.index.index, member(matrix, product))
        name = free_name(f"{d.name}_{matrix.name}", program.names_in_theory | set(self.fields))
        layer = () if site is None else (site,)
        place = Function(name)(*layer, *[r.index for r in shifts.ranges], t)
        plain = product.func(product.matrix, product.transposed, _at(product.vector, shifts.indices))
        layers = tuple(r for r in d.ranges if r.index == ell and (place.has(ell) or plain.has(ell)))
        self.fields[name] = Field(name, replace(home, site=None), layered=site is not None)
        self.products.append(Definition(place, plain, (*layers, *shifts.ranges)))
        return place.xreplace({x: a for a, x in shifts.indices.items()})


def _at(vector: Expr, indices: Mapping[Expr, Symbol]) -> Expr:
    """Return a vector with its shifted arguments replaced by indices."""
    return vector.xreplace(dict(indices))
