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
    constant_transform,
    on_eigenvalues,
    response_transforms,
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
    require_population_loss,
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
    """Order 1/N of a lazy flow, times N: changes of the kernel and of the mean error, as Laplace transforms.

    They are the effect of the fluctuations of one mode, the driving mode, whose eigenvalue is the symbol
    :data:`driver`; the whole effect is the sum over all driving modes. ``kernel`` is added to the transform
    of the kernel of the modes. ``error`` is added to the transform of the mean error of mode k, and is a
    product of a function of mode k and one of the driving mode.
    """

    kernel: Expr
    error: Expr

    def split(self) -> tuple[Expr, Expr]:
        """Return ``error`` as two functions of time: the factor of mode k and the factor of the driving mode.

        Both are inverse Laplace transforms, with :data:`age` as the symbol of time. The driving mode is the
        mode whose fluctuations change the mean error of mode k.
        """
        driving, observed = factor(self.error).as_independent(k, as_Add=False)
        observed, driving = (factor(x) for x in (observed, driving))
        first, second = (simplify(inverse_laplace_transform(x, z, age)) for x in (observed, driving))
        return first, second

    def share(self, kernel: Expr) -> Power:
        """Return N times the relative change of the kernel of the modes at order 1/N, as a power of time.

        It is the change over ``kernel``, the kernel of infinite width, summed over all modes of power-law
        data. The Laplace transform at the rate 1/t stands for the value at time t.
        """
        summand = factor(self.kernel * z / kernel).subs(z, 1 / time)
        weight, function = summand.as_independent(driver, time, as_Add=False)
        y = Dummy("y", positive=True)
        summed = mode_sum(simplify(function.subs(driver, y / time)), y, S.Zero, capacity_, time, terms=1)
        return summed.scaled(weight).largest(summable(HARD))


def first_in_width(theory: Theory) -> FirstInWidth:
    """Return order 1/N of the kernel of the modes and of the mean error, for a lazy flow.

    The fields of a layer are ``h = u + b g`` and ``g = r + a h``, with sources u and r and memory kernels a
    and b. At gamma0 = 0 ``a/gamma0`` is the first result of :func:`derive.scale.modes.kernel_of_modes`, and
    ``gamma0 b`` is the response of the inputs' field to the first weights, which is of order 1/N. The
    responses ``dg/du`` and ``dh/dr`` are expanded in b; the recursion over layers that sums the lazy kernel
    sums its order 1/N. All kernels depend on time differences, so that their transforms are treated as
    numbers, and memories are empty at time 0.

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
        If the equations of a layer have another form, for training in steps or on samples, and for a depth
        other than the symbol L.

    Examples
    --------
    >>> from derive import mean_field, structured
    >>> first = first_in_width(mean_field(structured(data="population", rule="flow")))
    >>> print(factor(first.kernel))
    -L*lamda_j*(L + 1)*(2*L + 1)/(6*z*(L*lamda_j + lamda_j + z))
    >>> print(first.split()[1], first.share(Symbol("K")).power)
    L*lamda_j*(L + 1)*(2*L + 1)*exp(-age*lamda_j*(L + 1))/6 1/a
    """
    require_population_loss(theory, "the changes of kernel and error at order 1/N")
    if theory.program.rule.discrete:
        raise NotApplicable(
            "the changes of kernel and error at order 1/N are those of a flow, as Laplace transforms in "
            "time; derive the theory with rule='flow'"
        )
    responses, kernel = kernel_of_modes(wide(theory))
    theory = mode_sums(theory)
    form, added = linear_form(theory), _first_in_response()
    for row in (form.row("g", ell), form.row("g", L), form.row("h", ell + 1), form.row("h", 1)):
        if row.source.args[0] != row.field.args[0] or len({x.name for x in row.actions}) != 1:
            raise NotApplicable(
                f"the equation of {row.lhs} must be a source of the same layer plus memories of exactly one "
                "field"
            )
    if Function("R_hr")(ell, t, s) not in kernels_on(form.row("h", ell + 1), "g"):
        raise NotApplicable(
            "in the equation of h(ell + 1), a memory of g must have the kernel R_hr(ell, t, s), the "
            "response of the layer below"
        )
    learnt = form.row("xi")
    # The Gaussian source of xi is r0 times a factor. `response` is gamma0 times the Laplace transform of the
    # response of h0, a field of a mode, to r0. The response to r0 is the response to this source times the
    # factor.
    response = response_transforms(theory, "xi")["h0"] * factor_of(learnt, "r0") * gamma0
    (summed,) = (x for x in kernels_on(form.row("h", 1), "g") if x.has(Function("R_h0r0")))
    input_response = response * summed / Function("R_h0r0")(t, s)
    layers = Sum(added.subs({_a: constant_transform(responses), _b: input_response}), (ell, 1, L)).doit()
    (front,) = (x for x in kernels_on(learnt, "h0") if x.has(Function("R_gu")))
    grown = factor(layers * front * gamma0 / Function("R_gu")(1, t, s)) * N
    mean = response_transforms(theory, "v")["v"] * constant_transform(at_start(theory))
    error = mean.diff(K) / constant_transform(K).diff(K) * grown.subs(lamda(k), driver)
    result = FirstInWidth(*(simplify(x.subs(K, kernel)) for x in (grown.subs(lamda(k), driver), error)))
    if any(
        e.has(t, s, N, gamma0, Function("R_h0r0"), Function("R_gu")) for e in (result.kernel, result.error)
    ):
        raise NotApplicable(
            "the Laplace transforms of the lazy corrections of order 1/N must not contain t, s, N, gamma0, "
            f"R_h0r0 or R_gu; they are {result}"
        )
    return result


