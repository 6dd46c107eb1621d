"""What is special to theories of training on random data: parts of the loss, transfer functions, limits of
the sizes, sums over modes."""

from derive.linear.transfer import Transfer, transfer
from derive.reduce.data.instant import instant_responses
from derive.reduce.data.limit import theory_limit
from derive.reduce.data.loss import LossDecomposition, Part, loss_decomposition
from derive.reduce.data.modes import mode_sums
from derive.reduce.data.sources import absorb_factors

__all__ = [
    "LossDecomposition",
    "Part",
    "Transfer",
    "absorb_factors",
    "instant_responses",
    "loss_decomposition",
    "mode_sums",
    "theory_limit",
    "transfer",
]
