"""What is compared of the distribution of a field: its characteristic function at a few arguments, a moment.

All are averages over the units of a layer, in a theory over its paths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sympy import Expr, Function, S, cos, sin

from derive.calculus.averages import Average
from derive.program import IndexRange, P, ell, mu, t
from derive.theory import OrderParameter, Theory

FIELDS = ("h", "z")
FUNCTIONS: Mapping[str, tuple[str, Expr]] = {
    "cos": ("cos {}", cos(mu)),
    "cos2": ("cos 2{}", cos(2 * mu)),
    "sin": ("sin {}", sin(mu)),
    "fourth": ("{}^4", mu**4),
}
"""Functions of a field (here called mu), and how their averages are called."""


def averages() -> dict[str, Expr]:
    """The functions of all fields, by the names of their averages.

    >>> averages()["cos2_h"]
    cos(2*h(ell, mu, t))
    """
    return {
        f"{name}_{field}": body.subs(mu, Function(field)(ell, mu, t))
        for field in FIELDS
        for name, (_, body) in FUNCTIONS.items()
    }


def label(name: str) -> str:
    """How an average is called in a table.

    >>> label("fourth_z")
    '<z^4>'
    """
    function, field = name.split("_")
    return f"<{FUNCTIONS[function][0].format(field)}>"


def with_distributions(theory: Theory) -> Theory:
    """The theory with these averages among its order parameters; ``h`` and ``z`` carry layer and sample."""
    ranges = (IndexRange(ell, S.One, theory.program.depth), IndexRange(mu, S.One, P))
    more = tuple(
        OrderParameter(Function(name)(ell, mu, t), Average(body), "correlation", ranges)
        for name, body in averages().items()
    )
    return replace(theory, order_parameters=(*theory.order_parameters, *more))


def wanted() -> dict[str, tuple[Expr, Expr]]:
    """The same averages as measurements of networks; the second time does not matter."""
    return {name: (body, S.One) for name, body in averages().items()}
