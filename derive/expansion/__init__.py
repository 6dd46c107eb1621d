"""Powers of the feature-learning strength gamma0."""

from derive.expansion.integrals import error_equation, iterated_integral, time_integrals
from derive.expansion.linear import LinearExpansion, expand_linear
from derive.expansion.power_series import PowerSeries
from derive.expansion.rational import DegeneratePade
from derive.expansion.words import Memory

__all__ = [
    "DegeneratePade",
    "LinearExpansion",
    "Memory",
    "PowerSeries",
    "error_equation",
    "expand_linear",
    "iterated_integral",
    "time_integrals",
]
