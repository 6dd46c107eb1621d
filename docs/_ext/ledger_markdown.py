"""An entry of the ledger as Markdown, with what its evidence found."""

from __future__ import annotations

import json
import shlex
from functools import cache
from pathlib import Path

from derive.ledger import Entry

NUMBERS = Path(__file__).parents[1] / "ledger" / "numbers.json"


def entry_text(e: Entry) -> str:
    """Title, printed formula, reason, what was measured, and the command that measures it again."""
    printed = e.printed
    if r"\\" in printed and r"\begin{" not in printed:
        printed = rf"\begin{{gathered}} {printed} \end{{gathered}}"
    parts = [f"**{e.source} ({e.number})**: {e.title}. *{e.verdict}*", f"$$\n{printed}\n$$", plain(e.why)]
    if e.evidence:
        command = f"dmft ledger {e.source} {shlex.quote(e.number)} --check"
        shown = "\n".join(f"- {plain(measured().get(name, name))}" for name in e.evidence)
        parts.append(f"{shown}\n\n```bash\n{command}\n```")
    return "\n\n".join(parts)


@cache
def measured() -> dict[str, str]:
    """What each piece of evidence found when it was last recorded: one sentence with its numbers."""
    return {x["evidence"]: x["summary"] for x in json.loads(NUMBERS.read_text())["evidence"]}


def plain(text: str) -> str:
    """Prose of the ledger as Markdown: it may hold formulas in plain characters."""
    for character in "\\`*_{}[]<>#|$^~":
        text = text.replace(character, f"\\{character}")
    return text
