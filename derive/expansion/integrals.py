"""Words of a linear expansion as iterated integrals of the error over time, and how both are printed.

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

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby, permutations

from sympy import Add, Eq, Expr, Function, Integral, Mul, Rational, S, Sum, Symbol
from sympy.core.function import AppliedUndef
from sympy.functions.elementary.complexes import transpose as Transpose
from sympy.polys.rings import PolyElement, PolyRing

from derive.calculus.recurrences import factored, prime_factors
from derive.calculus.symbols import IndexRange, alpha, ell, mu, s, t
from derive.errors import NotApplicable
from derive.expansion.errors import OUTPUT, ErrorLaw
from derive.expansion.expansion import Block, printed
from derive.expansion.words import TANGENT, Flipped, LinearSeries, Memory, Spelled, Word, letters, terms
from derive.linear.operators import J
from derive.show import PaperLatex, PaperText, latex, notation, text
from derive.show.latex import beside


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

    >>> from derive.expansion import expand_linear
    >>> from derive import mean_field, mlp
    >>> x = expand_linear(mean_field(mlp(rule="flow")), 0)
    >>> time_integrals(x, x.words["D"][0], None, alpha)
    (L - ell + 1)*Delta0(alpha, s)
    """
    found = _Entries(expansion, row, col, now, past)
    found.add(e)
    return Add(*[x.expr for x in found.groups()])


def entry(expansion: LinearSeries, name: str, n: int, now: Expr = t, past: Expr = s) -> Expr:
    """The coefficient of gamma0^n of an order parameter's entry, as time integrals ``v`` of the error.

    ``name`` is one of ``H``, ``G``, ``A``, ``B``, ``C``, ``D``, ``K`` (the tangent kernel) and ``f`` (at time
    ``now``); samples are called mu and alpha.  Raises :class:`NotApplicable` where products of such integrals
    under one more sum over time do not reduce (discrete rules, from order 4).

    >>> from derive.expansion import expand_linear
    >>> from derive import mean_field, mlp
    >>> expand_linear(mean_field(mlp(rule="flow")), 0).entry("A", 0)
    ell*Sum(Delta0(beta, s)*K_x(mu, beta), (beta, 1, P))
    """
    return Add(*[x.expr for x in groups(expansion, name, n, now, past)])


def groups(expansion: LinearSeries, name: str, n: int, now: Expr = t, past: Expr = s) -> list[Group]:
    """The entry as terms with different coefficients or kernels."""
    if name == TANGENT:
        found = _Entries(expansion, mu, alpha, now, past)
        for c, g, h in expansion.triples(n):
            found.add_product(c, g, h)
    elif name == OUTPUT:
        found = _Entries(expansion, mu, None, now, now)
        found.add(expansion.expr(OUTPUT, n))
    else:
        row, col = sides(expansion, name)
        found = _Entries(expansion, mu if row else None, alpha if col else None, now, past)
        found.add(expansion.expr(name, n))
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
    """The error at order n in time integrals, from the orders of the output (:class:`.ErrorLaw`).

    The part with ``v_n`` is linear in the error sought: of the square loss, and of any beyond order 0, it is
    a linear Volterra equation driven by the rest.

    >>> from derive.expansion import expand_linear
    >>> from derive import mean_field, mlp
    >>> print(expand_linear(mean_field(mlp(rule="flow")), 0).error_equation(0).rhs)
    (-L - 1)*Sum(K_x(mu, beta)*v(beta, t), (beta, 1, P)) + y(mu)
    """
    law = ErrorLaw.of(expansion.closure.theory)
    if law.affine and law.slope(1).is_Number:
        start = law.order([S.Zero]) if n == 0 else S.Zero
        rest = [
            replace(x, coefficient=law.slope(1) * x.coefficient).expr for x in groups(expansion, OUTPUT, n)
        ]
        whole = Add(start, *rest)
    else:
        whole = law.order([entry(expansion, OUTPUT, k) for k in range(n + 1)])
    return Eq(Function(f"Delta{n}")(mu, t), whole, evaluate=False)


