"""Programs of a user's own go through every command, or are refused in one sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numerics
from derive.theory import mean_field
from numerics.experiment.schema import Solver
from numerics.solver.direct import evaluate
from tests.chance import excess
from tests.numerics.zoo import CASES, Case

STEPS = 3


def given(case: Case) -> dict[str, Any]:
    """The numbers, arrays and times that a command takes beside the program."""
    return {"numbers": dict(case.numbers), "arrays": dict(case.arrays), "times": range(STEPS)}


def judged(case: Case, samples: int = 2**10, replicas: int = 8) -> Any:
    """The same by the reference solver, which reads the theory of the program as it is written."""
    sizes = {"P": len(next(iter(case.arrays.values())))}
    values: Any = {**case.numbers, **sizes, "M": sizes["P"]}
    theory = mean_field(case.make().with_layers_counted())
    return evaluate(theory, steps=STEPS, values=values, data=case.arrays, samples=samples, replicas=replicas)


def distances(value: Any, stderr: Any, other: Any, other_stderr: Any) -> Any:
    """Distances in joint standard errors; what has none agrees to 1e-9."""
    gap, error = np.abs(np.asarray(value) - other), np.hypot(stderr, other_stderr)
    return np.maximum(gap - 1e-9, 0) / np.maximum(error, 1e-12)


@pytest.mark.parametrize("name", ["in sequence", "linear in sequence"])
def test_a_matrix_used_twice_in_a_step_is_sampled_right(name: str) -> None:
    case = CASES[name]
    solver = Solver(method="paths", samples=256)
    found = numerics.solve(case.make(), solver=solver, **given(case))
    expected = judged(case)
    stderr = expected.stderr("f") if expected.runs else 0.0
    z = distances(found.error, found.error_stderr, case.arrays["y"] - expected.value("f"), stderr)
    assert excess(z, 7) < 1
