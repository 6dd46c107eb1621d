"""First steps of Program 1 of depth2023 as numbers, at any depth and power of the depth.

The rows of :mod:`derive.scale.depth_steps` are evaluated in one pass up and one down for each step, in a time
proportional to the depth squared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sympy import Add, Dummy, Expr, KroneckerDelta, lambdify
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import L, ell
from derive.depth.balance import over_layers
from derive.linear.propagators import k
from derive.scale.depth_steps import StepRow, Steps
from numerics.errors import Diverged

Array = NDArray[np.float64]
Slope = Callable[[int, float], float]

Way = Literal["up", "down", "scalar"]


@dataclass(frozen=True)
class _Part:
    """Part of a row outside or inside of the sum over k, and the atoms that it depends on."""

    run: Callable[..., Any]
    atoms: tuple[Expr, ...]
    summed: bool


@dataclass(frozen=True)
class _Compiled:
    row: StepRow
    parts: tuple[_Part, ...]


class DepthSolver:
    """Rows of the first steps, compiled once for every depth.

    ``symbols`` are those that get numbers at each call, beside the depth; ``slope(t, f)`` is the derivative
    of the loss at the output.

    >>> from derive.depth.balance import alpha, gamma
    >>> from derive.scale.depth_steps import at_steps
    >>> from derive.theory import mean_field
    >>> from derive.depth import cross_layer
    >>> from derive.program import depth_program
    >>> steps = at_steps(cross_layer(mean_field(depth_program(alpha=alpha, gamma=gamma))), 1)
    >>> solver = DepthSolver(steps, lambda t, f: f - 1.0)
    >>> found = solver(4, {"alpha": 0.5, "gamma": 0.5, "xi": 1.0})
    >>> float(round(found["C_x_0_0"][4], 9)), float(round(found["f_1"][()], 9))
    (2.44140625, 1.953125)
    """

    def __init__(self, steps: Steps, slope: Slope) -> None:
        self.steps, self.slope = steps, slope
        free = {x for r in steps.rows for x in r.rhs.free_symbols} - {L, ell, k, over_layers}
        self.symbols = tuple(sorted(free, key=str))
        self.depths = {r.name: len(r.symbol.args) for r in steps.rows}
        self.way = {r.name: way for r in steps.rows if (way := _recursion(r)) is not None}
        self.order: dict[int, dict[str, list[_Compiled]]] = {}
        for r in steps.rows:
            now = self.order.setdefault(steps.times[r.name][1][0], {})
            now.setdefault(self._kind(r), []).append(self._compiled(r))

    def __call__(self, depth: int, values: Mapping[str, float]) -> dict[str, Array]:
        """Return every function at every layer 0 .. depth (and layer of the source).

        Raises KeyError for a symbol without a value, :class:`~numerics.errors.Diverged` with the step.
        """
        run = _Run(self, depth, [float(depth), *[values[str(x)] for x in self.symbols]])
        for now in range(self.steps.last + 1):
            with np.errstate(over="ignore", invalid="ignore"):
                run.step(now)
            if not all(np.all(np.isfinite(v)) for n, v in run.found.items()):
                raise Diverged(f"a function is not finite at step {now}")
        return run.found

    def _kind(self, r: StepRow) -> str:
        """Return the kind of a row, which decides its position in a step; see :meth:`_Run.visits`."""
        if not r.symbol.args:
            return "scalar"
        first = r.symbol.args[0]
        if not first.has(ell):
            return "start" if first == 0 else "end"
        if r.neighbour != 0:
            return self.way[r.name]
        here = {a for a in r.rhs.atoms(AppliedUndef) if a.args and a.args[0] == ell}
        ways = {self.way[str(a.func)] for a in here if str(a.func) in self.way}
        if not here:
            return "before"
        return "below" if ways == {"down"} else "after"

    def _compiled(self, r: StepRow) -> _Compiled:
        terms = Add.make_args(r.rhs)
        sums = Add(*[x / over_layers for x in terms if x.has(over_layers)])
        rest = Add(*[x for x in terms if not x.has(over_layers)])
        parts = [self._part(e, summed) for e, summed in ((rest, False), (sums, True)) if e != 0]
        return _Compiled(r, tuple(parts))

    def _part(self, e: Expr, summed: bool) -> _Part:
        atoms = sorted(e.atoms(AppliedUndef, KroneckerDelta), key=str)
        names = {a: Dummy(f"a{i}") for i, a in enumerate(atoms)}
        run = lambdify((L, *self.symbols, *names.values()), e.xreplace(names), "numpy")
        return _Part(run, tuple(atoms), summed)


class _Run:
    """Evaluation of all rows in causal order: at each step up through the layers, the scalars, then down.

    A response to the sources of all layers is an array over them.
    """

    def __init__(self, solver: DepthSolver, depth: int, numbers: list[float]) -> None:
        self.solver, self.depth, self.numbers = solver, depth, numbers
        self.found = {n: np.zeros((depth + 1,) * d) for n, d in solver.depths.items()}
        self.sources = np.arange(depth + 1)

    def visits(self) -> Iterator[tuple[str, int]]:
        """Yield kinds of rows and their layers in the order of evaluation."""
        yield from (("start", 0), ("after", 0))
        for layer in range(1, self.depth + 1):
            yield from ((kind, layer) for kind in ("before", "up", "after"))
        yield from ((kind, self.depth) for kind in ("scalar", "end", "below"))
        for layer in range(self.depth, 0, -1):
            yield from (("down", layer), ("below", layer - 1))

    def step(self, now: int) -> None:
        for kind, layer in self.visits():
            for c in self.solver.order[now].get(kind, ()):
                self.put(c, layer)

    def put(self, c: _Compiled, layer: int) -> None:
        total: Any = 0.0
        for part in c.parts:
            value = part.run(*self.numbers, *[self.atom(a, layer) for a in part.atoms])
            total = total + (np.sum(value) if part.summed else value)
        array = self.found[c.row.name]
        if not c.row.symbol.args:
            array[()] = total
        else:
            array[self.place(c.row.symbol.args[0], layer)] = total

    def place(self, e: Expr, layer: int) -> Any:
        if e.has(k):
            return np.clip(self.sources + int(e - k), 0, self.depth)
        if e.has(ell):
            return min(max(layer + int(e - ell), 0), self.depth)
        return self.depth if e == L else int(e)

    def atom(self, a: Expr, layer: int) -> Any:
        if isinstance(a, KroneckerDelta):
            x, y = (self.place(z, layer) if z.has(ell) else z for z in a.args)
            return (self.sources == (y if x == k else x)).astype(float)
        name = str(a.func)
        if _given(a):
            return self.solver.slope(int(a.args[0]), float(self.found[str(a.args[1].func)][()]))
        array = self.found[name]
        if not a.args:
            return array[()]
        where = tuple(self.place(x, layer) for x in a.args)
        if len(where) == 1 or a.args[1] != k:
            return array[where]
        return array[where[0]]


def variance(
    found: Mapping[str, Array], combination: Mapping[tuple[int, int], float], field: str = "x"
) -> float:
    """Return the variance over units of ``sum c x(layer, time)``, for ``{(layer, time): c}``.

    Every field is its responses times the sources: those of W forwards and backwards, and the frozen ends.
    """
    last = max(time for _, time in combination)
    total = 0.0
    for end in "UV":
        answer = sum(c * found[f"R_{field}{end}_{time}"][layer] for (layer, time), c in combination.items())
        total += float(answer) ** 2
    for source, name, shift in (("u", "C_x", -1), ("r", "C_dx", 1)):
        answers = {}
        for past in range(last + 1):
            rows = [
                c * found[f"R_{field}{source}_{time}_{past}"][layer]
                for (layer, time), c in combination.items()
                if past <= time
            ]
            answers[past] = np.sum(rows, axis=0)
        for a in answers:
            for b in answers:
                covariance = found[f"{name}_{max(a, b)}_{min(a, b)}"]
                at = np.clip(np.arange(len(covariance)) + shift, 0, len(covariance) - 1)
                total += float(np.sum(answers[a] * answers[b] * covariance[at]))
    return total


def _given(a: Expr) -> bool:
    """Return whether an expression is a given function of a scalar: the slope of the loss."""
    return isinstance(a, AppliedUndef) and any(isinstance(x, AppliedUndef) for x in a.args)


def _recursion(r: StepRow) -> Way | None:
    if r.neighbour == 0:
        return None
    return "up" if r.symbol.args[0] - r.neighbour.args[0] == 1 else "down"
