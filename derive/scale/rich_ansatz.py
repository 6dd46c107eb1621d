"""Late kernels of rank one in time: the equations of structured data in the rich regime, every depth at once.

In the rich regime training has made every matrix of weights grow along one direction between its two layers.
So kernels are ``C_h(ell,t,s) = a(ell,t) a(ell,s)`` and ``C_g(ell,t,s) = b(ell,t) b(ell,s)``.  This is an
ansatz; that what it leaves out is smaller is checked by :mod:`derive.scale.rich_dropped`.  Everything else
is read off the theory: the memory terms of its equations with the ansatz put in.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from sympy import (
    Derivative,
    Eq,
    Expr,
    Function,
    Integral,
    Mul,
    S,
    Sum,
    Symbol,
    oo,
    powsimp,
    rsolve,
    simplify,
)
from sympy.core.function import AppliedUndef

from derive.errors import NotApplicable
from derive.program.networks.random_data import N, structured
from derive.program.words import L, ell, gamma0, s, t
from derive.reduce.data import mode_sums, theory_limit
from derive.theory import Equation, Term, Theory, mean_field

a, b, phi = (Function(x, nonnegative=True) for x in ("a", "b", "phi"))
"""Sizes of h and g in each layer, and what a mode has learnt over b(1)."""
sigma = Function("sigma", positive=True)
"""The large singular value of a matrix of weights, over the root of the width."""
kappa = Symbol("kappa", real=True)
"""What the conserved difference of two squared singular values is; of order one."""


@dataclass(frozen=True)
class RankOne:
    """The rich regime of a structured theory, before any power law.

    ``ansatz`` are the kernels of rank one; ``layers`` the sizes of neighbouring layers, ``growth`` the
    singular value between them as a memory, ``rates`` how fast the squares of the singular values move, from
    the last matrix (``sigma(L)``) by any inner one to the first; all equal, which is ``balance``.  ``learnt``
    is the error of a mode, ``modes`` the equation of what it has learnt, ``norm`` the singular value that all
    matrices have, with ``kappa`` for its start, ``kernel`` the kernel ``C_g(1,t,t)``.  ``dropped`` are the
    terms that were left out, with the equation that they stand in.

    ``modes``, ``learnt`` and ``norm`` are closed.  Depth is in the power of ``sigma`` alone.
    """

    theory: Theory
    ansatz: tuple[Eq, ...]
    layers: tuple[Eq, ...]
    growth: Eq
    rates: tuple[Eq, ...]
    balance: Eq
    learnt: Eq
    modes: Eq
    norm: Eq
    kernel: Eq
    dropped: tuple[tuple[Equation, Term], ...]


@lru_cache(maxsize=2)
def population() -> Theory:
    """The theory of gradient flow on structured data, wide layers, any depth.

    >>> print(population().equation("h0").rhs)
    lamda(k)*v(k, t)
    """
    return theory_limit(mode_sums(mean_field(structured(data="population", rule="flow"))), {N: oo})


def rank_one(theory: Theory | None = None) -> RankOne:
    """The ansatz of rank one put into a theory, by default :func:`population`.

    Raises :class:`NotApplicable` if the memory terms are not a product of functions of ``t`` and ``s``, or if
    the singular values do not grow alike.

    >>> found = rank_one()
    >>> print(found.modes.rhs)
    (-phi(k, t)*sigma(t)**L + w_star(k))*lamda(k)*sigma(t)**L
    >>> print(found.norm.lhs, "=", found.norm.rhs)
    sigma(t)**2 = gamma0**2*Sum(phi(k, t)**2, (k, 1, M)) + kappa
    """
    return _RankOne(theory or population()).found()


class _RankOne:
    def __init__(self, theory: Theory) -> None:
        self.theory = theory
        self.shapes = {
            "C_h": lambda layer, x, y: a(layer, x) * a(layer, y),
            "C_g": lambda layer, x, y: b(layer, x) * b(layer, y),
        }
        self.sizes = {"h": a, "g": b}
        self.dropped: list[tuple[Equation, Term]] = []

    # -- the ansatz, term by term --------------------------------------------------------------------------

    def kept(self, name: str, site: Expr | None = None) -> Expr:
        """The memory and definition terms of an equation under the ansatz."""
        e = self.theory.equation(name, site)
        total = S.Zero
        for x in e.terms:
            if x.kind in ("memory", "definition"):
                total += self.put(x.expr)
            else:
                self.dropped.append((e, x))
        return total

    def put(self, e: Expr) -> Expr:
        e = e.replace(
            lambda x: isinstance(x, AppliedUndef) and str(x.func) in self.shapes,
            lambda x: self.shapes[str(x.func)](*x.args),
        )
        return e.replace(
            lambda x: isinstance(x, AppliedUndef) and str(x.func) in self.sizes,
            lambda x: self.sizes[str(x.func)](*x.args),
        )

    def taken_out(self, e: Expr, factor: Expr) -> Expr:
        """``e / factor``, for an integral that has the factor inside."""
        if not isinstance(e, Integral) or not e.function.has(factor):
            raise NotApplicable(f"{e} is not {factor} times a memory: the ansatz does not split it")
        inside = e.function / factor
        if inside.has(t):
            raise NotApplicable(f"{e} is not {factor} times a memory: {inside} still depends on {t}")
        return Integral(inside, *e.limits)

    # -- the derivation ------------------------------------------------------------------------------------

    def found(self) -> RankOne:
        upward = self.taken_out(self.kept("h", ell + 1), a(ell, t))
        downward = self.taken_out(self.kept("g", ell), b(ell + 1, t))
        if upward != downward:
            raise NotApplicable(f"forwards a matrix grows by {upward}, backwards by {downward}")
        top = self.kept("g", L)
        bottom = self.bottom()
        growth = Eq(sigma(ell, t), upward, evaluate=False)
        layers = (
            Eq(a(ell + 1, t), sigma(ell, t) * a(ell, t), evaluate=False),
            Eq(b(ell, t), sigma(ell, t) * b(ell + 1, t), evaluate=False),
            Eq(b(L, t), sigma(L, t), evaluate=False),
            Eq(a(1, t), bottom, evaluate=False),
        )
        modes, learnt = self.modes()
        rates = self.rates(upward, top, modes, bottom)
        height = self.height()
        common = {b(1, t): sigma(t) ** height}
        index, over = self.index()
        norm = gamma0**2 * Sum(phi(index, t) ** 2, over)
        return RankOne(
            theory=self.theory,
            ansatz=tuple(
                Eq(Function(n)(ell, t, s), self.shapes[n](ell, t, s), evaluate=False) for n in self.shapes
            ),
            layers=layers,
            growth=growth,
            rates=rates,
            balance=Eq(sigma(ell, t) ** 2, sigma(t) ** 2, evaluate=False),
            learnt=Eq(learnt.lhs, learnt.rhs.xreplace(common), evaluate=False),
            modes=Eq(
                Derivative(phi(index, t), t),
                modes.xreplace({learnt.lhs: learnt.rhs}).xreplace(common),
                evaluate=False,
            ),
            norm=Eq(sigma(t) ** 2, norm + kappa, evaluate=False),
            kernel=Eq(
                Function("C_g")(1, t, t), (self.shapes["C_g"](1, t, t)).xreplace(common), evaluate=False
            ),
            dropped=tuple(dict.fromkeys(self.dropped)),
        )

    def index(self) -> tuple[Expr, tuple[Expr, ...]]:
        """The unit of the modes, and the limits of sums over it."""
        (over,) = self.theory.equation("h0").ranges
        return over.index, over.limits

    def modes(self) -> tuple[Expr, Eq]:
        """``phi' = ...``, and the error in terms of phi.

        ``xi``, what has been learnt, is ``b(1, t)`` times a memory, which is called phi.
        """
        index, _ = self.index()
        memory = self.taken_out(self.kept("xi"), b(1, t))
        rate = memory.function.xreplace({s: t})
        rate = rate.xreplace({self.theory.equation("h0").lhs: self.kept("h0")})
        error = self.theory.equation("v")
        xi = self.theory.equation("xi").lhs
        start = xi.xreplace({t: S.Zero})
        value = error.rhs.xreplace({start: S.Zero}).xreplace({xi: b(1, t) * phi(index, t)})
        return rate, Eq(error.lhs, value, evaluate=False)

    def bottom(self) -> Expr:
        """``a(1, t)``: the sum over modes of an error times what has been learnt."""
        index, over = self.index()
        e = self.kept("h", 1)
        kernel = self.theory.order_parameter("C_h0")
        summand = kernel.definition.function.args[0]  # the fields of modes do not fluctuate
        h0 = self.theory.equation("h0")
        late, early = (h0.lhs.xreplace({t: x}) for x in (t, s))
        if summand != late * early:
            raise NotApplicable(f"C_h0 = {kernel.definition} is not a sum over modes of h0(t) h0(s)")
        number, factors = e.as_independent(Integral)
        inside = factors.function.xreplace({kernel.symbol: late * early})
        memory = self.kept("xi").function / b(1, t)
        outside = inside / memory
        if outside.has(s):
            raise NotApplicable(f"{outside}: what the first layer remembers is not what a mode has learnt")
        outside = outside.xreplace({h0.lhs: self.kept("h0")})
        return number * gamma0 * Sum(outside / gamma0 * phi(index, t), over)

    def rates(self, inner: Integral, top: Expr, modes: Expr, bottom: Expr) -> tuple[Eq, ...]:
        """Rates of squares of singular values: the last matrix, inner ones, what the first has learnt."""
        index, over = self.index()

        def rate(memory: Expr, value: Expr) -> Expr:
            return 2 * value * memory.function.xreplace({s: t})

        last = rate(top, sigma(L, t))
        within = rate(inner, sigma(ell, t))
        first = gamma0**2 * 2 * Sum(phi(index, t) * modes, over)
        # each in a(ell) b(ell), by what neighbouring layers have to do with each other
        flow = 2 * gamma0 * a(ell, t) * b(ell, t)
        ends = (
            simplify(last.xreplace({sigma(L, t): b(L, t)}) - flow.xreplace({ell: L})),
            simplify(within.subs(b(ell + 1, t), b(ell, t) / sigma(ell, t)) - flow),
            simplify(
                flow.xreplace({ell: ell + 1}).subs(
                    {a(ell + 1, t): sigma(ell, t) * a(ell, t), b(ell + 1, t): b(ell, t) / sigma(ell, t)}
                )
                - flow
            ),
            self.difference(first, flow.xreplace({ell: S.One}).subs(a(1, t), bottom)),
        )
        if any(x != 0 for x in ends):
            raise NotApplicable(f"the singular values do not grow alike: differences {ends}")
        left = (sigma(L, t) ** 2, sigma(ell, t) ** 2, gamma0**2 * Sum(phi(index, t) ** 2, over))
        at = (flow.xreplace({ell: L}), flow, flow.xreplace({ell: S.One}))
        return tuple(Eq(Derivative(x, t), y, evaluate=False) for x, y in zip(left, at, strict=True))

    @staticmethod
    def difference(x: Expr, y: Expr) -> Expr:
        """The difference of two numbers times one sum each."""

        def summand(e: Expr) -> Expr:
            number, sums = e.as_independent(Sum)
            return Mul(number, sums.function)

        return simplify(powsimp(summand(x) - summand(y)))

    @staticmethod
    def height() -> Expr:
        """``b(1) = sigma^height`` when all singular values are alike: ``b(ell) = sigma b(ell + 1)``."""
        c, n = Function("c"), Symbol("n", integer=True)
        # one factor a layer: c counts them from the last, where b(L) = sigma
        steps = rsolve(c(n) - c(n - 1) - 1, c(n), {c(1): 1})
        return steps.subs(n, L)


__all__ = ["RankOne", "a", "b", "kappa", "phi", "population", "rank_one", "sigma"]
