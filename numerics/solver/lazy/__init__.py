"""Theories at ``gamma0 = 0``: kernels from layer to layer, and outputs that are linear in earlier errors."""
