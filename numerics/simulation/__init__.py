"""Simulations of finite networks, which theories are compared with.

    simulate(experiment, width=512, seeds=16)           means over networks and their standard errors
    simulate_program(program, width=256, steps=5, ...)  the same for any program, in its own names

A program is executed literally: every Gaussian matrix is drawn at a finite size, every training step is
taken, its definitions are evaluated unit by unit.  No equation of a mean-field theory and no code of the
solvers is used, so that simulations are an independent check of the theory of any program.
"""

from .correlations import Measured
from .experiment import KernelTimes, simulate
from .run import Networks, Trainer, simulate_program
from .symbol_values import inputs_from_kernel

__all__ = [
    "KernelTimes",
    "Measured",
    "Networks",
    "Trainer",
    "inputs_from_kernel",
    "simulate",
    "simulate_program",
]
