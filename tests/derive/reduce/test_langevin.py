"""Langevin dynamics: two sources, the output's rate, long times, and equilibrium (K)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial

import pytest
from sympy import (
    Add,
    Derivative,
    Eq,
    Expr,
    Function,
    Integral,
    Matrix,
    MatrixSymbol,
    Min,
    Mul,
    S,
    Sum,
    Symbol,
    exp,
    simplify,
    symbols,
    tanh,
)

from derive.calculus.averages import Average
from derive.calculus.gaussian import GaussianAverage
from derive.errors import NotApplicable
from derive.program import (
    GradientFlow,
    L,
    P,
    Parametrization,
    Program,
    alpha,
    ell,
    gamma0,
    mu,
    recurrent,
    s,
    t,
)
from derive.program.training import TrainedMatrix
from derive.reduce.equilibrium import Equilibrium
from derive.reduce.stationary import TwoSources, two_sources
from derive.theory import Theory
from derive.theory.routes import check_routes
from tests.derive.once import (
    convolution,
    equilibrium,
    feedback_alignment,
    mean_field,
    mlp,
    output_rate,
    single_site,
    stationary,
)
from tests.derive.programs import hidden_layer
from tests.numerics.renaming import with_names

phi = Function("phi")
lam, beta, T = symbols("lam beta T", positive=True)


@lru_cache(maxsize=8)
def network(depth: Expr = L, activation: str = "phi") -> Program:
    name = phi if activation == "phi" else activation
    return mlp(depth, name, "flow", weight_decay=lam / beta, temperature=1 / beta)


@lru_cache(maxsize=8)
def rest(depth: Expr = L, activation: str = "phi") -> Equilibrium:
    return equilibrium(mean_field(network(depth, activation)))


@lru_cache(maxsize=1)
def theory() -> Theory:
    """Return the theory at symbolic depth, for any activation."""
    return mean_field(network())


@lru_cache(maxsize=1)
def split() -> TwoSources:
    return two_sources(theory())


# -- dynamics ------------------------------------------------------------------------------------------------


def test_both_routes_agree_on_the_rule_that_solves_flows() -> None:
    """Its noise is a table over the times, which is symmetric like every covariance."""
    assert check_routes(mlp(1, "tanh", "multistep", weight_decay=lam, temperature=T)) == []


def test_without_noise_and_decay_it_is_plain_flow() -> None:
    plain = mean_field(mlp(L, phi, "flow"))
    assert mean_field(mlp(L, phi, "flow", weight_decay=0, temperature=0)).equivalent(plain)
    assert not theory().equivalent(plain)


def test_sources_of_start_and_noise_make_up_the_whole() -> None:
    """m(t) m(s) + noise(t, s) is the covariance of an entry; so for sources and responses."""
    whole_theory, parts = theory(), split()
    entry = parts.kept * parts.kept.subs(t, s) + parts.noise
    for whole in whole_theory.sources:
        name = str(whole.symbol.func)
        there = {
            str(x.symbol.func): x for x in parts.theory.sources if x.symbol.args[0] == whole.symbol.args[0]
        }
        both = parts.kept * parts.kept.subs(t, s) * there[name].covariance + there[f"{name}_eps"].covariance
        assert simplify(both - whole.covariance) == 0
        assert simplify(whole.covariance - entry * there[name].covariance) == 0


@pytest.mark.parametrize("name", ["h", "z"])
def test_responses_of_two_sources_merge_into_one(name: str) -> None:
    """With A of the start written as m(s) A and A_eps as noise A, the derived response terms return."""
    whole_theory, parts = theory(), split()
    site = {"h": ell + 1, "z": ell}[name]

    def responses(of: Theory) -> Expr:
        return sum(x.expr for x in of.equation(name, site).terms if x.kind == "response")

    def joined(e: Expr) -> Expr:
        for q in whole_theory.responses():
            start, noise = (Function(f"{q.name}{x}") for x in ("", "_eps"))
            e = e.replace(noise, lambda *x, f=start: parts.noise * Function(f"_{f}")(*x))
            e = e.replace(start, lambda *x, f=start: parts.kept.subs(t, s) * Function(f"_{f}")(*x))
            e = e.replace(Function(f"_{start}"), start)
        return e

    before = {Min(s, t): s}  # in a sum over the past
    merged, whole = (x.xreplace(before) for x in (joined(responses(parts.theory)), responses(whole_theory)))
    assert simplify(_integrand(merged) - _integrand(whole)) == 0
    assert simplify(_integrand(responses(parts.theory)) - _integrand(whole)) != 0


def _integrand(e: Expr) -> Expr:
    """Return terms of integrals over s of sums over alpha, without both."""
    total = S.Zero
    for x in Add.make_args(e.expand()):
        (outer,) = [y for y in Mul.make_args(x) if isinstance(y, Integral)]
        inside = outer.function
        (inner,) = [y for y in Mul.make_args(inside) if isinstance(y, Sum)]
        total += x / outer * inside / inner * inner.function
    return total


def test_two_sources_need_decay_or_noise() -> None:
    with pytest.raises(NotApplicable, match="neither weight decay nor noise"):
        two_sources(mean_field(mlp(2, phi, "flow")))


# -- the output ----------------------------------------------------------------------------------------------


def test_output_rate_of_one_hidden_layer_by_hand() -> None:
    """Ito's rule on f = <phi(h) z>/gamma0 for the flow of a unit gives the same rate."""
    program = mlp(1, phi, "flow", weight_decay=lam, temperature=T)
    rate, site = output_rate(mean_field(program)), single_site(mean_field(program))
    h, z = Function("h")(1, mu, t), Function("z")(1, t)
    by_moments = site.moment_rate(phi(h) * z) / gamma0
    slope = rate.slopes[0].rhs.subs(ell, 1)
    told = (rate.eq.rhs - rate.gain).doit().replace(Function("slope"), lambda *_: slope)
    told = site_form(told, program)
    decays = by_moments.expand().coeff(lam)
    heats = by_moments.expand().coeff(T)
    assert simplify(told.doit().expand().coeff(lam) - decays) == 0
    assert simplify(told.expand().coeff(T) - heats) == 0
    assert decays != 0 != heats


