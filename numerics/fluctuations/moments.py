"""Values, covariances and shifts of every order parameter of a problem in steps, and of functions of them.

>>> from derive.program import mlp
>>> given = {"numbers": {"eta": 0.08, "gamma0": 1.0}, "arrays": {"K_x": [[1.0]], "y": [1.0]}}
>>> found = moments(mlp(2), times=range(6), **given)
>>> found.variance("f").values[-1, 0].round(4), found.shift("f").values[-1, 0].round(4)
(np.float64(0.4056), np.float64(-1.056))
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sympy import Dummy, Expr, Function, Symbol

from derive.calculus.symbols import s, t
from derive.program import Program
from derive.theory import Theory
from derive.theory.fluctuations import Addend, FluctuatingParameter
from numerics.errors import SpecError, require_memory
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.fluctuations.dense import DenseFluctuations
from numerics.fluctuations.expanded_problem import lowered, size_growth
from numerics.fluctuations.lowered import IndexGrid, key_of
from numerics.fluctuations.methods import DenseMethod
from numerics.fluctuations.observables import ExpandedObservable, ObservableBuilder
from numerics.fluctuations.variables import DIMENSIONS
from numerics.names import ERROR
from numerics.solver.by_role import KERNEL_LABELS
from numerics.threads import one_thread

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]

CHUNK = 2**22
"""Number of entries of a product of gradients and covariances in memory."""


@dataclass(frozen=True)
class ObservableMoments:
    """Moments of one observable at order 1/N.

    Attributes
    ----------
    value : float
        Its limit at infinite width.
    variance : float
        N times its variance over networks.
    shift : float
        N times (mean minus limit).
    """

    value: float
    variance: float
    shift: float


@one_thread
def moments(
    source: Problem | Experiment | Program | Theory | str | Path, **given: Any
) -> OrderParameterMoments:
    """Return values, covariances and shifts of all order parameters of a linear theory.

    Parameters
    ----------
    source : Problem, Experiment, Program, Theory, str or Path
        A problem, an experiment, its file, or a program (or its theory). The training rule must be one in
        discrete steps.
    **given
        ``numbers``, ``arrays``, ``times`` and ``solver``, for a program or theory only.

    Returns
    -------
    OrderParameterMoments
        Order parameters by name.

    Raises
    ------
    SpecError
        If the theory is not linear, is a flow, or has too many order parameters for dense matrices, for
        networks without a finite width, and if no expansion is derived for the program.
    Diverged
        If an order parameter at infinite width is not finite.
    """
    problem = Problem.of(source, **given)
    if problem.flow:
        reason = (
            "is a flow, whose corrections are extrapolated from several time grids; matrices have one grid"
        )
        raise SpecError(*problem.key_and_value("training.rule"), reason, "a rule in steps, or finite_width")
    if problem.experiment is not None:
        problem.experiment.require_moving_features("the expansion in 1/N at fixed gamma0")
    no = DenseMethod().refusal(problem, size_growth(problem).at(len(problem.times)))
    if no is not None:
        raise SpecError(no.key, no.value, no.reason, no.accepted)
    return OrderParameterMoments(problem, DenseFluctuations(lowered(problem)))


class OrderParameterMoments:
    """Values, covariances and shifts of order parameters.

    Names are those of results (``f``, ``error``, ``Phi``, ``G``, ``A``, ``B``, ``tangent_kernel``) or of the
    theory.  N counts the units of a population of ratio one.

    Parameters
    ----------
    problem : Problem
        The problem.
    fluctuations : DenseFluctuations
        Its solution at order 1/N by dense matrices over all order parameters.
    """

    def __init__(self, problem: Problem, fluctuations: DenseFluctuations) -> None:
        self.problem, self.fluctuations = problem, fluctuations
        self.builder = ObservableBuilder(fluctuations.lowered, fluctuations.values)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all order parameters in results, observables such as the tangent kernel included."""
        return tuple(dict.fromkeys(_label(q) for q in self.fluctuations.lowered.theory.parameters))

    def value(self, name: str) -> xr.DataArray:
        """Return an order parameter at infinite width.

        Parameters
        ----------
        name : str
            Its name in results or in the theory.

        Returns
        -------
        xarray.DataArray
            Values at all indices and times.

        Raises
        ------
        SpecError
            If the theory has no order parameter of this name.
        """
        axes, expanded = self._expanded(name)
        return self._array(name, axes, expanded.values)

    def variance(self, name: str) -> xr.DataArray:
        """Return N times the variance of an order parameter.

        Parameters
        ----------
        name : str
            Its name in results or in the theory.

        Returns
        -------
        xarray.DataArray
            Variances at all indices and times.

        Raises
        ------
        SpecError
            If the theory has no order parameter of this name.
        """
        axes, expanded = self._expanded(name)
        gradient = self._gradient(expanded)
        rows = max(1, CHUNK // gradient.shape[1])
        parts = [gradient[k : k + rows] for k in range(0, gradient.shape[0], rows)]
        variance = [np.asarray(x.multiply(x @ self._covariance).sum(axis=1)).ravel() for x in parts]
        return self._array(f"N times the variance of {name}", axes, np.concatenate(variance))

    def shift(self, name: str) -> xr.DataArray:
        """Return N times (mean minus value at infinite width) of an order parameter.

        Parameters
        ----------
        name : str
            Its name in results or in the theory.

        Returns
        -------
        xarray.DataArray
            Shifts at all indices and times.

        Raises
        ------
        SpecError
            If the theory has no order parameter of this name.
        """
        axes, expanded = self._expanded(name)
        (shift,) = self.fluctuations.shifts_of([expanded])
        return self._array(f"N times the shift of {name}", axes, shift)

    def covariance(self, first: str, second: str) -> xr.DataArray:
        """Return N times the covariance of two order parameters.

        Parameters
        ----------
        first, second : str
            Their names in results or in the theory.

        Returns
        -------
        xarray.DataArray
            Covariances; the dimensions of the second order parameter begin with ``other_``.

        Raises
        ------
        SpecError
            If the theory has no order parameter of a name, or if the result does not fit into memory.
        """
        (axes, one), (others, two) = self._expanded(first), self._expanded(second)
        size = 8.0 * len(one.values) * len(two.values)
        require_memory(
            size, ("covariance", f"{first}, {second}"), "for all pairs", "smaller order parameters"
        )
        covariance = self._gradient(one) @ self._covariance @ self._gradient(two).T
        renamed = [replace(x, dim=f"other_{x.dim}") for x in others]
        return self._array(f"N times the covariance of {first} and {second}", [*axes, *renamed], covariance)

    def observable(self, e: Expr) -> ObservableMoments:
        """Return the moments of a function of order parameters, such as ``f(1, 5)**2``.

        Parameters
        ----------
        e : Expr
            The function; order parameters have the names of the theory, and integers for all indices and
            times. Responses that are not causal are zero.

        Returns
        -------
        ObservableMoments
            Limit, variance and shift.

        Raises
        ------
        SpecError
            If an order parameter other than a response does not exist at these indices.
        ValueError
            If the function contains a symbol or a function that has no value in the theory.
        """
        expanded = self.builder.expression(e)
        gradient = self._gradient(expanded)
        variance = float((gradient @ self._covariance @ gradient.T)[0, 0])
        return ObservableMoments(
            float(expanded.values[0]), variance, float(self.fluctuations.shifts_of([expanded])[0][0])
        )

    # -- parts -----------------------------------------------------------------------------------------------

    @property
    def _covariance(self) -> Array:
        """N times the covariance of order parameters, ``(kept, kept)``.

        Order parameters with equal averages, such as H(1, 2) and H(2, 1), are counted once.
        """
        return self.fluctuations.kept_covariance

    def _gradient(self, expanded: ExpandedObservable) -> Any:
        """Return the derivatives of an observable at all points by order parameters, a sparse matrix.

        The shape is ``(points, kept)``. The columns are order parameters, where those with equal averages,
        such as H(1, 2) and H(2, 1), are counted once.
        """
        from scipy.sparse import csr_array  # slow to import, and seldom needed

        places = expanded.rows, self.fluctuations.index[expanded.columns]
        return csr_array((expanded.slopes, places), shape=(len(expanded.values), len(self.fluctuations.kept)))

    def _expanded(self, name: str) -> tuple[list[ParameterAxis], ExpandedObservable]:
        """Return the axes of the order parameter ``name``, and its derivatives at all points along them.

        The second result has its values, and the first and second derivatives by order parameters. A tangent
        kernel is differentiated as a function of other order parameters. Raises SpecError for an unknown
        name.
        """
        candidates = [q for q in self.fluctuations.lowered.theory.parameters if name in (q.name, _label(q))]
        if not candidates:
            raise SpecError("name", name, "is not an order parameter of the theory", ", ".join(self.names))
        q = next((x for x in candidates if all(a.free_symbols for a in x.symbol.args)), candidates[0])
        if q.kind == "observable":
            axes, terms = self._axes_of_observable(q), list(q.rest)
        else:
            axes = self._axes(q)
            terms = [Addend(Function(q.name)(*[x.index for x in axes]))]
        axes.sort(key=lambda x: FIRST.index(x.dim) if x.dim in FIRST else len(FIRST))
        boxed = np.meshgrid(*[x.values for x in axes], indexing="ij")
        grid: IndexGrid = {x.index: v.ravel() for x, v in zip(axes, boxed, strict=True)}
        return axes, self.builder.on_grid(terms, grid)

    def _axes(self, q: FluctuatingParameter) -> list[ParameterAxis]:
        """Return the axes of an order parameter that is no observable: one for each index and each time.

        Values of an index are all from the smallest to the largest at which the order parameter exists; those
        of a time are all times of the theory.
        """
        box = self.fluctuations.lowered.parameters.families[key_of(q.symbol)]
        axes = []
        for a, low, high in zip(q.symbol.args, box.lows.tolist(), box.highs.tolist(), strict=True):
            (index,) = a.free_symbols
            axis_index, values = Dummy(index.name, integer=True), np.arange(low, high + 1)
            if index in (t, s):
                axis_index, values = index, np.arange(self.fluctuations.lowered.sizes.times)
            axes.append(ParameterAxis(_dimension(index), axis_index, values))
        return axes

    def _axes_of_observable(self, q: FluctuatingParameter) -> list[ParameterAxis]:
        """Return one axis for each index and time of an observable, such as a tangent kernel."""
        sizes = self.fluctuations.lowered.sizes
        ends = {r.index: [int(sizes.numbers(x, {}, 1)[0]) for x in (r.lower, r.upper)] for r in q.ranges}
        ends |= {t: [0, sizes.times - 1], s: [0, sizes.times - 1]}
        return [ParameterAxis(_dimension(a), a, np.arange(ends[a][0], ends[a][1] + 1)) for a in q.symbol.args]

    def _array(self, name: str, axes: list[ParameterAxis], values: Any) -> xr.DataArray:
        """Return ``values`` as an xarray with the name ``name`` and one dimension for each of ``axes``.

        The last axis varies fastest in ``values``. Coordinates are the values of the indices.
        """
        import xarray as xr

        shape, coords = [len(x.values) for x in axes], {x.dim: x.values for x in axes}
        return xr.DataArray(np.asarray(values).reshape(shape), coords, [x.dim for x in axes], name)


@dataclass(frozen=True, eq=False)
class ParameterAxis:
    """An axis of the array of an order parameter: name of the dimension, symbol and values of the index."""

    dim: str
    index: Any
    values: NDArray[np.intp]


FIRST = ("layer", "time", "time_")
"""Dimensions that come first in arrays of order parameters."""


def _dimension(index: Symbol) -> str:
    """Return the dimension of results along which an index runs, such as "sample" for mu.

    The second time s gives ``time_``. An index without a dimension of its own in results gives its own name.
    """
    return "time_" if index == s else DIMENSIONS.get(index.name, index.name)


def _label(q: FluctuatingParameter) -> str:
    """Return the name that an order parameter has in results, such as "error" for Delta.

    An order parameter without such a name keeps the name in the theory.
    """
    return {**KERNEL_LABELS, ERROR: "error"}.get(q.name, q.name)
