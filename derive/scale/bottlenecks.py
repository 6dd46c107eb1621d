"""Finite width, batches and steps in the rich regime: effect of each on the power law, and its onset.

From the structured theories of finite width, of fresh batches and of steps, and from their reduction to rank
one (:mod:`derive.scale.rich`), the module derives the fraction of the loss that a finite size adds, the time
at which it equals the loss, and the law after that. :func:`derive.scale.power_laws.rich_law` uses it.

Noise of ``phi``, the learnt part of a mode, enters at the start (random initial weights) or at each step
(fresh batches). A mode forgets it at the rate at which it is learnt. The singular values grow with the noise
that enters and is kept by the gradient alone, so that forgotten noise is subtracted from them: ``sigma^2 =
front sum <phi^2> - put in``. So ``sigma^2`` loses a *sink* ``S = front (put in - left)``, and since ``dS/dX =
front sum 2 rate <noise^2>``, the loss gains ``C_g/(2 front) dS/dX``, for any noise.
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
    put,
    tidied,
)
from derive.show.conditions import ConditionalResult
from derive.show.latex import aligned_latex
from derive.theory import Theory

WIDTH, BATCH, LABELS, STEPS = "width", "batch", "labels", "steps"


@dataclass(frozen=True)
class Resources:
    """Noise of finite width, fresh batches and steps in the reduced theory ``reduced``.

    X is the integral of the kernel. ``forgotten`` is the fraction of the variance of phi, entered at X = 0,
    that a mode has lost at X. ``start`` is the initial variance of phi, for every mode. ``pushes`` is the
    variance that a mode receives per unit of X and of the squared error on a batch, and ``label`` is that
    error from label noise. ``weight`` is the loss of a mode over its rate, noise^2 and C_g. The first mode is
    stable if its kernel, one step long, is below ``edge``.
    """

    reduced: RankOne
    forgotten: Expr
    start: Expr
    pushes: Expr
    label: Expr
    weight: Expr
    edge: Expr


@dataclass(frozen=True)
class Bottleneck(ConditionalResult):
    """Effect of one finite size on the power law of the rich regime.

    ``share`` is the part of the loss that it adds, to first order, relative to the law: a power of time; None
    if nothing is added before the crossover. ``crossover`` is the time at which this is one; None if the
    share does not grow. ``after`` is the loss after it, a power of time; None if it is not derived. Its
    kernel ``C_g(1,t,t)`` is ``kernel``.
    """

    name: str
    size: Symbol
    share: Power | None
    crossover: Expr | None
    after: Power | None
    kernel: Power | None
    basis: tuple[str, ...]

    def conditions(self) -> tuple[str, ...]:
        """Return the range of the share and of the law after the crossover, and the assumptions."""
        return self.basis

    def exponent(self, size: Symbol) -> Expr:
        """Return the power of a size in the crossover.  Raises NotApplicable if there is no crossover."""
        if self.crossover is None:
            raise NotApplicable(f"the {self.name} does not end the law: no crossover")
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
        If noise of a mode is not constant in units of the kernel's root, if batches are not fresh, or if the
        growth of the singular values depends on the batch of the same step.

    Examples
    --------
    >>> from derive import mean_field, structured
    >>> from derive.scale.rich import rank_one
    >>> flow = mean_field(structured(data="population", rule="flow"))
    >>> online = mean_field(structured(noise=True))
    >>> steps = mean_field(structured(data="population"))
    >>> found = resources(rank_one(flow), flow, online, steps)
    >>> print(found.forgotten, "|", found.start, "|", found.pushes, "|", found.edge)
    1 - exp(-2*X*lamda(k)) | 1/(N*gamma0**2) | eta*lamda(k)/B | 2
    """
    past, finite, batches = reduced.memory, mode_sums(theory), mode_sums(online)
    rate = _rate(reduced)
    begun, _, now = past.limits[0]
    kept = simplify((past.function / past.function.subs(begun, now)).replace(Function("c"), lambda *_: S.One))
    moved = reduced.learnt.rhs.diff(phi(reduced.mode, t)) ** 2 / reduced.kernel.rhs
    weight = simplify(weight_in_loss(finite) * moved / rate)
    if weight.has(k, t):
        raise NotApplicable(f"the loss of a mode over its rate is {weight}, not a number")
    pushes, label = _pushes(linear_form(batches), batches)
    return Resources(
        reduced,
        simplify(1 - kept.subs(begun, 0) ** 2),
        _start(linear_form(finite), finite, reduced),
        pushes,
        label,
        weight,
        _edge(steps),
    )


