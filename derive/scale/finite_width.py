"""Order 1/N of the lazy loss of a flow: the variance of the function of N units, and the shift of its mean.

From the structured theory of finite width the module derives both as double sums over modes, as powers of
time with constants, and the time at which order 1/N is no longer sufficient.
:func:`derive.scale.power_laws.width_law` uses it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sympy import (
    Dummy,
    Expr,
    Function,
    Ne,
    S,
    Sum,
    Symbol,
    binomial,
    factor,
    factor_terms,
    integrate,
    inverse_laplace_transform,
    powdenest,
    powsimp,
    simplify,
    solve,
)
from sympy.logic.boolalg import Boolean

from derive.calculus.symbols import L, ell, gamma0, s, t
from derive.errors import NotApplicable
from derive.linear.form import linear_form
from derive.program.networks.random_data import N, k
from derive.reduce.data import mode_sums
from derive.scale.lazy_responses import (
    answers,
    constant_transform,
    on_eigenvalues,
    source_of,
    summable,
    weight_in_loss,
    z,
)
from derive.scale.mellin import Power, Powers, convolution, full_convolution, mode_sum, power_in, total
from derive.scale.modes import (
    HARD,
    K,
    LazyModes,
    at_start,
    beta,
    factor_of,
    in_modes,
    kernel_of_modes,
    kernels_on,
    lamda,
    on_power_law,
    rate_,
    time,
    wide,
)
from derive.scale.modes import capacity as capacity_
from derive.show.conditions import ConditionalResult
from derive.theory import Theory

driver = Symbol("lamda_j", positive=True)
"""Eigenvalue of a driving mode."""
age = Symbol("age", positive=True)
"""Time since the perturbation of a mode."""


@dataclass(frozen=True)
class FirstInWidth:
    """Order 1/N of a lazy flow in Laplace transforms, times N, from a mode of eigenvalue ``driver``.

    ``kernel`` is added to the transform of the kernel of the modes, and ``error`` to that of the mean error
    of mode k, which is a product of a function of mode k and one of the driver.
    """

    kernel: Expr
    error: Expr

    def split(self) -> tuple[Expr, Expr]:
        """Return the factors of ``error``, of mode k and of the driver, as functions of :data:`age`."""
        driving, own = factor(self.error).as_independent(k, as_Add=False)
        own, driving = (factor(x) for x in (own, driving))
        first, second = (simplify(inverse_laplace_transform(x, z, age)) for x in (own, driving))
        return first, second

    def share(self, kernel: Expr) -> Power:
        """Return the ratio of order 1/N of the kernel to the kernel, at the rate 1/t, on power-law data."""
        summand = factor(self.kernel * z / kernel).subs(z, 1 / time)
        weight, rest = summand.as_independent(driver, time, as_Add=False)
        y = Dummy("y", positive=True)
        found = mode_sum(simplify(rest.subs(driver, y / time)), y, S.Zero, capacity_, time, terms=1)
        return found.scaled(weight).largest(summable(HARD))


def first_in_width(theory: Theory) -> FirstInWidth:
    """Return order 1/N of the kernel and of the mean error.

    The fields of a layer are ``h = u + b g`` and ``g = r + a h``. At gamma0 = 0 ``a/gamma0`` is the result of
    :func:`derive.scale.modes.kernel_of_modes`, and ``gamma0 b`` is the response of the inputs' field to the
    first weights, which is of order 1/N. The responses ``dg/du`` and ``dh/dr`` are expanded in b; the
    recursion over layers that sums the lazy kernel sums its order 1/N. All kernels depend on time
    differences, so that their transforms are numbers, and memories are empty at time 0.

    Parameters
    ----------
    theory : Theory
        Theory of structured data, in flow on the population loss.

    Returns
    -------
    FirstInWidth
        Order 1/N.

    Raises
    ------
    NotApplicable
        If the equations of a layer have another form.

    Examples
    --------
    >>> from derive import mean_field, structured
    >>> first = first_in_width(mean_field(structured(data="population", rule="flow")))
    >>> print(factor(first.kernel))
    -L*lamda_j*(L + 1)*(2*L + 1)/(6*z*(L*lamda_j + lamda_j + z))
    >>> print(first.split()[1], first.share(Symbol("K")).power)
    L*lamda_j*(L + 1)*(2*L + 1)*exp(-age*lamda_j*(L + 1))/6 1/a
    """
    responses, kernel = kernel_of_modes(wide(theory))
    theory = mode_sums(theory)
    form, added = linear_form(theory), _first_in_response()
    for row in (form.row("g", ell), form.row("g", L), form.row("h", ell + 1), form.row("h", 1)):
        if row.source.args[0] != row.field.args[0] or len({x.name for x in row.actions}) != 1:
            raise NotApplicable(f"{row.lhs} is not its source and a memory of the field beside it")
    if Function("R_hr")(ell, t, s) not in kernels_on(form.row("h", ell + 1), "g"):
        raise NotApplicable("the response of a layer is not what the layer above remembers")
    own = form.row("xi")
    answer = answers(theory, "xi")["h0"] * factor_of(own, "r0") * gamma0  # of one mode to the first weights
    (summed,) = (x for x in kernels_on(form.row("h", 1), "g") if x.has(Function("R_h0r0")))
    back = answer * summed / Function("R_h0r0")(t, s)
    layers = Sum(added.subs({_a: constant_transform(responses), _b: back}), (ell, 1, L)).doit()
    (front,) = (x for x in kernels_on(own, "h0") if x.has(Function("R_gu")))
    grown = factor(layers * front * gamma0 / Function("R_gu")(1, t, s)) * N
    mean = answers(theory, "v")["v"] * constant_transform(at_start(theory))
    error = mean.diff(K) / constant_transform(K).diff(K) * grown.subs(lamda(k), driver)
    found = FirstInWidth(*(simplify(x.subs(K, kernel)) for x in (grown.subs(lamda(k), driver), error)))
    if any(e.has(t, s, N, gamma0, Function("R_h0r0"), Function("R_gu")) for e in (found.kernel, found.error)):
        raise NotApplicable(f"{found} has times or sizes left")
    return found


_a, _b = Symbol("a_h"), Symbol("b_g")
"""Memory kernels of h in g, over gamma0, and of g in h, times gamma0."""


def _first_in_response() -> Expr:
    """Return the first-order term of ``dg/du`` in b without that of the kernel a; ``dh/dr`` is b there."""
    h, g, u, r, small, more = (Dummy(x) for x in "hgure1")
    fields = solve([u + _b * g - h, r + _a * h - g], [g, h])
    around = {_a: _a + small * more, _b: small * _b}
    up, down = (fields[x].diff(y).subs(around).diff(small).subs(small, 0) for x, y in ((g, u), (h, r)))
    if simplify(down - _b) != 0:
        raise NotApplicable(f"h answers r by {down}, not by its memory of g")
    return simplify(up - more)


@dataclass(frozen=True)
class WidthNoise(ConditionalResult):
    """Order 1/N of the lazy loss of a flow, times N: a variance and a shift of the mean.

    ``variance`` is that of the function that N units learn, ``mean`` is the part from the mean of the error,
    and ``total`` is their sum. ``share`` is the ratio of order 1/N of the kernel of the modes to the kernel.
    The recursion over layers is a series in this ratio, so that order 1/N is not sufficient where it is 1.
    ``last`` is the time at which the last of M modes is learnt.
    """

    lazy: Powers
    last: Expr
    variance: Powers
    mean: Powers
    total: Powers
    share: Power

    def _repr_latex_(self) -> str:
        return self.total._repr_latex_()

    def conditions(self) -> tuple[str, ...]:
        """Return the limits that are taken, and the range of order 1/N."""
        return (
            "derived: order 1/N at gamma0 = 0, the variance of what N units learn and the shift of the mean",
            "assumed: order 1/N**2 is smaller, as long as order 1/N of the kernel of the modes is smaller "
            "than the kernel; the recursion over layers is a series in this ratio",
        )

    def crossover(self, task: str) -> Expr:
        """Return the time at which order 1/N equals the loss of infinite width."""
        (base,) = self.lazy.terms
        top = self.total.largest(summable(task))
        return Power(top.coefficient / N, top.power).meets(base)

    def end(self) -> Expr:
        """Return the time at which order 1/N of the kernel equals the kernel."""
        return (N / abs(self.share.coefficient)) ** (1 / self.share.power)


def width_noise(theory: Theory, samples: Theory, modes: LazyModes) -> WidthNoise:
    """Return order 1/N of the loss from the structured theory.

    The source of the modes is the randomness of the first weights times ``g(1)``. Its initial value is
    subtracted, so that it contains the change of ``g(1)``, which is of order gamma0 and known in words. This
    gives the variance; :func:`first_in_width` gives the mean. Both are double sums over modes. SymPy checks,
    for one pair of modes, that their sum is one convolution, from which the powers of ``total`` follow.

    Parameters
    ----------
    theory : Theory
        Theory of structured data, in flow on the population loss.
    samples : Theory
        Theory of the same network on fixed samples, as in :func:`derive.scale.modes.pair_force`.
    modes : LazyModes
        Lazy limit of ``theory``.

    Returns
    -------
    WidthNoise
        Order 1/N of the loss.

    Raises
    ------
    NotApplicable
        If the source enters in another way, or if the two parts are not one convolution.

    Examples
    --------
    >>> from derive import mean_field, mlp, structured
    >>> from derive.scale.modes import lazy_modes
    >>> theory = mean_field(structured(data="population", rule="flow"))
    >>> noise = width_noise(theory, mean_field(mlp(rule="flow", loss="sum")), lazy_modes(theory))
    >>> print([p.power for p in noise.variance.terms], noise.variance.error)
    [-beta + 1/a, -1 + 1/a] Max(-2 + 1/a, -beta - 1)
    >>> print([p.power for p in noise.mean.terms])
    [-beta + 1/a, -beta]
    >>> for task in ("hard", "easy"):
    ...     when = noise.crossover(task)
    ...     print(task, simplify(N * when.diff(N) / when))
    hard a
    easy a/(a*(beta - 1) + 1)
    """
    summed, first = mode_sums(theory), first_in_width(theory)
    weight, start = weight_in_loss(summed), at_start(summed)
    r0 = source_of(summed, "r0")
    front = factor_of(linear_form(summed).row("xi"), "r0")
    share = simplify((front * gamma0) ** 2 * r0.covariance / Function("C_g")(1, t, s))
    if share != 1 / N:
        raise NotApplicable(f"r0 enters with the variance {share}")
    # d/dt d/ds of order gamma0^2 of C_g(1, t, s), a sum over modes, and the answer of v to a step, squared
    moved = in_modes(samples, {rate_: S.One}).coefficient("G", 2, layer=1).diff(t, s)
    moved = moved.subs(rate_, K * lamda(k)).subs(K, modes.kernel) * weight * start**2
    step = answers(summed, "xi")["v"].subs(K, modes.kernel) / z
    answer = simplify(inverse_laplace_transform(factor(step), z, age))
    spread = weight * answer.subs(age, t) * answer.subs(age, s)
    # twice the lazy error times the mean's, and what drives it
    shift, driving = first.split()
    shift = 2 * weight * modes.error * shift
    rise = int(power_in(shift.subs(t, -age), age))
    drive, own, pushed, pushing = (
        _Wave.of(e)
        for e in (moved, spread, shift.subs(age, s) / s**rise, driving.subs({driver: lamda(k), age: t + s}))
    )
    _check_pair(drive, own, pushed, pushing, rise, modes.kernel)
    sums = (argument, capacity_, time)
    (W, w), (D, d) = (((x.F, x.decay), x.amplitude) for x in (drive, own))
    # int_0^t int_0^t of own(2 t - x - y) drive(x + y), with tau = x + y, or tau = 2 t - x - y
    first_half = convolution(D, W, *sums, less=1, weight=1)
    second_half = convolution(W, D, *sums, less=1, weight=1, early=0)
    variance = total([first_half, second_half]).scaled(w * d)
    parts = [
        convolution(W, D, *sums, less=1, weight=n, early=int(n < rise)).scaled(
            pushed.amplitude * pushing.amplitude * binomial(rise, n) * (-1) ** n, rise - n
        )
        for n in range(rise + 1)
    ]
    twice = full_convolution(W, D, *sums, weight=1).scaled(w * d)
    whole = replace(twice, terms=tuple(Power(p.coefficient * 2**p.power, p.power) for p in twice.terms))
    meets = Ne(beta, variance.turns(beta))
    variance, mean, whole = (_tidied(x, meets) for x in (variance, total(parts), whole))
    return WidthNoise(modes.loss(), modes.cutoff(), variance, mean, whole, first.share(modes.kernel))


def _tidied(found: Powers, conditions: Boolean) -> Powers:
    """Return the powers with common factors in front and exponents written out."""
    terms = tuple(Power(factor_terms(p.coefficient), p.power.expand()) for p in found.terms)
    return Powers(found.variable, terms, found.error.expand(), conditions)


@dataclass(frozen=True)
class _Wave:
    """Summand over modes, ``amplitude k^-decay F(lamda(k) (t + s))``, and ``F`` of one argument.

    ``rise`` is the power of the eigenvalue in it, beside the one in the squared target.
    """

    amplitude: Expr
    decay: Expr
    rise: Expr
    F: Expr

    @classmethod
    def of(cls, summand: Expr) -> _Wave:
        """Return the parts of a summand in t and s."""
        once = summand.subs({t: age, s: 0})
        if simplify(once.subs(age, t + s) - summand) != 0:
            raise NotApplicable(f"{summand} does not depend on t + s alone")
        start = on_power_law(simplify(once.subs(age, 0)))
        kept = simplify(once / once.subs(age, 0)).subs(lamda(k), argument / age)
        if kept.has(age, lamda(k)):
            raise NotApplicable(f"{once} is not a function of {lamda(k) * age}")
        front = Power.of(powsimp(powdenest(on_eigenvalues(start), force=True)), k)
        return cls(front.coefficient, -front.power, power_in(start, lamda(k)), simplify(kept))

    def at(self, rate: Expr, when: Expr, kernel: Expr) -> Expr:
        """Return the summand of one mode of rate ``kernel * lamda``, for amplitude and target 1."""
        wave = simplify(self.F.subs(argument, argument / kernel))
        return (rate / kernel) ** self.rise * wave.subs(argument, rate * when)


argument = Symbol("x", positive=True)
"""Eigenvalue times the time since the perturbation."""


def _check_pair(drive: _Wave, own: _Wave, pushed: _Wave, pushing: _Wave, rise: int, kernel: Expr) -> None:
    """Check that the variance and the mean of a pair of modes, as integrals, are one convolution.

    Raises :class:`NotApplicable` if SymPy does not find the difference to be zero.
    """
    low, gap, x, y, end = (Symbol(n, positive=True) for n in ("p", "q", "x", "y", "t"))
    high = low + gap

    def integral(body: Expr, *limits: tuple[Symbol, Expr, Expr]) -> Expr:
        """Return a nested integral."""
        for limit_ in limits:
            body = integrate(powsimp(body.expand(), force=True), limit_)
        return body

    def pair(first: Expr, second: Expr, one: _Wave = drive, two: _Wave = own) -> Expr:
        """Return the product of two summands at a pair of modes."""
        return one.at(low, first, kernel) * two.at(high, second, kernel) / front

    front = kernel ** -(drive.rise + own.rise)
    ratio = simplify(pushed.amplitude * pushing.amplitude / (drive.amplitude * own.amplitude))
    variance = integral(pair(x + y, 2 * end - x - y), (x, 0, end), (y, 0, end))
    halves = integral(x * (pair(x, 2 * end - x) + pair(2 * end - x, x)), (x, 0, end))
    mean = ratio * integral(x**rise * pair(end + x, end - x, pushed, pushing), (x, 0, end))
    whole = integral(x * pair(x, 2 * end - x), (x, 0, 2 * end))
    if any(simplify(e.expand()) != 0 for e in (variance - halves, variance + mean - whole)):
        raise NotApplicable("the variance and the mean of a pair of modes are not one convolution")
