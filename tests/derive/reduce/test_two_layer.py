"""One hidden layer as differential equations: (E.1), (F.5)-(F.7), and the solution in high precision."""

from __future__ import annotations

import mpmath
import pytest
from sympy import Derivative, Expr, Function, Integer, Sum, Symbol, lambdify, simplify, symbols

from derive.errors import NotApplicable
from derive.program import GradientDescent, GradientFlow, P, alpha, eta, gamma0, mu, s, t
from derive.program.rules import entry_covariance
from derive.reduce.memoryless import relaxation
from derive.reduce.whitened import norm
from derive.theory import Average
from tests.derive.once import mean_field, mlp, moment_steps, two_layer, whitened
from tests.derive.programs import hidden_layer

H, G, Delta, K, y = (Function(x) for x in ("H", "G", "Delta", "K_x", "y"))
h, g = Function("h"), Function("g")


@pytest.fixture(scope="module")
def flow():
    return two_layer(mean_field(mlp(1, rule="flow")))


def written(e: Expr, size: int = 3) -> Expr:
    """Return sums written out for a fixed number of samples."""
    return e.subs(P, size).doit().expand()


def samples(e: Expr) -> Expr:
    return Sum(e, (alpha, 1, P))


def test_fields_f5(flow):
    assert [e.lhs for e in flow.fields] == [Derivative(h(1, mu, t), t), Derivative(g(1, t), t)]
    first, second = (e.rhs for e in flow.fields)
    assert written(first - gamma0 * g(1, t) * samples(K(mu, alpha) * Delta(alpha, t))) == 0
    assert written(second - gamma0 * samples(Delta(alpha, t) * h(1, alpha, t))) == 0


def test_moments_f6(flow):
    rates = {e.lhs.args[0].func: e.rhs for e in flow.rates}
    m = Average(g(1, t) * h(1, mu, t))
    printed = 2 * gamma0 * samples(Delta(alpha, t) * m.subs(mu, alpha))
    assert written(rates[G] - printed) == 0
    for i, j in ((1, 2), (2, 2)):
        first = sum(K(i, k) * Delta(k, t) for k in (1, 2, 3)) * m.subs(mu, j)
        second = sum(K(j, k) * Delta(k, t) for k in (1, 2, 3)) * m.subs(mu, i)
        assert (
            written(rates[H]).subs({mu: i, alpha: j}) - (gamma0 * (first + second)).expand()
        ).expand() == 0


def test_closed_equations_f7(flow):
    rate = {f: written(flow.rate(f)) for f in ("H", "G", "Delta")}
    r = range(1, 4)
    error = -sum((H(mu, k, t) + G(t) * K(mu, k)) * Delta(k, t) for k in r)
    assert (rate["Delta"] - error).expand() == 0
    assert (rate["G"] - 2 * gamma0**2 * sum((y(k) - Delta(k, t)) * Delta(k, t) for k in r)).expand() == 0
    i, j = 1, 3
    drive = [sum(K(x, k) * Delta(k, t) for k in r) for x in (i, j)]
    out = [y(x) - Delta(x, t) for x in (i, j)]
    printed = gamma0**2 * (drive[0] * out[1] + out[0] * drive[1])
    assert (rate["H"].subs({mu: i, alpha: j}) - printed).expand() == 0


def test_initial_kernel_is_the_input_kernel(flow):
    """(F.7 text) prints H(0) = I, which holds for whitened data only."""
    initial = {e.lhs: e.rhs for e in flow.initial}
    assert initial[H(mu, alpha, 0)] == K(mu, alpha)
    assert initial[G(0)] == 1
    assert initial[Delta(mu, 0)] == y(mu)


def test_the_output_moves_by_the_tangent_kernel(flow):
    """For L = 1 the average that defines f obeys df/dt = K(t, t) Delta, K being the observable."""
    kernel = flow.theory.observables[0].rhs
    now = kernel.replace(
        lambda x: x.is_Function and str(x.func) in "HG",
        lambda x: Function(str(x.func))(*[a for a in x.args[1:-2]], t),
    )
    by_kernel = -samples(now * Delta(alpha, t))
    assert written(flow.rate("Delta") - by_kernel) == 0


