"""Evaluate operator words of the expansion on a time grid.

A causal letter is a dense block, (T, rows, T, cols).  A constant kernel (the data's K^x, or 1) makes a word
fall apart: ``left(t) core right(s)^T`` with (T, rows, k) and (T, cols, m) arrays, which is what iterated time
integrals are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Mul, Sum, Symbol, lambdify
from sympy.core.function import AppliedUndef
from sympy.functions.elementary.complexes import transpose as Transpose

from derive.calculus.symbols import s, t
from derive.expansion.words import Memory, letters
from derive.linear.operators import J, Kernel
from numerics.solver.densities import interval_weights

Array = NDArray[np.float64]


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

    def at(self, out: NDArray[np.intp]) -> Array:
        """Entries at output times, (out, rows, out, cols)."""
        return self.block[out][:, :, out]


@dataclass(frozen=True)
class Separable:
    """``left(t) core right(s)^T``: (T, rows, k), (k, m), (T, cols, m)."""

    left: Array
    core: Array
    right: Array

    def transpose(self) -> Separable:
        return Separable(self.right, self.core.T, self.left)

    def at(self, out: NDArray[np.intp]) -> Array:
        """Entries at output times, (out, rows, out, cols)."""
        a = self.left[out] @ self.core
        b = self.right[out]
        return (a.reshape(-1, a.shape[2]) @ b.reshape(-1, b.shape[2]).T).reshape(*a.shape[:2], *b.shape[:2])

    def diagonal(self) -> Array:
        """Entries at equal times, (T, rows, cols)."""
        return (self.left @ self.core) @ self.right.transpose(0, 2, 1)


Value = Dense | Separable


def combined(
    parts: Sequence[tuple[float, Separable]], out: NDArray[np.intp] | slice, into: Array | None = None
) -> Array:
    """A sum of separable words at output times, (out, rows, out, cols), as one matrix product.

    It is written ``into`` a contiguous array of that shape, if one is given.
    """
    lefts = [number * (x.left[out] @ x.core) for number, x in parts]
    rights = [x.right[out] for _, x in parts]
    left, right = (a[0] if len(a) == 1 else np.concatenate(a, axis=2) for a in (lefts, rights))
    if into is None:
        into = np.empty((*left.shape[:2], *right.shape[:2]))
    rows, cols = left.reshape(-1, left.shape[2]), right.reshape(-1, right.shape[2])
    np.matmul(rows, cols.T, out=into.reshape(len(rows), len(cols)))
    return into


def product(a: Value, b: Value) -> Value:
    """The operator product."""
    if isinstance(a, Dense) and isinstance(b, Dense):
        shape = (*a.block.shape[:2], *b.block.shape[2:])
        return Dense((a.matrix @ b.matrix).reshape(shape))
    if isinstance(a, Dense) and isinstance(b, Separable):
        left = a.matrix @ b.left.reshape(-1, b.left.shape[2])
        return Separable(left.reshape(*a.block.shape[:2], -1), b.core, b.right)
    if isinstance(a, Separable) and isinstance(b, Dense):
        return product(b.transpose(), a.transpose()).transpose()
    assert isinstance(a, Separable)
    assert isinstance(b, Separable)
    meet = np.einsum("tam,tak->mk", a.right, b.left)
    return Separable(a.left, a.core @ meet @ b.core, b.right)


class Words:
    """Evaluates words; ``errors[n]`` is the error's coefficient of order n, (T, P).

    ``memory[C]`` is the weight with which kernel C remembers, (T, T) strictly lower triangular, found from
    its definition by :func:`memory_weight`.
    """

    def __init__(
        self,
        kernels: Mapping[str, Kernel],
        memory: Mapping[str, Array],
        data: Mapping[str, Array],
        errors: dict[int, Array],
    ) -> None:
        self.kernels, self.memory, self.data, self.errors = kernels, memory, data, errors
        self.T = next(iter(memory.values())).shape[0]
        self.known: dict[Expr, Value] = {}

    def value(self, word: Expr) -> Value:
        """The operator that a word stands for; shared prefixes are computed once."""
        if word not in self.known:
            ls = _letters(word)
            if len(ls) == 1:
                self.known[word] = self.letter(ls[0])
            else:
                # causal letters act on what is to their right, which is a tall matrix once a constant is met;
                # of causal letters alone those are multiplied first that have times on both sides only
                cut = 2 if len(ls) > 2 and all(map(self.is_causal, ls)) and self.is_narrow(*ls[:2]) else 1
                self.known[word] = product(self.value(Mul(*ls[:cut])), self.value(Mul(*ls[cut:])))
        return self.known[word]

    def is_causal(self, x: Expr) -> bool:
        """Is a letter a kernel with memory?"""
        return isinstance(x, Memory)

    def is_narrow(self, a: Memory, b: Memory) -> bool:
        """Does the product of two letters have no sample on either side?"""
        return not self.kernels[a.kernel].rows and not self.kernels[b.kernel].cols

    def letter(self, x: Expr) -> Value:
        if isinstance(x, Transpose):
            return self.value(x.args[0]).transpose()
        if isinstance(x, Memory):
            return self.remember(x)
        if x == J:
            one = np.ones((self.T, 1, 1))
            return Separable(one, np.ones((1, 1)), one)
        K = self.data[str(x)]
        eye = np.broadcast_to(np.eye(len(K)), (self.T, len(K), len(K)))
        return Separable(eye, K, eye)

    def remember(self, x: Memory) -> Dense:
        """The operator of a letter that remembers."""
        kernel = self.kernels[x.kernel]
        return remembered(kernel, self.memory[x.kernel], self.errors[x.order], self.value(x.body))

    def density(self, word: Expr, nodes: Array) -> Array:
        """A causal word of the flow as a function of t and s: (T, rows, T, cols), zero for s > t.

        Letters remember with weight one; between two letters the time is integrated from s to t.
        """
        ls = letters(word)
        if len(ls) > 1:
            return convolved(self.density(ls[0], nodes), self.density(Mul(*ls[1:]), nodes), nodes)
        assert isinstance(ls[0], Memory)
        weights, rates = self.memory, {}
        for n, w in weights.items():
            full = np.tril(np.ones_like(w))
            rates[n] = full * (np.sum(w[-1]) / nodes[-1])  # a constant update for unit time weighs this much
        plain = Words(self.kernels, rates, self.data, self.errors)
        plain.known = {k: v for k, v in self.known.items() if isinstance(v, Separable)}
        value = plain.value(ls[0])
        assert isinstance(value, Dense)
        return value.block


def remembered(kernel: Kernel, w: Array, error: Array, body: Value) -> Dense:
    """``w(t, s) sum_a Delta_a(s) X_row,a(t, s)``, or ``w Delta_col(s) X(t, s)``, for the ``body`` X."""
    if not kernel.rows:
        block = (body.block if isinstance(body, Dense) else body.at(np.arange(len(w))))[:, 0, :, 0] * w
        return Dense(block[:, None, :, None] * error[None, None])
    if isinstance(body, Separable):
        right = np.einsum("sa,sam->sm", error, body.right)
        block = (body.left @ body.core) @ right.T
    else:
        block = np.einsum("sb,tasb->tas", error, body.block)
    return Dense((block * w[:, None, :])[..., None])


def convolved(a: Array, b: Array, nodes: Array) -> Array:
    """``int_s^t a(t, t') b(t', s) dt'`` for blocks (T, rows, T, cols)."""
    out = np.zeros((*a.shape[:3], b.shape[3]))
    for n, w in enumerate(interval_weights(nodes)):
        inner = b[: n + 1, :, : n + 1] * w.T[:, None, :, None]
        k = inner.shape[0] * inner.shape[1]
        out[n, :, : n + 1] = (a[n, :, : n + 1].reshape(-1, k) @ inner.reshape(k, -1)).reshape(
            -1, n + 1, b.shape[3]
        )
    return out


