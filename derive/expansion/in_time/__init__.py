"""Linear expansion as explicit functions of time, in the eigenmodes of the data.

`in_time` derives the coefficients from the operator words of a `LinearExpansion`, or from its closure at an
integer depth; both become exponential polynomials (:mod:`.operators`).
"""

from derive.expansion.in_time.operators import Exponentials
from derive.expansion.in_time.series import InTime, Mode, in_time, modes_of

__all__ = ["Exponentials", "InTime", "Mode", "in_time", "modes_of"]
