"""Table of a linear theory: rows of fields, covariances of sources, order parameters and scalars.

For each field at time t the table has the Gaussian sources in its equation, and the row of the kernel that
multiplies each other field. Kernels and covariances of sources are sums of products of tensors (order
parameters, errors, constants of the data) with explicit summed indices.
:func:`numerics.lowering.linear.lower` makes it and :mod:`numerics.solver.linear` runs it.
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
    """Array in a product of arrays: its name and layer, and its index symbols in the order of its axes.

    The array is an order parameter, an error or given data.
    """

    tensor: FieldAtLayer
    indices: tuple[Symbol, ...]


@dataclass(frozen=True)
class Monomial:
    """Product of a coefficient and arrays, as one term of a kernel.

    It is summed over every index that is not an axis of the kernel. The coefficient may be a function of t
    and s. If ``instant``, the product is nonzero only at s = t. If ``strict``, it is zero at s = t, though
    the kernel includes that time.
    """

    coefficient: Expr
    factors: tuple[Factor, ...]
    instant: bool = False
    strict: bool = False


@dataclass(frozen=True)
class KernelRow:
    """Row ``k[rows, s, cols]`` of a kernel at time t: a sum of products of arrays.

    ``rows`` are the indices at t, and ``cols`` those at s. ``reach`` are the times s at which the kernel
    multiplies a field: "past", "through" (the past and t), "now" or "start".
    """

    rows: tuple[Symbol, ...]
    cols: tuple[Symbol, ...]
    monomials: tuple[Monomial, ...]
    reach: Reach = "past"

    @property
    def local(self) -> bool:
        """Whether the kernel is nonzero only at s = t."""
        return all(m.instant for m in self.monomials)

    def at(self, times: Reach) -> tuple[Monomial, ...]:
        """Return the terms of the kernel that can be nonzero at the times s that ``times`` names.

        These are "now" (s = t), "past" (s < t) or "start" (s = 0, before t). The attribute ``reach``, the
        times at which the kernel multiplies a field, is not considered.
        """
        if times == "now":
            return tuple(m for m in self.monomials if not m.strict)
        return tuple(m for m in self.monomials if not m.instant)


@dataclass(frozen=True)
class Coupling:
    """Term ``unit * sum_s kernel(t, s) field(s)`` in the equation of another field.

    ``unit`` is a function, constant in time, of the attributes of a unit: given constants of each unit, such
    as the eigenvalue of a mode.
    """

    field: FieldAtLayer
    kernel: KernelRow
    unit: Expr = S.One


@dataclass(frozen=True)
class FieldRow:
    """Single-site equation of one field, ``sum gain * source(t) + sum couplings + constant``.

    ``drives`` are the pairs (source, gain).
    ``unit`` is true for a field on units with attributes: given constants of each unit, such as the
    eigenvalue of a mode. The gains, the factors ``unit`` of the couplings and the ``constant`` term are then
    functions of the attributes.
    """

    field: FieldAtLayer
    indices: tuple[Symbol, ...]
    drives: tuple[tuple[FieldAtLayer, Expr], ...]
    couplings: tuple[Coupling, ...]
    unit: bool = False
    constant: Expr = S.Zero


@dataclass(frozen=True)
class Request:
    """Definition of an order parameter: a correlation of two fields, or the response of a field to a source.

    Attributes
    ----------
    kind
        "correlation" or "response".
    first, second
        Both fields, or field and source, as (name, layer).
    factor
        Constant factor of the average.
    unit
        Weight of each unit in a sum over units, a function of its attributes (given constants of the unit).
        None without attributes.
    """

    kind: Literal["correlation", "response"]
    first: FieldAtLayer
    second: FieldAtLayer
    factor: Expr
    unit: Expr | None = None


@dataclass(frozen=True)
class Hoisted:
    """Array that is a product of other arrays and does not depend on t, so that each step computes it once.

    ``tensor`` is its name, ``rows`` are its indices beside the time s, and ``factors`` the arrays; other
    indices are summed over.
    """

    tensor: FieldAtLayer
    rows: tuple[Symbol, ...]
    factors: tuple[Factor, ...]


@dataclass(frozen=True)
class ScalarRow:
    """Scalar at all values of its indices: an ``expression`` in symbols for averages and inputs.

    Each of ``averages`` is a symbol with two fields whose product is averaged at equal time. Each of
    ``inputs`` is a symbol with the tensor that it stands for.
    """

    name: str
    indices: tuple[Symbol, ...]
    expression: Expr
    averages: tuple[tuple[Symbol, Factor, Factor], ...]
    inputs: tuple[tuple[Symbol, Factor], ...]

    @property
    def arguments(self) -> list[Symbol]:
        """Symbols in the expression of the scalar: those of averages, then those of other inputs."""
        return [*[x for x, *_ in self.averages], *[x for x, _ in self.inputs]]


@dataclass(frozen=True, eq=False)
class Table:
    """Equations of a linear theory as data that the march runs. Keys of dictionaries are (name, layer).

    Attributes
    ----------
    fields : tuple of FieldRow
        Equations of the fields.
    covariances : dict
        Covariances of pairs of sources, by pair of keys.
    source_indices : dict
        Index symbols of each source, such as that of samples.
    tensors : dict
        Definition of each order parameter, as a correlation of two fields or a response of a field.
    scalars : tuple of ScalarRow
        Equations of the scalars, such as the error of each sample.
    hoisted : tuple of Hoisted
        Products that do not depend on t, so that each step computes them once.
    extents : dict
        Largest value of each index, by its symbol: a number, or a symbol such as P.
    """

    fields: tuple[FieldRow, ...]
    covariances: dict[tuple[FieldAtLayer, FieldAtLayer], KernelRow]
    source_indices: dict[FieldAtLayer, tuple[Symbol, ...]]
    tensors: dict[FieldAtLayer, Request]
    scalars: tuple[ScalarRow, ...]
    hoisted: tuple[Hoisted, ...]
    extents: dict[Symbol, Expr] = field(default_factory=dict)

    def row(self, node: FieldAtLayer) -> FieldRow:
        """Return the equation of one field.

        Parameters
        ----------
        node : FieldAtLayer
            Name of the field and its layer, which is None for a field without layers.

        Returns
        -------
        FieldRow
            The equation of the field.

        Raises
        ------
        KeyError
            If the table has no such field.
        """
        for row in self.fields:
            if row.field == node:
                return row
        raise KeyError(f"the table has no field {node}")
