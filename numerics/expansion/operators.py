"""Operators between fields at all times as arrays, and power series of them.

A causal operator is a dense block, (T, rows, T, cols).  A constant kernel (the data's K^x, or 1) makes a
product separable: ``left(t) core right(s)^T`` with (T, rows, k) and (T, cols, m) arrays.

The coefficients of a series are computed when needed, each once; None stands for zero.  The coefficient of
order n of a product needs those of its factors up to n.  Order n of an inverse ``(1 - M)^-1`` applied to an
operator follows from the lower orders of the same result, because M starts at order one or later.

The operations depend on no array: they are recorded on a tape, equal operations once, and carried out on the
arrays of each problem.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sympy import Add, Expr, Indexed, Mul, Pow, Sum, Symbol
from sympy.core.function import AppliedUndef
from sympy.functions.elementary.complexes import transpose as Transpose  # noqa: N812 - a class of SymPy

from derive.calculus.symbols import gamma0, s, t
from derive.linear.operators import Kernel
from numerics.lowering.expressions import KnownArrays
from numerics.lowering.indices import Axis

Array = NDArray[np.float64]
Times = NDArray[np.intp] | slice
"""Positions of steps or nodes, or a slice, which needs no copies."""

KEPT = 1e-16
"""Fraction of the largest singular value of a separable operator up to which others are rounding errors."""
RANK = 32
"""Rank up to which sums are not compressed."""


@dataclass(frozen=True)
class Dense:
    """Causal function of two times and two indices as an array ``block``, (T, rows, T, cols).

    It acts as a matrix from (T, cols) to (T, rows). ``rows`` and ``cols`` are numbers of samples, or 1.
    """

    block: Array

    @property
    def matrix(self) -> Array:
        """The block as a matrix, (T * rows, T * cols)."""
        a = self.block
        return a.reshape(a.shape[0] * a.shape[1], -1)

    def transpose(self) -> Dense:
        """Return the transposed operator: rows and columns, and the two times, exchanged."""
        return Dense(self.block.transpose(2, 3, 0, 1))

    def at(self, out: Times, into: Array | None = None) -> Array:
        """Return the entries at the output times ``out``, (out, rows, out, cols).

        They are written to ``into`` if it is given.
        """
        entries = self.block[out][:, :, out]
        if into is None:
            return entries
        into[...] = entries
        return into


@dataclass(frozen=True)
class SeparableKernel:
    """Function of two times and two indices as a matrix product, ``left(t) core right(s)^T``.

    ``left`` is (T, rows, k), ``core`` (k, m) and ``right`` (T, cols, m). ``rows`` and ``cols`` are numbers
    of samples, or 1.
    """

    left: Array
    core: Array
    right: Array

    def transpose(self) -> SeparableKernel:
        """Return the transposed operator: rows and columns, and the two times, exchanged."""
        return SeparableKernel(self.right, self.core.T, self.left)

    def at(self, out: Times, into: Array | None = None) -> Array:
        """Return the entries at the output times ``out``, (out, rows, out, cols).

        They are written to the contiguous array ``into`` if it is given.
        """
        (rows, k), (cols, m) = self.left.shape[1:], self.right.shape[1:]
        a, b = self.left[out].reshape(-1, k) @ self.core, self.right[out].reshape(-1, m)
        entries = np.empty((len(a) // rows, rows, len(b) // cols, cols)) if into is None else into
        # A stride of 0 along the times means that `left` is the same at all times. The entries at the first
        # output time are then computed and copied to the others.
        if self.left.strides[0] == 0:
            entries.reshape(len(entries), rows, -1)[...] = a[:rows] @ b.T
        else:
            np.matmul(a, b.T, out=entries.reshape(len(a), len(b)))
        return entries

    def diagonal(self) -> Array:
        """Return the entries at equal times, (T, rows, cols)."""
        return (self.left @ self.core) @ self.right.transpose(0, 2, 1)


LayerOperator = Dense | SeparableKernel


def multiplied(a: LayerOperator, b: LayerOperator) -> LayerOperator:
    """Return the operator product ``a b``, a sum over the inner time and the inner sample index.

    The result has low rank if one of the factors has.
    """
    if isinstance(a, Dense) and isinstance(b, Dense):
        shape = (*a.block.shape[:2], *b.block.shape[2:])
        return Dense((a.matrix @ b.matrix).reshape(shape))
    if isinstance(a, Dense) and isinstance(b, SeparableKernel):
        left = a.matrix @ b.left.reshape(-1, b.left.shape[2])
        return SeparableKernel(left.reshape(*a.block.shape[:2], -1), b.core, b.right)
    if isinstance(a, SeparableKernel) and isinstance(b, Dense):
        return multiplied(b.transpose(), a.transpose()).transpose()
    assert isinstance(a, SeparableKernel)
    assert isinstance(b, SeparableKernel)
    meet = a.right.reshape(-1, a.right.shape[2]).T @ b.left.reshape(-1, b.left.shape[2])
    return SeparableKernel(a.left, a.core @ meet @ b.core, b.right)


def remembered(kernel: Kernel, w: Array, error: Array, body: LayerOperator) -> Dense:
    """Return the contribution of a correlation X, here ``body``, to a memory kernel.

    ``w`` (T, T) is the weight of an update at s in fields at t, and ``error`` Delta is (T, P). If ``kernel``
    has an index of samples at t, the result is ``w(t, s) sum_a Delta_a(s) X_row,a(t, s)``. If not, it is
    ``w(t, s) Delta_col(s) X(t, s)``.
    """
    if not kernel.rows:
        block = (body.block if isinstance(body, Dense) else body.at(np.arange(len(w))))[:, 0, :, 0] * w
        return Dense(block[:, None, :, None] * error[None, None])
    if isinstance(body, SeparableKernel):
        right = np.einsum("sa,sam->sm", error, body.right)
        (T, n, k), m = body.left.shape, len(body.core.T)
        block = ((body.left.reshape(-1, k) @ body.core) @ right.reshape(-1, m).T).reshape(T, n, T)
    else:
        block = np.einsum("sb,tasb->tas", error, body.block)
    block *= w[:, None, :]
    return Dense(block[..., None])


def convolved(a: Array, b: Array, weights: Sequence[Array]) -> Array:
    """Return ``int_s^t a(t, t') b(t', s) dt'`` for arrays a and b of shape (T, rows, T, cols).

    ``weights[n]`` (n + 1, n + 1) holds the quadrature weights of integrals up to the time of node n. Its
    first axis is the node at which the integral begins, s, and its second axis the node t'.
    """
    out = np.zeros((*a.shape[:3], b.shape[3]))
    for n, w in enumerate(weights):
        inner = b[: n + 1, :, : n + 1] * w.T[:, None, :, None]
        k = inner.shape[0] * inner.shape[1]
        out[n, :, : n + 1] = (a[n, :, : n + 1].reshape(-1, k) @ inner.reshape(k, -1)).reshape(
            -1, n + 1, b.shape[3]
        )
    return out


@lru_cache(maxsize=64)
def memory_weight(kernel: Kernel, error: str, tables: tuple[str, ...]) -> Expr:
    """Return the weight of past updates in a memory kernel, as an expression in t and s.

    The definition of the kernel has a term with the error. The weight is the product of the factors of this
    term other than the error and the correlation. ``error`` is the name of the error, and ``tables`` are
    names of functions of t and s that belong to the weight.
    """
    part = next(
        x
        for x in Add.make_args(kernel.definition)
        if any(str(a.func) == error for a in x.atoms(AppliedUndef))
    )
    weights = [
        x
        for x in _factors(part)
        if not isinstance(x, AppliedUndef) or (set(x.args) <= {t, s} and str(x.func) in tables)
    ]
    return Mul(*weights)


def time_table(weight: Expr, known: Mapping[Symbol, float], T: int, tables: Mapping[str, Array]) -> Array:
    """Return a weight k(t, s) of past updates at steps 0..T-1, (T, T) strictly lower triangular.

    ``known`` are the numbers of its symbols, ``tables`` the values of its functions of t and s.

    >>> time_table(2 * (t - s), {}, 2, {}).tolist()
    [[0.0, 0.0], [2.0, 0.0]]
    """
    numbers = {str(x): v for x, v in known.items()}
    with np.errstate(all="ignore"):  # values at s >= t may be undefined, and are set to zero below
        table = KnownArrays(numbers, tables)(weight, {t: Axis(0, T, 0, 2), s: Axis(0, T, 1, 2)})
    return np.asarray(np.tril(np.broadcast_to(table, (T, T, 1))[..., 0], -1))


def _factors(e: Expr) -> list[Expr]:
    """Return the factors of a product; a factor that is a Sum over an index gives those of its summand."""
    out: list[Expr] = []
    for x in Mul.make_args(e):
        out += _factors(x.function) if isinstance(x, Sum) else [x]
    return out


# -- series of operators ---------------------------------------------------------------------------------


class Kind(NamedTuple):
    """Type of an operator between fields at all times.

    ``causal`` is false for correlations and constant kernels. ``rows`` and ``cols`` say whether the operator
    has an index of samples on its left and on its right.
    """

    causal: bool
    rows: bool
    cols: bool


@dataclass(frozen=True, eq=False)
class Combination:
    """Linear combination of results of operations that a :class:`Tape` records.

    ``terms`` maps the position of an operation on the tape to its coefficient.
    """

    tape: Tape
    terms: Mapping[int, float]

    @property
    def kind(self) -> Kind:
        """Type of the combined operators: whether causal, and on which sides they have an index of samples.

        All terms have the same type.
        """
        return self.tape.kinds[next(iter(self.terms))]

    def transpose(self) -> Combination:
        """Return the combination of the transposed operators, with rows, columns and times exchanged."""
        return Combination(self.tape, {self.tape.transposed(i): c for i, c in self.terms.items()})


class Tape:
    """List of operations on operators (matrices over times and samples), without their values.

    Equal operations are recorded once, in an order in which they can be carried out. An operation holds its
    name, the positions of its operands on the tape, and coefficients. Sums are kept as linear combinations
    (:class:`Combination`). A sum becomes an operation if it is causal and is multiplied, or if it has more
    than ``most`` terms.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.steps: list[tuple[Any, ...]] = []
        self.kinds: list[Kind] = []
        self.places: dict[tuple[Any, ...], int] = {}

    def place(self, kind: Kind, *step: Any) -> int:
        """Return the position on the tape of the operation ``step``, which is appended if it is new.

        ``step`` is the name of the operation with its operands. ``kind`` says whether its result is causal
        and on which sides it has an index of samples.
        """
        if step not in self.places:
            self.places[step] = len(self.steps)
            self.steps.append(step)
            self.kinds.append(kind)
        return self.places[step]

    def transposed(self, i: int) -> int:
        """Return the position on the tape of the transpose of the result of operation number i.

        A constant kernel is symmetric, so that its own position is returned.
        """
        what, *of = self.steps[i]
        if what in ("transpose", "constant"):
            return int(of[0]) if what == "transpose" else i
        causal, rows, cols = self.kinds[i]
        return self.place(Kind(causal, cols, rows), "transpose", i)

    def one(self, x: Combination) -> tuple[int, float]:
        """Return the operator x as one operation: (its position on the tape, factor).

        x is the factor times the result of the operation at this position. If x has several terms, their sum
        is recorded as an operation, and the factor is 1.
        """
        if len(x.terms) > 1:
            return self.place(x.kind, "sum", *sorted(x.terms.items())), 1.0
        return next(iter(x.terms.items()))

    def constant(self, x: Expr, samples: bool) -> Combination:
        """Record the constant kernel x, and return it as a linear combination with one term.

        ``samples`` says whether the kernel has indices of samples.
        """
        return Combination(self, {self.place(Kind(False, samples, samples), "constant", x): 1.0})

    def remembered(self, kernel: Kernel, order: int, body: Combination) -> Combination:
        """Record the contribution of a correlation to a memory kernel, and return it as a combination.

        The contribution is the product of the correlation ``body`` with the error of order ``order`` in
        gamma0 and with the weight of past updates.
        """
        kind = Kind(True, bool(kernel.rows), bool(kernel.cols))
        step = "remembered", kernel.name, order, *sorted(body.terms.items())
        return Combination(self, {self.place(kind, *step): 1.0})

    def external(self, kind: Kind, name: str, n: int, site: int) -> Combination:
        """Record an order parameter whose value another plan computes, and return it as a combination.

        It is order n in gamma0 of the order parameter ``name`` at layer ``site``; ``kind`` is its type.
        """
        return Combination(self, {self.place(kind, "external", name, n, site): 1.0})

    def multiply(self, a: Combination, b: Combination) -> Combination:
        """Record the operator product ``a b``, and return it as a linear combination.

        A causal factor is summed first; other factors are multiplied term by term.
        """
        kind = Kind(a.kind.causal and b.kind.causal, a.kind.rows, b.kind.cols)
        pairs = product(*([self.one(x)] if x.kind.causal else x.terms.items() for x in (a, b)))
        return Combination(self, {self.place(kind, "product", i, j): x * y for (i, x), (j, y) in pairs})

    def times(self, number: float, x: Combination) -> Combination:
        """Return a linear combination of operators multiplied by a number."""
        return Combination(self, {i: number * c for i, c in x.terms.items()})

    def add(self, *xs: Combination | None) -> Combination | None:
        """Return the sum of linear combinations; None stands for zero.

        A sum with many terms is recorded as one operation.
        """
        nonzero = [x for x in xs if x is not None]
        if len(nonzero) < 2:
            return nonzero[0] if nonzero else None
        terms: Counter[int] = Counter()
        for x in nonzero:
            terms.update(x.terms)
        total = Combination(self, terms)
        return total if len(terms) <= self.most else Combination(self, dict([self.one(total)]))


