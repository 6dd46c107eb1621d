"""Names in a program: names of users are checked, and derived names avoid them.

All that a program declares has its own name, a Python identifier. Gradients, readouts, sources and order
parameters are named automatically, with a number behind the name if the user has taken it.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from sympy import Expr, Sum, Symbol, sympify
from sympy.core.function import AppliedUndef, Subs

from derive.calculus.symbols import IndexRange, L, P, ell, expression, mu, primed, s, spelled, t
from derive.program.language import Product

NamedObject = TypeVar("NamedObject", bound=Hashable)
Declared = tuple[str, Any]
"""Kind of a declared object, such as "field", and its name."""

MEANINGS = {
    t: "the time",
    s: "the second time of correlations",
    ell: "the index of layers",
    L: "the number of layers",
    mu: "the index of samples",
    P: "the number of samples",
}
"""Symbols of the language, whose names a vector of weights or a matrix cannot have."""


def free_name(name: str, taken: Collection[str]) -> str:
    """Return ``name``, or if it is taken the first of ``name_2``, ``name_3``, ... that is not.

    >>> free_name("g", {"h"}), free_name("g", {"g", "g_2"})
    ('g', 'g_3')
    """
    found, count = name, 1
    while found in taken:
        count += 1
        found = f"{name}_{count}"
    return found


def unique_names(
    natural: Iterable[tuple[NamedObject, str]], taken: Collection[str]
) -> dict[NamedObject, str]:
    """Return a unique name for each key: the natural one for the first key that has it, if it is free.

    >>> unique_names([("a", "C_hg"), ("b", "C_hg"), ("c", "Phi")], {"Phi"})
    {'a': 'C_hg', 'b': 'C_hg_2', 'c': 'Phi_2'}
    """
    pairs = list(natural)
    wished = {name for _, name in pairs}
    used, found = set(taken), dict[NamedObject, str]()
    for key, name in pairs:
        found[key] = name if name not in used else free_name(name, used | wished)
        used.add(found[key])
    return found


def name_conflicts(
    declared: Sequence[Declared],
    ranges: Iterable[IndexRange],
    said: Iterable[Expr],
    between: Collection[Symbol] = (),
) -> Iterator[str]:
    """Yield a message for each collision of names in a program or network.

    ``declared`` are its fields, weights, constants, ...; ``ranges`` those of its indices, and ``said`` its
    expressions.
    """
    kinds: dict[str, str] = {}
    for kind, name in declared:
        if not isinstance(name, str) or not name.isidentifier():
            yield f"{name!r} is no name of a {kind}: use letters, digits and underscores, not a digit first"
        elif name in kinds:
            both = f"two {_plural(kind)}" if kinds[name] == kind else f"a {kinds[name]} and a {kind}"
            yield f"{name} is the name of {both}: give one of them another name"
        else:
            kinds[name] = kind
    ranges, said = list(ranges), list(said)
    for r in ranges:
        if r.index in expression(r.upper).free_symbols | expression(r.lower).free_symbols:
            yield f"the index {r.index} is called like an end of its range: give it another name"
        if r.index not in between:
            yield from about_range(r)
    yield from (complaint for e in said for complaint in _about_sums(e, between))
    yield from _about_indices(kinds, {r.index for r in ranges}, said)


def about_range(r: IndexRange) -> Iterator[str]:
    """Yield the errors of a range: it is empty for all values of its symbols, or an end is not an integer.

    >>> from sympy import S
    >>> k, n = Symbol("k"), Symbol("n", positive=True)
    >>> [*about_range(IndexRange(k, S(1), S(0)))]
    ['the range k = 1..0 is empty: let it end at 1 or above']
    >>> [*about_range(IndexRange(k, S(1), n))], [*about_range(IndexRange(k, n + 1, S(1)))]
    ([], ['the range k = n + 1..1 is empty: let it end at n + 1 or above'])
    """
    lower, upper = expression(r.lower), expression(r.upper)
    for end in (lower, upper):
        if end.is_number and end.is_integer is False:
            yield f"the range {r.index} = {lower}..{upper} ends at {end}, which is no integer"
            return
    if (lower - upper).is_positive:
        yield f"the range {r.index} = {lower}..{upper} is empty: let it end at {lower} or above"


def indices_of_layers(heads: Iterable[Expr], families: Collection[str]) -> set[Symbol]:
    """Return the indices that layers or ordered places of these families of fields are counted by."""
    first = [a.args[0] for e in heads for a in e.atoms(AppliedUndef) if str(a.func) in families and a.args]
    return {ell}.union(*(x.free_symbols for x in first))


def _about_sums(e: Expr, between: Collection[Symbol]) -> Iterator[str]:
    """Yield why sums in an expression have nothing to add."""
    for total in sorted(e.atoms(Sum), key=spelled):
        for index, *ends in total.limits:
            if len(ends) == 2 and index not in between:
                yield from (f"{total}: {told}" for told in about_range(IndexRange(index, *ends)))


def _plural(kind: str) -> str:
    """Return the plural of a kind."""
    return "matrices" if kind == "matrix" else f"{kind}s"


def _about_indices(kinds: dict[str, str], indices: set[Symbol], said: list[Expr]) -> Iterator[str]:
    """Yield a message for each index whose name collides with another symbol or object."""
    numbers = {x for e in said for x in e.free_symbols} | {t, s}
    for x in sorted(indices, key=spelled):
        if x.name in (t.name, s.name):
            yield f"the index {x} is called like a time: give it another name"
        elif x == L:
            yield f"the index {x} is called like the number of layers: give it another name"
        elif x.name in kinds:
            yield (
                _of_language(x, kinds)
                or f"{x} is the name of an index and a {kinds[x.name]}: give one of them another name"
            )
        elif any(y.name == x.name and y != x for y in numbers | indices):
            yield f"the index {x} and another symbol are both called {x}: give one of them another name"
        elif not x.name.isidentifier():
            yield f"{x.name!r} is no name of an index: use letters, digits and underscores, not a digit first"
        elif x != (partner := primed(x)) and partner in indices:
            yield f"the index {partner} is what the partner of {x} is called: give one of them another name"
    for x in sorted({x for x in numbers if x.name in (t.name, s.name)} - {t, s}, key=str):
        yield f"{x} is called like the time but is another symbol: import {x} from derive.program"
    for x in sorted(numbers - indices, key=spelled):
        if kinds.get(x.name) in ("matrix", "vector") and x != Symbol(x.name):
            yield (
                _of_language(x, kinds)
                or f"{x} is the name of a number and a {kinds[x.name]}: give one of them another name"
            )


def _of_language(x: Symbol, kinds: dict[str, str]) -> str:
    """Return the message for a name that is a symbol of the package; empty for other symbols."""
    kind = kinds[x.name]
    return f"{x} is {MEANINGS[x]}: give the {kind} {x} another name" if x in MEANINGS else ""


def uses_of_names(
    heads: Iterable[AppliedUndef],
    weights: dict[str, int],
    said: Iterable[Expr],
    attributes: Collection[str] = (),
) -> Iterator[str]:
    """Yield a message for each name that is written with different indices.

    ``heads`` are the defined quantities, ``weights`` the number of indices of each weight; ``attributes``
    have one index, that of a unit. In all uses of a function, each position is that of a time or of an index.
    """
    first: dict[str, AppliedUndef] = {}
    for use in (*heads, *(a for e in said for a in sorted(e.atoms(AppliedUndef), key=spelled))):
        name = str(use.func)
        if name in weights and len(use.args) != weights[name]:
            yield f"{use} is called like the weight {name}: give one of them another name"
        if name in attributes and len(use.args) != 1:
            yield f"{use} is the attribute {name}, whose one index is that of a unit: write {name}(k)"
        known = first.setdefault(name, use)
        plain = not any(x.atoms(AppliedUndef) for x in (*use.args, *known.args))
        if name not in weights and (
            len(use.args) != len(known.args) or (plain and _clocks_differ(use, known))
        ):
            yield f"{name} is the name of two things, {known} and {use}: give one of them another name"


def bare_matrices(names: Collection[str], said: Iterable[Expr]) -> Iterator[str]:
    """Yield a message for each matrix in an expression that is not applied to a vector."""

    def outside(e: Expr) -> Iterator[Expr]:
        """Yield the matrices in an expression that are not in a product."""
        if isinstance(e, Product):
            yield from outside(e.vector)
        elif (e.is_Symbol and str(e) in names) or (isinstance(e, AppliedUndef) and str(e.func) in names):
            yield e
        else:
            for x in e.args:
                yield from outside(x)

    for e in said:
        for x in outside(e):
            yield (
                f"the matrix {x} stands in {spelled(e)} and is applied to no vector: write {x} @ v, and for "
                "a penalty on its entries give its training rule a decay"
            )


def _clocks_differ(one: AppliedUndef, other: AppliedUndef) -> bool:
    """Return whether a time is in the position of an index."""
    pairs = [(x, y) for x, y in zip(one.args, other.args, strict=True) if x.free_symbols and y.free_symbols]
    return any(x.has(t) != y.has(t) for x, y in pairs)


def same_names(said: Iterable[Expr]) -> Iterator[str]:
    """Yield a message for each pair of different symbols with one name."""
    known: dict[str, Symbol] = {}
    every = {y for e in said for y in sympify(e).free_symbols}
    partners = {primed(y).name: y for y in every if y.is_integer}
    for x in sorted(every, key=spelled):
        if known.setdefault(x.name, x) != x:
            if x.name in partners:
                told = f"the symbol {x} is called like the partner of the index {partners[x.name]}"
                yield f"{told} in correlations at two values of it: give it another name"
                continue
            language = next((y for y in (x, known[x.name]) if y in MEANINGS), None)
            if language is not None:
                told = f"{x} is {MEANINGS[language]}, and another symbol is called {x}"
                yield f"{told}: give it another name, or import {x} from derive.program"
                continue
            told = f"two symbols are called {x}, which differ in what is assumed of them"
            yield f"{told}: use one, or give one of them another name"


def calls_in(e: Expr) -> set[AppliedUndef]:
    """Return the functions in an expression with their arguments, except those of a derivative at a point.

    The argument ``xi`` of ``Subs(Derivative(phi(xi), xi), xi, h(t))`` is bound; the point counts.
    """
    bound = {x for y in e.atoms(Subs) for x in y.variables}
    return {a for a in e.atoms(AppliedUndef) if not a.free_symbols & bound}


def functions_in(e: Expr) -> set[str]:
    """Return the names of the undefined functions in an expression."""
    return {str(a.func) for a in e.atoms(AppliedUndef)}