def site_form(e: Expr, program: Program) -> Expr:
    """Return averages in terms of h and z without the sample index of z of one hidden layer."""
    h, z, g = (Function(n) for n in "hzg")

    def put(x: Average) -> Expr:
        body = x.body.replace(g, lambda *i: z(*i) * phi(h(*i)).diff(h(*i)))
        return Average(body.replace(z, lambda *i: z(i[0], i[-1]))).linear()

    return e.replace(lambda x: isinstance(x, Average), put)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (lambda: mlp(2, phi, "gd"), "discrete steps"),
        (lambda: feedback_alignment(2, phi, "flow"), "must be the gradient"),
        (lambda: convolution(2, phi, "flow", positions=3, receptive=1), "such as one of positions"),
        (lambda: mlp(2, phi, "flow", bias=True), "adds a vector of weights"),
        (lambda: mlp(2, phi, "flow", branch=T, weight_decay=lam, temperature=1), "skip connections"),
        (lambda: mlp(2, phi, "flow", momentum=T), "must decay exponentially"),
    ],
    ids=["steps", "feedback", "convolution", "bias", "residual", "momentum"],
)
def test_other_outputs_are_refused(program: object, reason: str) -> None:
    with pytest.raises(NotApplicable, match=reason):
        output_rate(mean_field(program()))  # type: ignore[operator]


# -- long times ----------------------------------------------------------------------------------------------


def test_stationary_kernels_at_zero_lag_are_the_prior_s() -> None:
    """At gamma0 = 0 and tau = 0, weights have the variance 1/lambda of the equilibrium's prior."""
    late = stationary(theory())
    tau = Symbol("tau", nonnegative=True)
    assert late.entry.subs(tau, 0) == rest().prior == 1 / lam
    assert simplify(late.entry.diff(tau) + lam / beta * late.entry) == 0


def test_linear_stationary_kernels_by_hand() -> None:
    """Two linear layers: a matrix multiplies by exp(-lam tau/beta)/lam, Phi is <h h> and G is <z z>."""
    late, tau = stationary(mean_field(network(2, "linear"))), Symbol("tau", nonnegative=True)
    step, K_x = exp(-lam * tau / beta) / lam, Function("K_x")
    found = {(str(e.lhs.func), e.lhs.args[0]): e.rhs for e in late.fields}
    assert found["H", 1] == step * K_x(mu, alpha)
    assert found["H", ell + 1] == step * Function("H")(ell, mu, alpha, tau)
    assert found["G", 2] == step  # z = g here, one number for all samples
    assert found["G", ell] == step * Function("G")(ell + 1, tau)
    assert late.kernels == ()


def test_constants_of_activations_are_not_variables_of_averages() -> None:
    """A slope called x gave ``<tanh(x^2) tanh(x y)>`` in place of ``<tanh(c x) tanh(c y)>``."""
    c, x = Symbol("c", real=True), Symbol("x", real=True)
    by_c, by_x = (
        stationary(mean_field(mlp(1, lambda z, a=a: tanh(a * z), "flow", weight_decay=1, temperature=1)))
        for a in (c, x)
    )
    at = {c: S(2), x: S(2)}
    for one, other in zip(by_c.kernels, by_x.kernels, strict=True):
        assert {c, x} & one.rhs.free_symbols == {c}
        assert {c, x} & other.rhs.free_symbols == {x}
        (first,), (second,) = (e.rhs.subs(at).atoms(GaussianAverage) for e in (one, other))
        assert first.body == second.body.xreplace(dict(zip(second.variables, first.variables, strict=True)))


