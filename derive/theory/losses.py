"""Training and test loss of a program on random data, as expressions of the order parameters of its theory.

The error of the learnt function and the errors of samples are found by their roles in the program: the loss
is the mean square of one vector. `Theory.losses` returns the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sympy import Add, Expr, Pow, S, Sum
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.calculus.intervals import NONNEGATIVE
from derive.calculus.symbols import expression, primed, s, t
from derive.errors import NotApplicable
from derive.program.language import Mean
from derive.program.program import Program
from derive.theory.data import Equation, OrderParameter, TheoryData


def losses(theory: TheoryData, noise: Expr | int = 0) -> Mapping[str, Expr]:
    """Return the training and the test loss of a program on random data; see `Theory.losses`.

    They are the values of ``train_loss`` and ``test_loss`` at time t. ``noise`` is the standard deviation of
    the label noise, used only if the program has no samples. Raises NotApplicable if the samples are given,
    if the loss is not the mean square of one vector, if the error is not linear in data and noise, or if the
    theory has no correlation for the mean square. Raises ProgramError if ``noise`` is no expression, or
    negative.
    """
    noise = expression(noise, "noise")
    NONNEGATIVE.require(noise, "noise")
    program, roles = theory.program, theory.program.roles
    if roles.learnt is None or program.loss is None:
        raise NotApplicable(f"losses are derived for random data: {program.name} {_other_data(program)}")
    if roles.residual is None:
        # Without samples the loss is one of the population: half the mean square of the error of new data
        # without label noise.
        loss = program.loss.replace(lambda e: isinstance(e, Mean), lambda e: _mean(theory, e.args[0]))
        population = 2 * loss + noise**2
        return MappingProxyType({"train_loss": population, "test_loss": population})
    e = theory.equation(roles.residual)
    others = [x for x in e.terms if x.kind == "definition"]
    if others:
        raise NotApplicable(
            f"losses are derived for errors that are linear in the data and the noise: {others[0].expr} in "
            f"the equation of {e.lhs} is another vector; evaluate the correlations of {e.name} instead"
        )
    new_sample = _variance_of_sources(theory, e)
    if all(x.kind == "source" for x in e.terms):
        return MappingProxyType({"train_loss": new_sample, "test_loss": new_sample})
    (square,) = (x for x in program.loss.atoms(Pow) if _names(x) == {roles.residual})
    return MappingProxyType({"train_loss": _mean(theory, square), "test_loss": new_sample})


def _other_data(program: Program) -> str:
    """Return why a program has no losses of random data, and which loss to evaluate instead."""
    if program.given:
        return "has no vector of errors, because its samples are given; evaluate its loss at its outputs"
    return "has a loss that is not the mean square of one vector; evaluate the averages in its loss"


def _variance_of_sources(theory: TheoryData, e: Equation) -> Expr:
    """Return the variance of the Gaussian sources in the equation of an error, at equal times.

    Updates have used other samples only, so that the error of a new sample has no other terms.
    """
    covariances = {(u.symbol.func, u.partner.func): u.covariance for u in theory.sources}
    parts = []
    for x in (x for x in e.terms if x.kind == "source"):
        (source,) = (y for y in x.expr.atoms(AppliedUndef) if (y.func, y.func) in covariances)
        parts.append((source.func, x.expr / source))
    return Add(
        *[
            one * other * _now(covariances.get((a, b), covariances.get((b, a), S.Zero)))
            for a, one in parts
            for b, other in parts
        ]
    )


def _mean(theory: TheoryData, square: Expr) -> Expr:
    """Return the average of a square such as ``lamda(k)*v(t)**2`` over units by the order parameter for it.

    Raises NotApplicable if no correlation of the theory is a multiple of this average at equal times.
    """
    for q in theory.correlations():
        multiple = _multiple(theory.program, q, square)
        if multiple is not None:
            return _now(q.symbol) / multiple
    raise NotApplicable(
        f"the theory has no correlation that is the average of {square}: give this average a name in the "
        f"notation of the program {theory.program.name}"
    )


def _multiple(program: Program, q: OrderParameter, square: Expr) -> Expr | None:
    """Return the ratio of a correlation at equal times to the average of ``square``.

    The result is None if the ratio is not constant. The correlation is an average over units, or a sum of
    averages over units that differ.
    """
    number, summand, unit = S.One, q.definition, None
    if isinstance(summand, Sum) and len(summand.limits) == 1:
        ((unit, lower, upper),) = summand.limits
        number, summand = upper - lower + 1, summand.function
    constant, average = summand.as_independent(Average, as_Add=False)
    if not isinstance(average, Average):
        return None
    fields = {x.name for x in program.fields}
    # Fields of units with different attributes have the index of the unit in the theory, but not in the
    # program.
    alike = {
        a: a.func(*a.args[1:])
        for a in average.body.atoms(AppliedUndef)
        if str(a.func) in fields and a.args[0] == unit
    }
    ratio = _now(average.body.xreplace(alike)) / square
    return None if ratio.has(AppliedUndef) else constant * number * ratio


def _now(e: Expr) -> Expr:
    """Return the value at equal times and indices of an expression at two times and two sets of indices.

    The time s is replaced by t, and each primed index by the index. A correlation of a field with itself thus
    becomes its variance.
    """
    e = expression(e)
    partners = {primed(x): x for x in e.free_symbols if primed(x) in e.free_symbols}
    return e.subs({s: t, **partners})


def _names(e: Expr) -> set[str]:
    """Return the names of the functions in an expression."""
    return {str(a.func) for a in e.atoms(AppliedUndef)}
