"""Tests of the accuracy of sampled paths: power of their number, bias, coverage, planted errors."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from scipy.stats import t as student

import numerics
from derive.program import P, eta, gamma0
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.experiment.schema import Solver
from numerics.results import interval
from numerics.solver import solve
from numerics.solver import solve as solve_linear
from numerics.solver.paths import Solved, solve_particles
from numerics.solver.paths.gaussian import Growing, Latents, NotPositive, Room, Scrambled
from numerics.solver.paths.problem import forecast
from numerics.solver.paths.solve import Prepared
from tests.benchmarks.programs import CASES
from tests.derive.once import mean_field, mlp, scaled
from tests.numerics.solver.coverage import NAMES, coverage, solution, truth
from tests.numerics.solver.helpers import TARGETS, gd, kernel

DATA: dict[str, Any] = {"K_x": kernel(2), "y": TARGETS[:2]}
VALUES = {eta: 0.3, gamma0: 1.1, P: 2}


def solved(depth: int, activation: str, **options: Any) -> Solved:
    given: dict[str, Any] = {"steps": 4, "values": VALUES, "data": DATA} | options
    theory = mean_field(mlp(depth, activation))
    return solve_particles(given.pop("change", lambda x: x)(theory), **given)


# -- the power of the number of paths ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("activation", "depth"),
    [
        ("tanh", 1),
        pytest.param("relu", 2, marks=pytest.mark.slow),
        pytest.param("tanh", 2, marks=pytest.mark.slow),
    ],
)
def test_errors_fall_faster_than_those_of_independent_paths(activation: str, depth: int) -> None:
    """Check the power of the error in the number of paths.

    Independent paths give the power -1/2; scrambled nets a steeper one (the variance of any average is
    o(1/S)), up to -3/2 for smooth functions (Owen 1997), apart from logarithms. Half of the paths are a net.
    One of fewer than 16 points has no such power yet.
    """
    exact = solved(depth, activation, samples=4096, replicas=8, seed=99)
    sizes, replicas = np.array([32, 64, 128, 256]), 48 * depth
    for name, layer in (("Delta", None), ("Phi", depth), ("G", 1)):
        logs = []
        for n in sizes:
            runs = solved(depth, activation, samples=int(n), replicas=replicas, seed=int(n)).runs
            gaps = runs[name, () if layer is None else (layer,)] - exact.value(name, layer)
            groups = (gaps.reshape(6, replicas // 6, -1) ** 2).mean(axis=(1, 2))
            logs.append(np.log(groups) / 2)
        slopes = np.polyfit(np.log(sizes), np.array(logs), 1)[0]  # one fit for each group of replicas
        slope, error = slopes.mean(), slopes.std(ddof=1) / np.sqrt(len(slopes))
        assert error < 0.1, (name, error)
        assert slope + 3.4 * error < -0.5, (name, slope, error)  # Student's t of 5 degrees, one per cent
        assert slope + 3.4 * error > -1.5, (name, slope, error)


def test_scrambled_points_fill_every_dimension_evenly() -> None:
    """Each interval of length 1/64 holds one of 64 points; over scrambles no two dimensions agree."""
    points = [Scrambled(40, 64, [np.random.default_rng(n)]).uniform(slice(None))[0] for n in range(50)]
    for x in points[0]:
        assert sorted((x * 64).astype(int)) == list(range(64))
    first = np.array([x[:, 3] for x in points])  # one point in all dimensions, over scrambles
    assert np.abs(first.mean(axis=0) - 0.5).max() < 4.2 / np.sqrt(12 * len(points))
    together = np.mean([np.corrcoef(x) for x in points], axis=0) - np.eye(40)
    assert np.abs(together).max() < 0.25


# -- bias, and planted errors --------------------------------------------------------------------------------


def departures(depth: int, **options: Any) -> np.ndarray:
    """Return means over 50 seeds minus the linear solver, in their standard errors: Delta, Phi and G."""
    e = gd(depth, 2, rate=0.3, steps=3, gamma0=1.1, targets=TARGETS[:2])
    exact = solve_linear(e)
    ours = solved(depth, "linear", matched=False, replicas=50, samples=128, **options)
    found = []
    for name, its in (("Delta", "error"), ("H", "Phi"), ("G", "G")):
        for layer in [None] if name == "Delta" else range(1, depth + 1):
            value, error = ours.value(name, layer), ours.stderr(name, layer)
            theirs = exact[its].values if layer is None else exact[its].values[layer - 1]
            if name == "H":
                theirs = theirs.transpose(2, 3, 0, 1)
            assert theirs.shape == value.shape
            moving = error > 1e-9
            assert np.abs(value - theirs)[~moving].max(initial=0.0) < 1e-9
            found.append(((value - theirs)[moving] / error[moving]).ravel())
    return np.concatenate(found)


@pytest.mark.parametrize("depth", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_no_bias_against_the_linear_solver(depth: int) -> None:
    """Check 50 seeds with unmatched paths against the linear solver.

    All numbers are within the bound that one in a hundred such tests passes, if all numbers were independent;
    their mean square is that of two standard errors at most.
    """
    z = departures(depth, seed=7)
    assert np.abs(z).max() < student.ppf(1 - 0.01 / (2 * len(z)), 49)
    assert np.sqrt((z**2).mean()) < 2


def test_an_error_would_be_seen() -> None:
    """The same test without the responses fails, by far."""
    z = departures(2, seed=7, change=lambda theory: scaled(theory, "response", 0))
    assert np.abs(z).max() > 20


# -- intervals -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("activation", "names"),
    [("tanh", "Delta f Phi G A B"), ("softplus", "Delta f Phi G A B"), ("relu", "Delta f Phi G")],
)
def test_intervals_of_all_outputs_cover(activation: str, names: str) -> None:
    """95 per cent intervals of 8 replicas, the default, by Student's t: 100 of them for every number.

    With kinks responses come from Stein's lemma, whose single entries are smoothed: left out. The bias by
    finitely many paths falls faster than the error. At 128 paths it is half an error for softplus, whose
    intervals then cover 88 per cent; at 512 it is a fifth of one.
    """
    exact = solved(2, activation, steps=5, samples=4096, replicas=24, seed=77)
    ours = solved(2, activation, steps=5, samples=512, replicas=800)
    inside: dict[str, list[float]] = {}
    for name, layer in exact.values:
        if name not in names.split():
            continue
        of = layer or None
        parts = ours.runs[name, layer].reshape(100, 8, *exact.value(name, of).shape)
        error = parts.std(axis=1, ddof=1) / np.sqrt(8)
        moving = error.min(axis=0) > 1e-9
        held = np.abs(parts.mean(axis=1) - exact.value(name, of)) < student.ppf(0.975, 7) * error
        if moving.any():
            inside.setdefault(name, []).append(float(held[:, moving].mean()))
    assert set(inside) == set(names.split())
    for name, shares in inside.items():
        assert 0.9 <= np.mean(shares) <= 0.98, (name, shares)


# -- replicas together ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("responses", ["stein", "jacobian"])
def test_replicas_do_not_depend_on_those_marched_with_them(responses: str) -> None:
    options: dict[str, Any] = {"samples": 16, "replicas": 3, "responses": responses, "steps": 3}
    together = solved(2, "tanh", **options)
    alone = solved(2, "tanh", **options | {"replicas": 2})
    for place, runs in together.runs.items():
        np.testing.assert_allclose(alone.runs[place], runs[:2], rtol=1e-9, atol=1e-11)
    more = solved(2, "tanh", **options | {"replicas": 4})
    np.testing.assert_allclose(more.runs["f", ()][:3], together.runs["f", ()], rtol=1e-9, atol=1e-11)


@pytest.mark.slow
def test_the_ridge_takes_the_bias_of_responses_away() -> None:
    """Two paths for each entry of a source: noise of responses makes G larger, unless the lemma is damped."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(6, 6))
    options: dict[str, Any] = {
        "steps": 16,
        "values": {eta: 0.1, gamma0: 2.0, P: 6},
        "data": {"K_x": inputs @ inputs.T / 6, "y": rng.choice([-1.0, 1.0], 6)},
        "responses": "stein",
    }
    theory = mean_field(mlp(3, "tanh"))
    many = solve_particles(theory, samples=3072, replicas=8, seed=1, **options)

    def off(**more: Any) -> float:
        """Return the mean of G of the last layer at the last time, in joint standard errors."""
        few = solve_particles(theory, samples=192, replicas=40, seed=2, **options | more)
        means = [np.einsum("rmm->r", x.runs["G", (3,)][..., -1, -1]) for x in (few, many)]
        error = np.hypot(*[m.std(ddof=1) / np.sqrt(len(m)) for m in means])
        return float((means[0].mean() - means[1].mean()) / error)

    assert off(ridge=0.1 / 192) > 5
    assert abs(off()) < 3


