"""Writes what `tomllib` reads: values and two-level tables, for messages and the `spec` of results."""

from __future__ import annotations

import json
from collections.abc import Mapping


def value_to_toml(value: object) -> str:
    """The value as TOML would spell it; anything that TOML has no word for as its `repr`.

    >>> value_to_toml(True), value_to_toml(0.1), value_to_toml("x.npy"), value_to_toml([1, 2.5])
    ('true', '0.1', '"x.npy"', '[1, 2.5]')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(value_to_toml, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {value_to_toml(item)}" for key, item in value.items()) + "}"
    return repr(value)


def tables_to_toml(tables: Mapping[str, Mapping[str, object]]) -> str:
    """A TOML document of tables of plain values; keys whose value is None are left out.

    >>> print(tables_to_toml({"network": {"depth": 3, "width": None}}))
    [network]
    depth = 3
    <BLANKLINE>
    """
    blocks = []
    for name, table in tables.items():
        rows = [f"{key} = {value_to_toml(item)}\n" for key, item in table.items() if item is not None]
        blocks.append(f"[{name}]\n" + "".join(rows))
    return "\n".join(blocks)
