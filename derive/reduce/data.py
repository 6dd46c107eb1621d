"""What is special to theories of training on random data: sources scaled, responses without memory, limits of
the sizes, sums over modes, and the parts of the loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

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
from derive.calculus.sums import addends
from derive.errors import NotApplicable
from derive.linear.transfer import Transfer, population, transfer, units
from derive.program.program import Program, gaussian
from derive.program.training import TrainedMatrix
from derive.program.words import IndexRange, Population, s, t
from derive.theory import Equation, OrderParameter, Source, Term, Theory


def instant_responses(theory: Theory) -> Theory:
    """The theory with every response of a memoryless field put in as a number at equal time.

    >>> from derive.theory import mean_field
    >>> from derive.program.networks.isotropic import isotropic
    >>> print(instant_responses(mean_field(isotropic(data="online"))).equation("h0").rhs)
    v(t) + u0(t)/alpha_B
    """
    for q in theory.responses():
        value = _at_once(theory, q)
        if value is not None:
            theory = _put(theory, q, value)
    return theory


def _at_once(theory: Theory, q: OrderParameter) -> Expr | None:
    """The factor of delta(t, s) in a response; None if memory makes it more than that."""
    node = next(iter(q.definition.atoms(Response)))
    body = _unfolded(theory, node.body)
    if body is None or q.definition.has(Sum):
        return None
    now = node.source.xreplace({s: t})
    total = S.Zero
    for x in Add.make_args(body.expand()):
        for a in x.atoms(AppliedUndef):
            if a.func == now.func:
                same = Mul(*[KroneckerDelta(i, j) for i, j in zip(a.args[:-1], now.args[:-1], strict=True)])
                total += same * x / a
    average = q.definition.xreplace({node: S.One})
    number = average.replace(lambda e: e.func.__name__ == "Average", lambda e: e.args[0])
    return None if any(f.name in str(total) for f in theory.program.attributes) else number * total


def _unfolded(theory: Theory, e: Expr) -> Expr | None:
    """A field in terms of sources at the same time, if that is all it is made of."""
    names = {x.name for x in theory.program.fields}
    for _ in range(len(theory.equations)):
        fields = [a for a in e.atoms(AppliedUndef) if str(a.func) in names]
        if not fields:
            return e
        for a in fields:
            found = [x for x in theory.equations if x.lhs == a]
            if len(found) != 1 or found[0].rhs.has(Sum, Integral) or a.args[-1] != t:
                return None
            e = e.xreplace({a: found[0].rhs})
    return None


def _put(theory: Theory, q: OrderParameter, value: Expr) -> Theory:
    def term(x: Term) -> Term:
        found = _collapsed(x.expr, q, value)
        return x if found == x.expr else x.put(found)

    equations = tuple(
        replace(e, terms=tuple(y for y in map(term, e.terms) if y.expr != 0)) for e in theory.equations
    )
    kept = tuple(x for x in theory.order_parameters if x.symbol != q.symbol)
    return replace(theory, equations=equations, order_parameters=kept)


def _collapsed(e: Expr, q: OrderParameter, value: Expr) -> Expr:
    """``sum over s of delta(t, s) f(s)`` is ``f(t)``."""
    hits = [a for a in e.atoms(AppliedUndef) if _is(a, q)]
    if not hits:
        return e
    a = hits[0]
    names = dict(zip(q.symbol.args[:-2], a.args[:-2], strict=True))
    number = sympify(value).xreplace(names)
    if not isinstance(e, Sum | Integral):
        return e.xreplace({a: number * (S.One if a.args[-1] == a.args[-2] else KroneckerDelta(*a.args[-2:]))})
    body, limits = e, []
    while isinstance(body, Sum | Integral):
        limits += list(body.limits)
        body = body.function
    for lim in limits:
        if lim[0] == s and lim[2] == t - 1:
            return S.Zero
    body = body.xreplace({a: number}).xreplace({s: t})
    for lim in (x for x in limits if x[0] != s):
        body = _over_index(body, lim)
    return body


def _over_index(body: Expr, lim: tuple[Symbol, Expr, Expr]) -> Expr:
    for delta in body.atoms(KroneckerDelta):
        if lim[0] in delta.args:
            other = next(x for x in delta.args if x != lim[0])
            return body.xreplace({delta: S.One}).xreplace({lim[0]: other})
    return Sum(body, lim)


def _is(a: AppliedUndef, q: OrderParameter) -> bool:
    """The same response, at any indices and times (a layer that is a number must be that number)."""
    if a.func != q.symbol.func or len(a.args) != len(q.symbol.args):
        return False
    pairs = zip(a.args[:-2], q.symbol.args[:-2], strict=True)
    return all(y == x for x, y in pairs if y.is_Integer)


def absorb_factors(theory: Theory, *sources: str) -> Theory:
    """The same theory with each of the named sources scaled so that it enters with factor 1 or -1.

    What depends on time (the memory of a rule with decay) stays outside.  An attribute of the unit goes
    along into the source's covariance.  Raises :class:`NotApplicable` for a source that does not occur, or
    enters two equations with different factors.

    >>> from derive.theory import mean_field
    >>> from derive.program.networks.isotropic import isotropic
    >>> theory = absorb_factors(mean_field(isotropic()), "r0", "u0")
    >>> print(theory.equation("h", 1).terms[1].expr)
    Sum(R_h0r0(t, s)*g(1, s)/(gamma0*nu), (s, 0, t))
    """
    for name in sources:
        theory = _absorbed(theory, name)
    return theory


def _absorbed(theory: Theory, name: str) -> Theory:
    factor = source_factor(theory, name)
    if factor == 1:
        return theory
    changed, scales = [], {}
    for q in theory.order_parameters:
        new, scale = _pushed(theory, q, name, factor)
        changed.append(new)
        if scale != 1:
            scales[q.symbol.func] = scale

    def rescaled(e: Expr) -> Expr:
        return sympify(e).replace(
            lambda x: isinstance(x, AppliedUndef) and x.func in scales, lambda x: scales[x.func] * x
        )

    moved = theory.map(rescaled)

    def bare(e: Expr) -> Expr:
        return e.replace(lambda x: _called(x, name), lambda x: x / factor)

    return replace(
        moved,
        equations=tuple(replace(e, terms=tuple(x.rewrite(bare) for x in e.terms)) for e in moved.equations),
        sources=tuple(
            replace(
                u,
                covariance=u.covariance
                * (factor if _called(u.symbol, name) else 1)
                * (factor if _called(u.partner, name) else 1),
            )
            for u in moved.sources
        ),
        order_parameters=tuple(changed),
    )


def source_factor(theory: Theory, name: str) -> Expr:
    """What multiplies the source wherever it occurs, without sign and without what depends on time."""
    found = set()
    for e in theory.equations:
        for x in e.terms:
            for a in sorted((a for a in x.expr.atoms(AppliedUndef) if _called(a, name)), key=str):
                constant, _ = (x.expr / a).as_independent(t, s)
                found.add(-constant if constant.could_extract_minus_sign() else constant)
    if not found:
        raise NotApplicable(f"the theory has no source called {name}")
    if len(found) > 1:
        raise NotApplicable(f"{name} enters with different factors: {', '.join(sorted(map(str, found)))}")
    return found.pop()


def _pushed(theory: Theory, q: OrderParameter, name: str, factor: Expr) -> tuple[OrderParameter, Expr]:
    """A response with its definition in the new source, and what its old value is in units of the new."""
    hits = [x for x in q.definition.atoms(Response) if _called(x.source, name)]
    if not hits:
        return q, S.One
    old = hits[0]
    fixed, moving = _split(theory, old.body)
    units, number = _split_unit(theory, factor * fixed)
    outside = q.definition / next(iter(q.definition.atoms(Average)))
    return replace(q, definition=outside * Average(units * Response(moving, old.source))), number


def _split(theory: Theory, body: Expr) -> tuple[Expr, Expr]:
    """Factors that no source moves, and the rest."""
    return Mul(*_moved(theory, body, False)), Mul(*_moved(theory, body, True))


def _moved(theory: Theory, body: Expr, random: bool) -> list[Expr]:
    names = {x.name for x in theory.program.fields}
    return [
        x for x in Mul.make_args(body) if random == any(str(a.func) in names for a in x.atoms(AppliedUndef))
    ]


def _split_unit(theory: Theory, e: Expr) -> tuple[Expr, Expr]:
    """Attributes of the unit, which stay in averages, and numbers, which come out."""
    own = {x.name for x in theory.program.attributes}
    args = Mul.make_args(e)
    units = [x for x in args if any(str(a.func) in own for a in x.atoms(AppliedUndef))]
    return Mul(*units), Mul(*[x for x in args if x not in units])


def _called(x: Expr, name: str) -> bool:
    return isinstance(x, AppliedUndef) and str(x.func) == name


def theory_limit(theory: Theory, values: Mapping[Symbol, Expr]) -> Theory:
    """The theory as each parameter in ``values`` goes to the given value.

    Sources whose factors contain such a parameter are scaled first (:func:`.absorb_factors`), and
    responses that have become instantaneous are written out (:func:`.instant_responses`).  Raises
    :class:`NotApplicable` when a term has no finite limit.

    >>> from sympy import oo
    >>> from derive.theory import mean_field
    >>> from derive.program.networks.isotropic import alpha, isotropic
    >>> print(theory_limit(mean_field(isotropic()), {alpha: oo}).equation("h0").rhs)
    v(t)
    """
    for x, value in values.items():
        theory = _one(theory, x, sympify(value))
    return theory


def _one(theory: Theory, x: Symbol, value: Expr) -> Theory:
    theory = absorb_factors(theory, *scaled_sources(theory, x))
    sources = [replace(u, covariance=at_limit(u.covariance, x, value)) for u in theory.sources]
    dead = {u.symbol.func for u in sources if u.covariance == 0 and u.symbol.func == u.partner.func}
    lively = tuple(u for u in sources if u.covariance != 0)

    def equation(e: Equation) -> Equation:
        found = (_term_at_limit(y, x, value) for y in e.terms)
        return replace(e, terms=tuple(y for y in found if y.expr != 0 and not _is_source(y, dead)))

    moved = replace(
        theory,
        sources=lively,
        equations=tuple(map(equation, theory.equations)),
        scalars=tuple(map(equation, theory.scalars)),
        observables=(),
        reduction=f"{theory.reduction}, {x} -> {value}".strip(", "),
    )
    return _needed(instant_responses(_needed(moved)))


def _term_at_limit(term: Term, x: Symbol, value: Expr) -> Term:
    """A term whose kernel goes to its limit, with the factors of ``x`` that stood in front of it."""
    fixed, moving = term.coefficient.as_independent(x, as_Add=False)
    if not (term.remembers or term.over) or moving.has(AppliedUndef) or term.field.has(x):
        return term.put(at_limit(term.expr, x, value))
    kernel = at_limit(moving * term.kernel, x, value)
    return term.put(S.Zero) if kernel == 0 else replace(term, coefficient=fixed, kernel=kernel)


def at_limit(e: Expr, x: Symbol, value: Expr) -> Expr:
    """The limit of an expression whose only parts that depend on ``x`` are factors.

    Where a factor stands, before a sum or in it, makes no difference: what depends on ``x`` is taken inside.
    Raises :class:`NotApplicable` for any other dependence, and where there is no finite limit.

    >>> from sympy import Function, oo
    >>> from sympy.abc import k, t, x
    >>> f = Function("f")
    >>> at_limit(Sum((1 + 1 / x) * f(t), (t, 0, 3)) + f(1) / x, x, oo)
    Sum(f(t), (t, 0, 3))
    >>> at_limit(Sum(x * f(k), (k, 0, 2)) / x, x, oo)
    Sum(f(k), (k, 0, 2))
    """
    e = sympify(e)
    if not e.has(x):
        return e
    if isinstance(e, Sum | Integral):
        if any(end.has(x) for limits in e.limits for end in limits[1:]):
            raise NotApplicable(f"the bounds of {e} depend on {x}")
        inside = at_limit(e.function, x, value)
        return S.Zero if inside == 0 else e.func(inside, *e.limits)
    total = S.Zero
    for part in Add.make_args(e.expand()):
        fixed, moving = part.as_independent(x, as_Add=False)
        inner = next((y for y in Mul.make_args(moving) if isinstance(y, Sum | Integral)), None)
        if inner is not None:
            total += fixed * at_limit(_into(moving / inner, inner), x, value)
            continue
        if moving.has(AppliedUndef, Sum, Integral):
            raise NotApplicable(f"{part} does not depend on {x} by a factor only")
        end = limit(moving, x, value)
        if not end.is_finite:
            raise NotApplicable(f"{part} has no finite limit as {x} goes to {value}")
        total += end * fixed
    return total


def _into(factor: Expr, inner: Sum | Integral) -> Expr:
    """``factor * inner`` as one sum or integral, its indices renamed if the factor has such symbols."""
    if factor.free_symbols & set(inner.variables):
        inner = inner.as_dummy()
    return inner.func(factor * inner.function, *inner.limits)


def scaled_sources(theory: Theory, x: Symbol) -> list[str]:
    """Sources in front of which the parameter stands."""
    own = {u.symbol.func for u in theory.sources}
    return sorted(
        {
            str(a.func)
            for e in theory.equations
            for y in e.terms
            if not y.expr.has(Sum, Integral) and y.expr.has(x)
            for a in y.expr.atoms(AppliedUndef)
            if a.func in own
        }
    )


def _is_source(term: Term, dead: set[object]) -> bool:
    return any(a.func in dead for a in term.expr.atoms(AppliedUndef))


def _needed(theory: Theory) -> Theory:
    """Without responses that no equation contains."""
    used = {a.func for e in (*theory.equations, *theory.scalars) for a in e.rhs.atoms(AppliedUndef)}
    kept = tuple(q for q in theory.order_parameters if q.kind != "response" or q.symbol.func in used)
    return replace(theory, order_parameters=kept)


def mode_sums(theory: Theory, size: Symbol | None = None) -> Theory:
    """The theory with averages over the population that carries attributes written as sums over its units.

    ``size`` is the reference size as it stands in the program, by default the symbol M.  Raises
    :class:`NotApplicable` if the program has no attributes, or if the size does not drop out.

    >>> from derive.theory import mean_field
    >>> from derive.reduce.data import absorb_factors
    >>> from derive.program.networks.structured import structured
    >>> theory = mode_sums(absorb_factors(mean_field(structured()), "r0", "u0"))
    >>> print(theory.order_parameter("C_h0").definition)
    Sum(<h0(k, s)*h0(k, t)>, (k, 1, M))
    """
    if not theory.program.attributes:
        raise NotApplicable("the units of no population are told apart: there are no modes to sum over")
    return _Modes(theory, size or Symbol("M", integer=True, positive=True)).theory()


class _Modes:
    def __init__(self, theory: Theory, size: Symbol) -> None:
        self.old, self.program, self.size = theory, theory.program, size
        self.place = self.program.attributes[0].population
        self.unit = self.index()
        self.over = IndexRange(self.unit, Integer(1), size * sympify(self.place.ratio))
        on = self.place.name
        self.own = {x.name for x in self.program.fields if x.population.name == on}
        self.own |= {str(u.symbol.func) for u in theory.sources if self.lives(u)}
        self.sums = {q.symbol.func for q in theory.order_parameters if self.averages(q)}

    def index(self) -> Symbol:
        names = {x.name for x in self.program.attributes}
        atoms = [a for d in self.program.definitions for a in d.rhs.atoms(AppliedUndef)]
        found = {a.args[0] for a in atoms if str(a.func) in names}
        if len(found) != 1:
            raise NotApplicable(f"the unit has several names: {', '.join(sorted(map(str, found)))}")
        return found.pop()

    def lives(self, u: Source) -> bool:
        """Does the source enter equations of the modes?"""
        here = [e for e in self.old.equations if _population(self.program, e.name) == self.place]
        return any(u.symbol.func == a.func for e in here for a in e.rhs.atoms(AppliedUndef))

    def averages(self, q: OrderParameter) -> bool:
        return any(str(a.func) in self.own for a in q.definition.atoms(AppliedUndef))

    def theory(self) -> Theory:
        new = replace(
            self.old,
            sources=tuple(map(self.source, self.old.sources)),
            equations=tuple(map(self.equation, self.old.equations)),
            scalars=tuple(map(self.equation, self.old.scalars)),
            order_parameters=tuple(map(self.order_parameter, self.old.order_parameters)),
            observables=(),
            reduction=f"{self.old.reduction}, sums over modes".strip(", "),
        )
        left = [e for e in (*new.equations, *new.scalars) if e.rhs.has(self.size)]
        if left or any(u.covariance.has(self.size) for u in new.sources):
            raise NotApplicable(
                f"the number of modes {self.size} does not drop out of {left[0].lhs if left else 'a source'}"
            )
        return new

    # -- pieces ----------------------------------------------------------------------------------------------

    def summed(self, e: Expr) -> Expr:
        """Averages over modes are sums over their number."""
        number = self.size * sympify(self.place.ratio)
        e = sympify(e).replace(
            lambda x: isinstance(x, AppliedUndef) and x.func in self.sums, lambda x: x / number
        )
        return self.indexed(e)

    def indexed(self, e: Expr) -> Expr:
        """Fields and sources of the modes with the unit as first index."""
        return e.replace(
            lambda x: isinstance(x, AppliedUndef) and str(x.func) in self.own and x.args[:1] != (self.unit,),
            lambda x: Function(str(x.func))(self.unit, *x.args),
        )

    def source(self, u: Source) -> Source:
        here = str(u.symbol.func) in self.own
        return replace(
            u,
            symbol=self.indexed(u.symbol),
            partner=self.indexed(u.partner),
            covariance=self.summed(u.covariance),
            ranges=(*((self.over,) if here else ()), *u.ranges),
        )

    def equation(self, e: Equation) -> Equation:
        here = e.name in self.own
        terms = tuple(x.rewrite(self.summed) for x in e.terms)
        return replace(
            e, lhs=self.indexed(e.lhs), terms=terms, ranges=(*((self.over,) if here else ()), *e.ranges)
        )

    def order_parameter(self, q: OrderParameter) -> OrderParameter:
        if q.symbol.func not in self.sums:
            return q
        average = next(iter(q.definition.atoms(Average)))
        body = Average(self.indexed(average.body))
        return replace(q, definition=Sum(q.definition.xreplace({average: body}), self.over.limits))


def _population(program: Program, field: str) -> Population | None:
    x = program.field_of(field)
    return None if x is None else x.population


BIAS, WIDTH, DATA, NOISE = "bias", "limited width", "limited data", "label noise"


@dataclass(frozen=True)
class Part:
    """The part of a correlation function that comes from ``source``; ``label`` says what that stands for."""

    label: str
    source: str
    expr: Expr


@dataclass(frozen=True)
class LossDecomposition:
    """``correlation = sum of parts``, with the transfer functions that occur in them.

    The loss is the correlation function at ``s = t``.
    """

    theory: Theory
    correlation: Expr
    parts: tuple[Part, ...]
    transfers: tuple[Transfer, ...]

    @property
    def eq(self) -> Eq:
        """The identity."""
        return Eq(self.correlation, Add(*[p.expr for p in self.parts]), evaluate=False)

    def part(self, label: str) -> Expr:
        """All that carries this label; zero if nothing does."""
        return Add(*[p.expr for p in self.parts if p.label == label])


def loss_decomposition(theory: Theory, name: str = "C_v") -> LossDecomposition:
    """Take a correlation function of a linear theory apart by the sources that it comes from.

    ``H_v_x(t, s)`` in it is the answer of v to a push of x (see :func:`.transfer`).  Raises
    :class:`NotApplicable` when the correlation is not of one field of one place.

    >>> from derive.theory import mean_field
    >>> from derive.reduce.data import absorb_factors
    >>> from derive.program.networks.isotropic import isotropic
    >>> parts = loss_decomposition(absorb_factors(mean_field(isotropic(noise=True)), "r0", "u0"))
    >>> [p.label for p in parts.parts]
    ['bias', 'limited width', 'limited data', 'label noise']
    """
    return _Decomposition(theory, name).result()


@dataclass(frozen=True)
class _Entry:
    """A source's entry into an equation, with the factor in front of it."""

    equation: Equation
    symbol: AppliedUndef
    factor: Expr

    @property
    def into(self) -> str:
        return self.equation.name


