"""The paper's name, and where the evidence for its entries lives."""

from __future__ import annotations

SOURCE = "depth2023"
_MODULE = "depth"


def shown_by(*functions: str) -> tuple[str, ...]:
    """Full dotted names of evidence functions.

    >>> shown_by("recursions")
    ('depth:recursions',)
    """
    return tuple(f"{_MODULE}:{name}" for name in functions)


_CLASSES = "depth_classes"
_NETWORKS = "depth_class_networks"


def classes(*functions: str) -> tuple[str, ...]:
    """The same for the evidence on parametrisations: solved theories, and networks.

    >>> classes("exponents", "networks")[1]
    'depth_class_networks:networks'
    """
    here = ("networks", "bounded")
    return tuple(f"{_NETWORKS if name in here else _CLASSES}:{name}" for name in functions)
