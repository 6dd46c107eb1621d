"""Methods that compute fluctuations: their conditions, cost and results.

A method takes the fluctuations of a problem with numbers for its sizes and gives covariances of observables,
and shifts if it can.  Results (:mod:`numerics.fluctuations.finite_width`) use only this interface.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from numerics.errors import SpecError
from numerics.experiment.problem import Problem
from numerics.experiment.schema import Solver
from numerics.fluctuations.adjoint import BATCH_BYTES, SWEPT_MATRICES, AdjointFluctuations
from numerics.fluctuations.dense import DenseFluctuations
from numerics.fluctuations.expanded_problem import FluctuationSizes
from numerics.fluctuations.linear import GradientBlock
from numerics.fluctuations.lowered import LoweredFluctuations
from numerics.fluctuations.observables import ExpandedObservable
from numerics.fluctuations.sampled import ROUNDING_WIDTHS, SampledSolution, sample_fluctuations
from numerics.solver.method import Refusal
from numerics.solver.refusals import refusal_for

Array = NDArray[np.float64]

DENSE = 5000
"""Largest number of order parameters for dense matrices."""

MATRIX_PRODUCTS = 2e-10
"""Measured seconds of dense matrices, divided by the third power of the number of order parameters."""

SWEEP = 4e-10, 1e-3
"""Measured seconds of a sweep: factor of a quarter of the sum of cubed sizes of sites, and for each time."""


class ObservedFluctuations(Protocol):
    """Interface of objects that give covariances and shifts at order 1/N of functions of order parameters."""

    def covariances_of(self, blocks: list[GradientBlock]) -> list[Array]:
        """Return for each block N times the covariance of its observables, ``(observables, observables)``.

        A block holds the gradients of some observables with respect to order parameters.
        """
        ...

    def shifts_of(self, observables: Iterable[ExpandedObservable]) -> list[Array] | None:
        """Return N times (mean minus value at infinite width) of each observable; None if unknown.

        An observable is a function of order parameters at several points (indices and times); there is one
        array ``(points,)`` for each.
        """
        ...


class SolvedFluctuations(ObservedFluctuations, Protocol):
    """Interface of the solution of a problem at order 1/N: order parameters, covariances and shifts."""

    @property
    def lowered(self) -> LoweredFluctuations:
        """The expansion in 1/N that was solved: numbered order parameters and fields, and terms as arrays."""
        ...

    @property
    def values(self) -> Array:
        """Order parameters at infinite width, ``(parameters,)``."""
        ...


class FluctuationMethod(Protocol):
    """Interface of a method that computes variances and shifts at order 1/N, with its conditions and cost."""

    @property
    def name(self) -> str:
        """Name of the method in results."""
        ...

    def refusal(self, problem: Problem, sizes: FluctuationSizes) -> Refusal | None:
        """Return why the method cannot solve a problem whose arrays have these sizes; None if it can."""
        ...

    def seconds(self, sizes: FluctuationSizes, observables: int, solver: Solver) -> float:
        """Return the estimated seconds for the variances of a number of observables.

        ``sizes`` are the sizes of the arrays of the expansion; ``observables`` counts those of all times.
        ``solver`` has the number of sampled paths.
        """
        ...

    def memory(self, sizes: FluctuationSizes, observables: int, solver: Solver) -> float:
        """Return the estimated memory in bytes for the variances of a number of observables.

        ``sizes`` are the sizes of the arrays of the expansion; ``observables`` counts those of all times.
        ``solver`` has the number of sampled paths.
        """
        ...

    def no_shift(self, sizes: FluctuationSizes) -> str | None:
        """Return the reason why shifts of means are not computed, one sentence; None if they are."""
        ...

    def solve(self, arrays: LoweredFluctuations, solver: Solver) -> SolvedFluctuations:
        """Return the solution at order 1/N of an expansion that is given as arrays.

        ``solver`` has the seed and the number of sampled paths.
        """
        ...


@dataclass(frozen=True)
class DenseMethod:
    """Method for theories with linear fields, by dense matrices over all order parameters.

    It gives covariances and shifts of means.
    """

    name: str = "dense matrices"

    def refusal(self, problem: Problem, sizes: FluctuationSizes) -> Refusal | None:
        """Return why the method does not apply; None if it applies.

        It needs linear functions of fields, and no more than DENSE order parameters.
        """
        if (reason := _nonlinear(problem, sizes)) is not None:
            return reason
        if sizes.parameters <= DENSE:
            return None
        key = "training.points" if problem.flow else "training.steps"
        too_large = f"gives {sizes.parameters} order parameters, and dense matrices hold at most {DENSE}"
        return refusal_for(problem, key, too_large, "fewer times or samples")

    def seconds(self, sizes: FluctuationSizes, observables: int, solver: Solver) -> float:
        """Return the estimated seconds, which are those of products of matrices over all order parameters.

        They do not depend on ``observables`` and ``solver``.
        """
        return MATRIX_PRODUCTS * float(sizes.parameters) ** 3

    def memory(self, sizes: FluctuationSizes, observables: int, solver: Solver) -> float:
        """Return the estimated memory in bytes of the fields of a unit and matrices of order parameters.

        It does not depend on ``observables`` and ``solver``.
        """
        return _linear_memory(sizes) + 8.0 * PARAMETER_MATRICES * float(sizes.parameters) ** 2

    def no_shift(self, sizes: FluctuationSizes) -> None:
        """Return None: this method computes shifts of means, so that no reason is needed."""
        return None

    def solve(self, arrays: LoweredFluctuations, solver: Solver) -> DenseFluctuations:
        """Return the solution at order 1/N with dense matrices over all order parameters.

        ``arrays`` holds the expansion; ``solver`` is not used.
        """
        return DenseFluctuations(arrays)


@dataclass(frozen=True)
class AdjointMethod:
    """Method for theories with linear fields, by sweeps backwards in time for chosen observables.

    It gives covariances of these observables, but no shifts of means.
    """

    name: str = "adjoint sweeps"

    def refusal(self, problem: Problem, sizes: FluctuationSizes) -> Refusal | None:
        """Return why the method does not apply (a function of fields is not linear); None if it applies."""
        return _nonlinear(problem, sizes)

    def seconds(self, sizes: FluctuationSizes, observables: int, solver: Solver) -> float:
        """Return the estimated seconds of the sweeps backwards in time, one for each of ``observables``."""
        sweep = SWEEP[0] * float((sizes.sites.astype(float) ** 3).sum()) / 4 + SWEEP[1] * sizes.times
        return observables * sweep

    def memory(self, sizes: FluctuationSizes, observables: int, solver: Solver) -> float:
        """Return the estimated memory in bytes of the fields of a unit and of observables swept together.

        ``observables`` counts those of all times. They are swept in batches of at most BATCH_BYTES, or one by
        one if a single sweep needs more.
        """
        swept = SWEPT_MATRICES * 8.0 * _squared_fields(sizes)
        return _linear_memory(sizes) + max(swept, min(BATCH_BYTES, observables * swept))

    def no_shift(self, sizes: FluctuationSizes) -> str:
        """Return the sentence that says why shifts of means are missing: too many order parameters."""
        return (
            "X_shift is not given: means need matrices of all order parameters, and there are "
            f"{sizes.parameters} of them, more than {DENSE}"
        )

    def solve(self, arrays: LoweredFluctuations, solver: Solver) -> AdjointFluctuations:
        """Return the solution at order 1/N, which computes covariances by sweeps backwards in time.

        ``arrays`` holds the expansion; ``solver`` is not used.
        """
        return AdjointFluctuations(arrays)


@dataclass(frozen=True)
class SampledMethod:
    """Method for theories with nonlinear functions of fields, in discrete steps, by sampled paths.

    It gives covariances and shifts of means, with standard errors.
    """

    name: str = "sampled paths"

    def refusal(self, problem: Problem, sizes: FluctuationSizes) -> Refusal | None:
        """Return why the method does not apply; None if it applies.

        It needs a nonlinear function of fields, a rule in discrete steps, an even number of paths, and at
        most MOST_SAMPLED order parameters.
        """
        if sizes.nonlinear is None:
            return refusal_for(
                problem,
                "network.activation",
                "is linear, so that averages are exact without sampled paths",
                "another method",
            )
        if (problem.solver.samples or 0) % 2:
            reason = "is odd, but paths come in mirrored pairs"
            return Refusal("solver.samples", problem.solver.samples, reason, "an even number")
        if problem.flow:
            reason = "fluctuations of nonlinear networks are computed for rules in steps only"
            return refusal_for(problem, "training.rule", reason, '"gd"')
        if sizes.parameters > MOST_SAMPLED:
            reason = (
                f"gives {sizes.parameters} order parameters of a nonlinear network, and fluctuations are "
                f"sampled for at most {MOST_SAMPLED}"
            )
            return refusal_for(problem, "training.steps", reason, "fewer steps or samples")
        return None

    def seconds(self, sizes: FluctuationSizes, observables: int, solver: Solver) -> float:
        """Return the estimated seconds of all computations of fields on the sampled paths of each site.

        The fields are computed for each perturbation of order parameters and for each response, in both
        directions, for all replicas and widths of rounded kinks. The number of observables does not matter.
        A site is a population at one layer.
        """
        x, samples = sizes.paths, solver.samples or SAMPLES
        assert x is not None
        runs = RUNS * (x.moves + x.responses)
        values = x.fields * (1.0 + x.hats) * samples
        pairs = 2.0 * x.moves * (x.products + x.responses) ** 2 * samples
        total = runs * (RUN[0] + RUN[1] * x.fields + RUN[2] * values) + RUN[3] * pairs
        widths = len(ROUNDING_WIDTHS) if x.has_kinks and x.responses.any() else 1
        return REPLICAS * widths * float(total.sum())

    def memory(self, sizes: FluctuationSizes, observables: int, solver: Solver) -> float:
        """Return the estimated memory in bytes of paths, derivatives and matrices of order parameters.

        The number of observables does not matter; ``solver`` has the number of paths.
        """
        x, samples = sizes.paths, solver.samples or SAMPLES
        assert x is not None
        paths = float((x.fields * (1.0 + x.hats) * samples).sum())
        slopes = float((x.moves * (1.0 + x.products + x.responses) ** 2).sum())
        return 8.0 * (paths + slopes + PARAMETER_MATRICES * float(sizes.parameters) ** 2)

    def no_shift(self, sizes: FluctuationSizes) -> str | None:
        """Return None: this method computes shifts of means, so that no reason is needed."""
        return None

    def solve(self, arrays: LoweredFluctuations, solver: Solver) -> SampledSolution:
        """Return the solution at order 1/N from REPLICAS independent sets of sampled paths.

        ``arrays`` holds the expansion. ``solver`` has the seed and the number of paths of each set, SAMPLES
        if it is None.
        """
        seeds = np.random.SeedSequence(solver.seed).generate_state(REPLICAS)
        samples = solver.samples or SAMPLES
        return SampledSolution(arrays, [sample_fluctuations(arrays, samples, int(x)) for x in seeds])


SAMPLES, REPLICAS = 2048, 4
"""Number of paths of each site, and of independent replicas, from which standard errors follow."""

MOST_SAMPLED = 1000
"""Largest number of order parameters of nonlinear theories, which are perturbed one by one."""

RUNS = 4
"""Number of runs for each perturbation and for each response: in both directions, for two differences."""

RUN = 4e-4, 1e-5, 8e-9, 2e-10
"""Measured seconds of a run, for each field, for each value on a path, and for each pair of products."""

PARAMETER_MATRICES = 10
"""Approximate number of matrices of all order parameters in memory."""

METHODS: tuple[DenseMethod | AdjointMethod | SampledMethod, ...] = (
    DenseMethod(),
    AdjointMethod(),
    SampledMethod(),
)
"""All methods; the first one that applies to a problem is used."""


def method_for(problem: Problem, sizes: FluctuationSizes) -> FluctuationMethod:
    """Return the first method of METHODS that can compute corrections at order 1/N for a problem.

    The order is dense matrices, sweeps backwards in time, sampled paths. Sweeps apply to every linear
    theory.

    Raises
    ------
    SpecError
        If the theory is nonlinear and sampled paths do not apply. The message has their reason.
    """
    for method in METHODS:
        if method.refusal(problem, sizes) is None:
            return method
    general = AdjointMethod() if sizes.nonlinear is None else SampledMethod()
    refusal = general.refusal(problem, sizes)
    assert refusal is not None
    raise SpecError(refusal.key, refusal.value, refusal.reason, refusal.accepted)


FIELD_MATRICES, PARAMETER_ARRAYS = 8, 20
"""Approximate number of matrices of the fields of a unit, and of arrays of order parameters, in memory."""


def _linear_memory(sizes: FluctuationSizes) -> float:
    """Return the estimated memory in bytes of a method for theories with linear fields."""
    return 8.0 * (FIELD_MATRICES * _squared_fields(sizes) + PARAMETER_ARRAYS * sizes.parameters)


def _squared_fields(sizes: FluctuationSizes) -> float:
    """Return the sum over sites of the squared number of fields and hats of a unit.

    It is the number of entries of a matrix such as the covariance V, for all sites together.
    """
    return float((sizes.sites.astype(np.float64) ** 2).sum())


def _nonlinear(problem: Problem, sizes: FluctuationSizes) -> Refusal | None:
    """Return why methods for linear theories refuse a problem: one of its functions of fields is not linear.

    None if all functions of fields are linear. ``sizes`` names the function.
    """
    if sizes.nonlinear is None:
        return None
    reason = f"{sizes.nonlinear} is not linear in the fields of a unit"
    return refusal_for(problem, "network.activation", reason, '"linear"')
