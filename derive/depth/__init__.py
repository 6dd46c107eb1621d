"""Residual networks of infinite depth: powers of the depth, layer-time equations and their corrections.

The limit in which the depth L goes to infinity is taken of the closed recursions over layers of a linear
theory (:func:`cross_layer`), or of the theory of a nonlinear residual network (:func:`layer_process`).
"""

from derive.depth.blocks import BlockLimit, block_limit, within_blocks, without_silent
from derive.depth.infinite import (
    Diversity,
    InfiniteDepth,
    LayerTime,
    Scaling,
    diversity,
    infinite_depth,
    layer_time,
)
from derive.depth.process import LayerProcess, layer_process
from derive.depth.rescale import ends_apart, gamma_c_recursion, rescale
from derive.linear.propagators import CrossLayer, cross_layer

__all__ = [
    "BlockLimit",
    "CrossLayer",
    "Diversity",
    "InfiniteDepth",
    "LayerProcess",
    "LayerTime",
    "Scaling",
    "block_limit",
    "cross_layer",
    "diversity",
    "ends_apart",
    "gamma_c_recursion",
    "infinite_depth",
    "layer_process",
    "layer_time",
    "rescale",
    "within_blocks",
    "without_silent",
]
