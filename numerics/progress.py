"""Type of progress functions, which solvers, expansions and checks call after each step or replica.

The commands print a progress bar with such a function.
"""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""``progress(done, total)`` is called with the number of finished steps or replicas, and their total."""
