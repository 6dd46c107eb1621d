"""How many samples, replicas and time nodes an accuracy takes: doubled, and measured each time.

An average of S paths misses noise, which replicas show, and a bias of order 1/S, which the difference
between S and S/2 paths from the same seeds shows.  Both are measured relative to the scale of a watched
quantity (:func:`scales_of`).  The bias falls with samples alone.  Of more samples and more replicas a search
takes what costs fewer paths, by the power with which the noise has fallen so far: replicas add to those that
there are, and new samples begin anew.  The grid of a flow is
refined until what it misses is small beside the noise: every grid is solved from the same seeds, so most of
the noise drops out of differences between grids.
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
"""Independent solutions whose spread gives the standard errors."""

PILOTS = 2
"""Replicas that show what a grid misses, the first of those to come."""

EAGER = 0.7
"""Share of the replicas that would do which are added at first: the largest of many standard errors, each
found from few replicas, is too large."""

MARGIN = 1.1
"""Replicas that are added, over those that would do if standard errors were known exactly."""

POWER = 0.75
"""The power of the samples with which standard errors fall, measured (docs/theory/nonlinear.md)."""

EXPECTED = 2.0
"""Doublings of the samples that POWER counts as, beside those over which the error was seen to fall."""

POWERS_SEEN = 0.5, 1.0
"""The least and the largest power that a search takes from its sizes: those of independent paths, and of
smooth functions of few numbers."""

LEAP = 3
"""Doublings at once, at most: the bias is known from the size before, where it still falls like 1/samples."""

SURE = 0.95
"""How sure it is that what is seen beyond noise is there."""

SAME_UNITS = {"test_loss": "train_loss", "test_f": "error"}
"""Quantities of test points, which may be tiny, and those of the training in the same units."""

MOST_REPLICAS = 64
MOST_SAMPLES = 2**17
"""The budget: replicas and samples beyond which an accuracy counts as out of reach."""

CollectedSolutions = TypeVar("CollectedSolutions")


ReplicaSolver = Callable[[int, Iterable[int], CollectedSolutions], Iterable[Watched]]
"""``attempt(samples, numbers, into)`` solves the replicas of these numbers, puts each solution ``into`` what
collects them, and gives what is watched of it.  The same number means the same seed."""


@dataclass(frozen=True)
class Reached(Generic[CollectedSolutions]):
    """Solutions of ``replicas`` replicas of ``samples`` paths and what they miss.

    ``error`` is the largest standard error of what was watched, ``bias`` the root mean square of its bias
    where noise alone would leave as much in less than one of twenty cases, and ``bias_bound`` with its noise,
    each relative to the largest value of its quantity; ``missed`` is that bias of each quantity at each time.
    ``power`` says that the error fell as ``samples**-power``, where several sizes were tried.
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
    """Replicas of a number of samples: what they were put into, and what is watched of each."""

    samples: int
    solutions: CollectedSolutions
    watched: list[Watched] = field(default_factory=list)

    @property
    def error(self) -> float:
        """The largest relative standard error."""
        return max(float(e.max()) / scale for e, scale in zip(*self.errors(), strict=True))

    @property
    def typical(self) -> float:
        """The largest relative root mean square of standard errors, of REPLICAS."""
        size = max(rms(e) / scale for e, scale in zip(*self.errors(), strict=True))
        return size * float(np.sqrt(len(self.watched) / REPLICAS))

    def errors(self) -> tuple[list[Array], list[float]]:
        """Standard errors and scales of what is watched."""
        spread = spread_of(self.watched)
        scales = scales_of(spread.mean())
        return list(spread.stderr().values()), [scales[k] for k in spread.mean()]

    def bias(self, coarse: Level[CollectedSolutions], sure: float = 0.0) -> tuple[float, float]:
        """What a bias of order 1/samples leaves here, from the difference to fewer samples.

        Beyond noise, and at most; see :func:`apart`.
        """
        beyond, whole = apart(self.watched, coarse.watched, sure)
        gain = self.samples / coarse.samples - 1
        return beyond / gain, whole / gain

    def missed(self, coarse: Level[CollectedSolutions]) -> dict[str, Array]:
        """The same beyond noise, of each quantity at each time; zero where noise alone would do."""
        gain = self.samples / coarse.samples - 1
        seen = _each_apart(self.watched, coarse.watched, SURE)
        gaps = in_time(self.watched, coarse.watched)
        return {k: x / gain * (seen[k][0] > 0) for k, x in gaps.items()}


def spread_of(watched: Iterable[Watched]) -> Spread:
    """Of all these replicas."""
    spread = Spread()
    for x in watched:
        spread.add(x)
    return spread


