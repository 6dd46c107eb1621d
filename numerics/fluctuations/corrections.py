"""Variances and shifts of the variables of results, from the fluctuations that a method computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from numerics.fluctuations.linear import GradientBlock
from numerics.fluctuations.methods import ObservedFluctuations, SolvedFluctuations
from numerics.fluctuations.variables import ObservableVariable
from numerics.results import SHIFT, VARIANCE

Array = NDArray[np.float64]


@dataclass(frozen=True)
class WidthCorrections:
    """Variables of results (loss, outputs, kernels) with their corrections at order 1/N, by name.

    Attributes
    ----------
    values
        The variables at infinite width, at equal times.
    variances
        N times their variances over networks.
    shifts
        N times (mean minus value at infinite width) of each; empty if shifts are not known.
    dims
        The dimensions of each variable.
    errors
        Standard errors of ``variances`` and ``shifts`` by name with suffix, such as ``f_variance``; empty
        unless averages are sampled.
    systematic
        Estimated systematic errors by the same names, from the rounding of kinks; empty if no kink was
        rounded.
    """

    values: dict[str, Array]
    variances: dict[str, Array]
    shifts: dict[str, Array]
    dims: dict[str, tuple[str, ...]]
    errors: dict[str, Array] = field(default_factory=dict)
    systematic: dict[str, Array] = field(default_factory=dict)


def corrections(solved: SolvedFluctuations, variables: Mapping[str, ObservableVariable]) -> WidthCorrections:
    """Return the variances and shifts at order 1/N of variables of results, such as the loss.

    ``solved`` gives covariances and shifts of any functions of order parameters; ``variables`` are such
    functions by name. If ``solved`` has several independent sets of sampled paths, standard errors over them
    are added. If kinks were rounded, systematic errors are added: the change if the polynomial of the
    extrapolation to sharp kinks has one degree less.
    """
    values = {name: x.observable.values.reshape(x.shape) for name, x in variables.items()}
    dims = {name: x.dims for name, x in variables.items()}
    variances, shifts = _variances(solved, variables), _shifts(solved, variables)
    errors: dict[str, Array] = {}
    replicas = getattr(solved, "replicas", ())
    if len(replicas) > 1:
        for suffix, find in ((VARIANCE, _variances), (SHIFT, _shifts)):
            runs = [find(x, variables) for x in replicas]
            for name in runs[0]:
                standard_error = np.std([x[name] for x in runs], axis=0, ddof=1) / np.sqrt(len(runs))
                errors[name + suffix] = standard_error
    systematic: dict[str, Array] = {}
    # If the moments are extrapolated to kinks of width zero by a polynomial, `lower` has the moments that a
    # polynomial of one degree less gives. The absolute difference is taken as the systematic error.
    lower = getattr(solved, "lower", None)
    if lower is not None:
        for suffix, best, find in ((VARIANCE, variances, _variances), (SHIFT, shifts, _shifts)):
            others = find(lower, variables)
            systematic |= {name + suffix: np.abs(best[name] - others[name]) for name in best}
    return WidthCorrections(values, variances, shifts, dims, errors, systematic)


def _shifts(solved: ObservedFluctuations, variables: Mapping[str, ObservableVariable]) -> dict[str, Array]:
    """Return N times (mean over networks minus value at infinite width) of each variable of results, by name.

    The dictionary is empty if ``solved`` does not compute shifts.
    """
    shifts = solved.shifts_of([x.observable for x in variables.values()])
    if shifts is None:
        return {}
    return {name: x.reshape(variables[name].shape) for name, x in zip(variables, shifts, strict=True)}


def _variances(solved: ObservedFluctuations, variables: Mapping[str, ObservableVariable]) -> dict[str, Array]:
    """Return N times the variance over networks of each variable of results, by name, in its shape.

    Array entries of all variables at the same time are computed in one matrix product, because they are
    functions of the same order parameters.
    """
    variances = {name: np.zeros(len(x.times)) for name, x in variables.items()}
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
        for name, points in rows:
            variances[name][points] = variance[start : start + len(points)]
            start += len(points)
    return {name: a.reshape(variables[name].shape) for name, a in variances.items()}
