"""Responses of the modes of structured data in the lazy limit, as Laplace transforms.

From the theory of structured data the module returns the transform of each field's response to a source, with
the kernel of the modes as a number, and the weight of a mode in the loss. The laws of finite batches, widths
and numbers of samples use it.
"""

from __future__ import annotations

from sympy import Expr, Function, S, Symbol, exp, factor, integrate, oo

from derive.calculus.averages import Average
from derive.calculus.symbols import s, t
from derive.errors import NotApplicable
from derive.linear.propagators import START, transfer
from derive.program.networks.random_data import k
from derive.scale.modes import K, given, lamda
from derive.scale.modes import capacity as capacity_
from derive.theory import Source, Theory

z, z_ = Symbol("z", positive=True), Symbol("zprime", positive=True)
"""Laplace variables of two times."""


def on_eigenvalues(e: Expr) -> Expr:
    """Return a summand with the eigenvalues of power-law data."""
    return e.subs(lamda(k), k**-capacity_)


def weight_in_loss(theory: Theory) -> Expr:
    """Return the weight of a mode in the loss, the factor of its squared error ``v(k,t) v(k,s)``."""
    (average,) = theory.order_parameter("C_v").definition.atoms(Average)
    v = Function("v")
    return average.args[0] / (v(k, t) * v(k, s))


def source_of(theory: Theory, name: str) -> Source:
    """Return the source of this name."""
    return next(x for x in theory.sources if x.symbol.func == Function(name))


def answers(theory: Theory, into: str, R: Expr = S.Zero) -> dict[str, Expr]:
    """Return the transforms of the responses ``H_y_into`` of the fields of the modes, at gamma0 = 0.

    The kernel of the function is the constant K, with the transform K/z; that of the inputs contains
    ``R_Delta``. The memory of a flow is empty at time 0.
    """
    found = transfer(theory, into)
    values = {START: S.Zero}
    for x in found.kernels:
        if x.name == "K_xi_h0":
            values[x.operator] = constant_transform(K)
        else:
            values[x.operator] = x.definition.xreplace({Function("R_Delta")(t, s): R})
    out = {name: factor(word.subs(values)) for name, word in found.operators.items()}
    for name, e in out.items():
        if any(not a.is_commutative for a in e.free_symbols) or e.has(t, s):
            raise NotApplicable(f"{found.operators[name]} has kernels without a transform")
    return out


def constant_transform(value: Expr) -> Expr:
    """Return the Laplace transform of a constant."""
    return integrate(value * exp(-z * t), (t, 0, oo))


def summable(task: str) -> dict[Symbol, Expr]:
    """Return beta and the capacity in terms of positive numbers, with a capacity above 1."""
    return {**given(task), capacity_: 1 + Symbol("p_a", positive=True)}
