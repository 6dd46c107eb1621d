"""An entry of the ledger as Markdown: what is printed, what is true, how far apart they are, one command."""

from __future__ import annotations

import shlex

from derive.ledger import Entry, recorded


def entry_text(e: Entry) -> str:
    """The four of one entry, each under its own word; what the evidence found follows the distance."""
    parts = [f"**{e.source} ({e.number})**: {e.title}. *{e.verdict}*", f"**Printed**\n\n$$\n{e.display}\n$$"]
    parts.append(f"**True** \u2003 {plain(e.why)}")
    if e.copy:
        parts.append(f"**Perhaps our copy** \u2003 {plain(e.copy)}")
    if e.evidence:
        found = "\n".join(f"- {plain(recorded()[name].summary)}" for name in e.evidence if name in recorded())
        parts.append(f"**Apart** \u2003 {apart(e)}\n\n{found}")
        parts.append(f"**Again** \u2003 `{command(e)}`")
    return "\n\n".join(parts)


def glance(chosen: list[Entry]) -> str:
    """One row an entry: its number, what it is, and how far what is printed is from what is true."""
    rows = [f"| {e.number} | {plain(e.title)} | {e.verdict} | {apart(e)} |" for e in chosen]
    return "\n".join(
        ["| number | what it is | verdict | what is printed is off by |", "| --- | --- | --- | --- |", *rows]
    )


def apart(e: Entry) -> str:
    """The number that tells the printed form from the true one: its value, what it is, and what is allowed.

    Of the values beyond their tolerance, which belong to forms that are rejected, the one whose label names
    the entry, or else what is printed, or else the one most tolerances off.
    """
    rows = [x for name in e.evidence if name in recorded() for x in recorded()[name].numbers]
    off = [(label, a, b) for label, a, b in rows if a is not None and b is not None and abs(a) > b]
    if not off:
        return "nothing that is rejected"
    label, value, allowed = max(
        off, key=lambda x: (f"({e.number})" in x[0], "printed" in x[0], abs(x[1]) / max(x[2], 1e-300))
    )
    return f"**{abs(value):.2g}** ({plain(label)}; {allowed:.1g} is allowed)"


def command(e: Entry) -> str:
    """What measures it again, in a checkout."""
    return f"dmft ledger {e.source} {shlex.quote(e.number)} --check"


def plain(text: str) -> str:
    """Prose of the ledger as Markdown: it may hold formulas in plain characters."""
    for character in "\\`*_{}[]<>#|$^~":
        text = text.replace(character, f"\\{character}")
    return text
