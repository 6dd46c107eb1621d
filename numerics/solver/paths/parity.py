"""Symmetries of a theory under sign changes of its sources, which determine the signs of sampled paths.

The input are the tables of a theory; the output are a parity for each quantity, and the populations whose
paths come in pairs with opposite sources, for which the odd part of every function averages to zero exactly.
The march of sampled paths uses the latter.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import lru_cache
from typing import Any

import numpy as np
from sympy import Expr
from sympy.core.function import AppliedUndef

from derive.program.entrywise import Entrywise
from numerics.lowering.entries import EntryRule
from numerics.lowering.quantities import Quantity, QuantityTables
from numerics.names import MemberKey
from numerics.solver.paths.causal_order import Model

EVEN, ODD, NEITHER = 1, -1, 0
"""Factor of a function if sources change sign; NEITHER also means that the parity is unknown."""

POINTS = 16
"""Number of points at which a function is evaluated before and after the sign change."""

STEPS = 3
"""Length of the histories from which the parity of a rule is determined."""

ROUNDING = 1e-9
"""Largest difference between equal values, relative to the largest of them."""


@lru_cache(maxsize=8)
def paired(model: Model) -> list[bool]:
    """Return for each population whether its paths come in pairs with opposite sources.

    The sources of the last group always have both signs with the same values of the others. If all quantities
    are even or odd under some of these sign changes, pairs would only repeat averages.
    """
    tables = model.tables
    last = {n for x in tables.populations for n in model.groups[x.groups[-1]]}
    sources = {*tables.sources}
    symmetries = [parities(tables, flipped) for flipped in (sources, last, sources - last)]
    return [
        len(x.groups) > 1 and not any(known.keys() >= {*x.members} for known in symmetries)
        for x in tables.populations
    ]


def parities(tables: QuantityTables, flipped: Set[MemberKey]) -> dict[MemberKey, int]:
    """Return EVEN or ODD for each node that has a parity under a sign change of the sources ``flipped``.

    The parity of a function is determined from its values at random points. In a sum over the past, terms of
    unknown parity are assumed to have the parity of the others; the result is then checked with all terms.
    """
    known = {n: ODD if n in flipped else EVEN for n in (*tables.sources, *tables.attributes)}
    found = known
    while found:
        waiting = [q for n, q in tables.quantities.items() if n not in known]
        found = {q.node: p for q in waiting if (p := _parity(tables, q, known, complete=False))}
        known = known | found
    while True:
        own = {n: q for n, q in tables.quantities.items() if n in known}
        wrong = [n for n, q in own.items() if _parity(tables, q, known, complete=True) != known[n]]
        if not wrong:
            return known
        known = {n: p for n, p in known.items() if n not in wrong}


def _parity(tables: QuantityTables, q: Quantity, known: Mapping[MemberKey, int], *, complete: bool) -> int:
    """Return the parity of a quantity.

    Unless ``complete``, terms of unknown parity are left out of sums over the past.
    """
    rng = np.random.default_rng(0)
    values: list[Any] = []
    signs = [_sign(tables, q, x, known, complete) for x in q.function.leaves]
    for x, sign in zip(q.function.leaves, signs, strict=True):
        summed = x in q.memories or x in q.entries
        if sign == NEITHER and not (summed and not complete and _is_unknown(q, x, known)):
            return NEITHER
        is_number = x not in q.memories and not tables.is_random(x)
        values.append(rng.uniform(0.5, 1.5) if is_number else sign**2 * rng.normal(size=POINTS))
    with np.errstate(all="ignore"):
        before = q.function(*values)
        after = q.function(*[sign * x for sign, x in zip(signs, values, strict=True)])
    finite = np.abs(before)[np.isfinite(before)]
    allowed = ROUNDING * float(finite.max(initial=0.0))
    even, odd = (
        np.allclose(after, factor * np.asarray(before), rtol=0.0, atol=allowed, equal_nan=True)
        for factor in (EVEN, ODD)
    )
    if even and odd:  # zero, possibly because unknown terms are left out
        return EVEN if all(signs) else NEITHER
    return EVEN if even else ODD if odd else NEITHER


def _sign(
    tables: QuantityTables, q: Quantity, leaf: Expr, known: Mapping[MemberKey, int], complete: bool
) -> int:
    """Return the parity of a leaf of a function; numbers and kernels are even."""
    if leaf in q.entries:
        entries = q.entries[leaf]
        if entries.own is not None:
            return NEITHER
        own = {known.get(n, NEITHER) for n in tables.own_nodes(entries)} or {EVEN}
        if own == {ODD}:
            return parity_of_rule(tables.weights[entries.array].rule)
        return own.pop() if len(own) == 1 else NEITHER
    if leaf in q.memories:
        terms = {known.get(m.what, NEITHER) for m in q.memories[leaf]}
        terms = terms if complete else terms - {NEITHER}
        return terms.pop() if len(terms) == 1 else NEITHER
    if isinstance(leaf, AppliedUndef) and tables.is_random(leaf):
        return known.get(tables.node(leaf), NEITHER)
    return EVEN


@lru_cache(maxsize=32)
def parity_of_rule(rule: Entrywise) -> int:
    """Return whether the steps of a rule are odd or even in the history of the gradient.

    It is determined from random histories.

    >>> from derive.program import adam, eta
    >>> parity_of_rule(adam(eta))
    -1
    """
    compiled, rng = EntryRule.of(rule), np.random.default_rng(0)
    numbers = rng.uniform(0.2, 0.8, size=len(compiled.numbers))
    histories = rng.normal(size=(STEPS, POINTS))
    found = []
    for sign in (1.0, -1.0):
        states, steps = [np.zeros(POINTS)] * compiled.states, []
        with np.errstate(all="ignore"):
            for a in histories:
                *states, step = compiled.function(sign * a, *states, *numbers)
                steps.append(step * np.ones(POINTS))
        found.append(np.array(steps))
    before, after = found
    allowed = ROUNDING * float(np.abs(before).max())
    for factor in (ODD, EVEN):
        if np.allclose(after, factor * before, rtol=0.0, atol=allowed, equal_nan=True):
            return factor
    return NEITHER


def _is_unknown(q: Quantity, leaf: Expr, known: Mapping[MemberKey, int]) -> bool:
    """Return whether no term of a sum over the past has a known parity."""
    if leaf in q.entries:
        return True
    return not any(m.what in known for m in q.memories[leaf])
