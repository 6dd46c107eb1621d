"""Limits of the fluctuations of finite networks in closed form."""

from derive.scale.fluctuations.gram import GramMatrices, GramRecursion, wishart_recursion
from derive.scale.fluctuations.initial import InitialCovariance, InitialMean, initial_covariance, initial_mean
from derive.scale.fluctuations.lazy import LazyFluctuations, lazy_fluctuations
from derive.scale.fluctuations.one_layer import OneLayerFlow, OneSample, one_layer_flow, one_sample

__all__ = [
    "GramMatrices",
    "GramRecursion",
    "InitialCovariance",
    "InitialMean",
    "LazyFluctuations",
    "OneLayerFlow",
    "OneSample",
    "initial_covariance",
    "initial_mean",
    "lazy_fluctuations",
    "one_layer_flow",
    "one_sample",
    "wishart_recursion",
]
