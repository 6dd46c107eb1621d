"""Every numbered equation of the papers: what is printed, the verdict, why, and what shows it.

One data file for each paper, and ``numbers.json`` with what the evidence found when it was last recorded.
Printed formulas are claims: nothing else in ``derive`` reads them.  As SymPy expressions they stand in
tests/ledger/claims, and what is measured about them in tests/ledger/evidence.
"""

from __future__ import annotations

import json
import re
import shlex
import textwrap
import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

PAPERS = ("selfconsistent2023", "linear2025", "depth2023")

VERDICTS = {
    "agrees": "true to the letter, or up to a notation that can be read in one way only",
    "misprint": "false to the letter, by a slip that neighbouring equations do not share",
    "wrong": "false in every reading that the text allows, and meant: other statements rest on it",
    "conditional": "right in a reading, or under a condition, that the text allows; the reason names it",
    "improved": "right as a bound; something better is derived",
    "illegible": "false to the letter in our copy, by a slip that may be the copy's",
    "definition": "nothing to derive",
    "convention": "nothing to derive",
}
"""The meaning of each verdict.  The findings are those that are wrong and the misprints.

One standard holds for indices, labels, transposes and hats: the equation is read to the letter.  If it is
still true, as where two averages that are both zero are printed alike, it agrees, and the reason names the
slip.  If it is false, it is a misprint; but a single glyph that the same display contradicts, and what stands
in a damaged place, may be the copy's and is illegible.  Conditions that the paper states anywhere, such as a
smooth activation function, belong to each of its statements.
"""

FINDINGS = ("wrong", "misprint")
_NEED_EVIDENCE = (*FINDINGS, "conditional", "improved", "illegible")
_SOURCE = re.compile(r"[a-z]+\d{4}")
_NUMBER = re.compile(
    r"(\d+|[A-Z]\.\d+|(Table|Figure) [A-Z]?\d+|(Program|Algorithm) \d+|"
    r"(Def|Prop|Thm)\. [A-Z\d]\.\d+|(Lemma|Claim|Remark) [A-Z\d]\.\d+)( text)?"
)
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A numbered equation of a paper, a table, an algorithm, what the caption of a figure states, or a
    statement printed next to an equation (number ``"F.12 text"``).

    ``printed`` is LaTeX without dollar signs, slips included; lines of one display are separated by ``\\\\``.
    ``correct`` is what is true in its place, as far as the two differ; findings have it.  ``derived`` names
    what the engine derives.  ``claim`` names the printed right-hand sides as
    SymPy expressions and ``evidence`` the functions that re-run the numerical proof, as ``"module:function"``
    in tests/ledger; a verdict that contradicts needs at least one.  ``copy`` says what else in the text may
    be a slip of our copy alone; it counts as nothing.  ``cause`` names the :class:`Cause` of a finding.

    Raises ``ValueError``, naming the field, for anything malformed.

    >>> Entry(source="paper2020", number="3", title="energy", printed="E = m c^2", verdict="convention",
    ...       why="Units.").number
    '3'
    >>> Entry(source="paper2020", number="3", title="energy", printed="E = m c^3", verdict="wrong",
    ...       why="Units.")
    Traceback (most recent call last):
    ...
    ValueError: paper2020 3: evidence = (): a verdict 'wrong' needs evidence
    """

    source: str
    number: str
    title: str
    printed: str
    verdict: str
    why: str
    correct: str = ""
    derived: str = ""
    claim: str = ""
    copy: str = ""
    cause: str = ""
    evidence: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._require(_SOURCE.fullmatch(self.source), "source", "must be a name and a year")
        like = "must be like 16, F.2, Table 1, Figure 3, Algorithm 1, Lemma 4.3 or F.12 text"
        self._require(_NUMBER.fullmatch(self.number), "number", like)
        for name in ("title", "printed", "why"):
            self._require(getattr(self, name).strip(), name, "must not be empty")
        for name in ("printed", "correct"):
            self._require("$" not in getattr(self, name), name, "must be LaTeX without dollar signs")
            self._require(_balanced(getattr(self, name)), name, "has unbalanced braces")
        self._require(self.verdict in VERDICTS, "verdict", f"must be one of {', '.join(VERDICTS)}")
        self._require(isinstance(self.evidence, tuple), "evidence", "must be a tuple")
        for key, names in (("claim", (self.claim,) if self.claim else ()), ("evidence", self.evidence)):
            for name in names:
                self._require(_NAME.fullmatch(name), key, "must be like module:function")
        needs = self.verdict in _NEED_EVIDENCE and not self.evidence
        self._require(not needs, "evidence", f"a verdict {self.verdict!r} needs evidence")
        lacks = self.verdict in FINDINGS and not self.correct.strip()
        self._require(not lacks, "correct", f"a verdict {self.verdict!r} needs what is true instead")
        needless = self.cause and self.verdict not in FINDINGS
        self._require(not needless, "cause", f"a verdict {self.verdict!r} is no finding and has no cause")

    def _require(self, condition: object, name: str, problem: str) -> None:
        if not condition:
            raise ValueError(f"{self.source} {self.number}: {name} = {getattr(self, name)!r}: {problem}")


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One slip or error of a paper, and the equations that it touches.

    ``headline`` says first what of the paper stands, and then what differs; ``verdict`` is that of all its
    ``entries``.
    """

    source: str
    name: str
    verdict: str
    headline: str
    entries: tuple[Entry, ...]


