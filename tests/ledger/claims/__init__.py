"""The printed right-hand sides as SymPy expressions, one folder for each paper."""

from __future__ import annotations

from importlib import import_module

from sympy import Basic

from derive.ledger import Entry, find


def build(entry: Entry) -> dict[str, Basic]:
    """The printed right-hand sides of an entry by name; empty when it has no claim.

    Raises ``ImportError`` or ``AttributeError`` when the claim does not exist.
    """
    if not entry.claim:
        return {}
    module, _, function = entry.claim.partition(":")
    return dict(getattr(import_module(f"{__name__}.{module}"), function)())


def claimed(source: str, number: str) -> dict[str, Basic]:
    """The printed right-hand sides of a numbered equation by name.

    >>> sorted(claimed("linear2025", "105"))
    ['rate']
    """
    return build(find(source, number))
