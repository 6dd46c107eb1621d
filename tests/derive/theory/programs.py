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
    GradientDescent,
    GradientFlow,
    Outer,
    Population,
    Program,
    TrainedMatrix,
    TrainedVector,
    eta,
    t,
)

phi = Function("phi")
g = Symbol("g", positive=True)
tau = Symbol("tau", real=True)
rho_a, rho_b = symbols("rho_a rho_b", positive=True)


def recurrent(symmetry: Expr = S.Zero, transposed: bool = False) -> Program:
    """dx/dt = -x + J phi(x), with J_ij and J_ji correlated by ``symmetry`` (or with J^T in place of J)."""
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
    """The same with J = a M + b M^T written out."""
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
    """One matrix used forwards on two vectors and backwards on one, all within a step; two sizes.

    x ~ N(0, 1), h = W x, k = M f(h), q = M^T f(k), l = M f(q): x, h and q live on population a, k and l on b.
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
    """Two populations of different sizes; the matrix between them is also used backwards."""
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
    """x' = -x + M y, y' = -y + M^T x + b, with M (and b) trained by Hebb's rule: U = x y^T / N."""
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
