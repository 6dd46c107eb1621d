"""Lazy loss of descent on fresh batches: a renewal equation, its solution in transforms, and its tails.

A fresh batch drives every mode with the loss itself. From the correlations of the online theory the module
derives the equation of the loss, the total effect of a unit of loss on later steps, and powers of time.
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
"""A number of steps."""
q, A = Symbol("q", positive=True), Symbol("A", positive=True)
"""Names of the sums over all steps of the gain and of the signal."""
_x = Dummy("x", positive=True)
"""The variable of generating functions, of which the n-th coefficient belongs to the step n."""


@dataclass(frozen=True)
class BatchNoise(ConditionalResult):
    """Lazy descent on fresh batches, infinitely wide, where the loss obeys ``renewal``.

    This is ``loss(t) = signal(t) + sum gain(t - s) errors(s)`` over ``s < t``, and ``errors`` is the squared
    error on a batch in terms of the loss. ``signal`` is the loss of descent on the population, and ``gain``
    the effect of a unit of squared error on a batch on the loss some steps later, both at late times.
    ``amplification`` is the sum of the gain over all steps; the loss diverges unless it is below 1.
    ``learnt`` is the sum of the signal over all steps, and ``label`` the variance of the label noise.
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
        """Return the limits that are taken, and the theorem that is used."""
        return (
            "derived: the renewal equation of the loss and its sums over steps, at gamma0 = 0 and N -> oo",
            "assumed: a renewal equation falls as the singular part of its transform, where its kernels fall "
            "as powers (the renewal theorem)",
        )

    @cached_property
    def _renewed(self) -> tuple[Expr, Symbol, Symbol, Symbol]:
        """Loss in terms of the transforms of signal, gain and labels; the sum in ``renewal`` is a product."""
        loss, signal, gain, labels = (Dummy(x) for x in ("l", "s", "g", "n"))
        errors = self.errors - self.label + labels
        (found,) = solve(signal + gain * errors.subs(Function("C_v")(t, t), loss) - loss, loss)
        return found, signal, gain, labels

    def floor(self, amplification: Expr | None = None) -> Expr:
        """Return the late limit of the loss, zero without label noise; the amplification may be a symbol.

        A constant drive has a pole in its transform, and the loss has the same pole with another residue.
        """
        loss, _, gain, labels = self._renewed
        return factor(loss.diff(labels) * self.label).subs(gain, amplification or self.amplification)

    def decay(self, names: bool = False) -> Powers:
        """Return the loss without label noise, to first order in singular transforms.

        If the signal falls more slowly than the gain (``source < 2 - 1/capacity``), it is the amplified
        signal; on steeper tasks the loss follows the tail of the gain, and no source is learnt faster. With
        ``names`` the sums over all steps are the symbols q and A.
        """
        loss, signal, gain, labels = self._renewed
        sums = {gain: q, signal: A} if names else {gain: self.amplification, signal: self.learnt}
        at = {labels: S.Zero} | sums
        parts = [(self.signal, loss.diff(signal)), (self.gain, loss.diff(gain))]
        tails = [Power(factor(e).subs(at) * x.terms[0].coefficient, x.terms[0].power) for x, e in parts]
        return Powers(time, tuple(tails))


