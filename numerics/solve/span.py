"""Rows of a causal sum times matrices that only grow, without reading the whole of a matrix at every step.

Row t of ``K M`` is ``K(t, .) M``, a matrix-vector product: bound by the reading of M.  But over the times
before t0 the rows of steps t0, t0 + 1, ... depend smoothly on t, so that they are combinations of few, and M
is complete there.  So that part of a row is written in an orthonormal basis Q, found from the rows of
WINDOW steps, and ``Q M`` is kept.  A row that leaves the span adds its rest to Q, for one product with M.
From time to time t0 moves up.

Nothing is assumed of the rows: where they are not smooth the basis fills up, and products are plain until t0
moves.  What is neglected of a row is at most of the size of its rounding errors, read off the singular values
of the window, where they stop falling; `Span.neglected` is the largest part that was.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Shape = Literal["full", "symmetric", "lower", "upper"]

PLAIN = 128
"""Steps without a basis: reading matrices of this size takes no time."""
WINDOW, STRIDE = 64, 4
"""Steps from which a basis is found, and how many of them apart its rows are."""
SMOOTH = 12
"""Rows of a window that are smooth in t have at most so many singular values above rounding."""
ROUNDING = 2e-15
"""Of a row's length: what is always neglected ..."""
NOISE = 1e-14
"""... and the most that is taken for rounding."""
LARGEST = 40
"""Rows of a basis; what needs more is not smooth."""


class Products:
    """Rows of kernels at the present step times two-time arrays, with a span for each kernel.

    ``plain``: steps are repeated, so that no rows are final.
    """

    def __init__(self, steps: int, plain: bool = False) -> None:
        self.steps, self.plain = steps, plain
        self.spans: dict[Hashable, Span] = {}
        self.images: dict[Hashable, Image] = {}

    def times(
        self, kernel: Hashable, row: Array, of: Hashable, M: Array, step: int, until: int, shape: Shape
    ) -> Array:
        """``row @ M``: ``(n, high p)`` and ``(T p, T m)``, at columns before ``until``: ``(n, until m)``.

        ``high`` and ``until`` are ``step`` or one more, and ``M`` is complete over the times before ``step``.
        ``kernel`` names the rows and ``of`` the matrix; they mean the same at each step.
        """
        p, m = M.shape[0] // self.steps, M.shape[1] // self.steps
        if self.plain or len(row) > 1 or step < PLAIN:
            return row @ M[: row.shape[1], : until * m]
        if kernel not in self.spans:
            self.spans[kernel] = Span(self.steps, p)
        span = self.spans[kernel]
        if span.step != step:
            span.take(row[0, : step * p], step)
        if (kernel, of) not in self.images:
            self.images[kernel, of] = Image(span, M, m, shape)
        value = self.images[kernel, of].row(until)[None]
        if row.shape[1] > step * p:
            value += row[:, step * p :] @ M[step * p : row.shape[1], : until * m]
        return value


