"""Entries of the series as iterated time integrals of the error.

With the error's coefficients Delta0, Delta2, ... and a, b, ... samples,

    v(a, b, ..., t) = int_0^t dt' Delta0_a(t') int_0^t' dt'' Delta0_b(t'') ... ,

sums in discrete time; ``v(a, ..., t, s)`` starts at s, and ``v_2_0(a, b, t)`` has Delta2 in front of Delta0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sympy import Add, Eq, Expr, Function, Integral, Mul, S, Sum, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.polynomials import factored
from derive.errors import NotApplicable
from derive.expansion.chains import COL, FREE, ROW, Nested, Piece, Reader, is_constant
from derive.expansion.linear import LinearExpansion
from derive.expansion.words import letters, terms
from derive.program.words import IndexRange, alpha, mu, s, t

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
    expansion: LinearExpansion, e: Expr, row: Symbol | None, col: Symbol | None, now: Expr = t, past: Expr = s
) -> Expr:
    """The entry of a sum of words at ``(row, now), (col, past)``, as time integrals.

    ``row`` and ``col`` are the samples that the operator has on either side, None where it has none.  Raises
    :class:`NotApplicable` where a discrete rule leaves products of sums within sums.

    >>> from derive.theory import mean_field
    >>> from derive.program import mlp
    >>> from derive.expansion.linear import expand_linear
    >>> x = expand_linear(mean_field(mlp(rule="flow")), 0)
    >>> time_integrals(x, x.coefficient("D", 0), None, alpha)
    (L - ell + 1)*Delta0(alpha, s)
    """
    found = _Entries(expansion, row, col, now, past)
    found.add(e)
    return found.expr()


def entry(expansion: LinearExpansion, name: str, n: int, now: Expr = t, past: Expr = s) -> Expr:
    """Order n of an order parameter's entry; see :meth:`LinearExpansion.entry`."""
    return Add(*[x.expr for x in groups(expansion, name, n, now, past)])


def groups(expansion: LinearExpansion, name: str, n: int, now: Expr = t, past: Expr = s) -> list[Group]:
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
        found.add(expansion.coefficient(name, n))
    return found.groups()


def sides(expansion: LinearExpansion, name: str) -> tuple[bool, bool]:
    """Whether an operator has samples on its left and on its right."""
    for k in expansion.closure.kernels:
        if str(k.operator.args[0]) == name:
            return bool(k.rows), bool(k.cols)
    for e in (*expansion.closure.covariances, *expansion.closure.responses):
        if str(e.lhs.args[0]) == name:
            raise NotApplicable(f"the closure does not say which samples {name} has")
    raise KeyError(name)


def error_equation(expansion: LinearExpansion, n: int) -> Eq:
    """The error at order n: minus the output at that order, in time integrals; see LinearExpansion.

    The part with ``v_n`` is linear in the error sought: a linear Volterra equation driven by the rest.
    """
    start = Function("y")(mu) if n == 0 else S.Zero
    rest = [replace(x, coefficient=-x.coefficient).expr for x in groups(expansion, OUTPUT, n)]
    return Eq(Function(f"Delta{n}")(mu, t), Add(start, *rest), evaluate=False)


def iterated_integral(expansion: LinearExpansion, v: AppliedUndef) -> Expr:
    """What ``v(a, b, ..., t)`` stands for, as nested integrals (or sums with the rule's weights).

    >>> from derive.theory import mean_field
    >>> from derive.program import mlp
    >>> from derive.expansion.linear import expand_linear
    >>> x = expand_linear(mean_field(mlp(rule="flow")), 0)
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
        self, expansion: LinearExpansion, row: Symbol | None, col: Symbol | None, now: Expr, past: Expr
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


__all__ = ["Group", "entry", "error_equation", "groups", "iterated_integral", "time_integrals"]
