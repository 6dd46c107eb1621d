"""A derived theory beside finite networks: every correlation and number, extrapolated to infinite size.

The theory is solved by the march if it is linear and else evaluated from its expressions
(:mod:`numerics.verification.theories.solved`), the networks are trained from the program
(:mod:`numerics.simulation`); the two share nothing but the program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from derive.program import Program
from derive.theory import Theory, mean_field
from numerics.simulation import Measured, simulate_program
from numerics.solver.direct import Evaluated
from numerics.stats import bound
from numerics.verification.theories.solved import solved as solution_of

Array = NDArray[np.float64]

DOUBT = 1e-3
"""The probability with which all numbers of a comparison together stray beyond the bound by chance."""


@dataclass(frozen=True)
class Row:
    """One quantity at one layer: how many numbers, the worst and the typical distance in standard errors."""

    name: str
    layer: int | None
    entries: int
    worst: float
    typical: float


@dataclass(frozen=True)
class Comparison:
    """All rows of one program, and the distance that ``entries`` Gaussian numbers stay within (Sidak)."""

    title: str
    method: str
    rows: tuple[Row, ...]

    @property
    def entries(self) -> int:
        """Numbers compared."""
        return sum(r.entries for r in self.rows)

    @property
    def worst(self) -> Row:
        """The row that is furthest off."""
        return max(self.rows, key=lambda r: r.worst)

    @property
    def bound(self) -> float:
        """Standard errors that the worst of all numbers exceeds with probability ``DOUBT`` by chance."""
        return float(bound(self.entries, DOUBT))

    @property
    def agrees(self) -> bool:
        """Is every number within the bound?"""
        return bool(self.worst.worst <= self.bound)


def compare_with_networks(
    program: Program,
    values: Mapping[Any, Any],
    data: Mapping[str, Any] | None = None,
    *,
    steps: int = 3,
    widths: tuple[int, int] = (150, 300),
    seeds: tuple[int, int] = (400, 200),
    samples: int = 2**14,
    seed: int = 0,
    change: Callable[[Theory], Theory] | None = None,
) -> Comparison:
    """Solve the theory of ``program`` and train networks at two ``widths``; compare what both define.

    ``values`` and ``data`` as :func:`~numerics.solver.direct.evaluate` and
    :func:`~numerics.simulation.simulate_program` take them.  Networks are extrapolated linearly in
    1/N; standard errors of both widths and of the theory's paths are combined.  ``change`` alters the theory
    first (to see a wrong one rejected).  Raises what those two raise, and ValueError when nothing is common.

    >>> from derive.program import mlp
    >>> found = compare_with_networks(mlp(1), {"eta": 0.3, "gamma0": 1, "P": 1}, {"K_x": [[1.0]], "y": [1.0]},
    ...                               steps=1, widths=(50, 100), seeds=(200, 100))
    >>> found.agrees, found.entries
    (True, 12)
    """
    theory = mean_field(program)
    solved = solution_of(
        theory if change is None else change(theory),
        steps=steps + 1,
        values=values,
        data=data,
        samples=samples,
        seed=seed,
    )
    runs = [
        simulate_program(program, width=w, steps=steps, seeds=n, values=values, data=data, seed=seed + w)
        for w, n in zip(widths, seeds, strict=True)
    ]
    rows = []
    for name in runs[0]:
        for layer, pair in _by_layer(runs[0][name], runs[1][name]):
            row = _row(solved, name, layer, pair, widths)
            if row is not None:
                rows.append(row)
    if not rows:
        raise ValueError(f"{program.name}: the theory and the networks have no quantity in common")
    return Comparison(program.name, solved.method, tuple(rows))


def _row(
    solved: Evaluated,
    name: str,
    layer: int | None,
    pair: tuple[Measured, Measured],
    widths: tuple[int, int],
) -> Row | None:
    try:
        value, error = solved.value(name, layer), solved.stderr(name, layer)
    except KeyError:
        return None  # measured beyond what the theory needs
    small, large = pair
    if small.axes[0][0] == "t" and len(small.axes) > 1 and small.axes[1][0] == "s":
        value, error = (np.moveaxis(x, (-2, -1), (0, 1)) for x in (value, error))
    limit, spread = _extrapolated(small, large, widths)
    if value.shape != limit.shape:
        raise ValueError(f"{name}: the theory has shape {value.shape}, the networks {limit.shape}")
    known = np.isfinite(limit) & (spread > 0)
    scale = np.hypot(spread, error)[known]
    z = np.abs(limit - value)[known] / scale
    exact = np.isfinite(limit) & (spread == 0)  # the same number in every network
    off = np.abs(limit - value)[exact] > 1e-9 * (1 + np.abs(limit[exact]))
    if off.any():
        z = np.append(z, np.inf)
    return Row(name, layer, int(z.size), float(z.max()), float(np.sqrt(np.mean(z**2)))) if z.size else None


def _extrapolated(small: Measured, large: Measured, widths: tuple[int, int]) -> tuple[Array, Array]:
    """The value at 1/N = 0 on the line through two widths, and its standard error."""
    n, m = widths
    value = (m * large.mean - n * small.mean) / (m - n)
    return value, np.hypot(m * large.stderr, n * small.stderr) / (m - n)


def _by_layer(small: Measured, large: Measured) -> list[tuple[int | None, tuple[Measured, Measured]]]:
    """Layer by layer; of layers that share their units, each with itself."""
    names = [n for n, _ in small.axes]
    if names[0] == "ell":
        return [(int(x), (small[int(x)], large[int(x)])) for x in small.axes[0][1]]
    layered = [i for i, n in enumerate(names) if n.startswith("ell")]
    if len(layered) != 2:
        return [(None, (small, large))]
    first, second = layered
    found: list[tuple[int | None, tuple[Measured, Measured]]] = []
    for i, x in enumerate(small.axes[first][1]):
        if x not in small.axes[second][1]:
            continue
        j = small.axes[second][1].index(x)
        one, two = (_diagonal(m, first, second, i, j) for m in (small, large))
        found.append((int(x), (one, two)))
    return found


def _diagonal(m: Measured, first: int, second: int, i: int, j: int) -> Measured:
    def cut(a: Array) -> Array:
        return np.asarray(np.take(np.take(a, j, axis=second), i, axis=first))

    axes = tuple(x for n, x in enumerate(m.axes) if n not in (first, second))
    return Measured(cut(m.mean), cut(m.stderr), axes)
