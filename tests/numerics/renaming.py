"""Renaming of a program: each name in all of its parts is replaced by a drawn one.

The names are those of fields, numbers, data, matrices, vectors, attributes, sources and populations, and of
symbols of numbers and indices. Names that the language itself gives (the time, the layer, the depth) are
kept.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from sympy import Basic, Function, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import primed
from derive.program import L, Population, Program, s, t
from derive.program.parts import gaussian

KEPT = {t, s, L}
"""Symbols of the language; in ratios of families of populations it is ``ell`` that stands for the layer."""


@dataclass(frozen=True)
class Renaming:
    """New names and new symbols by the old ones."""

    names: Mapping[str, str]
    symbols: Mapping[Symbol, Symbol]

    def named(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return arrays by their new names."""
        return {self.names.get(name, name): x for name, x in given.items()}

    def numbers(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return numbers by the new names of their symbols."""
        new = {x.name: y.name for x, y in self.symbols.items()}
        return {new.get(name, name): x for name, x in given.items()}


def renamed(program: Program, pool: Sequence[str], seed: int) -> tuple[Program, Renaming]:
    """Return the program with names drawn from a pool without replacement.

    They are drawn again while one is the name of the partner of an index, ``k_`` of ``k``, which is refused.
    """
    draw = random.Random(seed)
    called, symbols = _called(program), _symbols(program)
    free = [x for x in pool if x not in _results(program)]
    chosen = draw.sample(free, len(called) + len(symbols))
    while {primed(Symbol(x)).name for x in chosen[len(called) :]} & {*chosen}:
        chosen = draw.sample(free, len(chosen))
    drawn = iter(chosen)
    names = {name: next(drawn) for name in called}
    table: dict[Symbol, Symbol] = {}
    for x in symbols:
        table[x] = Symbol(next(drawn), **x.assumptions0)
        table[primed(x)] = primed(table[x])
    change = Renaming(names, table)
    return _written(program, change), change


def with_index(program: Program, index: Symbol, new: Symbol) -> Program:
    """Return the program with another symbol for an index and its partner."""
    return _written(program, Renaming({}, {index: new, primed(index): primed(new)}))


def with_names(program: Program, names: Mapping[str, str]) -> Program:
    """Return the program with new names of its parts, by their old names."""
    return _written(program, Renaming(names, {}))


def _results(program: Program) -> set[str]:
    """Return names that the program gives to correlations and responses."""
    responses = (w.responses or () for w in map(gaussian, program.matrices))
    return {*program.notation.values(), *(x for both in responses for x in both)}


def _called(program: Program) -> list[str]:
    """Return names of the parts that a program declares, in the order of their declaration."""
    found: dict[str, None] = {}

    def visit(x: Any) -> None:
        if isinstance(x, Basic):
            for a in sorted(x.atoms(AppliedUndef), key=str):
                found.setdefault(str(a.func))
        elif isinstance(x, str):
            found.setdefault(x)
        elif isinstance(x, tuple):
            for y in x:
                visit(y)
        elif is_dataclass(x) and not isinstance(x, type):
            for f in fields(x):
                if f.name != "responses" and not hasattr(x, "memory"):
                    visit(getattr(x, f.name))

    for f in fields(program):
        if f.name not in ("name", "notation", "rule"):
            visit(getattr(program, f.name))
    return list(found)


def _symbols(program: Program) -> list[Symbol]:
    """Return symbols of numbers and indices, without partners of indices and symbols of weights."""
    found: set[Symbol] = set()

    def seen(e: Any) -> Any:
        found.update(e.atoms(Symbol) if isinstance(e, Basic) else ())
        return e

    _rewritten(program, seen)
    called = set(_called(program))
    partners = {primed(x) for x in found}
    return sorted((x for x in found - KEPT - partners if x.name not in called), key=str)


def _written(program: Program, change: Renaming) -> Program:
    weights = {Symbol(old): Symbol(new) for old, new in change.names.items()}

    def put(e: Any) -> Any:
        if isinstance(e, str):
            return change.names.get(e, e)
        e = e.xreplace({**weights, **change.symbols})
        return e.replace(
            lambda x: isinstance(x, AppliedUndef) and str(x.func) in change.names,
            lambda x: Function(change.names[str(x.func)])(*x.args),
        )

    return _rewritten(program, put)


def _rewritten(program: Program, put: Callable[[Any], Any]) -> Program:
    """Return the program with all expressions and names changed, except its own and those of results."""

    def inside(x: Any, names: bool = True) -> Any:  # noqa: PLR0911 (one return for each kind of part)
        if isinstance(x, Basic):
            return put(x)
        if isinstance(x, str):
            return put(x) if names else x
        if isinstance(x, tuple):
            return tuple(inside(y, names) for y in x)
        if isinstance(x, Mapping):
            return {inside(k): v for k, v in x.items()}
        if isinstance(x, Population):
            family = replace(
                x, name=inside(x.name), ratio=x.ratio if x.formula is None else x.formula, site=None
            )
            return family if x.site is None else replace(family, formula=None).at(inside(x.site))
        if is_dataclass(x) and not isinstance(x, type):
            own = names and not hasattr(x, "memory")
            parts = {f.name: getattr(x, f.name) for f in fields(x) if f.init}
            return replace(x, **{k: v if k == "responses" else inside(v, own) for k, v in parts.items()})
        return x

    parts = {f.name: getattr(program, f.name) for f in fields(program)}
    return Program(**{name: x if name == "name" else inside(x) for name, x in parts.items()})
