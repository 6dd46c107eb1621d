"""Entrywise training rules: sign descent, Adam, AdamW, RMSprop, Lion, and others of one's own.

An entrywise rule moves each weight by a function of the history of its own gradient, of nothing else.  The
gradient of an entry is normalised so that it is of order one at large width, ``A = -gamma0 N dloss/dM`` for
a matrix M as applied: ``A = sum_mu Delta_mu g_i phi_j``.  A step is

    W(t + 1) = (1 - decay(t)) W(t) + rate(t) gamma0 n Q_t,

with ``n = 1/N`` for a matrix as applied (``1/D`` towards data of dimension D) and 1 for a vector.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias

from sympy import Expr, Rational, S, Symbol, sign, sqrt
from sympy.core.function import AppliedUndef

from derive.calculus.intervals import FRACTION, NONNEGATIVE
from derive.calculus.symbols import expression, t
from derive.errors import NotDerived, ProgramError
from derive.program.rules import LinearSystem

A = Symbol("A", real=True)
"""The normalised negative gradient of one entry of a weight at the time of the step."""

MEAN, SQUARE, KEPT, SMALL = Rational(9, 10), Rational(999, 1000), Rational(99, 100), Rational(1, 10**8)
"""Usual shares that running means keep (of gradients, of squares, of RMSprop and Lion), and epsilon."""

States: TypeAlias = tuple[tuple[Symbol, Expr], ...]


@dataclass(frozen=True)
class Entrywise:
    """A rule that moves each entry by ``Q``, a function of the history of the gradient of this entry.

    Parameters
    ----------
    rate
        Learning rate, which may depend on :data:`derive.program.t`.
    Q
        Expression of :data:`derive.program.entrywise.A`, of the symbols of ``states`` and of t.
    states
        Pairs of a symbol and its next value, an expression of A, of the symbols of the states and of t.  All
        states start at zero, and move at once.
    before
        Whether Q reads the states before their step (Lion), and not after it (Adam).
    decay
        Share of the weight that is lost in a step; it may depend on t.
    name
        Name in printed programs.

    Raises
    ------
    ProgramError
        If Q depends on no gradient, a state is defined twice, or a parameter cannot be that number.

    Examples
    --------
    Descent whose steps are bounded, without and with a running mean of the gradient:

    >>> from sympy import symbols, tanh
    >>> eta, b, m = symbols("eta b m", positive=True)
    >>> Entrywise(eta, tanh(A)).Q
    tanh(A)
    >>> Entrywise(eta, tanh(m), ((m, b*m + (1 - b)*A),)).parameters == {eta, b}
    True
    """

    rate: Expr
    Q: Expr
    states: States = ()
    before: bool = False
    decay: Expr = S.Zero
    name: str = "entrywise rule"
    discrete: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for key in ("rate", "Q", "decay"):
            object.__setattr__(self, key, expression(getattr(self, key), f"{key} of {self.name}"))
        try:
            states = tuple((x, expression(e, f"state {x} of {self.name}")) for x, e in self.states)
        except (TypeError, ValueError) as error:
            told = f"states = {self.states!r} of {self.name}: must be pairs of a symbol and its next value"
            raise ProgramError(f"{told}, such as ((m, b*m + (1 - b)*A),)") from error
        object.__setattr__(self, "states", states)
        names = [x for x, _ in states]
        wrong = next(
            (x for x in names if not isinstance(x, Symbol) or x in (A, t) or names.count(x) > 1), None
        )
        if wrong is not None:
            raise ProgramError(
                f"states of {self.name}: {wrong} must be a symbol of its own, other than A and t"
            )
        if not self.Q.free_symbols & {A, *names}:
            raise ProgramError(f"Q = {self.Q} of {self.name} depends neither on the gradient A nor on states")
        NONNEGATIVE.require(self.rate, f"rate of {self.name}")
        NONNEGATIVE.require(self.decay, f"decay of {self.name}")

    @property
    def system(self) -> LinearSystem:
        """The equation of motion of the weight, whose input is its step Q and no longer its gradient."""
        return LinearSystem(1 - self.decay, self.rate)

    def memory(self, time: Expr, past: Expr) -> tuple[Expr, Expr]:
        """Return ``(m(t), k(t, s))``, the factors of W(0) and of the step Q made at ``past``."""
        found: tuple[Expr, Expr] = _system_of(self).solution("steps", time, past)
        return found

    def noise(self, time: Expr, past: Expr) -> Expr:
        """The covariance of the noise of training, which is zero: entrywise rules have no noise."""
        return S.Zero

    @property
    def coefficients(self) -> tuple[Expr, ...]:
        """The expressions of the rule: rate, law, decay and states."""
        return (self.rate, self.Q, self.decay, *(e for _, e in self.states))

    @property
    def parameters(self) -> frozenset[Symbol]:
        """The symbols of the rule that have one value for the whole of training."""
        found = frozenset(x for e in self.coefficients for x in e.free_symbols)
        return found - {A, t, *(x for x, _ in self.states)}

    @property
    def tables(self) -> frozenset[str]:
        """The names of functions of time in the rule, such as a schedule ``eta(t)``."""
        return frozenset(str(a.func) for e in self.coefficients for a in e.atoms(AppliedUndef))


@lru_cache(maxsize=256)
def _system_of(rule: Entrywise) -> LinearSystem:
    """The equation of motion of a rule, always the same object, which keeps its solution."""
    return rule.system


def sign_descent(rate: Expr, decay: Expr = S.Zero) -> Entrywise:
    """Return the rule that moves each entry by the sign of its gradient.

    >>> sign_descent(Symbol("eta")).Q
    sign(A)
    """
    return Entrywise(rate, sign(A), decay=decay, name="sign descent")


def adam(
    rate: Expr,
    beta1: Expr | float = MEAN,
    beta2: Expr | float = SQUARE,
    epsilon: Expr | float = SMALL,
) -> Entrywise:
    """Return Adam, with bias corrections of ``t + 1`` steps; ``epsilon`` is in units of the gradient A.

    Parameters
    ----------
    rate
        Learning rate.
    beta1, beta2
        Shares of the running means of A and of its square that are kept in a step.
    epsilon
        Number beside the root of the mean square.

    Returns
    -------
    Entrywise
        The rule ``Q = m/(1 - beta1^(t + 1)) / (sqrt(v/(1 - beta2^(t + 1))) + epsilon)``.

    Raises
    ------
    ProgramError
        If a share is not between 0 and 1, or epsilon is negative.

    Examples
    --------
    >>> rule = adam(Symbol("eta"), 0, 0, 0)
    >>> rule.Q, rule.states
    (m/sqrt(v), ((m, A), (v, A**2)))
    """
    return adamw(rate, S.Zero, beta1, beta2, epsilon, name="Adam")


def adamw(
    rate: Expr,
    decay: Expr | float,
    beta1: Expr | float = MEAN,
    beta2: Expr | float = SQUARE,
    epsilon: Expr | float = SMALL,
    *,
    name: str = "AdamW",
) -> Entrywise:
    """Return Adam with decoupled decay: ``decay`` is the share of a weight lost in a step, rate times decay.

    >>> adamw(Symbol("eta"), Symbol("lam", positive=True)).decay
    lam
    """
    b1, b2 = _share(beta1, "beta1", name), _share(beta2, "beta2", name)
    eps = expression(epsilon, f"epsilon of {name}")
    NONNEGATIVE.require(eps, f"epsilon of {name}")
    m, v = Symbol("m", real=True), Symbol("v", nonnegative=True)
    Q = m / (1 - b1 ** (t + 1)) / (sqrt(v / (1 - b2 ** (t + 1))) + eps)
    return Entrywise(
        rate, Q, ((m, b1 * m + (1 - b1) * A), (v, b2 * v + (1 - b2) * A**2)), decay=decay, name=name
    )


def rmsprop(
    rate: Expr,
    beta2: Expr | float = KEPT,
    epsilon: Expr | float = SMALL,
    decay: Expr | float = S.Zero,
) -> Entrywise:
    """Return RMSprop without bias correction; ``beta2`` is the share of the mean square that is kept.

    >>> rmsprop(Symbol("eta"), epsilon=0).Q
    A/sqrt(v)
    """
    b2, eps = _share(beta2, "beta2", "RMSprop"), expression(epsilon, "epsilon of RMSprop")
    NONNEGATIVE.require(eps, "epsilon of RMSprop")
    v = Symbol("v", nonnegative=True)
    Q = A / (sqrt(v) + eps)
    return Entrywise(rate, Q, ((v, b2 * v + (1 - b2) * A**2),), decay=decay, name="RMSprop")


def lion(
    rate: Expr,
    beta1: Expr | float = MEAN,
    beta2: Expr | float = KEPT,
    decay: Expr | float = S.Zero,
) -> Entrywise:
    """Return Lion: the sign of a mean of gradient and momentum, which reads the momentum before its step.

    >>> lion(Symbol("eta")).before
    True
    """
    b1, b2 = _share(beta1, "beta1", "Lion"), _share(beta2, "beta2", "Lion")
    m = Symbol("m", real=True)
    Q = sign(b1 * m + (1 - b1) * A)
    return Entrywise(rate, Q, ((m, b2 * m + (1 - b2) * A),), before=True, decay=decay, name="Lion")


def vectors_by_entries(program: Any) -> dict[str, str]:
    """Return the given vectors of a program whose entries matter, each with the weight that reads them.

    A matrix that moves by an entrywise rule does not see its inputs through their kernel alone: on rotated
    inputs another network is trained.

    >>> from derive.program import mlp
    >>> from derive.program.entrywise import sign_descent, vectors_by_entries
    >>> vectors_by_entries(mlp(2, rule=sign_descent(Symbol("eta")))), vectors_by_entries(mlp(2))
    ({'x': 'W0'}, {})
    """
    found = {}
    for w in program.trained():
        ends = {p.name for p in (getattr(w.initial, "rows", None), getattr(w.initial, "cols", None)) if p}
        if isinstance(w.rule, Entrywise):
            found.update({x.name: w.name for x in program.given if x.population.name in ends})
    return found


def require_linear_rules(weights: Iterable[Any], what: str) -> None:
    """Raise :class:`~derive.errors.NotDerived` if a trained weight moves by a rule that is not linear.

    Examples
    --------
    >>> from derive.program import mlp
    >>> from derive.program.entrywise import require_linear_rules, sign_descent
    >>> require_linear_rules(mlp(2, rule=sign_descent(Symbol("eta"))).trained(), "it")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    derive.errors.NotDerived: W0 moves by sign descent, which is not linear in the updates: ...
    """
    for w in weights:
        if isinstance(w.rule, Entrywise):
            raise NotDerived(
                f"{w.name} moves by {w.rule.name}, which is not linear in the updates: {what} takes descent, "
                "flow, momentum, decay, noise and LinearRule; sampled paths solve its theory (numerics.solve)"
            )


def _share(value: Expr | float, key: str, name: str) -> Expr:
    """A share that is kept in a step, below one."""
    found = expression(value, f"{key} of {name}")
    FRACTION.require(found, f"{key} of {name}")
    return found
