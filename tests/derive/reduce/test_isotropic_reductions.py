"""Limits of the sizes, transfer functions and the parts of the loss, each against an independent reading."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mpmath
import numpy as np
import pytest
from sympy import Expr, Function, Integer, MatrixSymbol, Mul, Pow, Sum, Symbol, lambdify, oo

from derive.errors import NotApplicable
from derive.linear.operators import Kernel, T
from derive.linear.propagators import Transfer, transfer
from derive.program import GradientDescent, P, eta, gamma0, s, t
from derive.program.networks.random_data import B, M, N, alpha, alpha_B, k, nu, sigma
from derive.reduce.data import absorb_factors, instant_responses, loss_decomposition, mode_sums, theory_limit
from derive.theory import Equation, Term, Theory
from tests.chance import excess
from tests.derive.once import isotropic, mean_field, mlp, structured
from tests.derive.reduce.test_isotropic_modes import modes
from tests.derive.theory.isotropic_march import March
from tests.derive.theory.test_isotropic_networks import NOISE, STEPS, VALUES, WIDE, Network, lam

beta = Symbol("beta", positive=True)
K = Symbol("K", integer=True, positive=True)


# -- limits --------------------------------


@pytest.mark.parametrize(
    ("ratio", "options"),
    [
        (alpha, {}),
        (alpha, {"center": True}),
        pytest.param(alpha, {"branch": beta}, marks=pytest.mark.slow),
        pytest.param(alpha, {"outputs": K}, marks=pytest.mark.slow),
        (alpha, {"rule": "flow"}),
        (alpha_B, {"data": "online"}),
        (alpha_B, {"data": "online", "noise": True, "branch": beta, "outputs": K}),
    ],
)
def test_unlimited_data_is_the_population(ratio: Symbol, options: dict[str, Any]) -> None:
    """Check the limit of unlimited data.

    The remaining equations are the equations, sources and order parameters of the population's program, and
    the samples' errors, which no other equation uses.
    """
    limit = theory_limit(mean_field(isotropic(**options)), {ratio: oo})
    kept = {k: v for k, v in options.items() if k not in ("data", "noise")}
    population = mean_field(isotropic(data="population", **kept))
    mine = {e.lhs: e.rhs for e in limit.equations if e.name != "Delta"}
    assert mine == {e.lhs: e.rhs for e in population.equations}
    on_samples = {"u_Delta", "eps"}
    sources = {(u.symbol, u.covariance) for u in limit.sources if str(u.symbol.func) not in on_samples}
    assert sources == {(u.symbol, u.covariance) for u in population.sources}
    parameters = {(q.symbol, q.definition) for q in limit.order_parameters if q.name != "C_Delta"}
    assert parameters == {(q.symbol, q.definition) for q in population.order_parameters}


def test_unlimited_width_has_neither_r0_nor_the_response_to_it() -> None:
    """Eq. 14: the limited-width term of h^1 goes as 1/nu; feature learning stays."""
    before, after = mean_field(isotropic()), theory_limit(mean_field(isotropic()), {nu: oo})
    assert {q.name for q in before.responses()} - {q.name for q in after.responses()} == {"R_h0r0"}
    assert {str(u.symbol.func) for u in before.sources} - {str(u.symbol.func) for u in after.sources} == {
        "r0"
    }
    g, u, C = (Function(n) for n in ("g", "u", "C_h0"))
    learnt = Sum(eta * gamma0 * C(t, s) * g(1, s), (s, 0, t - 1))
    assert after.equation("h", 1).rhs == u(1, t) + learnt
    assert not any(e.rhs.has(nu) for e in after.equations)


@pytest.mark.parametrize("depth", [1, 3])
def test_unlimited_width_and_data_is_a_network_on_one_sample(depth: int) -> None:
    """Then every feature learns its own target alike: v = w_star Delta with the Delta of a single input."""
    both = March(theory_limit(mean_field(isotropic(depth)), {alpha: oo, nu: oo}), {eta: 0.2, gamma0: 0.9})
    single = March(
        mean_field(mlp(depth)).at_depth(depth),
        {eta: 0.2, gamma0: 0.9, P: 1},
        functions={"K_x": lambda *_: 1.0, "y": lambda *_: 1.0},
    )
    for i in range(5):
        error = single.field("Delta", (1, i))
        assert isinstance(error, float)
        assert both("C_v", i, i) == pytest.approx(error**2, rel=1e-12)


def test_limits_without_an_answer_are_refused() -> None:
    with pytest.raises(NotApplicable, match="no finite limit"):
        theory_limit(mean_field(isotropic(parametrization="ntk")), {nu: oo})
    with pytest.raises(NotApplicable, match="contains a source called z"):
        absorb_factors(mean_field(isotropic()), "z")


def test_absorbed_factors_change_no_number() -> None:
    """The same correlations before and after, with weight decay too."""
    theory = mean_field(isotropic(2, rule=GradientDescent(eta, decay=lam), noise=True)).at_depth(2)
    values = VALUES
    before, after = March(theory, values), March(absorb_factors(theory, "r0", "u0"), values)
    for name in ("C_v", "C_Delta", "C_h0"):
        for i in range(STEPS):
            assert before(name, i, 1) == pytest.approx(after(name, i, 1), rel=1e-12)
    assert after("R_h0r0", 2, 1) == pytest.approx(before("R_h0r0", 2, 1) * WIDE * VALUES[gamma0], rel=1e-12)


def test_instant_responses_change_no_number() -> None:
    theory = mean_field(isotropic(2, data="online", noise=True)).at_depth(2)
    before, after = March(theory, VALUES), March(instant_responses(theory), VALUES)
    assert "R_Delta" not in {q.name for q in instant_responses(theory).order_parameters}
    for i in range(STEPS):
        assert before("C_v", i, 1) == pytest.approx(after("C_v", i, 1), rel=1e-12)


def test_wide_networks_and_large_batches_learn_each_mode_without_noise() -> None:
    """Eq. 112: with neither sources nor M left, v_k is moved by lamda_k v_k only."""
    theory = mode_sums(absorb_factors(mean_field(structured(noise=True)), "r0", "u0"))
    limit = theory_limit(theory, {N: oo, B: oo})
    v, lamda = Function("v"), Function("lamda")
    assert limit.equation("h0").rhs == lamda(k) * v(k, t)
    assert {str(u.symbol.func) for u in limit.sources} == {"u", "r", "u_Delta", "eps"}
    assert not any(e.rhs.has(N, B, M) for e in limit.equations)


# -- transfer functions and the loss -----------------------------------------------------------------------


def with_answers(theory: Theory, transfers: tuple[Transfer, ...]) -> Theory:
    """Return the theory with transfer functions as further numbers that it determines."""
    found = tuple(Equation(e.lhs, (Term.local(e.rhs, "definition"),)) for x in transfers for e in x.equations)
    return replace(theory, scalars=(*theory.scalars, *found))


OPTIONS: dict[str, dict[str, Any]] = {
    "full batch": {},
    "noise": {"noise": True},
    "centred, noise": {"center": True, "noise": True},
    "online, noise": {"data": "online", "noise": True},
    "population": {"data": "population"},
    "residual": {"branch": beta},
    "two outputs, noise": {"outputs": 2, "noise": True},
    "decay": {"rule": GradientDescent(eta, decay=lam), "noise": True},
}
ATTRIBUTES = {"lamda": [1.0, 0.4], "w_star": [0.5, -1.0]}
SIZES = {M: 2, N: 20, B: 9}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(x, marks=pytest.mark.slow)
        if x in ("two outputs, noise", "full batch", "noise", "centred, noise")
        else x
        for x in OPTIONS
    ],
)
def test_parts_add_up_to_the_loss(case: str) -> None:
    """Check eq. 13 as an identity, at equal and at different times.

    The parts, with transfer functions from their own equations, sum to the C_v that the theory itself gives.
    """
    options = OPTIONS[case]
    theory = mean_field(isotropic(2, **options)).at_depth(2)
    parts = loss_decomposition(theory)
    labels = [p.label for p in parts.parts]
    assert ("label noise" in labels) == bool(options.get("noise"))
    assert ("limited data" in labels) == (options.get("data") != "population")
    march = March(with_answers(theory, parts.transfers), VALUES)
    for i in range(STEPS):
        for j in (0, i):
            c = {} if "outputs" not in options else dict(zip(parts.correlation.args[:2], (1, 1), strict=True))
            total = march.read(parts.eq.rhs, {t: i, s: j, **c})
            own = march("C_v", *c.values(), i, j)
            assert total == pytest.approx(own, rel=1e-11), (i, j)


def test_every_part_goes_with_what_it_is_called_after() -> None:
    """Limited width vanishes as nu -> oo and limited data as alpha -> oo, noise with sigma; bias stays."""
    theory = mean_field(isotropic(2, noise=True)).at_depth(2)
    parts = loss_decomposition(theory)

    def values(**other: float) -> dict[str, float]:
        numbers = VALUES | {{"nu": nu, "alpha": alpha, "sigma": sigma}[k]: x for k, x in other.items()}
        march = March(with_answers(theory, parts.transfers), numbers)
        found = {p.label: march.read(p.expr, {t: 3, s: 3}) for p in parts.parts}
        assert all(isinstance(x, float) for x in found.values())
        return found  # type: ignore[return-value]

    assert min(values().values()) > 1e-3
    assert values(sigma=1e-6)["label noise"] < 1e-11
    bias = values(nu=1e9, alpha=1e9)
    assert bias.pop("bias") > 1e-2
    assert max(bias.values()) < 1e-8


@pytest.mark.slow
def test_bias_is_what_an_ensemble_has() -> None:
    """The mean of v over networks and data is sum_s H_v_v(t, s) w_star: its squared overlap with it."""
    theory = mean_field(isotropic(2, noise=True)).at_depth(2)
    parts = loss_decomposition(theory)
    march = March(with_answers(theory, parts.transfers), VALUES)
    kept = [Target(2, 500, (WIDE, WIDE), noise=NOISE).overlaps(seed) for seed in range(24)]
    mean, error = np.mean(kept, axis=0), np.std(kept, axis=0, ddof=1) / np.sqrt(len(kept))
    bias = np.array([march.read(parts.part("bias"), {t: i, s: i}) for i in range(1, STEPS)])
    assert excess((mean[1:] ** 2 - bias) / (2 * mean[1:] * error[1:]), len(kept) - 1) < 1


class Target(Network):
    """Network with a measurement of the overlap of its error with the target."""

    def overlaps(self, seed: int) -> list[float]:
        rng = np.random.default_rng(seed)
        weights, w = self.start(rng)
        D, n = self.features, round(VALUES[alpha] * self.features)
        target, X, eps = rng.normal(size=(D, 1)), rng.normal(size=(n, D)), rng.normal(size=(n, 1))
        found = []
        for _ in range(STEPS):
            g, xi = self.function(weights, w)
            v = target - xi
            found.append(float(np.sum(v * target) / np.sum(target**2)))
            h = [np.sqrt(D) / n * X.T @ (X @ v / np.sqrt(D) + self.noise * eps)]
            for layer, W in enumerate(weights):
                h.append(self.through(W, h[-1], layer, up=True))
            weights, w = self.step(weights, w, h, g)
        return found


def test_sums_over_strictly_earlier_times_miss_the_start() -> None:
    """Eq. 13 prints s < t: then nothing is left of the loss before training, which is 1 + 1/(nu gamma0^2)."""
    theory = absorb_factors(mean_field(isotropic(1)).at_depth(1), "r0", "u0")
    parts = loss_decomposition(theory)
    march = March(with_answers(theory, parts.transfers), VALUES)
    assert march.read(parts.part("bias"), {t: 0, s: 0}) == 1
    width = march.read(parts.part("limited width"), {t: 0, s: 0})
    assert width == pytest.approx(1 / (WIDE * VALUES[gamma0] ** 2))
    assert march("C_v", 0, 0) == pytest.approx(1 + 1 / (WIDE * VALUES[gamma0] ** 2))


@pytest.mark.parametrize("options", [{}, {"center": True}, {"data": "online"}], ids=str)
@pytest.mark.parametrize("into", ["v", "h0"])
def test_closed_forms_are_the_recursions(options: dict[str, Any], into: str) -> None:
    """Words in matrices over time against the equations, entry by entry."""
    theory = mean_field(isotropic(1, **options)).at_depth(1)
    found = transfer(theory, into)
    march = March(with_answers(theory, (found,)), VALUES)
    for name, word in found.operators.items():
        assert np.allclose(
            matrix(word, found.kernels, march),
            [[march.field(f"H_{name}_{into}", (i, j)) for j in range(STEPS)] for i in range(STEPS)],
            atol=1e-12,
        )


def test_sums_of_different_reach_have_kernels_of_their_own() -> None:
    theory = mean_field(isotropic(data="online"))
    v = theory.equation("v")
    memory = next(x for x in v.terms if x.kind == "memory")
    other = replace(v, terms=(*v.terms, replace(memory, coefficient=3 * memory.coefficient, reach="past")))
    found = transfer(replace(theory, equations=tuple(other if e is v else e for e in theory.equations)), "v")
    assert {k.name: k.causal for k in found.kernels if k.name.startswith("K_v_h0")} == {
        "K_v_h0": "strict",
        "K_v_h0_2": "past",
    }


def matrix(word: Expr, kernels: tuple[Kernel, ...], march: March) -> Any:
    """Return a word as a matrix over the first steps."""
    one = np.eye(STEPS)
    for known in kernels:
        if word == known.operator:
            first = {"strict": 1, "past": 0}[known.causal]
            entries = [
                [march.read(known.definition, {t: i, s: j}) if i - j >= first else 0.0 for j in range(STEPS)]
                for i in range(STEPS)
            ]
            return np.array(entries)
    if str(word) == "O":
        return np.outer(np.ones(STEPS), one[0])
    if isinstance(word, Mul):
        return np.linalg.multi_dot([one, *[matrix(x, kernels, march) for x in word.args]])
    if word.is_Add:
        return sum(matrix(x, kernels, march) for x in word.args)
    if isinstance(word, Pow):
        assert word.exp == Integer(-1)
        return np.linalg.inv(matrix(word.base, kernels, march))
    return float(march.read(word, {})) * one  # type: ignore[arg-type]


def test_answers_of_layers_are_refused() -> None:
    with pytest.raises(NotApplicable, match="transfer functions are derived for these fields"):
        transfer(mean_field(isotropic()), "h")
    with pytest.raises(NotApplicable, match="no modes"):
        mode_sums(mean_field(isotropic()))


def test_modes_take_their_loss_apart_too() -> None:
    theory = modes(2, noise=True)
    parts = loss_decomposition(theory)
    assert [p.label for p in parts.parts] == ["bias", "limited width", "limited data", "label noise"]
    march = March(with_answers(theory, parts.transfers), {**VALUES, **SIZES}, attributes=ATTRIBUTES)
    for i in range(STEPS):
        assert march.read(parts.eq.rhs, {t: i, s: i}) == pytest.approx(march("C_v", i, i), rel=1e-11)


@pytest.mark.parametrize("module", ["numpy", "mpmath"])
@pytest.mark.parametrize("data", ["full batch", "population"])
def test_answers_in_closed_form_can_be_computed(data: str, module: str) -> None:
    """Plain ``lambdify`` of every response solves the operator equations that it was derived from."""
    options = {} if data == "full batch" else {"data": data}
    answers = transfer(mean_field(isotropic(**options)), "v")
    steps, rng = 4, np.random.default_rng(5)
    values = {}
    for name in answers.operators:
        e = answers.matrix(name)
        letters = sorted(e.atoms(MatrixSymbol), key=str)
        for x in letters:
            values.setdefault(
                str(x), np.tril(rng.normal(size=(steps, steps)), -1 if str(x) != "R_Delta" else 0)
            )
        numbers = [values[str(x)] for x in letters]
        plain = sorted(e.free_symbols - {T, *letters}, key=str)
        if module == "mpmath":
            numbers = [mpmath.matrix(v.tolist()) for v in numbers]
        found = lambdify([T, *plain, *letters], e, module)(steps, *[0.7] * len(plain), *numbers)
        values[f"answer {name}"] = np.array(found.tolist(), float)
    kernel = {str(k.operator): k for k in answers.kernels}
    assert kernel
    if data == "full batch":
        loop = values["K_v_h0"] @ values["R_Delta"]
        np.testing.assert_allclose(values["answer v"], np.linalg.inv(np.eye(steps) - loop), atol=1e-12)
        np.testing.assert_allclose(values["answer h0"], values["R_Delta"] @ values["answer v"], atol=1e-12)
    else:
        loop = values["K_v_h0"]
        np.testing.assert_allclose(values["answer v"], np.linalg.inv(np.eye(steps) - loop), atol=1e-12)
    word = next(iter(answers.operators.values()))
    with pytest.raises(TypeError, match="letter of an operator word"):
        lambdify(sorted(word.free_symbols, key=str), word)


@pytest.mark.parametrize("name", [Symbol("alpha"), "alpha", Symbol("beta")], ids=repr)
def test_limits_are_those_of_symbols_of_the_theory(name: Any) -> None:
    """Nothing changed, but the theory said "alpha -> oo"; the symbol of the theory is positive."""
    with pytest.raises(NotApplicable, match="the theory does not contain this symbol"):
        theory_limit(mean_field(isotropic()), {name: oo})
