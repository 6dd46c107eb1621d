"""Expressions of a theory as NumPy functions of their leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import (
    Derivative,
    DiracDelta,
    Dummy,
    Expr,
    Integer,
    KroneckerDelta,
    Piecewise,
    Subs,
    Sum,
    Symbol,
    lambdify,
)
from sympy import Eq as Equal
from sympy.core.function import AppliedUndef

from derive.meanfield.averages import Average, Response
from numerics.solve.direct.layout import TIMES, Unserved

Array = NDArray[np.float64]
Node = tuple[str, tuple[int, ...]]
"""A name and its layer (integers that stand in the symbol): ``("h", (2,))``."""

Places = Mapping[Symbol, Any]
"""Where an expression is read: for each index or time its position (from 0), an integer or an array."""


@lru_cache(maxsize=4096)
def node_of(symbol: AppliedUndef) -> Node:
    """The node that ``symbol`` belongs to."""
    return str(symbol.func), tuple(int(x) for x in symbol.args if x.is_Integer)


def open_args(symbol: AppliedUndef) -> tuple[Symbol, ...]:
    """Its indices and times.  Raises Unserved for one such as ``a + k``."""
    found = tuple(x for x in symbol.args if not x.is_Integer)
    for x in found:
        if x.atoms(AppliedUndef):
            raise Unserved(f"{symbol.func} is a function that is not given; use a named one such as tanh")
        if not isinstance(x, Symbol):
            raise Unserved(f"{symbol} is read at {x}: shifted indices are not served by particles")
    if len(set(found)) < len(found) and not set(TIMES) & {x for x in found if found.count(x) > 1}:
        raise Unserved(f"{symbol} repeats an index")
    return found


@lru_cache(maxsize=4096)
def indices_of(symbol: AppliedUndef) -> tuple[Symbol, ...]:
    """Its indices without times."""
    return tuple(x for x in open_args(symbol) if x not in TIMES)


def leaves_of(e: Expr) -> tuple[Expr, ...]:
    """The largest parts of ``e`` that are looked up: fields, order parameters, sums, averages, symbols."""
    return tuple(sorted(_leaves(e), key=str))


def _leaves(e: Expr) -> set[Expr]:
    if isinstance(e, AppliedUndef | Sum | Average | Response | Symbol):
        return {e}
    return {x for arg in e.args for x in _leaves(arg)}


class Jump(Unserved):
    """A derivative that no path sees, because the function jumps."""


class Function:
    """``expr`` as a NumPy function of its leaves, with partial derivatives."""

    def __init__(self, expr: Expr) -> None:
        self.expr = expr
        self.leaves = leaves_of(expr)
        self.slots = tuple(Dummy(f"x{i}", real=True) for i in range(len(self.leaves)))
        body = expr.xreplace(dict(zip(self.leaves, self.slots, strict=True)))
        self.body = body.replace(KroneckerDelta, lambda a, b: Piecewise((1, Equal(a, b)), (0, True)))
        if self.body.has(Subs, Derivative):
            raise Unserved(f"{expr} contains a function that is not given; use a named one such as tanh")
        self._compiled: dict[int, Callable[..., Any]] = {}

    def __call__(self, *values: Any) -> Any:
        """The function."""
        return self._get(-1)(*values)

    def partial(self, i: int, *values: Any) -> Any:
        """Its derivative by leaf ``i``."""
        return self._get(i)(*values)

    def derivative(self, i: int) -> Expr:
        """The expression of its derivative by leaf ``i``.  Raises Jump if it has a delta function."""
        e = self.body.diff(self.slots[i])
        if e.has(DiracDelta) or any(x.has(self.slots[i]) for x in self.body.atoms(Piecewise)):
            raise Jump(f"{self.expr} jumps: its derivative has a delta function that no path sees")
        return e

    def _get(self, i: int) -> Callable[..., Any]:
        if i not in self._compiled:
            e = self.body if i < 0 else self.derivative(i)
            self._compiled[i] = lambdify(self.slots, e, ["numpy", "scipy"], cse=True)
        return self._compiled[i]


@lru_cache(maxsize=1024)
def function(e: Expr) -> Function:
    """``e`` as a function, compiled once."""
    return Function(e)


@dataclass
class Known:
    """What is the same for every path: numbers, data, order parameters and scalars found so far.

    Arrays of ``found`` have the axes of the symbol's indices and times in order, and the replicas last.
    """

    values: Mapping[str, float]
    data: Mapping[str, Any]
    found: dict[Node, Array] = field(default_factory=dict)
    functions: dict[Expr, Function] = field(default_factory=dict)

    @cached_property
    def arrays(self) -> dict[str, Array]:
        """The data as arrays."""
        return {k: np.asarray(v, dtype=float) for k, v in self.data.items() if not callable(v)}

    def __call__(self, e: Expr, at: Places, given: Mapping[Expr, Any] | None = None) -> Any:
        """The value of ``e``, broadcast over the arrays in ``at``, with the replicas as its last axis.

        ``given`` holds leaves found otherwise, with that axis.
        """
        f = self.functions.get(e)
        if f is None:
            f = self.functions[e] = function(e)
        return f(*[self.leaf(x, at, given or {}) for x in f.leaves])

    def leaf(self, x: Expr, at: Places, given: Mapping[Expr, Any]) -> Any:
        """The value of one leaf."""
        if x in given:
            return given[x]
        if isinstance(x, Symbol):
            if x in at:  # positions of indices count from 0, the indices themselves from 1
                return np.asarray(at[x], dtype=float)[..., None] + (x not in TIMES)
            if str(x) not in self.values:
                raise ValueError(f"values has no {x}")
            return float(self.values[str(x)])
        if isinstance(x, Sum):
            return self._sum(x, at, given)
        if not isinstance(x, AppliedUndef):
            raise Unserved(f"{x} cannot be evaluated here")
        node = node_of(x)
        if node in self.found:
            return self.found[node][tuple(self.place(a, at) for a in x.args if not a.is_Integer)]
        name = node[0]
        if name not in self.data:
            raise ValueError(
                f"{x} is no field, order parameter or scalar of the theory, and data does not hold {name}; "
                "a generic activation cannot be evaluated"
            )
        if callable(self.data[name]):
            places = [self.place(a, at) for a in x.args]
            return np.vectorize(self.data[name], otypes=[float])(*places)[..., None]
        if self.arrays[name].ndim != len(x.args):
            raise ValueError(
                f"data[{name!r}] has shape {self.arrays[name].shape}; {name} has {len(x.args)} indices"
            )
        return self.arrays[name][tuple(self.place(a, at) for a in x.args)][..., None]

    def place(self, a: Expr, at: Places) -> Any:
        """The position of an argument."""
        if isinstance(a, Integer):
            return int(a)
        if a not in at:
            raise Unserved(f"index {a} has no position here: shifted indices are not served by particles")
        return at[a]

    def _sum(self, x: Sum, at: Places, given: Mapping[Expr, Any]) -> Any:
        """A sum over integers (layers) of what is known."""
        total: Any = 0.0
        if len(x.limits) != 1 or not all(b.is_Integer for b in x.limits[0][1:]):
            raise Unserved(f"{x}: only sums over layers are served here")
        index, low, high = x.limits[0]
        for i in range(int(low), int(high) + 1):
            total = total + self(x.function.subs(index, i), at, given)
        return total
