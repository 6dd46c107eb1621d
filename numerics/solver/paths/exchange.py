"""Averages over exchangeable values of indices, which make order parameters of sampled paths symmetric.

The theory states which indices have values that can be exchanged without a change of its equations
(:mod:`derive.theory.exchange`), and which given arrays must be symmetric for this. The input here are these
arrays: two values are exchangeable if the arrays are the same with both exchanged. Order parameters are then
averaged over these permutations, so that sampled solutions are invariant under them, as the exact one is.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Symbol

from derive.theory.exchange import IndexClass
from numerics.lowering.quantities import PathEntry, QuantityTables
from numerics.names import MemberKey
from numerics.solver.paths.gaussian import Growing

Array = NDArray[np.float64]
Labels = NDArray[np.intp]


@dataclass(frozen=True)
class Orbits:
    """Partition of the entries of an array into orbits under permutations of index values.

    ``labels`` is the number of the orbit of each entry along the ``axes``, flattened. ``order`` sorts entries
    by orbit; ``starts`` and ``counts`` are the first position and the size of each orbit.

    >>> Orbits.of([np.array([0, 0])] * 2, (0, 0), (1, 2)).averaged(np.array([[[1.0, 2.0], [4.0, 3.0]]]))
    array([[[2., 3.],
            [3., 2.]]])
    """

    axes: tuple[int, ...]
    labels: Labels
    order: Labels
    starts: Labels
    counts: Labels

    @classmethod
    def of(cls, blocks: Sequence[Labels], classes: Sequence[Hashable], axes: Sequence[int]) -> Orbits | None:
        """Return the orbits of entries under exchanges of index values; None if every orbit is one entry.

        ``blocks`` holds for each index the label of each value: values with equal labels can be exchanged.
        Indices of the same class are permuted together. Two entries are in one orbit if their values of each
        index have the same label, and if any two indices of one class have equal values in both entries or in
        neither. ``axes`` are the axes of the indices in an array.
        """
        values = np.indices([len(x) for x in blocks]).reshape(len(blocks), -1)
        keys = [block[x] for block, x in zip(blocks, values, strict=True)]
        pairs = [(i, j) for j in range(len(blocks)) for i in range(j) if classes[i] == classes[j]]
        keys += [(values[i] == values[j]).astype(np.intp) for i, j in pairs]
        _, labels = np.unique(np.stack(keys), axis=1, return_inverse=True)
        labels = labels.reshape(-1)
        counts = np.bincount(labels)
        if len(counts) == len(labels):
            return None
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        return cls(tuple(axes), labels, np.argsort(labels, kind="stable"), starts, counts)

    def averaged(self, full: Array) -> Array:
        """Return the array ``full`` with each entry replaced by the mean over its orbit."""
        last = tuple(range(full.ndim - len(self.axes), full.ndim))
        moved = np.moveaxis(full, self.axes, last)
        flat = moved.reshape(*moved.shape[: last[0]], -1)
        means = np.add.reduceat(flat[..., self.order], self.starts, axis=-1) / self.counts
        return np.moveaxis(means[..., self.labels].reshape(moved.shape), last, self.axes)


def blocks_of(index_class: IndexClass, name: str, size: int, data: Mapping[str, Array]) -> Labels:
    """Return for each value of an index the first value with which it can be exchanged in a quantity.

    ``index_class`` is the class of the index, ``name`` the quantity, and ``size`` the number of values. Two
    values can be exchanged if all given arrays that the quantity depends on stay the same. That is an
    equivalence relation, because exchanges of i, j and of j, k give that of i, k. If one of these arrays is
    missing in ``data`` or has another shape, no values are exchanged, and the result is 0, 1, 2, ...
    """
    labels = np.arange(size)
    arrays = [(data.get(x), index_class.axes(x)) for x in sorted(index_class.arrays.get(name, ()))]
    given = [(x, axes) for x, axes in arrays if x is not None]
    known = len(given) == len(arrays) and all(
        max(axes) < x.ndim and all(x.shape[k] == size for k in axes) for x, axes in given
    )
    if not known:
        return labels
    for i in range(size):
        for first in np.unique(labels[:i]):
            if all(_same(x, axes, int(first), i) for x, axes in given):
                labels[i] = first
                break
    return labels


def _same(x: Array, axes: tuple[int, ...], i: int, j: int) -> bool:
    """Return whether an array is unchanged if index values ``i`` and ``j`` are exchanged on these axes."""
    order = np.arange(x.shape[axes[0]])
    order[[i, j]] = order[[j, i]]
    for k in axes:
        rows = x.take([i, j], axis=k)
        for other in axes:
            rows = rows if other == k else rows.take(order, axis=other)
        if not np.array_equal(rows, x.take([j, i], axis=k)):
            return False
    return True


def orbits_of(
    tables: QuantityTables,
    entries: Mapping[MemberKey, PathEntry],
    axes: Mapping[MemberKey, Sequence[Symbol]],
    data: Mapping[str, Array],
) -> dict[MemberKey, Orbits]:
    """Return, by key, which entries of order parameters and scalars are equal by symmetry.

    Entries in one orbit are related by permutations of index values that leave the theory and the ``data``
    unchanged. ``entries`` are the order parameters and scalars; ``axes`` are the axes of their arrays after
    that of replicas. Those without exchangeable entries are left out.
    """
    known: dict[Hashable, Labels] = {}
    orbits_by_key = {}
    for n in entries:
        classes = tables.exchanged.get(n, {})
        indices = [x for x in axes[n] if x in tables.sizes]
        if not any(tables.sizes[x] > 1 for x in classes):
            continue
        blocks = []
        for x in indices:
            size = tables.sizes[x]
            if x not in classes:
                blocks.append(np.arange(size))
                continue
            number = classes[x]
            key = number, size, tables.classes[number].arrays.get(n[0])
            if key not in known:
                known[key] = blocks_of(tables.classes[number], n[0], size, data)
            blocks.append(known[key])
        if prod(len(x) for x in blocks) == prod(len(np.unique(x)) for x in blocks):
            continue
        kinds: list[Hashable] = [classes.get(x, x) for x in indices]
        orbits = Orbits.of(blocks, kinds, [1 + list(axes[n]).index(x) for x in indices])
        if orbits is not None:
            orbits_by_key[n] = orbits
    return orbits_by_key


RESOLVED = 1e-4
"""Ratio of conditional variance to variance below which an entry of a source is determined by others.

