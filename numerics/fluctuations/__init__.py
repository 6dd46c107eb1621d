"""Fluctuations of networks of finite width at order 1/N: variances and shifts of means."""

from numerics.fluctuations.finite_width import finite_width
from numerics.fluctuations.moments import ObservableMoments, OrderParameterMoments, moments

__all__ = ["ObservableMoments", "OrderParameterMoments", "finite_width", "moments"]
