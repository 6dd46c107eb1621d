"""Operations of one step of the march of a linear theory, as data that prints as mathematics.

A step fills row t of every array from the rows before it. Its operations name the buffers that they read and
write, and the times, in the order in which they run; this is all that a runner needs on any backend. In print
``x(t, :t)`` are the times s < t, ``x(t, t)`` is equal time, and ``@`` sums over a time and over the members
of the field or source.

:func:`numerics.solver.linear.operations.step_of` makes the operations of a table, and
:mod:`numerics.solver.linear.steps` runs them with NumPy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sympy import Expr, S, Symbol

from derive.calculus.symbols import s, t
from numerics.lowering.table import (
    DELTA,
    Factor,
    FieldAtLayer,
    Hoisted,
    KernelRow,
    Monomial,
    Reach,
    ScalarRow,
    Table,
)

SLICES: dict[Reach, str] = {"past": ":t", "through": ":t+1", "now": "t", "start": "0"}
"""Printed form of the times of each reach."""


def label(node: FieldAtLayer) -> str:
    """Return the name of a field, source or tensor with its layer, for print.

    >>> label(("h", 2)), label(("Delta", None)), label(("h1", 2))
    ('h2', 'Delta', 'h1_2')
    """
    name, layer = node
    return name if layer is None else f"{name}_{layer}" if name[-1].isdigit() else f"{name}{layer}"


# -- buffers -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CorrelationArray:
    """Stored correlation ``C[i,j](t, s) = <x_i(t) x_j(s)>`` of two fields.

    It is stored for all pairs of times, or at equal times only.
    """

    first: FieldAtLayer
    second: FieldAtLayer

    def __str__(self) -> str:
        return f"C[{label(self.first)},{label(self.second)}]"

    @property
    def exchanged(self) -> CorrelationArray:
        """The label of the array with the fields i and j exchanged, ``C[j,i](t, s) = <x_j(t) x_i(s)>``."""
        return CorrelationArray(self.second, self.first)


@dataclass(frozen=True)
class ResponseArray:
    """Stored response ``R[i,k](t, s)`` of field i at t to source k at s, for all pairs of times.

    It is the part of the response that comes through other fields.
    """

    first: FieldAtLayer
    second: FieldAtLayer

    def __str__(self) -> str:
        return f"R[{label(self.first)},{label(self.second)}]"


TwoTimeArray = CorrelationArray | ResponseArray


@dataclass(frozen=True)
class CouplingRow:
    """Row ``K[i,l](t, :)`` of the kernel with which field l enters the equation of field i.

    ``copy`` is 0 for the first kernel from l to i, 1 for the second, and so on; it is printed as so many
    primes.
    """

    field: FieldAtLayer
    other: FieldAtLayer
    copy: int = 0

    def __str__(self) -> str:
        return f"K{chr(39) * self.copy}[{label(self.field)},{label(self.other)}]"


@dataclass(frozen=True)
class CovarianceRow:
    """Row ``<u_k u_l>(t, :)`` of the covariance of two sources."""

    first: FieldAtLayer
    second: FieldAtLayer

    def __str__(self) -> str:
        return f"<{label(self.first)} {label(self.second)}>"


@dataclass(frozen=True)
class ScalarArray:
    """Scalar for each time and each of its indices, such as the error of each sample."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class FactorArray:
    """Stored product of arrays at one time, with a value for each time step and each of its indices."""

    tensor: FieldAtLayer

    def __str__(self) -> str:
        return label(self.tensor)


@dataclass(frozen=True)
class UnitSum:
    """Stored order parameter that is a sum over units, for all pairs of times.

    The units have attributes: given constants of each unit, such as the eigenvalue of a mode.
    """

    tensor: FieldAtLayer

    def __str__(self) -> str:
        return label(self.tensor)


@dataclass(frozen=True)
class UnitFields:
    """Fields that are coupled within a time step and solved at each unit, as affine functions of sources.

    The units have attributes: given constants of each unit, such as the eigenvalue of a mode.
    """

    fields: tuple[FieldAtLayer, ...]

    def __str__(self) -> str:
        return f"({', '.join(map(label, self.fields))}) on units"


