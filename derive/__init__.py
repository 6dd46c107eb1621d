"""dmft-derive: write down how a network is trained, and derive the mean-field theory of that training.

>>> import derive
>>> theory = derive.mean_field(derive.mlp(derive.L, rule="flow"))
>>> print(derive.linear_closure(theory).response("A"))
((-gamma0**2)*C[ell]*D[ell] + I)**(-1)*C[ell]

Here is what most users need.  The words of :mod:`derive.program` write networks of one's own; the other rooms
hold the rest (``docs/architecture.md``).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
    from derive.theory.path_integral import path_integral
    from derive.theory.routes import check_routes

_HOME = {
    "Expansion": "derive.expansion",
    "GradientDescent": "derive.program",
    "GradientFlow": "derive.program",
    "L": "derive.calculus.symbols",
    "Network": "derive.program",
    "NotApplicable": "derive.errors",
    "P": "derive.calculus.symbols",
    "Program": "derive.program",
    "ProgramError": "derive.errors",
    "Theory": "derive.theory",
    "check_routes": "derive.theory.routes",
    "error_projected": "derive.linear.projection",
    "eta": "derive.calculus.symbols",
    "expand": "derive.expansion",
    "first_step": "derive.scale",
    "gamma0": "derive.calculus.symbols",
    "infinite_depth": "derive.depth",
    "isotropic": "derive.program",
    "largest_rate": "derive.scale",
    "latex": "derive.show",
    "lazy": "derive.linear.lazy",
    "linear_closure": "derive.linear.closure",
    "mean_field": "derive.theory",
    "mlp": "derive.program",
    "path_integral": "derive.theory.path_integral",
    "structured": "derive.program",
    "text": "derive.show",
    "two_layer": "derive.reduce.moments",
    "whitened": "derive.reduce.whitened",
    "width_class": "derive.scale",
}
"""Where each public name lives; SymPy is loaded when one is first used."""

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


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'derive' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
