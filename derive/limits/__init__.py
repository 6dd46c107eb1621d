"""Limits of derived theories: the first step in closed form, and the largest learning rate."""

from derive.limits.first_step import FirstStep, first_step, smallest_rate
from derive.limits.largest_rate import LargestRate, largest_rate
from derive.limits.largest_rate_aligned import Aligned, aligned
from derive.limits.largest_rate_balance import Balance, dominant_balance
from derive.limits.largest_rate_lazy import LazyKernel, lazy_kernel

__all__ = [
    "Aligned",
    "Balance",
    "FirstStep",
    "LargestRate",
    "LazyKernel",
    "aligned",
    "dominant_balance",
    "first_step",
    "largest_rate",
    "lazy_kernel",
    "smallest_rate",
]
