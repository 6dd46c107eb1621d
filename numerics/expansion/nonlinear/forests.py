"""What multiplies a tensor, as an array: iterated sums over earlier times of the error's coefficients."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from derive.expansion.nonlinear.trees import COL, ROW, Forest, leads, samples_of

Array = NDArray[np.float64]
Index = NDArray[np.intp]

NOW, PAST = -2, -1
"""Axes that are times; the others are samples."""


class Forests:
    """``weight`` is the rule's k(t, s), (T, T) strictly lower; ``errors[n]`` the error's order n, (T, P)."""

    def __init__(self, weight: Array, errors: Mapping[int, Array]) -> None:
        self.weight, self.errors = weight, errors
        self.known: dict[tuple[Forest, int], tuple[Array, list[int]]] = {}

    def root(self, forest: Forest, place: int) -> tuple[Array, list[int]]:
        """What hangs on a node: the product of its children, (T, samples..), and the samples."""
        value: Array = np.ones(len(self.weight))
        axes: list[int] = []
        for i, x in enumerate(forest):
            if x.parent == place and not leads(forest, i):
                child, own = self.child(forest, i)
                value = contracted([NOW, *axes, *own], (value, [NOW, *axes]), (child, [NOW, *own]))
                axes = axes + own
        return value, axes

    def child(self, forest: Forest, i: int) -> tuple[Array, list[int]]:
        """An earlier time, summed over: a function of the time it hangs on."""
        if (forest, i) not in self.known:
            below, axes = self.root(forest, i)
            error = self.errors[forest[i].error]
            own = [forest[i].sample, *axes]
            body = contracted([NOW, *own], (error, [NOW, own[0]]), (below, [NOW, *axes]))
            self.known[forest, i] = np.tensordot(self.weight, body, 1), own
        return self.known[forest, i]

    def correlation(self, forest: Forest, tensor: Array, out: Index) -> Array:
        """``tensor * forest`` summed over samples, (out, P, out, P)."""
        first, second = [i for i, x in enumerate(forest) if x.parent < 0]
        (a, left), (b, right) = self.root(forest, first), self.root(forest, second)
        parts = (tensor, list(samples_of(forest))), (a[out], [NOW, *left]), (b[out], [PAST, *right])
        return contracted([NOW, ROW, PAST, COL], *parts)

    def single(self, forest: Forest, tensor: Array) -> Array:
        """``tensor * forest`` summed over samples, (T, P): one time."""
        a, axes = self.root(forest, 0)
        return contracted([NOW, ROW], (tensor, list(samples_of(forest))), (a, [NOW, *axes]))

    def response(self, forest: Forest, tensor: Array, out: Index) -> Array:
        """``tensor * forest`` with the pushed time free, (out, P, out, P)."""
        own = tensor, list(samples_of(forest))
        value, axes = self.path(forest, 0)
        if forest[0].marked:  # pushed at the same time, and then at the same sample
            P = len(tensor)
            found = contracted([NOW, ROW], own, (value, [NOW, *axes]))
            full = np.zeros((len(out), P, len(out), P))
            n, m = np.arange(len(out))[:, None], np.arange(P)
            full[n, m, n, m] = found[out]
            return full
        return contracted([NOW, ROW, PAST, COL], own, (value[np.ix_(out, out)], [NOW, PAST, *axes]))

    def path(self, forest: Forest, place: int) -> tuple[Array, list[int]]:
        """The part of a tree from a node to the pushed one: (T, T, samples..); (T, samples..) if it is it."""
        side, axes = self.root(forest, place)
        following = next((i for i, x in enumerate(forest) if x.parent == place and leads(forest, i)), None)
        if following is None:
            return side, axes
        inner, below = self.path(forest, following)
        sample, error = forest[following].sample, self.errors[forest[following].error]
        own = [sample, *below]
        if forest[following].marked:
            body = contracted([PAST, *own], (error, [PAST, sample]), (inner, [PAST, *below]))
            value = contracted([NOW, PAST, *own], (self.weight, [NOW, PAST]), (body, [PAST, *own]))
        else:
            body = contracted([NOW, PAST, *own], (error, [NOW, sample]), (inner, [NOW, PAST, *below]))
            value = np.tensordot(self.weight, body, 1)
        together = [*axes, *own]
        parts = (side, [NOW, *axes]), (value, [NOW, PAST, *own])
        return contracted([NOW, PAST, *together], *parts), together


def contracted(out: list[int], *parts: tuple[Array, list[int]]) -> Array:
    """Products summed over the axes that are not in ``out``; axes have numbers."""
    names = {i: chr(ord("a") + n) for n, i in enumerate(sorted({i for _, axes in parts for i in axes}))}
    spec = ",".join("".join(names[i] for i in axes) for _, axes in parts)
    target = "".join(names[i] for i in out)
    return np.asarray(np.einsum(f"{spec}->{target}", *[a for a, _ in parts], optimize=len(parts) > 1))


__all__ = ["Forests", "Index", "contracted"]
