"""Displayed LaTeX that brings its own environment is left as it is.

Sphinx wraps every display of several lines in `split`, in which `align` may not stand.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes

ENVIRONMENTS = (r"\begin{align", r"\begin{gather}", r"\begin{equation")


def unwrap(_app: Any, doctree: nodes.document) -> None:
    """Marks such displays; `nowrap` is the name that Sphinx before 8.2 reads."""
    for node in doctree.findall(nodes.math_block):
        if any(name in node.astext() for name in ENVIRONMENTS):
            node["no-wrap"] = node["nowrap"] = True


def setup(app: Any) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("doctree-read", unwrap)
    return {"parallel_read_safe": True}
