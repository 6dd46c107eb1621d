"""What is special to theories of training on random data: parts of the loss, transfer functions, limits of
the sizes, sums over modes."""

from derive.meanfield.reductions.data.instant import instant_responses
from derive.meanfield.reductions.data.limit import theory_limit
from derive.meanfield.reductions.data.loss import LossDecomposition, Part, loss_decomposition
from derive.meanfield.reductions.data.modes import mode_sums
from derive.meanfield.reductions.data.sources import absorb_factors
from derive.meanfield.reductions.data.transfer import Transfer, transfer

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
