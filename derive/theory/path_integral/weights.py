"""Weights in the path integral: the covariance of their random part, and the terms of their updates.

The integral over a weight runs over ``W(t) = m(t) W(0) + sum_s k(t, s) U(s) + noise``, the solution of its
equation of motion (:mod:`.elimination`). Its random part enters the disorder average with the covariance of
one entry at two times. Under a linear rule its updates are sums of outer products, and the inner product of a
vector of an update with a vector is an order parameter. Updates of entrywise rules are in :mod:`.pairs`.
Nothing here is taken from the conditioning rule.
"""

from __future__ import annotations

from typing import Any

from sympy import Expr, KroneckerDelta, S, Symbol, sympify

from derive.calculus.pairs import EntryStep
from derive.calculus.sums import over as summed
from derive.calculus.symbols import s, t
from derive.program.entrywise import Entrywise
from derive.program.rules import TrainingRule
from derive.program.training import TrainedMatrix, TrainedVector
from derive.theory.applications import Application, Parameter, Reading, rename_taken
from derive.theory.data import Term
from derive.theory.names import vector
from derive.theory.path_integral.elimination import solution
from derive.theory.path_integral.pairs import pair_memory


def covariance(use: Application | Parameter, time: Expr = t, past: Expr = s) -> Expr:
    """Return ``<W(t) W(s)>/<W(0)^2>`` of one entry of the random part of a weight.

    It is the product of the factors of the initial weight at both times, plus the covariance of the noise. It
    is 1 for a weight that is not trained, and a Kronecker delta for one that is drawn anew at each step.
    """
    initial = use.matrix if isinstance(use, Application) else use.initial
    if initial.fresh:
        return KroneckerDelta(time, past)
    if use.trained is None:
        return S.One
    return solution(use.trained.rule).covariance(time, past).xreplace(_member(use))


def _member(use: Application | Parameter) -> dict[Any, Any]:
    """Return the value of each index of a family at the matrix or vector of weights that is used.

    For example, ``W(3)`` of the family ``W(ell)`` gives ``{ell: 3}``.
    """
    if isinstance(use, Parameter):
        return {r.index: x for r, x in zip(use.initial.indices, use.member.args, strict=True)}
    return use.chosen


def variance(use: Application) -> Expr:
    """Return N times the initial variance of an entry of the matrix that is used."""
    return sympify(use.matrix.variance).xreplace(_member(use))


def is_random(use: Application) -> bool:
    """Return whether the entries of the matrix have a random part: an initial value or noise."""
    return bool(variance(use) != 0 and covariance(use) != 0)


def parameter_covariance(a: Parameter, b: Parameter, names: dict[Symbol, Symbol]) -> Expr:
    """Return the covariance ``<w(t) w(s)>`` of one entry of a weight vector in two uses, ``a`` and ``b``.

    It is not divided by the initial variance. ``names`` renames the indices of ``b``. Different vectors of a
    family are independent, so that the covariance has a Kronecker delta of their indices.
    """
    value = sympify(a.initial.variance).xreplace(_member(a)) * covariance(a)
    for x, y in zip(a.member.args, b.member.args, strict=True):
        value *= KroneckerDelta(x, y.xreplace(names))
    return value


def matrix_memory(reading: Reading, a: Application, trained: TrainedMatrix) -> list[Term]:
    """Return the terms that the updates of a matrix add to its product with the vector a(t).

    They are ``sum_s k(t, s) c(s) n <r(s) a(t)> l(s)`` for updates ``c l r^T / N`` with coefficient c and
    vectors l and r. k is the factor of the update of time s in the weight at time t, and n the number of
    units of the vector a over N. For the transposed matrix l and r are exchanged. Updates that belong to
    other matrices of a family give no term. A rule that acts on each entry gives one term with an average
    over an independent unit.
    """
    member, terms = _member(a), []
    if isinstance(trained.rule, Entrywise):
        return [pair_memory(a, trained, member)]
    weight = solution(trained.rule).update_factor(t, s).xreplace(member)
    for u in trained.update.terms:
        if u.coefficient.xreplace(member) == 0:
            continue  # the update belongs to other members of the family than that of `a`
        names, over = rename_taken(u.over, a.indices)
        parts = (u.left, u.right, u.coefficient)
        left, right, c = (x.xreplace({**names, **member, t: s}) for x in parts)
        out, met = (right, left) if a.transposed else (left, right)
        past = vector(reading.program, met, over, a.separate)
        inner = a.acts_on.ratio * reading.registry.correlation(a.vector, past)
        kernel, ranges = weight * c * inner, (*a.summed, *over)
        terms.append(Term("memory", out, S.One, kernel, ranges, _reach(trained.rule), a.matrix.name, _RULE))
    return terms


def vector_memory(p: Parameter, trained: TrainedVector) -> Term:
    """Return the term ``sum_s k(t, s) c(s) v(s)`` that updates of a vector of weights add to its entries.

    The update of time s is ``c v`` with coefficient c and vector v, and k is its factor in the weight at time
    t. A rule that acts on each entry has the step of the entry in place of ``c v``, times the factor
    ``outside`` of the update (see `Along`).
    """
    u = trained.update
    names, over = rename_taken(u.over, p.indices)
    member = _member(p)
    moved, c = (x.xreplace(names).xreplace(member).xreplace({t: s}) for x in (u.vector, u.coefficient))
    kernel = solution(trained.rule).update_factor(t, s).xreplace(member) * c
    if isinstance(trained.rule, Entrywise):
        unit = u.outside.xreplace(member).xreplace({t: s})
        moved, kernel, over = (
            EntryStep(trained.name, summed(c / unit * moved, over), s),
            kernel / c * unit,
            (),
        )
    return Term("memory", moved, S.One, kernel, over, _reach(trained.rule), p.initial.name, _RULE)


_RULE = "updates so far"


def _reach(rule: TrainingRule) -> str:
    """Return the range of a sum over past updates: "strict" (s < t) for steps, "flow" for an integral."""
    return "strict" if rule.discrete else "flow"
