"""Theories without memory: sums over past times become states with equations of motion.

A sum over past times is a running total if the present enters it only as a factor, so that the times of its
terms need not be stored. With one hidden layer all sums have this form, for any nonlinearity, also with
momentum and constant weight decay; without noise, Gaussian variables are drawn once at time 0
(:func:`markov`). If the initial value,
the noise and the updates of a field decay at one rate, the field itself is the state (:func:`motions`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sympy import (
    Add,
    Derivative,
    Dummy,
    Eq,
    Expr,
    Function,
    Integral,
    Pow,
    Product,
    S,
    Sum,
    powsimp,
    simplify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.sums import bound, drawn_out, over, rewritten
from derive.calculus.symbols import IndexRange, s, t
from derive.errors import NotApplicable
from derive.program.nonlinear import require_linear_rules
from derive.program.rules import TrainingRule, entry_covariance
from derive.show.latex import aligned_latex
from derive.show.summary import Summarised
from derive.theory import Equation, Source, Term, Theory


@dataclass(frozen=True)
class State:
    """State of a memoryless theory: the running total of a sum over past times.

    ``definition`` is the sum for which ``symbol`` stands, zero at time 0; ``motion`` follows by
    differentiation: ``d symbol/dt = ...``, or ``symbol(t + 1) = ...`` in steps, with a right-hand side at
    time t only. ``ranges`` are the ranges of the indices of ``symbol``.
    """

    symbol: AppliedUndef
    definition: Expr
    motion: Eq
    ranges: tuple[IndexRange, ...] = ()


@dataclass(frozen=True, repr=False)
class Markov(Summarised):
    """Theory as a dynamical system: the present state determines the next one.

    ``start`` are the Gaussian variables that are drawn at time 0 (sources) with their covariances, ``states``
    the running totals, and ``fields`` the fields at time t in terms of both and of each other. Order
    parameters and outputs are averages over ``start``; other scalars are functions of these.
    """

    theory: Theory
    start: tuple[Source, ...]
    states: tuple[State, ...]
    fields: tuple[Equation, ...]

    @property
    def discrete(self) -> bool:
        """Whether time is discrete."""
        return bool(self.theory.program.rule.discrete)

    def _repr_latex_(self) -> str:
        return aligned_latex((*(x.motion for x in self.states), *(e.eq for e in self.fields)), self.theory)


def markov(theory: Theory) -> Markov:
    """Return the equations of motion of a theory without memory.

    In such a theory present and past enter every sum over past times in separate factors, or in a sum of such
    products (powers and exponentials of ``t - s``: momentum, constant decay), and there is noise at time 0
    only: networks with one hidden layer, with biases, channels and feedback alignment. Raises
    :class:`NotApplicable`, naming the term, if two times are coupled: by kernels and responses of deeper
    networks, by noise at all times, by a decay that depends on time, by sums that contain the present.

    >>> from derive import mean_field, mlp
    >>> flow = markov(mean_field(mlp(1, "tanh", "flow")))
    >>> for x in flow.states: print(x.motion.rhs)
    Sum(gamma0*Delta(alpha, t)*K_x(mu, alpha)*g(1, alpha, t), (alpha, 1, P))
    Sum(gamma0*Delta(alpha, t)*tanh(h(1, alpha, t)), (alpha, 1, P))
    >>> print(flow.fields[0].eq)
    Eq(h(1, mu, t), past_h(1, mu, t) + u(1, mu, 0))
    """
    require_linear_rules(theory.program, "the Markov process of a unit")
    start, scales = _initial_sources(theory)
    states: list[State] = []
    fields = []
    for e in theory.equations:
        kept, sums = _sums(e, theory.program.rule.discrete)
        named = []
        for n, x in enumerate(sums):
            name = f"past_{e.name}{n + 1 if len(sums) > 1 else ''}"
            named.append(Function(name)(*e.lhs.args))
            states.append(State(named[-1], x.total, x.motion(named[-1]), e.ranges))
        terms = [
            x.rewrite(lambda y: rewritten(y, scales, lambda u: scales[str(u.func)] * _at(u, S.Zero)))
            for x in kept
        ]
        if named:
            terms.append(Term.local(Add(*named), "memory", rule="sums over the past, as states"))
        fields.append(Equation(e.lhs, tuple(terms), e.ranges))
    return Markov(theory, start, tuple(states), tuple(fields))


# -- fields as states ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Motion:
    """Equation of motion of a field x: ``dx = (gain - rate x) dt + noise``.

    In steps it is ``x(t + 1) = (1 - rate) x + gain + noise``. ``gains`` are terms at time t whose sum is
    ``gain``, from updates of weights, and ``ranges`` those of the indices of ``field``, which is x.
    ``partner`` is the field at other indices: the covariance of the noise of the two is ``diffusion``, per
    step or unit of time, and that of the two fields at time 0 is ``start``.
    """

    field: AppliedUndef
    partner: AppliedUndef
    rate: Expr
    gains: tuple[Term, ...]
    diffusion: Expr
    start: Expr
    ranges: tuple[IndexRange, ...]

    @property
    def gain(self) -> Expr:
        """The change of the field by updates of weights, per step or unit of time."""
        return Add(*[x.expr for x in self.gains])

    @property
    def velocity(self) -> Expr:
        """The drift ``gain - rate x`` of the field x, per step or unit of time.

        In ``gain``, factors that contain no function, such as the learning rate, are moved in front of sums.
        """
        return drawn_out(self.gain, lambda y: not y.atoms(AppliedUndef)) - self.rate * self.field

    @property
    def eq(self) -> Eq:
        """The drift as a differential equation ``dx/dt = velocity``, without noise."""
        return Eq(Derivative(self.field, t), self.velocity, evaluate=False)


def motions(theory: Theory) -> tuple[Motion, ...]:
    """Return the motion of every field with a source or memory, if the theory needs no stored past.

    Raises :class:`NotApplicable` if a source changes with the fields (deeper networks) or does not relax
    exponentially, if updates decay otherwise than the initial value (momentum), and if the equation of such a
    field is not a sum of sources, independent of each other and with one rate, and of sums over past times.

    >>> from derive import mean_field, mlp
    >>> from sympy import Symbol
    >>> h, g = motions(mean_field(mlp(1, weight_decay=Symbol("lam", positive=True))))
    >>> print(g.rate, "|", g.gain)
    eta*lam | Sum(eta*gamma0*Delta(alpha, t)*h(1, alpha, t), (alpha, 1, P))
    """
    return tuple(_motion(theory, e) for e in theory.equations if any(x.kind != "definition" for x in e.terms))


def _motion(theory: Theory, e: Equation) -> Motion:
    """Return the equation of motion of the field that the equation ``e`` defines.

    Raises NotApplicable if the field at the next time is not determined by its present value and the other
    fields.
    """
    discrete = theory.program.rule.discrete
    named = {x.field for x in e.terms if x.kind == "source"}
    sources = [u for u in theory.sources if u.symbol in named]
    if not sources or any(u.symbol.func != u.partner.func for u in sources) or len(sources) != len(named):
        raise NotApplicable(
            f"the equation of motion of {e.lhs} is not derived: the equation of {e.lhs} must consist of "
            "one or more sources, independent of each other, and of sums over past times"
        )
    relaxed = [_source_relaxation(u, discrete) for u in sources]
    rate = relaxed[0][0]
    if any(x[0] != rate for x in relaxed):
        raise NotApplicable(
            f"the equation of motion of {e.lhs} is not derived: the sources in the equation of {e.lhs} "
            "relax at different rates"
        )
    gains: list[Term] = []
    kept, sums = _sums(e, discrete)
    if any(x.kind != "source" for x in kept):
        raise NotApplicable(
            f"the equation of motion of {e.lhs} is not derived: the equation of {e.lhs} must consist of "
            "one or more sources, independent of each other, and of sums over past times"
        )
    for x in sums:
        if simplify(x.rate + rate) != 0:
            raise NotApplicable(
                f"the updates in {x.total} decay at another rate than the initial value of {e.lhs}"
            )
        gains += x.gains
    # `partner` is the field at other indices, those of the partner of its source. They are read off the
    # source with the most indices, because the other sources may lack indices of the field, such as the
    # layer.
    named_most = max(sources, key=lambda u: len(u.symbol.args))
    other = dict(zip(named_most.symbol.args, named_most.partner.args, strict=True))
    partner = e.lhs.xreplace({x: y for x, y in other.items() if y != s})
    diffusion, start = (Add(*[x[k] for x in relaxed]) for k in (1, 2))
    return Motion(e.lhs, partner, rate, tuple(gains), diffusion, start, e.ranges)


def _source_relaxation(u: Source, discrete: bool) -> tuple[Expr, Expr, Expr]:
    """Return (relaxation rate, covariance of the noise, covariance at time 0) of the source ``u``.

    The covariances are those of the source with its partner at other indices; that of the noise is per step
    if ``discrete`` is true, else per unit of time. Raises NotApplicable if the source is not a Markov
    process, with rate and noise that are constant in time.
    """
    moved = [a for a in u.covariance.atoms(AppliedUndef) if {t, s} & a.free_symbols]
    if moved:
        raise NotApplicable(
            f"the source {u.symbol} is not shown to be a Markov process: its covariance contains {moved[0]}, "
            "a function of the time that is not known in closed form"
        )
    try:
        return relaxation(u.covariance, discrete)
    except NotApplicable as reason:
        raise NotApplicable(
            f"the source {u.symbol} must relax at a constant rate with constant noise: {reason}"
        ) from None


def relaxation(covariance: Expr, discrete: bool = False) -> tuple[Expr, Expr, Expr]:
    """Return (relaxation rate, variance rate of the noise, initial variance) of a Gaussian process.

    Its covariance ``c(t, s)`` for t > s must obey ``dc/dt = -rate c``; then it belongs to ``du = -rate u dt +
    noise`` (if ``discrete`` is true, ``u(t + 1) = (1 - rate) u + noise``). Raises :class:`NotApplicable`
    otherwise, and if the noise changes in time.

    >>> from sympy import Min, exp
    >>> relaxation(exp(-t - s) * exp(2 * Min(s, t)))
    (1, 2, 1)
    """
    past, lag = Dummy("past", nonnegative=True), Dummy("lag", positive=True)
    later, variance = (covariance.xreplace({t: past + x, s: past}) for x in (lag, S.Zero))
    if discrete:
        rate = _tidy(1 - later.xreplace({lag: lag + 1}) / later)
        noise = _tidy(variance.xreplace({past: past + 1}) - (1 - rate) ** 2 * variance)
    else:
        rate = simplify(-later.diff(lag) / later)
        noise = simplify(variance.diff(past) + 2 * rate * variance)
    if {past, lag} & rate.free_symbols:
        shown = rate.xreplace({lag: t - s, past: s})
        raise NotApplicable(
            f"the covariance {covariance} does not relax exponentially: at the times t > s its rate of decay "
            f"is {shown}, which is not constant"
        )
    if past in noise.free_symbols:
        raise NotApplicable(
            f"the noise that belongs to the covariance {covariance} changes in time: its variance per "
            f"step or unit of time at the time s is {noise.xreplace({past: s})}"
        )
    return rate, noise, simplify(variance.xreplace({past: S.Zero}))


def exponential(rule: TrainingRule) -> tuple[Expr, Expr, Expr]:
    """Return learning rate, decay and diffusion of a flow whose memory is exponential.

    Raises :class:`NotApplicable` for other rules.

    >>> from sympy import Symbol
    >>> from derive import GradientFlow
    >>> exponential(GradientFlow(decay=Symbol("a", positive=True), diffusion=Symbol("D", positive=True)))
    (1, a, D)
    """
    if rule.discrete:
        raise NotApplicable(
            "differential equations in time need a training rule in continuous time, such as "
            "GradientFlow, and the rule has discrete steps"
        )
    update_factor = rule.memory(t, s)[1]
    try:
        decay, diffusion, _ = relaxation(entry_covariance(rule, t, s))
    except NotApplicable:
        decay = diffusion = S.NaN
    if decay is S.NaN or simplify(update_factor.diff(t) + decay * update_factor) != 0:
        raise NotApplicable(
            f"{rule!r} is not supported: initial weights and updates must decay exponentially at the same "
            "constant rate, and the noise must not change in time"
        )
    rate = simplify(update_factor.xreplace({s: t}))
    if rate.has(t):
        raise NotApplicable(f"{rule!r} has a rate that depends on the time, {rate}: give a constant rate")
    return rate, decay, diffusion


# -- sources at time 0 -------------------------------------------------------------------------------------


def _initial_sources(theory: Theory) -> tuple[tuple[Source, ...], dict[str, Expr]]:
    """Return (sources at time 0, factor of time of each source by its name).

    A source at time t is this factor times its value at time 0. Raises NotApplicable for a source that does
    not have this form.
    """
    sources: list[Source] = []
    scales: dict[str, Expr] = {}
    for u in theory.sources:
        if any(lim.has(t, s) for x in u.covariance.atoms(Product, Sum, Integral) for lim in x.limits):
            raise NotApplicable(
                f"the covariance of the source {u.symbol} contains a sum, product or integral whose limits "
                "contain a time"
            )
        first = _at(u.covariance, S.Zero)
        scale = _scale(u.covariance, first)
        if scale is None:
            raise NotApplicable(
                f"the source {u.symbol} is not shown to be c(t) times its value at time 0, with a function c "
                f"in closed form: its covariance is {u.covariance}"
            )
        for x in (u.symbol, u.partner):
            if scales.setdefault(str(x.func), scale) != scale:
                raise NotApplicable(f"the source {x} has two covariances with different factors of time")
        ends = _at(u.symbol, S.Zero), _at(u.partner, S.Zero)
        sources.append(Source(*ends, first, u.ranges, u.matrix))
    return tuple(sources), scales


def _scale(covariance: Expr, first: Expr) -> Expr | None:
    """Return the factor ``c``, with ``c(0) = 1``, of a covariance ``c(t) c(s) first``, or None.

    None stands for covariances without such a factor, and for all that contain functions of time without a
    formula, such as kernels.
    """
    if not covariance.has(t, s):
        return S.One
    if any(x.has(t, s) for x in covariance.atoms(AppliedUndef)):
        return None
    ratio = _at(covariance, t) / first
    # powsimp is tried first: it is enough for powers of numbers, and simplify is slow.
    for simpler in (powsimp, simplify):
        scale = simpler(ratio)
        if simpler(covariance - scale * scale.xreplace({t: s}) * first) == 0:
            return scale
    return None


def _at(e: Expr, now: Expr) -> Expr:
    """Return an expression with t replaced by ``now`` and s by 0."""
    return e.xreplace({t: now, s: S.Zero})


# -- sums over the past --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Running:
    """Sums over past times whose terms depend on the present time t by one common factor ``factor(t)``.

    ``parts`` are the terms; their kernels contain the factor. ``discrete`` is true for training in steps.
    """

    factor: Expr
    parts: tuple[Term, ...]
    discrete: bool

    @property
    def total(self) -> Expr:
        """The sum of all terms, in which each kernel is summed over past times."""
        return Add(*[x.expr for x in self.parts])

    @property
    def rate(self) -> Expr:
        """Growth rate of the factor by which all terms of the sum depend on the present time t.

        It is ``factor'/factor`` in a flow, and ``factor(t + 1)/factor - 1`` in steps.
        """
        if self.discrete:
            return _tidy(self.factor.xreplace({t: t + 1}) / self.factor) - 1
        return _tidy(self.factor.diff(t) / self.factor)

    @property
    def gains(self) -> tuple[Term, ...]:
        """The terms by which the sum over past times grows in a step or unit of time.

        They are its terms at ``s = t``. In steps they are multiplied by ``factor(t + 1)/factor(t)``, where
        ``factor`` is the common factor by which the sum depends on t.
        """
        change = self.factor.xreplace({t: t + 1}) / self.factor if self.discrete else S.One
        gains = []
        for x in self.parts:
            numbers, rest = x.kernel.as_independent(AppliedUndef, as_Add=False)
            kernel = _tidy((change * numbers).xreplace({s: t})) * rest.xreplace({s: t})
            gains.append(replace(x, kernel=kernel, field=x.field.xreplace({s: t}), reach=""))
        return tuple(gains)

    def motion(self, symbol: AppliedUndef) -> Eq:
        """Return the equation of motion of the sum ``symbol``: for its derivative or its next value."""
        added = Add(*[over(x.kernel * x.field, x.over) for x in self.gains])
        if self.discrete:
            return Eq(symbol.xreplace({t: t + 1}), (1 + self.rate) * symbol + added, evaluate=False)
        return Eq(Derivative(symbol, t), self.rate * symbol + added, evaluate=False)


def _sums(e: Equation, discrete: bool) -> tuple[list[Term], list[_Running]]:
    """Return the terms of an equation without a sum over past times, and its sums over past times.

    The result is (terms, sums). The sums are grouped by the common factor with which they depend on t, and
    ``discrete`` is true for training in steps. Raises NotApplicable for a sum that contains the present,
    for a term with several sums over past times, for a sum that does not separate into factors of t and of
    past times, and for a differential equation.
    """
    if e.lhs.is_Derivative:
        raise NotApplicable(
            f"{e.lhs} is given by a differential equation already, and not by sums over past times"
        )
    kept: list[Term] = []
    sums: dict[Expr, list[Term]] = {}
    for x in e.terms:
        if not x.remembers:
            if s in bound(x.expr):
                raise NotApplicable(
                    f"in the equation of {e.lhs}, {x.expr} is not a single sum over past times"
                )
            kept.append(x)
            continue
        if x.reach != ("strict" if discrete else "flow"):
            raise NotApplicable(
                f"the sum {x.expr} in the equation of {e.lhs} includes the present time, so that states at "
                "earlier times do not determine this sum: the theory has memory"
            )
        for factor, kernel in _separated(x, e.lhs):
            sums.setdefault(factor, []).append(replace(x, coefficient=S.One, kernel=kernel))
    return kept, [_Running(factor, tuple(parts), discrete) for factor, parts in sums.items()]


def _separated(x: Term, lhs: Expr) -> list[tuple[Expr, Expr]]:
    """Return the kernel of a term, a sum over past times s, as a sum of products.

    The result lists pairs: (factor of the product that depends on t, the whole product). Raises NotApplicable
    if this factor contains s too, or if the sum contains a field, a kernel or another undefined function of
    t. A factor in closed form, such as ``exp(-(t - s))``, may depend on t.
    """
    products = []
    for a in sorted((x.coefficient * x.kernel * x.field).atoms(AppliedUndef), key=str):
        if a.has(t):
            raise NotApplicable(
                f"the sum over the past in the equation of {lhs} contains {a}, a function of the present "
                "time t: the theory has memory; only factors in closed form, such as exp(-(t - s)), may "
                "depend on t"
            )
    kernel = x.coefficient * x.kernel
    for term in Add.make_args(kernel.expand() if isinstance(kernel, Add) else kernel):
        free, moving = term.as_independent(t, as_Add=False)
        swapped, bases = _positive(moving)
        # write exponentials of t - s, and powers with t - s in the exponent, as products of one factor of t
        # and one of s
        for part in Add.make_args(swapped.expand().xreplace(bases)):
            now = part.as_independent(t, as_Add=False)[1]
            if now.has(s):
                raise NotApplicable(
                    f"the factor {now} of a sum over the past in the equation of {lhs} is not a function of "
                    "t times a function of the past time s: the theory has memory"
                )
            products.append((now, part * free))
    return products


def _tidy(e: Expr) -> Expr:
    """Return an expression in which powers of one base are joined, simplified if it contains a time."""
    swapped, bases = _positive(e)
    joined = powsimp(swapped)
    # Dummy symbols count as times, because `relaxation` writes times as dummies.
    timed = any(x in (t, s) or isinstance(x, Dummy) for x in e.free_symbols)
    return (simplify(joined) if timed else joined).xreplace(bases)


def _positive(e: Expr) -> tuple[Expr, dict[Expr, Expr]]:
    """Return an expression with positive symbols in place of the bases of powers such as ``b**(t - s)``.

    The second value maps the symbols to the bases. SymPy splits such a power into factors of t and of s only
    for a base that is not zero.
    """
    powers_of = {x.base for x in e.atoms(Pow) if x.exp.free_symbols}
    bases = {x: Dummy("b", positive=True) for x in sorted(powers_of, key=str)}
    swapped = e.xreplace({x: Pow(bases[x.base], x.exp) for x in e.atoms(Pow) if x.base in bases})
    return swapped, {b: x for x, b in bases.items()}
