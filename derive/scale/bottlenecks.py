"""Finite width, batches and steps in the rich regime: effect of each on the power law, and its onset.

From the structured theories of finite width, of fresh batches and of steps, and from their reduction to rank
one (:mod:`derive.scale.rich`), the module derives the fraction of the loss that a finite size adds, the time
at which the added loss equals the loss, and the law after that. :func:`derive.scale.power_laws.rich_law` uses
it.

The time variable is ``X``, the integral of the kernel ``C_g(1,t,t)``. Noise of ``phi``, the learnt part of a
mode, enters at the start (random initial weights) or at each step (fresh batches). It decays ("is forgotten")
at the rate at which the mode is learnt. Only the gradient adds to the squared singular value ``sigma^2`` of
the weights, and noise does not. So ``sigma^2 = front (sum <phi^2> - entered)``, where ``front`` is a constant
(gamma0^2), the sum is over modes, and ``entered`` is the variance of the noise that has entered. ``sigma^2``
is smaller by ``S = front (entered - remaining)`` than without noise, where ``remaining`` is the part of this
variance that has not decayed. Because ``dS/dX = front sum 2 rate <noise^2>``, the loss increases by ``C_g/(2
front) dS/dX``, for any noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sympy import (
    Dummy,
    Eq,
    Expr,
    Function,
    KroneckerDelta,
    S,
    Sum,
    Symbol,
    factor,
    hyper,
    integrate,
    nan,
    simplify,
    solve,
    zeta,
    zoo,
)

from derive.calculus.symbols import L, eta, gamma0, s, t
from derive.errors import NotApplicable
from derive.linear.form import LinearForm, linear_form
from derive.program.networks.random_data import B, N, P, k
from derive.program.networks.random_data import sigma as sigma_label
from derive.reduce.data import mode_sums
from derive.scale.lazy_responses import on_eigenvalues, source_of, weight_in_loss
from derive.scale.mellin import Power, mode_sum, power_in
from derive.scale.modes import HARD, K, factor_of, kernels_on, lamda, lazy_modes
from derive.scale.modes import capacity as capacity_
from derive.scale.modes import time as late
from derive.scale.rich import (
    RankOne,
    RichScaling,
    X,
    c_g,
    c_h,
    phi,
    tidied,
    with_rank_one,
)
from derive.show.conditions import ConditionalResult
from derive.show.latex import aligned_latex
from derive.theory import Theory

WIDTH, BATCH, LABELS, STEPS = "width", "batch", "labels", "steps"


@dataclass(frozen=True)
class Resources:
    """Noise of finite width, fresh batches and steps in the reduced theory ``reduced``.

    Attributes
    ----------
    reduced
        Rank-one equations of the infinitely wide flow.
    forgotten
        Fraction of a variance of phi, the learnt part of a mode, that is lost at X if it entered at X
        = 0; X is the integral of the kernel ``C_g(1,t,t)``.
    initial_variance
        Variance of phi before training, the same for every mode.
    batch_variance
        Variance that batches add to phi of a mode, per unit of X and of the squared error on a batch.
    label
        Squared error on a batch that label noise causes.
    weight
        Loss of a mode from noise of phi, divided by the rate of the mode, by the variance of phi and by
        ``C_g(1,t,t)``.
    edge
        Largest value of (learning rate times kernel) at which the first mode is stable.
    """

    reduced: RankOne
    forgotten: Expr
    initial_variance: Expr
    batch_variance: Expr
    label: Expr
    weight: Expr
    edge: Expr


@dataclass(frozen=True, repr=False)
class Bottleneck(ConditionalResult):
    """Effect of one finite size on a power law of the loss (rich regime, or random features).

    Attributes
    ----------
    name, size
        Name of the effect (``width``, ``batch``, ``labels``, ``steps``, ...) and symbol of the size.
    share
        Loss that the finite size adds, divided by the loss of the law, to first order: a power of
        time. None if nothing is added before the crossover, if powers do not change, or if the added loss
        is not known to fall more slowly than the law.
    crossover
        Time at which the finite size begins to limit the loss, such as that at which the share is one. None
        if there is no such time, or if symbols do not determine it.
    after
        Loss after the crossover, a power of time. None if it is not derived.
    kernel
        Kernel ``C_g(1,t,t)`` after the crossover. None if it is not derived.
    basis
        The sentences of :meth:`conditions`.
    """

    name: str
    size: Symbol
    share: Power | None
    crossover: Expr | None
    after: Power | None
    kernel: Power | None
    basis: tuple[str, ...]

    def conditions(self) -> tuple[str, ...]:
        """Return sentences about the derivation, the assumptions and the range of the effect."""
        return self.basis

    def exponent(self, size: Symbol) -> Expr:
        """Return the power of a finite size in the crossover time.

        ``size`` is one of ``SIZES``, such as the width N, the batch size B or the learning rate eta. If the
        crossover is at ``t ~ N^3``, the result for N is 3, and 0 for sizes that the time does not contain.
        Raises NotApplicable if there is no crossover, and for a symbol that is not one of ``SIZES``.
        """
        if size not in SIZES:
            raise NotApplicable(
                f"size = {size!r}: must be one of {', '.join(map(str, SIZES))}, with the assumptions "
                "of the symbols in derive.scale.bottlenecks.SIZES"
            )
        if self.crossover is None:
            raise NotApplicable(
                f"bottleneck {self.name!r} does not limit the loss: there is no crossover time"
            )
        _, sizes = self.crossover.as_independent(*SIZES, as_Add=False)
        return factor(power_in(sizes, size))

    def _repr_latex_(self) -> str:
        names = {"share": self.share, "loss": self.after}
        rows = [Eq(Function(n)(late), p.at(late), evaluate=False) for n, p in names.items() if p is not None]
        return aligned_latex(rows)


def resources(reduced: RankOne, theory: Theory, online: Theory, steps: Theory) -> Resources:
    """Return the noise of finite width, batches and steps in the rich regime.

    Parameters
    ----------
    reduced : RankOne
        Reduction of flow on the population loss, infinitely wide.
    theory : Theory
        The same flow at finite width.
    online : Theory
        Descent on fresh batches of structured data, with label noise.
    steps : Theory
        Descent in steps on the population loss.

    Returns
    -------
    Resources
        The noise of each size.

    Raises
    ------
    NotApplicable
        If the rate at which a mode forgets noise, the initial variance or the variance of batches depends on
        time, if the initial variance differs between modes, if the loss from noise of a mode is not a
        constant times its rate, if batches are not fresh, if a batch changes the learnt function within its
        own step, if ``online`` has no label noise, or if steps have no single edge of stability.

    Examples
    --------
    >>> from derive import mean_field, structured
    >>> from derive.scale.rich import rank_one
    >>> flow = mean_field(structured(data="population", rule="flow"))
    >>> online = mean_field(structured(noise=True))
    >>> steps = mean_field(structured(data="population"))
    >>> found = resources(rank_one(flow), flow, online, steps)
    >>> print(found.forgotten, "|", found.initial_variance, "|", found.batch_variance, "|", found.edge)
    1 - exp(-2*X*lamda(k)) | 1/(N*gamma0**2) | eta*lamda(k)/B | 2
    """
    past, finite, batches = reduced.memory, mode_sums(theory), mode_sums(online)
    rate = _rate(reduced)
    entry_time, _, now = past.limits[0]
    remaining = simplify(
        (past.function / past.function.subs(entry_time, now)).replace(Function("c"), lambda *_: S.One)
    )
    loss_per_noise = reduced.learnt.rhs.diff(phi(reduced.mode, t)) ** 2 / reduced.kernel.rhs
    weight = simplify(weight_in_loss(finite) * loss_per_noise / rate)
    if weight.has(k, t):
        raise NotApplicable(
            "the loss that noise of phi, the learnt part of a mode, adds, divided by the variance of this "
            "noise, by its decay rate and by the kernel C_g(1, t, t), must not depend on the mode k or the "
            f"time t; the quotient is {weight}"
        )
    variance, label = _batch_variance(linear_form(batches), batches)
    return Resources(
        reduced,
        simplify(1 - remaining.subs(entry_time, 0) ** 2),
        _initial_variance(linear_form(finite), finite, reduced),
        variance,
        label,
        weight,
        _edge(steps),
    )


def _rate(reduced: RankOne) -> Expr:
    """Return the rate r at which noise of a mode decays, as ``exp(-r X)``, such as ``r = lamda(k)``.

    The noise is a random part of phi, the learnt part of mode k, and X is the integral of the kernel
    ``C_g(1,t,t)`` over time. Raises NotApplicable if the rate depends on time.
    """
    past = reduced.memory
    rate = -simplify(past.function.diff(X) / past.function)
    if rate.has(X, *past.variables):
        raise NotApplicable(
            "the rate at which noise of a mode decays with X, the integral of the kernel over time, must not "
            f"depend on time; this rate is {rate}"
        )
    return rate


def _initial_variance(form: LinearForm, theory: Theory, reduced: RankOne) -> Expr:
    """Return the variance over random initial weights of phi, the learnt part of a mode, before training.

    The source r0, the random initial function of a finite network, adds a term to the learnt function xi. The
    result is the variance of this term over ``c_g(1, t)^2``. The response of the inputs' field h0 to r0 must
    add the same noise to ``c_h(1) = gamma0 sum h0 phi``, by Stein's lemma ``<h0 noise> = sum of R_h0r0 <r0
    noise>``. Raises NotApplicable if it does not, or if the variance depends on time or on the mode. ``form``
    has the linear equations of ``theory``.
    """
    front = factor_of(form.row("xi"), "r0")
    covariance = with_rank_one(source_of(theory, "r0").covariance)
    start = simplify(front**2 * covariance / (c_g(1, t) * c_g(1, s)))
    response = Function("R_h0r0")(t, s)
    (entry,) = (x for x in kernels_on(form.row("h", 1), "g") if x.has(response))
    sums = {x.lhs: x.rhs for x in reduced.layers}
    outside, _ = sums[c_h(1, t)].as_independent(Sum)
    stein = outside * front * covariance / c_g(1, t)
    if start.has(t, s, k) or simplify(entry / response * c_g(1, s) - stein) != 0:
        raise NotApplicable(
            "the source r0 must give phi, the learnt part of a mode, an initial variance that does not "
            f"depend on time or mode; this variance is {start}. The response of h0 to r0 must follow from "
            "this variance by Stein's lemma; the memory kernel with this response in the equation of h(1) "
            f"is {entry}"
        )
    return start


def _batch_variance(form: LinearForm, theory: Theory) -> tuple[Expr, Expr]:
    """Return (variance that fresh batches add to phi, variance of the label noise on a batch).

    phi is the learnt part of a mode. The first variance is per unit of X, the integral of the kernel
    ``C_g(1,t,t)``, and of the squared error on a batch. ``form`` has the linear equations of ``theory``,
    which is trained on fresh batches. Raises NotApplicable if batches are not fresh, if a batch changes the
    learnt function within its own step, or if the first variance depends on time.
    """
    input_factor, source = factor_of(form.row("h0"), "u0"), source_of(theory, "u0").covariance
    fresh = source / KroneckerDelta(s, t)
    error = Function("C_Delta")(t, s)
    learnt_terms = [x for x in form.row("xi").actions if x.weight.has(Function("C_g"))]
    layer_terms = [x for x in form.row("h", 1).actions if x.weight.has(Function("C_h0"))]
    if fresh.has(KroneckerDelta) or {x.reach for x in (*learnt_terms, *layer_terms)} != {"strict"}:
        raise NotApplicable(
            "batches must be fresh at each step, and a batch must not change the learnt function within its "
            "own step: give a theory with data='online'"
        )
    (learnt_term,) = learnt_terms
    # A step changes xi = c_g(1) phi, where phi is the learnt part of a mode, by the weight of the memory in
    # xi times the field h0 of the mode. Divided by c_g(1), the weight is the change of phi per h0.
    phi_step = with_rank_one(learnt_term.weight).subs(s, t) / c_g(1, t)
    # X is the integral of the kernel C_g(1, t, t) over time. A step changes X by the weight of the memory in
    # xi.
    kernel_step = with_rank_one(learnt_term.weight).subs(s, t)
    labels = factor_of(form.row("Delta"), "eps") ** 2 * source_of(theory, "eps").covariance
    variance = simplify(phi_step**2 * input_factor**2 * fresh / error / kernel_step)
    if variance.has(t, s):
        raise NotApplicable(
            "the variance that batches add per unit of the integrated kernel must not change in time; this "
            f"variance is {variance}"
        )
    return variance, simplify(labels / KroneckerDelta(s, t))


def _edge(steps: Theory) -> Expr:
    """Return the edge of stability, such as 2: the learning rate times the kernel above which steps diverge.

    In a step of the theory ``steps`` the loss of the first mode, whose eigenvalue is assumed to be 1, is
    multiplied by a factor. The edge is the nonzero value at which the factor is 1. Raises NotApplicable if
    there is not exactly one such value.
    """
    summand = lazy_modes(steps).with_K
    growth = (summand.subs(t, 1) / summand.subs(t, 0)).subs(lamda(k), 1)
    edges = [x for x in solve(simplify(growth) - 1, K) if x != 0]
    if len(edges) != 1:
        raise NotApplicable(
            "the training rule has no single largest kernel at which the first mode is stable (found: "
            f"{edges or 'none'}); gradient descent in steps has one"
        )
    return edges[0]


# -- power-law data ----------------------------------------------------------------------------------------


SIZES = (N, B, P, eta, gamma0, sigma_label)
"""Width, batch size, number of samples, learning rate, gamma0 and label noise.

