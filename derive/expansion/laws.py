"""One order of a linear expansion by those below it: what is known beyond the orders written in words.

With ``X = sum_n gamma0^n X_n``, a law ``X = (1 - M)^-1 N (1 - M')^-1`` of the closure is
``X = N + M X + X M' - M X M'``, and what a product contributes to order n are the products of orders that add
up to n.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sympy import Add, Expr, HadamardProduct, Integer, MatAdd, MatMul, MatrixSymbol, Mul, Pow, S, transpose
from sympy.core.function import AppliedUndef
from sympy.functions.elementary.complexes import transpose as Transpose

from derive.calculus.symbols import L, ell, gamma0
from derive.errors import NotApplicable
from derive.expansion.errors import OUTPUT
from derive.expansion.words import Memory, Recursion, letters, parts_of
from derive.linear.closure import LinearClosure
from derive.linear.operators import T, operator, size

OperatorFactors = tuple[Expr, ...]
OperatorTerm = tuple[Expr, int, OperatorFactors]
"""A number, the power of gamma0 in front, and operators: a law's addend."""


def laws(closure: LinearClosure) -> dict[str, list[OperatorTerm]]:
    """The law of each operator at layer ``ell``, and of the output at L, without inverses.

    In ``C0[X]`` the error has an order of its own, which counts with that of X.

    >>> from derive import linear_closure, mean_field, mlp
    >>> for c, power, word in laws(linear_closure(mean_field(mlp())))["A"]: print(c, power, word)
    1 0 (C[ell],)
    1 2 (C[ell], D[ell], A[ell])
    """
    found = {}
    for e in (*closure.covariances, *closure.responses):
        name, layer = str(e.lhs.args[0]), e.lhs.args[1]
        here = {ell: 2 * ell - layer}
        found[name] = _terms(_without_inverses(e.lhs.subs(here), e.rhs.subs(here)))
    average = _without_inverses(gamma0 * operator(OUTPUT, L), closure.outputs[0].rhs)
    found[OUTPUT] = _terms((average / gamma0).expand())
    for k in closure.kernels:
        if k.operator.has(ell) and k.name not in found:
            responses, memories = parts_of(k, closure)
            found[k.name] = [(S.One, 0, (_letter(x),)) for x in responses]
            found[k.name] += [(S.One, 0, (Memory(k.name, 0, _letter(x)),)) for x in memories]
    return found


def _letter(x: AppliedUndef) -> Expr:
    return operator(str(x.func), x.args[0])


def _without_inverses(x: Expr, e: Expr) -> Expr:
    """``N + X - a X b`` where ``X = a^-1 N b^-1``."""
    numbers, factors = e.args_cnc()
    kept = [f for f in factors if not (isinstance(f, Pow) and f.exp == -1)]
    at = factors.index(kept[0])
    if factors[at : at + len(kept)] != kept:
        raise NotApplicable(f"{e} has an inverse between operators")
    a, b = (Mul(*[f.base for f in reversed(part)]) for part in (factors[:at], factors[at + len(kept) :]))
    return (Mul(*numbers, *kept) + x - a * x * b).expand()


def _terms(e: Expr) -> list[OperatorTerm]:
    found = []
    for part in Add.make_args(e):
        numbers, word = part.args_cnc()
        c, power = Mul(*numbers).as_coeff_exponent(gamma0)
        found.append((c, int(power), tuple(letters(Mul(*word)))))
    return sorted(found, key=lambda x: (x[1], len(x[2]), str(x[2])))


class Orders:
    """The laws at each order, in letters ``H12[ell]`` that stand for coefficients of lower orders.

    ``there`` are the operators and orders that do not vanish, ``errors`` the orders at which the error does
    not: those of the output that do not depend on it.

    >>> from derive import linear_closure, mean_field, mlp
    >>> found = Orders(linear_closure(mean_field(mlp())), 4)
    >>> found.coefficient("A", 4)
    C0[ell]*D0[ell]*A2[ell] + C0[ell]*D2[ell]*A0[ell] + C2[ell]*D0[ell]*A0[ell] + C4[ell]
    >>> found.coefficient("C", 4)
    A4[ell - 1] + C0[H4[ell - 1]] + C2[H2[ell - 1]] + C4[H0[ell - 1]]
    """

    def __init__(self, closure: LinearClosure, order: int) -> None:
        self.laws = laws(closure)
        self.there = {(str(e.lhs.args[0]), 0) for e in closure.base if e.rhs != 0}
        self.errors = {0}
        for n in range(order + 1):
            self.add(n)
            if n and (OUTPUT, n) in self.there:
                self.errors.add(n)
                self.add(n)

    def add(self, n: int) -> None:
        """What does not vanish at order n."""
        while more := {(x, n) for x in self.laws if (x, n) not in self.there and any(self.products(x, n))}:
            self.there |= more

    def coefficient(self, name: str, n: int) -> Expr:
        """Order n of an operator at layer ``ell``."""
        return Add(*self.products(name, n))

    def products(self, name: str, n: int) -> Iterator[Expr]:
        """Its addends."""
        for c, power, factors in self.laws[name]:
            yield from (Mul(c, *x) for x in self.filled(factors, n - power))

    def filled(self, factors: OperatorFactors, n: int) -> Iterator[OperatorFactors]:
        """Factors at orders that add up to n."""
        if not factors and n == 0:
            yield ()
        for k, x in self.at_orders(factors[0], n) if factors else ():
            yield from ((x, *rest) for rest in self.filled(factors[1:], n - k))

    def at_orders(self, x: Expr, n: int) -> Iterator[tuple[int, Expr]]:
        """A factor at all orders up to n at which it does not vanish."""
        if isinstance(x, Transpose):
            yield from ((k, transpose(y)) for k, y in self.at_orders(x.args[0], n))
        elif isinstance(x, Memory):
            for i in sorted(self.errors):
                yield from ((i + k, Memory(x.kernel, i, y)) for k, y in self.at_orders(x.body, n - i))
        else:
            name = str(x.args[0])
            orders = (k for k in range(n + 1) if (name, k) in self.there)
            yield from ((k, operator(f"{name}{k}", x.args[1])) for k in orders)


