"""A program unrolled: every member of every definition, in an order in which one step can compute them."""

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

#: An entry as large as this has diverged; averages of products of two are still finite numbers.
LIMIT = 1e100


@dataclass(frozen=True, eq=False)
class StepNode:
    """One entry to compute: a vector of ``size`` entries, or a number (``size`` 0)."""

    key: MemberKey
    rhs: Bound
    size: int


@dataclass(frozen=True)
class Task:
    """Entries of one block that are computed at once."""

    nodes: tuple[StepNode, ...]
    read: NetworkReader
    block: UnitBlock
    rows: Pick

    def value(self, state: NetworkState) -> Array:
        """What the definitions say now."""
        found = self.read(state)
        size = max(1, self.block[1])
        if found.shape[-1] not in (1, size):
            rhs = self.nodes[0].rhs.expr
            raise ValueError(f"{self.block[0]} is a number, but {rhs} has entries: take their Mean")
        return found


@dataclass(frozen=True)
class StepOrder:
    """The order of one step: ``first`` at step 0, ``later`` afterwards, ``slopes`` of what evolves.

    Nodes of one level do not need one another, so that they can be computed together.
    """

    reading: FormulaReaders
    first: tuple[Task, ...]
    later: tuple[Task, ...]
    slopes: tuple[Task, ...]
    starts: Mapping[MemberKey, Callable[[], Any]]

    def begin(self, weights: dict[MemberKey, Array], networks: int, flows: bool = False) -> NetworkState:
        """The state before step 0."""
        state = NetworkState(weights, fields=self.reading.layout.empty(networks), flows=flows)
        for key, value in self.starts.items():
            block, row = self.reading.layout.rows[key]
            state.fields[block][:, row] = np.stack([np.atleast_1d(value()) for _ in range(networks)])
        return state

    def compute(self, state: NetworkState) -> None:
        """Fill in the fields of this step; raises ``numerics.errors.Diverged`` past LIMIT."""
        for task in self.first if state.step == 0 else self.later:
            value = task.value(state)
            if not np.vdot(value, value) < LIMIT**2 and not np.abs(value).max() < LIMIT:
                _diverged(state, task, value)
            state.fields[task.block][:, task.rows] = value
        if state.step == 0:
            state.start = {b: x.copy() for b, x in state.fields.items()}

    def evolving(self, state: NetworkState) -> list[Array]:
        """The evolving fields themselves."""
        return [state.fields[x.block][:, x.rows].copy() for x in self.slopes]

    def put(self, state: NetworkState, values: list[Array]) -> None:
        """Set the evolving fields."""
        for task, value in zip(self.slopes, values, strict=True):
            state.fields[task.block][:, task.rows] = value


def _diverged(state: NetworkState, task: Task, value: Array) -> None:
    start = state.time == 0 if state.flows else state.step == 0
    when, remedy = f"step {state.step}", SMALLER
    if state.flows:
        when, remedy = f"time {state.time:.6g}", "a shorter step may do"
    if start:
        remedy = remedy_at_start(value)
    sizes = [float(np.abs(rows_of(value, slice(i, i + 1))).max()) for i in range(len(task.nodes))]
    worst = next(i for i, x in enumerate(sizes) if not x < LIMIT)
    name, index = task.nodes[worst].key
    said = f"{name}{index} diverged at {when}: largest entry {sizes[worst]:.3g}; {remedy}"
    raise Diverged(said, start=start, step=None if state.flows else state.step)


def unroll(binder: Binder, data: Mapping[str, Any]) -> StepOrder:
    """Every member of every definition of a program, sorted.

    What evolves starts from a definition at the time 0, else from ``data[name]`` (an array, a number or a
    function of the number of units), else from zero.  Raises ``ValueError`` for an entry that is defined
    twice or that needs itself within a step.
    """
    usual: dict[MemberKey, StepNode] = {}
    evolving: dict[MemberKey, StepNode] = {}
    initial: dict[MemberKey, StepNode] = {}
    for d in binder.program.definitions:
        group = evolving if d.evolves else initial if d.lhs.args[-1] == 0 else usual
        for node in _nodes(binder, d):
            if node.key in group or (group is not initial and (node.key in usual or node.key in evolving)):
                raise ValueError(f"{node.key[0]}{node.key[1]} is defined twice")
            group[node.key] = node
    for key in initial:
        if key not in evolving:
            raise ValueError(f"{key[0]}{key[1]} is given at the time 0 but does not evolve from there")
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
    """For each field and scalar, the values that its indices take (time left out)."""
    found: dict[str, set[tuple[int, ...]]] = {}
    for d in binder.program.definitions:
        members = found.setdefault(d.name, set())
        members |= {_index(binder, d.lhs, env) for env in binder.values.members(d.ranges)}
    return found


def _index(binder: Binder, lhs: AppliedUndef, env: Any) -> tuple[int, ...]:
    if not lhs.args or lhs.args[-1] not in (t, S.Zero):
        raise ValueError(f"{lhs} is defined at each step: its last argument must be the time t")
    return tuple(binder.values.integer(a, env) for a in lhs.args[:-1])


def _nodes(binder: Binder, d: Definition) -> list[StepNode]:
    x = binder.program.field_of(d.name)
    found: dict[MemberKey, StepNode] = {}
    for env in binder.values.members(d.ranges):
        key = (d.name, _index(binder, d.lhs, env))
        size = 0 if x is None else binder.home(x, key[1])[1]
        node = StepNode(key, binder.bind(d.rhs, env), size)
        if key in found and found[key].rhs is not node.rhs:
            raise ValueError(f"{key[0]}{key[1]} is defined twice")
        found[key] = node
    return list(found.values())


def _levels(nodes: Mapping[MemberKey, StepNode], *, first: bool) -> list[tuple[StepNode, ...]]:
    """Nodes by the longest chain of others that they wait for."""
    waits = {k: _needs(x.rhs, first) & set(nodes) for k, x in nodes.items()}
    sorter, levels = TopologicalSorter(waits), []
    try:
        sorter.prepare()
    except CycleError as circle:
        stuck = ", ".join(f"{n}{i}" for n, i in circle.args[1][:6])
        raise ValueError(f"these entries need themselves within a step: {stuck}") from None
    while sorter.is_active():
        ready = sorter.get_ready()
        levels.append(tuple(nodes[k] for k in ready))
        sorter.done(*ready)
    return levels


def _tasks(reading: FormulaReaders, levels: list[tuple[StepNode, ...]]) -> Iterator[Task]:
    for level in levels:
        groups: dict[Any, list[StepNode]] = {}
        for x in level:
            groups.setdefault((x.key[0], x.size, x.rhs.function), []).append(x)
        for nodes in groups.values():
            ((block, rows, order),) = reading.layout.places([x.key for x in nodes])
            yield Task(tuple(nodes), reading.read([nodes[i].rhs for i in order]), block, rows)


def _needs(b: Bound, first: bool) -> set[MemberKey]:
    """What a formula reads in the same step; at step 0 the entries at time 0 too."""
    return {x.key for x in b.all_leaves() if isinstance(x, FieldOrNumber) and (first or not x.first)}


def _start(node: StepNode, data: Mapping[str, Any]) -> Callable[[], Any]:
    value = data.get(node.key[0], 0.0)
    return lambda: np.asarray(value(node.size) if callable(value) else value, dtype=float)
