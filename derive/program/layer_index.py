"""Index of layers of a program, found by its position in expressions, and renamed to ``ell``.

An index counts layers in three cases: it is the first argument of a layered field; it is the ``index`` of a
family of matrices; or it is the index of a family of vectors and selects the layer of their population.
:func:`with_layer_index` gives it the name ``ell``, which the theory uses. An ``ell`` that counts something
else, such as the positions of an ordered family, gets another name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from sympy import Expr, Sum, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import IndexRange, L, ell, expression, primed
from derive.program.language import GaussianMatrix, GaussianVector, Population
from derive.program.naming import free_name
from derive.program.parts import Definition, Parts, gaussian, parameter

AnyParts = TypeVar("AnyParts", bound=Parts)
Place = tuple[str, int]
"""The name of a function, and the position of one of its arguments."""


def with_layer_index(program: AnyParts) -> AnyParts:
    """Return the program in which the index of layers, and no other index, is called ``ell``.

    An index is one of layers if it is the first argument of a layered field or selects a member of a family
    of weights over layers. Definitions and weights may name it differently. An ``ell`` that counts something
    else is renamed. A definition with two indices of layers keeps both names. The same object is returned if
    layered fields and families of weights use ``ell``, and scalars and the loss do not contain it.
    """
    if not _may_differ(program):
        return program
    places, indices = (
        _places_of_layers(program),
        _indices((program.definitions, program.matrices, program.vectors)),
    )
    symbols = {x for e in _expressions([*vars(program).values()]) for x in e.free_symbols}
    taken = {x.name for x in symbols} | {primed(x).name for x in symbols} | program.names_in_theory
    other = Symbol(free_name("k", taken), integer=True)

    def written(part: Any) -> Any:
        """Return a part of the program with its index of layers called ``ell``."""
        change = _change(part, places, indices, other)
        return _renamed(part, change) if change else part

    return replace(
        program,
        definitions=tuple(map(written, program.definitions)),
        matrices=tuple(map(written, program.matrices)),
        vectors=tuple(map(written, program.vectors)),
        notation={written(e): name for e, name in program.notation.items()},
        loss=None if program.loss is None else written(program.loss),
    )


def _may_differ(program: Parts) -> bool:
    """Return whether layers have an index other than ``ell``, or ``ell`` may count something else."""
    layered = {x.name for x in program.fields if x.layered}
    for d in program.definitions:
        indices = {r.index for r in d.ranges}
        if d.name in layered:
            if any(x != ell for x in d.lhs.args[0].free_symbols & indices):
                return True
        elif any(x.name == ell.name for x in indices | _bound(d.rhs)):
            return True
    families = [w.index.index for w in map(gaussian, program.matrices) if w.index is not None]
    families += [r.index for v in map(parameter, program.vectors) for r in _layers_of(v)]
    loss = expression(program.loss or 0)
    return any(x != ell for x in families) or any(
        x.name == ell.name for x in loss.free_symbols | _bound(loss)
    )


def _bound(e: Any) -> set[Symbol]:
    """Return the indices of all sums in an expression."""
    return {x for total in expression(e).atoms(Sum) for x in total.bound_symbols}


def _layers_of(v: GaussianVector) -> Iterator[IndexRange]:
    """Yield the ranges of those indices of a family of vectors that select the layer of its population."""
    site = v.population.site
    yield from (r for r in v.indices if site is not None and expression(site).has(r.index))


def _places_of_layers(program: Parts) -> set[Place]:
    """Return the arguments of functions that count layers, as pairs (name of function, number of argument).

    They are those in layered fields, in families of weights over layers, and in scalars that have one value
    for each layer.
    """
    places = {(x.name, 0) for x in program.fields if x.layered}
    places |= {(w.name, 0) for w in map(gaussian, program.matrices) if w.index is not None}
    for v in map(parameter, program.vectors):
        layers = {r.index for r in _layers_of(v)}
        places |= {(v.name, k) for k, r in enumerate(v.indices) if r.index in layers}
    while True:
        more = {
            (d.name, k)
            for d in program.definitions
            if d.name in program.scalars
            for k, x in enumerate(d.lhs.args[:-1])
            if x.free_symbols & _layers_in(d, places)
        }
        if more <= places:
            return places
        places |= more


def _layers_in(part: Any, places: set[Place]) -> set[Symbol]:
    """Return the indices of layers in a part of a program.

    They are the indices of layers that have a range in the part (for an expression, its free symbols), or if
    there are none the summation indices that count layers. ``places`` are pairs (name of function, number of
    argument) of the arguments that count layers.
    """
    atoms = {a for e in _expressions([part]) for a in e.atoms(AppliedUndef)}
    read = ((str(a.func), k, x) for a in atoms for k, arg in enumerate(a.args) for x in arg.free_symbols)
    standing = {x for name, k, x in read if (name, k) in places}
    if isinstance(part, Expr):
        return standing & part.free_symbols - {L} or standing & _indices(part)
    indices_of_part = {r.index for r in part.ranges} if isinstance(part, Definition) else set[Symbol]()
    for w in _objects(part):
        if isinstance(w, GaussianVector):
            indices_of_part |= {r.index for r in w.indices}
            standing |= {r.index for r in _layers_of(w)}
        elif isinstance(w, GaussianMatrix) and w.index is not None:
            indices_of_part |= {w.index.index}
            standing |= {w.index.index}
    return standing & indices_of_part or standing & _indices(part)


def _change(part: Any, places: set[Place], indices: set[Symbol], other: Symbol) -> dict[Symbol, Symbol]:
    """Return the renaming of the index symbols in one part of a program, such as a definition.

    The index of layers becomes ``ell`` if there is exactly one, and another index that is called ``ell``
    becomes ``other``. ``places`` are the positions of layers in functions, and ``indices`` all indices of the
    program; a parameter called ``ell`` keeps its name.
    """
    layers = _layers_in(part, places)
    every = _indices(part) | {x for e in _expressions([part]) for x in e.free_symbols} & indices
    freed = {ell.name: other, primed(ell).name: primed(other)}
    change = {x: freed[x.name] for x in every - layers if x.name in freed}
    if len(layers) == 1:
        (layer,) = layers
        change |= {layer: ell} if layer != ell else {}
    return change


def _objects(x: Any, *, populations: bool = True) -> Iterator[Any]:
    """Yield a part of a program and all objects that it contains, but not those inside of training rules.

    Of a mapping only the keys are yielded. Without ``populations``, objects inside of populations are left
    out, too.
    """
    waiting = [x]
    while waiting:
        y = waiting.pop()
        yield y
        if isinstance(y, str | Expr) or (isinstance(y, Population) and not populations):
            continue
        if isinstance(y, tuple):
            waiting += y
        elif is_dataclass(y) and not isinstance(y, type) and not hasattr(y, "memory"):
            waiting += [getattr(y, f.name) for f in fields(y)]
        elif isinstance(y, Mapping):
            waiting += [*y]


def _expressions(parts: Iterable[Any]) -> Iterator[Expr]:
    """Yield every expression in parts of a program, except those of populations and of training rules."""
    for part in parts:
        yield from (x for x in _objects(part, populations=False) if isinstance(x, Expr))


def _indices(part: Any) -> set[Symbol]:
    """Return the indices that have a range, or a sum, in a part of a program."""
    indices = {x.index for x in _objects(part) if isinstance(x, IndexRange)}
    return indices | {x for e in _expressions([part]) for x in _bound(e)}


def _renamed(x: Any, change: Mapping[Symbol, Symbol]) -> Any:
    """Return a part of a program with its index symbols replaced as ``change`` maps them.

    Training rules are not changed, and the ratio of a family of populations stays a function of ``ell``.
    """
    if isinstance(x, Expr):
        return x.xreplace(dict(change))
    if isinstance(x, Population):
        return x if x.site is None else x.at(expression(x.site).xreplace(dict(change)))
    if isinstance(x, tuple):
        return tuple(_renamed(y, change) for y in x)
    if is_dataclass(x) and not isinstance(x, type) and not hasattr(x, "memory"):
        return replace(x, **{f.name: _renamed(getattr(x, f.name), change) for f in fields(x) if f.init})
    return x
