"""Limits of derived theories: the first step in closed form, parametrisations of depth."""

from derive.limits.first_step import FirstStep, first_step, smallest_rate

__all__ = ["FirstStep", "first_step", "smallest_rate"]
