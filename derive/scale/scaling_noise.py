"""What finite batches and finite width do to the lazy power law: other powers, and floors.

Both come from sources of the structured theory.  A fresh batch drives every mode with the loss itself, so the
loss obeys a renewal equation; the randomness of the first weights drives it with what the layers above have
learnt.  What is derived: the equations, the sums over modes, their constants.  What is taken from elsewhere:
that a renewal equation whose kernel falls as a power has a solution that falls as the slower of kernel and
drive (subexponential kernels; Feller II, chapter XI).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from sympy import (
    Add,
    Expr,
    Function,
    Max,
    Ne,
    S,
    Sum,
    Symbol,
    exp,
    factor,
    factor_terms,
    oo,
    simplify,
)
from sympy.core.function import AppliedUndef

from derive.errors import NotApplicable
from derive.expansion import expand_linear
from derive.program import mlp
from derive.program.networks.random_data import N, structured
from derive.program.words import ell, gamma0, s, t
from derive.reduce.data import instant_responses, mode_sums, theory_limit
from derive.scale.mode_sums import Power, Powers, mode_sum, moment
from derive.scale.scaling_lazy import K, alpha, beta, k, lamda, late, lazy_kernel, lazy_modes, time
from derive.scale.scaling_leading import beta_integral, explicit, given, kappa_
from derive.theory import mean_field


@dataclass(frozen=True)
class BatchNoise:
    """Lazy descent on fresh batches, infinitely wide: ``loss = signal + sum gain(t-1-s) (loss(s) + label)``.

    ``signal`` is the loss of the population's descent, ``gain`` what a unit of squared error on a batch does
    to the loss some steps later, both at late times; ``amplification`` is the sum of the gain over all steps,
    and the loss diverges unless it is below 1.
    ``learnt`` is the sum of the signal over all steps, and ``label`` the variance of the labels' noise.
    """

    kernel: Expr
    signal: Powers
    gain: Powers
    amplification: Expr
    learnt: Expr
    label: Expr

    def floor(self) -> Expr:
        """What the loss tends to: zero without label noise.

        >>> print(batch_noise().floor().subs(batch_noise().amplification, Symbol("q")))
        q*sigma**2/(1 - q)
        """
        q = self.amplification
        return self.label * q / (1 - q)

    def decay(self, steep: bool) -> Power:
        """The loss without label noise.

        Where the signal falls slower than the gain (``source < 2 - 1/capacity``) it is the signal, amplified;
        where it is ``steep``, the loss follows the tail of the gain, and no source is learnt faster.

        >>> print(batch_noise().decay(False).power, batch_noise().decay(True).power)
        -beta -2 + 1/alpha
        """
        q = self.amplification
        signal, gain = self.signal.terms[0], self.gain.terms[0]
        if steep:
            return Power(self.learnt * gain.coefficient / (1 - q) ** 2, gain.power)
        return Power(signal.coefficient / (1 - q), signal.power)


@lru_cache(maxsize=1)
def batch_noise() -> BatchNoise:
    """Read off the theory of online descent on structured data, in the limits N -> oo and gamma0 -> 0.

    The capacity must be above 1.

    >>> found = batch_noise()
    >>> print(found.kernel, simplify(found.gain.terms[0].power))
    eta*(L + 1) -2 + 1/alpha
    """
    theory = theory_limit(instant_responses(mode_sums(mean_field(structured(noise=True)))), {N: oo})
    _, kernel = lazy_kernel(theory)
    push = theory.equation("h0").rhs
    u0 = next(x for x in theory.sources if str(x.symbol.func) == "u0")
    pushed = push.coeff(u0.symbol) ** 2 * _at_once(u0.covariance)
    per_loss = pushed / Function("C_Delta")(t, t)
    weight = lazy_modes("gd").with_K.subs(t, 0) / Function("w_star")(k) ** 2
    keeps = 1 - K * push.coeff(Function("v")(k, t))
    added = simplify(weight * per_loss * K**2)
    label = S.Zero
    for x in theory.equation("Delta").terms:
        (a,) = x.expr.atoms(AppliedUndef)
        source = next(y for y in theory.sources if y.symbol == a)
        if not source.covariance.has(Function("C_v")):
            label += (x.expr / a) ** 2 * _at_once(source.covariance)
    on_power_law = added.subs(lamda(k), k**-alpha)
    gain = late(on_power_law * keeps ** (2 * t), 2).subs({K: kernel})
    over = 1 / (1 - keeps**2)
    amplification = Sum(factor((added * over).subs(lamda(k), k**-alpha)), (k, 1, oo))
    start = k ** (-alpha * beta - 1)
    learnt = Sum(factor((start * over).subs(lamda(k), k**-alpha)), (k, 1, oo))
    put = {K: kernel}
    return BatchNoise(
        kernel=kernel,
        signal=lazy_modes("gd").loss(2),
        gain=gain,
        amplification=amplification.xreplace(put),
        learnt=learnt.xreplace(put),
        label=label,
    )


def _at_once(covariance: Expr) -> Expr:
    """The variance of a source that is fresh at every step."""
    return simplify(covariance.subs(s, t))


# -- width --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WidthNoise:
    """Order 1/N of the lazy loss of a flow: the variance of the function that N units learn.

    ``variance`` times 1/N is added to the loss.  The mean of the error has an order 1/N of its own, a share
    ``t^(1/alpha)/N`` of the loss; on easy tasks the variance is larger by a power of t, on hard ones it is
    alike.  Both say that order 1/N is all there is as long as ``t << N^alpha``.
    """

    lazy: Powers
    variance: Powers

    def crossover(self, task: str) -> Expr:
        """The time at which the variance is as large as the loss of infinite width.

        >>> for task in ("hard", "easy"):
        ...     when = width_noise().crossover(task)
        ...     print(task, simplify(N * when.diff(N) / when))
        hard alpha
        easy alpha/(alpha*(beta - 1) + 1)
        """
        (base,) = self.lazy.terms
        top = self.variance.sorted(width_order(task)).terms[0]
        return (top.coefficient / base.coefficient / N) ** (-1 / simplify(top.power - base.power))


@lru_cache(maxsize=1)
def width_noise() -> WidthNoise:
    """Read off the structured theory of finite width and the expansion of the linear network of any depth.

    The source of the modes is the first weights' randomness, times ``g(1)``; what it has at the start is
    subtracted, so that it counts how ``g(1)`` moves, which is order gamma0 and known in words.

    >>> print([p.power for p in width_noise().variance.terms])
    [-beta + 1/alpha, -1 + 1/alpha]
    """
    theory = mode_sums(mean_field(structured(data="population", rule="flow")))
    xi = theory.equation("xi")
    r0 = next(x for x in theory.sources if str(x.symbol.func) == "r0")
    front = xi.rhs.coeff(r0.symbol)
    moved, kernel = _motion()
    rate = simplify((front * gamma0) ** 2 * r0.covariance / Function("C_g")(1, t, s))
    if rate != 1 / N:
        raise NotApplicable(f"r0 enters with the variance {rate}")
    together = simplify(moved.subs({t: t + s, s: 0}) - moved)
    if together != 0:
        raise NotApplicable(f"{moved} does not depend on t + s alone")
    strength, wave = moved.subs(s, 0).as_independent(kappa_, as_Add=False)
    power = simplify(wave / exp(-kappa_ * t)).as_base_exp()[1] if wave != exp(-kappa_ * t) else S.Zero
    # rates are kernel k^-alpha; so far without the kernel, and with times t kernel
    u, x = Symbol("u", positive=True), Symbol("x", positive=True)
    (own,) = mode_sum(exp(-u), u, alpha, alpha, x).terms
    a = alpha * (beta + power) + 1
    (drive,) = mode_sum(exp(-u), u, a, alpha, x).terms
    early = beta_integral(1 + drive.power, own.power, S.One)
    end = beta_integral(1 + own.power, drive.power, S.One)
    total = simplify(own.power + drive.power + 2)
    bulk = Power(own.coefficient * drive.coefficient * (early + end), total)
    start = Power(own.coefficient * 2**own.power * moment(exp(-u), u, a, alpha, 1), own.power)
    out = [
        Power(factor_terms(strength * p.coefficient * kernel ** simplify(p.power + power - 2)), p.power)
        for p in (bulk, start)
    ]
    out = [Power(p.coefficient, p.power.expand()) for p in out]
    error = Max(-1 - beta, -2 + 1 / alpha)
    return WidthNoise(lazy_modes().loss(), Powers(time, tuple(out), error, Ne(beta, 1)))


def _motion() -> tuple[Expr, Expr]:
    """``d/dt d/ds`` of order gamma0^2 of ``C_g(1, t, s)``, one mode of rate ``kappa_``; the lazy kernel."""
    expansion = expand_linear(mean_field(mlp(rule="flow", loss="sum")), 2)
    kernel = lazy_modes().kernel
    found = S.Zero
    for part in Add.make_args(expansion.entry("G", 2).subs(ell, 1)):
        number, body = part.as_independent(Sum, as_Add=False)
        rest = body.function
        for a in [x for x in rest.atoms(AppliedUndef) if str(x.func) == "K_x"]:
            rest = rest.xreplace({a: kappa_ / kernel})
        waves = {}
        for v in [x for x in rest.atoms(AppliedUndef) if str(x.func) == "v"]:
            rates = dict.fromkeys((i for i in v.free_symbols if i not in (t, s)), kappa_)
            meant = expansion.iterated_integral(v.subs(s, t))
            waves[v] = explicit(meant, rates).subs(t, v.args[-1])
        found += number * rest.xreplace(waves)
    return factor(simplify(found.diff(t).diff(s))), kernel


def width_order(task: str) -> dict[Symbol, Expr]:
    """beta and alpha in terms of positive numbers: alpha is above 1."""
    return {**given(task), alpha: 1 + Symbol("a", positive=True)}


__all__ = ["BatchNoise", "WidthNoise", "batch_noise", "width_noise", "width_order"]
