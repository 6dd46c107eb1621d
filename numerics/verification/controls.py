"""Control variates for means over networks on fixed samples: outputs and kernels of the initial networks.

At the start of training some means over networks are those of the theory at every width: outputs are odd in
the readout, so that their mean is zero; kernels of linear networks are products of averages over independent
weights; and kernels of the first layer are averages over independent units.  From their fluctuations and from
the theory's errors and tangent kernel, linear response gives control variates of each variable.  The
regressions on them are subtracted from the means over networks in :mod:`numerics.verification.networks`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from derive.errors import NotApplicable
from derive.linear.form import LinearForm
from numerics.errors import NotConverged, Unserved
from numerics.experiment.problem import Problem
from numerics.experiment.rates import next_step_factors
from numerics.names import FEATURE_KERNEL, GRADIENT_KERNEL, OUTPUT
from numerics.results import STDERR
from numerics.results.losses import loss_of
from numerics.results.predictions import squares_errors
from numerics.solver.lazy.solve import solve_lazy
from numerics.stats import CONSTANT, LEVERAGE, SampleMean, controlled_mean, controlled_values

Array = NDArray[np.float64]

MEAN_LOSS = "loss_of_mean_error"
"""Name of the loss of the mean error of networks: their mean loss less the variance of their errors."""

DOF = "degrees_of_freedom"
"""Attribute of a mean over networks with the degrees of freedom of its standard error, if these differ from
the number of networks less one."""

STEP = 0.5
"""Step length of the linear response of a flow, in units of its fastest relaxation time."""

MOST_STEPS = 64
"""Largest number of steps between two output times of a flow; controls need not be exact."""

ACCURACY = 1e-8
"""Relative accuracy of the means of kernels of the first layer of nonlinear networks."""


@dataclass(frozen=True)
class StartMeans:
    """Exact means of outputs and kernels over initial networks, where they do not depend on the width.

    ``outputs`` has shape (samples[, outputs]). ``features`` and ``gradients`` map the position of a layer, 0
    for the first hidden layer, to its mean feature kernel (samples, samples) or gradient kernel. Gradient
    kernels of linear networks do not depend on samples: they are numbers, or (outputs, outputs) matrices.
    """

    outputs: Array
    features: Mapping[int, Array] = field(default_factory=dict)
    gradients: Mapping[int, Array] = field(default_factory=dict)


def has_controls(problem: Problem) -> bool:
    """Return whether exact means over initial networks are known, at least those of outputs.

    They are known for experiment files with fixed samples, unless units of a layer have positions, as in a
    convolution.
    """
    return problem.experiment is not None and bool(problem.seen) and not problem.positions


def controls_of(problem: Problem) -> int:
    """Return roughly how many control variates are used for a mean over finite networks.

    The control variates are fluctuations of initial outputs and kernels. The number grows with the depth for
    linear networks, and is 3 for nonlinear ones.
    """
    return 2 + 2 * (problem.depth or 1) if isinstance(problem.linear, LinearForm) else 3


def start_means(problem: Problem, theory: xr.Dataset) -> StartMeans | None:
    """Return the exact means of initial networks, or None where they are not known (:func:`has_controls`).

    Means of outputs are zero.  For linear networks the means of all kernels are those of the solution
    ``theory`` at time 0.  For nonlinear networks, and if ``theory`` is sampled, the means of kernels are
    those of the feature kernel of the first layer, and of its gradient kernel if it is the only layer.
    Kernels are left out unless ``theory`` holds feature and gradient kernels. The result is None if
    ``theory`` does not hold outputs.
    """
    if not has_controls(problem) or OUTPUT not in theory:
        return None
    outputs = np.zeros(theory[OUTPUT].shape[1:])
    if FEATURE_KERNEL not in theory or GRADIENT_KERNEL not in theory:
        return StartMeans(outputs)
    if isinstance(problem.linear, LinearForm) and f"{FEATURE_KERNEL}{STDERR}" not in theory:
        at = {"time": 0, "time_": 0}
        kernels = (theory[x].isel(at).to_numpy() for x in (FEATURE_KERNEL, GRADIENT_KERNEL))
        features, gradients = (dict(enumerate(x)) for x in kernels)
        return StartMeans(outputs, features, gradients)
    return StartMeans(outputs, *_first_layer(problem))


def _first_layer(problem: Problem) -> tuple[dict[int, Array], dict[int, Array]]:
    """Return the mean initial feature and gradient kernels of the first hidden layer, by layer position.

    Units of this layer are independent, so that the means are Gaussian averages.  Both dicts are empty if
    these cannot be computed; the gradient kernels are empty for several layers or outputs.
    """
    try:
        solution = solve_lazy(
            problem.discrete, steps=1, values=problem.values, data=problem.arrays, accuracy=ACCURACY
        )
        kernels = [solution.kernel(x, 1) for x in (FEATURE_KERNEL, GRADIENT_KERNEL)]
    except (NotApplicable, Unserved, NotConverged, KeyError, ValueError):  # not computable for this program
        return {}, {}
    seen = slice(problem.seen)
    features, gradients = ({0: x[seen, seen]} if x.ndim == 2 else {} for x in kernels)
    return features, gradients if problem.depth == 1 else {}


@dataclass(frozen=True)
class StartFluctuations:
    """Initial outputs and kernels of networks of one width, less their exact means over networks.

    ``outputs`` has shape (networks, samples[, outputs]). ``features`` (networks, layers, samples, samples)
    are feature kernels of the layers at the positions ``layers`` (0 for the first hidden layer).
    ``gradients`` (networks, layers) are traces of gradient kernels over samples and outputs.
    """

    outputs: Array
    features: Array
    gradients: Array
    layers: tuple[int, ...]

    @classmethod
    def of(cls, means: StartMeans, samples: Mapping[str, Array]) -> StartFluctuations:
        """Return initial outputs and kernels of networks, less their exact means ``means``.

        ``samples`` maps names of result variables to arrays that hold the variable of each network, with
        networks along the first axis. Values at the first time are used. Outputs are needed; kernels that
        are not in ``samples`` or ``means`` give arrays without layers.
        """
        outputs = samples[OUTPUT][:, 0] - means.outputs
        count = len(outputs)
        features = np.zeros((count, 0, outputs.shape[1], outputs.shape[1]))
        layers: tuple[int, ...] = ()
        if FEATURE_KERNEL in samples:
            layers = tuple(means.features)
            parts = [samples[FEATURE_KERNEL][:, k, 0, 0] - x for k, x in means.features.items()]
            features = np.stack(parts, axis=1) if parts else features
        gradients = np.zeros((count, 0))
        if GRADIENT_KERNEL in samples and means.gradients:
            parts = [samples[GRADIENT_KERNEL][:, k, 0, 0] - x for k, x in means.gradients.items()]
            gradients = np.stack([_traces(x) for x in parts], axis=1)
        return cls(outputs, features, gradients, layers)

    def __len__(self) -> int:
        return len(self.outputs)

    @property
    def scores(self) -> tuple[float, int, int]:
        """Largest ``|z|`` of initial outputs and kernels, how many were tested, and degrees of freedom.

        z is the deviation, averaged over networks, in units of its standard error; its exact mean is zero.
        Entries that are equal in all networks are not tested.
        """
        count = len(self)
        parts = [x.reshape(count, -1) for x in (self.outputs, self.features, self.gradients)]
        deviations = np.concatenate(parts, axis=1)
        mean, error = deviations.mean(axis=0), deviations.std(axis=0, ddof=1) / np.sqrt(count)
        moving = error > CONSTANT * np.abs(deviations).max(initial=1.0)
        z = np.abs(mean[moving]) / error[moving]
        return float(z.max(initial=0.0)), int(moving.sum()), count - 1


def _traces(kernels: Array) -> Array:
    """Return the trace of one kernel for each network, shape (networks,).

    ``kernels`` has shape (networks, samples, samples), (networks, samples, outputs, samples, outputs), or
    (networks,) for kernels that are numbers.
    """
    if kernels.ndim == 1:
        return kernels
    size = int(np.prod(kernels.shape[1 : 1 + (kernels.ndim - 1) // 2]))
    return np.asarray(np.einsum("nkk->n", kernels.reshape(len(kernels), size, size)))


class LinearResponse:
    """Changes of outputs over training, to first order in changes of initial outputs and feature kernels.

    An output f with error signal Delta moves by ``f(t+1) = f(t) + k(t) K(t,t) Delta(t)``, where K is the
    tangent kernel and k(t) the learning rate, divided by the number of samples if the loss is a mean. With
    ``c = -dDelta/df`` a change ``delta f(0)`` and a constant change ``delta K`` give

        delta f(t+1) = delta f(t) + k(t) [delta K Delta(t) - K(t,t) c(t) delta f(t)].

    ``delta K`` is the change of the feature kernel of layer l, multiplied in nonlinear networks with one
    output by the gradient kernel ``G^{l+1}(t,t)``. The response to the initial outputs and to the kernel of
    each layer is computed separately. K, Delta and c are those of the solution ``theory``; c is the ratio of
    the changes of error and output from one time to the next, at least 0, and 1 if the output does not
    change. A flow is integrated by Euler steps between its output times, with K, Delta and c of the earlier
    time.
    """

    def __init__(self, problem: Problem, theory: xr.Dataset) -> None:
        self.error = _flat(theory["error"].to_numpy())
        """Error signals of the solution, (times, samples x channels)."""
        output = _flat(theory[OUTPUT].to_numpy())
        times, entries = self.error.shape
        kernel = theory["tangent_kernel"].to_numpy()
        self.kernel = np.stack([kernel[k, k].reshape(entries, entries) for k in range(times)])
        moved = np.diff(output, axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = np.nan_to_num(-np.diff(self.error, axis=0) / moved, nan=1.0, posinf=1.0, neginf=1.0)
        self.slope = np.clip(slope, 0.0, None)  # negative only by rounding, if the loss is convex
        self.rates = next_step_factors(problem)
        self.flow = problem.flow
        if problem.flow:
            self.rates = self.rates * np.diff(problem.times)
        self.channels = entries // problem.seen
        self.gradient_kernels = self._gradient_kernels(theory)

    def _gradient_kernels(self, theory: xr.Dataset) -> Array | None:
        """Return gradient kernels at equal times, shape (layers, times, samples, samples).

        Position l holds the kernel of the layer after l, or ones after the last layer, because this factor
        multiplies the feature kernel of layer l in the tangent kernel. None for linear networks and several
        outputs.
        """
        gradient = theory[GRADIENT_KERNEL]
        if gradient.ndim != 5 or "sample" not in gradient.dims:
            return None
        equal = np.einsum("lttab->ltab", gradient.to_numpy())
        return np.concatenate([equal[1:], np.ones_like(equal[:1])])

    def __call__(self, start: StartFluctuations) -> Array:
        """Return the linear response of outputs to the deviations of initial networks from their means.

        The shape is (times, networks, 1 + layers, samples x channels): index 0 of the third axis is the
        response to the initial outputs, the others those to the feature kernels of ``start.layers``.
        """
        count, sources = len(start), start.features.shape[1]
        entries = self.error.shape[1]
        response = np.zeros((count, 1 + sources, entries))
        response[:, 0] = start.outputs.reshape(count, entries)
        responses = [response]
        for k, rate in enumerate(self.rates):
            steps = self._steps(k, rate)
            drive = self._drive(start, k)
            matrix = self.kernel[k] * self.slope[k]
            for _ in range(steps):
                response = response - (rate / steps) * (response @ matrix.T)
                response[:, 1:] += (rate / steps) * drive
            responses.append(response)
        return np.stack(responses)

    def growth(self, k: int, rate: float) -> float:
        """Return the largest factor by which step ``k`` multiplies a deviation of outputs from their mean.

        ``rate`` is the learning rate of the step, divided by the number of samples if the loss is a mean;
        kernels are those at time k.
        """
        root = np.sqrt(self.slope[k])
        rates = rate * np.linalg.eigvalsh(root[:, None] * self.kernel[k] * root)
        return float(np.abs(1 - rates).max())

    def _drive(self, start: StartFluctuations, k: int) -> Array:
        """Return the changes of the velocity of outputs at time position k due to initial feature kernels.

        They are ``delta K Delta(t_k)`` with the error signal Delta, of shape (networks, layers, samples x
        outputs). ``delta K`` is the deviation of one layer's kernel from its mean, multiplied in nonlinear
        networks with one output by the gradient kernel of the next layer.
        """
        error = self.error[k].reshape(-1, self.channels)
        features = start.features
        if self.gradient_kernels is not None:
            features = features * self.gradient_kernels[list(start.layers), k]
        drive: Array = features @ error
        return drive.reshape(*features.shape[:2], error.size)

    def _steps(self, k: int, rate: float) -> int:
        """Return the number of Euler steps from output time k to k + 1 of a flow; one for training in steps.

        ``rate`` is the learning rate times the length of the interval, divided by the number of samples if
        the loss is a mean.
        """
        if not self.flow:
            return 1
        fastest = abs(rate) * float(np.abs(self.kernel[k] * self.slope[k]).sum(axis=1).max())
        return int(np.clip(np.ceil(fastest / STEP), 1, MOST_STEPS))


def _flat(x: Array) -> Array:
    """Return an array (times, samples[, outputs]) reshaped to (times, samples x outputs)."""
    return np.asarray(x.reshape(len(x), -1))


class NetworkControls:
    """Means of variables over networks of one width, less regressions on their initial fluctuations.

    Fluctuations of initial outputs and kernels, whose exact mean is zero, are the control variates, called
    controls. Arguments named ``samples`` map variable names to arrays with networks along the first axis.
    """

    def __init__(self, start: StartFluctuations, response: LinearResponse) -> None:
        self.start, self.response = start, response
        self.responses = response(start)
        count, sources = len(start), self.responses.shape[2] + start.gradients.shape[1]
        self.few = LEVERAGE * (1 + sources) > count
        """Whether networks are too few for controls of each layer, which are summed over layers then."""

    def of_error(self, time: int) -> Array:
        """Return control variates for the outputs and errors at a time position.

        The shape is (samples x outputs, networks, controls). Controls are the linear responses of each output
        at this time to initial outputs and feature kernels, and traces of initial gradient kernels.
        """
        return self._with_gradients(self.responses[time].transpose(2, 0, 1))

    def of_loss(self, time: int) -> Array:
        """Return control variates for the training loss at a time position, of shape (networks, controls).

        They are the linear responses of outputs at this time, multiplied by the theory's errors and summed,
        and traces of initial gradient kernels.
        """
        of_losses = self._with_gradients((self.responses[time] @ self.response.error[time])[None])
        return np.asarray(of_losses[0])

    def _with_gradients(self, responses: Array) -> Array:
        """Return control variates: the given responses, then traces of each layer's initial gradient kernel.

        ``responses`` are linear responses (numbers, networks, sources) to initial outputs (source 0) and to
        the feature kernel of each layer. The result has shape (numbers, networks, controls). If there are too
        few networks to fit so many coefficients, controls of different layers are summed.
        """
        gradients = self.start.gradients
        if self.few:
            layers = responses[..., 1:].sum(axis=-1, keepdims=True)
            responses = np.concatenate([responses[..., :1], layers], axis=-1)
            gradients = gradients.sum(axis=1, keepdims=True)
        repeated = np.broadcast_to(gradients, (len(responses), *gradients.shape))
        return np.concatenate([responses, repeated], axis=-1)

    @property
    def of_kernels(self) -> Array:
        """Control variates for all kernels, shape (networks, controls).

        They are the projections of initial outputs on ``v``, the sum of the theory's errors over time, and on
        ``K v`` with the initial tangent kernel K; then for each layer the trace of the initial feature
        kernel, its quadratic form in the sum of ``v`` over outputs, and the trace of the gradient kernel.
        With too few networks the last three are summed over layers.
        """
        start, error = self.start, self.response.error
        v = error.sum(axis=0)
        learnt = np.stack([v, self.response.kernel[0] @ v], axis=1)
        outputs = start.outputs.reshape(len(start), -1) @ learnt
        along = v.reshape(-1, self.response.channels).sum(axis=1)
        traces = np.einsum("nlaa->nl", start.features)
        parts = np.einsum("a,nlab,b->nl", along, start.features, along)
        layered = [traces, parts, start.gradients]
        if LEVERAGE * (3 + sum(x.shape[1] for x in layered)) > len(start):
            layered = [x.sum(axis=1, keepdims=True) for x in layered]
        return np.concatenate([outputs, *layered], axis=1)

    def means(self, samples: Mapping[str, Array]) -> dict[str, SampleMean]:
        """Return improved means over networks of the training loss, errors, outputs and kernels, by name.

        Regressions on fluctuations of the initial networks are subtracted. ``samples`` maps names of
        variables to arrays with networks along the first axis. Variables without control variates, such as
        the test loss, are left out. The shapes of the means are those of the variables.
        """
        means: dict[str, SampleMean] = {}
        for name, controls in (
            ("error", self.of_error),
            (OUTPUT, self.of_error),
            ("train_loss", self.of_loss),
        ):
            if name in samples:
                means[name] = self._of_times(samples[name], controls)
        common = self.of_kernels
        for name in ("Phi_trace", "G_trace", GRADIENT_KERNEL, "tangent_kernel_trace"):
            if name in samples:
                x = samples[name]
                means[name] = controlled_mean(x.reshape(len(x), -1), common).shaped(x.shape[1:])
        if FEATURE_KERNEL in samples:
            means[FEATURE_KERNEL] = self._of_features(samples[FEATURE_KERNEL], common)
        return means

    def _of_features(self, values: Array, common: Array) -> SampleMean:
        """Return means over networks of the feature kernels of all pairs of samples and times.

        ``values`` has shape (networks, layers, times, times, samples, samples), symmetric under exchange of
        both pairs. The control variates are ``common`` (networks, controls) and, for each entry of a kernel,
        the same entry of the initial kernel of the layer.
        """
        count, layers, times, _, *samples = values.shape
        start_kernels = {
            k: self.start.features[:, i].reshape(count, -1) for i, k in enumerate(self.start.layers)
        }
        value, stderr = np.empty((2, layers, times, times, *samples))
        dof = count
        for k, at, before in np.ndindex(layers, times, times):
            if before > at:
                continue
            x, controls = values[:, k, at, before].reshape(count, -1), common
            if k in start_kernels:
                repeated = np.broadcast_to(common, (x.shape[1], *common.shape))
                controls = np.concatenate([repeated, start_kernels[k].T[..., None]], axis=2)
            controlled = controlled_mean(x, controls).shaped(samples)
            for mean, one in ((value, controlled.value), (stderr, controlled.stderr)):
                mean[k, before, at], mean[k, at, before] = one.T, one
            dof = min(dof, controlled.dof)
        return SampleMean(value, stderr, dof)

    def errors(self, values: Array) -> tuple[Array, int]:
        """Return the errors of each network with regressions on its initial fluctuations subtracted.

        ``values`` has shape (networks, times, samples[, outputs]). The first result has shape (networks,
        times, samples x outputs); the second is the number of degrees of freedom that the regressions leave.
        """
        flat = values.reshape(*values.shape[:2], -1)
        parts = [controlled_values(flat[:, k], self.of_error(k)) for k in range(flat.shape[1])]
        return np.stack([x for x, _ in parts], axis=1), min(dof for _, dof in parts)

    def _of_times(self, values: Array, controls: Callable[[int], Array]) -> SampleMean:
        """Return means of ``values`` (networks, times, ...) over networks, with a regression at each time.

        ``controls`` maps a time position to the control variates there, of shape (networks, controls) or,
        with own controls for each number, (numbers, networks, controls).
        """
        flat = values.reshape(*values.shape[:2], -1)
        parts = [controlled_mean(flat[:, k], controls(k)) for k in range(flat.shape[1])]
        return SampleMean.joined(parts).shaped(values.shape[1:])


class NetworkSamples:
    """Variables of every network of one width, kept in at most ``bytes_held`` bytes for later regressions.

    If they do not all fit, the smallest variables are kept; this is decided when the first network is
    added.  ``count`` is the number of networks that will be added.
    """

    def __init__(self, count: int, bytes_held: float) -> None:
        self.count, self.bytes_held = count, bytes_held
        self.kept: dict[str, Array] = {}
        self.done = 0

    def add(self, variables: Mapping[str, Array]) -> None:
        """Store the variables of one more network, given as arrays by name."""
        if not self.done:
            left = self.bytes_held
            for name, x in sorted(variables.items(), key=lambda item: item[1].size):
                left -= 8.0 * self.count * x.size
                if left >= 0:
                    self.kept[name] = np.empty((self.count, *x.shape))
        for name, whole in self.kept.items():
            whole[self.done] = variables[name]
        self.done += 1

    def arrays(self) -> dict[str, Array]:
        """Return the variables that are kept, with the networks along the first axis.

        The arrays are complete only after ``count`` networks were added.
        """
        return self.kept


def with_controls(
    problem: Problem, theory: xr.Dataset, networks: xr.Dataset, start: StartMeans, kept: Mapping[str, Array]
) -> xr.Dataset:
    """Return the means over networks, with regressions on each initial network subtracted (control variates).

    ``networks`` holds plain means and standard errors, ``kept`` variables of each network by name, networks
    first, and ``start`` the exact means of initial networks.  Plain means remain for variables without
    control variates, and for all variables if ``kept`` has no outputs or ``theory`` no tangent kernel. For
    a square loss the loss of the mean error is added, if ``kept`` holds errors.  If there are regressions,
    the attribute ``start`` of the result compares initial networks with their exact means: the largest
    absolute z-score, how many numbers were compared, and the degrees of freedom.
    """
    means: dict[str, SampleMean] = {}
    errors, dof = kept.get("error"), networks.attrs["seeds"] - 1
    if OUTPUT in kept and "tangent_kernel" in theory:
        fluctuations = StartFluctuations.of(start, kept)
        controls = NetworkControls(fluctuations, LinearResponse(problem, theory))
        means = controls.means(kept)
        if errors is not None:
            errors, dof = controls.errors(errors)
        networks = networks.assign_attrs(start=fluctuations.scores)
    if errors is not None and squares_errors(problem, loss_of(problem.program)):
        means[MEAN_LOSS] = loss_of_mean_error(errors, theory["error"].to_numpy(), dof)
    variables: dict[str, Any] = {}
    for name, mean in means.items():
        dims = networks["train_loss" if name == MEAN_LOSS else name].dims
        variables[name] = xr.DataArray(mean.value, dims=dims, attrs={DOF: mean.dof})
        variables[f"{name}{STDERR}"] = xr.DataArray(mean.stderr, dims=dims)
        if name in networks:
            variables[name].attrs |= networks[name].attrs
            variables[f"{name}{STDERR}"].attrs |= networks[f"{name}{STDERR}"].attrs
    return networks.assign(variables)


def loss_of_mean_error(errors: Array, theory: Array, dof: int) -> SampleMean:
    """Return the unbiased loss of the mean error of networks at each time.

    The loss is ``sum_a Delta_a^2 / P`` with P samples and the mean Delta_a over networks.  Around the
    theory's errors ``m``, with ``d = Delta - m``, the square of the mean is ``m.m + 2 m.<d> + <d>.<d>``; the
    last part is estimated by pairs of different networks, ``d_i . d_j``, and the variance is that of the
    jackknife.

    ``errors`` has shape (networks, times, samples[ x channels]), with ``dof`` degrees of freedom; ``theory``
    (times, samples[, channels]).  Errors with controls (:func:`numerics.stats.controlled_values`) leave a
    bias of order 1/networks^2, because pairs of networks share coefficients.  Controls of this loss itself
    would leave a bias of order 1/networks, from pairs that share a network.

    >>> x = np.random.default_rng(0).standard_normal((400, 1, 1))
    >>> found = loss_of_mean_error(1 + x, np.ones((1, 1)), 399)
    >>> bool(abs(found.value - 1) < 4 * found.stderr)  # the mean of squares is two
    True
    """
    count, times, samples = len(errors), *theory.shape[:2]
    middle = theory.reshape(times, -1)
    gap = errors.reshape(count, times, -1) - middle
    total = gap.sum(axis=0)
    squares = (gap**2).sum(axis=2)
    of_pairs = ((total**2).sum(axis=1) - squares.sum(axis=0)) / (count * (count - 1))
    shares = 2 * ((gap * total).sum(axis=2) - squares) / (count - 1) - of_pairs
    each = ((middle**2).sum(axis=1) + 2 * (gap * middle).sum(axis=2) + shares) / samples
    return SampleMean(each.mean(axis=0), each.std(axis=0, ddof=1) / np.sqrt(count), dof)
