"""Nonlinear theories expanded in powers of gamma0, for any nonlinearity."""

from derive.expansion.nonlinear.expansion import NonlinearExpansion, expand_nonlinear

__all__ = ["NonlinearExpansion", "expand_nonlinear"]
