"""Record of the numbered equations of the papers: printed form, verdict, reason and evidence.

The entries of each paper are read from one TOML file, and the results of the evidence from ``numbers.json``.
The package prints them as text, LaTeX and JSON; ``dmft ledger`` and the documentation use it.  Printed
formulas are claims: nothing else in ``derive`` reads them.  Their SymPy forms are in tests/ledger/claims, and
the numerical evidence is in tests/ledger/evidence.
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
"""Meaning of each verdict.  Findings are the verdicts "wrong" and "misprint".

Indices, labels, transposes and hats are read to the letter.  If the equation is still true, it agrees, and
the reason names the slip; an example is two averages that are both zero and are printed alike.  If it is
false, it is a misprint.  A single glyph that the same display contradicts, or text at a damaged place, may
be an error of our copy and is illegible.  Conditions that the paper states anywhere, such as a smooth
activation function, belong to each of its statements.
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
    r"""Verdict on one equation, table, algorithm, caption or statement of a paper.

    Parameters
    ----------
    source : str
        Name and year of the paper, such as ``"linear2025"``.
    number : str
        Number in the paper, such as ``"16"``, ``"F.2"``, ``"Table 1"``, or ``"F.12 text"`` for a statement
        that is printed next to an equation.
    title : str
        Subject in a few words.
    printed : str
        Printed form in LaTeX without dollar signs, misprints included.  ``\\`` separates the lines of a
        display.
    verdict : str
        One of the keys of `VERDICTS`.
    why : str
        Reason for the verdict.
    correct : str
        Correct form, if it differs from the printed one.  Wrong equations and misprints need it.
    derived : str
        Description of the result that the engine derives.
    claim : str
        Function in tests/ledger, as ``"module:function"``, that returns the printed right-hand sides in
        SymPy.
    copy : str
        Parts of the printed form that may be slips of our copy of the text, not of the paper.  They do not
        affect the verdict.
    cause : str
        Name of the `Cause` of a wrong equation or misprint.
    evidence : tuple of str
        Functions in tests/ledger, as ``"module:function"``, that repeat the numerical evidence.  The
        verdicts "wrong", "misprint", "conditional", "improved" and "illegible" need at least one.

    Raises
    ------
    ValueError
        If a field is malformed, is empty although the verdict needs it, or is a cause that the verdict must
        not have; the message names the field.

    Examples
    --------
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
        """Raise ValueError if a field is malformed or does not fit the verdict."""
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
        self._require(not lacks, "correct", f"a verdict {self.verdict!r} needs the correct form")
        needless = self.cause and self.verdict not in FINDINGS
        self._require(not needless, "cause", f"a verdict {self.verdict!r} must not have a cause")

    def _require(self, condition: object, name: str, problem: str) -> None:
        """Raise ValueError if ``condition`` is false.

        The message gives the field ``name``, its value and ``problem``.
        """
        if not condition:
            raise ValueError(f"{self.source} {self.number}: {name} = {getattr(self, name)!r}: {problem}")


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Slip or error of a paper, together with all equations that it affects.

    Parameters
    ----------
    source : str
        Name and year of the paper.
    name : str
        Name of the cause, which the entries repeat.
    verdict : str
        Verdict of all its entries: ``"wrong"`` or ``"misprint"``.
    headline : str
        Sentence that says first which statement of the paper remains true, then which one does not.
    entries : tuple of Entry
        Affected equations.
    """

    source: str
    name: str
    verdict: str
    headline: str
    entries: tuple[Entry, ...]


def display(latex: str) -> str:
    r"""Return LaTeX of an entry as one display.

    Parameters
    ----------
    latex : str
        Formula without dollar signs; ``\\`` separates lines.

    Returns
    -------
    str
        The formula. Several lines stand in a ``gathered`` environment, unless the formula has an environment
        of its own.

    Examples
    --------
    >>> display(r"a = b \\ c = d")
    '\\begin{gathered} a = b \\\\ c = d \\end{gathered}'
    """
    if r"\\" in latex and r"\begin{" not in latex:
        return rf"\begin{{gathered}} {latex} \end{{gathered}}"
    return latex


def _balanced(latex: str) -> bool:
    """Return whether every brace of a LaTeX formula has its partner; escaped braces do not count."""
    depth = 0
    for token in re.findall(r"\\.|[{}]", latex):
        depth += {"{": 1, "}": -1}.get(token, 0)
        if depth < 0:
            return False
    return depth == 0


