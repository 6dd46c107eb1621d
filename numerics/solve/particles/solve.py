"""Solve a nonlinear theory with particles: independent replicas, their mean and their standard error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from sympy import Symbol

from derive.meanfield.theory import Theory
from derive.program.expressions import s, t
from numerics.paths import Block, Paths, gathered
from numerics.solve.direct.evaluate import Evaluated, Place
from numerics.solve.direct.layout import Layout, Number
from numerics.solve.particles.formulas import Known, Node
from numerics.solve.particles.march import March
from numerics.solve.particles.order import order_of
from numerics.solve.particles.paths import kept
from numerics.solve.particles.reading import Model, Responding
from numerics.solve.particles.tangents import group_of, kind_of
from numerics.threads import one_thread

Array = NDArray[np.float64]
Responses = Literal["auto", "stein", "jacobian"]

FEW = 24
"""Entries of a source up to which derivatives along paths cost no more than Stein's lemma for their error."""


@dataclass(frozen=True)
class Solved(Evaluated):
    """What :func:`solve_particles` found, with standard errors over the replicas.

    ``responses`` says for each response how it was computed; ``ranks`` for each source how many normal
    numbers its path is made of at the last step, of how many entries; ``runs`` holds each replica; ``paths``
    the sampled paths that were asked for, as :mod:`numerics.paths` lays them out.
    """

    samples: int
    replicas: int
    responses: Mapping[str, str]
    ranks: Mapping[str, tuple[int, int]]
    runs: Mapping[Place, Array]
    paths: xr.Dataset | None = None


@one_thread
def solve_particles(
    theory: Theory,
    *,
    steps: int,
    values: Mapping[Symbol | str, Number] | None = None,
    data: Mapping[str, Any] | None = None,
    samples: int = 512,
    replicas: int = 8,
    seed: int = 0,
    responses: Responses = "auto",
    matched: bool = True,
    ridge: float | None = None,
    carriers: int | None = None,
    paths: Paths | None = None,
) -> Solved:
    """Order parameters and scalars of ``theory`` at times ``0..steps-1``, from sampled paths.

    ``theory`` is in discrete steps and at integer depth, linear or not; ``values`` and ``data`` as for
    :func:`numerics.solve.direct.evaluate`.  All populations are marched together in one sweep: sources are
    drawn conditionally on their past, correlations and scalars are averages over ``samples`` paths.  Each of
    ``replicas`` solutions has its own paths and its own kernels; their spread gives the standard errors,
    their common bias is of order 1/samples: take more samples than sources have entries (samples of the
    data times steps).

    ``responses`` are found from derivatives carried along the paths (``jacobian``; along the first
    ``carriers`` of them, if given), or from Stein's lemma (``stein``), which needs no derivative and serves
    functions that jump.  The lemma divides by
    the covariance of a source, to which ``ridge`` (1/samples) of each variance is added: single entries of
    responses are then smoothed, and what they do to the fields changes by less than the noise; ``ridge=0``
    divides in the numerical range of the covariance.  ``auto`` takes derivatives where no function on the way
    jumps and where the way is linear or the source has no more than 24 entries; there the error for the same
    cost is no larger than Stein's.  ``matched`` makes second moments of the sources exact.  ``paths`` are
    kept of every replica.

    The axes of the result are those of :class:`~numerics.solve.direct.evaluate.Evaluated`.

    Raises :class:`~numerics.solve.direct.layout.Unserved` for what particles do not serve (flows, attributes,
    shifted indices) and for ``jacobian`` where a function jumps; ValueError for missing values and data;
    :class:`~numerics.errors.Diverged` when an average is not finite.

    >>> from derive.meanfield import mean_field
    >>> from derive.program import P, eta, gamma0, mlp
    >>> theory = mean_field(mlp(2, "tanh"))
    >>> data = {"K_x": [[1.0]], "y": [1.0]}
    >>> solved = solve_particles(theory, steps=3, values={eta: 0.5, gamma0: 1, P: 1}, data=data, samples=64)
    >>> solved.value("Delta").shape, solved.value("Phi", 2).shape
    ((3, 1), (1, 1, 3, 3))
    """
    if steps < 1 or samples < 8 or samples % 2 or replicas < 2:
        raise ValueError(
            f"steps = {steps}, samples = {samples}, replicas = {replicas}: at least 1, 8 (and even), 2"
        )
    layout = Layout(theory, {str(k): v for k, v in (values or {}).items()})
    model = Model(layout)
    order = order_of(model)
    carriers = min(samples, carriers or samples)
    chosen = _responses(model, responses, steps)
    known = Known(layout.values, data or {})
    times = [] if paths is None else paths.steps(theory.program, steps - 1)
    runs: list[dict[Node, Array]] = []
    walked: list[dict[str, Block]] = []
    for spawned in np.random.SeedSequence(seed).spawn(replicas):
        known.found = {}
        march = March(
            model,
            order,
            known,
            steps,
            samples,
            spawned,
            matched=matched,
            ridge=1 / samples if ridge is None else ridge,
            carriers=carriers,
            jacobian=frozenset(n for n, how in chosen.items() if how == "jacobian"),
        )
        with np.errstate(over="ignore", invalid="ignore"):
            march.run()
        runs.append(known.found | _observables(model, known, steps))
        if paths is not None:
            walked.append(kept(march, paths, times))
    found: dict[Place, Array] = {}
    axes: dict[Place, tuple[tuple[int, ...], ...]] = {}
    for node in runs[0]:
        stacked = np.stack([r[node] for r in runs])
        if node in model.scalars:
            stacked = np.moveaxis(stacked, -1, 1)
        timed = _time_axes(model, node)
        found[node] = stacked
        axes[node] = tuple(
            tuple(range(n)) if k in timed else tuple(range(1, n + 1)) for k, n in enumerate(stacked.shape[1:])
        )
    return Solved(
        "particles",
        {k: v.mean(axis=0) for k, v in found.items()},
        {k: v.std(axis=0, ddof=1) / np.sqrt(replicas) for k, v in found.items()},
        axes,
        samples,
        replicas,
        {_name(n): how for n, how in chosen.items()},
        {
            _name(n): (march.groups[i].rank, steps * march.groups[i].size)
            for i, g in enumerate(model.groups)
            for n in g
        },
        found,
        gathered(walked, times, kind="theory") if walked else None,
    )


