"""Text of the ledger's pages in Markdown, made from entries, causes and recorded evidence.

The directives of `ledger_pages` call these functions: tables of findings, the full text of an entry or cause,
and the distance between the printed equation and the correct one.
"""

from __future__ import annotations

import shlex

from derive.ledger import VERDICTS, Cause, Entry, display, distinguishing_number, recorded

DEVIATIONS = (
    "Brackets in the last column name the quantity that deviates, and the largest deviation that the "
    "evidence allows. A z or a score is in units of the largest value that chance allows: 1 is allowed."
)
"""Sentences above a table of causes, on its last column."""

PIECES = "| piece of evidence | entries that rest on it | processor time (s) | commit of the last run |"
"""Head of the table of evidence."""


def entry_text(e: Entry) -> str:
    """Return the full text of an entry: printed and correct equation, distance, command, reason, evidence."""
    parts = [f"**{e.source} ({e.number})**: {e.title}. *{e.verdict}*"]
    for word, latex in (("Printed", e.printed), ("True", e.correct)):
        if latex:
            parts.append(f"**{word}**\n\n$$\n{display(latex)}\n$$")
    if e.evidence:
        parts.append(f"**Apart** \u2003 {distance(e)}")
        parts.append(f"**Again** \u2003 `{command(e)}`")
    parts.append(f"**Why** \u2003 {plain(e.why)}")
    if e.copy:
        parts.append(f"**Perhaps our copy** \u2003 {plain(e.copy)}")
    parts.append("\n".join(f"- {plain(recorded()[x].summary)}" for x in e.evidence if x in recorded()))
    return "\n\n".join(filter(None, parts))


def cause_text(c: Cause) -> str:
    """Return the full text of a cause: its headline, then the entries of all equations that it touches."""
    numbers = ", ".join(f"({e.number})" for e in c.entries)
    head = f"**{plain(c.headline)}** Touches {plain(numbers)}."
    return "\n\n".join([head, *map(entry_text, c.entries)])


def causes_table(chosen: list[Cause]) -> str:
    """Return a table with one row a cause: headline, numbers of its equations, error of the first one."""
    rows = []
    for c in chosen:
        numbers = plain(", ".join(e.number for e in c.entries))
        rows.append(f"| {plain(c.headline)} | {numbers} | {distance(c.entries[0])} |")
    head = "| what is right, and what differs | equations | deviation of the first equation as printed |"
    return "\n".join([head, "| --- | --- | --- |", *rows])


def causes_counted(chosen: list[Cause]) -> str:
    """Return one sentence that counts causes and touched equations for each verdict.

    An error that is carried through a derivation counts once, as one cause.
    """
    said = []
    for verdict in VERDICTS:
        own = [c for c in chosen if c.verdict == verdict]
        if own:
            touched = sum(len(c.entries) for c in own)
            causes = "one cause" if len(own) == 1 else f"{len(own)} causes"
            said.append(f"{causes} with the verdict *{verdict}*, in {touched} equations")
    return f"{'; '.join(reversed(said))}."


def verdicts_table() -> str:
    """Return a table of the verdicts and their meanings."""
    rows = [f"| {verdict} | {plain(meaning)} |" for verdict, meaning in VERDICTS.items()]
    return "\n".join(["| verdict | means |", "| --- | --- |", *rows])


def glance(chosen: list[Entry]) -> str:
    """Return a table of entries: number, title, verdict and distance of the printed equation."""
    rows = [f"| {e.number} | {plain(e.title)} | {e.verdict} | {distance(e)} |" for e in chosen]
    return "\n".join(
        ["| number | what it is | verdict | deviation as printed |", "| --- | --- | --- | --- |", *rows]
    )


def pieces(chosen: list[Entry]) -> str:
    """Return a table of evidence: name, entries that rest on it, processor time, commit of its last run."""
    resting: dict[str, list[str]] = {}
    for e in chosen:
        for name in e.evidence:
            resting.setdefault(name, []).append(f"{e.source} {e.number}")
    rows = [
        f"| `{name}` | {plain(', '.join(resting[name]))} | {recorded()[name].seconds:g} | "
        f"{plain(recorded()[name].commit)} |"
        for name in sorted(resting)
        if name in recorded()
    ]
    return "\n".join([PIECES, "| --- | --- | --- | --- |", *rows])


def distance(e: Entry) -> str:
    """Return the largest rejected deviation of the printed equation, with its label and the allowed value."""
    difference = distinguishing_number(e)
    if difference is None:
        return "nothing that is rejected"
    label, value, allowed = difference
    return f"**{value:.2g}** ({plain(label)}; {allowed:.1g} is allowed)"


def command(e: Entry) -> str:
    """Return the command that measures the evidence of an entry again in a checkout."""
    return f"dmft ledger {e.source} {shlex.quote(e.number)} --check"


def plain(text: str) -> str:
    """Return prose of the ledger as Markdown, with characters that are markup escaped."""
    for character in "\\`*_{}[]<>#|$^~":
        text = text.replace(character, f"\\{character}")
    return text
