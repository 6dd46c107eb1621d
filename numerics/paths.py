"""Selection and storage of paths of single units, from a sampled theory or from networks.

A path is the field of one unit over the steps.  Paths are stored as a Dataset with a variable for each field
and the dimensions ``run`` (an independent replica of the theory, or a network), ``layer`` (from 1), ``time``,
those of the field's indices (``sample`` from 0, others from 1) and ``unit``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Symbol
from sympy.core.function import AppliedUndef

from derive.program import Program, ell, mu, t
from numerics.names import FEATURE_KERNEL, FIELD, LINEAR_KERNEL

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Paths:
    """Selection of paths: fields, layers (from 1), times (steps) and samples (from 0).

    None keeps all layers, times or samples. In continuous time ``times`` are positions among the recorded
    times.

    ``fields`` are names of the program's fields, and ``"phi(h)"`` for the activations of a layer; or
    expressions in fields by any name, such as ``{"h^2": h(ell, mu, t)**2}``.

    Each run, layer, time, sample and unit takes eight bytes: 8 replicas of 1000 paths with 10 samples, 100
    times and 3 layers take 200 MB a field.

    >>> from derive.program import mlp
    >>> Paths(("z", "phi(h)")).expressions(mlp(2, "tanh"))
    {'z': z(ell, mu, t), 'phi(h)': tanh(h(ell, mu, t))}
    """

    fields: Sequence[str] | Mapping[str, Expr] = (FIELD,)
    layers: Sequence[int] | None = None
    times: Sequence[int] | None = None
    samples: Sequence[int] | None = None

    def expressions(self, program: Program) -> dict[str, Expr]:
        """Return the expression of each selected field, by name, at time ``t`` and, with layers, at ``ell``.

        Expressions that were selected in place of names are returned as they are. Raises ValueError, which
        lists the fields, for a name that is not a field.
        """
        if isinstance(self.fields, Mapping):
            return dict(self.fields)
        there = {d.name: d.lhs for d in program.definitions if program.field_of(d.name) is not None}
        known = {n: _anywhere(program, lhs) for n, lhs in there.items()}
        handed = [e for e, name in program.notation.items() if name in (FEATURE_KERNEL, LINEAR_KERNEL)]
        if len(handed) == 1:
            known["phi(h)"] = handed[0]
        for name in self.fields:
            if name not in known:
                raise ValueError(f"paths: {name} is not a field; fields are: {', '.join(known)}")
        return {name: known[name] for name in self.fields}

    def chosen(self, what: str, existing: Sequence[int]) -> list[int]:
        """Return the selected ``layers``, ``times`` or ``samples``, in the order of the selection.

        ``what`` is "layers", "times" or "samples", and ``existing`` are all values, which are returned if
        this attribute is None. Raises ValueError for a selected value that does not exist or is not an
        integer, and for a selection without values.
        """
        selected: Sequence[Any] | None = getattr(self, what)
        if selected is None:
            return [*existing]
        there = f"existing: {existing[0]} to {existing[-1]}" if len(existing) else "there are none"
        if np.ndim(selected) != 1 or not len(selected):
            raise ValueError(f"paths: {what} = {selected}: must be a list of one value or more; {there}")
        for x in selected:
            if isinstance(x, bool | np.bool_) or not isinstance(x, Integral):
                raise ValueError(f"paths: {what} contains {x}, which is not an integer; {there}")
            if x not in existing:
                raise ValueError(f"paths: {what} contains {x}, which does not exist; {there}")
        return [int(x) for x in selected]

    def steps(self, program: Program, last: int) -> list[int]:
        """Return the selected times, or all times 0..``last`` if none are selected.

        Raise ValueError for a name that is not a field of the program, and for a time that is not in
        0..``last``.
        """
        self.expressions(program)
        return self.chosen("times", range(last + 1))


@dataclass(frozen=True)
class Block:
    """Paths of one field in one replica or network.

    The axes of ``values`` are layer (if there are ``layers``), time, the indices of the field and unit.
    ``indices`` holds the name and the values of each index.
    """

    values: Array
    layers: tuple[int, ...]
    indices: tuple[tuple[str, tuple[float, ...]], ...]

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the axes of ``values``: ("layer",) "time", those of the indices, "unit"."""
        return (*(("layer",) if self.layers else ()), "time", *(n for n, _ in self.indices), "unit")


def dimension(index: Symbol | str) -> str:
    """Return the name of an index's axis: "sample" for mu, "layer" for ell, else the index's name."""
    return {mu.name: "sample", ell.name: "layer"}.get(str(index), str(index))


def gathered(runs: Sequence[Mapping[str, Block]], times: Sequence[float], **attrs: str) -> xr.Dataset:
    """Return the paths of all runs as one Dataset with the dimension ``run``.

    Each run maps names of fields to their paths; all runs have the same fields and shapes. ``times`` are the
    coordinates of the dimension ``time``. If a field has other layers, index values or numbers of units than
    the fields before it, the dimension that differs has a name of its own, such as ``"layer of z"``.
    ``attrs`` are the attributes of the result.
    """
    import xarray as xr  # slow to import, and needed only if paths are kept

    dataset = xr.Dataset(attrs=attrs)
    for name, first in runs[0].items():
        sizes = dict(zip(first.dims, first.values.shape, strict=True))
        known = {"layer": first.layers, "time": tuple(times), **dict(first.indices)}
        renamed = {d: _own(dataset, d, known.get(d), n, name) for d, n in sizes.items()}
        dims = ("run", *(renamed[d] for d in first.dims))
        coords = {renamed[d]: [*values] for d, values in known.items() if d in sizes}
        dataset = dataset.assign({name: (dims, np.stack([r[name].values for r in runs]))}).assign_coords(
            coords
        )
    return dataset


def _own(existing: xr.Dataset, dim: str, values: Iterable[float] | None, size: int, name: str) -> str:
    """Return the name of a dimension for the field ``name``: ``dim``, or "dim of name".

    The longer name is taken if ``existing`` has a dimension ``dim`` of another length than ``size`` or with
    other values; if ``values`` is None, only lengths are compared.
    """
    if dim not in existing.dims:
        return dim
    same = existing.sizes[dim] == size and (values is None or [*existing[dim].values] == [*values])
    return dim if same else f"{dim} of {name}"


def _anywhere(program: Program, lhs: AppliedUndef) -> Expr:
    """Return a field at time t and at plain indices, such as ``h(ell, mu, t)``.

    ``lhs`` is the left side of its definition, which may have shifted indices and an integer for the layer,
    such as ``h(1, mu, t + 1)``. Other integers stay.
    """
    x = program.field_of(str(lhs.func))
    assert x is not None
    indices = [next(iter(a.free_symbols), a) for a in lhs.args[:-1]]
    if x.layered:
        indices[0] = ell
    return lhs.func(*indices, t)
