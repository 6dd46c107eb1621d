"""Exponents and constants of the loss on power-law data, by regime, with the range in which each holds.

Eigenvalues are ``k^-capacity``, and targets ``w_star(k)^2 lamda(k) = k^(-capacity source - 1)``; depth,
source and capacity may be numbers or symbols. Each law follows from a derived result:
:func:`~derive.scale.modes.lazy_modes`, :func:`~derive.scale.modes.leading_order`,
:func:`~derive.scale.rich.rank_one`, :func:`~derive.scale.finite_batch.batch_noise`,
:func:`~derive.scale.finite_width.width_noise`, and in this module the effect of finite data on the lazy law
(:func:`fixed_data`): other powers, and floors.

With fresh batches the loss drives every mode and obeys a renewal equation; the random initial weights drive
every mode with the learnt weights of the layers above; samples that are reused remember what has been fitted,
so that their responses obey a separate equation. The equations, their solutions in transforms, the sums over
modes, powers and constants are derived. Two theorems are taken from elsewhere and stated in the conditions of
each law: that a renewal equation falls as the singular parts of its transform (subexponential kernels; Feller
II, chapter XI), and that a function at late times is z times its transform at small z (final value theorem),
if the limit exists.
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
from derive.scale.lazy_responses import answers, on_eigenvalues, source_of, summable, weight_in_loss, z, z_
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


@dataclass(frozen=True)
class FixedData(ConditionalResult):
    """Lazy flow on the same P samples, infinitely wide, in Laplace transforms.

    ``balance`` determines the cut-off at the rate z; ``freedom`` is the summand of mode k in it. With
    ``signal`` and ``gain`` summed over modes, at the rates of two times, ``z z' C_v(z, z')`` is ``(signal +
    gain label)/(1 - gain)``. ``label`` is the variance of the label noise, and ``kernel`` is K.
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
        """Return the limits and the theorem that are used."""
        return (
            "derived: the cut-off and the correlations of errors in Laplace transforms, at gamma0 = 0 and "
            "N -> oo",
            "assumed: the loss has a limit at late times, which is that of its transform at small rates (the "
            "final value theorem)",
        )

    @cached_property
    def rest(self) -> Eq:
        """Equation for the cut-off at late times."""
        return Eq(self.balance.lhs, self.balance.rhs.subs(z, 0), evaluate=False)

    @cached_property
    def final(self) -> Expr:
        """Test loss at late times, for the cut-off of :attr:`rest`, without the noise of test labels."""
        (sums,) = self.rest.rhs.atoms(Sum)
        signal, gain = (Sum(x.subs(cut_, cut), *sums.limits) for x in (self.signal, self.gain))
        return (signal + gain * self.label) / (1 - gain)

    # -- power-law data --------------------------------------------------------------------------------------

    @cached_property
    def _free(self) -> tuple[Power, ...]:
        """Sum of :attr:`freedom` over the modes."""
        return sum_over_modes(self.freedom, cut).terms

    @property
    def scale(self) -> Power:
        """Cut-off at late times for infinitely many modes, in P, to leading order; capacities above 1."""
        top = self._free[0]
        return Power(gammasimp(top.coefficient) ** (1 / top.power), -1 / top.power)

    @cached_property
    def amplified(self) -> Expr:
        """Amplification ``1/(1 - gain)`` at late times."""
        spent, whole = sum_over_modes((P * self.gain).subs(cut_, cut), cut).terms[0], self._free[0]
        if simplify(spent.power - whole.power) != 0:
            raise NotApplicable(f"the gain has the power {spent.power} of its inverse, not {whole.power}")
        return factor(1 / (1 - simplify(gammasimp(spent.coefficient / whole.coefficient))))

    @cached_property
    def floor(self) -> Powers:
        """Final loss without label noise: the unseen part of the target, and the error of seen modes."""
        found, scale, front = sum_over_modes(self.signal.subs(cut_, cut), cut), self.scale, self.amplified
        top, next_ = self._free
        terms = tuple(
            Power(
                powdenest(front * p.coefficient * scale.coefficient**-p.power, force=True),
                simplify(-p.power * scale.power),
            )
            for p in found.terms
        )
        beside = simplify((top.power - next_.power) * scale.power)
        return Powers(P, terms, Max(*[p.power for p in terms]) + beside, found.conditions)

    @cached_property
    def label_floor(self) -> Expr:
        """Part of the final loss from label noise, at which the samples are fitted including their noise."""
        return factor(self.label * (self.amplified - 1))

    @cached_property
    def stirred(self) -> Power:
        """Term of order 1/P before the floor, for a source above 2: ``c t^-(2 - 1/capacity)``, times 1/P.

        While the first modes are learnt, errors on the samples drive the other modes. The drive has a finite
        sum, and a mode forgets it as it is learnt.
        """
        here = on_power_law(simplify(self.signal / (cut * cut_)).subs({cut: 0, cut_: 0}))
        here = powsimp(powdenest(on_eigenvalues(here), force=True))
        pushes = Power.of(here, k)
        return self._order_one(cut * cut_, pushes.coefficient * zeta(-pushes.power))

    @cached_property
    def label_fit(self) -> Power:
        """Term of order 1/P of fitted label noise before the floor: ``c t^(1/capacity)``, times 1/P."""
        return self._order_one(S.One, self.label)

    def _order_one(self, rates: Expr, value: Expr) -> Power:
        """Return ``P gain rates value/(z z')`` at order 0 in 1/P, at equal late times."""
        mode = Dummy("lamda", positive=True)
        free = P * self.gain * rates / (z * z_)
        both = free.xreplace({lamda(k): mode}).subs({cut: z / K, cut_: z_ / K})
        once = inverse_laplace_transform(both, z, _t)
        twice = simplify(inverse_laplace_transform(once, z_, _t_).subs(_t_, _t)).expand()
        top = sum_over_modes(twice.xreplace({mode: lamda(k)}), 1 / (K * _t)).terms[0]
        power = simplify(top.power)
        return Power(factor_terms((value * top.coefficient).subs(K, self.kernel) * self.kernel**power), power)


