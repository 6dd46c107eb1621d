"""The infinite-depth limit of a residual network, in layer time ``tau = ell/L`` (linear2025 C.1, depth2023
Prop. 4.4).

Each recursion from layer to layer becomes ``d/d tau``: the step is 1/L, and what the recursion adds must be
of that order.  What is smaller vanishes and is listed; what is larger means that the scaling has no limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sympy import (
    Derivative,
    DiracDelta,
    Eq,
    Expr,
    Function,
    Heaviside,
    Integral,
    S,
    Sum,
    Symbol,
    sqrt,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.depth.powers import (
    LeadingTerm,
    at_layer_time,
    layer_time_of,
    leading,
    tau,
    tau_,
)
from derive.errors import NotApplicable
from derive.linear.system import CrossLayer, binding, k, same_place
from derive.program.words import L, ell
from derive.theory.theory import Equation

between = Symbol("tau_1", nonnegative=True)
"""A layer time between the ends of an integral."""


@dataclass(frozen=True)
class Scaling:
    """How symbols depend on the depth, such as ``{beta: beta0/sqrt(L)}``; exponents may be symbols.

    ``{alpha: 1/2 + e, gamma: 1/2 - e}`` with e positive is the line of nontrivial scalings above 1/2.
    """

    values: Mapping[Symbol, Expr] = field(default_factory=dict)

    def __call__(self, e: Expr) -> Expr:
        return sympify(e).subs(dict(self.values))


@dataclass(frozen=True)
class Dropped:
    """A term of the equation of ``lhs`` that vanishes like ``L**order``."""

    lhs: Expr
    expr: Expr
    order: Expr


@dataclass(frozen=True)
class LayerTime:
    """The equations in layer time.

    ``single_site`` are stochastic differential equations with white noise in layer time of covariance
    ``noise``; ``responses`` the differential equations of the answers at ``tau`` to pushes at ``tau_``,
    ``starts`` their values at the end where each begins, ``integrals`` both in one; ``correlations`` and
    ``scalars`` as before.  ``vanishing`` names the responses that are zero in the limit.
    """

    single_site: tuple[Eq, ...]
    noise: tuple[Eq, ...]
    responses: tuple[Eq, ...]
    starts: tuple[Eq, ...]
    integrals: tuple[Eq, ...]
    correlations: tuple[Eq, ...]
    scalars: tuple[Eq, ...]
    dropped: tuple[Dropped, ...]
    vanishing: tuple[str, ...]

    def response(self, name: str) -> Eq:
        """The differential equation of a response.  Raises KeyError if there is none."""
        return _find(self.responses, name)

    def start(self, name: str) -> Eq:
        """The value with which a response begins.  Raises KeyError if there is none."""
        return _find(self.starts, name)

    def integral(self, name: str) -> Eq:
        """A response as an integral equation.  Raises KeyError if there is none."""
        return _find(self.integrals, name)

    def correlation(self, name: str) -> Eq:
        """The equation of a correlation or scalar.  Raises KeyError if there is none."""
        return _find((*self.correlations, *self.scalars), name)

    def field(self, name: str) -> Eq:
        """The single-site equation of a field in the body of the network.  Raises KeyError."""
        return _find([e for e in self.single_site if isinstance(e.lhs, Derivative)], name)


def _find(items: object, name: str) -> Eq:
    for e in items:  # type: ignore[attr-defined]
        if str(_head(e.lhs).func) == name:
            return e
    raise KeyError(f"no equation of {name}; there are {', '.join(str(e.lhs) for e in items)}")  # type: ignore[attr-defined]


def _head(lhs: Expr) -> AppliedUndef:
    return lhs.expr if isinstance(lhs, Derivative) else lhs


def layer_time(cross: CrossLayer, scaling: Scaling | None = None) -> LayerTime:
    """Take L to infinity in a rescaled system (see :mod:`.rescale`), its symbols as ``scaling`` says.

    Raises :class:`NotApplicable` for a term that grows with L, or whose order in L has no known sign.

    >>> from sympy import Symbol
    >>> from derive.theory import mean_field
    >>> from derive.linear.cross_layer import cross_layer
    >>> from derive.depth.rescale import rescale
    >>> from derive.program.networks.isotropic import isotropic
    >>> beta, beta0 = Symbol("beta", positive=True), Symbol("beta0", positive=True)
    >>> cross = rescale(cross_layer(mean_field(isotropic(data="population", branch=beta))), beta)
    >>> limit = layer_time(cross, Scaling({beta: beta0 / sqrt(L)}))
    >>> for x in limit.response("R_hu").rhs.args: print(x)
    DiracDelta(tau - tau_)*KroneckerDelta(s, t)
    Sum(beta0**2*R_gu(tau, tau_, s_, s)*R_hr(tau, tau, t, s_), (s_, s + 1, t))
    Sum(beta0**2*eta*gamma0*C_h(tau, t, s_)*R_gu(tau, tau_, s_, s), (s_, s + 1, t - 1))
    """
    return _LayerTime(cross, scaling or Scaling()).result()


class _LayerTime:
    def __init__(self, cross: CrossLayer, scaling: Scaling) -> None:
        self.cross, self.scaling = cross, scaling
        self.slots = layers_of(cross)
        self.dropped: list[Dropped] = []

    def result(self) -> LayerTime:
        recursions = [e for e in self.cross.responses if neighbour(e) is not None]
        ends = [e for e in self.cross.responses if neighbour(e) is None]
        directions = {str(e.lhs.func): direction(e) for e in recursions}
        rates = [self.rate(e) for e in recursions]
        starts = [Eq(self.at(e.lhs), self.kept(e.lhs, e.rhs), evaluate=False) for e in ends]
        zero = _vanishing(rates, starts)
        clean = _Without(zero)
        rates = [clean(e) for e in rates if str(_head(e.lhs).func) not in zero]
        starts = [clean(e) for e in starts if str(e.lhs.func) not in zero]
        correlations = [
            Eq(self.at(e.lhs), self.kept(e.lhs, e.rhs), evaluate=False) for e in self.cross.correlations
        ]
        scalars = [Eq(self.at(e.lhs), self.kept(e.lhs, e.rhs), evaluate=False) for e in self.cross.scalars]
        return LayerTime(
            single_site=tuple(self.single_site()),
            noise=tuple(self.noise()),
            responses=tuple(rates),
            starts=tuple(starts),
            integrals=tuple(_integrated(rates, starts, directions)),
            correlations=tuple(clean(e) for e in correlations),
            scalars=tuple(clean(e) for e in scalars),
            dropped=tuple(self.dropped),
            vanishing=tuple(sorted(zero)),
        )

    # -- orders ----------------------------------------------------------------------------------------------

    def at(self, e: Expr) -> Expr:
        return at_layer_time(e, self.slots)

    def kept(self, lhs: Expr, rhs: Expr, factor: Expr = S.One) -> Expr:
        """The terms of ``factor * rhs`` of order one; smaller ones are noted."""
        total = S.Zero
        for x in _terms(self.scaling(rhs)):
            term: LeadingTerm = leading(self.at(x) * factor)
            order = self.scaling(term.order).expand().simplify()
            if order == 0:
                total += term.expr
            elif order.is_negative:
                self.dropped.append(Dropped(lhs, term.expr, order))
            elif order.is_positive:
                raise NotApplicable(
                    f"the equation of {lhs} has no limit: {term.expr} grows like L**({order})"
                )
            else:
                raise NotApplicable(f"is L**({order}) large or small?  The equation of {lhs} needs to know")
        return total

    def rate(self, e: Equation) -> Eq:
        """A recursion as a differential equation."""
        found = neighbour(e)
        assert found is not None
        added = [x.expr for x in e.terms if x.expr != found]
        rhs = S.Zero
        for x in added:
            rhs += self.kept(e.lhs, x, L * direction(e))
        return Eq(Derivative(self.at(e.lhs), tau), rhs, evaluate=False)

    # -- single site -----------------------------------------------------------------------------------------

    def single_site(self) -> list[Eq]:
        theory = self.cross.theory
        families, singles = self.sources()
        put = _Put(self.cross)
        found = []
        for e in theory.equations:
            terms = [_sources_named(put(x.expr), families, singles) for x in e.terms]
            neighbour = next((x.expr for x in e.terms if _is_neighbour(x.expr, e.lhs)), None)
            if neighbour is None:
                rhs = self.kept(e.lhs, sum(terms, S.Zero))
                found.append(Eq(self.at(e.lhs), rhs, evaluate=False))
                continue
            direction = e.lhs.args[0] - neighbour.args[0]
            rhs = S.Zero
            for x in terms:
                if x != neighbour:
                    rhs += self.kept(e.lhs, x, L * direction)
            found.append(Eq(Derivative(self.at(e.lhs), tau), rhs, evaluate=False))
        return found

    def noise(self) -> list[Eq]:
        put, (families, singles) = _Put(self.cross), self.sources()
        found = []
        for u in self.cross.theory.sources:
            name = str(u.symbol.func)
            if name in families and any(r.index == ell for r in u.ranges):
                a, b = u.symbol, u.partner
                times = Function(name)(tau, *a.args[1:]) * Function(name)(tau_, *b.args[1:])
                value = DiracDelta(tau - tau_) * self.at(put(sympify(u.covariance)))
            else:
                a, b = (_sources_named(x, families, singles) for x in (u.symbol, u.partner))
                times, value = a * b, self.at(put(sympify(u.covariance)))
            found.append(Eq(Average(times), value, evaluate=False))
        return found

    def sources(self) -> tuple[set[str], dict[str, list[Expr]]]:
        """Families of sources, and the layers of members that stand apart."""
        families = {p.name for p in self.cross.pushes if p.layers is not None}
        singles: dict[str, list[Expr]] = {n: [] for n in families}
        for u in self.cross.theory.sources:
            name = str(u.symbol.func)
            if name in families and not any(r.index == ell for r in u.ranges):
                singles[name].append(u.symbol.args[0])
        return families, singles


class _Put:
    """The theory's own functions as those of the rescaled system."""

    def __init__(self, cross: CrossLayer) -> None:
        # single members first: the family's own rule would take them too
        rules = sorted(cross.diagonal, key=lambda e: bool(e.lhs.args and e.lhs.args[0].has(ell)))
        self.rules = [(e.lhs, e.rhs) for e in rules]

    def __call__(self, e: Expr) -> Expr:

        for lhs, rhs in self.rules:
            e = e.replace(
                lambda x, lhs=lhs: same_place(x, lhs),
                lambda x, lhs=lhs, rhs=rhs: rhs.xreplace(binding(lhs, x)),
            )
        return e


