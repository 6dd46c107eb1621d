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

Fields on units that are told apart by attributes (modes with their eigenvalues): kernels are the same for all
units up to functions of the attributes, so that at every unit a field is

    x(t) = b(t) + sum_u sum_s a_u(t, s) u(s),

b what it has without sources, a_u its response to the source u.  These are marched for all units at once,
``(T, T, n)`` for a source and ``(T, n)`` without; correlations are kept only as sums over units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, S, Symbol, lambdify
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import s, t
from numerics.compile.lower import Coupling, Factor, FieldRow, Kernel, Monomial, Node, Reach
from numerics.experiment.numbers import Spectrum
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
"""Positions from which on products leave out the blocks of responses that are zero."""


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


class Steps:
    """All quantities at ``size`` positions, in the order of ``plan``.

    Fills the arrays of ``rows``, which it makes.  ``left`` and ``here`` are the rows of kernels and
    covariances of the present step, before the present and at it.  ``spectrum`` gives the attributes of
    fields that live on units, ``functions`` what scalars contain of given functions; ``times``: all positions
    are times.
    """

    def __init__(
        self,
        plan: Plan,
        rows: Rows,
        size: int,
        spectrum: Spectrum | None = None,
        functions: Mapping[str, Callable[..., Any]] | None = None,
        times: bool = True,
    ) -> None:
        self.times = times
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
        self.place: dict[Key, tuple[Array, int]] = {}
        self.images: dict[Left, dict[Key, Array]] = {}
        self.products: list[Product] = []
        self._allocate()
        self.kernels: dict[tuple[Node, int], Array] = {}
        self.units = Units(plan, rows, self.kernels, size, spectrum) if spectrum else None
        known = tuple((functions or {}).items())
        self.functions = {
            x.name: _compiled((t, *x.arguments), x.expression.subs(dict(rows.constants)), known)
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
        self.steps = [make[kind](one, other) for kind, one, other in plan.order]

    def step(self, at: int) -> None:
        """All quantities at position ``at``, from those before."""
        self.at = at
        for one in self.steps:
            one(at)

    def _blocks(self, at: int, triangular: bool) -> Iterator[tuple[int, int]]:
        """Positions in blocks; responses are zero before the first position of a block."""
        if triangular and self.times and at >= LONG:
            return pairwise((0, at // 4, at // 2, 3 * at // 4, at))
        return iter(((0, at),))

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
            groups.setdefault((key[0], key[1], width), []).append(key)
        for (_, field, width), keys in groups.items():
            stack = np.zeros((len(keys), size * self.n[field], size * width))
            for place, key in enumerate(keys):
                self.arrays[key], self.place[key] = stack[place], (stack, place)
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
                rows = self.arrays.get(("R" if q.kind == "response" else "C", q.first, q.second))
                if q.kind == "response" and (gain := self.gains[q.first].get(q.second)) is not None:
                    direct = gain * np.eye(n, p)
                if rows is None and direct is None:
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
        at_once = [(x.number, x.rows, x.direct) for x in parts if x.present]

        def part(number: float, rows: Array | None, at: int, low: int, high: int) -> Array:
            a = ones[:, low:high] if rows is None else rows[at * n : (at + 1) * n, low:high]
            return a if number == 1.0 else number * a

        def before(at: int, low: int, high: int) -> Array:
            value = part(*first, at, low, high)
            for number, rows in more:
                value = value + part(number, rows, at, low, high)
            return value

        def present(at: int) -> Array:
            value = np.zeros((n, p))
            for number, rows, direct in at_once:
                if rows is not None:
                    value += part(number, rows, at, at * p, (at + 1) * p)
                if direct is not None:
                    value += number * direct
            return value

        def step(at: int) -> None:
            if reach == "start":
                here[key] = before(at, 0, p) if at else present(0)
                return
            if reach != "now":
                left[key] = before(at, 0, at * p)
            if reach != "past":
                here[key] = present(at)

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
        blocks = self._blocks
        images = self.images[key] = {}
        products: list[tuple[Array, Array, int, bool]] = []
        for stack, keys in self._neighbours([x for x in self._rights(i, n) if x in self.arrays]):
            image = np.zeros((len(keys), self.n[i], stack.shape[2]))
            products.append((stack, image, stack.shape[2] // self.size, keys[0][0] == "R"))
            images |= dict(zip(keys, image, strict=True))

        def step(at: int) -> None:
            fill(at)
            if products:
                K = left[key]
                for array, image, m, triangular in products:
                    for low, high in blocks(at, triangular):
                        np.matmul(
                            K[:, low * p :],
                            array[:, low * p : at * p, low * m : high * m],
                            out=image[:, :, low * m : high * m],
                        )

        return step

    def _neighbours(self, keys: list[Key]) -> Iterator[tuple[Array, list[Key]]]:
        """Arrays that stand next to each other in a stack, together; those held the other way round alone."""
        run: list[Key] = []
        for x in sorted(keys, key=lambda x: (x[0], self.arrays[x].shape, self.place.get(x, (x, 0))[1])):
            if run and not self._follows(run[-1], x):
                yield self._run(run), run
                run = []
            run.append(x)
        if run:
            yield self._run(run), run

    def _follows(self, x: Key, y: Key) -> bool:
        if x not in self.place or y not in self.place:
            return False
        return self.place[x][0] is self.place[y][0] and self.place[x][1] + 1 == self.place[y][1]

    def _run(self, keys: list[Key]) -> Array:
        if keys[0] not in self.place:
            return self.arrays[keys[0]][None]
        stack, first = self.place[keys[0]]
        return stack[first : first + len(keys)]

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

        def step(at: int) -> None:
            end = at * m
            row = target[at * n : (at + 1) * n]
            past, present = row[:, :end], row[:, end : end + m]
            past[...] = 0.0 if first is None else first[:, :end]
            present[...] = 0.0
            for key, array, image, gain, reach, p in terms:
                if image is not None:
                    past += image[:, :end]
                if gain and reach in ("past", "through"):
                    past += left[key] if gain == 1.0 else gain * left[key]
                if reach == "past":
                    continue
                c, low = here[key], 0 if reach == "start" else at
                if gain:
                    row[:, low * m : (low + 1) * m] += gain * c
                if array is not None:
                    row[:, : (low + 1) * m] += c @ array[low * p : (low + 1) * p, : (low + 1) * m]

        return step

    def _past(self, i: Node, j: Node) -> Step:
        """``C_ij(t, s)`` for s < t."""
        target, left, here = self.arrays["C", i, j], self.left, self.here
        n, m, blocks = self.n[i], self.n[j], self._blocks
        terms, first = self._couplings(i, "C", j)
        terms = [x for x in terms if x.image is not None or x.reach != "past"]
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
                if reach != "past" and array is not None:
                    low = 0 if reach == "start" else at
                    row += here[key] @ array[low * p : (low + 1) * p, :end]
            for key, covariance, _, _, gain, response, direct, q in sources:
                if covariance is not None:
                    covariance(at)
                u = left[key] if gain == 1.0 else gain * left[key]
                if response is not None:
                    for low, high in blocks(at, True):
                        row[:, low * m :] += (
                            u[:, low * q : high * q] @ response[low * m : end, low * q : high * q].T
                        )
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

        def step(at: int) -> None:
            value = np.zeros((n, m))
            for key, array, equal, reach, p in terms:
                if reach in ("past", "through") and array is not None:
                    value += left[key].dot(array[at * m : (at + 1) * m, : at * p].T)
                if equal is not None:
                    if reach == "start" and at and array is not None:
                        value += here[key].dot(array[at * m : (at + 1) * m, :p].T)
                    else:
                        value += here[key].dot(equal(at))
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


class Units:
    """The fields of ``plan`` on units, up to the step that has been marched.

    ``kernels`` are the rows of this step by field and number of the coupling.
    """

    def __init__(
        self,
        plan: Plan,
        rows: Rows,
        kernels: Mapping[tuple[Node, int], Array],
        steps: int,
        spectrum: Spectrum,
    ) -> None:
        self.plan, self.rows, self.kernels = plan, rows, kernels
        self.spectrum, self.n = spectrum, len(spectrum.counts)
        self.fields: list[FieldRow] = [r for r in plan.table.fields if r.unit]
        self.at = {r.field: k for k, r in enumerate(self.fields)}
        self.constant = {r.field: self.value(r.constant) for r in self.fields}
        self.gain = {(r.field, u): self.value(g) for r in self.fields for u, g in r.drives}
        self.factor = {(r.field, k): self.value(c.unit) for r, k, c in self.couplings()}
        self.sources = [u for u in plan.table.source_indices if any(plan.feels(i, u) for i in self.at)]
        self.long = {c.field for _, _, c in self.couplings() if c.kernel.reach in ("past", "through")}
        self.long |= {plan.table.tensors[q].second for q in plan.sums if self.correlates(q)}
        self.b = {i: np.zeros((self.length(i, steps), self.n)) for i in self.at}
        self.a = {
            (i, u): np.zeros((self.length(i, steps), steps, self.n))
            for i in self.at
            for u in self.sources
            if plan.feels(i, u)
        }
        tensors = {q: plan.table.tensors[q] for q in plan.sums}
        self.weights = {
            n: self.value(q.factor * q.unit) * spectrum.counts
            for n, q in tensors.items()
            if q.unit is not None
        }
        self.C = {u: np.zeros((steps, steps)) for u in self.sources}
        self.covariance = {
            u: rows.compile(kernel, "now" if kernel.local else "through")
            for u in self.sources
            if (kernel := plan.table.covariances.get((u, u))) is not None
        }
        self.known = dict.fromkeys(self.sources, 0)
        for q in plan.sums:
            for pair in plan.source_pairs(plan.table.tensors[q]):
                if pair[0] != pair[1]:
                    raise ValueError(f"sources {pair} on units correlate, which the march does not serve")

    def couplings(self) -> Iterator[tuple[FieldRow, int, Coupling]]:
        """All couplings between fields on units."""
        for r in self.fields:
            for k, c in enumerate(r.couplings):
                yield r, k, c

    def correlates(self, tensor: Node) -> bool:
        """Is the sum over units one of a correlation?"""
        return self.plan.table.tensors[tensor].kind == "correlation"

    def length(self, i: Node, steps: int) -> int:
        """Times that are kept of a field: all, or only the start and the present."""
        return steps if i in self.long else min(2, steps)

    def place(self, i: Node, step: int) -> int:
        """Where a field's values at ``step`` are kept."""
        return step if i in self.long else min(step, 1)

    def value(self, e: Expr) -> Array:
        """A function of attributes at all units."""
        e = e.subs(dict(self.rows.constants))
        atoms = sorted(e.atoms(AppliedUndef), key=str)
        left = e.xreplace(dict.fromkeys(atoms, S.One)).free_symbols
        if left:
            raise ValueError(f"{e} needs a number for {sorted(map(str, left))}")
        found = lambdify(atoms, e, "numpy")(*[self.spectrum.attributes[str(x.func)] for x in atoms])
        return np.broadcast_to(np.asarray(found, dtype=float), (self.n,))

    # -- a step ----------------------------------------------------------------------------------------

    def step(self, step: int) -> None:
        """All fields at one time: what comes from the past, and then a small system at each unit."""
        left = self.present(step)
        fixed = np.stack([self.constant[i] + self.past(step, i, None)[0] for i in self.at])
        for i, x in zip(self.at, _solved(left, fixed[:, None]), strict=True):
            self.b[i][self.place(i, step)] = x[0]
        for u in self.sources:
            answers = np.zeros((len(self.at), step + 1, self.n))
            for i, k in self.at.items():
                if (i, u) in self.a:
                    answers[k] = self.past(step, i, u)
                if (i, u) in self.gain:
                    answers[k, step] += self.gain[i, u]
            for i, x in zip(self.at, _solved(left, answers), strict=True):
                if (i, u) in self.a:
                    self.a[i, u][self.place(i, step), : step + 1] = x

    def past(self, step: int, i: Node, u: Node | None) -> Array:
        """What earlier times contribute to the answer of ``i`` to ``u`` (None: to its part without sources),
        ``(times, n)``.
        """
        total = np.zeros((1 if u is None else step + 1, self.n))
        for k, c in enumerate(self.plan.rows_of[i].couplings):
            if u is not None and (c.field, u) not in self.a:
                continue
            earlier = self.b[c.field] if u is None else self.a[c.field, u]
            K = self.kernels[i, k][0]
            if c.kernel.reach in ("past", "through") and step > 0:
                if u is None:
                    total[0] += self.factor[i, k] * (K[:step] @ earlier[:step])
                else:
                    flat = earlier.reshape(len(earlier), -1)[:step, : step * self.n]
                    total[:step] += self.factor[i, k] * (K[:step] @ flat).reshape(step, self.n)
            elif c.kernel.reach == "start" and step > 0:
                if u is None:
                    total[0] += self.factor[i, k] * K[0] * earlier[0]
                else:
                    total[0] += self.factor[i, k] * K[0] * earlier[0, 0]
        return total

    def present(self, step: int) -> Array:
        """``1 - M``, M the couplings at equal time between the fields, ``(fields, fields, n)``."""
        left = np.repeat(np.eye(len(self.at))[:, :, None], self.n, axis=2)
        for r, k, c in self.couplings():
            if c.kernel.reach != "past" and (c.kernel.reach != "start" or step == 0):
                left[self.at[r.field], self.at[c.field]] -= (
                    self.factor[r.field, k] * self.kernels[r.field, k][0, -1]
                )
        return left

    # -- sums over units -------------------------------------------------------------------------------

    def total(self, step: int, tensor: Node) -> Array:
        """A tensor that sums over units, at ``t = step`` and s = 0..step."""
        q = self.plan.table.tensors[tensor]
        weight = self.weights[tensor]
        i, j, at, end = q.first, q.second, self.place(q.first, step), step + 1
        if q.kind == "response":
            row: Array = self.a[i, j][at, :end] @ weight if (i, j) in self.a else np.zeros(end)
            return row
        total: Array = self.b[j][:end] @ (weight * self.b[i][at])
        for u, _ in self.plan.source_pairs(q):
            last = step + self.plan.at_once(i, u)
            if last == 0:
                continue
            local = self.covariances(u, last)
            own = self.a[i, u][at, :last] * weight
            C = self.C[u][:last, :last]
            seen = np.diagonal(C)[:, None] * own if local else C @ own
            total += self.a[j, u].reshape(len(self.a[j, u]), -1)[:end, : last * self.n] @ seen.ravel()
        return total

    def covariances(self, u: Node, last: int) -> bool:
        """Fill in the covariance of a source before the time ``last``; is it there at equal time only?"""
        local = self.plan.table.covariances[u, u].local
        for k in range(self.known[u], last):
            row = self.covariance[u](k)[0]
            self.C[u][k, k + 1 - len(row) : k + 1] = self.C[u][k + 1 - len(row) : k + 1, k] = row
        self.known[u] = max(self.known[u], last - 1)  # the last row may be that of a step under way
        return local


def _solved(left: Array, right: Array) -> Array:
    """The solution of ``left @ x = right`` at each unit; ``right`` is (fields, times, n)."""
    x = np.linalg.solve(np.moveaxis(left, -1, 0), np.moveaxis(right, -1, 0))
    return np.ascontiguousarray(np.moveaxis(x, 0, -1))
