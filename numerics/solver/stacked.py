"""Steps of a linear march whose fields have one member each, with little done in the interpreter.

The recursions are those of :mod:`~numerics.solver.march`.  All two-time arrays with the same first field
stand stacked, ``(arrays, time, time)``, so that a kernel's row multiplies them in one product.

Times are positions.  A position need not be a time: :mod:`~numerics.solver.folded` lets some stand for
coordinates of all that is long past, ``unit`` being those of a row of ones.  Position 0 is time 0 where that
is read (``first``).  All this is possible where kernels are sums of numbers times order parameters
(:func:`stackable`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sympy import Expr

from derive.calculus.symbols import s, t
from numerics.compile.lower import Kernel, Node, Reach, Table
from numerics.solver.plan import Plan

Array = NDArray[np.float64]
Key = tuple[Literal["C", "R"], Node, Node]
"""A correlation of two fields, or the response of a field to a source."""
Left = tuple[Literal["K", "U"], Node, Any]
"""What stands left in a product: the kernel of a field's coupling, or the covariance of two sources."""
Step = Callable[[int], None]


@dataclass(frozen=True)
class Product:
    """``left(t, .) right(., s)`` as a part of the row of ``result``."""

    left: Left
    right: Key
    transposed: bool
    result: Key


class _Term(NamedTuple):
    """``left`` times an array, of which the image is what is past, and times its field's own source."""

    left: Left
    array: Array | None
    image: Array | None
    gain: float
    reach: Reach


@dataclass(frozen=True)
class _Part:
    """``number * rows(t, s)``, ones where ``rows`` is None, and what is there at s = t besides."""

    number: float
    rows: Array | None
    direct: float
    past: bool
    present: bool


def _present(parts: list[_Part]) -> Callable[[int], float]:
    """The sum of some parts at s = t."""
    terms = [(p.number, p.direct, p.rows) for p in parts if p.present]

    def value(at: int) -> float:
        total = 0.0
        for number, direct, rows in terms:
            total += number * (direct if rows is None else direct + rows.item(at, at))
        return total

    return value


def stackable(table: Table, plan: Plan, sizes: Mapping[Node, int], widths: Mapping[Node, int]) -> bool:
    """Are all kernels sums of numbers times order parameters, and all fields and sources single?"""
    if table.scalars or table.hoisted or plan.sums or any(r.unit for r in table.fields):
        return False
    if {*sizes.values(), *widths.values()} != {1}:
        return False
    kernels = [c.kernel for r in table.fields for c in r.couplings]
    return all(
        not m.coefficient.has(t, s)
        and len(m.factors) <= 1
        and all(f.tensor in table.tensors and f.indices == (t, s) for f in m.factors)
        for k in (*kernels, *table.covariances.values())
        for m in k.monomials
    )


