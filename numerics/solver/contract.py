"""Products of tensors, multiplied out two at a time in an order that is found once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Expr

Array = NDArray[np.float64]
Operand = Array | Callable[[], Array]
"""A tensor, or what looks it up."""


@dataclass(frozen=True)
class Pair:
    """One step: two operands as a product of matrices, for each value of the labels that they share and keep.

    ``matrices`` is None where the operands are no such product.
    """

    taken: tuple[int, ...]
    own: tuple[list[int], ...]
    result: list[int]
    matrices: tuple[tuple[list[int], list[int], list[int]], list[int]] | None

    @classmethod
    def of(cls, taken: tuple[int, ...], own: tuple[list[int], ...], result: list[int]) -> Pair:
        """Sort the labels: kept by both, of the first, summed, of the second."""
        plain = len(own) == 2 and all(len(set(a)) == len(a) for a in own)
        if not plain or set(own[0]) ^ set(own[1]) != (set(own[0]) ^ set(own[1])) & set(result):
            return cls(taken, own, result, None)
        a, b = own
        both = [x for x in a if x in b and x in result]
        summed = [x for x in a if x in b and x not in result]
        left, right = [x for x in a if x not in b], [x for x in b if x not in a]
        if not summed:
            return cls(taken, own, result, None)
        first = [a.index(x) for x in (*both, *left, *summed)]
        second = [b.index(x) for x in (*both, *right[:-1], *summed, *right[-1:])]
        have = [*both, *left[:-1], *right[:-1], *left[-1:], *right[-1:]]
        back = [have.index(x) for x in result]
        return cls(
            taken, own, result, ((first, second, back), [len(both), len(left), len(summed), len(right)])
        )

    def __call__(self, parts: list[Array]) -> Array:
        """The product of the operands that were taken."""
        if self.matrices is None:
            given: list[Any] = []
            for a, axes in zip(parts, self.own, strict=True):
                given += [a, axes]
            value: Array = np.einsum(*given, self.result)
            return value
        (first, second, back), (n, p, q, r) = self.matrices
        a, b = parts[0].transpose(first), parts[1].transpose(second)
        both, left, right = (
            a.shape[:n],
            a.shape[n : n + p],
            (*b.shape[n : n + max(r - 1, 0)], *b.shape[n + max(r - 1, 0) + q :]),
        )
        inner = prod(a.shape[n + p :])
        if q > 1:
            a = a.reshape((*both, *left, inner))
            b = b.reshape((*both, *right[:-1], inner, *right[-1:]))
        rows, cols = left[-1:] or (1,), right[-1:] or (1,)
        a = a.reshape((*both, *left[:-1], *(1,) * len(right[:-1]), *rows, inner))
        b = b.reshape((*both, *(1,) * len(left[:-1]), *right[:-1], inner, *cols))
        product: Array = np.matmul(a, b)
        return product.reshape((*both, *left[:-1], *right[:-1], *left[-1:], *right[-1:])).transpose(back)


@dataclass(frozen=True)
class Contraction:
    """Steps of an einsum; ``out`` names the axes of the result.

    >>> import sympy
    >>> i, j, k = sympy.symbols("i j k")
    >>> pair = Contraction.of([[i, j], [j, k]], [i, k], {i: 2, j: 3, k: 2})
    >>> pair([np.ones((2, 3)), np.ones((3, 2))])
    array([[3., 3.],
           [3., 3.]])
    """

    out: tuple[Expr, ...]
    steps: tuple[Pair, ...]

    @classmethod
    def of(
        cls, operands: Sequence[Sequence[Expr]], out: Sequence[Expr], sizes: Mapping[Expr, int]
    ) -> Contraction:
        """The cheapest order found for operands with these axes, of these sizes."""
        labels: dict[Expr, int] = {}
        names = [[labels.setdefault(x, len(labels)) for x in o] for o in operands]
        target = [labels[x] for x in out]
        if not operands:
            return cls((), ())
        path: list[tuple[int, ...]] = [tuple(range(len(names)))]
        if len(names) > 2:
            dummies: list[Any] = []
            for o, own in zip(operands, names, strict=True):
                dummies += [np.broadcast_to(0.0, [sizes[x] for x in o]), own]
            path = np.einsum_path(*dummies, target, optimize="greedy")[0][1:]
        steps = []
        for k, chosen in enumerate(path):
            taken = tuple(sorted(chosen, reverse=True))
            parts = [names[c] for c in taken]
            names = [x for c, x in enumerate(names) if c not in taken]
            kept = {x for o in names for x in o} | set(target)
            result = target if k == len(path) - 1 else sorted({x for o in parts for x in o} & kept)
            steps.append(Pair.of(taken, tuple(parts), result))
            names.append(result)
        return cls(tuple(out), tuple(steps))

    def __call__(self, operands: Sequence[Operand]) -> Array:
        """The product of these tensors, one for each given when the order was found."""
        todo = [a() if callable(a) else a for a in operands]
        for step in self.steps:
            todo.append(step([todo.pop(c) for c in step.taken]))
        return todo[0] if todo else np.ones(())
