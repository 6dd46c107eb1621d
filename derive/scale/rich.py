"""Rich regime of structured data: kernels of rank one in time, and the power laws that follow from them.

In the rich regime training has grown every weight matrix along one direction between its two layers. The
kernels of the fields h and of their gradients g are then ``C_h(ell,t,s) = c_h(ell,t) c_h(ell,s)`` and
``C_g(ell,t,s) = c_g(ell,t) c_g(ell,s)``, and the equations close, at every depth (:func:`rank_one`). Two
forms are assumed: this ansatz, at leading order; and, on power-law data, that the size of g in the first
layer is a power of the integrated kernel ``X = int C_g(1,t,t) dt``, ``c_g(1) = B X^q``. The conditions of
every law state both, and that training reaches this regime.

The law is derived from these assumptions. The equation of a mode is solved as a memory, so that every mode
follows one profile ``F_q`` of ``x = lamda X``; sums over modes are powers of X by Mellin transform, where the
transforms of F_q and of products of two are Euler integrals. Both sides of the equation of the singular
values must agree, which gives q and B; the integral of the kernel gives X as a function of time. Each smaller
term of the squared singular value changes these results, which is derived to first order. :func:`dropped`
shows that neglected terms are smaller by powers of time, in the first layer by power counting.
:mod:`derive.scale.power_laws` uses the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from sympy import (
    Add,
    Derivative,
    Dummy,
    Eq,
    Expr,
    Function,
    Integral,
    Mul,
    S,
    Sum,
    Symbol,
    dsolve,
    exp,
    expand,
    expand_power_base,
    factor,
    factorial,
    floor,
    gamma,
    gammasimp,
    hyper,
    hypersimp,
    integrate,
    log,
    nan,
    oo,
    powdenest,
    powsimp,
    simplify,
    solve,
)
from sympy import Product as Repeated
from sympy.core.function import AppliedUndef

from derive.calculus.sums import rewritten
from derive.calculus.symbols import L, converted, ell, exact, gamma0, s, t
from derive.errors import NotApplicable
from derive.program.networks.random_data import M, k
from derive.scale.mellin import Power, Powers, euler, mode_sum_of, power_in, unit
from derive.scale.modes import (
    HARD,
    beta,
    given,
    kind_of,
    lamda,
    numbers,
    on_power_law,
    require_population_loss,
    w_star,
    wide,
)
from derive.scale.modes import capacity as capacity_
from derive.scale.modes import time as late
from derive.show.conditions import ConditionalResult
from derive.show.latex import aligned_latex
from derive.theory import Equation, Term, Theory

c_h, c_g, phi = (Function(x, nonnegative=True) for x in ("c_h", "c_g", "phi"))
"""Sizes of h and g in each layer, and learnt part of a mode over ``c_g(1)``."""
sigma = Function("sigma", positive=True)
"""The large singular value of a matrix of weights, over the root of the width."""
kappa = Symbol("kappa", real=True)
"""Conserved difference of two squared singular values, of order one."""
amplitude = Symbol("amplitude", real=True)
"""Amplitude of a correction that is not derived: a number that depends on all of the training."""
now, then, first = (Symbol(x, positive=True) for x in ("sigma", "sigma_s", "sigma_0"))
"""The singular value at the time of an equation, at that of a memory, and at the start."""
x, u = Symbol("x", positive=True), Symbol("u", positive=True)
"""Eigenvalue times X, and ratio of an earlier X to the present one."""
X = Symbol("X", positive=True)
"""Integral of the kernel ``C_g(1,t,t)`` over time."""
I_F, I_v = Symbol("I_F", positive=True), Symbol("I_v", positive=True)
"""Moments of the squared learnt fraction of a mode, and of the squared remaining fraction."""
SIZES: Mapping[str, Callable[..., Expr]] = {"h": c_h, "g": c_g}
SHAPES = tuple(f"C_{name}" for name in SIZES)


@dataclass(frozen=True, repr=False)
class RankOne(ConditionalResult):
    """Closed equations of a structured theory in the rich regime, before any power law is assumed.

    ``modes``, ``learnt`` and ``norm`` are closed equations. The depth is only in the power of ``sigma``.

    Attributes
    ----------
    theory
        Theory from which the equations are derived.
    ansatz
        Kernels of rank one.
    layers
        Relations of the sizes ``c_h`` and ``c_g`` of neighbouring layers.
    growth
        Singular value of the matrix between two layers, as an integral over the past.
    rates
        Rates of the squared singular values from the last matrix (``sigma(L)``) through the inner ones to the
        first; all are equal.
    balance
        Equality of the squared singular values.
    learnt
        Error of a mode in terms of phi, the learnt part of the mode over ``c_g(1)``.
    modes
        Differential equation of phi.
    norm
        Squared singular value of all matrices, with ``kappa`` for its initial value.
    kernel
        Kernel ``C_g(1,t,t)`` as a power of the singular value.
    dropped
        Pairs (equation, term) of the neglected terms and the equations that contain them.
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
        """Symbol of the index k of the modes in the equations."""
        return self.modes.lhs.expr.args[0]

    def _repr_latex_(self) -> str:
        return aligned_latex([self.modes, self.learnt, self.norm, self.kernel])

    def conditions(self) -> tuple[str, ...]:
        """Return the two assumptions of the rank-one equations, as sentences.

        They are the ansatz that kernels are of rank one in time, and the signs of sizes and learnt parts.
        """
        return (
            "ansatz: kernels are of rank one in time, "
            + ", ".join(f"{x.lhs} = {x.rhs}" for x in self.ansatz)
            + "; derive.scale.rich.dropped returns the powers of the neglected terms",
            "assumed: c_h, c_g and phi are not negative, for targets whose signs are chosen positive",
        )

    def singular(self, size: Expr) -> Expr:
        """Return the singular value sigma of the weights at which the gradient ``c_g(1)`` has a given size.

        It follows from the kernel, ``c_g(1)^2``, which must be a power of sigma with the coefficient one;
        another kernel raises NotApplicable.
        """
        singular_value = Dummy("sigma", positive=True)
        kernel = Power.of(self.kernel.rhs.subs(sigma(t), singular_value), singular_value)
        if kernel.coefficient != 1:
            raise NotApplicable(
                f"the kernel {self.kernel.rhs} must be a power of sigma, the singular value of the weights, "
                "with the coefficient one"
            )
        return size ** (2 / kernel.power)

    @cached_property
    def memory(self) -> Integral:
        """Learnt part ``phi`` of a mode as an integral over the past of X, the integral of the kernel.

        ``dX = C_g(1,t,t) dt``, and ``c(X)`` is the size ``c_g(1)`` of the gradient in the first layer.
        ``dphi/dX = source - rate phi`` is solved by variation of constants, and the solution is checked by
        substitution. Raises :class:`NotApplicable` for an equation of another form.

        >>> from derive import mean_field, structured
        >>> print(rank_one(mean_field(structured(data="population", rule="flow"))).memory)
        Integral(lamda(k)*w_star(k)*exp(-(X - Y)*lamda(k))/c(Y), (Y, 0, X))
        """
        Y, size, learnt = (Symbol(n, positive=True) for n in ("Y", "c", "phi"))
        substitutions = {sigma(t): self.singular(size), phi(self.mode, t): learnt}
        speed = simplify((self.modes.rhs / self.kernel.rhs).subs(substitutions)).expand()
        rate, c = -speed.coeff(learnt), Function("c")
        source = (speed + rate * learnt).subs(size, c(Y))
        solution = Integral(source * exp(-rate * (X - Y)), (Y, 0, X))
        residual = solution.diff(X) - source.subs(Y, X) + rate * solution
        if rate.has(learnt, size) or simplify(residual.expand().doit(integrals=False)) != 0:
            raise NotApplicable(
                "the equation of d phi/dX, where phi is the learnt part of a mode and X the integral of the "
                "kernel over time, must be linear in phi, with a factor of phi that does not depend on the "
                f"size c of the gradient in the first layer; its right side is {speed}"
            )
        return solution

    def inner_response(self) -> Expr:
        """Return the response of a field of an inner layer, over the memory kernel of the same equation.

        The result is a function of ``sigma`` and ``sigma_s``, the singular value of the weights at both
        times. Both fields h and g of the layer are followed after a perturbation of one of them, with the
        kept terms alone. Each is a factor at t times an integral of a factor at s and of the other field,
        such as ``h(ell) = c_h(ell-1,t) int c_h(ell-1) g``. The two integrals obey linear differential
        equations in ``log sigma``, which SymPy solves. Raises :class:`NotApplicable` if their coefficients
        depend on time, or if the two fields respond differently.
        """
        sizes = {x.lhs: x.rhs for x in self.layers}
        down_a_layer = sizes[c_h(ell + 1, t)].subs(ell, ell - 1).subs(sigma(ell - 1, t), sigma(ell, t))
        neighbours = {c_h(ell, t): down_a_layer, c_g(ell, t): sizes[c_g(ell, t)]}
        neighbours |= {x.subs(t, s): e.subs(t, s) for x, e in neighbours.items()}
        # `speed` is d(log sigma)/dt, because `self.rates[1].rhs` is the derivative of sigma^2 for a singular
        # value sigma.
        speed = (self.rates[1].rhs / (2 * sigma(ell, t) ** 2)).xreplace(neighbours)
        memories = _memory(self.theory, "h", ell + 1)[0], _memory(self.theory, "g", ell)[0].subs(ell, ell - 1)
        kernels = memories[0].subs(ell, ell - 1), memories[1].subs(ell, ell + 1)
        at_s, at_t = zip(*[x.as_independent(t, as_Add=False) for x in kernels], strict=True)
        # h = at_t[0] y_h, g = at_t[1] y_g with y_h = int at_s[0] g ds, y_g = int at_s[1] h ds. The
        # derivative of y_h with respect to log sigma, the logarithm of the singular value of the weights, is
        # rates[0] y_g, and that of y_g is rates[1] y_h.
        rates = [simplify(at_s[i].subs(s, t) * at_t[1 - i] / speed) for i in (0, 1)]
        if any(r.has(t) for r in rates):
            raise NotApplicable(
                "the equations of a layer's responses, as functions of log sigma, must have coefficients "
                f"that do not depend on time; they are {rates}"
            )
        log_sigma, fields = Symbol("z", nonnegative=True), [Function(x) for x in ("y_h", "y_g")]
        system = [
            Eq(fields[i](log_sigma).diff(log_sigma), rates[i] * fields[1 - i](log_sigma)) for i in (0, 1)
        ]
        responses = []
        for i in (0, 1):
            perturbed = {fields[i](0): S.One, fields[1 - i](0): S.Zero}
            response = dict(x.args for x in dsolve(system, [y(log_sigma) for y in fields], ics=perturbed))[
                fields[i](log_sigma)
            ]
            relative = simplify(at_t[i] * at_s[i] / memories[i].xreplace(neighbours))
            relative = relative.subs({sigma(ell, t): now, sigma(ell, s): then})
            responses.append(
                expand(simplify(response.rewrite(exp).subs(log_sigma, log(now / then)) * relative))
            )
        if simplify(responses[0] - responses[1]) != 0 or responses[0].has(t, s):
            raise NotApplicable(
                "h and g of a layer must have the same response, which must depend on time by sigma alone; "
                f"their responses are {responses}"
            )
        return responses[0]


