"""First steps of a linear theory in closed form (linear2025 appendix D.2).

At integer times every sum over the past is finite: a field is a sum of sources, and an order parameter a
polynomial in those of the same and of neighbouring layers. One evaluation at such times (:class:`Unrolled`)
is used with three rings of coefficients:

- any number of steps at an integer depth, over rational functions (:class:`ExactSteps`, :func:`few_steps`);
  :func:`first_step` takes one step;
- any number of steps at every depth, over polynomials in the layer, up to a power of the learning rate
  (:class:`EveryDepth`);
- one step at every depth, over polynomials in the layer and in ``q^layer``, where q is an eigenvalue of the
  recursion from layer to layer (:func:`first_step`).

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
from derive.calculus.truncated import Truncated, TruncatedField
from derive.errors import NotApplicable, require_integer
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
    """Linear theory at integer times, where every field is a finite sum of sources.

    Layers are integers, ``L``, or a symbol for any inner layer. Coefficients are expressions in the order
    parameters, which keep their names. Raises :class:`NotApplicable` for a flow, and later for fields
    that are not linear in their sources, for several outputs, and for averages over units that differ.
    """

    zero: Any = S.Zero
    one: Any = S.One

    def __init__(self, theory: Theory) -> None:
        if not theory.program.rule.discrete:
            raise NotApplicable(
                "a flow has no first step: give a training rule in steps, such as gradient descent"
            )
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
        """Return an expression of symbols and order parameters in the form of coefficients.

        Here this is the expression itself; in subclasses it is a polynomial or a rational function.
        """
        return e

    def trimmed(self, x: Any) -> Any:
        """Return a coefficient in normal form, expanded; subclasses may drop high powers instead."""
        return x.expand()

    # -- fields ----------------------------------------------------------------------------------------

    def form(self, field: AppliedUndef) -> SourceCombination:
        """Return a field at an integer time as a linear combination of Gaussian sources.

        The result is a dictionary with the coefficient of each source, without zeros.
        """
        if field not in self.forms:
            row, now = self.row(field), field.args[-1]
            contributions = (self.contribution(x, now).items() for x in (*row.sources, *row.actions))
            coefficients = {k: self.trimmed(v) for k, v in gathered(chain(*contributions)).items()}
            self.forms[field] = {k: v for k, v in coefficients.items() if v}
        return self.forms[field]

    def row(self, field: AppliedUndef) -> Row:
        """Return the linear equation of a field at the layer of ``field``; times in it stay symbols.

        Raises NotApplicable if the equation has a part without a field or source.
        """
        row: Row
        row, values = self.find(((r.lhs, r) for r in self.rows), field)
        if row.given != 0:
            raise NotApplicable(
                f"the equation of {row.lhs} has the part {row.given} without a field or source: the first "
                "steps are derived for equations that are linear in fields and sources, as those of "
                "isotropic data"
            )
        layer = {x: v for x, v in values.items() if x != t}
        terms = [tuple(x.map(lambda e: e.xreplace(layer)) for x in y) for y in (row.sources, row.actions)]
        return replace(row, sources=terms[0], actions=terms[1])

    def contribution(self, x: LinearTerm, now: Expr) -> SourceCombination:
        """Return a term ``sum_s kernel(now, s) field(s)`` of an equation as a sum of Gaussian sources.

        The result has the coefficient of each source. ``x`` is the term and ``now`` the integer time of the
        equation. Raises NotApplicable for a term that is also summed over samples or modes.
        """
        if x.over:
            raise NotApplicable(
                f"the equation of a field has {x.expr}, a sum over {x.over[0].index}: the first steps are "
                "derived for a network of one output on isotropic data, whose equations have no sums over "
                "samples or modes"
            )

        def parts() -> Iterator[tuple[AppliedUndef, Any]]:
            """Yield (source, coefficient) for the sources of the field at every time in the sum.

            Times at which the kernel is zero are left out. Times in the sum are those before ``now``, and
            ``now`` itself if the reach of the term is ``past``. A term without a sum is taken once, at the
            time ``now``.
            """
            for k in range(int(now) + (x.reach == "past")) if x.reach else [0]:
                front = self.kernel(x, now, Integer(k))
                if front:
                    at = x.field.xreplace({t: now, s: Integer(k)})
                    form = {at: self.one} if x.name in self.source_names else self.form(at)
                    yield from ((y, front * c) for y, c in form.items())

        return gathered(parts())

    def kernel(self, x: LinearTerm, now: Expr, past: Expr) -> Any:
        """Return the kernel that multiplies the field in a term, at the integer times ``now`` and ``past``.

        ``now`` is the time of the equation, and ``past`` that of the field. Order parameters are in standard
        form.
        """
        return self.number(self.standardised(x.weight.xreplace({t: now, s: past})))

    def standardised(self, e: Expr) -> Expr:
        """Return an expression in which equal order parameters have one form, see :meth:`standard`."""
        return e.xreplace({a: self.standard(a) for a in e.atoms(AppliedUndef) if str(a.func) in self.names})

    def standard(self, a: AppliedUndef) -> Expr:
        """Return an order parameter in standard form, so that equal numbers have the same expression.

        A response to a later perturbation is zero, and a ``strict`` response also to one at the same time. An
        order parameter at the input layer is replaced by its definition, and the later time of a correlation
        stands first.
        """
        base = self.base.get((str(a.func), a.args[0]))
        if base is not None:
            return self.standardised(base.rhs.xreplace(dict(zip(base.lhs.args[1:], a.args[1:], strict=True))))
        parameter, _ = self.parameter(a)
        first, second = a.args[-2:]
        if parameter.kind == "response":
            acausal = second >= first if parameter.causal == "strict" else second > first
            return S.Zero if acausal else a
        return a.func(*a.args[:-2], second, first) if second > first else a

    # -- order parameters ------------------------------------------------------------------------------

    def value(self, a: AppliedUndef) -> Any:
        """Return the value of an order parameter at integer times.

        It follows from the covariances of sources and from the order parameters of earlier times and
        other layers. Raises NotApplicable if its definition is not a single average over equivalent units.
        """
        a = self.standard(a)
        if not isinstance(a, AppliedUndef):
            return self.number(a)
        if a not in self.values:
            parameter, values = self.parameter(a)
            definition = parameter.definition.xreplace(values)
            averages = definition.atoms(Average)
            if len(averages) != 1:
                raise NotApplicable(
                    f"the order parameter {a} is not a single average over equivalent units: the first steps "
                    "are derived for networks whose units are statistically equal"
                )
            (average,) = averages
            front = self.number((definition / average).expand())
            self.values[a] = self.trimmed(front * self.averaged(average.args[0]))
        return self.values[a]

    def averaged(self, body: Expr) -> Any:
        """Return the average over units that defines an order parameter, at integer times.

        ``body`` is a product of two fields, or the derivative of a field with respect to a source. Raises
        NotApplicable for averages over units that are not equivalent.
        """
        if isinstance(body, Response):
            return self.form(body.body).get(body.source, self.zero)
        fields = factors(body)
        if not all(isinstance(x, AppliedUndef) and str(x.func) in self.fields for x in fields):
            raise NotApplicable(
                f"<{body}> is not an average over equivalent units of a product of fields: the first steps "
                "are derived for linear networks whose units are statistically equal"
            )
        return self.overlap(*map(self.form, fields))

    def overlap(self, one: SourceCombination, two: SourceCombination) -> Any:
        """Return the average of the product of two fields, ``sum_xy a_x b_y <x y>`` over their sources."""
        total = self.zero
        for x, a in one.items():
            row = self.zero
            for y, b in two.items():
                c = self.covariance(x, y)
                if c:
                    row += self.trimmed(c * b)
            total += self.trimmed(a * row)
        return total

    def covariance(self, x: AppliedUndef, y: AppliedUndef) -> Any:
        """Return the covariance ``<x y>`` of two sources at integer times, as a coefficient."""
        if (x, y) not in self.covariances:
            value = self.number(self.standardised(sympify(covariance(x, y, self.sources))))
            self.covariances[x, y] = self.covariances[y, x] = value
        return self.covariances[x, y]

    def parameter(self, a: AppliedUndef) -> tuple[OrderParameter, Binding]:
        """Return the order parameter of which ``a`` is a value, and the layer and times of this value."""
        return self.find(((q.symbol, q) for q in self.parameters), a)

    @staticmethod
    def find(items: Iterable[tuple[Expr, Any]], a: AppliedUndef) -> tuple[Any, Binding]:
        """Return the first item whose symbol is ``a`` at some layer and times, and the values of these.

        ``items`` are pairs (symbol, item), where an item is an equation, a source or an order parameter. The
        pair for a single layer must stand before that for all layers. Raises NotApplicable if no symbol fits.
        """
        for head, item in items:
            if (values := match(head, a, ())) is not None:
                return item, values
        raise NotApplicable(f"the theory has no equation, source or average that determines the quantity {a}")


def same_unit(theory: Theory, one: AppliedUndef, other: AppliedUndef) -> bool:
    """Return whether two fields belong to the same units: same population and same indices.

    Times may differ. The result is False for functions that are not fields of the program.
    """
    first_field, other_field = (theory.program.field_of(str(x.func)) for x in (one, other))
    return bool(
        first_field
        and other_field
        and first_field.population == other_field.population
        and one.args[:-1] == other.args[:-1]
    )


# -- a depth that is a number -------------------------------------------------------------------------------


class ExactSteps(Unrolled):
    """Order parameters of a theory of given depth as rational functions of its symbols.

    ``order = (x, n)`` drops powers of the symbol x above n. Intermediate results keep more powers where they
    are divided by x (:mod:`.truncated`), so that all powers up to n are exact. Raises :class:`NotApplicable`
    for a symbolic depth, an order in a symbol that the theory does not contain, and where :class:`Unrolled`
    does.

    >>> from derive import isotropic, mean_field
    >>> steps = ExactSteps(mean_field(isotropic(1, data="population", center=True)), order=(eta, 2))
    >>> factor(steps.closed_form(Function("C_v")(S(2), S(2))))
    (24*eta**2*nu + 6*eta**2 - 8*eta*nu + nu)/nu
    """

    def __init__(self, theory: Theory, order: tuple[Symbol, int] | None = None) -> None:
        super().__init__(self.fixed(theory))
        powers = [p for p in self.subexpressions(Pow) if p.exp.is_Rational and not p.exp.is_Integer]
        roots = {p.base: lcm(*(x.exp.q for x in powers if x.base == p.base)) for p in powers}
        self.roots = {Dummy(f"root_{x}", positive=True): (x, n) for x, n in roots.items() if x.is_Symbol}
        # Fractional powers of a symbol x, such as sqrt(nu), become integer powers of y with x = y**n, where n
        # is the common denominator of their exponents.
        if self.roots:
            powers_of = {x: y**n for y, (x, n) in self.roots.items()}
            super().__init__(self.theory.map(lambda e: e.subs(powers_of)))
        self.order = order
        if order is not None:
            self.order = next(((y, n * order[1]) for y, (x, n) in self.roots.items() if x == order[0]), order)
        numbers = sorted({x for x in self.subexpressions(Pow) if x.is_number and not x.is_rational}, key=str)
        self.domain = QQ.algebraic_field(*numbers) if numbers else QQ
        theory_names = self.names | self.fields | self.source_names
        self.widths = {  # widths and other parameters of single layers
            x.func(Integer(k))
            for x in self.subexpressions(AppliedUndef)
            if str(x.func) not in theory_names
            and len(x.args) == 1
            and (x.args[0] == ell or x.args[0].is_Integer)
            for k in range(int(self.theory.program.depth) + 2)
        }
        symbols = ({eta, gamma0} | self.subexpressions(Symbol)) - {t, s, ell}
        self.field = self.ring(sorted(symbols | self.widths, key=str))
        self.zero, self.one = self.field.zero, self.field.one

    def subexpressions(self, kind: type[Expr]) -> set[Any]:
        """Return all subexpressions of class ``kind`` in the equations and the covariances of sources."""
        expressions = [*(r.rhs for r in self.rows), *(sympify(u.covariance) for u in self.sources)]
        return {x for e in expressions for x in e.atoms(kind)}

    def fixed(self, theory: Theory) -> Theory:
        """Return the theory with its equations written out for its number of layers.

        Raises NotApplicable if the depth is a symbol.
        """
        depth = theory.program.depth
        if not depth.is_Integer:
            raise NotApplicable(
                f"depth = {depth}: exact steps need a number of layers, or the depth {L} and order=({eta}, "
                f"n), where n is the highest power of {eta}"
            )
        return theory.at_depth(int(depth))

    def ring(self, symbols: Sequence[Symbol]) -> Any:
        """Return the field of rational functions in ``symbols``, to which all coefficients belong.

        With an ``order`` its elements keep the powers of a symbol up to the highest one. Raises NotApplicable
        if this symbol is not one of ``symbols``.
        """
        field = self.domain.frac_field(*symbols)
        if self.order is None:
            return field
        symbol, last = self.order
        if symbol not in symbols:
            names = ", ".join(str(self.roots.get(x, (x,))[0]) for x in symbols)
            raise NotApplicable(
                f"order = {self.order}: the theory does not contain this symbol; its symbols are {names}"
            )
        return TruncatedField(field, symbols.index(symbol), last)

    def expr(self, x: Any) -> Expr:
        """Return a coefficient, an element of a ring of rational functions, as a SymPy expression.

        It has no powers above ``order``. Raises NotApplicable if powers up to ``order`` are unknown.
        """
        if isinstance(x, Truncated) and self.order is not None:
            symbol, last = self.order
            if x.known < last:
                raise NotApplicable(
                    f"order = {self.order}: powers of {symbol} above {x.known} are not known, because higher "
                    "powers were dropped before a division by the symbol; for an order parameter, the "
                    "method closed_form gives all powers up to the order"
                )
            x = replace(x, value=self.field.cut(x.value, last))
        return self.field.to_sympy(x).xreplace({y: x ** Rational(1, n) for y, (x, n) in self.roots.items()})

    def closed_form(self, a: AppliedUndef) -> Expr:
        """Return an order parameter as an expression with all powers of a symbol up to ``order``.

        If divisions by the symbol leave fewer powers, the evaluation is repeated with as many powers more as
        are missing. Each repetition makes at least that many more powers known.
        """
        while isinstance(x := self.value(a), Truncated) and self.order and x.known < self.order[1]:
            self.field.last += self.order[1] - int(x.known)
            for cache in (self.forms, self.values, self.covariances):
                cache.clear()
        return self.expr(x)

    def trimmed(self, x: Any) -> Any:
        """Return the coefficient ``x``, a rational function, unchanged.

        Its sums and products drop powers above the highest one already.
        """
        return x

    def number(self, e: Expr) -> Any:
        """Return an expression of symbols and order parameters as a rational function of the symbols.

        Order parameters are replaced by their values. Raises NotApplicable for an expression that is not a
        rational function of the symbols.
        """
        if isinstance(e, AppliedUndef) and e not in self.widths:
            return self.value(e)
        if isinstance(e, Add):
            return sum((self.number(x) for x in e.args), self.zero)
        if isinstance(e, Mul):
            product = self.one
            for x in e.args:
                product = self.trimmed(product * self.number(x))
            return product
        if isinstance(e, Pow) and e.exp.is_Integer:
            base = self.number(e.base)
            return (self.quotient(self.one, base) if e.exp.is_negative else base) ** abs(int(e.exp))
        try:
            return self.field.from_sympy(e)
        except ValueError:
            raise NotApplicable(
                f"the factor {e} must be a rational function of the symbols of the theory, and the same for "
                "all units of a layer"
            ) from None

    def quotient(self, x: Any, y: Any) -> Any:
        """Return the quotient of two coefficients, which are rational functions of the theory's symbols."""
        return x / y


