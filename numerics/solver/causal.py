"""The order in which the operations of a step can be done."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from typing import TypeVar

Op = TypeVar("Op", bound=Hashable)


class NotCausal(ValueError):
    """A quantity of a step needs itself."""


def in_order(
    operations: Iterable[Op], needs: Callable[[Op], Iterator[Op]], name: Callable[[Op], str]
) -> list[Op]:
    """``operations`` and all that they need, each after what it needs.

    Raises :class:`NotCausal` with the names of a circle of operations that need each other.

    >>> needs = {"loss": "error", "error": "output", "output": ""}
    >>> in_order(needs, lambda x: iter([needs[x]] if needs[x] else []), str)
    ['output', 'error', 'loss']
    """
    graph: dict[Op, list[Op]] = {}
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
        raise NotCausal(f"within a step these need each other: {names}") from None
