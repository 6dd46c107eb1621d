"""Programs that are used often, put together from the same pieces a user has."""

from derive.program.builders.fixed_data import convolution, feedback_alignment, mlp
from derive.program.builders.network import network
from derive.program.builders.rules import training_rule

__all__ = ["convolution", "feedback_alignment", "mlp", "network", "training_rule"]
