"""The edge of stability of a theory of gradient descent: where deviations of finite networks begin to grow.

From a problem and its solution this module finds the first step of descent at which the linear response of
errors has a growing mode, ``|1 - k(t) lambda| > 1`` for an eigenvalue lambda of ``K(t,t) c(t)``.  Here k is
the learning rate, divided by the number of samples if the loss is a mean, K the tangent kernel, and c minus
the derivative of the errors by the outputs.  From there on means over networks converge more slowly than 1/N,
and :mod:`numerics.verification.networks` does not compare them.
"""

from __future__ import annotations

import xarray as xr

from numerics.experiment.problem import Problem
from numerics.names import OUTPUT
from numerics.verification.controls import LinearResponse, has_controls

ROUNDING = 1e-9
"""Largest growth of a mode in a step that counts as rounding error."""


def edge_of_stability(problem: Problem, theory: xr.Dataset) -> int | None:
    """Return the position of the first time, at least one, from which deviations of networks grow, or None.

    These are deviations of outputs of finite networks from the solution ``theory``, to first order. None if
    they never grow, and also if this is not known: for programs, flows, momentum, entrywise rules, random
    data and units with positions, and if ``theory`` does not hold tangent kernels, errors and outputs.
    """
    if problem.experiment is None or not has_controls(problem) or problem.flow:
        return None
    training = problem.experiment.training
    if training.momentum or training.entrywise or not {"tangent_kernel", "error", OUTPUT} <= {*theory}:
        return None
    response = LinearResponse(problem, theory)
    for k, rate in enumerate(response.rates):
        if response.growth(k, float(rate)) > 1 + ROUNDING:
            return max(1, k)
    return None
