"""Linear theories in powers of a parameter, as theories: one over a size, and the learning rate."""

from derive.expansion.theories.regression import kept_share, lazy_regression
from derive.expansion.theories.series import TheorySeries
from derive.expansion.theories.sizes import expand_sizes
from derive.expansion.theories.step_size import boundary_coefficients, expand_step_size, weights

__all__ = [
    "TheorySeries",
    "boundary_coefficients",
    "expand_sizes",
    "expand_step_size",
    "kept_share",
    "lazy_regression",
    "weights",
]