@dataclass(frozen=True, repr=False)
class FewSteps(ConditionalResult):
    """Correlation function at the first times, rational in the symbols of the theory.

    Parameters
    ----------
    theory : Theory
        Theory from which it is derived.
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
        """Return the derived and assumed statements about the correlation function.

        Returns
        -------
        tuple[str, ...]
            Sentences that begin with "derived: " or "assumed: ".
        """
        up_to_order = (
            "exactly" if self.order is None else f"up to the power {self.order[1]} of {self.order[0]}"
        )
        return (
            *_of_theory(self.theory),
            f"derived: {self.name} at equal times 0 to {len(self.values) - 1}, {up_to_order}",
        )

    def growth_factor(self, step: int = 1) -> Expr:
        """Return the ratio of the value at a step to the initial value.

        With an ``order`` both values are truncated; powers of the values up to the order are exact.

        Parameters
        ----------
        step : int, optional
            Number of steps, from 0 to the last one of ``values``.

        Returns
        -------
        Expr
            Ratio.

        Raises
        ------
        IndexError
            If the step is negative or beyond the last one.
        """
        if step not in range(len(self.values)):
            raise IndexError(f"step = {step}: values are known for the steps 0 to {len(self.values) - 1}")
        return cancel(self.values[int(step)] / self.values[0])

    def _repr_latex_(self) -> str:
        rows = (Eq(Function(self.name)(k, k), x, evaluate=False) for k, x in enumerate(self.values))
        return aligned_latex(rows, self.theory)


def few_steps(
    theory: Theory | Program, steps: int, name: str = "C_v", order: tuple[Symbol, int] | None = None
) -> FewSteps:
    """Return a correlation function of a linear theory at the first times.

    Parameters
    ----------
    theory : Theory | Program
        Linear theory, or its program. Its depth is a number; with an order in the learning rate it may be
        ``L`` (see :class:`EveryDepth`).
    steps : int
        Number of steps, 0 or more.
    name : str, optional
        Name of a correlation function, or of a response, with two times and no other index.
    order : tuple[Symbol, int] | None, optional
        Symbol, such as the learning rate or gamma0, and its highest power n, an integer. Powers up to n are
        exact, and higher ones are dropped. By default none are dropped.

    Returns
    -------
    FewSteps
        Values at equal times 0, 1, ..., ``steps``.

    Raises
    ------
    NotApplicable
        For a symbolic depth without an order in the learning rate, an order in a symbol that the theory does
        not contain, a power that is not an integer, a flow, several outputs, modes, and fields that are not
        linear in their sources.
    ValueError
        If ``steps`` is negative or not an integer.
    KeyError
        If the theory has no order parameter of this name.

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
    theory = theory_of(theory, "few_steps")
    steps = require_integer("steps", steps, 0)
    head, exact = _of_one_output(theory, name), exact_steps(theory, order)
    times = map(Integer, range(steps + 1))
    return FewSteps(theory, name, tuple(exact.closed_form(head.func(k, k)) for k in times), order)


