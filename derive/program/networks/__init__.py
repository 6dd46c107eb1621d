"""Programs that are used often, each a forward pass that is differentiated like any other."""

from derive.program.networks.fixed_data import convolution, feedback_alignment, mlp, network, recurrent
from derive.program.networks.options import training_rule
from derive.program.networks.random_data import isotropic, perceptron, structured
from derive.program.networks.random_features import random_features
from derive.program.networks.residual import depth_program

__all__ = [
    "convolution",
    "depth_program",
    "feedback_alignment",
    "isotropic",
    "mlp",
    "network",
    "perceptron",
    "random_features",
    "recurrent",
    "structured",
    "training_rule",
]
