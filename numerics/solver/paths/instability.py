"""Growth of perturbations that break the symmetry of a sampled solution, from two marches of the same paths.

The input is a problem whose theory has exchangeable values; the output is the size of a small perturbation at
the output times, for a flow only at some of them if there are many. If it grows exponentially,
:func:`numerics.solve` states that finite networks leave the symmetric solution.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from derive.calculus.symbols import t
from numerics.errors import Unserved
from numerics.experiment.problem import Problem
from numerics.names import MemberKey
from numerics.solver.paths.accuracy import grids
from numerics.solver.paths.exchange import Asymmetry
from numerics.solver.paths.problem import prepared_for
from numerics.solver.paths.solve import Prepared

Array = NDArray[np.float64]

SHARE = 1e-8
"""Size of the perturbation over the sampling noise at the start.

It is far above rounding, and small enough for growth by many orders of magnitude while effects stay
linear."""

LINEAR = 0.01
"""Largest relative change of an order parameter that counts as linear."""

RUNS = 4
"""Number of replicas, from which the growth has a standard error."""

VANISHING = 1e-9
"""Ratio to the largest average below which an average is zero up to rounding."""

PATHS = 512
"""Largest number of paths of a replica."""


def perturbations(problem: Problem, samples: int, least: int) -> tuple[Array, Array]:
    """Return times, and the size of a perturbation that breaks the symmetry, shape ``(replicas, times)``.

    The size is the largest relative change of a correlation or scalar. The times are the output times; a flow
    is marched on its coarsest grid with at least ``least`` of them (with all, if there are fewer), so that
    some may be missing. Only the times are returned up to which the change is in the linear order; none if
    sources vanish at a saddle, because Stein's lemma does not resolve responses to these. Responses are left
    out, because single entries of them are not resolved (:class:`~numerics.solver.paths.march.PathMarch`).
    The number of paths is the smaller one of ``samples`` and PATHS, or more if Stein's lemma needs more.
    Raises Unserved if the perturbation vanishes to rounding, because averages over paths have no noise at the
    start that differs between the values, as for heads of attention with equal offsets.
    """
    grid = None
    if problem.flow:
        wanted = min(least, len(problem.times))
        grid = next(x for x in grids(problem.times, 2) if len(x.outputs) >= wanted)
    prepared = prepared_for(problem, grid)
    count = max(prepared.least, min(samples, PATHS))
    runs = min(RUNS, prepared.together(count))
    first = Asymmetry()
    symmetric, perturbed = (
        next(prepared.batches([count] * runs, _seeds(problem, runs), asymmetry=x))
        for x in (first, first.second(SHARE))
    )
    gaps = np.max(list(_changes(prepared, first, symmetric, perturbed)), axis=0)
    if (gaps.max(axis=1) <= np.finfo(float).eps).any():
        raise Unserved(
            "the growth of perturbations cannot be measured: averages over sampled paths have no noise at "
            "the start, so that nothing breaks the symmetry of the initial weights"
        )
    shown: Array = gaps if grid is None else np.stack([grid.once(x) for x in gaps])
    times = problem.times if grid is None else grid.nodes[grid.outputs]
    beyond = (shown > LINEAR).any(axis=0)
    linear = int(beyond.argmax()) if beyond.any() else len(times)
    return times[:linear], shown[:, :linear]


def _seeds(problem: Problem, runs: int) -> list[np.random.SeedSequence]:
    """Return new seeds of ``runs`` replicas, the same at every call.

    They must be new objects, because a march spawns other seeds from them, which differ at a second use.
    """
    return [np.random.SeedSequence(problem.solver.seed, spawn_key=(n,)) for n in range(runs)]


def _changes(
    prepared: Prepared,
    recorded: Asymmetry,
    symmetric: Mapping[MemberKey, Array],
    perturbed: Mapping[MemberKey, Array],
) -> Iterator[Array]:
    """Yield the relative change of each correlation and scalar, shape ``(replicas, times)``.

    It is relative to the largest value before averages are made symmetric, because the symmetric part may
    vanish. Averages that are zero up to rounding, or whose change is not finite, are left out.
    """
    entries = prepared.tables.entries | prepared.tables.scalars
    correlations = {n: e for n, e in entries.items() if n in symmetric and not e.is_response}
    sizes = {n: float(np.abs(symmetric[n]).max()) for n in correlations}
    for (n, *_), (raw, _) in recorded.kept.items():
        if n in correlations:
            sizes[n] = max(sizes[n], float(np.abs(raw).max()))
    for n, e in correlations.items():
        one, other = (np.moveaxis(x[n], 1 + e.args.index(t), 1) for x in (symmetric, perturbed))
        gap = np.abs(other - one).reshape(*one.shape[:2], -1).max(axis=2)
        if sizes[n] > VANISHING * max(sizes.values()) and np.isfinite(gap).all():
            yield gap / sizes[n]
