"""Symmetries of a theory under sign changes of its sources, which determine the signs of sampled paths.

The input are the tables of a theory. The output are a parity for each quantity, the groups of sources that
have opposite values on half of the paths, and the populations whose paths come in pairs with opposite values
of all sources. The odd part of every function averages to zero exactly over such pairs. The march of sampled
paths uses the groups and the populations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from sympy import Expr, S
from sympy.core.function import AppliedUndef

from derive.program.entrywise import Entrywise
from numerics.lowering.entries import EntryRule
from numerics.lowering.quantities import (
    PastSum,
    PathCorrelation,
    PathEntry,
    PathResponse,
    Quantity,
    QuantityTables,
)
from numerics.names import MemberKey
from numerics.solver.paths.causal_order import Model, group_of, sources_now

EVEN, ODD, NEITHER = 1, -1, 0
"""Factor of a function if sources change sign; NEITHER also means that the parity is unknown."""

POINTS = 16
"""Number of points at which a function is evaluated before and after the sign change."""

STEPS = 3
"""Length of the histories from which the parity of a rule is determined."""

ROUNDING = 1e-9
"""Difference of two values, relative to the largest of all, up to which they count as equal."""


@lru_cache(maxsize=8)
def paired(model: Model) -> list[bool]:
    """Return for each population whether its paths come in pairs with opposite values of all sources.

    This is in addition to the pairs of paths in which only the :func:`flipped` groups of sources change sign.
    Pairs are not used if each quantity of the population is even or odd under a sign change of all sources,
    of the flipped ones, or of those that are not flipped, because they would then only repeat averages. They
    are not used for a population with one group of sources.
    """
    tables = model.tables
    signed = {n for i in flipped(model) for n in model.groups[i]}
    sources = {*tables.sources}
    symmetries = [parities(tables, some) for some in (sources, signed, sources - signed)]
    return [
        len(x.groups) > 1 and not any(known.keys() >= {*x.members} for known in symmetries)
        for x in tables.populations
    ]


@lru_cache(maxsize=8)
def flipped(model: Model) -> frozenset[int]:
    """Return the groups of sources whose values are sampled with both signs, others being unchanged.

    Half of the paths have opposite values of these groups and the same values of all other sources as the
    other half, so that an average of a function that is odd in these sources vanishes exactly. At the start,
    where sums over the past are empty, networks have such a symmetry: outputs and gradients change sign with
    the readout (:class:`_SignsAtStart`). The averages in the scalars of the theory are examined in causal
    order. If the function in an average is not odd, a group that makes it odd and increases the number of
    odd averages is added, if there is one; of several such groups it is the last one. For a population
    without such groups its last group is taken. The result holds positions in ``model.groups``.
    """
    tables = model.tables
    scalars = [tables.scalars[node] for kind, node in model.order if kind == "scalar"]
    averages = [c for e in scalars for c in _correlations(e) if _may_be_odd(tables, c)]
    known: dict[frozenset[int], _SignsAtStart] = {}

    def signs(groups: frozenset[int]) -> _SignsAtStart:
        if groups not in known:
            known[groups] = _SignsAtStart(model, groups)
        return known[groups]

    def odd(groups: frozenset[int]) -> int:
        return sum(_parity_within(c, signs(groups).known) == ODD for c in averages)

    chosen: frozenset[int] = frozenset()
    for c in averages:
        if _parity_within(c, signs(chosen).known) != ODD:
            nodes = [c.first] if c.second is None else [c.first, c.second]
            read = [i for i in range(len(model.groups)) if any(sources_now(model, n, i) for n in nodes)]
            more = (chosen | {i} for i in reversed(read) if i not in chosen)
            better = (x for x in more if _parity_within(c, signs(x).known) == ODD and odd(x) > odd(chosen))
            chosen = next(better, chosen)
    signed = signs(chosen).groups
    return frozenset(
        i for x in tables.populations for i in ([k for k in x.groups if k in signed] or x.groups[-1:])
    )


class _SignsAtStart:
    """Parities of all quantities at time zero if sources of the ``chosen`` groups change sign.

    A group whose covariance is an average of products of two odd quantities, such as that of a transposed
    matrix, changes sign with them: ``groups`` are all groups that do. ``known`` holds EVEN, ODD or NEITHER by
    key.
    """

    def __init__(self, model: Model, chosen: Set[int]) -> None:
        tables = model.tables
        self.model, self.groups, drawn = model, {*chosen}, set[int]()
        self.known: dict[MemberKey, int] = dict.fromkeys(tables.attributes, EVEN)
        for kind, node in model.order:
            if kind == "quantity":
                quantity = tables.quantities[node]
                self.known[node] = _parity(tables, quantity, self.known, complete=True, start=True)
            elif kind == "draw":
                block = model.blocks[node[1][0]]
                group = group_of(model, block[0])
                if group not in drawn and any(map(self._is_odd, block)):
                    self.groups.add(group)
                drawn.add(group)
                self.known |= dict.fromkeys(block, ODD if group in self.groups else EVEN)

    def _is_odd(self, source: MemberKey) -> bool:
        """Return whether the covariance of a source contains an average of a product of two odd quantities.

        A quantity is odd if it changes sign when the sources of ``groups`` change sign.
        """
        entries = self.model.entries_of_variance[source]
        pairs = [(c.first, c.second) for e in entries for c in _correlations(e) if c.second]
        return any(self.known.get(one) == self.known.get(other) == ODD for one, other in pairs)


def _may_be_odd(tables: QuantityTables, c: PathCorrelation) -> bool:
    """Return whether an average ``<X Y>`` or ``<X>`` may be that of an odd function of some sources.

    A square, for example, is even.
    """
    if c.second is not None or c.first not in tables.quantities:
        return c.first != c.second
    q = tables.quantities[c.first]
    leaves = [x for x in q.function.leaves if x in q.memories or x in q.entries or tables.is_random(x)]
    return any(_parity_of_leaves(q, some) == ODD for some in (leaves, *([x] for x in leaves)))


def _correlations(e: PathEntry) -> Iterator[PathCorrelation]:
    """Yield the averages ``<X Y>`` or ``<X>`` in an order parameter or scalar, also those inside of sums."""
    yield from (c for c in e.averages.values() if isinstance(c, PathCorrelation))
    for inner in e.sums.values():
        yield from _correlations(inner)


def parities(tables: QuantityTables, flipped: Set[MemberKey]) -> dict[MemberKey, int]:
    """Return EVEN or ODD, by key, for each quantity with a parity if the sources ``flipped`` change sign.

    The parity of a function is determined from its values at random points. In a sum over the past, terms of
    unknown parity are assumed to have the parity of the others; the result is then checked with all terms.
    """
    known = {n: ODD if n in flipped else EVEN for n in (*tables.sources, *tables.attributes)}
    new = known
    while new:
        waiting = [q for n, q in tables.quantities.items() if n not in known]
        new = {q.node: p for q in waiting if (p := _parity(tables, q, known, complete=False))}
        known = known | new
    while True:
        quantities = {n: q for n, q in tables.quantities.items() if n in known}
        wrong = [n for n, q in quantities.items() if _parity(tables, q, known, complete=True) != known[n]]
        if not wrong:
            return known
        known = {n: p for n, p in known.items() if n not in wrong}


def _parity(
    tables: QuantityTables,
    q: Quantity,
    known: Mapping[MemberKey, int],
    *,
    complete: bool,
    start: bool = False,
) -> int:
    """Return EVEN, ODD or NEITHER for a quantity ``q``, from the ``known`` parities of those that it reads.

    Unless ``complete``, terms of unknown parity are left out of sums over the past. At the ``start`` sums
    have only their terms of the present step.
    """
    rng = np.random.default_rng(0)
    values: list[Any] = []
    now = {x: _present(tables, ms, known) for x, ms in q.memories.items()} if start else q.memories
    empty = {*q.entries, *(x for x, ms in now.items() if not ms)} if start else set()
    q = replace(q, memories=now)
    signs = [EVEN if x in empty else _sign(tables, q, x, known, complete) for x in q.function.leaves]
    for x, sign in zip(q.function.leaves, signs, strict=True):
        summed = x in q.memories or x in q.entries
        if x in empty or (start and x not in q.memories and _is_zero(tables, x, known)):
            values.append(0.0)
            continue
        if sign == NEITHER and not (summed and not complete and _is_unknown(q, x, known)):
            return NEITHER
        is_number = x not in q.memories and not tables.is_random(x)
        values.append(rng.uniform(0.5, 1.5) if is_number else sign**2 * rng.normal(size=POINTS))
    return _parity_of_values(q, values, signs)


def _parity_of_leaves(q: Quantity, odd: Sequence[Expr]) -> int:
    """Return the parity of the quantity ``q`` if some variables in its expression change sign.

    ``odd`` are the variables that change sign; the others are unchanged. The result is EVEN, ODD or NEITHER.
    """
    values = list(np.random.default_rng(0).normal(size=(len(q.function.leaves), POINTS)))
    return _parity_of_values(q, values, [ODD if x in odd else EVEN for x in q.function.leaves])


def _parity_of_values(q: Quantity, values: Sequence[Any], signs: Sequence[int]) -> int:
    """Return EVEN, ODD or NEITHER for the function in the equation of the quantity ``q``.

    The function is evaluated before and after a change of sign. ``values`` are values of its variables at
    several points, and ``signs`` their factors: 1, -1, or 0 for a variable that is left out.
    """
    with np.errstate(all="ignore"):
        before = q.function(*values)
        after = q.function(*[sign * x for sign, x in zip(signs, values, strict=True)])
    finite = np.abs(before)[np.isfinite(before)]
    allowed = ROUNDING * float(finite.max(initial=0.0))
    even, odd = (
        np.allclose(after, factor * np.asarray(before), rtol=0.0, atol=allowed, equal_nan=True)
        for factor in (EVEN, ODD)
    )
    # The function is both even and odd only if each of its values is zero or NaN. The reason may be that
    # variables with the sign 0 were replaced by zero. The function therefore counts as even only if no sign
    # is 0.
    if even and odd:
        return EVEN if all(signs) else NEITHER
    return EVEN if even else ODD if odd else NEITHER


def _present(
    tables: QuantityTables, memories: Sequence[PastSum], known: Mapping[MemberKey, int]
) -> list[PastSum]:
    """Return those of the terms ``memories`` of a sum over the past that can be nonzero at time zero.

    They are the terms that include the present and whose kernel does not vanish by symmetry. ``known`` holds
    the parities of quantities by key.
    """
    return [m for m in memories if m.through and not _is_zero(tables, m.kernel, known)]


def _is_zero(tables: QuantityTables, e: Expr, known: Mapping[MemberKey, int]) -> bool:
    """Return whether an expression ``e`` vanishes because order parameters or scalars in it do by symmetry.

    ``known`` holds the parities of quantities, by key, under a sign change of sources.
    """
    named = {x: tables.node(x) for x in e.atoms(AppliedUndef)}
    numbers = {x: tables.entries.get(n) or tables.scalars.get(n) for x, n in named.items()}
    zero = {x: S.Zero for x, entry in numbers.items() if entry and _vanishes(entry, known)}
    return bool(zero) and e.xreplace(zero) == 0


def _vanishes(e: PathEntry, known: Mapping[MemberKey, int]) -> bool:
    """Return whether an order parameter or scalar ``e`` is zero because it averages odd functions.

    ``known`` holds the parities of quantities, by key, under a sign change of sources that leaves their
    distribution unchanged.
    """
    zero = {x: S.Zero for x, inner in e.sums.items() if _vanishes(inner, known)}
    zero |= {x: S.Zero for x, c in e.averages.items() if _parity_within(c, known) == ODD}
    return bool(zero) and e.expr.xreplace(zero) == 0


def _parity_within(c: PathCorrelation | PathResponse, known: Mapping[MemberKey, int]) -> int:
    """Return the parity of the function that is averaged in ``c``: EVEN, ODD or NEITHER.

    For an average of one quantity it is the parity of the quantity; for two quantities it is the product of
    their parities, and for a response the product of the parities of the quantity and its source. ``known``
    holds the parities of quantities by key under a sign change of sources.
    """
    first, second = (c.quantity, c.source) if isinstance(c, PathResponse) else (c.first, c.second)
    return known.get(first, NEITHER) * (EVEN if second is None else known.get(second, NEITHER))


def _sign(
    tables: QuantityTables, q: Quantity, leaf: Expr, known: Mapping[MemberKey, int], complete: bool
) -> int:
    """Return EVEN, ODD or NEITHER for the variable ``leaf`` in the expression of the quantity ``q``.

    The leaf is another quantity, a sum over the past, a weight times a vector, or a number, which is even.
    ``known`` holds the parities of quantities by key. Unless ``complete`` is true, terms of unknown parity
    are left out of a sum over the past.
    """
    if leaf in q.entries:
        entries = q.entries[leaf]
        if entries.own is not None:
            return NEITHER
        gradient_parities = {known.get(n, NEITHER) for n in tables.own_nodes(entries)} or {EVEN}
        if gradient_parities == {ODD}:
            return parity_of_rule(tables.weights[entries.array].rule)
        return gradient_parities.pop() if len(gradient_parities) == 1 else NEITHER
    if leaf in q.memories:
        terms = {known.get(m.quantity, NEITHER) for m in q.memories[leaf]}
        terms = terms if complete else terms - {NEITHER}
        return terms.pop() if len(terms) == 1 else NEITHER
    if isinstance(leaf, AppliedUndef) and tables.is_random(leaf):
        return known.get(tables.node(leaf), NEITHER)
    return EVEN


@lru_cache(maxsize=32)
def parity_of_rule(rule: Entrywise) -> int:
    """Return how the steps of an entrywise rule change if all gradients so far change sign.

    The result is ODD (-1) if the steps change sign, EVEN (1) if they stay the same, and NEITHER (0)
    otherwise. It is determined from random gradients.

    >>> from derive.program import adam, eta
    >>> parity_of_rule(adam(eta))
    -1
    """
    compiled, rng = EntryRule.of(rule), np.random.default_rng(0)
    numbers = rng.uniform(0.2, 0.8, size=len(compiled.numbers))
    histories = rng.normal(size=(STEPS, POINTS))
    results = []
    for sign in (1.0, -1.0):
        states, steps = [np.zeros(POINTS)] * compiled.states, []
        with np.errstate(all="ignore"):
            for a in histories:
                *states, step = compiled.function(sign * a, *states, *numbers)
                steps.append(step * np.ones(POINTS))
        results.append(np.array(steps))
    before, after = results
    allowed = ROUNDING * float(np.abs(before).max())
    for factor in (ODD, EVEN):
        if np.allclose(after, factor * before, rtol=0.0, atol=allowed, equal_nan=True):
            return factor
    return NEITHER


def _is_unknown(q: Quantity, leaf: Expr, known: Mapping[MemberKey, int]) -> bool:
    """Return whether the parity of the variable ``leaf`` in the expression of ``q`` cannot be determined yet.

    For a sum over the past this is so as long as ``known``, the parities by key, holds none of the quantities
    in its terms. For a weight times a vector it is always so.
    """
    if leaf in q.entries:
        return True
    return not any(m.quantity in known for m in q.memories[leaf])