def test_a_small_ridge_keeps_its_accuracy() -> None:
    """Check the inverse in the lemma, which changes in each of 30 steps, with a ridge of a millionth.

    An inverse that does not stay symmetric ends 0.1 to 1 away from the default ridge; noise leaves 0.003
    between them.
    """
    options: dict[str, Any] = {"steps": 30, "samples": 256, "replicas": 2, "responses": "stein"}
    options["values"] = {eta: 0.1, gamma0: 1, P: 2}
    small, default = (solved(2, "tanh", ridge=x, **options).value("Delta")[-1] for x in (1e-6, None))
    assert np.abs(small - default).max() < 0.02


# -- description of a result ---------------------------------------------------------------------------------


def test_few_paths_of_a_wild_network_are_not_converged() -> None:
    """At a rate of 2.7 replicas of 64 paths are apart by more than a tenth; at a rate of 0.5 they are not."""
    network = {"depth": 2, "activation": "tanh", "gamma0": 4.0}
    tables = {"network": network, "training": {"learning_rate": 2.7, "steps": 20}, "solver": {"samples": 64}}
    wild = Experiment.from_dict(tables, kernel=[[1.0, 0.3], [0.3, 1.0]], targets=[1.0, -1.0])
    poor, good = (solve(wild.replace({"training.learning_rate": x})) for x in (2.7, 0.5))
    assert poor.attrs["accuracy"] > 0.1
    assert (poor.attrs["status"], good.attrs["status"]) == ("not converged", "ok")