@dataclass(frozen=True)
class OrderParameterReading:
    """How an order parameter is computed from stored arrays: ``factor * (array + direct)``.

    ``tensor`` is the order parameter. ``array`` is the stored correlation, the stored sum over units, or the
    stored part of a response that comes through other fields. ``direct`` is the rest of a response, at equal
    time only: the coefficient of the source in the equation of the field. ``array`` is None if a response
    has no part through other fields.
    """

    tensor: FieldAtLayer
    array: TwoTimeArray | UnitSum | None
    factor: Expr = S.One
    direct: Expr = S.Zero


def order_parameter(table: Table, tensor: FieldAtLayer) -> OrderParameterReading:
    """Return how the order parameter ``tensor`` is computed from stored arrays.

    ``table`` holds the equations of the theory.
    """
    q = table.tensors[tensor]
    if q.unit is not None:
        return OrderParameterReading(tensor, UnitSum(tensor))
    if q.kind == "correlation":
        return OrderParameterReading(tensor, CorrelationArray(q.first, q.second), q.factor)
    direct = dict(table.row(q.first).drives).get(q.second, S.Zero)
    return OrderParameterReading(tensor, ResponseArray(q.first, q.second), q.factor, direct)


# -- operations ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EvaluateRow:
    """Evaluate a kernel or a covariance at time t and at the ``times`` s.

    Attributes
    ----------
    target
        Array that is filled.
    kernel
        The kernel as a sum of products of order parameters and other arrays.
    times
        Range of the times s: "past", "now" or "start".
    readings
        How each order parameter among the factors is computed from stored arrays.
    """

    target: CouplingRow | CovarianceRow
    kernel: KernelRow
    times: Reach
    readings: tuple[OrderParameterReading, ...] = ()

    def __str__(self) -> str:
        at = {"past": s, "now": t, "start": S.Zero}[self.times]
        indices = _bracketed([*self.kernel.rows, *self.kernel.cols])
        value = self._sum(self.kernel.at(self.times), at)
        text = f"{self.target}{indices}(t, {at}) = {value}" + (" for s < t" if at == s else "")
        if self.times == "start" and (begin := self._sum(self.kernel.at("now"), t)) != self._sum(
            self.kernel.at("start"), t
        ):
            text += f", at t = 0 {begin}"
        return text

    def _sum(self, monomials: tuple[Monomial, ...], at: Expr) -> str:
        """Return the text of a sum of products of tensors at the time s = ``at``, for print."""
        axes = {*self.kernel.rows, *self.kernel.cols, s, t}
        known = {x.tensor: x for x in self.readings}
        texts = [_monomial(m, axes, known, at) for m in monomials]
        return _joined([x for x in texts if x is not None])


@dataclass(frozen=True)
class ClearRow:
    """Set row t of a two-time array ``target`` to zero.

    ``times`` says which columns s are set: those before t, those up to t, t itself, or 0.
    """

    target: TwoTimeArray
    times: Reach

    def __str__(self) -> str:
        return f"{self.target}(t, {SLICES[self.times]}) = 0"


@dataclass(frozen=True)
class MultiplyRow:
    """Add ``gain * left(t, over) @ right(over, times)`` to row t of the two-time array ``target``.

    ``times`` and ``over`` are ranges of times: before t, up to t, t itself, or 0. If ``begins``, row t is set
    to the product instead. If ``transposed``, the right factor is ``right(times, over)^T``.
    """

    target: TwoTimeArray
    times: Reach
    left: CouplingRow | CovarianceRow
    over: Reach
    right: TwoTimeArray
    transposed: bool = False
    gain: Expr = S.One
    begins: bool = False

    def __str__(self) -> str:
        columns, over = SLICES[self.times], SLICES[self.over]
        right = f"({columns}, {over})^T" if self.transposed else f"({over}, {columns})"
        sign = "=" if self.begins else "+="
        left = f"{_factor(self.gain)}{self.left}(t, {over})"
        return f"{self.target}(t, {columns}) {sign} {left} @ {self.right}{right}"

    @property
    def of_past(self) -> bool:
        """Whether both ranges of times are those before t.

        Such products take most of the time of a step.
        """
        return self.over == self.times == "past"


@dataclass(frozen=True)
class AddRow:
    """Add ``gain * left(t, times)`` to row t of the two-time array ``target``, at the columns ``times``.

    If ``begins``, row t is set to this value instead.
    """

    target: TwoTimeArray
    times: Reach
    left: CouplingRow | CovarianceRow
    gain: Expr = S.One
    begins: bool = False

    def __str__(self) -> str:
        columns, sign = SLICES[self.times], "=" if self.begins else "+="
        return f"{self.target}(t, {columns}) {sign} {_factor(self.gain)}{self.left}(t, {columns})"