def sum_over_modes(summand: Expr, unit: Expr) -> Powers:
    """Return the sum over infinitely many modes of power-law data, in powers of 1/unit as ``unit`` falls."""
    y, x = Dummy("y", positive=True), Dummy("x", positive=True)
    weight, rest = on_power_law(summand).as_independent(lamda(k), *unit.free_symbols, as_Add=False)
    own = next(x for x in unit.free_symbols if x == cut or isinstance(x, Dummy))
    rest = simplify(rest.subs(own, solve(unit - 1 / x, own)[0]).subs(lamda(k), y / x))
    F, of = Power.of(rest, x), Power.of(weight, k)
    found = mode_sum(F.coefficient, y, -of.power, capacity_, x, terms=1)
    return found.scaled(of.coefficient, F.power)


def fixed_data(theory: Theory) -> FixedData:
    """Return the lazy limit of flow on fixed structured samples at N -> oo and gamma0 -> 0.

    Raises :class:`NotApplicable` if the equation for the cut-off does not close.

    >>> from derive import mean_field, structured
    >>> found = fixed_data(mean_field(structured(data="full-batch", noise=True, rule="flow")))
    >>> print(found.kernel, "|", found.balance.rhs)
    L + 1 | Sum(lamda(k)/(lamda_c + lamda(k)), (k, 1, M)) + P*z/(K*lamda_c)
    >>> print(found.signal.subs(cut_, cut), "|", found.gain.subs(cut_, cut))
    lamda_c**2*lamda(k)*w_star(k)**2/(lamda_c + lamda(k))**2 | lamda(k)**2/(P*(lamda_c + lamda(k))**2)
    >>> print(found.scale.power, found.amplified, found.label_floor)
    -a a sigma**2*(a - 1)
    >>> print([p.power for p in found.floor.terms], found.stirred.power, found.label_fit.power)
    [-a*beta, -2*a] -2 + 1/a 1/a
    """
    theory = wide(theory)
    _, kernel = kernel_of_modes(theory)
    R, loop, v = Symbol("R_Delta", positive=True), Symbol("R_vu"), Function("v")
    into_v, into_h0 = (answers(theory, name, R)["v"] for name in ("v", "h0"))
    push, samples = (linear_form(theory).row(name) for name in ("h0", "Delta"))
    u0, u_Delta, eps = (source_of(theory, name) for name in ("u0", "u_Delta", "eps"))
    enters = factor_of(push, "u0")

    summed = theory.order_parameter("R_vu").definition
    (response,) = summed.atoms(Response)
    answer = response.body / v(k, t) * enters * into_h0  # contribution of mode k to R_vu
    errors = transfer(theory, "Delta")
    around = errors.operators["Delta"].subs({x.operator: loop for x in errors.kernels})
    (back,) = solve(around - R, loop)
    at = {R: z / (K * cut)}
    freedom = simplify((-P * R * answer).subs(at))
    rest = simplify((P + P * R * back).subs(at))  # -P R times: R_vu by its sum is R_vu by R_Delta
    balance = Eq(P, rest + Sum(freedom, *summed.limits), evaluate=False)

    weight = weight_in_loss(theory)
    drive = enters**2 * u0.covariance / Function("C_Delta")(t, s) * factor_of(samples, "u_Delta") ** 2
    drive *= u_Delta.covariance / Function("C_v")(t, s)
    label = factor_of(samples, "eps") ** 2 * eps.covariance
    signal = weight * at_start(theory) ** 2 * _at_two(into_v.subs(at))
    gain = weight * drive * _at_two((into_h0 * R).subs(at))
    found = FixedData(theory, kernel, balance, freedom, signal, gain, label)
    if any(e.has(t, s, z, z_, R) for e in (freedom, signal, gain, label)):
        raise NotApplicable(f"{found} has times left: kernels that depend on more than differences of times")
    return found


