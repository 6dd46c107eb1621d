"""Operations of a step of the march, written from a plan.

With x_i(t) = sum_k g_k u_k(t) + sum_l sum_s K_il(t, s) x_l(s), rows follow from earlier rows::

    response     R_ik(t, s) = sum_l K_il(t, .) (R_lk(., s) + [l driven by k] g_k delta(., s))
    correlation  C_ij(t, s) = sum_km g_k <u_k(t) u_m(.)> (R_jm(s, .) + [j driven by m] g_m delta(s, .))^T
                              + sum_l K_il(t, .) C_lj(., s)

where the first term of the second line is Stein's lemma. Each term is one operation of
:mod:`numerics.lowering.operations`, at s < t and, if a kernel includes the present, at s = t. The march runs
the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from sympy import Expr, S

from numerics.lowering.operations import (
    AddRow,
    ClearRow,
    CorrelationArray,
    CouplingRow,
    CovarianceRow,
    EvaluateRow,
    EvaluateScalar,
    FactorArray,
    MarchStep,
    MirrorRow,
    MultiplyFactors,
    MultiplyRow,
    Operation,
    OrderParameterReading,
    ResponseArray,
    ScalarArray,
    StepUnits,
    SumUnits,
    TwoTimeArray,
    UnitEquation,
    UnitFields,
    UnitSource,
    UnitSum,
    UnitTerm,
    order_parameter,
)
from numerics.lowering.table import Coupling, FieldAtLayer, KernelRow, Reach, Request, Table
from numerics.solver.linear.plan import CorrelationPart, Plan, StepQuantity, coupling_rows

RowTerm = TypeVar("RowTerm", MultiplyRow, MultiplyRow | AddRow)


def step_of(table: Table, wanted: tuple[FieldAtLayer | Request, ...] = ()) -> MarchStep:
    """Return the operations of a step of the march of a table.

    Parameters
    ----------
    table : Table
        A linear theory, lowered.
    wanted : tuple of (str, int or None) or Request, optional
        Order parameters to compute besides those that the dynamics needs.

    Returns
    -------
    MarchStep
        The operations in the order in which they run. As text it has one line for each operation.

    Raises
    ------
    NotCausal
        If a quantity of the step depends on itself, or if the theory states a covariance of two sources only
        in the order that is not needed.
    ValueError
        If two different sources on units with attributes are correlated.

    Examples
    --------
    >>> from derive.program import mlp
    >>> from derive.theory import mean_field
    >>> from numerics.lowering import lower
    >>> step = step_of(lower(mean_field(mlp(1)).at_depth(1)))
    >>> for operation in step.operations[-3:]:
    ...     print(operation)
    f[mu](t) = C[g1,h1](t, t)/gamma0
    Delta[mu](t) = -f[mu](t) + y[mu]
    hoisted0[mu](t) = sum_alpha(Delta[alpha](t)*K_x[mu,alpha])
    """
    return written(Plan(table, wanted))


def written(plan: Plan) -> MarchStep:
    """Return the operations of a step of the march, in the order of a plan."""
    return _Writer(plan).step()


class _Writer:
    """Writer of the operations that compute the quantities of a plan, one after another.

    The row of a covariance of sources is evaluated before the first operation that reads it. In the names of
    its methods and arguments, ``target`` is the array that an operation fills, and ``key`` the row of the
    kernel of a coupling ``c``. Attributes are given constants of each unit, such as the eigenvalue of a mode.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self.table = plan, plan.table
        self.gains = {r.field: dict(r.drives) for r in self.table.fields}
        responses = [ResponseArray(i, k) for i, k in plan.responses]
        correlations = [CorrelationArray(i, j) for i, j in plan.rows]
        self.arrays: tuple[TwoTimeArray, ...] = (*responses, *correlations)
        self.rows = set(correlations)
        self.kept = {*self.arrays, *(x.exchanged for x in correlations)}
        self.operations: list[Operation] = []
        self.evaluated: set[tuple[CovarianceRow, Reach]] = set()

    def step(self) -> MarchStep:
        """Return all operations of a step."""
        for batch in self.plan.batches:
            self.operations += self._batch_operations(batch)
        return MarchStep(self.arrays, tuple(self.operations))

    def _batch_operations(self, batch: list[StepQuantity]) -> Iterator[Operation]:
        """Yield the operations that compute a batch of quantities, such as rows of arrays of one field.

        The quantities of a batch are computed together.
        """
        match first := batch[0]:
            case CouplingRow():
                yield from self._coupling(first)
            case ScalarArray():
                row = next(x for x in self.table.scalars if x.name == first.name)
                reads = [ScalarArray(f.tensor[0]) for _, f in row.inputs]
                moving = tuple(x for x in reads if x.name in self.plan.scalar_names)
                yield EvaluateScalar(row, moving)
            case FactorArray():
                yield MultiplyFactors(self.plan.hoisted(first))
            case UnitFields():
                yield StepUnits(tuple(map(self._unit_equation, first.fields)))
            case UnitSum():
                yield self._unit_sum(first)
            case CorrelationPart(array, "now"):
                yield from self._equal_time(array)
            case _:
                rows = [x for x in batch if isinstance(x, ResponseArray | CorrelationPart)]
                yield from self._rows([x.array if isinstance(x, CorrelationPart) else x for x in rows])

    # -- rows of kernels and covariances ---------------------------------------------------------------

    def _coupling(self, target: CouplingRow) -> Iterator[Operation]:
        """Yield the operations that evaluate row t of the kernel of the coupling ``target``.

        The kernel multiplies a field in the equation of a field. The times before t and the present
        time are separate operations.
        """
        kernel = self.plan.couplings[target].kernel
        for times in _times(kernel.reach):
            yield EvaluateRow(target, kernel, times, self._readings(kernel))

    def _covariance(self, target: CovarianceRow, times: Reach) -> Iterator[Operation]:
        """Yield the operation that evaluates row t of the covariance of two sources at the times ``times``.

        Nothing is yielded if an earlier operation of the step evaluates it.
        """
        if (target, times) not in self.evaluated:
            self.evaluated.add((target, times))
            kernel = self.table.covariances[target.first, target.second]
            yield EvaluateRow(target, kernel, times, self._readings(kernel))

    def _readings(self, kernel: KernelRow) -> tuple[OrderParameterReading, ...]:
        """Return the order parameters in a kernel, each with the stored array that holds it."""
        names = dict.fromkeys(f.tensor for m in kernel.monomials for f in m.factors)
        return tuple(self._reading(n) for n in names if n in self.table.tensors)

    def _reading(self, tensor: FieldAtLayer) -> OrderParameterReading:
        """Return how the order parameter ``tensor`` is computed: ``factor * (array + direct)``.

        ``array`` is a stored two-time array or sum over units. It is None for a response whose stored part,
        that through the fields in the equation, vanishes. ``direct`` is the part of a response at equal time
        that comes from the source in the equation of the field itself.
        """
        reading = order_parameter(self.table, tensor)
        is_zero = isinstance(reading.array, ResponseArray) and reading.array not in self.kept
        return replace(reading, array=None) if is_zero else reading

    # -- rows ------------------------------------------------------------------------------------------

    def _rows(self, targets: list[TwoTimeArray]) -> Iterator[Operation]:
        """Yield the operations that fill row t of arrays: responses at s <= t, correlations at s < t.

        All arrays in ``targets`` have the same first field.
        """
        couplings = list(coupling_rows(self.plan.rows_of[targets[0].first]))
        products = _with_first_marked(x for key, c in couplings for x in self._past_products(key, c, targets))
        begun = {x.target for x in products}
        for x in targets:
            if x not in begun:
                yield ClearRow(x, "past")
            if isinstance(x, ResponseArray) and any(c.kernel.reach != "past" for _, c in couplings):
                yield ClearRow(x, "now")
        yield from products
        for key, c in couplings:
            yield from self._direct(key, c, targets)
        for key, c in couplings:
            yield from self._present_products(key, c, targets)
        for x in targets:
            if isinstance(x, CorrelationArray):
                yield from self._source_terms(x)
                yield from self._mirrored(x, "past")

    def _past_products(
        self, key: CouplingRow, c: Coupling, targets: list[TwoTimeArray]
    ) -> Iterator[MultiplyRow]:
        """Yield the operations that add ``K_il(t, :t) @ X_lk(:t, :t)`` to rows of field i.

        The coupling ``c`` of the field i to a field l has the kernel K_il. X_ik is the array in ``targets``
        that is filled, a response of field i to source k or a correlation of fields i and k; X_lk is the same
        for field l.
        """
        if c.kernel.reach in ("past", "through"):
            for x in targets:
                if (right := type(x)(c.field, x.second)) in self.kept:
                    yield MultiplyRow(x, "past", key, "past", right)

    def _direct(self, key: CouplingRow, c: Coupling, targets: list[TwoTimeArray]) -> Iterator[Operation]:
        """Yield the operations that add ``K_il(t, s) g`` to responses of field i to a source.

        K_il is the kernel of a coupling of field i to a field l. The gain g is the coefficient of the source
        in the equation of field l.
        """
        for x in targets:
            gain = self.gains[c.field].get(x.second)
            if isinstance(x, ResponseArray) and gain is not None:
                for times in _times(c.kernel.reach):
                    yield AddRow(x, times, key, gain)

    def _present_products(
        self, key: CouplingRow, c: Coupling, targets: list[TwoTimeArray]
    ) -> Iterator[Operation]:
        """Yield the operations that add products at the present, or at time 0, to rows of field i.

        They are ``K_il(t, t) X_lk(t, s)``, or ``K_il(t, 0) X_lk(0, s)`` for a kernel that is read at time 0
        only. K_il is the kernel of the coupling ``c`` of field i to a field l. X_lk is a response of field l
        to source k, or a correlation of fields l and k. A response at time 0 is to a source at time 0 only.
        """
        over = _times(c.kernel.reach)[-1]
        if over == "past":
            return
        to_source: Reach = "start" if over == "start" else "through"
        for x in targets:
            if (right := type(x)(c.field, x.second)) in self.kept:
                times = to_source if isinstance(x, ResponseArray) else "past"
                yield MultiplyRow(x, times, key, over, right)

    def _sources(self, array: CorrelationArray) -> Iterator[tuple[CovarianceRow, ResponseArray, Expr]]:
        """Yield the factors of the source terms of the correlation of two fields i and j.

        Each item holds the covariance of a source u_k of field i with a source u_m on which field j depends,
        the response of field j to u_m, and the gain of u_k: its coefficient in the equation of field i.
        """
        i, j = array.first, array.second
        for source, k in self.plan.terms(i, j):
            yield CovarianceRow(source, k), ResponseArray(j, k), self.gains[i][source]

    def _source_terms(self, array: CorrelationArray) -> Iterator[Operation]:
        """Yield the operations that add the terms of Stein's lemma to row t of a correlation.

        They are ``g <u_k u_m>(t, :t) (R_jm(:t, :t) + g' 1)^T``, where R_jm is the response of the second
        field j to the source u_m, without its direct part. The gains g and g' are the coefficients of the
        source u_k in the equation of the first field, and of u_m in that of the second one. Local
        covariances, which vanish between different times, add nothing.
        """
        for row, response, gain in self._sources(array):
            if self.table.covariances[row.first, row.second].local:
                continue
            yield from self._covariance(row, "past")
            if response in self.kept:
                yield MultiplyRow(array, "past", row, "past", response, transposed=True, gain=gain)
            if (direct := self.gains[array.second].get(row.second)) is not None:
                yield AddRow(array, "past", row, gain * direct)

    def _mirrored(self, array: CorrelationArray, times: Reach) -> Iterator[Operation]:
        """Yield the operation that copies row t of a correlation to the column of the exchanged one.

        It is yielded only if both orders of the fields are read.
        """
        if array.exchanged in self.rows and (times == "past" or array.first != array.second):
            yield MirrorRow(array, times)

    # -- equal time ------------------------------------------------------------------------------------

    def _equal_time(self, array: CorrelationArray) -> Iterator[Operation]:
        """Yield the operations that compute the correlation ``C_ij(t, t)`` of two fields at equal time.

        It is a sum of products of rows at time t: of kernels with correlations, and of covariances of sources
        with responses.
        """
        terms = _with_first_marked([*self._equal_products(array), *self._equal_source_terms(array)])
        for x in terms:
            if isinstance(x.left, CovarianceRow):
                times = x.over if isinstance(x, MultiplyRow) else x.times
                yield from self._covariance(x.left, times)
        if not terms:
            yield ClearRow(array, "now")
        yield from terms
        yield from self._mirrored(array, "now")

    def _equal_products(self, array: CorrelationArray) -> Iterator[MultiplyRow]:
        """Yield the operations that add ``K_il(t, :t) @ C_jl(t, :t)^T`` to ``C_ij(t, t)``.

        K_il is the kernel with which field l enters the equation of field i, and C the correlations of
        fields. Products at the present, or at time 0, are included if a kernel is read there.
        """
        i, j = array.first, array.second
        for key, c in coupling_rows(self.plan.rows_of[i]):
            for over in _times(c.kernel.reach):
                if over == "now":
                    yield MultiplyRow(array, "now", key, over, CorrelationArray(c.field, j))
                elif (right := CorrelationArray(j, c.field)) in self.kept:
                    yield MultiplyRow(array, "now", key, over, right, transposed=True)

    def _equal_source_terms(self, array: CorrelationArray) -> Iterator[MultiplyRow | AddRow]:
        """Yield the operations that add ``g <u_k u_m>(t, s) (R_jm(t, s) + g')^T``, s <= t, to ``C_ij(t, t)``.

        g and g' are the gains of the sources u_k in field i and u_m in field j; g' counts at s = t only. The
        response at equal time is zero unless a kernel of field j includes the present.
        """
        j = array.second
        responds_now = any(c.kernel.reach != "past" for c in self.plan.rows_of[j].couplings)
        for row, response, gain in self._sources(array):
            if (direct := self.gains[j].get(row.second)) is not None:
                yield AddRow(array, "now", row, gain * direct)
            if response not in self.kept:
                continue
            if responds_now and self.plan.at_once(j, row.second):
                yield MultiplyRow(array, "now", row, "now", response, True, gain)
            if not self.table.covariances[row.first, row.second].local:
                yield MultiplyRow(array, "now", row, "past", response, True, gain)

    # -- units -----------------------------------------------------------------------------------------

    def _unit_equation(self, i: FieldAtLayer) -> UnitEquation:
        """Return the equation of field ``i`` at each unit: constant, sources with gains, and memory terms.

        The units have attributes: given constants of each unit, such as the eigenvalue of a mode.
        """
        row = self.plan.rows_of[i]
        terms = [
            UnitTerm(c.unit, key, times) for key, c in coupling_rows(row) for times in _times(c.kernel.reach)
        ]
        responds = tuple(u for u in self.table.source_indices if self.plan.responds_to(i, u))
        return UnitEquation(i, row.constant, row.drives, tuple(terms), responds)

    def _unit_sum(self, target: UnitSum) -> SumUnits:
        """Return the operation that computes an order parameter as a sum over units.

        The units have attributes: given constants of each unit, such as the eigenvalue of a mode. Raises
        ValueError if two different sources on them are correlated.
        """
        q = self.table.tensors[target.tensor]
        array = (CorrelationArray if q.kind == "correlation" else ResponseArray)(q.first, q.second)
        weight = q.factor * (S.One if q.unit is None else q.unit)
        sources = []
        for source, other in self.plan.source_pairs(q):
            if source != other:
                raise ValueError(
                    f"the sources {source} and {other} on units with attributes are correlated, which the "
                    "march does not support"
                )
            kernel = self.table.covariances[source, source]
            sources.append(UnitSource(source, kernel, self.plan.at_once(q.first, source)))
        return SumUnits(target, array, weight, tuple(sources))


def _with_first_marked(terms: Iterable[RowTerm]) -> list[RowTerm]:
    """Return the terms of rows, in which the first term of each array is marked to overwrite its row.

    The later terms of the same array are added to the row.
    """
    begun: set[TwoTimeArray] = set()
    marked = []
    for x in terms:
        marked.append(x if x.target in begun else replace(x, begins=True))
        begun.add(x.target)
    return marked


def _times(reach: Reach) -> tuple[Reach, ...]:
    """Return the times s at which a kernel is evaluated, as separate items.

    "through", the times up to and including the present, is split into "past" and "now"; other values
    ("past", "now", "start") stay as they are.
    """
    return ("past", "now") if reach == "through" else (reach,)
