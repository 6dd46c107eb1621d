"""What multiplies a tensor, as an array: iterated sums over earlier times of the error's coefficients."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from derive.expansion.nonlinear.fields import Forest, samples_of
from derive.expansion.nonlinear.trees import COL, ROW

Array = NDArray[np.float64]
Index = NDArray[np.intp]

TIME, PAST = -1, -2
"""Axes of einsum that are times; the others are samples."""


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
            if x.parent == place and not _leads(forest, i):
                child, own = self.child(forest, i)
                value = np.einsum(
                    value, [0, *_letters(axes)], child, [0, *_letters(own)], [0, *_letters(axes + own)]
                )
                axes = axes + own
        return value, axes

    def child(self, forest: Forest, i: int) -> tuple[Array, list[int]]:
        """An earlier time, summed over: a function of the time it hangs on."""
        if (forest, i) not in self.known:
            below, axes = self.root(forest, i)
            error = self.errors[forest[i].error]
            own = [forest[i].sample, *axes]
            body = np.einsum(
                error, [0, 1], below, [0, *range(2, 2 + len(axes))], [0, *range(1, 2 + len(axes))]
            )
            self.known[forest, i] = np.tensordot(self.weight, body, 1), own
        return self.known[forest, i]

    def correlation(self, forest: Forest, tensor: Array, out: Index) -> Array:
        """``tensor * forest`` summed over samples, (out, P, out, P)."""
        first, second = [i for i, x in enumerate(forest) if x.parent < 0]
        (a, left), (b, right) = self.root(forest, first), self.root(forest, second)
        labels = list(samples_of(forest))
        return np.asarray(
            np.einsum(
                tensor, _letters(labels), a[out], [0, *_letters(left)], b[out], [1, *_letters(right)],
                [0, *_letters([ROW]), 1, *_letters([COL])], optimize=True,
            )
        )  # fmt: skip

    def single(self, forest: Forest, tensor: Array) -> Array:
        """``tensor * forest`` summed over samples, (T, P): one time."""
        a, axes = self.root(forest, 0)
        labels = list(samples_of(forest))
        out = [0, *_letters([ROW])]
        return np.asarray(np.einsum(tensor, _letters(labels), a, [0, *_letters(axes)], out, optimize=True))

    def response(self, forest: Forest, tensor: Array, out: Index) -> Array:
        """``tensor * forest`` with the pushed time free, (out, P, out, P)."""
        labels = list(samples_of(forest))
        mark = next(i for i, x in enumerate(forest) if x.marked)
        value, axes = self.path(forest, 0)
        if mark == 0:  # pushed at the same time, and then at the same sample
            P = len(tensor)
            found = np.einsum(tensor, _letters(labels), value, [0, *_letters(axes)], [0, *_letters([ROW])])
            full = np.zeros((len(out), P, len(out), P))
            n, m = np.arange(len(out))[:, None], np.arange(P)
            full[n, m, n, m] = found[out]
            return full
        value = value[np.ix_(out, out)]
        target = [0, *_letters([ROW]), 1, *_letters([COL])]
        return np.asarray(
            np.einsum(tensor, _letters(labels), value, [0, 1, *_letters(axes)], target, optimize=True)
        )

    def path(self, forest: Forest, place: int) -> tuple[Array, list[int]]:
        """The part of a tree from a node to the pushed one: (T, T, samples..), or (T, samples..) if it is it."""
        side, axes = self.root(forest, place)
        following = next((i for i, x in enumerate(forest) if x.parent == place and _leads(forest, i)), None)
        if following is None:
            return side, axes
        inner, own = self.path(forest, following)
        sample, error = forest[following].sample, self.errors[forest[following].error]
        if forest[following].marked:
            body = np.einsum(error, [1, 2], inner, [1, *_letters(own)], [1, 2, *_letters(own)])
            value = np.einsum(self.weight, [0, 1], body, [1, 2, *_letters(own)], [0, 1, 2, *_letters(own)])
        else:
            body = np.einsum(error, [0, 2], inner, [0, 1, *_letters(own)], [0, 1, 2, *_letters(own)])
            value = np.tensordot(self.weight, body, 1)
        own = [sample, *own]
        return (
            np.einsum(
                side, [0, *_letters(axes)], value, [0, 1, *_letters(own)], [0, 1, *_letters(axes + own)]
            ),
            axes + own,
        )


def _letters(samples: list[int]) -> list[int]:
    """Samples as axes of einsum, after the two times and one scratch axis."""
    return [i + 3 for i in samples]


def _leads(forest: Forest, i: int) -> bool:
    """Is node i on the way to the pushed one?"""
    mark = next((j for j, x in enumerate(forest) if x.marked), None)
    while mark is not None and mark >= 0:
        if mark == i:
            return True
        mark = forest[mark].parent
    return False


__all__ = ["Forests"]
