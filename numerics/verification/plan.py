"""Plans of finite networks that a theory is compared with: widths, numbers and times of kernels.

From a problem and an effort this module chooses two or three widths, each about twice the one before, and the
number of networks of each width.  The networks of each width cost about the same work, unless this needs too
few or too many networks.  Among the plans that can be afforded, the one with the smallest expected tolerance
is taken.  The module also chooses the times at which kernels are measured.
:mod:`numerics.verification.networks` trains the networks.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

import numpy as np
from numpy.typing import NDArray

from derive.linear.form import LinearForm
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.experiment.theory import error_jumps, slope_jumps
from numerics.simulation import KernelTimes
from numerics.simulation.experiment import MeasuredKernels, reference_size
from numerics.stats import LEVERAGE, Line, bound
from numerics.verification.controls import controls_of, has_controls
from numerics.verification.report import LEVEL
from numerics.verification.smaller_problems import FULL, Effort

FEWEST, MOST = 12, 1000
"""Fewest and most networks of one width."""

MOST_OF_TWO = 4000
"""Largest number of networks of one width in a plan of two widths, whose networks are narrower."""


PLAY = 0.25
"""Largest relative increase of a size that is made so that sizes of layers are nearly whole numbers."""


SUBSTEPS, SUBSTEPS_OF_JUMPS = 12, 40
"""Estimated evaluations of a flow's velocity between two output times, and the same where slopes jump."""


@dataclass(frozen=True)
class NetworkPlan:
    """Plan of finite networks to train: several widths, and for each the number of networks (``seeds``)."""

    widths: tuple[int, ...]
    seeds: tuple[int, ...]

    @property
    def total(self) -> int:
        """Number of networks of all widths."""
        return sum(self.seeds)

    def __str__(self) -> str:
        return ", ".join(f"{k} of width {n}" for n, k in zip(self.widths, self.seeds, strict=True))


