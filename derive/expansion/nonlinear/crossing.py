"""The units within gamma0 of the kink: their path, and what they change in an average.

A unit with ``u_kappa = |gamma0| x`` moves during training by as much as it is away.  There are
``|gamma0| dx <delta(u_kappa) ...>`` of them; each changes its slope, which is of order one, and its feature,
which is of order gamma0.  Their path ``|gamma0| X(t)`` obeys the theory's own equation of h at leading order,
and what they change is an average minus its regular continuation, with every slope as at the start.

Where the source u moves, by ``|gamma0| xi(t)``, it takes units across too.  What it does alone is in the bulk
(Price's theorem), and is subtracted.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
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
    Lambda,
    Ne,
    Piecewise,
    S,
    Symbol,
    integrate,
)
from sympy.core.function import AppliedUndef

from derive.calculus.jumps import conditioned
from derive.expansion.nonlinear.expansion import NonlinearExpansion
from derive.expansion.nonlinear.laws import OUTPUT
from derive.expansion.nonlinear.straight import RESTS
from derive.program.words import alpha, mu, s, t

kappa = Symbol("kappa", integer=True, positive=True)
"""The sample whose field is at the kink."""
x = Symbol("x", real=True)
"""Where the unit starts: ``u_kappa / |gamma0|``."""

sigma, X, V, r, u, phi, Z, xi = (Function(n) for n in ("sigma", "X", "V", "r", "u", "phi", "Z", "xi"))
Xbar, Vbar = Function("Xbar"), Function("Vbar")
rho, upsilon = Function("rho"), Function("upsilon")
"""``G^-1 r`` and ``Phi^-1 u``, by Stein's lemma the response to a push of r, or u, that lasts."""
turned = Function("turned")
"""``d sigma(kappa, t) / d u(kappa, s)``, in units of gamma0."""

FACTORS = {"Phi": ("phi", "phi"), "G": ("g", "g"), OUTPUT: ("phi", "z")}
"""The fields that an order parameter averages; f, of one sample and time, is divided by gamma0."""
RESPONSES = {"A": ("phi", "rho"), "B": ("g", "upsilon")}
"""The same for responses, summed over the times of the push, and divided by gamma0."""
Cases = dict[tuple[bool, ...], Expr]


@dataclass(frozen=True)
class Jump:
    """What the unit changes in an average, at its first order in ``|gamma0|``, before the integral over x.

    ``cases`` say which of the observed samples are kappa: for ``(mu, alpha)``, or ``(mu,)`` for f.  A case
    that is not there changes nothing at this order.  ``after`` is added after the integral: minus what the
    source alone has changed.
    """

    name: str
    order: int
    cases: Cases
    after: Cases = field(default_factory=dict)


