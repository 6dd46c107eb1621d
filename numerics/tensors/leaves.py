"""Expressions of a theory as NumPy functions of their leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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

from derive.calculus.averages import Average, Response
from derive.calculus.symbols import ell, s, t
from numerics.errors import Unserved

Array = NDArray[np.float64]

TIMES = (t, s)
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
    first: dict[Symbol, int] = field(default_factory=dict)
    """Where indices start, those that do not start at 1."""
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
            if x in at:  # positions of indices count from 0, the indices themselves mostly from 1
                return np.asarray(at[x], dtype=float)[..., None] + self.start(x)
            if str(x) not in self.values:
                raise ValueError(f"values has no {x}")
            return float(self.values[str(x)])
        if isinstance(x, Sum):
            return self._sum(x, at, given)
        if not isinstance(x, AppliedUndef):
            raise Unserved(f"{x} cannot be evaluated here")
        node = node_of(x)
        if node in self.found:
            return self.read(self.found[node], [a for a in x.args if not a.is_Integer], at)
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
        return self.read(self.arrays[name], x.args, at)[..., None]

    def start(self, x: Symbol) -> int:
        """The first value of an index or time."""
        return 0 if x in TIMES else self.first.get(x, 1)

    def read(self, array: Array, args: Sequence[Expr], at: Places) -> Any:
        """An array at some arguments; one such as ``p + k`` that leaves its range goes round a ring."""
        return array[tuple(self.place(a, at, n) for a, n in zip(args, array.shape, strict=False))]

    def place(self, a: Expr, at: Places, size: int | None = None) -> Any:
        """The position of an argument along an axis of this size."""
        if isinstance(a, Integer):
            return int(a)
        if a in at:
            return at[a]
        shift, parts = a.as_coeff_add()
        total: Any = int(shift) - 1
        for part in parts:
            factor, x = part.as_coeff_Mul()
            if x not in at or x in TIMES or size is None:
                raise Unserved(f"index {a} has no position here")
            total = total + int(factor) * (at[x] + self.start(x))
        return total % size

    def _sum(self, x: Sum, at: Places, given: Mapping[Expr, Any]) -> Any:
        """A sum of what is known over layers, which are written out, or over indices, along an axis."""
        index, low, high = x.limits[-1]
        first, last = self.bound(low), self.bound(high)
        body = Sum(x.function, *x.limits[:-1]) if len(x.limits) > 1 else x.function
        if index == ell:
            return sum((self(body.subs(index, i), at, given) for i in range(first, last + 1)), 0.0)
        self.first[index] = first
        wider: dict[Symbol, Any] = {k: v if np.ndim(v) == 0 else v[..., None] for k, v in at.items()}
        inner = {k: v if np.ndim(v) == 0 else v[..., None, :] for k, v in given.items()}
        value = np.asarray(self(body, wider | {index: np.arange(last - first + 1)}, inner))
        if value.ndim < 2 or value.shape[-2] == 1:  # all terms are equal
            return (last - first + 1) * (value if value.ndim < 2 else value[..., 0, :])
        return value.sum(axis=-2)

    def bound(self, e: Expr) -> int:
        """The integer that a bound of a sum is."""
        return int(np.ravel(self(e, {}))[0])
