"""Fluctuations of finite networks around the mean-field theory, to leading order in 1/N.

`fluctuations` derives, from a program, the order parameters of a finite network and the exponent of one unit;
the covariance and the shift of the mean at order 1/N follow from its derivatives. `numerics.fluctuations`
evaluates them, and `derive.scale.fluctuations` takes their limits.
"""

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
