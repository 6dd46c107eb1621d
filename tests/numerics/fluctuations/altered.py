"""Theories of finite width with one kind of term left out or doubled, which tests must notice.

A kind of term is a block of kappa between two families of order parameters, the influence of a family on
fields (its terms of D) or on other numbers, a product of two order parameters in the exponent, or one of the
parts of the shift.  Limits stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from derive.calculus.symbols import s, t
from numerics.fluctuations.dense import DenseFluctuations
from numerics.fluctuations.linear import SiteProducts
from numerics.fluctuations.lowered import LoweredFluctuations, TermArrays
from numerics.fluctuations.sampled import SampledFluctuations

from .reference import Reference
from .theories import Observable

Array = NDArray[Any]
Chooser = Callable[[LoweredFluctuations, TermArrays], Array]
"""Which entries of a term are meant, (n,)."""


@dataclass(frozen=True)
class Change:
    """One kind of term with another factor.

    Attributes
    ----------
    kind
        "kappa" or "D": of ``names``, two families, of which the second drives the first.  "influence",
        "second influence", "slope", "second slope": of ``names``, the families by which the exponent or
        another number is differentiated.  "curvature" or "self-action": of the shift.
    names
        Names of families of order parameters.
    factor
        0 to leave the term out, 2 to double it.
    hats
        How many hats stand in the exponent beside it: 2 in covariances, 1 in kernels; None for any.
    now
        Only at equal times.
    """

    kind: str
    names: tuple[str, ...] = ()
    factor: float = 0.0
    hats: int | None = None
    now: bool = False

    def __str__(self) -> str:
        hats = "" if self.hats is None else f" in {'covariances' if self.hats == 2 else 'kernels'}"
        return f"{self.kind} {' '.join(self.names)}{'(t, t)' if self.now else ''}{hats}".strip()


LISTS = {
    "influence": "influences",
    "second influence": "second_influences",
    "slope": "slopes",
    "second slope": "second_slopes",
}


def names_of_parameters(lowered: LoweredFluctuations) -> Array:
    """Return the name of the family of each order parameter."""
    found = np.empty(lowered.parameters.count, object)
    for key, box in lowered.parameters.families.items():
        assert box.numbers is not None
        found[box.numbers[box.numbers >= 0]] = key[0]
    return found


def times_of_parameters(lowered: LoweredFluctuations) -> Array:
    """Return both times of each order parameter, (2, n), equal where there is one."""
    found = np.zeros((2, lowered.parameters.count), int)
    for q in lowered.stated:
        grid = lowered.grid_of(q)
        arguments = lowered.arguments(q.symbol, grid)
        number = lowered.parameters.find((q.name, len(q.symbol.args)), arguments)
        times = [x for x, e in zip(arguments, q.symbol.args, strict=True) if e.has(t, s)]
        found[:, number] = times[0], times[-1]
    return found


def _split(x: TermArrays, chosen: Array, factor: float) -> Iterator[TermArrays]:
    """Yield the entries that stay, then the chosen ones with a factor."""
    for mask, weight in ((~chosen, 1.0), (chosen, factor)):
        if mask.any() and weight:
            counts = np.concatenate([[0], np.cumsum(mask)])
            yield replace(
                x,
                weight=weight * x.weight,
                grid={k: v[mask] for k, v in x.grid.items()},
                ends=counts[x.ends],
                target=x.target[mask],
                first=x.first[mask],
                second=x.second[mask],
                other=x.other[:, mask],
            )


def with_change(lowered: LoweredFluctuations, change: Change) -> LoweredFluctuations:
    """Return the arrays with another factor of terms of the exponent."""
    if change.kind not in LISTS:
        return lowered
    name, names, found = LISTS[change.kind], names_of_parameters(lowered), []
    times = times_of_parameters(lowered)
    for x in getattr(lowered, name):
        by = [x.target] if change.kind == "influence" else [x.target, x.other[0]]
        if "slope" in change.kind:  # the target is the number that is differentiated
            by = [x.other[0], x.other[1]][: 1 if change.kind == "slope" else 2]
        there = [(names[by[0]] == change.names[0])]
        if len(by) == 2:
            both = {change.names, change.names[::-1]}
            pairs = zip(names[by[0]], names[by[1]], strict=True)
            there = [np.fromiter((pair in both for pair in pairs), bool, len(by[0]))]
        if change.hats is not None:
            there.append(np.full(len(by[0]), x.hats == change.hats))
        if change.now:
            there.append(times[0][by[0]] == times[1][by[0]])
        found += _split(x, np.all(there, axis=0), change.factor)
    other = copy(lowered)
    setattr(other, name, found)
    return other


class AlteredFluctuations(DenseFluctuations):
    """Expansion of a linear theory with one change."""

    def __init__(self, lowered: LoweredFluctuations, change: Change) -> None:
        super().__init__(with_change(lowered, change))
        self.change = change

    def _factor(self, kind: str) -> float:
        return self.change.factor if self.change.kind == kind else 1.0

    @cached_property
    def kappa(self) -> Array:
        """The noise, with a block changed."""
        found = super().kappa
        if self.change.kind == "kappa":
            names = names_of_parameters(self.lowered)[self.kept]
            one, two = (names == name for name in self.change.names)
            at = np.outer(one, two)
            found = np.where(at | at.T, self.change.factor * found, found)
        return found

    @cached_property
    def D(self) -> Array:
        """The derivatives, with a block changed."""
        found = super().D
        if self.change.kind == "D":
            names = names_of_parameters(self.lowered)[self.kept]
            one, two = (names == name for name in self.change.names)
            found = np.where(np.outer(one, two), self.change.factor * found, found)
        return found

    def _twice(self, V: Array, x: SiteProducts) -> Array:
        return self._factor("curvature") * super()._twice(V, x)

    def _self_action(self, V: Array, x: SiteProducts, y: SiteProducts) -> Array:
        return self._factor("self-action") * super()._self_action(V, x, y)


@dataclass
class Terms:
    """All kinds of terms of a theory."""

    lowered: LoweredFluctuations
    found: list[Change] = field(default_factory=list)

    @classmethod
    def of(cls, moments: DenseFluctuations) -> Terms:
        """Find every kind of term that is not zero."""
        lowered = moments.lowered
        terms, names = cls(lowered), names_of_parameters(lowered)
        families, kept = list(dict.fromkeys(names.tolist())), names[moments.kept]
        kappa, D = np.abs(moments.kappa) > 0, np.abs(moments.D) > 0
        for k, one in enumerate(families):
            for two in families[k:]:
                if kappa[np.ix_(kept == one, kept == two)].any():
                    terms.found.append(Change("kappa", (one, two)))
        for one in families:
            for two in families:
                if D[np.ix_(kept == one, kept == two)].any():
                    terms.found.append(Change("D", (one, two)))
        for kind in LISTS:
            terms._by_names(kind, names)
        responses = [q.name for q in lowered.stated if q.kind == "response"]
        for name in dict.fromkeys(responses):
            if any(q.name == name and q.causal != "strict" for q in lowered.stated):
                terms.found.append(Change("influence", (name,), now=True))
        terms.found += [Change("curvature"), Change("self-action")]
        return terms

    def _by_names(self, kind: str, names: Array) -> None:
        seen: dict[Change, None] = {}
        for x in getattr(self.lowered, LISTS[kind]):
            by = [x.target] if kind == "influence" else [x.target, x.other[0]]
            if "slope" in kind:
                by = [x.other[0], x.other[1]][: 1 if kind == "slope" else 2]
            for pair in set(zip(*(names[y] for y in by), strict=True)):
                hats = x.hats if kind == "influence" else None
                seen.setdefault(Change(kind, tuple(sorted(pair)), hats=hats))
        self.found += seen


# -- effects on predictions --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Effect:
    """Prediction that a change alters most, in standard errors of networks."""

    errors: float
    name: str
    place: tuple[int, ...]
    before: float
    after: float

    def __str__(self) -> str:
        return (
            f"{self.name}{list(self.place)}: {self.before:.4g} -> {self.after:.4g}, {self.errors:.1f} errors"
        )


def largest_effect(
    table: Reference, moments: Any, other: Any, seen: Mapping[str, Observable], shifts: bool = True
) -> Effect:
    """Return the variance (or shift) after the start that differs most between two theories."""
    found = []
    for key, observable in seen.items():
        limit = observable.limit(moments)
        kinds = [("N Var", table.scaled_variance(key), observable.scaled_variance)]
        if shifts:
            kinds.append(("N shift", table.scaled_shift(key, limit), observable.scaled_shift))
        for kind, estimate, of in kinds:
            before, after = of(moments), of(other)
            errors = np.abs(after - before) / (estimate.error + 5e-7 * np.abs(estimate.value) + 1e-12)
            errors[0] = 0.0  # initial values of the table are nearly exact
            place = np.unravel_index(errors.argmax(), errors.shape)
            numbers = (float(x[place]) for x in (before, after))
            effect = Effect(float(errors[place]), f"{kind} {key}", tuple(map(int, place)), *numbers)
            found.append(effect)
    return max(found, key=lambda x: x.errors)


def altered_samples(moments: SampledFluctuations, change: Change) -> SampledFluctuations:
    """Return sampled covariances of any theory with a block of kappa or an influence changed.

    An influence of order parameters is the columns of D along which they move.
    """
    other = copy(moments)
    names, times = names_of_parameters(moments.lowered), times_of_parameters(moments.lowered)
    if change.kind == "kappa":
        at = np.outer(*(names == name for name in change.names))
        kappa = np.where(at | at.T, change.factor * moments.kappa, moments.kappa)
        other.__dict__ |= {"R": moments.R, "kappa": kappa}
    else:
        chosen = (names == change.names[0]) & (~np.array(change.now) | (times[0] == times[1]))
        moved = (moments.directions[0][chosen] != 0).any(axis=0)
        other.__dict__["D"] = np.where(moved, change.factor * moments.D, moments.D)
        other.__dict__.pop("R", None)
    other.__dict__.pop("covariance", None)
    return other
