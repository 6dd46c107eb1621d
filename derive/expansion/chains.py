"""Entries of operator words in terms of iterated integrals of the error.

A constant kernel (the data's K^x, or 1) cuts a word into a function of t and one of s; each is a chain of
causal kernels applied to a constant.  All of it is read off the definitions of the kernels.  Where integrals
multiply each other under one more integral they are shuffled, and integrals that start at 0 are split at s
(Chen), so that for the flow every entry is a sum of products of iterated integrals.  Sums over steps obey
other rules and are not rewritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations

from sympy import Expr
from sympy.functions.elementary.complexes import transpose as Transpose

from derive.errors import NotApplicable
from derive.expansion.words import Memory, letters
from derive.linear.operators import J, Kernel

ROW, COL, FREE = 0, 1, 2
"""Samples are numbered: the row's, the column's, and from FREE on those summed over."""

Nested = tuple[tuple[int, int], ...]
"""An iterated integral: (sample, order of the error) from the latest time to the earliest."""

PERMUTED = 6
"""With more summed samples than this, terms are not brought to a common labelling."""


@dataclass(frozen=True)
class Piece:
    """A product: data kernels, integrals up to t from 0 (``now``) or from s (``since``), integrals up to s
    (``past``), and errors at s (``sources``)."""

    kernels: tuple[tuple[str, int, int], ...] = ()
    now: tuple[Nested, ...] = ()
    since: tuple[Nested, ...] = ()
    past: tuple[Nested, ...] = ()
    sources: tuple[tuple[int, int], ...] = ()
    last: int | None = None

    def __mul__(self, other: Piece) -> Piece:
        return Piece(
            self.kernels + other.kernels,
            self.now + other.now,
            self.since + other.since,
            self.past + other.past,
            self.sources + other.sources,
        )

    def summed(self) -> list[int]:
        """The samples that are summed over."""
        nested = [i for v in (*self.now, *self.since, *self.past) for i, _ in v]
        pairs = [i for _, a, b in self.kernels for i in (a, b)]
        return sorted({i for i in (*pairs, *nested, *(i for i, _ in self.sources)) if i >= FREE})

    def renamed(self, names: Mapping[int, int], symmetric: frozenset[str]) -> Piece:
        """With other samples, and factors in their standard order."""

        def new(i: int) -> int:
            return names.get(i, i)

        def nested(vs: tuple[Nested, ...]) -> tuple[Nested, ...]:
            return tuple(sorted(tuple((new(i), n) for i, n in v) for v in vs))

        def pair(x: tuple[str, int, int]) -> tuple[str, int, int]:
            a, b = new(x[1]), new(x[2])
            return (x[0], *sorted((a, b))) if x[0] in symmetric else (x[0], a, b)  # type: ignore[return-value]

        return Piece(
            tuple(sorted(map(pair, self.kernels))),
            nested(self.now),
            nested(self.since),
            nested(self.past),
            tuple(sorted((new(i), n) for i, n in self.sources)),
        )

    def standard(self, symmetric: frozenset[str]) -> Piece:
        """The same product with its summed samples named in a standard way, for comparison with others."""
        old = self.summed()
        fresh = range(FREE, FREE + len(old))
        orders = permutations(fresh) if len(old) <= PERMUTED else iter([tuple(fresh)])
        found = (self.renamed(dict(zip(old, new, strict=True)), symmetric) for new in orders)
        return min(found, key=lambda p: (p.kernels, p.now, p.since, p.past, p.sources))


class Reader:
    """Reads the entries of words; ``split`` says whether integrals may be shuffled and split (the flow)."""

    def __init__(self, kernels: Mapping[str, Kernel], split: bool) -> None:
        self.kernels, self.split = kernels, split
        self.count = FREE

    def fresh(self) -> int:
        """A new sample to sum over."""
        self.count += 1
        return self.count - 1

    # -- words with a constant kernel ------------------------------------------------------------------

    def correlation(self, word: Expr, row: int | None, col: int | None) -> Iterator[Piece]:
        """The entry ``(row, t), (col, s)`` of a word that has a constant kernel."""
        ls = letters(word)
        at = [k for k, x in enumerate(ls) if is_constant(x)]
        if len(at) != 1:
            raise NotApplicable(f"{word} must have one constant kernel; it has {len(at)}")
        after = [plain(x) for x in reversed(ls[at[0] + 1 :])]
        for a in self.chain(ls[: at[0]], row):
            for b in self.chain(after, col):
                middle = self.constant(ls[at[0]], a.last, b.last)
                yield Piece(a.kernels + middle + b.kernels, now=a.now, past=b.now)

    def chain(self, ls: list[Expr], row: int | None) -> Iterator[Piece]:
        """Causal letters applied to a constant, as a function of t."""
        if not ls:
            yield Piece(last=row)
            return
        x = causal(ls[0])
        kernel = self.kernels[x.kernel]
        a = self.fresh()
        here, there = (row, a) if kernel.rows else (None, None)
        for rest in self.chain(ls[1:], None if kernel.rows else a):
            for body in self.correlation(x.body, here, there):
                inside = (*body.past, *rest.now)
                for v in self.product(inside):
                    nested = ((a, x.order), *v)
                    kernels = body.kernels + rest.kernels
                    yield Piece(kernels, now=(*body.now, nested), last=rest.last)

    def constant(self, x: Expr, row: int | None, col: int | None) -> tuple[tuple[str, int, int], ...]:
        """The factor that a constant kernel stands for."""
        if x == J:
            return ()
        assert row is not None
        assert col is not None
        return ((str(x), row, col),)

    # -- words without: responses ----------------------------------------------------------------------

    def response(self, word: Expr, row: int | None, col: int | None) -> Iterator[Piece]:
        """The entry ``(row, t), (col, s)``, s < t, of a word of causal letters only."""
        return self.between(letters(word), row, col)

    def between(self, ls: list[Expr], row: int | None, col: int | None) -> Iterator[Piece]:
        x = causal(ls[0])
        kernel = self.kernels[x.kernel]
        final = len(ls) == 1
        a = col if final and kernel.cols and col is not None else self.fresh()
        here, there = (row, a) if kernel.rows else (None, None)
        for body in self.correlation(x.body, here, there):
            if final:
                yield replace(body, sources=((a, x.order),))
                continue
            for rest in self.between(ls[1:], None if kernel.rows else a, col):
                for before, v in self.from_past((*body.past, *rest.now), rest.since):
                    yield Piece(
                        body.kernels + rest.kernels,
                        now=body.now,
                        since=(((a, x.order), *v),),
                        past=(*rest.past, *before),
                        sources=rest.sources,
                    )

    # -- products of integrals -------------------------------------------------------------------------

    def product(self, vs: tuple[Nested, ...]) -> list[Nested]:
        """A product of integrals over the same range as a sum of integrals."""
        if len(vs) <= 1:
            return [vs[0] if vs else ()]
        if not self.split:
            raise NotApplicable("a product of sums over steps, within another sum, is left as it is")
        found: list[Nested] = [vs[0]]
        for v in vs[1:]:
            found = [w for u in found for w in shuffled(u, v)]
        return found

    def from_past(
        self, whole: tuple[Nested, ...], since: tuple[Nested, ...]
    ) -> Iterator[tuple[tuple[Nested, ...], Nested]]:
        """Integrals from 0 times integrals from s: those up to s, and one from s on."""
        if not whole:
            yield from (((), v) for v in self.product(since))
            return
        if not self.split:
            raise NotApplicable("a sum over all steps, within a sum from s on, is left as it is")
        v, *others = whole
        for k in range(len(v) + 1):
            late, early = v[:k], v[k:]
            for before, w in self.from_past(tuple(others), (*since, late) if late else since):
                yield ((early, *before) if early else before), w


@lru_cache(maxsize=10_000)
def shuffled(a: Nested, b: Nested) -> tuple[Nested, ...]:
    """All interleavings of two integrals.

    >>> len(shuffled(((1, 0), (2, 0)), ((3, 0),)))
    3
    """
    if not a or not b:
        return (a + b,)
    first = tuple((a[0], *w) for w in shuffled(a[1:], b))
    return first + tuple((b[0], *w) for w in shuffled(a, b[1:]))


def is_constant(x: Expr) -> bool:
    """Is the letter a kernel without memory?"""
    return not isinstance(x, Memory | Transpose)


def plain(x: Expr) -> Expr:
    """The letter of which ``x`` is the transpose."""
    if not isinstance(x, Transpose):
        raise NotApplicable(f"{x} stands to the right of a constant kernel")
    return x.args[0]


def causal(x: Expr) -> Memory:
    """The letter itself, which must be a causal kernel."""
    if not isinstance(x, Memory):
        raise NotApplicable(f"{x} in a chain of causal kernels")
    return x


__all__ = ["COL", "FREE", "ROW", "Nested", "Piece", "Reader", "is_constant", "shuffled"]
