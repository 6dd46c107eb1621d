"""Values of the quantities of a theory by name and layer, and their means and standard errors over replicas.

The reference solver, quadrature and sampled paths give their results as :class:`Evaluated`.
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
    """Order parameters, observables and scalars of a theory by name and layer, with standard errors.

    Axes are the indices of the symbol in order and then its times: ``Phi(ell, mu, alpha, t, s)`` has shape
    ``(P, P, T, T)`` at each layer.  A scalar has its time first: ``Delta(mu, t)`` has shape ``(T, P)``.
    A response is nan where its source is determined by others and a function jumps: no average tells them
    apart, and nothing depends on it.  ``method`` says how it was computed; the errors of ``linear`` are zero.
    ``runs`` are the solutions of which values are the mean, along the first axis, if there are several.
    """

    method: str
    values: Mapping[MemberKey, Array]
    errors: Mapping[MemberKey, Array]
    runs: Mapping[MemberKey, Array] = field(default_factory=dict, kw_only=True)

    def value(self, name: str, layer: int | tuple[int, ...] | None = None) -> Array:
        """The values of ``name`` (at ``layer``).  Raises KeyError, naming what there is."""
        return self.values[place_of(self.values, name, layer)]

    def stderr(self, name: str, layer: int | tuple[int, ...] | None = None) -> Array:
        """The standard errors of ``name`` (at ``layer``), same shape."""
        return self.errors[place_of(self.errors, name, layer)]


def place_of(
    found: Mapping[MemberKey, object], name: str, layer: int | tuple[int, ...] | None = None
) -> MemberKey:
    """The key of ``name`` (at ``layer``).  Raises KeyError, naming what there is."""
    place = (name, () if layer is None else layer if isinstance(layer, tuple) else (layer,))
    if place not in found:
        there = ", ".join(n + (f" at {', '.join(map(str, k))}" if k else "") for n, k in found)
        raise KeyError(f"no {name}{'' if layer is None else f' at layer {layer}'}; there are: {there}")
    return place


def averaged(runs: Mapping[MemberKey, Array]) -> tuple[dict[MemberKey, Array], dict[MemberKey, Array]]:
    """Means over the first axis, and their standard errors, zero of a single one."""
    means = {k: v.mean(axis=0) for k, v in runs.items()}
    errors = {}
    for k, v in runs.items():  # one after the other: a second array as large as all of them takes longest
        squares, change = np.zeros_like(means[k]), np.empty_like(means[k])
        for x in v:
            np.subtract(x, means[k], out=change)
            squares += np.square(change, out=change)
        errors[k] = np.sqrt(squares / (max(len(v) - 1, 1) * len(v)))
    return means, errors


def stacked(runs: Sequence[Mapping[MemberKey, Array]]) -> dict[MemberKey, Array]:
    """All runs, along the first axis."""
    return {k: np.stack([r[k] for r in runs]) for k in runs[0]}
