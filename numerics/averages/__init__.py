"""Averages over correlated Gaussian numbers, with errors."""

from numerics.averages.average import average
from numerics.averages.lattice import Tensor, Value
from numerics.averages.tensors import tensor, tensors

__all__ = ["Tensor", "Value", "average", "tensor", "tensors"]