def iterated_integral(expansion: LinearSeries, v: AppliedUndef) -> Expr:
    """What ``v(a, b, ..., t)`` stands for, as nested integrals (or sums with the rule's weights).

    >>> from derive.expansion import expand_linear
    >>> from derive import mean_field, mlp
    >>> iterated_integral(expand_linear(mean_field(mlp(rule="flow")), 0), Function("v")(mu, t))
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


# -- words as chains of kernels ----------------------------------------------------------------------------

ROW, COL, FREE = 0, 1, 2
"""Samples are numbered: the row's, the column's, and from FREE on those summed over."""

KERNEL, NOW, SINCE, PAST, SOURCE = range(5)
"""Factors: a data kernel, an integral from 0 to t, from s to t, from 0 to s, and the error at s."""

Nested = tuple[tuple[int, int], ...]
"""An iterated integral: (sample, order of the error) from the latest time to the earliest."""

Factor = tuple[int, str, Nested]
Piece = tuple[Factor, ...]
"""A product."""

PERMUTED = 6
"""With more summed samples than this, terms are not brought to a common labelling."""


def _of(piece: Piece, *kinds: int) -> Piece:
    return tuple(x for x in piece if x[0] in kinds)


def _nested(piece: Piece, kind: int) -> tuple[Nested, ...]:
    return tuple(v for k, _, v in piece if k == kind)


def _summed(piece: Piece) -> list[int]:
    """The samples that are summed over."""
    return sorted({i for _, _, v in piece for i, _ in v if i >= FREE})


class _Entries:
    """Reads the entries of words and collects them with their coefficients; equal ones are put together."""

    def __init__(
        self, expansion: LinearSeries, row: Symbol | None, col: Symbol | None, now: Expr, past: Expr
    ) -> None:
        closure = expansion.closure
        self.samples = {ROW: row, COL: col}
        self.row, self.col = (None if row is None else ROW), (None if col is None else COL)
        self.now, self.past = now, past
        self.rule = closure.theory.program.rule
        self.kernels = {k.name: k for k in closure.kernels if k.causal and k.definition != 0}
        self.symmetric = frozenset(str(e.rhs) for e in closure.base if e.rhs != 0)
        self.found: dict[tuple[Piece, bool], Expr] = {}
        self.count = FREE

    def add(self, e: Expr) -> None:
        """A sum of words."""
        for c, w in terms(e):
            self.count, ls = FREE, letters(w)
            if response := not any(is_constant(x) for x in ls):
                if len(ls) > 1 and self.rule.memory(t, s)[1].has(t, s):
                    raise NotApplicable(f"{w} with a weight that depends on time")
                pieces = self.between(ls, self.row, self.col)
            else:
                pieces = self.correlation(w, self.row, self.col)
            for p in pieces:
                self.note(c, p, response)

    def add_product(self, c: Expr, a: Expr, b: Expr) -> None:
        """The entries of two words, multiplied; only the second has samples."""
        self.count = FREE
        right = list(self.correlation(b, self.row, self.col))
        for x in self.correlation(a, None, None):
            for y in right:
                self.note(c, x + y, False)

    def note(self, c: Expr, p: Piece, response: bool) -> None:
        if self.now == self.past:
            p = tuple((NOW if k == PAST else k, name, v) for k, name, v in p)
        key = self.standard(p), response
        self.found[key] = self.found.get(key, S.Zero) + c

    def standard(self, p: Piece) -> Piece:
        """The same product with its summed samples named in a standard way, for comparison with others."""
        old = _summed(p)
        fresh = range(FREE, FREE + len(old))
        orders = permutations(fresh) if len(old) <= PERMUTED else iter([tuple(fresh)])
        return min(self.renamed(p, dict(zip(old, new, strict=True))) for new in orders)

    def renamed(self, p: Piece, names: Mapping[int, int]) -> Piece:
        """With other samples, and factors in their standard order."""
        moved = ((k, name, tuple((names.get(i, i), n) for i, n in v)) for k, name, v in p)
        return tuple(sorted((k, x, tuple(sorted(v)) if x in self.symmetric else v) for k, x, v in moved))

    # -- reading ---------------------------------------------------------------------------------------

    def letter(
        self, x: Expr, row: int | None
    ) -> tuple[Memory, int, tuple[int | None, int | None], int | None]:
        """A causal letter, a new sample, the samples of what it remembers, and the row of the next letter."""
        if not isinstance(x, Memory):
            raise NotApplicable(f"{x} in a chain of causal kernels")
        self.count += 1
        a = self.count - 1
        rows = bool(self.kernels[x.kernel].rows)
        return x, a, (row, a) if rows else (None, None), None if rows else a

    def correlation(self, word: Expr, row: int | None, col: int | None) -> Iterator[Piece]:
        """The entry ``(row, t), (col, s)`` of a word that has a constant kernel."""
        ls = letters(word)
        at = [k for k, x in enumerate(ls) if is_constant(x)]
        if len(at) != 1:
            raise NotApplicable(f"{word} must have one constant kernel; it has {len(at)}")
        before, constant, after = ls[: at[0]], ls[at[0]], ls[at[0] + 1 :]
        if any(not isinstance(x, Transpose) for x in after):
            raise NotApplicable(f"{word} has a causal kernel to the right of a constant one")
        for left, i in self.chain(before, row):
            for right, j in self.chain([x.args[0] for x in reversed(after)], col):
                middle: Piece = ()
                if constant != J:
                    assert i is not None
                    assert j is not None
                    middle = ((KERNEL, str(constant), ((i, 0), (j, 0))),)
                past = ((PAST if k == NOW else k, name, v) for k, name, v in right)
                yield (*left, *middle, *past)

    def chain(self, ls: list[Expr], row: int | None) -> Iterator[tuple[Piece, int | None]]:
        """Causal letters applied to a constant, as a function of t; with the sample of the constant."""
        if not ls:
            yield (), row
            return
        x, a, place, following = self.letter(ls[0], row)
        for rest, last in self.chain(ls[1:], following):
            for body in self.correlation(x.body, *place):
                for v in self.product((*_nested(body, PAST), *_nested(rest, NOW))):
                    own: Factor = (NOW, "", ((a, x.order), *v))
                    yield (*_of(body, KERNEL, NOW), *_of(rest, KERNEL), own), last

    def between(self, ls: list[Expr], row: int | None, col: int | None) -> Iterator[Piece]:
        """The entry ``(row, t), (col, s)``, s < t, of a word of causal letters only."""
        x, a, place, following = self.letter(ls[0], row)
        final = len(ls) == 1
        if final and self.kernels[x.kernel].cols and col is not None:
            a, place = col, (row, col) if self.kernels[x.kernel].rows else place
        for body in self.correlation(x.body, *place):
            if final:
                yield (*body, (SOURCE, "", ((a, x.order),)))
                continue
            for rest in self.between(ls[1:], following, col):
                whole = (*_nested(body, PAST), *_nested(rest, NOW))
                for early, v in self.from_past(whole, _nested(rest, SINCE)):
                    own: Factor = (SINCE, "", ((a, x.order), *v))
                    past = ((PAST, "", y) for y in early)
                    yield (*_of(body, KERNEL, NOW), *_of(rest, KERNEL, PAST, SOURCE), own, *past)

    def product(self, vs: tuple[Nested, ...]) -> list[Nested]:
        """A product of integrals over the same range as a sum of integrals."""
        if len(vs) > 1 and self.rule.discrete:
            raise NotApplicable("a product of sums over steps, within another sum, is left as it is")
        found: list[Nested] = [vs[0] if vs else ()]
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
        if self.rule.discrete:
            raise NotApplicable("a sum over all steps, within a sum from s on, is left as it is")
        v, *others = whole
        for k in range(len(v) + 1):
            late, early = v[:k], v[k:]
            for before, w in self.from_past(tuple(others), (*since, late) if late else since):
                yield ((early, *before) if early else before), w

    # -- to expressions --------------------------------------------------------------------------------

    def groups(self) -> list[Group]:
        """One for each coefficient and set of kernels; short integrals first."""
        together: dict[tuple[Expr, Piece, bool], list[Piece]] = {}
        for (p, response), c in self.found.items():
            coefficient = c.expand()
            if coefficient != 0:
                together.setdefault((coefficient, _of(p, KERNEL, SOURCE), response), []).append(p)
        return [self.group(factored(c), outer, ps, r) for (c, outer, r), ps in together.items()]

    def group(self, c: Expr, outer: Piece, ps: list[Piece], response: bool) -> Group:
        weight = self.rule.memory(self.now, self.past)[1] if response else S.One
        inner = sorted((_of(p, NOW, SINCE, PAST) for p in ps), key=lambda p: (len(p), len(_of(p, PAST))))
        kernel = next(iter(self.kernels.values()))
        like = (*kernel.rows, *kernel.cols)[0]
        ranges = tuple(IndexRange(self.sample(i), like.lower, like.upper) for i in _summed(ps[0]))
        factors = tuple(tuple(map(self.factor, p)) for p in (outer, *inner))
        return Group(c, weight, ranges, factors[0], factors[1:])

    def factor(self, x: Factor) -> Expr:
        kind, name, v = x
        samples, orders = [self.sample(i) for i, _ in v], [n for _, n in v]
        if kind == KERNEL:
            return Function(name)(*samples)
        if kind == SOURCE:
            return Function(f"Delta{orders[0]}")(*samples, self.past)
        times = {NOW: (self.now,), SINCE: (self.now, self.past), PAST: (self.past,)}[kind]
        return Function("_".join(["v", *map(str, orders if any(orders) else ())]))(*samples, *times)

    def sample(self, i: int) -> Symbol:
        """The row's, the column's, or a summed one: beta, beta', beta'', ..."""
        given = self.samples.get(i)
        return Symbol("beta" + "_" * (i - FREE), **mu.assumptions0) if given is None else given


