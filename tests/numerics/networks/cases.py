"""Networks that people train, by the names that tables and benchmarks call them."""

from __future__ import annotations

from collections.abc import Callable

from tests.numerics.networks import attention, committee, experts, normalised, random_features, task
from tests.numerics.networks.case import Case

CASES: dict[str, Callable[[], Case]] = {
    "attention": attention.marked,
    "two heads": attention.two_heads,
    "heads with random scores": attention.random_scores,
    "two blocks of attention": attention.blocks,
    "attention, all options": attention.everything,
    "two experts": experts.two_experts,
    "blocks of four experts": experts.four_experts,
    "RMS normalisation before": normalised.rms_before,
    "layer normalisation after": normalised.layer_after,
    "committee, the same samples": committee.full_batch,
    "committee, batches in turn": committee.batches_in_turn,
    "committee, new samples": committee.online,
    "random features, the same samples": random_features.full_batch,
    "random features, new samples": random_features.online,
    "random features, many samples": random_features.population,
    "recurrent, answers at each step": task.running_sum,
    "recurrent, an answer at the end": task.parity,
}
"""Makers of the cases; each stands beside the tests of its network."""
