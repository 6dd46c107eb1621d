"""Covariances of networks at the start of training, as numbers.

The module turns an expression of :mod:`derive.scale.fluctuations.initial` and the kernel of the inputs into a
number. The kernels of each layer are evaluated one after the other, and Gaussian averages by closed forms or
lattices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Float, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.gaussian import GaussianAverage
from derive.scale.fluctuations.initial import InitialCovariance, InitialMean
from numerics.averages.single import average
from numerics.errors import Unserved

Array = NDArray[np.float64]


def initial_value(
    quantity: InitialCovariance | InitialMean,
    samples: Mapping[Symbol, int],
    kernels: Mapping[str, Array],
    values: Mapping[Symbol, float],
) -> float:
    """Return the number for N times a covariance, or for a mean, at the start of training.

    Parameters
    ----------
    quantity : InitialCovariance or InitialMean
        The expression of N times the covariance of two observables, or of the mean of one.
    samples : mapping
        The row of the kernel of the inputs for each symbol of a sample, counted from 0.
    kernels : mapping
        Kernels of inputs by their names, arrays ``(P, P)``.
    values : mapping
        The numbers of all other symbols.

    Returns
    -------
    float
        The value.

    Raises
    ------
    KeyError
        If ``samples`` has no row for a symbol of a sample.
    Unserved
        If another symbol, or a function, has no number.

    Examples
    --------
    >>> from derive.calculus.symbols import gamma0, mu
    >>> from derive.program import mlp
    >>> from derive.scale.fluctuations import initial_covariance
    >>> one = initial_covariance(mlp(1, "tanh"), ("f", mu))
    >>> round(initial_value(one, {mu: 0}, {"K_x": np.ones((1, 1))}, {gamma0: 1.0}), 6)
    0.394294
    """
    known: dict[Expr, Expr] = {x: Float(repr(float(v))) for x, v in values.items()}
    for e in (quantity.value, *(x.rhs for x in quantity.kernels)):
        for a in e.atoms(AppliedUndef):
            if str(a.func) in kernels:
                row, column = (samples[x] for x in a.args)
                known[a] = Float(repr(float(kernels[str(a.func)][row, column])))
    for x in quantity.kernels:
        known[x.lhs] = Float(repr(_number(x.rhs, known)))
    return _number(quantity.value, known)


def _number(e: Expr, known: Mapping[Expr, Any]) -> float:
    """Return the value of a SymPy expression with Gaussian averages, given values for symbols and functions.

    ``known`` maps symbols and functions to numbers. Raise Unserved with the names of those that have none.
    """
    with_numbers = e.xreplace(dict(known))
    averages = {a: Float(average(a).value) for a in with_numbers.atoms(GaussianAverage)}
    value = with_numbers.xreplace(averages)
    if not value.is_number:
        left = ", ".join(sorted(map(str, value.free_symbols | value.atoms(AppliedUndef))))
        raise Unserved(f"an average at the start of training contains {left}, for which no number is given")
    return float(value)