_a, _b = Symbol("a_h"), Symbol("b_g")
"""Memory kernels of h in g, over gamma0, and of g in h, times gamma0."""


def _first_in_response() -> Expr:
    """Return the part of order b of the response of g to u, for ``h = u + b g`` and ``g = r + a h``.

    a and b are the memory kernels of a layer, and b is small, of order 1/N. The response is a to order zero;
    at order b only the part from b itself is returned, without the change of a at this order. Raises
    NotApplicable unless the response of h to r is b to this order.
    """
    h, g, u, r, small, more = (Dummy(x) for x in "hgure1")
    fields = solve([u + _b * g - h, r + _a * h - g], [g, h])
    around = {_a: _a + small * more, _b: small * _b}
    up, down = (fields[x].diff(y).subs(around).diff(small).subs(small, 0) for x, y in ((g, u), (h, r)))
    if simplify(down - _b) != 0:
        raise NotApplicable(
            f"to first order in the memory kernel {_b} of g in h, the response of h to r must be {_b}; it is "
            f"{down}"
        )
    return simplify(up - more)


@dataclass(frozen=True, repr=False)
class WidthNoise(ConditionalResult):
    """Order 1/N of the lazy loss of a flow, as a variance and a shift of the mean.

    ``variance``, ``mean``, ``total`` and ``share`` are multiplied by N.

    Attributes
    ----------
    lazy
        Loss of infinite width.
    last
        Time at which the last of M modes is learnt.
    variance
        Part of the loss from the variance of the function that N units learn.
    mean
        Part of the loss from the shift of the mean error.
    total
        Sum of ``variance`` and ``mean``.
    share
        Order 1/N of the kernel of the modes over the kernel, which is negative. The recursion over layers
        is a series in ``share/N``, so that order 1/N is not sufficient where ``share/N`` is -1.
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
        """Return two sentences: what is derived, and where order 1/N is assumed to be sufficient."""
        return (
            "derived: order 1/N at gamma0 = 0, the variance of the function that N units learn and the shift "
            "of its mean",
            "assumed: order 1/N**2 is smaller as long as order 1/N of the kernel of the modes is smaller "
            "than the kernel, because the recursion over layers is a series in this ratio",
        )

    def crossover(self, task: str) -> Expr:
        """Return the time at which the loss of order 1/N equals the loss of infinite width.

        ``task`` is ``hard`` (source exponent beta below 1) or ``easy`` (above 1).
        """
        (base,) = self.lazy.terms
        top = self.total.largest(summable(task))
        return Power(top.coefficient / N, top.power).meets(base)

    def end(self) -> Expr:
        """Return the time at which order 1/N of the kernel is as large as the kernel.

        The kernel sets the rate of all modes. After this time order 1/N of the loss is not sufficient.
        """
        return (N / abs(self.share.coefficient)) ** (1 / self.share.power)


def width_noise(theory: Theory, samples: Theory, modes: LazyModes) -> WidthNoise:
    """Return order 1/N of the loss from the structured theory.

    The source r0 of the modes is the product of the random first weights and ``g(1)``. Its initial value
    is subtracted, so that it contains the change of ``g(1)``, which is of order gamma0 and follows from
    the expansion on fixed samples. This gives the variance; :func:`first_in_width` gives the mean. Both
    are double sums over modes. SymPy checks, for one pair of modes, that their sum is one convolution,
    from which the powers of ``total`` follow.

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
        If the source r0 enters the equation of xi in another way, if the two parts are not one convolution,
        and as :func:`first_in_width` does.

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
    source_factor = factor_of(linear_form(summed).row("xi"), "r0")
    share = simplify((source_factor * gamma0) ** 2 * r0.covariance / Function("C_g")(1, t, s))
    if share != 1 / N:
        raise NotApplicable(
            "gamma0 times the term with the source r0 in the equation of xi must have the covariance C_g(1, "
            f"t, s)/N, as from initial weights at width N; divided by C_g(1, t, s), the covariance is {share}"
        )
    # The variance is a double integral over earlier times of the drive times the response at both times. The
    # drive is d/dt d/ds of C_g(1, t, s) at order gamma0^2, a sum over modes with the summand `drive_summand`.
    # The response is that of v to a step of the source of xi.
    drive_summand = in_modes(samples, {rate_: S.One}).coefficient("G", 2, layer=1).diff(t, s)
    drive_summand = drive_summand.subs(rate_, K * lamda(k)).subs(K, modes.kernel) * weight * start**2
    step = response_transforms(summed, "xi")["v"].subs(K, modes.kernel) / z
    step_response = simplify(inverse_laplace_transform(factor(step), z, age))
    response_summand = weight * step_response.subs(age, t) * step_response.subs(age, s)
    # The loss is the square of the mean error plus the variance. The square changes by twice the lazy error
    # times the shift of the mean error. The fluctuations of one mode shift the mean error of another: `shift`
    # and `driving` are the factors of this shift from the shifted mode and from the fluctuating mode.
    shift, driving = first.split()
    shift = 2 * weight * modes.error * shift
    rise = int(power_in(shift.subs(t, -age), age))
    drive, response, shifted, shifting = (
        _Wave.of(e)
        for e in (
            drive_summand,
            response_summand,
            shift.subs(age, s) / s**rise,
            driving.subs({driver: lamda(k), age: t + s}),
        )
    )
    _check_pair(drive, response, shifted, shifting, rise, modes.kernel)
    sums = (argument, capacity_, time)
    (W, w), (D, d) = (((x.F, x.decay), x.amplitude) for x in (drive, response))
    # The variance is int_0^t int_0^t dx dy response(2 t - x - y) drive(x + y). The variable is tau = x + y
    # for x + y < t (`first_half`), and tau = 2 t - x - y otherwise (`second_half`).
    first_half = convolution(D, W, *sums, less=1, weight=1)
    second_half = convolution(W, D, *sums, less=1, weight=1, early=0)
    variance = total([first_half, second_half]).scaled(w * d)
    parts = [
        convolution(W, D, *sums, less=1, weight=n, early=int(n < rise)).scaled(
            shifted.amplitude * shifting.amplitude * binomial(rise, n) * (-1) ** n, rise - n
        )
        for n in range(rise + 1)
    ]
    twice = full_convolution(W, D, *sums, weight=1).scaled(w * d)
    total_loss = replace(twice, terms=tuple(Power(p.coefficient * 2**p.power, p.power) for p in twice.terms))
    distinct = Ne(beta, variance.turns(beta))
    variance, mean, total_loss = (_tidied(x, distinct) for x in (variance, total(parts), total_loss))
    return WidthNoise(modes.loss(), modes.cutoff(), variance, mean, total_loss, first.share(modes.kernel))


