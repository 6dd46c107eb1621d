"""Printed right-hand sides held against derived ones: each pair is equal, and no longer so with a factor two.

Modules named ``identities_*`` list the pairs; `compared` makes a piece of evidence of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sympy import Basic, Expr, S, sympify

from tests.ledger.claims import claimed
from tests.ledger.evidence.base import Evidence, Finding, agrees, conclude, contradicts
from tests.ledger.printed_forms import same

Same = Callable[[Expr, Expr], bool]


def difference(printed: Expr, derived: Expr) -> bool:
    """Return whether both sides are equal after expansion."""
    return bool((sympify(printed) - derived).expand() == 0)


@dataclass(frozen=True)
class Pair:
    """One right-hand side of an entry as it is printed and as it is derived, in the same notation."""

    number: str
    name: str
    printed: Expr
    derived: Expr
    same: Same = same

    def holds(self, printed: Expr | None = None, derived: Expr | None = None) -> bool:
        """Return whether both sides are equal; another form may replace one of them."""
        one, other = (
            (self.printed if printed is None else printed),
            (self.derived if derived is None else derived),
        )
        key = (self.number, self.name, one, other)
        if key not in _KNOWN:
            _KNOWN[key] = self.same(one, other)
        return _KNOWN[key]


_KNOWN: dict[tuple[str, str, Expr, Expr], bool] = {}
"""Comparisons that were made, so that a run with one claim changed makes those of this claim only."""


def sides(source: str, number: str) -> Mapping[str, Expr]:
    """Return the printed right-hand sides of an entry, as SymPy expressions."""
    return {name: sympify(e) for name, e in claimed(source, number).items()}


def compared(name: str, summary: str, pairs: Iterable[Pair]) -> Evidence:
    """Return the evidence that all pairs are equal and that twice any right-hand side differs."""
    listed = list(pairs)
    findings: list[Finding] = []
    for number in dict.fromkeys(p.number for p in listed):
        own = [p for p in listed if p.number == number]
        wrong = [p.name for p in own if not p.holds()]
        what = f"({number}): right-hand sides of {len(own)} that are not the derived ones"
        findings.append(agrees(", ".join([what, *wrong]), len(wrong), 0.1))
    seen = sum(not p.holds(printed=twice(p.printed)) for p in listed)
    if not listed:
        return conclude(name, summary)
    all_seen = f"right-hand sides of {len(listed)} that differ once they are doubled"
    findings.append(contradicts(all_seen, seen, (len(listed) - 0.5) / 10))
    return conclude(name, summary, *findings)


def twice(e: Basic) -> Expr:
    """Return two times an expression, and one for zero."""
    return S.One if e == 0 else 2 * sympify(e)


__all__ = ["Pair", "compared", "difference", "sides", "twice"]