def scale_of(x: Array) -> float:
    """The size that errors of ``x`` are held against: its largest value, or one if it is zero."""
    return float(np.abs(x).max()) or 1.0


def scales_of(means: Mapping[str, Array]) -> dict[str, float]:
    """The sizes that errors are held against: :func:`scale_of`, for test points at least that of training.

    >>> scales_of({"error": np.array([1.0, 0.5]), "test_f": np.array([0.0, 1e-3])})
    {'error': 1.0, 'test_f': 1.0}
    """
    own = {k: scale_of(x) for k, x in means.items()}
    return {k: max(x, own.get(SAME_UNITS.get(k, k), x)) for k, x in own.items()}


def rms(x: Array) -> float:
    """The root of the mean of the squares."""
    with np.errstate(over="ignore"):  # shortly before a divergence
        return float(np.sqrt(np.mean(x**2)))


def apart(first: Sequence[Watched], second: Sequence[Watched], sure: float = 0.0) -> tuple[float, float]:
    """How far two solutions from the same seeds are apart, beyond what noise leaves between them, and in all.

    The root of the mean square difference of a quantity (for the first number less the square of its
    standard error), relative to the quantity's scale; the largest such numbers.  With ``sure``, a
    probability, what noise alone leaves as often as that counts as noise (Student's t).

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
    """The same of each quantity."""
    gaps = spread_of({k: x[k] - y[k] for k in x} for x, y in zip(first, second, strict=False))
    scales, errors = scales_of(spread_of(first).mean()), gaps.stderr()
    least = max(1.0, stdtrit(min(len(first), len(second)) - 1, (1 + sure) / 2))
    found = {}
    for k, x in gaps.mean().items():
        gap, noise, scale = rms(x), rms(errors[k]), scales[k]
        beyond = float(np.sqrt(gap**2 - noise**2)) if gap > least * noise else 0.0
        found[k] = beyond / scale, gap / scale
    return found


def in_time(first: Sequence[Watched], second: Sequence[Watched]) -> dict[str, Array]:
    """How far two solutions are apart at each time, the largest of the other axes: not less than at the times
    before and after, as differences that change their sign are small somewhere.

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
    affordable: Callable[[int], int] = lambda _: MOST_REPLICAS,
) -> Reached[CollectedSolutions]:
    """Double the samples from ``first`` until standard errors and bias are below ``accuracy``.

    Sizes are left out that would not do if noise fell with the power seen so far and the bias like
    1/samples.  Replicas are added instead where they cost fewer paths, and at ``most`` samples, up to as many
    as are ``affordable`` with these samples.
    Some with half as many samples come before, which show the bias.  ``begun`` are the first ones with
    ``first`` samples, if they have been solved before.  Without an accuracy ``first`` samples are what there
    are.  Raises NotConverged with the accuracy that was reached when these do not do.
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
            doublings = _plan(level, before, accuracy, bias, most // samples, affordable(samples))
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
        _more_replicas(attempt, level, accuracy, affordable(samples))
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
    if replicas > len(level.watched):
        level.watched += attempt(level.samples, range(len(level.watched), replicas), level.solutions)


def _needed(level: Level[CollectedSolutions], accuracy: float) -> int:
    """Return the number of replicas whose standard error is about 0.95 of the accuracy."""
    return int(np.ceil(MARGIN * len(level.watched) * (level.error / accuracy) ** 2))


def _plan(
    level: Level[CollectedSolutions],
    before: Level[CollectedSolutions],
    accuracy: float,
    bias: float,
    most: int,
    affordable: int,
) -> int:
    """Return how often samples are doubled, so that the fewest paths reach the accuracy; 0 for more replicas.

    The noise is taken to fall as it fell since the size ``before``, less surely the closer that is, and the
    bias like 1/samples.  Samples grow ``most`` times at most, and by LEAP doublings.
    """
    doublings = np.log2(level.samples / before.samples)
    known = min(before.typical, level.typical) > 0
    fell = np.log2(before.typical / level.typical) if known else POWER * doublings
    seen = (EXPECTED * POWER + fell) / (EXPECTED + doublings)
    power = float(np.clip(seen, *POWERS_SEEN))
    return cheapest(level.error / accuracy, bias / accuracy, power, len(level.watched), most, affordable)


def cheapest(
    noise: float, bias: float, power: float, have: int, most: int, affordable: int = MOST_REPLICAS
) -> int:
    """Return the number of doublings that costs the fewest paths, for errors in units of the accuracy.

    ``have`` replicas are there, whose standard error is ``noise``; it falls with the ``power`` of the samples
    and the root of the number of replicas.  Without a plan that does there are as many doublings as may be.

    >>> cheapest(1.3, 0.0, 0.75, 8, 64), cheapest(2.5, 0.0, 0.75, 8, 64), cheapest(2.5, 0.0, 0.75, 8, 2)
    (0, 2, 1)
    >>> cheapest(0.5, 3.5, 0.75, 8, 64), cheapest(1.9, 0.0, 0.5, 8, 64), cheapest(30.0, 0.0, 0.75, 8, 64)
    (1, 0, 3)
    """
    unbiased = int(np.floor(np.log2(max(bias, 1.0))))  # fewer than bring it down: it is known with its noise
    unbiased = max(unbiased, int(bias > 1))
    largest = max(min(LEAP, most.bit_length() - 1), 1)
    costs: dict[int, float] = {}
    for k in range(unbiased, largest + 1):
        replicas = np.ceil(MARGIN * have * (noise * 2.0 ** (-k * power)) ** 2)
        if replicas <= affordable:
            costs[k] = 2**k * max(replicas, REPLICAS) if k else max(replicas - have, 1)
    return min(costs, key=costs.__getitem__) if costs else largest


def _more_replicas(
    attempt: ReplicaSolver[CollectedSolutions], level: Level[CollectedSolutions], accuracy: float, most: int
) -> None:
    """As many as bring the standard error below ``accuracy``, if ``most`` of them allow that."""
    while level.error > accuracy:
        have = len(level.watched)
        needed = _needed(level, accuracy)
        if have >= most or needed > 4 * most:  # few replicas show a spread too large or small
            reason = f"about {needed} replicas would do, at most {most} are tried"
            raise _out_of_reach(level, accuracy, level.error, reason)
        _extend(attempt, level, min(needed, most))


def _out_of_reach(
    level: Level[CollectedSolutions], accuracy: float, error: float, reason: str
) -> NotConverged:
    """Return an error that says which accuracy was reached, and what would do."""
    return NotConverged(
        f"solver.accuracy = {accuracy:.1e}: {len(level.watched)} replicas of {level.samples} samples reach "
        f"{max(error, level.error):.1e}, and {reason}; a search takes at most three times the estimated time "
        "and memory: a larger solver.accuracy, or more solver.samples, would do"
    )


def _power(errors: Mapping[int, float]) -> float | None:
    """The fitted power with which the standard error falls; None unless three sizes were tried."""
    found = [(np.log(n), np.log(e)) for n, e in errors.items() if e > 0]
    if len(found) < 3:
        return None
    x, y = np.array(found).T
    return -float(np.polyfit(x, y, 1)[0])


SHARE = 0.25
"""What a grid may miss, in standard errors."""

FEW = 8
"""Intervals of the coarsest grid, if there are more output times than that."""

SMOOTH, ROUGH = 4, 2
"""Orders of the integrator: for functions with a continuous derivative, and for others and for noise.

