"""Limits of the fluctuations of finite networks in closed form."""

from derive.scale.fluctuations.initial import InitialCovariance, initial_covariance

__all__ = ["InitialCovariance", "initial_covariance"]
