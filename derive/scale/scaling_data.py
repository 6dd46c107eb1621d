"""What a fixed set of P samples does to the lazy power law: a floor, and what comes before it.

The same samples are used at every step, so their errors remember what has been fitted: ``R_Delta`` and
``R_vu`` obey an equation of their own.  At gamma0 = 0 and infinite width all kernels depend on differences
of times, so their Laplace transforms are numbers.  Derived: the equations, their transforms, the sums over
modes, the constants.  Taken from elsewhere: that a function at late times is z times its transform at small
z (final value theorem); the limit is taken to exist, with kappa above zero (more modes than samples).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from sympy import (
    Dummy,
    Eq,
    Expr,
    Function,
    Max,
    S,
    Sum,
    Symbol,
    exp,
    factor,
    factor_terms,
    gammasimp,
    integrate,
    inverse_laplace_transform,
    oo,
    powdenest,
    powsimp,
    simplify,
    solve,
    zeta,
)

from derive.calculus.averages import Average, Response
from derive.errors import NotApplicable
from derive.linear.propagators import START, transfer
from derive.program.networks.random_data import N, P, structured
from derive.program.words import s, t
from derive.reduce.data import mode_sums, theory_limit
from derive.scale.mode_sums import Power, Powers, mode_sum
from derive.scale.scaling_lazy import K, alpha, k, lamda, lazy_kernel, on_power_law
from derive.theory import Theory, mean_field

z, z_ = Symbol("z", positive=True), Symbol("zprime", positive=True)
"""Rates that belong to two times."""
kappa, kappa_ = Symbol("kappa", positive=True), Symbol("kappaprime", positive=True)
"""``z/(K R_Delta(z))``: modes with eigenvalues above it have been learnt."""
_t, _t_ = Dummy("t", positive=True), Dummy("t'", positive=True)


@dataclass(frozen=True)
class FixedData:
    """Lazy flow on the same P samples, infinitely wide, by Laplace transforms.

    ``balance`` determines kappa at the rate z; ``freedom`` is what mode k adds to the sum in it.  With
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

    @cached_property
    def rest(self) -> Eq:
        """The equation for kappa at late times.

        >>> print(fixed_data().rest.lhs, "=", fixed_data().rest.rhs)
        P = Sum(lamda(k)/(kappa + lamda(k)), (k, 1, M))
        """
        return Eq(self.balance.lhs, self.balance.rhs.subs(z, 0), evaluate=False)

    @cached_property
    def final(self) -> Expr:
        """The test loss at late times, for the kappa of :attr:`rest`; the labels' own noise is not in it.

        >>> from sympy import Symbol
        >>> from derive.scale.scaling_lazy import w_star
        >>> M, one = Symbol("M", integer=True, positive=True), {lamda(k): 1, w_star(k): 1}
        >>> alike = fixed_data().final.subs(one).doit().subs(kappa, M / P - 1)
        >>> print(simplify(alike.subs(fixed_data().label, 0)))
        M - P
        """
        (total,) = self.rest.rhs.atoms(Sum)
        signal, gain = (Sum(x.subs(kappa_, kappa), *total.limits) for x in (self.signal, self.gain))
        return (signal + gain * self.label) / (1 - gain)

    # -- power-law data --------------------------------------------------------------------------------------

    @cached_property
    def scale(self) -> Power:
        """kappa at late times for infinitely many modes: the leading power of P.  The capacity is above 1.

        >>> print(fixed_data().scale.power)
        -alpha
        """
        top = _sum_over_modes(self.freedom, kappa).terms[0]
        return Power(gammasimp(top.coefficient) ** (1 / top.power), -1 / top.power)

    @cached_property
    def amplified(self) -> Expr:
        """``1/(1 - gain)`` at late times.

        >>> print(fixed_data().amplified)
        alpha
        """
        spent, whole = (
            _sum_over_modes(x.subs(kappa_, kappa), kappa).terms[0] for x in (P * self.gain, self.freedom)
        )
        if simplify(spent.power - whole.power) != 0:
            raise NotApplicable(f"the gain goes with the power {spent.power} of 1/kappa, not {whole.power}")
        return factor(1 / (1 - simplify(gammasimp(spent.coefficient / whole.coefficient))))

    @cached_property
    def floor(self) -> Powers:
        """The final loss without label noise: what is not seen of the target, and what seen modes miss.

        >>> print([p.power for p in fixed_data().floor.terms])
        [-alpha*beta, -2*alpha]
        """
        found = _sum_over_modes(self.signal.subs(kappa_, kappa), kappa)
        scale, front = self.scale, self.amplified
        terms = tuple(
            Power(
                powdenest(front * p.coefficient * scale.coefficient**-p.power, force=True),
                simplify(-p.power * scale.power),
            )
            for p in found.terms
        )
        return Powers(P, terms, Max(*[p.power for p in terms]) - 1, found.conditions)

    @cached_property
    def label_floor(self) -> Expr:
        """What label noise adds to the final loss, at which the samples are fitted with their noise.

        >>> print(fixed_data().label_floor)
        sigma**2*(alpha - 1)
        """
        return factor(self.label * (self.amplified - 1))

    @cached_property
    def stirred(self) -> Power:
        """Order 1/P before the floor, on tasks with a source above 2: ``c t^-(2 - 1/alpha)``, times 1/P.

        While the first modes are learnt, errors on the samples push those that are not.  The pushes have a
        finite sum, and a mode forgets them as it is learnt.

        >>> print(fixed_data().stirred.power)
        -2 + 1/alpha
        """
        here = on_power_law(simplify(self.signal / (kappa * kappa_)).subs({kappa: 0, kappa_: 0}))
        here = powsimp(powdenest(here.subs(lamda(k), k**-alpha), force=True))
        power = simplify(k * here.diff(k) / here)
        pushes = simplify(here / k**power) * zeta(-power)
        return self._order_one(kappa * kappa_, pushes)

    @cached_property
    def label_fit(self) -> Power:
        """Order 1/P of label noise that has been fitted before the floor: ``c t^(1/alpha)``, times 1/P.

        >>> print(fixed_data().label_fit.power)
        1/alpha
        """
        return self._order_one(S.One, self.label)

    def _order_one(self, rates: Expr, value: Expr) -> Power:
        """``P gain rates value/(z z')`` at order 0 in 1/P, where kappa is ``z/K``, at equal late times."""
        mode = Dummy("lamda", positive=True)
        free = P * self.gain * rates / (z * z_)
        both = free.xreplace({lamda(k): mode}).subs({kappa: z / K, kappa_: z_ / K})
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
    own = next(iter(unit.free_symbols & {kappa, _t}))
    rest = simplify(rest.subs(own, solve(unit - 1 / x, own)[0]).subs(lamda(k), y / x))
    power = simplify(x * rest.diff(x) / rest)
    F = simplify(rest * x**-power)
    a = -simplify(k * weight.diff(k) / weight)
    front = simplify(weight * k**a)
    if power.has(x, y) or F.has(x) or a.has(k) or front.has(k):
        raise NotApplicable(f"{summand} is no function of {lamda(k)}/({unit})")
    return mode_sum(F, y, a, alpha, x, terms=1).scaled(front, power)


