"""Nonlinear problems of any size for the benchmarks, their counted operations, and errors of results."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

import numpy as np
from xarray import Dataset

from derive.program import P, eta, gamma0, mlp
from derive.theory import Theory, mean_field
from numerics.experiment import Experiment
from numerics.lowering.indices import TIMES
from numerics.lowering.quantities import PathResponse, read_quantities
from numerics.lowering.sizes import SizedTheory
from numerics.solver import solve
from numerics.solver.paths import Solved, solve_particles
from numerics.solver.paths.causal_order import Model, group_of, size_of
from tests.reference.alternating import TANH, Alternated, alternating

NAMES = ("Delta", "Phi", "G")


@cache
def theory(depth: int, activation: str = "tanh") -> Theory:
    """Return the theory of a perceptron trained by gradient descent."""
    return mean_field(mlp(depth, activation))


def problem(samples: int, times: int) -> dict[str, Any]:
    """Return a kernel of random inputs, signs as targets, and a learning rate.

    The rate times the number of steps is large enough to learn most of the targets.
    """
    rng = np.random.default_rng(samples)
    x = rng.standard_normal((samples, 20))
    return {
        "kernel": x @ x.T / 20,
        "targets": rng.choice([-1.0, 1.0], samples),
        "rate": 6 / (times * samples),
        "times": times,
    }


def particles(size: tuple[int, int, int], activation: str = "tanh", **options: Any) -> Solved:
    """Return the solution by sampled paths for ``size`` = (P, T, L)."""
    given = problem(*size[:2])
    return solve_particles(
        theory(size[2], activation),
        steps=size[1],
        values={eta: given["rate"], gamma0: 1.0, P: size[0]},
        data={"K_x": given["kernel"], "y": given["targets"]},
        **options,
    )


def solved(size: tuple[int, int, int], samples: int, seed: int) -> Dataset:
    """Return the result of ``solve`` for the same problem.

    It has eight replicas, and four of half as many paths, which measure the bias.
    """
    given = problem(*size[:2])
    experiment = Experiment.from_dict(
        {
            "network": {"depth": size[2], "activation": "tanh"},
            "training": {"learning_rate": given["rate"], "steps": size[1] - 1, "loss": "sum"},
            "solver": {"samples": samples, "seed": seed, "method": "paths"},
        },
        kernel=given["kernel"],
        targets=given["targets"],
    )
    return solve(experiment)


def of_dataset(d: Dataset) -> Get:
    """Return a function that reads an order parameter of a layer from a dataset."""

    def get(name: str, layer: int | None) -> np.ndarray:
        if layer is None:
            return d.error.values
        return d[name].sel(layer=layer).transpose("sample", "sample_", "time", "time_").values

    return get


def published(size: tuple[int, int, int], **options: Any) -> Alternated:
    """Return the solution of the same problem by the published algorithm 1."""
    given = problem(*size[:2])
    return alternating(
        given.pop("kernel"), given.pop("targets"), TANH, depth=size[2], gamma0=1.0, **given, **options
    )


Get = Callable[[str, int | None], np.ndarray]


def of_solved(s: Solved) -> Get:
    """Return a function that reads an order parameter of a layer from sampled paths."""
    return s.value


def of_published(a: Alternated) -> Get:
    """Return a function that reads an order parameter of a layer from the published algorithm's result."""
    return lambda name, layer: a.error if layer is None else getattr(a, name)[layer - 1].transpose(2, 3, 0, 1)


def off(get: Get, exact: Get, name: str, depth: int) -> float:
    """Return the root mean square difference over all entries of all layers."""
    layers = [None] if name == "Delta" else list(range(1, depth + (name not in "AB")))
    return float(np.sqrt(np.mean([np.mean((get(name, k) - exact(name, k)) ** 2) for k in layers])))


def operations(size: tuple[int, int, int], samples: int) -> float:
    """Return the number of operations of products and triangular solves of one replica, by Stein's lemma.

    With n = T x entries, products with all paths take n^2 x samples each: drawing a source (its triangle
    times normal numbers), a sum over the past, a kernel (all pairs of times once), Stein's moments. Two
    Cholesky factors of each source that responses need, one of the others, take n^3 / 3; a response takes two
    more triangular solves at each step. The march takes fewer: sources have fewer independent numbers than
    entries, and kernels that do not change with time need no sum over the past.
    """
    model = Model(read_quantities(SizedTheory.of(theory(size[2]), {"eta": 1.0, "gamma0": 1.0, "P": size[0]})))
    times = size[1]
    with_paths, squares = 0.0, 0.0
    asked = set()
    for q in model.tables.quantities.values():
        for what in {m.quantity for ms in q.memories.values() for m in ms}:
            inner = prod(model.tables.quantities[what].sizes)
            with_paths += prod(q.sizes) * inner
    for e in model.tables.entries.values():
        for c in e.averages.values():
            if isinstance(c, PathResponse):
                m, n = (
                    size_of(model, group_of(model, c.source)),
                    prod(model.tables.quantities[c.quantity].sizes),
                )
                asked.add(group_of(model, c.source))
                with_paths += m * n
                squares += n * m**2 * (2 + 1 + 1) / 3  # moments of entries; there and back through a triangle
            elif c.second is not None:
                with_paths += prod(model.tables.quantities[c.first].sizes) * prod(
                    model.tables.quantities[c.second].sizes
                )
    for i in range(len(model.groups)):
        moving = any(
            any(x in c.expr.free_symbols for x in TIMES)
            for (a, _), c in model.tables.covariances.items()
            if a in model.groups[i]
        )
        if moving:
            with_paths += size_of(model, i) ** 2
            squares += size_of(model, i) ** 3 * (1 + (i in asked)) / 3
    return with_paths * times**2 * samples + squares * times**3
