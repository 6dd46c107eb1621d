"""Sphinx directives that read the ledger when the site is built, so that its pages stay up to date.

{ledger-table} [paper] [verdicts]      table of equations: number, title, verdict
{ledger-glance} [paper] [verdicts]     table of findings: number, title, verdict, distance of the printed form
{ledger-entries} [paper] [verdicts]    full entries: printed and correct equation, numbers, command
{ledger-counts} [paper] [verdicts]     sentence: number of entries for each verdict
{ledger-causes} [paper] [verdicts]     table of causes of findings: headline, equations, distance
{ledger-findings} [paper] [verdicts]   full causes, with the entries of their equations
{ledger-causes-counted} [paper]        sentence: number of causes
{ledger-verdicts}                      table of verdicts and their meanings
{ledger-pieces} [paper] [verdicts]     table of evidence: entries, seconds, commit

The option `:numbers: G., D.5` chooses the entries whose number begins in one of these ways.

The measured numbers are in `derive/ledger/numbers.json`, which `python -m tests.ledger.record` writes.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from ledger_markdown import (
    DEVIATIONS,
    cause_text,
    causes_counted,
    causes_table,
    entry_text,
    glance,
    pieces,
    verdicts_table,
)
from sphinx.util.docutils import SphinxDirective

from derive.ledger import VERDICTS, Cause, Entry, causes, entries, recorded, recorded_on


class LedgerDirective(SphinxDirective):
    """Base class of directives that insert Markdown made from chosen entries of the ledger."""

    optional_arguments = 20
    option_spec: ClassVar = {"numbers": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """Return the nodes of the text about the entries that the arguments and options choose."""
        verdicts = set(self.arguments) & set(VERDICTS)
        papers = set(self.arguments) - verdicts
        if unknown := papers - {e.source for e in entries()}:
            raise self.error(f"neither a verdict nor a paper of the ledger: {', '.join(sorted(unknown))}")
        beginnings = tuple(x.strip() for x in self.options.get("numbers", "").split(","))
        chosen = [
            e
            for e in entries()
            if e.verdict in (verdicts or VERDICTS)
            and e.source in (papers or {e.source})
            and e.number.startswith(beginnings)
        ]
        if not chosen:
            raise self.error("no entry of the ledger is chosen")
        return self.parse_text_to_nodes(self.text(chosen))

    def text(self, chosen: list[Entry]) -> str:
        """Return the Markdown about the chosen entries; each directive defines it."""
        raise NotImplementedError


class Table(LedgerDirective):
    """Table of equations: paper, number, title, verdict."""

    def text(self, chosen: list[Entry]) -> str:
        """Return the table of the chosen entries."""
        rows = [f"| {e.source} | {e.number} | {e.title} | {e.verdict} |" for e in chosen]
        return "\n".join(["| paper | number | what it is | verdict |", "| --- | --- | --- | --- |", *rows])


class Glance(LedgerDirective):
    """Table of findings: number, title, verdict and distance from the correct equation."""

    def text(self, chosen: list[Entry]) -> str:
        """Return the table of findings of the chosen entries."""
        return glance(chosen)


class Entries(LedgerDirective):
    """Full text of each chosen entry."""

    def text(self, chosen: list[Entry]) -> str:
        """Return the full texts of the chosen entries."""
        return "\n\n".join(map(entry_text, chosen))


class Counts(LedgerDirective):
    """Sentence that counts the chosen entries by verdict."""

    def text(self, chosen: list[Entry]) -> str:
        """Return the sentence that counts the chosen entries."""
        counts = Counter(e.verdict for e in chosen)
        verdicts = ", ".join(f"{n} {verdict}" for verdict, n in counts.most_common())
        return f"{len(chosen)} entries: {verdicts}."


def causes_of(chosen: list[Entry]) -> list[Cause]:
    """Return the causes that touch one of the chosen entries, each with all of its entries."""
    return [c for c in causes() if any(e in chosen for e in c.entries)]


class Causes(LedgerDirective):
    """Table of causes: headline, equations and distance."""

    def text(self, chosen: list[Entry]) -> str:
        """Return the table of the causes of the chosen entries."""
        return f"{DEVIATIONS}\n\n{causes_table(causes_of(chosen))}"


class Findings(LedgerDirective):
    """Full text of each cause, with the entries of its equations."""

    def text(self, chosen: list[Entry]) -> str:
        """Return the full texts of the causes of the chosen entries."""
        return "\n\n".join(map(cause_text, causes_of(chosen)))


class CausesCounted(LedgerDirective):
    """Sentence that counts causes by verdict."""

    def text(self, chosen: list[Entry]) -> str:
        """Return the sentence that counts the causes of the chosen entries."""
        return causes_counted(causes_of(chosen))


class Verdicts(LedgerDirective):
    """Table of the verdicts and their meanings."""

    def text(self, chosen: list[Entry]) -> str:
        """Return the table of verdicts; it does not depend on the chosen entries."""
        return verdicts_table()


class Pieces(LedgerDirective):
    """Table of evidence: entries, processor time and commit of each piece."""

    def text(self, chosen: list[Entry]) -> str:
        """Return the total processor time and the table of evidence for the chosen entries."""
        spent = sum(x.seconds for x in recorded().values())
        said = f"{len(recorded())} pieces, all of which hold: {spent / 60:.0f} minutes of processor time."
        return f"{said} The last ran on {recorded_on()}.\n\n{pieces(chosen)}"


def setup(app: Any) -> dict[str, Any]:
    """Register the directives of the ledger; called by Sphinx."""
    for directive in (Table, Glance, Entries, Counts, Causes, Findings, Verdicts, Pieces):
        app.add_directive(f"ledger-{directive.__name__.lower()}", directive)
    app.add_directive("ledger-causes-counted", CausesCounted)
    return {"parallel_read_safe": True}
