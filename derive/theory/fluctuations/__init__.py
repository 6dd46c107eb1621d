"""Fluctuations of finite networks around the mean-field theory, to leading order in 1/N."""

from derive.theory.fluctuations.coefficients import ShiftSource
from derive.theory.fluctuations.data import Addend, ExponentTerm, FluctuatingParameter, addends
from derive.theory.fluctuations.expansion import Fluctuations, fluctuations
from derive.theory.fluctuations.hats import Hatted

__all__ = [
    "Addend",
    "ExponentTerm",
    "FluctuatingParameter",
    "Fluctuations",
    "Hatted",
    "ShiftSource",
    "addends",
    "fluctuations",
]
