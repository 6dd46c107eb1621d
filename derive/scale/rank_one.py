"""Late kernels of rank one in time: the equations of structured data in the rich regime, every depth at once.

In the rich regime training has made every matrix of weights grow along one direction between its two layers.
So kernels are ``C_h(ell,t,s) = c_h(ell,t) c_h(ell,s)`` and ``C_g(ell,t,s) = c_g(ell,t) c_g(ell,s)``.  This is
an ansatz; that what it leaves out is smaller is checked by :func:`derive.scale.rich.dropped`.  Everything
else is read off the theory: the memory terms of its equations with the ansatz put in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from sympy import (
    Derivative,
    Dummy,
    Eq,
    Expr,
    Function,
    Integral,
    S,
    Sum,
    Symbol,
    dsolve,
    exp,
    expand,
    log,
    powsimp,
    rsolve,
    simplify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import L, ell, gamma0, s, t
from derive.errors import NotApplicable
from derive.scale.modes import wide
from derive.show.latex import aligned_latex
from derive.theory import Equation, Term, Theory

c_h, c_g, phi = (Function(x, nonnegative=True) for x in ("c_h", "c_g", "phi"))
"""Sizes of h and g in each layer, and what a mode has learnt over ``c_g(1)``."""
sigma = Function("sigma", positive=True)
"""The large singular value of a matrix of weights, over the root of the width."""
kappa = Symbol("kappa", real=True)
"""What the conserved difference of two squared singular values is; of order one."""
now, then, first = (Symbol(x, positive=True) for x in ("sigma", "sigma_s", "sigma_0"))
"""The singular value at the time of an equation, at that of a memory, and at the start."""

C_g = Function("C_g")

SIZES: Mapping[str, Callable[..., Expr]] = {"h": c_h, "g": c_g}
SHAPES: Mapping[str, Callable[..., Expr]] = {f"C_{name}": size for name, size in SIZES.items()}


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

    @property
    def mode(self) -> Expr:
        """The index of the modes."""
        return self.modes.lhs.expr.args[0]

    def _repr_latex_(self) -> str:
        return aligned_latex([self.modes, self.learnt, self.norm, self.kernel])

    def conditions(self) -> tuple[str, ...]:
        """What is assumed of the kernels, in words."""
        return (
            "ansatz: kernels are of rank one in time, "
            + ", ".join(f"{x.lhs} = {x.rhs}" for x in self.ansatz)
            + "; what this leaves out is counted by derive.scale.rich.dropped",
        )

    def singular(self, size: Expr) -> Expr:
        """The singular value by the size ``c_g(1)``, whose square is the kernel."""
        big = Dummy("sigma", positive=True)
        kernel = self.kernel.rhs.subs(sigma(t), big)
        height = simplify(big * kernel.diff(big) / kernel) / 2
        if simplify(kernel - big ** (2 * height)) != 0:
            raise NotApplicable(f"the kernel {self.kernel.rhs} is no power of the singular value")
        return size ** (1 / height)

    @cached_property
    def memory(self) -> Integral:
        """``phi`` of a mode as a memory by the clock, ``dX = C_g(1,t,t) dt``, with ``c_g(1) = c(X)``.

        ``dphi/dX = source - rate phi`` is solved by variation of constants, which is checked by putting the
        solution in.  Raises :class:`NotApplicable` for an equation of another form.

        >>> from derive.program.networks import structured
        >>> from derive.theory import mean_field
        >>> print(rank_one(mean_field(structured(data="population", rule="flow"))).memory)
        Integral(lamda(k)*w_star(k)*exp(-(X - Y)*lamda(k))/c(Y), (Y, 0, X))
        """
        X, Y, size, own = (Symbol(n, positive=True) for n in ("X", "Y", "c", "phi"))
        put = {sigma(t): self.singular(size), phi(self.mode, t): own}
        speed = simplify((self.modes.rhs / self.kernel.rhs).subs(put)).expand()
        rate, c = -speed.coeff(own), Function("c")
        source = (speed + rate * own).subs(size, c(Y))
        solved = Integral(source * exp(-rate * (X - Y)), (Y, 0, X))
        rest = solved.diff(X) - source.subs(Y, X) + rate * solved
        if rate.has(own, size) or simplify(rest.expand().doit(integrals=False)) != 0:
            raise NotApplicable(f"a mode is not learnt linearly, at a rate of its own: {speed}")
        return solved

    def inner_response(self) -> Expr:
        """A response of an inner layer over the memory kernel beside it, at times with sigma and sigma_s.

        Both fields of the layer are followed after a push of one of them, in the kept terms alone:
        ``h(ell) = c_h(ell-1,t) int c_h(ell-1) g``, ``g(ell) = c_g(ell+1,t) int c_g(ell+1) h``, times gamma0.
        In ``x = log sigma`` the integrals y, z obey ``y' = r z``, ``z' = r' y``, with ``y = 1, z = 0`` at the
        push.  Raises :class:`NotApplicable` where r and r' depend on time.
        """
        up, down = memory(self.theory, "h", ell + 1)[0].subs(ell, ell - 1), memory(self.theory, "g", ell)[0]
        below, above = c_h(ell - 1, t), c_g(ell + 1, t)
        gains = simplify(up / (below * c_h(ell - 1, s))), simplify(down / (above * c_g(ell + 1, s)))
        speed = self.rates[1].rhs / (2 * sigma(ell, t) ** 2)  # d log sigma / dt
        neighbours = {c_h(ell, t): sigma(ell, t) * below, c_g(ell, t): sigma(ell, t) * above}
        rates = [simplify(x * below * above / speed.xreplace(neighbours)) for x in gains]
        if any(x.has(t) for x in rates):
            raise NotApplicable(f"the answers of a layer are not autonomous in log sigma: {rates}")
        x, y = Symbol("x", nonnegative=True), Function("y")
        motion = Eq(y(x).diff(x, 2), rates[0] * rates[1] * y(x))
        grown = dsolve(motion, y(x), ics={y(0): 1, y(x).diff(x).subs(x, 0): 0}).rhs
        return expand(simplify(grown.subs(x, log(now / then))) / (now * then))


def put(e: Expr) -> Expr:
    """An expression with kernels and fields of rank one."""

    def shape(x: AppliedUndef) -> Expr:
        name, args = str(x.func), x.args
        if name in SIZES:
            return SIZES[name](*args)
        size = SHAPES[name]
        return size(args[0], args[1]) * size(args[0], args[2])

    return e.replace(
        lambda x: isinstance(x, AppliedUndef) and (str(x.func) in SIZES or str(x.func) in SHAPES), shape
    )


def memory(theory: Theory, name: str, site: Expr | None = None) -> tuple[Expr, Expr]:
    """The kernel of an equation's one memory, ansatz put in, and the field that it acts on."""
    terms = [x for x in theory.equation(name, site).terms if x.kind == "memory"]
    if len(terms) != 1 or terms[0].over:
        raise NotApplicable(f"the equation of {name} has not one memory: {[x.expr for x in terms]}")
    return put(terms[0].coefficient * terms[0].kernel), put(terms[0].field)


