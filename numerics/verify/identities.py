"""What must hold without any network: two derivations, two forms of one theory, identities of training."""

from __future__ import annotations

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from sympy import Integer

from derive.program import L
from derive.program.program import Program
from derive.theory import Theory, mean_field
from derive.theory.compare import compare
from derive.theory.path_integral import path_integral
from numerics.compile.table import Node
from numerics.experiment import Experiment
from numerics.experiment.numbers import numbers_of
from numerics.experiment.theory import program_of
from numerics.solve.march import March
from numerics.solve.observables import evaluate
from numerics.verify.report import Check
from numerics.verify.short import EPS, Opening

Array = NDArray[np.float64]

LARGEST_MATRIX = 1300
"""Eigenvalues are taken of kernel matrices up to this size; of longer ones, at fewer times."""


def derivation(experiment: Experiment) -> list[Check]:
    """The conditioning rule and the path integral give the same theory, term by term."""
    checks = []
    for depth, label in ((Integer(experiment.depth), f"L = {experiment.depth}"), (L, "symbolic L")):
        terms, differences = _routes(program_of(experiment, depth))
        name = f"two routes, {label}: differences"
        checks.append(Check("derivation", name, differences, 0, 0, f"{terms} terms compared"))
    return checks


def _routes(program: Program) -> tuple[int, int]:
    one, two = mean_field(program), path_integral(program).theory()
    return _terms(one), len(compare(one, two))


def _terms(theory: Theory) -> int:
    equations = (*theory.equations, *theory.scalars, *theory.observables)
    return sum(len(e.terms) for e in equations) + len(theory.sources) + len(theory.order_parameters)


def reduction(opening: Opening) -> list[Check]:
    """The error-projected theory that the solver runs gives the numbers of the theory as derived."""
    full, projected = opening.march(projected=False), opening.march()
    layers = range(1, opening.experiment.depth + 1)
    pairs = [(full.scalars["Delta"], projected.scalars["Delta"])]
    pairs += [(full.tensor((name, k)), projected.tensor((name, k))) for name in "HG" for k in layers]
    worst = max(relative(a - b, a) for a, b in pairs)
    name = "reduced theory = theory as derived"
    return [Check("solution", name, worst, 0, opening.rounding, "rounding")]


def training_identities(opening: Opening) -> list[Check]:
    """Two identities of any linear network under any rule of this form, to rounding and at any step size."""
    solution = opening.march(outputs=True)
    every_layer = Check(
        "solution",
        "<g^l h^l>/gamma0 = f at every layer",
        _outputs(solution, opening),
        0,
        opening.rounding,
        "rounding",
    )
    moved = Check(
        "solution",
        "f(t) - f(s) = sum K Delta, exact steps",
        _chain_rule(solution, opening),
        0,
        opening.rounding,
        "rounding",
    )
    return [every_layer, moved]


def _outputs(solution: March, opening: Opening) -> float:
    """W^L ... W^0 x read from the middle: g^l(t) . h^l_mu(t) is the same number at every l."""
    f = solution.scalars["f"]
    node = np.arange(opening.steps)
    scale = opening.experiment.network.gamma0
    layers = range(1, opening.experiment.depth + 1)
    read = [solution.tensor(("gh", k))[node, 0, node] / scale for k in layers]
    return max(relative(value - f, f) for value in read)


def _chain_rule(solution: March, opening: Opening) -> float:
    """A product of matrices moves by the sum over its factors, later factors new and earlier factors old.

    So f_mu(n+1) - f_mu(n) is exactly the sum over earlier updates of Delta times the tangent kernel with G
    read at n+1 and H at n. The kernel's formula is the derived one.
    """
    layers = range(1, opening.experiment.depth + 1)
    tensors: dict[Node, Array] = {("G", k): solution.tensor(("G", k))[1:, 0, :, 0] for k in layers}
    tensors |= {("H", k): solution.tensor(("H", k))[:-1].transpose(1, 3, 0, 2) for k in layers}
    equation = opening.theory().observables[0]
    kernel = evaluate(equation, tensors, {"K_x": opening.kernel}, numbers_of(opening.experiment))
    error, f = solution.scalars["Delta"], solution.scalars["f"]
    predicted = np.einsum("nm,nmij,mj->ni", opening.increments, kernel, error)
    return relative(np.diff(f, axis=0) - predicted, f)


def kernels(theory: xr.Dataset) -> list[Check]:
    """H^l as a (T P, T P) matrix and G^l as a (T, T) matrix are symmetric and positive semidefinite."""
    blocks = {}
    if "Phi" in theory:
        blocks["H^l"] = theory["Phi"].to_numpy().transpose(0, 1, 3, 2, 4)
    if "G" in theory:
        blocks["G^l"] = theory["G"].to_numpy()[:, :, None, :, None]
    return [check for name, block in blocks.items() for check in covariance(name, block)]


def covariance(name: str, values: Array, off: float = 0.0) -> list[Check]:
    """Each `values[layer]`, of shape (T, n, T, n), is symmetric and positive semidefinite to rounding.

    What is interpolated may be ``off`` by that, relative to the largest.
    """
    times, block = values.shape[1:3]
    keep = np.unique(np.linspace(0, times - 1, min(times, LARGEST_MATRIX // block or 1)).astype(int))
    asymmetry, lowest, size = 0.0, np.inf, times * block
    for matrix in values:
        flat = matrix.reshape(size, size)
        asymmetry = max(asymmetry, relative(flat - flat.T, flat))
        chosen = matrix[keep][:, :, keep].reshape(len(keep) * block, -1)
        spectrum = np.linalg.eigvalsh((chosen + chosen.T) / 2)
        lowest = min(lowest, float(spectrum[0] / spectrum[-1]))
    size = len(keep) * block
    allowed, source = EPS * size * times + off, "rtol" if off else "rounding"
    basis = f"{source}, {size} x {size}"
    return [
        Check("solution", f"{name} is symmetric", asymmetry, 0, allowed, source),
        Check("solution", f"{name}: -lowest/highest eigenvalue", -lowest, 0, allowed, basis, upper=True),
    ]


def discretisation(experiment: Experiment, theory: xr.Dataset) -> list[Check]:
    """What the solver says of its own time step; exact steps have no such error."""
    if experiment.training.rule == "gd":
        return []
    estimate, rtol = float(theory.attrs["error_estimate"]), experiment.solver.rtol
    basis = f"rtol, {theory.attrs['time_nodes']} nodes"
    return [Check("solution", "flow: error of Delta by refinement", estimate, 0, rtol, basis, upper=True)]


def relative(difference: Array, of: Array) -> float:
    """The largest difference over the largest entry; what is zero throughout is its own scale."""
    scale = float(np.max(np.abs(of)))
    return float(np.max(np.abs(difference))) / (scale or 1.0)