def _at_two(e: Expr) -> Expr:
    """Return a transform at the rates of two times."""
    one = simplify(e)
    return one * one.subs({z: z_, cut: cut_})


# -- laws ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PowerLaw(ConditionalResult):
    """Power law ``loss ~ constant t^-exponent`` at late times.

    At leading order in gamma0 it is the term ``gamma0^2 c t^-exponent``, and ``constant`` has its sign. On
    finite data it is the final loss, ``constant P^-exponent``. ``formula`` is the loss with all known terms,
    ``basis`` are the conditions, and ``crossover`` are the times at which it meets other regimes, by their
    names. ``series`` is the sum of powers from which the exponent follows, if there is one, and ``names`` are
    the sums over modes that are symbols in the constant. ``bottlenecks`` are the effects of finite sizes on
    the law of the rich regime, or of random features, for which ``optimum`` is the best division of a compute
    budget.
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
        """Return the range of the law, the derivations it follows from, and its assumptions."""
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

    With the ``order`` gamma0^2 the crossover at which a flow leaves the regime is included. Raises ValueError
    for numbers that are not possible.

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
        raise ValueError("the first mode diverges")
    if modes.theory.program.rule.discrete:
        conditions.append(f"{modes.kernel.subs(values)} < 2: the first mode does not diverge")
    elif order is not None and task_of(values[beta]) == HARD:
        crossover["features"] = order.crossover().subs(values)
    if order is not None and task_of(values[beta]) == EASY:
        share = order.relative(EASY).coefficient.subs(values)
        conditions.append(f"features change the constant by the share gamma0**2*({share}), not the power")
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
    """Return the law of order gamma0^2, the first effect of feature learning on the lazy loss.

    ``task`` (``hard``: source below 1, or ``easy``) is needed if the source is a symbol, and is ``hard`` by
    default. Raises ValueError for numbers that are not possible, and :class:`NotApplicable` for a source of
    1, where a logarithm occurs.
    """
    values = numbers(depth, source, capacity)
    kind = kind_of(values[beta], task, "the order gamma0^2", order.correction.turns(beta))
    series = order.correction.sorted(given(kind)).subs(values)
    top, beside = series.terms[0], series.terms[1].power if len(series.terms) > 1 else series.error
    conditions = [
        "source < 1" if kind == HARD else "source > 1",
        "gamma0**2 times the term is small beside the lazy loss; the next order is gamma0**4",
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

    See :mod:`derive.scale.rich`. For hard tasks the power depends on depth. ``crossover`` is the start of the
    regime, where its loss meets the lazy loss of ``modes``. With ``finite``, the noise of finite sizes,
    ``bottlenecks`` are the times at which each dominates and the laws after them, for capacities above 1.
    Raises as :func:`leading_law` does, and NotApplicable if the constant has no closed form.
    """
    values = numbers(depth, source, capacity)
    found = rich_scaling(reduced, values[L], values[beta], values[capacity_], task=task)
    if found.constant.has(nan, zoo):
        raise NotApplicable(f"source = {values[beta]}: the closed form of the constant is 0/0 there")
    before = modes.loss().subs(values).expr
    crossover = {"lazy": found.crossover(before)} if found.task == HARD else {}
    basis = found.conditions()
    sizes: tuple[Bottleneck, ...] = ()
    if finite is not None and found.capacity.is_number and not found.capacity > 1:
        basis += ("finite sizes are left out: eigenvalues of a capacity of 1 or less have no sum",)
    elif finite is not None:
        sizes = bottlenecks(finite, found)
    return PowerLaw("rich", found.loss, found.exponent, found.constant, basis, crossover, bottlenecks=sizes)


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

    ``t`` counts steps. If targets are learnt faster than ``t^-(2 - 1/capacity)``, this is the power of the
    loss: each batch perturbs modes that had been learnt, and they do not forget it faster. The constant
    contains two sums over modes, q and A of :class:`BatchNoise`: symbols whose sums are in ``names``, or
    numbers if the depth, the source, the capacity, the learning rate and the batch are numbers.

    Raises
    ------
    NotApplicable
        If symbols do not determine which of the two powers applies.
    ValueError
        For a capacity of 1 or less, and for numbers at which the loss diverges.

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
    for name, x in (("learning_rate", values[eta]), ("batch", values[B])):
        if x.is_number and not x > 0:
            raise ValueError(f"{name} = {x}: must be positive")
    tails = noise.decay(names=True)
    try:
        top = tails.subs(values).largest()
    except NotApplicable:
        where = tails.turns(beta).expand().subs(values)
        raise NotApplicable(f"source = {values[beta]}: must be below or above {where}") from None
    names = {x: e.subs(values) for x, e in ((q, noise.amplification), (A, noise.learnt))}
    used = {x: e for x, e in names.items() if x == q or top.coefficient.has(x)}
    rate = noise.kernel.subs(values)
    if rate.is_number and not rate < 2:
        raise ValueError(
            f"learning_rate = {learning_rate}: the first mode diverges, as {rate} is not below 2"
        )
    known = {x: e.evalf(DIGITS) for x, e in used.items() if not e.free_symbols - {k}}
    if q in known and not known[q] < 1:
        raise ValueError(
            f"learning_rate = {learning_rate}: the loss diverges, as q = {known[q].n(6)} is not below 1"
        )
    said = {x: _sum_said(e) if x not in known else f"{float(known[x]):.10g}" for x, e in used.items()}
    conditions = [
        f"gamma0 -> 0, N -> oo, no label noise; with it the loss ends at {noise.floor(q)}",
        f"q < 1, which is what a unit of loss adds to all later losses: q = {said[q]}",
        *([f"A is the population's loss, summed over all steps: A = {said[A]}"] if A in said else []),
        f"{rate} < 2: the first mode does not diverge",
        "t >> 1 steps",
        *noise.conditions(),
    ]
    top = top.subs(known)
    return replace(_law("batch", top.at(time), top, conditions), names=used)


