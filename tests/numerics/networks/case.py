"""A network of the pages *Networks that people train*, with the numbers and arrays of its run.

Every page, test, table and benchmark of these networks takes its program from one :class:`Case`, so that the
shown program is the tested one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import xarray as xr

import numerics
from derive.program import Program
from numerics.experiment.schema import Solver
from numerics.verification import Report, compare


@dataclass(frozen=True)
class Case:
    """Program with its numbers and arrays, trained for a number of steps.

    ``widths`` and ``seeds`` are those of the networks that its theory is compared with. ``kernels`` names
    their measured kernels, as an argument of :func:`numerics.solve`.
    """

    program: Program
    numbers: Mapping[str, float]
    arrays: Mapping[str, Any]
    steps: int
    widths: Sequence[int] = (64, 128)
    seeds: Sequence[int] = (200, 100)
    solver: Solver = field(default_factory=Solver)
    kernels: Literal["full", "trace", "none"] = "trace"

    @property
    def given(self) -> dict[str, Any]:
        """Numbers, arrays and times, as ``numerics.solve`` takes them."""
        return {"numbers": dict(self.numbers), "arrays": dict(self.arrays), "times": range(self.steps + 1)}

    def width(self, least: int) -> int:
        """Return the smallest width that is at least this and a multiple of the number of attributes."""
        unit = max((len(self.arrays[a.name]) for a in self.program.attributes), default=1)
        return -(-least // unit) * unit

    def theory(self, program: Program | None = None) -> xr.Dataset:
        """Solve the theory, of another program if one is given."""
        return numerics.solve(program or self.program, **self.given, solver=self.solver, kernels=self.kernels)

    def networks(self, program: Program | None = None) -> list[xr.Dataset]:
        """Train networks of every width, of another program if one is given."""
        return [
            numerics.simulate(
                program or self.program,
                width=self.width(width),
                seeds=seeds,
                rng=width,
                **self.given,
                kernels=self.kernels,
            )
            for width, seeds in zip(self.widths, self.seeds, strict=True)
        ]

    def compared(self, program: Program | None = None) -> Report:
        """Hold the theory against networks, which may be those of another program."""
        return compare(self.theory(), self.networks(program))


def movement(theory: xr.Dataset, name: str) -> float:
    """Change of a correlation at equal times from the start to the end, over its size at the start."""
    kernel = theory[name]
    first, last = kernel.isel(time=0, time_=0), kernel.isel(time=-1, time_=-1)
    return float(np.abs(last - first).sum() / np.abs(first).sum())