@lru_cache(maxsize=10_000)
def shuffled(a: Nested, b: Nested) -> tuple[Nested, ...]:
    """All interleavings of two integrals."""
    if not a or not b:
        return (a + b,)
    first = tuple((a[0], *w) for w in shuffled(a[1:], b))
    return first + tuple((b[0], *w) for w in shuffled(a, b[1:]))


def is_constant(x: Expr) -> bool:
    """Is the letter a kernel without memory?"""
    return not isinstance(x, Memory | Transpose)


INTEGRALS = 2
"""Up to this order entries are printed as time integrals; beyond, they fill pages."""

ENTRIES = {"H": (mu, alpha), "G": (), "A": (mu,), "B": (alpha,), "K": (mu, alpha)}


def render(series: LinearSeries, format: str = "text") -> str:
    """All series, their letters and their time integrals.  Raises ValueError for an unknown format."""
    x = _Writer(series, LATEX if format == "latex" else TEXT)
    depth = x.theory.program.depth
    head = (
        f"Expansion in γ₀ to order {series.order}: a deep linear network with {depth} hidden layers\n\n"
        "Operators: products run over the time between, X∘Y multiplies entries, {X}_sym = X + Xᵀ.\n"
        "C[X] and D[X] remember X with the error Δ^(0), as C^ℓ and D^ℓ do; Cₙ[X] and Dₙ[X] with Δ^(n)."
    )
    symmetric = [
        (r"\left\{\boldsymbol{X}\right\}_{\mathrm{sym}}", [r"\boldsymbol{X} + \boldsymbol{X}^{\top}"])
    ]
    blocks: dict[str, Block] = {
        "Kernels": [*(symmetric if format == "latex" else []), *x.kernels()],
        "c = C[Kˣ] and d = D[11ᵀ]": x.letters(),
        "Operators": x.series(),
        "Entries": x.entries(),
        "Error": x.errors(),
        "Time integrals": x.integrals(),
    }
    return printed(format, head, blocks)


