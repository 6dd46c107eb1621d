"""Training rules by name, with decay, momentum and noise."""

from __future__ import annotations

from typing import TypeAlias

from sympy import Expr, S, sympify

from derive.errors import ProgramError
from derive.program.training import (
    GradientDescent,
    GradientFlow,
    Momentum,
    MomentumFlow,
    Multistep,
    TrainingRule,
)
from derive.program.words import P, eta, s, t

Number: TypeAlias = Expr | float | int

ADAPTIVE = "adam adamw amsgrad nadam adagrad adadelta adafactor rmsprop lion lamb signsgd"


def training_rule(
    rule: str = "gd",
    loss: str = "sum",
    *,
    weight_decay: Number = 0,
    momentum: Number = 0,
    temperature: Number = 0,
    samples: Expr = P,
) -> TrainingRule:
    """The rule named in an experiment file, on the summed loss or on its mean over samples.

    With ``U = -gamma^2 grad(loss)``, ``lam = weight_decay`` and ``T = temperature``, weights theta whose
    entries start as N(0, 1) follow

    - ``"flow"``: ``d theta = (U - lam theta) dt + sqrt(2 T) dB`` (selfconsistent2023 J; K.1 is this with
      ``lam = lam_K/beta_K`` and ``T = 1/beta_K``, so that its ridge is ``lam_K = lam/T``);
    - ``"gd"``: a step ``eta`` of it, ``theta += eta (U - lam theta) + sqrt(2 eta T) xi``;
    - ``"multistep"``: the flow as an explicit multistep integrator sees it, with tables ``w(t, s)`` for its
      memory of updates, ``m(t)`` for that of the start, and ``n(t, s)`` for its noise.

    ``momentum`` is the share of the velocity that heavy-ball steps keep, ``Q <- momentum Q + U``, ``theta <-
    (1 - eta lam) theta + eta Q``; for the flow it is the time constant tau of L.1, ``tau dQ/dt = -Q + U``,
    ``d theta/dt = Q``.  Raises :class:`ProgramError` for an unknown or adaptive rule and for combinations
    that have no rule.

    >>> training_rule("gd", "mean").rate
    eta/P
    >>> from sympy.abc import s, t
    >>> training_rule("flow", weight_decay=2).memory(t, s)
    (exp(-2*t), exp(2*s - 2*t))
    """
    share = {"sum": S.One, "mean": 1 / samples}.get(loss)
    if share is None:
        raise ProgramError(f"loss = {loss!r}: must be 'sum' or 'mean'")
    decay, kept, heat = (_exact_zero(x) for x in (weight_decay, momentum, temperature))
    if kept != 0 and heat != 0:
        raise ProgramError(
            f"momentum = {kept} with temperature = {heat}: noise that enters through a velocity (underdamped "
            "Langevin dynamics) is no training rule here; leave one of them out"
        )
    if rule == "gd":
        if kept != 0:
            return Momentum(eta * share, kept, decay=eta * decay)
        return GradientDescent(eta * share, decay=eta * decay, diffusion=2 * eta * heat)
    if rule == "flow":
        if kept == 0:
            return GradientFlow(share, decay=decay, diffusion=2 * heat)
        if decay == 0:
            return MomentumFlow(kept, share)
        raise ProgramError(
            f"momentum = {kept} with weight_decay = {decay} in continuous time: "
            "no training rule here has both; use 'gd'"
        )
    if rule == "multistep":
        flow = training_rule("flow", weight_decay=decay, momentum=kept, temperature=heat)
        forgets, noisy = flow.memory(t, s)[0] != 1, flow.noise(t, s) != 0
        return Multistep(share, left="m" if forgets else None, heat="n" if noisy else None)
    raise ProgramError(f"rule = {rule!r}: {_why_not(rule)}must be 'gd', 'flow' or 'multistep'")


def rule_of(rule: str | TrainingRule, loss: str, samples: Expr = P, **numbers: Number) -> TrainingRule:
    """The rule with this name (see :func:`training_rule`), or the rule itself.

    Raises :class:`ProgramError` when a rule that is no name comes with numbers for one.

    >>> rule_of(GradientDescent(eta), "sum", momentum=0).rate
    eta
    """
    if isinstance(rule, str):
        return training_rule(rule, loss, samples=samples, **numbers)
    given = [key for key, value in numbers.items() if value != 0]
    if given:
        raise ProgramError(f"{', '.join(given)}: belongs to a rule given by its name, not to {rule!r}")
    return rule


def _exact_zero(value: Number) -> Expr:
    """A number as SymPy has it, but 0 where it is 0.0, which leaves a term out rather than multiplies it."""
    number = sympify(value)
    return S.Zero if number.is_zero else number


def _why_not(rule: str) -> str:
    if rule.lower() not in ADAPTIVE.split():
        return ""
    return (
        "its steps are not linear in the updates (they divide by their size), so weights have no memory "
        "W(t) = m(t) W(0) + sum_s k(t, s) U(s) and no mean-field theory of this kind; "
    )