DIGITS = 10
"""Names of sums over modes without closed form."""


def _sum_said(e: Sum) -> str:
    """Return a sum over modes as text, with two orders in the learning rate as zeta functions."""
    orders = e.function.leadterm(eta)[1] + 2
    parts = series(e.function, eta, 0, orders).removeO().expand()
    powers = [Power.of(powsimp(x, force=True), k) for x in Add.make_args(parts)]
    small = Add(*[simplify(x.coefficient) * zeta(-x.power) for x in powers])
    return f"{small} + O({eta**orders}), the sum over k >= 1 of {factor(e.function)}"


def width_law(
    noise: WidthNoise,
    depth: Any = L,
    source: Any = beta,
    capacity: Any = capacity_,
    *,
    task: str | None = None,
) -> PowerLaw:
    """Return order 1/N of the lazy loss, ``c t^-exponent/N``: variance and mean of the function of N units.

    For easy tasks the variance falls more slowly than the loss of infinite width, and dominates long before
    order 1/N ends; for hard tasks both have the same power. Raises as :func:`leading_law` does, and
    ValueError for a capacity of 1 or less.
    """
    values = numbers(depth, source, capacity, summed=True)
    turn = noise.variance.turns(beta)
    kind = kind_of(values[beta], task, "the loss at order 1/N", turn)
    given_ = summable(kind)
    top, variance, mean = (x.largest(given_).subs(values) for x in (noise.total, noise.variance, noise.mean))
    number, rest = mean.coefficient.as_independent(*mean.coefficient.free_symbols, as_Add=False)
    part = Power(number.n(6) * rest, mean.power)
    largest = noise.total.largest(given_)
    others = [p.power.subs(values) for p in noise.total.terms if p is not largest]
    beside = Max(*others, noise.total.error.subs(values))
    gap, end = simplify(mean.power - variance.power), noise.end().subs(values)
    conditions = [
        f"source < {turn}" if kind == HARD else f"source > {turn}",
        f"gamma0 -> 0, and t << {noise.last.subs(values)}, M the number of modes",
        f"t << {end}, where order 1/N of the kernel of the modes is as large as the kernel",
        f"corrections are smaller by t**({simplify(beside - top.power)})",
        f"the mean error's part is {part.at(time)}/N, "
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

    For a source below 2 the exponent is ``capacity source``, and the loss is that of the population until it
    meets this floor at ``t ~ P^capacity``. ``steep`` tasks, with a source above 2, have the floor of a source
    of 2, and another power before it, ``t^-(2 - 1/capacity)/P``. ``steep`` is needed if the source is a
    symbol, and is False by default. Raises NotApplicable for a source of 2, where a logarithm occurs,
    ValueError for a capacity of 1 or less.

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
    b, turn = values[beta], data.floor.turns(beta)
    if b == turn:
        raise NotApplicable(f"source = {b}: two powers of P meet, and there is a logarithm")
    if b.is_number:
        if steep is not None and steep != bool(b > turn):
            raise ValueError(f"steep = {steep}: a source of {b} makes it {bool(b > turn)}")
        steep = bool(b > turn)
    more = Symbol("p", positive=True)
    found = data.floor.sorted({beta: turn + more if steep else turn / (1 + more)}).subs(values)
    top, end, before = found.terms[0], found.terms[0].at(P), modes.loss().terms[0]
    if steep:
        middle = Power(data.stirred.coefficient / P, data.stirred.power)
        crossover = {"lazy": middle.meets(before).subs(values)}
        crossover["end"] = ((end / middle.coefficient) ** (1 / middle.power)).subs(values)
        earlier = f"{middle.at(time).subs(values)} between the two crossovers"
    else:
        crossover = {"lazy": ((end / before.coefficient) ** (1 / before.power)).subs(values)}
        earlier = f"{before.at(time).subs(values)} before it"
    conditions = [
        f"source > {turn}" if steep else f"source < {turn}",
        "gamma0 -> 0, N -> oo, 1 << P << M, M the number of modes",
        f"t beyond the last crossover; the loss is {earlier}",
        f"no label noise; with it {data.label_floor.subs(values)} is added at the end, and "
        f"{(data.label_fit.at(time) / P).subs(values)} before",
        *data.conditions(),
    ]
    return _law("data", end, top, conditions, crossover, found)


def _law(
    regime: str,
    formula: Expr,
    top: Power,
    conditions: list[str],
    crossover: Mapping[str, Expr] | None = None,
    series: Powers | None = None,
) -> PowerLaw:
    """Return a law whose exponent and constant are those of the leading term."""
    ansatz = (
        "assumed: the eigenvalues and targets are powers of k, and modes are many enough for sums without "
        "an end"
    )
    said = (*conditions, ansatz)
    return PowerLaw(regime, formula, -top.power, top.coefficient, said, crossover or {}, series)
