"""Theories with a width and a batch of their own, as those of power-law data: approximations at any of them.

They are held against networks by solving them again at larger ones: what the difference extrapolates to must
vanish.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from numerics.experiment import Experiment
from numerics.solve import solve
from numerics.verify.networks import compared_places


def scaled(experiment: Experiment, width: int) -> Experiment:
    """The experiment at another width of its theory, its batch as many times larger; without one, itself."""
    own = experiment.network.width
    if own is None or own == width:
        return experiment
    changes: dict[str, object] = {"network.width": width}
    batch = experiment.data.batch if experiment.data is not None else None
    if batch is not None:
        changes["data.batch"] = batch * width // own
    return experiment.replace(changes)


def less_their_theory(
    experiment: Experiment, theory: xr.Dataset, networks: Sequence[xr.Dataset]
) -> list[xr.Dataset]:
    """Networks whose theory has a width, as if it had that of ``experiment``: the difference to ``theory``
    is that of each to the theory of its own width.
    """
    if experiment.network.width is None:
        return list(networks)
    found = []
    for d in networks:
        own = solve(scaled(experiment, int(d.attrs["width"])), kernels="none")
        shifted = {x: d[x] + (theory[x] - own[x]) for x in own.data_vars if x in d and x in theory}
        found.append(d.assign(shifted))
    return found


def at_its_width(theory: xr.Dataset, networks: xr.Dataset) -> list[str]:
    """How well a theory with a width describes networks of that width."""
    places = compared_places(theory)
    value, error = (networks[f"test_loss{x}"].to_numpy()[places] for x in ("", "_stderr"))
    off = value / theory.test_loss.to_numpy()[places] - 1
    worst = int(np.argmax(np.abs(off)))
    spread = error[worst] / theory.test_loss.to_numpy()[places][worst]
    return [
        "the theory has a width (and batch) of its own: it is solved again at those of larger networks, and",
        "networks less their theory, plus this one, are shown. At its own the test loss of networks is off",
        f"by {off[worst]:+.1%} +- {spread:.1%} (at t = {float(theory.time[places[worst]]):.4g}).",
    ]
