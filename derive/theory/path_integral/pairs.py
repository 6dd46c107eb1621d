"""Entrywise rules in the path integral: a pair interaction between the units of two populations.

The updates of a matrix whose rule acts on each entry are not a product of vectors, so that no finite number
of inner products decouples the units. They add ``-(i/N) sum_rc V_rc(t) x_r(t) y_c(t)`` to the exponent for
each use, where ``V/N`` is the part of the matrix that its updates give, and one of x and y is a hatted field.
The order parameters of this coupling of pairs are the path distributions of both populations. At the saddle
point a unit interacts with an independent, averaged partner: the exponent of a unit contains ``-i sum hat
E~[V copy]``, and its derivative by the hatted field is the term of the unit's equation. The average of a
partner's hatted field with V, which would act as a force on the unit, is the response of earlier fields to a
later source and vanishes. Nothing here is taken from the conditioning rule.
"""

from __future__ import annotations

from typing import Any

from sympy import Add, Expr, Function, I, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.functional import functional_derivative
from derive.calculus.pairs import Copy, EntryStep, PairMean
from derive.calculus.sums import over
from derive.calculus.symbols import IndexRange, s, t
from derive.program.training import TrainedMatrix
from derive.theory.applications import Application, rename_taken
from derive.theory.data import Term
from derive.theory.path_integral.elimination import solution

RULE = "saddle point of the interaction of pairs of units"


def pair_memory(a: Application, trained: TrainedMatrix, member: dict[Any, Any]) -> Term:
    """Return the memory term of a product ``a`` with a matrix whose training rule acts on each entry.

    The term is ``sum_s k(t, s) E~[Q_s a~(t)]``. Q_s is the step of an entry at time s, and E~ an average over
    an independent unit whose vector is a~. k is the factor of the step in the weight at time t, times the
    number of units of the vector over N, times the factor ``outside`` of the update (see `Outer`). The term
    is a derivative of the interaction of pairs of units. ``member`` gives the values of the indices of a
    family of matrices.
    """
    names = [r.index for r in a.ranges]
    hat, field = (Function(x)(*names, t) for x in ("hat", "field"))
    vector = a.vector.body
    row, column = (vector, hat) if a.transposed else (hat, vector)
    step = entry_step(trained, a.indices, member, a.transposed)
    rate = solution(trained.rule).update_factor(t, s).xreplace(member) * trained.update.outside.xreplace(
        {**member, t: s}
    )
    units = a.acts_on.ratio  # number of units of the vector that is multiplied, divided by N
    coupling = _exponent(-I * rate * units, step, (row, column), hat, a.ranges)
    constraint = over(I * hat * field, a.ranges)
    slope = functional_derivative(constraint, hat, a.ranges).coeff(field)
    term = (-functional_derivative(coupling, hat, a.ranges) / slope).expand()
    (mean,) = term.atoms(PairMean)
    kernel, matrix = term.coeff(mean), a.matrix.name
    return Term("pair", mean, kernel=kernel, over=a.summed, reach="strict", matrix=matrix, rule=RULE)


def entry_step(
    trained: TrainedMatrix, taken: tuple[Symbol, ...], member: dict[Any, Any], transposed: bool
) -> EntryStep:
    """Return the step at time s of one matrix entry under a training rule that acts on each entry.

    The gradient of the entry is a sum of products of three factors: the coefficient, the row vector and the
    column vector of an update; it is divided by the factor ``outside`` of the update (see `Outer`). The unit
    of the equation is the row of the entry, or the column if the matrix is used ``transposed``; the vector of
    the other unit is that of an independent copy. Summed indices differ from ``taken``; ``member`` gives the
    values of the indices of a family of matrices.
    """
    parts = []
    for u in trained.update.terms:
        names, ranges = rename_taken(u.over, taken)
        row, column = (Copy(u.left), u.right) if transposed else (u.left, Copy(u.right))
        entry = u.coefficient / trained.update.outside * row * column
        parts.append(over(entry.xreplace({**names, **member, t: s}), ranges))
    return EntryStep(trained.name, Add(*parts), s)


def _exponent(
    factor: Expr,
    step: EntryStep,
    ends: tuple[Expr, Expr],
    hat: AppliedUndef,
    ranges: tuple[IndexRange, ...],
) -> Expr:
    """Return the term of the exponent of one unit that its interaction with a partner unit gives.

    It is ``factor`` times the hatted field ``hat``, times the average over the partner of ``step`` times the
    partner's vector. ``ends`` are the row and column field of the pair. It is summed over ``ranges`` but not
    over times, because the derivative by the hatted field removes that sum.
    """
    hatted_field = [x for x in ends if x.has(hat.func)]
    partner = [x for x in ends if not x.has(hat.func)]
    return over(factor * hatted_field[0] * PairMean(step * Copy(partner[0])), ranges)
