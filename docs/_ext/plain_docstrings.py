"""Docstrings of this project are plain text: what reStructuredText would read as markup is escaped.

Doctests, and code in double or single backticks, stay what they are.
"""

from __future__ import annotations

import re
from typing import Any

CODE = re.compile(r"(:\w+:`[^`]+`|``[^`]+``|`[^`]+`)")
MARKUP = re.compile(r"([*|]|(?<=\w)_(?=\W|$))")


def process(_app: Any, _what: str, _name: str, _obj: object, _options: object, lines: list[str]) -> None:
    """Escapes in place; indented paragraphs become literal blocks; every doctest gets its blank lines."""
    done: list[str] = []
    doctest = False
    for line in lines:
        begins = line.lstrip().startswith(">>>")
        if begins and not doctest and done and done[-1].strip():
            done.append("")
        doctest = begins or (doctest and bool(line.strip()))
        if doctest:
            done.append(line)
        elif line.startswith(" ") and line.strip():
            done.append("| " + escaped(line.strip()))  # a line block keeps the lines
        else:
            if done and done[-1].startswith("| ") and line.strip():
                done.append("")
            done.append(escaped(line))
    lines[:] = _separated(done)


def escaped(line: str) -> str:
    """The line with markup escaped outside code."""
    return "".join(
        part if index % 2 else MARKUP.sub(r"\\\1", part) for index, part in enumerate(CODE.split(line))
    )


def _separated(lines: list[str]) -> list[str]:
    """A line block begins after a blank line."""
    found: list[str] = []
    for line in lines:
        if line.startswith("| ") and found and found[-1].strip() and not found[-1].startswith("| "):
            found.append("")
        found.append(line)
    return found


def setup(app: Any) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True}
