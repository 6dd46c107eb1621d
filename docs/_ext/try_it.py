"""The page *Try it*: its parts are built and put into the site, and other pages link to it with a program.

{try-it} NAME      a link with a program of `docs/try_it/programs`
{try-it}           a link with the program in the body of the directive
{try-it-citation}  the entry of a bibliography that `CITATION.cff` gives, with the version

The configuration value `try_it` is False for a site without the parts of the page. They are kept in
`docs/_build/try_it` until what they are made from changes.
"""

from __future__ import annotations

import importlib.util
import os
import re
from base64 import urlsafe_b64encode
from html import escape
from pathlib import Path
from shutil import copytree, rmtree
from types import ModuleType
from typing import Any, ClassVar

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

DOCS = Path(__file__).parents[1]
PAGE = "try_it/index"
POLICY = '<meta http-equiv="Content-Security-Policy" content="connect-src \'self\'">'
"""What the page may be connected to: programs that run on it cannot send anything to another server."""
BUTTON = '<button type="button" id="try-cite-copy">Copy citation</button>'
FIELD = re.compile(r"^(title|version|message): \S")
"""A field of `CITATION.cff` of one line."""
LINK = re.compile(r"^(```|:::)\{try-it\}(?P<name>[^\n]*)\n(?P<body>.*?)^\1", re.DOTALL | re.MULTILINE)
"""A link to the page in the text of another page."""


def build_module() -> ModuleType:
    """Return `docs/try_it/build.py`."""
    spec = importlib.util.spec_from_file_location("build_try_it", DOCS / "try_it" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def linked_programs(page: str) -> list[str]:
    r"""Return the programs of the links of a page, as texts.

    >>> linked_programs("```{try-it}\nprogram = 1\n```\n")
    ['program = 1\n']
    """
    return [
        x["body"] or (DOCS / "try_it" / "programs" / f"{x['name'].strip()}.py").read_text()
        for x in LINK.finditer(page)
    ]


def fragment(text: str) -> str:
    """Return the fragment of an address that holds a program."""
    return "program=" + urlsafe_b64encode(text.encode()).decode().rstrip("=")


class TryIt(SphinxDirective):
    """A link that opens the page with a program."""

    optional_arguments = 1
    has_content = True
    option_spec: ClassVar = {}

    def run(self) -> list[nodes.Node]:
        """Return a paragraph with the link."""
        if bool(self.arguments) == bool(self.content):
            raise self.error("try-it takes the name of a program or a program in its body")
        if self.arguments and not (DOCS / "try_it" / "programs" / f"{self.arguments[0]}.py").is_file():
            raise self.error(f"docs/try_it/programs has no program {self.arguments[0]}")
        end = self.arguments[0] if self.arguments else fragment("\n".join(self.content) + "\n")
        folders = self.env.docname.count("/")
        link = nodes.reference("", "Derive it in the browser", refuri=f"{'../' * folders}{PAGE}.html#{end}")
        return [nodes.paragraph("", "", link, classes=["try-it"])]


class Citation(SphinxDirective):
    """The entry of a bibliography for this version, with a button that copies it."""

    def run(self) -> list[nodes.Node]:
        """Return the entry as raw HTML."""
        stated = dict(
            x.split(": ", 1)
            for x in (DOCS.parent / "CITATION.cff").read_text().splitlines()
            if FIELD.match(x)
        )
        rows = [
            f"@software{{{stated['title']},",
            f"  title = {{{stated['title']}}},",
            f"  version = {{{stated['version']}}},",
        ]
        rows += [f"  author = {{{{{self.config.author}}}}}", "}"]
        text = escape("\n".join(rows))
        html = f'<div class="try cite"><pre id="try-citation" tabindex="0">{text}</pre>{BUTTON}</div>'
        said = f"{stated['message']} This page derives with version {stated['version']}."
        return [nodes.paragraph("", said), nodes.raw("", html, format="html")]


def restrict(_app: Sphinx, name: str, _template: str, context: dict[str, Any], _doctree: Any) -> None:
    """Put the policy into the head of the page."""
    if name == PAGE:
        context["metatags"] = context.get("metatags", "") + POLICY


def put(app: Sphinx, failure: Exception | None) -> None:
    """Copy the parts of the page into the site, after building them if their sources have changed."""
    if failure or app.builder.format != "html" or not app.config.try_it:
        return
    builder = build_module()
    kept = DOCS / "_build" / "try_it"
    made = kept / builder.digest()
    if not made.is_dir():
        logging.getLogger(__name__).info("try_it: fetching and building the parts of the page ...")
        rmtree(kept, ignore_errors=True)
        unfinished = kept / f"unfinished-{os.getpid()}"
        builder.build(unfinished)
        unfinished.rename(made)
    rmtree(app.outdir / "try_it" / "assets", ignore_errors=True)
    copytree(made / "site", app.outdir / "try_it", dirs_exist_ok=True)
    logging.getLogger(__name__).info("try_it: %.1f MB", builder.size(made / "site") / 1e6)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive, the configuration value and the events."""
    app.add_config_value("try_it", True, "", types=(bool,))
    app.add_directive("try-it", TryIt)
    app.add_directive("try-it-citation", Citation)
    app.connect("html-page-context", restrict)
    app.connect("build-finished", put)
    return {"parallel_read_safe": True}
