"""Limits of derived theories: the first step in closed form."""

from derive.limits.first_step import FirstStep, first_step, smallest_rate

__all__ = ["FirstStep", "first_step", "smallest_rate"]