def _name(n: Node) -> str:
    return f"{n[0]}{''.join(f'({k})' for k in n[1])}"


def _time_axes(model: Model, node: Node) -> set[int]:
    if node in model.scalars:
        return {0}
    args = next((e.args for n, e in model.entries.items() if n == node), None)
    if args is None:
        symbol = next(x for n, x, _ in model.observables if n == node)
        args = tuple(x for x in symbol.args if not x.is_Integer)
    return {k for k, x in enumerate(args) if x in (t, s)}


def _responses(model: Model, asked: Responses, steps: int) -> dict[Node, str]:
    """How each response is found."""
    chosen: dict[Node, str] = {}
    for n, e in model.entries.items():
        ways = [c for c in e.averages.values() if isinstance(c, Responding)]
        if not ways:
            continue
        kinds = {kind_of(model, c) for c in ways}
        if asked == "jacobian" and "jumps" in kinds:
            raise ValueError(f"{_name(n)}: a function on the way jumps, take responses = 'stein' or 'auto'")
        groups = [model.groups[group_of(model, c.source)] for c in ways]
        entries = steps * max(sum(prod(model.sources[x][1]) for x in g) for g in groups)
        along = kinds == {"linear"} or ("jumps" not in kinds and entries <= FEW)
        chosen[n] = "jacobian" if asked == "jacobian" or (asked == "auto" and along) else "stein"
    return chosen


def _observables(model: Model, known: Known, steps: int) -> dict[Node, Array]:
    """Observables (tangent kernels) from the order parameters, at all times."""
    found: dict[Node, Array] = {}
    for node, symbol, expr in model.observables:
        args = tuple(x for x in symbol.args if not x.is_Integer)
        sizes = [steps if x in (t, s) else model.sizes[x] for x in args]
        at = {
            x: np.arange(n).reshape([-1 if j == k else 1 for j in range(len(args))])
            for k, (x, n) in enumerate(zip(args, sizes, strict=True))
        }
        found[node] = np.broadcast_to(known(expr, at), sizes).copy()
    return found
