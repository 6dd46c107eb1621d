"""A linear theory at integer depth as a :class:`~numerics.lowering.table.Table`.

:func:`lower` reads from the derived theory which kernel multiplies which past field, the covariances of the
sources, and the definitions of order parameters. It raises :class:`NotLinear` for a term that is not linear
in the fields. :mod:`numerics.solver.linear` runs the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from sympy import Add, Expr, Mul, Pow, S, Sum, Symbol, exp, sympify
from sympy.core.function import AppliedUndef
from sympy.functions.special.tensor_functions import KroneckerDelta
from sympy.utilities.lambdify import implemented_function

from derive.calculus.averages import Average, Response
from derive.calculus.sums import over, rename_multiplied
from derive.calculus.symbols import ell, s, t
from derive.errors import NotApplicable
from derive.linear.form import LinearTerm, Row, linear_form
from derive.theory import Equation, OrderParameter, Theory
from numerics.errors import Unserved
from numerics.lowering.averages import MeanResponse, read_average
from numerics.lowering.indices import (
    expressions_of,
    limits,
    moving_nodes,
    node_at_zero,
    require_open_numbers,
)
from numerics.lowering.table import (
    DELTA,
    Coupling,
    Factor,
    FieldAtLayer,
    FieldRow,
    Hoisted,
    KernelRow,
    Monomial,
    Reach,
    Request,
    ScalarRow,
    Table,
)
from numerics.quotients import without_overflow


class NotLinear(ValueError):
    """Raised for a theory with a term that the linear march does not take."""


@lru_cache(maxsize=64)
def lower(theory: Theory) -> Table:
    """Return the rows of a linear theory.

    Parameters
    ----------
    theory : Theory
        Linear theory, in discrete time and at integer depth.

    Returns
    -------
    Table
        Rows of fields, covariances of sources, order parameters and scalars.

    Raises
    ------
    NotLinear
        If a term is not linear in the fields, or has another form that the linear march cannot use.
    ValueError
        For a family of layers, which ``Theory.at_depth`` would write out.

    Examples
    --------
    >>> from derive.theory import mean_field
    >>> from derive.program import mlp
    >>> [row.field for row in lower(mean_field(mlp(2)).at_depth(2)).fields]
    [('h', 1), ('h', 2), ('g', 2), ('g', 1)]
    """
    return _Lowering(theory).table()


def node(atom: AppliedUndef) -> FieldAtLayer:
    """Return name and layer of an applied function, such as h and 2 for ``h(2, mu, t)``.

    The layer is the first of several arguments if that is an integer, and otherwise None.
    """
    first = atom.args[0] if atom.args else S.Zero
    return str(atom.func), int(first) if len(atom.args) > 1 and first.is_Integer else None


def _indices(atom: Expr) -> tuple[Symbol, ...]:
    """Return the indices and times among the arguments of an applied function, without integers.

    Raises NotLinear for a shifted index, as in ``g(p + 1, s)``.
    """
    for x in atom.args:
        if x.free_symbols and not isinstance(x, Symbol):
            raise NotLinear(
                f"{atom} has the argument {x}, and the linear march takes only integers, times and indices "
                "such as mu"
            )
    return tuple(x for x in atom.args if isinstance(x, Symbol))


def _axes(atom: Expr) -> tuple[Symbol, ...]:
    """Return the indices of a field other than layer and time."""
    return tuple(x for x in _indices(atom) if x not in (t, s))


def require_averages_at_present(theory: Theory) -> None:
    """Raise NotLinear if a field or scalar is read at time zero.

    Allowed are fields at time zero in equations of fields.
    """
    moving, fields = moving_nodes(theory), {e.name for e in theory.equations}
    equations = {e.rhs for e in theory.equations}
    for e in expressions_of(theory):
        for x in sorted(e.atoms(AppliedUndef), key=str):
            if node_at_zero(x) in moving and not (e in equations and str(x.func) in fields):
                raise NotLinear(
                    f"{x} is read at time zero in {e}; the linear march reads at time zero only fields, and "
                    "only in equations of fields"
                )


def require_whole_ranges(theory: Theory) -> None:
    """Raise NotLinear unless each index runs over 1, 2, ... to the same last value in all ranges and sums.

    The arrays of the march hold all values of an index, counted from 1. The march takes no sum over a part of
    these values, and no quantity at a single value, such as f(mu, 2, t). Ranges of layers, of times and of
    observables are not checked.
    """
    last: dict[Symbol, Expr] = {}
    for index, lower, upper in limits(replace(theory, observables=())):
        if index in (t, s, ell) or sympify(upper).has(t, s):
            continue
        if lower != 1:
            raise NotLinear(
                f"the index {index} runs from {lower}, and the linear march counts values of an index from 1"
            )
        if last.setdefault(index, upper) != upper:
            raise NotLinear(
                f"the index {index} has the upper ends {last[index]} and {upper}, and the linear march "
                "takes sums over all values of an index only"
            )
    try:
        require_open_numbers(theory)
    except Unserved as error:
        raise NotLinear(str(error)) from None
    for e in expressions_of(theory):
        for x in sorted(e.atoms(AppliedUndef), key=str):
            if str(x.func) in theory.program.constants and any(a.is_Integer for a in x.args):
                raise NotLinear(
                    f"{x} is read at one value of an index, and the linear march reads given data at all "
                    "values only"
                )


class _Lowering:
    """Conversion of one linear theory to a :class:`Table`, the rows that the march runs.

    The attribute ``extents`` holds the largest value of each index. ``hoisted`` are products of arrays that
    depend on the earlier time s and not on t, so that the march computes each product once for each time.
    """

    def __init__(self, theory: Theory) -> None:
        self.attributes = {x.name for x in theory.program.attributes}
        self.units = theory.program.unit_indices
        self.on_units = {e.name for e in theory.equations if self.units & set(e.lhs.args)}
        self.theory = theory = self.unlabelled(theory) if self.units else theory
        self.uppers = {index: upper for index, _, upper in limits(theory)}
        self.hoisted: dict[str, Hoisted] = {}
        self.extents: dict[Symbol, Expr] = {}

    def table(self) -> Table:
        """Return the theory as a table; raise NotLinear for a term that a table cannot hold."""
        families = [e.lhs for e in self.theory.equations if ell in {r.index for r in e.ranges}]
        if families:
            raise ValueError(
                f"{families[0]} is a family of layers: use theory.at_depth(n) instead of the theory"
            )
        theory = self.theory
        require_averages_at_present(theory)
        require_whole_ranges(theory)
        for e in (*theory.equations, *theory.scalars):
            self.extents |= {r.index: r.upper for r in e.ranges}
        for u in theory.sources:
            self.extents |= {r.index: r.upper for r in u.ranges}
        for q in theory.order_parameters:
            self.extents |= {r.index: r.upper for r in q.ranges}
        try:
            rows = linear_form(self.theory).rows
        except NotApplicable as error:
            raise NotLinear(str(error)) from None
        tensors = {node(q.symbol): self.request(q) for q in self.theory.order_parameters}
        fields = tuple(map(self.field, rows))
        self.require_separate_sources(
            fields, [(node(u.symbol), node(u.partner)) for u in self.theory.sources]
        )
        covariances: dict[tuple[FieldAtLayer, FieldAtLayer], KernelRow] = {}
        source_indices: dict[FieldAtLayer, tuple[Symbol, ...]] = {}
        for u in self.theory.sources:
            rows, cols = _axes(u.symbol), _axes(u.partner)
            covariances[node(u.symbol), node(u.partner)] = self.kernel(u.covariance, rows, cols)
            source_indices.setdefault(node(u.symbol), rows)
        scalars = tuple(self.scalar(e) for e in self.theory.scalars)
        rows_of = [c.kernel for r in fields for c in r.couplings] + [*covariances.values()]
        read = {f.tensor for kernel in rows_of for m in kernel.monomials for f in m.factors}
        hoisted = tuple(h for h in self.hoisted.values() if h.tensor in read)
        return Table(fields, covariances, source_indices, tensors, scalars, hoisted, self.extents)

    # -- units -----------------------------------------------------------------------------------------

    def unlabelled(self, theory: Theory) -> Theory:
        """Return the theory with fields and sources without their index of units.

        Attributes keep this index.
        """

        def bare(e: Expr) -> Expr:
            return e.replace(
                lambda x: isinstance(x, AppliedUndef) and str(x.func) not in self.attributes,
                lambda x: x.func(*[i for i in x.args if i not in self.units]),
            )

        def ranged(x: Any) -> Any:
            return tuple(r for r in x.ranges if r.index not in self.units)

        def equation(e: Equation) -> Equation:
            terms = tuple(x.rewrite(bare) for x in e.terms)
            return replace(e, lhs=bare(e.lhs), terms=terms, ranges=ranged(e))

        return replace(
            theory,
            equations=tuple(map(equation, theory.equations)),
            scalars=tuple(map(equation, theory.scalars)),
            sources=tuple(
                replace(u, symbol=bare(u.symbol), partner=bare(u.partner), ranges=ranged(u))
                for u in theory.sources
            ),
            order_parameters=tuple(
                replace(q, definition=bare(q.definition)) for q in theory.order_parameters
            ),
        )

    def known(self, e: Expr) -> bool:
        """Return whether an expression contains attributes, the given constants of each unit."""
        return any(str(a.func) in self.attributes for a in e.atoms(AppliedUndef))

    def split(self, e: Expr) -> tuple[Expr, Expr]:
        """Return two factors of an expression: the product of its factors with attributes, and all others.

        Attributes are given constants of each unit, such as the eigenvalue of a mode. Responses belong to the
        second factor, which keeps the sums of the expression.
        """
        if isinstance(e, Sum):
            attributes, others = self.split(e.function)
            return attributes, Sum(others, *e.limits)
        attributes = Mul(*[x for x in Mul.make_args(e) if self.known(x) and not isinstance(x, Response)])
        return attributes, e / attributes

    # -- fields ----------------------------------------------------------------------------------------

    def field(self, row: Row) -> FieldRow:
        """Return the equation of one field as a row: gains of sources and couplings to fields.

        A term without a field is allowed only at units with attributes, and if it is constant. A source has
        a constant as factor. Raise NotLinear for a term of another form.
        """
        drives: dict[FieldAtLayer, Expr] = {}
        couplings: list[Coupling] = []
        on_units = row.name in self.on_units
        for part in Add.make_args(row.given):
            if part != 0 and not (on_units and self.constant(part)):
                raise NotLinear(
                    f"{row.lhs} has the term {part}, which contains no field; a term without a field must be "
                    "constant and belong to units with attributes"
                )
        for x in row.sources:
            if _indices(x.field) != _indices(row.lhs):
                raise NotLinear(
                    f"{row.lhs} has the source {x.field}, but the linear march needs a field and its "
                    "sources at the same indices and times, in the same order"
                )
            drives[node(x.field)] = drives.get(node(x.field), S.Zero) + x.entry
        for x in row.actions:
            if (x.name in self.on_units) != on_units:
                raise NotLinear(
                    f"{row.lhs} has the term {x.expr}, which couples fields of units with attributes to "
                    "fields of other units"
                )
            for part in Add.make_args(x.weight.expand(deep=False)):
                unit, weight = self.split(part)
                couplings.append(replace(self.coupling(row, x, weight), unit=unit))
        constant = row.given
        for e in (constant, *drives.values(), *(c.unit for c in couplings)):
            self.require_same_for_all(e)
        for u, gain in drives.items():
            given = [a for a in gain.atoms(AppliedUndef) if str(a.func) not in self.attributes]
            if given or gain.has(t, s):
                raise NotLinear(
                    f"{row.lhs} has the source {u[0]} with the factor {gain}, and the linear march "
                    "multiplies sources by numbers and attributes of units only"
                )
        return FieldRow(
            node(row.lhs), _axes(row.lhs), tuple(drives.items()), _joined(couplings), on_units, constant
        )

    def require_same_for_all(self, coefficient: Expr) -> None:
        """Raise NotLinear if a coefficient of an equation depends on an index, such as a sample."""
        indices = coefficient.free_symbols & (self.extents.keys() - self.units)
        if indices:
            names = ", ".join(sorted(map(str, indices)))
            raise NotLinear(
                f"the coefficient {coefficient} depends on {names}; the linear march takes a coefficient "
                "that depends on an index only if it is a given array and multiplies a field (not a source)"
            )

    @staticmethod
    def require_separate_sources(
        fields: tuple[FieldRow, ...], pairs: Iterable[tuple[FieldAtLayer, FieldAtLayer]]
    ) -> None:
        """Raise NotLinear if two different sources in equations of units with attributes are correlated.

        Attributes are given constants of each unit. ``pairs`` are the pairs of sources with a covariance.
        """
        driving = {u for row in fields if row.unit for u, _ in row.drives}
        for u, v in pairs:
            if u != v and {u, v} <= driving:
                raise NotLinear(
                    f"{u[0]} and {v[0]} are correlated sources of units with attributes. The linear march "
                    "needs independent sources there; sampled paths (solver.method = 'paths') also take "
                    "correlated ones"
                )

    def constant(self, part: Expr) -> bool:
        """Return whether an expression consists of attributes of units and numbers only.

        Symbols of numbers, such as gamma0, count as numbers.
        """
        return not part.has(t, s, Sum) and all(
            str(a.func) in self.attributes for a in part.atoms(AppliedUndef)
        )

    def coupling(self, row: Row, x: LinearTerm, weight: Expr) -> Coupling:
        """Return the term ``x`` in the equation ``row`` of a field as a coupling to another field.

        A coupling is that field and the memory kernel that multiplies it. ``weight`` is this kernel as an
        expression, with its coefficient. Raises NotLinear for a sum over a part of the past, and for a single
        time that is neither t nor 0.
        """
        self.extents |= {r.index: r.upper for r in x.over}
        known: dict[tuple[str, Expr], Reach] = {
            ("", t): "now",
            ("", S.Zero): "start",
            ("strict", s): "past",
            ("past", s): "through",
        }
        reach = known.get((x.reach, x.field.args[-1]))
        if reach is None:
            raise NotLinear(
                f"{row.lhs} has the term {x.expr}, and the linear march takes only fields at time t or 0, "
                "and sums over all past steps"
            )
        cols = _axes(x.field)
        body = over(weight, [r for r in x.over if r.index not in cols])
        return Coupling(node(x.field), self.kernel(body, _axes(row.lhs), cols, reach))

    # -- kernels ---------------------------------------------------------------------------------------

    def kernel(
        self, expr: Expr, rows: tuple[Symbol, ...], cols: tuple[Symbol, ...], reach: Reach = "past"
    ) -> KernelRow:
        """Return an expression as a kernel with the indices ``rows`` at t and ``cols`` at s.

        ``reach`` are the times s at which the kernel multiplies a field: "past", "through" (the past and t),
        "now" or "start". An index that stands on both sides gets a second name and a Kronecker delta.
        """
        shared = {x: Symbol(f"{x}_col", integer=True) for x in cols if x in rows}
        if shared:
            self.extents |= {new: self.extents[old] for old, new in shared.items()}
            for old, new in shared.items():
                expr = expr * KroneckerDelta(old, new)
            cols = tuple(shared.get(x, x) for x in cols)
        axes = {*rows, *cols, s, t}
        monomials = tuple(self.monomial(c, fs, axes) for c, fs in products(self.renamed(expr, axes)))
        return KernelRow(rows, cols, monomials, reach)

    def renamed(self, expr: Expr, axes: set[Symbol]) -> Expr:
        """Return an expanded expression in which multiplied sums have different indices, none in ``axes``.

        The largest value of each index of a sum is recorded. A new name is not that of an index with another
        largest value.
        """
        expr = rename_multiplied(expr.expand(), axes, powers=True)
        known = self.uppers | self.extents
        if any(known.get(x, upper) != upper for x, _, upper in _limits_in(expr)):
            expr = rename_multiplied(expr, {*axes, *known})
        self.extents |= {x: upper for x, _, upper in _limits_in(expr)}
        return expr

    def monomial(self, coefficient: Expr, factors: tuple[Expr, ...], axes: set[Symbol]) -> Monomial:
        """Return a product of a coefficient and tensors as one term of a kernel.

        ``axes`` are the indices and times of the kernel; the product is summed over all other indices. A sum
        that does not depend on t, ``sum_j a_j(s) b_j,row(s)``, becomes a tensor of its own, which is computed
        once a step. Raises NotLinear for an order parameter whose times are (s, t) and not (t, s), and for a
        coefficient that depends on an index.
        """
        parts, instant = [], False
        for a in factors:
            if isinstance(a, KroneckerDelta):
                pair = tuple(x for x in a.args if isinstance(x, Symbol))
                if set(pair) == {s, t}:
                    instant = True
                    continue
                parts.append(Factor(DELTA, pair))
                continue
            if {t, s} <= set(a.args) and a.args[-2:] != (t, s):
                raise NotLinear(
                    f"the linear march takes {a} only if its last two arguments are the times t and s, in "
                    "this order"
                )
            parts.append(Factor(node(a), _indices(a)))
        self.require_same_for_all(coefficient)
        summed = sorted({i for f in parts for i in f.indices} - axes, key=str)
        for index in summed:
            group = [f for f in parts if index in f.indices]
            inner = {i for f in group for i in f.indices} & {*summed}
            inner -= {i for f in parts if f not in group for i in f.indices}
            single = [factor for f in group for factor in self.factors_of(f)]
            others = {i for f in group for i in f.indices} - inner
            rows = tuple(x for x in sorted(others, key=str) if x != s)
            if not group or t in others or s not in others or not rows:
                # Only a sum that depends on s and on another index, but not on t, is computed once a step and
                # kept as a tensor of its own.
                continue
            name = " ".join(sorted(f"{f.tensor[0]}{f.tensor[1] or ''}{f.indices}" for f in single))
            key = self.hoisted.setdefault(
                name, Hoisted((f"hoisted{len(self.hoisted)}", None), rows, tuple(single))
            )
            parts = [f for f in parts if f not in group] + [Factor(key.tensor, (s, *rows))]
        return Monomial(coefficient, tuple(parts), instant)

    def factors_of(self, f: Factor) -> tuple[Factor, ...]:
        """Return the factors of a tensor that was introduced for a product computed once a step.

        Any other tensor is returned itself, as the only factor.
        """
        return next((h.factors for h in self.hoisted.values() if h.tensor == f.tensor), (f,))

    # -- order parameters and scalars ------------------------------------------------------------------

    def request(self, q: OrderParameter) -> Request:
        """Return an order parameter as a correlation of two fields, or as a response.

        Raise NotLinear if its definition is neither.
        """
        average = next(iter(q.definition.atoms(Average)))
        unit = None
        body, definition = average.body, q.definition
        if isinstance(definition, Sum) and {lim[0] for lim in definition.limits} <= self.units:
            definition = definition.function
            unit, body = self.split(body)
        elif self.known(body) or {str(a.func) for a in body.atoms(AppliedUndef)} & self.on_units:
            raise NotLinear(
                f"the order parameter {q.symbol} = {q.definition} contains attributes or fields of units "
                "with attributes, and is not a sum over these units"
            )
        factor = definition / average
        try:
            mean = read_average(body)
        except Unserved as error:
            raise NotLinear(str(error)) from None
        if isinstance(mean, MeanResponse):
            attributes, responding = self.split(mean.body)
            if unit is not None:
                unit = unit * attributes
            return Request("response", node(responding), node(mean.source), factor, unit)
        self.require_same_for_all(factor if unit is None else factor * unit)
        number, pair = _pair(mean.late, mean.early)
        # The factor at the earlier time is 1 if both fields are at time t. Times then do not order the two
        # fields: the first one is that with the first index of the order parameter.
        if mean.early == 1:
            rows = _axes(q.symbol)
            pair.sort(key=lambda a: not set(_axes(a)) & set(rows[:1]))
        first, second = pair
        return Request("correlation", node(first), node(second), number * factor, unit)

    def scalar(self, e: Equation) -> ScalarRow:
        """Return the equation of a scalar as an expression in symbols.

        Each symbol stands for an average of a product of two fields, or for a scalar or given array.
        """
        indices, averages, inputs = _axes(e.lhs), [], []
        expr = e.rhs.replace(Sum, lambda body, *limits: _total(body, limits, indices))
        expr = without_overflow(expr).replace(_has_exponentials, _with_one_exponential)
        for k, average in enumerate(sorted(expr.atoms(Average), key=str)):
            number, (first, second) = _pair(average.body)
            stand_in = Symbol(f"average{k}")
            expr = expr.xreplace({average: number * stand_in})
            averages.append(
                (stand_in, Factor(node(first), _axes(first)), Factor(node(second), _axes(second)))
            )
        for atom in sorted(expr.atoms(AppliedUndef), key=str):
            # A given function of a scalar, such as the slope of the loss at the output, stays in the
            # expression. Only the scalar in its argument becomes an input.
            if any(x.has(AppliedUndef) for x in atom.args):
                continue
            stand_in = Symbol(f"in_{atom.func}")
            expr = expr.xreplace({atom: stand_in})
            inputs.append((stand_in, Factor(node(atom), _axes(atom))))
        return ScalarRow(e.name, indices, expr, tuple(averages), tuple(inputs))


def _limits_in(e: Expr) -> list[tuple[Symbol, Expr, Expr]]:
    """Return the limits (index, lower, upper) of all sums in an expression."""
    return [tuple(x) for total in e.atoms(Sum) for x in total.limits]


def _total(body: Expr, limits: tuple[tuple[Expr, ...], ...], indices: tuple[Symbol, ...]) -> Expr:
    """Return a sum in the equation of a scalar as a reduction of an array over axes.

    ``indices`` are those of the scalar. The sum must run over some of these indices, as the sum over all
    outputs in the error of each output. Raises NotLinear for a sum over another index, or over an index that
    the summand does not have.
    A sum of exponentials is written with the largest one in front, which cancels in quotients:
    ``exp(f)/sum(exp(f))`` becomes ``exp(f - m)/sum(exp(f - m))`` with ``m = max(f)``.
    """
    if any(x not in indices or not body.has(x) for x, *_ in limits):
        raise NotLinear(
            f"the sum of {body} in the equation of a scalar runs over an index that the scalar, or the "
            "summand, does not have"
        )
    axes = tuple(len(indices) - indices.index(x) for x, *_ in limits)
    exponents = [x.args[0] for x in Mul.make_args(body) if isinstance(x, exp)]
    if not all(any(e.has(x) for e in exponents) for x, *_ in limits):
        return _over_axes("total", np.sum, axes)(body)
    largest = _over_axes("largest", np.max, axes)(Add(*exponents))
    return exp(largest) * _over_axes("total", np.sum, axes)(_with_one_exponential(body * exp(-largest)))


def _has_exponentials(e: Expr) -> bool:
    """Return whether an expression is a product that contains several exponentials."""
    return isinstance(e, Mul) and sum(isinstance(x, exp) for x in e.args) > 1


def _with_one_exponential(product: Expr) -> Expr:
    """Return a product with its exponentials joined in one.

    Separate exponentials could overflow where the product does not.
    """
    factors = Mul.make_args(product)
    exponentials = [x for x in factors if isinstance(x, exp)]
    exponent = Add(*[x.args[0] for x in exponentials])
    return Mul(*[x for x in factors if x not in exponentials], exp(exponent))


@lru_cache(maxsize=16)
def _over_axes(name: str, reduction: Callable[..., Any], axes: tuple[int, ...]) -> Any:
    """Return the function that applies a reduction of NumPy over axes, counted from 1 for the last one.

    The result keeps these axes with length one. ``name`` begins the name of the function in expressions.
    """
    reduced = partial(reduction, axis=tuple(-x for x in axes), keepdims=True)
    return implemented_function("_".join([name, *map(str, axes)]), reduced)


def _reaching(kernel: KernelRow, reach: Reach) -> tuple[Monomial, ...]:
    """Return the terms of a kernel, to be added to a kernel over the times ``reach``.

    If the kernel is over the past and ``reach`` includes the present time, its terms are marked as zero at s
    = t.
    """
    strict = kernel.reach == "past" and reach == "through"
    return tuple(replace(m, strict=m.strict or strict) for m in kernel.monomials)


def _renamed(kernel: KernelRow, names: dict[Symbol, Symbol]) -> tuple[Monomial, ...]:
    """Return the terms of a kernel with indices renamed; ``names`` maps old to new indices."""

    def factor(f: Factor) -> Factor:
        return Factor(f.tensor, tuple(names.get(x, x) for x in f.indices))

    return tuple(replace(m, factors=tuple(factor(f) for f in m.factors)) for m in kernel.monomials)


def _pair(*bodies: Expr) -> tuple[Expr, list[AppliedUndef]]:
    """Return the number and the two fields of an average of a product of two fields.

    ``bodies`` are factors of the product; a square is the same field twice. Raise NotLinear if the product
    does not have two fields.
    """
    atoms: list[AppliedUndef] = []
    number: Expr = S.One
    for body in bodies:
        front, fields = body.as_coeff_Mul()
        number *= front
        for x in Mul.make_args(fields) if fields != 1 else ():
            base, times = (x.base, x.exp) if isinstance(x, Pow) else (x, S.One)
            if not isinstance(base, AppliedUndef) or not times.is_Integer:
                raise _not_two_fields(bodies)
            atoms += [base] * int(times)
    if len(atoms) != 2:
        raise _not_two_fields(bodies)
    return number, atoms


def _not_two_fields(bodies: Iterable[Expr]) -> NotLinear:
    """Return the exception for an average of the product of ``bodies``, which are not two fields."""
    return NotLinear(
        f"<{Mul(*bodies)}> is not an average of two fields, and the order parameters of a linear theory must "
        "be averages of products of two fields"
    )


def products(expr: Expr) -> Iterable[tuple[Expr, tuple[Expr, ...]]]:
    """Yield the terms of an expanded kernel, each as (coefficient, factors).

    Factors are order parameters, scalars, given arrays and Kronecker deltas. Sums over indices are left out,
    because an index that occurs in factors only is summed over. Sums that are multiplied must therefore have
    different indices, see :func:`.rename_multiplied`. Raises NotLinear for another factor.
    """
    expr = expr.expand()
    if isinstance(expr, Add):
        for x in expr.args:
            yield from products(x)
        return
    coefficient: Expr = S.One
    factors: list[Expr] = []
    sums: list[Sum] = []
    for x in Mul.make_args(expr):
        if isinstance(x, AppliedUndef | KroneckerDelta):
            factors.append(x)
        elif isinstance(x, Sum):
            sums.append(x)
        elif x.atoms(AppliedUndef):
            raise NotLinear(
                f"the kernel {expr} has the factor {x}; only products of numbers, correlations, responses, "
                "scalars, given arrays and Kronecker deltas, and sums of such products, are supported"
            )
        else:
            coefficient *= x
    if not sums:
        yield coefficient, tuple(factors)
        return
    for c, inner in products(sums[0].function):
        others = products(Mul(*sums[1:])) if sums[1:] else [(S.One, ())]
        for c2, outer in others:
            yield coefficient * c * c2, (*factors, *inner, *outer)


def _joined(couplings: list[Coupling]) -> tuple[Coupling, ...]:
    """Join the couplings of an equation with the same field and the same factor of units, by adding kernels.

    A kernel over the past and one over past and present are joined, so that the march computes one row and
    one product. Kernels at the present time only are joined with each other, and so are those at time zero.
    """
    joined: dict[tuple[FieldAtLayer, bool | Reach, Expr], Coupling] = {}
    for c in couplings:
        summed = c.kernel.reach in ("past", "through")
        key = (c.field, summed or c.kernel.reach, c.unit)
        old = joined.get(key)
        if old is None:
            joined[key] = c
            continue
        names = dict(zip(c.kernel.cols, old.kernel.cols, strict=True))
        new = replace(c.kernel, cols=old.kernel.cols, monomials=_renamed(c.kernel, names))
        reach: Reach = (
            "past" if old.kernel.reach == new.reach == "past" else "through" if summed else new.reach
        )
        both = tuple(x for k in (old.kernel, new) for x in _reaching(k, reach))
        joined[key] = Coupling(c.field, replace(new, monomials=both, reach=reach), c.unit)
    return tuple(joined.values())
