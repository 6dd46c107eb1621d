"""Adam in two layers: seconds and memory of a solution, and networks that are trained to the same error."""

from __future__ import annotations

import time
import tracemalloc

import numpy as np
import pytest

from derive.program import adam, eta, lion, mlp, sign_descent
from derive.theory import mean_field
from numerics.experiment.schema import Solver
from numerics.solver.paths.solve import Prepared, solve_particles
from tests.benchmarks.programs import Case
from tests.benchmarks.test_programs import ASKED, Measured, networks, seconds_of_networks, solution
from tests.numerics.solver.entrywise_networks import MEAN, SMALL, SQUARE, Setting, X, Y, trained

RATE, STEPS, LOOSE = 0.05, 10, 0.1
RULES = {"sign": sign_descent(eta), "Lion": lion(eta), "Adam": adam(eta, MEAN, SQUARE, SMALL)}
TITLE = "Adam in two layers, 3 samples and 10 steps, to 0.5 %, and networks to the same error"


def case_of(rule: str, steps: int) -> Case:
    """Return the case of two tanh layers on three samples."""
    program = mlp(2, "tanh", rule=RULES[rule])
    return Case(program, {"eta": RATE, "gamma0": 1.0}, {"x": X, "y": Y}, steps)


def written_out(steps: int, width: int, seeds: int) -> Measured:
    """Return errors and time of networks in plain NumPy, trained side by side without a general program."""
    setting = Setting("adam", 2, "tanh", (RATE,) * steps)
    started = time.process_time()
    found = trained(setting, width, seeds)
    seconds = (time.process_time() - started) / seeds
    errors = setting.error(found["f"])
    spreads = [x.std(axis=0, ddof=1) / np.abs(x.mean(axis=0)).max() for x in (found["loss"], errors)]
    return Measured(np.concatenate([x.ravel() for x in spreads]), seconds)


def test_adam_to_half_a_percent(timed, note):
    """Under 5 s on one core with all kernels, and 30 times less than the faster of two kinds of networks."""
    steps, width, seeds = (STEPS, 128, 48) if timed else (2, 4, 4)
    case = case_of("Adam" if timed else "sign", steps)
    if timed:
        solution(case, ASKED, kernels="none")  # imports, and compiles the rule
        networks(case, 4, 2)
    method, error, seconds = solution(case, ASKED, solver=Solver(accuracy=ASKED if timed else LOOSE))
    assert method == "paths"
    kinds = {
        "numerics.simulate": [networks(case, n, seeds) for n in (width, 2 * width)],
        "written out": [written_out(steps, n, seeds) for n in (width, 2 * width)],
    }
    taken = {name: seconds_of_networks(*pair, error) for name, pair in kinds.items()}
    for name, networks_s in taken.items():
        row = {"networks": name, "error": error, "all_kernels_s": seconds, "networks_s": networks_s}
        note(TITLE, **row, times_less=round(networks_s / seconds))
    if timed:
        assert error <= ASKED
        assert seconds < 5
        assert min(taken.values()) > 30 * seconds


@pytest.mark.parametrize("rule", RULES)
def test_memory_is_that_of_pairs_of_paths(rule, timed, note):
    """Numbers of a replica: one for each pair of paths, and one more for each state of the rule."""
    paths, replicas = (1024, 8) if timed else (16, 2)
    case = case_of(rule, STEPS if timed else 2)
    theory = mean_field(case.program)
    told = {"steps": case.steps + 1, "values": {**case.numbers, "P": len(X)}}
    told["data"] = {**case.arrays, "K_x": X @ X.T / X.shape[1]}
    solve_particles(theory, samples=16, replicas=2, **told)  # compiles the theory
    tracemalloc.start()
    solve_particles(theory, samples=paths, replicas=replicas, **told)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    counted, pairs = Prepared(theory, **told).bytes(paths), 8 * (1 + len(RULES[rule].states)) * paths**2
    note(
        "Memory of entrywise rules, two layers, 8 replicas of 1024 paths",
        rule=rule,
        peak_MB=peak / 1e6,
        counted_MB=replicas * counted / 1e6,
        pairs_MB=replicas * pairs / 1e6,
    )
    assert counted > pairs
    if timed:
        assert peak < 1.25 * replicas * counted