@dataclass(eq=False)
class Stream:
    """Power series in gamma0 whose coefficient of order n is ``rule(n)``, computed once and kept.

    A coefficient None stands for zero. Coefficients of negative orders are None.
    """

    rule: Callable[[int], Any]
    known: dict[int, Any] = field(default_factory=dict)

    def at(self, n: int) -> Any:
        """Return the coefficient of order n of the series, computed at the first call; None for zero."""
        if n < 0:
            return None
        if n not in self.known:
            self.known[n] = self.rule(n)
        return self.known[n]


@lru_cache(maxsize=10_000)
def split(e: Expr) -> tuple[Expr, tuple[Expr, ...]]:
    """Return the factors of a product: the product of its numbers and symbols, and its operators in order.

    Numbers and commuting symbols can be exchanged with operators, which do not commute with each other.
    """
    numbers, factors = e.args_cnc()
    return Mul(*numbers), tuple(factors)


@lru_cache(maxsize=10_000)
def scale_of(factor: Expr) -> tuple[Expr, int]:
    """Return (c, n) of an expression ``c gamma0^n``, where c does not contain gamma0."""
    number, power = factor.as_coeff_exponent(gamma0)
    return number, int(power)


@lru_cache(maxsize=10_000)
def loop_of(inverse: Pow) -> Expr:
    """Return the operator x of an inverse ``(1 - x)^-1``; raise NotImplementedError for another power."""
    if inverse.exp != -1:
        raise NotImplementedError(f"the power {inverse} of operators must have the exponent -1")
    return (1 - inverse.base).expand()


