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
from numerics.fluctuations.adjoint import AdjointFluctuations
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
"""Measured seconds of dense matrices, divided by n^3."""

SWEEP = 4e-10, 1e-3
"""Measured seconds of a sweep: factor of the sum of cubes of the sites' sizes, and for each time."""


class ObservedFluctuations(Protocol):
    """Interface of covariances and shifts of observables."""

    def covariances_of(self, blocks: list[GradientBlock]) -> list[Array]:
        """Return N times the covariance of the observables of each block, ``(observables, observables)``."""
        ...

    def shifts_of(self, observables: Iterable[ExpandedObservable]) -> list[Array] | None:
        """Return N times the mean of each observable minus its value, ``(points,)``; None if not computed."""
        ...


class SolvedFluctuations(ObservedFluctuations, Protocol):
    """Interface of the fluctuations of a problem, computed by some method."""

    @property
    def lowered(self) -> LoweredFluctuations:
        """Theory with numbers for its sizes."""
        ...

    @property
    def values(self) -> Array:
        """Order parameters at infinite width, ``(parameters,)``."""
        ...


class FluctuationMethod(Protocol):
    """Interface of a method that computes fluctuations."""

    @property
    def name(self) -> str:
        """Name of the method in results."""
        ...

    def refusal(self, problem: Problem, sizes: FluctuationSizes) -> Refusal | None:
        """Return the refusal of a problem with these sizes, or None if the method applies."""
        ...

    def seconds(self, sizes: FluctuationSizes, observables: int, solver: Solver) -> float:
        """Return the estimated seconds for the variances of a number of observables, all times together."""
        ...

    def memory(self, sizes: FluctuationSizes, solver: Solver) -> float:
        """Return the estimated memory in bytes."""
        ...

    def no_shift(self, sizes: FluctuationSizes) -> str | None:
        """Return the reason why shifts are not computed, one sentence; None if they are."""
        ...

    def solve(self, arrays: LoweredFluctuations, solver: Solver) -> SolvedFluctuations:
        """Return the fluctuations of a theory in arrays.

        ``solver`` has the seed and the number of sampled paths.
        """
        ...


@dataclass(frozen=True)
class DenseMethod:
    """Method for linear theories with matrices of all order parameters: covariances and shifts."""

    name: str = "dense matrices"

    def refusal(self, problem: Problem, sizes: FluctuationSizes) -> Refusal | None:
        """Return a refusal if the theory is not linear or has too many order parameters; None otherwise."""
        if (reason := _nonlinear(problem, sizes)) is not None:
            return reason
        if sizes.parameters <= DENSE:
            return None
        key = "training.points" if problem.flow else "training.steps"
        too_large = f"gives {sizes.parameters} order parameters, and dense matrices hold at most {DENSE}"
        return refusal_for(problem, key, too_large, "fewer times or samples")

    def seconds(self, sizes: FluctuationSizes, observables: int, solver: Solver) -> float:
        """Return the estimated seconds of the products of matrices."""
        return MATRIX_PRODUCTS * float(sizes.parameters) ** 3

    def memory(self, sizes: FluctuationSizes, solver: Solver) -> float:
        """Return the estimated memory in bytes."""
        return _linear_memory(sizes)

    def no_shift(self, sizes: FluctuationSizes) -> None:
        """Return None, because shifts are computed."""
        return None

    def solve(self, arrays: LoweredFluctuations, solver: Solver) -> DenseFluctuations:
        """Return the fluctuations as dense matrices."""
        return DenseFluctuations(arrays)


@dataclass(frozen=True)
class AdjointMethod:
    """Method for linear theories by sweeps backwards in time: variances of chosen observables, no shifts."""

    name: str = "adjoint sweeps"

    def refusal(self, problem: Problem, sizes: FluctuationSizes) -> Refusal | None:
        """Return a refusal if the theory is not linear; None if it is linear."""
        return _nonlinear(problem, sizes)

    def seconds(self, sizes: FluctuationSizes, observables: int, solver: Solver) -> float:
        """Return the estimated seconds of the sweeps, one for each observable."""
        sweep = SWEEP[0] * float((sizes.sites.astype(float) ** 3).sum()) / 4 + SWEEP[1] * sizes.times
        return observables * sweep

    def memory(self, sizes: FluctuationSizes, solver: Solver) -> float:
        """Return the estimated memory in bytes."""
        return _linear_memory(sizes)

    def no_shift(self, sizes: FluctuationSizes) -> str:
        """Return the sentence that says why shifts are not computed."""
        return (
            "X_shift is not given: means need matrices of all order parameters, and there are "
            f"{sizes.parameters} of them, more than {DENSE}"
        )

    def solve(self, arrays: LoweredFluctuations, solver: Solver) -> AdjointFluctuations:
        """Return the fluctuations by sweeps."""
        return AdjointFluctuations(arrays)


@dataclass(frozen=True)
class SampledMethod:
    """Method for nonlinear theories in steps by sampled paths.

    Covariances and shifts with standard errors.
    """

    name: str = "sampled paths"

    def refusal(self, problem: Problem, sizes: FluctuationSizes) -> Refusal | None:
        """Return a refusal if the theory is linear, a flow, or too large; None if the method applies."""
        if sizes.nonlinear is None:
            return refusal_for(
                problem,
                "network.activation",
                "is linear, so that averages are exact without sampled paths",
                "another method",
            )
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
        """Return the estimated seconds of all runs over the paths of each site.

        Each perturbation of a site is run in both directions. A site is a population at one layer.
        """
        x, samples = sizes.paths, solver.samples or SAMPLES
        assert x is not None
        runs = RUNS * (x.moves + x.responses)
        values = x.fields * (1.0 + x.hats) * samples
        pairs = 2.0 * x.moves * (x.products + x.responses) ** 2 * samples
        total = runs * (RUN[0] + RUN[1] * x.fields + RUN[2] * values) + RUN[3] * pairs
        widths = len(ROUNDING_WIDTHS) if x.has_kinks and x.responses.any() else 1
        return REPLICAS * widths * float(total.sum())

    def memory(self, sizes: FluctuationSizes, solver: Solver) -> float:
        """Return the estimated memory in bytes."""
        x, samples = sizes.paths, solver.samples or SAMPLES
        assert x is not None
        paths = float((x.fields * (1.0 + x.hats) * samples).sum())
        slopes = float((x.moves * (1.0 + x.products + x.responses) ** 2).sum())
        return 8.0 * (paths + slopes + PARAMETER_MATRICES * float(sizes.parameters) ** 2)

    def no_shift(self, sizes: FluctuationSizes) -> str | None:
        """Return None, because shifts are computed."""
        return None

    def solve(self, arrays: LoweredFluctuations, solver: Solver) -> SampledSolution:
        """Return the fluctuations from several independent sets of paths."""
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
    """Return the first method that applies to a problem.

    Raises
    ------
    SpecError
        If no method applies, with the reason of the most general method for linear or for nonlinear theories.
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
    """Return the estimated bytes of the methods for linear theories."""
    fields = float((sizes.sites.astype(np.float64) ** 2).sum())
    return 8.0 * (FIELD_MATRICES * fields + PARAMETER_ARRAYS * sizes.parameters)


def _nonlinear(problem: Problem, sizes: FluctuationSizes) -> Refusal | None:
    """Return a refusal of methods for linear theories, whose fields are Gaussian.

    None if the theory is linear.
    """
    if sizes.nonlinear is None:
        return None
    reason = f"{sizes.nonlinear} is not linear in the fields of a unit"
    return refusal_for(problem, "network.activation", reason, '"linear"')
