"""Networks and derivations that many tests begin with, each made once in a process."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar, cast

from sympy import Expr

from derive import expansion, scale, theory
from derive.linear import closure, projection
from derive.program import networks
from derive.reduce import equilibrium as equilibrium_
from derive.reduce import homogeneous, moments, ridge
from derive.reduce import single_site as single_site_
from derive.reduce import stationary as stationary_
from derive.reduce import whitened as whitened_

Given = ParamSpec("Given")
Found = TypeVar("Found")


def kept(make: Callable[Given, Found]) -> Callable[Given, Found]:
    """Return the same function with cached results, except for arguments without a hash such as lists."""
    known = cast("Callable[Given, Found]", lru_cache(maxsize=256, typed=True)(make))

    @wraps(make)
    def once(*args: Given.args, **options: Given.kwargs) -> Found:
        try:
            hash((args, *options.values()))
        except TypeError:
            return make(*args, **options)
        return known(*args, **options)

    return once


mlp = kept(networks.mlp)
convolution = kept(networks.convolution)
recurrent = kept(networks.recurrent)
feedback_alignment = kept(networks.feedback_alignment)
isotropic = kept(networks.isotropic)
structured = kept(networks.structured)
perceptron = kept(networks.perceptron)
depth_program = kept(networks.depth_program)

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
single_site = shared(single_site_.single_site)
stationary = shared(stationary_.stationary)
few_steps = shared(scale.few_steps)
first_step = shared(scale.first_step)
largest_rate = shared(scale.largest_rate)
dominant_balance = shared(scale.dominant_balance)
lazy_kernel = shared(scale.lazy_kernel)
lazy_steps = shared(scale.lazy_steps)
memory_free = shared(scale.memory_free)
width_constraints = shared(scale.width_constraints)


def scaled(right: theory.Theory, kind: str, factor: Expr | float, fields: str = "") -> theory.Theory:
    """Return the theory with its terms of one kind times ``factor``: an error that a test must see.

    A factor 0 removes the terms. The terms are those in the equations of ``fields``, each a letter, or of all
    fields by default.
    """

    def terms(equation: theory.Equation) -> tuple[theory.Term, ...]:
        if fields and equation.name not in fields:
            return equation.terms
        own = [x.times(factor) if x.kind == kind else x for x in equation.terms]
        return tuple(x for x in own if factor or x.kind != kind)

    return replace(right, equations=tuple(replace(e, terms=terms(e)) for e in right.equations))
