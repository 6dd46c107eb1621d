"""The expansion of the linear theory as explicit functions of time."""

from derive.expansion.in_time.exponentials import Exponentials
from derive.expansion.in_time.modes import Mode, modes_of
from derive.expansion.in_time.series import InTime, in_time

__all__ = ["Exponentials", "InTime", "Mode", "in_time", "modes_of"]
