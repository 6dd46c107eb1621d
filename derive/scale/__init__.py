"""Limits of derived theories: early times, power laws, largest learning rates, and parametrizations.

Most functions take a theory or a program and return a result in closed form with the conditions under which
it holds. `numerics.analysis` evaluates such results with numbers, and `dmft limits` prints them.
"""

from derive.scale.early import MemoryFree, memory_free
from derive.scale.first_steps import FewSteps, FirstStep, few_steps, first_step, smallest_rate
from derive.scale.largest_rate import Aligned, Balance, LargestRate, aligned, dominant_balance, largest_rate
from derive.scale.lazy import LazyKernel, LazySteps, lazy_kernel, lazy_steps
from derive.scale.optimizer_powers import OptimizerPowers, WeightPowers, optimizer_powers, scaling_faults
from derive.scale.power_counting import count_powers
from derive.scale.rule_degrees import RuleDegrees, rule_degrees
from derive.scale.width import WidthClass, parametrized, width_class, width_constraints

__all__ = [
    "Aligned",
    "Balance",
    "FewSteps",
    "FirstStep",
    "LargestRate",
    "LazyKernel",
    "LazySteps",
    "MemoryFree",
    "OptimizerPowers",
    "RuleDegrees",
    "WeightPowers",
    "WidthClass",
    "aligned",
    "count_powers",
    "dominant_balance",
    "few_steps",
    "first_step",
    "largest_rate",
    "lazy_kernel",
    "lazy_steps",
    "memory_free",
    "optimizer_powers",
    "parametrized",
    "rule_degrees",
    "scaling_faults",
    "smallest_rate",
    "width_class",
    "width_constraints",
]
