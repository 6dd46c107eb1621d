"""Theories of training on random data: scaled sources, instantaneous responses, limits, modes, loss terms.

:func:`absorb_factors` scales sources, :func:`instant_responses` removes responses without memory,
:func:`theory_limit` takes limits of sizes, :func:`mode_sums` writes averages over modes as sums, and
:func:`loss_decomposition` splits the loss by the sources of error. All take theories of linear programs on
random data (linear2025), and all but the last return theories.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sympy import (
    Add,
    Eq,
    Expr,
    Function,
    Integer,
    Integral,
    KroneckerDelta,
    Mul,
    S,
    Sum,
    Symbol,
    limit,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.calculus.sums import defined, fixed_by_delta, is_at, over, rewritten, times
from derive.calculus.symbols import IndexRange, converted, s, t
from derive.errors import NotApplicable
from derive.linear.form import linear_form
from derive.linear.propagators import Transfer, population, transfer
from derive.program.networks.random_data import M
from derive.program.parts import gaussian
from derive.program.training import TrainedMatrix
from derive.show.latex import aligned_latex
from derive.show.summary import Summarised
from derive.theory import Equation, OrderParameter, Source, Term, Theory
from derive.theory.unfold import covariance

# -- scaled sources ------------------------------------------------------------------------------------------


def absorb_factors(theory: Theory, *sources: str) -> Theory:
    """Return the theory with each of the named sources scaled so that it enters with factor 1 or -1.

    Papers write, for example, ``v = w - r0/(nu gamma0)`` with ``<r0 r0> = nu C_g`` as ``v = w - r0`` with
    ``<r0 r0> = C_g/(nu gamma0^2)``. A response to the source becomes the response to the scaled source, and
    the equations multiply it by the factor. Time-dependent factors (the memory of a rule with decay) stay in
    the equations, and an attribute of the unit becomes part of the covariance. Raises :class:`NotApplicable`
    for a source that does not occur, or enters the equations with different factors.

    >>> from derive import isotropic, mean_field
    >>> theory = absorb_factors(mean_field(isotropic()), "r0", "u0")
    >>> print(theory.equation("h", 1).terms[1].expr)
    Sum(R_h0r0(t, s)*g(1, s)/(gamma0*nu), (s, 0, t))
    """
    for name in sources:
        factor = source_factor(theory, name)
        if factor != 1:
            theory = _absorbed(theory, name, factor)
    return theory


def _absorbed(theory: Theory, name: str, factor: Expr) -> Theory:
    """Return the theory in terms of a scaled source: ``factor`` times the source ``name``.

    Equations, the covariance of the source and responses to it are rewritten.
    """
    scaled = [_scaled_response(theory, q, name, factor) for q in theory.order_parameters]
    scales = {q.name: x for q, (_, x) in zip(theory.order_parameters, scaled, strict=True) if x != 1}

    def rescaled(e: Expr) -> Expr:
        """Return an expression with responses to the old source as multiples of those to the new one."""
        return rewritten(e, scales, lambda x: scales[str(x.func)] * x)

    def bare(e: Expr) -> Expr:
        """Return an expression with the source written as the scaled source divided by ``factor``."""
        return rewritten(e, [name], lambda x: x / factor)

    def own(u: Source) -> Expr:
        """Return the factor by which a covariance of sources changes when the source is scaled.

        It is 1, ``factor`` or ``factor**2``, if none, one or both of the two sources in the covariance are
        the scaled source.
        """
        return Mul(*[factor for x in (u.symbol, u.partner) if _is_named(x, name)])

    moved = theory.map(lambda e: rescaled(sympify(e)))
    return replace(
        moved,
        equations=tuple(replace(e, terms=tuple(x.rewrite(bare) for x in e.terms)) for e in moved.equations),
        sources=tuple(replace(u, covariance=u.covariance * own(u)) for u in moved.sources),
        order_parameters=tuple(q for q, _ in scaled),
    )


def source_factor(theory: Theory, name: str) -> Expr:
    """Return the constant factor with which the source ``name`` enters equations, without its sign.

    Factors that depend on time are left out. Raises NotApplicable if there is no such source, or if it enters
    with different factors.
    """
    factors = set()
    for e in theory.equations:
        for x in e.terms:
            for a in sorted((a for a in x.field.atoms(AppliedUndef) if _is_named(a, name)), key=str):
                constant, _ = (x.coefficient * x.kernel * x.field / a).as_independent(t, s)
                factors.add(-constant if constant.could_extract_minus_sign() else constant)
    if not factors:
        raise NotApplicable(f"no equation of a field contains a source called {name}")
    if len(factors) > 1:
        different = ", ".join(sorted(map(str, factors)))
        raise NotApplicable(
            f"{name} is not scaled, because it enters the equations of fields with different factors: "
            f"{different}"
        )
    return factors.pop()


def _scaled_response(
    theory: Theory, q: OrderParameter, name: str, factor: Expr
) -> tuple[OrderParameter, Expr]:
    """Return an order parameter after the source ``name`` is multiplied by ``factor``, and a ratio.

    If the order parameter is the response to this source, it becomes the response to the scaled one, and the
    ratio is the old response over the new one; attributes of the unit stay inside of the average. Any other
    order parameter is returned unchanged, with the ratio 1.
    """
    old = next((x for x in q.definition.atoms(Response) if _is_named(x.source, name)), None)
    if old is None:
        return q, S.One
    fields, attributes = theory.program.fields, theory.program.attributes
    fixed, moving = old.body.as_independent(*[Function(x.name) for x in fields], as_Add=False)
    number, unit = (factor * fixed).as_independent(*[Function(x.name) for x in attributes], as_Add=False)
    outside = q.definition / next(iter(q.definition.atoms(Average)))
    return replace(q, definition=outside * Average(unit * Response(moving, old.source))), number


def _is_named(x: Expr, name: str) -> bool:
    """Return whether ``x`` is an application of the function ``name``."""
    return isinstance(x, AppliedUndef) and str(x.func) == name


# -- responses at equal times only ---------------------------------------------------------------------------


def instant_responses(theory: Theory) -> Theory:
    """Return the theory with every response of a field without memory replaced by its value at equal time.

    Online, a batch is used once, so that ``R_Delta(t, s)`` is 1 at ``s = t`` and 0 before. The order
    parameter and its sum over past times are removed. A response that contains an attribute of the unit, or
    is a sum, is kept.

    >>> from derive import isotropic, mean_field
    >>> print(instant_responses(mean_field(isotropic(data="online"))).equation("h0").rhs)
    v(t) + u0(t)/alpha_B
    """
    for q in theory.responses():
        value = _instant(theory, q)
        if value is None:
            continue
        equations = tuple(
            replace(e, terms=tuple(y for x in e.terms for y in _at_equal_time(x, q, value)))
            for e in theory.equations
        )
        kept = tuple(x for x in theory.order_parameters if x.symbol != q.symbol)
        theory = replace(theory, equations=equations, order_parameters=kept)
    return theory


def _instant(theory: Theory, q: OrderParameter) -> Expr | None:
    """Return the factor of the Kronecker delta of times in a response, or None if the response has memory.

    The result is None too if the factor contains an attribute of the unit, and if the definition of the
    response, or an equation that it needs, contains a sum.
    """
    node = next(iter(q.definition.atoms(Response)))
    # `local` are the equations whose terms contain neither memory nor a sum. Their right-hand sides replace
    # fields in the body of the response. If a field is left after that, the response has memory or the
    # equations contain sums. The result is then None, and also if the definition of the response contains a
    # sum. Otherwise all sources in the body are at time t.
    local = (e for e in reversed(theory.equations) if not any(x.remembers or x.over for x in e.terms))
    body = defined(node.body, [(e.lhs, e.rhs) for e in local])
    if any(theory.program.field_of(str(a.func)) for a in body.atoms(AppliedUndef)) or q.definition.has(Sum):
        return None
    now = node.source.xreplace({s: t})
    total = S.Zero
    for x in Add.make_args(body.expand()):
        for a in x.atoms(AppliedUndef):
            if a.func == now.func:
                same = Mul(*[KroneckerDelta(i, j) for i, j in zip(a.args[:-1], now.args[:-1], strict=True)])
                total += same * x / a
    attributes = {x.name for x in theory.program.attributes}
    if any(str(a.func) in attributes for a in total.atoms(AppliedUndef)):
        return None
    number = q.definition.xreplace({node: S.One})
    return total * number.replace(lambda e: isinstance(e, Average), lambda e: e.body)


def _at_equal_time(x: Term, q: OrderParameter, value: Expr) -> Iterator[Term]:
    """Yield a term with the response ``q`` replaced by ``value`` times a Kronecker delta of its two times.

    The delta removes the sum over past times. Nothing is yielded if the sum excludes the present. A term
    without the response is yielded unchanged.
    """
    responses = [a for a in x.expr.atoms(AppliedUndef) if is_at(a, q.symbol)]
    if not responses:
        yield x
        return
    if x.reach == "strict":
        return
    numbers: dict[Expr, Expr] = {}
    for a in responses:
        same = S.One if x.remembers or a.args[-1] == a.args[-2] else KroneckerDelta(*a.args[-2:])
        numbers[a] = same * value.xreplace(dict(zip(q.symbol.args[:-2], a.args[:-2], strict=True)))
    now = {s: t} if x.remembers else {}
    x = replace(x.map(lambda e: e.xreplace(numbers).xreplace(now)), reach="")
    for r in x.over:
        pin = fixed_by_delta(x.kernel, r.index)
        if pin is not None:
            delta, place = pin
            x = replace(x, kernel=x.kernel / delta, over=tuple(y for y in x.over if y != r))
            x = x.map(lambda e, at={r.index: place}: e.xreplace(at))
    yield x


# -- limits of sizes -----------------------------------------------------------------------------------------


def theory_limit(theory: Theory, values: Mapping[Symbol, Expr]) -> Theory:
    """Return the theory as each parameter in ``values`` goes to its value (many samples, wide layers).

    ``values`` maps the symbols of the theory to their limits, numbers or ``oo``. Symbols are compared with
    their assumptions. The limits are taken one after another, with order parameters held fixed. Vanishing
    terms are removed, as are sources without covariance, responses that no equation contains, and
    observables. Sources that enter an equation with a factor of the parameter are scaled first
    (:func:`.absorb_factors`), and responses that have become instantaneous are replaced by their values
    (:func:`.instant_responses`). Raises :class:`NotApplicable` if a term has no finite limit or contains the
    parameter elsewhere than in factors, if a source cannot be scaled, or for a key that is not a symbol of
    the theory.

    >>> from sympy import oo
    >>> from derive import isotropic, mean_field
    >>> from derive.program.networks.random_data import alpha
    >>> print(theory_limit(mean_field(isotropic()), {alpha: oo}).equation("h0").rhs)
    v(t)
    """
    known = theory.symbols
    for x, value in values.items():
        if x not in known.values():
            raise NotApplicable(
                f"the limit {x!r} -> {value} is not taken, because the theory does not contain this "
                "symbol with these assumptions; take the symbol from theory.symbols, which has the names "
                f"{', '.join(known)}"
            )
    for x, value in values.items():
        theory = _limit(theory, x, converted(value))
    return theory


def _limit(theory: Theory, x: Symbol, value: Expr) -> Theory:
    """Return the limit of a theory as the parameter ``x`` goes to ``value``."""
    theory = absorb_factors(theory, *scaled_sources(theory, x))
    sources = [replace(u, covariance=at_limit(u.covariance, x, value)) for u in theory.sources]
    vanishing = {u.symbol.func for u in sources if u.covariance == 0 and u.symbol.func == u.partner.func}

    def equation(e: Equation) -> Equation:
        """Return the limit of an equation, without terms of vanished sources and terms that go to zero."""
        remaining = (y for y in e.terms if not any(a.func in vanishing for a in y.field.atoms(AppliedUndef)))
        terms = (_term_at_limit(y, x, value) for y in remaining)
        return replace(e, terms=tuple(y for y in terms if y.expr != 0))

    moved = replace(
        theory,
        sources=tuple(u for u in sources if u.covariance != 0),
        equations=tuple(map(equation, theory.equations)),
        scalars=tuple(map(equation, theory.scalars)),
        observables=(),
        reduction=f"{theory.reduction}, {x} -> {value}".strip(", "),
    )
    return _without_unused_responses(instant_responses(_without_unused_responses(moved)))


def _term_at_limit(term: Term, x: Symbol, value: Expr) -> Term:
    """Return the limit of a term as ``x`` goes to ``value``; constant factors in front of it stay there."""
    fixed, moving = term.coefficient.as_independent(x, as_Add=False)
    if not (term.remembers or term.over) or moving.has(AppliedUndef) or term.field.has(x):
        return term.with_expression(at_limit(term.expr, x, value))
    kernel = at_limit(moving * term.kernel, x, value)
    return term.with_expression(S.Zero) if kernel == 0 else replace(term, coefficient=fixed, kernel=kernel)


def at_limit(e: Expr, x: Symbol, value: Expr) -> Expr:
    """Return the limit, as ``x`` goes to ``value``, of an expression with ``x`` in factors only.

    Factors in front of a sum are moved inside first. Raises :class:`NotApplicable` for any other dependence,
    and if there is no finite limit.

    >>> from sympy import Function, oo
    >>> from sympy.abc import k, t, x
    >>> f = Function("f")
    >>> at_limit(Sum((1 + 1 / x) * f(t), (t, 0, 3)) + f(1) / x, x, oo)
    Sum(f(t), (t, 0, 3))
    """
    e = sympify(e)
    if not e.has(x):
        return e
    if isinstance(e, Sum | Integral):
        if any(end.has(x) for limits in e.limits for end in limits[1:]):
            raise NotApplicable(
                f"the limit {x} -> {value} is not taken, because the bounds of {e} depend on {x}"
            )
        inside = at_limit(e.function, x, value)
        return S.Zero if inside == 0 else e.func(inside, *e.limits)
    total = S.Zero
    for part in Add.make_args(e.expand()):
        fixed, moving = part.as_independent(x, as_Add=False)
        inner = next((y for y in Mul.make_args(moving) if isinstance(y, Sum | Integral)), None)
        if inner is not None:
            total += fixed * at_limit(times(moving / inner, inner), x, value)
            continue
        if moving.has(AppliedUndef, Sum, Integral):
            raise NotApplicable(
                f"the limit {x} -> {value} is not taken, because in {part} one factor contains both {x} and "
                f"an order parameter, sum or function; {x} may stand in other factors only"
            )
        end = limit(moving, x, value)
        if not end.is_finite:
            known = "has no finite limit" if end.is_finite is False else "is not known to have a finite limit"
            raise NotApplicable(f"the limit {x} -> {value} is not taken, because the term {part} {known}")
        total += end * fixed
    return total


def scaled_sources(theory: Theory, x: Symbol) -> list[str]:
    """Return the names of the sources in terms of equations that contain ``x`` and no sum."""
    source_functions = {u.symbol.func for u in theory.sources}
    local = (y for e in theory.equations for y in e.terms if not (y.remembers or y.over) and y.expr.has(x))
    return sorted(
        {str(a.func) for y in local for a in y.field.atoms(AppliedUndef) if a.func in source_functions}
    )


def _without_unused_responses(theory: Theory) -> Theory:
    """Return the theory without those responses that no equation contains."""
    used = {a.func for e in (*theory.equations, *theory.scalars) for a in e.rhs.atoms(AppliedUndef)}
    kept = tuple(q for q in theory.order_parameters if q.kind != "response" or q.symbol.func in used)
    return replace(theory, order_parameters=kept)


# -- from averages over modes to sums over them --------------------------------------------------------------


def mode_sums(theory: Theory) -> Theory:
    """Return the theory with averages over the modes written as sums over them.

    The modes are the units of the population of the first attribute: attributes are given constants of each
    unit, such as its eigenvalue. An order parameter that was an average over the modes becomes the sum, with
    the same symbol: M times the average, where M is the number of modes. Fields of the modes get the index of
    the mode. The equations then do not contain M: their dimension-free form (linear2025 107-109). Observables
    are left out. Raises :class:`NotApplicable` if the program has no attributes, uses none in a definition,
    or writes the index of the unit with several names, and if M does not cancel.

    >>> from derive import mean_field, structured
    >>> theory = mode_sums(absorb_factors(mean_field(structured()), "r0", "u0"))
    >>> print(theory.order_parameter("C_h0").definition)
    Sum(<h0(k, s)*h0(k, t)>, (k, 1, M))
    """
    if not theory.program.attributes:
        raise NotApplicable(
            "the units of the program have no attributes (given constants of each unit, such as the "
            "eigenvalue of a mode), so that there are no modes to sum over; a program such as structured() "
            "has them"
        )
    return _Modes(theory).theory()


def unit_averages(theory: Theory) -> Theory:
    """Return the theory with averages over units with attributes written as means over these units.

    Attributes are given constants of each unit, such as its eigenvalue. The equations and sources hold for
    each unit, with the index of the unit. Unlike in :func:`mode_sums`, order parameters stay averages. The
    number of units ``UNITS`` is in their definitions and in the range of the index only.

    Parameters
    ----------
    theory : Theory
        The theory of a program whose units have attributes.

    Returns
    -------
    Theory
        The theory with an index of the unit.

    Raises
    ------
    NotApplicable
        If the program has no attributes, uses none in a definition, or writes the index of the unit with
        several names.

    Examples
    --------
    >>> from derive import mean_field, structured
    >>> print(unit_averages(mean_field(structured())).order_parameter("C_h0").definition)
    Sum(<h0(k, s)*h0(k, t)>/n_units, (k, 1, n_units))
    """
    if not theory.program.attributes:
        raise NotApplicable(
            "the units of the program have no attributes (given constants of each unit, such as the "
            "eigenvalue of a mode) that make them different: without attributes, averages over units are "
            "not written as sums over units"
        )
    return _Modes(theory, averages=True).theory()


UNITS = Symbol("n_units", integer=True, positive=True)
"""Number of units with attributes, in the definitions of :func:`unit_averages`."""


class _Modes:
    """Rewriting of averages over units with attributes (modes) as sums over them.

    Order parameters become these sums: the number of modes times the averages. With ``averages`` they stay
    averages, written as means over the units.
    """

    def __init__(self, theory: Theory, *, averages: bool = False) -> None:
        """Find the fields and sources of the modes, and the order parameters averaged over them."""
        self.old, self.program = theory, theory.program
        place = self.program.attributes[0].population
        units = theory.program.unit_indices
        if not units:
            raise NotApplicable(
                "no definition of the program uses an attribute, so that there is no index of the unit: use "
                "the attribute in a definition, or leave it out of attributes"
            )
        if len(units) != 1:
            raise NotApplicable(
                "the definitions of the program write attributes with several indices of the unit (or "
                f"mode), {', '.join(sorted(map(str, units)))}: use one index in all definitions"
            )
        (self.unit,) = units
        self.averages = averages
        self.number = UNITS if averages else M * sympify(place.ratio)
        self.over = IndexRange(self.unit, Integer(1), self.number)
        self.own = {x.name for x in self.program.fields if x.population.name == place.name}
        equations_of_modes = [e for e in theory.equations if e.name in self.own]
        entering = {a.func for e in equations_of_modes for a in e.rhs.atoms(AppliedUndef)}
        self.own |= {str(u.symbol.func) for u in theory.sources if u.symbol.func in entering}
        averaged = (q for q in theory.order_parameters if self.is_of_modes(q.definition))
        self.sums = {q.name for q in averaged}

    def is_of_modes(self, e: Expr) -> bool:
        """Return whether an expression contains a field or source of the modes."""
        return any(str(a.func) in self.own for a in e.atoms(AppliedUndef))

    def theory(self) -> Theory:
        """Return the theory with sums over modes in place of averages; with ``averages``, with means.

        Without ``averages``, raises NotApplicable if the number of modes does not cancel in an equation or
        covariance.
        """
        label = "means over units" if self.averages else "sums over modes"
        reduction = f"{self.old.reduction}, {label}".strip(", ")
        new = replace(self.old.each(self.of_every_unit), observables=(), reduction=reduction)
        if self.averages:
            return new
        remaining = [e.lhs for e in (*new.equations, *new.scalars) if e.rhs.has(M)]
        remaining += [u.symbol for u in new.sources if u.covariance.has(M)]
        if remaining:
            raise NotApplicable(
                f"the number of modes {M} does not cancel in the equation or covariance of {remaining[0]}"
            )
        return new

    def summed(self, e: Expr) -> Expr:
        """Return an expression in the new order parameters, which are sums over modes instead of averages.

        An old order parameter is the new one over the number of modes. With ``averages`` order parameters are
        not changed. Fields receive the index of the mode.
        """
        e = sympify(e)
        return self.indexed(e if self.averages else rewritten(e, self.sums, lambda x: x / self.number))

    def indexed(self, e: Expr) -> Expr:
        """Return an expression with the index of the mode first among arguments of the modes' fields."""
        return rewritten(
            e, self.own, lambda x: x if x.args[:1] == (self.unit,) else x.func(self.unit, *x.args)
        )

    def of_every_unit(self, x: Any) -> Iterator[Any]:
        """Yield an equation, source or order parameter; those of modes receive the index of the mode."""
        if not isinstance(x, OrderParameter):
            ranges = (self.over, *x.ranges) if self.is_of_modes(x.symbol) else x.ranges
            yield replace(x.map(self.summed), ranges=ranges)
        elif x.name in self.sums:
            average = next(iter(x.definition.atoms(Average)))
            body = Average(self.indexed(average.body)) / (UNITS if self.averages else S.One)
            yield replace(x, definition=Sum(x.definition.xreplace({average: body}), self.over.limits))
        else:
            yield x