Results are products of powers of these symbols and a constant.
"""
SHORT = "eta*C_g(1, t, t) << {}: steps are short compared with the times in which modes are learnt"


@dataclass(frozen=True)
class _NormDecrease:
    """Decrease ``S = coefficient X^power`` of the squared singular value by noise that modes have forgotten.

    ``name`` is that of the bottleneck, ``size`` the symbol of the finite size, and ``part`` is S as a power
    of X, the integral of the kernel ``C_g(1, t, t)``. S vanishes for an infinite size.
    """

    name: str
    size: Symbol
    part: Power


_Balanced = tuple[Power, Power, Mapping[Symbol, Expr]]
"""Loss and kernel as powers of X, and values of the symbols for sums over modes in their constants."""


def bottlenecks(noise: Resources, law: RichScaling) -> tuple[Bottleneck, ...]:
    """Return the effects of finite sizes on the rich power law.

    Parameters
    ----------
    noise : Resources
        Noise of the sizes in the reduced theory.
    law : RichScaling
        Law; the capacity must be above 1.

    Returns
    -------
    tuple[Bottleneck, ...]
        Effects of the width N, the batch B, label noise on batches, and steps.

    Raises
    ------
    ValueError
        For a capacity of 1 or less.
    NotApplicable
        If an effect of a finite size is not derived.

    Examples
    --------
    >>> from derive import mean_field, structured
    >>> from derive.scale.rich import rank_one, rich_scaling
    >>> flow = mean_field(structured(data="population", rule="flow"))
    >>> more = mean_field(structured(noise=True)), mean_field(structured(data="population"))
    >>> read = resources(rank_one(flow), flow, *more)
    >>> width, batch, labels, steps = bottlenecks(read, rich_scaling(read.reduced, 1, "1/2", 2))
    >>> print(width.share.power, width.exponent(N), -width.after.power)
    1/3 3 1/2
    >>> print(batch.share.power, labels.exponent(B), steps.exponent(eta))
    1/3 1 -3
    """
    return tuple(bottleneck(noise, law, name) for name in (WIDTH, BATCH, LABELS, STEPS))


def bottleneck(noise: Resources, law: RichScaling, name: str) -> Bottleneck:
    """Return the effect of one finite size on the rich power law ``law`` of the loss.

    ``name`` is ``width``, ``batch``, ``labels`` (label noise on batches) or ``steps`` (finite learning rate),
    and ``noise`` has the variances that these sizes cause. Raises ValueError for another name and for a
    capacity of 1 or less, and NotApplicable if the effect is not derived.
    """
    if law.capacity.is_number and not law.capacity > 1:
        raise ValueError(f"capacity = {law.capacity}: must be above 1, or the eigenvalues have no finite sum")
    calculation = _Bottlenecks(noise, law)
    balances = {
        WIDTH: calculation.width,
        BATCH: calculation.batch,
        LABELS: calculation.labels,
        STEPS: calculation.steps,
    }
    if name not in balances:
        raise ValueError(f"name = {name!r}: must be one of {', '.join(balances)}")
    return balances[name]()


class _Bottlenecks:
    """Calculation of the effects of finite width, batches, label noise and steps on one rich power law.

    Input are the variances of the noise of each finite size, and the law. Sums over the modes stay symbols
    until the end because SymPy is slow with them.
    """

    def __init__(self, noise: Resources, law: RichScaling) -> None:
        self.resources, self.law, self.balance = noise, law, law.balance
        self.front, _, self.rise = self.balance.norm()
        self.learnt, self.missing = self.balance.sums()
        self.top, self.before = self.learnt.terms[0], self.missing.terms[0]
        self.hard = law.task == HARD
        self.integrated_kernel = Power.of(law.named_integrated_kernel, late)
        self.names: dict[Symbol, Expr] = {}
        self.law_condition = f"the conditions of the rich law of {law.task} tasks hold"

    # -- the noise -----------------------------------------------------------------------------------------

    def width(self) -> Bottleneck:
        """Return the effect of a finite width N on the loss, by its random initial weights."""
        y = Dummy("y", positive=True)
        forgotten = self.resources.forgotten.subs(lamda(k), y / X)
        top = mode_sum(forgotten, y, S.Zero, self.law.capacity, X, terms=1).terms[0]
        self.names[modes := Dummy("J", positive=True)] = top.coefficient
        decrease = _NormDecrease(
            WIDTH, N, Power(self.front * self.resources.initial_variance * modes, top.power)
        )
        conditions = [
            "derived: the random initial weights of a finite network give phi, the learnt part of a mode, "
            f"the initial variance {self.resources.initial_variance}, which decays as the mode is learnt",
            "neglected: the function of the network before training, smaller by 1/sigma, and the responses "
            "to the random initial weights, smaller by 1/sigma**2, where sigma is the singular value of the "
            "weights",
            "assumed: terms of order 1/N**2 are small as long as terms of order 1/N are smaller than the "
            "loss",
        ]
        return self.bottleneck(decrease, conditions)

    def summed_batch_variance(self) -> Expr:
        """Return the variance that a batch adds to the learnt parts phi, summed over all modes.

        It is per unit of X, the integral of the kernel ``C_g(1,t,t)``, and of the squared error on a batch.
        The eigenvalues are ``k^-capacity``.
        """
        part = Power.of(on_eigenvalues(self.resources.batch_variance).subs(capacity_, self.law.capacity), k)
        return part.coefficient * zeta(-part.power)

    def batch(self) -> Bottleneck:
        """Return the effect on the loss of fresh batches of B samples without label noise.

        The noise of a batch is proportional to its squared error, which is the loss itself. For easy tasks
        batches change constants only, and the bottleneck has no share and no crossover. Raises NotApplicable
        if the equations after the crossover do not determine the loss.
        """
        conditions = [
            "derived: each batch adds to phi, the learnt part of a mode, noise with a variance proportional "
            "to the loss, which decays as the mode is learnt",
            SHORT.format(self.resources.edge),
            "neglected: noise that modes have not forgotten yet, smaller by the factor X**(1 - 1/a), where X "
            "is the integral of C_g(1, t, t) over time and a the capacity",
        ]
        if not self.hard:
            conditions.append(
                "the integral of the loss over X, the integral of C_g(1, t, t), is finite, so that batches "
                "change constants but not powers"
            )
            return Bottleneck(BATCH, B, None, None, None, None, (self.law_condition, *conditions))
        loss = Dummy("l", positive=True)
        decrease = self.integral(BATCH, Power(loss * self.summed_batch_variance(), self.before.power))
        first = replace(decrease, part=decrease.part.subs({loss: self.before.coefficient}))
        # The noise of batches is proportional to the loss. After the crossover the loss therefore determines
        # the decrease of sigma^2, the squared singular value of the weights; this decrease determines the
        # kernel, and the kernel determines the loss. The equations of kernel and loss are solved together:
        # the symbol `loss` must cancel in the loss that results, `after`.
        after, kernel, values = self.balanced(decrease)
        if after.coefficient.has(loss):
            raise NotApplicable(
                "the loss at late times, where the noise of batches limits it, is not determined: its "
                f"expression {after} still contains the symbol {loss}, which stands for the loss itself"
            )
        kernel = kernel.subs({loss: after.coefficient})
        stays = valued(kernel.coefficient * eta, values)
        conditions.append(
            f"after the crossover eta*C_g(1, t, t) = {stays}; if this is not far below "
            f"{self.resources.edge}, the step size limits the loss before the batch size does"
        )
        return self.bottleneck(first, conditions, (after, kernel, values))

    def labels(self) -> Bottleneck:
        """Return the effect on the loss of label noise on fresh batches of B samples."""
        conditions = [
            "derived: label noise on each batch adds noise to phi, the learnt part of a mode, which decays "
            "as the mode is learnt",
            f"{self.resources.label}, in the share and in the law after the crossover, is the variance of "
            "the label noise",
            SHORT.format(self.resources.edge),
        ]
        return self.bottleneck(
            self.integral(LABELS, Power(self.resources.label * self.summed_batch_variance(), S.Zero)),
            conditions,
        )

    def integral(self, name: str, driven: Power) -> _NormDecrease:
        """Return the decrease of the squared singular value of the weights by the noise of batches.

        ``driven`` is the variance that batches add to the learnt modes, per unit of the integrated kernel X,
        as a power of X. The decrease is a constant times ``int driven dX``, because nearly all of this noise
        has decayed. ``name`` is that of the bottleneck.
        """
        rise = driven.power + 1
        return _NormDecrease(name, B, Power(self.front * driven.coefficient / rise, rise))

    def loss_from(self, decrease: Power, kernel: Power) -> Power:
        """Return the loss that noise of the modes causes, as a power of the integrated kernel X.

        The noise decreases the squared singular value of the weights by S, the power ``decrease`` of X. Its
        loss is proportional to ``C_g dS/dX``, where the power ``kernel`` of X is ``C_g(1,t,t) = dX/dt``.
        """
        rates = self.resources.weight / 2  # the square of the noise decays at twice the rate of the noise
        front = rates * kernel.coefficient * decrease.coefficient * decrease.power / self.front
        return Power(front, simplify(kernel.power + decrease.power - 1))

    def bottleneck(
        self, decrease: _NormDecrease, conditions: list[str], after: _Balanced | None = None
    ) -> Bottleneck:
        """Return a bottleneck: the share of the loss from a finite size, its crossover, and the law after it.

        ``decrease`` is the decrease of the squared singular value of the weights by the noise of the finite
        size, and ``conditions`` are sentences about it. ``after`` are (loss, kernel, values of sums over
        modes) after the crossover of hard tasks; by default those of :meth:`balanced`. Easy tasks have those
        of :meth:`alone`. If the share is constant or falls in time, there is no crossover. If the sign of its
        power is not known, the share is assumed to grow, and a condition says so.
        """
        conditions, share = [self.law_condition, *conditions], self.share(decrease)
        if not self.hard:
            conditions.append(
                "neglected: the decrease of the squared singular value of the weights by forgotten noise, "
                "because the noise itself grows faster"
            )
        if share.power.is_nonpositive:
            course = "is constant in time" if share.power == 0 else f"falls as t**({share.power})"
            conditions.append(
                f"the share of the loss that this finite size adds {course}, so that it does not limit the "
                "law"
            )
            return Bottleneck(decrease.name, decrease.size, share, None, None, None, tuple(conditions))
        if not share.power.is_positive:
            conditions.append(
                f"assumed: {share.power} > 0; otherwise the share falls in time and there is no crossover"
            )
        loss, grown, values = after or self.balanced(decrease)
        integrated_kernel = self.in_time(grown)
        conditions += self.window(decrease, grown, integrated_kernel)
        if not self.hard:
            loss, grown, integrated_kernel, values = self.alone(decrease)
        final, kept = (
            Power(valued(x.coefficient, {**values, **self.names}), x.power)
            for x in (timed(loss, integrated_kernel), timed(grown, integrated_kernel))
        )
        if final.coefficient.has(nan, zoo):
            conditions.append(
                "not derived: the loss after the crossover, because the closed form of its constant is 0/0 "
                "at these numbers"
            )
            return Bottleneck(decrease.name, decrease.size, share, root(share), None, None, tuple(conditions))
        return Bottleneck(decrease.name, decrease.size, share, root(share), final, kept, tuple(conditions))

    def share(self, decrease: _NormDecrease) -> Power:
        """Return the loss that the noise of a finite size adds, over the loss without it, as a power of time.

        It is of first order in the noise. ``decrease`` is the decrease of the squared singular value of the
        weights by this noise; for hard tasks the added loss contains the effect of this decrease too. Raises
        NotApplicable for a hard task if the two parts of the added loss are not derived, have different
        powers of time, or if their ratio contains a finite size.
        """
        law, q = self.law, self.law.profile_exponent
        kernel = Power(tidied(law.named_kernel / law.named_integrated_kernel ** (2 * q)), 2 * q)
        noise = self.loss_from(decrease.part, kernel)
        noise_share = tidied(noise.coefficient / self.before.coefficient)
        power, number = simplify(noise.power - self.before.power), S.One
        if self.hard:
            norm_change = kernel.coefficient ** ((2 - self.rise) / 2) * -decrease.part.coefficient
            gap = simplify((self.rise - 2) * q - decrease.part.power)
            norm_effect, relative_effect = (
                law.correction_from(decrease.name, gap),
                tidied(norm_change / noise_share),
            )
            if not norm_effect.known or simplify(power + gap) != 0 or relative_effect.has(*SIZES):
                raise NotApplicable(
                    f"bottleneck {decrease.name}: noise changes the loss directly, and by the decrease of "
                    "sigma**2, the squared singular value of the weights. Both changes must be derived, "
                    "with the same power of time, and their ratio must not contain "
                    f"{', '.join(map(str, SIZES))}"
                )
            number += relative_effect * norm_effect.size.subs(X, 1)
        front = tidied(noise_share * self.integrated_kernel.coefficient**power)
        constant, sizes = front.as_independent(*SIZES, as_Add=False)
        power = factor(simplify(power * self.integrated_kernel.power))
        return Power(law.valued((constant * number).xreplace(self.names)) * sizes, power)

    # -- after the crossover -------------------------------------------------------------------------------

    def balanced(self, decrease: _NormDecrease) -> _Balanced:
        """Return (loss, kernel, values of sums over modes) after the crossover to a law limited by noise.

        Loss and kernel are powers of X, the integral of the kernel; symbols for sums over modes in their
        constants have the returned values. The squared singular value of the weights is then a small
        difference of two terms: that of the learnt modes, and its decrease by noise, ``decrease``. For easy
        tasks the loss is that of the noise alone.
        """
        q = simplify((self.top.power - decrease.part.power) / 2)
        kernel = Power(self.front * self.top.coefficient / decrease.part.coefficient, 2 * q)
        noise = self.loss_from(decrease.part, kernel)
        if not self.hard:
            return noise, kernel, self.balance.moments(q)
        loss = Power(simplify(self.before.coefficient + noise.coefficient), self.before.power)
        return loss, kernel, self.balance.moments(q)

    def alone(self, decrease: _NormDecrease) -> tuple[Power, Power, Power, Mapping[Symbol, Expr]]:
        """Return (loss, kernel, integrated kernel, values of mode sums) after the crossover of easy tasks.

        The loss is that of noise alone, and the kernel that without noise. Loss and kernel are powers of X,
        the integrated kernel, which is given as a power of time.
        """
        kernel = Power(self.law.named_kernel, S.Zero)
        return self.loss_from(decrease.part, kernel), kernel, self.integrated_kernel, self.law.values

    def in_time(self, kernel: Power) -> Power:
        """Return X, the integral of a kernel ``C_g`` over time, as a power of time.

        ``kernel`` is the kernel as a power of X. The result follows from ``t = int dX/C_g``.
        """
        p = Dummy("p", positive=True)
        (integrated_kernel,) = solve(integrate(X ** (p - 1), (X, 0, X)) - kernel.coefficient * late, X)
        return Power.of(tidied(integrated_kernel.subs(p, simplify(1 - kernel.power))), late)

    def window(self, decrease: _NormDecrease, kernel: Power, time: Power) -> list[str]:
        """Return sentences about the law after the crossover, with the times at which it ceases to hold.

        ``decrease`` is the decrease of the squared singular value of the weights by noise, ``kernel`` the
        kernel as a power of its integral X over time, and ``time`` is X as a power of time.
        """
        if not self.hard:
            below = self.squared(Power(self.law.named_kernel, S.Zero)).coefficient / decrease.part.coefficient
            until = ended(below ** (1 / decrease.part.power), self.integrated_kernel, decrease.size)
            return [
                "after the crossover the loss is that of the noise alone, while forgotten noise decreases "
                "the squared singular value of the weights by less than this value, up to a time of order "
                f"{until}"
            ]
        squared = self.squared(kernel)
        conditions = [
            "after the crossover the squared singular value of the weights is the difference of two nearly "
            "equal terms, of the learnt modes and of the forgotten noise; both terms are far above it, and "
            "it is far above 1",
            "assumed: kernels are of rank one there too; in the first layer, whose direction the random "
            "initial weights change, powers are counted and the equations are not solved",
        ]
        if squared.power.is_negative:
            where = squared.coefficient ** (-1 / squared.power)
            conditions.append(
                f"the singular value falls, and is one at a time of order {ended(where, time, decrease.size)}"
            )
        # If the exponent `rise` is positive, the power counting of the first layer ends at the time when C_h0
        # is as large as c_h(1)^2. c_h(1) is a power of X, the integral of C_g over time, with the coefficient
        # `kept`. This follows from sigma^2 = gamma0 t c_g(1) c_h(1), where sigma is the singular value of the
        # weights, t = X/C_g and c_g(1)^2 = C_g.
        kept = squared.coefficient * kernel.coefficient ** (S.One / 2) / gamma0
        rise = simplify(self.balance.squares() - 2 * squared.power - kernel.power + 2)
        if rise.is_positive:
            conditions.append(
                "the power counting of the first layer holds up to a time of order "
                f"{ended(kept ** (2 / rise), time, decrease.size)}"
            )
        return conditions

    def squared(self, kernel: Power) -> Power:
        """Return the squared singular value of the weights at a kernel ``C_g(1,t,t)``.

        ``kernel`` and the result are powers of X, the integral of the kernel over time.
        """
        c = Dummy("c", positive=True)
        power = power_in(self.law.reduced.singular(c).subs(L, self.law.depth), c)
        return Power(kernel.coefficient**power, simplify(kernel.power * power))

    # -- steps ---------------------------------------------------------------------------------------------

    def steps(self) -> Bottleneck:
        """Return the effect of a finite learning rate on the loss.

        The kernel grows up to the edge of stability of the first mode, and is assumed to stay there. For easy
        tasks the kernel stops growing, and the result is a condition on the learning rate without a
        crossover.
        """
        law, edge = self.law, self.resources.edge
        conditions = [
            self.law_condition,
            f"derived: the first mode is stable while eta*C_g(1, t, t) < {edge}",
        ]
        if not self.hard:
            where = law.valued(tidied(edge / law.named_kernel))
            conditions.append(
                f"because the kernel stops growing, the first mode is always stable if eta < {where}"
            )
            return Bottleneck(STEPS, eta, None, None, None, None, tuple(conditions))
        kernel = Power.of(law.named_kernel, late)
        crossover = law.valued(tidied((edge / eta / kernel.coefficient) ** (1 / kernel.power)))
        conditions.append(
            "assumed: after the crossover the kernel stays at this edge of stability, below which solutions "
            f"of the theory oscillate; its integral is then {edge} times the number of steps, its upper "
            "bound while the first mode is stable"
        )
        pinned = Power(edge / eta, S.Zero)
        values = self.balance.moments(S.Zero)
        loss = timed(self.before, self.in_time(pinned))
        loss = Power(valued(loss.coefficient, values), loss.power)
        return Bottleneck(STEPS, eta, None, crossover, loss, pinned, tuple(conditions))


def valued(e: Expr, values: Mapping[Symbol, Expr]) -> Expr:
    """Return a product with the values of sums over modes for their symbols, and with a simplified constant.

    ``values`` maps the symbols to the values. The constant is the factor without the symbols ``SIZES`` of
    finite sizes. It is not simplified if it contains a hypergeometric function, because SymPy is slow with
    these.
    """
    constant, sizes = e.as_independent(*SIZES, as_Add=False)
    constant = constant.xreplace(dict(values))
    return (constant if constant.has(hyper) else simplify(constant)) * sizes


def root(share: Power) -> Expr:
    """Return the time at which a finite size adds as much loss as there is without it.

    ``share = coefficient * time**power`` is the added loss divided by the loss without it; it is 1 at this
    time.
    """
    constant, sizes = share.coefficient.as_independent(*SIZES, as_Add=False)
    return constant ** (-1 / share.power) * tidied(sizes ** (-1 / share.power))


def timed(power: Power, integrated_kernel: Power) -> Power:
    """Return a power of X as a power of time.

    ``power`` is a function of X, the integral of the kernel ``C_g(1,t,t)``, and ``integrated_kernel`` is X as
    a power of time.
    """
    return Power(
        tidied(power.coefficient * integrated_kernel.coefficient**power.power),
        factor(simplify(power.power * integrated_kernel.power)),
    )


def ended(integral: Expr, time: Power, size: Symbol) -> str:
    """Return the order of the time at which X has a given value, as text, such as ``N**(3/2)``.

    X is the integrated kernel, ``integral`` its value, and ``time`` is X as a power of time. The text has the
    power of the finite ``size`` in this time, without its constant.
    """
    when = tidied((integral / time.coefficient) ** (1 / time.power))
    return f"{size}**({factor(power_in(when, size))})"