@dataclass(frozen=True)
class Crossing:
    """The unit at the kink of ``kappa`` in one layer.

    ``above`` and ``below`` are the slopes at both sides, ``value`` is phi(0), ``lazy`` the expansion at
    order 0.
    """

    lazy: NonlinearExpansion
    above: Expr
    below: Expr
    value: Expr

    def moved(self, sample: Expr, followed: bool = True) -> Expr:
        """``[h - u]_1`` of one sample, with the slopes of the unit in it: read off the equation of h."""
        own = Function("sigma")

        def slope(e: Expr) -> Expr:
            _, beta, time = e.expr.args[0].args
            return own(beta, time) if followed else own(beta)

        e = self.generic.field("h", 1)
        e = e.replace(lambda q: isinstance(q, Derivative), slope)
        e = e.replace(
            lambda q: isinstance(q, AppliedUndef) and str(q.func) == "r" and len(q.args) == 3,
            lambda q: r(q.args[1]),
        )
        return e.subs(mu, sample)

    @cached_property
    def generic(self) -> NonlinearExpansion:
        """The expansion at order 0 with phi kept a symbol."""
        (slot,) = self.lazy.activation.variables
        return replace(self.lazy, site=replace(self.lazy.site, activation=Lambda(slot, phi(slot))))

    @property
    def drifts(self) -> bool:
        """Does the source u move?"""
        return not self.lazy.site.u.given

    @property
    def drift(self) -> Expr:
        """``<xi(t) xi(s)>``: what u has moved since the start, from its covariance at order two."""
        if not self.drifts:
            return S.Zero
        source = self.lazy.site.u
        at = (self.lazy.site.layer + source.shift, kappa, kappa)

        def known(a: Expr, b: Expr) -> Expr:
            return Function(f"{source.name}2")(*at, a, b)

        return known(t, s) - known(t, S.Zero) - known(S.Zero, s) + known(S.Zero, S.Zero)

    @property
    def equations(self) -> tuple[Eq, ...]:
        """The unit's own equations, at leading order in gamma0."""
        z = Dummy("z", real=True)
        side = Piecewise((self.above, z > 0), (self.below, True))
        rest = u(mu)
        slope = Piecewise((side.subs(z, rest), Ne(mu, kappa)), (side.subs(z, X(t)), True))
        start = Piecewise((side.subs(z, rest), Ne(mu, kappa)), (side.subs(z, x), True))
        source = x + xi(t) if self.drifts else x
        return (
            Eq(X(t), source + self.moved(kappa), evaluate=False),
            Eq(sigma(mu, t), slope, evaluate=False),
            Eq(V(mu, t), self.moved(mu), evaluate=False),
            Eq(Xbar(t), source + self.moved(kappa, False), evaluate=False),
            Eq(sigma(mu), start, evaluate=False),
            Eq(Vbar(mu, t), self.moved(mu, False), evaluate=False),
        )

    @cached_property
    def density(self) -> Expr:
        """``<delta(u_kappa)>``: units at the kink, for each unit of x and of gamma0."""
        slot, source = Dummy("u", real=True), self.lazy.site.u
        if source.given:
            variance = Function(source.name)(kappa, kappa)
        else:
            variance = Function(f"{source.name}0")(self.lazy.site.layer + source.shift, kappa, kappa)
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
        fields = {"phi": feature, "z": source, "g": (slope * source[0], slope * source[1])}
        return fields | {q.name: (q(sample), S.Zero) for q in (rho, upsilon)}

    @cached_property
    def excess(self) -> Expr:
        """What the source alone changes in ``phi(h_kappa)``, over all x: between -xi and 0 slopes differ."""
        if not self.drifts:
            return S.Zero
        return integrate((self.above - self.below) * (x + xi(t)), (x, -xi(t), 0))

    @cached_property
    def jumps(self) -> dict[str, Jump]:
        """What the unit changes in Phi, G and f; in A and B too, where there are any."""
        names = FACTORS | (RESPONSES if self.drifts else {})
        return {name: self.jump(name, *fields) for name, fields in names.items()}

    @cached_property
    def turning(self) -> Jump:
        """B at order -1: a push of u at one time turns slopes later on."""
        return Jump("B", RESTS, {(True, True): turned(kappa, t, s) * r(kappa)})

    def jump(self, name: str, one: str, two: str) -> Jump:
        """The first order at which the product of two fields changes."""
        single = name == OUTPUT
        divided = single or name in RESPONSES
        for n in (0, 1):
            cases = {}
            for own in product((True, False), repeat=1 if single else 2):
                change: Expr = S.Zero
                for followed, number in ((True, 1), (False, -1)):
                    a, b = self._pair(own, single, one, two, followed)
                    change += number * Add(*[a[k] * b[n - k] for k in range(n + 1)])
                if change.expand() != 0:
                    cases[own] = change.expand()
            if cases:
                after = self._after(cases) if n and name == "Phi" else {}
                return Jump(name, n + 1 - divided, cases, after)
        return Jump(name, 3, {})

    def _pair(
        self, own: tuple[bool, ...], single: bool, one: str, two: str, followed: bool
    ) -> tuple[tuple[Expr, Expr], tuple[Expr, Expr]]:
        a = self.fields(own[0], mu, t, followed)[one]
        other = (mu, t) if single else (alpha, s)
        return a, self.fields(own[-1], *other, followed)[two]

    def _after(self, cases: Cases) -> Cases:
        """Minus what the source alone changes: of even order in r, Phi has such a part only."""
        found = {}
        for own in cases:
            a, b = self._pair(own, False, "phi", "phi", False)
            parts = [
                self.excess * b[0] if own[0] else S.Zero,
                a[0] * self.excess.subs(t, s) if own[1] else S.Zero,
            ]
            if (total := Add(*parts)) != 0:
                found[own] = -total
        return found


__all__ = ["FACTORS", "Crossing", "Jump", "kappa"]
