"""Figure 4: printed and derived approximations of a deep linear network beside the full theory.

All equations are evaluated at the steps of gradient descent, as the networks are trained; the printed
integrals over time are read as sums of such steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from sympy import Function
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import L, P, ell, gamma0, mu, s, t
from numerics.errors import NotConverged
from numerics.expansion import expand
from numerics.expansion.orders import partial_sum
from numerics.experiment import Experiment
from numerics.lowering import lower
from numerics.solver import solve
from numerics.solver.linear.march import march
from tests.ledger.claims import claimed
from tests.ledger.claims.selfconsistent2023.notation import nu
from tests.ledger.evidence.base import Evidence, Finding, agrees, conclude, contradicts
from tests.ledger.evidence.engine import steps_of, theory_at
from tests.ledger.evidence.explicit import lattice
from tests.ledger.evidence.plain_networks import train_network

Array = NDArray[np.float64]

SETTLED, AHEAD = 1e-8, 12
"""What an error may still change by; how many times beyond the settled ones are moved at once."""


@dataclass(frozen=True)
class Curves:
    """A training curve and feature kernels at equal times: ``error`` (T,P), ``H`` (layer,T,P,P)."""

    error: Array
    H: Array

    @property
    def loss(self) -> Array:
        """Mean square error."""
        return np.asarray((self.error**2).mean(axis=1))


@dataclass(frozen=True)
class Task:
    """Gram matrix and targets, depth, and steps of descent on the mean square error."""

    kernel: Array
    targets: Array
    depth: int
    rate: float
    steps: int

    def experiment(self, strength: float) -> Experiment:
        """Return the task as an experiment."""
        return Experiment.from_dict(
            {
                "network": {"depth": self.depth, "gamma0": strength},
                "training": {
                    "rule": "gd",
                    "learning_rate": self.rate,
                    "steps": self.steps,
                    "loss": "mean",
                },
            },
            kernel=self.kernel,
            targets=self.targets,
        )

    @property
    def push(self) -> float:
        """Step of a weight in units of error times features; the mean loss divides by P."""
        return self.rate / len(self.targets)


def full(task: Task, strength: float) -> Curves:
    """Return the curves of the full theory."""
    return _curves(solve(task.experiment(strength)))


def _curves(result: Any) -> Curves:
    return Curves(result.error.values, np.einsum("lttmn->ltmn", result.Phi.values))


def series(task: Task, order: int = 8) -> xr.Dataset:
    """Return the derived expansion, which does not depend on gamma0."""
    return expand(task.experiment(1.0), order)


def truncated(task: Task, found: xr.Dataset, strength: float, order: int) -> Curves:
    """Return kernels of the truncated expansion and the error by its tangent kernel, as in the paper."""
    cut = partial_sum(found, strength, order)
    tangent = np.einsum("ttmn->tmn", cut.tangent_kernel.values)
    return Curves(_moved(tangent, task), np.einsum("lttmn->ltmn", cut.Phi.values))


def printed(task: Task, strength: float) -> Curves:
    """Return (P.4) and (16) as printed, with the error moved by (16)."""
    T, n = task.steps + 1, len(task.targets)
    pushes = _lazy(task).T * task.push
    v = _past(pushes)
    nested = _past(pushes[:, None] * v[None])
    tables = {"Kx": task.kernel, "v": v, "vv": nested}

    def kernel(number: str, name: str, layer: int) -> Array:
        e = claimed("selfconsistent2023", number)[name].subs({ell: layer, L: task.depth}).subs(s, t)
        found = np.zeros((T, n, n))
        for power in (0, 2):

            def read(atom: AppliedUndef) -> tuple[Array, Any]:
                return tables[str(atom.func)], atom.args

            part = e.expand().coeff(gamma0, power)
            found += strength**power * lattice(part, (t, mu, nu), (T, n, n), read)
        return found

    H = np.stack([kernel("P.4", "H", k) for k in range(1, task.depth + 1)])
    return Curves(_moved(kernel("16", "K", 0), task), H)


def _past(increments: Array) -> Array:
    """Return sums over earlier times along the last axis."""
    return np.asarray(np.cumsum(increments, axis=-1) - increments)


def _moved(kernel: Array, task: Task) -> Array:
    """Return errors, (T,P), when each step uses the tangent kernel at its time."""
    error = [task.targets]
    with np.errstate(
        over="ignore", invalid="ignore"
    ):  # a series beyond its reach may run away: then not finite
        for now in range(task.steps):
            error.append(error[-1] - task.push * kernel[now] @ error[-1])
    return np.stack(error)


def _lazy(task: Task) -> Array:
    kernel = (task.depth + 1) * task.kernel
    return _moved(np.broadcast_to(kernel, (task.steps + 1, *kernel.shape)), task)


def ansatz(task: Task, strength: float) -> Curves:
    """Return A = B = 0 with (4), as in the paper.

    No network follows these equations, so that the error is iterated until it is self-consistent.
    """
    T, n = task.steps + 1, len(task.targets)
    table = lower(theory_at(task.depth, tied=False))
    given = Function("given")(t)
    rows = tuple(
        replace(x, expression=given, averages=(), inputs=()) for x in table.scalars if x.name == "Delta"
    )
    table = replace(table, scalars=rows)
    layers = range(1, task.depth + 1)
    error = _lazy(task)
    for _ in range(3 * T):
        run = march(
            table,
            steps=T,
            constants={gamma0: float(strength), P: float(n)},
            data={"K_x": task.kernel, "w": steps_of(task.push, T)},
            functions={"given": lambda step, error=error: error[int(step)]},
            wanted=tuple((name, k) for name in "HG" for k in layers),
        )
        H = np.stack([np.einsum("tmtn->tmn", run.tensor(("H", k))) for k in layers])
        G = np.stack([np.einsum("tt->t", run.tensor(("G", k))[:, 0, :, 0]) for k in layers])
        above = np.concatenate([G[1:], np.ones((1, T))])
        tangent = np.einsum("lt,ltmn->tmn", above, H) + G[0][:, None, None] * task.kernel
        new = _moved(tangent, task)
        off = np.abs(new - error).max(axis=1) > SETTLED
        if not off.any():
            return Curves(new, H)
        ahead = min(
            int(np.argmax(off)) + AHEAD, T - 1
        )  # the theory is causal: times settle one after the other
        error = np.concatenate([new[: ahead + 1], np.tile(new[ahead], (T - 1 - ahead, 1))])
    raise NotConverged(f"the error still changes by more than {SETTLED} after {3 * T} sweeps")


def networks(inputs: Array, task: Task, strength: float, width: int, count: int) -> list[Curves]:
    """Return trained networks of finite width."""
    found = []
    for seed in range(count):
        run = train_network(
            inputs,
            task.targets,
            depth=task.depth,
            gamma0=strength,
            width=width,
            rate=task.push,
            steps=task.steps,
            rng=1000 * task.depth + seed,
        )
        H = np.einsum("ltmn,ltkn->ltmk", run.h, run.h) / width
        found.append(Curves(task.targets - run.f, H))
    return found


# -- evidence ------------------------------------------------------------------------------------------------

SAMPLES, INPUTS, DEPTH, WIDTHS, COUNTS = 4, 16, 5, (200, 400), (60, 30)
WEAK = (0.1, 0.2)
EXPONENT = 0.3
"""What a fitted exponent may be off."""
BOUND = 3.5


def small_task() -> tuple[Array, Task]:
    """Return inputs and the task of the evidence."""
    rng = np.random.default_rng(4)
    inputs = rng.standard_normal((SAMPLES, INPUTS))
    targets = np.array([1.0, -1.0, 1.0, 0.5])
    return inputs, Task(inputs @ inputs.T / INPUTS, targets, DEPTH, 0.3 / (DEPTH + 1), 20)


def approximations() -> Evidence:
    """Check Figure 4: decrease of the error of each approximation with gamma0, and which hold at one."""
    inputs, task = small_task()
    found = series(task, 6)
    exact = {g: full(task, g).H for g in WEAK}
    findings: list[Finding] = []
    exponents = {}
    for name, expected in (("printed (P.4)", 2), ("A = B = 0", 2), ("order 2", 4), ("order 4", 6)):
        sizes = []
        for g in WEAK:
            curves = {
                "printed (P.4)": lambda g=g: printed(task, g),
                "A = B = 0": lambda g=g: ansatz(task, g),
            }.get(name, lambda g=g, name=name: truncated(task, found, g, int(name[-1])))()
            sizes.append(float(np.abs(curves.H - exact[g]).max()))
        exponents[name] = float(np.log(sizes[1] / sizes[0]) / np.log(WEAK[1] / WEAK[0]))
        findings.append(agrees(f"{name}: exponent minus {expected}", exponents[name] - expected, EXPONENT))
    mean, error = _traces(inputs, task)
    ends = {n: _end(c(task, 1.0)) for n, c in (("full", full), ("printed", printed), ("A = B = 0", ansatz))}
    findings.append(
        agrees("gamma0 = 1: networks minus theory, trace of H^5", mean - ends["full"], BOUND * error)
    )
    for name in ("printed", "A = B = 0"):
        findings.append(contradicts(f"gamma0 = 1: networks minus {name}", mean - ends[name], error))
    return conclude(
        "figure_4:approximations",
        "L = 5: the largest error of a kernel falls with gamma0 to the power "
        f"{', '.join(f'{v:.2f} ({k})' for k, v in exponents.items())}. At gamma0 = 1 the trace of H^5 after "
        f"training is {mean:.2f}({error:.2f}) in networks, {ends['full']:.2f} in the theory, "
        f"{ends['printed']:.2f} by (P.4), {ends['A = B = 0']:.2f} with A = B = 0.",
        *findings,
    )


def _end(curves: Curves) -> float:
    return float(np.trace(curves.H[-1, -1]))


def _traces(inputs: Array, task: Task) -> tuple[float, float]:
    """Return the trace of the last kernel at the end, of infinitely wide networks, and its standard error."""
    means, errors = [], []
    for width, count in zip(WIDTHS, COUNTS, strict=True):
        ends = np.array([_end(c) for c in networks(inputs, task, 1.0, width, count)])
        means.append(ends.mean())
        errors.append(ends.std(ddof=1) / np.sqrt(count))
    return float(2 * means[1] - means[0]), float(np.hypot(2 * errors[1], errors[0]))
