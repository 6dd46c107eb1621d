"""Printed right-hand sides of the papers' equations as SymPy expressions, one folder for each paper."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from sympy import Basic

from derive.ledger import Entry, find


def build(entry: Entry) -> dict[str, Basic]:
    """Return the printed right-hand sides of an entry by name; empty if the entry has no claim.

    Raises ``ImportError`` or ``AttributeError`` when the claim does not exist.
    """
    if not entry.claim:
        return {}
    module, _, function = entry.claim.partition(":")
    return dict(getattr(import_module(f"{__name__}.{module}"), function)())


def claimed(source: str, number: str) -> dict[str, Basic]:
    """Return the printed right-hand sides of a numbered equation by name.

    >>> sorted(claimed("linear2025", "105"))
    ['rate']
    """
    return build(find(source, number))


def corrected(source: str, number: str) -> dict[str, Basic]:
    """Return the correct right-hand sides for the printed ones that are wrong, by name.

    Raises ``LookupError`` for an entry whose claim has no correction.

    >>> corrected("selfconsistent2023", "K.5")
    {'field': chi_eps(ell + 1, mu, t)}
    """
    return correction(find(source, number))()


def correction(entry: Entry) -> Callable[[], dict[str, Basic]]:
    """Return the function of the claim's name in ``corrections`` of its paper, which `corrected` calls."""
    name = entry.claim.partition(":")[2]
    module = import_module(f"{__name__}.{entry.source}.corrections")
    if not name or not hasattr(module, name):
        raise LookupError(f"{entry.source} {entry.number}: no correction of its claim")
    found: Callable[[], dict[str, Basic]] = getattr(module, name)
    return found