def test_what_is_cut_from_a_covariance_is_the_nearest_positive_one() -> None:
    """A variance of -1e-4 given the past is set to zero and reported; one of -1e-2 is refused."""
    for size, cut in ((1e-4, True), (1e-2, False)):
        latents = Latents([64], 4, [np.random.SeedSequence(0)], False, Room())
        growing = Growing(latents, 2, 1, False, 0.0, Room())
        now = np.array([[[1.0, np.sqrt(1 + size)], [np.sqrt(1 + size), 1.0]]])
        if cut:
            growing.extend(np.zeros((1, 2, 0)), now)
            assert growing.cut == pytest.approx(size, rel=1e-6)
        else:
            with pytest.raises(NotPositive):
                growing.extend(np.zeros((1, 2, 0)), now)


def test_a_fixed_pivot_that_a_perturbation_makes_dependent_is_refused() -> None:
    """Later pivots would get the normal numbers of other sources."""
    latents = Latents([64], 4, [np.random.SeedSequence(0)], False, Room())
    now = np.array([[[1.0, 1.0], [1.0, 1.0]]])
    growing = Growing(latents, 2, 1, False, 0.0, Room())
    growing.given = iter([np.array([[0, 1]])])
    with pytest.raises(NotPositive, match=r"the conditional variance of a source given the past is 0 of"):
        growing.extend(np.zeros((1, 2, 0)), now)


@pytest.mark.parametrize("ridge", [0.0, 0.1])
def test_responses_to_the_past_are_the_same_once_more_is_drawn(ridge: float) -> None:
    """Stein's lemma for the first entries, before and after others that new normal numbers are drawn for."""
    growing = Growing(
        Latents([64], 12, [np.random.SeedSequence(0)], False, Room()), 2, 6, False, ridge, Room()
    )
    root = np.random.default_rng(0).standard_normal((1, 12, 12))
    covariance = root @ root.transpose(0, 2, 1)
    paths = [
        growing.extend(covariance[:, k : k + 2, :k], covariance[:, k : k + 2, k : k + 2]) for k in (0, 2, 4)
    ]
    seen = np.tanh(paths[0] + paths[2])
    before = growing.responses(growing.moments(seen), 6)
    growing.extend(covariance[:, 6:8, :6], covariance[:, 6:8, 6:8])
    after = growing.responses(growing.moments(seen), 6)
    np.testing.assert_allclose(after, before, rtol=1e-10, atol=1e-12)


def test_replicas_of_half_the_paths_march_beside_others() -> None:
    """Their numbers are the same as without the others."""
    theory, data = mean_field(mlp(2, "tanh")), {"K_x": [[1.0, 0.3], [0.3, 1.0]], "y": [1.0, -1.0]}
    prepared = Prepared(theory, steps=6, values={eta: 0.3, gamma0: 1.0, P: 2}, data=data, responses="stein")
    seeds = [np.random.SeedSequence(n) for n in (0, 1)]
    (both,) = prepared.batches([32, 64], seeds)
    for k, samples in enumerate((32, 64)):
        (alone,) = prepared.batches([samples], [np.random.SeedSequence(k)])
        for node, x in alone.items():
            np.testing.assert_allclose(both[node][k], x[0], rtol=1e-6, atol=1e-9)


