"""Check of a march: raise if the error of a single sample changes sign and training depends on this sign.

A step that depends on the sign of an error of one sample is a discontinuous function of an order parameter.
If the error crosses zero, networks of any width cross it at different steps: their outputs differ by more
than ``N^(-1/2)``, and no theory at infinite width holds after that. Solutions by sampled paths are checked
for such steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sympy import Dummy, Expr, Heaviside, S, Symbol, lambdify, limit, sign, solve
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import s, t
from derive.program.entrywise import A, Entrywise
from numerics.errors import NotConverged
from numerics.lowering.entries import EntryArray, EntryRule
from numerics.lowering.expressions import KnownArrays, TensorReader
from numerics.lowering.indices import indices_of, node_of
from numerics.lowering.quantities import QuantityTables

Array = NDArray[np.float64]


@dataclass(frozen=True)
class _SignedStep:
    """Expression of scalars whose sign enters a training step.

    ``error`` is the expression at the time s of the step, and ``weight`` the field or weight that moves. If
    ``argument`` is given, the sign is that of this expression, in the states of ``rule`` and in A, with the
    error in place of the gradient A.
    """

    error: Expr
    weight: str
    rule: Entrywise | None = None
    argument: Expr | None = None


def require_errors_of_one_sign(tables: QuantityTables, known: KnownArrays) -> None:
    """Raise NotConverged if the error of one sample, whose sign enters a training step, changes sign.

    The error changes sign if it crosses or reaches zero before the last time, or if its sign differs
    between replicas at one time. Errors that depend on data that change from step to step may cross zero;
    only replicas must agree then. For a rule with states, such as Lion, the same holds for its mean of errors
    over the steps. ``known`` holds the arrays of a completed march.
    """
    for step in _read_by_sign(tables):
        parts = (step.error, *_numbers_of(step))
        indices = tuple(
            sorted({i for e in parts for x in e.atoms(AppliedUndef) for i in indices_of(x)}, key=str)
        )
        if any(i not in tables.sizes for i in indices):
            continue
        signs = np.sign(_signed(step, indices, tables, known)[:, :-1])
        doubtful = (signs != signs[:1]).any(axis=(0, 2))
        if not _streams(step.error, tables, known):
            changed = (signs[:, 1:] != signs[:, :-1]) & (signs[:, :-1] != 0)
            doubtful[1:] |= changed.any(axis=(0, 2))
        if doubtful.any():
            now = int(np.argmax(doubtful))
            names = " and ".join(sorted({str(x.func) for x in step.error.atoms(AppliedUndef)}))
            if step.rule is not None:
                names = f"the mean of {names} over steps in {step.rule.name}"
            raise NotConverged(
                f"{names} goes through zero at step {now}, in some or all replicas, and {step.weight} moves "
                "by the sign of a gradient of one sample. Finite networks of every width reach zero at "
                f"different steps, so that the theory holds only before that step: use at most {now} steps, "
                "a rule that is continuous at zero, or gradients that are sums over several samples"
            )


def _numbers_of(step: _SignedStep) -> tuple[Expr, ...]:
    """Return the parameters of the rule of a step, such as beta1 of Lion; none without a rule."""
    return () if step.rule is None else EntryRule.of(step.rule).numbers


def _signed(
    step: _SignedStep, indices: tuple[Expr, ...], tables: QuantityTables, known: KnownArrays
) -> Array:
    """Return the expression whose sign enters a step at all times, shape ``(replicas, times, index values)``.

    For a rule with states the states are marched with the error in place of the gradient of an entry, because
    gradients of one sample are the error times factors that change much less.
    """
    errors = _along_time(step.error, indices, tables, known)
    if step.rule is None or step.argument is None:
        return errors
    compiled = EntryRule.of(step.rule)
    names = (A, *(x for x, _ in step.rule.states), *compiled.numbers)
    slots = {x: Dummy(f"x{k}", real=True) for k, x in enumerate(names)}
    argument = lambdify([*slots.values()], step.argument.xreplace(slots), "numpy")
    numbers = [_along_time(x, indices, tables, known) for x in compiled.numbers]
    states = [np.zeros_like(errors[:, 0]) for _ in step.rule.states]
    signed = np.empty_like(errors)
    for now in range(errors.shape[1]):
        given = [x[:, now] for x in numbers]
        signed[:, now] = argument(errors[:, now], *states, *given)
        *states, _ = compiled.function(errors[:, now], *states, *given)
    return signed


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
    # a constant such as beta1 of Lion has no axes and is broadcast
    shape = np.broadcast_shapes(values.shape, (1, steps, *(tables.sizes[i] for i in indices)))
    return np.broadcast_to(values, shape).reshape(shape[0], steps, -1)


def _read_by_sign(tables: QuantityTables) -> Iterator[_SignedStep]:
    """Yield the expressions of scalars whose sign enters a training step.

    They are arguments of a sign function in the memory kernel of a field, or factors of the gradient of a
    weight that moves by an entrywise rule with a jump.
    """
    for q in tables.quantities.values():
        for memory in (m for ms in q.memories.values() for m in ms):
            for x in sorted(memory.kernel.atoms(sign), key=str):
                if x.args[0].has(AppliedUndef):
                    yield _SignedStep(x.args[0], f"{q.node[0]}")
    for array in tables.weights:
        if not _is_of_one_sample(array, tables):
            continue
        error = array.terms[0].kernel
        if jumps_at_zero(array.rule):
            yield _SignedStep(error, array.weight)
        for argument in jumps_of_states(array.rule):
            yield _SignedStep(error, array.weight, array.rule, argument)


def _is_of_one_sample(array: EntryArray, tables: QuantityTables) -> bool:
    """Return whether the gradient of each entry of a weight is a single product, not a sum over samples.

    A sum over a single sample counts as one product.
    """
    return len(array.terms) == 1 and all(tables.sizes[x] == 1 for x in array.terms[0].over)


def jumps_at_zero(rule: Entrywise) -> bool:
    """Return whether a step of an entrywise rule is a function of the present gradient that jumps at zero.

    False for every rule with states, whose steps depend on earlier gradients too: see `jumps_of_states`.

    >>> from derive.program import adam, eta, sign_descent
    >>> jumps_at_zero(sign_descent(eta)), jumps_at_zero(adam(eta))
    (True, False)
    """
    if rule.states:
        return False
    return bool(limit(rule.Q, A, 0, "+") != limit(rule.Q, A, 0, "-")) or rule.Q.subs(A, S.Zero) is S.NaN


def jumps_of_states(rule: Entrywise) -> tuple[Expr, ...]:
    """Return expressions at whose zeros a step of a rule with states, or a state, jumps.

    They are expressions of the gradient A and of the states before the step: arguments of the functions sign
    and Heaviside in the rule. The tuple is empty for a rule without states.

    >>> from derive.program import adam, eta, lion
    >>> jumps_of_states(lion(eta)), jumps_of_states(adam(eta))
    ((A/10 + 9*m/10,), ())
    """
    after = dict(rule.states)
    bodies = [*after.values(), rule.Q if rule.before else rule.Q.xreplace(after)] if after else []
    moving = {A, *after}
    return tuple(
        dict.fromkeys(
            x.args[0]
            for body in bodies
            for x in sorted(body.atoms(sign, Heaviside), key=str)
            if x.free_symbols & moving and _jumps(body, x, sorted(x.free_symbols & moving, key=str)[0])
        )
    )


def _jumps(body: Expr, step: Expr, variable: Symbol) -> bool:
    """Return whether ``body`` jumps where the argument of ``step``, a sign or Heaviside function, vanishes.

    The zeros of the argument are found by solving for ``variable``, a symbol in it. The result is false for
    ``x*sign(x)``, for example, which is continuous at zero, and true if no
    zero is found.
    """
    low = S.NegativeOne if isinstance(step, sign) else S.Zero
    change = body.xreplace({step: S.One}) - body.xreplace({step: low})
    zeros = solve(step.args[0], variable)
    return not zeros or any(change.subs(variable, zero).simplify() != 0 for zero in zeros)
