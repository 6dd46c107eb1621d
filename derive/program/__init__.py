"""Programs: populations, fields, Gaussian matrices, training rules and data of a training run.

A user writes a forward pass and a loss (:class:`Network`), or calls a builder such as :func:`mlp`; the result
is a :class:`Program`, from which :func:`derive.theory.mean_field` derives the theory.
"""

from derive.calculus.symbols import IndexRange, L, P, alpha, ell, eta, gamma0, mu, s, t
from derive.errors import ProgramError
from derive.program.entrywise import Entrywise, adam, adamw, lion, rmsprop, sign_descent
from derive.program.language import (
    Attribute,
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    Mean,
    P_train,
    Population,
    Product,
)
from derive.program.network import Network
from derive.program.networks import (
    convolution,
    depth_program,
    feedback_alignment,
    isotropic,
    mlp,
    network,
    perceptron,
    recurrent,
    structured,
    training_rule,
)
from derive.program.parts import Definition
from derive.program.program import Program
from derive.program.roles import Roles
from derive.program.rules import (
    GradientDescent,
    GradientFlow,
    LinearRule,
    Momentum,
    MomentumFlow,
    Multistep,
    TrainingRule,
    anchored_descent,
    entry_covariance,
)
from derive.program.spectral import Spectral, muon
from derive.program.training import Along, Gradient, Outer, Parametrization, TrainedMatrix, TrainedVector

__all__ = [
    "Along",
    "Attribute",
    "Definition",
    "Entrywise",
    "Field",
    "GaussianMatrix",
    "GaussianVector",
    "GivenVector",
    "Gradient",
    "GradientDescent",
    "GradientFlow",
    "IndexRange",
    "L",
    "LinearRule",
    "Mean",
    "Momentum",
    "MomentumFlow",
    "Multistep",
    "Network",
    "Outer",
    "P",
    "P_train",
    "Parametrization",
    "Population",
    "Product",
    "Program",
    "ProgramError",
    "Roles",
    "Spectral",
    "TrainedMatrix",
    "TrainedVector",
    "TrainingRule",
    "adam",
    "adamw",
    "alpha",
    "anchored_descent",
    "convolution",
    "depth_program",
    "ell",
    "entry_covariance",
    "eta",
    "feedback_alignment",
    "gamma0",
    "isotropic",
    "lion",
    "mlp",
    "mu",
    "muon",
    "network",
    "perceptron",
    "recurrent",
    "rmsprop",
    "s",
    "sign_descent",
    "structured",
    "t",
    "training_rule",
]
