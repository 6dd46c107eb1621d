# Random features: a trained readout, inputs of many modes
from derive.program.networks import random_features

program = random_features(data="full-batch", noise=True, rule="flow")