@dataclass(frozen=True)
class MirrorRow:
    """Copy row t of a correlation into column t of the correlation with the fields exchanged.

    ``times`` says which entries s of the row are copied: those before t, those up to t, t itself, or 0.
    """

    source: CorrelationArray
    times: Reach

    def __str__(self) -> str:
        columns, target = SLICES[self.times], self.source.exchanged
        return f"{target}({columns}, t) = {self.source}(t, {columns})^T"


@dataclass(frozen=True)
class EvaluateScalar:
    """Evaluate a scalar of the theory at this step, from averages at equal time and from other scalars.

    ``reads`` are the scalars of this step that it needs; all other inputs are constants.
    """

    row: ScalarRow
    reads: tuple[ScalarArray, ...] = ()

    def __str__(self) -> str:
        texts = {x: f"{CorrelationArray(a.tensor, b.tensor)}(t, t)" for x, a, b in self.row.averages}
        moving = {x.name for x in self.reads}
        texts |= {x: _read(f, t) + "(t)" * (f.tensor[0] in moving) for x, f in self.row.inputs}
        value = self.row.expression.xreplace({x: Symbol(text) for x, text in texts.items()})
        return f"{self.target}{_bracketed(self.row.indices)}(t) = {value}"

    @property
    def target(self) -> ScalarArray:
        """Array in which the scalar is stored."""
        return ScalarArray(self.row.name)


@dataclass(frozen=True)
class MultiplyFactors:
    """Store the product of factors that depend on the time t of this step; kernels of later steps read it."""

    product: Hoisted

    def __str__(self) -> str:
        axes = {*self.product.rows, s, t}
        value = _monomial(Monomial(S.One, self.product.factors), axes, {}, t)
        return f"{self.target}{_bracketed(self.product.rows)}(t) = {value}"

    @property
    def target(self) -> FactorArray:
        """Array in which the product is stored."""
        return FactorArray(self.product.tensor)


@dataclass(frozen=True)
class UnitTerm:
    """Term ``factor * left(t, times) @ field(times)`` of the equation of a field at each unit.

    ``factor`` depends on attributes: given constants of each unit, such as the eigenvalue of a mode.
    """

    factor: Expr
    left: CouplingRow
    times: Reach

    def __str__(self) -> str:
        at, field = SLICES[self.times], label(self.left.other)
        return f"{_factor(self.factor)}{self.left}(t, {at}) @ {field}({at})"


@dataclass(frozen=True)
class UnitEquation:
    """Equation ``field(t) = constant + sum gain * source(t) + sum of terms`` at each unit.

    ``drives`` are pairs (source, gain) of the sources in the equation. ``responds`` are all sources on which
    the field depends, those that act through other fields included.
    """

    field: FieldAtLayer
    constant: Expr
    drives: tuple[tuple[FieldAtLayer, Expr], ...]
    terms: tuple[UnitTerm, ...]
    responds: tuple[FieldAtLayer, ...]

    def __str__(self) -> str:
        parts = [] if self.constant == 0 else [str(self.constant)]
        parts += [f"{_factor(g)}{label(u)}(t)" for u, g in self.drives]
        return f"{label(self.field)}(t) = {_joined([*parts, *map(str, self.terms)])}"


@dataclass(frozen=True)
class StepUnits:
    """Solve the equations of coupled fields at time t, separately for each unit.

    A field is ``b(t) + sum_u a_u(t, :t+1) @ u(:t+1)`` with the sources u, where ``:t+1`` are the times up to
    t. The unknowns are ``b`` at time t and row t of all responses ``a_u``.
    """

    equations: tuple[UnitEquation, ...]

    def __str__(self) -> str:
        return f"solve at each unit: {', '.join(map(str, self.equations))}"

    @property
    def target(self) -> UnitFields:
        """The fields whose equations are solved."""
        return UnitFields(tuple(x.field for x in self.equations))


@dataclass(frozen=True)
class UnitSource:
    """Gaussian source in the equations of fields on units with attributes.

    Attributes
    ----------
    source
        Name and layer of the source.
    covariance
        Covariance of the source with itself.
    present
        Whether the fields depend on the source at the present step.
    """

    source: FieldAtLayer
    covariance: KernelRow
    present: bool


