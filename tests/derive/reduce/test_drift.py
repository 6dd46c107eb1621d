"""One hidden layer as a process at each unit: drift, noise, the density's equation, moments (E.2, K.3)."""

from __future__ import annotations

from functools import lru_cache

import pytest
from sympy import (
    Add,
    Derivative,
    Expr,
    Function,
    Poly,
    Rational,
    S,
    Sum,
    Symbol,
    exp,
    factorial2,
    pi,
    prod,
    simplify,
    symbols,
)

from derive.calculus.averages import Average
from derive.errors import NotApplicable
from derive.program import P, alpha, gamma0, mu, s, t
from derive.reduce.single_site import SingleSite, every_index
from tests.derive.once import mean_field, mlp, single_site

phi, Delta, K_x, p = (Function(n) for n in ("phi", "Delta", "K_x", "p"))
lam, T = symbols("lam T", positive=True)
h1, h2, z, g = symbols("h1 h2 z g", real=True)


@lru_cache(maxsize=8)
def process(activation: str = "phi", **rule: Expr) -> SingleSite:
    return single_site(mean_field(mlp(1, phi if activation == "phi" else activation, "flow", **rule)))


def test_flow_of_one_hidden_layer() -> None:
    """(E.1), any activation: no noise, sources that stand still."""
    site = process()
    h = Function("h")
    at = lambda k: phi(h(1, k, t))  # noqa: E731
    rise = site.flow("z")
    assert (rise.velocity.subs(P, 2).doit() - gamma0 * sum(Delta(k, t) * at(k) for k in (1, 2))).expand() == 0
    push = site.unfolded(site.flow("h").velocity).subs(P, 2).doit()
    slope = lambda k: at(k).diff(h(1, k, t))  # noqa: E731
    z_ = Function("z")(1, t)
    told = gamma0 * sum(Delta(k, t) * K_x(mu, k) * slope(k) * z_ for k in (1, 2))
    assert (push - told).expand() == 0
    assert (site.flow("h").start, site.flow("z").start) == (K_x(mu, alpha), 1)
    assert site.flow("h").diffusion == site.flow("z").diffusion == 0


def test_density_of_two_samples_by_hand() -> None:
    """A continuity equation: minus the divergence of velocity times density."""
    density = p(h1, h2, z, t)
    points = {1: h1, 2: h2}
    velocity = {
        i: gamma0 * z * sum(K_x(i, k) * Delta(k, t) * phi(x).diff(x) for k, x in points.items())
        for i in points
    }
    rise = gamma0 * sum(Delta(k, t) * phi(x) for k, x in points.items())
    told = -sum((velocity[i] * density).diff(points[i]) for i in points) - (rise * density).diff(z)
    equation = process().drift_pde(2)
    assert equation.lhs == Derivative(density, t)
    assert (equation.rhs - told).expand() == 0


@pytest.mark.parametrize("samples", [1, 2])
def test_symbolic_number_of_samples_gives_each_number(samples: int) -> None:
    h = Function("h")
    general = process().drift_pde().rhs.subs(P, samples).doit()
    points = {h(k): Symbol(f"h{k}", real=True) for k in range(1, samples + 1)}
    density = p(*points, z, t)
    opened = general.replace(p, lambda *_: density).xreplace(points)
    assert (opened - process().drift_pde(samples).rhs).expand() == 0


def test_density_of_several_outputs_has_a_coordinate_for_each() -> None:
    """Hand derivation, one sample: z1 and z2 follow their errors, h follows both."""
    found = single_site(mean_field(mlp(1, phi, "flow", outputs=2))).drift_pde(1)
    z1, z2 = symbols("z1 z2", real=True)
    density = p(h1, z1, z2, t)
    push = gamma0 * K_x(1, 1) * phi(h1).diff(h1) * (z1 * Delta(1, 1, t) + z2 * Delta(1, 2, t))
    told = -(push * density).diff(h1)
    told -= sum((gamma0 * Delta(1, c, t) * phi(h1) * density).diff(x) for c, x in ((1, z1), (2, z2)))
    assert (found.rhs - told).expand() == 0


def test_compression_is_minus_the_divergence() -> None:
    h = Function("h")
    told = -gamma0 * z * Delta(1, t) * K_x(1, 1) * phi(h(1)).diff(h(1), 2)
    assert (process().compression().subs(P, 1).doit() - told).expand() == 0
    assert process("linear").compression() == 0


def _mass(rate: Expr, density: Expr) -> Expr:
    """Return the integral of a velocity of the density over h and z."""
    return _integral(rate.replace(p, lambda *_: density).doit(), z)


def _integral(e: Expr, back: Symbol) -> Expr:
    """Return the integral over h and z, or g, of a polynomial times a Gaussian of unit variance."""
    weight = exp(-(h1**2 + back**2) / 2) / (2 * pi)
    powers = Poly((e / weight).expand(), h1, back).terms()
    return Add(*[c * _moment(i) * _moment(j) for (i, j), c in powers]).expand()


def _moment(n: int) -> Expr:
    return S.Zero if n % 2 else factorial2(n - 1)


def test_mass_is_conserved_and_the_printed_equation_loses_it() -> None:
    """Check mass for phi = h^2.

    The printed first term, without gamma0, changes the mass where the average of z is not 0.
    """
    density = exp(-(h1**2 + z**2) / 2) / (2 * pi) * (1 + z)
    rate = process("quadratic").drift_pde(1).rhs
    stretched = Add(*[x for x in rate.expand().args if not x.has(Derivative)])
    assert stretched != 0
    assert _mass(rate, density) == 0
    assert _mass(rate + (1 / gamma0 - 1) * stretched, density) != 0


