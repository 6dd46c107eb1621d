"""Slopes that jump at zero: the first powers of ``|gamma0|``, from the units within gamma0 of the kink.

A unit with ``u_kappa = |gamma0| x`` moves during training by as much as it is away.  There are
``|gamma0| dx <delta(u_kappa) ...>`` of them; each changes its slope, which is of order one, and its feature,
which is of order gamma0.  Their path ``|gamma0| X(t)`` obeys the theory's own equation of h at leading order,
and what they change is an average minus its regular continuation, with every slope as at the start.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from sympy import (
    Add,
    Derivative,
    DiracDelta,
    Dummy,
    Eq,
    Expr,
    Function,
    ImmutableDenseMatrix,
    Integral,
    KroneckerDelta,
    Lambda,
    Mul,
    Ne,
    Piecewise,
    S,
    Sum,
    Symbol,
    oo,
)
from sympy.core.function import AppliedUndef

from derive.expansion.nonlinear.expansion import NonlinearExpansion, expand_nonlinear
from derive.expansion.nonlinear.laws import OUTPUT, solved_laws
from derive.meanfield.averages import Average
from derive.meanfield.jumps import OtherKind, jumps
from derive.meanfield.masses import conditioned
from derive.meanfield.reductions.projection import NotApplicable
from derive.meanfield.theory import Theory
from derive.program.expressions import P, alpha, mu, s, t

kappa = Symbol("kappa", integer=True, positive=True)
"""The sample whose field is at the kink."""
x = Symbol("x", real=True)
"""Where the unit starts: ``u_kappa / |gamma0|``."""

sigma, X, V, r, u, phi, Z = (Function(n) for n in ("sigma", "X", "V", "r", "u", "phi", "Z"))
Xbar, Vbar = Function("Xbar"), Function("Vbar")

FACTORS = {"Phi": ("phi", "phi"), "G": ("g", "g"), OUTPUT: ("phi", "z")}
"""The fields that an order parameter averages; f, of one sample and time, is divided by gamma0."""


@dataclass(frozen=True)
class Jump:
    """What the unit changes in an average, at its first order in ``|gamma0|``, before the integral over x.

    ``cases`` say which of the observed samples are kappa: for ``(mu, alpha)``, or ``(mu,)`` for f.  A case
    that is not there changes nothing at this order.
    """

    name: str
    order: int
    cases: dict[tuple[bool, ...], Expr]


@dataclass(frozen=True)
class KinkExpansion:
    """The first powers of ``|gamma0|`` of a network with one hidden layer whose phi has a kink at zero.

    ``above`` and ``below`` are the slopes at both sides, ``value`` is phi(0).  ``bulk`` is the expansion of
    units that cross no kink.  In :attr:`jumps` and :attr:`equations` stand

    * ``X(t)``, ``sigma(kappa, t)``: place and slope of the unit at the kink of ``kappa``, and ``Xbar(t)``,
      ``sigma(kappa)`` its regular continuation;
    * ``V(mu, t)``, ``Vbar(mu, t)``: the same unit's ``[h_mu - u_mu]_1`` for the other samples, whose slopes
      ``sigma(mu)`` and features ``phi(u(mu))`` stay at the start.
    """

    theory: Theory
    bulk: NonlinearExpansion
    above: Expr
    below: Expr
    value: Expr

    # -- the unit ----------------------------------------------------------------------------------------

    def moved(self, sample: Expr, followed: bool = True) -> Expr:
        """``[h - u]_1`` of one sample, with the slopes of the unit in it: read off the equation of h."""
        own = Function("sigma")

        def slope(e: Expr) -> Expr:
            _, beta, time = e.expr.args[0].args
            return own(beta, time) if followed else own(beta)

        e = self._generic.field("h", 1)
        e = e.replace(lambda q: isinstance(q, Derivative), slope)
        e = e.replace(
            lambda q: isinstance(q, AppliedUndef) and str(q.func) == "r" and len(q.args) == 3,
            lambda q: r(q.args[1]),
        )
        return e.subs(mu, sample)

    @property
    def _generic(self) -> NonlinearExpansion:
        """The bulk with phi kept a symbol."""
        (slot,) = self.bulk.activation.variables
        return replace(self.bulk, site=replace(self.bulk.site, activation=Lambda(slot, phi(slot))))

    @property
    def equations(self) -> tuple[Eq, ...]:
        """The unit's own equations, at leading order in gamma0."""
        z = Dummy("z", real=True)
        side = Piecewise((self.above, z > 0), (self.below, True))
        rest = u(mu)
        slope = Piecewise((side.subs(z, rest), Ne(mu, kappa)), (side.subs(z, X(t)), True))
        start = Piecewise((side.subs(z, rest), Ne(mu, kappa)), (side.subs(z, x), True))
        return (
            Eq(X(t), x + self.moved(kappa), evaluate=False),
            Eq(sigma(mu, t), slope, evaluate=False),
            Eq(V(mu, t), self.moved(mu), evaluate=False),
            Eq(Xbar(t), x + self.moved(kappa, False), evaluate=False),
            Eq(sigma(mu), start, evaluate=False),
            Eq(Vbar(mu, t), self.moved(mu, False), evaluate=False),
        )

    @property
    def density(self) -> Expr:
        """``<delta(u_kappa)>``: units at the kink, for each unit of x and of gamma0.

        >>> from derive.meanfield import mean_field
        >>> from derive.program import mlp
        >>> expand_kinks(mean_field(mlp(1, "relu"))).density
        sqrt(2)/(2*sqrt(pi)*sqrt(K_x(kappa, kappa)))
        """
        slot = Dummy("u", real=True)
        variance = Function(self.bulk.site.u.name)(kappa, kappa)
        parts = conditioned([DiracDelta(slot)], (slot,), ImmutableDenseMatrix([[variance]]))
        assert parts is not None
        ((number, body, _, _),) = parts
        return number * body

    def fields(self, own: bool, sample: Expr, time: Expr, followed: bool) -> dict[str, tuple[Expr, Expr]]:
        """phi(h), g and z of the unit at orders 0 and 1 in ``|gamma0|``; ``own``: the sample is kappa."""
        if own:
            slope = sigma(kappa, time) if followed else sigma(kappa)
            feature = (self.value, slope * (X(time) if followed else Xbar(time)))
            source = r(kappa), Z(kappa, time)
        else:
            slope = sigma(sample)
            feature = (phi(u(sample)), slope * (V(sample, time) if followed else Vbar(sample, time)))
            source = r(sample), Z(sample, time)
        # [z - r]_1 is the same for both, for it knows features at order 0 only
        return {"phi": feature, "z": source, "g": (slope * source[0], slope * source[1])}

    @property
    def jumps(self) -> dict[str, Jump]:
        """What the unit changes in Phi, G and f.

        >>> from derive.meanfield import mean_field
        >>> from derive.program import mlp
        >>> found = expand_kinks(mean_field(mlp(1, "relu"))).jumps
        >>> [(j.name, j.order) for j in found.values()]
        [('Phi', 2), ('G', 1), ('f', 1)]
        >>> found["f"].cases[True,]
        X(t)*r(kappa)*sigma(kappa, t) - Xbar(t)*r(kappa)*sigma(kappa)
        """
        return {name: self._jump(name) for name in FACTORS}

    def _jump(self, name: str) -> Jump:
        one, two = FACTORS[name]
        single = name == OUTPUT
        for n in (0, 1):
            cases = {}
            for own in product((True, False), repeat=1 if single else 2):
                change: Expr = S.Zero
                for followed, number in ((True, 1), (False, -1)):
                    a = self.fields(own[0], mu, t, followed)[one]
                    b = self.fields(own[-1], *((mu, t) if single else (alpha, s)), followed)[two]
                    change += number * Add(*[a[k] * b[n - k] for k in range(n + 1)])
                if change.expand() != 0:
                    cases[own] = change.expand()
            if cases:
                return Jump(name, n + 1 - single, cases)
        return Jump(name, 3, {})

    # -- coefficients ------------------------------------------------------------------------------------

    @property
    def known(self) -> dict[str, int]:
        """The highest power of ``|gamma0|`` that is known of each variable.

        >>> from derive.meanfield import mean_field
        >>> from derive.program import mlp
        >>> expand_kinks(mean_field(mlp(1, "relu"))).known
        {'Phi': 2, 'G': 1, 'f': 1, 'K': 1, 'Delta': 1, 'loss': 1}
        """
        orders = {name: j.order for name, j in self.jumps.items()}
        least = min(orders.values())
        return orders | {name: least for name in ("K", "Delta", "loss")}

    def layer(self, name: str) -> Expr:
        """The part of Phi, G or f that comes from units at the kink, at its order in ``|gamma0|``.

        ``<delta(u_kappa) ...>``: the density of ``u_kappa`` at zero, times the average over the others there.
        """
        total: Expr = S.Zero
        for own, e in self.jumps[name].cases.items():
            at = (KroneckerDelta(i, kappa) for i in (mu, alpha))
            chosen = Mul(*[d if mine else 1 - d for d, mine in zip(at, own, strict=False)])
            total += chosen * e
        return Sum(Average(DiracDelta(u(kappa)) * Integral(total, (x, -oo, oo))), (kappa, 1, P))

    def coefficient(self, name: str, n: int) -> Expr:
        """The coefficient of ``|gamma0|^n`` of ``Phi``, ``G``, ``f``, ``K``, ``Delta`` or ``loss``.

        Raises KeyError for another name, IndexError for a coefficient that is not :attr:`known`.

        >>> from derive.meanfield import mean_field
        >>> from derive.program import mlp
        >>> series = expand_kinks(mean_field(mlp(1, "relu")))
        >>> series.coefficient("Phi", 1), series.coefficient("K", 1)
        (0, G1(1, mu, alpha, t, s)*K_x(mu, alpha))
        """
        if name not in self.known:
            raise KeyError(f"no series {name!r}; there are {', '.join(self.known)}")
        if not 0 <= n <= self.known[name]:
            raise IndexError(f"n = {n}: {name} is known to |gamma0|^{self.known[name]}")
        if n == 0:
            return self._generic.coefficient(name, 0)
        if name == "loss":
            return Sum(2 * Function("Delta0")(mu, t) * Function("Delta1")(mu, t) / P, (mu, 1, P))
        if name == "K":
            return self._tangent()
        if name == "Delta":
            return -self.coefficient(OUTPUT, 1)
        moved = self.layer(name) if n == self.jumps[name].order else S.Zero
        if name == OUTPUT:  # f is linear in the error that it remembers
            lazy = self._generic.coefficient(OUTPUT, 0)
            old = [v for v in lazy.atoms(AppliedUndef) if str(v.func) == "v"]
            return moved + lazy.xreplace({v: Function("v1")(*v.args) for v in old})
        return moved + self._without_crossing(name, n)

    def _without_crossing(self, name: str, n: int) -> Expr:
        """The bulk's coefficient: a second derivative of phi is zero beside the kink."""
        whole = Add.make_args(self._generic.coefficient(name, n))
        return Add(*[e for e in whole if all(d.derivative_count < 2 for d in e.atoms(Derivative))])

    def _tangent(self) -> Expr:
        """Each factor of the tangent kernel's terms at order one, where it has one."""
        first = {name for name, j in self.jumps.items() if j.order == 1}
        total: Expr = S.Zero
        for term in self.theory.observables[0].terms:
            factors = Mul.make_args(term.expr)
            for i, q in enumerate(factors):
                if isinstance(q, AppliedUndef) and str(q.func) in first:
                    others = [
                        Function(f"{f.func}0")(*f.args[:3]) if str(f.func) in FACTORS else f
                        for f in factors[:i] + factors[i + 1 :]
                    ]
                    total += Mul(Function(f"{q.func}1")(*q.args), *others)
        return total

    def one_sample(self, name: str) -> Expr:
        """The kink's part of ``G`` or ``f`` for one sample and ``v(t) = int Delta0`` that rises, in v alone.

        ``v`` is at the earlier of both times, ``v + dv`` at the later one; for f, ``v`` is at t.  Exact for
        the flow; for steps too if the unit rests at the other side, as with relu.  See
        :mod:`derive.expansion.nonlinear.one_sample`.
        """
        from derive.expansion.nonlinear.one_sample import closed_form

        return closed_form(self, name)

    def render(self, format: str = "text") -> str:
        """The unit's equations and the coefficients as ``text`` or ``latex``.  ValueError for another."""
        from derive.expansion.nonlinear.printing_kinks import render

        return render(self, format)

    def _repr_latex_(self) -> str:
        return self.render("latex")


