"""Conditions of methods on a problem, with the reasons of their refusals.

A condition is a function that takes a problem and returns a refusal, or None. A method lists its conditions
in its attribute ``needs``, and the registry tests them before it asks the method itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sympy import Expr, Sum
from sympy.core.function import AppliedUndef

from derive.program import t
from derive.program.nonlinear import NonlinearRule
from numerics.errors import SpecError
from numerics.experiment.problem import EVALUATE, Problem
from numerics.names import ERROR, OUTPUT
from numerics.solver.method import Refusal


def refusal_for(problem: Problem, key: str, reason: object, accepted: str) -> Refusal:
    """Return a refusal that names a key of the file (or the program), a reason, and accepted values.

    If the reason is a SpecError, its key, value, reason and accepted values are taken in place of the
    arguments.
    """
    if isinstance(reason, SpecError):
        return Refusal(reason.key, reason.value, reason.problem, reason.accepted)
    return Refusal(*problem.key_and_value(key), str(reason).removesuffix("."), accepted)


def steps_on_given_samples(problem: Problem) -> Refusal | None:
    """Refuse a flow, and a network on random data.

    The data of a program without a recognised output and error are not tested.
    """
    if problem.flow:
        accepted = 'a rule in steps, such as "gd"'
        return refusal_for(problem, "training.rule", "the method needs a rule in steps", accepted)
    if problem.has_roles and not problem.seen:
        return refusal_for(problem, "data.kind", "the method needs given samples", '"fixed"')
    return None


def integer_depth(problem: Problem) -> Refusal | None:
    """Refuse a problem without an integer depth, which methods that step from layer to layer need."""
    if problem.depth is not None:
        return None
    return refusal_for(problem, "network.depth", problem.open_depth(), "")


def symbolic_depth(problem: Problem) -> Refusal | None:
    """Refuse a problem of integer depth, for the method that solves the limit of infinite depth."""
    if problem.depth is None:
        return None
    accepted = "a program of symbolic depth" if problem.experiment is None else '"L"'
    return refusal_for(
        problem, "network.depth", "the limit of infinite depth needs a symbolic depth", accepted
    )


def given_samples(problem: Problem) -> Refusal | None:
    """Refuse a problem of symbolic depth, and a network on random data.

    Single-site processes need an integer depth and given samples. The data of a program without a recognised
    output and error are not tested.
    """
    no = integer_depth(problem)
    if no is not None or problem.seen or not problem.has_roles:
        return no
    return refusal_for(problem, "data.kind", "has no given samples", 'given samples (data.kind = "fixed")')


def moving_features(problem: Problem) -> Refusal | None:
    """Refuse experiments on fixed samples in NTK scaling, where features do not move at infinite width."""
    if not problem.features_rest:
        return None
    reason = "divides gamma0 by sqrt(N), so that features do not move at infinite width"
    return refusal_for(problem, "network.parametrization", reason, 'solver.method = "lazy", or "mean-field"')


def linear_rules(problem: Problem) -> Refusal | None:
    """Refuse rules whose steps are nonlinear in the gradient, such as Adam; None if there are none.

    Only sampled paths solve the theories of such rules: in the method ``paths``, or with frozen features in
    the method ``lazy``.
    """
    trained = problem.program.trained()
    rule = next((w.rule for w in trained if isinstance(w.rule, NonlinearRule)), None)
    if rule is None:
        return None
    reason = f"{rule.name} is not linear in the updates of the weights"
    return refusal_for(problem, "training.rule", reason, 'solver.method = "paths"')


def linear_updates(problem: Problem) -> Refusal | None:
    """Refuse rules whose steps are nonlinear in the gradient, for the method of infinite depth.

    This method adds up the updates of all layers. At symbolic depth the refusal names a rule that the method
    accepts. None if all rules are linear.
    """
    no = linear_rules(problem)
    if no is None or problem.depth is not None:
        return no
    return replace(no, accepted='"gd", or an integer network.depth')


def flow_on_random_data(problem: Problem) -> Refusal | None:
    """Refuse a problem that is not a flow of one output on random data, for Laplace transforms."""
    if not problem.flow:
        return refusal_for(
            problem,
            "training.rule",
            "the method needs Laplace transforms in time, and only a flow has them",
            '"flow"',
        )
    if problem.is_random_data and problem.outputs == 1:
        return None
    return refusal_for(problem, "data.kind", "the method needs random data and one output", "another method")


def no_attributes(problem: Problem) -> Refusal | None:
    """Refuse attributes of units, which only sampled paths and the reference solver read from arrays."""
    if not problem.attributes:
        return None
    reason = f"has attributes of units ({', '.join(problem.attributes)}), which this method does not take"
    accepted = 'solver.method = "paths"'
    return Refusal("program", problem.program.name, reason, accepted)


def one_output(problem: Problem) -> Refusal | None:
    """Refuse a program whose results cannot be named: it needs one output with its error signal.

    A program on random data needs the correlation of the error of its learnt function instead.
    """
    if problem.has_roles and (not problem.seen or {OUTPUT, ERROR} <= {*problem.program.scalars}):
        return None
    names = ", ".join(problem.author_names(problem.program.scalars)) or "no numbers"
    reason = f"has no single output with an error to which updates are proportional; it has {names}"
    return Refusal("program", problem.program.name, reason, EVALUATE)


def samples_not_asked(problem: Problem) -> Refusal | None:
    """Refuse a problem with a number of paths, ``solver.samples``, for methods that do not sample.

    Nothing is refused if ``solver.method`` names a method, or in NTK scaling on fixed samples.
    """
    if problem.solver.samples is None or problem.solver.method != "auto" or problem.features_rest:
        return None
    return Refusal(
        "solver.samples",
        problem.solver.samples,
        "is the number of sampled paths, and this method does not sample",
        "leaving it out",
    )


def steady_data(problem: Problem) -> Refusal | None:
    """Refuse given arrays in fields, scalars or updates that change in time; the method reads data once."""
    program = problem.program
    updates = (u for w in program.trained() for u in w.update.terms)
    return _moving(problem, [*(d.rhs for d in program.definitions), *(u.coefficient for u in updates)])


def steady_numbers(problem: Problem) -> Refusal | None:
    """Refuse given arrays in the equations of scalars that change from step to step."""
    return _moving(problem, [e.rhs for e in problem.theory.scalars])


def _moving(problem: Problem, expressions: Iterable[Expr]) -> Refusal | None:
    """Refuse given arrays in these expressions that depend on the time t; None if there are none."""
    names = {*problem.arrays, *(x.name for x in problem.program.given)}
    functions = {a for e in expressions for a in e.atoms(AppliedUndef)}
    changing = {str(a.func) for a in functions if a.has(t) and str(a.func) in names}
    if not changing:
        return None
    arrays = ", ".join(problem.author_names(sorted(changing)))
    reason = f"{arrays} changes from step to step, and this method reads data once"
    return Refusal("program", problem.program.name, reason, "another method")


def separate_errors(problem: Problem) -> Refusal | None:
    """Refuse scalars that sum over scalars, such as errors that depend on several outputs.

    The method takes one output for each error.
    """
    names = {e.name for e in problem.theory.scalars}
    totals = [total for e in problem.theory.scalars for total in e.rhs.atoms(Sum)]
    if not any(str(x.func) in names for total in totals for x in total.function.atoms(AppliedUndef)):
        return None
    mixed = "the error of an output depends on all outputs"
    return refusal_for(problem, "training.objective", mixed, '"square", "logistic" or "hinge"')
