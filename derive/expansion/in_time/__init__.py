"""The expansion of the linear theory as explicit functions of time."""

from derive.expansion.in_time.operators import Exponentials
from derive.expansion.in_time.series import InTime, Mode, in_time, modes_of

__all__ = ["Exponentials", "InTime", "Mode", "in_time", "modes_of"]
