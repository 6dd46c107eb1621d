"""A program as a list of numerical tasks, in an order in which one step can compute them.

:func:`unroll` evaluates all indices of all definitions and sorts the formulas by dependence; a
:class:`StepOrder` fills in the fields of a step.  :mod:`.run` uses it for each training step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np
from sympy import S
from sympy.core.function import AppliedUndef

from derive.program import Definition, t
from numerics.errors import SMALLER, Diverged, remedy_at_start
from numerics.names import MemberKey

from .formulas import Binder
from .rows import (
    Array,
    Bound,
    FieldOrNumber,
    FormulaReaders,
    NetworkReader,
    NetworkState,
    Pick,
    RowLayout,
    UnitBlock,
    rows_of,
)

#: Absolute value from which an entry has diverged. Averages of products of two entries of this size are
#: still finite.
LIMIT = 1e100


@dataclass(frozen=True, eq=False)
class StepNode:
    """Formula of one step for one member of a field, such as ``h`` at layer 2 and sample 3, or for a scalar.

    Attributes
    ----------
    key
        Name of the field or scalar, and the values of its indices.
    rhs
        Formula of its value, or of its time derivative: the right-hand side of its definition.
    size
        Number of units of the field; 0 for a scalar.
    """

    key: MemberKey
    rhs: Bound
    size: int


@dataclass(frozen=True)
class Task:
    """Members of one field with the same formula, computed together in one step.

    Attributes
    ----------
    nodes
        The members (values of the indices, such as samples), each with its formula.
    read
        Function that evaluates the formulas of all members from the state of the networks.
    block, rows
        Array of the state in which the values are stored, and the positions of the members in it.
    """

    nodes: tuple[StepNode, ...]
    read: NetworkReader
    block: UnitBlock
    rows: Pick

    def value(self, state: NetworkState) -> Array:
        """Return the values of all members, computed from the state, shape (networks, members, units).

        An axis of length one is shared by all networks, members or units. Raise ValueError for a number that
        is defined as a vector.
        """
        values = self.read(state)
        size = max(1, self.block[1])
        if values.shape[-1] not in (1, size):
            rhs = self.nodes[0].rhs.expr
            raise ValueError(
                f"{self.block[0]} is defined as a number, but {rhs} is a vector: take the Mean of its entries"
            )
        return values


@dataclass(frozen=True)
class StepOrder:
    """Computations of one step of finite networks, sorted by dependence.

    Attributes
    ----------
    reading
        Functions that evaluate formulas on the state of the networks.
    first, later
        Tasks at step 0, and at all later steps.
    slopes
        Tasks that compute the time derivatives of fields with an equation of motion.
    starts
        For each of these fields that has no definition at time 0, a function that gives its initial value.
    """

    reading: FormulaReaders
    first: tuple[Task, ...]
    later: tuple[Task, ...]
    slopes: tuple[Task, ...]
    starts: Mapping[MemberKey, Callable[[], Any]]

    def begin(self, weights: dict[MemberKey, Array], networks: int, flows: bool = False) -> NetworkState:
        """Return the state of ``networks`` networks before step 0, with the given initial weights.

        Fields are not yet computed, except the initial values that :attr:`starts` gives. ``flows`` is true
        for continuous time.
        """
        state = NetworkState(weights, fields=self.reading.layout.empty(networks), flows=flows)
        for key, value in self.starts.items():
            block, row = self.reading.layout.rows[key]
            state.fields[block][:, row] = np.stack([np.atleast_1d(value()) for _ in range(networks)])
        return state

    def compute(self, state: NetworkState) -> None:
        """Compute all fields and numbers of the current step and store them in the state.

        At step 0 they are also stored as the initial ones. Raise ``numerics.errors.Diverged`` if a value
        is not finite, or reaches LIMIT in size.
        """
        for task in self.first if state.step == 0 else self.later:
            value = task.value(state)
            if not np.vdot(value, value) < LIMIT**2 and not np.abs(value).max() < LIMIT:
                _diverged(state, task, value)
            state.fields[task.block][:, task.rows] = value
        if state.step == 0:
            state.start = {b: x.copy() for b, x in state.fields.items()}

    def evolving(self, state: NetworkState) -> list[Array]:
        """Return copies of the fields that have an equation of motion, one array for each of ``slopes``."""
        return [state.fields[x.block][:, x.rows].copy() for x in self.slopes]

    def set_evolving(self, state: NetworkState, values: list[Array]) -> None:
        """Set the fields that have an equation of motion, in place in the state.

        ``values`` are arrays in the order of :meth:`evolving`.
        """
        for task, value in zip(self.slopes, values, strict=True):
            state.fields[task.block][:, task.rows] = value


def _diverged(state: NetworkState, task: Task, value: Array) -> None:
    """Raise Diverged for a field that is too large or not finite.

    The message has the name, size and time of the field, and a remedy. ``value`` are the values that ``task``
    has computed.
    """
    start = state.time == 0 if state.flows else state.step == 0
    when, remedy = f"step {state.step}", SMALLER
    if state.flows:
        when, remedy = (
            f"time {state.time:.6g}",
            "output times that are closer, or an earlier last time, may do",
        )
    if start:
        remedy = remedy_at_start(value)
    sizes = [float(np.abs(rows_of(value, slice(i, i + 1))).max()) for i in range(len(task.nodes))]
    worst = next(i for i, x in enumerate(sizes) if not x < LIMIT)
    name, index = task.nodes[worst].key
    message = f"{name}{index} diverged at {when}: largest entry {sizes[worst]:.3g}; {remedy}"
    raise Diverged(message, start=start, step=None if state.flows else state.step)


def unroll(binder: Binder, data: Mapping[str, Any]) -> StepOrder:
    """Return the computations of all definitions of a program, for all index values, sorted by dependence.

    Fields with an equation of motion start from a definition at time 0, else from ``data[name]`` (an array, a
    number or a function of the number of units), else from zero. Raises ``ValueError`` for a member (field at
    given index values) that has two definitions, that depends on itself within a step, or that has a value at
    time 0 without an equation of motion.
    """
    usual: dict[MemberKey, StepNode] = {}
    evolving: dict[MemberKey, StepNode] = {}
    initial: dict[MemberKey, StepNode] = {}
    for d in binder.program.definitions:
        group = evolving if d.evolves else initial if d.lhs.args[-1] == 0 else usual
        for node in _nodes(binder, d):
            if node.key in group or (group is not initial and (node.key in usual or node.key in evolving)):
                raise ValueError(f"{node.key[0]}{node.key[1]} has two definitions")
            group[node.key] = node
    for key in initial:
        if key not in evolving:
            raise ValueError(
                f"{key[0]}{key[1]} has a definition at the time 0, but no equation for its rate of change"
            )
    layout = RowLayout.of({k: x.size for k, x in {**usual, **evolving}.items()})
    reading = FormulaReaders(layout)
    return StepOrder(
        reading,
        tuple(_tasks(reading, _levels({**usual, **initial}, first=True))),
        tuple(_tasks(reading, _levels(usual, first=False))),
        tuple(_tasks(reading, [tuple(evolving.values())])),
        {k: _start(x, data) for k, x in evolving.items() if k not in initial},
    )


def domains(binder: Binder) -> dict[str, set[tuple[int, ...]]]:
    """Return for each field and number, by name, the set of index values at which it is defined.

    The time is not among the indices.
    """
    index_sets: dict[str, set[tuple[int, ...]]] = {}
    for d in binder.program.definitions:
        members = index_sets.setdefault(d.name, set())
        members |= {_index(binder, d.lhs, env) for env in binder.values.members(d.ranges)}
    return index_sets


def _index(binder: Binder, lhs: AppliedUndef, env: Any) -> tuple[int, ...]:
    """Return the values of the indices on the left-hand side of a definition, without the time.

    ``lhs`` is the left-hand side, such as h(ell + 1, mu, t), and ``env`` holds the values of its symbols.
    Raise ValueError if its last argument is neither t nor 0.
    """
    if not lhs.args or lhs.args[-1] not in (t, S.Zero):
        raise ValueError(
            f"the left-hand side {lhs} of an equation must have the time t as its last argument, or 0 for "
            "the value at the start"
        )
    return tuple(binder.values.integer(a, env) for a in lhs.args[:-1])


def _nodes(binder: Binder, d: Definition) -> list[StepNode]:
    """Return the formulas of one definition, one for each choice of its index values.

    Raise ValueError if two choices give the same member of the field different formulas.
    """
    x = binder.program.field_of(d.name)
    nodes: dict[MemberKey, StepNode] = {}
    for env in binder.values.members(d.ranges):
        key = (d.name, _index(binder, d.lhs, env))
        size = 0 if x is None else binder.home(x, key[1])[1]
        node = StepNode(key, binder.bind(d.rhs, env), size)
        if key in nodes and nodes[key].rhs is not node.rhs:
            raise ValueError(f"{key[0]}{key[1]} has two definitions")
        nodes[key] = node
    return list(nodes.values())


def _levels(nodes: Mapping[MemberKey, StepNode], *, first: bool) -> list[tuple[StepNode, ...]]:
    """Sort the formulas of a step into levels: a level depends only on the levels before it.

    ``nodes`` are all formulas of the step. If ``first``, the levels are those of step 0, where values at time
    0 are of the same step. Raises ValueError for formulas that depend on each other in a cycle.
    """
    needs = {k: _needs(x.rhs, first) & set(nodes) for k, x in nodes.items()}
    sorter, levels = TopologicalSorter(needs), []
    try:
        sorter.prepare()
    except CycleError as error:
        cycle = ", ".join(f"{n}{i}" for n, i in error.args[1][:6])
        raise ValueError(f"these entries depend on themselves within a step: {cycle}") from None
    while sorter.is_active():
        ready = sorter.get_ready()
        levels.append(tuple(nodes[k] for k in ready))
        sorter.done(*ready)
    return levels


def _tasks(reading: FormulaReaders, levels: list[tuple[StepNode, ...]]) -> Iterator[Task]:
    """Yield the computations of all levels of formulas in order.

    Formulas of one field in one level that differ only in index values form one computation.
    """
    for level in levels:
        groups: dict[Any, list[StepNode]] = {}
        for x in level:
            groups.setdefault((x.key[0], x.size, x.rhs.function), []).append(x)
        for nodes in groups.values():
            ((block, rows, order),) = reading.layout.places([x.key for x in nodes])
            yield Task(tuple(nodes), reading.read([nodes[i].rhs for i in order]), block, rows)


def _needs(b: Bound, first: bool) -> set[MemberKey]:
    """Return the fields and numbers of the same step that the formula ``b`` reads, as (name, indices).

    At step 0 (``first``) these include the values at time 0 that it reads.
    """
    return {x.key for x in b.all_leaves() if isinstance(x, FieldOrNumber) and (first or not x.first)}


def _start(node: StepNode, data: Mapping[str, Any]) -> Callable[[], Any]:
    """Return the function that gives the initial value of a field with an equation of motion.

    The value is zero if ``data`` has no entry for the field.
    """
    value = data.get(node.key[0], 0.0)
    return lambda: np.asarray(value(node.size) if callable(value) else value, dtype=float)
