"""Entrywise training rules: sign descent, Adam, AdamW, RMSprop, Lion, and rules of users.

An entrywise rule moves each weight by a function of the history of its own gradient. The gradient of an entry
has the sign of descent and is normalised to order one at large width, ``A = -gamma0 N dloss/dM`` for a matrix
M with the factor that multiplies it in the forward pass, such as ``W/sqrt(N)``; with rows on a population of
N units ``A = sum_mu Delta_mu g_i phi_j``. A step is

    W(t + 1) = (1 - decay(t)) W(t) + rate(t) gamma0 n Q_t,

with ``n = 1/(a N)`` for a matrix that acts on a population of ratio a (``1/D`` on data of dimension D), and 1
for a vector. A :class:`.Parametrization` may state another factor in place of gamma0 (``scale``), factors of
the rate (``rate``, ``rates``), and other ratios in place of a (``fan_in``).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from sympy import Expr, Rational, S, Symbol, sign, sqrt

from derive.calculus.intervals import FRACTION, NONNEGATIVE, BoundedParameter, RealInterval
from derive.calculus.symbols import expression, t
from derive.errors import ProgramError
from derive.program.nonlinear import NonlinearRule

A = Symbol("A", real=True)
"""The normalised negative gradient of one entry of a weight at the time of the step."""

MEAN, SQUARE, KEPT, SMALL = Rational(9, 10), Rational(999, 1000), Rational(99, 100), Rational(1, 10**8)
"""Default fractions that the running means of gradients, of squares and of Lion keep, and default epsilon."""

States: TypeAlias = tuple[tuple[Symbol, Expr], ...]


@dataclass(frozen=True)
class Entrywise(NonlinearRule):
    """Training rule that moves each entry by ``Q``, a function of the history of the gradient of this entry.

    Parameters
    ----------
    rate : Expr
        Learning rate, which may depend on :data:`derive.program.t`.
    Q : Expr
        Expression of :data:`derive.program.entrywise.A`, of the symbols of ``states`` and of t.
    states : tuple of (Symbol, Expr)
        Pairs of a symbol and its next value, an expression of A, of the symbols of the states and of t. All
        states start at zero, and are updated simultaneously.
    before : bool
        Whether Q uses the states before their update (Lion), not after it (Adam).
    decay : Expr
        Fraction of the weight that is lost in a step; it may depend on t.
    name : str
        Name in printed programs.
    memory_tables : tuple, optional
        For a decay that depends on the time, so that the memory has no closed form: a constant rate, the name
        of the table m(t), the factor of the initial weight in the weight at t, and the name of the table
        k(t, s), the factor of the step at s divided by this rate.
    bounds : tuple of BoundedParameter, optional
        Parameters in ``Q`` and ``states`` that must be in an interval at all times, such as beta1 of Adam.

    Raises
    ------
    ProgramError
        If a value is not a number or expression, Q depends neither on the gradient nor on a state, ``states``
        are not pairs of a symbol and its next value, a state is defined twice or is one of the symbols A and
        t, the rate or the decay is negative, or a parameter in ``bounds`` is out of its interval.

    Examples
    --------
    Descent with bounded steps, without and with a running mean of the gradient:

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
    memory_tables: tuple[Expr, str, str] | None = field(default=None, repr=False)
    bounds: tuple[BoundedParameter, ...] = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        """Convert parameters to expressions; raise ProgramError for invalid ones.

        Refused are values other than numbers and expressions, states that are not pairs (symbol, next value),
        states that are defined twice or are the symbol A or t, a step Q that depends neither on the gradient
        nor on a state, and parameters outside of their intervals, such as a negative rate or decay.
        """
        for key in ("rate", "Q", "decay"):
            object.__setattr__(self, key, expression(getattr(self, key), f"{key} of {self.name}"))
        try:
            states = tuple((x, expression(e, f"state {x} of {self.name}")) for x, e in self.states)
        except (TypeError, ValueError) as error:
            raise ProgramError(
                f"states = {self.states!r} of {self.name}: must be pairs of a symbol and its next value (a "
                "number or a SymPy expression), such as ((m, b*m + (1 - b)*A),)"
            ) from error
        object.__setattr__(self, "states", states)
        names = [x for x, _ in states]
        wrong = next(
            (x for x in names if not isinstance(x, Symbol) or x in (A, t) or names.count(x) > 1), None
        )
        if wrong is not None:
            raise ProgramError(
                f"states of {self.name}: {wrong} cannot be a state; states must be different symbols, other "
                "than A and t"
            )
        if not self.Q.free_symbols & {A, *names}:
            raise ProgramError(
                f"Q = {self.Q} of {self.name} depends neither on the gradient A nor on states: write Q in "
                "the symbol A of derive.program.entrywise, or in the symbols of states"
            )
        for x in self.bounded:
            x.require()

    @property
    def law(self) -> tuple[Expr, ...]:
        """The step Q, and the next value of each state."""
        return (self.Q, *(e for _, e in self.states))

    def of_gradient(self, factor: Expr) -> Entrywise:
        """Return the rule with ``factor * A`` in place of the gradient A, such as ``A/P`` for a mean loss.

        Parameters
        ----------
        factor : Expr
            The factor.

        Returns
        -------
        Entrywise
            The rule in terms of the multiplied gradient.

        Examples
        --------
        >>> sign_descent(Symbol("eta")).of_gradient(Symbol("a", positive=True)).Q
        sign(A)
        """
        scaled = {A: factor * A}
        states = tuple((x, e.xreplace(scaled)) for x, e in self.states)
        return replace(self, Q=self.Q.xreplace(scaled), states=states)

    @property
    def inner(self) -> frozenset[Symbol]:
        """The symbols in the step that are not parameters: A, the gradient of an entry, and the states."""
        return frozenset({A, *(x for x, _ in self.states)})


