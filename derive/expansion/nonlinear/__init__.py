"""Nonlinear theories expanded in powers of gamma0, and of ``|gamma0|`` where phi has a kink."""

from derive.expansion.nonlinear.expansion import KINKS, NonlinearExpansion, expand_nonlinear
from derive.expansion.nonlinear.kinks import KinkExpansion, expand_kinks

__all__ = ["KINKS", "KinkExpansion", "NonlinearExpansion", "expand_kinks", "expand_nonlinear"]
