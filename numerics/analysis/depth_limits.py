"""What `dmft limits depth` says of an experiment: its limit of infinite depth, and how far it is from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from derive.depth.infinite import Diversity, diversity
from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.solver import solve
from numerics.solver.depth import LAYERS, Progress, limit_of
from numerics.solver.depth_correction import correction_of, solve_depth_correction

Array = NDArray[np.float64]

REGIME = "branch beta0/sqrt(L): the noise of every layer stays, features of layers differ"
"""The limit that a file asks for; a branch of its own at each depth is the one that keeps beta0."""


@dataclass(frozen=True)
class DepthLimits:
    """The loss ``name`` over ``time``: in the limit, its first correction (the coefficient of ``L**order``)
    and, at a depth that is a number, that of the network itself (else None).

    ``limit_error`` and ``first_error`` estimate what the layer grid leaves.  ``diversity`` is that of the
    stream, ``field`` its correlation.
    """

    name: str
    time: Array
    beta0: float
    depth: int | None
    finite: Array | None
    limit: Array
    limit_error: float
    first: Array
    first_error: float
    order: float
    field: str
    diversity: Diversity

    @property
    def to_first_order(self) -> Array | None:
        """The network's loss as the limit and its first correction have it."""
        return None if self.depth is None else self.limit + self.depth**self.order * self.first

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        first = self.to_first_order
        return {
            "time": self.time.tolist(),
            "loss": self.name,
            "depth": self.depth,
            "branch_times_sqrt_depth": self.beta0,
            self.name: None if self.finite is None else self.finite.tolist(),
            "limit": self.limit.tolist(),
            "limit_error": self.limit_error,
            "coefficient": self.first.tolist(),
            "coefficient_error": self.first_error,
            "exponent": self.order,
            "to_first_order": None if first is None else first.tolist(),
            "diversity_exponent": float(self.diversity.exponent),
            "formula": f"<(x(tau) - x(tau_2))**2> / |tau - tau_2| -> {self.diversity.roughness}",
            "regime": REGIME,
            "status": "ok",
        }


def depth_limits(
    experiment: Experiment, *, layers: int = LAYERS, progress: Progress | None = None
) -> DepthLimits:
    """The limit of infinite depth of ``experiment`` at ``beta0``: the branch times the root of the depth, or
    ``network.branch`` itself if the depth is ``"L"``.

    Raises :class:`~numerics.errors.SpecError` for a network without a branch, and for what
    :func:`~numerics.solver.depth_correction.solve_depth_correction` refuses.

    >>> from numerics.experiment import Experiment
    >>> e = Experiment.from_dict({
    ...     "network": {"depth": 16, "branch": 0.25, "width_ratio": 2.0}, "data": {"kind": "isotropic"},
    ...     "training": {"learning_rate": 0.1, "steps": 1}})
    >>> found = depth_limits(e, layers=8)
    >>> found.beta0, bool(abs(found.finite[0] - found.to_first_order[0]) < 0.01), found.diversity.exponent
    (1.0, True, 1/2)
    """
    network = experiment.network
    if network.branch is None:
        raise SpecError(
            "network.branch",
            None,
            "is missing: only residual networks have a limit of infinite depth here",
            "a positive number, such as 1/sqrt(depth)",
        )
    depth = None if experiment.symbolic else experiment.depth
    beta0 = float(network.branch) * (1.0 if depth is None else float(np.sqrt(depth)))
    deep = experiment
    if depth is not None:
        deep = experiment.replace({"network.depth": "L", "network.branch": beta0})
    found = solve_depth_correction(deep, layers=layers, progress=progress)
    name = "test_loss" if experiment.spec.kind == "isotropic" else "train_loss"
    limit = correction_of(*limit_of(deep)).limit
    field = next(str(e.lhs.func) for e in limit.correlations if str(e.lhs.func) in ("C_h", "H"))
    finite = None if depth is None else np.asarray(solve(experiment)[name].values, dtype=float)
    return DepthLimits(
        name,
        np.asarray(experiment.times, dtype=float),
        beta0,
        depth,
        finite,
        found.limit[name],
        found.limit.errors[name],
        found.first[name],
        found.first.errors[name],
        found.order,
        field,
        diversity(limit, field),
    )
