"""Programs that are used often, put together from the same pieces a user has."""

from derive.program.builders.fixed_data import convolution, feedback_alignment, mlp
from derive.program.builders.infinite_depth import depth_program
from derive.program.builders.isotropic import isotropic
from derive.program.builders.network import network
from derive.program.builders.perceptron import perceptron
from derive.program.builders.recurrent import recurrent
from derive.program.builders.rules import training_rule
from derive.program.builders.structured import structured

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