class _Writer:
    """The equations of an expansion as pairs: a left-hand side, and one string for each order."""

    def __init__(self, series: LinearSeries, script: Script) -> None:
        self.x, self.script = series, script
        self.words = Words(script, (v.rhs for v in series.closure.base if v.rhs != 0))
        self.theory = series.closure.theory
        self.known = [x for x in series.sums if x != OUTPUT and (x != TANGENT or any(series.sums[x]))]
        self.orders = range(min(series.order, INTEGRALS) + 1)
        names = {"K_x": "K^x"}
        for n in range(series.order + 1):
            names |= {
                f"Delta{n}": rf"\Delta^{{({n})}}",
                f"v_{n}": f"v^{{({n})}}",
                f"f{n}": f"f^{{({n})}}",
            }
        for k in range(1, 9):
            names |= {"beta" + "_" * k: r"\beta" + "'" * k, "t" + "_" * k: "t" + "'" * k}
        self.printer = script.printer(notation(self.theory, names))

    def show(self, e: Expr) -> str:
        """An expression in the papers' notation."""
        return str(self.printer.doprint(e))

    def in_orders(self, parts: list[tuple[int, str]]) -> list[str]:
        """``a + gamma0^2 [b] + ...``, one string for each order; 0 if there are none."""
        shown = [
            f"{self.script.power(self.script.gamma, n)}{self.script.gap}{self.script.bracket(x)}" if n else x
            for n, x in parts
        ]
        return shown or ["0"]

    def series(self) -> Block:
        """The operators as words."""
        for name in self.known:
            write = self.words.products if name == TANGENT else self.words.total
            found = [(n, write(e)) for n, e in enumerate(self.x.sums[name]) if e]
            yield self.script.operator(name), self.in_orders(found)

    def kernels(self) -> Block:
        """What C and D remember."""
        for k in self.x.closure.kernels:
            if k.causal and k.definition != 0:
                yield self.show(k.entry), [self.show(k.definition)]

    def letters(self) -> Block:
        """The entries of the shortest letters."""
        for name in ("C", "D"):
            small = self.x.expr(name, 0).atoms(Memory) if name in self.x.sums else []
            for x in small:
                if x.order == 0 and len(letters(x.body)) == 1:
                    row, col = (mu, None) if name == "C" else (None, alpha)
                    e = time_integrals(self.x, x, row, col)
                    sample = mu if name == "C" else alpha
                    yield self.show(Function(name.lower())(sample, t, s)), [self.show(e)]

    def groups(self, found: list[Group]) -> str:
        """Coefficients, sums over samples, and the rest in the order of the paper."""
        parts: list[tuple[Expr, str]] = []
        for c, same in groupby(found, key=lambda x: x.coefficient):
            bodies = [self.body(x) for x in same]
            bare = len(bodies) == 1 or c in (1, -1)
            parts += [(c, x) for x in bodies] if bare else [(c, self.script.bracket(" + ".join(bodies)))]
        return self.words.signed_sum(parts)

    def body(self, x: Group) -> str:
        samples = "".join(self.show(r.index) for r in x.samples)
        parts = [] if x.weight == 1 else [self.script.weight(self.show(x.weight))]
        parts += [self.script.summation(samples)] if samples else []
        parts += map(self.show, x.outer)
        inner = [" ".join(map(self.show, factors)) for factors in x.inner]
        parts.append(self.script.bracket(" + ".join(inner)) if len(inner) > 1 else inner[0])
        return " ".join(filter(None, parts))

    def entries(self) -> Block:
        """The order parameters as time integrals."""
        for name, samples in ENTRIES.items():
            if name not in self.known:
                continue
            written = [(n, self.written(name, n)) for n in self.orders]
            parts = [(n, "..." if x is None else self.groups(x)) for n, x in written if x != []]
            if self.x.order > INTEGRALS:
                parts.append((self.x.order, "..."))
            layer = () if name == "K" else (ell,)
            yield self.show(Function(name)(*layer, *samples, t, s)), self.in_orders(parts)

    def written(self, name: str, n: int) -> list[Group] | None:
        """The terms of an entry; None of one that sums over time do not give (responses with momentum)."""
        try:
            return groups(self.x, name, n)
        except NotApplicable:
            return None

    def errors(self) -> Block:
        """The equations of the error's coefficients."""
        law = ErrorLaw.of(self.theory)
        for n in self.orders:
            found = groups(self.x, OUTPUT, n)
            if n and not found:
                continue
            error = self.show(Function(f"Delta{n}")(mu, t))
            if law.affine and law.slope(1).is_Number:
                rest = self.groups([replace(x, coefficient=law.slope(1) * x.coefficient) for x in found])
                if n == 0:
                    sign, rest = ("-", rest[1:]) if rest.startswith("-") else ("+", rest)
                    rest = f"{self.show(law.order([S.Zero]))} {sign} {rest}"
                yield error, [rest]
                continue
            lower = [Function(f"f{k}")(mu, t) if groups(self.x, OUTPUT, k) else S.Zero for k in range(n + 1)]
            yield error, [self.show(law.order(lower))]
            yield self.show(lower[n]), [self.groups(found)]

    def integrals(self) -> Block:
        """What the integrals ``v`` stand for, as far as they occur: one example of each kind."""
        seen: dict[tuple[str, int, int], AppliedUndef] = {}
        for n in self.orders:
            for name in (*ENTRIES, OUTPUT):
                if name in (*self.known, OUTPUT):
                    for g in self.written(name, n) or []:
                        for v in g.expr.atoms(AppliedUndef):
                            if str(v.func).split("_")[0] == "v":
                                count = sum(bool(x.is_integer) for x in v.args)
                                seen.setdefault((str(v.func), count, len(v.args) - count), v)
        for (name, count, times), _ in sorted(seen.items(), key=lambda x: (x[0][2], x[0][1], x[0][0])):
            samples = [Symbol("beta" + "_" * k, **mu.assumptions0) for k in range(count)]
            v = Function(name)(*samples, *(t, s)[:times])
            yield self.show(v), [self.show(iterated_integral(self.x, v))]


