"""The fluctuations of a problem, with numbers for its sizes: from a problem to arrays that methods take.

Steps are those of the training rule; a flow is a rule in steps whose memory is that of an integrator on a
grid of times (:mod:`numerics.solver.grid`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from derive.errors import NotApplicable
from derive.program import Program
from derive.theory.fluctuations import Fluctuations, fluctuations
from numerics.errors import SpecError
from numerics.experiment.problem import Given, Problem
from numerics.experiment.theory import centred, integrated, wide_layers, wide_modes
from numerics.fluctuations.lowered import LoweredFluctuations, TheorySizes
from numerics.lowering.expressions import KnownArrays
from numerics.solver.grid import TimeGrid, tables_of

Array = NDArray[np.float64]


def expanded(problem: Problem) -> Fluctuations:
    """Return the fluctuations of the program of a problem, in steps.

    Raises
    ------
    SpecError
        If the networks of the problem have no width, or the theory is not one of averages over units.
    """
    _require_widths(problem)
    try:
        return fluctuations(_program(problem))
    except NotApplicable as reason:
        key = problem.said("training.rule" if problem.seen else "data.kind")
        raise SpecError(*key, str(reason), "another program or rule") from None


def _program(problem: Problem) -> Program:
    """The program with tables for the memory of its rules, and with the initial function subtracted."""
    program, experiment = problem.program, problem.experiment
    if problem.seen and experiment is not None and experiment.spec.centered:
        program = centred(program)
    return integrated(program)


def _require_widths(problem: Problem) -> None:
    """Raise SpecError for theories in which layers are wide, or that were changed by hand."""
    for x in problem.reductions:
        if x in (wide_layers, wide_modes):
            reason = "is left out: the layers are infinitely wide"
            accepted = "the ratio of neurons to features"
            raise SpecError(*problem.said("network.width_ratio"), reason, accepted)
        if isinstance(x, Given):
            reason = "is not what its program derives, whose fluctuations are known alone"
            raise SpecError("theory", None, reason, "the program itself")
    if problem.depth is None:
        raise problem.open_depth()


def lowered(problem: Problem, grid: TimeGrid | None = None) -> LoweredFluctuations:
    """Return the fluctuations of a problem as arrays, at its steps or on a ``grid`` of times of its flow."""
    theory = expanded(problem)
    values = {str(x): v for x, v in problem.values.items()}
    data: dict[str, Any] = dict(problem.data if grid is None else problem.arrays)
    if grid is not None:
        data |= tables_of(problem.program, problem.numbers, grid.nodes, grid.weights)
    data |= {name: _of_layer(numbers) for name, numbers in problem.layered.items()}
    known = KnownArrays(values, data, literals=dict(problem.literals))
    times = len(problem.times if grid is None else grid.nodes)
    return LoweredFluctuations(theory, TheorySizes(values, times), known)


def _of_layer(numbers: Any) -> Callable[[int], float]:
    """Numbers of layers as a function of the layer."""
    return lambda layer: float(numbers[int(layer)])
