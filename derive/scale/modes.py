"""Power-law data in the lazy limit and at leading order in gamma0: single modes and pairs of modes.

At ``gamma0 = 0`` the fields of the layers are their Gaussian sources. Responses start at order ``gamma0``,
with coefficients that obey a recursion in the layer, which is solved for symbolic depth. The kernel of the
modes is then a number, so that each mode obeys a separate linear equation.

The population gradient on structured data is that of fixed samples with summed loss, along the eigenvectors
of their kernel. The errors along these are ``Delta_k = sqrt(lamda(k)) v(k)``, with the eigenvalue lamda(k)
and the error v(k) of mode k. So the order gamma0^2 of the loss is that of the expansion in operator words at
any depth: a sum over two modes. The error of each mode is an explicit function of its rate, so that the sum
becomes an integral over an earlier time of products of two sums, each over one mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sympy import (
    Add,
    And,
    Dummy,
    Eq,
    Expr,
    Function,
    Gt,
    Mul,
    Ne,
    S,
    Sum,
    Symbol,
    exp,
    expand,
    factor,
    factor_terms,
    log,
    oo,
    series,
    simplify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.calculus.sums import gathered
from derive.calculus.symbols import L, ell, exact, gamma0, s, t
from derive.errors import NotApplicable, require_integer
from derive.expansion import expand_linear
from derive.expansion.in_time import InTime
from derive.linear.form import Row, linear_form
from derive.program.networks.random_data import M, N, k
from derive.reduce.data import mode_sums, theory_limit
from derive.scale.mellin import Power, Powers, convolution, mode_sum, total
from derive.show.conditions import ConditionalResult
from derive.show.latex import aligned_latex
from derive.theory import Theory

capacity = Symbol("a", positive=True)
"""Exponent of the eigenvalues ``k^-capacity``; not a ratio of sizes, for which alpha stands."""
beta = Symbol("beta", positive=True)
"""Source: targets have ``w_star(k)^2 lamda(k) = k^(-capacity beta - 1)``."""
time = Symbol("t", positive=True)
"""A late time."""
K = Symbol("K", positive=True)
"""Kernel of the modes."""
rate, rate_ = Symbol("omega", positive=True), Symbol("omega_", positive=True)
"""Lazy rates of the observed mode and of a driving mode."""
tau = Symbol("tau", positive=True)
"""An earlier time."""
_SYMBOLS = {
    capacity: "the exponent of the eigenvalues",
    beta: "the source exponent of the targets",
    K: "the kernel of the modes",
    rate: "the rate of a mode",
    rate_: "the rate of a mode",
    tau: "an earlier time",
}
"""Symbols of laws that a theory must not have, with their meaning."""
lamda, w_star = Function("lamda"), Function("w_star")
HARD, EASY = "hard", "easy"
"""Names of tasks with a source below 1, whose target has an infinite norm, and above 1."""


def on_power_law(e: Expr) -> Expr:
    """Return a summand over modes k with the targets of power-law data.

    ``w_star(k)^2`` is replaced by ``k^(-capacity beta - 1)/lamda(k)``, where w_star is the target of a mode,
    ``lamda(k)`` its eigenvalue and beta the source exponent of the task.
    """
    return e.subs(w_star(k) ** 2, k ** (-capacity * beta - 1) / lamda(k))


def given(task: str) -> dict[Symbol, Expr]:
    """Return a substitution for the source exponent beta by an expression in a positive symbol p.

    It is ``1/(1 + p)`` for the task ``hard`` (beta < 1), and ``1 + p`` for ``easy`` (beta > 1), so that SymPy
    can compare exponents. Raises ValueError for another task.
    """
    if task not in (HARD, EASY):
        raise ValueError(f"task = {task!r}: must be 'hard' (beta < 1) or 'easy' (beta > 1)")
    p = Symbol("p", positive=True)
    return {beta: 1 / (1 + p) if task == HARD else 1 + p}


def task_of(source: Expr) -> str | None:
    """Return ``hard`` for a source exponent below 1 and ``easy`` above.

    The result is None for a source of 1 or a symbol.
    """
    return None if not source.is_number or source == 1 else HARD if source < 1 else EASY


def kind_of(source: Expr, task: str | None, where: str, meet: Any = 1) -> str:
    """Return the kind of task, ``hard`` (source exponent below 1) or ``easy`` (above 1).

    A numerical ``source`` other than 1 determines it. For a symbolic source, or 1, it is ``task``, which is
    not checked, or ``hard`` by default. Raises :class:`NotApplicable` at the source ``meet``, where two
    powers of the quantity named ``where`` are equal, and ValueError for a task that contradicts the source.
    """
    kind = task_of(source)
    if source == meet:
        raise NotApplicable(
            f"source = {source}: two powers in {where} are equal, so that a logarithm occurs, which is not "
            "derived"
        )
    if kind and task not in (None, kind):
        raise ValueError(f"task = {task!r}: a source of {source} makes the task {kind!r}")
    return kind or task or HARD


def numbers(depth: Any, source: Any, capacity_: Any, *, summed: bool = False) -> dict[Symbol, Expr]:
    """Return the values of the depth L, the source beta and the capacity, by symbol.

    Numbers are exact. Symbols are allowed and not checked. Raises ValueError for a number out of range: the
    depth must be a whole number of at least 1, and source and capacity must be positive. If ``summed`` is
    true, the capacity must be above 1, so that the sum of the eigenvalues ``k^-capacity`` converges.

    >>> numbers(2, "1/2", 3)
    {L: 2, beta: 1/2, a: 3}
    """
    values = {L: exact("depth", depth), beta: exact("source", source), capacity: exact("capacity", capacity_)}
    n, b, a = values.values()
    if n.is_number and (n < 1 or not n.is_Integer):
        raise ValueError(f"depth = {n}: must be a whole number, at least 1")
    for name, v in (("source", b), ("capacity", a)):
        if v.is_number and not v > 0:
            raise ValueError(f"{name} = {v}: must be positive")
    if summed and a.is_number and a <= 1:
        raise ValueError(f"capacity = {a}: must be above 1, or the eigenvalues have no finite sum")
    return values


# -- gamma0 = 0 --------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class LazyModes(ConditionalResult):
    """Solution of the theory of structured data at ``gamma0 = 0``, for each mode.

    Attributes
    ----------
    theory
        Theory in the limit of wide layers.
    responses
        Response ``R_gu(ell)/gamma0`` of the gradient g of layer ell to the source u of the field, constant in
        time.
    kernel
        Constant K in the equation of the error v of mode k: ``dv(k)/dt = -K lamda(k) v(k)`` in a flow, ``v(k,
        t + 1) - v(k, t) = -K lamda(k) v(k, t)`` in steps, where K contains the learning rate.
    solution
        Error ``v(k, t)`` of mode k; the symbol K stands for the kernel.
    with_K
        Contribution of mode k to the loss; the symbol K stands for the kernel.
    """

    theory: Theory
    responses: Expr
    kernel: Expr
    solution: Expr
    with_K: Expr

    @property
    def error(self) -> Expr:
        """Error ``v(k, t)`` of mode k as a function of time, in the lazy limit."""
        return self.solution.xreplace({K: self.kernel})

    @property
    def summand(self) -> Expr:
        """Contribution of mode k to the loss, a function of its eigenvalue ``lamda(k)`` and the time t."""
        return self.with_K.xreplace({K: self.kernel})

    def _repr_latex_(self) -> str:
        return aligned_latex([Eq(Function("v")(k, t), self.error, evaluate=False)])

    def conditions(self) -> tuple[str, ...]:
        """Return the conditions of the lazy solution, as sentences.

        There is one sentence. It states that layers are infinitely wide and that each mode is learnt by
        itself.
        """
        return ("derived: infinitely wide layers at gamma0 = 0, where each mode is learnt by itself",)

    def loss(self, terms: int = 3) -> Powers:
        """Return the loss at late times on power-law data with infinitely many modes.

        A flow has one power, and neglected terms fall faster than any power. In steps ``terms`` powers (at
        least 1) are kept, and no mode may diverge, which is one of the conditions.

        >>> from derive import mean_field, structured
        >>> flow = lazy_modes(mean_field(structured(data="population", rule="flow")))
        >>> steps = lazy_modes(mean_field(structured(data="population")))
        >>> print(flow.loss().expr, flow.loss().error)
        gamma(beta)/(a*t**beta*(2*L + 2)**beta) -oo
        >>> print([p.power for p in steps.loss(2).terms])
        [-beta, -beta - 1]
        """
        terms = require_integer("terms", terms, 1)
        return late(self.with_K, terms).subs({K: self.kernel})

    def cutoff(self) -> Expr:
        """Return the time at which the loss of the last of M modes has decayed by a factor e.

        The data are power-law data: the last mode has the smallest eigenvalue, ``M^-capacity``. For training
        in steps its rate is taken to first order in this eigenvalue.

        >>> from derive import mean_field, structured
        >>> print(lazy_modes(mean_field(structured(data="population", rule="flow"))).cutoff())
        M**a/(2*(L + 1))
        """
        decay = (self.with_K / self.with_K.subs(t, 0)).xreplace({lamda(k): (x := Dummy("x", positive=True))})
        # decay rate of the loss of a mode with a small eigenvalue x, to first order in x
        slowest = -log(decay).diff(x).subs(x, 0) * x / t
        return factor(1 / simplify(slowest).xreplace({x: M**-capacity, K: self.kernel}))


def require_population_loss(theory: Theory, what: str) -> None:
    """Raise NotApplicable for a theory of structured data that is trained on samples.

    Such a theory has an equation of the errors ``Delta`` of samples, by which the modes are learnt with
    noise. ``what`` is the name of the result that is not derived, for the message.
    """
    if any(e.name == "Delta" for e in theory.equations):
        raise NotApplicable(
            f"{what} are those of training on the population loss, and this theory is trained on samples: "
            "derive it with data='population'"
        )


def lazy_modes(theory: Theory) -> LazyModes:
    """Return the lazy limit (gamma0 -> 0) of training on the population loss, for each mode of the data.

    ``theory`` is that of structured data on the population loss, with the symbol L as depth. The rule is a
    flow or exact steps, and layers are taken to be infinitely wide. Raises :class:`NotApplicable` if the
    kernel of the modes changes in time, for another depth, for a theory on samples, and for a theory that
    does not subtract the initial output.

    >>> from derive import mean_field, structured
    >>> modes = lazy_modes(mean_field(structured(data="population", rule="flow")))
    >>> print(modes.kernel, modes.error)
    L + 1 w_star(k)*exp(-t*(L + 1)*lamda(k))
    >>> print(lazy_modes(mean_field(structured(data="population"))).error)
    (-eta*(L + 1)*lamda(k) + 1)**t*w_star(k)
    """
    theory = wide(theory)
    require_population_loss(theory, "the lazy modes")
    responses, kernel = kernel_of_modes(theory)
    v = Function("v")(k, t)
    # The error v of a mode obeys dv/dt = slope * v in a flow, and v(t + 1) = (1 + slope) * v(t) in steps.
    slope = -K * factor_of(linear_form(theory).row("h0"), "v")
    if slope.has(t):
        raise NotApplicable(
            f"the rate at which a mode is learnt must not change in time; it is {slope}: use plain "
            "gradient descent or its flow, with a constant learning rate"
        )
    decay = (1 + slope) ** t if theory.program.rule.discrete else exp(slope * t)
    error = at_start(theory) * decay
    (average,) = theory.order_parameter("C_v").definition.atoms(Average)
    summand = average.args[0].xreplace({v: error, v.subs(t, s): error})
    return LazyModes(theory, responses, kernel, error, summand)


def wide(theory: Theory) -> Theory:
    """Return a theory of structured data for N -> oo, with averages over modes written as sums.

    Raises NotApplicable for a depth other than the symbol L, because layers are solved as a recursion, and
    for a theory in which a symbol of the laws has another meaning.
    """
    for x, meaning in _SYMBOLS.items():
        if x in theory.symbols.values():
            raise NotApplicable(
                f"the theory has the symbol {x}, which is {meaning} in laws of modes: use another symbol in "
                "the program of the theory"
            )
    if theory.program.depth != L:
        raise NotApplicable(
            f"depth = {theory.program.depth}: must be the symbol {L}, because layers are solved as a "
            "recursion; laws take a number of layers afterwards, such as lazy_law(modes, depth=2)"
        )
    return theory_limit(mode_sums(theory), {N: oo})


def at_start(theory: Theory) -> Expr:
    """Return the error ``v(k, 0)`` of mode k before training, from its equation in the theory."""
    xi = Function("xi")
    return theory.equation("v").rhs.xreplace({xi(k, t): xi(k, 0)})


def kernel_of_modes(theory: Theory) -> tuple[Expr, Expr]:
    """Return (``R_gu(ell)/gamma0``, kernel of the modes) at gamma0 = 0, where both are constant in time.

    R_gu is the response of the gradient g of a layer to the source u of its field, and the kernel multiplies
    the eigenvalue in the rate of a mode. In ``g(ell) = ... + sum (R_gu(ell+1) + gamma0 C_g(ell+1)) h(ell)``,
    the factor of h is ``R_gu(ell)``. At gamma0 = 0, where C_g is one number c, this is the recursion ``R(ell)
    = R(ell+1) + gamma0 c``. Raises NotApplicable for a theory that does not subtract the initial output,
    which has no equation of xi, for layers that are not alike, and for a kernel that changes in time.
    """
    if all(e.name != "xi" for e in theory.equations):
        raise NotApplicable(
            "the theory has no learnt vector xi, the vector of the network minus that of its initial "
            "weights, by which modes are learnt: derive it with center=True"
        )
    form, covariance = linear_form(theory), _covariances(theory)
    above = Function("R_gu")(ell + 1, t, s)
    kernels = kernels_on(form.row("g", ell), "h")
    increment = Add(*[_at_zero(x / gamma0, covariance) for x in kernels if x != above])
    (end,) = kernels_on(form.row("g", L), "h")
    if above not in kernels or simplify(_at_zero(end / gamma0, covariance) - increment) != 0:
        raise NotApplicable(
            "the response R_gu of the last layer must obey the recursion of the other layers, R_gu(ell) = "
            "R_gu(ell + 1) + a term that is the same in all layers: use a network whose hidden layers are "
            "all alike, such as structured()"
        )
    responses = factor(Sum(increment, (Dummy("m"), ell, L)).doit())
    first = {Function("R_gu")(1, t, s): gamma0 * responses.subs(ell, 1)}
    terms = [_at_zero(x.xreplace(first), covariance) for x in kernels_on(form.row("xi"), "h0")]
    return responses, factor(Add(*terms))


def factor_of(row: Row, name: str) -> Expr:
    """Return the factor of a source, or of a field at the same time, in one equation of a linear theory.

    ``row`` is the equation, and ``name`` that of the source or field. The result is 0 if it is absent.
    """
    terms = (x for x in (*row.sources, *row.actions) if not x.reach and x.field.args[-1] == t)
    return Add(*[x.weight for x in terms if x.name == name])


def kernels_on(row: Row, field: str) -> list[Expr]:
    """Return the kernels k(t, s) of all sums over the past ``sum_s k(t, s) field(s)`` in one equation.

    ``row`` is the equation of a linear theory, and ``field`` the name of the field in the sums.
    """
    return [x.weight for x in row.actions if x.reach and x.name == field]


def _covariances(theory: Theory) -> Expr:
    """Return the correlation ``C_g`` of the gradients g at gamma0 = 0, which is the same in all layers.

    It is the covariance of the Gaussian source of the last layer. Raises NotApplicable if layers differ.
    """
    sources = {x.symbol.args[0]: x.covariance for x in theory.sources if x.symbol.func == Function("r")}
    if sources[ell] != Function("C_g")(ell + 1, t, s):
        raise NotApplicable(
            f"the source r of a layer must have the covariance C_g of the layer above; it has "
            f"{sources[ell]}: use a network whose hidden layers are all alike, such as structured()"
        )
    return sources[L]


def _at_zero(kernel: Expr, covariance: Expr) -> Expr:
    """Return a kernel at gamma0 = 0 as a number, with ``covariance`` in place of ``C_g``.

    Raises NotApplicable if the value contains a time or another undefined function, such as a correlation.
    """
    value = kernel.replace(Function("C_g"), lambda *_: covariance).subs(gamma0, 0)
    if value.has(t, s, AppliedUndef):
        raise NotApplicable(
            f"the kernel {kernel} must be a constant at gamma0 = 0: use plain gradient descent or its flow, "
            "with a constant learning rate"
        )
    return value


def late(summand: Expr, terms: int = 3) -> Powers:
    """Return the sum of a summand over infinitely many modes at late times, as powers of time.

    Modes with eigenvalues near 1/t dominate, so that the summand is expanded in 1/t at fixed ``y =
    lamda(k) t``, to ``terms`` orders; modes of larger eigenvalues are exponentially small.
    """
    y, small = Dummy("y", positive=True), Dummy("epsilon", positive=True)
    weight, function = on_power_law(summand).as_independent(lamda(k), t, as_Add=False)
    expanded = function.subs(lamda(k), y * small).subs(t, 1 / small)
    flow = not expanded.has(small)
    expanded = expanded if flow else series(expanded, small, 0, terms).removeO().expand()
    orders = ((n, expanded.coeff(small, n)) for n in range(1 if flow else terms))
    power = Power.of(weight, k)
    sums = [
        mode_sum(F, y, -power.power, capacity, time).scaled(power.coefficient, -n)
        for n, F in orders
        if F != 0
    ]
    powers, conditions = tuple(p for x in sums for p in x.terms), sums[0].conditions
    if flow:
        return Powers(time, powers, -oo, conditions)
    growth = summand.subs(t, 1) / summand.subs(t, 0)
    stable = And(conditions, Gt(1, growth.subs(lamda(k), 1)))
    return Powers(time, powers, sums[0].terms[0].power - terms, stable)


# -- order gamma0^2: pairs of modes ------------------------------------------------------------------------


@dataclass(frozen=True)
class PairForce:
    """Order gamma0^2 of the error of a mode in flow, from the influence of all modes ("driving" modes).

    The mode itself is one of its driving modes. For a mode with target y and lazy rate ``omega = kernel
    lamda``, where lamda is its eigenvalue and ``kernel`` the kernel of the lazy limit, this order is
    ``-int_0^t exp(-omega (t - tau)) y sum y_^2 force dtau``, with the sum over the driving modes. The force
    ``strength * shape`` is the contribution of a driving mode of rate ``omega_`` and target ``y_`` at the
    time tau, divided by ``y y_^2``.
    """

    kernel: Expr
    strength: Expr
    shape: Expr


def pair_force(samples: Theory) -> PairForce:
    """Return the influence of one mode on another at order gamma0^2, for flow on fixed samples.

    ``samples`` is the theory of the samples. The force on a mode is cubic in the targets and changes sign
    with the target of this mode alone, so that it is a sum over pairs of modes, and two modes determine
    it.

    >>> from derive import mean_field, mlp
    >>> found = pair_force(mean_field(mlp(rule="flow", loss="sum")))
    >>> print(found.strength, factor(found.shape.subs(rate_, rate)))
    L*(L + 2)/12 4*(exp(omega*tau) - 1)**2*exp(-3*omega*tau)
    """
    other = Symbol("y_")
    pair = in_modes(samples, {rate: S.One, rate_: other})
    lazy = pair.Delta(0)
    kernel = factor(-K * lazy.diff(t) / lazy / rate)
    driven = factor_terms(pair.drive(2, now=tau).subs(K, kernel))
    strength, shape = driven.as_independent(rate, rate_, as_Add=False)
    return PairForce(kernel, strength / 2, -2 * expand(shape).coeff(other, 2))


def in_modes(samples: Theory, targets: Mapping[Symbol, Expr]) -> InTime:
    """Return the expansion to order gamma0^2 of the output of a network in flow on fixed samples.

    Samples are replaced by modes, the eigenvectors of the kernel. ``samples`` is the theory, and ``targets``
    has the target of each mode by the symbol of its lazy rate. Raises NotApplicable unless the rule is a flow
    of rate 1 without weight decay, with the summed loss.
    """
    rule = samples.program.rule
    if rule.discrete or rule.memory(t, s)[1] != 1:
        raise NotApplicable(
            "the expansion of outputs to order gamma0^2 needs the theory of fixed samples in gradient flow "
            "with the rate 1, without weight decay, and with the summed loss (loss='sum')"
        )
    return expand_linear(samples, 2).in_time([x / K for x in targets], [*targets.values()])


# -- order gamma0^2 at late times --------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class LeadingOrder(ConditionalResult):
    """Loss ``lazy + gamma0^2 correction + O(gamma0^4)`` at late times, as sums of powers of t.

    ``modes`` is the lazy limit, and ``force`` the order gamma0^2 of the error of a mode. For hard tasks
    (beta < 1) the leading power of the correction is ``t^(1 - 2 beta)``, from the sum over driving modes;
    for easy tasks (beta > 1) it is ``t^-beta``, from the first modes. The other power is the next one, so
    that local slopes change by ``t^-|1 - beta|``.
    """

    modes: LazyModes
    force: PairForce
    lazy: Powers
    correction: Powers

    def _repr_latex_(self) -> str:
        return self.correction._repr_latex_()

    def conditions(self) -> tuple[str, ...]:
        """Return the conditions of the lazy limit, and the derivation of the order gamma0^2, as sentences."""
        return (
            *self.modes.conditions(),
            "derived: order gamma0**2 of the loss, from the same network on fixed samples along the "
            "eigenvectors of their kernel",
        )

    def relative(self, task: str) -> Power:
        """Return the ratio of the correction of order gamma0^2 to the lazy loss, as a power of late time.

        ``task`` is ``hard`` or ``easy``. The leading power of the correction, without the factor gamma0^2, is
        divided by that of the lazy loss.
        """
        top = self.correction.sorted(given(task)).terms[0]
        (base,) = self.lazy.terms
        return Power(top.coefficient / base.coefficient, simplify(top.power - base.power))

    def crossover(self) -> Expr:
        """Return the time at which gamma0^2 times the correction is minus the lazy loss, for hard tasks."""
        x = self.relative(HARD)
        return (-(gamma0**2) * x.coefficient) ** (-1 / x.power)


def leading_order(theory: Theory, samples: Theory) -> LeadingOrder:
    """Return order gamma0^2 of the loss at late times, for symbolic depth, capacity and source.

    ``theory`` is that of :func:`lazy_modes`, in flow; ``samples`` is that of the same network on fixed
    samples, as in :func:`pair_force`. Powers below ``correction.error`` are left out. At ``beta = 1`` the two
    powers are equal, and the coefficients diverge: there is a logarithm, which is not derived. Raises
    :class:`NotApplicable` if the two theories differ at gamma0 = 0.

    >>> from derive import mean_field, mlp, structured
    >>> theory = mean_field(structured(data="population", rule="flow"))
    >>> order = leading_order(theory, mean_field(mlp(rule="flow", loss="sum")))
    >>> print([p.power for p in order.correction.sorted(given("hard")).terms], order.correction.error)
    [1 - 2*beta, -beta] -beta - 1
    >>> print(order.relative("hard").power, order.relative("easy").power)
    1 - beta 0
    >>> print(simplify(gamma0 * order.crossover().diff(gamma0) / order.crossover()))
    2/(beta - 1)
    """
    modes, force = lazy_modes(theory), pair_force(samples)
    if simplify(force.kernel - modes.kernel) != 0:
        raise NotApplicable(
            f"the two theories are not those of one network: their lazy kernels are {force.kernel} on "
            f"samples and {modes.kernel} on modes"
        )
    parts = (x.as_independent(rate, as_Add=False) for x in Add.make_args(force.shape))
    groups = gathered((powers_of(observed, rate), driving) for driving, observed in parts)
    summed = total(_driven(x, m, p, force.kernel) for (m, p), x in groups.items())
    terms = tuple(Power(factor_terms(-2 * force.strength * x.coefficient), x.power) for x in summed.terms)
    correction = Powers(time, terms, summed.error)
    correction = replace(correction, conditions=Ne(beta, correction.turns(beta)))
    return LeadingOrder(modes, force, modes.loss(), correction)


def _driven(driving: Expr, m: Expr, p: Expr, kernel: Expr) -> Powers:
    """Return ``int_0^t W(2 t - tau + p tau) D(tau) dtau`` at late t as powers of t, on power-law data.

    W is a sum over the observed modes of ``y^2 omega^m exp(-omega z)``, where z is the argument of W, y the
    target and ``omega = kernel k^-capacity`` the rate of a mode. D is the sum of ``y_^2 driving`` over the
    modes that drive them, of rate ``omega_``. The part from late tau is a power of t for each power of t in
    D. The part from early tau is W(2 t) times the integral of D over all times, a finite part if this
    integral diverges. Raises NotApplicable unless ``driving`` is a power of ``omega_`` times a function of
    ``omega_ tau``.
    """
    u = Dummy("u", positive=True)
    n = {powers_of(x, rate_)[0] for x in Add.make_args(driving)}
    F = expand((driving / rate_ ** max(n)).subs(rate_, u / tau))
    if len(n) != 1 or F.has(tau):
        raise NotApplicable(
            f"{driving}, the source of the change of a mode at order gamma0^2, is not a power of {rate_} "
            f"times a function of {rate_}*tau"
        )
    outer = (exp(-u), capacity * (beta + m) + 1)
    inner = (F, capacity * (beta + max(n)) + 1)
    integral = convolution(outer, inner, u, capacity, time, less=1 - p)
    # `convolution` is for decay rates k^-capacity of modes k. The rates here have the factor `kernel`. The
    # power of `kernel` is a sum: the power of the time, because `kernel` multiplies the time; m + max(n), the
    # power of rates in the integrand; and minus one for dtau.
    terms = [Power(x.coefficient * kernel ** (x.power + m + max(n) - 1), x.power) for x in integral.terms]
    return Powers(time, tuple(terms), integral.error, integral.conditions)


def powers_of(e: Expr, x: Symbol) -> tuple[Expr, Expr]:
    """Return ``(m, p)`` of a product ``c x^m exp(-p x time)``.

    The exponent of the exponential is one term in which x is multiplied by one time symbol.

    >>> powers_of(3 * rate**2 * exp(-2 * rate * tau), rate)
    (2, 2)
    """
    m, p = S.Zero, S.Zero
    for f in Mul.make_args(e):
        base, power = f.as_base_exp()
        if isinstance(f, exp):
            p -= f.args[0].as_coeff_Mul()[0] if f.has(x) else 0
        elif base == x:
            m += power
    return m, p
