"""Power-law data at leading order in gamma0: what feature learning adds to the lazy loss at late times.

The population's gradient on structured data is that of fixed samples along the eigenvectors of their kernel:
``Delta_k = sqrt(lamda(k)) v(k)``, loss summed.  So the order gamma0^2 of the loss is that of the expansion in
words, any depth: a sum over two modes.  Each mode's error is an explicit function of its rate, so that the
sum is one of products of sums over one mode, joined by an integral over an earlier time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from sympy import (
    Add,
    Dummy,
    Expr,
    Function,
    Integral,
    Mul,
    Ne,
    S,
    Sum,
    Symbol,
    cancel,
    exp,
    expand,
    factor,
    factor_terms,
    gamma,
    hyper,
    simplify,
)
from sympy.core.function import AppliedUndef

from derive.errors import NotApplicable
from derive.expansion import LinearExpansion, expand_linear
from derive.program import mlp
from derive.program.words import L, gamma0, t
from derive.scale.mode_sums import Power, Powers, mode_sum, moment
from derive.scale.scaling_lazy import alpha, beta, lazy_modes, time
from derive.theory import mean_field

kappa, kappa_ = Symbol("kappa", positive=True), Symbol("kappa_", positive=True)
"""The lazy rates of the mode whose error is looked at, and of one that drives it."""
tau = Symbol("tau", positive=True)
"""An earlier time."""


@dataclass(frozen=True)
class PairForce:
    """Order gamma0^2 of a mode's error, rate ``kappa``: ``-int_0^t exp(-kappa (t - tau)) y sum y_^2 rate``.

    ``kernel`` is that of the lazy limit, ``kappa = kernel lamda``.  ``strength * shape`` is the rate: what a
    mode of rate ``kappa_`` adds to the force at the time tau, targets y and y_ taken out.
    """

    kernel: Expr
    strength: Expr
    shape: Expr


@lru_cache(maxsize=1)
def pair_force() -> PairForce:
    """Read off the expansion of the linear network of any depth.

    Raises :class:`NotApplicable` if the error's second order feeds back otherwise than the lazy error.

    >>> print(pair_force().strength, factor(pair_force().shape.subs(kappa_, kappa)))
    L*(L + 2)/12 4*(exp(kappa*tau) - 1)**2*exp(-3*kappa*tau)
    """
    expansion = expand_linear(mean_field(mlp(rule="flow", loss="sum")), 2)
    kernel = _feedback(expansion.error_equation(0).rhs)
    again, strength, force = S.Zero, S.Zero, S.Zero
    for part in Add.make_args(expansion.error_equation(2).rhs):
        if part.has(Function("v_2")):
            again += _feedback(part)
        else:
            if strength != 0:
                raise NotApplicable("order gamma0^2 of the error has several sums over pairs of modes")
            strength, force = _of_pairs(part, expansion, kernel)
    if simplify(again - kernel) != 0:
        raise NotApplicable("order gamma0^2 of the error does not feed back as the lazy error does")
    return PairForce(kernel, strength, _separated(force.diff(t)).subs(t, tau))


def _feedback(e: Expr) -> Expr:
    """Minus the factor in front of ``sum K_x v``."""
    (whole,) = (x for x in Add.make_args(e) if x.has(Sum))
    return factor(-whole.as_independent(Sum, as_Add=False)[0])


def _of_pairs(part: Expr, expansion: LinearExpansion, kernel: Expr) -> tuple[Expr, Expr]:
    """Minus a sum over samples, for an input kernel that is diagonal: each of its factors joins two indices.

    A number, and a function of the rates.
    """
    number, body = part.as_independent(Sum, as_Add=False)
    rate = {Symbol("mu", integer=True, positive=True): kappa}
    rest = body.function
    joined = [x for x in rest.atoms(AppliedUndef) if str(x.func) == "K_x"]
    for a in joined:
        ends = set(a.args)
        known = next((rate[i] for i in ends if i in rate), None)
        if known is None:
            known = kappa if any(str(i) == "mu" for i in ends) else kappa_
        rate |= dict.fromkeys(ends, known)
        number, rest = number / kernel, rest.xreplace({a: known})
    waves = {
        v: explicit(expansion.iterated_integral(v), rate)
        for v in rest.atoms(AppliedUndef)
        if str(v.func) == "v"
    }
    if len(set(rate.values())) != 2:
        raise NotApplicable(f"{part} is no sum over pairs of modes")
    return factor(-number), rest.xreplace(waves)


def explicit(e: Expr, rate: dict[Symbol, Symbol]) -> Expr:
    """A time integral of lazy errors of unit targets, at time t."""
    return Add(*[c * exp(-r * t) for r, c in _waves(e, rate).items()])


def _waves(e: Expr, rate: dict[Symbol, Symbol]) -> dict[Expr, Expr]:
    """The coefficients of ``exp(-r t)`` in a nested integral, by r."""
    if not isinstance(e, Integral):
        raise NotApplicable(f"{e} is no time integral of errors")
    inside, own = {S.Zero: S.One}, S.Zero
    for x in Mul.make_args(e.function):
        if isinstance(x, Integral):
            inside = _waves(x, rate)
        else:
            own += rate[x.args[0]]
    found = {own + r: -c / (own + r) for r, c in inside.items()}
    return {S.Zero: -Add(*found.values()), **found}


def _separated(e: Expr) -> Expr:
    """A sum of products of a function of either rate, common denominators cancelled."""
    a, b = Dummy("a"), Dummy("b")
    names = {exp(-kappa * t): a, exp(-kappa_ * t): b}
    e = expand(e, power_exp=True).replace(
        lambda x: isinstance(x, exp), lambda x: Mul(*[_wave(y, names) for y in Add.make_args(x.args[0])])
    )
    found = expand(cancel(e))
    for x in Add.make_args(found):
        if not (x.as_numer_denom()[1] / (kappa**9 * kappa_**9)).is_polynomial(1 / kappa, 1 / kappa_):
            raise NotApplicable(f"{x} is no product of functions of one mode each")
    return found.xreplace({v: w for w, v in names.items()})


def _wave(e: Expr, names: dict[Expr, Symbol]) -> Expr:
    for x, name in names.items():
        n = e / x.args[0]
        if n.is_Integer:
            return name**n
    raise NotApplicable(f"exp({e}) is no power of a mode's exponential")


# -- late times --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LeadingOrder:
    """``loss = lazy + gamma0^2 correction + O(gamma0^4)`` at late times, both as sums of powers of t.

    Hard tasks (beta < 1): the correction is led by ``t^(1 - 2 beta)``, which the sum over the driving modes
    gives; easy ones (beta > 1): by ``t^-beta``, which the first modes give.  The other of the two is next, so
    that slopes drift by ``t^-|1 - beta|``.
    """

    lazy: Powers
    correction: Powers

    def relative(self, task: str) -> Power:
        """The correction over the lazy loss, leading power, for ``hard`` or ``easy`` tasks.

        >>> print(leading_order().relative("hard").power, leading_order().relative("easy").power)
        1 - beta 0
        """
        top = self.correction.sorted(given(task)).terms[0]
        (base,) = self.lazy.terms
        return Power(top.coefficient / base.coefficient, simplify(top.power - base.power))

    def crossover(self) -> Expr:
        """Hard tasks: the time at which the correction would be as large as the lazy loss, which it lowers.

        >>> from derive.program.words import gamma0
        >>> found = leading_order().crossover()
        >>> print(simplify(gamma0 * found.diff(gamma0) / found))
        2/(beta - 1)
        """
        x = self.relative("hard")
        return (-(gamma0**2) * x.coefficient) ** (-1 / x.power)

    def slope(self, depth: int, capacity: Expr, source: Expr) -> Expr:
        """``d log / d log t`` of the correction, both of its powers kept."""
        return self.correction.subs({L: depth, alpha: capacity, beta: source}).local_slope()


def given(task: str) -> dict[Symbol, Expr]:
    """beta in terms of a positive number, where it is below or above 1.  Raises ValueError otherwise."""
    if task not in ("hard", "easy"):
        raise ValueError(f"task = {task!r}: must be 'hard' (beta < 1) or 'easy' (beta > 1)")
    p = Symbol("p", positive=True)
    return {beta: 1 / (1 + p) if task == "hard" else 1 + p}


@lru_cache(maxsize=1)
def leading_order() -> LeadingOrder:
    """Order gamma0^2 of the loss at late times, for symbolic depth, capacity and source.

    Powers below ``t^(-beta - 1)`` are left out: ``error`` says so.  At ``beta = 1`` the two powers meet, and
    the coefficients diverge: there is a logarithm, which is not given.

    >>> found = leading_order().correction
    >>> print([p.power for p in found.sorted(given("hard")).terms], found.error)
    [1 - 2*beta, -beta] -beta - 1
    """
    force, lazy = pair_force(), lazy_modes()
    if simplify(force.kernel - lazy.kernel) != 0:
        raise NotApplicable(f"the lazy kernels differ: {force.kernel} of samples, {lazy.kernel} of modes")
    groups: dict[tuple[Expr, Expr], Expr] = {}
    for x in Add.make_args(force.shape):
        rest, own = x.as_independent(kappa, as_Add=False)
        _, power = own.subs(exp(-kappa * tau), 1).as_independent(kappa, as_Add=False)
        m = power.as_base_exp()[1] if power != 1 else S.Zero
        p = -simplify((own / power).diff(kappa) / (own / power) / tau) if own.has(exp) else S.Zero
        groups[m, p] = groups.get((m, p), S.Zero) + rest
    floor = -beta - 1
    terms: list[Power] = []
    for (m, p), driving in groups.items():
        terms += _convolved(driving, m, p, force.kernel)
    together: dict[Expr, Expr] = {}
    for x in terms:
        if not simplify(x.power - floor).is_nonpositive:
            together[x.power] = together.get(x.power, S.Zero) + x.coefficient
    out = [Power(factor_terms(-2 * force.strength * v), q) for q, v in together.items() if v != 0]
    return LeadingOrder(lazy.loss(), Powers(time, tuple(out), floor, Ne(beta, 1)))


def _convolved(driving: Expr, m: Expr, p: Expr, kernel: Expr) -> list[Power]:
    """``int_0^t W(2 t - tau + p tau) D(tau) dtau`` at late t; rates are ``kernel k^-alpha``.

    W is the sum over the modes whose error is looked at, a single power of its argument; D that over the
    modes that drive it, a sum of powers at late tau.  Early tau give moments of D, finite parts of them.
    """
    u, x = Dummy("u", positive=True), Dummy("x", positive=True)
    (front,) = mode_sum(u**0 * exp(-u), u, alpha * (beta + m) + 1, alpha, x).terms
    n = _degree(driving)
    F = expand((driving / kappa_**n).subs(kappa_, u / tau) * 1)
    if F.has(tau):
        raise NotApplicable(f"{driving} is no function of kappa_ tau times a power of kappa_")
    a = alpha * (beta + n) + 1
    late = mode_sum(F, u, a, alpha, x)
    out = []
    for d in late.terms:
        q = d.power
        total = simplify(q + 1 + front.power)
        shape = beta_integral(q, front.power, 1 - p)
        out.append(Power(front.coefficient * d.coefficient * shape, total))
    start = Power(front.coefficient * 2**front.power * moment(F, u, a, alpha), front.power)
    # so far for rates k^-alpha and times t kernel
    return [Power(x.coefficient * kernel ** (x.power + m + n - 1), x.power) for x in [*out, start]]


def beta_integral(q: Expr, r: Expr, less: Expr) -> Expr:
    """``int_0^1 x^q (2 - less x)^r dx``, its finite part at x = 0."""
    if less == 0:
        return 2**r / (q + 1)
    if less == 1 and simplify(q - r) == 0:  # half of the integral from 0 to 2
        return 2 ** (2 * q) * gamma(q + 1) ** 2 / gamma(2 * q + 2)
    return 2**r / (q + 1) * hyper([-r, q + 1], [q + 2], less / 2)


def _degree(driving: Expr) -> Expr:
    """The power of kappa_ in front of functions of ``kappa_ tau``, the same in all terms."""
    degrees = set()
    for x in Add.make_args(driving):
        _, own = x.as_independent(kappa_, as_Add=False)
        bare = own.replace(exp, lambda *_: S.One)
        degrees.add(bare.as_base_exp()[1] if bare != 1 else S.Zero)
    if len(degrees) != 1:
        raise NotApplicable(f"{driving} has several powers of kappa_: {degrees}")
    return degrees.pop()


__all__ = ["LeadingOrder", "PairForce", "beta_integral", "explicit", "given", "leading_order", "pair_force"]
