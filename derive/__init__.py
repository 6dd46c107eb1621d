"""dmft-derive: derive the mean-field theory of the training of a neural network from its program.

>>> import derive
>>> theory = derive.mean_field(derive.mlp(derive.L, rule="flow"))
>>> print(derive.linear_closure(theory).response("A"))
((-gamma0**2)*C[ell]*D[ell] + I)**(-1)*C[ell]

The names here are those that most users need. :mod:`derive.program` has the objects in which a network is
written; other packages are listed in ``docs/architecture.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from derive.lazy_imports import loader

if TYPE_CHECKING:
    from derive.calculus.symbols import L, P, eta, gamma0
    from derive.depth import infinite_depth
    from derive.errors import NotApplicable, ProgramError
    from derive.expansion import Expansion, expand
    from derive.linear.closure import linear_closure
    from derive.linear.lazy import lazy
    from derive.linear.projection import error_projected
    from derive.program import GradientDescent, GradientFlow, Network, Program, isotropic, mlp, structured
    from derive.reduce.moments import two_layer
    from derive.reduce.whitened import whitened
    from derive.scale import first_step, largest_rate, width_class
    from derive.show import latex, text
    from derive.theory import Theory, mean_field
    from derive.theory.fluctuations import fluctuations
    from derive.theory.path_integral import path_integral
    from derive.theory.routes import check_routes

_HOMES = {
    name: module
    for module, names in {
        "calculus.symbols": "L P eta gamma0",
        "depth": "infinite_depth",
        "errors": "NotApplicable ProgramError",
        "expansion": "Expansion expand",
        "linear.closure": "linear_closure",
        "linear.lazy": "lazy",
        "linear.projection": "error_projected",
        "program": "GradientDescent GradientFlow Network Program isotropic mlp structured",
        "reduce.moments": "two_layer",
        "reduce.whitened": "whitened",
        "scale": "first_step largest_rate width_class",
        "show": "latex text",
        "theory": "Theory mean_field",
        "theory.fluctuations": "fluctuations",
        "theory.path_integral": "path_integral",
        "theory.routes": "check_routes",
    }.items()
    for name in names.split()
}
"""The module of each public name, which is imported (with SymPy) when the name is first used."""

__all__ = [
    "Expansion",
    "GradientDescent",
    "GradientFlow",
    "L",
    "Network",
    "NotApplicable",
    "P",
    "Program",
    "ProgramError",
    "Theory",
    "check_routes",
    "error_projected",
    "eta",
    "expand",
    "first_step",
    "fluctuations",
    "gamma0",
    "infinite_depth",
    "isotropic",
    "largest_rate",
    "latex",
    "lazy",
    "linear_closure",
    "mean_field",
    "mlp",
    "path_integral",
    "structured",
    "text",
    "two_layer",
    "whitened",
    "width_class",
]


__getattr__ = loader(__name__, _HOMES)


def __dir__() -> list[str]:
    """Return the names in ``__all__``, sorted; each of them is imported when it is first used."""
    return sorted(__all__)
