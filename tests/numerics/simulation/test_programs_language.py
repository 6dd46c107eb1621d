"""Tests of further parts of the language in the simulator: sizes, data, attributes, time, laws, refusals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from sympy import Abs, Expr, Function, Max, S, Sum, Symbol, sqrt, tanh

from derive.program import (
    Along,
    Attribute,
    Definition,
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    GradientFlow,
    IndexRange,
    L,
    Mean,
    Multistep,
    Outer,
    P,
    Population,
    Program,
    TrainedMatrix,
    TrainedVector,
    alpha,
    ell,
    eta,
    gamma0,
    mu,
    s,
    t,
)
from derive.program.networks.residual import nonlinear_program
from numerics.errors import Diverged
from numerics.simulation import simulate_program
from numerics.simulation.weights import GaussianLaw
from tests.chance import excess
from tests.derive.once import mlp

EXACT = {"rtol": 1e-11, "atol": 1e-12}
K = np.array([[1.0, 0.4], [0.4, 0.8]])
VALUES = {eta: 0.2, gamma0: 1.0, "P": 2}
DATA = {"K_x": K, "y": np.array([1.0, -1.0])}
units = Population("units")
STILL = GradientDescent(S.One)


def draw(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def small(definitions, *, fields, rule=STILL, **parts):
    """Return a program whose first field is observed."""
    first = fields[0]
    notation = parts.pop("notation", {first(t): "C"})
    return Program(
        name="small", rule=rule, fields=fields, definitions=definitions, notation=notation, **parts
    )


def z_scores(measured, expected):
    return np.abs(measured.mean - expected) / measured.stderr


# -- laws ----------------------------------------------------------------------------------------------------


def test_initial_kernels_have_their_exact_means():
    """For a linear network <H(0,0)> = K and <G(0,0)> = 1 at any width; the scatter is that of the seeds."""
    run = simulate_program(mlp(2), width=40, steps=1, seeds=400, values=VALUES, data=DATA, seed=3)
    assert excess(z_scores(run["H"], K)[:, 0, 0]) < 1
    assert excess(z_scores(run["G"], 1.0)[:, 0, 0]) < 1
    ratio = run["H"][1].stderr[0, 0, 0, 0] / np.sqrt(2 / 40 / 400)  # chi^2 of 40 has a kurtosis of 3 + 12/40
    assert excess((ratio - 1) / np.sqrt((2 + 12 / 40) / 4 / 400)) < 1
    wrong = simulate_program(
        mlp(2), width=40, steps=1, seeds=400, values=VALUES, data={**DATA, "K_x": 1.1 * K}, seed=3
    )
    assert excess(z_scores(wrong["H"], K)[:, 0, 0]) > 1


def test_the_number_of_inputs_does_not_matter():
    """Three thousand inputs with the kernel K instead of two: the same law of everything."""
    x = draw(2, 3000)
    x = np.linalg.cholesky(K) @ np.linalg.solve(np.linalg.cholesky(x @ x.T / 3000), x)
    few, many = (
        simulate_program(mlp(1, tanh), width=30, steps=2, seeds=150, values=VALUES, data=d, seed=i)
        for i, d in enumerate([DATA, {"x": x, "y": DATA["y"]}])
    )
    gap = (few["Phi"].mean - many["Phi"].mean) / np.hypot(few["Phi"].stderr, many["Phi"].stderr)
    assert excess(gap) < 1


def test_variances_and_sizes_of_layers():
    """W: layer(1) -> layer(2) with entries N(0, sigma(1)^2/N) has <h2^2> = a(1) sigma(1)^2 <h1^2>."""
    a, sigma = Function("a"), Function("sigma")
    layer, inputs = Population("layer", ratio=a(ell)), Population("input", given=True, ratio=S(3))
    h, x = Field("h", layer, layered=True), GivenVector("x", inputs, "K_x")
    W0 = GaussianMatrix("W0", layer.at(1), inputs, sigma(0) ** 2)
    W = GaussianMatrix("W", layer.at(ell + 1), layer.at(ell), sigma(ell) ** 2, IndexRange(ell, 1, 2))
    program = small(
        (
            Definition(h(1, t), W0 @ x()),
            Definition(h(ell + 1, t), W(ell) @ h(ell, t), (IndexRange(ell, 1, 2),)),
        ),
        fields=(h,), matrices=(W0, W), given=(x,), notation={h(ell, t): "C"},
    )  # fmt: skip
    data = {"x": np.ones(4), "a": {1: 0.5, 2: 2, 3: 1}, "sigma": np.array([2.0, 3.0, 0.5])}
    run = simulate_program(program, width=30, steps=0, seeds=600, values={}, data=data)
    first = 3 * 2.0**2
    second = 0.5 * 3.0**2 * first
    assert excess(z_scores(run["C"], np.array([first, second, 2 * 0.25 * second])[:, None, None])) < 1
    assert run["C"].axes[0] == ("ell", (1, 2, 3))


@pytest.mark.parametrize("tau", [-1.0, -0.4, 0.7, 1.0])
def test_symmetry_correlates_an_entry_with_its_partner(tau):
    m = GaussianLaw(("M", ()), (300, 300), 2.0, tau).draw(np.random.default_rng(0)) / 2
    upper = np.triu_indices(300, 1)
    pairs = len(upper[0])
    z = [(np.mean(m[upper] * m.T[upper]) - tau) * np.sqrt(pairs / (1 + tau**2))]
    for part in (m[upper], m.T[upper], m.diagonal()):
        z.append((np.mean(part**2) - 1) * np.sqrt(len(part) / 2))
    assert excess(z) < 1


def test_noise_of_a_rule_is_that_of_its_docstring():
    """w(t+1) = (1 - decay) w + sqrt(diffusion var) xi: the covariance of all times, and fields without it."""
    variance, decay, diffusion = 0.5, 0.3, 0.8
    v, w = Field("v", units), GaussianVector("w", units, S(1) / 2)
    rule = GradientDescent(S.One, decay=Symbol("d"), diffusion=Symbol("D"))
    program = small(
        (Definition(v(t), w.symbol),),
        fields=(v,),
        rule=rule,
        vectors=(TrainedVector(w, Along(0, v(t)), rule),),
    )
    values = {"d": decay, "D": diffusion}
    run = simulate_program(program, width=400, steps=4, seeds=60, values=values)["C"]
    spread = np.array([variance * (1 - decay) ** (2 * i) for i in range(5)])
    spread += [variance * diffusion * sum((1 - decay) ** (2 * j) for j in range(i)) for i in range(5)]
    expected = [[spread[min(i, j)] * (1 - decay) ** abs(i - j) for j in range(5)] for i in range(5)]
    assert excess(z_scores(run, np.array(expected))) < 1
    assert z_scores(run, np.full((5, 5), variance)).max() > 20


def test_noise_of_a_flow_and_of_a_matrix():
    """Check that dW = -W dt + sqrt(2) dB keeps N(0, 1/N) entries, which decay at the rate one."""
    v, u = Field("v", units), Field("u", units)
    start, rule = GaussianVector("a", units), GradientFlow(S.One, decay=S.One, diffusion=S(2))
    W = GaussianMatrix("W", units, units)
    program = small(
        (Definition(u(t), start.symbol), Definition(v(t), W @ u(t))),
        fields=(v, u), rule=rule, vectors=(start,), matrices=(TrainedMatrix(W, Outer(0, v(t), u(t)), rule),),
    )  # fmt: skip
    times = (0.0, 0.3, 1.0)
    run = simulate_program(program, width=60, steps=2, seeds=100, values={}, dt=0.1, times=times)["C"]
    assert run.axes[0] == ("t", times)
    expected = [[np.exp(-abs(x - y)) for y in times] for x in times]
    assert excess(z_scores(run, np.array(expected))) < 1


def test_seeds_are_independent_and_reproducible():
    def go(**options):
        return simulate_program(mlp(1), width=9, steps=2, values=VALUES, data=DATA, **options)["f"]

    assert np.array_equal(go(seeds=3, seed=1).mean, go(seeds=3, seed=1).mean)
    assert not np.array_equal(go(seeds=3, seed=1).mean, go(seeds=3, seed=2).mean)
    one, two, both = go(seeds=1, seed=4), None, go(seeds=2, seed=4)
    two = 2 * both.mean - one.mean
    np.testing.assert_allclose(both.stderr, np.abs(one.mean - two) / 2, **EXACT)
    assert np.isnan(one.stderr).all()


# -- fields, data, time --------------------------------------------------------------------------------------


def test_layers_may_be_computed_downwards_and_read_the_first_step():
    """q(k) needs q(k + 1); p subtracts its own start."""
    q, p = Field("q", units, ordered=True), Field("p", units)
    a, k = GaussianVector("a", units), Symbol("k", integer=True)
    rule = GradientDescent(S.One)
    program = small(
        (
            Definition(p(t), q(1, t) - q(1, 0)),
            Definition(q(k, t), 2 * q(k + 1, t) + k, (IndexRange(k, 1, 3),)),
            Definition(q(4, t), a.symbol),
        ),
        fields=(p, q), rule=rule, vectors=(TrainedVector(a, Along(1, q(4, t)), rule),),
        notation={p(t): "C", q(k, t): "Q"},
    )  # fmt: skip
    start = draw(5)
    run = simulate_program(program, width=5, steps=2, seeds=1, values={}, initial={"a": start})
    moved = [np.zeros(5), 8 * start, 24 * start]  # q(1) = 8 a + 1 + 2*2 + 4*3, and a doubles
    np.testing.assert_allclose(run["C"].mean, np.array(moved) @ np.array(moved).T / 5, **EXACT)
    top = 8 * start + 17
    assert run["Q"].mean[0, 0, 0, 0] == pytest.approx(np.mean(top**2))
    assert run["Q"].axes[2:] == (("k", (1, 2, 3, 4)), ("k'", (1, 2, 3, 4)))


def test_fields_that_evolve():
    """Runge-Kutta steps of fields and weights at once, from initial values of the user or the program."""
    x, y, p = (Field(n, units) for n in "xyp")
    J, a = GaussianMatrix("J", units, units, symmetry=S(1) / 2), GaussianVector("a", units)
    b, rule = GaussianVector("b", units), GradientFlow()
    program = small(
        (
            Definition(x(t), -x(t) + J @ tanh(x(t)), evolves=True),
            Definition(y(t), x(t) - y(t) + b.symbol, evolves=True),
            Definition(y(0), a.symbol),
            Definition(p(t), x(t) - 3 * x(0)),
        ),
        fields=(x, y, p), rule=rule, matrices=(J,), vectors=(a, TrainedVector(b, Along(2, x(t)), rule)),
        notation={x(t): "C", y(t): "C_y", p(t): "C_p"},
    )  # fmt: skip
    matrix, start, late, push = draw(6, 6), draw(6), draw(6, seed=1), draw(6, seed=2)
    run = simulate_program(
        program, width=6, steps=3, seeds=1, values={}, dt=0.1,
        data={"x": lambda n: start[:n]}, initial={"J": matrix, "a": late, "b": push},
    )  # fmt: skip

    def rate(z):
        return np.array([-z[0] + matrix @ np.tanh(z[0]), z[0] - z[1] + z[2], 2 * z[0]])

    z, dt, seen = np.array([start, late, push]), 0.1, []
    for _ in range(4):
        seen.append(z)
        one = rate(z)
        two = rate(z + dt / 2 * one)
        three = rate(z + dt / 2 * two)
        z = z + dt / 6 * (one + 2 * two + 2 * three + rate(z + dt * three))
    path, shadow = np.array(seen)[:, 0], np.array(seen)[:, 1]
    expected = {"C": path, "C_y": shadow, "C_p": path - 3 * start}
    for name, z in expected.items():
        np.testing.assert_allclose(run[name].mean, z @ z.T / 6, **EXACT)


def test_attributes_means_and_given_functions():
    """A number for each unit, a mean taken off, a loss whose slope and inputs at each step are given."""
    lamda, v, f = Attribute("lamda", units), Field("v", units), Function("f")
    chi, slope, xi, k = Function("chi"), Function("slope"), Function("xi"), Symbol("k", integer=True)
    a = GaussianVector("a", units)
    rule = GradientDescent(S.One)
    program = small(
        (
            Definition(v(t), sqrt(lamda(k)) * (a.symbol + xi(t) * Mean(lamda(k) * lamda(k)))),
            Definition(f(t), Mean(v(t))),
            Definition(chi(t), slope(t, f(t))),
        ),
        fields=(v,), rule=rule, attributes=(lamda,), scalars=("f", "chi"), constants=("xi", "slope"),
        vectors=(TrainedVector(a, Along(-chi(t), v(t)), rule),),
    )  # fmt: skip
    weights, inputs, start = np.array([1.0, 4.0, 9.0]), np.array([1.0, -1.0, 2.0]), draw(3)
    data = {"lamda": lambda n: weights[:n], "xi": inputs, "slope": lambda t, f: f - t}
    run = simulate_program(program, width=3, steps=2, seeds=1, values={}, data=data, initial={"a": start})
    outputs, now = [], start
    for step in range(3):
        field = np.sqrt(weights) * (now + inputs[step] * np.mean(weights**2))
        outputs.append(np.mean(field))
        now = now - (np.mean(field) - step) * field
    np.testing.assert_allclose(run["f"].mean, outputs, **EXACT)
    np.testing.assert_allclose(run["chi"].mean, np.array(outputs) - np.arange(3), **EXACT)


def test_what_is_wanted():
    """Pairs of vectors with separate indices, written with s or t; means; parameters; one layer."""
    initial = {"W0": draw(5, 2), "W": {1: draw(5, 5)}, "w": draw(5, seed=1)}
    h, g, w = Function("h"), Function("g"), Symbol("w")
    wanted = {
        "hg": (h(ell, mu, t), g(ell, s)),
        "hh": (h(2, mu, t), h(2, alpha, s) ** 2),
        "mean": (h(ell, mu, t), 1),
        "step": (h(ell + 1, mu, t), h(ell + 1, mu, t)),
        "w": (w, w * h(2, mu, t)),
    }
    run = simulate_program(
        mlp(2), width=5, steps=1, seeds=1, values=VALUES, data=DATA, initial=initial, wanted=wanted
    )
    x = np.linalg.eigh(K)
    x = x.eigenvectors * np.sqrt(x.eigenvalues * 2)
    h1 = x @ initial["W0"].T
    h2, g1 = h1 @ initial["W"][1].T, initial["W"][1].T @ initial["w"]
    assert set(run) == {*wanted, "f", "Delta"}
    np.testing.assert_allclose(run["hg"][1].mean[0, 0], h1 @ g1 / 5, **EXACT)
    np.testing.assert_allclose(run["hh"].mean[0, 0], h2 @ (h2**2).T / 5, **EXACT)
    assert [a for a, _ in run["hh"].axes] == ["t", "s", "mu", "alpha"]
    np.testing.assert_allclose(run["mean"][2].mean[0, 0], h2.mean(axis=1), **EXACT)
    assert run["step"].axes[0] == ("ell", (1, 2))
    np.testing.assert_allclose(run["w"].mean[..., 0, 0, :], h2 @ initial["w"] ** 2 / 5, **EXACT)
    with pytest.raises(ValueError, match="no layer axis"):
        run["hh"][2]
    with pytest.raises(ValueError, match="ell = 3"):
        run["hg"][3]


# -- refusals ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unknown:
    """Flow with a memory but without an equation of motion."""

    discrete: bool = False

    def memory(self, time: Expr, past: Expr) -> tuple[Expr, Expr]:
        return S.One, S.One

    def noise(self, time: Expr, past: Expr) -> Expr:
        return S.Zero


def with_product_in_update() -> Program:
    v, w = Field("v", units), GaussianVector("w", units)
    M = GaussianMatrix("M", units, units)
    return small(
        (Definition(v(t), w.symbol),), fields=(v,), matrices=(M,),
        vectors=(TrainedVector(w, Along(1, M @ v(t)), STILL),),
    )  # fmt: skip


REFUSED = {
    "depth": (lambda: mlp(L), {}, "give program.at_depth"),
    "no value": (lambda: mlp(2), {"values": {"eta": 1, "P": 2}}, "no value for gamma0"),
    "P": (lambda: mlp(2), {"values": {"eta": 1, "gamma0": 1, "P": 2.5}}, "must be an integer"),
    "value": (lambda: mlp(2), {"values": {**VALUES, "x": "one"}}, "must be a number"),
    "no data": (lambda: mlp(2), {"data": {"K_x": K}}, r"data\['y'\]"),
    "both": (lambda: mlp(2), {"data": {**DATA, "x": np.eye(2)}}, "not both"),
    "too few targets": (lambda: mlp(2), {"data": {"K_x": K, "y": np.ones(1)}}, "must have 2 entries"),
    "too many inputs": (lambda: mlp(2), {"data": {"x": np.ones((3, 4)), "y": np.ones(2)}}, "have 2 entries"),
    "nan": (lambda: mlp(2), {"data": {"K_x": K, "y": np.array([1, np.nan])}}, "finite"),
    "activation": (lambda: mlp(2, Function("phi")), {}, "activation"),
    "rule": (lambda: mlp(2, rule="flow").with_rule(Unknown()), {"dt": 0.1}, "no equation"),
    "multistep": (lambda: mlp(2).with_rule(Multistep()), {}, "give data\\['w'\\]"),
    "dt": (lambda: mlp(2), {"dt": 0.1}, "counts steps"),
    "no dt": (lambda: mlp(2, rule="flow"), {}, "longest step"),
    "width": (lambda: mlp(2), {"width": 0}, "width = 0"),
    "initial name": (lambda: mlp(2), {"initial": {"Q": np.ones(2)}}, "no weight Q"),
    "initial shape": (lambda: mlp(2), {"initial": {"w": np.ones(2)}}, "must be "),
    "wanted number": (lambda: mlp(2), {"wanted": {"a": gamma0}}, "must be a vector.*gamma0 is a number"),
    "wanted average": (
        lambda: mlp(2),
        {"wanted": {"a": Mean(Function("g")(2, t) * Function("h")(2, mu, t))}},
        r"give the pair \(g\(2, t\)\*h\(2, mu, t\), 1\)",
    ),
    "wanted indices": (
        lambda: mlp(2),
        {"wanted": {"a": Function("g")(2, mu, t)}},
        r"g\(2, mu, t\): g has 1 indices beside the time, and 2 are given",
    ),
    "wanted name": (lambda: mlp(2), {"wanted": {"f": Function("h")(ell, mu, t)}}, "number of that name"),
    "wanted places": (
        lambda: mlp(2),
        {"wanted": {"a": (Function("h")(1, mu, t), Function("h")(2, mu, t))}},
        "populations or layers differ",
    ),
    "past": (lambda: mlp(2), {"wanted": {"a": Function("h")(1, mu, t - 1)}}, "time t or at the time 0"),
    "product in update": (with_product_in_update, {"data": {}}, "define a field"),
    "small population": (lambda: mlp(1, tanh, relative_widths=S(1) / 50), {}, "at least one"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_simulated_is_refused(case):
    make, change, message = REFUSED[case]
    options = {"width": 5, "steps": 2, "seeds": 1, "values": VALUES, "data": DATA} | change
    with pytest.raises(ValueError, match=message):
        simulate_program(make(), **options)


def test_an_entry_that_needs_itself_is_refused():
    """Entries are sorted one by one, independently of the program's check of families."""
    from numerics.simulation.network import unroll
    from numerics.simulation.run import prepare

    v, k = Field("v", units), Symbol("k", integer=True)
    ring = IndexRange(k, 1, 3)
    program = small(
        (Definition(v(k, t), GaussianVector("a", units).symbol, (ring,)),),
        fields=(v,), vectors=(GaussianVector("a", units),), notation={},
    )  # fmt: skip
    object.__setattr__(program, "definitions", (Definition(v(k, t), v(k + 1, t), (ring,)),))
    binder = prepare(program, {}, {}, 4, 1)
    with pytest.raises(ValueError, match="depend on themselves within a step"):
        unroll(binder, {})


