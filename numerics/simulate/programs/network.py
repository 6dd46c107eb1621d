"""A program unrolled: every member of every definition, in an order in which one step can compute them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sympy import S
from sympy.core.function import AppliedUndef

from derive.program import Definition, t
from numerics.errors import Diverged

from .formulas import Binder
from .leaves import Applied, Bound, Entry, Key, State, apply

#: An entry as large as this has diverged; averages of products of two are still finite numbers.
LIMIT = 1e100


@dataclass(frozen=True)
class Node:
    """One entry to compute: a vector of ``size`` entries, or a number (``size`` 0)."""

    key: Key
    rhs: Bound
    size: int

    def value(self, state: State) -> Any:
        """What the definition says now."""
        value = np.asarray(self.rhs.value(state), dtype=float)
        if self.size:
            return np.broadcast_to(value, (self.size,))
        if value.ndim:
            raise ValueError(f"{self.key[0]} is a number, but {self.rhs.text} has entries: take their Mean")
        return float(value)


Levels = tuple[tuple[Node, ...], ...]


@dataclass(frozen=True)
class Network:
    """The order of one step: ``first`` at step 0, ``later`` afterwards, ``slopes`` of what evolves.

    Nodes of one level do not need one another, so that their matrix products can be done together.
    """

    first: Levels
    later: Levels
    slopes: tuple[Node, ...]
    starts: Mapping[Key, Callable[[], Any]]

    def compute(self, state: State) -> None:
        """Fill in the fields of this step; raises ``numerics.errors.Diverged`` past LIMIT."""
        state.products.clear()
        evolving = {x.key for x in self.slopes} if state.step else set()
        state.fields = {k: state.fields[k] for k in evolving}
        if state.step == 0:
            state.fields.update({k: f() for k, f in self.starts.items()})
        for level in self.first if state.step == 0 else self.later:
            apply([a for x in level for a in _products(x.rhs)], state)
            for x in level:
                value = x.value(state)
                largest = float(np.max(np.abs(value)))
                if not largest < LIMIT:
                    when, remedy = f"step {state.step}", "lower the rate"
                    if state.flows:
                        when, remedy = f"time {state.time:.6g}", "a shorter step may do"
                    raise Diverged(
                        f"{x.key[0]}{x.key[1]} diverged at {when}: largest entry {largest:.3g}; {remedy}"
                    )
                state.fields[x.key] = value
        if state.step == 0:
            state.start = dict(state.fields)

    def evolve(self, state: State, dt: float) -> dict[Key, Any]:
        """The evolving fields after an Euler step."""
        return {k: state.fields[k] + dt * x for k, x in self.slopes_at(state).items()}

    def slopes_at(self, state: State) -> dict[Key, Any]:
        """How fast the evolving fields move."""
        return {x.key: x.value(state) for x in self.slopes}


def unroll(binder: Binder, data: Mapping[str, Any]) -> Network:
    """Every member of every definition of a program, sorted.

    What evolves starts from a definition at the time 0, else from ``data[name]`` (an array, a number or a
    function of the number of units), else from zero.  Raises ``ValueError`` for an entry that is defined
    twice or that needs itself within a step.
    """
    usual: dict[Key, Node] = {}
    evolving: dict[Key, Node] = {}
    initial: dict[Key, Node] = {}
    for d in binder.program.definitions:
        group = evolving if d.evolves else initial if d.lhs.args[-1] == 0 else usual
        for node in _nodes(binder, d):
            if node.key in group or (group is not initial and (node.key in usual or node.key in evolving)):
                raise ValueError(f"{node.key[0]}{node.key[1]} is defined twice")
            group[node.key] = node
    for key in initial:
        if key not in evolving:
            raise ValueError(f"{key[0]}{key[1]} is given at the time 0 but does not evolve from there")
    starts = {k: _start(x, data) for k, x in evolving.items() if k not in initial}
    return Network(
        _levels({**usual, **initial}, first=True),
        _levels(usual, first=False),
        tuple(evolving.values()),
        starts,
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


def _nodes(binder: Binder, d: Definition) -> list[Node]:
    x = binder.program.field_of(d.name)
    found: dict[Key, Node] = {}
    for env in binder.values.members(d.ranges):
        key = (d.name, _index(binder, d.lhs, env))
        size = 0 if x is None else binder.sizes.size(binder.field_population(x, key[1]), {})
        node = Node(key, binder.bind(d.rhs, env), size)
        if key in found and found[key].rhs is not node.rhs:
            raise ValueError(f"{key[0]}{key[1]} is defined twice")
        found[key] = node
    return list(found.values())


def _levels(nodes: Mapping[Key, Node], *, first: bool) -> Levels:
    """Nodes by the longest chain of others that they wait for."""
    waits = {k: _needs(x.rhs, first) & set(nodes) for k, x in nodes.items()}
    done: set[Key] = set()
    levels: list[tuple[Node, ...]] = []
    while len(done) < len(nodes):
        ready = [k for k, others in waits.items() if k not in done and others <= done]
        if not ready:
            stuck = sorted(f"{n}{i}" for n, i in set(waits) - done)
            raise ValueError(f"these entries need themselves within a step: {', '.join(stuck[:6])}")
        levels.append(tuple(nodes[k] for k in ready))
        done.update(ready)
    return tuple(levels)


def _needs(b: Bound, first: bool) -> set[Key]:
    """What a formula reads in the same step; at step 0 the entries at time 0 too."""
    return {x.key for x in b.all_leaves() if isinstance(x, Entry) and (first or not x.first)}


def _products(b: Bound) -> list[Applied]:
    return [x for x in b.all_leaves() if isinstance(x, Applied)]


def _start(node: Node, data: Mapping[str, Any]) -> Callable[[], Any]:
    value = data.get(node.key[0], 0.0)

    def begin() -> Any:
        x = np.asarray(value(node.size) if callable(value) else value, dtype=float)
        return np.broadcast_to(x, (node.size,)) if node.size else float(x)

    return begin
