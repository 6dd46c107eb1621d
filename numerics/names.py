"""Names of quantities by role, which results, files and solvers share.

The author of a program may use any names: :func:`numerics.experiment.naming.named_by_role` renames a program
so that its quantities have these names.  Other modules take the names from here.
"""

OUTPUT, ERROR = "f", "Delta"
"""Output, and its error signal."""

FIELD, GRADIENT, BACKPROPAGATED = "h", "g", "z"
"""Field (preactivation) of each layer, gradient at it, and vector backpropagated through a weight matrix."""

FORWARD_SOURCE, BACKWARD_SOURCE = "u", "r"
"""Gaussian sources of fields and of gradients in a chain of layers."""

FEATURE_KERNEL, LINEAR_KERNEL, GRADIENT_KERNEL = "Phi", "H", "G"
"""Correlations of activations (in a linear chain: of fields), and of gradients."""

FORWARD_RESPONSE, BACKWARD_RESPONSE = "A", "B"
"""Responses of activations to the source of gradients, and of gradients to the source of fields."""

RESPONSES = (FORWARD_RESPONSE, BACKWARD_RESPONSE)
"""Both responses of a chain of layers."""

TARGETS, INPUT_KERNEL, INPUTS = "y", "K_x", "x"
"""Targets, kernel of the inputs, and inputs."""

LEARNT = "v"
"""Error of the learnt function on random data."""

C_LEARNT, C_FIELD, C_GRADIENT = "C_v", "C_h", "C_g"
"""Correlations of the error of the learnt function, of fields and of gradients on random data."""

MemberKey = tuple[str, tuple[int, ...]]
"""Key of a quantity of a program or theory: its name and the integers among its indices, without times."""
