"""Training and measurement of the finite networks of a program, in steps or in continuous time.

In continuous time a step is one of the classical fourth-order Runge-Kutta method, or of Euler's method if
slopes jump.  With noise, half of the exact decay and noise comes before and half after it (Strang splitting),
which makes averages accurate to second order in the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any, Self

import numpy as np
import xarray as xr
from sympy import Expr, Symbol

from derive.program import Parametrization, Program
from derive.program.parts import gaussian
from numerics.errors import Diverged, NotConverged, require_memory, require_whole
from numerics.experiment.parameter_domains import require_in_domains
from numerics.names import MemberKey
from numerics.paths import Block, Paths, gathered
from numerics.quotients import without_overflow
from numerics.stats import Spread
from numerics.threads import one_thread

from .correlations import (
    CorrelationVector,
    KeptPaths,
    Measured,
    ObservableAxis,
    Record,
    Wanted,
    read_kept,
    read_wanted,
)
from .formulas import Binder, note_extents
from .network import StepOrder, domains, unroll
from .rows import Array, NetworkState, broadcast_along
from .symbol_values import Tables, Values, given_sizes, given_vectors
from .tangent import NAME as TANGENT_KERNEL
from .tangent import TangentKernel
from .weights import (
    Factors,
    GaussianLaw,
    Training,
    WeightTraining,
    accumulate,
    by_network,
    chosen,
    laws,
    move,
    numerical,
    refresh,
    relax,
    start,
    trainings,
)

Rngs = Sequence[np.random.Generator]

StageNodes = tuple[tuple[float, float], ...]
"""Stages of a step: their times in units of the step, and their weights."""

RUNGE_KUTTA: StageNodes = ((0.0, 1 / 6), (0.5, 1 / 3), (0.5, 1 / 3), (1.0, 1 / 6))
EULER: StageNodes = ((0.0, 1.0),)
"""If slopes jump, units are held at the jump, on one side or the other after every step.  Only Euler steps
leave them on each side in the share of steps that keeps them there."""


def advance(
    network: StepOrder,
    moving: Sequence[Training],
    state: NetworkState,
    length: float,
    rngs: Sequence[np.random.Generator],
    noise_parts: int = 1,
    nodes: StageNodes = RUNGE_KUTTA,
) -> None:
    """Advance networks in continuous time by one integration step of the given ``length``, in place.

    Afterwards fields without an equation of motion, and numbers, are those of the last stage and must be
    computed again. Half of the noise comes before the step and half after it; each half is drawn in
    ``noise_parts`` parts. With two parts the noise is the same as that of two steps of half the length.
    ``nodes`` are the stages.
    """
    # Every moving weight of a flow has an equation of motion and is thus a WeightTraining: the list has all
    # of them, and the condition only tells their type to the type checker.
    driven = [x for x in moving if isinstance(x, WeightTraining)]
    noisy = [x for x in driven if x.noisy]
    _apply_noise(noisy, state, length / 2, noise_parts, rngs)
    paths = [_StageWeight(x, state, noisy, len(nodes)) for x in driven]
    fields, began = network.evolving(state), state.time
    slopes: list[list[Array]] = []
    for k, (node, _) in enumerate(nodes):
        if k:
            for x in paths:
                x.set_weight({k - 1: node * length})
            network.set_evolving(
                state, [f + node * length * s for f, s in zip(fields, slopes[-1], strict=True)]
            )
        state.time = began + node * length
        network.compute(state)
        for x in paths:
            x.add_slope(state)
        slopes.append([x.value(state) for x in network.slopes])  # time derivatives of evolving fields
    shares = {k: share * length for k, (_, share) in enumerate(nodes)}
    for x in paths:
        x.set_weight(shares, last=True)
    network.set_evolving(
        state, [f + sum(shares[k] * s[i] for k, s in enumerate(slopes)) for i, f in enumerate(fields)]
    )
    state.time = began + length / 2
    _apply_noise(noisy, state, length / 2, noise_parts, rngs)
    state.time = began + length


def _apply_noise(
    noisy: Sequence[WeightTraining], state: NetworkState, length: float, noise_parts: int, rngs: Rngs
) -> None:
    """Advance weights with noise for a time ``length`` by their noise and linear decay alone.

    The interval is divided into ``noise_parts`` parts. Coefficients that depend on the time are taken in the
    middle of each part, so that a Strang step keeps its second order.
    """
    began, part = state.time, length / noise_parts
    for k in range(noise_parts):
        state.time = began + (k + 0.5) * part
        relax(noisy, state, part, rngs)
    state.time = began


class _StageWeight:
    """One weight and its hidden states (components z_i) during the stages of a Runge-Kutta step.

    Copies are avoided where possible. With the updates U_k of the stages each component is ``z_i = sum_j a_ij
    z_j(0) + sum_k c_ik U_k``, and its slope is ``sum_j A_ij z_j + b_i U``. The coefficients a and c of all
    components are updated at each stage. The array of the weight is updated at each stage, too: it is scaled,
    and other components and a few outer products are added in place. Arrays of hidden states are set at the
    end of the step only. For a weight with noise, ``A`` acts between steps (:func:`relax`).
    """

    def __init__(
        self, training: WeightTraining, state: NetworkState, noisy: Sequence[WeightTraining], stages: int
    ) -> None:
        self.training, self.relaxes = training, training in noisy
        self.w, *self.hidden = training.components(state)
        self.n = training.motion.states
        self.terms = np.eye(self.n + stages)[..., None]
        """Unit vectors of initial components and updates; the last axis counts networks, or is 1."""
        self.start: Array = self.terms[: self.n]
        self.now = self.start
        self.slopes: list[Array] = []
        self.updates: list[Factors] = []
        coupled = any(i > 0 and j != i for i, j in training.motion.A)
        self.old = [x.copy() for x in (self.w, *self.hidden)] if coupled else []

    def add_slope(self, state: NetworkState) -> None:
        """Compute the time derivatives of the weight and its hidden states at this stage.

        They are stored as coefficients of the initial components and of the updates of all stages.
        """
        motion, u = self.training.motion, self.training.update.factors(state)
        update = self.terms[self.n + len(self.updates)]
        self.updates.append(Factors(u.left.copy(), u.right.copy()))
        slopes = motion.inputs(state)[:, None] * update
        if not self.relaxes:
            rates = motion.rates(state)
            slopes = slopes + sum(rates[:, j, None] * self.now[j] for j in range(self.n))
        self.slopes.append(slopes)

    def set_weight(self, lengths: Mapping[int, float], *, last: bool = False) -> None:
        """Set the weight to its value before the step plus a sum of time derivatives of the stages.

        The derivative of stage k has the factor ``lengths[k]``. At the end of the step (``last``) the hidden
        states are set in the same way.
        """
        before, self.now = self.now[0], self.start + sum(x * self.slopes[k] for k, x in lengths.items())
        ratio = self.now[0, 0] / before[0]
        change = self.now[0] - ratio * before
        self.add(self.w, ratio, change[self.n :])
        for j, x in enumerate(self.hidden, 1):
            if change[j].any():
                self.w += by_network(change[j], self.w) * x
        if last:
            for i, x in enumerate(self.hidden, 1):
                self.add(x, self.now[i, i], self.now[i, self.n :])
                for j, y in enumerate(self.old):
                    if j != i and self.now[i, j].any():
                        x += by_network(self.now[i, j], x) * y

    def add(self, array: Array, ratio: Array, shares: Array) -> None:
        """Compute ``ratio array + sum_k shares_k U_k`` in place, with the update U_k of stage k.

        ``ratio`` and ``shares_k`` are one number for each network, or one for all.
        """
        terms = [(c, u) for c, u in zip(shares, self.updates, strict=False) if c.any()]
        if terms or (ratio != 1).any():
            accumulate(array, ratio, 1.0, _summed_updates(terms) if terms else _zero_update(array))


def _summed_updates(terms: Sequence[tuple[Array, Factors]]) -> Factors:
    """Return ``sum_k c_k U_k`` for pairs (c_k, U_k) of coefficients and updates, as one update.

    An update is a product of two factors; those of all U_k are put side by side.
    """
    n = max(max(len(c), len(u.left), len(u.right)) for c, u in terms)
    left = [broadcast_along(c[:, None, None] * u.left, 0, n) for c, u in terms]
    return Factors(
        np.concatenate(left, axis=2), np.concatenate([broadcast_along(u.right, 0, n) for _, u in terms], 1)
    )


def _zero_update(w: Array) -> Factors:
    """Return an update that is zero, for weights of the shape of ``w``, as a product of two factors."""
    return Factors(np.zeros((1, w.shape[1], 1)), np.zeros((1, 1, w.shape[2] if w.ndim == 3 else 1)))


BATCH_ENTRIES = 2**19
"""Largest number of entries of weights of networks trained together; they fit the cache of a core."""

UNSTABLE = 1e-2
"""Integration error above which steps may be unstable, so that halving them need not reduce the error."""

MOST_STEPS = 2**14
"""Largest number of steps between two recorded times of a flow."""

BATCH_RECORDED = 2**24
"""Largest number of entries of recorded fields of networks that are trained together."""


class Networks(dict[str, Measured]):
    """Measurements of finite networks by name: means over networks with standard errors.

    If asked for, ``each`` holds the values of each network along the first axis, and ``paths`` the fields of
    their units, in the layout of :mod:`numerics.paths`; else they are None.
    """

    each: Mapping[str, Array] | None = None
    paths: xr.Dataset | None = None


@one_thread
def simulate_program(  # noqa: PLR0913 - public options, all but the program keyword-only
    program: Program,
    *,
    width: int,
    steps: int,
    seeds: int,
    values: Mapping[Any, Any],
    data: Mapping[str, Any] | None = None,
    wanted: Mapping[str, Any] | None = None,
    seed: int = 0,
    dt: float | None = None,
    times: Sequence[float] | None = None,
    initial: Mapping[str, Any] | None = None,
    each: bool = False,
    paths: Paths | None = None,
    equal: Symbol | None = None,
    loss: Expr | None = None,
    parametrization: Parametrization | None = None,
    tangent_kernel: bool = False,
) -> Networks:
    """Train finite networks of a program and return means of averages over units, with standard errors.

    Parameters
    ----------
    program : Program
        The program.
    width : int
        Width N.
    steps : int
        Number of steps, or of recorded times minus one in continuous time.
    seeds : int
        Number of networks.
    values : mapping
        A number for each symbol and a SymPy function for each undefined activation, by symbol or name.
    data : mapping, optional
        By name: constants (``y(mu)``: shape (P,); also a mapping or a function of the indices), vectors on
        given populations ((P, D) or (P, positions, D)) or their kernel instead, attributes (one number for
        each unit, or a function of the number of units), initial values of evolving fields.  The first entry
        of an array belongs to the lower bound of the range of its index.
    wanted : mapping, optional
        Correlations to measure, see :func:`.correlations.read_wanted`; by default every vector named in the
        program's notation.  Numbers of the program are always measured.
    seed : int
        Seed from which the seeds of all networks are derived. A network does not depend on the number of
        networks.
    dt : float, optional
        Longest Runge-Kutta step: needed for a program in continuous time, not allowed for other programs.
    times : sequence of float, optional
        Recorded times, steps + 1 of them from 0; by default multiples of ``dt``.
    initial : mapping, optional
        Weights chosen instead of drawn, as ``{"w": array, "W": {1: array, 2: array}}`` in the units in which
        they are applied (entries of variance ``variance/N``); weights that are drawn anew at each step have a
        leading axis of ``steps + 1`` entries.  A family may be one array with its members along the first
        axes.
    each : bool
        Keep the values of every network.
    paths : Paths, optional
        Fields of units to keep, at chosen steps (or positions in ``times``).
    equal : Symbol, optional
        An index, such as that of samples: the correlation of a vector that has it with itself is measured at
        equal values of all indices only, and so is the tangent kernel.
    loss : Expr, optional
        A loss as :meth:`derive.program.Network.train` takes it.  Weights then follow its numerical gradient
        (central differences through the forward pass, two for every weight) in place of the program's
        updates, as a check of these.
    parametrization : Parametrization, optional
        Raw weights and their rates for ``loss``; without ``loss`` it has no effect.
    tangent_kernel : bool
        Measure the tangent kernel too; its axes are ``t, s`` and the indices of two outputs.

    Returns
    -------
    Networks
        A :class:`Measured` for each name.

    Raises
    ------
    ValueError
        For missing values, for options that do not fit the program, for programs that cannot be simulated,
        and for a parameter of a training rule that depends on the time and leaves its interval, such as a
        rate that becomes negative.
    Diverged
        If a network diverges, with the step or the time.

    Notes
    -----
    A population has round(ratio N) units.  Matrices between a given population and another one have entries
    of variance ``variance ratio/D``.  A field's index written as a sum (``a + k``) is periodic, unless it
    counts layers or ordered positions.  Noise of a rule is drawn like the initial weight; its variance is
    ``diffusion`` times that of the initial weight (for a flow, in each unit of time).

    Examples
    --------
    >>> from derive.program import mlp
    >>> run = simulate_program(mlp(2), width=50, steps=3, seeds=4, values={"eta": 0.1, "gamma0": 1, "P": 2},
    ...                        data={"K_x": np.eye(2), "y": np.ones(2)})
    >>> [name for name, _ in run["H"].axes], run["H"].mean.shape, run["f"].mean.shape
    (['ell', 't', 's', 'mu', "mu'"], (2, 4, 4, 2, 2), (4, 2))
    >>> run["H"][1].mean[0, 0].shape
    (2, 2)
    """
    require_whole("seeds", seeds, 1, "must be at least 1")
    require_whole("seed", seed, 0, "must not be negative")
    trainer = Trainer.of(
        program,
        width=width,
        steps=steps,
        values=values,
        data=data,
        wanted=wanted,
        dt=dt,
        times=times,
        initial=initial,
        paths=paths,
        equal=equal,
        loss=loss,
        parametrization=parametrization,
        tangent_kernel=tangent_kernel,
    )
    require_in_domains(program, values, data or {}, np.array(trainer.times))
    if tangent_kernel and trainer.tangent is None:
        raise ValueError(
            f"tangent_kernel = True: updates of {program.name} are not found to be gradients of one output "
            "times its error, so that no tangent kernel is measured; leave tangent_kernel out"
        )
    spread = Spread()
    of_networks: dict[str, list[Array]] = {}
    blocks: list[dict[str, Block]] = []
    kept = trainer.kept
    for measurements, _ in trainer.trained(np.random.SeedSequence(seed).spawn(seeds)):
        spread.add_all(measurements)
        for name, x in measurements.items() if each else ():
            of_networks.setdefault(name, []).append(x)
        if kept is not None:
            blocks += kept.blocks()
    axes, mean, stderr = trainer.axes, spread.mean(), spread.stderr()
    networks = Networks({n: Measured(mean[n], stderr[n], axes[n]) for n in mean})
    if each:
        networks.each = {n: np.concatenate(x) for n, x in of_networks.items()}
    if kept is not None:
        at = [i if dt is None else trainer.times[i] for i in kept.times]
        networks.paths = gathered(blocks, at, kind="networks", width=str(width))
    return networks


@dataclass(frozen=True)
class Trainer:
    """Networks of one program at one width, prepared once and trained in groups.

    Attributes
    ----------
    network : StepOrder
        Tasks of one step.
    weights : list of GaussianLaw
        Distributions of the initial weights.
    moving : list of Training
        Training of each weight.
    initial : mapping
        Chosen initial weights, in place of drawn ones.
    wanted : Wanted
        Correlations and numbers to measure.
    kept : KeptPaths or None
        Paths of units to keep.
    times : tuple of float
        Recorded times.
    counts : tuple of int, or None
        Number of steps between recorded times in continuous time.
    noise_parts : int
        Number of parts in which the noise before a step of a flow, and that after it, is drawn; with two
        parts the noise is that of steps of half the length.
    tangent : TangentKernel or None
        Tangent kernel to measure.
    nodes : tuple
        Stages of an integration step: pairs of the time within the step and the weight of the derivative.

    Examples
    --------
    >>> from derive.program import mlp
    >>> trainer = Trainer.of(mlp(1), width=20, steps=2, values={"eta": 0.1, "gamma0": 1, "P": 1},
    ...                      data={"K_x": np.eye(1), "y": np.ones(1)})
    >>> trainer.train(np.random.SeedSequence(0))["f"].shape
    (3, 1)
    """

    network: StepOrder
    weights: list[GaussianLaw]
    moving: list[Training]
    initial: dict[MemberKey, Array]
    wanted: Wanted
    kept: KeptPaths | None
    times: tuple[float, ...]
    counts: tuple[int, ...] | None
    noise_parts: int = 1
    tangent: TangentKernel | None = None
    nodes: StageNodes = RUNGE_KUTTA

    @classmethod
    def of(  # noqa: PLR0913 - the options of simulate_program
        cls,
        program: Program,
        *,
        width: int,
        steps: int,
        values: Mapping[Any, Any],
        data: Mapping[str, Any] | None = None,
        wanted: Mapping[str, Any] | None = None,
        dt: float | None = None,
        times: Sequence[float] | None = None,
        initial: Mapping[str, Any] | None = None,
        paths: Paths | None = None,
        equal: Symbol | None = None,
        loss: Expr | None = None,
        parametrization: Parametrization | None = None,
        tangent_kernel: bool = False,
        tangent_times: tuple[int, ...] | None = None,
    ) -> Self:
        """Return the networks of a program, with the options of `simulate_program`.

        Parameters
        ----------
        program : Program
            The program.
        width : int
            Width N.
        steps : int
            Number of steps, or of recorded times minus one.
        values : mapping
            Numbers and functions for symbols.
        data : mapping, optional
            Constants, vectors, attributes and initial values.
        wanted : mapping, optional
            Correlations to measure.
        dt : float, optional
            Longest Runge-Kutta step: needed in continuous time, not allowed for steps.
        times : sequence of float, optional
            Recorded times.
        initial : mapping, optional
            Weights chosen instead of drawn.
        paths : Paths, optional
            Fields of units to keep.
        equal : Symbol, optional
            An index, such as that of samples: the correlation of a vector that has it with itself is
            measured at equal values of all indices only, and so is the tangent kernel.
        loss : Expr, optional
            Loss whose numerical gradient replaces the program's updates.
        parametrization : Parametrization, optional
            Raw weights and their rates for ``loss``; without ``loss`` it has no effect.
        tangent_kernel : bool
            Measure the tangent kernel, if the program has one.
        tangent_times : tuple of int, optional
            Positions of the recorded times at which the tangent kernel is measured; all by default.

        Returns
        -------
        Trainer
            The networks.

        Raises
        ------
        ValueError
            For missing values, for options that do not fit the program, and for programs that cannot be
            simulated.
        """
        _check(program, width, steps, dt, times)
        data = dict(data or {})
        program = program.map(without_overflow)
        binder = prepare(program, values, data, width, steps)
        weights = laws(binder)
        entries = sum(prod(x.shape) for x in weights)
        require_memory(8.0 * entries, ("width", width), "for the weights", "a smaller width")
        network = unroll(binder, data)
        reading = network.reading
        moving = trainings(binder, reading, weights)
        if loss is not None:
            moving = numerical(binder, network, moving, loss, parametrization or Parametrization())
        recorded = tuple(map(float, (dt or 1.0) * np.arange(steps + 1) if times is None else times))
        counts = None if dt is None else tuple(_count(x, dt) for x in np.diff(recorded))
        measured = read_wanted(binder, reading, wanted, equal)
        tangent = None
        if tangent_kernel:
            tangent = TangentKernel.of(binder, network, measured, equal is not None, tangent_times)
        if tangent is not None and TANGENT_KERNEL in measured.axes(recorded):
            raise ValueError(
                f"tangent_kernel = True: the program or wanted has another quantity named {TANGENT_KERNEL}"
            )
        return cls(
            network,
            weights,
            moving,
            chosen(weights, initial or {}, steps),
            measured,
            None if paths is None else read_kept(binder, reading, paths, steps),
            recorded,
            counts,
            tangent=tangent,
        )

    @property
    def axes(self) -> dict[str, tuple[ObservableAxis, ...]]:
        """For each measurement, by name, the name and values of each axis, without that of the networks."""
        axes = self.wanted.axes(self.times)
        return axes if self.tangent is None else axes | {TANGENT_KERNEL: self.tangent.axes(self.times)}

    @property
    def places(self) -> dict[CorrelationVector, tuple[int, ...]]:
        """For each measured vector and number the positions of the times at which it is recorded."""
        count = len(self.times)
        places = self.wanted.places(count)
        if self.tangent is None:
            return places
        needed = tuple(range(count)) if self.tangent.times is None else self.tangent.times
        for side in self.tangent.sides:
            places[side] = tuple(sorted({*places.get(side, ()), *needed}))
        return places

    def batches(self, seeds: Sequence[np.random.SeedSequence]) -> Iterator[list[np.random.SeedSequence]]:
        """Yield groups of seeds of networks that are trained together; small networks form large groups.

        Parameters
        ----------
        seeds : sequence of SeedSequence
            One seed a network.

        Yields
        ------
        list of SeedSequence
            Seeds of one group.
        """
        entries = sum(prod(x.shape) for x in self.weights) or 1
        widest = max(block[1] for block, _ in self.network.reading.layout.rows.values())
        recorded = sum(prod(x.shape) * widest * len(x.sites) * len(at) for x, at in self.places.items())
        most = min(BATCH_ENTRIES // entries, BATCH_RECORDED // max(1, recorded))
        size = max(1, min(most, len(seeds)))
        for k in range(0, len(seeds), size):
            yield list(seeds[k : k + size])

    def trained(self, seeds: Sequence[np.random.SeedSequence]) -> Iterator[tuple[dict[str, Array], int]]:
        """Yield the measurements of each group of networks, along the first axis, and their number.

        In continuous time, steps that suit one network can be too long for another with larger kernels: a
        group that diverges, and all following groups, take steps of half the length, up to MOST_STEPS steps.

        Parameters
        ----------
        seeds : sequence of SeedSequence
            One seed a network.

        Yields
        ------
        tuple of (dict, int)
            Measurements by name, and the number of networks of the group.
        """
        networks = self
        for batch in self.batches(seeds):
            while True:
                try:
                    measurements = networks.train_together(batch)
                    break
                except Diverged:
                    if networks.counts is None or 2 * max(networks.counts) > MOST_STEPS:
                        raise
                    networks = networks.halved()
            yield measurements, len(batch)

    def halved(self) -> Self:
        """Return the networks with integration steps of half the length, for a rule in continuous time only.

        Returns
        -------
        Trainer
            The same networks with twice the number of steps between recorded times.

        Raises
        ------
        ValueError
            For networks of a rule that counts steps.
        """
        if self.counts is None:
            raise ValueError(
                "the program's rule counts steps, which cannot be halved: use a rule in continuous time, "
                "such as GradientFlow"
            )
        return replace(self, counts=tuple(2 * x for x in self.counts))

    def train(self, seed: np.random.SeedSequence) -> dict[str, Array]:
        """Train one network and return its measurements.

        Parameters
        ----------
        seed : SeedSequence
            Seed of the network.

        Returns
        -------
        dict of str to array
            Measurements by name.
        """
        return {name: x[0] for name, x in self.train_together([seed]).items()}

    def begin(self, rngs: Rngs) -> tuple[NetworkState, Record]:
        """Return the state of new networks before step 0, with drawn weights, and an empty record.

        Parameters
        ----------
        rngs : sequence of Generator
            Random numbers, one generator a network.

        Returns
        -------
        tuple of (NetworkState, Record)
            The state, and the record of vectors at recorded times.
        """
        weights = start(self.weights, rngs, self.initial)
        state = self.network.begin(weights, len(rngs), self.counts is not None)
        for x in self.moving:
            x.begin(state)
        return state, Record(self.places, len(rngs), len(self.times))

    # no warnings of values that are infinite or NaN, because these are reported as a divergence
    @np.errstate(over="ignore", invalid="ignore", divide="ignore")
    def train_together(self, seeds: Sequence[np.random.SeedSequence]) -> dict[str, Array]:
        """Train several networks together and return their measurements.

        Measurements are taken at each step, or in continuous time at the recorded times.  Each network is the
        same as if it were trained alone.

        Parameters
        ----------
        seeds : sequence of SeedSequence
            One seed a network.

        Returns
        -------
        dict of str to array
            Measurements by name.
        """
        rngs = [np.random.default_rng(seed) for seed in seeds]
        (state, record), times = self.begin(rngs), self.times
        if self.kept is not None:
            self.kept.begin(len(rngs))
        for step, time in enumerate(times):
            state.step, state.time = step, time
            refresh(self.weights, state, rngs, self.initial)
            self.network.compute(state)
            record.append(state)
            if self.kept is not None:
                self.kept.record_state(state)
            if step + 1 == len(times):
                break
            if self.counts is None:
                move(self.moving, state, rngs)
                continue
            state.step = step + 1  # at step 0 `compute` would store the fields again as the initial ones
            for _ in range(self.counts[step]):
                length = (times[step + 1] - time) / self.counts[step]
                advance(self.network, self.moving, state, length, rngs, self.noise_parts, self.nodes)
        measurements = self.wanted.values(record)
        if self.tangent is None:
            return measurements
        return measurements | {TANGENT_KERNEL: self.tangent.value(record, measurements)}

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")
    def fitted(self, seed: np.random.SeedSequence, tolerance: float) -> Self:
        """Return the networks with the number of integration steps that one network needs.

        Parameters
        ----------
        seed : SeedSequence
            Seed of the network on which errors are estimated.
        tolerance : float
            Bound on the relative integration error.

        Returns
        -------
        Trainer
            The networks with half as many steps in each interval between recorded times as are needed there:
            with all steps the estimated error of the interval is at most half of the tolerance, or no longer
            falls because of rounding. :func:`.converged_steps` halves the steps again.

        Raises
        ------
        NotConverged
            If MOST_STEPS steps between two recorded times are not enough.
        Diverged
            If the network diverges at the start, or with MOST_STEPS steps between two recorded times.
        """
        rngs = [np.random.default_rng(seed)]
        state, _ = self.begin(rngs)
        self.network.compute(state)
        counts, count = [], 1
        for step, (time, end) in enumerate(pairwise(self.times)):
            state.step = step + 1  # at step 0 `compute` would store the fields again as the initial ones
            before, coarse, error = state.copied(), None, np.inf
            while True:
                fine = before.copied()
                fine.time = time
                try:
                    for _ in range(count):
                        advance(self.network, self.moving, fine, (end - time) / count, rngs)
                    self.network.compute(fine)
                except Diverged:
                    coarse, error = None, np.inf
                    if count >= MOST_STEPS:
                        raise
                else:
                    last, error = error, np.inf if coarse is None else coarse.distance(fine) / 15
                    # Stop if the error is small enough. Stop also if an error below UNSTABLE has not fallen
                    # by half with twice as many steps, because rounding then dominates it.
                    if error <= tolerance / 2 or last / 2 < error < UNSTABLE:
                        break
                    if count >= MOST_STEPS:
                        where = f"{count} steps between t = {time:g} and {end:g}"
                        raise NotConverged(
                            f"the flow of a finite network has an integration error of {error:.2g} with "
                            f"{where}, more than half of tolerance = {tolerance:.2g}; use closer output "
                            "times there, or a larger tolerance"
                        )
                    coarse = fine
                count *= 2
            state = fine
            counts.append(count // 2 or 1)
            count = max(1, count // 4 if error < tolerance / 100 else count // 2)
        return replace(self, counts=tuple(counts))


def prepare(
    program: Program, values: Mapping[Any, Any], data: Mapping[str, Any], width: int, steps: int
) -> Binder:
    """Return the binder of a program, which replaces its symbols by numbers and arrays at width ``width``.

    ``values`` are numbers and functions for symbols; ``data`` are constants, input vectors or their kernels,
    and attributes, by name; ``steps`` is the last step. Raise ValueError for a symbolic depth, and for values
    or shapes that are missing or do not fit.
    """
    known = Values.of(values)
    _check_depth(program, known)
    vectors = given_vectors(program, data)
    attributes = {x.name for x in program.attributes}
    tables = Tables({**{k: v for k, v in data.items() if k not in attributes}, **vectors})
    binder = Binder(program, known, tables)
    binder.sizes.width, binder.sizes.given = width, given_sizes(program, vectors)
    binder.domains = domains(binder)
    note_extents(binder, steps)
    for x in program.attributes:
        size = binder.sizes.size(x.population, {})
        if x.name not in data:
            raise ValueError(f"attribute {x.name} has no values: give data[{x.name!r}], {size} numbers")
        entries = np.asarray(data[x.name](size) if callable(data[x.name]) else data[x.name], dtype=float)
        if entries.shape != (size,):
            raise ValueError(f"data[{x.name!r}] has shape {entries.shape}: must be ({size},)")
        binder.attributes[x.name] = entries
    return binder


def _count(length: float, longest: float) -> int:
    """Return the smallest power of two of steps that divide an interval into steps of at most ``longest``.

    ``length`` is that of the interval. Halving ``longest`` halves each step, unless one step still suffices.
    """
    count = 1
    while length / count > longest * (1 + 1e-12):
        count *= 2
    return count


def _check(program: Program, width: int, steps: int, dt: float | None, times: Sequence[float] | None) -> None:
    """Raise ValueError for a width, steps or times that do not fit the program.

    It is also raised for a ``dt`` that does not fit, and for a flow with matrices drawn anew at each step.
    """
    for name, value, least in (("width", width, 1), ("steps", steps, 0)):
        require_whole(name, value, least, f"must be at least {least}")
    if program.rule.discrete:
        if dt is not None or times is not None:
            raise ValueError(f"dt = {dt}, times = {times}: the program's rule counts steps, so give neither")
        return
    if dt is None or not dt > 0:
        raise ValueError(
            f"dt = {dt}: the program's rule is a flow in continuous time, which needs a longest step dt > 0"
        )
    if times is not None and (
        len(times) != steps + 1 or times[0] != 0 or not np.all(np.diff(times) > 0) or times[-1] == np.inf
    ):
        raise ValueError(f"times: must be {steps + 1} finite increasing numbers, the first 0")
    if any(m.fresh for m in map(gaussian, program.matrices)):
        raise ValueError(
            f"dt: the rule of {program.name} is a flow, but some matrices of the program are drawn anew at "
            "each step, which needs a rule in steps"
        )


def _check_depth(program: Program, values: Values) -> None:
    """Raise ValueError if ranges or left sides of definitions contain a depth without a number."""
    missing = {x for x in getattr(program.depth, "free_symbols", set()) if x.name not in values.numbers}
    bounds = [b for d in program.definitions for r in d.ranges for b in (r.lower, r.upper)]
    if any(
        missing & getattr(e, "free_symbols", set()) for e in (*bounds, *(d.lhs for d in program.definitions))
    ):
        raise ValueError(f"depth = {program.depth} is a symbol: give program.at_depth(n) with an integer n")