# -- the loss as a sum over the sources of error -------------------------------------------------------------

BIAS, WIDTH, DATA, NOISE = "bias", "limited width", "limited data", "label noise"


@dataclass(frozen=True)
class Part:
    """Contribution of one source of error to a correlation function.

    ``label`` is the kind of error, ``source`` the name of the Gaussian source, or of the attribute of the
    units (such as a target), and ``expr`` the contribution.
    """

    label: str
    source: str
    expr: Expr


@dataclass(frozen=True, repr=False)
class LossDecomposition(Summarised):
    """Correlation function of the errors as a sum of contributions of the sources of error.

    ``parts`` are the contributions. ``transfers`` contain the responses ``H`` in them: those of all fields to
    a perturbation of the equation of one field. The loss is the correlation function at ``s = t``.
    """

    theory: Theory
    correlation: Expr
    parts: tuple[Part, ...]
    transfers: tuple[Transfer, ...]

    @property
    def eq(self) -> Eq:
        """The correlation function of the errors as the sum of the contributions of all sources."""
        return Eq(self.correlation, Add(*[p.expr for p in self.parts]), evaluate=False)

    def part(self, label: str) -> Expr:
        """Return the sum of the contributions with this ``label``; zero if there are none.

        Labels are "bias", "limited width", "limited data" and "label noise"; any other label gives zero too.
        """
        return Add(*[p.expr for p in self.parts if p.label == label])

    def _repr_latex_(self) -> str:
        return aligned_latex((self.eq,), self.theory)


