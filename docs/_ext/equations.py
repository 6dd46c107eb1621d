"""Display of LaTeX environments: each `align*` of a derived theory becomes a display under its title.

A derived theory prints one `align*` for each of its parts, with the title as a comment. Sphinx wraps every
display of several lines in `split`, in which `align` may not stand.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.util import logging

ENVIRONMENT = re.compile(
    r"\\begin\{((?:align|alignat|gather|equation|multline)\*?)\} *(?:% *(?P<title>[^\n]*))?.*?\\end\{\1\}",
    re.DOTALL,
)
"""An environment that sets display mode itself (unlike `aligned`), and the comment behind its beginning."""


def separate(_app: Any, doctree: nodes.document) -> None:
    """Replace each environment in a display of mathematics by its title and a display of its own."""
    for node in list(doctree.findall(nodes.math_block)):
        text = node.astext()
        if not ENVIRONMENT.match(text.strip()):
            continue
        if ENVIRONMENT.sub("", text).strip():
            logging.getLogger(__name__).warning(
                "text beside LaTeX environments: %s", text[:200], location=node
            )
        parts: list[nodes.Node] = []
        for match in ENVIRONMENT.finditer(text):
            if match["title"]:
                parts.append(nodes.paragraph("", match["title"], classes=["equations-title"]))
            display = node.copy()
            display += nodes.Text(match[0])
            display["no-wrap"] = display["nowrap"] = True  # the second is the name before Sphinx 8.2
            parts.append(display)
        node.replace_self(parts)


def setup(app: Any) -> dict[str, Any]:
    """Connect the separation of displays to the reading of pages; called by Sphinx."""
    app.connect("doctree-read", separate)
    return {"parallel_read_safe": True}
