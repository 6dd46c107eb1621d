"""Networks for the evidence: forward passes written out, with gradients by a library for differentiation.

No code of the project is used, neither a derived backward pass nor the simulator, so that measurements in
these networks can contradict both. Weights are tuples of arrays; a forward pass takes them with arrays of
:mod:`autograd.numpy`, whose functions it has to use in place of NumPy's.

:func:`derivative` differentiates by complex steps, independently of the library; both agree to rounding
(``tests/ledger/test_lab.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import autograd
import autograd.numpy as anp
import numpy as np
from autograd.tracer import getval
from numpy.typing import NDArray

Array = NDArray[np.float64]
Weights = tuple[Array, ...]

EXACT = 1e-11
"""Rounding of sums of some hundred numbers of order one."""
_STEP = 1e-30


def layers(weights: Sequence[Any], inputs: Any, phi: Callable[[Any], Any] | None = None) -> list[Any]:
    """Return ``[x, h^1, h^2, ..]``, a row a sample: h^1 = W^0 x/sqrt(D), h^{l+1} = W^l phi(h^l)/sqrt(N).

    ``weights`` are (units, units below) each; ``phi`` is the identity if it is not given.

    >>> [h.tolist() for h in layers((np.ones((1, 4)), np.ones((1, 1))), np.ones((1, 4)))[1:]]
    [[[2.0]], [[2.0]]]
    """
    found = [inputs]
    for k, w in enumerate(weights):
        below = found[-1] if phi is None or k == 0 else phi(found[-1])
        found.append(anp.dot(below, w.T) / anp.sqrt(w.shape[1]))
    return found


def gradients(value: Callable[[Weights], Any], weights: Weights) -> Weights:
    """Return ``d value/d w`` of a number for each of the weights.

    >>> gradients(lambda w: w[0] @ w[1], (np.array([2.0]), np.array([3.0])))
    (array([3.]), array([2.]))
    """
    return tuple(autograd.grad(value)(tuple(weights)))


def held(value: Any) -> Any:
    """Return a value in a forward pass that gradients treat as a constant.

    >>> gradients(lambda w: w[0] * held(w[0]), (np.array(3.0),))
    (array(3.),)
    """
    return getval(value)


def slopes(outputs: Callable[[Weights], Any], weights: Weights) -> Weights:
    """Return ``d outputs_mu/d w`` for each of the weights, shapes (outputs, *w.shape).

    >>> slopes(lambda w: w[0] ** 2, (np.array([1.0, 3.0]),))[0].tolist()
    [[2.0, 0.0], [0.0, 6.0]]
    """
    moving = range(len(weights))
    return tuple(
        autograd.jacobian(lambda w, k=k: outputs((*weights[:k], w, *weights[k + 1 :])))(weights[k])
        for k in moving
    )


def moved(weights: Weights, by: Weights, share: float = 1.0) -> Weights:
    """Return the weights plus ``share`` times their changes.

    >>> moved((np.ones(2),), (np.ones(2),), -0.5)
    (array([0.5, 0.5]),)
    """
    return tuple(w + share * x for w, x in zip(weights, by, strict=True))


def descend(loss: Callable[[Weights], Any], weights: Weights, rate: float, steps: int) -> Iterator[Weights]:
    """Yield the weights before and after each step of gradient descent, ``steps + 1`` in all.

    >>> [float(w[0]) for w in descend(lambda w: w[0] ** 2 / 2, (np.array(1.0),), 0.5, 2)]
    [1.0, 0.5, 0.25]
    """
    yield weights
    for _ in range(steps):
        weights = moved(weights, gradients(loss, weights), -rate)
        yield weights


def derivative(function: Callable[[NDArray[Any]], NDArray[Any]], at: Array) -> Array:
    """Return ``d function/d at`` by complex steps, with the shape of the value and then that of ``at``.

    >>> derivative(np.sin, np.array([0.0]))
    array([[1.]])
    """
    columns = []
    for place in np.ndindex(*at.shape):
        near = at.astype(complex)
        near[place] += 1j * _STEP
        columns.append(np.asarray(function(near)).imag / _STEP)
    found = np.stack(columns, axis=-1)
    return np.asarray(found.reshape(*found.shape[:-1], *at.shape))


def along(function: Callable[[Weights], Sequence[Any]], weights: Weights, by: Weights) -> list[Array]:
    """Return the derivative of each value of a function along ``by`` in the weights, by one complex step.

    >>> along(lambda w: [w[0] ** 2], (np.array([3.0]),), (np.array([0.5]),))
    [array([3.])]
    """
    near: Any = tuple(w + 1j * _STEP * x for w, x in zip(weights, by, strict=True))
    return [np.asarray(x).imag / _STEP for x in function(near)]


def slope(h: Array) -> Array:
    """Return tanh'(h)."""
    return np.asarray(1 - np.tanh(h) ** 2)