@cache
def _paper(source: str) -> tuple[Entry, ...]:
    """Return the ledger's entries on a paper from its file, with line breaks in texts replaced by spaces."""
    rows = _file(source)["entry"]
    texts = [{k: " ".join(v.split()) for k, v in row.items() if isinstance(v, str)} for row in rows]
    evidence = [tuple(row.get("evidence", ())) for row in rows]
    return tuple(Entry(source=source, evidence=e, **text) for text, e in zip(texts, evidence, strict=True))


@cache
def _file(source: str) -> dict[str, Any]:
    """Return the contents of the TOML file of a paper; raise LookupError if there is no file for it."""
    if source not in PAPERS:
        raise LookupError(f"source = {source!r}: the ledger has no such paper; it has {', '.join(PAPERS)}")
    return tomllib.loads(Path(__file__).with_name(f"{source}.toml").read_text(encoding="utf-8"))


def citation(source: str) -> str:
    """Return authors, title, place and year of a paper of the ledger.

    Parameters
    ----------
    source : str
        Name and year of the paper; one of `PAPERS`.

    Returns
    -------
    str
        The citation in one line.

    Raises
    ------
    LookupError
        If the paper is not in the ledger.

    Examples
    --------
    >>> citation("depth2023")[-25:]
    ' (2023), arXiv:2310.02244'
    """
    return " ".join(_file(source)["cite"].split())


def entries(source: str | None = None) -> tuple[Entry, ...]:
    """Return the entries of one paper, or those of all papers, in the order of the files.

    Parameters
    ----------
    source : str, optional
        Name and year of the paper; all papers by default.

    Returns
    -------
    tuple of Entry
        The entries.

    Raises
    ------
    LookupError
        If the paper is not in the ledger.

    Examples
    --------
    >>> entries("selfconsistent2023")[0].number
    '1'
    """
    if source is None:
        return tuple(e for paper in PAPERS for e in _paper(paper))
    return _paper(source)


@cache
def causes(source: str | None = None) -> tuple[Cause, ...]:
    """Return the causes of errors and misprints of one paper, or those of all papers.

    Parameters
    ----------
    source : str, optional
        Name and year of the paper; all papers by default.

    Returns
    -------
    tuple of Cause
        For each paper, causes of wrong equations first, then those of misprints.

    Raises
    ------
    LookupError
        If the paper is not in the ledger.
    ValueError
        If a wrong equation or a misprint has no cause, if a cause has no entries, or if a cause and its
        entries have different verdicts.

    Notes
    -----
    Errors are counted by causes, because one cause may affect many equations.

    Examples
    --------
    >>> [(x.name, len(x.entries)) for x in causes("linear2025")][:2]
    [('the present left out of sums', 11), ('depth in the rich law', 4)]
    """
    if source is None:
        return tuple(x for paper in PAPERS for x in causes(paper))
    listed = []
    for row in _file(source).get("cause", []):
        affected = tuple(entry for entry in _paper(source) if entry.cause == row["name"])
        if {entry.verdict for entry in affected} != {row["verdict"]}:
            raise ValueError(
                f"{source}: cause = {row['name']!r}: must have entries, all with the verdict "
                f"{row['verdict']!r}"
            )
        headline = " ".join(row["headline"].split())
        listed.append(
            Cause(
                source=source, name=row["name"], verdict=row["verdict"], headline=headline, entries=affected
            )
        )
    names = {cause.name for cause in listed}
    for entry in _paper(source):
        if entry.verdict in FINDINGS and entry.cause not in names:
            raise ValueError(
                f"{source} {entry.number}: cause = {entry.cause!r}: an entry with the verdict "
                f"{entry.verdict!r} needs one of the listed causes"
            )
    return tuple(sorted(listed, key=lambda cause: FINDINGS.index(cause.verdict)))


def find(source: str, number: str) -> Entry:
    """Return the entry of one numbered equation.

    Parameters
    ----------
    source : str
        Name and year of the paper.
    number : str
        Number in the paper, such as ``"F.2"``.

    Returns
    -------
    Entry
        The entry.

    Raises
    ------
    LookupError
        If the paper or the number is not in the ledger.
    TypeError
        If the number is not a string.

    Examples
    --------
    >>> find("selfconsistent2023", "F.2").verdict
    'misprint'
    """
    if not isinstance(number, str):
        raise TypeError(f'number = {number!r}: must be a string, such as "{number}"')
    for entry in entries(source):
        if entry.number == number:
            return entry
    raise LookupError(f"number = {number!r}: the ledger has no such equation of {source}")


