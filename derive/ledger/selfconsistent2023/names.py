"""Where the evidence for this paper's entries lives."""

from __future__ import annotations

_PACKAGE = "numerics.verify.evidence"


def shown_by(*functions: str) -> tuple[str, ...]:
    """Full dotted names of evidence functions given as ``"module:function"``.

    >>> shown_by("linear:whitened_error")
    ('numerics.verify.evidence.linear:whitened_error',)
    """
    return tuple(f"{_PACKAGE}.{name}" for name in functions)
