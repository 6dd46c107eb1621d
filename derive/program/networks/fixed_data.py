"""Networks on P fixed samples, under the names they are known by."""

from __future__ import annotations

from typing import Any, Unpack

from sympy import Symbol

from derive.program.networks.indices import Count
from derive.program.networks.network import Options, network
from derive.program.program import Program
from derive.program.training import TrainingRule
from derive.program.words import L


def mlp(
    depth: int | Symbol = L,
    activation: str | Any = "linear",
    rule: str | TrainingRule = "gd",
    loss: str = "sum",
    *,
    tied: bool = True,
    **options: Unpack[Options],
) -> Program:
    """A multilayer perceptron with ``depth`` hidden layers, trained on P fixed samples (selfconsistent2023
    eq. 1, 2), with the options of :func:`.network`: outputs, bias, branch, relative_widths, init_variance,
    weight_decay, momentum, temperature, sample_weights.

    ``depth`` is an integer or the symbol ``L``.  ``activation`` is a name or a SymPy function.  With
    ``tied=False`` the backward pass uses matrices independent of the forward ones (appendix O).
    Raises :class:`ProgramError` for a depth below one, or for an unknown activation, rule or loss.

    >>> mlp(2).depth
    2
    >>> mlp(L, "relu", branch=Symbol("beta"), bias=True).name
    'residual network with biases'
    """
    return network(depth, activation, rule, loss, backward="transposed" if tied else "independent", **options)


def convolution(
    depth: int | Symbol = L,
    activation: str | Any = "linear",
    rule: str | TrainingRule = "gd",
    loss: str = "sum",
    *,
    positions: Count,
    receptive: Count,
    tied: bool = True,
    **options: Unpack[Options],
) -> Program:
    """A convolutional network with infinitely many channels a hidden layer (selfconsistent2023 G.1-G.6).

    Positions ``p`` = 1..``positions`` lie on a ring and are counted modulo its length; the filters ``W(ell,
    k)`` have the offsets ``k`` = -``receptive``..``receptive``, so |S| = 2 ``receptive`` + 1:

        h(ell+1, mu, p) = sum_k W(ell, k) phi(h(ell, mu, p + k)),
        z(ell, mu, p) = sum_k W(ell, k)^T g(ell+1, mu, p - k),

    and ``h(1, mu, p) = sum_k W0(k) x(mu, p + k)``, with inputs known through ``K_x(mu, p, alpha, q)``.  Each
    position has its own readout ``w(p)``, and ``f = sum_p w(p) . phi(h(L, mu, p))/(gamma0 N)``, as the
    indices of the paper say (its sum over positions is not written out); nothing divides by the number of
    positions or of offsets.  ``positions=1`` or ``receptive=0`` leaves the index out.  Raises
    :class:`ProgramError` also when a filter is wider than the ring.

    >>> X, S = (Symbol(n, integer=True, positive=True) for n in "XS")
    >>> convolution(positions=X, receptive=S).definitions[1].rhs
    Sum(W(ell, k) @ h(ell, mu, k + p, t), (k, -S, S))
    """
    return network(
        depth,
        activation,
        rule,
        loss,
        backward="transposed" if tied else "independent",
        positions=positions,
        receptive=receptive,
        **options,
    )


def feedback_alignment(
    depth: int | Symbol = L,
    activation: str | Any = "linear",
    rule: str | TrainingRule = "gd",
    loss: str = "sum",
    **options: Unpack[Options],
) -> Program:
    """A network whose backward pass uses fixed random weights: feedback alignment.

    Backwards, ``z(ell) = V(ell)^T g(ell + 1)`` and ``z(L) = v``. The matrices ``V(ell)`` and the vector ``v``
    (one for each output) are independent of ``W(ell)`` and ``w``, have the same variances and are never
    trained.  The outputs read the last layer with ``omega(L) = w``.  With one hidden layer ``v`` alone makes
    the difference to gradient descent.

    >>> [x.name for x in feedback_alignment(3, "tanh").trained()]
    ['W0', 'W', 'w']
    """
    return network(depth, activation, rule, loss, backward="fixed", **options)
