"""Variances and shifts of the variables of results, from fluctuations that a method has found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from numerics.fluctuations.linear import GradientBlock
from numerics.fluctuations.methods import SolvedFluctuations
from numerics.fluctuations.variables import ObservableVariable

Array = NDArray[np.float64]


@dataclass(frozen=True)
class WidthCorrections:
    """Variables at infinite width and their corrections at order 1/N, by name.

    Attributes
    ----------
    values
        The variables at infinite width, at equal times.
    variances
        N times their variances over networks.
    shifts
        N times their means minus ``values``; empty where they are not known.
    dims
        Their dimensions.
    """

    values: dict[str, Array]
    variances: dict[str, Array]
    shifts: dict[str, Array]
    dims: dict[str, tuple[str, ...]]


def corrections(solved: SolvedFluctuations, variables: Mapping[str, ObservableVariable]) -> WidthCorrections:
    """Return the corrections of variables."""
    values = {name: x.observable.values.reshape(x.shape) for name, x in variables.items()}
    dims = {name: x.dims for name, x in variables.items()}
    found = solved.shifts_of([x.observable for x in variables.values()])
    shifts = dict(zip(variables, found, strict=True)) if found is not None else {}
    shifts = {name: x.reshape(values[name].shape) for name, x in shifts.items()}
    return WidthCorrections(values, _variances(solved, variables), shifts, dims)


def _variances(solved: SolvedFluctuations, variables: Mapping[str, ObservableVariable]) -> dict[str, Array]:
    """N times variances: at each time those of all variables together, as they share gradients."""
    found = {name: np.zeros(len(x.times)) for name, x in variables.items()}
    blocks: list[GradientBlock] = []
    places: list[list[tuple[str, NDArray[np.intp]]]] = []
    for time in np.unique(np.concatenate([x.times for x in variables.values()])):
        at = {name: np.flatnonzero(x.times == time) for name, x in variables.items()}
        columns = np.unique(
            np.concatenate(
                [x.observable.columns[np.isin(x.observable.rows, at[n])] for n, x in variables.items()]
            )
        )
        parts = [x.observable.gradient(at[name], columns) for name, x in variables.items()]
        blocks.append(GradientBlock(np.concatenate(parts), columns))
        places.append(list(at.items()))
    for rows, covariance in zip(places, solved.covariances_of(blocks), strict=True):
        variance, start = np.diag(covariance), 0
        for name, own in rows:
            found[name][own] = variance[start : start + len(own)]
            start += len(own)
    return {name: a.reshape(variables[name].shape) for name, a in found.items()}
