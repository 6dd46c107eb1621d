"""Finite networks by brute force: what the theory is held against.

    simulate(experiment, width=512, seeds=16)           means over networks and their standard errors
    simulate_program(program, width=256, steps=5, ...)  the same for any program, in its own names

A program is taken literally: every Gaussian matrix is drawn at a finite size, every training step taken, its
definitions evaluated unit by unit.  Nothing of the mean-field theory is used, and no code of the solvers, so
that it can judge the theory of any program.
"""

from .experiment import KernelTimes, simulate
from .measure import Measured
from .run import Networks, Trainer, simulate_program
from .values import inputs_from_kernel

__all__ = [
    "KernelTimes",
    "Measured",
    "Networks",
    "Trainer",
    "inputs_from_kernel",
    "simulate",
    "simulate_program",
]
