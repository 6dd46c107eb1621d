"""Responses of the modes of structured data in the lazy limit, as Laplace transforms in time.

From the theory of structured data the module returns the transform of each field's response to a source, with
the kernel of the modes as the symbol K, and the weight of a mode in the loss. The laws of finite batches,
widths and numbers of samples use it.
"""

from __future__ import annotations

from sympy import Expr, Function, S, Symbol, exp, factor, integrate, oo

from derive.calculus.averages import Average
from derive.calculus.symbols import s, t
from derive.errors import NotApplicable
from derive.linear.form import linear_form
from derive.linear.propagators import START, transfer
from derive.program.networks.random_data import k
from derive.scale.modes import K, factor_of, given, lamda
from derive.scale.modes import capacity as capacity_
from derive.theory import Source, Theory

z, z_ = Symbol("z", positive=True), Symbol("zprime", positive=True)
"""Laplace variables of two times."""


def on_eigenvalues(e: Expr) -> Expr:
    """Return an expression with the eigenvalue ``lamda(k)`` of mode k replaced by ``k^-capacity``.

    This is the spectrum of power-law data.
    """
    return e.subs(lamda(k), k**-capacity_)


def weight_in_loss(theory: Theory) -> Expr:
    """Return the weight of mode k in the loss: the factor of ``v(k,t) v(k,s)`` in the definition of C_v.

    v is the error of the mode, and C_v the correlation of errors, which is the loss at equal times.
    """
    (average,) = theory.order_parameter("C_v").definition.atoms(Average)
    v = Function("v")
    return average.args[0] / (v(k, t) * v(k, s))


def source_of(theory: Theory, name: str) -> Source:
    """Return the Gaussian source of the theory whose symbol has this name; raise NotApplicable without it."""
    for x in theory.sources:
        if x.symbol.func == Function(name):
            return x
    known = ", ".join(str(x.symbol) for x in theory.sources)
    remedy = (
        ", which is the noise of labels: derive the theory with noise=True" if name == LABEL_NOISE else ""
    )
    raise NotApplicable(f"the theory has the Gaussian sources {known}, and needs {name}{remedy}")


LABEL_NOISE = "eps"
"""Name of the source of label noise in structured data."""


def label_variance(theory: Theory) -> Expr:
    """Return the covariance of the label noise in the error signal on samples; 0 without label noise."""
    if all(x.symbol.func != Function(LABEL_NOISE) for x in theory.sources):
        return S.Zero
    factor_ = factor_of(linear_form(theory).row("Delta"), LABEL_NOISE)
    return factor_**2 * source_of(theory, LABEL_NOISE).covariance


def response_transforms(theory: Theory, into: str, R: Expr = S.Zero) -> dict[str, Expr]:
    """Return the Laplace transforms of the responses of the fields of a mode at gamma0 = 0, by field names.

    ``into`` is the field whose source is perturbed. The kernel by which the learnt function xi responds to
    the field h0 of the inputs is the constant K, with the transform K/z. In all other kernels the response
    ``R_Delta`` of the error signal on samples is replaced by ``R``, its transform. The memory of a flow is
    empty at time 0. Raises NotApplicable for kernels without a transform in closed form.
    """
    response_operators = transfer(theory, into)
    values = {START: S.Zero}
    for kernel in response_operators.kernels:
        if kernel.name == "K_xi_h0":
            values[kernel.operator] = constant_transform(K)
        else:
            values[kernel.operator] = kernel.definition.xreplace({Function("R_Delta")(t, s): R})
    transforms = {
        field: factor(operator.subs(values)) for field, operator in response_operators.operators.items()
    }
    for field, transform in transforms.items():
        if any(not a.is_commutative for a in transform.free_symbols) or transform.has(t, s):
            raise NotApplicable(
                f"the response {response_operators.operators[field]} of {field} has kernels that have no "
                "Laplace transform in closed form"
            )
    return transforms


def constant_transform(value: Expr) -> Expr:
    """Return the Laplace transform of a function that has a constant value, ``value/z``."""
    return integrate(value * exp(-z * t), (t, 0, oo))


def summable(task: str) -> dict[Symbol, Expr]:
    """Return substitutions by positive symbols for the source beta and the capacity.

    ``task`` is ``hard`` (beta below 1) or ``easy`` (beta above 1). SymPy can then compare exponents. The
    capacity becomes one plus a positive symbol, so that the sum of the eigenvalues ``k^-capacity`` converges.
    """
    return {**given(task), capacity_: 1 + Symbol("p_a", positive=True)}