class Span:
    """The row of a kernel at the present step, and its coordinates in a basis.

    A row is ``width`` numbers for each time; times before ``start`` are those that the basis describes.

    >>> rows = np.exp(-0.01 * np.arange(300)[:, None] * np.linspace(1, 2, 300)[None, :])
    >>> span, gap = Span(300), 0.0
    >>> product = Image(span, np.eye(300))
    >>> for t in range(128, 300):
    ...     span.take(rows[t, :t], t)
    ...     gap = max(gap, np.abs(product.row(t) - rows[t, :t]).max())
    >>> span.start > 128, span.rank < 20, bool(gap < 1e-14)
    (True, True, True)
    """

    def __init__(self, steps: int, width: int = 1) -> None:
        self.width = width
        self.start = self.rank = self.renewed = self.step = 0
        self.due = PLAIN + WINDOW
        self.neglected = 0.0
        self.window: Array = np.zeros((WINDOW // STRIDE, steps * width))
        self.basis: Array = np.empty((LARGEST, 0))

    def take(self, row: Array, t: int) -> None:
        """The row ``(t * width,)`` of step t, over the times before t.  Steps follow each other."""
        self.row, self.step = row, t
        if t % STRIDE == 0:
            self.window[t // STRIDE % len(self.window), : len(row)] = row
            if t >= self.due:
                self._renew(t)
        if not self.start:
            return
        far, Q = row[: self.start * self.width], self.basis[: self.rank]
        a = Q @ far
        rest = far - a @ Q
        length, left = float(np.sqrt(row @ row)), float(np.sqrt(rest @ rest))
        if left > self.floor * length:
            again = Q @ rest  # a has rounding errors, which may be as large as the rest
            a, rest = a + again, rest - again @ Q
            left = float(np.sqrt(rest @ rest))
        if left > self.floor * length:
            if self.rank == LARGEST:
                self.start = 0
                return
            rest -= (Q @ rest) @ Q
            self.basis[self.rank] = rest / np.sqrt(rest @ rest)
            self.rank += 1
            a = self.basis[: self.rank] @ far
        elif length:
            self.neglected = max(self.neglected, left / length)
        self.coordinates = a

    def _renew(self, t: int) -> None:
        """A basis of the window's rows over the times before all of them."""
        self.start = t - WINDOW + STRIDE
        width = self.start * self.width
        rows = self.window[:, :width]
        _, size, directions = np.linalg.svd(rows, full_matrices=False)
        size /= float(np.sqrt(len(rows) * (self.row @ self.row))) or 1.0
        rounding = max(ROUNDING, min(4 * size[SMOOTH], NOISE))
        self.floor = float(rounding * np.sqrt(len(rows)))
        self.rank = int(np.count_nonzero(size > rounding))
        self.basis = np.empty((LARGEST, width))
        self.basis[: self.rank] = directions[: self.rank]
        self.renewed += 1
        self.due = t + max(32, int(np.sqrt(6 * t)))  # new bases and longer rests of rows cost the same


class Image:
    """The row of a span times ``matrix``, ``(T width, T columns)``.

    A ``lower`` matrix is zero at columns later than its row, an ``upper`` one at earlier ones.
    """

    def __init__(self, span: Span, matrix: Array, columns: int = 1, shape: Shape = "full") -> None:
        self.span, self.matrix, self.columns, self.shape = span, matrix, columns, shape
        self.renewed = self.rank = self.done = 0
        self.kept: Array = np.empty((0, 0))

    def row(self, until: int) -> Array:
        """``row @ matrix`` over the span's step, at columns before ``until``: ``(until * columns,)``.

        That is the step or, of a lower matrix, the one after.
        """
        span, m, M = self.span, self.columns, self.matrix
        p, t0, t = span.width, span.start, span.step
        if not t0:
            return span.row @ M[: t * p, : until * m]
        self._keep()
        near = slice(t0 * p, t * p)
        if self.shape == "lower":
            value = span.row[near] @ M[near, : until * m]
            value[: t0 * m] += span.coordinates @ self.kept[: span.rank, : t0 * m]
            return value
        value = span.coordinates @ self.kept[: span.rank, : t * m]
        first = t0 * m if self.shape == "upper" else 0
        value[first:] += span.row[near] @ M[near, first : t * m]
        return value

    def _keep(self) -> None:
        """Basis times matrix: new rows of the basis, and new columns of the matrix."""
        span, m = self.span, self.columns
        if self.renewed != span.renewed:
            if not self.kept.size:
                self.kept = np.empty((LARGEST, self.matrix.shape[1]))
            self.renewed, self.rank, self.done = span.renewed, 0, span.start
        far = self.matrix[: span.start * span.width]
        if self.done < span.step and self.shape != "lower":
            cols = slice(self.done * m, span.step * m)
            M = self.matrix[cols, : span.start * m].T if self.shape == "symmetric" else far[:, cols]
            np.matmul(span.basis[: self.rank], M, out=self.kept[: self.rank, cols])
            self.done = span.step
        if self.rank == span.rank:
            return
        new = slice(self.rank, span.rank)
        panels = (
            np.linspace(0, span.start, 5).astype(int) if self.shape in ("lower", "upper") else [0, self.done]
        )
        for low, high in pairwise(panels):  # what is known to be zero is not read
            cols = slice(low * m, high * m)
            rows = {"lower": slice(low * span.width, None), "upper": slice(0, high * span.width)}.get(
                self.shape, slice(None)
            )
            self.kept[new, cols] = span.basis[new, rows] @ far[rows, cols]
        if self.shape == "upper":
            cols = slice(span.start * m, self.done * m)
            self.kept[new, cols] = span.basis[new] @ far[:, cols]
        self.rank = span.rank