# -- at an integer depth, as matrices ------------------------------------------------------------------------


class _Matrices:
    """Matrix expressions; every sum and product is named once, and ``steps`` says what the names are.

    A kernel with samples on its left remembers X as ``W_C * (X E_k)``, entry by entry, where
    ``E_k[(alpha, s), s'] = Delta_k,alpha(s)`` at ``s' = s``, and one with samples on its right as
    ``W_D * (X E_k^T)``; ``W[.., t, .., s]`` is the weight of an update at s in the weights at t.
    """

    def __init__(self, closure: LinearClosure) -> None:
        self.closure, self.errors = closure, [0]
        self.steps: list[tuple[MatrixSymbol, Expr]] = []
        self.names: dict[Expr, MatrixSymbol] = {}
        self.given: dict[str, MatrixSymbol] = {}

    def named(self, e: Expr) -> Expr:
        if e not in self.names:
            self.names[e] = MatrixSymbol(f"x{len(self.steps)}", *e.shape)
            self.steps.append((self.names[e], e))
        return self.names[e]

    def letter(self, name: str, rows: Any, columns: Any) -> MatrixSymbol:
        return self.given.setdefault(name, MatrixSymbol(name, rows, columns))

    def identity(self, c: Expr | int) -> Expr:
        return Integer(c) if isinstance(c, int) else c

    def constant(self, x: Expr) -> Expr:
        return self.letter(str(x), *self.closure.shape(x))

    def sum(self, parts: Sequence[Expr]) -> Expr:
        if len(parts) == 1 or not parts[0].is_Matrix:
            return Add(*parts)
        return self.named(MatAdd(*parts))

    def times(self, a: Expr, b: Expr) -> Expr:
        return self.named(MatMul(a, b)) if a.is_Matrix and b.is_Matrix else a * b

    def transpose(self, a: Expr) -> Expr:
        return a.T if a.is_Matrix else a

    def entrywise(self, a: Expr, b: Expr) -> Expr:
        raise NotApplicable("the tangent kernel's products of entries have no matrices of one shape")

    def orders(self, n: int) -> Iterable[int]:
        return [k for k in self.errors if k <= n]

    def remembered(self, kernel: str, order: int, body: Expr) -> Expr:
        k = self.closure.kernel(kernel)
        error = self.letter(f"Delta_{order}", size((*k.rows, *k.cols)), T)
        weight = self.letter(f"W_{kernel}", size(k.rows), size(k.cols))
        return self.named(HadamardProduct(weight, self.times(body, error if k.rows else error.T)))


MatrixChain = tuple[list[tuple[MatrixSymbol, Expr]], list[MatrixSymbol], Expr]
"""Matrices and what they are, one after the other; what these start from; and the result."""


def chain(closure: LinearClosure, depth: int, order: int, name: str, layer: int) -> MatrixChain:
    """The truncated series of an operator as steps between matrices, what these start from, and the result.

    What is given are K_x, J, the weights ``W_C`` and ``W_D`` and the error's orders ``Delta_0``, ....
    """
    algebra = _Matrices(closure)
    recursion: Recursion[Expr] = Recursion(closure, algebra, depth)
    for n in range(1, order + 1):
        if recursion.output(n) is not None:
            algebra.errors.append(n)
            recursion.forget(n)
    found = [recursion.at(name, Integer(layer), n) for n in range(order + 1)]
    parts = [gamma0**n * x for n, x in enumerate(found) if x is not None]
    total = MatAdd(*parts) if parts else S.Zero
    return algebra.steps, sorted(algebra.given.values(), key=lambda x: (len(x.name), x.name)), total
