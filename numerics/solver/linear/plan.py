"""Plan of one step of the march: the quantities that it computes, and their order.

The table determines the correlations and responses that are needed: those that kernels, covariances, scalars
and requests read, and those that these need in turn. The order within a step is a topological sort; a cycle
means that the theory is not causal and is refused. :mod:`numerics.solver.linear.operations` writes the
operations of a plan.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from typing import Literal, TypeVar

from sympy.utilities.iterables import strongly_connected_components

from derive.calculus.symbols import t
from numerics.lowering.operations import (
    SLICES,
    CorrelationArray,
    CouplingRow,
    FactorArray,
    ResponseArray,
    ScalarArray,
    UnitFields,
    UnitSum,
)
from numerics.lowering.table import (
    Coupling,
    Factor,
    FieldAtLayer,
    FieldRow,
    Hoisted,
    KernelRow,
    Request,
    Table,
)


@dataclass(frozen=True)
class CorrelationPart:
    """Part of row t of a correlation: the times s < t ("past"), or equal time s = t ("now")."""

    array: CorrelationArray
    times: Literal["past", "now"]

    def __str__(self) -> str:
        return f"{self.array}(t, {SLICES[self.times]})"


StepQuantity = (
    CouplingRow | ResponseArray | CorrelationPart | ScalarArray | FactorArray | UnitFields | UnitSum
)
"""Quantity that a step computes; fields on units that depend on each other count as one quantity."""

SortedOperation = TypeVar("SortedOperation", bound=Hashable)


class NotCausal(ValueError):
    """Raised if the march cannot compute a theory in causal order.

    A quantity of a step then depends on itself, or a covariance of two sources is needed in one order, and
    the theory states it in the other order only.
    """


@dataclass
class Plan:
    """Quantities of one step of a march, in the order in which they are computed.

    Fields and sources are given by keys (name, layer). ``wanted`` are order parameters of the result, which
    are computed in addition to those of the dynamics. The dicts are ordered sets. ``fields`` are the fields
    whose kernels are read, ``responses`` pairs of a field and a source, ``rows`` and ``diagonals`` pairs of
    fields whose correlation is computed at s < t and at equal time. ``sums`` are order parameters that sum
    over units with attributes; ``on_units`` are groups of fields on units that are computed together.
    ``batches`` is the order, with rows of one field that are computed together in one batch; ``order`` is the
    same without batches.
    """

    table: Table
    wanted: tuple[FieldAtLayer | Request, ...] = ()
    sums: dict[FieldAtLayer, None] = field(default_factory=dict)
    fields: dict[FieldAtLayer, None] = field(default_factory=dict)
    responses: dict[tuple[FieldAtLayer, FieldAtLayer], None] = field(default_factory=dict)
    rows: dict[tuple[FieldAtLayer, FieldAtLayer], None] = field(default_factory=dict)
    diagonals: dict[tuple[FieldAtLayer, FieldAtLayer], None] = field(default_factory=dict)
    order: list[StepQuantity] = field(default_factory=list)
    batches: list[list[StepQuantity]] = field(default_factory=list)
    on_units: list[tuple[FieldAtLayer, ...]] = field(default_factory=list)
    todo: list[tuple[Callable[[FieldAtLayer, FieldAtLayer], None], FieldAtLayer, FieldAtLayer]] = field(
        default_factory=list
    )

    def __post_init__(self) -> None:
        self.rows_of = {r.field: r for r in self.table.fields}
        self.scalar_names = {x.name for x in self.table.scalars}
        before = {r.field: self._before(r.field) for r in self.table.fields}
        self.reach = {i: {u for n in seen for u, _ in self.rows_of[n].drives} for i, seen in before.items()}
        self.self_dependent = {i for i, seen in before.items() if i in seen}
        self.correlated: dict[FieldAtLayer, list[FieldAtLayer]] = {}
        self.correlated_with: defaultdict[FieldAtLayer, dict[FieldAtLayer, None]] = defaultdict(dict)
        for a, b in self.table.covariances:
            self.correlated.setdefault(a, []).append(b)
            self.correlated_with[a][b] = self.correlated_with[b][a] = None
        self.couplings = {key: c for r in self.table.fields for key, c in coupling_rows(r)}
        self._need_everything()
        self.on_units = [x for x in (tuple(r.field for r in self.table.fields if r.unit),) if x]
        try:
            self._sort()
        except NotCausal:
            if not self.on_units:
                raise
            self.on_units = self._groups_on_units()
            self._sort()

    def through(self) -> Plan:
        """Return the same plan with the present included in all sums over the past.

        An implicit rule needs it; quantities that then depend on themselves are computed by iteration.
        """

        def inclusive(c: Coupling) -> Coupling:
            if c.kernel.reach != "past" and c.kernel.reach != "through":
                return c
            monomials = tuple(replace(m, strict=False) for m in c.kernel.monomials)
            return replace(c, kernel=replace(c.kernel, reach="through", monomials=monomials))

        fields = tuple(replace(r, couplings=tuple(map(inclusive, r.couplings))) for r in self.table.fields)
        other = copy(self)
        other.table = replace(self.table, fields=fields)
        other.rows_of = {r.field: r for r in fields}
        other.couplings = {key: c for r in fields for key, c in coupling_rows(r)}
        return other

    # -- structure -------------------------------------------------------------------------------------

    def _before(self, start: FieldAtLayer) -> set[FieldAtLayer]:
        """Return the fields on which the field ``start`` depends, directly or through others."""
        seen: set[FieldAtLayer] = set()
        todo = [c.field for c in self.rows_of[start].couplings]
        while todo:
            n = todo.pop()
            if n not in seen:
                seen.add(n)
                todo += [c.field for c in self.rows_of[n].couplings]
        return seen

    def depends(self, i: FieldAtLayer, source: FieldAtLayer) -> bool:
        """Return whether field ``i`` responds to ``source`` through the fields in its equation."""
        return source in self.reach[i]

    def at_once(self, i: FieldAtLayer, source: FieldAtLayer) -> bool:
        """Return whether field ``i`` depends on ``source`` at the same time.

        It may do so by its own equation, or through fields that it reads at the same time.
        """
        todo, seen = [i], set()
        while todo:
            n = todo.pop()
            if n in seen:
                continue
            seen.add(n)
            todo += [c.field for c in self.rows_of[n].couplings if c.kernel.reach in ("now", "through")]
        return any(self.driven(n, source) for n in seen)

    def driven(self, i: FieldAtLayer, source: FieldAtLayer) -> bool:
        """Return whether ``source`` stands in the equation of field ``i``."""
        return any(source == k for k, _ in self.rows_of[i].drives)

    def responds_to(self, i: FieldAtLayer, source: FieldAtLayer) -> bool:
        """Return whether field ``i`` depends on ``source``, directly or through fields in its equation."""
        return self.depends(i, source) or self.driven(i, source)

    def partners(self, source: FieldAtLayer) -> list[FieldAtLayer]:
        """Return the sources b for which the table holds the covariance of ``source`` with b."""
        return self.correlated.get(source, [])

    def terms(self, i: FieldAtLayer, j: FieldAtLayer) -> list[tuple[FieldAtLayer, FieldAtLayer]]:
        """Return pairs of sources that contribute to the correlation of ``i`` and ``j`` by Stein's lemma.

        The first source is in the equation of ``i``; the second is correlated with it, and ``j`` depends on
        it.
        """
        drives = self.rows_of[i].drives
        return [(source, k) for source, _ in drives for k in self.partners(source) if self.responds_to(j, k)]

    # -- needed quantities -----------------------------------------------------------------------------

    def _need_everything(self) -> None:
        """Add to the plan the quantities that the dynamics needs, then those for the results in ``wanted``.

        The quantities of the dynamics are added first so that they are planned in the same way for all
        results.
        """
        for row in self.table.fields:
            if row.unit:
                self._need_field(row.field)
        for x in self.table.scalars:
            for _, a, b in x.averages:
                self._need_diagonal(a.tensor, b.tensor)
        self._need_more()
        for n in self.wanted:
            self._need_tensor(n)
            self._need_more()

    def _need_more(self) -> None:
        """Add to the plan all quantities that the quantities in ``todo`` need, until ``todo`` is empty.

        A list replaces recursion, which would be too deep for networks with many layers.
        """
        while self.todo:
            need, i, j = self.todo.pop()
            need(i, j)

    def _need_field(self, i: FieldAtLayer) -> None:
        """Add to the plan the order parameters that the kernels in the equation of field ``i`` read."""
        if i not in self.fields:
            self.fields[i] = None
            for c in self.rows_of[i].couplings:
                self._need_kernel(c.kernel)

    def _need_kernel(self, kernel: KernelRow) -> None:
        """Add to the plan the order parameters from which a kernel is evaluated."""
        for m in kernel.monomials:
            for f in m.factors:
                if f.tensor in self.table.tensors:
                    self._need_tensor(f.tensor)

    def _need_tensor(self, n: FieldAtLayer | Request) -> None:
        """Add an order parameter to the plan, the list of quantities that a step computes.

        ``n`` is its key (name, layer), or its definition as a correlation or response.
        """
        q = n if isinstance(n, Request) else self.table.tensors[n]
        if q.unit is not None and not isinstance(n, Request):
            if n not in self.sums:
                self.sums[n] = None
                for a, b in self.source_pairs(q):
                    self._need_kernel(self.table.covariances[a, b])
        else:
            need = self._need_response if q.kind == "response" else self._need_row
            self.todo.append((need, q.first, q.second))

    def source_pairs(self, q: Request) -> Iterator[tuple[FieldAtLayer, FieldAtLayer]]:
        """Yield the pairs of correlated sources that contribute to ``q``, a correlation summed over units.

        The first field of ``q`` depends on the first source of a pair, the second field on the second one.
        Nothing is yielded if ``q`` is a response.
        """
        if q.kind == "correlation":
            for a, b in self.table.covariances:
                if self.responds_to(q.first, a) and self.responds_to(q.second, b):
                    yield a, b

    def _need_response(self, i: FieldAtLayer, source: FieldAtLayer) -> None:
        """Add the response of field ``i`` to ``source`` to the plan, and those of fields in its equation."""
        if (i, source) in self.responses or not self.depends(i, source):
            return
        self.responses[i, source] = None
        self._need_field(i)
        self.todo += [(self._need_response, c.field, source) for c in self.rows_of[i].couplings]

    def _need_source_terms(self, i: FieldAtLayer, j: FieldAtLayer) -> None:
        """Add to the plan the covariances and responses that give the source part of a correlation.

        The correlation is that of fields ``i`` and ``j``. By Stein's lemma the part is the sum of products of
        the covariance of two sources and the response of ``j`` to the second one. Raises NotCausal if the
        table holds such a covariance only with the two sources exchanged.
        """
        for source, _ in self.rows_of[i].drives:
            for k in self.correlated_with[source]:
                if not self.responds_to(j, k):
                    continue
                if (source, k) not in self.table.covariances:
                    raise NotCausal(
                        "the march cannot compute the theory in causal order: it needs the covariance "
                        f"<{source} {k}> of two sources, and the theory states <{k} {source}> only"
                    )
                self._need_kernel(self.table.covariances[source, k])
                self.todo.append((self._need_response, j, k))

    def _need_row(self, i: FieldAtLayer, j: FieldAtLayer) -> None:
        """Add the correlation of fields ``i`` and ``j`` at the times s < t to the plan."""
        if (i, j) in self.rows:
            return
        self.rows[i, j] = None
        self._need_field(i)
        for c in self.rows_of[i].couplings:
            self.todo.append((self._need_row, c.field, j))
            # The sum over s' of K(t, s') C(s', s) reads C at s' < s and at s' > s, and thus both orders of
            # the fields, unless the kernel is zero except at s' = t.
            if c.kernel.reach != "now":
                self.todo.append((self._need_row, j, c.field))
        self.todo += [(self._need_source_terms, i, j), (self._need_diagonal, i, j)]

    def _cost_of_rows(self, i: FieldAtLayer) -> tuple[bool, int]:
        """Return a sort key of field ``i``, larger if rows of its correlations over time cost more.

        The first entry is false if i depends on itself, because its rows are then needed anyway, and true
        otherwise; the second is the number of its indices.
        """
        return i not in self.self_dependent, len(self.rows_of[i].indices)

    def _need_diagonal(self, i: FieldAtLayer, j: FieldAtLayer) -> None:
        """Add the correlation of fields ``i`` and ``j`` at equal time to the plan, from the equation of one.

        It is the equation of the field with the larger key of :meth:`_cost_of_rows`, so that rows of the
        other field are read.
        """
        if self._cost_of_rows(j) > self._cost_of_rows(i):
            i, j = j, i
        if (i, j) in self.diagonals or (j, i) in self.diagonals:
            return
        self.diagonals[i, j] = None
        self._need_field(i)
        for c in self.rows_of[i].couplings:
            if c.kernel.reach == "now":
                self.todo.append((self._need_diagonal, c.field, j))
            else:
                self.todo.append((self._need_row, j, c.field))
        self.todo.append((self._need_source_terms, i, j))

    # -- order within a step ---------------------------------------------------------------------------

    def _groups_on_units(self) -> list[tuple[FieldAtLayer, ...]]:
        """Return groups of fields that depend on each other at the same time, in causal order.

        They are fields on units with attributes (given constants, such as the eigenvalue of a mode). The
        fields of a group are computed together by a linear system. A field that is in no cycle of such
        dependences is a group of its own.
        """
        rows = {r.field: r for r in self.table.fields if r.unit}
        edges = [(i, c.field) for i, r in rows.items() for c in r.couplings if c.kernel.reach != "past"]
        return [tuple(group) for group in strongly_connected_components(([*rows], edges))]

    def units_of(self, i: FieldAtLayer) -> UnitFields:
        """Return the group of fields on units that are computed together with field ``i``."""
        return UnitFields(next(group for group in self.on_units if i in group))

    def _quantities(self) -> Iterator[StepQuantity]:
        """Yield all quantities of a step."""
        for r in self.table.fields:
            if r.field in self.fields:
                yield from (key for key, _ in coupling_rows(r))
        yield from (ResponseArray(i, k) for i, k in self.responses)
        yield from (CorrelationPart(CorrelationArray(i, j), "past") for i, j in self.rows)
        yield from (CorrelationPart(CorrelationArray(i, j), "now") for i, j in self.diagonals)
        yield from (ScalarArray(x.name) for x in self.table.scalars)
        yield from (FactorArray(h.tensor) for h in self.table.hoisted)
        yield from map(UnitFields, self.on_units)
        yield from map(UnitSum, self.sums)

    def needs(self, quantity: StepQuantity) -> Iterator[StepQuantity]:
        """Yield the quantities of the same step that must be computed before ``quantity``."""
        match quantity:
            case CouplingRow():
                yield from self._reads(self.couplings[quantity].kernel)
            case ScalarArray():
                row = next(x for x in self.table.scalars if x.name == quantity.name)
                for _, a, b in row.averages:
                    yield self._diagonal(a.tensor, b.tensor)
                yield from self._scalars(f for _, f in row.inputs)
            case FactorArray():
                yield from self._scalars(self.hoisted(quantity).factors)
            case UnitFields():
                yield from self._unit_needs(quantity)
            case UnitSum():
                yield from self._sum_needs(self.table.tensors[quantity.tensor])
            case ResponseArray():
                yield from self._response_needs(quantity)
            case CorrelationPart():
                yield from self._correlation_needs(quantity)

    def _unit_needs(self, group: UnitFields) -> Iterator[StepQuantity]:
        """Yield the kernel rows and other groups that a group of fields on units reads in the same step."""
        for key, c in (x for i in group.fields for x in coupling_rows(self.rows_of[i])):
            yield key
            if c.kernel.reach != "past" and c.field not in group.fields:
                yield self.units_of(c.field)

    def _response_needs(self, response: ResponseArray) -> Iterator[StepQuantity]:
        """Yield the kernel rows and other responses that a response reads in the same step.

        The kernel rows are those in the equation of its field.
        """
        for key, c in coupling_rows(self.rows_of[response.first]):
            yield key
            if c.kernel.reach != "past" and (c.field, response.second) in self.responses:
                yield ResponseArray(c.field, response.second)

    def _sum_needs(self, q: Request) -> Iterator[StepQuantity]:
        """Yield the quantities that the order parameter ``q``, a sum over units, reads in the same step."""
        yield self.units_of(q.first)
        if q.kind == "correlation":
            yield self.units_of(q.second)
        for source, partner in self.source_pairs(q):
            if self.at_once(q.first, source):
                present = self.at_once(q.second, partner)
                yield from self._reads(self.table.covariances[source, partner], present=present)

    def _correlation_needs(self, part: CorrelationPart) -> Iterator[StepQuantity]:
        """Yield the quantities of the same step from which a correlation is computed.

        ``part`` is the correlation of two fields, either at the times s < t or at equal time.
        """
        i, j, now = part.array.first, part.array.second, part.times == "now"
        for key, c in coupling_rows(self.rows_of[i]):
            yield key
            if c.kernel.reach != "past":
                yield self._diagonal(c.field, j) if now else self._past(c.field, j)
            if now and c.kernel.reach != "now":
                yield self._past(j, c.field)
        for source, k in self.terms(i, j):
            yield from self._reads(self.table.covariances[source, k], present=now and self.at_once(j, k))
            if now and (j, k) in self.responses:
                yield ResponseArray(j, k)

    def _scalars(self, factors: Iterable[Factor]) -> Iterator[StepQuantity]:
        """Yield the scalars among ``factors``, such as outputs, as quantities that a step computes."""
        for f in factors:
            if f.tensor[0] in self.scalar_names:
                yield ScalarArray(f.tensor[0])

    def hoisted(self, array: FactorArray) -> Hoisted:
        """Return the definition of a product of factors that is stored by time s, for the array ``array``.

        Such a product is a part of kernels that does not depend on t, so that it is computed once.
        """
        return next(h for h in self.table.hoisted if h.tensor == array.tensor)

    def _reads(self, kernel: KernelRow, present: bool | None = None) -> Iterator[StepQuantity]:
        """Yield the quantities of the same step that are read to evaluate row t of a kernel.

        If ``present`` is true they include those at equal time s = t. By default they do, unless the kernel
        multiplies fields at s < t only.
        """
        reaches = kernel.reach != "past" if present is None else present
        for m in kernel.monomials:
            present = reaches and not m.strict
            for f in m.factors:
                name = f.tensor[0]
                if f.tensor in self.table.tensors:
                    q = self.table.tensors[f.tensor]
                    if q.unit is not None:
                        if present or not m.instant:
                            yield UnitSum(f.tensor)
                    elif q.kind == "response":
                        if (q.first, q.second) in self.responses:
                            yield ResponseArray(q.first, q.second)
                    else:
                        if not (m.instant or kernel.reach == "now"):
                            yield self._past(q.first, q.second)
                        if present:
                            yield self._diagonal(q.first, q.second)
                elif name in self.scalar_names and (t in f.indices or present):
                    yield ScalarArray(name)
                elif present and any(h.tensor == f.tensor for h in self.table.hoisted):
                    yield FactorArray(f.tensor)

    def _past(self, i: FieldAtLayer, j: FieldAtLayer) -> CorrelationPart:
        """Return the correlation of fields ``i`` and ``j`` at the times s < t, as a quantity of the step."""
        return CorrelationPart(CorrelationArray(i, j), "past")

    def _diagonal(self, i: FieldAtLayer, j: FieldAtLayer) -> CorrelationPart:
        """Return the correlation of two fields at equal time, as a quantity of the step.

        It is ``C_ij`` or ``C_ji``, whichever the plan computes at equal time.
        """
        array = CorrelationArray(i, j)
        return CorrelationPart(array if (i, j) in self.diagonals else array.exchanged, "now")

    def _sort(self) -> None:
        """Sort the quantities of a step topologically, and store the result in ``batches`` and ``order``.

        A quantity comes after those from which it is computed. The rows of one field that can be computed
        together are one batch.
        """
        quantities = in_order(self._quantities(), self.needs, str)
        graph = TopologicalSorter({x: list(self.needs(x)) for x in quantities})
        graph.prepare()
        remaining = Counter(_field_of_row(x) for x in quantities)
        ready: list[StepQuantity] = []
        while graph.is_active():
            ready += graph.get_ready()
            batch = [x for x in ready if _field_of_row(x) is None]
            if batch:
                self.batches += [[x] for x in batch]
            else:  # take all ready rows of the field of whose remaining rows the largest share is ready
                waiting = Counter(map(_field_of_row, ready))
                chosen = max(waiting, key=lambda i: waiting[i] / remaining[i])
                batch = [x for x in ready if _field_of_row(x) == chosen]
                remaining[chosen] -= len(batch)
                self.batches.append(batch)
            ready = [x for x in ready if x not in batch]
            graph.done(*batch)
        self.order += [x for batch in self.batches for x in batch]


def coupling_rows(row: FieldRow) -> Iterator[tuple[CouplingRow, Coupling]]:
    """Yield the couplings in the equation of a field, each after the key of the row of its kernel.

    A coupling is a term ``sum_s k(t, s) x(s)`` with a field x. The key is (field, x, number), where the
    number counts the couplings to the same x.
    """
    before: Counter[FieldAtLayer] = Counter()
    for c in row.couplings:
        yield CouplingRow(row.field, c.field, before[c.field]), c
        before[c.field] += 1


def _field_of_row(quantity: StepQuantity) -> FieldAtLayer | None:
    """Return the first field of a quantity that is a response or a correlation at s < t; None for all others.

    Such a quantity fills row t of a two-time array of this field. A correlation at equal time fills one entry
    only.
    """
    if isinstance(quantity, ResponseArray):
        return quantity.first
    if isinstance(quantity, CorrelationPart) and quantity.times == "past":
        return quantity.array.first
    return None


def in_order(
    operations: Iterable[SortedOperation],
    needs: Callable[[SortedOperation], Iterator[SortedOperation]],
    name: Callable[[SortedOperation], str],
) -> list[SortedOperation]:
    """Return ``operations`` and all operations that they need, each after those that it needs.

    ``needs`` yields the operations that must precede one, and ``name`` returns its text in messages. Raises
    :class:`NotCausal` with the names of a cycle.

    >>> needs = {"loss": "error", "error": "output", "output": ""}
    >>> in_order(needs, lambda x: iter([needs[x]] if needs[x] else []), str)
    ['output', 'error', 'loss']
    """
    graph: dict[SortedOperation, list[SortedOperation]] = {}
    todo = list(operations)[::-1]
    while todo:
        op = todo.pop()
        if op not in graph:
            graph[op] = list(needs(op))
            todo += graph[op][::-1]
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError as circle:
        names = " -> ".join(map(name, reversed(circle.args[1])))
        raise NotCausal(
            "the march cannot compute the theory in causal order: within a step these quantities depend on "
            f"each other: {names}"
        ) from None
