"""Activations as text of an experiment file: a name, or an expression in h such as ``tanh(0.8*h)/0.8``.

The text becomes a SymPy expression by :mod:`.formulas`; the programs of an experiment hold it.
"""

from __future__ import annotations

from functools import lru_cache

from sympy import Expr, Symbol

from derive.program.networks.options import NAMED
from numerics.experiment.formulas import Reader

h = Symbol("h", real=True)
"""The field in the text of an activation."""

GRID = tuple(x / 4 for x in range(-160, 161))
"""Values of h, from -40 to 40, at which an activation must be real and finite."""

NAMES = ", ".join(f'"{name}"' for name in NAMED)

READER = Reader(
    key="network.activation",
    variable=h,
    grid=GRID,
    accepted=f'{NAMES}, or an expression in h such as "tanh(0.8*h)/0.8"',
    finite="a function of all real h, growing slower than a Gaussian falls; for log(1 + exp(x)), softplus(x)",
    words=tuple(NAMED),
)


@lru_cache(maxsize=256)
def parse_activation(text: str) -> Expr:
    """Return the expression in one real symbol that ``text`` stands for; ``mlp(activation=...)`` takes it.

    ``text`` is the name of an activation, such as "relu", or an expression in h. Numbers are exact: 0.8 is
    4/5.

    Raises
    ------
    SpecError
        For an unknown name, and for unsupported text: anything but h, pi, numbers, ``+ - * / **`` with a
        number as exponent, and the functions listed in ``SYMBOLIC`` of :mod:`.formulas`; text that is too
        long or has too large numbers or exponents; text without h; and text that is not real and finite for
        all h with -40 <= h <= 40. It is evaluated at two points in each interval of length 1/4, between which
        denominators, roots and logarithms are checked. The error names the key network.activation.

    Examples
    --------
    >>> parse_activation("tanh(0.8*h)/0.8"), parse_activation("relu")
    (5*tanh(4*h/5)/4, Max(0, h))
    >>> parse_activation("h.real")
    Traceback (most recent call last):
    numerics.errors.SpecError: network.activation = "h.real": contains an attribute (.real), which is not ...
    """
    return NAMED[text](h) if text in NAMED else READER.read(text)


@lru_cache(maxsize=256)
def is_linear(text: str) -> bool:
    """Return whether ``text`` stands for h itself, without a simplification of longer expressions.

    >>> is_linear("linear"), is_linear("h*2/2"), is_linear("2*h")
    (True, True, False)
    """
    return text == "linear" or isinstance(parse_activation(text), Symbol)
