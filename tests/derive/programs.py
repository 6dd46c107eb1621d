"""Networks written by hand, from the same pieces a user has."""

from __future__ import annotations

from collections.abc import Callable

from sympy import Expr, Function, S, Symbol, symbols

from derive.program import (
    Along,
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
    Network,
    Outer,
    P,
    Parametrization,
    Population,
    Program,
    TrainedMatrix,
    TrainedVector,
    TrainingRule,
    alpha,
    ell,
    eta,
    gamma0,
    mu,
    t,
)

phi = Function("phi")
g = Symbol("g", positive=True)
tau = Symbol("tau", real=True)
rho = Symbol("rho", positive=True)
rho_a, rho_b = symbols("rho_a rho_b", positive=True)


def recurrent(symmetry: Expr = S.Zero, transposed: bool = False) -> Program:
    """Return dx/dt = -x + J phi(x), with J_ij and J_ji correlated by ``symmetry``.

    With ``transposed`` J^T replaces J.
    """
    units = Population("units")
    x = Field("x", units)
    sources = ("zeta", "eta") if transposed else ("eta", "zeta")
    J = GaussianMatrix("J", units, units, variance=g**2, symmetry=symmetry, sources=sources)
    force = J.T @ phi(x(t)) if transposed else J @ phi(x(t))
    return Program(
        name="random recurrent network",
        rule=GradientFlow(),
        fields=(x,),
        matrices=(J,),
        definitions=(Definition(x(t), -x(t) + force, (), evolves=True),),
    )


def decomposed(a: Expr, b: Expr, symmetry: Expr = S.Zero) -> Program:
    """Return the same with J = a M + b M^T written out."""
    units = Population("units")
    x = Field("x", units)
    M = GaussianMatrix("M", units, units, variance=g**2, symmetry=symmetry)
    force = a * (M @ phi(x(t))) + b * (M.T @ phi(x(t)))
    return Program(
        name="decomposed recurrent network",
        rule=GradientFlow(),
        fields=(x,),
        matrices=(M,),
        definitions=(Definition(x(t), -x(t) + force, (), evolves=True),),
    )


def there_and_back(f: Callable[[Expr], Expr] = phi) -> Program:
    """Return one matrix used forwards on two vectors and backwards on one within a step; two sizes.

    x ~ N(0, 1), h = W x, k = M f(h), q = M^T f(k), l = M f(q): x, h and q are on population a, k and l on b.
    """
    a, b = Population("a", rho_a), Population("b", rho_b)
    x, h, q = Field("x", a), Field("h", a), Field("q", a)
    k, last = Field("k", b), Field("l", b)
    W = GaussianMatrix("W", a, a, sources=("v", "v_"))
    M = GaussianMatrix("M", b, a, variance=g)
    start = GaussianVector("x_0", a, source="x0")
    return Program(
        name="there and back",
        rule=GradientDescent(eta),
        fields=(x, h, k, q, last),
        matrices=(W, M),
        vectors=(start,),
        definitions=(
            Definition(x(t), start.symbol),
            Definition(h(t), W @ x(t)),
            Definition(k(t), M @ f(h(t))),
            Definition(q(t), M.T @ f(k(t))),
            Definition(last(t), M @ f(q(t))),
        ),
    )


def excitatory_inhibitory() -> Program:
    """Return two populations of different sizes; the matrix between them is also used backwards."""
    e, i = Population("E", rho_a), Population("I", rho_b)
    x, y = Field("x", e), Field("y", i)
    v = symbols("v_EE v_EI v_IE", positive=True)
    J_EE = GaussianMatrix("J_EE", e, e, variance=v[0])
    J_EI = GaussianMatrix("J_EI", e, i, variance=v[1])
    J_IE = GaussianMatrix("J_IE", i, e, variance=v[2])
    return Program(
        name="two populations",
        rule=GradientFlow(),
        fields=(x, y),
        matrices=(J_EE, J_EI, J_IE),
        definitions=(
            Definition(x(t), -x(t) + J_EE @ phi(x(t)) + J_EI @ phi(y(t)), (), evolves=True),
            Definition(y(t), -y(t) + J_IE @ phi(x(t)) + J_EI.T @ phi(x(t)), (), evolves=True),
        ),
    )


def trained_between_sizes() -> Program:
    """Return x' = -x + M y, y' = -y + M^T x + b, with M (and b) trained by Hebb's rule.

    The update is U = x y^T / N.
    """
    a, b = Population("a", rho_a), Population("b", rho_b)
    x, y = Field("x", a), Field("y", b)
    rule = GradientFlow()
    M = GaussianMatrix("M", a, b, variance=g)
    bias = GaussianVector("b", b, variance=tau**2, source="beta")
    return Program(
        name="trained between sizes",
        rule=rule,
        fields=(x, y),
        matrices=(TrainedMatrix(M, Outer(eta, x(t), phi(y(t))), rule),),
        vectors=(TrainedVector(bias, Along(eta, y(t)), rule),),
        definitions=(
            Definition(x(t), -x(t) + M @ y(t), (), evolves=True),
            Definition(y(t), -y(t) + M.T @ x(t) + bias.symbol, (), evolves=True),
        ),
    )


