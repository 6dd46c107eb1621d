"""One line of the ledger: what a paper prints, what we derive, and how we know."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module

from sympy import Basic

Claim = Callable[[], Mapping[str, Basic]]

VERDICTS = ("agrees", "misprint", "wrong", "definition", "convention")
"""agrees: correct as printed.  misprint: the surrounding equations use the right thing.
wrong: the statement is false and meant as printed.  definition, convention: nothing to derive."""

_NEED_EVIDENCE = ("misprint", "wrong")
_SOURCE = re.compile(r"[a-z]+\d{4}")
_NUMBER = re.compile(
    r"(\d+|[A-Z]\.\d+|(Table|Figure) [A-Z]?\d+|(Program|Algorithm) \d+|"
    r"(Def|Prop|Thm)\. [A-Z\d]\.\d+|(Lemma|Claim) [A-Z\d]\.\d+)( text)?"
)
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A numbered equation of a paper, a table, an algorithm, what the caption of a figure states, or a
    statement printed next to an equation (number ``"F.12 text"``).

    ``printed`` is LaTeX without dollar signs, slips included; lines of one display are separated by ``\\\\``.
    ``claim`` builds the printed right-hand sides as SymPy expressions, by name; it is a function without
    arguments or the dotted name ``"package.module:function"`` of one.  ``derived`` names what the engine
    derives in its place.  ``evidence`` names the functions of tests/ledger/evidence that
    re-run the numerical proof, as ``"module:function"``;
    verdicts "misprint" and "wrong" need at least one.

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
    derived: str = ""
    claim: Claim | str | None = None
    evidence: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._require(_SOURCE.fullmatch(self.source) is not None, "source", "must be a name and a year")
        self._require(
            _NUMBER.fullmatch(self.number) is not None,
            "number",
            "must be like 16, F.2, Table 1, Figure 3, Algorithm 1, Lemma 4.3 or F.12 text",
        )
        for name in ("title", "printed", "why"):
            self._require(bool(getattr(self, name).strip()), name, "must not be empty")
        self._require("$" not in self.printed, "printed", "must be LaTeX without dollar signs")
        self._require(_balanced(self.printed), "printed", "has unbalanced braces")
        self._require(self.verdict in VERDICTS, "verdict", f"must be one of {', '.join(VERDICTS)}")
        if isinstance(self.claim, str):
            self._require(_is_dotted(self.claim), "claim", "must be like package.module:function")
        else:
            self._require(self.claim is None or callable(self.claim), "claim", "must be callable")
        self._require(isinstance(self.evidence, tuple), "evidence", "must be a tuple")
        for name in self.evidence:
            self._require(_is_dotted(name), "evidence", "must hold names like module:function")
        self._require(
            bool(self.evidence) or self.verdict not in _NEED_EVIDENCE,
            "evidence",
            f"a verdict {self.verdict!r} needs evidence",
        )

    @property
    def claim_name(self) -> str | None:
        """Dotted name of the claim, or None."""
        if self.claim is None or isinstance(self.claim, str):
            return self.claim
        return f"{self.claim.__module__}:{getattr(self.claim, '__qualname__', repr(self.claim))}"

    def build(self) -> dict[str, Basic]:
        """The printed right-hand sides as SymPy expressions, by name; empty when there is no claim.

        Raises ``ImportError`` or ``AttributeError`` when a dotted name does not exist.
        """
        if self.claim is None:
            return {}
        claim: Claim
        if isinstance(self.claim, str):
            module, _, function = self.claim.partition(":")
            claim = getattr(import_module(module), function)
        else:
            claim = self.claim
        return dict(claim())

    def _require(self, condition: bool, name: str, problem: str) -> None:
        if not condition:
            raise ValueError(f"{self.source} {self.number}: {name} = {getattr(self, name)!r}: {problem}")


def _is_dotted(name: object) -> bool:
    return isinstance(name, str) and _DOTTED.fullmatch(name) is not None


def _balanced(latex: str) -> bool:
    depth = 0
    for token in re.findall(r"\\.|[{}]", latex):
        depth += {"{": 1, "}": -1}.get(token, 0)
        if depth < 0:
            return False
    return depth == 0
