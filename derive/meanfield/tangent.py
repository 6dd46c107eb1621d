"""The tangent kernel, read off a program's updates; it observes the theory and enters no equation of it."""

from __future__ import annotations

from sympy import Expr, Function, S, Sum, Symbol
from sympy.core.function import AppliedUndef

from derive.meanfield.applications import Reading
from derive.meanfield.names import vector
from derive.meanfield.theory import Equation, Term
from derive.program.expressions import IndexRange, Mean, alpha, mu, s, t
from derive.program.program import Definition, gaussian
from derive.program.training import TrainedMatrix


def tangent_kernel(reading: Reading) -> tuple[Equation, ...]:
    """``sum over weights of <left left'><right right'>``: how an update at one sample moves another's output.

    When each weight's update is the gradient of the output times the error, the kernel is read off the
    updates.  A program without trained weights, with updates that are no sum over samples, or whose backward
    pass does not use the transposes of its forward matrices (its updates are then no gradient) has none: the
    result is empty.

    >>> from derive.meanfield.applications import read
    >>> from derive.program import mlp
    >>> print(tangent_kernel(read(mlp(1)))[0].rhs)
    G(1, t, s)*K_x(mu, alpha) + H(1, mu, alpha, t, s)
    """
    program, registry = reading.program, reading.registry
    terms = []
    ranges: tuple[IndexRange, ...] = ()
    forward = _forward_weights(reading)
    for w in program.trained():
        if w.name not in forward:
            continue
        u = w.update
        if len(u.over) != 1 or (isinstance(w, TrainedMatrix) and not _goes_both_ways(reading, w)):
            return ()
        first, second = (IndexRange(i, u.over[0].lower, u.over[0].upper) for i in (mu, alpha))
        ranges = (first, second)
        value: Expr = S.One
        for body in (u.left, u.right) if isinstance(w, TrainedMatrix) else (u.vector,):  # type: ignore[union-attr]
            v = vector(program, body.xreplace({u.over[0].index: mu}), (first,))
            past = vector(program, body.xreplace({u.over[0].index: alpha, t: s}), (second,))
            value *= registry.correlation(v, past)
        index = w.initial.index if isinstance(w, TrainedMatrix) else None
        if index is not None:
            if (index.upper - index.lower).is_negative:
                continue
            value = Sum(value, index.limits)
        terms.append(Term(value, "definition", w.name, "gradient with respect to this weight"))
    return (Equation(Function("K")(mu, alpha, t, s), tuple(terms), ranges),) if terms else ()


def _goes_both_ways(reading: Reading, w: TrainedMatrix) -> bool:
    """Gradients pass through the transpose of a matrix, except at the inputs, where they end."""
    used = {a.transposed for d in reading.definitions for a in reading.products[d] if a.matrix == w.initial}
    return w.initial.cols.given or used in ({True, False}, set())


def _forward_weights(reading: Reading) -> set[str]:
    """The weights that the outputs are computed with (a separate backward matrix is not one of them)."""
    todo = [d for d in reading.definitions if d.rhs.has(Mean)]
    seen: list[Definition] = []
    while todo:
        d = todo.pop()
        if d not in seen:
            seen.append(d)
            todo += [e for a in d.rhs.atoms(AppliedUndef) for e in _defining(reading, a)]
    names = {gaussian(reading.program.matrix_of(x)).name for d in seen for x in d.products()}
    symbols = {x for d in seen for x in d.rhs.free_symbols}
    return names | {v.name for v in reading.program.vectors if Symbol(v.name) in symbols}


def _defining(reading: Reading, atom: AppliedUndef) -> list[Definition]:
    """The definitions that may give ``atom``: the end of a family if it is one, else the family."""
    named = [d for d in reading.definitions if d.name == str(atom.func)]
    exact = [d for d in named if d.lhs.args[:1] == atom.args[:1]]
    return exact or named