def test_losses_are_those_of_the_mean_errors() -> None:
    """Check that the mean of losses is corrected by the variance of the errors.

    This variance is more than its standard error once a rich network has learnt. Without it no bias is left,
    and the jackknife equals this correction exactly.
    """
    result = solution("rich", 64, 0)
    error, variance = result.error.values, result.error_stderr.values**2
    expected = np.maximum((error**2 - variance).mean(axis=1), 0)
    np.testing.assert_allclose(result.train_loss, expected, rtol=1e-9, atol=1e-15)
    late = slice(5, None)
    replicas = (error**2 + (result.replicas - 1) * variance).mean(axis=1)  # the mean of losses
    true, wide = solution("rich", 2048, 1).train_loss.values, interval(result, "train_loss")
    assert (np.abs(replicas - true) > wide)[late].mean() > 0.5
    assert (np.abs(result.train_loss - true) < wide)[late].mean() > 0.5


@pytest.mark.parametrize(
    ("name", "samples", "said"),
    [
        ("tanh", 64, "kernels: 64 paths for the 12 entries of a source, 16 for each would do"),
        ("tanh", 256, ""),
        ("rich", 1024, "G: a standard error of"),
    ],
)
def test_what_replicas_do_not_tell_is_said(name: str, samples: int, said: str) -> None:
    """Few paths for each entry, and kernels below their noise."""
    found = solution(name, samples, 0)
    assert found.attrs["status"] == "ok"
    assert found.attrs.get("unknown_errors", "").startswith(said)
    assert ("unknown_errors" in found.attrs) == bool(said)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tanh", "momentum", "rich"])
def test_intervals_of_the_default_hold_the_true_value_as_often_as_they_say(name: str) -> None:
    """60 seeds: entries of one seed go together, so that a share is known to about 3 per cent."""
    found = coverage(name, None, 60, truth(name, 2))
    assert found.poor == 0
    assert found.unknown == (1 if name == "rich" else 0)
    known = NAMES[:2] if found.unknown else NAMES
    assert all(0.88 < found.shares[x] < 0.99 for x in known), found.shares


@pytest.mark.slow
def test_no_seed_of_the_default_flow_fails() -> None:
    """Covariances of ever closer times are hardly positive: some seeds in a hundred failed."""
    assert {solution("flow", None, seed).attrs["status"] for seed in range(50)} == {"ok"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [4, 25, 30])
def test_close_times_with_many_paths_keep_their_accuracy(seed: int) -> None:
    """Seeds that failed while pivots were distinguished by a hundred millionth of a variance."""
    assert solution("flow", 16384, 10**6 + seed).attrs["status"] == "ok"


@pytest.mark.slow
def test_arrays_of_a_solution_are_freed_with_it() -> None:
    """Without waiting for the collector of circles, which came by after gigabytes."""
    solution("tanh", 64, 0)  # what the first one compiles stays
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        solution("tanh", 64, 1)
        gc.collect()
        held = [y for x in gc.garbage for y in gc.get_referents(x) if isinstance(y, np.ndarray)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert sum(x.nbytes for x in held) < 1e4


@pytest.mark.parametrize("name", ["two experts", "attention"])
def test_losses_do_not_depend_on_which_kernels_are_kept(name: str) -> None:
    """Correlations that no step reads are found only where a result holds them, and cost nothing else."""
    case = CASES[name](False)
    solver = Solver(method="paths", samples=64)
    full, none = (
        numerics.solve(case.program, kernels=kernels, solver=solver, **case.given)
        for kernels in ("full", "none")
    )
    assert {*none.data_vars} <= {*full.data_vars}
    for label in none.data_vars:
        np.testing.assert_array_equal(none[label], full[label])


def test_the_estimate_leaves_out_kernels_that_are_not_kept() -> None:
    case = CASES["autoencoder"](True)
    problem = Problem.of(case.program, solver=Solver(method="paths"), **case.given)
    seconds, bytes_ = zip(*(forecast(problem, kernels)[:2] for kernels in ("full", "none")), strict=True)
    assert seconds[1] < seconds[0] / 2
    assert bytes_[1] < bytes_[0]
