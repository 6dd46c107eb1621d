"""Power-law data in the lazy limit: what each mode does by itself, read off the structured theory.

At ``gamma0 = 0`` the fields of the layers are their Gaussian sources.  Responses begin with ``gamma0``, and
what they begin with obeys a recursion in the layer, which is solved with the depth a symbol.  The kernel that
the modes meet is then a number, so that each mode obeys a linear equation of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from sympy import (
    Dummy,
    Expr,
    Function,
    Gt,
    Integral,
    S,
    Sum,
    Symbol,
    exp,
    factor,
    log,
    oo,
    rsolve,
    series,
    simplify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.errors import NotApplicable
from derive.program.networks.random_data import N, structured
from derive.program.words import L, ell, gamma0, s, t
from derive.reduce.data import mode_sums, theory_limit
from derive.scale.mode_sums import Powers, mode_sum
from derive.theory import Theory, mean_field

alpha = Symbol("alpha", positive=True)
"""Capacity: eigenvalues are ``k^-alpha``."""
beta = Symbol("beta", positive=True)
"""Source: targets have ``w_star(k)^2 lamda(k) = k^(-alpha beta - 1)``."""
k = Symbol("k", integer=True, positive=True)
"""A mode."""
M = Symbol("M", integer=True, positive=True)
"""The number of modes."""
time = Symbol("t", positive=True)
"""A late time."""
K = Symbol("K", positive=True)
"""The kernel that the modes meet."""
lamda, w_star = Function("lamda"), Function("w_star")


@dataclass(frozen=True)
class LazyModes:
    """A structured theory at ``gamma0 = 0``.

    ``responses`` is ``R_gu(ell)/gamma0``, ``kernel`` what stands in front of ``lamda(k) v(k)`` in the rate of
    v, or in its step.  ``with_K`` is what mode k adds to the loss, K in place of the kernel.
    """

    theory: Theory
    responses: Expr
    kernel: Expr
    solution: Expr
    with_K: Expr

    @property
    def error(self) -> Expr:
        """``v(k, t)``."""
        return self.solution.xreplace({K: self.kernel})

    @property
    def summand(self) -> Expr:
        """What mode k adds to the loss."""
        return self.with_K.xreplace({K: self.kernel})

    def loss(self, terms: int = 3) -> Powers:
        """The loss at late times on power-law data with infinitely many modes.

        Of a flow what is left out falls faster than any power.  In steps ``terms`` powers are kept, and no
        mode may diverge: that is among the conditions.

        >>> found = lazy_modes().loss()
        >>> print(found.expr, found.error)
        gamma(beta)/(alpha*t**beta*(2*L + 2)**beta) -oo
        >>> print([p.power for p in lazy_modes("gd").loss(2).terms])
        [-beta, -beta - 1]
        """
        return late(self.with_K, terms).subs({K: self.kernel})

    def cutoff(self) -> Expr:
        """The time at which the last of M modes has lost a factor e; the power holds long before it.

        >>> print(lazy_modes().cutoff())
        M**alpha/(2*(L + 1))
        """
        kept = (self.with_K / self.with_K.subs(t, 0)).xreplace({lamda(k): (x := Dummy("x", positive=True))})
        rate = -log(kept).diff(x).subs(x, 0) * x / t  # the last eigenvalue is small
        return factor(1 / simplify(rate).xreplace({x: M**-alpha, K: self.kernel}))


def structured_theory(rule: str = "flow") -> Theory:
    """The theory of the population's gradient on structured data, any depth, infinitely wide."""
    return theory_limit(mode_sums(mean_field(structured(data="population", rule=rule))), {N: oo})


@lru_cache(maxsize=4)
def lazy_modes(rule: str = "flow") -> LazyModes:
    """The lazy limit of :func:`structured_theory`, the depth a symbol; ``rule`` is ``flow`` or ``gd``.

    Raises :class:`NotApplicable` where the kernel that the modes meet changes in time.

    >>> print(lazy_modes().kernel, lazy_modes().error)
    L + 1 w_star(k)*exp(-t*(L + 1)*lamda(k))
    >>> print(lazy_modes("gd").error)
    (-eta*(L + 1)*lamda(k) + 1)**t*w_star(k)
    """
    theory = structured_theory(rule)
    responses, kernel = lazy_kernel(theory)
    v = Function("v")(k, t)
    rate = -K * theory.equation("h0").rhs.coeff(v)
    start = theory.equation("v").rhs.xreplace({Function("xi")(k, t): Function("xi")(k, 0)})
    if theory.program.rule.discrete:
        error = start * (1 + rate) ** t
        left = error.subs(t, t + 1) / error - 1 - rate
    else:
        error = start * exp(rate * t)
        left = error.diff(t) / error - rate
    if simplify(left) != 0:
        raise NotApplicable(f"v is no power of an exponential with the rate {rate}")
    (average,) = theory.order_parameter("C_v").definition.atoms(Average)
    summand = average.args[0].xreplace({v: error, v.subs(t, s): error})
    return LazyModes(theory, responses, kernel, error, summand)


