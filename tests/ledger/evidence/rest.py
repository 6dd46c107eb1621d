"""The theory at long times: ridge regression under weight decay (J.1), kernels with noise (K.15)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Symbol, nsolve

from derive.program import P, eta, gamma0
from derive.reduce.equilibrium import equilibrium
from numerics.experiment import Experiment
from numerics.solver import solve
from numerics.solver.long_times.solve import AtRest, at_rest, compare, regression, stationary_kernels
from numerics.solver.paths import solve_particles
from tests.derive.once import mean_field, mlp
from tests.ledger.evidence.base import Evidence, agrees, conclude, contradicts
from tests.ledger.evidence.edited import CLOSE

Array = NDArray[np.float64]

lam, heat = Symbol("lam", positive=True), Symbol("heat", positive=True)
K = np.array([[1.0, 0.3, 0.5], [0.3, 0.8, 0.4], [0.5, 0.4, 0.9]])
RHO = np.array([1.0, 1.0, 0.0])
"""Two samples and a test point."""
ALIKE, OPPOSITE = np.array([1.2, 0.9, 0.0]), np.array([1.2, -0.9, 0.0])
LEFT, AVERAGED = 1e-4, 1.5e-3
"""What is left of the way after the steps below; what steps of 0.2 leave of an average over them."""


def _trained(
    depth: int, activation: str, targets: Array, rate: float = 0.2, steps: int = 70, decay: float = 0.5
) -> AtRest:
    values: dict[Any, float] = {eta: rate, gamma0: 1.5, P: 3, lam: decay}
    data = {"K_x": K, "y": targets, "rho": RHO}
    program = mlp(depth, activation, weight_decay=lam, sample_weights=True)
    return at_rest(program, steps=steps, values=values, data=data, samples=256, replicas=2)


def ridge_in_the_theory() -> Evidence:
    """Check J.1: the derived theory trained to its fixed point, on its samples and at a test point."""
    findings = []
    for activation, targets in (("linear", OPPOSITE), ("relu", ALIKE)):
        for depth in (1, 2):
            rest = _trained(depth, activation, targets)
            bare = compare(rest.solved, 1.0, rest.ridge / rest.kappa, targets, RHO)
            off, plain = (float(np.abs(x.difference).max()) for x in (rest, bare))
            name = f"{activation}, L = {depth}"
            findings.append(agrees(f"output minus ridge regression, {name}", off, LEFT))
            findings.append(contradicts(f"without kappa, {name}", plain, LEFT))
    values: dict[Any, float] = {eta: 0.2, gamma0: 1.5, P: 3, lam: 0.5}
    theory = mean_field(mlp(1, "tanh", weight_decay=lam, sample_weights=True))
    data = {"K_x": K, "y": ALIKE, "rho": RHO}
    solved = solve_particles(theory, steps=70, values=values, data=data, samples=256, replicas=2)
    tanh = compare(solved, 2.0, 1.0, ALIKE, RHO)
    return conclude(
        "rest:ridge_in_the_theory",
        "Outputs of the derived theory at rest are ridge regression with its own final kernel and the ridge "
        "lambda kappa, at a test point too; those of a tanh network are not, with the kappa of a rectifier.",
        *findings,
        contradicts("tanh with kappa = 2", float(np.abs(tanh.difference).max()), 10 * LEFT),
    )


def kinks() -> Evidence:
    """Check J.1: rectifiers driven onto their kinks from both sides; two lengths of a step."""
    findings = []
    for rate, steps in ((0.2, 120), (0.1, 240)):
        rest = _trained(1, "relu", OPPOSITE, rate, steps, 0.25)
        late = np.arange(steps - steps // 4, steps)
        gaps = [
            f[late].mean(axis=0) - regression(k[..., late, late].mean(axis=-1), OPPOSITE, RHO, rest.ridge)
            for f, k in zip(rest.solved.runs["f", ()], rest.solved.runs["K", ()], strict=True)
        ]
        own = float(np.abs(rest.averaged[:2]).max())
        findings.append(agrees(f"kernel of mean gradients, eta = {rate}", own, AVERAGED * rate / 0.2))
        mean = float(np.abs(np.mean(gaps, axis=0)[:2]).max())
        findings.append(contradicts(f"mean of the kernel, eta = {rate}", mean, AVERAGED * rate / 0.2, by=5))
    return conclude(
        "rest:kinks",
        "With targets of opposite sign, rectifiers jump across their kinks for good. Mean outputs are ridge "
        "regression with the kernel of gradients averaged in time, up to the length of a step; with the mean "
        "of the kernel they are not, however short the steps.",
        *findings,
    )


def long_times() -> Evidence:
    """Check K.15, K.16: noisy steps of the derived theory at gamma0 = 0.01, long after the start."""
    values: dict[Any, float] = {eta: 0.2, gamma0: 1e-2, P: 2, lam: 1.5, heat: 0.6}
    lags, steps, burn = (0, 2), 26, 16
    findings = []
    for activation, seed in (("tanh", 1), ("relu", 1)):
        theory = mean_field(mlp(2, activation, weight_decay=lam, temperature=heat))
        exact = stationary_kernels(theory, values=values, data={"K_x": K[:2, :2]}, lags=lags)
        data = {"K_x": K[:2, :2], "y": OPPOSITE[:2]}
        given: dict[str, Any] = {"samples": 768, "replicas": 16, "seed": seed, "matched": False}
        solved = solve_particles(theory, steps=steps, values=values, data=data, **given)
        worst, start = 0.0, 0.0
        for (name, layer), kernel in exact.items():
            if (name, (layer,)) not in solved.runs:
                continue
            runs = solved.runs[name, (layer,)]
            for i, lag in enumerate(lags):
                x = np.mean([runs[..., n + lag, n] for n in range(burn, steps - lag)], axis=0)
                error = x.std(axis=0, ddof=1) / np.sqrt(len(x))
                worst = max(worst, float(np.abs((x.mean(axis=0) - kernel[..., i]) / error).max()))
                early = runs[..., 0, 0].mean(axis=0)
                start = max(start, float(np.abs((early - kernel[..., 0]) / error).max()))
        findings.append(agrees(f"kernels, {activation}, L = 2: largest z", worst, CLOSE))
        findings.append(contradicts(f"kernels of the start, {activation}: largest z", start, 1.0))
    return conclude(
        "rest:long_times",
        "Long after the start, noisy steps of the derived theory at gamma0 = 0.01 have the kernels of the "
        "recursion, two steps apart too.",
        *findings,
    )


def dynamics_end_there() -> Evidence:
    """Check K.20: outputs and kernels of linear networks at late times of Langevin dynamics."""
    findings = []
    for depth in (1, 2):
        limit, left = late_linear(depth)
        saddle = saddle_of(depth, limit)
        for label, ours, theirs in zip(("output", "last kernel"), limit, saddle, strict=True):
            findings.append(agrees(f"{label}, L = {depth}, minus saddle point", ours - theirs, left / 5))
        findings.append(contradicts(f"output minus target, L = {depth}", limit[0] - TARGET, left / 5))
    return conclude(
        "rest:dynamics_end_there",
        "The exact theory of noisy steps, at long times and then short steps, has the output and the last "
        "kernel of the derived equilibrium, for linear networks with one and two hidden layers.",
        *findings,
    )


TARGET, DECAY, HEAT = 1.5, 0.8, 0.6


def late_linear(depth: int) -> tuple[Array, float]:
    """Return output and last kernel at late times, and the last change.

    Steps of 0.2, 0.1, 0.05 are extrapolated to zero.
    """
    ends = []
    for rate, steps in ((0.2, 50), (0.1, 100), (0.05, 200)):
        training = {"learning_rate": rate, "steps": steps, "loss": "sum", "weight_decay": DECAY}
        experiment = Experiment.from_dict(
            {"network": {"depth": depth, "gamma0": 1.0}, "training": training | {"temperature": HEAT}},
            kernel=np.eye(1),
            targets=np.array([TARGET]),
        )
        found = solve(experiment)
        error, kernel = found["error"].values, found["Phi"].values
        ends.append(np.array([TARGET - error[-1, 0], kernel[depth - 1, -1, -1, 0, 0]]))
    once = [2 * b - a for a, b in pairwise(ends)]
    return np.asarray((4 * once[1] - once[0]) / 3), float(np.abs(once[1] - once[0]).max())


def saddle_of(depth: int, near: Array) -> tuple[float, float]:
    """Return output and last kernel at the saddle point next to ``near``."""
    numbers = {"lam": DECAY, "heat": HEAT, "gamma0": 1.0, "K": 1.0, "y": TARGET}
    rest = equilibrium(mean_field(mlp(depth, "linear", "flow", weight_decay=lam, temperature=heat)))
    gaps = [e.lhs - e.rhs for e in rest.linear_saddle()]
    gaps = [g.subs({x: numbers[x.name] for x in g.free_symbols if x.name in numbers}) for g in gaps]
    unknown = sorted(set().union(*(g.free_symbols for g in gaps)), key=str)  # Phi1, .., f
    *kernels, out = (float(x) for x in nsolve(gaps, unknown, [near[1]] * depth + [near[0]]))
    return out, kernels[-1]
