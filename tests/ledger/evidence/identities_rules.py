"""selfconsistent2023, appendices J to M: printed equations with decay, noise, steps equal derived ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import product
from random import Random

from sympy import (
    Add,
    Expr,
    Function,
    Heaviside,
    I,
    Identity,
    Integral,
    Lambda,
    Matrix,
    Max,
    Min,
    Rational,
    S,
    Sum,
    Symbol,
    exp,
    limit,
    oo,
    powsimp,
    simplify,
    sqrt,
    symbols,
    sympify,
)

from derive.calculus.averages import Average
from derive.calculus.gaussian import GaussianAverage
from derive.linear.operators import SymbolicIdentity
from derive.program import (
    GradientFlow,
    L,
    MomentumFlow,
    P,
    TrainedMatrix,
    TrainedVector,
    alpha,
    ell,
    gamma0,
    mu,
    s,
    t,
)
from derive.reduce.equilibrium import Equilibrium
from derive.reduce.stationary import TwoSources, two_sources
from derive.theory import Theory
from tests.derive.once import equilibrium, mean_field, mlp, network_degree, representer, stationary
from tests.ledger.claims.selfconsistent2023.discrete import N, T, fhat, i, w, xihat
from tests.ledger.evidence.base import Evidence
from tests.ledger.evidence.identity import Pair, compared, difference, sides
from tests.ledger.jklm import ENDS, NEXT, Delta, Phi, beta, h, lam, r, tau, with_start
from tests.ledger.printed_forms import at, covariance, phi

SOURCE = "selfconsistent2023"
ETA = Symbol("eta", positive=True)


def _zero(one: Expr, other: Expr) -> bool:
    """Return whether the difference simplifies to zero."""
    return bool(simplify(sympify(one) - other) == 0)


@lru_cache(maxsize=1)
def noisy() -> TwoSources:
    """Return the theory with decay and noise, with initial weights and noise as separate sources."""
    return two_sources(mean_field(mlp(L, phi, "flow", weight_decay=lam / beta, temperature=1 / beta)))


@lru_cache(maxsize=1)
def decaying() -> Theory:
    """Return the theory of the deep network with weight decay."""
    return two_sources(mean_field(mlp(L, phi, "flow", weight_decay=lam))).theory


@lru_cache(maxsize=1)
def rest() -> Equilibrium:
    """Return the equilibrium of the deep network with decay and noise."""
    return equilibrium(mean_field(mlp(L, phi, "flow", weight_decay=lam / beta, temperature=1 / beta)))


@lru_cache(maxsize=1)
def steps() -> Theory:
    """Return the theory of the deep network in gradient descent."""
    return mean_field(mlp(L, phi, "gd"))


# -- decay and momentum --------------------------------------------------------------------------------------


def decay_pairs() -> Iterator[Pair]:
    """Yield the pairs of (J.1), (J.2), (L.2), (L.3)."""
    claim = sides(SOURCE, "J.1")
    kappa, q = (Symbol(n, positive=True) for n in ("kappa", "q"))
    derived = representer(mean_field(mlp(activation="relu", rule="flow", weight_decay=lam)))
    degree, rate = network_degree(mlp(activation="relu")).kappa, derived.rate
    assert rate is not None
    x = Symbol("x", real=True)
    yield Pair("J.1", "df", claim["df"].subs(kappa, degree), rate.rhs, _zero)
    yield Pair("J.1", "degree_of_rectifiers", claim["degree_of_rectifiers"], degree, difference)
    powers = network_degree(mlp(activation=Lambda(x, Max(0, x) ** q))).kappa
    yield Pair("J.1", "degree_of_powers", claim["degree_of_powers"], powers, _zero)
    said = claim["f"].subs(kappa, degree).replace(Identity, SymbolicIdentity)
    yield Pair("J.1", "f", said, derived.anywhere, lambda one, other: one == other)
    for name in ("h", "z"):
        said = with_start(sides(SOURCE, "J.2")[name], name)
        for site in (NEXT[name], ENDS[name]):
            yield Pair("J.2", name, at(said, site), decaying().equation(name, site).rhs)
    claim, memory = sides(SOURCE, "L.2"), MomentumFlow(tau).memory(t, s)[1]
    yield Pair("L.2", "memory", claim["memory"], memory, lambda one, other: _zero(one.doit(), other))
    yield Pair("L.2", "kernel", claim["kernel"].subs(x, t), memory.diff(t), _zero)
    theory = mean_field(mlp(L, phi, "flow", momentum=tau))
    for name in ("h", "z"):
        said = inner_first(with_start(sides(SOURCE, "L.3")[name], name))
        yield Pair("L.3", name, said, theory.equation(name, NEXT[name]).rhs)


def inner_first(e: Expr) -> Expr:
    """Apply int_0^t dx int_0^x ds k(x - s) F(s) = int_0^t ds (int_s^t dx k(x - s)) F(s)."""
    x = Symbol("x", real=True)

    def turned(a: Integral) -> Expr:
        limits = {v: (low, up) for v, low, up in a.limits}
        if limits != {s: (0, x), x: (0, t)}:
            return a
        kernel, others = a.function.as_independent(Sum)
        inner = Integral(powsimp(kernel), (x, s, t)).doit()
        return Integral(inner * others, (s, 0, t))

    return e.replace(lambda a: isinstance(a, Integral), turned)


def decay_and_momentum() -> Evidence:
    """Check (J.1), (J.2), (L.2), (L.3): equations with decay and momentum are the derived ones."""
    return compared(
        "identities_rules:decay_and_momentum",
        "Rates, degrees, outputs at rest, fields with decay and fields with momentum are the derived ones.",
        decay_pairs(),
    )


# -- noise ---------------------------------------------------------------------------------------------------


def noise_pairs() -> Iterator[Pair]:
    """Yield the pairs of (K.2), (K.7), (K.10)-(K.12), (K.15), (K.16)."""
    yield from _weights()
    yield from _covariance_of_the_noise()
    theory, C = noisy().theory, Function("C")

    def known(e: Expr) -> Expr:
        return e.replace(C, lambda now, past: noisy().noise.subs({t: now, s: past}, simultaneous=True))

    said = known(sides(SOURCE, "K.10")["cov_u_eps"])
    yield Pair("K.10", "cov_u_eps", said, covariance(theory, "u_eps", ell + 1), _zero)
    said = known(sides(SOURCE, "K.11")["cov_r_eps"])
    yield Pair("K.11", "cov_r_eps", said, covariance(theory, "r_eps", ell), _zero)
    claim, A_eps, B_eps = sides(SOURCE, "K.12"), Function("A_eps"), Function("B_eps")
    there = theory.equation("h", ell + 1).terms
    derived = Add(*[x.expr for x in there if x.expr.has(A_eps, Function("u_eps"))])
    said = claim["chi_eps"].replace(A_eps, lambda n, *k: gamma0 * A_eps(n - 1, *k))
    yield Pair("K.12", "chi_eps", said, derived)
    there = theory.equation("z", ell).terms
    derived = Add(*[x.expr for x in there if x.expr.has(B_eps, Function("r_eps"))])
    said = claim["xi_eps"].replace(B_eps, lambda n, a, b, x, y: gamma0 * B_eps(n, b, a, y, x))
    yield Pair("K.12", "xi_eps", said, derived)
    yield from _long_times()


def _weights() -> Iterator[Pair]:
    """Yield the pairs of (K.2): update and noise of a weight times its integrating factor."""
    rule, claim = GradientFlow(decay=lam / beta, diffusion=2 / beta), sides(SOURCE, "K.2")
    kept, fed = rule.memory(t, s)
    grown = 1 / kept
    (weight,) = [x for x in mlp(L, phi, "flow").trained() if x.name == "W"]
    assert isinstance(weight, TrainedMatrix)
    update = weight.update
    moved = (update.coefficient * Function("outer")(update.left, update.right)).subs(alpha, mu)
    size = next(x for x in claim["dt"].free_symbols if x.name == "N")
    derived = (fed * grown).subs(s, t) * Sum(moved, (mu, 1, P)) / sqrt(size)

    def of_two(one: Expr, other: Expr) -> bool:
        return _zero(one.subs(P, 2).doit(), other.subs(P, 2).doit())

    yield Pair("K.2", "dt", claim["dt"], derived, of_two)
    square = simplify(rule.noise(t, t) * grown**2).diff(t)
    yield Pair("K.2", "noise", claim["noise"], square, lambda one, other: _zero(one**2, other))


def _covariance_of_the_noise() -> Iterator[Pair]:
    """Yield the pairs of (K.7).

    The integral, its closed form and its late value are compared with the engine's noise for both orders of
    times, the log of the average over one matrix with its second cumulant.
    """
    rule, claim = GradientFlow(decay=lam / beta, diffusion=2 / beta), sides(SOURCE, "K.7")
    early, lag = symbols("early lag", positive=True)

    def ordered(e: Expr, turned: bool) -> Expr:
        times = (early, early + lag) if turned else (early + lag, early)
        there = e.subs(dict(zip((t, s), times, strict=True)), simultaneous=True)
        return there.subs(Min(early, early + lag), early)

    for turned in (False, True):
        noise = ordered(rule.noise(t, s), turned)
        yield Pair("K.7", "C", ordered(claim["C"], turned), noise, _zero)
        late = limit(simplify(noise), early, oo)
        yield Pair("K.7", "C_late", ordered(claim["C_late"], turned), late, _zero)
        said = ordered(claim["integral"], turned)
        yield Pair("K.7", "integral", said, noise, lambda one, other: _zero(one.doit().rewrite(exp), other))
    cumulant, numbers = _half_cumulant(claim["C"])

    def summed(e: Expr) -> Expr:
        """Return integrals over times as sums over two times, for one sample, with numbers for vectors."""
        whole = e.replace(lambda x: isinstance(x, Integral), lambda x: _at_two_times(x.function, numbers))
        return simplify(whole)

    yield Pair("K.7", "log", claim["log"], cumulant, lambda one, other: _zero(summed(one), other))


TIMES, UNITS = (1, 2), (0, 1)
Values = dict[str, Callable[..., Expr]]


def _half_cumulant(covariance_of_weights: Expr) -> tuple[Expr, Values]:
    """Return minus half the second cumulant of the noise in one matrix, and values of its functions.

    There are two units, two times and one sample. The matrix is contracted with ``X(t) = chi_hat phi^T + g
    xi_hat^T`` at the time t, and ``phi . xi_hat = i N A_eps``. The values are those of vectors and kernels in
    these numbers.
    """
    rng = Random(5)
    chi, xi, field, back = (
        {(k, n): Rational(rng.randint(-9, 9), 7) for k in TIMES for n in UNITS} for _ in range(4)
    )

    def inner(a: dict[tuple[int, int], Expr], b: dict[tuple[int, int], Expr], x: Expr, y: Expr) -> Expr:
        return Add(*[a[int(x), n] * b[int(y), n] for n in UNITS])

    vectors = {"chihat_eps": chi, "xihat_eps": xi, "g": back}
    layers = {"chihat_eps": ell + 1, "xihat_eps": ell, "g": ell + 1}

    def dot(x: Expr, y: Expr) -> Expr:
        for v in (x, y):
            if v.args[:2] != (layers[str(v.func)], 1):
                raise KeyError(f"{v} is another vector")
        return inner(vectors[str(x.func)], vectors[str(y.func)], x.args[-1], y.args[-1])

    def kernel(
        a: dict[tuple[int, int], Expr], b: dict[tuple[int, int], Expr], layer: Expr
    ) -> Callable[..., Expr]:
        def value(n: Expr, one: Expr, two: Expr, x: Expr, y: Expr) -> Expr:
            if (n, one, two) != (layer, 1, 1):
                raise KeyError(f"layer {n}, samples {one}, {two}")
            return inner(a, b, x, y) / 2

        return value

    def matrix(k: int) -> Matrix:
        return Matrix(2, 2, lambda m, n: chi[k, m] * field[k, n] + back[k, m] * xi[k, n])

    numbers: Values = {
        "dot": dot,
        "Phi": kernel(field, field, ell),
        "G": kernel(back, back, ell + 1),
        "A_eps": lambda *n: kernel(field, xi, ell)(*n) / I,
    }
    total = S.Zero
    for x, y in product(TIMES, TIMES):
        at_times = covariance_of_weights.subs({t: x, s: y}, simultaneous=True)
        total -= at_times * (matrix(x) * matrix(y).T).trace() / 4
    return total, numbers


def _at_two_times(e: Expr, numbers: Values) -> Expr:
    total = S.Zero
    for x, y in product(TIMES, TIMES):
        part = e.subs(P, 1).doit().subs({t: x, s: y}, simultaneous=True)
        for name, value in numbers.items():
            part = part.replace(Function(name), value)
        total += part
    return total


def _long_times() -> Iterator[Pair]:
    late = stationary(mean_field(mlp(L, phi, "flow", weight_decay=lam / beta, temperature=1 / beta)))
    fields = {(str(e.lhs.func), e.lhs.args[0]): e.rhs for e in late.fields}
    kernels = {str(e.lhs.func): gaussians_named(e.rhs) for e in late.kernels}
    where = {
        "K.15": {"H_first": ("H", 1), "H": ("H", ell + 1)},
        "K.16": {"Z_last": ("Z", L), "Z": ("Z", ell)},
    }
    for number, places in where.items():
        claim = sides(SOURCE, number)
        for name, place in places.items():
            yield Pair(number, name, claim[name], fields[place], _zero)
        kernel = "Phi" if number == "K.15" else "G"
        yield Pair(number, kernel, claim[kernel], kernels[kernel], _zero)


def gaussians_named(e: Expr) -> Expr:
    """Return Gaussian averages as ``gaussian(body, <x x>, <x y>, <y y>)``."""
    x, y = Symbol("x", real=True), Symbol("y", real=True)

    def named(a: GaussianAverage) -> Expr:
        return Function("gaussian")(a.body, *(a.covariance(*p) for p in ((x, x), (x, y), (y, y))))

    return e.replace(lambda a: isinstance(a, GaussianAverage), named)


def noise() -> Evidence:
    """Check (K.2), (K.7), (K.10)-(K.12), (K.15), (K.16): equations with noise are the derived ones."""
    return compared(
        "identities_rules:noise",
        "Weights with an integrating factor, the covariance of the noise, its sources, its fields and the "
        "kernels at long times are the derived ones.",
        noise_pairs(),
    )


# -- equilibrium ---------------------------------------------------------------------------------------------


def alike(said: Expr, derived: Expr) -> bool:
    """Return whether both are equal for two samples and two layers, with products of sums opened."""
    return _zero(_two_samples(said), _two_samples(derived))


def _two_samples(e: Expr) -> Expr:
    e = e.replace(Function("average"), lambda x: Average(x).linear(frozenset({"h", "hhat"})))
    return e.subs(L, 2).subs(P, 2).doit().expand()


def equilibrium_pairs() -> Iterator[Pair]:
    """Yield the pairs of (K.17), (K.18), (K.20), (K.21)."""
    found, claim = rest(), sides(SOURCE, "K.17")
    yield Pair("K.17", "exponent", claim["exponent"], found.algebra, alike)
    yield Pair("K.17", "Z", claim["Z"], found.exponent, alike)
    logs = Sum(Function("lnZ")(ell), (ell, 1, L))
    yield Pair("K.18", "S", sides(SOURCE, "K.18")["S"], found.algebra + logs, alike)
    yield Pair("K.20", "f", sides(SOURCE, "K.20")["f"], found.solved["f"].rhs, alike)
    last = found.solved["Phihat_last"].rhs

    def conjugate(n: Expr, a: Expr, b: Expr) -> Expr:
        return last.subs({mu: a, alpha: b}, simultaneous=True)

    exponent = found.exponent.subs(ell, L).replace(Function("Phihat"), conjugate)
    yield Pair("K.21", "Z", sides(SOURCE, "K.21")["Z"], exponent, alike)


def at_equilibrium() -> Evidence:
    """Check (K.17), (K.18), (K.20), (K.21): action, exponents and output at equilibrium."""
    return compared(
        "identities_rules:at_equilibrium",
        "The action, the exponents and the output at equilibrium are the derived ones.",
        equilibrium_pairs(),
    )


# -- steps ---------------------------------------------------------------------------------------------------


def step_pairs() -> Iterator[Pair]:
    """Yield the pairs of (M.1), by the readout's units and by the derived kernel, and of (M.3), (M.4)."""
    yield from _readout_average()
    claim, size = sides(SOURCE, "M.1"), {N: 2, P: 2, t: 2}
    program = mlp(L, phi, "gd")
    kept, fed = (x.subs(ETA, 1) for x in program.rule.memory(t, s))
    (readout,) = [x for x in program.trained() if x.name == "w"]
    assert isinstance(readout, TrainedVector)
    update = readout.update.coefficient.subs(t, s) * readout.update.vector.subs(t, s)
    told = kept * w(i, 0) + Sum(fed * update, (alpha, 1, P), (s, 0, t - 1))
    by_units = Sum(_of_unit(told * phi(h(L, mu, t))), (i, 1, N)) / (N * gamma0)

    def opened(one: Expr, other: Expr) -> bool:
        return _zero(one.subs(size).doit(), other.subs(size).doit())

    yield Pair("M.1", "f_by_units", claim["f_by_units"], by_units, opened)
    start = Sum(w(i, 0) * phi(h(L, mu, i, t)), (i, 1, N)) / (N * gamma0)
    yield Pair("M.1", "f", claim["f"], start + _past_of_the_output(), opened)


