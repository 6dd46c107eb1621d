"""Any derived Theory, evaluated at small sizes straight from its expressions: slow, but one path for all."""

from numerics.solver.direct.evaluate import Evaluated, evaluate

__all__ = ["Evaluated", "evaluate"]
