"""One hidden layer as a Markov process at each unit, and the equation of its joint density (eq. E.2, K.3).

When the inputs are fixed and weights forget exponentially, the integral equations of a unit are stochastic
differential equations: memory kernels and source covariances say at which rate a field relaxes, which noise
it meets and which drift the updates give it.  The density of all units then obeys a continuity equation, or
with noise a Fokker-Planck equation, and averages obey Ito's rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

from sympy import Add, Derivative, Eq, Expr, Function, S, Sum, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.calculus.functional import functional_derivative
from derive.calculus.sums import all_apart, drawn_out, placed
from derive.calculus.symbols import IndexRange, P, t
from derive.errors import NotApplicable
from derive.linear.projection import tidy_sums
from derive.reduce.memoryless import motions
from derive.show.latex import aligned_latex
from derive.theory import Equation, Theory
from derive.theory.names import primed


@dataclass(frozen=True)
class Flow:
    """``dx = velocity dt + noise``, with ``<noise noise> = diffusion dt``, for one kind of field.

    ``field`` is written at the time t, without an index on which nothing depends; ``diffusion`` is the
    covariance rate with ``partner``, ``start`` the covariance at time 0 with it.
    """

    field: AppliedUndef
    velocity: Expr
    partner: AppliedUndef
    diffusion: Expr
    start: Expr
    ranges: tuple[IndexRange, ...]

    @property
    def eq(self) -> Eq:
        """The drift as a SymPy equation."""
        return Eq(Derivative(self.field, t), self.velocity, evaluate=False)


@dataclass(frozen=True)
class SingleSite:
    """The stochastic process of one unit of a hidden layer, ``flows`` for its independent fields.

    ``definitions`` gives the others, such as ``g = phi'(h) z``, in terms of them.
    """

    theory: Theory
    flows: tuple[Flow, ...]
    definitions: dict[Expr, Expr]

    def flow(self, name: str) -> Flow:
        """The flow of the field called ``name``.  Raises KeyError if there is none."""
        for x in self.flows:
            if str(x.field.func) == name:
                return x
        raise KeyError(f"no flow of {name}; there are {', '.join(str(x.field) for x in self.flows)}")

    def moment_rate(self, body: Expr) -> Expr:
        """``d<body>/dt`` by Ito's rule, for a ``body`` made of fields at the time t.

        >>> from derive.theory import mean_field
        >>> from derive.program import alpha, mlp, mu
        >>> h = Function("h")
        >>> site = single_site(mean_field(mlp(1, rule="flow")))
        >>> print(site.moment_rate(h(1, mu, t) * h(1, alpha, t)))
        gamma0*<g(1, t)*h(1, alpha, t)>*Sum(Delta(alpha_, t)*K_x(mu, alpha_), (alpha_, 1, P)) + ...
        """
        body = self.unfolded(body)
        moving = {str(x.field.func): x for x in self.flows}
        atoms = sorted((a for a in body.atoms(AppliedUndef) if str(a.func) in moving), key=str)
        total = S.Zero
        for a in atoms:
            x = moving[str(a.func)]
            velocity = all_apart(self.unfolded(x.velocity), body.free_symbols)
            total += body.diff(a) * placed(velocity, x.field, a)
        for a in atoms:
            for b in atoms:
                if a.func != b.func:
                    continue
                x = moving[str(a.func)]
                names = _names(x.field, a) | _names(x.partner, b)
                total += body.diff(a, b) * x.diffusion.xreplace(names) / 2
        random = frozenset(moving)
        return tidy_sums(Average(_apart(total)).linear(random)) if total != 0 else S.Zero

    def unfolded(self, body: Expr) -> Expr:
        """``body`` in terms of the independent fields."""
        flows = {str(x.field.func): x.field for x in self.flows}
        body = body.replace(
            lambda x: isinstance(x, AppliedUndef) and str(x.func) in flows,
            lambda x: _fewer(x, flows[str(x.func)]),
        )
        for lhs, rhs in self.definitions.items():
            for a in [a for a in body.atoms(AppliedUndef) if a.func == lhs.func]:
                body = body.xreplace({a: placed(rhs, lhs, a)})
        return body

    # -- the density -----------------------------------------------------------------------------------------

    def drift_pde(self, samples: int | None = None) -> Eq:
        """The equation of the joint density ``p`` of the fields of a unit, one coordinate for each sample.

        With an integer number of ``samples`` it is an ordinary SymPy equation for ``p(h1, .., hP, z, t)``.
        Without one, P stays a symbol: the coordinate ``h(mu)`` stands for all of them in ``p(h(mu), z, t)``,
        and derivatives are summed over samples.

        >>> from derive.theory import mean_field
        >>> from derive.program import mlp
        >>> print(single_site(mean_field(mlp(1, rule="flow"))).drift_pde(1).rhs)
        -g*gamma0*Delta(1, t)*K_x(1, 1)*Derivative(p(h1, g, t), h1) - gamma0*h1*Delta(1, t)*Derivative(p(h1,
        g, t), g)
        """
        return _density(self, samples)

    def compression(self) -> Expr:
        """Minus the divergence of the velocity: how fast the density grows along a path."""
        total = S.Zero
        for x in self.flows:
            point = _coordinate(x.field)
            slope = (
                functional_derivative(_in_coordinates(self, x.velocity), point, x.ranges)
                if isinstance(point, AppliedUndef)
                else _in_coordinates(self, x.velocity).diff(point)
            )
            total -= Sum(slope, *[r.limits for r in x.ranges]).doit() if x.ranges else slope
        return sympify(total)

    def _repr_latex_(self) -> str:
        return aligned_latex((x.eq for x in self.flows), self.theory)


def single_site(theory: Theory) -> SingleSite:
    """The stochastic differential equations of one hidden layer under gradient flow.

    Weights may decay and diffuse.  Raises :class:`NotApplicable` for counted steps, for memory that is not
    exponential (momentum), and for deeper networks, whose sources change with the fields.

    >>> from derive.theory import mean_field
    >>> from derive.program import mlp
    >>> lam, T = Symbol("lam", positive=True), Symbol("T", positive=True)
    >>> site = single_site(mean_field(mlp(1, rule="flow", weight_decay=lam, temperature=T)))
    >>> print(site.flow("g").velocity, "|", site.flow("g").diffusion)
    gamma0*Sum(Delta(alpha, t)*h(1, alpha, t), (alpha, 1, P)) - lam*g(1, t) | 2*T
    """
    whole = every_index(theory)
    idle = {str(x.field.func): _idle(x) for x in whole.flows}

    def pruned(e: Expr) -> Expr:
        return e.replace(
            lambda x: isinstance(x, AppliedUndef) and bool(idle.get(str(x.func))),
            lambda x: x.func(*[y for k, y in enumerate(x.args) if k not in idle[str(x.func)]]),
        )

    flows = []
    for x in whole.flows:
        field, velocity, partner = (pruned(e) for e in (x.field, x.velocity, x.partner))
        ranges = tuple(r for r in x.ranges if field.has(r.index))
        flows.append(replace(x, field=field, velocity=velocity, partner=partner, ranges=ranges))
    return SingleSite(theory, tuple(flows), {k: pruned(v) for k, v in whole.definitions.items()})


def every_index(theory: Theory) -> SingleSite:
    """The same with all indices that the fields of the theory have, needed or not."""
    if theory.program.rule.discrete:
        raise NotApplicable("differential equations need gradient flow: the theory counts steps")
    flows = []
    for x in motions(theory):
        velocity = drawn_out(x.gain, lambda y: not y.atoms(AppliedUndef)) - x.rate * x.field
        flows.append(Flow(x.field, velocity, x.partner, x.diffusion, x.start, x.ranges))
    only = (e for e in theory.equations if all(x.kind == "definition" for x in e.terms))
    return SingleSite(theory, tuple(flows), {_unlayered(e.lhs, e): _unlayered(e.rhs, e) for e in only})


def _idle(x: Flow) -> tuple[int, ...]:
    """Places of indices of a field that neither its velocity nor its covariances depend on."""
    used = (x.velocity.subs(x.field, 0) + x.start + x.diffusion).free_symbols
    pairs = enumerate(zip(x.field.args, x.partner.args, strict=True))
    return tuple(k for k, (a, b) in pairs if a != b and a.is_Symbol and not {a, b} & used)


# -- writing it down -----------------------------------------------------------------------------------------


def _names(lhs: Expr, atom: Expr) -> dict[Expr, Expr]:
    return {a: b for a, b in zip(lhs.args, atom.args, strict=True) if a != b}


def _fewer(x: AppliedUndef, field: AppliedUndef) -> AppliedUndef:
    """A field as it is called elsewhere, without the index that it does not need."""
    if len(x.args) == len(field.args):
        return x
    return x.func(x.args[0], *x.args[-(len(field.args) - 1) :])


def _unlayered(e: Expr, equation: Equation) -> Expr:
    """The one layer by its number."""
    found = {r.index: r.lower for r in equation.ranges if r.lower == r.upper}
    return e.xreplace(found)


def _apart(e: Expr) -> Expr:
    """Sums apart from the factors before them, so that an average sees them."""
    return Add(*[drawn_out(x, lambda y: not y.atoms(AppliedUndef)) for x in Add.make_args(e.expand())])


def _coordinate(field: Expr) -> Expr:
    """``h(mu)`` or ``z`` for a field: without layer and time."""
    kept = [x for x in field.args if x != t and not sympify(x).is_Integer]
    return Function(str(field.func))(*kept) if kept else Symbol(str(field.func), real=True)


def _in_coordinates(site: SingleSite, e: Expr) -> Expr:
    names = {str(x.field.func) for x in site.flows}
    opened = site.unfolded(e)
    return opened.xreplace({a: _coordinate(a) for a in opened.atoms(AppliedUndef) if str(a.func) in names})


def _density(site: SingleSite, samples: int | None) -> Eq:
    if samples is not None:
        return _explicit(site, samples)
    points = [_coordinate(x.field) for x in site.flows]
    p = Function("p")(*points, t)
    total = p * site.compression()
    for x, point in zip(site.flows, points, strict=True):
        limits = [r.limits for r in x.ranges]
        moved = _in_coordinates(site, x.velocity) * Derivative(p, point)
        total -= Sum(moved, *limits) if limits else moved
        other = _coordinate(x.partner)
        spread = x.diffusion / 2 * Derivative(p, point, other)
        both = limits + [(primed(r.index), r.lower, r.upper) for r in x.ranges]
        total += (Sum(spread, *both) if both else spread) if x.diffusion != 0 else S.Zero
    return Eq(Derivative(p, t), total, evaluate=False)


def _explicit(site: SingleSite, samples: int) -> Eq:
    """The same for a number of samples, as a continuity equation that SymPy's ``diff`` expands."""
    kinds = {str(x.field.func) for x in site.flows}

    def spelled(e: Expr, at: Mapping[Expr, Expr]) -> Expr:
        e = e.subs(P, samples).doit().xreplace(dict(at))
        return e.xreplace({a: _spelled(a) for a in e.atoms(AppliedUndef) if str(a.func) in kinds})

    coordinates: list[tuple[Flow, dict[Expr, Expr], Symbol]] = []
    for x in site.flows:
        uppers = [r.upper.subs(P, samples) for r in x.ranges]
        if not all(n.is_Integer for n in uppers):
            raise NotApplicable(f"the indices of {x.field} run to {uppers}: give the program numbers")
        for at in product(*[range(int(r.lower), int(n) + 1) for r, n in zip(x.ranges, uppers, strict=True)]):
            names = {r.index: sympify(k) for r, k in zip(x.ranges, at, strict=True)}
            coordinates.append((x, names, _spelled(x.field.xreplace(names))))
    p = Function("p")(*[q for *_, q in coordinates], t)
    total = S.Zero
    for x, here, q in coordinates:
        total -= (spelled(site.unfolded(x.velocity), here) * p).diff(q)
        other = _names(x.field, x.partner)
        for y, there, r in coordinates:
            if y is x and x.diffusion != 0:
                names = {**here, **{other[k]: v for k, v in there.items()}}
                total += (x.diffusion.xreplace(names) / 2 * p).diff(q, r)
    return Eq(Derivative(p, t), total.expand(), evaluate=False)


def _spelled(a: AppliedUndef) -> Symbol:
    """``h1`` for ``h(1, 1, t)``, ``z`` for ``z(1, t)``."""
    indices = [x for x in a.args[1:] if x != t]
    return Symbol(str(a.func) + "_".join(str(x) for x in indices), real=True)


__all__ = ["Flow", "SingleSite", "single_site"]