@pytest.mark.slow
def test_noise_and_decay_have_their_gaussian_at_rest() -> None:
    """Without errors: Ornstein-Uhlenbeck, variances K T/lam and T/lam."""
    rate = process("phi", weight_decay=lam, temperature=T).drift_pde(1).rhs.replace(Delta, lambda *_: 0)
    K = Symbol("K", positive=True)
    rate = rate.replace(K_x, lambda *_: K)
    rest = exp(-lam * (h1**2 / K + z**2) / (2 * T))
    assert (rate.replace(p, lambda *_: rest).doit() / rest).expand() == 0
    warmer = exp(-lam * (h1**2 / K + z**2) / (3 * T))
    assert (rate.replace(p, lambda *_: warmer).doit() / warmer).expand() != 0


@pytest.mark.slow
def test_moments_by_ito() -> None:
    """d<h h>/dt of a linear layer with noise: drift on either factor, and 2 T K."""
    h = Function("h")
    site = process("linear", weight_decay=lam, temperature=T)
    rate = site.moment_rate(h(1, mu, t) ** 2).subs(P, 1).doit().subs(mu, 1)
    moved = 2 * gamma0 * K_x(1, 1) * Delta(1, t) * Average(Function("g")(1, t) * h(1, 1, t))
    told = moved - 2 * lam * Average(h(1, 1, t) ** 2) + 2 * T * K_x(1, 1)
    assert simplify(rate - told) == 0


def test_average_over_the_density_is_itos_rule() -> None:
    """Check int F dp/dt for F = h^2 z and a Gaussian density.

    It equals the moment's rate averaged over the density.
    """
    rate = process("linear").drift_pde(1).rhs.replace(K_x, lambda *_: Rational(3, 2))
    rate = rate.replace(Delta, lambda *_: 1)
    density = exp(-(h1**2 + g**2) / 2) * (1 + g + h1) / (2 * pi)
    left = _integral(h1**2 * g * rate.replace(p, lambda *_: density).doit(), g)
    drifted = (2 * h1 * g * Rational(3, 2) * g + h1**3) * gamma0 * density
    right = _integral(drifted, g)
    assert (left - right).expand() == 0
    assert right != 0


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (lambda: mlp(1, phi, "gd"), "discrete steps"),
        (lambda: mlp(2, phi, "flow"), "not shown to be a Markov process"),
        (lambda: mlp(1, phi, "flow", momentum=T), "decay at another rate"),
    ],
    ids=["steps", "deep", "momentum"],
)
def test_other_processes_are_refused(program: object, reason: str) -> None:
    with pytest.raises(NotApplicable, match=reason):
        single_site(mean_field(program()))  # type: ignore[operator]


def test_biases_add_to_the_start_and_to_the_velocity() -> None:
    """A bias is the weight of an input that is 1: K_x + 1 in place of K_x."""
    plain, biased = (single_site(mean_field(mlp(1, phi, "flow", bias=b))) for b in (False, True))
    more = K_x(mu, alpha) + 1
    assert biased.flow("h").start == more
    moved = plain.flow("h").velocity.xreplace({K_x(mu, alpha): more})
    assert (biased.flow("h").velocity - moved).subs(P, 2).doit().expand() == 0
    assert biased.flow("z") == plain.flow("z")


@pytest.mark.parametrize("samples", [0, -1, 2.5, True])
def test_the_density_needs_a_positive_integer_of_samples(samples: object) -> None:
    """Zero gave a density without preactivations."""
    with pytest.raises(NotApplicable, match=r"drift_pde\(.*\): .* must be an integer >= 1"):
        process().drift_pde(samples)  # type: ignore[arg-type]


def test_a_step_with_noise_keeps_gaussian_fields_gaussian() -> None:
    """In discrete time ``<g^4>`` of a Gaussian g is three times the square of ``<g^2>`` after the step."""
    site = every_index(mean_field(mlp(1, temperature=T)))
    g_, h_ = Function("g")(1, t), Function("h")(1, 1, t)

    def gaussian(average: Expr) -> Expr:
        """Return the average of a polynomial in independent unit Gaussians g and h."""
        powers = Poly(average.body, g_, h_).terms()
        return Add(*[c * prod(factorial2(n - 1) * (n % 2 == 0) for n in n_) for n_, c in powers])

    def after(n: int) -> Expr:
        rate = site.moment_rate(g_**n).subs(P, 1).doit()
        return rate.replace(lambda x: isinstance(x, Average), gaussian)

    assert after(4).has(T**2)
    assert (after(4) - 3 * after(2) ** 2).expand() == 0
    assert after(3) == 0


@pytest.mark.parametrize(
    ("rule", "body", "reason"),
    [
        ("gd", exp(Function("g")(1, t)), r"the average of exp\(g\(1, t\)\) after a step with noise"),
        ("flow", Sum(Function("h")(1, mu, t) ** 2, (mu, 1, P)), "stands in a sum over its index"),
        ("flow", Function("h")(1, mu, t) * Function("h")(1, mu, s), r"with h\(1, mu, s\) is not derived"),
        ("flow", Function("q")(t) * Function("h")(1, mu, t), r"with q\(t\) is not derived"),
    ],
)
def test_moments_whose_rate_is_not_derived_are_refused(rule: str, body: Expr, reason: str) -> None:
    site = every_index(mean_field(mlp(1, "linear", rule, temperature=T)))
    with pytest.raises(NotApplicable, match=reason):
        site.moment_rate(body)
