"""Fluctuations of lazy networks: effect of initial outputs and initial tangent kernels on errors.

From the covariances at the start of training the module derives N times the covariance (N Cov) of errors at
all times, as ``gamma0 -> 0``, where each network of N units is trained by its own tangent kernel. In the
eigenbasis of the kernel of infinite width a change of the entry ``K_kl`` of the kernel changes error k by
``-E_kl(t)`` times the target l. The module is used for the width from which order 1/N is sufficient, and for
the loss of ensembles.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from sympy import (
    Eq,
    Expr,
    Function,
    Piecewise,
    S,
    Sum,
    Symbol,
    cancel,
    exp,
    factor,
    integrate,
    powsimp,
    simplify,
    summation,
)
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import P, mu, s, t
from derive.errors import NotApplicable, require_type
from derive.program.nonlinear import require_linear_rules
from derive.program.program import Program
from derive.scale.fluctuations.initial import InitialCovariance, InitialMean, initial_covariance, initial_mean
from derive.show.conditions import ConditionalResult
from derive.show.latex import aligned_latex

lamda_k, lamda_l = Symbol("lamda_k", positive=True), Symbol("lamda_l", positive=True)
"""Eigenvalues of the tangent kernel at infinite width."""
k, mode, k_, mode_ = (Symbol(x, integer=True, positive=True) for x in ("k", "l", "k_", "l_"))
"""Eigenvectors of the tangent kernel."""


@dataclass(frozen=True, repr=False)
class LazyFluctuations(ConditionalResult):
    """N times the covariance of errors of lazy networks, to leading order in 1/N.

    Parameters
    ----------
    program : Program
        Network and its training, in plain steps or in flow.
    decay : Expr
        Error at time t along an eigenvector of the kernel, divided by its initial value.
    initial : Expr
        Derivative of the error at time t with respect to the initial output; zero for centred outputs.
    response : Expr
        ``E_kl(t)``: minus the derivative of the error of mode k at time t with respect to the entry ``K_kl``
        of the kernel, divided by the target of mode l. Modes are eigenvectors of the kernel of infinite
        width, with eigenvalues ``lamda_k`` and ``lamda_l``; equal ones are a separate case.
    """

    program: Program
    decay: Expr
    initial: Expr
    response: Expr

    def conditions(self) -> tuple[str, ...]:
        """Return the derived and assumed statements about the covariance of errors.

        Returns
        -------
        tuple[str, ...]
            Sentences that begin with "derived: " or "assumed: ".
        """
        sentences = (
            "derived: initial kernels and outputs and their covariances; errors are linear in both to "
            "leading order in 1/N",
            "assumed: gamma0 -> 0, so that each network is trained by its own initial tangent kernel",
        )
        if self.initial == 0:
            return sentences
        return (
            *sentences,
            "assumed: the part from the initial output is given to leading order, gamma0^-2; its next order, "
            "gamma0^0, is as large as the part from the kernel and comes from changes of the features",
        )

    def _repr_latex_(self) -> str:
        E = Function("E")(k, mode, t)
        return aligned_latex(
            [
                Eq(E, self.response, evaluate=False),
                Eq(Function("C")(k, k_, t, s), self.in_modes(), evaluate=False),
            ]
        )

    def in_modes(self) -> Expr:
        """Return N Cov of the errors of modes k at time t and ``k_`` at time s, as a sum over modes.

        Modes are eigenvectors of the tangent kernel of infinite width.

        Returns
        -------
        Expr
            Expression in ``C_f`` and ``kappa``, which are N Cov of outputs and of entries of the kernel at
            the start, in the targets ``y`` of the modes, and in the responses ``E`` (:attr:`response`).
        """
        E, y, kappa, C = (Function(x) for x in ("E", "y", "kappa", "C_f"))
        first = {lamda_k: Function("lamda")(k)}
        second = {lamda_k: Function("lamda")(k_), t: s}
        from_outputs = self.initial.xreplace(first) * self.initial.xreplace(second) * C(k, k_)
        body = kappa(k, mode, k_, mode_) * y(mode) * y(mode_) * E(k, mode, t) * E(k_, mode_, s)
        return from_outputs + Sum(body, (mode, 1, P), (mode_, 1, P))

    @cached_property
    def kernel(self) -> InitialMean:
        """Initial tangent kernel of one sample with itself, at infinite width."""
        return initial_mean(self.program, ("K", mu, mu))

    @cached_property
    def kernel_covariance(self) -> InitialCovariance:
        """N times the initial variance of the tangent kernel of one sample."""
        return initial_covariance(self.program, ("K", mu, mu))

    @cached_property
    def output_covariance(self) -> InitialCovariance:
        """N times the initial variance of the output of one sample."""
        return initial_covariance(self.program, (_output(self.program), mu))

    def one_sample(self, output: Expr | None = None, variance: Expr | None = None) -> Expr:
        """Return N times the variance of the error of one sample.

        Parameters
        ----------
        output : Expr | None, optional
            N times the initial variance of the output; the symbol ``V_f`` by default.
        variance : Expr | None, optional
            N times the initial variance of the kernel; the symbol ``V_K`` by default.

        Returns
        -------
        Expr
            Function of the time, the target y, the kernel ``lamda_k`` and both initial variances; in steps
            also of the learning rate.

        Examples
        --------
        >>> from derive.program import mlp
        >>> print(lazy_fluctuations(mlp(rule="flow")).one_sample())
        (V_K*t**2*y**2 + V_f)*exp(-2*lamda_k*t)
        """
        V_f = Symbol("V_f", positive=True) if output is None else output
        V_K = Symbol("V_K", positive=True) if variance is None else variance
        y, same = Symbol("y", real=True), self.same_mode
        same, initial = (x.subs(self.program.roles.samples, 1) for x in (same, self.initial))
        return factor(initial**2 * V_f + (same * y) ** 2 * V_K)

    @property
    def same_mode(self) -> Expr:
        """Response ``E_kk(t)`` of the error of a mode to a change of its own eigenvalue ``lamda_k``.

        It is minus the derivative of the error of the mode by the kernel's entry ``K_kk``, divided by the
        target of the mode.
        """
        return self.response.subs(lamda_l, lamda_k)

    @property
    def different_modes(self) -> Expr:
        """Response ``E_kl(t)`` of the error of mode k to a change of the kernel's entry ``K_kl``.

        It is minus the derivative of the error by ``K_kl``, over the target of mode l, for modes with
        different eigenvalues.
        """
        return _where_different(self.response)


def _output(program: Program) -> str:
    """Return the name of the output of a program; raise NotApplicable without a unique one."""
    output = program.roles.output
    if output is None:
        raise NotApplicable(
            "the program must have exactly one trained output, a number such as f(mu, t), with an error: "
            "give a program with a loss of an output, such as mlp()"
        )
    return str(output.func)


def lazy_fluctuations(program: Program) -> LazyFluctuations:
    """Return the fluctuations of errors of lazy networks on fixed data.

    Parameters
    ----------
    program : Program
        Network on fixed data with square losses, in plain steps or in flow; for centred outputs see
        :func:`derive.program.centring.centred`.

    Returns
    -------
    LazyFluctuations
        Covariances of errors.

    Raises
    ------
    NotApplicable
        Unless losses train exactly one output, if errors are not linear in outputs or have a factor that is
        not a number (weights of samples), if weights have different rules, or if they decay or have rules
        with memory or noise.

    Examples
    --------
    >>> from derive.program import mlp
    >>> found = lazy_fluctuations(mlp(2, "tanh", rule="flow"))
    >>> print(found.response.args[1][0])
    (exp(-lamda_l*t) - exp(-lamda_k*t))/(lamda_k - lamda_l)
    """
    require_type(program, Program, "lazy_fluctuations", "a program")
    rate, now, start = _rate(program), *error_slopes(program)
    p, q, gap = (Symbol(x, positive=True) for x in ("p", "q", "gap"))
    past = Symbol("s", integer=True, nonnegative=True)
    if program.rule.discrete:
        first, second = (1 + now * rate * x for x in (lamda_k, lamda_l))
        decay = first**t
        generic = summation(p ** (t - 1 - past) * q**past, (past, 0, t - 1))
        powers = powsimp((simplify(_where_different(generic)) * (p - q)).factor().expand())
        same = rate * summation(p ** (t - 1), (past, 0, t - 1)).subs(p, first)
    else:
        first, second = (-now * rate * x for x in (lamda_k, lamda_l))
        decay = exp(-first * t)
        # The positive symbol `gap` stands for the difference p - q of two rates, so that SymPy gives no
        # separate case for p = q.
        powers = exp(-p * t) * gap * integrate(exp(gap * s), (s, 0, t))
        powers = powsimp(powers.expand().subs(gap, p - q).expand())
        same = rate * integrate(exp(-p * t), (s, 0, t)).subs(p, first)
    different = powers.subs({p: first, q: second}, simultaneous=True) * cancel(rate / (first - second))
    response = Piecewise((same, Eq(lamda_k, lamda_l)), (different, True))
    return LazyFluctuations(program, decay, factor((now + start) * decay), -now * response)


def _where_different(e: Expr) -> Expr:
    """Return an expression with each case distinction replaced by its case for different eigenvalues."""
    cases = [x for x in e.atoms(Piecewise)]
    chosen = {x: next(value for value, at in x.args if not isinstance(at, Eq)) for x in cases}
    return e.xreplace(chosen)


def _rate(program: Program) -> Expr:
    """Return the factor of the gradient in an update of all weights.

    It is the learning rate of steps or the rate of a flow, and contains 1/P if the loss is a mean over P
    samples. Raises NotApplicable for different rules, and for decay, memory or noise.
    """
    require_linear_rules(program, "a lazy network with a tangent kernel")
    rules = {w.rule for w in program.trained()}
    if len(rules) != 1:
        raise NotApplicable(
            "at least one weight must be trained, and all trained weights must have the same training rule"
        )
    (rule,) = rules
    start, weight = map(S, rule.memory(t, s))
    if start != 1 or weight.has(t, s) or rule.noise(t, s) != 0:
        raise NotApplicable(
            "the trained weights must follow gradient descent or flow at a constant rate, without decay, "
            "momentum or noise"
        )
    return weight


def error_slopes(program: Program) -> tuple[Expr, Expr]:
    """Return the derivatives of a sample's error by its output at the same time and by its initial output.

    For the error ``y - f(t)`` of the square loss they are -1 and 0, and -1 and 1 if outputs are centred.

    Raises
    ------
    NotApplicable
        If the error is not linear in them with numbers as factors, or unless losses train exactly one output.
    """
    output, error = program.roles.output, program.roles.error
    if output is None or error is None:
        raise NotApplicable(
            "the program must have exactly one trained output, a number such as f(mu, t), with an error: "
            "give a program with a loss of an output, such as mlp()"
        )
    rhs = next(d.rhs for d in program.definitions if d.name == str(error.func))
    first = output.xreplace({t: S.Zero})
    now, start = rhs.diff(output), rhs.diff(first)
    if not (now.is_number and start.is_number) or rhs.has(Sum):
        raise NotApplicable(
            f"the error {rhs} must be linear in the output of its own sample, with a number as the factor "
            "and without sums, as for the square loss of one output"
        )
    if len([a for a in rhs.atoms(AppliedUndef) if a.func == output.func]) > 2:
        raise NotApplicable(f"the error {rhs} must not contain outputs other than {output} and {first}")
    return now, start
