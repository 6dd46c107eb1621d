"""Numerical evidence behind the ledger: ``check`` runs the pieces that its entries name.

The first line of each module names its subject. `network`, `nonlinear_network` and `isotropic_network` hold
identities of one finite network; `path_integral`, `isotropic_average`, `saddle_point` and `isotropic_action`
those of the path integral; ``identities_*`` compare printed right-hand sides with derived ones as
expressions; `edited` changes a derived theory to the printed one, so that networks can distinguish both;
`captions` tests statements of captions of figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module

from derive.ledger import Entry
from numerics.threads import one_thread
from tests.ledger.evidence.base import Evidence

Number = tuple[str, float | None, float | None]


@dataclass(frozen=True)
class Checked:
    """One piece of evidence for one entry of the ledger.

    ``numbers`` are label, value and tolerance or standard error; None stands for a value that is not finite.
    """

    source: str
    number: str
    verdict: str
    evidence: str
    passed: bool
    summary: str
    numbers: tuple[Number, ...] = ()

    def __str__(self) -> str:
        return f"{self.source} {self.number} ({self.verdict}), {self.evidence}: {self.summary}"


@one_thread
def check(
    entries: Iterable[Entry], progress: Callable[[int, int], None] | None = None
) -> tuple[Checked, ...]:
    """Run the evidence of ``entries``, each distinct piece once, and say for each entry whether it holds.

    A name that does not exist and a computation that fails count as failed evidence and do not stop the
    others. ``progress(done, total)`` is called after each piece.

    >>> check([])
    ()
    """
    rows = list(entries)
    names = list(dict.fromkeys(name for e in rows for name in e.evidence))
    found: dict[str, Evidence] = {}
    for done, name in enumerate(names, start=1):
        found[name] = run(name)
        if progress is not None:
            progress(done, len(names))
    return tuple(_checked(e, name, found[name]) for e in rows for name in e.evidence)


def run(name: str) -> Evidence:
    """Return one piece of evidence by its name ``"module:function"`` in this folder; a failure is a result.

    >>> run("network:nothing").passed
    False
    """
    module, _, function = name.partition(":")
    try:
        value = getattr(import_module(f"{__name__}.{module}"), function)()
    except Exception as error:  # whatever went wrong, the others must run
        return Evidence(name, False, f"NOT SHOWN: {type(error).__name__}: {error}", ())
    if not isinstance(value, Evidence):
        return Evidence(name, False, f"NOT SHOWN: {name} returns {type(value).__name__}, no evidence", ())
    return value


def _checked(entry: Entry, name: str, evidence: Evidence) -> Checked:
    numbers = tuple((label, _finite(a), _finite(b)) for label, a, b in evidence.numbers)
    return Checked(
        entry.source, entry.number, entry.verdict, name, evidence.passed, evidence.summary, numbers
    )


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None


__all__ = ["Checked", "Evidence", "check", "run"]
