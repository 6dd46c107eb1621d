"""Lazy loss of descent on fresh batches: a renewal equation, its solution in transforms, and its tails.

A fresh batch perturbs every mode with a variance proportional to the squared error on it: the loss itself,
plus the label noise. From the correlations of the online theory the module derives the equation of the loss,
the total effect of a unit of loss on later steps, and powers of time.
:func:`derive.scale.power_laws.batch_law` uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from sympy import (
    Add,
    Dummy,
    Eq,
    Expr,
    Function,
    KroneckerDelta,
    S,
    Sum,
    Symbol,
    factor,
    fraction,
    oo,
    simplify,
    solve,
    summation,
)
from sympy.core.function import AppliedUndef

from derive.calculus.sums import fixed_by_delta, rewritten
from derive.calculus.symbols import s, t
from derive.errors import NotApplicable
from derive.linear.form import linear_form
from derive.linear.propagators import START, cross_layer, transfer
from derive.program.networks.random_data import k
from derive.scale.lazy_responses import on_eigenvalues, weight_in_loss
from derive.scale.mellin import Power, Powers
from derive.scale.modes import K, at_start, factor_of, kernel_of_modes, late, on_power_law, time, wide
from derive.show.conditions import ConditionalResult
from derive.theory import Theory

lag = Symbol("n", integer=True, positive=True)
"""Number of steps between a perturbation and its effect."""
q, A = Symbol("q", positive=True), Symbol("A", positive=True)
"""Names of the sums over all steps of the gain and of the signal."""
_x = Dummy("x", positive=True)
"""Variable of generating functions, whose n-th coefficient belongs to the step n."""


@dataclass(frozen=True, repr=False)
class BatchNoise(ConditionalResult):
    """Loss of lazy, infinitely wide descent on fresh batches, as a renewal equation.

    Attributes
    ----------
    kernel
        Kernel of the modes: on the population loss a step multiplies the error of mode k by ``1 - kernel
        lamda(k)``, where ``lamda(k)`` is its eigenvalue.
    renewal
        Renewal equation ``loss(t) = signal(t) + sum gain(t - s) errors(s)`` over ``s < t``.
    errors
        Squared error on a batch in terms of the loss ``C_v(t, t)``, such as ``sigma^2 + C_v(t, t)``.
    signal
        Loss of descent on the population loss, which has no noise of batches, at late times.
    gain
        Increase of the loss, some steps later, by a unit of squared error on a batch; at late times.
    amplification
        Sum of the gain over all steps. The loss diverges if this sum is above 1, and with label noise also
        if it is 1.
    learnt
        Sum of the signal over all steps.
    label
        Variance of the label noise.
    """

    kernel: Expr
    renewal: Eq
    errors: Expr
    signal: Powers
    gain: Powers
    amplification: Expr
    learnt: Expr
    label: Expr

    def _repr_latex_(self) -> str:
        return self.decay()._repr_latex_()

    def conditions(self) -> tuple[str, ...]:
        """Return, as sentences, the limits and the theorem behind the renewal equation of the loss.

        The equation is derived; the renewal theorem for its solution is assumed.
        """
        return (
            "derived: the renewal equation of the loss and its sums over steps, at gamma0 = 0 and N -> oo",
            "assumed: the solution of a renewal equation whose kernels fall as powers of time falls as the "
            "singular part of its transform (the renewal theorem)",
        )

    @cached_property
    def _renewed(self) -> tuple[Expr, Symbol, Symbol, Symbol]:
        """Solution of the renewal equation in transforms: (loss, symbols of signal, gain and label noise).

        In transforms the sum over steps is a product, ``l = signal + gain (l + noise)``, which is solved for
        l.
        """
        loss, signal, gain, labels = (Dummy(x) for x in ("l", "s", "g", "n"))
        errors = self.errors - self.label + labels
        (solution,) = solve(signal + gain * errors.subs(Function("C_v")(t, t), loss) - loss, loss)
        return solution, signal, gain, labels

    def floor(self, amplification: Expr | None = None) -> Expr:
        """Return the constant that the loss reaches at late times, which is zero without label noise.

        ``amplification`` may be a symbol that replaces :attr:`amplification`, the sum of the gain over all
        steps.
        """
        loss, _, gain, labels = self._renewed
        return factor(loss.diff(labels) * self.label).subs(gain, amplification or self.amplification)

    def decay(self, names: bool = False) -> Powers:
        """Return the loss without label noise at late times, as a sum of two powers of time.

        They are the leading powers of the signal and of the gain, with factors from the renewal equation. If
        the signal falls more slowly than the gain (``source < 2 - 1/capacity``), the loss is the amplified
        signal; for larger sources it falls as the gain, and no larger source makes it fall faster. If
        ``names`` is true, the sum of the gain over all steps is written as the symbol q, and that of the
        signal as A.
        """
        loss, signal, gain, labels = self._renewed
        sums = {gain: q, signal: A} if names else {gain: self.amplification, signal: self.learnt}
        substitutions = {labels: S.Zero} | sums
        contributions = [(self.signal, loss.diff(signal)), (self.gain, loss.diff(gain))]
        tails = [
            Power(factor(e).subs(substitutions) * x.terms[0].coefficient, x.terms[0].power)
            for x, e in contributions
        ]
        return Powers(time, tuple(tails))


def batch_noise(theory: Theory) -> BatchNoise:
    """Return the renewal equation of online descent on structured data.

    The loss follows from the correlations of the theory: :func:`~derive.linear.propagators.cross_layer` gives
    ``C_v`` as a sum over the sources of batches, :func:`~derive.linear.propagators.transfer` the responses of
    a mode, whose squares SymPy sums. The depth must be the symbol L; the capacity must be above 1.

    Parameters
    ----------
    theory : Theory
        Theory of structured data, online.

    Returns
    -------
    BatchNoise
        Renewal equation at N -> oo and gamma0 -> 0, and its solution.

    Raises
    ------
    NotApplicable
        If the sources of batches are not fresh at each step, for training on the population loss, for a depth
        other than the symbol L, or if the response of a mode is not geometric.

    Examples
    --------
    >>> from derive import mean_field, structured
    >>> noise = batch_noise(mean_field(structured(noise=True)))
    >>> print(noise.kernel, *[simplify(x.power) for x in noise.decay().terms])
    eta*(L + 1) -beta -2 + 1/a
    >>> print(noise.errors, noise.floor(Symbol("q")))
    sigma**2 + C_v(t, t) -q*sigma**2/(q - 1)
    """
    theory = wide(theory)
    if all(e.name != "Delta" for e in theory.equations):
        raise NotApplicable(
            "the theory has no samples, and the noise of batches needs them: derive it with data='online'"
        )
    _, kernel = kernel_of_modes(theory)
    # The parts of the fields that the targets give are set to zero here, because only the random parts are
    # needed. `signal` below is the part of the targets in the loss.
    targets = {a: S.Zero for r in linear_form(theory).rows for a in r.given.atoms(AppliedUndef)}
    propagators, weight, input_factor = (
        cross_layer(theory.map(lambda e: e.xreplace(targets))),
        weight_in_loss(theory),
        factor_of(linear_form(theory).row("h0"), "u0"),
    )
    signal = weight * _after(_in_steps(theory, "v") * at_start(theory) / (1 - _x), 0) ** 2
    response = _after(_in_steps(theory, "h0") * input_factor, 1)
    same_mode = KroneckerDelta(k, _other)
    definitions = {"R_vu0": ((k, _other, t, s), same_mode * response.subs(lag, t - s))}
    definitions |= {
        e.name: (e.lhs.args, e.rhs) for e in propagators.responses if e.name.startswith("R_Delta")
    }
    correlation, errors = (
        _at_equal_times(propagators.correlation(name).rhs, definitions) for name in ("C_v", "C_Delta")
    )
    (past,) = (x for x in correlation.atoms(Sum) if x.limits[0][1:] == (0, t - 1))
    earlier = past.limits[0][0]
    gain = correlation.function.xreplace({past: past.function / Function("C_Delta")(earlier, earlier)})
    gain = simplify(gain.subs(earlier, t - lag))
    if gain.has(t, Function("C_Delta")) or correlation.limits[0][0] != k:
        raise NotApplicable(
            f"the contribution of batches to the loss, {correlation}, must be a sum over modes and over "
            "earlier steps s, of C_Delta(s, s) times a function of t - s"
        )
    driven = Sum(Sum(gain, *correlation.limits).subs(lag, t - s) * Function("C_Delta")(s, s), (s, 0, t - 1))
    renewal = Eq(
        Function("C_v")(t, t), Sum(signal.subs(lag, t), *correlation.limits) + driven, evaluate=False
    )
    kernel_value = {K: kernel}
    amplification, learnt = (
        Sum(factor(on_eigenvalues(on_power_law(_all_steps(e, first)))), (k, 1, oo)).subs(kernel_value)
        for e, first in ((gain, 1), (signal, 0))
    )
    late_signal = late(signal.subs(lag, t), 2).subs(kernel_value)
    first_gain = gain.subs(lag, 1)
    late_gain = late(on_eigenvalues(first_gain) * simplify(gain.subs(lag, t + 1) / first_gain), 2).subs(
        kernel_value
    )
    label = errors.subs(Function("C_v")(t, t), 0)
    return BatchNoise(kernel, renewal, errors, late_signal, late_gain, amplification, learnt, label)


_other = Dummy("j", integer=True, positive=True)
"""Index of the perturbed mode."""


def _in_steps(theory: Theory, into: str) -> Expr:
    """Return the generating function over steps of the response of the error v to a source, at gamma0 = 0.

    ``into`` is the field whose source is perturbed. The coefficient of ``_x^n`` is the response n steps
    later; K is the symbol of the kernel of the modes. Raises NotApplicable if a kernel of the response has no
    generating function in closed form.
    """
    response_operators = transfer(theory, into)
    values = {START: S.Zero} | {
        x.operator: K * _x * _geometric(_x) for x in response_operators.kernels if x.causal == "strict"
    }
    generating = factor(response_operators.operators["v"].subs(values))
    if any(not a.is_commutative for a in generating.free_symbols) or generating.has(t, s):
        raise NotApplicable(
            f"the response {response_operators.operators['v']} has kernels without a generating function in "
            "closed form, as for samples that are used again: give data='online'"
        )
    return generating


def _after(e: Expr, first: int) -> Expr:
    """Return the coefficient of ``_x^lag`` in a generating function, which must be a geometric series.

    ``e = c _x^first/(1 - r _x)`` gives ``c r^(lag - first)``, where ``first`` is the first step with a
    response. The constants c and r are read off, and the series is compared with ``e``. Raises NotApplicable
    if they differ.
    """
    denominator = fraction(factor(e))[1].expand()
    ratio = factor(-denominator.coeff(_x, 1) / denominator.coeff(_x, 0))
    front = simplify(e / _x**first).subs(_x, 0)
    if simplify(front * _x**first * _geometric(ratio * _x) - e) != 0:
        raise NotApplicable(
            f"the response of a mode is not a geometric sequence in the steps: its generating function is {e}"
        )
    return front * ratio ** (lag - first)


def _geometric(ratio: Expr) -> Expr:
    """Return the sum of all powers ``ratio^n`` from n = 0, in the form that holds where it converges."""
    r = Dummy("r", positive=True)
    series, _ = summation(r**lag, (lag, 0, oo)).args[0]
    return series.subs(r, ratio)


def _all_steps(e: Expr, first: int) -> Expr:
    """Return the sum over steps ``lag >= first`` of a geometric sequence in ``lag``, where it converges.

    Raises NotApplicable for another sequence.
    """
    ratio = simplify(e.subs(lag, lag + 1) / e)
    if ratio.has(lag):
        raise NotApplicable(f"the expression {e} is not a geometric sequence in the number of steps {lag}")
    return simplify(e.subs(lag, first)) * _geometric(ratio)


def _at_equal_times(e: Expr, definitions: Mapping[str, tuple[tuple[Expr, ...], Expr]]) -> Expr:
    """Return a correlation at equal times ``s = t``, with known functions replaced by their definitions.

    ``definitions`` has, by name of a function, its arguments and its definition. Kronecker deltas in sums
    over times are evaluated.
    """

    def value(x: AppliedUndef) -> Expr:
        """Return the definition of a response or correlation with the arguments of ``x`` substituted."""
        arguments, definition = definitions[str(x.func)]
        return definition.subs(dict(zip(arguments, x.args, strict=True)), simultaneous=True)

    def summed(x: Expr) -> Expr:
        """Return an expression without sums over an index that a Kronecker delta fixes.

        The index gets the value that the delta requires. Other sums stay.
        """
        if isinstance(x, Add):
            return Add(*map(summed, x.args))
        if not isinstance(x, Sum):
            inner = {y: summed(y) for y in x.args if isinstance(y, Sum)}
            return x.xreplace(inner)
        body, open_limits = summed(x.function), list(x.limits)
        for limits in x.limits:
            if fixed := fixed_by_delta(body, limits[0]):
                body = (body / fixed[0]).subs(limits[0], fixed[1])
                open_limits.remove(limits)
        return Sum(body, *open_limits) if open_limits else body

    return summed(rewritten(e, definitions, value).subs(s, t))
