"""What is known beforehand: targets, kernels of the data, attributes of units, memory weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from sympy import Expr, sympify

from numerics.solve.direct.layout import Layout, Number

Datum = Any
"""An array, a mapping from index tuples, a function of the indices, or a number."""


class Constants:
    """Values of the functions that no equation of the theory determines.

    In an array, entry 0 along an axis is the first value of the index that the theory has there (1 for
    samples ``1..P``, 0 for times); a mapping or a function takes the indices as they are.  An index such as
    ``a + k`` beyond the end of an array is taken periodically.  Arguments that are no indices (a loss's
    prediction) need a function.
    """

    def __init__(self, layout: Layout, data: Mapping[str, Datum]) -> None:
        self.layout, self.data = layout, data
        self.arrays = {k: np.asarray(v, dtype=float) for k, v in data.items() if _is_array(v)}

    def attribute(self, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The values of an attribute, one for each unit."""
        if name not in self.arrays or self.arrays[name].ndim != 1:
            raise ValueError(f"data must hold {name}, one number for each unit")
        return self.arrays[name]

    def __call__(self, name: str, args: tuple[Number, ...], given: Sequence[Expr]) -> float:
        """``name(args)``; ``given`` are the arguments as the theory writes them."""
        if name not in self.data:
            raise ValueError(
                f"{name}({', '.join(map(str, given))}) is no field, order parameter or scalar of the theory, "
                f"and data does not hold {name}; a generic activation cannot be evaluated"
            )
        value = self.data[name]
        if callable(value):
            return float(value(*args))
        if isinstance(value, Mapping):
            return float(value[args] if args in value else value[args[0]])
        array = self.arrays[name]
        if array.ndim != len(args):
            raise ValueError(f"data[{name!r}] has shape {array.shape}; {name} has {len(args)} indices")
        return float(
            array[tuple(self.place(name, x, e, n) for x, e, n in zip(args, given, array.shape, strict=True))]
        )

    def place(self, name: str, x: Number, e: Expr, size: int) -> int:
        """The position along an axis of the index ``x``, written ``e``."""
        e = sympify(e)
        lowest = self.layout.lowest  # of ``p + k``, the index p of a field comes before the k of a sum
        known = [lowest[i] for i in lowest if i in e.free_symbols]
        first = self.layout.integer(known[0]) if known else 1
        if x != int(x):
            raise ValueError(
                f"{name} is read at {e} = {x}; data[{name!r}] must be a function to be read there"
            )
        at = int(x) - first
        if not 0 <= at < size and not (e.is_Symbol or e.is_Integer or self.layout.is_ordered(e)):
            at %= size
        if not 0 <= at < size:
            raise ValueError(f"{name} is read at {e} = {x}; data[{name!r}] holds {first}..{first + size - 1}")
        return at


def _is_array(v: Any) -> bool:
    return not isinstance(v, Mapping | Callable)