def _rate(reduced: RankOne) -> Expr:
    """Return the rate at which a mode forgets, per X."""
    past = reduced.memory
    rate = -simplify(past.function.diff(X) / past.function)
    if rate.has(X, *past.variables):
        raise NotApplicable(f"a mode forgets at a rate that changes: {rate}")
    return rate


def _start(form: LinearForm, theory: Theory, reduced: RankOne) -> Expr:
    """Return the initial variance of phi: the source r0 of finite width in units of ``c_g(1, t)``.

    The response of the inputs' field to r0 must add this noise to ``c_h(1) = gamma0 sum h0 phi``, by Stein's
    lemma ``<h0 noise> = sum of R_h0r0 <r0 noise>``.
    """
    front = factor_of(form.row("xi"), "r0")
    covariance = put(source_of(theory, "r0").covariance)
    start = simplify(front**2 * covariance / (c_g(1, t) * c_g(1, s)))
    response = Function("R_h0r0")(t, s)
    (entry,) = (x for x in kernels_on(form.row("h", 1), "g") if x.has(response))
    sums = {x.lhs: x.rhs for x in reduced.layers}
    outside, _ = sums[c_h(1, t)].as_independent(Sum)
    stein = outside * front * covariance / c_g(1, t)
    if start.has(t, s, k) or simplify(entry / response * c_g(1, s) - stein) != 0:
        raise NotApplicable(f"{start} of r0 is no start of phi whose response is {entry}")
    return start


def _pushes(form: LinearForm, theory: Theory) -> tuple[Expr, Expr]:
    """Return the variance that a mode receives per unit of X and squared error, and that of labels."""
    enters, source = factor_of(form.row("h0"), "u0"), source_of(theory, "u0").covariance
    fresh = source / KroneckerDelta(s, t)
    error = Function("C_Delta")(t, s)
    bodies = [x for x in form.row("xi").actions if x.weight.has(Function("C_g"))]
    grows = [x for x in form.row("h", 1).actions if x.weight.has(Function("C_h0"))]
    if fresh.has(KroneckerDelta) or {x.reach for x in (*bodies, *grows)} != {"strict"}:
        raise NotApplicable("a batch is not fresh, or acts on what is learnt within its own step")
    (body,) = bodies
    step = put(body.weight).subs(s, t) / c_g(1, t)  # of phi, over h0
    clock = put(body.weight).subs(s, t)  # of the clock
    labels = factor_of(form.row("Delta"), "eps") ** 2 * source_of(theory, "eps").covariance
    pushes = simplify(step**2 * enters**2 * fresh / error / clock)
    if pushes.has(t, s):
        raise NotApplicable(f"{pushes} changes in time")
    return pushes, simplify(labels / KroneckerDelta(s, t))


def _edge(steps: Theory) -> Expr:
    """Return the kernel, one step long, above which the first mode does not decay."""
    summand = lazy_modes(steps).with_K
    left = (summand.subs(t, 1) / summand.subs(t, 0)).subs(lamda(k), 1)
    found = [x for x in solve(simplify(left) - 1, K) if x != 0]
    if len(found) != 1:
        raise NotApplicable(f"the first mode is stable between {found}")
    return found[0]


# -- power-law data ----------------------------------------------------------------------------------------


SIZES = (N, B, P, eta, gamma0, sigma_label)
"""Sizes, whose powers stand in front of constants."""
SHORT = "eta*C_g << {}: steps are short beside the rates of all modes"


@dataclass(frozen=True)
class _Sink:
    """Sink ``coefficient X^power`` of the squared singular value, which falls with a size."""

    name: str
    size: Symbol
    part: Power


_Balanced = tuple[Power, Power, Mapping[Symbol, Expr]]
"""Loss and kernel as powers of the integrated kernel, and the moments of the profile in them."""


