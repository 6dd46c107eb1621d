"""Nonlinear theories in discrete steps: sampled paths of all populations, marched together in one sweep."""

from numerics.solver.paths.solve import Solved, solve_particles, solve_to_accuracy

__all__ = ["Solved", "solve_particles", "solve_to_accuracy"]
