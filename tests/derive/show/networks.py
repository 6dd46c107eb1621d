"""Programs written by hand for the printing tests."""

from sympy import Function, Symbol

from derive.program import (
    Definition,
    Field,
    GaussianMatrix,
    GradientFlow,
    Population,
    Program,
    t,
)


def recurrent_net(correlation=0):
    """dx/dt = -x + J phi(x) with J_ij and J_ji correlated."""
    neurons, phi = Population("neuron"), Function("phi")
    x = Field("x", neurons)
    J = GaussianMatrix("J", neurons, neurons, variance=Symbol("g") ** 2, symmetry=correlation)
    return Program(
        name="random recurrent network",
        rule=GradientFlow(),
        fields=(x,),
        definitions=(Definition(x(t), -x(t) + J @ phi(x(t)), (), evolves=True),),
        matrices=(J,),
    )
