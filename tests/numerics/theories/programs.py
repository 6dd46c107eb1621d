"""A derived theory beside finite networks: every correlation and number, extrapolated to infinite size.

The theory is solved by the march if it is linear and else evaluated from its expressions. The networks are
trained from the program (:mod:`numerics.simulation`), independently of the theory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from derive.program import Program
from derive.theory import Theory
from numerics.lowering.linear import NotLinear, lower
from numerics.names import MemberKey
from numerics.simulation import Measured, simulate_program
from numerics.solver.direct import Evaluated, evaluate
from numerics.solver.linear.march import march
from numerics.solver.linear.plan import NotCausal
from numerics.verification.identities import as_evaluated
from numerics.verification.networks import ComparedQuantity, against_networks
from tests.derive.once import mean_field

Array = NDArray[np.float64]

MARCH = "march"

DIRECT = "direct"
"""How a linear theory that the march does not take was solved: straight from its expressions."""


@dataclass(frozen=True)
class Row:
    """Number of comparisons, and the worst one with its deviation in standard errors and its bound."""

    entries: int
    place: str
    worst: float
    bound: float
    method: str = ""

    @property
    def agrees(self) -> bool:
        """Whether every number is within its bound."""
        return self.worst <= self.bound


def row(
    theory: xr.Dataset, networks: Sequence[xr.Dataset], compared: Sequence[ComparedQuantity], method: str = ""
) -> Row:
    """Return the number with the largest deviation over its bound, as `dmft verify` judges it."""
    if not compared:
        raise ValueError("the theory and the networks have no quantity in common")
    checks = against_networks(theory, networks, compared)[: len(compared)]
    far = [abs(c.observed - c.expected) / (c.error or 1.0) for c in checks]
    may = [c.allowed / (c.error or 1.0) for c in checks]
    k = max(range(len(checks)), key=lambda i: far[i] / may[i])
    entries = sum(int(theory[q.name].isel(q.at).size) for q in compared)
    return Row(entries, compared[k].label, far[k], may[k], method)


def solved(
    theory: Theory,
    *,
    steps: int,
    values: Mapping[Any, Any],
    data: Mapping[str, Any] | None = None,
    samples: int,
    seed: int,
) -> Evaluated:
    """Return order parameters and scalars at times 0..steps-1, by name and layer.

    ``method`` of the result names the solver. ``march`` is the solver that experiments use; ``direct`` is
    exact too, and takes theories that the march refuses (a loss that is a function of the prediction,
    correlations of two fields of which only one order is known); ``particles`` takes all nonlinear theories.
    """
    found = _marched(theory, steps, values, data or {})
    if found is not None:
        return Evaluated(MARCH, found, {k: np.zeros(x.shape) for k, x in found.items()})
    read = evaluate(theory, steps=steps, values=values, data=data, samples=samples, seed=seed)
    method = DIRECT if read.method == "linear" else read.method
    return Evaluated(method, read.values, read.errors)


def _marched(
    theory: Theory, steps: int, values: Mapping[Any, Any], data: Mapping[str, Any]
) -> dict[MemberKey, Array] | None:
    """Return the solution by the march, or None for a theory that it does not solve."""
    if any(callable(x) for x in data.values()):
        return None
    if theory.program.depth.is_Integer:
        theory = theory.at_depth(int(theory.program.depth))
    named = {str(k): v for k, v in values.items()}
    constants = {x: float(named[n]) for n, x in theory.symbols.items() if n in named}
    arrays = {k: np.asarray(x, dtype=float) for k, x in data.items()}
    try:
        table = lower(theory)
        run = march(table, steps=steps, constants=constants, data=arrays, wanted=tuple(table.tensors))
    except (NotLinear, NotCausal):
        return None
    return as_evaluated(theory, run)


def compare_with_networks(  # noqa: PLR0913 (the settings of one comparison)
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
) -> Row:
    """Compare the solved theory of ``program`` with networks trained at two ``widths``.

    ``values`` and ``data`` as :func:`~numerics.solver.direct.evaluate` and
    :func:`~numerics.simulation.simulate_program` take them. Networks are extrapolated linearly in 1/N;
    standard errors of both widths and of the theory's paths are combined. ``change`` alters the theory first
    (to see a wrong one rejected). Raises the errors of both functions, and ValueError without common
    quantities.
    """
    theory = mean_field(program)
    found = solved(
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
    tables: list[dict[str, Any]] = [{}, {}, {}]
    for name in runs[0]:
        for layer, pair in _by_layer(runs[0][name], runs[1][name]):
            label = name if layer is None else f"{name} at layer {layer}"
            try:
                own = Measured(found.value(name, layer), found.stderr(name, layer), pair[0].axes)
            except KeyError:
                continue  # measured beyond what the theory needs
            if _times_first(pair[0]):
                own = Measured(*(np.moveaxis(x, (-2, -1), (0, 1)) for x in (own.mean, own.stderr)), own.axes)
            if own.mean.shape != pair[0].mean.shape:
                raise ValueError(f"{name}: shape {own.mean.shape}, of networks {pair[0].mean.shape}")
            known = np.isfinite(pair[0].mean) & np.isfinite(pair[1].mean)
            for table, x in zip(tables, (own, *pair), strict=True):
                if known.any():
                    table[label] = (f"in {label}", x.mean[known])
                    table[f"{label}_stderr"] = (f"in {label}", x.stderr[known])
    # the spread over replicas of the theory is taken as it is
    theory_of, *networks = (
        xr.Dataset(table, attrs={"width": w, "seeds": n, "replicas": np.inf})
        for table, w, n in zip(tables, (0, *widths), (0, *seeds), strict=True)
    )
    names = [str(x) for x in theory_of if not str(x).endswith("_stderr")]
    return row(theory_of, networks, [ComparedQuantity(x, x, {}, size=np.inf) for x in names], found.method)


def _times_first(m: Measured) -> bool:
    return len(m.axes) > 1 and (m.axes[0][0], m.axes[1][0]) == ("t", "s")


def _by_layer(small: Measured, large: Measured) -> Iterator[tuple[int | None, tuple[Measured, Measured]]]:
    """Yield the measurements layer by layer.

    Layers that share their units are compared each with itself.
    """
    names = [n for n, _ in small.axes]
    layered = [i for i, n in enumerate(names) if n.startswith("ell")]
    if names[0] == "ell":
        yield from ((int(x), (small[int(x)], large[int(x)])) for x in small.axes[0][1])
    elif len(layered) != 2:
        yield None, (small, large)
    else:
        first, second = layered
        for i, x in enumerate(small.axes[first][1]):
            if x in small.axes[second][1]:
                j = small.axes[second][1].index(x)
                one, two = (_diagonal(m, first, second, i, j) for m in (small, large))
                yield int(x), (one, two)


def _diagonal(m: Measured, first: int, second: int, i: int, j: int) -> Measured:
    def cut(a: Array) -> Array:
        return np.asarray(np.take(np.take(a, j, axis=second), i, axis=first))

    axes = tuple(x for n, x in enumerate(m.axes) if n not in (first, second))
    return Measured(cut(m.mean), cut(m.stderr), axes)


__all__ = ["DIRECT", "MARCH", "Row", "compare_with_networks", "row", "solved"]
