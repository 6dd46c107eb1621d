"""The paper's name, and where the evidence for its entries lives."""

from __future__ import annotations

SOURCE = "depth2023"
_MODULE = "numerics.verify.evidence.depth"


def shown_by(*functions: str) -> tuple[str, ...]:
    """Full dotted names of evidence functions.

    >>> shown_by("recursions")
    ('numerics.verify.evidence.depth:recursions',)
    """
    return tuple(f"{_MODULE}:{name}" for name in functions)
