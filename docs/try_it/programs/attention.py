# Attention: one head of softmax attention and a perceptron in each block
from derive.program import L
from derive.program.networks import attention

program = attention(L, heads=1, positions=2, causal=True, read="last")