def test_nonlinear_fields_e1():
    phi, Phi, z = Function("phi"), Function("Phi"), Function("z")
    found = two_layer(mean_field(mlp(1, phi, rule="flow")))
    assert found.closed == ()
    assert written(found.fields[1].rhs - gamma0 * samples(Delta(alpha, t) * phi(h(1, alpha, t)))) == 0
    assert found.fields[0].rhs == gamma0 * samples(Delta(alpha, t) * K(mu, alpha) * g(1, alpha, t))
    printed = -samples((G(mu, alpha, t) * K(mu, alpha) + Phi(mu, alpha, t)) * Delta(alpha, t))
    assert written(found.error.rhs - printed) == 0
    assert {e.lhs for e in found.moments} == {Phi(mu, alpha, t), G(mu, alpha, t)}
    assert found.start[1].lhs == Average(z(1, mu, 0) * z(1, alpha, 0))
    assert "begin{align}" in found.latex()


def test_mean_loss_is_slower_by_the_number_of_samples(flow):
    slow = two_layer(mean_field(mlp(1, rule="flow", loss="mean")))
    for a, b in zip(flow.closed, slow.closed, strict=True):
        assert written(a.rhs - P * b.rhs) == 0


@pytest.mark.parametrize("program", [mlp(1), mlp(2, rule="flow"), mlp(2, rule="flow", tied=False)])
def test_aging_kernels_and_counted_steps_are_refused(program):
    with pytest.raises(NotApplicable):
        two_layer(mean_field(program))


def integrate(flow, kernel, targets, gamma, time):
    """Solve (F.7) as derived, by Taylor series in 20 digits; (Delta, H, G) at ``time``."""
    n = len(targets)
    pairs = [(i, j) for i in range(1, n + 1) for j in range(i, n + 1)]
    unknowns = [Delta(i, t) for i in range(1, n + 1)] + [H(i, j, t) for i, j in pairs] + [G(t)]

    def at(e: Expr, i: int, j: int = 1) -> Expr:
        e = written(e, n).subs({mu: i, alpha: j})
        swap = {H(b, a, t): H(a, b, t) for a, b in pairs}
        data = {K(a, b): kernel[a - 1][b - 1] for a in range(1, n + 1) for b in range(1, n + 1)}
        return e.subs(swap | data | {y(a): targets[a - 1] for a in range(1, n + 1)} | {gamma0: gamma})

    rates = [at(flow.rate("Delta"), i) for i in range(1, n + 1)]
    rates += [at(flow.rate("H"), i, j) for i, j in pairs] + [at(flow.rate("G"), 1)]
    start = {e.lhs: e.rhs for e in flow.initial}
    first = [at(start[Delta(mu, 0)], i) for i in range(1, n + 1)]
    first += [at(start[H(mu, alpha, 0)], i, j) for i, j in pairs] + [start[G(0)]]
    f = lambdify(unknowns, rates, "mpmath")
    solution = mpmath.odefun(lambda _, x: f(*x), 0, [mpmath.mpf(x) for x in first])(time)
    return solution[:n], dict(zip(pairs, solution[n:-1], strict=True)), solution[-1]