class _Decomposition:
    """``depth`` counts how deep this one stands inside another, and keeps summation indices apart."""

    def __init__(self, theory: Theory, name: str, depth: int = 0) -> None:
        self.theory, self.program, self.depth = theory, theory.program, depth
        self.q = theory.order_parameter(name)
        self.average = next(iter(self.q.definition.atoms(Average)))
        fields = [
            a for a in self.average.atoms(AppliedUndef) if self.program.field_of(str(a.func)) is not None
        ]
        if {a.args[-1] for a in fields} != {t, s} or len(fields) != 2 or fields[0].func != fields[1].func:
            raise NotApplicable(f"{name} is not the correlation function of one field")
        self.now, self.past = sorted(fields, key=lambda a: bool(a.args[-1] == s))
        self.transfers: dict[str, Transfer] = {}

    @property
    def field(self) -> str:
        return str(self.now.func)

    def result(self) -> LossDecomposition:
        order = (BIAS, WIDTH, DATA, NOISE)
        found = [x for pair in self.pairs() for x in self.parts(*pair)]
        parts = tuple(sorted(found, key=lambda p: order.index(p.label)))
        return LossDecomposition(self.theory, self.q.symbol, parts, tuple(self.transfers.values()))

    # -- which sources ---------------------------------------------------------------------------------------

    def entries(self) -> Iterator[_Entry]:
        """What the population's equations contain besides its own fields."""
        rows = tuple(population(self.theory, self.field))
        names = {e.name for e in rows}
        known = {str(u.symbol.func) for u in self.theory.sources} | self.given
        for e in rows:
            for x in e.terms:
                for part in addends(x.expr):
                    atoms = part.atoms(AppliedUndef)
                    if any(str(a.func) in names for a in atoms):
                        continue
                    found = [a for a in atoms if str(a.func) in known]
                    stochastic = [a for a in found if str(a.func) not in self.given]
                    if len(stochastic or found) != 1:
                        raise NotApplicable(f"{part} in the equation of {e.name} is no source")
                    a = (stochastic or found)[0]
                    yield _Entry(e, a, part / a)

    @property
    def given(self) -> set[str]:
        return {x.name for x in self.program.attributes}

    def pairs(self) -> Iterator[tuple[_Entry, _Entry, Expr, str]]:
        """Pairs of entries that are correlated: covariance at the two times, label."""
        found = list(self.entries())
        for x in found:
            for y in found:
                if x.symbol == y.symbol and str(x.symbol.func) in self.given:
                    yield x, y, x.symbol * y.symbol, BIAS
                for u in self.theory.sources:
                    pair = (u.symbol.func, u.partner.func)
                    if pair == (x.symbol.func, y.symbol.func):
                        yield x, y, self.between(u, (x, y), u.symbol, u.partner, False), self.label(u)
                    elif pair == (y.symbol.func, x.symbol.func):
                        yield x, y, self.between(u, (x, y), u.partner, u.symbol, True), self.label(u)

    def label(self, u: Source) -> str:
        for m in self.program.matrices:
            if gaussian(m).name == u.matrix:
                return WIDTH if isinstance(m, TrainedMatrix) else DATA
        return BIAS

    # -- one part --------------------------------------------------------------------------------------------

    def parts(self, x: _Entry, y: _Entry, covariance: Expr, label: str) -> Iterator[Part]:
        """One part, or two if the samples' errors are in it and have label noise."""
        source = str(x.symbol.func)
        split = self.samples(covariance) if label == DATA and self.depth == 0 else ()
        for inner, value in split:
            noisy = inner.label == BIAS
            yield Part(NOISE if noisy else DATA, inner.source if noisy else source, self.form(x, y, value))
        if not split:
            yield Part(label, source, self.form(x, y, covariance))

    def samples(self, covariance: Expr) -> tuple[tuple[Part, Expr], ...]:
        """The covariance with the samples' own errors in it taken apart, if they have label noise."""
        for q in self.theory.correlations():
            hits = [a for a in covariance.atoms(AppliedUndef) if a.func == q.symbol.func]
            if hits:
                inner = _Decomposition(self.theory, q.name, self.depth + 1)
                found = inner.result().parts
                if any(p.label == BIAS for p in found):
                    self.transfers |= {f"{k} of {q.name}": v for k, v in inner.transfers.items()}
                    place = dict(zip(q.symbol.args, hits[0].args, strict=True))
                    return tuple((p, covariance.xreplace({hits[0]: p.expr.xreplace(place)})) for p in found)
        return ()

    def form(self, x: _Entry, y: _Entry, covariance: Expr) -> Expr:
        """``sum over s_1, s_2 of H(t, s_1) <x(s_1) y(s_2)> H(s, s_2)``, weighed as in the definition."""
        body = self.carried(x, self.now, 1) * covariance * self.carried(y, self.past, 2)
        limits = [(r[0], 1, r[1]) for e, i in ((x, 1), (y, 2)) for r in self.channels(e, i).values()]
        times = [(self.time(1), 0, t), (self.time(2), 0, s)]
        weight = self.average.args[0] / (self.now * self.past)
        value = (
            Sum(weight * body, *limits, *times)
            if self.program.rule.discrete
            else self.flow(weight * body, limits, times)
        )
        return self.q.definition.xreplace({self.average: value})

    @staticmethod
    def flow(body: Expr, limits: list[tuple[Expr, ...]], times: list[tuple[Expr, ...]]) -> Expr:
        return Integral(Sum(body, *limits) if limits else body, *times)

    def carried(self, x: _Entry, at: AppliedUndef, i: int) -> Expr:
        """The source's factor at its time, times the transfer function from there."""
        if x.into not in self.transfers:
            self.transfers[x.into] = transfer(self.theory, x.into)
        h = self.transfers[x.into].answer(self.field)
        names = self.channels(x, i)
        ends = [names[r.index][0] for r in x.equation.ranges if r.index in names]
        factor = x.factor.xreplace({k: v[0] for k, v in names.items()}).xreplace({t: self.time(i)})
        return factor * h.func(*at.args[:-1], *ends, at.args[-1], self.time(i))

    def between(
        self, u: Source, pair: tuple[_Entry, _Entry], one: AppliedUndef, two: AppliedUndef, swap: bool
    ) -> Expr:
        """A source's covariance at the two inner times, and at the inner indices."""
        names: dict[Expr, Expr] = {s if swap else t: self.time(1), t if swap else s: self.time(2)}
        for x, a, i in zip(pair, (one, two), (1, 2), strict=True):
            own = [y for y in a.args[:-1] if y not in units(self.theory)]
            names |= dict(zip(own, [v[0] for v in self.channels(x, i).values()], strict=True))
        return u.covariance.xreplace(names)

    def channels(self, x: _Entry, i: int) -> dict[Expr, tuple[Symbol, Expr]]:
        """For each index of the entry's equation, its inner name and its number."""
        own = [r for r in x.equation.ranges if r.index not in units(self.theory)]
        return {
            r.index: (Symbol(f"{r.index.name}_{self.level(i)}", **r.index.assumptions0), r.upper) for r in own
        }

    def level(self, i: int) -> int:
        return 2 * self.depth + i

    def time(self, i: int) -> Symbol:
        return Symbol(f"s_{self.level(i)}", **s.assumptions0)
