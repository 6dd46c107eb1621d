"""Many networks, one dataset: means over independent seeds with their standard errors."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.experiment.activation import is_linear
from numerics.experiment.refusals import is_plain
from numerics.threads import one_thread

from .moments import Moments
from .network import Schedule, check_data, inputs_from_kernel, run
from .parameters import draw_parameters
from .record import History
from .series import network_series, series_names

Array = NDArray[np.float64]

DIMENSIONS = {
    "train_loss": ("time",),
    "error": ("time", "sample"),
    "Phi": ("layer", "time", "time_", "sample", "sample_"),
    "G": ("layer", "time", "time_"),
    "tangent_kernel": ("time", "time_", "sample", "sample_"),
    "Phi_trace": ("layer", "time", "time_"),
    "tangent_trace": ("time", "time_"),
}


@dataclass(frozen=True)
class Setup:
    """What a run needs of an experiment: inputs (P,D), targets (P,), depth, gamma_0 and the schedule."""

    inputs: Array
    targets: Array
    depth: int
    gamma0: float
    schedule: Schedule
    spec: str

    @staticmethod
    def of(experiment: Any) -> Setup:
        """Read an ``Experiment`` (or anything with its attributes)."""
        inputs = experiment.inputs
        x, y = check_data(
            inputs_from_kernel(experiment.kernel) if inputs is None else inputs, experiment.targets
        )
        training, rate = experiment.training, float(experiment.effective_rate)
        if training.rule == "flow":
            schedule = Schedule.create("flow", rate, None, experiment.times)
        else:
            schedule = Schedule.create(training.rule, rate, training.steps, None)
        network = experiment.network
        spec = getattr(experiment, "text", "")
        return Setup(x, y, int(network.depth), float(network.gamma0), schedule, spec)


def make_streams(seeds: int, rng: int | np.random.Generator | None) -> tuple[int, list[np.random.Generator]]:
    """The entropy (to be stored) and one independent generator per seed, spawned from it.

    ``rng``: an int is the entropy itself, a Generator draws it, None asks the system. Raises ``SpecError``
    (a ``ValueError``) for fewer than two seeds: one network has no standard error.

    >>> entropy, streams = make_streams(2, 7)
    >>> entropy, len(streams)
    (7, 2)
    """
    if seeds < 2:
        raise SpecError("seeds", seeds, "one network gives no standard error", "an integer >= 2")
    entropy = entropy_of(rng)
    return entropy, [np.random.default_rng(s) for s in np.random.SeedSequence(entropy).spawn(seeds)]


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


@one_thread
def simulate(
    experiment: Any,
    *,
    width: int,
    seeds: int,
    rng: int | np.random.Generator | None = None,
    kernels: str = "full",
    antithetic: bool = False,
    tolerance: float = 1e-6,
    progress: Callable[[int, int], None] | None = None,
) -> xr.Dataset:
    """Train ``seeds`` independent networks of ``width`` and return the means of their observables.

    Variables (contract.md) with ``*_stderr`` beside each: train_loss, error, and with ``kernels``
    "full" Phi, G, tangent_kernel; with "trace" G and the kernels summed over equal samples,
    Phi_trace(layer,time,time_) and tangent_trace; with "none" neither. ``series(network, observable,
    time)`` keeps the summary curves of every network (see ``series.py``), from which ``compare`` takes
    its covariances. Means differ from the infinite width limit by O(1/N); ``extrapolate`` removes that.

    ``antithetic`` trains each network a second time from the same weights with the sign of the readout
    flipped and averages the two: the initial function, odd in the readout, cancels. Same expectation;
    the pair counts as one sample. At equal cost it pays for outputs and losses early in training only.
    ``tolerance`` bounds the integration error of a flow (checked by step halving on the first network,
    whose refinement the others take). ``progress(done, total)`` is called after each network.

    Raises ``SpecError`` (a ``ValueError``) for a bad option or fewer than two seeds, ``Diverged``
    naming the step.
    """
    if kernels not in ("full", "trace", "none"):
        raise SpecError("kernels", kernels, "no such choice", "full, trace or none")
    if width < 1:
        raise SpecError("width", width, "must be positive", "an integer >= 1")
    _refuse_what_is_not_plain(experiment)
    began = time.perf_counter()
    setup = Setup.of(experiment)
    entropy, streams = make_streams(seeds, rng)
    moments, curves = Moments(), []
    refinement: int | None = None
    integration_error = 0.0
    for index, stream in enumerate(streams):
        start = draw_parameters(setup.inputs.shape[1], setup.depth, width, setup.gamma0, stream)
        signs = (1.0, -1.0) if antithetic else (1.0,)
        samples = []
        for sign in signs:
            history = run(
                start.copy(sign),
                setup.inputs,
                setup.targets,
                setup.schedule,
                tolerance=tolerance,
                refinement=refinement,
            )
            if refinement is None and setup.schedule.rule == "flow":
                refinement, integration_error = history.refinement, history.integration_error
            samples.append(_measure(history, kernels))
        mean = {name: np.mean([s[name] for s in samples], axis=0) for name in samples[0]}
        curves.append(mean.pop("series"))
        moments.push(mean)
        if progress is not None:
            progress(index + 1, seeds)
    dataset = _dataset(setup, moments, np.array(curves))
    dataset.attrs = {
        "spec": setup.spec,
        "version": _version(),
        "seed": entropy,
        "status": "ok",
        "wall_time_s": time.perf_counter() - began,
        "method": "finite networks",
        "width": width,
        "seeds": seeds,
        "antithetic": int(antithetic),
        "integration_error": integration_error,
    }
    return dataset


def _refuse_what_is_not_plain(experiment: Any) -> None:
    """Nothing of an experiment is left out silently."""
    if not isinstance(experiment, Experiment):
        return
    if not (is_linear(experiment.network.activation) and is_plain(experiment)):
        raise SpecError(
            "experiment", experiment.spec.kind, "is no plain network on fixed data", "simulate_steps instead"
        )


def _measure(history: History, kernels: str) -> dict[str, Array]:
    """The arrays that are averaged over networks."""
    depth = len(history.g)
    layers = range(1, depth + 1)
    sample = {"train_loss": history.train_loss, "error": history.error, "series": network_series(history)}
    if kernels == "none":
        return sample
    sample["G"] = np.stack([history.gradient_kernel(k) for k in layers])
    if kernels == "full":
        sample["Phi"] = np.stack([history.feature_kernel(k) for k in layers])
        sample["tangent_kernel"] = history.tangent_kernel()
    else:
        sample["Phi_trace"] = np.stack([history.feature_trace(k) for k in layers])
        sample["tangent_trace"] = history.tangent_trace()
    return sample


def _dataset(setup: Setup, moments: Moments, curves: Array) -> xr.Dataset:
    mean, stderr = moments.mean(), moments.stderr()
    variables: dict[str, Any] = {}
    for name in mean:
        variables[name] = (DIMENSIONS[name], mean[name])
        variables[f"{name}_stderr"] = (DIMENSIONS[name], stderr[name])
    variables["series"] = (("network", "observable", "time"), curves)
    times, samples = setup.schedule.times, np.arange(len(setup.targets))
    coordinates: dict[str, Any] = {
        "time": times,
        "time_": times,
        "layer": np.arange(1, setup.depth + 1),
        "sample": samples,
        "sample_": samples,
        "observable": series_names(setup.depth),
    }
    used = {dim for dims, _ in variables.values() for dim in dims}
    return xr.Dataset(variables, coords={k: v for k, v in coordinates.items() if k in used})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("dmft-derive")
    except PackageNotFoundError:  # run from a checkout that was never installed
        return "unknown"
