"""Layers of a forward pass that are not used, or used but not defined.

:func:`without_unused_layers` shortens the families of a forward pass to the layers that outputs need, before
it is differentiated, and raises for layers without a definition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

from sympy import Expr, Integer, Piecewise, S, Sum, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import IndexRange, expression
from derive.errors import ProgramError
from derive.program.language import GaussianMatrix, Product
from derive.program.parts import Definition

MemberBounds = tuple[Expr, Expr]
"""The first and the last member of a family, such as a layer, that a definition uses."""


def without_unused_layers(
    lines: tuple[Definition, ...], layered: Iterable[str], *others: Expr
) -> tuple[Definition, ...]:
    """Return the definitions without the ends of families that no line uses.

    Parameters
    ----------
    lines : tuple of Definition
        The forward pass.
    layered : iterable of str
        The names of the fields that have layers or are ordered. Other scalars and fields are kept, and so are
        fields that no line uses at any layer.
    others : Expr
        Further expressions that use fields, such as the loss.

    Returns
    -------
    tuple of Definition
        The shorter forward pass. Its outputs are the same, because no output uses the removed layers. If
        layers are still removed after the largest number of rounds (see ``MOST``), the lines are returned
        unchanged and are not checked.

    Raises
    ------
    ProgramError
        If a line uses a layer that no line defines, or if two lines define a field at one layer. Uses in
        lines with cases (``Piecewise``) are not checked.

    Examples
    --------
    >>> from sympy import Function, S, tanh
    >>> from derive.program import IndexRange, L, ell, t
    >>> a, b, f = (Function(x) for x in "abf")
    >>> family = Definition(a(ell, t), tanh(b(ell, t)), (IndexRange(ell, S.One, L),))
    >>> below = Definition(b(ell + 1, t), a(ell, t), (IndexRange(ell, S.One, L - 1),))
    >>> lines = (Definition(b(S.One, t), S.One), family, below, Definition(f(t), b(L, t)))
    >>> without_unused_layers(lines, ("a", "b"))[1].ranges[0].upper
    L - 1
    """
    names, definitions = {*layered}, lines
    longest = max(
        (int(r.upper) for d in lines for r in d.ranges if expression(r.upper).is_Integer), default=0
    )
    for _ in range(MOST + longest):
        read = [x for d in definitions for x in _reads(d.rhs, d, names)]
        read += [x for e in others for x in _reads(e, None, names)]
        shorter = tuple(
            y for d in definitions for y in _kept(d, [span for name, span in read if name == d.name], names)
        )
        if shorter == definitions:
            sure = [x for d in definitions if not d.rhs.has(Piecewise) for x in _reads(d.rhs, d, names)]
            _require_defined(definitions, sure, names)
            return definitions
        definitions = shorter
    return lines


def without_unused_members(matrix: GaussianMatrix, lines: Iterable[Definition]) -> GaussianMatrix:
    """Return a family of matrices that is cut to the members from the first to the last that lines use.

    A single matrix, and a family that no line uses, are returned unchanged. At an end of the family nothing
    is cut if the number of unused members there is not known to be an integer, as for a depth that is L.

    >>> from sympy import Function, S
    >>> from derive.program import IndexRange, Population, ell, t
    >>> layer, h = Population("layer"), Function("h")
    >>> W = GaussianMatrix("W", layer.at(ell + 1), layer.at(ell), index=IndexRange(ell, S.One, S(5)))
    >>> first = Definition(h(ell + 1, t), W(ell) @ h(ell, t), (IndexRange(ell, S.One, S(2)),))
    >>> without_unused_members(W, [first]).index
    IndexRange(index=ell, lower=1, upper=2)
    """
    if matrix.index is None:
        return matrix
    spans = []
    for d in lines:
        runs = {r.index: (r.lower, r.upper) for r in d.ranges}
        runs |= {x: (low, high) for total in d.rhs.atoms(Sum) for x, low, high in total.limits}
        spans += [_span(p.matrix, runs) for p in d.rhs.atoms(Product) if str(p.matrix.func) == matrix.name]
    index_range = matrix.index
    above = min((_size(expression(index_range.upper) - last) for _, last in spans), default=S.Zero)
    below = min((_size(first - expression(index_range.lower)) for first, _ in spans), default=S.Zero)
    above, below = (x if 0 < x < S.Infinity else S.Zero for x in (above, below))
    if above == below == 0:
        return matrix
    return replace(
        matrix, index=IndexRange(index_range.index, index_range.lower + below, index_range.upper - above)
    )


MOST = 8
"""Largest number of rounds that remove unused layers, beyond the largest end of a range that is a number.