def loss_decomposition(theory: Theory, name: str = "C_v") -> LossDecomposition:
    """Split a correlation function of a linear theory by the sources of error (linear2025 eq. 13).

    ``name`` is the correlation of the error vector v, the loss at equal times. The error vector is linear in
    the Gaussian sources of its population: its correlation function is a sum of one quadratic form for each
    pair of correlated sources, with ``H_v_x(t, s)`` the response of v to a perturbation of the equation of
    the field x that the source enters. Labels: "limited width" for the source of a trained matrix, "limited
    data" for that of an untrained matrix, "label noise" for the part of the latter that comes from a noise
    vector in the errors of samples, and "bias" for any other source (the target). Raises KeyError if the
    theory has no order parameter ``name``, and :class:`NotApplicable` if it is not the correlation of a
    single field, if this field has layers, or if another quantity drives it.

    >>> from derive import isotropic, mean_field
    >>> parts = loss_decomposition(absorb_factors(mean_field(isotropic(noise=True)), "r0", "u0"))
    >>> [p.label for p in parts.parts]
    ['bias', 'limited width', 'limited data', 'label noise']
    """
    return _Decomposition(theory, name).result()


@dataclass(frozen=True)
class _Entry:
    """Source or attribute of the units in an equation, with the factor that multiplies it there."""

    equation: Equation
    symbol: AppliedUndef
    factor: Expr


