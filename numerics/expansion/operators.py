"""Operators between fields at all times as arrays, and power series of them.

A causal operator is a dense block, (T, rows, T, cols).  A constant kernel (the data's K^x, or 1) makes a
product fall apart: ``left(t) core right(s)^T`` with (T, rows, k) and (T, cols, m) arrays, which is what
iterated time integrals are.

The coefficients of a series are found when asked for, each once; None stands for zero.  That of order n of
a product needs those of its factors up to n.  An inverse ``(1 - M)^-1`` applied to something needs itself at
lower orders only, since M starts at order one or later.

What has to be done to find them depends on no array: it is written on a tape, the same operation once, and
carried out on the arrays of each problem.
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
from sympy.functions.elementary.complexes import transpose as Transpose

from derive.calculus.symbols import gamma0, s, t
from derive.linear.operators import Kernel
from numerics.lowering.expressions import KnownArrays
from numerics.lowering.indices import Axis

Array = NDArray[np.float64]
Times = NDArray[np.intp] | slice
"""Steps or nodes: their numbers, or all of them, which need no copies."""

KEPT = 1e-16
"""Singular values of a sum of separable operators below this share of the largest are rounding."""
RANK = 32
"""Sums of smaller rank are left as they are."""


@dataclass(frozen=True)
class Dense:
    """A causal operator: block (T, rows, T, cols)."""

    block: Array

    @property
    def matrix(self) -> Array:
        a = self.block
        return a.reshape(a.shape[0] * a.shape[1], -1)

    def transpose(self) -> Dense:
        return Dense(self.block.transpose(2, 3, 0, 1))

    def at(self, out: Times, into: Array | None = None) -> Array:
        """Entries at output times, (out, rows, out, cols); put ``into`` an array if it is given."""
        found = self.block[out][:, :, out]
        if into is None:
            return found
        into[...] = found
        return into


@dataclass(frozen=True)
class SeparableKernel:
    """``left(t) core right(s)^T``: (T, rows, k), (k, m), (T, cols, m)."""

    left: Array
    core: Array
    right: Array

    def transpose(self) -> SeparableKernel:
        return SeparableKernel(self.right, self.core.T, self.left)

    def at(self, out: Times, into: Array | None = None) -> Array:
        """Entries at output times, (out, rows, out, cols); put ``into`` a contiguous array if it is given."""
        (rows, k), (cols, m) = self.left.shape[1:], self.right.shape[1:]
        a, b = self.left[out].reshape(-1, k) @ self.core, self.right[out].reshape(-1, m)
        found = np.empty((len(a) // rows, rows, len(b) // cols, cols)) if into is None else into
        if self.left.strides[0] == 0:  # the same at all times
            found.reshape(len(found), rows, -1)[...] = a[:rows] @ b.T
        else:
            np.matmul(a, b.T, out=found.reshape(len(a), len(b)))
        return found

    def diagonal(self) -> Array:
        """Entries at equal times, (T, rows, cols)."""
        return (self.left @ self.core) @ self.right.transpose(0, 2, 1)


LayerOperator = Dense | SeparableKernel


def multiplied(a: LayerOperator, b: LayerOperator) -> LayerOperator:
    """The operator product."""
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
    """``w(t, s) sum_a Delta_a(s) X_row,a(t, s)``, or ``w Delta_col(s) X(t, s)``, for the ``body`` X."""
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
    """``int_s^t a(t, t') b(t', s) dt'`` for blocks (T, rows, T, cols), with the weights of each t."""
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
    """The factor of a kernel's memory beyond error and correlation; ``tables`` names functions of t and s.

    What is a function of the times alone (momentum) is read at steps 0..T-1.
    """
    part = next(
        x
        for x in Add.make_args(kernel.definition)
        if any(str(a.func) == error for a in x.atoms(AppliedUndef))
    )
    own = [
        x
        for x in _factors(part)
        if not isinstance(x, AppliedUndef) or (set(x.args) <= {t, s} and str(x.func) in tables)
    ]
    return Mul(*own)


def time_table(weight: Expr, known: Mapping[Symbol, float], T: int, tables: Mapping[str, Array]) -> Array:
    """A weight k(t, s) of past updates at steps 0..T-1, (T, T) strictly lower triangular.

    Functions of t and s are looked up in ``tables``.

    >>> time_table(2 * (t - s), {}, 2, {}).tolist()
    [[0.0, 0.0], [2.0, 0.0]]
    """
    numbers = {str(x): v for x, v in known.items()}
    with np.errstate(all="ignore"):  # beyond s = t, which is left out
        found = KnownArrays(numbers, tables)(weight, {t: Axis(0, T, 0, 2), s: Axis(0, T, 1, 2)})
    return np.asarray(np.tril(np.broadcast_to(found, (T, T, 1))[..., 0], -1))


def _factors(e: Expr) -> list[Expr]:
    out: list[Expr] = []
    for x in Mul.make_args(e):
        out += _factors(x.function) if isinstance(x, Sum) else [x]
    return out


# -- series of operators ---------------------------------------------------------------------------------


