"""Expansions of nonlinear theories in gamma0, and in ``|gamma0|`` if phi has a kink.

`expand_nonlinear` and `expand_kinks` return them. Coefficients of fields are decorated trees (:mod:`.trees`),
and their tensors obey recursions over layers.
"""

from derive.expansion.nonlinear.expansion import KINKS, NonlinearExpansion, expand_nonlinear
from derive.expansion.nonlinear.kinks import KinkExpansion, expand_kinks

__all__ = ["KINKS", "KinkExpansion", "NonlinearExpansion", "expand_kinks", "expand_nonlinear"]
