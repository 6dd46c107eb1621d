"""Programs that are used often, put together from the same pieces a user has."""

from __future__ import annotations

from typing import Any

from sympy import Expr, Function, Integer, S, Symbol, sympify

from derive.program.expressions import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    IndexRange,
    L,
    Mean,
    P,
    Population,
    alpha,
    ell,
    eta,
    gamma0,
    mu,
    t,
)
from derive.program.program import Definition, Program, ProgramError
from derive.program.training import (
    Along,
    GradientDescent,
    GradientFlow,
    Multistep,
    Outer,
    TrainedMatrix,
    TrainedVector,
    TrainingRule,
)


def training_rule(rule: str = "gd", loss: str = "sum") -> TrainingRule:
    """The rule named in an experiment file, on the summed loss or on its mean over samples.

    ``"multistep"`` is the flow as an explicit multistep integrator sees it.

    >>> training_rule("gd", "mean").rate
    eta/P
    """
    share = {"sum": S.One, "mean": 1 / P}.get(loss)
    if share is None:
        raise ProgramError(f"loss = {loss!r}: must be 'sum' or 'mean'")
    if rule == "gd":
        return GradientDescent(eta * share)
    if rule == "flow":
        return GradientFlow(share)
    if rule == "multistep":
        return Multistep(share)
    raise ProgramError(f"rule = {rule!r}: must be 'gd', 'flow' or 'multistep'")


def mlp(
    depth: int | Symbol = L,
    activation: str | Any = "linear",
    rule: str | TrainingRule = "gd",
    loss: str = "sum",
    *,
    tied: bool = True,
) -> Program:
    """A multilayer perceptron with ``depth`` hidden layers, trained on P fixed samples (selfconsistent2023
    eq. 1, 2).

    ``depth`` is an integer or the symbol ``L``.  ``activation`` is ``"linear"`` or a SymPy function.  With
    ``tied=False`` the backward pass uses matrices independent of the forward ones (appendix O).
    Raises :class:`ProgramError` for a depth below one, or for an unknown activation, rule or loss.

    >>> mlp(2).depth
    2
    """
    linear = activation == "linear"
    if isinstance(activation, str) and not linear:
        raise ProgramError(f"activation = {activation!r}: must be 'linear' or a SymPy function such as tanh")
    last = sympify(depth)
    function: Any = activation
    if isinstance(last, Integer) and last < 1:
        raise ProgramError(f"depth = {depth}: a network has at least one hidden layer")
    rule = training_rule(rule, loss) if isinstance(rule, str) else rule

    layer, inputs = Population("layer"), Population("input", given=True)
    h, g, z = (Field(n, layer, layered=True) for n in "hgz")
    x = GivenVector("x", inputs, "K_x")
    f, Delta, y = (Function(n) for n in ("f", "Delta", "y"))
    samples, past = IndexRange(mu, Integer(1), P), IndexRange(alpha, Integer(1), P)
    interior, hidden = IndexRange(ell, Integer(1), last - 1), IndexRange(ell, Integer(1), last)

    def phi(v: Expr) -> Expr:
        return v if linear else function(v)

    def dphi(v: Expr) -> Expr:
        slot = Symbol("x")
        return function(slot).diff(slot).subs(slot, v)

    backward = g if linear else z  # without a nonlinearity the pre-gradient is the gradient

    W0 = GaussianMatrix("W0", layer.at(1), inputs)
    W = GaussianMatrix("W", layer.at(ell + 1), layer.at(ell), index=interior, responses=("A", "B"))
    V = W if tied else GaussianMatrix("V", layer.at(ell + 1), layer.at(ell), index=interior)
    w = GaussianVector("w", layer.at(last))

    def step(left: Expr, right: Expr) -> Outer:
        return Outer(gamma0 * Delta(alpha, t), left, right, (past,))

    def trained(matrix: GaussianMatrix) -> TrainedMatrix:
        return TrainedMatrix(matrix, step(g(ell + 1, alpha, t), phi(h(ell, alpha, t))), rule)

    definitions = [
        Definition(h(1, mu, t), W0 @ x(mu), (samples,)),
        Definition(h(ell + 1, mu, t), W(ell) @ phi(h(ell, mu, t)), (samples, interior)),
        Definition(f(mu, t), Mean(backward(last, mu, t) * phi(h(last, mu, t))) / gamma0, (samples,)),
        Definition(Delta(mu, t), y(mu) - f(mu, t), (samples,)),
        Definition(backward(last, mu, t), w.symbol, (samples,)),
        Definition(backward(ell, mu, t), V(ell).T @ g(ell + 1, mu, t), (samples, interior)),
    ]
    if not linear:
        definitions.append(Definition(g(ell, mu, t), dphi(h(ell, mu, t)) * z(ell, mu, t), (samples, hidden)))
    program = Program(
        name="deep linear network" if linear else "multilayer perceptron",
        rule=rule,
        fields=(h, g) if linear else (h, z, g),
        definitions=tuple(definitions),
        matrices=(
            TrainedMatrix(W0, step(g(1, alpha, t), x(alpha)), rule),
            trained(W),
            *(() if tied else (trained(V),)),
        ),
        vectors=(TrainedVector(w, Along(gamma0 * Delta(alpha, t), phi(h(last, alpha, t)), (past,)), rule),),
        given=(x,),
        scalars=("f", "Delta"),
        constants=("y",),
        notation={phi(h(ell, mu, t)): "H" if linear else "Phi", g(ell, mu, t): "G"},
        scale=gamma0,
        depth=last,
    )
    return program.drop_idle_indices()