def memory_weight(
    kernel: Kernel, error: str, known: Mapping[Symbol, float], T: int, tables: Mapping[str, Array]
) -> Array:
    """The factor of a kernel's memory beyond error and correlation: (T, T), strictly lower triangular.

    What is a function of the times alone (momentum) is read at steps 0..T-1.
    """
    part = next(
        x for x in _addends(kernel.definition) if any(str(a.func) == error for a in x.atoms(AppliedUndef))
    )
    own = [
        x
        for x in _factors(part)
        if not isinstance(x, AppliedUndef) or (x.args == (t, s) and str(x.func) in tables)
    ]
    return time_table(Mul(*own), known, T, tables)


def time_table(weight: Expr, known: Mapping[Symbol, float], T: int, tables: Mapping[str, Array]) -> Array:
    """A weight k(t, s) of past updates at steps 0..T-1, (T, T) strictly lower triangular.

    Functions of t and s are looked up in ``tables``.

    >>> time_table(2 * (t - s), {}, 2, {}).tolist()
    [[0.0, 0.0], [2.0, 0.0]]
    """
    named = [a for a in weight.atoms(AppliedUndef) if a.args == (t, s)]
    e = weight.xreplace({a: Symbol(str(a.func)) for a in named}).subs(dict(known))
    value = lambdify((t, s, *[Symbol(str(a.func)) for a in named]), e, "numpy")
    later, earlier = np.meshgrid(np.arange(T, dtype=float), np.arange(T, dtype=float), indexing="ij")
    found = value(later, np.minimum(earlier, later), *[tables[str(a.func)] for a in named])
    return np.asarray(np.tril(np.broadcast_to(found, (T, T)), -1))


@lru_cache(maxsize=100_000)
def _letters(word: Expr) -> tuple[Expr, ...]:
    return tuple(letters(word))


def _addends(e: Expr) -> tuple[Expr, ...]:
    return e.args if e.is_Add else (e,)


def _factors(e: Expr) -> list[Expr]:
    out: list[Expr] = []
    for x in Mul.make_args(e):
        out += _factors(x.function) if isinstance(x, Sum) else [x]
    return out
