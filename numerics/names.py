"""What results, files and solvers call a quantity by the role that it has in a program.

A program's author may use any names: :func:`numerics.experiment.naming.named_by_role` renames a program so
that its quantities have these names, and only this module spells them.
"""

OUTPUT, ERROR = "f", "Delta"
"""The output, and its error."""

FIELD, GRADIENT, BACKPROPAGATED = "h", "g", "z"
"""The field of each layer, the gradient at it, and the vector that a matrix hands back to the layer."""

FORWARD_SOURCE, BACKWARD_SOURCE = "u", "r"
"""The Gaussian sources of fields and of gradients in a chain of layers."""

FEATURE_KERNEL, LINEAR_KERNEL, GRADIENT_KERNEL = "Phi", "H", "G"
"""Correlations of what a layer hands on (of its fields, in a linear chain) and of gradients."""

FORWARD_RESPONSE, BACKWARD_RESPONSE = "A", "B"
"""Responses of what a layer hands on to the source of gradients, and of gradients to the source of fields."""

RESPONSES = (FORWARD_RESPONSE, BACKWARD_RESPONSE)
"""Both responses of a chain of layers."""

TARGETS, INPUT_KERNEL, INPUTS = "y", "K_x", "x"
"""Targets, the kernel of the inputs, and the inputs themselves."""

LEARNT = "v"
"""The error of the function that is learnt from random data."""

C_LEARNT, C_FIELD, C_GRADIENT = "C_v", "C_h", "C_g"
"""Correlations of that error, of fields and of gradients, of random data."""

MemberKey = tuple[str, tuple[int, ...]]
"""A quantity of a program or theory: its name and the integers among its indices, without times."""
