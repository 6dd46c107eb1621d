"""The units themselves: fields of each network at chosen layers, times and samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from numerics.paths import Block, Paths, dimension

from .formulas import Binder
from .measure import Side, read_side
from .rows import Array, Reader, Reading, State


@dataclass(frozen=True)
class Grid:
    """The entries of one field that are kept, layer by layer, with the indices of each layer in order."""

    readers: tuple[Reader, ...]
    layers: tuple[int, ...]
    indices: tuple[tuple[str, tuple[int, ...]], ...]

    def copied(self, state: State, networks: int) -> Array:
        """Their values now: (networks, layer (if there are layers), indices, unit)."""
        count = int(np.prod([len(v) for _, v in self.indices], dtype=int))
        found = [read(state) for read in self.readers]
        if len({x.shape[-1] for x in found}) > 1:
            raise ValueError(
                "paths: layers of unequal widths have unequal numbers of units: keep one of them"
            )
        rows = np.stack([np.broadcast_to(x, (networks, count, x.shape[-1])) for x in found], axis=1)
        shape = (*((len(self.layers),) if self.layers else ()), *(len(v) for _, v in self.indices))
        return rows.reshape(networks, *shape, -1)


@dataclass(frozen=True)
class Kept:
    """What is kept of each network at ``times``, and the record of those that are being trained."""

    grids: Mapping[str, Grid]
    times: Sequence[int]
    record: dict[int, dict[str, Array]] = field(default_factory=dict)

    def look(self, state: State, networks: int) -> None:
        """Copy what is kept of this step."""
        if state.step in self.times:
            self.record[state.step] = {n: x.copied(state, networks) for n, x in self.grids.items()}

    def taken(self, networks: int) -> list[dict[str, Block]]:
        """The blocks of the networks that have just been trained."""
        found: list[dict[str, Block]] = [{} for _ in range(networks)]
        for name, grid in self.grids.items():
            axis = 2 if grid.layers else 1
            values = np.stack([self.record[time][name] for time in self.times], axis=axis)
            for k in range(networks):
                found[k][name] = Block(values[k], grid.layers, grid.indices)
        self.record.clear()
        return found


def read_kept(binder: Binder, reading: Reading, paths: Paths, steps: int) -> Kept:
    """Which entries ``paths`` ask for.  Raises ValueError for what a network does not have."""
    grids = {}
    for name, e in paths.expressions(binder.program).items():
        side = read_side(binder, reading, e)
        if side.number or not side.sites:
            raise ValueError(f"paths: {name} = {e} has no units in this network")
        grids[name] = _grid(reading, paths, side)
    return Kept(grids, paths.steps(binder.program, steps))


def _grid(reading: Reading, paths: Paths, side: Side) -> Grid:
    there = sorted(x for x in side.sites if x is not None)
    layers = tuple(paths.chosen("layers", there)) if there else ()
    places: list[list[int]] = []
    indices: list[tuple[str, tuple[int, ...]]] = []
    for index, values in side.axes:
        whole = [int(x) for x in values]
        name, labels = dimension(index), whole
        if name == "sample":
            labels = paths.chosen("samples", range(len(whole)))
        elif name == "layer":  # layers that are the same units
            labels = paths.chosen("layers", whole)
        places.append(labels if name == "sample" else [whole.index(x) for x in labels])
        indices.append((name, tuple(labels)))
    sites: list[Any] = [*layers] or [None]
    readers = tuple(reading.read([side.sites[k][spot] for spot in product(*places)]) for k in sites)
    return Grid(readers, layers, tuple(indices))
