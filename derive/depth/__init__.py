"""Residual linear networks: responses across layers, and the limit of infinite depth."""

from derive.depth.gamma import GammaC, gamma_c_recursion
from derive.depth.layer_time import LayerTime, Scaling, layer_time
from derive.depth.rescale import ends_apart, rescale
from derive.linear.cross_layer import cross_layer
from derive.linear.system import CrossLayer

__all__ = [
    "CrossLayer",
    "GammaC",
    "LayerTime",
    "Scaling",
    "cross_layer",
    "ends_apart",
    "gamma_c_recursion",
    "layer_time",
    "rescale",
]
