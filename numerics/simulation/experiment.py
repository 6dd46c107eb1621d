"""Simulations of finite networks for any problem, with the variables of results.

The width is that of the widest hidden layer, or the N of a program.  On isotropic data the number of features
follows from ``width_ratio``, and samples or batches from their ratios; on power-law data modes and batch are
those of the file.  A flow is integrated by Runge-Kutta steps, which are halved on the first network until the
estimated error of the result is within the tolerance.

If the slope of the activation jumps (relu), a network's G jumps in time whenever a unit crosses the kink, and
some units are held at the kink, where every step leaves them on one side or the other.  Errors and features
then converge to first order in the step, and G converges in the mean over networks only.  Euler steps are
used: after Runge-Kutta steps the held units are on the two sides in wrong proportions, and G is up to 40 per
cent too small.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from sympy import Eq, Lambda, Piecewise, Symbol

from derive import Theory
from derive.program import Program, ell, gamma0, mu
from derive.program.networks.random_data import M
from derive.program.networks.random_data import sigma as noise
from numerics.errors import (
    Diverged,
    Interrupted,
    NotConverged,
    SpecError,
    require_choice,
    require_memory,
    require_time,
    require_whole,
)
from numerics.experiment import Experiment
from numerics.experiment.numbers import layer_ratios, spectrum_of
from numerics.experiment.problem import Problem
from numerics.experiment.theory import Variant, centred, error_jumps, slope_jumps
from numerics.names import C_LEARNT, ERROR, FEATURE_KERNEL, GRADIENT_KERNEL, LINEAR_KERNEL, OUTPUT
from numerics.results import BY_SAMPLE, TRACE, VARIABLES, base_name, dataset, dimensions
from numerics.results.before_divergence import DIVERGED, before_divergence
from numerics.results.losses import loss_in_words, loss_of_scalars
from numerics.results.predictions import equal_times, one_sample, one_sample_kernel, split
from numerics.results.program_names import (
    authored_variables,
    coordinates,
    described,
    names_in_words,
    numbers_by_role,
    require_variables,
)
from numerics.stats import Spread
from numerics.threads import one_thread

from .correlations import ChosenPairs, ObservableAxis
from .run import EULER, MOST_STEPS, UNSTABLE, Trainer
from .tangent import NAME as TANGENT_KERNEL

Array = NDArray[np.float64]
MeasuredKernels = Literal["full", "trace", "none"]
ObservableAxes = Mapping[str, tuple[ObservableAxis, ...]]

KERNEL_TIME, TRACE_TIME = "kernel_time", "trace_time"
"""Time dimensions of kernels of all pairs of samples, and of sums over equal samples, measured at some of the
times."""

KERNELS = (LINEAR_KERNEL, FEATURE_KERNEL, GRADIENT_KERNEL)
"""Names of the kernels of layers in a program."""

HALVINGS = 14
"""Largest number of halvings of the step of a flow."""

NOISE_TOLERANCE = 3e-3
"""Smallest tolerance of a flow with noise; it is far below the variation between networks."""

JUMP_TOLERANCE = 1e-3
"""Smallest tolerance of a flow in which the slope of the activation, or the error, jumps."""

WITHOUT_JUMPS = (ERROR, OUTPUT, LINEAR_KERNEL, FEATURE_KERNEL)
"""Variables that do not jump in time if the slope of the activation jumps.

