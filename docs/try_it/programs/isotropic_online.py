# Isotropic data, online: a new batch in each step
from derive.program import L, isotropic

program = isotropic(L, data="online", noise=True)
