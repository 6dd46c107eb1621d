"""Derivations that many tests begin with, each carried out once in a process."""

from functools import lru_cache

from derive import expansion, scale, theory
from derive.linear import closure, projection
from derive.reduce import equilibrium as equilibrium_
from derive.reduce import homogeneous, moments, ridge, single_site, stationary
from derive.reduce import whitened as whitened_

shared = lru_cache(maxsize=256)

mean_field = shared(theory.mean_field)
expand_linear = shared(expansion.expand_linear)
linear_closure = shared(closure.linear_closure)
error_projected = shared(projection.error_projected)
two_layer = shared(moments.two_layer)
moment_steps = shared(moments.moment_steps)
whitened = shared(whitened_.whitened)
equilibrium = shared(equilibrium_.equilibrium)
network_degree = shared(homogeneous.network_degree)
representer = shared(ridge.representer)
output_rate = shared(ridge.output_rate)
euler = shared(ridge.euler)
single_site = shared(single_site.single_site)
stationary = shared(stationary.stationary)
few_steps = shared(scale.few_steps)
first_step = shared(scale.first_step)
largest_rate = shared(scale.largest_rate)
dominant_balance = shared(scale.dominant_balance)
lazy_kernel = shared(scale.lazy_kernel)
lazy_steps = shared(scale.lazy_steps)
memory_free = shared(scale.memory_free)
width_constraints = shared(scale.width_constraints)
