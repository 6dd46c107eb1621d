# Convolution: filters over positions, shared by all of them
from sympy import Symbol
from derive.program import L, convolution

positions = Symbol("Lambda", integer=True, positive=True)
reach = Symbol("S", integer=True, positive=True)
program = convolution(L, "tanh", positions=positions, receptive=reach)
