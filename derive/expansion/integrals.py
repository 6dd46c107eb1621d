"""Entries of operator words as iterated time integrals of the error.

With the error's coefficients Delta0, Delta2, ... and a, b, ... samples,

    v(a, b, ..., t) = int_0^t dt' Delta0_a(t') int_0^t' dt'' Delta0_b(t'') ... ,

sums in discrete time; ``v(a, ..., t, s)`` starts at s, and ``v_2_0(a, b, t)`` has Delta2 in front of Delta0.

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

from sympy import Add, Eq, Expr, Function, Integral, Mul, S, Sum, Symbol
from sympy.core.function import AppliedUndef
from sympy.functions.elementary.complexes import transpose as Transpose

from derive.calculus.recurrences import factored
from derive.calculus.symbols import IndexRange, alpha, mu, s, t
from derive.errors import NotApplicable
from derive.expansion.words import LinearSeries, Memory, letters, terms
from derive.linear.operators import J, Kernel

TANGENT, OUTPUT = "K", "f"


@dataclass(frozen=True)
class Group:
    """``coefficient * weight * sum_samples outer [inner + inner + ...]``, products as tuples of factors."""

    coefficient: Expr
    weight: Expr
    samples: tuple[IndexRange, ...]
    outer: tuple[Expr, ...]
    inner: tuple[tuple[Expr, ...], ...]

    @property
    def expr(self) -> Expr:
        """All of it as one expression."""
        body = Mul(*self.outer, Add(*[Mul(*x) for x in self.inner]))
        limits = [r.limits for r in reversed(self.samples)]  # SymPy's first sum is the innermost
        return Mul(self.coefficient, self.weight, Sum(body, *limits) if limits else body)


def time_integrals(
    expansion: LinearSeries, e: Expr, row: Symbol | None, col: Symbol | None, now: Expr = t, past: Expr = s
) -> Expr:
    """The entry of a sum of words at ``(row, now), (col, past)``, as time integrals.

    ``row`` and ``col`` are the samples that the operator has on either side, None where it has none.  Raises
    :class:`NotApplicable` where a discrete rule leaves products of sums within sums.

    >>> from derive.theory import mean_field
    >>> from derive.program import mlp
    >>> from derive.expansion.words import linear_series
    >>> from derive.linear.closure import linear_closure
    >>> x = linear_series(linear_closure(mean_field(mlp(rule="flow"))), 0)
    >>> time_integrals(x, x.words["D"][0], None, alpha)
    (L - ell + 1)*Delta0(alpha, s)
    """
    found = _Entries(expansion, row, col, now, past)
    found.add(e)
    return found.expr()


def entry(expansion: LinearSeries, name: str, n: int, now: Expr = t, past: Expr = s) -> Expr:
    """Order n of an order parameter's entry; see :meth:`.LinearExpansion.entry`."""
    return Add(*[x.expr for x in groups(expansion, name, n, now, past)])


def groups(expansion: LinearSeries, name: str, n: int, now: Expr = t, past: Expr = s) -> list[Group]:
    """The entry as terms with different coefficients or kernels."""
    if name == TANGENT:
        found = _Entries(expansion, mu, alpha, now, past)
        for c, g, h in expansion.tangent[n]:
            found.add_product(c, g, h)
    elif name == OUTPUT:
        found = _Entries(expansion, mu, None, now, now)
        found.add(expansion.output[n])
    else:
        row, col = sides(expansion, name)
        found = _Entries(expansion, mu if row else None, alpha if col else None, now, past)
        found.add(expansion.words[name][n])
    return found.groups()


def sides(expansion: LinearSeries, name: str) -> tuple[bool, bool]:
    """Whether an operator has samples on its left and on its right."""
    for k in expansion.closure.kernels:
        if str(k.operator.args[0]) == name:
            return bool(k.rows), bool(k.cols)
    for e in (*expansion.closure.covariances, *expansion.closure.responses):
        if str(e.lhs.args[0]) == name:
            raise NotApplicable(f"the closure does not say which samples {name} has")
    raise KeyError(name)


def error_equation(expansion: LinearSeries, n: int) -> Eq:
    """The error at order n: minus the output at that order, in time integrals; see :class:`.LinearExpansion`.

    The part with ``v_n`` is linear in the error sought: a linear Volterra equation driven by the rest.
    """
    start = Function("y")(mu) if n == 0 else S.Zero
    rest = [replace(x, coefficient=-x.coefficient).expr for x in groups(expansion, OUTPUT, n)]
    return Eq(Function(f"Delta{n}")(mu, t), Add(start, *rest), evaluate=False)


def iterated_integral(expansion: LinearSeries, v: AppliedUndef) -> Expr:
    """What ``v(a, b, ..., t)`` stands for, as nested integrals (or sums with the rule's weights).

    >>> from derive.theory import mean_field
    >>> from derive.program import mlp
    >>> from derive.expansion.words import linear_series
    >>> from derive.linear.closure import linear_closure
    >>> x = linear_series(linear_closure(mean_field(mlp(rule="flow"))), 0)
    >>> iterated_integral(x, Function("v")(mu, t))
    Integral(Delta0(mu, t_), (t_, 0, t))
    """
    indices = [x for x in v.args if x.is_Symbol and x.is_integer]
    time, *lower = v.args[len(indices) :]
    _, *orders = str(v.func).split("_")
    rule = expansion.closure.theory.program.rule
    start: Expr = S.Zero
    if lower:
        start = lower[0] + 1 if rule.discrete else lower[0]
    times = [time, *(Symbol("t" + "_" * k, nonnegative=True) for k in range(1, len(indices) + 1))]
    value: Expr = S.One
    for k in reversed(range(len(indices))):
        outer, inner = times[k], times[k + 1]
        error = Function(f"Delta{orders[k] if orders else 0}")(indices[k], inner)
        body = rule.memory(outer, inner)[1] * error * value
        value = (
            Sum(body, (inner, start, outer - 1)) if rule.discrete else Integral(body, (inner, start, outer))
        )
    return value