def plan_of(source: Problem | Experiment, effort: Effort = FULL, slope: float | None = None) -> NetworkPlan:
    """Return a plan of networks of three widths, each about twice the one before.

    The first width follows from one of the sizes ``effort.smallest`` (:func:`widths_near`; the width of a
    program is the size itself): the one with the smallest expected tolerance (:func:`expected_tolerance`)
    whose networks can be afforded, or the last one if none can. If the theory has a finite width, this is the
    first width. If slopes of means in 1/N are derived instead of fitted, ``slope`` is the largest relative
    slope: two widths suffice then, with the work of two of the three. The work at each width is about the
    same, unless it would be spent on fewer than FEWEST or more than MOST networks (for two widths
    :func:`_most_of_two`). If units of a program differ by a given array of attributes, widths are multiples
    of its length.
    """
    problem = Problem.of(source)
    experiment = problem.experiment
    theory_width = None if experiment is None else experiment.network.width
    units = lcm(
        *[len(problem.arrays[x.name]) for x in problem.program.attributes if x.name in problem.arrays]
    )
    plans, controlled = [], has_controls(problem)
    share, most = effort.work / 3, MOST
    if slope is not None:
        fitted = plan_of(problem, effort)
        spent = np.dot(fitted.seeds, [_work_of(problem, n, effort) for n in fitted.widths])
        share, most = min(share, float(spent) / 3), _most_of_two(problem, effort)
    fewest = max(FEWEST, LEVERAGE * controls_of(problem)) if controlled else FEWEST
    for smallest in dict.fromkeys(
        -(-n // units) * units for n in (effort.smallest if theory_width is None else (theory_width,))
    ):
        widths = (
            (smallest, 2 * smallest, 4 * smallest)
            if experiment is None
            else widths_near(experiment, smallest)
        )
        widths = widths if slope is None else widths[:2]
        costs = [_work_of(problem, n, effort) for n in widths]
        seeds = tuple(int(np.clip(share / x, FEWEST, most)) for x in costs)
        plans.append((fewest * costs[-1] <= share, NetworkPlan(widths, seeds)))
    affordable = [plan for is_affordable, plan in plans if is_affordable]
    if not affordable:
        return plans[-1][1]
    return min(affordable, key=lambda plan: expected_tolerance(plan, controlled, slope))


def _most_of_two(problem: Problem, effort: Effort) -> int:
    """Return the largest number of networks of one width, in a plan of two widths.

    It is limited by the memory that kernels of every network need, because they are kept for regressions on
    fluctuations of the initial networks.
    """
    measured = measured_kernels(problem, effort)
    times = len(measured.pairs) if isinstance(measured, KernelTimes) else len(problem.times)
    size = 8.0 * max(_kernel_numbers(problem, times), 1.0)
    return int(np.clip(effort.kernel / (2 * size), MOST, MOST_OF_TWO))


def wider_plan(plan: NetworkPlan, source: Problem | Experiment) -> NetworkPlan | None:
    """Return a plan with twice the widths and as many networks of each, which costs up to four times as much.

    None if the theory itself has a finite width, so that widths are fixed.
    """
    experiment = Problem.of(source).experiment
    if experiment is not None and experiment.network.width is not None:
        return None
    return NetworkPlan(tuple(2 * n for n in plan.widths), plan.seeds)


SPREAD, SLOPE, CONTROLLED = 4.0, 20.0, 0.5
"""Standard deviation of a number over networks of width N, times sqrt(N), and its slope in 1/N, both relative
to the number: typical values of losses and kernels at the end of training (0.5 to 6, 1 to 70); and the factor
by which controls reduce the standard deviation (0.2 to 0.6)."""


def expected_tolerance(plan: NetworkPlan, controlled: bool = False, slope: float | None = None) -> float:
    """Return the expected relative tolerance of a comparison of a typical number with networks at 1/N = 0.

    It holds a multiple of the standard error and the remainder of the fit in 1/N, for a number with the
    typical standard deviation SPREAD and slope SLOPE. ``controlled`` states whether regressions on initial
    networks lower the standard error. With a ``slope``, the coefficient of 1/N is derived and has this
    relative size, and that of 1/N^2 is fitted.

    >>> few, many = (NetworkPlan((64, 128, 256), (n, n, n)) for n in (10, 1000))
    >>> expected_tolerance(few) > expected_tolerance(many)
    True
    """
    order, slope = (1, SLOPE) if slope is None else (2, slope)
    line = Line.through(plan.widths, plan.seeds, order)
    widths, seeds = np.array(plan.widths, dtype=float), np.array(plan.seeds)
    deviation = SPREAD * (CONTROLLED if controlled else 1.0)
    stderr = deviation * np.sqrt((line.intercept**2 / (widths * seeds)).sum())
    return float(bound(1, LEVEL) * stderr + line.curvature(plan.widths, order) * slope ** (order + 1))


def widths_near(experiment: Experiment, smallest: int) -> tuple[int, ...]:
    """Return three widths of the widest layer, each about twice the one before.

    At the first width all layers, and the numbers of features and of samples of random data, are at least
    ``smallest``. On power-law data the first width is ``smallest``.

    Ratios of layer sizes are rounded to whole units, which moves the networks off the straight line in 1/N.
    Therefore, among sizes up to a quarter larger, the size with the smallest rounding is chosen.

    >>> from numerics.experiment import Experiment
    >>> spec = {"network": {"depth": 2, "width_ratio": [0.7, 1.3]}, "data": {"kind": "isotropic"}}
    >>> widths_near(Experiment.from_dict(spec), 64)
    (130, 260, 520)
    """
    if experiment.spec.kind == "power-law":
        return (smallest, 2 * smallest, 4 * smallest)
    ratios = ratios_of(experiment)
    low = int(np.ceil(smallest / min(1.0, *ratios)))
    widest = max(_layers(experiment))
    best: tuple[int, ...] = ()
    least = np.inf
    for n in range(low, int(low * (1 + PLAY)) + 1):
        widths = tuple(round(widest * n * k) for k in (1, 2, 4))
        sizes = [reference_size(experiment, w) for w in widths]
        missed = sum(abs(round(r * k) - r * k) / (r * k) for r in ratios for k in sizes)
        if missed < least - 1e-12:
            best, least = widths, missed
    return best


def ratios_of(experiment: Experiment) -> list[float]:
    """Return sizes that are proportional to the width, divided by the reference size N.

    They are the sizes of the hidden layers and, for isotropic data, the numbers of samples and of samples in
    a batch as far as the file gives them.
    """
    data = experiment.data
    batch = [] if data is None else [x for x in (data.sample_ratio, data.batch_ratio) if x is not None]
    return _layers(experiment) + (batch if experiment.spec.kind == "isotropic" else [])


def _layers(experiment: Experiment) -> list[float]:
    """Return sizes of the hidden layers divided by the reference size N of the theory."""
    network = experiment.network
    ratio = network.width_ratio if experiment.spec.kind == "isotropic" else network.relative_widths
    if isinstance(ratio, list):
        return ratio
    return [1.0 if ratio is None else ratio] * experiment.depth


def work(experiment: Experiment, width: int, effort: Effort = FULL) -> float:
    """Return the estimated time in nanoseconds to train one network and to measure its correlations.

    ``width`` is that of the widest layer; ``effort`` limits the bytes of the kernels that are measured.
    """
    size, depth, times = reference_size(experiment, width), experiment.depth, len(experiment.times)
    kind = experiment.spec.kind
    layers = [r * (width if kind == "power-law" else size) for r in _layers(experiment)]
    features = min(experiment.sample_count, size) if kind == "fixed" else size
    entries = sum(a * b for a, b in zip([features, *layers], layers, strict=False))
    fresh = 12 * entries if experiment.training.temperature else 0.0
    if kind == "fixed":
        return _work_on_samples(Problem.of(experiment), entries, sum(layers), effort, fresh)
    if experiment.data is not None:
        batch = size * size * sum(ratios_of(experiment)[depth:])
        if kind == "power-law":
            batch = size * float(experiment.data.batch or 0) * width / (experiment.network.width or width)
        entries += batch
        fresh += 11 * batch if experiment.data.batch_ratio or experiment.data.batch else 0.0
    pairs = 0.1 * sum(layers) * times**2
    evaluations = times * (SUBSTEPS if experiment.training.rule == "flow" else 1)
    of_step = 1.6e5 * depth + fresh + entries * (3 + 0.3 * experiment.network.outputs)
    return 2e7 + evaluations * of_step + pairs


def _work_of(problem: Problem, width: int, effort: Effort) -> float:
    """Return the estimated time in nanoseconds of one network of a problem."""
    experiment = problem.experiment
    return _work_of_program(problem, width, effort) if experiment is None else work(experiment, width, effort)


def _work_of_program(problem: Problem, width: int, effort: Effort) -> float:
    """Return the estimated time in nanoseconds to train one network of a program.

    All its matrices are counted as square, with ``width`` rows.
    """
    depth = problem.depth or 1
    entries = float(depth * width**2 * len(problem.program.matrices))
    return _work_on_samples(problem, entries, float(depth * width), effort)


def _work_on_samples(
    problem: Problem, entries: float, units: float, effort: Effort, fresh: float = 0.0
) -> float:
    """Return the estimated time in nanoseconds to train one network on fixed samples.

    ``entries`` is its number of weights, ``units`` that of its units in all layers, and ``fresh`` is
    additional time of each step, in nanoseconds. Measured from width 64 to 512 with 1 to 3 layers and 2 to 20
    samples, within 40 per cent: 1 ms a network, 30 ns to draw a weight, and of each step 10 ns a unit and
    sample (30 ns in nonlinear networks), 1 ns a weight and 0.1 ns (0.2 ns where gradients differ between
    samples) a weight and sample, and 40 ns more a weight where rules act entry by entry.
    """
    samples, times = max(problem.sample_count, 1) * problem.outputs, len(problem.times)
    experiment, is_linear = problem.experiment, isinstance(problem.linear, LinearForm)
    entrywise = experiment is not None and experiment.training.entrywise
    of_weight = 1 + 0.1 * (samples + (problem.outputs if is_linear else samples)) + (40 if entrywise else 0)
    of_step = (10 if is_linear else 30) * units * samples + entries * of_weight + fresh
    measured = measured_kernels(problem, effort)
    if isinstance(measured, KernelTimes):
        numbers = _kernel_numbers(problem, len(measured.pairs))
    else:
        numbers = _kernel_entries(problem) if measured == "full" else 0.0
    numbers += _kernel_numbers(problem, DRAWN) / samples
    substeps = SUBSTEPS_OF_JUMPS if slope_jumps(problem.program) else SUBSTEPS
    evaluations = times * (substeps if problem.flow else 1)
    return 1e6 + 30 * entries + evaluations * of_step + (40 + 0.1 * units) * numbers


def keeps_pairs(problem: Problem, effort: Effort) -> bool:
    """Return whether networks' kernels of all pairs of samples are measured, not only their traces."""
    return bool(problem.seen) and 8.0 * _kernel_entries(problem) <= effort.kernel


def _kernel_entries(problem: Problem) -> float:
    """Return the number of kernel entries of one network at all pairs of times (:func:`_kernel_numbers`)."""
    return _kernel_numbers(problem, len(problem.times))


def _kernel_numbers(problem: Problem, times: int) -> float:
    """Return the number of kernel entries of one network at all pairs of ``times`` times.

    Counted are H of linear networks, and Phi and G of nonlinear ones, for all pairs of samples.  In residual
    networks, whose layers share their units, kernels of all pairs of layers are counted.
    """
    shared = problem.experiment is not None and problem.experiment.network.branch is not None
    kernels = 1 if isinstance(problem.linear, LinearForm) else 1 + problem.outputs**2
    layers = float((problem.depth or 1) ** (2 if shared else 1))
    return kernels * layers * (times * problem.sample_count) ** 2


def measured_kernels(
    problem: Problem, effort: Effort, end: int | None = None
) -> MeasuredKernels | KernelTimes:
    """Return which kernels of finite networks are measured: "full", "trace", or the times of kernels.

    "full" is kernels of all pairs of samples at all times, and "trace" only their traces over samples. One
    of them is returned for random data, for programs without a recognised output and error, and if the
    error signal jumps as a function of the output, because the compared time is then only known after
    training. Otherwise the positions of times are returned. Kernels of all pairs of samples are measured at
    the start and where kernels are compared, the last time or the position ``end`` of an earlier one; at
    all times if that takes at most FEW_ENTRIES numbers; and at no time if those at all times would exceed
    ``effort.kernel`` bytes. Traces are measured where kernels are compared and at a few times at which they
    are drawn.
    """
    count = len(problem.times)
    whole = keeps_pairs(problem, effort)
    if not problem.seen or not problem.has_roles or error_jumps(problem.program):
        return "full" if whole else "trace"
    last = count - 1 if end is None else end
    traces = tuple(sorted({*drawn_places(count).tolist(), last}))
    pairs = (0, last) if _kernel_entries(problem) > FEW_ENTRIES else tuple(range(count))
    return KernelTimes(pairs if whole else (), traces)


FEW_ENTRIES = 2e4
"""Kernels at all pairs of times are measured if they have at most this many numbers in one network."""

DRAWN = 15
"""Largest number of times at which networks are drawn and traces of kernels are measured."""


def drawn_places(count: int) -> NDArray[np.intp]:
    """Return at most DRAWN of the positions 0 to ``count`` - 1, denser at the beginning, both ends included.

    >>> drawn_places(61)
    array([ 0,  1,  3,  5,  8, 11, 15, 20, 25, 31, 37, 44, 52, 60])
    """
    if count <= DRAWN:
        return np.arange(count)
    return np.unique(((count - 1) * np.linspace(0, 1, DRAWN) ** 2).round().astype(int))