def lazy_kernel(theory: Theory) -> tuple[Expr, Expr]:
    """``R_gu(ell)/gamma0`` at gamma0 = 0, and the kernel of the modes, both free of time."""
    covariance = _covariances(theory)
    shift = ell + 1
    inner = theory.equation("g", ell)
    increment, followed = S.Zero, False
    for x in inner.terms:
        if x.kind == "source":
            continue
        body = _memory(x.expr, "h")
        if body == Function("R_gu")(shift, t, s):
            followed = True
        else:
            increment += _at_zero(body / gamma0, covariance)
    (end,) = (x.expr for x in theory.equation("g", L).terms if x.kind != "source")
    if not followed or simplify(_at_zero(_memory(end, "h") / gamma0, covariance) - increment) != 0:
        raise NotApplicable("the responses of the last layer do not begin the recursion of the others")
    n, c = Symbol("n", integer=True), Function("c")
    count = rsolve(c(n) - c(n - 1) - 1, c(n), {c(0): 0})
    responses = factor(count.subs(n, L - ell + 1) * increment)
    kernel = S.Zero
    for x in theory.equation("xi").terms:
        body = _memory(x.expr, "h0")
        first = Function("R_gu")(1, t, s)
        kernel += _at_zero(body.xreplace({first: gamma0 * responses.subs(ell, 1)}), covariance)
    return responses, factor(kernel)


def _covariances(theory: Theory) -> Expr:
    """``<g g>`` at gamma0 = 0, the same in all layers: that of the last one's source."""
    sources = {x.symbol.args[0]: x.covariance for x in theory.sources if str(x.symbol.func) == "r"}
    if sources[ell] != Function("C_g")(ell + 1, t, s):
        raise NotApplicable(f"the source of a layer has the covariance {sources[ell]}")
    return sources[L]


def _memory(e: Expr, field: str) -> Expr:
    """The kernel in front of a field in a sum over the past."""
    if not isinstance(e, Sum | Integral):
        raise NotApplicable(f"{e} is no memory of {field}")
    (a,) = (x for x in e.function.atoms(AppliedUndef) if str(x.func) == field)
    return e.function / a


def _at_zero(kernel: Expr, covariance: Expr) -> Expr:
    """A kernel at gamma0 = 0; refused if it changes in time."""
    found = kernel.replace(Function("C_g"), lambda *_: covariance).subs(gamma0, 0)
    if found.has(t, s, AppliedUndef):
        raise NotApplicable(f"{kernel} changes in time at gamma0 = 0")
    return found


# -- power-law data ----------------------------------------------------------------------------------------


def on_power_law(e: Expr) -> Expr:
    """A summand over modes on power-law data: in ``lamda(k)``, and the power of k that is left."""
    return e.subs(w_star(k) ** 2, k ** (-alpha * beta - 1) / lamda(k))


def late(summand: Expr, terms: int = 3, x: Expr = time) -> Powers:
    """The sum of a summand over infinitely many modes as the time grows.

    Modes with eigenvalues near 1/t matter, so it is expanded in 1/t at fixed ``y = lamda(k) t``; what modes
    of larger eigenvalues add is exponentially small.
    """
    y, small = Dummy("y", positive=True), Dummy("epsilon", positive=True)
    e = on_power_law(summand)
    weight, rest = e.as_independent(lamda(k), t, as_Add=False)
    rest = rest.subs(lamda(k), y * small).subs(t, 1 / small)
    orders = _orders(rest, small, y, terms)
    a = -simplify(k * weight.diff(k) / weight)
    front = simplify(weight * k**a)
    if a.has(k) or front.has(k):
        raise NotApplicable(f"{weight} is no power of {k}")
    found = [mode_sum(F, y, a, alpha, time).scaled(front, -n) for n, F in orders if F != 0]
    exact = len(orders) == 1
    out = tuple(p for x in found for p in x.terms)
    error = -oo if exact else found[0].terms[0].power - terms
    conditions = found[0].conditions
    if not exact:
        rate = summand.subs(t, 1) / summand.subs(t, 0)
        conditions &= Gt(1, rate.subs(lamda(k), 1))
    return Powers(time, out, error, conditions)


def _orders(e: Expr, small: Symbol, y: Symbol, terms: int) -> list[tuple[int, Expr]]:
    """Powers of ``small`` with coefficients in y."""
    if not e.has(small):
        return [(0, e)]
    base, power = e.as_base_exp()
    if not power.has(small):
        raise NotApplicable(f"{e} is no power that grows with the time")
    exponent = series(power * log(base), small, 0, terms).removeO()
    front = exponent.coeff(small, 0)
    rest = series(exp(exponent - front), small, 0, terms).removeO().expand()
    return [(n, exp(front) * rest.coeff(small, n)) for n in range(terms)]


__all__ = [
    "LazyModes",
    "alpha",
    "beta",
    "late",
    "lazy_kernel",
    "lazy_modes",
    "on_power_law",
    "structured_theory",
]
