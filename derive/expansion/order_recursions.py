"""Recursions of a linear expansion: each order of an operator from lower orders and from other operators.

With ``X = sum_n gamma0^n X_n``, an equation ``X = (1 - M)^-1 N (1 - M')^-1`` of the closure becomes
``X = N + M X + X M' - M X M'``; a product contributes to order n the products of orders that add up to n.
`LinearExpansion` uses the recursions beyond the orders that it writes as operator words, and compiles them at
an integer depth.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sympy import Add, Expr, HadamardProduct, Integer, MatAdd, MatMul, MatrixSymbol, Mul, Pow, S, transpose
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import L, ell, gamma0
from derive.errors import NotApplicable
from derive.expansion.errors import OUTPUT
from derive.expansion.operator_words import Memory, Recursion, letters, parts_of
from derive.linear.closure import LinearClosure
from derive.linear.operators import T, operator, size

OperatorFactors = tuple[Expr, ...]
OperatorTerm = tuple[Expr, int, OperatorFactors]
"""Term of an equation: a number, the power of gamma0, and operators."""


def laws(closure: LinearClosure) -> dict[str, list[OperatorTerm]]:
    """Return the terms of the right-hand side of each operator's equation, by name of the operator.

    Operators are order parameters and kernels at layer ``ell``, and the output ``f`` at layer L; the tangent
    kernel is left out. The equations have no inverses. Terms are (number, power of gamma0, factors). A memory
    ``C0[X]`` of order n is the sum over products of the error at order k with X at order n - k.

    >>> from derive import linear_closure, mean_field, mlp
    >>> for c, power, word in laws(linear_closure(mean_field(mlp())))["A"]: print(c, power, word)
    1 0 (C[ell],)
    1 2 (C[ell], D[ell], A[ell])
    """
    equations = {}
    for e in (*closure.covariances, *closure.responses):
        name, layer = str(e.lhs.args[0]), e.lhs.args[1]
        here = {ell: 2 * ell - layer}
        equations[name] = _terms(_without_inverses(e.lhs.subs(here), e.rhs.subs(here)))
    average = _without_inverses(gamma0 * operator(OUTPUT, L), closure.outputs[0].rhs)
    equations[OUTPUT] = _terms((average / gamma0).expand())
    for k in closure.kernels:
        if k.operator.has(ell) and k.name not in equations:
            responses, memories = parts_of(k, closure)
            equations[k.name] = [(S.One, 0, (_letter(x),)) for x in responses]
            equations[k.name] += [(S.One, 0, (Memory(k.name, 0, _letter(x)),)) for x in memories]
    return equations


def _letter(x: AppliedUndef) -> Expr:
    """Return an order parameter ``X(layer, ...)`` as the operator ``X[layer]``."""
    return operator(str(x.func), x.args[0])


def _without_inverses(x: Expr, e: Expr) -> Expr:
    """Return an equation's right-hand side ``e = a^-1 N b^-1`` without inverses, ``N + X - a X b``.

    X is the operator on the left-hand side. Both are equal because ``a X b = N``. Raises NotApplicable if an
    inverse is between two other operators.
    """
    numbers, factors = e.args_cnc()
    kept = [f for f in factors if not (isinstance(f, Pow) and f.exp == -1)]
    at = factors.index(kept[0])
    if factors[at : at + len(kept)] != kept:
        raise NotApplicable(
            f"the recursion over orders is not derived: the product {e} has an inverse between two "
            "operators; inverses must stand at its ends"
        )
    a, b = (Mul(*[f.base for f in reversed(part)]) for part in (factors[:at], factors[at + len(kept) :]))
    return (Mul(*numbers, *kept) + x - a * x * b).expand()


def _terms(e: Expr) -> list[OperatorTerm]:
    """Return a sum of operator products as terms (number, power of gamma0, letters), lowest powers first.

    The letters are the operators of the product from left to right.
    """
    operator_terms = []
    for part in Add.make_args(e):
        numbers, word = part.args_cnc()
        c, power = Mul(*numbers).as_coeff_exponent(gamma0)
        operator_terms.append((c, int(power), tuple(letters(Mul(*word)))))
    return sorted(operator_terms, key=lambda x: (x[1], len(x[2]), str(x[2])))


class Orders:
    """Equations at each order, with letters such as ``H12[ell]`` for the coefficient of gamma0^12 in H.

    ``order`` is the highest order. ``nonzero`` are the pairs (operator, order) of the coefficients up to this
    order that do not vanish. ``errors`` are the orders at which the error does not vanish, which follow from
    those of the output.

    >>> from derive import linear_closure, mean_field, mlp
    >>> found = Orders(linear_closure(mean_field(mlp())), 4)
    >>> found.coefficient("A", 4)
    C0[ell]*D0[ell]*A2[ell] + C0[ell]*D2[ell]*A0[ell] + C2[ell]*D0[ell]*A0[ell] + C4[ell]
    >>> found.coefficient("C", 4)
    A4[ell - 1] + C0[H4[ell - 1]] + C2[H2[ell - 1]] + C4[H0[ell - 1]]
    """

    def __init__(self, closure: LinearClosure, order: int) -> None:
        self.laws, self.order = laws(closure), order
        self.nonzero = {(str(e.lhs.args[0]), 0) for e in closure.base if e.rhs != 0}
        self.errors = {0}
        for n in range(order + 1):
            self.add(n)
            if n and (OUTPUT, n) in self.nonzero:
                self.errors.add(n)
                self.add(n)

    def add(self, n: int) -> None:
        """Add to ``nonzero`` all pairs (operator, n) that have a nonzero product in their recursion.

        An operator that is found may make others nonzero; the search is repeated until no more follow.
        """
        while more := {(x, n) for x in self.laws if (x, n) not in self.nonzero and any(self.products(x, n))}:
            self.nonzero |= more

    def coefficient(self, name: str, n: int) -> Expr:
        """Return order n in gamma0 of the operator ``name`` at layer ``ell``, by its recursion.

        The factors are lower orders, and order n of other operators or of the neighbouring layer. Raises
        KeyError for an unknown name, and IndexError for an order that is negative or above the highest.
        """
        if name not in self.laws:
            raise KeyError(f"no series {name!r}; there are {', '.join(self.laws)}")
        if not 0 <= n <= self.order:
            raise IndexError(f"n = {n}: the series is known for orders 0 to {self.order}")
        return Add(*self.products(name, n))

    def products(self, name: str, n: int) -> Iterator[Expr]:
        """Yield the nonzero products in the recursion of order n in gamma0 of the operator ``name``.

        Their sum is that order. Factors are operators at orders that add up to at most n, such as
        ``H2[ell]``.
        """
        for c, power, factors in self.laws[name]:
            yield from (Mul(c, *x) for x in self.filled(factors, n - power))

    def filled(self, factors: OperatorFactors, n: int) -> Iterator[OperatorFactors]:
        """Yield all ways to give each operator in ``factors`` an order in gamma0 with sum n.

        Each way is a tuple of letters such as ``H2[ell]``. Orders that vanish are left out.
        """
        if not factors and n == 0:
            yield ()
        for k, x in self.at_orders(factors[0], n) if factors else ():
            yield from ((x, *rest) for rest in self.filled(factors[1:], n - k))

    def at_orders(self, x: Expr, n: int) -> Iterator[tuple[int, Expr]]:
        """Yield (k, operator at order k) for all k up to n at which the operator x does not vanish.

        The order of a memory is that of its error plus that of its correlation.
        """
        if isinstance(x, transpose):
            yield from ((k, transpose(y)) for k, y in self.at_orders(x.args[0], n))
        elif isinstance(x, Memory):
            for i in sorted(self.errors):
                yield from ((i + k, Memory(x.kernel, i, y)) for k, y in self.at_orders(x.body, n - i))
        else:
            name = str(x.args[0])
            orders = (k for k in range(n + 1) if (name, k) in self.nonzero)
            yield from ((k, operator(f"{name}{k}", x.args[1])) for k in orders)


# -- at an integer depth, as matrices ------------------------------------------------------------------------


class _Matrices:
    """Representation of operators as matrix expressions; sums and products of matrices are named steps.

    The memory of a matrix X in the kernel C is ``W_C * (X E_k)``, entry by entry. ``E_k`` is the matrix of
    the error at order k: ``E_k[(alpha, s), s'] = Delta_k,alpha(s)`` at ``s' = s``, else 0. In D, which has
    samples on its right, the memory is ``W_D * (X E_k^T)``. ``W[.., t, .., s]`` is the weight that the update
    of step s has in the weights at t.
    """

    def __init__(self, closure: LinearClosure) -> None:
        self.closure, self.errors = closure, [0]
        self.steps: list[tuple[MatrixSymbol, Expr]] = []
        self.names: dict[Expr, MatrixSymbol] = {}
        self.given: dict[str, MatrixSymbol] = {}

    def named(self, e: Expr) -> Expr:
        """Return a new matrix symbol that stands for an expression, the same for equal expressions.

        The symbol and its definition are added to ``steps``.
        """
        if e not in self.names:
            self.names[e] = MatrixSymbol(f"x{len(self.steps)}", *e.shape)
            self.steps.append((self.names[e], e))
        return self.names[e]

    def letter(self, name: str, rows: Any, columns: Any) -> MatrixSymbol:
        """Return the symbol of an input matrix with this name and shape, the same for the same name."""
        return self.given.setdefault(name, MatrixSymbol(name, rows, columns))

    def identity(self, c: Expr | int) -> Expr:
        """Return the number c, which stands for c times the identity matrix."""
        return Integer(c) if isinstance(c, int) else c

    def constant(self, x: Expr) -> Expr:
        """Return the input matrix of a kernel that does not depend on gamma0."""
        return self.letter(str(x), *self.closure.shape(x))

    def sum(self, parts: Sequence[Expr]) -> Expr:
        """Return the sum of matrices as a named matrix, or of numbers; a single one is returned as it is."""
        if len(parts) == 1 or not parts[0].is_Matrix:
            return Add(*parts)
        return self.named(MatAdd(*parts))

    def times(self, a: Expr, b: Expr) -> Expr:
        """Return the product of two matrices as a new named matrix; a number times a matrix gets no name."""
        return self.named(MatMul(a, b)) if a.is_Matrix and b.is_Matrix else a * b

    def transpose(self, a: Expr) -> Expr:
        """Return the transpose of a matrix; a number, a multiple of the identity, is unchanged."""
        return a.T if a.is_Matrix else a

    def entrywise(self, a: Expr, b: Expr) -> Expr:
        """Raise NotApplicable, because the factors of the tangent kernel have different shapes."""
        raise NotApplicable(
            "the tangent kernel multiplies matrices of different shapes entry by entry, and is not compiled"
        )

    def orders(self, n: int) -> Iterable[int]:
        """Return the orders in gamma0, up to n, of the error that have been found so far not to vanish."""
        return [k for k in self.errors if k <= n]

    def remembered(self, kernel: str, order: int, body: Expr) -> Expr:
        """Return the memory ``W * (X E)`` of a correlation X in a kernel; ``*`` is entry by entry.

        X is the matrix ``body``, W the weight of past updates in the kernel, and E the matrix of the error at
        one order. In the kernel D the matrix E is transposed.
        """
        k = self.closure.kernel(kernel)
        error = self.letter(f"Delta_{order}", size((*k.rows, *k.cols)), T)
        weight = self.letter(f"W_{kernel}", size(k.rows), size(k.cols))
        return self.named(HadamardProduct(weight, self.times(body, error if k.rows else error.T)))


MatrixChain = tuple[list[tuple[MatrixSymbol, Expr]], list[MatrixSymbol], Expr]
"""Steps (matrices with their definitions), given matrices, and the result."""


def chain(closure: LinearClosure, depth: int, order: int, name: str, layer: int) -> MatrixChain:
    """Return the series ``sum_(n <= order) gamma0^n X_n`` of an operator X as steps between matrices.

    X is the operator ``name``, an order parameter or kernel with a layer, at ``layer``. ``depth``, an integer
    of 1 or more, replaces L in the closure; ValueError is raised if the theory has another integer depth.
    ``layer`` has been checked by the caller with :func:`require_layer`. The triple is (steps, input matrices,
    result). Each step is a matrix symbol with its definition. The result is an expression in gamma0 and these
    symbols, 0 if all orders vanish. Input matrices are those of K_x, J, the weights ``W_C`` and ``W_D``, and
    the orders ``Delta_0``, ... of the error, that occur.
    """
    own = closure.theory.program.depth
    if own is not None and own.is_number and own != depth:
        raise ValueError(
            f"depth = {depth}: the theory has depth {own}; give depth = {own}, or derive the theory at "
            "symbolic depth"
        )
    algebra = _Matrices(closure)
    recursion: Recursion[Expr] = Recursion(closure, algebra, depth)
    for n in range(1, order + 1):
        if recursion.output(n) is not None:
            algebra.errors.append(n)
            recursion.forget(n)
    orders = [recursion.at(name, Integer(layer), n) for n in range(order + 1)]
    parts = [gamma0**n * x for n, x in enumerate(orders) if x is not None]
    total = MatAdd(*parts) if parts else S.Zero
    return algebra.steps, sorted(algebra.given.values(), key=lambda x: (len(x.name), x.name)), total