@dataclass(eq=False)
class SeriesAlgebra:
    """Conversion of expressions in operators to power series in gamma0.

    An operator is a function of two times (and samples) that acts as a matrix.

    Attributes
    ----------
    known
        Function that returns the power series of an operator symbol.
    number
        Function that returns the value of a constant.
    is_correlation
        Function that returns whether an operator symbol is a correlation or data kernel, of low rank.
    multiply, add, times
        Functions on coefficients of the series: operator product, sum, and product with a number.
    in_turn
        Whether products are taken one after another because the product, a quadrature, is not associative.
    streams
        Series whose coefficients :meth:`forget` can delete.
    """

    known: Callable[[Indexed], Stream]
    number: Callable[[Expr], float]
    is_correlation: Callable[[Expr], bool]
    multiply: Callable[[Any, Any], Any]
    add: Callable[..., Any]
    times: Callable[[float, Any], Any]
    in_turn: bool = False
    streams: list[Stream] = field(default_factory=list)

    def new(self, rule: Callable[[int], Any]) -> Stream:
        """Return a power series whose coefficient of order n is ``rule(n)``.

        :meth:`forget` can delete its coefficients.
        """
        stream = Stream(rule)
        self.streams.append(stream)
        return stream

    def forget(self, n: int) -> None:
        """Delete the coefficients of order n and higher of all ``streams``, so that they are computed again.

        This is needed if a series on which they depend has changed. A series is in ``streams`` if :meth:`new`
        returned it.
        """
        for x in self.streams:
            x.known = {k: v for k, v in x.known.items() if k < n}

    def series(self, e: Expr) -> Stream:
        """Return the power series in gamma0 of an expression in operators.

        Each term of the expression must contain an operator.
        """
        if isinstance(e, Indexed):
            return self.known(e)
        if isinstance(e, Transpose):
            return self.transposed(self.series(e.args[0]))
        if isinstance(e, Add):
            return self.sum([self.series(x) for x in e.args])
        if e.is_Symbol and not e.is_commutative:
            return self.known(e)
        number, factors = split(e)
        # Start with the first factor of low rank (`is_separable`), because then every other factor acts on a
        # thin matrix. Without one, start with the last factor.
        start = next((k for k, x in enumerate(factors) if self.is_separable(x)), len(factors) - 1)
        stream = self.series(factors[start])
        for x in reversed(factors[:start]):
            stream = self.applied(x, stream)
        if factors[start + 1 :]:
            stream = self.transposed(stream)
            for x in factors[start + 1 :]:
                stream = self.applied(flipped(x), stream)
            stream = self.transposed(stream)
        return self.scaled(number, stream)

    def transposed(self, x: Stream) -> Stream:
        """Return the power series in gamma0 of the transposed operator."""

        def rule(n: int) -> Any:
            """Return the transposed coefficient of order n of a power series; None for zero."""
            value = x.at(n)
            return None if value is None else value.transpose()

        return self.new(rule)

    def is_separable(self, e: Expr) -> bool:
        """Return whether the operator expression ``e`` counts as one of low rank.

        A correlation and a data kernel do, and a sum if each of its terms has such a factor; inverses and
        transposes do not.
        """
        if isinstance(e, Add):
            return all(any(self.is_separable(x) for x in split(part)[1]) for part in e.args)
        return not isinstance(e, Pow | Transpose) and self.is_correlation(e)

    def applied(self, e: Expr, x: Stream) -> Stream:
        """Return the power series in gamma0 of the operator product ``e x``.

        ``e`` is an expression in operators, ``x`` a power series of operators.
        """
        if isinstance(e, Add):
            return self.sum([self.applied(part, x) for part in e.args])
        if e.is_commutative:
            return self.scaled(e, x)
        if isinstance(e, Mul):
            number, factors = split(e)
            for f in reversed(factors):
                x = self.applied(f, x)
            return self.scaled(number, x)
        if isinstance(e, Pow):
            return self.resolved(loop_of(e), x)
        operator = self.series(e)
        return self.new(lambda n: self.convolution(operator, x, n))

    def resolved(self, loop: Expr, x: Stream) -> Stream:
        """Return the power series y in gamma0 with ``y = x + loop y``, which is ``(1 - loop)^-1 x``.

        ``loop`` is a square operator expression of order one or higher in gamma0. If y is causal with an
        index of samples only on its right, the operators of ``loop`` are multiplied first, because this
        product is smaller. Otherwise, and always with ``in_turn``, each of them is applied to y.
        """

        def rule(n: int) -> Any:
            """Return order n in gamma0 of the solution y of ``y = x + loop y``, from lower orders of y."""
            first = next((v for k in range(n + 1) if (v := x.at(k)) is not None), None)
            flat = not self.in_turn and first is not None and first.kind == Kind(True, False, True)
            return self.add(x.at(n), (at_once if flat else by_factors).at(n))

        solution = self.new(rule)
        by_factors = self.applied(loop, solution)
        whole = self.series(loop)
        at_once = self.new(lambda n: self.convolution(whole, solution, n, start=1))
        return solution

    def scaled(self, factor: Expr, x: Stream) -> Stream:
        """Return the power series x times ``factor``, which is a number times a power of gamma0."""
        number, power = scale_of(factor)
        value = self.number(number)
        if (power, value) == (0, 1.0):
            return x

        def rule(n: int) -> Any:
            """Return order n of a series that is multiplied by ``value gamma0^power``; None for zero."""
            coefficient = x.at(n - power)
            return None if coefficient is None else self.times(value, coefficient)

        return self.new(rule)

    def sum(self, xs: list[Stream]) -> Stream:
        """Return the sum of several power series in gamma0."""
        return self.new(lambda n: self.add(*[x.at(n) for x in xs]))

    def convolution(self, a: Stream, b: Stream, n: int, start: int = 0) -> Any:
        """Return order n in gamma0 of the operator product ``a b`` of two power series.

        The series a has no coefficients below order ``start``.
        """
        products = []
        for k in range(start, n + 1):
            right = b.at(n - k)
            if right is not None and (left := a.at(k)) is not None:
                products.append(self.multiply(left, right))
        return self.add(*products)