class Kind(NamedTuple):
    """Is an operator causal, and are there samples on its left and on its right?"""

    causal: bool
    rows: bool
    cols: bool


@dataclass(frozen=True, eq=False)
class Combination:
    """A sum of operators on a tape by their places, each with a number in front."""

    tape: Tape
    terms: Mapping[int, float]

    @property
    def kind(self) -> Kind:
        """That of every term."""
        return self.tape.kinds[next(iter(self.terms))]

    def transpose(self) -> Combination:
        return Combination(self.tape, {self.tape.transposed(i): c for i, c in self.terms.items()})


class Tape:
    """Operations on operators in the order in which they can be carried out, each once.

    A step is what is done, and to what: the places of earlier steps, and numbers in front.  Sums stay sums
    until a causal one is multiplied, or one has more than ``most`` terms.  So numbers are collected, and what
    differs by a factor from layer to layer is multiplied once.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.steps: list[tuple[Any, ...]] = []
        self.kinds: list[Kind] = []
        self.places: dict[tuple[Any, ...], int] = {}

    def place(self, kind: Kind, *step: Any) -> int:
        """Where a step stands."""
        if step not in self.places:
            self.places[step] = len(self.steps)
            self.steps.append(step)
            self.kinds.append(kind)
        return self.places[step]

    def transposed(self, i: int) -> int:
        """The place of a transpose; constants are symmetric."""
        what, *of = self.steps[i]
        if what in ("transpose", "constant"):
            return int(of[0]) if what == "transpose" else i
        causal, rows, cols = self.kinds[i]
        return self.place(Kind(causal, cols, rows), "transpose", i)

    def one(self, x: Combination) -> tuple[int, float]:
        """A combination as a number times one operator."""
        if len(x.terms) > 1:
            return self.place(x.kind, "sum", *sorted(x.terms.items())), 1.0
        return next(iter(x.terms.items()))

    def constant(self, x: Expr, samples: bool) -> Combination:
        """A kernel without memory."""
        return Combination(self, {self.place(Kind(False, samples, samples), "constant", x): 1.0})

    def remembered(self, kernel: Kernel, order: int, body: Combination) -> Combination:
        """What a kernel remembers of a correlation with the error of one order."""
        kind = Kind(True, bool(kernel.rows), bool(kernel.cols))
        step = "remembered", kernel.name, order, *sorted(body.terms.items())
        return Combination(self, {self.place(kind, *step): 1.0})

    def found(self, kind: Kind, name: str, n: int, site: int) -> Combination:
        """An order of an operator at a layer that is known from elsewhere."""
        return Combination(self, {self.place(kind, "found", name, n, site): 1.0})

    def multiply(self, a: Combination, b: Combination) -> Combination:
        """The operator product, term by term of a correlation."""
        kind = Kind(a.kind.causal and b.kind.causal, a.kind.rows, b.kind.cols)
        pairs = product(*([self.one(x)] if x.kind.causal else x.terms.items() for x in (a, b)))
        return Combination(self, {self.place(kind, "product", i, j): x * y for (i, x), (j, y) in pairs})

    def times(self, number: float, x: Combination) -> Combination:
        """A multiple."""
        return Combination(self, {i: number * c for i, c in x.terms.items()})

    def add(self, *xs: Combination | None) -> Combination | None:
        """The sum; None counts as zero."""
        found = [x for x in xs if x is not None]
        if len(found) < 2:
            return found[0] if found else None
        terms: Counter[int] = Counter()
        for x in found:
            terms.update(x.terms)
        total = Combination(self, terms)
        return total if len(terms) <= self.most else Combination(self, dict([self.one(total)]))


@dataclass(eq=False)
class Stream:
    """A power series by the rule of its coefficients."""

    rule: Callable[[int], Any]
    known: dict[int, Any] = field(default_factory=dict)

    def at(self, n: int) -> Any:
        """The coefficient of order n."""
        if n < 0:
            return None
        if n not in self.known:
            self.known[n] = self.rule(n)
        return self.known[n]


@lru_cache(maxsize=10_000)
def split(e: Expr) -> tuple[Expr, tuple[Expr, ...]]:
    """What commutes in a product, and the operators in their order."""
    numbers, factors = e.args_cnc()
    return Mul(*numbers), tuple(factors)


@lru_cache(maxsize=10_000)
def scale_of(factor: Expr) -> tuple[Expr, int]:
    """A constant, and the power of gamma0 that it goes with."""
    number, power = factor.as_coeff_exponent(gamma0)
    return number, int(power)


@lru_cache(maxsize=10_000)
def loop_of(inverse: Pow) -> Expr:
    """The x of ``(1 - x)^-1``."""
    if inverse.exp != -1:
        raise NotImplementedError(f"{inverse}: only inverses of series that start with 1")
    return (1 - inverse.base).expand()


@dataclass(eq=False)
class SeriesAlgebra:
    """Turns operator expressions into series; ``known`` gives that of an indexed operator.

    ``number`` evaluates constants, ``is_correlation`` tells operators of low rank from causal ones.
    Coefficients are what ``multiply``, ``add`` and ``times`` (a number, and an operator) take and give.
    Integrals by quadrature, which depend on the order in which they are taken, are taken ``in_turn``.
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
        """A series that is forgotten by :meth:`forget`."""
        found = Stream(rule)
        self.streams.append(found)
        return found

    def forget(self, n: int) -> None:
        """Drop what was computed from order n on, because something it was made of has changed."""
        for x in self.streams:
            x.known = {k: v for k, v in x.known.items() if k < n}

    def series(self, e: Expr) -> Stream:
        """The series of an expression that contains an operator in each addend."""
        if isinstance(e, Indexed):
            return self.known(e)
        if isinstance(e, Transpose):
            return self.transposed(self.series(e.args[0]))
        if isinstance(e, Add):
            return self.sum([self.series(x) for x in e.args])
        if e.is_Symbol and not e.is_commutative:
            return self.known(e)
        number, factors = split(e)
        # start with what is in the middle: it is of low rank, and everything else acts on it
        start = next((k for k, x in enumerate(factors) if self.is_separable(x)), len(factors) - 1)
        found = self.series(factors[start])
        for x in reversed(factors[:start]):
            found = self.applied(x, found)
        if factors[start + 1 :]:
            found = self.transposed(found)
            for x in factors[start + 1 :]:
                found = self.applied(flipped(x), found)
            found = self.transposed(found)
        return self.scaled(number, found)

    def transposed(self, x: Stream) -> Stream:
        """The series of the transposes."""

        def rule(n: int) -> Any:
            value = x.at(n)
            return None if value is None else value.transpose()

        return self.new(rule)

    def is_separable(self, e: Expr) -> bool:
        """Is ``e`` a correlation, or a sum of words around one?"""
        if isinstance(e, Add):
            return all(any(self.is_separable(x) for x in split(part)[1]) for part in e.args)
        return not isinstance(e, Pow | Transpose) and self.is_correlation(e)

    def applied(self, e: Expr, x: Stream) -> Stream:
        """The series of ``e`` times ``x``."""
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
        """``(1 - loop)^-1 x``, that is y with ``y = x + loop y``.

        The loop leads from as many entries to as many: where y has samples on its right alone the loop's own
        product is the smaller one, else that of each of its factors with y.
        """

        def rule(n: int) -> Any:
            first = next((v for k in range(n + 1) if (v := x.at(k)) is not None), None)
            flat = not self.in_turn and first is not None and first.kind == Kind(True, False, True)
            return self.add(x.at(n), (at_once if flat else by_factors).at(n))

        found = self.new(rule)
        by_factors = self.applied(loop, found)
        whole = self.series(loop)
        at_once = self.new(lambda n: self.convolution(whole, found, n, start=1))
        return found

    def scaled(self, factor: Expr, x: Stream) -> Stream:
        """A number times a power of gamma0, times a series."""
        number, power = scale_of(factor)
        value = self.number(number)
        if (power, value) == (0, 1.0):
            return x

        def rule(n: int) -> Any:
            found = x.at(n - power)
            return None if found is None else self.times(value, found)

        return self.new(rule)

    def sum(self, xs: list[Stream]) -> Stream:
        """The sum of series."""
        return self.new(lambda n: self.add(*[x.at(n) for x in xs]))

    def convolution(self, a: Stream, b: Stream, n: int, start: int = 0) -> Any:
        """Order n of a product whose first factor begins at order ``start``."""
        found = []
        for k in range(start, n + 1):
            right = b.at(n - k)
            if right is not None and (left := a.at(k)) is not None:
                found.append(self.multiply(left, right))
        return self.add(*found)


