"""Limits of the fluctuations of finite networks in closed form.

From the fluctuations of a program (`derive.fluctuations`): covariances at the start of training, lazy
networks, networks with one hidden layer at every width, orders of gamma0, ensembles, and the widths from
which order 1/N is sufficient. `numerics.fluctuations` evaluates them.
"""

from derive.scale.fluctuations.ascent import AscentCoefficients, ascent_coefficients
from derive.scale.fluctuations.ensembles import BestEnsemble, EnsembleLaw, best_ensemble, ensemble_law
from derive.scale.fluctuations.feature_learning import FeatureLearning, feature_learning
from derive.scale.fluctuations.gram import GramMatrices, GramRecursion, wishart_recursion
from derive.scale.fluctuations.initial import InitialCovariance, InitialMean, initial_covariance, initial_mean
from derive.scale.fluctuations.lazy import LazyFluctuations, lazy_fluctuations
from derive.scale.fluctuations.one_layer import OneLayerFlow, OneSample, one_layer_flow, one_sample
from derive.scale.fluctuations.validity import WidthValidity, width_validity

__all__ = [
    "AscentCoefficients",
    "BestEnsemble",
    "EnsembleLaw",
    "FeatureLearning",
    "GramMatrices",
    "GramRecursion",
    "InitialCovariance",
    "InitialMean",
    "LazyFluctuations",
    "OneLayerFlow",
    "OneSample",
    "WidthValidity",
    "ascent_coefficients",
    "best_ensemble",
    "ensemble_law",
    "feature_learning",
    "initial_covariance",
    "initial_mean",
    "lazy_fluctuations",
    "one_layer_flow",
    "one_sample",
    "width_validity",
    "wishart_recursion",
]
