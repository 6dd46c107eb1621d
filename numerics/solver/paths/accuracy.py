"""Search for the numbers of paths, replicas and times of a grid that reach a required accuracy.

In this module samples are paths of a replica. An average of S paths has noise, which the scatter of replicas
shows, and a bias of order 1/S, which the difference between S and S/2 paths from the same seeds shows. Both
are measured relative to the scale of a watched quantity (:func:`scales_of`). Only more paths reduce the bias.
Between more paths and more replicas the search takes the one that needs less time, from the power with which
the noise has fallen so far: new replicas add to the existing ones, and a new number of paths begins anew. The
grid of a flow is refined until its error is small compared with the noise: every grid is solved from the same
seeds, so that most of the noise cancels in differences between grids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from numerics.errors import Diverged, NotConverged
from numerics.solver.grid import Age, TimeGrid, aged_grid, flow_grid
from numerics.solver.refine import MAX_NODES, PIECES, shrinkage, shrinking_grids
from numerics.stats import Spread

Array = NDArray[np.float64]
Watched = Mapping[str, Array]

REPLICAS = 8
"""Number of independent solutions, from whose scatter standard errors follow."""

PILOTS = 2
"""Number of replicas that show the error of a grid, the first of REPLICAS."""

EAGER = 0.7
"""Share of the estimated replicas that are added at first.

The largest of many standard errors, each from few replicas, is an overestimate.
"""

MARGIN = 1.1
"""Ratio of added replicas to those that would suffice if standard errors were known exactly."""

POWER = 0.75
"""Measured power of the samples with which standard errors fall (docs/theory/nonlinear.md)."""

EXPECTED = 2.0
"""Number of doublings of the samples over which an observed decrease of the error counts as much as POWER."""

POWERS_SEEN = 0.5, 1.0
"""Smallest and largest power that a search assumes.

