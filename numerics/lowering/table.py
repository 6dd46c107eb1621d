"""The table that a linear theory is lowered to: rows of fields, covariances, order parameters, scalars.

For each field at time t: the Gaussian sources that drive it, and for each other field the kernel row that
multiplies it.  Kernels and source covariances are sums of products of tensors (order parameters, errors,
constants of the data), with the indices that are summed named explicitly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sympy import Expr, S, Symbol

FieldAtLayer = tuple[str, int | None]
"""A field, source or tensor: its name and, if it has one, its layer."""


Reach = Literal["past", "through", "now", "start"]
"""The times s at which a coupling reads a field: 0..t-1, 0..t, t alone, 0 alone."""

DELTA: FieldAtLayer = ("delta", None)
"""The tensor of a Kronecker delta in two indices."""


@dataclass(frozen=True)
class Factor:
    """A tensor with its index symbols, in the order in which it is stored."""

    tensor: FieldAtLayer
    indices: tuple[Symbol, ...]


@dataclass(frozen=True)
class Monomial:
    """``coefficient * product of factors``, summed over every index that is not an axis of the kernel.

    The coefficient may be a function of t and s.  ``instant``: it is there at s = t only; ``strict``: not at
    s = t, though the kernel reaches there.
    """

    coefficient: Expr
    factors: tuple[Factor, ...]
    instant: bool = False
    strict: bool = False


@dataclass(frozen=True)
class KernelRow:
    """A row ``k[rows, s, cols]`` at time t, read at the times of its ``reach``."""

    rows: tuple[Symbol, ...]
    cols: tuple[Symbol, ...]
    monomials: tuple[Monomial, ...]
    reach: Reach = "past"

    @property
    def local(self) -> bool:
        """Is it there at s = t only?"""
        return all(m.instant for m in self.monomials)

    def at(self, times: Reach) -> tuple[Monomial, ...]:
        """The monomials that are there at some times s; "start" is a time before t."""
        if times == "now":
            return tuple(m for m in self.monomials if not m.strict)
        return tuple(m for m in self.monomials if not m.instant)


@dataclass(frozen=True)
class Coupling:
    """``unit * sum_s kernel(t, s) field(s)``; ``unit`` is a function of attributes, the same at all times."""

    field: FieldAtLayer
    kernel: KernelRow
    unit: Expr = S.One


@dataclass(frozen=True)
class FieldRow:
    """The single-site equation of one field: ``sum gain * source(t) + couplings``.

    ``unit``: the field lives on units that are told apart by attributes, of which gains, the couplings'
    ``unit`` and the ``constant`` (what the field has without sources) are functions.
    """

    field: FieldAtLayer
    indices: tuple[Symbol, ...]
    drives: tuple[tuple[FieldAtLayer, Expr], ...]
    couplings: tuple[Coupling, ...]
    unit: bool = False
    constant: Expr = S.Zero


@dataclass(frozen=True)
class Request:
    """A request for a tensor of the march: a correlation of two fields, or a response to a source.

    Over units it is the sum of them weighted with ``unit``, a function of their attributes.
    """

    kind: Literal["correlation", "response"]
    first: FieldAtLayer
    second: FieldAtLayer
    factor: Expr
    unit: Expr | None = None


@dataclass(frozen=True)
class Hoisted:
    """A product that does not depend on t, computed once a step: ``tensor[s, rows]``."""

    tensor: FieldAtLayer
    rows: tuple[Symbol, ...]
    factors: tuple[Factor, ...]


@dataclass(frozen=True)
class ScalarRow:
    """A number for each of its indices: ``expression`` in the symbols that stand for its inputs.

    An average is that of two fields at equal time.
    """

    name: str
    indices: tuple[Symbol, ...]
    expression: Expr
    averages: tuple[tuple[Symbol, Factor, Factor], ...]
    inputs: tuple[tuple[Symbol, Factor], ...]

    @property
    def arguments(self) -> list[Symbol]:
        """The symbols that stand for averages, and those for inputs."""
        return [*[x for x, *_ in self.averages], *[x for x, _ in self.inputs]]


@dataclass(frozen=True, eq=False)
class Table:
    """A linear theory, lowered."""

    fields: tuple[FieldRow, ...]
    covariances: dict[tuple[FieldAtLayer, FieldAtLayer], KernelRow]
    source_indices: dict[FieldAtLayer, tuple[Symbol, ...]]
    tensors: dict[FieldAtLayer, Request]
    scalars: tuple[ScalarRow, ...]
    hoisted: tuple[Hoisted, ...]
    extents: dict[Symbol, Expr] = field(default_factory=dict)
    """How far each index runs: a number, or a symbol such as P."""

    def row(self, node: FieldAtLayer) -> FieldRow:
        """The row of one field.  Raises KeyError if the table has none."""
        for row in self.fields:
            if row.field == node:
                return row
        raise KeyError(node)