@lru_cache(maxsize=10_000)
def flipped(e: Expr) -> Expr:
    """The transpose of a product, sum or inverse of operators."""
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
    """A multiple of an operator."""
    return (
        Dense(number * a.block) if isinstance(a, Dense) else SeparableKernel(a.left, number * a.core, a.right)
    )


def add(*xs: LayerOperator | None) -> LayerOperator | None:
    """The sum of operators of one kind; None counts as zero."""
    found = [x for x in xs if x is not None]
    if len(found) < 2:
        return found[0] if found else None
    total = summed([(1.0, x) for x in found])
    return total if isinstance(total, Dense) else compressed(total)


def summed(terms: Sequence[tuple[float, LayerOperator]]) -> LayerOperator:
    """A sum of operators of one kind, each with a number in front."""
    if len(terms) == 1:
        return terms[0][1] if terms[0][0] == 1 else times(*terms[0])
    if all(isinstance(x, Dense) for _, x in terms):
        total = terms[0][0] * terms[0][1].block  # type: ignore[union-attr]
        for number, x in terms[1:]:
            total += x.block if number == 1 else number * x.block  # type: ignore[union-attr]
        return Dense(total)
    parts = [(number, x) for number, x in terms if isinstance(x, SeparableKernel)]
    if len(parts) < len(terms):
        raise TypeError("a causal operator and a correlation do not add up")
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
    """The same operator with as few columns as it takes, rounding errors of its largest entries apart."""
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