def test_fields_with_different_sources_have_no_stationary_kernels() -> None:
    """The first source of a recurrent network ended in a KeyError."""
    network = recurrent(2, rule="flow", weight_decay=lam, temperature=T)
    with pytest.raises(NotApplicable, match="equations of the field h have different sources, u_W0 and u_W"):
        stationary(mean_field(network))


@pytest.mark.parametrize("rule", [{"temperature": T}, {"weight_decay": lam}], ids=["no decay", "no noise"])
def test_stationary_kernels_need_a_stationary_state(rule: dict[str, Expr]) -> None:
    with pytest.raises(NotApplicable, match="no stationary covariance"):
        stationary(mean_field(mlp(2, phi, "flow", **rule)))


# -- equilibrium ---------------------------------------------------------------------------------------------


def test_without_feature_learning_layers_are_gaussian() -> None:
    """gamma0 -> 0: conjugate kernels vanish with <h h> = Phi/lambda, from the last layer down."""
    assert rest().solved["Phihat_last"].rhs.subs(gamma0, 0) == 0
    kernel, above = MatrixSymbol("Phi", P, P), MatrixSymbol("C", P, P)
    prior = rest().conjugate_kernel.subs(above, kernel / lam)
    k = Symbol("k", positive=True)
    sized = prior.subs(P, 1)
    number = Matrix(sized.subs({x: Matrix([[k]]) for x in sized.atoms(MatrixSymbol)}).doit())[0, 0]
    assert simplify(number) == 0


@pytest.mark.slow
def test_equilibrium_of_one_hidden_layer_is_the_stationary_density() -> None:
    """Both orders of limits: the marginal of h of a unit's stationary density is (K.21), any activation."""
    h, z, density = Symbol("h1", real=True), Symbol("z", real=True), Function("p")
    K, error = Symbol("K", positive=True), Symbol("D", real=True)
    rate = single_site(mean_field(network(1))).drift_pde(1).rhs
    rate = rate.replace(Function("K_x"), lambda *_: K).replace(Function("Delta"), lambda *_: error)
    joint = exp(-lam * h**2 / (2 * K) - lam * z**2 / 2 + beta * gamma0 * error * z * phi(h))
    assert (rate.replace(density, lambda *_: joint).doit() / joint).expand() == 0
    # the integral over z completes the square
    marginal = -lam * h**2 / (2 * K) + (beta * gamma0 * error * phi(h)) ** 2 / (2 * lam)
    kernels = {Symbol("Phi11", real=True): K}
    last = rest(1).solved["Phihat_last"].rhs.replace(Function("Delta"), lambda *_: error)
    log_density = rest(1).density(1).subs({**kernels, Symbol("Phihat11", real=True): last})
    assert (log_density - marginal).expand() == 0


def test_output_at_equilibrium_is_that_of_the_stationary_process() -> None:
    """Check that f = <phi z>/gamma0 with <z | h> = beta gamma0 D phi/lam is (K.20)."""
    found = rest(1).solved["f"]
    told = found.rhs.subs(P, 1).doit()
    Delta, Phi = Function("Delta"), Function("Phi")
    assert simplify(told - beta * Delta(1) * Phi(1, mu, 1) / lam) == 0


def test_linear_saddle_point_by_hand() -> None:
    """One layer: Phi = 1/(lam/K - (beta gamma0 D)^2/lam), f = beta Phi D/lam."""
    f, y = Symbol("f", real=True), Symbol("y", positive=True)
    K, kernel = symbols("K Phi1", positive=True)
    output, layer = rest(1, "linear").linear_saddle()
    targets = {x: y for e in (output, layer) for x in e.free_symbols if x.name == "y"}
    told = 1 / (lam / K - (beta * gamma0 * (y - f)) ** 2 / lam)
    assert isinstance(output, Eq)
    assert simplify(output.rhs.subs(targets) - beta * kernel * (y - f) / lam) == 0
    assert simplify(layer.rhs.subs(targets) - told) == 0


def test_an_output_and_targets_of_other_names() -> None:
    """The closed equations kept functions of the sample for outputs that are not called f."""
    others = {"y": "Y", "f": "out", "Delta": "err"}
    found = equilibrium(mean_field(with_names(network(1, "linear"), others)))
    assert found.linear_saddle() == rest(1, "linear").linear_saddle()


