"""Numbers of equations, captions and statements in copies of the papers, which the ledger must contain.

    python -m tests.ledger.numbered linear2025=TEXT selfconsistent2023=TEXT depth2023=TEXT

It writes `numbered.json`. The texts themselves are not part of the repository. The number of an equation is
in brackets or in a tag; a copy with lost lines lacks some numbers, but rarely the last one of a section.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

FILE = Path(__file__).with_suffix(".json")
SHORT = {"Definition": "Def.", "Proposition": "Prop.", "Theorem": "Thm."}
NUMBER = r"(?:[A-Z]\.)?[1-9]\d{0,2}"
CAPTION = r"(Figure|Table|Algorithm) ([A-Z]?\d+)"
STATEMENT = r"(Definition|Claim|Lemma|Proposition|Theorem|Corollary|Remark) ((?:\d|[A-Z])\.\d+)"


def numbered(text: str) -> dict[str, list[str]]:
    r"""Return equations, captions of figures, tables and algorithms, and named statements, ordered by name.

    >>> found = numbered("$$x = 1, \\tag{D.3}$$ by (2).\nFigure 4. Curves.\nLemma C.1. As in figure 5.")
    >>> found["equations"], found["captions"], found["statements"]
    (['2', 'D.3'], ['Figure 4'], ['Lemma C.1'])
    """
    found = {"equations": re.findall(rf"\(({NUMBER})\)|\\tag\{{\(?({NUMBER})\)?\}}", text)}
    for kind, pattern in (("captions", CAPTION), ("statements", STATEMENT)):
        found[kind] = re.findall(rf"^\W*{pattern}\b", text, flags=re.M)
    return {
        kind: sorted({" ".join(SHORT.get(y, y) for y in x if y) for x in names}, key=_order)
        for kind, names in found.items()
    }


def _order(name: str) -> list[tuple[str, int]]:
    """Return the sort key of a number: letters by the alphabet and digits by size, D.3 before D.12."""
    return [(x, 0) if not x.isdigit() else ("", int(x)) for x in re.findall(r"\d+|\D+", name)]


def main(copies: list[str]) -> int:
    """Write the numbers of the papers' copies to `numbered.json`."""
    papers = dict(x.split("=", 1) for x in copies)
    found = {paper: numbered(Path(path).read_text(encoding="utf-8")) for paper, path in papers.items()}
    FILE.write_text(json.dumps(found) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
