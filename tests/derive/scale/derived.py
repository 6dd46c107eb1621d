"""Theories and reductions from which the power laws are derived, computed once for all tests."""

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
    """Return the theory on the population of structured data."""
    return mean_field(structured(data="population", rule=rule))


@lru_cache
def samples() -> Theory:
    """Return the theory of a deep linear network on samples, in flow."""
    return mean_field(mlp(rule="flow", loss="sum"))


@lru_cache
def modes(rule: str = "flow") -> LazyModes:
    """Return the lazy modes of the population."""
    return lazy_modes(population(rule))


@lru_cache
def order() -> LeadingOrder:
    """Return the leading order in gamma0."""
    return leading_order(population(), samples())


@lru_cache
def reduced() -> RankOne:
    """Return the theory with kernels of rank one."""
    return rank_one(population())


@lru_cache
def rich() -> RichScaling:
    """Return the law of the rich regime."""
    return rich_scaling(reduced())


@lru_cache
def rich_at(depth: int, source: str) -> RichScaling:
    """Return the law at a depth and a source that are numbers, for data of capacity 2."""
    return rich_scaling(reduced(), depth, source, 2)


@lru_cache
def finite() -> Resources:
    """Return the effects of finite resources on the rich law."""
    return resources(reduced(), population(), mean_field(structured(noise=True)), population("gd"))


@lru_cache
def size(name: str, depth: int, source: str, capacity: str = "2") -> Bottleneck:
    """Return the effect of a finite size on the rich law."""
    law = rich_at(depth, source) if capacity == "2" else rich_scaling(reduced(), depth, source, capacity)
    return bottleneck(finite(), law, name)


@lru_cache
def depth() -> DepthParametrization:
    """Return the classification of depth parametrisations."""
    return DepthParametrization(mean_field(depth_program(alpha=alpha, gamma=gamma)))


@lru_cache
def batches() -> BatchNoise:
    """Return the noise of finite batches."""
    return batch_noise(mean_field(structured(noise=True)))


@lru_cache
def width() -> WidthNoise:
    """Return the noise of finite width."""
    return width_noise(population(), samples(), modes())


@lru_cache
def data() -> FixedData:
    """Return the laws of a fixed set of samples."""
    return fixed_data(mean_field(structured(data="full-batch", noise=True, rule="flow")))
