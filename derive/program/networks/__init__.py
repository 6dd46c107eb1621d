"""Programs that are used often, put together from the same pieces a user has."""

from derive.program.networks.fixed_data import convolution, feedback_alignment, mlp
from derive.program.networks.infinite_depth import depth_program
from derive.program.networks.isotropic import isotropic
from derive.program.networks.network import network
from derive.program.networks.perceptron import perceptron
from derive.program.networks.recurrent import recurrent
from derive.program.networks.rules import training_rule
from derive.program.networks.structured import structured

__all__ = [
    "convolution",
    "depth_program",
    "feedback_alignment",
    "isotropic",
    "mlp",
    "network",
    "perceptron",
    "recurrent",
    "structured",
    "training_rule",
]
