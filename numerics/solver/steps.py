"""The steps of a linear march: every operation of a plan made into a function of the step beforehand.

With x_i(t) = g_i u_i(t) + sum_l sum_s K_il(t, s) x_l(s), rows follow from earlier rows:

    response     R_ik(t, s) = g_i [i driven by k] delta_ts + sum_l K_il(t, .) R_lk(., s)
    correlation  C_ij(t, s) = g_i sum_k <u_i(t) u_k(.)> R_jk(s, .)^T + sum_l K_il(t, .) C_lj(., s)

the first term of the second line being Stein's lemma.  Arrays are time-major, ``(T n, T m)`` for fields with
n and m members, so that everything known before t is a leading block.  Those with the same first field and as
many columns stand stacked, so that a kernel's row multiplies them in one product.

Times are positions.  A position need not be a time: :mod:`~numerics.solver.folded` lets some stand for
coordinates of all that is long past, ``unit`` being those of a row of ones.  Position 0 is time 0 where that
is read (``first``).  That is possible where kernels are sums of numbers times order parameters and fields are
single (:func:`foldable`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Symbol, lambdify

from derive.calculus.symbols import s, t
from numerics.compile.lower import Factor, Kernel, Monomial, Node, Reach
from numerics.solver.plan import Plan
from numerics.solver.rows import Rows
from numerics.tensors import arranged

Array = NDArray[np.float64]
Key = tuple[Literal["C", "R"], Node, Node]
"""A correlation of two fields, or the response of a field to a source."""
Left = tuple[Literal["K", "U"], Node, Any]
"""What stands left in a product: the kernel of a field's coupling, or the covariance of two sources."""
Step = Callable[[int], None]

LONG = 96
"""Times from which on products leave out the blocks of responses that are zero."""


@dataclass(frozen=True)
class Product:
    """``left(t, .) right(., s)`` as a part of the row of ``result``."""

    left: Left
    right: Key
    transposed: bool
    result: Key


class _Term(NamedTuple):
    """``left`` times an array of ``size`` rows a time, of which the image is what is past, and times its
    field's own source.
    """

    left: Left
    array: Array | None
    image: Array | None
    gain: float
    reach: Reach
    size: int


class _Source(NamedTuple):
    """What a field gets from one of its sources: that is correlated with another, ``size`` wide, which the
    other field feels by way of others (``response``) and at once (``direct``).

    ``past`` and ``now`` fill in the covariance, where this is the first to read it.
    """

    left: Left
    past: Step | None
    now: Step | None
    local: bool
    gain: float
    response: Array | None
    direct: float
    size: int


@dataclass(frozen=True)
class _Part:
    """``number * rows(t, s)``, ones where ``rows`` is None, and ``direct`` besides at s = t."""

    number: float
    rows: Array | None
    direct: Array | None
    past: bool
    present: bool


