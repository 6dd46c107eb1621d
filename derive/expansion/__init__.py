"""Powers of the feature-learning strength gamma0."""

from derive.expansion.integrals import error_equation, iterated_integral, time_integrals
from derive.expansion.linear import LinearExpansion, expand_linear
from derive.expansion.words import Memory

__all__ = [
    "LinearExpansion",
    "Memory",
    "error_equation",
    "expand_linear",
    "iterated_integral",
    "time_integrals",
]
