"""Directives that read the ledger when the site is built, so that its pages cannot fall behind it.

{ledger-table} [verdicts]      one row an equation: number, title, verdict
{ledger-entries} [verdicts]    each in full: printed form, verdict, reason, evidence and how to run it
{ledger-counts}                how many entries have which verdict
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from derive.ledger import Entry, entries


class LedgerDirective(SphinxDirective):
    """Markdown made from the entries of the chosen verdicts."""

    optional_arguments = 20

    def run(self) -> list[nodes.Node]:
        chosen = [e for e in entries() if not self.arguments or e.verdict in self.arguments]
        return self.parse_text_to_nodes(self.text(chosen))

    def text(self, chosen: list[Entry]) -> str:
        raise NotImplementedError


class Table(LedgerDirective):
    """One row an equation."""

    def text(self, chosen: list[Entry]) -> str:
        rows = [f"| {e.source} | {e.number} | {e.title} | {e.verdict} |" for e in chosen]
        return "\n".join(["| paper | number | what it is | verdict |", "| --- | --- | --- | --- |", *rows])


class Entries(LedgerDirective):
    """Each entry in full."""

    def text(self, chosen: list[Entry]) -> str:
        return "\n\n".join(map(entry_text, chosen))


class Counts(LedgerDirective):
    """One sentence."""

    def text(self, chosen: list[Entry]) -> str:
        counts = Counter(e.verdict for e in chosen)
        verdicts = ", ".join(f"{n} {verdict}" for verdict, n in counts.most_common())
        return f"The ledger has {len(chosen)} entries: {verdicts}."


def entry_text(e: Entry) -> str:
    """Title, printed formula, reason, and the evidence with the command that runs it."""
    printed = e.printed
    if r"\\" in printed and r"\begin{" not in printed:
        printed = rf"\begin{{gathered}} {printed} \end{{gathered}}"
    parts = [f"**{e.source} ({e.number})**: {e.title}. *{e.verdict}*", f"$$\n{printed}\n$$", plain(e.why)]
    if e.evidence:
        shown = "\n".join(f"- `{name}`" for name in e.evidence)
        parts.append(f"Evidence, run again by `dmft ledger --check`:\n\n{shown}")
    return "\n\n".join(parts)


def plain(text: str) -> str:
    """Prose of the ledger as Markdown: it may hold formulas in plain characters."""
    for character in "\\`*_{}[]<>#|$^~":
        text = text.replace(character, f"\\{character}")
    return text


def setup(app: Any) -> dict[str, Any]:
    """Called by Sphinx."""
    for name, directive in (("table", Table), ("entries", Entries), ("counts", Counts)):
        app.add_directive(f"ledger-{name}", directive)
    return {"parallel_read_safe": True}