@dataclass(frozen=True)
class Recorded:
    """Result of one piece of evidence when it was last recorded.

    Parameters
    ----------
    summary : str
        Sentence with the measured numbers.
    numbers : tuple of (str, float, float)
        Label, value, and tolerance or standard error.  A value beyond its tolerance rejects a printed form.
    commit : str
        Commit on which the evidence ran.
    seconds : float
        Processor time of the run in seconds.
    """

    summary: str
    numbers: tuple[tuple[str, float, float], ...]
    commit: str
    seconds: float


@cache
def _numbers() -> dict[str, Any]:
    """Return the contents of ``numbers.json``, the recorded results of the evidence."""
    return dict(json.loads(Path(__file__).with_name("numbers.json").read_text(encoding="utf-8")))


def recorded_on() -> str:
    """Return the date on which the evidence was last recorded.

    Returns
    -------
    str
        The date, such as ``"2026-11-23"``.
    """
    return str(_numbers()["date"])


@cache
def recorded() -> dict[str, Recorded]:
    """Return the last recorded result of each piece of evidence.

    Returns
    -------
    dict of str to Recorded
        Results by the name of the evidence, ``"module:function"``.

    Examples
    --------
    >>> "networks" in recorded()["first_step:growth"].summary
    True
    """
    return {
        x["evidence"]: Recorded(x["summary"], tuple(map(tuple, x["numbers"])), x["commit"], x["seconds"])
        for x in _numbers()["evidence"]
    }


def distinguishing_number(entry: Entry) -> tuple[str, float, float] | None:
    """Return the measured number that distinguishes the printed form from the correct one.

    Parameters
    ----------
    entry : Entry
        The entry.

    Returns
    -------
    tuple of (str, float, float) or None
        Label, absolute value, and tolerance, from the recorded evidence of the entry.  None if no recorded
        value exceeds its tolerance.

    Notes
    -----
    Recorded values beyond their tolerance reject a printed form.  Among them, a label with the number of the
    entry in parentheses is preferred, then a label with the word "printed", then the largest ratio of value
    to tolerance.

    Examples
    --------
    >>> distinguishing_number(find("selfconsistent2023", "D.52"))
    ('Z with 2 pi minus 1', 5.283185307179502, 1e-10)
    """
    rows = [x for name in entry.evidence if name in recorded() for x in recorded()[name].numbers]
    rejecting = [(label, abs(value), allowed) for label, value, allowed in rows if abs(value) > allowed]
    number = f"({entry.number})"
    return max(
        rejecting,
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
    """Return entries as text, as a LaTeX table, or as JSON.

    Parameters
    ----------
    entries : iterable of Entry
        Entries, one row each.
    format : {"text", "latex", "json"}
        Format.  LaTeX needs the packages amsmath and longtable.
    full : bool
        Whether the text also shows the printed form, the correct form, the number that distinguishes them,
        the command that measures it again, what was derived, possible slips of our copy, and the recorded
        results.

    Returns
    -------
    str
        The text, the table or the JSON array.

    Raises
    ------
    ValueError
        If the format is not one of these.

    Examples
    --------
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
    """Return entries as text, with their reasons; ``full`` adds formulas and results as in :func:`render`."""
    widths = [max((len(getattr(e, k)) for e in entries), default=0) for k in ("source", "number", "verdict")]
    lines: list[str] = []
    for e in entries:
        names = zip((e.source, e.number, e.verdict), widths, strict=True)
        lines.append("  ".join([*(f"{x:{w}}" for x, w in names), e.title]))
        if not full:
            lines += [*_wrapped(e.why), *(x for name in e.evidence for x in _wrapped(f"shown by {name}"))]
            continue
        difference = distinguishing_number(e)
        summaries = {name: recorded()[name].summary for name in e.evidence if name in recorded()}
        parts = {
            "printed": e.printed,
            "correct": e.correct,
            "difference": difference
            and f"{difference[1]:.2g} ({difference[0]}; tolerance {difference[2]:.1g})",
            "measure again": e.evidence and f"dmft ledger {e.source} {shlex.quote(e.number)} --check",
            "why": e.why,
            "derived": e.derived,
            "possible slips of our copy": e.copy,
        }
        parts |= {f"shown by {name}": summaries.get(name, "not recorded") for name in e.evidence}
        lines += [line for word, text in parts.items() if text for line in _wrapped(f"{word}: {text}")]
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    """Return a text as indented lines of at most 110 characters."""
    return textwrap.wrap(
        text, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False
    )


def _latex(entries: list[Entry]) -> str:
    """Return entries as a LaTeX longtable with equation, verdict, printed form and reason."""
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
    "causes",
    "citation",
    "display",
    "distinguishing_number",
    "entries",
    "find",
    "recorded",
    "recorded_on",
    "render",
]
