"""Reference solver: any derived theory, evaluated from its expressions at few steps, samples and layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from derive.lazy_imports import loader

if TYPE_CHECKING:
    from numerics.solver.direct.evaluation import Evaluated, evaluate

__all__ = ["Evaluated", "evaluate"]

__getattr__ = loader(__name__, {"evaluate": "evaluation", "Evaluated": "evaluation"})