def _of_theory(theory: Theory) -> tuple[str, ...]:
    """Return two sentences: the limits of the theory, and whether the initial output is subtracted.

    It is subtracted if the theory has an equation of a field called xi.
    """
    if any(e.name == "xi" for e in theory.equations):
        start = "before training is subtracted (center), so that the initial error is the target"
    else:
        start = "before training is part of the error (no center)"
    return (
        "assumed: widths, inputs and samples go to infinity at fixed ratios",
        f"assumed: the function of the network {start}",
    )


# -- from layer to layer ------------------------------------------------------------------------------------


class LayerFamilies(ABC):
    """Families of order parameters of a theory of depth L at integer times, as functions of the layer.

    A family has one order parameter for each layer. Families that depend on each other satisfy ``y(ell) =
    M y(ell + k) + f(ell)`` with k = 1 or -1, and are known at layer L (k = 1) or 1 (k = -1). They are solved
    in order of dependence and checked against the equations of both ends. Subclasses define the ring and the
    solution of a recurrence. Raises :class:`NotApplicable` for a residual network, whose layers share their
    units.
    """

    def __init__(self, theory: Theory) -> None:
        program = theory.program
        if L in program.depth.free_symbols and any(f.layered and f.population.shared for f in program.fields):
            raise NotApplicable(
                "the first steps are not derived at symbolic depth for layers that share their units, as in "
                "a residual network: give the depth as a number"
            )
        self.unrolled = Unrolled(theory)
        self.families: dict[OrderParameterAtTimes, Any] = {}

    @abstractmethod
    def as_function_of_layer(self, e: Expr) -> Any:
        """Return an expression of symbols and order parameters as a function of the layer ``ell``.

        Order parameters are replaced by their closed forms; subclasses choose the kind of function.
        """

    @abstractmethod
    def at(self, value: Any, layer: Expr) -> Any:
        """Return a function of the layer with ``layer`` in place of ``ell``."""

    @abstractmethod
    def recurrence(self, M: list[list[Any]], f: list[Any], k: int, start: list[Any]) -> list[Any]:
        """Return y with ``y(ell) = M y(ell + k) + f(ell)``, and ``y = start`` at one end.

        This end is layer L for k = 1, and layer 1 for k = -1. M is a square matrix of functions of the layer,
        and f and start have one entry for each family.
        """

    def vanishes(self, value: Any) -> bool:
        """Return whether a function of the layer ell is zero for every ell."""
        return bool(value == 0)

    def member(self, a: AppliedUndef) -> Any:
        """Return an order parameter in closed form, as a function of its layer.

        Its family, one order parameter for each layer, is solved first if necessary. The layer of ``a`` is
        ``ell + i``, ``L + i`` or a number.
        """
        key = (str(a.func), a.args[1:])
        if key not in self.families:
            steps = self.reached(key)
            for group in _groups({k: set(needs) for k, (_, needs) in steps.items()}):
                self.solve(group, steps)
        return self.at(self.families[key], a.args[0])

    def reached(
        self, key: OrderParameterAtTimes
    ) -> dict[OrderParameterAtTimes, tuple[Expr, dict[OrderParameterAtTimes, set[Expr]]]]:
        """Return the family ``key`` and all unsolved families on which it depends directly or indirectly.

        A family has one order parameter for each layer. The value of each key is a pair: its order parameter
        at layer ell as an expression in other order parameters, and for each family that occurs in this
        expression the set of its distances in layers (its layer minus ell).
        """
        reached: dict[OrderParameterAtTimes, tuple[Expr, dict[OrderParameterAtTimes, set[Expr]]]] = {}
        todo = [key]
        while todo:
            k = todo.pop()
            if k in reached or k in self.families:
                continue
            value = self.unrolled.value(_symbol_of(k, ell))
            needs: dict[OrderParameterAtTimes, set[Expr]] = {}
            for a in value.atoms(AppliedUndef):
                if str(a.func) in self.unrolled.layered:
                    needs.setdefault((str(a.func), a.args[1:]), set()).add(a.args[0] - ell)
            reached[k] = value, needs
            todo += needs
        return reached

    def solve(
        self,
        group: list[OrderParameterAtTimes],
        steps: Mapping[OrderParameterAtTimes, tuple[Expr, dict[OrderParameterAtTimes, set[Expr]]]],
    ) -> None:
        """Solve the recursions in the layer of a group of families of order parameters; store the results.

        A family has one order parameter for each layer. The families in ``group`` depend on each other and on
        solved ones. ``steps`` is from :meth:`reached`: for each family its order parameter at layer ell, and
        the families in it with their distances in layers. Raises NotApplicable if a layer depends on
        more than one neighbouring layer, or not linearly, and where :meth:`check` does.
        """
        shifts = {x for k in group for d, layers in steps[k][1].items() if d in group for x in layers}
        if not shifts:
            self.families[group[0]] = self.as_function_of_layer(steps[group[0]][0])
            return self.check(group)
        if shifts not in ({S.One}, {S.NegativeOne}):
            raise NotApplicable(
                f"the order parameters {', '.join(name for name, _ in group)} depend on each other; at each "
                "layer they must depend on one neighbouring layer only, always in the same direction; the "
                f"distances between their layers are {sorted(shifts, key=str)}"
            )
        shift = int(shifts.pop())
        names = {_symbol_of(k, ell + shift): Dummy() for k in group}
        rows: dict[OrderParameterAtTimes, tuple[dict[OrderParameterAtTimes, Any], Any]] = {}
        for k in group:
            p = Poly(steps[k][0].xreplace(names), *names.values())
            if p.total_degree() > 1:
                raise NotApplicable(
                    f"the order parameter {k[0]} of a layer must be linear in those of the neighbouring layer"
                )
            coefficients = [self.as_function_of_layer(p.coeff_monomial(y)) for y in names.values()]
            rows[k] = (
                dict(zip(group, coefficients, strict=True)),
                self.as_function_of_layer(p.coeff_monomial(1)),
            )
        edges = {k: {d for d, c in row.items() if not self.vanishes(c)} for k, (row, _) in rows.items()}
        # Families of order parameters that depend on each other are one part, whose equations are solved
        # together.
        for part in _groups(edges):
            values = []
            for k in part:
                row, value = rows[k]
                for d in edges[k] - set(part):
                    value = value + row[d] * self.at(self.families[d], ell + shift)
                values.append(value)
            if part[0] in edges[part[0]] or len(part) > 1:
                start = [
                    self.as_function_of_layer(self.unrolled.value(_symbol_of(k, L if shift == 1 else S.One)))
                    for k in part
                ]
                values = self.recurrence([[rows[k][0][d] for d in part] for k in part], values, shift, start)
            self.families |= dict(zip(part, values, strict=True))
        return self.check(group)

    def check(self, group: list[OrderParameterAtTimes]) -> None:
        """Raise NotApplicable unless the closed forms of these families hold at the first and the last layer.

        They are compared with the equations of these layers. ``group`` has the keys of the families.
        """
        for k in group:
            for site in (S.One, L):
                expected = self.as_function_of_layer(self.unrolled.value(_symbol_of(k, site)))
                if not self.vanishes(self.at(self.families[k], site) - expected):
                    raise NotApplicable(
                        f"the order parameter {k[0]} at layer {site} does not satisfy the closed form of the "
                        "other layers"
                    )