# -- from the theory ----------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def fixed_data() -> FixedData:
    """Read off the theory of flow on fixed structured samples, in the limits N -> oo and gamma0 -> 0.

    Raises :class:`NotApplicable` where the equation for kappa does not close.

    >>> found = fixed_data()
    >>> print(found.kernel, "|", found.balance.rhs)
    L + 1 | Sum(lamda(k)/(kappa + lamda(k)), (k, 1, M)) + P*z/(K*kappa)
    >>> print(found.signal.subs(kappa_, kappa))
    kappa**2*lamda(k)*w_star(k)**2/(kappa + lamda(k))**2
    >>> print(found.gain.subs(kappa_, kappa))
    lamda(k)**2/(P*(kappa + lamda(k))**2)
    """
    program = structured(data="full-batch", noise=True, rule="flow")
    theory = theory_limit(mode_sums(mean_field(program)), {N: oo})
    _, kernel = lazy_kernel(theory)
    R, loop, v = Symbol("R_Delta", positive=True), Symbol("R_vu"), Function("v")
    into_v, into_h0 = (_answer(theory, name, R) for name in ("v", "h0"))
    push, samples = theory.equation("h0"), theory.equation("Delta")
    sources = {str(x.symbol.func): x for x in theory.sources}
    u0, u_Delta, eps = (sources[name] for name in ("u0", "u_Delta", "eps"))
    enters = push.rhs.coeff(u0.symbol)

    summed = theory.order_parameter("R_vu").definition
    (response,) = summed.atoms(Response)
    answer = response.body / v(k, t) * enters * into_h0  # what mode k adds to R_vu
    errors = transfer(theory, "Delta")
    around = errors.operators["Delta"].xreplace({x.operator: loop for x in errors.kernels})
    (back,) = solve(around - R, loop)
    at = {R: z / (K * kappa)}
    freedom = simplify((-P * R * answer).subs(at))
    rest = simplify((P + P * R * back).subs(at))  # -P R times: R_vu by its sum is R_vu by R_Delta
    balance = Eq(P, rest + Sum(freedom, *summed.limits), evaluate=False)

    (average,) = theory.order_parameter("C_v").definition.atoms(Average)
    per_square = average.args[0] / (v(k, t) * v(k, s))
    start = theory.equation("v").rhs.xreplace({Function("xi")(k, t): Function("xi")(k, 0)})
    drive = enters**2 * u0.covariance / Function("C_Delta")(t, s) * (samples.rhs.coeff(u_Delta.symbol)) ** 2
    drive *= u_Delta.covariance / Function("C_v")(t, s)
    label = samples.rhs.coeff(eps.symbol) ** 2 * eps.covariance
    signal = per_square * start**2 * _at_two(into_v.subs(at))
    gain = per_square * drive * _at_two((into_h0 * R).subs(at))
    found = FixedData(theory, kernel, balance, freedom, signal, gain, label)
    if any(e.has(t, s, z, z_, R) for e in (freedom, signal, gain, label)):
        raise NotApplicable(f"{found} has times left: kernels that depend on more than differences of times")
    return found


def _at_two(e: Expr) -> Expr:
    """A transform's value at the rates of two times."""
    one = simplify(e)
    return one * one.subs({z: z_, kappa: kappa_})


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
    out = factor(word.xreplace(values))
    if any(not a.is_commutative for a in out.free_symbols) or out.has(t, s):
        raise NotApplicable(f"{word} has kernels without a transform")
    return out


__all__ = ["FixedData", "fixed_data", "kappa", "kappa_", "z", "z_"]