_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_LOWERED = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


@dataclass(frozen=True, eq=False)
class Script:
    """Signs of one output format."""

    printer: type[PaperLatex | PaperText]
    plain: Callable[[Expr], str]
    gamma: str
    operator: Callable[[str], str]
    one: str
    data: Callable[[str], str]
    letter: Callable[[str, int], str]
    memory: Callable[[str, int, str], str]
    flipped: Callable[[str], str]
    symmetrized: Callable[[str], str]
    joint: str
    power: Callable[[str, int], str]
    fraction: Callable[[str, int], str]
    brackets: tuple[str, str]
    times: str
    gap: str
    tight: str
    summation: Callable[[str], str]
    weight: Callable[[str], str]

    def bracket(self, body: str) -> str:
        """In square brackets."""
        return f"{self.brackets[0]}{body}{self.brackets[1]}"


class Words:
    """Coefficients and words in one script; each coefficient and each letter is written once."""

    def __init__(self, script: Script, symmetric: Iterable[Expr] = ()) -> None:
        self.script, self.spelled, self.flipped = script, Spelled(), Flipped(symmetric)
        self.numbers: dict[Expr | PolyElement, tuple[bool, str]] = {}
        self.letters: dict[Expr, str] = {}
        self.symbols: dict[PolyRing, list[str]] = {}

    # -- coefficients ----------------------------------------------------------------------------------

    def coefficient(self, c: Expr | PolyElement) -> str:
        """A positive coefficient in front of a word: nothing for 1, sums in parentheses."""
        return self.signed(c)[1]

    def signed(self, c: Expr | PolyElement) -> tuple[bool, str]:
        """Whether a coefficient is negative, and what it is in front of a word."""
        if c not in self.numbers:
            self.numbers[c] = self._signed(c)
        return self.numbers[c]

    def _signed(self, c: Expr | PolyElement) -> tuple[bool, str]:
        number, found = prime_factors(c)
        assert isinstance(number, Rational)
        size = {p: _simplicity(p) for p, _ in found}
        alike = Counter(size.values())
        order = sorted(found, key=lambda x: (size[x[0]], str(x[0]) if alike[size[x[0]]] > 1 else ""))
        shown = [self.factor(p, k) for p, k in order]
        if abs(number.p) != 1 or not shown:
            shown.insert(0, str(abs(number.p)))
        body = beside(shown)
        if number.q != 1:
            return number.is_negative, self.script.fraction(body, number.q)
        return number.is_negative, "" if body == "1" else body

    def factor(self, p: PolyElement, k: int) -> str:
        """A power; a sum in parentheses, what is added first."""
        if p.ring not in self.symbols:
            self.symbols[p.ring] = [self.script.plain(x) for x in p.ring.symbols]
        names = self.symbols[p.ring]
        parts = sorted(p.terms(), key=lambda x: x[1] < 0)
        signs = ("-" if c < 0 else "+" for _, c in parts)
        body = "".join(sign + self.monomial(names, *x) for sign, x in zip(signs, parts, strict=True))
        shown = f"({body[1:]})" if len(parts) > 1 else body[1:]
        return shown if k == 1 else self.script.power(shown, k)

    def monomial(self, names: list[str], powers: tuple[int, ...], c: int) -> str:
        """A term of a polynomial, without its sign."""
        shown = [x if m == 1 else self.script.power(x, m) for x, m in zip(names, powers, strict=True) if m]
        number = [str(abs(c))] if abs(c) != 1 or not shown else []
        return self.script.tight.join([*number, *shown])

    # -- words -----------------------------------------------------------------------------------------

    def word(self, w: Word) -> str:
        """A word; 1 if empty."""
        return self.script.joint.join(map(self.of_letter, w)) or "1"

    def of_letter(self, x: Expr) -> str:
        """A lower-case letter remembers a constant kernel; C[X] remembers the word X."""
        if x not in self.letters:
            self.letters[x] = self._of_letter(x)
        return self.letters[x]

    def _of_letter(self, x: Expr) -> str:
        if isinstance(x, Transpose):
            return self.script.flipped(self.of_letter(x.args[0]))
        if x == J:
            return self.script.one
        if isinstance(x, Memory):
            if isinstance(x.body, Memory) or len(letters(x.body)) > 1:
                return self.script.memory(x.kernel, x.order, self.word(tuple(letters(x.body))))
            return self.script.letter(x.kernel.lower(), x.order)
        return self.script.data(str(x))

    def signed_sum(self, parts: Iterable[tuple[Expr | PolyElement, str]]) -> str:
        """``coefficient word + ...``."""
        out: list[str] = []
        for c, shown in parts:
            minus, number = self.signed(c)
            out.append(("-" if minus else "") if not out else (" - " if minus else " + "))
            out.append(self.script.gap.join(filter(None, (number, shown))) or "1")
        return "".join(out) or "0"

    def words(self, ws: Iterable[Word]) -> list[str]:
        """Words with coefficient 1: a word and its transpose as one, memories of several words as one."""
        left, shown = dict.fromkeys(ws), []
        alike: dict[tuple[str, int], list[Word]] = {}
        for w in left:
            if len(w) == 1 and isinstance(w[0], Memory) and len(letters(w[0].body)) > 1:
                alike.setdefault((w[0].kernel, w[0].order), []).append(w)
        done: set[Word] = set()
        for w in left:
            if w in done:
                continue
            if len(w) == 1 and isinstance(w[0], Memory) and len(letters(w[0].body)) > 1:
                same = alike[w[0].kernel, w[0].order]
                done.update(same)
                bodies = self.words(tuple(letters(x.body)) for (x,) in same)
                shown.append(self.script.memory(w[0].kernel, w[0].order, " + ".join(bodies)))
                continue
            other = self.flipped.word(w)
            if other != w and other in left:
                done.add(other)
                w = min(w, other, key=lambda x: sum(isinstance(y, Transpose) for y in x))
                shown.append(self.script.symmetrized(self.word(w)))
            else:
                shown.append(self.word(w))
        return shown

    def total(self, found: Mapping[Word, PolyElement]) -> str:
        """A sum of words, those with the same coefficient together."""
        together: dict[PolyElement, list[Word]] = {}
        for w in sorted(found, key=lambda w: (len(w), self.spelled.word(w))):
            together.setdefault(found[w], []).append(w)
        shown: list[tuple[PolyElement, str]] = []
        for c, ws in together.items():
            parts = self.words(ws)
            if c in (1, -1) or len(parts) == 1:
                shown += [(c, x) for x in parts]
            else:
                shown.append((c, self.script.bracket(" + ".join(parts))))
        return self.signed_sum(shown)

    def products(self, found: Mapping[tuple[Word, Word], PolyElement]) -> str:
        """Products of two words, entry by entry: those with the same coefficient and a constant together."""
        together: dict[PolyElement, dict[tuple[str, Word], list[Word]]] = {}
        for (a, b), c in found.items():
            side = ("right", b) if all(map(is_constant, b)) else ("left", a)
            varying = a if side[0] == "right" else b
            together.setdefault(c, {}).setdefault(side, []).append(varying)
        shown = []
        for c, sides in together.items():
            parts = []
            for (place, fixed), ws in sides.items():
                body = self.words(ws)
                many = self.script.bracket(" + ".join(body)) if len(body) > 1 else body[0]
                pair = (many, self.word(fixed)) if place == "right" else (self.word(fixed), many)
                parts.append(f" {self.script.times} ".join(pair))
            several = len(parts) > 1 and c not in (1, -1)
            shown.append((c, self.script.bracket(" + ".join(parts)) if several else " + ".join(parts)))
        return self.signed_sum(shown)