def _symbol_of(key: OrderParameterAtTimes, layer: Expr) -> AppliedUndef:
    """Return an order parameter at a layer, as a function of layer and times.

    ``key`` is its name with its other arguments, which are integer times.
    """
    return Function(key[0])(layer, *key[1])


def _groups(
    edges: Mapping[OrderParameterAtTimes, Iterable[OrderParameterAtTimes]],
) -> list[list[OrderParameterAtTimes]]:
    """Return families of order parameters in groups of mutual dependence, in an order for solving.

    ``edges`` has, for each family, the families on which it depends; a group stands after those on which it
    depends. The groups are the strongly connected components of this graph.
    """
    pairs = [(a, b) for a, needs in edges.items() for b in needs if b in edges]
    return [sorted(c, key=str) for c in strongly_connected_components((list(edges), pairs))]


class EveryDepth(ExactSteps, LayerFamilies):
    """Order parameters at depth L up to a power of the learning rate, polynomial in the layer.

    To order zero in the rate the recurrence from layer to layer has a factor of 1 or of 0. Then the
    difference ``y(ell) - y(ell + k)`` is a polynomial in ell with known coefficients order by order, and so
    is its sum over layers. The recurrences hold at every layer, so that the result is proved for every depth.
    Raises :class:`NotApplicable` if the depth is not the symbol L, for an order in another symbol than the
    learning rate, if a factor is neither 1 nor 0 to order zero, and for equations that :class:`ExactSteps`
    refuses at a depth that is a number.

    >>> from derive import isotropic, mean_field
    >>> steps = EveryDepth(mean_field(isotropic(data="population", center=True)), order=(eta, 2))
    >>> factor(steps.expr(steps.value(Function("C_v")(S.One, S.One))).coeff(eta, 2))
    (L + 1)*(2*L**2 + 6*L*nu + L + 6*nu)/(6*nu)
    """

    def __init__(self, theory: Theory, order: tuple[Symbol, int]) -> None:
        if order[0] != eta:
            raise NotApplicable(
                f"order = {order}: for a symbolic depth the first entry must be the symbol {eta}"
            )
        ExactSteps.__init__(self, theory, order)
        LayerFamilies.__init__(self, theory)

    def fixed(self, theory: Theory) -> Theory:
        """Return the theory unchanged; raise NotApplicable unless its depth is the symbol L."""
        if theory.program.depth != L:
            raise NotApplicable(f"depth = {theory.program.depth}: must be L or a number")
        return theory

    def ring(self, symbols: Sequence[Symbol]) -> Any:
        """Return the ring of coefficients: polynomials in the layer, L, the learning rate and ``symbols``.

        ``symbols`` other than these three may have negative powers.
        """
        self.sums = Layered(symbols)
        self.place, self.last = self.sums.ring.symbols.index(eta), self.order[1]  # type: ignore[index]
        return self.sums.ring.to_domain()

    def trimmed(self, x: Any) -> Any:
        """Return a polynomial without powers of the learning rate above the highest power that is kept."""
        if x.degree(self.sums.ring.gens[self.place]) <= self.last:
            return x
        return x.ring.from_dict({m: c for m, c in x.terms() if m[self.place] <= self.last})

    def quotient(self, x: Any, y: Any) -> Any:
        """Return the quotient of two coefficients; raise NotApplicable if it is not a polynomial.

        Negative powers of symbols are allowed in both and in the quotient. Also raises NotApplicable for a
        ``y`` that is divisible by the learning rate.
        """
        (dividend, up), (divisor, down) = map(self.without_common_powers, (x, y))
        if down[self.place] < 0:
            raise NotApplicable(
                f"order = {self.order}: the theory divides by {eta}, so that powers up to the order are not "
                "exact at a symbolic depth; give the depth as a number"
            )
        ratio, remainder = dividend.div(divisor) if y else (x, self.one)
        if remainder:
            raise NotApplicable(
                "the first steps are not derived at symbolic depth: the quotient of "
                f"{self.expr(x)} and {self.expr(y)} is not a polynomial; give the depth as a number"
            )
        return ratio.mul_term((tuple(j - i for i, j in zip(up, down, strict=True)), QQ.one))

    def without_common_powers(self, x: Any) -> tuple[Any, tuple[int, ...]]:
        """Return (``x`` divided by the lowest power of each symbol, exponents of these powers times -1).

        The second entry is a tuple in the order of the symbols of the ring.
        """
        up = tuple(-min(k) for k in zip(*x.monoms(), strict=True)) or x.ring.zero_monom
        return x.mul_term((up, QQ.one)), up

    def value(self, a: AppliedUndef) -> Any:
        """Return the value of an order parameter at integer times, as a polynomial in the layer.

        Its layer, if it has one, is ``ell + i``, ``L + i`` or a number.
        """
        standard = self.standard(a)
        if isinstance(standard, AppliedUndef) and str(standard.func) in self.layered:
            return self.member(standard)
        return super().value(a)

    # -- recurrences in the layer, order by order in the rate ------------------------------------------

    def as_function_of_layer(self, e: Expr) -> Any:
        """Return an expression of symbols and order parameters as a polynomial in the layer.

        Order parameters are replaced by their values.
        """
        return self.trimmed(self.number(e))

    def at(self, value: Any, layer: Expr) -> Any:
        """Return a polynomial in the layer with ``layer`` in place of ``ell``."""
        return self.sums.moved(value, layer)

    def recurrence(self, M: list[list[Any]], f: list[Any], k: int, start: list[Any]) -> list[Any]:
        """Return the solution of ``y(ell) = M y(ell + k) + f(ell)`` as polynomials in ell, by iteration.

        Arguments are those of :meth:`LayerFamilies.recurrence`. To order zero in the learning rate the
        diagonal entries of M are 1 or 0. If the entry is 1, ``y(ell)`` is its value at the end plus the sum
        of the differences between layers. Iterations determine one order in the rate after the other. Raises
        NotApplicable if the values still change in iteration number ``(order + 1) len(f) + 1``.
        """
        last = (self.last + 1) * len(f) + 1
        passed = [self.passed_on(M[i][i]) for i in range(len(f))]
        solution = [self.zero] * len(f)
        for _ in range(last):
            shifted = [self.at(y, ell + k) for y in solution]
            applied = [
                self.trimmed(sum((m * y for m, y in zip(row, shifted, strict=True)), source))
                for row, source in zip(M, f, strict=True)
            ]
            values = [
                start[i] + self.summed(x - shifted[i], k) if passed[i] else x for i, x in enumerate(applied)
            ]
            if values == solution:
                return values
            solution = values
        raise NotApplicable(
            "the first steps are not derived at symbolic depth: the recurrences over layers cannot be "
            "solved order by order in the learning rate; give the depth as a number"
        )

    def passed_on(self, m: Any) -> bool:
        """Return whether a recursion from layer to layer has the factor 1 to order zero in the learning rate.

        ``m`` is the factor. The result is False if it is 0 to this order. Raises NotApplicable for any other
        factor, because the solution is then not a polynomial in the layer.
        """
        first = {p: c for p, c in m.terms() if p[self.place] == 0}
        if first and m.ring.from_dict(first) != 1:
            raise NotApplicable(
                "at learning rate zero an order parameter is multiplied from layer to layer by a factor "
                "other than 0 and 1, so that it is not a polynomial in the layer; give the depth as a number"
            )
        return bool(first)

    def summed(self, x: Any, k: int) -> Any:
        """Return the sum of ``x``, a polynomial in the layer, over the layers between ell and one end.

        For k = 1 these are the layers ell to ``L - 1``, and for k = -1 the layers 2 to ell.
        """
        return self.sums.summed(x, *((ell, L - 1) if k == 1 else (2, ell)))


