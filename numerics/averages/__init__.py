"""Averages over correlated Gaussian variables, with error bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from derive.lazy_imports import loader

if TYPE_CHECKING:
    from numerics.averages.lattice import Tensor, Value
    from numerics.averages.single import average
    from numerics.averages.tensor_averages import tensor, tensors

__all__ = ["Tensor", "Value", "average", "tensor", "tensors"]

_HOMES = {
    "Tensor": "lattice",
    "Value": "lattice",
    "average": "single",
    "tensor": "tensor_averages",
    "tensors": "tensor_averages",
}

__getattr__ = loader(__name__, _HOMES)
