"""Mutation test of the ledger: claims with one term changed, for which the evidence must fail.

A mutant of a claim has one term of one of its right-hand sides times two, or one layer, sample, position or
time in one term larger by one. `judge` runs the evidence of an entry with a mutant in place of the claim.
`judge_correction` does so with mutants of the correction of a misprint, and with the correction in place of
the print. ``python -m tests.ledger.mutations PAPER NUMBER ..`` prints the mutants of entries that their
evidence does not detect.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from types import CodeType, FrameType
from typing import Any

from sympy import (
    Add,
    Basic,
    Integral,
    Inverse,
    MatAdd,
    MatMul,
    MatrixExpr,
    Mul,
    Pow,
    S,
    Sum,
    Symbol,
    Transpose,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.ledger import Entry, entries, find, recorded
from numerics.threads import one_thread
from tests.ledger import claims, evidence
from tests.ledger.claims import correction

Claim = dict[str, Basic]

_INSIDE = (Mul, Pow, Sum, Integral, MatMul, Inverse, Transpose)
"""Expressions whose parts are looked into for further terms."""
_INDICES = {
    "layer": ("ell", "L"),
    "sample": ("mu", "alpha", "beta", "nu"),
    "position": ("p", "p_", "p__", "c", "c_", "k", "i"),
    "time": ("t", "s", "s_", "t_1", "s_1", "s_2"),
}


ORDERS = {
    ("selfconsistent2023", "16 text"): ("gamma0", "L"),
    ("linear2025", "83"): ("L",),
    ("linear2025", "84"): ("L",),
}
"""Entries that state orders of magnitude, and the symbols whose powers are stated."""


@dataclass(frozen=True)
class Mutant:
    """One right-hand side of a claim with one change, which ``change`` describes."""

    name: str
    change: str
    expression: Basic


def mutants(claim: Claim) -> Iterator[Mutant]:
    """Yield the claim's right-hand sides with one term changed.

    >>> x, y = Symbol("x"), Symbol("y")
    >>> [m.expression for m in mutants({"z": x + y})]
    [2*x + y, x + 2*y]
    """
    for name, side in claim.items():
        for change, expression in _changed(sympify(side)):
            yield Mutant(name, change, expression)


def of_order(claim: Claim, symbols: Sequence[str]) -> Iterator[Mutant]:
    """Yield the right-hand sides of a claim about orders of magnitude times each of these symbols."""
    for name, side in claim.items():
        for x in sorted(side.free_symbols, key=str):
            if str(x) in symbols:
                yield Mutant(name, f"times {x}", side * x)


def mutants_of(entry: Entry) -> tuple[Mutant, ...]:
    """Return the mutants of the claim of an entry.

    A factor of two does not change the statement of claims in `ORDERS`.
    """
    claim, orders = _function(entry)(), ORDERS.get((entry.source, entry.number))
    return tuple(mutants(claim) if orders is None else of_order(claim, orders))


def _changed(e: Basic, top: bool = True) -> Iterator[tuple[str, Basic]]:
    """Yield descriptions and changed forms of an expression, of the whole or of each of its terms."""
    if isinstance(e, (Add, MatAdd)):
        for place, term in enumerate(e.args):
            rest = [x for n, x in enumerate(e.args) if n != place]
            for change, new in _changed(term):
                yield change, e.func(*rest, new)
        return
    if top:
        yield from _changed_term(e)
    if isinstance(e, _INSIDE):
        last = 1 if isinstance(e, (Sum, Integral, Pow)) else len(e.args)
        for place, part in enumerate(e.args[:last]):
            for change, new in _changed(part, top=False):
                yield change, e.func(*e.args[:place], new, *e.args[place + 1 :])


def _changed_term(e: Basic) -> Iterator[tuple[str, Basic]]:
    if e == 0:
        yield "1 for 0", S.One
        return
    if not isinstance(e, MatrixExpr) and not hasattr(e, "is_commutative"):
        return
    text = str(e) if len(str(e)) < 60 else str(e)[:57] + "..."
    yield f"2*({text})", 2 * e
    for kind, names in _INDICES.items():
        shifted = _shifted(e, names)
        if shifted is not None:
            yield f"{kind} later in {text}", shifted


def _shifted(e: Basic, names: Sequence[str]) -> Basic | None:
    """Return a term with the first index of these names in one function larger by one, or None."""
    for x in sorted(e.atoms(AppliedUndef), key=str):
        for place, index in enumerate(x.args):
            known = {v.name for v in index.free_symbols if isinstance(v, Symbol)}
            if known & set(names) and not index.has(AppliedUndef):
                new = x.func(*x.args[:place], index + 1, *x.args[place + 1 :])
                return e.xreplace({x: new})
    return None


# -- planting ------------------------------------------------------------------------------------------------


def _function(entry: Entry) -> Callable[[], Claim]:
    module, _, name = entry.claim.partition(":")
    found: Callable[[], Claim] = getattr(import_module(f"{claims.__name__}.{module}"), name)
    return found


@contextmanager
def planted(original: Callable[[], Claim], replacement: Callable[[], Claim]) -> Iterator[None]:
    """Replace the claim ``original`` by ``replacement`` in every module of tests.ledger for a while."""
    places = [
        (module, name)
        for key, module in list(sys.modules.items())
        if key.startswith("tests.ledger") and module is not None
        for name, value in list(vars(module).items())
        if value is original
    ]
    for module, name in places:
        setattr(module, name, replacement)
    try:
        yield
    finally:
        for module, name in places:
            setattr(module, name, original)


def _caches() -> list[Any]:
    """Return the cached functions of tests.ledger."""
    found = {}
    for key, module in list(sys.modules.items()):
        if key.startswith("tests.ledger") and module is not None:
            for value in list(vars(module).values()):
                if callable(getattr(value, "cache_clear", None)) and hasattr(value, "__wrapped__"):
                    found[id(value)] = value
    return list(found.values())


def _code(cached: Any) -> CodeType | None:
    return getattr(cached.__wrapped__, "__code__", None)


@dataclass
class _Spy:
    """A claim that records which functions were running when it was read."""

    original: Callable[[], Claim]
    running: set[CodeType] = field(default_factory=set)
    reads: int = 0

    def __call__(self) -> Claim:
        self.reads += 1
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            self.running.add(frame.f_code)
            frame = frame.f_back
        return self.original()


# -- judging -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """Whether a piece of evidence reads a claim, what must be computed again if the claim changes, and cost.

    ``seconds`` is the processor time of the piece when all that does not depend on the claim is in memory.
    """

    piece: str
    reads: bool
    again: tuple[Any, ...] = ()
    seconds: float = 0.0
    passed: bool = True


def reading(entry: Entry, piece: str) -> Reading:
    """Run a piece of evidence and record whether it reads the claim of the entry."""
    return reading_of(_function(entry), piece)


def reading_of(original: Callable[[], Claim], piece: str) -> Reading:
    """Run a piece of evidence and record whether it reads a claim or a correction."""
    import_module(f"{evidence.__name__}.{piece.partition(':')[0]}")
    for cached in _caches():
        cached.cache_clear()
    spy = _Spy(original)
    with planted(original, spy):
        passed = evidence.run(piece).passed
    if not spy.reads:
        return Reading(piece, False, passed=passed)
    again = tuple(x for x in _caches() if _code(x) in spy.running)
    before = time.process_time()
    for cached in again:
        cached.cache_clear()
    evidence.run(piece)
    return Reading(piece, True, again, time.process_time() - before, passed)


def killed(original: Callable[[], Claim], changed: Claim, read: Reading) -> bool:
    """Return whether a piece of evidence fails if right-hand sides of a claim or correction change."""
    whole = original() | changed
    with planted(original, lambda: dict(whole)):
        for cached in read.again:
            cached.cache_clear()
        try:
            return not evidence.run(read.piece).passed
        finally:
            for cached in read.again:
                cached.cache_clear()


@dataclass(frozen=True)
class Judgement:
    """The mutants of an entry: how many, those that no evidence noticed, and the pieces that read the claim.

    ``skipped`` are pieces that would have taken too long; a survivor may fail in them.
    """

    entry: Entry
    total: int
    survivors: tuple[Mutant, ...]
    readers: tuple[str, ...]
    skipped: tuple[str, ...] = ()

    def __str__(self) -> str:
        head = f"{self.entry.source} {self.entry.number}: {self.total - len(self.survivors)} of {self.total} "
        head += f"mutants fail in {', '.join(self.readers) or 'nothing, as no evidence reads the claim'}"
        if self.skipped:
            head += f"; not run: {', '.join(self.skipped)}"
        return "\n".join([head, *(f"    survives: {m.name}: {m.change}" for m in self.survivors)])


def judge(entry: Entry, seconds: float = 60.0) -> Judgement:
    """Run the evidence of an entry with each mutant of its claim, identities and cheap pieces first.

    A mutant that one piece notices is not shown to the others.  Pieces are skipped that would take more than
    ``seconds`` of processor time by what was recorded.
    """
    return _judge(entry, _function(entry), mutants_of(entry), seconds)


def judge_correction(entry: Entry, seconds: float = 60.0) -> Judgement:
    """Run the evidence of a misprint with each mutant of its correction, as `judge` does with claims."""
    original = correction(entry)
    return _judge(entry, original, tuple(mutants(original())), seconds)


def fails_if_corrected(entry: Entry) -> tuple[str, ...]:
    """Return the evidence of a misprint that fails if the paper had printed the correction."""
    original, true = _function(entry), correction(entry)()
    found = []
    for piece in entry.evidence:
        read = reading(entry, piece)
        if read.reads and killed(original, true, read):
            found.append(piece)
    return tuple(found)


def _judge(
    entry: Entry, original: Callable[[], Claim], total: tuple[Mutant, ...], seconds: float
) -> Judgement:
    survivors, readers, skipped = total, [], []
    costs = {name: recorded()[name].seconds if name in recorded() else 0.0 for name in entry.evidence}
    for piece in sorted(entry.evidence, key=lambda name: (not name.startswith("identities_"), costs[name])):
        if not survivors:
            break
        if costs[piece] * (1 + len(survivors) / 10) > seconds:
            skipped.append(piece)
            continue
        read = reading_of(original, piece)
        if read.reads:
            readers.append(piece)
            survivors = tuple(m for m in survivors if not killed(original, {m.name: m.expression}, read))
    return Judgement(entry, len(total), survivors, tuple(readers), tuple(skipped))


@one_thread
def main(words: Sequence[str]) -> int:
    """Judge the entries that the arguments choose, print the survivors, and return the exit status."""
    rows = [find(words[0], n) for n in words[1:]] or list(entries(words[0] if words else None))
    survivors = 0
    for entry in rows:
        if entry.claim and entry.evidence and (entry.verdict == "agrees" or len(words) > 1):
            judged = judge(entry)
            survivors += len(judged.survivors)
            print(judged, flush=True)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
