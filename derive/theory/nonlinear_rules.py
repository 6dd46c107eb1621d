"""Equations of training rules that are not linear in the updates, for printing with a theory.

For weights with an `Entrywise` rule the module returns the equations of the states and of the step, for those
with a `Spectral` rule the function of the singular values, as SymPy equations. `Theory.render` shows them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sympy import Eq, Function

from derive.calculus.symbols import t
from derive.program.entrywise import A, Entrywise
from derive.program.nonlinear import NonlinearRule
from derive.program.parts import ranges_of_family
from derive.program.program import Program
from derive.program.spectral import Spectral, sigma


def laws(program: Program) -> tuple[Eq, ...]:
    """Return the equations of the steps ``Q_W`` of entrywise rules, and of ``F_W`` of spectral rules.

    Each equation of an entrywise rule is that of one entry of a weight W: ``A(t)`` is the normalised negative
    gradient of the entry at step t, and a function such as ``m(t)`` is a state of the rule. Weights that move
    by the same rule share the equations of its states. ``F_W`` is a function of ``sigma``, a singular value
    of the gradient divided by the width N; ``F_W`` is 1 for Muon. A family of weights without members, such
    as that between the layers of a network with one layer, has no equation. The result is empty if all rules
    are linear.

    >>> from derive.program import eta, lion, mlp
    >>> for e in laws(mlp(2, rule=lion(eta))): print(e.lhs, "=", e.rhs)
    m(t + 1) = A(t)/100 + 99*m(t)/100
    Q_W0(t) = sign(A(t)/10 + 9*m(t)/10)
    Q_W(t) = sign(A(t)/10 + 9*m(t)/10)
    Q_w(t) = sign(A(t)/10 + 9*m(t)/10)
    """
    weights: dict[NonlinearRule, list[str]] = {}
    for w in program.trained():
        ranges = ranges_of_family(w.initial)
        is_empty = any((r.upper - r.lower).is_negative for r in ranges)
        if isinstance(w.rule, NonlinearRule) and not is_empty:
            weights.setdefault(w.rule, []).append(w.name)
    equations: list[Eq] = []
    for rule, names in weights.items():
        equations += _entrywise(rule, names) if isinstance(rule, Entrywise) else _spectral(rule, names)
    return tuple(equations)


def _entrywise(rule: Entrywise, names: list[str]) -> Iterator[Eq]:
    """Yield the equations of an entrywise rule: its states at the next step, and the step of each weight.

    ``names`` are the names of the weights that move by the rule.
    """
    now: dict[Any, Any] = {A: Function("A")(t)}
    now |= {x: Function(x.name)(t) for x, _ in rule.states}
    later = {x: Function(x.name)(t + 1) for x, _ in rule.states}
    for x, e in rule.states:
        yield Eq(later[x], e.xreplace(now), evaluate=False)
    Q = rule.Q.xreplace(now if rule.before else {**now, **later})
    for name in names:
        yield Eq(Function(f"Q_{name}")(t), Q, evaluate=False)


def _spectral(rule: NonlinearRule, names: list[str]) -> Iterator[Eq]:
    """Yield for each weight the function that its rule applies to the singular values of the gradient.

    ``names`` are the names of the weights that move by the rule, which must be a `Spectral` rule.
    """
    assert isinstance(rule, Spectral)
    for name in names:
        yield Eq(Function(f"F_{name}")(sigma), rule.F, evaluate=False)
