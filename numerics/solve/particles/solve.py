"""Solve a nonlinear theory with particles: independent replicas, their mean and their standard error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from sympy import Symbol

from derive.calculus.symbols import s, t
from derive.theory import Theory
from numerics.paths import Block, Paths, gathered
from numerics.solve.direct.evaluate import Evaluated, Place
from numerics.solve.direct.layout import Number
from numerics.solve.particles.accuracy import reach
from numerics.solve.particles.formulas import Node
from numerics.solve.particles.paths import kept
from numerics.solve.particles.prepared import Prepared, Responses, name_of
from numerics.solve.particles.reading import Model
from numerics.threads import one_thread

Array = NDArray[np.float64]

LEAST = 8
"""The fewest samples, an even number."""


@dataclass(frozen=True)
class Solved(Evaluated):
    """What :func:`solve_particles` found, with standard errors over the replicas.

    ``responses`` says for each response how it was computed; ``ranks`` for each source how many normal
    numbers its path is made of at the last step, of how many entries; ``runs`` holds each replica.
    ``accuracy`` and ``bias`` are what :func:`solve_to_accuracy` reached.
    """

    samples: int
    replicas: int
    responses: Mapping[str, str]
    ranks: Mapping[str, tuple[int, int]]
    runs: Mapping[Place, Array]
    paths: xr.Dataset | None = None
    accuracy: float | None = None
    bias: float | None = None


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
    matched: bool | None = None,
    ridge: float | None = None,
    carriers: int | None = None,
    paths: Paths | None = None,
) -> Solved:
    """Order parameters and scalars of ``theory`` at times ``0..steps-1``, from sampled paths.

    ``theory`` is in discrete steps and at integer depth, linear or not; ``values`` and ``data`` as for
    :func:`numerics.solve.direct.evaluate`.  All populations are marched together in one sweep: sources are
    drawn conditionally on their past, correlations and scalars are averages over ``samples`` paths.  Each of
    ``replicas`` solutions has its own paths and its own kernels; their spread gives the standard errors,
    their common bias is of order 1/samples.

    ``responses`` are found from derivatives carried along the paths (``jacobian``; along the first
    ``carriers`` of them, if given), or from Stein's lemma (``stein``), which needs no derivative and serves
    functions that jump.  The lemma divides by the covariance of a source, to which ``ridge`` of each variance
    is added (by default 10 times the entries over the square of the samples): single entries of responses are
    then smoothed, and what they do to the fields changes by less than the noise; ``ridge=0`` divides in the
    numerical range of the covariance.  It fits as many numbers as a source has entries (samples of the data
    times steps): take twice as many paths at least.  ``auto`` takes derivatives where no function on the way
    jumps and where the way is linear or the source has no more than 24 entries.  So few entries cost little,
    and single entries of responses are not smoothed; with more of them the same time, spent on more paths and
    the lemma, gives the smaller error.

    ``matched`` makes second moments of the sources exact; by default where weights have no noise, whose many
    directions it would bias.  ``paths`` are kept of every replica.

    The axes of the result are those of :class:`~numerics.solve.direct.evaluate.Evaluated`.

    Raises :class:`~numerics.solve.direct.layout.Unserved` for what particles do not serve (flows, attributes,
    shifted indices) and for ``jacobian`` where a function jumps; ValueError for missing values and data;
    :class:`~numerics.errors.Diverged` when an average is not finite.

    >>> from derive.theory import mean_field
    >>> from derive.program import P, eta, gamma0, mlp
    >>> theory = mean_field(mlp(2, "tanh"))
    >>> data = {"K_x": [[1.0]], "y": [1.0]}
    >>> solved = solve_particles(theory, steps=3, values={eta: 0.5, gamma0: 1, P: 1}, data=data, samples=64)
    >>> solved.value("Delta").shape, solved.value("Phi", 2).shape
    ((3, 1), (1, 1, 3, 3))
    """
    if steps < 1 or samples < LEAST or samples % 2 or replicas < 2:
        raise ValueError(
            f"steps = {steps}, samples = {samples}, replicas = {replicas}: at least 1, {LEAST} (and even), 2"
        )
    prepared = Prepared(theory, steps=steps, values=values, data=data, responses=responses)
    times = [] if paths is None else paths.steps(theory.program, steps - 1)
    walked: list[dict[str, Block]] = []
    runs = list(
        prepared.runs(
            samples,
            np.random.SeedSequence(seed).spawn(replicas),
            matched=matched,
            ridge=ridge,
            carriers=carriers,
            finished=None if paths is None else lambda march, i: walked.append(kept(march, paths, times, i)),
        )
    )
    solved = _solved(prepared, runs, samples)
    return replace(solved, paths=gathered(walked, times, kind="theory")) if walked else solved


@one_thread
def solve_to_accuracy(
    theory: Theory,
    *,
    steps: int,
    accuracy: float,
    values: Mapping[Symbol | str, Number] | None = None,
    data: Mapping[str, Any] | None = None,
    seed: int = 0,
    responses: Responses = "auto",
    first: int | None = None,
) -> Solved:
    """:func:`solve_particles` with as many samples and replicas as an accuracy takes.

    Samples are doubled from ``first`` (twice the entries of the sources, or FEWEST) until the standard error
    and the bias of every scalar of the theory, relative to its largest value, are below ``accuracy``; see
    :mod:`~numerics.solve.particles.accuracy`.  Raises ValueError for an accuracy that is not between 0 and
    1, NotConverged for one that is out of reach, and what :func:`solve_particles` raises.
    """
    if not 0 < accuracy < 1:
        raise ValueError(f"accuracy = {accuracy}: a number between 0 and 1")
    prepared = Prepared(theory, steps=steps, values=values, data=data, responses=responses)
    names = list(prepared.model.scalars)

    def attempt(samples: int, numbers: Iterable[int], into: _Runs) -> Iterator[dict[str, Array]]:
        seeds = [np.random.SeedSequence(seed, spawn_key=(n,)) for n in numbers]
        for found in prepared.runs(samples, seeds):
            into.append(found)
            yield {name_of(n): found[n] for n in names}

    reached = reach(attempt, list, accuracy, first or prepared.enough)
    solved = _solved(prepared, reached.solutions, reached.samples)
    return replace(solved, accuracy=reached.error, bias=reached.bias)


_Runs = list[dict[Node, Array]]


def _solved(prepared: Prepared, runs: _Runs, samples: int) -> Solved:
    """Means and standard errors over these replicas."""
    found = {node: np.stack([r[node] for r in runs]) for node in runs[0]}
    axes: dict[Place, tuple[tuple[int, ...], ...]] = {}
    for node, stacked in found.items():
        times = _time_axes(prepared.model, node)
        axes[node] = tuple(
            tuple(range(n)) if k in times else tuple(range(1, n + 1)) for k, n in enumerate(stacked.shape[1:])
        )
    return Solved(
        "particles",
        {k: v.mean(axis=0) for k, v in found.items()},
        {k: v.std(axis=0, ddof=1) / np.sqrt(len(runs)) for k, v in found.items()},
        axes,
        samples,
        len(runs),
        prepared.methods,
        prepared.ranks,
        found,
    )


def _time_axes(model: Model, node: Node) -> set[int]:
    if node in model.scalars:
        return {0}
    args = next((e.args for n, e in model.entries.items() if n == node), None)
    if args is None:
        symbol = next(x for n, x, _ in model.observables if n == node)
        args = tuple(x for x in symbol.args if not x.is_Integer)
    return {k for k, x in enumerate(args) if x in (t, s)}