def _tidied(expansion: Powers, conditions: Boolean) -> Powers:
    """Return a sum of powers with factored coefficients, expanded exponents, and the given ``conditions``.

    The conditions are relations between symbols under which the expansion holds.
    """
    terms = tuple(Power(factor_terms(p.coefficient), p.power.expand()) for p in expansion.terms)
    return Powers(expansion.variable, terms, expansion.error.expand(), conditions)


@dataclass(frozen=True)
class _Wave:
    """Factor of one mode k in a double sum over modes: ``amplitude k^-decay F(lamda(k) (t + s))``.

    ``F`` is an expression in :data:`argument`, its argument, and is 1 at zero. ``rise`` is the power of the
    eigenvalue ``lamda(k)`` in front of F, after the squared target of mode k is replaced by that of power-law
    data, ``k^(-capacity beta - 1)/lamda(k)``. t and s are two times.
    """

    amplitude: Expr
    decay: Expr
    rise: Expr
    F: Expr

    @classmethod
    def of(cls, summand: Expr) -> _Wave:
        """Return amplitude, decay, rise and F of an expression in mode k and the times t and s.

        Raises NotApplicable unless it is a power of k times a function of ``lamda(k) (t + s)``.
        """
        at_zero = summand.subs({t: age, s: 0})
        if simplify(at_zero.subs(age, t + s) - summand) != 0:
            raise NotApplicable(f"the summand {summand} must depend on t and s by their sum alone")
        amplitude = on_power_law(simplify(at_zero.subs(age, 0)))
        function = simplify(at_zero / at_zero.subs(age, 0)).subs(lamda(k), argument / age)
        if function.has(age, lamda(k)):
            raise NotApplicable(
                f"the summand {at_zero}, where {age} is t + s, must be a function of {lamda(k) * age} times "
                "a power of k"
            )
        front = Power.of(powsimp(powdenest(on_eigenvalues(amplitude), force=True)), k)
        return cls(front.coefficient, -front.power, power_in(amplitude, lamda(k)), simplify(function))

    def at(self, rate: Expr, when: Expr, kernel: Expr) -> Expr:
        """Return ``(rate/kernel)^rise F(lamda(k) when)``: the factor of one mode for amplitude and target 1.

        ``rate = kernel lamda(k)`` is the rate at which the mode is learnt in the lazy limit, and ``when`` is
        the sum of the two times.
        """
        wave = simplify(self.F.subs(argument, argument / kernel))
        return (rate / kernel) ** self.rise * wave.subs(argument, rate * when)


