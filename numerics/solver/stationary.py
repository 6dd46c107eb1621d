"""Kernels of Langevin dynamics at weak feature learning and long times, by the derived recursion.

The recursion is that of :func:`derive.reduce.stationary`; what it needs are averages
over pairs of Gaussian numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Eq, Expr, Float, Function, Integer, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.gaussian import GaussianAverage
from derive.program import ell
from derive.reduce.stationary import Stationary, stationary
from derive.theory import Theory
from numerics.averages.panels import Moment

Array = NDArray[np.float64]

ACCURACY = 1e-11
"""Of Gaussian averages, relative to the average of the absolute value."""


def stationary_kernels(
    theory: Theory,
    *,
    values: Mapping[Symbol | str, float],
    data: Mapping[str, Any],
    lags: Sequence[float] = (0.0,),
) -> dict[tuple[str, int], Array]:
    """Every kernel of the recursion by name and layer, at the ``lags`` between the two times.

    ``theory`` is at integer depth; a lag counts steps where the rule does.  Arrays have an axis for each
    index of the kernel and the lags last: ``("Phi", 1)`` has shape (P, P, lags).  H and Z are covariances of
    fields.  ``values`` and ``data`` as for :func:`.solve_particles`.

    Raises what :func:`derive.reduce.stationary` raises.

    >>> from derive.theory import mean_field
    >>> from derive.program import eta, mlp
    >>> decay, heat = Symbol("decay", positive=True), Symbol("heat", positive=True)
    >>> noisy = mean_field(mlp(1, "relu", weight_decay=decay, temperature=heat))
    >>> values = {decay: 1.0, heat: 0.5, eta: 0.2}
    >>> found = stationary_kernels(noisy, values=values, data={"K_x": [[1.0]]}, lags=(0, 1))
    >>> found["Phi", 1].round(4).tolist(), found["G", 1].round(4).tolist()
    ([[[0.2778, 0.2298]]], [[[0.2778, 0.1767]]])
    """
    numbers = {str(k): sympify(v) for k, v in values.items()}
    solver = _Recursion(stationary(theory), numbers, {k: np.asarray(v, dtype=float) for k, v in data.items()})
    depth = int(theory.program.depth)
    found: dict[tuple[str, int], Array] = {}
    samples = len(solver.data["K_x"])
    for row in solver.rows:
        name = str(row.lhs.func)
        site, *indices, _ = row.lhs.args
        shape = [samples] * len(indices)
        for layer in range(1, depth + 1):
            if (name, layer) in found or not _covers(site, layer, depth):
                continue
            entries = [
                [float(solver.value(Function(name)(layer, *at, _number(lag)))) for lag in lags]
                for at in product(range(1, samples + 1), repeat=len(indices))
            ]
            found[name, layer] = np.array(entries).reshape(*shape, len(lags))
    return found


def _covers(site: Expr, layer: int, depth: int) -> bool:
    """Is this layer one that a row for ``site`` gives?"""
    return bool(site == layer) if site.is_Integer else 1 <= layer <= depth


def _number(lag: float) -> Expr:
    return Integer(int(lag)) if float(lag).is_integer() else Float(lag)


class _Recursion:
    """The rows of the recursion, evaluated on demand."""

    def __init__(self, rest: Stationary, numbers: Mapping[str, Expr], data: Mapping[str, Array]) -> None:
        self.rows: tuple[Eq, ...] = (*rest.fields, *rest.kernels)
        self.numbers, self.data = numbers, data
        self.known: dict[Expr, Expr] = {}

    def value(self, x: AppliedUndef) -> Expr:
        """A kernel with integers for its indices."""
        name = str(x.func)
        if name in self.data:
            return Float(self.data[name][tuple(int(a) - 1 for a in x.args)])
        if x not in self.known:
            rhs, at = next(found for row in self.rows if (found := _matched(row, x)) is not None)
            self.known[x] = Float(float(self.number(rhs, at)))
        return self.known[x]

    def number(self, e: Expr, at: Mapping[Expr, Expr]) -> Expr:
        """A right-hand side with its indices put in."""
        averages = {a: Float(self.average(a, at)) for a in e.atoms(GaussianAverage)}
        plain = e.xreplace(averages).subs(dict(at))
        plain = plain.subs({x: self.numbers[x.name] for x in plain.free_symbols})
        return plain.replace(lambda a: isinstance(a, AppliedUndef), self.value)

    def average(self, a: GaussianAverage, at: Mapping[Expr, Expr]) -> float:
        """A Gaussian average with its covariances put in."""
        c = [[float(self.number(x, at)) for x in a.matrix.row(i)] for i in range(len(a.variables))]
        return Moment(a.body, a.variables)(c[0][0], c[-1][-1], c[0][-1], ACCURACY)[0]


def _matched(row: Eq, x: AppliedUndef) -> tuple[Expr, dict[Expr, Expr]] | None:
    """The right-hand side that gives ``x``, and its indices; ends of the chain come first in a theory."""
    lhs = row.lhs
    if lhs.func != x.func or (lhs.args[0].is_Integer and lhs.args[0] != x.args[0]):
        return None
    at = dict(zip(lhs.args[1:], x.args[1:], strict=True))
    return row.rhs, {ell: x.args[0] - (lhs.args[0] - ell), **at}


__all__ = ["stationary_kernels"]
