"""Escaping of reStructuredText markup in docstrings of this project, which are plain text.

Doctests, lists and code in double or single backticks, also across lines, stay as they are.
"""

from __future__ import annotations

import re
from typing import Any

CODE = re.compile(r"(:\w+:`[^`]+`|``[^`]+``|`[^`]+`)")
MARKUP = re.compile(r"([*|]|(?<=\w)_(?=\W|$))")


def process(_app: Any, _what: str, _name: str, _obj: object, _options: object, lines: list[str]) -> None:
    """Escape the lines of a docstring in place, with literal blocks and blank lines around doctests."""
    done: list[str] = []
    plain: list[str] = []  # lines of a paragraph or list, escaped together
    doctest = False

    def finish() -> None:
        done.extend(escaped("\n".join(plain)).split("\n") if plain else [])
        plain.clear()

    for line in lines:
        begins = line.lstrip().startswith(">>>")
        item = bool(plain) and any(x.startswith("- ") for x in plain)
        if doctest or begins or not line.strip() or (line.startswith(" ") and not item):
            finish()
        if begins and not doctest and done and done[-1].strip():
            done.append("")
        doctest = begins or (doctest and bool(line.strip()))
        if doctest or not line.strip():
            done.append(line)
        elif line.startswith(" ") and not item:
            done.append("| " + escaped(line.strip()))  # a line block keeps the lines
        else:
            if line.startswith("- ") and plain and not item:  # a list begins after a blank line
                finish()
            if done and done[-1].strip() and not plain:
                done.append("")
            plain.append(line)
    finish()
    lines[:] = _separated(done)


def escaped(text: str) -> str:
    """Return the text with reStructuredText markup escaped outside code."""
    return "".join(
        part if index % 2 else MARKUP.sub(r"\\\1", part) for index, part in enumerate(CODE.split(text))
    )


def _separated(lines: list[str]) -> list[str]:
    """Return the lines with a blank line before each line block."""
    found: list[str] = []
    for line in lines:
        if line.startswith("| ") and found and found[-1].strip() and not found[-1].startswith("| "):
            found.append("")
        found.append(line)
    return found


def setup(app: Any) -> dict[str, Any]:
    """Connect the escaping of docstrings to autodoc; called by Sphinx."""
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True}
