"""Options of the solver, method by method: each is read, refused, or named by the result as not used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr

import numerics
from derive.program import Program, mlp
from derive.program.networks import random_features
from numerics.errors import NotConverged, SpecError
from numerics.experiment import Experiment
from numerics.experiment.schema import Solver
from tests.numerics.networks.random_features import power_law_arrays

ARRAYS = {"K_x": [[1.0]], "y": [1.0]}
VALUES: dict[str, tuple[Any, Any]] = {"samples": (64, 96), "seed": (1, 2), "rtol": (1e-3, 1e-9)}
"""Two values of each option, none of which is the default."""

Solve = Callable[..., xr.Dataset]


def on_samples(program: Program, times: Any, **numbers: float) -> Solve:
    """Return a function that solves a program on one sample with options of the solver."""
    given = ({"eta": 0.2} if program.rule.discrete else {}) | {"gamma0": 1.0} | numbers
    return lambda **options: numerics.solve(
        program, numbers=given, arrays=ARRAYS, times=times, solver=Solver(**options), kernels="none"
    )


def at_infinite_depth(**options: Any) -> xr.Dataset:
    tables = {"network": {"depth": "L", "branch": 1.0}, "training": {"learning_rate": 0.1, "steps": 2}}
    experiment = Experiment.from_dict(tables | {"solver": options}, kernel=[[1.0]], targets=[1.0])
    return numerics.solve(experiment, kernels="none")


def on_random_data(**options: Any) -> xr.Dataset:
    numbers, times = {"N": 3.0}, [0.0, 0.3]
    program, arrays = random_features(data="population"), power_law_arrays(2)
    return numerics.solve(program, numbers=numbers, arrays=arrays, times=times, solver=Solver(**options))


STEPS, FLOW = range(3), [0.0, 0.2]


def cases() -> dict[str, tuple[str, Callable[[], Solve]]]:
    """Return the method and the problem of each case by name; problems are built when a test runs."""
    return {
        "transform": ("transform", lambda: on_random_data),
        "march": ("march", lambda: on_samples(mlp(1), STEPS)),
        "march-flow": ("march", lambda: on_samples(mlp(1, rule="flow"), FLOW)),
        "layers": ("layers", lambda: at_infinite_depth),
        "nodes": ("nodes", lambda: on_samples(mlp(1, "tanh"), STEPS)),
        "nodes-flow": ("nodes", lambda: on_samples(mlp(1, "tanh", rule="flow"), FLOW)),
        "lazy": ("lazy", lambda: on_samples(mlp(1, "tanh"), STEPS, gamma0=1e-3)),
        "lazy-flow": ("lazy", lambda: on_samples(mlp(1, "tanh", rule="flow"), FLOW, gamma0=1e-3)),
        "paths": ("paths", lambda: on_samples(mlp(1, "tanh"), STEPS)),
        "rest": ("rest", lambda: on_samples(mlp(1, "relu", weight_decay=1.0), range(8))),
        "direct-linear": ("direct", lambda: on_samples(mlp(1), STEPS)),
    }


SLOW = ("nodes-flow",)
NAMES = [pytest.param(x, marks=pytest.mark.slow) if x in SLOW else x for x in cases()]


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("case", NAMES)
def test_an_option_is_read_or_refused_or_named(case: str, name: str) -> None:
    method, build = cases()[case]
    with_paths = {"samples": 64} if method in ("paths", "rest") else {}
    solve = build()
    try:
        one, other = (solve(**{"method": method, **with_paths, name: x}) for x in VALUES[name])
    except SpecError as refusal:
        if refusal.key != f"solver.{name}":
            raise
        return
    same = all(np.array_equal(x.values, other[k].values) for k, x in one.data_vars.items())
    named = f"solver.{name} = " in one.attrs.get("unused_options", "")
    assert same == named


@pytest.mark.parametrize("case", NAMES)
def test_an_accuracy_is_met_or_the_result_is_not_converged(case: str) -> None:
    method, build = cases()[case]
    asked = 1e-3 if method in ("paths", "rest") else 1e-12
    try:
        found = build()(method=method, accuracy=asked)
    except NotConverged:
        return
    errors = [found.attrs.get(k) for k in ("error_estimate", "accuracy")]
    met = all(x <= asked for x in errors if x is not None)
    assert met or found.attrs["status"] == "not converged"