They are those of independent paths, and of smooth functions of few variables.
"""

LEAP = 3
"""Largest number of doublings at once; the bias is extrapolated over them like 1/samples."""

DOUBLED = tuple(2.0**n for n in range(LEAP + 1))
"""Relative times of a replica after 0, 1, 2, ... doublings of its paths, if they are proportional to the
paths."""

SURE = 0.95
"""Confidence with which a difference counts as larger than noise."""

SAME_UNITS = {"test_loss": "train_loss", "test_f": "error"}
"""Quantities of test points, which may be tiny, and those of training in the same units."""

MOST_REPLICAS = 64
"""Largest number of replicas."""
MOST_SAMPLES = 2**17
"""Largest number of samples; an accuracy that needs more is out of reach."""

CollectedSolutions = TypeVar("CollectedSolutions")


ReplicaSolver = Callable[[int, Iterable[int], CollectedSolutions], Iterable[Watched]]
"""``attempt(samples, numbers, into)`` solves the replicas with these numbers, adds each solution to the
collection ``into``, and yields the watched values of each. A number determines the seed of a replica."""


def _all_affordable(_: int) -> int:
    """Return MOST_REPLICAS, the largest number of replicas, for any number of paths."""
    return MOST_REPLICAS


@dataclass(frozen=True)
class Budget:
    """Limits of a search, as functions of the number of paths of a replica.

    ``affordable`` gives the largest number of replicas, ``seconds`` the time of one replica, in any unit.
    """

    affordable: Callable[[int], int] = _all_affordable
    seconds: Callable[[int], float] = float


@dataclass(frozen=True)
class Reached(Generic[CollectedSolutions]):
    """Solutions of ``replicas`` replicas of ``samples`` paths, with their errors.

    ``error`` is the largest standard error of the watched values. ``bias`` is the root mean square of the
    bias, without the part that noise explains, or zero if noise alone would give such a difference in more
    than one of twenty cases; ``bias_bound`` is the same with its noise and without this test. Each is
    relative to the scale of its quantity (:func:`scales_of`). ``missed`` is the absolute bias of each
    quantity at each time. The error fell as ``samples**-power``; ``power`` is None for fewer than three
    numbers of paths.
    """

    samples: int
    replicas: int
    solutions: CollectedSolutions
    error: float
    bias: float
    bias_bound: float
    missed: Mapping[str, Array]
    power: float | None = None


@dataclass
class Level(Generic[CollectedSolutions]):
    """Replicas with one number of paths: their collected solutions, and the watched values of each.

    ``samples`` is the number of paths of a replica. Watched values are arrays by name with time first, such
    as losses and errors.
    """

    samples: int
    solutions: CollectedSolutions
    watched: list[Watched] = field(default_factory=list)

    @property
    def error(self) -> float:
        """Largest standard error of a watched value, relative to the scale of its quantity."""
        return max(float(e.max()) / scale for e, scale in zip(*self.errors(), strict=True))

    @property
    def typical(self) -> float:
        """Root mean square of the relative standard errors of a quantity, the largest of all quantities.

        It is converted to the standard error of REPLICAS replicas.
        """
        size = max(rms(e) / scale for e, scale in zip(*self.errors(), strict=True))
        return size * float(np.sqrt(len(self.watched) / REPLICAS))

    def errors(self) -> tuple[list[Array], list[float]]:
        """Return two lists with an item for each watched quantity: its standard errors, and its scale.

        The standard errors are an array with time first. The scale is the number to which errors are
        relative.
        """
        spread = spread_of(self.watched)
        scales = scales_of(spread.mean())
        return list(spread.stderr().values()), [scales[k] for k in spread.mean()]

    def bias(self, coarse: Level[CollectedSolutions], sure: float = 0.0) -> tuple[float, float]:
        """Return the bias of order 1/paths at this level, from the difference to fewer paths.

        ``coarse`` is the level with fewer paths. The two numbers are the relative bias beyond noise, and the
        same with noise. With ``sure``, a probability, the first is zero if noise explains the difference; see
        :func:`apart`.
        """
        beyond, whole = apart(self.watched, coarse.watched, sure)
        gain = self.samples / coarse.samples - 1
        return beyond / gain, whole / gain

    def missed(self, coarse: Level[CollectedSolutions]) -> dict[str, Array]:
        """Return the absolute bias of each quantity at each time, from the difference to fewer paths.

        ``coarse`` is the level with fewer paths. The bias is zero if noise explains the difference.
        """
        gain = self.samples / coarse.samples - 1
        seen = _each_apart(self.watched, coarse.watched, SURE)
        gaps = in_time(self.watched, coarse.watched)
        return {k: x / gain * (seen[k][0] > 0) for k, x in gaps.items()}


def spread_of(watched: Iterable[Watched]) -> Spread:
    """Return an object that gives the means and standard errors of watched values over replicas.

    ``watched`` holds the watched values of each replica, arrays by name.
    """
    spread = Spread()
    for x in watched:
        spread.add(x)
    return spread


def scale_of(x: Array) -> float:
    """Return the size to which errors of ``x`` are relative.

    It is the largest absolute value of its entries, and one if all entries are zero.
    """
    return float(np.abs(x).max()) or 1.0


def scales_of(means: Mapping[str, Array]) -> dict[str, float]:
    """Return the size to which errors of each quantity are relative, from its mean values.

    It is that of :func:`scale_of`; for test points it is at least that of the training quantity in the same
    units.

    >>> scales_of({"error": np.array([1.0, 0.5]), "test_f": np.array([0.0, 1e-3])})
    {'error': 1.0, 'test_f': 1.0}
    """
    scales = {k: scale_of(x) for k, x in means.items()}
    return {k: max(x, scales.get(SAME_UNITS.get(k, k), x)) for k, x in scales.items()}


def rms(x: Array) -> float:
    """Return the root mean square of all entries."""
    with np.errstate(over="ignore"):  # values may overflow shortly before a divergence
        return float(np.sqrt(np.mean(x**2)))


def apart(first: Sequence[Watched], second: Sequence[Watched], sure: float = 0.0) -> tuple[float, float]:
    """Return the distance of two solutions from the same seeds: without their noise, and with it.

    ``first`` and ``second`` hold the watched values of each replica; if one has more replicas, its last ones
    are not compared. The distance of a quantity is the root mean square difference of the means, relative to
    the scale of the quantity in ``first``; for the first number, the mean square of the standard errors of
    this difference is subtracted from the square of the difference. The largest of all quantities is
    returned. With ``sure``, a probability, distances that noise exceeds with probability ``1 - sure`` or more
    count as noise (Student's t).

    >>> noisy, other = [{"x": np.array([1.0, 2.0])}, {"x": np.array([1.2, 1.8])}], [{"x": np.ones(2)}] * 2
    >>> [round(x, 3) for x in apart(noisy, other)], apart(noisy, noisy)
    ([0.333, 0.337], (0.0, 0.0))
    >>> apart(noisy, other, 0.95)[0]
    0.0
    """
    beyond, whole = zip(*_each_apart(first, second, sure).values(), strict=True)
    return max(beyond), max(whole)


def _each_apart(
    first: Sequence[Watched], second: Sequence[Watched], sure: float
) -> dict[str, tuple[float, float]]:
    """Return two distances of two solutions for each quantity, by name: without their noise, and with it.

    They are those of :func:`apart`, which returns the largest of all quantities.
    """
    gaps = spread_of({k: x[k] - y[k] for k in x} for x, y in zip(first, second, strict=False))
    scales, errors = scales_of(spread_of(first).mean()), gaps.stderr()
    least = max(1.0, stdtrit(min(len(first), len(second)) - 1, (1 + sure) / 2))
    distances = {}
    for k, x in gaps.mean().items():
        gap, noise, scale = rms(x), rms(errors[k]), scales[k]
        beyond = float(np.sqrt(gap**2 - noise**2)) if gap > least * noise else 0.0
        distances[k] = beyond / scale, gap / scale
    return distances


def in_time(first: Sequence[Watched], second: Sequence[Watched]) -> dict[str, Array]:
    """Return the absolute distance of two solutions from the same seeds at each time, by quantity.

    It is the largest difference of the means over replicas at this time, the one before and the one after,
    over all other axes, because differences that change sign are small somewhere.

    >>> one, other = [{"x": np.array([[1.0, 2.0], [0.0, 0.5], [0.0, 0.1]])}], [{"x": np.zeros((3, 2))}]
    >>> in_time(one, other)["x"].tolist()
    [2.0, 2.0, 0.5]
    """
    gaps = spread_of({k: x[k] - y[k] for k in x} for x, y in zip(first, second, strict=False)).mean()
    largest = {k: np.abs(x).reshape(len(x), -1).max(axis=1) for k, x in gaps.items()}
    padded = {k: np.pad(x, 1) for k, x in largest.items()}
    return {k: np.max([x[:-2], x[1:-1], x[2:]], axis=0) for k, x in padded.items()}


def reach(
    attempt: ReplicaSolver[CollectedSolutions],
    collect: Callable[[], CollectedSolutions],
    accuracy: float | None,
    first: int,
    most: int = MOST_SAMPLES,
    begun: Level[CollectedSolutions] | None = None,
    budget: Budget = Budget(),
) -> Reached[CollectedSolutions]:
    """Increase paths and replicas, from ``first`` paths of a replica on, until ``accuracy`` is reached.

    ``attempt`` solves replicas and ``collect`` returns an empty collection for their solutions. Numbers of
    paths are skipped that would not suffice if noise fell with the power seen so far and the bias like
    1/paths. Replicas are added instead if they need less time, and at ``most`` paths, up to as many as the
    ``budget`` allows with these paths. Replicas with half of the first number of paths are solved before,
    because the difference to them shows the bias. ``begun`` are the first replicas with ``first`` paths, if
    they exist already. Without an accuracy the number of paths stays ``first``. Raises NotConverged with the
    accuracy that was reached if it is not enough.
    """
    before = Level(2 * (first // 4), collect())
    _extend(attempt, before, REPLICAS // 2 if accuracy is None else REPLICAS)
    samples, errors = first, {before.samples: before.error}
    while True:
        level = begun if begun and samples == first else Level(samples, collect())
        _extend(attempt, level, REPLICAS)
        errors[samples] = level.error
        bias, bound = level.bias(before)
        if accuracy is None or max(level.error, bias) <= accuracy or 2 * samples > most:
            break
        while level.error > accuracy or bias > accuracy:
            doublings = _plan(level, before, accuracy, bias, most // samples, budget)
            if doublings:
                break
            have, needed = len(level.watched), _needed(level, accuracy)
            _extend(attempt, level, have + int(np.ceil(EAGER * max(needed - have, 1))))
        else:
            break
        before = level
        samples *= 2**doublings
    if accuracy is not None:
        if bias > accuracy:
            raise _out_of_reach(level, accuracy, bias, f"a bias of {bias:.1e} is left")
        _more_replicas(attempt, level, accuracy, budget.affordable(samples))
    seen, _ = level.bias(before, SURE)
    return Reached(
        samples,
        len(level.watched),
        level.solutions,
        level.error,
        seen,
        bound,
        level.missed(before),
        _power(errors),
    )


def _extend(
    attempt: ReplicaSolver[CollectedSolutions], level: Level[CollectedSolutions], replicas: int
) -> None:
    """Solve further replicas of a level, with ``attempt``, until it has this number of ``replicas``."""
    if replicas > len(level.watched):
        level.watched += attempt(level.samples, range(len(level.watched), replicas), level.solutions)


def _needed(level: Level[CollectedSolutions], accuracy: float) -> int:
    """Return the total number of replicas that a level needs to reach an accuracy.

    The standard error of their mean is expected to be about 0.95 of the accuracy.
    """
    return int(np.ceil(MARGIN * len(level.watched) * (level.error / accuracy) ** 2))


def _plan(
    level: Level[CollectedSolutions],
    before: Level[CollectedSolutions],
    accuracy: float,
    bias: float,
    most: int,
    budget: Budget,
) -> int:
    """Return how often the paths are doubled to reach the accuracy in the least time; 0 to add replicas.

    The noise is assumed to fall as a power of the number of paths. The power is the mean of POWER, with the
    weight EXPECTED, and of the power that was measured between the level ``before`` and this ``level``, with
    the number of doublings between them as weight; it is limited to the range POWERS_SEEN. The relative
    ``bias`` falls like 1/paths. The number of paths grows by at most the factor ``most``, and by at most LEAP
    doublings.
    """
    doublings = np.log2(level.samples / before.samples)
    known = min(before.typical, level.typical) > 0
    fell = np.log2(before.typical / level.typical) if known else POWER * doublings
    seen = (EXPECTED * POWER + fell) / (EXPECTED + doublings)
    power = float(np.clip(seen, *POWERS_SEEN))
    affordable = budget.affordable(level.samples)
    costs = [budget.seconds(level.samples * 2**k) for k in range(LEAP + 1)]
    have = len(level.watched)
    return cheapest(level.error / accuracy, bias / accuracy, power, have, most, affordable, costs)


def cheapest(
    noise: float,
    bias: float,
    power: float,
    have: int,
    most: int,
    affordable: int = MOST_REPLICAS,
    costs: Sequence[float] = DOUBLED,
) -> int:
    """Return the number of doublings of the paths with which an accuracy is reached in the least time.

    ``noise`` is the standard error of the ``have`` replicas that exist, and ``bias`` their bias, both in
    units of the accuracy. The noise falls like ``paths**-power`` and like one over the root of the number of
    replicas, the bias like one over the number of paths. Paths grow at most by the factor ``most``, which is
    at least 2, and by LEAP doublings, replicas to ``affordable``; ``costs`` are the times of a replica after
    0, 1, 2, ... doublings. If no plan suffices the largest number of doublings is returned.
    """
    # `unbiased` is the number of doublings of the paths after which the bias is as small as the accuracy.
    # Each doubling halves the bias, which is in units of the accuracy. The number is rounded down, because
    # the measured bias is noisy, but is at least 1 if the bias exceeds the accuracy.
    unbiased = int(np.floor(np.log2(max(bias, 1.0))))
    unbiased = max(unbiased, int(bias > 1))
    largest = max(min(LEAP, most.bit_length() - 1), 1)
    times: dict[int, float] = {}
    for k in range(unbiased, largest + 1):
        replicas = np.ceil(MARGIN * have * (noise * 2.0 ** (-k * power)) ** 2)
        if replicas <= affordable:
            times[k] = costs[k] * (max(replicas, REPLICAS) if k else max(replicas - have, 1))
    return min(times, key=times.__getitem__) if times else largest


def _more_replicas(
    attempt: ReplicaSolver[CollectedSolutions], level: Level[CollectedSolutions], accuracy: float, most: int
) -> None:
    """Add replicas to a level until its standard error is at most ``accuracy``.

    Raises NotConverged if ``most`` replicas do not suffice, or if more than four times as many are estimated
    to be needed.
    """
    while level.error > accuracy:
        have = len(level.watched)
        needed = _needed(level, accuracy)
        # `needed` follows from the standard error of the replicas so far, which may be too large by chance if
        # these are few. Only an estimate above 4 times `most` is therefore taken as out of reach.
        if have >= most or needed > 4 * most:
            reason = f"about {needed} replicas would do, at most {most} are tried"
            raise _out_of_reach(level, accuracy, level.error, reason)
        _extend(attempt, level, min(needed, most))


def _out_of_reach(
    level: Level[CollectedSolutions], accuracy: float, error: float, reason: str
) -> NotConverged:
    """Return the exception for an accuracy that a search did not reach, with the reached one and a remedy.

    The reached accuracy is the larger one of ``error`` and the standard error of the ``level``; ``reason`` is
    the part of the message that explains why the search ended.
    """
    return NotConverged(
        f"solver.accuracy = {accuracy:.1e}: {len(level.watched)} replicas of {level.samples} samples reach "
        f"{max(error, level.error):.1e}, and {reason}; a search takes at most three times the estimated time "
        "and memory: a larger solver.accuracy, or more solver.samples, would do"
    )


def _power(errors: Mapping[int, float]) -> float | None:
    """Return the fitted p of ``error ~ paths**-p``, from standard errors by number of paths.

    The result is None for fewer than three numbers of paths whose error is not zero.
    """
    points = [(np.log(n), np.log(e)) for n, e in errors.items() if e > 0]
    if len(points) < 3:
        return None
    x, y = np.array(points).T
    return -float(np.polyfit(x, y, 1)[0])


SHARE = 0.25
"""Largest error of a grid, in standard errors."""

FEW = 8
"""Smallest number of output intervals of the coarsest grid, if there are as many."""

SMOOTH, ROUGH = 4, 2
"""Orders of the integrator: for functions with a continuous derivative, and for others and for noise.

The error of a path that meets a kink within a step is of first order, with either sign. The average over
paths then has at most second order, so that a higher order would only cost stability: learning rates up to
1/step are stable with order two, and up to half of that with order three."""

POWERS = {SMOOTH: 2.0, ROUGH: 1.5}
"""Assumed powers of the step with which averages converge at least, without noise."""

COARSEST = 0.3
"""Step of the coarsest grid in slowed time."""

AMPLIFIED, LARGE, MANY = 2.0, 0.1, 4
"""Three thresholds of the noise on time grids.

Ratio of the noise of two grids above which the steps of one count as too long; relative standard error that
counts as large; and number of successive grids on which a large standard error means too few samples."""

LOST = 3
"""Largest number of successive grids that may lose their accuracy before the flow is refused."""


@dataclass(frozen=True)
class Integrator:
    """Integrator of a flow: name, order, and the ``power`` of the step with which its error falls.

    After short first steps, steps are equal in the slowed time ``age`` (steps that grow with time), or
    without it in each output interval.
    """

    name: str
    order: int
    power: float
    age: Age | None = None


@dataclass(frozen=True)
class Settled(Generic[CollectedSolutions]):
    """Time grid on which a flow has converged: the grid, the replicas solved on it, and notes for the result.

    ``begun`` are the replicas. ``missed`` is the absolute error of the grid for each quantity at each time,
    with the noise of the replicas from which it is estimated; ``seen`` is the part beyond noise, relative to
    the largest value.
    """

    grid: TimeGrid
    begun: Level[CollectedSolutions]
    missed: Mapping[str, Array]
    seen: float
    notes: Mapping[str, Any]


def grids(times: Array, order: int, age: Age | None = None) -> Iterator[TimeGrid]:
    """Yield ever finer time grids of a flow; the first ones may lack some of the output ``times``.

    ``order`` is that of the integrator. With the slowed time ``age`` every grid gives values at all output
    times, because outputs are interpolated, and all steps shrink together.

    >>> [len(g.nodes) for g, _ in zip(grids(np.linspace(0.0, 1.0, 65), 2), range(3))]
    [13, 21, 37]
    """
    if age is not None:
        for pieces in PIECES:
            yield aged_grid(times, age, step=COARSEST / pieces, order=order)
        return
    stride = 1
    while (len(times) - 1) // (2 * stride) >= FEW:
        stride *= 2
    while stride > 1:
        some = times[kept(len(times), stride)]
        yield flow_grid(some, step=float(np.max(np.diff(some))), order=order)
        stride //= 2
    yield from shrinking_grids(times, order)


def kept(count: int, stride: int) -> NDArray[np.intp]:
    """Return the positions of every ``stride``-th of ``count`` output times, and of the last one."""
    return np.unique([*range(0, count, stride), count - 1])


class _Tried(NamedTuple, Generic[CollectedSolutions]):
    """Time grid of a flow that was tried, the solver of replicas on it, and the replicas solved so far."""

    grid: TimeGrid
    solve: ReplicaSolver[CollectedSolutions]
    level: Level[CollectedSolutions]

    def seen_by(self, coarse: _Tried[CollectedSolutions]) -> list[Watched]:
        """Return the watched values of the replicas on this grid, at the output times of a coarser grid."""
        if self.grid.age is not None:
            return self.level.watched
        nodes, others = (x.nodes[x.outputs] for x in (self.grid, coarse.grid))
        at = np.searchsorted(nodes, others)
        return [{k: x[at] for k, x in y.items()} for y in self.level.watched]


def settle_paths(  # noqa: C901, PLR0912, PLR0915 - one search, whose state all of its rules share
    times: Array,
    attempt: Callable[[TimeGrid], ReplicaSolver[CollectedSolutions]],
    collect: Callable[[], CollectedSolutions],
    samples: int,
    *,
    rtol: float,
    accuracy: float | None,
    integrator: Integrator,
) -> Settled[CollectedSolutions]:
    """Refine the grid of a flow until its error is below SHARE standard errors, or below ``rtol``.

    ``attempt`` returns the solver of replicas on a grid, ``collect`` an empty collection for their solutions;
    ``times`` are the output times, ``samples`` the paths of a replica. First PILOTS replicas are solved on
    each grid: few replicas suffice to show the error of a grid, because all grids are solved from the same
    seeds. The standard error of REPLICAS replicas is estimated from theirs, by the root of the numbers of
    replicas. Two grids whose steps have the ratio r differ by ``d = e (r**p - 1)``, where the finer one has
    the error e and the coarser one ``r**p e``, with the power p of the integrator. The coarser one is taken
    if its estimated error is small enough, otherwise the finer one if its error is. The error is then
    measured with REPLICAS replicas on the grid and on the one before it, which needs the least time and has
    the least noise. If the measured error is too large, refining goes on.

    Two grids differ by more than the error of the coarser one if they order the directions of the sources
    differently: the same direction then has other random numbers on each grid, and the difference is noise,
    which two pilots measure badly. From there on all REPLICAS are pilots, and because noise does not fall
    with the step, the error of a grid is at most ``e' / r``, where e' is that of the coarser one.

    Steps that are too long for an explicit integrator amplify noise, which hides the error of the grid. So no
    grid is taken whose standard error is more than AMPLIFIED times that of the next one. While the standard
    error of the newest grid is above LARGE, this must hold for all of the last MANY grids. If finer grids
    lose their accuracy to rounding, the last grid is taken whose error is below the accuracy.

    Differences and errors are root mean squares over times and samples; differences count as far as they
    exceed their own noise. A standard error above the ``accuracy``, or above LARGE without an accuracy,
    counts as that limit. Raises :class:`~numerics.errors.NotConverged` if no grid of at most MAX_NODES nodes,
    up to the finest of :func:`grids`, suffices, or if rounding errors end the search without such a grid.
    """
    tried: list[_Tried[CollectedSolutions]] = []
    # Bounds of the error of the last grid, without its noise and with it. They are infinite until two grids
    # are compared.
    unknown = np.array([np.inf, np.inf])
    missed, pilots, lost, calm = unknown, PILOTS, 0, False
    diverged: Diverged | None = None
    for grid in grids(times, integrator.order, integrator.age):
        if len(grid.nodes) > MAX_NODES:
            break
        if tried and grid.step > 0.9 * tried[-1].grid.step:
            continue
        new = _Tried(grid, attempt(grid), Level(samples, collect()))
        try:
            _extend(new.solve, new.level, pilots)
        except Diverged as reason:
            # an explicit integrator may diverge if its step is too long: begin again with the next grid
            tried, missed, calm, diverged = [], unknown, False, reason
            continue
        except NotConverged:  # rounding errors grow if the dynamics nearly diverge, or over many steps
            if lost == LOST:
                last = _last(tried, integrator, accuracy or LARGE) if calm else None
                if last is None:
                    raise
                return last
            lost += 1
            continue
        lost, calm, tried = 0, False, [*tried[1 - MANY :], new]
        if len(tried) == 1:
            continue
        coarse = tried[-2]
        _extend(coarse.solve, coarse.level, pilots)
        gaps = np.array(apart(new.seen_by(coarse), coarse.level.watched))
        if pilots < REPLICAS and gaps[0] > missed[0]:
            pilots, missed = REPLICAS, unknown
            for x in tried[-2:]:
                _extend(x.solve, x.level, pilots)
            gaps = np.array(apart(new.seen_by(coarse), coarse.level.watched))
        error = new.level.typical
        allowed = max(rtol, SHARE * min(error, LARGE if accuracy is None else accuracy))
        ratio = shrinkage(coarse.grid, grid)
        gain = ratio**integrator.power
        most = missed if pilots == REPLICAS else unknown
        missed = np.minimum(gaps / (gain - 1), most / ratio)
        misses = np.minimum(gaps * gain / (gain - 1), most), missed
        if error > LARGE and len(tried) < MANY:
            continue
        if any(x.level.typical > AMPLIFIED * error for x in (tried if error > LARGE else tried[-2:])):
            continue
        calm = True
        for k, (estimate, bound) in zip((-2, -1), misses, strict=True):
            if estimate > allowed or (grid.age is None and len(tried[k].grid.outputs) < len(times)):
                continue
            # If further replicas lose their accuracy to rounding, the next grid is tried.
            with suppress(NotConverged):
                settled = _confirmed(tried, k, bound, integrator)
                if settled.seen <= allowed:
                    return settled
                pilots = REPLICAS
    if not tried and diverged is not None:
        raise NotConverged(
            f"the integrator diverges on time grids of up to {MAX_NODES} nodes, because the flow is much "
            "faster than its longest steps, or because the flow itself diverges; use a shorter "
            "training.time"
        ) from diverged
    known = np.isfinite(missed[0])
    grid_error = f"is still {missed[0]:.1e} of the largest value" if known else "is not known yet"
    raise NotConverged(
        f"the flow needs more than {MAX_NODES} time nodes: the error of the time grid {grid_error}, and "
        f"solver.rtol = {rtol:.1e}; use a larger rtol or a shorter training.time"
    )


def _last(
    tried: Sequence[_Tried[CollectedSolutions]], integrator: Integrator, accuracy: float
) -> Settled[CollectedSolutions] | None:
    """Return the finest grid that can be solved with REPLICAS replicas, if its error is below the accuracy.

    The result is None otherwise. Only grids that contain as many output times as the last one are considered.
    """
    for k in range(-1, -len(tried), -1):
        if len(tried[k].grid.outputs) < len(tried[-1].grid.outputs):
            break
        with suppress(NotConverged):
            settled = _confirmed(tried, k, np.inf, integrator)
            return settled if settled.seen <= accuracy else None
    return None


def _confirmed(
    tried: Sequence[_Tried[CollectedSolutions]], k: int, bound: float, integrator: Integrator
) -> Settled[CollectedSolutions]:
    """Return grid ``k`` of the ``tried`` grids, solved with REPLICAS, with its measured error.

    ``k`` is negative: -1 is the last grid. The error is measured from the difference to the grid before it
    (for the first grid, to the one after it). ``bound`` is the error with its noise, estimated before; the
    note ``grid_error`` is not larger, and ``missed`` is reduced in the same ratio.
    """
    chosen, before = tried[k], len(tried) + k > 0
    other = tried[k - 1] if before else tried[k + 1]
    for x in (chosen, other):
        _extend(x.solve, x.level, REPLICAS)
    fine, coarse = (chosen, other) if before else (other, chosen)
    gain = shrinkage(coarse.grid, fine.grid) ** integrator.power
    share = (1 if before else gain) / (gain - 1)
    sides = fine.seen_by(coarse), coarse.level.watched
    seen, whole = (share * x for x in apart(*sides, SURE))
    share *= min(1.0, bound / whole) if whole else 1.0
    gaps, count = in_time(*sides), len(coarse.grid.outputs)
    # `gaps` are differences between the grids at the output times of the coarse grid. At an output time that
    # the coarse grid lacks, the difference at the next output time of the coarse grid is taken.
    if count and count < len(chosen.grid.outputs):
        at = np.searchsorted(coarse.grid.nodes[coarse.grid.outputs], chosen.grid.nodes[chosen.grid.outputs])
        gaps = {n: x[at] for n, x in gaps.items()}
    notes = {
        "grid_error": float(min(whole, bound)),
        "time_nodes": len(chosen.grid.nodes),
        "integrator": f"{integrator.name}, order {integrator.order}",
    }
    return Settled(chosen.grid, chosen.level, {n: share * x for n, x in gaps.items()}, seen, notes)