def expand_kinks(theory: Theory) -> KinkExpansion:
    """Expand in ``|gamma0|`` with one hidden layer and a phi that is piecewise linear with its kink at zero.

    G, the tangent kernel, the error and the loss have a term linear in ``|gamma0|``; Phi starts to move at
    gamma0^2.  These are the coefficients that are found.

    Raises :class:`~derive.meanfield.reductions.projection.NotApplicable` for more layers, where the sources
    move as well, and for other functions.

    >>> from derive.meanfield import mean_field
    >>> from derive.program import mlp
    >>> series = expand_kinks(mean_field(mlp(1, "relu", "flow")))
    >>> print(series.moved(kappa))
    Sum(K_x(beta, kappa)*Integral(Delta0(beta, t_)*r(beta)*sigma(beta, t_), (t_, 0, t)), (beta, 1, P))
    """
    lazy = expand_nonlinear(theory, 0)
    site = lazy.site
    if not (site.u.given and site.r.given):
        raise NotApplicable(
            "units at the kink are followed in networks with one hidden layer: deeper ones have sources u "
            "that move across the kink by themselves"
        )
    (slot,) = site.activation.variables
    try:
        parts = jumps(site.activation.expr, slot)
    except OtherKind as error:
        raise NotApplicable(
            f"phi = {site.activation.expr} is not piecewise linear with a kink at 0"
        ) from error
    if not set(parts) <= {(0, 0, -1), (1, 0, -1), (1, 1, -1)} or (1, 1, -1) not in parts:
        raise NotApplicable(f"phi = {site.activation.expr} is not piecewise linear with a kink at 0")
    even, odd = parts.get((1, 0, -1), S.Zero), parts[1, 1, -1]
    return KinkExpansion(theory, _bulk(lazy), even + odd, even - odd, parts.get((0, 0, -1), S.Zero))


def _bulk(lazy: NonlinearExpansion) -> NonlinearExpansion:
    """Units that cross no kink: the laws of any phi without its second derivative, as far as needed.

    Sources have given covariances, so that derivatives of phi come from Taylor series only.
    """
    laws = {}
    for tensor, law in solved_laws(lazy.site, 2)[0].items():
        if tensor.order and tensor.name != "Phi":
            continue
        terms = tuple(q for q in law.terms if all(max(orders) < 2 for _, orders in q.averages))
        if terms or tensor.order == 0:
            laws[tensor] = replace(law, terms=terms)
    return replace(lazy, order=2, laws=laws, errors=(0,))


__all__ = ["Jump", "KinkExpansion", "expand_kinks", "kappa"]
