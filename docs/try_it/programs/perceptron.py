# Perceptron: one unit learns from a teacher
from derive.program import perceptron

program = perceptron("teacher", loss="logistic")
