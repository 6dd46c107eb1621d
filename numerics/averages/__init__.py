"""Averages over correlated Gaussian variables, with error bounds."""

from numerics.averages.average import average
from numerics.averages.lattice import Tensor, Value
from numerics.averages.tensors import tensor, tensors

__all__ = ["Tensor", "Value", "average", "tensor", "tensors"]