def _readout_average() -> Iterator[Pair]:
    """Yield the pairs of (M.3) and (M.4) for two units, samples and times.

    (M.3) is minus half the squared length of the vector that multiplies w(0). (M.4) has outputs as in (M.2),
    each kernel times its conjugate, and ``phi . xi_hat = i N gamma0 A``.
    """
    hat, feature = Function("x"), Function("y")  # entries of xi_hat and phi(h)
    places = list(product((1, 2), (0, 1)))
    squares = S.Zero
    for unit in (1, 2):
        pushed = Add(*[hat(a, k, unit) + fhat(a, k) * feature(a, k, unit) / gamma0 for a, k in places])
        squares -= pushed**2 / 2

    def entry(v: Expr, unit: int) -> Expr:
        if v.func == xihat:
            return hat(*v.args, unit)
        if v.args[0].args[0] != L:
            raise KeyError(f"{v} is not in the last layer")
        return feature(*v.args[0].args[1:], unit)

    def kernel(n: Expr, a: Expr, b: Expr, x: Expr, y: Expr) -> Expr:
        if n != L:
            raise KeyError(f"the kernel of layer {n}")
        return Add(*[feature(a, x, unit) * feature(b, y, unit) for unit in (1, 2)]) / 2

    def by_entries(e: Expr) -> Expr:
        opened = e.subs({P: 2, T: 1, N: 2}).doit().replace(Phi, kernel)
        return opened.replace(
            Function("dot"), lambda a, b: Add(*[entry(a, unit) * entry(b, unit) for unit in (1, 2)])
        )

    log = sides(SOURCE, "M.3")["log"]
    yield Pair("M.3", "log", log, squares, lambda one, other: difference(by_entries(one), other))
    yield Pair("M.4", "S", sides(SOURCE, "M.4")["S"], _action(log), _same_for_two_samples)