def test_conditions_are_derivatives_of_the_action() -> None:
    """For two samples and depth 2, by ordinary differentiation of the opened algebra."""
    found = rest(2)
    algebra = found.algebra.subs(P, 2).doit()
    f, fhat, Phi = (Function(n) for n in ("f", "fhat", "Phi"))
    symmetric = lambda e: e.replace(Phi, lambda n, a, b: Phi(n, *sorted((a, b))))  # noqa: E731
    opened = found.variations["fhat"].subs(P, 2).doit().subs(mu, 1)
    assert simplify(symmetric(opened) - symmetric(algebra.diff(fhat(1)))) == 0
    heat = found.variations["f"].subs(mu, 1)
    assert simplify(heat - algebra.diff(f(1))) == 0
    assert heat.has(Derivative)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (lambda: mlp(2, phi, "flow", weight_decay=lam), "weights that decay and that have noise"),
        (lambda: mlp(2, phi, "flow", temperature=T), "weights that decay and that have noise"),
        (lambda: mlp(2, phi, "gd", weight_decay=lam, temperature=T), "discrete steps"),
        (
            lambda: mlp(2, phi, "flow", weight_decay=lam, temperature=T, bias=True),
            "more than a matrix product",
        ),
    ],
    ids=["no noise", "no decay", "steps", "bias"],
)
def test_other_equilibria_are_refused(program: object, reason: str) -> None:
    with pytest.raises(NotApplicable, match=reason):
        equilibrium(mean_field(program()))  # type: ignore[operator]


@pytest.mark.slow
def test_action_follows_the_program() -> None:
    """The mean loss weighs samples by 1/P; weights that start with other variances have no common prior."""
    mean = mlp(L, phi, "flow", "mean", weight_decay=lam / beta, temperature=1 / beta)
    loss = Function("loss")(Function("f")(mu), Function("y")(mu))
    total = Sum(loss, (mu, 1, P))
    per_sample = [equilibrium(mean_field(p)).algebra.coeff(total) for p in (mean, network())]
    assert simplify(per_sample[0] * P / per_sample[1]) == 1
    wide = network()
    (first, *rest_of) = wide.matrices
    assert isinstance(first, TrainedMatrix)
    other = replace(first, initial=replace(first.initial, variance=S(2)))
    with pytest.raises(NotApplicable, match="the initial variance 1"):
        equilibrium(mean_field(replace(wide, matrices=(other, *rest_of))))


@pytest.mark.parametrize("make", [feedback_alignment, partial(mlp, tied=False)], ids=["fixed", "untied"])
def test_updates_that_are_no_gradient_have_no_gibbs_density(make: Callable[..., Program]) -> None:
    program = make(2, "tanh", rule="flow", weight_decay=lam, temperature=T)
    with pytest.raises(NotApplicable, match="the updates are not the gradient"):
        equilibrium(mean_field(program))


def test_an_update_that_is_twice_the_gradient_has_no_gibbs_density() -> None:
    """The readout alone does not show it: its update is still the gradient."""
    program = network(S(2), "tanh")
    first, *others = program.matrices
    assert isinstance(first, TrainedMatrix)
    double = replace(first, update=replace(first.update, coefficient=2 * first.update.coefficient))
    with pytest.raises(NotApplicable, match="the update of W0 is not minus the gradient"):
        equilibrium(mean_field(replace(program, matrices=(double, *others))))


def test_one_hidden_layer_has_no_conjugate_kernel_of_an_inner_layer() -> None:
    with pytest.raises(NotApplicable, match="two or more layers, and the depth is 1"):
        assert rest(S.One, "tanh").conjugate_kernel


def test_unequal_learning_rates_have_no_gibbs_density() -> None:
    """Weights with one temperature but different rates have no density that is one exponential."""
    program = hidden_layer(GradientFlow(decay=lam, diffusion=T), Parametrization(rates={"w": S(3)}))
    with pytest.raises(NotApplicable, match="one learning rate for all weights"):
        equilibrium(mean_field(program))


@pytest.mark.parametrize("samples", [0, -1, 1.5])
def test_densities_need_a_positive_integer_of_samples(samples: object) -> None:
    with pytest.raises(NotApplicable, match="must be an integer >= 1"):
        rest(1).density(samples)  # type: ignore[arg-type]


def test_linear_output_needs_a_polynomial_loss() -> None:
    """With a logistic loss the equation of the output contains an exponential, and SymPy raised an error."""
    noisy = mlp(1, "linear", "flow", objective="logistic", weight_decay=lam, temperature=T)
    with pytest.raises(NotApplicable, match="not polynomial in f: use a loss that is polynomial"):
        equilibrium(mean_field(noisy)).linear_output()


def test_linear_output_refuses_names_that_it_does_not_know() -> None:
    for numbers in ({"lamda": S.One}, {lam: S.One}):
        with pytest.raises(NotApplicable, match="the keys must be names of symbols of the equations"):
            rest(1, "linear").linear_output(numbers)  # type: ignore[arg-type]
