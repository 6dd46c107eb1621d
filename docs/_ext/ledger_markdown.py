"""An entry of the ledger as Markdown, with what its evidence found."""

from __future__ import annotations

import shlex

from derive.ledger import Entry, measured


def entry_text(e: Entry) -> str:
    """Title, printed formula, reason, what was measured, and the command that measures it again."""
    parts = [f"**{e.source} ({e.number})**: {e.title}. *{e.verdict}*", f"$$\n{e.display}\n$$", plain(e.why)]
    if e.copy:
        parts.append(f"Perhaps our copy: {plain(e.copy)}")
    if e.evidence:
        command = f"dmft ledger {e.source} {shlex.quote(e.number)} --check"
        shown = "\n".join(f"- {plain(measured().get(name, name))}" for name in e.evidence)
        parts.append(f"{shown}\n\n```bash\n{command}\n```")
    return "\n\n".join(parts)


def plain(text: str) -> str:
    """Prose of the ledger as Markdown: it may hold formulas in plain characters."""
    for character in "\\`*_{}[]<>#|$^~":
        text = text.replace(character, f"\\{character}")
    return text
