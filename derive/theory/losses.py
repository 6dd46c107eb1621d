"""The losses of a theory on random data, in its order parameters.

A sample that no update has met has an error of which only the Gaussian sources are there: what training adds,
the response to the errors of the same sample, is missing.  The test loss is the variance of these sources at
equal times.  The training loss is the mean square of the whole error, which is an order parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sympy import Expr, Integer, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import s, t
from derive.errors import NotApplicable
from derive.theory.theory import Theory

ERROR, ERROR_VECTOR = "Delta", "v"
"""The error of a sample, and the vector whose product with an input it is, without the noise of its label."""


def losses(theory: Theory, noise: Expr | int = 0) -> Mapping[str, Expr]:
    """``train_loss`` and ``test_loss`` at time ``t``, of each output, for programs on random data.

    Where every sample is fresh (a batch a step, the population) both are the same.  On the population no
    sample stands in the theory: ``noise`` is the standard deviation of the labels then.
    Raises :class:`NotApplicable` for a theory of given samples.

    >>> from derive import isotropic, mean_field
    >>> losses(mean_field(isotropic(noise=True)))["test_loss"]
    sigma**2 + C_v(t, t)
    >>> losses(mean_field(isotropic(noise=True)))["train_loss"]
    C_Delta(t, t)
    """
    names = {e.name for e in theory.equations}
    if ERROR_VECTOR not in names:
        raise NotApplicable(f"{theory.program.name} has no field {ERROR_VECTOR}: its samples are given")
    if ERROR not in names:
        fresh = _now(theory.order_parameter(f"C_{ERROR_VECTOR}").symbol) + noise**2
        return MappingProxyType({"train_loss": fresh, "test_loss": fresh})
    terms = theory.equation(ERROR).terms
    covariance = {u.symbol.func: u.covariance for u in theory.sources}
    fresh = Integer(0)
    for x in terms:
        if x.kind == "source":
            (source,) = (y for y in x.expr.atoms(AppliedUndef) if y.func in covariance)
            fresh += (x.expr / source) ** 2 * _now(covariance[source.func])
    seen = _now(theory.order_parameter(f"C_{ERROR}").symbol)
    met = any(x.kind != "source" for x in terms)
    return MappingProxyType({"train_loss": seen if met else fresh, "test_loss": fresh})


def _now(e: Expr) -> Expr:
    """A correlation of a field with itself at the same time: partners of indices are the indices."""
    partners = {x: Symbol(x.name[:-1], **x.assumptions0) for x in e.free_symbols if x.name.endswith("_")}
    return e.subs({s: t, **partners})
