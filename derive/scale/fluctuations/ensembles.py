"""Ensembles of finite networks: bias and variance of the loss, and the best number and width of networks.

From the loss of a program the module derives its mean for the average of E networks of N units at order 1/N:
the shift of the mean output is the same for every E, and the variance is divided by E. At a fixed cost ``E
N^p`` this gives the best number of networks, and the condition under which several narrow networks beat a
wide one.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Eq, Expr, Gt, Rational, S, Symbol, factor, solve, sympify
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational

from derive.calculus.symbols import converted
from derive.errors import NotApplicable, require_integer, require_type
from derive.program.networks.random_data import N
from derive.program.program import Program
from derive.scale.fluctuations.lazy import LazyFluctuations, lamda_k
from derive.show.conditions import ConditionalResult
from derive.show.latex import aligned_latex

E, cost = Symbol("E", positive=True), Symbol("C", positive=True)
"""Number of networks, and total cost."""
shift, variance = Symbol("m", real=True), Symbol("V", positive=True)
"""N times the shift of the mean output, and N times the variance of the output."""
bias, spread = Symbol("a", positive=True), Symbol("b", positive=True)
"""Coefficients of bias and variance in the loss: ``a/N^q`` and ``b/(N E)``."""


@dataclass(frozen=True, repr=False)
class BestEnsemble(ConditionalResult):
    """Best number of networks at a fixed cost.

    Parameters
    ----------
    power : Expr
        Power p of the width in the cost ``E N^p`` of E networks.
    order : int
        Power q of 1/N in the loss ``a/N^q + b/(N E)``.
    members : Expr
        Best number of networks, in terms of a, b and the cost C. It is 0 for p = 1, where the variance
        depends on the cost alone, so that one network of the largest width is best.
    width : Expr
        Width of each of these networks; infinite for p = 1.
    """

    power: Expr
    order: int
    members: Expr
    width: Expr

    def beats(self, a: Expr = bias, b: Expr = spread, total: Expr = cost) -> Relational | bool:
        """Return the condition under which the best number of networks at a fixed cost is above one.

        Parameters
        ----------
        a : Expr, optional
            Coefficient of the bias ``a/N^q`` of the loss, where N is the width.
        b : Expr, optional
            Coefficient of the variance ``b/(N E)`` for E networks.
        total : Expr, optional
            Total cost of all networks.

        Returns
        -------
        Relational | bool
            Condition; false for the power 1 of the cost, where one network is best.
        """
        return Gt(self.members.subs({bias: a, spread: b, cost: total}), 1)

    def statement(self) -> str:
        """Return the condition under which several networks beat one of the same cost, as a sentence.

        Returns
        -------
        str
            The sentence. If the cost is proportional to the width, it states that one network is best.
        """
        if self.members == 0:
            return "one wide network is best, if the bias increases the loss"
        return f"several networks are better than one of the same cost if {self.members} > 1"

    def conditions(self) -> tuple[str, ...]:
        """Return the derived and assumed statements about the best number of networks.

        Returns
        -------
        tuple[str, ...]
            Sentences that begin with "derived: " or "assumed: ".
        """
        return (
            f"derived: the minimum of {bias / N**self.order} + {spread / N / E} at a fixed cost "
            f"{E * N**self.power}",
            "assumed: the bias increases the loss, a > 0; otherwise the narrowest networks for which order "
            "1/N is sufficient are best",
            "assumed: numbers of networks and widths are treated as continuous, and networks are independent",
        )

    def _repr_latex_(self) -> str:
        pairs = ((E, self.members), (N, self.width))
        return aligned_latex(Eq(x, e, evaluate=False) for x, e in pairs)


@dataclass(frozen=True, repr=False)
class EnsembleLaw(ConditionalResult):
    """Mean loss of the average output of E networks of N units.

    Parameters
    ----------
    loss : Expr
        Loss of a sample at infinite width, as a function of the output f and the target y.
    bias : Expr
        Coefficient of 1/N from the shift of the mean output, in terms of ``m``, which is N times the shift.
    spread : Expr
        Coefficient of ``1/(N E)`` from the variance of the output of one network, in terms of ``V``, which is
        N times the variance.
    next_bias : Expr
        Coefficient of 1/N^2 that is quadratic in the shift. If the slope of the loss vanishes, the shift has
        no effect of lower order.
    """

    loss: Expr
    bias: Expr
    spread: Expr
    next_bias: Expr

    def expected(self) -> Expr:
        """Return the mean loss of the average of E networks of N units, to order 1/N.

        Returns
        -------
        Expr
            Mean loss.
        """
        return self.loss + self.bias / N + self.spread / (N * E)

    def conditions(self) -> tuple[str, ...]:
        """Return the derived and assumed statements about the mean loss of an ensemble.

        Returns
        -------
        tuple[str, ...]
            Sentences that begin with "derived: " or "assumed: ".
        """
        return (
            "derived: the second-order expansion of the loss in the output; the variance is divided by the "
            "number of networks, the shift of the mean is not",
            "assumed: order 1/N is sufficient for the output of each network",
        )

    def _repr_latex_(self) -> str:
        return aligned_latex([Eq(Symbol("loss"), self.expected(), evaluate=False)])

    def of_lazy(self, lazy: LazyFluctuations) -> EnsembleLaw:
        """Return the law of lazy networks with centred outputs and one sample.

        Parameters
        ----------
        lazy : LazyFluctuations
            Lazy fluctuations.

        Returns
        -------
        EnsembleLaw
            Law with their shift and variance, in terms of time, the target ``y``, the mean initial kernel
            ``lamda_k`` and ``V_K``, which is N times its variance, and of a learning rate that is a symbol.

        Raises
        ------
        NotApplicable
            If outputs are not centred, because initial outputs then shift the mean, which has no closed form.
        """
        if lazy.initial != 0:
            raise NotApplicable(
                "the shift of the mean output of lazy networks has a closed form only for centred outputs: "
                "give centred(program)"
            )
        V_K, y = Symbol("V_K", positive=True), Symbol("y", real=True)
        decay = lazy.decay.subs(lazy.program.roles.samples, 1)
        values = {
            shift: -y * decay.diff(lamda_k, 2) * V_K / 2,
            variance: (y * decay.diff(lamda_k)) ** 2 * V_K,
        }
        values |= {_output: y - y * decay, _target: y}
        terms = (self.loss, self.bias, self.spread, self.next_bias)
        loss, a, b, following = (factor(x.subs(values, simultaneous=True)) for x in terms)
        return EnsembleLaw(loss, a, b, following)

    def best(self, power: Expr | int = 2) -> BestEnsemble:
        """Return the best number of networks at a fixed cost ``E N^power``.

        Parameters
        ----------
        power : Expr | int, optional
            Power of the width in the cost of a network.

        Returns
        -------
        BestEnsemble
            Best ensemble, in terms of symbols a and b for the coefficients of bias and variance. If the bias
            vanishes at order 1/N, because the slope of the loss is zero, it is taken at order 1/N^2.

        Raises
        ------
        NotApplicable
            If ``power`` is not a rational number, or is below 1.
        """
        return best_ensemble(power, 2 if self.bias == 0 else 1)


_output, _target = Symbol("f", real=True), Symbol("y", real=True)


def ensemble_law(program: Program) -> EnsembleLaw:
    """Return the mean loss of the average output of several networks.

    Parameters
    ----------
    program : Program
        Program with a loss of one output.

    Returns
    -------
    EnsembleLaw
        Mean loss, from the second-order expansion of the loss of one sample in the output. An initial output
        in the loss (centred outputs) is set to zero.

    Raises
    ------
    NotApplicable
        If the program states no loss, or does not have exactly one output with an error signal.

    Examples
    --------
    >>> from derive.program import mlp
    >>> law = ensemble_law(mlp(2, "tanh"))
    >>> print(law.bias, "|", law.spread)
    -m*(-f + y) | V/2
    """
    require_type(program, Program, "ensemble_law", "a program")
    output = program.roles.output
    if program.loss is None or output is None:
        raise NotApplicable(
            "the program must have a loss and exactly one trained output, a number such as f(mu, t): give a "
            "program with a loss of an output, such as mlp()"
        )
    loss = sympify(program.loss)
    first = {a: S.Zero for a in loss.atoms(AppliedUndef) if a.func == output.func and a != output}
    names = {a: _target for a in loss.atoms(AppliedUndef) if str(a.func) == program.roles.target}
    loss = loss.xreplace({**first, **names, output: _output})
    slope, curvature = loss.diff(_output), loss.diff(_output, 2)
    return EnsembleLaw(
        factor(loss),
        factor(slope * shift),
        factor(curvature * variance / 2),
        factor(curvature * shift**2 / 2),
    )


def best_ensemble(power: Expr | int = 2, order: int = 1) -> BestEnsemble:
    """Return the number and width of networks with the smallest loss ``a/N^q + b/(N E)`` at a fixed cost.

    Parameters
    ----------
    power : Expr | int, optional
        Power p of the width in the cost ``E N^p`` of E networks: 2 for operations, 1 for units. It is a
        rational number, such as ``Rational(3, 2)``.
    order : int, optional
        Power q of 1/N in the bias: 1, or 2 if the slope of the loss vanishes.

    Returns
    -------
    BestEnsemble
        Best ensemble.

    Raises
    ------
    NotApplicable
        If ``power`` is not a rational number (a float is not), or is below 1.
    ValueError
        If ``order`` is neither 1 nor 2.

    Examples
    --------
    >>> best_ensemble().members, best_ensemble().width
    (b/a, sqrt(C)*sqrt(a)/sqrt(b))
    >>> best_ensemble(1).statement()
    'one wide network is best, if the bias increases the loss'
    """
    order = require_integer("order", order, 1, 2)
    p = converted(power)
    if not p.is_Rational or p < 1:
        raise NotApplicable(
            f"power = {p}: the power of the width in the cost of a network must be a rational number of at "
            "least 1, such as 2 or Rational(3, 2)"
        )
    loss = bias / N**order + spread * N ** (p - 1) / cost  # bias, and variance for cost/N^p networks
    slope = (loss.diff(N) * N ** (order + 1)).expand()
    if not slope.has(N):
        return BestEnsemble(p, order, S.Zero, S.Infinity)
    x = Symbol("x", positive=True)  # for N^(p - 1 + order), in which the slope is linear
    (solution,) = solve(slope.subs(N, x ** (1 / (p - 1 + order))).expand(), x)
    width = solution ** (Rational(1) / (p - 1 + order))
    return BestEnsemble(p, order, factor(cost / width**p), width)
