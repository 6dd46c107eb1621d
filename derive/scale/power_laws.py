"""Exponents of the loss on power-law data, by regime: with constants, with when each holds and where it ends.

Eigenvalues are ``k^-capacity``, targets ``w_star(k)^2 lamda(k) = k^(-capacity source - 1)``; the depth, the
source and the capacity may be numbers or symbols.  Each law is read from what was derived of a theory:
:func:`~derive.scale.modes.lazy_modes`, :func:`~derive.scale.modes.leading_order`,
:func:`~derive.scale.rich.rank_one`, and here what finite batches (:func:`batch_noise`), finite width
(:func:`width_noise`) and finite data (:func:`fixed_data`) do to the lazy law: other powers, and floors.

A fresh batch drives every mode with the loss itself, so the loss obeys a renewal equation; the randomness of
the first weights drives it with what the layers above have learnt; samples that are used at every step
remember what has been fitted, so their responses obey an equation of their own.  Derived: the equations,
their solutions in transforms, the sums over modes, powers and constants.  Taken from elsewhere, and said in
the conditions of each law: that a renewal equation falls as the singular parts of its transform say
(subexponential kernels; Feller II, chapter XI), and that a function at late times is z times its transform
at small z (final value theorem), where the limit is taken to exist.
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
    Ne,
    S,
    Sum,
    Symbol,
    exp,
    factor,
    factor_terms,
    false,
    gammasimp,
    integrate,
    inverse_laplace_transform,
    nan,
    oo,
    powdenest,
    powsimp,
    simplify,
    solve,
    zeta,
    zoo,
)

from derive.calculus.averages import Average, Response
from derive.calculus.symbols import L, gamma0, s, t
from derive.errors import NotApplicable
from derive.linear.form import linear_form
from derive.linear.propagators import START, transfer
from derive.program.networks.random_data import N, P, k
from derive.reduce.data import mode_sums
from derive.scale.mellin import Power, Powers, convolution, mode_sum, total
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
    in_modes,
    kernel_of_modes,
    kind_of,
    lamda,
    late,
    numbers,
    on_power_law,
    powers_of,
    rate_,
    task_of,
    time,
    wide,
)
from derive.scale.modes import capacity as capacity_
from derive.scale.rich import RankOne, rich_scaling
from derive.show.latex import aligned_latex, latex
from derive.theory import Source, Theory

z, z_ = Symbol("z", positive=True), Symbol("zprime", positive=True)
"""Rates that belong to two times."""
cut, cut_ = Symbol("lamda_c", positive=True), Symbol("lamda_cprime", positive=True)
"""``z/(K R_Delta(z))``, a cut-off: modes with eigenvalues above it have been learnt."""
_t, _t_ = Dummy("t", positive=True), Dummy("t'", positive=True)


def _eigenvalues(e: Expr) -> Expr:
    return e.subs(lamda(k), k**-capacity_)


def _weight(theory: Theory) -> Expr:
    """What a mode adds to the loss, over the squared error ``v(k,t) v(k,s)``."""
    (average,) = theory.order_parameter("C_v").definition.atoms(Average)
    v = Function("v")
    return average.args[0] / (v(k, t) * v(k, s))


def _source(theory: Theory, name: str) -> Source:
    return next(x for x in theory.sources if x.symbol.func == Function(name))


# -- batches -----------------------------------------------------------------------------------------------


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

    def _repr_latex_(self) -> str:
        return self.decay()._repr_latex_()

    @cached_property
    def _renewed(self) -> tuple[Expr, Symbol, Symbol, Symbol]:
        """The loss by the transforms of signal, gain and labels: ``l = s + g (l + n)``."""
        loss, signal, gain, labels = (Dummy(x) for x in ("l", "s", "g", "n"))
        (found,) = solve(signal + gain * (loss + labels) - loss, loss)
        return found, signal, gain, labels

    def floor(self, amplification: Expr | None = None) -> Expr:
        """What the loss tends to: zero without label noise; a name for the amplification may be given.

        A drive that does not stop has a pole in its transform, and the loss the same with another residue.
        """
        loss, _, gain, labels = self._renewed
        return factor(loss.diff(labels) * self.label).subs(gain, amplification or self.amplification)

    def decay(self) -> Powers:
        """The loss without label noise: what the tails add, to first order in singular transforms.

        Where the signal falls slower than the gain (``source < 2 - 1/capacity``) it is the signal, amplified;
        on steeper tasks the loss follows the tail of the gain, and no source is learnt faster.
        """
        loss, signal, gain, labels = self._renewed
        at = {labels: S.Zero, gain: self.amplification, signal: self.learnt}
        parts = [(self.signal, loss.diff(signal)), (self.gain, loss.diff(gain))]
        tails = [Power(factor(e).subs(at) * x.terms[0].coefficient, x.terms[0].power) for x, e in parts]
        return Powers(time, tuple(tails))


def batch_noise(theory: Theory) -> BatchNoise:
    """Read off the theory of online descent on structured data, in the limits N -> oo and gamma0 -> 0.

    The depth may be a symbol; the capacity must be above 1.

    >>> from derive import mean_field, structured
    >>> noise = batch_noise(mean_field(structured(noise=True)))
    >>> print(noise.kernel, *[simplify(x.power) for x in noise.decay().terms])
    eta*(L + 1) -beta -2 + 1/a
    >>> print(noise.floor(Symbol("q")))
    -q*sigma**2/(q - 1)
    """
    theory = wide(theory)
    _, kernel = kernel_of_modes(theory)
    form, u0 = linear_form(theory), _source(theory, "u0")
    push, errors = form.row("h0"), form.row("Delta")
    per_loss = factor_of(push, "u0") ** 2 * _at_once(u0.covariance) / Function("C_Delta")(t, t)
    weight = _weight(theory)
    keeps = 1 - K * factor_of(push, "v")
    added, start = simplify(weight * per_loss * K**2), weight * at_start(theory) ** 2
    sources = [x for x in theory.sources if not x.covariance.has(Function("C_v"))]
    label = Add(*[factor_of(errors, str(x.symbol.func)) ** 2 * _at_once(x.covariance) for x in sources])
    put = {K: kernel}
    over = 1 / (1 - keeps**2)
    amplification, learnt = (
        Sum(factor(_eigenvalues(on_power_law(x) * over)), (k, 1, oo)).xreplace(put) for x in (added, start)
    )
    signal = late(start * keeps ** (2 * t), 2).subs(put)
    gain = late(_eigenvalues(added) * keeps ** (2 * t), 2).subs(put)
    return BatchNoise(kernel, signal, gain, amplification, learnt, label)


def _at_once(covariance: Expr) -> Expr:
    """The variance of a source that is fresh at every step."""
    return simplify(covariance.subs(s, t))


# -- width -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WidthNoise:
    """Order 1/N of the lazy loss of a flow: the variance of the function that N units learn.

    ``variance`` times 1/N is added to the loss.  The mean of the error has an order 1/N of its own, a share
    ``t^(1/capacity)/N`` of the loss; on easy tasks the variance is larger by a power of t, on hard ones it is
    alike.  Both say that order 1/N is all there is as long as ``t << N^capacity``.
    """

    lazy: Powers
    variance: Powers

    def _repr_latex_(self) -> str:
        return self.variance._repr_latex_()

    def crossover(self, task: str) -> Expr:
        """The time at which the variance is as large as the loss of infinite width."""
        (base,) = self.lazy.terms
        top = self.variance.sorted(width_order(task)).terms[0]
        return Power(top.coefficient / N, top.power).meets(base)


def width_noise(theory: Theory, samples: Theory, modes: LazyModes) -> WidthNoise:
    """Order 1/N from the structured theory of finite width, in flow on the population's loss.

    ``samples`` is the theory of the same network on fixed samples, as :func:`derive.scale.modes.pair_force`
    takes it, ``modes`` the lazy limit of ``theory``.  The source of the modes is the first weights'
    randomness, times ``g(1)``; what it has at the start is subtracted, so that it counts how ``g(1)`` moves,
    which is order gamma0 and known in words.  Raises :class:`NotApplicable` where it enters otherwise.

    >>> from derive import mean_field, mlp, structured
    >>> from derive.scale.modes import lazy_modes
    >>> theory = mean_field(structured(data="population", rule="flow"))
    >>> noise = width_noise(theory, mean_field(mlp(rule="flow", loss="sum")), lazy_modes(theory))
    >>> print([p.power for p in noise.variance.terms], noise.variance.error)
    [-beta + 1/a, -1 + 1/a] Max(-2 + 1/a, -beta - 1)
    >>> for task in ("hard", "easy"):
    ...     when = noise.crossover(task)
    ...     print(task, simplify(N * when.diff(N) / when))
    hard a
    easy a/(a*(beta - 1) + 1)
    """
    theory = mode_sums(theory)
    r0 = _source(theory, "r0")
    front = factor_of(linear_form(theory).row("xi"), "r0")
    share = simplify((front * gamma0) ** 2 * r0.covariance / Function("C_g")(1, t, s))
    if share != 1 / N:
        raise NotApplicable(f"r0 enters with the variance {share}")
    # d/dt d/ds of order gamma0^2 of C_g(1, t, s), a sum over modes
    moved = in_modes(samples, {rate_: S.One}).coefficient("G", 2, layer=1).subs(K, modes.kernel).diff(t, s)
    if simplify(moved.subs({t: t + s, s: 0}) - moved) != 0:
        raise NotApplicable(f"{moved} does not depend on t + s alone")
    strength, wave = moved.subs(s, 0).as_independent(rate_, as_Add=False)
    power, _ = powers_of(wave, rate_)
    # int_0^t int_0^t of the sums own(2 t - x - y) drive(x + y): tau = x + y, or what is left of 2 t
    u = Dummy("u", positive=True)
    own, drive = (exp(-u), capacity_), (exp(-u), capacity_ * (beta + power) + 1)
    found = total(
        convolution(x, y, u, capacity_, time, less=1, weight=1, early=early)
        for x, y, early in ((own, drive, 1), (drive, own, 0))
    )
    # so far for rates k^-capacity and times t kernel
    fronts = [strength * p.coefficient * modes.kernel ** simplify(p.power + power - 2) for p in found.terms]
    terms = [Power(factor_terms(c), p.power.expand()) for c, p in zip(fronts, found.terms, strict=True)]
    variance = Powers(time, tuple(terms), found.error.expand())
    return WidthNoise(modes.loss(), replace(variance, conditions=Ne(beta, variance.turns(beta))))


def width_order(task: str) -> dict[Symbol, Expr]:
    """beta and the capacity in terms of positive numbers: the capacity is above 1."""
    return {**given(task), capacity_: 1 + Symbol("p_a", positive=True)}


# -- data --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FixedData:
    """Lazy flow on the same P samples, infinitely wide, by Laplace transforms.

    ``balance`` determines the cut-off at the rate z; ``freedom`` is what mode k adds to the sum in it.  With
    ``signal`` and ``gain`` summed over modes, at the rates of two times, ``z z' C_v(z, z')`` is
    ``(signal + gain label)/(1 - gain)``; ``label`` is the variance of the labels' noise, ``kernel`` is K.
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

    @cached_property
    def rest(self) -> Eq:
        """The equation for the cut-off at late times."""
        return Eq(self.balance.lhs, self.balance.rhs.subs(z, 0), evaluate=False)

    @cached_property
    def final(self) -> Expr:
        """The test loss at late times, for the cut-off of :attr:`rest`; without the labels' own noise."""
        (sums,) = self.rest.rhs.atoms(Sum)
        signal, gain = (Sum(x.subs(cut_, cut), *sums.limits) for x in (self.signal, self.gain))
        return (signal + gain * self.label) / (1 - gain)

    # -- power-law data --------------------------------------------------------------------------------------

    @cached_property
    def _free(self) -> tuple[Power, ...]:
        """The sum of :attr:`freedom` over the modes."""
        return _sum_over_modes(self.freedom, cut).terms

    @property
    def scale(self) -> Power:
        """The cut-off at late times for infinitely many modes, in P, to leading order; capacities above 1."""
        top = self._free[0]
        return Power(gammasimp(top.coefficient) ** (1 / top.power), -1 / top.power)

    @cached_property
    def amplified(self) -> Expr:
        """``1/(1 - gain)`` at late times."""
        spent, whole = _sum_over_modes((P * self.gain).subs(cut_, cut), cut).terms[0], self._free[0]
        if simplify(spent.power - whole.power) != 0:
            raise NotApplicable(f"the gain has the power {spent.power} of its inverse, not {whole.power}")
        return factor(1 / (1 - simplify(gammasimp(spent.coefficient / whole.coefficient))))

    @cached_property
    def floor(self) -> Powers:
        """The final loss without label noise: what is not seen of the target, and what seen modes miss."""
        found, scale, front = _sum_over_modes(self.signal.subs(cut_, cut), cut), self.scale, self.amplified
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
        """What label noise adds to the final loss, at which the samples are fitted with their noise."""
        return factor(self.label * (self.amplified - 1))

    @cached_property
    def stirred(self) -> Power:
        """Order 1/P before the floor, on tasks with a source above 2: ``c t^-(2 - 1/capacity)``, times 1/P.

        While the first modes are learnt, errors on the samples push those that are not.  The pushes have a
        finite sum, and a mode forgets them as it is learnt.
        """
        here = on_power_law(simplify(self.signal / (cut * cut_)).subs({cut: 0, cut_: 0}))
        here = powsimp(powdenest(_eigenvalues(here), force=True))
        pushes = Power.of(here, k)
        return self._order_one(cut * cut_, pushes.coefficient * zeta(-pushes.power))

    @cached_property
    def label_fit(self) -> Power:
        """Order 1/P of label noise that has been fitted before the floor: ``c t^(1/capacity)``, times 1/P."""
        return self._order_one(S.One, self.label)

    def _order_one(self, rates: Expr, value: Expr) -> Power:
        """``P gain rates value/(z z')`` at order 0 in 1/P, with the cut-off ``z/K``, at equal late times."""
        mode = Dummy("lamda", positive=True)
        free = P * self.gain * rates / (z * z_)
        both = free.xreplace({lamda(k): mode}).subs({cut: z / K, cut_: z_ / K})
        once = inverse_laplace_transform(both, z, _t)
        twice = simplify(inverse_laplace_transform(once, z_, _t_).subs(_t_, _t)).expand()
        top = _sum_over_modes(twice.xreplace({mode: lamda(k)}), 1 / (K * _t)).terms[0]
        power = simplify(top.power)
        return Power(factor_terms((value * top.coefficient).subs(K, self.kernel) * self.kernel**power), power)


