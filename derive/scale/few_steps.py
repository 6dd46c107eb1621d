"""Order parameters after a few exact steps, in closed form.

There are these closed forms.  The first step, for every depth at once (:func:`.first_step`).  Any few steps
of a given depth, here.  The first steps of every depth at gamma0 -> 0 (:func:`.lazy_steps`), or in powers
of the rate (:func:`.memory_free`).  Every step at once for wide lazy layers (:attr:`.LazySteps.wide`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Expr, Function, Integer, Symbol, cancel

from derive.errors import NotApplicable
from derive.scale.exact_steps import ExactSteps
from derive.theory.theory import Theory


@dataclass(frozen=True)
class FewSteps:
    """``values[t]`` is the function ``name`` at equal times t: rational in the theory's symbols."""

    theory: Theory
    name: str
    values: tuple[Expr, ...]

    def growth_factor(self, step: int = 1) -> Expr:
        """The value at ``step`` over the one at the start.  Raises IndexError beyond the last step."""
        return cancel(self.values[step] / self.values[0])


def few_steps(
    theory: Theory, steps: int, name: str = "C_v", order: tuple[Symbol, int] | None = None
) -> FewSteps:
    """A correlation function of a linear theory at equal times 0, 1, ..., ``steps``.

    The depth is a number.  The expressions grow fast: three steps of one hidden layer have 576 terms in three
    symbols, so give numbers for what need not be a symbol (``theory.map``).  ``order`` is a symbol, the rate
    or gamma0, and a power of it above which terms are dropped, exactly (see :class:`.ExactSteps`).  Raises
    :class:`NotApplicable` for a depth that is a symbol, a flow, several outputs, modes, and fields that are
    not linear in their sources.

    >>> from derive.theory import mean_field
    >>> from derive.program import eta, gamma0, isotropic
    >>> found = few_steps(mean_field(isotropic(1, data="population", center=True)), 2)
    >>> found.growth_factor(1)
    (4*eta**2*nu + eta**2 - 4*eta*nu + nu)/nu
    >>> found.values[2].expand().coeff(gamma0, 2).coeff(eta, 3), len(found.values[2].expand().args)
    (-8, 36)
    """
    if steps < 0:
        raise NotApplicable(f"steps = {steps}: give 0 or more")
    head = theory.order_parameter(name).symbol
    if len(head.args) != 2:
        raise NotApplicable(f"{name} has the index {head.args[0]}: few steps are those of one output")
    exact = ExactSteps(theory, order=order)
    values: Sequence[Expr] = [
        exact.expr(exact.value(Function(name)(Integer(t), Integer(t)))) for t in range(steps + 1)
    ]
    return FewSteps(theory, name, tuple(values))


__all__ = ["FewSteps", "few_steps"]
