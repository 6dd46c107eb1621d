"""Derivations that many tests begin with, each carried out once in a process."""

from functools import lru_cache

from derive import scale, theory

mean_field = lru_cache(maxsize=256)(theory.mean_field)
few_steps = lru_cache(maxsize=64)(scale.few_steps)
first_step = lru_cache(maxsize=64)(scale.first_step)
largest_rate = lru_cache(maxsize=64)(scale.largest_rate)
dominant_balance = lru_cache(maxsize=64)(scale.dominant_balance)
lazy_kernel = lru_cache(maxsize=64)(scale.lazy_kernel)
lazy_steps = lru_cache(maxsize=64)(scale.lazy_steps)
memory_free = lru_cache(maxsize=64)(scale.memory_free)
