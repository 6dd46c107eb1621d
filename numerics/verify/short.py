"""The opening of an experiment, small enough to be solved twice and kept at every time node.

A few of the samples, the first few steps, everything else as in the experiment, the rate at which a sample
teaches included.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from sympy import S

from derive.program import P, eta
from derive.theory import Theory
from numerics.compile import lower
from numerics.compile.table import Node, Request
from numerics.experiment import Experiment
from numerics.experiment import theory as theories
from numerics.experiment.numbers import numbers_of
from numerics.solve.grid import flow_grid
from numerics.solve.march import March, march

Array = NDArray[np.float64]

SAMPLES = 5
STEPS = 10
EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Opening:
    """Kernel (P', P'), targets (P',), `steps` time nodes and, for a flow, its weights (steps, steps)."""

    experiment: Experiment
    kernel: Array
    targets: Array
    steps: int
    weights: Array | None

    @staticmethod
    def of(experiment: Experiment) -> Opening:
        """Evenly picked samples and the first steps; a flow takes steps that resolve its fastest mode."""
        count = len(experiment.targets)
        pick = np.unique(np.linspace(0, count - 1, min(count, SAMPLES)).round().astype(int))
        kernel = experiment.kernel[np.ix_(pick, pick)]
        targets = experiment.targets[pick]
        if experiment.training.rule == "gd":
            return Opening(experiment, kernel, targets, min(len(experiment.times), STEPS + 1), None)
        fastest = experiment.effective_rate * float(np.linalg.eigvalsh(kernel)[-1]) * (experiment.depth + 1)
        step = min(0.2 / fastest if fastest > 0 else np.inf, float(experiment.times[-1]) / STEPS)
        grid = flow_grid(step * np.arange(STEPS + 1), step=step)
        return Opening(experiment, kernel, targets, len(grid.nodes), grid.weights)

    @property
    def share(self) -> float:
        """Of the samples that a mean is taken over, those that are here: each teaches at the rate it did."""
        mean = self.experiment.training.loss == "mean"
        return len(self.targets) / len(self.experiment.targets) if mean else 1.0

    @property
    def increments(self) -> Array:
        """[n, m]: the weight with which the update made at node m entered between the nodes n and n + 1."""
        rate = self.experiment.effective_rate
        if self.weights is None:
            return rate * np.eye(self.steps - 1, self.steps)
        return rate * np.diff(self.weights, axis=0)

    @property
    def rounding(self) -> float:
        """Rounding allowed in any number of the solution, relative to the largest of its kind.

        A number is a sum of T P terms per layer; each of T steps adds one such sum's rounding.
        """
        terms = self.steps * len(self.targets) * (self.experiment.depth + 1)
        return EPS * terms * self.steps

    def theory(self, projected: bool = True) -> Theory:
        """What the solver runs for this experiment, with or without the error projection."""
        training = self.experiment.training
        return theories.solvable(self.experiment.depth, training.rule, training.loss, projected)

    def march(self, projected: bool = True, *, outputs: bool = False) -> March:
        """Solve it, keeping H and G of every layer; with `outputs` also <g h>, called "gh"."""
        table = lower(self.theory(projected))
        layers = range(1, self.experiment.depth + 1)
        wanted: list[Node] = [(name, layer) for name in "HG" for layer in layers]
        if outputs:
            pairs: dict[Node, Request] = {
                ("gh", k): Request("correlation", ("g", k), ("h", k), S.One) for k in layers
            }
            table = replace(table, tensors={**table.tensors, **pairs})
            wanted += list(pairs)
        share = self.share
        constants = numbers_of(self.experiment) | {P: float(len(self.targets))}
        if eta in constants:
            constants[eta] *= share
        data = {"K_x": self.kernel, "y": self.targets}
        if self.weights is not None:
            data["w"] = share * self.weights
        return march(
            table,
            steps=self.steps,
            constants=constants,
            data=data,
            wanted=tuple(wanted),
        )