def _action(log: Expr) -> Expr:
    """Return the action from the average over the readout."""
    one, other = ((mu, 1, P), (t, 0, T)), ((alpha, 1, P), (s, 0, T))
    f, A_, B_, G_, Phihat, Ghat = (Function(n) for n in ("f", "A", "B", "G", "Phihat", "Ghat"))
    place = (mu, alpha, t, s)

    def product_of(a: Expr, b: Expr) -> Expr:
        if a.func != phi:
            return S.Zero  # w(0) alone, part of the average over the matrices
        field = a.args[0]
        return I * N * gamma0 * A_(field.args[0], field.args[1], b.args[0], field.args[2], b.args[1])

    kept = f(mu, t) - Sum(Heaviside(t - s) * Delta(alpha, s) * Phi(L, *place), *other)
    pairs = Phi(ell, *place) * Phihat(ell, *place) + G_(ell, *place) * Ghat(ell, *place)
    pairs -= A_(ell, *place) * B_(ell, *place)
    return (
        log.replace(Function("dot"), product_of).replace(_is_empty, lambda _: S.Zero) / N
        + I * Sum(fhat(mu, t) * kept, *one)
        + Sum(pairs, *one, *other, (ell, 1, L))
        + Function("lnZ")(L)
    )


def _is_empty(x: Expr) -> bool:
    return isinstance(x, Sum) and x.function == 0


