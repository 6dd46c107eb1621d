"""Limits of derived theories: first steps in closed form, what is left of them later."""

from derive.limits.early_lazy import LazySteps, lazy_steps
from derive.limits.early_memory import MemoryFree, memory_free
from derive.limits.few_steps import FewSteps, few_steps
from derive.limits.first_step import FirstStep, first_step, smallest_rate

__all__ = [
    "FewSteps",
    "FirstStep",
    "LazySteps",
    "MemoryFree",
    "few_steps",
    "first_step",
    "lazy_steps",
    "memory_free",
    "smallest_rate",
]