def _simplicity(p: PolyElement) -> tuple[bool, int, int, int]:
    """Simple factors come first."""
    size = max(abs(int(c)) for c in p.coeffs())
    variables = sum(any(x) for x in zip(*p.monoms(), strict=True))
    return len(p) > 1, max(map(sum, p.monoms())), variables, size


def _tight(shown: str) -> str:
    return shown.replace(" + ", "+").replace(" - ", "-")


TEXT = Script(
    printer=PaperText,
    plain=lambda e: text(e).replace(" ", ""),
    gamma="γ₀",
    operator=lambda name: name if name == "K" else f"{name}^ℓ",
    one="11ᵀ",
    data=lambda name: {"K_x": "Kˣ"}.get(name, name),
    letter=lambda name, order: name + (str(order).translate(_LOWERED) if order else ""),
    memory=lambda name, order, body: f"{name}{str(order).translate(_LOWERED) if order else ''}[{body}]",
    flipped=lambda x: x + "ᵀ",
    symmetrized=lambda x: f"{{{x}}}_sym",
    joint=" ",
    power=lambda x, k: x + str(k).translate(_RAISED),
    fraction=lambda x, q: f"{x}/{q}",
    brackets=("[", "]"),
    times="∘",
    gap=" ",
    tight="",
    summation=lambda indices: f"Σ_{indices}",
    weight=lambda x: f"({x})" if "/" in x else x,
)

