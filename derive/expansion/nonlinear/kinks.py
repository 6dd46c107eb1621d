"""Slopes that jump at zero: the first powers of ``|gamma0|``.

Units that keep the slopes of the start are the bulk (:mod:`derive.expansion.nonlinear.straight`), those
within gamma0 of the kink are followed (:mod:`derive.expansion.nonlinear.crossing`).  Here both come together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from sympy import DiracDelta, Eq, Expr, Function, Integral, KroneckerDelta, Mul, S, Sum, oo
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.calculus.jumps import OtherKind, jumps
from derive.errors import NotApplicable
from derive.expansion.nonlinear.crossing import FACTORS, Crossing, Jump, X, kappa, r, sigma, u, x
from derive.expansion.nonlinear.expansion import NonlinearExpansion, expand_nonlinear
from derive.expansion.nonlinear.laws import OUTPUT
from derive.expansion.nonlinear.straight import Coefficients, straight
from derive.program.words import L, P, alpha, mu, s, t
from derive.theory import Theory


@dataclass(frozen=True)
class KinkExpansion:
    """The first powers of ``|gamma0|`` of a network whose phi has a kink at zero.

    ``above`` and ``below`` are the slopes at both sides, ``value`` is phi(0).  ``bulk`` is the expansion at
    order 0, :attr:`laws` what units that cross no kink add.  In :attr:`jumps` and :attr:`equations` stand

    * ``X(t)``, ``sigma(kappa, t)``: place and slope of the unit at the kink of ``kappa``, and ``Xbar(t)``,
      ``sigma(kappa)`` its regular continuation;
    * ``V(mu, t)``, ``Vbar(mu, t)``: the same unit's ``[h_mu - u_mu]_1`` for the other samples, whose slopes
      ``sigma(mu)`` and features ``phi(u(mu))`` stay at the start;
    * ``xi(t)``: what the source ``u_kappa`` has moved, Gaussian of covariance :attr:`drift`.

    With several layers they are those of one layer, whose index is left out.
    """

    theory: Theory
    bulk: NonlinearExpansion
    above: Expr
    below: Expr
    value: Expr

    # -- the unit ----------------------------------------------------------------------------------------

    @cached_property
    def crossing(self) -> Crossing:
        """The unit."""
        return Crossing(self.bulk, self.above, self.below, self.value)

    @cached_property
    def laws(self) -> Coefficients:
        """What the bulk of a layer adds, see :func:`~derive.expansion.nonlinear.straight.straight`."""
        return straight(self.bulk.site)

    @property
    def _generic(self) -> NonlinearExpansion:
        return self.crossing.generic

    def moved(self, sample: Expr, followed: bool = True) -> Expr:
        """``[h - u]_1`` of one sample, with the slopes of the unit in it: read off the equation of h."""
        return self.crossing.moved(sample, followed)

    @property
    def equations(self) -> tuple[Eq, ...]:
        """The unit's own equations, at leading order in gamma0."""
        return self.crossing.equations

    @property
    def drift(self) -> Expr:
        """``<xi(t) xi(s)>``: zero with one hidden layer, whose sources rest.

        >>> from derive.theory import mean_field
        >>> from derive.program import L, mlp
        >>> expand_kinks(mean_field(mlp(L, "relu"))).drift.subs(t, 0)
        0
        """
        return self.crossing.drift

    @property
    def density(self) -> Expr:
        """``<delta(u_kappa)>``: units at the kink, for each unit of x and of gamma0.

        >>> from derive.theory import mean_field
        >>> from derive.program import mlp
        >>> expand_kinks(mean_field(mlp(1, "relu"))).density
        sqrt(2)/(2*sqrt(pi)*sqrt(K_x(kappa, kappa)))
        """
        return self.crossing.density

    @property
    def jumps(self) -> dict[str, Jump]:
        """What the unit changes in Phi, G and f; in the responses too, if there are any.

        >>> from derive.theory import mean_field
        >>> from derive.program import L, mlp
        >>> found = expand_kinks(mean_field(mlp(1, "relu"))).jumps
        >>> [(j.name, j.order) for j in found.values()]
        [('Phi', 2), ('G', 1), ('f', 1)]
        >>> found["f"].cases[True,]
        X(t)*r(kappa)*sigma(kappa, t) - Xbar(t)*r(kappa)*sigma(kappa)
        >>> [(j.name, j.order) for j in expand_kinks(mean_field(mlp(L, "relu"))).jumps.values()][3:]
        [('A', 1), ('B', 0)]
        """
        return self.crossing.jumps

    @property
    def turning(self) -> Jump:
        """B at order -1: a push of u at one time turns slopes later on."""
        return self.crossing.turning

    # -- coefficients ------------------------------------------------------------------------------------

    @property
    def known(self) -> dict[str, int]:
        """The highest power of ``|gamma0|`` that is known of each variable.

        >>> from derive.theory import mean_field
        >>> from derive.program import mlp
        >>> expand_kinks(mean_field(mlp(1, "relu"))).known
        {'Phi': 2, 'G': 1, 'f': 1, 'K': 1, 'Delta': 1, 'loss': 1}
        """
        orders = {name: j.order for name, j in self.jumps.items() if name in FACTORS}
        least = min(orders.values())
        return orders | {name: least for name in ("K", "Delta", "loss")}

    def layer(self, name: str) -> Expr:
        """The part of Phi, G or f that comes from units at the kink, at its order in ``|gamma0|``.

        ``<delta(u_kappa) ...>``: the density of ``u_kappa`` at zero, times the average over the others there.
        Of the responses ``A`` and ``B``, if there are any, it is the part of what a lasting push does.
        """
        jump, ways = self.jumps[name], []
        for cases in (jump.cases, jump.after):
            total: Expr = S.Zero
            for own, e in cases.items():
                at = (KroneckerDelta(i, kappa) for i in (mu, alpha))
                chosen = Mul(*[d if mine else 1 - d for d, mine in zip(at, own, strict=False)])
                total += chosen * e
            ways.append(total)
        body = Integral(ways[0], (x, -oo, oo)) + ways[1]
        return Sum(Average(DiracDelta(u(kappa)) * body), (kappa, 1, P))

    def coefficient(self, name: str, n: int) -> Expr:
        """The coefficient of ``|gamma0|^n`` of ``Phi``, ``G``, ``f``, ``K``, ``Delta`` or ``loss``.

        With several layers Phi and G are at layer ell.  There ``D_1``, ``D0`` are the kernel of z at orders
        -1 and 0, and ``A1`` is the response A without what comes from ``Delta1``; see :meth:`response`.

        Raises KeyError for another name, IndexError for a coefficient that is not :attr:`known`.

        >>> from derive.theory import mean_field
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
            moved += lazy.xreplace({v: Function("v1")(*v.args) for v in old})
        return moved + self._bulk(name, n)

    def response(self, name: str, n: int) -> Expr:
        """``A`` at order 1, ``B`` at -1 and 0, of the population at layer ell; zero with one hidden layer.

        B is stored one layer below.  A, and B at 0, are what counts: summed over the times of the push, and
        A without what comes from ``Delta1``.  Raises KeyError for another one.

        >>> from derive.theory import mean_field
        >>> from derive.program import L, mlp
        >>> found = expand_kinks(mean_field(mlp(L, "relu"))).response("B", -1)
        >>> found.has(Function("turned")), found.has(Function("D_1"))
        (True, True)
        """
        if (name, n) not in (("A", 1), ("B", -1), ("B", 0)):
            raise KeyError(f"no {name!r} at order {n}: there are A at 1, B at -1 and 0")
        if (name, n) not in self.laws:
            return S.Zero
        if n < 0:
            at = KroneckerDelta(mu, kappa) * KroneckerDelta(alpha, kappa)
            (turn,) = self.turning.cases.values()
            inside = DiracDelta(u(kappa)) * Integral(at * turn, (x, -oo, oo))
            return Sum(Average(inside), (kappa, 1, P)) + self._bulk(name, n)
        return self.layer(name) + self._bulk(name, n)

    def _bulk(self, name: str, n: int) -> Expr:
        """What units that cross no kink add; the order 1 of C is the response of the layer below."""
        layer = L if name == OUTPUT else self.bulk.site.layer
        found = self._generic._writer(layer).terms(
            self.laws.get((name, n), {}), t, t if name == OUTPUT else s
        )
        for edge in self.bulk.site.h:
            if not edge.memory:
                found = found.replace(
                    lambda e: isinstance(e, AppliedUndef) and str(e.func) == "C1",
                    lambda e, k=edge.kernel: Function(f"{k.name}1")(e.args[0] + k.shift, *e.args[1:]),
                )
        return found

    def _tangent(self) -> Expr:
        """Each factor of the tangent kernel's terms at order one, where it has one."""
        first = {name for name, j in self.jumps.items() if j.order == 1 and name in FACTORS}
        total: Expr = S.Zero
        for term in self.theory.observables[0].terms:
            body, limits = (
                (term.expr.function, term.expr.limits) if isinstance(term.expr, Sum) else (term.expr, ())
            )
            factors = Mul.make_args(body)
            moved: Expr = S.Zero
            for i, q in enumerate(factors):
                if isinstance(q, AppliedUndef) and str(q.func) in first:
                    others = [
                        Function(f"{f.func}0")(f.args[0], *sorted(f.args[1:3], key=str))
                        if str(f.func) in FACTORS
                        else f
                        for f in factors[:i] + factors[i + 1 :]
                    ]
                    moved += Mul(Function(f"{q.func}1")(*q.args), *others)
            total += Sum(moved, *limits) if limits and moved != 0 else moved
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
    """Expand in ``|gamma0|`` with a phi that is piecewise linear with its kink at zero.

    The theory is of one hidden layer, or of symbolic depth.  G, the tangent kernel, the error and the loss
    have a term linear in ``|gamma0|``; Phi starts to move at gamma0^2.  These coefficients are found.

    Raises :class:`~derive.errors.NotApplicable` for other functions and theories.

    >>> from derive.theory import mean_field
    >>> from derive.program import mlp
    >>> series = expand_kinks(mean_field(mlp(1, "relu", "flow")))
    >>> print(series.moved(kappa))
    Sum(K_x(beta, kappa)*Integral(Delta0(beta, t_)*r(beta)*sigma(beta, t_), (t_, 0, t)), (beta, 1, P))
    """
    lazy = expand_nonlinear(theory, 0)
    (slot,) = lazy.activation.variables
    phi = lazy.activation.expr
    refused = NotApplicable(f"phi = {phi} is not piecewise linear with a kink at 0")
    try:
        parts = jumps(phi, slot)
    except OtherKind as error:
        raise refused from error
    if not set(parts) <= {(0, 0, -1), (1, 0, -1), (1, 1, -1)} or (1, 1, -1) not in parts:
        raise refused
    even, odd = parts.get((1, 0, -1), S.Zero), parts[1, 1, -1]
    return KinkExpansion(theory, lazy, even + odd, even - odd, parts.get((0, 0, -1), S.Zero))


__all__ = ["Crossing", "Jump", "KinkExpansion", "X", "expand_kinks", "kappa", "r", "sigma"]
