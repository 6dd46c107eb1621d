"""The order in which the operations of a step can be done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Op = TypeVar("Op")


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
    done: dict[Op, None] = {}
    path: dict[Op, Iterator[Op]] = {}  # from the operation that is wanted to what it waits for
    for wanted in operations:
        if wanted not in done:
            path[wanted] = needs(wanted)
        while path:
            op, rest = next(reversed(path.items()))
            other = next((x for x in rest if x not in done), None)
            if other is None:
                path.popitem()
                done[op] = None
            elif other in path:
                circle = list(path)
                names = " -> ".join(map(name, (*circle[circle.index(other) :], other)))
                raise NotCausal(f"within a step these need each other: {names}")
            else:
                path[other] = needs(other)
    return list(done)
