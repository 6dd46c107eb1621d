"""Base class of training rules that are nonlinear in the gradient: sign descent, Adam, Muon.

Such a rule computes a step Q from the history of the gradient of a weight, and moves the weight by it:

    W(t + 1) = (1 - decay(t)) W(t) + rate(t) U(t),  U = outside * Q/N.

Entries of Q are of order one. N is D for a matrix that acts on data of dimension D, and 1 for a vector.
``outside`` is a factor of the weight (see :class:`~derive.program.training.Outer`). Decay and rate are not
part of Q, so that the equation of motion with U as its input is linear.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar

from sympy import Expr, Function, S, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.intervals import NONNEGATIVE, BoundedParameter
from derive.calculus.symbols import t
from derive.errors import NotDerived
from derive.program.rules import LinearRule, LinearSystem


class NonlinearRule:
    """Base class of rules whose step is a nonlinear function of the gradients of a weight.

    A subclass has ``rate``, ``decay`` and ``name``, and defines its step in :attr:`law` and the symbols of
    the step in :attr:`inner`.
    """

    rate: Expr
    decay: Expr
    name: str
    memory_tables: tuple[Expr, str, str] | None
    """A constant rate and names of tables of m(t) and of k(t, s) over this rate, where the memory has no
    closed form because the decay depends on the time."""
    discrete: ClassVar[bool] = True
    bounds: tuple[BoundedParameter, ...] = ()
    """Parameters in the step that must be in an interval at all times, such as beta1 of Adam."""

    @property
    def bounded(self) -> tuple[BoundedParameter, ...]:
        """The parameters that must be in an interval at all times: rate, decay and those in ``bounds``.

        Rate and decay must be at least zero.
        """
        stated = {"rate": self.rate, "decay": self.decay}
        own = (BoundedParameter(f"{key} of {self.name}", x, NONNEGATIVE) for key, x in stated.items())
        return (*own, *self.bounds)

    @property
    def law(self) -> tuple[Expr, ...]:
        """The expressions that define the step: Q, or F of a singular value, and next values of states."""
        raise NotImplementedError

    @property
    def inner(self) -> frozenset[Symbol]:
        """The symbols in the step that stand for the gradient and for states such as a running mean.

        All other symbols of the rule are parameters.
        """
        raise NotImplementedError

    @property
    def system(self) -> LinearSystem:
        """The linear equation ``W(t + 1) = (1 - decay) W(t) + rate U(t)``, whose input U is the step."""
        return LinearSystem(1 - self.decay, self.rate)

    def memory(self, time: Expr, past: Expr) -> tuple[Expr, Expr]:
        """Return ``(m(t), k(t, s))`` at ``time`` and ``past``, in ``W(t) = m(t) W(0) + sum_s k(t, s) U(s)``.

        U(s) is the step made at the time s. With ``memory_tables`` the factors are those tables; otherwise
        they are the solution of :attr:`system`.
        """
        if self.memory_tables is not None:
            rate, left, kept = self.memory_tables
            return Function(left)(time), rate * Function(kept)(time, past)
        factors: tuple[Expr, Expr] = _system_of(self).solution("steps", time, past)
        return factors

    def noise(self, time: Expr, past: Expr) -> Expr:
        """Return the covariance of the noise of training, zero for these rules."""
        return S.Zero

    @property
    def coefficients(self) -> tuple[Expr, ...]:
        """The expressions of the rule: rate, decay and those in :attr:`law`."""
        return (self.rate, self.decay, *self.law)

    @property
    def parameters(self) -> frozenset[Symbol]:
        """The symbols in rate, decay and step, except the time t and the symbols in :attr:`inner`."""
        return frozenset(x for e in self.coefficients for x in e.free_symbols) - {t} - self.inner

    @property
    def tables(self) -> frozenset[str]:
        """The names of functions of time in the rule, such as a schedule ``eta(t)`` or a memory table."""
        names = frozenset() if self.memory_tables is None else frozenset(self.memory_tables[1:])
        return names | {str(a.func) for e in self.coefficients for a in e.atoms(AppliedUndef)}


@lru_cache(maxsize=256)
def _system_of(rule: NonlinearRule) -> LinearSystem:
    """Return the linear equation of motion of a weight with the steps of the rule as input.

    Calls with the same rule return the same object, which caches its solution.
    """
    return rule.system


class RewrittenSteps(LinearRule):
    """Linear training rule ``W(t + 1) = (1 - decay) W(t) + rate U(t)`` that replaces a nonlinear rule.

    The update U is then the nonlinear step itself, written as a sum of outer products (as a vector for a
    vector of weights).
    """


def require_linear_rules(source: Any, what: str) -> None:
    """Raise :class:`~derive.errors.NotDerived` if a weight of a program has a nonlinear training rule.

    This includes rules whose steps are rewritten as updates (:class:`RewrittenSteps`). ``source`` is the
    program, or some of its trained weights; ``what`` is the name of the operation that needs linear rules.

    Examples
    --------
    >>> from derive.program import mlp, sign_descent
    >>> require_linear_rules(mlp(2, rule=sign_descent(Symbol("eta"))), "it")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    derive.errors.NotDerived: W0 moves by sign descent, which is not linear in the updates: ...
    """
    for w in source.trained() if hasattr(source, "trained") else source:
        if isinstance(w.rule, NonlinearRule | RewrittenSteps):
            raise NotDerived(
                f"{w.name} moves by {w.rule.name}, which is not linear in the updates: linear rules, such as "
                f"GradientDescent, are needed for {what}; sampled paths solve theories with other rules "
                "(numerics.solve)"
            )
