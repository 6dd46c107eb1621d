"""Exponents and constants of the loss on power-law data, by regime, with the range in which each holds.

Eigenvalues are ``k^-capacity``, and targets ``w_star(k)^2 lamda(k) = k^(-capacity source - 1)``; depth,
source and capacity may be numbers or symbols. Each law follows from a derived result:
:func:`~derive.scale.modes.lazy_modes`, :func:`~derive.scale.modes.leading_order`,
:func:`~derive.scale.rich.rank_one`, :func:`~derive.scale.finite_batch.batch_noise`,
:func:`~derive.scale.finite_width.width_noise`, and in this module the effect of finite data on the lazy law
(:func:`fixed_data`): other powers, and final losses that do not vanish.

With fresh batches the noise of every mode is proportional to the loss, which obeys a renewal equation. At
finite width the random first weights add noise to every mode, which changes as the layers above learn. If
samples are reused, errors depend on earlier updates, and the responses obey a separate equation. The
equations, their solutions in transforms, the sums over modes, powers and constants are derived. Two theorems
are taken from elsewhere and stated in the conditions of the laws that use them: that the solution of a
renewal equation falls as the singular parts of its transform (subexponential kernels; Feller II, chapter XI),
and that a function at late times is z times its transform at small z (final value theorem), if the limit
exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from sympy import (
    Add,
    Dummy,
    Eq,
    Expr,
    Function,
    Max,
    S,
    Sum,
    Symbol,
    factor,
    factor_terms,
    false,
    gammasimp,
    inverse_laplace_transform,
    nan,
    powdenest,
    powsimp,
    series,
    simplify,
    solve,
    zeta,
    zoo,
)

from derive.calculus.averages import Response
from derive.calculus.symbols import L, eta, exact, gamma0, s, t
from derive.errors import NotApplicable
from derive.linear.form import linear_form
from derive.linear.propagators import transfer
from derive.program.networks.random_data import B, N, P, k
from derive.scale.bottlenecks import Bottleneck, Resources, bottlenecks
from derive.scale.finite_batch import A, BatchNoise, q
from derive.scale.finite_width import WidthNoise
from derive.scale.lazy_responses import (
    label_variance,
    on_eigenvalues,
    response_transforms,
    source_of,
    summable,
    weight_in_loss,
    z,
    z_,
)
from derive.scale.mellin import Power, Powers, mode_sum
from derive.scale.modes import (
    EASY,
    HARD,
    K,
    LazyModes,
    LeadingOrder,
    at_start,
    beta,
    factor_of,
    given,
    kernel_of_modes,
    kind_of,
    lamda,
    numbers,
    on_power_law,
    task_of,
    time,
    wide,
)
from derive.scale.modes import capacity as capacity_
from derive.scale.rich import RankOne, rich_scaling
from derive.show.conditions import ConditionalResult
from derive.show.latex import aligned_latex, latex
from derive.theory import Theory

cut, cut_ = Symbol("lamda_c", positive=True), Symbol("lamda_cprime", positive=True)
"""Cut-off ``z/(K R_Delta(z))``: modes with eigenvalues above it have been learnt."""
_t, _t_ = Dummy("t", positive=True), Dummy("t'", positive=True)


# -- data --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class FixedData(ConditionalResult):
    """Lazy flow on the same P samples, infinitely wide, in Laplace transforms with the rate z.

    The cut-off is the eigenvalue above which modes have been learnt.

    Attributes
    ----------
    theory
        Theory in the limit of wide layers.
    kernel
        Kernel K of the modes.
    balance
        Equation that determines the cut-off at the rate z.
    freedom
        Summand of mode k in ``balance``; its sum is the effective number of learnt modes.
    signal, gain
        Summands of mode k, at the rates z and z' of two times. With their sums over modes, the correlation
        C_v of errors obeys ``z z' C_v(z, z') = (signal + gain label)/(1 - gain)``.
    label
        Variance of the label noise.
    """

    theory: Theory
    kernel: Expr
    balance: Eq
    freedom: Expr
    signal: Expr
    gain: Expr
    label: Expr

    def _repr_latex_(self) -> str:
        return aligned_latex([self.balance])

    def conditions(self) -> tuple[str, ...]:
        """Return two sentences: the derived equations and limits, and the assumed final value theorem."""
        return (
            "derived: the cut-off and the correlations of errors in Laplace transforms, at gamma0 = 0 and "
            "N -> oo",
            "assumed: the loss has a limit at late times, which is that of its transform at small rates (the "
            "final value theorem)",
        )

    @cached_property
    def late_balance(self) -> Eq:
        """Equation for the cut-off at late times: :attr:`balance` at the Laplace rate z = 0.

        The cut-off is the eigenvalue above which modes have been learnt.
        """
        return Eq(self.balance.lhs, self.balance.rhs.subs(z, 0), evaluate=False)

    @cached_property
    def final(self) -> Expr:
        """Test loss at late times in terms of the cut-off, the eigenvalue above which modes have been learnt.

        The cut-off solves :attr:`late_balance`. Noise of test labels is not included.
        """
        (sums,) = self.late_balance.rhs.atoms(Sum)
        signal, gain = (Sum(x.subs(cut_, cut), *sums.limits) for x in (self.signal, self.gain))
        return (signal + gain * self.label) / (1 - gain)

    # -- power-law data --------------------------------------------------------------------------------------

    @cached_property
    def _free(self) -> tuple[Power, ...]:
        """Effective number of learnt modes as a sum of powers of one over the cut-off, on power-law data.

        The cut-off is the eigenvalue above which modes have been learnt.
        """
        return sum_over_modes(self.freedom, cut).terms

    @property
    def late_cutoff(self) -> Power:
        """Cut-off at late times as a power of the number P of samples, to leading order.

        The cut-off is the eigenvalue above which modes have been learnt. The result holds for infinitely many
        modes and capacities above 1.
        """
        top = self._free[0]
        return Power(gammasimp(top.coefficient) ** (1 / top.power), -1 / top.power)

    @cached_property
    def amplification(self) -> Expr:
        """Factor ``1/(1 - gain)`` at late times, by which errors of learnt modes increase the test loss.

        ``gain`` stands for the sum of :attr:`gain` over the modes of power-law data, to leading order in the
        number of samples. Raises NotApplicable if this sum is not constant at late times.
        """
        gain_sum, freedom_sum = sum_over_modes((P * self.gain).subs(cut_, cut), cut).terms[0], self._free[0]
        if simplify(gain_sum.power - freedom_sum.power) != 0:
            raise NotApplicable(
                "the factor 1/(1 - gain) of the loss is not constant at late times, because two sums over "
                "modes grow with different powers of 1/cut-off, where the cut-off is that of the spectrum: "
                f"the sum of the gain with the power {gain_sum.power}, and the effective number of learnt "
                f"modes with the power {freedom_sum.power}"
            )
        return factor(1 / (1 - simplify(gammasimp(gain_sum.coefficient / freedom_sum.coefficient))))

    @cached_property
    def floor(self) -> Powers:
        """Final test loss on power-law data without label noise, as powers of the number P of samples.

        It contains the target in modes that are not learnt, and the error of the learnt modes.
        """
        signal_sum, scale, amplification = (
            sum_over_modes(self.signal.subs(cut_, cut), cut),
            self.late_cutoff,
            self.amplification,
        )
        top, next_ = self._free
        terms = tuple(
            Power(
                powdenest(amplification * p.coefficient * scale.coefficient**-p.power, force=True),
                simplify(-p.power * scale.power),
            )
            for p in signal_sum.terms
        )
        error = simplify((top.power - next_.power) * scale.power)
        return Powers(P, terms, Max(*[p.power for p in terms]) + error, signal_sum.conditions)

    @cached_property
    def label_floor(self) -> Expr:
        """Part of the final test loss that fitted label noise adds, for many samples of power-law data."""
        return factor(self.label * (self.amplification - 1))

    @cached_property
    def before_floor(self) -> Power:
        """Coefficient of 1/P in the test loss before it is final, a power of time ``c t^-(2 - 1/capacity)``.

        P is the number of samples of power-law data, and there is no label noise. The constant c contains a
        sum over modes of the target, which converges for a source above 2. While the first modes are learnt,
        errors on the samples perturb the other modes; the perturbation of a mode decays as the mode is
        learnt.
        """
        summand = on_power_law(simplify(self.signal / (cut * cut_)).subs({cut: 0, cut_: 0}))
        summand = powsimp(powdenest(on_eigenvalues(summand), force=True))
        perturbation = Power.of(summand, k)
        return self._order_one(cut * cut_, perturbation.coefficient * zeta(-perturbation.power))

    @cached_property
    def label_before_floor(self) -> Power:
        """Coefficient of 1/P in the test loss from fitted label noise, a power of time ``c t^(1/capacity)``.

        P is the number of samples of power-law data. The result holds before the loss is final.
        """
        return self._order_one(S.One, self.label)

    def _order_one(self, rates: Expr, value: Expr) -> Power:
        """Return P times a term of order 1/P of the loss, summed over modes, as a power of late time.

        The summand is the Laplace transform ``gain rates value/(z z')`` at the rates z and z' of two equal
        times. ``rates`` is a factor in the cut-offs at both rates, and ``value`` a factor that does not
        depend on the mode.
        """
        mode = Dummy("lamda", positive=True)
        free = P * self.gain * rates / (z * z_)
        in_rates = free.xreplace({lamda(k): mode}).subs({cut: z / K, cut_: z_ / K})
        in_time = inverse_laplace_transform(in_rates, z, _t)
        in_both_times = simplify(inverse_laplace_transform(in_time, z_, _t_).subs(_t_, _t)).expand()
        top = sum_over_modes(in_both_times.xreplace({mode: lamda(k)}), 1 / (K * _t)).terms[0]
        power = simplify(top.power)
        return Power(factor_terms((value * top.coefficient).subs(K, self.kernel) * self.kernel**power), power)


def sum_over_modes(summand: Expr, unit: Expr) -> Powers:
    """Return the sum of a summand over infinitely many modes of power-law data, in powers of ``1/unit``.

    ``unit`` is a small eigenvalue: an expression in the cut-off or in a dummy symbol. After the targets
    of power-law data are substituted, the summand must be a power of k, times a power of ``unit``, times a
    function of ``lamda(k)/unit``. Of
    an algebraic tail of this function one power is kept.
    """
    y, x = Dummy("y", positive=True), Dummy("x", positive=True)
    weight, function = on_power_law(summand).as_independent(lamda(k), *unit.free_symbols, as_Add=False)
    variable = next(x for x in unit.free_symbols if x == cut or isinstance(x, Dummy))
    function = simplify(function.subs(variable, solve(unit - 1 / x, variable)[0]).subs(lamda(k), y / x))
    F, power = Power.of(function, x), Power.of(weight, k)
    summed = mode_sum(F.coefficient, y, -power.power, capacity_, x, terms=1)
    return summed.scaled(power.coefficient, F.power)


def fixed_data(theory: Theory) -> FixedData:
    """Return the lazy limit (gamma0 -> 0) of gradient flow on P fixed samples, for N -> oo.

    ``theory`` is that of structured data, with or without label noise, and with the symbol L as depth. The
    eigenvalues ``lamda(k)`` and the target ``w_star(k)`` of the modes are arbitrary. Only the properties
    of the result from ``late_cutoff`` on assume power laws: ``late_cutoff`` and ``floor`` are powers of P,
    and ``before_floor`` and ``label_before_floor`` powers of t. In the example ``cut`` (printed ``lamda_c``)
    and ``cut_`` are the cut-offs at the Laplace rates z and z' of two times. Raises :class:`NotApplicable` if
    kernels do not depend on differences of times alone, for training in steps or without samples, and for a
    depth that is a number.

    >>> from derive import mean_field, structured
    >>> found = fixed_data(mean_field(structured(data="full-batch", noise=True, rule="flow")))
    >>> print(found.kernel, "|", found.balance.rhs)
    L + 1 | Sum(lamda(k)/(lamda_c + lamda(k)), (k, 1, M)) + P*z/(K*lamda_c)
    >>> print(found.signal.subs(cut_, cut), "|", found.gain.subs(cut_, cut))
    lamda_c**2*lamda(k)*w_star(k)**2/(lamda_c + lamda(k))**2 | lamda(k)**2/(P*(lamda_c + lamda(k))**2)
    >>> print(found.late_cutoff.power, found.amplification, found.label_floor)
    -a a sigma**2*(a - 1)
    >>> print([p.power for p in found.floor.terms], found.before_floor.power, found.label_before_floor.power)
    [-a*beta, -2*a] -2 + 1/a 1/a
    """
    if theory.program.rule.discrete:
        raise NotApplicable(
            "the law of fixed samples is derived for training by a flow: derive the theory with rule='flow'"
        )
    if all(e.name != "Delta" for e in theory.equations):
        raise NotApplicable(
            "the law of fixed samples needs samples: derive the theory with data='full-batch'"
        )
    theory = wide(theory)
    _, kernel = kernel_of_modes(theory)
    R, sample_response, v = Symbol("R_Delta", positive=True), Symbol("R_vu"), Function("v")
    into_v, into_h0 = (response_transforms(theory, name, R)["v"] for name in ("v", "h0"))
    input_row, sample_row = (linear_form(theory).row(name) for name in ("h0", "Delta"))
    u0, u_Delta = (source_of(theory, name) for name in ("u0", "u_Delta"))
    input_factor = factor_of(input_row, "u0")

    definition = theory.order_parameter("R_vu").definition
    (response,) = definition.atoms(Response)
    # `contribution` is the contribution of mode k to R_vu, a product of three factors. R_vu contains v with
    # the factor ``response.body / v``, the response of v to a source in h0 is `into_h0`, and u0 enters h0
    # with the factor `input_factor`.
    contribution = response.body / v(k, t) * input_factor * into_h0
    errors = transfer(theory, "Delta")
    closed = errors.operators["Delta"].subs({x.operator: sample_response for x in errors.kernels})
    (solution,) = solve(closed - R, sample_response)
    at = {R: z / (K * cut)}
    freedom = simplify((-P * R * contribution).subs(at))
    # R_vu is a sum over modes by its definition, and it is `solution` as a function of the response R of the
    # errors. Both times -P R are equal: ``-P R * solution = sum of freedom``. `balance` is this equation with
    # `remainder`, which is ``P + P R * solution``, added on both sides.
    remainder = simplify((P + P * R * solution).subs(at))
    balance = Eq(P, remainder + Sum(freedom, *definition.limits), evaluate=False)

    weight = weight_in_loss(theory)
    drive = (
        input_factor**2 * u0.covariance / Function("C_Delta")(t, s) * factor_of(sample_row, "u_Delta") ** 2
    )
    drive *= u_Delta.covariance / Function("C_v")(t, s)
    label = label_variance(theory)
    signal = weight * at_start(theory) ** 2 * _at_two(into_v.subs(at))
    gain = weight * drive * _at_two((into_h0 * R).subs(at))
    result = FixedData(theory, kernel, balance, freedom, signal, gain, label)
    if any(e.has(t, s, z, z_, R) for e in (freedom, signal, gain, label)):
        raise NotApplicable(
            "the kernels must depend on differences of times, and their Laplace transforms must depend on "
            "the rates z and z' of two times only by the cut-offs of the sums over modes; a time, a rate or "
            f"R_Delta, the response of the errors, remains in {result}"
        )
    return result


def _at_two(e: Expr) -> Expr:
    """Return the product of a Laplace transform at the rate z and the same transform at the rate z'.

    z and z' are the rates of two times; the cut-off eigenvalue also gets its value at z'.
    """
    first = simplify(e)
    return first * first.subs({z: z_, cut: cut_})


# -- laws ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class PowerLaw(ConditionalResult):
    """Power law ``loss ~ constant t^-exponent`` at late times.

    Attributes
    ----------
    regime
        Name of the regime: ``lazy``, ``leading``, ``rich``, ``batch``, ``width``, ``data`` or
        ``features``. In ``leading`` the law is that of the term ``gamma0^2 constant t^-exponent``, which
        may be negative; in ``width`` it is that of the term ``constant t^-exponent/N``. In ``data`` it is
        the final loss, ``constant P^-exponent``.
    formula
        Loss as a function of time, in ``data`` of P; in ``leading`` and ``width`` it includes the loss of the
        regime ``lazy``.
    exponent, constant
        Exponent and constant of the law.
    basis
        Sentences of :meth:`conditions`.
    crossover
        Times at which the law begins or ends, by the name of the other regime or of the cause, such as
        ``last mode``.
    series
        Sum of powers from which the exponent follows, if there is one.
    names
        Sums over modes that are symbols in the constant, by symbol.
    bottlenecks
        Effects of finite sizes on the law, in the regimes ``rich`` and ``features``.
    optimum
        Best division of a compute budget, in the regime ``features``.
    """

    regime: str
    formula: Expr
    exponent: Expr
    constant: Expr
    basis: tuple[str, ...]
    crossover: Mapping[str, Expr] = field(default_factory=dict)
    series: Powers | None = None
    names: Mapping[Symbol, Expr] = field(default_factory=dict)
    bottlenecks: tuple[Bottleneck, ...] = ()
    optimum: Any = None

    def _repr_latex_(self) -> str:
        return f"${latex(self.formula)}$"

    def conditions(self) -> tuple[str, ...]:
        """Return the range of the law, the derivations it follows from, and its assumptions, as sentences."""
        return self.basis


def lazy_law(
    modes: LazyModes,
    depth: Any = L,
    source: Any = beta,
    capacity: Any = capacity_,
    *,
    order: LeadingOrder | None = None,
) -> PowerLaw:
    """Return the law of lazy training: ``loss ~ t^-beta`` at any depth, for a flow or in steps.

    ``modes`` is the lazy limit of the theory. ``depth``, ``source`` (beta) and ``capacity`` are numbers or
    symbols. ``order`` is the order gamma0^2 of the loss. With it and a number below 1 for the source,
    ``crossover`` contains the time at which a flow leaves the regime; with a number above 1, a condition
    states the change of the constant. Raises ValueError for numbers that are not possible, and for steps in
    which the first mode diverges.

    >>> from derive import mean_field, structured
    >>> from derive.scale.modes import lazy_modes
    >>> law = lazy_law(lazy_modes(mean_field(structured(data="population", rule="flow"))))
    >>> print(law.exponent, law.formula, *law.crossover)
    beta gamma(beta)/(a*t**beta*(2*L + 2)**beta) last mode
    """
    values = numbers(depth, source, capacity)
    series = modes.loss().subs(values)
    crossover = {"last mode": modes.cutoff().subs(values)}
    conditions = [
        "gamma0 -> 0, or gamma0 > 0 and t below the crossover to feature learning",
        f"1 << t << {crossover['last mode']}, M the number of modes",
    ]
    if series.conditions == false:
        raise ValueError("the first mode diverges: the learning rate times the kernel must be below 2")
    if modes.theory.program.rule.discrete:
        conditions.append(f"{modes.kernel.subs(values)} < 2: the first mode does not diverge")
    elif order is not None and task_of(values[beta]) == HARD:
        crossover["features"] = order.crossover().subs(values)
    if order is not None and task_of(values[beta]) == EASY:
        share = order.relative(EASY).coefficient.subs(values)
        conditions.append(
            f"feature learning changes the constant by its fraction gamma0**2*({share}), and not the power"
        )
    conditions += modes.conditions()
    return _law("lazy", series.expr, series.terms[0], conditions, crossover, series)


def leading_law(
    order: LeadingOrder,
    depth: Any = L,
    source: Any = beta,
    capacity: Any = capacity_,
    *,
    task: str | None = None,
) -> PowerLaw:
    """Return the law of the term of order gamma0^2, the first effect of feature learning on the lazy loss.

    ``order`` is this order of the loss at late times. ``depth``, ``source`` and ``capacity`` are numbers or
    symbols. If the source is a symbol, ``task`` states whether it is below 1 (``hard``, the default) or above
    (``easy``). Raises ValueError for numbers that are not possible and for a ``task`` that contradicts the
    source, and :class:`NotApplicable` for a source of 1, where a logarithm occurs.
    """
    values = numbers(depth, source, capacity)
    kind = kind_of(values[beta], task, "the order gamma0^2", order.correction.turns(beta))
    series = order.correction.sorted(given(kind)).subs(values)
    top, beside = series.terms[0], series.terms[1].power if len(series.terms) > 1 else series.error
    conditions = [
        "source < 1" if kind == HARD else "source > 1",
        "gamma0**2 times the term is small compared with the lazy loss; the next order is gamma0**4",
        f"corrections are smaller by t**({simplify(beside - top.power)})",
        f"1 << t << {order.modes.cutoff().subs(values)}, M the number of modes",
    ]
    conditions += order.conditions()
    crossover = {"features": order.crossover().subs(values)} if kind == HARD else {}
    formula = order.lazy.subs(values).expr + gamma0**2 * series.expr
    return _law("leading", formula, top, conditions, crossover, series)


def rich_law(
    reduced: RankOne,
    modes: LazyModes,
    depth: Any = L,
    source: Any = beta,
    capacity: Any = capacity_,
    *,
    task: str | None = None,
    finite: Resources | None = None,
) -> PowerLaw:
    """Return the law of the rich regime, in which features have outgrown their initial values.

    The law is :func:`.rich_scaling` of the equations ``reduced``. ``depth``, ``source``, ``capacity`` and
    ``task`` are as for :func:`leading_law`; for hard tasks the power depends on depth, and ``crossover`` of
    the result has the time at which the regime starts, where its loss meets the lazy loss of ``modes``. With
    ``finite``, the noise of finite sizes, ``bottlenecks`` of the result are the times at which each noise
    dominates and the laws after them, for capacities above 1. Raises as :func:`leading_law` does, and
    NotApplicable if the constant has no closed form.
    """
    values = numbers(depth, source, capacity)
    law = rich_scaling(reduced, values[L], values[beta], values[capacity_], task=task)
    if law.constant.has(nan, zoo):
        raise NotApplicable(
            f"source = {values[beta]}: the closed form of the constant factor of the loss is 0/0 or infinite "
            "at this source"
        )
    before = modes.loss().subs(values).expr
    crossover = {"lazy": law.crossover(before)} if law.task == HARD else {}
    basis = law.conditions()
    effects: tuple[Bottleneck, ...] = ()
    if finite is not None and law.capacity.is_number and not law.capacity > 1:
        basis += (
            "effects of finite sizes are not given: for a capacity of 1 or less the sum of the eigenvalues "
            "diverges",
        )
    elif finite is not None:
        effects = bottlenecks(finite, law)
    return PowerLaw("rich", law.loss, law.exponent, law.constant, basis, crossover, bottlenecks=effects)


def batch_law(
    noise: BatchNoise,
    depth: Any = L,
    source: Any = beta,
    capacity: Any = capacity_,
    *,
    learning_rate: Any = eta,
    batch: Any = B,
) -> PowerLaw:
    """Return the law of descent on fresh batches, lazy and infinitely wide, without label noise.

    ``noise`` is the renewal equation of the loss, and ``t`` counts steps. ``depth``, ``source``,
    ``capacity``, ``learning_rate`` and ``batch`` (number of samples in a batch) are numbers or symbols. The
    loss falls as ``t^-source``, the power of the population loss, or as ``t^-(2 - 1/capacity)`` if this is
    slower: each batch perturbs modes that had been learnt, and these perturbations decay with this power. The
    constant contains a sum over modes, ``q`` (``amplification`` of :class:`BatchNoise`), and for the second
    power also ``A`` (``learnt``). Each is a number if all arguments in it are numbers, and a symbol
    otherwise. The sums are in ``names``.

    Raises
    ------
    NotApplicable
        If the two powers are equal, or symbols do not determine which of them applies.
    ValueError
        For a capacity of 1 or less, other numbers that are not possible, and numbers at which the loss
        diverges.

    Examples
    --------
    >>> from derive import mean_field, structured
    >>> from derive.scale.finite_batch import batch_noise
    >>> noise = batch_noise(mean_field(structured(noise=True)))
    >>> print(batch_law(noise, 1, "1/2", 2).exponent, batch_law(noise, 1, 2, "3/2").exponent)
    1/2 4/3
    >>> print(batch_law(noise, 1, "1/2", 2, learning_rate="1/5", batch=4).constant.n(6))
    1.09558
    """
    values = numbers(depth, source, capacity, summed=True)
    values |= {eta: exact("learning_rate", learning_rate), B: exact("batch", batch)}
    if values[eta].is_number and not values[eta] > 0:
        raise ValueError(f"learning_rate = {values[eta]}: must be positive")
    if values[B].is_number and not (values[B].is_Integer and values[B] > 0):
        raise ValueError(f"batch = {values[B]}: must be a whole number, at least 1")
    tails = noise.decay(names=True)
    try:
        leading = tails.subs(values).largest()
    except NotApplicable:
        where = tails.turns(beta).expand().subs(values)
        raise NotApplicable(
            f"source = {values[beta]}: must not be {where}, where two powers of t are equal; give source and "
            "capacity as numbers"
        ) from None
    names = {x: e.subs(values) for x, e in ((q, noise.amplification), (A, noise.learnt))}
    sums = {x: e for x, e in names.items() if x == q or leading.coefficient.has(x)}
    rate = noise.kernel.subs(values)
    if rate.is_number and not rate < 2:
        raise ValueError(
            f"learning_rate = {learning_rate}: the first mode diverges, because the learning rate times the "
            f"kernel of this mode is {rate} and not below 2"
        )
    numbers_known = {x: e.evalf(DIGITS) for x, e in sums.items() if not e.free_symbols - {k}}
    if q in numbers_known and not numbers_known[q] < 1:
        raise ValueError(
            f"learning_rate = {learning_rate}: the loss diverges, because q = {numbers_known[q].n(6)} is not "
            "below 1; q is the increase of the loss, summed over all later steps, that a loss of one causes "
            "by the noise of batches"
        )
    texts = {
        x: _sum_text(e) if x not in numbers_known else f"{float(numbers_known[x]):.10g}"
        for x, e in sums.items()
    }
    conditions = [
        "gamma0 -> 0, N -> oo, no label noise"
        + ("" if noise.label == 0 else f"; with label noise the final loss is {noise.floor(q)}"),
        f"q < 1, where q is the sum of all later losses that a unit of loss causes: q = {texts[q]}",
        *(
            [f"A is the loss of descent on the population loss, summed over steps: A = {texts[A]}"]
            if A in texts
            else []
        ),
        f"{rate} < 2: the first mode does not diverge",
        "t >> 1 steps",
        *noise.conditions(),
    ]
    leading = leading.subs(numbers_known)
    return replace(_law("batch", leading.at(time), leading, conditions), names=sums)


DIGITS = 10
"""Number of digits of sums over modes, which have no closed form."""


def _sum_text(e: Sum) -> str:
    """Return a sum over modes as text, for the list of symbols of a law.

    The text has the two lowest orders in the learning rate, as zeta functions, and the exact summand.
    """
    orders = e.function.leadterm(eta)[1] + 2
    expansion = series(e.function, eta, 0, orders).removeO().expand()
    powers = [Power.of(powsimp(x, force=True), k) for x in Add.make_args(expansion)]
    lowest_orders = Add(*[simplify(x.coefficient) * zeta(-x.power) for x in powers])
    return f"{lowest_orders} + O({eta**orders}), the sum over k >= 1 of {factor(e.function)}"


def width_law(
    noise: WidthNoise,
    depth: Any = L,
    source: Any = beta,
    capacity: Any = capacity_,
    *,
    task: str | None = None,
) -> PowerLaw:
    """Return the law of order 1/N of the lazy loss, ``c t^-exponent/N``.

    ``noise`` is this order, the sum of the variance and of the shift of the mean of the function of N units.
    ``depth``, ``source`` and ``capacity`` are numbers or symbols. If the source is a symbol, ``task`` states
    whether it is below 1 (``hard``, the default) or above (``easy``). Order 1/N falls more slowly than the
    loss of infinite width. For hard tasks both are equal at ``t ~ N^capacity``, where higher orders in 1/N
    also begin to matter; for easy tasks they are equal long before. Raises as :func:`leading_law` does, and
    ValueError for a capacity of 1 or less.
    """
    values = numbers(depth, source, capacity, summed=True)
    turn = noise.variance.turns(beta)
    kind = kind_of(values[beta], task, "the loss at order 1/N", turn)
    given_ = summable(kind)
    top, variance, mean = (x.largest(given_).subs(values) for x in (noise.total, noise.variance, noise.mean))
    number, powers = mean.coefficient.as_independent(*mean.coefficient.free_symbols, as_Add=False)
    mean_part = Power(number.n(6) * powers, mean.power)
    largest = noise.total.largest(given_)
    others = [p.power.subs(values) for p in noise.total.terms if p is not largest]
    beside = Max(*others, noise.total.error.subs(values))
    gap, end = simplify(mean.power - variance.power), noise.end().subs(values)
    conditions = [
        f"source < {turn}" if kind == HARD else f"source > {turn}",
        f"gamma0 -> 0, and t << {noise.last.subs(values)}, M the number of modes",
        f"t << {end}, the time at which order 1/N of the kernel of the modes is as large as the kernel",
        f"corrections are smaller by t**({simplify(beside - top.power)})",
        f"the shift of the mean error contributes {mean_part.at(time)}/N to the loss, "
        + ("of the same power as the variance" if gap == 0 else f"smaller than the variance by t**({gap})"),
    ]
    conditions += noise.conditions()
    formula = noise.lazy.subs(values).expr + top.at(time) / N
    crossover = {"width": noise.crossover(kind).subs(values), "order 1/N**2": end}
    return _law("width", formula, top, conditions, crossover, noise.total.subs(values))


def data_law(
    data: FixedData,
    modes: LazyModes,
    depth: Any = L,
    source: Any = beta,
    capacity: Any = capacity_,
    *,
    steep: bool | None = None,
) -> PowerLaw:
    """Return the law of P reused samples, lazy and infinitely wide: the test loss ends at ``c P^-exponent``.

    ``data`` is the lazy limit on fixed samples, and ``modes`` that of the population loss. ``depth``,
    ``source`` and ``capacity`` are numbers or symbols. For a source below 2 the exponent is ``capacity
    source``, and the loss is that of the population until it meets this floor at ``t ~ P^capacity``. Tasks
    with a source above 2 have the floor of a source of 2, and another power before it, ``t^-(2 -
    1/capacity)/P``. If the source is a symbol, ``steep`` states whether it is above 2; the default is False.
    Raises NotApplicable for a source of 2, where a logarithm occurs, and ValueError for a capacity of 1 or
    less or a ``steep`` that contradicts the source.

    >>> from derive import mean_field, structured
    >>> from derive.scale.modes import lazy_modes
    >>> modes = lazy_modes(mean_field(structured(data="population", rule="flow")))
    >>> data = fixed_data(mean_field(structured(data="full-batch", noise=True, rule="flow")))
    >>> found = data_law(data, modes)
    >>> when = found.crossover["lazy"]
    >>> print(found.exponent, simplify(P * when.diff(P) / when))
    a*beta a
    >>> found = data_law(data, modes, 1, 3, 2)
    >>> print(found.exponent, *[simplify(P * x.diff(P) / x) for x in found.crossover.values()])
    4 2/3 2
    """
    values = numbers(depth, source, capacity, summed=True)
    source_value, turn = values[beta], data.floor.turns(beta)
    if source_value == turn:
        raise NotApplicable(
            f"source = {source_value}: two powers of the number P of samples are equal at this source, so "
            "that a logarithm occurs, which is not derived: use a smaller or larger source"
        )
    if source_value.is_number:
        if steep is not None and steep != bool(source_value > turn):
            raise ValueError(
                f"steep = {steep}: must be {bool(source_value > turn)} for source = {source_value}; it may "
                "be left out"
            )
        steep = bool(source_value > turn)
    positive = Symbol("p", positive=True)
    floor = data.floor.sorted({beta: turn + positive if steep else turn / (1 + positive)}).subs(values)
    leading, end, before = floor.terms[0], floor.terms[0].at(P), modes.loss().terms[0]
    if steep:
        middle = Power(data.before_floor.coefficient / P, data.before_floor.power)
        crossover = {"lazy": middle.meets(before).subs(values)}
        crossover["end"] = ((end / middle.coefficient) ** (1 / middle.power)).subs(values)
        earlier = f"{middle.at(time).subs(values)} between the two crossovers"
    else:
        crossover = {"lazy": ((end / before.coefficient) ** (1 / before.power)).subs(values)}
        earlier = f"{before.at(time).subs(values)} before it"
    with_labels = ""
    if data.label != 0:
        before_final = (data.label_before_floor.at(time) / P).subs(values)
        with_labels = (
            f"; with label noise {data.label_floor.subs(values)} is added to the final loss, and "
            f"{before_final} before it is final"
        )
    conditions = [
        f"source > {turn}" if steep else f"source < {turn}",
        "gamma0 -> 0, N -> oo, 1 << P << M, M the number of modes",
        f"t beyond the last crossover; the loss is {earlier}",
        f"no label noise{with_labels}",
        *data.conditions(),
    ]
    return _law("data", end, leading, conditions, crossover, floor)


def _law(
    regime: str,
    formula: Expr,
    top: Power,
    conditions: list[str],
    crossover: Mapping[str, Expr] | None = None,
    series: Powers | None = None,
) -> PowerLaw:
    """Return a power law with the exponent and the constant of ``top``, its leading term.

    ``regime`` is its name, ``formula`` the loss as a function of time or of P, ``conditions`` are sentences,
    ``crossover`` has times by the names of other regimes, and ``series`` is the sum of powers that contains
    ``top``.
    """
    ansatz = (
        "assumed: eigenvalues and targets are powers of k, and there are so many modes that sums over them "
        "are infinite sums"
    )
    basis = (*conditions, ansatz)
    return PowerLaw(regime, formula, -top.power, top.coefficient, basis, crossover or {}, series)