def leaky(J: GaussianMatrix | TrainedMatrix, leak: Expr = S.One) -> Program:
    """Return x(t+1) = x(t) + eta (J x(t) - leak x(t)).

    The memory of a trained vector is that of a leaky unit.
    """
    initial = J.initial if isinstance(J, TrainedMatrix) else J
    x, z = Field("x", initial.rows), Field("z", initial.rows)
    start = GaussianVector("x_0", initial.rows, source="x0")
    rule = GradientDescent(eta)
    return Program(
        name="leaky linear units",
        rule=rule,
        fields=(x, z),
        definitions=(Definition(x(t), start.symbol), Definition(z(t), initial @ x(t))),
        matrices=(J,),
        vectors=(TrainedVector(start, Along(S.One, z(t) - leak * x(t)), rule),),
        notation={x(t): "C", z(t): "Z"},
    )


def linear_recurrent(symmetry: Expr = S.Zero) -> Program:
    """Return leaky linear units with couplings J_ij and J_ji correlated by ``symmetry``."""
    units = Population("units")
    return leaky(GaussianMatrix("J", units, units, variance=g**2, symmetry=symmetry))


def two_layers(feedback_learns: bool) -> Program:
    """Return h = W0 x, k = W h, f = <w k>/gamma0, trained with q = V^T w, V independent of W."""
    site = Population("units")
    inputs = Population("input", given=True)
    rule = GradientDescent(eta)
    h, k, c, q = (Field(n, site) for n in "hkcq")
    x = GivenVector("x", inputs, "K_x")
    f, Delta, y = (Function(n) for n in ("f", "Delta", "y"))
    W0 = GaussianMatrix("W0", site, inputs, sources=("u", "_"))
    W = GaussianMatrix("W", site, site, sources=("v", "_v"))
    V = GaussianMatrix("V", site, site, sources=("_r", "r"))
    w = GaussianVector("w", site, source="w0")
    every, past = IndexRange(mu, S.One, P), (IndexRange(alpha, S.One, P),)

    def step(left, right):
        return Outer(gamma0 * Delta(alpha, t), left, right, past)

    middle = step(c(t), h(alpha, t))
    return Program(
        name="feedback network",
        rule=rule,
        fields=(h, k, c, q),
        definitions=(
            Definition(h(mu, t), W0 @ x(mu), (every,)),
            Definition(k(mu, t), W @ h(mu, t), (every,)),
            Definition(f(mu, t), Mean(c(t) * k(mu, t)) / gamma0, (every,)),
            Definition(Delta(mu, t), y(mu) - f(mu, t), (every,)),
            Definition(c(t), w.symbol),
            Definition(q(t), V.T @ c(t)),
        ),
        matrices=(
            TrainedMatrix(W0, step(q(t), x(alpha)), rule),
            TrainedMatrix(W, middle, rule),
            TrainedMatrix(V, middle, rule) if feedback_learns else V,
        ),
        vectors=(TrainedVector(w, Along(gamma0 * Delta(alpha, t), k(alpha, t), past), rule),),
        given=(x,),
        scalars=("f", "Delta"),
        constants=("y",),
        scale=gamma0,
    )


def damped_stream() -> Program:
    """Return h(ell + 1) = rho h(ell) + W(ell) h(ell).

    A field occurs in the next one's equation times a number.
    """
    layer = Population("layer", shared=True)
    h, every = Field("h", layer, layered=True), IndexRange(ell, S.One, L - 1)
    x = GivenVector("x", Population("input", given=True), "K_x")
    W0 = GaussianMatrix("W0", layer.at(1), x.population)
    W = GaussianMatrix("W", layer.at(ell + 1), layer.at(ell), index=every)
    w, f = GaussianVector("w", layer.at(L)), Function("f")(mu, t)
    forward = {
        h(1, mu, t): W0 @ x(mu),
        h(ell + 1, mu, t): rho * h(ell, mu, t) + W(ell) @ h(ell, mu, t),
        f: Mean(w.symbol * h(L, mu, t)) / gamma0,
    }
    network = Network("damped stream", (h,), forward, (W0, W, w), given=(x,), ranges=(every,))
    return network.train((Function("y")(mu) - f) ** 2 / 2, GradientDescent(eta))


def hidden_layer(
    rule: TrainingRule,
    parametrization: Parametrization | None = None,
    rules: dict[str, TrainingRule] | None = None,
    offset: Expr = S.Zero,
    layered: bool = True,
    samples: Expr = P,
) -> Program:
    """Return a linear network with one hidden layer and the output ``<w h>/scale + offset``."""
    parametrization = parametrization or Parametrization()
    units, pixels = Population("units"), Population("input", given=True)
    here, at = (units.at(1), (S.One,)) if layered else (units, ())
    x, h = GivenVector("x", pixels, "K_x"), Field("h", units, layered=layered)
    W, w = GaussianMatrix("W", here, pixels), GaussianVector("w", here)
    f, y = Function("f"), Function("y")
    mean = Mean(w.symbol * h(*at, mu, t)) / parametrization.scale
    forward = {h(*at, mu, t): W @ x(mu), f(mu, t): mean + offset}
    ranges = (IndexRange(mu, S.One, samples),)
    network = Network("hidden layer", (h,), forward, (W, w), given=(x,), ranges=ranges)
    return network.train((y(mu) - f(mu, t)) ** 2 / 2, rule, parametrization, rules=rules)