def sign_descent(rate: Expr, decay: Expr = S.Zero) -> Entrywise:
    """Return the rule whose step Q is the sign of the normalised negative gradient A of each entry.

    Parameters
    ----------
    rate : Expr
        Learning rate.
    decay : Expr
        Fraction of a weight lost in a step.

    Returns
    -------
    Entrywise
        The rule.

    Raises
    ------
    ProgramError
        If the rate or the decay is negative.

    Examples
    --------
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
    rate : Expr
        Learning rate.
    beta1, beta2 : Expr or float
        Fractions of the running means of A and of its square that a step keeps, by default 0.9 and 0.999.
    epsilon : Expr or float
        Number added to the root of the mean square, by default 1e-8.

    Returns
    -------
    Entrywise
        The rule ``Q = m/(1 - beta1^(t + 1)) / (sqrt(v/(1 - beta2^(t + 1))) + epsilon)``, with the running
        means m of A and v of A^2 after their update.

    Raises
    ------
    ProgramError
        If a fraction is not at least 0 and below 1, or the rate or epsilon is negative.

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
    """Return Adam with decoupled weight decay.

    Parameters
    ----------
    rate : Expr
        Learning rate.
    decay : Expr or float
        Fraction of a weight lost in a step: learning rate times weight decay.
    beta1, beta2, epsilon : Expr or float
        As for :func:`adam`.
    name : str
        Name in printed programs and messages.

    Returns
    -------
    Entrywise
        The rule.

    Raises
    ------
    ProgramError
        As for :func:`adam`, or if the decay is negative.

    Examples
    --------
    >>> adamw(Symbol("eta"), Symbol("lam", positive=True)).decay
    lam
    """
    bounds = _bounds(name, beta1=(beta1, FRACTION), beta2=(beta2, FRACTION), epsilon=(epsilon, NONNEGATIVE))
    b1, b2, eps = (x.value for x in bounds)
    m, v = Symbol("m", real=True), Symbol("v", nonnegative=True)
    Q = m / (1 - b1 ** (t + 1)) / (sqrt(v / (1 - b2 ** (t + 1))) + eps)
    states = ((m, b1 * m + (1 - b1) * A), (v, b2 * v + (1 - b2) * A**2))
    return Entrywise(rate, Q, states, decay=decay, name=name, bounds=bounds)


def rmsprop(
    rate: Expr,
    beta2: Expr | float = SQUARE,
    epsilon: Expr | float = SMALL,
    decay: Expr | float = S.Zero,
) -> Entrywise:
    """Return RMSprop without bias correction.

    Parameters
    ----------
    rate : Expr
        Learning rate.
    beta2 : Expr or float
        Fraction of the mean square v that a step keeps, by default 0.999.
    epsilon : Expr or float
        Number added to the root of the mean square, by default 1e-8.
    decay : Expr or float
        Fraction of a weight lost in a step.

    Returns
    -------
    Entrywise
        The rule ``Q = A/(sqrt(v) + epsilon)``, with v after its update.

    Raises
    ------
    ProgramError
        If ``beta2`` is not at least 0 and below 1, or if the rate, epsilon or decay is negative.

    Examples
    --------
    >>> rmsprop(Symbol("eta"), epsilon=0).Q
    A/sqrt(v)
    """
    bounds = _bounds("RMSprop", beta2=(beta2, FRACTION), epsilon=(epsilon, NONNEGATIVE))
    b2, eps = (x.value for x in bounds)
    v = Symbol("v", nonnegative=True)
    Q = A / (sqrt(v) + eps)
    states = ((v, b2 * v + (1 - b2) * A**2),)
    return Entrywise(rate, Q, states, decay=decay, name="RMSprop", bounds=bounds)


def lion(
    rate: Expr,
    beta1: Expr | float = MEAN,
    beta2: Expr | float = KEPT,
    decay: Expr | float = S.Zero,
) -> Entrywise:
    """Return Lion: the sign of a mean of gradient and momentum, with the momentum before its update.

    Parameters
    ----------
    rate : Expr
        Learning rate.
    beta1 : Expr or float
        Fraction of the momentum m in the mean, by default 0.9.
    beta2 : Expr or float
        Fraction of the momentum that a step keeps, by default 0.99.
    decay : Expr or float
        Fraction of a weight lost in a step.

    Returns
    -------
    Entrywise
        The rule ``Q = sign(beta1 m + (1 - beta1) A)``, with the momentum m, the running mean of A.

    Raises
    ------
    ProgramError
        If a fraction is not at least 0 and below 1, or if the rate or decay is negative.

    Examples
    --------
    >>> lion(Symbol("eta")).before
    True
    """
    bounds = _bounds("Lion", beta1=(beta1, FRACTION), beta2=(beta2, FRACTION))
    b1, b2 = (x.value for x in bounds)
    m = Symbol("m", real=True)
    Q = sign(b1 * m + (1 - b1) * A)
    states = ((m, b2 * m + (1 - b2) * A),)
    return Entrywise(rate, Q, states, before=True, decay=decay, name="Lion", bounds=bounds)


def vectors_by_entries(program: Any) -> dict[str, str]:
    """Return the given vectors on the rows or columns of a matrix with an entrywise rule.

    The result maps the name of each such input vector to the name of the matrix.
    An entrywise rule, such as sign descent or Adam, is nonlinear in the gradient of each single weight. Its
    steps depend on the entries of the input vectors, not only on their inner products: with rotated inputs
    the network is trained differently. A vector on the rows or columns of several such matrices is listed
    with the last of them. The result is empty if there is no such vector.

    >>> from derive.program import mlp
    >>> from derive.program.entrywise import sign_descent, vectors_by_entries
    >>> vectors_by_entries(mlp(2, rule=sign_descent(Symbol("eta")))), vectors_by_entries(mlp(2))
    ({'x': 'W0'}, {})
    """
    weights_by_vector = {}
    for w in program.trained():
        populations = {
            p.name for p in (getattr(w.initial, "rows", None), getattr(w.initial, "cols", None)) if p
        }
        if isinstance(w.rule, Entrywise):
            weights_by_vector.update(
                {x.name: w.name for x in program.given if x.population.name in populations}
            )
    return weights_by_vector


def _bounds(rule: str, **parameters: tuple[Expr | float, RealInterval]) -> tuple[BoundedParameter, ...]:
    """Return parameters of the rule with this name, each given as a value and its interval.

    Raise ProgramError for a number outside of its interval. An expression with symbols passes, unless it is
    infinite or complex, or a symbol or product that is known to be outside of the interval.
    """
    bounds = []
    for key, (value, interval) in parameters.items():
        label = f"{key} of {rule}"
        bounds.append(BoundedParameter(label, expression(value, label), interval))
        bounds[-1].require()
    return tuple(bounds)