class _Entries:
    """Collects products with their coefficients; equal ones are put together."""

    def __init__(
        self, expansion: LinearSeries, row: Symbol | None, col: Symbol | None, now: Expr, past: Expr
    ) -> None:
        self.closure = expansion.closure
        self.row, self.col, self.now, self.past = row, col, now, past
        self.rule = self.closure.theory.program.rule
        self.kernels = {k.name: k for k in self.closure.kernels if k.causal and k.definition != 0}
        self.symmetric = frozenset(str(e.rhs) for e in self.closure.base if e.rhs != 0)
        self.found: dict[tuple[Piece, bool], Expr] = {}

    def reader(self) -> Reader:
        return Reader(self.kernels, split=not self.rule.discrete)

    def add(self, e: Expr) -> None:
        """A sum of words."""
        row, col = self.sides(self.row, self.col)
        for c, w in terms(e):
            if any(is_constant(x) for x in letters(w)):
                for p in self.reader().correlation(w, row, col):
                    self.note(c, p, False)
            else:
                if len(letters(w)) > 1 and self.rule.memory(t, s)[1].has(t, s):
                    raise NotApplicable(f"{w} with a weight that depends on time")
                for p in self.reader().response(w, row, col):
                    self.note(c, p, True)

    def add_product(self, c: Expr, a: Expr, b: Expr) -> None:
        """The entries of two words, multiplied; only the second has samples."""
        reader = self.reader()
        right = list(reader.correlation(b, *self.sides(self.row, self.col)))
        for x in reader.correlation(a, None, None):
            for y in right:
                self.note(c, x * y, False)

    @staticmethod
    def sides(row: Symbol | None, col: Symbol | None) -> tuple[int | None, int | None]:
        return (None if row is None else ROW), (None if col is None else COL)

    def note(self, c: Expr, p: Piece, response: bool) -> None:
        if self.now == self.past:
            p = Piece(p.kernels, (*p.now, *p.past), p.since, (), p.sources)
        key = p.standard(self.symmetric), response
        self.found[key] = self.found.get(key, S.Zero) + c

    # -- to expressions --------------------------------------------------------------------------------

    def groups(self) -> list[Group]:
        """One for each coefficient and set of kernels; short integrals first."""
        together: dict[tuple[Expr, tuple[object, ...], bool], list[Piece]] = {}
        for (p, response), c in self.found.items():
            coefficient = c.expand()
            if coefficient != 0:
                together.setdefault((coefficient, (p.kernels, p.sources), response), []).append(p)
        return [self.group(factored(c), ps, r) for (c, _, r), ps in together.items()]

    def expr(self) -> Expr:
        return Add(*[x.expr for x in self.groups()])

    def group(self, c: Expr, ps: list[Piece], response: bool) -> Group:
        p = ps[0]
        outer = [Function(n)(self.sample(a), self.sample(b)) for n, a, b in p.kernels]
        outer += [Function(f"Delta{n}")(self.sample(i), self.past) for i, n in p.sources]
        weight = self.rule.memory(self.now, self.past)[1] if response else S.One
        ordered = sorted(ps, key=lambda x: (len(x.now) + len(x.since) + len(x.past), len(x.past)))
        return Group(
            c,
            weight,
            tuple(map(self.range, p.summed())),
            tuple(outer),
            tuple(tuple(self.integrals(x)) for x in ordered),
        )

    def integrals(self, p: Piece) -> list[Expr]:
        early = (self.now, self.past)
        places = ((p.now, early[:1]), (p.since, early), (p.past, early[1:]))
        return [self.integral(v, times) for vs, times in places for v in vs]

    def integral(self, v: Nested, times: tuple[Expr, ...]) -> Expr:
        orders = [n for _, n in v]
        name = "v" if not any(orders) else "_".join(["v", *map(str, orders)])
        return Function(name)(*[self.sample(i) for i, _ in v], *times)

    def sample(self, i: int) -> Symbol:
        if i == ROW:
            assert self.row is not None
            return self.row
        if i == COL:
            assert self.col is not None
            return self.col
        return self.range(i).index

    def range(self, i: int) -> IndexRange:
        """The summed sample number i: beta, beta', beta'', ..."""
        kernel = next(iter(self.kernels.values()))
        like = (*kernel.rows, *kernel.cols)[0]
        return IndexRange(
            Symbol("beta" + "_" * (i - FREE), **like.index.assumptions0), like.lower, like.upper
        )


# -- words as chains of kernels ----------------------------------------------------------------------------

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


__all__ = [
    "Group",
    "entry",
    "error_equation",
    "groups",
    "is_constant",
    "iterated_integral",
    "shuffled",
    "time_integrals",
]