LATEX = Script(
    printer=PaperLatex,
    plain=lambda e: _tight(latex(e)),
    gamma=r"\gamma_0",
    operator=lambda name: (
        r"\boldsymbol{K}^{\mathrm{NTK}}" if name == "K" else rf"\boldsymbol{{{name}}}^{{\ell}}"
    ),
    one=r"\boldsymbol{1}\boldsymbol{1}^{\top}",
    data=lambda name: {"K_x": r"\boldsymbol{K}^{x}"}.get(name, rf"\boldsymbol{{{name}}}"),
    letter=lambda name, order: rf"\boldsymbol{{{name}}}" + (f"_{{{order}}}" if order else ""),
    memory=lambda name, order, body: (
        rf"\mathcal{{{name}}}" + (f"_{{{order}}}" if order else "") + rf"\left[{body}\right]"
    ),
    flipped=lambda x: x + r"^{\top}",
    symmetrized=lambda x: rf"\left\{{{x}\right\}}_{{\mathrm{{sym}}}}",
    joint="",
    power=lambda x, k: f"{x}^{{{k}}}",
    fraction=lambda x, q: rf"\frac{{{x}}}{{{q}}}",
    brackets=(r"\left[", r"\right]"),
    times=r"\circ",
    gap=r"\,",
    tight=" ",
    summation=lambda indices: rf"\sum_{{{indices}}}",
    weight=lambda x: x,
)