class _Decomposition:
    """Decomposition of the correlation function ``name`` of one field by the sources of error.

    ``depth`` counts nested decompositions, so that summation indices differ.
    """

    def __init__(self, theory: Theory, name: str, depth: int = 0) -> None:
        """Find the field whose correlation function at the times t and s is decomposed.

        Raises NotApplicable if the function ``name`` is not the correlation of a single field with itself.
        """
        self.theory, self.program, self.depth = theory, theory.program, depth
        self.q, self.units = theory.order_parameter(name), theory.program.unit_indices
        self.given = {x.name for x in self.program.attributes}
        self.average = next(iter(self.q.definition.atoms(Average)))
        atoms = self.average.atoms(AppliedUndef)
        fields = [a for a in atoms if self.program.field_of(str(a.func)) is not None]
        if {a.args[-1] for a in fields} != {t, s} or len(fields) != 2 or fields[0].func != fields[1].func:
            raise NotApplicable(
                f"the loss is not decomposed: {name} must be the correlation function of one field at the "
                "times t and s"
            )
        self.now, self.past = sorted(fields, key=lambda a: bool(a.args[-1] == s))
        self.transfers: dict[str, Transfer] = {}

    def result(self) -> LossDecomposition:
        """Return the decomposition, with its contributions in the order bias, width, data, label noise."""
        order = (BIAS, WIDTH, DATA, NOISE)
        parts_found = [x for pair in self.pairs() for x in self.parts(*pair)]
        parts = tuple(sorted(parts_found, key=lambda p: order.index(p.label)))
        return LossDecomposition(self.theory, self.q.symbol, parts, tuple(self.transfers.values()))

    # -- pairs of sources ------------------------------------------------------------------------------------

    def entries(self) -> Iterator[_Entry]:
        """Yield the sources and attributes that are terms in the equations of the field's population.

        Raises NotApplicable if another quantity drives these equations.
        """
        rows = tuple(population(self.theory, str(self.now.func)))
        names = {e.name for e in rows}
        for row in linear_form(self.theory, rows).rows:
            yield from (_Entry(row, x.field, x.weight) for x in row.sources)
            for x in row.actions:
                if x.name not in names:
                    raise NotApplicable(
                        f"the loss is not decomposed: the term {x.expr} in the equation of {row.name} "
                        f"contains {x.name}, which is neither a source nor a field of the same population"
                    )
            for part in Add.make_args(row.given):
                vectors = [a for a in part.atoms(AppliedUndef) if str(a.func) in self.given]
                if part != 0 and len(vectors) != 1:
                    raise NotApplicable(
                        f"the loss is not decomposed: the term {part} in the equation of {row.name} must "
                        "contain a source, a field or exactly one attribute"
                    )
                yield from (_Entry(row, a, part / a) for a in vectors)

    def pairs(self) -> Iterator[tuple[_Entry, _Entry, Expr, str]]:
        """Yield tuples: two correlated sources, their covariance and the kind of error, such as "bias".

        Both orders of two sources occur. The covariance is that at the summation times of the sources. An
        attribute of the units is paired with itself, with its square as covariance.
        """
        entries = list(self.entries())
        for x in entries:
            for y in entries:
                if x.symbol == y.symbol and str(x.symbol.func) in self.given:
                    yield x, y, x.symbol * y.symbol, BIAS
                a, b = (e.symbol.xreplace(self.summation_variables(e, i)) for i, e in enumerate((x, y), 1))
                value = covariance(a, b, self.theory.sources)
                if value != 0:
                    yield x, y, value, self.label(x)

    def label(self, x: _Entry) -> str:
        """Return the kind of error that a source ``x`` stands for, such as "limited width".

        It is limited width or limited data for the source of a product with a trained or an untrained matrix,
        and bias for others.
        """
        matrices = {u.matrix for u in self.theory.sources if x.symbol.func in (u.symbol.func, u.partner.func)}
        for m in self.program.matrices:
            if gaussian(m).name in matrices:
                return WIDTH if isinstance(m, TrainedMatrix) else DATA
        return BIAS

    # -- contribution of one pair ----------------------------------------------------------------------------

    def parts(self, x: _Entry, y: _Entry, covariance: Expr, label: str) -> Iterator[Part]:
        """Yield the contribution of a pair of sources with their ``covariance``.

        For the label "limited data", the covariance may contain a correlation function that has a "bias" part
        itself, as that of the samples' errors with label noise. There is then one part for each contribution
        to this correlation: "label noise" for its bias, the noise vector, and ``label`` for others.
        """
        source = str(x.symbol.func)
        split = self.samples(covariance) if label == DATA and self.depth == 0 else ()
        for inner, value in split:
            noisy = inner.label == BIAS
            yield Part(NOISE if noisy else label, inner.source if noisy else source, self.form(x, y, value))
        if not split:
            yield Part(label, source, self.form(x, y, covariance))

    def samples(self, covariance: Expr) -> tuple[tuple[Part, Expr], ...]:
        """Split the covariance of a source that contains a correlation function, as that of samples' errors.

        If the errors of samples contain label noise, their correlation has contributions of its own. The
        result are pairs of such a contribution and of the covariance with this contribution in place of the
        correlation. It is empty if no contribution has the label "bias", as without label noise.
        """
        for q in self.theory.correlations():
            correlations = [a for a in covariance.atoms(AppliedUndef) if a.func == q.symbol.func]
            if correlations:
                inner = _Decomposition(self.theory, q.name, self.depth + 1)
                inner_parts = inner.result().parts
                if any(p.label == BIAS for p in inner_parts):
                    self.transfers |= {f"{k} of {q.name}": v for k, v in inner.transfers.items()}
                    place = dict(zip(q.symbol.args, correlations[0].args, strict=True))
                    return tuple(
                        (p, covariance.xreplace({correlations[0]: p.expr.xreplace(place)}))
                        for p in inner_parts
                    )
        return ()

    def form(self, x: _Entry, y: _Entry, covariance: Expr) -> Expr:
        """Return the contribution of two correlated sources x and y to the correlation function of a field.

        It is ``sum over s_1, s_2 of H(t, s_1) <x(s_1) y(s_2)> H(s, s_2)``, where H is the response of the
        field to the equation that each source enters, times the factor of the source there, and
        ``covariance`` is the average. Factors in the definition of the correlation multiply it. In a flow the
        sums are integrals.
        """
        body = self.transferred(x, self.now, 1) * covariance * self.transferred(y, self.past, 2)
        body *= self.average.args[0] / (self.now * self.past)
        limits = [
            (self.summation_variable(r.index, i), 1, r.upper)
            for e, i in ((x, 1), (y, 2))
            for r in self.channels(e)
        ]
        times_ = [(self.summation_variable(s, 1), 0, t), (self.summation_variable(s, 2), 0, s)]
        discrete = self.program.rule.discrete
        value = Sum(body, *limits, *times_) if discrete else Integral(over(body, limits), *times_)
        return self.q.definition.xreplace({self.average: value})

    def transferred(self, x: _Entry, at: AppliedUndef, i: int) -> Expr:
        """Return the factor of a source in its equation times the response of the field ``at`` to it.

        The response is that of ``at``, the field whose correlation is decomposed, to a perturbation of this
        equation. The source is at summation variables, number ``i``: 1 for the first and 2 for the second
        source of a pair.
        """
        into = x.equation.name
        if into not in self.transfers:
            self.transfers[into] = transfer(self.theory, into)
        h = self.transfers[into].answer(str(self.now.func))
        *names, time = self.summation_variables(x, i).values()
        return x.factor.xreplace(self.summation_variables(x, i)) * h.func(
            *at.args[:-1], *names, at.args[-1], time
        )

    def summation_variables(self, x: _Entry, i: int) -> dict[Expr, Expr]:
        """Return a dict from the indices and the time of a source to variables over which they are summed.

        ``i`` is the number (1 or 2) of the source in a pair; the variables of the two have different names.
        """
        return {r.index: self.summation_variable(r.index, i) for r in self.channels(x)} | {
            t: self.summation_variable(s, i)
        }

    def channels(self, x: _Entry) -> list[IndexRange]:
        """Return the ranges of the indices of the equation that the source ``x`` enters, such as channels.

        The index that numbers the units of the population is left out.
        """
        return [r for r in x.equation.ranges if r.index not in self.units]

    def summation_variable(self, index: Symbol, i: int) -> Symbol:
        """Return the variable, as ``s_1``, over which an index or time of source ``i`` (1 or 2) is summed."""
        return Symbol(f"{index.name}_{2 * self.depth + i}", **index.assumptions0)
