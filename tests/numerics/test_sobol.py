"""Scrambled Sobol points: those of SciPy, and no import of its statistics."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytest
from scipy.stats import qmc

from numerics.sobol import directions, uniform_points

SOLUTION = """
import sys
import numerics
from derive.program import mlp
given = {"numbers": {"eta": 0.1, "gamma0": 1.0}, "arrays": {"K_x": [[1.0]], "y": [1.0]}, "times": range(2)}
for depth in (1, 2):
    print(numerics.solve(mlp(depth, "tanh"), **given).method)
print(*sys.modules)
"""


@pytest.mark.parametrize(("count", "dimensions"), [(1, 1), (3, 2), (64, 40), (100, 300)])
def test_points_are_those_of_scipy(count: int, dimensions: int) -> None:
    (own,) = np.random.default_rng(count).spawn(1)
    with warnings.catch_warnings():  # a number of points that is not a power of two
        warnings.simplefilter("ignore", UserWarning)
        theirs = qmc.Sobol(dimensions, seed=np.random.default_rng(count)).random(count)
    assert (uniform_points(count, dimensions, own) == theirs.T).all()


def test_more_dimensions_than_the_table_has_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 21201 dimensions"):
        directions(30_000)


@pytest.mark.slow
def test_solutions_by_nodes_and_paths_import_no_statistics_of_scipy() -> None:
    done = subprocess.run([sys.executable, "-c", SOLUTION], capture_output=True, text=True, check=True)
    *methods, modules = done.stdout.splitlines()
    assert methods == ["nodes", "paths"]
    slow = {"stats", "optimize", "integrate", "interpolate", "sparse", "spatial", "fft", "ndimage"}
    assert not {f"scipy.{x}" for x in slow} & {*modules.split()}