def _sum_over_modes(summand: Expr, unit: Expr) -> Powers:
    """The sum over infinitely many modes of power-law data as ``unit``, to which eigenvalues compare, falls.

    In powers of 1/unit.
    """
    y, x = Dummy("y", positive=True), Dummy("x", positive=True)
    weight, rest = on_power_law(summand).as_independent(lamda(k), *unit.free_symbols, as_Add=False)
    own = next(iter(unit.free_symbols & {cut, _t}))
    rest = simplify(rest.subs(own, solve(unit - 1 / x, own)[0]).subs(lamda(k), y / x))
    F, of = Power.of(rest, x), Power.of(weight, k)
    found = mode_sum(F.coefficient, y, -of.power, capacity_, x, terms=1)
    return found.scaled(of.coefficient, F.power)


def fixed_data(theory: Theory) -> FixedData:
    """Read off the theory of flow on fixed structured samples, in the limits N -> oo and gamma0 -> 0.

    Raises :class:`NotApplicable` where the equation for the cut-off does not close.

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
    into_v, into_h0 = (_answer(theory, name, R) for name in ("v", "h0"))
    push, samples = (linear_form(theory).row(name) for name in ("h0", "Delta"))
    u0, u_Delta, eps = (_source(theory, name) for name in ("u0", "u_Delta", "eps"))
    enters = factor_of(push, "u0")

    summed = theory.order_parameter("R_vu").definition
    (response,) = summed.atoms(Response)
    answer = response.body / v(k, t) * enters * into_h0  # what mode k adds to R_vu
    errors = transfer(theory, "Delta")
    around = errors.operators["Delta"].subs({x.operator: loop for x in errors.kernels})
    (back,) = solve(around - R, loop)
    at = {R: z / (K * cut)}
    freedom = simplify((-P * R * answer).subs(at))
    rest = simplify((P + P * R * back).subs(at))  # -P R times: R_vu by its sum is R_vu by R_Delta
    balance = Eq(P, rest + Sum(freedom, *summed.limits), evaluate=False)

    weight = _weight(theory)
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
    """A transform's value at the rates of two times."""
    one = simplify(e)
    return one * one.subs({z: z_, cut: cut_})


