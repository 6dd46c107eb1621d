"""The units themselves: fields of each network at chosen layers, times and samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numerics.paths import Block, Paths, dimension

from .formulas import Binder
from .leaves import Bound, State
from .measure import Side, read_side

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Grid:
    """The entries of one field that are kept, layer by layer, with the indices of each layer in order."""

    entries: tuple[Bound, ...]
    layers: tuple[int, ...]
    indices: tuple[tuple[str, tuple[int, ...]], ...]

    def copied(self, state: State) -> Array:
        """Their values now, with the axes layer (if there are layers), indices, unit."""
        rows = [np.asarray(x.value(state), dtype=float) for x in self.entries]
        if len({x.shape for x in rows}) > 1:
            raise ValueError(
                "paths: layers of unequal widths have unequal numbers of units: keep one of them"
            )
        shape = (*((len(self.layers),) if self.layers else ()), *(len(v) for _, v in self.indices))
        return np.stack(rows).reshape(*shape, -1)


@dataclass(frozen=True)
class Kept:
    """What is kept of each network at ``times``, and the record of the one that is being trained."""

    grids: Mapping[str, Grid]
    times: Sequence[int]
    record: dict[int, dict[str, Array]] = field(default_factory=dict)

    def look(self, state: State) -> None:
        """Copy what is kept of this step."""
        if state.step in self.times:
            self.record[state.step] = {n: x.copied(state) for n, x in self.grids.items()}

    def taken(self) -> dict[str, Block]:
        """The blocks of the network that has just been trained."""
        found = {}
        for name, grid in self.grids.items():
            values = np.stack([self.record[time][name] for time in self.times], axis=1 if grid.layers else 0)
            found[name] = Block(values, grid.layers, grid.indices)
        self.record.clear()
        return found


def read_kept(binder: Binder, paths: Paths, steps: int) -> Kept:
    """Which entries ``paths`` ask for.  Raises ValueError for what a network does not have."""
    grids = {}
    for name, e in paths.expressions(binder.program).items():
        side = read_side(binder, e)
        if side.number or not side.sites:
            raise ValueError(f"paths: {name} = {e} has no units in this network")
        grids[name] = _grid(paths, side)
    return Kept(grids, paths.steps(binder.program, steps))


def _grid(paths: Paths, side: Side) -> Grid:
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
    entries = tuple(side.sites[k][spot] for k in sites for spot in product(*places))
    return Grid(entries, layers, tuple(indices))
