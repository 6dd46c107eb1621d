"""Equivalence of two theories up to names: search for a renaming of one theory into the other.

Each name (of a field, source, order parameter, scalar, data or activation) starts with a colour for its role.
Colours are refined by the statements in which a name occurs until nothing changes; names with equal colours
are matched by trial. A complete matching is checked exactly, by renaming one theory and comparing it with the
other term by term. `Theory.equivalent` and `Theory.renaming` use it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

from sympy import Add, Expr, Function, Integral, Mul, Sum, Symbol
from sympy.core.function import AppliedUndef
from sympy.utilities.iterables import sift

from derive.calculus.sums import normal_form, rewritten
from derive.calculus.symbols import L, ell, s, t
from derive.theory.compare import compare
from derive.theory.data import STATED, Equation, ExpressionMap, OrderParameter, Source, TheoryData

Colours = dict[str, int]
RoleSignature = tuple[Any, ...]


def renaming(left: TheoryData, right: TheoryData, *, parameters: bool = False) -> dict[str, str] | None:
    """Return the name in ``right`` of each name of ``left``, or None if no renaming makes the theories equal.

    Names of indices and the origin of terms do not matter. Symbols of numbers (a learning rate, the depth)
    keep their names unless ``parameters`` is true.

    >>> from derive import mean_field, mlp
    >>> from sympy import Function
    >>> one, two = (mean_field(mlp(activation=Function(f))) for f in ("phi", "sigma"))
    >>> renaming(one, two)["phi"], renaming(one, two)["Phi"]
    ('sigma', 'Phi')
    >>> renaming(one, mean_field(mlp())) is None
    True
    """
    a, b = (_Reading.of(x, parameters) for x in (left, right))
    if len(a.roles) != len(b.roles) or len(a.statements) != len(b.statements):
        return None
    for matching in _matchings(a, b, _numbered(a.roles, b.roles)):
        if not compare(renamed(a.theory, matching, right), b.theory):
            return matching
    return None


def renamed(theory: TheoryData, names: dict[str, str], like: TheoryData) -> TheoryData:
    """Return ``theory`` with its names replaced by ``names``, as a theory of the program of ``like``.

    The order of the arguments of a correlation depends on names. It is changed where that makes its
    definition equal to the one in ``like``.
    """
    new = replace(_mapped(theory, lambda e: _renamed(e, names)), program=like.program)
    theirs = {q.name: q for q in like.order_parameters}
    turns = {
        q.name: places
        for q in new.order_parameters
        if q.kind == "correlation" and q.name in theirs and (places := _rearranged(q, theirs[q.name]))
    }

    def turn(a: AppliedUndef) -> Expr:
        """Return a correlation with its arguments in the order that they have in the theory ``like``.

        ``turns`` of the enclosing function maps the name of the correlation to new positions ``places``:
        argument number i moves to the position ``places[i]``.
        """
        places = turns[str(a.func)]
        return a.func(*[a.args[places.index(i)] for i in range(len(places))])

    return _mapped(new, lambda e: rewritten(e, turns, turn)) if turns else new


def _rearranged(ours: OrderParameter, theirs: OrderParameter) -> tuple[int, ...] | None:
    """Return how the arguments of a correlation must be permuted to agree with ``theirs``.

    Entry i is the position in ``theirs`` of argument i of ``ours``. The result is None if the order is the
    same already, if no permutation makes the two definitions equal, or for more than seven arguments.
    """
    a, b = ours.symbol.args, theirs.symbol.args
    if len(a) != len(b) or len(a) > 7:
        return None
    # The first of the permutations is the identity, so that two definitions that agree are not rearranged.
    for places in permutations(range(len(a))):
        new_argument = {x: b[k] for x, k in zip(a, places, strict=True)}
        allowed = all(x == y or (_is_free(x) and _is_free(y)) for x, y in new_argument.items())
        if allowed and ours.definition.xreplace(new_argument) == theirs.definition:
            return None if places == tuple(range(len(a))) else places
    return None


# -- reading a theory ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Reading:
    """Theory in the form in which its names are matched with those of another theory.

    ``theory`` is without origins of terms. ``roles`` maps each name to its role, such as field or source, and
    ``statements`` are pairs of a kind and the expressions of one equation, source or order parameter.
    """

    theory: TheoryData
    roles: dict[str, RoleSignature]
    statements: tuple[tuple[RoleSignature, tuple[Expr, ...]], ...]

    @classmethod
    def of(cls, theory: TheoryData, parameters: bool) -> _Reading:
        """Return the theory as statements in normal form and a role for each name.

        If ``parameters`` is true, symbols of numbers, such as a learning rate, may be renamed like functions.
        """
        plain = _plain(theory)
        statements, roles = tuple(_statements(plain)), _roles(plain)
        if parameters:
            fixed = {ell, t, s} | {r.index for x in plain.stated() for r in x.ranges}
            symbols = {x for _, es in statements for e in es for x in e.free_symbols} - fixed
            roles |= {x.name: ("parameter",) for x in symbols if not x.name.startswith("slot")}
        return cls(plain, roles, statements)


def _plain(theory: TheoryData) -> TheoryData:
    """Return the theory without origins of terms, and with standard assumptions for its indices.

    Indices other than the layer are positive integers, and times are not negative.
    """
    bound = {lim[0] for e in _everything(theory) for y in e.atoms(Sum, Integral) for lim in y.limits}
    indices = bound | {r.index for x in theory.stated() for r in x.ranges}
    same = {x: Symbol(x.name, integer=True, positive=True) for x in indices if x.is_integer and x != ell}
    same |= {x: Symbol(x.name, nonnegative=True) for x in indices if not x.is_integer}

    def blank(x: Any) -> Any:
        if isinstance(x, Equation):
            terms = tuple(replace(y, kind="", matrix="", rule="") for y in x.terms)
            return replace(x, terms=terms)
        return replace(x, matrix="") if isinstance(x, Source) else x

    return _mapped(theory, lambda e: e.xreplace(same), blank)


def _mapped(theory: TheoryData, fun: ExpressionMap, last: ExpressionMap = lambda x: x) -> TheoryData:
    """Return the theory with ``fun`` applied to every expression and index; the program stays the same.

    ``last`` is applied to each equation, source and order parameter afterwards.
    """

    def moved(x: Any) -> Any:
        x = x.map(fun)
        return [last(replace(x, ranges=tuple(r.renamed(fun(r.index)) for r in x.ranges)))]

    return theory.each(moved)


def _everything(theory: TheoryData) -> list[Expr]:
    """Return all expressions in the equations, sources and order parameters of a theory."""
    return [e for x in theory.stated() for e in _expressions(x)]


def _expressions(x: Any) -> tuple[Expr, ...]:
    """Return the expressions of an equation, source or order parameter, its left-hand side first."""
    if isinstance(x, Equation):
        return x.lhs, x.rhs
    return (x.symbol, x.partner, x.covariance) if isinstance(x, Source) else (x.symbol, x.definition)


def _statements(theory: TheoryData) -> Iterator[tuple[RoleSignature, tuple[Expr, ...]]]:
    """Yield for every equation, source and order parameter a pair of its signature and its expressions.

    The signature is its kind and its number of indices; the expressions are in normal form. If it holds for a
    range of layers, the last expression is the last layer minus the first one.
    """
    for part in STATED:
        for x in getattr(theory, part):
            kind = f"{x.kind} {x.causal}" if isinstance(x, OrderParameter) else part
            layers = x.layers
            shift = {} if layers is None else {ell: ell + layers.lower}
            head = [y for a in _expressions(x)[0].atoms(AppliedUndef) for y in a.args]
            names = {y: Symbol("slot") for y in (*head, *(r.index for r in x.ranges), t, s) if _is_free(y)}
            heads = [normal_form(e.xreplace(shift)).xreplace(names) for e in _expressions(x)]
            size = [] if layers is None else [layers.upper - layers.lower]
            yield (kind, len(x.ranges)), (*heads, *size)


def _is_free(x: Any) -> bool:
    """Return whether ``x`` is an index that may be renamed: a symbol other than the layer and the depth."""
    return isinstance(x, Symbol) and x not in (ell, L)


def _roles(theory: TheoryData) -> dict[str, RoleSignature]:
    """Return the role of each name as a tuple of its kind and its number of arguments: ``("field", 3)``.

    A function of no other kind, such as an activation without an expression, has the kind "function". For an
    order parameter the tuple also says whether it is a response that vanishes at equal times. Two names can
    be matched only if their roles are equal.
    """
    program = theory.program
    atoms = {a for e in _everything(theory) for a in e.atoms(AppliedUndef)}
    roles: dict[str, RoleSignature] = {str(a.func): ("function", len(a.args)) for a in sorted(atoms, key=str)}
    kinds: dict[str, Iterable[str]] = {
        "field": [x.name for x in program.fields],
        "attribute": [x.name for x in program.attributes],
        "source": [str(x.func) for u in theory.sources for x in (u.symbol, u.partner)],
        "scalar": [e.name for e in theory.scalars],
        "observable": [e.name for e in theory.observables],
        "constant": program.constants,
        "kernel": [x.kernel for x in program.given],
    }
    for kind, names in kinds.items():
        roles |= {n: (kind, *roles[n][1:]) for n in names if n in roles}
    for q in theory.order_parameters:
        roles[q.name] = (q.kind, q.causal, len(q.symbol.args))
    return roles


# -- colours -------------------------------------------------------------------------------------------------


def _numbered(left: dict[str, RoleSignature], right: dict[str, RoleSignature]) -> tuple[Colours, Colours]:
    """Return for the names of two theories integers, called colours, that are equal for equal roles.

    ``left`` and ``right`` map names to their roles; only names of equal colour can be matched.
    """
    order = {x: i for i, x in enumerate(sorted({repr(x) for x in (*left.values(), *right.values())}))}
    return {n: order[repr(x)] for n, x in left.items()}, {n: order[repr(x)] for n, x in right.items()}


def _refined(a: _Reading, b: _Reading, colours: tuple[Colours, Colours]) -> tuple[Colours, Colours] | None:
    """Return finer colours of the names of two theories, or None if they cannot match.

    A colour is an integer; only names of equal colour can be matched. Names are distinguished by the
    statements that contain them, until no refinement is left. They cannot match if a colour has different
    numbers of names in the two theories.
    """
    while True:
        left, right = colours
        if Counter(left.values()) != Counter(right.values()):
            return None
        refined = _numbered(_contexts(a, left), _contexts(b, right))
        if len(set(refined[0].values())) == len(set(left.values())):
            return refined if Counter(refined[0].values()) == Counter(refined[1].values()) else None
        colours = refined


def _contexts(reading: _Reading, colours: Colours) -> dict[str, RoleSignature]:
    """Return for each name a tuple by which it can be told from others.

    It contains the colour of the name (an integer; only names of equal colour can be matched) and the
    statements that contain the name, as text with colours in place of names.
    """
    occurrences: dict[str, list[str]] = {n: [] for n in colours}
    for kind, expressions in reading.statements:
        inside = {str(a.func) for e in expressions for a in e.atoms(AppliedUndef)}
        inside |= {x.name for e in expressions for x in e.free_symbols}
        for n in inside & set(colours):
            shapes = [_shape(e, colours, n) for e in expressions]
            if kind[0] == "sources":
                shapes = [*sorted(map(repr, shapes[:2])), *shapes[2:]]
            occurrences[n].append(repr((kind, shapes)))
    return {n: (colours[n], *sorted(x)) for n, x in occurrences.items()}


def _shape(e: Any, colours: Colours, mark: str) -> Any:
    """Return an expression as nested tuples, without the names that may be renamed.

    ``colours`` gives for each name the integer that replaces it; the name ``mark`` is replaced by ``*``.
    """
    if isinstance(e, Symbol):
        known = "*" if e.name == mark else colours.get(e.name)
        return ("symbol", known) if known is not None else "index" if e.name.startswith(_INDICES) else e.name
    if isinstance(e, AppliedUndef):
        name = str(e.func)
        inside = sorted(repr(_shape(x, colours, mark)) for x in e.args)
        return ("*" if name == mark else colours.get(name, name), *inside)
    if not getattr(e, "args", ()):
        return repr(e)
    parts = [_shape(x, colours, mark) for x in e.args]
    if isinstance(e, Add | Mul):
        parts = sorted(map(repr, parts))
    elif isinstance(e, Sum | Integral):
        parts = [parts[0], *sorted(map(repr, parts[1:]))]
    return (type(e).__name__, *parts)


_INDICES = ("slot", "dummy", "_")
"""Beginnings of the names that indices have in a normal form."""


def _matchings(a: _Reading, b: _Reading, colours: tuple[Colours, Colours]) -> Iterator[dict[str, str]]:
    """Yield one-to-one matchings of the names of two theories that colours do not exclude, as dictionaries.

    Only names of equal colour (an integer in ``colours``) are matched. Where several names have one colour,
    one of them is matched with each candidate in turn, and colours are refined again.
    """
    stable = _refined(a, b, colours)
    if stable is None:
        return
    left, right = stable
    open_ones = sorted((x for x in sift(left, left.__getitem__).values() if len(x) > 1), key=len)
    if not open_ones:
        back = {c: n for n, c in right.items()}
        yield {n: back[c] for n, c in left.items()}
        return
    name = min(open_ones[0])
    fresh = max(left.values()) + 1
    for other in sorted((n for n, c in right.items() if c == left[name]), key=lambda n: (n != name, n)):
        yield from _matchings(a, b, ({**left, name: fresh}, {**right, other: fresh}))


# -- renaming of expressions ---------------------------------------------------------------------------------


def _renamed(e: Any, names: dict[str, str]) -> Any:
    """Return ``e`` with all functions and symbols renamed at once as ``names`` says."""
    if isinstance(e, Symbol):
        return Symbol(names[e.name], **e.assumptions0) if e.name in names else e
    if isinstance(e, AppliedUndef):
        name = str(e.func)
        return Function(names.get(name, name))(*[_renamed(x, names) for x in e.args])
    if not getattr(e, "args", ()):
        return e
    args = [_renamed(x, names) for x in e.args]
    return e if all(x is y for x, y in zip(args, e.args, strict=True)) else e.func(*args)
