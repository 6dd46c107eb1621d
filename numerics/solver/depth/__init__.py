"""Residual linear networks of infinite depth, in layer time: limit, first correction, diversity."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numerics.on_demand import loader

if TYPE_CHECKING:
    from numerics.solver.depth.solve import (
        DepthCorrection,
        DepthLimit,
        LayerDistances,
        layer_distances,
        solve_depth_correction,
        solve_depth_limit,
    )

__all__ = [
    "DepthCorrection",
    "DepthLimit",
    "LayerDistances",
    "layer_distances",
    "solve_depth_correction",
    "solve_depth_limit",
]

__getattr__ = loader(
    __name__,
    {
        "solve_depth_limit": "solve",
        "solve_depth_correction": "solve",
        "layer_distances": "solve",
        "DepthLimit": "solve",
        "DepthCorrection": "solve",
        "LayerDistances": "solve",
    },
)