class _Without:
    """Expressions without the functions that vanish."""

    def __init__(self, zero: set[str]) -> None:
        self.zero = zero

    def __call__(self, e: Eq) -> Eq:
        rhs = e.rhs.replace(
            lambda x: isinstance(x, AppliedUndef) and str(x.func) in self.zero, lambda _: S.Zero
        )
        rhs = rhs.replace(lambda x: isinstance(x, Sum | Integral) and x.function == 0, lambda _: S.Zero)
        return Eq(e.lhs, rhs, evaluate=False)


def layers_of(cross: CrossLayer) -> dict[str, int]:
    """How many layers each function carries, as its first arguments."""
    found: dict[str, int] = {}
    for e in cross.responses:
        one = any(x.lhs.args and x.lhs.args[0].has(ell) for x in cross.responses if x.lhs.func == e.lhs.func)
        two = len(e.lhs.args) > 1 and e.lhs.args[1] == k
        found[str(e.lhs.func)] = max(found.get(str(e.lhs.func), 0), 1 + two if one else 0)
    for q in (*cross.correlations, *cross.fields):
        found.setdefault(str(q.lhs.func), int(bool(q.lhs.args) and q.lhs.args[0].has(ell)))
    for p in cross.pushes:
        found.setdefault(p.name, int(p.layers is not None))
    for q in cross.theory.order_parameters:
        found.setdefault(str(q.symbol.func), int(bool(q.symbol.args) and q.symbol.args[0].has(ell)))
    return found


