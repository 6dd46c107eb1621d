"""Theories without memory as dynamical systems: nodes of a quadrature that move, or random points."""

from numerics.solve.two_layer.experiment import solve_two_layer_experiment
from numerics.solve.two_layer.solve import TwoLayerSolved, solve_two_layer

__all__ = ["TwoLayerSolved", "solve_two_layer", "solve_two_layer_experiment"]
