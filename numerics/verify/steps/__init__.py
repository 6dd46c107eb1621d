"""The checks of any linear network trained in exact steps: fixed samples with options, isotropic data."""

from numerics.verify.steps.run import verify_steps

__all__ = ["verify_steps"]