def _is_neighbour(x: Expr, lhs: Expr) -> bool:
    if not (isinstance(x, AppliedUndef) and x.func == lhs.func and x.args[1:] == lhs.args[1:]):
        return False
    return x.args[0].has(ell) and (lhs.args[0] - x.args[0]) in (1, -1)


def neighbour(e: Equation) -> Expr | None:
    """The member of the same response at the next layer, from which a recursion goes on."""
    return next((x.expr for x in e.terms if _is_neighbour(x.expr, e.lhs)), None)


def direction(e: Equation) -> Expr:
    """1 for a recursion upwards, -1 for one downwards."""
    found = neighbour(e)
    assert found is not None
    return e.lhs.args[0] - found.args[0]


def _sources_named(e: Expr, families: set[str], singles: dict[str, list[Expr]]) -> Expr:
    """``u(1, t)`` by a name of its own; others as white noise, ``u(ell, t) = u(tau, t)/sqrt(L)``."""

    def put(x: AppliedUndef) -> Expr:
        if x.args[0] in singles[str(x.func)]:
            return Function(f"{x.func}_{x.args[0]}")(*x.args[1:])
        return x / sqrt(L)

    return e.replace(lambda x: isinstance(x, AppliedUndef) and str(x.func) in families, put)


def _terms(e: Expr) -> list[Expr]:
    return list(e.args) if e.is_Add else [e]