A family of symbolic depth that only its own definition uses would lose a layer in each round without end."""


def _reads(e: Expr, d: Definition | None, names: set[str]) -> Iterator[tuple[str, MemberBounds]]:
    """Yield the name and the first and last layer of each field in ``names`` that an expression uses.

    ``d`` is the definition that gives the ranges of the indices; None for a loss, whose indices are summed.
    """
    runs = {} if d is None else {r.index: (r.lower, r.upper) for r in d.ranges}
    runs |= {x: (low, high) for total in e.atoms(Sum) for x, low, high in total.limits}
    yield from ((str(a.func), _span(a, runs)) for a in e.atoms(AppliedUndef) if str(a.func) in names)


def _span(a: AppliedUndef, runs: Mapping[Symbol, MemberBounds]) -> MemberBounds:
    """Return the first and the last layer at which a field ``a`` is used; its first argument is the layer.

    ``runs`` maps each index to the first and the last value of its range.
    """
    layer = expression(a.args[0])
    low, high = (layer.xreplace({x: expression(ends[k]) for x, ends in runs.items()}) for k in (0, 1))
    return low, high


def _kept(d: Definition, read: list[MemberBounds], names: set[str]) -> Iterator[Definition]:
    """Yield a definition restricted to the layers that are used; nothing if none of its layers is used.

    ``read`` are the first and last layers of all uses of the defined quantity. A quantity without uses, or
    one that is not in ``names``, is yielded unchanged.
    """
    # Only quantities in `names` are restricted. A quantity that is not used at all (`read` is empty) has no
    # gradient and may stay.
    if d.name not in names or not read:
        yield d
        return
    runs = {r.index: r for r in d.ranges}
    low, high = _span(d.lhs, {x: (r.lower, r.upper) for x, r in runs.items()})
    index = next((x for x in expression(d.lhs.args[0]).free_symbols if x in runs), None)
    if index is None:
        if any(max(_size(low - last), _size(first - low)) <= 0 for first, last in read):
            yield d
        return
    above = min(_size(high - last) for _, last in read)
    below = min(_size(first - low) for first, _ in read)
    above, below = (x if 0 < x < S.Infinity else S.Zero for x in (above, below))
    if above == below == 0:
        yield d
        return
    r = runs[index]
    shorter = IndexRange(index, r.lower + below, r.upper - above)
    if (shorter.upper - shorter.lower).is_negative:
        return
    yield replace(d, ranges=tuple(shorter if x is r else x for x in d.ranges))


def _size(difference: Expr) -> Expr:
    """Return the difference of two layers as a number that can be compared with others.

    A difference that contains the depth is infinity if it increases with the depth, and minus infinity if
    not; with several symbols, infinity if it increases with each of them.
    """
    if difference.is_Integer:
        return difference
    slopes = [difference.coeff(x) for x in difference.free_symbols]
    return S.Infinity if all(x > 0 for x in slopes) else S.NegativeInfinity


def _require_defined(
    lines: Iterable[Definition], read: Iterable[tuple[str, MemberBounds]], names: set[str]
) -> None:
    """Raise :class:`ProgramError` for a layer of a field that is used but not defined, or defined twice.

    ``lines`` are the definitions, ``names`` the fields to check, and ``read`` pairs (name, first and last
    layer) of all uses. Every symbol in a layer, such as the depth, is replaced by the integer DEEP.
    """
    known: dict[str, list[range]] = {}
    starts: dict[tuple[str, range], Expr] = {}
    for d in lines:
        if d.name in names:
            runs = {r.index: (r.lower, r.upper) for r in d.ranges}
            span = _span(d.lhs, runs)
            known.setdefault(d.name, []).append(_layers(span))
            starts[d.name, _layers(span)] = span[0]
    for name, runs_of_layers in known.items():
        ordered = sorted((x for x in runs_of_layers if x), key=lambda x: x.start)
        for one, other in pairwise(ordered):
            if other.start < one.stop:
                raise ProgramError(
                    f"{name} has two definitions at layer {starts[name, other]}: end the range of one of "
                    "them before the other begins"
                )
    for name, span in read:
        if name in known and not _covered(_layers(span), known[name]):
            low, high = span
            where = f"layer {low}" if low == high else f"the layers {low}..{high}"
            raise ProgramError(
                f"{name} is used at {where}, which its definitions do not cover: add a definition for "
                "these layers, or extend the range of layers, which is index=IndexRange(...) of the "
                "matrices in the definition or, without matrices, in ranges=(IndexRange(...),) of the "
                "network"
            )


def _covered(layers: range, known: Iterable[range]) -> bool:
    """Return whether the layers are all in the union of the ``known`` ranges.

    The ranges are compared by their ends, because they may be too long to list.
    """
    first = layers.start
    for x in sorted(known, key=lambda x: x.start):
        if x.start <= first < x.stop:
            first = x.stop
    return first >= layers.stop


DEEP = 9
"""The number that replaces every symbol, such as L, when layers are compared."""


def _layers(span: MemberBounds) -> range:
    """Return the layers between two ends as a range of integers, with the number DEEP for every symbol.

    The range is empty if an end is not an integer.
    """
    low, high = (x.xreplace({y: Integer(DEEP) for y in x.free_symbols}) for x in span)
    return range(int(low), int(high) + 1) if low.is_Integer and high.is_Integer else range(0)
