"""Propagators of a linear theory: responses of its fields to perturbations of sources or equations.

*Across layers* (:func:`cross_layer`): on a residual stream all layers belong to the same units, so that the
single-site process couples them, and the responses ``<d h(ell, t) / d r(ell, s)>`` of a theory are not
closed. Derivatives of each single-site equation with respect to each Gaussian source are recursions for all
``d h(ell, t) / d u(k, s)``. Fields are these responses times the sources; correlations follow from the
covariances of the sources (linear2025 (73)-(82)).

*Within a population* (:func:`transfer`): a unit perturbation of the equation of x at time s, followed through
all equations of the population, gives ``H_y_x(t, s)`` for each field y. For online descent this is eq. 81 and
111 of linear2025; the propagators R_vr and R_vu of eq. 13 are ``-H_v_v`` and ``H_v_h0``.

Both differentiate the linear form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TypeVar

from sympy import DiracDelta, Eq, Expr, Function, Integral, KroneckerDelta, Mul, S, Sum, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response, delta
from derive.calculus.sums import (
    binding,
    factors,
    is_at,
    placed,
    rename_all_bound,
    rewritten,
    unused,
    without_empty,
)
from derive.calculus.symbols import IndexRange, converted, ell, primed, s, t
from derive.errors import NotApplicable
from derive.linear.form import LinearTerm, Row, linear_form
from derive.linear.operators import Kernel, T, matrix, operator, size, solve_for
from derive.program.naming import free_name
from derive.show.latex import aligned_latex
from derive.show.summary import Summarised
from derive.theory import Equation, OrderParameter, Source, Term, Theory

EquationLike = TypeVar("EquationLike", Eq, Equation)

k = Symbol("k", integer=True)
"""The layer of a perturbed source."""


@dataclass(frozen=True)
class PerturbedSource:
    """Gaussian source whose perturbation is followed.

    ``symbol`` is the source at layer k (or at its only layer), at primed indices, and at time s (or at time 0
    if it is constant). ``ranges`` are those of the primed indices. ``layered`` says whether the source has a
    layer. ``layers`` is the whole range of k, ``family`` the part of it in which the source has an equation
    with a symbolic layer, and ``singles`` are the other layers; ``layers`` and ``family`` are None without a
    symbolic layer. ``constant`` means that the source is one number for all times, so that its perturbation
    has no time.
    """

    name: str
    symbol: AppliedUndef
    layers: IndexRange | None
    ranges: tuple[IndexRange, ...]
    constant: bool
    layered: bool
    family: IndexRange | None = None
    singles: tuple[Expr, ...] = ()


@dataclass(frozen=True, repr=False)
class CrossLayer(Summarised):
    """Closed recursions over layers for the responses of a linear theory to its Gaussian sources.

    ``R_hu(ell, k, t, s) = d h(ell, t) / d u(k, s)`` is the response of the field h to the source u. Its
    arguments are the layer ell of the field, the layer k of the source, the other indices of the field and of
    the source, and the two times. A layer is left out for a field without layers and for a source without
    layers or of a single layer, and the second time is left out for a constant source.

    Parameters
    ----------
    theory : Theory
        The linear theory.
    perturbed_sources : tuple of PerturbedSource
        The perturbed sources.
    responses : tuple of Equation
        The equations of the responses ``R_hu``. A response that is a constant (mostly 0) is left out, and its
        value is inserted in the other equations, unless the left-hand side of an equation in ``diagonal`` has
        the same name.
    diagonal : tuple of Eq
        The responses of the theory, averages within one layer, in terms of ``R_hu`` at equal layers.
    fields : tuple of Eq
        The fields in terms of the sources.
    correlations, scalars : tuple of Eq
        The averages in terms of ``R_hu`` and the covariances of the sources.
    """

    theory: Theory
    perturbed_sources: tuple[PerturbedSource, ...]
    responses: tuple[Equation, ...]
    diagonal: tuple[Eq, ...]
    fields: tuple[Eq, ...]
    correlations: tuple[Eq, ...]
    scalars: tuple[Eq, ...]

    def response(self, name: str, site: Expr | int | None = None) -> Equation:
        """Return the equation of a response, by default the first one with this name.

        Parameters
        ----------
        name : str
            The name, such as ``R_hu``.
        site : Expr or int, optional
            The layer of the field on the left-hand side, such as 1 or ``ell + 1``, written as in the
            equation.

        Returns
        -------
        Equation
            The equation.

        Raises
        ------
        KeyError
            If there is no equation of such a response, or none at this layer.
        """
        first = find(self.responses, name, "response")
        if site is None:
            return first
        owners = {
            f"R_{f.lhs.func}{p.name}": str(f.lhs.func) for f in self.fields for p in self.perturbed_sources
        }
        field = self.theory.program.field_of(owners.get(name, ""))
        if field is not None and not field.layered:
            raise KeyError(f"site = {site}: {field.name} has no layers: leave site out")
        each = [e for e in self.responses if str(e.lhs.func) == name]
        found = next((e for e in each if e.lhs.args[0] == converted(site)), None)
        if found is None:
            layers = ", ".join(dict.fromkeys(str(e.lhs.args[0]) for e in each))
            raise KeyError(
                f"site = {site}: {name} has no equation at this layer; it has equations at {layers}"
            )
        return found

    def correlation(self, name: str) -> Eq:
        """Return the equation of a correlation function or scalar, in terms of the responses ``R_hu``.

        Parameters
        ----------
        name : str
            The name.

        Returns
        -------
        Eq
            The equation.

        Raises
        ------
        KeyError
            If no correlation function or scalar has this name.
        """
        return find((*self.correlations, *self.scalars), name, "correlation")

    def field(self, name: str) -> Eq:
        """Return a field in terms of the sources.

        Parameters
        ----------
        name : str
            The name of the field.

        Returns
        -------
        Eq
            The equation.

        Raises
        ------
        KeyError
            If there is no such field.
        """
        return find(self.fields, name, "field")

    def map(self, fun: Callable[[Expr], Expr]) -> CrossLayer:
        """Return the system with a function applied to every right-hand side.

        In the equations of responses ``R_hu`` the function is applied to each term of the sum.

        Parameters
        ----------
        fun : callable
            A function of an expression.

        Returns
        -------
        CrossLayer
            The changed system.
        """

        def eqs(items: tuple[Eq, ...]) -> tuple[Eq, ...]:
            """Return equations with ``fun`` applied to their right-hand sides."""
            return tuple(Eq(e.lhs, fun(e.rhs), evaluate=False) for e in items)

        return replace(
            self,
            responses=tuple(replace(e, terms=tuple(x.rewrite(fun) for x in e.terms)) for e in self.responses),
            diagonal=eqs(self.diagonal),
            fields=eqs(self.fields),
            correlations=eqs(self.correlations),
            scalars=eqs(self.scalars),
        )

    def _repr_latex_(self) -> str:
        responses = [x.eq for x in self.responses]
        return aligned_latex((*responses, *self.fields, *self.correlations, *self.scalars), self.theory)

    def closed(self) -> CrossLayer:
        """Return the system with each response of the theory replaced by a response between layers, ``R_hu``.

        A response of the theory, an average within one layer, is the value of R_hu at equal layers.
        Afterwards the equations contain no other responses; ``diagonal`` is unchanged.

        Returns
        -------
        CrossLayer
            The closed system.
        """
        return replace(self.map(self.own), diagonal=self.diagonal)

    def own(self, e: Expr) -> Expr:
        """Return an expression with responses of the theory replaced by the ``R_hu`` between layers.

        A response of the theory, an average within one layer, is a value of R_hu at equal layers. Equations
        for a single layer are applied before those for a family of layers.

        Parameters
        ----------
        e : Expr
            The expression.

        Returns
        -------
        Expr
            The changed expression.
        """
        for d in sorted(self.diagonal, key=lambda d: bool(d.lhs.args and d.lhs.args[0].has(ell))):
            e = e.replace(lambda x, d=d: is_at(x, d.lhs), lambda x, d=d: d.rhs.xreplace(binding(d.lhs, x)))
        return e


def find(equations: Iterable[EquationLike], name: str, kind: str = "equation") -> EquationLike:
    """Return the equation of the function ``name``, or of its derivative; raise KeyError without an equation.

    ``kind`` is the kind of equation, for the message.
    """
    for e in equations:
        if str(getattr(e.lhs, "expr", e.lhs).func) == name:
            return e
    raise KeyError(f"there is no {kind} {name}; there are {', '.join(str(e.lhs) for e in equations)}")


def _without_trivial(system: CrossLayer) -> CrossLayer:
    """Remove responses that are constants (mostly 0) from the recursions, and insert their values.

    A constant response is kept if an equation in ``diagonal`` has a left-hand side of the same name.
    """
    while True:
        names = {str(e.lhs.func) for e in system.responses}
        values: dict[str, Expr] = {}
        for name in names:
            each = {e.rhs for e in system.responses if str(e.lhs.func) == name}
            if len(each) == 1 and not (value := each.pop()).free_symbols and not value.atoms(AppliedUndef):
                values[name] = value
        values = {n: v for n, v in values.items() if not any(str(e.lhs.func) == n for e in system.diagonal)}
        if not values:
            return system

        def put(e: Expr, values: dict[str, Expr] = values) -> Expr:
            """Return an expression with ``values`` in place of the constant responses of these names."""
            return without_empty(rewritten(e, values, lambda x: values[str(x.func)]))

        kept = tuple(e for e in system.responses if str(e.lhs.func) not in values)
        system = replace(system, responses=kept).map(put)
        left = ((e, tuple(y for y in e.terms if y.expr != 0)) for e in system.responses)
        system = replace(
            system,
            responses=tuple(replace(e, terms=nonzero_terms or e.terms[:1]) for e, nonzero_terms in left),
        )


# -- differentiating the equations ---------------------------------------------------------------------------

t_1, s_1 = (Symbol(n, **t.assumptions0) for n in ("t_1", "s_1"))
"""Earlier times at which the sources of a correlation act."""


def cross_layer(theory: Theory) -> CrossLayer:
    """Differentiate the single-site equations of a linear theory with respect to all of its sources.

    Sums over time begin where causality lets them: at the time of the perturbation, or one step later if the
    field does not respond within the step. In a flow they are integrals.

    Parameters
    ----------
    theory : Theory
        A linear theory whose equations give the fields, not their rates of change, of a network without an
        index of steps.

    Returns
    -------
    CrossLayer
        The recursions over layers.

    Raises
    ------
    NotApplicable
        If an equation is not linear in the fields or gives a rate of change; if a training rule is not linear
        in the updates; if a field is not one of the program, as after a projection; if the network has an
        index of steps, as recurrent ones; if an equation contains a number that differs between units, or a
        part without fields and sources, such as the coefficients of a target; or if a correlation or scalar
        contains another average than that of a product of two fields.

    Examples
    --------
    >>> from derive import isotropic, mean_field
    >>> found = cross_layer(mean_field(isotropic(data="population", branch=Symbol("beta"))))
    >>> for x in found.response("R_hu", ell + 1).terms: print(x.expr)
    beta*KroneckerDelta(k, ell + 1)*KroneckerDelta(s, t)
    Sum(beta*R_gu(ell + 1, k, s_, s)*R_hr(ell, t, s_), (s_, s + 1, t))
    Sum(beta**2*eta*gamma0*C_h(ell, t, s_)*R_gu(ell + 1, k, s_, s), (s_, s + 1, t - 1))
    R_hu(ell, k, t, s)
    """
    return _CrossLayer(theory).result()


class _CrossLayer:
    """Derivatives of the single-site equations of a theory with respect to its sources."""

    def __init__(self, theory: Theory) -> None:
        """Read the linear form and the perturbed sources.

        Raises NotApplicable if the theory is not linear, if a field is ordered (as in a recurrent network) or
        is not one of the program, and if an equation contains an attribute with an index that its field
        lacks, or a part without fields and sources.
        """
        if ordered := [x.name for x in theory.program.fields if x.ordered]:
            raise NotApplicable(
                f"the field {ordered[0]} is ordered: it is computed for one value of its first index after "
                "another by the same matrices; cross-layer responses need fields without layers, or "
                "layers with matrices of their own, as in mlp"
            )
        self.theory, self.form = theory, linear_form(theory)
        if made := [x for x in self.form.fields if theory.program.field_of(x) is None]:
            raise NotApplicable(
                f"{made[0]} is not a field of the program: use the theory without the reduction that added "
                "this field, as mean_field returns it"
            )
        for r in self.form.rows:
            self._require_random(r)
        self.discrete = theory.program.rule.discrete
        self.kind = Sum if self.discrete else Integral
        self.names, self.sources = set(self.form.fields), set(self.form.sources)
        self.enters: dict[str, str] = {}  # the field that each source enters
        for r in self.form.rows:
            for x in r.sources:
                self.enters.setdefault(x.name, r.name)
        self.perturbed_sources = {n: self.perturbed_source(n) for n in self.form.sources}
        self.fields_and_sources = {f"R_{f}{p}": (f, p) for f in self.form.fields for p in self.form.sources}

    def _require_random(self, r: Row) -> None:
        """Raise NotApplicable for attributes, and for a deterministic part, in an equation.

        An attribute, a number of each unit, is refused if it has an index that the field of the equation
        lacks: averages would be sums over such units. A deterministic part of a field is no response.
        """
        names = {x.name for x in self.theory.program.attributes}
        atoms = {a for x in r.terms for a in x.expr.atoms(AppliedUndef)}
        own = [a for a in atoms if str(a.func) in names and not a.free_symbols <= r.lhs.free_symbols]
        if own:
            raise NotApplicable(
                f"the equation of {r.lhs} contains {min(own, key=str)}, a number of each unit, and averages "
                "over such units are not derived from cross-layer responses: use transfer(theory, field) for "
                "the responses of one unit"
            )
        if r.given != 0:
            raise NotApplicable(
                f"the equation of {r.lhs} contains {r.given}, which is no Gaussian source, and cross-layer "
                "responses give the random part of fields only: replace it by zero for this part"
            )

    def result(self) -> CrossLayer:
        """Return the recursions over layers for responses of fields to sources on the same units."""
        theory = self.theory
        pairs = ((r, p) for p in self.perturbed_sources.values() for r in self.form.rows)
        responses = tuple(self.respond(r, p) for r, p in pairs if self.same_units(r.name, p.name))
        averages = [q for q in theory.order_parameters if q.kind == "correlation"]
        system = CrossLayer(
            theory,
            tuple(self.perturbed_sources.values()),
            responses,
            tuple(self.diagonal(q) for q in theory.responses()),
            tuple(self.decomposition(x) for x in self.field_symbols()),
            tuple(Eq(q.symbol, self.average(q.definition), evaluate=False) for q in averages),
            tuple(Eq(e.lhs, self.average(e.rhs), evaluate=False) for e in theory.scalars),
        )
        return _without_trivial(system)

    # -- sources ---------------------------------------------------------------------------------------------

    def population(self, name: str) -> str:
        """Return the name of the population of a field."""
        field = self.theory.program.field_of(name)
        assert field is not None
        return field.population.name

    def same_units(self, field: str, source: str) -> bool:
        """Return whether a field and a source (by name) belong to the same population."""
        return source in self.enters and self.population(field) == self.population(self.enters[source])

    def layered(self, name: str) -> bool:
        """Return whether a field has a layer index."""
        field = self.theory.program.field_of(name)
        return field is not None and field.layered

    def perturbed_source(self, name: str) -> PerturbedSource:
        """Return the source ``name`` with the layer, indices and time of its perturbation.

        The result also contains the ranges of this layer and of these indices.
        """
        members = [u for u in self.theory.sources if {str(u.symbol.func), str(u.partner.func)} == {name}]
        layered = self.layered(self.enters.get(name, ""))
        families = [u for u in members if layered and u.symbol.args[0].has(ell)]
        like = families[0] if families else members[0]
        constant = all(not sympify(u.covariance).has(t, s) for u in members)
        indices = tuple(
            r.renamed(primed(r.index)) for r in like.ranges if r.index != ell and like.symbol.has(r.index)
        )
        layers = family = None
        place = (like.symbol.args[0],) if layered else ()
        if families:
            place, family, layers = (k,), _layers(like), _hull([_layers(u) for u in members])
        symbol = like.symbol.func(
            *place, *map(primed, like.symbol.args[layered:-1]), S.Zero if constant else s
        )
        singles = tuple(u.symbol.args[0] for u in members if u not in families) if layered else ()
        return PerturbedSource(name, symbol, layers, indices, constant, layered, family, singles)

    # -- responses -------------------------------------------------------------------------------------------

    def named(self, field: AppliedUndef, source: AppliedUndef) -> AppliedUndef:
        """Return the symbol of the response ``d field / d source``, such as ``R_hu(ell, k, mu, t, s)``.

        Its arguments are the layers of field and source, then the other indices of both, then the two times.
        A layer is left out for a field without layers and for a source without layers or of a single layer,
        and the second time for a constant source.
        """
        p = self.perturbed_sources[str(source.func)]
        f, g = int(self.layered(str(field.func))), int(p.layered)
        places = (*field.args[:f], *(source.args[:g] if p.layers is not None else ()))
        rest = (*field.args[f:-1], *source.args[g:-1])
        times = (field.args[-1],) if p.constant else (field.args[-1], source.args[-1])
        return Function(f"R_{field.func}{source.func}")(*places, *rest, *times)

    def respond(self, r: Row, p: PerturbedSource) -> Equation:
        """Return the equation of a field's response to the source ``p``: its equation differentiated.

        ``r`` is that equation in linear form. A term with p gives Kronecker deltas (in a flow, a Dirac delta
        of the times); a term with a field of the same units gives the response of that field. Raises
        NotApplicable for an equation of a rate of change.
        """
        if not isinstance(r.lhs, AppliedUndef):
            raise NotApplicable(
                f"the equation of {r.lhs} gives a rate of change; cross-layer responses need an equation "
                "of the field itself"
            )
        sources = (
            (x, delta(self.as_perturbed(x.field), p.symbol, self.discrete))
            for x in r.sources
            if x.name == p.name
        )
        terms = [x.with_expression(x.weight * at) for x, at in sources]
        for x in r.actions:
            if self.same_units(x.name, p.name):
                moved = rename_all_bound(x.expr, p.symbol.free_symbols)
                moved = rewritten(moved, [x.name], lambda y: self.named(y, p.symbol))
                terms.append(x.with_expression(self.from_perturbation(moved)))
        layers = () if p.layers is None else (IndexRange(k, p.layers.lower, p.layers.upper),)
        ranges = (*r.ranges, *layers, *p.ranges)
        kept = tuple(x for x in terms if x.expr != 0)
        return Equation(self.named(r.lhs, p.symbol), kept or (Term.local(S.Zero),), ranges)

    def from_perturbation(self, e: Expr) -> Expr:
        """Return an expression whose sums over responses begin at the time s of the perturbation.

        In discrete steps, sums over a response that vanishes at equal times begin one step later. Sums over
        responses to a constant source, which have no time s, are unchanged.
        """
        if not isinstance(e, Sum | Integral):
            return e
        limits = []
        for index, lower, upper in e.limits:
            for a in e.function.atoms(AppliedUndef):
                if str(a.func) in self.fields_and_sources and a.args[-2:] == (index, s):
                    at_once = self.form.reaches(*self.fields_and_sources[str(a.func)])
                    lower = s + (0 if at_once else int(self.discrete))
            limits.append((index, lower, upper))
        return e.func(self.from_perturbation(e.function), *limits)

    def diagonal(self, q: OrderParameter) -> Eq:
        """Return the equation of a response of the theory, an average within one layer.

        It is the value of the response ``d h(ell, t) / d u(k, s)`` between layers at equal layers.
        """
        e = q.definition.replace(
            lambda x: isinstance(x, Average) and isinstance(x.body, Response),
            lambda x: self.named(x.body.body, self.as_perturbed(x.body.source)),
        )
        return Eq(q.symbol, e, evaluate=False)

    def as_perturbed(self, source: AppliedUndef) -> AppliedUndef:
        """Return a source at the time of its perturbation: at time 0 if it is constant, else unchanged."""
        p = self.perturbed_sources[str(source.func)]
        return source.func(*source.args[:-1], S.Zero) if p.constant else source

    # -- fields and averages ---------------------------------------------------------------------------------

    def field_symbols(self) -> list[AppliedUndef]:
        """Return each field once as a function of its indices, at the layer ell if it has layers."""
        symbols: dict[str, AppliedUndef] = {}
        for e in self.theory.equations:
            f = int(self.layered(e.name))
            symbols.setdefault(e.name, e.lhs.func(*((ell,) * f), *e.lhs.args[f:]))
        return list(symbols.values())

    def decomposition(self, field: AppliedUndef) -> Eq:
        """Return the equation of a field: the sum of response times source.

        The sum is over the sources on the units of the field, and over their layers, indices and past times.
        """
        total = S.Zero
        for p in self.perturbed_sources.values():
            if not self.same_units(str(field.func), p.name):
                continue
            indices = (*p.symbol.args[:-1], *(() if p.constant else (s,)))
            if p.constant and p.layers is None:
                indices = indices[p.layered :]
            source = p.symbol.func(*indices) if indices else Symbol(p.name)
            body = self.named(field, p.symbol) * source
            total += self.summed(body, field, p)
        return Eq(field, total, evaluate=False)

    def summed(self, body: Expr, field: AppliedUndef, p: PerturbedSource) -> Expr:
        """Return ``body`` summed over the layers, indices and past times of the source ``p``.

        The last time is t, or t - 1 if ``field`` responds to the source one step later only.
        """
        layers = () if p.layers is None else (p.layers,)
        limits = [r.limits for r in (*layers, *p.ranges)]
        if not p.constant:
            limits.append((s, S.Zero, t - self.gap(str(field.func), p.name)))
        return self.kind(body, *limits) if limits else body

    def gap(self, field: str, source: str) -> int:
        """Return the least number of steps from a perturbation of ``source`` to the response of ``field``.

        It is 0 or 1, and 0 in continuous time.
        """
        return 0 if self.form.reaches(field, source) or not self.discrete else 1

    def average(self, e: Expr) -> Expr:
        """Return an expression with averages of two fields written with responses to Gaussian sources.

        A field is the sum of response times source, so that the average is a sum over the covariances of
        sources.
        """
        return e.replace(lambda x: isinstance(x, Average), lambda x: self.pair(x))

    def pair(self, x: Average) -> Expr:
        """Return the average of a product of two fields as a sum over the covariances of the sources.

        Raises NotApplicable if the average is not that of a product of exactly two fields.
        """
        parts = factors(x.body)
        moving = [a for a in parts if isinstance(a, AppliedUndef) and str(a.func) in self.names]
        if len(moving) != 2:
            raise NotApplicable(
                f"the propagator is not derived: the average {x} is not that of a product of exactly two "
                "fields"
            )
        a, b = sorted(moving, key=lambda y: y.args[-1] == s)
        total = S.Zero
        for u in self.theory.sources:
            total += self.from_covariance(a, b, u)
            if u.symbol.func != u.partner.func:
                total += self.from_covariance(b, a, u)
        return Mul(*[y for y in parts if y not in moving]) * total

    def from_covariance(self, a: AppliedUndef, b: AppliedUndef, u: Source) -> Expr:
        """Return the contribution of a covariance ``u = <u_1 u_2>`` of sources to an average ``<a b>``.

        For two fields a and b it is the product of the response of a to u_1, the covariance and the response
        of b to u_2, summed over layers, indices and past times. It is zero if a or b belongs to other units
        than its source.
        """
        first, second = str(u.symbol.func), str(u.partner.func)
        if not (self.same_units(str(a.func), first) and self.same_units(str(b.func), second)):
            return S.Zero
        p, q = self.perturbed_sources[first], self.perturbed_sources[second]
        place: dict[Expr, Expr] = {}
        limits: list[Expr] = []
        site: tuple[Expr, ...] = u.symbol.args[:1] if p.layered else ()
        if p.layered and site[0].has(ell):
            place, limits, site = {ell: k - (site[0] - ell)}, [_layers(u).limits], (k,)
        names = {
            r.index: Symbol(f"{r.index.name}_1", **r.index.assumptions0) for r in u.ranges if r.index != ell
        }
        place |= names

        def moved(x: AppliedUndef, w: PerturbedSource, time: Symbol) -> AppliedUndef:
            """Return the source ``x`` at the layer and indices over which the contribution is summed.

            ``w`` says whether the source is constant; then the time is 0, otherwise ``time``.
            """
            rest = [y.xreplace(place) for y in x.args[len(site) : -1]]
            return x.func(*site, *rest, S.Zero if w.constant else time)

        covariance = sympify(u.covariance)
        taken = {*self.theory.symbols.values(), *covariance.atoms(Symbol)}
        earlier = [unused(x, taken) for x in (t_1, s_1)]
        left, right = (
            self.named(x, moved(y, w, time))
            for x, y, w, time in zip((a, b), (u.symbol, u.partner), (p, q), earlier, strict=True)
        )
        covariance = covariance.xreplace(place | dict(zip((t, s), earlier, strict=True)))
        limits += [(names[r.index], r.lower, r.upper) for r in u.ranges if r.index in names]
        for field, w, past in zip((a, b), (p, q), earlier, strict=True):
            if not w.constant:
                limits.append((past, S.Zero, field.args[-1] - self.gap(str(field.func), w.name)))
        body = left * right * covariance
        return self.kind(body, *limits) if limits else body


def _layers(u: Source) -> IndexRange:
    """Return the layers of a source as a range of k: those of a family, or the layer of a single member."""
    r, at = next((r for r in u.ranges if r.index == ell), None), u.symbol.args[0]
    ends = (at, at) if r is None else (at.xreplace({ell: r.lower}), at.xreplace({ell: r.upper}))
    return IndexRange(k, *ends)


def _hull(ranges: list[IndexRange]) -> IndexRange:
    """Return the smallest range of the layer k that contains all ``ranges``, which adjoin each other."""
    low = next(x.lower for x in ranges if all((y.lower - x.lower).is_nonnegative for y in ranges))
    high = next(x.upper for x in ranges if all((x.upper - y.upper).is_nonnegative for y in ranges))
    return IndexRange(k, low, high)


# -- within a population -------------------------------------------------------------------------------------

between = Symbol("s_1", **s.assumptions0)
"""A time between the perturbation and the response."""
START = operator("O")
"""The operator that repeats the value at time 0 at all times."""


@dataclass(frozen=True, repr=False)
class Transfer(Summarised):
    """Responses ``H_y_into(t, s)`` of fields y to a unit perturbation of the equation of ``into`` at time s.

    ``equations`` determine them for every field y on the units of ``into``; ``reduced`` are those that remain
    after responses are eliminated by substitution. ``operators`` maps the name of y to the response in
    closed form: an expression in noncommutative operators, whose entries are ``kernels``, and in inverses,
    which exist because memory is causal. :meth:`matrix` returns it for ``lambdify``.
    """

    theory: Theory
    into: str
    equations: tuple[Eq, ...]
    operators: dict[str, Expr]
    kernels: tuple[Kernel, ...]

    def answer(self, name: str) -> Expr:
        """Return the symbol of the response of the field ``name``, a function of indices and times t, s.

        The perturbation acts at time s on the equation of the field ``into``. Raises KeyError for an unknown
        name.
        """
        return self.equation(name).lhs

    def equation(self, name: str) -> Eq:
        """Return the equation of the response of the field ``name`` to the perturbation of ``into``.

        Raises KeyError for an unknown name.
        """
        return find(self.equations, f"H_{name}_{self.into}", "response")

    def matrix(self, name: str) -> Expr:
        """Return the response of the field ``name`` to the perturbation of ``into``, in closed form.

        It is a matrix expression with times, and indices such as channels if there are any, as rows and
        columns. It is a number, such as 0, if the response is this number times the identity. Raises KeyError
        for an unknown name.

        >>> from derive import isotropic, mean_field
        >>> transfer(mean_field(isotropic()), "v").matrix("v")
        (-K_v_h0*R_Delta + I)**(-1)
        """
        known = {k.operator: (size(k.rows), size(k.cols)) for k in self.kernels}
        return matrix(self.operators[name], lambda letter: known.get(letter, (T, T)))

    def _repr_latex_(self) -> str:
        return aligned_latex(self.reduced, self.theory)

    @property
    def reduced(self) -> tuple[Eq, ...]:
        """The equations of the responses after elimination of those that can be substituted into the others.

        A response that another equation contains is eliminated if it has no memory, or if the other equations
        contain it at time t or time 0 only, not under a sum over past times. A response that its own equation
        contains remains, and so does that of ``into``.
        """
        todo = {e.lhs: e.rhs for e in self.equations}
        for instant in (True, False):
            for lhs in list(todo):
                if lhs != self.answer(self.into) and self._dispensable(lhs, todo, instant):
                    rhs = todo.pop(lhs)
                    put = partial(_at_start, rhs, lhs)
                    todo = {x: rewritten(e, [str(lhs.func)], put) for x, e in todo.items()}
        return tuple(Eq(x, e, evaluate=False) for x, e in todo.items())

    @staticmethod
    def _dispensable(lhs: AppliedUndef, todo: dict[AppliedUndef, Expr], instant: bool) -> bool:
        """Return whether a response can be eliminated by substitution into the other equations.

        ``todo`` maps responses to the right-hand sides of their equations. The response ``lhs`` must occur in
        another equation, and not on the right-hand side of its own. With ``instant`` that side must have no
        sum over time and no perturbation; without, the other equations must need ``lhs`` at time t or time 0
        only.
        """
        rhs, others = todo[lhs], [e for x, e in todo.items() if x != lhs]
        met = [a for e in others for a in e.atoms(AppliedUndef) if a.func == lhs.func]
        simple = not rhs.has(Sum, Integral, KroneckerDelta, DiracDelta)
        fits = simple if instant else all(a.args[-2] in (t, S.Zero) for a in met)
        return bool(met) and not rhs.has(lhs.func) and fits


def transfer(theory: Theory, into: str) -> Transfer:
    """Return the responses of all fields on the units of ``into`` to a unit perturbation of ``into``.

    The perturbation is added to the equation of the field ``into`` at time s. Raises :class:`NotApplicable`
    if :func:`population` refuses the field ``into``, if a training rule is not linear
    in the updates, or if an equation is not linear in the fields, gives a rate of change, or contains a field
    at time 0 in a sum or with a factor that depends on time.

    >>> from derive import isotropic, mean_field
    >>> from derive.reduce.data import instant_responses
    >>> answers = transfer(instant_responses(mean_field(isotropic(data="online"))), "v")
    >>> print(answers.reduced[0].rhs.args[0])
    KroneckerDelta(s, t)
    >>> print(transfer(mean_field(isotropic()), "v").operators["v"])
    (1 - K_v_h0*R_Delta)**(-1)
    """
    form = linear_form(theory, population(theory, into))
    equations = tuple(
        Eq(_answer(theory, r, into), _response_equation(theory, r, into), evaluate=False) for r in form.rows
    )
    kernels: dict[Expr, Kernel] = {}
    system = {}
    # The equation of each field, a row of the linear form, gives an equation of operators. UNIT stands for
    # the unit perturbation of the field `into`. A word is a product of operators, its letters; UNIT is the
    # last letter of every word of the solution.
    for r in form.rows:
        value = UNIT if r.name == into else S.Zero
        for a, entry in _entries(r).items():
            value += _word(theory, r, a, entry, kernels) * operator(a.name)
        system[operator(r.name)] = value
    solved = {r.name: solve_for(system, operator(r.name)) for r in form.rows}
    answers = {x: _started(word.xreplace({UNIT: S.One}), kernels) for x, word in solved.items()}
    return Transfer(theory, into, equations, answers, tuple(kernels.values()))


def population(theory: Theory, name: str) -> Iterator[Equation]:
    """Yield the equations of all fields on the units of the field ``name``.

    Raises :class:`NotApplicable` if the program has no such field, if that field has layers or is computed
    for one value of its first index after another (as in a recurrent network), or if an equation gives a rate
    of change instead of a field.
    """
    field = theory.program.field_of(name)
    if field is None or field.layered or field.ordered:
        raise NotApplicable(
            f"{name} must be a field of the program that is not layered and not ordered (computed for one "
            "value of its first index after another, as in a recurrent network), because transfer "
            "functions are derived for these fields only"
        )
    for e in theory.equations:
        other = theory.program.field_of(e.name)
        if other is not None and other.population == field.population:
            if not isinstance(e.lhs, AppliedUndef):
                raise NotApplicable(
                    f"the equation of {e.lhs} gives a rate of change; transfer functions need a theory in "
                    "which the equations of these fields give the fields themselves, not their time "
                    "derivatives"
                )
            yield e


def perturbation_indices(theory: Theory, e: Equation) -> tuple[Symbol, ...]:
    """Return the index symbols of a perturbation of the equation ``e``: those of the equation, primed.

    The index that numbers units is left out, because response and perturbation belong to the same unit.
    """
    return tuple(primed(r.index) for r in e.ranges if r.index not in theory.program.unit_indices)


def _response_equation(theory: Theory, r: Row, into: str) -> Expr:
    """Return the right-hand side of the equation of a response to a perturbation of the field ``into``.

    ``r`` is the equation, in linear form, of the field that responds.
    """
    total = S.Zero
    if r.name == into:
        indices = [x.index for x in r.ranges if x.index not in theory.program.unit_indices]
        total += Mul(*[KroneckerDelta(i, primed(i)) for i in indices]) * _delta(theory)
    perturbed_indices = perturbation_indices(theory, r)
    for x in r.actions:
        renamed: dict[Expr, Expr] = {j: primed(j) for j in perturbed_indices if x.expr.has(j)}
        renamed[s] = unused(between, x.expr.atoms(Symbol))
        a = x.field.xreplace(renamed)
        total += x.expr.xreplace(renamed).xreplace({a: _answer_at(a, perturbed_indices, into)})
    return total


def _answer(theory: Theory, r: Row, into: str) -> AppliedUndef:
    """Return the symbol ``H_y_into(t, s)`` of the response of a field y to a perturbation of ``into``.

    ``r`` is the equation of the field y.
    """
    return _answer_at(r.field, perturbation_indices(theory, r), into)


def _answer_at(a: AppliedUndef, perturbed_indices: tuple[Symbol, ...], into: str) -> AppliedUndef:
    """Return the response of a field to a perturbation of ``into``, at the indices and the time of ``a``.

    ``perturbed_indices`` are the indices of the perturbation.
    """
    return Function(f"H_{a.func}_{into}")(*a.args[:-1], *perturbed_indices, a.args[-1], s)


def _delta(theory: Theory) -> Expr:
    """Return the unit perturbation at time s: a Kronecker delta of t and s, a Dirac delta in a flow."""
    return KroneckerDelta(t, s) if theory.program.rule.discrete else DiracDelta(t - s)


def _at_start(rhs: Expr, lhs: Expr, atom: Expr) -> Expr:
    """Return the right-hand side of ``lhs = rhs`` at other indices and times.

    They are those of ``atom``, the same function as ``lhs``. Sums and integrals over an empty past, as at
    time 0, are replaced by 0.
    """
    return placed(rhs, lhs, atom).replace(
        lambda x: isinstance(x, Sum | Integral) and (x.limits[-1][2] - x.limits[-1][1]) in (-1, 0),
        lambda x: S.Zero if isinstance(x, Integral) or x.limits[-1][2] < x.limits[-1][1] else x,
    )


# -- in closed form ------------------------------------------------------------------------------------------


UNIT = operator("unit")
"""The unit perturbation, which is replaced by 1 in results."""


def _entries(r: Row) -> dict[LinearTerm, Expr]:
    """Return the kernels with which past and present fields enter an equation, as a dict.

    Terms with the same field and the same sums over indices and past times are added up. The key is the first
    of these terms, and the value the sum of their kernels.
    """
    totals: dict[LinearTerm, Expr] = {}
    for x in r.actions:
        first = next((y for y in totals if y.alike(x)), x)
        totals[first] = totals.get(first, S.Zero) + x.weight
    return totals


def _word(theory: Theory, r: Row, a: LinearTerm, entry: Expr, kernels: dict[Expr, Kernel]) -> Expr:
    """Return the operator with the entries ``entry`` by which the field of the term ``a`` enters an equation.

    For a term outside of sums, with a factor that is constant in time, it is this factor for a field at the
    present time, and the factor times START (evaluation at time 0) for one at time 0. Otherwise it is the
    noncommutative symbol of a kernel, which is added to ``kernels``. Different kernels have different names.
    ``r`` is the equation. Raises NotApplicable for a field at time 0 in a sum or with a factor that depends
    on time.
    """
    time = a.field.args[-1]
    if not a.reach and not entry.has(t) and not a.over:
        return entry if time == t else entry * START
    if time == 0:
        raise NotApplicable(
            f"the equation of {r.lhs} contains {a.field}, a field at time 0, in a sum or with a factor "
            "that depends on time, which is not supported"
        )
    plain = isinstance(entry, AppliedUndef) and bool(a.reach)
    name = str(entry.func) if plain else f"K_{r.name}_{a.name}"
    symbol = entry if plain else Function(name)(*r.field.args[:-1], *a.field.args[:-1], t, s)
    row = tuple(x for x in r.ranges if r.lhs.has(x.index))
    value = entry if a.reach else entry * _delta(theory)
    causal = "strict" if a.reach == "strict" else "past"
    others = {
        k.name for k in kernels.values() if (k.entry, k.definition, k.causal) != (symbol, value, causal)
    }
    if name in others:
        name = free_name(f"K_{r.name}_{a.name}", others)
        symbol = Function(name)(*r.field.args[:-1], *a.field.args[:-1], t, s)
    letter = operator(name)
    kernels[letter] = Kernel(letter, symbol, value, row, a.over, causal)
    return letter


def _started(word: Expr, kernels: dict[Expr, Kernel]) -> Expr:
    """Return an expression in operators in which strictly causal kernels taken at time 0 are replaced by 0.

    START stands for the evaluation at time 0, where the memory of such a kernel is empty.
    """
    strict = {x for x, k in kernels.items() if k.causal == "strict"}

    def empty(e: Expr) -> bool:
        """Return whether a product of operators evaluates a strictly causal kernel at time 0.

        This is the operator START in front of the symbol of the kernel.
        """
        letters = e.args_cnc()[1] if e.is_Mul else []
        return any(a == START and b in strict for a, b in pairwise(letters))

    return sympify(word).replace(empty, lambda _: S.Zero)
