"""The tangent kernel of one network, from its kernels.

Gradients are outer products, so that inner products of gradients are products of kernels, at any width.
Which products, the program's updates say: the formula is the one that is derived from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from sympy import Symbol

from derive.theory import Equation
from numerics.compile.table import Node
from numerics.experiment import Experiment
from numerics.experiment.numbers import arrays_of, numbers_of, theory_at_depth
from numerics.solve.observables import evaluate

Array = NDArray[np.float64]


@dataclass(frozen=True)
class TangentKernel:
    """The formula, and the arrays and numbers in it."""

    equation: Equation
    feature: str
    data: Mapping[str, Array]
    constants: Mapping[Symbol, float]

    @classmethod
    def of(cls, experiment: Experiment) -> Self | None:
        """That of an experiment on fixed samples; None of others."""
        if experiment.spec.kind != "fixed":
            return None
        theory = theory_at_depth(experiment)
        if not theory.observables:
            return None
        names = {q.name for q in theory.order_parameters}
        numbers = numbers_of(experiment)
        return cls(theory.observables[0], "Phi" if "Phi" in names else "H", arrays_of(experiment), numbers)

    def __call__(self, phi: Array, g: Array) -> Array:
        """K, axes t, s and then samples, from Phi and G of all layers, axes (layer, t, s, samples)."""
        tensors: dict[Node, Array] = {}
        for name, kernels in ((self.feature, phi), ("G", g)):
            for layer, x in enumerate(kernels, 1):
                tensors[name, layer] = np.moveaxis(x, (0, 1), (-2, -1))
        return evaluate(self.equation, tensors, self.data, self.constants)
