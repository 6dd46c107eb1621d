"""Many numbers of a theory beside those of networks of a few sizes, judged together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from numerics.stats import bound
from numerics.verification.networks import LEVEL, curvature_of, scores, slopes_of


@dataclass(frozen=True)
class Place:
    """A variable ``at`` a place (as for ``isel``); how large it is, inf where no remainder is allowed."""

    label: str
    name: str
    at: Mapping[str, Any]
    size: float


@dataclass(frozen=True)
class Verdict:
    """How many numbers; the worst of them, how far it is off in standard errors, and how far it may be."""

    entries: int
    place: str
    worst: float
    bound: float

    @property
    def agrees(self) -> bool:
        """Is every number within its bound?"""
        return self.worst <= self.bound


def judged(theory: xr.Dataset, networks: Sequence[xr.Dataset], places: Sequence[Place]) -> Verdict:
    """The number that is furthest off for what it may be.

    Networks are extrapolated in 1/N, standard errors of theory and networks are joint.  The bound is Sidak's
    for all numbers together, with Student's t, plus what a straight line in 1/N leaves out.
    """
    entries = sum(int(theory[p.name].isel(p.at).size) for p in places)
    worst, reach, place = 0.0, np.inf, ""
    for p in places:
        z, stderr, dof = scores(theory, networks, p.name, p.at)
        remainder = curvature_of(networks) * slopes_of(networks, p.name, p.at).to_numpy() ** 2
        with np.errstate(divide="ignore", invalid="ignore"):
            limits = bound(entries, LEVEL, dof) + remainder / p.size / stderr
        share = np.where(stderr > 0, np.abs(z) / limits, 0.0)
        at = int(np.argmax(share))
        if share.flat[at] > worst / reach:
            worst, reach = float(np.abs(z).flat[at]), float(np.asarray(limits).flat[at])
            place = p.label
    return Verdict(entries, place, worst, reach)