class Stack:
    """The arrays of a march over ``size`` positions, and its steps in the order of ``plan``.

    ``left`` and ``here`` are the rows of the present step before the present and at it.
    """

    def __init__(self, plan: Plan, number: Callable[[Expr], float], size: int) -> None:
        self.plan, self.number, self.table = plan, number, plan.table
        self.gains = {r.field: {k: number(g) for k, g in r.drives} for r in self.table.fields}
        keys: dict[Node, list[Key]] = {r.field: [] for r in self.table.fields}
        for i, k in plan.responses:
            keys[i].append(("R", i, k))
        for i, j in plan.rows:
            keys[i].append(("C", i, j))
        self.stacks = {i: np.zeros((len(x), size, size)) for i, x in keys.items()}
        self.place = {key: n for x in keys.values() for n, key in enumerate(x)}
        self.arrays: dict[Key, Array] = {key: self.stacks[key[1]][n] for key, n in self.place.items()}
        self.unit = np.ones(size)
        self.first = any(c.kernel.reach == "start" for r in self.table.fields for c in r.couplings)
        self.now: dict[tuple[Node, Node], float] = {}
        self.left: dict[Left, Array] = {}
        self.here: dict[Left, float] = {}
        self.images: dict[Left, Array] = {}
        self.products: list[Product] = []
        self.steps: list[Step] = []
        make = {"kernel": self._kernel, "response": self._response, "past": self._past, "now": self._now}
        for kind, one, other in plan.order:
            self.steps.append(make[kind](one, other))

    def step(self, at: int) -> None:
        """All quantities at position ``at``, from those before."""
        for one in self.steps:
            one(at)

    def equal(self, a: Node, b: Node) -> float:
        """``C_ab(t, t)`` at the last position."""
        return self.now[a, b] if (a, b) in self.now else self.now[b, a]

    # -- what stands left ------------------------------------------------------------------------------

    def _parts(self, kernel: Kernel) -> list[_Part]:
        parts = []
        for m in kernel.monomials:
            number, rows, direct = self.number(m.coefficient), None, 1.0
            if m.factors:
                q = self.table.tensors[m.factors[0].tensor]
                response = q.kind == "response"
                number *= self.number(q.factor)
                direct = self.gains[q.first].get(q.second, 0.0) if response else 0.0
                rows = self.arrays.get(("R" if response else "C", q.first, q.second))
                if rows is None and not direct:
                    continue  # no path leads from the source to the field
            past = not m.instant and (rows is not None or not m.factors)
            parts.append(_Part(number, rows, direct, past, not m.strict))
        return parts

    def _rows(self, key: Left, kernel: Kernel, present: bool) -> Step:
        """Fill in ``left[key]`` and, if it is read, ``here[key]``."""
        parts, unit, left, here = self._parts(kernel), self.unit, self.left, self.here
        first, *more = [(p.number, p.rows) for p in parts if p.past] or [(0.0, None)]
        now = _present(parts)

        def step(at: int) -> None:
            number, a = first
            value = unit[:at] if a is None else a[at, :at]
            if number != 1.0:
                value = number * value
            for number, a in more:
                value = value + (number * (unit[:at] if a is None else a[at, :at]))
            left[key] = value
            if present:
                here[key] = now(at)

        return step

    def _first(self, key: Left, kernel: Kernel) -> Step:
        """``here[key]`` is the value at time 0, which stays at position 0."""
        parts, here = self._parts(kernel), self.here
        past, now = [(p.number, p.rows) for p in parts if p.past], _present(parts)

        def step(at: int) -> None:
            here[key] = sum(c * (1.0 if a is None else a.item(at, 0)) for c, a in past) if at else now(0)

        return step

    def _kernel(self, i: Node, place: Node) -> Step:
        """The row of a coupling, and its products with all arrays of the field that it reads."""
        n = place[1] or 0
        coupling = self.plan.rows_of[i].couplings[n]
        key: Left = ("K", i, n)
        if coupling.kernel.reach == "start":
            return self._first(key, coupling.kernel)
        row = self._rows(key, coupling.kernel, coupling.kernel.reach != "past")
        if coupling.kernel.reach == "now":
            return row
        stack, left = self.stacks[coupling.field], self.left
        self.images[key] = image = np.zeros(stack.shape[:2])

        def step(at: int) -> None:
            row(at)
            np.matmul(left[key], stack[:, :at, :at], out=image[:, :at])

        return step

    def _covariance(self, own: Node, k: Node) -> tuple[Left, Step | None]:
        """The row of a covariance, filled in by the first operation that reads it."""
        key: Left = ("U", own, k)
        if key in self.left:
            return key, None
        self.left[key] = self.unit[:0]
        return key, self._rows(key, self.table.covariances[own, k], present=False)

    def _couplings(self, i: Node, kind: Literal["C", "R"], j: Node) -> list[_Term]:
        """The terms that other fields add to an array of ``i``."""
        terms = []
        for n, c in enumerate(self.plan.rows_of[i].couplings):
            key: Left = ("K", i, n)
            right: Key = (kind, c.field, j)
            array, image, reach = self.arrays.get(right), None, c.kernel.reach
            if array is not None and reach in ("past", "through"):
                self.products.append(Product(key, right, False, (kind, i, j)))
                image = self.images[key][self.place[right]]
            gain = self.gains[c.field].get(j, 0.0) if kind == "R" else 0.0
            terms.append(_Term(key, array, image, gain, reach))
        return terms

    # -- rows ------------------------------------------------------------------------------------------

    def _response(self, i: Node, k: Node) -> Step:
        target, left, here = self.arrays["R", i, k], self.left, self.here
        terms, first = self._ordered(self._couplings(i, "R", k))

        def step(at: int) -> None:
            row, present = target[at, :at], 0.0
            row[:] = 0.0 if first is None else first[:at]
            for key, array, image, gain, reach in terms:
                if image is not None:
                    row += image[:at]
                if gain and reach in ("past", "through"):
                    row += left[key] if gain == 1.0 else gain * left[key]
                if reach == "past" or not (c := here[key]):
                    continue
                if reach == "start" and at:
                    row[0] += c * (gain + (0.0 if array is None else array.item(0, 0)))
                    continue
                present += c * gain
                if array is not None:
                    row += c * array[at, :at]
                    present += c * array.item(at, at)
            target[at, at] = present

        return step

    def _ordered(self, terms: list[_Term]) -> tuple[list[_Term], Array | None]:
        """Terms that are not zero, the image of one of them apart: a row begins with it."""
        terms = sorted((x for x in terms if x.array is not None or x.gain), key=lambda x: x.image is None)
        if not terms or terms[0].image is None:
            return terms, None
        return [terms[0]._replace(image=None), *terms[1:]], terms[0].image

    def _past(self, i: Node, j: Node) -> Step:
        target, left, here = self.arrays["C", i, j], self.left, self.here
        mirror, sources = self.arrays.get(("C", j, i)), []
        terms, first = self._ordered(self._couplings(i, "C", j))
        for own, k in self.plan.terms(i, j):
            if self.table.covariances[own, k].local:
                continue  # there is none between different times
            key, row = self._covariance(own, k)
            gain, response = self.gains[i][own], self.arrays.get(("R", j, k))
            if response is not None:
                self.products.append(Product(key, ("R", j, k), True, ("C", i, j)))
            sources.append((key, row, response, gain, gain * self.gains[j].get(k, 0.0)))

        def step(at: int) -> None:
            row = target[at, :at]
            row[:] = 0.0 if first is None else first[:at]
            for key, array, image, _, reach in terms:
                if image is not None:
                    row += image[:at]
                if reach != "past" and array is not None and (c := here[key]):
                    row += c * array[0 if reach == "start" else at, :at]
            for key, covariance, response, gain, direct in sources:
                if covariance is not None:
                    covariance(at)
                u = left[key]
                if response is not None:
                    answer = response[:at, :at] @ u
                    row += answer if gain == 1.0 else gain * answer
                if direct:
                    row += u if direct == 1.0 else direct * u
            if mirror is not None:
                mirror[:at, at] = row

        return step

    def _now(self, i: Node, j: Node) -> Step:
        left, here, now = self.left, self.here, self.now
        terms: list[tuple[Left, Node, Array | None, Reach]] = []
        for n, c in enumerate(self.plan.rows_of[i].couplings):
            terms.append((("K", i, n), c.field, self.arrays.get(("C", j, c.field)), c.kernel.reach))
        sources = []
        for own, k in self.plan.terms(i, j):
            key, row = self._covariance(own, k)
            present = _present(self._parts(self.table.covariances[own, k]))
            gain, response = self.gains[i][own], self.arrays.get(("R", j, k))
            local, direct = self.table.covariances[own, k].local, self.gains[j].get(k, 0.0)
            sources.append((key, None if local else row, present, response, gain, direct, local))
        pair, mirror = self.arrays.get(("C", i, j)), self.arrays.get(("C", j, i))

        def step(at: int) -> None:
            value = 0.0
            for key, field, array, reach in terms:
                if reach in ("past", "through") and array is not None:
                    value += float(left[key].dot(array[at, :at]))
                if reach != "past" and (c := here[key]):
                    before = array if reach == "start" and at else None
                    value += c * (self.equal(field, j) if before is None else before.item(at, 0))
            for key, covariance, present, response, gain, direct, local in sources:
                if covariance is not None:
                    covariance(at)
                u = present(at)
                answer = direct * u
                if response is not None:
                    answer += u * response.item(at, at)
                    if not local:
                        answer += float(left[key].dot(response[at, :at]))
                value += gain * answer
            now[i, j] = value
            if pair is not None:
                pair[at, at] = value
            if mirror is not None:
                mirror[at, at] = value

        return step
