"""The closure's laws at a number for gamma0: exact memories give the exact f."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from derive.calculus.symbols import ell
from numerics.errors import NotConverged
from numerics.expansion import closure_of
from numerics.expansion.closure import Closed
from numerics.expansion.coefficients import Setting
from numerics.expansion.fixed_error import ClosureAtStrength, output_at, solved_for, with_kernels
from numerics.expansion.operators import Dense, LayerOperator, SeparableKernel, remembered
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.solver import solve

STRENGTH = 1.5


def experiment(depth: int) -> Experiment:
    return Experiment.from_dict(
        {
            "network": {"depth": depth, "gamma0": STRENGTH},
            "training": {"learning_rate": 0.1, "steps": 8, "loss": "sum"},
        },
        kernel=np.array([[1.0, 0.3], [0.3, 0.6]]),
        targets=np.array([1.0, -0.5]),
    )


def closed(e: Experiment) -> Closed:
    problem = Problem.of(e)
    closure = closure_of(problem)
    assert closure is not None
    return Closed.of(Setting(problem), closure)


def dense(a: np.ndarray) -> SeparableKernel:
    """Return a correlation (T, n, T, n) as left core right, without loss."""
    T, n = a.shape[:2]
    one = np.eye(T * n).reshape(T, n, T * n)
    return SeparableKernel(one, a.reshape(T * n, T * n), one)


def from_exact(depth: int, factor: float = 1.0) -> tuple[ClosureAtStrength, np.ndarray, xr.Dataset]:
    """Return laws with the memories of the full solution, f, and the solution.

    Memories of inner H are multiplied by ``factor``.
    """
    e = experiment(depth)
    full, c = solve(e, kernels="full"), closed(e)
    error = np.asarray(full.error.values)
    correlations = {
        "H": lambda k: factor * full.Phi.values[k - 1].transpose(0, 2, 1, 3),
        "G": lambda k: full.G.values[k - 1][:, None, :, None],
    }
    ends = ClosureAtStrength(c, STRENGTH, {})

    def body(name: str, site: int) -> LayerOperator:
        value = ends.at(name, site) if site == c.layers.base[name][0] else dense(correlations[name](site))
        assert value is not None
        return value

    memories, given = {}, {}
    for name in c.layers.kernels:
        for site in range(1, depth + 1):
            (place,) = c.layers.made_of[name, site][1]
            memories[name, site] = remembered(c.layers.kernels[name], c.memory[name], error, body(*place))
            if place[0] == "G":
                given[place] = body(*place)
    return with_kernels(c, STRENGTH, given, memories), e.targets - error, full


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_exact_memories_give_the_exact_output(depth: int) -> None:
    laws, f, _ = from_exact(depth)
    assert np.max(np.abs(laws.output() - f)) < 1e-12


def test_wrong_memories_do_not() -> None:
    laws, f, _ = from_exact(2, 1.01)
    assert np.max(np.abs(laws.output() - f)) > 1e-4


def test_responses_and_correlations_are_those_of_the_full_solution() -> None:
    laws, _, full = from_exact(3)
    T = laws.closed.T
    for site in (1, 2):
        A, H = laws.at("A", site), laws.at("H", site)
        assert isinstance(A, Dense)
        assert isinstance(H, SeparableKernel)
        exact = full.A.values[site - 1].transpose(0, 2, 1)
        assert np.max(np.abs(A.block[..., 0] - exact)) < 1e-12
        found = H.at(np.arange(T)).transpose(0, 2, 1, 3)
        assert np.max(np.abs(found - full.Phi.values[site - 1])) < 1e-12
    narrow = laws.without(["G"])
    G = narrow.at("G", 2)
    assert isinstance(G, SeparableKernel)
    assert np.max(np.abs(G.at(np.arange(T))[:, 0, :, 0] - full.G.values[1])) < 1e-12


def test_loops_are_solved_through_the_fewer_entries() -> None:
    """Both ways to apply ``(1 - C D)^-1`` agree."""
    laws, _, _ = from_exact(2)
    C, D, H = laws.at("C", 2), laws.at("D", 2), laws.at("H", 1)
    assert isinstance(C, Dense)
    assert isinstance(D, Dense)
    assert isinstance(H, SeparableKernel)
    loop = Dense(STRENGTH**2 * (C.matrix @ D.matrix).reshape(*C.block.shape[:2], *D.block.shape[2:]))
    direct = solved_for(loop, H)
    assert isinstance(direct, SeparableKernel)
    back = direct.left.reshape(len(loop.matrix), -1)
    assert np.max(np.abs(back - loop.matrix @ back - H.left.reshape(len(back), -1))) < 1e-12
    law = laws.closed.layers.laws["A"][2]
    by_fewer = laws.by_law("A", 2)
    assert isinstance(by_fewer, Dense)
    direct = solved_for(loop, C)
    assert isinstance(direct, Dense)
    assert law.has(laws.closed.layers.kernels["C"].operator.subs(ell, 2))
    assert np.max(np.abs(by_fewer.block - direct.block)) < 1e-12


def test_strengths_without_approximants_are_refused() -> None:
    e = experiment(3)
    error = np.repeat(e.targets[None], len(e.times), axis=0)
    with pytest.raises(NotConverged, match="a smaller gamma0"):
        output_at(closed(e), error, 4, 60.0)