def display(latex: str) -> str:
    """A form of an entry as one display.

    >>> display(r"a = b \\\\ c = d")
    '\\\\begin{gathered} a = b \\\\\\\\ c = d \\\\end{gathered}'
    """
    if r"\\" in latex and r"\begin{" not in latex:
        return rf"\begin{{gathered}} {latex} \end{{gathered}}"
    return latex


def _balanced(latex: str) -> bool:
    depth = 0
    for token in re.findall(r"\\.|[{}]", latex):
        depth += {"{": 1, "}": -1}.get(token, 0)
        if depth < 0:
            return False
    return depth == 0


@cache
def _paper(source: str) -> tuple[Entry, ...]:
    """The entries in the file of a paper; line breaks within texts mean nothing."""
    rows = _file(source)["entry"]
    texts = [{k: " ".join(v.split()) for k, v in row.items() if isinstance(v, str)} for row in rows]
    shown = [tuple(row.get("evidence", ())) for row in rows]
    return tuple(Entry(source=source, evidence=e, **x) for x, e in zip(texts, shown, strict=True))


@cache
def _file(source: str) -> dict[str, Any]:
    if source not in PAPERS:
        raise LookupError(f"source = {source!r}: no such paper in the ledger (there: {', '.join(PAPERS)})")
    return tomllib.loads(Path(__file__).with_name(f"{source}.toml").read_text(encoding="utf-8"))


def citation(source: str) -> str:
    """Authors, title, place and year of a paper of the ledger.

    Raises ``LookupError`` for a paper that is not in it.

    >>> citation("depth2023")[-25:]
    ' (2023), arXiv:2310.02244'
    """
    return " ".join(_file(source)["cite"].split())


def entries(source: str | None = None) -> tuple[Entry, ...]:
    """The entries of one paper in the paper's order, or those of all papers.

    Raises ``LookupError`` for a paper that is not in the ledger.

    >>> entries("selfconsistent2023")[0].number
    '1'
    """
    if source is None:
        return tuple(e for paper in PAPERS for e in _paper(paper))
    return _paper(source)


@cache
def causes(source: str | None = None) -> tuple[Cause, ...]:
    """The causes of the findings of one paper, those that are wrong first, or of all papers.

    One cause may touch many equations, so that causes and not equations are counted.

    Raises ``LookupError`` for a paper that is not in the ledger, and ``ValueError`` for a finding without a
    cause, and for a cause that differs from its entries.

    >>> [(x.name, len(x.entries)) for x in causes("linear2025")][:2]
    [('the present left out of sums', 11), ('depth in the rich law', 4)]
    """
    if source is None:
        return tuple(x for paper in PAPERS for x in causes(paper))
    found = []
    for row in _file(source).get("cause", []):
        own = tuple(e for e in _paper(source) if e.cause == row["name"])
        if {e.verdict for e in own} != {row["verdict"]}:
            raise ValueError(f"{source}: cause = {row['name']!r}: its entries must be {row['verdict']!r}")
        headline = " ".join(row["headline"].split())
        found.append(
            Cause(source=source, name=row["name"], verdict=row["verdict"], headline=headline, entries=own)
        )
    named = {x.name for x in found}
    for e in _paper(source):
        if e.verdict in FINDINGS and e.cause not in named:
            raise ValueError(f"{source} {e.number}: cause = {e.cause!r}: a finding needs a cause there is")
    return tuple(sorted(found, key=lambda x: FINDINGS.index(x.verdict)))


def find(source: str, number: str) -> Entry:
    """The entry of one numbered equation.

    Raises ``LookupError`` when the paper or the number is not in the ledger.

    >>> find("selfconsistent2023", "F.2").verdict
    'misprint'
    """
    for entry in entries(source):
        if entry.number == number:
            return entry
    raise LookupError(f"number = {number!r}: no such equation of {source} in the ledger")


@dataclass(frozen=True)
class Recorded:
    """What a piece of evidence found when it was last recorded.

    ``summary`` is one sentence with its numbers; ``numbers`` are label, value and tolerance (or standard
    error).  A value beyond its tolerance belongs to a form that is rejected.  It ran on ``commit`` and took
    ``seconds`` of processor time.
    """

    summary: str
    numbers: tuple[tuple[str, float, float], ...]
    commit: str
    seconds: float


