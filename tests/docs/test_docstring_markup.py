"""Markup of all docstrings, read as reStructuredText; it needs the packages of `.[dev]`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from inspect import cleandoc
from io import StringIO
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
FAULTS = re.compile(
    r"Inline (literal|interpreted text).*start-string without|list ends without a blank line"
    r"|Unknown target name|Undefined substitution|Unexpected indentation"
)
"""Messages about text; others concern roles and sections, which only Sphinx with numpydoc reads."""


def docstrings(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the docstring of a module and of everything in it that has one."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text:
                yield f"{path.relative_to(ROOT)}:{getattr(node, 'name', 'module')}", cleandoc(text)


def faults(text: str) -> list[str]:
    """Return the messages of docutils that match FAULTS, about a docstring with the sections of numpydoc."""
    from docutils.core import publish_doctree
    from numpydoc.docscrape_sphinx import SphinxDocString

    messages = StringIO()
    settings = {"report_level": 2, "halt_level": 5, "warning_stream": messages}
    publish_doctree(str(SphinxDocString(text)), settings_overrides=settings)
    return [x for x in messages.getvalue().splitlines() if FAULTS.search(x)]


def test_a_literal_without_an_end_is_seen() -> None:
    assert faults("Return ``x``s of a unit.")
    assert faults("Return the layer time tau_ of a unit, and its norm |h|.")
    assert not faults("Return ``x`` of a unit.")


@pytest.mark.parametrize("package", ["derive", "numerics"])
def test_docstrings_are_valid_markup(package: str) -> None:
    paths = sorted((ROOT / package).rglob("*.py"))
    found = {name: text for path in paths for name, text in docstrings(path)}
    wrong = {name: messages for name, text in found.items() if (messages := faults(text))}
    assert len(found) > 1000
    assert wrong == {}
