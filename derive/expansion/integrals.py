"""Operator words as sums of iterated time integrals of the error.

A word that meets a constant kernel (the data's K^x, or 1) falls apart into a function of t and one of s.  Each is an
iterated integral (a sum, in discrete time) of the errors,

    v(a, b, ..., t) = int_0^t ds Delta_a(s) v(b, ..., s),

multiplied by entries of K^x.  All of it is read off the definitions of the kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sympy import Expr, Function, Integral, Mul, S, Sum, Symbol
from sympy.core.function import AppliedUndef
from sympy.functions.elementary.complexes import transpose as Transpose

from derive.expansion.linear import LinearExpansion
from derive.expansion.words import Memory, letters, terms
from derive.meanfield.reductions.operators import J, Kernel
from derive.meanfield.reductions.projection import NotApplicable
from derive.program.expressions import IndexRange, s, t


def time_integrals(expansion: LinearExpansion, e: Expr, row: Symbol | None, col: Symbol | None, now: Expr = t, past: Expr = s) -> Expr:
    """The entry of ``e`` at ``(row, now), (col, past)`` with iterated integrals named ``v``.

    ``row`` and ``col`` are the sample indices that the operator has on either side, None where it has none.  Raises
    :class:`NotApplicable` for words without a constant kernel (responses), whose entries are integrals between s and t.

    >>> from derive.meanfield import mean_field
    >>> from derive.program import mlp
    >>> from derive.program.expressions import mu, alpha
    >>> from derive.expansion.linear import expand_linear
    >>> x = expand_linear(mean_field(mlp(rule="flow")), 2)
    >>> time_integrals(x, x.coefficient("G", 2).args[0].args[-1], None, None) is not None
    True
    """
    return _Reader(expansion).entry(e, row, col, now, past)


def iterated_integral(expansion: LinearExpansion, v: AppliedUndef) -> Expr:
    """What ``v(a, b, ..., t)`` stands for, as nested integrals (or sums with the rule's weights)."""
    *indices, time = v.args
    rule = expansion.closure.theory.program.rule
    value: Expr = S.One
    for depth, index in enumerate(reversed(indices)):
        inner = Symbol(f"s{depth + 1}", **s.assumptions0)
        outer = time if depth == len(indices) - 1 else Symbol(f"s{depth + 2}", **s.assumptions0)
        _, weight = rule.memory(outer, inner)
        body = weight * Function("Delta0")(index, inner) * value
        value = Sum(body, (inner, 0, outer - 1)) if rule.discrete else Integral(body, (inner, 0, outer))
    return value


@dataclass
class _Chain:
    """A causal chain applied to a constant function: K's, the indices that v carries, other functions of t."""

    last: Symbol | None
    factors: list[Expr] = field(default_factory=list)
    indices: list[Symbol] = field(default_factory=list)
    summed: list[IndexRange] = field(default_factory=list)
    orders: list[int] = field(default_factory=list)

    def value(self, time: Expr) -> Expr:
        if not self.indices:
            return Mul(*self.factors)
        name = "v" if not any(self.orders) else "v" + "".join(map(str, self.orders))
        return Mul(*self.factors) * Function(name)(*self.indices, time)


class _Reader:
    def __init__(self, expansion: LinearExpansion) -> None:
        self.expansion = expansion
        closure = expansion.closure
        self.kernels: dict[str, Kernel] = {k.name: k for k in closure.kernels if k.causal and len(k.site) == 1 and k.definition != 0}
        self.count = 0

    def entry(self, e: Expr, row: Symbol | None, col: Symbol | None, now: Expr, past: Expr) -> Expr:
        total = S.Zero
        for c, w in terms(e):
            self.count = 0
            total += c * self.word(w, row, col, now, past)
        return total

    def word(self, w: Expr, row: Symbol | None, col: Symbol | None, now: Expr, past: Expr) -> Expr:
        left, right = self.halves(w, row, col, now)
        constant = next(x for x in letters(w) if self.is_constant(x))
        ranges = [r.limits for x in (left, right) for r in x.summed]
        value = left.value(now) * right.value(past) * self.constant(constant, left.last, right.last)
        return Sum(value, *ranges) if ranges else value

    def halves(self, w: Expr, row: Symbol | None, col: Symbol | None, now: Expr) -> tuple[_Chain, _Chain]:
        ls = letters(w)
        at = [k for k, x in enumerate(ls) if self.is_constant(x)]
        if not at:
            raise NotApplicable(f"{w} has no constant kernel: its entries do not separate in t and s")
        k = at[0]
        after = [self.plain(x) for x in reversed(ls[k + 1 :])]
        return self.chain(ls[:k], row, now), self.chain(after, col, None)

    @staticmethod
    def plain(x: Expr) -> Expr:
        if not isinstance(x, Transpose):
            raise NotApplicable(f"{x} stands to the right of a constant kernel")
        return x.args[0]

    @staticmethod
    def is_constant(x: Expr) -> bool:
        return not isinstance(x, Memory | Transpose)

    def constant(self, x: Expr, row: Symbol | None, col: Symbol | None) -> Expr:
        return S.One if x == J else Function(str(x))(row, col)

    def chain(self, ls: list[Expr], row: Symbol | None, now: Expr | None) -> _Chain:
        chain = _Chain(row)
        for position, x in enumerate(ls):
            if not isinstance(x, Memory):
                raise NotApplicable(f"{x} in a chain of causal kernels")
            if self.is_constant(letters(x.body)[0]) and len(letters(x.body)) == 1:
                self.step(chain, x)
            elif position == 0 and len(ls) == 1 and now is not None:
                self.inner_word(chain, x, now)
            else:
                raise NotApplicable(f"{x} within a chain: write it as nested integrals instead")
        return chain

    def step(self, chain: _Chain, x: Memory) -> None:
        """One kernel of the chain: ``sum_a Delta_a(s) K(row, a)``, or ``Delta_col(s)``."""
        kernel = self.kernels[x.kernel]
        index = self.fresh(kernel)
        chain.indices.append(index.index)
        chain.orders.append(x.order)
        chain.summed.append(index)
        if kernel.rows:  # the samples of the row meet those of the error through the remembered correlation
            chain.factors.append(self.constant(x.body, chain.last, index.index))
            chain.last = None
        else:
            chain.last = index.index

    def inner_word(self, chain: _Chain, x: Memory, now: Expr) -> None:
        """``int ds Delta_a(s) X(row, t; a, s)`` with X a word that separates: its part in s joins the integral."""
        kernel = self.kernels[x.kernel]
        index = self.fresh(kernel)
        row, col = (chain.last, index.index) if kernel.rows else (None, None)
        left, right = self.halves(x.body, row, col, now)
        constant = next(y for y in letters(x.body) if self.is_constant(y))
        chain.factors += [left.value(now), *right.factors, self.constant(constant, left.last, right.last)]
        chain.indices += [index.index, *right.indices]
        chain.orders += [x.order, *right.orders]
        chain.summed += [*left.summed, index, *right.summed]
        chain.last = None if kernel.rows else index.index

    def fresh(self, kernel: Kernel) -> IndexRange:
        """A new summed sample index with the range of the kernel's."""
        self.count += 1
        like = (*kernel.rows, *kernel.cols)[0]
        names = ["beta", "gamma", "delta", "epsilon", "zeta", "kappa", "lambda", "rho", "sigma"]
        name = names[self.count - 1] if self.count <= len(names) else f"beta{self.count}"
        return IndexRange(Symbol(name, **like.index.assumptions0), like.lower, like.upper)