It is far above the change of this ratio by a perturbation, so that both marches agree."""


@dataclass
class Asymmetry:
    """Perturbation that breaks the symmetry of a march, computed as the difference of two marches.

    In the first march ``share`` is None. It records in ``kept`` its averages before and after they are made
    symmetric. The second one, of the same paths, has the symmetric averages of the first and the change of
    the averages before symmetrisation,

        X = X_symmetric + (X_raw' - X_raw),    and at the first step    + share (X_raw - X_symmetric),

    because averages over finitely many units differ at the start. For a small ``share`` the change is the
    linear response of the theory to perturbations like those of finite networks. ``pivots`` is the order in
    which the first march draws sources, by number of their group.
    """

    share: float | None = None
    kept: dict[StoredTimes, tuple[Array, Array]] = field(default_factory=dict)
    pivots: dict[int, list[Labels]] = field(default_factory=dict)

    def second(self, share: float) -> Asymmetry:
        """Return the object for the second march, which applies the perturbation recorded in the first one.

        ``share`` multiplies the perturbation, which is added to averages at the first step only. A small
        ``share`` gives a linear response.
        """
        return Asymmetry(share, self.kept, self.pivots)

    def share_pivots(self, groups: Mapping[int, Growing]) -> None:
        """Make both marches draw the sources of a step in the same order.

        The first march records the order in which the Cholesky factors of ``groups`` (groups of sources, by
        number) take the sources; the second march takes the recorded order. Otherwise the smallest
        perturbation would change the order of sources with equal variances.
        """
        for k, group in groups.items():
            group.least = RESOLVED
            if self.share is None:
                self.pivots[k] = group.chosen
            else:
                group.given = iter(self.pivots[k])

    def passed(self, node: MemberKey, late: slice, early: slice, raw: Array, symmetric: Array) -> Array:
        """Return the values with which a march continues for an average that was made symmetric.

        The first march continues with the symmetric average; the second one adds the perturbation. ``raw``
        and ``symmetric`` are the values of the average with key ``node`` before and after it is made
        symmetric, at the times t in ``late`` and s in ``early``.
        """
        key = node, late.start, late.stop, early.start, early.stop
        if self.share is None:
            self.kept[key] = raw, symmetric
            return symmetric
        before, symmetric = self.kept[key]
        perturbed = symmetric + (raw - before)
        return perturbed + self.share * (before - symmetric) if max(late.stop, early.stop) == 1 else perturbed


StoredTimes = tuple[MemberKey, int, int, int, int]
"""Key of an order parameter or scalar, and the ranges (start, stop) of the times t and s of a part of it."""


def exchangeable_values(
    tables: QuantityTables, data: Mapping[str, Any], used: Iterable[MemberKey]
) -> dict[str, list[list[int]]]:
    """Return for each class of indices the lists of its values that can be exchanged, counted from one.

    The keys are names of indices, the shortest of each class. Classes without such values are left out.
    ``used`` are the keys of order parameters and scalars that are considered; the values of a class are those
    of the first of them for which some can be exchanged.

    >>> from derive.program.networks import committee
    >>> from derive.theory import mean_field
    >>> from numerics.lowering.quantities import read_quantities
    >>> from numerics.lowering.sizes import SizedTheory
    >>> tables = read_quantities(SizedTheory.of(mean_field(committee(3, 2)), {}))
    >>> exchangeable_values(tables, {}, tables.entries)
    {'k': [[1, 2, 3]], 'm': [[1, 2]]}
    """
    values: dict[str, list[list[int]]] = {}
    seen: set[int] = set()
    arrays = _arrays(data)
    for n in used:
        for x, number in tables.exchanged.get(n, {}).items():
            if number in seen or tables.sizes[x] < 2:
                continue
            labels = blocks_of(tables.classes[number], n[0], tables.sizes[x], arrays)
            blocks = [1 + np.flatnonzero(labels == k) for k in np.unique(labels)]
            several = [[int(k) for k in block] for block in blocks if len(block) > 1]
            if several:
                seen.add(number)
                values[_letter(tables, number)] = several
    return values


def _letter(tables: QuantityTables, number: int) -> str:
    """Return the name under which a class of indices is shown: the shortest of its names.

    Of names of the same length, those that begin with an underscore come last, and ``mu`` comes first.
    """
    names = {str(x) for classes in tables.exchanged.values() for x, k in classes.items() if k == number}
    return min(names, key=lambda x: (len(x), x.startswith("_"), x != "mu", x))


def _arrays(data: Mapping[str, Any]) -> dict[str, Array]:
    """Return the given data that are arrays, and no functions, by name."""
    return {k: np.asarray(v, dtype=float) for k, v in data.items() if not callable(v)}
