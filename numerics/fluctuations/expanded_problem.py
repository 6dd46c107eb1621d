"""Fluctuations of a problem with numbers for its sizes: the arrays that methods take.

Steps are those of the training rule; a flow is a rule in steps whose memory is that of an integrator on a
grid of times (:mod:`numerics.solver.grid`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Function, Pow, Sum, Symbol
from sympy.core.function import AppliedUndef

from derive.errors import NotApplicable
from derive.program import Program
from derive.theory.fluctuations import Fluctuations, fluctuations
from numerics.errors import SpecError
from numerics.experiment.numbers import layer_ratios
from numerics.experiment.problem import Problem, ReplacedTheory
from numerics.experiment.theory import centred, error_jumps, integrated, wide_layers, wide_modes
from numerics.fluctuations.linear import LinearTheory
from numerics.fluctuations.lowered import LoweredFluctuations, TheorySizes, has_kinks
from numerics.lowering.expressions import KnownArrays
from numerics.solver.grid import TimeGrid, lagrange, tables_of, trapezoid

Array = NDArray[np.float64]


def expanded(problem: Problem) -> Fluctuations:
    """Return the expansion in 1/N of the program of a problem, as expressions for discrete time steps.

    A flow is replaced by a rule in steps.

    Raises
    ------
    SpecError
        If the networks of the problem have no finite width or no number for the depth, if the theory was
        replaced by the user's equations, if the error jumps as a function of the output, or if no expansion
        is derived for the program, for example because an order parameter is not an average over units.
    """
    _require_widths(problem)
    if error_jumps(problem.program):
        reason = (
            "has an error signal that jumps with the output, and corrections at order 1/N need its derivative"
        )
        raise SpecError(*problem.key_and_value("training.objective"), reason, '"square" or "logistic"')
    try:
        return fluctuations(_program(problem))
    except NotApplicable as reason:
        key = problem.key_and_value("training.rule" if problem.seen else "data.kind")
        raise SpecError(*key, str(reason), "another program or rule") from None


def _program(problem: Problem) -> Program:
    """Return the program of a problem, prepared for the expansion in 1/N.

    Memory functions of training rules become tables of numbers where tables are needed, so that flows are
    rules in steps. Sums inside of functions of scalars are written out. If an experiment on given samples
    asks for centred outputs, the initial outputs are subtracted.
    """
    program, experiment = problem.program, problem.experiment
    if problem.seen and experiment is not None and experiment.spec.centered:
        program = centred(program)
    return integrated(_with_sums_written_out(program, problem))


def _with_sums_written_out(program: Program, problem: Problem) -> Program:
    """Return the program with some sums, as in a softmax, replaced by their terms.

    They are all sums in definitions of scalars, such as errors, that have a sum inside of a function or a
    power. The numbers of terms are taken from the values of the problem.
    """
    sizes = {x: int(v) for x, v in problem.values.items() if isinstance(x, Symbol) and x.is_integer}
    inside = [
        d
        for d in program.definitions
        if d.name in program.scalars and any(x.has(Sum) for x in d.rhs.atoms(Function, Pow))
    ]
    if not inside:
        return program
    written = {d: replace(d, rhs=d.rhs.xreplace(sizes).doit()) for d in inside}
    return replace(program, definitions=tuple(written.get(d, d) for d in program.definitions), descent=None)


def _require_widths(problem: Problem) -> None:
    """Raise SpecError if a problem has infinitely wide layers, a symbolic depth or a changed theory.

    A theory is changed if the user's equations replace the derived ones.
    """
    if problem.experiment is not None:
        layer_ratios(problem.experiment)
    for x in problem.reductions:
        if x in (wide_layers, wide_modes):
            reason = "is missing, so that layers are infinitely wide and have no corrections at order 1/N"
            raise SpecError(*problem.key_and_value("network.width"), reason, "a width")
        if isinstance(x, ReplacedTheory):
            reason = "was changed by hand, and fluctuations are derived from programs only"
            raise SpecError("theory", None, reason, "the program itself")
    if problem.depth is None:
        raise problem.open_depth()


def lowered(problem: Problem, grid: TimeGrid | None = None, times: int | None = None) -> LoweredFluctuations:
    """Return the expansion in 1/N of a problem as arrays, with numbered order parameters and fields.

    Times are the steps of the problem or, for a flow, the nodes of the integration grid ``grid``, which a
    flow needs. If ``times`` is given, only the first ``times`` of them are kept. Raises SpecError as
    :func:`expanded` does, and SpecError or Unserved for equations that these arrays do not represent.
    """
    theory = expanded(problem)
    values = {str(x): v for x, v in problem.values.items()}
    data: dict[str, Any] = dict(problem.data if grid is None else problem.arrays)
    if grid is not None:
        data |= tables_of(problem.program, problem.numbers, grid.nodes, grid.weights)
    data |= {name: _of_layer(numbers) for name, numbers in problem.layered.items()}
    known = KnownArrays(values, data, literals=dict(problem.literals))
    whole = len(problem.times if grid is None else grid.nodes)
    try:
        return LoweredFluctuations(theory, TheorySizes(values, whole if times is None else times), known)
    except NotApplicable as reason:
        key = problem.key_and_value("training.rule" if problem.seen else "data.kind")
        raise SpecError(*key, str(reason), "another program or rule") from None


def _of_layer(numbers: Any) -> Callable[[int], float]:
    """Return the function that maps the number of a layer to its value in ``numbers``, a mapping by layer."""
    return lambda layer: float(numbers[int(layer)])


@dataclass(frozen=True, eq=False)
class PathSizes:
    """Sizes that determine cost and memory of sampled paths for the fluctuations of a nonlinear theory.

    A site is a population at one layer, and all times are counted. Arrays have the shape ``(sites,)``. A hat
    is the response field conjugate to a field: the average of a field times a hat is the response of the
    field.

    Attributes
    ----------
    fields
        Number of random quantities: fields, products of weights with fields, and functions of these.
    hats
        Number of fields whose equations are perturbed in responses.
    products
        Number of single quantities, and of products of two, whose averages are order parameters.
    responses
        Number of responses that are order parameters.
    moves
        Number of different ways in which a change of order parameters changes the site: coefficients in its
        equations, and covariances of its sources.
    has_kinks
        Whether a function of fields has a kink or a jump.
    """

    fields: NDArray[np.intp]
    hats: NDArray[np.intp]
    products: NDArray[np.intp]
    responses: NDArray[np.intp]
    moves: NDArray[np.intp]
    has_kinks: bool


@dataclass(frozen=True, eq=False)
class FluctuationSizes:
    """Sizes of the arrays of the expansion in 1/N of a problem.

    A hat is the response field conjugate to a field: the average of a field times a hat is the response of
    the field.

    Attributes
    ----------
    times
        Number of times.
    parameters
        Number of order parameters; in a linear theory, of those with different averages.
    sites
        Number of fields and hats of a unit of each population at each layer, at all times; in a nonlinear
        theory ``paths.fields``.
    nonlinear
        One of the functions of fields that are not linear, as text; None if all are linear.
    paths
        Sizes of sampled paths of each site; None for a linear theory.
    """

    times: int
    parameters: int
    sites: NDArray[np.intp]
    nonlinear: str | None = None
    paths: PathSizes | None = None


FEW = 3
"""Number of times of the largest theory whose sizes are counted; sizes are polynomials of degree two."""


@dataclass(frozen=True, eq=False)
class SizeGrowth:
    """Sizes of the arrays of the expansion in 1/N of a problem as functions of the number of times.

    A hat is the response field conjugate to a field: the average of a field times a hat is the response of
    the field. A site is a population at one layer.

    Attributes
    ----------
    counts
        Row n - 1 holds the sizes of the theory of n times. Its first number is that of order parameters;
        those of fields and hats of each site follow. For nonlinear theories the arrays of :class:`PathSizes`
        follow instead, one after the other.
    nonlinear
        One of the functions of fields that are not linear, as text; None if all are linear.
    has_kinks
        Whether a function of fields has a kink or a jump.
    """

    counts: Array
    nonlinear: str | None = None
    has_kinks: bool = False

    def at(self, times: int) -> FluctuationSizes:
        """Return the sizes of the expansion for a number of times.

        They are the values of the polynomials through the sizes that were counted for up to FEW times.
        """
        known = np.arange(1.0, len(self.counts) + 1)
        counts = np.rint(lagrange(known, np.array([float(times)]))[0] @ self.counts).astype(int)
        if self.nonlinear is None:
            return FluctuationSizes(times, int(counts[0]), counts[1:])
        sites = counts[1:].reshape(5, -1)
        fields, hats, products, responses, moves = sites
        paths = PathSizes(fields, hats, products, responses, moves, self.has_kinks)
        return FluctuationSizes(times, int(counts[0]), sites[0], self.nonlinear, paths)


@lru_cache(maxsize=8)
def size_growth(problem: Problem) -> SizeGrowth:
    """Return the sizes of the expansion of a problem in 1/N as functions of the number of times.

    They are counted for theories of up to FEW times.
    """
    few, grid = FEW, None
    if problem.flow:
        nodes = np.arange(float(few))
        grid = TimeGrid(nodes, trapezoid(nodes), np.arange(few), 2)
    else:
        few = min(FEW, len(problem.times))
    theories = [lowered(problem, grid, n) for n in range(1, few + 1)]
    if features := theories[-1].features:
        e = next(iter(features.values())).expr
        named = e.replace(lambda x: isinstance(x, AppliedUndef), lambda x: Symbol(str(x.func)))
        sites = len(theories[-1].sites)
        counts = [[x.parameters.count, *_path_counts(x, sites).ravel()] for x in theories]
        return SizeGrowth(np.array(counts, float), str(named), has_kinks(theories[-1]))
    solved = map(LinearTheory, theories)
    return SizeGrowth(np.array([[len(x.kept), *(len(y.V) for y in x.sites)] for x in solved], float))


def _path_counts(theory: LoweredFluctuations, sites: int) -> NDArray[np.intp]:
    """Return the sizes of :class:`PathSizes` at each site of a nonlinear theory, ``(5, sites)``.

    The rows are the numbers of fields, hats, products, responses and moves, which determine the cost of
    sampled paths. A move is a way in which a change of order parameters changes the site. A site is a
    population at one layer.
    """
    none = [np.zeros((2, 0), int)]
    averaged = [(x, np.stack([x.first, x.second])) for x in theory.units]
    plain = np.concatenate([np.sort(x, axis=0) for y, x in averaged if not y.hats] + none, axis=1)
    responses = np.concatenate([x for y, x in averaged if y.hats] + none, axis=1)
    influences = [(x.hats, np.stack([x.first, x.second, x.target])) for x in theory.influences]
    single = np.concatenate([x[[0, 2]] for hats, x in influences if hats == 1] + none, axis=1)
    double = np.concatenate([x[:2] for hats, x in influences if hats == 2] + none, axis=1)
    of_site = (
        theory.site,
        theory.site[np.unique(responses[0])],
        # Each column of `plain` has the two fields of an average. An average of a single field has -1 in
        # place of the second field. Sorting has put -1 into row 0, so that row 1 is always a field.
        theory.site[np.unique(plain, axis=1)[1]],
        theory.site[np.unique(responses, axis=1)[0]],
        np.unique(np.stack([theory.site[single[0]], single[1]]), axis=1)[0],
        theory.site[np.unique(np.sort(double, axis=0), axis=1)[0]],
    )
    counts = [np.bincount(x, minlength=sites) for x in of_site]
    return np.array([*counts[:4], counts[4] + counts[5]])