def _answer(theory: Theory, into: str, R: Symbol) -> Expr:
    """The transform of ``H_v_into`` at gamma0 = 0.

    The kernel of the function is the constant K, with the transform K/z; that of the inputs contains
    ``R_Delta``.  A flow's memory is empty at time 0.
    """
    found = transfer(theory, into)
    values = {START: S.Zero}
    for x in found.kernels:
        if x.name == "K_xi_h0":
            values[x.operator] = integrate(K * exp(-z * t), (t, 0, oo))
        else:
            values[x.operator] = x.definition.xreplace({Function("R_Delta")(t, s): R})
    word = found.operators["v"]
    out = factor(word.subs(values))
    if any(not a.is_commutative for a in out.free_symbols) or out.has(t, s):
        raise NotApplicable(f"{word} has kernels without a transform")
    return out


# -- laws ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PowerLaw:
    """``loss ~ constant t^-exponent`` at late times.

    At leading order in gamma0 it is the term ``gamma0^2 c t^-exponent`` that is meant, and ``constant`` has
    its sign.  On finite data it is the loss in the end, ``constant P^-exponent``.  ``formula`` is the loss
    with all terms that are known, ``conditions`` say when it holds and what was assumed, and ``crossover``
    where it meets another regime, by what that is.  ``series`` is what the exponent was read from, if it is a
    sum of powers.
    """

    regime: str
    formula: Expr
    exponent: Expr
    constant: Expr
    conditions: tuple[str, ...]
    crossover: Mapping[str, Expr] = field(default_factory=dict)
    series: Powers | None = None

    def _repr_latex_(self) -> str:
        return f"${latex(self.formula)}$"


