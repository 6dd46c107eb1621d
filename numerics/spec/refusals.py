"""From the errors of pydantic to a `SpecError` that names key, value and what would do."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from numerics.errors import SpecError
from numerics.spec.sections import SECTIONS, Section, Spec


def refusal(error: ValidationError, tables: Mapping[str, Any]) -> SpecError:
    """The first error; a misspelt key before others, as it is the likeliest reason that one is missing."""
    details = sorted(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
    return _refusal(details[0], tables)


def _refusal(detail: ErrorDetails, tables: Mapping[str, Any]) -> SpecError:
    path = [str(part) for part in detail["loc"][:2]]
    key = ".".join(path)
    if detail["type"] == "extra_forbidden":
        return _unknown_key(path, detail["input"])
    accepted = _description(path)
    if detail["type"] == "missing":
        return SpecError(key, None, "is missing", accepted)
    problem = detail["msg"].replace("Input should be", "must be")
    if detail["type"] in ("model_type", "model_attributes_type"):
        problem = "must be a table"
    elif len(detail["loc"]) > 2:  # one branch of a union, or one entry: its message alone would mislead
        return SpecError(key, tables[path[0]][path[1]], "is not what this key takes", accepted)
    return SpecError(key, detail["input"], problem, accepted)


def _description(path: list[str]) -> str:
    model: type[Section] = Spec if len(path) == 1 else SECTIONS[path[0]]
    return model.model_fields[path[-1]].description or "leaving it out"


def _unknown_key(path: list[str], value: object) -> SpecError:
    """Names the key that may have been meant: the same one in another table, else the nearest in this one."""
    key = path[-1]
    elsewhere = [f"{name}.{key}" for name, model in SECTIONS.items() if key in model.model_fields]
    known = list(SECTIONS) if len(path) == 1 else list(SECTIONS[path[0]].model_fields)
    near = elsewhere or [".".join([*path[:-1], name]) for name in difflib.get_close_matches(key, known, n=1)]
    problem = "unknown key" + (f", perhaps {near[0]} was meant" if near else "")
    return SpecError(".".join(path), value, problem, ", ".join(known))
