"""Check of a march: raise if the error of a single sample changes sign and training depends on this sign.

A step that depends on the sign of an error of one sample is a discontinuous function of an order parameter.
If the error crosses zero, networks of any width cross it at different steps: their outputs differ by more
than ``N^(-1/2)``, and no theory at infinite width holds after that. Solutions by sampled paths are checked
for such steps.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, S, limit, sign
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import s, t
from derive.program.entrywise import A, Entrywise
from numerics.errors import NotConverged
from numerics.lowering.entries import EntryArray
from numerics.lowering.expressions import KnownArrays, TensorReader
from numerics.lowering.indices import indices_of, node_of
from numerics.lowering.quantities import QuantityTables

Array = NDArray[np.float64]


def require_errors_of_one_sign(tables: QuantityTables, known: KnownArrays) -> None:
    """Raise NotConverged if the error of one sample, whose sign enters a training step, changes sign.

    The error changes sign if it crosses or reaches zero before the last time, or if its sign differs
    between replicas at one time. Errors that depend on data that change from step to step may cross zero;
    only replicas must agree then. ``known`` holds the arrays of a completed march.
    """
    for e, weight in _read_by_sign(tables):
        indices = tuple(sorted({i for x in e.atoms(AppliedUndef) for i in indices_of(x)}, key=str))
        if any(i not in tables.sizes for i in indices):
            continue
        signs = np.sign(_along_time(e, indices, tables, known)[:, :-1])
        doubtful = (signs != signs[:1]).any(axis=(0, 2))
        if not _streams(e, tables, known):
            changed = (signs[:, 1:] != signs[:, :-1]) & (signs[:, :-1] != 0)
            doubtful[1:] |= changed.any(axis=(0, 2))
        if doubtful.any():
            step = int(np.argmax(doubtful))
            names = " and ".join(sorted({str(x.func) for x in e.atoms(AppliedUndef)}))
            raise NotConverged(
                f"{names} goes through zero at step {step}, and {weight} moves by the sign of a gradient of "
                "this one sample: networks of any width differ there, so that the theory holds only before "
                f"that step; at most {step} steps, a rule that is continuous at zero, or gradients that are "
                "sums over several samples would do"
            )


def _streams(e: Expr, tables: QuantityTables, known: KnownArrays) -> bool:
    """Return whether an expression of scalars depends on given data that change from step to step.

    Searched are the expression and the equations of the scalars in it. ``known`` holds the given arrays by
    name.
    """
    read = [tables.scalars[node_of(x)].expr for x in e.atoms(AppliedUndef) if node_of(x) in tables.scalars]
    atoms = [x for body in (*read, e) for x in body.atoms(AppliedUndef)]
    return any(str(x.func) in known.arrays and x.has(t, s) for x in atoms)


def _along_time(e: Expr, indices: tuple[Expr, ...], tables: QuantityTables, known: KnownArrays) -> Array:
    """Return an expression of scalars at all times, shape ``(replicas or 1, times, index values)``.

    The expression is written at the time s, and ``indices`` are the indices in it. The last axis runs over
    all values of these indices.
    """
    steps = max(x.shape[-2] for x in known.found.values())
    reader = TensorReader(known, e.xreplace({s: t}), (t, *indices), tables.sizes)
    values: Array = np.asarray(reader(slice(0, steps), slice(0, steps)))
    return values.reshape(len(values), steps, -1)


def _read_by_sign(tables: QuantityTables) -> Iterator[tuple[Expr, str]]:
    """Yield each expression whose sign enters a training step, with the name of the field or weight it moves.

    The expression is at the time s of the step. It is the argument of a sign function in the memory kernel
    of a field, or the factor of the gradient of a weight that moves by an entrywise rule with a jump at
    zero.
    """
    for q in tables.quantities.values():
        for memory in (m for ms in q.memories.values() for m in ms):
            for x in sorted(memory.kernel.atoms(sign), key=str):
                if x.args[0].has(AppliedUndef):
                    yield x.args[0], f"{q.node[0]}"
    for array in tables.weights:
        if _is_of_one_sample(array, tables) and jumps_at_zero(array.rule):
            yield array.terms[0].kernel, array.weight


def _is_of_one_sample(array: EntryArray, tables: QuantityTables) -> bool:
    """Return whether the gradient of each entry of a weight is a single product, not a sum over samples.

    A sum over a single sample counts as one product.
    """
    return len(array.terms) == 1 and all(tables.sizes[x] == 1 for x in array.terms[0].over)


def jumps_at_zero(rule: Entrywise) -> bool:
    """Return whether a step of an entrywise rule is a function of the present gradient that jumps at zero.

    False for every rule with states, whose steps depend on earlier gradients too.

    >>> from derive.program import adam, eta, sign_descent
    >>> jumps_at_zero(sign_descent(eta)), jumps_at_zero(adam(eta))
    (True, False)
    """
    if rule.states:
        return False
    return bool(limit(rule.Q, A, 0, "+") != limit(rule.Q, A, 0, "-")) or rule.Q.subs(A, S.Zero) is S.NaN