def test_divergence_names_what_and_when():
    with pytest.raises(Diverged, match=r"diverged at step \d+"):
        simulate_program(
            mlp(2), width=5, steps=200, seeds=1, values={**VALUES, eta: 50}, data=DATA, wanted={}
        )


def test_what_a_sum_runs_over_is_no_axis():
    """Wanted sums have the indices that are left, and the values of sums written out."""
    h, Delta = Function("h"), Function("Delta")
    total = Sum(Delta(mu, t), (mu, 1, P))
    wanted = {
        "sum": Sum(Delta(mu, t) * h(ell, mu, t), (mu, 1, P)),
        "other": h(ell, alpha, t) * total,
        "same name": h(ell, mu, t) * total,
        "h": h(ell, mu, t),
    }
    run = simulate_program(mlp(2, tanh), width=6, steps=2, seeds=1, values=VALUES, data=DATA, wanted=wanted)
    names = {name: [axis for axis, _ in x.axes][3:] for name, x in run.items()}
    assert names["sum"] == []
    assert names["other"] == ["alpha", "alpha'"]
    assert names["same name"] == ["mu", "mu'"]
    errors, overlap = run["Delta"].mean, run["h"].mean
    whole = np.einsum("tm,sn,ltsmn->lts", errors, errors, overlap)
    np.testing.assert_allclose(run["sum"].mean, whole, rtol=1e-12)
    whole = np.einsum("t,s,ltsmn->ltsmn", errors.sum(1), errors.sum(1), overlap)
    np.testing.assert_allclose(run["other"].mean, whole, rtol=1e-12)
    np.testing.assert_allclose(run["same name"].mean, whole, rtol=1e-12)


def test_a_function_of_fields_may_be_their_absolute_value() -> None:
    """Fields are real: ``|h|`` has the slope ``sign(h)``, as ``max(h, 0) + max(-h, 0)``."""
    program = nonlinear_program(3)
    functions = (Abs, lambda z: Max(z, 0) + Max(-z, 0))
    one, other = (
        simulate_program(
            program,
            width=8,
            steps=2,
            seeds=2,
            values={"phi": phi},
            data={"xi": np.ones(3), "dloss": lambda step, f: 0.2 * (f - 1)},
        )["f"].mean
        for phi in functions
    )
    np.testing.assert_allclose(one, other, rtol=1e-12)
