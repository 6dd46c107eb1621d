"""Checks of the names that a user chose, and choice of names for derived quantities.

Every object that a program declares has a name of its own, a Python identifier. Gradients, readouts, sources
and order parameters are named automatically, with a number behind the name if the user has taken it.
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
"""Symbols of the language and their meanings, for messages about other objects with these names."""


def free_name(name: str, taken: Collection[str]) -> str:
    """Return ``name``, or if it is taken the first of ``name_2``, ``name_3``, ... that is not.

    >>> free_name("g", {"h"}), free_name("g", {"g", "g_2"})
    ('g', 'g_3')
    """
    candidate, count = name, 1
    while candidate in taken:
        count += 1
        candidate = f"{name}_{count}"
    return candidate


def unique_names(
    natural: Iterable[tuple[NamedObject, str]], taken: Collection[str]
) -> dict[NamedObject, str]:
    """Return a name for each key; all names differ from each other and from those in ``taken``.

    ``natural`` are pairs of a key and its preferred name. The first key that prefers a free name gets it;
    others get the name with a number behind it.

    >>> unique_names([("a", "C_hg"), ("b", "C_hg"), ("c", "Phi")], {"Phi"})
    {'a': 'C_hg', 'b': 'C_hg_2', 'c': 'Phi_2'}
    """
    pairs = list(natural)
    wished = {name for _, name in pairs}
    used_names, names = set(taken), dict[NamedObject, str]()
    for key, name in pairs:
        names[key] = name if name not in used_names else free_name(name, used_names | wished)
        used_names.add(names[key])
    return names


def name_conflicts(
    declared: Sequence[Declared],
    ranges: Iterable[IndexRange],
    expressions: Iterable[Expr],
    layer_indices: Collection[Symbol] = (),
) -> Iterator[str]:
    """Yield a message for each name of a program or network that is invalid or used for two things.

    Messages follow for ranges and sums that are empty or end at a number that is not an integer. ``declared``
    are pairs (kind, name) of fields, weights, constants, ...; ``ranges`` are those of all indices, and
    ``expressions`` those of definitions and loss. Ranges of the indices in ``layer_indices``, which count
    layers, may be empty or end at any number.
    """
    kinds: dict[str, str] = {}
    for kind, name in declared:
        if not isinstance(name, str) or not name.isidentifier():
            yield (
                f"{name!r} is not a name of a {kind}: use letters, digits and underscores, not a digit first"
            )
        elif name in kinds:
            both = f"two {_plural(kind)}" if kinds[name] == kind else f"a {kinds[name]} and a {kind}"
            yield f"{name} is the name of {both}: give one of them another name"
        else:
            kinds[name] = kind
    ranges, expressions = list(ranges), list(expressions)
    for r in ranges:
        if r.index in expression(r.upper).free_symbols | expression(r.lower).free_symbols:
            yield f"the index {r.index} is called like an end of its range: give it another name"
        if r.index not in layer_indices:
            yield from range_errors(r)
    yield from (message for e in expressions for message in _empty_sums(e, layer_indices))
    bound = {x for e in expressions for total in e.atoms(Sum) for x, *_ in total.limits}
    yield from (message for x in sorted(bound, key=spelled) if (message := _reserved_index(x)))
    yield from _index_conflicts(kinds, {r.index for r in ranges}, expressions)


def range_errors(r: IndexRange) -> Iterator[str]:
    """Yield a message if a range is empty for all values of its symbols, or has an end such as 1/2.

    An end that is a number must be an integer; an end with symbols may have any assumptions.

    >>> from sympy import S
    >>> k, n = Symbol("k"), Symbol("n", positive=True)
    >>> [*range_errors(IndexRange(k, S(1), S(0)))]
    ['the range k = 1..0 is empty: let it end at 1 or above']
    >>> [*range_errors(IndexRange(k, S(1), n))], [*range_errors(IndexRange(k, n + 1, S(1)))]
    ([], ['the range k = n + 1..1 is empty: let it end at n + 1 or above'])
    """
    lower, upper = expression(r.lower), expression(r.upper)
    for end in (lower, upper):
        if end.is_number and end.is_integer is False:
            yield (
                f"the range {r.index} = {lower}..{upper} ends at {end}, which is not an integer: let both "
                "ends be integers"
            )
            return
    if (lower - upper).is_positive:
        yield f"the range {r.index} = {lower}..{upper} is empty: let it end at {lower} or above"


def indices_of_layers(heads: Iterable[Expr], families: Collection[str]) -> set[Symbol]:
    """Return the index symbols that count layers, or the steps of an ordered field (see :class:`.Field`).

    They are ``ell``, and the symbols in the first argument of each field that is named in ``families``, as it
    occurs in ``heads``, the left-hand sides of definitions.
    """
    first = [a.args[0] for e in heads for a in e.atoms(AppliedUndef) if str(a.func) in families and a.args]
    return {ell}.union(*(x.free_symbols for x in first))


def _empty_sums(e: Expr, layer_indices: Collection[Symbol]) -> Iterator[str]:
    """Yield a message for each sum in an expression whose range is empty or ends at a noninteger.

    Sums over the indices in ``layer_indices`` are not checked.
    """
    for total in sorted(e.atoms(Sum), key=spelled):
        for index, *ends in total.limits:
            if len(ends) == 2 and index not in layer_indices:
                yield from (f"{total}: {message}" for message in range_errors(IndexRange(index, *ends)))


def _plural(kind: str) -> str:
    """Return the plural of a kind of objects: "fields" for "field", "matrices" for "matrix"."""
    return "matrices" if kind == "matrix" else f"{kind}s"


def wrong_heads(
    heads: Iterable[Expr], indices: Collection[Symbol], evolving: Collection[str] = ()
) -> Iterator[str]:
    """Yield messages for left-hand sides without the time as last argument, or with an index twice.

    The time ``t`` is its last argument, or 0 for the initial value of a field named in ``evolving``.
    ``indices`` are the symbols that have a range.

    >>> from sympy import Function
    >>> h, tau = Function("h"), Symbol("tau")
    >>> [*wrong_heads([h(mu, t)], {mu})], [*wrong_heads([h(mu, tau)], {mu})]
    ([], ['h(mu, tau): the last argument is tau, and must be the time t of derive.program: write h(mu, t)'])
    """
    for head in heads:
        if not isinstance(head, AppliedUndef) or not head.args:
            name = str(head.func) if isinstance(head, AppliedUndef) else str(head)
            yield (
                f"{head}: must be a function of its indices and of the time t of derive.program, such as "
                f"{name}(mu, t)"
            )
            continue
        *places, last = head.args
        # An argument 0 in place of the time gives the initial value of an evolving field. Below, only the
        # name of the last argument is compared: for another symbol called t, `_index_conflicts` yields a
        # message.
        starts = last == 0 and str(head.func) in evolving
        if str(last) != t.name and not starts:
            others = [x for x in (*places, *([last] if last in indices else [])) if not x.has(t)]
            yield (
                f"{head}: the last argument is {last}, and must be the time t of derive.program: write "
                f"{head.func(*others, t)}"
            )
        seen: set[Expr] = set()
        for place in places:
            for x in sorted(place.free_symbols & seen & {*indices}, key=spelled):
                yield (
                    f"{head}: the index {x} stands twice, so that the definition gives no value for two "
                    f"different indices: write {x} once, or give one of the places another index"
                )
            seen |= place.free_symbols


def size_as_index(x: Symbol) -> str:
    """Return the message for an index named ``L`` or ``P``, and an empty string for any other."""
    size = next((y for y in (L, P) if y.name == x.name), None)
    return "" if size is None else f"the index {x} is called like {MEANINGS[size]}: give it another name"


def _reserved_index(x: Symbol) -> str:
    """Return the message for an index that is named like a time or a size, else an empty string."""
    if x.name in (t.name, s.name):
        return f"the index {x} is called like a time: give it another name"
    return size_as_index(x)


def _index_conflicts(kinds: dict[str, str], indices: set[Symbol], expressions: list[Expr]) -> Iterator[str]:
    """Yield a message for each index whose name is reserved, invalid, or that of another symbol or object.

    Messages follow on symbols that are named like the times ``t`` and ``s`` without being these, and on
    numbers that are named like a matrix or a vector. ``kinds`` maps the names of declared objects to their
    kinds.
    """
    numbers = {x for e in expressions for x in e.free_symbols} | {t, s}
    for x in sorted(indices, key=spelled):
        if message := _reserved_index(x):
            yield message
        elif x.name in kinds:
            yield (
                _message_on_package_symbol(x, kinds)
                or f"{x} is the name of an index and a {kinds[x.name]}: give one of them another name"
            )
        elif any(y.name == x.name and y != x for y in numbers | indices):
            yield f"the index {x} and another symbol are both called {x}: give one of them another name"
        elif not x.name.isidentifier():
            yield (
                f"{x.name!r} is not a name of an index: use letters, digits and underscores, not a digit "
                "first"
            )
        elif x != (partner := primed(x)) and partner in indices:
            yield f"the index {partner} is the name of a second {x} in correlations: rename one of them"
    for x in sorted({x for x in numbers if x.name in (t.name, s.name)} - {t, s}, key=str):
        yield f"{x} is called like the time but is another symbol: import {x} from derive.program"
    for x in sorted(numbers - indices, key=spelled):
        if kinds.get(x.name) in ("matrix", "vector") and x != Symbol(x.name):
            yield (
                _message_on_package_symbol(x, kinds)
                or f"{x} is the name of a number and a {kinds[x.name]}: give one of them another name"
            )


def _message_on_package_symbol(x: Symbol, kinds: dict[str, str]) -> str:
    """Return the message for an object that is named like a symbol of the package, such as ``t`` or ``ell``.

    ``kinds`` maps the names of declared objects to their kinds. The message is empty for any other symbol
    ``x``.
    """
    kind = kinds[x.name]
    return f"{x} is {MEANINGS[x]}: give the {kind} {x} another name" if x in MEANINGS else ""


def inconsistent_uses(
    heads: Iterable[AppliedUndef],
    weights: dict[str, int],
    expressions: Iterable[Expr],
    attributes: Collection[str] = (),
) -> Iterator[str]:
    """Yield a message for each function that is written with different numbers or kinds of indices.

    ``heads`` are the left-hand sides of definitions, ``expressions`` the expressions to check, and
    ``weights`` maps names of weights to their numbers of indices. ``attributes`` are names of functions of
    one index, that of a unit, which must be an integer or the time. An argument of another function must not
    be the time in one use and an index in another.
    """
    first: dict[str, AppliedUndef] = {}
    for use in (*heads, *(a for e in expressions for a in sorted(e.atoms(AppliedUndef), key=spelled))):
        name = str(use.func)
        if name in weights and len(use.args) != weights[name]:
            yield (
                f"{use} has {len(use.args)} arguments, but the weight {name} has {weights[name]}: "
                f"write the weight with its indices, or give the function {name} another name"
            )
        if name in attributes and len(use.args) != 1:
            yield f"{use} is the attribute {name}, whose one index is that of a unit: write {name}(k)"
        elif name in attributes and not use.args[0].is_integer and use.args[0] != t:
            # The argument t is allowed: theories for sampled paths write attributes as fields, with the time
            # in place of the unit.
            unit = use.args[0]
            yield f'the unit {unit} of {use} is not an integer: write Symbol("{unit}", integer=True)'
        known = first.setdefault(name, use)
        plain = not any(x.atoms(AppliedUndef) for x in (*use.args, *known.args))
        if name not in weights and (
            len(use.args) != len(known.args) or (plain and _times_differ(use, known))
        ):
            yield (
                f"{name} is the name of two things, {known} and {use}, whose indices differ: write the "
                "indices of its definition, or give one of them another name"
            )


def bare_matrices(names: Collection[str], expressions: Iterable[Expr]) -> Iterator[str]:
    """Yield a message for each matrix in these expressions that is not applied to a vector.

    ``names`` are the names of matrices.
    """

    def outside(e: Expr) -> Iterator[Expr]:
        """Yield the symbols of matrices in an expression that are not the matrix of a :class:`Product`."""
        if isinstance(e, Product):
            yield from outside(e.vector)
        elif (e.is_Symbol and str(e) in names) or (isinstance(e, AppliedUndef) and str(e.func) in names):
            yield e
        else:
            for x in e.args:
                yield from outside(x)

    for e in expressions:
        for x in outside(e):
            yield (
                f"the matrix {x} in {spelled(e)} is not applied to a vector: write {x} @ v; for a penalty on "
                "its entries give its training rule a decay"
            )


def _times_differ(one: AppliedUndef, other: AppliedUndef) -> bool:
    """Return whether one of two uses of a function has the time ``t`` where the other has an index."""
    pairs = [(x, y) for x, y in zip(one.args, other.args, strict=True) if x.free_symbols and y.free_symbols]
    return any(x.has(t) != y.has(t) for x, y in pairs)


def same_names(expressions: Iterable[Expr]) -> Iterator[str]:
    """Yield a message for each SymPy symbol that differs from an earlier one with the same name."""
    known: dict[str, Symbol] = {}
    every = {y for e in expressions for y in sympify(e).free_symbols}
    partners = {primed(y).name: y for y in every if y.is_integer}
    for x in sorted(every, key=spelled):
        if known.setdefault(x.name, x) != x:
            if x.name in partners:
                yield (
                    f"the symbol {x} has the name of a second value of the index {partners[x.name]} in "
                    "correlations: give it another name"
                )
                continue
            language = next((y for y in (x, known[x.name]) if y in MEANINGS), None)
            if language is not None:
                yield (
                    f"{x} is {MEANINGS[language]}, and another symbol is called {x}: give it another name, "
                    f"or import {x} from derive.program"
                )
                continue
            yield (
                f"two symbols are called {x}, which differ in what is assumed of them: use one, or give one "
                "of them another name"
            )


def calls_in(e: Expr) -> set[AppliedUndef]:
    """Return the functions in an expression with their arguments, except those of a derivative at a point.

    The argument ``xi`` of ``Subs(Derivative(phi(xi), xi), xi, h(t))`` is bound; the point counts.
    """
    bound = {x for y in e.atoms(Subs) for x in y.variables}
    return {a for a in e.atoms(AppliedUndef) if not a.free_symbols & bound}


def functions_in(e: Expr) -> set[str]:
    """Return the names of the undefined functions in an expression."""
    return {str(a.func) for a in e.atoms(AppliedUndef)}
