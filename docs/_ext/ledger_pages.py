"""Directives that read the ledger when the site is built, so that its pages cannot fall behind it.

{ledger-table} [paper] [verdicts]      one row an equation: number, title, verdict
{ledger-glance} [paper] [verdicts]     one row a finding: number, title, verdict, how far print is off
{ledger-entries} [paper] [verdicts]    each in full: what is printed, what is true, numbers, and the command
{ledger-counts} [paper] [verdicts]     how many entries have which verdict
{ledger-causes} [paper] [verdicts]     one row a cause of findings: what stands, equations, how far off
{ledger-findings} [paper] [verdicts]   each cause in full, with the entries of its equations
{ledger-causes-counted} [paper]        how many causes there are
{ledger-verdicts}                      the meaning of each verdict
{ledger-pieces} [paper] [verdicts]     one row a piece of evidence: entries, seconds, commit

The option `:numbers: G., D.5` chooses the entries whose number begins in one of these ways.

What was measured stands in `derive/ledger/numbers.json`, which `python -m tests.ledger.record` writes.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from ledger_markdown import (
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
    """Markdown made from the entries of the chosen papers and verdicts."""

    optional_arguments = 20
    option_spec: ClassVar = {"numbers": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
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
        raise NotImplementedError


class Table(LedgerDirective):
    """One row an equation."""

    def text(self, chosen: list[Entry]) -> str:
        rows = [f"| {e.source} | {e.number} | {e.title} | {e.verdict} |" for e in chosen]
        return "\n".join(["| paper | number | what it is | verdict |", "| --- | --- | --- | --- |", *rows])


class Glance(LedgerDirective):
    """One row a finding."""

    def text(self, chosen: list[Entry]) -> str:
        return glance(chosen)


class Entries(LedgerDirective):
    """Each entry in full."""

    def text(self, chosen: list[Entry]) -> str:
        return "\n\n".join(map(entry_text, chosen))


class Counts(LedgerDirective):
    """One sentence."""

    def text(self, chosen: list[Entry]) -> str:
        counts = Counter(e.verdict for e in chosen)
        verdicts = ", ".join(f"{n} {verdict}" for verdict, n in counts.most_common())
        return f"{len(chosen)} entries: {verdicts}."


def causes_of(chosen: list[Entry]) -> list[Cause]:
    """The causes of the chosen entries, each with all of its entries."""
    return [c for c in causes() if any(e in chosen for e in c.entries)]


class Causes(LedgerDirective):
    """One row a cause."""

    def text(self, chosen: list[Entry]) -> str:
        return causes_table(causes_of(chosen))


class Findings(LedgerDirective):
    """Each cause in full."""

    def text(self, chosen: list[Entry]) -> str:
        return "\n\n".join(map(cause_text, causes_of(chosen)))


class CausesCounted(LedgerDirective):
    """One sentence."""

    def text(self, chosen: list[Entry]) -> str:
        return causes_counted(causes_of(chosen))


class Verdicts(LedgerDirective):
    """One row a verdict."""

    def text(self, chosen: list[Entry]) -> str:
        return verdicts_table()


class Pieces(LedgerDirective):
    """One row a piece of evidence."""

    def text(self, chosen: list[Entry]) -> str:
        spent = sum(x.seconds for x in recorded().values())
        said = f"{len(recorded())} pieces, all of which hold: {spent / 60:.0f} minutes of processor time."
        return f"{said} The last ran on {recorded_on()}.\n\n{pieces(chosen)}"


def setup(app: Any) -> dict[str, Any]:
    """Called by Sphinx."""
    for directive in (Table, Glance, Entries, Counts, Causes, Findings, Verdicts, Pieces):
        app.add_directive(f"ledger-{directive.__name__.lower()}", directive)
    app.add_directive("ledger-causes-counted", CausesCounted)
    return {"parallel_read_safe": True}
