"""Builders of common networks: each writes a forward pass and returns the trained :class:`Program`.

A builder is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from derive.lazy_imports import loader

if TYPE_CHECKING:
    from derive.program.networks.attention_blocks import attention
    from derive.program.networks.committee_machines import committee
    from derive.program.networks.fixed_data import convolution, feedback_alignment, mlp, network, recurrent
    from derive.program.networks.mixtures import experts
    from derive.program.networks.normalisation import normalised
    from derive.program.networks.options import training_rule
    from derive.program.networks.random_data import isotropic, perceptron, structured
    from derive.program.networks.random_feature_models import random_features
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

_HOMES = {
    "attention": "attention_blocks",
    "committee": "committee_machines",
    "convolution": "fixed_data",
    "depth_program": "residual",
    "experts": "mixtures",
    "feedback_alignment": "fixed_data",
    "isotropic": "random_data",
    "mlp": "fixed_data",
    "network": "fixed_data",
    "normalised": "normalisation",
    "perceptron": "random_data",
    "random_features": "random_feature_models",
    "recurrent": "fixed_data",
    "recurrent_task": "task",
    "structured": "random_data",
    "training_rule": "options",
}

__getattr__ = loader(__name__, _HOMES)


def __dir__() -> list[str]:
    """Return the names in ``__all__``, sorted, which ``dir`` lists before they are imported."""
    return sorted(__all__)