@lru_cache(maxsize=10_000)
def flipped(e: Expr) -> Expr:
    """Return the transpose of an operator expression: a product, sum or inverse of operators."""
    if isinstance(e, Transpose):
        return e.args[0]
    if isinstance(e, Add):
        return Add(*[flipped(x) for x in e.args])
    if isinstance(e, Mul):
        number, factors = split(e)
        return Mul(number, *[flipped(x) for x in reversed(factors)])
    if isinstance(e, Pow) and not e.is_commutative:
        return Pow(flipped(e.base), e.exp)
    return e if e.is_commutative else Transpose(e)


# -- sums of arrays --------------------------------------------------------------------------------------


def times(number: float, a: LayerOperator) -> LayerOperator:
    """Return an operator multiplied by a number."""
    return (
        Dense(number * a.block) if isinstance(a, Dense) else SeparableKernel(a.left, number * a.core, a.right)
    )


def add(*xs: LayerOperator | None) -> LayerOperator | None:
    """Return the sum of operators that are all causal or all separable; None stands for zero.

    A separable sum with more than RANK columns is compressed to as few columns as needed.
    """
    nonzero = [x for x in xs if x is not None]
    if len(nonzero) < 2:
        return nonzero[0] if nonzero else None
    total = summed([(1.0, x) for x in nonzero])
    return total if isinstance(total, Dense) else compressed(total)


