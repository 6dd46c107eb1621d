"""What a count of powers of the width finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sympy import Expr, sympify

from derive.program.program import Program
from derive.scale.power_counting_values import Part, Parts, combined, top

Node = tuple[str, Expr | None, int]
"""A field or number: its name, its layer, the step."""


@dataclass(frozen=True)
class Counted:
    """The parts of every field and number of a program at the steps 0, 1, ..., by name, layer and step.

    ``read`` holds the parts at the start before they were assumed to be of order one, if they were.
    ``stopped`` says why a count ended early: a field grows, and a function of it is no power.
    """

    program: Program
    found: Mapping[Node, Parts]
    steps: int
    read: Mapping[tuple[str, Expr | None], Parts]
    stopped: str | None = None
    nodes: tuple[tuple[str, Expr | None], ...] = ()

    def names(self) -> list[tuple[str, Expr | None]]:
        """All fields and numbers with their layers, reached or not."""
        return list(self.nodes)

    def power(self, name: str, site: Any = None, step: int = 0) -> Expr | None:
        """The power of N of a field or number; None if it is zero or was not reached."""
        return top(self.found.get((name, _site(site), step), ()))

    def change(self, name: str, site: Any = None, step: int = 1) -> Expr | None:
        """The power of what training has added to it; None if nothing, or if not reached."""
        return top(p for p in self.found.get((name, _site(site), step), ()) if p.order)

    def owed(
        self, name: str, site: Any = None, step: int = 1, *, systematic: bool = False
    ) -> dict[str, tuple[Expr, ...]]:
        """The powers of what it owes to each weight, if only the first order in the updates was counted.

        With ``systematic`` without what is there by chance, because a mean vanishes.
        """
        table: dict[str, list[Part]] = {}
        for p in self.found.get((name, _site(site), step), ()):
            if p.order == 1 and not (systematic and p.chance):
                (weight,) = p.owed
                table.setdefault(weight, []).append(Part(p.power))
        return {w: tuple(x.power for x in combined(parts)) for w, parts in table.items()}


def _site(site: Any) -> Expr | None:
    return None if site is None else sympify(site)
