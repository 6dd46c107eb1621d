"""Any program by brute force: every Gaussian matrix drawn at a finite size, every training step taken.

    simulate_program(program, width=256, steps=5, seeds=20, values={"eta": 0.1, ...})

The program is taken literally: its definitions are evaluated unit by unit, its weights follow the recursion
of their rule.  Nothing of the mean-field theory is used, so that it can judge the theory of any program.
"""

from .measure import Measured
from .run import Networks, Trainer, simulate_program

__all__ = ["Measured", "Networks", "Trainer", "simulate_program"]
