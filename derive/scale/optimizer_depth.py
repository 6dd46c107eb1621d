"""Powers of the depth for each optimizer: rates, epsilon and decay of weights in residual branches.

Branches are multiplied by ``L^-alpha``, ``alpha >= 1/2``. The largest learning rate at which outputs stay of
order one follows from the derived theory of a residual network (:mod:`derive.scale.depth`) and from the
degree of the rule in the gradient, which has the factor of its branch. The powers complement those of the
width (:mod:`derive.scale.optimizer_powers`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sympy import Eq, Expr, Max, S, Symbol

from derive.calculus.symbols import L, exact
from derive.depth.balance import alpha, gamma, power
from derive.depth.infinite import WIDTH_FIRST
from derive.errors import NotApplicable
from derive.program.entrywise import Entrywise
from derive.scale.depth import DepthParametrization, branch_factor, c
from derive.scale.rule_degrees import rule_degrees, step_powers
from derive.show.conditions import ConditionalResult
from derive.show.latex import aligned_latex


@dataclass(frozen=True, repr=False)
class BranchPowers(ConditionalResult):
    """Powers of L for the weights of branches, for ``alpha >= 1/2``; see :func:`depth_powers`.

    Every attribute except ``rule`` is the p in ``L^p``, to which the quantity that it names is proportional.

    Attributes
    ----------
    rule
        Training rule.
    gradient
        Gradient of the loss with respect to a weight of a branch, divided by that of a weight of the stream.
    rate
        Learning rate.
    epsilon
        Parameter in units of the gradient; None for rules without one.
    decay
        Decoupled weight decay, as in ``W <- (1 - rate decay) W``; None for rules without decay.
    size
        Preactivations of a branch after a step. If they are of order one, a normalisation of the branch's
        input divides by numbers of order one.
    inside
        Change of the preactivations of a branch by the updates of its own weights.
    start
        Part of the stream that comes from the initial weights of all branches.
    """

    rule: Entrywise
    gradient: Expr
    rate: Expr
    epsilon: Expr | None
    decay: Expr | None
    size: Expr
    inside: Expr
    start: Expr

    @property
    def powers(self) -> dict[str, Expr | None]:
        """Exponents of the depth L by name of the quantity: gradient, rate, epsilon, decay and others.

        The others are size, inside and start; all names are those of the attributes. None stands for a
        quantity that the rule does not have.
        """
        return {
            n: getattr(self, n) for n in ("gradient", "rate", "epsilon", "decay", "size", "inside", "start")
        }

    def at(self, value: Any) -> BranchPowers:
        """Return the powers at a number for alpha.

        Parameters
        ----------
        value
            A number, at least 1/2, or text of one such as ``"2/3"``.

        Returns
        -------
        BranchPowers
            The same powers as numbers.

        Raises
        ------
        NotApplicable
            If alpha is a symbol or infinite, or below 1/2: the stream then grows with the depth before
            training.
        ValueError
            For text that is not a number, and for nan.
        """
        number = exact("alpha", value)
        if not (number.is_number and number.is_finite and number.is_real):
            raise NotApplicable(f"alpha = {value}: must be a finite number, at least 1/2, such as 1/2 or 1")
        if number < S.Half:
            raise NotApplicable(
                f"alpha = {value}: must be at least 1/2, because for smaller alpha the fields of the "
                "residual stream grow with the depth"
            )
        values = {alpha: number}
        powers: dict[str, Any] = {
            n: None if e is None else e.xreplace(values) for n, e in self.powers.items()
        }
        return replace(self, **powers)

    def conditions(self) -> tuple[str, ...]:
        """Return the derived and the assumed statements about the powers of the depth L, as sentences."""
        return (
            WIDTH_FIRST,
            "derived: outputs move by order one, from powers of L in the theory of linear residual layers",
            "derived: the degree of Q in the gradient, which has the factor L^-alpha of its branch",
            "assumed: a step Q is odd in the gradient, so that updates of all branches add up",
            "assumed: decay removes a fraction of order one of a weight in a step, at any depth",
            f"derived: preactivations are of order L^({self.size}); if this is of order one, layers with "
            "normalisation have the same powers",
        )

    def _repr_latex_(self) -> str:
        powers = ((n, e) for n, e in self.powers.items() if e is not None)
        return aligned_latex(Eq(Symbol(rf"\mathrm{{{n}}}"), L**e, evaluate=False) for n, e in powers)


def depth_powers(network: DepthParametrization, rule: Entrywise) -> BranchPowers:
    """Return the powers of the depth in the rates of a rule that keep outputs of order one.

    Parameters
    ----------
    network
        Derived powers of a residual network.
    rule
        An entrywise rule; gradient descent is ``Q = A``.

    Returns
    -------
    BranchPowers
        Powers of L in terms of alpha.

    Raises
    ------
    NotApplicable
        If the rule is not entrywise, is not odd in the gradient, or has no degree in it.

    Examples
    --------
    >>> from derive.depth.balance import alpha, gamma
    >>> from derive.program import depth_program
    >>> from derive.scale.optimizer_powers import OPTIMIZERS
    >>> from derive.theory import mean_field
    >>> network = DepthParametrization(mean_field(depth_program(alpha=alpha, gamma=gamma)))
    >>> for name in ("sgd", "adamw"):
    ...     found = depth_powers(network, OPTIMIZERS[name])
    ...     print(found.rate, found.epsilon, found.decay, found.inside)
    2*alpha - 1 None 1 - 2*alpha alpha - 1
    alpha - 1 -alpha 1 - alpha alpha - 1
    """
    rate, units = network.largest_rate(rule), [*rule_degrees(rule).parameters.values()]
    (size, _) = power(branch_factor(network.theory.program))
    entering = network.update_power(rule).xreplace({c: rate})
    return BranchPowers(
        rule,
        size,
        -rate,
        size if units else None,
        None if rule.decay == 0 else rate,
        _at_rate(network.exponents.preactivation, entering),
        _at_rate(network.exponents.update, entering),
        network.exponents.noise,
    )


def _at_rate(exponent: Expr, entering: Expr) -> Expr:
    """Return an exponent of L, or a maximum of exponents, with the value ``entering`` for gamma.

    gamma is the exponent with which updates change the preactivation h of a layer, by ``L^-gamma``.
    """
    terms = exponent.args if isinstance(exponent, Max) else (exponent,)
    return Max(*(x.xreplace({gamma: entering}).expand() for x in terms))


CONSTANT_EPSILON = "epsilon the same at all depths"
CONSTANT_RATE = "learning rate the same at all depths"
CONSTANT_DECAY = "weight decay the same at all depths"


def depth_faults(network: DepthParametrization, rule: Entrywise, value: Any) -> dict[str, str]:
    """Return the effects of learning rates, epsilons and decays that ignore the depth.

    Parameters
    ----------
    network : DepthParametrization
        Derived powers of a residual network.
    rule : Entrywise
        Entrywise rule.
    value : Any
        Number alpha, at least 1/2.

    Returns
    -------
    dict[str, str]
        One sentence for each of epsilon, learning rate and decay that the rule has: the effect if this
        quantity does not depend on the depth and the others have the right powers.

    Raises
    ------
    NotApplicable
        As for :func:`depth_powers`, and if ``value`` is below 1/2 or no finite number.

    Examples
    --------
    >>> from derive.depth.balance import alpha, gamma
    >>> from derive.program import depth_program
    >>> from derive.scale.optimizer_powers import OPTIMIZERS
    >>> from derive.theory import mean_field
    >>> network = DepthParametrization(mean_field(depth_program(alpha=alpha, gamma=gamma)))
    >>> found = depth_faults(network, OPTIMIZERS["adam"], S.Half)
    >>> for change, words in found.items(): print(change, "-", words)
    epsilon the same at all depths - branches freeze: outputs move by L^(-1/2)
    learning rate the same at all depths - outputs blow up: they move by L^(1/2)
    """
    powers = depth_powers(network, rule).at(value)
    output = network.exponents.output.xreplace({alpha: exact("alpha", value)})
    rates = {CONSTANT_RATE: (S.Zero, powers.epsilon)}
    if powers.epsilon is not None:
        rates = {CONSTANT_EPSILON: (powers.rate, S.Zero)} | rates
    effects = {}
    for change, (rate, small) in rates.items():
        entering = -rate - _step(rule, powers.gradient, small)
        effects[change] = _moved(output.xreplace({gamma: entering}).expand())
    if powers.decay is not None:
        effects[CONSTANT_DECAY] = _lost(powers.rate)
    return effects


def _step(rule: Entrywise, gradient: Expr, small: Expr | None) -> Expr:
    """Return the exponent x of the first step Q of an entrywise rule, ``Q ~ L^x``, without the learning rate.

    ``gradient`` is the exponent of L in the gradient. ``small`` is the exponent of L in those parameters of
    the rule that are measured in units of the gradient, such as epsilon. None means that they do not depend
    on L, as the exponent 0 does.
    """
    units = {x: x * L ** (p * (small or S.Zero)) for x, p in rule_degrees(rule).parameters.items()}
    states = tuple((x, e.xreplace(units)) for x, e in rule.states)
    (step,) = step_powers(replace(rule, Q=rule.Q.xreplace(units), states=states), [gradient], _power)
    assert step is not None
    return step


def _moved(size: Expr) -> str:
    """Return a sentence about outputs that change by ``L^size`` in a step.

    It states that branches freeze (``size`` below 0), that outputs diverge (above 0), or that nothing is
    wrong (0).
    """
    if size == 0:
        return "as before: outputs move by order one"
    how = "branches freeze: outputs" if size < 0 else "outputs blow up: they"
    return f"{how} move by L^({size})"


def _lost(share: Expr) -> str:
    """Return a sentence about weight decay that removes the fraction ``L^share`` of a weight in a step.

    It states that decay vanishes (``share`` below 0), that weights diverge (above 0), or that nothing is
    wrong (0).
    """
    if share == 0:
        return "as before: decay removes a fraction of order one of a weight in a step"
    if share < 0:
        return f"decay vanishes: it removes the fraction L^({share}) of a weight in a step"
    return f"weights blow up: decay subtracts L^({share}) times the weight in a step"


def _power(e: Expr) -> Expr:
    """Return the exponent x of ``L^x`` in a product of numbers and powers of the depth L, such as a rate."""
    return power(e)[0]