def _of_one_output(theory: Theory, name: str) -> AppliedUndef:
    """Return the symbol of the order parameter ``name``, which must have two times and no other index.

    Raises NotApplicable for one with indices, such as those of several outputs, and KeyError for an unknown
    name.
    """
    head: AppliedUndef = theory.order_parameter(name).symbol
    if len(head.args) != 2:
        raise NotApplicable(
            f"{name} has the index {head.args[0]}: the first steps are derived for a correlation function "
            "without indices besides two times, such as C_v in a theory of one output"
        )
    return head


def exact_steps(theory: Theory, order: tuple[Symbol, int] | None = None) -> ExactSteps:
    """Return the evaluation of order parameters at the first steps of a theory.

    The depth is an integer, or the symbol L. ``order`` is (symbol, highest power kept); by default all powers
    are kept. For L it is needed, and its symbol must be the learning rate. Raises NotApplicable if L has no
    such order, and for a power that is not an integer.
    """
    if order is not None and not isinstance(order[1], int | Integer):
        raise NotApplicable(
            f"order = {order}: must be a pair of a symbol and its highest power, an integer, such as (eta, 2)"
        )
    if order is not None and order[0] == eta and theory.program.depth == L:
        return EveryDepth(theory, order)
    return ExactSteps(theory, order)