@pytest.mark.parametrize(
    ("targets", "gamma"), [((0.5, -1.0), 1.5), pytest.param((1.0, 0.25, 0.5), 0.75, marks=pytest.mark.slow)]
)
def test_whitened_solution_solves_the_full_equations(flow, targets, gamma):
    """Full (F.7) for P = 2, 3 with K_x = 1 against the closed form of one variable."""
    with mpmath.workdps(20):
        n = len(targets)
        unit = [[int(i == j) for j in range(n)] for i in range(n)]
        error, kernel, backward = integrate(flow, unit, [mpmath.mpf(x) for x in targets], gamma, 0.6)
        length = mpmath.sqrt(sum(mpmath.mpf(x) ** 2 for x in targets))
        w = whitened(flow)
        now = {norm: length, gamma0: gamma, t: mpmath.mpf("0.6")}
        scale = mpmath.mpf(w.solution.rhs.subs(now)) / length
        for e, target in zip(error, targets, strict=True):
            assert abs(e - scale * target) < 1e-13
        slow = {Function("Delta")(t): scale * length, norm: length, gamma0: gamma}
        along = mpmath.mpf(w.eliminated[0].rhs.subs(slow))
        assert abs(backward - along) < 1e-13
        for (i, j), value in kernel.items():
            expected = (i == j) + (along - 1) * targets[i - 1] * targets[j - 1] / length**2
            assert abs(value - expected) < 1e-13


@pytest.mark.slow
def test_rotating_the_samples_rotates_the_flow(flow):
    with mpmath.workdps(15):
        c, s = mpmath.mpf("0.6"), mpmath.mpf("0.8")
        turn = mpmath.matrix([[c, -s], [s, c]])
        kernel, targets = mpmath.matrix([[1, 0.25], [0.25, 0.5]]), mpmath.matrix([1, -0.5])
        first, *_ = integrate(flow, kernel.tolist(), list(targets), 1.25, 0.5)
        turned = (turn * kernel * turn.T).tolist()
        second, *_ = integrate(flow, turned, list(turn * targets), 1.25, 0.5)
        assert mpmath.norm(turn * mpmath.matrix(first) - mpmath.matrix(second)) < 1e-11


def test_biases_count_in_the_start():
    """A bias is the weight of an input that is 1."""
    found = two_layer(mean_field(mlp(1, rule="flow", bias=True)))
    assert found.initial[0].rhs == K(mu, alpha) + 1


def test_steps_with_decay_and_noise_relax():
    """The rate of the covariance was not simplified, so that it seemed to depend on the time."""
    lam, T = symbols("lam T", positive=True)
    rule = GradientDescent(eta, decay=eta * lam, diffusion=2 * T * eta)
    rate, noise, start = relaxation(entry_covariance(rule, t, s) * K(mu, alpha), discrete=True)
    assert (rate, start) == (eta * lam, K(mu, alpha))
    assert simplify(noise - 2 * T * eta * K(mu, alpha)) == 0


@pytest.mark.slow
def test_decay_and_noise_are_the_limit_of_small_steps():
    """One sample: what a step of length eta adds, over eta, against the rates of the flow."""
    lam, T = symbols("lam T", positive=True)
    steps = moment_steps(mean_field(mlp(1, weight_decay=lam, temperature=T, loss="sum")))
    flow = two_layer(mean_field(mlp(1, rule="flow", weight_decay=lam, temperature=T)))

    def one(e):
        e = e.subs(P, 1).doit().replace(K, lambda *_: Symbol("K"))
        return e.xreplace({x: Integer(1) for x in e.free_symbols if x.name.startswith(("mu", "alpha"))})

    for x, later in steps.step.items():
        gained = one(later - x).diff(eta).subs(eta, 0)
        assert (gained - one(flow.rate(str(x.func)))).expand() == 0, x


def test_an_output_with_an_offset_has_no_moment_equations():
    """Rates were divided by the whole output over its average, which gave b/(y - Delta - b)."""
    offset = Function("b")(mu)
    with pytest.raises(NotApplicable, match=r"f\(mu, t\) is b\(mu\)"):
        two_layer(mean_field(hidden_layer(GradientFlow(), offset=offset)))
    with pytest.raises(NotApplicable, match="a constant times one average"):
        moment_steps(mean_field(hidden_layer(GradientDescent(eta), offset=offset)))


def test_fields_without_layers_have_the_same_moments(flow):
    """Fields h(mu, t) and g(t) gave a ValueError."""
    flat = two_layer(mean_field(hidden_layer(GradientFlow(), layered=False)))
    assert (flat.closed, flat.initial) == (flow.closed, flow.initial)
