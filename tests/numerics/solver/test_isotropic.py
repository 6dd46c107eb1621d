"""The march on isotropic data: against a reference that shares nothing with it, and what must hold anyway."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numerics.errors import Diverged
from numerics.experiment import Experiment
from numerics.solver import solve
from tests.reference.isotropic_dense import Isotropic, isotropic_dense

Array = np.ndarray[Any, np.dtype[np.float64]]
Options = dict[str, Any]
"""As `isotropic_dense` takes them, but infinite widths are left out."""

EPS = float(np.finfo(float).eps)


def experiment(options: Options, steps: int) -> Experiment:
    o = {"gamma0": 1.0, "center": False} | options
    network = {"depth": o["depth"], "gamma0": o["gamma0"]}
    network |= {"width_ratio": o["nu"]} if "nu" in o else {}
    keys = {"alpha": "sample_ratio", "alpha_B": "batch_ratio", "noise": "noise"}
    data = {"kind": "isotropic"} | {key: o[name] for name, key in keys.items() if name in o}
    rule = "sgd" if "alpha_B" in o else "gd"
    training = {"rule": rule, "learning_rate": o["eta"], "steps": steps, "center": o["center"]}
    return Experiment.from_dict({"network": network, "data": data, "training": training})


def solved(options: Options, steps: int) -> dict[str, Array]:
    return {str(k): x.values for k, x in solve(experiment(options, steps)).data_vars.items()}


# -- the reference -------------------------------------------------------------------------------------

DATA = {
    "full batch": {"alpha": 1.5},
    "full batch, noise": {"alpha": 0.8, "noise": 0.3},
    "online": {"alpha_B": 1.2},
    "online, noise": {"alpha_B": 2.0, "noise": 0.5},
    "population": {},
}
UNEVEN = [0.7, 1.3, 0.9, 1.1]
WIDTHS: dict[str, Callable[[int], Options]] = {
    "wide": lambda _: {},
    "one ratio": lambda _: {"nu": 0.8},
    "ratios": lambda depth: {"nu": UNEVEN[:depth]},
}
CHOSEN = [
    (1, "population", "wide", True),
    (2, "full batch, noise", "ratios", False),
    (2, "online, noise", "one ratio", True),
    (3, "full batch", "wide", False),
]
ALL = list(product((1, 2, 3, 4), DATA, WIDTHS, (False, True)))
RUNS = [*CHOSEN, *(pytest.param(*x, marks=pytest.mark.slow) for x in ALL if x not in CHOSEN)]


@pytest.mark.parametrize(("depth", "data", "widths", "center"), RUNS)
def test_the_march_is_the_dense_reference(depth: int, data: str, widths: str, center: bool) -> None:
    """Compare every order parameter at all pairs of 31 times, relative to its largest entry.

    Both are exact up to rounding: 30 steps of 2 L + 3 fields, sums of up to 31 terms each, add up to a few 30
    (2 L + 3) eps = 6e-14 in stable dynamics.
    """
    options = {"depth": depth, "eta": 0.18 / (depth + 1), "gamma0": 0.8, "center": center}
    options |= DATA[data] | WIDTHS[widths](depth)
    found, expected = solved(options, 30), isotropic_dense(31, **options)
    assert expected.C_v[-1, -1] < 0.6 * expected.C_v[0, 0]  # something was learned
    assert np.abs(np.diagonal(expected.C_g[0]) - expected.C_g[0, 0, 0]).max() > 0.02  # and features moved
    compared = {f.name for f in fields(Isotropic)} & set(found)
    assert compared >= {"C_v", "C_h0", "C_h", "C_g", "R_gu"}
    assert "C_Delta" in compared or data == "population"
    assert {"R_Delta", "R_vu"} <= compared or not data.startswith("full")
    assert "R_h0r0" in compared or widths == "wide"
    for name in compared:
        a, b = found[name], getattr(expected, name)
        if name == "R_hr":  # that of the last layer is read by nothing
            a, b = a[:-1], b[:-1]
        if name == "C_Delta" and data.startswith("online"):  # different samples at different times
            a, b = np.diagonal(a), np.diagonal(b)
        assert np.abs(a - b).max() <= 1e-12 * np.abs(b).max(), name
    noise = options.get("noise", 0.0)
    test = np.diagonal(expected.C_v) + noise**2
    train = test if data == "population" else np.diagonal(expected.C_Delta)
    assert found["test_loss"] == pytest.approx(test, abs=1e-12 * test.max())
    assert found["train_loss"] == pytest.approx(train, abs=1e-12 * train.max())


# -- invariants for all numbers ------------------------------------------------------------------------


@st.composite
def problems(draw: st.DrawFn, depths: tuple[int, ...] = (1, 2, 3), **fixed: Any) -> Options:
    depth = draw(st.sampled_from(depths))
    ratio = st.floats(0.3, 4.0)
    options: Options = {"depth": depth, "eta": draw(st.floats(0.01, 0.3)) / (depth + 1)}
    options |= {"gamma0": draw(st.floats(0.3, 1.5)), "center": draw(st.booleans())}
    widths = draw(st.sampled_from(["wide", "one", "each"]))
    if widths != "wide":
        options["nu"] = draw(ratio) if widths == "one" else [draw(ratio) for _ in range(depth)]
    data = draw(st.sampled_from(["alpha", "alpha_B", "population"]))
    if data != "population":
        options |= {data: draw(ratio), "noise": draw(st.floats(0.0, 1.0, allow_subnormal=False))}
    return options | fixed


@settings(max_examples=4)
@given(problems())
def test_correlations_are_covariances_and_nothing_answers_what_comes_later(options: Options) -> None:
    """Check that correlations are covariances and responses are causal.

    Correlations are symmetric and positive semidefinite up to the rounding of 6 steps and sums. At equal
    times only quantities that are computed after the source within a step respond to it.
    """
    found = solved(options, 5)
    for name, value in found.items():
        if not name.startswith("C_"):
            continue
        for C in value.reshape(-1, *value.shape[-2:]):
            assert np.array_equal(C, C.T), name
            eigenvalues = np.linalg.eigvalsh(C)
            assert eigenvalues[0] >= -100 * EPS * eigenvalues[-1], name
    for name, R in found.items():
        if not name.startswith("R_"):
            continue
        assert not np.triu(R, 1).any(), name
        now = np.diagonal(R, axis1=-2, axis2=-1)
        if name in ("R_vu", "R_gu"):
            assert not now.any(), name
    if "R_Delta" in found:
        assert np.array_equal(np.diagonal(found["R_Delta"]), np.ones(6))


@settings(max_examples=4)
@given(problems(noise=0.4))
def test_losses_are_at_least_the_noise_and_centring_starts_at_the_target(options: Options) -> None:
    if not {"alpha", "alpha_B"} & set(options):
        options.pop("noise")
    found = solved(options, 5)
    noise = options.get("noise", 0.0)
    assert (found["test_loss"] >= noise**2 * (1 - 100 * EPS)).all()
    widths = options.get("nu", np.inf)
    last = widths[-1] if isinstance(widths, list) else widths
    initial = 0.0 if options["center"] else 1 / (last * options["gamma0"] ** 2)
    assert found["C_v"][0, 0] == pytest.approx(1 + initial, rel=100 * EPS)
    assert found["train_loss"][0] == pytest.approx(found["test_loss"][0], rel=100 * EPS)


# -- limits, each with its rate ------------------------------------------------------------------------


DOUBLED = [500.0 * 2**k for k in range(4)]


def orders(at: list[Array], limit: Array) -> tuple[float, float]:
    """Return fitted exponents of values(x) - limit and of 2 values(2 x) - values(x) - limit.

    ``at`` holds values(x) for the x in ``DOUBLED``. The second exponent is one order higher.
    """

    def exponent(gaps: list[Array]) -> float:
        sizes = [np.abs(gap - limit).max() for gap in gaps]
        return -float(np.polyfit(np.log(DOUBLED[: len(sizes)]), np.log(sizes), 1)[0])

    return exponent(at), exponent([2 * b - a for a, b in pairwise(at)])


LIMITED: list[Options] = [
    {"depth": 2, "eta": 0.1, "gamma0": 0.8, "nu": [0.7, 1.3], "center": True},
    {"depth": 3, "eta": 0.07, "center": False},
]


@pytest.mark.parametrize(
    ("options", "ratio"), [(LIMITED[0], "alpha_B"), pytest.param(LIMITED[1], "alpha", marks=pytest.mark.slow)]
)
def test_many_samples_are_the_population_at_rate_one_over_their_number(options: Options, ratio: str) -> None:
    """Check C_v = population + a/alpha + b/alpha^2 + ....

    At alpha = 500 to 4000 the fitted exponents are off by (1/500) times a ratio of consecutive coefficients,
    which is of order one; twice 1/500 is allowed.
    """
    limit = solved(options, 8)["C_v"]
    first, second = orders(
        [solved(options | {ratio: alpha, "noise": 0.4}, 8)["C_v"] for alpha in DOUBLED], limit
    )
    assert first == pytest.approx(1, abs=2 / 500)
    assert second == pytest.approx(2, abs=2 / 500)


@pytest.mark.parametrize(
    ("data", "center"),
    [("full batch, noise", True), pytest.param("online, noise", False, marks=pytest.mark.slow)],
)
def test_large_widths_are_the_wide_theory_at_rate_one_over_them(data: str, center: bool) -> None:
    """The same for one over nu."""
    options: Options = {"depth": 2, "eta": 0.1, "gamma0": 0.9, "center": center} | DATA[data]
    limit, at = solved(options, 8), {nu: solved(options | {"nu": nu}, 8) for nu in DOUBLED}
    for name in ("C_v", "C_g"):
        first, second = orders([at[nu][name] for nu in DOUBLED], limit[name])
        assert first == pytest.approx(1, abs=2 / 500)
        assert second == pytest.approx(2, abs=2 / 500)


@pytest.mark.parametrize(
    ("depth", "nu", "data"),
    [
        (1, None, "full batch, noise"),
        (3, 0.8, "online"),
    ],
)
def test_without_richness_kernels_stay(depth: int, nu: float | None, data: str) -> None:
    """Check the centred network for gamma0 -> 0: C_g is constant up to gamma0^2 (1 + O(gamma0^2)).

    At this rate lazy descent is stable in all cases; for an unstable rate no gamma0 is small enough.
    """
    options: Options = {"depth": depth, "eta": 0.03, "center": True} | DATA[data]
    options |= {} if nu is None else {"nu": nu}
    gammas = 0.04, 0.02, 0.01
    drift = [np.abs(solved(options | {"gamma0": g}, 12)["C_g"] - 1).max() for g in gammas]
    exponent = np.polyfit(np.log(gammas), np.log(drift), 1)[0]
    assert exponent == pytest.approx(2, abs=gammas[0] ** 2)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_a_wide_lazy_network_is_a_linear_model(depth: int) -> None:
    """C_v(t,s) = (1 - (L + 1) eta)^(t+s) on the population, up to gamma0^2 = 1e-16."""
    eta = 0.1
    C_v = solved({"depth": depth, "eta": eta, "gamma0": 1e-8}, 12)["C_v"]
    shrunk = (1 - (depth + 1) * eta) ** np.arange(13)
    assert np.abs(C_v - np.outer(shrunk, shrunk)).max() < 100 * EPS


# -- the first step, by random matrices ----------------------------------------------------------------


def first_step(depth: int, eta: float, gamma0: float, nu: float, center: bool) -> tuple[float, float]:
    """Return C_v(0,0) and C_v(1,1) of one or two layers of width nu D, by moments of matrices.

    The data are the population. With Y0 = W0/sqrt(D), Y1 = W1/sqrt(nu D), v = w_star - xi,
    xi = Y0^T Y1^T w/(nu gamma0), S = Y0 Y0^T, B = Y1^T Y1 (one layer: no Y1), one step of each weight,
    multiplied out, is v -> (c - Y0^T K Y0) v,

        one layer:  K = eta/nu,                       c = 1 - eta (nu + eta gamma0 a)/nu
        two layers: K = (eta/nu) (B + 1 + eta gamma0 a/nu),
                    c = 1 - eta q/nu,  q = nu + 2 eta gamma0 a + eta gamma0 a (1 + eta gamma0 a/nu)

    where a = nu gamma0 xi.v/D concentrates at -1/gamma0, or 0 if centred, and 2 a stands for w.Y1 B Y0 v/D.
    S is free of B with free cumulants 1, nu, nu^2 (free Poisson) and B has the moments 1, 2, 5, 14.
    """
    a = 0.0 if center else -1 / gamma0
    catalan = (1, 1, 2, 5, 14) if depth == 2 else (1, 1, 1, 1, 1)
    B = np.polynomial.Polynomial([0, 1])
    if depth == 1:
        c, K = 1 - eta * (nu + eta * gamma0 * a) / nu, np.polynomial.Polynomial([eta / nu])
    else:
        b = 1 + eta * gamma0 * a / nu
        c, K = 1 - eta * (nu + 2 * eta * gamma0 * a + eta * gamma0 * a * b) / nu, eta / nu * (B + b)

    def mean(p: np.polynomial.Polynomial) -> float:
        return float(np.dot(p.coef, catalan[: len(p.coef)]))

    def twice(x: np.polynomial.Polynomial, y: np.polynomial.Polynomial) -> float:  # of x S y S
        return mean(x * y) + nu * mean(x) * mean(y)

    def thrice(x: np.polynomial.Polynomial, y: np.polynomial.Polynomial) -> float:  # of x S y S y S
        pairs = mean(x) * mean(y * y) + 2 * mean(y) * mean(x * y)
        return mean(x * y * y) + nu * pairs + nu**2 * mean(x) * mean(y) ** 2

    target = c**2 - 2 * c * nu * mean(K) + nu * twice(K, K)
    own = c**2 * mean(B) - 2 * c * twice(B, K) + thrice(B, K)
    share = 0.0 if center else 1 / (nu * gamma0**2)
    return 1 + share, target + share * own


@settings(max_examples=4)
@given(problems((1, 2), center=False), st.floats(0.3, 4.0), st.booleans())
def test_the_first_step_is_that_of_random_matrices(options: Options, nu: float, center: bool) -> None:
    chosen = {k: options[k] for k in ("depth", "eta", "gamma0")} | {"nu": nu, "center": center}
    C_v = solved(chosen, 1)["C_v"]
    before, after = first_step(**chosen)
    assert C_v[0, 0] == pytest.approx(before, rel=100 * EPS)
    assert C_v[1, 1] == pytest.approx(after, rel=100 * EPS)


# -- no result -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", ["full batch", "online", "population"])
def test_a_rate_that_diverges_names_the_step(data: str) -> None:
    """The step after the last that is within the bound, 1e8, as the reference has it."""
    options: Options = {"depth": 2, "eta": 0.9, "nu": 0.8} | DATA[data]
    with pytest.raises(
        Diverged, match=r"^C_v diverged at step \d+; a smaller learning rate .* is needed$"
    ) as found:
        solved(options, 30)
    step = int(str(found.value).split(";")[0].rsplit(" ", 1)[1])
    assert 1 < step < 30
    loss = np.diagonal(isotropic_dense(step + 1, **options).C_v)
    assert loss[step] > 1e8 > loss[:step].max()
    assert np.isfinite(solved(options, step - 1)["test_loss"]).all()
