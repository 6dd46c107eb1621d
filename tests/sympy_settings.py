"""Settings of SymPy for tests, doctests and random programs: the same results in four fifths of the time.

Import this module before SymPy; pytest does so for doctests with ``-p tests.sympy_settings``.
"""

from __future__ import annotations

import gc
import os
import random
import sys
from typing import Any

os.environ.setdefault("SYMPY_CACHE_SIZE", "30000")  # of a thousand results most are gone when they are wanted


def keep_keys_of_functions() -> None:
    """Compute sorting key and hash of a function such as ``f`` once, and not at each comparison.

    This takes a tenth off the time of a derivation, and a third off a call ``f(t)``, which hashes ``f``.
    """
    from sympy.core.function import Function, UndefinedFunction

    find = Function.class_key.__func__

    def class_key(cls: type) -> tuple[int, int, str]:
        if "_class_key" not in vars(cls):
            cls._class_key = find(cls)  # type: ignore[attr-defined]
        key: tuple[int, int, str] = vars(cls)["_class_key"]
        return key

    Function.class_key = classmethod(class_key)
    compute, compare = UndefinedFunction.__hash__, UndefinedFunction.__eq__

    def __hash__(cls: Any) -> int:
        if "_class_hash" not in cls.__dict__:
            cls._class_hash = compute(cls)
        known: int = cls.__dict__["_class_hash"]
        return known

    def __eq__(cls: Any, other: object) -> bool:
        return cls is other or compare(cls, other)

    UndefinedFunction.__hash__, UndefinedFunction.__eq__ = __hash__, __eq__


def shuffle_assumptions_by_sorting() -> None:
    """Draw the order in which SymPy tests assumptions by sorting, which takes half the time."""
    module = sys.modules["sympy.core.assumptions"]  # SymPy has a function of this name
    draw = random.Random().random  # not the shared generator, which Hypothesis watches
    module.shuffle = lambda facts: facts.sort(key=lambda _: draw())  # type: ignore[attr-defined]


keep_keys_of_functions()
shuffle_assumptions_by_sorting()

gc.set_threshold(500_000, 20, 50)
"""Thousands of derived theories stay alive, and searching them for circles took a tenth of the time."""
