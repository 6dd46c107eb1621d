"""Perceptron with every kind of weight: input, hidden, readout, biases and gains, normalised or not.

The two hidden layers are ``h_l = (1 + q_l) k_l/sqrt(n_l) + b_l`` with ``k_1 = W0 x``,
``k_2 = W1 phi(h_1)``, gains ``1 + q_l`` and biases ``b_l`` of each unit; ``n_l`` is the mean of ``k_l^2``
over the units of the layer (RMS normalisation), or 1. Tables of learning rates by kind of weight are derived
from this network.
"""

from __future__ import annotations

from typing import Any

from sympy import Expr, Function, S, sqrt

from derive.calculus.symbols import gamma0, mu, t
from derive.program.language import Field, GaussianMatrix, GaussianVector, GivenVector, Mean, Population
from derive.program.network import Network
from derive.program.networks.options import activation_of, rule_of
from derive.program.program import Program
from derive.program.rules import TrainingRule
from derive.program.training import Gradient


def mlp_with_gains(
    activation: str | Any = "tanh", rule: str | TrainingRule = "gd", *, normalised: bool = False
) -> Program:
    """Return a perceptron with two hidden layers, a bias and a gain for each unit.

    Parameters
    ----------
    activation
        Name or function, as in :func:`~derive.program.mlp`.
    rule
        Training rule of all weights.
    normalised
        Whether the preactivations of a layer are divided by their root mean square.

    Returns
    -------
    Program
        The trained network. Gains start at one; biases and readout start as N(0, 1), matrices as N(0, 1)
        divided by the root of the number of columns. The loss is the sum of (y - f)^2/2 over samples.

    Raises
    ------
    ProgramError
        If the activation or the rule is not known.

    Examples
    --------
    >>> for d in mlp_with_gains(normalised=True).definitions[:3]: print(d.lhs, "=", d.rhs)
    k1(mu, t) = W0 @ x(mu)
    n1(mu, t) = Mean(k1(mu, t)**2)
    h1(mu, t) = b1 + (q1 + 1)*k1(mu, t)/sqrt(n1(mu, t))
    """
    phi = activation_of(activation)
    f, y = Function("f"), Function("y")
    lower, upper = Population("lower"), Population("upper")
    x = GivenVector("x", Population("input", given=True), "K_x")
    W0, W1 = GaussianMatrix("W0", lower, x.population), GaussianMatrix("W1", upper, lower)
    w = GaussianVector("w", upper)
    fields: list[Field] = []
    vectors: list[GaussianVector] = []
    forward: dict[Expr, Expr] = {}
    products = [W0 @ x(mu), None]
    for i, layer in enumerate((lower, upper)):
        k, h, n = Field(f"k{i + 1}", layer), Field(f"h{i + 1}", layer), Function(f"n{i + 1}")
        b = GaussianVector(f"b{i + 1}", layer, source=f"b{i + 1}")
        q = GaussianVector(f"q{i + 1}", layer, S.Zero, source=f"q{i + 1}")
        forward[k(mu, t)] = products[i]
        size = S.One
        if normalised:
            size = n(mu, t)
            forward[size] = Mean(k(mu, t) ** 2)
        forward[h(mu, t)] = (1 + q.symbol) * k(mu, t) / sqrt(size) + b.symbol
        products[1] = W1 @ phi(h(mu, t))
        fields += [k, h]
        vectors += [b, q]
    forward[f(mu, t)] = Mean(w.symbol * phi(fields[-1](mu, t))) / gamma0
    name = "perceptron with gains and biases" + " and normalised layers" * normalised
    net = Network(name, tuple(fields), forward, (W0, W1, w, *vectors), given=(x,), depth=S(2))
    gradients = {f"h{i}": Gradient(f"g{i}", f"z{i}") for i in (1, 2)}
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, rule_of(rule, "sum"), gradients=gradients)