def bottlenecks(found: Resources, law: RichScaling) -> tuple[Bottleneck, ...]:
    """Return the effects of finite sizes on the rich power law.

    Parameters
    ----------
    found : Resources
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
    return tuple(bottleneck(found, law, name) for name in (WIDTH, BATCH, LABELS, STEPS))


def bottleneck(found: Resources, law: RichScaling, name: str) -> Bottleneck:
    """Return one of the :func:`bottlenecks`: ``width``, ``batch``, ``labels`` or ``steps``."""
    if law.capacity.is_number and not law.capacity > 1:
        raise ValueError(f"capacity = {law.capacity}: must be above 1, or the eigenvalues have no sum")
    job = _Bottlenecks(found, law)
    balances = {WIDTH: job.width, BATCH: job.batch, LABELS: job.labels, STEPS: job.steps}
    return balances[name]()


class _Bottlenecks:
    """Balances of one law. Moments of profiles stay symbols until the end because SymPy is slow with them."""

    def __init__(self, found: Resources, law: RichScaling) -> None:
        self.found, self.law, self.balance = found, law, law.balance
        self.front, _, self.rise = self.balance.norm()
        self.learnt, self.left = self.balance.sums()
        self.top, self.before = self.learnt.terms[0], self.left.terms[0]
        self.hard = law.task == HARD
        self.clock = Power.of(law.named_clock, late)
        self.names: dict[Symbol, Expr] = {}
        self.said = f"the conditions of the rich law of {law.task} tasks hold"

    # -- the noise -----------------------------------------------------------------------------------------

    def width(self) -> Bottleneck:
        """Return the effect of the random initial weights."""
        y = Dummy("y", positive=True)
        forgotten = self.found.forgotten.subs(lamda(k), y / X)
        top = mode_sum(forgotten, y, S.Zero, self.law.capacity, X, terms=1).terms[0]
        self.names[modes := Dummy("J", positive=True)] = top.coefficient
        sink = _Sink(WIDTH, N, Power(self.front * self.found.start * modes, top.power))
        said = [
            f"derived: r0 of finite width is a start of phi, of the variance {self.found.start}, which modes "
            "forget as they are learnt",
            "neglected: the initial function, smaller by 1/sigma, and the responses of the random start, by "
            "1/sigma**2",
            "assumed: order 1/N**2 is smaller where order 1/N is smaller than the loss",
        ]
        return self.noise(sink, said)

    def summed_pushes(self) -> Expr:
        """Return the variance that all modes receive, per unit of X and squared error."""
        part = Power.of(on_eigenvalues(self.found.pushes).subs(capacity_, self.law.capacity), k)
        return part.coefficient * zeta(-part.power)

    def batch(self) -> Bottleneck:
        """Return the effect of fresh batches, whose squared error is the loss itself."""
        said = [
            "derived: a batch pushes phi by the loss, and modes forget what it pushed",
            SHORT.format(self.found.edge),
            "neglected: pushes that the last modes remember, smaller by the power 1 - 1/a of the clock",
        ]
        if not self.hard:
            said.append("the sum of the loss over the clock is finite: batches change constants, not powers")
            return Bottleneck(BATCH, B, None, None, None, None, (self.said, *said))
        loss = Dummy("l", positive=True)
        sink = self.integral(BATCH, Power(loss * self.summed_pushes(), self.before.power))
        first = replace(sink, part=sink.part.subs({loss: self.before.coefficient}))
        # after the crossover the loss fixes the decay of the kernel (sink), and the decay fixes the loss
        after, kernel, values = self.balanced(sink)
        if after.coefficient.has(loss):
            raise NotApplicable(f"the loss after the crossover depends on itself: {after}")
        kernel = kernel.subs({loss: after.coefficient})
        stays = valued(kernel.coefficient * eta, values)
        said.append(
            f"after the crossover eta*C_g = {stays}; if this is not far below {self.found.edge}, steps are "
            "the bottleneck before batches are"
        )
        return self.noise(first, said, (after, kernel, values))

    def labels(self) -> Bottleneck:
        """Return the effect of the label noise of fresh batches."""
        said = [
            "derived: the noise of labels pushes phi, and modes forget what it pushed",
            f"{self.found.label} in the share and in the law after the crossover is the labels' variance",
            SHORT.format(self.found.edge),
        ]
        return self.noise(self.integral(LABELS, Power(self.found.label * self.summed_pushes(), S.Zero)), said)

    def integral(self, name: str, driven: Power) -> _Sink:
        """Return the sink of noise ``driven`` in X, of which nearly all is forgotten."""
        rise = driven.power + 1
        return _Sink(name, B, Power(self.front * driven.coefficient / rise, rise))

    def seen(self, sink: Power, kernel: Power) -> Power:
        """Return the part of the loss from the noise of a sink: ``weight C_g/(2 front) dS/dX``."""
        rates = self.found.weight / 2  # noise^2 is forgotten at twice the rate
        front = rates * kernel.coefficient * sink.coefficient * sink.power / self.front
        return Power(front, simplify(kernel.power + sink.power - 1))

    def noise(self, sink: _Sink, said: list[str], after: _Balanced | None = None) -> Bottleneck:
        """Return the share of a sink, its crossover, and the balance after it."""
        said, share = [self.said, *said], self.share(sink)
        if not self.hard:
            said.append("the sink is neglected beside the noise, which grows faster")
        if share.power.is_nonpositive:
            said.append(f"the share falls as t**({share.power}): this size is no bottleneck of the law")
            return Bottleneck(sink.name, sink.size, share, None, None, None, tuple(said))
        if not share.power.is_positive:
            said.append(f"{share.power} > 0, or the share falls and there is no crossover")
        loss, grown, values = after or self.balanced(sink)
        clock = self.in_time(grown)
        said += self.window(sink, grown, clock)
        if not self.hard:
            loss, grown, clock, values = self.alone(sink)
        final, kept = (
            Power(valued(x.coefficient, {**values, **self.names}), x.power)
            for x in (timed(loss, clock), timed(grown, clock))
        )
        if final.coefficient.has(nan, zoo):
            said.append("the closed form of the constant after the crossover is 0/0 there, and is not given")
            return Bottleneck(sink.name, sink.size, share, root(share), None, None, tuple(said))
        return Bottleneck(sink.name, sink.size, share, root(share), final, kept, tuple(said))

    def share(self, sink: _Sink) -> Power:
        """Return the relative change of the loss by a sink, to first order."""
        law, q = self.law, self.law.slowness
        kernel = Power(tidied(law.named_kernel / law.named_clock ** (2 * q)), 2 * q)
        noise = self.seen(sink.part, kernel)
        seen = tidied(noise.coefficient / self.before.coefficient)
        power, number = simplify(noise.power - self.before.power), S.One
        if self.hard:
            lost = kernel.coefficient ** ((2 - self.rise) / 2) * -sink.part.coefficient
            gap = simplify((self.rise - 2) * q - sink.part.power)
            moved, beside = law.moved(sink.name, gap), tidied(lost / seen)
            if not moved.known or simplify(power + gap) != 0 or beside.has(*SIZES):
                raise NotApplicable(f"{sink.name}: noise and sink do not change the loss by one power")
            number += beside * moved.size.subs(X, 1)
        front = tidied(seen * self.clock.coefficient**power)
        constant, sizes = front.as_independent(*SIZES, as_Add=False)
        power = factor(simplify(power * self.clock.power))
        return Power(law.valued((constant * number).xreplace(self.names)) * sizes, power)

    # -- after the crossover -------------------------------------------------------------------------------

    def balanced(self, sink: _Sink) -> _Balanced:
        """Return loss and kernel in X if the learnt part and the sink are both far above sigma^2."""
        q = simplify((self.top.power - sink.part.power) / 2)
        kernel = Power(self.front * self.top.coefficient / sink.part.coefficient, 2 * q)
        noise = self.seen(sink.part, kernel)
        if not self.hard:
            return noise, kernel, self.balance.moments(q)
        loss = Power(simplify(self.before.coefficient + noise.coefficient), self.before.power)
        return loss, kernel, self.balance.moments(q)

    def alone(self, sink: _Sink) -> tuple[Power, Power, Power, Mapping[Symbol, Expr]]:
        """Return noise above the loss for easy tasks, with the kernel without noise."""
        kernel = Power(self.law.named_kernel, S.Zero)
        return self.seen(sink.part, kernel), kernel, self.clock, self.law.values

    def in_time(self, kernel: Power) -> Power:
        """Return X as a power of time, from ``t = int dX/C_g``."""
        p = Dummy("p", positive=True)
        (clock,) = solve(integrate(X ** (p - 1), (X, 0, X)) - kernel.coefficient * late, X)
        return Power.of(tidied(clock.subs(p, simplify(1 - kernel.power))), late)

    def window(self, sink: _Sink, kernel: Power, time: Power) -> list[str]:
        """Return the conditions at which the balance ends, by powers of X."""
        if not self.hard:
            below = self.squared(Power(self.law.named_kernel, S.Zero)).coefficient / sink.part.coefficient
            until = ended(below ** (1 / sink.part.power), self.clock, sink.size)
            where = "while the sink is below sigma**2, up to t of the order"
            return [f"after the crossover: the noise alone, {where} {until}"]
        squared = self.squared(kernel)
        said = [
            "after the crossover: the sink and what is learnt are balanced, both >> sigma**2 >> 1",
            "assumed: kernels are of rank one there too; counted, not solved, at the input end, where the "
            "random start turns the directions of the layers",
        ]
        if squared.power.is_negative:
            where = squared.coefficient ** (-1 / squared.power)
            said.append(
                f"the singular value falls, and is one at t of the order {ended(where, time, sink.size)}"
            )
        # C_h0 beside c_h(1)^2, with sigma^2 = gamma0 t c_g(1) c_h(1) and t = X/C_g, as powers
        kept = squared.coefficient * kernel.coefficient ** (S.One / 2) / gamma0
        rise = simplify(self.balance.squares() - 2 * squared.power - kernel.power + 2)
        if rise.is_positive:
            said.append(f"the count ends at t of the order {ended(kept ** (2 / rise), time, sink.size)}")
        return said

    def squared(self, kernel: Power) -> Power:
        """Return the squared singular value as a function of the kernel."""
        c = Dummy("c", positive=True)
        power = power_in(self.law.reduced.singular(c).subs(L, self.law.depth), c)
        return Power(kernel.coefficient**power, simplify(kernel.power * power))

    # -- steps ---------------------------------------------------------------------------------------------

    def steps(self) -> Bottleneck:
        """Return the edge of stability of the first mode."""
        law, edge = self.law, self.found.edge
        said = [self.said, f"derived: the first mode is stable while eta*C_g(1, t, t) < {edge}"]
        if not self.hard:
            where = law.valued(tidied(edge / law.named_kernel))
            said.append(f"the kernel stops growing: eta < {where}, or the first mode diverges before")
            return Bottleneck(STEPS, eta, None, None, None, None, tuple(said))
        kernel = Power.of(law.named_kernel, late)
        crossover = law.valued(tidied((edge / eta / kernel.coefficient) ** (1 / kernel.power)))
        said.append(
            "assumed: after it the kernel stays at the edge, below which the solved theory orbits; then the "
            f"clock is {edge} times the number of steps, which bounds it while the first mode is stable"
        )
        pinned = Power(edge / eta, S.Zero)
        values = self.balance.moments(S.Zero)
        loss = timed(self.before, self.in_time(pinned))
        loss = Power(valued(loss.coefficient, values), loss.power)
        return Bottleneck(STEPS, eta, None, crossover, loss, pinned, tuple(said))


def valued(e: Expr, values: Mapping[Symbol, Expr]) -> Expr:
    """Return a product with the moments of a profile substituted, and short constants simplified."""
    constant, sizes = e.as_independent(*SIZES, as_Add=False)
    constant = constant.xreplace(dict(values))
    return (constant if constant.has(hyper) else simplify(constant)) * sizes


def root(share: Power) -> Expr:
    """Return the time at which a share is one."""
    constant, sizes = share.coefficient.as_independent(*SIZES, as_Add=False)
    return constant ** (-1 / share.power) * tidied(sizes ** (-1 / share.power))


def timed(of: Power, clock: Power) -> Power:
    """Return a power of X as a power of time."""
    return Power(
        tidied(of.coefficient * clock.coefficient**of.power), factor(simplify(of.power * clock.power))
    )


def ended(where: Expr, time: Power, size: Symbol) -> str:
    """Return a condition on X as a power of a size in time."""
    when = tidied((where / time.coefficient) ** (1 / time.power))
    return f"{size}**({factor(power_in(when, size))})"
