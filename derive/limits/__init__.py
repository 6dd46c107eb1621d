"""Limits of derived theories: early time, power laws, largest rates, parametrisations, infinite depth."""

from derive.limits.first_step import FirstStep, first_step, smallest_rate
from derive.limits.infinite_depth import FirstCorrection, first_correction
from derive.limits.infinite_depth_blocks import BlockLimit, block_limit, within_blocks, without_silent
from derive.limits.infinite_depth_diversity import Diversity, diversity

__all__ = [
    "BlockLimit",
    "Diversity",
    "FirstCorrection",
    "FirstStep",
    "block_limit",
    "diversity",
    "first_correction",
    "first_step",
    "smallest_rate",
    "within_blocks",
    "without_silent",
]