def _vanishing(rates: list[Eq], starts: list[Eq]) -> set[str]:
    """Responses that nothing starts: every term of their equations contains another of them."""
    zero = {str(_head(e.lhs).func) for e in (*rates, *starts)}
    while True:
        alive = {
            str(_head(e.lhs).func)
            for e in (*rates, *starts)
            for x in _terms(e.rhs)
            if x != 0 and not any(str(a.func) in zero for a in x.atoms(AppliedUndef))
        }
        if not alive & zero:
            return zero
        zero -= alive


def _integrated(rates: list[Eq], starts: list[Eq], directions: dict[str, Expr]) -> list[Eq]:
    """Start plus integral; a delta in layer time becomes a step."""
    found = []
    at_start = {str(e.lhs.func): e.rhs for e in starts if e.lhs.args and not e.lhs.args[0].has(tau)}
    for e in rates:
        name, up = str(_head(e.lhs).func), directions[str(_head(e.lhs).func)] == 1
        total = at_start.get(name, S.Zero)
        rest = S.Zero
        for x in _terms(e.rhs):
            if x.has(DiracDelta):
                step = Heaviside(tau - tau_) if up else Heaviside(tau_ - tau)
                x = x.replace(lambda y: isinstance(y, DiracDelta), lambda _, step=step: step)
                total += x if up else -x
            else:
                rest += x
        inside = (rest if up else -rest).xreplace({tau: between})
        if inside != 0:
            limits = (between, S.Zero, tau) if up else (between, tau, S.One)
            total += Integral(inside, limits)
        found.append(Eq(_head(e.lhs), total, evaluate=False))
    found += [e for e in starts if str(e.lhs.func) not in directions]
    return found


__all__ = ["Dropped", "LayerTime", "Scaling", "layer_time", "layer_time_of", "layers_of"]
