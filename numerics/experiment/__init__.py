"""Experiments: what a file says, checked, with its arrays; and the problem that it poses."""

from numerics.experiment.experiment import Experiment

__all__ = ["Experiment"]