def _same_for_two_samples(one: Expr, other: Expr) -> bool:
    """Return whether both are equal for two samples and times, one layer, Theta(0) = 0, symmetric kernels."""

    def symmetric(n: Expr, a: Expr, b: Expr, x: Expr, y: Expr) -> Expr:
        first, second = sorted(((a, x), (b, y)), key=str)
        return Phi(n, first[0], second[0], first[1], second[1])

    def opened(e: Expr) -> Expr:
        e = e.subs(L, 1).subs({P: 2, T: 1}).doit()
        return e.replace(Heaviside, lambda x: S.One if x.is_positive else S.Zero).replace(Phi, symmetric)

    return bool((opened(one) - opened(other)).expand() == 0)


def _of_unit(e: Expr) -> Expr:
    """Return fields of the last layer at the unit i."""
    return e.replace(h, lambda n, a, time: h(n, a, i, time))


def _past_of_the_output() -> Expr:
    """Return <phi z>/gamma0 without the initial readout, by kernels, with z of the last layer put in."""
    (scalar,) = [x for x in steps().scalars if x.name == "f"]
    body = scalar.rhs.subs(ETA, 1)
    (average,) = body.atoms(Average)
    field = steps().equation("z", L).rhs.subs(ETA, 1)
    total = S.Zero
    for x in Add.make_args(field.expand()):
        if not x.has(r):
            total += body.coeff(average) * x.replace(phi, lambda a: Phi(L, mu, a.args[1], t, a.args[2]))
    return total


def in_steps() -> Evidence:
    """Check (M.1), (M.3), (M.4): the output after steps, the average over the readout and the action."""
    return compared(
        "identities_rules:in_steps",
        "The output after steps is the derived one, written by units of the last layer and by its kernel; "
        "the average over the readout is that of a Gaussian, and the action follows from it.",
        step_pairs(),
    )
