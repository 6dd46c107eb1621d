"""Theories at ``gamma0 = 0``: kernels from layer to layer, and errors that obey a linear equation."""