A path that meets a kink within a step is off in first order, either way; the average over paths keeps no more
than the second order, so a higher one would only cost stability: rates up to 1/step settle with order two, up
to half of that with order three."""

POWERS = {SMOOTH: 2.0, ROUGH: 1.5}
"""Powers of the step with which averages are taken to converge at least, without noise."""

COARSEST = 0.3
"""Steps of the coarsest grid by the clock of an age."""

AMPLIFIED, LARGE, MANY = 2.0, 0.1, 4
"""By how much the noise of steps that are too long is more than that of others, a large standard error, and
on how many grids in a row it is one of too few samples."""

LOST = 3
"""On how many grids in a row numbers may lose their accuracy before a flow is given up."""


@dataclass(frozen=True)
class Integrator:
    """What it is called, its order, the power of the step with which what it misses falls at least, and the
    clock by which steps are even.
    """

    name: str
    order: int
    power: float
    age: Age | None = None


@dataclass(frozen=True)
class Settled(Generic[CollectedSolutions]):
    """A grid that contains the output times, its replicas, and what to report of it.

    ``missed`` is what the grid misses of each quantity at each time, with the noise of the replicas that
    show it; ``seen`` is that beyond noise, as a share of the largest value.
    """

    grid: TimeGrid
    begun: Level[CollectedSolutions]
    missed: Mapping[str, Array]
    seen: float
    notes: Mapping[str, Any]


def grids(times: Array, order: int, age: Age | None = None) -> Iterator[TimeGrid]:
    """Ever finer grids, the first ones through some of the output times alone; outputs are those there are.

    By the clock of an age all steps shorten together, whatever the output times are.

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
    """Every ``stride``-th of the output times, and the last one."""
    return np.unique([*range(0, count, stride), count - 1])


