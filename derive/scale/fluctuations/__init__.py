"""Limits of the fluctuations of finite networks in closed form."""

from derive.scale.fluctuations.gram import GramMatrices, GramRecursion, wishart_recursion
from derive.scale.fluctuations.initial import InitialCovariance, initial_covariance
from derive.scale.fluctuations.one_layer import OneLayerFlow, OneSample, one_layer_flow, one_sample

__all__ = [
    "GramMatrices",
    "GramRecursion",
    "InitialCovariance",
    "OneLayerFlow",
    "OneSample",
    "initial_covariance",
    "one_layer_flow",
    "one_sample",
    "wishart_recursion",
]
