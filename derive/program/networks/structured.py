"""Descent of a deep linear network on structured data, online, on the population or on a set of samples that
is used at every step: one mode for each eigenvalue (linear2025 section 4, appendix E).

Inputs have covariance ``diag(lamda(k))``; the eigenvalues may be summable, so the number M of modes is no
size that anything is proportional to: batch B and width N stay explicit.  In the language M is the
reference size (the modes have ratio 1, samples B/M, layers N/M) and the variances undo it, e.g. M for the
matrix of standard normal inputs.  Every average over modes then comes with a factor M, and
:func:`derive.reduce.data.mode_sums` writes the two as a sum over modes, from which M is gone.
"""

from __future__ import annotations

from sympy import Expr, S, Symbol, sqrt, sympify

from derive.errors import ProgramError
from derive.program.networks.isotropic import LinearNetwork, sigma
from derive.program.program import Definition, Program
from derive.program.training import TrainingRule
from derive.program.words import (
    Attribute,
    Field,
    GaussianMatrix,
    GaussianVector,
    L,
    Population,
    gamma0,
)

B = Symbol("B", positive=True)
"""Batch size."""
P = Symbol("P", positive=True)
"""The number of samples that are used at every step."""
N = Symbol("N", positive=True)
"""Width."""
M = Symbol("M", integer=True, positive=True)
"""The number of modes, which drops out."""
k = Symbol("k", integer=True, positive=True)
"""A mode."""


def structured(
    depth: int | Expr = L,
    *,
    data: str = "online",
    noise: bool | Expr = False,
    center: bool = True,
    parametrization: str = "mean-field",
    rule: str | TrainingRule = "gd",
) -> Program:
    """Descent on inputs with eigenvalues ``lamda(k)`` and target ``w_star(k)`` (eq. 106).

    ``data`` is ``"online"`` (B new samples at each step), ``"full-batch"`` (the same P samples at every step,
    in steps or in continuous time; the data matrix of eq. 6 with these variances) or ``"population"``, whose
    gradient is that of very large batches, in steps or in continuous time (eq. 112).  ``noise`` is sigma, or
    True for a symbol; ``center`` subtracts the initial function, as eq. 106 does.
    With ``parametrization="ntk"`` gamma0 becomes ``gamma0/sqrt(N)``, so that the features stand still as N
    grows.  Fields: ``v``, ``h0`` (and ``xi``) with one entry a mode, ``Delta`` on samples, ``h(ell)``,
    ``g(ell)``.  ``C_v`` weighs each mode by its eigenvalue (eq. 108), so it is the loss.

    Raises :class:`ProgramError` as :func:`derive.program.networks.isotropic.isotropic` does.  The
    population's loss has no samples: no ``Delta`` and no label noise.

    >>> structured().attribute_of("lamda").population.name
    'modes'
    """
    if parametrization not in ("mean-field", "ntk"):
        raise ProgramError(f"parametrization = {parametrization!r}: must be 'mean-field' or 'ntk'")
    if data not in ("online", "full-batch", "population"):
        raise ProgramError(f"data = {data!r}: must be 'online', 'full-batch' or 'population'")
    modes = Population("modes")
    build = LinearNetwork(
        depth,
        rule,
        widths=N / M,
        scale=gamma0 if parametrization == "mean-field" else gamma0 / sqrt(N),
        inputs=modes,
        unit=M,
    )
    strength = sigma if noise is True else sympify(noise or 0)
    if data == "population" and strength != 0:
        raise ProgramError("noise: the population's loss has no samples, so its labels have no noise to fit")
    fresh = data == "online"
    count = B if fresh else P
    batch = Population("samples", ratio=count / M)
    Delta, lamda = Field("Delta", batch), Attribute("lamda", modes)
    target = Attribute("w_star", modes)
    Z = GaussianMatrix(
        "Z", batch, modes, M, sources=("u_Delta", "u0"), responses=("R_vu", "R_Delta"), fresh=fresh
    )
    eps = GaussianVector("eps", batch, source="eps", fresh=fresh)
    v, h0, at = build.v, build.h0, build.at
    seen = sqrt(lamda(k)) * at(v)

    if data == "population":
        return build.program(
            "deep linear network, structured data (population)",
            [*build.function(target(k), center), Definition(at(h0), lamda(k) * at(v))],
            fields=(),
            matrices=(),
            vectors=(),
            attributes=(lamda, target),
            notation={seen: "C_v", at(h0): "C_h0"},
        )
    definitions = [
        *build.function(target(k), center),
        Definition(at(Delta), Z @ seen + strength * eps.symbol),
        Definition(at(h0), sqrt(lamda(k)) / count * (Z.T @ at(Delta))),
    ]
    return build.program(
        "deep linear network, structured data" + ("" if fresh else " (full-batch)"),
        definitions,
        fields=(Delta,),
        matrices=(Z,),
        vectors=(eps,) if strength != S.Zero else (),
        attributes=(lamda, target),
        notation={seen: "C_v", at(h0): "C_h0", at(Delta): "C_Delta"},
    )
