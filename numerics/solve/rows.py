"""Kernel rows at one time, read off the arrays that a sweep is filling.

Compiles the products of a :class:`~numerics.compile.table.Kernel` once into views and einsum subscripts;
calling the result only multiplies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Symbol

from derive.program.expressions import s, t
from numerics.compile.table import Factor, Kernel, Node, Table

Array = NDArray[np.float64]
View = Callable[[int, int], Array]


@dataclass(frozen=True)
class Rows:
    """Where the values of a table's tensors are: every array has its time first, and is filled as time goes
    on.

    ``correlations`` and ``responses`` are ``(T n_i, T n_j)`` by pairs, ``scalars`` and ``hoisted`` ``(T,
    n)``, ``sizes`` the n of each field.
    """

    table: Table
    constants: Mapping[Symbol, float]
    data: Mapping[str, Array]
    samples: int
    sizes: Mapping[Node, int]
    correlations: Mapping[tuple[Node, Node], Array]
    responses: Mapping[tuple[Node, Node], Array]
    scalars: Mapping[str, Array]
    hoisted: Mapping[Node, Array]

    def number(self, e: Expr) -> float:
        """A coefficient as a number.  Raises ValueError when a symbol in it has no value."""
        value = e.subs(dict(self.constants))
        if not value.is_number:
            raise ValueError(f"{e} needs a number for {sorted(map(str, value.free_symbols))}")
        return float(value)

    def width(self, source: Node) -> int:
        """How many samples a source has."""
        return self.samples if self.table.source_index[source] is not None else 1

    def correlation(self, i: Node, j: Node) -> Array:
        """``(T n_i, T n_j)``, whichever way round the pair is held."""
        return self.correlations[i, j] if (i, j) in self.correlations else self.correlations[j, i].T

    def compile(self, kernel: Kernel, cols: int) -> Callable[[int, int], Array]:
        """A function ``(step, upto) -> (rows, upto * cols)``: the kernel at time ``step``, s < ``upto``."""
        rows = self.samples if kernel.row is not None else 1
        axes = [x for x in (kernel.row, s, kernel.col) if x is not None]
        parts = [(self.number(m.coefficient), *self._contraction(m.factors, axes)) for m in kernel.monomials]

        def evaluate(step: int, upto: int) -> Array:
            out = np.zeros((rows, upto, cols))
            for coefficient, views, subscripts, used in parts:
                arrays = [view(step, upto) for view in views]
                value = np.einsum(subscripts, *arrays) if subscripts else arrays[0] if arrays else np.ones(())
                shape = [n if on else 1 for n, on in zip((rows, upto, cols), used, strict=True)]
                out += coefficient * value.reshape(shape)
            return out.reshape(rows, upto * cols)

        return evaluate

    def _contraction(
        self, factors: tuple[Factor, ...], axes: list[Symbol]
    ) -> tuple[list[View], str, tuple[bool, ...]]:
        """How to multiply the factors: their views, einsum subscripts ("" with nothing to sum), axes used."""
        letters: dict[Symbol, str] = {}
        views, inputs = [], []
        for f in factors:
            view, labels = self._view(f)
            views.append(view)
            inputs.append("".join(letters.setdefault(x, chr(ord("a") + len(letters))) for x in labels))
        result = "".join(letters[x] for x in axes if x in letters)
        has_row, has_col = (axes[0] != s), (axes[-1] != s)
        used = (has_row and axes[0] in letters, s in letters, has_col and axes[-1] in letters)
        trivial = len(factors) <= 1 and "".join(inputs) == result
        return views, "" if trivial else f"{','.join(inputs)}->{result}", used

    def _view(self, f: Factor) -> tuple[View, list[Symbol]]:
        """How to read a factor at ``(step, upto)``, and its axes."""
        name, _ = f.tensor
        samples = [x for x in f.indices if x not in (t, s)]
        if f.tensor in self.hoisted:
            table = self.hoisted[f.tensor]
            return lambda step, upto: table[:upto], [s, *samples]
        if name in self.scalars:
            values = self.scalars[name]
            if t in f.indices:
                return lambda step, upto: values[step], samples
            return lambda step, upto: values[:upto], [s, *samples]
        if f.tensor in self.table.tensors:
            return self._tensor(f, samples)
        constant = self.data[name]
        if f.indices == (t, s):
            return lambda step, upto: constant[step, :upto], [s]
        return lambda step, upto: constant, samples

    def _tensor(self, f: Factor, samples: list[Symbol]) -> tuple[View, list[Symbol]]:
        """Row ``step`` of an order parameter, axes (first sample, s, second sample)."""
        q = self.table.tensors[f.tensor]
        response = q.kind == "response"
        if response and (q.first, q.second) not in self.responses:
            return lambda step, upto: np.zeros(()), []  # no path leads from the source to the field
        array = self.responses[q.first, q.second] if response else self.correlation(q.first, q.second)
        n, m = self.sizes[q.first], self.width(q.second) if response else self.sizes[q.second]
        factor = self.number(q.factor)
        first = samples[:1] if self.table.field(q.first).index is not None else []
        second = samples[len(first) :]

        def view(step: int, upto: int) -> Array:
            shape = (*((n,) if first else ()), upto, *((m,) if second else ()))
            a = array[step * n : (step + 1) * n, : upto * m].reshape(shape)
            return a if factor == 1 else factor * a

        return view, [*first, s, *second]