def rank_one(theory: Theory) -> RankOne:
    """The ansatz of rank one put into the theory of flow on the population's loss, with structured data.

    Raises :class:`NotApplicable` if the memory terms are not a product of functions of ``t`` and ``s``, or if
    the singular values do not grow alike.

    >>> from derive.program.networks import structured
    >>> from derive.theory import mean_field
    >>> found = rank_one(mean_field(structured(data="population", rule="flow")))
    >>> print(found.modes.rhs)
    (-phi(k, t)*sigma(t)**L + w_star(k))*lamda(k)*sigma(t)**L
    >>> print(found.norm.lhs, "=", found.norm.rhs)
    sigma(t)**2 = gamma0**2*Sum(phi(k, t)**2, (k, 1, M)) + kappa
    >>> print(found.inner_response())
    1/(2*sigma_s**2) + 1/(2*sigma**2)
    """
    return _RankOne(wide(theory)).found()


class _RankOne:
    def __init__(self, theory: Theory) -> None:
        self.theory = theory
        (over,) = theory.equation("h0").ranges
        self.index, self.limits = over.index, over.limits
        self.h0 = theory.equation("h0")

    def memory(self, name: str, site: Expr | None, factor: Expr) -> Expr:
        """What is remembered at s: the summand of a memory term, without the factor at t before it."""
        kernel, field = memory(self.theory, name, site)
        inside = kernel * field / factor
        if inside.has(t):
            raise NotApplicable(
                f"{kernel * field} is not {factor} times a memory: the ansatz does not split it"
            )
        return inside

    def found(self) -> RankOne:
        upward = self.memory("h", ell + 1, c_h(ell, t))
        downward = self.memory("g", ell, c_g(ell + 1, t))
        if upward != downward:
            raise NotApplicable(f"forwards a matrix grows by {upward}, backwards by {downward}")
        top = self.memory("g", L, S.One)
        moved, learnt = self.modes()
        bottom = self.bottom()
        layers = (
            Eq(c_h(ell + 1, t), sigma(ell, t) * c_h(ell, t), evaluate=False),
            Eq(c_g(ell, t), sigma(ell, t) * c_g(ell + 1, t), evaluate=False),
            Eq(c_g(L, t), sigma(L, t), evaluate=False),
            Eq(c_h(1, t), bottom, evaluate=False),
        )
        rates = self.rates(upward, top, moved, bottom)
        common = {c_g(1, t): sigma(t) ** self.height()}
        squares = gamma0**2 * Sum(phi(self.index, t) ** 2, self.limits)
        equations = (*(self.theory.equation(*x) for x in (("h", ell + 1), ("g", ell), ("g", L))),)
        ends = (*(self.theory.equation(*x) for x in (("xi",), ("h0",), ("h", 1))),)
        dropped = [(e, x) for e in (*equations, *ends) for x in e.terms if x.kind in ("source", "response")]
        return RankOne(
            theory=self.theory,
            ansatz=tuple(
                Eq(Function(n)(ell, t, s), put(Function(n)(ell, t, s)), evaluate=False) for n in SHAPES
            ),
            layers=layers,
            growth=Eq(sigma(ell, t), Integral(upward, (s, 0, t)), evaluate=False),
            rates=rates,
            balance=Eq(sigma(ell, t) ** 2, sigma(t) ** 2, evaluate=False),
            learnt=Eq(learnt.lhs, learnt.rhs.xreplace(common), evaluate=False),
            modes=Eq(
                Derivative(phi(self.index, t), t),
                moved.xreplace({learnt.lhs: learnt.rhs}).xreplace(common),
                evaluate=False,
            ),
            norm=Eq(sigma(t) ** 2, squares + kappa, evaluate=False),
            kernel=Eq(
                Function("C_g")(1, t, t), put(Function("C_g")(1, t, t)).xreplace(common), evaluate=False
            ),
            dropped=tuple(dropped),
        )

    def modes(self) -> tuple[Expr, Eq]:
        """``phi' = ...``, and the error in terms of phi.

        ``xi``, what has been learnt, is ``c_g(1, t)`` times a memory, which is called phi.
        """
        moved = self.memory("xi", None, c_g(1, t)).xreplace({s: t}).xreplace({self.h0.lhs: self.h0.rhs})
        error, xi = self.theory.equation("v"), self.theory.equation("xi").lhs
        value = error.rhs.xreplace({xi.xreplace({t: S.Zero}): S.Zero})
        return moved, Eq(error.lhs, value.xreplace({xi: c_g(1, t) * phi(self.index, t)}), evaluate=False)

    def bottom(self) -> Expr:
        """``c_h(1, t)``: the sum over modes of an error times what has been learnt."""
        kernel = self.theory.order_parameter("C_h0")
        late, early = (self.h0.lhs.xreplace({t: x}) for x in (t, s))
        if kernel.definition.function.args[0] != late * early:  # the fields of modes do not fluctuate
            raise NotApplicable(f"C_h0 = {kernel.definition} is not a sum over modes of h0(t) h0(s)")
        summand, field = memory(self.theory, "h", 1)
        inside = summand.xreplace({kernel.symbol: late * early}) * field
        outside = inside / self.memory("xi", None, c_g(1, t))
        if outside.has(s):
            raise NotApplicable(f"{outside}: what the first layer remembers is not what a mode has learnt")
        outside = outside.xreplace({self.h0.lhs: self.h0.rhs})
        return gamma0 * Sum(outside / gamma0 * phi(self.index, t), self.limits)

    def rates(self, inner: Expr, top: Expr, moved: Expr, bottom: Expr) -> tuple[Eq, ...]:
        """Rates of squares of singular values: the last matrix, inner ones, what the first has learnt.

        Each is ``2 gamma0 c_h(ell) c_g(ell)``, which neighbouring layers have in common.
        """
        last = 2 * sigma(L, t) * top.xreplace({s: t})
        within = 2 * sigma(ell, t) * inner.xreplace({s: t})
        flow = 2 * gamma0 * c_h(ell, t) * c_g(ell, t)
        above = {c_h(ell + 1, t): sigma(ell, t) * c_h(ell, t), c_g(ell + 1, t): c_g(ell, t) / sigma(ell, t)}
        total = bottom.as_independent(Sum)
        at_bottom = flow.xreplace({ell: S.One}).subs(c_h(1, t), total[0] * total[1].function)
        ends = (
            last.xreplace({sigma(L, t): c_g(L, t)}) - flow.xreplace({ell: L}),
            within.subs(above) - flow,
            flow.xreplace({ell: ell + 1}).subs(above) - flow,
            powsimp(2 * gamma0**2 * phi(self.index, t) * moved - at_bottom),  # mode by mode
        )
        if any(simplify(x) != 0 for x in ends):
            raise NotApplicable(f"the singular values do not grow alike: differences {ends}")
        left = (
            sigma(L, t) ** 2,
            sigma(ell, t) ** 2,
            gamma0**2 * Sum(phi(self.index, t) ** 2, self.limits),
        )
        at = (flow.xreplace({ell: L}), flow, flow.xreplace({ell: S.One}))
        return tuple(Eq(Derivative(x, t), y, evaluate=False) for x, y in zip(left, at, strict=True))

    @staticmethod
    def height() -> Expr:
        """``c_g(1) = sigma^height`` when all singular values are alike: ``c_g(ell) = sigma c_g(ell + 1)``."""
        c, n = Function("c"), Symbol("n", integer=True)
        # one factor a layer: c counts them from the last, where c_g(L) = sigma
        steps = rsolve(c(n) - c(n - 1) - 1, c(n), {c(1): 1})
        return steps.subs(n, L)


__all__ = ["RankOne", "kappa", "phi", "rank_one", "sigma"]
