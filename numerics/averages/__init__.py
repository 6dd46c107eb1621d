"""Averages over correlated Gaussian numbers, with errors."""

from numerics.averages.single import average
from numerics.averages.tensors import tensor, tensors
from numerics.averages.value import Tensor, Value

__all__ = ["Tensor", "Value", "average", "tensor", "tensors"]
