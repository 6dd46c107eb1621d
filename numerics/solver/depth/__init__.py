"""Residual networks of infinite depth in layer time: limit, first correction, diversity, sampled paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from derive.lazy_imports import loader

if TYPE_CHECKING:
    from numerics.solver.depth.sampled import SampledDepth, solve_cells, solve_sampled_correction
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
    "SampledDepth",
    "layer_distances",
    "solve_cells",
    "solve_depth_correction",
    "solve_depth_limit",
    "solve_sampled_correction",
]

__getattr__ = loader(
    __name__,
    {
        "solve_depth_limit": "solve",
        "solve_depth_correction": "solve",
        "layer_distances": "solve",
        "DepthLimit": "solve",
        "SampledDepth": "sampled",
        "solve_cells": "sampled",
        "solve_sampled_correction": "sampled",
        "DepthCorrection": "solve",
        "LayerDistances": "solve",
    },
)
