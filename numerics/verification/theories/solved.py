"""A theory solved by the march where it is linear and in exact steps, else evaluated from its expressions."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Integer, Symbol

from derive.calculus.symbols import s, t
from derive.theory import Theory
from numerics.compile.lower import NotLinear, lower
from numerics.compile.table import Node
from numerics.experiment.numbers import Spectrum
from numerics.solver.causal import NotCausal
from numerics.solver.direct import Evaluated, evaluate
from numerics.solver.march import March, march

Array = NDArray[np.float64]

MARCH, DIRECT = "march", "direct"
"""How a linear theory was solved: by the solver of experiments, or straight from its expressions."""


def solved(
    theory: Theory,
    *,
    steps: int,
    values: Mapping[Any, Any],
    data: Mapping[str, Any] | None = None,
    samples: int,
    seed: int,
    units: Spectrum | None = None,
) -> Evaluated:
    """Order parameters and scalars at times 0..steps-1, by name and layer; ``method`` says how.

    ``march`` is the solver that experiments use; ``direct`` is exact too, and takes what the march does not
    (a loss that is a function of the prediction, correlations of two fields of which only one order is
    known); ``particles`` takes whatever is not linear.  ``units`` are those that attributes tell apart.
    Raises what :func:`~numerics.solver.direct.evaluate` and :func:`~numerics.solver.march.march` raise.
    """
    given = data or {}
    if not any(callable(x) for x in given.values()):
        try:
            return _marched(_at_its_depth(theory), steps, values, given, units)
        except (NotLinear, NotCausal):
            pass
    found = evaluate(theory, steps=steps, values=values, data=data, samples=samples, seed=seed)
    method = DIRECT if found.method == "linear" else found.method
    return Evaluated(method, found.values, found.errors, found.axes)


def _at_its_depth(theory: Theory) -> Theory:
    """Families of layers as their members, where the program says how many."""
    depth = theory.program.depth
    return theory.at_depth(int(depth)) if isinstance(depth, int | Integer) else theory


def _marched(
    theory: Theory,
    steps: int,
    values: Mapping[Any, Any],
    data: Mapping[str, Any],
    units: Spectrum | None,
) -> Evaluated:
    table = lower(theory)
    named = {str(k): v for k, v in values.items()}
    constants = {x: float(named[str(x)]) for x in _symbols(theory) if str(x) in named}
    arrays = {k: np.asarray(v, dtype=float) for k, v in data.items()}
    wanted = tuple(table.tensors)
    result = march(table, steps=steps, constants=constants, data=arrays, wanted=wanted, units=units)
    found: dict[tuple[str, tuple[int, ...]], Array] = {}
    for q in theory.order_parameters:
        layer = next((int(x) for x in q.symbol.args[:1] if x.is_Integer), None)
        indices = [x for x in q.symbol.args if isinstance(x, Symbol) and x not in (t, s)]
        found[q.name, () if layer is None else (layer,)] = _indices_first(result, (q.name, layer), indices)
    found |= {(e.name, ()): result.scalars[e.name] for e in theory.scalars}
    errors = {k: np.zeros(v.shape) for k, v in found.items()}
    axes = {k: tuple(tuple(range(n)) for n in v.shape) for k, v in found.items()}
    return Evaluated(MARCH, found, errors, axes)


def _indices_first(result: March, node: Node, indices: list[Symbol]) -> Array:
    """An order parameter (T, n, T, m) with an axis for each index of its symbol, and then its times."""
    a = result.tensor(node)
    sizes = [result.extents[x] for x in indices]
    split = next(i for i in range(len(sizes) + 1) if prod(sizes[:i]) == a.shape[1])
    shaped = a.reshape(a.shape[0], *sizes[:split], a.shape[2], *sizes[split:])
    return np.moveaxis(shaped, (0, split + 1), (-2, -1))


def _symbols(theory: Theory) -> set[Symbol]:
    """Everything in the theory that may stand for a number."""
    read: list[Expr] = [e.rhs for e in (*theory.equations, *theory.scalars)]
    read += [u.covariance for u in theory.sources] + [q.definition for q in theory.order_parameters]
    ranges = [x.ranges for x in (*theory.equations, *theory.scalars)]
    ranges += [u.ranges for u in theory.sources] + [q.ranges for q in theory.order_parameters]
    read += [r.upper for group in ranges for r in group]
    return {x for e in read for x in e.free_symbols if isinstance(x, Symbol)}