@dataclass(frozen=True)
class SumUnits:
    """Fill ``target`` with the sum over units of ``weight * <x_i(t) x_j(s)>``, at s <= t.

    For a response the summand is ``weight * a(t, s)``, with the response ``a`` of a field to a source.
    ``array`` names the fields x_i and x_j, or the field and the source. ``sources`` are the Gaussian sources
    over which the average is taken.
    """

    target: UnitSum
    array: TwoTimeArray
    weight: Expr
    sources: tuple[UnitSource, ...] = ()

    def __str__(self) -> str:
        first, second = label(self.array.first), label(self.array.second)
        if isinstance(self.array, ResponseArray):
            value = f"a[{first},{second}](t, s)"
        else:
            value = f"b[{first}](t)*b[{second}](s)"
            for x in self.sources:
                u, low = label(x.source), SLICES["through" if x.present else "past"]
                noise = f"<{u} {u}>({low}, :s+1)"
                value += f" + a[{first},{u}](t, {low}) @ {noise} @ a[{second},{u}](s, :s+1)^T"
            value = f"({value})" if self.sources else value
        return f"{self.target}(t, s) = sum over units of {_factor(self.weight)}{value} for s <= t"


Operation = (
    EvaluateRow
    | ClearRow
    | MultiplyRow
    | AddRow
    | MirrorRow
    | EvaluateScalar
    | MultiplyFactors
    | StepUnits
    | SumUnits
)


@dataclass(frozen=True)
class MarchStep:
    """One step of the march: the two-time arrays that it fills, and its operations in order.

    ``arrays`` are the stored responses, and then the correlations that are stored for all pairs of times;
    those that are stored at equal times only are left out. ``str`` prints one line for each operation.
    """

    arrays: tuple[TwoTimeArray, ...]
    operations: tuple[Operation, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.operations))


# -- text ----------------------------------------------------------------------------------------------------


def _bracketed(indices: Iterable[Symbol]) -> str:
    """Return the text of indices in square brackets; empty without indices."""
    names = ",".join(map(str, indices))
    return f"[{names}]" if names else ""


def _factor(e: Expr) -> str:
    """Return the text of a coefficient in front of a product: empty for 1, a minus sign for -1."""
    if e == 1:
        return ""
    return "-" if e == -1 else f"({e})*" if e.is_Add else f"{e}*"


def _joined(parts: list[str]) -> str:
    """Return the text of a sum, for print; ``parts`` are the texts of its terms, "0" without terms."""
    return " + ".join(parts).replace("+ -", "- ") or "0"


def _read(f: Factor, at: Expr, name: str | None = None) -> str:
    """Return the text of a tensor with its indices and times, with the time ``at`` in place of s.

    ``name`` is printed in place of the name of the tensor, if it is given.
    """
    times = [str(at if x == s else x) for x in f.indices if x in (t, s)]
    indices = _bracketed(x for x in f.indices if x not in (t, s))
    return f"{name or label(f.tensor)}{indices}" + (f"({', '.join(times)})" if times else "")


def _monomial(
    m: Monomial, axes: set[Symbol], known: dict[FieldAtLayer, OrderParameterReading], at: Expr
) -> str | None:
    """Return the text of a product of tensors at the time s = ``at``; None if the product is zero.

    The product is summed over indices that are not in ``axes``. ``known`` are the order parameters that are
    printed as stored arrays.
    """
    coefficient, parts = m.coefficient.xreplace({s: at}), []
    for f in m.factors:
        q = known.get(f.tensor)
        if q is None:
            name = "delta" if f.tensor == DELTA else None
            parts.append(_read(f, at, name))
            continue
        coefficient *= q.factor
        present = q.direct != 0 and (at == t or f.indices[-2:] == (t, t))
        text = "" if q.array is None else _read(f, at, str(q.array))
        if present:
            indices = _bracketed(x for x in f.indices if x not in (t, s))
            direct = f"{_factor(q.direct)}delta{indices}" if indices else str(q.direct)
            text = f"({text} + {direct})" if text else direct
        if not text:
            return None
        parts.append(text)
    summed = sorted({str(x) for f in m.factors for x in f.indices} - {str(x) for x in axes})
    if not parts:
        return str(coefficient)
    product = "*".join(parts)
    return _factor(coefficient) + (f"sum_{','.join(summed)}({product})" if summed else product)
