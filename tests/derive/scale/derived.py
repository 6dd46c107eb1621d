"""What the power laws are read from, derived once for all tests."""

from functools import lru_cache

from derive.depth.balance import alpha, gamma
from derive.scale.bottlenecks import Bottleneck, Resources, bottleneck, resources
from derive.scale.depth import DepthParametrization
from derive.scale.finite_batch import BatchNoise, batch_noise
from derive.scale.finite_width import WidthNoise, width_noise
from derive.scale.modes import LazyModes, LeadingOrder, lazy_modes, leading_order
from derive.scale.power_laws import FixedData, fixed_data
from derive.scale.rich import RankOne, RichScaling, rank_one, rich_scaling
from derive.theory import Theory
from tests.derive.once import depth_program, mean_field, mlp, structured


@lru_cache
def population(rule: str = "flow") -> Theory:
    return mean_field(structured(data="population", rule=rule))


@lru_cache
def samples() -> Theory:
    return mean_field(mlp(rule="flow", loss="sum"))


@lru_cache
def modes(rule: str = "flow") -> LazyModes:
    return lazy_modes(population(rule))


@lru_cache
def order() -> LeadingOrder:
    return leading_order(population(), samples())


@lru_cache
def reduced() -> RankOne:
    return rank_one(population())


@lru_cache
def rich() -> RichScaling:
    return rich_scaling(reduced())


@lru_cache
def rich_at(depth: int, source: str) -> RichScaling:
    """At a depth and a source that are numbers, for data of capacity 2."""
    return rich_scaling(reduced(), depth, source, 2)


@lru_cache
def finite() -> Resources:
    return resources(reduced(), population(), mean_field(structured(noise=True)), population("gd"))


@lru_cache
def size(name: str, depth: int, source: str, capacity: str = "2") -> Bottleneck:
    """What a finite size does to the rich law."""
    law = rich_at(depth, source) if capacity == "2" else rich_scaling(reduced(), depth, source, capacity)
    return bottleneck(finite(), law, name)


@lru_cache
def depth() -> DepthParametrization:
    return DepthParametrization(mean_field(depth_program(alpha=alpha, gamma=gamma)))


@lru_cache
def batches() -> BatchNoise:
    return batch_noise(mean_field(structured(noise=True)))


@lru_cache
def width() -> WidthNoise:
    return width_noise(population(), samples(), modes())


@lru_cache
def data() -> FixedData:
    return fixed_data(mean_field(structured(data="full-batch", noise=True, rule="flow")))