def summed(terms: Sequence[tuple[float, LayerOperator]]) -> LayerOperator:
    """Return the linear combination of pairs (number, operator), all causal or all separable.

    There must be at least one pair. Raises TypeError for a mixture of causal and separable operators.
    """
    if len(terms) == 1:
        return terms[0][1] if terms[0][0] == 1 else times(*terms[0])
    if all(isinstance(x, Dense) for _, x in terms):
        total = terms[0][0] * terms[0][1].block  # type: ignore[union-attr]
        for number, x in terms[1:]:
            total += x.block if number == 1 else number * x.block  # type: ignore[union-attr]
        return Dense(total)
    parts = [(number, x) for number, x in terms if isinstance(x, SeparableKernel)]
    if len(parts) < len(terms):
        raise TypeError("a causal operator (dense) and a correlation (separable) cannot be added")
    core = np.zeros((sum(len(x.core) for _, x in parts), sum(len(x.core.T) for _, x in parts)))
    i = j = 0
    for number, x in parts:
        k, m = x.core.shape
        np.multiply(x.core, number, out=core[i : i + k, j : j + m])
        i, j = i + k, j + m
    sides = [x.left for _, x in parts], [x.right for _, x in parts]
    left, right = (np.concatenate(a, axis=2) for a in sides)
    return SeparableKernel(left, core, right)


def compressed(a: SeparableKernel) -> SeparableKernel:
    """Return a separable operator with as few columns as needed, by singular values.

    Operators with few columns are returned unchanged.  The error is a rounding error relative to the largest
    entries.
    """
    if max(a.core.shape) <= RANK:
        return a
    (T, n, k), (S, m, j) = a.left.shape, a.right.shape
    q, r = np.linalg.qr(a.left.reshape(-1, k))
    p, s = np.linalg.qr(a.right.reshape(-1, j))
    u, sigma, v = np.linalg.svd(r @ a.core @ s.T, full_matrices=False)
    rank = max(1, int(np.sum(sigma > KEPT * sigma[0])))
    left = (q @ u[:, :rank]).reshape(T, n, rank)
    right = (p @ v[:rank].T).reshape(S, m, rank)
    return SeparableKernel(left, np.diag(sigma[:rank]), right)
