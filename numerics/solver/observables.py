"""Evaluate what a theory defines from its order parameters, such as the tangent kernel."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Symbol
from sympy.core.function import AppliedUndef
from sympy.functions.special.tensor_functions import KroneckerDelta

from derive.calculus.symbols import alpha, mu, s, t
from derive.theory import Equation
from numerics.compile.lower import node, products
from numerics.compile.table import Node

Array = NDArray[np.float64]


def evaluate(
    equation: Equation,
    tensors: Mapping[Node, Array],
    data: Mapping[str, Array],
    constants: Mapping[Symbol, float],
    traced: int | None = None,
) -> Array:
    """The right-hand side of ``equation`` on arrays.

    ``tensors[name, layer]`` has its axes in the order of the theory's arguments (samples, then t, s).  The
    result has axes t, s, samples of the left-hand side.  With ``traced`` sample axes have length one and hold
    traces over so many samples: what has no sample counts once for each.
    """
    samples = [x for x in equation.lhs.args if x not in (t, s)]
    axes = [t, s, *samples]
    total: Array | None = None
    sizes = _sizes(equation, tensors, data)
    for coefficient, factors in products(equation.rhs.doit()):
        letters: dict[Symbol, str] = {}
        arrays, inputs = [], []
        for f in factors:
            if isinstance(f, KroneckerDelta):
                x = next(x for x in f.args if x in sizes)
                arrays.append(np.eye(sizes[x]))
                inputs.append("".join(letters.setdefault(x, chr(97 + len(letters))) for x in f.args))
                continue
            array = tensors[node(f)] if node(f) in tensors else data[str(f.func)]
            arrays.append(array)
            names = [x for x in f.args if isinstance(x, Symbol)]
            inputs.append("".join(letters.setdefault(x, chr(97 + len(letters))) for x in names))
        used = [x for x in axes if x in letters]
        value = np.einsum(f"{','.join(inputs)}->{''.join(letters[x] for x in used)}", *arrays)
        shape = iter(value.shape)
        number = _number(coefficient, constants)
        if traced is not None and not {mu, alpha} & {i for f in factors for i in f.args}:
            number *= traced
        value = number * value.reshape([next(shape) if x in letters else 1 for x in axes])
        if total is not None and total.shape == value.shape:
            total += value
        else:
            total = value if total is None else total + value
    assert total is not None
    return total


def _sizes(equation: Equation, tensors: Mapping[Node, Array], data: Mapping[str, Array]) -> dict[Expr, int]:
    """How far each index runs, read off the arrays."""
    found: dict[Expr, int] = {}
    for f in equation.rhs.doit().atoms(AppliedUndef):
        array = tensors[node(f)] if node(f) in tensors else data.get(str(f.func))
        if array is not None:
            found |= dict(zip([x for x in f.args if isinstance(x, Symbol)], array.shape, strict=True))
    return found


def _number(e: Expr, constants: Mapping[Symbol, float]) -> float:
    return float(e.subs(dict(constants)))
