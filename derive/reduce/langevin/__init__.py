"""Networks whose weights decay and meet noise: Langevin dynamics (selfconsistent2023 K.1, K.2)."""

from derive.reduce.langevin.output import OutputRate, exponential, output_rate
from derive.reduce.langevin.stationary import Stationary, stationary
from derive.reduce.langevin.two_sources import TwoSources, two_sources

__all__ = [
    "OutputRate",
    "Stationary",
    "TwoSources",
    "exponential",
    "output_rate",
    "stationary",
    "two_sources",
]
