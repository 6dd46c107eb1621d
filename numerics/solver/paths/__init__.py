"""Nonlinear theories, in steps or as flows: sampled paths of all populations, marched in one causal sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from derive.lazy_imports import loader

if TYPE_CHECKING:
    from numerics.solver.paths.solve import Solved, solve_particles, solve_to_accuracy

__all__ = ["Solved", "solve_particles", "solve_to_accuracy"]

__getattr__ = loader(__name__, {"Solved": "solve", "solve_particles": "solve", "solve_to_accuracy": "solve"})
