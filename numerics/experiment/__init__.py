"""Experiments: the checked content of an experiment file with its arrays, and the problem made from it."""

from numerics.experiment.experiment import Experiment

__all__ = ["Experiment"]
