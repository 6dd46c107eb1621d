"""Limits: results that hold under conditions, which they state in sentences.

Results of :mod:`derive.depth`, :mod:`derive.scale` and :mod:`derive.reduce.equilibrium` are such limits.  The
commands that show a limit print its conditions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod


class ConditionalResult(ABC):
    """Base class of results that hold in a limit, or under an assumption.

    Examples
    --------
    >>> class Wide(ConditionalResult):
    ...     def conditions(self):
    ...         return ("assumed: the width goes to infinity",)
    >>> Wide().conditions()
    ('assumed: the width goes to infinity',)
    """

    @abstractmethod
    def conditions(self) -> tuple[str, ...]:
        """Return one sentence a condition; it says whether the condition is derived or assumed."""
