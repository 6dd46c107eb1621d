"""Averages over correlated Gaussian numbers, with errors."""

from numerics.averages.lattice import Tensor, Value
from numerics.averages.tensors import average, tensor, tensors

__all__ = ["Tensor", "Value", "average", "tensor", "tensors"]
