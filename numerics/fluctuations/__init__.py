"""Fluctuations of networks of finite width, in numbers."""

from numerics.fluctuations.finite_width import finite_width
from numerics.fluctuations.moments import ObservableMoments, OrderParameterMoments, moments

__all__ = ["ObservableMoments", "OrderParameterMoments", "finite_width", "moments"]
