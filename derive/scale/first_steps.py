"""First steps of a linear theory in closed form (linear2025 appendix D.2).

At integer times every sum over the past is finite: a field is a sum of sources, and an order parameter a
polynomial in those of the same and of neighbouring layers. One evaluation at such times (:class:`Unrolled`)
is used with three rings of coefficients:

- any number of steps at an integer depth, over rational functions (:class:`ExactSteps`, :func:`few_steps`);
:func:`first_step` takes one step;
- any number of steps at every depth, over polynomials in the layer, up to a power of the learning rate
(:class:`EveryDepth`);
- one step at every depth, over polynomials in the layer and in ``q^layer`` (:func:`first_step`).

The last two solve the recursions of the order parameters from layer to layer, so that the result is proved
for every depth, and check the solution against the equations of both ends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import lcm
from typing import Any

from sympy import (
    QQ,
    Add,
    Dummy,
    Eq,
    Expr,
    Function,
    I,
    Integer,
    Matrix,
    Max,
    Mul,
    Poly,
    Pow,
    Rational,
    S,
    Symbol,
    cancel,
    degree,
    factor,
    fraction,
    prime,
    sqrt,
    sympify,
)
from sympy.core.function import AppliedUndef
from sympy.utilities.iterables import strongly_connected_components

from derive.calculus.averages import Average, Response
from derive.calculus.recurrences import Z_L, Layered, Recurrences, Z, q
from derive.calculus.sums import Binding, factors, gathered, match
from derive.calculus.symbols import L, ell, eta, gamma0, s, t
from derive.errors import NotApplicable
from derive.linear.form import LinearTerm, Row, SourceCombination, linear_form
from derive.program import Program
from derive.program.nonlinear import require_linear_rules
from derive.show.conditions import ConditionalResult
from derive.show.latex import aligned_latex
from derive.theory import OrderParameter, Theory
from derive.theory.conditioning import theory_of
from derive.theory.families import families
from derive.theory.unfold import covariance, ends

OrderParameterAtTimes = tuple[str, tuple[Expr, ...]]
"""A family of order parameters: its name and two integer times."""


# -- a theory at integer times ------------------------------------------------------------------------------


class Unrolled:
    """Theory at integer times; layers are integers, ``L``, or a symbol for any inner layer.

    Coefficients are expressions in the order parameters, which keep their names. Raises
    :class:`NotApplicable` for a flow, and later for fields that are not linear in their sources, for several
    outputs, and for averages over units that differ.
    """

    zero: Any = S.Zero
    one: Any = S.One

    def __init__(self, theory: Theory) -> None:
        if not theory.program.rule.discrete:
            raise NotApplicable("a flow has no first step: give the rule as exact steps")
        joined = families(theory)
        self.theory = theory
        self.rows = linear_form(theory, [*ends(theory.equations), *joined.equations]).rows
        self.parameters = [*ends(theory.order_parameters), *theory.order_parameters]
        self.sources = [*ends(theory.sources), *joined.sources]
        self.base = {(b.name, b.lhs.args[0]): b for b in joined.base_cases}
        self.fields = {r.name for r in self.rows}
        self.source_names = {str(x.func) for u in self.sources for x in (u.symbol, u.partner)}
        self.layered = {q.name for q in self.parameters if q.layers}
        self.names = {q.name for q in self.parameters}
        self.forms: dict[AppliedUndef, SourceCombination] = {}
        self.values: dict[AppliedUndef, Any] = {}
        self.covariances: dict[tuple[AppliedUndef, AppliedUndef], Any] = {}

    def number(self, e: Expr) -> Any:
        """Return an expression of symbols and order parameters as a coefficient."""
        return e

    def trimmed(self, x: Any) -> Any:
        """Return a coefficient in normal form."""
        return x.expand()

    # -- fields ----------------------------------------------------------------------------------------

    def form(self, field: AppliedUndef) -> SourceCombination:
        """Return a field at an integer time as a sum of the sources of its site."""
        if field not in self.forms:
            row, now = self.row(field), field.args[-1]
            acting = (self.acted(x, now).items() for x in (*row.sources, *row.actions))
            cut = {k: self.trimmed(v) for k, v in gathered(chain(*acting)).items()}
            self.forms[field] = {k: v for k, v in cut.items() if v != 0}
        return self.forms[field]

    def row(self, field: AppliedUndef) -> Row:
        """Return the equation of a field at its layer."""
        row: Row
        row, known = self.find(((r.lhs, r) for r in self.rows), field)
        if row.given != 0:
            raise NotApplicable(f"{row.given} in the equation of {row.lhs} is not linear in the fields")
        place = {x: v for x, v in known.items() if x != t}
        acts = [tuple(x.map(lambda e: e.xreplace(place)) for x in y) for y in (row.sources, row.actions)]
        return replace(row, sources=acts[0], actions=acts[1])

    def acted(self, x: LinearTerm, now: Expr) -> SourceCombination:
        """Return ``sum_s kernel(now, s) field(s)`` as a sum of the sources of the site."""
        if x.over:
            raise NotApplicable(f"{x.expr}: a sum over {x.over[0].index}; the steps are of one output")

        def parts() -> Iterator[tuple[AppliedUndef, Any]]:
            """Yield sources with their coefficients."""
            for k in range(int(now) + (x.reach == "past")) if x.reach else [0]:
                front = self.kernel(x, now, Integer(k))
                if front != 0:
                    at = x.field.xreplace({t: now, s: Integer(k)})
                    form = {at: self.one} if x.name in self.source_names else self.form(at)
                    yield from ((y, front * c) for y, c in form.items())

        return gathered(parts())

    def kernel(self, x: LinearTerm, now: Expr, past: Expr) -> Any:
        """Return the factor of the field at two times."""
        return self.number(self.settled(x.weight.xreplace({t: now, s: past})))

    def settled(self, e: Expr) -> Expr:
        """Return ``e`` with order parameters in standard form: causal, later time first, no base cases."""
        return e.xreplace({a: self.standard(a) for a in e.atoms(AppliedUndef) if str(a.func) in self.names})

    def standard(self, a: AppliedUndef) -> Expr:
        """Return an order parameter in standard form."""
        base = self.base.get((str(a.func), a.args[0]))
        if base is not None:
            return self.settled(base.rhs.xreplace(dict(zip(base.lhs.args[1:], a.args[1:], strict=True))))
        parameter, _ = self.parameter(a)
        one, two = a.args[-2:]
        if parameter.kind == "response":
            late = two >= one if parameter.causal == "strict" else two > one
            return S.Zero if late else a
        return a.func(*a.args[:-2], two, one) if two > one else a

    # -- order parameters ------------------------------------------------------------------------------

    def value(self, a: AppliedUndef) -> Any:
        """Return an order parameter at integer times, from the covariances of sources and the equations."""
        a = self.standard(a)
        if not isinstance(a, AppliedUndef):
            return self.number(a)
        if a not in self.values:
            parameter, place = self.parameter(a)
            definition = parameter.definition.xreplace(place)
            averages = definition.atoms(Average)
            if len(averages) != 1:
                raise NotApplicable(
                    f"{a} is an average over units that differ: averages over equivalent units are needed"
                )
            (average,) = averages
            front = self.number((definition / average).expand())
            self.values[a] = self.trimmed(front * self.averaged(average.args[0]))
        return self.values[a]

    def averaged(self, body: Expr) -> Any:
        """Return ``<d field / d source>`` or ``<field field>`` at integer times."""
        if isinstance(body, Response):
            return self.form(body.body).get(body.source, self.zero)
        fields = factors(body)
        if not all(isinstance(x, AppliedUndef) and str(x.func) in self.fields for x in fields):
            raise NotApplicable(
                f"<{body}> is an average over units that differ: averages over equivalent units are needed"
            )
        return self.overlap(*map(self.form, fields))

    def overlap(self, one: SourceCombination, two: SourceCombination) -> Any:
        """Return the average of the product of two fields, ``sum_xy a_x b_y <x y>``."""
        total = self.zero
        for x, a in one.items():
            row = self.zero
            for y, b in two.items():
                c = self.covariance(x, y)
                if c != 0:
                    row += self.trimmed(c * b)
            total += self.trimmed(a * row)
        return total

    def covariance(self, x: AppliedUndef, y: AppliedUndef) -> Any:
        """Return ``<x y>`` of two sources at integer times."""
        if (x, y) not in self.covariances:
            value = self.number(self.settled(sympify(covariance(x, y, self.sources))))
            self.covariances[x, y] = self.covariances[y, x] = value
        return self.covariances[x, y]

    def parameter(self, a: AppliedUndef) -> tuple[OrderParameter, Binding]:
        """Return the order parameter of which ``a`` is a value, and its layer and times."""
        return self.find(((q.symbol, q) for q in self.parameters), a)

    @staticmethod
    def find(items: Iterable[tuple[Expr, Any]], a: AppliedUndef) -> tuple[Any, Binding]:
        """Return the item whose symbol matches ``a``, ends before families, and its layer and times."""
        for head, item in items:
            if (place := match(head, a, ())) is not None:
                return item, place
        raise NotApplicable(f"the theory has no equation, source or average that determines {a}")


def same_unit(theory: Theory, one: AppliedUndef, other: AppliedUndef) -> bool:
    """Return whether two fields belong to the same unit."""
    ours, theirs = (theory.program.field_of(str(x.func)) for x in (one, other))
    return bool(ours and theirs and ours.population == theirs.population and one.args[:-1] == other.args[:-1])


# -- a depth that is a number -------------------------------------------------------------------------------


class ExactSteps(Unrolled):
    """Order parameters of a theory of given depth as rational functions of its symbols.

    ``order = (x, n)`` drops powers of the symbol x above n everywhere. This is exact up to n for the learning
    rate, which has no negative powers; gamma0 has negative powers, so that two powers are lost. Raises
    :class:`NotApplicable` for a symbolic depth and where :class:`Unrolled` does.

    >>> from derive import isotropic, mean_field
    >>> steps = ExactSteps(mean_field(isotropic(1, data="population", center=True)), order=(eta, 2))
    >>> factor(steps.expr(steps.value(Function("C_v")(2, 2))))
    (24*eta**2*nu + 6*eta**2 - 8*eta*nu + nu)/nu
    """

    def __init__(self, theory: Theory, order: tuple[Symbol, int] | None = None) -> None:
        super().__init__(self.fixed(theory))
        self.order = order
        powers = [p for p in self.told(Pow) if p.exp.is_Rational and not p.exp.is_Integer]
        roots = {p.base: lcm(*(x.exp.q for x in powers if x.base == p.base)) for p in powers}
        self.roots = {Dummy(f"root_{x}", positive=True): (x, n) for x, n in roots.items() if x.is_Symbol}
        if self.roots:  # the substitution x = y**n makes all coefficients rational
            powers_of = {x: y**n for y, (x, n) in self.roots.items()}
            super().__init__(self.theory.map(lambda e: e.subs(powers_of)))
        numbers = sorted({x for x in self.told(Pow) if x.is_number and not x.is_rational}, key=str)
        self.domain = QQ.algebraic_field(*numbers) if numbers else QQ
        known = self.names | self.fields | self.source_names
        self.widths = {  # widths and other numbers of layers
            x.func(Integer(k))
            for x in self.told(AppliedUndef)
            if str(x.func) not in known and len(x.args) == 1 and (x.args[0] == ell or x.args[0].is_Integer)
            for k in range(int(self.theory.program.depth) + 2)
        }
        symbols = ({eta, gamma0} | self.told(Symbol)) - {t, s, ell}
        self.field = self.ring(sorted(symbols | self.widths, key=str))
        self.zero, self.one = self.field.zero, self.field.one

    def told(self, kind: type[Expr]) -> set[Any]:
        """Return all expressions of a class in the equations of fields and the covariances of sources."""
        told = [*(r.rhs for r in self.rows), *(sympify(u.covariance) for u in self.sources)]
        return {x for e in told for x in e.atoms(kind)}

    def fixed(self, theory: Theory) -> Theory:
        """Return the theory at its depth."""
        depth = theory.program.depth
        if not depth.is_Integer:
            raise NotApplicable(f"the depth {depth} is a symbol: exact steps beyond the first need a number")
        return theory.at_depth(int(depth))

    def ring(self, symbols: Sequence[Symbol]) -> Any:
        """Return the field of the coefficients."""
        self.place = None if self.order is None else symbols.index(self.order[0])
        return self.domain.frac_field(*symbols)

    def expr(self, x: Any) -> Expr:
        """Return an element as an expression."""
        return self.field.to_sympy(x).xreplace({y: x ** Rational(1, n) for y, (x, n) in self.roots.items()})

    def trimmed(self, x: Any) -> Any:
        """Return ``x`` without powers beyond the order."""
        if self.order is None or not x or len(x.denom) != 1:
            return x
        ((below, _),) = x.denom.terms()
        last = self.order[1] + below[self.place]
        if x.numer.degree(self.place) <= last:
            return x
        kept = x.numer.ring.from_dict({m: c for m, c in x.numer.terms() if m[self.place] <= last})
        return self.field(kept) / self.field(x.denom)

    def number(self, e: Expr) -> Any:
        """Return an expression of symbols and order parameters as an element."""
        if isinstance(e, AppliedUndef) and e not in self.widths:
            return self.value(e)
        if isinstance(e, Add):
            return sum((self.number(x) for x in e.args), self.zero)
        if isinstance(e, Mul):
            found = self.one
            for x in e.args:
                found = self.trimmed(found * self.number(x))
            return found
        if isinstance(e, Pow) and e.exp.is_Integer:
            base = self.number(e.base)
            return self.quotient(self.one, base ** -int(e.exp)) if e.exp.is_negative else base ** int(e.exp)
        try:
            return self.field.from_sympy(e)
        except ValueError:
            raise NotApplicable(
                f"{e} differs between units: the steps need averages over equivalent units"
            ) from None

    def quotient(self, x: Any, y: Any) -> Any:
        """Return the quotient of two elements."""
        return x / y


@dataclass(frozen=True)
class FewSteps(ConditionalResult):
    """Correlation function at the first times, rational in the symbols of the theory.

    Parameters
    ----------
    theory : Theory
        Theory.
    name : str
        Name of the function.
    values : tuple[Expr, ...]
        Value at equal times 0, 1, ....
    order : tuple[Symbol, int] | None
        Symbol of which higher powers were dropped, and the highest power; None if none were.
    """

    theory: Theory
    name: str
    values: tuple[Expr, ...]
    order: tuple[Symbol, int] | None = None

    def conditions(self) -> tuple[str, ...]:
        """Return the assumptions of the values.

        Returns
        -------
        tuple[str, ...]
            Assumptions as sentences.
        """
        known = "exactly" if self.order is None else f"to the power {self.order[1]} of {self.order[0]}"
        return (
            *_of_theory(self.theory),
            f"derived: {self.name} at equal times 0 to {len(self.values) - 1}, {known}",
        )

    def growth_factor(self, step: int = 1) -> Expr:
        """Return the ratio of the value at a step to the initial value.

        Parameters
        ----------
        step : int, optional
            Step.

        Returns
        -------
        Expr
            Ratio.

        Raises
        ------
        IndexError
            If the step is beyond the last one.
        """
        return cancel(self.values[step] / self.values[0])

    def _repr_latex_(self) -> str:
        rows = (Eq(Function(self.name)(k, k), x, evaluate=False) for k, x in enumerate(self.values))
        return aligned_latex(rows, self.theory)


def few_steps(
    theory: Theory, steps: int, name: str = "C_v", order: tuple[Symbol, int] | None = None
) -> FewSteps:
    """Return a correlation function of a linear theory at the first times.

    Parameters
    ----------
    theory : Theory
        Linear theory. Its depth is a number; with an order in the learning rate it may be ``L`` (see
        :class:`EveryDepth`).
    steps : int
        Number of steps.
    name : str, optional
        Name of the function.
    order : tuple[Symbol, int] | None, optional
        Symbol, the learning rate or gamma0, and its highest power; higher powers are dropped exactly (see
        :class:`ExactSteps`).

    Returns
    -------
    FewSteps
        Values at equal times 0, 1, ..., ``steps``.

    Raises
    ------
    NotApplicable
        For another depth, a flow, several outputs, modes, and fields that are not linear in their sources.

    Notes
    -----
    The expressions grow fast: three steps of one hidden layer have 576 terms in three symbols. Substitute
    numbers for symbols that are not needed (``theory.map``).

    Examples
    --------
    >>> from derive import isotropic, mean_field
    >>> found = few_steps(mean_field(isotropic(1, data="population", center=True)), 2)
    >>> found.growth_factor(1)
    (4*eta**2*nu + eta**2 - 4*eta*nu + nu)/nu
    >>> found.values[2].expand().coeff(gamma0, 2).coeff(eta, 3), len(found.values[2].expand().args)
    (-8, 36)
    >>> few_steps(mean_field(isotropic(data="population", center=True)), 2, order=(eta, 1)).values[2]
    -4*L*eta - 4*eta + 1
    """
    if steps < 0:
        raise NotApplicable(f"steps = {steps}: give 0 or more")
    head, exact = _of_one_output(theory, name), exact_steps(theory, order)
    times = map(Integer, range(steps + 1))
    return FewSteps(theory, name, tuple(exact.expr(exact.value(head.func(k, k))) for k in times), order)


def _of_theory(theory: Theory) -> tuple[str, ...]:
    """Return the assumptions of the theory at integer times."""
    if any(e.name == "xi" for e in theory.equations):
        start = "is subtracted (center), so that the error starts as the target"
    else:
        start = "is part of the error (no center)"
    return (
        "assumed: widths, inputs and samples go to infinity at fixed ratios",
        f"assumed: the initial function {start}",
    )


# -- from layer to layer ------------------------------------------------------------------------------------


class LayerFamilies(ABC):
    """Families of order parameters of a theory of depth L at integer times, as functions of the layer.

    Families that depend on each other satisfy ``y(ell) = M y(ell + k) + f(ell)`` with k = 1 or -1, and have a
    value at that end. They are solved in order of dependence and checked against the equations of both ends.
    Subclasses define the ring and the solution of a recurrence.
    """

    def __init__(self, theory: Theory) -> None:
        program = theory.program
        if L in program.depth.free_symbols and any(f.layered and f.population.shared for f in program.fields):
            raise NotApplicable(
                "the layers of a residual network share their units: give its depth as a number"
            )
        self.read = Unrolled(theory)
        self.families: dict[OrderParameterAtTimes, Any] = {}

    @abstractmethod
    def put(self, e: Expr) -> Any:
        """Return an expression of symbols and order parameters as a function of the layer ``ell``."""

    @abstractmethod
    def at(self, value: Any, layer: Expr) -> Any:
        """Return an element with another layer in place of ``ell``."""

    @abstractmethod
    def recurrence(self, M: list[list[Any]], f: list[Any], k: int, start: list[Any]) -> list[Any]:
        """Return y with ``y(ell) = M y(ell + k) + f(ell)`` and ``start`` at L (k = 1) or 1."""

    def vanishes(self, value: Any) -> bool:
        """Return whether an element is zero."""
        return bool(value == 0)

    def member(self, a: AppliedUndef) -> Any:
        """Return an order parameter of a family, at layer ``ell + i``, ``L + i`` or a number."""
        key = (str(a.func), a.args[1:])
        if key not in self.families:
            steps = self.reached(key)
            for group in _groups({k: set(needs) for k, (_, needs) in steps.items()}):
                self.solve(group, steps)
        return self.at(self.families[key], a.args[0])

    def reached(
        self, key: OrderParameterAtTimes
    ) -> dict[OrderParameterAtTimes, tuple[Expr, dict[OrderParameterAtTimes, set[Expr]]]]:
        """Return all unsolved families on which this one depends: value at ell, and layers that it needs."""
        found: dict[OrderParameterAtTimes, tuple[Expr, dict[OrderParameterAtTimes, set[Expr]]]] = {}
        todo = [key]
        while todo:
            k = todo.pop()
            if k in found or k in self.families:
                continue
            value = self.read.value(_called(k, ell))
            needs: dict[OrderParameterAtTimes, set[Expr]] = {}
            for a in value.atoms(AppliedUndef):
                if str(a.func) in self.read.layered:
                    needs.setdefault((str(a.func), a.args[1:]), set()).add(a.args[0] - ell)
            found[k] = value, needs
            todo += needs
        return found

    def solve(
        self,
        group: list[OrderParameterAtTimes],
        steps: Mapping[OrderParameterAtTimes, tuple[Expr, dict[OrderParameterAtTimes, set[Expr]]]],
    ) -> None:
        """Solve families that depend on each other and on known ones."""
        shifts = {x for k in group for d, layers in steps[k][1].items() if d in group for x in layers}
        if not shifts:
            self.families[group[0]] = self.put(steps[group[0]][0])
            return self.check(group)
        if shifts not in ({S.One}, {S.NegativeOne}):
            raise NotApplicable(f"{group[0][0]} of a layer depends on those of layers on either side")
        shift = int(shifts.pop())
        names = {_called(k, ell + shift): Dummy() for k in group}
        rows: dict[OrderParameterAtTimes, tuple[dict[OrderParameterAtTimes, Any], Any]] = {}
        for k in group:
            p = Poly(steps[k][0].xreplace(names), *names.values())
            if p.total_degree() > 1:
                raise NotApplicable(f"{k[0]} of a layer is not linear in that of the next one")
            front = [self.put(p.coeff_monomial(y)) for y in names.values()]
            rows[k] = dict(zip(group, front, strict=True)), self.put(p.coeff_monomial(1))
        edges = {k: {d for d, c in row.items() if not self.vanishes(c)} for k, (row, _) in rows.items()}
        for part in _groups(edges):  # decoupled families are solved one after the other
            rest = []
            for k in part:
                row, value = rows[k]
                for d in edges[k] - set(part):
                    value = value + row[d] * self.at(self.families[d], ell + shift)
                rest.append(value)
            if part[0] in edges[part[0]] or len(part) > 1:
                start = [self.put(self.read.value(_called(k, L if shift == 1 else S.One))) for k in part]
                rest = self.recurrence([[rows[k][0][d] for d in part] for k in part], rest, shift, start)
            self.families |= dict(zip(part, rest, strict=True))
        return self.check(group)

    def check(self, group: list[OrderParameterAtTimes]) -> None:
        """Raise NotApplicable unless the closed form satisfies the equations of both ends."""
        for k in group:
            for site in (S.One, L):
                theirs = self.put(self.read.value(_called(k, site)))
                if not self.vanishes(self.at(self.families[k], site) - theirs):
                    raise NotApplicable(f"{k[0]} of layer {site} does not continue its family")


def _called(key: OrderParameterAtTimes, layer: Expr) -> AppliedUndef:
    """Return the order parameter of a family at a layer."""
    return Function(key[0])(layer, *key[1])


def _groups(
    edges: Mapping[OrderParameterAtTimes, Iterable[OrderParameterAtTimes]],
) -> list[list[OrderParameterAtTimes]]:
    """Return families grouped by mutual dependence, in order of dependence."""
    pairs = [(a, b) for a, needs in edges.items() for b in needs if b in edges]
    return [sorted(c, key=str) for c in strongly_connected_components((list(edges), pairs))]


class EveryDepth(ExactSteps, LayerFamilies):
    """Order parameters at depth L up to a power of the learning rate, polynomial in the layer.

    To order zero in the rate a family is passed on unchanged from layer to layer, or not at all. Then
    ``y(ell) - y(ell + k)`` is a polynomial in ell with known coefficients order by order, and so is its sum
    over layers. The recurrences hold at every layer, so that the result is proved for every depth. Raises
    :class:`NotApplicable` if a family is not passed on in this way, and where :class:`ExactSteps` does.

    >>> from derive import isotropic, mean_field
    >>> steps = EveryDepth(mean_field(isotropic(data="population", center=True)), order=(eta, 2))
    >>> factor(steps.expr(steps.value(Function("C_v")(S.One, S.One))).coeff(eta, 2))
    (L + 1)*(2*L**2 + 6*L*nu + L + 6*nu)/(6*nu)
    """

    def __init__(self, theory: Theory, order: tuple[Symbol, int]) -> None:
        if order[0] != eta:
            raise NotApplicable(f"every depth at once needs an order in {eta}, not in {order[0]}")
        ExactSteps.__init__(self, theory, order)
        LayerFamilies.__init__(self, theory)

    def fixed(self, theory: Theory) -> Theory:
        """Return the theory itself."""
        if theory.program.depth != L:
            raise NotApplicable(f"depth {theory.program.depth}: give L or a number")
        return theory

    def ring(self, symbols: Sequence[Symbol]) -> Any:
        """Return polynomials in the layer, L and the rate; other symbols may have negative powers."""
        self.sums = Layered(symbols)
        self.place, self.last = self.sums.ring.symbols.index(eta), self.order[1]  # type: ignore[index]
        return self.sums.ring.to_domain()

    def trimmed(self, x: Any) -> Any:
        """Return ``x`` without powers of the rate beyond the order."""
        if x.degree(self.sums.ring.gens[self.place]) <= self.last:
            return x
        return x.ring.from_dict({m: c for m, c in x.terms() if m[self.place] <= self.last})

    def quotient(self, x: Any, y: Any) -> Any:
        """Return the quotient of one element by another that divides it."""
        (whole, up), (by, down) = map(self.raised, (x, y))
        found, rest = whole.div(by) if y else (x, self.one)
        if rest:
            raise NotApplicable(f"{self.expr(x)} is no polynomial times {self.expr(y)}")
        return found.mul_term((tuple(j - i for i, j in zip(up, down, strict=True)), QQ.one))

    def raised(self, x: Any) -> tuple[Any, tuple[int, ...]]:
        """Return an element without the powers that are common to all its terms, and these powers."""
        up = tuple(-min(k) for k in zip(*x.monoms(), strict=True)) or x.ring.zero_monom
        return x.mul_term((up, QQ.one)), up

    def value(self, a: AppliedUndef) -> Any:
        """Return an order parameter at integer times; layers are ``ell + i``, ``L + i`` or numbers."""
        known = self.standard(a)
        if isinstance(known, AppliedUndef) and str(known.func) in self.layered:
            return self.member(known)
        return super().value(a)

    # -- recurrences in the layer, order by order in the rate ------------------------------------------

    def put(self, e: Expr) -> Any:
        """Return an expression as a polynomial in the layer."""
        return self.trimmed(self.number(e))

    def at(self, value: Any, layer: Expr) -> Any:
        """Return a polynomial at another layer."""
        return self.sums.moved(value, layer)

    def recurrence(self, M: list[list[Any]], f: list[Any], k: int, start: list[Any]) -> list[Any]:
        """Return ``y(ell) = y(end) + sum of y(m) - y(m + k)``, iterated until it is constant.

        With ``M = D + eta (...)`` and D diagonal with ones and zeros, every iteration determines one order.
        """
        last = (self.last + 1) * len(f) + 1
        passed = [self.passed_on(M[i][i]) for i in range(len(f))]
        found = [self.zero] * len(f)
        for _ in range(last):
            before = [self.at(y, ell + k) for y in found]
            rest = [
                self.trimmed(sum((m * y for m, y in zip(row, before, strict=True)), own))
                for row, own in zip(M, f, strict=True)
            ]
            values = [
                start[i] + self.summed(x - before[i], k) if passed[i] else x for i, x in enumerate(rest)
            ]
            if values == found:
                return values
            found = values
        raise NotApplicable("the recurrences in the layer cannot be solved order by order in the rate")

    def passed_on(self, m: Any) -> bool:
        """Return whether a family is passed on unchanged to order zero in the rate, or not at all."""
        first = {p: c for p, c in m.terms() if p[self.place] == 0}
        if first and m.ring.from_dict(first) != 1:
            raise NotApplicable("a family is multiplied from layer to layer: it is no polynomial in it")
        return bool(first)

    def summed(self, x: Any, k: int) -> Any:
        """Return the sum over the layers between this one and the end."""
        return self.sums.summed(x, *((ell, L - 1) if k == 1 else (2, ell)))


def _of_one_output(theory: Theory, name: str) -> AppliedUndef:
    """Return the symbol of a correlation function of two times without index."""
    head: AppliedUndef = theory.order_parameter(name).symbol
    if len(head.args) != 2:
        raise NotApplicable(f"{name} has the index {head.args[0]}: these steps are those of one output")
    return head


def exact_steps(theory: Theory, order: tuple[Symbol, int] | None = None) -> ExactSteps:
    """Return the exact steps at an integer depth, or to an order in the rate at every depth."""
    if order is not None and order[0] == eta and theory.program.depth == L:
        return EveryDepth(theory, order)
    return ExactSteps(theory, order)


# -- the first step of every depth --------------------------------------------------------------------------


@dataclass(frozen=True)
class FirstStep(ConditionalResult):
    """Correlation function ``C_v`` before and after the first step.

    Parameters
    ----------
    theory : Theory
        Theory.
    before : Expr
        Value before the step.
    after : Expr
        Value after the step.
    values : Mapping[Expr, Expr]
        Order parameters at integer times, families as functions of the layer ``ell``.
    root : Expr | None
        Eigenvalue of the recurrence that the symbol q represents; None if q does not occur.
    parameter : tuple[Symbol, Expr] | None
        Symbol and its expression in q; None if q does not occur.
    name : str
        Name of the function.
    """

    theory: Theory
    before: Expr
    after: Expr
    values: Mapping[Expr, Expr]
    root: Expr | None = None
    parameter: tuple[Symbol, Expr] | None = None
    name: str = "C_v"

    def conditions(self) -> tuple[str, ...]:
        """Return the assumptions of the first step.

        Returns
        -------
        tuple[str, ...]
            Assumptions as sentences.
        """
        depth = self.theory.program.depth
        whole = (
            f"depth {depth}" if depth.is_Integer else "every depth, held against the equations of both ends"
        )
        return (
            *_of_theory(self.theory),
            "assumed: a single step from random weights, so that nothing is remembered",
            f"derived: {self.name} before and after this step, for {whole}",
        )

    @cached_property
    def growth_factor(self) -> Expr:
        """Ratio ``C_v(1)/C_v(0)`` of the test loss without label noise after and before the step.

        It is sorted by powers of the learning rate, or, if q represents it, of all other symbols;
        coefficients are factored.
        """
        growth = self.after / self.before
        if self.degree is not None:
            return Add(*[factor(c) * eta**k for (k,), c in Poly(growth, eta).terms()])
        if self.root is None:
            return growth
        above, below = fraction(
            cancel(
                growth.replace(lambda x: x.is_Pow and x.has(L) and x.base == q, lambda x: Z_L ** (x.exp / L))
            )
        )
        others = sorted(above.free_symbols - {q, Z_L}, key=str)
        parts = Poly(above, *others).terms()
        found = Add(*[factor(c) * Mul(*map(Pow, others, powers)) for powers, c in parts])
        return (found / factor(below)).xreplace({Z_L: q**L})

    @cached_property
    def degree(self) -> int | None:
        """Degree of the growth factor in the learning rate; None if it is not a polynomial."""
        growth = self.after / self.before
        if self.root is not None or not growth.is_polynomial(eta):
            return None
        others = sorted(growth.free_symbols - {eta}, key=str) + sorted(growth.atoms(AppliedUndef), key=str)
        anyhow = {x: Integer(prime(i)) for i, x in enumerate(others, 3)}
        return int(degree(cancel(growth.xreplace(anyhow)), eta))

    def explicit(self, e: Expr) -> Expr:
        """Return an expression with the definition of q substituted.

        Parameters
        ----------
        e : Expr
            Expression in q.

        Returns
        -------
        Expr
            Expression in real roots, which can be compiled for either sign. If q is complex, its modulus is
            one and 1/q is its conjugate, so that imaginary parts cancel.
        """
        if self.root is None:
            return e
        real = self.root.replace(
            lambda x: x.is_Pow and x.exp == S.Half and not x.base.is_nonnegative,
            lambda x: sqrt(Max(0, x.base)) + I * sqrt(Max(0, -x.base)),
        )
        return e.xreplace({q: real})

    @cached_property
    def critical_learning_rate(self) -> Expr:
        """Learning rate above which the first step increases the loss.

        Raises :class:`NotApplicable` if it is not a rational function: see :func:`smallest_rate`.
        """
        if self.degree is None:
            raise NotApplicable("the critical rate has no closed form: the loss is no polynomial in the rate")
        if self.degree != 2:
            raise NotApplicable(f"the critical rate is a root of a polynomial of degree {self.degree - 1}")
        slope, constant = _moves(self.growth_factor, eta).all_coeffs()
        return factor(-constant / slope)

    def _repr_latex_(self) -> str:
        lhs = Function(self.name)(1, 1) / Function(self.name)(0, 0)
        own = [] if self.root is None else [Eq(q, self.root, evaluate=False)]
        return aligned_latex([Eq(lhs, self.growth_factor, evaluate=False), *own], self.theory)


def first_step(theory: Theory | Program, name: str = "C_v") -> FirstStep:
    """Return a correlation function before and after the first step.

    Parameters
    ----------
    theory : Theory | Program
        Linear theory or program in exact steps; its depth is ``L`` or a number.
    name : str, optional
        Name of the correlation function.

    Returns
    -------
    FirstStep
        Values before and after the step.

    Raises
    ------
    NotApplicable
        For a flow, several outputs, modes, and layers whose recurrence has no closed form.

    Examples
    --------
    >>> from derive import isotropic, mean_field
    >>> step = first_step(mean_field(isotropic(data="online", center=True)))
    >>> step.growth_factor
    -2*eta*(L + 1) + 1 + eta**2*(L + 1)*(alpha_B + 1)*(2*L**2 + 6*L*nu + L + 6*nu)/(6*alpha_B*nu)
    >>> step.critical_learning_rate
    12*alpha_B*nu/((alpha_B + 1)*(2*L**2 + 6*L*nu + L + 6*nu))
    """
    theory = theory_of(theory, "first_step")
    require_linear_rules(theory.program, "the first step in closed form")
    if name not in {q.name for q in theory.correlations()}:
        raise NotApplicable(f"the theory has no correlation function {name}, whose growth is asked for")
    if theory.program.depth.is_Integer:
        exact, head = exact_steps(theory), _of_one_output(theory, name)
        before, after = (exact.expr(exact.value(head.func(Integer(k), Integer(k)))) for k in (0, 1))
        return FirstStep(
            theory, before, after, {a: exact.expr(x) for a, x in exact.values.items()}, name=name
        )
    return _ClosedForm(theory).result(name)


def smallest_rate(growth: Expr, rate: Symbol) -> float | None:
    """Return the smallest positive learning rate at which the growth factor is one.

    Parameters
    ----------
    growth : Expr
        Growth factor in which all other symbols are exact numbers.
    rate : Symbol
        Symbol of the learning rate.

    Returns
    -------
    float | None
        The rate, or None if no rate has this property.

    Examples
    --------
    >>> from sympy.abc import x
    >>> smallest_rate((1 - 3 * x) ** 2, x)
    0.6666666666666666
    """
    found = [x for x in _moves(growth, rate).real_roots() if x > 0]
    return float(found[0].evalf(20)) if found else None


def _moves(growth: Expr, rate: Symbol) -> Poly:
    """Return a polynomial in the rate that vanishes where the loss does not change, without the root zero."""
    found = Poly(fraction(cancel(growth - 1))[0], rate)
    if found.nth(0) != 0:
        raise NotApplicable("the loss changes at learning rate zero")
    return found.exquo(Poly(rate, rate))


class _ClosedForm(LayerFamilies):
    """Recurrences in the layer with constant coefficients, solved in powers of ell and of ``q^ell``."""

    def __init__(self, theory: Theory) -> None:
        super().__init__(theory)
        self.theory = theory
        self.recurrences = Recurrences()
        self.numbers: dict[Expr, Expr] = {}

    def result(self, name: str) -> FirstStep:
        """Return the first step."""
        head = _of_one_output(self.theory, name)
        before, after = (self.number(head.func(Integer(k), Integer(k))) for k in (0, 1))
        values = {a: self.shown(x) for a, x in self.numbers.items()}
        values |= {_called(k, ell): self.shown(x) for k, x in self.families.items()}
        root, parameter = self.recurrences.root, self.recurrences.parameter
        return FirstStep(self.theory, self.shown(before), self.shown(after), values, root, parameter, name)

    def shown(self, e: Expr) -> Expr:
        """Return an expression in ell, L and q, with the kept names replaced by their meaning."""
        names = sorted((a for a in e.atoms(AppliedUndef) if a in self.numbers), key=str)
        if not names:
            return factor(e).xreplace({Z: q**ell, Z_L: q**L})
        meaning = [self.shown(self.numbers[a]) for a in names]
        parts = Poly(e, *names).terms()
        return Add(
            *[Mul(self.shown(c), *[x**k for x, k in zip(meaning, ks, strict=True)]) for ks, c in parts]
        )

    def number(self, a: AppliedUndef) -> Expr:
        """Return an order parameter that belongs to no family."""
        if a not in self.numbers:
            self.numbers[a] = self.put(self.read.value(a))
        return self.numbers[a]

    def put(self, e: Expr) -> Expr:
        """Return ``e`` with every order parameter in closed form; sums of symbols keep their names."""
        found = {}
        for a in e.atoms(AppliedUndef):
            if str(a.func) in self.read.layered:
                found[a] = self.member(a)
            elif str(a.func) in self.read.names:
                value = self.number(a)
                keep = fraction(value)[0].is_Add and len(value.free_symbols) > 1
                found[a] = a if keep else value
        return self.recurrences.settled(e.xreplace(found))

    def at(self, value: Expr, layer: Expr) -> Expr:
        """Return an expression at another layer."""
        shift, of = layer.as_coeff_Add()
        return value.xreplace({ell: layer, Z: {ell: Z, L: Z_L, S.Zero: S.One}[of] * q**shift})

    def vanishes(self, value: Expr) -> bool:
        """Return whether an expression is zero."""
        return bool(self.recurrences.settled(value) == 0)

    def recurrence(self, M: list[list[Expr]], f: list[Expr], k: int, start: list[Expr]) -> list[Expr]:
        """Return the solution of a recurrence with constant coefficients."""
        return self.recurrences.solve(Matrix(M), f, k, start, (L, Z_L) if k == 1 else (S.One, q))
