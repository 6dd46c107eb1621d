"""Base class of results that hold in a limit or under assumptions, and that state these conditions.

Limits in :mod:`derive.depth` and :mod:`derive.scale`, and the equilibrium of
:mod:`derive.reduce.equilibrium`, are such results. The commands that print a limit also print its conditions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from derive.show.summary import Summarised


class ConditionalResult(Summarised, ABC):
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
        """Return one sentence per condition, which begins with its origin, as "derived:" or "assumed:".

        Returns
        -------
        tuple of str
            The conditions.
        """
