"""Numbers for the expansion in gamma0 of a nonlinear experiment."""

from numerics.expansion.nonlinear.evaluation import Evaluation, expand_nonlinear, series

__all__ = ["Evaluation", "expand_nonlinear", "series"]
