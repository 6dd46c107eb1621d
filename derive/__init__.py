"""dmft-derive: write down how a network is trained, and derive the mean-field theory of that training.

>>> import derive
>>> theory = derive.mean_field(derive.mlp(derive.L, rule="flow"))
>>> print(derive.linear_closure(theory).response("A"))
((-gamma0**2)*C[ell]*D[ell] + I)**(-1)*C[ell]
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from derive.calculus.symbols import eta, gamma0
    from derive.errors import NotApplicable, ProgramError
    from derive.expansion import Expansion, expand
    from derive.linear.closure import LinearClosure, linear_closure
    from derive.linear.lazy import lazy
    from derive.linear.projection import error_projected
    from derive.program import (
        Along,
        Definition,
        Field,
        GaussianMatrix,
        GaussianVector,
        GivenVector,
        GradientDescent,
        GradientFlow,
        IndexRange,
        L,
        Mean,
        Multistep,
        Outer,
        P,
        Population,
        Program,
        TrainedMatrix,
        TrainedVector,
        mlp,
    )
    from derive.reduce.independence import independent_backward
    from derive.reduce.moments import two_layer
    from derive.reduce.whitened import series_radius, whitened, whitened_deep, whitened_limits
    from derive.show import latex, text
    from derive.theory import Average, Response, Theory, mean_field
    from derive.theory.path_integral import path_integral
    from derive.theory.routes import check_routes

_HOME = {
    "Along": "derive.program",
    "Average": "derive.theory",
    "Definition": "derive.program",
    "Expansion": "derive.expansion",
    "Field": "derive.program",
    "GaussianMatrix": "derive.program",
    "GaussianVector": "derive.program",
    "GivenVector": "derive.program",
    "GradientDescent": "derive.program",
    "GradientFlow": "derive.program",
    "IndexRange": "derive.program",
    "L": "derive.program",
    "LinearClosure": "derive.linear.closure",
    "Mean": "derive.program",
    "Multistep": "derive.program",
    "NotApplicable": "derive.errors",
    "Outer": "derive.program",
    "P": "derive.program",
    "Population": "derive.program",
    "Program": "derive.program",
    "ProgramError": "derive.errors",
    "Response": "derive.theory",
    "Theory": "derive.theory",
    "TrainedMatrix": "derive.program",
    "TrainedVector": "derive.program",
    "check_routes": "derive.theory.routes",
    "error_projected": "derive.linear.projection",
    "expand": "derive.expansion",
    "eta": "derive.calculus.symbols",
    "gamma0": "derive.calculus.symbols",
    "independent_backward": "derive.reduce.independence",
    "latex": "derive.show",
    "lazy": "derive.linear.lazy",
    "linear_closure": "derive.linear.closure",
    "mean_field": "derive.theory",
    "mlp": "derive.program",
    "path_integral": "derive.theory.path_integral",
    "series_radius": "derive.reduce.whitened",
    "text": "derive.show",
    "two_layer": "derive.reduce.moments",
    "whitened": "derive.reduce.whitened",
    "whitened_deep": "derive.reduce.whitened",
    "whitened_limits": "derive.reduce.whitened",
}
"""Where each public name lives; SymPy is loaded when one is first used."""

__all__ = [
    "Along",
    "Average",
    "Definition",
    "Expansion",
    "Field",
    "GaussianMatrix",
    "GaussianVector",
    "GivenVector",
    "GradientDescent",
    "GradientFlow",
    "IndexRange",
    "L",
    "LinearClosure",
    "Mean",
    "Multistep",
    "NotApplicable",
    "Outer",
    "P",
    "Population",
    "Program",
    "ProgramError",
    "Response",
    "Theory",
    "TrainedMatrix",
    "TrainedVector",
    "check_routes",
    "error_projected",
    "eta",
    "expand",
    "gamma0",
    "independent_backward",
    "latex",
    "lazy",
    "linear_closure",
    "mean_field",
    "mlp",
    "path_integral",
    "series_radius",
    "text",
    "two_layer",
    "whitened",
    "whitened_deep",
    "whitened_limits",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'derive' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