@cache
def _numbers() -> dict[str, Any]:
    return dict(json.loads(Path(__file__).with_name("numbers.json").read_text(encoding="utf-8")))


def recorded_on() -> str:
    """The day on which evidence was last recorded, as 2026-11-23."""
    return str(_numbers()["date"])


@cache
def recorded() -> dict[str, Recorded]:
    """What each piece of evidence found when it was last recorded, by its name.

    >>> "networks" in recorded()["first_step:growth"].summary
    True
    """
    return {
        x["evidence"]: Recorded(x["summary"], tuple(map(tuple, x["numbers"])), x["commit"], x["seconds"])
        for x in _numbers()["evidence"]
    }


def apart(entry: Entry) -> tuple[str, float, float] | None:
    """The number that tells the printed form from the true one: what it is, its value, and what is allowed.

    Of the recorded values beyond their tolerance, which belong to forms that are rejected, the one whose
    label names the entry, or else what is printed, or else the one most tolerances off.

    >>> apart(find("selfconsistent2023", "D.52"))
    ('Z with 2 pi minus 1', 5.283185307179502, 1e-10)
    """
    rows = [x for name in entry.evidence if name in recorded() for x in recorded()[name].numbers]
    off = [(label, abs(value), allowed) for label, value, allowed in rows if abs(value) > allowed]
    number = f"({entry.number})"
    return max(
        off,
        key=lambda x: (number in x[0], "printed" in x[0], x[1] / max(x[2], 1e-300)),
        default=None,
    )


# -- as a table ----------------------------------------------------------------------------------------------

_WIDTH = 110
_INDENT = " " * 4
_ESCAPES = str.maketrans(
    {"\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\~{}"} | {x: rf"\{x}" for x in "&%$#_{}"}
)


def render(entries: Iterable[Entry], format: str = "text", full: bool = False) -> str:
    """``entries`` as a table in ``format`` "text", "latex" (needs amsmath and longtable) or "json".

    ``full`` text shows what is printed, what is true, how far apart they are, the command that measures it
    again, why, and what was found when it was last recorded.
    Raises ``ValueError`` for another format.

    >>> print(render([find("selfconsistent2023", "5")]))
    selfconsistent2023  5  convention  mean-field scaling
        A choice of scaling; nothing to derive.
    """
    rows = list(entries)
    if format == "text":
        return _text(rows, full)
    if format == "latex":
        return _latex(rows)
    if format == "json":
        return json.dumps([asdict(e) for e in rows], indent=2)
    raise ValueError(f"format = {format!r}: must be one of text, latex, json")


def _text(entries: list[Entry], full: bool) -> str:
    widths = [max((len(getattr(e, k)) for e in entries), default=0) for k in ("source", "number", "verdict")]
    lines: list[str] = []
    for e in entries:
        names = zip((e.source, e.number, e.verdict), widths, strict=True)
        lines.append("  ".join([*(f"{x:{w}}" for x, w in names), e.title]))
        if not full:
            lines += [*_wrapped(e.why), *(x for name in e.evidence for x in _wrapped(f"shown by {name}"))]
            continue
        off = apart(e)
        found = {name: recorded()[name].summary for name in e.evidence if name in recorded()}
        parts = {
            "printed": e.printed,
            "true": e.correct,
            "apart": off and f"{off[1]:.2g} ({off[0]}; {off[2]:.1g} is allowed)",
            "again": e.evidence and f"dmft ledger {e.source} {shlex.quote(e.number)} --check",
            "why": e.why,
            "derived": e.derived,
            "perhaps our copy": e.copy,
        }
        parts |= {f"shown by {name}": found.get(name, "not recorded") for name in e.evidence}
        lines += [line for word, text in parts.items() if text for line in _wrapped(f"{word}: {text}")]
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False
    )


def _latex(entries: list[Entry]) -> str:
    head = [
        r"\begin{longtable}{p{0.12\textwidth}p{0.1\textwidth}p{0.7\textwidth}}",
        r"equation & verdict & what is printed, and why the verdict \\ \hline",
    ]
    rows = []
    for e in entries:
        name = f"{e.source} ({e.number})".translate(_ESCAPES)
        body = rf"$\displaystyle {display(e.printed)}$ \newline {e.why.translate(_ESCAPES)}"
        rows.append(rf"{name} & {e.verdict} & {body} \\ \hline")
    return "\n".join([*head, *rows, r"\end{longtable}"])


__all__ = [
    "FINDINGS",
    "PAPERS",
    "VERDICTS",
    "Cause",
    "Entry",
    "Recorded",
    "apart",
    "causes",
    "citation",
    "display",
    "entries",
    "find",
    "recorded",
    "recorded_on",
    "render",
]
