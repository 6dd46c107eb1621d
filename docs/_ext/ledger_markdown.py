"""An entry of the ledger as Markdown: what is printed, what is true, how far apart they are, one command."""

from __future__ import annotations

import shlex

from derive.ledger import VERDICTS, Cause, Entry, apart, display, recorded


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


def cause_text(c: Cause) -> str:
    """A cause in full: its headline, and each equation that it touches."""
    numbers = ", ".join(f"({e.number})" for e in c.entries)
    head = f"**{plain(c.headline)}** Touches {plain(numbers)}."
    return "\n\n".join([head, *map(entry_text, c.entries)])


def causes_table(chosen: list[Cause]) -> str:
    """One row a cause: its headline, the equations, and how far the first of them is off."""
    rows = []
    for c in chosen:
        numbers = plain(", ".join(e.number for e in c.entries))
        rows.append(f"| {plain(c.headline)} | {numbers} | {distance(c.entries[0])} |")
    head = "| what stands, and what differs | equations | what is printed is off by |"
    return "\n".join([head, "| --- | --- | --- |", *rows])


def causes_counted(chosen: list[Cause]) -> str:
    """One sentence: how many causes of each verdict, and how many equations they touch.

    It counts causes, because one slip that is carried through a derivation is one slip.
    """
    said = []
    for verdict in VERDICTS:
        own = [c for c in chosen if c.verdict == verdict]
        if own:
            touched = sum(len(c.entries) for c in own)
            causes = "one cause" if len(own) == 1 else f"{len(own)} causes"
            said.append(f"{causes} of what is {verdict}, in {touched} equations")
    return f"{'; '.join(reversed(said))}."


def verdicts_table() -> str:
    """One row a verdict: its meaning."""
    rows = [f"| {verdict} | {plain(meaning)} |" for verdict, meaning in VERDICTS.items()]
    return "\n".join(["| verdict | means |", "| --- | --- |", *rows])


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
