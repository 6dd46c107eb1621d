# Normalised network: the stream is divided by its size before each branch
from derive.program import L
from derive.program.networks import normalised

program = normalised(L, "tanh", place="before", normalisation="rms")
