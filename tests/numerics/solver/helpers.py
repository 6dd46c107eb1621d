"""Small problems, and all order parameters of a march in the shape of the reference solutions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from derive.program import L, gamma0, s, t
from derive.theory import Equation, Theory
from numerics.experiment import Experiment
from numerics.experiment.numbers import numbers_of
from numerics.lowering import lower
from numerics.lowering.expressions import observable
from numerics.lowering.indices import axes_of
from numerics.lowering.table import FieldAtLayer, Request
from numerics.solver.linear.march import March, march
from numerics.solver.linear.reduction import REDUCTIONS
from tests.derive.once import mean_field, mlp
from tests.reference.solution import Solution

RNG = np.random.default_rng(7)
INPUTS = RNG.standard_normal((5, 7))
TARGETS = np.array([0.9, -0.7, 1.1, 0.4, -1.2])


@lru_cache(maxsize=64)
def solvable(
    depth: int, rule: str, loss: str, projected: bool = True, sample_weights: bool = False
) -> Theory:
    """Return the theory that the march solves: discrete time and integer depth.

    A flow is discretised as a multistep integrator sees it.
    """
    integrated = "multistep" if rule == "flow" else rule
    theory = mean_field(mlp(L, "linear", integrated, loss, sample_weights=sample_weights))
    for reduction in REDUCTIONS if projected else ():
        theory = reduction(theory)
    return theory.at_depth(depth)


def kernel(samples: int) -> np.ndarray:
    """Return the kernel of the first samples."""
    x = INPUTS[:samples]
    return np.asarray(x @ x.T / x.shape[1])


def gd(depth: int, samples: int = 3, **changes: Any) -> Experiment:
    """Return an experiment with exact steps.

    ``changes`` may hold rate, steps, loss, gamma0, kernel, targets.
    """
    c: dict[str, Any] = {"rate": 0.11, "steps": 9, "loss": "sum", "gamma0": 1.2}
    c |= {"kernel": kernel(samples)} | changes
    return Experiment.from_dict(
        {
            "network": {"depth": depth, "gamma0": c["gamma0"]},
            "training": {"learning_rate": c["rate"], "steps": c["steps"], "loss": c["loss"]},
        },
        kernel=c["kernel"],
        targets=c.get("targets", TARGETS[:samples]),
    )


def flow(depth: int, samples: int = 3, **changes: Any) -> Experiment:
    """Return an experiment with gradient flow.

    ``changes`` may hold time, points, grid, loss, gamma0, rtol, kernel, targets.
    """
    c: dict[str, Any] = {"time": 1.0, "points": 6, "grid": "uniform", "loss": "mean"}
    c |= {"gamma0": 1.2, "rtol": 1e-5, "kernel": kernel(samples)} | changes
    training = {"rule": "flow", "loss": c["loss"]} | {k: c[k] for k in ("time", "points", "grid")}
    return Experiment.from_dict(
        {
            "network": {"depth": depth, "gamma0": c["gamma0"]},
            "training": training,
            "solver": {"rtol": c["rtol"]},
        },
        kernel=c["kernel"],
        targets=c.get("targets", TARGETS[:samples]),
    )


def marched(experiment: Experiment, weights: np.ndarray | None = None, *, projected: bool = True) -> March:
    """Return one march of the derived theory; ``weights`` is the table w(t,s) of a flow."""
    rule, depth = experiment.training.rule, experiment.depth
    data = {"K_x": experiment.kernel, "y": experiment.targets}
    if weights is not None:
        data["w"] = weights
    layers = range(1, depth + 1)
    names = "HG" if not projected else "G"
    answers = [Request("response", ("h", k), ("r", k), 1 / gamma0) for k in layers]
    return march(
        lower(solvable(depth, rule, experiment.training.loss, projected)),
        steps=len(experiment.times) if weights is None else len(weights),
        constants=numbers_of(experiment),
        data=data,
        wanted=(*((n, k) for n in names for k in layers), *answers),
    )


def unprojected(experiment: Experiment, weights: np.ndarray | None = None) -> Solution:
    """Return the march of the derived theory with every kernel for every pair of samples."""
    m = marched(experiment, weights, projected=False)
    theory = solvable(experiment.depth, experiment.training.rule, experiment.training.loss, False)
    return solution_of(m, theory, experiment)


def tangent(e: Equation, tensors: Mapping[Any, Any], data: Mapping[str, Any], numbers: Any) -> Any:
    """Return the tangent kernel of order parameters by name and layer, its times first."""
    found: dict[Any, Any] = {(n, (k,)): a[..., None] for (n, k), a in tensors.items()}
    return observable(e, found, {str(x): v for x, v in numbers.items()}, data, (t, s, *axes_of(e.lhs)))[
        ..., 0
    ]


def solution_of(m: March, theory: Theory, experiment: Experiment) -> Solution:
    """Return a march of an unprojected theory as a Solution."""
    depth, gamma0 = experiment.depth, experiment.network.gamma0
    layers = range(1, depth + 1)
    H: dict[FieldAtLayer, Any] = {
        ("H", k): m.correlation(("h", k), ("h", k)).transpose(1, 3, 0, 2) for k in layers
    }
    G: dict[FieldAtLayer, Any] = {("G", k): m.correlation(("g", k), ("g", k))[:, 0, :, 0] for k in layers}
    A = [m.response(("h", k), ("r", k))[..., 0].transpose(0, 2, 1) / gamma0 for k in layers]
    B = [m.response(("g", k), ("u", k))[:, 0] / gamma0 for k in range(2, depth + 1)]
    error = m.scalars["Delta"]
    data = {"K_x": experiment.kernel}
    return Solution(
        Phi=np.stack([H["H", k].transpose(2, 3, 0, 1) for k in layers]),
        G=np.stack([G["G", k] for k in layers]),
        A=np.stack(A),
        B=np.stack([*B, np.zeros_like(A[0])]),
        f=m.scalars["f"],
        error=error,
        tangent_kernel=tangent(theory.observables[0], H | G, data, numbers_of(experiment)),
    )


def distances(result: Any, expected: Solution) -> dict[str, float]:
    """Return the largest difference of each variable of a result file from a reference solution."""
    names = ("error", "train_loss", "Phi", "G", "A", "B", "tangent_kernel")
    return {n: float(np.abs(result[n].values - getattr(expected, n)).max()) for n in names}
