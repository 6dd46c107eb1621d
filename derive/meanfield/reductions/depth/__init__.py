"""Residual linear networks: responses across layers, and the limit of infinite depth."""

from derive.meanfield.reductions.depth.cross_layer import cross_layer
from derive.meanfield.reductions.depth.gamma import GammaC, gamma_c_recursion
from derive.meanfield.reductions.depth.layer_time import LayerTime, Scaling, layer_time
from derive.meanfield.reductions.depth.rescale import ends_apart, rescale
from derive.meanfield.reductions.depth.system import CrossLayer

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
