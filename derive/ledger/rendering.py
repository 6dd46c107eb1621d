"""The ledger as a table: plain text, LaTeX or JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable

from derive.ledger.entry import Entry

_WIDTH = 110
_INDENT = " " * 4
_ESCAPES = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "^": r"\^{}",
        "~": r"\~{}",
    }
)


def render(entries: Iterable[Entry], format: str = "text") -> str:
    """``entries`` as a table in ``format`` "text", "latex" (needs amsmath and longtable) or "json".

    Raises ``ValueError`` for another format.

    >>> from derive.ledger import find
    >>> print(render([find("selfconsistent2023", "5")]))
    selfconsistent2023  5  convention  mean-field scaling
        A choice of scaling; nothing to derive.
    """
    writers = {"text": _text, "latex": _latex, "json": _json}
    if format not in writers:
        raise ValueError(f"format = {format!r}: must be one of {', '.join(writers)}")
    return writers[format](list(entries))


def _text(entries: list[Entry]) -> str:
    sources = max((len(e.source) for e in entries), default=0)
    numbers = max((len(e.number) for e in entries), default=0)
    verdicts = max((len(e.verdict) for e in entries), default=0)
    lines: list[str] = []
    for e in entries:
        lines.append(f"{e.source:{sources}}  {e.number:{numbers}}  {e.verdict:{verdicts}}  {e.title}")
        lines += textwrap.wrap(e.why, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)
        lines += [f"{_INDENT}shown by {name}" for name in e.evidence]
    return "\n".join(lines)


def _latex(entries: list[Entry]) -> str:
    head = [
        r"\begin{longtable}{p{0.12\textwidth}p{0.1\textwidth}p{0.7\textwidth}}",
        r"equation & verdict & what is printed, and why the verdict \\ \hline",
    ]
    rows = []
    for e in entries:
        name = f"{e.source} ({e.number})".translate(_ESCAPES)
        body = rf"$\displaystyle {_display(e.printed)}$ \newline {e.why.translate(_ESCAPES)}"
        rows.append(rf"{name} & {e.verdict} & {body} \\ \hline")
    return "\n".join([*head, *rows, r"\end{longtable}"])


def _display(printed: str) -> str:
    if r"\\" in printed and r"\begin{" not in printed:
        return rf"\begin{{gathered}} {printed} \end{{gathered}}"
    return printed


def _json(entries: list[Entry]) -> str:
    rows = [
        {
            "source": e.source,
            "number": e.number,
            "title": e.title,
            "printed": e.printed,
            "claim": e.claim_name,
            "derived": e.derived,
            "verdict": e.verdict,
            "why": e.why,
            "evidence": list(e.evidence),
        }
        for e in entries
    ]
    return json.dumps(rows, indent=2)
