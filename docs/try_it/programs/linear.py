# Deep linear network: symbolic depth L, gradient flow
from derive.program import L, mlp

program = mlp(L, "linear", rule="flow")