def lazy_law(
    modes: LazyModes,
    depth: Any = L,
    source: Any = beta,
    capacity: Any = capacity_,
    *,
    order: LeadingOrder | None = None,
) -> PowerLaw:
    """The regime in which features stand still: ``loss ~ t^-beta`` at any depth, in flow or in steps.

    With the ``order`` gamma0^2 it is said when a flow leaves the regime.
    Raises ValueError for numbers that are not possible.

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
    return _law("lazy", series.expr, series.terms[0], conditions, crossover, series)


def leading_law(
    order: LeadingOrder,
    depth: Any = L,
    source: Any = beta,
    capacity: Any = capacity_,
    *,
    task: str | None = None,
) -> PowerLaw:
    """Order gamma0^2: what the first movement of the features adds to the lazy loss.

    ``task`` (``hard``: source below 1, or ``easy``) is needed where the source is a symbol, and is ``hard``
    if left out.  Raises ValueError for numbers that are not possible, and :class:`NotApplicable` for a source
    of 1, where there is a logarithm.
    """
    values = numbers(depth, source, capacity)
    kind = kind_of(values[beta], task, "the order gamma0^2", order.correction.turns(beta))
    series = order.correction.sorted(given(kind)).subs(values)
    top = series.terms[0]
    conditions = [
        "source < 1" if kind == HARD else "source > 1",
        "gamma0**2 times the term is small beside the lazy loss; the next order is gamma0**4",
        f"corrections are smaller by t**({simplify(series.terms[1].power - top.power)})",
        f"1 << t << {order.modes.cutoff().subs(values)}, M the number of modes",
    ]
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
) -> PowerLaw:
    """The regime in which features have outgrown their start: see :mod:`derive.scale.rich`.

    On hard tasks the power depends on depth.  ``crossover`` says when the regime begins: where its loss meets
    the lazy one of ``modes``.  Raises as :func:`leading_law` does, and NotApplicable where the constant has
    no closed form.
    """
    values = numbers(depth, source, capacity)
    found = rich_scaling(reduced, values[L], values[beta], values[capacity_], task=task)
    if found.constant.has(nan, zoo):
        raise NotApplicable(f"source = {values[beta]}: the closed form of the constant is 0/0 there")
    before = modes.loss().subs(values).expr
    crossover = {"lazy": found.crossover(before)} if found.task == HARD else {}
    return PowerLaw("rich", found.loss, found.exponent, found.constant, found.conditions, crossover)


def batch_law(noise: BatchNoise, depth: Any = L, source: Any = beta, capacity: Any = capacity_) -> PowerLaw:
    """Descent on fresh batches, lazy and infinitely wide, without label noise: ``t`` counts steps.

    Where targets are learnt faster than ``t^-(2 - 1/capacity)``, that is the power of the loss: each batch
    stirs modes that had been learnt, and these forget it no faster.  Raises NotApplicable where symbols
    leave open which of the two it is, ValueError for a capacity of 1 or less.

    >>> from derive import mean_field, structured
    >>> noise = batch_noise(mean_field(structured(noise=True)))
    >>> print(batch_law(noise, 1, "1/2", 2).exponent, batch_law(noise, 1, 2, "3/2").exponent)
    1/2 4/3
    """
    values = numbers(depth, source, capacity, summed=True)
    tails = noise.decay()
    try:
        top = tails.subs(values).sorted().terms[0]
    except NotApplicable:
        where = tails.turns(beta).expand().subs(values)
        raise NotApplicable(f"source = {values[beta]}: must be below or above {where}") from None
    conditions = [
        f"gamma0 -> 0, N -> oo, no label noise; with it the loss ends at {noise.floor(Symbol('q'))}",
        f"q = {noise.amplification.subs(values)} < 1",
        "kernels that fall as a power: the renewal theorem is used, not derived",
    ]
    return _law("batch", top.at(time), top, conditions)


def width_law(
    noise: WidthNoise,
    depth: Any = L,
    source: Any = beta,
    capacity: Any = capacity_,
    *,
    task: str | None = None,
) -> PowerLaw:
    """Order 1/N of the lazy loss: the variance of what N units learn, ``c t^-exponent/N``.

    On easy tasks it falls slower than the loss of infinite width and takes over long before ``N^capacity``.
    Raises as :func:`leading_law` does, and ValueError for a capacity of 1 or less.
    """
    values = numbers(depth, source, capacity, summed=True)
    kind = kind_of(values[beta], task, "the variance at order 1/N", noise.variance.turns(beta))
    top = noise.variance.sorted(width_order(kind)).terms[0].subs(values)
    conditions = [
        "source < 1" if kind == HARD else "source > 1",
        f"1 << t << N**({values[capacity_]}): beyond, order 1/N is not enough",
        "the mean error has an order 1/N too: "
        + ("of the same power, so that the constant is not all" if kind == HARD else "a smaller power"),
    ]
    formula = noise.lazy.subs(values).expr + top.at(time) / N
    return _law("width", formula, top, conditions, {"width": noise.crossover(kind).subs(values)})


def data_law(
    data: FixedData,
    modes: LazyModes,
    depth: Any = L,
    source: Any = beta,
    capacity: Any = capacity_,
    *,
    steep: bool | None = None,
) -> PowerLaw:
    """The same P samples at every step, lazy and infinitely wide: the test loss ends at ``c P^-exponent``.

    With a source below 2 the exponent is ``capacity source``, and the loss is that of the population until
    it meets this floor at ``t ~ P^capacity``.  ``steep`` tasks, of a source above 2, have the floor of a
    source of 2, and a power of their own before it, ``t^-(2 - 1/capacity)/P``.  ``steep`` is needed where
    the source is a symbol; it is False if left out.  Raises NotApplicable for a source of 2, where there is
    a logarithm, ValueError for a capacity of 1 or less.

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
        "the final value theorem is used: the limit of late times is taken to exist",
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
    ansatz = "the eigenvalues and targets are powers of k, and modes are many enough for sums without an end"
    said = (*conditions, ansatz)
    return PowerLaw(regime, formula, -top.power, top.coefficient, said, crossover or {}, series)