# -- the first step of every depth --------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class FirstStep(ConditionalResult):
    """Correlation function, such as ``C_v``, before and after the first step.

    Parameters
    ----------
    theory : Theory
        Theory from which it is derived.
    before : Expr
        Value before the step.
    after : Expr
        Value after the step.
    values : Mapping[Expr, Expr]
        Order parameters at integer times. At a symbolic depth those of layers are functions of the layer
        ``ell``.
    root : Expr | None
        Eigenvalue of the recurrence in the layer that the symbol q represents; None if q does not occur.
    parameter : tuple[Symbol, Expr] | None
        Symbol of the theory that is replaced by an expression in q everywhere, and this expression; None if q
        does not occur.
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
        """Return the derived and assumed statements about the first step.

        Returns
        -------
        tuple[str, ...]
            Sentences that begin with "derived: " or "assumed: ".
        """
        depth = self.theory.program.depth
        whole = (
            f"depth {depth}"
            if depth.is_Integer
            else "every depth, checked against the equations of the first and the last layer"
        )
        return (
            *_of_theory(self.theory),
            "assumed: a single step from random initial weights, before which there is no memory",
            f"derived: {self.name} before and after this step, for {whole}",
        )

    @cached_property
    def growth_factor(self) -> Expr:
        """Ratio of the correlation function after and before the first step, by default ``C_v(1)/C_v(0)``.

        For ``C_v`` it is the ratio of the test losses against targets without label noise. A polynomial in
        the learning rate is sorted by its powers. If the ratio contains q, an eigenvalue of the recursion
        from layer to layer, it is sorted by powers of all symbols but q. Coefficients are factored. Other
        ratios are not rewritten.
        """
        growth = self.after / self.before
        if self.degree is not None:
            return Add(*[factor(c) * eta**k for (k,), c in Poly(growth, eta).terms()])
        if self.root is None:
            return growth
        top, bottom = fraction(
            cancel(
                growth.replace(lambda x: x.is_Pow and x.has(L) and x.base == q, lambda x: Z_L ** (x.exp / L))
            )
        )
        others = sorted(top.free_symbols - {q, Z_L}, key=str)
        terms = Poly(top, *others).terms()
        numerator = Add(*[factor(c) * Mul(*map(Pow, others, powers)) for powers, c in terms])
        return (numerator / factor(bottom)).xreplace({Z_L: q**L})

    @cached_property
    def degree(self) -> int | None:
        """Degree of the growth factor as a polynomial in the learning rate.

        None if it is not a polynomial, or if it contains q, an eigenvalue of the recursion from layer to
        layer.
        """
        growth = self.after / self.before
        if self.root is not None or not growth.is_polynomial(eta):
            return None
        others = sorted(growth.free_symbols - {eta}, key=str) + sorted(growth.atoms(AppliedUndef), key=str)
        primes = {x: Integer(prime(i)) for i, x in enumerate(others, 3)}
        return int(degree(cancel(growth.xreplace(primes)), eta))

    def explicit(self, e: Expr) -> Expr:
        """Return an expression with q, an eigenvalue of the recursion in the layer, written out.

        Parameters
        ----------
        e : Expr
            Expression in q.

        Returns
        -------
        Expr
            Expression without q. The root of a number x in q is written as ``sqrt(max(0, x)) + i sqrt(max(0,
            -x))``, so that it can be compiled for both signs of x. If q is complex, its modulus is one and
            1/q is its conjugate, so that imaginary parts cancel.
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

        Raises :class:`NotApplicable` unless the growth factor is a polynomial of degree two in the learning
        rate; :func:`smallest_rate` evaluates other cases.
        """
        if self.degree is None:
            raise NotApplicable(
                "the learning rate above which the first step increases the loss is given only if the ratio "
                "of the losses is a polynomial in the rate; this ratio is not, or contains q, an "
                "eigenvalue of the recursion over layers"
            )
        if self.degree != 2:
            raise NotApplicable(
                "the learning rate above which the first step increases the loss is given only if the ratio "
                f"of the losses is a polynomial of degree 2 in the rate; its degree is {self.degree}. For a "
                "degree above 2, use smallest_rate with numbers in place of the other symbols"
            )
        slope, constant = _unchanged_rates(self.growth_factor, eta).all_coeffs()
        return factor(-constant / slope)

    def _repr_latex_(self) -> str:
        lhs = Function(self.name)(1, 1) / Function(self.name)(0, 0)
        definition = [] if self.root is None else [Eq(q, self.root, evaluate=False)]
        return aligned_latex([Eq(lhs, self.growth_factor, evaluate=False), *definition], self.theory)


def first_step(theory: Theory | Program, name: str = "C_v") -> FirstStep:
    """Return a correlation function before and after the first step.

    Parameters
    ----------
    theory : Theory | Program
        Linear theory or program in exact steps; its depth is ``L`` or a number.
    name : str, optional
        Name of a correlation function with two times and no other index.

    Returns
    -------
    FirstStep
        Values before and after the step.

    Raises
    ------
    NotApplicable
        For a flow, several outputs, modes, layers whose recurrence has no closed form, and a name that is not
        that of such a correlation function.

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
        raise NotApplicable(
            f"name = {name!r}: the theory has no correlation function of this name; it has "
            f"{', '.join(q.name for q in theory.correlations()) or 'none'}"
        )
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
        Growth factor, a rational function of the rate in which all other symbols are exact numbers.
    rate : Symbol
        Symbol of the learning rate.

    Returns
    -------
    float | None
        The rate, or None if no rate has this property.

    Raises
    ------
    NotApplicable
        If the growth factor is not one at the rate zero.

    Examples
    --------
    >>> from sympy.abc import x
    >>> smallest_rate((1 - 3 * x) ** 2, x)
    0.6666666666666666
    """
    roots = [x for x in _unchanged_rates(growth, rate).real_roots() if x > 0]
    return float(roots[0].evalf(20)) if roots else None


def _unchanged_rates(growth: Expr, rate: Symbol) -> Poly:
    """Return a polynomial in the rate that vanishes where the loss does not change, without the root zero.

    ``growth`` is the ratio of the losses after and before the step. Raises NotApplicable if it is not one at
    the rate zero.
    """
    polynomial = Poly(fraction(cancel(growth - 1))[0], rate)
    if polynomial.nth(0) != 0:
        raise NotApplicable(
            f"the ratio of the losses after and before the step, {growth}, must be 1 at {rate} = 0, where no "
            "weight changes"
        )
    return polynomial.exquo(Poly(rate, rate))


class _ClosedForm(LayerFamilies):
    """First step of a linear theory of any depth L, solved as recursions in the layer.

    Coefficients of the recursions are constant, and the solutions are polynomials in ell and in ``q^ell``,
    where q is an eigenvalue of the recursion.
    """

    def __init__(self, theory: Theory) -> None:
        super().__init__(theory)
        self.theory = theory
        self.recurrences = Recurrences()
        self.numbers: dict[Expr, Expr] = {}

    def result(self, name: str) -> FirstStep:
        """Return the values of a correlation function, such as ``C_v``, before and after one step."""
        head = _of_one_output(self.theory, name)
        before, after = (self.number(head.func(Integer(k), Integer(k))) for k in (0, 1))
        values = {a: self.shown(x) for a, x in self.numbers.items()}
        values |= {_symbol_of(k, ell): self.shown(x) for k, x in self.families.items()}
        root, parameter = self.recurrences.root, self.recurrences.parameter
        return FirstStep(self.theory, self.shown(before), self.shown(after), values, root, parameter, name)

    def shown(self, e: Expr) -> Expr:
        """Return an expression factored and written in ell, L and q.

        Order parameters that do not belong to a layer are replaced by their values.
        """
        names = sorted((a for a in e.atoms(AppliedUndef) if a in self.numbers), key=str)
        if not names:
            return factor(e).xreplace({Z: q**ell, Z_L: q**L})
        values = [self.shown(self.numbers[a]) for a in names]
        terms = Poly(e, *names).terms()
        return Add(*[Mul(self.shown(c), *[x**k for x, k in zip(values, ks, strict=True)]) for ks, c in terms])

    def number(self, a: AppliedUndef) -> Expr:
        """Return the value of an order parameter that does not belong to a layer, such as ``C_v``."""
        if a not in self.numbers:
            self.numbers[a] = self.as_function_of_layer(self.unrolled.value(a))
        return self.numbers[a]

    def as_function_of_layer(self, e: Expr) -> Expr:
        """Return an expression with every order parameter in closed form, as a function of the layer ell.

        Order parameters without a layer whose value is a sum of several symbols keep their names.
        """
        values = {}
        for a in e.atoms(AppliedUndef):
            if str(a.func) in self.unrolled.layered:
                values[a] = self.member(a)
            elif str(a.func) in self.unrolled.names:
                value = self.number(a)
                keep = fraction(value)[0].is_Add and len(value.free_symbols) > 1
                values[a] = a if keep else value
        return self.recurrences.settled(e.xreplace(values))

    def at(self, value: Expr, layer: Expr) -> Expr:
        """Return a function of the layer with ``layer`` in place of ``ell``."""
        shift, of = layer.as_coeff_Add()
        return value.xreplace({ell: layer, Z: {ell: Z, L: Z_L, S.Zero: S.One}[of] * q**shift})

    def vanishes(self, value: Expr) -> bool:
        """Return whether a function of the layer ell is zero for every ell."""
        return bool(self.recurrences.settled(value) == 0)

    def recurrence(self, M: list[list[Expr]], f: list[Expr], k: int, start: list[Expr]) -> list[Expr]:
        """Return the solution of ``y(ell) = M y(ell + k) + f(ell)`` for an M independent of the layer.

        Arguments are those of :meth:`LayerFamilies.recurrence`.
        """
        return self.recurrences.solve(Matrix(M), f, k, start, (L, Z_L) if k == 1 else (S.One, q))