def batch_noise(theory: Theory) -> BatchNoise:
    """Return the renewal equation of online descent on structured data.

    The loss follows from the correlations of the theory: :func:`~derive.linear.propagators.cross_layer` gives
    ``C_v`` as a sum over the sources of batches, :func:`~derive.linear.propagators.transfer` the responses of
    a mode, whose squares SymPy sums. The depth may be a symbol; the capacity must be above 1.

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
        If the sources of batches are not fresh at each step, or the response of a mode is not geometric.

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
    _, kernel = kernel_of_modes(theory)
    across, weight, enters = (
        cross_layer(theory),
        weight_in_loss(theory),
        factor_of(linear_form(theory).row("h0"), "u0"),
    )
    signal = weight * _after(_in_steps(theory, "v") * at_start(theory) / (1 - _x), 0) ** 2
    answer = _after(_in_steps(theory, "h0") * enters, 1)
    alike = KroneckerDelta(k, _other)
    known = {"R_vu0": ((k, _other, t, s), alike * answer.subs(lag, t - s))}
    known |= {e.name: (e.lhs.args, e.rhs) for e in across.responses if e.name.startswith("R_Delta")}
    caused, errors = (_at_equal_times(across.correlation(name).rhs, known) for name in ("C_v", "C_Delta"))
    (past,) = (x for x in caused.atoms(Sum) if x.limits[0][1:] == (0, t - 1))
    earlier = past.limits[0][0]
    gain = caused.function.xreplace({past: past.function / Function("C_Delta")(earlier, earlier)})
    gain = simplify(gain.subs(earlier, t - lag))
    if gain.has(t, Function("C_Delta")) or caused.limits[0][0] != k:
        raise NotApplicable(f"the loss is driven by {caused}, which is not a sum over earlier steps")
    driven = Sum(Sum(gain, *caused.limits).subs(lag, t - s) * Function("C_Delta")(s, s), (s, 0, t - 1))
    renewal = Eq(Function("C_v")(t, t), Sum(signal.subs(lag, t), *caused.limits) + driven, evaluate=False)
    put = {K: kernel}
    amplification, learnt = (
        Sum(factor(on_eigenvalues(on_power_law(_all_steps(e, first)))), (k, 1, oo)).subs(put)
        for e, first in ((gain, 1), (signal, 0))
    )
    late_signal = late(signal.subs(lag, t), 2).subs(put)
    once = gain.subs(lag, 1)
    late_gain = late(on_eigenvalues(once) * simplify(gain.subs(lag, t + 1) / once), 2).subs(put)
    label = errors.subs(Function("C_v")(t, t), 0)
    return BatchNoise(kernel, renewal, errors, late_signal, late_gain, amplification, learnt, label)


_other = Dummy("j", integer=True, positive=True)
"""Index of the perturbed mode."""


def _in_steps(theory: Theory, into: str) -> Expr:
    """Return the generating function of ``H_v_into`` at gamma0 = 0, with the kernel K."""
    found = transfer(theory, into)
    values = {START: S.Zero} | {
        x.operator: K * _x * _geometric(_x) for x in found.kernels if x.causal == "strict"
    }
    out = factor(found.operators["v"].subs(values))
    if any(not a.is_commutative for a in out.free_symbols) or out.has(t, s):
        raise NotApplicable(f"{found.operators['v']} has kernels without a generating function")
    return out


def _after(e: Expr, first: int) -> Expr:
    """Return the coefficient of the step ``lag``, from ``first`` on: ``front ratio^(lag - first)``.

    SymPy sums the geometric series, which is compared with ``e``.
    """
    below = fraction(factor(e))[1].expand()
    ratio = factor(-below.coeff(_x, 1) / below.coeff(_x, 0))
    front = simplify(e / _x**first).subs(_x, 0)
    if simplify(front * _x**first * _geometric(ratio * _x) - e) != 0:
        raise NotApplicable(f"a mode does not answer geometrically: {e}")
    return front * ratio ** (lag - first)


def _geometric(ratio: Expr) -> Expr:
    """Return the sum of all powers of a ratio, where it converges."""
    r = Dummy("r", positive=True)
    whole, _ = summation(r**lag, (lag, 0, oo)).args[0]
    return whole.subs(r, ratio)


def _all_steps(e: Expr, first: int) -> Expr:
    """Return the sum over the steps of a geometric series, where it converges."""
    ratio = simplify(e.subs(lag, lag + 1) / e)
    if ratio.has(lag):
        raise NotApplicable(f"{e} is not geometric")
    return simplify(e.subs(lag, first)) * _geometric(ratio)


def _at_equal_times(e: Expr, known: Mapping[str, tuple[tuple[Expr, ...], Expr]]) -> Expr:
    """Return a correlation at ``s = t`` with responses substituted, and deltas summed."""

    def value(x: AppliedUndef) -> Expr:
        """Return a response or correlation by its definition."""
        places, found = known[str(x.func)]
        return found.subs(dict(zip(places, x.args, strict=True)), simultaneous=True)

    def summed(x: Expr) -> Expr:
        """Return a sum with its deltas summed."""
        if isinstance(x, Add):
            return Add(*map(summed, x.args))
        if not isinstance(x, Sum):
            inner = {y: summed(y) for y in x.args if isinstance(y, Sum)}
            return x.xreplace(inner)
        body, left = summed(x.function), list(x.limits)
        for limits in x.limits:
            if fixed := fixed_by_delta(body, limits[0]):
                body = (body / fixed[0]).subs(limits[0], fixed[1])
                left.remove(limits)
        return Sum(body, *left) if left else body

    return summed(rewritten(e, known, value).subs(s, t))
