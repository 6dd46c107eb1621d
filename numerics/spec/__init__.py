"""The experiment file as data: its keys, their types, what each accepts, and what goes with what.

`sections` has the tables, `cross` what keys ask of each other, `refusals` the words of a refusal.  Everything
that the engine derives is accepted; what a numeric command cannot do yet is refused by `numerics.served`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from numerics.spec.cross import check_together
from numerics.spec.refusals import refusal
from numerics.spec.sections import SECTIONS, Data, Kind, Network, Solver, Spec, Training

__all__ = ["SECTIONS", "Data", "Kind", "Network", "Solver", "Spec", "Training", "parse"]


def parse(tables: Mapping[str, Any]) -> Spec:
    """The validated form of what `tomllib` read; raises `SpecError` naming the first key that will not do.

    >>> parse({"network": {"depth": "L"}}).symbolic
    True
    >>> parse({"network": {"depth": 0}})
    Traceback (most recent call last):
    numerics.errors.SpecError: network.depth = 0: is not what this key takes (accepted: the number of ...)
    >>> parse({"network": {"depth": 2, "bias": True}, "data": {"kind": "isotropic"}})
    Traceback (most recent call last):
    numerics.errors.SpecError: network.bias = true: belongs to data.kind = "fixed", but data.kind = ...
    """
    try:
        spec = Spec.model_validate(dict(tables))
    except ValidationError as error:
        raise refusal(error, tables) from None
    check_together(spec)
    return spec
