"""Problems of any size for the benchmarks, with the operations and bytes that a march of them takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from numerics.experiment import Experiment
from numerics.experiment.numbers import arrays_of, numbers_of
from numerics.experiment.problem import Problem
from numerics.lowering import lower
from numerics.lowering.operations import EvaluateRow, MultiplyRow, ResponseArray
from numerics.lowering.table import KernelRow
from numerics.solver.linear.march import March, march
from numerics.solver.linear.operations import written
from numerics.solver.linear.plan import Plan
from tests.numerics.solver.helpers import solvable


def experiment(samples: int, times: int, depth: int, *, total: float = 3.0) -> Experiment:
    """Return an experiment on random inputs with signs as targets.

    ``total`` = rate x steps is large enough to learn most of them.
    """
    rng = np.random.default_rng(samples)
    x = rng.standard_normal((samples, 64))
    return Experiment.from_dict(
        {
            "network": {"depth": depth},
            "training": {"learning_rate": total / (times - 1), "steps": times - 1, "loss": "mean"},
        },
        inputs=x,
        targets=rng.choice([-1.0, 1.0], samples),
    )


def run(e: Experiment) -> March:
    """Return the march alone, without the kernels of all pairs of samples that a result adds."""
    return march(
        lower(solvable(e.depth, "gd", e.training.loss)),
        steps=len(e.times),
        constants=numbers_of(e),
        data={"K_x": e.kernel, "y": e.targets},
        wanted=tuple(("G", k) for k in range(1, e.depth + 1)),
    )


def nbytes(m: March) -> int:
    """Return the number of bytes of the arrays of a march, with all rows unfolded."""
    groups = (m.correlations, m.responses, m.scalars, m.hoisted)
    return sum(a.nbytes for group in groups for a in group.values())


def operations(samples: int, times: int, depth: int) -> float:
    """Return the operations of the matrix products of a march of all rows, counted from its plan.

    All rows are those that a result with kernels of all samples reads, though no kernel of samples feeds
    back. A row (n, t n_l) times a block (t n_l, t m) takes 2 n n_l m t^2, summed over t a third of T^3; half
    of that if the block is triangular.
    """
    table = lower(solvable(depth, "gd", "mean"))
    plan = Plan(table, tuple(x for x in table.tensors if x[0] != "H"))
    size = {r.field: samples if r.indices else 1 for r in table.fields}
    width = {k: samples if i else 1 for k, i in table.source_indices.items()}
    return products(plan, size, width, times)


def products(plan: Plan, size: dict, width: dict, times: int) -> float:
    """Return the operations of any plan: ``size`` members of each field, ``width`` of each source.

    Responses are triangular, so that products with them take half. Rows of kernels and covariances need no
    product, and are not counted, if they exist at one time only or are the same number at all times (running
    sums).
    """
    squares = 0.0  # what multiplies t^2
    step = written(plan).operations
    kernels = {x.target: x.kernel for x in step if isinstance(x, EvaluateRow)}
    for x in step:
        if isinstance(x, MultiplyRow) and x.of_past and _needs_product(kernels[x.left]):
            answers = isinstance(x.right, ResponseArray)
            right = size[x.right.first] * (width if answers else size)[x.right.second]
            squares += size[x.target.first] * right * (1 if answers else 2)
    return squares * times**3 / 3


def _needs_product(kernel: KernelRow) -> bool:
    return kernel.reach in ("past", "through") and any(m.factors and not m.instant for m in kernel.monomials)


def isotropic(depth: int, times: int, branch: float | None = None) -> Experiment:
    """Return a full-batch experiment on random data whose rate x steps tends to a constant for many times."""
    network = {"depth": depth, "gamma0": 0.8, "width_ratio": 0.8}
    rate = min(0.15, 9 / times) / (depth + 1)
    return Experiment.from_dict(
        {
            "network": network | ({} if branch is None else {"branch": branch}),
            "data": {"kind": "isotropic", "sample_ratio": 1.5},
            "training": {
                "rule": "gd",
                "learning_rate": rate,
                "steps": times - 1,
            },
        }
    )


def prepare(e: Experiment) -> Callable[[], March]:
    """Return a function that runs the march of an experiment with all order parameters of its theory."""
    table = lower(Problem.of(e).discrete)
    return partial(
        march,
        table,
        steps=len(e.times),
        constants=numbers_of(e),
        data=arrays_of(e),
        wanted=tuple(table.tensors),
        watched=(("C_v", None),),
    )


def exponent(sizes, costs) -> float:
    """Return the slope of log cost against log size."""
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])
