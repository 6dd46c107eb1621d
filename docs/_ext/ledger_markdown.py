"""An entry of the ledger as Markdown: what is printed, what is true, how far apart they are, one command."""

from __future__ import annotations

import shlex

from derive.ledger import Entry, apart, display, recorded


def entry_text(e: Entry) -> str:
    """The four of one entry, each under its own word; why, and what the evidence found, follow."""
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


def glance(chosen: list[Entry]) -> str:
    """One row an entry: its number, what it is, and how far what is printed is from what is true."""
    rows = [f"| {e.number} | {plain(e.title)} | {e.verdict} | {distance(e)} |" for e in chosen]
    return "\n".join(
        ["| number | what it is | verdict | what is printed is off by |", "| --- | --- | --- | --- |", *rows]
    )


def pieces(chosen: list[Entry]) -> str:
    """One row a piece of evidence: entries that rest on it, its processor time, and the commit it ran on."""
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
    return "\n".join(["| piece | entries | seconds | commit |", "| --- | --- | --- | --- |", *rows])


def distance(e: Entry) -> str:
    """How far the printed form is from the true one, beside what would be allowed."""
    off = apart(e)
    if off is None:
        return "nothing that is rejected"
    label, value, allowed = off
    return f"**{value:.2g}** ({plain(label)}; {allowed:.1g} is allowed)"


def command(e: Entry) -> str:
    """What measures it again, in a checkout."""
    return f"dmft ledger {e.source} {shlex.quote(e.number)} --check"


def plain(text: str) -> str:
    """Prose of the ledger as Markdown: it may hold formulas in plain characters."""
    for character in "\\`*_{}[]<>#|$^~":
        text = text.replace(character, f"\\{character}")
    return text
