"""Advice beside a solution: a note on inputs far from order one, and the reason why a run diverged.

The functions read a problem and, after a divergence, its first step; :mod:`numerics.solver.registry` adds the
sentences to results and error messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from numerics.errors import SMALLER, Diverged, NumericsError, SpecError
from numerics.experiment.problem import Problem

Array = NDArray[np.float64]

LARGE_INPUTS = 10.0
"""Diagonal of a kernel of inputs above which a note is printed; that of normalised inputs is about one."""


def input_scale(problem: Problem) -> str:
    """Return a sentence about inputs whose kernel is much larger than one, or an empty string.

    The sentence names the alphabetically first kernel with a diagonal entry above LARGE_INPUTS (10), and its
    largest such entry. Inputs without a kernel among the arrays of the problem are not examined.

    >>> from derive.program import mlp
    >>> given = {"numbers": {"eta": 0.1, "gamma0": 1.0}, "times": range(3)}
    >>> input_scale(Problem.of(mlp(1), arrays={"K_x": [[1600.0]], "y": [1.0]}, **given))
    'the diagonal of the kernel K_x of the inputs reaches 1600, and that of normalised inputs is about 1'
    """
    for name in sorted({x.kernel for x in problem.program.given}):
        kernel = problem.arrays.get(name)
        if kernel is None or kernel.ndim % 2:
            continue
        rows = prod(kernel.shape[: kernel.ndim // 2])
        if rows == 0 or kernel.size != rows**2:
            continue
        largest = float(np.abs(np.diag(kernel.reshape(rows, rows))).max())
        if largest > LARGE_INPUTS:
            return (
                f"the diagonal of the kernel {name} of the inputs reaches {largest:.4g}, and that of "
                "normalised inputs is about 1"
            )
    return ""


def explained(
    problem: Problem, error: Diverged, first_step: Callable[[Problem], Mapping[str, Array]]
) -> Diverged:
    """Return the error ``error`` of a solution with advice on its cause added to the message.

    For a rule in steps the advice states by how much the largest error signal grows in the first step, if it
    grows. It names the scale of the inputs, if it is large; else it asks for a smaller learning rate, unless
    the message has a remedy already. ``first_step`` solves a problem of one step and returns its variables by
    name; if it fails, the message leaves the growth out. An error at the start of training is returned
    unchanged.
    """
    if error.start:
        return error
    message = str(error)
    if not problem.flow and len(problem.times) > 1:
        one = replace(problem, times=problem.times[:2], output_times=None)
        try:
            errors = first_step(one).get("error")
        except (NumericsError, SpecError, ValueError):
            errors = None
        if errors is not None and (start := float(np.abs(errors[0]).max())) > 0:
            growth = float(np.abs(errors[1]).max()) / start
            if growth > 1:
                message += f"; the first step multiplies the largest error by {growth:.3g}"
    if scale := input_scale(problem):
        rate = "" if problem.flow else ", or divide the learning rate by this number"
        message += f"; {scale}: normalise the inputs{rate}"
    elif "would do" not in message and SMALLER not in message:
        message += f"; {SMALLER}"
    return Diverged(message, start=error.start, step=error.step)
