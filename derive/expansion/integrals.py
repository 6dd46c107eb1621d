"""Words of a linear expansion as iterated integrals of the error over time.

With the coefficients Delta0, Delta2, ... of the error and samples a, b, ...,

    v(a, b, ..., t) = int_0^t dt' Delta0_a(t') int_0^t' dt'' Delta0_b(t'') ... ,

or sums in discrete time, with the weight of an update in each of them. ``v(a, ..., t, s)`` starts at s, and
``v_2_0(a, b, t)`` has Delta2 in front of Delta0.

A constant kernel (the K^x of the data, or 1) splits a word into a function of t and a function of s; each is
a chain of causal kernels applied to a constant, by the definitions of the kernels. Products of integrals
under one more integral are shuffled, and integrals that start at 0 are split at s (Chen), so that every entry
of a flow without decay and momentum is a sum of products of iterated integrals. Sums over steps obey other
rules and are not rewritten.
`LinearExpansion.entry` and the printed form use the module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, permutations

from sympy import Add, Eq, Expr, Function, Integral, Mul, S, Sum, Symbol, transpose
from sympy.core.function import AppliedUndef

from derive.calculus.recurrences import factored
from derive.calculus.symbols import IndexRange, alpha, mu, s, t
from derive.errors import NotApplicable
from derive.expansion.errors import OUTPUT, ErrorLaw
from derive.expansion.operator_words import TANGENT, LinearSeries, Memory, letters, terms
from derive.linear.operators import J


@dataclass(frozen=True)
class Group:
    """Part of an entry of an operator: terms with the same coefficient and kernels, written with brackets.

    It is ``coefficient * weight * sum over samples of outer * (inner_1 + inner_2 + ...)``. ``weight`` is that
    of a past update, or 1. ``samples`` are the ranges of the samples that are summed over. ``outer`` are
    factors common to all terms; each member of ``inner`` is a tuple of factors (iterated integrals of the
    error) of one term.
    """

    coefficient: Expr
    weight: Expr
    samples: tuple[IndexRange, ...]
    outer: tuple[Expr, ...]
    inner: tuple[tuple[Expr, ...], ...]

    @property
    def expr(self) -> Expr:
        """SymPy expression of ``coefficient * weight * sum over samples of outer * (sum of inner)``."""
        body = Mul(*self.outer, Add(*[Mul(*x) for x in self.inner]))
        # The outermost sum is the first of `samples`. In SymPy the first limit is the innermost.
        limits = [r.limits for r in reversed(self.samples)]
        return Mul(self.coefficient, self.weight, Sum(body, *limits) if limits else body)


def time_integrals(
    expansion: LinearSeries, e: Expr, row: Symbol | None, col: Symbol | None, now: Expr = t, past: Expr = s
) -> Expr:
    """Return an entry of an operator, given in operator words, as iterated time integrals of the error.

    An operator word is a product of kernels of two times.

    Parameters
    ----------
    expansion : LinearSeries
        Linear expansion.
    e : Expr
        Sum of words.
    row : Symbol | None
        Sample on the left of the operator, or None.
    col : Symbol | None
        Sample on the right of the operator, or None.
    now : Expr, optional
        First time.
    past : Expr, optional
        Second time.

    Returns
    -------
    Expr
        Entry at ``(row, now), (col, past)``.

    Raises
    ------
    NotApplicable
        If a discrete rule leaves products of sums within sums, or a rule with momentum products of integrals
        within integrals; if a response contains iterated integrals and the weight of past updates depends on
        time; or if a word is neither a product of memories nor one of
        memories, one constant kernel and transposed memories.

    Examples
    --------
    >>> from derive.expansion import expand_linear
    >>> from derive import mean_field, mlp
    >>> x = expand_linear(mean_field(mlp(rule="flow")), 0)
    >>> time_integrals(x, x.words["D"][0], None, alpha)
    (L - ell + 1)*Delta0(alpha, s)
    """
    entries = _Entries(expansion, row, col, now, past)
    entries.add(e)
    return Add(*[x.expr for x in entries.groups()])


def entry(expansion: LinearSeries, name: str, n: int, now: Expr = t, past: Expr = s) -> Expr:
    """Return a coefficient of an order parameter as time integrals of the error.

    Parameters
    ----------
    expansion : LinearSeries
        Linear expansion.
    name : str
        Correlation of fields (``H``) or of gradients (``G``), response (``A``, ``B``), kernel (``C``,
        ``D``), tangent kernel ``K``, or output ``f`` at time ``now``.
    n : int
        Order, at most 8.
    now : Expr, optional
        First time.
    past : Expr, optional
        Second time. A, B, C and D hold for ``past < now``.

    Returns
    -------
    Expr
        Expression in the integrals ``v``, at the symbolic layer ell. Samples are mu and alpha, and beta, ...
        for those summed over; the output has the sample mu.

    Raises
    ------
    KeyError
        If there is no quantity of that name.
    IndexError
        If ``n`` is negative or beyond the order of the series.
    NotApplicable
        If products of such integrals under one more sum over time do not reduce (discrete rules and momentum,
        from order 4), if a response contains such integrals and the weight of past updates depends on time,
        or if the order has too many words.

    Examples
    --------
    >>> from derive.expansion import expand_linear
    >>> from derive import mean_field, mlp
    >>> expand_linear(mean_field(mlp(rule="flow")), 0).entry("A", 0)
    ell*Sum(Delta0(beta, s)*K_x(mu, beta), (beta, 1, P))
    """
    return Add(*[x.expr for x in groups(expansion, name, n, now, past)])


def groups(expansion: LinearSeries, name: str, n: int, now: Expr = t, past: Expr = s) -> list[Group]:
    """Return order n in gamma0 of a quantity's entry as time integrals of the error, collected for printing.

    Each member of the list is a sum of terms that share their coefficient and their data kernels; the entry
    is the sum of all members. Parameters are those of :func:`entry`.
    """
    if name == TANGENT:
        entries = _Entries(expansion, mu, alpha, now, past)
        for c, g, h in expansion.triples(n):
            entries.add_product(c, g, h)
    elif name == OUTPUT:
        entries = _Entries(expansion, mu, None, now, now)
        entries.add(expansion.expr(OUTPUT, n))
    else:
        row, col = sides(expansion, name)
        entries = _Entries(expansion, mu if row else None, alpha if col else None, now, past)
        entries.add(expansion.expr(name, n))
    return entries.groups()


def sides(expansion: LinearSeries, name: str) -> tuple[bool, bool]:
    """Return (left, right): whether an operator of the theory has a sample index on each side.

    Raises KeyError if the closure has no operator of this name, and NotApplicable if it does not state the
    indices.
    """
    for k in expansion.closure.kernels:
        if str(k.operator.args[0]) == name:
            return bool(k.rows), bool(k.cols)
    for e in (*expansion.closure.covariances, *expansion.closure.responses):
        if str(e.lhs.args[0]) == name:
            kernels = ", ".join(str(k.operator.args[0]) for k in expansion.closure.kernels)
            raise NotApplicable(
                f"the operator {name} cannot be written in its entries: the closure states sample indices "
                f"only for its kernels, which are {kernels}"
            )
    raise KeyError(f"the closure has no operator {name!r}")


def error_equation(expansion: LinearSeries, n: int) -> Eq:
    """Return the equation ``Delta_n(mu, t) = ...`` of order n of the error in time integrals.

    The unknown error Delta_n is contained in the integrals ``v_n`` (``v`` at order 0). For the square loss,
    and for any loss beyond order 0, the equation is a linear Volterra equation for Delta_n, and the terms
    without Delta_n drive it.

    Parameters
    ----------
    expansion : LinearSeries
        Linear expansion.
    n : int
        Order, at most 8.

    Returns
    -------
    Eq
        Equation, whose right-hand side is found from the orders of the output (:class:`.ErrorLaw`).

    Raises
    ------
    IndexError
        If ``n`` is negative or beyond the order of the series.
    NotApplicable
        If an order of the output is not given in time integrals, as for :func:`entry`.

    Examples
    --------
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
    """Return an iterated integral ``v(a, b, ..., t)`` of the error written as nested integrals.

    Parameters
    ----------
    expansion : LinearSeries
        Linear expansion.
    v : AppliedUndef
        Iterated integral as it occurs in an entry.

    Returns
    -------
    Expr
        Nested integrals, or sums with the weights of the rule.

    Examples
    --------
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
"""Numbers of samples: that of the row, that of the column, and from FREE on those summed over."""

KERNEL, NOW, SINCE, PAST, SOURCE = range(5)
"""Factors: a data kernel, an integral from 0 to t, from s to t, from 0 to s, and the error at s."""

Nested = tuple[tuple[int, int], ...]
"""An iterated integral: (sample, order of the error) from the latest time to the earliest."""

IntegralFactor = tuple[int, str, Nested]
IntegralProduct = tuple[IntegralFactor, ...]
"""A product of factors (kind, name of a data kernel or "", samples with orders of the error)."""

PERMUTED = 6
"""With more summed samples than this, terms are not brought to a common labelling."""


def _of_kinds(piece: IntegralProduct, *kinds: int) -> IntegralProduct:
    """Return the factors of a product that are of the given kinds.

    Kinds are KERNEL (a data kernel), NOW, SINCE or PAST (an iterated integral of the error from 0 to t, from
    s to t, or from 0 to s), and SOURCE (the error at s).
    """
    return tuple(x for x in piece if x[0] in kinds)


def _nested(piece: IntegralProduct, kind: int) -> tuple[Nested, ...]:
    """Return the iterated integrals of the error among the factors of a product that have the given limits.

    ``kind`` is NOW (from 0 to t), SINCE (from s to t) or PAST (from 0 to s).
    """
    return tuple(v for k, _, v in piece if k == kind)


def _summed(piece: IntegralProduct) -> list[int]:
    """Return the sorted numbers of the summed samples in a product of kernels and iterated integrals."""
    return sorted({i for _, _, v in piece for i, _ in v if i >= FREE})


class _Entries:
    """Collector of an operator's entry at ``(row, now), (col, past)`` as iterated integrals of the error.

    The operator is a sum of operator words, products of kernels, that are added one by one; equal terms are
    joined. ``row`` and ``col`` are samples, or None for an operator without a sample index on that side.
    """

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
        self.found: dict[tuple[IntegralProduct, bool], Expr] = {}
        self.count = FREE

    def add(self, e: Expr) -> None:
        """Convert a sum of operator words to iterated integrals, and add them to the collected entry.

        An operator word is a product of kernels. Raises NotApplicable for a product of several response
        kernels if the weight of past updates depends on time.
        """
        for c, w in terms(e):
            self.count, ls = FREE, letters(w)
            if response := not any(is_constant(x) for x in ls):
                if len(ls) > 1 and self.rule.memory(t, s)[1].has(t, s):
                    raise NotApplicable(
                        f"the response {w} has a weight of past updates that depends on time, so that it is "
                        "not an iterated integral"
                    )
                pieces = self.between(ls, self.row, self.col)
            else:
                pieces = self.correlation(w, self.row, self.col)
            for p in pieces:
                self.add_term(c, p, response)

    def add_product(self, c: Expr, a: Expr, b: Expr) -> None:
        """Add ``c`` times the product of the entries of two operator words, a term of the tangent kernel.

        Words are products of kernels; only the second word, b, has sample indices.
        """
        self.count = FREE
        right = list(self.correlation(b, self.row, self.col))
        for x in self.correlation(a, None, None):
            for y in right:
                self.add_term(c, x + y, False)

    def add_term(self, c: Expr, p: IntegralProduct, response: bool) -> None:
        """Add c times a product p of data kernels and iterated integrals of the error to the collected sum.

        ``response`` is true if the product comes from an operator word of causal kernels only, which has the
        weight of an update as a further factor.
        """
        if self.now == self.past:
            p = tuple((NOW if k == PAST else k, name, v) for k, name, v in p)
        key = self.standard(p), response
        self.found[key] = self.found.get(key, S.Zero) + c

    def standard(self, p: IntegralProduct) -> IntegralProduct:
        """Return a product of kernels and iterated integrals with its summed samples renumbered canonically.

        Products that differ only by the names of at most 6 summed samples become equal.
        """
        old = _summed(p)
        fresh = range(FREE, FREE + len(old))
        orders = permutations(fresh) if len(old) <= PERMUTED else iter([tuple(fresh)])
        return min(self.renamed(p, dict(zip(old, new, strict=True))) for new in orders)

    def renamed(self, p: IntegralProduct, names: Mapping[int, int]) -> IntegralProduct:
        """Return a product of kernels and iterated integrals with new sample numbers, and its factors sorted.

        ``names`` maps old numbers of samples to new ones.
        """
        moved = ((k, name, tuple((names.get(i, i), n) for i, n in v)) for k, name, v in p)
        return tuple(sorted((k, x, tuple(sorted(v)) if x in self.symmetric else v) for k, x, v in moved))

    # -- reading ---------------------------------------------------------------------------------------

    def letter(
        self, x: Expr, row: int | None
    ) -> tuple[Memory, int, tuple[int | None, int | None], int | None]:
        """Return the first kernel of a chain of causal kernels, a memory, with the samples that belong to it.

        A memory x is a correlation X times the error, which is summed over samples. The result has four
        members: x; the number of the error's sample, which is new; the pair (row, column) of samples of X;
        and the sample on the left of the next kernel. ``row`` is the sample on the left of x. Samples are
        None where a kernel has no sample index. Raises NotApplicable if x is not a memory.
        """
        if not isinstance(x, Memory):
            raise NotApplicable(
                f"a product of causal kernels contains the operator {x}; each of its factors must be a "
                "memory kernel, a correlation times the error"
            )
        self.count += 1
        a = self.count - 1
        rows = bool(self.kernels[x.kernel].rows)
        return x, a, (row, a) if rows else (None, None), None if rows else a

    def correlation(self, word: Expr, row: int | None, col: int | None) -> Iterator[IntegralProduct]:
        """Yield iterated integrals whose sum is the entry ``(row, t), (col, s)`` of an operator word.

        The word is a product of causal kernels, one constant kernel, and transposes of causal kernels, in
        this order; any other word raises NotApplicable.
        """
        ls = letters(word)
        at = [k for k, x in enumerate(ls) if is_constant(x)]
        if len(at) != 1:
            raise NotApplicable(
                f"the product of operators {word} must contain exactly one kernel that is constant in time; "
                f"it contains {len(at)}"
            )
        before, constant, after = ls[: at[0]], ls[at[0]], ls[at[0] + 1 :]
        if any(not isinstance(x, transpose) for x in after):
            raise NotApplicable(
                f"the product of operators {word} has an operator other than a transpose to the right of its "
                "constant kernel; only transposes may stand there"
            )
        for left, i in self.chain(before, row):
            for right, j in self.chain([x.args[0] for x in reversed(after)], col):
                middle: IntegralProduct = ()
                if constant != J:
                    assert i is not None
                    assert j is not None
                    middle = ((KERNEL, str(constant), ((i, 0), (j, 0))),)
                past = ((PAST if k == NOW else k, name, v) for k, name, v in right)
                yield (*left, *middle, *past)

    def chain(self, ls: list[Expr], row: int | None) -> Iterator[tuple[IntegralProduct, int | None]]:
        """Apply a product of causal kernels to a constant kernel (data or 1); yield (product, sample).

        ``ls`` are the kernels, ``row`` the sample on their left. The result, a function of t, is the sum of
        the yielded products of iterated integrals. ``sample`` is that on the left of the constant kernel, or
        None.
        """
        if not ls:
            yield (), row
            return
        x, a, place, following = self.letter(ls[0], row)
        for rest, last in self.chain(ls[1:], following):
            for body in self.correlation(x.body, *place):
                for v in self.product((*_nested(body, PAST), *_nested(rest, NOW))):
                    integral: IntegralFactor = (NOW, "", ((a, x.order), *v))
                    yield (*_of_kinds(body, KERNEL, NOW), *_of_kinds(rest, KERNEL), integral), last

    def between(self, ls: list[Expr], row: int | None, col: int | None) -> Iterator[IntegralProduct]:
        """Yield products of iterated integrals whose sum is the entry of a product of causal kernels.

        ``ls`` are the kernels. The entry is that at ``(row, t), (col, s)`` with s < t, for the samples row
        and col. It is without the weight of the update at s, which :meth:`group` adds.
        """
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
                    integral: IntegralFactor = (SINCE, "", ((a, x.order), *v))
                    past = ((PAST, "", y) for y in early)
                    yield (
                        *_of_kinds(body, KERNEL, NOW),
                        *_of_kinds(rest, KERNEL, PAST, SOURCE),
                        integral,
                        *past,
                    )

    def product(self, vs: tuple[Nested, ...]) -> list[Nested]:
        """Return the product of iterated integrals of the error as a list of such integrals, whose sum it is.

        All have the same limits. More than one raise NotApplicable for a discrete rule, and if the weight
        ``w(t, s)`` of past updates changes with the time t, as with momentum.
        """
        if len(vs) > 1 and self.rule.discrete:
            raise NotApplicable(
                "a product of sums over steps inside of another sum is not supported: use the theory of a "
                "flow, or a lower order"
            )
        weight = self.rule.memory(t, s)[1]
        if len(vs) > 1 and weight.has(t):
            raise NotApplicable(
                "a product of time integrals inside of another one is not an iterated integral if the weight "
                f"of past updates, {weight}, changes with the time t: use a lower order, or a rule without "
                "momentum"
            )
        integrals: list[Nested] = [vs[0] if vs else ()]
        for v in vs[1:]:
            integrals = [w for u in integrals for w in shuffled(u, v)]
        return integrals

    def from_past(
        self, whole: tuple[Nested, ...], since: tuple[Nested, ...]
    ) -> Iterator[tuple[tuple[Nested, ...], Nested]]:
        """Split the product of integrals from 0 to t and from s to t at s; yield pairs (early, late).

        ``whole`` are iterated integrals of the error from 0 to t, ``since`` those from s to t. The sum over
        pairs of the product of the integrals ``early`` from 0 to s and the one integral ``late`` from s to t
        is the product of all. For a discrete rule NotApplicable is raised if there is an integral in
        ``whole``, or more than one in ``since``.
        """
        if not whole:
            yield from (((), v) for v in self.product(since))
            return
        if self.rule.discrete:
            raise NotApplicable(
                "a sum over all steps inside of a sum that starts at s is not supported: use the theory of a "
                "flow, or a lower order"
            )
        v, *others = whole
        for k in range(len(v) + 1):
            late, early = v[:k], v[k:]
            for before, w in self.from_past(tuple(others), (*since, late) if late else since):
                yield ((early, *before) if early else before), w

    # -- to expressions --------------------------------------------------------------------------------

    def groups(self) -> list[Group]:
        """Return the collected sum, with terms of equal coefficient and data kernels in one group."""
        by_coefficient: dict[tuple[Expr, IntegralProduct, bool], list[IntegralProduct]] = {}
        for (p, response), c in self.found.items():
            coefficient = c.expand()
            if coefficient != 0:
                by_coefficient.setdefault((coefficient, _of_kinds(p, KERNEL, SOURCE), response), []).append(p)
        return [self.group(factored(c), outer, ps, r) for (c, outer, r), ps in by_coefficient.items()]

    def group(
        self, c: Expr, outer: IntegralProduct, products: list[IntegralProduct], response: bool
    ) -> Group:
        """Return products of iterated integrals with a common coefficient ``c`` as one bracketed sum.

        ``outer`` are the factors that all ``products`` contain: data kernels and the error at s. ``response``
        adds the weight of an update as a factor.
        """
        weight = self.rule.memory(self.now, self.past)[1] if response else S.One
        inner = sorted(
            (_of_kinds(p, NOW, SINCE, PAST) for p in products),
            key=lambda p: (len(p), len(_of_kinds(p, PAST))),
        )
        kernel = next(iter(self.kernels.values()))
        like = (*kernel.rows, *kernel.cols)[0]
        ranges = tuple(IndexRange(self.sample(i), like.lower, like.upper) for i in _summed(products[0]))
        factors = tuple(tuple(map(self.factor, p)) for p in (outer, *inner))
        return Group(c, weight, ranges, factors[0], factors[1:])

    def factor(self, x: IntegralFactor) -> Expr:
        """Return one factor as a SymPy expression: data kernel, iterated integral, or the error at s."""
        kind, name, v = x
        samples, orders = [self.sample(i) for i, _ in v], [n for _, n in v]
        if kind == KERNEL:
            return Function(name)(*samples)
        if kind == SOURCE:
            return Function(f"Delta{orders[0]}")(*samples, self.past)
        times = {NOW: (self.now,), SINCE: (self.now, self.past), PAST: (self.past,)}[kind]
        return Function("_".join(["v", *map(str, orders if any(orders) else ())]))(*samples, *times)

    def sample(self, i: int) -> Symbol:
        """Return the symbol of the sample with number i; summed ones are beta, ``beta_``, ``beta__``, ..."""
        given = self.samples.get(i)
        return Symbol("beta" + "_" * (i - FREE), **mu.assumptions0) if given is None else given


def shuffled(a: Nested, b: Nested) -> list[Nested]:
    """Return all interleavings of two iterated integrals, whose sum is their product.

    The weight of past updates must not depend on the later time.
    """
    interleavings = []
    for places in combinations(range(len(a) + len(b)), len(a)):
        first, second = iter(a), iter(b)
        interleavings.append(tuple(next(first if k in places else second) for k in range(len(a) + len(b))))
    return interleavings


def is_constant(x: Expr) -> bool:
    """Return whether an operator is a constant kernel, such as K_x, and not a memory or its transpose."""
    return not isinstance(x, Memory | transpose)
