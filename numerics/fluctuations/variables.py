"""Variables of results with corrections: losses, outputs, errors and kernels at equal times.

From a problem and its order parameters the module makes expressions on grids, with the names and dimensions
of results (:mod:`numerics.results`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Dummy, Expr, Function, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import IndexRange, alpha, ell, mu, primed, s, t
from derive.errors import NotApplicable
from derive.program.networks.options import SAMPLE_WEIGHT
from derive.program.networks.random_data import sigma
from derive.theory.fluctuations import Addend, FluctuatingParameter
from numerics.experiment.naming import CHANNEL
from numerics.experiment.problem import Problem
from numerics.fluctuations.lowered import IndexGrid, LoweredFluctuations, key_of
from numerics.fluctuations.observables import ExpandedObservable, ObservableBuilder, observable_terms
from numerics.names import ERROR, FEATURE_KERNEL, GRADIENT_KERNEL, LINEAR_KERNEL, OUTPUT
from numerics.results import TWO_TIMES, VARIABLES
from numerics.results.losses import SampleLoss, loss_of
from numerics.results.program_names import authored_variables, numbers_by_role
from numerics.solver.method import KeptKernels

Array = NDArray[np.float64]

TANGENT_KERNEL = "K"
"""Name of the tangent kernel in a theory."""

DIMENSIONS = {
    ell.name: "layer",
    mu.name: "sample",
    alpha.name: "sample_",
    CHANNEL.name: "channel",
    primed(CHANNEL).name: "channel_",
    t.name: "time",
    s.name: "time",
}
"""The dimensions of results by the names of indices, at equal times."""


@dataclass(frozen=True, eq=False)
class ObservableVariable:
    """A variable of results, such as a loss or kernel at equal times, as a function of order parameters.

    Attributes
    ----------
    dims, shape
        Its dimensions, and the number of entries along each.
    times
        For each entry of the flattened array, the position of its time among the output times,
        ``(entries,)``.
    observable
        The values of all entries, flattened, with first and second derivatives by order parameters.
    """

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    times: NDArray[np.intp]
    observable: ExpandedObservable


class VariableBuilder:
    """Expresses the variables of results of a problem as functions of order parameters, with derivatives.

    Parameters
    ----------
    problem
        The problem.
    lowered, values
        Its expansion in 1/N as arrays, and the order parameters at infinite width.
    at
        The positions of the output times among the times of the expansion.
    keep
        Which kernels are given: all and their traces ("full"), traces in place of kernels of pairs of samples
        ("trace"), or no kernels ("none"). Not used for random data.
    """

    def __init__(
        self,
        problem: Problem,
        lowered: LoweredFluctuations,
        values: Array,
        at: Sequence[int],
        keep: KeptKernels,
    ) -> None:
        self.problem, self.lowered, self.at, self.keep = problem, lowered, tuple(at), keep
        self.builder = ObservableBuilder(lowered, values)
        self.theory = {q.name: q for q in lowered.theory.parameters}

    def variables(self) -> dict[str, ObservableVariable]:
        """Return all variables of results, by name, that are functions of order parameters.

        They are outputs, errors, losses and kernels. For random data they are correlations at equal times and
        losses, and for quantities without a role in the program their order parameters.
        """
        variables: dict[str, ObservableVariable] = {}
        if OUTPUT in numbers_by_role(self.problem):
            variables |= dict(self._outputs())
        if self.problem.has_roles and self.problem.seen:
            variables |= dict(self._kernels()) if self.keep != "none" else {}
        elif self.problem.has_roles:
            variables |= dict(self._random_data())
        return variables | dict(self._authored())

    # -- given samples ---------------------------------------------------------------------------------------

    def _outputs(self) -> Iterator[tuple[str, ObservableVariable]]:
        """Yield pairs (name, variable) of outputs, errors and losses of training samples and test points."""
        seen, count = self.problem.seen, self.problem.sample_count
        training = IndexRange(mu, 1, seen)
        f, error = self.theory[OUTPUT], self.theory[ERROR]
        yield OUTPUT, self._variable(OUTPUT, f, training)
        yield "error", self._variable("error", error, training)
        loss = loss_of(self.problem.program)
        if loss is not None:
            yield "train_loss", self._loss(loss, loss.expression, training)
            if loss.difference is not None and not loss.is_square:
                yield "mean_square_error", self._loss(loss, loss.difference**2, training)
        held = self.problem.held_out
        if held is None or count == seen:
            return
        test = IndexRange(mu, seen + 1, count)
        yield "test_f", self._variable("test_f", f, test)
        if loss is None or held.targets is None or not loss.of_each_sample:
            return
        unit = loss.expression.replace(Function(SAMPLE_WEIGHT), lambda *_: sympify(1))
        yield "test_loss", self._loss(loss, unit, test)
        if loss.difference is not None:
            terms = [Addend(loss.difference)]
            yield "test_error", self._variable("test_error", f, test, terms)

    def _loss(self, loss: SampleLoss, e: Expr, samples: IndexRange) -> ObservableVariable:
        """Return the loss: the mean over ``samples`` of the expression ``e``, summed over the outputs.

        ``loss`` is the loss of the program, and ``e`` the expression for one sample, or for one output of one
        sample. The mean is not taken if neither the outputs nor ``e`` have an index of samples.
        """
        sizes = {x: int(v) for x, v in self.problem.values.items() if isinstance(x, Symbol) and x.is_integer}
        ranges = [r for d in self.problem.program.definitions if d.name == OUTPUT for r in d.ranges]
        written = sympify(e.xreplace(sizes)).doit()
        over = [r for r in ranges if r.index != mu and written.has(r.index)]
        count = sympify(samples.upper) - samples.lower + 1
        if mu in {x for a in loss.output.args for x in a.free_symbols} or written.has(mu):
            over, written = [samples, *over], written / count
        return self._on_axes(("time",), [Addend(written, tuple(over))], [t])

    def _kernels(self) -> Iterator[tuple[str, ObservableVariable]]:
        """Yield pairs (name, variable) of the kernels of layers, the tangent kernel, and their traces.

        Kernels with indices that are not dimensions of results are left out. So are kernels with sums over
        times, and kernels without an index of layers, apart from the tangent kernel. If ``keep`` is "trace",
        a kernel of samples is given as its trace only.
        """
        names = {LINEAR_KERNEL: FEATURE_KERNEL} if FEATURE_KERNEL not in self.theory else {}
        names |= {FEATURE_KERNEL: FEATURE_KERNEL, GRADIENT_KERNEL: GRADIENT_KERNEL}
        names |= {TANGENT_KERNEL: "tangent_kernel"}
        for name, label in names.items():
            q = self.theory.get(name)
            if q is None or (name != TANGENT_KERNEL and ell not in q.symbol.args):
                continue
            # A quantity with an index that is not a dimension of results, such as positions of outputs, is
            # left out.
            if not {str(x) for x in q.symbol.args} <= {*DIMENSIONS}:
                continue
            terms = [Addend(q.symbol)] if q.kind != "observable" else list(q.rest)
            if any(x.reach for x in terms):
                continue
            if q.symbol.has(mu):
                yield f"{label}_trace", self._trace(label, q, terms)
            if self.keep != "trace" or not q.symbol.has(mu):
                yield label, self._variable(label, q, IndexRange(mu, 1, self.problem.seen), terms)

    def _trace(self, label: str, q: FluctuatingParameter, terms: list[Addend]) -> ObservableVariable:
        """Return the trace of a kernel over training samples and outputs, as a variable of results.

        The trace is a sum at equal times, not divided by the number of samples. ``label`` is the name of the
        kernel in results, ``q`` its order parameter, and ``terms`` are the terms whose sum is the kernel.
        """
        named = {str(x): x for x in q.symbol.args}
        pairs = ((alpha.name, mu.name), (primed(CHANNEL).name, CHANNEL.name))
        equal = {named[one]: named[other] for one, other in pairs if one in named}
        ranges = [r for r in q.ranges if r.index not in (*equal, ell)]
        ranges = [r if r.index != mu else IndexRange(mu, 1, self.problem.seen) for r in ranges]
        terms = [replace(x, expr=x.expr.xreplace(equal), over=(*ranges, *x.over)) for x in terms]
        dims = tuple(x for x in VARIABLES[f"{label}_trace"].dims if x != "time_")
        return self._on_axes(dims, terms, [x for x in q.symbol.args if x in (ell, t, s)])

    # -- random data -----------------------------------------------------------------------------------------

    def _random_data(self) -> Iterator[tuple[str, ObservableVariable]]:
        """Yield pairs (name, variable) of correlations at equal times, and of losses, for random data."""
        for name, q in self.theory.items():
            if q.kind == "correlation" and name in VARIABLES and name.startswith("C_"):
                yield name, self._variable(name, q, IndexRange(mu, 1, 1))
        try:
            losses = self.problem.theory.losses(sigma)
        except NotApplicable:
            return
        measured = f"C_{ERROR}"
        for name, e in losses.items():
            # If the theory has the order parameter `measured`, the correlation of the errors of training
            # samples, the training loss is measured on these samples and not on the population.
            if name == "train_loss" and measured in self.theory:
                e = self.theory[measured].symbol.xreplace({s: t})
            yield name, self._on_axes(("time",), self._summed(e), [t])

    def _summed(self, e: Expr) -> list[Addend]:
        """Return the terms of a loss summed over all outputs; ``e`` is the expression for one output.

        A term with a correlation that has indices of outputs is summed over these with both indices equal. A
        term with another correlation is unchanged, and a term without a correlation is multiplied by the
        number of outputs.
        """
        values, terms = self.problem.output_values, []
        for x in observable_terms(e):
            (kernel,) = x.expr.atoms(AppliedUndef) or (None,)
            channels = self._channels(kernel)
            if kernel is None or not channels:
                terms.append(x if kernel is not None else replace(x, expr=len(values) * x.expr))
                continue
            equal = {s: t, **{c: channels[0] for c in channels}}
            whole = x.expr.xreplace({kernel: self.theory[str(kernel.func)].symbol.xreplace(equal)})
            outputs = IndexRange(channels[0], values[0], values[-1])
            terms.append(replace(x, expr=whole, over=(*x.over, outputs)))
        return terms

    def _channels(self, kernel: AppliedUndef | None) -> list[Any]:
        """Return those indices of a correlation that count outputs of the network.

        The list is empty if there are none, if ``kernel`` is None, or if it is not an order parameter.
        """
        parameter = None if kernel is None else self.theory.get(str(kernel.func))
        if parameter is None:
            return []
        return [x for x in parameter.symbol.args if DIMENSIONS[str(x)].startswith("channel")]

    # -- programs without roles ------------------------------------------------------------------------------

    def _authored(self) -> Iterator[tuple[str, ObservableVariable]]:
        """Yield pairs (name, variable) of order parameters that have no role in the program.

        Names are those of results.
        """
        for label, x in authored_variables(self.problem).items():
            if x.name not in self.theory:
                continue
            indices = [Symbol(f"index_{k}", integer=True) for k in range(len(x.values))]
            times = (t,) if x.pair is None else (t, t)
            symbol = Function(x.name)(*indices, *times)
            if key_of(symbol) not in self.lowered.names:
                continue
            dims = [d for d in x.dims if d not in TWO_TIMES]
            index_axes = dict(zip(dims, zip(indices, x.values, strict=True), strict=True))
            axes = [("time", t, self.at), *((d, i, v) for d, (i, v) in index_axes.items())]
            order = [d for d in x.dims if d != "time_"]
            axes.sort(key=lambda axis: order.index(axis[0]))
            yield label, self._expanded(axes, [Addend(symbol)])

    # -- grids -----------------------------------------------------------------------------------------------

    def _variable(
        self, label: str, q: FluctuatingParameter, samples: IndexRange, terms: Iterable[Addend] | None = None
    ) -> ObservableVariable:
        """Return the order parameter ``q`` at all output times as the variable ``label`` of results.

        ``samples`` is the range of its index of samples. ``terms``, if given, are terms in the indices of
        ``q``; the variable is then their sum instead of ``q``.
        """
        parameter_dims = {DIMENSIONS[str(x)] for x in q.symbol.args}
        known = VARIABLES[label]
        every = (*known.nonlinear, known.dims, known.channels)
        choices = [tuple(x for x in dims if x != "time_") for dims in every]
        fitting = [x for x in choices if parameter_dims <= {d.removeprefix("test_") for d in x}]
        dims = min(fitting, key=len)
        return self._on_axes(dims, [Addend(q.symbol)] if terms is None else terms, q.symbol.args, samples)

    def _on_axes(
        self,
        dims: tuple[str, ...],
        terms: Iterable[Addend],
        indices: Sequence[Any],
        samples: IndexRange | None = None,
    ) -> ObservableVariable:
        """Return a sum of terms as a variable with the dimensions ``dims``.

        It comes with first and second derivatives by order parameters. ``indices`` are the symbols in the
        terms, each of which runs along one dimension. A dimension without such a symbol has length one.
        ``samples`` is the range of the index of samples.
        """
        named: dict[str, Any] = {DIMENSIONS[str(x)]: x for x in indices}
        axes = []
        for dim in dims:
            base = dim.replace("test_sample", "sample")
            index = named.get(base, Dummy(dim, integer=True))
            axes.append((dim, index, self._values(base, samples) if base in named else (1,)))
        return self._expanded(axes, terms)

    def _values(self, dim: str, samples: IndexRange | None) -> Sequence[int]:
        """Return the values of the index that runs along the dimension ``dim``.

        They are output times, layers, outputs of the network, or the samples in the range ``samples``.
        """
        if dim == "time":
            return self.at
        if dim == "layer":
            return range(1, int(self.problem.depth or 1) + 1)
        if dim.startswith("channel"):
            return self.problem.output_values
        assert samples is not None
        return range(int(samples.lower), int(samples.upper) + 1)

    def _expanded(
        self, axes: Sequence[tuple[str, Any, Sequence[int]]], terms: Iterable[Addend]
    ) -> ObservableVariable:
        """Return a sum of terms on the grid of all values of its indices, with equal times t = s.

        Each axis is a triple (name of the dimension, symbol of the index, values of the index); the dimension
        of one axis is "time". The result has first and second derivatives by order parameters.
        """
        shape = tuple(len(values) for _, _, values in axes)
        boxed = np.meshgrid(*[np.asarray(values, int) for _, _, values in axes], indexing="ij")
        grid: IndexGrid = {x: v.ravel() for (_, x, _), v in zip(axes, boxed, strict=True)}
        when = next(x for dim, x, _ in axes if dim == "time")
        times = grid.pop(when)
        grid[t] = times
        now = [replace(x, expr=x.expr.xreplace({s: t})) for x in terms]
        place = {time: k for k, time in enumerate(self.at)}
        return ObservableVariable(
            tuple(dim for dim, _, _ in axes),
            shape,
            np.array([place[x] for x in times.tolist()], int),
            self.builder.on_grid(now, grid),
        )
