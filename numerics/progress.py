"""The type of functions that are told how far a calculation is.

Solvers, expansions and checks call such a function after each step, and the commands print a line with it.
"""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""``progress(done, all)`` is called with the number of steps or replicas that are done, and of all."""
