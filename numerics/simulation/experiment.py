"""Finite networks of any experiment: its program taken literally, network by network.

The size that grows is that of the hidden layers (the widest of them); on isotropic data the number of
features follows from ``width_ratio``, and samples or batches from theirs.  On power-law data modes and batch
are those of the file.  A flow takes Runge-Kutta steps, halved on the first network until they do not matter.

Where the slope of the activation jumps (relu), so does a network's G in time, whenever a unit crosses the
kink; and some units are held at it, where every step leaves them on one side or the other.  Steps then come
to errors and features in first order only, and to G in the mean over networks.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from sympy import Eq, Expr, Lambda, Piecewise, Symbol

from derive.linear.form import LinearForm
from derive.program import Program, mu
from numerics.errors import Diverged, NotConverged, SpecError
from numerics.experiment import Experiment
from numerics.experiment.activation import is_linear, slope_jumps
from numerics.experiment.numbers import arrays_of, layered_numbers, numbers_of, spectrum_of
from numerics.experiment.problem import Problem
from numerics.experiment.theory import Variant, program_of
from numerics.predictions import OUTPUT, split
from numerics.results import VARIABLES, dataset
from numerics.stats import Spread
from numerics.threads import one_thread

from .measure import Axis
from .run import MOST, Trainer
from .tangent import TangentKernel

Array = NDArray[np.float64]
Kernels = Literal["full", "trace", "none"]
Axes = Mapping[str, tuple[Axis, ...]]

KERNELS = ("H", "Phi", "G")
"""What a program calls the kernels of its layers."""

HALVINGS = 14
"""How often the step of a flow is halved before it is given up."""

NOISY = 3e-3
"""What steps of a flow with noise may miss, far less than networks scatter."""

ROUGH = 1e-3
"""The same where the slope of the activation jumps."""

SMOOTH = ("f", "Delta", "H", "Phi")
"""What of a network has no jumps in time even then."""

NAMES = {"H": "Phi", "Delta": "error"}
"""What numbers of a program are called in results, where that is something else."""


@one_thread
def simulate(
    experiment: Experiment | str | Path,
    *,
    width: int,
    seeds: int,
    rng: int | np.random.Generator | None = None,
    kernels: Kernels = "full",
    tolerance: float = 1e-6,
    variant: Variant | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> xr.Dataset:
    """Means over ``seeds`` networks and their standard errors (``*_stderr``), with the contract's variables.

    ``width`` is the number of neurons of the widest hidden layer.  ``rng`` is an entropy, a generator that
    draws one, or None; it is kept as ``seed``.  ``kernels``, of fixed samples: ``full`` measures those of all
    pairs of samples and times and the tangent kernel, ``trace`` their sums over equal samples, ``none``
    neither.  ``tolerance`` bounds what the steps of a flow miss, relative to the size of each variable (with
    noise it is at least NOISY, with an activation whose slope jumps ROUGH, and G is not judged); the
    attribute ``integration_error`` says what they do.
    ``variant`` takes the experiment's program to another one, which is trained instead.
    ``progress(done, seeds)`` counts networks.  Means differ from those of infinite width by O(1/N), which
    :func:`numerics.stats.extrapolate` removes.

    Raises :class:`~numerics.errors.SpecError` for fewer than two seeds, a bad option and isotropic data
    without ``network.width_ratio``, :class:`~numerics.errors.Diverged` with the step or the time, and
    :class:`~numerics.errors.NotConverged` when no step of a flow is short enough.

    >>> spec = {"network": {"depth": 2}, "training": {"learning_rate": 0.1, "steps": 3}}
    >>> found = simulate(Experiment.from_dict(spec, inputs=np.eye(2), targets=[1.0, -1.0]), width=50, seeds=4)
    >>> found.Phi.shape, bool((found.train_loss_stderr > 0).all())
    ((2, 4, 4, 2, 2), True)
    """
    experiment = Experiment.of(experiment)
    _check(experiment, width, seeds, kernels)
    entropy = entropy_of(rng)
    program, size = program_of(experiment), reference_size(experiment, width)
    program = program if variant is None else variant(program)
    started, linear = time.perf_counter(), is_linear(experiment.network.activation)
    setup = _setup(experiment, program, size, width, kernels)
    streams = [int(x.generate_state(1, np.uint64)[0]) for x in np.random.SeedSequence(entropy).spawn(seeds)]
    children = [np.random.SeedSequence(x).spawn(1)[0] for x in streams]
    noisy, kinked = bool(experiment.training.temperature), slope_jumps(experiment.network.activation)
    tangent = None if kernels == "none" else TangentKernel.of(experiment, program, equal=kernels == "trace")

    def read(run: dict[str, Array], axes: Axes) -> dict[str, Array]:
        return dict(_of_one_network(experiment, run, axes, tangent))

    results, error = _averages(program, setup, children, read, (tolerance, noisy, kinked), progress)
    return dataset(
        results,
        times=experiment.times,
        spec=experiment.text,
        nonlinear=not linear,
        method="finite networks",
        width=width,
        features=size if experiment.spec.kind == "isotropic" else None,
        seeds=seeds,
        seed=entropy,
        integration_error=error,
        wall_time_s=time.perf_counter() - started,
    )


@one_thread
def simulate_problem(
    problem: Problem,
    *,
    width: int,
    seeds: int,
    rng: int | np.random.Generator | None = None,
    tolerance: float = 1e-6,
    progress: Callable[[int, int], None] | None = None,
) -> xr.Dataset:
    """The same of a program with its numbers, arrays and times: the variables that have the contract's names.

    Raises what :func:`simulate` raises.

    >>> from derive.program import mlp
    >>> given = {"numbers": {"eta": 0.1, "gamma0": 1.0}, "arrays": {"K_x": np.eye(2), "y": np.ones(2)}}
    >>> problem = Problem.of(mlp(1, "tanh"), times=range(3), **given)
    >>> simulate_problem(problem, width=20, seeds=2, rng=0).error.shape
    (3, 2)
    """
    if seeds < 2:
        raise SpecError("seeds", seeds, "one network gives no standard error", "an integer >= 2")
    started, entropy = time.perf_counter(), entropy_of(rng)
    program, linear = problem.program, isinstance(problem.linear, LinearForm)
    setup: dict[str, Any] = {
        "width": width,
        "steps": len(problem.times) - 1,
        "values": {str(k): v for k, v in problem.values.items()},
        "data": dict(problem.arrays),
        "wanted": {name: vector for vector, name in program.notation.items()},
        "times": problem.times if problem.flow else None,
    }

    def read(run: dict[str, Array], axes: Axes) -> dict[str, Array]:
        found = {NAMES.get(n, n): _layers_first(x, axes[n]) for n, x in run.items()}
        known = {n: x for n, x in found.items() if n in VARIABLES or n == OUTPUT}
        return dict(split(problem, known, nonlinear=not linear))

    noisy = program.rule.noise(Symbol("t"), Symbol("s")) != 0
    children = np.random.SeedSequence(entropy).spawn(seeds)
    results, error = _averages(program, setup, children, read, (tolerance, noisy, False), progress)
    return dataset(
        results,
        times=problem.times,
        spec=problem.text,
        nonlinear=not linear,
        method="finite networks",
        width=width,
        seeds=seeds,
        seed=entropy,
        integration_error=error,
        wall_time_s=time.perf_counter() - started,
    )


def _averages(
    program: Program,
    setup: dict[str, Any],
    children: Sequence[np.random.SeedSequence],
    read: Callable[[dict[str, Array], Axes], dict[str, Array]],
    accuracy: tuple[float, bool, bool],
    progress: Callable[[int, int], None] | None,
) -> tuple[dict[str, Array], float | None]:
    """Means and standard errors over networks of what ``read`` makes of each; what the steps of a flow miss.

    ``accuracy``: the tolerance of a flow's steps, whether it is noisy, whether the slope of its activation
    jumps.
    """
    error: float | None = None
    if setup["times"] is None:
        networks = Trainer.of(program, **setup)
    else:
        tolerance, noisy, kinked = accuracy
        tolerance = max(tolerance, NOISY if noisy else 0.0, ROUGH if kinked else 0.0)
        plain = Trainer.of(program, **setup, dt=float(np.max(np.diff(setup["times"]))))
        networks, error = settled(plain, children[0], tolerance, noisy, kinked)
    spread, done = Spread(), 0
    for batch in networks.batches(children):
        runs = networks.train_together(batch)
        for k in range(len(batch)):
            spread.add(read({name: x[k] for name, x in runs.items()}, networks.axes))
            done += 1
            if progress is not None:
                progress(done, len(children))
    return spread.mean() | {f"{name}_stderr": x for name, x in spread.stderr().items()}, error


def _check(experiment: Experiment, width: int, seeds: int, kernels: str) -> None:
    if seeds < 2:
        raise SpecError("seeds", seeds, "one network gives no standard error", "an integer >= 2")
    if width < 1:
        raise SpecError("width", width, "must be positive", "an integer >= 1")
    if kernels not in get_args(Kernels):
        raise SpecError("kernels", kernels, "no such choice", "full, trace or none")
    if experiment.spec.kind == "fixed" and experiment.training.center:
        raise SpecError(
            "training.center",
            True,
            "is not served for finite networks on fixed data; in the theory it changes nothing",
            "false",
        )


def _setup(experiment: Experiment, program: Program, size: int, width: int, kernels: str) -> dict[str, Any]:
    """What a :class:`Trainer` needs of an experiment."""
    values: dict[str, Any] = {str(k): v for k, v in numbers_of(experiment).items()}
    values |= {k: _by_layer(dict(x)) for k, x in layered_numbers(experiment.spec)}
    wanted = {name: vector for vector, name in program.notation.items()}
    if experiment.spec.kind == "fixed" and kernels == "none":
        wanted = {name: e for name, e in wanted.items() if name not in KERNELS or not e.has(mu)}
    data = arrays_of(experiment)
    modes = spectrum_of(experiment, every=True)
    if modes is not None:
        values["N"] = width
        data |= modes.attributes
    return {
        "width": size,
        "steps": len(experiment.times) - 1,
        "values": values,
        "data": data,
        "wanted": wanted,
        "equal": mu if experiment.spec.kind == "fixed" and kernels == "trace" else None,
        "times": experiment.times if experiment.training.rule == "flow" else None,
    }


def entropy_of(rng: int | np.random.Generator | None) -> int:
    """The entropy itself, one that a Generator draws, or one from the system.

    Raises ``SpecError`` (a ``ValueError``) for a negative one.
    """
    if rng is None:
        return secrets.randbits(62)
    if isinstance(rng, np.random.Generator):
        return int(rng.integers(2**62))
    if int(rng) < 0:
        raise SpecError("rng", int(rng), "must not be negative", "an integer >= 0")
    return int(rng)


def settled(
    networks: Trainer, seed: np.random.SeedSequence, tolerance: float, noisy: bool, kinked: bool = False
) -> tuple[Trainer, float]:
    """Networks whose Runge-Kutta steps are short enough, and what these miss: what halving all of them
    changes, relative to the size of each variable, as the order of the method has it (fourth, with noise
    second, across kinks first and of what has no jumps in time).

    How steps are shared among the intervals between recorded times is found interval by interval, on one
    network; with noise or kinks all have the same length.  Raises :class:`~numerics.errors.NotConverged`
    after HALVINGS halvings.
    """
    order, error = 1 if kinked else 2 if noisy else 4, np.inf
    networks = networks if noisy or kinked else networks.fitted(seed, tolerance)
    fine: dict[str, Array] | None = None
    for _ in range(HALVINGS):
        halved, last = networks.halved(), error
        if max(halved.counts or ()) > MOST:
            break
        try:
            coarse = replace(networks, kicks=2).train(seed) if noisy or fine is None else fine
            fine = halved.train(seed)
        except Diverged:
            networks, fine = halved, None
            continue
        judged = [name for name in fine if not kinked or name in SMOOTH]
        error = max(_change(coarse[name], fine[name]) for name in judged) / (2**order - 1)
        networks = halved
        if error <= tolerance:
            return networks, error
        if not noisy and not kinked and error > last / 2:  # no step is better: rounding
            break
    raise NotConverged(f"flow of a finite network: integration error {error:.2g}, wanted {tolerance:.2g}")


def _change(old: Array, new: Array) -> float:
    return float(np.nanmax(np.abs(new - old)) / max(float(np.nanmax(np.abs(new))), 1e-300))


def reference_size(experiment: Experiment, width: int) -> int:
    """The size N that ratios of the program refer to, when the widest hidden layer has ``width`` neurons: on
    power-law data the number of modes.

    >>> spec = {"network": {"depth": 2, "width_ratio": [1.0, 4.0]}, "data": {"kind": "isotropic"}}
    >>> reference_size(Experiment.from_dict(spec), 200)
    50
    """
    network, data = experiment.network, experiment.data
    if data is not None and data.modes is not None:
        return data.modes
    if experiment.spec.kind == "isotropic":
        if network.width_ratio is None:
            raise SpecError(
                "network.width_ratio",
                None,
                "is left out: the layers are infinitely wide",
                "the ratio of neurons to features for finite networks",
            )
        ratios = network.width_ratio if isinstance(network.width_ratio, list) else [network.width_ratio]
    else:
        ratios = network.relative_widths or [1.0]
    return max(1, round(width / max(ratios)))


def _of_one_network(
    experiment: Experiment,
    run: dict[str, Array],
    axes: Axes,
    tangent: TangentKernel | None,
) -> Iterator[tuple[str, Array]]:
    """The contract's variables of one network."""
    found = {NAMES.get(name, name): _layers_first(x, axes[name]) for name, x in run.items()}
    modes = experiment.data and experiment.data.modes
    for name in ("C_v", "C_h0"):
        if modes and name in found:
            found[name] = modes * found[name]  # sums over modes, of which programs take the mean
    linear = is_linear(experiment.network.activation)
    if tangent is not None and tangent.equal:
        yield from tangent.traces(experiment, found)
        found = {name: x for name, x in found.items() if name != "Phi" and (linear or name != "G")}
    elif tangent is not None:
        found["tangent_kernel"] = tangent(found)
    if "error" in found:
        known = {k: x for k, x in found.items() if k in VARIABLES or k == OUTPUT}
        found = split(experiment, known, nonlinear=not linear)
    yield from ((name, value) for name, value in found.items() if name in VARIABLES)
    if "Phi" in found:
        yield "Phi_trace", np.einsum("ltsmm->lts", found["Phi"])
    if "tangent_kernel" in found:
        own = "tsmm->ts" if experiment.network.outputs == 1 else "tsmcmc->ts"
        yield "tangent_kernel_trace", np.einsum(own, found["tangent_kernel"])
    if not linear and "G" in found:
        own = "ltsmm->lts" if experiment.network.outputs == 1 else "ltsmcmc->lts"
        yield "G_trace", np.einsum(own, found["G"])
    if "error" in found:
        return
    data = experiment.spec.data
    noise = 0.0 if data is None or data.noise is None else data.noise
    test = _equal(found["C_v"]) + noise**2 * experiment.network.outputs
    yield "test_loss", test
    yield "train_loss", _equal(found["C_Delta"]) if "C_Delta" in found else test


def _layers_first(x: Array, axes: tuple[Axis, ...]) -> Array:
    """Where all layers have the same units, correlations of one layer with itself."""
    names = [name for name, _ in axes]
    if "ell'" not in names:
        return x
    return np.moveaxis(np.diagonal(x, axis1=names.index("ell"), axis2=names.index("ell'")), -1, 0)


def _equal(a: Array) -> Array:
    value: Array = np.einsum("tt->t" if a.ndim == 2 else "ttcc->t", a)
    return value


def _by_layer(numbers: Mapping[int, Expr]) -> Lambda:
    """A number for each layer as a SymPy function of the layer."""
    k = Symbol("k", integer=True)
    return Lambda(k, Piecewise(*((value, Eq(k, layer)) for layer, value in numbers.items())))
