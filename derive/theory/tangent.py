"""The tangent kernel, read off a program's updates; it observes the theory and enters no equation of it."""

from __future__ import annotations

from typing import Any

from sympy import Expr, Function, KroneckerDelta, S, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.program.parts import Definition, gaussian
from derive.program.training import TrainedMatrix, TrainedVector
from derive.program.words import IndexRange, Mean, s, t
from derive.theory.applications import Reading
from derive.theory.data import Equation, Term
from derive.theory.names import primed, vector


def tangent_kernel(reading: Reading) -> tuple[Equation, ...]:
    """``sum over weights of <left left'><right right'>``: how an update at one output moves another's value.

    When each weight's update is the gradient of the outputs times their errors, the kernel is read off the
    updates: the error in an update's coefficient says which output the rest is the gradient of.  A program
    without trained weights, whose updates hold no such error, or whose backward pass does not use the
    transposes of its forward matrices (its updates are then no gradient) has none, nor has one that uses a
    matrix in places with different updates: the result is empty.

    >>> from derive.theory.applications import read
    >>> from derive.program import mlp
    >>> print(tangent_kernel(read(mlp(1)))[0].rhs)
    G(1, t, s)*K_x(mu, alpha) + H(1, mu, alpha, t, s)
    """
    program = reading.program
    forward = _forward_weights(reading)
    weights = [w for w in program.trained() if w.name in forward]
    errors = [_errors(reading, w) for w in weights]
    several = any(isinstance(w, TrainedMatrix) and w.update.more for w in weights)
    if not weights or several or any(len(x) != 1 for x in errors):
        return ()
    if any(isinstance(w, TrainedMatrix) and not _goes_both_ways(reading, w) for w in weights):
        return ()
    ((error,), *_) = errors
    outputs = _outputs(reading, error)
    terms = []
    for w, (own,) in zip(weights, errors, strict=True):
        value, over = _gradient_squared(reading, w, own, outputs)
        if value != 0:
            rule = "gradient with respect to this weight"
            terms.append(Term("definition", value, over=over, matrix=w.name, rule=rule))
    first = [r.index for r in outputs]
    second = tuple(IndexRange(primed(r.index), r.lower, r.upper) for r in outputs)
    symbol = Function("K")(*first, *[r.index for r in second], t, s)
    return (Equation(symbol, tuple(terms), (*outputs, *second)),)


def _errors(reading: Reading, w: TrainedMatrix | TrainedVector) -> list[AppliedUndef]:
    """The errors by which the update of a weight is multiplied."""
    atoms = w.update.coefficient.atoms(AppliedUndef)
    return [a for a in atoms if str(a.func) in reading.program.scalars and len(a.args) > 1]


def _outputs(reading: Reading, error: AppliedUndef) -> tuple[IndexRange, ...]:
    """The indices of the outputs, as the definition of their errors names them."""
    d = next(d for d in reading.definitions if d.name == str(error.func))
    return tuple(next(r for r in d.ranges if r.index == x) for x in d.lhs.args[:-1])


def _gradient_squared(
    reading: Reading, w: TrainedMatrix | TrainedVector, error: AppliedUndef, outputs: tuple[IndexRange, ...]
) -> tuple[Expr, tuple[IndexRange, ...]]:
    """The inner product of the gradients of two outputs with respect to one weight (or one family), and what
    it is summed over."""
    u, registry, program = w.update, reading.registry, reading.program
    family = (*((w.initial.index,) if isinstance(w, TrainedMatrix) and w.initial.index else ()), *_others(w))
    if any((r.upper - r.lower).is_negative for r in family):
        return S.Zero, ()
    here: dict[Any, Any] = {x: r.index for x, r in zip(error.args[:-1], outputs, strict=True)}
    there: dict[Any, Any] = {x: primed(r.index) for x, r in zip(error.args[:-1], outputs, strict=True)}
    inner = [r for r in u.over if r.index not in here]  # indices within one output, such as positions
    plain = {r.index: Symbol(r.index.name.rstrip("_"), **r.index.assumptions0) for r in inner}
    here |= plain
    there |= {r.index: primed(plain[r.index]) for r in inner}
    inner = [IndexRange(plain[r.index], r.lower, r.upper) for r in inner]
    moved = u.coefficient / error
    gradient = moved / program.scale**2
    if isinstance(w, TrainedMatrix) and u.gradient is not None:  # type: ignore[union-attr]
        gradient = u.gradient  # type: ignore[union-attr]
    factor = moved * gradient * _units(reading, w)
    own = tuple(outputs) + tuple(inner)
    other = tuple(IndexRange(primed(r.index), r.lower, r.upper) for r in own)
    if isinstance(w, TrainedVector):  # one vector for each position: both outputs see the same one
        alone = tuple(r for r in w.initial.indices if r.index not in here)
        own, other = own + alone, other + alone
    value: Expr = factor
    bodies = (u.left, u.right) if isinstance(w, TrainedMatrix) else (u.vector,)  # type: ignore[union-attr]
    for body in bodies:
        v = vector(program, body.xreplace(here), own)
        past = vector(program, body.xreplace({**there, t: s}), other)
        value *= registry.correlation(v, past)
    for r in family:
        if r.index in here:  # one member for each output: different members do not meet
            value *= KroneckerDelta(here[r.index], there[r.index])
    summed = [r for r in family if r.index not in here]
    return value, (*summed, *inner, *(IndexRange(primed(r.index), r.lower, r.upper) for r in inner))


def _units(reading: Reading, w: TrainedMatrix | TrainedVector) -> Expr:
    """Over how many units, in units of N, the inner products of two gradients run."""
    if isinstance(w, TrainedMatrix):
        return sympify(w.initial.rows.ratio) * sympify(w.initial.cols.ratio)
    return sympify(reading.program.site_of(w.update.vector).ratio)


def _others(w: TrainedMatrix | TrainedVector) -> tuple[IndexRange, ...]:
    return w.initial.others if isinstance(w, TrainedMatrix) else w.initial.indices


def _goes_both_ways(reading: Reading, w: TrainedMatrix) -> bool:
    """Gradients pass through the transpose of a matrix, except at the inputs, where they end."""
    used = {a.transposed for d in reading.definitions for a in reading.products[d] if a.matrix == w.initial}
    return w.initial.cols.given or used in ({True, False}, set())


def _forward_weights(reading: Reading) -> set[str]:
    """The weights that the outputs are computed with (a separate backward matrix is not one of them)."""
    todo = [d for d in reading.definitions if d.name in reading.program.scalars and d.rhs.has(Mean)]
    seen: list[Definition] = []
    while todo:
        d = todo.pop()
        if d not in seen:
            seen.append(d)
            todo += [e for a in d.rhs.atoms(AppliedUndef) for e in _defining(reading, a)]
    names = {gaussian(reading.program.matrix_of(x)).name for d in seen for x in d.products()}
    return names | {p.initial.name for d in seen for p in reading.parameters[d]}


def _defining(reading: Reading, atom: AppliedUndef) -> list[Definition]:
    """The definitions that may give ``atom``: the end of a family if it is one, else the family."""
    named = [d for d in reading.definitions if d.name == str(atom.func)]
    exact = [d for d in named if d.lhs.args[:1] == atom.args[:1]]
    return exact or named