class _Tried(NamedTuple, Generic[CollectedSolutions]):
    """A grid, what solves replicas on it, and those that it has solved."""

    grid: TimeGrid
    solve: ReplicaSolver[CollectedSolutions]
    level: Level[CollectedSolutions]

    def seen_by(self, coarse: _Tried[CollectedSolutions]) -> list[Watched]:
        """What is watched at the output times of a coarser grid."""
        if self.grid.age is not None:
            return self.level.watched
        nodes, others = (x.nodes[x.outputs] for x in (self.grid, coarse.grid))
        at = np.searchsorted(nodes, others)
        return [{k: x[at] for k, x in y.items()} for y in self.level.watched]


def settle_paths(
    times: Array,
    attempt: Callable[[TimeGrid], ReplicaSolver[CollectedSolutions]],
    collect: Callable[[], CollectedSolutions],
    samples: int,
    *,
    rtol: float,
    accuracy: float | None,
    integrator: Integrator,
) -> Settled[CollectedSolutions]:
    """Refine until a grid misses a share of the standard error, or ``rtol`` if that is more.

    ``attempt`` solves replicas on a grid, PILOTS of them: what a grid misses shows in few, as all grids are
    solved from the same seeds.  The standard error of REPLICAS is taken to be smaller by the root of the
    number of replicas.  Two grids whose steps have the ratio r are apart by ``d = e (r**p - 1)``, where the
    finer one misses e and the coarser one ``r**p e``, with the power p of the integrator.  The coarser one is
    taken if it will do.  What it misses is then found from REPLICAS, of it and of the grid before it, which
    costs least and of whose noise least is left; where that is more, refining goes on.

    Two grids are further apart than the coarser one was found to miss where they tell directions of the
    sources apart in another order: then they take other random numbers for them, and what they are apart is
    noise, of which two pilots say little.  All REPLICAS are pilots from there on, and as noise does not fall
    with the step, a grid is taken to miss at most ``e' / r``, where the coarser one was found to miss e'.

    Steps that are too long for a rule amplify noise, in which what they miss is hidden; shorter ones leave
    less of it.  So no grid is taken whose standard error is more than AMPLIFIED of that on the next one, and
    where that is LARGE, of that on any of MANY grids in a row.  Where finer ones lose their accuracy, the
    last one will do that misses no more than the accuracy.

    Differences and errors are root mean squares over times and samples; differences count as far as they
    exceed their own noise.  The standard error counts as no larger than an ``accuracy``, or than LARGE.
    Raises :class:`~numerics.errors.NotConverged` beyond MAX_NODES nodes.
    """
    tried: list[_Tried[CollectedSolutions]] = []
    unknown = np.array([np.inf, np.inf])  # beyond the noise of what was found, and with it
    missed, pilots, lost, calm = unknown, PILOTS, 0, False
    for grid in grids(times, integrator.order, integrator.age):
        if len(grid.nodes) > MAX_NODES:
            break
        if tried and grid.step > 0.9 * tried[-1].grid.step:
            continue
        new = _Tried(grid, attempt(grid), Level(samples, collect()))
        try:
            _extend(new.solve, new.level, pilots)
        except Diverged:
            tried, missed, calm = (
                [],
                unknown,
                False,
            )  # an explicit integrator diverges when its step is too long
            continue
        except NotConverged:  # what nearly diverges loses its accuracy, and so do many steps
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
            with suppress(NotConverged):  # some of the other replicas lose theirs
                settled = _confirmed(tried, k, bound, integrator)
                if settled.seen <= allowed:
                    return settled
                pilots = REPLICAS
    raise NotConverged(
        f"the flow needs more than {MAX_NODES} time nodes: the grid still misses {missed[0]:.1e} of the "
        f"largest error where solver.rtol = {rtol:.1e}; a larger rtol or a shorter training.time would do"
    )


def _last(
    tried: Sequence[_Tried[CollectedSolutions]], integrator: Integrator, accuracy: float
) -> Settled[CollectedSolutions] | None:
    """The last grid of which all REPLICAS are there, if it misses no more than the accuracy."""
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
    """The k-th grid, all REPLICAS of it, and what it misses by those of the grid before it, or after the
    first one; ``bound`` is the most that it misses as far as was found before.
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
    if count and count < len(chosen.grid.outputs):  # of times between, that of the next one known
        at = np.searchsorted(coarse.grid.nodes[coarse.grid.outputs], chosen.grid.nodes[chosen.grid.outputs])
        gaps = {n: x[at] for n, x in gaps.items()}
    notes = {
        "grid_error": float(min(whole, bound)),
        "time_nodes": len(chosen.grid.nodes),
        "integrator": f"{integrator.name}, order {integrator.order}",
    }
    return Settled(chosen.grid, chosen.level, {n: share * x for n, x in gaps.items()}, seen, notes)
