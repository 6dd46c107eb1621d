"""Reference solver: theories in steps, evaluated from their expressions, with few samples and layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from derive.lazy_imports import loader

if TYPE_CHECKING:
    from numerics.solver.direct.evaluation import Evaluated, evaluate

__all__ = ["Evaluated", "evaluate"]

__getattr__ = loader(__name__, {"evaluate": "evaluation", "Evaluated": "evaluation"})
