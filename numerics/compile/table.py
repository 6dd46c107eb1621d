"""The rows that a linear theory compiles to: plain data that a small evaluator walks.

For each field at time t: its Gaussian source, and for each earlier field the kernel row that multiplies
it.  Kernels and source covariances are sums of products of tensors (order parameters, errors, constants of
the data), with the sample indices that are summed named explicitly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sympy import Expr, Symbol

Node = tuple[str, int | None]
"""A field, source or tensor: its name and, if it has one, its layer."""


@dataclass(frozen=True)
class Factor:
    """A tensor with its index symbols, in the order in which it is stored."""

    tensor: Node
    indices: tuple[Symbol, ...]


@dataclass(frozen=True)
class Monomial:
    """``coefficient * product of factors``, summed over every index that is not an axis of the kernel."""

    coefficient: Expr
    factors: tuple[Factor, ...]


@dataclass(frozen=True)
class Kernel:
    """A row ``k[row, s, col]`` at time t; ``inclusive`` rows run to ``s = t``."""

    row: Symbol | None
    col: Symbol | None
    monomials: tuple[Monomial, ...]
    inclusive: bool = False


@dataclass(frozen=True)
class Coupling:
    """``sum_s kernel(t, s) field(s)``."""

    field: Node
    kernel: Kernel


@dataclass(frozen=True)
class FieldRow:
    """The single-site equation of one field: ``gain * source(t) + couplings``."""

    field: Node
    index: Symbol | None
    source: Node | None
    gain: Expr
    couplings: tuple[Coupling, ...]


@dataclass(frozen=True)
class Request:
    """What a tensor is in the march: a correlation of two fields, or a response of one to a source."""

    kind: Literal["correlation", "response"]
    first: Node
    second: Node
    factor: Expr


@dataclass(frozen=True)
class Hoisted:
    """A product that does not depend on t, computed once a step: ``tensor[s, row]``."""

    tensor: Node
    row: Symbol
    factors: tuple[Factor, ...]


@dataclass(frozen=True)
class ScalarRow:
    """A number, or one for each sample: ``expression`` in the symbols that stand for its inputs."""

    name: str
    index: Symbol | None
    expression: Expr
    averages: tuple[tuple[Symbol, Node, Node], ...]
    inputs: tuple[tuple[Symbol, str], ...]


@dataclass(frozen=True)
class Table:
    """A linear theory, lowered."""

    fields: tuple[FieldRow, ...]
    covariances: dict[tuple[Node, Node], Kernel]
    source_index: dict[Node, Symbol | None]
    tensors: dict[Node, Request]
    scalars: tuple[ScalarRow, ...]
    hoisted: tuple[Hoisted, ...]

    def field(self, node: Node) -> FieldRow:
        """The row of one field.  Raises KeyError if the table has none."""
        for row in self.fields:
            if row.field == node:
                return row
        raise KeyError(node)