def with_rank_one(e: Expr) -> Expr:
    """Return an expression with kernels and fields of the layers replaced by their rank-one forms.

    A kernel ``C_h(ell,t,s)`` becomes ``c_h(ell,t) c_h(ell,s)``, and a field ``h(ell,t)`` becomes its size
    ``c_h(ell,t)``; the same holds for the gradients g.
    """

    def shape(x: AppliedUndef) -> Expr:
        """Return the rank-one form of a kernel, ``c(t) c(s)``, or of a field, ``c(t)``.

        c is the size ``c_h`` of the fields or ``c_g`` of the gradients at the layer of the kernel or field.
        """
        size, (layer, *times) = SIZES[str(x.func)[-1]], x.args
        return Mul(*[size(layer, y) for y in times])

    return rewritten(e, {*SIZES, *SHAPES}, shape)


def _memory(theory: Theory, name: str, site: Expr | None = None) -> tuple[Expr, Expr]:
    """Return (kernel, field) of the only sum over the past in one equation, with the rank-one ansatz.

    ``name`` and ``site`` (a layer) select the equation. Raises NotApplicable for no or several sums over the
    past, and for one with a further index that is summed.
    """
    terms = [x for x in theory.equation(name, site).terms if x.kind == "memory"]
    if len(terms) != 1 or terms[0].over:
        raise NotApplicable(
            f"the equation of {name} must contain exactly one memory term, which must not be summed over a "
            f"further index; its memory terms are {[x.expr for x in terms]}"
        )
    return with_rank_one(terms[0].coefficient * terms[0].kernel), with_rank_one(terms[0].field)


def rank_one(theory: Theory) -> RankOne:
    """Return the equations of flow on structured data and the population loss with the rank-one ansatz.

    Raises :class:`NotApplicable` for theories without modes or trained on samples, for a depth that is a
    number, if the memory terms are not a product of functions of ``t`` and ``s``, or if the singular values
    do not grow at the same rate.

    >>> from derive import mean_field, structured
    >>> found = rank_one(mean_field(structured(data="population", rule="flow")))
    >>> print(found.modes.rhs)
    (-phi(k, t)*sigma(t)**L + w_star(k))*lamda(k)*sigma(t)**L
    >>> print(found.norm.lhs, "=", found.norm.rhs)
    sigma(t)**2 = gamma0**2*Sum(phi(k, t)**2, (k, 1, M)) + kappa
    >>> print(found.inner_response())
    1/(2*sigma_s**2) + 1/(2*sigma**2)
    """
    theory = wide(theory)
    require_population_loss(theory, "the rank-one equations")
    return _RankOne(theory).reduced()


