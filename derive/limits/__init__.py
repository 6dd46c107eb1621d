"""Limits of derived theories: early time, power laws, largest rates, parametrisations, infinite depth."""

from derive.limits.early_lazy import LazySteps, lazy_steps
from derive.limits.early_memory import MemoryFree, memory_free
from derive.limits.few_steps import FewSteps, few_steps
from derive.limits.first_step import FirstStep, first_step, smallest_rate
from derive.limits.infinite_depth import FirstCorrection, first_correction
from derive.limits.infinite_depth_blocks import BlockLimit, block_limit, within_blocks, without_silent
from derive.limits.infinite_depth_diversity import Diversity, diversity
from derive.limits.largest_rate import LargestRate, largest_rate
from derive.limits.largest_rate_aligned import Aligned, aligned
from derive.limits.largest_rate_balance import Balance, dominant_balance
from derive.limits.largest_rate_lazy import LazyKernel, lazy_kernel
from derive.limits.parametrization import parametrized
from derive.limits.power_counting import count_powers
from derive.limits.width_parametrization import width_constraints

__all__ = [
    "Aligned",
    "Balance",
    "BlockLimit",
    "Diversity",
    "FewSteps",
    "FirstCorrection",
    "FirstStep",
    "LargestRate",
    "LazyKernel",
    "LazySteps",
    "MemoryFree",
    "aligned",
    "block_limit",
    "count_powers",
    "diversity",
    "dominant_balance",
    "few_steps",
    "first_correction",
    "first_step",
    "largest_rate",
    "lazy_kernel",
    "lazy_steps",
    "memory_free",
    "parametrized",
    "smallest_rate",
    "width_constraints",
    "within_blocks",
    "without_silent",
]
