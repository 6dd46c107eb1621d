"""Builders of common networks: each writes a forward pass and returns the trained :class:`Program`."""

from derive.program.networks.attention import attention
from derive.program.networks.committee import committee
from derive.program.networks.experts import experts
from derive.program.networks.fixed_data import convolution, feedback_alignment, mlp, network, recurrent
from derive.program.networks.normalised import normalised
from derive.program.networks.options import training_rule
from derive.program.networks.random_data import isotropic, perceptron, structured
from derive.program.networks.random_features import random_features
from derive.program.networks.residual import depth_program
from derive.program.networks.task import recurrent_task

__all__ = [
    "attention",
    "committee",
    "convolution",
    "depth_program",
    "experts",
    "feedback_alignment",
    "isotropic",
    "mlp",
    "network",
    "normalised",
    "perceptron",
    "random_features",
    "recurrent",
    "recurrent_task",
    "structured",
    "training_rule",
]
