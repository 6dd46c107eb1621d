"""Operators between functions of (mode, time) whose entries are exponential polynomials.

Entries ``X(t, s)`` are kept as ``{powers of (s, E(s)): function of t}``.  A causal operator has entries for
s < t only.  As exponential polynomials these continue to all times, and products need no more than running
integrals.

Each operator carries powers of two numbers: the unit of its entries, and the inverse of the feedback (of the
number that multiplies the error in its own equation).  Entries themselves are free of both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sympy.polys.rings import PolyElement

from derive.errors import NotApplicable
from derive.expansion.in_time.exponentials import Exponentials, Powers

TwoTimes = dict[Powers, PolyElement]
"""A function of t and s."""

Place = tuple[int, int]
"""A row and a column: modes, or 0 where the operator has no sample index."""


@dataclass(frozen=True)
class Operator:
    """``unit^unit feedback^-damping entries``; a ``causal`` operator's entries hold for s < t.

    A causal operator may be ``flipped``: then it is the transpose of the operator with these entries.
    """

    entries: dict[Place, TwoTimes]
    causal: bool
    unit: int = 0
    damping: int = 0
    flipped: bool = False


@dataclass(frozen=True)
class Vector:
    """Functions of time, one for each mode that has one; ``unit`` and ``damping`` as for operators."""

    entries: dict[int, PolyElement]
    unit: int = 0
    damping: int = 0


class Algebra:
    """Sums and products of operators; ``feedback`` is the number whose inverse they carry."""

    def __init__(self, functions: Exponentials, feedback: PolyElement | None = None) -> None:
        self.functions = functions
        self.feedback = functions.one if feedback is None else feedback

    # -- sums ------------------------------------------------------------------------------------------

    def add(self, *xs: Operator) -> Operator:
        """The sum.  Raises NotApplicable where units differ."""
        live = [x for x in xs if x.entries]
        if not live:
            return xs[0] if xs else Operator({}, True)
        top = max(x.damping for x in live)
        kinds = {(x.causal, x.flipped, x.unit) for x in live}
        if len(kinds) > 1:
            raise NotApplicable(
                f"a sum of operators of different kind (causal, flipped, unit): {sorted(kinds)}"
            )
        out: dict[Place, TwoTimes] = {}
        for damping in sorted({x.damping for x in live}):
            alike: dict[Place, TwoTimes] = {}
            for x in live:
                if x.damping == damping:
                    for place, f in x.entries.items():
                        for m, g in f.items():
                            self._put(alike.setdefault(place, {}), m, g)
            lift = self.feedback ** (top - damping)
            for place, f in alike.items():
                for m, g in f.items():
                    self._put(out.setdefault(place, {}), m, g if damping == top else g * lift)
        return replace(live[0], entries=_without_zeros(out), damping=top)

    def scale(self, c: PolyElement, x: Operator) -> Operator:
        """A number (a polynomial in the parameters) times an operator."""
        if not c:
            return replace(x, entries={})
        if c == self.functions.one:
            return x
        return replace(x, entries={place: {m: g * c for m, g in f.items()} for place, f in x.entries.items()})

    # -- products --------------------------------------------------------------------------------------

    def transpose(self, x: Operator) -> Operator:
        """Rows and columns, and the two times, exchanged."""
        if x.causal:
            return replace(x, flipped=not x.flipped)
        return replace(x, entries={(j, i): self.swapped(f) for (i, j), f in x.entries.items()})

    def swapped(self, f: TwoTimes) -> TwoTimes:
        """``f(s, t)``."""
        out: TwoTimes = {}
        for m, g in f.items():
            now = self.functions.term(m)
            for p, c in self.functions.parts(g).items():
                self._put(out, p, c * now)
        return _clean(out)

    def product(self, a: Operator, b: Operator) -> Operator:
        """``a b``: the time between runs up to t for causal a, and from s if b is causal too.

        Raises NotApplicable where nothing bounds the time between.
        """
        if b.flipped:
            return self.transpose(self.product(self.transpose(b), self.transpose(a)))
        if not a.causal or a.flipped:
            raise NotApplicable("nothing bounds the time between two operators")
        out: dict[Place, TwoTimes] = {}
        for (i, k), f in a.entries.items():
            for (k_, j), g in b.entries.items():
                if k == k_:
                    into = out.setdefault((i, j), {})
                    (self._between if b.causal else self._upto)(f, g, into)
        return Operator(_without_zeros(out), b.causal, a.unit + b.unit, a.damping + b.damping)

    def _upto(self, f: TwoTimes, g: TwoTimes, into: TwoTimes) -> None:
        x = self.functions
        for last, right in g.items():
            for m, left in f.items():
                self._put(into, last, left * x.integral(x.term(m) * right))

    def _between(self, f: TwoTimes, g: TwoTimes, into: TwoTimes) -> None:
        x = self.functions
        for last, right in g.items():
            for m, left in f.items():
                inner = x.term(m) * right
                whole = x.integral(inner)
                self._put(into, last, left * whole)
                # in steps the sum starts after s
                before = whole + inner if x.discrete else whole
                for p, c in x.parts(before).items():
                    self._put(into, _times(p, last), -(left * c))

    def elementwise(self, a: Operator, b: Operator) -> Operator:
        """Entry by entry; a has no sample indices."""
        out: dict[Place, TwoTimes] = {}
        for f in a.entries.values():
            for place, g in b.entries.items():
                into = out.setdefault(place, {})
                for m, u in f.items():
                    for n, v in g.items():
                        self._put(into, _times(m, n), u * v)
        return Operator(_without_zeros(out), False, a.unit + b.unit, a.damping + b.damping)

    # -- memories and equal times ----------------------------------------------------------------------

    def remembered(self, x: Operator, error: Vector, rows: bool) -> Operator:
        """The causal operator ``sum_j X_ij(t, s) error_j(s)`` (``rows``), or ``X(t, s) error_j(s)``.

        One letter carries one power of the unit and one of the inverse feedback: the weight of an update.
        """
        out: dict[Place, TwoTimes] = {}
        for (i, j), f in x.entries.items():
            for k, e in error.entries.items():
                if rows and k != j:
                    continue
                into = out.setdefault((i, 0) if rows else (0, k), {})
                for p, c in self.functions.parts(e).items():
                    for m, g in f.items():
                        self._put(into, _times(m, p), g * c)
        unit, damping = x.unit + error.unit + 1, x.damping + error.damping + 1
        return Operator(_without_zeros(out), True, unit, damping)

    def equal_times(self, x: Operator) -> Vector:
        """The entries at s = t, one for each row."""
        out: dict[int, PolyElement] = {}
        for (i, _), f in x.entries.items():
            for m, g in f.items():
                value = g * self.functions.term(m)
                out[i] = out[i] + value if i in out else value
        return Vector({i: f for i, f in out.items() if f}, x.unit, x.damping)

    def scale_vector(self, c: PolyElement, v: Vector) -> Vector:
        """A number times a vector."""
        return replace(v, entries={i: f * c for i, f in v.entries.items()} if c else {})

    def add_vectors(self, *xs: Vector) -> Vector:
        """The sum.  Raises NotApplicable where units differ."""
        live = [x for x in xs if x.entries]
        if len({x.unit for x in live}) > 1:
            raise NotApplicable("a sum of vectors of different units")
        if not live:
            return Vector({})
        top = max(x.damping for x in live)
        out: dict[int, PolyElement] = {}
        for damping in sorted({x.damping for x in live}):
            lift = self.feedback ** (top - damping)
            alike: dict[int, PolyElement] = {}
            for x in live:
                if x.damping == damping:
                    for i, f in x.entries.items():
                        alike[i] = alike[i] + f if i in alike else f
            for i, f in alike.items():
                out[i] = out.get(i, self.functions.zero) + f * lift
        return Vector({i: f for i, f in out.items() if f}, live[0].unit, top)

    def reduced(self, v: Vector) -> Vector:
        """The same vector with common factors of feedback divided out."""
        if self.feedback.is_ground:
            return v
        damping, entries = v.damping, v.entries
        while damping > 0 and entries:
            halves = {i: f.div(self.feedback) for i, f in entries.items()}
            if any(rest for _, rest in halves.values()):
                break
            entries, damping = {i: q for i, (q, _) in halves.items()}, damping - 1
        return Vector(entries, v.unit, damping)

    @staticmethod
    def _put(into: TwoTimes, key: Powers, g: PolyElement) -> None:
        into[key] = into[key] + g if key in into else g


def _times(a: Powers, b: Powers) -> Powers:
    return tuple(x + y for x, y in zip(a, b, strict=True))


def _clean(f: TwoTimes) -> TwoTimes:
    return {m: g for m, g in f.items() if g}


def _without_zeros(entries: dict[Place, TwoTimes]) -> dict[Place, TwoTimes]:
    cleaned = {place: _clean(f) for place, f in entries.items()}
    return {place: f for place, f in cleaned.items() if f}


__all__ = ["Algebra", "Operator", "TwoTimes", "Vector"]