argument = Symbol("x", positive=True)
"""Eigenvalue times the time since the perturbation."""


def _check_pair(
    drive: _Wave, response: _Wave, shifted: _Wave, shifting: _Wave, rise: int, kernel: Expr
) -> None:
    """Check that order 1/N of the loss of a pair of modes is one convolution over time.

    ``kernel`` is the kernel of the modes in the lazy limit.

    The loss is a variance plus the effect of the shifted mean, each an integral over times. ``drive`` and
    ``response`` are the factors of the two modes in the variance; ``shifted`` and ``shifting`` are those in
    the mean part, which contains the time to the power ``rise``. Raises :class:`NotApplicable` if SymPy does
    not find the difference to be zero.
    """
    slow_rate, gap, x, y, end = (Symbol(n, positive=True) for n in ("p", "q", "x", "y", "t"))
    fast_rate = slow_rate + gap

    def integral(body: Expr, *limits: tuple[Symbol, Expr, Expr]) -> Expr:
        """Return a nested integral over (variable, lower end, upper end) in ``limits``.

        The first of ``limits`` is that of the innermost integral.
        """
        for limit_ in limits:
            body = integrate(powsimp(body.expand(), force=True), limit_)
        return body

    def pair(first: Expr, second: Expr, one: _Wave = drive, two: _Wave = response) -> Expr:
        """Return the product of two factors of modes: ``one`` at a slow rate, ``two`` at a fast rate.

        ``first`` and ``second`` are the times of the two factors. The factors are by default those of the
        variance. The product is divided by the powers of the kernel that both factors of the variance
        contain.
        """
        return one.at(slow_rate, first, kernel) * two.at(fast_rate, second, kernel) / front

    front = kernel ** -(drive.rise + response.rise)
    ratio = simplify(shifted.amplitude * shifting.amplitude / (drive.amplitude * response.amplitude))
    variance = integral(pair(x + y, 2 * end - x - y), (x, 0, end), (y, 0, end))
    halves = integral(x * (pair(x, 2 * end - x) + pair(2 * end - x, x)), (x, 0, end))
    mean = ratio * integral(x**rise * pair(end + x, end - x, shifted, shifting), (x, 0, end))
    whole = integral(x * pair(x, 2 * end - x), (x, 0, 2 * end))
    if any(simplify(e.expand()) != 0 for e in (variance - halves, variance + mean - whole)):
        raise NotApplicable(
            "the correction of order 1/N is not derived: SymPy does not show that the variance is one "
            "convolution over time, and that its sum with the effect of the shifted mean is one too"
        )