The first one, the error signal, jumps if it is a discontinuous function of the output."""

NAMES = {LINEAR_KERNEL: FEATURE_KERNEL, ERROR: "error"}
"""Names of variables in results, by their names in the program, where these differ."""


@dataclass(frozen=True)
class KernelTimes:
    """Selection of times at which kernels of fixed samples are measured.

    Attributes
    ----------
    pairs : tuple of int
        Positions, among all times of the problem, of those at which kernels of all pairs of samples are
        measured.
    traces : tuple of int
        Positions of the times of their traces over equal samples, of the gradient kernel of linear networks,
        and of the trace of the tangent kernel.
    """

    pairs: tuple[int, ...] = ()
    traces: tuple[int, ...] = ()

    @property
    def dimensions(self) -> dict[str, tuple[int, ...]]:
        """For each of the two time dimensions of results, ``kernel_time`` and ``trace_time``, its times.

        They are positions among all times of the problem.
        """
        return {KERNEL_TIME: self.pairs, TRACE_TIME: self.traces}

    def checked(self, times: int) -> KernelTimes:
        """Return the selection with tuples of integers.

        Parameters
        ----------
        times : int
            Number of times of the problem.

        Returns
        -------
        KernelTimes
            The same selection.

        Raises
        ------
        SpecError
            For a position that is not an integer in 0..``times`` - 1.
        """
        accepted = f"positions of times, integers from 0 to {times - 1}"
        selected = {name: np.atleast_1d(getattr(self, name)) for name in ("pairs", "traces")}
        for name, places in selected.items():
            whole = places.size == 0 or (places.ndim == 1 and np.issubdtype(places.dtype, np.integer))
            if not whole or np.any((places < 0) | (places >= times)):
                reason = "is not a list of positions of existing times"
                raise SpecError(f"kernels.{name}", places.tolist(), reason, accepted)
        return KernelTimes(**{name: tuple(map(int, places)) for name, places in selected.items()})

    def before(self, count: int) -> KernelTimes:
        """Return the selection among the first times only.

        Parameters
        ----------
        count : int
            Number of times that are kept.

        Returns
        -------
        KernelTimes
            The positions below ``count``.
        """
        first = ([k for k in places if k < count] for places in (self.pairs, self.traces))
        return KernelTimes(*map(tuple, first))

    def dimension(self, name: str, nonlinear: bool) -> str | None:
        """Return the name of the time dimension of a variable of results, or of its standard error.

        Parameters
        ----------
        name : str
            Name of the variable.
        nonlinear : bool
            Whether the network is nonlinear.

        Returns
        -------
        str or None
            ``kernel_time`` or ``trace_time``; None for a variable at all times.
        """
        name = base_name(name)
        if name.endswith(TRACE) or (name == GRADIENT_KERNEL and not nonlinear):
            return TRACE_TIME
        return KERNEL_TIME if name in (FEATURE_KERNEL, GRADIENT_KERNEL) else None


@one_thread
def simulate(  # noqa: PLR0913 - public options, all but the source keyword-only
    source: Problem | Experiment | Program | Theory | str | Path,
    *,
    width: int,
    seeds: int,
    rng: int | np.random.Generator | None = None,
    kernels: MeasuredKernels | KernelTimes = "full",
    tolerance: float = 1e-6,
    variant: Variant | None = None,
    progress: Callable[[int, int], None] | None = None,
    each: Callable[[Mapping[str, Array]], None] | None = None,
    throw: bool = True,
    **given: Any,
) -> xr.Dataset:
    """Train finite networks and return means over them with standard errors.

    Parameters
    ----------
    source : Problem, Experiment, Program, Theory, str or Path
        An experiment, its file, any problem, or a program (or its theory) with ``numbers``, ``arrays`` and
        ``times``.
    width : int
        Number of neurons of the widest hidden layer; of a program, the width N.
    seeds : int
        Number of networks, at least two.
    rng : int, Generator or None
        Seed, or a generator that draws one; None takes one from the system. The result keeps it as ``seed``.
    kernels : {"full", "trace", "none"} or KernelTimes
        Kernels of fixed samples to measure.  "full": those of all pairs of samples and times, and the tangent
        kernel; "trace": their sums over equal samples; "none": only the gradient kernel of a linear network,
        which has no samples; KernelTimes: kernels at some of the times, along the dimensions ``kernel_time``
        and ``trace_time``.
    tolerance : float
        Bound on the integration error of a flow, relative to the size of each variable.  With noise it is at
        least 3e-3.  If the slope of the activation or the error jumps, it is at least 1e-3, and variables
        that jump in time are not checked.  The attribute ``integration_error`` is the estimated error.
    variant : callable, optional
        Function that changes the program before it is trained.
    progress : callable, optional
        Called with (networks done, seeds).
    each : callable(mapping of str to array), optional
        Called once for each network, with its variables.
    throw : bool
        If false, networks of which one diverges give the output times before, with the status "diverged" and
        the reason in the attribute ``diverged``.
    **given
        ``numbers``, ``arrays`` and ``times`` of a program, as :meth:`.Problem.of` takes them.

    Returns
    -------
    xarray.Dataset
        Means of the variables of results over networks, and their standard errors (``*_stderr``).
        Correlations that results cannot hold are left out; :func:`.simulate_program` returns them.

    Raises
    ------
    SpecError
        For fewer than two seeds, an invalid option, isotropic data without ``network.width_ratio``, a
        ``gamma0`` so small that rounding hides the change of centred networks, and networks that do not fit
        in memory or take longer than ``solver.hours`` by an estimate.
    Diverged
        If a network diverges, with the step or the time.
    NotConverged
        If no step of a flow is short enough.
    Interrupted
        After Ctrl-C, if two or more networks are trained; its ``result`` is their means, with the status
        "partial".

    Notes
    -----
    Means differ from the limit of infinite width by O(1/N); :func:`numerics.stats.extrapolate` removes this.

    Examples
    --------
    >>> spec = {"network": {"depth": 2}, "training": {"learning_rate": 0.1, "steps": 3}}
    >>> found = simulate(Experiment.from_dict(spec, inputs=np.eye(2), targets=[1.0, -1.0]), width=50, seeds=4)
    >>> found.Phi.shape, bool((found.train_loss_stderr > 0).all())
    ((2, 4, 4, 2, 2), True)
    >>> from derive.program import mlp
    >>> given = {"numbers": {"eta": 0.1, "gamma0": 1.0}, "arrays": {"K_x": np.eye(2), "y": np.ones(2)}}
    >>> simulate(mlp(1, "tanh"), width=20, seeds=2, times=range(3), **given).error.shape
    (3, 2)
    """
    require_whole("seeds", seeds, 2, "one network gives no standard error")
    require_whole("width", width, 1, "must be positive")
    if not isinstance(kernels, KernelTimes):
        require_choice("kernels", kernels, get_args(MeasuredKernels))
    problem = Problem.of(source, **given)
    problem = problem if variant is None else problem.varied(variant)
    if isinstance(kernels, KernelTimes):
        kernels = kernels.checked(len(problem.times))
    entropy = entropy_of(rng)
    how = _Ensemble(width, seeds, entropy, kernels, tolerance, progress, each)
    try:
        return how.simulated(problem)
    except Diverged as reason:
        if throw:
            raise
        partial = before_divergence(problem, how.simulated, reason)
        return partial.assign_attrs(status=DIVERGED, diverged=str(reason))


@dataclass(frozen=True)
class _Ensemble:
    """Options of a simulation of finite networks.

    Attributes
    ----------
    width, seeds
        Width and number of networks.
    entropy
        Seed of the random numbers.
    kernels
        Kernels that are measured.
    tolerance
        Bound on the relative integration error of a flow.
    progress, each
        Functions called for each network: ``progress`` with the numbers of networks done and of all, ``each``
        with the variables of the network.
    """

    width: int
    seeds: int
    entropy: int
    kernels: MeasuredKernels | KernelTimes
    tolerance: float
    progress: Callable[[int, int], None] | None
    each: Callable[[Mapping[str, Array]], None] | None = None

    def simulated(self, problem: Problem) -> xr.Dataset:
        """Train the networks of a problem; return means and standard errors of the variables of results.

        Raises SpecError for a symbolic depth and for networks that need too much memory or time, and
        Interrupted after Ctrl-C if two or more networks are trained.
        """
        width, seeds, entropy, kernels = self.width, self.seeds, self.entropy, self.kernels
        # The times of the problem may end before a divergence. Times at which kernels were asked for are left
        # out if they come after the last of these times.
        if isinstance(kernels, KernelTimes):
            kernels = kernels.before(len(problem.times))
        if problem.program.depth.is_Symbol:
            raise problem.open_depth()
        if not problem.has_roles:
            require_variables(problem)
        size = width if problem.experiment is None else reference_size(problem.experiment, width)
        problem = problem.at_width(size)
        started = time.perf_counter()
        _require_resources(problem, size, width, seeds, kernels)
        _require_digits(problem, self.tolerance)
        streams = [
            int(x.generate_state(1, np.uint64)[0]) for x in np.random.SeedSequence(entropy).spawn(seeds)
        ]
        children = [np.random.SeedSequence(x).spawn(1)[0] for x in streams]
        networks, error = _networks(problem, size, width, kernels, self.tolerance, children[0])
        readout = Readout(problem, networks.axes, kernels)
        spread, done = Spread(), 0

        def averages(status: str = "ok") -> xr.Dataset:
            """Return means and standard errors over the networks trained so far as a dataset.

            ``status`` is its attribute of this name.
            """
            means, errors = spread.mean(), spread.stderr()
            random = problem.experiment is not None and problem.experiment.spec.kind == "isotropic"
            return _at_kernel_times(
                means | {f"{name}_stderr": x for name, x in errors.items()},
                kernels if isinstance(kernels, KernelTimes) else None,
                times=problem.times,
                spec=problem.text,
                data_sha256=problem.data_sha256,
                status=status,
                nonlinear=readout.nonlinear,
                positions=problem.positions,
                held=problem.held,
                time_name=problem.time_name,
                loss=loss_in_words(problem, means),
                authored=described(problem),
                coordinates=coordinates(problem),
                method="finite networks",
                names=names_in_words(problem),
                width=width,
                features=size if random else None,
                seeds=done,
                seed=entropy,
                integration_error=error,
                note=initial_outputs(means, errors, done),
                wall_time_s=time.perf_counter() - started,
            )

        try:
            for runs, count in networks.trained(children):
                for k in range(count):
                    sample = dict(readout.variables({name: x[k] for name, x in runs.items()}))
                    spread.add(sample)
                    if self.each is not None:
                        self.each(sample)
                    done += 1
                    if self.progress is not None:
                        self.progress(done, seeds)
        except KeyboardInterrupt:
            # There are no averages if fewer than two networks are done, or if some variables were already
            # added of a network that is not yet counted in `done`.
            if done < 2 or set(spread.counts.values()) != {done}:
                raise
            raise Interrupted(averages("partial")) from None
        return averages()


def _at_kernel_times(
    values: Mapping[str, Array],
    chosen: KernelTimes | None,
    *,
    times: Array,
    nonlinear: bool,
    **attributes: Any,
) -> xr.Dataset:
    """Return a dataset of the variables ``values``; kernels may have time dimensions of their own.

    ``times`` are all times of the problem. ``chosen`` are the times of kernels, None if all variables have
    all times. ``nonlinear`` says whether the network is nonlinear. ``attributes`` describe the run.
    """
    where = {name: None if chosen is None else chosen.dimension(name, nonlinear) for name in values}
    whole = {name: x for name, x in values.items() if where[name] is None}
    merged = dataset(whole, times=times, nonlinear=nonlinear, **attributes)
    for dim, places in ({} if chosen is None else chosen.dimensions).items():
        part = {name: x for name, x in values.items() if where[name] == dim}
        if part:
            kernels = dataset(
                part, times=times[[*places]], nonlinear=nonlinear, **attributes | {"held": None}
            )
            if len(places) < len(times):
                kernels = kernels.rename({"time": dim, "time_": f"{dim}_"})
            merged = merged.assign(kernels.data_vars)
    return merged


RANDOM_START = 0.2
"""Share of the initial errors above which a note on random initial outputs is added."""


def initial_outputs(
    means: Mapping[str, np.ndarray], errors: Mapping[str, np.ndarray], networks: int
) -> str | None:
    """Return a sentence that warns if random initial outputs are not small beside the errors; else None.

    ``means`` and ``errors`` are variables of results and their standard errors. The theory of infinite width
    has no random outputs at the start: their standard deviation over networks is the standard error times the
    square root of the number of networks. This deviation is not small above a share RANDOM_START (0.2) of the
    mean errors at the start; both are root mean squares over samples.

    >>> means = {"error": np.ones((1, 2))}
    >>> initial_outputs(means, {"error": np.full((1, 2), 0.5)}, 4)[:76]
    'errors at the start have a standard deviation of 1 over networks, beside a m'
    >>> initial_outputs(means, {"error": np.full((1, 2), 0.01)}, 4)
    """
    if "error" not in means or not len(means["error"]):
        return None
    deviation = float(np.sqrt(np.mean(np.square(errors["error"][0])) * networks))
    size = float(np.sqrt(np.mean(np.square(means["error"][0]))))
    if not deviation > RANDOM_START * size:
        return None
    return (
        f"errors at the start have a standard deviation of {deviation:.2g} over networks, beside a mean of "
        f"{size:.2g}, because outputs at the start are random at finite width: a larger width, "
        "a larger gamma0 or training.center = true would do"
    )


PRODUCTS, CALL = 4e9, 2e-4
"""Measured products per second of one core, and seconds for a layer in a step of a hundred small networks."""


def _require_resources(
    problem: Problem, size: int, width: int, seeds: int, kernels: MeasuredKernels | KernelTimes
) -> None:
    """Raise SpecError if a simulation does not fit in memory or takes longer than ``solver.hours``.

    The estimate is as follows. ``size`` is the number N that ratios of populations refer to, ``width`` that
    of the widest hidden layer. Each layer counts as ``width * max(width, size)`` weights. A step multiplies
    them by the samples forwards and backwards and adds the updates. A flow takes at least four stages between
    two times.
    """
    depth, samples, steps = problem.depth or 1, max(problem.sample_count, 1), len(problem.times)
    weights = float(depth) * width * max(width, size)
    require_memory(8 * weights, ("width", width), "for the weights", "a smaller width")
    kept = 2.0 * depth * width * steps * samples
    if isinstance(kernels, KernelTimes):
        entries = max(len(kernels.pairs) * samples, len(kernels.traces))
    else:
        entries = {"full": steps * samples, "trace": steps, "none": 0}[kernels] if problem.seen else steps
    said = problem.key_and_value("training.points" if problem.flow else "training.steps")
    require_memory(8 * (kept + 6.0 * depth * entries**2), said, "for the kernels", "fewer times or samples")
    stages = 4 if problem.flow else 1
    seconds = seeds * stages * steps * (6 * weights * samples / PRODUCTS + CALL * depth / 100)
    require_time(seconds, problem.solver.hours, f"training {seeds} networks", "fewer seeds, a smaller width")


def _require_digits(problem: Problem, tolerance: float) -> None:
    """Raise SpecError if rounding errors are more than a share ``tolerance`` of the change of outputs.

    Only experiments in which initial outputs are subtracted are checked. Outputs are ``1/gamma0`` times as
    large as their change in training, so that rounding hides a share ``eps/gamma0`` of the change.
    """
    experiment = problem.experiment
    if experiment is None or not experiment.spec.centered:
        return
    given, strength, eps = experiment.network.gamma0, problem.numbers[gamma0], float(np.finfo(float).eps)
    if eps > tolerance * strength:
        hidden = f"{min(eps / strength, 1.0):.2g}"
        reason = f"with training.center, rounding hides a share of {hidden} of what networks learn"
        accepted = f"{eps / tolerance * given / strength:.1e} or more, which is also in the lazy limit"
        raise SpecError("network.gamma0", given, reason, accepted)


def entropy_of(rng: int | np.random.Generator | None) -> int:
    """Return the seed ``rng`` itself, one that a Generator draws, or for None one from the system.

    Raises ``SpecError`` (a ``ValueError``) for a seed that is not an integer >= 0.
    """
    if rng is None:
        return secrets.randbits(62)
    if isinstance(rng, np.random.Generator):
        return int(rng.integers(2**62))
    require_whole("rng", rng, 0, "must not be negative")
    return int(rng)


# -- networks ------------------------------------------------------------------------------------------------


def _networks(
    problem: Problem,
    size: int,
    width: int,
    kernels: MeasuredKernels | KernelTimes,
    tolerance: float,
    seed: np.random.SeedSequence,
) -> tuple[Trainer, float | None]:
    """Return the networks of a problem, prepared for training, and their estimated integration error.

    ``size`` is the number N that the ratios of populations refer to, ``width`` the number of neurons of the
    widest hidden layer, and ``kernels`` are those to measure. The error is None for a rule in steps. For a
    flow, integration steps are shortened until the error is below ``tolerance`` (with noise or jumps, a
    larger bound), on the network of the seed ``seed``.
    """
    program, fixed = problem.program, problem.seen > 0
    values: dict[str, Any] = {str(k): v for k, v in problem.values.items()}
    values |= {k: _by_layer(x) for k, x in problem.layered.items()}
    wanted: dict[str, Any] = {name: vector for vector, name in program.notation.items()}
    if not problem.has_roles:
        authored = authored_variables(problem) if kernels == "full" else {}
        wanted = {x.name: x.pair for x in authored.values() if x.pair is not None}
    elif fixed and program.roles.field is None:  # kernels are averages of this field: no field, no kernels
        wanted = {name: e for name, e in wanted.items() if name not in KERNELS}
    elif fixed and kernels == "none":
        wanted = {name: e for name, e in wanted.items() if name not in KERNELS or not e.has(mu)}
    elif isinstance(kernels, KernelTimes):
        wanted = _chosen(wanted, kernels)
    traces = kernels.traces if isinstance(kernels, KernelTimes) else None
    vectors = {v.kernel for v in program.given if v.name in problem.arrays}
    data: dict[str, Any] = {name: x for name, x in problem.arrays.items() if name not in vectors}
    data |= {x.name: repeated(x.name, data[x.name]) for x in program.attributes if x.name in data}
    if problem.experiment is not None:
        modes = spectrum_of(problem.experiment, every=True)
        if modes is not None:
            values["N"] = width
            data |= modes.attributes
        if fixed and problem.experiment.spec.centered:
            program = centred(program)
    setup: dict[str, Any] = {
        "width": size,
        "steps": len(problem.times) - 1,
        "values": values,
        "data": data,
        "wanted": wanted,
        "equal": mu if fixed and kernels not in ("full", "none") and problem.has_roles else None,
        "tangent_kernel": fixed and kernels != "none" and traces != () and bool(numbers_by_role(problem)),
        "tangent_times": traces,
    }
    if not problem.flow:
        return Trainer.of(program, **setup), None
    noisy = program.noisy
    smooth = WITHOUT_JUMPS[1:] if error_jumps(program) else WITHOUT_JUMPS if slope_jumps(program) else ()
    tolerance = max(tolerance, NOISE_TOLERANCE if noisy else 0.0, JUMP_TOLERANCE if smooth else 0.0)
    times = problem.times.tolist()
    plain = Trainer.of(program, **setup, times=times, dt=float(np.max(np.diff(times))))
    plain = replace(plain, nodes=EULER) if smooth else plain
    return converged_steps(plain, seed, tolerance, noisy, smooth)


def _chosen(wanted: Mapping[str, Any], kernels: KernelTimes) -> dict[str, Any]:
    """Return the correlations to measure, with kernels at some of the times of the problem only.

    ``wanted`` maps names to vectors; ``kernels`` holds the times for kernels of all pairs of samples, and
    those for traces over equal samples, which are added as measurements. A kernel without times is left out.
    """
    measurements: dict[str, Any] = {}
    for name, e in wanted.items():
        if name not in KERNELS:
            measurements[name] = e
            continue
        if kernels.traces:
            trace = name if not e.has(mu) else f"{NAMES.get(name, name)}{TRACE}"
            measurements[trace] = ChosenPairs(e, kernels.traces, mu if e.has(mu) else None)
        if kernels.pairs and e.has(mu):
            measurements[name] = ChosenPairs(e, kernels.pairs)
    return measurements


def repeated(name: str, numbers: Array) -> Callable[[int], Array]:
    """Return the function that gives the attribute ``name`` of ``n`` units for a number ``n``.

    An attribute is a given number for each unit. The given ``numbers`` are repeated in turn, each equally
    often; the function raises SpecError if n is not a multiple of their count.

    >>> repeated("a", np.array([1.0, 2.0]))(4)
    array([1., 2., 1., 2.])
    """

    def of_units(units: int) -> Array:
        """Return the attribute of each of ``units`` units: the given numbers, repeated in turn.

        Raise SpecError if ``units`` is not a multiple of their count.
        """
        if units % len(numbers):
            reason = f"gives {units} units, and arrays.{name} has {len(numbers)} numbers"
            raise SpecError("width", None, reason, f"a width that gives a multiple of {len(numbers)} units")
        return np.tile(numbers, units // len(numbers))

    return of_units


def converged_steps(
    networks: Trainer, seed: np.random.SeedSequence, tolerance: float, noisy: bool, smooth: Sequence[str] = ()
) -> tuple[Trainer, float]:
    """Return networks of a flow with short enough integration steps, and their estimated error.

    The error is the change on halving all steps, relative to the size of each variable, divided by ``2^order
    - 1``: the order is 4, with noise (``noisy``) 2, across kinks 1. ``smooth`` are, with kinks, the names of
    variables that do not jump in time, and only these are compared; it is empty without kinks. Without noise
    and kinks, the number of steps in each interval between recorded times is first estimated on the network
    of ``seed``. Then all steps are halved together. Raises :class:`~numerics.errors.NotConverged` after
    HALVINGS halvings, above MOST_STEPS steps in an interval, and if rounding keeps the error above the
    tolerance; and :class:`~numerics.errors.Diverged` if the network diverges at the start, or also with the
    shortest steps.
    """
    order, error = 1 if smooth else 2 if noisy else 4, np.inf
    networks = networks if noisy or smooth else networks.fitted(seed, tolerance)
    fine: dict[str, Array] | None = None
    divergence: Diverged | None = None
    for _ in range(HALVINGS):
        halved, last = networks.halved(), error
        if max(halved.counts or (0,)) > MOST_STEPS:
            break
        try:
            coarse = replace(networks, noise_parts=2).train(seed) if noisy or fine is None else fine
            fine = halved.train(seed)
        except Diverged as reason:
            if reason.start:
                raise
            networks, fine, divergence = halved, None, reason
            continue
        divergence = None
        compared = [name for name in fine if not smooth or name in smooth] or [*fine]
        error = max(_change(coarse[name], fine[name]) for name in compared) / (2**order - 1)
        networks = halved
        if error <= tolerance:
            return networks, error
        # Without noise and kinks, stop without a result if an error below UNSTABLE has not fallen by half
        # with steps of half the length, because rounding then dominates the error.
        if not noisy and not smooth and last / 2 < error < UNSTABLE:
            break
    if divergence is not None:
        raise divergence
    would = "a larger tolerance" if error < 1 else "closer output times, or an earlier last time"
    raise NotConverged(
        f"the flow of a finite network has an integration error of {error:.2g}, more than the tolerance "
        f"{tolerance:.2g}; use {would}"
    )


def _change(old: Array, new: Array) -> float:
    """Return ``max |new - old| / max |new|`` of two arrays; entries that are nan are left out."""
    return float(np.nanmax(np.abs(new - old)) / max(float(np.nanmax(np.abs(new))), 1e-300))


def reference_size(experiment: Experiment, width: int) -> int:
    """Return the size N to which ratios of populations refer, given the widest hidden layer.

    ``width`` is the number of neurons of this layer. N is at least one; on power-law data it is the number of
    modes.

    >>> spec = {"network": {"depth": 2, "width_ratio": [1.0, 4.0]}, "data": {"kind": "isotropic"}}
    >>> reference_size(Experiment.from_dict(spec), 200)
    50
    """
    data = experiment.data
    if data is not None and data.modes is not None:
        return data.modes
    return max(1, round(width / max(layer_ratios(experiment))))


def _by_layer(numbers: Mapping[int, float]) -> Lambda:
    """Return numbers by layer as a SymPy function of the number of the layer."""
    k = Symbol("k", integer=True)
    return Lambda(k, Piecewise(*((value, Eq(k, layer)) for layer, value in numbers.items())))


# -- variables of a network ----------------------------------------------------------------------------------


class Readout:
    """Conversion of measurements of the networks of a program to the variables of results.

    Parameters
    ----------
    problem
        The problem.
    axes
        Name and values of each axis of each measurement.
    kernels
        Kernels that were measured: of all pairs of samples ("full"), traces ("trace"), none, or at some
        times.
    """

    def __init__(
        self, problem: Problem, axes: ObservableAxes, kernels: MeasuredKernels | KernelTimes
    ) -> None:
        self.problem, self.axes = problem, axes
        of_gradients = (GRADIENT_KERNEL, f"{GRADIENT_KERNEL}{TRACE}")
        self.nonlinear = any(name == mu.name for x in of_gradients for name, _ in axes.get(x, ()))
        traced = (FEATURE_KERNEL, TANGENT_KERNEL, *((GRADIENT_KERNEL,) if self.nonlinear else ()))
        self.summed = traced if kernels == "trace" else ()
        """Measurements at equal samples, which are summed to traces."""
        if isinstance(kernels, KernelTimes):
            self.summed = (TANGENT_KERNEL, *(f"{x}{TRACE}" for x in traced if x != TANGENT_KERNEL))
        self.equal = bool(self.summed)
        self.traced = () if self.equal else traced
        """Kernels of all pairs of samples, of which traces are added."""
        self.by_role = numbers_by_role(problem)

    def variables(self, run: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
        """Yield pairs (name, array) of the variables of results of one network.

        ``run`` holds its measurements by name.
        """
        problem = self.problem
        if not problem.has_roles:
            yield from self._authored(run)
            return
        arrays = {
            NAMES.get(name, name): _layers_first(x, self.axes[name], self._layers(name))
            for name, x in run.items()
            if self._has_layers_of_role(name)
        }
        arrays |= {
            name: one_sample(arrays[name], problem.program) for name in ("error", OUTPUT) if name in arrays
        }
        for name in (C_LEARNT, "C_h0"):
            # The correlations are sums over the M modes of the data in results, but means over these modes in
            # the program.
            if M in problem.numbers and name in arrays:
                arrays[name] = problem.numbers[M] * arrays[name]
        if TANGENT_KERNEL in arrays:
            arrays[TANGENT_KERNEL] = self._of_samples(arrays[TANGENT_KERNEL])
        for name in [x for x in self.summed if x in arrays]:
            x, first = arrays[name], 2 if name == TANGENT_KERNEL else 3
            if x.ndim > first:
                del arrays[name]
                seen = x[(*[slice(None)] * first, slice(problem.seen))]
                yield f"{name.removesuffix(TRACE)}{TRACE}", seen.sum(axis=tuple(range(first, x.ndim)))
        yield from self._numbers(run)
        if "error" in arrays:
            known = {k: x for k, x in arrays.items() if k == OUTPUT or self._known(k, x)}
            arrays = split(problem, known, nonlinear=self.nonlinear)
        unplaced = set() if self.by_role else BY_SAMPLE - {*authored_variables(problem)}
        yield from ((n, x) for n, x in arrays.items() if self._known(n, x) and n not in unplaced)
        if "error" in arrays:
            for name in self.traced:
                if name in arrays and self._known(name, arrays[name]):
                    yield f"{name}{TRACE}", _trace(arrays[name], name != TANGENT_KERNEL)
        elif C_LEARNT in arrays:
            # The inputs are Gaussian, so that the test loss of each network is a function of its correlations
            # and needs no test samples.
            fresh = equal_times(arrays[C_LEARNT]) + problem.numbers.get(noise, 0.0) ** 2 * problem.outputs
            yield "train_loss", equal_times(arrays["C_Delta"]) if "C_Delta" in arrays else fresh
            yield "test_loss", fresh

    def _layers(self, name: str) -> range | None:
        """Return the layers of the kernel ``name`` that results hold; None if results hold all its layers.

        For given samples, layer 0 of a kernel (an embedding) is left out.
        """
        own = self.problem.seen and name.removesuffix(TRACE) in KERNELS
        return range(1, (self.problem.depth or 1) + 1) if own else None

    def _of_samples(self, kernel: Array) -> Array:
        """Return the tangent kernel of a network with axes for samples, of length one if there are none."""
        if not self.equal:
            return one_sample_kernel(kernel, self.problem.program)
        names = [name for name, _ in self.axes[TANGENT_KERNEL]]
        return kernel if mu.name in names else kernel[:, :, None]

    def _numbers(self, run: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
        """Yield pairs (name, array) of those numbers of a program that have no role, such as a custom scalar.

        Names are those that the author of the program gave them; arrays are cut to the index values that
        results have. ``run`` holds the measurements of one network.
        """
        for label, variable in authored_variables(self.problem).items():
            if variable.pair is None and variable.name in run:
                _, *axes = self.axes[variable.name]
                axis_pairs = zip(variable.values, axes, strict=True)
                at: tuple[Any, ...] = np.ix_(
                    *([labels.index(k) for k in values] for values, (_, labels) in axis_pairs)
                )
                yield label, run[variable.name][(slice(None), *at)]

    def _authored(self, run: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
        """Yield pairs (name, array) of variables of a program without roles, and its loss if known.

        Names are those that the author of the program gave them. ``run`` holds the measurements of one
        network. Correlations that are undefined at some values of their indices are left out.
        """
        numbers = dict(self._numbers(run))
        yield from numbers.items()
        for label, variable in authored_variables(self.problem).items():
            if variable.pair is None or variable.name not in run or np.isnan(x := run[variable.name]).any():
                continue
            axes = self.axes[variable.name]
            shape = [n for n, (axis, _) in zip(x.shape, axes, strict=True) if axis not in "ts"]
            if x.ndim == len(variable.dims) and tuple(shape) == variable.shape and x.ndim == len(shape) + 2:
                yield label, x
        loss = loss_of_scalars(self.problem, numbers)
        if loss is not None:
            yield "train_loss", loss

    def _has_layers_of_role(self, name: str) -> bool:
        """Return whether a measurement and the variable of results with its name agree about layers.

        Both or neither must have an axis of layers. A program may give the name ``G`` of a kernel of layers
        to the kernel of a field without layers. True if results have no variable of this name.
        """
        variable = VARIABLES.get(NAMES.get(name, name))
        layered = any(axis == ell.name for axis, _ in self.axes[name])
        return variable is None or layered == ("layer" in variable.dims)

    def _known(self, name: str, x: Array) -> bool:
        """Return whether results have a variable ``name`` with as many dimensions as the array ``x``."""
        places = self.problem.positions
        return name in VARIABLES and len(dimensions(name, x.ndim, self.nonlinear, places)) == x.ndim


def _trace(kernel: Array, layered: bool) -> Array:
    """Return the trace of a kernel over samples, positions and outputs, shape ([layers,] times, times).

    ``layered`` says whether the first axis of ``kernel`` counts layers. After the two times come the indices
    of the first vector of the kernel and then, in the same order, those of the second vector.
    """
    lead = "lts" if layered else "ts"
    side = "mpc"[: (kernel.ndim - len(lead)) // 2]
    trace: Array = np.einsum(f"{lead}{side}{side}->{lead}", kernel)
    return trace


def _layers_first(x: Array, axes: tuple[ObservableAxis, ...], layers: range | None = None) -> Array:
    """Return a measured correlation ``x`` with its layers as first axis, NaN at those of ``layers`` it lacks.

    ``axes`` are the names and values of its axes. Correlations between different layers are dropped. Without
    layers it is returned unchanged.
    """
    names = [name for name, _ in axes]
    if "ell" not in names:
        return x
    if "ell'" in names:
        x = np.moveaxis(np.diagonal(x, axis1=names.index("ell"), axis2=names.index("ell'")), -1, 0)
    else:
        x = np.moveaxis(x, names.index("ell"), 0)
    labels = axes[names.index("ell")][1]
    if layers is None:
        return x
    missing = np.full(x.shape[1:], np.nan)
    return np.stack([x[labels.index(k)] if k in labels else missing for k in layers])
