"""Values of the quantities of a theory by name and layer, with means and standard errors over replicas.

The reference solver, quadrature and sampled paths return their results as :class:`Evaluated`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from numerics.names import MemberKey

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Evaluated:
    """Order parameters, observables and scalars of a theory, with standard errors.

    Attributes
    ----------
    method : str
        Name of the computation; the errors of ``"linear"`` are zero.
    values : dict
        Arrays by name and layer. Axes are the indices of the symbol in order and then its times: ``Phi(ell,
        mu, alpha, t, s)`` has shape ``(P, P, T, T)`` at each layer. A scalar has its time first: ``Delta(mu,
        t)`` has shape ``(T, P)``. A response is NaN if its source is determined by other sources and a
        function jumps, because its average is then undefined; no other quantity depends on it.
    errors : dict
        Standard errors, with the same shapes.
    runs : dict
        Arrays of the independent solutions, along the first axis; ``values`` are the means over them. Empty
        for a single solution.
    """

    method: str
    values: Mapping[MemberKey, Array]
    errors: Mapping[MemberKey, Array]
    runs: Mapping[MemberKey, Array] = field(default_factory=dict, kw_only=True)

    def value(self, name: str, layer: int | tuple[int, ...] | None = None) -> Array:
        """Return the values of ``name``, at ``layer`` if it is given.

        Parameters
        ----------
        name : str
            Name of the quantity.
        layer : int or tuple of int, optional
            Layer, or integers among its indices. It must be given if the quantity has any.

        Returns
        -------
        numpy.ndarray
            Indices first and then times; a scalar has its time first.

        Raises
        ------
        KeyError
            If there is no such quantity; the message lists all.
        """
        return self.values[place_of(self.values, name, layer)]

    def stderr(self, name: str, layer: int | tuple[int, ...] | None = None) -> Array:
        """Return the standard errors of ``name``, at ``layer`` if it is given.

        Parameters
        ----------
        name : str
            Name of the quantity.
        layer : int or tuple of int, optional
            Layer, or integers among its indices. It must be given if the quantity has any.

        Returns
        -------
        numpy.ndarray
            Standard errors with the shape of the values.

        Raises
        ------
        KeyError
            If there is no such quantity; the message lists all.
        """
        return self.errors[place_of(self.errors, name, layer)]


def place_of(
    arrays: Mapping[MemberKey, object], name: str, layer: int | tuple[int, ...] | None = None
) -> MemberKey:
    """Return the key (name, integer indices) of ``name``, at ``layer`` if it is given.

    It must be given if the quantity has integer indices. Raises KeyError with a list of all keys if the
    quantity is missing.
    """
    place = (name, () if layer is None else layer if isinstance(layer, tuple) else (layer,))
    if place not in arrays:
        there = ", ".join(n + (f" at {', '.join(map(str, k))}" if k else "") for n, k in arrays)
        raise KeyError(f"no {name}{'' if layer is None else f' at layer {layer}'}; there are: {there}")
    return place


def averaged(runs: Mapping[MemberKey, Array]) -> tuple[dict[MemberKey, Array], dict[MemberKey, Array]]:
    """Return means over runs and their standard errors, by key; runs are the first axis of each array.

    The standard errors are zero for a single run.
    """
    means = {k: v.mean(axis=0) for k, v in runs.items()}
    errors = {}
    for k, v in runs.items():  # squares are summed run by run, because an array as large as all runs is slow
        squares, change = np.zeros_like(means[k]), np.empty_like(means[k])
        for x in v:
            np.subtract(x, means[k], out=change)
            squares += np.square(change, out=change)
        errors[k] = np.sqrt(squares / (max(len(v) - 1, 1) * len(v)))
    return means, errors


def stacked(runs: Sequence[Mapping[MemberKey, Array]]) -> dict[MemberKey, Array]:
    """Return the arrays of all runs, by key, with the runs stacked along a new first axis."""
    return {k: np.stack([r[k] for r in runs]) for k in runs[0]}