class _RankOne:
    """Derivation of :class:`RankOne`: substitution of the rank-one ansatz in the equations of one theory."""

    def __init__(self, theory: Theory) -> None:
        self.theory = theory
        (over,) = theory.equation("h0").ranges
        self.index, self.limits = over.index, over.limits
        self.h0 = theory.equation("h0")

    def memory(self, name: str, site: Expr | None, factor: Expr) -> Expr:
        """Return the part f(s) of a memory term ``factor(t) int f(s) ds`` of one equation.

        ``name`` and ``site`` (a layer) select the equation, and ``factor`` is the expected factor at t.
        Raises NotApplicable if the term has another form.
        """
        kernel, field = _memory(self.theory, name, site)
        integrand = kernel * field / factor
        if integrand.has(t):
            raise NotApplicable(
                f"the memory term {kernel * field} of {name} is not {factor} times a function of the earlier "
                "time s, so that the rank-one ansatz does not apply"
            )
        return integrand

    def reduced(self) -> RankOne:
        """Return the closed equations of the theory for kernels that are of rank one in time.

        Raises NotApplicable if a weight matrix grows differently in the equations of h and of g.
        """
        upward = self.memory("h", ell + 1, c_h(ell, t))
        downward = self.memory("g", ell, c_g(ell + 1, t))
        if upward != downward:
            raise NotApplicable(
                "the rank-one ansatz does not apply: the rate at which a weight matrix grows is "
                f"{upward} in the equation of h and {downward} in the equation of g"
            )
        top = self.memory("g", L, S.One)
        phi_rate, learnt = self.modes()
        bottom = self.bottom()
        layers = {
            c_h(ell + 1, t): sigma(ell, t) * c_h(ell, t),
            c_g(ell, t): sigma(ell, t) * c_g(ell + 1, t),
            c_g(L, t): sigma(L, t),
            c_h(1, t): bottom,
        }
        rates = self.rates(upward, top, phi_rate, bottom)
        # c_g(L) = sigma and c_g(ell) = sigma c_g(ell + 1), with the same sigma for all matrices. So c_g(1) is
        # the product of L factors sigma.
        common = {c_g(1, t): Repeated(sigma(t), (ell, 1, L)).doit()}
        squares = gamma0**2 * Sum(phi(self.index, t) ** 2, self.limits)
        places = (("h", ell + 1), ("g", ell), ("g", L), ("xi",), ("h0",), ("h", 1))
        equations = [self.theory.equation(*x) for x in places]
        kernels = [Function(n)(ell, t, s) for n in SHAPES]
        modes = phi_rate.xreplace({learnt.lhs: learnt.rhs}).xreplace(common)
        kernel = Function("C_g")(1, t, t)

        def equation(lhs: Expr, rhs: Expr) -> Eq:
            return Eq(lhs, rhs, evaluate=False)

        return RankOne(
            theory=self.theory,
            ansatz=tuple(equation(y, with_rank_one(y)) for y in kernels),
            layers=tuple(equation(*y) for y in layers.items()),
            growth=equation(sigma(ell, t), Integral(upward, (s, 0, t))),
            rates=rates,
            balance=equation(sigma(ell, t) ** 2, sigma(t) ** 2),
            learnt=equation(learnt.lhs, learnt.rhs.xreplace(common)),
            modes=equation(Derivative(phi(self.index, t), t), modes),
            norm=equation(sigma(t) ** 2, squares + kappa),
            kernel=equation(kernel, with_rank_one(kernel).xreplace(common)),
            dropped=tuple((e, y) for e in equations for y in e.terms if y.kind in ("source", "response")),
        )

    def modes(self) -> tuple[Expr, Eq]:
        """Return (time derivative of phi, equation of a mode's error in terms of phi).

        phi is the learnt part of a mode: the learnt function ``xi`` is ``c_g(1, t) phi``, where ``c_g(1, t)``
        is the size of the gradient in the first layer.
        """
        phi_rate = self.memory("xi", None, c_g(1, t)).xreplace({s: t}).xreplace({self.h0.lhs: self.h0.rhs})
        error, xi = self.theory.equation("v"), self.theory.equation("xi").lhs
        value = error.rhs.xreplace({xi.xreplace({t: S.Zero}): S.Zero})
        return phi_rate, Eq(error.lhs, value.xreplace({xi: c_g(1, t) * phi(self.index, t)}), evaluate=False)

    def bottom(self) -> Expr:
        """Return the size ``c_h(1, t)`` of the fields of the first layer, as gamma0 times a sum over modes.

        The summand is the field h0 of the inputs times the learnt part phi of a mode. Raises NotApplicable if
        the memory of the first layer has another form.
        """
        kernel = self.theory.order_parameter("C_h0")
        product = self.h0.lhs * self.h0.lhs.xreplace({t: s})
        # The average in C_h0 must be h0(t) h0(s), because h0 of a mode is the same in all units.
        if kernel.definition.function.args[0] != product:
            raise NotApplicable(f"C_h0 = {kernel.definition} is not a sum over modes of h0(t) h0(s)")
        summand, field = _memory(self.theory, "h", 1)
        product_ = summand.xreplace({kernel.symbol: product}) * field
        front = product_ / self.memory("xi", None, c_g(1, t))
        if front.has(s):
            raise NotApplicable(
                "the integrands of the memory of the first layer and of the learnt part of a mode must have "
                f"a ratio that does not depend on the earlier time s; the ratio is {front}"
            )
        front = front.xreplace({self.h0.lhs: self.h0.rhs})
        return gamma0 * Sum(front / gamma0 * phi(self.index, t), self.limits)

    def rates(self, inner: Expr, top: Expr, phi_rate: Expr, bottom: Expr) -> tuple[Eq, ...]:
        """Return the equations of growth of the squared singular values, from the last to the first matrix.

        ``inner`` and ``top`` are the integrands of the growth of an inner and of the last matrix,
        ``phi_rate`` is the rate of phi, the learnt part of a mode, and ``bottom`` is ``c_h(1)``. Each rate is
        ``2 gamma0 c_h(ell) c_g(ell)``, the same for all layers; another rate raises NotApplicable.
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
            # This entry is the rate of gamma0^2 phi^2, where phi is the learnt part of mode k, minus the
            # summand of mode k in 2 gamma0 c_h(1) c_g(1).
            powsimp(2 * gamma0**2 * phi(self.index, t) * phi_rate - at_bottom),
        )
        if any(simplify(x) != 0 for x in ends):
            raise NotApplicable(
                "the squared singular values of the matrices must grow at the rate 2 gamma0 c_h c_g, where "
                "c_h and c_g are the sizes of fields and gradients, as in gradient flow with the rate 1 on "
                f"the population loss; the differences from this rate are {ends}"
            )
        squares = {
            L: sigma(L, t) ** 2,
            ell: sigma(ell, t) ** 2,
            S.One: gamma0**2 * Sum(phi(self.index, t) ** 2, self.limits),
        }
        return tuple(
            Eq(Derivative(y, t), flow.xreplace({ell: at}), evaluate=False) for at, y in squares.items()
        )


# -- profile of a mode -------------------------------------------------------------------------------------


def memory(reduced: RankOne, q: Any) -> Integral:
    """Return the learnt fraction ``F_q(x)`` of a mode's target as an integral over u from 0 to 1.

    x is the eigenvalue times X, the integral of the kernel ``C_g(1,t,t)``; the size of the gradient is
    assumed to be a power, ``c_g(1) = B X^q``. F is :attr:`.RankOne.memory` times ``c_g(1)`` over the target,
    and u is the ratio of an earlier X to the present one.
    """
    past, size = reduced.memory, Function("c")
    present, integrand = past.limits[0][2], past.function / w_star(reduced.mode) * size(past.limits[0][2])
    integrand = integrand.replace(size, lambda z: z**q).subs(past.variables[0], u * present) * present
    integrand = integrand.subs(lamda(reduced.mode), x / present)
    return Integral(simplify(integrand), (u, 0, 1))


def profile_slope(reduced: RankOne, q: Any) -> Expr:
    """Return ``x dF/dx`` of the learnt fraction F of a mode's target, in terms of x and the symbol ``F``.

    x is the eigenvalue times X, the integral of the kernel, and the size of the gradient is ``c_g(1) = B
    X^q``. The memory M of a mode obeys ``dM/dX = source - rate M``, and F is M times ``c_g(1)`` over the
    target.

    >>> from derive import mean_field, structured
    >>> print(profile_slope(rank_one(mean_field(structured(data="population", rule="flow"))), Symbol("q")))
    F*q - F*x + x
    """
    past, size, fraction = reduced.memory, Function("c"), Symbol("F")
    earlier, _, present = past.limits[0]
    source = past.function.subs(earlier, present)
    rate = -(past.function.diff(present) / past.function)
    front = size(present) / w_star(reduced.mode)
    slope = present * (front * (source - rate * fraction / front) + fraction * front.diff(present) / front)
    slope = slope.replace(size, lambda y: y**q).doit().subs(lamda(reduced.mode), x / present)
    return simplify(slope).expand()


def profile(q: Any) -> Expr:
    """Return the profile ``F_q(x) = x int_0^1 u^-q exp(-x (1 - u)) du``, for ``q < 1``.

    It is the learnt fraction of the target of a mode, where x is the eigenvalue times the integrated kernel.
    The result is x times a hypergeometric function 1F1.

    >>> from sympy import Rational, series
    >>> series(profile(Rational(1, 4)), x, 0, 3)
    4*x/3 - 16*x**2/21 + O(x**3)
    """
    q = converted(q)
    n = Dummy("n", integer=True, nonnegative=True)
    term = (-1) ** n / factorial(n) * unit(-q, n)  # coefficient of x^(n + 1) in the profile F
    lower = simplify(-1 / hypersimp(term, n) - n)
    if lower.has(n):
        raise NotApplicable(
            f"the solution of a mode has no closed form: {term} is not the coefficient of a hypergeometric "
            "series 1F1"
        )
    return x * simplify(term.subs(n, 0)) * hyper((1,), (lower,), -x)


def transform(q: Any, at: Any) -> Expr:
    """Return the Mellin transform ``int x^(s-1) F_q dx`` at ``s = at``, continued beyond ``-1 < s < 0``.

    ``F_q(x)`` is the learnt fraction of a mode, see :func:`profile`. Integration over x first, then over u,
    gives ``Gamma(s+1) int u^-q (1 - u)^(-s-1) du``.

    >>> from sympy import Rational
    >>> transform(0, Rational(-1, 2)) == -gamma(Rational(-1, 2))
    True
    """
    q, at = converted(q), converted(at)
    return gamma(at + 1) * unit(-q, -at - 1)


def product_transform(q: Any, r: Any, at: Any) -> Expr:
    """Return the Mellin transform ``int x^(s-1) F_q F_r dx`` at ``s = at``, continued beyond ``-2 < s < 0``.

    ``F_q`` is :func:`profile`, the learnt fraction of the target of a mode. Integration over x gives
    ``Gamma(s+2) int int u^-q v^-r (2 - u - v)^(-s-2)`` over the unit square. The square is the triangle
    ``u + v < 2`` without two corners: in one corner u exceeds 1, in the other v does. In the triangle and in
    each corner both integrals are Euler integrals. :func:`check_transforms` verifies the closed form with the
    equation of F. The result can be ``nan`` where s, ``s + q`` or ``s + r`` is an integer, because several
    terms have poles there. For q and r that differ and are not zero, it is always ``nan`` if ``s + q`` or
    ``s + r`` is an integer.

    >>> import mpmath
    >>> q, at = 0.125, -0.5
    >>> def F(y): return y / (1 - q) * mpmath.hyp1f1(1, 2 - q, -y)
    >>> found = mpmath.quad(lambda y: y ** (at - 1) * F(y) ** 2, [0, 0.1, 1, 10, 100, 1000, mpmath.inf])
    >>> abs(found - product_transform(q, q, at).n()) < 1e-6
    True
    """
    q, r, at = (converted(y) for y in (q, r, at))
    sums = (q + at, r + at)
    if q != r and q != 0 and r != 0 and any(x.is_number and (x - floor(x)).is_zero for x in sums):
        return nan

    def inner(p: Expr) -> Expr:
        """Return c in ``Gamma(s+2) int_0^(2-u) v^-p (2-u-v)^(-s-2) dv = c (2-u)^(-s-1-p)``."""
        return gamma(at + 2) * unit(-p, -at - 2)

    def outer(p: Expr, of: Expr) -> Expr:
        """Return ``int_1^2 u^-p (2 - u)^(-of-s-1) du``, the integral over u in one corner.

        The integral over v contains ``v^-of``, which gives the exponent of ``2 - u``.
        """
        return euler(-of - at - 1, -p, 1)

    whole = 2 ** (-q - r - at) * unit(-q, -r - at - 1)
    result = inner(r) * (whole - outer(q, r)) - inner(q) * outer(r, q)
    return gammasimp(result) if q == r == 0 else result


def missing(q: Any, r: Any, at: Any) -> Expr:
    """Return the Mellin transform of ``(1 - F_q)(1 - F_r)`` at ``s = at``, for ``0 < s < 2``.

    ``F_q`` and ``F_r`` are learnt fractions of a mode, functions of x, see :func:`profile`. The term 1 in the
    product contributes nothing, because the continued transform of a power of x is zero. The result is
    ``nan`` where that of :func:`product_transform` is.
    """
    transform_ = product_transform(q, r, at) - transform(q, at) - transform(r, at)
    return gammasimp(transform_) if q == r == 0 else transform_


@lru_cache
def check_transforms(slope: Expr) -> None:
    """Check the closed forms with the equation of the profile, ``x dF/dx = slope`` in F, x and q.

    Partial integration, ``int x^(s-1) x f' = -s int x^(s-1) f``, turns the equations of ``F_q`` and of ``F_q
    F_r`` into relations between transforms at s and at ``s + 1``. SymPy must find both to be identities in q,
    r and s; the two corner integrals at s are first expressed by those at ``s + 1``. Raises
    :class:`NotApplicable` otherwise.
    """
    F, G, q, r, at = (Symbol(n) for n in ("F", "G", "q", "r", "s"))
    twin = slope.subs({F: G, q: r}, simultaneous=True)
    transforms = {(1, 0): lambda p: transform(q, p), (0, 1): lambda p: transform(r, p)}
    transforms |= {(0, 0): lambda p: S.Zero, (1, 1): lambda p: product_transform(q, r, p)}

    def mellin(e: Expr) -> Expr:
        """Return the Mellin transform of a polynomial in x and the profiles F and G, at ``s = at``.

        F and G are the symbols of ``F_q`` and ``F_r``; powers of x shift the argument s.
        """
        transformed = S.Zero
        for part in Add.make_args(e.expand()):
            n, i, j = (int(power_in(part, y)) for y in (x, F, G))
            transformed += part / (x**n * F**i * G**j) * transforms[i, j](at + n)
        return transformed

    relations = (
        -at * mellin(F) - mellin(slope),
        -at * mellin(F * G) - mellin(slope * G + F * twin),
    )
    if any(gammasimp(e) != 0 for y in relations for e in _by_corners(y, (q, r), at)):
        raise NotApplicable(
            "SymPy does not show that the closed forms of the moments of the profile F fulfil "
            f"x dF/dx = {slope}"
        )


def _by_corners(e: Expr, powers: tuple[Expr, Expr], at: Expr) -> list[Expr]:
    """Return [coefficient of the first integral, coefficient of the second one, remainder] of ``e``.

    The integrals are ``E(b) = int_0^1 x^(b-1) (2 - x)^-p dx`` of the two corners in
    :func:`product_transform`, for the exponents q and r in ``powers``; ``e`` contains them at s = ``at`` and
    at s + 1. Those at s are expressed by those at s + 1: ``2 b E(b) - (b + 1 - p) E(b + 1) = 1``, the
    integral of the derivative of ``x^b (2 - x)^(1-p)``, which SymPy differentiates.
    """
    p, b = Symbol("p"), Symbol("b")
    antiderivative = x**b * (2 - x) ** (1 - p)
    recursion = simplify(antiderivative.diff(x) / antiderivative) * x * (2 - x)
    if simplify(recursion - (2 * b - (b + 1 - p) * x)) != 0:
        raise NotApplicable(
            f"the derivative of {antiderivative} does not give the recursion of the corner integrals"
        )
    names = []
    for first, second in (powers, powers[::-1]):
        lowest = -second - at - 1
        names.append(name := Dummy("E"))
        for place, value in ((lowest, name), (lowest + 1, (2 * lowest * name - 1) / (lowest + 1 - first))):
            corner = euler(place - 1, -first, 1)
            (function,) = corner.atoms(hyper)
            e = e.subs(function, value * function / corner)
    e = e.expand()
    return [*(e.coeff(name) for name in names), e.subs(dict.fromkeys(names, 0))]


# -- the law -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Correction:
    """Correction of the loss relative to its leading power: ``loss = leading (1 + size + ...)``.

    ``name`` is its cause, and ``size`` is proportional to ``t^power``. ``known`` is true if its amplitude is
    derived. Otherwise ``size`` contains ``kappa``, the initial squared singular value of the weights, times a
    derived number, or ``amplitude``, a number that is not derived.
    """

    name: str
    size: Expr
    power: Expr
    known: bool


@dataclass(frozen=True)
class NormPart:
    """Correction of the squared singular value sigma^2 of the weights, relative to its leading power of X.

    The correction is ``share X^-power``, where X is the integral of the kernel ``C_g(1,t,t)`` over time.
    ``known`` is true if the coefficient ``share`` is derived, and ``name`` is the name of its cause.
    """

    name: str
    power: Expr
    share: Expr
    known: bool


@dataclass(frozen=True, repr=False)
class RichScaling(ConditionalResult):
    """Power laws of gradient flow on power-law data in the rich regime, at late times.

    Attributes
    ----------
    reduced
        Rank-one equations from which the law follows.
    task
        ``"hard"`` (beta < 1) or ``"easy"``; for easy tasks the kernel has stopped growing.
    depth, source, capacity
        Values of L, beta and a, numbers or symbols.
    growth
        Exponent of time with which the kernel ``C_g(1,t,t)`` grows.
    exponent
        Power with which the loss falls: ``loss = constant t^-exponent``.
    named, named_kernel, named_integrated_kernel
        Constant of the loss, kernel ``C_g(1,t,t)``, and its integral over time, in the symbols
        ``I_F`` and ``I_v`` for two moments of the profile. Powers of gamma0 are included.
    profile
        Learnt fraction of a mode as a function of ``x``, eigenvalue times integrated kernel.
    moments, values
        Definitions and closed forms of ``I_F`` and ``I_v``.
    corrections
        First corrections to the loss.
    basis
        Sentences of :meth:`conditions`.
    """

    reduced: RankOne
    task: str
    depth: Expr
    source: Expr
    capacity: Expr
    growth: Expr
    exponent: Expr
    named: Expr
    named_kernel: Expr
    named_integrated_kernel: Expr
    profile: Expr
    moments: tuple[Eq, ...]
    values: Mapping[Symbol, Expr]
    corrections: tuple[Correction, ...]
    basis: tuple[str, ...]

    def _repr_latex_(self) -> str:
        loss = Eq(Function("loss")(late), self.formula, evaluate=False)
        return aligned_latex([loss, Eq(Function("F")(x), self.profile, evaluate=False), *self.moments])

    def conditions(self) -> tuple[str, ...]:
        """Return the assumptions of the rich power law and the range in which it holds, as sentences.

        The range is that of the source, of the singular value of the weights and of the time.
        """
        return self.basis

    def valued(self, e: Expr) -> Expr:
        """Return an expression with the symbols ``I_F`` and ``I_v`` replaced by their closed forms.

        They are moments of the profile: integrals over the learnt fraction of a mode.
        """
        return e.xreplace(dict(self.values))

    @property
    def constant(self) -> Expr:
        """Prefactor c of the loss ``c t^-exponent`` at late times.

        Integrals over the profile of modes in it are in closed form.
        """
        return self.valued(self.named)

    @property
    def loss(self) -> Expr:
        """Leading term of the loss at late times, ``constant t^-exponent``."""
        return self.constant * late**-self.exponent

    @property
    def formula(self) -> Expr:
        """Leading term of the loss at late times, with symbols ``I_F`` and ``I_v``.

        They stand for two integrals over the profile, the learnt fraction of a mode as a function of its
        scaled eigenvalue.
        """
        return self.named * late**-self.exponent

    @property
    def kernel(self) -> Expr:
        """Kernel ``C_g(1,t,t)`` at late times, a power of time with its prefactor.

        Integrals over the profile of modes in the prefactor are in closed form.

        The kernel is the squared size of the gradient in the first layer, which sets the rate of all modes.
        """
        return self.valued(self.named_kernel)

    @property
    def integrated_kernel(self) -> Expr:
        """Integral X of the kernel ``C_g(1,t,t)`` over time up to t, for late t: a power of t.

        Integrals over the profile of modes in its prefactor are in closed form.
        """
        return self.valued(self.named_integrated_kernel)

    @property
    def profile_exponent(self) -> Expr:
        """Exponent q of the profile ``F_q``, the learnt fraction of a mode.

        The kernel grows as ``X^(2 q)`` with X, its integral over time.
        """
        return simplify(self.growth / (1 + self.growth) / 2)

    @property
    def balance(self) -> RichBalance:
        """Dominant balance from which the law follows, for the depth, source and capacity of the law.

        The methods of the result return powers and constants of the terms in this balance.
        """
        return RichBalance(self.reduced, self.depth, self.source, self.capacity, self.task)

    def correction_from(self, name: str, d: Expr) -> Correction:
        """Return the correction of the loss by a further part of the squared singular value of the weights.

        The part is ``X^-d`` times the leading power of the squared singular value, where X is the integral of
        the kernel ``C_g(1,t,t)``. ``name`` is that of the part. ``size`` of the result is in powers of X, and
        its ``power`` is that of time.
        """
        _, _, rise = self.balance.norm()
        q = self.profile_exponent
        return self.balance.correction(NormPart(name, d, S.One, True), q, rise, X, simplify(rise * q))

    def corrected(self, *, start: Any = None) -> Expr:
        """Return the loss as a function of time: the leading power times one plus its first corrections.

        ``start`` is the value of ``kappa``, the initial squared singular value of the weights; without it
        corrections that need it are left out. Those whose amplitude is not derived are always left out.
        """
        return self.loss * (1 + Add(*[c.size for c in self._kept(start)]))

    def slope(self, *, start: Any = None) -> Expr:
        """Return the local exponent ``-d log(loss)/d log(t)`` of the loss with its first corrections.

        It is of first order in the corrections. ``start`` is the value of ``kappa``, the initial squared
        singular value of the weights; without it corrections that need it are left out. Those whose amplitude
        is not derived are always left out.
        """
        return self.exponent - Add(*[c.power * c.size for c in self._kept(start)])

    def _kept(self, start: Any) -> list[Correction]:
        """Return the first corrections of the loss whose amplitude is known.

        ``start`` is a value for kappa, the initial squared singular value of the weights. It is substituted
        in corrections that contain kappa; None leaves them out.
        """
        if start is None:
            return [c for c in self.corrections if c.known]
        values = {kappa: exact("start", start)}
        return [
            replace(c, size=c.size.subs(values)) for c in self.corrections if c.known or c.size.has(kappa)
        ]

    def crossover(self, before: Expr) -> Expr:
        """Return the time at which the law meets another power, ``before = c t^-e``, such as the lazy loss.

        Raises :class:`NotApplicable` if ``before`` is not a power of t or both have the same power.
        """
        earlier = Power.of(before, late)
        if simplify(earlier.power + self.exponent) == 0:
            raise NotApplicable(f"both losses fall as {late}^({earlier.power}): they do not cross")
        return self.valued(
            tidied((self.named / earlier.coefficient) ** (1 / (self.exponent + earlier.power)))
        )


def rich_scaling(
    reduced: RankOne,
    depth: Any = L,
    source: Any = beta,
    capacity: Any = capacity_,
    *,
    task: str | None = None,
) -> RichScaling:
    """Return the power laws of the rich regime from the closed equations of a theory.

    ``depth``, ``source`` and ``capacity`` are numbers or symbols. For a symbolic source ``task`` states
    whether it is below 1 (``hard``, the default) or above (``easy``). Raises ValueError for a depth that is
    not a whole number of at least 1, for sources or capacities that are not positive, and for a task that
    contradicts the source; :class:`NotApplicable` for a source of 1, where logarithms occur.

    >>> from derive import mean_field, structured
    >>> from derive.scale.rich import rank_one
    >>> reduced = rank_one(mean_field(structured(data="population", rule="flow")))
    >>> law = rich_scaling(reduced)
    >>> print(law.exponent)
    beta*(L + 1)/(L*beta + 1)
    >>> print(rich_scaling(reduced, 2, "3/10").exponent, rich_scaling(reduced, 2, "3/2").exponent)
    9/16 3/2
    >>> print(rich_scaling(reduced, task="easy").formula)
    I_v/(a*gamma0**(2*L*beta/(L + 1))*t**beta*zeta(a*beta - a + 1)**(L*beta/(L + 1)))
    >>> print(law.conditions()[2])
    ansatz: c_g(1, t) = B*X**q, where X is the integral of C_g(1, t, t)
    """
    values = numbers(depth, source, capacity)
    task = kind_of(values[beta], task, "the norm of the learnt function")
    given(task)
    return RichBalance(reduced, values[L], values[beta], values[capacity_], task).law()


def tidied(e: Expr) -> Expr:
    """Return a product of powers of products with all bases separated and each exponent simplified."""
    e = powdenest(expand_power_base(powdenest(e, force=True), force=True), force=True)
    product = S.One
    for power_of in Mul.make_args(e):
        base, power = power_of.as_base_exp()
        if base.is_Pow and base.exp == -1:
            base, power = base.base, -power
        for part in Mul.make_args(factor(base)):
            product *= part ** factor(simplify(power))
    return product


def _short(e: Expr, moments: Mapping[Symbol, Expr]) -> Expr:
    """Return a product of powers, with its constant as a number of six digits if possible.

    ``moments`` has the values of symbols for integrals. If all values are free of symbols, they are inserted
    and the constant becomes a number; otherwise the product is returned unchanged.
    """
    valued = e.xreplace(dict(moments))
    number, powers = valued.as_independent(*valued.free_symbols, as_Add=False)
    return e if any(x.free_symbols for x in moments.values()) else number.n(6) * powers


class RichBalance:
    """Dominant balance of the equation of the singular values, which determines the rich power law.

    The size of the gradient in the first layer is assumed to be a power, ``c_g(1) = B X^q``, of the
    integrated kernel X. The leading powers of X on both sides of the equation must agree, which gives q and
    B. The methods return powers and constants of its terms.
    """

    def __init__(self, reduced: RankOne, depth: Expr, source: Expr, capacity: Expr, task: str) -> None:
        self.reduced, self.task = reduced, task
        self.depth, self.source, self.capacity = depth, source, capacity

    def norm(self) -> tuple[Expr, Expr, Expr]:
        """Return (front, start, rise), the constants in the equation of the weights' singular value sigma.

        The equation is ``sigma^2 = front sum phi^2 + start``, with the sum over modes of their learnt parts
        phi. Because sigma is a power of ``c = c_g(1)``, the size of the gradient, ``c^2 sigma^2`` is
        ``c^rise``. Raises NotApplicable if the equation contains another sum.
        """
        c, reduced = Dummy("c", positive=True), self.reduced
        (total,) = reduced.norm.rhs.atoms(Sum)
        if total.function != phi(reduced.mode, t) ** 2:
            raise NotApplicable(
                "the equation of the squared singular value of the weights must contain the sum over modes "
                f"of their squared learnt parts; the sum in it is {total}"
            )
        front, start = reduced.norm.rhs.coeff(total), reduced.norm.rhs.subs(total, 0)
        squared = reduced.norm.lhs.subs(sigma(t), reduced.singular(c)).subs(L, self.depth) * c**2
        return front, start, power_in(squared, c)

    def sums(self) -> tuple[Powers, Powers]:
        """Return two sums over modes as powers of X: the learnt norm and the loss.

        With the target w and the learnt fraction F of a mode they are ``sum (w F)^2`` and ``sum lamda (w (1 -
        F))^2``. X is the integral of the kernel. Their constants contain the symbols ``I_F`` and ``I_v`` for
        integrals over F.
        """
        weight = on_power_law(w_star(k) ** 2 * lamda(k)).subs({beta: self.source, capacity_: self.capacity})
        weighted_decay, decay = -power_in(weight, k), -power_in(weight * k**self.capacity, k)
        sums = mode_sum_of(lambda at: I_F, [(S.Zero, S.One)], decay, self.capacity, X)
        remaining = mode_sum_of(lambda at: I_v, [], weighted_decay, self.capacity, X)
        return sums.sorted(given(self.task)), remaining

    def squares(self) -> Expr:
        """Return the exponent of X in the correlation ``C_h0(t,s)`` of the inputs' fields.

        ``C_h0`` is a sum over modes of ``(lamda v)^2``, with the errors v of modes, X is the integrated
        kernel, and the times t and s are of the same order.
        """
        values = {beta: self.source, capacity_: self.capacity}
        squared = on_power_law(w_star(k) ** 2 * lamda(k)).subs(values) * k**-self.capacity
        return mode_sum_of(lambda _: S.One, [], -power_in(squared, k), self.capacity, X).terms[0].power

    def moments(self, q: Expr) -> dict[Symbol, Expr]:
        """Return the closed forms of ``I_F`` and ``I_v``, two integrals over the profile ``F_q``, by symbol.

        The profile is the learnt fraction of a mode as a function of x; ``I_F`` is the Mellin transform of
        ``F_q^2`` and ``I_v`` that of ``(1 - F_q)^2``, at the arguments that the sums over modes need.
        """
        sums, remaining = self.sums()
        argument = next(-p.power for p in sums.terms if p.coefficient.has(I_F))
        return {I_F: product_transform(q, q, argument), I_v: missing(q, q, -remaining.terms[0].power)}

    def law(self) -> RichScaling:
        """Return the power law of the loss in the rich regime, with its corrections and conditions.

        Raises NotApplicable if the learnt fraction of a mode is not the profile ``F_q``.
        """
        depth, reduced = self.depth, self.reduced
        # The singular value of the weights obeys sigma^2 = front sum phi^2 + start. The learnt part of a mode
        # is phi = w F/c, with its target w and its learnt fraction F; c = c_g(1) is the size of the gradient
        # in the first layer. The equation is multiplied by c^2 below. c^2 sigma^2 is a power of c, because
        # the ansatz makes sigma a power of c (`singular`); `rise` is the exponent of this power.
        front, start, rise = self.norm()
        learnt, remaining = self.sums()
        top, loss = learnt.terms[0], remaining.terms[0]
        q = simplify(top.power / rise).factor()  # c ~ X^q, from c^rise = front sum (w F)^2
        size = (front * top.coefficient) ** simplify(1 / rise)
        p = Dummy("p", positive=True)  # for 1 - 2 q > 0, the power of X in t = int dX/c^2
        (integral,) = solve(integrate(X ** (p - 1), (X, 0, X)) - size**2 * late, X)
        named_integrated_kernel = tidied(integral.subs(p, 1 - 2 * q))
        values = self.moments(q)
        argument = next(-p.power for p in learnt.terms if p.coefficient.has(I_F))
        if simplify(memory(reduced, q).function - x * u**-q * exp(-x * (1 - u))) != 0:
            raise NotApplicable(
                "the learnt fraction of a mode must be the integral of x*u**-q*exp(-x*(1 - u)) over u from 0 "
                "to 1, with x the eigenvalue of the mode times X, the integral of the kernel over time, and "
                "q the power of X in the gradient of the first layer; the learnt fraction is "
                f"{memory(reduced, q)}"
            )
        check_transforms(profile_slope(reduced, Symbol("q")))
        speed = power_in(named_integrated_kernel, late)
        F = Function("F")(x)
        moments = tuple(
            Eq(name, Integral(x ** (power - 1) * what**2, (x, 0, oo)), evaluate=False)
            for name, power, what in ((I_F, argument, F), (I_v, -loss.power, 1 - F))
        )
        return RichScaling(
            reduced=reduced,
            task=self.task,
            depth=depth,
            source=self.source,
            capacity=self.capacity,
            growth=simplify(2 * q * speed).factor(),
            exponent=simplify(-loss.power * speed).factor(),
            named=tidied(loss.coefficient * (named_integrated_kernel / late**speed) ** loss.power),
            named_kernel=tidied(size**2 * named_integrated_kernel ** (2 * q)),
            named_integrated_kernel=named_integrated_kernel,
            profile=profile(q),
            moments=moments,
            values=values,
            corrections=self.corrections(
                q,
                rise,
                size.xreplace(values),
                named_integrated_kernel.xreplace(values),
                learnt.subs(values),
                start,
            ),
            basis=self.conditions(
                tidied(size**2 * named_integrated_kernel ** (2 * q)), named_integrated_kernel, values
            ),
        )

    def corrections(
        self, q: Expr, rise: Expr, size: Expr, integrated_kernel: Expr, learnt: Powers, start: Expr
    ) -> tuple[Correction, ...]:
        """Return the first corrections of the loss, one for each next-order term in the equation of sigma^2.

        sigma is the singular value of the weights, and sigma^2 is ``c^(rise - 2)``, where ``c = size X^q`` is
        the size ``c_g(1)`` of the gradient. Relative to the leading term each of these terms is
        ``share X^-d``, where X is the integrated kernel. ``learnt`` are the powers of X in ``sum (w F)^2``,
        and ``start`` is the initial value of sigma^2.
        """
        top, next_ = learnt.terms
        name = "discrete modes" if self.task == HARD else "modes not yet learnt"
        decay, share = simplify(top.power - next_.power), next_.coefficient / top.coefficient
        gap, begun = simplify((rise - 2) * q), start / size ** simplify(rise - 2)
        parts = (
            NormPart(name, decay, share, True),
            NormPart("initial weights", gap, begun, False),
        )
        return tuple(self.correction(part, q, rise, integrated_kernel, top.power) for part in parts)

    def correction(
        self, part: NormPart, q: Expr, rise: Expr, integrated_kernel: Expr, power: Expr
    ) -> Correction:
        """Return the effect on the loss of a part ``share X^-d`` of sigma^2, to first order.

        sigma is the singular value of the weights, X the integrated kernel, and the part is relative to the
        leading power. ``c^2 sigma^2 = c^rise`` for the size c of the gradient, ``q`` is the power of X in c,
        and ``power`` that in the sum over modes of ``(c phi)^2``, with the learnt parts phi. The part changes
        c to ``c = B X^q (1 + e X^-d)``. The memory of ``1/c`` in a mode makes ``c phi`` a combination of the
        profiles ``F_q`` and ``F_(q+d)``; this changes the norm, which determines e, and the loss, and c
        changes X. The amplitude is not known if ``q + d`` is one or more, because early times then change the
        profile more than this part, if ``1 - 2 q = d``, where a logarithm occurs, or where
        :func:`product_transform` is ``nan``; the symbol ``amplitude`` stands for it.
        """
        d = part.power
        r, late_power = simplify(q + d), simplify(1 - 2 * q - d)
        after = simplify(-d / (1 - 2 * q)).factor()
        of_unknown_amplitude = Correction(part.name, amplitude * integrated_kernel**-d, after, False)
        if late_power == 0 or (r.is_number and r >= 1):
            return of_unknown_amplitude
        e, F_q, F_r = (Dummy(n) for n in ("e", "F_q", "F_r"))

        def derivative(quantity: Expr) -> Expr:
            """Return the derivative of a quantity by e, the amplitude of the correction, at e = 0."""
            return quantity.diff(e).subs(e, 0)

        def averaged(square: Expr, mean: Callable[[Expr, Expr], Expr], x: Symbol, y: Symbol) -> Expr:
            """Return the change of a sum of squares over modes, divided by the unperturbed sum.

            ``square`` is quadratic in the symbols ``x`` and ``y``, which stand for the profiles ``F_q`` and
            ``F_r``, or for ``1 - F_q`` and ``1 - F_r``. ``mean`` returns the Mellin transform of the product
            of two of these functions from their exponents.
            """
            form = square.expand()
            return form.coeff(x, 2) + form.coeff(x, 1).coeff(y, 1) * mean(q, r) / mean(q, q)

        phi_ = F_q - e * F_r
        norm = averaged(derivative(phi_**2), lambda p, s: product_transform(p, s, -power), F_q, F_r)
        # If the sum of squared learnt parts does not grow with X, only modes that are already learnt
        # contribute to it. Their profiles F_q and F_r are one.
        if power == 0:
            norm = derivative(phi_**2).subs({F_q: 1, F_r: 1})
        # `size` is e, the relative change of c in units of X^-d, at first order. The relative change of
        # sigma^2 in these units, the first order of (1 + e)^(rise - 2), equals `part.share` plus the relative
        # change of the norm of the learnt modes. Both relative changes are proportional to e.
        size = part.share / (derivative((1 + e) ** (rise - 2)) - norm)
        remaining = (1 - (1 + e) * phi_).subs({F_q: 1 - F_q, F_r: 1 - F_r})
        profile_change = averaged(derivative(remaining**2), lambda p, s: missing(p, s, self.source), F_q, F_r)
        p = Dummy("p", positive=True)
        # t = int dX/c^2 has the leading power 1 - 2 q of X, and the correction of c adds a term with the
        # power late_power. The symbol p stands for either of these powers.
        spent = integrate(X ** (p - 1), (X, 0, X))
        shift = -derivative((1 + e) ** -2) * spent.subs(p, late_power) / spent.diff(X).subs(p, 1 - 2 * q) / X
        time_change = -self.source * simplify(shift * X**d)
        total = size * (profile_change + time_change)
        if total.has(nan):
            return of_unknown_amplitude
        return Correction(part.name, total * integrated_kernel**-d, after, part.known)

    def conditions(
        self, kernel: Expr, integrated_kernel: Expr, moments: Mapping[Symbol, Expr]
    ) -> tuple[str, ...]:
        """Return the assumptions of the power law and the range in which it holds, as sentences.

        ``kernel`` is ``C_g(1,t,t)`` and ``integrated_kernel`` its integral over time, both as powers of time.
        ``moments`` has the closed forms of ``I_F`` and ``I_v``, integrals over the profile of modes, by
        symbol.
        """
        singular_value = Dummy("sigma", positive=True)
        depth = power_in(
            self.reduced.kernel.rhs.subs({sigma(t): singular_value, L: self.depth}), singular_value
        )
        squared = _short(tidied(kernel ** (2 / depth)), moments)
        # Mode k has the eigenvalue k^-capacity. It is learnt at the time at which this eigenvalue times X is
        # one, where X is the integral of the kernel over time. `growth` is X as a power of time.
        growth = Power.of(integrated_kernel, late)
        first, last = (
            _short(tidied((n**self.capacity / growth.coefficient) ** (1 / growth.power)), moments)
            for n in (S.One, M)
        )
        return (
            *self.reduced.conditions(),
            f"ansatz: {c_g(1, t)} = B*X**q, where X is the integral of {self.reduced.kernel.lhs}",
            "assumed: the flow reaches this regime, and in the first layer the neglected terms, of which "
            "only powers are counted, stay small",
            "0 < beta < 1" if self.task == HARD else "beta > 1",
            f"sigma**2 = {squared} >> 1, where sigma is the singular value of each weight matrix over "
            "sqrt(N): trained weights exceed the random initial weights",
            f"{first} << t << {last}: the first mode has been learnt, and the last of M modes has not",
            "gradient flow on the population loss, infinitely wide layers, no label noise",
        )


# -- neglected terms ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Neglected:
    """Term that the ansatz neglects, compared with the kept term of its equation.

    Attributes
    ----------
    term, equation
        Neglected term, and left side of its equation.
    share
        Ratio of the neglected to the kept term as a function of ``sigma``; squared for sources, because their
        variances add. For responses of inner layers it is the ratio of the kernels at the times t and s, and
        also a function of ``sigma_s``, the value of sigma at time s.
    start
        Part of the term, over the kept term, that is constant in units of the field of the layer below: it
        acts as an initial value of sigma. A function of ``sigma``, and of its initial value ``sigma_0`` for
        responses of inner layers.
    power, gamma_power
        Exponents of t and gamma0 in the ratio.
    solved
        True if the ratio was computed from the equations, false if only its powers were counted.
    """

    term: Expr
    equation: Expr
    share: Expr
    start: Expr
    power: Expr
    gamma_power: Expr
    solved: bool


def dropped(law: RichScaling) -> tuple[Neglected, ...]:
    """Return every neglected term with its size in the power law ``law`` (of hard tasks).

    Sources come from the random initial weights. Relative to the field of their equation they are smaller
    by 1/sigma. Their part along the direction of the field is constant in time, in units of the field of
    the layer below: it acts as an initial value of sigma, which enters ``kappa``. The remainder adds to
    kernels terms that are smaller by 1/sigma^2.

    Responses of inner layers are computed from the kept terms (:meth:`.RankOne.inner_response`). Their
    kernels are smaller than the memory of the same equation by 1/sigma^2 at either of the two times, so
    that they matter mostly at early times: their integral is a constant, again an initial value of sigma,
    and a smaller remainder.

    In the first layer the kernel ``C_h0`` of the inputs is not of rank one. There powers are counted:
    iteration of the first response changes no power. Such a count does not bound sums of many terms; this
    step is not a proof.

    Raises :class:`NotApplicable` for easy tasks, where sigma is bounded and terms are small only for large
    gamma0.

    >>> from derive import mean_field, structured
    >>> from derive.scale.rich import rank_one
    >>> reduced = rank_one(mean_field(structured(data="population", rule="flow")))
    >>> law = rich_scaling(reduced, 2, "1/2")
    >>> sorted({(str(x.power), str(x.gamma_power)) for x in dropped(law)})
    [('-1/4', '-1')]
    """
    if law.growth == 0:
        raise NotApplicable(
            "the terms that the rank-one ansatz neglects are not derived for easy tasks (beta > 1): the "
            "kernel stops growing, so that these terms do not decrease in time"
        )
    reduced, rows = law.reduced, list[Neglected]()
    kernel, integrated_kernel = (
        late ** power_in(e, late) * gamma0 ** power_in(e, gamma0)
        for e in (law.named_kernel, law.named_integrated_kernel)
    )
    # sigma and c_g(1), as powers of t and gamma0 without constants
    singular_value, top = kernel ** (1 / (2 * law.depth)), kernel ** (S.One / 2)
    squares = integrated_kernel ** law.balance.squares()
    bottom = singular_value**2 / (gamma0 * late * top)  # c_h(1): gamma0 c_h(1) c_g(1) is the rate of sigma^2
    # `iterated` is the ratio (gamma0 t)^2 C_h0 C_g(2) of the second iteration of the response of the first
    # layer to the first iteration: the second has the further factors gamma0 C_h0 and gamma0 C_g(2), each
    # with an integral over time
    iterated = squares * (gamma0 * late * top / singular_value) ** 2
    if any(power_in(iterated, y) != 0 for y in (late, gamma0)):
        raise NotApplicable(
            "the second iteration of the equation of the first layer's response has other powers of t or "
            "gamma0 than the first iteration"
        )

    def row(term: Expr, field: Expr, size: Expr, share: Expr | None = None, start: Expr = 1 / now) -> None:
        """Add one neglected term to the list of results, with its size relative to the kept term.

        ``field`` is the left side of its equation. Only the powers of t and gamma0 in ``size``, its relative
        size, are used. ``share`` is the ratio as a function of sigma, the singular value of the weights, if
        known (for responses also of sigma at the earlier time), and ``start`` the part of the term that acts
        as an initial value of sigma. Raises NotApplicable if ``size`` is not a power of sigma.
        """
        powers, of_sigma = ([power_in(y, z) for z in (late, gamma0)] for y in (size, singular_value))
        n = simplify(powers[0] / of_sigma[0])
        if simplify(powers[1] - n * of_sigma[1]) != 0:
            raise NotApplicable(
                f"the relative size {size} of a neglected term is not a power of sigma, the singular value "
                "of the weights"
            )
        ratio = now**n if share is None else share
        rows.append(Neglected(term, field, ratio, start, powers[0], powers[1], share is not None))

    relations = {y.lhs: y.rhs for y in reduced.layers}
    response = reduced.inner_response()
    for e, x in reduced.dropped:
        source = next((u for u in reduced.theory.sources if u.symbol == x.field), None)
        if source is not None and not source.covariance.has(Function("C_h0")):
            # `deviation` is the variance of the source. `share` is the ratio of this variance to the square
            # of the field on the left side of the equation e that contains the source.
            deviation = with_rank_one(source.covariance.subs(s, t))
            share = simplify(deviation / with_rank_one(e.lhs).xreplace(relations) ** 2)
            share = share.replace(sigma, lambda *_: now)
            row(x.expr, e.lhs, singular_value ** power_in(share, now), share)
        elif source is not None:
            row(x.expr, e.lhs, squares / bottom**2)
        elif e.ranges and e.name in ("h", "g"):
            # `now` is sigma(t), the singular value of the weights: its initial value `first` plus the
            # integral of the memory up to the time t, so that sigma replaces time as variable of integration.
            # The integral of the response, divided by sigma(t), is constant/sigma(t) plus a remainder that is
            # smaller at late times. The first term acts like a change of the initial value of sigma.
            integral = expand(integrate(response, (then, first, now)) / now)
            row(x.expr, e.lhs, singular_value**-2, response, integral.coeff(1 / now) / now)
            # The first layer has a row of its own, because the response of h(1) is gamma0 C_h0 to lowest
            # order.
            if e.name == "h":
                row(x.expr.subs(ell, 1), e.lhs.subs(ell, 1), squares / bottom**2)
        else:
            # The dropped term contains the response of g(1) to h(1). To lowest order this response is gamma0
            # C_g(2), and its ratio to gamma0 C_g(1) is sigma^-2.
            row(x.expr, e.lhs, singular_value**-2)
    return tuple(rows)
