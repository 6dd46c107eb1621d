"""Networks whose weights decay and meet noise: Langevin dynamics (selfconsistent2023 K.1, K.2)."""

from derive.meanfield.reductions.langevin.output import OutputRate, exponential, output_rate
from derive.meanfield.reductions.langevin.stationary import Stationary, stationary
from derive.meanfield.reductions.langevin.two_sources import TwoSources, two_sources

__all__ = [
    "OutputRate",
    "Stationary",
    "TwoSources",
    "exponential",
    "output_rate",
    "stationary",
    "two_sources",
]
