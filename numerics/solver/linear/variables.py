"""Variables of results on fixed samples and on random data, from a march of the linear theory.

The order parameters of the theory determine the variables: errors and kernels of fixed samples, correlations
and responses of random data. :class:`Variables` lists what the march must compute and converts its arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from sympy import Add, S, Symbol

from derive.calculus.symbols import alpha, mu, s, t
from derive.program.networks.random_data import sigma
from derive.reduce.data import NOISE
from derive.theory import Equation, Term
from numerics.experiment.problem import Problem
from numerics.lowering.expressions import layers_written_out, observable
from numerics.lowering.indices import axes_of
from numerics.lowering.table import FieldAtLayer, Request
from numerics.names import (
    BACKWARD_RESPONSE,
    C_FIELD,
    C_GRADIENT,
    C_LEARNT,
    ERROR,
    FEATURE_KERNEL,
    FIELD,
    FORWARD_RESPONSE,
    GRADIENT,
    GRADIENT_KERNEL,
    INPUT_KERNEL,
    LINEAR_KERNEL,
    OUTPUT,
)
from numerics.results.predictions import (
    random_losses,
    split,
)
from numerics.solver.grid import TimeGrid
from numerics.solver.linear.loss_parts import NAMES, LossParts
from numerics.solver.linear.march import March
from numerics.solver.linear.output_correlations import OutputCorrelations, densities, needed, opened
from numerics.solver.linear.reduction import Lowered, NamedArrays, arrays_on
from numerics.solver.method import KeptKernels

Array = NDArray[np.float64]

RANDOM = (C_LEARNT, "C_Delta", "C_h0", C_FIELD, C_GRADIENT, "R_hr", "R_gu", "R_Delta", "R_vu", "R_h0r0")
"""Order parameters in a result on random data, if the theory has them."""

LOSS: FieldAtLayer = (C_LEARNT, None)


class Variables:
    """Variables of a result: the order parameters that a march must compute, and their conversion.

    ``kernels`` states which two-time kernels of fixed samples the result holds.
    """

    def __init__(self, problem: Problem, lowered: Lowered, kernels: KeptKernels) -> None:
        self.problem, self.theory, self.table = problem, lowered.theory, lowered.table
        self.lowered, self.kernels = lowered, kernels
        self.fixed, self.spectrum, self.many = bool(problem.seen), problem.spectrum, problem.outputs > 1
        self.depth = problem.depth or 0
        self.layers = range(1, self.depth + 1)
        self.scale = self.theory.program.scale
        self.constants: Mapping[Symbol, float] = problem.numbers

    def wanted(self) -> Iterable[FieldAtLayer | Request]:
        """Yield the order parameters that the march must compute for the result.

        Each is given by its key (name, layer), or by its definition as a correlation or response, a
        ``Request``.
        """
        if not self.fixed:
            flow, last = self.problem.flow, self.last_response()
            yield from (n for n, q in self.table.tensors.items() if not flow or q.kind == "correlation")
            if last is not None and not flow:
                yield last
            return
        yield from map(self.gradient, self.layers)
        if self.kernels != "none":
            yield from needed(self.table, [(FIELD, k) for k in self.layers])
        if self.kernels == "full" and self.has_responses:
            if self.problem.flow:  # for a rule in steps, the response A is computed after the march
                yield from (self.response_A(k) for k in self.layers)
            yield from (self.response_B(k) for k in self.layers[:-1])

    @staticmethod
    def gradient(k: int) -> Request:
        """Return the definition of the gradient kernel G of layer ``k``, the correlation of gradients."""
        return Request("correlation", (GRADIENT, k), (GRADIENT, k), S.One)

    def response_A(self, k: int) -> Request:
        """Return the definition of the response A of layer ``k``.

        It is the response of the preactivation to the Gaussian source of the gradient of the same layer,
        divided by the scale of the outputs. The response of the last layer exists too, although no layer
        reads it.
        """
        return Request("response", (FIELD, k), self.source(GRADIENT, k), 1 / self.scale)

    def source(self, name: str, k: int) -> FieldAtLayer:
        """Return the key of the Gaussian source in the equation of the field ``name`` of layer ``k``."""
        return next(row.drives[0][0] for row in self.table.fields if row.field == (name, k))

    def response_B(self, k: int) -> Request:
        """Return the definition of the response B of layer ``k``.

        It is the response of the gradient of layer ``k + 1`` to the Gaussian source of the preactivation of
        the same layer ``k + 1``, divided by the scale of the outputs. If the fields of the theory are
        projected on the error, it is the response to the source of the projected field.
        """
        source = self.source("p" if self.projected else FIELD, k + 1)
        return Request("response", (GRADIENT, k + 1), source, 1 / self.scale)

    def last_response(self) -> Request | None:
        """Return the definition of the response R_hr of the last layer, for random data.

        The theory does not list it, because no layer reads it. The result is None if the theory has no such
        response at other layers.
        """
        known = next((q for (name, _), q in self.table.tensors.items() if name == "R_hr"), None)
        return known and Request(
            "response", (FIELD, self.depth), self.source(GRADIENT, self.depth), known.factor
        )

    @cached_property
    def has_responses(self) -> bool:
        """Whether responses can be computed: the theory lists some, or it has one layer.

        A theory of one layer lists none, because no equation reads the response of a single layer. Responses
        of a flow are computed as densities over past times. This is false for a flow in which a field reads
        a field at time zero, or at the same time with a coefficient that depends on times or indices.
        """
        if self.problem.flow:
            couplings = [
                c for r in self.table.fields for _, c in opened(self.table, r.field, lambda e: 1.0)[1]
            ]
            if any(c.kernel.reach in ("now", "start") for c in couplings):
                return False
        return self.depth == 1 or bool(self.theory.responses())

    @cached_property
    def projected(self) -> bool:
        """Whether fields of the theory are projected on the error (:mod:`derive.linear.projection`)."""
        return ("p", 1) in {r.field for r in self.table.fields}

    def values(self, result: March, positions: NDArray[np.intp], grid: TimeGrid | None) -> NamedArrays:
        """Return the variables of the result from a march, at the output times.

        ``positions`` are those of the output times among the steps. ``grid`` is the time grid of a flow, None
        for a rule in steps.
        """
        if self.fixed:
            return split(self.problem, self.of_samples(result, positions, grid))
        values = self.of_random_data(result, positions, grid)
        if self.kernels != "none" and self.spectrum is None:
            values |= self.parts(result, positions, grid)
        return values

    # -- fixed samples ---------------------------------------------------------------------------------

    def of_samples(self, result: March, positions: NDArray[np.intp], grid: TimeGrid | None) -> NamedArrays:
        """Return the variables of training samples and test points, by name, at the positions ``positions``.

        Traces are sums over training samples.
        """
        values = {OUTPUT: result.scalars[OUTPUT][positions], "error": result.scalars[ERROR][positions]}
        G = {k: _picked(result.tensor(self.gradient(k)), positions) for k in self.layers}
        values[GRADIENT_KERNEL] = np.stack([of_outputs(a) for a in G.values()])
        if self.kernels == "none":
            return values
        seen, data = self.problem.seen, arrays_on(self.problem, grid)
        after = OutputCorrelations(result, positions, seen)
        tensors: dict[tuple[str, tuple[int, ...]], Array] = {
            (GRADIENT_KERNEL, (k,)): (a.transpose(1, 3, 0, 2) if self.many else a[:, 0, :, 0])[..., None]
            for k, a in G.items()
        }
        numbers = {str(k): v for k, v in self.constants.items()}
        if self.kernels == "trace":
            traces = [after.trace((FIELD, k)) for k in self.layers]
            values["Phi_trace"] = np.stack(traces)
            tensors |= {
                (LINEAR_KERNEL, (k,)): a[None, None, ..., None]
                for k, a in zip(self.layers, traces, strict=True)
            }
            single = {INPUT_KERNEL: np.trace(data[INPUT_KERNEL][:seen, :seen]).reshape(1, 1)}
            for e in self.theory.observables:
                # The trace is a sum over samples, in which a term without a sample index counts once for each
                # sample.
                terms = Add.make_args(layers_written_out(e.rhs).expand())
                terms = [x if x.has(mu, alpha) else seen * x for x in terms]
                whole = replace(e, terms=(Term.local(Add(*terms), "definition"),))
                trace = observable(whole, tensors, numbers, single, self.axes(e))[..., 0]
                values["tangent_kernel_trace"] = (
                    np.einsum("tsacbc->ts", trace) if self.many else trace[:, :, 0, 0]
                )
            return values
        samples = result.sizes[FIELD, 1]
        kernels = np.empty((self.depth, len(positions), samples, len(positions), samples))
        full = {
            k: after.outputs((FIELD, k), (FIELD, k), into)
            for k, into in zip(self.layers, kernels, strict=True)
        }
        values[FEATURE_KERNEL] = kernels.transpose(0, 1, 3, 2, 4)
        tensors |= {(LINEAR_KERNEL, (k,)): a.transpose(1, 3, 0, 2)[..., None] for k, a in full.items()}
        for e in self.theory.observables:
            values["tangent_kernel"] = observable(e, tensors, numbers, data, self.axes(e))[..., 0]
        return values | (self.responses(after, grid) if self.has_responses else {})

    @staticmethod
    def axes(e: Equation) -> tuple[Symbol, ...]:
        """Return the axes of a scalar observable ``e`` of two times: t, s, and then its indices.

        An observable is a quantity that no other equation uses, such as the tangent kernel.
        """
        return t, s, *axes_of(e.lhs)

    def responses(self, after: OutputCorrelations, grid: TimeGrid | None) -> NamedArrays:
        """Return the responses A^l and B^l of all layers, by name; those of a flow are densities in s.

        ``after`` computes correlations and responses from a finished march; ``grid`` is the time grid of a
        flow, None for a rule in steps. B of the last layer is zero.
        """
        result, at, smooth = after.result, after.at, None
        error = result.scalars[ERROR][at]
        if grid is not None:
            once = arrays_on(self.problem, grid, np.ones_like(grid.weights))
            smooth = densities(result, grid.nodes, once)

        def read(q: Request) -> Array:
            if smooth is None:
                return after.full_response(q)[:, :, at]
            return result.number(q.factor) * _picked(smooth[q.first, q.second], at)

        A = [read(self.response_A(k)).transpose(0, 2, 1, 3) for k in self.layers]
        last = np.zeros_like(A[0].swapaxes(2, 3))
        channels = error if self.many else error[..., None]
        if self.projected:
            B = [np.einsum("tcsd,sad->tsca", read(self.response_B(k)), channels) for k in self.layers[:-1]]
        else:
            B = [read(self.response_B(k)).transpose(0, 2, 1, 3) for k in self.layers[:-1]]
        return {
            FORWARD_RESPONSE: np.stack([a if self.many else a[..., 0] for a in A]),
            BACKWARD_RESPONSE: np.stack([b if self.many else b[:, :, 0] for b in [*B, last]]),
        }

    # -- random data -----------------------------------------------------------------------------------

    def of_random_data(
        self, result: March, positions: NDArray[np.intp], grid: TimeGrid | None
    ) -> NamedArrays:
        """Return losses and correlations of random data by name, and for a rule in steps the responses.

        Correlations and responses are those order parameters of RANDOM that the theory has.
        """
        values: NamedArrays = {}
        for name in RANDOM:
            nodes: dict[FieldAtLayer, FieldAtLayer | Request] = {
                n: n for n in self.table.tensors if n[0] == name
            }
            if grid is not None and name.startswith("R_"):
                continue
            if name == "R_hr" and (last := self.last_response()) is not None:
                nodes[name, self.depth] = last
            if nodes:
                arrays = {k: two_times(result, q, positions) for (_, k), q in nodes.items()}
                values[name] = by_layer(arrays, self.layers)
        return self.losses(values) | values

    def losses(self, values: NamedArrays) -> NamedArrays:
        """Return the test loss and the training loss of random data, from the correlations ``values``."""
        return random_losses(self.problem.theory, values, self.constants, self.problem.outputs)

    def parts(self, result: March, positions: NDArray[np.intp], grid: TimeGrid | None) -> NamedArrays:
        """Return the parts of the test loss by those causes that occur: bias, width, data, label noise.

        Label noise includes its own variance, which no network can fit.
        """
        outputs, noise = self.problem.outputs, self.constants.get(sigma, 0.0)
        forms = LossParts(
            self.lowered.decomposition, result, arrays_on(self.problem, grid), self.constants, outputs
        )
        losses: NamedArrays = {}
        for part in forms.split.parts:
            losses[part.label] = losses.get(part.label, 0.0) + forms.diagonal(part.expr)
        if noise:
            losses[NOISE] = losses.get(NOISE, np.zeros(result.steps)) + outputs * noise**2
        return {NAMES[k]: x[positions] for k, x in losses.items()}


def two_times(result: March, n: FieldAtLayer | Request, positions: NDArray[np.intp] | None = None) -> Array:
    """Return an order parameter as an array over times t and s, and then over outputs if there are several.

    ``positions`` are the positions of the times, by default all.
    """
    return of_outputs(result.tensor(n) if positions is None else _picked(result.tensor(n), positions))


def of_outputs(a: Array) -> Array:
    """Return an array with the axes (t, output, s, output) in the order (t, s, output, output).

    Axes before these stay in place. For a single output the result has no axes of outputs.
    """
    return a[..., 0, :, 0] if a.shape[-3] == a.shape[-1] == 1 else a.swapaxes(-3, -2)


def by_layer(arrays: Mapping[int | None, Array], layers: Iterable[int], axis: int = 0) -> Array:
    """Return arrays of layers stacked along a new axis, with zeros for layers that are missing.

    ``arrays`` holds the arrays by layer, ``axis`` is the position of the axis of ``layers`` in the result. An
    array without a layer, the only one with the key None, is returned as it is.
    """
    if list(arrays) == [None]:
        return arrays[None]
    zeros = np.zeros_like(next(iter(arrays.values())))
    return np.stack([arrays.get(k, zeros) for k in layers], axis=axis)


def _picked(a: Array, positions: NDArray[np.intp]) -> Array:
    """Return the part of a two-time array at some times.

    ``a`` has the axes (t, member, s, member); ``positions`` are the times to keep on both time axes.
    """
    return a if len(positions) == len(a) else a[positions][:, :, positions]