def _blocks(at: int) -> Iterator[tuple[int, int]]:
    """Times in blocks; responses are zero before the first time of a block."""
    return pairwise((0, at // 4, at // 2, 3 * at // 4, at))


class OnUnits(Protocol):
    """Fields that live on units, as :class:`~numerics.solver.march.Units` steps them."""

    def step(self, step: int) -> None:
        """All of them at one time."""

    def total(self, step: int, tensor: Node) -> Array:
        """A sum over units at this time and s = 0..step."""


class Steps:
    """All quantities at ``size`` positions, in the order of ``plan``.

    Fills the arrays of ``rows``, which it makes; operations are there after :meth:`make`.  ``left`` and
    ``here`` are the rows of kernels and covariances of the present step, before the present and at it (no
    entry for kernels that are zero there).
    ``functions`` gives what scalars contain of given functions; ``times``: all positions are times.
    """

    def __init__(
        self,
        plan: Plan,
        rows: Rows,
        size: int,
        functions: Mapping[str, Callable[..., Any]] | None = None,
        times: bool = True,
    ) -> None:
        self.long = LONG if times else size
        self.plan, self.rows, self.table, self.size = plan, rows, plan.table, size
        self.n, self.m = rows.sizes, rows.widths
        fields = [r for r in self.table.fields if not r.unit]
        self.gains = {r.field: {k: rows.number(g) for k, g in r.drives} for r in fields}
        self.first = any(c.kernel.reach == "start" for r in self.table.fields for c in r.couplings)
        self.unit = np.ones((1, size))
        self.at = 0
        self.left: dict[Left, Array] = {}
        self.here: dict[Left, Array] = {}
        self.now: dict[tuple[Node, Node], Array] = {}
        self.read: set[tuple[Left, Reach]] = set()
        self.arrays: dict[Key, Array] = {}
        self.stacks: list[Array] = []
        self.place: dict[Key, tuple[int, int]] = {}
        self.images: dict[Left, dict[Key, Array]] = {}
        self.products: list[Product] = []
        self._allocate()
        self.kernels: dict[tuple[Node, int], Array] = {}
        self.given = tuple((functions or {}).items())
        self.steps: list[Step] = []

    def make(self, units: OnUnits | None = None) -> Steps:
        """Make all operations, those on ``units`` too; returns itself."""
        self.units = units
        self.functions = {
            x.name: _compiled((t, *x.arguments), x.expression.subs(dict(self.rows.constants)), self.given)
            for x in self.table.scalars
        }
        make: dict[str, Callable[[Node, Node], Step]] = {
            "kernel": self._kernel,
            "response": self._response,
            "past": self._past,
            "now": self._now,
            "scalar": self._scalar,
            "hoist": self._hoist,
            "units": self._on_units,
            "sum": self._sum,
        }
        self.steps += [make[kind](one, other) for kind, one, other in self.plan.order]
        return self

    def step(self, at: int) -> None:
        """All quantities at position ``at``, from those before."""
        self.at = at
        for one in self.steps:
            one(at)

    def equal(self, a: Node, b: Node) -> Array:
        """``C_ab(t, t)`` at the last position."""
        return self._equal(a, b)(self.at)

    # -- arrays ----------------------------------------------------------------------------------------

    def _rights(self, i: Node, n: int) -> list[Key]:
        """The arrays that the past of a coupling multiplies."""
        c = self.plan.rows_of[i].couplings[n]
        if c.kernel.reach not in ("past", "through"):
            return []
        found: list[Key] = [("R", c.field, k) for i_, k in self.plan.responses if i_ == i]
        return found + [("C", c.field, j) for i_, j in self.plan.rows if i_ == i]

    def _allocate(self) -> None:
        """Arrays that the same kernels multiply stand next to each other."""
        rows, table, size = self.rows, self.table, self.size
        readers: dict[Key, list[tuple[Node, int]]] = {("R", i, k): [] for i, k in self.plan.responses}
        for i, j in self.plan.rows:
            if ("C", j, i) not in readers:
                readers["C", i, j] = []
        for r in table.fields:
            for n in range(0 if r.unit else len(r.couplings)):
                for right in self._rights(r.field, n):
                    if right in readers:
                        readers[right].append((r.field, n))
        groups: dict[tuple[str, Node, int], list[Key]] = {}
        for key in sorted(readers, key=lambda x: str((readers[x], x))):
            width = self.m[key[2]] if key[0] == "R" else self.n[key[2]]
            kind = key[0] if size > self.long else ""  # of few times both kinds are one product
            groups.setdefault((kind, key[1], width), []).append(key)
        for (_, field, width), keys in groups.items():
            stack = np.zeros((len(keys), size * self.n[field], size * width))
            for place, key in enumerate(keys):
                self.arrays[key], self.place[key] = stack[place], (len(self.stacks), place)
            self.stacks.append(stack)
        for kind, i, j in readers:
            held = rows.responses if kind == "R" else rows.correlations
            held[i, j] = a = self.arrays[kind, i, j]
            if kind == "C" and i != j:
                self.arrays[kind, j, i] = a.T
        rows.scalars.update({x.name: np.zeros((size, *rows.shape(x.indices))) for x in table.scalars})
        rows.hoisted.update({h.tensor: np.zeros((size, *rows.shape(h.rows))) for h in table.hoisted})
        rows.sums.update({n: np.zeros((size, size)) for n in self.plan.sums})

    def _equal(self, a: Node, b: Node) -> Callable[[int], Array]:
        """``C_ab(t, t)``, in the array where there is one."""
        n, m, now, array = self.n[a], self.n[b], self.now, self.arrays.get(("C", a, b))
        if array is not None:
            return lambda at: array[at * n : (at + 1) * n, at * m : (at + 1) * m]
        if (a, b) in self.plan.diagonals:
            return lambda at: now[a, b]
        return lambda at: now[b, a].T

    # -- what stands left ------------------------------------------------------------------------------

    def _parts(self, kernel: Kernel) -> list[_Part] | None:
        """A kernel that is a sum of numbers times order parameters, as its parts; None if it is more."""
        n, p = (prod(self.rows.shape(x)) for x in (kernel.rows, kernel.cols))
        parts = []
        for m in kernel.monomials:
            if not _is_plain(m, kernel, self.plan):
                return None
            number, rows, direct = self.rows.number(m.coefficient), None, None
            if m.factors:
                q = self.table.tensors[m.factors[0].tensor]
                number *= self.rows.number(q.factor)
                if q.kind == "correlation":
                    rows = self.arrays["C", q.first, q.second]
                else:
                    rows = self.arrays.get(("R", q.first, q.second))
                    if (gain := self.gains[q.first].get(q.second)) is not None:
                        direct = gain * np.eye(n, p)
                    elif rows is None:
                        continue  # no path leads from the source to the field
            else:
                direct = np.ones((n, p))
            past = not m.instant and (rows is not None or not m.factors)
            parts.append(_Part(number, rows, direct, past, not m.strict))
        return parts

    def _row(self, key: Left, kernel: Kernel, reach: Reach) -> Step:
        """Fill in ``left[key]`` and ``here[key]``, as far as the kernel reaches."""
        left, here, parts = self.left, self.here, self._parts(kernel)
        if parts is not None:
            return self._sum_of(key, kernel, parts, reach)
        evaluate, p = self.rows.compile(kernel, reach), prod(self.rows.shape(kernel.cols))

        def before(at: int) -> None:
            left[key] = evaluate(at)

        def through(at: int) -> None:
            row = evaluate(at)
            left[key], here[key] = row[:, : at * p], row[:, at * p :]

        def present(at: int) -> None:
            here[key] = evaluate(at)

        return {"past": before, "through": through}.get(reach, present)

    def _sum_of(self, key: Left, kernel: Kernel, parts: list[_Part], reach: Reach) -> Step:
        left, here = self.left, self.here
        n, p = (prod(self.rows.shape(x)) for x in (kernel.rows, kernel.cols))
        ones = self.unit if n == p == 1 else np.ones((n, self.size * p))
        first, *more = [(x.number, x.rows) for x in parts if x.past] or [(0.0, None)]
        fixed = sum(
            (x.number * x.direct for x in parts if x.present and x.direct is not None), np.zeros((n, p))
        )
        at_once = [(x.number, x.rows) for x in parts if x.present and x.rows is not None]

        def before(at: int, high: int) -> Array:
            low, (number, rows) = at * n, first
            value = ones[:, :high] if rows is None else rows[low : low + n, :high]
            if number != 1.0:
                value = number * value
            for number, rows in more:
                value = value + number * (ones[:, :high] if rows is None else rows[low : low + n, :high])
            return value

        def present(at: int) -> Array:
            value = fixed
            for number, rows in at_once:
                value = value + number * rows[at * n : (at + 1) * n, at * p : (at + 1) * p]
            return value

        def step(at: int) -> None:
            if reach == "past":
                left[key] = before(at, at * p)
            elif reach == "start":
                here[key] = before(at, p) if at else present(0)
            else:
                here[key] = present(at)
                if reach == "through":
                    left[key] = before(at, at * p)

        return step

    def _kernel(self, i: Node, place: Node) -> Step:
        """The row of a coupling, and its products with all arrays of the field that it reads."""
        n, kernels = place[1] or 0, self.kernels
        row, c = self.plan.rows_of[i], self.plan.rows_of[i].couplings[n]
        if row.unit:
            evaluate = self.rows.compile(c.kernel)

            def on_units(at: int) -> None:
                kernels[i, n] = evaluate(at)

            return on_units
        key: Left = ("K", i, n)
        fill, left, p = self._row(key, c.kernel, c.kernel.reach), self.left, self.n[c.field]
        long = self.long
        images = self.images[key] = {}
        products: list[tuple[Array, Array, int, bool]] = []
        for stack, keys in self._neighbours([x for x in self._rights(i, n) if x in self.arrays]):
            image = np.zeros((len(keys), self.n[i], stack.shape[2]))
            triangular = all(kind == "R" for kind, _, _ in keys)
            products.append((stack, image, stack.shape[2] // self.size, triangular))
            images |= dict(zip(keys, image, strict=True))

        here, present = self.here, c.kernel.reach != "past"

        def step(at: int) -> None:
            fill(at)
            if present and not np.count_nonzero(here[key]):
                del here[key]  # as most responses at equal times
            if products:
                K = left[key]
                for array, image, m, triangular in products:
                    if not triangular or at < long:
                        np.matmul(K, array[:, : at * p, : at * m], out=image[:, :, : at * m])
                        continue
                    for low, high in _blocks(at):
                        block = array[:, low * p : at * p, low * m : high * m]
                        np.matmul(K[:, low * p :], block, out=image[:, :, low * m : high * m])

        return step

    def _neighbours(self, keys: list[Key]) -> Iterator[tuple[Array, list[Key]]]:
        """Arrays that stand next to each other in a stack, together; those held the other way round alone."""
        alone = (len(self.stacks), 0)
        run: list[Key] = []
        for x in sorted(keys, key=lambda x: self.place.get(x, alone)):
            if x not in self.place:
                yield self.arrays[x][None], [x]
                continue
            stack, place = self.place[x]
            if run and (stack, place - 1) != self.place[run[-1]]:
                yield self._together(run), run
                run = []
            run.append(x)
        if run:
            yield self._together(run), run

    def _together(self, keys: list[Key]) -> Array:
        stack, first = self.place[keys[0]]
        return self.stacks[stack][first : first + len(keys)]

    def _covariance(self, own: Node, k: Node, reach: Reach) -> Step | None:
        """The row of a covariance, filled in by the first operation that reads it."""
        key: Left = ("U", own, k)
        if (key, reach) in self.read:
            return None
        self.read.add((key, reach))
        return self._row(key, self.table.covariances[own, k], reach)

    def _couplings(self, i: Node, kind: Literal["C", "R"], j: Node) -> tuple[list[_Term], Array | None]:
        """The terms that other fields add to an array of ``i``; the image of one of them apart: a row begins
        with it.
        """
        terms, begins = [], None
        for n, c in enumerate(self.plan.rows_of[i].couplings):
            key: Left = ("K", i, n)
            right: Key = (kind, c.field, j)
            array, image = self.arrays.get(right), self.images[key].get(right)
            if image is not None:
                self.products.append(Product(key, right, False, (kind, i, j)))
                if begins is None:
                    begins, image = image, None
            gain = self.gains[c.field].get(j, 0.0) if kind == "R" else 0.0
            if array is not None or gain:
                terms.append(_Term(key, array, image, gain, c.kernel.reach, self.n[c.field]))
        return terms, begins

    def _sources(self, i: Node, j: Node, now: bool) -> Iterator[_Source]:
        """The sources of ``i`` with those that they are correlated with and that ``j`` feels."""
        for own, k in self.plan.terms(i, j):
            local = self.table.covariances[own, k].local
            if local and not now:
                continue  # there is none between different times
            yield _Source(
                ("U", own, k),
                None if local else self._covariance(own, k, "past"),
                self._covariance(own, k, "now") if now else None,
                local,
                self.gains[i][own],
                self.arrays.get(("R", j, k)),
                self.gains[j].get(k, 0.0),
                self.m[k],
            )

    # -- rows ------------------------------------------------------------------------------------------

    def _response(self, i: Node, k: Node) -> Step:
        target, left, here = self.arrays["R", i, k], self.left, self.here
        n, m = self.n[i], self.m[k]
        terms, first = self._couplings(i, "R", k)
        at_once, times = any(x.reach != "past" for x in terms), _times(n, terms)

        def step(at: int) -> None:
            end = at * m
            past = target[at * n : (at + 1) * n, :end]
            past[...] = 0.0 if first is None else first[:, :end]
            if at_once:
                row = target[at * n : (at + 1) * n]
                row[:, end : end + m] = 0.0
            for key, array, image, gain, reach, p in terms:
                if image is not None:
                    past += image[:, :end]
                if gain and reach in ("past", "through"):
                    past += left[key] if gain == 1.0 else gain * left[key]
                if reach == "past" or (c := here.get(key)) is None:
                    continue
                low = 0 if reach == "start" else at
                if gain:
                    row[:, low * m : (low + 1) * m] += gain * c
                if array is not None:
                    row[:, : (low + 1) * m] += times(c, array[low * p : (low + 1) * p, : (low + 1) * m])

        return step

    def _past(self, i: Node, j: Node) -> Step:
        """``C_ij(t, s)`` for s < t."""
        target, left, here = self.arrays["C", i, j], self.left, self.here
        n, m, long = self.n[i], self.n[j], self.long
        terms, first = self._couplings(i, "C", j)
        terms = [x for x in terms if x.image is not None or x.reach != "past"]
        times = _times(n, terms)
        sources = list(self._sources(i, j, now=False))
        for x in sources:
            if x.response is not None:
                self.products.append(Product(x.left, ("R", j, x.left[2]), True, ("C", i, j)))

        def step(at: int) -> None:
            end = at * m
            row = target[at * n : (at + 1) * n, :end]
            row[...] = 0.0 if first is None else first[:, :end]
            for key, array, image, _, reach, p in terms:
                if image is not None:
                    row += image[:, :end]
                if reach != "past" and array is not None and (c := here.get(key)) is not None:
                    low = 0 if reach == "start" else at
                    row += times(c, array[low * p : (low + 1) * p, :end])
            for key, covariance, _, _, gain, response, direct, q in sources:
                if covariance is not None:
                    covariance(at)
                u = left[key] if gain == 1.0 else gain * left[key]
                if response is not None and at < long:
                    row += u @ response[:end, : at * q].T
                elif response is not None:
                    for low, high in _blocks(at):
                        block = response[low * m : end, low * q : high * q]
                        row[:, low * m :] += u[:, low * q : high * q] @ block.T
                if direct:
                    row += u if direct == 1.0 else direct * u
            if i == j:
                target[:end, at * n : (at + 1) * n] = row.T

        return step

    def _now(self, i: Node, j: Node) -> Step:
        """``C_ij(t, t)``."""
        left, here, now = self.left, self.here, self.now
        n, m = self.n[i], self.n[j]
        terms = []
        for at, c in enumerate(self.plan.rows_of[i].couplings):
            array, reach, p = self.arrays.get(("C", j, c.field)), c.kernel.reach, self.n[c.field]
            equal = self._equal(c.field, j) if reach != "past" else None
            key: Left = ("K", i, at)
            terms.append((key, array, equal, reach, p))
        sources = list(self._sources(i, j, now=True))
        pair = self.arrays.get(("C", i, j))

        def single(at: int) -> None:
            total = 0.0
            for key, array, equal, reach, _ in terms:
                if reach in ("past", "through") and array is not None:
                    total += float(left[key][0].dot(array[at, :at]))
                if equal is not None and (c := here.get(key)) is not None:
                    start = array if reach == "start" and at else None
                    total += c.item() * (equal(at) if start is None else start[at : at + 1, :1]).item()
            for key, past, present, local, gain, response, direct, _ in sources:
                if past is not None:
                    past(at)
                if present is not None:
                    present(at)
                u = here[key].item()
                answer = direct * u
                if response is not None:
                    answer += u * response.item(at, at)
                    if not local:
                        answer += float(left[key][0].dot(response[at, :at]))
                total += gain * answer
            if pair is None:
                now[i, j] = np.full((1, 1), total)
            else:
                pair[at, at] = total

        if {n, m, *(x[4] for x in terms), *(x.size for x in sources)} == {1}:
            return single

        def step(at: int) -> None:
            value = np.zeros((n, m))
            for key, array, equal, reach, p in terms:
                if reach in ("past", "through") and array is not None:
                    value += left[key].dot(array[at * m : (at + 1) * m, : at * p].T)
                if equal is not None and (c := here.get(key)) is not None:
                    if reach == "start" and at and array is not None:
                        value += c.dot(array[at * m : (at + 1) * m, :p].T)
                    else:
                        value += c.dot(equal(at))
            for key, past, present, local, gain, response, direct, q in sources:
                if past is not None:
                    past(at)
                if present is not None:
                    present(at)
                u = here[key]
                answer = direct * u if direct else None
                if response is not None:
                    row = response[at * m : (at + 1) * m, : (at + 1) * q]
                    seen = u.dot(row[:, at * q :].T)
                    answer = seen if answer is None else answer + seen
                    if not local:
                        answer += left[key].dot(row[:, : at * q].T)
                if answer is not None:
                    value += answer if gain == 1.0 else gain * answer
            if pair is None:
                now[i, j] = value
            else:
                pair[at * n : (at + 1) * n, at * m : (at + 1) * m] = value

        return step

    # -- scalars, products that are there once a step, and sums over units -------------------------------

    def _scalar(self, i: Node, _: Node) -> Step:
        row = next(x for x in self.table.scalars if x.name == i[0])
        function, values = self.functions[row.name], self.rows.scalars[row.name]
        averages = [self._average(a, b, row.indices) for _, a, b in row.averages]
        inputs = [(self._present(f), _arrangement(f.indices, row.indices)) for _, f in row.inputs]

        def step(at: int) -> None:
            found = [average(at) for average in averages]
            values[at] = function(at, *found, *(arrange(value(at)) for value, arrange in inputs))

        return step

    def _average(self, a: Factor, b: Factor, indices: tuple[Symbol, ...]) -> Callable[[int], Array]:
        """``<x_a x_b>`` at equal times, with an axis for each of ``indices``."""
        shape = (*self.rows.shape(a.indices), *self.rows.shape(b.indices))
        equal, arrange = self._equal(a.tensor, b.tensor), _arrangement((*a.indices, *b.indices), indices)
        return lambda at: arrange(equal(at).reshape(shape))

    def _present(self, f: Factor) -> Callable[[int], Array]:
        """A tensor at the present time, or a constant one."""
        name = f.tensor[0]
        if name in self.rows.scalars:
            values = self.rows.scalars[name]
            return lambda at: values[at]
        constant = self.rows.data[name]
        return lambda at: constant

    def _hoist(self, i: Node, _: Node) -> Step:
        h = next(x for x in self.table.hoisted if x.tensor == i)
        labels: dict[Symbol, int] = {}
        axes = [[labels.setdefault(x, len(labels)) for x in f.indices if x != s] for f in h.factors]
        values, present = self.rows.hoisted[i], [self._present(f) for f in h.factors]
        kept = [labels[x] for x in h.rows]

        def step(at: int) -> None:
            operands: list[Any] = [
                x for value, which in zip(present, axes, strict=True) for x in (value(at), which)
            ]
            values[at] = np.einsum(*operands, kept, optimize=len(axes) > 2)

        return step

    def _on_units(self, i: Node, _: Node) -> Step:
        assert self.units is not None
        return self.units.step

    def _sum(self, i: Node, _: Node) -> Step:
        units, total = self.units, self.rows.sums[i]
        assert units is not None
        correlation = self.table.tensors[i].kind == "correlation"

        def step(at: int) -> None:
            total[at, : at + 1] = row = units.total(at, i)
            total[: at + 1, at] = row if correlation else 0.0
            total[at, at] = row[at]

        return step


def _times(rows: int, terms: list[_Term]) -> Callable[[Array, Array], Array]:
    """The product of matrices, which is one by a number where all are single."""
    return np.multiply if {rows, *(x.size for x in terms)} == {1} else np.matmul


def _arrangement(labels: tuple[Symbol, ...], indices: tuple[Symbol, ...]) -> Callable[[Array], Array]:
    """:func:`~numerics.tensors.arranged`, which does nothing to what is arranged already."""
    return (lambda a: a) if labels == indices else lambda a: arranged(a, labels, indices)


def _is_plain(m: Monomial, kernel: Kernel, plan: Plan) -> bool:
    """Is a part of a kernel a number, or a number times an order parameter of the kernel's own indices?"""
    if m.coefficient.has(t, s) or len(m.factors) > 1:
        return False
    for f in m.factors:
        q = plan.table.tensors.get(f.tensor)
        if q is None or q.unit is not None or f.indices != (*kernel.rows, *kernel.cols, t, s):
            return False
        if len(plan.rows_of[q.first].indices) != len(kernel.rows):
            return False
    return True


def foldable(plan: Plan, rows: Rows) -> bool:
    """Are all kernels sums of numbers times order parameters, and all fields and sources single?"""
    table = plan.table
    if table.scalars or table.hoisted or plan.sums or any(r.unit for r in table.fields):
        return False
    if {*rows.sizes.values(), *rows.widths.values()} != {1}:
        return False
    kernels = [c.kernel for r in table.fields for c in r.couplings]
    return all(_is_plain(m, k, plan) for k in (*kernels, *table.covariances.values()) for m in k.monomials)


@lru_cache(maxsize=256)
def _compiled(
    arguments: tuple[Symbol, ...], expression: Expr, known: tuple[tuple[str, Callable[..., Any]], ...]
) -> Callable[..., Any]:
    """An expression as a function of its arguments; ``known`` are functions that it contains, by name."""
    function: Callable[..., Any] = lambdify(arguments, expression, [dict(known), "numpy"])
    return function
